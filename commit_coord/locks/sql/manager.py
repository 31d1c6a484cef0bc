"""Leases in a SQL database: SQLite by default, PostgreSQL for more than one host.

Theory of operation
    ``statements`` holds the tables and statements and says why they are correct, ``store`` the two databases.
    Here is the client: it enters in one transaction and is granted by the same one when nobody is in the way. Else it
    watches its nearest blocker: it asks again when a removal wakes it, and looks now and then whether the
    blocker's lease or process has ended, in which case it removes it itself.

    One heartbeat extends all leases and all waiting requests of the manager with one statement.

    A waiter that offers something watches in the same way. When its request is gone, the journal says whether a holder
    has carried the offer out.

A lost reply
    1. The enter transaction commits; the connection is cut before the answer arrives.
    2. The same transaction is sent again and meets its own request id.
    3. The row names this client: the request has its place already, and is looked up instead.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockRefused, LockServiceUnavailable, OfferLost
from commit_coord.events import Events
from commit_coord.locks.base import BRIEFLY, PAGE, Interrupted, Lease, LockSettings
from commit_coord.locks.keeping import CarryingLease, KeepingLockManager, Ticket
from commit_coord.locks.queueing import ANSWER_LEASES, Blocker, Carried
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.store import DuplicateRequest, Rows, Step, id_list, open_store
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
    Owner,
    Resource,
)
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.deadlock import Obstacle, Wait
from commit_coord.protocol.lease import LeaseEvent

logger = logging.getLogger(__name__)

_LOOK_AGAIN = 1.0
"""Seconds after which a waiter asks the database even if nobody woke it: the price of a wake-up that got lost."""

_AT_ONCE = 100
"""Expired requests that one beat removes: the next one must not be late."""

_LONGEST = 1_500
"""Characters of a resource that are stored as they are: its key also has the name of the catalog."""
_LONGEST_NAME = 600
"""Characters of one name in it."""
_CUT = 400
"""Characters that are left of a longer one, before its digest."""

_LARGEST_PAGE = 32_000
"""Locks of one page of a listing, at most."""

_MODES = {"S": LockMode.SHARED, "X": LockMode.EXCLUSIVE}


@dataclass(slots=True, eq=False, kw_only=True)
class _Ticket(Ticket):
    """A request in the database."""

    place: int | None
    """Where it stands; None when it was interrupted while it entered."""
    waits: bool = False
    """Whether it was asked about since it entered, as WAKE's numbered sequence demands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SqlBlocker(Blocker):
    """The nearest blocker, with what decides whether it may be removed."""

    place: int
    explicit: bool
    expires_at: float | None
    """On ``Clock.now``, as the service's remaining time said when it was asked."""


class LeaseLockManager(KeepingLockManager[_Ticket]):
    """Locks as rows in a SQL database.

    Args:
        url: A SQLAlchemy URL of SQLite or PostgreSQL, as the catalog has it; whatever driver it names, PostgreSQL is
            spoken to with psycopg 3. Opened when it is first needed.
        space: Separates what does not concern each other in one database, as its catalogs.
        settings: Times.
        clock: Where time and chance come from.
        events: Who is told.
        host: Names this process, and tells which others have ended.

    Raises:
        ConfigError: The URL is not one of such a database.
    """

    name = "lease"

    def __init__(
        self,
        url: str,
        *,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        host: Host = SYSTEM_HOST,
    ) -> None:
        super().__init__(settings or LockSettings(), clock, events or Events(), host)
        self._store = open_store(url, clock, self.settings.lease_ms)
        server = self._store.clock_name == "server"
        self.guarantees = Guarantees(
            mutual_exclusion=True,
            hierarchy=True,
            fifo=True,
            reach="network" if server else "host",
            expiry=True,
            survives_restart=True,
            explicit_locks=True,
            journal=True,
            clock="server" if server else "host",
            carries="network" if server else "host",
            deadlocks=True,
            notes=True,
        )
        self._space = quote(space, safe="")
        self._swept = clock.now()
        self._start_over()

    # Acquire.

    def _knows(self, request_id: str) -> bool:
        self._here()
        return request_id in self._tickets

    def _enter(self, request: LockRequest, deadline: float) -> Blocker | None:
        first = self._clock.now()
        if not (request.offer and self._store.remote):
            return self._persist(lambda: self._enter_once(request, first), deadline)
        # Where no connection can be had, nothing is sent, and nobody can take the offer.
        self._persist(self._store.connection.reach, deadline)
        try:
            return self._enter_once(request, first)
        except Interrupted:
            try:
                return self._persist(lambda: self._entered(request, first), deadline)
            except LockServiceUnavailable as error:
                raise OfferLost("whether the request entered is not known", locks=request) from error

    def _enter_once(self, request: LockRequest, first: float) -> Blocker | None:
        """Enter and look in one transaction; *first* is when the first try was sent."""
        connection, sent = self._store.connection, self._clock.now()
        try:
            rows = connection.run(self._steps_to_enter(request, connection.wake))[-1]
        except DuplicateRequest:
            return self._entered(request, first)
        return self._noted(request, rows, sent)

    def _entered(self, request: LockRequest, first: float) -> Blocker | None:
        """Return what stands in the way of *request*, which was sent at *first* and whose reply was lost.

        A request with an offer is never sent a second time:

        1. It enters; the reply is lost.   2. A holder carries its offer out, and ends it.
        3. Sent again it would enter again, with an offer that is new to everybody, and be carried out twice.
        """
        rows = self._store.connection.ask(lease_sql.LOOK, self._look_values(request))
        if not rows and request.offer:
            raise self._gone(request)
        if not rows:
            raise Interrupted("the request came and went while its reply was lost", locks=request)
        if rows[0][1] != self._client:
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        blocker = self._noted(request, rows, first)
        # 1. It entered behind a holder; the reply was lost.   2. That one took its offer, and ended in doubt.
        # 3. We look now, and nobody is in the way: that does not mean that nobody was.
        self._tickets[request.request_id].waited = True
        return blocker

    def _noted(self, request: LockRequest, rows: Rows, sent: float) -> Blocker | None:
        note = _note(request, rows)
        self._tickets[request.request_id] = _Ticket(request=request, place=rows[0][0], word=sent, note=note)
        if not request.explicit:
            self.heartbeat.ensure_running()
        return self._seen(rows)

    def _steps_to_enter(self, request: LockRequest, wake: str) -> list[Step]:
        owner, clock, scope = request.owner, self._store.clock_name, self._scope(request.scope)
        if request.scope is LockScope.OPERATION:
            queues = [scope]
        else:
            queues = [f"{scope}:{stored(resource)}" for resource, _ in request.locks]
        steps: list[Step] = [(lease_sql.TAKE_PLACE, {"queue": queue, "clock": clock}) for queue in sorted(queues)]
        if len(queues) > 1:
            steps.append((lease_sql.LEVEL_PLACES, {"ids": id_list(queues)}))
        common = {"queue": queues[0], "scope": scope, "request_id": request.request_id}
        steps.append(
            (
                lease_sql.ENTER_REQUEST,
                {
                    **common,
                    "client": self._client,
                    "wake": wake,
                    "owner_user": owner.user,
                    "owner_host": owner.host,
                    "owner_pid": owner.pid,
                    "owner_application": owner.application,
                    "owner_statement": owner.statement,
                    "owner_process": owner.process,
                    "explicit": int(request.explicit),
                    "lease_ms": self.settings.lease_ms,
                    "clock": clock,
                },
            )
        )
        for resource, mode in request.locks:
            steps.append((lease_sql.ENTER_LOCK, {**common, "resource": stored(resource), "mode": mode.letter}))
        if request.offer:
            steps.append((lease_sql.ENTER_OFFER, {**common, "offer": request.offer}))
        steps.append((lease_sql.LOOK, self._look_values(request)))
        return steps

    def _look_values(self, request: LockRequest) -> dict[str, Any]:
        return {"request_id": request.request_id, "clock": self._store.clock_name, "queue": self._queue(request)}

    def _queue(self, request: LockRequest) -> str:
        """Return the queue of the latch that *request* asks for, "" where it asks for anything else."""
        return "" if request.table is None else f"{self._scope(request.scope)}:{stored(request.table)}"

    def _seen(self, rows: Rows) -> Blocker | None:
        """Return the blocker in the answer to LOOK."""
        _, _, request_id, place, user, host, pid, application, statement, process, since, explicit, left, _ = rows[0]
        if request_id is None:
            return None
        owner = Owner(user=user, host=host, pid=pid, application=application, statement=statement, process=process)
        return _SqlBlocker(
            request_id=request_id,
            owner=owner,
            requested_at_ms=since,
            place=place,
            explicit=bool(explicit),
            expires_at=None if left is None else self._clock.now() + left / 1000,
        )

    def _wait(self, request: LockRequest, blocker: Blocker, deadline: float) -> Blocker | None:
        assert isinstance(blocker, _SqlBlocker)
        until = min(deadline, self._clock.now() + _LOOK_AGAIN)
        if blocker.expires_at is not None:
            until = min(until, blocker.expires_at)
        tick = self.settings.poll_interval_ms / 1000
        ticket = self._tickets[request.request_id]
        ticket.waited = True
        while not self._over(blocker):
            connection = self._store.connection
            # Ask again before the first wait: a wake-up that was sent before found nobody. SQLite enters and removes
            # one after the other, so there it is enough to have listened when it entered.
            missed = self._persist(connection.listen, deadline) or (self._store.concurrent and not ticket.waits)
            ticket.waits = True
            if missed or self._is_closed(request):
                break
            left = until - self._clock.now()
            if left <= 0 or self._persist(partial(connection.wait, min(left, tick)), deadline):
                break
        else:
            dead = self._host.is_dead(blocker.owner.process)
            removal = partial(self._remove, request.scope, blocker.request_id, blocker.place, forced=dead)
            self._persist(removal, deadline)
        return self._look(request, deadline)

    def _over(self, blocker: _SqlBlocker) -> bool:
        """Return whether *blocker* may be removed: its lease or, in our reach, its process has ended."""
        if blocker.explicit:
            return False
        expired = blocker.expires_at is not None and blocker.expires_at <= self._clock.now()
        return expired or self._host.is_dead(blocker.owner.process)

    def _look(self, request: LockRequest, deadline: float) -> Blocker | None:
        ticket = self._tickets[request.request_id]
        rows = self._persist(lambda: self._store.connection.ask(lease_sql.LOOK, self._look_values(request)), deadline)
        if rows:
            ticket.note = _note(request, rows)
            return self._seen(rows)
        if request.offer:
            raise self._gone(request)
        if request.explicit or self._clock.now() - ticket.word < self._lease_seconds:
            raise LockRefused("the request was taken out of the queue by force", locks=request)
        # We were stalled for longer than a lease and somebody removed us: queue again, at the end.
        del self._tickets[request.request_id]
        return self._enter(request, deadline)

    def _gone(self, request: LockRequest) -> Exception:
        """Return what to raise when a request with an offer is gone: whoever removed it took the offer before, or not.

        It is never entered again: the offer of the same id would be another one.
        """
        self._tickets.pop(request.request_id, None)
        if entry := self.recall(request.request_id):
            return Carried(entry)
        return OfferLost("the request is gone, and what became of its offer is not known", locks=request)

    def _waits(self, request: LockRequest) -> Sequence[Wait]:
        found: list[Wait] = []
        seen: set[str] = set()
        agents = {self._store.connection.wake}
        while agents:
            seen |= agents
            made = {row[0]: row for row in self._ask(lease_sql.REQUESTS_OF, {"ids": id_list(sorted(agents))})}
            in_the_way: dict[str, Rows] = {}
            for row in self._ask(lease_sql.OBSTACLES, {"ids": id_list(sorted(made))}):
                in_the_way.setdefault(row[0], []).append(row)
            for request_id, rows in in_the_way.items():
                _, place, agent, user, host, pid, application, statement, process = made[request_id]
                nearest = max(rows, key=lambda row: row[4])
                found.append(
                    Wait(
                        request_id=request_id,
                        place=place,
                        agent=agent,
                        owner=Owner(
                            user=user, host=host, pid=pid, application=application, statement=statement, process=process
                        ),
                        wanted=(Resource.parse(nearest[1]), _MODES[nearest[2]]),
                        obstacles=[Obstacle(request_id=row[3], place=row[4], agent=row[5]) for row in rows],
                    )
                )
            agents = {row[5] for rows in in_the_way.values() for row in rows} - seen
        return found

    def _all_stand(self, places: Mapping[str, int]) -> bool:
        return dict(self._ask(lease_sql.PLACES_OF, {"ids": id_list(sorted(places))})) == dict(places)

    def _retract(self, request: LockRequest) -> bool:
        if not request.offer:
            return True
        try:
            return bool(self._ask(lease_sql.RETRACT, {"request_id": request.request_id}))
        except LockServiceUnavailable:
            return False

    def _take(self, ticket: _Ticket, limit: int) -> Sequence[Offer]:
        ((resource, _),) = ticket.request.locks
        rows = self._ask(
            lease_sql.TAKE,
            {
                "scope": self._scope(ticket.request.scope),
                "resource": stored(resource),
                "request_id": ticket.request.request_id,
                "place": ticket.place,
                "limit": limit,
            },
        )
        return [Offer(request_id=request_id, text=text) for _, request_id, text in sorted(rows)]

    def _grant(self, request: LockRequest) -> Lease:
        ticket = self._tickets[request.request_id]
        assert ticket.place is not None
        lease = ticket.lease = CarryingLease(self, ticket, Generation(ticket.place))
        return lease

    def _withdraw(self, request: LockRequest) -> None:
        if any(ticket.request is request for ticket in list(self._unreleased)):
            return  # The heartbeat is at it.
        self._give_back(self._tickets.get(request.request_id) or _Ticket(request=request, place=None))

    def _remove_ticket(self, ticket: _Ticket) -> None:
        request = ticket.request
        if ticket.place is None:
            found = self._ask(lease_sql.FIND, {"request_id": request.request_id, "client": self._client})
            for (place,) in found:
                self._remove_ticket(_Ticket(request=request, place=place))
            return
        named = [(stored(resource), mode.letter) for resource, mode in request.locks]
        lease = ticket.lease
        done, returned = lease.settled if isinstance(lease, CarryingLease) else ((), ())
        self._remove(
            request.scope,
            request.request_id,
            ticket.place,
            forced=True,
            named=named,
            waking=_waking(done),
            leaving=self._leaving(ticket),
            settling=[*self._answers(done, request.request_id, ticket.place), *_given_back(returned, ticket.place)],
            locking=[request.request_id, *(entry.request_id for entry in done)] if done else [],
        )

    def _leaving(self, ticket: _Ticket) -> list[Step]:
        """Return what leaves the note of *ticket* for the next holder."""
        if ticket.left is None or ticket.request.table is None:
            return []
        own = {"request_id": ticket.request.request_id, "place": ticket.place, "queue": self._queue(ticket.request)}
        return [(lease_sql.LEAVE_NOTE, {**own, "note": ticket.left}) if ticket.left else (lease_sql.TAKE_NOTE, own)]

    def _answers(self, done: Sequence[JournalEntry], request_id: str, place: int) -> list[Step]:
        """Return what leaves each of *done* an answer, and ends their requests while the one at *place* stands."""
        if not done:
            return []
        ids = {"ids": id_list([entry.request_id for entry in done]), "request_id": request_id, "place": place}
        lifetime_ms = ANSWER_LEASES * self.settings.lease_ms
        return [
            *((lease_sql.REMEMBER, _remembered(entry, lifetime_ms)) for entry in done),
            (lease_sql.END_REQUESTS, ids),
            (lease_sql.END_LOCKS, ids),
            (lease_sql.END_OFFERS, ids),
            (lease_sql.FORGET, {}),
        ]

    # Hold.

    def _renewed(self, tickets: Sequence[_Ticket], *, thorough: bool) -> Collection[_Ticket]:
        ids = id_list([ticket.request.request_id for ticket in tickets])
        if all(ticket.request.explicit for ticket in tickets):
            rows = self._ask(lease_sql.STANDING, {"ids": ids})
        else:
            (rows,) = self._run([(lease_sql.RENEW, {"ids": ids, "clock": self._store.clock_name})])
        known = {row[0] for row in rows}
        return [ticket for ticket in tickets if ticket.request.request_id in known]

    def _chores(self) -> float | None:
        """Remove what has expired and nobody waits for, of any client: it would be listed until somebody reaps."""
        if self._clock.now() - self._swept >= self._lease_seconds / 2:
            self._swept = self._clock.now()
            with suppress(LockServiceUnavailable):  # The next beat is as good.
                ids = id_list([self._scope(one) for one in LockScope])
                values = {"ids": ids, "clock": self._store.clock_name, "limit": _AT_ONCE}
                for scope, request_id, place in self._ask(lease_sql.EXPIRED, values):
                    self._remove(LockScope(scope.rpartition(":")[2]), request_id, place, forced=False)
        return None

    # Give back.

    def _remove(
        self,
        scope: LockScope,
        request_id: str,
        place: int,
        *,
        forced: bool,
        named: Sequence[tuple[str, str]] | None = None,
        waking: Sequence[Step] = (),
        leaving: Sequence[Step] = (),
        settling: Sequence[Step] = (),
        locking: Sequence[str] = (),
    ) -> bool:
        """Delete a request and wake those that it kept waiting; return whether this call deleted it.

        Args:
            scope: The scope of the request.
            request_id: Which one.
            place: At which place.
            forced: Whatever it is; else only if it has expired by the service's clock.
            named: Its resources and modes; None looks them up.
            waking: Chooses whom else to wake.
            leaving: Done in the same transaction, before the request is gone.
            settling: As *leaving*.
            locking: All requests that it touches, where these are several.
        """
        connection, request = self._store.connection, {"request_id": request_id, "place": place}
        if named is None:
            named = [(resource, mode) for resource, mode in connection.ask(lease_sql.LOCKS_OF, request)]
        lock = {"scope": self._scope(scope), "place": place}
        first: list[Step] = [(lease_sql.LOCK_REQUESTS, {"ids": id_list(locking)})] if locking else []
        results = connection.run(
            [
                *first,
                *leaving,
                *settling,
                (lease_sql.REMOVE, {**request, "forced": int(forced), "clock": self._store.clock_name}),
                (lease_sql.REMOVE_LOCKS, request),
                (lease_sql.REMOVE_OFFER, request),
            ],
            then=[(lease_sql.WAKE, {**lock, "resource": resource, "mode": mode}) for resource, mode in named],
            waking=waking,
            durable=False,
        )
        return bool(results[len(first) + len(leaving) + len(settling)])

    # Look, and free by force.

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`."""
        self._here()
        scopes = [self._scope(one) for one in ((scope,) if scope else LockScope)]
        rows = self._ask(lease_sql.LIST, {**self._list_values(resource), "ids": id_list(scopes)})
        return _entries(rows)

    def pages(
        self, resource: Resource | None = None, *, scope: LockScope | None = None
    ) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockManager.pages`."""
        self._here()
        for one in (scope,) if scope else LockScope:
            values, limit = {**self._list_values(resource), "scope": self._scope(one)}, PAGE
            last: Sequence[Any] | None = ("", "", 0)
            while last is not None:
                after = dict(zip(("after_resource", "after_mode", "after_place"), last, strict=True))
                rows = self._ask(lease_sql.LIST_NEXT, {**values, **after, "limit": limit})
                last = rows[-1][:3] if len(rows) == limit else None
                # Whom a request waits for is worked out anew for each page: the first one is to come soon, later ones
                # are to be few.
                limit = min(2 * limit, _LARGEST_PAGE)
                if rows:
                    yield _entries(rows)

    def _list_values(self, resource: Resource | None) -> dict[str, Any]:
        path = "" if resource is None else stored(resource)
        # '0' follows '/' in ASCII, so this is the range of everything below.
        below = {"below_from": f"{path}/", "below_to": f"{path}0"}
        return {"clock": self._store.clock_name, "resource": path, **below}

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockManager.listed`."""
        return Resource.parse(stored(resource))

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`."""
        standing = self.locks()
        chosen = {
            entry.request_id
            for entry in standing
            if entry.request_id == request_id or (resource is not None and self.is_on(entry, resource))
        }
        return self._free([entry for entry in standing if entry.request_id in chosen], forced=True)

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """See :meth:`LockManager.reap`."""
        standing = [entry for entry in self.locks() if not entry.explicit]
        dead = [entry for entry in standing if self._host.is_dead(entry.owner.process)]
        gone = {entry.request_id for entry in dead}
        expired = [entry for entry in standing if entry.expires_in_ms == 0 and entry.request_id not in gone]
        if dry_run:
            return [*dead, *expired]
        return [*self._free(dead, forced=True), *self._free(expired, forced=False)]

    def _free(self, chosen: Iterable[LockEntry], *, forced: bool) -> Sequence[LockEntry]:
        by_request: dict[tuple[LockScope, str, int], list[LockEntry]] = {}
        for entry in chosen:
            by_request.setdefault((entry.scope, entry.request_id, int(entry.generation or 0)), []).append(entry)
        freed: list[LockEntry] = []
        for (scope, request_id, place), entries in by_request.items():
            if self._end(scope, request_id, place, forced=forced):
                freed += entries
        return freed

    def _end(self, scope: LockScope, request_id: str, place: int, *, forced: bool) -> bool:
        """Delete a request, whoever has it; return whether this call deleted it. An owner of this client is told."""
        if not self._remove(scope, request_id, place, forced=forced):
            return False
        own = self._tickets.get(request_id)
        if own is not None:
            self._observe(own, LeaseEvent.DENIED, "freed by force")
        return True

    # Journal.

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`LockManager.remember`."""
        self._here()
        self._run([(lease_sql.REMEMBER, _remembered(entry, lifetime_ms)), (lease_sql.FORGET, {})])

    def recall(self, request_id: str) -> JournalEntry | None:
        """See :meth:`LockManager.recall`."""
        rows = self._ask(lease_sql.RECALL, {"request_id": request_id})
        if not rows:
            return None
        _, table, table_uuid, metadata_location, snapshots = rows[0]
        return JournalEntry(
            request_id=request_id,
            table=table,
            table_uuid=table_uuid,
            metadata_location=metadata_location,
            snapshot_ids=tuple(int(snapshot) for snapshot in snapshots.split(",") if snapshot),
        )

    # The rest.

    def _disconnect(self) -> None:
        self._store.close()

    def _scope(self, scope: LockScope) -> str:
        return f"{self._space}:{scope.value}"

    def _let_go(self, lease: Lease) -> None:
        """Leave a granted request to itself: this client neither extends it nor gives it back."""
        # First the ticket: the heartbeat takes one whose lease is RELEASED for a release that was interrupted.
        self._tickets.pop(lease.request.request_id, None)
        lease._transition(LeaseState.RELEASED)

    def _run(self, steps: Sequence[Step], then: Sequence[Step] = ()) -> list[Rows]:
        return self._persist(lambda: self._store.connection.run(steps, then), self._clock.now() + BRIEFLY)

    def _ask(self, text: str, values: dict[str, Any]) -> Rows:
        return self._persist(lambda: self._store.connection.ask(text, values), self._clock.now() + BRIEFLY)


def stored(resource: Resource) -> str:
    """Return *resource* as the tables keep it.

    An index of PostgreSQL takes 2,704 bytes. A name that is longer excludes as it should, by its digest, and is listed
    cut off. Each name is cut by itself, so that what it lies in is still its beginning.
    """
    text = str(resource)
    if len(text) <= _LONGEST_NAME:
        return text
    return _cut("/".join(_cut(name, _LONGEST_NAME) for name in text.split("/")), _LONGEST)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:_CUT]}~{hashlib.sha256(text.encode()).hexdigest()}"


def _note(request: LockRequest, rows: Rows) -> str | None:
    """Return the note in the answer to LOOK."""
    return None if request.table is None else rows[0][-1] or ""


def _waking(done: Sequence[JournalEntry]) -> list[Step]:
    return [(lease_sql.WAKE_OWNERS, {"ids": id_list([entry.request_id for entry in done])})] if done else []


def _given_back(request_ids: Sequence[str], place: int) -> list[Step]:
    return [(lease_sql.GIVE_BACK, {"ids": id_list(request_ids), "place": place})] if request_ids else []


def _remembered(entry: JournalEntry, lifetime_ms: int) -> dict[str, Any]:
    return {
        "request_id": entry.request_id,
        "table_name": entry.table,
        "table_uuid": entry.table_uuid,
        "metadata_location": entry.metadata_location,
        "snapshot_ids": ",".join(map(str, entry.snapshot_ids)),
        "lifetime_ms": lifetime_ms,
    }


def _entries(rows: Rows) -> list[LockEntry]:
    # What a request's locks have in common is made once: of a large one there are thousands.
    owners: dict[str, Owner] = {}
    found = []
    for resource, mode, place, request_id, scope, user, host, pid, application, statement, process, *rest in rows:
        explicit, requested_at_ms, expires_in_ms, blocked_by = rest
        owner = owners.get(request_id)
        if owner is None:
            owner = owners[request_id] = Owner(
                user=user, host=host, pid=pid, application=application, statement=statement, process=process
            )
        found.append(
            LockEntry(
                resource=Resource.parse(resource),
                mode=_MODES[mode],
                scope=LockScope(scope.rpartition(":")[2]),
                state=LockState.WAITING if blocked_by else LockState.ACQUIRED,
                owner=owner,
                request_id=request_id,
                generation=Generation(place),
                requested_at_ms=requested_at_ms,
                expires_in_ms=expires_in_ms,
                explicit=bool(explicit),
                blocked_by=blocked_by,
            )
        )
    return found
