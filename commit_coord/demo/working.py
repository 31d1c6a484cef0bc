"""What writers of every kind do: wait for each other, append batch by batch, start Spark."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from commit_coord.demo.notes import Notebook
from commit_coord.demo.run import FEEDS, FOLLOW, HEAD_START, SPAN_SECONDS, Run, commit_rows, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def wait_for(run: Run, notes: Notebook, gate: str) -> None:
    """Say that this process is ready, and return when the gate opens."""
    notes.tell("ready")
    while not run.gate(gate).exists():
        time.sleep(0.02)


def batches(run: Run, writer: str) -> Iterator[pa.Table]:
    """Yield the rows of each commit of *writer*."""
    rows = pq.read_table(run.source(table_of(writer)))
    if writer in FEEDS:
        rows = rows.filter(pc.equal(rows["feed"], writer))
    size = commit_rows(run.backend, writer)
    for offset in range(0, rows.num_rows, size):
        yield rows.slice(offset, size)


def append_all(run: Run, notes: Notebook, writer: str, append: Callable[[int, pa.Table], None]) -> None:
    """Call *append* for each batch of *writer*, when all are ready, with pauses."""
    think = random.Random(f"{run.seed}/{writer}")  # noqa: S311 - a pause, no secret
    all_ = list(batches(run, writer))
    wait_for(run, notes, "go")
    notes.tell("begin", writer=writer)
    for number, batch in enumerate(all_):
        append(number, batch)
        pause = think.expovariate(len(all_) / SPAN_SECONDS) if think.random() < 0.8 else 0.0
        done = run.share_done()
        ahead = (number + 1) / len(all_) > HEAD_START + FOLLOW * done
        time.sleep(0 if done >= 1 else pause * 4 if ahead else pause)
    notes.tell("end", writer=writer)


def write_sums(run: Run, tables: Mapping[str, DataFrame]) -> None:
    """Sum up *tables* with Spark, and leave the sums in ``read.json``."""
    from pyspark.sql import functions as F

    from commit_coord.demo.source import SUMS

    found: dict[str, dict[str, list[int]]] = {}
    for name, df in tables.items():
        keys, measures = SUMS[name]
        totals = [F.count(F.lit(1)), *(F.coalesce(F.sum(measure), F.lit(0)) for measure in measures)]
        found[name] = {
            "/".join(str(value) for value in row[: len(keys)]): [int(value) for value in row[len(keys) :]]
            for row in df.groupBy(*keys).agg(*totals).collect()
        }
    part = run.folder / "read.json.part"
    part.write_text(json.dumps(found))
    part.rename(run.folder / "read.json")


def spark_session(run: Run, process: str, *, cores: int, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of *process*, which has *settings* more."""
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
        .config(map=dict(settings or {}))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
