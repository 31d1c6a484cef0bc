"""What runs in the processes that the parent starts: ``python -m … FOLDER PROCESS START PARENT``."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.demo.backend import IMPATIENCE_MS
from commit_coord.demo.notes import Notebook
from commit_coord.demo.run import (
    DRIVERS,
    FEED_ROWS,
    FEEDS,
    FOLLOW,
    HEAD_START,
    IMPATIENT,
    READER,
    REFERENCE,
    SPAN_SECONDS,
    TABLES,
    Run,
    month_writer,
    table_id,
    table_of,
)
from commit_coord.errors import CommitNotApplied, CommitStateUnknown
from commit_coord.table import CoordinatedTable, CoordinatedTransaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PR_SET_PDEATHSIG = 1
"""Source: prctl(2)."""

_UNSURE = 20
"""How often an unknown outcome is asked again; with growing pauses, some 20 seconds."""


def main(arguments: list[str]) -> None:
    """Do the work of one process, then end."""
    folder, process, start, parent = Path(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3])
    _die_with(parent)
    run = Run.load(folder)
    with Notebook(run, process, start) as notes:
        if process in DRIVERS:
            _months(run, notes, process)
        elif process == READER:
            _read_back(run, notes)
        else:
            _appends(run, notes, process)
        notes.tell("ended")


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _wait(run: Run, notes: Notebook, gate: str) -> None:
    notes.tell("ready")
    while not run.gate(gate).exists():
        time.sleep(0.02)


# -- PyIceberg ---------------------------------------------------------------------------------------------


def _appends(run: Run, notes: Notebook, writer: str) -> None:
    """Append a table, or a feed's part of the hot table, batch by batch."""
    options = {"lock.acquire-timeout-ms": str(IMPATIENCE_MS[run.backend])} if writer == IMPATIENT else {}
    name = table_of(writer)
    think = random.Random(f"{run.seed}/{writer}")  # noqa: S311 - a pause, no secret
    with _opened(run.catalog(**options), notes) as catalog:
        table = catalog.load_table(table_id(name))
        assert isinstance(table, CoordinatedTable)
        batches = list(_batches(run, writer))
        _wait(run, notes, "go")
        notes.tell("begin", writer=writer)
        for number, batch in enumerate(batches):
            _append(run, notes, table, writer, number, batch)
            pause = think.expovariate(len(batches) / SPAN_SECONDS) if think.random() < 0.8 else 0.0
            done = run.share_done()
            ahead = (number + 1) / len(batches) > HEAD_START + FOLLOW * done
            time.sleep(0 if done >= 1 else pause * 4 if ahead else pause)
        notes.tell("end", writer=writer)


def _batches(run: Run, writer: str) -> Iterator[pa.Table]:
    rows = pq.read_table(run.source(table_of(writer)))
    if writer in FEEDS:
        rows = rows.filter(pc.equal(rows["feed"], writer))
    size = FEED_ROWS if writer in FEEDS else REFERENCE[writer]
    for offset in range(0, rows.num_rows, size):
        yield rows.slice(offset, size)


def _append(run: Run, notes: Notebook, table: CoordinatedTable, writer: str, number: int, batch: pa.Table) -> None:
    """Append *batch* exactly once: a refusal is tried again as a new request, an unknown outcome as the same one."""
    name, refusals, unsure = table_of(writer), 0, 0
    while True:
        request_id = run.request_id(writer, number, refusals)
        transaction: CoordinatedTransaction = table.transaction()
        transaction.request.id = request_id
        transaction.request.repeatable = unsure > 0
        try:
            with transaction:
                transaction.append(batch, snapshot_properties={"writer": writer})
        except CommitStateUnknown:
            notes.unknown(writer, name, request_id)
            unsure += 1
            if unsure > _UNSURE:
                raise
            time.sleep(0.1 * unsure)
            continue
        except CommitNotApplied as error:
            notes.refused(writer, name, request_id, error.message)
            refusals, unsure = refusals + 1, 0
            time.sleep(0.02)
            continue
        notes.acknowledged(writer, name, request_id, batch.num_rows)
        return


# -- PySpark -----------------------------------------------------------------------------------------------


def _months(run: Run, notes: Notebook, process: str) -> None:
    """Write the months of a driver, each from a thread of its own, as a Spark application with several jobs does."""
    spark = _spark(run, process, cores=1)
    with _opened(run.catalog(), notes) as catalog:
        _wait(run, notes, "go")
        months = DRIVERS[process]
        with ThreadPoolExecutor(len(months)) as pool:
            for job in [pool.submit(write_month, run, notes, spark, catalog, month) for month in months]:
                job.result()
    spark.stop()


def write_month(run: Run, notes: Notebook, spark: SparkSession, catalog: CoordinatedCatalog, month: int) -> None:
    """Write one month of flights in one commit, once, however often this is called."""
    from commit_coord.spark import write_table

    writer = month_writer(month)
    request_id = run.request_id(writer)
    source = run.source(writer)
    rows = pq.read_metadata(source).num_rows
    notes.tell("begin", writer=writer)
    table = catalog.load_table(table_id("flights"))
    assert isinstance(table, CoordinatedTable)
    # For the display alone; write_table looks too, and does not write again what landed.
    answered = table.find_commit(request_id) is not None
    write_table(
        spark.read.parquet(f"file://{source}"),
        table,
        snapshot_properties={"writer": writer},
        request_id=request_id,
    )
    notes.acknowledged(writer, "flights", request_id, rows, answered=answered)
    notes.tell("end", writer=writer)


def _read_back(run: Run, notes: Notebook) -> None:
    """Sum up every table as Spark reads it, and leave the sums in ``read.json``."""
    from pyspark.sql import functions as F

    from commit_coord.demo.source import SUMS
    from commit_coord.spark import read_table

    spark = _spark(run, READER, cores=2)
    with _opened(run.catalog(), notes) as catalog:
        _wait(run, notes, "read")
        found: dict[str, dict[str, list[int]]] = {}
        for name in TABLES:
            keys, measures = SUMS[name]
            df = read_table(spark, (catalog, table_id(name)))
            totals = [F.count(F.lit(1)), *(F.coalesce(F.sum(measure), F.lit(0)) for measure in measures)]
            found[name] = {
                "/".join(str(value) for value in row[: len(keys)]): [int(value) for value in row[len(keys) :]]
                for row in df.groupBy(*keys).agg(*totals).collect()
            }
    part = run.folder / "read.json.part"
    part.write_text(json.dumps(found))
    part.rename(run.folder / "read.json")
    spark.stop()


def _spark(run: Run, process: str, *, cores: int) -> SparkSession:
    from pyspark.sql import SparkSession

    scratch = run.folder / "spark" / process
    scratch.mkdir(exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.pop("SPARK_LOCAL_DIRS", None)  # it would go before spark.local.dir
    session: SparkSession = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(f"commit_coord demo {process}")
        .config("spark.driver.memory", "1g")
        # Three short-lived drivers share two cores: the quick compiler and the plain collector do best.
        .config(
            "spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir='{scratch}'"
        )
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _opened(catalog: CoordinatedCatalog, notes: Notebook) -> Iterator[CoordinatedCatalog]:
    """Have the commits of *catalog* noted, and close it at the end."""
    notes.watch(catalog.events)
    try:
        yield catalog
    finally:
        catalog.close()


if __name__ == "__main__":
    main(sys.argv[1:])
