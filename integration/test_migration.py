"""A table moves from the metastore's locks to ZooKeeper and back under writers of every kind, by the command line.

``COMMITS=1000 make integration ARGS="-k moves"`` has them make so many commits instead of a few.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from integration.conftest import Java, Metastore, Servers
from integration.writers import (
    ENOUGH,
    INSERTS,
    JAVA,
    PROPERTIES,
    PYTHON,
    SCHEMA,
    Kind,
    await_acknowledged,
    end,
    longest_pauses,
    prove,
    start_python,
    watched,
    write_java,
)

pytestmark = [pytest.mark.jvm, pytest.mark.hms, pytest.mark.zookeeper, pytest.mark.timeout(3600)]

COMMITS = int(os.environ.get("COMMITS", "150"))
"""So many are acknowledged, of all writers and in all phases together."""

STEADY = ("migrating-0", "migrating-1")
"""They append, rest for :data:`REST_S`, and wait for no other writer: so a pause is the table's."""

REST_S = 1.0

WRITERS: dict[str, Kind] = {
    **{f"migrating-{number}": "commit_coord" for number in range(4)},
    **{f"pinned-{number}": "commit_coord" for number in range(2)},
    "pyiceberg-0": "pyiceberg",
    "java-0": "java",
}


@pytest.fixture
def place(servers: Servers) -> Iterator[tuple[Metastore, Any]]:
    """A metastore, and ZooKeeper."""
    with closing(servers.metastore()) as metastore, closing(servers.zookeeper(1)) as ensemble:
        yield metastore, ensemble


@pytest.mark.parametrize("others", ["append", "change rows"])
def test_a_table_moves_under_writers_of_every_kind(
    place: tuple[Metastore, Any], java: Java, tmp_path: Path, others: str
) -> None:
    """Refused while writers know only the metastore's lock; nothing lost, doubled, or refused to those that move.

    Who changes rows rewrites files, under the lock if others were faster twice: a pause as long as that, in each phase.
    """
    load_before, (metastore, ensemble) = os.getloadavg(), place
    stock = load_catalog("stock", type="hive", uri=metastore.uri)
    stock.create_namespace("moves")
    stock.create_table("moves.t", SCHEMA, properties=PROPERTIES)
    moving = {"uri": metastore.uri, "lock-impl": "hms-to-zookeeper", "lock.uri": ensemble.connect_string}
    pinned = {"uri": metastore.uri, "lock-impl": "hms"}

    def migrate(*words: str) -> tuple[int, dict[str, Any]]:
        options = [word for key, value in moving.items() for word in ("-p", f"{key}={value}")]
        command = [sys.executable, "-m", "commit_coord.cli", "migrate", *words, "moves.t", "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        print(words, done.returncode, done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return done.returncode, answer["tables"][0]

    journals = {writer: tmp_path / f"{writer}.jsonl" for writer in WRITERS}
    for journal in journals.values():
        journal.touch()
    stopped = [writer for writer in WRITERS if writer.startswith(("pinned", "pyiceberg"))]
    with watched(metastore.uri, "moves.t") as seen, ThreadPoolExecutor() as threads:
        running: dict[str, SpawnProcess | Future[None]] = {}
        for writer, kind in WRITERS.items():
            match kind:
                case "java":
                    waits = "hadoop.iceberg.hive.lock-check-max-wait-ms"
                    catalog = java.catalog(metastore, **{"cache-enabled": "false", waits: "200"})
                    steps = INSERTS if others == "append" else JAVA
                    running[writer] = threads.submit(write_java, java, journals[writer], catalog, "moves.t", steps)
                case _:
                    stock_only = {"uri": metastore.uri}
                    properties = stock_only if kind == "pyiceberg" else pinned if "pinned" in writer else moving
                    steady = writer in STEADY
                    running[writer] = start_python(
                        kind,
                        journals[writer],
                        "moves.t",
                        properties,
                        steps=INSERTS if steady or others == "append" else PYTHON,
                        rest_s=REST_S if steady else None,
                    )

        def written(part: float) -> None:
            await_acknowledged(list(journals.values()), round(COMMITS * part), alive=lambda: _alive(running, stopped))

        try:
            written(0.2)
            assert ("changed", "both") == _outcome(migrate("start"))
            written(0.2)
            named = set[str]()
            while named != {"pinned to hms", "lock only"}:  # one that is starved holds no lock that could be seen
                code, refused = migrate("advance", "--window", "10")
                assert (1, "waits", "both") == (code, refused["outcome"], refused["after"]["phase"])
                named.update(one["kind"] for one in refused["waits_for"])
            for writer in stopped:
                end(journals[writer])
            _await_end([running[writer] for writer in stopped])
            assert ("changed", "zookeeper") == _outcome(migrate("advance", "--window", "5", "--wait", "300"))
            written(0.3)
            code, verified = migrate("verify")
            assert (0, []) == (code, verified["problems"])
            assert ("changed", "hms") == _outcome(migrate("abort", "--wait", "300"))
            written(0.3)
        finally:
            tmp_path.joinpath(ENOUGH).touch()
        _await_end([running[writer] for writer in WRITERS if writer not in stopped])

    table = stock.load_table("moves.t")
    rows = [(row["key"], row["value"]) for row in table.scan().to_arrow().to_pylist()]
    head = table.metadata_location
    proof = prove(list(journals.values()), seen, head, rows)
    loads = f"load {load_before[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    print(proof, loads, "longest pauses:", longest_pauses(proof.told, head), sep="\n")
    assert [] == proof.broken
    assert 0 == proof.count("refused", "migrating") + proof.count("unknown", "migrating")
    assert sorted(rows) == sorted(java.sql(f"SELECT * FROM {java.catalog(metastore)}.moves.t"))


def _outcome(answer: tuple[int, dict[str, Any]]) -> tuple[str, str]:
    code, table = answer
    assert 0 == code, table
    return table["outcome"], table["after"]["phase"]


def _alive(running: dict[str, SpawnProcess | Future[None]], but: Sequence[str]) -> bool:
    return all(
        not one.done() if isinstance(one, Future) else one.is_alive()
        for writer, one in running.items()
        if writer not in but
    )


def _await_end(writers: Sequence[SpawnProcess | Future[None]]) -> None:
    for writer in writers:
        if isinstance(writer, Future):
            writer.result()
        else:
            writer.join()
            assert 0 == writer.exitcode
