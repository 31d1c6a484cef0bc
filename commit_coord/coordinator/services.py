"""Services that the commits of one catalog share: pointers, lock manager, metadata cache, clock, events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.clock import Clock
from commit_coord.coordinator.offers import folder_of
from commit_coord.coordinator.request_ids import landed, shows_all_since
from commit_coord.coordinator.stores import PointerStore
from commit_coord.errors import CommitStateUnknown
from commit_coord.events import Events
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt, Beginning, table_name
from commit_coord.iceberg.overwrites import Overwrites
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.model import JournalEntry, LockMode, LockRequest, LockScope, Resource
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.commit import TryLimits

_LIMITS = TryLimits()


class Services:
    """Services that the commits of one catalog share.

    Args:
        store: Where the pointers are.
        locks: The lock manager of the commit latches.
        acquire_timeout_ms: How long one commit waits for its latch.
        clock: Time and random numbers.
        events: Receives the events of every commit.
        journal_lifetime_ms: How long the journal keeps a request id that the caller has chosen.
        group_max_size: The maximum number of appends in one swap.
        group_max_bytes: The maximum total size of the attempts of others in one swap.
        metadata: Reads the metadata of the tables in *store*; None creates a reader.
        limits: The limits of the protocol.
        host: Gives names to this process, its requests and its files.
        executor: Returns the threads of this process for file operations that run at the same time or later.
    """

    def __init__(
        self,
        store: PointerStore,
        locks: HandoverLockManager,
        *,
        acquire_timeout_ms: int,
        clock: Clock,
        events: Events,
        journal_lifetime_ms: int,
        group_max_size: int = 1,
        group_max_bytes: int = 1 << 20,
        metadata: MetadataReader | None = None,
        limits: TryLimits = _LIMITS,
        host: Host = SYSTEM_HOST,
        executor: Callable[[], Executor] = ExecutorFactory.get_or_create,
    ) -> None:
        self.store = store
        self.locks = locks
        self.metadata = metadata or MetadataReader(store.pointer, store.file_io)
        self.cache = self.metadata.cache
        self.lists = manifest_list.RecentLists()
        self.clock = clock
        self.events = events
        self.overwrites = Overwrites(self.read, events)
        self.limits = limits
        self.host = host
        self.executor = executor
        self._acquire_timeout_ms = acquire_timeout_ms
        self.journal_lifetime_ms = journal_lifetime_ms
        self.group_max_size = group_max_size
        self.group_max_bytes = group_max_bytes
        self._fences = threading.local()
        self.contended_tables: set[Identifier] = set()
        """Tables with several writers at the last commit.

        On other tables the holder looks for offers only if its own request was, or may have been, contended.
        """

    @contextmanager
    def fenced(self, lease_id: int) -> Iterator[None]:
        """Refuse every commit of this thread unless the Hive lease, and those of outer blocks, are live at the swap."""
        outer = self.fences
        self._fences.lease_ids = (*outer, lease_id)
        try:
            yield
        finally:
            self._fences.lease_ids = outer

    @property
    def fences(self) -> tuple[int, ...]:
        """The ids of the Hive leases that must be live for this thread's commits."""
        return getattr(self._fences, "lease_ids", ())

    def latch(self, *tables: Identifier, statement: str = "") -> HandoverLease:
        """Acquire the commit latches of *tables*, all or none; a context manager.

        Raises:
            LockTimeout: Another owner held one of them for longer than ``lock.acquire-timeout-ms``.
        """
        return self.locks.acquire(self._latch(tables, statement), deadline=self._deadline())

    def note_latch(self, table: Identifier, *, statement: str, within_ms: int | None = None) -> HandoverLease | None:
        """Acquire the latch that shows the note of *table*; None if the lock manager keeps no notes.

        Args:
            table: Which one.
            statement: Shown to those who wait.
            within_ms: Wait for at most this long, if it is less than ``lock.acquire-timeout-ms``.

        Raises:
            LockTimeout: Another owner held it for too long.
        """
        waits_ms = self._acquire_timeout_ms if within_ms is None else min(within_ms, self._acquire_timeout_ms)
        return self.locks.acquire_note(self._latch([table], statement), deadline=self.clock.now() + waits_ms / 1000)

    def latch_or_entry(self, attempt: Attempt, offer: str) -> HandoverLease | JournalEntry:
        """Acquire the latch of *attempt*'s table; if a latch holder has published *offer*, return its journal entry."""
        request = self._latch([attempt.table], f"commit {attempt.request_id}", offer)
        request = replace(request, offers_at=folder_of(attempt), changes_phase=attempt.changes_phase)
        return self.locks.submit(request, deadline=self._deadline())

    def _latch(self, tables: Sequence[Identifier], statement: str, offer: str = "") -> LockRequest:
        return LockRequest.of(
            LockScope.COMMIT,
            {Resource.table(table): LockMode.EXCLUSIVE for table in tables},
            owner=self.host.owner(statement),
            request_id=str(self.host.new_id()),
            offer=offer,
        )

    def _deadline(self) -> float:
        return self.clock.now() + self._acquire_timeout_ms / 1000

    def load(self, table: Identifier) -> tuple[TableMetadata, str]:
        """Return the metadata of *table* and its location.

        Raises:
            NoSuchTableError: There is no such table.
        """
        return self.metadata.load(table)

    def read(self, location: str) -> TableMetadata:
        """Return the metadata in the file at *location*, from the cache if possible."""
        return self.metadata.read(location)

    def json(self, location: str) -> Sequence[bytes]:
        """Return the JSON of the metadata at *location*, in parts; as it was written if this process has written it."""
        written = self.cache.json(location)
        return fast_metadata.dump_parts(self.read(location)) if written is None else written

    def find(self, table: Identifier, request_id: str) -> JournalEntry | None:
        """Return the entry of the commit with *request_id* from the journal, the snapshots or the metadata log.

        None means that it is in none of the three. The commit may still be running.

        Raises:
            NoSuchTableError: There is no such table.
        """
        metadata, location = self.load(table)
        return self.recall(table, metadata, location, request_id)

    def remembers(self, request_id: str, table_uuid: UUID) -> bool:
        """Return whether the journal has an entry of this request for the table with this UUID, under any name."""
        entry = self.locks.recall(request_id)
        return entry is not None and entry.table_uuid == str(table_uuid)

    def recall(
        self,
        table: Identifier,
        head: TableMetadata,
        location: str,
        request_id: str,
        first_sent: Beginning | None = None,
    ) -> JournalEntry | None:
        """Do :meth:`find` on the table with the metadata *head*.

        The journal has one entry for each request id. The entry may be for another table: for a dropped table with
        the same name, or for a table to which the caller committed with the same request id.

        Raises:
            CommitStateUnknown: The id was not found, and *head* does not show all commits since *first_sent* (None: not
                checked).
        """
        entry = self.locks.recall(request_id)
        if entry is not None and entry.table_uuid == str(head.table_uuid):
            return entry
        found = landed(head, location, table, request_id)
        if found is None and first_sent is not None and not shows_all_since(head, location, first_sent):
            raise CommitStateUnknown(
                "the table's history does not reach back to the first time that this request was sent, so the request "
                "may have landed; check its effect in the table before you send it with another request id",
                table=table_name(table),
                request_id=request_id,
            )
        return found
