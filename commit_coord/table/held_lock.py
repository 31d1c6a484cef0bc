"""The operation lock that a transaction holds from its first call that needs one until its end."""

from __future__ import annotations

from collections.abc import Iterable

from commit_coord.locks.base import Lease
from commit_coord.model import LockMode, Resource
from commit_coord.protocol.hierarchy import COMMANDS, Operation
from commit_coord.table.operation_locks import acquire_unless_held, needed_locks
from commit_coord.table.ports import OperationLocking


class HeldLock:
    """The operation lock of one transaction.

    Args:
        catalog: Takes it.
        table: The name of the table.
    """

    def __init__(self, catalog: OperationLocking, table: Iterable[str]) -> None:
        self._catalog = catalog
        self._table = Resource.table(table)
        self._lease: Lease | None = None

    @property
    def held(self) -> bool:
        """Whether the transaction holds a lock."""
        return self._lease is not None

    def covers(self, operation: Operation) -> bool:
        """Return whether an earlier call has taken what *operation* takes, or more."""
        taken = {mode for _, mode in self._lease.request.locks} if self._lease is not None else set()
        return COMMANDS[operation].mode in taken or LockMode.EXCLUSIVE in taken

    def take(self, operation: Operation) -> bool:
        """Take what *operation* takes; return whether it takes anything that this thread does not hold otherwise.

        Raises:
            CommitLockFailed: The lock service could not be reached. Nothing was changed.
            LockError: It was not granted.
        """
        self.release()  # S, for which our own X would wait; what others commit in between is found at the commit
        needed = needed_locks(self._catalog, operation, self._table)
        # The only reference: when a transaction that was never ended is collected, so is its lease, and its manager
        # releases the locks.
        self._lease = acquire_unless_held(self._catalog, needed, operation.value)
        return self.held

    def release(self) -> None:
        """Give the lock back, if there is one."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
