"""The real ``hms`` lock manager in a simulated run: the metastore's lock table is simulated, and the way to it.

Real are ``locks/hms``, the queues of a process's threads, and the client: its calls in Thrift's terms, what it repeats,
its pool of connections.

What the lock table copies
    2.3.10, of which and of a real one ``tests/hive/test_simulated.py`` asks the same. Ids that grow; locks of many
    components, all granted or none; which request blocks which, by mode and by place, between databases, tables and
    partitions; that any client may release any lock, and a second release is silent; that a question for a lock that is
    gone fails; which calls extend a lock. Locks are in a database, so they survive a restart. The server frees
    nothing, unless it is told to: then what was not extended for ``hive.txn.timeout``, when its reaper comes by.

    2.3.10 asks of a request only what has a smaller id, and puts waiting readers before waiting writers: so a reader
    passes a writer that waits, and both are granted in the end.

    1. R holds.   2. W asks and waits.   3. R2 asks, and is granted.   4. R goes.   5. W asks again, and is granted.

    Of later versions only the order is copied, by the id. Our locks belong to no transaction, so there is no state
    ABORT, and nothing is told of transactions that were aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hive_metastore.ttypes import LockResponse, ShowLocksResponse, ShowLocksResponseElement
from tenacity import Retrying

from commit_coord.errors import LockLost, LockServiceUnavailable, LockTimeout, MetastoreUnavailable
from commit_coord.hms.calls import MetastoreCaller
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import (
    LostReply,
    MetastoreAccess,
    MetastoreConnection,
    MetastoreServerFailed,
    NoSuchLock,
    NotSent,
)
from commit_coord.hms.locks import LockType
from commit_coord.hms.pool import Pool
from commit_coord.locks.base import Lease, LockSettings
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.hms.offers import OfferFiles
from commit_coord.locks.memory_space import SPACES
from commit_coord.model import Generation, LeaseState, LockRequest, LockScope
from tests.proof.sim.locking import observe, simulated_threads
from tests.proof.sim.plan import Metastore
from tests.proof.sim.world import NoAnswer, OfThread, Process, Service, Unreachable

_URI = "thrift://simulated:9083"
_ACQUIRED, _WAITING = 1, 2

_KEEPS_OUT = {
    LockType.SHARED_READ: {LockType.EXCLUSIVE},
    LockType.SHARED_WRITE: {LockType.SHARED_WRITE, LockType.EXCLUSIVE},
    LockType.EXCLUSIVE: {LockType.SHARED_READ, LockType.SHARED_WRITE, LockType.EXCLUSIVE},
}
"""What is wanted, and what keeps it out. As 2.3 and 3.1; Hive 4 allows several SHARED_WRITE."""


@dataclass(slots=True, eq=False)
class Row:
    """A lock with all its components, in Thrift's terms."""

    lock_id: int
    asked: Any
    sent: float
    """By when its request was sent: it may have come long after."""
    came: float
    heartbeat: float
    acquired: float | None = None


class LockTable:
    """The locks of one metastore.

    Args:
        clock: The server's, in seconds.
        by_id: Whether requests are granted in the order of their ids, as later versions do; else as 2.3.10 does.
    """

    def __init__(self, clock: Callable[[], float], *, by_id: bool = False) -> None:
        self.clock = clock
        self.rows: dict[int, Row] = {}
        self._by_id = by_id
        self._last_id = 0

    def answer(self, name: str, request: Any, *, sent: float = 0.0) -> Any:
        """Carry out a call, and return what the server would.

        Raises:
            NoSuchLock: It asks for a lock that is gone.
        """
        match name:
            case "lock":
                self._last_id += 1
                now = self.clock()
                row = Row(self._last_id, request, sent, came=now, heartbeat=now)
                self.rows[row.lock_id] = row
                return self._state_of(row)
            case "check_lock":
                row = self._extended(request.lockid)
                return self._state_of(row)
            case "heartbeat":
                self._extended(request.lockid)
            case "unlock":
                self.rows.pop(request.lockid, None)
            case "show_locks":
                return ShowLocksResponse(locks=list(self._listed(request.dbname, request.tablename)))
            case _:
                raise AssertionError(name)
        return None

    def reap(self, timeout: float) -> list[Row]:
        """Free what was not extended for so many seconds."""
        over = [row for row in self.rows.values() if self.clock() - row.heartbeat > timeout]
        for row in over:
            del self.rows[row.lock_id]
        return over

    def _extended(self, lock_id: int) -> Row:
        row = self.rows.get(lock_id)
        if row is None:
            raise NoSuchLock(f"No such lock lockid:{lock_id}")
        row.heartbeat = self.clock()
        return row

    def _state_of(self, row: Row) -> LockResponse:
        if row.acquired is None and all(self._is_free(row, part) for part in row.asked.component):
            row.acquired = row.heartbeat = self.clock()
        return LockResponse(lockid=row.lock_id, state=_WAITING if row.acquired is None else _ACQUIRED)

    def _is_free(self, row: Row, wanted: Any) -> bool:
        """Return whether one component may be granted: the nearest one that keeps it out decides."""
        own = self._place(row, wanted)
        before = [
            (place, other, part)
            for other in self.rows.values()
            if other.lock_id <= row.lock_id
            for part in other.asked.component
            if (place := self._place(other, part)) < own and _conflict(wanted, part)
        ]
        if not before:
            return True
        _, other, part = max(before, key=lambda one: one[0])
        return other is row or _reads_database(wanted, part) or _reads_database(part, wanted)

    def _place(self, row: Row, part: Any) -> tuple[bool, int, int, int]:
        waits, number = row.acquired is None, row.asked.component.index(part)
        return waits, 0 if self._by_id else part.type, row.lock_id, number

    def _listed(self, db: str | None, table: str | None) -> Iterator[ShowLocksResponseElement]:
        for row in self.rows.values():
            for part in row.asked.component:
                if db in (None, part.dbname) and table in (None, part.tablename):
                    yield ShowLocksResponseElement(
                        lockid=row.lock_id,
                        dbname=part.dbname,
                        tablename=part.tablename,
                        partname=part.partitionname,
                        state=_WAITING if row.acquired is None else _ACQUIRED,
                        type=part.type,
                        lastheartbeat=round(row.heartbeat * 1000),
                        acquiredat=None if row.acquired is None else round(row.acquired * 1000),
                        user=row.asked.user,
                        hostname=row.asked.hostname,
                        agentInfo=row.asked.agentInfo,
                    )


def _conflict(wanted: Any, there: Any) -> bool:
    """Return whether one component keeps another one out. A level that is not named matches all of it."""
    if wanted.dbname != there.dbname:
        return False
    if wanted.tablename and there.tablename and wanted.tablename != there.tablename:
        return False
    if wanted.partitionname and there.partitionname and wanted.partitionname != there.partitionname:
        return False
    return there.type in _KEEPS_OUT[wanted.type]


def _reads_database(part: Any, other: Any) -> bool:
    """Return whether *part* reads a whole database, which stops nobody who writes a table of it."""
    reads = part.type == LockType.SHARED_READ and not part.tablename
    return bool(reads and other.type == LockType.EXCLUSIVE and other.tablename)


class SimulatedMetastore:
    """The lock table, how it is reached, and its reaper.

    Args:
        service: How it is reached.
        plan: What it does.
    """

    def __init__(self, service: Service, plan: Metastore) -> None:
        self.service = service
        world = service.world
        self.table = LockTable(lambda: world.now, by_id=plan.by_id)
        self.starts = 1
        """Times that it was started: connections do not survive."""
        if plan.timeout is not None:
            self._reap_again(plan.timeout)

    def ours(self) -> list[Row]:
        """Return the locks that are there and not of other programs."""
        return [row for row in self.table.rows.values() if hms_names.Agent.parse(row.asked.agentInfo)]

    def _reap_again(self, timeout: float) -> None:
        world = self.service.world

        def reap() -> None:
            if not self.service.away:
                for row in self.table.reap(timeout):
                    world.note(self.service.name, f"reaps lock {row.lock_id}")
            self._reap_again(timeout)

        world.at(world.now + timeout * (0.2 + world.random.random()), reap)


class SimulatedConnection(MetastoreConnection):
    """An open connection of one process. What is asked travels, and is done in one step where it arrives."""

    def __init__(self, process: Process, metastore: SimulatedMetastore) -> None:
        self.address = _URI
        self.clean = True
        self._process = process
        self._metastore = metastore
        self._start = metastore.starts
        if metastore.service.away:
            process.clock.sleep(0.001)
            raise NotSent("the metastore can't be reached")

    @property
    def healthy(self) -> bool:
        """See :attr:`MetastoreConnection.healthy`."""
        return self._start == self._metastore.starts

    def call(self, name: str, *arguments: Any, patience_ms: int = 0, limit_ms: int | None = None) -> Any:
        """See :meth:`MetastoreConnection.call`."""
        service, table, dice = self._metastore.service, self._metastore.table, self._process.world.random.random
        sent = self._process.world.now

        def work() -> Any:
            answer = table.answer(name, *arguments, sent=sent)
            if dice() < service.weather.refused:
                raise MetastoreServerFailed(f"{name}: it was done, and something else failed")
            return answer

        self.clean = False
        try:
            answer = service.call(self._process, work)
        except NoAnswer as error:
            raise LostReply("the metastore did not answer", call=name) from error
        except Unreachable as error:
            if service.away or not self.healthy:
                raise LostReply("the connection was cut", call=name) from error
            raise MetastoreServerFailed(name) from error
        except NoSuchLock:
            self.clean = True
            raise
        self.clean = True
        return answer

    def close(self) -> None:
        """See :meth:`MetastoreConnection.close`."""


class SimulatedCaller(MetastoreCaller):
    """The real calls on simulated connections; what is tried again waits by its process's clock."""

    def __init__(self, process: Process, metastore: SimulatedMetastore, uris: str, access: MetastoreAccess) -> None:
        super().__init__(uris, access, process.clock)
        self.pool = Pool(self.addresses, lambda _: SimulatedConnection(process, metastore))

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """See :meth:`MetastoreCaller.within`; simulated services give up after their patience."""
        yield

    def _retrying(self, *errors: type[Exception]) -> Any:
        clock, patience = self._clock, self.access.timeout_ms / 1000

        def call(*asked: Any) -> Any:
            began = clock.now()
            return Retrying(
                retry=lambda state: self._passes(state, errors),
                wait=lambda state: clock.random() * min(1.0, 0.1 * 2.0**state.attempt_number),
                stop=lambda _: clock.now() - began >= patience,
                sleep=clock.sleep,
                reraise=True,
            )(*asked)

        return call


def simulated_client(process: Process, metastore: SimulatedMetastore) -> MetastoreClient:
    """Return the real client, whose calls are simulated."""
    access = MetastoreAccess(timeout_ms=round(1000 * metastore.service.patience))
    return MetastoreClient(_URI, access, caller=partial(SimulatedCaller, process, metastore))


# The manager.


class SimulatedHmsManager(HmsLockManager):
    """The real manager, in a simulated process.

    Args:
        process: Whose.
        metastore: Where its locks are.
        settings: Times.
        granted: Told of each grant.
        prompt: Who has made sure of its latch is not stopped before its next change is sent.
        files: Where the process keeps offers to other processes; None if it makes none.
    """

    def __init__(
        self,
        process: Process,
        metastore: SimulatedMetastore,
        settings: LockSettings,
        granted: Callable[[Lease], None],
        *,
        prompt: bool,
        files: OfferFiles | None = None,
    ) -> None:
        world = process.world
        threads = replace(
            simulated_threads(process), noted=lambda: OfThread(world), noted_anywhere=lambda: OfThread(world)
        )
        client = simulated_client(process, metastore)
        super().__init__(
            _URI,
            settings=settings,
            clock=process.clock,
            threads=threads,
            host=process.world.host,
            metastore=client,
            files=files,
        )
        del SPACES[f"hms {client.service}", ""]  # the turns of a process are in a memory that no other process has
        observe(self, process, granted, prompt=prompt, hurries_in=(LockScope.COMMIT,))


# Those who are not ours.


class StockLocks:
    """The table's lock as other programs take it, who know nothing of ours; Java's HiveCatalog for one.

    Args:
        process: Whose.
        metastore: Where the locks are.
        granted: Told of each grant.
    """

    def __init__(self, process: Process, metastore: SimulatedMetastore, granted: Callable[[Lease], None]) -> None:
        self.process = process
        self.client = simulated_client(process, metastore)
        self._granted = granted

    def acquire(self, request: LockRequest, *, deadline: float) -> Lease:
        """Return the lease of the one table that *request* names."""
        clock, client = self.process.clock, self.client
        agent = f"stock {request.request_id}"
        try:
            lock_id, granted = self._asked(request, agent)
            while not granted:
                if clock.now() >= deadline:
                    client.unlock(lock_id)
                    raise LockTimeout("the deadline passed", locks=request)
                clock.sleep(0.05 + clock.random() / 2)
                granted = client.check_lock(lock_id)
        except (MetastoreUnavailable, MetastoreServerFailed, NoSuchLock) as error:
            raise LockServiceUnavailable("no lock", locks=request, cause=error) from error
        lease = StockLease(self, request, lock_id)
        self._granted(lease)
        return lease

    def _asked(self, request: LockRequest, agent: str) -> tuple[int, bool]:
        name = self.process.name
        try:
            return self.client.lock(hms_names.parts(request), user=name, host=name, agent=agent)
        except LostReply:
            for listed in self.client.show_locks():
                if listed.agent == agent:
                    return listed.lock_id, listed.acquired
            raise

    def close(self) -> None:
        """Nothing is kept."""


class StockLease(Lease):
    """Ends when it is released: its lock is extended by nobody, and freed by nobody else."""

    def __init__(self, locks: StockLocks, request: LockRequest, lock_id: int) -> None:
        super().__init__(request, Generation(lock_id))
        self._locks = locks
        self._lock_id = lock_id

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """See :meth:`Lease.ensure_active`."""
        try:
            self._locks.client.heartbeat(self._lock_id)
        except NoSuchLock as error:
            self._transition(LeaseState.LOST)
            raise LockLost("it is gone", locks=self.request) from error
        except (MetastoreUnavailable, MetastoreServerFailed) as error:
            raise LockServiceUnavailable("no answer", locks=self.request) from error
        self._locks.process.in_a_hurry = True

    def release(self) -> None:
        """See :meth:`Lease.release`."""
        self._locks.process.in_a_hurry = False
        self._transition(LeaseState.RELEASED)
        with suppress(MetastoreUnavailable, MetastoreServerFailed):
            self._locks.client.unlock(self._lock_id)
