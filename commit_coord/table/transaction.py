"""A PyIceberg transaction that commits through the coordinator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import DataScan, Table, TableProperties, Transaction, UpsertResult
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import UpdateSnapshot
from pyiceberg.table.update.sorting import UpdateSortOrder
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.errors import NoSuchProperty
from commit_coord.iceberg.attempt import table_name
from commit_coord.protocol.hierarchy import Operation as Operates
from commit_coord.table import partition_filters
from commit_coord.table.append import CoordinatedUpdateSnapshot
from commit_coord.table.arguments import listed
from commit_coord.table.calls import RecordingBuilder, replayable
from commit_coord.table.foreign_files import grown_mapping
from commit_coord.table.isolation import seen_from
from commit_coord.table.live_files import canonical
from commit_coord.table.planned import PlannedTransaction
from commit_coord.table.producers import head_of
from commit_coord.table.spec_changes import SpecChanges
from commit_coord.table.staged import StagingTransaction
from commit_coord.table.written_files import WrittenFiles

if TYPE_CHECKING:
    import pyarrow as pa


B = TypeVar("B")


class CoordinatedTransaction(PlannedTransaction):
    """A PyIceberg transaction that commits through the coordinator: what users call.

    Args:
        table: What it changes. Its metadata is replaced when the commit has landed.
        autocommit: Commit with the first staged change.
        operation: The operation for changes from PyIceberg's builders, which do not name one.
        seen: What *table* showed its caller, who may have read that, before it was loaded again under a lock.
    """

    # Each call is PyIceberg's, recorded; those that read take their operation locks first.

    @replayable
    def append(
        self,
        df: pa.Table | pa.RecordBatchReader,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
        *,
        reads: BooleanExpression | str | None = None,
    ) -> None:
        """Append rows. Re-based on any head: an append alone never fails by conflict.

        Args:
            df: The rows.
            snapshot_properties: Go into the snapshot's summary.
            branch: Where they go.
            reads: What they were computed from; :meth:`depends_on`. None: the rows that this transaction deletes.
        """
        self._lock_operation(Operates.APPEND)
        self.dependencies.names_columns()
        self.dependencies.brings_rows(reads, branch)
        super().append(df, snapshot_properties, branch)

    @replayable
    def overwrite(
        self,
        df: pa.Table | pa.RecordBatchReader,
        overwrite_filter: BooleanExpression | str = AlwaysTrue(),
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        *,
        reads: BooleanExpression | str | None = None,
        read_at: int | None = None,
    ) -> None:
        """Replace the rows that match *overwrite_filter* with *df*.

        Args:
            df: The rows, which the caller may have computed from the table.
            overwrite_filter: Which rows they replace.
            snapshot_properties: Go into the snapshots' summaries.
            case_sensitive: How the filters name columns.
            branch: Where the rows are.
            reads: What *df* was computed from. None: the rows that match *overwrite_filter*. ``NOTHING``: no row, so
                that it replaces what matches at the moment at which the commit lands, whatever that is.
            read_at: The snapshot that was read; None: the one that the table showed before this call.

        Raises:
            StaleRead: What *df* was computed from has changed meanwhile. Nothing landed.
        """
        self._lock_operation(Operates.OVERWRITE)
        self.dependencies.names_columns(overwrite_filter, case_sensitive)
        self.dependencies.replaces(overwrite_filter, reads, branch, read_at, case_sensitive=case_sensitive)
        super().overwrite(df, overwrite_filter, snapshot_properties, case_sensitive, branch)

    @replayable
    def dynamic_partition_overwrite(
        self,
        df: pa.Table,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
        *,
        reads: BooleanExpression | str | None = None,
        read_at: int | None = None,
    ) -> None:
        """Replace the partitions that *df* falls in; *reads* and *read_at* as for :meth:`overwrite`.

        Raises:
            StaleRead: What *df* was computed from (None: these partitions) has changed meanwhile. Nothing landed.
        """
        self._lock_operation(Operates.OVERWRITE)
        self.dependencies.names_columns()
        self.dependencies.replaces(partition_filters.of_rows(self.table_metadata, df), reads, branch, read_at)
        super().dynamic_partition_overwrite(df, snapshot_properties, branch)

    @replayable
    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        _isolation_operation: Operation | None = None,
    ) -> None:
        """Delete the rows that match *delete_filter*, as of the moment at which the commit lands."""
        self._lock_operation(Operates.DELETE)
        if not isinstance(delete_filter, AlwaysTrue):
            self.dependencies.names_columns(delete_filter, case_sensitive)
        if _isolation_operation is None:  # else it is half of a call that says what it depends on
            self.dependencies.removes(delete_filter, branch, case_sensitive=case_sensitive)
        super().delete(delete_filter, snapshot_properties, case_sensitive, branch, _isolation_operation)

    @replayable
    def upsert(
        self,
        df: pa.Table,
        join_cols: list[str] | None = None,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
    ) -> UpsertResult:
        """Update the rows that match, insert the others. What is inserted depends on what was found.

        Rows match as in SQL's MERGE: NaN equals NaN, and NULL equals nothing, so each row with a NULL in its key is
        inserted.

        Raises:
            ValueError: *df* does not fit the table, a key is there twice, or a join column is missing or ambiguous.
        """
        self._lock_operation(Operates.MERGE)
        self.dependencies.names_columns(case_sensitive=case_sensitive)
        self.draft.update(reads=True, computes=True)
        choice = (join_cols, when_matched_update_all, when_not_matched_insert_all, case_sensitive)
        return super().upsert(df, *choice, branch, snapshot_properties)

    @replayable
    def update_rows(
        self,
        row_filter: BooleanExpression,
        change: Callable[[pa.Table], pa.Table],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str = MAIN_BRANCH,
    ) -> None:
        """Replace the rows that match *row_filter* when the commit lands with the rows that *change* returns for them.

        Args:
            row_filter: Which rows. A name means the column that has it, else the only one that has it in another case.
            change: Called with the matching rows; called again with those of a newer head if the commit lost a race.
            snapshot_properties: Go into the snapshots' summaries.
            branch: Where the rows are.
        """
        self._lock_operation(Operates.UPDATE)
        self.dependencies.names_columns(row_filter, case_sensitive=False)
        self.draft.update(reads=True, computes=True)
        rows = self.scan(row_filter, case_sensitive=False, branch=branch).to_arrow()
        if rows.num_rows:
            self.overwrite(change(rows), row_filter, snapshot_properties, case_sensitive=False, branch=branch)

    @replayable
    def perform(self, plan: Callable[[CoordinatedTransaction], Any], operation: Operates = Operates.OVERWRITE) -> None:
        """Call *plan*, which stages changes in this transaction, on the head on which the commit lands.

        Args:
            plan: Called with this transaction; called again on a newer head if the commit lost a race. It reads the
                table only through :meth:`scan`, and stages what it has computed.
            operation: Decides which operation locks are taken.
        """
        self._lock_operation(operation)
        self.draft.update(reads=True, computes=True)
        with self._stack.plan():
            plan(self)

    @property
    def view(self) -> Table:
        """Return the table as the transaction sees it, staged changes included. What its ``io`` writes is tracked."""
        seen = copy.copy(self._table)
        seen.metadata = self.table_metadata
        return seen

    def scan(
        self,
        row_filter: BooleanExpression | str = AlwaysTrue(),
        selected_fields: tuple[str, ...] = ("*",),
        *,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> DataScan:
        """Return a scan of *branch* with the staged changes, and with the columns that the table has now."""
        seen = seen_from(self.table_metadata, head_of(self, branch))
        return DataScan(seen, self._table.io, row_filter, selected_fields, case_sensitive)

    def depends_on(
        self,
        row_filter: BooleanExpression | str,
        branch: str | None = MAIN_BRANCH,
        read_at: int | None = None,
        *,
        case_sensitive: bool = True,
    ) -> None:
        """Declare that staged rows were computed from those that match *row_filter*: these must not have changed.

        Whether they have is asked of the table when the commit lands, and now.

        Args:
            row_filter: Which rows; ``NOTHING`` for none.
            branch: Where they were read.
            read_at: The snapshot that was read, ``NO_SNAPSHOT`` for an empty branch; None: what the table showed when
                the transaction began.
            case_sensitive: How *row_filter* names columns.

        Raises:
            StaleRead: They have changed. Nothing landed.
            CommitConflict: A name in *row_filter* means another column by now. Nothing landed.
            ValueError: *row_filter* names a column that the table never had.
            StatementError: It compares a column with what that can't hold.
        """
        self.dependencies.depends_on(row_filter, branch, read_at, case_sensitive=case_sensitive)

    @property
    def files(self) -> WrittenFiles:
        """Stages data files that are already written."""
        return WrittenFiles(self, self.calls, self.request)

    @replayable
    def add_files(
        self,
        file_paths: list[str],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        check_duplicate_files: bool = True,
        branch: str | None = MAIN_BRANCH,
        *,
        reads: BooleanExpression | str | None = None,
    ) -> None:
        """Add files that exist; *reads* as for :meth:`append`.

        With *check_duplicate_files* the commit depends on what the table holds.

        Raises:
            FileInTable: The branch has one of them already. Nothing landed.
            InvalidArguments: *file_paths* is no list of texts. Nothing landed.
            ValueError: A file does not fit the columns, or has rows of several partitions; or the table's name mapping,
                by which its columns are found, has one of their names for another column.
        """
        self._lock_operation(Operates.APPEND)
        file_paths = listed(file_paths, str, "file_paths")
        if len({*map(canonical, file_paths)}) < len(file_paths):
            raise ValueError("File paths must be unique")
        if check_duplicate_files:
            self.files.refuse_live(file_paths, branch)
        self.dependencies.names_columns()
        self.draft.update(reads=True)  # its columns are found by their names, which may mean others on another head
        self.dependencies.brings_rows(reads, branch)
        if (mapping := grown_mapping(self.table_metadata)) is not None:
            self.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()})
        self._append_foreign(file_paths, snapshot_properties, branch)

    @replayable
    def set_properties(self, properties: dict[str, Any] = EMPTY_DICT, **kwargs: Any) -> Transaction:
        """Set properties. Refused when another commit changed one of them meanwhile."""
        self._lock_operation(Operates.SET_TABLE_PROPERTIES)
        return super().set_properties(properties, **kwargs)

    @replayable
    def remove_properties(self, *removals: str) -> Transaction:
        """Remove properties. Refused when another commit changed one of them meanwhile.

        Raises:
            NoSuchProperty: The table does not have one of them.
        """
        self._lock_operation(Operates.SET_TABLE_PROPERTIES)
        if absent := [name for name in removals if name not in self.table_metadata.properties]:
            table = table_name(self._table.name())
            raise NoSuchProperty("nothing was changed: the table has no such property", table=table, key=absent[0])
        return super().remove_properties(*dict.fromkeys(removals))

    @replayable
    def upgrade_table_version(self, format_version: Any) -> Transaction:
        """Upgrade the format version."""
        self._lock_operation(Operates.SET_TABLE_PROPERTIES)
        return super().upgrade_table_version(format_version)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """Return a builder of schema changes."""

        def make(tx: StagingTransaction) -> UpdateSchema:
            return Transaction.update_schema(tx, allow_incompatible_changes, case_sensitive)

        return self._recorded(make, Operates.EVOLVE_SCHEMA, case_sensitive=case_sensitive)

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return a builder of partition changes."""
        make = partial(SpecChanges, case_sensitive=case_sensitive)
        return self._recorded(make, Operates.EVOLVE_PARTITIONS, case_sensitive=case_sensitive)

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """Return a builder of sort order changes."""
        make = partial(UpdateSortOrder, case_sensitive=case_sensitive)
        return self._recorded(make, Operates.SET_WRITE_ORDER, case_sensitive=case_sensitive)

    def update_statistics(self) -> UpdateStatistics:
        """Return a builder of statistics changes."""
        return self._recorded(UpdateStatistics, Operates.SET_STATISTICS)

    def _recorded(
        self, make: Callable[[StagingTransaction], B], operation: Operates, *, case_sensitive: bool = True
    ) -> B:
        return cast(B, RecordingBuilder(self, self.calls, make, operation, case_sensitive=case_sensitive))

    def update_snapshot(
        self, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> UpdateSnapshot:
        """Return a builder of snapshots. What is built by hand is checked, not repeated, when the head moved."""
        if self._stack.depth == 0:
            self.calls.follow_the_caller(self)
            self.draft.update(replayable=False)
        return CoordinatedUpdateSnapshot(
            self, io=self._table.io, branch=branch, snapshot_properties=snapshot_properties
        )

    # The end of a transaction.

    def __enter__(self) -> CoordinatedTransaction:
        """Return the transaction itself."""
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        """Commit, or give up what was prepared when the block failed."""
        if exctype is None:
            self.commit_transaction()
        elif not self.request.sent:
            self.committing.abandon(self, excinst)

    def commit_transaction(self) -> Table:
        """Land the staged changes.

        Guarantee: on return they are in the table exactly once and the table object shows them. On
        ``CommitNotApplied`` nothing landed and every file that the transaction created is gone.

        Raises:
            CommitConflict: Another commit conflicts with them.
            CommitNotApplied: Nothing landed for another reason, which is the cause.
            CommitStateUnknown: It is not known whether it landed. Every file is kept.
        """
        self.committing.commit(self)
        return self._target
