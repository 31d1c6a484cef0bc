"""Many requests: all pairs of Hive's commands, streams that never end, and thousands of requests at random."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from commit_coord.errors import LockRefused
from commit_coord.locks.base import DenyPolicy
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.model import LockMode, LockRequest, Resource
from commit_coord.protocol.hierarchy import Operation, operation_locks
from commit_coord.testing.contract import (
    Contender,
    S,
    Service,
    X,
    clashing,
    excludes_nothing,
    request,
    soon,
    standing,
    until,
)
from tests import limits
from tests.contract.conftest import CARRYING, NOT_CARRYING

# The manual's rows: what the command does to which partition, and the locks that the manual names. One differs: it
# gives the concatenation of a partition X on T1.P1 alone, and says that a lock on a partition includes S on its
# parents.
# Source: Hive wiki "Locking".
ROWS: tuple[tuple[dict[str, Operation], str], ...] = (
    ({"T1.P1": Operation.SELECT}, "S T1, S T1.P1"),
    ({"T1.P1": Operation.SELECT, "T2.P2": Operation.INSERT}, "S T2, S T1, S T1.P1, X T2.P2"),
    ({"T1.P1": Operation.SELECT, "T2.P.Q": Operation.INSERT}, "S T2, S T2.P, S T1, S T1.P1, X T2.P.Q"),
    ({"T1": Operation.RENAME}, "X T1"),
    ({"T1": Operation.ADD_COLUMNS}, "X T1"),
    ({"T1": Operation.REPLACE_COLUMNS}, "X T1"),
    ({"T1": Operation.CHANGE_COLUMNS}, "X T1"),
    ({"T1": Operation.CONCATENATE}, "X T1"),
    ({"T1.P1": Operation.ADD_PARTITION}, "S T1, X T1.P1"),
    ({"T1.P1": Operation.DROP_PARTITION}, "S T1, X T1.P1"),
    ({"T1.P1": Operation.TOUCH_PARTITION}, "S T1, X T1.P1"),
    ({"T1": Operation.SET_SERDE_PROPERTIES}, "S T1"),
    ({"T1": Operation.SET_SERIALIZER}, "S T1"),
    ({"T1": Operation.SET_FILE_FORMAT}, "S T1"),
    ({"T1": Operation.SET_TABLE_PROPERTIES}, "X T1"),
    ({"T1.P1": Operation.CONCATENATE_PARTITION}, "S T1, X T1.P1"),
    ({"T1": Operation.DROP_TABLE}, "X T1"),
)

NAMINGS: Mapping[str, Mapping[str, str]] = {
    "the same partitions": {},
    "other partitions": {"P1": "R1", "P2": "R2", "P": "R"},
    "where the first one writes": {"T1": "T2", "P1": "P2"},
    "a prefix of it": {"T1": "T2", "P1": "P"},
}
"""What the second of two commands is about, if the first is about the names in the table."""


def renamed(text: str, naming: Mapping[str, str]) -> str:
    return ".".join(naming.get(name, name) for name in text.split("."))


def run_side_by_side(one: str, other: str, naming: Mapping[str, str]) -> bool:
    """The model: unless one wants X on something that the other wants at all."""
    first = {lock[2:]: lock[0] for lock in one.split(", ")}
    second = [(renamed(lock[2:], naming), lock[0]) for lock in other.split(", ")]
    return not any(name in first and "X" in (mode, first[name]) for name, mode in second)


def asked(row: Mapping[str, Operation], naming: Mapping[str, str]) -> LockRequest:
    """The request that our own table of commands makes for a row."""
    locks: list[tuple[LockMode, Resource]] = []
    for name, operation in row.items():
        table, *partition = renamed(name, naming).split(".")
        parts = [[f"k{level}={value}" for level, value in enumerate(partition)]] if partition else []
        locks += [(mode, one) for one, mode in operation_locks(operation, Resource(("db", table)), parts)]
    return request(*locks)


@pytest.mark.parametrize("service", ["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)], indirect=True)
def test_all_pairs_of_commands_run_side_by_side_as_the_matrix_says(service: Service) -> None:
    """17 commands against 17: on the same partitions, on others, on those that the first one writes."""
    assert 17 == len(ROWS)
    manager, other = service.open(), service.open()
    wrong, together = [], 0
    for held, held_locks in ROWS:
        with manager.acquire(asked(held, {}), deadline=soon()):
            for (wanted, wanted_locks), naming in itertools.product(ROWS, NAMINGS):
                try:
                    wish = asked(wanted, NAMINGS[naming])
                    other.acquire(wish, deadline=soon(), policy=DenyPolicy(numretries=0)).release()
                    granted = True
                except LockRefused:
                    granted = False
                together += granted
                if granted is not run_side_by_side(held_locks, wanted_locks, NAMINGS[naming]):
                    wrong.append((held, wanted, naming, granted))
    assert [] == wrong
    assert 0 < together < 17 * 17 * len(NAMINGS)


@pytest.mark.parametrize("service", CARRYING + NOT_CARRYING, indirect=True)
def test_a_writer_passes_an_endless_stream_of_readers(service: Service) -> None:
    """There is always a reader; the writer is granted after those before it, and before those that come later."""
    manager = service.open()
    if not manager.guarantees.mutual_exclusion:
        excludes_nothing(manager, service.open())
        return
    table, enough = Resource(("db", "t")), threading.Event()
    reads: list[tuple[float, float]] = []  # when it was asked for, and granted

    def read(client: HandoverLockManager) -> None:
        while not enough.is_set():
            came = time.monotonic()
            with client.acquire(request((S, table)), deadline=soon()):
                reads.append((came, time.monotonic()))
                time.sleep(0.05)  # the subject: readers that are slow, so that some overlap

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, service.open()) for _ in range(4)]
        try:
            until(lambda: len(reads) > 4, "a stream of readers")
            writer = Contender(service.open(), request((X, table)), seconds=120).queued()
            queued = time.monotonic()
            until(writer.granted.is_set, "the writer's turn")
            granted = time.monotonic()
            late = [came for came, began in list(reads) if came > queued and began < granted - 0.05]
            assert [] == late or not manager.guarantees.fifo
            writer.release()
        finally:
            enough.set()
        for reader in readers:
            reader.result(limits.PATIENCE)
    # A release that the service did not answer is done again.
    until(lambda: not manager.locks(table), "the end of all locks")


def seeds() -> list[int]:
    """One, which the output names; COMMIT_COORD_SEED says it again."""
    return [int(os.environ.get("COMMIT_COORD_SEED") or random.randrange(10**6))]


@pytest.mark.parametrize("seed", seeds(), ids=lambda seed: f"seed{seed}")
@pytest.mark.parametrize(
    "service, count",
    [
        ("memory", 10_000),
        pytest.param("lease-sqlite", 10_000, marks=pytest.mark.slow),
        pytest.param("lease-postgresql", 10_000, marks=[pytest.mark.postgres, pytest.mark.slow]),
        pytest.param("zookeeper", 10_000, marks=[pytest.mark.zookeeper, pytest.mark.slow]),
    ],
    indirect=["service"],
)
def test_thousands_of_random_requests_all_end(service: Service, count: int, seed: int) -> None:
    """16 owners, each with one request after the other over 50 resources: all are granted at last."""
    print(f"COMMIT_COORD_SEED={seed}")
    owners = 16
    days = [Resource(("db", f"t{table}", f"day={day}")) for table in range(5) for day in range(9)]
    resources = [*days, *(Resource(("db", f"t{table}")) for table in range(5))]
    assert 50 == len(resources)
    clients = [service.open() for _ in range(4)]
    mutex, holders, clashes = threading.Lock(), dict[str, Mapping[Resource, LockMode]](), list[Resource]()

    def work(number: int) -> int:
        dice = random.Random(seed * 100 + number)
        done = 0
        for _ in range(count // owners):
            chosen = dice.sample(resources, dice.randint(1, 4))
            wanted = request(*((dice.choice([S, S, X]), resource) for resource in chosen))
            with clients[number % len(clients)].acquire(wanted, deadline=soon()):
                with mutex:
                    clashes.extend(clashing(dict(wanted.locks), holders.values()))
                    holders[wanted.request_id] = dict(wanted.locks)
                done += 1
                with mutex:
                    del holders[wanted.request_id]
        return done

    with ThreadPoolExecutor(owners) as pool:
        assert count == sum(pool.map(work, range(owners)))
    assert [] == clashes
    until(lambda: not standing(clients[0]), "an empty queue")
