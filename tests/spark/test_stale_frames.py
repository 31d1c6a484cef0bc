"""Rows that a DataFrame has read replace no row that was committed since, whatever reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from commit_coord import NOTHING
from commit_coord.errors import StaleRead
from commit_coord.spark import read_table, register, write_table
from commit_coord.spark.filters import parse
from commit_coord.spark.frame_reads import reads_of
from commit_coord.table.isolation import NO_SNAPSHOT
from tests.catalog.kit import orphans
from tests.spark.conftest import rows
from tests.spark.test_jvm import as_jvm_table

SQL = "stale_frames"
"""The name of the table in Spark's SQL."""


@pytest.fixture
def given(spark: SparkSession, properties: dict[str, str]) -> Iterator[dict[str, str]]:
    """The options of the data source, for the catalog that Spark's settings describe."""
    settings = {f"spark.sql.catalog.test.{key}": value for key, value in properties.items()}
    for key, value in settings.items():
        spark.conf.set(key, value)
    register(spark)
    yield {"catalog": "test", "table": "db.t"}
    spark.sql(f"DROP TABLE IF EXISTS {SQL}")
    for key in settings:
        spark.conf.unset(key)


@pytest.fixture
def table(spark: SparkSession, catalog: Any) -> Any:
    """A table with the ids 0, 1, 2."""
    return write_table(spark.range(3), (catalog, "db.t"), create=True)


def by_sql(spark: SparkSession, given: dict[str, str], table: Any, warehouse: Path) -> DataFrame:
    spark.sql(f"CREATE TABLE {SQL} USING commit_coord OPTIONS (catalog '{given['catalog']}', table '{given['table']}')")
    return spark.table(SQL)


def name_of(table: Any) -> str:
    """Return what the JVM calls *table*; its catalog keeps for a while what it has loaded under a name."""
    return f"t{table.metadata.table_uuid.hex}"


def by_jvm(spark: SparkSession, table: Any, warehouse: Path) -> DataFrame:
    return as_jvm_table(spark, table, warehouse, name_of(table))


READS: Mapping[str, Callable[[SparkSession, dict[str, str], Any, Path], DataFrame]] = {
    "function": lambda spark, given, table, warehouse: read_table(spark, table),
    "format": lambda spark, given, table, warehouse: spark.read.format("commit_coord").options(**given).load(),
    "Format": lambda spark, given, table, warehouse: spark.read.format("Commit_Coord").options(**given).load(),
    "sql": by_sql,
    "jvm": lambda spark, given, table, warehouse: by_jvm(spark, table, warehouse),
}
BEFORE: Mapping[str, Callable[[DataFrame], Any]] = {
    "nothing": lambda df: None,
    "a query": lambda df: df.collect(),
    "a cache": lambda df: df.cache().count(),
}


def by_function(df: DataFrame, catalog: Any, given: dict[str, str], **options: str) -> None:
    write_table(df, (catalog, "db.t"), "overwrite")


def by_format(df: DataFrame, catalog: Any, given: dict[str, str], **options: str) -> None:
    df.write.format("commit_coord").options(**given, **options).mode("overwrite").save()


WRITES: Mapping[str, Callable[..., None]] = {"function": by_function, "format": by_format}

READ = pytest.mark.parametrize(
    "read", [pytest.param(key, marks=pytest.mark.jvm if key == "jvm" else ()) for key in READS]
)


def refused(match: str = "the commit did not land") -> Any:
    """Expect an error of ours, or Spark's error of a worker that raised it."""
    return pytest.raises(Exception, match=match)


@READ
@pytest.mark.parametrize("before", ["a query", "a cache"])
@pytest.mark.parametrize("write", WRITES)
def test_rows_replace_nothing_that_was_committed_after_they_were_read(
    spark: SparkSession,
    catalog: Any,
    given: dict[str, str],
    table: Any,
    warehouse: Path,
    read: str,
    before: str,
    write: str,
) -> None:
    source = READS[read](spark, given, table, warehouse)
    doubled = source.selectExpr("id * 2 as id")
    BEFORE[before](doubled)
    catalog.load_table("db.t").append(pa.table({"id": [77]}))
    with refused():
        WRITES[write](doubled, catalog, given)
    doubled.unpersist()
    assert [(0,), (1,), (2,), (77,)] == rows(read_table(spark, table.refresh()))
    assert set() == orphans(table)
    assert [] == catalog.locks.locks()


@READ
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("write", WRITES)
def test_rows_that_nobody_has_changed_are_written_back_without_a_declaration(
    spark: SparkSession,
    catalog: Any,
    given: dict[str, str],
    table: Any,
    warehouse: Path,
    read: str,
    before: str,
    write: str,
) -> None:
    doubled = READS[read](spark, given, table, warehouse).selectExpr("id * 2 as id")
    BEFORE[before](doubled)
    WRITES[write](doubled, catalog, given)
    doubled.unpersist()
    assert [(0,), (2,), (4,)] == rows(read_table(spark, table.refresh()))


@pytest.mark.parametrize("read", ["format", "sql"])
@pytest.mark.parametrize("write", WRITES)
def test_rows_that_are_read_when_they_are_written_are_those_of_then(
    spark: SparkSession, catalog: Any, given: dict[str, str], table: Any, warehouse: Path, read: str, write: str
) -> None:
    """And they may be written back again and again."""
    doubled = READS[read](spark, given, table, warehouse).selectExpr("id * 2 as id")
    catalog.load_table("db.t").append(pa.table({"id": [77]}))
    WRITES[write](doubled, catalog, given)
    assert [(0,), (154,), (2,), (4,)] == rows(read_table(spark, table.refresh()))
    for _ in range(2):
        again = spark.table(SQL) if read == "sql" else READS[read](spark, given, table, warehouse)
        again.count()
        WRITES[write](again.selectExpr("id + 1 as id"), catalog, given)
    assert [(156,), (2,), (4,), (6,)] == rows(read_table(spark, table.refresh()))


def test_a_cache_is_as_old_as_its_source_also_when_spark_plans_each_query_anew(
    spark: SparkSession, catalog: Any, given: dict[str, str], table: Any
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        source = spark.read.format("commit_coord").options(**given).load()
        kept = source.filter("id >= 0").cache()
        kept.count()
        catalog.load_table("db.t").append(pa.table({"id": [77]}))
        assert 2 == source.filter("id > 0").count()
        with refused():
            write_table(kept, (catalog, "db.t"), "overwrite")
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    kept.unpersist()
    assert 4 == read_table(spark, table.refresh()).count()


def test_a_plan_shows_what_the_format_reads_and_when(
    spark: SparkSession, catalog: Any, given: dict[str, str], table: Any, warehouse: Path
) -> None:
    at = table.metadata.current_snapshot_id
    part = spark.read.format("commit_coord").options(**given, **{"row-filter": "id = 1"}).load()
    part.createOrReplaceTempView("part")
    inner = spark.sql("select * from range(5) where id in (select id from part)")
    common = spark.sql("with p as (select id from part) select a.id from p a join p b on a.id = b.id")
    for df in (part, spark.range(5).join(part, "id"), inner, common):
        read = reads_of(df, table, "main")
        assert read is not None
        assert (at, parse("id = 1")) == (read.snapshot_id, read.condition)
        assert reads_of(df, table, "other") is None
    old = spark.read.format("commit_coord").options(**given, **{"snapshot-id": str(at)}).load()
    other = write_table(spark.range(1), (catalog, "db.u"), create=True)
    locks = spark.read.format("commit_coord.locks").option("catalog", "test").load()
    for df in (old, READS["function"](spark, given, other, warehouse), locks.selectExpr("1L as id")):
        assert reads_of(df, table, "main") is None
    assert reads_of(part, other, "main") is None


@pytest.mark.jvm
def test_a_plan_shows_what_the_jvm_reads_and_when(
    spark: SparkSession, catalog: Any, table: Any, warehouse: Path
) -> None:
    df = by_jvm(spark, table, warehouse)
    at = table.metadata.current_snapshot_id
    read = reads_of(spark.range(5).join(df, "id"), table, "main")
    assert read is not None
    assert at == read.snapshot_id
    chosen = spark.read.option("versionAsOf", at).format("iceberg").load(f"jvm.db.{name_of(table)}")
    by_version = spark.sql(f"select * from jvm.db.{name_of(table)} version as of {at}")
    other = write_table(spark.range(1), (catalog, "db.u"), create=True)
    for source in (chosen, by_version, by_jvm(spark, other, warehouse)):
        assert reads_of(source, table, "main") is None
    empty = write_table(spark.range(0), (catalog, "db.e"), create=True)
    nothing = by_jvm(spark, empty, warehouse)
    empty.append(pa.table({"id": [77]}))
    read = reads_of(nothing, empty, "main")
    assert read is not None
    assert NO_SNAPSHOT == read.snapshot_id


@pytest.mark.jvm
@pytest.mark.parametrize("write", WRITES)
def test_rows_that_were_read_at_an_unknown_time_replace_nothing_undeclared(
    spark: SparkSession,
    catalog: Any,
    given: dict[str, str],
    table: Any,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: str,
) -> None:
    def another_version(*arguments: Any) -> Any:
        raise Py4JError("Method snapshotId([]) does not exist")

    monkeypatch.setattr("commit_coord.spark.frame_reads._by_java", another_version)
    df = by_jvm(spark, table, warehouse).selectExpr("id * 2 as id")
    for _ in range(2):
        with refused(match="from which snapshot is not known"):
            WRITES[write](df, catalog, given)
    seen = table.metadata.current_snapshot_id
    if write == "function":
        with pytest.raises(StaleRead, match="read_at"):
            write_table(df, (catalog, "db.t"), "overwrite", reads="id >= 0")
        write_table(df, (catalog, "db.t"), "overwrite", read_at=seen)
        with pytest.raises(StaleRead):
            write_table(df, (catalog, "db.t"), "overwrite", read_at=seen)
        write_table(df, (catalog, "db.t"), "overwrite", reads=NOTHING)
    else:
        by_format(df, catalog, given, **{"read-at": str(seen)})
        with refused():
            by_format(df, catalog, given, **{"read-at": str(seen)})
        by_format(df, catalog, given, reads="nothing")
    assert [(0,), (2,), (4,)] == rows(read_table(spark, table.refresh()))
    assert [] == catalog.locks.locks()


def test_an_overwrite_by_the_format_whose_rows_spark_does_not_show_is_refused(
    spark: SparkSession, catalog: Any, given: dict[str, str], table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commit_coord.spark.datasource.plans_being_written", lambda spark, overwrite: [])
    with refused(match="from which snapshot is not known"):
        by_format(spark.range(1), catalog, given)
    assert 3 == read_table(spark, table.refresh()).count()
    by_format(spark.range(1), catalog, given, reads="nothing")
    assert 1 == read_table(spark, table.refresh()).count()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("named", ["reads", "all"])
def test_a_read_that_the_plan_does_not_show_is_declared(
    spark: SparkSession, catalog: Any, given: dict[str, str], table: Any, mode: Any, write: str, named: str
) -> None:
    """By the snapshot that was read, with the rows that were or without."""
    old = table.metadata.current_snapshot_id
    table.append(pa.table({"id": [77]}))
    new = table.metadata.current_snapshot_id

    def run(at: int) -> None:
        if write == "function":
            write_table(spark.range(1), table, mode, read_at=at, reads="id >= 0" if named == "reads" else None)
            return
        options = {"read-at": str(at), **({"reads": "id >= 0"} if named == "reads" else {})}
        spark.range(1).coalesce(1).write.format("commit_coord").options(**given, **options).mode(mode).save()

    for stale in (old, NO_SNAPSHOT):
        with refused():
            run(stale)
    assert 4 == read_table(spark, table.refresh()).count()
    run(new)
    assert (5 if mode == "append" else 1) == read_table(spark, table.refresh()).count()
