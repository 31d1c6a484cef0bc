"""Which table a transaction is planned on, and which one its caller saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.table.commit_request import CommitRequest
from commit_coord.table.ports import TableCatalog
from commit_coord.table.staged import Draft

ShownHead = tuple[TableMetadata, str]
"""The table as it was shown, and where its metadata is."""


class Basis:
    """The heads of one transaction.

    Args:
        target: The caller's table object.
        draft: The changes, planned on what it shows at first.
        catalog: Knows the head.
        request: The commit, which conflicts name.
        seen: What *target* showed its caller, who may have read that, before it was loaded again under a lock.
    """

    def __init__(
        self, target: Table, draft: Draft, catalog: TableCatalog, request: CommitRequest, seen: ShownHead | None = None
    ) -> None:
        self._target = target
        self._draft = draft
        self._catalog = catalog
        self._request = request
        self.planned_on: ShownHead = (target.metadata, target.metadata_location)
        self.seen = seen or self.planned_on
        self._shown = target.metadata

    @property
    def has_moved(self) -> bool:
        """Whether the changes are planned on another table than the one that the caller saw."""
        return self.planned_on[0] is not self.seen[0]

    def is_planned_on(self, head: TableMetadata, location: str) -> bool:
        """Return whether the changes are planned on *head*."""
        base, base_location = self.planned_on
        return (location, fast_metadata.sequence_number(head)) == (base_location, fast_metadata.sequence_number(base))

    def head(self) -> ShownHead:
        """Return the table as it is now.

        Raises:
            NoSuchTableError: It was dropped.
        """
        return self._catalog.coordinator.load(self._request.table)

    def newer_head(self) -> ShownHead | None:
        """Return the table as it is now, None if the changes are planned on that.

        Raises:
            CommitConflict: It is another table of the same name.
            NoSuchTableError: It was dropped.
        """
        head, location = self.head()
        if self.is_planned_on(head, location):
            return None
        self.refuse_other_table(head)
        return head, location

    def refreshed(self) -> ShownHead | None:
        """Return what the caller's table object shows, if that was refreshed since it was asked for last."""
        shown = self._target.metadata
        if shown is self._shown:
            return None
        self._shown = shown
        return shown, self._target.metadata_location

    def refuse_other_table(self, head: TableMetadata) -> None:
        """Raise CommitConflict when *head* is of another table."""
        if head.table_uuid != self.planned_on[0].table_uuid:
            raise self._request.conflict("the table was dropped and created again since it was read")

    def move_to(self, metadata: TableMetadata, location: str) -> None:
        """Plan the changes on *metadata* from now on."""
        self._draft.table.metadata, self._draft.table.metadata_location = metadata, location
        self.planned_on = (metadata, location)

    def see_the_head(self) -> None:
        """Go on from the table as it is now, unless that is what is seen already.

        The table object of the caller stays as it is until the commit has landed: were it to show the head after a
        refusal, the same rows could be written in a second try.
        """
        if (newer := self.newer_head()) is not None:
            self.move_to(*newer)

    def show(self, metadata: TableMetadata, location: str) -> None:
        """Have the caller's table object show what is in the table now."""
        table = self._draft.table
        self._target.metadata = table.metadata = self._shown = metadata.model_copy(deep=True)
        self._target.metadata_location = table.metadata_location = location

    def begin_anew(self) -> None:
        """Plan what is called next on what the caller's table object shows: the commit has landed."""
        self.planned_on = self.seen = (self._draft.table.metadata, self._draft.table.metadata_location)

    @contextmanager
    def files_may_be_gone(self) -> Iterator[None]:
        """Say so if a file is gone and the table has changed since it was read: it may be gone for a good reason.

        Raises:
            CommitConflict: The table has changed.
            NoSuchTableError: It was dropped.
        """
        try:
            yield
        except FileNotFoundError as error:
            if self.is_planned_on(*self.head()):
                raise
            raise self._request.conflict(
                f"the table has changed since it was read, and a file is gone: {error}"
            ) from error
