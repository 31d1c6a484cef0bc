"""Transactions over three tables, drawn from a seed, with swaps that are killed, lost and late: all or nothing.

Writers append, each transaction to some of the tables, among lone appends and unmodified writers. Readers look at all
pointers in one statement, so they see what any reader can see at one moment; and they look at one table after the
other, as readers do: what they have seen in one they must see in the next.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from commit_coord import CommitNotApplied, CommitStateUnknown
from commit_coord.coordinator import PointerSwap
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.protocol.commit import SwapResult, TryLimits
from tests.catalog.kit import SCHEMA, Kit, ids, kit, row_ids
from tests.coordinator.test_lost_replies import NoWaiting

TABLES = ("db.a", "db.b", "db.c")
_WRITERS, _TRANSACTIONS = 3, 5
_FAULTS = ("none", "none", "killed before", "killed after", "lost before", "lost after", "late")


class Killed(BaseException):
    """The writer ends where it is, as if its process had been killed: it looks after nothing any more."""


@dataclass
class World:
    """What writers did, and what readers saw."""

    seed: int
    ends: dict[str, set[str]] = field(default_factory=dict)
    """Transaction → how its tries ended."""
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Transaction → its tables."""
    late: list[Callable[[], object]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def deliver(self) -> None:
        """Carry out a swap that was sent long ago."""
        with self.lock:
            swap = self.late.pop(0) if self.late else None
        if swap is not None:
            swap()


class FaultyStore:
    """The store of one writer, whose swaps meet the faults that are drawn for them."""

    def __init__(self, real: Any, dice: random.Random, world: World) -> None:
        self._real, self._dice, self._world = real, dice, world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def swap_all(self, swaps: Sequence[PointerSwap], lease_ids: Sequence[int] = ()) -> SwapResult:
        fault = self._dice.choice(_FAULTS)
        self._world.faults[fault] += 1
        match fault:
            case "killed before":
                raise Killed
            case "killed after":
                self._real.swap_all(swaps, lease_ids)
                raise Killed
            case "lost before":
                return SwapResult.LOST_REPLY
            case "lost after":
                self._real.swap_all(swaps, lease_ids)
                return SwapResult.LOST_REPLY
            case "late":
                with self._world.lock:
                    self._world.late.append(lambda: self._real.swap_all(swaps, lease_ids))
                return SwapResult.LOST_REPLY
        found: SwapResult = self._real.swap_all(swaps, lease_ids)
        return found


def write(store: Kit, world: World, writer: int) -> None:
    """Do what is drawn for *writer*, each transaction until it is known to have landed, or twice."""
    dice = random.Random(f"{world.seed} {writer}")
    catalog = store.open()
    try:
        catalog.coordinator.store = FaultyStore(catalog, dice, world)
        catalog.coordinator.clock, catalog.coordinator.limits = NoWaiting(), TryLimits(status_checks=3)
        for number in range(_TRANSACTIONS):
            name = f"{world.seed}-{writer}-{number}"
            chosen = tuple(dice.sample(TABLES, dice.randint(2, 3)))
            world.parts[name], world.ends[name] = chosen, set()
            for _ in range(2):
                try:
                    with catalog.transaction(name) as tx:
                        for table in chosen:
                            tx.table(table).append(ids(writer * 100 + number))
                        if dice.random() < 0.4:  # refused where another one has set it since
                            tx.table(dice.choice(chosen)).set_properties({"mark": name})
                except CommitNotApplied:
                    world.ends[name].add("refused")
                except (CommitStateUnknown, Killed):
                    world.ends[name].add("unknown")
                else:
                    world.ends[name].add("done")
                    break
            if dice.random() < 0.5:
                world.deliver()
    finally:
        catalog.close()


def disturb(store: Kit, world: World, stop: threading.Event) -> None:
    """Append to one table after the other: through the library, and as an unmodified writer."""
    dice, number = random.Random(f"{world.seed} disturb"), 1000
    while not stop.is_set():
        table, number = dice.choice(TABLES), number + 1
        if dice.random() < 0.5:
            store.catalog.load_table(table).append(ids(number))
        else:
            try:
                store.stock.load_table(table).append(ids(number))
            except CommitFailedException:
                continue
        stop.wait(dice.random() / 10)  # the subject: the pace of a writer


class Reader:
    """Sees which transactions are in which tables."""

    def __init__(self, store: Kit) -> None:
        self._catalog = store.open()
        self._query = f"SELECT table_name, metadata_location FROM iceberg_tables WHERE catalog_name = '{store.name}'"

    def close(self) -> None:
        self._catalog.close()

    def at_once(self) -> Mapping[str, Counter[str]]:
        """Return table → transactions, of one moment."""
        with self._catalog.engine.connect() as connection:
            pointers = dict(list(connection.exec_driver_sql(self._query)))
        return {f"db.{name}": self._landed(location) for name, location in pointers.items()}

    def in_turn(self, order: Sequence[str]) -> list[tuple[str, Counter[str]]]:
        """Return (table, transactions), each table read after the one before it."""
        return [(table, self._landed(self._catalog.metadata_location(table))) for table in order]

    def _landed(self, location: str) -> Counter[str]:
        snapshots = self._catalog.coordinator.read(location).snapshots
        return Counter({s.summary[REQUEST_ID]: 0 for s in snapshots if REQUEST_ID in s.summary})


def read(store: Kit, world: World, stop: threading.Event, wrong: list[str]) -> int:
    """Look again and again; return how often something was seen."""
    dice, reader, looks = random.Random(f"{world.seed} read"), Reader(store), 0
    try:
        while not stop.is_set():
            seen = reader.at_once()
            looks += 1
            for name, tables in list(world.parts.items()):
                there = {table for table in tables if request_uuid(name) in seen[table]}
                if there not in (set(), set(tables)):
                    wrong.append(f"{name} was seen in {sorted(there)} of {sorted(tables)}")
            before: set[str] = set()
            for table, landed in reader.in_turn(dice.sample(TABLES, 3)):
                for name, tables in list(world.parts.items()):
                    if table not in tables:
                        continue
                    if request_uuid(name) in landed:
                        before.add(name)
                    elif name in before:
                        wrong.append(f"{name} was seen in another table before, and is not in {table}")
    finally:
        reader.close()
    return looks


def check(store: Kit, world: World) -> None:
    """Assert that each transaction is in all of its tables once, or in none, as its writer was told."""
    landed = {}
    for table in TABLES:
        snapshots = store.catalog.load_table(table).metadata.snapshots
        landed[table] = Counter(request for s in snapshots for request in {s.summary.get(REQUEST_ID)})
    assert len(world.parts) == _WRITERS * _TRANSACTIONS
    for name, tables in world.parts.items():
        counts = [landed[table][request_uuid(name)] for table in tables]
        ends = world.ends[name]
        is_there = all(counts)
        assert is_there or not any(counts), f"{name} is in some of {tables}: {counts}, {ends}"
        if "done" in ends:
            assert is_there, f"{name} was acknowledged, and is gone"
        if ends == {"refused"}:
            assert not is_there, f"{name} was refused, and is there"
    for table in TABLES:
        appended = [number for number in row_ids(store.catalog.load_table(table)) if number < 1000]
        assert len(appended) == len(set(appended)), f"a row is in {table} twice"


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
def test_every_transaction_is_seen_whole_or_not_at_all(seed: int) -> None:
    with kit("lease") as store:
        world, stop, wrong = World(seed), threading.Event(), list[str]()
        for table in TABLES:
            store.catalog.create_table(table, SCHEMA)
        with ThreadPoolExecutor(_WRITERS + 3) as pool:
            disturbers = [pool.submit(disturb, store, world, stop)]
            readers = [pool.submit(read, store, world, stop, wrong) for _ in range(2)]
            try:
                for writer in [pool.submit(write, store, world, number) for number in range(_WRITERS)]:
                    writer.result()
            finally:
                while world.late:
                    world.deliver()
                stop.set()
            looks = sum(reader.result() for reader in readers)
            for each in disturbers:
                each.result()
        assert [] == wrong
        assert looks > 0
        assert sum(world.faults.values()) > _WRITERS * _TRANSACTIONS / 2
        check(store, world)
        assert [] == store.held()


_SHORT_LEASE = {"lock.heartbeat-timeout-ms": "2000", "lock.heartbeat-interval-ms": "500"}

_KILLED = """
import os, signal, sys
from commit_coord import load_catalog
from tests.catalog.kit import ids
from sqlalchemy import Connection

place, name, uri, warehouse, number = sys.argv[1:]
arguments = {"uri": uri, "warehouse": warehouse, "lock-impl": "lease"}
arguments |= {"lock.heartbeat-timeout-ms": "2000", "lock.heartbeat-interval-ms": "500"}
catalog = load_catalog(name, **arguments)
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
real, commit = catalog.swap_all, Connection.commit

def swap_all(*arguments):
    if place == "before the swap":
        kill()
    if place == "before COMMIT":
        Connection.commit = lambda self: kill()
    result = real(*arguments)
    kill()

catalog.swap_all = swap_all
with catalog.transaction() as tx:
    for table in ("db.a", "db.b", "db.c"):
        tx.table(table).append(ids(int(number)))
"""


@pytest.mark.parametrize("place", ["before the swap", "before COMMIT", "after COMMIT"])
def test_a_process_that_is_killed_in_its_swap_leaves_all_or_nothing_and_no_lock(place: str) -> None:
    with kit("lease", **_SHORT_LEASE) as store:
        for table in TABLES:
            store.catalog.create_table(table, SCHEMA).append(ids(1))
        arguments = [place, store.name, f"coord+{store.uri}", store.warehouse, "2"]
        ended = subprocess.run([sys.executable, "-c", _KILLED, *arguments], env=dict(os.environ), check=False)
        assert -signal.SIGKILL == ended.returncode
        with store.catalog.transaction() as tx:  # the latches of the dead one have run out
            for table in TABLES:
                tx.table(table).append(ids(3))
        expected = [1, 2, 3] if place == "after COMMIT" else [1, 3]
        assert [expected] * 3 == [row_ids(store.catalog.load_table(table)) for table in TABLES]
        assert [] == store.held()
