"""Mutants of commits that other engines ask for: what follows a head that moved, what has landed, whose turn it is."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BLIND = "iceberg/blind.py"
_REQUESTED = "catalog/requested.py"
_TURNS = "protocol/turns.py"
_REBASED = "tests/rest/test_rebase.py::test_"
_ASKED = "tests/catalog/test_commit_requests.py::test_"
_DRAWN = "tests/rest/test_programs.py::test_random_programs_find_no_wrong_row[1]"
_IN_TURN = "tests/unit/test_turns.py::test_"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "what-adds-alone-is-blind",
        _BLIND,
        "        return property_as_bool(dict(properties), BLIND_APPENDS, False)\n",
        "        return True\n",
        _REBASED + "what_only_adds_and_is_not_declared_is_refused_when_the_head_moved",
    ),
    Mutant(
        "what-adds-alone-is-blind-the-generator",
        _BLIND,
        "        return property_as_bool(dict(properties), BLIND_APPENDS, False)\n",
        "        return True\n",
        _DRAWN,
    ),
    Mutant(
        "the-files-of-the-parent-may-be-left-out",
        _BLIND,
        "    if any(live.values()):\n",
        "    if False:\n",
        _REBASED + "a_declared_append_that_leaves_out_a_file_is_refused",
    ),
    Mutant(
        "what-publishes-is-blind",
        _BLIND,
        "    if any(summary.get(key) is not None for key in _CHECKED_BY_CLIENT):\n",
        "    if False:\n",
        _REBASED + "what_publishes_a_staged_snapshot_or_replaces_partitions_is_no_blind_append",
    ),
    Mutant(
        "a-new-branch-starts-empty",
        _BLIND,
        "    if found.branch not in head.refs and found.branch != MAIN_BRANCH:\n",
        "    if False:\n",
        _REBASED + "a_new_branch_is_forked_also_where_nothing_is_required_of_it",
    ),
    Mutant(
        "files-are-of-the-schema-of-their-manifest",
        _BLIND,
        "    reason = _lacks_required(part, head)\n",
        "    reason = None\n",
        _REBASED + "files_that_were_written_before_their_manifest_are_looked_into",
    ),
    Mutant(
        "a-spec-is-known-by-its-id",
        _BLIND,
        "if spec is None or spec != PartitionSpec(*fields, spec_id=spec_id):",
        "if spec is None:",
        _REBASED + "an_append_to_a_spec_whose_id_another_one_got_is_refused",
    ),
    Mutant(
        "a-merged-manifest-goes-into-another-list-as-it-is",
        _BLIND,
        "    if entries.existing:\n",
        "    if False:\n",
        _REBASED + "of_a_merged_manifest_the_added_files_land",
    ),
    Mutant(
        "a-clients-sequence-numbers-stay",
        _BLIND,
        "    return manifest_list.unnumbered(manifest)\n",
        "    return manifest\n",
        _REBASED + "its_sequence_numbers_and_totals_are_those_of_its_place",
    ),
    Mutant(
        "an-append-is-blind-undeclared",
        _REQUESTED,
        "if found is not None and self._is_declared(found, head) and (",
        "if found is not None and (",
        _REBASED + "what_only_adds_and_is_not_declared_is_refused_when_the_head_moved",
    ),
    Mutant(
        "requirements-are-checked-before-the-latch-alone",
        _REQUESTED,
        "self._land([attempt], replan=self._on)",
        "self._land([attempt], replan=lambda head, at: replace(attempt, base_location=at, requirements=(), "
        "base_sequence_number=fast_metadata.sequence_number(head)))",
        _ASKED + "a_requirement_that_fails_on_the_head_refuses",
    ),
    Mutant(
        "several-commits-land-one-by-one",
        _REQUESTED,
        "return coordinator.commit_several(changes, repeatable=self._request_id is not None, remembered=False)",
        "return {each.attempt.table: coordinator.commit([each.attempt], replan=each.replan)[0] "
        "for each in reversed(changes)}",
        _ASKED + "several_commits_of_which_one_is_refused_under_the_latches_land_nothing",
    ),
    Mutant(
        "a-part-of-several-commits-is-all-of-them",
        _REQUESTED,
        "        if len(landed) < len(self._parts) and not named:\n",
        "        if False and not named:\n",
        _ASKED + "several_commits_of_which_a_part_is_there_are_unknown",
    ),
    Mutant(
        "a-snapshot-stands-for-a-request-id",
        _REQUESTED,
        "        if len(landed) < len(self._parts) and not named:\n",
        "        if len(landed) < len(self._parts) and self._request_id is None:\n",
        _ASKED + "several_commits_with_an_id_are_unknown_where_only_another_commit_had_a_part",
    ),
    Mutant(
        "a-repeat-is-a-new-commit",
        "catalog/sent_before.py",
        "if not (found and len(found) == len(ids)) and not self._made(head):",
        "if not self._made(head):",
        _REBASED + "a_commit_that_is_sent_twice_lands_once",
    ),
    Mutant(
        "what-was-written-for-a-refused-append-stays",
        _REQUESTED,
        "            if path not in used:\n",
        "            if False:\n",
        _REBASED + "what_was_written_for_a_refused_append_is_deleted",
    ),
    Mutant(
        "a-checkpoint-is-committed-again",
        "iceberg/streams.py",
        "committed < progress",
        "committed <= progress",
        _REBASED + "a_checkpoint_of_flink_that_is_in_the_table_is_refused",
    ),
    Mutant(
        "offsets-may-move",
        "iceberg/streams.py",
        "            if seen != now:\n",
        "            if False:\n",
        _REBASED + "the_first_offsets_of_two_coordinators_are_told_apart",
    ),
    Mutant(
        "a-refusal-is-told-while-others-move-the-head",
        _TURNS,
        "            held_back = ticket.stage is Stage.REFUSED and",
        "            held_back = False and",
        _IN_TURN + "a_refusal_is_told_when_nobody_runs_who_may_move_the_head",
    ),
    Mutant(
        "turns-that-nobody-uses-are-reserved-for-ever",
        _TURNS,
        "                self._unused[table] = self._unused.get(table, 0) + 1\n",
        "                self._unused[table] = 0\n",
        _IN_TURN + "writers_that_do_not_come_back_cost_ever_less",
    ),
    Mutant(
        "a-reserved-turn-never-ends",
        _TURNS,
        "for each in self._reserved if now >= each.until]",
        "for each in self._reserved if now < 0]",
        _IN_TURN + "a_writer_that_does_not_come_back_holds_nobody_up_for_longer_than_its_turn",
    ),
    Mutant(
        "a-turn-in-one-table-is-one-in-all",
        _TURNS,
        "and ticket.tables <= reserved.tables",
        "and bool(ticket.tables & reserved.tables)",
        _IN_TURN + "a_commit_to_several_tables_waits_in_none_while_it_has_the_turn_in_another",
    ),
    Mutant(
        "who-waits-for-a-turn-waits-for-ever",
        _TURNS,
        "        times = [ticket.deadline for ticket in self._line]\n",
        "        times = []\n",
        _IN_TURN + "whatever_clients_do_nobody_waits_for_ever_and_one_turn_is_used_at_a_time",
    ),
    Mutant(
        "offsets-that-can-not-be-compared-are-refused",
        _REQUESTED,
        "            self._keep_from_retrying(refused, error)\n",
        "",
        _ASKED + "whether_offsets_have_moved_is_unknown_where_the_table_can_not_be_read",
    ),
    Mutant(
        "offsets-without-a-latch-are-refused",
        _REQUESTED,
        "            self._keep_from_retrying(refused, refused)\n",
        "            pass\n",
        _ASKED + "a_commit_of_kafka_connect_without_a_latch_is_unknown",
    ),
)
