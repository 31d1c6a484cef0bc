"""``format("commit_coord")``: batch and stream, and what abort may delete."""

from __future__ import annotations

import json
import socket
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import commit_coord
from commit_coord.errors import CommitLockFailed, LockError, LockTimeout
from commit_coord.model import LockMode, Resource
from commit_coord.spark import datasource as ds
from commit_coord.spark import read_table, register, write_table
from commit_coord.spark.files import Target
from commit_coord.spark.holder import Address, DriverService, PlanAnswer
from tests import limits


@pytest.fixture
def options(spark: SparkSession, properties: dict[str, str]) -> dict[str, str]:
    """The options that every worker needs to find the catalog."""
    register(spark)
    return {"catalog": "test", **{f"catalog.{key}": value for key, value in properties.items()}}


def test_batch_write_and_read(spark: SparkSession, catalog: Any, options: dict[str, str]) -> None:
    """Append, static and dynamic overwrite, filters, partitions by every kind of value, arrays."""
    df = spark.range(20).select(
        "id", (F.col("id") % 2).cast("string").alias("k"), F.array("id").alias("odd name.x"), F.lit(1.5).alias("d")
    )
    table = write_table(df.limit(0), (catalog, "db.t"), create=True, partition_by=["k", "bucket(2, id)"])
    writer = df.coalesce(2).write.format("commit_coord").options(**options)
    writer.mode("append").save("db.t")
    read = spark.read.format("commit_coord").options(**options).load("db.t")
    assert sorted(map(repr, df.collect())) == sorted(map(repr, read.collect()))
    assert sorted(r.id for r in read.filter("k = '1' and id > 4 and id < 8 and d > 0").collect()) == [5, 7]
    keep = df.filter("id = 1").write.format("commit_coord").options(**options).mode("overwrite")
    keep.option("overwrite-filter", "k = '1'").save("db.t")
    assert read_table(spark, table.refresh()).count() == 11
    keep.option("overwrite-filter", "").option("overwrite-mode", "dynamic").save("db.t")
    assert read_table(spark, table.refresh()).count() == 11
    assert catalog.locks.locks() == []


def test_a_filter_of_one_query_does_not_reach_another(
    spark: SparkSession, catalog: Any, options: dict[str, str]
) -> None:
    """Spark asks for one plan for all uses of a DataFrame, or of a table of its SQL in one query."""
    table = write_table(spark.createDataFrame([(1,), (2,)], "id long"), (catalog, "db.t"), create=True)
    write_table(spark.createDataFrame([(3,)], "id long"), table)
    read = spark.read.format("commit_coord").options(**options).load("db.t")
    assert [3] == [row.id for row in read.filter("id > 2").collect()]
    assert 3 == read.count()
    both = read.filter("id > 2").alias("l").crossJoin(read.filter("id < 2").alias("r"))
    assert [(3, 1)] == [tuple(row) for row in both.collect()]
    assert 4 == read.union(read.filter("id > 2")).count()


def test_a_misfit_and_a_wrong_option_are_refused(spark: SparkSession, catalog: Any, options: dict[str, str]) -> None:
    """Before a row is written, with the column's or the key's name."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    with pytest.raises(Exception, match="extra is not in the table"):
        spark.range(1).withColumn("extra", F.lit(1)).write.format("commit_coord").options(**options).mode(
            "append"
        ).save("db.t")
    with pytest.raises(Exception, match=r"unknown option.*snapshotid"):
        spark.read.format("commit_coord").options(**options, snapshotid=1).load("db.t")
    assert read_table(spark, table.refresh()).count() == 1


def test_an_overwrite_waits_for_the_locks_of_another_job(
    spark: SparkSession, catalog: Any, options: dict[str, str]
) -> None:
    """The driver holds them for the job; when they are not to be had, no row is written."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    writer = spark.range(5).coalesce(1).write.format("commit_coord").options(**options).mode("overwrite")
    compaction = catalog.lock_operation(
        {Resource.table(("db", "t")): LockMode.EXCLUSIVE}, statement="nightly compaction"
    )
    with compaction, pytest.raises(Exception, match="nightly compaction"):
        writer.option("catalog.lock.acquire-timeout-ms", "500").save("db.t")
    assert read_table(spark, table.refresh()).count() == 1
    writer.option("catalog.lock.acquire-timeout-ms", "60000").save("db.t")
    assert read_table(spark, table.refresh()).count() == 5
    assert catalog.locks.locks() == []


def test_the_holder_keeps_one_lease_a_claim(
    spark: SparkSession, catalog: Any, options: dict[str, str], properties: dict[str, str]
) -> None:
    """Asking twice is answered once; a release frees; errors travel."""
    del options
    assert ds._holder is not None
    address = ds._holder.address
    locks = {Resource.table(("db", "t")): LockMode.EXCLUSIVE}
    address.acquire("c", "test", properties, locks, "one")
    address.acquire("c", "test", properties, locks, "again")
    assert len(catalog.locks.locks()) == 1
    with pytest.raises(LockTimeout):
        address.acquire("d", "test", properties | {"lock.acquire-timeout-ms": "200"}, locks, "two")
    address.release("c")
    assert catalog.locks.locks() == []
    address.release("c")
    with pytest.raises(LockError):
        Address("/nowhere/locks", b"k").acquire("c", "test", properties, locks, "x")


def test_what_was_planned_for_a_worker_that_is_gone_is_undone() -> None:
    """Nobody else would ever release its locks."""
    gone, undone = threading.Event(), threading.Event()

    def planner(*_: Any) -> PlanAnswer:
        assert gone.wait(limits.PATIENCE)
        return PlanAnswer(None, undone.set)

    holder = DriverService(lambda: False, planner)
    try:
        with Client(holder.address.path, "AF_UNIX", authkey=holder.address.key) as worker:
            worker.send(("plan", "writer", {}, {}, ()))
        gone.set()
        assert undone.wait(limits.PATIENCE)
    finally:
        holder.close()


def test_a_holder_that_is_closed_leaves_nothing() -> None:
    holder = DriverService(lambda: True, lambda *_: PlanAnswer(None))
    holder.close()
    assert not holder._thread.is_alive()
    assert not Path(holder.address.path).parent.exists()
    holder.close()


def test_a_listener_that_can_not_accept_says_why_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When the process has no file descriptor left, say."""
    failing = iter([OSError(24, "Too many open files")] * 3)

    class Full(Listener):
        def accept(self) -> Any:
            for error in failing:
                raise error
            return super().accept()

    monkeypatch.setattr("commit_coord.spark.holder.Listener", Full)
    monkeypatch.setattr("commit_coord.spark.holder._PAUSE_S", 0)
    holder = DriverService(lambda: False, lambda *_: PlanAnswer("planned"))
    try:
        assert "planned" == holder.address.plan("schema", {}, {})
    finally:
        holder.close()
    reported = [record.getMessage() for record in caplog.records if record.name == "commit_coord.spark.holder"]
    assert ["the lock holder could not accept a connection: OSError: [Errno 24] Too many open files"] == reported


def test_a_second_context_closes_the_holder_of_the_first(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = DriverService(lambda: True, lambda *_: PlanAnswer(None))
    monkeypatch.setattr(ds, "_holder", stopped)
    register(spark)
    assert ds._holder is not stopped
    assert not stopped._thread.is_alive()
    assert not Path(stopped.address.path).parent.exists()
    assert ds._holder is not None
    ds._holder.close()


def test_a_holder_outlives_a_worker_that_ends_before_it_is_known() -> None:
    holder = DriverService(lambda: False, lambda *_: PlanAnswer("planned"))
    try:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as gone:
                gone.connect(holder.address.path)
        assert "planned" == holder.address.plan("schema", {}, {})
    finally:
        holder.close()


class NotPortable(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


@pytest.mark.parametrize(
    "raised, seen",
    [
        (NoSuchTableError("no db.t"), (NoSuchTableError, "no db.t")),
        (NotPortable("a", "b"), (RuntimeError, "NotPortable: a b")),
    ],
)
def test_an_error_of_the_driver_reaches_the_worker(raised: Exception, seen: tuple[type[Exception], str]) -> None:
    def planner(*_: Any) -> PlanAnswer:
        raise raised

    holder = DriverService(lambda: False, planner)
    try:
        with pytest.raises(seen[0], match=seen[1]):
            holder.address.plan("schema", {}, {})
    finally:
        holder.close()


def test_a_job_ends_in_an_outage_of_the_lock_service_as_a_commit_does(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    """In the driver and in the holder of a data source's locks: nothing was changed."""
    del options
    place = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    plain = SqlCatalog("test", **place)
    plain.create_namespace("db")
    plain.create_table(("db", "t"), spark.range(1).toArrow().schema)
    away = {"lock-impl": "zookeeper", "lock.uri": "127.0.0.1:1", "lock.acquire-timeout-ms": "500"}
    properties = {"py-catalog-impl": "commit_coord.catalog.CoordinatedSqlCatalog", **place, **away}
    catalog = commit_coord.load_catalog("test", **properties)
    assert ds._holder is not None
    with pytest.raises(CommitLockFailed, match="nothing was changed"):
        write_table(spark.range(5), (catalog, "db.t"), "overwrite")
    with pytest.raises(CommitLockFailed, match="nothing was changed"):
        ds._holder.address.acquire("c", "test", properties, {Resource.table(("db", "t")): LockMode.EXCLUSIVE}, "a job")
    assert not list((tmp_path / "w").rglob("*.parquet"))
    catalog.close()


def test_abort_deletes_only_what_is_proven_not_to_have_landed(
    spark: SparkSession, catalog: Any, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the commit: deleted. After one whose answer was lost: kept, whether it is known to have landed or not."""
    table = write_table(spark.range(1), (catalog, "db.t"), create=True)
    given = ds.Options({**options, "table": "db.t"})

    def job(request: str) -> tuple[ds.TableWriter, list[Any], Path]:
        target = Target.of(table)
        writer = ds.TableWriter(given, None, request, "append", AlwaysTrue(), target, ["id"], {})
        rows = spark.range(3).coalesce(1).toArrow().to_batches()
        return writer, [writer.write(iter(rows))], Path(target.folder.removeprefix("file://"))

    writer, messages, folder = job("11111111-1111-1111-1111-111111111111")
    assert folder.exists()
    writer.abort(messages)
    assert not folder.exists()

    writer, messages, folder = job("22222222-2222-2222-2222-222222222222")
    writer.commit(messages)
    writer.abort(messages)
    assert read_table(spark, table.refresh()).count() == 4

    writer, messages, folder = job("33333333-3333-3333-3333-333333333333")
    monkeypatch.setattr(type(table), "commit_files", _dies)
    with pytest.raises(SystemExit):
        writer.commit(messages)
    writer.abort(messages)
    assert list(folder.glob("*.parquet"))


def _dies(*_: Any, **__: Any) -> None:
    raise SystemExit("killed in the middle of a commit")


def test_a_stream_writes_each_batch_once(
    spark: SparkSession, catalog: Any, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through restarts, and when a batch is committed again."""
    table = write_table(spark.range(0), (catalog, "db.t"), create=True)
    folder, checkpoint = str(tmp_path / "in"), str(tmp_path / "checkpoint")

    def run() -> None:
        stream = spark.readStream.schema("id long").parquet(folder)
        sink = stream.writeStream.format("commit_coord").options(**options, table="db.t")
        sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    spark.range(3).coalesce(1).write.mode("append").parquet(folder)
    run()
    spark.range(3, 5).coalesce(1).write.mode("append").parquet(folder)
    run()
    assert sorted(r.id for r in read_table(spark, table.refresh()).collect()) == [0, 1, 2, 3, 4]
    source = ds.CommitCoordDataSource({**options, "table": "db.t", "checkpointLocation": checkpoint})
    again = source.streamWriter(spark.range(1).schema, False)
    message = again.write(iter(spark.range(3).toArrow().to_batches()))
    assert isinstance(message, ds.TaskFiles)
    # In a task Spark says which query it is; the checkpoint keeps it.
    message.query_id = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    planned = json.loads((tmp_path / "checkpoint" / "offsets" / "1").read_text().splitlines()[1])["batchTimestampMs"]
    monkeypatch.setattr(again, "_planned", lambda _: str(planned))
    messages: list[Any] = [message]
    again.commit(messages, 1)
    assert read_table(spark, table.refresh()).count() == 5
    assert not Path(messages[0].target.folder.removeprefix("file://")).exists()
