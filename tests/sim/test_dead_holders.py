"""How long the lock of a holder that died stays, counted in virtual time: however busy this machine is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from commit_coord.locks.base import Lease, LockManager, LockSettings
from commit_coord.model import LeaseState, LockMode, LockRequest, LockScope, Owner, Resource
from tests.proof.sim.locking import LockDatabase, SimulatedLeaseManager
from tests.proof.sim.metastore import SimulatedHmsManager, SimulatedMetastore
from tests.proof.sim.plan import Metastore
from tests.proof.sim.world import CALM, Process, Service, World
from tests.proof.sim.zookeeper import Ensemble, SimulatedZooKeeperManager

SETTINGS = LockSettings(heartbeat_interval_ms=5_000)
LEASE = SETTINGS.lease_ms / 1000
SLACK = {"lease": 1.5, "zookeeper": 1.5, "hms": SETTINGS.check_max_wait_ms / 1000}
"""Seconds: the way to the service and back, and the time until a waiter looks again, or the rest of a tick."""
TABLE = Resource(("db", "t"))


@dataclass(frozen=True)
class Setting:
    """A world with a lock service; all of its processes are of other hosts.

    Args:
        service: Which one.
        world: Where it is.
        manager: Gives a process its lock manager.
    """

    service: str
    world: World
    manager: Callable[[Process], LockManager]


@pytest.fixture(params=list(SLACK))
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """One lock service after the other."""
    world = World(7)
    service = Service(world, "locks", CALM)
    kind: Any
    place: Any
    with ExitStack() as stack:
        if request.param == "lease":
            kind, place = SimulatedLeaseManager, LockDatabase(service, lambda: world.now, remote=True)
            stack.callback(place.db.close)
        elif request.param == "zookeeper":
            kind, place = SimulatedZooKeeperManager, Ensemble(service)
        else:
            kind, place = SimulatedHmsManager, SimulatedMetastore(service, Metastore())
        yield Setting(
            request.param, world, lambda process: kind(process, place, SETTINGS, lambda _: None, prompt=False)
        )


def _request(scope: LockScope, name: str, *, explicit: bool = False) -> LockRequest:
    return LockRequest.of(
        scope,
        {TABLE: LockMode.EXCLUSIVE},
        owner=Owner(user="u", host=name, pid=1, application="a", process=f"{name} 1"),
        request_id=f"{name}-1",
        explicit=explicit,
    )


@pytest.mark.parametrize("scope", LockScope)
@pytest.mark.parametrize("held", [1.0, 20.0, 333.0])
def test_a_waiter_has_the_lock_of_a_dead_holder_one_lease_after_its_last_word(
    setting: Setting, scope: LockScope, held: float
) -> None:
    """It has waited before, for a moment or for long, when the holder dies."""
    here = setting.world
    processes = {name: Process(here, name, {}) for name in ("holder", "waiter")}
    managers = {name: setting.manager(process) for name, process in processes.items()}
    granted: dict[str, tuple[float, Lease]] = {}

    def acquire(name: str) -> None:
        wanted = _request(scope, name)
        clock = processes[name].clock
        lease = managers[name].acquire(wanted, deadline=clock.now() + 10_000)
        granted[name] = here.now, lease

    with here.ending():
        here.start(processes["holder"], lambda: acquire("holder"))
        here.run(until=10.0)
        assert "holder" in granted
        here.start(processes["waiter"], lambda: acquire("waiter"))
        here.run(until=10.0 + held)
        assert "waiter" not in granted
        processes["holder"].alive = False
        here.ended(processes["holder"])
        here.run(until=here.now + 10 * LEASE)
        assert granted["waiter"][0] - (10.0 + held) <= LEASE + SLACK[setting.service]
        granted.clear()


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_lock_that_was_freed_by_force_has_one_holder_after_its_server_has_crashed(seed: int) -> None:
    """The next holder was granted by a question, which takes nothing to the disk; the old one is alive."""
    here = World(seed)
    database = LockDatabase(Service(here, "locks", CALM), lambda: here.now, remote=True, forgets=True)
    processes = {name: Process(here, name, {}) for name in ("old", "new", "operator")}
    managers = {
        name: SimulatedLeaseManager(process, database, SETTINGS, lambda _: None, prompt=False)
        for name, process in processes.items()
    }
    granted: dict[str, Lease] = {}

    def acquire(name: str) -> None:
        wanted = _request(LockScope.OPERATION, name)
        granted[name] = managers[name].acquire(wanted, deadline=processes[name].clock.now() + 60)

    def free() -> None:
        managers["operator"].unlock(request_id="old-1")

    with here.ending():
        here.start(processes["old"], lambda: acquire("old"))
        here.run(until=0.2)
        here.start(processes["new"], lambda: acquire("new"))
        here.run(until=0.4)
        here.start(processes["operator"], free)
        here.run(until=0.8)
        assert "new" in granted
        database.crash()
        here.run(until=LEASE / 2)
        assert {"old": LeaseState.LOST, "new": LeaseState.HELD} == {name: one.state for name, one in granted.items()}
        granted.clear()
    database.db.close()
    assert not here.escaped


def test_the_lock_of_a_lock_statement_does_not_come_back_when_the_server_crashes_after_its_release() -> None:
    """It never expires, so it would block all others until somebody unlocks it by force."""
    here = World(1)
    database = LockDatabase(Service(here, "locks", CALM), lambda: here.now, remote=True, forgets=True)
    process = Process(here, "job", {})
    manager = SimulatedLeaseManager(process, database, SETTINGS, lambda _: None, prompt=False)
    present: list[int] = []

    def lock_and_unlock() -> None:
        lease = manager.acquire(_request(LockScope.OPERATION, "job", explicit=True), deadline=process.clock.now() + 60)
        present.append(len(manager.locks()))
        lease.release()

    with here.ending():
        here.start(process, lock_and_unlock)
        here.run(until=0.5)
        database.crash()
        here.start(process, lambda: present.append(len(manager.locks())))
        here.run(until=1.0)
    database.db.close()
    assert not here.escaped
    assert present == [1, 0]
