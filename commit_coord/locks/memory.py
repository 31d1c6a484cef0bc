"""Locks within one process.

One :class:`_Space` holds the queues; all managers of one name share it. Whoever removes a request works out, under the
space's mutex, which requests that grants, and wakes these and nobody else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockRefused, OfferLost
from commit_coord.events import Events, LockLeaseLost
from commit_coord.locks.base import Lease, LockSettings
from commit_coord.locks.queueing import ANSWER_LEASES, Blocker, Carried, QueueingLockManager
from commit_coord.model import (
    Generation,
    Guarantees,
    JournalEntry,
    LeaseState,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    LockState,
    Offer,
    Resource,
)
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.contention import nearest_blocker
from commit_coord.protocol.deadlock import Obstacle, Wait
from commit_coord.protocol.modes import compatible

_TICK = 0.1
"""Seconds between two looks of a waiter whether somebody let go of a lease without a release."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A request with its place."""

    request: LockRequest
    place: int
    requested_at_ms: int
    lost: Callable[[], None]
    agent: str
    blocker: int | None = None
    turn: threading.Event = field(default_factory=threading.Event)
    taken: bool = False
    retracted: bool = False


class _Journal:
    """Entries that all live for the same time, so the oldest expire first."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, JournalEntry]] = OrderedDict()

    def put(self, entry: JournalEntry, now: float, lifetime_ms: int) -> None:
        with self._mutex:
            self._entries[entry.request_id] = now + lifetime_ms / 1000, entry
            self._entries.move_to_end(entry.request_id)
            while self._entries and next(iter(self._entries.values()))[0] <= now:
                self._entries.popitem(last=False)

    def get(self, request_id: str, now: float) -> JournalEntry | None:
        expires_at, entry = self._entries.get(request_id, (0.0, None))
        return entry if expires_at > now else None


class _Space:
    """The queues of both scopes. Every method takes the mutex; none blocks while it has it.

    A Ctrl-C may end a method at any line. What is half entered is found by its request id, which is noted first and
    forgotten last, and a removal can be repeated from any point.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._last_place = 0
        self._tickets: dict[str, _Ticket] = {}
        self._by_place: dict[int, _Ticket] = {}
        self._queues: dict[LockScope, dict[Resource, dict[LockMode, list[int]]]] = {scope: {} for scope in LockScope}
        self._watchers: dict[int, set[int]] = {}
        self.dropped: deque[tuple[_Ticket, Callable[[], None]]] = deque()
        """Granted, and nobody has the lease any more, released or not; and what tells of the end."""
        self.journal = _Journal()
        self.answers = _Journal()
        self.notes: dict[Resource, str] = {}

    def enter(self, request: LockRequest, now_ms: int, agent: str, lost: Callable[[], None]) -> _Ticket:
        """Put *request* of *agent* behind everyone, return its ticket. *lost* is called when it is freed by force."""
        with self._mutex:
            if request.request_id in self._tickets:
                raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
            self._last_place += 1
            ticket = _Ticket(request, self._last_place, now_ms, lost, agent)
            self._tickets[request.request_id] = ticket
            self._by_place[ticket.place] = ticket
            queues = self._queues[request.scope]
            for resource, mode in request.locks:
                queues.setdefault(resource, {}).setdefault(mode, []).append(ticket.place)
            self._look(ticket)
            return ticket

    def remove(self, ticket: _Ticket) -> bool:
        """Take *ticket* out, wake whom that grants; return whether it was there."""
        try:
            with self._mutex:
                return self._remove(ticket)
        except BaseException:
            # Half a removal would block the queue for ever: finish it, then let the interrupt through.
            with self._mutex:
                self._remove(ticket)
            raise

    def take(self, ticket: _Ticket, limit: int) -> list[Offer]:
        """Take the offers that wait right behind *ticket*."""
        with self._mutex:
            if self._tickets.get(ticket.request.request_id) is not ticket:
                return []
            ((resource, mode),) = ticket.request.locks
            offers: list[Offer] = []
            for place in self._queues[ticket.request.scope][resource][mode]:
                other = self._by_place[place]
                if other is ticket:
                    continue
                if not other.request.offer or other.taken or other.retracted or len(offers) == limit:
                    break
                other.taken = True
                offers.append(Offer(request_id=other.request.request_id, text=other.request.offer))
            return offers

    def retract(self, ticket: _Ticket) -> bool:
        """Let nobody take the offer of *ticket* from now on; return whether nobody has."""
        with self._mutex:
            ticket.retracted = not ticket.taken
            return ticket.retracted

    def settle(self, done: Iterable[str], returned: Iterable[str]) -> None:
        """End the requests *done*, whose answers are there already; leave the *returned* ones to their owners."""
        for request_id in done:
            if ticket := self._tickets.get(request_id):
                self.remove(ticket)
                ticket.turn.set()
        with self._mutex:
            for request_id in returned:
                if ticket := self._tickets.get(request_id):
                    ticket.taken = False

    def leave(self, table: Resource, note: str) -> None:
        """Keep *note* for the next holder of the latch of *table*."""
        if note:
            self.notes[table] = note
        else:
            self.notes.pop(table, None)

    def sweep(self) -> None:
        """Remove what was let go of without a release."""
        while self.dropped:
            with contextlib.suppress(IndexError):  # another thread was faster
                ticket, ended = self.dropped.popleft()
                if self.remove(ticket):
                    ended()

    def find(self, request_id: str) -> _Ticket | None:
        """Return the ticket of a request."""
        return self._tickets.get(request_id)

    def blocker(self, ticket: _Ticket) -> _Ticket | None:
        """Return whom *ticket* waits for."""
        with self._mutex:
            return self._by_place.get(ticket.blocker or 0)

    def tickets(self) -> list[tuple[_Ticket, str | None]]:
        """Return all tickets in their order, each with the request id that blocks it."""
        self.sweep()
        with self._mutex:
            return [
                (ticket, self._by_place[ticket.blocker].request.request_id if ticket.blocker else None)
                for ticket in self._tickets.values()
            ]

    def waits(self) -> list[Wait]:
        """Return everybody who waits, and for whom."""
        with self._mutex:
            return [self._wait_of(ticket) for ticket in self._tickets.values() if ticket.blocker is not None]

    def _wait_of(self, ticket: _Ticket) -> Wait:
        queues = self._queues[ticket.request.scope]
        before: dict[int, tuple[Resource, LockMode]] = {}
        for resource, mode in ticket.request.locks:
            for other, places in queues[resource].items():
                if not compatible(mode, other):
                    before |= dict.fromkeys(places[: bisect_left(places, ticket.place)], (resource, mode))
        return Wait(
            request_id=ticket.request.request_id,
            place=ticket.place,
            agent=ticket.agent,
            owner=ticket.request.owner,
            wanted=before[max(before)],
            obstacles=[
                Obstacle(request_id=one.request.request_id, place=one.place, agent=one.agent)
                for one in map(self._by_place.__getitem__, before)
            ],
        )

    def _look(self, ticket: _Ticket) -> None:
        """Find out whom *ticket* waits for and watch it, or give the turn."""
        blocker = nearest_blocker(ticket.place, ticket.request.locks, self._queues[ticket.request.scope])
        # Noted first, so that a removal knows where to undo what follows.
        ticket.blocker = blocker
        if blocker is None:
            ticket.turn.set()
        else:
            self._watchers.setdefault(blocker, set()).add(ticket.place)

    def _remove(self, ticket: _Ticket) -> bool:
        if self._tickets.get(ticket.request.request_id) is not ticket:
            return False
        queues = self._queues[ticket.request.scope]
        for resource, mode in ticket.request.locks:
            places = queues.get(resource, {}).get(mode, [])
            index = bisect_left(places, ticket.place)
            if index < len(places) and places[index] == ticket.place:
                del places[index]
            if resource in queues and not places:
                queues[resource].pop(mode, None)
                if not queues[resource]:
                    queues.pop(resource)
        if ticket.blocker is not None:
            self._watchers.get(ticket.blocker, set()).discard(ticket.place)
        for place in self._watchers.get(ticket.place, ()):
            self._look(self._by_place[place])
        self._watchers.pop(ticket.place, None)
        self._by_place.pop(ticket.place, None)
        self._tickets.pop(ticket.request.request_id, None)
        return True


_SPACES: dict[tuple[str, str], _Space] = {}


def _space(uri: str, space: str) -> _Space:
    # One step for the interpreter: two threads that ask at once get the same one.
    return _SPACES.setdefault((uri, space), _Space())


# In a forked child the holders are threads of the parent, and a mutex may have been copied locked.
os.register_at_fork(after_in_child=_SPACES.clear)


class MemoryLease(Lease):
    """Ends by release or by force; its process is its liveness."""

    def __init__(self, manager: MemoryLockManager, space: _Space, ticket: _Ticket) -> None:
        super().__init__(ticket.request, Generation(ticket.place))
        self._manager = manager
        self._space = space
        self._ticket = ticket
        self._settled: tuple[Sequence[JournalEntry], Sequence[str]] = (), ()
        self._left: str | None = None

    @property
    def note(self) -> str | None:
        """See :attr:`Lease.note`."""
        table = self.request.table
        return None if table is None else self._space.notes.get(table, "")

    def leave(self, note: str) -> None:
        """See :meth:`Lease.leave`."""
        self._left = note

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """Return unless it was released or freed by force: asking costs nothing here."""
        self._raise_if_over()

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`Lease.take`."""
        return self._space.take(self._ticket, limit)

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`Lease.settle`."""
        self._settled = done, returned

    def retract(self) -> bool:
        """See :meth:`Lease.retract`."""
        return self._space.retract(self._ticket)

    def release(self) -> None:
        """Give the locks back and wake whom that grants."""
        try:
            if self._transition(LeaseState.RELEASED):
                if self._left is not None and self.request.table is not None:
                    self._space.leave(self.request.table, self._left)
                self._manager._settle(*self._settled)
        finally:
            self._space.remove(self._ticket)


class MemoryLockManager(QueueingLockManager):
    """Locks among the threads of one process.

    Args:
        uri: With *space*, names the queues: managers of one process with the same two share them.
        space: See *uri*.
        settings: Times.
        clock: Where time and chance come from.
        events: Who is told.
        host: Names this process, and tells which others have ended.
    """

    name = "memory"
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=True,
        reach="process",
        expiry=False,
        survives_restart=False,
        explicit_locks=True,
        journal=True,
        clock="none",
        carries="process",
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
        host: Host = SYSTEM_HOST,
    ) -> None:
        super().__init__(settings or LockSettings(), clock, events or Events(), host)
        self._key = (uri, space)
        self._start_over()

    def _start_over(self) -> None:
        super()._start_over()
        self._space = _space(*self._key)
        self._leases: weakref.WeakValueDictionary[str, MemoryLease] = weakref.WeakValueDictionary()
        self._explicit: dict[str, MemoryLease] = {}

    def _here(self) -> _Space:
        """Return the queues of this process: a forked child starts with empty ones."""
        if self._pid != os.getpid():
            self._start_over()
        return self._space

    def _knows(self, request_id: str) -> bool:
        return self._here().find(request_id) is not None

    def _enter(self, request: LockRequest, deadline: float) -> Blocker | None:
        space, request_id = self._here(), request.request_id
        space.sweep()
        # Weakly: what is noted of a lease stays until the next request comes, and must keep no client alive.
        lost = partial(_tell, weakref.ref(self), request_id)
        return self._seen(space.enter(request, self._clock.wall_ms(), self._agent, lost))

    def _wait(self, request: LockRequest, blocker: Blocker, deadline: float) -> Blocker | None:
        # The turn is given by whoever removes the last one in the way.
        while (left := deadline - self._clock.now()) > 0 and not self._is_closed(request):
            if self._mine(request).turn.wait(min(left, _TICK)):
                break
            self._space.sweep()
        return self._seen(self._mine(request))

    def _waits(self, request: LockRequest) -> Sequence[Wait]:
        return self._space.waits()  # at one moment

    def _retract(self, request: LockRequest) -> bool:
        return self._space.retract(self._mine(request))

    def _settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        for entry in done:
            self._space.answers.put(entry, self._clock.now(), ANSWER_LEASES * self.settings.lease_ms)
        self._space.settle([entry.request_id for entry in done], returned)

    def _grant(self, request: LockRequest) -> Lease:
        lease = MemoryLease(self, self._space, self._mine(request))
        self._leases[request.request_id] = lease
        if request.explicit:
            self._explicit[request.request_id] = lease
        else:
            # Only noted, for the next one who comes: this happens at any line, also of one who has the mutex.
            note = lease._ticket, partial(self._telling.ended, request.request_id)
            weakref.finalize(lease, self._space.dropped.append, note).atexit = False
        lease.add_listener(lambda lease, state: self._forget(lease))
        return lease

    def _withdraw(self, request: LockRequest) -> None:
        self._leases.pop(request.request_id, None)
        ticket = self._space.find(request.request_id)
        # Somebody else's request of the same id, for which ours was refused, is not ours to remove.
        if ticket is not None and ticket.request is request:
            self._space.remove(ticket)

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`."""
        depth = len(resource.path) if resource else 0
        return [
            entry
            for ticket, blocked_by in self._here().tickets()
            for entry in _entries(ticket, blocked_by)
            if scope in (None, entry.scope) and (resource is None or entry.resource.path[:depth] == resource.path)
        ]

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`."""
        return self._free(
            (ticket, blocked_by)
            for ticket, blocked_by in self._here().tickets()
            if ticket.request.request_id == request_id or any(r == resource for r, _ in ticket.request.locks)
        )

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """Free what belongs to processes that have ended: an owner may be written down by somebody else."""
        dead = [
            (ticket, blocked_by)
            for ticket, blocked_by in self._here().tickets()
            if not ticket.request.explicit and self._host.is_dead(ticket.request.owner.process)
        ]
        if dry_run:
            return [entry for ticket, blocked_by in dead for entry in _entries(ticket, blocked_by)]
        return self._free(dead)

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`LockManager.remember`."""
        self._here().journal.put(entry, self._clock.now(), lifetime_ms)

    def recall(self, request_id: str) -> JournalEntry | None:
        """See :meth:`LockManager.recall`."""
        return self._here().journal.get(request_id, self._clock.now())

    def close(self) -> None:
        """Release every lease of this client that is not explicit."""
        self._here()
        self._end_waits()
        self._space.sweep()
        for ref in self._leases.valuerefs():
            lease = ref()
            if lease is not None and not lease.request.explicit:
                lease.release()

    def _mine(self, request: LockRequest) -> _Ticket:
        ticket = self._space.find(request.request_id)
        if ticket is not None and ticket.request is request:
            return ticket
        if not request.offer:
            raise LockRefused("the request was taken out of the queue by force", locks=request)
        if entry := self._space.answers.get(request.request_id, self._clock.now()):
            raise Carried(entry)
        raise OfferLost("the request is gone, and what became of its offer is not known", locks=request)

    def _seen(self, ticket: _Ticket) -> Blocker | None:
        other = self._space.blocker(ticket)
        if other is None:
            return None
        return Blocker(
            request_id=other.request.request_id, owner=other.request.owner, requested_at_ms=other.requested_at_ms
        )

    def _free(self, tickets: Iterable[tuple[_Ticket, str | None]]) -> Sequence[LockEntry]:
        freed: list[LockEntry] = []
        for ticket, blocked_by in list(tickets):
            if self._space.remove(ticket):
                freed += _entries(ticket, blocked_by)
                ticket.turn.set()
                ticket.lost()
        return freed

    def _lost(self, request_id: str) -> None:
        lease = self._leases.get(request_id)
        if lease is not None and lease._transition(LeaseState.LOST, "freed by force"):
            self._events.emit(LockLeaseLost(request=str(lease.request), reason="freed by force"))

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease.request.request_id, None)
        self._explicit.pop(lease.request.request_id, None)


def _entries(ticket: _Ticket, blocked_by: str | None) -> list[LockEntry]:
    return [
        LockEntry(
            resource=resource,
            mode=mode,
            scope=ticket.request.scope,
            state=LockState.WAITING if blocked_by else LockState.ACQUIRED,
            owner=ticket.request.owner,
            request_id=ticket.request.request_id,
            generation=Generation(ticket.place),
            requested_at_ms=ticket.requested_at_ms,
            explicit=ticket.request.explicit,
            blocked_by=blocked_by,
        )
        for resource, mode in ticket.request.locks
    ]


def _tell(manager: weakref.ref[MemoryLockManager], request_id: str) -> None:
    """Tell the client of *request_id*, if it is there still, that its lease is lost."""
    if (found := manager()) is not None:
        found._lost(request_id)
