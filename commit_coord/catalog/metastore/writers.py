"""Lock-only writers: they set the pointer without a condition, under the common lock alone."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from pyiceberg.typedef import Identifier

from commit_coord.errors import LockLost
from commit_coord.locks.base import Lease


class _CommonLock(Protocol):
    def is_common(self, lease: Lease, /) -> bool: ...

    def of(self, table: Identifier) -> AbstractContextManager[Lease]: ...


class LockOnlyWriters:
    """Finds out whether one of them may overwrite what was just swapped in, and waits until it is done.

    Args:
        common_lock: The lock that they take.
    """

    def __init__(self, common_lock: _CommonLock) -> None:
        self._common_lock = common_lock
        self._in_doubt: set[str] = set()
        """Metadata locations that were, or may have been, swapped in after the common lock was lost."""

    def doubt(self, location: str) -> None:
        """Remember that *location* may have been swapped in while the common lock was lost."""
        self._in_doubt.add(location)

    def wait(self, table: Identifier, location: str, latch: Lease) -> bool:
        """Wait for those that may have read the pointer of *table* before it was swapped to *location*.

        Args:
            table: The table.
            location: The metadata location that was swapped in.
            latch: The latch. The swap was made under it, unless it was lost meanwhile.

        Returns:
            Whether there may have been any. They are done.

        Raises:
            LockError: It is not known whether they are.
        """
        if self._common_lock.is_common(latch):
            try:
                latch.ensure_active()
            except LockLost:
                self.doubt(location)
        if location not in self._in_doubt:
            return False
        with self._common_lock.of(table):
            self._in_doubt.discard(location)
        return True
