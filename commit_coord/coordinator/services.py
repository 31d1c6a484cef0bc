"""What the commits of one catalog share: pointers, the lock manager, metadata in memory, the clock, events."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.clock import Clock
from commit_coord.coordinator.request_ids import landed
from commit_coord.coordinator.stores import PointerStore
from commit_coord.events import Events
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.overwrites import Overwrites
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.model import JournalEntry, LockMode, LockRequest, LockScope, Resource
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.commit import Limits

_LIMITS = Limits()


class Services:
    """What the commits of one catalog share.

    Args:
        store: The pointers.
        locks: Serves the commit latches.
        acquire_timeout_ms: How long one commit waits for its latch.
        clock: Time and chance.
        events: Receives the end of every commit.
        journal_lifetime_ms: How long a caller's request id is remembered.
        group_max_size: Appends that one swap may publish.
        group_max_bytes: Size of the attempts of others that one swap may publish.
        metadata: Reads the metadata of the tables in *store*; None makes one.
        limits: Of the protocol.
        host: Names this process, its requests and its files.
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
        limits: Limits = _LIMITS,
        host: Host = SYSTEM_HOST,
    ) -> None:
        self.store = store
        self.locks = locks
        self.metadata = metadata or MetadataReader(store.pointer, store.file_io)
        self.cache = self.metadata.cache
        self.lists = manifest_list.Written()
        self.clock = clock
        self.events = events
        self.overwrites = Overwrites(self.read, events)
        self.limits = limits
        self.host = host
        self._acquire_timeout_ms = acquire_timeout_ms
        self.journal_lifetime_ms = journal_lifetime_ms
        self.group_max_size = group_max_size
        self.group_max_bytes = group_max_bytes
        self._fences = threading.local()
        self.contended_tables: set[Identifier] = set()
        """Tables where a commit met others lately: at those of a lone writer no offer is looked for."""

    @contextmanager
    def fenced(self, lease_id: int) -> Iterator[None]:
        """Refuse every commit of this thread unless the lease is live at its swap."""
        outer, self._fences.lease_id = self.fence, lease_id
        try:
            yield
        finally:
            self._fences.lease_id = outer

    @property
    def fence(self) -> int | None:
        """The lease without which this thread's commits are refused; None where there is none."""
        return getattr(self._fences, "lease_id", None)

    def latch(self, *tables: Identifier, statement: str = "") -> HandoverLease:
        """Take the commit latches of *tables*, all or none; a context manager.

        Raises:
            LockTimeout: Another owner held one of them for longer than ``lock.acquire-timeout-ms``.
        """
        return self.locks.acquire(self._latch(tables, statement), deadline=self._deadline())

    def latch_or_answer(self, attempt: Attempt, offer: str) -> HandoverLease | JournalEntry:
        """Take the latch of *attempt*'s table, unless its holder carries *offer* along."""
        request = self._latch([attempt.table], f"commit {attempt.request_id}", offer)
        request = replace(request, changes_phase=attempt.changes_phase)
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
        """Return the metadata in the file at *location*, from memory when it was read or written before."""
        return self.metadata.read(location)

    def find(self, table: Identifier, request_id: str) -> JournalEntry | None:
        """Return what is known of the commit with *request_id*: from the journal, the snapshots, the metadata log.

        None means that none of the three knows it. It may still be under way.

        Raises:
            NoSuchTableError: There is no such table.
        """
        metadata, location = self.load(table)
        return self.recall(table, metadata, location, request_id)

    def recall(self, table: Identifier, head: TableMetadata, location: str, request_id: str) -> JournalEntry | None:
        """Return what :meth:`find` does of the table that shows *head*.

        The journal has one entry of an id. It may be of another table: of one that had the name before, or of one that
        was given the same request.
        """
        entry = self.locks.recall(request_id)
        if entry is not None and entry.table_uuid == str(head.table_uuid):
            return entry
        return landed(head, location, table, request_id)
