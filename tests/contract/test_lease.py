"""What the lease manager promises beyond the contract: lost wake-ups, cuts, restarts, databases that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commit_coord.clock import SYSTEM_CLOCK, SystemClock
from commit_coord.errors import LockLost, LockServiceUnavailable
from commit_coord.events import LockReleaseFailed
from commit_coord.local.postgres import PostgresServer
from commit_coord.local.server import by_load
from commit_coord.locks.base import Interrupted, LockSettings
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.locks.keeping import HeartbeatLease
from commit_coord.locks.registry import create_lock_manager
from commit_coord.locks.sql import queue as lease
from commit_coord.locks.sql import sqlite
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.manager import SqlLockManager
from commit_coord.locks.sql.postgres import PostgresConnection, postgres_text
from commit_coord.model import LeaseState, LockMode, LockRequest, LockState, Resource
from commit_coord.process import boottime_offset_ms
from commit_coord.testing.carrying import Submitter, answer, in_line, offering
from commit_coord.testing.contract import (
    TABLE,
    Contender,
    Interrupt,
    Service,
    answers,
    latch,
    request,
    soon,
    standing,
    until,
)
from tests import limits
from tests.sockets import silence_ms
from tests.threads import elsewhere

X = LockMode.EXCLUSIVE
SERVICES = ["lease-sqlite", pytest.param("lease-postgresql", marks=pytest.mark.postgres)]


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The URL of a fresh PostgreSQL database."""
    name = f"d{uuid.uuid4().hex}"
    with psycopg.connect(_plain(postgres.url), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    return f"{postgres.url.rpartition('/')[0]}/{name}"


@pytest.fixture
def on_postgres(postgres: PostgresServer) -> Iterator[Service]:
    """A service on PostgreSQL."""
    with Service("lease", postgres.url) as service:
        yield service


def _plain(url: str) -> str:
    return url.replace("+psycopg", "")


def failure(service: Service, zero: str) -> str:
    """Return an expression with *zero* that fails while it runs: a division on PostgreSQL, an overflow on SQLite."""
    return f"abs({zero} - 9223372036854775807 - 1)" if "sqlite" in service.uri else f"1 / {zero}"


@pytest.mark.parametrize("service", SERVICES, indirect=True)
def test_no_step_of_an_acquire_reads_the_locks_of_others(service: Service) -> None:
    """Every statement finds its rows by an index, however many there are, and whatever the planner knows of them."""
    manager = service.open()
    days = [(X, Resource(("db", "t", f"day={day}"))) for day in range(2000)]
    with manager.acquire(request(*days), deadline=soon()):
        connection = manager.store.connection  # type: ignore[attr-defined]
        one = {
            "request_id": "r",
            "client": "c",
            "place": 7,
            "scope": "s",
            "resource": "r",
            "mode": "X",
            "clock": "c",
            "forced": 1,
            "ended": "e",
            "queue": "q",
            "note": "n",
        }
        removing = ("REMOVE", "REMOVE_LOCKS", "REMOVE_OFFER", "LEAVE_NOTE", "DELETE_NOTE")
        for name in ("LOOK", "WAKE", "LOCKS_OF", *removing, "FIND", "RETRACT"):
            text, values = getattr(lease_sql, name), one
            explain = "EXPLAIN" if "postgres" in connection._store.shown else "EXPLAIN QUERY PLAN"
            plan = "\n".join(str(row) for row in connection.ask(f"{explain} {text}", values))
            assert not re.search(r"Seq Scan|Hash|Merge Join|\bSCAN (?!CONSTANT|nearest|\(sub)", plan), (
                f"{name}:\n{plan}"
            )


@pytest.mark.parametrize("noted", [True, False])
def test_a_lost_lease_whose_listener_ends_the_thread_is_extended_no_more(
    noted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a service that keeps it until it is removed, nobody else is granted before. Also if it is not *noted*."""
    with Service("lease", f"sqlite:///{tmp_path}/locks.db") as service:
        manager = service.open(lease_ms=1000, heartbeat_interval_ms=200)
        assert isinstance(manager, SqlLockManager)
        lease = manager.acquire(latch(), deadline=soon())
        assert isinstance(lease, HeartbeatLease)
        tickets = manager.parts.queue.tickets
        monkeypatch.setattr(lease.keeper.service, "keeps_lost", lambda _: True)
        monkeypatch.setattr(lease.keeper.service, "denial", lambda _: "as if it knew")
        if not noted:
            lease._state = LeaseState.LOST  # interrupted right after it was found LOST
        lease.add_listener(lambda *_: sys.exit("a listener of the test"))
        with suppress(SystemExit, LockLost):
            lease.ensure_active(0)
        if noted:
            assert lease.request.request_id not in tickets
        until(lambda: not standing(manager), "the end of the lost lease")
        assert {} == tickets


@pytest.mark.parametrize("service", SERVICES, indirect=True)
def test_no_wake_up_is_lost(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes hand one latch to each other a few hundred times, each hand-over by a wake-up and none by the clock."""
    monkeypatch.setattr(lease, "LOOK_AGAIN_S", 3600.0)

    def work(client: HandoverLockManager) -> None:
        for _ in range(60):
            started = SYSTEM_CLOCK.now()
            client.acquire(latch(), deadline=soon()).release()
            # A waiter that nobody woke would ask again when its blocker's lease is over, after 15 s.
            assert SYSTEM_CLOCK.now() - started < by_load(12)

    workers = [service.fork(work) for _ in range(5)]
    assert [0] * 5 == [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def test_many_clients_may_create_the_tables_at_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The first use of a database by several processes at the same moment."""
    url = f"sqlite:///{tmp_path}/new.db" if kind == "sqlite" else request.getfixturevalue("database")
    with Service("lease", url) as service:
        workers = [service.fork(lambda client: client.acquire(latch(), deadline=soon()).release()) for _ in range(6)]
        assert [0] * 6 == [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]


def test_a_release_that_is_done_again_gives_nothing_back_that_the_next_holder_took(tmp_path: Path) -> None:
    """The reply to the release was lost, and the transaction is sent again."""
    with Service("lease", f"sqlite:///{tmp_path}/locks.db") as service:
        manager, other = service.open(), service.open()
        assert isinstance(manager, SqlLockManager)
        holder = manager.acquire(latch(), deadline=soon())
        assert isinstance(holder, HeartbeatLease)
        ticket = manager.parts.queue.tickets[holder.request.request_id]
        first, second = in_line(other, "a", "b")
        taken = [offer.request_id for offer in holder.take(10)]
        holder.settle([], taken)
        holder.release()
        next_holder = first.lease()
        assert [offer.text for offer in next_holder.take(10)] == ["b"]
        holder.keeper.service.remove(ticket)
        next_holder.release()
        last = second.lease()
        assert not last.retract(), "it is in the hands of the second holder"
        last.release()


def test_a_heartbeat_while_a_listing_is_asked_for_gives_nobody_more_than_a_lease(tmp_path: Path) -> None:
    """A listing reads the time first, waits for the database, and then finds what was written meanwhile."""

    class Before(SystemClock):
        def now(self) -> float:
            return super().now() - 0.5

    url = f"sqlite:///{tmp_path}/locks.db"
    with Service("lease", url) as service:
        holder = service.open().acquire(latch(), deadline=soon())
        early = SqlLockManager(url, space=service.space, clock=Before())
        (entry,) = early.locks()
        assert early.settings.lease_ms == entry.expires_in_ms
        early.close()
        holder.release()


def test_an_offer_that_was_carried_out_and_comes_back_can_not_be_taken_back(tmp_path: Path) -> None:
    """The transaction that enters the request comes to the server once more after the request was ended."""
    with Service("lease", f"sqlite:///{tmp_path}/locks.db") as service:
        manager, other = service.open(), service.open()
        assert isinstance(other, SqlLockManager)
        holder = manager.acquire(latch(), deadline=soon())
        (carried,) = in_line(other, "a")
        assert [offer.text for offer in holder.take(10)] == ["a"]
        holder.settle([answer(carried.request.request_id)], [])
        holder.release()
        assert carried.answer().snapshot_ids == (7,)
        connection = other.store.connection
        connection.run(other.requests.steps_to_enter(carried.request, connection.wake))
        assert not other.parts.queue.retract(carried.request)


LOOKS = """
import sys
from commit_coord.locks.sql.manager import SqlLockManager

with SqlLockManager(sys.argv[1], space=sys.argv[2]) as manager:
    print(*[entry.expires_in_ms for entry in manager.locks()])
"""

LOOKS_BEFORE_IT_CAN = f"""
import resource
from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.sql import manager
from sqlalchemy.dialects import sqlite  # what is not loaded yet can't be, without a file descriptor

(soft, hard) = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
try:
    early = manager.SqlLockManager("sqlite:////nowhere.db")
except LockServiceUnavailable as error:
    assert "a free file descriptor" in str(error)
else:
    raise SystemExit(f"its clock has the name {{early.store.clock_name}}")
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
{LOOKS}
"""


def seen_by(program: str, service: Service, *prefix: str) -> list[int]:
    """Return the times that are left, as another process sees them."""
    command = [*prefix, sys.executable, "-c", program, service.uri, service.space]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limits.PATIENCE)
    assert done.returncode == 0, done.stderr
    return [int(left) for left in done.stdout.split()]


def test_a_client_that_can_not_name_its_clock_is_refused(tmp_path: Path) -> None:
    """By any other name the rows of live holders would be of an earlier boot, and free for everybody."""
    url = f"sqlite:///{tmp_path}/locks.db"
    with Service("lease", url) as service, service.open().acquire(latch(), deadline=soon()):
        assert min(seen_by(LOOKS_BEFORE_IT_CAN, service)) > 0


def test_a_holder_is_alive_in_every_time_namespace(tmp_path: Path) -> None:
    """Containers that share a file may count from different boot times, as after they were moved from other hosts."""
    in_another = ["unshare", "--user", "--map-root-user", "--time", "--fork", "--boottime", "100000"]
    try:
        subprocess.run([*in_another, "true"], check=True, capture_output=True, timeout=limits.PATIENCE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no time namespace can be made here: {error}")
    url = f"sqlite:///{tmp_path}/locks.db"
    with Service("lease", url) as service, service.open().acquire(latch(), deadline=soon()):
        assert min(seen_by(LOOKS, service, *in_another)) > 0


def test_of_two_threads_that_fork_each_releases_what_it_has_locked() -> None:
    """The second one waits until the first one has forked, and locks what that one is releasing."""
    sqlite._before_fork()
    try:
        elsewhere(sqlite._after_fork)
        assert sqlite._OPENING.locked(), "another thread has forked, not this one"
    finally:
        sqlite._after_fork()
    assert not sqlite._OPENING.locked()


@pytest.mark.parametrize("service", SERVICES, indirect=True)
def test_steps_that_landed_are_no_failure_when_nobody_can_be_woken(service: Service) -> None:
    """Each error but one promises that nothing has happened."""
    manager = service.open()
    assert isinstance(manager, SqlLockManager)
    held = manager.acquire(latch(), deadline=soon())
    connection, number = manager.store.connection, {"number": 0}
    failing, own = (f"SELECT {failure(service, ':number')}", number), {"request_id": held.request.request_id}
    remove = "DELETE FROM commit_coord_requests WHERE request_id = :request_id"
    with pytest.raises(LockServiceUnavailable) as before:
        connection.run([(remove, own), failing], then=[(remove, own)])
    assert not isinstance(before.value, Interrupted)
    held.ensure_active(0)
    with pytest.raises(Interrupted):
        connection.run([(remove, own)], then=[failing])
    assert not standing(manager)


@pytest.mark.parametrize("service", SERVICES, indirect=True)
def test_locks_are_given_back_when_nobody_can_be_woken(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while PostgreSQL's queue of notifications is full: for hours. A waiter looks again without one."""
    fails = failure(service, "(length(:mode) - 1)")
    monkeypatch.setattr(lease_sql, "WAKE", f"SELECT {fails} WHERE :scope <> '' AND :resource <> '' AND :place > 0")
    manager, other = service.open(), Resource.table(("db", "other"))
    held, forced = manager.acquire(latch(), deadline=soon()), manager.acquire(latch(other), deadline=soon())
    (waiting,) = in_line(service.open(), "a")
    held.release()
    waiting.lease().release()
    assert manager.unlock(request_id=forced.request.request_id)
    assert not any(isinstance(event, LockReleaseFailed) for event in service.seen)
    assert not standing(manager)


def test_the_offset_of_a_time_namespace_is_read() -> None:
    told = "monotonic           0         0\nboottime      -100000 500000000\n"
    assert boottime_offset_ms(told) == -99_999_500
    assert boottime_offset_ms("1 5 0\n7 3 0\n") == 3_000, "Linux 5.6 says numbers"
    assert boottime_offset_ms("") == 0


@pytest.mark.postgres
def test_an_offer_is_in_one_hand_only(on_postgres: Service) -> None:
    """Two holders take at the same moment: one was freed by force while its statement waited for a row."""
    manager, other = on_postgres.open(), on_postgres.open()
    assert isinstance(manager, SqlLockManager)
    freed = manager.acquire(latch(), deadline=soon())
    first, second = in_line(other, "a", "b")
    with psycopg.connect(_plain(on_postgres.uri)) as slow, ThreadPoolExecutor(1) as pool:
        slow.execute("SELECT 1 FROM commit_coord_offers WHERE request_id = %s FOR UPDATE", (second.request.request_id,))
        taking = pool.submit(freed.take, 10)
        until(lambda: _waiting_for_a_row(on_postgres.uri), "a statement that waits for the row")
        other.unlock(request_id=freed.request.request_id)
        next_holder = first.lease()
        slow.execute("UPDATE commit_coord_offers SET taken = 99 WHERE request_id = %s", (second.request.request_id,))
        slow.commit()
        assert second.request.request_id not in {offer.request_id for offer in taking.result(limits.PATIENCE)}
    next_holder.release()
    second.lease().release()


def _waiting_for_a_row(uri: str) -> bool:
    with psycopg.connect(_plain(uri)) as looking:
        found = looking.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return found is not None and found[0] > 0


def test_a_request_that_was_carried_while_its_reply_was_lost_does_not_enter_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to its entering is lost; before it asks again, the holder has carried its offer out."""
    with Service("lease", f"sqlite:///{tmp_path}/locks.db") as service:
        manager, other = service.open(), service.open()
        assert isinstance(other, SqlLockManager)
        holder = manager.acquire(latch(), deadline=soon())
        entered, carried = threading.Event(), threading.Event()
        real = other.parts.queue.enter_once

        def enter_once(wanted: LockRequest, first: float) -> Blocker | None:
            if entered.is_set():
                return real(wanted, first)
            real(wanted, first)
            other.parts.queue.tickets.pop(wanted.request_id)
            entered.set()
            assert carried.wait(limits.PATIENCE)
            raise Interrupted("the connection was cut")

        monkeypatch.setattr(other.parts.queue, "enter_once", enter_once)
        monkeypatch.setattr(other.store, "remote", True)
        waiter = Submitter(other, offering("a"))
        assert entered.wait(limits.PATIENCE)
        (offer,) = holder.take(10)
        holder.settle([answer(offer.request_id)], [])
        holder.release()
        with manager.acquire(latch(), deadline=soon()):
            carried.set()
            assert waiter.answer() == answer(offer.request_id)


def test_an_offer_that_was_taken_while_its_reply_was_lost_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its owner asks for its place, the holder that took it has ended without a report: none is before it."""
    with Service("lease", f"sqlite:///{tmp_path}/locks.db") as service:
        manager, other = service.open(), service.open()
        assert isinstance(other, SqlLockManager)
        holder = manager.acquire(latch(), deadline=soon())
        real = other.parts.queue.enter_once

        def enter_once(wanted: LockRequest, first: float) -> Blocker | None:
            real(wanted, first)
            other.parts.queue.tickets.pop(wanted.request_id)
            assert [offer.text for offer in holder.take(10)] == ["a"]
            holder.release()
            raise Interrupted("the connection was cut")

        monkeypatch.setattr(other.parts.queue, "enter_once", enter_once)
        monkeypatch.setattr(other.store, "remote", True)
        lease = Submitter(other, offering("a")).lease()
        assert not lease.retract()
        lease.release()


@pytest.mark.parametrize(
    "url",
    ["sqlite:////nowhere/to/be/found.db", "postgresql://u:geheim@127.0.0.1:1/d", "postgresql+psycopg2://127.0.0.1:1/d"],
)
def test_an_unreachable_database_is_a_clear_error(url: str) -> None:
    """At once, whatever the deadline, and without the password."""
    started = SYSTEM_CLOCK.now()
    with create_lock_manager("lease", url) as manager:
        with pytest.raises(LockServiceUnavailable, match="the lock database failed") as failed:
            manager.acquire(latch(), deadline=soon(2 * limits.PATIENCE))
        assert "geheim" not in str(failed.value)
    assert SYSTEM_CLOCK.now() - started < limits.PATIENCE


@pytest.mark.postgres
def test_the_queue_on_postgresql_is_one_queue(on_postgres: Service) -> None:
    """A request that took its place and has not committed keeps later ones from overtaking it."""
    manager, other = on_postgres.open(), on_postgres.open()
    assert isinstance(manager, SqlLockManager)
    other.acquire(latch(), deadline=soon()).release()
    early = latch()
    with psycopg.connect(_plain(on_postgres.uri)) as slow:
        for text, values in manager.requests.steps_to_enter(early, "nobody"):
            slow.execute(postgres_text(text), values)
        late = Contender(other, latch())
        assert not late.granted.wait(0.3)  # the subject: it does not overtake as time goes by
        slow.commit()
    late.queued()
    states = standing(manager)
    assert LockState.ACQUIRED is states[early.request_id]
    assert LockState.WAITING is states[late.request.request_id]
    manager.unlock(request_id=early.request_id)
    late.release()


@pytest.mark.postgres
def test_a_removal_between_entering_and_waiting_is_noticed(
    on_postgres: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocker goes when its removal could not see the new request yet, and wakes nobody: it is asked once more."""
    monkeypatch.setattr(lease, "LOOK_AGAIN_S", 3600.0)
    manager, other = on_postgres.open(), on_postgres.open()
    assert isinstance(other, SqlLockManager)
    first = elsewhere(manager.acquire, latch(), deadline=soon())
    threading.Timer(0.1, first.release).start()
    other.acquire(latch(), deadline=soon()).release()  # From here on this thread listens.
    held, enter = elsewhere(manager.acquire, latch(), deadline=soon()), other.parts.queue.enter_once

    def enter_and_miss(wanted: LockRequest, begun: float) -> Blocker | None:
        blocker = enter(wanted, begun)
        with psycopg.connect(_plain(on_postgres.uri)) as admin:
            for table in (b"requests", b"locks"):
                admin.execute(
                    b"DELETE FROM commit_coord_" + table + b" WHERE request_id = %s", [held.request.request_id]
                )
        return blocker

    monkeypatch.setattr(other.parts.queue, "enter_once", enter_and_miss)
    started = SYSTEM_CLOCK.now()
    other.acquire(latch(), deadline=soon()).release()
    assert SYSTEM_CLOCK.now() - started < by_load(6)


@pytest.mark.postgres
def test_cut_connections_cost_nothing_but_time(on_postgres: Service) -> None:
    """Holder and waiter lose their connections and go on."""
    manager, other = on_postgres.open(), on_postgres.open()
    held = manager.acquire(request((X, TABLE)), deadline=soon())
    waiter = Contender(other, request((X, TABLE))).queued()
    with psycopg.connect(_plain(on_postgres.uri), autocommit=True) as admin:
        admin.execute(
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            b"WHERE application_name = 'commit_coord' AND pid <> pg_backend_pid()"
        )
    until(lambda: answers(manager), "an answer")
    held.ensure_active(0)
    assert not waiter.granted.is_set()
    held.release()
    waiter.release()


@pytest.mark.postgres
def test_a_client_that_is_paused_between_two_statements_keeps_nobody_out(
    on_postgres: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction is sent as a whole: stopped or cut off in the middle of it, it has sent nothing."""
    manager, other = on_postgres.open(), on_postgres.open()
    other.acquire(latch(), deadline=soon()).release()
    mogrify, stopped, go_on, composed = psycopg.ClientCursor.mogrify, threading.Event(), threading.Event(), [0]

    def pausing(cursor: Any, *arguments: Any) -> Any:
        if threading.current_thread().name.startswith("pausing"):
            composed[0] += 1
            if composed[0] == 2:  # The first one locks the counter row.
                stopped.set()
                go_on.wait(limits.PATIENCE)
        return mogrify(cursor, *arguments)

    monkeypatch.setattr(psycopg.ClientCursor, "mogrify", pausing)
    with ThreadPoolExecutor(1, "pausing") as pool:
        acquiring = pool.submit(manager.acquire, latch(), deadline=soon())
        try:
            assert stopped.wait(limits.PATIENCE)
            other.acquire(latch(), deadline=soon()).release()
        finally:
            go_on.set()
        acquiring.result(limits.PATIENCE).release()


@pytest.mark.postgres
@pytest.mark.parametrize("struck", ["BEGIN", "PREPARE"])
@pytest.mark.parametrize("sent", [False, True])
def test_an_interrupt_before_a_transaction_was_sent_leaves_a_connection_that_works(
    on_postgres: Service, monkeypatch: pytest.MonkeyPatch, struck: str, sent: bool
) -> None:
    """What was prepared may be noted without being so, or be so without being noted."""
    execute = psycopg.ClientCursor.execute

    def interrupted(cursor: Any, query: bytes, *arguments: Any) -> Any:
        if not query.startswith(struck.encode()):
            return execute(cursor, query, *arguments)
        if sent:
            execute(cursor, query, *arguments)
        raise Interrupt

    for _ in range(3):
        manager = on_postgres.open()
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.ClientCursor, "execute", interrupted)
            with pytest.raises(Interrupt):
                manager.acquire(latch(), deadline=soon())
        for _ in range(8):  # The driver prepares a statement when it comes for the sixth time.
            manager.acquire(latch(), deadline=soon()).release()


@pytest.mark.postgres
def test_a_server_notices_within_a_lease_that_its_client_is_gone(on_postgres: Service) -> None:
    """A cut that says nothing leaves no transaction open for the two hours that are the system's default."""
    manager = on_postgres.open()
    assert isinstance(manager, SqlLockManager)
    shown = {
        name: manager.store.connection.ask(f"SELECT setting FROM pg_settings WHERE name = '{name}'", {})[0][0]
        for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    }
    idle, interval, count, unacknowledged_ms = (int(value) for value in shown.values())
    assert 0 < (idle + interval * count) * 1000 <= LockSettings().lease_ms
    assert 0 < unacknowledged_ms <= LockSettings().lease_ms


@pytest.mark.postgres
def test_a_client_notices_within_a_lease_that_its_server_is_gone(on_postgres: Service) -> None:
    """1. The server's answer and its good-bye are lost.   2. The network is back, and nobody has anything to send."""
    manager = on_postgres.open()
    assert isinstance(manager, SqlLockManager)
    connection = manager.store.connection
    connection.ask("SELECT 1", {})
    assert isinstance(connection, PostgresConnection)
    assert 0 < silence_ms(connection._open().fileno()) <= LockSettings().lease_ms


@pytest.mark.postgres
def test_locks_survive_a_restart_and_a_failed_release_is_repeated(
    on_postgres: Service, postgres: PostgresServer
) -> None:
    """What was held is held afterwards; what was released meanwhile is freed afterwards."""
    manager, other = on_postgres.open(), on_postgres.open()
    kept = manager.acquire(request((X, TABLE)), deadline=soon())
    given_back = manager.acquire(latch(), deadline=soon())
    assert not other.locks(TABLE.ancestors[0].table(("db", "nothing")))
    postgres.stop()
    given_back.release()
    assert LeaseState.RELEASED is given_back.state
    assert any(isinstance(event, LockReleaseFailed) for event in on_postgres.seen)
    postgres.start()
    until(lambda: answers(manager), "an answer")
    until(lambda: {kept.request.request_id} == set(standing(manager)), "the repeated release")
    kept.ensure_active(0)
    kept.release()


@pytest.mark.postgres
def test_what_a_server_refuses_for_good_is_not_asked_again(on_postgres: Service) -> None:
    """Psycopg calls limits of the server operational, as it calls a connection that was cut."""
    manager = on_postgres.open()
    assert isinstance(manager, SqlLockManager)
    assert not manager.locks(TABLE)
    tries: list[None] = []

    def too_many_columns() -> object:
        tries.append(None)
        return manager.store.connection.ask(f"SELECT {', '.join(['1'] * 2_000)}", {})

    with pytest.raises(LockServiceUnavailable, match="target list"):
        manager.requests.retries.until(soon(), too_many_columns)
    assert len(tries) == 1
