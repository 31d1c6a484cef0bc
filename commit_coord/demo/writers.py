"""What runs in the processes that the parent starts: ``python -m … FOLDER PROCESS START PARENT``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.demo import rest_writers
from commit_coord.demo.backend import IMPATIENCE_MS, Backend
from commit_coord.demo.notes import Notebook
from commit_coord.demo.run import DRIVERS, IMPATIENT, READER, TABLES, Run, month_writer, table_id, table_of
from commit_coord.demo.working import append_all, spark_session, wait_for, write_sums
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
        work = rest_writers.work_of(process) if run.backend is Backend.REST else None
        if work is not None:
            work(run, notes, process)
        elif process in DRIVERS:
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


# -- PyIceberg ---------------------------------------------------------------------------------------------


def _appends(run: Run, notes: Notebook, writer: str) -> None:
    """Append a table, or a feed's part of the hot table, batch by batch."""
    options = {"lock.acquire-timeout-ms": str(IMPATIENCE_MS[run.backend])} if writer == IMPATIENT else {}
    name = table_of(writer)
    with _opened(run.catalog(**options), notes) as catalog:
        table = catalog.load_table(table_id(name))
        assert isinstance(table, CoordinatedTable)
        append_all(run, notes, writer, partial(_append, run, notes, table, writer))


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
    spark = spark_session(run, process, cores=1)
    with _opened(run.catalog(), notes) as catalog:
        wait_for(run, notes, "go")
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
    from commit_coord.spark import read_table

    spark = spark_session(run, READER, cores=2)
    with _opened(run.catalog(), notes) as catalog:
        wait_for(run, notes, "read")
        write_sums(run, {name: read_table(spark, (catalog, table_id(name))) for name in TABLES})
    spark.stop()


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
