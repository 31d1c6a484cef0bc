"""What one writes, all read: rows through Spark's Parquet, through Arrow and through PyIceberg are equal."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
import pytest
from pyiceberg import types as I
from pyiceberg.expressions import AlwaysTrue, EqualTo, IsNull
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commit_coord.spark import SchemaMismatch, read_table, write_table
from commit_coord.spark.arrow import BatchReader
from commit_coord.spark.read import _through_arrow
from tests.catalog.row_deletes import add_position_deletes

UTC = dt.UTC
PLAIN = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("flag", T.BooleanType()),
        T.StructField("small", T.IntegerType()),
        T.StructField("f", T.FloatType()),
        T.StructField("d", T.DoubleType()),
        T.StructField("dec9", T.DecimalType(9, 2)),
        T.StructField("dec38", T.DecimalType(38, 10)),
        T.StructField("day", T.DateType()),
        T.StructField("ts", T.TimestampType()),
        T.StructField("ntz", T.TimestampNTZType()),
        T.StructField("text", T.StringType()),
        T.StructField("raw", T.BinaryType()),
        T.StructField("s", T.StructType([T.StructField("x", T.IntegerType()), T.StructField("y z.w", T.StringType())])),
        T.StructField("a.b/c d`\"'é東", T.StringType()),
    ]
)
NESTED = T.StructType(
    [
        *PLAIN.fields,
        T.StructField("list", T.ArrayType(T.IntegerType())),
        T.StructField(
            "structs", T.ArrayType(T.StructType([T.StructField("p", T.DoubleType()), T.StructField("q", T.DateType())]))
        ),
        T.StructField("map", T.MapType(T.StringType(), T.StructType([T.StructField("n", T.LongType())]))),
    ]
)


def ntz(*args: int) -> dt.datetime:
    """Return a time without a zone."""
    return dt.datetime(*args)  # type: ignore[arg-type]  # noqa: DTZ001 - on purpose


def sample(spark: SparkSession, schema: T.StructType) -> DataFrame:
    """Three rows: values, edge values, nulls."""
    full: list[tuple[Any, ...]] = [
        (
            1,
            True,
            -5,
            1.5,
            math.nan,
            Decimal("1.25"),
            Decimal("123.0000000001"),
            dt.date(2020, 2, 29),
            dt.datetime(2020, 3, 8, 7, 0, tzinfo=UTC),
            ntz(2020, 3, 8, 2, 30),
            "x",
            b"\x00\xff",
            (1, "w"),
            "odd",
            [1, None, 3],
            [(math.nan, dt.date(1969, 1, 1)), None],
            {"k": (7,), "": None},
        ),
        (
            2,
            False,
            2**31 - 1,
            math.nan,
            -math.inf,
            Decimal("-9999999.99"),
            Decimal(-1),
            dt.date(1582, 10, 4),
            dt.datetime(1600, 1, 1, tzinfo=UTC),
            ntz(9999, 12, 31, 23, 59, 59, 999999),
            "",
            b"",
            (None, None),
            "",
            [],
            [],
            {},
        ),
        (3, *[None] * 16),
    ]
    return spark.createDataFrame([row[: len(schema)] for row in full], schema).coalesce(1)


def same(left: DataFrame, right: DataFrame) -> bool:
    """Say whether two DataFrames have equal rows, NaN equal to itself."""
    return sorted(map(repr, left.collect())) == sorted(map(repr, right.collect()))


@pytest.mark.parametrize("schema", [PLAIN, NESTED], ids=["spark's parquet", "arrow"])
def test_every_type_comes_back(spark: SparkSession, catalog: Any, schema: T.StructType) -> None:
    """Null, NaN, decimals, times, structs, arrays, maps and odd names, to us and to PyIceberg."""
    df = sample(spark, schema)
    table = write_table(df, (catalog, "db.t"), create=True)
    assert same(df, read_table(spark, table))
    tasks = list(table.scan().plan_files())
    reader = BatchReader.of(table.metadata, table.io, table.schema(), AlwaysTrue())
    assert same(df, _through_arrow(spark, reader, tasks))
    found = {row["id"]: row for row in catalog.load_table("db.t").scan().to_arrow().to_pylist()}
    assert found[1]["a.b/c d`\"'é東"] == "odd"
    assert found[1]["s"] == {"x": 1, "y z.w": "w"}
    assert found[2]["ts"] == dt.datetime(1600, 1, 1, tzinfo=UTC)
    assert math.isnan(found[2]["f"])
    # PyIceberg 0.12 reads a null list or map of structs as an empty one.
    assert {"id"} == {key for key, value in found[3].items() if value is not None} - {"structs", "map"}
    if schema is NESTED:
        assert found[1]["list"] == [1, None, 3]
        assert dict(found[1]["map"]) == {"k": {"n": 7}, "": None}


def test_pyiceberg_rows_are_read(spark: SparkSession, catalog: Any) -> None:
    """Files of PyIceberg's own writer come back through Spark's Parquet reader."""
    rows = pa.table({"id": [1, 2], "tags": [["a", None], None], "s": [{"x": 1}, None]})
    table = catalog.create_table("db.t", schema=rows.schema)
    table.append(rows)
    assert [tuple(r) for r in read_table(spark, table).orderBy("id").collect()] == [
        (1, ["a", None], (1,)),
        (2, None, None),
    ]


def test_types_that_spark_lacks(spark: SparkSession, catalog: Any) -> None:
    """uuid, fixed and time go through Arrow, as text and bytes."""
    schema = Schema(
        I.NestedField(1, "u", I.UUIDType()), I.NestedField(2, "f", I.FixedType(3)), I.NestedField(3, "t", I.TimeType())
    )
    table = catalog.create_table("db.t", schema=schema)
    row = ("f79c3e09-677c-4bbd-a479-3f349cb785e7", bytearray(b"abc"), "12:34:56.000007")
    write_table(spark.createDataFrame([row, (None, None, None)], "u string, f binary, t string"), table)
    assert [row] == [tuple(r) for r in read_table(spark, table).filter("u is not null").collect()]
    found = table.refresh().scan().to_arrow().to_pylist()
    assert dt.time(12, 34, 56, 7) in [r["t"] for r in found]


def test_evolved_schema(spark: SparkSession, catalog: Any) -> None:
    """Added, renamed, dropped, reordered and promoted columns, and a name that is used again, in old and new files."""
    table = write_table(
        spark.createDataFrame([(1, 1.5, "old a", ("in", 3))], "k int, f float, a string, s struct<p:string,q:int>"),
        (catalog, "db.t"),
        create=True,
    )
    snapshot = table.current_snapshot()
    assert snapshot is not None
    first = snapshot.snapshot_id
    with table.update_schema() as update:
        update.update_column("k", I.LongType())
        update.update_column("f", I.DoubleType())
        update.rename_column("a", "b")
        update.rename_column(("s", "p"), "r")
        update.add_column("z", I.StringType())
    table.refresh()
    with table.update_schema() as update:
        update.add_column("a", I.StringType())
        update.add_column(("s", "p"), I.StringType())
        update.move_first("z")
    table.refresh()
    write_table(
        spark.createDataFrame(
            [("new", 2**40, 2.5, "b2", ("rr", 4, "pp"), "new a")],
            "z string, k long, f double, b string, s struct<r:string,q:int,p:string>, a string",
        ),
        table,
    )
    got = read_table(spark, table)
    assert got.columns == ["z", "k", "f", "b", "s", "a"]
    assert {(None, 1, 1.5, "old a", ("in", 3, None), None), ("new", 2**40, 2.5, "b2", ("rr", 4, "pp"), "new a")} == {
        tuple(tuple(v) if isinstance(v, tuple) else v for v in r) for r in got.collect()
    }
    # By name, Parquet would look into the old file's column `a`, which is `b` now.
    assert [r.k for r in got.filter("b = 'old a'").collect()] == [1]
    assert got.filter("a = 'old a'").collect() == []
    assert got.filter("a is null").count() == 1
    assert read_table(spark, table, row_filter="a is null").count() == 1
    assert [tuple(r) for r in got.filter("s.r = 'in'").select("s.r").collect()] == [("in",)]
    assert got.filter("s.p is null").count() == 1
    old = read_table(spark, table, snapshot_id=first)
    assert [(r[0], r[1], r[2], tuple(r[3])) for r in old.collect()] == [(1, 1.5, "old a", ("in", 3))]
    assert read_table(spark, table, snapshot_id=first, row_filter="a = 'old a'").count() == 1


def test_evolved_spec_and_pruning(spark: SparkSession, catalog: Any) -> None:
    """Files of two specs are read together, and a filter leaves out those of either."""
    df = spark.range(20).selectExpr("id", "cast(id % 4 as int) k").coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["k"])
    with table.update_spec() as update:
        update.remove_field("k")
        update.add_field("id", "bucket[4]", "id_b")
    table.refresh()
    write_table(df, table)
    assert read_table(spark, table).count() == 40
    some = read_table(spark, table, row_filter="k = 1 and id = 5")
    assert [r.id for r in some.collect()] == [5, 5]
    assert len(some.inputFiles()) == 2


def test_imported_files_without_ids(spark: SparkSession, catalog: Any, tmp_path: Any) -> None:
    """Hive's files carry no ids and leave the partition's column to the folder's name."""
    folder = tmp_path / "k=7"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), folder / "f.parquet")
    pq.write_table(pa.table({"id": [3], "k": pa.array([8], pa.int32())}), tmp_path / "g.parquet")
    table = write_table(spark.createDataFrame([(9, 9)], "id long, k int"), (catalog, "db.t"), create=True)
    table.add_files([f"file://{tmp_path}/g.parquet"])
    assert {(9, 9), (3, 8)} == {tuple(r) for r in read_table(spark, table).collect()}
    assert {3} == {r.id for r in read_table(spark, table, columns=["id"], row_filter="k = 8").collect()}


def test_position_deletes(spark: SparkSession, catalog: Any, tmp_path: Any) -> None:
    """Rows that a v2 position delete file names are gone, in a folder with odd letters too."""
    table = write_table(
        spark.range(1000).coalesce(1),
        (catalog, "db.t"),
        create=True,
        properties={"write.data.path": f"file://{tmp_path}/odd é %20"},
    )
    add_position_deletes(table, [0, 5, 999])
    assert set(range(1000)) - {0, 5, 999} == {r.id for r in read_table(spark, table).collect()}
    assert read_table(spark, table, row_filter="id > 0").filter("id <> 7").count() == 996
    write_table(spark.range(5).coalesce(1), table)
    assert read_table(spark, table).count() == 1002


def test_odd_partition_values(spark: SparkSession, catalog: Any) -> None:
    """Folder names carry them there, and the files are found again, also through the row numbers of deletes."""
    values = ["", "a/b=c", "%2F", " ", "é東🧊", "'\"`\\", "__HIVE_DEFAULT_PARTITION__", "x" * 500, None]
    df = spark.createDataFrame([(n, value) for n, value in enumerate(values)], "id long, k string").coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["k"])
    assert {task.file.partition[0] for task in table.scan().plan_files()} == set(values)
    assert same(df, read_table(spark, table))
    equal_to, is_null = cast(Any, EqualTo), cast(Any, IsNull)
    for number, value in enumerate(values):
        condition = equal_to("k", value) if value is not None else is_null("k")
        assert [number] == [row.id for row in read_table(spark, table, row_filter=condition).collect()]


def test_time_travel(spark: SparkSession, catalog: Any) -> None:
    """By snapshot, by timestamp, by branch."""
    table = write_table(spark.range(1).coalesce(1), (catalog, "db.t"), create=True)
    first = table.current_snapshot()
    assert first is not None
    with table.manage_snapshots() as manage:
        manage.create_branch(first.snapshot_id, "b")
    table.refresh()
    write_table(spark.range(10).coalesce(1), table, branch="b")
    write_table(spark.range(5).coalesce(1), table)
    assert read_table(spark, table).count() == 6
    assert read_table(spark, table, snapshot_id=first.snapshot_id).count() == 1
    assert read_table(spark, table, as_of_timestamp_ms=first.timestamp_ms).count() == 1
    assert read_table(spark, table, branch="b").count() == 11


def test_empty_table_and_no_rows(spark: SparkSession, catalog: Any) -> None:
    """A table without a snapshot reads as no rows, and no rows make no commit."""
    table = catalog.create_table("db.t", schema=Schema(I.NestedField(1, "id", I.LongType(), required=True)))
    assert (read_table(spark, table).collect(), read_table(spark, table).columns) == ([], ["id"])
    write_table(spark.range(0), table)
    assert table.refresh().current_snapshot() is None


def test_nan_has_pyicebergs_meaning_in_a_row_filter(spark: SparkSession, catalog: Any) -> None:
    """Whether a file was left out or not, no comparison with NaN holds."""
    df = spark.createDataFrame([(1, math.nan), (2, 1.0), (3, None)], "id int, d double").coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True)
    for text, expected in [("d > 0", {2}), ("d >= 1", {2}), ("d is nan", {1}), ("d != 1.0", {1}), ("d < 5", {2})]:
        assert expected == {r.id for r in read_table(spark, table, row_filter=text).collect()}, text
        assert expected == set(table.scan(row_filter=text).to_arrow()["id"].to_pylist()), text


@pytest.mark.parametrize(
    "make, complaint",
    [
        ("id, 1 as extra", "extra is not in the table"),
        ("cast(null as string) as name", "id is required and missing"),
        ("cast(id as string) as id", "does not fit in long"),
        ("cast(id as decimal(20,0)) as id", "does not fit in long"),
    ],
)
def test_a_misfit_is_refused_before_a_row_is_written(
    spark: SparkSession, catalog: Any, make: str, complaint: str
) -> None:
    """The message names the column, and no folder is made."""
    schema = Schema(I.NestedField(1, "id", I.LongType(), required=True), I.NestedField(2, "name", I.StringType()))
    table = catalog.create_table("db.t", schema=schema)
    with pytest.raises(SchemaMismatch, match=complaint):
        write_table(spark.range(3).selectExpr(*make.split(", ")), table)
    assert not table.io.new_input(f"{table.location()}/data").exists()


def test_null_in_a_required_column_fails_and_leaves_nothing(spark: SparkSession, catalog: Any, tmp_path: Any) -> None:
    """The job fails at the row; its folder is deleted."""
    schema = Schema(I.NestedField(1, "id", I.LongType(), required=True))
    table = catalog.create_table("db.t", schema=schema)
    with pytest.raises(Exception, match="null in required column id"):
        write_table(spark.createDataFrame([(1,), (None,)], "id long"), table)
    assert not list(tmp_path.rglob("*.parquet"))
    assert table.refresh().current_snapshot() is None


def test_names_that_differ_in_case_only(spark: SparkSession, catalog: Any) -> None:
    """Iceberg tells `a` from `A`."""
    table = catalog.create_table(
        "db.t", schema=Schema(I.NestedField(1, "a", I.LongType()), I.NestedField(2, "A", I.LongType()))
    )
    write_table(spark.range(1).selectExpr("id + 1 as a", "id + 2 as A"), table)
    assert [tuple(r) for r in read_table(spark, table).collect()] == [(1, 2)]


def test_session_settings_stay_as_they_are(spark: SparkSession, catalog: Any) -> None:
    """Neither way changes a setting of the session, not even for a moment."""
    before = dict(spark.conf.getAll)
    table = write_table(spark.range(3), (catalog, "db.t"), create=True, partition_by=["bucket(2, id)"])
    assert read_table(spark, table).agg(F.count("*")).first()[0] == 3  # type: ignore[index]
    assert before == dict(spark.conf.getAll)
