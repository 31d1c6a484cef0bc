"""Mutants that change rows, killed by programs that the oracle of rows drew: the same edits, found by nobody's list.

``python -m tests.mutants.rows --keep NAME`` looks for such a program and writes it. Below them are faults that programs
found in the code as it was.
"""

from __future__ import annotations

from dataclasses import replace

from tests.mutants.mutant import Mutant
from tests.mutants.rows import ALL, PROGRAMS, slug

_TEST = "tests/rows/test_rows.py::test_a_program_that_once_found_something_finds_nothing"

MUTANTS: tuple[Mutant, ...] = tuple(
    replace(edits[0], name=f"rows-{slug(name)}", test=f"{_TEST}[{slug(name)}]")
    for name, edits in ALL.items()
    if len(edits) == 1 and (PROGRAMS / f"{slug(name)}.txt").exists()
)


def _found(name: str, file: str, old: str, new: str) -> Mutant:
    """Return a fault that the program *name* found."""
    return Mutant(name, file, old, new, f"{_TEST}[{name}]")


_PREDICATES, _DECODING = "iceberg/predicates.py", "iceberg/decoding.py"
_CALLS, _REPLANNING, _WRITTEN = "table/calls.py", "table/replanning.py", "table/written_files.py"
_FOREIGN, _FILTERS = "table/foreign_files.py", "tests/catalog/test_row_filters.py::test_"
_COLUMN_NAMES, _UPSERT = "iceberg/column_names.py", "tests/catalog/test_upsert.py::test_"
_NAMES = (
    "tests/catalog/test_column_names.py::test_a_name_means_the_column_that_has_it_else_the_only_one_in_another_case"
)
_KEPT = "tests/catalog/test_kept_arguments.py::test_"
_TYPES, _REFUSED = "tests/catalog/test_parquet_types.py::test_", "tests/catalog/test_refused_arguments.py::test_"
_TRUNCATION, _LOWEST = "iceberg/truncation.py", "tests/catalog/test_lowest_partitions.py::test_"

MUTANTS += (
    _found("a-float-that-is-infinite", _PREDICATES, "if math.isinf(value) else", "if math.isnan(value) else"),
    _found(
        "an-empty-table-whose-first-snapshot-expired",
        "table/isolation.py",
        "    if read.snapshot_id is None and tip is not None:\n",
        "    if read.snapshot_id is None and tip is None:\n",
    ),
    _found(
        "a-partition-field-that-is-added-again-after-an-upgrade",
        "table/spec_changes.py",
        "        if made.field_id not in stays:\n",
        "        if made.field_id not in ():\n",
    ),
    Mutant(
        "a-call-follows-its-arguments",
        _CALLS,
        "return given if self.stack.depth else",
        "return given if True else",
        _KEPT + "arguments_that_are_used_again_change_no_call[set_properties-True]",
    ),
    Mutant(
        "a-call-follows-the-memory-of-its-rows",
        "table/arguments.py",
        "return _copied(value) if rows and is_table",
        "return value if rows and is_table",
        _KEPT + "arguments_that_are_used_again_change_no_call[upsert-True]",
    ),
    Mutant(
        "a-builder-follows-its-arguments",
        _CALLS,
        "            args, kwargs = arguments.kept((args, kwargs))\n",
        "",
        _KEPT + "arguments_that_are_used_again_change_no_call[update_schema-True]",
    ),
    Mutant(
        "properties-of-a-snapshot-as-they-are-at-the-commit",
        "table/append.py",
        "branch, summary_properties(snapshot_properties))",
        "branch, snapshot_properties)",
        _KEPT + "a_builder_of_snapshots_keeps_its_properties",
    ),
    Mutant(
        "a-plan-reads-a-stream-that-is-empty-by-now",
        _CALLS,
        "elif self.stack.repeating and any(",
        "elif self.stack.depth == 0 and any(",
        _KEPT + "a_plan_reads_a_stream_again_only_if_it_made_the_stream",
    ),
    Mutant(
        "bounds-of-numbers-without-a-sign",
        _FOREIGN,
        "(pa.types.is_uint32, pa.types.is_uint64,",
        "(pa.types.is_uint64,",
        _TYPES + "a_file_with_this_type_is_read_rightly_or_refused[long of 32 bits-uint32-as Arrow does-column]",
    ),
    Mutant(
        "a-dictionary-is-written",
        "iceberg/plain_rows.py",
        "return values if values == kind.value_type else",
        "return kind if values == kind.value_type else",
        _TYPES + "rows_in_a_dictionary_are_read_next_to_others",
    ),
    Mutant(
        "keys-in-nanoseconds",
        "table/exact_rows.py",
        "plain(in_microseconds(arrow_table(df)), columns)",
        "plain(arrow_table(df), columns)",
        _TYPES + "keys_in_nanoseconds_are_those_that_an_append_writes",
    ),
    Mutant(
        "a-mode-that-does-not-exist-appends",
        "table/table.py",
        "if mode not in get_args(WriteMode):",
        "if mode in ():",
        _REFUSED + "an_argument_without_a_meaning_is_refused[a mode that does not exist]",
    ),
    Mutant(
        "a-filter-that-no-mode-uses",
        "table/table.py",
        'if mode != "overwrite" and not isinstance(overwrite_filter, AlwaysTrue):',
        "if mode in ():",
        _REFUSED + "an_argument_without_a_meaning_is_refused[a filter that an append does not use]",
    ),
    Mutant(
        "a-caller-sets-a-total",
        "table/arguments.py",
        "if key.lower() in _COMPUTED or",
        "if key.lower() in () or",
        _REFUSED + "no_caller_sets_what_iceberg_computes[total-records]",
    ),
    Mutant(
        "a-deletion-leaves-the-file",
        "table/producers.py",
        "        raise InvalidArguments(\n            \"this snapshot can't remove",
        "        return super().delete_data_file(data_file)  # type: ignore\n        raise InvalidArguments(\n"
        "            \"this snapshot can't remove",
        _REFUSED + "a_snapshot_that_would_leave_a_file_refuses_to_remove_it[delete]",
    ),
    Mutant(
        "a-page-of-no-rows",
        "table/data_files.py",
        "not 1 <= size < 2**63",
        "not 1 <= size",
        _REFUSED + "rows_are_not_written_in_parts_without_a_size[write.parquet.page-row-limit-9223372036854775808]",
    ),
    _found("in-with-a-zero", _PREDICATES, "and 0.0 in literals:", "and None in literals:"),
    Mutant(
        "a-null-partition-is-not-greater",
        _PREDICATES,
        "if term.eval(self.struct) is None else",
        "if term.eval(self.struct) is self else",
        _FILTERS + "null_is_neither_so_nor_otherwise",
    ),
    _found(
        "the-day-after-the-last-one",
        _PREDICATES,
        "            return int(real(number))\n        except OverflowError:",
        "            return int(real(number))\n        except ZeroDivisionError:",
    ),
    _found("a-new-struct-with-a-required-field", "iceberg/nulls.py", "or not len(column) or", "or len(column) or"),
    _found("two-partition-fields-of-one-type", _DECODING, '["name"] in self._names:', '["name"] in ():'),
    _found(
        "a-void-field-of-a-required-column",
        _DECODING,
        "if not isinstance(field.transform, VoidTransform) and always",
        "if always",
    ),
    _found("a-lock-that-comes-after-what-was-read", _CALLS, "if look and not bound and", "if look and"),
    _found(
        "what-depends-on-nothing-replaces-all-that-is-there",
        _REPLANNING,
        " and not self._overlooks(head) and",
        " and",
    ),
    Mutant(
        "an-added-file-with-null-next-to-a-value",
        _FOREIGN,
        "from_batches([batch])",
        "from_batches([batch]).slice(0, 1)",
        "tests/catalog/test_row_filters.py::TestAddedFiles::test_one_whose_rows_lie_in_two_partitions_is_refused",
    ),
    _found(
        "an-added-file-of-nan",
        _FOREIGN,
        "    return next(iter(found.values()))\n",
        "    return Record(*(None if v != v else v for v in next(iter(found.values()))._data))\n",
    ),
    _found(
        "a-name-mapping-takes-in-new-columns",
        "table/transaction.py",
        "if (mapping := grown_mapping(self.table_metadata)) is not None:",
        "if (mapping := grown_mapping(self.table_metadata)) and not self.table_metadata.name_mapping():",
    ),
    _found(
        "files-by-the-name-mapping-of-an-old-table",
        _FOREIGN,
        "if name := taken_over(known, schema):",
        "if name := taken_over(known, schema, schema):",
    ),
    _found(
        "names-in-a-name-mapping-are-not-taken-over",
        _FOREIGN,
        "if known is not None and (name := taken_over(known, schema, before",
        "if known is None and (name := taken_over(known, schema, before",
    ),
    _found(
        "the-last-partition-field-was-dropped",
        "iceberg/written.py",
        "return not all(isinstance(field.transform, VoidTransform) for field in spec.fields)",
        "return bool(spec.fields)",
    ),
    _found(
        "a-field-of-a-struct-has-no-bounds-that-tell-all",
        _PREDICATES,
        "            return ROWS_MIGHT_NOT_MATCH  # it lies in a struct\n",
        "            return real(self, predicate)\n",
    ),
    Mutant(
        "an-added-file-without-rows-has-a-partition",
        _FOREIGN,
        "if not parquet.metadata.num_rows and any(",
        "if parquet is None and any(",
        _FILTERS.removesuffix("test_")
        + "TestAddedFiles::test_one_without_rows_lies_in_no_partition_of_a_required_column",
    ),
    Mutant(
        "an-added-file-without-bounds-lies-in-the-partition-of-null",
        _FOREIGN,
        "if not parquet.metadata.num_rows or not sources:",
        "if not parquet.metadata.row_group(0).column(0).is_stats_set:",
        _FILTERS.removesuffix("test_") + "TestAddedFiles::test_one_without_bounds_lies_where_its_rows_lie",
    ),
    Mutant(
        "a-file-whose-field-ids-are-of-other-columns",
        _FOREIGN,
        "!= schema.find_column_name(field_id):",
        "!= named.find_column_name(field_id):",
        _FILTERS.removesuffix("test_") + "TestAddedFiles::test_one_whose_field_ids_are_of_other_columns_is_refused",
    ),
    Mutant(
        "a-file-that-is-there-is-given-up-with-the-race",
        "coordinator/outcome.py",
        "if isinstance(verdict.error, StatementError):",
        "if isinstance(verdict.error, AssertionError):",
        "tests/catalog/test_transactions.py::test_a_file_is_added_to_a_branch_once",
    ),
    _found("files-committed-twice", _WRITTEN, "if check_duplicate_files and data_files:", "if not data_files:"),
    _found(
        "files-written-for-a-newer-schema",
        _WRITTEN,
        "if not self._calls.stack.begun and not known:",
        "if self._calls.stack.begun and known:",
    ),
    Mutant(
        "a-uuid-is-no-bytes",
        _PREDICATES,
        "return found.bytes if isinstance(found, UUID) else found",
        "return found",
        _FILTERS + "a_delete_by_a_uuid_deletes_what_a_scan_by_it_shows",
    ),
    Mutant(
        "null-is-below-a-number-that-the-column-can-not-have",
        _PREDICATES,
        "if isinstance(found, AlwaysTrue) else found",
        "if found is self else found",
        _FILTERS + "null_is_not_below_a_number_that_the_column_can_not_have",
    ),
    Mutant(
        "bounds-are-true-of-null",
        _PREDICATES,
        "        if may_be_null and not isinstance(predicate, BoundIsNull):\n",
        "        if False:\n",
        _FILTERS + "null_is_neither_so_nor_otherwise",
    ),
    Mutant(
        "a-column-that-a-file-lacks-is-another-value",
        _PREDICATES,
        "        for values in (ResidualVisitor, _ExpressionEvaluationVisitor):\n",
        "        for values in (ResidualVisitor,):\n",
        _FILTERS + "rows_from_before_a_column_was_added_have_null_in_it",
    ),
    Mutant(
        "a-null-partition-is-another-value",
        _PREDICATES,
        '    "not_equal",\n    "not_in",\n',
        "",
        _FILTERS + "null_is_neither_so_nor_otherwise",
    ),
    Mutant(
        "a-null-partition-is-a-number",
        _PREDICATES,
        '    "not_nan",\n',
        "",
        _FILTERS + "null_is_neither_nan_nor_a_number",
    ),
    Mutant(
        "a-null-partition-starts-otherwise",
        _PREDICATES,
        '    "not_starts_with",\n',
        "",
        _FILTERS + "null_starts_with_nothing_and_does_not_start_otherwise",
    ),
    Mutant(
        "nan-is-skipped-with-its-row-group",
        _PREDICATES,
        "or (of_nan and isinstance(kind, FloatType | DoubleType))",
        "",
        _FILTERS + "nan_is_another_number_than_its_neighbours",
    ),
    Mutant(
        "the-partition-of-a-required-field-in-a-struct",
        _DECODING,
        "and always_there(schema.as_struct(), field.source_id)",
        "",
        _FILTERS + "the_partition_of_a_required_field_may_be_null_where_its_struct_is",
    ),
    Mutant(
        "a-truncated-number-runs-over",
        "iceberg/partitioned_rows.py",
        "    if not carried:\n",
        "    if carried is None:\n",
        f"{_LOWEST}new_ones_are_refused_with_words",
    ),
    Mutant(
        "rows-below-their-type-are-not-looked-for",
        _TRUNCATION,
        "found = Or(found, EqualTo(term=part.name, value=literal))",
        "assert literal is not None",
        f"{_LOWEST}each_condition_finds_and_counts_them_as_their_values_say",
    ),
    Mutant(
        "a-partition-below-its-type-decides",
        _TRUNCATION,
        "                return predicate\n",
        "                break\n",
        f"{_LOWEST}each_delete_takes_those_that_match_and_no_others[int 10]",
    ),
    Mutant(
        "a-partition-has-the-digits-of-its-type",
        _TRUNCATION,
        "literal = _OfAPartition(value) if isinstance(column.field_type, DecimalType) else value",
        "literal = value",
        f"{_LOWEST}each_condition_finds_and_counts_them_as_their_values_say",
    ),
    Mutant(
        "a-long-was-never-an-int",
        _TRUNCATION,
        "    LongType: (-(2**63), -(2**31)),\n",
        "    LongType: (-(2**63),),\n",
        "tests/catalog/test_rows_by_partition.py"
        "::test_a_partition_that_wrapped_around_as_an_int_is_found_after_the_column_became_a_long",
    ),
    Mutant(
        "what-stays-of-a-file-is-refused",
        "table/deletion.py",
        "write_uuid, counter, carried=True)",
        "write_uuid, counter)",
        f"{_LOWEST}what_is_written_anew_stays_where_it_was_found",
    ),
    Mutant(
        "what-is-compacted-is-refused",
        "table/compaction.py",
        "data_files(table.metadata, rows, io, carried=True, ",
        "data_files(table.metadata, rows, io, ",
        f"{_LOWEST}what_is_written_anew_stays_where_it_was_found",
    ),
    Mutant(
        "a-merge-reads-partitions-by-their-logical-types",
        "iceberg/manifest_list.py",
        ' if key != "logicalType"}',
        "}",
        "tests/catalog/test_carried_entries.py::test_a_merge_changes_no_partition_value_that_python_has_no_value_for",
    ),
    Mutant(
        "the-name-of-a-partition-beyond-pythons-calendar",
        _PREDICATES,
        "            return str(real(number))\n        except OverflowError:",
        "            return str(real(number))\n        except ZeroDivisionError:",
        "tests/catalog/test_carried_entries.py::test_a_merge_changes_no_partition_value_that_python_has_no_value_for",
    ),
    Mutant(
        "a-count-believes-every-file",
        "iceberg/counts.py",
        "task.file.record_count < 0 or ",
        "",
        "tests/sql/test_rows.py::test_rows_that_a_file_does_not_count_are_counted",
    ),
    Mutant(
        "pyiceberg-counts-by-itself",
        "iceberg/counts.py",
        '    mends.wrap(DataScan, "count", _exact)\n',
        "    assert mends is not None\n",
        "tests/sql/test_rows.py::test_rows_that_a_file_does_not_count_are_counted",
    ),
    Mutant(
        "no-rows-must-fit",
        "iceberg/rebase.py",
        "    if not append.manifests:\n",
        "    if append.manifests is None:\n",
        "tests/catalog/test_empty_appends.py::test_no_rows_fit_whatever_has_become_required",
    ),
    Mutant(
        "a-snapshot-that-is-gone-can-not-be-expired",
        "iceberg/metadata.py",
        "for snapshot_id in snapshot_ids if snapshots.by_id(snapshot_id) is not None}",
        "for snapshot_id in snapshot_ids if snapshots.by_id(snapshot_id).snapshot_id}",
        "tests/catalog/test_expiry.py::test_a_stale_expiry_by_age_lands_where_others_expired_some_of_it",
    ),
    Mutant(
        "a-file-of-floats-is-asked-for-the-nearest-one",
        _PREDICATES,
        "return _asked_of_floats(found) if promoted and",
        "return found if promoted and",
        _FILTERS + "a_file_of_floats_is_asked_in_doubles",
    ),
    Mutant(
        "no-number-between-two-floats-is-in-a-set",
        _PREDICATES,
        "            return floats if floats != AlwaysTrue() else",
        "            return floats if floats is not condition else",
        _FILTERS + "a_file_of_floats_is_asked_in_doubles",
    ),
    Mutant(
        "a-decimal-has-room-for-any-number-of-digits",
        _PREDICATES,
        "        if found.value.copy_abs() < Decimal(10)",
        "        if kind.scale < Decimal(10)",
        "tests/catalog/test_filters_agree.py",
    ),
    Mutant(
        "not-in-of-null",
        _PREDICATES,
        '    mends.wrap(converter, "visit_not_in", _of_values)\n',
        "",
        _FILTERS + "null_is_neither_so_nor_otherwise",
    ),
    Mutant(
        "not-in-a-set-of-what-is-out-of-range",
        _PREDICATES,
        "        if isinstance(less, AlwaysTrue):",
        "        if False:",
        _FILTERS + "null_is_neither_so_nor_otherwise",
    ),
    Mutant(
        "not-is-evaluated-after-its-operand",
        _PREDICATES,
        "    mends.wrap_case(visit, Not, _of_the_opposite)\n",
        "",
        _FILTERS + "null_is_neither_so_nor_otherwise",
    ),
    Mutant(
        "the-partition-nan-is-many",
        "iceberg/decoding.py",
        '    mends.wrap(Record, "__eq__", _nan_is_nan)\n',
        "",
        "tests/catalog/test_row_deletes.py::test_rows_of_any_partition_stay_deleted[nan]",
    ),
    Mutant(
        "a-change-plans-as-a-reader-does",
        "table/rewriting.py",
        "file.content != DataFileContent.DATA or may_match(file)",
        "may_match(file)",
        "tests/catalog/test_row_deletes.py::"
        "test_a_delete_of_rows_that_the_filter_rules_out_applies_to_the_rest_of_their_file[delete-by position]",
    ),
    Mutant(
        "arrow-is-not-mended-when-it-is-loaded-later",
        "__init__.py",
        'when_loaded("pyiceberg.io.pyarrow", _mend)\n',
        "",
        "tests/catalog/test_exact.py::"
        "test_a_table_that_is_unpickled_in_a_new_process_deletes_what_matches_and_keeps_null",
    ),
    Mutant(
        "pyiceberg-is-mended-when-arrow-is-loaded",
        "__init__.py",
        'when_loaded("pyiceberg.expressions.visitors", _mend)\n',
        "",
        "tests/catalog/test_exact.py::test_filters_are_exact_before_arrow_is_loaded",
    ),
    Mutant(
        "pyiceberg-is-mended-while-other-threads-import-it",
        "__init__.py",
        'when_loaded("pyiceberg.expressions.visitors", _mend)\n',
        'when_loaded("pyiceberg", _mend)\n',
        "tests/catalog/test_exact.py::test_threads_may_import_for_the_first_time_at_once",
    ),
    Mutant(
        "the-greatest-number-stands-for-all-beyond",
        _PREDICATES,
        "if {*map(repr, inside)} == {*map(repr, self.literals)}:",
        "if inside is not self:",
        _FILTERS + "a_number_that_the_column_can_not_have_is_in_no_set",
    ),
    Mutant(
        "infinity-is-not-beyond-the-greatest-float",
        _PREDICATES,
        "if beyond is not None:",
        "if beyond is self:",
        _FILTERS + "only_infinity_is_beyond_the_greatest_float",
    ),
    Mutant(
        "a-delete-under-snapshot-leaves-what-was-added",
        _REPLANNING,
        "and not self._overlooks(head) and",
        "and bool(head) and",
        _FILTERS + "a_delete_under_snapshot_isolation_takes_what_matches_when_it_lands",
    ),
    Mutant(
        "each-nan-is-a-key-of-its-own",
        "table/matching.py",
        "return [math.nan if value != value else value for value in",
        "return [value for value in",
        _UPSERT + "each_row_replaces_the_one_with_its_key_or_is_added",
    ),
    Mutant(
        "an-upsert-looks-for-no-nan",
        "table/matching.py",
        "return among if len(numbers) == len(found) else Or(",
        "return among if len(numbers) <= len(found) else Or(",
        _UPSERT + "each_row_replaces_the_one_with_its_key_or_is_added",
    ),
    Mutant(
        "a-key-with-null-is-there-twice",
        "table/matching.py",
        "enumerate(keys_of(rows, keys)) if None not in key]",
        "enumerate(keys_of(rows, keys))]",
        _UPSERT + "each_row_replaces_the_one_with_its_key_or_is_added",
    ),
    Mutant(
        "an-upsert-looks-for-null",
        "table/matching.py",
        "for key in keys_of(rows, keys) if None not in key}",
        "for key in keys_of(rows, keys)}",
        _UPSERT + "each_row_replaces_the_one_with_its_key_or_is_added",
    ),
    Mutant(
        "nan-as-a-value-has-changed",
        "table/matching.py",
        "(old,) != (new,)",
        "old != new",
        _UPSERT + "a_row_that_is_as_it_was_is_not_updated_whatever_number_it_has",
    ),
    Mutant(
        "a-list-is-a-key",
        "table/matching.py",
        "        if not field.field_type.is_primitive:\n",
        "        if field.field_type is None:\n",
        _UPSERT + "what_is_no_key_is_refused_by_its_name",
    ),
    Mutant(
        "a-key-column-that-the-rows-lack",
        "table/matching.py",
        "        if rows.schema.get_field_index(key) < 0:",
        "        if rows.schema.get_field_index(key) < -1:",
        _UPSERT + "what_is_no_key_is_refused_by_its_name",
    ),
    Mutant(
        "a-join-column-in-another-case",
        "table/matching.py",
        "field = schema.find_field(name, case_sensitive)",
        "field = schema.find_field(name)",
        _NAMES + "[upsert]",
    ),
    Mutant(
        "an-exact-name-is-one-of-many",
        _COLUMN_NAMES,
        "    if name in ids:\n",
        "    if name is ids:\n",
        _NAMES + "[UPDATE]",
    ),
    Mutant(
        "an-ambiguous-name-is-the-first", _COLUMN_NAMES, "    if len(found) > 1:\n", "    if len(found) > 9:\n", _NAMES
    ),
    Mutant(
        "a-filter-in-any-case-takes-the-last-column",
        _COLUMN_NAMES,
        '    mends.wrap(Schema, "find_field", _found)\n',
        "",
        _NAMES + "[update_rows]",
    ),
    Mutant(
        "a-projection-in-any-case-takes-the-last-column",
        _COLUMN_NAMES,
        '    mends.wrap(Schema, "select", _selected)\n',
        "",
        _NAMES + "[a projection]",
    ),
    Mutant(
        "a-union-in-any-case-takes-the-first-field",
        _COLUMN_NAMES,
        '    mends.wrap(StructType, "field_by_name", _field_of_struct)\n',
        "",
        _NAMES + "[union_by_name]",
    ),
    Mutant(
        "an-ambiguous-filter-is-pyicebergs-business",
        "table/dependencies.py",
        "except (TypeError, ArithmeticError, KeyError, ValidationError) as error:",
        "except (TypeError, ArithmeticError, KeyError) as error:",
        _NAMES + "[delete]",
    ),
    Mutant(
        "an-ambiguous-read-is-no-conflict",
        "table/dependencies.py",
        "            except (ValueError, ValidationError) as error:\n                reason",
        "            except ValueError as error:\n                reason",
        "tests/catalog/test_column_names.py::test_a_read_is_refused_whose_name_has_become_ambiguous",
    ),
    Mutant(
        "a-swap-of-two-cases-is-none",
        "table/isolation.py",
        "for spelled in (str, str.lower) if folds_case else (str,):",
        "for spelled in (str.lower,) if folds_case else (str,):",
        "tests/catalog/test_transactions.py::test_two_columns_that_differ_by_case_alone_and_swap_their_names_are_other_columns",
    ),
)
