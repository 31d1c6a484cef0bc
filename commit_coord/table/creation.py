"""Transactions that make a table."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import CreateTableTransaction, DataScan, StagedTable, Table, TableProperties, UpsertResult
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.errors import CommitNotApplied
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table.append import PureAppend
from commit_coord.table.created_files import CreatedFiles
from commit_coord.table.exact_rows import ExactRows
from commit_coord.table.foreign_files import grown_mapping


class CoordinatedCreation(ExactRows, CreateTableTransaction):
    """A transaction that makes a table, with rows if wanted. One that fails leaves no file."""

    def __init__(self, table: StagedTable) -> None:
        self._created = CreatedFiles()
        table.io = self._created.recording(table.io)
        super().__init__(table)

    def pend(self, producer: PureAppend) -> None:
        """Take the append of *producer*."""
        self._register_snapshot_producer(producer)
        self._apply(*producer._commit())

    def add_files(
        self,
        file_paths: list[str],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        check_duplicate_files: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Add files that exist.

        Raises:
            ValueError: A file is there already, does not fit the columns, or has rows of several partitions.
        """
        if len(set(file_paths)) < len(file_paths):
            raise ValueError("File paths must be unique")
        if check_duplicate_files and (there := self._find_referenced_data_files(file_paths)):
            raise ValueError(f"Cannot add files that are already referenced by table, files: {', '.join(there)}")
        if (mapping := grown_mapping(self.table_metadata)) is not None:
            self.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()})
        self._append_foreign(file_paths, snapshot_properties, branch)

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
            LockTimeout: A conflicting lock was not given back in time; every file that it created is gone.
            CommitStateUnknown: It is not known whether it landed. Every file is kept.
        """
        catalog: Any = self._table.catalog
        sent = False
        try:
            with catalog.operating(Operation.CREATE_TABLE, self._table.name()):
                sent = True
                table = super().commit_transaction()
        except BaseException as error:
            if not sent or isinstance(error, CommitNotApplied):
                self._created.abandon(self._table.io)
            raise
        self._created.forget()
        return table
