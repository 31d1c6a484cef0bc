"""What the `hms` manager promises beyond the contract: lost replies, stalled holders, sleepers that stop nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from commit_coord.clock import SYSTEM_CLOCK, SystemClock
from commit_coord.errors import LockDeadlock, LockLost, LockRefused, LockServiceUnavailable, LockTimeout, OfferLost
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import LostReply, MetastoreAccess
from commit_coord.hms.locks import LockPart, LockType
from commit_coord.local import HiveMetastore
from commit_coord.local.server import by_load
from commit_coord.locks.base import Lease, LockManager, LockSettings
from commit_coord.locks.handover import FORCED_RELEASE_LIFETIME_MS
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.forced_release_notes import ForcedReleaseNotes
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.model import LeaseState, LockMode, LockScope, LockState, Owner, Resource
from commit_coord.testing.carrying import Submitter, offering
from commit_coord.testing.contract import (
    PART_A,
    PATIENCE,
    TABLE,
    Contender,
    Service,
    latch,
    request,
    soon,
    standing,
    until,
)
from tests.hive.proxy import Proxy
from tests.threads import elsewhere

X, S = LockMode.EXCLUSIVE, LockMode.SHARED


@pytest.fixture
def service(hms: HiveMetastore) -> Iterator[Service]:
    with Service("hms", hms.uri, has_spaces=False) as service:
        yield service


@pytest.fixture
def plain(hms: HiveMetastore) -> Iterator[MetastoreClient]:
    """A client of the metastore that knows nothing of our locks."""
    client = MetastoreClient(hms.uri, MetastoreAccess())
    yield client
    client.close()


@pytest.fixture
def proxy(hms: HiveMetastore) -> Iterator[Proxy]:
    with Proxy(hms.uri) as proxy:
        yield proxy


class Jumping(SystemClock):
    """The system's clock, as a process sees it that was paused."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


def hive(manager: LockManager) -> HmsLockManager:
    assert isinstance(manager, HmsLockManager)
    return manager


# What is sent.


def test_a_free_latch_costs_two_round_trips(service: Service) -> None:
    manager = hive(service.open())
    manager.acquire(latch(), deadline=soon()).release()
    before = manager.metastore.calls.copy()
    with manager.acquire(latch(), deadline=soon()) as lease:
        lease.ensure_active()
    assert manager.metastore.calls - before == {"lock": 1, "unlock": 1}


def test_the_latch_is_the_lock_that_others_take(service: Service, plain: MetastoreClient) -> None:
    with service.open().acquire(latch(Resource(("DB", "T"))), deadline=soon()):
        (found,) = plain.show_locks("db", "t")
        assert (found.part, found.acquired) == (LockPart(type=LockType.EXCLUSIVE, db="db", table="t"), True)


def test_what_others_hold_is_listed_and_can_be_freed(service: Service, plain: MetastoreClient) -> None:
    part = LockPart(type=LockType.SHARED_READ, db="db", table="t", partition="day=1")
    lock_id, _ = plain.lock([part], user="ann", host="far", agent="hive_query_7")
    manager = service.open()
    (entry,) = manager.locks(TABLE)
    assert (entry.resource, entry.mode, entry.scope) == (PART_A, S, LockScope.COMMIT)
    assert (entry.owner.user, entry.owner.host, entry.owner.application) == ("ann", "far", "hive_query_7")
    assert (entry.request_id, entry.expires_in_ms) == (f"hms-{lock_id}", None)
    assert list(manager.reap()) == []
    waiter = Contender(manager, latch(), seconds=0.3).ended()
    assert isinstance(waiter.error, LockTimeout)
    assert (waiter.error.details["holder"], waiter.error.details["request_id"]) == ("ann", f"hms-{lock_id}")
    assert [e.request_id for e in manager.unlock(request_id=f"hms-{lock_id}")] == [f"hms-{lock_id}"]
    manager.acquire(latch(), deadline=soon()).release()


@pytest.mark.parametrize(
    "resource",
    [
        Resource(("db",)),
        Resource(("DB", "Tä'\"%b le", "k=A/b%2F~x", "ключ=значение")),
        Resource(("db", "t", "k=" + "ж" * 200)),
    ],
    ids=["database", "odd", "long"],
)
def test_names_survive_any_folding(resource: Resource) -> None:
    """3.1 folds partitions, Hive 4 takes them apart; the columns have their lengths."""
    part = hms_names.parts(request((X, resource)))[-1]
    assert part.partition is not None
    assert part.partition == part.partition.lower()
    assert part.table == part.table.lower()
    assert len(part.partition) <= 767
    assert len(part.table) <= 128
    scope, found = hms_names.resource_of(part)
    assert scope is LockScope.OPERATION
    assert found == resource or (len(str(resource)) > 150 and found.path[:2] == resource.path[:2])


def test_quotes_of_a_statement_do_not_reach_the_metastores_database(service: Service) -> None:
    """Its server puts what an owner says into SQL as it is."""
    owner = Owner(user="o'hara", host="ann's", pid=1, application="it's", statement="INSERT ... VALUES ('a\\', '')")
    manager = hive(service.open())
    wanted = replace(request((X, PART_A)), owner=owner)
    with manager.acquire(wanted, deadline=soon()):
        listed = manager.locks(PART_A)[0].owner
    assert ('o"hara', 'INSERT ... VALUES ("a/", "")') == (listed.user, listed.statement)


def test_an_owner_is_cut_to_its_columns() -> None:
    owner = Owner(user="ü" * 300, host="h" * 300, pid=7, application="a b" * 99, statement="s" * 999, process="b:1:7:9")
    wanted = request((X, TABLE), owner=owner)
    agent = hms_names.agent(wanted, client="01234567", requested_ms=1_800_000_000_000, lease_ms=15_000)
    assert max(len(agent), len(hms_names.host(owner)), len(hms_names.user(owner))) == 128
    parsed = hms_names.Agent.parse(agent)
    assert parsed is not None
    assert (parsed.request_id, parsed.lease_ms) == (wanted.request_id, 15_000)
    assert agent.isascii()
    assert hms_names.user(owner).isascii()
    for foreign in ("", "Unknown", "commit-coord", "commit-coord probe", "commit-coord a b c d e f"):
        assert hms_names.Agent.parse(foreign) is None


# Lost replies.


@pytest.mark.parametrize("lost", ["swallow", "refuse"])
@pytest.mark.parametrize("scope", list(LockScope))
def test_a_lock_whose_reply_is_lost_is_held_once(service: Service, proxy: Proxy, lost: str, scope: LockScope) -> None:
    manager, other = HmsLockManager(proxy.uri), service.open()
    manager.acquire(latch(), deadline=soon()).release()
    getattr(proxy, lost).append("lock")
    wanted = request((X, TABLE), scope=scope)
    with manager.acquire(wanted, deadline=soon()) as lease:
        assert standing(other) == {wanted.request_id: LockState.ACQUIRED}
        lease.ensure_active(0)
    assert standing(other) == {}
    manager.close()


@pytest.mark.parametrize("explicit", [False, True], ids=["an operation", "a LOCK statement"])
def test_a_first_try_that_comes_late_is_released(
    service: Service, plain: MetastoreClient, proxy: Proxy, explicit: bool
) -> None:
    """A second place of one request is nobody's: it goes, and the lease stays."""
    manager, other = HmsLockManager(proxy.uri), service.open()
    proxy.refuse.append("lock")
    wanted = replace(request((S, TABLE)), explicit=explicit)
    with manager.acquire(wanted, deadline=soon()) as lease:
        agent = hms_names.agent(wanted, client=manager.client, requested_ms=1, lease_ms=15_000)
        late, _ = plain.lock(hms_names.parts(wanted), user="u", host="h", agent=agent)
        until(lambda: late not in [one.lock_id for one in plain.show_locks()], "the end of the second place")
        lease.ensure_active(0)
        assert standing(other) == {wanted.request_id: LockState.ACQUIRED}
    manager.close()


def test_a_lock_that_was_freed_before_its_reply_is_not_held(hms: HiveMetastore, service: Service) -> None:
    """Its owner is paused before the answer, for longer than a lease; by then another owner has it."""
    clock, rivals = Jumping(), hive(service.open())
    held: list[Lease] = []
    with HmsLockManager(hms.uri, clock=clock) as manager:
        lock = manager.metastore.lock

        def late(*parts: Any, **words: Any) -> tuple[int, bool]:
            reply = lock(*parts, **words)
            if not held:
                rivals.metastore.unlock(reply[0])
                with ThreadPoolExecutor(1) as elsewhere:  # this thread would wait for itself
                    held.append(elsewhere.submit(rivals.acquire, request((X, TABLE)), deadline=soon()).result())
                clock.ahead += 16
            return reply

        manager.metastore.lock = late  # type: ignore[method-assign]
        with pytest.raises(LockTimeout):
            manager.acquire(request((X, TABLE)), deadline=clock.now() + 17)
        held[0].ensure_active(0)
        held[0].release()
    assert standing(rivals) == {}


def test_a_lock_whose_reply_was_awaited_for_a_lease_is_given_back(hms: HiveMetastore, service: Service) -> None:
    """A waiter may have decided to free it; its owner looks before that one does, and would believe that it holds."""
    clock = Jumping()
    with HmsLockManager(hms.uri, clock=clock) as manager:
        lock, places = manager.metastore.lock, []

        def unheard(*parts: Any, **words: Any) -> tuple[int, bool]:
            reply = lock(*parts, **words)
            places.append(reply[0])
            if len(places) == 1:
                clock.ahead += 16
                raise LostReply("no answer")
            return reply

        manager.metastore.lock = unheard  # type: ignore[method-assign]
        with manager.acquire(request((X, TABLE)), deadline=clock.now() + 60) as lease:
            assert lease.generation is not None
            assert lease.generation > places[0]
            there = {entry.generation for entry in service.open().locks(TABLE)}
            assert lease.generation in there
            assert places[0] not in there


def test_a_place_that_was_silent_for_a_lease_is_given_back(hms: HiveMetastore, service: Service) -> None:
    """A waiter may have looked before it spoke again, and free it after."""
    clock, holder = Jumping(), elsewhere(service.open().acquire, request((X, TABLE)), deadline=soon())
    with HmsLockManager(hms.uri, clock=clock) as manager:
        check, places = manager.metastore.check_lock, []

        def stalled(lock_id: int) -> bool:
            places.append(lock_id)
            if len(places) == 1:
                clock.ahead += 16
                holder.release()
            return check(lock_id)

        manager.metastore.check_lock = stalled  # type: ignore[method-assign]
        with manager.acquire(request((X, TABLE)), deadline=clock.now() + 60) as lease:
            assert lease.generation is not None
            assert lease.generation > places[0]
            there = {entry.generation for entry in service.open().locks(TABLE)}
            assert lease.generation in there
            assert places[0] not in there


def test_a_heartbeat_that_is_answered_after_the_lease_is_none(hms: HiveMetastore) -> None:
    """A waiter may have looked before it arrived, and free the lock after."""
    clock = Jumping()
    with HmsLockManager(hms.uri, clock=clock) as manager:
        lease = manager.acquire(latch(), deadline=clock.now() + 60)
        beat = manager.metastore.heartbeat

        def slow(lock_id: int) -> None:
            beat(lock_id)
            clock.ahead += 6

        clock.ahead += 10
        manager.metastore.heartbeat = slow  # type: ignore[method-assign]
        with pytest.raises(LockLost):
            lease.ensure_active(0)
        manager.metastore.heartbeat = beat  # type: ignore[method-assign]
        until(lambda: not manager.locks(TABLE), "the end of what is not relied on")


def test_a_release_whose_reply_is_lost_is_repeated(service: Service, proxy: Proxy) -> None:
    manager = HmsLockManager(proxy.uri)
    lease = manager.acquire(latch(), deadline=soon())
    proxy.refuse.append("unlock")
    lease.release()
    assert LeaseState.RELEASED is lease.state
    assert standing(service.open()) == {}
    manager.close()


@pytest.mark.parametrize("ended", ["unreachable", "by force"])
def test_an_offer_that_was_taken_stays_in_doubt_however_its_request_ends(
    service: Service, plain: MetastoreClient, proxy: Proxy, ended: str
) -> None:
    """Its holder was interrupted and gave no answer; then the metastore does not grant the next one's latch."""
    manager = HmsLockManager(proxy.uri, settings=LockSettings(lease_ms=1_000, heartbeat_interval_ms=300))
    holder = manager.acquire(latch(), deadline=soon())
    waiter = Submitter(manager, offering("a")).queued()
    assert [offer.text for offer in holder.take(10)] == ["a"]
    if ended == "unreachable":
        proxy.refuse += ["lock"] * 100
        holder.release()
    else:
        lock_id, _ = plain.lock(hms_names.parts(latch()), user="u", host="h", agent="a")
        holder.release()
        until(lambda: waiter.request.request_id in manager.parts.queue.tickets, "a place in the metastore")
        plain.unlock(manager.parts.queue.tickets[waiter.request.request_id].lock_id)
        plain.unlock(lock_id)
    assert isinstance(waiter.failed(), OfferLost)
    proxy.refuse.clear()
    manager.close()
    assert standing(service.open()) == {}


# Waiting.


@pytest.mark.parametrize("table", [TABLE, Resource(("DB", "Table"))], ids=["hive's names", "names of a SQL catalog"])
def test_a_remote_holder_that_stopped_is_freed_by_its_waiter(
    service: Service, plain: MetastoreClient, table: Resource
) -> None:
    """The server does not reap; the waiter does, after the lease that the holder asked for."""
    wanted = latch(table)
    agent = hms_names.agent(wanted, client="gone", requested_ms=1, lease_ms=1_500)
    plain.lock(hms_names.parts(wanted), user="u", host="far away ::7:", agent=agent)
    started = time.monotonic()
    service.open().acquire(latch(table), deadline=soon()).release()
    assert 1.4 < time.monotonic() - started < PATIENCE


def test_a_lock_statement_of_a_host_that_is_gone_is_spared(service: Service, plain: MetastoreClient) -> None:
    wanted = request((X, TABLE), explicit=True)
    agent = hms_names.agent(wanted, client="gone", requested_ms=1, lease_ms=300)
    plain.lock(hms_names.parts(wanted), user="u", host="far away ::7:", agent=agent)
    manager = service.open()
    waiter = Contender(manager, request((X, TABLE)), seconds=1.5).ended()
    assert isinstance(waiter.error, LockTimeout)
    assert standing(manager) == {wanted.request_id: LockState.ACQUIRED}


def test_a_reader_that_stepped_back_is_the_one_to_give_in(service: Service) -> None:
    """Its wait is in no queue, so nobody else can see the circle that it closes."""
    ann, bob, writers = service.open(), service.open(), service.open()
    held, wanted = Resource(("db", "t", "day=1")), Resource(("db", "t2", "day=1"))
    stepped = threading.Event()
    ended: list[BaseException | None] = []

    def reads_past_the_writer() -> None:
        with ann.acquire(request((X, held)), deadline=soon()):
            writer.queued()
            try:
                ann.acquire(request((S, wanted), statement="ann"), deadline=soon()).release()
            except LockDeadlock as error:
                ended.append(error)

    def holds_and_waits_for_her() -> None:
        with bob.acquire(request((S, wanted), statement="bob holds"), deadline=soon()):
            ready.set()
            assert stepped.wait(PATIENCE)
            bob.acquire(request((X, held), statement="bob"), deadline=soon()).release()

    ready = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(holds_and_waits_for_her)
        assert ready.wait(PATIENCE)
        writer = Contender(writers, request((X, wanted), statement="writer"))
        first = pool.submit(reads_past_the_writer)
        until(
            lambda: any(ticket.stepped_back for ticket in list(hive(ann).parts.queue.tickets.values())), "a step back"
        )
        stepped.set()
        first.result(PATIENCE)
        second.result(PATIENCE)
    writer.release()
    (error,) = ended
    assert isinstance(error, LockDeadlock)
    assert "ann" in error.details["cycle"]
    assert "bob" in error.details["cycle"]
    assert standing(writers) == {}


def test_waiters_behind_others_sleep_longer_and_those_of_a_long_holder_too(service: Service) -> None:
    manager = hive(service.open())
    first = latch()
    with manager.acquire(first, deadline=soon()) as lease:
        (entry,) = hive(service.open()).parts.queue.table.with_blockers(None, None)
        now = SYSTEM_CLOCK.now()

        def pause(ahead: int, age: float) -> float:
            blocker = manager.parts.queue._blocker(entry[0], [entry[0]] * ahead, None, now=now - age)
            return max(manager.parts.queue._until_next(blocker, now) for _ in range(50))

        assert 0.025 <= pause(1, 0) <= 0.05
        assert 0.12 <= pause(10, 0) <= 0.25
        manager.parts.queue.leases.usual_hold = 0.2  # what its own latches took
        assert 0.05 <= pause(1, 0) <= 0.1
        assert 0.5 <= pause(10, 0) <= 1
        assert 1 <= pause(1, 8) <= 2
        assert 2.5 <= pause(1, 3600) <= 5
        assert 2.5 <= pause(10_000, 0) <= 5
        lease.ensure_active()


def test_who_waited_long_asks_soon_while_the_queue_moves(service: Service) -> None:
    """Sixteen writers on one table all wait long. It is a holder that stays who is seldom asked for."""
    manager, others = hive(service.open()), service.open()
    first, second = (
        others.acquire(request((X, TABLE)), deadline=soon()),
        Contender(others, request((X, TABLE))).queued(),
    )
    holder, waiter = hive(service.open()).parts.queue.table.with_blockers(None, None)
    now = SYSTEM_CLOCK.now()
    before = manager.parts.queue._blocker(waiter[0], [holder[0], waiter[0]], None, now=now - 100)
    assert manager.parts.queue._blocker(waiter[0], [holder[0], waiter[0]], before, now=now).since == now - 100
    assert manager.parts.queue._blocker(waiter[0], [waiter[0]], before, now=now).since == now
    first.release()
    second.release()


def test_a_reader_steps_back_behind_a_writer_that_waits(service: Service) -> None:
    """2.3 lets it pass, and may grant both of them when both ask at one time."""
    manager, writers, readers = hive(service.open()), service.open(), service.open()
    lease = manager.acquire(request((S, PART_A)), deadline=soon())
    writer = Contender(writers, request((X, PART_A))).queued()
    late = Contender(readers, request((S, PART_A)))
    until(lambda: any(ticket.stepped_back for ticket in hive(readers).parts.queue.tickets.values()), "a step back")
    lease.release()
    writer.ended()
    assert not late.granted.is_set()
    writer.release()
    late.release()
    until(lambda: not manager.locks(), "an empty queue")


def test_a_waiter_that_leaves_the_head_of_the_queue_stalls_nobody(service: Service) -> None:
    """Ten requests in a row; the nine before the last one give up while it sleeps."""
    manager, other = service.open(), service.open()
    lease = manager.acquire(request((X, TABLE)), deadline=soon())
    quitters = [Contender(other, request((X, TABLE)), seconds=1.0).queued() for _ in range(5)]
    last = Contender(service.open(), request((X, TABLE))).queued()
    for quitter in quitters:
        quitter.ended()
    lease.release()
    started = time.monotonic()
    last.release()
    assert time.monotonic() - started < by_load(5)


def listed(manager: HmsLockManager, lease: Lease) -> list[str]:
    """Return the locks of *lease* on the table and its partitions: the lock of another test may be there, too."""
    return [str(entry.resource) for entry in manager.locks(TABLE) if entry.request_id == lease.request.request_id]


def test_a_request_for_many_partitions_is_waited_for(hms: HiveMetastore) -> None:
    """It takes longer than the timeout of a call and than a lease: it is granted once, and the lease is fresh."""
    days = [(LockMode.EXCLUSIVE, Resource(("db", "t", f"day={number}"))) for number in range(400)]
    settings = LockSettings(lease_ms=400, heartbeat_interval_ms=100)
    with HmsLockManager(f"{hms.uri}?timeout-ms=400", settings=settings) as manager:
        with manager.acquire(request(*days), deadline=soon()) as lease:
            lease.ensure_active(0)
            assert 1 == manager.metastore.calls["lock"]
            assert 401 == len(listed(manager, lease)), "another test's lock may not have expired yet"
        # On a busy machine the release is not answered in time; then the locks expire.
        until(lambda: not listed(manager, lease), "the end of the locks")


def test_a_release_wakes_waiters_of_its_own_process_at_once(service: Service) -> None:
    settings = LockSettings(check_min_wait_ms=60_000, check_max_wait_ms=60_000)
    manager = HmsLockManager(service.uri, settings=settings)
    lease = manager.acquire(request((X, TABLE)), deadline=soon())
    waiter = Contender(manager, request((X, TABLE))).queued()
    until(
        lambda: [t for t in manager.parts.queue.tickets.values() if t.blocked_by is not None],
        "a waiter that knows its blocker",
    )
    lease.release()
    waiter.release()
    manager.close()


@pytest.mark.slow
def test_locks_survive_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    with HiveMetastore(tmp_path_factory.mktemp("hms") / "s") as own:
        # To start a server may take longer than a lease usually lasts.
        settings = LockSettings(lease_ms=120_000)
        manager, other = HmsLockManager(own.uri, settings=settings), HmsLockManager(own.uri, settings=settings)
        lease = manager.acquire(request((X, TABLE)), deadline=soon())
        waiter = Contender(other, request((X, TABLE)), seconds=120).queued()
        own.kill()
        own.start()
        lease.ensure_active(0)
        assert not waiter.granted.is_set()
        lease.release()
        waiter.release()
        for client in (manager, other):
            client.close()


def test_who_was_not_answered_takes_nobody_for_dead(hms: HiveMetastore, service: Service) -> None:
    """The metastore is away for two waiters, for longer than a lease, and comes back for the second one first."""
    settings, away = (
        LockSettings(lease_ms=8_000, heartbeat_interval_ms=2_000),
        ["heartbeat", "check_lock", "show_locks"] * 1_000,
    )
    with Proxy(hms.uri) as to_first, Proxy(hms.uri) as to_second:
        first, second = (HmsLockManager(way.uri, settings=settings) for way in (to_first, to_second))
        held = service.open().acquire(request((X, TABLE)), deadline=soon())
        waiters = [Contender(client, request((X, TABLE)), seconds=120).queued() for client in (first, second)]
        second_lease = second.acquire(latch(Resource(("db", "second"))), deadline=soon())
        to_first.refuse += away
        to_second.refuse += away
        until(lambda: second_lease.state is LeaseState.LOST, "the end of a lease")
        looks = to_second.seen.count("show_locks")
        to_second.refuse.clear()
        until(lambda: to_second.seen.count("show_locks") > looks, "a look at the queue")
        to_first.refuse.clear()
        held.release()
        for waiter in waiters:
            waiter.release()
        first.close()
        second.close()


def test_no_thread_is_left_behind(service: Service) -> None:
    before = set(threading.enumerate())
    manager = service.open()
    manager.acquire(latch(), deadline=soon()).release()
    manager.close()
    assert set(threading.enumerate()) <= before


def test_an_id_of_another_client_is_refused(service: Service) -> None:
    manager, other = service.open(), service.open()
    wanted = latch()
    with manager.acquire(wanted, deadline=soon()):
        waiter = Contender(other, wanted).ended()
        assert isinstance(waiter.error, LockRefused)


HANGS = "?timeout-ms=600000"
"""So long a client would wait for an answer if nothing else ended its wait: longer than any test."""


def test_one_metastore_of_two_that_hangs_costs_no_lease(hms: HiveMetastore) -> None:
    """The heartbeat asks the next server while the lease still lives."""
    with (
        Proxy(hms.uri) as first,
        Proxy(hms.uri) as second,
        Service("hms", f"{first.uri},{second.uri}{HANGS}", has_spaces=False) as service,
    ):
        manager = hive(service.open(lease_ms=18_000, heartbeat_interval_ms=2_000))
        with ExitStack() as ending, manager.acquire(request((X, TABLE)), deadline=soon()) as lease:
            ending.callback(first.passing.set)
            first.passing.clear()
            until(
                lambda: manager.metastore.address == second.uri or lease.state is LeaseState.LOST,
                "the second server is used",
            )
            assert lease.state is not LeaseState.LOST
            lease.ensure_active(0)
            assert lease.state is LeaseState.HELD


def test_a_release_does_not_wait_for_a_metastore_that_hangs(service: Service, proxy: Proxy) -> None:
    manager = hive(Service("hms", f"{proxy.uri}{HANGS}").open())
    lease = manager.acquire(latch(), deadline=soon())
    proxy.passing.clear()
    with ThreadPoolExecutor(1) as pool:
        releasing = pool.submit(lease.release)
        ended = wait([releasing], PATIENCE).done
        proxy.passing.set()
        assert ended
    until(lambda: not service.open().locks(TABLE), "the lock is given back in the background")
    manager.close()


def test_an_acquire_does_not_wait_much_longer_than_its_deadline_for_a_metastore_that_hangs(proxy: Proxy) -> None:
    manager = hive(Service("hms", f"{proxy.uri}{HANGS}").open())
    manager.acquire(latch(), deadline=soon()).release()
    proxy.passing.clear()
    with ThreadPoolExecutor(1) as pool:
        acquiring = pool.submit(lambda: manager.acquire(latch(), deadline=soon(1)))
        ended = wait([acquiring], PATIENCE).done
        proxy.passing.set()
        assert ended
        assert isinstance(acquiring.exception(), LockServiceUnavailable)
    manager.close()


def test_a_client_that_is_closed_gives_back_what_it_could_not_release_before(service: Service, proxy: Proxy) -> None:
    """Else it stays until a waiter of ours frees it, and other programs have none."""
    manager = hive(Service("hms", proxy.uri).open())
    lease = manager.acquire(latch(), deadline=soon())
    proxy.refuse = ["unlock"] * 1_000
    lease.release()
    manager.heartbeat.stop()
    assert service.open().locks(TABLE)
    proxy.refuse = []
    manager.close()
    assert not service.open().locks(TABLE)


class _HourLater(SystemClock):
    def wall_ms(self) -> int:
        return super().wall_ms() + FORCED_RELEASE_LIFETIME_MS


def test_a_note_of_a_forced_release_goes_when_its_waiter_has_read_it_or_after_an_hour(plain: MetastoreClient) -> None:
    def noted() -> set[str]:
        return {one.part.partition or "" for one in plain.show_locks(hms_names.OPERATIONS, hms_names.RELEASES)}

    notes, operator = (
        ForcedReleaseNotes(plain, SYSTEM_CLOCK),
        Owner(user="it's me", host="night", pid=7, application=""),
    )
    for waiter in ("of-a-waiter-that-died", "of-one-that-lives"):
        notes.leave(waiter, operator, why="")
    assert notes.take("of-one-that-lives") == {"released_by": 'it"s me@night pid 7'}
    assert not notes.take("of-one-that-lives")
    assert noted() == {"r=of-a-waiter-that-died"}
    ForcedReleaseNotes(plain, _HourLater()).leave("an-hour-later", operator, why="it hangs")
    assert noted() == {"r=an-hour-later"}
    notes.leave("hms-7", operator, why="Hive reads no note")
    assert noted() == {"r=an-hour-later"}
    with pytest.MonkeyPatch.context() as failing:
        failing.setattr(plain, "unlock", _no_answer)
        assert notes.take("an-hour-later")["why"] == "it hangs"
    assert notes.take("an-hour-later")
    assert not noted()


def _no_answer(lock_id: int) -> None:
    raise LostReply("no answer")
