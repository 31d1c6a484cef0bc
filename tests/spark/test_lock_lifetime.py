"""How long the locks of a Spark job last: from before its first file to its commit, never longer than its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import commit_coord
from commit_coord.model import LockMode, LockScope, LockState, Resource
from commit_coord.spark import read_table, register, write_table

TABLE = Resource.table(("db", "t"))

DRIVER = """
import json, sys
import commit_coord
from commit_coord.spark import write_table, register
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

properties, way = json.loads(sys.argv[1]), sys.argv[2]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()

@F.udf("long")
def slowly(number):
    import time
    time.sleep(600 if number >= 3 else 0)
    return number

df = spark.range(0, 4, 1, 2).select(slowly("id").alias("id"))
if way == "fast":
    write_table(df, commit_coord.load_catalog("test", **properties).load_table("db.t"), "overwrite")
else:
    register(spark)
    options = {"catalog": "test", **{f"catalog.{key}": value for key, value in properties.items()}}
    df.write.format("commit_coord").options(**options).mode("overwrite").save("db.t")
"""


def eventually(condition: Callable[[], Any], what: str, seconds: float = 90.0) -> None:
    """Return as soon as *condition* holds."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def held(catalog: Any) -> list[Any]:
    """Return the operation locks that are held."""
    return [entry for entry in catalog.locks.locks(scope=LockScope.OPERATION) if entry.state is LockState.ACQUIRED]


def parquet_files(table: Any) -> set[str]:
    """Return what Parquet files stand below *table*, finished or not."""
    return {str(path) for path in Path(table.location().removeprefix("file://")).rglob("*.parquet")}


@pytest.fixture
def source(spark: SparkSession, properties: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """Return a function that writes a DataFrame through the data source."""
    before = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    register(spark)

    def write(df: Any, mode: str, **more: str) -> None:
        given = {"catalog": "test", **{f"catalog.{key}": value for key, value in {**properties, **more}.items()}}
        df.write.format("commit_coord").options(**given).mode(mode).save("db.t")

    yield write
    spark.conf.set("spark.sql.python.filterPushdown.enabled", before or "false")


@pytest.mark.parametrize("way", ["fast", "source"])
def test_a_driver_that_is_killed_leaves_no_lock_and_no_row(
    spark: SparkSession, catalog: Any, properties: dict[str, str], way: str
) -> None:
    """SIGKILL in the middle of an overwrite, with the lock held: the next job waits for nothing."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(properties), way],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    try:
        eventually(lambda: held(catalog) or driver.poll() is not None, "the driver takes its lock")
        assert driver.poll() is None
        (entry,) = held(catalog)
        assert (entry.resource, entry.mode, entry.owner.pid) == (TABLE, LockMode.EXCLUSIVE, driver.pid)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    started = time.monotonic()
    write_table(spark.range(10, 12), table.refresh(), "overwrite")
    assert time.monotonic() - started < catalog.settings.lock_heartbeat_timeout_ms / 1000
    assert sorted(row.id for row in read_table(spark, table.refresh()).collect()) == [10, 11]
    assert len(table.metadata.snapshots) == 3, "the first rows, their deletion, the new rows"
    assert catalog.locks.locks() == []


@pytest.mark.parametrize("way", ["fast", "source"])
def test_an_insert_as_hive_does_it_waits_before_its_first_file(
    spark: SparkSession, catalog: Any, properties: dict[str, str], source: Callable[..., Any], way: str
) -> None:
    """With ``operation-locks=hive`` an append takes its lock like any other statement; by default it takes none."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    before = parquet_files(table)
    asked = {"operation-locks": "hive"}

    def insert() -> None:
        df = spark.range(5, 7).coalesce(1)
        if way == "fast":
            with commit_coord.load_catalog("test", **properties, **asked) as hive:
                write_table(df, hive.load_table("db.t"))
        else:
            source(df, "append", **asked)

    seen: list[set[str]] = []

    def another() -> None:
        with catalog.lock_operation({TABLE: LockMode.EXCLUSIVE}, statement="a long statement"):
            holds.set()
            eventually(lambda: len(catalog.locks.locks(scope=LockScope.OPERATION)) == 2, "the insert waits")
            seen.append(parquet_files(table))

    holds = threading.Event()
    statement = threading.Thread(target=another, daemon=True)  # Spark finds the data source in the main thread alone
    statement.start()
    assert holds.wait(30)
    write_table(spark.range(1, 2), table)
    between = parquet_files(table)
    insert()
    statement.join(60)
    assert seen == [between]
    assert between > before
    assert sorted(row.id for row in read_table(spark, table.refresh()).collect()) == [0, 1, 5, 6]
    assert catalog.locks.locks() == []


def test_spark_calls_abort_when_a_task_fails_and_nothing_stays(
    spark: SparkSession, catalog: Any, source: Callable[..., Any]
) -> None:
    """One task has written its file, the other one fails for good."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    before = parquet_files(table)
    wrong = F.when(F.col("id") < 99_999, F.col("id")).otherwise(F.raise_error(F.lit("broken")))
    with pytest.raises(Exception, match="broken"):
        source(spark.range(0, 100_000, 1, 2).withColumn("id", wrong), "overwrite")
    assert parquet_files(table) == before
    assert catalog.locks.locks() == []
    assert read_table(spark, table.refresh()).count() == 1
