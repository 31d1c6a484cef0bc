"""The simulated ZooKeeper is held to a real one: the same operations have the same answers, stats and watch events."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import Callback, ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE

from commit_coord.local import ZooKeeperEnsemble
from commit_coord.locks.base import Lease, LockSettings
from commit_coord.locks.zookeeper.nodes import CreateNode
from commit_coord.model import LeaseState, LockMode, LockRequest, LockScope, Owner, Resource
from tests import limits
from tests.proof.sim.world import CALM, Process, Service, World
from tests.proof.sim.zookeeper import (
    Ensemble,
    Op,
    SimulatedKazoo,
    SimulatedZooKeeperManager,
)

Told = list[Any]
Deed = tuple[int, str, Any]
"""Which client does what, with what."""

_BASE = "/d"
_PATHS = [_BASE, *(f"{_BASE}/{name}" for name in ("a", "b", "a/x", "b/x"))]
_NUMBERED = [f"{path}/n-{number:010d}" for path in (_BASE, f"{_BASE}/a") for number in range(3)]


def _deeds(dice: random.Random, count: int) -> Iterator[Deed]:
    yield 0, "multi", [Op("create", _BASE)]
    for _ in range(count):
        who = dice.randrange(2)
        kind = dice.choice(["multi"] * 6 + ["watch"] * 3 + ["children", "exists", "get", "delete"])
        if kind == "multi":
            yield who, kind, [_operation(dice) for _ in range(dice.choice([1, 1, 1, 2, 3]))]
        else:
            yield who, kind, dice.choice(_PATHS[1:] + _NUMBERED if kind == "delete" else _PATHS + _NUMBERED)
        if dice.random() < 0.02:
            yield who, "anew", None


def _operation(dice: random.Random) -> Op:
    kind = dice.choice(["create", "create", "numbered", "set", "set", "delete", "check"])
    version, data = dice.choice([-1, -1, -1, 0, 1]), dice.randbytes(dice.randrange(4))
    if kind == "numbered":
        path = dice.choice([_BASE, f"{_BASE}/a", f"{_BASE}/b"]) + "/n-"
        return Op("create", path, data, ephemeral=dice.random() < 0.5, sequential=True)
    path = dice.choice(_PATHS[1:] + (_NUMBERED if kind != "create" else []))
    return Op(kind, path, data, version, ephemeral=kind == "create" and dice.random() < 0.3)


def _sent(client: Any, kind: str, what: Any, watch: Callable[[Any], None]) -> Any:
    match kind:
        case "watch":
            return client.get_async(what, watch=watch)
        case "get":
            return client.get_async(what)
        case "children":
            return client.get_children_async(what, include_data=True)
        case "exists":
            return client.exists_async(what)
        case "delete":
            return client.delete_async(what)
    transaction = client.transaction()
    for one in what:
        match one.kind:
            case "create":
                transaction.create(one.path, one.data, OPEN_ACL_UNSAFE, one.ephemeral, one.sequential)
            case "set":
                transaction.set_data(one.path, one.data, one.version)
            case "delete":
                transaction.delete(one.path, one.version)
            case "check":
                transaction.check(one.path, one.version)
    return transaction.commit_async()


def _answers_of(deeds: list[Deed], opened: Callable[[], Any], flushed: Callable[[Any], None]) -> Told:
    """Do all of *deeds* with two clients; return all that they were told, in order."""
    clients, told = [opened(), opened()], Told()
    fired: Told = []
    owners = {0: "nobody"}

    def note_owners() -> None:
        owners.update({client._session_id: f"client {number}" for number, client in enumerate(clients)})

    def plain(answer: Any) -> Any:
        match answer:
            case KazooException():
                return type(answer).__name__
            case ZnodeStat():
                return answer._replace(ctime=0, mtime=0, ephemeralOwner=owners[answer.ephemeralOwner])
            case (list(names), ZnodeStat() as stat):
                return sorted(names), plain(stat)
            case tuple() | list():
                return [plain(one) for one in answer]
        return answer

    for who, kind, what in deeds:
        if kind == "anew":
            clients[who].stop()
            clients[who] = opened()
        note_owners()
        if kind != "anew":

            def watch(event: Any, who: int = who, what: str = what) -> None:
                if event.path is not None:  # else the client itself was stopped
                    fired.append(("event", who, what, event.path))

            try:
                answer = plain(_sent(clients[who], kind, what, watch).get(timeout=120))
            except KazooException as error:
                answer = plain(error)
            told.append((who, kind, what, answer))
        for client in clients:
            client.sync_async(_BASE).get(timeout=120)
            client.exists_async(_BASE).get(timeout=120)
            flushed(client)
        told += sorted(fired, key=str)
        fired.clear()
    for client in clients:
        client.stop()
    return told


def _ranked(told: Told) -> Told:
    """Return *told* with transactions by their order: each server has its own numbers."""
    numbers: set[int] = set()

    def each(one: Any, seen: Callable[[int], int]) -> Any:
        if isinstance(one, ZnodeStat):
            return one._replace(czxid=seen(one.czxid), mzxid=seen(one.mzxid), pzxid=seen(one.pzxid))
        return type(one)(each(part, seen) for part in one) if isinstance(one, list | tuple) else one

    def note(number: int) -> int:
        numbers.add(number)
        return number

    each(told, note)
    ranks = {number: rank for rank, number in enumerate(sorted(numbers))}
    ranked: Told = each(told, ranks.__getitem__)
    return ranked


def _simulated(deeds: list[Deed]) -> Told:
    world, told = World(1), Told()
    process = Process(world, "client", {})
    ensemble = Ensemble(Service(world, "locks"))

    def opened() -> SimulatedKazoo:
        client = SimulatedKazoo(process, ensemble, 10.0, lambda _: None)
        assert client._live.wait(limits.PATIENCE)
        return client

    def work() -> None:
        told.extend(_answers_of(deeds, opened, lambda _: None))

    with world.ending():
        world.start(process, work)
        world.run(until=1000.0)
    assert not world.escaped
    return told


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    """A server, empty."""
    with ZooKeeperEnsemble(size=1) as zookeeper:
        yield zookeeper.connect_string


@pytest.mark.zookeeper
@pytest.mark.parametrize("seed", range(1, 5))
def test_the_simulated_tree_answers_as_a_real_one(real: str, seed: int) -> None:
    """Two sessions do what a seed says: results, errors, stats, the order of transactions, and watches are the same."""
    deeds = list(_deeds(random.Random(seed), 300))

    def opened() -> KazooClient:
        client = KazooClient(real, timeout=10)
        client.start(timeout=120)
        return client

    def flushed(client: KazooClient) -> None:
        done = threading.Event()
        client.handler.dispatch_callback(Callback("watch", done.set, ()))
        assert done.wait(limits.PATIENCE)

    cleaner = opened()
    cleaner.delete(_BASE, recursive=True)
    cleaner.stop()
    answers = _answers_of(deeds, opened, flushed)
    simulated = _simulated(deeds)
    for really, by_us in zip(_ranked(answers), _ranked(simulated), strict=True):
        assert by_us == really
    assert {"event", 0, 1} == {one[0] for one in answers}


def _request(request_id: str) -> LockRequest:
    return LockRequest.of(
        LockScope.OPERATION,
        {Resource(("db", "t")): LockMode.EXCLUSIVE},
        owner=Owner(user="u", host="h", pid=1, application="a"),
        request_id=request_id,
    )


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_lease_is_believed_in_no_longer_than_the_leader_keeps_its_session(seed: int) -> None:
    """The leader hears of a session with its pings alone, and of a follower that is cut off not at all."""
    world = World(seed)
    ensemble = Ensemble(Service(world, "locks", CALM))
    process = Process(world, "holder", {})
    manager = SimulatedZooKeeperManager(process, ensemble, LockSettings(), lambda _: None, prompt=False)
    wanted = _request("r")
    kept: list[Lease] = []
    ahead = process.clock.now() - world.now

    def ask() -> None:
        manager.locks()

    with world.ending():
        # Idle for a while: then the leader knows of pings alone.
        world.start(process, ask)
        world.run(until=11.0 + seed)
        world.start(process, lambda: kept.append(manager.acquire(wanted, deadline=process.clock.now() + 60)))
        (session,) = ensemble.lives
        now, cut_off = world.now, world.now + 3.0 + seed / 3
        ticket = None
        while (life := ensemble.lives.get(session)) is not None and world.now < cut_off + 60:
            if world.now >= cut_off and life.connection is not None:
                life.connection.deaf = True
            ticket = ticket or manager.parts.queue.tickets.get("r")
            if ticket is not None and ticket.lease is not None:
                assert manager.parts.queue.leases.counted_from(ticket) - ahead <= life.heard
            now += 0.05
            world.run(until=now)
        assert session not in ensemble.lives
        assert kept[0].state is LeaseState.LOST
        kept.clear()


def test_a_waiter_behind_a_lock_of_hive_withdraws_once_and_comes_when_that_is_gone() -> None:
    """However long Hive's query runs: what it deletes itself is no reason to enter again behind the same lock."""
    world = World(3)
    ensemble = Ensemble(Service(world, "locks", CALM))
    process, query = Process(world, "waiter", {}), Process(world, "query", {})
    manager, hive = (
        SimulatedZooKeeperManager(one, ensemble, LockSettings(), lambda _: None, prompt=False)
        for one in (process, query)
    )
    wanted = _request("r")
    granted: list[float] = []

    def lock() -> None:
        path = "/hive_zookeeper_namespace/db/t/LOCK-EXCLUSIVE-"
        hive.session.multi([CreateNode(path, b"q1:1:IMPLICIT:select:h", ephemeral=True, sequential=True)])

    def work() -> None:
        with manager.acquire(wanted, deadline=process.clock.now() + 120):
            granted.append(world.now)

    with world.ending():
        world.start(query, lock)
        world.run(until=1.0)
        world.start(process, work)
        world.run(until=60.0)
        entered = [
            path for _, changes in ensemble.tree.log for path, node in changes.items() if node and "requests/r" in path
        ]
        assert len(entered) == 1
        (theirs,) = [path for path in ensemble.tree.nodes if "LOCK-" in path]
        world.start(query, partial(hive.session.delete_each, [theirs]))
        world.run(until=65.0)
    assert not world.escaped
    assert len(granted) == 1


def test_a_lease_that_is_granted_while_nothing_else_is_held_is_kept() -> None:
    """Whatever the heartbeat is waiting for: here it is the end of the minute after which it removes a parent."""
    world = World(1)
    ensemble = Ensemble(Service(world, "locks", CALM))
    process = Process(world, "holder", {})
    settings = LockSettings(lease_ms=6_000, heartbeat_interval_ms=2_000)
    manager = SimulatedZooKeeperManager(process, ensemble, settings, lambda _: None, prompt=False)
    states: set[LeaseState] = set()

    def work() -> None:
        manager.acquire(_request("r1"), deadline=process.clock.now() + 60).release()
        process.clock.sleep(3.0)
        lease = manager.acquire(_request("r2"), deadline=process.clock.now() + 60)
        for _ in range(200):
            process.clock.sleep(0.1)
            states.add(lease.state)
        lease.release()

    with world.ending():
        world.start(process, work)
        world.run(until=40.0)
    assert not world.escaped
    assert {LeaseState.HELD} == states


def test_what_a_client_costs_in_the_minute_after_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeat wakes up twice in each interval and asks nothing; then it removes the parents, and stops."""
    world = World(1)
    ensemble = Ensemble(Service(world, "locks", CALM))
    process = Process(world, "holder", {})
    manager = SimulatedZooKeeperManager(
        process, ensemble, LockSettings(heartbeat_interval_ms=5_000), lambda _: None, prompt=False
    )
    beats: list[float] = []
    asked: list[float] = []
    leases, connection = manager.parts.queue.leases, manager.session.connection
    chores, ask = leases.chores, connection.ask

    def noted_chores() -> float | None:
        beats.append(world.now)
        return chores()

    def noted_ask(*arguments: Any, **options: Any) -> Any:
        asked.append(world.now)
        return ask(*arguments, **options)

    monkeypatch.setattr(leases, "chores", noted_chores)
    monkeypatch.setattr(connection, "ask", noted_ask)
    with world.ending():
        world.start(process, lambda: manager.acquire(_request("r"), deadline=process.clock.now() + 60).release())
        world.run(until=55.0)
        assert max(asked) < 1.0
        assert 20 <= len(beats) <= 23
        world.run(until=70.0)
        assert max(asked) > 60.0
        assert 24 <= len(beats) <= 29
        world.run(until=1_000.0)
        assert len(beats) <= 29
    assert not world.escaped
