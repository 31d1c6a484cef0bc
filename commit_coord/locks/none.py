"""No locks: everything is granted, everything answers. What keeps a table safe is the swap alone."""

from __future__ import annotations

from collections.abc import Sequence

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockRefused
from commit_coord.events import Events, LockAcquired
from commit_coord.locks.base import LockSettings, Policy
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.model import (
    ExpiryClock,
    Guarantees,
    LeaseState,
    LockEntry,
    LockRequest,
    LockScope,
    Reach,
    Resource,
)


class NoneLease(HandoverLease):
    """Holds nothing."""

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """Return unless released: nobody can take it away."""
        self._raise_if_over()

    def release(self) -> None:
        """Only the state changes."""
        self._transition(LeaseState.RELEASED)


class NoneLockManager(HandoverLockManager):
    """Grants every request at once and promises nothing.

    SHOW LOCKS is empty and UNLOCK succeeds, because programs that were written for Hive send them whether
    locks are on or off. LOCK is refused: an answer would promise a lock that does not exist.
    """

    name = "none"
    guarantees = Guarantees(
        mutual_exclusion=False,
        hierarchy=True,
        fifo=False,
        reach=Reach.NOBODY,
        expiry=False,
        survives_restart=False,
        explicit_locks=False,
        journal=False,
        clock=ExpiryClock.NONE,
    )

    def __init__(
        self,
        uri: str = "",
        *,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self.settings = settings or LockSettings()
        self._events = events or Events()

    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> HandoverLease:
        """Return a lease at once."""
        if request.explicit:
            raise LockRefused(
                "locks are turned off (lock-impl=none, hive.support.concurrency=false): no explicit lock can be kept",
                manager=self.name,
                locks=request,
            )
        if self._events.heard:
            self._events.emit(
                LockAcquired(
                    request_id=request.request_id,
                    request=str(request),
                    scope=request.scope.value,
                    waited_ms=0.0,
                    generation=None,
                )
            )
        return NoneLease(request, None)

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """Return nothing."""
        return []

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """Return nothing: there was nothing to free."""
        return []

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """Return nothing."""
        return []

    def close(self) -> None:
        """Nothing is open."""
