"""The queues of a metastore.

Theory of operation
    A request is one ``lock`` call with many components; the server gives it a place and says whether it is granted.
    A waiter asks with ``check_lock``; the server wakes nobody. ``names`` says what is locked for what.

    Servers grant in the order of arrival (up to 2.3 a reader passes a writer that waits, and steps back when it finds
    out), so a request that sleeps at the head of the queue stops everybody behind it. Therefore a waiter estimates from
    its own holds how long the requests before it will take, and sleeps for half of that; or for a quarter of the time
    since the queue moved last, if that is longer. So the head of the queue asks often, later requests rarely, and a
    lock that is held for hours costs little.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from commit_coord.clock import Clock
from commit_coord.errors import LockError, LockRefused, LockServiceUnavailable
from commit_coord.hms.connection import NoSuchLock
from commit_coord.locks.acquiring import Acquire, Carried, RemovedByForce
from commit_coord.locks.base import Interrupted, LockSettings
from commit_coord.locks.blockers import Blocker, Holder, holder_of
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.calls import LockCalls
from commit_coord.locks.hms.heartbeat_log import is_over
from commit_coord.locks.hms.offers import OthersOffers, OwnOffers, SeenOffers
from commit_coord.locks.hms.requests import (
    UNLISTED_BLOCKER,
    Guarded,
    HmsBlocker,
    HmsTicket,
    MetastoreLock,
    grouped,
    is_operation,
    translated,
)
from commit_coord.locks.hms.service import HmsLeases
from commit_coord.locks.hms.table import HmsLockTable
from commit_coord.locks.hms.turns import ThreadTurns
from commit_coord.locks.keeping import HeartbeatLease, Keeper, Retries, Tickets
from commit_coord.model import Generation, JournalEntry, LockMode, LockRequest, Offer
from commit_coord.process import Host
from commit_coord.protocol.backoff import Backoff, next_wait

logger = logging.getLogger(__name__)

_PATIENCE = 0.25
"""A waiter sleeps for this part of the time since the queue moved last, and asks again."""

_LOOK_AGAIN = 0.5
"""Seconds for which the head of the queue relies on a listing; it is cheaper to ask whether it is granted."""

_LATE = 1.5
"""How many times longer than usual a waiter waits to be carried, before it asks who is before it."""


class HmsLease(HeartbeatLease):
    """A lock in the metastore and, of a commit latch, this process's turn at it."""

    def __init__(
        self, keeper: Keeper[HmsTicket], ticket: HmsTicket, turns: ThreadTurns, own: OwnOffers, others: OthersOffers
    ) -> None:
        super().__init__(keeper, ticket, Generation(ticket.lock_id))
        self.ticket: HmsTicket = ticket
        self._turns, self._own, self._others = turns, own, others
        self._turn = turns.of(ticket.request)
        self._rounds: dict[str, int] | None = None
        """The requests of other processes whose offers it has taken; None before it looked for them."""
        self._settled: tuple[Sequence[JournalEntry], Sequence[str]] = (), ()

    @property
    def was_contended(self) -> bool | None:
        """See :attr:`HandoverLease.was_contended`; the threads of this process are asked at no cost."""
        if self.ticket.was_contended:
            return True
        return None if self._turns.is_awaited(self.request) else False

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`: first the offers of threads of this process."""
        if self._turn is None:
            return ()
        own = self._turn.take(limit)
        others = self._others.take(self.ticket, limit - len(own))
        self._rounds = {**(self._rounds or {}), **{one.offer.request_id: one.round for one in others}}
        return [*own, *(one.offer for one in others)]

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`HandoverLease.settle`."""
        assert self._turn is not None, "only a latch takes offers"
        self._turn.settle(done, returned)
        self._settled = done, returned

    def retract(self) -> bool:
        """See :meth:`HandoverLease.retract`."""
        return (self._turn is None or self._turn.retract()) and self._own.retract(self.request)

    def release(self) -> None:
        """See :meth:`Lease.release`."""
        # All of it, also after an interrupt. An ExitStack needs fewer lines, but it raises the interrupt again from a
        # frame that refers to it: that cycle keeps this lease, and so its heartbeat, until the garbage collector runs.
        try:
            self._report()
        finally:
            try:
                super().release()
            finally:
                try:
                    self._own.forget(self.request)
                finally:
                    try:
                        self._own.ended(self.request)
                    finally:
                        if self._turn is not None:
                            self._turn.release()

    def _report(self) -> None:
        """Tell the owners of the taken offers the outcome, if this lease is still there."""
        if (rounds := self._rounds) is None:
            return
        self._rounds = None
        done, returned = self._settled
        landed = {entry.key: entry for entry in done if entry.key in rounds}
        outcomes = {**landed, **dict.fromkeys(one for one in returned if one in rounds)}
        if outcomes:
            try:
                with self._others.briefly():
                    self.ensure_active(0)
            except LockError:
                return  # They look for their attempts in the table.
            self._others.report(self.request, rounds, outcomes)
        self._others.tell_next(self.ticket, landed)


class HmsQueue:
    """The queues of a metastore, as one client sees them.

    Args:
        tickets: The requests of this client.
        calls: Sends lock requests, and finds those whose reply was lost.
        turns: Where the threads of this process wait first.
        own: The offers of this client to other processes.
        others: The offers of other clients, which this one may take.
        leases: Keeps and releases leases in the metastore.
        keeper: Extends the leases, and releases them.
        table: Finds the holder of a lock.
        retries: Repeats interrupted calls.
        settings: Times.
        clock: Time and random numbers.
        host: Knows which processes have ended.
    """

    def __init__(
        self,
        tickets: Tickets[HmsTicket],
        calls: LockCalls,
        turns: ThreadTurns,
        own: OwnOffers,
        others: OthersOffers,
        leases: HmsLeases,
        keeper: Keeper[HmsTicket],
        table: HmsLockTable,
        retries: Retries,
        settings: LockSettings,
        clock: Clock,
        host: Host,
    ) -> None:
        self.tickets = tickets
        self.calls = calls
        self.leases = leases
        self._turns = turns
        self._own, self._others = own, others
        self._keeper = keeper
        self.table = table
        self._retries = retries
        self._settings = settings
        self._clock = clock
        self._host = host
        self._metastore = leases.metastore

    def knows(self, request_id: str) -> bool:
        """See :meth:`Queue.knows`."""
        return request_id in self.tickets

    def enter(self, acquire: Acquire) -> Blocker | None:
        """See :meth:`Queue.enter`."""
        self._turns.wait_for(acquire)
        return self._enter(acquire.request, acquire.deadline)

    def _enter(self, request: LockRequest, deadline: float) -> Blocker | None:
        self.calls.sending[request.request_id] = request
        ticket, acquired = self.calls.send(request, deadline)
        self.tickets[request.request_id] = ticket
        self.calls.sending.pop(request.request_id, None)
        self._keeper.heartbeat.ensure_running()
        if acquired:
            return self._step_back(ticket)
        ticket.was_contended = True
        # What a thread of this process has taken, and may still publish, is offered to nobody else.
        if self._turns.retract(request) and self._own.publish(request) and self._own.expected_wait(request) is not None:
            # In a crowd only a request that is not carried in time asks who is before it.
            now = self._clock.now()
            return replace(UNLISTED_BLOCKER, ahead=2, since=now, looked=now)
        return self._look(ticket, None) or self._ask(ticket, None, deadline)

    def _step_back(self, ticket: HmsTicket) -> HmsBlocker | None:
        """If a lock was granted before an older waiting request, release it and return that request, else None.

        Up to version 2.3, a reader passes a waiting writer. That starves writers, and it is not safe. Seen on 2.3.10:
        1. W waits for a reader, which leaves.   2. W asks; R enters, and does not wait for the waiting W.
        3. The server processes both requests at the same time, and grants both.
        The older request of the two is in the list when R looks, so it is enough that R steps back.
        """
        if LockMode.SHARED not in dict(ticket.request.locks).values():
            return None
        older = [one for one in self._blockers_of(ticket) if one.lock_id < ticket.lock_id]
        if not older:
            return None
        with translated(ticket.request):
            self._metastore.unlock(ticket.lock_id)
        ticket.stepped_back = True
        now = self._clock.now()
        return self._blocker(older[-1], older, None, now=now)

    def wait(self, acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
        """See :meth:`Queue.wait`."""
        request = acquire.request
        assert isinstance(blocker, HmsBlocker)
        ticket = self.tickets[request.request_id]
        now = self._clock.now()
        seen = first = self._looked_at_files(request, blocker)
        ask_at = min(until, now + self._pause(request, blocker, first, now))
        if blocker.expires is not None:
            ask_at = min(ask_at, max(blocker.expires, now + self._settings.check_min_wait_ms / 1000))
        tick, look_at = self._settings.poll_interval_ms / 1000, now + self._own.pause
        ended = moved = False
        while not ended and not moved and not ticket.turn.is_set() and (now := self._clock.now()) < ask_at:
            ticket.turn.wait(min(ask_at - now, tick, max(0.0, look_at - now)))
            if self._clock.now() >= look_at:
                seen = self._looked_at_files(request, blocker)
                look_at = self._clock.now() + self._own.pause
            moved = first.is_offered > seen.is_offered or first.is_next < seen.is_next
            ended = self._host.is_dead(blocker.owner.process)
            if acquire.is_closed:
                return blocker
        ticket.turn.clear()
        # A request far behind reads the list, which locks nothing in the metastore; one that may be next asks.
        if (blocker.ahead > 1 and not seen.is_next) or ended:
            found = self._look(ticket, blocker if blocker.request_id else None)
            if found is not None and found.ahead > 1:
                return found
            blocker = found or blocker
        return self._ask(ticket, blocker, until)

    def _looked_at_files(self, request: LockRequest, blocker: HmsBlocker) -> SeenOffers:
        """Return what *request* sees in the files of offers.

        Raises:
            Carried: A holder has published its offer; nothing is left of the request.
        """
        seen = self._own.look(request, blocker.request_id)
        if seen.entry is not None:
            self.leave(request, for_good=True)
            raise Carried(seen.entry)
        return seen

    def _pause(self, request: LockRequest, blocker: HmsBlocker, seen: SeenOffers, now: float) -> float:
        """Return the seconds until *request* asks the metastore again, if it sees nothing new in the files."""
        if seen.is_next:
            return self._settings.check_min_wait_ms / 2000  # those before it are about to leave
        if seen.is_offered:
            return self._settings.check_max_wait_ms / 1000  # it sees when that one leaves
        expected = self._own.expected_wait(request)
        if blocker.request_id or expected is None:
            return self._until_next(blocker, now)
        return _LATE * expected

    def _until_next(self, blocker: HmsBlocker, now: float) -> float:
        """Return the seconds until it makes sense to ask again; see the module."""
        shortest, longest = self._settings.check_min_wait_ms, self._settings.check_max_wait_ms
        # Expect that earlier requests hold the lock as long as we do. Wait half of that: late is worse than early.
        expected_ms = max(shortest, self.leases.usual_hold * 1000) * blocker.turns / 2
        wait_ms = max(shortest, expected_ms, (now - blocker.since) * 1000 * _PATIENCE)
        return next_wait(Backoff(initial_ms=wait_ms, maximum_ms=longest), 0, self._clock.random())

    def _queue_again(self, request: LockRequest, deadline: float) -> Blocker | None:
        """Enter at the end of the queue, because *request* has lost its place."""
        del self.tickets[request.request_id]
        return self._enter(request, deadline)

    def _ask(self, ticket: HmsTicket, before: HmsBlocker | None, deadline: float) -> Blocker | None:
        """Ask whether *ticket* is granted; return the lock that blocks it, None if it is granted."""
        request, asked = ticket.request, self._clock.now()
        if ticket.stepped_back:
            found = self._look(ticket, before)
            if found is not None:
                return found
            return self._queue_again(request, deadline)
        # Twice: the first look may have released the lock of a dead owner.
        for _ in range(2):
            asked = self._clock.now()
            try:
                granted = self._retries.until(deadline, partial(self._checked, ticket))
            except NoSuchLock:
                self._looked_at_files(request, UNLISTED_BLOCKER)
                # The answer may have come long after the question: the server was started again meanwhile.
                if request.explicit or self._clock.now() - ticket.last_confirmed_at < self.leases.lease_seconds:
                    raise RemovedByForce("the request was removed from the queue by force", locks=request) from None
                # We were stalled for longer than the lease time and another client removed us: queue again, at the end.
                return self._queue_again(request, deadline)
            if self.leases.was_silent(ticket):
                with translated(request):
                    self._metastore.unlock(ticket.lock_id)
                return self._queue_again(request, deadline)
            ticket.last_confirmed_at = max(ticket.last_confirmed_at, asked)
            if granted:
                # The holder has left, and before that it may have reported that it published our offer.
                self._looked_at_files(request, UNLISTED_BLOCKER)
                self._own.granted(request)
                return self._step_back(ticket)
            if before is not None and asked - before.looked < _LOOK_AGAIN and asked < (before.expires or asked + 1):
                return before
            found = self._look(ticket, before)
            if found is not None:
                return found
        return before or UNLISTED_BLOCKER

    def _checked(self, ticket: HmsTicket) -> bool:
        """Return whether *ticket* is granted. A failure may pass: the service has accepted the request before."""
        try:
            with translated(ticket.request):
                return self._metastore.check_lock(ticket.lock_id)
        except LockServiceUnavailable as error:
            raise Interrupted(error.message, **error.details) from error

    def _look(self, ticket: HmsTicket, before: HmsBlocker | None) -> HmsBlocker | None:
        """Return the lock that blocks *ticket*, None if no lock does; release locks of dead owners among them."""
        request, now = ticket.request, self._clock.now()
        # A request whose id is in use also waits for the other request with this id; to check that once is enough.
        blockers = self._blockers_of(ticket, ids=before is None and is_operation(request))
        with translated(request):
            answered = self._clock.now()
            for one in list(blockers):
                info = one.agent_info
                if info is not None and info.request_id == request.request_id and info.client != self.tickets.client:
                    raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
                if info is not None and info.guard:
                    raise Guarded(
                        "the table is guarded: its writers use another lock manager than the metastore's",
                        locks=request,
                        guard=info.request_id,
                        statement=info.statement,
                        accepted="the lock-impl of its writers; or, if they use the metastore's lock again, remove the "
                        "guard: `commit-coord unlock TABLE --guard`",
                    )
                if self._is_over(one, now, answered) or one.request_id == request.request_id:
                    logger.info("freed a lock whose owner has ended: %s", one.listed[0])
                    self._metastore.unlock(one.lock_id)
                    blockers.remove(one)
        if not blockers:
            ticket.blocked_by = None
            return None
        nearest = max(blockers, key=lambda one: (one.lock_id < ticket.lock_id, one.lock_id))
        ticket.blocked_by = nearest.lock_id
        return self._blocker(nearest, blockers, before, now=now)

    def _blockers_of(self, ticket: HmsTicket, *, ids: bool = False) -> list[MetastoreLock]:
        """Return the locks that conflict with *ticket* and are before it or granted, oldest first.

        Args:
            ticket: The ticket.
            ids: Whether to return a lock with the same request id, too.
        """
        wanted, places = hms_names.parts(ticket.request), hms_names.places(ticket.request)
        if ids:
            places = [*places, (hms_names.OPERATIONS, hms_names.REQUESTS)]
        with translated(ticket.request):
            return [
                one
                for one in grouped(listed for place in places for listed in self._metastore.show_locks(*place))
                if one.lock_id != ticket.lock_id
                and (one.acquired or one.lock_id < ticket.lock_id)
                and any(hms_names.conflict(part, other.part) for part in wanted for other in one.listed)
            ]

    def _blocker(
        self,
        lock: MetastoreLock,
        blockers: Sequence[MetastoreLock],
        before: HmsBlocker | None,
        *,
        now: float,
    ) -> HmsBlocker:
        info, listed = lock.agent_info, lock.listed[0]
        first = blockers[0].lock_id
        expires = None
        if info is not None and info.lease_ms is not None:
            expires = self.leases.heartbeats.get(lock.lock_id, (0, now))[1] + info.lease_ms / 1000
        return HmsBlocker(
            request_id=lock.request_id,
            owner=hms_names.owner_of(listed, info),
            requested_at_ms=info.requested_ms if info else listed.acquired_ms or listed.heartbeat_ms,
            ahead=len(blockers),
            turns=_turns(blockers),
            first=first,
            since=before.since if before is not None and before.first == first else now,
            looked=now,
            expires=expires,
        )

    def _is_over(self, lock: MetastoreLock, asked: float, answered: float) -> bool:
        """Return whether a lock of ours may be released: no new heartbeat for its lease time, or its process has ended.

        The listing was requested at *asked* and arrived at *answered*: much later, if the metastore was away.
        """
        return is_over(
            lock.listed[0],
            lock.heartbeat_ms,
            heartbeats=self.leases.heartbeats,
            failures=self._metastore.failures,
            asked=asked,
            answered=answered,
            host=self._host,
        )

    def grant(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`Queue.grant`."""
        request = acquire.request
        ticket = self.tickets[request.request_id]
        ticket.granted = self._clock.now()
        lease = HmsLease(self._keeper, ticket, self._turns, self._own, self._others)
        ticket.lease = lease
        return lease

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        """See :meth:`Queue.leave`."""
        ticket = self.tickets.get(request.request_id)
        # If our request was refused because another request has the same id, that one must stay.
        if ticket is None or ticket.request is request:
            self._withdraw(request, ticket)
        if for_good:
            self._own.forget(request)
            self._turns.give_up(request)

    def _withdraw(self, request: LockRequest, ticket: HmsTicket | None) -> None:
        if ticket is not None:
            self._keeper.give_back(ticket)
        if request.request_id in self.calls.sending:
            # Interrupted while it was sent.
            self.calls.look_for(request)
            self._keeper.heartbeat.ensure_running(now=True)
            self.calls.sending.pop(request.request_id, None)
            # Try it once here: a process that ends does not wait for its heartbeat.
            self.calls.release_orphaned()

    def retract(self, request: LockRequest) -> bool:
        """See :meth:`Queue.retract`."""
        return self._turns.retract(request) and self._own.retract(request)

    def holder(self, request: LockRequest, blocker: Blocker) -> Holder:
        """See :meth:`Queue.holder`."""
        return holder_of(self.table.look, request, blocker)


def _turns(blockers: Sequence[MetastoreLock]) -> int:
    """Return how many holders come before a request with an offer: of adjacent waiters of ours, only the first counts.

    It publishes the offers of the next ones.
    """
    waits = [not one.acquired and one.agent_info is not None for one in blockers]
    return waits.count(False) + sum(one and not before for one, before in zip(waits, [False, *waits], strict=False))
