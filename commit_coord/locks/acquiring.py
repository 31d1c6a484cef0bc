"""Acquires the locks of a request, for every manager whose service keeps queues.

Theory of operation
    The loop is the same for all managers: enter all queues in one step; while another request blocks this one, wait;
    return a lease; in any other case remove the request again. A :class:`Queue` has these operations.

    Interrupts may come at any line (Ctrl-C, a SIGTERM handler that raises, a test), also between the step that entered
    the queues and the line that records this. Therefore the cleanup does not depend on what was recorded: it removes
    the request by its *request id*, whether it is in the queues or not.

    A thread that holds locks and waits for more checks now and then whether it is part of a deadlock: see
    ``protocol.deadlock``. A thread that holds nothing can't be part of one, and does not check.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from commit_coord.clock import Clock
from commit_coord.errors import (
    ClientStops,
    LockDeadlock,
    LockError,
    LockRefused,
    LockServiceUnavailable,
    LockTimeout,
    OfferLost,
)
from commit_coord.locks.base import BRIEFLY, DENY_JITTER, DenyPolicy, LockSettings, Policy, WaitPolicy
from commit_coord.locks.blockers import Blocker, Holder
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.held import Held
from commit_coord.model import JournalEntry, LeaseState, LockRequest
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.deadlock import Wait, described, find_cycle, youngest

ANSWER_LEASES = 10
"""The outcome of an offer is kept for so many lease times: a waiter that stalls for less still finds it."""

_LEAVING = 0.005
"""Seconds between two checks whether all waiting threads have left."""

_NOTICED = 1.0
"""Seconds after which a request that sleeps between two tries notices that its client stops."""

_LOOKS = Backoff(initial_ms=1_000, maximum_ms=8_000)
"""Waits between two checks for a deadlock."""

_WATCHES = 0.5
"""Seconds between two calls of ``Acquire.watch`` during a wait."""


REMOVED = "the request was removed from the queue by force"


class Carried(Exception):
    """Another holder has published the offer of the request; the request is gone."""

    def __init__(self, entry: JournalEntry) -> None:
        super().__init__(entry)
        self.entry = entry


class RemovedByForce(LockRefused):
    """An operator has removed the request from the queue."""


@contextlib.contextmanager
def naming_who_released(locks: HandoverLockManager, request: LockRequest) -> Iterator[None]:
    """Let the error about a request that is gone name the operator who released it by force, if one did."""
    try:
        yield
    except (RemovedByForce, OfferLost) as error:
        with contextlib.suppress(LockError):
            error.details |= locks.forced_release_note(request.request_id)
        raise


@dataclass(slots=True, eq=False, kw_only=True)
class Acquire:
    """One call of acquire.

    Args:
        request: Resources and modes.
        deadline: The time of ``Clock.now`` at which the whole acquire gives up.
        policy: Whether to wait in the queues, or to leave them and try again.
        watch: Called now and then during a wait; an error that it raises ends the wait.
        began: The time of ``Clock.now`` when the call began.
        thread: The calling thread.
        is_closed: Whether the wait is to end: the client was closed since the call began, or stops.
        is_stopping: Whether the client only stops. Then a request whose offer another holder has taken continues.
    """

    request: LockRequest
    deadline: float
    policy: Policy = field(default_factory=WaitPolicy)
    watch: Callable[[], None] | None = None
    began: float = 0.0
    thread: int = field(default_factory=threading.get_ident)
    is_closed: bool = False
    is_stopping: bool = False


class Queue(Protocol):
    """The queues of one lock service, from the point of view of one client."""

    def knows(self, request_id: str) -> bool:
        """Return whether this client already has a request with this id."""
        ...

    def enter(self, acquire: Acquire) -> Blocker | None:
        """Put the request into the queues of all its resources in one atomic step; return the request that blocks it.

        Raises:
            LockRefused: The request id is in use.
            OfferLost: It is not known whether the request entered, and its offer may have been taken.
        """
        ...

    def wait(self, acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
        """Block until *blocker* may be gone, at most until *until*; return the request that blocks this one now.

        Raises:
            Carried: Another holder has published the offer.
            OfferLost: The request is gone, and the outcome of its offer is not known.
        """
        ...

    def grant(self, acquire: Acquire) -> HandoverLease:
        """Return the lease of a request that nothing blocks."""
        ...

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        """Remove *request* from all queues if it is there and belongs to this client. Raises only on an interrupt.

        Args:
            request: The request.
            for_good: True if the acquire ends; False if the request will enter again.
        """
        ...

    def retract(self, request: LockRequest) -> bool:
        """Retract the offer of *request*; return whether it is certain that no holder has taken it or will take it.

        True if the service does not support offers.
        """
        return True

    def holder(self, request: LockRequest, blocker: Blocker) -> Holder:
        """Return the facts for an error about the lock holder that *request* finally waits for."""
        ...


class Deadlocks(Protocol):
    """The waiting requests of a service that supports deadlock detection."""

    def waits(self, request: LockRequest) -> Sequence[Wait]:
        """Return the wait of *request*, and the waits on which it may depend; they need not be of one moment."""
        ...

    def all_present(self, places: Mapping[str, int]) -> bool:
        """Return whether each of these requests is still at its place."""
        ...


class Acquirer:
    """Acquires through a queue.

    Args:
        queue: Where requests enter.
        deadlocks: Reads the waits of others; None if the service does not support deadlock detection.
        held: What the threads of this process hold.
        emitter: Emits the events of each request.
        settings: Times.
        clock: Time and random numbers.
    """

    def __init__(
        self,
        queue: Queue,
        deadlocks: Deadlocks | None,
        held: Held,
        emitter: LockEventEmitter,
        settings: LockSettings,
        clock: Clock,
    ) -> None:
        self.queue = queue
        self._deadlocks = deadlocks
        self._held = held
        self._emitter = emitter
        self._settings = settings
        self._clock = clock
        self.under_way: dict[str, Acquire] = {}
        """The acquires that have not ended, by request id."""

    def acquire(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`LockManager.acquire`."""
        request = acquire.request
        if self.queue.knows(request.request_id):
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        self._held.refuse_reentry(request)
        acquire.began, attempt = self._emitter.asked(request), 0
        lease: HandoverLease | None = None
        try:
            self.under_way[request.request_id] = acquire
            while True:
                lease, refused = self._try(acquire, attempt)
                if lease is not None:
                    return lease
                assert isinstance(acquire.policy, DenyPolicy)
                assert refused is not None
                attempt = pause_before_retry(
                    self._clock, acquire.policy, attempt, acquire.deadline, refused, lambda: acquire.is_closed
                )
                self._refuse_closed(acquire)
        except Carried:
            self._emitter.not_granted(request, acquire.began, "carried")
            raise
        except BaseException as error:
            # Once more, for a Ctrl-C that came on the way out of _try, or between its return and ours.
            self.give_up(request)
            outcome = error.kind if isinstance(error, LockError) else "interrupted"
            self._emitter.not_granted(request, acquire.began, outcome)
            raise
        finally:
            self.under_way.pop(request.request_id, None)
            # An exception of a driver may keep this frame alive; the frame must not keep the lease alive.
            lease = None

    def give_up(self, request: LockRequest) -> None:
        """Remove everything of *request*, wherever its acquire was interrupted."""
        for lease in self._held.by_this_client():
            if lease.request is request:
                lease._transition(LeaseState.RELEASED)
        self.queue.leave(request, for_good=True)

    def end_waits(self) -> None:
        """End the requests of all other threads, and wait briefly until they have left the queues.

        1. A thread waits for a lock.   2. Its client is closed, because what it is for was cancelled.
        3. The lock is granted to a caller that does not want it any more: so it would stay until the process ends.
        """
        ending = list(self.under_way.values())
        for one in ending:
            one.is_closed, one.is_stopping = True, False
        own, until = threading.get_ident(), self._clock.now() + BRIEFLY
        others = [one for one in ending if one.thread != own]
        while self._clock.now() < until and any(one in others for one in list(self.under_way.values())):
            self._clock.sleep(_LEAVING)

    def refuse_waits(self) -> None:
        """See :meth:`LockManager.refuse_waits`."""
        for one in list(self.under_way.values()):
            one.is_stopping = one.is_closed = True

    def _try(self, acquire: Acquire, attempt: int) -> tuple[HandoverLease | None, LockRefused | None]:
        """Return a lease, or the refusal of the deny policy. Without a lease, nothing of the request stays queued."""
        request, watch = acquire.request, acquire.watch
        try:
            blocker = self.queue.enter(acquire)
            self._refuse_closed(acquire)
            until, looks, look_at = acquire.deadline, 0, self._first_look()
            watch_at = self._clock.now() + _WATCHES if watch is not None else math.inf
            self._held.refuse_own(request, blocker)
            while blocker is not None and not isinstance(acquire.policy, DenyPolicy):
                if self._clock.now() >= until:
                    until = self._after_deadline(acquire, blocker)
                blocker = self._wait_on(acquire, blocker, min(until, look_at, watch_at))
                self._refuse_closed(acquire)
                self._held.refuse_own(request, blocker)
                if blocker is not None and watch is not None and self._clock.now() >= watch_at:
                    watch()
                    watch_at = self._clock.now() + _WATCHES
                if blocker is not None and (now := self._clock.now()) >= look_at:
                    self._refuse_deadlock(request)
                    # Looking takes at most a tenth of the time.
                    pause, took = next_wait(_LOOKS, looks, self._clock.random()), self._clock.now() - now
                    looks, look_at = looks + 1, now + max(pause, 10 * took)
            if blocker is None:
                return self._granted(acquire), None
            # Describe the holder before this request leaves the queue: later the holder may be gone.
            holder = self.queue.holder(request, blocker)
            refused = LockRefused("the lock is held", locks=request, tries=attempt + 1, **holder)
            self.queue.leave(request, for_good=False)
            return None, refused
        except Carried:
            raise
        except BaseException:
            self.give_up(request)
            raise

    def _first_look(self) -> float:
        """Return when to look for a deadlock: never, unless another thread may be waiting for this one."""
        return self._clock.now() + _LOOKS.initial_ms / 1000 if self._held.by_any_client() else math.inf

    def _refuse_deadlock(self, request: LockRequest) -> None:
        """Raise LockDeadlock if *request* is the youngest of a deadlock."""
        if self._deadlocks is None:
            return
        with contextlib.suppress(LockServiceUnavailable):  # The next look finds it.
            cycle = find_cycle(request.request_id, self._deadlocks.waits(request))
            if cycle is None or youngest(cycle).request_id != request.request_id:
                return
            if self._deadlocks.all_present({one.request_id: one.place for pair in cycle for one in pair}):
                raise LockDeadlock(
                    "deadlock: threads that hold locks wait for each other; this request, the youngest, was withdrawn",
                    cycle=described(cycle),
                    locks=request,
                    holding="; ".join(str(lease.request) for lease in self._held.by_any_client()),
                )

    def _wait_on(self, acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
        """Wait. If the service can't be reached, and another holder may have taken the offer, raise OfferLost."""
        request = acquire.request
        try:
            return self.queue.wait(acquire, blocker, until)
        except LockServiceUnavailable as error:
            if not request.offer or self.queue.retract(request):
                raise
            raise OfferLost("the lock service is unreachable; the offer may have been taken", locks=request) from error

    def _after_deadline(self, acquire: Acquire, blocker: Blocker) -> float:
        """Raise, or return until when to wait for the outcome of an offer that another holder has taken.

        That holder settles the offer soon, or loses its lease; then this request is granted.
        """
        request = acquire.request
        if not request.offer or self.queue.retract(request):
            raise LockTimeout(
                "the deadline passed while waiting for a lock",
                locks=request,
                waited_ms=f"{(self._clock.now() - acquire.began) * 1000:.0f}",
                **self.queue.holder(request, blocker),
            )
        until = acquire.deadline + 2 * self._settings.lease_ms / 1000
        if self._clock.now() >= until:
            raise OfferLost("the holder that took the offer did not answer", locks=request)
        return until

    def _refuse_closed(self, acquire: Acquire) -> None:
        if not acquire.is_closed:
            return
        request = acquire.request
        retracted = not request.offer or self.queue.retract(request)
        if acquire.is_stopping:
            if retracted:
                raise ClientStops("the client is stopping; it has withdrawn its lock request", locks=request)
            acquire.is_closed = False  # the holder that took the offer publishes and settles it soon
            return
        if not retracted:
            raise OfferLost("the client was closed, and the holder that took the offer did not answer", locks=request)
        raise LockRefused("the client was closed while the request waited", locks=request)

    def _granted(self, acquire: Acquire) -> HandoverLease:
        lease = self.queue.grant(acquire)
        self._held.add(lease)
        self._emitter.follow(lease, acquire.began)
        return lease


def pause_before_retry(
    clock: Clock,
    policy: DenyPolicy,
    attempt: int,
    deadline: float,
    refused: LockRefused,
    ends: Callable[[], bool] = lambda: False,
) -> int:
    """Sleep between two tries of the deny policy, and return the number of the next try. *ends* ends the sleep early.

    Raises:
        LockRefused: No try is left; the error is *refused*.
        LockTimeout: The deadline has passed.
    """
    if attempt >= policy.numretries:
        raise refused
    sleep_ms = policy.sleep_between_retries_ms
    pause = Backoff(initial_ms=sleep_ms, maximum_ms=sleep_ms, jitter=DENY_JITTER)
    now = clock.now()
    if now >= deadline:
        raise LockTimeout(
            "the deadline passed before the next try",
            **refused.details,
            accepted=f"a longer lock.acquire-timeout-ms; lock.num-retries allows {policy.numretries + 1} tries",
        )
    until = min(now + next_wait(pause, attempt, clock.random()), deadline)
    while (left := until - clock.now()) > 0 and not ends():
        clock.sleep(min(left, _NOTICED))
    return attempt + 1
