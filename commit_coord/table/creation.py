"""Transactions that make a table."""

from __future__ import annotations

from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyiceberg.table import CreateTableTransaction, StagedTable, Table, TableProperties, Transaction, UpsertResult
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.errors import CommitNotApplied
from commit_coord.iceberg.attempt import table_name
from commit_coord.model import Resource
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table.append import PureAppend
from commit_coord.table.arguments import listed
from commit_coord.table.created_files import CreatedFiles
from commit_coord.table.exact_rows import ExactRows
from commit_coord.table.foreign_files import grown_mapping, refuse_mapped_names
from commit_coord.table.live_files import canonical, live_among
from commit_coord.table.operation_locks import acquire, needed_locks
from commit_coord.table.ports import catalog_of
from commit_coord.table.producers import head_of
from commit_coord.table.staged import Draft, StagingTransaction

if TYPE_CHECKING:
    pass


class CoordinatedCreation(ExactRows, StagingTransaction, CreateTableTransaction):
    """A transaction that makes a table, with rows if wanted. One that fails leaves no file."""

    def __init__(self, table: StagedTable) -> None:
        self.created = CreatedFiles()
        table.io = self.created.recording(table.io)
        self.draft = Draft(table)
        self._sent = False
        CreateTableTransaction.__init__(self, table)

    def _stage(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Transaction:
        """Stage changes, or none of them where another column takes over the name of one in files that were added."""
        shown, before = self.table_metadata, self._updates
        super()._stage(updates, requirements)
        if any(isinstance(update, AddSchemaUpdate) for update in updates):
            try:
                refuse_mapped_names(shown, self.table_metadata.schema(), table_name(self._table.name()))
            except CommitNotApplied:
                self._updates = before
                raise
        return self

    def _is_sent(self) -> bool:
        return self._sent

    # Each call stages all that it does, or nothing.

    def append(self, *args: Any, **kwargs: Any) -> None:
        """Append rows."""
        with self.whole():
            super().append(*args, **kwargs)

    def overwrite(self, *args: Any, **kwargs: Any) -> None:
        """Replace rows by rows."""
        with self.whole():
            super().overwrite(*args, **kwargs)

    def dynamic_partition_overwrite(self, *args: Any, **kwargs: Any) -> None:
        """Replace partitions by rows."""
        with self.whole():
            super().dynamic_partition_overwrite(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> None:
        """Delete rows."""
        with self.whole():
            super().delete(*args, **kwargs)

    def upsert(self, *args: Any, **kwargs: Any) -> UpsertResult:
        """Update the rows that match, insert the others."""
        with self.whole():
            return super().upsert(*args, **kwargs)

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
            InvalidArguments: *file_paths* is no list of texts.
            ValueError: A file is there already, does not fit the columns, or has rows of several partitions.
        """
        file_paths = listed(file_paths, str, "file_paths")
        if len({*map(canonical, file_paths)}) < len(file_paths):
            raise ValueError("File paths must be unique")
        snapshot = head_of(self, branch)
        staged = [snapshot] if check_duplicate_files and snapshot is not None else []
        if there := live_among(file_paths, self._table.io, staged):
            raise ValueError(f"Cannot add files that are already referenced by table, files: {', '.join(there)}")
        with self.whole():
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
            self.created.abandon(self._table.io)

    def commit_transaction(self) -> Table:
        """Make the table.

        Raises:
            CommitConflict: There is one of that name; every file that the transaction created is gone.
            CommitNotApplied: Nothing landed for another reason; every file that it created is gone.
            LockTimeout: A conflicting lock was not given back in time; every file that it created is gone.
            CommitStateUnknown: It is not known whether it landed. Every file is kept.
        """
        catalog, name = catalog_of(self._table), self._table.name()
        # Changes of the columns that were made after the rows must leave room for them.
        found = (producer.written.misfit(self.table_metadata) for producer in self._snapshot_producers)
        if (reason := next((reason for reason in found if reason is not None), None)) is not None:
            self.created.abandon(self._table.io)
            raise CommitNotApplied(
                f"the table was not created, its rows do not fit its columns: {reason}", table=table_name(name)
            )
        try:
            needed = needed_locks(catalog, Operation.CREATE_TABLE, Resource.table(name))
            with acquire(catalog, needed, Operation.CREATE_TABLE.value) or nullcontext():
                self._sent = True
                table = super().commit_transaction()
        except BaseException as error:
            if not self._sent or isinstance(error, CommitNotApplied):
                self.created.abandon(self._table.io)
            raise
        self.created.forget()
        return table
