"""Recognizes a commit of another protocol that has already landed: its reply was lost, and the client sent it again.

A client keeps the id of its snapshot when it sends a commit again, and the table contains this id. So a commit is
recognized by its snapshots; one that creates a table, by the table's UUID; and any commit by its request id, if the
client has chosen one. Only the table's metadata is read, because the manifest lists of a repeat may be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate, AssignUUIDUpdate, TableUpdate
from pyiceberg.typedef import Identifier

from commit_coord.coordinator import Committed, Coordinator
from commit_coord.errors import CommitStateUnknown
from commit_coord.iceberg.attempt import table_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBefore:
    """A commit that may be a repeat.

    Args:
        coordinator: Reads the table.
        table: The table.
        updates: The updates of the commit.
        creates: Whether the commit creates the table.
        request_id: The request id that the client has chosen; None if it has chosen none.
    """

    coordinator: Coordinator
    table: Identifier
    updates: Sequence[TableUpdate]
    creates: bool
    request_id: str | None

    def landed_in(self, head: TableMetadata, location: str) -> Committed | None:
        """Return the commit as it has landed, if *head* contains it; None if it does not."""
        ids = self._snapshot_ids
        if not any(head.snapshot_by_id(snapshot_id) is not None for snapshot_id in ids) and not self._made(head):
            if self.request_id is None:
                return None
            entry = self.coordinator.recall(self.table, head, location, self.request_id)
            if entry is None:
                return None
            ids = entry.snapshot_ids
        return Committed(metadata=head, location=location, snapshot_ids=ids, answered=True)

    def is_named_in(self, landed: Committed) -> bool:
        """Return whether the table in the state *landed* contains the request id, so no other commit has made it."""
        if self.request_id is None:
            return False
        found = self.coordinator.recall(self.table, landed.metadata, landed.location, self.request_id)
        return found is not None

    def landed_now(self) -> Committed | None:
        """Return the commit as it has landed; None if it has not, or if the table does not exist."""
        try:
            return self.landed_in(*self.coordinator.load(self.table))
        except NoSuchTableError:
            return None

    def landed_after(self, refused: Exception) -> Committed | None:
        """Return the commit as another copy of the same request has landed; None if none has.

        Args:
            refused: The error that refused this copy.

        Raises:
            CommitStateUnknown: It could not be found out.
        """
        if not self.leaves_traces:
            return None
        try:
            return self.landed_now()
        except Exception as error:  # noqa: BLE001 - with any error, the outcome is not known
            raise CommitStateUnknown(
                f"this commit did not land; it is not known whether an earlier copy of the request landed: {error}",
                table=table_name(self.table),
                request_id=self.request_id,
            ) from refused

    @property
    def leaves_traces(self) -> bool:
        """Whether the commit could be recognized in the table."""
        return bool(self._snapshot_ids) or self.creates or self.request_id is not None

    @property
    def _snapshot_ids(self) -> tuple[int, ...]:
        return tuple(update.snapshot.snapshot_id for update in self.updates if isinstance(update, AddSnapshotUpdate))

    def _made(self, head: TableMetadata) -> bool:
        assigned = [update.uuid for update in self.updates if isinstance(update, AssignUUIDUpdate)]
        return self.creates and head.table_uuid in assigned
