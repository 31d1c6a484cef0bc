"""Whether a commit that a client of another protocol asks for has landed before: the reply was lost, and it came again.

Clients keep the id of a snapshot when they try again, and the table keeps it. So a commit is known by its snapshots,
and one that makes a table by the UUID of that; by its request id where the client has chosen one. Only the metadata of
the table is read for it: the manifest lists that a repeat names may be gone by then.
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
    """A commit that may have been sent before.

    Args:
        coordinator: Of the table.
        table: The table.
        updates: What the commit asks for.
        creates: Whether it makes the table.
        request_id: The client's own; None where it has none.
    """

    coordinator: Coordinator
    table: Identifier
    updates: Sequence[TableUpdate]
    creates: bool
    request_id: str | None

    def landed_in(self, head: TableMetadata, location: str) -> Committed | None:
        """Return the commit as it has landed in the table that shows *head*; None where *head* does not know it."""
        ids = self._snapshot_ids
        if not any(head.snapshot_by_id(snapshot_id) is not None for snapshot_id in ids) and not self._made(head):
            if self.request_id is None:
                return None
            entry = self.coordinator.recall(self.table, head, location, self.request_id)
            if entry is None:
                return None
            ids = entry.snapshot_ids
        return Committed(metadata=head, location=location, snapshot_ids=ids, answered=True)

    def landed_now(self) -> Committed | None:
        """Return the commit as it has landed; None where it has not, or there is no table."""
        try:
            return self.landed_in(*self.coordinator.load(self.table))
        except NoSuchTableError:
            return None

    def landed_after(self, refused: Exception) -> Committed | None:
        """Return the commit as its twin, which was sent at the same time, has landed; None where it has not.

        Args:
            refused: What refused this one.

        Raises:
            CommitStateUnknown: It could not be found out.
        """
        if not self.leaves_traces:
            return None
        try:
            return self.landed_now()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
            raise CommitStateUnknown(
                f"this commit did not land; whether it was sent before and landed could not be found out: {error}",
                table=table_name(self.table),
                request_id=self.request_id,
            ) from refused

    @property
    def leaves_traces(self) -> bool:
        """Whether anything tells it from another commit."""
        return bool(self._snapshot_ids) or self.creates or self.request_id is not None

    @property
    def _snapshot_ids(self) -> tuple[int, ...]:
        return tuple(update.snapshot.snapshot_id for update in self.updates if isinstance(update, AddSnapshotUpdate))

    def _made(self, head: TableMetadata) -> bool:
        assigned = [update.uuid for update in self.updates if isinstance(update, AssignUUIDUpdate)]
        return self.creates and head.table_uuid in assigned
