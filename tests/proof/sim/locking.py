"""The real lock managers in a simulated run: what they wait for and where their rows lie is simulated, nothing else.

``lease`` runs with all of its SQL on a SQLite database in memory, in two kinds: as on a host's SQLite (one clock, no
lost answers), and as on a server (the server's clock, answers that are lost, statements that come late). ``memory``
keeps its queues and waits by the simulated clock.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from commit_coord.locks.acquiring import Acquire
from commit_coord.locks.base import HeartbeatSender, Interrupted, Lease, LockSettings
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.locks.queue_manager import QueueLockManager
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.manager import SqlLockManager
from commit_coord.locks.sql.sqlite import SqliteConnection, SqliteStore, sqlite_text
from commit_coord.locks.sql.store import Connection, FetchedRows, SqlStep, Store
from commit_coord.locks.threads import Threads
from commit_coord.model import LockScope
from tests.proof.sim.world import NoAnswer, OfThread, Process, Service, Thread, Unreachable

_URL = "sqlite:////simulated"


class LockDatabase:
    """The rows of the ``lease`` lock manager, and who listens for wake-ups.

    Args:
        service: How it is reached.
        clock: Its clock.
        remote: Whether it is a server, or a file of the one host that all clients are on.
        forgets: Whether its server will crash.
    """

    def __init__(self, service: Service, clock: Callable[[], float], *, remote: bool, forgets: bool = False) -> None:
        self.service = service
        self.clock = clock
        self.remote = remote
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        for text in lease_sql.CREATE:
            self.db.execute(sqlite_text(text))
        self.listeners: dict[str, SimulatedConnection] = {}
        self._forgets = forgets
        self._before: list[sqlite3.Connection] = []
        """The rows before each transaction that is not on the disk yet."""

    def begins(self, *, durable: bool) -> None:
        """A transaction begins. One that is durable takes all before it to the disk."""
        if durable:
            self._before.clear()
        elif self._forgets:
            copy = sqlite3.connect(":memory:")
            self.db.backup(copy)
            self._before.append(copy)

    def crash(self) -> None:
        """Lose the last of what is not on the disk, or all of it, or nothing."""
        kept = self.service.world.random.randrange(len(self._before) + 1)
        if self._before[kept:]:
            self._before[kept].backup(self.db)
            self.service.world.note("locks", f"its last {len(self._before) - kept} removals are undone")
        self._before.clear()

    def forget_listeners(self) -> None:
        """The server was restarted."""
        for connection in self.listeners.values():
            connection.cut()
        self.listeners.clear()


class SimulatedStore(SqliteStore):
    """One process's way to the lock database."""

    def __init__(self, process: Process, database: LockDatabase, *, several_threads: bool) -> None:
        self.process = process
        self.database = database
        self.shown = "simulated"
        self.clock = process.clock
        self.host = process.world.host
        self.remote = database.remote
        self.concurrent = database.remote
        self.clock_name = "server" if database.remote else "host"
        self._epoch = 0
        Store.__init__(self)
        if several_threads:
            self._thread: Any = OfThread(process.world)

    def _connect(self) -> Connection:
        return SimulatedConnection(self)

    def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return *values* with the times of the service's clock."""
        now = int(self.database.clock() * 1000)
        return {**values, "now": now, "wall": now, "epoch": 0}


class SimulatedConnection(SqliteConnection):
    """What is asked travels; it is done in one step where it arrives."""

    def __init__(self, store: SimulatedStore) -> None:
        super().__init__(store)
        self._simulated = store
        self._waiter: tuple[Thread, int] | None = None
        self._signalled = False

    def run(
        self,
        steps: Sequence[SqlStep],
        then: Sequence[SqlStep] = (),
        *,
        waking: Sequence[SqlStep] = (),
        durable: bool = True,
    ) -> list[FetchedRows]:
        """See :meth:`Connection.run`."""
        run = super().run

        def work() -> list[FetchedRows]:
            self._simulated.database.begins(durable=durable)
            return run(steps, then, waking=waking, durable=durable)

        rows: list[FetchedRows] = self._send_to(work)
        return rows

    def ask(self, text: str, values: Mapping[str, Any]) -> FetchedRows:
        """See :meth:`Connection.ask`."""
        ask, reads = super().ask, text.split(maxsplit=1)[0] == "SELECT"

        def work() -> FetchedRows:
            if not reads:  # On PostgreSQL its commit also flushes what was not durable before.
                self._simulated.database.begins(durable=True)
            return ask(text, values)

        rows: FetchedRows = self._send_to(work)
        return rows

    def _send_to(self, work: Callable[[], Any]) -> Any:
        store = self._simulated
        try:
            return store.database.service.call(store.process, work)
        except (NoAnswer, Unreachable) as error:
            raise Interrupted("the lock database did not answer") from error

    def listen(self) -> bool:
        """See :meth:`Connection.listen`."""
        if self._listening:
            return False
        self._simulated.database.listeners[self.wake] = self
        self._listening = True
        return True

    def wait(self, seconds: float) -> bool:
        """See :meth:`Connection.wait`."""
        if not self._signalled:
            world = self._simulated.process.world
            self._waiter = world.expected()
            self._signalled = world.block(seconds) is not None
            self._waiter = None
        woken, self._signalled = self._signalled, False
        return woken

    def signal(self) -> None:
        """A wake-up arrives."""
        world = self._simulated.process.world
        if self._waiter is None:
            self._signalled = True
        else:
            thread, turn = self._waiter
            world.at(world.now, lambda: world.resume(thread, turn, "woken"))

    def cut(self) -> None:
        """The server is gone: nothing more is heard."""
        self._listening = False
        self.signal()

    def close(self) -> None:
        """See :meth:`Connection.close`."""

    def _close_now(self) -> None:
        pass

    def _open(self) -> sqlite3.Connection:
        return self._simulated.database.db

    def _send(self, address: str) -> None:
        listener = self._simulated.database.listeners.get(address)
        if listener is not None:
            world = self._simulated.process.world
            world.at(world.now + 0.001, listener.signal)


class SimulatedHeartbeat(Heartbeat):
    """The same beats, in a simulated thread."""

    def __init__(self, process: Process, beat: Callable[[], float | None], *, idle: Callable[[], float]) -> None:
        super().__init__(beat, idle=idle, name="heartbeat")
        self._process = process
        self._sleeper: tuple[Thread, int] | None = None
        self._runs = False

    def ensure_running(self, *, now: bool = False) -> None:
        """See :meth:`Heartbeat.ensure_running`."""
        self._wanted = True
        world = self._process.world
        if not self._runs:
            self._runs = True
            world.start(self._process, self._beats, after=0.0 if now else self._idle())
        elif now and self._sleeper is not None:
            thread, turn = self._sleeper
            world.at(world.now, lambda: world.resume(thread, turn, "now"))

    def stop(self) -> None:
        """See :meth:`Heartbeat.stop`."""

    def _beats(self) -> None:
        idle_beats = 0
        while True:
            self._wanted = False
            delay = self._beat()
            idle_beats = 0 if delay is not None else idle_beats + 1
            if idle_beats > 1 and not self._wanted:
                self._runs = False
                return
            self._sleeper = self._process.world.expected()
            self._process.clock.sleep(self._idle() if delay is None else delay)
            self._sleeper = None


class Signal:
    """In place of ``threading.Event``: who waits gives its turn back."""

    def __init__(self, process: Process, *, is_set: bool = False) -> None:
        self._process = process
        self._is_set = is_set
        self._waiters: list[tuple[Thread, int]] = []

    def is_set(self) -> bool:
        """Return whether it was given."""
        return self._is_set

    def set(self) -> None:
        """Give it, and wake those who wait."""
        self._is_set = True
        world, waiters = self._process.world, self._waiters
        self._waiters = []
        for thread, turn in waiters:
            world.at(world.now, partial(world.resume, thread, turn, "set"))

    def clear(self) -> None:
        """Take it back."""
        self._is_set = False

    def wait(self, timeout: float) -> bool:
        """Return whether it is given, after *timeout* seconds at the latest."""
        if not self._is_set:
            waiter = self._process.world.expected()
            self._waiters.append(waiter)
            try:
                self._process.clock.sleep(timeout)
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self._is_set


def simulated_threads(process: Process, *, several: bool = False) -> Threads:
    """Return the threads of *process*, one or *several*. One thread of the interpreter runs all processes."""

    def heartbeat(
        beat: Callable[[], float | None], *, idle: Callable[[], float], name: str, also: HeartbeatSender | None = None
    ) -> Heartbeat:
        return SimulatedHeartbeat(process, beat, idle=idle)

    noted = partial(OfThread, process.world) if several else threading.local
    return Threads(turn=lambda: Signal(process), heartbeat=heartbeat, noted=noted, noted_anywhere=noted)


def observe(
    manager: QueueLockManager[Any],
    process: Process,
    granted: Callable[[Lease], None],
    *,
    prompt: bool,
    hurries_in: Collection[LockScope] = tuple(LockScope),
) -> None:
    """Tell of what *manager* grants, and have its process hurry where the run assumes that.

    Args:
        manager: The manager of *process*.
        process: Whose it is.
        granted: Told of each grant.
        prompt: Who has made sure of its lease is not stopped before its next change is sent.
        hurries_in: In which scopes.
    """
    queue, keeper = manager.parts.queue, cast("Any", manager.parts.keeping)
    grant, ensure_active, release = queue.grant, keeper.ensure_active, keeper.release

    def grant_and_tell(acquire: Acquire) -> HandoverLease:
        lease: HandoverLease = grant(acquire)
        granted(lease)
        return lease

    def ensure_active_and_hurry(ticket: Any, max_age_ms: int | None) -> None:
        ensure_active(ticket, max_age_ms)
        if ticket.request.scope in hurries_in:
            process.in_a_hurry = prompt

    def release_at_leisure(ticket: Any) -> None:
        if ticket.request.scope in hurries_in:
            process.in_a_hurry = False
        release(ticket)

    queue.grant, keeper.ensure_active, keeper.release = grant_and_tell, ensure_active_and_hurry, release_at_leisure


class SimulatedLeaseManager(SqlLockManager):
    """The real manager, in a simulated process.

    Args:
        process: Whose.
        database: Where its rows lie.
        settings: Times.
        granted: Told of each grant.
        prompt: Who has made sure of its lease is not stopped before its next change is sent.
        several_threads: Whether several threads of the process use it.
    """

    def __init__(
        self,
        process: Process,
        database: LockDatabase,
        settings: LockSettings,
        granted: Callable[[Lease], None],
        *,
        prompt: bool,
        several_threads: bool = False,
    ) -> None:
        store = SimulatedStore(process, database, several_threads=several_threads)
        super().__init__(
            _URL,
            settings=settings,
            clock=process.clock,
            threads=simulated_threads(process, several=several_threads),
            host=process.world.host,
            store=store,
        )
        observe(self, process, granted, prompt=prompt)


class SimulatedMemoryManager(MemoryLockManager):
    """The real queues; a turn that was given is noticed at the next look."""

    def __init__(self, process: Process, run: str, settings: LockSettings, granted: Callable[[Lease], None]) -> None:
        # One thread of the interpreter runs all processes.
        super().__init__(
            run,
            settings=settings,
            clock=process.clock,
            threads=Threads(noted_anywhere=threading.local),
            host=process.world.host,
        )
        queue: Any = self.parts.queue
        real_enter, real_grant = queue.enter, queue.grant

        def enter(acquire: Acquire) -> Blocker | None:
            process.step()
            process.clock.sleep(0.001)
            blocker: Blocker | None = real_enter(acquire)
            return blocker

        def wait(acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
            clock = process.clock
            while clock.now() < until and not queue.ticket(acquire.request).turn.is_set():
                clock.sleep(0.002 + 0.004 * clock.random())
                queue.space.remove_dropped()
            next_blocker: Blocker | None = queue.blocker(queue.ticket(acquire.request))
            return next_blocker

        def grant(acquire: Acquire) -> HandoverLease:
            lease: HandoverLease = real_grant(acquire)
            granted(lease)
            return lease

        queue.enter, queue.wait, queue.grant = enter, wait, grant
