"""What the zookeeper manager promises beyond the contract: Hive's layout, sessions, cuts, large requests, access."""

from __future__ import annotations

import gc
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import (
    LockDeadlock,
    LockError,
    LockLost,
    LockRefused,
    LockServiceUnavailable,
    LockTimeout,
    OfferLost,
)
from commit_coord.events import LockLeaseLost, LockReleaseFailed
from commit_coord.local import ZooKeeperEnsemble
from commit_coord.local.server import by_load
from commit_coord.local.zookeeper import ZooKeeperServer
from commit_coord.locks.base import BRIEFLY, DenyPolicy, HeartbeatSender, Interrupted, LockSettings
from commit_coord.locks.forcing import NotRemoved
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.registry import create_lock_manager
from commit_coord.locks.zookeeper import layout as zookeeper_layout
from commit_coord.locks.zookeeper import queries
from commit_coord.locks.zookeeper import queue as queue_module
from commit_coord.locks.zookeeper import request_nodes as nodes_module
from commit_coord.locks.zookeeper import service as service_module
from commit_coord.locks.zookeeper.bulk import MultiRead
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.connection import EnsembleConnection
from commit_coord.locks.zookeeper.entering import Entering
from commit_coord.locks.zookeeper.journal import SPAN_MS, ZooKeeperJournal
from commit_coord.locks.zookeeper.layout import RequestData
from commit_coord.locks.zookeeper.manager import ZooKeeperLockManager
from commit_coord.locks.zookeeper.nodes import CreateNode, DeleteNode, MultiRefused
from commit_coord.locks.zookeeper.opening import Opening
from commit_coord.locks.zookeeper.view import LockView
from commit_coord.model import (
    JournalEntry,
    LeaseState,
    LockEntry,
    LockMode,
    LockScope,
    LockState,
    Resource,
)
from commit_coord.process import this_owner
from commit_coord.testing.carrying import Submitter, answer, in_line, offering
from commit_coord.testing.contract import (
    PART_A,
    PART_B,
    PATIENCE,
    TABLE,
    Contender,
    Interrupt,
    Service,
    blocked,
    latch,
    request,
    soon,
    standing,
    throughout,
    until,
)
from tests.contract.proxy import MULTI, Proxy
from tests.threads import elsewhere

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
HIVE = "hive_zookeeper_namespace"
_APART = Resource(("db", "t2", "day=1"))
ELSEWHERE = replace(this_owner("far away", application="contract"), process="")
"""An owner whose process can't be looked at from here, as on another host."""


@pytest.fixture
def service(zookeeper: ZooKeeperEnsemble) -> Iterator[Service]:
    """A space of its own on a server for all tests."""
    with in_zookeeper(zookeeper.connect_string) as service:
        yield service


@pytest.fixture
def proxy(zookeeper: ZooKeeperEnsemble) -> Iterator[Proxy]:
    """A network to the server."""
    with Proxy(zookeeper.servers[0].port) as proxy:
        yield proxy


@pytest.fixture
def raw(zookeeper: ZooKeeperEnsemble) -> Iterator[Any]:
    """A client that knows nothing of locks, as any other program may be."""
    yield from connected(zookeeper.connect_string)


def connected(servers: str, **options: Any) -> Iterator[Any]:
    from kazoo.client import KazooClient

    client = KazooClient(servers, timeout=10, **options)
    client.start(timeout=120)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@contextmanager
def opened(uri: str, space: str = "", **options: Any) -> Iterator[ZooKeeperLockManager]:
    """A client with options of its own."""
    manager = create_lock_manager("zookeeper", uri, space=space, options=options)
    assert isinstance(manager, ZooKeeperLockManager)
    with manager:
        yield manager


def in_zookeeper(servers: str, space: str = "") -> Service:
    return Service("zookeeper", servers, space, opens_sessions=True, ends_sessions=True)


def tree(raw: Any, path: str) -> set[str]:
    """Return all paths below *path*."""
    from kazoo.exceptions import NoNodeError

    found: set[str] = set()
    with suppress(NoNodeError):  # It may go while we look.
        for name in raw.get_children(path):
            found |= {f"{path}/{name}"} | tree(raw, f"{path}/{name}")
    return found


def end_session(session: ZooKeeperSession, other: HandoverLockManager) -> None:
    """Have the servers end *session*, as they do with one that was not heard of for too long."""
    from kazoo.client import KazooClient

    assert session.connection.opening is not None
    double = KazooClient(ours(other).access.hosts, client_id=session.connection.opening.client.client_id)
    double.start(timeout=120)
    double.stop()
    double.close()


def ours(manager: HandoverLockManager) -> ZooKeeperLockManager:
    assert isinstance(manager, ZooKeeperLockManager)
    return manager


def everything(raw: Any, service: Service) -> set[str]:
    return tree(raw, f"/{HIVE}@{service.space}") | tree(raw, f"/commit-coord/{HIVE}@{service.space}")


# The layout.


def test_operation_locks_lie_in_hiveslayout_and_format(zookeeper: ZooKeeperEnsemble, raw: Any) -> None:
    """Ephemeral where a query holds them, persistent and marked where a LOCK statement does."""
    namespace = f"hive-{uuid.uuid4().hex}"
    with opened(zookeeper.connect_string, namespace=namespace) as manager:
        wanted = request((X, PART_A), statement="INSERT INTO t: 1")
        with manager.acquire(wanted, deadline=soon()):
            nodes = tree(raw, f"/{namespace}")
            assert nodes == {
                f"/{namespace}/db",
                f"/{namespace}/db/t",
                f"/{namespace}/db/t/LOCK-SHARED-0000000001",  # the table's partition was counted too
                f"/{namespace}/db/t/day=1",
                f"/{namespace}/db/t/day=1/LOCK-EXCLUSIVE-0000000000",
            }
            data, stat = raw.get(f"/{namespace}/db/t/day=1/LOCK-EXCLUSIVE-0000000000")
            fields = data.decode().split(":")
            assert [wanted.request_id, "IMPLICIT", "INSERT INTO t 1", this_owner().host] == [fields[0], *fields[2:]]
            assert abs(int(fields[1]) - time.time() * 1000) < 60_000
            assert stat.ephemeralOwner != 0
        explicit = manager.acquire(request((S, TABLE), explicit=True), deadline=soon())
        (path,) = [path for path in tree(raw, f"/{namespace}") if "LOCK-" in path]
        data, stat = raw.get(path)
        assert (":EXPLICIT:" in data.decode(), stat.ephemeralOwner) == (True, 0)
        explicit.release()


def test_a_request_enters_as_one_transaction(service: Service, raw: Any) -> None:
    """Its nodes, its own marker and the parents that were missing share one transaction."""
    with service.open().acquire(request((X, PART_A), (X, PART_B)), deadline=soon()):
        nodes = [path for path in everything(raw, service) if "/journal" not in path]
        assert len({raw.exists(path).czxid for path in nodes}) == 1
        assert len([path for path in nodes if "LOCK-" in path]) == 3


def test_nothing_is_left_behind(service: Service, raw: Any) -> None:
    """Empty parents go with the client that used them; what others still use stays."""
    manager, other = service.open(), service.open()
    held = other.acquire(request((X, PART_B)), deadline=soon())
    for _ in range(3):
        manager.acquire(request((X, PART_A)), deadline=soon()).release()
        manager.acquire(latch(), deadline=soon()).release()
    assert any("day=1" in path for path in everything(raw, service))
    manager.close()
    assert not any("day=1" in path for path in everything(raw, service))
    held.ensure_active(0)
    held.release()
    other.close()
    left = {path.rpartition("/")[2] for path in everything(raw, service)}
    assert left == {"commit", "requests"}


def test_parents_that_nobody_used_for_long_are_removed(
    service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat does it, and the next lock there creates them anew; generations grow, although numbers restart."""
    monkeypatch.setattr(service_module, "_UNUSED", 0.05)
    manager = service.open(heartbeat_interval_ms=20)
    generations = []
    for _ in range(3):
        with manager.acquire(latch(), deadline=soon()) as lease:
            generations.append(lease.generation or 0)
            assert any(path.endswith("LOCK-EXCLUSIVE-0000000000") for path in everything(raw, service))
        until(lambda: not any(path.endswith("/db") for path in everything(raw, service)), "an empty tree")
    assert sorted(set(generations)) == generations


def test_what_dead_clients_left_is_cleared_by_reap(service: Service, raw: Any) -> None:
    """Empty parents of a client that did not close."""

    def work(client: HandoverLockManager) -> None:
        client.acquire(request((X, PART_A)), deadline=soon())

    os.waitpid(service.fork(work), 0)
    manager = service.open()
    assert {TABLE, PART_A} == {entry.resource for entry in manager.reap()}
    assert not any(path.endswith("/db") for path in everything(raw, service))


# Together with Hive's own clients.


def hive_lock(raw: Any, resource: str, mode: str, *, explicit: bool = False) -> str:
    """Take a lock as Hive does, and return its path."""
    path: str = raw.create(
        f"/{resource}/LOCK-{mode}-",
        f"hive_2026:1700000000000:{'EXPLICIT' if explicit else 'IMPLICIT'}:SELECT 1:10.0.0.7".encode(),
        ephemeral=not explicit,
        sequence=True,
        makepath=True,
    )
    return path


def test_hives_locks_are_seen_waited_for_and_freed(zookeeper: ZooKeeperEnsemble, raw: Any) -> None:
    """Hive's X stops us, its S stops our X; the error names what Hive tells; UNLOCK frees it."""
    root = f"hive-{uuid.uuid4().hex}"
    with opened(zookeeper.connect_string, namespace=root) as manager:
        theirs = hive_lock(raw, f"{root}/db/t", "EXCLUSIVE")
        with pytest.raises(LockTimeout) as timeout:
            manager.acquire(request((S, TABLE)), deadline=soon(0.2))
        facts = timeout.value.details
        assert ("10.0.0.7", "hive", "SELECT 1") == (facts["host"], facts["application"], facts["statement"])
        waiter = Contender(manager, request((S, TABLE))).queued()
        raw.delete(theirs)
        waiter.release()
        hive_lock(raw, f"{root}/db/t", "SHARED", explicit=True)
        assert not blocked(manager, request((S, TABLE)))
        assert blocked(manager, request((X, TABLE)))
        (entry,) = manager.unlock(resource=TABLE)
        assert ("hive_2026", True, S) == (entry.request_id, entry.explicit, entry.mode)
        assert not blocked(manager, request((X, TABLE)))


def test_hives_unlock_is_noticed(service: Service, raw: Any) -> None:
    """It deletes a lock node of ours, of any owner: the lease is lost, and the rest of the request goes."""
    manager = service.open()
    lease = manager.acquire(request((X, PART_A)), deadline=soon())
    gone = next(path for path in everything(raw, service) if "LOCK-EXCLUSIVE" in path)
    released = manager.acquire(request((X, Resource(("db", "t2")))), deadline=soon())
    raw.delete(gone)
    with pytest.raises(LockLost):
        lease.ensure_active(0)
    raw.delete(next(path for path in everything(raw, service) if "LOCK-EXCLUSIVE" in path))
    released.release()
    assert released.request.request_id not in standing(manager)


def test_what_hives_unlock_leaves_of_a_lock_statement_is_cleared_by_reap(service: Service, raw: Any) -> None:
    """It knows the lock alone. Other LOCK statements keep theirs."""
    manager = service.open()
    kept = manager.acquire(request((S, TABLE), explicit=True), deadline=soon())
    manager.acquire(request((X, Resource(("db", "t2"))), explicit=True), deadline=soon())
    raw.delete(next(path for path in everything(raw, service) if "LOCK-EXCLUSIVE" in path))
    manager.reap()
    markers = raw.get_children(f"/commit-coord/{HIVE}@{service.space}/requests")
    assert [kept.request.request_id] == markers
    kept.ensure_active(0)


def test_a_waiter_does_not_block_hive(service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hive holds A and tries for B, we queue for both: behind Hive we wait in no queue, so that it gets B and ends."""
    monkeypatch.setattr(queue_module, "NEXT_TO_HIVE_S", 0.2)
    manager, root = service.open(), f"{HIVE}@{service.space}"
    first = hive_lock(raw, f"{root}/db/t/day=1", "EXCLUSIVE")
    waiter = Contender(manager, request((X, PART_A), (X, PART_B))).queued()
    until(lambda: waiter.request.request_id not in standing(manager), "a free way")
    second = hive_lock(raw, f"{root}/db/t/day=2", "EXCLUSIVE")
    # On a slow machine it was in B again by then, in front of Hive. It gives that place back, and enters behind Hive.
    until(lambda: waiter.request.request_id not in standing(manager), "a free way")
    raw.delete(first)
    assert not waiter.granted.wait(0.1)  # the subject: it is not granted as time goes by
    raw.delete(second)
    waiter.release()


# Many.


def test_a_partition_is_locked_without_a_list_of_its_table(
    service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an acquire asks does not grow with the table; a mark that an X left behind is wiped by who finds it."""
    listed: list[str] = []
    children = ZooKeeperSession.children

    def noted(session: ZooKeeperSession, paths: Sequence[str], *arguments: Any, **options: Any) -> Any:
        listed.extend(paths)
        return children(session, paths, *arguments, **options)

    monkeypatch.setattr(ZooKeeperSession, "children", noted)
    manager, other = service.open(), service.open()
    table = f"/{HIVE}@{service.space}/db/t"
    for round_ in range(2):
        with other.acquire(request((X, PART_A)), deadline=soon()):
            del listed[:]
            manager.acquire(request((X, PART_B)), deadline=soon()).release()
            assert table not in listed
        with manager.acquire(request((X, TABLE)), deadline=soon()) as whole:
            assert whole.request.request_id.encode() == raw.get(table)[0]
            reader = Contender(other, request((S, TABLE))).queued()
            assert not reader.granted.is_set()
        reader.release()
        assert b"" == raw.get(table)[0], round_


def test_a_mark_is_not_wiped_while_another_x_comes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the list without X and the wiping a client enters an X: the next S finds it."""
    manager, other = service.open(), service.open()
    manager.acquire(request((X, TABLE)), deadline=soon()).release()
    wipe, turns, came = Entering.clear_marks, iter([True]), list[Contender]()

    def late(*arguments: Any) -> None:
        if next(turns, False):
            came.append(Contender(other, request((X, TABLE))).queued())
        wipe(*arguments)

    monkeypatch.setattr(Entering, "clear_marks", late)
    reader = manager.acquire(request((S, TABLE)), deadline=soon())
    assert blocked(other, request((S, TABLE)))
    reader.release()
    came[0].release()


def test_a_mark_on_a_parent_that_was_made_anew_is_not_wiped(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is freed by force before it wipes; the table's node goes, and comes with the next X."""
    manager, other, operator = service.open(), service.open(), service.open()
    operator.acquire(request((X, TABLE)), deadline=soon()).release()
    wipe, turns, came = Entering.clear_marks, iter([True]), list[HandoverLease]()
    wanted = request((S, TABLE))

    def late(*arguments: Any) -> None:
        if next(turns, False):
            operator.unlock(request_id=wanted.request_id)
            operator.close()  # removes the parents that nobody uses
            came.append(other.acquire(request((X, TABLE)), deadline=soon()))
        wipe(*arguments)

    monkeypatch.setattr(Entering, "clear_marks", late)
    manager.acquire(wanted, deadline=soon())
    assert blocked(manager, request((S, TABLE)))
    came[0].release()


# Round trips.


def received(zookeeper: ZooKeeperEnsemble) -> int:
    """Return how many packets the server has received; to ask is one too."""
    answer = re.search(r"^Received: (\d+)", zookeeper.servers[0].ask("srvr"), re.MULTILINE)
    assert answer is not None
    return int(answer[1])


@pytest.fixture
def alone() -> Iterator[ZooKeeperEnsemble]:
    """A server for one test, which counts its packets."""
    with ZooKeeperEnsemble(size=1) as zookeeper:
        yield zookeeper


@pytest.fixture
def identified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A waiter that has looked up what it waits for: the last that it asks for, until something changes."""
    identified: list[str] = []
    requests = LockView.requests

    def requested(view: LockView, request_ids: Iterable[str]) -> dict[str, RequestData | None]:
        found = requests(view, request_ids)
        if threading.current_thread() is not threading.main_thread():  # that one lists
            identified.append(threading.current_thread().name)
        return found

    monkeypatch.setattr(LockView, "requests", requested)
    return identified


@pytest.mark.zookeeper
def test_round_trips(alone: ZooKeeperEnsemble, identified: list[str]) -> None:
    """A latch costs four requests in two round trips: enter, list and look, then delete. Waiting costs none."""
    times = {"lease_ms": 100_000, "heartbeat_interval_ms": 30_000}
    with in_zookeeper(alone.connect_string) as service:
        manager, other = ours(service.open(**times)), ours(service.open(**times))
        for client in (manager, other):
            client.acquire(latch(), deadline=soon()).release()
        before = received(alone)
        for _ in range(50):
            manager.acquire(latch(), deadline=soon()).release()
        assert received(alone) - before - 1 == 200
        trips, ask = [0], EnsembleConnection.ask

        def count(connection: EnsembleConnection, requests: Any, patience: float, **options: Any) -> Any:
            # All of them are sent before the first answer is waited for.
            trips[0] += 1
            return ask(connection, requests, patience, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EnsembleConnection, "ask", count)
            manager.acquire(latch(), deadline=soon()).release()
        assert trips[0] == 2

        held = manager.acquire(latch(), deadline=soon())
        waiters = [Contender(other, latch()).queued() for _ in range(3)]
        until(lambda: len(set(identified)) == len(waiters), "each knows whom it waits for")
        before = received(alone)
        time.sleep(1.5)  # the subject: nothing is asked for while time goes by
        assert received(alone) - before - 1 == 0
        held.ensure_active()
        assert received(alone) - before - 2 == 0
        held.ensure_active(0)
        assert received(alone) - before - 3 == 3  # through the leader; the marker; the lock
        held.release()
        for waiter in waiters:
            waiter.release()


@pytest.mark.zookeeper
def test_what_carrying_costs(alone: ZooKeeperEnsemble, identified: list[str]) -> None:
    """Three requests for each that is carried, two of the holder's; and for all together a listing, a mark, an end."""
    times = {"lease_ms": 100_000, "heartbeat_interval_ms": 30_000}
    with in_zookeeper(alone.connect_string) as service:
        holder, other = ours(service.open(**times)), ours(service.open(**times))

        def carry(*texts: str) -> tuple[int, int]:
            """Return what the holder asks for until it has them, and all until they are answered."""
            held = holder.acquire(latch(), deadline=soon())
            identified.clear()
            members = in_line(other, *texts)
            until(lambda: len(set(identified)) == len(members), "each watches, and knows whom it waits for")
            before = received(alone)
            offered = held.take(10)
            taken = received(alone)
            held.settle([answer(offer.request_id) for offer in offered], [])
            held.release()
            assert [member.request.request_id for member in members] == [m.answer().key for m in members]
            return taken - before - 1, received(alone) - before - 2

        carry("the folders of the journal are made")
        assert carry("one", "two", "three") == (1 + 2 * 3 + 1, 1 + 3 * 3 + 1 + 1)


def test_an_acquire_asks_nothing_about_other_resources_and_requests(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one acquire lists is its own resources, however many locks there are elsewhere."""
    manager, other = service.open(), service.open()
    held = [
        other.acquire(request((X, Resource(("db", "t2", f"day={number}")))), deadline=soon()) for number in range(1)
    ]
    asked: list[str] = []
    ask = queries.children_of

    def note(path: str) -> Any:
        asked.append(path)
        return ask(path)

    monkeypatch.setattr(queries, "children_of", note)
    with manager.acquire(request((X, PART_A)), deadline=soon()):
        assert {path.partition("/db/t")[2] for path in asked} == {"/day=1"}
    for lease in held:
        lease.release()


# Sessions.


def test_a_cut_makes_a_lease_suspect_and_a_new_connection_makes_it_held(service: Service, proxy: Proxy) -> None:
    """SUSPENDED is SUSPECT; the same session over a new connection is HELD again, and waiters keep their place."""
    near, far = service.open(), in_zookeeper(proxy.connect_string, service.space)
    with far:
        manager = far.open()
        lease = manager.acquire(request((X, PART_A)), deadline=soon())
        told: list[LeaseState] = []
        lease.add_listener(lambda _, state: told.append(state))
        held = near.acquire(latch(), deadline=soon())
        waiter = Contender(manager, latch()).queued()
        proxy.cut()
        until(lambda: LeaseState.SUSPECT in told, "a lease that is suspect")
        with pytest.raises(LockServiceUnavailable):
            lease.ensure_active(0)
        held.release()  # while the waiter can't hear it
        assert not waiter.granted.is_set()
        proxy.mend()
        until(lambda: told[-1] is LeaseState.HELD, "a lease that is held")
        waiter.release()
        lease.ensure_active(0)
        lease.release()
        assert [] == [state for state in told if state is LeaseState.LOST]


def test_a_lease_is_lost_by_our_own_clock_before_anybody_else_can_have_it(service: Service, proxy: Proxy) -> None:
    """Cut off, nobody tells us that the session expired: our own clock does, and LOST stays so."""
    times = {"lease_ms": 1500, "heartbeat_interval_ms": 300}
    near, far = service.open(), in_zookeeper(proxy.connect_string, service.space)
    with far:
        manager = far.open(**times)
        lease = manager.acquire(latch(), deadline=soon())
        proxy.cut()
        with elsewhere(near.acquire, latch(), deadline=soon()) as next_lease:
            assert LeaseState.LOST is lease.state
            assert any(isinstance(event, LockLeaseLost) for event in far.seen)
            proxy.mend()
            until(lambda: not manager.locks() or True, "a connection")
            with pytest.raises(LockLost):
                lease.ensure_active(0)
            lease.release()
            next_lease.ensure_active(0)
        # The client goes on with a new session.
        manager.acquire(latch(), deadline=soon()).release()


def test_a_lease_that_ended_while_its_session_lived_leaves_no_nodes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder's heartbeats came too late, as on a busy machine, and kazoo's did not: nothing else would end them."""
    near, busy = service.open(), ours(service.open(lease_ms=600, heartbeat_interval_ms=100))
    lease = busy.acquire(latch(), deadline=soon())
    monkeypatch.setattr(busy.heartbeat, "_also", HeartbeatSender())
    busy.heartbeat.pause()
    until(lambda: lease.state is LeaseState.LOST, "a lease that ran out by its holder's clock")
    busy.heartbeat.resume()
    near.acquire(latch(), deadline=soon()).release()
    lease.release()
    assert not near.locks()


def test_a_waiter_whose_session_was_lost_queues_again_at_the_end(service: Service, proxy: Proxy) -> None:
    """It was away for longer than a session: its place is gone, and those who came later are before it."""
    near, far = service.open(), in_zookeeper(proxy.connect_string, service.space)
    with far:
        held = near.acquire(latch(), deadline=soon())
        stalled = ours(far.open(lease_ms=600, heartbeat_interval_ms=100))
        lost = Contender(stalled, latch()).queued()
        later = Contender(near, latch()).queued()
        stalled.heartbeat.pause()
        until(lambda: lost.request.request_id not in standing(near), "an expired session")
        stalled.heartbeat.resume()
        until(lambda: lost.request.request_id in standing(near), "a new place")
        held.release()
        later.ended()
        assert not lost.granted.is_set()
        later.release()
        lost.release()


def test_a_killed_holder_is_free_after_its_session(service: Service) -> None:
    """Kill -9 on another host: nobody can look at the process, and the session ends by itself."""

    def work(_: HandoverLockManager) -> None:
        client = service.open(lease_ms=1500, heartbeat_interval_ms=300)
        client.acquire(request((X, TABLE), owner=ELSEWHERE), deadline=soon())
        threading.Event().wait(600)

    manager = service.open()
    victim = service.fork(work)
    until(lambda: standing(manager), "a holder")
    waiter = Contender(manager, request((X, TABLE))).queued()
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    started = time.monotonic()
    waiter.ended()
    assert time.monotonic() - started < by_load(4)
    assert [waiter.request.request_id] == list(standing(manager))
    waiter.release()


@pytest.mark.parametrize("ended_by", ["a waiter", "reap"])
def test_a_lock_statement_that_is_killed_elsewhere_while_it_waits_locks_nothing(
    service: Service, ended_by: str
) -> None:
    """Its nodes are persistent, so that a granted lock stays; who waits for the grant is shown by another node."""

    def work(_: HandoverLockManager) -> None:
        client = service.open(lease_ms=1500, heartbeat_interval_ms=300)
        client.acquire(request((X, TABLE), explicit=True, owner=ELSEWHERE), deadline=soon())

    near = service.open()
    held = near.acquire(request((X, TABLE)), deadline=soon())
    victim = service.fork(work)
    until(lambda: len(standing(near)) == 2, "a LOCK statement that waits")
    assert [] == list(near.reap()), "it lives"
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    held.release()
    if ended_by == "reap":
        until(lambda: near.reap() or not near.locks(), "an end")
    near.acquire(request((X, TABLE)), deadline=soon()).release()
    assert {} == standing(near)


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_lock_statement_waits_on_after_its_session_was_lost(service: Service, raw: Any, is_reaped: bool) -> None:
    """What shows that it waits is there again; who was removed meanwhile, as it was not, enters again."""
    near, other = service.open(), ours(service.open())
    held = near.acquire(request((X, TABLE)), deadline=soon())
    waiter = Contender(other, request((X, TABLE), explicit=True, owner=ELSEWHERE)).queued()
    (shown,) = (path for path in everything(raw, service) if "/statements/" in path)
    number = other.session.number
    other.session.hold()
    end_session(other.session, near)
    assert is_reaped == bool(is_reaped and list(near.reap()))
    other.session.go_on()
    until(lambda: other.session.number > number, "the next session")
    until(lambda: raw.exists(shown), "a node of the next session")
    until(lambda: waiter.request.request_id in standing(near), "a place")
    assert [] == list(near.reap())
    held.release()
    waiter.ended()
    assert not raw.exists(shown)
    assert [] == list(near.reap())
    assert [waiter.request.request_id] == list(standing(near))
    waiter.release()
    assert {} == standing(near)
    assert not [path for path in everything(raw, service) if "/statements/" in path and path.count("/") > 3]


def test_a_lock_statement_whose_first_reply_was_lost_with_its_session_waits_for_its_grant(
    service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes are there, but for the one that showed its wait in the session that was lost."""
    near, other = service.open(), ours(service.open())
    held = near.acquire(request((X, TABLE)), deadline=soon())
    session, multi, has_ended = other.session, other.session.multi, threading.Event()

    def lost(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        number = session.number
        multi(*arguments, **options)
        end_session(session, near)
        until(lambda: session.number > number and session.silent_since is None, "the next session")
        has_ended.set()
        raise Interrupted("its answer was lost")

    monkeypatch.setattr(session, "multi", lost)
    waiter = Contender(other, request((X, TABLE), explicit=True, owner=ELSEWHERE)).queued()
    assert has_ended.wait(PATIENCE)
    until(lambda: [path for path in everything(raw, service) if "/statements/" in path], "a node of this session")
    assert [] == list(near.reap())
    held.release()
    waiter.release()


def test_a_lock_statement_that_was_found_abandoned_and_waits_again_is_not_removed(service: Service, raw: Any) -> None:
    """Its session was lost, another client saw that; before that client removes it, the next session shows its wait."""
    near, other = ours(service.open()), ours(service.open())
    held = near.acquire(request((X, TABLE)), deadline=soon())
    waiter = Contender(other, request((X, TABLE), explicit=True, owner=ELSEWHERE)).queued()
    (shown,) = (path for path in everything(raw, service) if "/statements/" in path)
    view = LockView(near.session, zookeeper_layout.NodeLayout(HIVE, service.space))
    other.session.hold()
    end_session(other.session, near)
    ending = view.abandoned(waiter.request.request_id)
    assert ending is not None
    other.session.go_on()
    until(lambda: raw.exists(shown), "a node of the next session")
    with pytest.raises(NotRemoved):
        view.remove(waiter.request.request_id, view.present(), ending)
    held.release()
    waiter.release()


@pytest.mark.parametrize("ended_by", ["a close", "a drop"])
@pytest.mark.parametrize("news", ["connecting", "connected", "suspended", "lost", "a ping's answer"])
def test_what_an_earlier_session_reports_late_is_nothing_to_the_next_one(
    service: Service, monkeypatch: pytest.MonkeyPatch, ended_by: str, news: str
) -> None:
    """Its driver may hear from the servers long after the client has given the session up."""
    manager = ours(service.open())
    manager.acquire(request((X, PART_A)), deadline=soon()).release()
    connection = manager.session.connection
    earlier: Any = connection.opening
    if ended_by == "a close":
        manager.close()
    else:
        connection._drop(earlier)
    until(lambda: not earlier.client.connected, "an end of the session")
    lease = manager.acquire(request((X, PART_A)), deadline=soon())
    present: Any = connection.opening
    answered: list[float] = []
    monkeypatch.setattr(connection.heard, "answered", lambda sent, *_, **__: answered.append(sent))
    if news == "connected":
        present._tell("SUSPENDED")
    before = connection.number, connection.silent_since, connection.heard.since, connection.timeout_ms
    pings = earlier.client._connection.ping_outstanding
    match news:
        case "connecting":
            with suppress(Exception):  # It can't connect any more.
                earlier.client._connection._connect("127.0.0.1", 1)
            connection.heard.connected()
        case "a ping's answer":
            answered.clear()
            pings.set()
            sent = pings._sent
            pings.clear()
            assert sent not in answered
        case _:
            earlier._tell(news.upper())
    assert (connection.number, connection.silent_since, connection.heard.since, connection.timeout_ms) == before
    if news == "connected":
        present._tell("CONNECTED")
    monkeypatch.undo()
    assert lease.state is LeaseState.HELD
    lease.ensure_active(0)
    lease.release()


_CALLS: dict[str, Callable[[ZooKeeperLockManager, HandoverLease], object]] = {
    "acquire": lambda manager, _: manager.acquire(request((X, PART_B)), deadline=soon()),
    "a lock statement": lambda manager, _: manager.acquire(request((X, PART_B), explicit=True), deadline=soon()),
    "submit": lambda manager, _: manager.submit(offering("an append"), deadline=soon()),
    "release": lambda _, lease: lease.release(),
    "ensure_active": lambda _, lease: lease.ensure_active(0),
    "locks": lambda manager, _: manager.locks(),
    "recall": lambda manager, _: manager.recall("an append"),
}


@pytest.mark.parametrize("name", _CALLS)
def test_a_call_that_is_stuck_when_its_client_is_closed_begins_no_session(
    service: Service, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The servers are back after the close: nobody would end such a session, and its threads."""
    with in_zookeeper(proxy.connect_string, service.space) as far:
        manager = ours(far.open(lease_ms=30_000))
        lease = manager.acquire(request((X, PART_A)), deadline=soon())
        connection, stuck, back = manager.session.connection, threading.Event(), threading.Event()
        connected = connection.connected

        def late(deadline: float) -> Any:
            if threading.current_thread().name == "stuck":
                stuck.set()
                assert back.wait(PATIENCE)
            return connected(deadline)

        monkeypatch.setattr(connection, "connected", late)

        def call() -> None:
            with suppress(LockError):
                _CALLS[name](manager, lease)

        thread = threading.Thread(target=call, name="stuck", daemon=True)
        thread.start()
        assert stuck.wait(PATIENCE)
        proxy.cut()
        manager.close()
        proxy.mend()
        back.set()
        thread.join(PATIENCE)
        manager.heartbeat.stop()
        assert (thread.is_alive(), connection.opening, dict(manager.parts.queue.tickets)) == (False, None, {})
        manager.acquire(request((X, TABLE)), deadline=soon()).release()


# Lost replies.


@pytest.mark.parametrize("explicit", [False, True])
def test_an_acquire_whose_reply_was_lost_is_found_again(service: Service, proxy: Proxy, explicit: bool) -> None:
    """The multi is done and its answer never arrives: the same place is found, and no second one is taken."""
    near, far = service.open(), in_zookeeper(proxy.connect_string, service.space)
    with far:
        manager = far.open()
        manager.acquire(request((X, PART_A)), deadline=soon()).release()
        wanted = request((X, PART_A), (X, PART_B), explicit=explicit)
        proxy.lose_reply(MULTI)
        lease = manager.acquire(wanted, deadline=soon())
        assert proxy.lost.is_set()
        assert sorted(map(str, (TABLE, PART_A, PART_B))) == [str(entry.resource) for entry in near.locks()]
        lease.ensure_active(0)
        proxy.lose_reply(MULTI)
        lease.release()
        assert proxy.lost.is_set()
        until(lambda: not near.locks(), "an empty queue")
        assert not any(isinstance(event, LockReleaseFailed) for event in far.seen)


@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt])
@pytest.mark.parametrize("offer", ["", "an offer"])
def test_what_a_multi_put_into_the_next_session_is_known_to_be_there(
    service: Service, monkeypatch: pytest.MonkeyPatch, offer: str, error: type[BaseException]
) -> None:
    """A session is lost, the next one is made, the multi is done in that, and its answer is lost, or nobody waits.

    Taken for nodes of the lost session, they would neither be a lease nor be given back: everybody would wait for them
    for as long as the client lives.
    """
    near, manager = service.open(), ours(service.open())
    manager.acquire(latch(), deadline=soon()).release()
    session = manager.session
    multi = session.multi

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        number = session.number
        end_session(session, near)
        until(lambda: session.number > number and session.silent_since is None, "the next session")
        done.append(multi(*arguments, **options))
        raise error("its answer was lost")

    done: list[Any] = []
    monkeypatch.setattr(session, "multi", late)
    wanted = replace(latch(), offer=offer)
    if error is Interrupted:
        lease = manager.acquire(wanted, deadline=soon())
        lease.ensure_active(0)
        lease.release()
    else:
        with pytest.raises(KeyboardInterrupt):
            manager.acquire(wanted, deadline=soon())
    assert done
    near.acquire(latch(), deadline=soon()).release()


def test_a_release_that_answered_offers_and_was_not_answered_itself_is_done_once(
    service: Service, proxy: Proxy
) -> None:
    """Each owner hears what became of its offer; what is repeated touches nobody who was granted since."""
    near, far = service.open(), in_zookeeper(proxy.connect_string, service.space)
    with far:
        holder = far.open()
        held = holder.acquire(latch(), deadline=soon())
        done, left, last = in_line(near, "done", "left", "")
        taken = [offer.request_id for offer in held.take(10)]
        assert taken == [done.request.request_id, left.request.request_id]
        held.settle([answer(taken[0])], taken[1:])
        proxy.lose_reply(MULTI)
        held.release()
        assert proxy.lost.is_set()
        assert done.answer() == answer(taken[0]) == holder.recall(taken[0])
        second = left.lease()
        assert second.retract()
        second.release()
        last.lease().release()


def test_large_offers_are_taken_as_many_as_a_packet_holds(service: Service) -> None:
    """The rest waits for the next holder; and what is given back fits, too."""
    near, far = service.open(), service.open()
    held = near.acquire(latch(), deadline=soon())
    waiting = in_line(far, *(f"{number}" + "y" * 100_000 for number in range(12)))
    taken = held.take(63)
    assert [one.request.request_id for one in waiting][: len(taken)] == [offer.request_id for offer in taken]
    assert 0 < len(taken) < 12
    assert taken == held.take(63)
    held.settle([answer(taken[0].request_id)], [offer.request_id for offer in taken[1:]])
    held.release()
    assert waiting[0].answer() == answer(taken[0].request_id)
    for one in waiting[1:]:
        one.lease().release()


@pytest.mark.parametrize("lost", ["the packet", "the reply"])
def test_a_deadlock_is_found_though_a_wait_was_published_unheard(
    service: Service, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The next look publishes it again, whether the first try did or not."""
    first, second = ours(service.open()), ours(service.open())
    both, multi = threading.Barrier(2), first.session.multi

    def losing(operations: Any, *arguments: Any, **options: Any) -> Any:
        if any("/waits/" in operation.path for operation in operations):
            monkeypatch.undo()
            if lost == "the reply":
                multi(operations, *arguments, **options)
            raise Interrupted("the connection was cut")
        return multi(operations, *arguments, **options)

    monkeypatch.setattr(first.session, "multi", losing)
    ends: list[str] = []

    def work(manager: ZooKeeperLockManager, held: Resource, wanted: Resource) -> None:
        with manager.acquire(request((X, held)), deadline=soon()):
            both.wait(PATIENCE)
            try:
                manager.acquire(request((X, wanted)), deadline=soon()).release()
                ends.append("granted")
            except LockError as error:
                ends.append(error.kind)

    with ThreadPoolExecutor(2) as pool:
        for running in (pool.submit(work, first, PART_A, _APART), pool.submit(work, second, _APART, PART_A)):
            running.result(3 * PATIENCE)
    assert ["granted", "lock-deadlock"] == sorted(ends)


def test_a_thread_that_waits_for_a_lock_statement_of_its_own_is_refused(service: Service) -> None:
    """The client that made the statement is closed; the statement outlives it."""
    near = ours(service.open())
    gone = create_lock_manager("zookeeper", near.access.hosts, space=service.space, options={})
    gone.acquire(request((X, TABLE), explicit=True), deadline=soon())
    gone.close()
    del gone
    gc.collect()
    with near.acquire(request((X, _APART)), deadline=soon()), pytest.raises(LockDeadlock):
        near.acquire(request((X, TABLE)), deadline=soon())
    assert near.unlock(resource=TABLE)


def test_a_closed_client_that_could_not_remove_a_request_leaves_no_heartbeat(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would beat for ever, and may begin no session. The next call of the client removes the request."""
    near, other = service.open(), ours(service.open())
    leases, closed, beating = other.parts.queue.leases, threading.Event(), other.heartbeat
    assert isinstance(beating, Heartbeat)
    remove = leases.remove

    def late(ticket: Any) -> None:
        assert closed.wait(PATIENCE)
        remove(ticket)

    with near.acquire(request((X, TABLE)), deadline=soon()):
        waiter = Contender(other, request((X, TABLE), explicit=True, owner=ELSEWHERE)).queued()
        monkeypatch.setattr(leases, "remove", late)
        other.close()
        closed.set()
        waiter.ended()
        until(lambda: beating._thread is None, "the end of the heartbeat")
    other.acquire(request((X, PART_A)), deadline=soon()).release()
    until(lambda: not near.locks(), "the removal")


@contextmanager
def a_published_wait(service: Service, manager: ZooKeeperLockManager, raw: Any) -> Iterator[tuple[str, Contender]]:
    """Yield the node and the thread of a wait of *manager*, which another client's lock blocks until the end."""
    holder, granted = service.open(), threading.Event()
    blocking = holder.acquire(request((X, PART_A)), deadline=soon())

    class WithAnother(Contender):
        def _run(self) -> None:
            with manager.acquire(request((X, _APART)), deadline=soon()):
                super()._run()
                granted.wait(PATIENCE)

    waiting = WithAnother(manager, request((X, PART_A)))
    path = f"/commit-coord/{HIVE}@{service.space}/waits/{waiting.request.request_id}"
    try:
        until(lambda: raw.exists(path), "a published wait")
        yield path, waiting
    finally:
        blocking.release()
        granted.set()
        waiting.release()


def test_a_published_wait_ends_with_its_session(service: Service, raw: Any) -> None:
    """The process may be killed; then nobody else would delete it."""
    manager = ours(service.open())
    with a_published_wait(service, manager, raw) as (path, _):
        assert raw.exists(path).ephemeralOwner == manager.session.id
        number = manager.session.number
        end_session(manager.session, manager)
        until(lambda: manager.session.number > number, "the next session")
        until(lambda: (stat := raw.exists(path)) and stat.ephemeralOwner == manager.session.id, "another one")


def test_a_published_wait_whose_deletion_failed_is_deleted_with_its_request(
    service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ours(service.open())
    delete_each = manager.session.delete_each

    def failing(paths: Sequence[str], *arguments: Any) -> None:
        if any("/waits/" in path for path in paths):
            monkeypatch.undo()
            raise Interrupted("the connection was cut")
        delete_each(paths, *arguments)

    with a_published_wait(service, manager, raw) as (path, waiting):
        monkeypatch.setattr(manager.session, "delete_each", failing)
    assert waiting.granted.is_set()
    assert not raw.exists(path)


def test_waits_that_earlier_releases_left_are_cleared_by_reap(service: Service, raw: Any) -> None:
    """They were no ephemeral nodes."""
    manager = ours(service.open())
    with a_published_wait(service, manager, raw) as (path, _):
        raw.create(f"{path}-of-a-dead-client", b"{}")
        manager.reap()
        assert (bool(raw.exists(path)), raw.exists(f"{path}-of-a-dead-client")) == (True, None)


def test_an_offer_that_entered_unheard_is_in_doubt(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is done, its answer lost, and no server answers until the deadline: a holder may have the offer."""
    holder, waiter = service.open(), ours(service.open())
    wanted = offering("x")
    with holder.acquire(latch(), deadline=soon()) as held:
        session = waiter.session
        real = session.multi

        def silent(*_: Any, **options: Any) -> Any:
            raise Interrupted("no server answers")

        def entered(*operations: Any, **options: Any) -> Any:
            real(*operations, **options)
            monkeypatch.setattr(session.connection, "ask", silent)
            return silent()

        monkeypatch.setattr(session, "multi", entered)
        with pytest.raises(OfferLost):
            waiter.submit(wanted, deadline=soon(1))
        taken = [offer.request_id for offer in held.take(10)]
        assert taken == [wanted.request_id]
        held.settle([], taken)
        monkeypatch.undo()


def test_an_offer_that_was_taken_before_its_entry_was_heard_of_is_in_doubt(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its owner asks for its place, the holder that took it has ended without a report: none is before it."""
    holder, waiter = service.open(), ours(service.open())
    held = holder.acquire(latch(), deadline=soon())
    real = waiter.session.multi
    taken: list[str] = []

    def unheard(*operations: Any, **options: Any) -> Any:
        answered = real(*operations, **options)
        if not taken:
            taken.extend(offer.text for offer in held.take(10))
            held.release()
            raise Interrupted("no server answers")
        return answered

    monkeypatch.setattr(waiter.session, "multi", unheard)
    lease = waiter.submit(offering("x"), deadline=soon())
    assert isinstance(lease, HandoverLease)
    assert taken == ["x"]
    assert not lease.retract()
    lease.release()


def test_the_offer_of_a_request_that_is_freed_by_force_goes_with_it(service: Service, raw: Any) -> None:
    """Whether another client has taken it or not."""
    near, far = service.open(), ours(service.open())
    held = near.acquire(latch(), deadline=soon())
    waiters = in_line(far, "x", "y")
    assert [offer.text for offer in held.take(1)] == ["x"]
    for waiter in waiters:
        near.unlock(request_id=waiter.request.request_id)
        assert isinstance(waiter.failed(), OfferLost)
        path = far.layout.offer(waiter.request.request_id)
        until(lambda path=path: raw.exists(path) is None, "the end of its offer")  # type: ignore[misc]
    held.release()


def test_an_offer_in_doubt_is_in_doubt_when_its_request_is_freed_by_force(service: Service) -> None:
    """Its holder has taken it, its session is lost: it is in the queue again, without the offer."""
    near, far = service.open(), ours(service.open())
    held = near.acquire(latch(), deadline=soon())
    waiter = Submitter(far, offering("x")).queued()
    ticket = far.parts.queue.tickets[waiter.request.request_id]
    assert [offer.text for offer in held.take(10)] == ["x"]
    end_session(far.session, near)
    until(lambda: ticket.doubtful and waiter.request.request_id in standing(near), "a new place")
    near.unlock(request_id=waiter.request.request_id)
    assert isinstance(waiter.failed(), OfferLost)
    held.release()


def test_who_steps_apart_for_hive_does_not_publish_an_offer_that_was_taken_again(
    service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published a second time, it seems never to have been taken: what the holder carried out is called a failure.

    A holder that has lost the node of its request looks like a program of Hive's, which has none.
    """
    near, far = ours(service.open()), ours(service.open())
    held = near.acquire(latch(), deadline=soon())
    monkeypatch.setattr(queue_module, "NEXT_TO_HIVE_S", math.inf)
    waiter = Submitter(far, offering("x"), seconds=4.0).queued()
    assert [offer.text for offer in held.take(10)] == ["x"]
    raw.delete(near.layout.request(held.request.request_id))
    ticket, offer = far.parts.queue.tickets[waiter.request.request_id], far.layout.offer(waiter.request.request_id)
    waits_since = ticket.behind
    monkeypatch.setattr(queue_module, "NEXT_TO_HIVE_S", 0.1)
    until(lambda: ticket.behind != waits_since or not raw.exists(offer), "the end of the wait in the queue")
    assert raw.exists(offer)
    assert isinstance(waiter.failed(), OfferLost)
    held.release()


def test_a_release_that_failed_is_repeated(service: Service, proxy: Proxy) -> None:
    """Cut while it releases: told as an event, done when the connection is back."""
    near, far = service.open(), in_zookeeper(proxy.connect_string, service.space)
    with far:
        lease = far.open().acquire(latch(), deadline=soon())
        proxy.cut()
        started = time.monotonic()
        lease.release()
        assert time.monotonic() - started < PATIENCE
        assert LeaseState.RELEASED is lease.state
        assert any(isinstance(event, LockReleaseFailed) for event in far.seen)
        assert near.locks()
        proxy.mend()
        until(lambda: not near.locks(), "the repeated release")


def test_an_interrupt_while_a_client_closes_ends_its_session(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release had failed; what would repeat it has ended, and the process lives on."""
    near, closing = service.open(), ours(service.open())
    lease = closing.acquire(latch(), deadline=soon())

    def silent(_: Any) -> None:
        raise Interrupted("no server answers")

    stop = closing.heartbeat.stop

    def interrupted() -> None:
        stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(closing.parts.queue.leases, "remove", silent)
    monkeypatch.setattr(closing.heartbeat, "stop", interrupted)
    lease.release()
    with pytest.raises(KeyboardInterrupt):
        closing.close()
    near.acquire(latch(), deadline=soon()).release()
    monkeypatch.undo()
    # Nor does what kazoo says of its end begin another one.
    throughout(1.5, lambda: closing.session.connection.opening is None, "no session")


def test_a_late_release_does_not_touch_a_node_of_the_same_name(service: Service, raw: Any) -> None:
    """Freed by force, the parent cleaned, the same name given anew: the first holder's release deletes nothing."""
    manager, other = service.open(), service.open()
    lost = manager.acquire(latch(), deadline=soon())
    other.unlock(request_id=lost.request.request_id)
    other.reap()
    with other.acquire(latch(), deadline=soon()) as lease:
        assert [path for path in everything(raw, service) if path.endswith("LOCK-EXCLUSIVE-0000000000")]
        lost.release()
        lease.ensure_active(0)


def test_an_interrupt_inside_the_driver_makes_nobody_late(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal between kazoo's queue and its pipe: the request that follows is not left behind by one."""
    manager = ours(service.open())
    manager.acquire(latch(), deadline=soon()).release()
    opening = manager.session.connection.opening
    assert opening is not None
    connection = opening.client._connection
    pipe = connection._write_sock

    class Struck:
        def __init__(self, times: int) -> None:
            self.spared = times

        def send(self, data: bytes) -> int:
            if self.spared:
                self.spared -= 1
                return int(pipe.send(data))
            monkeypatch.setattr(connection, "_write_sock", pipe)
            raise Interrupt

    for spared in (0, 1, 2, 4, 0):  # not 3, which is our own: the one that has the driver look at its pipe
        monkeypatch.setattr(connection, "_write_sock", Struck(spared))
        started = time.monotonic()
        for _ in range(4):
            manager.acquire(latch(), deadline=soon()).release()
        assert time.monotonic() - started < by_load(1.5)


# Large requests.


def partitions(count: int, first: int = 0) -> list[tuple[LockMode, Resource]]:
    return [(X, Resource(("db", "t", f"day={number:05d}"))) for number in range(first, first + count)]


def test_ten_thousand_partitions_are_locked_together(service: Service) -> None:
    """More than a packet holds: in parts, all or none, and all of them are given back."""
    manager, other = service.open(), service.open()
    wanted = request(*partitions(10_000))
    with manager.acquire(wanted, deadline=soon()) as lease:
        assert len(ours(manager).parts.queue.tickets[wanted.request_id].parts) > 1
        for number in (0, 5_000, 9_999):
            assert blocked(other, request(*partitions(1, number)))
        lease.ensure_active(0)
    assert not other.locks()


@pytest.mark.parametrize("length", [100, 1300])
def test_partitions_with_long_values_are_locked_listed_and_freed_together(
    service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """However long their names are, no packet is too large for a server, which would cut the connection."""
    cuts: list[str] = []
    changed = EnsembleConnection.changed

    def noted(connection: EnsembleConnection, *told: Any) -> None:
        cuts.extend(one for one in told if one == "SUSPENDED")
        changed(connection, *told)

    monkeypatch.setattr(EnsembleConnection, "changed", noted)
    manager, other = service.open(), service.open()
    wanted = [(X, Resource(("db", "t", f"day={number:04d}{'v' * length}"))) for number in range(1000)]
    lease = manager.acquire(request(*wanted), deadline=soon())
    assert 1001 == len(other.locks()) == sum(map(len, other.pages()))
    assert 1001 == len(other.unlock(request_id=lease.request.request_id))
    lease.release()
    manager.acquire(request(*wanted), deadline=soon()).release()
    assert [] == list(other.reap())
    assert not [path for path in everything(raw, service) if "/db" in path]
    assert [] == cuts


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some four locks a multi."""
    cut = zookeeper_layout.chunks
    monkeypatch.setattr(nodes_module, "chunks", lambda *given, **sizes: cut(*given, **sizes, limit=2500))


@pytest.mark.usefixtures("small_steps")
def test_behind_a_later_part_a_request_waits_in_no_queue(service: Service) -> None:
    """It holds nothing while it waits, so it can't deadlock with the holder for which it waits."""
    manager, other = service.open(), service.open()
    last = request(*partitions(1, 11))
    held = other.acquire(last, deadline=soon())
    large = Contender(manager, request(*partitions(12)))
    until(lambda: any(ticket.rounds for ticket in ours(manager).parts.queue.tickets.values()), "a step aside")
    until(lambda: set(standing(other)) == {held.request.request_id}, "an empty queue")
    # The large request may enter for a moment to look again. A request for its first partition is granted all the same.
    neighbour = Contender(other, request(*partitions(1, 0)))
    neighbour.ended()
    assert neighbour.granted.is_set()
    neighbour.release()
    held.release()
    large.ended()
    assert blocked(other, request(*partitions(1, 11)))
    large.release()
    assert not manager.locks()


@pytest.mark.usefixtures("small_steps")
def test_the_first_part_keeps_its_place(service: Service) -> None:
    """FIFO holds as long as it waits in the first part."""
    manager, other = service.open(), service.open()
    held = other.acquire(request(*partitions(1, 0)), deadline=soon())
    large = Contender(manager, request(*partitions(12))).queued()
    late = Contender(other, request(*partitions(1, 0))).queued()
    held.release()
    large.ended()
    assert not late.granted.is_set()
    large.release()
    late.release()


@pytest.mark.usefixtures("small_steps")
def test_after_some_rounds_partitions_are_lifted_to_their_prefix(service: Service) -> None:
    """A request that is withdrawn again and again ends up with a place for the whole table, and waits there."""
    manager, other = service.open(), service.open()
    held = Contender(other, request(*partitions(1, 11))).ended()
    large = Contender(manager, request(*partitions(12)))
    for rounds in range(1, 4):
        until(partial(_has_rounds, manager, rounds), f"round {rounds}")
        # The next one is in the queue before this one leaves it, so that the large request finds a blocker again.
        following = Contender(other, request(*partitions(1, 11))).queued()
        held.release()
        held = following.ended()
    large.queued()
    assert [(TABLE, X)] == [(e.resource, e.mode) for e in other.locks() if e.state is LockState.WAITING]
    late = Contender(other, request(*partitions(1, 50))).queued()
    held.release()
    large.ended()
    assert not late.granted.is_set()
    large.release()
    late.release()


def _has_rounds(manager: HandoverLockManager, rounds: int) -> bool:
    return any(ticket.rounds >= rounds for ticket in ours(manager).parts.queue.tickets.values())


@pytest.mark.usefixtures("small_steps")
def test_a_large_request_under_deny_leaves_nothing(service: Service) -> None:
    manager, other = service.open(), service.open()
    with other.acquire(request(*partitions(1, 11)), deadline=soon()) as held:
        with pytest.raises(LockRefused):
            manager.acquire(
                request(*partitions(12)), deadline=soon(), policy=DenyPolicy(numretries=1, sleep_between_retries_ms=5)
            )
        assert set(standing(other)) == {held.request.request_id}


@pytest.mark.usefixtures("small_steps")
def test_a_large_request_whose_replies_are_lost_is_whole(service: Service, proxy: Proxy) -> None:
    near, far = service.open(), in_zookeeper(proxy.connect_string, service.space)
    with far:
        manager = far.open()
        for lost in range(3):
            proxy.lose_reply(MULTI)
            lease = manager.acquire(request(*partitions(12)), deadline=soon())
            assert proxy.lost.is_set()
            assert 13 == len(near.locks()), f"round {lost}"
            lease.ensure_active(0)
            assert 13 == len(near.unlock(request_id=lease.request.request_id))
            with pytest.raises(LockLost):
                lease.ensure_active(0)


# Ensembles.


@pytest.mark.zookeeper
def test_an_ensemble_survives_the_loss_of_a_server_and_of_the_leader() -> None:
    """Locks that are held stay held, waiters are granted, new locks are taken; one lost server after the other."""
    with ZooKeeperEnsemble(size=3) as ensemble, in_zookeeper(ensemble.connect_string) as service:
        manager, other = service.open(), service.open()
        lease = manager.acquire(request((X, TABLE)), deadline=soon())
        told: list[LeaseState] = []
        lease.add_listener(lambda _, state: told.append(state))
        waiter = Contender(other, request((X, TABLE)), seconds=120).queued()
        generation = 0
        followers = [server for server in ensemble.servers if server.mode == "follower"]
        for victim in (followers[0], None):
            lost: ZooKeeperServer = victim or ensemble.leader
            lost.kill()
            for client in (manager, other):
                with client.acquire(latch(), deadline=soon()) as latched:
                    assert (latched.generation or 0) > generation
                    generation = latched.generation or 0
            until(lambda: _held(lease), "a lease that is held")
            ensemble.start()
        assert LeaseState.LOST not in told
        assert not waiter.granted.is_set()
        lease.release()
        waiter.release()


def _held(lease: Any) -> bool:
    try:
        lease.ensure_active(0)
    except LockServiceUnavailable:
        return False
    return True


@pytest.mark.zookeeper
@pytest.mark.slow
def test_processes_take_turns_while_every_server_is_restarted(tmp_path: Path) -> None:
    """One server after the other is killed and started: no turn is taken twice and none is lost, and all go on."""
    number = tmp_path / "number"
    number.write_text("0")
    stop = tmp_path / "stop"

    with ZooKeeperEnsemble(size=3) as ensemble, in_zookeeper(ensemble.connect_string) as service:

        def work(client: HandoverLockManager, tally: Path) -> None:
            done = 0
            while not stop.exists():
                try:
                    with client.acquire(latch(), deadline=soon()):
                        number.write_text(str(int(number.read_text()) + 1))
                        done += 1
                except LockServiceUnavailable:
                    continue
            tally.write_text(str(done))

        tallies = [tmp_path / f"tally-{worker}" for worker in range(4)]
        workers = [service.fork(partial(work, tally=tally)) for tally in tallies]
        for server in ensemble.servers:
            turns = int(number.read_text() or "0")
            until(partial(_has_grown, number, turns + 20), "turns")
            server.kill()
            turns = int(number.read_text() or "0")
            until(partial(_has_grown, number, turns + 20), f"turns without {server.name}")
            ensemble.start()
        stop.touch()
        assert [0] * 4 == [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
        assert sum(int(tally.read_text()) for tally in tallies) == int(number.read_text())
        assert not service.open().locks()


def _has_grown(number: Path, turns: int) -> bool:
    return int(number.read_text() or "0") >= turns


@pytest.mark.zookeeper
def test_locks_survive_a_restart_of_all_servers() -> None:
    """An explicit lock stays, and a lease whose session is still young is held."""
    with ZooKeeperEnsemble(size=1) as zookeeper, in_zookeeper(zookeeper.connect_string) as service:
        manager = service.open(lease_ms=60_000)
        lease = manager.acquire(latch(), deadline=soon())
        manager.acquire(request((S, TABLE), explicit=True), deadline=soon())
        zookeeper.leader.kill()
        zookeeper.start()
        until(lambda: _held(lease), "a lease that is held")
        assert {LockScope.COMMIT, LockScope.OPERATION} == {entry.scope for entry in service.open().locks()}
        lease.release()


# Access.


@pytest.mark.zookeeper
def test_another_user_can_neither_delete_nor_forge_nor_read_a_lock(zookeeper: ZooKeeperEnsemble) -> None:
    """With digest authentication every node is ours alone; who shares our password shares our locks."""
    from kazoo.exceptions import NoAuthError

    ann = {"auth": "digest", "user": "ann", "password": "secret", "namespace": f"n{uuid.uuid4().hex}"}
    servers = zookeeper.connect_string
    with opened(servers, **ann) as manager, opened(servers, **ann) as colleague:
        lease = manager.acquire(request((X, PART_A)), deadline=soon())
        manager.remember(JournalEntry(key="r", table="t", table_uuid="u", metadata_location="m"), lifetime_ms=60_000)
        for stranger in connected(servers, auth_data=[("digest", "bob:guess")]):
            root, own = f"/{ann['namespace']}", f"/commit-coord/{ann['namespace']}"
            paths = [
                f"{root}/db/t/day=1/LOCK-EXCLUSIVE-0000000000",
                f"{own}/requests/{lease.request.request_id}",
                f"{own}/journal/entries/r",
            ]
            for path in paths:
                for forbidden in (stranger.delete, stranger.get, partial(stranger.set, value=b"")):
                    with pytest.raises(NoAuthError):
                        forbidden(path)
            for path in (f"{root}/db/t/day=1/LOCK-SHARED-", f"{root}/db/other", f"{own}/requests/forged"):
                with pytest.raises(NoAuthError):
                    stranger.create(path, b"", sequence=True)
        assert blocked(colleague, request((S, PART_A)))
        with opened(servers, **{**ann, "user": "bob", "password": "guess"}) as intruder:
            with pytest.raises(LockServiceUnavailable, match="denies access") as error:
                intruder.acquire(request((X, PART_B)), deadline=soon())
            assert {"bob", "lock.zk.auth"} <= set(re.findall(r"[\w.]+", str(error.value)))
            assert "guess" not in str(error.value)
        lease.ensure_active(0)
        lease.release()


@pytest.mark.zookeeper
def test_who_is_named_in_the_acl_shares_the_locks(zookeeper: ZooKeeperEnsemble) -> None:
    """Two users with passwords of their own, each naming the other."""
    from kazoo.security import make_digest_acl_credential

    namespace, users = f"n{uuid.uuid4().hex}", {"ann": "a", "bob": "b"}
    acl = ",".join(f"digest:{make_digest_acl_credential(*user)}:cdrwa" for user in users.items())
    clients = [
        create_lock_manager(
            "zookeeper",
            zookeeper.connect_string,
            options={"auth": "digest", "user": user, "password": password, "acl": acl, "namespace": namespace},
        )
        for user, password in users.items()
    ]
    with clients[0] as ann, clients[1] as bob:
        with ann.acquire(request((X, TABLE)), deadline=soon()):
            assert blocked(bob, request((S, TABLE)))
        bob.acquire(request((X, TABLE)), deadline=soon()).release()


@pytest.mark.zookeeper
def test_two_users_share_the_servers_and_not_their_locks(zookeeper: ZooKeeperEnsemble, raw: Any) -> None:
    """Whoever comes first makes the node below which each namespace has its own, and it lets the others in."""
    chroot = f"/c{uuid.uuid4().hex}"
    raw.create(chroot)
    servers = zookeeper.connect_string + chroot
    for user in ("ann", "bob"):
        with opened(servers, auth="digest", user=user, password="secret", namespace=f"of-{user}") as manager:
            manager.acquire(request((X, PART_A)), deadline=soon()).release()
            manager.acquire(latch(), deadline=soon()).release()
    with opened(servers, namespace="of-ann") as stranger, pytest.raises(LockServiceUnavailable, match="denies access"):
        stranger.acquire(latch(), deadline=soon())


@pytest.mark.zookeeper
def test_an_error_names_the_node_that_denies_access(zookeeper: ZooKeeperEnsemble, raw: Any) -> None:
    from kazoo.security import make_digest_acl

    chroot = f"/c{uuid.uuid4().hex}"
    raw.create(chroot)
    raw.create(f"{chroot}/commit-coord", b"", acl=[make_digest_acl("ann", "a", all=True)])
    with opened(zookeeper.connect_string + chroot) as manager:
        with pytest.raises(LockServiceUnavailable, match="denies access") as error:
            manager.acquire(latch(), deadline=soon())
        assert str(error.value.details["path"]).startswith("/commit-coord")


_JAAS = 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_ann="secret"; };'


@pytest.mark.zookeeper
def test_sasl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DIGEST-MD5 against a server that knows its users; a wrong password is a clear error."""
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(_JAAS)
    settings = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth": "true",
    }
    with ZooKeeperEnsemble(size=1, settings=settings, jvm=[f"-Djava.security.auth.login.config={jaas}"]) as zookeeper:
        servers = zookeeper.connect_string
        with opened(servers, auth="sasl", user="ann", password="secret") as manager:
            manager.acquire(request((X, TABLE)), deadline=soon()).release()
            manager.acquire(latch(), deadline=soon()).release()
        with opened(servers, auth="sasl", user="ann", password="wrong") as intruder:
            with pytest.raises(LockServiceUnavailable, match="authentication failed") as error:
                intruder.acquire(latch(), deadline=soon())
            assert "lock.zk.password" in str(error.value)
        # 1. kazoo connects.  2. It is refused, and closes.  3. Only then do we ask for the chroot.
        opening = Opening
        monkeypatch.setattr(opening, "_chroot_is_there", _once_closed(opening._chroot_is_there))
        with (
            opened(servers, auth="sasl", user="ann", password="wrong") as late,
            pytest.raises(LockServiceUnavailable, match="authentication failed"),
        ):
            late.acquire(latch(), deadline=soon())


def _once_closed(ask: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def asked(opening: Any, client: Any) -> bool:
        until(lambda: client.client_state == "CLOSED", "kazoo to close")
        return ask(opening, client)

    return asked


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority's certificate, a server's for 127.0.0.1 signed by it, and a stranger's."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "stranger"):
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    openssl(
        "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr"
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "server.pem")  # fmt: skip
    (folder / "both.pem").write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return folder


@pytest.mark.zookeeper
def test_tls(certificates: Path) -> None:
    """Encrypted, the certificate checked; one that is not trusted is a clear error."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(certificates / "both.pem"),
        "ssl.trustStore.location": str(certificates / "ca.pem"),
        "ssl.clientAuth": "none",
    }
    with ZooKeeperEnsemble(size=1, settings=settings):
        servers = f"127.0.0.1:{port}"
        with opened(servers, tls=True, tls_ca=str(certificates / "ca.pem")) as manager:
            manager.acquire(request((X, TABLE)), deadline=soon()).release()
        with (
            opened(servers, tls=True, tls_ca=str(certificates / "stranger.pem"), connection_timeout_ms=1500) as manager,
            pytest.raises(LockServiceUnavailable, match="certificate is not trusted.*lock.zk.tls-ca"),
        ):
            manager.acquire(latch(), deadline=soon())
        with (
            opened(servers, connection_timeout_ms=1500) as manager,
            pytest.raises(LockServiceUnavailable, match="can't be reached"),
        ):
            manager.acquire(latch(), deadline=soon())


def test_a_chroot_is_a_world_of_its_own(zookeeper: ZooKeeperEnsemble, raw: Any) -> None:
    """What is locked below one chroot is free below another one; a chroot that is missing is an error that says so."""
    first, second = f"/c{uuid.uuid4().hex}", f"/c{uuid.uuid4().hex}"
    raw.create(first)
    raw.create(second)
    with opened(zookeeper.connect_string + first) as here, opened(zookeeper.connect_string + second) as there:
        with here.acquire(request((X, PART_A)), deadline=soon()):
            assert not blocked(there, request((X, PART_A)))
            assert raw.exists(f"{first}/{HIVE}/db/t/day=1")
            waiter = Contender(here, request((X, PART_A))).queued()
        waiter.release()
    with (
        opened(zookeeper.connect_string + "/nowhere") as manager,
        pytest.raises(LockServiceUnavailable, match="/nowhere does not exist"),
    ):
        manager.acquire(latch(), deadline=soon())


def test_servers_that_are_not_there_are_a_clear_error() -> None:
    with (
        opened("127.0.0.1:1,127.0.0.1:2", connection_timeout_ms=500) as manager,
        pytest.raises(LockServiceUnavailable, match="can't be reached") as error,
    ):
        manager.acquire(latch(), deadline=soon())
    assert {"127.0.0.1:1,127.0.0.1:2", "lock.uri=host:port,host:port/chroot"} <= set(
        map(str, error.value.details.values())
    )


def test_a_server_that_accepts_and_never_answers_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        started = time.monotonic()
        with (
            opened(f"127.0.0.1:{deaf.getsockname()[1]}", connection_timeout_ms=700) as manager,
            pytest.raises(LockServiceUnavailable, match="can't be reached"),
        ):
            manager.acquire(latch(), deadline=soon(2 * PATIENCE))
        assert time.monotonic() - started < PATIENCE


@pytest.mark.zookeeper
def test_a_server_that_stops_answering_keeps_nobody_for_long() -> None:
    """SIGSTOP: the deadline holds, release returns, and the client goes on when the server does."""
    with ZooKeeperEnsemble(size=1) as zookeeper, in_zookeeper(zookeeper.connect_string) as service:
        manager = service.open(lease_ms=30_000)
        lease = manager.acquire(latch(), deadline=soon())
        zookeeper.servers[0].pause()
        try:
            for attempt in (
                lambda: manager.acquire(request((X, TABLE)), deadline=soon(0.5)),
                lambda: lease.ensure_active(0),
                lease.release,
            ):
                started = time.monotonic()
                with pytest.raises(LockServiceUnavailable) if attempt != lease.release else _nothing():
                    attempt()
                assert time.monotonic() - started < by_load(6)
        finally:
            zookeeper.servers[0].resume()
        until(lambda: _free(manager), "a server that answers")
        until(lambda: not manager.locks(), "an empty queue")


@pytest.mark.zookeeper
def test_the_first_listing_waits_for_servers_that_are_busy() -> None:
    """A new session takes seconds on a machine with much to do; a listing by a client that has one does not wait."""
    with ZooKeeperEnsemble(size=1) as zookeeper, opened(zookeeper.connect_string) as manager:
        zookeeper.servers[0].pause()
        busy = threading.Timer(BRIEFLY + 1, zookeeper.servers[0].resume)
        busy.start()
        try:
            assert [] == list(manager.locks())
        finally:
            busy.join()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _free(manager: HandoverLockManager) -> bool:
    try:
        manager.acquire(latch(), deadline=soon(1)).release()
    except (LockServiceUnavailable, LockTimeout):
        return False
    return True


# The rest.


def test_journal_entries_go_when_their_span_is_over(service: Service, raw: Any) -> None:
    """Without a time-to-live in ZooKeeper: a client that wrote some removes what expired, not what was renewed."""
    manager = ours(service.open())
    journal = ZooKeeperJournal(manager.session, manager.layout)
    now_ms = SYSTEM_CLOCK.wall_ms()
    old, renewed = (
        JournalEntry(key=name, table="t", table_uuid="u", metadata_location="m") for name in ("old/1", "renewed")
    )
    many = [replace(old, key=f"many {number}") for number in range(60)]
    manager.session.multi(journal.remembering(many, now_ms - 4 * SPAN_MS))
    journal.remember(old, now_ms - 3 * SPAN_MS)
    journal.remember(renewed, now_ms - 3 * SPAN_MS)
    journal.remember(renewed, now_ms + 3 * SPAN_MS)
    journal.remember(renewed, now_ms + 3 * SPAN_MS)
    folder = f"/commit-coord/{HIVE}@{service.space}/journal"
    assert journal.forget_expired(now_ms, 55)
    assert 7 == len(raw.get_children(f"{folder}/entries"))
    manager.remember(replace(old, key="new"), lifetime_ms=SPAN_MS)
    assert manager.recall("old/1") is None
    assert manager.recall("renewed") == renewed
    manager.close()
    assert {"new", "renewed"} == set(raw.get_children(f"{folder}/entries"))
    assert 2 == len(raw.get_children(f"{folder}/expiry"))


def test_who_lives_through_a_span_forgets_what_expired_in_it(service: Service, raw: Any) -> None:
    manager = ours(service.open())
    entry = JournalEntry(key="old", table="t", table_uuid="u", metadata_location="m")
    leases: Any = manager.parts.queue.leases
    ZooKeeperJournal(manager.session, manager.layout).remember(entry, SYSTEM_CLOCK.wall_ms() - 3 * SPAN_MS)
    leases._forgotten -= 1
    leases.chores()
    assert [] == raw.get_children(f"/commit-coord/{HIVE}@{service.space}/journal/entries")


def test_a_listing_shows_chains_of_waiters(service: Service) -> None:
    """Who is blocked by whom, over several resources."""
    manager = service.open()
    first = Contender(manager, request((X, PART_A))).ended()
    second = Contender(manager, request((X, PART_A), (X, PART_B))).queued()
    third = Contender(manager, request((S, PART_B))).queued()
    found: dict[str, LockEntry] = {entry.request_id: entry for entry in service.open().locks()}
    chain = [found[one.request.request_id].blocked_by for one in (first, second, third)]
    assert [None, first.request.request_id, second.request.request_id] == chain
    assert [LockState.ACQUIRED, LockState.WAITING, LockState.WAITING] == [
        found[one.request.request_id].state for one in (first, second, third)
    ]
    for contender in (first, second, third):
        contender.release()


def test_a_client_closes_what_it_opened(service: Service) -> None:
    """No thread of ours or of the driver is left."""
    before = set(threading.enumerate())
    with opened(service.uri, space=service.space) as manager:
        manager.acquire(latch(), deadline=soon()).release()
        assert set(threading.enumerate()) - before
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()], "their end")


def test_times_are_those_of_the_servers(service: Service) -> None:
    """The servers may agree to another session timeout than the one that was asked for."""
    manager = create_lock_manager(
        "zookeeper", service.uri, LockSettings(lease_ms=300, heartbeat_interval_ms=100), space=service.space
    )
    with manager, manager.acquire(latch(), deadline=soon()):
        assert 400 == ours(manager).session.timeout_ms
        assert 400 >= (manager.locks()[0].expires_in_ms or 0) > 0


def test_what_another_program_wrote_is_no_obstacle(service: Service, raw: Any) -> None:
    """Nodes below a resource that are no locks, and locks without sense in them."""
    manager, root = service.open(), f"/{HIVE}@{service.space}"
    raw.create(f"{root}/db/t/note", b"hello", makepath=True)
    raw.create(f"{root}/db/t/LOCK-SHARED-", b"", sequence=True)
    assert blocked(manager, request((X, TABLE)))
    assert [TABLE] == [entry.resource for entry in manager.locks()]
    assert [TABLE] == [entry.resource for entry in manager.unlock(resource=TABLE)]
    manager.acquire(request((X, TABLE)), deadline=soon()).release()
    raw.delete(f"{root}/db/t/note")


def test_a_lock_on_the_root_is_of_another_program(zookeeper: ZooKeeperEnsemble, raw: Any) -> None:
    """It locks no resource: a listing shows what there is, in one piece or in pages."""
    namespace = f"hive-{uuid.uuid4().hex}"
    raw.create(f"/{namespace}")
    raw.create(f"/{namespace}/LOCK-SHARED-", b"q:1:EXPLICIT:x:h", sequence=True)
    with opened(zookeeper.connect_string, namespace=namespace) as manager:
        assert ([], []) == (manager.locks(), list(manager.pages()))
        with manager.acquire(request((X, TABLE)), deadline=soon()):
            assert [TABLE] == [entry.resource for page in manager.pages() for entry in page]
        assert [] == list(manager.reap())


def test_a_multi_says_which_operation_failed(service: Service) -> None:
    """The driver hands errors back among its results; here they are raised."""
    manager = ours(service.open())
    manager.acquire(latch(), deadline=soon()).release()
    session, path = manager.session, f"/{HIVE}@{service.space}/a/b"
    session.multi([CreateNode(path), CreateNode(f"{path}/c")])
    with pytest.raises(MultiRefused) as refused:
        session.multi([CreateNode(f"{path}/d"), CreateNode(f"{path}/c")])
    assert (1, "exists") == (refused.value.index, refused.value.reason)
    assert [None] == session.exists([f"{path}/d"])
    with pytest.raises(MultiRefused, match="not-empty"):
        session.multi([DeleteNode(path)])
    session.delete_each([f"{path}/c", path, f"/{HIVE}@{service.space}/a"])


@pytest.mark.parametrize("server", ["knows it", "does not"])
def test_many_reads_in_one_packet_say_what_single_ones_say(
    zookeeper: ZooKeeperEnsemble, raw: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that are there and nodes that are not, below a chroot; also where the server is older than the packet."""
    if server == "does not":
        monkeypatch.setattr(MultiRead, "type", 4711)
    chroot = f"/c{uuid.uuid4().hex}"
    for number in range(40):
        raw.create(f"{chroot}/n{number}/child", f"data {number}".encode(), makepath=True)
    with opened(zookeeper.connect_string + chroot) as manager:
        session = manager.session
        paths = [f"/n{number}" for number in range(45)] + [f"/n{number}/child" for number in range(5)]
        assert session.get(paths) == [session.get([path])[0] for path in paths]
        assert session.names(paths) == [session.names([path])[0] for path in paths]
        assert session.children(paths) == [session.children([path])[0] for path in paths]
        assert session.exists(paths, sync=True) == [session.exists([path])[0] for path in paths]
        assert (session.number, session.connection.multi_read) == (0, server == "knows it")


def test_a_server_that_is_too_busy_to_answer_is_not_taken_for_an_old_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ours(service.open()).session
    with monkeypatch.context() as busy:
        busy.setattr(MultiRead, "send", lambda _read, client: client.handler.async_result())
        probes, probe = [], session.connection.probe

        def counted() -> Any:
            probes.append(probe())
            return probes[-1]

        busy.setattr(session.connection, "probe", counted)
        assert [None] * 2500 == session.names([f"/none{number}" for number in range(2500)], 0.5)
        assert (session.connection.multi_read, len(probes)) == (None, 1)
    assert [None] * 50 == session.names([f"/none{number}" for number in range(50)])
    assert session.connection.multi_read is True


def test_a_listing_of_many_nodes_is_true_for_each_of_them(
    service: Service, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that comes between two looks at its parent: that parent is asked about once more."""
    session = ours(service.open()).session
    root = f"/{HIVE}@{service.space}"
    paths = [f"{root}/n{number}" for number in range(20)]
    session.multi([CreateNode(path) for path in paths])
    reader = session._bulk
    read_many = reader._read

    def and_meanwhile(reads: Any, patience: float) -> Any:
        answers = read_many(reads, patience)
        raw.create(f"{paths[3]}/new", b"")
        answers[11] = read_many([reads[11]], patience)[0]
        return answers

    monkeypatch.setattr(reader, "_read", and_meanwhile)
    listings = session.children(paths)
    assert ["new"] == (listings[3].names if listings[3] else None)
    assert listings[3] == session.children([paths[3]])[0]
    raw.delete(root, recursive=True)


def test_many_reads_that_are_denied_are_a_clear_error(zookeeper: ZooKeeperEnsemble, raw: Any) -> None:
    from kazoo.security import make_digest_acl

    root = f"/n{uuid.uuid4().hex}"
    raw.create(root)
    for number in range(20):
        raw.create(f"{root}/{number}", b"", acl=[make_digest_acl("ann", "a", all=True)])
    with (
        opened(zookeeper.connect_string) as manager,
        pytest.raises(LockServiceUnavailable, match="denies access"),
    ):
        manager.session.get([f"{root}/{number}" for number in range(20)])


def test_a_client_that_nobody_closed_ends_its_session_and_its_threads(service: Service, raw: Any) -> None:
    """When it was dropped, and the collector came: a job may open a catalog for each of its tables."""
    before = set(threading.enumerate())
    manager: Any = create_lock_manager("zookeeper", service.uri, space=service.space)
    manager.acquire(request((X, TABLE)), deadline=soon()).release()
    manager.acquire(request((X, TABLE)), deadline=soon())
    manager.heartbeat.stop()  # it ends by itself once there was nothing to do for a minute
    del manager

    def gone() -> bool:
        gc.collect()
        return not {thread for thread in set(threading.enumerate()) - before if thread.name.find("heartbeat") < 0}

    until(gone, "the end of its threads")
    until(lambda: not any("LOCK-" in path for path in everything(raw, service)), "the end of its session")


@pytest.mark.slow
def test_a_lease_is_lost_before_a_waiter_is_granted_its_locks_though_a_follower_freezes(
    zookeeper_usual_ticks: ZooKeeperEnsemble,
) -> None:
    """With ZooKeeper's usual ticks. The follower froze between a word of the leader and the leader's next ping."""
    ensemble = zookeeper_usual_ticks
    follower = next(server for server in ensemble.servers if server.mode == "follower")
    for delay in (2.2, 2.9, 3.6, 4.3, 5.0):
        with (
            in_zookeeper(follower.connect_string) as behind,
            in_zookeeper(ensemble.leader.connect_string, behind.space) as before,
        ):
            holder, waiter = behind.open(lease_ms=6000, heartbeat_interval_ms=1200), before.open()
            held = holder.acquire(replace(request((X, TABLE)), owner=ELSEWHERE), deadline=soon())
            waiting = Contender(waiter, request((X, TABLE)), seconds=120).queued()
            time.sleep(delay)  # the subject: the follower freezes at another moment between two pings of the leader
            held.ensure_active(0)
            follower.pause()
            try:
                until(waiting.granted.is_set, "the grant")
                assert held.state is LeaseState.LOST
            finally:
                follower.resume()
            waiting.release()
            until(follower.healthy, "a follower that goes on")
