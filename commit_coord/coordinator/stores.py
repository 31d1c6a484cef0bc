"""The interfaces between a commit and its catalog: the store of pointers, the replanner, the result of a commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt
from commit_coord.locks.base import Lease
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.migration import State

logger = logging.getLogger(__name__)


class PointerStore(Protocol):
    """Keeps the metadata location of every table."""

    def pointer(self, table: Identifier) -> str | None:
        """Return the present metadata location of *table*, None if there is no such table."""
        ...

    def swap(self, table: Identifier, base: str | None, location: str) -> SwapResult:
        """Set the pointer of *table* to *location* if it is *base* (None: if the table does not exist).

        If the store does not answer, return LOST_REPLY.

        Raises:
            Exception: The swap was not executed and never will be: the store refused it, or it was not sent. Unless it
                is in doubt (:mod:`commit_coord.doubt`).
        """
        ...

    def swap_under_leases(
        self, lease_ids: Sequence[int], table: Identifier, base: str | None, location: str
    ) -> SwapResult:
        """Do :meth:`swap` if the Hive leases are live.

        Raises:
            LeaseEnded: One has ended; the swap was not executed and never will be.
            Exception: As :meth:`swap`.
        """
        ...

    def wait_for_lock_only_writers(self, table: Identifier, location: str, lease: Lease) -> bool:
        """Wait for lock-only writers that may have read the pointer before the swap.

        Args:
            table: The table.
            location: The metadata location that was swapped in.
            lease: The latch. The swap was made under it, unless it was lost meanwhile.

        Returns:
            Whether there may have been such writers; when this returns, all of them have finished.

        Raises:
            LockError: It is not known whether all of them have finished.
        """
        ...

    def prepare_metadata(
        self, table: Identifier, head: TableMetadata | None, made: TableMetadata, *, changes_phase: bool
    ) -> TableMetadata:
        """Check that *made* may replace *head* (None: it is a new table); return it with what the store adds to it.

        Args:
            table: Which one.
            head: The table as it is.
            made: What a commit is about to publish.
            changes_phase: Whether that commit may bring the table to another phase (``protocol/migration``).

        Raises:
            ConfigError: This client must not commit to the table; nothing was done.
        """
        ...

    def file_io(self, location: str) -> FileIO:
        """Return the file store for *location*; no property of a table changes it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerSwap:
    """The pointer of *table* is to go from *base* (None: the table does not exist) to *location*."""

    table: Identifier
    base: str | None
    location: str


@runtime_checkable
class MultiTableStore(Protocol):
    """A store that swaps the pointers of several tables at once."""

    def swap_all(self, swaps: Sequence[PointerSwap], lease_ids: Sequence[int] = ()) -> SwapResult:
        """Swap all pointers if each of them still has its base as value; otherwise swap none.

        As :meth:`PointerStore.swap`.

        Args:
            swaps: One for each table.
            lease_ids: The ids of the Hive leases that must be live.
        """
        ...


@runtime_checkable
class TableBoundLease(Protocol):
    """A latch of the lock manager ``migration``, which takes different locks depending on the phase of the table."""

    def lock_mismatch(self, state: State) -> str | None:
        """Return why a table in *state* needs other locks than these; None if it does not."""
        ...


def lock_mismatch(lease: Lease, properties: Mapping[str, str]) -> str | None:
    """Return why a table with these *properties* needs other locks than *lease*; None if it does not.

    Call this under the latch, with properties that were read under it: only these can't change before the swap.
    """
    return lease.lock_mismatch(State.of(properties)) if isinstance(lease, TableBoundLease) else None


Replanner = Callable[[TableMetadata, str], Attempt]
"""Plans an attempt again on (head, head location). Raises an exception to refuse it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit that landed.

    Args:
        metadata: The table metadata with the commit.
        location: The metadata file that published it.
        snapshot_ids: The snapshots that it added.
        landed_before: The request id had landed before this call, which did nothing.
    """

    metadata: TableMetadata
    location: str
    snapshot_ids: tuple[int, ...]
    landed_before: bool = False


def published(metadata: TableMetadata, location: str, snapshot_ids: tuple[int, ...]) -> Committed:
    """Return the commit of *snapshot_ids*, with the table as of the last of these snapshots."""
    at = fast_metadata.as_of(metadata, snapshot_ids[-1])
    return Committed(metadata=at, location=location, snapshot_ids=snapshot_ids)


@contextmanager
def new_file(location: str, created: list[str]) -> Iterator[None]:
    """Write down in *created* the file that the block creates at *location*, before it exists.

    A file that was there before the block is not written down: what is written down is deleted if it is of no use.
    """
    created.append(location)
    try:
        yield
    except FileExistsError:
        created.remove(location)
        raise


def delete_quietly(io: FileIO, path: str) -> bool:
    """Delete a file that no table refers to. Return whether it is gone; if not, it stays as an orphan: no harm."""
    with suppress(FileNotFoundError):
        try:
            io.delete(path)
        except FileNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 - an error of any store
            # Without a traceback: often this is the error that also made the file useless, and that one must be seen.
            logger.warning("an unused file could not be deleted: %s: %s", path, error)
            return False
    return True
