"""Mutants of the ways in and out of PySpark."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROWS = "tests/spark/test_rows.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "spark-push-down-by-name",
        "spark/read.py",
        "        and all(same_by_name(I.StructType(field), layout.as_struct()) for layout in known)\n",
        "",
        f"{_ROWS}test_a_filter_finds_the_column_by_its_id_when_old_schemas_were_removed",
    ),
    Mutant(
        "spark-reader-of-the-session",
        "spark/read.py",
        '    "spark.sql.parquet.enableVectorizedReader": "true",\n',
        "",
        f"{_ROWS}test_renamed_columns_have_their_values_whatever_the_session_says[enableVectorizedReader]",
    ),
    Mutant(
        "spark-pruned-structs-by-name",
        "spark/read.py",
        "nullable(spark_type(field.field_type, table_name if field.field_id in by_name else hidden)),",
        "nullable(spark_type(field.field_type, table_name)),",
        f"{_ROWS}test_a_field_of_a_renamed_struct_is_read_alone",
    ),
    Mutant(
        "spark-hidden-name-in-a-file",
        "spark/read.py",
        '        prefix += "_"\n',
        "        break\n",
        f"{_ROWS}test_names_that_only_look_like_those_that_a_reader_would_choose_are_read_by_id",
    ),
    Mutant(
        "spark-filter-under-the-statistics-of-nan",
        "spark/read.py",
        "        case I.FloatType() | I.DoubleType():\n            return False\n",
        "",
        f"{_ROWS}test_rows_with_nan_pass_the_filters_that_spark_says_they_pass",
    ),
    Mutant(
        "spark-filter-under-skipped-days",
        "spark/read.py",
        'return int.from_bytes(bound, "little", signed=True) >= _MODERN_DAY * days',
        "return True",
        f"{_ROWS}test_days_that_the_calendar_skipped_are_found",
    ),
    Mutant(
        "spark-schema-at-commit",
        "spark/write.py",
        "schema_id=target.schema.schema_id, ",
        "",
        f"{_ROWS}test_nulls_for_a_column_that_became_required_meanwhile_are_refused",
    ),
    Mutant(
        "spark-spec-at-commit",
        "spark/files.py",
        "        data_file.spec_id = self.spec.spec_id",
        "        data_file.spec_id = None",
        f"{_ROWS}test_rows_land_under_the_partitions_that_they_were_written_for",
    ),
    Mutant(
        "spark-stream-known-by-its-number",
        "spark/write.py",
        'same = (query or (self.writer_id if self.query_id == self.writer_id else "")) == self.query_id',
        "same = True",
        f"{_ROWS}test_a_checkpoint_that_was_deleted_drops_no_batch_silently[format with a name]",
    ),
    Mutant(
        "spark-stream-mark-without-its-commit",
        "spark/write.py",
        '        raise CommitNotApplied(\n            "nothing was written: the table has later',
        '        return True\n        raise CommitNotApplied(\n            "nothing was written: the table has later',
        f"{_ROWS}test_a_mark_without_its_commit_is_an_error",
    ),
    Mutant(
        "spark-lists-without-offsets",
        "spark/arrow.py",
        "    if not len(array):\n",
        "    if False:\n",
        f"{_ROWS}test_lists_of_lists_that_are_null_in_every_row_are_written",
    ),
    Mutant(
        "spark-any-text-in-a-folder-name",
        "spark/transforms.py",
        r'_PLAIN = r"\A[A-Za-z0-9_-]{0,80}\z"',
        r'_PLAIN = r"(?s)\A.{0,80}\z"',
        f"{_ROWS}test_any_text_can_be_a_partition",
    ),
    Mutant(
        "spark-version-3",
        "table/writable.py",
        "_NEWEST_VERSION = 2\n",
        "_NEWEST_VERSION = 3\n",
        f"{_ROWS}test_format_version_3_is_refused_before_a_file_or_a_lock",
    ),
    Mutant(
        "spark-write-that-waits-for-its-own-lease",
        "spark/locks.py",
        "with suppress(LockReentered):",
        "with suppress():",
        f"{_ROWS}test_a_write_under_a_lease_of_its_own_does_not_wait_for_it",
    ),
    Mutant(
        "spark-files-of-an-error-before-the-commit",
        "table/table.py",
        "            if tx.sent:\n                raise\n",
        "            raise\n",
        f"{_ROWS}test_an_error_before_the_commit_is_sent_leaves_no_file",
    ),
    Mutant(
        "spark-landed-files-of-a-second-commit",
        "spark/write.py",
        '                    if written.data_file.file_path.startswith(f"{target.folder}/"):\n',
        "                    if False:\n",
        f"{_ROWS}test_a_writer_that_commits_twice_keeps_its_rows",
    ),
    Mutant(
        "spark-files-of-a-lost-race",
        "spark/write.py",
        "        assert request_id is not None\n        drop_repeated(table, target, request_id)\n",
        "        pass\n",
        f"{_ROWS}test_a_race_of_one_request_leaves_no_file_of_the_loser",
    ),
    Mutant(
        "spark-overwrite-from-what-has-changed",
        "spark/write.py",
        '        return {"reads": found.condition, "read_at": found.snapshot_id}\n',
        "        pass\n",
        f"{_ROWS}test_an_overwrite_that_was_computed_from_the_table_is_refused_when_that_has_changed",
    ),
    Mutant(
        "data-source-overwrite-as-of-its-commit",
        "spark/datasource.py",
        '"read_at": self._read_at}',
        '"read_at": None}',
        f"{_ROWS}test_the_data_source_overwrites_only_what_was_there_when_it_was_planned",
    ),
    Mutant(
        "spark-required-where-files-are-older",
        "spark/schema.py",
        "T.StructField(f.name, nullable(f.dataType, ids=ids), True, f.metadata if ids else None)",
        "T.StructField(f.name, nullable(f.dataType, ids=ids), f.nullable, f.metadata if ids else None)",
        f"{_ROWS}test_a_field_that_is_required_now_is_null_in_older_files",
    ),
    Mutant(
        "spark-nulls-below-a-null-struct",
        "spark/arrow.py",
        "                made = _filled(made)\n",
        "",
        f"{_ROWS}test_a_struct_that_is_null_and_has_required_fields_is_written[function]",
    ),
    Mutant(
        "spark-nulls-of-a-struct-that-is-missing",
        "spark/arrow.py",
        "                columns.append(_nulls(batch.num_rows, wanted.type))\n",
        "                columns.append(pa.nulls(batch.num_rows, wanted.type))\n",
        f"{_ROWS}test_a_struct_that_is_null_and_has_required_fields_is_written[format]",
    ),
)
