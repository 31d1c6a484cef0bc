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
        "if not any(head.snapshot_by_id(snapshot_id) is not None for snapshot_id in ids) and not self._made(head):",
        "if not self._made(head):",
        _KEYS + "a_commit_that_comes_again_without_a_key_is_known_by_its_snapshot",
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
        "            raise CommitStateUnknown(\n",
        "            raise refused or CommitStateUnknown(\n",
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
        "if wanted != location and wanted not in (entry.metadata_file for entry in found.metadata_log):",
        "if wanted != location:",
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
