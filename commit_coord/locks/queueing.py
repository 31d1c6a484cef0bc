"""How a request is acquired, for every manager whose service keeps queues.

Theory of operation
    ``acquire`` is the same everywhere: enter all queues in one step; while somebody stands in the way, wait;
    return a lease; and on any other end take the request out again. A manager supplies the five steps.

    Interrupts may come at any line (Ctrl-C, a SIGTERM handler that raises, a test that does so on purpose),
    also between a step that entered the queues and the line that would have noted it. Therefore nothing
    depends on what was noted: the way out removes *the request id*, whether it is there or not.

    A thread that holds locks and waits for more looks now and then whether it waits in a circle: see
    ``protocol.deadlock``. Who holds nothing can't, and looks for nothing.

    A thread that asks again for what it holds already is refused instead of left waiting, also in S:

    1. The thread holds S on a table.
    2. Somebody asks for X and waits for it.
    3. The thread asks for S again and stands behind the X: each waits for the other until the deadline.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from commit_coord.clock import Clock
from commit_coord.errors import (
    LockDeadlock,
    LockError,
    LockReentered,
    LockRefused,
    LockServiceUnavailable,
    LockTimeout,
    OfferLost,
)
from commit_coord.events import Events
from commit_coord.locks.base import BRIEFLY, DENY_JITTER, DenyPolicy, Lease, LockManager, LockSettings, Policy
from commit_coord.locks.event_emitter import Telling
from commit_coord.model import JournalEntry, LeaseState, LockEntry, LockMode, LockRequest, LockScope, Owner, Resource
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.deadlock import Wait, described, find_cycle, youngest
from commit_coord.protocol.modes import compatible

ANSWER_LEASES = 10
"""Leases for which the answer to an offer is kept: a waiter that was stalled for less finds it."""

_SHOWN = 200
"""Characters of a name that a message shows."""

_LEAVING = 0.005
"""Seconds between two looks whether those who waited have left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """The nearest conflicting request before ours."""

    request_id: str
    owner: Owner
    requested_at_ms: int


_LOOKS = Backoff(initial_ms=1_000, maximum_ms=8_000)
"""Between two looks for a deadlock."""


_WATCHES = 0.5
"""Seconds between two calls of whoever watches something else while a lock is waited for."""


_THREADS: dict[int, threading.local] = {}
"""Process → what each of its threads holds by any client. A forked child copies this, and holds none of it."""


class Carried(Exception):
    """Another holder has carried out what the request offered; the request is gone."""

    def __init__(self, entry: JournalEntry) -> None:
        super().__init__(entry)
        self.entry = entry


class QueueingLockManager(LockManager):
    """The common part of lock managers that queue."""

    def __init__(self, settings: LockSettings, clock: Clock, events: Events, host: Host = SYSTEM_HOST) -> None:
        self.settings = settings
        self._host = host
        self._clock = clock
        self._events = events
        self._closings = 0

    def _start_over(self) -> None:
        """Know of no requests. Called when a manager is made, and in a forked child before anything else."""
        self._pid = os.getpid()
        self._thread = threading.local()
        self._anywhere: Any = _THREADS.setdefault(self._pid, threading.local())
        self._acquiring: dict[str, tuple[int, int]] = {}
        """The requests under way: the thread of each, and how often this client had been closed when it began."""
        self._telling = Telling(self._events, self._clock)

    # What a manager supplies.

    @abstractmethod
    def _knows(self, request_id: str) -> bool:
        """Return whether this client has a request of that id already."""

    @abstractmethod
    def _enter(self, request: LockRequest, deadline: float) -> Blocker | None:
        """Put *request* into the queues of all its resources in one atomic step; return who is in its way."""

    @abstractmethod
    def _wait(self, request: LockRequest, blocker: Blocker, deadline: float) -> Blocker | None:
        """Block until *blocker* may have gone, at most until *deadline*; return who is in the way now.

        Raises:
            Carried: The request ended that way.
            OfferLost: It is gone, and what became of its offer is not known.
        """

    @abstractmethod
    def _grant(self, request: LockRequest) -> Lease:
        """Return the lease of *request*, which nobody blocks."""

    @abstractmethod
    def _withdraw(self, request: LockRequest) -> None:
        """Take *request* out of all queues if it is there and ours. Fails in no other way than by an interrupt."""

    def _await_turn(self, request: LockRequest, deadline: float, policy: Policy | None) -> None:
        """Wait until *request* may enter, where the threads of this process take turns."""

    def _retract(self, request: LockRequest) -> bool:
        """Take back the offer of *request*; return whether it is certain that nobody has taken it or will."""
        return True

    def _waits(self, request: LockRequest) -> Sequence[Wait]:
        """Return the wait of *request* and those that it may be waiting for in the end; not all of one moment."""
        return ()

    def _all_stand(self, places: Mapping[str, int]) -> bool:
        """Return whether each of these requests still stands at its place."""
        return True

    # What every manager does with it.

    def submit(self, request: LockRequest, *, deadline: float) -> Lease | JournalEntry:
        """See :meth:`LockManager.submit`."""
        try:
            return self.acquire(request, deadline=deadline)
        except Carried as answer:
            return answer.entry

    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> Lease:
        """See :meth:`LockManager.acquire`."""
        self._refuse_undeclared(request)
        if self._knows(request.request_id):
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        self._refuse_reentry(request)
        started, attempt = self._telling.asked(request), 0
        lease: Lease | None = None
        try:
            self._acquiring[request.request_id] = threading.get_ident(), self._closings
            self._await_turn(request, deadline, policy)
            while True:
                lease, refused = self._try(request, deadline, policy, started, attempt)
                if lease is not None:
                    return lease
                assert isinstance(policy, DenyPolicy)
                assert refused is not None
                attempt = self._pause(policy, attempt, deadline, refused)
                self._refuse_closed(request)
        except Carried:
            self._telling.not_granted(request, started, "carried")
            raise
        except BaseException as error:
            # Once more, for a Ctrl-C that came on the way out of _try, or between its return and ours.
            self._give_up(request)
            self._telling.not_granted(request, started, error.kind if isinstance(error, LockError) else "interrupted")
            raise
        finally:
            self._acquiring.pop(request.request_id, None)
            # What a driver raised on the way may keep this frame alive, which must not keep the lease.
            lease = None

    def _try(
        self, request: LockRequest, deadline: float, policy: Policy | None, started: float, attempt: int
    ) -> tuple[Lease | None, LockRefused | None]:
        """Return a lease, or the refusal of the deny policy; leave nothing behind on any other end than a lease."""
        try:
            blocker = self._enter(request, deadline)
            self._refuse_closed(request)
            until, looks, look_at = deadline, 0, self._first_look()
            watch: Callable[[], None] | None = getattr(self._thread, "watch", None)
            watch_at = self._clock.now() + _WATCHES if watch is not None else math.inf
            self._refuse_own(request, blocker)
            while blocker is not None and not isinstance(policy, DenyPolicy):
                if self._clock.now() >= until:
                    until = self._after_deadline(request, blocker, deadline, started)
                blocker = self._wait_on(request, blocker, min(until, look_at, watch_at))
                self._refuse_closed(request)
                self._refuse_own(request, blocker)
                if blocker is not None and watch is not None and self._clock.now() >= watch_at:
                    watch()
                    watch_at = self._clock.now() + _WATCHES
                if blocker is not None and (now := self._clock.now()) >= look_at:
                    self._refuse_deadlock(request)
                    # Nor does it look more than a tenth of the time.
                    pause, took = next_wait(_LOOKS, looks, self._clock.random()), self._clock.now() - now
                    looks, look_at = looks + 1, now + max(pause, 10 * took)
            if blocker is None:
                return self._granted(request, started), None
            # Described while we still stand behind it: a moment later it may be gone.
            refused = self._refusal(request, blocker, attempt)
            self._withdraw(request)
            return None, refused
        except Carried:
            raise
        except BaseException:
            self._give_up(request)
            raise

    @contextlib.contextmanager
    def watching(self, watch: Callable[[], None]) -> Iterator[None]:
        """Have *watch* called now and then while this thread waits for a lock; what it raises ends the wait."""
        self._thread.watch = watch
        try:
            yield
        finally:
            self._thread.watch = None

    def _first_look(self) -> float:
        """Return when to look for a deadlock: never, unless somebody may be waiting for this thread."""
        return self._clock.now() + _LOOKS.initial_ms / 1000 if _live(self._anywhere) else math.inf

    def _refuse_deadlock(self, request: LockRequest) -> None:
        """Raise when *request* is the youngest of a circle of waits."""
        with contextlib.suppress(LockServiceUnavailable):  # The next look finds it.
            cycle = find_cycle(request.request_id, self._waits(request))
            if cycle is None or youngest(cycle).request_id != request.request_id:
                return
            if self._all_stand({one.request_id: one.place for pair in cycle for one in pair}):
                raise LockDeadlock(
                    "threads that hold locks wait for each other, and this request is the youngest of them",
                    cycle=described(cycle),
                    locks=request,
                    holding="; ".join(str(lease.request) for lease in _live(self._anywhere)),
                )

    @property
    def _agent(self) -> str:
        """Return the name of this thread, which no other one of any process ever has."""
        try:
            return self._anywhere.agent  # type: ignore[no-any-return]
        except AttributeError:
            self._anywhere.agent = self._host.new_id().hex
            return self._anywhere.agent  # type: ignore[no-any-return]

    def _wait_on(self, request: LockRequest, blocker: Blocker, until: float) -> Blocker | None:
        """Wait; a service that is gone has perhaps given the offer to somebody before."""
        try:
            return self._wait(request, blocker, until)
        except LockServiceUnavailable as error:
            if not request.offer or self._retract(request):
                raise
            raise OfferLost("the lock service is gone, and the offer may have been taken", locks=request) from error

    def _after_deadline(self, request: LockRequest, blocker: Blocker, deadline: float, started: float) -> float:
        """Raise, or return until when to wait for the answer to an offer that somebody has taken.

        Whoever took it answers soon, or loses its lease and lets us in.
        """
        if not request.offer or self._retract(request):
            raise self._timeout(request, blocker, started)
        until = deadline + 2 * self.settings.lease_ms / 1000
        if self._clock.now() >= until:
            raise OfferLost("the holder that took the offer did not answer", locks=request)
        return until

    def _end_waits(self) -> None:
        """Have every other thread's request end that is under way, and return once they have left the queues.

        1. A thread waits for a lock.   2. Its client is closed, because what it is for was cancelled.
        3. The lock is granted, to somebody who does not want it any more: so it would stay until the process ends.
        """
        self._closings += 1
        until = self._clock.now() + BRIEFLY
        while self._clock.now() < until and any(
            thread != threading.get_ident() and closings < self._closings
            for thread, closings in list(self._acquiring.values())
        ):
            self._clock.sleep(_LEAVING)

    def _is_closed(self, request: LockRequest) -> bool:
        """Return whether this client was closed since *request* began."""
        _, closings = self._acquiring.get(request.request_id, (0, self._closings))
        return closings != self._closings

    def _refuse_closed(self, request: LockRequest) -> None:
        if not self._is_closed(request):
            return
        if request.offer and not self._retract(request):
            raise OfferLost("the client was closed, and the holder that took the offer did not answer", locks=request)
        raise LockRefused("the client was closed while it waited", locks=request)

    def _granted(self, request: LockRequest, started: float) -> Lease:
        lease = self._grant(request)
        self._is_of_this_thread(lease)
        if self._events.heard:
            telling = self._telling

            def ended(_: Lease, state: LeaseState) -> None:
                if state in (LeaseState.RELEASED, LeaseState.LOST):
                    telling.ended(request.request_id, lost=state is LeaseState.LOST)

            telling.granted(request.request_id, request, lease.generation, started)
            lease.add_listener(ended)
        return lease

    def _give_up(self, request: LockRequest) -> None:
        """Leave nothing of *request*, wherever :meth:`acquire` was interrupted."""
        for lease in self._leases_of_this_thread():
            if lease.request is request:
                lease._transition(LeaseState.RELEASED)
        self._withdraw(request)

    def _pause(self, policy: DenyPolicy, attempt: int, deadline: float, refused: LockRefused) -> int:
        """Sleep between two tries of the deny policy and return the number of the next one."""
        if attempt >= policy.numretries:
            raise refused
        sleep_ms = policy.sleep_between_retries_ms
        pause = Backoff(initial_ms=sleep_ms, maximum_ms=sleep_ms, jitter=DENY_JITTER)
        now = self._clock.now()
        if now >= deadline:
            raise LockTimeout(
                "the deadline passed between two tries",
                **refused.details,
                accepted=f"a longer lock.acquire-timeout-ms; lock.num-retries allows {policy.numretries + 1} tries",
            )
        self._clock.sleep(max(0.0, min(next_wait(pause, attempt, self._clock.random()), deadline - now)))
        return attempt + 1

    def _unlockable(self, request: LockRequest) -> tuple[str, str] | None:
        """Return a name in *request* that the service can't lock, and why; None where it can lock all of them."""
        return None

    def _refuse_undeclared(self, request: LockRequest) -> None:
        if request.explicit and not self.guarantees.explicit_locks:
            raise LockRefused("this lock manager has no explicit locks", manager=self.name, locks=request)
        if request.scope is LockScope.OPERATION and not self.guarantees.hierarchy:
            raise LockRefused("this lock manager has no operation locks", manager=self.name, locks=request)
        if (found := self._unlockable(request)) is not None:
            name, reason = found
            raise LockRefused(
                f"the lock service can't lock this name: {reason}; nothing was locked",
                manager=self.name,
                name=name[:_SHOWN],
                accepted="another name, or another lock manager (zookeeper, lease)",
            )

    def _refuse_reentry(self, request: LockRequest) -> None:
        wanted = dict(request.locks)
        for lease in self._leases_of_this_thread():
            # What a LOCK statement took waits for no end of this thread's, so what stands beside it may stand.
            shared = [
                str(r)
                for r, mode in lease.request.locks
                if r in wanted and not (lease.request.explicit and compatible(wanted[r], mode))
            ]
            if shared and lease.request.scope is request.scope:
                raise LockReentered(
                    "this thread holds a lock on the resource already and would wait for itself",
                    resource=", ".join(shared),
                    held=lease.request,
                    wanted=request,
                    scope=request.scope.value,
                )

    def _refuse_own(self, request: LockRequest, blocker: Blocker | None) -> None:
        """Raise when *blocker* is this thread's own, held by another client: another catalog of the same service."""
        for lease in _live(self._anywhere) if blocker is not None else ():
            if blocker is not None and lease.request.request_id == blocker.request_id:
                raise LockReentered(
                    "this thread holds a lock on the resource by another catalog and would wait for itself",
                    held=lease.request,
                    wanted=request,
                    scope=request.scope.value,
                )

    def lease_on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """See :meth:`LockManager.lease_on`."""
        above = {resource, *resource.ancestors}
        for lease in self._leases_of_this_thread():
            held = lease.request.locks if lease.request.scope is LockScope.OPERATION else ()
            if (resource, mode) in held or any(mine in above and how is LockMode.EXCLUSIVE for mine, how in held):
                return lease
        return None

    def _is_of_this_thread(self, lease: Lease) -> None:
        """Note that this thread holds *lease*, as long as anybody has it."""
        for held in (self._thread, self._anywhere):
            held.leases = [*map(weakref.ref, _live(held)), weakref.ref(lease)]

    def _leases_of_this_thread(self) -> list[Lease]:
        """Return those that still stand; leases may have been released in other threads meanwhile."""
        leases = _live(self._thread)
        self._thread.leases = [weakref.ref(lease) for lease in leases]
        return leases

    def _timeout(self, request: LockRequest, blocker: Blocker, started: float) -> LockTimeout:
        waited = f"{(self._clock.now() - started) * 1000:.0f}"
        return LockTimeout(
            "the deadline passed while waiting for a lock",
            locks=request,
            waited_ms=waited,
            **self._holder(request, blocker),
        )

    def _refusal(self, request: LockRequest, blocker: Blocker, attempt: int) -> LockRefused:
        return LockRefused("the lock is held", locks=request, tries=attempt + 1, **self._holder(request, blocker))

    def _holder(self, request: LockRequest, blocker: Blocker) -> dict[str, object]:
        """Return what an error says about whoever really holds: the end of the chain that *blocker* starts.

        The nearest blocker may itself be waiting; whom to talk to is the one at the head of the queue.
        """
        standing: Sequence[LockEntry] = ()
        with contextlib.suppress(LockError):  # The listing is a courtesy: the blocker alone names somebody too.
            standing = self.locks(scope=request.scope)
        by_request: dict[str, list[LockEntry]] = {}
        for entry in standing:
            by_request.setdefault(entry.request_id, []).append(entry)
        holder = blocker.request_id
        while holder in by_request and by_request[holder][0].blocked_by in by_request:
            holder = str(by_request[holder][0].blocked_by)
        entries = by_request.get(holder, [])
        wanted = dict(request.locks)
        clash = [e for e in entries if e.resource in wanted and not compatible(wanted[e.resource], e.mode)] or entries
        owner = clash[0].owner if clash else blocker.owner
        since = clash[0].requested_at_ms if clash else blocker.requested_at_ms
        return {
            "resource": clash[0].resource if clash else None,
            "mode": clash[0].mode.value if clash else None,
            **holder_facts(owner, since, clash[0].request_id if clash else blocker.request_id),
        }


def _live(thread: Any) -> list[Lease]:
    """Return the leases noted in *thread* that still stand."""
    noted: list[weakref.ref[Lease]] = getattr(thread, "leases", [])
    return [lease for ref in noted if (lease := ref()) and lease.state in (LeaseState.HELD, LeaseState.SUSPECT)]


def holder_facts(owner: Owner, requested_at_ms: int, request_id: str) -> dict[str, object]:
    """Return what an error says of the request that stands in the way."""
    return {
        "holder": owner.user,
        "host": owner.host,
        "pid": owner.pid,
        "application": owner.application,
        "statement": owner.statement or None,
        "since": datetime.fromtimestamp(requested_at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "request_id": request_id,
    }
