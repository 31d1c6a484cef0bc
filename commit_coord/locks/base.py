"""The contract of every lock manager, in prose and types. ``commit_coord.testing.contract`` asserts it.

Theory of operation
    A *request* (:class:`~commit_coord.model.LockRequest`) enters the queues of all its resources in one
    atomic step, so any two requests have the same order in every queue that they share and waiting in
    place cannot deadlock. It is granted when no conflicting request is before it in any queue.
    What is granted is a *lease*: it ends by release, by expiry, or by force. If no code refers to a lease any more (for
    example, because it was the result of a cancelled future), nobody can release it. So the manager releases it, unless
    it is the lease of a LOCK statement.

    A manager is the client of one lock service and lives as long as its catalog.
    All threads of a process share one manager.

What this contract does not cover
    It does not cover commits: a manager knows only resources, owners and time. What it passes from one holder of a
    commit latch to the next is in another contract, ``handover``. It does not cover the safety of data either: a holder
    that was paused for longer than its lease time may continue at any moment, so a commit publishes by compare-and-set.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from commit_coord.config.values import DEFAULT_LEASE_MS, check_heartbeat, default_heartbeat_ms
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
"""Seconds for which an operation is retried where no caller set a limit: enough to replace a broken connection."""

DENY_JITTER = 0.1
"""Random part of the sleep between two tries: otherwise clients that were refused together would retry together."""

PAGE = 1000
"""Default of :attr:`LockSettings.page_size`."""

LeaseListener = Callable[["Lease", LeaseState], None]


class Interrupted(LockServiceUnavailable):
    """The service was busy or the connection broke. The call may have been executed; it is safe to repeat it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings:
    """Times that every lock manager understands, and the size of a page.

    The properties have the names and meanings of Iceberg's ``lock.*`` properties.

    Args:
        acquire_timeout_ms: ``lock.acquire-timeout-ms``: how long callers wait when they set no deadline of their own.
        lease_ms: ``lock.heartbeat-timeout-ms``: the lease time: how long a lease is kept without heartbeats.
        heartbeat_interval_ms: ``lock.heartbeat-interval-ms``: the longest time between two heartbeats.
        poll_interval_ms: ``lock.acquire-interval-ms``: how often a waiter checks whether the owner that blocks it has
            died. Where the service sends no notifications, also how often the waiter asks for its lock.
        check_min_wait_ms: ``lock.check-min-wait-ms``: the shortest wait between two checks of a lock, for a service
            without notifications.
        check_max_wait_ms: ``lock.check-max-wait-ms``: the longest.
        page_size: Approximate number of locks in one page of a listing. No property sets it; the contract suite does.

    Raises:
        ConfigError: A time is not positive, or the heartbeat interval is more than a third of the lease time.
    """

    acquire_timeout_ms: int = 180_000
    lease_ms: int = DEFAULT_LEASE_MS
    heartbeat_interval_ms: int = default_heartbeat_ms(DEFAULT_LEASE_MS)
    poll_interval_ms: int = 100
    check_min_wait_ms: int = 50
    check_max_wait_ms: int = 5_000
    page_size: int = PAGE

    def __post_init__(self) -> None:
        """Raise for invalid times."""
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
    """Keep the place in the queue and wait (FIFO): no request starves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenyPolicy:
    """Hive's policy: on conflict release all locks, sleep, and try again.

    Args:
        numretries: Tries after the first (``hive.lock.numretries``).
        sleep_between_retries_ms: ``hive.lock.sleep.between.retries``.
    """

    numretries: int = 100
    sleep_between_retries_ms: int = 60_000

    @property
    def longest_s(self) -> float:
        """The longest total of all sleeps between tries, with jitter; seconds."""
        return self.numretries * self.sleep_between_retries_ms / 1000 * (1 + DENY_JITTER)


Policy = WaitPolicy | DenyPolicy
"""Whether a request waits in the queues, or leaves them and tries again."""


class Lease(ABC):
    """The locks of a granted request. Thread safe. As a context manager it releases the locks at the end.

    Each manager adds its own record of the locks in a subclass; state and listeners are here.
    """

    def __init__(self, request: LockRequest, generation: Generation | None) -> None:
        self.request = request
        self.generation = generation
        self._state = LeaseState.HELD
        self._reason = ""
        self._listeners: list[LeaseListener] = []
        self._state_lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a lease belongs to its process. For a lease of ``catalog.leases``, send its lease id."""
        raise TypeError("a lease can't be pickled or copied: its locks belong to the process that acquired them")

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT (the service has not answered for a while), LOST or RELEASED, as last known to this client."""
        return self._state

    def add_listener(self, listener: LeaseListener) -> None:
        """Call *listener* (lease, new state) at every change of state, in the thread that notices the change."""
        self._listeners.append(listener)

    @abstractmethod
    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """Raise an error unless this client still holds the lease.

        Args:
            max_age_ms: If the service confirmed the lease less than this time ago, it is not asked again.
                None takes a third of the lease time; 0 always asks.

        Raises:
            LockLost: This client does not hold the lease any more: its state is LOST or RELEASED, and stays so. Or this
                process is a forked child, and the lease belongs to its parent.
            LockServiceUnavailable: The service did not answer, and the lease may have expired.

        Source: Iceberg Java ``HiveLock.ensureActive``.
        """

    @abstractmethod
    def release(self) -> None:
        """Release the locks. Never raises and never blocks for long. Idempotent.

        If the service does not confirm a release, the manager emits ``LockReleaseFailed`` and repeats the release in
        the background. In any case the locks end when the lease expires.
        """

    def _transition(self, state: LeaseState, reason: str = "") -> bool:
        """Change to *state* unless the present state is final, and call the listeners. Return whether it changed."""
        changed = self._change(state, reason)
        if changed:
            self._tell(state)
        return changed

    def _change(self, state: LeaseState, reason: str) -> bool:
        """Change to *state* unless the present state is final. Return whether it changed."""
        with self._state_lock:
            if self._state in (LeaseState.LOST, LeaseState.RELEASED) or self._state is state:
                return False
            self._state, self._reason = state, reason
            return True

    def _tell(self, state: LeaseState) -> None:
        """Call the listeners.

        If a listener raises SystemExit, or an interrupt arrives, the other listeners are not called. Callers therefore
        record everything important before this call.
        """
        for listener in tuple(self._listeners):
            try:
                listener(self, state)
            except Exception:
                # release must not raise, and the heartbeat must continue for other leases, so a listener's error is
                # only logged.
                logger.exception("a lease listener failed on %s", state)

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
        """Release the locks, also after an exception."""
        self.release()


class HeartbeatSender:
    """Sends the heartbeats of a client in the background. This base class does nothing."""

    def pause(self) -> None:
        """Send no heartbeat until :meth:`resume`. Tests use this to let leases expire."""

    def resume(self) -> None:
        """Continue after :meth:`pause`."""

    def stop(self) -> None:
        """End the background work; it starts again when a lease needs it."""


class LockManager(ABC):
    """A client of one lock service.

    Guarantee, for every manager: if :meth:`acquire` ends without returning a lease
    (timeout, refusal, KeyboardInterrupt, SystemExit, any BaseException), no part of the request stays queued.
    If the service can't be reached, this does not hold: the request stays queued until it expires.
    """

    name: str
    guarantees: Guarantees
    settings: LockSettings
    refuses_waits: bool = False
    """Whether :meth:`refuse_waits` ends the requests that wait."""
    keeps_hive_leases: bool = False
    """Whether it stores its locks in a database where ``locks/hive_lease`` can keep leases, too."""

    @property
    def heartbeat(self) -> HeartbeatSender:
        """The background task that sends the heartbeats of this client; by default it does nothing."""
        return HeartbeatSender()

    @abstractmethod
    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> Lease:
        """Block until every lock of *request* is granted.

        Guarantee: all or nothing.

        Args:
            request: Resources and modes. :meth:`LockRequest.of` has added the parents that are also to be locked.
            deadline: The time of ``Clock.now``, in seconds, at which the whole acquire gives up.
            policy: None means ``WaitPolicy()``.

        Returns:
            A held lease. Its generation is larger than that of every earlier lease that conflicted with it.

        Raises:
            LockTimeout: The deadline passed; the message names the nearest holder.
            LockReentered: This thread already holds a lease of this manager on one of the resources, so it would wait
                for itself forever.
            LockDeadlock: This thread and others hold locks and wait for each other, and this request is the youngest.
            LockRefused: A conflict remained after the policy's retries; or the manager's ``guarantees`` do not include
                a lock of this kind.
            LockServiceUnavailable: The service could not be reached.
        """

    def holds(self, resource: Resource, mode: LockMode) -> bool:
        """Return whether this thread holds an operation lock on *resource*, at least in *mode*, or X on a parent."""
        return self.lease_on(resource, mode) is not None

    def lease_on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """Return this thread's lease that covers *resource* in at least *mode*; None if there is none."""
        return None

    @abstractmethod
    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """Return the held and the awaited locks on *resource* and below it, oldest request first.

        Args:
            resource: None lists everything.
            scope: None lists both scopes.
        """

    def pages(
        self, resource: Resource | None = None, *, scope: LockScope | None = None
    ) -> Iterator[Sequence[LockEntry]]:
        """Yield the entries of :meth:`locks` in pages, resource by resource.

        A service may yield the first page before it has read the others; this default reads all first.

        Each page shows the locks at the time when it was read. If a request waits for a lock that is on a later page,
        an earlier page may show the other locks of this request as held.
        """
        entries = sorted(self.locks(resource, scope=scope), key=lambda entry: (entry.scope, entry.resource))
        size = self.settings.page_size
        for start in range(0, len(entries), size):
            yield entries[start : start + size]

    def listed(self, resource: Resource) -> Resource:
        """Return *resource* as :meth:`locks` names it.

        A service that limits the length of names shows a shortened name.
        """
        return resource

    def is_on(self, entry: LockEntry, resource: Resource) -> bool:
        """Return whether *entry* of :meth:`locks` is on exactly *resource*."""
        return entry.resource in (resource, self.listed(resource))

    @abstractmethod
    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """Release locks of any owner by force: one request, or every request that locks exactly *resource*.

        A waiter that is removed while the service is still adding it may enter again, at the end of the queue.

        Returns:
            The released locks; empty if there were none. The leases of their owners become LOST.

        Raises:
            PartlyFreed: Some were released, or may have been, and then the service failed.
            LockServiceUnavailable: The service failed, and none was released.
        """

    def unlock_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """Release requests of any owners by force, and yield the released locks of each, in this order.

        A request is released only when the caller takes its item from the iterator. This default implementation lists
        all locks again for each request.
        """
        for request_id in request_ids:
            yield self.unlock(request_id=request_id)

    @abstractmethod
    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """Release the locks and requests of dead owners, and return them.

        An owner is dead if its lease has expired by the service's clock, or if its process has certainly ended (only a
        process on this host can be checked). A service may have no clock of its own. There an owner is dead if its
        recorded heartbeat stays the same for the lease time, so this call may take that long. Granted locks of LOCK
        statements (*explicit* locks), guards and locks of other programs are not released; a person must release them.

        Guarantee: no lock is released while its owner may still consider itself the lock holder.

        Args:
            dry_run: Release nothing, and return the locks that would be released.
        """

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: locks belong to this process. Send the catalog, which opens its own lock manager."""
        raise TypeError("a lock manager can't be pickled or copied: send its catalog, which opens another one")

    def refuse_waits(self) -> None:
        """Tell all requests that wait now to leave their queues; each ends with ClientStops.

        If another holder has taken the offer of a request, this request continues to wait for its outcome.

        This call does not wait until they have left. Leases stay held, and later requests may wait as usual. The
        default is for managers without waiting requests: it does nothing. A manager that overrides it also sets
        ``refuses_waits``; else the contract suite also accepts waits that go on.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Release every lease of this client that is not explicit, and close every connection. Idempotent.

        Requests of other threads that are still waiting leave their queues and end with an error.
        """

    def __enter__(self) -> Self:
        """Return the manager itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
