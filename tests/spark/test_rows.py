"""What is read is what is there, and what lands is what was meant, whatever changed meanwhile."""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as I
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemovePartitionSpecsUpdate, RemoveSchemasUpdate
from pyiceberg.transforms import TruncateTransform
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import commit_coord.spark
from commit_coord import NOTHING, load_catalog
from commit_coord.errors import (
    CommitConflict,
    CommitNotApplied,
    ConfigError,
    MetastoreUnavailable,
    StaleRead,
    StatementError,
)
from commit_coord.locks.hive_lease import LeaseObject
from commit_coord.model import LockMode, Resource, WriteMode
from commit_coord.spark import compact_table, foreach_batch, read_table, register, write_table
from commit_coord.spark import datasource as ds
from commit_coord.spark.files import Target
from commit_coord.spark.filters import parse
from commit_coord.spark.frame_reads import reads_of
from commit_coord.spark.locks import holding
from commit_coord.spark.schema import SchemaMismatch, bare_schema
from commit_coord.spark.streams import Batch
from commit_coord.table import CoordinatedTable
from commit_coord.table.data_files import data_files
from tests.catalog.kit import orphans, unchecked_decimals
from tests.catalog.row_deletes import add_position_deletes
from tests.spark.conftest import rows


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Set what the session says for a while; double underscores mean dots."""
    keys = {key.replace("__", "."): value for key, value in values.items()}
    before = {key: spark.conf.get(key, None) for key in keys}
    for key, value in keys.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def made(catalog: Any, **columns: pa.Array) -> Any:
    """Return a table of one file."""
    data = pa.table(columns)
    table = catalog.create_table("db.t", schema=data.schema)
    table.append(data)
    return table


def renamed(table: Any, *pairs: tuple[Any, str]) -> Any:
    """Rename columns one after the other."""
    for old, new in pairs:
        with table.update_schema() as update:
            update.rename_column(old, new)
    return table


POINT = pa.struct([("a", pa.int32()), ("b", pa.string())])


# -- reading ------------------------------------------------------------------------------------------------------


def test_a_filter_finds_the_column_by_its_id_when_old_schemas_were_removed(spark: SparkSession, catalog: Any) -> None:
    table = renamed(
        made(catalog, a=pa.array(range(1000)), b=pa.array(range(10**6, 10**6 + 1000))), ("a", "c"), ("b", "a")
    )
    old = [schema.schema_id for schema in table.metadata.schemas if schema.schema_id != table.schema().schema_id]
    catalog.commit_table(table, (), (RemoveSchemasUpdate(schema_ids=old),))
    table.refresh()
    assert 1 == len(table.metadata.schemas)
    assert 1000 == read_table(spark, table).filter("a >= 1000000").count()
    assert 0 == read_table(spark, table).filter("c >= 1000000").count()


def test_names_that_only_look_like_those_that_a_reader_would_choose_are_read_by_id(
    spark: SparkSession, catalog: Any
) -> None:
    """In the file, each of them is the other one."""
    columns = {"f1": 1, "f2": 100, "_hidden4": 1000, "_hidden3": 5, "same": 0}
    table = renamed(
        made(catalog, **{name: pa.array([value]) for name, value in columns.items()}),
        ("f1", "x"),
        ("f2", "f1"),
        ("x", "f2"),
        ("_hidden4", "x"),
        ("_hidden3", "_hidden4"),
        ("x", "_hidden3"),
    )
    df = read_table(spark, table)
    for text in ("f1 > 50", "f2 < 50", "_hidden3 > 50", "_hidden4 < 50"):
        assert 1 == df.filter(text).count(), text


@pytest.mark.parametrize(
    "setting",
    [
        {"spark__sql__parquet__enableVectorizedReader": "false"},
        {"spark__sql__parquet__enableNestedColumnVectorizedReader": "false"},
        {"spark__sql__sources__useV1SourceList": "avro"},
        {"spark__sql__parquet__filterPushdown": "false", "spark__sql__caseSensitive": "true"},
        {"spark__sql__optimizer__nestedSchemaPruning__enabled": "false", "spark__sql__ansi__enabled": "false"},
    ],
    ids=lambda setting: next(iter(setting)).rpartition("__")[2],
)
def test_renamed_columns_have_their_values_whatever_the_session_says(
    spark: SparkSession, catalog: Any, setting: dict[str, str]
) -> None:
    points = pa.array([{"a": 1, "b": "x"}, None], POINT)
    table = renamed(made(catalog, id=pa.array([1, 2]), v=pa.array([10, 20]), s=points), ("v", "w"), ("s.a", "aa"))
    with table.update_schema() as update:
        update.add_column("v", I.IntegerType())
    before = dict(spark.conf.getAll)
    with settings(spark, **setting):
        df = read_table(spark, table)
        assert [(1, 10, (1, "x"), None), (2, 20, None, None)] == rows(df)
        assert [(1,)] == rows(df.filter("s.aa = 1 and v is null").select("id"))
    assert before == dict(spark.conf.getAll)


def test_a_field_of_a_renamed_struct_is_read_alone(spark: SparkSession, catalog: Any) -> None:
    """Spark reads only the fields that a query asks for, and forgets their ids when it does."""
    table = renamed(
        made(
            catalog,
            id=pa.array([1]),
            s=pa.array([{"a": 1, "b": "x"}], POINT),
            l=pa.array([[{"a": 1, "b": "x"}]], pa.list_(POINT)),
            kept=pa.array([{"a": 1, "b": "x"}], POINT),
        ),
        ("s", "t"),
        (("l", "element", "a"), "aa"),
    )
    df = read_table(spark, table)
    assert [(1,)] == rows(df.select("t.a"))
    assert [(1,)] == rows(df.filter("t.b is not null").select("id"))
    assert [([1],)] == rows(df.select("l.aa"))
    assert [(1,)] == rows(df.select(F.explode("l").alias("e")).select("e.aa"))
    assert [("x", 1)] == rows(df.select("kept.b", "t.a"))


def test_a_row_filter_on_a_nested_field_meets_names_used_twice_and_position_deletes(
    spark: SparkSession, catalog: Any
) -> None:
    points = pa.array([{"a": n, "b": "x"} for n in range(4)], POINT)
    table = renamed(made(catalog, id=pa.array(range(4)), s=points, v=pa.array([1] * 4)), ("v", "w"), ("s.b", "bb"))
    with table.update_schema() as update:
        update.add_column("v", I.StringType())
        update.add_column(("s", "b"), I.StringType())
    add_position_deletes(table, [0])
    for text, expected in {
        "s.bb is not null": [1, 2, 3],
        "s.bb is null or id = 1": [1],
        "s.b is null": [1, 2, 3],
        "s.a = 2": [2],
    }.items():
        found = read_table(spark, table, row_filter=text)
        assert expected == sorted(row.id for row in found.collect()), text
        assert {"x"} == {row.s.bb for row in found.collect()}
        assert expected == sorted(row.id for row in read_table(spark, table).where(text).collect()), text


def test_rows_with_nan_pass_the_filters_that_spark_says_they_pass(spark: SparkSession, catalog: Any) -> None:
    """Statistics of Parquet files leave NaN out, and for Spark it is the largest number."""
    nested = pa.array([{"x": 1.0}, {"x": math.nan}], pa.struct([("x", pa.float64())]))
    table = made(catalog, id=pa.array([1, 2]), d=pa.array([1.0, math.nan]), s=nested)
    for text in ("d > 5", "d = double('NaN')", "s.x > 5", "d in (double('NaN'), 7)"):
        assert [2] == [row.id for row in read_table(spark, table).filter(text).collect()], text


def test_days_that_the_calendar_skipped_are_found(spark: SparkSession, catalog: Any) -> None:
    day = dt.date(1582, 10, 10)
    noon = dt.datetime(1582, 10, 10, 12, tzinfo=dt.UTC)
    table = made(
        catalog,
        d=pa.array([day]),
        tz=pa.array([noon], pa.timestamp("us", "UTC")),
        ntz=pa.array([noon.replace(tzinfo=None)], pa.timestamp("us")),
        new=pa.array([dt.date(2024, 1, 1)]),
    )
    with settings(spark, spark__sql__session__timeZone="UTC"):
        for text in (
            "d = date'1582-10-10'",
            "d >= date'1582-10-10' and d < date'1582-10-12'",
            "tz = timestamp'1582-10-10 12:00:00'",
            "ntz = timestamp_ntz'1582-10-10 12:00:00'",
            "new > date'1582-10-10'",
        ):
            assert 1 == read_table(spark, table).filter(text).count(), text
    for text in ("d = '1582-10-10'", "tz = '1582-10-10T12:00:00+00:00'", "ntz = '1582-10-10T12:00:00'"):
        assert 1 == read_table(spark, table, row_filter=text).count() == len(table.scan(text).to_arrow()), text


def test_a_field_that_is_required_now_is_null_in_older_files(spark: SparkSession, catalog: Any) -> None:
    table = made(catalog, id=pa.array([1, 2]), s=pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}], POINT))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column(("s", "a"), required=True)
        update.add_column(("s", "c"), I.LongType(), required=True)
    df = read_table(spark, table)
    assert [(2,)] == rows(df.filter("s.a is null").select("id"))
    assert [(1,), (2,)] == rows(df.filter("s.c is null").select("id"))


def test_a_row_filter_may_name_a_number_that_the_column_can_t_hold(spark: SparkSession, catalog: Any) -> None:
    table = made(catalog, d=pa.array([Decimal("9.9"), Decimal("-9.9")], pa.decimal128(2, 1)))
    less, equal = "d < 1234567890.1", cast(Any, EqualTo)("d", Decimal("9.9"))
    assert [2, 1] == [read_table(spark, table, row_filter=condition).count() for condition in (less, equal)]


# -- writing ------------------------------------------------------------------------------------------------------


def test_a_row_filter_is_exact_in_the_workers_of_spark(spark: SparkSession, catalog: Any) -> None:
    """They evaluate it for tables that go through Arrow, here for the time of day, and have no catalog of ours."""
    x = I.StructType(I.NestedField(5, "x", I.LongType(), required=True))
    fields = (
        I.NestedField(1, "k", I.LongType()),
        I.NestedField(2, "n", I.IntegerType()),
        I.NestedField(3, "t", I.TimeType()),
        I.NestedField(4, "s", x, required=False),
        I.NestedField(6, "d", I.DoubleType()),
    )
    table = catalog.create_table("db.t", Schema(*fields))
    some = [{"k": 1, "n": 1, "s": {"x": 1}, "d": 0.0}, {"k": 2, "n": None, "s": None, "d": None}]
    table.append(pa.Table.from_pylist(some, schema_to_pyarrow(table.schema())))

    for text in ("n < 3000000000", "s.x is not null", "d in (-0.0, 1.0)"):
        assert [1] == [row.k for row in read_table(spark, table, row_filter=text).collect()], text


@pytest.fixture
def given(spark: SparkSession, properties: dict[str, str]) -> dict[str, str]:
    """The options of the data source."""
    register(spark)
    return {"catalog": "test", "table": "db.t", **{f"catalog.{key}": value for key, value in properties.items()}}


def job(spark: SparkSession, given: dict[str, str], df: Any, overwrite: bool = False) -> tuple[Any, list[Any], Path]:
    """Return a writer of the data source whose tasks are done, their messages, and their folder."""
    writer: Any = ds.CommitCoordDataSource({"catalog.operation-locks": "off", **given}).writer(df.schema, overwrite)
    messages = [writer.write(iter(df.toArrow().to_batches()))]
    return writer, messages, Path(messages[0].target.folder.removeprefix("file://"))


def test_rows_land_under_the_partitions_that_they_were_written_for(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    table = write_table(spark.range(0), (catalog, "db.t"), create=True, partition_by=["bucket(4, id)"])
    writer, messages, _ = job(spark, given, spark.range(20))
    with table.update_spec() as update:
        update.remove_field("id_bucket")
        update.add_field("id", "bucket[8]", "eight")
    writer.commit(messages)
    table.refresh()
    assert [1] * 20 == [len(table.scan(f"id = {n}").to_arrow()) for n in range(20)]


@pytest.mark.parametrize("overwrite", [False, True])
def test_rows_do_not_land_under_partitions_that_have_the_id_of_theirs(
    spark: SparkSession, catalog: Any, given: dict[str, str], overwrite: bool
) -> None:
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    with table.update_spec() as update:
        update.add_field("id", "bucket[4]", "four")
    writer, messages, folder = job(spark, given, spark.range(20), overwrite)
    with table.update_spec() as update:
        update.remove_field("four")
    catalog.commit_table(table, (), (RemovePartitionSpecsUpdate(spec_ids=[1]),))
    with table.refresh().update_spec() as update:
        update.add_field("id", "bucket[8]", "eight")
    assert messages[0].target.spec.spec_id == table.spec().spec_id
    with pytest.raises(CommitConflict, match="partition spec 1 of the written files is gone"):
        writer.commit(messages)
    assert not folder.exists()
    assert [] == rows(read_table(spark, table.refresh()))


@pytest.mark.parametrize("overwrite", [False, True])
def test_nulls_do_not_land_under_a_schema_that_has_the_id_of_theirs(
    spark: SparkSession, catalog: Any, given: dict[str, str], overwrite: bool
) -> None:
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    with table.update_schema() as update:
        update.add_column("other", I.LongType())
    nulls = spark.createDataFrame([(None, None)], "id long, other long")
    writer, messages, folder = job(spark, given, nulls, overwrite)
    with table.update_schema() as update:
        update.delete_column("other")
    catalog.commit_table(table, (), (RemoveSchemasUpdate(schema_ids=[1]),))
    with table.refresh().update_schema(allow_incompatible_changes=True) as update:
        update.update_column("id", required=True)
    assert messages[0].target.schema.schema_id == table.schema().schema_id
    with pytest.raises(CommitConflict, match="the column 'id' is required now"):
        writer.commit(messages)
    assert not folder.exists()
    assert [(0,)] == rows(read_table(spark, table.refresh()))


def test_a_dynamic_overwrite_keeps_its_promise_by_the_partitions_that_it_wrote(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    """Another client partitions the table otherwise before it commits: then its filter names no partition."""
    df = spark.range(4).selectExpr("id", "id % 2 k")
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["k"])
    options = {**given, "overwrite-mode": "dynamic", "overwrite-filter": "k = 1"}
    kept, broken = (job(spark, options, df.filter(f"id = {n}"), overwrite=True) for n in (1, 2))
    with table.update_spec() as update:
        update.remove_field("k")
        update.add_field("id", "bucket[4]", "four")
    with pytest.raises(ConfigError, match="lies outside of the partitions .* partition='k=0'"):
        broken[0].commit(broken[1])
    kept[0].commit(kept[1])
    assert [(0, 0), (1, 1), (2, 0)] == rows(read_table(spark, table.refresh()))


def test_nulls_for_a_column_that_became_required_meanwhile_are_refused(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    writer, messages, folder = job(spark, given, spark.createDataFrame([(None,)], "id long"))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.make_column_optional("id")
        update.add_column("other", I.LongType())
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("id", required=True)
    with pytest.raises(CommitConflict):
        writer.commit(messages)
    assert not folder.exists()
    assert [(0, None)] == rows(read_table(spark, table.refresh()))


def test_a_writer_that_commits_twice_keeps_its_rows(spark: SparkSession, catalog: Any, given: dict[str, str]) -> None:
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    writer, messages, _ = job(spark, given, spark.range(5, 7))
    writer.commit(messages)
    writer.commit(messages)
    assert [(0,), (5,), (6,)] == rows(read_table(spark, table.refresh()))
    assert set() == orphans(table)


def test_a_repeated_request_leaves_none_of_its_files(spark: SparkSession, catalog: Any, given: dict[str, str]) -> None:
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    once = {**given, "request-id": "load 7"}
    jobs = [job(spark, once, spark.range(5, 7)) for _ in range(2)]
    for writer, messages, _ in jobs:
        writer.commit(messages)
    assert [True, False] == [folder.exists() for _, _, folder in jobs]
    assert [(0,), (5,), (6,)] == rows(read_table(spark, table.refresh()))


@pytest.mark.parametrize(
    "owner, call, at",
    [(CoordinatedTable, "find_commit", 1), (CoordinatedTable, "refresh", 0), (Snapshot, "manifests", 0)],
)
def test_a_repeat_that_had_landed_ends_well_if_its_files_cannot_be_looked_at(
    spark: SparkSession,
    catalog: Any,
    given: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    call: str,
    at: int,
) -> None:
    """Spark would take an error for the failure of the job; the files are kept."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    once = {**given, "request-id": "load 7"}
    (first, landed, _), (second, repeated, folder) = (job(spark, once, spark.range(5, 7)) for _ in range(2))
    first.commit(landed)
    calls, real = itertools.count(), getattr(owner, call)

    def fails(*arguments: Any) -> Any:
        return real(*arguments) if next(calls) < at else _away()

    with monkeypatch.context() as away:
        away.setattr(owner, call, fails)
        second.commit(repeated)
        assert next(calls) > at
    assert folder.exists()
    assert [(0,), (5,), (6,)] == rows(read_table(spark, table.refresh()))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_write_table_ends_well_if_its_request_had_landed_and_the_table_cannot_be_loaded(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch, mode: WriteMode
) -> None:
    write_table(spark.range(1), (catalog, "db.t"), create=True, request_id="load 7")
    monkeypatch.setattr(CoordinatedTable, "refresh", _away)
    write_table(spark.range(1), (catalog, "db.t"), mode, request_id="load 7")


def _away(*_: object) -> Any:
    raise MetastoreUnavailable("the metastore can't be reached")


def by_function(mode: WriteMode) -> Callable[[dict[str, str], Any, Any], object]:
    return lambda given, table, df: write_table(df, table, mode, request_id="load 7")


def by_format(mode: str, **options: str) -> Callable[[dict[str, str], Any, Any], object]:
    def write(given: dict[str, str], table: Any, df: Any) -> None:
        named = {"request-id": "load 7", **{key.replace("_", "-"): value for key, value in options.items()}}
        df.write.format("commit_coord").options(**given, **named).mode(mode).save()

    return write


NAMED: dict[str, Callable[[dict[str, str], Any, Any], object]] = {
    "write_table": by_function("append"),
    "write_table that overwrites": by_function("overwrite"),
    "write_table that replaces partitions": by_function("dynamic"),
    "the format": by_format("append"),
    "the format that overwrites": by_format("overwrite"),
    "the format that replaces partitions": by_format("overwrite", overwrite_mode="dynamic"),
}
"""Every write that takes a name."""


def test_each_function_that_takes_a_request_id_is_known_here() -> None:
    functions = [getattr(commit_coord.spark, name) for name in commit_coord.spark.__all__]
    taking = [one.__name__ for one in functions if "request_id" in inspect.signature(one).parameters]
    assert ["write_table"] == taking


@pytest.mark.parametrize("second", NAMED)
def test_other_rows_under_a_name_that_has_landed_are_not_written(
    spark: SparkSession, catalog: Any, given: dict[str, str], second: str
) -> None:
    """By whatever call the name has landed, and by a table object that does not show it. No file is left."""
    is_function = second.startswith("write_table")
    for number, first in enumerate(["write_table", "the format" if second == "write_table" else second]):
        name = f"db.t{number}"
        options = {**given, "table": name}
        write_table(spark.range(1), (catalog, name), create=True, partition_by=["bucket(2, id)"])
        stale = catalog.load_table(name)
        NAMED[first](options, catalog.load_table(name), spark.range(5, 7))
        landed = catalog.load_table(name)
        assert {(5,), (6,)} <= set(rows(read_table(spark, landed)))
        handles: list[Any] = [stale, catalog.load_table(name)] if is_function else [None]  # the format is given a name
        for table in handles:
            NAMED[second](options, table, spark.range(7, 9))
            assert landed.metadata_location == catalog.load_table(name).metadata_location, first
            if is_function:
                assert landed.metadata_location == table.metadata_location, "the table object shows what has landed"
        assert set() == orphans(landed)
        assert not catalog.locks.locks()


def test_a_request_that_landed_is_not_refused_when_the_table_has_other_columns_by_now(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    table = made(catalog, id=pa.array([1]), old=pa.array([1]))
    job = spark.range(2, 4).selectExpr("id", "id old").write.format("commit_coord").options(**given)
    job.option("request-id", "r").mode("append").save()
    with table.refresh().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("old")
    before = orphans(table.refresh())

    job.option("request-id", "r").mode("append").save()
    assert [(1,), (2,), (3,)] == rows(read_table(spark, table.refresh()))
    assert before == orphans(table)


def test_a_race_of_one_request_leaves_no_file_of_the_loser(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one lands after we have looked."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    land = type(table).commit_files

    def race(self: Any, *args: Any, **kwargs: Any) -> bool:
        monkeypatch.undo()
        write_table(spark.range(5, 7), catalog.load_table("db.t"), request_id="load 7")
        return land(self, *args, **kwargs)

    monkeypatch.setattr(type(table), "commit_files", race)
    write_table(spark.range(5, 7), table, request_id="load 7")
    assert [(0,), (5,), (6,)] == rows(read_table(spark, table.refresh()))
    assert set() == orphans(table)


NULLS = {
    "a": "cast(null as array<array<int>>)",
    "m": "cast(null as map<int,array<string>>)",
    "n": "cast(null as array<map<string,struct<x:array<int>>>>)",
    "e": "cast(array() as array<array<string>>)",
}


def test_lists_of_lists_that_are_null_in_every_row_are_written(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    df = spark.range(3).selectExpr("id", *(f"{text} {name}" for name, text in NULLS.items())).coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True)
    df.write.format("commit_coord").options(**given).mode("append").save()
    assert [(n, None, None, None, []) for n in (0, 0, 1, 1, 2, 2)] == rows(read_table(spark, table.refresh()))


@pytest.mark.parametrize("way", ["function", "format"])
def test_a_struct_that_is_null_and_has_required_fields_is_written(
    spark: SparkSession, catalog: Any, given: dict[str, str], way: str
) -> None:
    """Through Arrow, whose writer refuses the nulls of a required field, also below a struct that is null."""
    numbers = I.ListType(6, I.LongType(), element_required=False)
    inner = I.StructType(I.NestedField(5, "l", numbers, required=True))
    x, t = I.NestedField(3, "x", I.LongType(), required=True), I.NestedField(4, "t", inner, required=True)
    schema = Schema(I.NestedField(1, "id", I.LongType()), I.NestedField(2, "s", I.StructType(x, t), required=False))
    table = catalog.create_table("db.t", schema)
    value = "named_struct('x', id, 't', named_struct('l', array(id, null)))"
    some = spark.range(3).selectExpr("id", f"if(id = 1, {value}, null) s").coalesce(1)
    for df in (some, spark.range(3, 4).selectExpr("id")):
        if way == "function":
            write_table(df, table)
        else:
            df.write.format("commit_coord").options(**given).mode("append").save()

    assert [(0, None), (1, (1, ([1, None],))), (2, None), (3, None)] == rows(read_table(spark, table.refresh()))


@pytest.mark.parametrize("way", ["function", "format"])
def test_a_struct_that_is_null_and_has_a_required_number_is_written(
    spark: SparkSession, catalog: Any, given: dict[str, str], way: str
) -> None:
    """By Spark's own Parquet writer, to which what was checked for null may be null still."""
    x, y = I.NestedField(3, "x", I.LongType(), required=True), I.NestedField(4, "y", I.LongType())
    schema = Schema(I.NestedField(1, "id", I.LongType()), I.NestedField(2, "s", I.StructType(x, y), required=False))
    table = catalog.create_table("db.t", schema)

    def write(value: str) -> None:
        df = spark.range(2).selectExpr("id", f"if(id = 1, {value}, null) s").coalesce(1)
        if way == "function":
            write_table(df, table)
        else:
            df.write.format("commit_coord").options(**given).mode("append").save()

    write("named_struct('x', id, 'y', cast(null as bigint))")
    with pytest.raises(Exception, match="null in required column s.x" if way == "function" else "required|non-null"):
        write("named_struct('x', cast(null as bigint), 'y', id)")

    assert [(0, None), (1, (1, None))] == rows(read_table(spark, table.refresh()))


def test_names_that_differ_by_case_alone_are_written_and_filtered(spark: SparkSession, catalog: Any) -> None:
    """In a session that folds case, where neither of the two is found by its name."""
    inner = I.StructType(I.NestedField(5, "X", I.LongType()), I.NestedField(6, "x", I.LongType()))
    fields = [I.NestedField(1, "id", I.LongType()), I.NestedField(2, "A", I.LongType())]
    schema = Schema(*fields, I.NestedField(3, "a", I.LongType()), I.NestedField(4, "s", inner))
    table = catalog.create_table("db.t", schema)
    written = [(0, 1, 2, (3, 4)), (1, 2, 1, (4, 3)), (2, None, 1, None)]
    write_table(spark.createDataFrame(written, bare_schema(schema)).coalesce(1), table)

    assert written == rows(read_table(spark, table.refresh()))
    for condition, ids in {"A = 1": [0], "a = 1": [1, 2], "s.X = 3": [0], "s.x = 3": [1], "s.X is null": [2]}.items():
        assert ids == [row[0] for row in read_table(spark, table, row_filter=condition).collect()], condition


def test_any_text_can_be_a_partition(spark: SparkSession, catalog: Any) -> None:
    """Also what a file system can't have in a name, or not so much of it."""
    texts = ["%" * 80, "=" * 80, "/" * 200, "a\0b", "\0", "", "..", "x" * 300, "emoji 😀" * 9, "a\nb", "\n", "A", "a"]
    texts += ["☃" * 26, "☃" * 27, "__HIVE_DEFAULT_PARTITION__", "%2F", "-", "é" * 80, "trailing.", " "]
    df = spark.createDataFrame([*enumerate(texts), (-1, None)], "id int, s string").coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["s"])
    assert {None, *texts} == {task.file.partition[0] for task in table.scan().plan_files()}
    assert rows(df) == rows(read_table(spark, table))
    for number, text in enumerate(texts):
        condition = cast(Any, EqualTo)("s", text)
        assert [number] == [row.id for row in read_table(spark, table, row_filter=condition).collect()]


def of_version_3(catalog: Any, table: Any) -> Any:
    """Return *table* as another engine upgrades it."""
    path = Path(table.metadata_location.removeprefix("file://"))
    document = json.loads(path.read_text()) | {"format-version": 3, "next-row-id": 0}
    (path.parent / "upgraded.metadata.json").write_text(json.dumps(document))
    catalog.drop_table("db.t")
    return catalog.register_table("db.t", f"file://{path.parent}/upgraded.metadata.json")


def test_format_version_3_is_refused_before_a_file_or_a_lock(
    spark: SparkSession, catalog: Any, given: dict[str, str], tmp_path: Path
) -> None:
    table = of_version_3(catalog, made(catalog, id=pa.array([1, 2])))
    before = set(tmp_path.rglob("*.parquet"))
    schema = spark.range(1).schema
    tries: list[Callable[[], Any]] = [
        lambda: write_table(spark.range(1), table),
        lambda: write_table(spark.range(1), table, "overwrite"),
        lambda: write_table(spark.range(1), (catalog, "db.new"), create=True, properties={"format-version": "3"}),
        lambda: ds.CommitCoordDataSource(given).writer(schema, False),
        lambda: ds.CommitCoordDataSource({**given, "writer-id": "w"}).streamWriter(schema, False),
        lambda: foreach_batch(table, writer_id="w")(spark.range(1), 0),
        lambda: compact_table(spark, table),
    ]
    with catalog.lock_operation({Resource.table(("db", "t")): LockMode.EXCLUSIVE}, statement="by somebody else"):
        for attempt in tries:
            with pytest.raises(CommitNotApplied, match="format version"):
                attempt()
    assert before == set(tmp_path.rglob("*.parquet"))
    assert not catalog.table_exists("db.new")
    assert [(1,), (2,)] == rows(read_table(spark, table))


def test_an_error_before_the_commit_is_sent_leaves_no_file(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk when the manifest is written, say."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("commit_coord.iceberg.manifests.write_added", full)
    with pytest.raises(CommitNotApplied) as raised:
        write_table(spark.range(5), table)
    assert isinstance(raised.value.__cause__, OSError)
    assert set() == orphans(table.refresh())


@pytest.mark.parametrize("way", ["function", "format"])
def test_a_filter_that_a_column_can_not_meet_leaves_no_file(
    spark: SparkSession, catalog: Any, given: dict[str, str], way: str
) -> None:
    df = spark.sql("select 'a' as s")
    table = write_table(df, (catalog, "db.t"), create=True)
    if way == "function":
        with pytest.raises(StatementError, match="does not fit the columns"):
            write_table(df, table, "overwrite", overwrite_filter="s > 1")
    else:
        writer, messages, _ = job(spark, {**given, "overwrite-filter": "s > 1"}, df, overwrite=True)
        with pytest.raises(StatementError, match="does not fit the columns"):
            writer.commit(messages)
        writer.abort(messages)
    assert set() == orphans(table.refresh())
    assert [("a",)] == rows(read_table(spark, table))


def test_a_write_under_a_lease_of_its_own_does_not_wait_for_it(spark: SparkSession, catalog: Any) -> None:
    table = write_table(spark.range(3), (catalog, "db.t"), create=True)
    with catalog.fenced(catalog.leases.grab_lease([LeaseObject("db", "t")], 60_000)):
        write_table(spark.range(5), table, "overwrite")
    assert 5 == read_table(spark, table).count()


# -- what an overwrite was computed from -----------------------------------------------------------------------------


def test_an_overwrite_that_was_computed_from_the_table_is_refused_when_that_has_changed(
    spark: SparkSession, catalog: Any
) -> None:
    table = write_table(spark.range(3), (catalog, "db.t"), create=True)
    doubled = read_table(spark, table).selectExpr("id * 2 as id").cache()
    doubled.createOrReplaceTempView("doubled")
    catalog.load_table("db.t").append(pa.table({"id": [77]}))
    for df in (doubled, spark.sql("select id from doubled union all select 5"), doubled.coalesce(1)):
        with pytest.raises(StaleRead):
            write_table(df, table, "overwrite")
    assert [(0,), (1,), (2,), (77,)] == rows(read_table(spark, table.refresh()))
    assert set() == orphans(table)
    write_table(read_table(spark, table).selectExpr("id * 2 as id"), table, "overwrite")
    assert [(0,), (154,), (2,), (4,)] == rows(read_table(spark, table))


def test_a_request_that_landed_is_answered_by_the_format_whatever_became_of_the_table(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    schema = Schema(I.NestedField(1, "id", I.LongType()), I.NestedField(2, "v", I.LongType()))
    table = catalog.create_table("db.t", schema)
    rows = spark.sql("SELECT 1L id, CAST(NULL AS LONG) v").coalesce(1)
    job = rows.write.format("commit_coord").options(**given).option("request-id", "r")
    job.mode("append").save()
    with table.refresh().update_schema(allow_incompatible_changes=True) as change:
        change.update_column("v", required=True)
    job.mode("append").save()
    assert 1 == table.refresh().scan().to_arrow().num_rows


def test_a_request_that_landed_is_answered_when_the_table_can_not_be_written_any_more(
    spark: SparkSession, catalog: Any
) -> None:
    table = made(catalog, id=pa.array([1]))
    write_table(spark.range(2, 3), table, request_id="r")
    foreach_batch(table, writer_id="w")(spark.range(3, 4), 0)
    table = of_version_3(catalog, catalog.load_table("db.t"))
    write_table(spark.range(2, 3), table, request_id="r")
    foreach_batch(table, writer_id="w")(spark.range(3, 4), 0)
    assert [(1,), (2,), (3,)] == rows(read_table(spark, table))
    with pytest.raises(CommitNotApplied, match="format version"):
        write_table(spark.range(2, 3), table, request_id="another")


@pytest.mark.parametrize("way", ["fast", "arrow"])
def test_a_row_group_with_a_long_value_is_not_overlooked(spark: SparkSession, catalog: Any, way: str) -> None:
    """Neither writer keeps such a value as a bound of its row group, and Java's not the number of NULLs either."""
    texts = [*(f"z{number:04}" + "z" * 5000 for number in range(200)), None, *("a" for _ in range(20_000))]
    kind = "n int, s string" if way == "fast" else "n int, s string, l array<int>"
    data = [(number, text, [number])[: kind.count(",") + 1] for number, text in enumerate(texts)]
    table = write_table(
        spark.createDataFrame(data, kind).coalesce(1),
        (catalog, "db.t"),
        create=True,
        properties={"write.parquet.row-group-size-bytes": "100000", "write.parquet.row-group-limit": "300"},
    )
    (task,) = table.scan().plan_files()
    assert pq.ParquetFile(task.file.file_path.removeprefix("file://")).metadata.num_row_groups > 1
    for number in (0, 199):
        condition = cast(Any, EqualTo)("s", texts[number])
        assert [number] == [row.n for row in read_table(spark, table, row_filter=condition).collect()]
    assert [200] == [row.n for row in read_table(spark, table, row_filter="s is null").collect()]


def test_a_time_that_python_does_not_have_is_written(spark: SparkSession, catalog: Any) -> None:
    table = write_table(spark.sql("SELECT 1 id, date'+10000-01-01' d"), (catalog, "db.t"), create=True)
    assert 1 == read_table(spark, table).where("d > date'9999-12-31'").count()


@pytest.mark.parametrize("way", ["fast", "arrow"])
@pytest.mark.parametrize("transform", ["d", "month(d)", "bucket(4, d)"])
def test_a_time_that_python_does_not_have_is_written_into_its_partition(
    spark: SparkSession, catalog: Any, way: str, transform: str
) -> None:
    more = "" if way == "fast" else ", array(1) l"
    df = spark.sql(f"SELECT 1 id, date'+10000-01-01' d{more} UNION ALL SELECT 2, date'2026-01-01' d{more}")
    table = write_table(df.coalesce(1), (catalog, "db.t"), create=True, partition_by=[transform])
    assert [(1,)] == rows(read_table(spark, table).where("d > date'9999-12-31'").select("id"))


@pytest.mark.parametrize(
    "kind, text, width, least",
    [(I.DecimalType(3, 2), "decimal(3, 2)", 100, "-9.99"), (I.IntegerType(), "int", 10, str(-(2**31)))],
    ids=str,
)
def test_rows_in_a_partition_below_their_type_are_read_by_each_way(
    spark: SparkSession, catalog: Any, given: dict[str, str], kind: Any, text: str, width: int, least: str
) -> None:
    """Other engines write them. And a compaction leaves them where they are."""
    fields = (I.NestedField(1, "id", I.LongType()), I.NestedField(2, "x", kind))
    spec = PartitionSpec(PartitionField(2, 1000, TruncateTransform(width), "p"))
    table = catalog.create_table("db.t", Schema(*fields), partition_spec=spec)
    values = pa.array([Decimal(least), Decimal(-1), None]).cast(schema_to_pyarrow(kind))
    for first in (0, 10):
        written = pa.table({"id": pa.array(range(first, first + 3), pa.int64()), "x": values})
        with unchecked_decimals():
            table.commit_files(list(data_files(table.metadata, written, table.io, carried=True)))

    def check() -> None:
        for operator, found in {"=": [0, 10], "<=": [0, 10], "<": [], ">": [1, 11], "<>": [1, 11]}.items():
            condition = f"x {operator} {least}"
            read = spark.read.format("commit_coord").options(**given).load().where(condition)
            for df in (
                read_table(spark, table).where(f"x {operator} cast('{least}' as {text})"),
                read_table(spark, table, row_filter=condition),
                read,
            ):
                assert found == sorted(row.id for row in df.collect()), condition
                assert len(found) == df.count(), condition

    check()
    before = sorted({repr(task.file.partition) for task in table.scan().plan_files()})
    with unchecked_decimals():
        done = compact_table(spark, table)
    assert (6, 3) == (done.before, done.after)
    table.refresh()
    assert before == sorted(repr(task.file.partition) for task in table.scan().plan_files())
    check()


@pytest.mark.parametrize("limit", [0, 100, 400])
def test_a_session_that_cuts_the_texts_of_plans_does_not_hide_what_was_read(
    spark: SparkSession, catalog: Any, limit: int
) -> None:
    table = write_table(spark.range(3), (catalog, "db.t"), create=True)
    df = read_table(spark, table).selectExpr("id * 2 as id")
    catalog.load_table("db.t").append(pa.table({"id": [77]}))
    spark.conf.set("spark.sql.maxPlanStringLength", str(limit))
    try:
        with pytest.raises(StaleRead):
            write_table(df, table, "overwrite")
        assert str(limit) == spark.conf.get("spark.sql.maxPlanStringLength")
    finally:
        spark.conf.unset("spark.sql.maxPlanStringLength")
    assert [(0,), (1,), (2,), (77,)] == rows(read_table(spark, table.refresh()))


def test_an_overwrite_depends_on_nothing_but_what_its_rows_were_read_from(spark: SparkSession, catalog: Any) -> None:
    """Other partitions, other tables, a snapshot that was asked for; and on what the caller names."""
    df = spark.range(4).selectExpr("id", "cast(id % 2 as int) k").coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["k"])
    first = table.metadata.current_snapshot_id
    other = write_table(spark.range(9, 10).selectExpr("id", "0 k"), (catalog, "db.u"), create=True)
    even = read_table(spark, table, row_filter="k = 0").selectExpr("id + 100 as id", "k")
    old = read_table(spark, table, snapshot_id=first)
    write_table(df.filter("k = 1"), catalog.load_table("db.t"))
    write_table(even, table, "overwrite", overwrite_filter="k = 0")
    write_table(read_table(spark, other), table, "overwrite", overwrite_filter="k = 0")
    assert [(1, 1), (1, 1), (3, 1), (3, 1), (9, 0)] == rows(read_table(spark, table))
    write_table(old, table, "overwrite")
    assert [(0, 0), (1, 1), (2, 0), (3, 1)] == rows(read_table(spark, table))
    with pytest.raises(StaleRead):
        write_table(df, table, "overwrite", reads="k = 1", read_at=first)


def test_a_plan_shows_which_rows_of_a_table_it_reads(spark: SparkSession, catalog: Any, given: dict[str, str]) -> None:
    table = write_table(spark.range(3), (catalog, "db.t"), create=True)
    at = table.metadata.current_snapshot_id
    part = read_table(spark, table, row_filter="id = 1")
    some = reads_of(part.filter("id in (select id from range(5))"), table, "main")
    assert some is not None
    assert (at, parse("id = 1")) == (some.snapshot_id, some.condition)
    part.createOrReplaceTempView("part")
    nested = spark.sql("select * from range(5) where id in (select id from part)")
    by_format = spark.read.format("commit_coord").options(**given).load()
    for df in (by_format, spark.range(5).join(by_format, "id"), nested):
        assert reads_of(df, table, "main") is not None
    for df in (spark.range(5), read_table(spark, table, snapshot_id=at)):
        assert reads_of(df, table, "main") is None


def test_rows_of_an_empty_table_are_nothing_only_as_long_as_it_is_empty(spark: SparkSession, catalog: Any) -> None:
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    nothing = read_table(spark, table)
    catalog.load_table("db.t").append(pa.table({"id": [77]}))
    with pytest.raises(StaleRead):
        write_table(nothing, table, "overwrite")


@pytest.mark.parametrize("given_as", ["table", "name"])
def test_rows_that_were_named_as_read_from_an_empty_branch_replace_nothing_that_came_since(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch, given_as: str
) -> None:
    """What the caller saw counts: of a name what there was at the call, not what is there once the locks are held."""
    mine = write_table(spark.range(0), (catalog, "db.t"), create=True)

    def waits(*arguments: Any) -> Any:
        catalog.load_table("db.t").append(pa.table({"id": [77]}))
        return holding(*arguments)

    with monkeypatch.context() as patched:
        if given_as == "name":
            patched.setattr("commit_coord.spark.write.holding", waits)
        else:
            catalog.load_table("db.t").append(pa.table({"id": [77]}))
        with pytest.raises(StaleRead):
            write_table(
                spark.range(5), mine if given_as == "table" else (catalog, "db.t"), "overwrite", reads="id >= 0"
            )
    assert [(77,)] == rows(read_table(spark, mine.refresh()))
    assert set() == orphans(mine)
    write_table(spark.range(1), mine, "overwrite", reads="id >= 0")
    assert [(0,)] == rows(read_table(spark, mine))


def test_rows_that_were_named_count_as_read_when_the_plan_read_them(spark: SparkSession, catalog: Any) -> None:
    table = write_table(spark.range(3), (catalog, "db.t"), create=True)
    old = read_table(spark, table)
    catalog.load_table("db.t").append(pa.table({"id": [77]}))
    with pytest.raises(StaleRead):
        write_table(old, table.refresh(), "overwrite", reads="id >= 0")
    assert 4 == read_table(spark, table.refresh()).count()


def test_a_read_counts_also_when_ten_thousand_others_followed(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_table(spark.range(3), (catalog, "db.t"), create=True)
    monkeypatch.setattr("commit_coord.spark.frame_reads._REMEMBERED", 0)
    old = read_table(spark, table, row_filter="id = 1")
    catalog.load_table("db.t").append(pa.table({"id": [77]}))
    with pytest.raises(StaleRead):
        write_table(old, table.refresh(), "overwrite")
    assert 4 == read_table(spark, table.refresh()).count()


def test_rows_of_a_table_that_was_dropped_replace_nothing_in_the_next_one_of_its_name(
    spark: SparkSession, catalog: Any
) -> None:
    old = read_table(spark, write_table(spark.range(3), (catalog, "db.t"), create=True))
    catalog.drop_table("db.t")
    table = write_table(spark.range(77, 78), (catalog, "db.t"), create=True)
    with pytest.raises(StaleRead):
        write_table(old, (catalog, "db.t"), "overwrite")
    assert [(77,)] == rows(read_table(spark, table.refresh()))
    write_table(old, (catalog, "db.t"), "append")
    write_table(old, (catalog, "db.t"), "overwrite", reads=NOTHING)
    assert [(0,), (1,), (2,)] == rows(read_table(spark, table.refresh()))


def test_a_table_of_the_same_name_in_another_database_is_another_one(
    spark: SparkSession, catalog: Any, tmp_path: Path
) -> None:
    database = {**catalog.properties, "uri": f"coord+sqlite:///{tmp_path}/other.db"}
    with closing(load_catalog(catalog.name, **database)) as other:
        other.create_namespace("db")
        write_table(spark.range(5), (other, "db.t"), create=True)
        old = read_table(spark, write_table(spark.range(3), (catalog, "db.t"), create=True))
        write_table(old, (other, "db.t"), "overwrite")
        assert 3 == read_table(spark, (other, "db.t")).count()


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_oldest_read_of_a_plan_counts(spark: SparkSession, catalog: Any, version: str) -> None:
    """Also in format version 1, where all sequence numbers are 0."""
    table = write_table(spark.range(3), (catalog, "db.t"), create=True, properties={"format-version": version})
    first = table.metadata.current_snapshot_id
    old = read_table(spark, table)
    new = read_table(spark, write_table(spark.range(1), table))
    for df in (old.unionAll(new), new.unionAll(old)):
        read = reads_of(df, table, "main")
        assert read is not None
        assert first == read.snapshot_id
        assert reads_of(df, table, "other") is None


def test_the_data_source_overwrites_only_what_was_there_when_it_was_planned(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    table = write_table(spark.range(3), (catalog, "db.t"), create=True)
    writer, messages, folder = job(spark, given, spark.range(9, 10), overwrite=True)
    blind, blind_messages, _ = job(spark, {**given, "reads": "nothing"}, spark.range(9, 10), overwrite=True)
    table.append(pa.table({"id": [77]}))
    with pytest.raises(StaleRead):
        writer.commit(messages)
    assert not folder.exists()
    blind.commit(blind_messages)
    assert [(9,)] == rows(read_table(spark, table.refresh()))


@pytest.mark.parametrize(
    "key, value",
    [
        ("parquet__summary__metadata__level", "ALL"),
        (
            "spark__sql__sources__commitProtocolClass",
            "org.apache.spark.sql.execution.streaming.ManifestFileCommitProtocol",
        ),
    ],
)
def test_only_files_of_rows_are_committed_whatever_the_session_says(
    spark: SparkSession, catalog: Any, key: str, value: str
) -> None:
    """Parquet's summary counts the rows of all files, and a commit protocol may leave files of attempts that failed."""
    with settings(spark, **{key: value}):
        table = write_table(spark.range(5).coalesce(1), (catalog, "db.t"), create=True)
    assert [5] == [task.file.record_count for task in table.refresh().scan().plan_files()]
    assert set() == orphans(table)


# -- streams --------------------------------------------------------------------------------------------------------


def streamed(spark: SparkSession, folder: Path, checkpoint: Path, start: Callable[[Any], Any]) -> None:
    """Run a stream of the Parquet files in *folder* until it has all."""
    stream = start(spark.readStream.schema("id long").parquet(str(folder)).writeStream)
    stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("way", ["foreachBatch", "format", "foreachBatch with a name", "format with a name"])
def test_a_checkpoint_that_was_deleted_drops_no_batch_silently(
    spark: SparkSession, catalog: Any, given: dict[str, str], tmp_path: Path, way: str
) -> None:
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    named = "name" in way

    def start(stream: Any) -> Any:
        if way.startswith("foreachBatch"):
            return stream.foreachBatch(foreach_batch((catalog, "db.t"), writer_id="me" if named else None))
        return stream.format("commit_coord").options(**given, **({"writer-id": "me"} if named else {}))

    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "one"))
    streamed(spark, tmp_path / "one", tmp_path / "checkpoint", start)
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    spark.range(10, 12).coalesce(1).write.parquet(str(tmp_path / "two"))
    if named:
        with pytest.raises(Exception, match="writer id"):
            streamed(spark, tmp_path / "two", tmp_path / "checkpoint", start)
        assert 3 == read_table(spark, table.refresh()).count()
    else:
        streamed(spark, tmp_path / "two", tmp_path / "checkpoint", start)
        assert [(0,), (1,), (10,), (11,), (2,)] == rows(read_table(spark, table.refresh()))
    assert set() == orphans(table)


@pytest.mark.parametrize("way", ["foreachBatch", "format"])
def test_a_checkpoint_of_a_backup_drops_no_row_silently_and_repeats_none(
    spark: SparkSession, catalog: Any, given: dict[str, str], tmp_path: Path, way: str
) -> None:
    """Spark plans the batches that the backup has not anew, with all files that are there by then."""
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    checkpoint, name = tmp_path / "checkpoint", "me"

    def start(stream: Any) -> Any:
        if way == "foreachBatch":
            return stream.foreachBatch(foreach_batch((catalog, "db.t"), writer_id=name))
        return stream.format("commit_coord").options(**given, **{"writer-id": name})

    def run(backup: Path | None = None) -> None:
        if backup is not None:
            shutil.rmtree(checkpoint)
            shutil.copytree(backup, checkpoint)
        streamed(spark, tmp_path / "in", checkpoint, start)

    def arrive(number: int) -> None:
        spark.range(number, number + 1).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    for batch in range(3):
        arrive(batch)
        run()
        shutil.copytree(checkpoint, tmp_path / f"backup {batch}")
    arrive(3)
    for batch in (0, 1):
        with pytest.raises(Exception, match="older than the table"):
            run(tmp_path / f"backup {batch}")
        assert [(0,), (1,), (2,)] == rows(read_table(spark, table.refresh()))
    assert set() == orphans(table)
    # The offsets of the last batch are there, and Spark does not know that it has landed: this batch it repeats.
    for note in (tmp_path / "backup 2" / "commits").glob("*2*"):
        note.unlink()
    run(tmp_path / "backup 2")
    assert [(0,), (1,), (2,), (3,)] == rows(read_table(spark, table.refresh()))
    # What the error says to do.
    table.delete("id > 0")
    name = "me, from the backup"
    run(tmp_path / "backup 0")
    assert [(0,), (1,), (2,), (3,)] == rows(read_table(spark, table.refresh()))
    assert set() == orphans(table)


def test_one_batch_is_written_to_several_branches_and_each_call_for_one_is_written_or_refused(
    spark: SparkSession, catalog: Any, tmp_path: Path
) -> None:
    """A second call for one branch is no repeat of the first one: it may have other rows."""
    write_table(spark.range(0), (catalog, "db.t"), create=True)
    spark.range(4).coalesce(1).write.parquet(str(tmp_path / "in"))
    named: dict[str, str] = {}

    def write(df: Any, batch: int) -> None:
        foreach_batch((catalog, "db.t"))(df.filter("id = 0"), batch)
        foreach_batch((catalog, "db.t"), branch="audit")(df.filter("id = 1"), batch)
        second = foreach_batch((catalog, "db.t"), writer_id=named.get("second"))
        second(df.filter("id = 2"), batch)

    def run() -> None:
        streamed(spark, tmp_path / "in", tmp_path / "checkpoint", lambda stream: stream.foreachBatch(write))

    for _ in range(2):  # the first call is a repeat in the second run; the last one is none in either
        with pytest.raises(Exception, match="a writer_id of its own"):
            run()
        assert [(0,)] == rows(read_table(spark, (catalog, "db.t")))
    named["second"] = "second"
    run()
    assert [(0,), (2,)] == rows(read_table(spark, (catalog, "db.t")))
    assert [(1,)] == rows(read_table(spark, (catalog, "db.t"), branch="audit"))


def test_a_call_that_failed_may_come_again_in_its_run(
    spark: SparkSession, catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(spark.range(0), (catalog, "db.t"), create=True)
    spark.range(4).coalesce(1).write.parquet(str(tmp_path / "in"))

    def write(df: Any, batch: int) -> None:
        with monkeypatch.context() as broken:
            broken.setattr("commit_coord.spark.streams.write_table", _fails)
            with pytest.raises(OSError, match="no space"):
                foreach_batch((catalog, "db.t"))(df, batch)
        foreach_batch((catalog, "db.t"))(df, batch)

    streamed(spark, tmp_path / "in", tmp_path / "checkpoint", lambda stream: stream.foreachBatch(write))
    assert 4 == read_table(spark, (catalog, "db.t")).count()


def _fails(*_: Any, **__: Any) -> None:
    raise OSError("no space left on device")


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "outputMode": lambda stream: stream.outputMode("append"),
    "partitionBy": lambda stream: stream.partitionBy("id"),
    "clusterBy": lambda stream: stream.clusterBy("id"),
    "queryName": lambda stream: stream.queryName("orders"),
    "trigger": lambda stream: stream.trigger(availableNow=True),
    "a checkpoint of the session": lambda stream: stream,
    "a checkpoint and a name of the session": lambda stream: stream.queryName("sales"),
}
"""What a stream is told in Spark, apart from its sink and its options."""


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_stream_takes_the_settings_of_spark(
    spark: SparkSession, catalog: Any, given: dict[str, str], tmp_path: Path, setting: str
) -> None:
    """Spark passes some of them to the data source as options, and leaves some out."""
    write_table(spark.range(0), (catalog, "db.t"), create=True)
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).writeStream.trigger(availableNow=True)
    stream = SETTINGS[setting](stream).format("commit_coord").options(**given)
    if "session" not in setting:
        stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with settings(spark, spark__sql__streaming__checkpointLocation=str(tmp_path / "checkpoints")):
        stream.start().awaitTermination()
    assert [(0,), (1,), (2,)] == rows(read_table(spark, (catalog, "db.t")))


def test_a_batch_of_no_row_is_refused_as_one_with_rows(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    """The rows of the next ones would count as new once the numbers have passed those in the table."""
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    options = ds.Options({**given, "writer-id": "me"})

    def commit(number: int, count: int) -> None:
        writer = ds.TableStreamWriter(options, None, Target.of(table), ["id"])
        message = writer.write(iter(spark.range(count).coalesce(1).toArrow().to_batches()))
        message.query_id = "q"
        writer.commit([message], number)

    commit(0, 3)
    commit(1, 0)
    commit(2, 3)
    with pytest.raises(CommitNotApplied, match="older than the table"):
        commit(1, 0)
    commit(3, 0)
    assert 6 == read_table(spark, table.refresh()).count()


def test_a_mark_without_its_commit_is_an_error(spark: SparkSession, catalog: Any) -> None:
    """Outside of a streaming query nothing says whose batch it is but its commit."""
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    write = foreach_batch(table, writer_id="me")
    write(spark.range(3), 1)
    write(spark.range(3), 1)
    assert 3 == read_table(spark, table.refresh()).count()
    with pytest.raises(CommitNotApplied, match="writer id"):
        write(spark.range(3), 0)
    write(spark.range(3), 2)
    with pytest.raises(CommitNotApplied, match="writer id"):
        write(spark.range(9), 1)


def landed_by_an_older_version(spark: SparkSession, table: Any, name: str, number: int) -> None:
    """Write a batch as it was written when marks and request ids said nothing of the query."""
    mark = {f"commit-coord.stream.{name}": str(number)}
    write_table(spark.range(3), table, request_id=f"{name}/{number}", table_properties=mark)


@pytest.mark.parametrize("name", ["me", "q"], ids=["named", "named by its query"])
def test_a_stream_of_an_older_version_goes_on(spark: SparkSession, catalog: Any, name: str) -> None:
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    landed_by_an_older_version(spark, table, name, 5)
    assert Batch(name, "q", 5).done(table), "the last batch, again"
    assert not Batch(name, "q", 6).done(table)
    for unknown in (0, 4):
        with pytest.raises(CommitNotApplied, match="another checkpoint"):
            Batch(name, "q", unknown).done(table)
    write_table(
        spark.range(1),
        table,
        request_id=Batch(name, "q", 6).request_id,
        table_properties=Batch(name, "q", 6).properties,
    )
    assert Batch(name, "q", 6).done(table)
    assert not Batch(name, "q", 7).done(table)
    if name == "me":
        with pytest.raises(CommitNotApplied, match="another checkpoint"):
            Batch(name, "another", 7).done(table)


def test_a_first_batch_after_an_upgrade_is_not_taken_for_that_of_a_checkpoint_that_was_deleted(
    spark: SparkSession, catalog: Any
) -> None:
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    landed_by_an_older_version(spark, table, "me", 0)
    with pytest.raises(CommitNotApplied, match="another checkpoint"):
        Batch("me", "q", 0).done(table)


def test_a_stream_without_a_name_goes_on_after_an_upgrade(
    spark: SparkSession, catalog: Any, given: dict[str, str]
) -> None:
    """An older version named it by its checkpoint. Only the last batch is ever repeated; others are new."""
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    landed_by_an_older_version(spark, table, "/checkpoint", 5)
    options = ds.Options({**given, "checkpointlocation": "/checkpoint"})
    for number, expected in ((5, 3), (0, 6), (1, 9), (6, 12), (6, 12)):
        target = Target.of(table)
        query = "q" if number > 4 else "after-the-checkpoint-was-deleted"
        writer = ds.TableStreamWriter(options, None, target, ["id"])
        message = writer.write(iter(spark.range(3).coalesce(1).toArrow().to_batches()))
        message.query_id = query
        writer.commit([message], number)
        assert expected == read_table(spark, table.refresh()).count(), number


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_writer_that_can_not_be_made_leaves_no_lock(
    catalog: Any, given: dict[str, str], spark: SparkSession, kind: str
) -> None:
    """The column goes while the locks are waited for. Spark calls neither commit() nor abort() then."""
    table = write_table(spark.sql("select 1 as id, 'a' as s"), (catalog, "db.t"), create=True)
    schema = spark.sql("select 1 as id, 'a' as s").schema
    held: list[str] = []

    class Held:
        def acquire(self, claim: str, *_: Any) -> None:
            held.append(claim)
            with table.update_schema() as changes:
                changes.delete_column("s")

        def release(self, claim: str) -> None:
            if claim in held:
                held.remove(claim)

    options = {**given, "catalog.operation-locks": "hive"} | ({"writer-id": "me"} if kind == "stream" else {})
    source = ds.CommitCoordDataSource(options, cast(Any, Held()))
    with pytest.raises(SchemaMismatch):
        source.writer(schema, True) if kind == "batch" else source.streamWriter(schema, False)
    assert held == []
    held.append(
        ds._stream_claim(ds.Options(options))
    )  # what the first streamWriter() of a job took, and the second one fails
    if kind == "stream":
        with pytest.raises(SchemaMismatch):
            source.streamWriter(schema, False)
        assert held == []


# -- compaction -----------------------------------------------------------------------------------------------------


def test_compaction_by_spark_keeps_null_lists_maps_and_structs_through_evolutions(
    spark: SparkSession, catalog: Any
) -> None:
    """Columns that were added, renamed and swapped, names that differ in case, another partition spec."""
    point = I.StructType(I.NestedField(13, "y", I.IntegerType()))
    with settings(spark, spark__sql__caseSensitive="true"):
        df = (
            spark.range(2)
            .selectExpr("id", "id as a", "id + 10 as b", "named_struct('x', id, 'X', id + 1) s")
            .coalesce(1)
        )
        table = write_table(df.selectExpr("id", "a", "b", "struct(s.x as x) s"), (catalog, "db.t"), create=True)
        renamed(table, ("a", "c"), ("b", "a"), ("c", "b"))
        with table.update_schema() as update:
            update.add_column("m", I.MapType(11, I.StringType(), 12, point, value_required=False))
            update.add_column("l", I.ListType(21, point, element_required=False))
            update.add_column("p", point)
            update.add_column(("s", "X"), I.LongType())
            update.add_column("ID", I.LongType())
        with table.update_spec() as update:
            update.add_field("id", "bucket[2]", "two")
        write_table(df.selectExpr("id", "a", "b", "s"), table)
        write_table(spark.sql("select 5L id, map('k', null) m, array(null) l, struct(null as y) p"), table)
        before = rows(read_table(spark, table))
        stock = sorted(map(repr, table.scan().to_arrow()["id"].to_pylist()))
        compact_table(spark, table)
        assert before == rows(read_table(spark, table.refresh()))
        assert stock == sorted(map(repr, table.scan().to_arrow()["id"].to_pylist()))
    assert set() == orphans(table)
