"""What a commit is asked of, and what it asks: where pointers are kept, who plans again, what landed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt
from commit_coord.locks.base import Lease
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)


class PointerStore(Protocol):
    """Where the metadata location of every table is kept."""

    def pointer(self, table: Identifier) -> str | None:
        """Return the metadata location of *table* now, None when there is no such table."""
        ...

    def swap(self, table: Identifier, base: str | None, location: str) -> SwapResult:
        """Set the pointer of *table* to *location* if it is *base* (None: if the table does not exist).

        An answer that did not come is LOST_REPLY.

        Raises:
            Exception: The swap was not carried out and never will be: the store refused it, or it was not sent.
        """
        ...

    def swap_under_lease(self, lease_id: int, table: Identifier, base: str | None, location: str) -> SwapResult:
        """Do :meth:`swap` if the lease is live.

        Raises:
            LeaseEnded: It is not; the swap was not carried out and never will be.
            Exception: As :meth:`swap`.
        """
        ...

    def wait_for_unconditional_writers(self, table: Identifier, location: str, lease: Lease) -> bool:
        """Wait for writers that may have read the pointer before it was swapped to *location*, and do not compare.

        Args:
            table: Which one.
            location: What was swapped in.
            lease: The latch, under which that was done unless it was lost meanwhile.

        Returns:
            Whether there may have been any. They are done.

        Raises:
            LockError: It is not known whether they are.
        """
        ...

    def prepare_metadata(self, table: Identifier, head: TableMetadata | None, made: TableMetadata) -> TableMetadata:
        """Return *made* as it may follow *head* (None: as a new table), with what the store adds to it.

        Raises:
            ConfigError: This client must not commit to the table; nothing was done.
        """
        ...

    def file_io(self, properties: dict[str, str], location: str) -> FileIO:
        """Return the file store for *location*."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """The pointer of *table* is to go from *base* (None: the table does not exist) to *location*."""

    table: Identifier
    base: str | None
    location: str


@runtime_checkable
class SeveralPointersStore(Protocol):
    """A store that swaps the pointers of several tables at once."""

    def swap_all(self, swaps: Sequence[Swap], lease_id: int | None = None) -> SwapResult:
        """Swap all pointers if each is its base, or none.

        As :meth:`PointerStore.swap`.

        Args:
            swaps: Of different tables.
            lease_id: The lease that must be live; None asks for none.
        """
        ...


@runtime_checkable
class TableBoundLease(Protocol):
    """A latch of a lock manager that takes other locks for some tables than for others."""

    def lock_mismatch(self, properties: Mapping[str, str]) -> str | None:
        """Return why a table with these *properties* asks for other locks than these; None where it does not."""
        ...


def lock_mismatch(lease: Lease, properties: Mapping[str, str]) -> str | None:
    """Return why a table with these *properties* asks for other locks than *lease*; None where it does not.

    Asked under the latch: only what is read there holds until the swap.
    """
    return lease.lock_mismatch(properties) if isinstance(lease, TableBoundLease) else None


Replanner = Callable[[TableMetadata, str], Attempt]
"""Plans an attempt again on (head, head location). Raises what it refuses with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A commit that landed.

    Args:
        metadata: The table with it.
        location: The metadata file that published it.
        snapshot_ids: What it added.
        answered: Its request id had landed before; nothing was done now.
    """

    metadata: TableMetadata
    location: str
    snapshot_ids: tuple[int, ...]
    answered: bool = False


def published(metadata: TableMetadata, location: str, snapshot_ids: tuple[int, ...]) -> Committed:
    """Return the commit of *snapshot_ids*, the table as of the last of them."""
    at = fast_metadata.as_of(metadata, snapshot_ids[-1])
    return Committed(metadata=at, location=location, snapshot_ids=snapshot_ids)


def delete_quietly(io: FileIO, path: str) -> None:
    """Delete a file that nothing refers to. A failure leaves an orphan, which harms nobody."""
    with suppress(FileNotFoundError):
        try:
            io.delete(path)
        except FileNotFoundError:
            raise
        except Exception:
            logger.warning("a file that nothing refers to could not be deleted: %s", path, exc_info=True)
