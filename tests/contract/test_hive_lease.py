"""Leases as in Hive's proposal: grabbed by number, held for a time, in one queue with the locks of operations."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from sqlalchemy import create_engine, text

import commit_coord
from commit_coord import (
    ConfigError,
    ExceedsMaxLeaseTime,
    HeldHiveLease,
    HiveLeases,
    InvalidArguments,
    LeaseAlreadyExists,
    LeaseObject,
    LockLost,
    LockReentered,
)
from commit_coord.clock import SystemClock
from commit_coord.local import PostgresServer
from commit_coord.local.server import by_load
from commit_coord.locks.base import Interrupted
from commit_coord.locks.hive_lease import _EVERY
from commit_coord.locks.registry import create_lock_manager
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.manager import SqlLockManager
from commit_coord.locks.sql.sqlite import SqliteStore
from commit_coord.locks.sql.store import Connection, SqlStep
from commit_coord.model import ExpiryClock, LockMode, LockScope
from commit_coord.protocol.modes import compatible
from commit_coord.testing.contract import PART_A, PATIENCE, TABLE, Contender, Service, request, soon, until

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
T, T_SHARED = LeaseObject("db", "t"), LeaseObject("db", "t", lease_type="s")
A, B = LeaseObject("db", "t", "day=1"), LeaseObject("db", "t", "day=2")
OTHER = LeaseObject("db", "other")
LONG = 600
ROUNDING = 50
"""Milliseconds by which what two clients say of one moment may differ: each looks at its host's clocks one by one."""


@pytest.fixture(params=["lease-sqlite", pytest.param("lease-postgresql", marks=pytest.mark.postgres)])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """A database with no lease in it."""
    sqlite = request.param == "lease-sqlite"
    with Service("lease", f"sqlite:///{tmp_path}/l.db" if sqlite else request.getfixturevalue("postgres").url) as made:
        yield made


@pytest.fixture
def manager(service: Service) -> SqlLockManager:
    """A client."""
    return opened(service)


@pytest.fixture
def leases(manager: SqlLockManager) -> HiveLeases:
    """The leases as this client sees them."""
    return HiveLeases(manager)


def opened(service: Service, **settings: int) -> SqlLockManager:
    """Return another client."""
    client = service.open(**settings)
    assert isinstance(client, SqlLockManager)
    return client


def test_the_classes_have_their_former_names_too() -> None:
    assert (commit_coord.Leases, commit_coord.HeldLease) == (HiveLeases, HeldHiveLease)


def another(service: Service) -> HiveLeases:
    """Return the leases as another client sees them."""
    return HiveLeases(opened(service))


def listed(leases: HiveLeases, *objects: LeaseObject) -> list[tuple[int, str, str]]:
    """Return id, object and type of the live leases."""
    return [
        (lease.lease_id, f"{lease.db_name}.{lease.table_name} {lease.partition_name}".rstrip(), lease.lease_type)
        for lease in leases.list_lease(objects)
    ]


class Uneven(SystemClock):
    """A wall clock that every second look finds a few milliseconds late, and that may be set."""

    def __init__(self) -> None:
        self.set_by_ms, self._late_ms = 0, 0

    def wall_ms(self) -> int:
        self._late_ms = 7 - self._late_ms
        return super().wall_ms() + self.set_by_ms + self._late_ms


class Behind:
    """A thread that waits for a lease."""

    def __init__(self, service: Service, *objects: LeaseObject) -> None:
        self.manager = opened(service)
        self.lease_id = 0
        self._thread = threading.Thread(target=self._run, args=(objects,), daemon=True)
        self._thread.start()
        until(self._queued, "a place in the queue")

    def _queued(self) -> bool:
        mine = os.getpid()
        return any(entry.blocked_by and entry.owner.pid == mine for entry in self.manager.locks())

    def _run(self, objects: Sequence[LeaseObject]) -> None:
        self.lease_id = HiveLeases(self.manager).grab_lease(objects, LONG, PATIENCE)

    def granted(self) -> int:
        """Return its id once it is granted."""
        self._thread.join(PATIENCE)
        assert self.lease_id
        return self.lease_id


# Grabbing.


def test_a_lease_is_on_all_its_objects_or_none(service: Service, leases: HiveLeases) -> None:
    first = leases.grab_lease([A, OTHER], LONG, 0)
    with pytest.raises(LeaseAlreadyExists):
        another(service).grab_lease([B, A], LONG, 0)
    assert [(first, "db.other", "x"), (first, "db.t day=1", "x")] == listed(leases)
    assert leases.grab_lease([B], LONG, 0) > first


def test_a_refusal_names_the_holder(service: Service, leases: HiveLeases) -> None:
    """The user, the process, and the lease with its end; after the wait that was asked for."""
    held = leases.grab_lease([T], LONG, 0)
    started = time.monotonic()
    with pytest.raises(LeaseAlreadyExists) as refused:
        another(service).grab_lease([A], LONG, 0.3)
    assert 0.3 <= time.monotonic() - started
    facts = refused.value.details
    assert (held, os.getpid(), f"a lease of {LONG} s") == (facts["lease_id"], facts["pid"], facts["statement"])
    assert facts["holder"] == leases.list_lease()[0].user
    assert facts["until"] > facts["since"]


def test_objects_need_not_exist_and_hive_escapes_are_understood(leases: HiveLeases) -> None:
    escaped = LeaseObject("db", "t", "when=10%3A00/what=a%2Fb")
    lease_id = leases.grab_lease([escaped], LONG)
    assert ("db", "t", "when=10:00", "what=a/b") == escaped.resource.path
    assert [(lease_id, "db.t when=10:00/what=a%2Fb", "x")] == listed(leases)
    assert leases.list_lease([LeaseObject("db", "t", "when=10:00/what=a%2Fb")])


@pytest.mark.parametrize(
    "first, second, together",
    [
        (T_SHARED, T_SHARED, True),
        (T_SHARED, T, False),
        (T, T_SHARED, False),
        (A, B, True),
        (A, A, False),
        (A, T_SHARED, True),
        (A, T, False),
        (T, A, False),
        (LeaseObject("db", "t", "day=1", "s"), LeaseObject("db", "t", "day=1/hour=2"), True),
        (LeaseObject("db", "t", "day=1"), LeaseObject("db", "t", "day=1/hour=2"), False),
        (T, LeaseObject("db2", "t"), True),
    ],
)
def test_leases_exclude_each_other_by_hives_hierarchy(
    service: Service, leases: HiveLeases, first: LeaseObject, second: LeaseObject, together: bool
) -> None:
    leases.grab_lease([first], LONG, 0)
    if together:
        assert leases.confirm_lease(another(service).grab_lease([second], LONG, 0))
    else:
        with pytest.raises(LeaseAlreadyExists):
            another(service).grab_lease([second], LONG, 0)


def test_of_an_object_that_comes_twice_the_exclusive_one_counts(leases: HiveLeases) -> None:
    lease_id = leases.grab_lease([T, T_SHARED], LONG)
    assert [(lease_id, "db.t", "x")] == listed(leases)


def test_leases_and_operations_wait_in_one_queue(service: Service, manager: SqlLockManager, leases: HiveLeases) -> None:
    """A lease keeps operations out, an operation keeps leases out, and SHOW LOCKS has both."""
    lease_id = leases.grab_lease([A], LONG)
    operation = Contender(opened(service), request((X, TABLE), statement="ALTER TABLE")).queued()
    seen = [(e.resource, e.mode, e.generation, bool(e.blocked_by)) for e in manager.locks(scope=LockScope.OPERATION)]
    assert [(TABLE, S, lease_id, False), (PART_A, X, lease_id, False)] == seen[:2]
    assert [(TABLE, X, True)] == [(resource, mode, waits) for resource, mode, _, waits in seen[2:]]
    leases.drop_lease(lease_id)
    until(operation.granted.is_set, "the operation")
    with pytest.raises(LeaseAlreadyExists, match="ALTER TABLE"):
        leases.grab_lease([A], LONG, 0)
    operation.release()
    leases.grab_lease([A], LONG, 0)


def test_a_lease_that_ends_by_itself_closes_no_circle(
    service: Service, manager: SqlLockManager, leases: HiveLeases
) -> None:
    """Its thread waits for a client that waits for the lease: not for ever, and nobody is refused."""
    leases.grab_lease([OTHER], 3.0)
    entered = threading.Event()

    def work() -> None:
        client = opened(service)
        with client.acquire(request((LockMode.EXCLUSIVE, TABLE)), deadline=soon()):
            entered.set()
            until(lambda: any(entry.blocked_by for entry in client.locks()), "a waiter")
            client.acquire(request((LockMode.EXCLUSIVE, OTHER.resource)), deadline=soon()).release()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work)
        assert entered.wait(PATIENCE)
        manager.acquire(request((LockMode.EXCLUSIVE, TABLE)), deadline=soon()).release()
        other.result(PATIENCE)


def test_a_thread_is_not_left_waiting_for_its_own_operation(manager: SqlLockManager, leases: HiveLeases) -> None:
    with manager.acquire(request((X, TABLE)), deadline=soon()), pytest.raises(LockReentered):
        leases.grab_lease([T], LONG, PATIENCE)
    lease_id = leases.grab_lease([T], LONG)
    with pytest.raises(LeaseAlreadyExists):  # A lease belongs to nobody's thread.
        leases.grab_lease([T], LONG)
    assert leases.confirm_lease(lease_id)


def test_who_came_first_is_first(service: Service, leases: HiveLeases) -> None:
    """Waiters are granted in their order, each as soon as the one before it ends."""
    held = leases.grab_lease([T], LONG)
    shared = Behind(service, T_SHARED)
    exclusive = Behind(service, T)
    with pytest.raises(LeaseAlreadyExists):  # It would not wait for the first, but for the second.
        leases.grab_lease([T_SHARED], LONG)
    leases.drop_lease(held)
    first = shared.granted()
    assert held < first
    assert not exclusive.lease_id
    leases.drop_lease(first)
    assert first < exclusive.granted()


def test_of_many_processes_one_gets_it(service: Service, leases: HiveLeases, tmp_path: Path) -> None:
    def work(client: Any) -> None:
        try:
            lease_id = HiveLeases(client).grab_lease([A, OTHER], LONG, 0)
        except LeaseAlreadyExists:
            return
        (tmp_path / f"won-{lease_id}").touch()

    workers = [service.fork(work) for _ in range(6)]
    assert [0] * 6 == [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    (winner,) = tmp_path.glob("won-*")
    assert {int(winner.name.removeprefix("won-"))} == {lease_id for lease_id, *_ in listed(leases)}


def test_no_two_that_conflict_are_live_at_one_time(service: Service) -> None:
    """Short leases at random, some dropped and most left to end; each from its grant to when it was last live."""
    clients, mutex = [another(service) for _ in range(3)], threading.Lock()
    lives: list[tuple[float, float, Sequence[LeaseObject]]] = []

    def work(number: int) -> None:
        dice, leases = random.Random(number), clients[number % 3]
        for _ in range(12):
            wanted = dice.sample([T, T_SHARED, A, B, OTHER, LeaseObject("db", "t", "day=1", "s")], dice.randint(1, 2))
            lease_id = leases.grab_lease(wanted, 0.03, 60)
            granted = last = time.monotonic()
            dropping = granted + dice.choice([0.005, 1])
            while (asked := time.monotonic()) < dropping and leases.confirm_lease(lease_id):
                last = asked
            if asked >= dropping:
                with suppress(InvalidArguments):  # it has ended meanwhile
                    leases.drop_lease(lease_id)
            with mutex:
                lives.append((granted, last, wanted))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    locks = [dict(request(*((each.mode, each.resource) for each in wanted)).locks) for _, _, wanted in lives]
    together = [
        (first, second)
        for (first, (begun, ended, _)), (second, (begun_too, ended_too, _)) in combinations(enumerate(lives), 2)
        if begun < ended_too and begun_too < ended
    ]
    assert together, "some shared"
    for first, second in together:
        for resource in locks[first].keys() & locks[second].keys():
            assert compatible(locks[first][resource], locks[second][resource]), (lives[first], lives[second])


def test_ids_grow_over_restarts_of_everything(
    service: Service, leases: HiveLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [leases.grab_lease([T_SHARED], LONG) for _ in range(3)]
    os.waitpid(service.fork(lambda client: HiveLeases(client).grab_lease([T_SHARED], LONG)), 0)
    after_boot = opened(service)
    monkeypatch.setattr(after_boot.store, "clock_name", "another boot")
    leases.force_drop_lease()
    ids += [another(service).grab_lease([T], LONG)]
    leases.force_drop_lease()
    ids += [HiveLeases(after_boot).grab_lease([T], LONG)]
    assert sorted(set(ids)) == ids
    assert ids[3] > ids[2] + 1, "the other process had one in between"


# The end.


def test_a_lease_ends_by_the_clock_of_the_database(service: Service, leases: HiveLeases) -> None:
    """SQLite's is its host's; what a client of PostgreSQL believes of the time is of no interest."""

    class Ahead(SystemClock):
        def now(self) -> float:
            return super().now() + LONG + 1

    lease_id = leases.grab_lease([T], LONG)
    ahead = HiveLeases(SqlLockManager(service.uri, space=service.space, clock=Ahead()))
    server = ahead.manager.guarantees.clock is ExpiryClock.SERVER
    assert server == ahead.confirm_lease(lease_id)
    assert server == bool(ahead.list_lease())
    ahead.manager.close()


def test_a_lease_that_nobody_extends_ends_and_the_next_one_is_granted(service: Service, leases: HiveLeases) -> None:
    lease_id = leases.grab_lease([T], 0.5)
    following = another(service).grab_lease([T], LONG, PATIENCE)
    assert following > lease_id
    assert not leases.confirm_lease(lease_id)
    with pytest.raises(InvalidArguments, match="no such lease, or it has ended"):
        leases.extend_lease(lease_id)
    assert [(following, "db.t", "x")] == listed(leases)


def test_a_lease_outlives_its_process_and_ends_in_time(service: Service, leases: HiveLeases) -> None:
    """Kill -9: nobody gets it before its end, not even by reaping; then a waiter does."""

    def work(client: Any) -> None:
        HiveLeases(client).grab_lease([T], 1)
        threading.Event().wait(600)

    victim = service.fork(work)
    until(leases.list_lease, "a lease")
    (held,) = leases.list_lease()
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    leases.manager.reap()
    following = leases.grab_lease([T], LONG, PATIENCE)
    (now,) = leases.list_lease()
    assert following == now.lease_id
    assert now.start_utc > held.end_utc - ROUNDING


def test_a_killed_waiter_leaves_nothing(service: Service, leases: HiveLeases) -> None:
    held = leases.grab_lease([T], LONG)
    victim = service.fork(lambda client: HiveLeases(client).grab_lease([T], LONG, 60))
    until(lambda: len(leases.manager.locks()) == 2, "a waiter")
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    behind = Behind(service, T)
    leases.drop_lease(held)
    assert [(behind.granted(), "db.t", "x")] == listed(leases)


def test_an_extension_moves_the_end_and_nothing_else(service: Service, leases: HiveLeases) -> None:
    """Every client that knows the id may extend it; by what it was grabbed for, from now."""
    lease_id = leases.grab_lease([A, B], LONG)
    before = leases.list_lease()
    extending, end = another(service), 0.0

    def has_moved() -> bool:
        nonlocal end
        end = extending.extend_lease(lease_id, [B])
        return end > before[0].end_utc + ROUNDING

    until(has_moved, "an end that is later by the time that has gone by on the clock of the service")
    after = leases.list_lease()
    assert [lease.start_utc for lease in before] == [lease.start_utc for lease in after]
    assert all(abs(lease.end_utc - end) < ROUNDING for lease in after)
    assert abs(end - before[0].start_utc - LONG * 1000) < 60_000


def test_the_end_of_a_lease_is_the_same_in_every_listing(manager: SqlLockManager, leases: HiveLeases) -> None:
    """However the host's two clocks are rounded, and however long the process stalls between looking at both."""
    if isinstance(manager.store, SqliteStore):
        manager.store.clock = Uneven()
    lease_id = leases.grab_lease([T], LONG)
    assert 1 == len({leases.list_lease()[0].end_utc for _ in range(50)})
    end = leases.extend_lease(lease_id)
    assert end == leases.list_lease()[0].end_utc


def test_an_end_follows_a_wall_clock_that_is_set(tmp_path: Path) -> None:
    """On SQLite, where the end is shown by another clock than it is counted by."""
    with Service("lease", f"sqlite:///{tmp_path}/l.db") as service:
        manager = opened(service)
        leases, clock = HiveLeases(manager), Uneven()
        assert isinstance(manager.store, SqliteStore)
        manager.store.clock = clock
        leases.grab_lease([T], LONG)
        before = leases.list_lease()[0].end_utc
        clock.set_by_ms = 3_600_000
        assert abs(leases.list_lease()[0].end_utc - before - clock.set_by_ms) < ROUNDING


def test_no_lease_lives_longer_than_a_lease_may(manager: SqlLockManager) -> None:
    """Such an extension is refused and changes nothing; such a lease is not granted."""
    leases = HiveLeases(manager, max_duration_ms=10_000)
    with pytest.raises(InvalidArguments, match=r"at most 10 \(lease.max-duration-ms\)"):
        leases.grab_lease([T], 10.001)
    lease_id = leases.grab_lease([T], 10)

    def refused() -> bool:
        try:
            leases.extend_lease(lease_id)
        except ExceedsMaxLeaseTime:
            return True
        return False

    until(refused, "the end of extensions")
    (lease,) = leases.list_lease()
    assert lease.end_utc - lease.start_utc < 10_000 + ROUNDING
    assert leases.confirm_lease(lease_id)


# Dropping.


def test_a_dropped_lease_is_gone(leases: HiveLeases) -> None:
    lease_id = leases.grab_lease([T], LONG)
    leases.drop_lease(lease_id, [T])
    assert not leases.confirm_lease(lease_id)
    assert [] == list(leases.manager.locks())
    with pytest.raises(InvalidArguments):
        leases.drop_lease(lease_id)


def test_some_objects_of_a_lease_are_dropped_and_the_others_stay(service: Service, leases: HiveLeases) -> None:
    """Those that wait for what was dropped are granted; parents stay locked as far as the others need them."""
    lease_id = leases.grab_lease([T, A, B, OTHER], LONG)
    other, part = Behind(service, OTHER), Behind(service, LeaseObject("db", "t", "day=3"))
    leases.drop_lease(lease_id, [OTHER, T])
    assert other.granted()
    assert part.granted()
    with pytest.raises(LeaseAlreadyExists):
        leases.grab_lease([T], LONG)
    leases.drop_lease(lease_id, [B])
    assert [(lease_id, "db.t day=1", "x")] == [row for row in listed(leases) if row[0] == lease_id]
    leases.drop_lease(part.lease_id)
    leases.drop_lease(lease_id, [A])
    assert [other.lease_id] == [entry.generation for entry in leases.manager.locks()]
    leases.grab_lease([T], LONG)


def test_two_that_drop_parts_of_one_lease_drop_both(leases: HiveLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds that the objects are others than it read, and reads again."""
    lease_id = leases.grab_lease([A, B, OTHER], LONG)
    real, done = leases._reduce, list[bool]()

    def reduce(*arguments: Any) -> bool:
        if not done:
            done.append(True)
            leases.drop_lease(lease_id, [A])
        return real(*arguments)

    monkeypatch.setattr(leases, "_reduce", reduce)
    leases.drop_lease(lease_id, [B])
    assert [(lease_id, "db.other", "x")] == listed(leases)
    assert 1 == len(leases.manager.locks())


@pytest.mark.parametrize("others", [[A], []], ids=["a part", "the lease"])
def test_what_was_dropped_before_its_reply_was_lost_is_no_stranger(
    service: Service, leases: HiveLeases, monkeypatch: pytest.MonkeyPatch, others: list[LeaseObject]
) -> None:
    """Although another client drops *others* before the change is sent again."""
    lease_id, real, done = leases.grab_lease([A, B, OTHER], LONG), leases._reduce, list[bool]()

    def reduce(*arguments: Any) -> bool:
        if not done:
            done.append(real(*arguments))
            another(service).drop_lease(lease_id, others)
        return real(*arguments)

    monkeypatch.setattr(leases, "_reduce", reduce)
    leases.drop_lease(lease_id, [B])
    assert ([(lease_id, "db.other", "x")] if others else []) == listed(leases)


def test_by_force_a_lease_ends_as_a_whole(service: Service, leases: HiveLeases) -> None:
    first, second = leases.grab_lease([A, OTHER], LONG), leases.grab_lease([B], LONG)
    assert [] == leases.force_drop_lease([T]), "on exactly this object there is none"
    ended = another(service).force_drop_lease([OTHER, LeaseObject("db", "nothing")])
    assert [(first, "other"), (first, "t")] == [(lease.lease_id, lease.table_name) for lease in ended]
    assert [False, True] == [leases.confirm_lease(each) for each in (first, second)]


def test_an_empty_list_ends_all_leases_and_nothing_else(service: Service, leases: HiveLeases) -> None:
    leases.grab_lease([A], LONG)
    leases.grab_lease([OTHER], LONG)
    operation = Contender(opened(service), request((S, TABLE))).ended()
    assert 2 == len(leases.force_drop_lease([]))
    assert [operation.request.request_id] == [entry.request_id for entry in leases.manager.locks()]
    operation.release()


def test_what_is_freed_as_a_lock_is_no_lease_any_more(leases: HiveLeases) -> None:
    lease_id = leases.grab_lease([A], LONG)
    leases.manager.unlock(resource=PART_A)
    assert not leases.confirm_lease(lease_id)
    assert [] == leases.list_lease()
    leases.grab_lease([A], LONG)
    assert [(1,)] == leases.manager.requests.ask(
        "SELECT count(*) FROM commit_coord_leases WHERE scope = :scope", leases._parameters_of(_EVERY)
    )


def test_leases_that_ended_leave_nothing(leases: HiveLeases) -> None:
    """Also where nobody waited for them."""
    for _ in range(3):
        ended = leases.grab_lease([T_SHARED], 0.05)
    until(lambda: not leases.confirm_lease(ended), "the end")
    last = leases.grab_lease([OTHER], LONG)
    assert [last] == [entry.generation for entry in leases.manager.locks()]


def test_a_list_is_of_objects_and_what_lies_in_them(leases: HiveLeases) -> None:
    of_t, of_a = leases.grab_lease([T_SHARED], LONG), leases.grab_lease([A, OTHER], LONG)
    assert [(of_t, "db.t", "s"), (of_a, "db.t day=1", "x")] == listed(leases, T)
    assert [(of_a, "db.t day=1", "x")] == listed(leases, A)
    assert [] == listed(leases, B)
    assert 3 == len(listed(leases))


# What is refused.


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), True, "60", None])
def test_a_time_that_is_none_is_refused(leases: HiveLeases, seconds: Any) -> None:
    for arguments in ((seconds, 0), (LONG, seconds)):
        with pytest.raises(InvalidArguments, match="invalid length of time|invalid lease duration"):
            leases.grab_lease([T], *arguments)
    assert [] == list(leases.manager.locks())


def test_arguments_that_make_no_sense_are_refused(leases: HiveLeases) -> None:
    lease_id = leases.grab_lease([A], LONG)
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("at least one object", lambda: leases.grab_lease([], LONG, 0)),
        ("invalid lease duration", lambda: leases.grab_lease([T], 0, 0)),
        ("at least one object", lambda: leases.hold([])),
        ("unknown lease type", lambda: LeaseObject("db", "t", None, "w")),
        ("invalid partition name", lambda: LeaseObject("db", "t", "day")),
        ("invalid partition name", lambda: LeaseObject("db", "t", "day=1//hour=2")),
        ("invalid partition name", lambda: LeaseObject("db", "t", "=1")),
        ("a database and a table", lambda: LeaseObject("", "t")),
        ("a database and a table", lambda: LeaseObject("db", "")),
        ("no such lease", lambda: leases.extend_lease(lease_id + 1)),
        ("no such lease", lambda: leases.drop_lease(lease_id + 1)),
        ("no such lease", lambda: leases.drop_lease(2**63 - 1)),
        ("not on this object", lambda: leases.extend_lease(lease_id, [A, B])),
        ("not on this object", lambda: leases.drop_lease(lease_id, [T])),
    ]
    for message, call in refused:
        with pytest.raises(InvalidArguments, match=message):
            call()
    no_ids: list[Any] = [0, -1, 2**63, True, "7"]
    for number in no_ids:
        with pytest.raises(InvalidArguments, match="not the id of a lease"):
            leases.confirm_lease(number)
    assert not leases.confirm_lease(lease_id + 1)
    assert [(lease_id, "db.t day=1", "x")] == listed(leases)


@pytest.mark.parametrize("impl", ["none", "memory"])
def test_without_a_database_there_are_no_leases(impl: str) -> None:
    with create_lock_manager(impl) as elsewhere, pytest.raises(ConfigError) as refused:
        HiveLeases(elsewhere)
    assert {"key": "lock-impl", "value": impl}.items() <= refused.value.details.items()
    assert refused.value.details["accepted"].startswith("lease, with lock.uri")


# Cuts.


def _failing(
    monkeypatch: pytest.MonkeyPatch, leases: HiveLeases, error: BaseException, *, times: int, before: bool = False
) -> None:
    """Let *error* come in place of the answer when a lease is named or loses an object."""
    kind: type[Connection] = type(leases.manager.store.connection)
    real, left = kind.run, [error] * times

    def run(self: Connection, steps: Sequence[SqlStep], *arguments: Any, **named: Any) -> Any:
        naming = any(text in (lease_sql.NAME_LEASE, lease_sql.REDUCE) for text, _ in steps)
        if naming and left and before:
            raise left.pop()
        rows = real(self, steps, *arguments, **named)
        if naming and left:
            raise left.pop()
        return rows

    monkeypatch.setattr(kind, "run", run)


def test_a_lost_reply_makes_no_second_lease(leases: HiveLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, leases, Interrupted("cut"), times=3)
    lease_id = leases.grab_lease([T], LONG)
    assert [(lease_id, "db.t", "x")] == listed(leases)


def test_a_lost_reply_to_a_drop_is_no_error(leases: HiveLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    lease_id = leases.grab_lease([A, OTHER], LONG)
    _failing(monkeypatch, leases, Interrupted("cut"), times=2)
    leases.drop_lease(lease_id, [OTHER])
    assert [(lease_id, "db.t day=1", "x")] == listed(leases)


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_leaves_no_lease(leases: HiveLeases, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    _failing(monkeypatch, leases, KeyboardInterrupt(), times=1, before=before)
    with pytest.raises(KeyboardInterrupt):
        leases.grab_lease([T], LONG)
    assert [] == list(leases.manager.locks())
    leases.grab_lease([T], LONG)


def test_an_interrupt_after_the_lease_was_let_go_leaves_none(
    leases: HiveLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = leases.manager
    real = manager.detach

    def let_go(*arguments: Any) -> NoReturn:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(manager, "detach", let_go)
    with pytest.raises(KeyboardInterrupt):
        leases.grab_lease([T], LONG)
    assert [] == list(manager.locks())


def test_a_client_that_closes_leaves_its_leases(service: Service, leases: HiveLeases) -> None:
    closing = opened(service)
    lease_id = HiveLeases(closing).grab_lease([T], LONG)
    closing.close()
    assert leases.confirm_lease(lease_id)


# Held by a block of code.

QUICK = {"lease_ms": 1000, "heartbeat_interval_ms": 200}


def test_a_held_lease_is_extended_until_the_end_of_its_block(service: Service, leases: HiveLeases) -> None:
    holding = HiveLeases(opened(service, **QUICK))
    with holding.hold([A]) as held:
        (before,) = leases.list_lease()
        assert held.lease_id == before.lease_id
        assert before.end_utc - before.start_utc > 1000 - ROUNDING
        # By the clock of the service: each extension is for a second.
        until(lambda: leases.list_lease()[0].end_utc > before.end_utc + 1000, "one when its first length is over")
        held.check()
        (after,) = leases.list_lease()
        assert before.start_utc == after.start_utc < before.end_utc < after.end_utc
        with ThreadPoolExecutor(1) as another, pytest.raises(LeaseAlreadyExists):
            another.submit(leases.grab_lease, [T], LONG).result()
    assert not held.lost.is_set()
    assert [] == list(leases.manager.locks())
    with pytest.raises(LockLost):
        held.check()


def test_a_held_lease_that_nobody_keeps_is_given_back(service: Service) -> None:
    leases = HiveLeases(opened(service, lease_ms=1000, heartbeat_interval_ms=200))
    gc.disable()  # nobody may rely on the collector
    try:
        leases.hold([T])
        until(lambda: not leases.list_lease(), "nothing left")
    finally:
        gc.enable()


def test_its_owner_learns_that_a_held_lease_is_gone(service: Service, leases: HiveLeases) -> None:
    """By the event and the call as soon as a heartbeat finds out; by an error at the end at the latest."""
    holding, told = HiveLeases(opened(service, **QUICK)), list[HeldHiveLease]()
    with pytest.raises(LockLost), holding.hold([A], on_lost=told.append) as held:
        leases.force_drop_lease([A])
        assert held.lost.wait(PATIENCE)
        with pytest.raises(LockLost):
            held.check()
    assert [held] == told
    with pytest.raises(LockLost), holding.hold([A]):
        leases.force_drop_lease([A])  # and the block ends before any heartbeat
    with pytest.raises(ZeroDivisionError), holding.hold([A]):  # what the block itself raises comes first
        leases.force_drop_lease([A])
        raise ZeroDivisionError


def test_a_holder_that_stalls_finds_its_lease_gone(service: Service, leases: HiveLeases) -> None:
    """Nobody extends it; the next one is granted, and the first leaves that one alone."""
    stalled = opened(service, **QUICK)
    with pytest.raises(LockLost), HiveLeases(stalled).hold([T]) as held:
        stalled.heartbeat.pause()
        with ThreadPoolExecutor(1) as another:
            following = another.submit(leases.grab_lease, [T], LONG, PATIENCE).result()
        with pytest.raises(LockLost):
            held.check()
        assert held.lost.is_set()
    assert leases.confirm_lease(following)


def test_a_killed_process_holds_nothing(service: Service, leases: HiveLeases) -> None:
    """Who holds by a block of code is known to be dead on its own host."""

    def work(client: Any) -> None:
        with HiveLeases(client).hold([T]):
            threading.Event().wait(600)

    victim = service.fork(work)
    until(leases.list_lease, "a lease")
    behind = Behind(service, T)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    started = time.monotonic()
    behind.granted()
    assert time.monotonic() - started < by_load(10)


def test_a_thread_does_not_wait_for_what_its_lease_locks(manager: SqlLockManager, leases: HiveLeases) -> None:
    """Inside of the block only; and of a lease that was grabbed, where it says that it has it."""
    with leases.hold([T]):
        assert manager.holds(TABLE, X)
        assert manager.holds(PART_A, X)
    lease_id = leases.grab_lease([A], LONG)
    with leases.treat_as_held(lease_id):
        assert manager.holds(PART_A, X)
        assert not manager.holds(TABLE, X)
    assert not manager.holds(PART_A, X)
    assert leases.confirm_lease(lease_id)
    with pytest.raises(InvalidArguments), leases.treat_as_held(lease_id + 1):
        pass


def test_a_forked_child_leaves_its_parents_lease_alone(service: Service, leases: HiveLeases) -> None:
    """One that unwinds through the parent's block drops nothing."""
    with leases.hold([T]) as held:

        def work(_: Any) -> None:
            held.drop()
            with pytest.raises(LeaseAlreadyExists):
                leases.grab_lease([T], LONG, 0)

        assert 0 == os.waitstatus_to_exitcode(os.waitpid(service.fork(work), 0)[1])
        assert leases.confirm_lease(held.lease_id)


# The database.


def test_a_database_that_has_locks_and_knows_no_leases_learns_of_them(tmp_path: Path) -> None:
    with Service("lease", f"sqlite:///{tmp_path}/locks.db") as service:
        manager = opened(service)
        with manager.acquire(request((X, TABLE)), deadline=soon()) as lease:
            for table in ("leases", "notes"):  # those that came last
                manager.requests.ask(f"DROP TABLE commit_coord_{table}", {})
            lease_id = another(service).grab_lease([OTHER], LONG)
            lease.ensure_active(0)
            assert HiveLeases(manager).confirm_lease(lease_id)


@pytest.mark.postgres
def test_leases_survive_a_restart_of_the_server(postgres: PostgresServer) -> None:
    with Service("lease", postgres.url) as service:
        leases = another(service)
        lease_id = leases.grab_lease([OTHER], LONG)
        with leases.hold([A]) as held:
            postgres.restart()
            assert leases.confirm_lease(lease_id)
            assert leases.grab_lease([LeaseObject("db", "third")], LONG) > held.lease_id
            leases.extend_lease(lease_id)


# Fencing.


def test_nobody_ends_a_lease_in_the_middle_of_a_transaction_that_asked(service: Service, leases: HiveLeases) -> None:
    """From the question to the end of the transaction; a lease that has ended is distinguished from one that lives."""
    lease_id = leases.grab_lease([T], LONG)
    engine = create_engine(service.uri)
    statement, values = leases.fence(lease_id)
    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as connection:
            assert connection.execute(text(statement), dict(values)).all()
            ending = pool.submit(another(service).force_drop_lease)
            threading.Event().wait(0.3)  # the subject: it does not end as long as the transaction is open
            assert not ending.done()
            connection.commit()
        assert ending.result(PATIENCE)
    with engine.connect() as connection:
        assert not connection.execute(text(statement), dict(values)).all()
    engine.dispose()


TIMES = (1e306, 10**400, -1, float("nan"), float("inf"), True, "1", None)
NAMES: tuple[Any, ...] = (
    ("db", "t", "k=\ud800"),
    ("d\udfff", "t"),
    (1, 2),
    ("db", "t", 5),
    ("db", "t", None, []),
    ("db", None),
)
OBJECTS = ("db.t", LeaseObject("db", "t"), None, 5, [None], ["db.t"])
IDS = (None, True, "1", 1.0, 0, -1, 2**63)


def test_what_no_lease_can_be_made_of_is_refused_in_words_and_changes_nothing(leases: HiveLeases) -> None:
    kept = leases.grab_lease([T], LONG)
    calls: list[Callable[[], Any]] = []
    for wrong in cast(Any, TIMES):
        calls += [partial(leases.grab_lease, [OTHER], wrong), partial(leases.grab_lease, [OTHER], 10, wrong)]
        calls += [partial(leases.hold, [OTHER], wrong)]
    calls += [partial(LeaseObject, *cast(Any, names)) for names in NAMES]
    for wrong in cast(Any, OBJECTS):
        calls += [partial(leases.grab_lease, wrong, 10), partial(leases.hold, wrong)]
        calls += [partial(leases.list_lease, wrong), partial(leases.force_drop_lease, wrong)]
        calls += [partial(leases.drop_lease, kept, wrong), partial(leases.extend_lease, kept, wrong)]
    for wrong in cast(Any, IDS):
        calls += [partial(call, wrong) for call in (leases.confirm_lease, leases.drop_lease, leases.extend_lease)]
        calls += [partial(leases.ensure_live, wrong), partial(leases.fence, wrong)]
    for call in calls:
        with pytest.raises(InvalidArguments):
            call()
    assert [kept] == [lease.lease_id for lease in leases.list_lease()]
