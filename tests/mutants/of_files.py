"""Mutants of what an attempt adds: manifests, manifest lists, re-basing, repair, compaction."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PARTITIONED = "tests/catalog/test_rows_by_partition.py::"
_EVOLVED = "tests/catalog/test_evolved_tables.py::"
_EMPTY = "tests/catalog/test_empty_appends.py::"
_MERGED = "tests/catalog/test_merged_manifests.py::"
_CARRIED = "tests/catalog/test_carried_entries.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "files-under-their-own-spec",
        "table/producers.py",
        "            with self.new_manifest_writer(self.spec(spec_id)) as writer:\n",
        "            with self.new_manifest_writer(self._transaction.table_metadata.spec()) as writer:\n",
        f"{_EVOLVED}test_a_compaction_lands_under_the_spec_that_it_wrote_with",
    ),
    Mutant(
        "appends-under-their-own-spec",
        "table/append.py",
        "                spec=self.spec(spec_id),\n",
        "                spec=metadata.spec(),\n",
        f"{_EVOLVED}test_files_land_under_their_spec_by_a_table_object_that_knows_a_later_one[append]",
    ),
    Mutant(
        "a-spec-is-what-it-says",
        "iceberg/written.py",
        "            if known.get(spec_id) != spec:\n",
        "            if spec_id not in known:\n",
        f"{_EVOLVED}test_a_spec_or_schema_of_another_content_is_another_one",
    ),
    Mutant(
        "a-schema-is-what-it-says",
        "iceberg/rebase.py",
        "    if written is None or (append.schema and append.schema != digest(written)):\n",
        "    if written is None:\n",
        f"{_EVOLVED}test_a_spec_or_schema_of_another_content_is_another_one",
    ),
    Mutant(
        "the-schema-of-written-files",
        "iceberg/written.py",
        "    if now is written or now == written:\n",
        "    if True:\n",
        f"{_EVOLVED}test_nulls_do_not_land_in_a_column_that_the_same_transaction_made_required",
    ),
    Mutant(
        "rows-of-other-specs-are-replaced",
        "table/replaced.py",
        "            _rows_replaced(metadata, io, task, others, found)\n",
        "            continue\n",
        f"{_EVOLVED}test_a_dynamic_overwrite_replaces_rows_of_every_spec",
    ),
    Mutant(
        "nan-is-one-partition",
        "iceberg/partitions.py",
        "_NAN if isinstance(value, float) and math.isnan(value) else value for",
        "value for",
        f"{_EVOLVED}test_a_dynamic_overwrite_replaces_a_partition_of_nan",
    ),
    Mutant(
        "outer-columns-that-are-new",
        "iceberg/written.py",
        "        if before is None and field_id in parents and parents[field_id] not in fields:\n",
        "        if False:\n",
        f"{_EVOLVED}test_appends_go_on_after_an_optional_nested_column_was_added",
    ),
    Mutant(
        "column-ids-that-were-taken",
        "iceberg/rebase.py",
        "        if taken := _taken_column_ids(attempt, head):\n",
        "        if taken := []:\n",
        f"{_EVOLVED}test_a_new_column_does_not_show_what_a_dropped_one_held",
    ),
    Mutant(
        "no-gap-in-the-snapshot-log",
        "iceberg/metadata.py",
        "snapshot_log.behind(snapshot_ids)",
        "snapshot_log.without(snapshot_ids)",
        f"{_EVOLVED}test_the_time_of_an_expired_snapshot_has_no_other_one",
    ),
    Mutant(
        "a-merge-prepared-before-an-upgrade",
        "coordinator/commit.py",
        "            if merge is not None and merge.format_version != follows.metadata.format_version:\n",
        "            if False:\n",
        f"{_MERGED}test_a_merge_that_was_prepared_before_an_upgrade_is_not_used",
    ),
    Mutant(
        "a-merge-of-an-older-format",
        "iceberg/manifests.py",
        '        if int(read.get("format-version", b"1")) != metadata.format_version:\n            return None\n',
        "",
        f"{_MERGED}test_what_is_merged_after_an_upgrade_keeps_its_sequence_numbers",
    ),
    Mutant(
        "partitions-of-dropped-columns",
        "iceberg/written.py",
        "    return next((schema for schema in schemas if sources <= schema._lazy_id_to_field.keys()), schemas[0])\n",
        "    return schemas[0]\n",
        f"{_MERGED}test_manifests_are_merged_after_their_partition_column_was_dropped",
    ),
    Mutant(
        "no-empty-block-in-a-list",
        "iceberg/manifest_list.py",
        "    old = avro.without_empty_blocks(old)\n",
        "",
        f"{_EMPTY}test_rows_after_an_append_of_nothing_stay_visible",
    ),
    Mutant(
        "commits-on-a-list-that-readers-stop-in",
        "table/producers.py",
        "        if hidden:\n",
        "        if False:\n",
        f"{_EMPTY}test_a_list_that_readers_stop_in_is_read_whole_by_us_and_repaired",
    ),
    Mutant(
        "orphans-trust-no-reader-alone",
        "catalog/orphans.py",
        "    if found != again:\n",
        "    if False:\n",
        f"{_EMPTY}test_orphans_deletes_nothing_when_its_reader_overlooks_an_entry",
    ),
    Mutant(
        "orphans-beside-the-data-of-another-table",
        "catalog/orphans.py",
        'for path in (metadata.location, *(metadata.properties.get(key, "") for key in _PLACES)):',
        "for path in (metadata.location,):",
        f"{_EMPTY}test_orphans_refuses_a_table_that_holds_the_data_of_another",
    ),
    Mutant(
        "a-required-list-that-is-null",
        "iceberg/required.py",
        "                if field.required and there[at].null_count > found.null_count:\n",
        "                if False:\n",
        "tests/catalog/test_required_values.py::test_a_row_that_lacks_a_required_value_is_refused_and_leaves_no_file"
        "[a map-update_rows-False]",
    ),
    Mutant(
        "a-required-value-in-a-slice",
        "iceberg/required.py",
        "    return pa.ListArray.from_arrays(offsets, pairs, mask=found.is_null()).flatten()\n",
        "    return pairs\n",
        "tests/catalog/test_required_values.py::test_what_is_missing_is_found_at_any_depth_and_in_a_slice",
    ),
    Mutant(
        "null-lists-and-maps",
        "iceberg/nulls.py",
        "            if made is None or made.null_count == source.null_count:\n",
        "            if True:\n",
        "tests/catalog/test_null_values.py::test_a_null_list_map_or_struct_stays_null_when_its_row_is_written_anew",
    ),
    Mutant(
        "versions-that-can-only-be-read",
        "table/table.py",
        "        refuse_unwritable(self)\n        catalog: Any = self.catalog\n        if not calls_take(",
        "        catalog: Any = self.catalog\n        if not calls_take(",
        f"{_EVOLVED}test_a_table_that_can_only_be_read_is_refused_before_anything_is_done",
    ),
    Mutant(
        "doubles-of-manifests",
        "iceberg/decoding.py",
        '    mends.wrap(DoubleReader, "read", lambda _: _double)\n',
        "",
        f"{_CARRIED}test_what_a_manifest_says_of_other_files_stays[double-by_delete-2]",
    ),
    Mutant(
        "forms-that-are-misread",
        "iceberg/decoding.py",
        "        if size is not None and ",
        "        if False and ",
        f"{_CARRIED}test_values_in_a_form_that_would_be_misread_are_refused[decimal as bytes]",
    ),
    Mutant(
        "a-merge-removes-what-it-replaced",
        "table/append.py",
        "                delete_quietly(self._io, path)\n",
        "                pass\n",
        f"{_MERGED}test_a_merge_leaves_no_manifest_that_nothing_refers_to",
    ),
    Mutant(
        "a-write-without-known-partitions",
        "table/table.py",
        "        except Exception:  # noqa: BLE001 - they are only locked: the write itself finds the error\n",
        "        except (ValueError, NotImplementedError):\n",
        "tests/catalog/test_operation_locks.py::test_a_write_whose_partitions_cannot_be_told_locks_the_table",
    ),
    Mutant(
        "orphans-of-shared-files",
        "catalog/orphans.py",
        "    if shares_files(metadata):\n",
        "    if False:\n",
        "tests/catalog/test_purging.py::test_no_orphan_of_a_table_that_shares_its_files_is_deleted",
    ),
    Mutant(
        "snapshots-of-shared-files",
        "iceberg/rebase.py",
        "if expires and shares_files(changed)",
        "if False",
        "tests/catalog/test_purging.py::test_no_snapshot_of_a_table_that_shares_its_files_expires",
    ),
    Mutant(
        "entries-without-sequence-numbers",
        "iceberg/decoding.py",
        "        if entry.status == ManifestEntryStatus.EXISTING and entry.sequence_number is None:\n",
        "        if False:\n",
        f"{_MERGED}test_a_commit_that_rewrites_entries_without_sequence_numbers_repairs_them[delete]",
    ),
    Mutant(
        "repair-of-sequence-numbers",
        "catalog/repair.py",
        "    overlooked = [*finder.overlooked(), *finder.unnumbered()]\n",
        "    overlooked = [*finder.overlooked()]\n",
        f"{_MERGED}test_entries_that_were_merged_without_sequence_numbers_are_repaired",
    ),
    Mutant(
        "two-partitions-of-zero",
        "iceberg/partitioned_rows.py",
        "pc.add(column, pa.scalar(0.0, column.type))",
        "column",
        f"{_PARTITIONED}test_zeros_of_both_signs_and_nan_are_written_once_and_found_by_every_reader",
    ),
    Mutant(
        "rows-split-by-pyiceberg",
        "table/data_files.py",
        "if not isinstance(rows, pa.Table):",
        "if True:",
        f"{_PARTITIONED}test_zeros_of_both_signs_and_nan_are_written_once_and_found_by_every_reader",
    ),
    Mutant(
        "what-is-not-known-of-a-null-is-deleted",
        "table/deletion.py",
        "~pc.coalesce(matches, pa.scalar(False))",
        "~matches",
        "tests/catalog/test_deletes_by_filter.py::test_a_delete_takes_the_rows_that_a_scan_shows",
    ),
    Mutant(
        "a-compaction-keeps-its-files-after-an-error",
        "table/compaction.py",
        "        if not transaction.sent or isinstance(",
        "        if isinstance(",
        "tests/catalog/test_created_files.py::test_a_compaction_that_fails_before_its_commit_leaves_no_file",
    ),
    Mutant(
        "a-creation-keeps-its-files-without-its-locks",
        "table/creation.py",
        "            if not self._sent or isinstance(",
        "            if isinstance(",
        "tests/catalog/test_created_files.py::test_a_table_that_is_not_made_in_time_leaves_no_file",
    ),
    Mutant(
        "numbers-of-thousands-of-digits",
        "iceberg/values.py",
        "int(Decimal((sign, digits, 0)))",
        'int("".join(map(str, digits))) * (-1 if sign else 1)',
        "tests/unit/test_values.py::test_a_number_of_thousands_of_decimal_places_is_refused",
    ),
    Mutant(
        "rows-of-a-table-that-is-made-split-by-pyiceberg",
        "table/exact_rows.py",
        "        if _no_row_of(df) is df:\n",
        "        if not hasattr(self, '_target') or _no_row_of(df) is df:\n",
        "tests/catalog/test_tables_made_with_rows.py::"
        "test_zeros_of_both_signs_and_nan_are_written_once_into_a_table_that_is_made",
    ),
    Mutant(
        "names-of-files-that-the-same-transaction-adds",
        "table/transaction.py",
        "refuse_mapped_names(before, ",
        "refuse_mapped_names(self._table.metadata, ",
        "tests/catalog/test_row_filters.py::TestAddedFiles::"
        "test_a_column_does_not_take_over_the_name_of_one_in_files_of_the_same_transaction",
    ),
    Mutant(
        "names-of-files-that-are-added-to-a-table-that-is-made",
        "table/creation.py",
        "        if any(isinstance(update, AddSchemaUpdate) for update in updates):\n",
        "        if False:\n",
        "tests/catalog/test_tables_made_with_rows.py::"
        "test_a_column_of_a_table_that_is_made_does_not_take_over_the_name_of_one_in_added_files",
    ),
    Mutant(
        "columns-that-a-table-that-is-made-makes-required",
        "table/creation.py",
        "if reason is not None), None)) is not None:",
        "if reason is not None), None)) is self:",
        "tests/catalog/test_tables_made_with_rows.py::"
        "test_null_does_not_land_in_a_column_that_the_transaction_that_makes_its_table_makes_required",
    ),
    Mutant(
        "rows-to-update-of-a-table-that-is-made",
        "table/creation.py",
        "        if self._matching:\n",
        "        if False:\n",
        "tests/catalog/test_tables_made_with_rows.py::"
        "test_a_table_that_is_made_finds_rows_to_update_by_columns_that_it_renamed",
    ),
    Mutant(
        "half-a-call-on-a-table-that-is-made",
        "table/creation.py",
        "        with self.whole():\n            super().overwrite(",
        "        if True:\n            super().overwrite(",
        "tests/catalog/test_tables_made_with_rows.py::"
        "test_a_call_that_fails_leaves_what_was_written_before_it_into_a_table_that_is_made",
    ),
    Mutant(
        "files-added-to-a-table-that-is-made",
        "table/creation.py",
        "            self._append_foreign(file_paths, snapshot_properties, branch)\n",
        "            super().add_files(file_paths, snapshot_properties, check_duplicate_files, branch)\n",
        "tests/catalog/test_tables_made_with_rows.py::"
        "test_files_that_are_added_to_a_table_that_is_made_lie_where_their_rows_lie",
    ),
    Mutant(
        "a-file-without-a-count-has-no-nan",
        "iceberg/decoding.py",
        '    mends.wrap(_StrictMetricsEvaluationVisitor, "_can_contain_nans", lambda _: _can_contain_nans)\n',
        "",
        "tests/catalog/test_deletes_by_filter.py::test_nan_stays_beside_numbers_that_are_deleted",
    ),
    Mutant(
        "a-merge-denies-what-was-not-said",
        "iceberg/manifests.py",
        "    if partition.fields and not all(manifest.partitions for manifest in manifests):\n",
        "    if False:\n",
        "tests/catalog/test_merged_manifests.py::test_rows_of_manifests_that_do_not_say_what_their_partitions_are_are_found_after_a_merge[summaries]",
    ),
    Mutant(
        "a-merge-denies-nan",
        "iceberg/manifests.py",
        "True if True in nan else None if None in nan else False",
        "True in nan",
        "tests/catalog/test_merged_manifests.py::test_rows_of_manifests_that_do_not_say_what_their_partitions_are_are_found_after_a_merge[NaN]",
    ),
    Mutant(
        "a-look-for-lost-commits-leaves-files",
        "catalog/repair.py",
        "            _prepare=prepare,\n",
        "            _prepare=partial(lambda made: made, prepare()),\n",
        "tests/catalog/test_merged_manifests.py::test_looking_for_lost_commits_writes_no_file",
    ),
)
