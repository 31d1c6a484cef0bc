"""Whether an earlier commit of the same files or request has landed: asked before a commit, and after its refusal."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.table import Table

from commit_coord.errors import CommitLockFailed, CommitStateUnknown, FileInTable, LockError
from commit_coord.iceberg.attempt import request_uuid, table_name
from commit_coord.table.live_files import live_among
from commit_coord.table.ports import catalog_of

REFUSALS = (CommitFailedException, ValidationException, NoSuchTableError, LockError, ValueError, TypeError)
"""What ends a commit because of the head that it met, or of its arguments."""


class EarlierCommit:
    """The commits that were made before with the same request id, or the same files.

    Args:
        tables: Of the commit; they show what is there when the request is found to have landed.
        request_id: What the caller calls it; None where it can't be asked for.
    """

    def __init__(self, tables: Sequence[Table], request_id: str | None) -> None:
        self._tables = tables
        self._id = None if request_id is None else request_uuid(request_id)

    def has_landed(self, refused: Exception | None = None) -> bool:
        """Return whether an earlier commit of this request has landed: one of its tables says so.

        1. A commit overwrites rows and lands; its answer is lost.   2. The caller repeats it. What it has read has
        changed since: through itself.   So the request is looked up before anything is called stale.

        Args:
            refused: What this commit ended with, before it was sent.

        Raises:
            CommitStateUnknown: *refused* does not exclude that an earlier commit may still land.
        """
        if self._id is None:
            return False
        landed = [self._is_in(table, refused) for table in self._tables]  # of each, so that each shows it
        if any(landed):
            return True
        # 1. An earlier commit is planned, and its swap is delayed.   2. We fail: no space, or no lock.   3. It lands.
        # If our commit was refused because of the head or of its arguments, an earlier one was planned on an older head
        # or was refused as well; it can't land any more.
        if refused is None:
            return False
        if not isinstance(refused, REFUSALS) or isinstance(refused, CommitLockFailed):
            raise self._unknown("an earlier commit with this request id may still land", refused) from refused
        # 1. An earlier commit lands; its answer is lost.   2. Its table is renamed.   3. We are refused: the name is
        # free, or another table's. The files are in use. (Without a journal nobody can tell.)
        try:
            has_moved = any(
                catalog_of(table).coordinator.remembers(self._id, table.metadata.table_uuid) for table in self._tables
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
            raise self._unknown("it is not known whether an earlier commit with this id landed", error) from refused
        if has_moved:
            raise self._unknown("an earlier one did, and its table was renamed or dropped since", refused) from refused
        return False

    def _is_in(self, table: Table, refused: Exception | None) -> bool:
        """Return whether the commit is in *table*, which shows it then."""
        coordinator, name, request_id = catalog_of(table).coordinator, table.name(), self._id
        assert request_id is not None
        try:
            metadata, location = coordinator.load(name)
            landed = coordinator.recall(name, metadata, location, request_id) is not None
        except NoSuchTableError:
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
            if refused is None:
                return False  # it is asked again at the latch, or when it is refused
            raise self._unknown("it is not known whether an earlier commit with this id landed", error) from refused
        if landed:
            table.metadata, table.metadata_location = metadata.model_copy(deep=True), location
        return landed

    def refuse_live(self, paths: Sequence[str], refused: Exception) -> None:
        """Return if no branch and no tag has one of the files at *paths*: they may be deleted.

        Args:
            paths: The files.
            refused: What this commit ended with.

        Raises:
            FileInTable: One of them has. An earlier commit added the file, perhaps unknown to the caller.
            CommitStateUnknown: It is not known whether they are in the table.
        """
        (table,) = self._tables
        try:
            metadata, _ = catalog_of(table).coordinator.load(table.name())
            heads = {ref.snapshot_id: metadata.snapshot_by_id(ref.snapshot_id) for ref in metadata.refs.values()}
            there = live_among(paths, table.io, [snapshot for snapshot in heads.values() if snapshot is not None])
        except NoSuchTableError:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
            raise self._unknown("it is not known whether its files are in the table", error) from refused
        if there and not isinstance(refused, FileInTable):
            raise FileInTable(
                f"a file is already in the table, so nothing was committed: keep the file ({refused})",
                table=table_name(table.name()),
                file=", ".join(there),
            ) from refused

    def _unknown(self, doubt: str, error: Exception) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"this commit did not land; {doubt}: {error}",
            table=", ".join(table_name(table.name()) for table in self._tables),
            request_id=self._id,
        )
