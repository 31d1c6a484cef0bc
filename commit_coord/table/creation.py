"""Transactions that make a table."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pyiceberg.table import CreateTableTransaction, StagedTable, Table

from commit_coord.errors import CommitNotApplied
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table.created_files import CreatedFiles


class CoordinatedCreation(CreateTableTransaction):
    """A transaction that makes a table, with rows if wanted. One that fails leaves no file."""

    def __init__(self, table: StagedTable) -> None:
        self._created = CreatedFiles()
        table.io = self._created.recording(table.io)
        super().__init__(table)

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        """Commit, or give up what was prepared when the block failed."""
        if exctype is None:
            self.commit_transaction()
        else:
            self._created.abandon(self._table.io)

    def commit_transaction(self) -> Table:
        """Make the table.

        Raises:
            CommitConflict: There is one of that name; every file that the transaction created is gone.
            CommitNotApplied: Nothing landed for another reason; every file that it created is gone.
            CommitStateUnknown: It is not known whether it landed. Every file is kept.
        """
        catalog: Any = self._table.catalog
        try:
            with catalog.operating(Operation.CREATE_TABLE, self._table.name()):
                table = super().commit_transaction()
        except CommitNotApplied:
            self._created.abandon(self._table.io)
            raise
        self._created.forget()
        return table
