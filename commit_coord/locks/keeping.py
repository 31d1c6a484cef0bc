"""Leases that a service keeps as long as it hears of them: the client's side, for every such manager.

Theory of operation
    A *ticket* is a request that is in the service, or may be, as far as this client knows. Its grant makes a lease
    of it. ``protocol/lease`` decides what the lease's owner may believe; here that is noted, and told. One heartbeat
    renews all tickets of a manager together, and does again what failed.

    A ticket is forgotten only when the service has forgotten it. So an interrupt at any line of a release leaves a
    ticket whose lease is RELEASED: the heartbeat finds it, and to release again does the rest too.

Forks
    A forked child neither extends nor releases what its parent holds: it finds another pid and starts over.
"""

from __future__ import annotations

import logging
import os
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from commit_coord.clock import Clock
from commit_coord.errors import LockError, LockServiceUnavailable
from commit_coord.events import Events, LockLeaseLost, LockReleaseFailed
from commit_coord.locks.base import BRIEFLY, Interrupted, Lease, LockSettings
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.queueing import QueueingLockManager
from commit_coord.model import Generation, JournalEntry, LeaseState, LockRequest, Offer
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.lease import LeaseEvent, next_state

logger = logging.getLogger(__name__)

T = TypeVar("T")
TicketT = TypeVar("TicketT", bound="Ticket")

_RETRY = Backoff(initial_ms=10, maximum_ms=500)
"""Between tries after a cut or a busy service: short beside a commit, and bounded while a server restarts."""

THREAD = "commit-coord-heartbeat"

_SOON = 0.2
"""Seconds until the heartbeat tries again what failed."""


@dataclass(slots=True, eq=False, kw_only=True)
class Ticket:
    """A request that is in the service, or may be, as far as this client knows."""

    request: LockRequest
    word: float = 0.0
    """When the last confirmed renewal was sent, on ``Clock.now``."""
    holder: weakref.ref[KeptLease] | None = None
    """The lease that it was granted as. Weak: what its holder has let go of without a release is found out so."""
    kept: KeptLease | None = None
    """The lease again, where it does not end with its holder: of a LOCK statement, or about to be released."""
    waited: bool = False
    """Whether somebody was in the way, or may have been."""
    note: str | None = None
    """What the last holder of the latch left."""
    left: str | None = None
    """What is to be left for the next one."""

    @property
    def lease(self) -> KeptLease | None:
        """The lease, None before the grant and when nobody has it any more."""
        return self.kept or (self.holder() if self.holder is not None else None)

    @lease.setter
    def lease(self, lease: KeptLease) -> None:
        self.holder = weakref.ref(lease)
        if self.request.explicit:
            self.kept = lease

    @property
    def is_dropped(self) -> bool:
        """Whether it was granted, and nobody can release it any more."""
        return self.holder is not None and self.lease is None


class KeptLease(Lease):
    """A claim that the manager's heartbeat keeps."""

    def __init__(self, manager: KeepingLockManager[Any], ticket: Ticket, generation: Generation) -> None:
        super().__init__(ticket.request, generation)
        self._manager = manager
        self._ticket = ticket

    @property
    def state(self) -> LeaseState:
        """See :attr:`Lease.state`; by our own clock at this moment, whether or not a heartbeat runs."""
        self._manager._observe(self._ticket, LeaseEvent.TICK)
        return self._state

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """See :meth:`Lease.ensure_active`. Asking the service extends the lease too."""
        self._manager._ensure_active(self._ticket, max_age_ms)

    def release(self) -> None:
        """See :meth:`Lease.release`."""
        self._ticket.kept = self
        self._manager._release(self._ticket)


class CarryingLease(KeptLease):
    """A claim whose holder may carry what others offer."""

    def __init__(self, manager: KeepingLockManager[Any], ticket: Ticket, generation: Generation) -> None:
        super().__init__(manager, ticket, generation)
        self.settled: tuple[Sequence[JournalEntry], Sequence[str]] = (), ()
        """What the release tells the owners of offers."""
        # Whoever did not wait was nobody's to take.
        self._retracted = None if ticket.waited else True

    @property
    def note(self) -> str | None:
        """See :attr:`Lease.note`."""
        return self._ticket.note

    def leave(self, note: str) -> None:
        """See :meth:`Lease.leave`."""
        self._ticket.left = note

    @property
    def waited(self) -> bool:
        """See :attr:`Lease.waited`."""
        return self._ticket.waited

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`Lease.take`."""
        return self._manager._take(self._ticket, limit)

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`Lease.settle`."""
        self._ticket.kept = self
        self.settled = done, returned

    def retract(self) -> bool:
        """See :meth:`Lease.retract`."""
        if self._retracted is None:
            self._retracted = self._manager._retract(self.request)
        return self._retracted


class KeepingLockManager(QueueingLockManager, Generic[TicketT]):
    """The common part of lock managers whose service wants to hear of a lease."""

    def __init__(self, settings: LockSettings, clock: Clock, events: Events, host: Host = SYSTEM_HOST) -> None:
        super().__init__(settings, clock, events, host)
        self.heartbeat = self._new_heartbeat(idle=settings.heartbeat_interval_ms / 2000)

    def _new_heartbeat(self, *, idle: float) -> Heartbeat:
        return Heartbeat(self._beat, idle=idle, name=THREAD)

    def _start_over(self) -> None:
        """Know of no leases either."""
        super()._start_over()
        self._client = self._host.new_id().hex
        self._tickets: dict[str, TicketT] = {}
        self._unreleased: dict[TicketT, None] = {}
        """What is to be given back and could not be yet, in the order in which it came."""

    def _here(self) -> None:
        if self._pid != os.getpid():
            self._start_over()

    @property
    def _interval(self) -> float:
        # Half of the interval that is promised between two renewals: what was acquired right after one beat
        # is not due at the next, and must not be late at the one after that.
        return self.settings.heartbeat_interval_ms / 2000

    @property
    def _lease_seconds(self) -> float:
        return self.settings.lease_ms / 1000

    # What a manager supplies.

    @abstractmethod
    def _renewed(self, tickets: Sequence[TicketT], *, thorough: bool) -> Collection[TicketT]:
        """Have the service keep *tickets* for another lease; return those that it knows.

        Args:
            tickets: Of this client; granted, or waiting.
            thorough: Whether somebody relies on the answer now; else it is one heartbeat of many.

        Raises:
            LockServiceUnavailable: It did not answer.
        """

    @abstractmethod
    def _remove_ticket(self, ticket: TicketT) -> None:
        """Take *ticket* out of the service, whatever it has become there. May be repeated.

        Raises:
            LockError: It may be there still.
        """

    @abstractmethod
    def _disconnect(self) -> None:
        """Close every connection; nothing is held any more."""

    def _take(self, ticket: TicketT, limit: int) -> Sequence[Offer]:
        """See :meth:`Lease.take`."""
        return ()

    def _beats_for(self, ticket: TicketT) -> bool:
        """Return whether the heartbeat renews *ticket*."""
        return not ticket.request.explicit

    def _counted_from(self, ticket: TicketT) -> float:
        """Return a moment, on ``Clock.now``, from which or later than which the service counts the lease."""
        return ticket.word

    def _lost(self, ticket: TicketT) -> None:
        """Do what else there is to do when a lease was found LOST."""

    def _chores(self) -> float | None:
        """Do what else a beat has to do; return the seconds until more is due, None when nothing is left."""
        return None

    # Hold.

    def _observe(self, ticket: TicketT, event: LeaseEvent, reason: str = "") -> None:
        """Move the lease of *ticket* by the state table; forget and announce one that is lost."""
        lease = ticket.lease
        if lease is None or self._pid != os.getpid():
            return
        state = next_state(
            lease._state,
            event,
            now=self._clock.now(),
            word=self._counted_from(ticket),
            lease=None if ticket.request.explicit else self._lease_seconds,
        )
        if lease._transition(state, reason or "the lease ran out without a word from the service") and (
            state is LeaseState.LOST
        ):
            self._tickets.pop(ticket.request.request_id, None)
            self._lost(ticket)
            self._events.emit(LockLeaseLost(request=str(ticket.request), reason=lease._reason))

    def _ensure_active(self, ticket: TicketT, max_age_ms: int | None) -> None:
        lease = ticket.lease
        assert lease is not None
        self._observe(ticket, LeaseEvent.TICK)
        lease._raise_if_over()
        limit = self._lease_seconds / 3 if max_age_ms is None else max_age_ms / 1000
        if not ticket.request.explicit and self._clock.now() - ticket.word < limit:
            return
        try:
            self._renew([ticket], thorough=True)
        except LockServiceUnavailable:
            lease._raise_if_over()
            raise
        lease._raise_if_over()

    def _renew(self, tickets: Sequence[TicketT], *, thorough: bool) -> None:
        """Extend *tickets* and note for each what the service said."""
        sent = self._clock.now()
        try:
            known = self._renewed(tickets, thorough=thorough)
        except LockServiceUnavailable as error:
            for ticket in tickets:
                self._observe(ticket, LeaseEvent.MISSED, f"the service did not answer: {error}")
            raise
        for ticket in tickets:
            if ticket in known:
                ticket.word = max(ticket.word, sent)
                self._observe(ticket, LeaseEvent.CONFIRMED)
            else:
                self._observe(ticket, LeaseEvent.DENIED, "it expired or was freed by force")

    def _beat(self) -> float | None:
        """Do what is due: releases that failed, renewals, what time alone decides, and the manager's chores."""
        self._here()
        for ticket in list(self._tickets.values()):
            lease = ticket.lease
            if ticket.is_dropped:
                logger.warning("a lease was let go of without a release; its locks are given back: %s", ticket.request)
                self._telling.ended(ticket.request.request_id)
            if ticket.is_dropped or (lease is not None and lease._state is LeaseState.RELEASED):
                self._unreleased[ticket] = None
                self._tickets.pop(ticket.request.request_id, None)
        self._release_late()
        kept = [ticket for ticket in list(self._tickets.values()) if self._beats_for(ticket)]
        now = self._clock.now()
        due = [ticket for ticket in kept if now - ticket.word >= self._interval * 0.9 or _is_suspect(ticket)]
        if due:
            try:
                self._renew(due, thorough=False)
            except LockServiceUnavailable as error:
                logger.warning("a heartbeat failed: %s", error)
        for ticket in kept:
            self._observe(ticket, LeaseEvent.TICK)
        delays = [self._chores(), _SOON if self._unreleased else None, self._interval if kept else None]
        return min((delay for delay in delays if delay is not None), default=None)

    def _release_late(self) -> None:
        for ticket in list(self._unreleased):
            try:
                self._remove_ticket(ticket)
            except LockServiceUnavailable:
                break  # The next beat tries again.
            self._unreleased.pop(ticket, None)

    # Give back.

    def _release(self, ticket: TicketT) -> None:
        if self._pid != os.getpid():
            return  # A forked child holds nothing of its parent's.
        assert ticket.lease is not None
        ticket.lease._transition(LeaseState.RELEASED)
        if self._tickets.get(ticket.request.request_id) is ticket:
            self._give_back(ticket)
        # Else it was released before, or LOST: then the locks may be somebody else's by now.

    def _give_back(self, ticket: TicketT) -> None:
        """Remove *ticket*, now or in the background, and forget it."""
        try:
            self._persist(lambda: self._remove_ticket(ticket), self._clock.now() + BRIEFLY)
        except LockError as error:
            # Nothing extends it any more, so it also expires by itself.
            self._unreleased[ticket] = None
            self._events.emit(LockReleaseFailed(request=str(ticket.request), reason=str(error)))
            self.heartbeat.ensure_running(now=True)
        if self._tickets.get(ticket.request.request_id) is ticket:
            self._tickets.pop(ticket.request.request_id, None)

    def close(self) -> None:
        """Release every lease of this client that is not explicit, and close every connection."""
        self._here()
        with ExitStack() as ending:
            # Interrupted or not:
            # 1. A release fails, and is left to the heartbeat.   2. The client is closed, and interrupted.
            # 3. The heartbeat has ended, and the connection lives on, and with it what it keeps.
            ending.callback(self._disconnect)
            ending.callback(self.heartbeat.stop)
            self._end_waits()
            for ticket in list(self._tickets.values()):
                lease = ticket.lease
                if lease is not None and not ticket.request.explicit:
                    lease.release()
                elif ticket.is_dropped:
                    self._telling.ended(ticket.request.request_id)
                    self._give_back(ticket)
            # Once more: whoever was away may be back, and nobody tries again after this.
            self._release_late()

    def _persist(self, attempt: Callable[[], T], deadline: float) -> T:
        """Return *attempt*'s result; try again while it is interrupted, at most until *deadline* and for one lease.

        After a lease without an answer everything that we have there has expired.
        """
        started, tries = self._clock.now(), 0
        until = min(deadline, started + max(BRIEFLY, self._lease_seconds))
        while True:
            try:
                return attempt()
            except Interrupted:
                if self._clock.now() >= until:
                    raise
            self._clock.sleep(next_wait(_RETRY, tries, self._clock.random()))
            tries += 1


def _is_suspect(ticket: Ticket) -> bool:
    return ticket.lease is not None and ticket.lease._state is LeaseState.SUSPECT
