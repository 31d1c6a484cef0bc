"""Recognizes a commit of another protocol that has already landed: its reply was lost, and the client sent it again.

A client keeps the id of its snapshot when it sends a commit again, and the table contains this id. So a commit is
recognized by its snapshots; one that creates a table, by the table's UUID; and any commit by its request id, if the
client has chosen one. Only the table's metadata is read, because the manifest lists of a repeat may be deleted.

A commit lands as a whole. So a table that contains only some of its snapshots proves neither that it landed nor that it
did not: the others may have expired, or another commit may have used the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate, AssignUUIDUpdate, TableUpdate
from pyiceberg.typedef import Identifier

from commit_coord.coordinator import Committed, Coordinator
from commit_coord.errors import CommitStateUnknown
from commit_coord.iceberg.attempt import Beginning, table_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBefore:
    """A commit that may be a repeat.

    Args:
        coordinator: Reads the table.
        table: The table.
        updates: The updates of the commit.
        creates: Whether the commit creates the table.
        table_uuid: The UUID that the table must have; None if the commit does not say.
        request_id: The request id that the client has chosen; None if it has chosen none.
        since: The table as the first copy of the request found it, if this is another copy and that is known.
    """

    coordinator: Coordinator
    table: Identifier
    updates: Sequence[TableUpdate]
    creates: bool
    table_uuid: UUID | None
    request_id: str | None
    since: Beginning | None

    def head(self) -> tuple[TableMetadata, str]:
        """Return the metadata of the table and its location.

        Raises:
            NoSuchTableError: The table does not exist.
            CommitStateUnknown: Its metadata file does not exist, or is not whole. An earlier copy of the commit may
                have landed in it. Or it has landed, and the table has another name now.
        """
        try:
            return self.coordinator.load(self.table)
        except NoSuchTableError:
            self._refuse_if_renamed()
            raise
        except (FileNotFoundError, ValueError) as error:
            raise CommitStateUnknown(
                "the metadata file of the table does not exist or can't be read, so it is not known whether the commit "
                "has landed",
                table=table_name(self.table),
                file=str(error),
                request_id=self.request_id,
            ) from error

    def landed_in(self, head: TableMetadata, location: str) -> Committed | None:
        """Return the commit as it has landed, if *head* contains it; None if it does not.

        Raises:
            CommitStateUnknown: *head* contains some of its snapshots, and others not. Or it contains none, and does not
                reach back to the first copy of the request. Or the commit has landed, and another table has the name.
        """
        ids = self._snapshot_ids
        found = [snapshot_id for snapshot_id in ids if head.snapshot_by_id(snapshot_id) is not None]
        if not (found and len(found) == len(ids)) and not self._made(head):
            entry = None
            if self.request_id is not None:
                entry = self.coordinator.recall(self.table, head, location, self.request_id, self.since)
            if entry is None and found:
                raise CommitStateUnknown(
                    "the table contains only some of the commit's snapshots: the others may have expired, or these may "
                    "belong to another commit; look for their rows before you send the commit with new snapshot ids",
                    table=table_name(self.table),
                    snapshots=", ".join(map(str, found)),
                    request_id=self.request_id,
                )
            if entry is None:
                if head.table_uuid != self.table_uuid:
                    self._refuse_if_renamed()
                return None
            ids = entry.snapshot_ids
        return Committed(metadata=head, location=location, snapshot_ids=ids, landed_before=True)

    def is_named_in(self, landed: Committed) -> bool:
        """Return whether the table in the state *landed* contains the request id, so no other commit has made it."""
        if self.request_id is None:
            return False
        found = self.coordinator.recall(self.table, landed.metadata, landed.location, self.request_id)
        return found is not None

    def landed_now(self) -> Committed | None:
        """Return the commit as it has landed; None if it has not, or if the table does not exist.

        Raises:
            CommitStateUnknown: As :meth:`landed_in` and :meth:`head`.
        """
        try:
            return self.landed_in(*self.head())
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

    def _refuse_if_renamed(self) -> None:
        """Return if the table has not been renamed since the commit landed, as far as the journal tells.

        1. The commit lands; its answer is lost.   2. The table is renamed.   3. The request arrives again. After a
        refusal, the client would delete files that the table uses.

        Raises:
            CommitStateUnknown: The journal has the commit, and says that it is in the table that was meant.
        """
        if self.request_id is None or self.table_uuid is None:
            return  # nobody asked for this table and no other
        if self.coordinator.remembers(self.request_id, self.table_uuid):
            raise CommitStateUnknown(
                "the commit has landed, and its table was renamed or dropped since, so its state can't be returned; do "
                "not repeat the commit, and keep its files",
                table=table_name(self.table),
                table_uuid=self.table_uuid,
                request_id=self.request_id,
            )

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
