"""Finds out whether an earlier commit with the same request id or the same files has landed.

It is called before a commit, and after a commit was refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.table import Table

from commit_coord.errors import CommitLockFailed, CommitStateUnknown, FileInTable, LockError
from commit_coord.iceberg.attempt import request_uuid, table_name
from commit_coord.table.live_files import live_among
from commit_coord.table.ports import catalog_of

REFUSALS = (CommitFailedException, ValidationException, NoSuchTableError, LockError, ValueError, TypeError)
"""Errors that refuse a commit because of the head that it met, or of its arguments; and ``LockError``.

A ``LockError`` says nothing about commits: a caller that gets it does not know whether an earlier commit has landed.
``CommitLockFailed``, which says that nothing landed and never will, is a ``CommitFailedException``.
"""


class EarlierCommit:
    """The commits that were made before with the same request id, or the same files.

    Args:
        tables: The tables of the commit. Those in which the request has landed are refreshed to the present metadata.
        request_id: The caller's request id; None if there is none to look up.
    """

    def __init__(self, tables: Sequence[Table], request_id: str | None) -> None:
        self._tables = tables
        self._id = None if request_id is None else request_uuid(request_id)

    def has_landed(self, refused: Exception | None = None) -> bool:
        """Return whether an earlier commit of this request has landed: one of its tables says so.

        1. A commit overwrites rows and lands; its answer is lost.   2. The caller repeats it. The rows that it read
        have changed since, through the first try.   So the request id is looked up before anything is refused as stale.

        Args:
            refused: The error of this commit, which did not land; None before the commit.

        Raises:
            CommitStateUnknown: *refused* does not exclude that an earlier commit may still land.
        """
        if self._id is None:
            return False
        # Look into every table, so that every table object is refreshed.
        landed = [self._is_in(table, refused) for table in self._tables]
        if any(landed):
            return True
        # 1. An earlier commit is planned, and its swap is delayed.   2. We fail: no space, or no latch.   3. It lands.
        # If our commit was refused because of the head or of its arguments, an earlier one was planned on an older head
        # or was refused as well; it can't land any more. For a LockError see REFUSALS.
        if refused is None:
            return False
        if not isinstance(refused, REFUSALS) or isinstance(refused, CommitLockFailed):
            raise self._unknown("an earlier commit with this request id may still land", refused) from refused
        # 1. An earlier commit lands; its answer is lost.   2. Its table is renamed.
        # 3. Our commit is refused, because the name does not exist or belongs to another table. The renamed table uses
        # the files. (Without a journal nobody can tell.)
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
        """Return whether *table* contains the commit; if so, refresh the table object."""
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
        """Raise if a branch or tag has one of the files at *paths*, unless *refused* says so already.

        The files of *paths* may be deleted only if this returns and *refused* is not ``FileInTable``.

        Args:
            paths: The files.
            refused: The error of this commit.

        Raises:
            FileInTable: A branch or tag has one of the files. An earlier commit added the file, perhaps unknown to the
                caller.
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
