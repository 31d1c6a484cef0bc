"""Prints how long commands, pages and calls of Spark take here, with the limits: ``python -m tests.proof.figures``.

Each is done several times. The least counts, because the machine may do something else, too; the most is beside it. The
command is for people, on a machine that is idle: a limit that is missed is printed, and fails nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import commit_coord
from tests.rest.kit import SCHEMA, ids
from tests.ui import chromium, timed
from tests.ui.kit import served_page

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured.

    Args:
        what: Was done.
        seconds: That each try took.
        limit_s: That the fastest may take.
    """

    what: str
    seconds: Sequence[float]
    limit_s: float

    def line(self) -> str:
        """Return a row of the table."""
        least, most = min(self.seconds), max(self.seconds)
        verdict = "met" if least <= self.limit_s else "MISSED"
        return f"{self.what:<78} {least:6.2f} {most:6.2f} {self.limit_s:6.2f}  {verdict}"


def cpu_s(command: Sequence[str]) -> float:
    """Return how many seconds of processor time *command* and its children take.

    Raises:
        CalledProcessError: It fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Where it is set, each run would compile what it imports; an installation has done so once.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    program = [sys.executable, "-m", "commit_coord.cli", *command]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(uri: str, tries: int) -> Iterator[Figure]:
    """Yield the processor time of commands."""
    for command, limit_s in (
        (["--help"], 0.3),
        (["locks", "--help"], 0.9),
        (["locks", "--catalog", "shop", "--uri", uri], 0.9),
    ):
        shown = " ".join(word for word in command if word not in ("--uri", uri))
        cpu_s(command)  # it compiles what it imports, as an installation does
        yield Figure(f"processor time of commit-coord {shown}", [cpu_s(command) for _ in range(tries)], limit_s)


def spark_calls(uri: str, tries: int) -> Iterator[Figure]:
    """Yield the time of a call of Spark's data source, for which Spark starts a new Python worker each time."""
    from pyspark.sql import SparkSession  # it takes as long as all of a command

    import commit_coord.spark

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.python.worker.reuse", "false").getOrCreate()
    try:
        commit_coord.spark.register(spark)
        reader = spark.read.format("commit_coord").option("catalog", "shop").option("table", "db.orders")
        load = reader.option("catalog.uri", uri).load
        load()  # what is done once, for the session
        yield Figure('format("commit_coord").load() with a new Python worker', _seconds(load, tries), 2.5)
    finally:
        spark.stop()


def pages(uri: str, tries: int) -> Iterator[Figure]:
    """Yield the times of the page in Chromium."""
    path = chromium.executable()
    if path is None:
        print(chromium.MISSING)
        return
    with chromium.chromium(path) as browser, tempfile.TemporaryDirectory() as folder:
        page, properties = browser.new_page(), {"uri": uri}
        with served_page(properties) as address:
            page.goto(address)
            page.get_by_text("Nobody holds a lock.").wait_for()
            appeared, gone = timed.seconds_until_shown(page, properties, tries)
        yield Figure("a holder that another process takes appears on the page", appeared, 1)
        yield Figure("its release appears on the page", gone, 1)
        with timed.large_catalog(Path(folder)) as address:
            for path in timed.PATHS:
                took = timed.seconds_until_loaded(page, address + path, tries)
                yield Figure(f"10,000 locks and 1,000 tables: page {path or 'of the locks'}", took, 1)


def _seconds(call: Callable[[], object], tries: int) -> Sequence[float]:
    took = []
    for _ in range(tries):
        began = time.monotonic()
        call()
        took.append(time.monotonic() - began)
    return took


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.proof.figures")
    parser.add_argument("--tries", type=int, default=_TRIES, help="how often each is done (default: %(default)s)")
    tries = parser.parse_args(argv).tries
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/compiled"
        uri = f"coord+sqlite:///{folder}/catalog.db"
        with commit_coord.load_catalog("shop", uri=uri, warehouse=f"file://{folder}") as catalog:
            catalog.create_namespace("db")
            catalog.create_table("db.orders", SCHEMA).append(ids(1, 2))
        print(f"{'seconds':<78} {'least':>6} {'most':>6} {'limit':>6}  verdict")
        for measured in (commands, spark_calls, pages):
            for figure in measured(uri, tries):
                print(figure.line(), flush=True)


if __name__ == "__main__":
    main()
