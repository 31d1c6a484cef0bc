"""Locks within one process.

One :class:`~commit_coord.locks.memory_space.Space` holds the queues; all managers of one name share it. When a
request is removed, the space computes under its mutex which waiting requests are granted, and wakes only these.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockLost, LockRefused, OfferLost
from commit_coord.events import Events, LockLeaseLost
from commit_coord.locks.acquiring import ANSWER_LEASES, Acquire, Acquirer, Carried, RemovedByForce
from commit_coord.locks.base import HeartbeatSender, Lease, LockSettings
from commit_coord.locks.blockers import Blocker, Holder, entries_of, holder_of
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.forcing import telling_what_was_freed
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.held import Held
from commit_coord.locks.memory_space import MemoryTicket, Space, space_of
from commit_coord.locks.queue_manager import Parts, QueueLockManager
from commit_coord.locks.threads import THREADS, Threads
from commit_coord.model import (
    ExpiryClock,
    Generation,
    Guarantees,
    JournalEntry,
    LeaseState,
    LockEntry,
    LockRequest,
    LockScope,
    Offer,
    Reach,
    Resource,
)
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.deadlock import Wait

_TICK = 0.1
"""Seconds between two checks of a waiter whether a lease was dropped without a release."""

HolderOf = Callable[[LockRequest, Blocker], Holder]
Settle = Callable[[MemoryTicket, Sequence[JournalEntry], Sequence[str], str | None], None]


class MemoryLease(HandoverLease):
    """Ends by release, by force, or with its process."""

    def __init__(self, space: Space, ticket: MemoryTicket, settle: Settle) -> None:
        super().__init__(ticket.request, Generation(ticket.place))
        self._space = space
        self._ticket = ticket
        self._settle = settle
        self._settled: tuple[Sequence[JournalEntry], Sequence[str]] = (), ()
        self._next_note: str | None = None
        self._pid = os.getpid()

    @property
    def handover_note(self) -> str | None:
        """See :attr:`HandoverLease.handover_note`."""
        table = self.request.table
        return None if table is None else self._space.notes.get(table, "")

    def set_handover_note(self, note: str) -> None:
        """See :meth:`HandoverLease.set_handover_note`."""
        self._next_note = note

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """Return unless the lease was released or freed by force. This reads memory, so *max_age_ms* has no effect."""
        if self._pid != os.getpid():
            raise LockLost("the lease belongs to the process that acquired it", locks=self.request)
        self._raise_if_over()

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`."""
        return self._space.take(self._ticket, limit)

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`HandoverLease.settle`."""
        self._settled = done, returned

    def retract(self) -> bool:
        """See :meth:`HandoverLease.retract`."""
        return self._space.retract(self._ticket)

    def release(self) -> None:
        """Release the locks and wake the requests that are granted now."""
        changed = False
        try:
            if changed := self._change(LeaseState.RELEASED, ""):
                self._settle(self._ticket, *self._settled, self._next_note)
        finally:
            self._space.remove(self._ticket)
        if changed:
            self._tell(LeaseState.RELEASED)


class MemoryLeases:
    """The leases of one client. Nothing extends them: they last as long as the process."""

    heartbeat = HeartbeatSender()

    def __init__(self, space: Space, events: Events) -> None:
        self._space = space
        self._events = events
        self._leases: weakref.WeakValueDictionary[str, MemoryLease] = weakref.WeakValueDictionary()
        self._explicit: dict[str, MemoryLease] = {}

    def add(self, lease: MemoryLease) -> None:
        """Register *lease* with this client. A lease of a LOCK statement is kept in memory until it ends."""
        request = lease.request
        self._leases[request.request_id] = lease
        if request.explicit:
            self._explicit[request.request_id] = lease
        lease.add_listener(lambda lease, state: self._forget(lease))

    def discard(self, request: LockRequest) -> None:
        """Remove the lease of *request* from the leases of this client."""
        self._leases.pop(request.request_id, None)

    def lost(self, request_id: str) -> None:
        """Mark the lease of *request_id* as lost: it was freed by force."""
        lease = self._leases.get(request_id)
        if lease is not None and lease._change(LeaseState.LOST, "released by force"):
            self._events.emit(LockLeaseLost(request=str(lease.request), reason="released by force"))
            lease._tell(LeaseState.LOST)

    def close(self, end_waits: Callable[[], None]) -> None:
        """Release every lease of this client that is not explicit."""
        end_waits()
        self._space.remove_dropped()
        for ref in self._leases.valuerefs():
            lease = ref()
            if lease is not None and not lease.request.explicit:
                lease.release()

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease.request.request_id, None)
        self._explicit.pop(lease.request.request_id, None)


class MemoryQueue:
    """The queues of a space, as one client sees them.

    Args:
        space: The space with the queues.
        table: Lists the locks of the space.
        leases: The leases of this client.
        held: The locks that the threads of this process hold.
        emitter: Emits the end of a lease that was dropped without a release.
        settings: Times.
        clock: The clock.
        threads: How threads wait.
        holder: Finds the lock holder if the head of the queue may itself be waiting; by default the listing.
    """

    def __init__(
        self,
        space: Space,
        table: MemoryLockTable,
        leases: MemoryLeases,
        held: Held,
        emitter: LockEventEmitter,
        settings: LockSettings,
        clock: Clock,
        threads: Threads,
        holder: HolderOf | None,
    ) -> None:
        self.space = space
        self._table = table
        self._leases = leases
        self._held = held
        self._emitter = emitter
        self._answer_ms = ANSWER_LEASES * settings.lease_ms
        self._clock = clock
        self._threads = threads
        self._holder = holder

    def knows(self, request_id: str) -> bool:
        """See :meth:`Queue.knows`."""
        return self.space.find(request_id) is not None

    def enter(self, acquire: Acquire) -> Blocker | None:
        """See :meth:`Queue.enter`."""
        request, space = acquire.request, self.space
        space.remove_dropped()
        # A weak reference: the space keeps the ticket until the next request comes, and must not keep a client alive.
        lost = partial(_tell, weakref.ref(self._leases), request.request_id)
        ticket = space.enter(request, self._clock.wall_ms(), self._held.agent, self._threads.turn(), lost)
        return self.blocker(ticket)

    def wait(self, acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
        """See :meth:`Queue.wait`. The turn is set when the last request that blocks this one is removed."""
        request = acquire.request
        while (left := until - self._clock.now()) > 0 and not acquire.is_closed:
            if self.ticket(request).turn.wait(min(left, _TICK)):
                break
            self.space.remove_dropped()
        return self.blocker(self.ticket(request))

    def grant(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`Queue.grant`."""
        request = acquire.request
        ticket = self.ticket(request)
        lease = MemoryLease(self.space, ticket, self._settle)
        self._leases.add(lease)
        if not request.explicit:
            # Only record it for the next caller: a finalizer may run at any line, even while its thread has the mutex.
            note = ticket, partial(self._emitter.ended, request.request_id)
            weakref.finalize(lease, self.space.dropped.append, note).atexit = False
        return lease

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        """See :meth:`Queue.leave`."""
        self._leases.discard(request)
        ticket = self.space.find(request.request_id)
        # If another client's request has the same id, ours was refused, and the other one must stay.
        if ticket is not None and ticket.request is request:
            self.space.remove(ticket)

    def retract(self, request: LockRequest) -> bool:
        """See :meth:`Queue.retract`."""
        return self.space.retract(self.ticket(request))

    def holder(self, request: LockRequest, blocker: Blocker) -> Holder:
        """See :meth:`Queue.holder`."""
        if self._holder is not None:
            return self._holder(request, blocker)
        return holder_of(self._table.look, request, blocker)

    def waits(self, request: LockRequest) -> Sequence[Wait]:
        """See :meth:`Deadlocks.waits`."""
        return self.space.waits()  # at one moment

    def all_present(self, places: Mapping[str, int]) -> bool:
        """See :meth:`Deadlocks.all_present`."""
        return True

    def ticket(self, request: LockRequest) -> MemoryTicket:
        """Return the ticket of *request*.

        Raises:
            Carried: A holder has published its offer.
            RemovedByForce: An operator has removed it.
            OfferLost: It is gone, and its offer may have been published.
        """
        ticket = self.space.find(request.request_id)
        if ticket is not None and ticket.request is request:
            return ticket
        if not request.offer:
            raise RemovedByForce("the request was removed from the queue by force", locks=request)
        if entry := self.space.answers.get(request.request_id, self._clock.now()):
            raise Carried(entry)
        raise OfferLost("the request is gone, and the outcome of its offer is not known", locks=request)

    def blocker(self, ticket: MemoryTicket) -> Blocker | None:
        """Return what *ticket* waits for."""
        other = self.space.blocker(ticket)
        if other is None:
            return None
        return Blocker(
            request_id=other.request.request_id, owner=other.request.owner, requested_at_ms=other.requested_at_ms
        )

    def _settle(
        self, holder: MemoryTicket, done: Sequence[JournalEntry], returned: Sequence[str], note: str | None
    ) -> None:
        for entry in done:
            self.space.answers.put(entry, self._clock.now(), self._answer_ms)
        self.space.settle(holder, [entry.key for entry in done], returned, note)


class MemoryLockTable:
    """Lists the locks in a space, and releases locks by force."""

    def __init__(self, space: Space, host: Host) -> None:
        self._space, self._host = space, host

    def look(self, resource: Resource | None, scope: LockScope | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.look`."""
        depth = len(resource.path) if resource else 0
        return [
            entry
            for ticket, blocked_by in self._space.tickets()
            for entry in _entries(ticket, blocked_by)
            if scope in (None, entry.scope) and (resource is None or entry.resource.path[:depth] == resource.path)
        ]

    def pages(self, resource: Resource | None, scope: LockScope | None) -> Iterator[Sequence[LockEntry]] | None:
        """See :meth:`LockTable.pages`."""
        return None

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockTable.listed`."""
        return resource

    def free(self, request_id: str | None, resource: Resource | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.free`."""
        return self._free(
            (ticket, blocked_by)
            for ticket, blocked_by in self._space.tickets()
            if ticket.request.request_id == request_id or any(r == resource for r, _ in ticket.request.locks)
        )

    def free_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockTable.free_each`."""
        return (self.free(request_id, None) for request_id in request_ids)

    def reap(self, *, dry_run: bool) -> Sequence[LockEntry]:
        """Free the locks of processes that have ended: the owner of a request may be a process other than this one."""
        dead = [
            (ticket, blocked_by)
            for ticket, blocked_by in self._space.tickets()
            if not ticket.request.explicit and self._host.is_dead(ticket.request.owner.process)
        ]
        if dry_run:
            return [entry for ticket, blocked_by in dead for entry in _entries(ticket, blocked_by)]
        return self._free(dead)

    def _free(self, tickets: Iterable[tuple[MemoryTicket, str | None]]) -> Sequence[LockEntry]:
        with telling_what_was_freed() as freed:
            for ticket, blocked_by in list(tickets):
                try:
                    freed.free(_entries(ticket, blocked_by), partial(self._space.remove, ticket))
                finally:
                    # 1. Ctrl-C arrives while the ticket is removed.   2. The next request is granted.
                    # 3. The former holder must learn that.
                    if self._space.find(ticket.request.request_id) is not ticket:
                        ticket.turn.set()
                        ticket.lost()
        return freed


class MemoryJournal:
    """The journal of a space."""

    def __init__(self, space: Space, clock: Clock) -> None:
        self._entries, self._clock = space.journal, clock

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`HandoverLockManager.remember`."""
        self._entries.put(entry, self._clock.now(), lifetime_ms)

    def recall(self, key: str) -> JournalEntry | None:
        """See :meth:`HandoverLockManager.recall`."""
        return self._entries.get(key, self._clock.now())


class MemoryLockManager(QueueLockManager[MemoryQueue]):
    """Locks among the threads of one process.

    Args:
        uri: With *space*, names the queues: managers of one process with the same two share them.
        space: See *uri*.
        settings: Times.
        clock: Where time and chance come from.
        events: Receives what happens to locks.
        threads: How they wait.
        holder: As :class:`MemoryQueue` takes it.
    """

    name = "memory"
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=True,
        reach=Reach.PROCESS,
        expiry=False,
        survives_restart=False,
        explicit_locks=True,
        journal=True,
        clock=ExpiryClock.NONE,
        carries=Reach.PROCESS,
        deadlocks=True,
        notes=True,
    )

    def __init__(
        self,
        uri: str = "",
        *,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        threads: Threads = THREADS,
        host: Host = SYSTEM_HOST,
        holder: HolderOf | None = None,
    ) -> None:
        settings, events = settings or LockSettings(), events or Events()

        def made() -> Parts[MemoryQueue]:
            queues, held, emitter = space_of(uri, space), Held(threads, host), LockEventEmitter(events, clock)
            table, leases = MemoryLockTable(queues, host), MemoryLeases(queues, events)
            queue = MemoryQueue(queues, table, leases, held, emitter, settings, clock, threads, holder)
            return Parts(
                queue=queue,
                acquirer=Acquirer(queue, queue, held, emitter, settings, clock),
                held=held,
                keeping=leases,
                table=table,
                journal=MemoryJournal(queues, clock),
            )

        self._opened_in = os.getpid()
        super().__init__(self.guarantees, settings, made)

    def _refuse_undeclared(self, request: LockRequest) -> None:
        super()._refuse_undeclared(request)
        if self._opened_in != os.getpid():
            # 1. A thread holds X.   2. Its process forks.   3. The child would find no lock in its own memory.
            raise LockRefused(
                "this process was forked from the one that has the locks in its memory",
                manager=self.name,
                locks=request,
                accepted="lock-impl=lease; or one process alone",
            )


def _entries(ticket: MemoryTicket, blocked_by: str | None) -> list[LockEntry]:
    return entries_of(ticket.request, ticket.place, ticket.requested_at_ms, blocked_by)


def _tell(leases: weakref.ref[MemoryLeases], request_id: str) -> None:
    """Tell the client of *request_id*, if it is there still, that its lease is lost."""
    if (found := leases()) is not None:
        found.lost(request_id)
