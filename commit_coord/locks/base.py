"""The contract of every lock manager, in prose and types. ``commit_coord.testing.contract`` asserts it.

Theory of operation
    A *request* (:class:`~commit_coord.model.LockRequest`) enters the queues of all its resources in one
    atomic step, so any two requests stand in the same order in every queue that they share and waiting in
    place cannot deadlock. It is granted when no conflicting request is before it in any queue.
    What is granted is a *lease*: it ends by release, by expiry, or by force. A lease that nobody refers to any more, as
    the result of a future that was cancelled, can't be released, and is given back for its owner.

    The manager is the client of a service and lives as long as the catalog; the lease is what is held.
    Where one process serves many threads, one manager serves them all.

Not here
    Nothing of commits: a manager knows resources, owners and time. What it may carry between the holders of a commit
    latch is another contract, ``handover``. And no safety of data: a holder that was paused past its lease can come
    back at any moment, so publishing is a compare-and-set.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from commit_coord.config.values import check_heartbeat
from commit_coord.errors import ConfigError, LockLost, LockServiceUnavailable
from commit_coord.model import (
    Generation,
    Guarantees,
    LeaseState,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    Resource,
)

logger = logging.getLogger(__name__)

BRIEFLY = 2.0
"""Seconds for which what nobody waits for is tried: enough for a connection that was cut while it was idle."""

DENY_JITTER = 0.1
"""Of a sleep between two tries: Hive's clients that were refused together would come back together."""

PAGE = 1000
"""Locks of the first page of a listing, about."""

LeaseListener = Callable[["Lease", LeaseState], None]


class Interrupted(LockServiceUnavailable):
    """The service was busy or the connection was cut: what was asked may have happened, and may be asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings:
    """Times that every lock manager understands. Names and meanings are Iceberg's ``lock.*`` properties.

    Args:
        acquire_timeout_ms: ``lock.acquire-timeout-ms``: how long callers wait when they set no deadline of their own.
        lease_ms: ``lock.heartbeat-timeout-ms``: how long the service keeps a lease without a heartbeat.
        heartbeat_interval_ms: ``lock.heartbeat-interval-ms``: at most this long between two heartbeats.
        poll_interval_ms: How often a waiter looks whether the owner in its way has died, and asks again where
            nobody can wake it.
        check_min_wait_ms: ``lock.check-min-wait-ms``: the shortest wait between two questions to a service that wakes
            nobody.
        check_max_wait_ms: ``lock.check-max-wait-ms``: the longest.

    Raises:
        ConfigError: A time is not positive, or a lease would not outlive one missed heartbeat.
    """

    acquire_timeout_ms: int = 180_000
    lease_ms: int = 15_000
    heartbeat_interval_ms: int = 5_000
    poll_interval_ms: int = 100
    check_min_wait_ms: int = 50
    check_max_wait_ms: int = 5_000

    def __post_init__(self) -> None:
        """Refuse times that can't work."""
        for key, value in (
            ("lock.acquire-timeout-ms", self.acquire_timeout_ms),
            ("lock.heartbeat-timeout-ms", self.lease_ms),
            ("lock.heartbeat-interval-ms", self.heartbeat_interval_ms),
            ("lock.acquire-interval-ms", self.poll_interval_ms),
            ("lock.check-min-wait-ms", self.check_min_wait_ms),
            ("lock.check-max-wait-ms", self.check_max_wait_ms),
        ):
            if value <= 0:
                raise ConfigError("a time must be positive", key=key, value=value, accepted="milliseconds above 0")
        check_heartbeat(interval_ms=self.heartbeat_interval_ms, lease_ms=self.lease_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPolicy:
    """Keep the place and wait (FIFO): nobody starves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenyPolicy:
    """Hive's: on conflict release all, sleep, retry.

    Args:
        numretries: Tries after the first (``hive.lock.numretries``).
        sleep_between_retries_ms: ``hive.lock.sleep.between.retries``.
    """

    numretries: int = 100
    sleep_between_retries_ms: int = 60_000

    @property
    def longest_s(self) -> float:
        """What all the sleeps between its tries may take, with their jitter."""
        return self.numretries * self.sleep_between_retries_ms / 1000 * (1 + DENY_JITTER)


Policy = WaitPolicy | DenyPolicy


class Lease(ABC):
    """What a granted request holds. Thread safe; a context manager that releases.

    Each manager subclasses it with its own record of the claim; state and listeners live here.
    """

    def __init__(self, request: LockRequest, generation: Generation | None) -> None:
        self.request = request
        self.generation = generation
        self._state = LeaseState.HELD
        self._reason = ""
        self._listeners: list[LeaseListener] = []
        self._state_lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        """Refuse: a lease belongs to its process. A lease of ``catalog.leases`` has a number that can be sent."""
        raise TypeError("a lease can't be pickled or copied: its locks belong to the process that acquired them")

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT (the service has not answered for a while), LOST or RELEASED, as far as is known now."""
        return self._state

    def add_listener(self, listener: LeaseListener) -> None:
        """Call *listener* (lease, new state) at every change, from whatever thread notices it."""
        self._listeners.append(listener)

    @abstractmethod
    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """Return if the service still knows this lease as ours.

        Args:
            max_age_ms: If the service confirmed the lease less than this time ago, it is not asked again.
                None takes a third of the lease; 0 always asks.

        Raises:
            LockLost: It is not ours any more; the state is LOST and stays so.
            LockServiceUnavailable: The service did not answer and the lease may have run out.

        Source: Iceberg Java ``HiveLock.ensureActive``.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the locks back. Never raises, never blocks for long, may be called again.

        A release that the service did not confirm is emitted as ``LockReleaseFailed``, tried again in the
        background, and ends with the lease in any case.
        """

    def _transition(self, state: LeaseState, reason: str = "") -> bool:
        """Go to *state* unless the present one is final; tell the listeners. Return whether it changed."""
        with self._state_lock:
            if self._state in (LeaseState.LOST, LeaseState.RELEASED) or self._state is state:
                return False
            self._state, self._reason = state, reason
        for listener in tuple(self._listeners):
            try:
                listener(self, state)
            except Exception:
                # Transitions happen inside release, which never raises, and in the heartbeat, which serves
                # other leases too: a listener's failure is its own.
                logger.exception("a lease listener failed on %s", state)
        return True

    def _raise_if_over(self) -> None:
        """Raise LockLost when the lease is LOST or RELEASED."""
        if self._state in (LeaseState.LOST, LeaseState.RELEASED):
            raise LockLost(f"the lease is {self._state.value.lower()}", locks=self.request, reason=self._reason or None)

    def __enter__(self) -> Self:
        """Return the lease itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release, whatever happened."""
        self.release()


class Extension:
    """What extends leases in the background. This one has nothing to do."""

    def pause(self) -> None:
        """Extend nothing until :meth:`resume`: to see what becomes of leases that nobody extends."""

    def resume(self) -> None:
        """Go on after :meth:`pause`."""

    def stop(self) -> None:
        """End what is under way; it begins again when it is needed."""


class LockManager(ABC):
    """A client of one lock service.

    Guarantee, for every manager: whatever way :meth:`acquire` ends other than by returning a lease
    (timeout, refusal, KeyboardInterrupt, SystemExit, any BaseException), nothing of the request stays queued,
    except when the service could not be reached: then it expires by itself.
    """

    name: str
    guarantees: Guarantees
    settings: LockSettings

    @property
    def heartbeat(self) -> Extension:
        """What extends the leases of this client; by default they need nothing."""
        return Extension()

    @abstractmethod
    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> Lease:
        """Block until every lock of *request* is granted.

        Guarantee: all or nothing.

        Args:
            request: Resources and modes, closed under parents.
            deadline: One point in time for the whole acquire, on ``Clock.now``; seconds.
            policy: None is ``WaitPolicy()``.

        Returns:
            A held lease. Its generation exceeds that of every earlier lease that conflicted with it.

        Raises:
            LockTimeout: The deadline passed; the message names the nearest holder.
            LockReentered: The same thread holds a lease of this manager on one of the resources already: waiting
                for oneself would never end.
            LockDeadlock: This thread and others hold locks and wait for each other's, and this request is the youngest.
            LockRefused: Denied after the policy's retries; or the request is outside of what the guarantees declare.
            LockServiceUnavailable: The service could not be reached.
        """

    def holds(self, resource: Resource, mode: LockMode) -> bool:
        """Return whether this thread holds *resource*, or what it lies in, for an operation and at least in *mode*."""
        return self.lease_on(resource, mode) is not None

    def lease_on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """Return the lease by which :meth:`holds` is true; None where it is not."""
        return None

    @abstractmethod
    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """Return who holds and waits for what: entries on *resource* and below it, oldest request first.

        Args:
            resource: None lists everything.
            scope: None lists both scopes.
        """

    def pages(
        self, resource: Resource | None = None, *, scope: LockScope | None = None
    ) -> Iterator[Sequence[LockEntry]]:
        """Yield the entries of :meth:`locks` page by page, resource by resource: the first page soon, of however many.

        Each page tells of the moment when it was read. Of a request that waits for a lock on a later page, it may
        show the others as held.
        """
        entries = sorted(self.locks(resource, scope=scope), key=lambda entry: (entry.scope, entry.resource))
        for start in range(0, len(entries), PAGE):
            yield entries[start : start + PAGE]

    def listed(self, resource: Resource) -> Resource:
        """Return *resource* as :meth:`locks` names it: a service that limits names shows a long one cut off."""
        return resource

    def is_on(self, entry: LockEntry, resource: Resource) -> bool:
        """Return whether *entry* of :meth:`locks` is on exactly *resource*."""
        return entry.resource in (resource, self.listed(resource))

    @abstractmethod
    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """Free locks of any owner by force: one request, or every request that locks exactly *resource*.

        Returns:
            What was freed; empty when nothing was there. The owners find their leases LOST.
        """

    @abstractmethod
    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """Free what dead owners left, held or waiting; return what was freed.

        Dead is whose lease is over by the service's clock, and whose process, in our reach, has certainly ended. Where
        the clock is each client's own, this may take a lease: an owner is dead whose heartbeat does not move for so
        long. Explicit locks, guards and locks of other programs are left to people.

        Guarantee: nothing is freed whose owner may still believe to hold it.

        Args:
            dry_run: Free nothing, and return what would be freed.
        """

    def __reduce__(self) -> NoReturn:
        """Refuse: locks belong to this process and its connections. Send the catalog, which opens its own client."""
        raise TypeError("a lock manager can't be pickled or copied: send its catalog, which opens another one")

    @abstractmethod
    def close(self) -> None:
        """Release every lease of this client that is not explicit, and every connection. May be called again.

        Requests of other threads that are under way end: refused, and in no queue.
        """

    def __enter__(self) -> Self:
        """Return the manager itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
