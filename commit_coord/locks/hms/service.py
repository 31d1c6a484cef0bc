"""Extends and releases leases in a metastore.

Liveness
    Servers do not release the locks of dead clients by themselves. So each of our requests states its lease time, and
    a waiter releases a lock that had no new heartbeat for that long by the waiter's clock, or whose process has ended
    on the waiter's host:

    1. The holder stalls; its last heartbeat was sent at 0 and received at 1.
    2. Its own clock says LOST at 0 + lease.
    3. A waiter saw that heartbeat first at 2 or later, and releases the lock at 2 + lease or later.

    While the metastore can't be reached, no heartbeat arrives: so after a failure a waiter counts again from its next
    look.

    Waiters do not release locks of LOCK statements or of other programs: a person must do that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from commit_coord.clock import Clock
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import NoSuchLock
from commit_coord.locks.base import BRIEFLY, LockSettings
from commit_coord.locks.hms.calls import LockCalls
from commit_coord.locks.hms.heartbeat_log import HeartbeatLog
from commit_coord.locks.hms.requests import HmsTicket, translated
from commit_coord.locks.keeping import LeaseService, Tickets
from commit_coord.model import LockScope

_ANSWERED = 2 / 3
"""The part of the lease time within which the metastore's servers have to answer a heartbeat, all of them together."""

_REMEMBERED = 10
"""For so many lease times a client remembers the heartbeats of others: its waits may be short, with pauses between."""

_LOOK_FOR_ORPHANS = 0.2
"""Seconds between two looks for second places."""


class HmsLeases(LeaseService[HmsTicket]):
    """Keeps locks in a metastore.

    Args:
        metastore: Where they are.
        tickets: The requests of this client.
        calls: Sends lock requests, and finds those whose reply was lost.
        settings: Times.
        clock: The clock.
    """

    def __init__(
        self,
        metastore: MetastoreClient,
        tickets: Tickets[HmsTicket],
        calls: LockCalls,
        settings: LockSettings,
        clock: Clock,
    ) -> None:
        self.metastore = metastore
        self._tickets = tickets
        self._calls = calls
        self.settings = settings
        self._clock = clock
        self.heartbeats: HeartbeatLog = {}
        """The heartbeats of other clients that waiters of this client have seen."""
        self.usual_hold = 0.0
        """Seconds for which this client's latches are held, about."""

    def renewed(self, tickets: Sequence[HmsTicket], *, thorough: bool) -> Collection[HmsTicket]:
        """See :meth:`LeaseService.renewed`."""
        return [ticket for ticket in tickets if self._is_renewed(ticket)]

    def _is_renewed(self, ticket: HmsTicket) -> bool:
        try:
            # One server that hangs must not cost the lease: there is time left to ask the next.
            with translated(ticket.request), self.metastore.within(self.lease_seconds * _ANSWERED):
                self.metastore.heartbeat(ticket.lock_id)
        except NoSuchLock:
            return False
        return not self.was_silent(ticket)

    def was_silent(self, ticket: HmsTicket) -> bool:
        """Return whether the service may have had no heartbeat of *ticket* for a lease time, before its last answer.

        Then this client can't rely on the place any more, whatever the answer was:

        1. We stall.   2. A waiter looks, and finds our heartbeat a lease time old.   3. We ask, and get an answer.
        4. The waiter releases our lock.
        """
        return not ticket.request.explicit and self._clock.now() - ticket.last_confirmed_at >= self.lease_seconds

    def keeps_lost(self, ticket: HmsTicket) -> bool:
        """Return True: nobody needs the lock, and it would stay in the metastore until a waiter comes."""
        return True

    def chores(self) -> float | None:
        """Release second places (:mod:`~commit_coord.locks.hms.calls`), and forget old heartbeats."""
        oldest = self._clock.now() - _REMEMBERED * self.lease_seconds
        for lock_id in [lock_id for lock_id, (_, seen) in list(self.heartbeats.items()) if seen < oldest]:
            self.heartbeats.pop(lock_id, None)
        self._calls.release_orphaned()
        return _LOOK_FOR_ORPHANS if self._calls.orphaned_lock_requests else None

    def remove(self, ticket: HmsTicket) -> None:
        """See :meth:`LeaseService.remove`."""
        with translated(ticket.request), self.metastore.within(BRIEFLY):
            self.metastore.unlock(ticket.lock_id)
        if ticket.lease is not None and ticket.request.scope is LockScope.COMMIT:
            self.usual_hold += (self._clock.now() - ticket.granted - self.usual_hold) / 4
        for other in list(self._tickets.values()):
            if other.blocked_by == ticket.lock_id:
                other.turn.set()

    def disconnect(self) -> None:
        """See :meth:`LeaseService.disconnect`."""
        self.metastore.close()
