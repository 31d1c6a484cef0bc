"""The EXCLUSIVE lock of a metastore that unmodified writers take for each of their swaps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from pyiceberg.typedef import Identifier

from commit_coord.clock import Clock
from commit_coord.locks.base import Lease, LockManager
from commit_coord.model import LockMode, LockRequest, LockScope, Resource
from commit_coord.process import SYSTEM_HOST, Host


class CommonLock:
    """The common lock of each table, and the lock manager of the metastore that grants it.

    Args:
        own: The lock manager of this metastore that the commit latches come from; None where they come from elsewhere.
        latch_of: Returns the lease by which *own* holds the commit latch of a table.
        open_another: Opens a lock manager of this metastore, for where there is no own one.
        is_common: Whether a latch of ours is, or contains, the common lock.
        clock: Time.
        acquire_timeout_ms: How long a swap waits for the lock.
        host: Names this process, and its requests.
    """

    def __init__(
        self,
        own: LockManager | None,
        *,
        latch_of: Callable[[Resource], Lease | None],
        open_another: Callable[[], LockManager],
        is_common: Callable[[Lease], bool],
        clock: Clock,
        acquire_timeout_ms: int,
        host: Host = SYSTEM_HOST,
    ) -> None:
        self.own = own
        self.is_common = is_common
        self._latch_of, self._open_another = latch_of, open_another
        self._another: LockManager | None = None
        self._clock, self._timeout, self._host = clock, acquire_timeout_ms / 1000, host

    @property
    def manager(self) -> LockManager:
        """A lock manager of this metastore: the catalog's own, or an additional one."""
        if self.own is not None:
            return self.own
        if self._another is None:
            self._another = self._open_another()
        return self._another

    def held(self, table: Identifier) -> Lease | None:
        """Return the lease by which our latch of *table* is the common lock; None where it is not."""
        return None if self.own is None else self._latch_of(Resource.table(table))

    def of(self, table: Identifier) -> AbstractContextManager[Lease]:
        """Return the common lock of *table*: the latch itself, or one more for the swap.

        Raises:
            LockTimeout: Another owner held it for longer than ``lock.acquire-timeout-ms``.
            LockServiceUnavailable: The metastore did not answer.
        """
        held = self.held(table)
        if held is not None:
            return nullcontext(held)
        request = LockRequest.of(
            LockScope.COMMIT,
            {Resource.table(table): LockMode.EXCLUSIVE},
            owner=self._host.owner("swap"),
            request_id=str(self._host.new_id()),
        )
        return self.manager.acquire(request, deadline=self._clock.now() + self._timeout)

    def close(self) -> None:
        """Close the lock manager that was opened here, if any."""
        if self._another is not None:
            self._another.close()
