"""Iceberg's JVM runtime reads what we write, and we read what it writes."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from commit_coord.config import COALESCE
from commit_coord.model import LockScope
from commit_coord.spark import read_table, write_table
from tests import limits
from tests.processes import until
from tests.spark.test_roundtrip import NESTED, PLAIN, same, sample

pytestmark = pytest.mark.jvm


def as_jvm_table(spark: SparkSession, table: Any, warehouse: Path, name: str) -> DataFrame:
    """Return *table* as the JVM runtime reads it: its latest metadata, put where the hadoop catalog looks for it."""
    folder = warehouse / "db" / name / "metadata"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(table.refresh().metadata_location.removeprefix("file://"), folder / "v1.metadata.json")
    (folder / "version-hint.text").write_text("1")
    return spark.table(f"jvm.db.{name}")


@pytest.mark.parametrize("schema", [PLAIN, NESTED], ids=["spark's parquet", "arrow"])
def test_the_jvm_reads_ours(spark: SparkSession, catalog: Any, warehouse: Path, schema: Any) -> None:
    """Every type, null, NaN, odd names."""
    df = sample(spark, schema)
    table = write_table(df, (catalog, "db.t"), create=True)
    assert same(df, as_jvm_table(spark, table, warehouse, f"ours{len(schema)}"))


def test_the_jvm_reads_our_partitions(spark: SparkSession, catalog: Any, warehouse: Path) -> None:
    """Each transform: the JVM finds the rows by partition, also null ones."""
    df = spark.range(20).selectExpr(
        "id",
        "if(id = 7, null, cast(id % 3 as string)) k",
        "date_add(date'1969-12-25', cast(id as int)) d",
        "timestamp_seconds(id * 4000) ts",
    )
    table = write_table(
        df,
        (catalog, "db.t"),
        create=True,
        partition_by=["k", "bucket(3, id)", "truncate(1, k)", "month(d)", "hour(ts)"],
    )
    theirs = as_jvm_table(spark, table, warehouse, "parts")
    assert same(df, theirs)
    for condition in ["k = '1'", "k is null", "id = 11", "d < date'1970-01-01'", "ts >= timestamp_seconds(40000)"]:
        assert same(df.filter(condition), theirs.filter(condition)), condition


def test_the_jvm_reads_an_evolved_table(spark: SparkSession, catalog: Any, warehouse: Path) -> None:
    """Old and new files under one schema."""
    from pyiceberg.types import LongType, StringType

    table = write_table(spark.createDataFrame([(1, "old")], "k int, a string"), (catalog, "db.t"), create=True)
    with table.update_schema() as update:
        update.update_column("k", LongType())
        update.rename_column("a", "b")
        update.add_column("c", StringType())
    table.refresh()
    write_table(spark.createDataFrame([(2**40, "new", "c")], "k long, b string, c string"), table)
    assert same(read_table(spark, table), as_jvm_table(spark, table, warehouse, "evolved"))


def test_the_jvm_reads_what_shares_a_snapshot(spark: SparkSession, catalog: Any, warehouse: Path) -> None:
    """All of it, and as what that one snapshot added: a reader of only what is new gets it too."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True, properties={COALESCE: "true"})
    first = table.metadata.current_snapshot_id
    rows = table.scan().to_arrow()
    appending = [
        threading.Thread(target=catalog.load_table("db.t").append, args=(rows,), daemon=True) for _ in range(3)
    ]

    def are_queued(count: int) -> bool:
        return len(catalog.locks.locks(scope=LockScope.COMMIT)) >= count

    with catalog.coordinator.latch(("db", "t")):
        for count, thread in enumerate(appending, 2):
            thread.start()
            until(partial(are_queued, count), "a place in the queue")
    for thread in appending:
        thread.join(limits.PATIENCE)
    theirs = as_jvm_table(spark, table, warehouse, "shared")
    assert 4 == theirs.count()
    assert 2 == len(table.refresh().metadata.snapshots)
    new = spark.read.format("iceberg").option("start-snapshot-id", str(first)).load("jvm.db.shared")
    assert 3 == new.count()
    assert 3 == spark.sql(f"SELECT * FROM jvm.db.shared.entries WHERE snapshot_id <> {first}").count()


def test_we_read_the_jvms(spark: SparkSession, catalog: Any, warehouse: Path) -> None:
    """Merge-on-read deletes, nested types, an evolved schema and spec."""
    sample(spark, NESTED).writeTo("jvm.db.theirs").tableProperty("format-version", "2").tableProperty(
        "write.delete.mode", "merge-on-read"
    ).create()
    spark.sql("ALTER TABLE jvm.db.theirs RENAME COLUMN text TO words")
    spark.sql("ALTER TABLE jvm.db.theirs ADD PARTITION FIELD bucket(2, id)")
    spark.sql("INSERT INTO jvm.db.theirs (id, words) SELECT id, 'more' FROM range(4, 400)")
    spark.sql("DELETE FROM jvm.db.theirs WHERE id IN (2, 5, 77)")
    latest = max(
        (warehouse / "db" / "theirs" / "metadata").glob("v*.metadata.json"), key=lambda p: int(p.name[1:].split(".")[0])
    )
    table = catalog.register_table("db.theirs", f"file://{latest}")
    ours = read_table(spark, table)
    assert any(task.delete_files for task in table.scan().plan_files())
    assert same(spark.table("jvm.db.theirs"), ours)
    assert ours.count() == 396
    assert read_table(spark, table, row_filter="id = 6").count() == 1


@pytest.mark.parametrize("writer", ["spark", "arrow"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_the_jvm_finds_zeros_of_both_signs_and_nan_in_our_partitions(
    spark: SparkSession, catalog: Any, warehouse: Path, kind: str, writer: str
) -> None:
    df = spark.createDataFrame([(1, 0.0), (2, -0.0), (3, float("nan")), (4, None), (5, 1.5)], f"k long, x {kind}")
    table = write_table(df.limit(0 if writer == "arrow" else 5), (catalog, "db.t"), create=True, partition_by=["x"])
    if writer == "arrow":
        values = pa.array([0.0, -0.0, float("nan"), None, 1.5], pa.float32() if kind == "float" else pa.float64())
        table.append(pa.table({"k": [1, 2, 3, 4, 5], "x": values}))
    theirs = as_jvm_table(spark, table, warehouse, f"zeros_{kind}_{writer}")
    for condition, keys in FOUND.items():
        assert keys == sorted(row.k for row in theirs.filter(condition).collect()), condition


FOUND = {
    "true": [1, 2, 3, 4, 5],
    "x = 0.0D": [1, 2],
    "x <= 0.0D": [1, 2],
    "x >= 0.0D": [1, 2, 3, 5],
    "x IN (0.0D, 7.0D)": [1, 2],
    "isnan(x)": [3],
    "x IS NULL": [4],
    "x = 1.5D": [5],
}


def test_the_jvm_overlooks_its_own_partition_of_negative_zero(spark: SparkSession, warehouse: Path) -> None:
    """Why we write none: in SQL these numbers are equal, and its readers skip one of them."""
    spark.sql("CREATE TABLE jvm.db.negative_zero (k long, x double) USING iceberg PARTITIONED BY (x)")
    spark.createDataFrame([(1, 0.0), (2, -0.0)], "k long, x double").writeTo("jvm.db.negative_zero").append()
    theirs = spark.table("jvm.db.negative_zero")
    assert 2 == theirs.count()
    assert [1] == [row.k for row in theirs.filter("x = 0.0D").collect()]
    assert spark.sql("SELECT 0.0D = -0.0D AS same").collect()[0].same
