"""The queues of one process, which all managers of one name share."""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from commit_coord.errors import LockRefused
from commit_coord.locks.threads import Turn
from commit_coord.model import JournalEntry, LockMode, LockRequest, LockScope, Offer, Resource
from commit_coord.protocol.contention import nearest_blocker
from commit_coord.protocol.deadlock import Obstacle, Wait
from commit_coord.protocol.modes import compatible


@dataclass(slots=True, eq=False)
class MemoryTicket:
    """A request with its place."""

    request: LockRequest
    place: int
    requested_at_ms: int
    lost: Callable[[], None]
    agent: str
    turn: Turn
    blocker: int | None = None
    taken: bool = False
    retracted: bool = False


class ExpiringEntries:
    """Entries that all live for the same time, so the oldest expire first."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, JournalEntry]] = OrderedDict()

    def put(self, entry: JournalEntry, now: float, lifetime_ms: int) -> None:
        """Keep *entry* for *lifetime_ms* from *now*."""
        with self._mutex:
            self._entries[entry.key] = now + lifetime_ms / 1000, entry
            self._entries.move_to_end(entry.key)
            while self._entries and next(iter(self._entries.values()))[0] <= now:
                self._entries.popitem(last=False)

    def get(self, key: str, now: float) -> JournalEntry | None:
        """Return the entry of *key* unless it has expired."""
        expires_at, entry = self._entries.get(key, (0.0, None))
        return entry if expires_at > now else None


class Space:
    """The queues of both scopes. Every method takes the mutex; none blocks while it has it.

    A Ctrl-C may end a method at any line. The request id is entered first and removed last, so a request that was
    entered only in part is found by its id. A removal can be repeated after any line.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._last_place = 0
        self._tickets: dict[str, MemoryTicket] = {}
        self._by_place: dict[int, MemoryTicket] = {}
        self._queues: dict[LockScope, dict[Resource, dict[LockMode, list[int]]]] = {scope: {} for scope in LockScope}
        self._watchers: dict[int, set[int]] = {}
        self.dropped: deque[tuple[MemoryTicket, Callable[[], None]]] = deque()
        """Granted tickets whose leases nobody refers to any more, released or not; each with what emits the end."""
        self.journal = ExpiringEntries()
        self.answers = ExpiringEntries()
        self.notes: dict[Resource, str] = {}

    def enter(
        self, request: LockRequest, now_ms: int, agent: str, turn: Turn, lost: Callable[[], None]
    ) -> MemoryTicket:
        """Add *request* of *agent* at the end of its queues, and return its ticket.

        Args:
            request: The request.
            now_ms: The present time, since the epoch.
            agent: The thread that makes the request.
            turn: Set when no other request blocks this one any more.
            lost: Called when the request is freed by force.
        """
        with self._mutex:
            if request.request_id in self._tickets:
                raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
            self._last_place += 1
            ticket = MemoryTicket(request, self._last_place, now_ms, lost, agent, turn)
            self._tickets[request.request_id] = ticket
            self._by_place[ticket.place] = ticket
            queues = self._queues[request.scope]
            for resource, mode in request.locks:
                queues.setdefault(resource, {}).setdefault(mode, []).append(ticket.place)
            self._look(ticket)
            return ticket

    def remove(self, ticket: MemoryTicket) -> bool:
        """Remove *ticket*, and wake the requests that are granted now. Return whether it was there."""
        try:
            with self._mutex:
                return self._remove(ticket)
        except BaseException:
            # Half a removal would block the queue for ever: finish it, then let the interrupt through.
            with self._mutex:
                self._remove(ticket)
            raise

    def take(self, ticket: MemoryTicket, limit: int) -> list[Offer]:
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

    def retract(self, ticket: MemoryTicket) -> bool:
        """Prevent that a holder takes the offer of *ticket* from now on. Return whether no holder has taken it."""
        with self._mutex:
            ticket.retracted = not ticket.taken
            return ticket.retracted

    def settle(self, holder: MemoryTicket, done: Sequence[str], returned: Sequence[str], note: str | None) -> None:
        """Report the outcomes of the offers that *holder* took, and keep its note, if it still has its place.

        Args:
            holder: The ticket that is released.
            done: Requests whose offers were published; their answers are stored already.
            returned: Requests whose offers are returned to their owners.
            note: For the next holder; None keeps the present note.
        """
        try:
            with self._mutex:
                self._settle(holder, done, returned, note)
        except BaseException:
            # As in `remove`: a ticket that is removed in part would be granted although others block it.
            with self._mutex:
                self._settle(holder, done, returned, note)
            raise

    def remove_dropped(self) -> None:
        """Remove the tickets whose leases were dropped without a release."""
        while self.dropped:
            with contextlib.suppress(IndexError):  # another thread was faster
                ticket, ended = self.dropped.popleft()
                if self.remove(ticket):
                    ended()

    def find(self, request_id: str) -> MemoryTicket | None:
        """Return the ticket of a request."""
        return self._tickets.get(request_id)

    def blocker(self, ticket: MemoryTicket) -> MemoryTicket | None:
        """Return the ticket that *ticket* waits for."""
        with self._mutex:
            return self._by_place.get(ticket.blocker or 0)

    def tickets(self) -> list[tuple[MemoryTicket, str | None]]:
        """Return all tickets in their order, each with the request id that blocks it."""
        self.remove_dropped()
        with self._mutex:
            return [
                (ticket, self._by_place[ticket.blocker].request.request_id if ticket.blocker else None)
                for ticket in self._tickets.values()
            ]

    def waits(self) -> list[Wait]:
        """Return all waits."""
        with self._mutex:
            return [self._wait_of(ticket) for ticket in self._tickets.values() if ticket.blocker is not None]

    def _wait_of(self, ticket: MemoryTicket) -> Wait:
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

    def _look(self, ticket: MemoryTicket) -> None:
        """Find the ticket that *ticket* waits for and watch it; if there is none, set the turn."""
        blocker = nearest_blocker(ticket.place, ticket.request.locks, self._queues[ticket.request.scope])
        # This comes first, so that a removal knows what to undo.
        ticket.blocker = blocker
        if blocker is None:
            ticket.turn.set()
        else:
            self._watchers.setdefault(blocker, set()).add(ticket.place)

    def _settle(self, holder: MemoryTicket, done: Sequence[str], returned: Sequence[str], note: str | None) -> None:
        for request_id in returned:
            if ticket := self._tickets.get(request_id):
                ticket.taken = False
        # 1. A takes the offer of B, and publishes it.   2. A is freed by force, and does not know it yet; B is granted.
        # 3. A settles. If that ended B's request, a third one would be granted while B holds.
        if self._tickets.get(holder.request.request_id) is not holder:
            return
        for request_id in done:
            if ticket := self._tickets.get(request_id):
                self._remove(ticket)
                ticket.turn.set()
        if note is not None and holder.request.table is not None:
            self._keep_note(holder.request.table, note)

    def _keep_note(self, table: Resource, note: str) -> None:
        """Keep *note* for the next holder of the latch of *table*."""
        if note:
            self.notes[table] = note
        else:
            self.notes.pop(table, None)

    def _remove(self, ticket: MemoryTicket) -> bool:
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


SPACES: dict[tuple[str, str], Space] = {}
"""All that this process has."""


def space_of(uri: str, space: str) -> Space:
    """Return the queues of that name. All spellings of the URL of one SQLite file name the same queues."""
    # One step for the interpreter: two threads that ask at once get the same one.
    return SPACES.setdefault((_one_spelling(uri), space), Space())


def _one_spelling(uri: str) -> str:
    scheme, separator, rest = uri.partition(":///")
    if not separator or not scheme.startswith("sqlite") or ":memory:" in rest or "mode=memory" in rest:
        return uri
    return f"sqlite:///{os.path.realpath(unquote(rest.partition('?')[0].removeprefix('file:')))}"


# In a forked child the holders are threads of the parent, and a mutex may have been copied locked.
os.register_at_fork(after_in_child=SPACES.clear)
