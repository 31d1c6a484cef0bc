"""A table moves from the metastore's locks to ZooKeeper and back under writers of every kind, by the command line.

``COMMITS=1000 make integration ARGS="-k moves"`` has them make so many commits instead of a few;
``TABLES`` is how many are moved at once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any, Self

import pytest
from pyiceberg.catalog import load_catalog

import commit_coord
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.catalog.migration import Migration, Outcome
from commit_coord.protocol.migration import Phase
from commit_coord.testing.fleet import Fleet, ForkedWriter
from commit_coord.testing.plain import Tidier
from integration.conftest import Java, Metastore, Servers
from integration.proof import longest_pauses, prove
from integration.writers import (
    ENOUGH,
    INSERTS,
    JAVA,
    KILLED,
    PROPERTIES,
    PYTHON,
    SCHEMA,
    Kind,
    Running,
    await_acknowledged,
    await_end,
    count_acknowledged,
    end,
    runs,
    start_python,
    watched,
    write_java,
)
from tests.proof.operators import move_dying

pytestmark = [pytest.mark.jvm, pytest.mark.hms, pytest.mark.zookeeper, pytest.mark.timeout(3600)]

COMMITS = int(os.environ.get("COMMITS", "150"))
"""So many are acknowledged, of all writers and in all phases together."""

TABLES = int(os.environ.get("TABLES", "500"))

STEADY = ("migrating-0", "migrating-1")
"""They append, rest for :data:`REST_S`, and wait for no other writer: so a pause is the table's."""

REST_S = 1.0

_SELDOM_S = 1.5
"""So long rest writers that are killed: Java reads the table before it locks it, and fails while others are busy."""

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
        running: dict[str, Running] = {}
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

        def alive() -> bool:
            return all(runs(one) for writer, one in running.items() if writer not in stopped)

        def written(part: float) -> None:
            await_acknowledged(list(journals.values()), round(COMMITS * part), alive=alive)

        try:
            written(0.2)
            assert ("changed", "both") == _outcome(migrate("start"))
            written(0.2)
            named = set[str]()
            while named != {"pinned to hms", "lock only"}:  # in each window, the default, one may be starved
                code, refused = migrate("advance")
                assert (1, "waits", "both") == (code, refused["outcome"], refused["after"]["phase"])
                named.update(one["kind"] for one in refused["waits_for"])
            for writer in stopped:
                end(journals[writer])
            await_end([running[writer] for writer in stopped])
            assert ("changed", "zookeeper") == _outcome(migrate("advance", "--window", "5", "--wait", "300"))
            written(0.3)
            code, verified = migrate("verify")
            assert (0, []) == (code, verified["problems"])
            assert ("changed", "hms") == _outcome(migrate("abort", "--wait", "300"))
            written(0.3)
        finally:
            tmp_path.joinpath(ENOUGH).touch()
        await_end([running[writer] for writer in WRITERS if writer not in stopped])

    table = stock.load_table("moves.t")
    rows = [(row["key"], row["value"]) for row in table.scan().to_arrow().to_pylist()]
    head = table.metadata_location
    proof = prove(list(journals.values()), seen, head, rows)
    loads = f"load {load_before[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    print(proof, loads, "longest pauses:", longest_pauses(proof.answers, head), sep="\n")
    assert [] == proof.broken
    assert 0 == proof.count("refused", "migrating") + proof.count("unknown", "migrating")
    assert sorted(rows) == sorted(java.sql(f"SELECT * FROM {java.catalog(metastore)}.moves.t"))


def test_all_tables_of_a_metastore_are_started_under_load(place: tuple[Metastore, Any], tmp_path: Path) -> None:
    """One command for all; four of the tables are written to meanwhile. How long it took is printed."""
    metastore, ensemble = place
    moving = {"uri": metastore.uri, "lock-impl": "hms-to-zookeeper", "lock.uri": ensemble.connect_string}
    written = [f"many.t{number}" for number in range(4)]
    with closing(commit_coord.load_catalog("o", **moving)) as catalog:
        catalog.create_namespace("many")
        for number in range(TABLES):
            catalog.create_table(f"many.t{number}", SCHEMA, properties=PROPERTIES)
        journals = [tmp_path / f"{name.partition('.')[2]}.jsonl" for name in written]
        for journal in journals:
            journal.touch()
        writers = [
            start_python("commit_coord", journal, name, moving, steps=INSERTS, rest_s=0.1)
            for journal, name in zip(journals, written, strict=True)
        ]
        try:
            await_acknowledged(journals, 8, alive=lambda: all(map(runs, writers)))
            options = [word for key, value in moving.items() for word in ("-p", f"{key}={value}")]
            command = [sys.executable, "-m", "commit_coord.cli", "migrate", "start", "--all", "--json", *options]
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
            took = time.monotonic() - began
            await_acknowledged(journals, 8, alive=lambda: all(map(runs, writers)))
        finally:
            tmp_path.joinpath(ENOUGH).touch()
        await_end(writers)
        answer = json.loads(done.stdout.splitlines()[-1])["tables"]
        assert (0, TABLES) == (done.returncode, len(answer))
        assert {("changed", "both")} == {(one["outcome"], one["after"]["phase"]) for one in answer}
        acknowledged = 0
        for journal, name in zip(journals, written, strict=True):
            table = catalog.load_table(name)
            rows = [(row["key"], row["value"]) for row in table.scan().to_arrow().to_pylist()]
            proof = prove([journal], [], table.metadata_location, rows)
            assert ([], 0) == (proof.broken, proof.count("refused") + proof.count("unknown"))
            acknowledged += proof.count("acknowledged")
    print(f"{TABLES} tables in {took:.0f} s, {acknowledged} commits of four writers, load {os.getloadavg()[0]:.1f}")


def test_it_moves_while_operators_writers_and_servers_die(servers: Servers, java: Java, tmp_path: Path) -> None:
    """An operator is killed at each step, a writer every second; in each change of phase servers are restarted.

    One of ZooKeeper's, and the metastore, that one only while Java is between two commits: a lock that Java can't give
    back stays for good.
    """
    with (
        closing(servers.metastore()) as metastore,
        closing(servers.zookeeper(3)) as ensemble,
        closing(Tidier(metastore.uri)) as tidier,
    ):
        stock = load_catalog("stock", type="hive", uri=metastore.uri)
        stock.create_namespace("moves")
        stock.create_table("moves.t", SCHEMA, properties=PROPERTIES)
        moving = {"uri": metastore.uri, "lock-impl": "hms-to-zookeeper", "lock.uri": ensemble.connect_string}
        properties = {
            "migrating": moving,
            "pinned": {"uri": metastore.uri, "lock-impl": "hms"},
            "pyiceberg": {"uri": metastore.uri},
        }

        def start(writer: str, journal: Path) -> ForkedWriter:
            kind, of_kind = WRITERS[writer], properties[writer.partition("-")[0]]
            gives_up = kind == "pyiceberg"
            return start_python(kind, journal, "moves.t", of_kind, steps=INSERTS, rest_s=_SELDOM_S, gives_up=gives_up)

        died, turn, table = Counter[str](), threading.Lock(), ("moves", "t")
        others = cycle(ensemble.servers)
        waits = {"hadoop.iceberg.hive.lock-check-max-wait-ms": "200"}
        catalog = java.catalog(metastore, **{"cache-enabled": "false", **waits})
        journal = tmp_path / "java-0.jsonl"
        journal.touch()

        def restart() -> None:
            with turn:
                metastore.restart()
            next(others).restart()

        def move(start: Phase, target: Phase) -> None:
            restarts = threads.submit(restart)
            move_dying(moving, table, start, [target], died)
            restarts.result()

        with (
            watched(metastore.uri, "moves.t") as seen,
            ThreadPoolExecutor() as threads,
            Crew(tmp_path, [writer for writer, kind in WRITERS.items() if kind != "java"], start, tidier) as crew,
        ):
            try:
                spark = threads.submit(write_java, java, journal, catalog, "moves.t", INSERTS, rest_s=0.2, turn=turn)
                await_acknowledged([journal], 2, alive=lambda: not spark.done())
                move(Phase.HMS, Phase.BOTH)
                with closing(commit_coord.load_catalog("o", **moving)) as opened:
                    assert isinstance(opened, CoordinatedHiveCatalog)
                    operator = Migration(opened)
                    refused = operator.move(table, Phase.ZOOKEEPER, seen=operator.watch(5), window_s=60)
                assert (refused.outcome, refused.phase) == (Outcome.WAITS, Phase.BOTH)
                crew.dismiss(("pinned", "pyiceberg"))
                move(Phase.BOTH, Phase.ZOOKEEPER)
                move(Phase.ZOOKEEPER, Phase.BOTH)
                move(Phase.BOTH, Phase.HMS)
                await_acknowledged([journal], 2, alive=lambda: not spark.done())
            finally:
                tmp_path.joinpath(ENOUGH).touch()
            spark.result()
        head = stock.load_table("moves.t")
        rows = [(row["key"], row["value"]) for row in head.scan().to_arrow().to_pylist()]
        proof = prove(sorted(tmp_path.glob("*.jsonl")), seen, head.metadata_location, rows)
        with closing(commit_coord.load_catalog("o", **moving)) as opened:
            left = opened.show_locks()
    print(proof, f"operators killed {dict(died)}, writers {crew.kills}", sep="\n")
    of_ours = [one for writer, all_ in proof.answers.items() if writer.startswith("migrating") for one in all_]
    assert ([], []) == (proof.broken, left)
    assert {"acknowledged", KILLED} >= {one.error or one.end for one in of_ours}
    assert len(died) == 4


class Crew:
    """Writers of which one is killed every second, and replaced by one with a journal of its own.

    Args:
        folder: Where the journals are.
        names: Of the writers.
        start: Starts one, on a journal.
        tidier: Frees what those left that know nothing of us.
    """

    def __init__(
        self, folder: Path, names: Sequence[str], start: Callable[[str, Path], ForkedWriter], tidier: Tidier
    ) -> None:
        self.kills = 0
        self._folder, self._tidier = folder, tidier
        self._dice, self._over, self._lock = random.Random(5), threading.Event(), threading.Lock()  # noqa: S311
        self._journals: dict[str, Path] = {}
        self._dismissed: set[str] = set()
        self._fleet = Fleet[str, ForkedWriter](lambda name: start(name, self._new_journal(name)))
        self._fleet.start(*names)
        self._killing = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._killed = self._killing.submit(self._kill)
        return self

    def __exit__(self, *_: object) -> None:
        """Let them end."""
        self._over.set()
        self._killed.result()
        self.dismiss([""])

    def dismiss(self, prefixes: Sequence[str]) -> None:
        """Let those end, and replace them no more, whose names begin so."""
        with self._lock:
            going = [name for name in self._names() if name.startswith(tuple(prefixes))]
            self._dismissed.update(going)
            for name in going:
                end(self._journals[name])
            for name in going:
                self._fleet[name].wait()

    def _names(self) -> list[str]:
        return [name for name in self._fleet.exit_codes() if name not in self._dismissed]

    def _kill(self) -> None:
        while not self._over.wait(1.0):
            with self._lock:
                for name in self._names():
                    if self._fleet[name].exit_code is not None:
                        self._fleet.start(name)
                # Starts alone would be killed otherwise, on a slow machine.
                busy = [name for name in self._names() if count_acknowledged(self._journals[name])]
                if busy:
                    self._fleet.replace(self._dice.choice(busy))
                    self.kills += 1
                self._tidier.tidy([process.pid for process in self._fleet.running().values()])

    def _new_journal(self, name: str) -> Path:
        if name in self._journals:
            end(self._journals[name])
        self._journals[name] = self._folder / f"{name}_{len(list(self._folder.glob('*.jsonl')))}.jsonl"
        self._journals[name].touch()
        return self._journals[name]


def _outcome(answer: tuple[int, dict[str, Any]]) -> tuple[str, str]:
    code, table = answer
    assert 0 == code, table
    return table["outcome"], table["after"]["phase"]
