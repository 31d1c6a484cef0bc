"""Overwrites, locks, file sizes, failed attempts, lost replies and repeated requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType, TimeType
from pyspark.errors import SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import commit_coord
from commit_coord.errors import CommitNotApplied, CommitStateUnknown, ConfigError
from commit_coord.interrupts import to_its_end
from commit_coord.model import LockMode, Resource
from commit_coord.spark import compact_table, foreach_batch, read_table, row_files, write, write_table
from commit_coord.spark.files import Target
from commit_coord.spark.jobs import run_jobs
from commit_coord.spark.locks import write_locks
from commit_coord.spark.schema import bare_schema
from commit_coord.spark.tables import iceberg_schema
from tests import limits
from tests.processes import until


def ids(spark: SparkSession, table: Any) -> list[int]:
    """Return the ids in *table*, sorted."""
    return sorted(row.id for row in read_table(spark, table.refresh()).collect())


def parquet_files(table: Any) -> set[str]:
    """Return the Parquet files below *table*."""
    return {str(path) for path in Path(table.location().removeprefix("file://")).rglob("*.parquet")}


def test_overwrites(spark: SparkSession, catalog: Any) -> None:
    """All rows, those of a filter, those of the partitions that the new rows fall in, a null partition among them."""
    k = "cast(if(id % 4 = 3, null, id % 4) as string) k"
    df = spark.range(8).selectExpr("id", k).coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["k"])
    write_table(df.filter("id = 1"), table, "overwrite", overwrite_filter="k = '1'")
    assert ids(spark, table) == [0, 1, 2, 3, 4, 6, 7]
    write_table(spark.range(10, 12).selectExpr("id", "cast(null as string) k"), table, "dynamic")
    assert ids(spark, table) == [0, 1, 2, 4, 6, 10, 11]
    write_table(df.filter("id > 100"), table, "overwrite", overwrite_filter="k = '2'")
    assert ids(spark, table) == [0, 1, 4, 10, 11]
    write_table(df.limit(1), table, "overwrite")
    assert ids(spark, table) == [0]


def test_which_locks(spark: SparkSession, catalog: Any) -> None:
    """A filter that fixes leading identity partitions locks those, anything else the table."""
    table = write_table(
        spark.range(1).selectExpr("id", "1 as month", "2 as day").coalesce(1),
        (catalog, "db.t"),
        create=True,
        partition_by=["month", "day"],
    )
    whole = Resource.table(("db", "t"))

    def locked(mode: Any, text: str, setting: str = "iceberg") -> set[str]:
        from commit_coord.spark.filters import parse

        catalog.settings = replace(catalog.settings, operation_locks=setting, lock_max_partitions=5)
        found = write_locks(table, mode, parse(text)).locks
        assert {mode for _, mode in found} <= {LockMode.EXCLUSIVE}
        return {str(resource) for resource, _ in found}

    assert locked("overwrite", "month = 1") == {"db/t/month=1"}
    assert locked("overwrite", "month = 1 and day = 2 and id > 5") == {"db/t/month=1/day=2"}
    assert locked("overwrite", "day in (1, 2) and month = 3") == {"db/t/month=3/day=1", "db/t/month=3/day=2"}
    assert locked("overwrite", "month = 1 or month = 2") == {"db/t/month=1", "db/t/month=2"}
    assert locked("overwrite", "month = 1 or id = 2") == {str(whole)}
    assert locked("overwrite", "day = 1") == {str(whole)}
    assert locked("dynamic", "") == {str(whole)}
    assert locked("append", "") == set()
    assert locked("append", "", "hive") == {str(whole)}
    assert locked("overwrite", "month = 1", "off") == set()
    assert locked("overwrite", "month = 1 and day in (1, 2, 3, 4, 5, 6)") == {"db/t/month=1"}
    catalog.settings = replace(catalog.settings, operation_locks="iceberg")
    assert write_locks(table, "overwrite", AlwaysTrue()).locks == ((whole, LockMode.EXCLUSIVE),)


def test_two_jobs_on_one_partition_run_one_after_the_other(
    spark: SparkSession, catalog: Any, properties: dict[str, str]
) -> None:
    """Neither fails; a job on another partition does not wait."""
    other = commit_coord.load_catalog("test", **properties)
    df = spark.range(4).selectExpr("id", "cast(id % 2 as int) k").coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["k"])
    lease = other.lock_operation({Resource.table(("db", "t"), "k=1"): LockMode.EXCLUSIVE}, statement="another job")
    errors: list[BaseException] = []

    def job(identifier: int) -> None:
        try:
            mine = catalog.load_table("db.t")
            row = spark.range(identifier, identifier + 1).selectExpr("id", "1 as k").coalesce(1)
            write_table(row, mine, "overwrite", overwrite_filter="k = 1")
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)

    jobs = [threading.Thread(target=job, args=(n,)) for n in (101, 102)]
    for thread in jobs:
        thread.start()
    write_table(df.filter("k = 0"), catalog.load_table("db.t"), "overwrite", overwrite_filter="k = 0")
    assert all(thread.is_alive() for thread in jobs)
    lease.release()
    for thread in jobs:
        thread.join(limits.PATIENCE)
    assert not errors
    assert ids(spark, table) in ([0, 2, 101], [0, 2, 102])
    assert catalog.locks.locks() == []
    other.close()


def test_a_dynamic_overwrite_keeps_its_promise(spark: SparkSession, catalog: Any) -> None:
    """A row outside of the partitions that the filter names is refused and leaves nothing."""
    df = spark.range(4).selectExpr("id", "cast(id % 2 as int) k").coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=["k"])
    before = parquet_files(table)
    with pytest.raises(ConfigError, match="outside of the partitions"):
        write_table(df, table, "dynamic", overwrite_filter="k = 1")
    assert parquet_files(table) == before
    write_table(df.filter("id = 1"), table, "dynamic", overwrite_filter="k = 1")
    assert ids(spark, table) == [0, 1, 2]


def test_the_same_request_is_not_repeated(spark: SparkSession, catalog: Any) -> None:
    """It is answered, without writing a file."""
    table = write_table(spark.range(2), (catalog, "db.t"), create=True, request_id="load 7")
    before = parquet_files(table)
    write_table(spark.range(2), table, request_id="load 7")
    assert ids(spark, table) == [0, 1]
    assert parquet_files(table) == before


def test_a_repeated_request_is_answered_whatever_became_of_the_table(spark: SparkSession, catalog: Any) -> None:
    """It would be refused now, but it has landed."""
    rows = spark.range(2)
    table = write_table(rows, (catalog, "db.t"), create=True, partition_by=["bucket(2, id)"])
    write_table(rows, table, "dynamic", request_id="load 7")
    table.update_spec().remove_field("id_bucket").commit()
    table.update_schema().rename_column("id", "key").commit()
    before = table.refresh().metadata_location
    assert write_table(rows, (catalog, "db.t"), "dynamic", request_id="load 7").metadata_location == before
    with pytest.raises(ConfigError, match="without partitions"):
        write_table(rows, (catalog, "db.t"), "dynamic", request_id="load 8")


@pytest.mark.parametrize("partition_by", [(), ("id",)])
def test_a_struct_with_a_required_field_is_written(spark: SparkSession, catalog: Any, partition_by: Any) -> None:
    """Spark takes what was checked for null as nullable still, and refuses a cast of it to what may not be null."""
    schema = Schema(
        NestedField(1, "id", LongType()),
        NestedField(2, "d", StructType(NestedField(3, "x", LongType(), required=True))),
    )
    table = catalog.create_table("db.t", schema)
    with table.update_spec() as change:
        for name in partition_by:
            change.add_identity(name)
    write_table(spark.sql("SELECT 1L id, named_struct('x', 2L) d UNION ALL SELECT 2L, NULL"), table)
    assert {1: {"x": 2}, 2: None} == {row["id"]: row["d"] for row in table.refresh().scan().to_arrow().to_pylist()}
    with pytest.raises(SparkRuntimeException, match="null in required column d.x"):
        write_table(spark.sql("SELECT 1L id, named_struct('x', CAST(NULL AS LONG)) d"), table)


@pytest.mark.parametrize("kind", ["int", "decimal(9, 2)", "decimal(36, 29)"])
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_row_whose_truncated_value_is_out_of_range_is_refused(
    spark: SparkSession, catalog: Any, kind: str, ansi: str
) -> None:
    """Other engines would not find it."""
    least = {"int": "-2147483648", "decimal(9, 2)": "-9999999.99"}.get(kind, f"-9999999.{29 * '9'}")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        rows = spark.sql(f"SELECT CAST({least} AS {kind}) v UNION ALL SELECT NULL").coalesce(1)
        whole: dict[str, Any] = {"create": True, "partition_by": ["truncate(1000, v)"]}
        with pytest.raises(Exception, match="out of range|OVERFLOW|OUT_OF_RANGE"):
            write_table(rows, (catalog, "db.t"), **whole)
        table = write_table(rows.where("v IS NULL"), (catalog, "db.t"), **whole)
        write_table(rows.selectExpr(f"CAST(-(v + 7) AS {kind}) v"), table)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert 3 == table.refresh().scan().to_arrow().num_rows


@pytest.mark.parametrize("more", ["", ", array(1) l"])
def test_a_void_field_whose_column_was_dropped_is_null(spark: SparkSession, catalog: Any, more: str) -> None:
    """Of format version 1, where a field that is removed stays as void; written by Spark, and through Arrow."""
    rows = spark.sql(f"SELECT 1L k, 2L x{more}")
    table = write_table(rows, (catalog, "db.t"), create=True, partition_by=["x"], properties={"format-version": "1"})
    with table.update_spec() as spec:
        spec.remove_field("x")
    with table.update_schema() as change:
        change.delete_column("x")
    table = write_table(rows.drop("x"), table.refresh())
    assert [1, 1] == table.refresh().scan().to_arrow()["k"].to_pylist()


def test_columns_whose_names_differ_by_case_alone(spark: SparkSession, catalog: Any) -> None:
    """They are partitioned by and chosen, in a session that folds case."""
    inner = StructType(NestedField(3, "X", LongType()), NestedField(4, "x", LongType()))
    schema = Schema(NestedField(1, "A", LongType()), NestedField(2, "a", LongType()), NestedField(5, "s", inner))
    table = catalog.create_table("db.t", schema)
    with table.update_spec() as spec:
        spec.add_field("s.x", "bucket[4]", "b")
        spec.add_field("s.X", "identity", "c")
    write_table(spark.createDataFrame([(1, 2, (3, 4)), (5, 6, None)], bare_schema(table.schema())), table)
    assert {3, None} == {task.file.partition[1] for task in table.refresh().scan().plan_files()}
    assert [(2, 1), (6, 5)] == sorted(read_table(spark, table, columns=["a", "A"]).collect())
    assert [(1,)] == read_table(spark, table, columns=["A"], row_filter="a = 2").collect()


@pytest.mark.parametrize("text", ["12:00:00+05:00", "12:00:00.123456789", "12:00:00Z"])
def test_a_time_of_day_that_says_more_than_a_column_holds_is_refused(
    spark: SparkSession, catalog: Any, text: str
) -> None:
    table = catalog.create_table("db.t", Schema(NestedField(1, "t", TimeType())))
    with pytest.raises(Exception, match="does not fit in its column"):
        write_table(spark.sql(f"SELECT '{text}' t"), table)
    write_table(spark.sql("SELECT '12:00:00.123456000' t"), table)
    assert [("12:00:00.123456",)] == read_table(spark, table).collect()


@pytest.mark.parametrize("error, kept", [(CommitNotApplied("no"), False), (CommitStateUnknown("who knows"), True)])
def test_files_are_deleted_on_proven_failure_only(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, kept: bool
) -> None:
    """What may have landed stays."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    before = parquet_files(table)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(type(table), "commit_files", fail)
    with pytest.raises(type(error)):
        write_table(spark.range(5), table)
    assert (parquet_files(table) != before) is kept


@pytest.mark.parametrize("column", ["id", "array(id) as ids"], ids=["spark's parquet", "arrow"])
def test_repeated_task_attempts_leave_no_rows(spark: SparkSession, catalog: Any, column: str) -> None:
    """Each task fails once after its last row; every row is there once, and no file but the committed ones."""
    df = spark.range(0, 1000, numPartitions=1).mapInArrow(_fails_at_first, "id long").selectExpr(column)
    table = write_table(df, (catalog, "db.t"), create=True)
    assert read_table(spark, table).count() == 1000
    files = {task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()}
    assert parquet_files(table) == files


def _fails_at_first(batches: Any) -> Any:
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


def test_a_failed_job_leaves_nothing(spark: SparkSession, catalog: Any) -> None:
    """Its folder is deleted, whatever its tasks had written."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    before = parquet_files(table)
    wrong = F.when(F.col("id") < 99_999, F.col("id")).otherwise(F.raise_error(F.lit("broken")))
    with pytest.raises(Exception, match="broken"):
        write_table(spark.range(100_000).withColumn("id", wrong), table)
    assert parquet_files(table) == before


class _LateFiles(PyArrowFileIO):
    """Makes a new file half a second after the file *after* is there."""

    def new_output(self, location: str) -> Any:
        until(Path(self.properties["after"]).exists, "the failure of the job")
        time.sleep(0.5)  # the subject: a task that goes on when its job has failed
        return super().new_output(location)


def _no_task_runs(spark: SparkSession) -> bool:
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    return not any(each.numRunningTasks() for each in tracker.getExecutorInfos())


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned threads", "other threads"])
def test_a_failed_job_leaves_no_file_of_a_task_that_goes_on(
    spark: SparkSession, catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: bool
) -> None:
    """Spark does not wait for the other tasks of a job that fails: one of them writes its file a moment later."""
    if not pinned:
        monkeypatch.setattr("commit_coord.spark.jobs.ClientServer", threading.Event)
    table = catalog.create_table("db.t", Schema(NestedField(1, "at", TimeType())))
    failed, write_files = tmp_path / "failed", row_files.write_files
    target = replace(Target.of(table), io=_LateFiles({"after": str(failed)}))

    def noted(*arguments: Any) -> Any:
        try:
            return write_files(*arguments)
        finally:
            failed.touch()

    monkeypatch.setattr(Target, "of", lambda _: target)
    monkeypatch.setattr(write, "write_files", noted)
    df = spark.range(0, 2, numPartitions=2).selectExpr("if(id = 0, 'no time', '12:30') as at")
    with pytest.raises(Exception, match="does not fit"):
        write_table(df, table)
    until(lambda: _no_task_runs(spark), "the end of all tasks")
    assert parquet_files(table) == set()


@pytest.mark.parametrize(
    "raised, column",
    [
        pytest.param(KeyboardInterrupt, "id", id="Ctrl-C"),
        pytest.param(KeyboardInterrupt, "array(id) as ids", id="Ctrl-C, arrow"),
        pytest.param(TimeoutError, "id", id="time limit"),
        pytest.param(TimeoutError, "array(id) as ids", id="time limit, arrow"),
        pytest.param(SystemExit, "id", id="exit"),
        pytest.param(SystemExit, "array(id) as ids", id="exit, arrow"),
    ],
)
def test_an_interrupted_job_leaves_no_file_and_its_session_gives_right_answers(
    spark: SparkSession, catalog: Any, tmp_path: Path, raised: type[BaseException], column: str
) -> None:
    """Of a signal handler, in the middle of a call to the JVM: the job would go on, and write its files."""
    table = write_table(spark.range(0).selectExpr(column), (catalog, "db.t"), create=True)
    began, ended = tmp_path / "began", tmp_path / "ended"

    def slow(batches: Any) -> Any:
        for batch in batches:
            yield batch
            began.touch()
            time.sleep(1)  # the subject: a job that goes on while its driver is interrupted
        ended.touch()

    def interrupt(*_: Any) -> None:
        raise raised("a signal")

    def send() -> None:
        until(began.exists, "the first rows")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)  # which it wakes up

    rows = spark.range(0, 50_000, numPartitions=2).mapInArrow(slow, "id long").selectExpr(column)
    before, sender = signal.signal(signal.SIGALRM, interrupt), threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(BaseException):  # noqa: B017, PT011 - Py4J makes errors of its own of some
            write_table(rows, table)
    finally:
        sender.join()
        signal.signal(signal.SIGALRM, before)
    for name in "abc":
        spark.conf.set(f"app.{name}", name)
    assert ["a", "b", "c"] == [spark.conf.get(f"app.{name}") for name in "abc"]
    until(lambda: _no_task_runs(spark), "the end of all tasks")
    assert parquet_files(table) == set()
    assert not ended.exists()
    write_table(spark.range(3).selectExpr(column), table)
    assert read_table(spark, table.refresh()).count() == 3


def test_an_interrupt_right_after_a_job_leaves_no_file(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        to_its_end(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr("commit_coord.spark.jobs.to_its_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_table(spark.range(3), table)
    assert parquet_files(table) == set()


def test_an_interrupted_job_that_can_not_be_cancelled_leaves_no_file(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it any more when it ends."""
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    raised, write_files = threading.Event(), row_files.write_files

    def interrupt(*_: Any) -> None:
        raise TimeoutError

    def late(*arguments: Any) -> Any:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        assert raised.wait(limits.PATIENCE)
        return write_files(*arguments)

    monkeypatch.setattr("commit_coord.spark.jobs.ClientServer", threading.Event)  # as where threads are not pinned
    monkeypatch.setattr("commit_coord.spark.jobs._WAIT_S", 0.1)
    monkeypatch.setattr(write, "write_files", late)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(TimeoutError):
            write_table(spark.range(3), table)
    finally:
        signal.signal(signal.SIGALRM, before)
        raised.set()
    until(lambda: "uninterrupted" not in [each.name for each in threading.enumerate()], "the end of the job")
    assert parquet_files(table) == set()


def test_a_job_whose_thread_can_not_begin_is_an_error(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise OSError("too many open files")

    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    monkeypatch.setattr("commit_coord.spark.jobs.inheritable_thread_target", lambda _: lambda _: fails)
    with pytest.raises(OSError, match="too many open files"):
        write_table(spark.range(3), table)


def test_a_job_of_a_stream_runs_in_the_thread_that_spark_interrupts(
    spark: SparkSession, catalog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is stopped while its batch is planned has no job that Spark could cancel."""
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    spark.range(3).write.json(f"{tmp_path}/rows")
    threads, write_files = [], row_files.write_files

    def noted(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return write_files(*arguments)

    def batch(rows: DataFrame, _: int) -> None:
        threads.append(threading.get_ident())
        write_table(rows, table)

    monkeypatch.setattr(write, "write_files", noted)
    stream = spark.readStream.schema("id long").json(f"{tmp_path}/rows").writeStream
    stream.foreachBatch(batch).trigger(availableNow=True).start().awaitTermination()
    first, second = threads
    assert first == second


def test_a_job_runs_also_where_threads_are_not_pinned(tmp_path: Path) -> None:
    program = f"""if True:
        from pyspark.sql import SparkSession
        import commit_coord
        from commit_coord.spark import compact_table, read_table, write_table

        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        catalog = commit_coord.load_catalog("c", uri="coord+sqlite:///{tmp_path}/c.db", warehouse="file://{tmp_path}")
        catalog.create_namespace("db")
        for _ in range(2):
            table = write_table(spark.range(3), (catalog, "db.t"), create=True)
        compact_table(spark, table)
        assert read_table(spark, table.refresh()).count() == 6
    """
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYSPARK_PIN_THREAD": "false"})


def test_a_stopped_session_is_named(spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.range(3)
    table = write_table(rows, (catalog, "db.t"), create=True)
    calls: list[Callable[[], object]] = [
        lambda: write_table(rows, table),
        lambda: read_table(spark, table),
        lambda: compact_table(spark, table),
    ]
    with monkeypatch.context() as stopped:
        stopped.setattr(spark.sparkContext, "_jsc", None)
        for call in calls:
            with pytest.raises(ConfigError, match="session has been stopped"):
                call()
    assert read_table(spark, table.refresh()).count() == 3


@pytest.mark.parametrize("column, times", [("id", 10), ("array(id) as ids", 4)])
def test_whenever_a_job_is_interrupted_it_leaves_no_file(
    spark: SparkSession, catalog: Any, monkeypatch: pytest.MonkeyPatch, column: str, times: int
) -> None:
    """While Spark plans, runs, or commits it, or right before and after."""

    class Interrupted(Exception):
        """The error of a signal handler."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    def timed(*arguments: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        began = time.monotonic()
        try:
            return run_jobs(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            took_s.append(time.monotonic() - began)

    took_s: list[float] = []
    delay_s = 0.0  # which sets no timer
    rows = spark.range(0, 200, numPartitions=2).selectExpr(column)
    monkeypatch.setattr(write, "run_jobs", timed)
    table = write_table(rows, (catalog, "db.t"), create=True)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        write_table(rows, table)
        there, whole_s, interrupted = parquet_files(table), took_s[-1], 0
        for part in range(1, times + 1):
            delay_s = whole_s * part / times
            try:
                write_table(rows, table)
            except Interrupted:
                interrupted += 1
                until(lambda: _no_task_runs(spark), "the end of all tasks")
                assert parquet_files(table) == there, delay_s
            there = parquet_files(table)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert read_table(spark, table.refresh()).count() == 200 * (2 + times - interrupted)


def test_target_file_size_and_codec(spark: SparkSession, catalog: Any) -> None:
    """Files end near the target once the table shows how wide its rows are."""
    import pyarrow.parquet as pq

    df = spark.range(200_000).select("id", F.sha2(F.col("id").cast("string"), 256).alias("s")).coalesce(1)
    table = write_table(
        df,
        (catalog, "db.t"),
        create=True,
        properties={
            "write.target-file-size-bytes": "2000000",
            "write.parquet.compression-codec": "gzip",
            "write.metadata.metrics.default": "counts",
            "write.metadata.metrics.column.id": "full",
        },
    )
    write_table(df, table, "overwrite")
    files = [task.file for task in table.scan().plan_files()]
    assert 4 <= len(files) <= 8
    assert max(file.file_size_in_bytes for file in files) < 3_000_000
    assert set(files[0].lower_bounds) == {1}
    footer = pq.read_metadata(files[0].file_path.removeprefix("file://"))
    assert footer.row_group(0).column(0).compression == "GZIP"
    assert footer.num_rows == files[0].record_count


@pytest.fixture
def stream_input(spark: SparkSession, tmp_path: Path) -> Path:
    """A folder of Parquet files that a stream reads."""
    folder = tmp_path / "in"
    spark.range(3).coalesce(1).write.parquet(str(folder))
    return folder


def test_a_replayed_batch_lands_once(spark: SparkSession, catalog: Any, stream_input: Path, tmp_path: Path) -> None:
    """A stream that fails between its commit and Spark's own note repeats the batch."""
    sink = foreach_batch((catalog, "db.t"), create=True)
    calls: list[int] = []

    def write(df: Any, batch: int) -> None:
        sink(df, batch)
        calls.append(batch)
        if len(calls) == 1:
            raise RuntimeError("died after the commit")

    def run() -> None:
        stream = spark.readStream.schema("id long").parquet(str(stream_input))
        query = (
            stream.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="died after the commit"):
        run()
    run()
    assert calls == [0, 0]
    table = catalog.load_table("db.t")
    assert ids(spark, table) == [0, 1, 2]
    prefix = "commit-coord.stream."
    marks = {key.removeprefix(prefix): value for key, value in table.properties.items() if key.startswith(prefix)}
    ((writer, mark), (_, same)) = sorted(marks.items(), key=lambda one: one[0].startswith("of-branch."))
    assert mark == same
    planned = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[1])["batchTimestampMs"]
    assert mark == f"0 {writer} {planned}", "its number, its query, and when"
    spark.range(5, 7).coalesce(1).write.mode("append").parquet(str(stream_input))
    run()
    assert ids(spark, table) == [0, 1, 2, 5, 6]


def test_a_foreign_catalog_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its commits would not be coordinated, and nobody would notice."""
    from pyiceberg.catalog.sql import SqlCatalog

    stock = SqlCatalog("x", uri=f"sqlite:///{tmp_path}/x.db", warehouse=f"file://{tmp_path}/x")
    stock.create_namespace("db")
    stock.create_table("db.t", schema=iceberg_schema(spark.range(1).schema))
    with pytest.raises(ConfigError, match="without coordination"):
        write_table(spark.range(1), (stock, "db.t"))
