"""The queues in the database.

Theory of operation
    A request enters in one transaction and is granted by the same one when nothing blocks it. Otherwise the waiter
    watches its nearest blocker: it looks again when a removal wakes it, and checks regularly whether the blocker's
    lease or process has ended. If so, the waiter removes the blocker.

    A waiter with an offer watches in the same way. If its request is gone, the journal shows whether a holder has
    published the offer.

A lost reply
    1. The enter transaction commits; the connection is cut before the answer arrives.
    2. The same transaction is sent again and meets its own request id. (Not if the request has an offer and the
       database is remote: then the request is only looked up; see ``_entered``.)
    3. The row names this client: the request has its place already, and is looked up instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from commit_coord.clock import Clock
from commit_coord.errors import LockRefused, LockServiceUnavailable, LockTimeout, OfferLost
from commit_coord.locks.acquiring import REMOVED, Acquire, Carried, RemovedByForce
from commit_coord.locks.base import Interrupted, LockSettings
from commit_coord.locks.blockers import Blocker, Holder, holder_of
from commit_coord.locks.handover import OFFER_IS_GONE, HandoverLease
from commit_coord.locks.keeping import CarryingLease, Keeper, Tickets
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.journal import SqlJournal
from commit_coord.locks.sql.requests import MODES, NOBODY, SqlBlocker, SqlRequests, SqlTicket, stored
from commit_coord.locks.sql.store import THREAD_LENGTH, DuplicateRequest, FetchedRows, id_list
from commit_coord.locks.sql.table import SqlLockTable
from commit_coord.model import Generation, LockRequest, Offer, Owner, Resource
from commit_coord.process import Host
from commit_coord.protocol.deadlock import Obstacle, Wait

LOOK_AGAIN_S = 1.0
"""A waiter looks at least this often (seconds), so a lost wake-up delays it by no more."""


class SqlQueue:
    """The queues of one catalog.

    Args:
        requests: The requests in the database.
        tickets: The requests of this client.
        keeper: Extends and releases the leases.
        journal: Has the outcomes of offers.
        table: Finds the holder of a lock.
        settings: Times.
        clock: The clock.
        host: Tells which processes of this host have ended.
    """

    def __init__(
        self,
        requests: SqlRequests,
        tickets: Tickets[SqlTicket],
        keeper: Keeper[SqlTicket],
        journal: SqlJournal,
        table: SqlLockTable,
        settings: LockSettings,
        clock: Clock,
        host: Host,
    ) -> None:
        self._host = host
        self.requests = requests
        self.tickets = tickets
        self._keeper = keeper
        self._journal = journal
        self.table = table
        self._settings = settings
        self._clock = clock

    def knows(self, request_id: str) -> bool:
        """See :meth:`Queue.knows`."""
        return request_id in self.tickets

    def enter(self, acquire: Acquire) -> Blocker | None:
        """See :meth:`Queue.enter`."""
        return self._enter(acquire.request, acquire.deadline)

    def _enter(self, request: LockRequest, deadline: float) -> Blocker | None:
        first = self._clock.now()
        if not (request.offer and self.requests.store.remote):
            return self.requests.retries.until(deadline, lambda: self.enter_once(request, first))
        # Connect first: if that fails, nothing was sent, so no holder can have taken the offer.
        self.requests.retries.until(deadline, self.requests.store.connection.reach)
        try:
            return self.enter_once(request, first)
        except Interrupted:
            try:
                return self.requests.retries.until(deadline, lambda: self._entered(request, first))
            except LockServiceUnavailable as error:
                raise OfferLost(
                    "the reply of the lock service was lost, and it is not known whether another writer has published "
                    "the append of this lock request; look for the append before you repeat it",
                    locks=request,
                ) from error

    def enter_once(self, request: LockRequest, first: float) -> Blocker | None:
        """Enter and look in one transaction; *first* is when the first try was sent."""
        connection, sent = self.requests.store.connection, self._clock.now()
        try:
            rows = connection.run(self.requests.steps_to_enter(request, connection.wake))[-1]
        except DuplicateRequest:
            return self._entered(request, first)
        return self._noted(request, rows, sent)

    def _entered(self, request: LockRequest, first: float) -> Blocker | None:
        """Return what blocks *request*, which was sent at *first* and whose reply was lost.

        A request with an offer is never sent a second time:

        1. It enters; the reply is lost.   2. A holder publishes its offer, and ends the request.
        3. If the request were sent again, it would enter again, and its offer would be published twice.
        """
        rows = self.requests.store.connection.ask(lease_sql.LOOK, self.requests.look_values(request))
        if not rows and request.offer:
            raise self._gone(request)
        if not rows:
            raise Interrupted("the request was added and removed while its reply was lost", locks=request)
        if rows[0][1] != self.tickets.client:
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        blocker = self._noted(request, rows, first)
        # 1. The request entered behind a holder; the reply was lost.   2. The holder took the offer and ended without
        # settling it.   3. Our look finds no blocker. That does not prove that there was none.
        self.tickets[request.request_id].was_contended = True
        return blocker

    def _noted(self, request: LockRequest, rows: FetchedRows, sent: float) -> Blocker | None:
        note = _note(request, rows)
        self.tickets[request.request_id] = SqlTicket(
            request=request, place=rows[0][0], last_confirmed_at=sent, handover_note=note
        )
        self._keeper.heartbeat.ensure_running()
        return self._seen(rows)

    def _seen(self, rows: FetchedRows) -> Blocker | None:
        """Return the blocker in the answer to LOOK."""
        _, _, request_id, place, user, host, pid, application, statement, process, since, left, _ = rows[0]
        if request_id is None:
            return None
        owner = Owner(user=user, host=host, pid=pid, application=application, statement=statement, process=process)
        return SqlBlocker(
            request_id=request_id,
            owner=owner,
            requested_at_ms=since,
            place=place,
            expires_at=None if left is None else self._clock.now() + left / 1000,
        )

    def wait(self, acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
        """See :meth:`Queue.wait`."""
        request, retries = acquire.request, self.requests.retries
        assert isinstance(blocker, SqlBlocker)
        look_again_at = min(until, self._clock.now() + LOOK_AGAIN_S)
        if blocker.expires_at is not None:
            look_again_at = min(look_again_at, blocker.expires_at)
        tick = self._settings.poll_interval_ms / 1000
        ticket = self.tickets[request.request_id]
        ticket.was_contended = True
        while not self._is_removable(blocker):
            connection = self.requests.store.connection
            # Look again before the first wait: a wake-up that was sent before `listen` is lost. SQLite serializes
            # entering and removing, so there a thread that listened before it entered has missed nothing.
            missed = retries.until(until, connection.listen)
            missed = missed or (self.requests.store.concurrent and not ticket.looked_again)
            ticket.looked_again = True
            if missed or acquire.is_closed:
                break
            left = look_again_at - self._clock.now()
            if left <= 0 or retries.until(until, partial(connection.wait, min(left, tick))):
                break
        else:
            process = blocker.owner.process
            ended = process if self._host.is_dead(process) else NOBODY
            removal = partial(
                self.requests.remove, request.scope, blocker.request_id, blocker.place, forced=False, ended=ended
            )
            retries.until(until, removal)
        return self._look(request, until)

    def _is_removable(self, blocker: SqlBlocker) -> bool:
        """Return whether *blocker* may be removed: its lease has expired, or its process on this host has ended."""
        if blocker.expires_at is None:
            return False
        return blocker.expires_at <= self._clock.now() or self._host.is_dead(blocker.owner.process)

    def _look(self, request: LockRequest, deadline: float) -> Blocker | None:
        ticket = self.tickets[request.request_id]
        values, requests = self.requests.look_values(request), self.requests
        rows = requests.retries.until(deadline, lambda: requests.store.connection.ask(lease_sql.LOOK, values))
        if rows:
            ticket.handover_note = _note(request, rows)
            return self._seen(rows)
        if request.offer:
            raise self._gone(request)
        if self._clock.now() - ticket.last_confirmed_at < self._keeper.service.lease_seconds:
            raise RemovedByForce(REMOVED, locks=request)
        # We were stalled for longer than the lease time and another client removed us: queue again, at the end.
        del self.tickets[request.request_id]
        return self._enter(request, deadline)

    def _gone(self, request: LockRequest) -> Exception:
        """Return the exception for a request that had an offer and is gone: Carried if the journal has the outcome.

        Otherwise OfferLost. The request is never entered again: that would make a second offer with the same id.
        """
        self.tickets.pop(request.request_id, None)
        if entry := self._journal.recall(request.request_id):
            return Carried(entry)
        return OfferLost(OFFER_IS_GONE, locks=request)

    def waits(self, request: LockRequest) -> Sequence[Wait]:
        """See :meth:`Deadlocks.waits`."""
        found: list[Wait] = []
        seen: set[str] = set()
        agents = {self.requests.store.connection.wake[:THREAD_LENGTH]}
        while agents:
            seen |= agents
            made = {row[0]: row for row in self.requests.ask(lease_sql.REQUESTS_OF, {"ids": id_list(sorted(agents))})}
            blockers: dict[str, FetchedRows] = {}
            for row in self.requests.ask(lease_sql.BLOCKERS_OF, {"ids": id_list(sorted(made))}):
                blockers.setdefault(row[0], []).append(row)
            for request_id, rows in blockers.items():
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
                        wanted=(Resource.parse(nearest[1]), MODES[nearest[2]]),
                        obstacles=[Obstacle(request_id=row[3], place=row[4], agent=row[5]) for row in rows],
                    )
                )
            agents = {row[5] for rows in blockers.values() for row in rows} - seen
        return found

    def all_present(self, places: Mapping[str, int]) -> bool:
        """See :meth:`Deadlocks.all_present`."""
        return dict(self.requests.ask(lease_sql.PLACES_OF, {"ids": id_list(sorted(places))})) == dict(places)

    def retract(self, request: LockRequest) -> bool:
        """See :meth:`Queue.retract`."""
        if not request.offer:
            return True
        try:
            return bool(self.requests.ask(lease_sql.RETRACT, {"request_id": request.request_id}))
        except LockServiceUnavailable:
            return False

    def take(self, ticket: SqlTicket, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`."""
        ((resource, _),) = ticket.request.locks
        rows = self.requests.ask(
            lease_sql.TAKE,
            {
                "scope": self.requests.scope(ticket.request.scope),
                "resource": stored(resource),
                "request_id": ticket.request.request_id,
                "place": ticket.place,
                "limit": limit,
            },
        )
        return [Offer(request_id=request_id, text=text) for _, request_id, text in sorted(rows)]

    def grant(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`Queue.grant`."""
        ticket = self.tickets[acquire.request.request_id]
        assert ticket.place is not None
        if acquire.request.explicit:
            keep = lease_sql.KEEP, {"request_id": acquire.request.request_id, "place": ticket.place}
            if not self.requests.run([keep])[0]:
                if self._clock.now() - ticket.last_confirmed_at < self._keeper.service.lease_seconds:
                    raise RemovedByForce(REMOVED, locks=acquire.request)
                raise LockTimeout(
                    "the request expired before its lock was confirmed: this process was stopped for longer than the "
                    "lease time; nothing is locked, try again",
                    locks=acquire.request,
                )
        lease = CarryingLease(self._keeper, self, ticket, Generation(ticket.place))
        ticket.lease = lease
        return lease

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        """See :meth:`Queue.leave`."""
        self._keeper.leave(request, SqlTicket(request=request, place=None))

    def holder(self, request: LockRequest, blocker: Blocker) -> Holder:
        """See :meth:`Queue.holder`."""
        return holder_of(self.table.look, request, blocker)


def _note(request: LockRequest, rows: FetchedRows) -> str | None:
    """Return the note in the answer to LOOK."""
    return None if request.table is None else rows[0][-1] or ""
