"""How long the locks of a Spark job last: from before its first file to its commit, never longer than its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import commit_coord
from commit_coord.model import LockMode, LockScope, LockState, Resource
from commit_coord.spark import read_table, register, write_table
from commit_coord.testing.fleet import holds_within
from tests import limits

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
    import threading
    threading.Event().wait(600 if number >= 3 else 0)
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
    assert holds_within(condition, seconds), what


def held(catalog: Any) -> list[Any]:
    """Return the operation locks that are held."""
    return [entry for entry in catalog.locks.locks(scope=LockScope.OPERATION) if entry.state is LockState.ACQUIRED]


def parquet_files(table: Any) -> set[str]:
    """Return the Parquet files below *table*, finished or not."""
    return {str(path) for path in Path(table.location().removeprefix("file://")).rglob("*.parquet")}


@pytest.fixture
def source(spark: SparkSession, properties: dict[str, str]) -> Callable[..., Any]:
    """Return a function that writes a DataFrame through the data source."""
    register(spark)

    def write(df: Any, mode: str, **more: str) -> None:
        given = {"catalog": "test", **{f"catalog.{key}": value for key, value in {**properties, **more}.items()}}
        df.write.format("commit_coord").options(**given).mode(mode).save("db.t")

    return write


@pytest.mark.parametrize("way", ["fast", pytest.param("source", marks=pytest.mark.slow)])
def test_a_driver_that_is_killed_leaves_no_lock_and_no_row(
    spark: SparkSession, catalog: Any, properties: dict[str, str], way: str
) -> None:
    """SIGKILL in the middle of an overwrite, with the lock held: the next job waits for nothing."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    lasting = {**properties, "lock.heartbeat-timeout-ms": str(3 * int(limits.PATIENCE) * 1000)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(lasting), way],
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
    assert time.monotonic() - started < limits.PATIENCE
    assert sorted(row.id for row in read_table(spark, table.refresh()).collect()) == [10, 11]
    assert len(table.metadata.snapshots) == 3, "the first rows, their deletion, the new rows"
    assert catalog.locks.locks() == []


@pytest.mark.parametrize("way", ["fast", pytest.param("source", marks=pytest.mark.slow)])
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
    assert holds.wait(limits.PATIENCE)
    write_table(spark.range(1, 2), table)
    between = parquet_files(table)
    insert()
    statement.join(limits.PATIENCE)
    assert seen == [between]
    assert between > before
    assert sorted(row.id for row in read_table(spark, table.refresh()).collect()) == [0, 1, 5, 6]
    assert catalog.locks.locks() == []


def test_spark_calls_abort_when_a_task_fails_and_at_most_a_worker_that_ends_late_leaves_a_file(
    spark: SparkSession, catalog: Any, source: Callable[..., Any], tmp_path: Path
) -> None:
    """One task has written its file, the other one fails for good.

    1. Rows fail to come.   2. Spark gives the job up, and the folder of the job is deleted.   3. The Python worker that
    waited for the rows only sees that no more come: it closes its file. Spark does not wait for this worker. Such a
    file is an orphan, and every other file is gone.
    """
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    before = parquet_files(table)
    folder = table.location().removeprefix("file://")
    seen = tmp_path / "whole"

    def one_is_whole() -> bool:
        new = set(Path(folder).rglob("*.parquet")) - known
        whole = [str(file) for file in new if file.read_bytes().endswith(b"PAR1")]
        if whole:
            seen.write_text(whole[0])
        return bool(whole)

    @F.udf("long")
    def fails_last(number):  # type: ignore[no-untyped-def]  # Spark would make much of the hints
        if number < 99_999:
            return number
        holds_within(one_is_whole, 600)
        raise ValueError("broken")

    known = set(Path(folder).rglob("*.parquet"))
    with pytest.raises(Exception, match="broken"):
        source(spark.range(0, 100_000, 1, 2).withColumn("id", fails_last("id")), "overwrite")
    left = parquet_files(table) - before
    assert seen.read_text() not in left
    assert len(left) <= 1
    late = {
        file.path.removeprefix("file://") for file in catalog.find_orphans("db.t", older_than_ms=0, force=True).files
    }
    assert left <= late
    assert not before & late
    assert catalog.locks.locks() == []
    assert read_table(spark, table.refresh()).count() == 1


@pytest.mark.parametrize("way", [pytest.param("fast", marks=pytest.mark.slow), "source"])
def test_a_job_that_is_cancelled_leaves_no_lock_and_no_file(
    spark: SparkSession, catalog: Any, source: Callable[..., Any], way: str
) -> None:
    """``cancelJobGroup`` in the middle of an overwrite: the locks are free when the call has failed."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    before = parquet_files(table)
    context = spark.sparkContext

    @F.udf("long")
    def never(number):  # type: ignore[no-untyped-def]  # Spark would make much of the hints
        threading.Event().wait(600)
        return number

    def cancel() -> None:
        tracker = context.statusTracker()

        def runs() -> bool:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            return bool(held(catalog)) and any(stage is not None and stage.numActiveTasks for stage in stages)

        eventually(runs, "the job runs, with its lock held")
        context.cancelJobGroup("doomed")

    context.setJobGroup("doomed", "a job that is cancelled", interruptOnCancel=True)
    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    df = spark.range(0, 4, 1, 2).select(never("id").alias("id"))
    try:
        with pytest.raises(Exception, match="(?i)cancel"):
            if way == "fast":
                write_table(df, table, "overwrite")
            else:
                source(df, "overwrite")
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        canceller.join()
    eventually(
        lambda: catalog.locks.locks() == [],
        "no lock is left",
        seconds=catalog.settings.lock_heartbeat_timeout_ms / 1000,
    )
    assert parquet_files(table) == before
    assert read_table(spark, table.refresh()).count() == 1


EXECUTOR = DRIVER.replace(
    'master("local[2]")', 'master("local-cluster[1,1,512]").config("spark.executor.memory", "512m")'
).replace(
    "threading.Event().wait(600 if number >= 3 else 0)",
    "from commit_coord.testing.fleet import holds_within\n"
    "    import os\n    assert holds_within(lambda: number < 3 or os.path.exists(GO_ON), 600)",
)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fast", pytest.param("source", marks=pytest.mark.slow)])
def test_an_executor_that_is_lost_leaves_no_lock(
    spark: SparkSession, catalog: Any, properties: dict[str, str], tmp_path: Path, way: str
) -> None:
    """SIGKILL of the executor's JVM in the middle of a task: Spark starts another one, and the job ends well."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    go_on = tmp_path / "go-on"
    log = tmp_path / "driver.log"
    with log.open("w") as output:
        driver = subprocess.Popen(
            [sys.executable, "-c", EXECUTOR.replace("GO_ON", repr(str(go_on))), json.dumps(properties), way],
            start_new_session=True,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    try:
        eventually(lambda: held(catalog) or driver.poll() is not None, "the driver takes its lock")
        eventually(lambda: (executors(driver.pid) and parquet_files(table)) or driver.poll() is not None, "a task")
        assert driver.poll() is None, log.read_text()
        (lost,) = executors(driver.pid)
        os.kill(lost, signal.SIGKILL)
        eventually(lambda: set(executors(driver.pid)) - {lost}, "another executor")
        assert len(held(catalog)) == 1
        go_on.touch()
        assert driver.wait(limits.PATIENCE) == 0, log.read_text()
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert catalog.locks.locks() == []
    assert sorted(row.id for row in read_table(spark, table.refresh()).collect()) == [0, 1, 2, 3]


def executors(driver: int) -> list[int]:
    """Return the processes of *driver*'s executors."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_text()
                if "CoarseGrainedExecutorBackend" in line and os.getpgid(int(folder.name)) == driver:
                    found.append(int(folder.name))
            except OSError:
                continue  # it has just ended
    return found
