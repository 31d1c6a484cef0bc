"""Mutants of commits that other engines ask for: what follows a head that moved, what has landed, whose turn it is."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BECAME = "iceberg/became_required.py"
_BLIND = "iceberg/blind.py"
_REQUESTED = "catalog/requested.py"
_TURNS = "protocol/turns.py"
_ADMISSION = "protocol/admission.py"
_REBASED = "tests/rest/test_rebase.py::test_"
_COLUMNS = "tests/rest/test_columns.py::test_"
_REQUIRED = "tests/rest/test_required_columns.py::test_"
_ASKED = "tests/catalog/test_commit_requests.py::test_"
_CLASSES = "tests/rest/test_classes.py::test_a_commit_that_has_landed_is_known_where_its_class_is_not_allowed_any_more"
_UNREAD = _ASKED + ("a_commit_whose_files_can_not_be_read_is_unknown_and_refused_only_if_it_can_not_have_landed")
_DRAWN = "tests/rest/test_programs.py::test_random_programs_find_no_wrong_row[0]"
_IN_TURN = "tests/unit/test_turns.py::test_"
_ADMITTED = "tests/unit/test_admission.py::test_"

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
        "    reason = lacks_required(part.entries.added, head.schema(), required, io)\n",
        "    reason = None\n",
        _REBASED + "files_that_were_written_before_their_manifest_are_looked_into",
    ),
    Mutant(
        "a-schema-that-is-there-brings-its-columns-back",
        "iceberg/rebase.py",
        "not (on_purpose and update.schema_ in head.schemas)",
        "update.schema_ not in head.schemas",
        _REBASED + "a_stale_client_that_adds_a_column_does_not_show_what_a_dropped_one_held",
    ),
    Mutant(
        "a-schema-that-is-there-brings-its-columns-back-the-generator",
        "iceberg/rebase.py",
        "not (on_purpose and update.schema_ in head.schemas)",
        "update.schema_ not in head.schemas",
        _COLUMNS + "no_cell_shows_what_was_not_written_into_its_column[0]",
    ),
    Mutant(
        "who-knows-all-column-ids-brings-none-back",
        "iceberg/rebase.py",
        "not (on_purpose and update.schema_ in head.schemas)",
        "True",
        _ASKED + "a_schema_that_the_table_has_brings_its_columns_back",
    ),
    Mutant(
        "rows-of-commits-that-are-not-declared-may-lack-what-is-required",
        _REQUESTED,
        "self._files.misfit(head, updates, io) or self._rows.misfit(head, updates, io)",
        "self._files.misfit(head, updates, io)",
        _REQUIRED + "no_null_lands_in_a_column_that_became_required[full-checked-long]",
    ),
    Mutant(
        "a-header-with-an-optional-column-refuses-nothing",
        _BECAME,
        "        for field_id in missing:\n",
        "        for field_id in ():\n",
        _REQUIRED + "a_manifest_of_the_optional_column_is_refused_whatever_its_files_hold[checked-long]",
    ),
    Mutant(
        "a-file-without-counts-is-believed",
        _BECAME,
        'if open_ones and str(file["file_format"]).upper() == "PARQUET":',
        "if False:",
        _REQUIRED + "no_null_lands_in_a_column_that_became_required[none-blind-long]",
    ),
    Mutant(
        "lists-are-believed",
        _BECAME,
        "outer[field_id] is None or nulls.get(field_id) != 0]",
        "outer[field_id] is not None and nulls.get(field_id) != 0]",
        _REQUIRED + "no_null_lands_in_a_column_that_became_required[full-blind-list]",
    ),
    Mutant(
        "counts-of-lists-are-believed",
        _BECAME,
        ".max_repetition_level == 0 and all(",
        ".max_repetition_level >= 0 and all(",
        _REQUIRED + "files_of_before_land_only_if_they_show_that_nothing_is_missing[full-blind-list]",
    ),
    Mutant(
        "a-file-that-requires-the-column-is-not-believed",
        _BECAME,
        "        return not optional or any(map(self._is_full, columns))\n",
        "        return any(map(self._is_full, columns))\n",
        _REQUIRED + "what_is_written_with_the_required_column_lands[full-blind-list]",
    ),
    Mutant(
        "a-commit-that-sets-the-columns-is-held-against-the-old-ones",
        _BECAME,
        "if not self._snapshots or any(isinstance(update, SetCurrentSchemaUpdate) for update in updates):",
        "if not self._snapshots:",
        _REQUIRED + "a_commit_that_sets_the_columns_itself_lands",
    ),
    Mutant(
        "removed-schemas-required-what-is-required",
        _BECAME,
        "if len(schemas) <= max(schema.schema_id for schema in schemas) else []",
        "if False else []",
        _REQUIRED + "rows_of_a_schema_that_was_removed_may_lack_it",
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
        "return self._coordinator.commit_tables(changes, repeatable=self._request_id is not None)",
        "return {each.attempt.table: self._coordinator.commit([each.attempt], replan=each.replan)[0] "
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
        _REBASED + "the_first_offsets_of_two_coordinators_are_distinct",
    ),
    Mutant(
        "a-refusal-is-told-while-others-move-the-head",
        _TURNS,
        "            held_back = ticket.stage is Stage.REFUSED and",
        "            held_back = False and",
        _IN_TURN + "a_refusal_is_sent_when_no_commit_runs_that_may_move_the_head",
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
        "and tables <= each.tables",
        "and tables & each.tables",
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
        "one-table-gets-all-threads",
        _ADMISSION,
        "all(self._running[name] < self._free for name in place.objects)",
        "self._free",
        _ADMITTED + "one_table_gets_half_of_the_threads_and_each_further_one_half_of_the_rest",
    ),
    Mutant(
        "who-waits-for-several-tables-is-overtaken",
        _ADMISSION,
        "                behind |= place.objects\n",
        "                pass\n",
        _ADMITTED + "a_request_for_several_tables_has_none_of_them_while_it_waits_and_is_not_overtaken",
    ),
    Mutant(
        "who-gives-up-stays-in-the-line",
        _ADMISSION,
        "            self._line.pop(place, None)\n",
        "            pass\n",
        _ADMITTED + "who_gives_up_lets_those_behind_go_on",
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
    Mutant(
        "a-request-is-forgotten-with-the-name-of-its-table",
        "catalog/sent_before.py",
        "        if self.coordinator.remembers(self.request_id, self.table_uuid):\n",
        "        if not self.coordinator:\n",
        _ASKED + "a_commit_that_landed_before_its_table_was_renamed_is_not_refused",
    ),
    Mutant(
        "a-column-id-is-given-twice-where-nothing-moved",
        _REQUESTED,
        "        if reason := taken_column_ids(self._asked, head):",
        "        if reason := None:",
        _ASKED + "a_new_column_gets_no_id_that_another_one_had",
    ),
    Mutant(
        "the-last-number-is-that-of-the-last-snapshot",
        "iceberg/given.py",
        '    last_number: int = max([getattr(base, "last_sequence_number", 0) or 0, *numbers])\n',
        "    last_number: int = max(numbers, default=changed.last_sequence_number)\n",
        "tests/unit/test_given.py::test_the_last_sequence_number_is_the_highest_that_was_given",
    ),
    Mutant(
        "row-ids-go-on-from-the-last-one",
        "iceberg/given.py",
        "        next_row_id = first + added\n",
        "        next_row_id += added\n",
        "tests/unit/test_given.py::test_no_row_id_is_given_twice",
    ),
    Mutant(
        "what-was-parsed-is-dumped-as-its-model",
        "iceberg/metadata.py",
        "            model = self._models[position] = self._parse(item)\n",
        "            model = self._items[position] = self._parse(item)\n",
        "tests/unit/test_unknown.py::test_every_update_keeps_what_nobody_knows_of_what_it_leaves",
    ),
    Mutant(
        "unknown-keys-go-with-an-id",
        "iceberg/unknown.py",
        "        return old == new\n",
        "        return True\n",
        "tests/unit/test_unknown.py::test_a_schema_that_gets_the_id_of_a_removed_one_has_its_own_keys_only",
    ),
    Mutant(
        "a-spec-with-files-is-removed",
        "coordinator/planning.py",
        "        if changed.partition_specs == head.partition_specs:\n",
        "        if changed is not None:\n",
        _REBASED + "a_spec_is_not_removed_as_long_as_a_snapshot_has_files_of_it",
    ),
    Mutant(
        "files-of-a-spec-that-is-gone-land",
        _REQUESTED,
        "        self._refuse_files_that_do_not_fit(head, updates)\n        return",
        "        return",
        _REBASED + "an_append_to_a_dropped_spec_is_refused",
    ),
    Mutant(
        "files-of-a-spec-are-known-by-its-id",
        "iceberg/specs.py",
        "or written not in (None, specs[spec_id])",
        "or written == 0",
        _REBASED + "an_append_to_a_spec_whose_id_another_one_got_is_refused",
    ),
    Mutant(
        "a-missing-file-is-a-conflict",
        _REQUESTED,
        "        self._refuse_files_that_do_not_fit(head, updates)\n        return",
        "        try:\n"
        "            self._refuse_files_that_do_not_fit(head, updates)\n"
        "        except CommitFailedException as error:\n"
        "            raise self._refused(CommitConflict, str(error)) from error\n"
        "        return",
        _UNREAD + "[0-list-cut at None-checked]",
    ),
    Mutant(
        "a-short-read-is-a-refusal",
        _REQUESTED,
        "        except Exception as error:\n            raise self._unreadable(head, error) from error\n"
        "        if reason",
        "        except OSError as error:\n            raise self._unreadable(head, error) from error\n"
        "        if reason",
        _UNREAD + "[1-manifest-cut at 40-checked]",
    ),
    Mutant(
        "a-short-read-of-a-blind-append-is-a-refusal",
        _REQUESTED,
        "        except Exception as error:\n            raise self._unreadable(head, error) from error\n"
        "        if isinstance(taken",
        "        except OSError as error:\n            raise self._unreadable(head, error) from error\n"
        "        if isinstance(taken",
        _UNREAD + "[1-list-cut at 0-blind]",
    ),
    Mutant(
        "a-list-that-was-cut-is-read",
        "iceberg/avro.py",
        "    if at > len(data):\n",
        "    if False:\n",
        "tests/unit/test_manifest_list.py::test_a_list_that_was_cut_is_neither_read_nor_grown",
    ),
    Mutant(
        "a-table-that-is-gone-refuses-what-has-landed",
        _REQUESTED,
        "except NoSuchTableError as error:  # after a 404",
        "except ZeroDivisionError as error:  # after a 404",
        _ASKED + "several_commits_that_have_landed_are_not_refused_because_a_table_is_gone",
    ),
    Mutant(
        "a-check-comes-before-the-look",
        _REQUESTED,
        "        if (landed := self.before.landed_in(head, location)) is not None:\n"
        "            return landed\n"
        "        check()\n",
        "        check()\n"
        "        if (landed := self.before.landed_in(head, location)) is not None:\n"
        "            return landed\n",
        _CLASSES,
    ),
    Mutant(
        "a-check-of-a-creation-comes-before-the-look",
        _REQUESTED,
        "            if (landed := self.before.landed_now()) is not None:\n                return landed\n",
        "",
        _CLASSES,
    ),
    Mutant(
        "a-check-of-a-transaction-comes-before-the-look",
        _REQUESTED,
        "        coordinator.require_multi_table()\n",
        "        coordinator.require_multi_table()\n        check()\n",
        _CLASSES,
    ),
    Mutant(
        "metadata-that-is-not-whole-is-a-refusal",
        "catalog/sent_before.py",
        "except (FileNotFoundError, ValueError) as error:",
        "except FileNotFoundError as error:",
        _ASKED + "a_commit_whose_head_is_deleted_under_it_reads_the_pointer_again[the table is damaged]",
    ),
    Mutant(
        "decoded-lists-have-no-limit",
        "iceberg/manifest_list.py",
        "            while self._count > self._MANIFESTS:\n",
        "            while False:\n",
        "tests/unit/test_manifest_list.py::test_the_manifests_that_are_kept_are_counted_and_have_a_limit",
    ),
    Mutant(
        "a-manifest-that-is-listed-twice-is-known-twice",
        "iceberg/manifest_list.py",
        "            if known and known.pop(record[keys[0]], None) is not None:\n",
        "            if record[keys[0]] in known:\n",
        "tests/unit/test_manifest_list.py::test_what_is_known_of_a_list_is_left_out_once[False]",
    ),
)
