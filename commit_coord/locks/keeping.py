"""The client's side of leases that need heartbeats, for every service with such leases.

Theory of operation
    A *ticket* is a request that is in the service, or may be, as far as this client knows. If it is granted, it gets a
    lease. ``protocol/lease`` decides what the owner of the lease may believe; this module records the state, and calls
    the listeners. One heartbeat renews all tickets of a client together, and repeats releases that failed.

    A ticket is forgotten only when the service has forgotten it. So an interrupt at any line of a release leaves a
    ticket whose lease is RELEASED or was dropped. The heartbeat finds it and releases it again. What a release has to
    report is in the ticket, which outlives the lease.

Forks
    A forked child neither holds, extends nor releases the leases of its parent: it notices that its process id is
    another one, and does nothing.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from commit_coord.clock import Clock
from commit_coord.errors import LockError, LockLost, LockServiceUnavailable
from commit_coord.events import Events, LockLeaseLost, LockReleaseFailed
from commit_coord.locks.base import BRIEFLY, Interrupted, LockSettings
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.threads import HeartbeatMaker
from commit_coord.model import Generation, JournalEntry, LeaseState, LockRequest, Offer
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.lease import LeaseEvent, next_state

logger = logging.getLogger(__name__)

T = TypeVar("T")
TicketT = TypeVar("TicketT", bound="Ticket")

_RETRY = Backoff(initial_ms=10, maximum_ms=500)
"""Waits between tries after a broken connection or a busy service: short compared with a commit, and bounded."""

THREAD = "commit-coord-heartbeat"

_SOON = 0.2
"""Seconds until the heartbeat tries again what failed."""


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """A request that is in the service, or may be, as far as this client knows."""

    request: LockRequest
    last_confirmed_at: float = 0.0
    """When the last confirmed renewal was sent, on ``Clock.now``."""
    holder: weakref.ref[HeartbeatLease] | None = None
    """The lease. The reference is weak, so that the heartbeat notices a lease that was dropped without a release."""
    kept: HeartbeatLease | None = None
    """The lease of a LOCK statement. The reference is strong, since this lease does not end with its holder."""
    was_contended: bool = False
    """Whether another request blocked this one, or may have blocked it."""
    handover_note: str | None = None
    """The note of the last latch holder."""
    next_note: str | None = None
    """The note for the next latch holder."""
    settled: tuple[Sequence[JournalEntry], Sequence[str]] = (), ()
    """The outcomes that the release reports to the owners of offers."""

    @property
    def lease(self) -> HeartbeatLease | None:
        """The lease; None before the grant, and after its holder has dropped it."""
        return self.kept or (self.holder() if self.holder is not None else None)

    @lease.setter
    def lease(self, lease: HeartbeatLease) -> None:
        self.holder = weakref.ref(lease)
        if self.request.explicit:
            self.kept = lease

    @property
    def is_dropped(self) -> bool:
        """Whether it was granted, and nobody can release it any more."""
        return self.holder is not None and self.lease is None


class Tickets(dict[str, TicketT]):
    """The tickets of one client by request id.

    Args:
        client: The name by which the service tells this client's requests from others'.
    """

    def __init__(self, client: str) -> None:
        super().__init__()
        self.client = client
        self.unreleased: dict[TicketT, None] = {}
        """Leases that are to be released and could not be released yet, oldest first."""


class Offers(Protocol):
    """The offers in a service."""

    def take(self, ticket: Any, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`."""
        ...

    def retract(self, request: LockRequest) -> bool:
        """See :meth:`HandoverLease.retract`."""
        ...


class HeartbeatLease(HandoverLease):
    """A lease that a keeper's heartbeat extends."""

    def __init__(self, keeper: Keeper[Any], ticket: Ticket, generation: Generation) -> None:
        super().__init__(ticket.request, generation)
        self.keeper = keeper
        self.ticket = ticket

    @property
    def state(self) -> LeaseState:
        """See :attr:`Lease.state`; by our own clock at this moment, whether or not a heartbeat runs."""
        self.keeper.observe(self.ticket, LeaseEvent.TICK)
        return self._state

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """See :meth:`Lease.ensure_active`. Asking the service extends the lease too."""
        self.keeper.ensure_active(self.ticket, max_age_ms)

    def release(self) -> None:
        """See :meth:`Lease.release`."""
        self.keeper.release(self.ticket)


class CarryingLease(HeartbeatLease):
    """A lease whose holder may take the offers of others."""

    def __init__(self, keeper: Keeper[Any], offers: Offers, ticket: Ticket, generation: Generation) -> None:
        super().__init__(keeper, ticket, generation)
        self._offers = offers
        # Nobody could take the offer of a request that did not wait.
        self._retracted = None if ticket.was_contended else True

    @property
    def handover_note(self) -> str | None:
        """See :attr:`HandoverLease.handover_note`."""
        return self.ticket.handover_note

    def set_handover_note(self, note: str) -> None:
        """See :meth:`HandoverLease.set_handover_note`."""
        self.ticket.next_note = note

    @property
    def was_contended(self) -> bool:
        """See :attr:`HandoverLease.was_contended`."""
        return self.ticket.was_contended

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`."""
        return self._offers.take(self.ticket, limit)

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`HandoverLease.settle`."""
        self.ticket.settled = done, returned

    def retract(self) -> bool:
        """See :meth:`HandoverLease.retract`."""
        if self._retracted is None:
            self._retracted = self._offers.retract(self.request)
        return self._retracted


class LeaseService(Protocol[TicketT]):
    """A service that keeps leases as long as it receives heartbeats, from the point of view of one client."""

    settings: LockSettings

    @property
    def lease_seconds(self) -> float:
        """How long the service keeps a lease after a renewal."""
        return self.settings.lease_ms / 1000

    @property
    def interval(self) -> float:
        """Seconds between two renewals.

        Half of the configured interval: a lease that was acquired after one beat may not be due at the next beat, and
        must not be late at the beat after that.
        """
        return self.settings.heartbeat_interval_ms / 2000

    def renewed(self, tickets: Sequence[TicketT], *, thorough: bool) -> Collection[TicketT]:
        """Extend *tickets* by another lease time; return those that the service still has.

        Args:
            tickets: Of this client; granted, or waiting.
            thorough: True if a caller relies on the answer now; False in a regular heartbeat.

        Raises:
            LockServiceUnavailable: The service did not answer.
        """
        ...

    def remove(self, ticket: TicketT) -> None:
        """Remove the request of *ticket* from the service, whether it waits or is granted. May be repeated.

        Raises:
            LockError: The request may still be there.
        """
        ...

    def disconnect(self) -> None:
        """Close every connection; nothing is held any more."""
        return

    def needs_heartbeat(self, ticket: TicketT) -> bool:
        """Return whether the heartbeat renews *ticket*: a LOCK statement's only while it waits."""
        return ticket.kept is None

    def counted_from(self, ticket: TicketT) -> float:
        """Return a time of ``Clock.now``: the service counts the lease time from then, or from later."""
        return ticket.last_confirmed_at

    def denial(self, ticket: TicketT) -> str | None:
        """Return the reason if this client knows, without asking, that *ticket* is gone; else None."""
        return None

    def silence(self) -> str | None:
        """Return the reason if this client knows that the service can't hear it; else None."""
        return None

    def is_closed(self) -> bool:
        """Return whether the client was closed, and nothing has opened it since: a heartbeat does not."""
        return False

    def keeps_lost(self, ticket: TicketT) -> bool:
        """Return whether *ticket*, whose lease was found LOST, may stay in the service until we remove it."""
        return False

    def chores(self) -> float | None:
        """Do the other work of a heartbeat; return the seconds until more is due, None if nothing is left."""
        return None


class Retries:
    """Repeats interrupted calls.

    Args:
        clock: Time and random numbers.
        lease_seconds: Returns the lease time. After a lease time without an answer, everything that this client has
            in the service has expired.
    """

    def __init__(self, clock: Clock, lease_seconds: Callable[[], float]) -> None:
        self._clock, self._lease_seconds = clock, lease_seconds

    def until(self, deadline: float, attempt: Callable[[], T]) -> T:
        """Return *attempt*'s result. Repeat it while it is interrupted, until *deadline*, but only for a lease time."""
        started, tries = self._clock.now(), 0
        until = min(deadline, started + max(BRIEFLY, self._lease_seconds()))
        while True:
            try:
                return attempt()
            except Interrupted:
                if self._clock.now() >= until:
                    raise
            self._clock.sleep(next_wait(_RETRY, tries, self._clock.random()))
            tries += 1

    def briefly(self, attempt: Callable[[], T]) -> T:
        """Return *attempt*'s result; try again for a short time."""
        return self.until(self._clock.now() + BRIEFLY, attempt)


class Keeper(Generic[TicketT]):
    """Keeps the leases of one client.

    Args:
        service: Keeps them as long as it receives heartbeats.
        tickets: The requests of this client.
        retries: Repeats interrupted calls.
        heartbeat: Makes the heartbeat.
        emitter: Emits the events of leases that were dropped.
        events: Receives the leases that are lost, and the releases that failed.
        clock: The clock.
    """

    def __init__(
        self,
        service: LeaseService[TicketT],
        tickets: Tickets[TicketT],
        retries: Retries,
        heartbeat: HeartbeatMaker,
        emitter: LockEventEmitter,
        events: Events,
        clock: Clock,
    ) -> None:
        self.service = service
        self._tickets = tickets
        self._retries = retries
        self._emitter = emitter
        self._events = events
        self._clock = clock
        self._pid = os.getpid()
        # The service's interval, and not the configured one. Otherwise:
        # 1. The last lease is released; the heartbeat sleeps.   2. A lease is granted, and the heartbeat runs already.
        # 3. The session to which ZooKeeper agreed is shorter than that sleep: nobody extends the lease in time.
        self.heartbeat = heartbeat(self.beat, idle=lambda: service.interval, name=THREAD)

    # Hold.

    def observe(self, ticket: TicketT, event: LeaseEvent, reason: str = "") -> bool:
        """Change the state of *ticket*'s lease by the state table. If the lease is lost, forget *ticket* and emit that.

        Return False, and do nothing, in a forked child.
        """
        if self._pid != os.getpid():
            return False
        if (lease := ticket.lease) is not None:
            self._move(ticket, lease, event, reason)
        return True

    def _move(self, ticket: TicketT, lease: HeartbeatLease, event: LeaseEvent, reason: str) -> None:
        if (denial := self.service.denial(ticket)) is not None:
            event, reason = LeaseEvent.DENIED, denial
        state = next_state(
            lease._state,
            event,
            now=self._clock.now(),
            last_confirmed_at=self.service.counted_from(ticket),
            lease=None if ticket.request.explicit else self.service.lease_seconds,
        )
        if not lease._change(state, reason or "the lease ran out without a confirmation from the service"):
            return
        if state is LeaseState.LOST:
            if self.service.keeps_lost(ticket):
                self._tickets.unreleased[ticket] = None
                self.heartbeat.ensure_running()
            self._tickets.pop(ticket.request.request_id, None)
            self._events.emit(LockLeaseLost(request=str(ticket.request), reason=lease._reason))
        lease._tell(state)

    def ensure_active(self, ticket: TicketT, max_age_ms: int | None) -> None:
        """See :meth:`Lease.ensure_active`."""
        lease = ticket.lease
        assert lease is not None
        # 1. A process forks.   2. The parent releases, and another owner is granted.   3. The child asks: it has a copy
        # of the lease, and does not learn of the release. It must not renew the lease either: it is the parent's.
        if not self.observe(ticket, LeaseEvent.TICK):
            raise LockLost("the lease belongs to the process that acquired it", locks=ticket.request)
        lease._raise_if_over()
        limit = self.service.lease_seconds / 3 if max_age_ms is None else max_age_ms / 1000
        if not ticket.request.explicit and self._clock.now() - ticket.last_confirmed_at < limit:
            return
        try:
            self._renew([ticket], thorough=True)
        except LockServiceUnavailable:
            lease._raise_if_over()
            raise
        lease._raise_if_over()

    def _renew(self, tickets: Sequence[TicketT], *, thorough: bool) -> None:
        """Extend *tickets*, and record for each one what the service answered."""
        sent = self._clock.now()
        try:
            known = self.service.renewed(tickets, thorough=thorough)
        except LockServiceUnavailable as error:
            for ticket in tickets:
                self.observe(ticket, LeaseEvent.MISSED, f"the service did not answer: {error}")
            raise
        for ticket in tickets:
            if ticket in known:
                ticket.last_confirmed_at = max(ticket.last_confirmed_at, sent)
                self.observe(ticket, LeaseEvent.CONFIRMED)
            else:
                self.observe(ticket, LeaseEvent.DENIED, "the lease expired or was released by force")

    def beat(self) -> float | None:
        """Do what is due: releases that failed, renewals, what time alone decides, and the service's chores."""
        if (silence := self.service.silence()) is not None:
            for ticket in filter(self.service.needs_heartbeat, list(self._tickets.values())):
                self.observe(ticket, LeaseEvent.MISSED, silence)
        for ticket in list(self._tickets.values()):
            lease = ticket.lease
            # The lease has ended and its ticket is still here: the thread that ended it was interrupted.
            if ticket.is_dropped or (lease is not None and lease._state in (LeaseState.RELEASED, LeaseState.LOST)):
                self._tickets.unreleased[ticket] = None
                self._tickets.pop(ticket.request.request_id, None)
            if ticket.is_dropped:
                self._emitter.ended(ticket.request.request_id)
                logger.warning("a lease was dropped without a release; its locks are given back: %s", ticket.request)
        self._release_late()
        kept = [ticket for ticket in list(self._tickets.values()) if self.service.needs_heartbeat(ticket)]
        now, interval = self._clock.now(), self.service.interval
        due = [ticket for ticket in kept if now - ticket.last_confirmed_at >= interval * 0.9 or _is_suspect(ticket)]
        if due:
            try:
                self._renew(due, thorough=False)
            except LockServiceUnavailable as error:
                logger.warning("a heartbeat failed: %s", error)
        for ticket in kept:
            self.observe(ticket, LeaseEvent.TICK)
        delays = [_SOON if self._tickets.unreleased else None, self.service.chores(), interval if kept else None]
        if self.service.is_closed():
            return None  # The next call opens it, and this is called again.
        return min((delay for delay in delays if delay is not None), default=None)

    def _release_late(self) -> None:
        for ticket in list(self._tickets.unreleased):
            try:
                self.service.remove(ticket)
            except LockServiceUnavailable:
                break  # The next beat tries again.
            self._tickets.unreleased.pop(ticket, None)

    # Give back.

    def release(self, ticket: TicketT) -> None:
        """See :meth:`Lease.release`."""
        if self._pid != os.getpid():
            return  # A forked child holds nothing of its parent's.
        assert ticket.lease is not None
        ticket.lease._transition(LeaseState.RELEASED)
        if self._tickets.get(ticket.request.request_id) is ticket:
            self.give_back(ticket)
        # Else it was released before, or LOST: then the locks may have another owner by now.

    def give_back(self, ticket: TicketT) -> None:
        """Remove *ticket*, now or in the background, and forget it."""
        try:
            self._retries.briefly(lambda: self.service.remove(ticket))
        except LockError as error:
            # Nothing extends it any more, so it also expires by itself.
            self._tickets.unreleased[ticket] = None
            self._events.emit(LockReleaseFailed(request=str(ticket.request), reason=str(error)))
            self.heartbeat.ensure_running(now=True)
        if self._tickets.get(ticket.request.request_id) is ticket:
            self._tickets.pop(ticket.request.request_id, None)

    def leave(self, request: LockRequest, unknown: TicketT) -> None:
        """Remove *request* from the service; *unknown* is the ticket to use if this client has none."""
        if any(ticket.request is request for ticket in list(self._tickets.unreleased)):
            return  # The heartbeat repeats the removal.
        self.give_back(self._tickets.get(request.request_id) or unknown)

    def detach(self, ticket: TicketT) -> None:
        """Stop managing a granted request: from now on this client neither extends nor releases it."""
        # First forget the ticket: the heartbeat treats a ticket with a RELEASED lease as an interrupted release.
        self._tickets.pop(ticket.request.request_id, None)
        if ticket.lease is not None:
            ticket.lease._transition(LeaseState.RELEASED)

    def close(self, end_waits: Callable[[], None]) -> None:
        """See :meth:`Keeping.close`."""
        with ExitStack() as ending:
            # Also after an interrupt. Otherwise:
            # 1. A release fails, and is left to the heartbeat.   2. The client is closed, and the close is interrupted.
            # 3. The heartbeat has ended, but the connection stays open, and keeps the locks of a session alive.
            ending.callback(self.service.disconnect)
            ending.callback(self.heartbeat.stop)
            end_waits()
            for ticket in list(self._tickets.values()):
                lease = ticket.lease
                if lease is not None and not ticket.request.explicit:
                    lease.release()
                elif ticket.is_dropped:
                    self._emitter.ended(ticket.request.request_id)
                    self.give_back(ticket)
            # Once more: a service that was away may be back, and nobody tries again after this.
            self._release_late()


def _is_suspect(ticket: Ticket) -> bool:
    return ticket.lease is not None and ticket.lease._state is LeaseState.SUSPECT
