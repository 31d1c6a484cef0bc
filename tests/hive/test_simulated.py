"""The simulated lock table and a real metastore are asked the same, and answer the same."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hive_metastore.ttypes import LockComponent, LockRequest

from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import MetastoreAccess, MetastoreConnection, NoSuchLock
from commit_coord.hms.locks import LockPart, LockType
from commit_coord.hms.pool import Pool
from commit_coord.local import HiveMetastore
from tests.proof.sim.metastore import LockTable

STEPS = 80
TYPES = (LockType.SHARED_READ, LockType.SHARED_READ, LockType.EXCLUSIVE, LockType.EXCLUSIVE, LockType.SHARED_WRITE)


class Direct(MetastoreConnection):
    """Asks the simulated table without a way to it; a second goes by with each call."""

    def __init__(self, table: LockTable, seconds: Iterator[int]) -> None:
        self.address, self.clean = "thrift://simulated:9083", True
        self._table, self._seconds = table, seconds

    @property
    def healthy(self) -> bool:
        return True

    def call(self, name: str, *arguments: Any, patience_ms: int = 0, limit_ms: int | None = None) -> Any:
        return self._table.answer(name, *arguments)

    def close(self) -> None:
        pass


class Asked:
    """One of the two, by the order in which its locks were asked for instead of its ids."""

    def __init__(self, client: MetastoreClient) -> None:
        self.client = client
        self.ids: list[int] = []
        self._beats: dict[tuple[int, LockPart], int] = {}

    def lock(self, components: list[tuple[LockType, str, str | None, str | None]]) -> Any:
        asked = LockRequest(
            component=[
                LockComponent(
                    type=kind,
                    level=1 + (table is not None) + (partition is not None),
                    dbname=db,
                    tablename=table,
                    partitionname=partition,
                    operationType=6,
                )
                for kind, db, table, partition in components
            ],
            user="u",
            hostname="h",
            agentInfo=f"a{len(self.ids)}",
        )
        response = self.client._caller.send("lock", asked)
        self.ids.append(response.lockid)
        return response.state

    def answer(self, name: str, number: int) -> Any:
        try:
            return getattr(self.client, name)(self.ids[number])
        except NoSuchLock:
            return "no such lock"

    def present(self, db: str, table: str | None) -> list[Any]:
        """Return what is listed, with what changes by every clock: whether it was extended since the last look."""
        listed = self.client.show_locks(db, table)
        beats = {(one.lock_id, one.part): one.heartbeat_ms for one in listed}
        moved = {component for component, beat in beats.items() if self._beats.get(component) != beat}
        self._beats |= beats
        return sorted(
            (
                self.ids.index(one.lock_id),
                one.part.type,
                one.part.table,
                one.part.partition or "",
                one.acquired,
                one.acquired_ms is not None,
                (one.lock_id, one.part) in moved,
                one.user,
                one.host,
                one.agent,
            )
            for one in listed
        )


def simulated(*, by_id: bool = False) -> MetastoreClient:
    """Return a real client of a simulated table, on which a second goes by with each look at the clock."""
    ticks = count(1)
    table = LockTable(lambda: float(next(ticks)), by_id=by_id)
    client = MetastoreClient("thrift://simulated:9083", MetastoreAccess())
    client._caller.pool = Pool(client.addresses, lambda _: Direct(table, ticks))
    return client


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_simulated_lock_table_answers_as_a_real_one(hms: HiveMetastore, seed: int) -> None:
    real = MetastoreClient(hms.uri, MetastoreAccess())
    compare(real, simulated(), seed)
    real.close()


def compare(real: MetastoreClient, copy: MetastoreClient, seed: int, steps: int = STEPS) -> None:
    dice = random.Random(seed)
    db = f"sim{uuid.uuid4().hex}"
    both = Asked(real), Asked(copy)
    told: list[str] = []
    try:
        for _ in range(steps):
            made = range(len(both[0].ids))
            what = dice.choice(["lock", "lock", "lock", "check_lock", "check_lock", "unlock", "unlock", "heartbeat"])
            if what == "lock" or not made:
                components = [
                    (
                        dice.choice(TYPES),
                        db,
                        *dice.choice([(None, None), *[("t", None), ("t", "k=1"), ("t", "k=2"), ("u", None)] * 2]),
                    )
                    for _ in range(dice.choice([1, 1, 2, 3]))
                ]
                told.append(f"lock {len(made)}: {components}")
                answers = [one.lock(components) for one in both]
            else:
                # Mostly one of those that may still be there.
                number = dice.choice(made[-6:] if dice.random() < 0.8 else made)
                told.append(f"{what} {number}")
                answers = [one.answer(what, number) for one in both]
            table = dice.choice([None, None, "t"])
            listed = [one.present(db, table) for one in both]
            told.append(f"… {answers[0]}: {listed[0]}")
            assert (answers[0], listed[0]) == (answers[1], listed[1]), "\n".join(told)
    finally:
        for lock_id in both[0].ids:
            real.unlock(lock_id)
