"""What the processes do that write through the REST server, or know the metastore alone.

=================  =================================================================================================
``spark-1`` to -3  Spark SQL: each month of flights is loaded by an INSERT with mistakes in it, which a MERGE, an
                   UPDATE and a DELETE put right. All of them write one table.
``feed-1``         a stream of Spark, ``toTable``; its appends are declared blind
``feed-2``         PyIceberg's REST client; its appends are declared blind
``feed-3``         PyIceberg's own catalog on the metastore, which knows neither the server nor the library
``reader``         compacts and expires with ``CALL``, and reads everything in the end
=================  =================================================================================================

The other processes use the library. A commit carries what it is called (:data:`~commit_coord.demo.run.MARK`), and a
driver that was killed looks in the table for what it had done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException

from commit_coord.config import COORDINATED_URI_PREFIX
from commit_coord.demo.backend import CATALOG
from commit_coord.demo.notes import Notebook
from commit_coord.demo.processes import iceberg_runtime
from commit_coord.demo.run import (
    DRIVERS,
    MARK,
    READER,
    STATEMENTS,
    TABLES,
    Run,
    compaction_mark,
    epoch_mark,
    month_writer,
    table_id,
    table_of,
)
from commit_coord.demo.working import append_all, batches, spark_session, wait_for, write_sums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOP = "shop"
"""The catalog's name in Spark."""

_UNSURE = 20
"""How often it is looked for a commit with an unknown outcome."""

_QUICK = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.2", "lock-check-retries": "1000"}
"""Seconds. With PyIceberg's own times it waits for half a minute while others write."""

_BLIND = {"header.X-Commit-Coord-Append": "blind"}
"""Catalog property of clients that only append rows that depend on no others."""

_KEPT = 20
"""Snapshots that stay when others are expired."""

Work = Callable[[Run, Notebook, str], None]


def work_of(process: str) -> Work | None:
    """Return what *process* does; None if it uses the library."""
    return _months if process in DRIVERS else _WORK.get(process)


# -- Spark SQL ----------------------------------------------------------------------------------------------


def _session(run: Run, process: str, **more: str) -> SparkSession:
    """Return a session that a user would have, from catalog properties alone: these, and *more*."""
    place = f"spark.sql.catalog.{_SHOP}"
    settings = {
        "spark.jars": str(iceberg_runtime()),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        place: "org.apache.iceberg.spark.SparkCatalog",
        f"{place}.type": "rest",
        f"{place}.uri": run.url,
        f"{place}.warehouse": CATALOG,
        f"{place}.cache-enabled": "false",  # each statement sees the table of now
        **{f"{place}.{key}": value for key, value in more.items()},
    }
    return spark_session(run, process, cores=1, settings=settings)


def _name(table: str) -> str:
    return f"{_SHOP}.{table_id(table)}"


def _months(run: Run, notes: Notebook, process: str) -> None:
    """Write the months of a driver, each from a thread and a session of its own."""
    spark = _session(run, process)
    wait_for(run, notes, "go")
    months = DRIVERS[process]
    with ThreadPoolExecutor(len(months)) as pool:
        for job in [pool.submit(_write_month, run, notes, spark.newSession(), month) for month in months]:
            job.result()
    spark.stop()


def _write_month(run: Run, notes: Notebook, spark: SparkSession, month: int) -> None:
    writer = month_writer(month)
    notes.tell("begin", writer=writer)
    source = spark.read.parquet(f"file://{run.source(writer)}")
    source.createOrReplaceTempView("source")
    rows = source.count()
    for number, statement in enumerate(STATEMENTS):
        text = _statement(statement, _name("flights"), month, source.columns)
        _execute(run, notes, spark, writer, number, text, rows if number == 0 else 0)
    notes.tell("end", writer=writer)


def _statement(statement: str, table: str, month: int, columns: list[str]) -> str:
    """Return the SQL of one of :data:`~commit_coord.demo.run.STATEMENTS` for a month of flights.

    The INSERT doubles the distances of the first days, forgets the delays after the 15th, leaves out the days after
    the 20th, and adds flights of a carrier that there is not. The other statements put this right.
    """
    mistakes = {
        "distance": "IF(day <= 5, distance * 2, distance) AS distance",
        "dep_delay": "IF(day > 15, NULL, dep_delay) AS dep_delay",
    }
    wrong = ", ".join(mistakes.get(column, column) for column in columns)
    nobody = ", ".join("'ZZ' AS carrier" if column == "carrier" else column for column in columns)
    match statement:
        case "INSERT":
            return (
                f"INSERT INTO {table} SELECT {wrong} FROM source WHERE day <= 20 "
                f"UNION ALL SELECT {nobody} FROM source WHERE day = 8"
            )
        case "MERGE":
            return (
                f"MERGE INTO {table} t USING (SELECT * FROM source WHERE day > 15) s ON t.month = {month} "
                "AND t.time_hour = s.time_hour AND t.carrier = s.carrier AND t.flight = s.flight "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
        case "UPDATE":
            return f"UPDATE {table} SET distance = CAST(distance / 2 AS INT) WHERE month = {month} AND day <= 5"
        case _:
            return f"DELETE FROM {table} WHERE month = {month} AND carrier = 'ZZ'"


def _execute(run: Run, notes: Notebook, spark: SparkSession, writer: str, number: int, text: str, rows: int) -> None:
    """Execute *text* once, however often this is called: what it is called by is in the table when it has landed."""
    table = table_of(writer)

    def is_there(mark: str) -> bool:
        where = f"summary['{MARK}'] = '{mark}'"
        return bool(spark.sql(f"SELECT 1 FROM {_name(table)}.snapshots WHERE {where}").take(1))

    refusals, unsure = 0, False
    while True:
        mark = run.request_id(writer, number, refusals)
        if is_there(mark):
            notes.acknowledged(writer, table, mark, rows, answered=not unsure)
            return
        spark.conf.set(f"spark.sql.iceberg.snapshot-property.{MARK}", mark)
        try:
            spark.sql(text).collect()
        except Exception as error:
            message = str(error)
            if "CommitStateUnknownException" in message:
                notes.unknown(writer, table, mark)
                unsure = True
                time.sleep(1)
            elif "CommitFailedException" in message or "ValidationException" in message:
                notes.refused(writer, table, mark, message[:300])
                refusals += 1
            else:
                raise
        else:
            notes.acknowledged(writer, table, mark, rows)
            return


def _stream(run: Run, notes: Notebook, writer: str) -> None:
    """Write a feed's part of the hot table as a stream of files."""
    files = run.folder / "source" / writer
    files.mkdir()
    all_ = list(batches(run, writer))
    for number, batch in enumerate(all_):
        pq.write_table(batch, files / f"{number:05d}.parquet")
    spark = _session(run, writer, **_BLIND)
    schema = spark.read.parquet(f"file://{files}").schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"file://{files}")
    writes = source.writeStream.option("checkpointLocation", f"file://{run.folder / 'spark' / f'{writer}-checkpoint'}")
    wait_for(run, notes, "go")
    notes.tell("begin", writer=writer)
    query = writes.trigger(availableNow=True).toTable(_name(table_of(writer)))
    reported = set[int]()
    active = True
    while active:
        active = query.isActive  # before what it did: the last batch is not missed
        for progress in query.recentProgress:
            if (batch_id := progress["batchId"]) not in reported and progress["numInputRows"]:
                reported.add(batch_id)
                mark = epoch_mark(query.id, batch_id)
                notes.acknowledged(writer, table_of(writer), mark, progress["numInputRows"])
        time.sleep(0.1)
    if (failed := query.exception()) is not None:
        raise failed
    notes.tell("end", writer=writer)
    spark.stop()


def _maintain(run: Run, notes: Notebook, process: str) -> None:
    """Compact the hot table and expire its snapshots until everything is written, then read all tables."""
    spark = _session(run, process)
    table = table_id("departures")
    expire = f"older_than => CAST(now() AS TIMESTAMP), retain_last => {_KEPT}"
    notes.tell("ready")
    first = True
    while first or not run.gate("read").exists():
        first = False
        _compact(spark, notes, "departures")
        spark.sql(f"CALL {_SHOP}.system.expire_snapshots(table => '{table}', {expire})").collect()
    write_sums(run, {name: spark.table(_name(name)) for name in TABLES})
    spark.stop()


def _compact(spark: SparkSession, notes: Notebook, table: str) -> None:
    """Rewrite the small files of *table*; that it may be refused is no harm."""
    from pyspark.errors import PySparkException

    snapshots = f"SELECT snapshot_id FROM {_name(table)}.snapshots WHERE operation = 'replace'"
    before = {row[0] for row in spark.sql(snapshots).collect()}
    options = "map('min-input-files', '2')"
    try:
        spark.sql(
            f"CALL {_SHOP}.system.rewrite_data_files(table => '{table_id(table)}', options => {options})"
        ).collect()
    except PySparkException as error:
        notes.tell("compaction refused", reason=str(error)[:300])
    for snapshot_id in {row[0] for row in spark.sql(snapshots).collect()} - before:
        notes.acknowledged(READER, table, compaction_mark(snapshot_id), 0)


# -- PyIceberg ----------------------------------------------------------------------------------------------


def _by_rest(run: Run, notes: Notebook, writer: str) -> None:
    """Append with PyIceberg's REST client."""
    _append_with(RestCatalog(CATALOG, uri=run.url, warehouse=CATALOG, **_BLIND), run, notes, writer)


def _by_metastore(run: Run, notes: Notebook, writer: str) -> None:
    """Append with PyIceberg's own catalog."""
    uri = run.properties["uri"].removeprefix(COORDINATED_URI_PREFIX)
    _append_with(HiveCatalog(CATALOG, uri=uri, **_QUICK), run, notes, writer)


def _append_with(catalog: Catalog, run: Run, notes: Notebook, writer: str) -> None:
    table = catalog.load_table(table_id(table_of(writer)))
    append_all(run, notes, writer, partial(_append, run, notes, table, writer))
    catalog.close()


def _append(run: Run, notes: Notebook, table: Any, writer: str, number: int, batch: pa.Table) -> None:
    """Append *batch* exactly once: a refusal is tried again as a new request, an unknown outcome is looked up."""
    refusals = 0
    while True:
        mark = run.request_id(writer, number, refusals)
        try:
            table.append(batch, snapshot_properties={"writer": writer, MARK: mark})
        except CommitStateUnknownException:
            notes.unknown(writer, table_of(writer), mark)
            if not _has_landed(table, mark):
                raise
        # PyIceberg's own catalog, refused once, looks for the snapshot that it had read. Spark may have expired it.
        except (CommitFailedException, ValidationException) as error:
            notes.refused(writer, table_of(writer), mark, str(error)[:300])
            refusals += 1
            time.sleep(0.05)
            table.refresh()
            continue
        notes.acknowledged(writer, table_of(writer), mark, batch.num_rows)
        return


def _has_landed(table: Any, mark: str) -> bool:
    for _ in range(_UNSURE):
        table.refresh()
        if any(snapshot.summary.get(MARK) == mark for snapshot in table.snapshots()):
            return True
        time.sleep(1)
    return False


_WORK: Mapping[str, Work] = MappingProxyType(
    {"feed-1": _stream, "feed-2": _by_rest, "feed-3": _by_metastore, READER: _maintain}
)
