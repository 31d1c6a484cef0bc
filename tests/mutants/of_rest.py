"""Mutants of the REST server: what is sent again."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_KEYS = "tests/rest/test_idempotency.py::test_"
_SENT = "tests/catalog/test_commit_requests.py::test_"
_PARTS = "tests/rest/test_parts.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a-commit-is-not-known-by-its-snapshot",
        "catalog/sent_before.py",
        "if not (found and len(found) == len(ids)) and not self._made(head):",
        "if not self._made(head):",
        _KEYS + "a_commit_that_comes_again_without_a_key_is_known_by_its_snapshot",
    ),
    Mutant(
        "a-part-of-a-commit-stands-for-all-of-it",
        "catalog/sent_before.py",
        "if not (found and len(found) == len(ids)) and not self._made(head):",
        "if not found and not self._made(head):",
        _SENT + "a_commit_has_landed_only_if_all_its_snapshots_are_there[1-without]",
    ),
    Mutant(
        "a-deleted-head-is-not-looked-up-again",
        "iceberg/reader.py",
        "                if location == missing:\n",
        "                if location:\n",
        _SENT + "a_commit_whose_head_is_deleted_under_it_reads_the_pointer_again[the pointer has moved]",
    ),
    Mutant(
        "a-copied-request-id-is-a-conflict",
        "iceberg/rebase.py",
        "Summary(Operation.APPEND, **{**append.summary, **_marks(attempt, generation)}),",
        "Summary(Operation.APPEND, **append.summary, **_marks(attempt, generation)),",
        _SENT + "a_summary_that_was_copied_from_another_commit_gets_an_id_of_its_own[blind]",
    ),
    Mutant(
        "a-repeat-lands-in-another-table",
        "rest/doubts.py",
        "        if now.get(name) != uuid and not (uuid is None and may_be_new):\n",
        "        if False:\n",
        _KEYS + "a_repeat_that_does_not_find_its_table_is_unknown_and_not_refused",
    ),
    Mutant(
        "a-repeat-without-grants-is-forbidden",
        "rest/routes.py",
        "error_answer(self._keys.forbidden(error, admitted.route.handler, warehouse, seen))",
        "error_answer(error)",
        _KEYS + "a_client_that_lost_its_grants_after_its_commit_gets_no_4xx",
    ),
    Mutant(
        "a-change-that-comes-late-is-refused",
        "rest/idempotency.py",
        "            if not is_final(refused) or (found is None and doubt.guesses):\n",
        "            if refused:\n",
        _KEYS + "a_repeat_is_not_refused_for_what_its_first_copy_did_late[memory]",
    ),
    Mutant(
        "a-change-of-another-client-is-taken-for-ours",
        "rest/idempotency.py",
        "(found is None and doubt.guesses)",
        "(found is None and False)",
        _KEYS + "a_namespace_that_another_client_created_meanwhile_is_refused[memory]",
    ),
    Mutant(
        "a-paused-drop-drops-a-later-table",
        "catalog/base.py",
        "            refuse_another(self.coordinator, table, expected)\n",
        "",
        _KEYS + "a_drop_that_was_paused_spares_a_table_that_was_created_since",
    ),
    Mutant(
        "a-paused-purge-purges-a-later-table",
        "catalog/base.py",
        "            refuse_another(self.coordinator, name, expected)\n",
        "",
        _KEYS + "a_drop_that_was_paused_spares_a_table_that_was_created_since",
    ),
    Mutant(
        "metadata-that-is-not-the-file-s-is-kept",
        "rest/tables.py",
        "warehouse.answers.unkept(",
        "warehouse.answers.written(",
        _KEYS + "metadata_that_is_not_that_of_the_file_is_given_to_nobody_else[memory]",
    ),
    Mutant(
        "a-rename-that-comes-late-is-refused",
        "catalog/metastore/administration.py",
        "            if there in sent:\n",
        "            if False:\n",
        "tests/unit/test_administration.py::test_a_rename_that_comes_late_is_a_rename[2-table]",
    ),
    Mutant(
        "a-twin-that-landed-meanwhile-is-refused",
        "catalog/requested.py",
        "landed = self.before.landed_after(refused)",
        "landed = None",
        _SENT + "a_commit_whose_twin_landed_meanwhile_is_not_refused",
    ),
    Mutant(
        "a-repeat-that-can-not-be-looked-up-is-refused",
        "catalog/sent_before.py",
        'raise CommitStateUnknown(\n                f"this commit did not land; it',
        'raise refused or CommitStateUnknown(\n                f"this commit did not land; it',
        _SENT + "whether_it_was_sent_before_is_unknown_where_the_table_can_not_be_read",
    ),
    Mutant(
        "a-commit-with-a-key-does-not-carry-it",
        "catalog/requested.py",
        "repeatable=request_id is not None",
        "repeatable=False",
        _SENT + "a_named_commit_without_a_latch_is_unknown_and_another_one_has_failed",
    ),
    Mutant(
        "a-key-serves-any-request",
        "rest/answered.py",
        "if entry.table_uuid != _digest(request):",
        "if not _digest(request):",
        _KEYS + "a_key_of_another_request_is_refused",
    ),
    Mutant(
        "a-repeat-does-not-wait",
        "rest/idempotency.py",
        "lambda: key not in self._running, self._wait_s",
        "lambda: True, self._wait_s",
        _KEYS + "a_repeat_that_waits_for_too_long_is_sent_away_and_not_refused[memory]",
    ),
    Mutant(
        "a-repeat-does-not-wait-for-another-server",
        "rest/idempotency.py",
        "        if not answered.shared:\n            return nullcontext()\n",
        "        if key:\n            return nullcontext()\n",
        _KEYS + "a_repeat_that_waits_for_too_long_is_sent_away_and_not_refused[lease]",
    ),
    Mutant(
        "a-table-is-dropped-twice",
        "rest/doubts.py",
        'return NO_CONTENT if now["there"] != before["there"] else None',
        'return NO_CONTENT if now["there"] is None else None',
        _KEYS + "a_table_is_dropped_once[not kept]",
    ),
    Mutant(
        "an-overwrite-is-registered-twice",
        "rest/doubts.py",
        "        return None\n    log = warehouse.catalog.coordinator.read(location).metadata_log\n",
        "        return None\n    log = ()\n",
        _KEYS + "a_table_is_registered_once[not kept]",
    ),
    Mutant(
        "what-time-heals-is-answered-again",
        "rest/errors.py",
        "if isinstance(error, CommitNotApplied) and not isinstance(error, CommitConflict):",
        "if not error:",
        _PARTS + "what_time_does_not_heal_is_answered_again",
    ),
    Mutant(
        "a-commit-without-a-latch-is-unknown-for-good",
        "rest/idempotency.py",
        "if isinstance(error.__cause__, LockError):",
        "if not error:",
        _KEYS + "a_commit_that_got_no_latch_is_sent_again_with_its_key[lease]",
    ),
    Mutant(
        "transactions-are-not-counted",
        "rest/routes.py",
        "    return changed_tables(request.body)\n",
        "    return ()\n",
        "tests/rest/test_watching.py::test_the_limit_of_a_table_counts_transactions_too",
    ),
    Mutant(
        "transactions-have-no-turn",
        "rest/commits.py",
        "    return warehouse.lines.commit(map(warehouse.spelled, commits), frozenset(added), land)\n",
        "    return warehouse.lines.commit(map(warehouse.spelled, list(commits)[:1]), frozenset(added), land)\n",
        "tests/rest/test_turns.py::test_a_transaction_that_comes_back_goes_first_in_all_its_tables",
    ),
    Mutant(
        "a-stale-row-id-is-malformed",
        "iceberg/rebase.py",
        "misfit=None if fits_another_head else error",
        "misfit=None if moved else error",
        "tests/rest/test_wire.py::test_a_table_of_version_3_is_created_changed_and_loaded",
    ),
    Mutant(
        "a-service-that-is-away-is-a-conflict",
        "rest/errors.py",
        "meant = cause  # Nothing",
        "meant = error  # Nothing",
        _PARTS + "every_error_has_its_status",
    ),
)
