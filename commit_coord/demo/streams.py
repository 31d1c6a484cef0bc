"""Many streams and many appenders on one table, each row there exactly once.

An example, and a proof. PySpark streaming queries take files from a folder each, one a batch; PyIceberg processes
append small tables all the while. Every query is broken once between the commit of a batch and Spark's note of it, and
started again: the batch comes once more, and must not land once more.

With a metastore and ZooKeeper of one's own::

    commit-coord local up
    python -m commit_coord.demo.streams --catalog local --queries 16 --appenders 16
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import commit_coord
import commit_coord.spark as coord
from commit_coord.testing.fleet import Fleet, ForkedWriter, holds_within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SCHEMA = pa.schema([("source", pa.string()), ("number", pa.int64())])
_ROWS = 10
"""Of a batch, and of an append."""

_PATIENCE_S = 600
_IMPORTED = ("commit_coord.catalog.hive", "commit_coord.locks.zookeeper.manager", "pyiceberg.io.pyarrow")
"""What an appender would import."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """The final state of the table.

    Args:
        rows: In it.
        sources: Queries and appenders whose rows it has.
        snapshots: That were added.
        restarts: Queries that were broken and started again.
        broken: What does not hold, in words; empty is the proof.
    """

    rows: int
    sources: int
    snapshots: int
    restarts: int
    broken: tuple[str, ...]


class _DriverGone(Exception):
    """Stands for the death of a driver right after a commit."""


def run(
    spark: SparkSession,
    catalog: str,
    properties: Mapping[str, str],
    table: str,
    folder: Path,
    *,
    queries: int,
    appenders: int,
    batches: int,
) -> Streamed:
    """Have *queries* and *appenders* write *batches* each to the new *table* at one time, and prove it.

    Args:
        spark: The session of the queries.
        catalog: Name of the catalog.
        properties: Of the catalog, in addition to its configuration.
        table: ``db.name``; must not exist.
        folder: For the input and the checkpoints of the queries.
        queries: How many.
        appenders: How many processes.
        batches: Of each.
    """
    opened = commit_coord.load_catalog(catalog, **properties)
    opened.create_namespace_if_not_exists(table.rpartition(".")[0])
    opened.create_table(table, _SCHEMA)
    names = [f"query-{number}" for number in range(queries)]
    for name in names:
        (folder / name).mkdir(parents=True)
        for batch in range(batches):
            pq.write_table(_rows(name, batch), folder / name / f"{batch:05d}.parquet")
    appending = Fleet[str, ForkedWriter](
        lambda name: ForkedWriter(_append, catalog, dict(properties), table, name, batches, imported=_IMPORTED)
    )
    try:
        appending.start(*(f"appender-{number}" for number in range(appenders)))
        writes = {name: _dying_once(coord.foreach_batch((opened, table), writer_id=name)) for name in names}
        running = {name: _start(spark, folder, name, writes[name]) for name in names}
        restarts = 0
        for name in names:
            while not _ended(running[name]):
                running[name] = _start(spark, folder, name, writes[name])
                restarts += 1
        holds_within(lambda: not appending.running(), _PATIENCE_S)
        failed = sum(code != 0 for code in appending.exit_codes().values())
    finally:
        appending.stop()
    proved = _prove(opened.load_table(table), queries, appenders, batches, restarts, failed)
    opened.close()
    return proved


def _rows(source: str, batch: int) -> pa.Table:
    numbers = range(batch * _ROWS, (batch + 1) * _ROWS)
    return pa.table({"source": [source] * _ROWS, "number": list(numbers)}, schema=_SCHEMA)


def _append(catalog: str, properties: Mapping[str, str], table: str, name: str, batches: int) -> None:
    """Be an appender."""
    opened = commit_coord.load_catalog(catalog, **properties)
    loaded = opened.load_table(table)
    for batch in range(batches):
        loaded.append(_rows(name, batch))
    opened.close()


def _dying_once(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Return *write*, which once does its work and then fails all the same."""
    died: list[int] = []

    def write_and_die(df: DataFrame, batch_id: int) -> None:
        write(df, batch_id)
        if not died:
            died.append(batch_id)
            raise _DriverGone

    return write_and_die


def _start(spark: SparkSession, folder: Path, name: str, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
    source = spark.readStream.schema("source string, number long").option("maxFilesPerTrigger", 1)
    stream = source.parquet(str(folder / name)).writeStream.foreachBatch(write)
    return stream.option("checkpointLocation", str(folder / f"{name}-checkpoint")).trigger(availableNow=True).start()


def _ended(query: StreamingQuery) -> bool:
    """Wait for *query*; return whether it came to its end, and not to the fault that was put there.

    Raises:
        StreamingQueryException: It failed for another reason.
    """
    from pyspark.errors import StreamingQueryException

    try:
        return bool(query.awaitTermination(_PATIENCE_S))
    except StreamingQueryException as error:
        if _DriverGone.__name__ not in str(error):
            raise
        return False


def _prove(table: Any, queries: int, appenders: int, batches: int, restarts: int, failed: int) -> Streamed:
    rows = table.scan().to_arrow()
    found = Counter(zip(rows["source"].to_pylist(), rows["number"].to_pylist(), strict=True))
    sources = [f"query-{n}" for n in range(queries)] + [f"appender-{n}" for n in range(appenders)]
    wanted = Counter({(source, number): 1 for source in sources for number in range(batches * _ROWS)})
    broken = [
        f"row {row} is there {found[row]} times instead of {wanted[row]}"
        for row in found.keys() | wanted.keys()
        if found[row] != wanted[row]
    ]
    if failed:
        broken.append(f"{failed} appenders failed")
    snapshots = len(table.metadata.snapshots)
    if snapshots != len(sources) * batches:
        broken.append(f"{snapshots} snapshots for {len(sources) * batches} commits")
    if left := table.catalog.locks.locks():
        broken += [f"a lock is left: {entry.resource}" for entry in left if not entry.guard]
    return Streamed(
        rows=rows.num_rows,
        sources=len({source for source, _ in found}),
        snapshots=snapshots,
        restarts=restarts,
        broken=tuple(sorted(broken)),
    )


def main() -> int:
    """Run it on a catalog of the configuration, print what was proved; 1 when something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m commit_coord.demo.streams", description=__doc__)
    parser.add_argument("--catalog", default="local", help="of .pyiceberg.yaml, for example")
    parser.add_argument("--table", default="demo.streams", help="must not exist")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--appenders", type=int, default=16)
    parser.add_argument("--batches", type=int, default=5)
    given = parser.parse_args()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        with tempfile.TemporaryDirectory(prefix="commit-coord-streams-") as folder:
            found = run(
                spark,
                given.catalog,
                {},
                given.table,
                Path(folder),
                queries=given.queries,
                appenders=given.appenders,
                batches=given.batches,
            )
    finally:
        spark.stop()
    print(json.dumps(asdict(found), indent=2))
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
