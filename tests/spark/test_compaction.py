"""Compaction as a Spark job, from Python and as a statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from commit_coord import sql
from commit_coord.errors import CommitLockFailed
from commit_coord.model import LockScope, Resource
from commit_coord.spark import compact_table, read_table, rewriter, write_table
from commit_coord.table import CoordinatedTable
from commit_coord.table.compaction import FileGroup
from tests.catalog.kit import orphans
from tests.spark.conftest import rows


def small_files(spark: SparkSession, catalog: Any, *partition_by: str, **columns: Any) -> Any:
    """Return a table of three writes of four rows."""
    table = None
    for number in range(3):
        df = spark.range(number * 4, number * 4 + 4, 1, 1).withColumn("k", F.col("id") % 2).withColumns(columns)
        table = write_table(df, (catalog, "db.t"), create=True, partition_by=partition_by)
    return table


@pytest.mark.parametrize("partition_by", [("k",), ("bucket(3, id)", "k"), ()])
def test_a_table_is_compacted_by_sparks_tasks(spark: SparkSession, catalog: Any, partition_by: tuple[str, ...]) -> None:
    """One file for each partition of several, the same rows, one REPLACE snapshot, and no file that nobody has."""
    table = small_files(
        spark,
        catalog,
        *partition_by,
        d=F.expr("cast(1.5 as decimal(5, 2))"),
        s=F.struct(F.array("id").alias("a")),
        n=F.expr("cast(null as string)"),
    )
    before, files = rows(read_table(spark, table)), len(list(table.scan().plan_files()))
    after = len({tuple(task.file.partition) for task in table.scan().plan_files()})
    snapshots = len(table.metadata.snapshots)
    done = compact_table(spark, table)
    assert files - after == done.before - done.after
    assert before == rows(read_table(spark, table))
    assert after == len(list(table.scan().plan_files()))
    assert snapshots + 1 == len(table.metadata.snapshots)
    assert "replace" == table.current_snapshot().summary.operation.value
    assert set() == orphans(table)
    assert [] == catalog.locks.locks()


def test_types_that_only_arrow_carries_are_compacted(spark: SparkSession, catalog: Any) -> None:
    """A table with a time and a UUID, which Spark has not."""
    import datetime as dt
    import uuid

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, TimeType, UUIDType

    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "t", TimeType()), NestedField(3, "u", UUIDType()))
    table = catalog.create_table("db.t", schema)
    arrow = pa.schema([("id", pa.int64()), ("t", pa.time64("us")), ("u", pa.uuid())])
    for number in range(2):
        values = [[number], [dt.time(1, 2, 3)], [uuid.UUID(int=number).bytes]]
        table.append(pa.table([pa.array(v, f.type) for v, f in zip(values, arrow, strict=True)], schema=arrow))
    before = sorted(map(repr, table.scan().to_arrow().to_pylist()))
    assert 2 == compact_table(spark, table).before
    assert before == sorted(map(repr, table.refresh().scan().to_arrow().to_pylist()))


def test_concatenate_is_sparks_work_where_it_is_configured(spark: SparkSession, catalog: Any) -> None:
    """Its locks are held while Spark works; when they are lost, its files go and nothing is published."""
    table = small_files(spark, catalog, "k")
    work, seen, broken = rewriter(spark), [], False

    def watched(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
        new = work(table, groups)
        seen.extend(sorted(map(str, (entry.resource for entry in catalog.locks.locks(scope=LockScope.OPERATION)))))
        if broken:
            assert catalog.unlock(resource=Resource.table(("db", "t"), "k=1"))
        return new

    statement = "ALTER TABLE t PARTITION (k=1) CONCATENATE"
    broken = True
    with pytest.raises(CommitLockFailed):
        sql.run(statement, catalog, database="db", rewrite=watched)
    assert table.metadata_location == catalog.load_table("db.t").metadata_location
    assert set() == orphans(table)
    broken = False
    assert "3 files of db.t are now 1" == str(sql.run(statement, catalog, database="db", rewrite=watched))
    assert ["db/t", "db/t/k=1"] * 2 == seen
    assert list(range(12)) == sorted(row.id for row in read_table(spark, catalog.load_table("db.t")).collect())


def test_what_is_too_much_for_one_file_becomes_several(spark: SparkSession, catalog: Any) -> None:
    """Each task writes one file of the target size, so a large partition is the work of many."""
    table = small_files(spark, catalog)
    size = max(task.file.file_size_in_bytes for task in table.scan().plan_files())
    with table.transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": str(size * 2 + 1)})
    done = compact_table(spark, table)
    assert (3, 2) == (done.before, done.after)
    assert list(range(12)) == sorted(row.id for row in read_table(spark, table).collect())
