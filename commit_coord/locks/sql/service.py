"""Extends and releases leases in the database. A release also settles offers and leaves a handover note."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from commit_coord.clock import Clock
from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.acquiring import ANSWER_LEASES
from commit_coord.locks.base import LockSettings
from commit_coord.locks.keeping import LeaseService
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.journal import remembered
from commit_coord.locks.sql.requests import SqlRequests, SqlTicket, stored
from commit_coord.locks.sql.store import SqlStep, id_list
from commit_coord.model import JournalEntry, LockScope

_AT_ONCE = 100
"""Maximum number of expired requests that one heartbeat removes, so that the next heartbeat is not late."""


class SqlLeases(LeaseService[SqlTicket]):
    """Keeps requests in the database.

    Args:
        requests: The requests in the database.
        client: The name of this client.
        settings: Times.
        clock: The clock.
    """

    def __init__(self, requests: SqlRequests, client: str, settings: LockSettings, clock: Clock) -> None:
        self.requests = requests
        self._client = client
        self.settings = settings
        self._clock = clock
        self._cleaned_at = clock.now()

    def renewed(self, tickets: Sequence[SqlTicket], *, thorough: bool) -> Collection[SqlTicket]:
        """See :meth:`LeaseService.renewed`."""
        ids = id_list([ticket.request.request_id for ticket in tickets])
        (rows,) = self.requests.run([(lease_sql.RENEW, {"ids": ids, "clock": self.requests.store.clock_name})])
        known = {row[0] for row in rows}
        return [ticket for ticket in tickets if ticket.request.request_id in known]

    def chores(self) -> float | None:
        """Remove expired requests of any client: one that blocks nobody would be listed until a ``reap``."""
        if self._clock.now() - self._cleaned_at >= self.lease_seconds / 2:
            self._cleaned_at = self._clock.now()
            requests = self.requests
            with suppress(LockServiceUnavailable):  # The next heartbeat tries again.
                ids = id_list([requests.scope(one) for one in LockScope])
                values = {"ids": ids, "clock": requests.store.clock_name, "limit": _AT_ONCE}
                for scope, request_id, place in requests.ask(lease_sql.EXPIRED, values):
                    requests.remove(LockScope(scope.rpartition(":")[2]), request_id, place, forced=False)
        return None

    def remove(self, ticket: SqlTicket) -> None:
        """See :meth:`LeaseService.remove`."""
        request, requests = ticket.request, self.requests
        if ticket.place is None:
            found = requests.ask(lease_sql.FIND, {"request_id": request.request_id, "client": self._client})
            for (place,) in found:
                self.remove(SqlTicket(request=request, place=place))
            return
        named = [(stored(resource), mode.letter) for resource, mode in request.locks]
        done, returned = ticket.settled
        requests.remove(
            request.scope,
            request.request_id,
            ticket.place,
            forced=True,
            # If a crash of the server undid the removal of an explicit request, it would stay: it never expires.
            durable=request.explicit,
            named=named,
            waking=_waking(done),
            note_steps=self._note_steps(ticket),
            settle_steps=[*self._outcomes(done, request.request_id, ticket.place), *_returned(returned, ticket.place)],
            lock_first=[request.request_id, *(entry.key for entry in done)] if done else [],
        )

    def disconnect(self) -> None:
        """See :meth:`LeaseService.disconnect`."""
        self.requests.store.close()

    def _note_steps(self, ticket: SqlTicket) -> list[SqlStep]:
        """Return the statement that stores the note of *ticket* for the next holder, or deletes the note."""
        if ticket.next_note is None or ticket.request.table is None:
            return []
        own = {
            "request_id": ticket.request.request_id,
            "place": ticket.place,
            "queue": self.requests.queue(ticket.request),
        }
        return [
            (lease_sql.LEAVE_NOTE, {**own, "note": ticket.next_note})
            if ticket.next_note
            else (lease_sql.DELETE_NOTE, own)
        ]

    def _outcomes(self, done: Sequence[JournalEntry], request_id: str, place: int) -> list[SqlStep]:
        """Return the statements that remember *done* and end the requests in it, if the holder's request still exists.

        The holder's request is *request_id* at *place*.
        """
        if not done:
            return []
        ids = {"ids": id_list([entry.key for entry in done]), "request_id": request_id, "place": place}
        lifetime_ms = ANSWER_LEASES * self.settings.lease_ms
        return [
            *((lease_sql.REMEMBER, remembered(entry, lifetime_ms)) for entry in done),
            (lease_sql.END_REQUESTS, ids),
            (lease_sql.END_LOCKS, ids),
            (lease_sql.END_OFFERS, ids),
            (lease_sql.FORGET, {}),
        ]


def _waking(done: Sequence[JournalEntry]) -> list[SqlStep]:
    return [(lease_sql.WAKE_OWNERS, {"ids": id_list([entry.key for entry in done])})] if done else []


def _returned(request_ids: Sequence[str], place: int) -> list[SqlStep]:
    return [(lease_sql.RETURN_OFFERS, {"ids": id_list(request_ids), "place": place})] if request_ids else []
