"""What a read asks of Spark and of the files, counted."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import SparkSession

from commit_coord.spark import files, read, read_table, write_table
from tests.catalog.kit import SCHEMA, frame
from tests.catalog.row_deletes import add_position_deletes

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))


@pytest.fixture
def table(catalog: Any) -> Any:
    """Five rows in three files of two partitions."""
    made = catalog.create_table("db.t", SCHEMA, partition_spec=BY_S)
    made.append(frame((1, "a"), (2, "a"), (3, "b")))
    made.append(frame((4, "a"), (5, "a")))
    return made


def jobs_of(spark: SparkSession, call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what *call* returns, and how many jobs Spark ran for it."""
    context = spark.sparkContext
    group = str(uuid.uuid4())
    context.setJobGroup(group, "")
    try:
        return call(), len(context.statusTracker().getJobIdsForGroup(group))
    finally:
        context._jsc.clearJobGroup()


@pytest.mark.parametrize(
    "given, rows",
    [({}, 5), ({"columns": ["id"]}, 5), ({"row_filter": "s = 'a'"}, 4), ({"row_filter": "s = 'x'"}, 0)],
    ids=["whole table", "one column", "one partition", "no partition"],
)
def test_a_count_is_answered_by_the_manifests(
    spark: SparkSession, table: Any, given: dict[str, Any], rows: int
) -> None:
    df = read_table(spark, table, **given)
    assert (rows, 0) == jobs_of(spark, df.count)
    assert rows == len(df.collect())


def test_a_count_that_the_manifests_do_not_tell_is_a_job(spark: SparkSession, table: Any) -> None:
    """Of a filter that takes some rows of a file, of what was made of the DataFrame, and where rows were deleted."""
    for df in (read_table(spark, table, row_filter="id > 2"), read_table(spark, table).filter("id > 2")):
        rows, jobs = jobs_of(spark, df.count)
        assert 3 == rows
        assert jobs
    table.delete("id != 4")
    add_position_deletes(table, [0])
    rows, jobs = jobs_of(spark, read_table(spark, table.refresh()).count)
    assert 0 == rows
    assert jobs


def test_a_count_fills_the_cache_that_was_asked_for(spark: SparkSession, table: Any) -> None:
    df = read_table(spark, table).cache()
    try:
        rows, jobs = jobs_of(spark, df.count)
        assert 5 == rows
        assert jobs
    finally:
        df.unpersist()


def test_footers_are_read_once(spark: SparkSession, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another read of the same files opens none of them before Spark does."""
    opened: list[Any] = []
    real = pq.read_schema

    def counting(stream: Any) -> pa.Schema:
        opened.append(stream)
        return real(stream)

    monkeypatch.setattr(pq, "read_schema", counting)
    for _ in range(2):
        assert 5 == len(read_table(spark, table).collect())
    assert 3 == len(opened)
    table.append(frame((6, "a")))
    assert 6 == len(read_table(spark, table).collect())
    assert 4 == len(opened)


def test_files_of_one_schema_share_a_layout(table: Any) -> None:
    """A table of many columns and many files would fill the memory with copies."""
    found = files.file_layouts(table.io, [task.file for task in table.scan().plan_files()])
    assert 3 == len(found)
    assert 1 == len({id(layout) for layout in found.values()})


def calls_of(spark: SparkSession, read: Callable[[], Any]) -> int:
    """Return how often *read* calls the JVM."""
    made: list[str] = []
    kind = type(spark.sparkContext._gateway._gateway_client)  # type: ignore[union-attr]
    real = kind.send_command

    def counting(self: Any, command: str, *arguments: Any, **options: Any) -> Any:
        if not command.startswith("m"):  # what Python's collector of garbage gives back, at any time
            made.append(command)
        return real(self, command, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "send_command", counting)
        read()
    return len(made)


def test_the_calls_to_the_jvm_grow_neither_with_files_nor_with_columns(
    spark: SparkSession, catalog: Any, table: Any
) -> None:
    """Each takes a third of a millisecond, and a table may have a thousand columns."""
    read_table(spark, table)  # what the first read of a session asks once
    few = calls_of(spark, lambda: read_table(spark, table))
    for number in range(10):
        table.append(frame((number, "a")))
    assert few == calls_of(spark, lambda: read_table(spark, table))

    rows = pa.table({f"c {number}": [number] for number in range(30)})
    wide = catalog.create_table("db.wide", rows.schema)
    wide.append(rows)
    assert few == calls_of(spark, lambda: read_table(spark, wide))
    assert rows.to_pylist() == [row.asDict() for row in read_table(spark, wide).collect()]


@pytest.mark.parametrize(
    "setting, value",
    [
        ("spark.sql.parser.quotedRegexColumnNames", "true"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.ansi.enforceReservedKeywords", "true"),
        ("spark.sql.variable.substitute", "true"),
    ],
)
def test_names_and_types_of_columns_mean_the_same_whatever_the_session_says(
    spark: SparkSession, catalog: Any, setting: str, value: str
) -> None:
    """A name is no pattern, keyword or variable, and a time with a zone keeps it, also in a struct."""
    noon = pa.array([dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
    inside = ["t.*", "from", "${spark.app.name}", "a\0b"]
    columns: dict[str, Any] = {"a.*": [1], "a`b": [2], "(c)": noon, "from": [3], "${spark.app.name}": [4], "\0b\0": [5]}
    rows = pa.table({**columns, "s": pa.StructArray.from_arrays([noon] * len(inside), inside)})
    table = catalog.create_table("db.names", rows.schema)
    table.append(rows)
    spark.conf.set(setting, value)
    try:
        for _ in range(2):
            df = read_table(spark, table)
            assert rows.column_names == df.columns
            assert T.TimestampType() == df.schema["(c)"].dataType
            assert T.StructType([T.StructField(name, T.TimestampType()) for name in inside]) == df.schema["s"].dataType
            assert {(1, 2, 3, 4, 5)} == {(row[0], row[1], *row[3:6]) for row in df.collect()}
            table = write_table(df, table)
    finally:
        spark.conf.unset(setting)


def test_columns_have_no_metadata_that_a_writer_would_take_along(spark: SparkSession, table: Any) -> None:
    """Not the ids by which they were found; and a filter on them reaches Parquet."""
    df = read_table(spark, table)
    assert [{}, {}] == [field.metadata for field in df.schema.fields]
    plan = df.filter("id > 2").select("s")._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,2)]" in plan
    assert "cast" not in plan.lower()


def test_rows_that_a_manifest_does_not_count_are_counted_by_spark() -> None:
    """Some writers say -1 where they do not know."""
    files = [SimpleNamespace(record_count=count) for count in (2, -1)]
    tasks: list[Any] = [SimpleNamespace(delete_files=[], residual=AlwaysTrue(), file=file) for file in files]
    assert 2 == read._number_of_rows(tasks[:1])
    assert read._number_of_rows(tasks) is None
