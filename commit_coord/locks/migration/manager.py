"""The locks of tables that move from the metastore to ZooKeeper, and back, while everybody writes.

Theory of operation
    Two lock managers, and for each table the *phase* that says whose locks are taken (``protocol/migration``). A
    request takes what its tables ask for, the metastore's first. What it goes by is what this client last saw of the
    table, so it may be wrong. That is found out once the locks are held: a commit asks the lease
    (:meth:`MigratingLease.lock_mismatch`) with what it reads under the latch; for everybody else :meth:`acquire` looks
    the table up. A request that holds too little or too much lets go, takes what is asked for, and starts over; its
    caller does not notice.

Who waits while holding
    1. A knows ``both``, holds the metastore's lock and waits for ZooKeeper's.
    2. B, in ``zookeeper``, holds ZooKeeper's, and its guard waits for the metastore's: neither goes on.
    So a request that waits for its second lock looks at the phase now and then, and steps back when it has changed.

The guard
    A writer that requests the metastore's lock and is blocked by the table's guard (``hms/guard.py``) reads the phase.
    If this phase needs no guard, a process died on the way back from ``zookeeper`` before it removed the guard, or set
    the guard too late. The writer removes it under ZooKeeper's latch, so that the phase can't change meanwhile.

Operation locks
    They are taken on the sides that the phase asks for, and stay there until they end: the phase leaves ``both`` only
    when none of them is only on the side that is about to be left. Locks on databases are taken on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockError
from commit_coord.events import Events
from commit_coord.locks.acquiring import naming_who_released
from commit_coord.locks.base import HeartbeatSender, Lease, LockSettings, Policy
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.migration.beliefs import Beliefs
from commit_coord.locks.migration.lease import MigratingLease
from commit_coord.locks.migration.sides import Heartbeats, Sides, open_sides
from commit_coord.locks.migration.taking import Taking, names_of
from commit_coord.locks.migration.writers import WriterRegistry, Writers
from commit_coord.model import (
    ExpiryClock,
    Guarantees,
    JournalEntry,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    Owner,
    Reach,
    Resource,
)
from commit_coord.protocol.migration import MIGRATING, Phase, State

_NEVER_MOVED = State(phase=Phase.HMS, epoch=0)


class TableGuards(Protocol):
    """The guards in the metastore, as the lock manager uses them."""

    def remove_unneeded(self, table: Resource, /) -> bool:
        """Remove the guards of *table*; return False if they are of other lock managers. Under ZooKeeper's latch."""
        ...

    def look_again(self, table: Resource, /) -> None:
        """Trust nothing that is known of the guards of *table*: its phase has changed."""
        ...


class _NoGuards:
    def remove_unneeded(self, table: Resource, /) -> bool:
        return False

    def look_again(self, table: Resource, /) -> None:
        pass


_NO_GUARDS = _NoGuards()


class MigratingLockManager(HandoverLockManager):
    """Locks in a Hive Metastore, in ZooKeeper, or in both, as each table asks for.

    Args:
        sides: The two lock managers.
        state_of: Returns the state of a table as it is now; of one that is not there, as it would be made.
        guards: The guards of the tables.
        writers: The registry of the writers in a migration.
        clock: Time and random numbers.
    """

    name = MIGRATING
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=False,  # the metastore's is not, and a request that starts over is queued behind the others
        reach=Reach.NETWORK,
        expiry=True,
        survives_restart=True,
        explicit_locks=True,
        journal=True,
        clock=ExpiryClock.CLIENT,
        carries=Reach.PROCESS,
    )
    refuses_waits = True

    def __init__(
        self,
        sides: Sides,
        *,
        state_of: Callable[[Resource], State],
        guards: TableGuards = _NO_GUARDS,
        writers: WriterRegistry,
        clock: Clock,
    ) -> None:
        self.sides, self.hms, self.zookeeper = sides, sides.hms, sides.zookeeper
        self.settings = self.hms.settings
        self.writers = writers
        self.beliefs = Beliefs(state_of, guards.look_again)
        self._taking = Taking(sides, self.beliefs, remove_guard=guards.remove_unneeded, writers=writers, clock=clock)
        self._emitter, self._clock = sides.emitter, clock

    @property
    def heartbeat(self) -> HeartbeatSender:
        """See :attr:`LockManager.heartbeat`."""
        return Heartbeats(*self.sides.in_order)

    # Acquire.

    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> HandoverLease:
        """See :meth:`LockManager.acquire`. What is returned is what the tables ask for at that time."""
        names = names_of(request)
        with self._emitting(request) as started:
            while True:
                lease = self._taking.take(replace(request, offer=""), names, deadline, policy)
                assert isinstance(lease, MigratingLease)
                with _released_on_error(lease):
                    if not self.beliefs.have_changed(lease.phases, request):
                        return self._granted(lease, started)
                lease.release()

    def submit(self, request: LockRequest, *, deadline: float) -> HandoverLease | JournalEntry:
        """See :meth:`HandoverLockManager.submit`. The caller asks the lease whether it suits the table."""
        with self._emitting(request) as started:
            lease = self._taking.take(request, names_of(request), deadline, None)
            if isinstance(lease, JournalEntry):
                self._emitter.not_granted(request, started, "carried")
                return lease
            with _released_on_error(lease):
                for table, phase in lease.phases.items():
                    self.writers.latched(table, phase, (self._clock.now() - started) * 1000)
                return self._granted(lease, started)

    @contextmanager
    def _emitting(self, request: LockRequest) -> Iterator[float]:
        """Emit the events of *request*: its start, and its end unless it is granted. Yield the time when it began."""
        started = self._emitter.asked(request)
        try:
            with naming_who_released(self, request):
                yield started
        except BaseException as error:
            self._emitter.not_granted(request, started, error.kind if isinstance(error, LockError) else "interrupted")
            raise

    def _granted(self, lease: MigratingLease, started: float) -> MigratingLease:
        self._emitter.granted(lease.name, lease.request, lease.generation, started)
        return lease

    # Look, and free by force.

    def lease_on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """See :meth:`LockManager.lease_on`."""
        part = self.hms.lease_on(resource, mode) or self.zookeeper.lease_on(resource, mode)
        return None if part is None else self._taking.leases.get(part.request.request_id, part)

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`. A lock that is held on both sides is listed once."""
        return self.sides.locks(resource, scope=scope)

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockManager.listed`: ZooKeeper cuts no name."""
        return self.hms.listed(resource)

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`."""
        return self.sides.unlock(request_id=request_id, resource=resource)

    def unlock_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockManager.unlock_each`."""
        return self.sides.unlock_each(request_ids)

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """See :meth:`LockManager.reap`."""
        return self.sides.reap(dry_run=dry_run)

    # Notes and the journal: in ZooKeeper in every phase.

    def acquire_note(self, request: LockRequest, *, deadline: float) -> HandoverLease:
        """See :meth:`HandoverLockManager.acquire_note`. In phase ``hms`` the note waits there for the next phase."""
        return self.zookeeper.acquire(request, deadline=deadline)

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`HandoverLockManager.remember`."""
        self.zookeeper.remember(entry, lifetime_ms=lifetime_ms)

    def recall(self, key: str) -> JournalEntry | None:
        """See :meth:`HandoverLockManager.recall`."""
        return self.zookeeper.recall(key)

    def note_forced_release(self, request_id: str, by: Owner, why: str) -> None:
        """See :meth:`HandoverLockManager.note_forced_release`. A writer that knows only the metastore looks there."""
        super().note_forced_release(request_id, by, why)
        if any(entry.request_id == request_id for entry in self.hms.locks()):
            self.hms.note_forced_release(request_id, by, why)

    def one_call(self) -> AbstractContextManager[None]:
        """See :meth:`HandoverLockManager.one_call`."""
        return self.zookeeper.one_call()

    def refuse_waits(self) -> None:
        """See :meth:`LockManager.refuse_waits`."""
        self._taking.refuse_waiters()
        self.zookeeper.refuse_waits()
        self.hms.refuse_waits()

    def close(self) -> None:
        """See :meth:`LockManager.close`."""
        with ExitStack() as ending:
            ending.callback(self.zookeeper.close)
            ending.callback(self.hms.close)
            self._taking.refuse_waiters()
            self.writers.close()
            self._taking.release_all()


@contextmanager
def _released_on_error(lease: MigratingLease) -> Iterator[None]:
    """Give *lease* back where its caller does not get it: an error that a caller keeps refers to it."""
    try:
        yield
    except BaseException:
        lease.release()
        raise


def open_manager(
    uri: str,
    *,
    metastore: str,
    state_of: Callable[[Resource], State] = lambda _: _NEVER_MOVED,
    space: str = "",
    settings: LockSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    **options: Any,
) -> MigratingLockManager:
    """Return the manager with two lock managers of its own, and without guards.

    *state_of* is as for :class:`MigratingLockManager`; all else as for
    :func:`~commit_coord.locks.migration.sides.open_sides`, errors included.
    """
    hms, zookeeper, emitter = open_sides(
        uri, metastore=metastore, space=space, settings=settings, clock=clock, events=events or Events(), **options
    )
    return MigratingLockManager(
        Sides(hms, zookeeper, emitter), state_of=state_of, writers=Writers.of(hms, zookeeper, clock), clock=clock
    )
