"""A PyIceberg transaction that commits through the coordinator."""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, Table, TableProperties, Transaction, UpsertResult
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import IsolationLevel, Operation
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import UpdateSnapshot
from pyiceberg.table.update.sorting import UpdateSortOrder
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.coordinator import Coordinator
from commit_coord.errors import (
    CommitConflict,
    CommitNotApplied,
    FileInTable,
    LockReentered,
    NoSuchProperty,
    StaleRead,
    StatementError,
)
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as lean
from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.iceberg.required import complete
from commit_coord.iceberg.written import Written, has_partitions, mark, rows_misfit
from commit_coord.locks.base import Lease
from commit_coord.model import LockMode, Resource
from commit_coord.protocol.hierarchy import COMMANDS
from commit_coord.protocol.hierarchy import Operation as Operates
from commit_coord.table import partition_filters
from commit_coord.table.append import CoordinatedUpdateSnapshot, PureAppend
from commit_coord.table.calls import Remembering, recorded
from commit_coord.table.changes import Change, changes_table, same_changed, sets_order
from commit_coord.table.created_files import CreatedFiles
from commit_coord.table.exact_rows import ExactRows
from commit_coord.table.foreign_files import grown_mapping, refuse_mapped_names
from commit_coord.table.isolation import (
    NO_SNAPSHOT,
    NOTHING,
    Read,
    change_since,
    renamed_over,
    seen_from,
)
from commit_coord.table.live_files import live_among
from commit_coord.table.replaced import replaced
from commit_coord.table.spec_changes import SpecChanges
from commit_coord.table.staged import REFS, Staged, StagingTransaction
from commit_coord.table.writable import refuse_unwritable

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


Seen = tuple[TableMetadata, str]
"""The table as it was shown, and where that stands."""


class CoordinatedTransaction(ExactRows, StagingTransaction):
    """A PyIceberg transaction that commits through the coordinator.

    Args:
        table: What it changes. Its metadata is replaced when the commit has landed.
        autocommit: Commit with the first staged change.
        operation: What its changes are when they come from a builder of PyIceberg's, which says nothing of it.
        seen: What *table* showed its caller, who may have read that, before it was loaded again under a lock.
    """

    def __init__(
        self, table: Table, autocommit: bool = False, *, operation: Operates | None = None, seen: Seen | None = None
    ) -> None:
        refuse_unwritable(table)
        self._target = table
        self._created = CreatedFiles()
        self._sent = False
        tracked = copy.copy(table)
        tracked.io = self._created.recording(table.io)
        super().__init__(tracked, autocommit)
        self._before = self._staged
        """What was staged before the present call."""
        self._table: Table = tracked
        self._operation = operation
        self.request_id = str(uuid.uuid4())
        self.repeatable = False
        self.answered = False
        self.under: Lease | None = None
        """Must still be held when the commit is published; None asks for nothing."""
        self._base: Seen = (table.metadata, table.metadata_location)
        self._shown = table.metadata
        self._seen = seen or self._base
        self._depth = 0
        self._repeating = False
        self._planning = False
        """Whether a plan is being carried out, which is made anew on each head."""
        self._matching: tuple[str | None, ...] = ()
        """The branch that an upsert looks for matches in."""
        self._lease: Lease | None = None

    @property
    def sent(self) -> bool:
        """Whether the coordinator was asked to land the changes."""
        return self._sent

    # What PyIceberg's own planning sees.

    @property
    def table_metadata(self) -> TableMetadata:
        """Return the table with the staged changes."""
        if self._staged.pending is not None:
            self._materialise()
        if self._matching and self._depth == 1:
            # PyIceberg's upsert scans a branch with the columns that the table had when the last snapshot was written.
            return seen_from(self._changed(), *self._matching).model_copy(update={"refs": {}})
        return self._changed()

    def _stage(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Transaction:
        """Stage changes. PyIceberg keeps one requirement of each type, so of two branches one would be unguarded."""
        for requirement in requirements:
            try:
                requirement.validate(self.table_metadata)
            except CommitFailedException as error:
                raise self._conflict(str(error)) from error
        before = self.table_metadata if changes_table(updates) else None
        known = {(type(requirement), getattr(requirement, "ref", None)) for requirement in self._requirements}
        self._requirements += tuple(r for r in requirements if (type(r), getattr(r, "ref", None)) not in known)
        self._updates += updates
        if before is not None:
            after = self.table_metadata  # PyIceberg's ValidationError: a spec or an order needs a column that goes
            refuse_mapped_names(before, after.schema(), table_name(self._table.name()))
            if not self._planning:
                self._note(changes=(*self._staged.changes, Change(before, after, sets_order(updates))))
        elif not any(isinstance(update, AddSnapshotUpdate) for update in updates):
            self._refuse_what_does_not_fit()
        return self

    def _refuse_what_does_not_fit(self) -> None:
        """Raise PyIceberg's ValueError where the staged changes do not fit the table: no other head would help.

        Raises:
            CommitConflict: They may have fitted the table that the caller saw.
        """
        try:
            self._changed()
        except ValueError as error:
            if not self._has_moved():
                raise
            raise self._conflict(str(error)) from error

    def _apply(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Transaction:
        """Stage changes. What was not called through this transaction can't be called again, but for tags and branches.

        The requirements of these say where they were, so that nothing else than what was meant is made again.
        """
        of_refs = bool(updates) and all(isinstance(update, REFS) for update in updates)
        with self.call((lambda transaction: transaction._apply(updates, requirements)) if of_refs else None):
            if self._depth == 1:
                self._note(replayable=self._staged.replayable and of_refs)
                if self._operation is not None:
                    self._lock_operation(
                        self._operation if not self._rolls_back((*self._updates, *updates)) else Operates.ROLL_BACK
                    )
            elif not updates:
                self._note(reads=True)  # it found nothing to do, which another head may not bear out
            return super()._apply(updates, requirements)

    @contextmanager
    def call(self, again: Callable[[CoordinatedTransaction], Any] | None = None) -> Iterator[None]:
        """Count how deep calls are nested, and remember outermost ones that succeed.

        One that fails stages nothing, and gives back the lock if the transaction had none before; in a transaction of
        one call it leaves no file. The exception refers to the transaction, and may be kept for as long as the process
        lives.

        Args:
            again: Makes the call once more; None when it can't be made again.
        """
        outermost = self._depth == 0
        held = self._lease
        if outermost:
            self._follow_the_caller()
            self._before = self._staged
        self._depth += 1
        try:
            with self.whole():
                if outermost and again is not None:
                    self._note(calls=(*self._staged.calls, again))
                with self._files_may_be_gone() if outermost else nullcontext():
                    yield
        except BaseException:
            if outermost and not self._sent:
                if held is None:
                    self._unlock()
                if self._autocommit:
                    self._created.delete(self._table.io)
            raise
        finally:
            self._depth -= 1

    @contextmanager
    def _files_may_be_gone(self) -> Iterator[None]:
        """Say so if a file is gone and the table has changed since it was read: it may be gone for a good reason.

        Raises:
            CommitConflict: The table has changed.
            NoSuchTableError: It was dropped.
        """
        try:
            yield
        except FileNotFoundError as error:
            coordinator: Coordinator = self._target.catalog.coordinator  # type: ignore[attr-defined]
            head, location = coordinator.load(tuple(self._table.name()))
            if self._is_base(head, location):
                raise
            raise self._conflict(f"the table has changed since it was read, and a file is gone: {error}") from error

    def _follow_the_caller(self) -> None:
        """Go on from what the caller's table object shows, if that was refreshed since."""
        shown = self._target.metadata
        if shown is self._shown:
            return
        self._shown, location = shown, self._target.metadata_location
        if not self._is_base(shown, location):
            self._refuse_other_table(shown)
            if self._staged.begun:
                try:
                    self._follow(shown, location)
                except BaseException:
                    self._abandon()  # what is planned again by half must not be committed
                    raise
            else:
                self._move_to(shown, location)
        self._seen = self._base

    def _begun(self) -> bool:
        """Return whether something was called before the present call, or is staged."""
        return self._staged.stages or (self._before if self._depth else self._staged).begun

    def _rolls_back(self, updates: tuple[TableUpdate, ...]) -> bool:
        refs = self._table.metadata.refs
        return any(isinstance(update, SetSnapshotRefUpdate) and update.ref_name in refs for update in updates)

    def pend(self, producer: PureAppend) -> None:
        """Take the append of *producer* without a look at the table, if it is the only one so far.

        Raises:
            CommitNotApplied: It goes to a branch, and the table has no snapshot that the branch could stand on.
        """
        branch = producer._target_branch
        if branch not in (None, MAIN_BRANCH) and not self._updates and self._table.metadata.current_snapshot_id is None:
            self._refuse_a_first_branch(str(branch))
        self._register_snapshot_producer(producer)
        if any(isinstance(update, AddSnapshotUpdate) for update in self._updates):
            self._apply(*producer._commit())
            return
        self._note(pending=producer)
        if self._autocommit:
            self.commit_transaction()

    def _refuse_a_first_branch(self, branch: str) -> None:
        if branch not in self._table.metadata.refs:
            raise CommitNotApplied(
                "the commit did not land: a table without a snapshot can only be written to its main branch",
                table=table_name(self._table.name()),
                branch=branch,
            )

    def _materialise(self) -> None:
        """Make an ordinary PyIceberg snapshot of the pending append: something wants to look at it."""
        producer = self._staged.pending
        assert producer is not None
        self._note(pending=None)
        self._stage(*producer._commit())

    # What users call. Each is PyIceberg's, remembered; those that read take their operation locks first.

    @recorded
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
        self._names_columns()
        self._brings_rows(reads, branch)
        super().append(df, snapshot_properties, branch)

    @recorded
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
        self._names_columns(overwrite_filter, case_sensitive)
        self.replaces(overwrite_filter, reads, branch, read_at, case_sensitive=case_sensitive)
        super().overwrite(df, overwrite_filter, snapshot_properties, case_sensitive, branch)

    @recorded
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
        self._names_columns()
        self.replaces(partition_filters.of_rows(self.table_metadata, df), reads, branch, read_at)
        super().dynamic_partition_overwrite(df, snapshot_properties, branch)

    @recorded
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
            self._names_columns(delete_filter, case_sensitive)
        if self._is_called() and _isolation_operation is None:  # else it is half of a call that says what it depends on
            removed = self._read(delete_filter, branch, None, case_sensitive, Operation.DELETE)
            self._note(removed=(*self._staged.removed, removed.strictly() if self._has_moved() else removed))
        super().delete(delete_filter, snapshot_properties, case_sensitive, branch, _isolation_operation)

    @recorded
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
        """Update the rows that match, insert the others. What is inserted depends on what was found."""
        self._lock_operation(Operates.MERGE)
        self._names_columns(case_sensitive=case_sensitive)
        complete(df, self.table_metadata.schema().as_struct())
        self._note(reads=True, computes=True)
        if self._staged.pending is not None:
            self._materialise()  # with the branches, which the view that is matched against has not
        self._matching, outer = (branch,), self._matching
        try:
            return super().upsert(
                df,
                join_cols,
                when_matched_update_all,
                when_not_matched_insert_all,
                case_sensitive,
                branch,
                snapshot_properties,
            )
        finally:
            self._matching = outer

    @recorded
    def update_rows(
        self,
        row_filter: BooleanExpression,
        change: Callable[[pa.Table], pa.Table],
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str = MAIN_BRANCH,
    ) -> None:
        """Put what *change* makes of the rows that match *row_filter* in their place, as of when the commit lands.

        Args:
            row_filter: Which rows.
            change: Called with them, and once more with those of a newer head when the commit lost a race.
            snapshot_properties: Go into the snapshots' summaries.
            branch: Where the rows are.
        """
        self._lock_operation(Operates.UPDATE)
        self._names_columns(row_filter, case_sensitive=False)
        self._note(reads=True, computes=True)
        rows = self.scan(row_filter, case_sensitive=False, branch=branch).to_arrow()
        if rows.num_rows:
            self.overwrite(change(rows), row_filter, snapshot_properties, case_sensitive=False, branch=branch)

    @property
    def view(self) -> Table:
        """Return the table as the transaction sees it, staged changes included. What its ``io`` writes is tracked."""
        seen = copy.copy(self._table)
        seen.metadata = self.table_metadata
        return seen

    @recorded
    def perform(self, plan: Callable[[CoordinatedTransaction], Any], operation: Operates = Operates.OVERWRITE) -> None:
        """Do what *plan* does with this transaction, as of the moment at which the commit lands.

        Args:
            plan: Called with this transaction, and once more on a newer head when the commit lost a race. It reads the
                table through :meth:`scan` alone, and stages what it computed.
            operation: What it is, for the locks that it takes.
        """
        self._lock_operation(operation)
        self._note(reads=True, computes=True)
        outer, self._planning = self._planning, True
        try:
            plan(self)
        finally:
            self._planning = outer

    def scan(
        self,
        row_filter: BooleanExpression | str = AlwaysTrue(),
        selected_fields: tuple[str, ...] = ("*",),
        *,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> DataScan:
        """Return a scan of *branch* with the staged changes, and with the columns that the table has now."""
        return DataScan(
            seen_from(self.table_metadata, branch), self._table.io, row_filter, selected_fields, case_sensitive
        )

    def replaces(
        self,
        row_filter: BooleanExpression | str,
        reads: BooleanExpression | str | None,
        branch: str | None = MAIN_BRANCH,
        read_at: int | None = None,
        *,
        case_sensitive: bool = True,
    ) -> None:
        """Declare what rows were computed from that replace those that match *row_filter*.

        Args:
            row_filter: Which rows they replace.
            reads: What they were computed from; None: the rows that they replace.
            branch: As for :meth:`depends_on`.
            read_at: As for :meth:`depends_on`.
            case_sensitive: How the filters name columns.

        Raises:
            StaleRead: What they were computed from has changed. Nothing landed.
        """
        if self._is_called() and reads == NOTHING:
            self._note(replaces=True)
        self.depends_on(row_filter if reads is None else reads, branch, read_at, case_sensitive=case_sensitive)

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
        if not self._is_called() or row_filter == NOTHING:
            return
        if not isinstance(row_filter, AlwaysTrue):
            self._note_names(case_sensitive)
        self._refuse_unknown_columns(row_filter, case_sensitive)
        read = self._read(row_filter, branch, read_at, case_sensitive, Operation.OVERWRITE)
        self._plan_on_what_was_seen(read.level)
        self._note(depended=(*self._staged.depended, read.strictly() if self._has_moved() else read))
        self._refuse_stale(self._table.metadata, self._staged.depended[-1:])

    def _refuse_unknown_columns(self, row_filter: BooleanExpression | str, case_sensitive: bool) -> None:
        """Raise unless *row_filter* fits the columns: else nobody would ever find that what it means has changed.

        Columns that the table had when the rows were read count too.
        """
        try:
            _bind(self._changed().schema(), row_filter, case_sensitive)
        except ValueError:
            for schema in (*self._changed().schemas, *self._seen[0].schemas):
                with suppress(ValueError):
                    _bind(schema, row_filter, case_sensitive)
                    return
            raise

    def _plan_on_what_was_seen(self, level: IsolationLevel) -> None:
        """Under ``snapshot`` go back to what the caller saw: what others have added since then is not replaced."""
        if level is IsolationLevel.SNAPSHOT and not self._begun():
            self._move_to(*self._seen)

    def _has_moved(self) -> bool:
        """Return whether the changes are planned on another table than the one that the caller saw."""
        return self._base[0] is not self._seen[0]

    def _is_called(self) -> bool:
        """Return whether the present call is the caller's: neither a part of another one nor its repetition."""
        return self._depth <= 1 and not self._repeating

    def _read(
        self,
        row_filter: BooleanExpression | str,
        branch: str | None,
        read_at: int | None,
        case_sensitive: bool,
        operation: Operation,
    ) -> Read:
        """Return what the caller has read.

        1. A transaction updates rows: k = 2 becomes k = 1.   2. It overwrites those with k = 1, which the caller has
        computed from what the transaction shows: the rows with k = 1 and with k = 2.   So behind a call that computes
        rows any row may have been read, unless the caller says when they were read.
        """
        if self._staged.computes and read_at is None:
            row_filter = AlwaysTrue()
        seen = self._seen[0]
        snapshot = seen.snapshot_by_name(branch)
        snapshot_id = snapshot.snapshot_id if snapshot is not None else None
        if read_at is not None:
            snapshot_id = read_at if read_at != NO_SNAPSHOT else None
        return Read(
            row_filter=parse(row_filter) if isinstance(row_filter, str) else row_filter,
            branch=branch,
            snapshot_id=snapshot_id,
            level=seen.isolation_level(operation),
            case_sensitive=case_sensitive,
        )

    def _brings_rows(self, reads: BooleanExpression | str | None, branch: str | None) -> None:
        """Note that the present call stages rows of the caller's, computed from *reads*."""
        if reads is not None:
            self.depends_on(reads, branch)
        elif self._is_called():
            self._note(rows_given=True)

    def _names_columns(
        self,
        row_filter: BooleanExpression | str = AlwaysTrue(),
        case_sensitive: bool = True,
        seen: Schema | None = None,
    ) -> None:
        """Note that the present call names columns as its caller saw them.

        Args:
            row_filter: Names columns.
            case_sensitive: How it does so.
            seen: The columns that the caller saw; None: those that the table showed before this call.

        Raises:
            CommitConflict: Such a name means another column by now.
            StatementError: *row_filter* compares a column with what it can't hold, in a way that PyIceberg trips over.
        """
        self._note_names(case_sensitive, seen)
        if not isinstance(row_filter, AlwaysTrue):
            _bind(self._changed().schema(), row_filter, case_sensitive)  # with columns that this transaction adds

    def _note_names(self, case_sensitive: bool, seen: Schema | None = None) -> None:
        self._note(by_name=True, folds_case=self._staged.folds_case or not case_sensitive)
        self._refuse_other_columns(self._base[0], seen)

    def _refuse_other_columns(self, head: TableMetadata, seen: Schema | None = None) -> None:
        if not self._staged.by_name:
            return
        shown = seen or self._seen[0].schema()
        if name := renamed_over(shown, head.schema(), folds_case=self._staged.folds_case):
            raise self._conflict(f"the column {name!r} is another one now than in the table that was read")

    def _refuse_stale(self, head: TableMetadata, reads: Iterable[Read]) -> None:
        """Raise ``StaleRead`` when *head* shows a change of what one of *reads* depends on."""
        for read in reads:
            try:
                change = change_since(read, head, self._table.io)
            except ValueError as error:
                raise self._conflict(f"what it depends on does not fit the table as it is now ({error})") from error
            if change is not None:
                raise self._conflict(change, StaleRead)

    @recorded
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
            ValueError: A file does not fit the columns, or has rows of several partitions; or the table's name mapping,
                by which its columns are found, has one of their names for another column.
        """
        self._lock_operation(Operates.APPEND)
        if len(set(file_paths)) < len(file_paths):
            raise ValueError("File paths must be unique")
        if check_duplicate_files:
            self._refuse_files_that_are_there(file_paths, branch)
        self._names_columns()
        self._note(reads=True)  # its columns are found by their names, which may mean others on another head
        self._brings_rows(reads, branch)
        if (mapping := grown_mapping(self.table_metadata)) is not None:
            self.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()})
        self._append_foreign(file_paths, snapshot_properties, branch)

    def add_data_files(
        self,
        data_files: Sequence[DataFile],
        snapshot_properties: dict[str, str],
        branch: str | None,
        schema_id: int | None = None,
        *,
        reads: BooleanExpression | str | None = None,
    ) -> None:
        """Append files whose metrics are known.

        Args:
            data_files: Each of the partition spec that it says (``DataFile.spec_id``).
            snapshot_properties: Go into the snapshot's summary.
            branch: Where the snapshot goes.
            schema_id: The schema that the files were written with; None means the current one, as of this call.
            reads: As for :meth:`append`.

        Raises:
            CommitConflict: The table does not have that schema or a spec any more, or requires a value that the files
                may lack. Nothing was committed.
        """
        written = self.written(data_files, schema_id)
        self.add_written_files(data_files, written, snapshot_properties, branch, reads=reads)

    def written(self, data_files: Sequence[DataFile], schema_id: int | None) -> Written:
        """Return what *data_files* were written for: what they do not say is what this transaction shows now.

        Raises:
            CommitConflict: The table does not have that schema or a spec any more.
            ValueError: A file is given twice.
        """
        if len({data_file.file_path for data_file in data_files}) < len(data_files):
            raise ValueError("a data file is given twice")
        shown = self.table_metadata
        mark(shown, data_files)
        schema_id = shown.current_schema_id if schema_id is None else schema_id
        try:
            if not self._begun() and not Written.known(shown, data_files, schema_id):
                # They may have been written for what others have changed meanwhile.
                self._see_the_head(self._target.catalog.coordinator)  # type: ignore[attr-defined]
            return Written.of(self.table_metadata, data_files, schema_id, shown=shown)
        except ValueError as error:
            raise self._conflict(str(error)) from error

    @recorded
    def add_written_files(
        self,
        data_files: Sequence[DataFile],
        written: Written,
        snapshot_properties: dict[str, str],
        branch: str | None,
        *,
        reads: BooleanExpression | str | None = None,
        check_duplicate_files: bool = False,
    ) -> None:
        """Append files that were *written* for a schema and specs that the table still has, by :meth:`written`.

        With *check_duplicate_files* the commit depends on what the table holds: none of them must be in it.
        """
        self._brings_rows(reads, branch)
        if check_duplicate_files and data_files:
            self._refuse_files_that_are_there([data_file.file_path for data_file in data_files], branch)
        with self._append_snapshot_producer(snapshot_properties, branch=branch) as producer:
            cast(PureAppend, producer).written = written
            for data_file in data_files:
                producer.append_data_file(data_file)

    def _refuse_files_that_are_there(self, paths: Sequence[str], branch: str | None) -> None:
        there = self._live_among(paths, branch)
        # 1. The coordinator looks at the head, and has this planned again on it.   2. Another commit lands.
        # 3. A look from here would plan on that one, and the coordinator swaps the first. So only a first plan looks.
        if there and not self._repeating and not self._begun():
            self._see_the_head(self._target.catalog.coordinator)  # type: ignore[attr-defined]
            there = self._live_among(paths, branch)
        self._note(reads=True)
        if there:
            # No CommitNotApplied: after one of these the files may be deleted.
            raise FileInTable(
                "a file is already referenced by the table, so nothing was committed: keep the file",
                table=table_name(self._table.name()),
                file=", ".join(there),
            )

    def _live_among(self, paths: Sequence[str], branch: str | None) -> list[str]:
        snapshot = self.table_metadata.snapshot_by_name(branch)
        return live_among(paths, self._table.io, [snapshot] if snapshot is not None else [])

    @recorded
    def delete_partitions(
        self, data_files: Iterable[DataFile], snapshot_properties: dict[str, str], branch: str | None
    ) -> None:
        """Delete the rows that lie in a partition of one of *data_files*, whatever its transforms.

        Rows that are stored under other partition specs are replaced too: what else their files hold is written anew.
        """
        self._lock_operation(Operates.OVERWRITE)
        self._note(reads=True)
        metadata, files = self.table_metadata, list(data_files)
        specs = metadata.specs()
        if not files and has_partitions(metadata.spec()):
            return
        if not files or not all(has_partitions(specs[data_file.spec_id]) for data_file in files):
            self.delete(AlwaysTrue(), snapshot_properties, branch=branch, _isolation_operation=Operation.OVERWRITE)
            return
        snapshot = metadata.snapshot_by_name(branch)
        if snapshot is None:
            return
        scan = DataScan(metadata, self._table.io, snapshot_id=snapshot.snapshot_id)
        found = replaced(metadata, self._table.io, scan.plan_files(), files)
        if found.gone:
            with self.update_snapshot(snapshot_properties, branch).overwrite() as producer:
                for data_file in found.gone:
                    producer.delete_data_file(data_file)
                for data_file in found.rest:
                    producer.append_data_file(data_file)

    @recorded
    def rewrite_files(
        self,
        old: Sequence[DataFile],
        new: Sequence[DataFile],
        read_at: int,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Put *new* in the place of *old*, which held the same rows at the sequence number *read_at*.

        On another head than the one that *old* was read from it is tried again, as long as they are all there and
        nobody has deleted rows meanwhile: such a delete would not reach *new*.

        Raises:
            ValidationException: One of *old* is gone, or rows may have been deleted from them. Nothing was committed.
        """
        self._note(reads=True)
        metadata = self.table_metadata
        snapshot = metadata.snapshot_by_name(branch)
        for manifest in manifest_list.read(self._table.io, snapshot.manifest_list) if snapshot is not None else ():
            if manifest.content == ManifestContent.DELETES and manifest.sequence_number > read_at:
                raise ValidationException("rows were deleted while files were being rewritten")
        builder = CoordinatedUpdateSnapshot(
            self, io=self._table.io, branch=branch, snapshot_properties=snapshot_properties
        )
        with builder.rewrite() as producer:
            for data_file in old:
                producer.delete_data_file(data_file)
            for data_file in new:
                producer.append_data_file(data_file)

    @recorded
    def set_properties(self, properties: dict[str, Any] = EMPTY_DICT, **kwargs: Any) -> Transaction:
        """Set properties. Refused when somebody else changed one of them meanwhile."""
        self._lock_operation(Operates.SET_TABLE_PROPERTIES)
        return super().set_properties(properties, **kwargs)

    @recorded
    def remove_properties(self, *removals: str) -> Transaction:
        """Remove properties. Refused when somebody else changed one of them meanwhile.

        Raises:
            NoSuchProperty: The table does not have one of them.
        """
        self._lock_operation(Operates.SET_TABLE_PROPERTIES)
        if absent := [name for name in removals if name not in self.table_metadata.properties]:
            table = table_name(self._table.name())
            raise NoSuchProperty("nothing was changed: the table has no such property", table=table, key=absent[0])
        return super().remove_properties(*dict.fromkeys(removals))

    @recorded
    def upgrade_table_version(self, format_version: Any) -> Transaction:
        """Upgrade the format version."""
        self._lock_operation(Operates.SET_TABLE_PROPERTIES)
        return super().upgrade_table_version(format_version)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """Return a builder of schema changes."""
        changes = Remembering(
            self,
            lambda tx: Transaction.update_schema(tx, allow_incompatible_changes, case_sensitive),
            Operates.EVOLVE_SCHEMA,
            case_sensitive=case_sensitive,
        )
        return cast(UpdateSchema, changes)

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return a builder of partition changes."""
        changes = Remembering(
            self,
            lambda tx: SpecChanges(tx, case_sensitive=case_sensitive),
            Operates.EVOLVE_PARTITIONS,
            case_sensitive=case_sensitive,
        )
        return cast(UpdateSpec, changes)

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """Return a builder of sort order changes."""
        changes = Remembering(
            self,
            lambda tx: UpdateSortOrder(tx, case_sensitive=case_sensitive),
            Operates.SET_WRITE_ORDER,
            case_sensitive=case_sensitive,
        )
        return cast(UpdateSortOrder, changes)

    def update_statistics(self) -> UpdateStatistics:
        """Return a builder of statistics changes."""
        return cast(UpdateStatistics, Remembering(self, UpdateStatistics, Operates.SET_STATISTICS))

    def update_snapshot(
        self, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> UpdateSnapshot:
        """Return a builder of snapshots. What is built by hand is checked, not repeated, when the head moved."""
        if self._depth == 0:
            self._follow_the_caller()
            self._note(replayable=False)
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
        elif not self._sent:
            self._abandon()

    def commit_transaction(self) -> Table:
        """Land the staged changes.

        Guarantee: on return they are in the table exactly once and the table object shows them. On
        ``CommitNotApplied`` nothing landed and every file that the transaction created is gone.

        Raises:
            CommitConflict: Another commit stands in the way.
            CommitNotApplied: Nothing landed for another reason, which is the cause.
            CommitStateUnknown: It is not known whether it landed. Every file is kept.
        """
        if self._failed:
            raise RuntimeError("This transaction failed to commit and cannot be reused; create a new transaction.")
        try:
            with self._files_may_be_gone():
                self._refuse_what_has_changed()
                attempt = self._attempt() if self._staged.stages else None
        except BaseException:
            self._abandon()
            raise
        try:
            if attempt is not None:
                self._land(attempt)
            elif self._has_moved():
                self._show(*self._base)
        except (CommitNotApplied, StatementError):  # the second one while it was planned again
            self._abandon()
            raise
        except BaseException:
            self._failed = True
            self._unlock()
            raise
        self._unlock()
        self._staged = Staged()
        self._created.forget()
        self._base = self._seen = (self._table.metadata, self._table.metadata_location)
        self.request_id, self.repeatable, self._sent = str(uuid.uuid4()), False, False
        return self._target

    def _refuse_what_has_changed(self) -> None:
        """Raise ``CommitConflict`` when the base shows it; ask the head where the calls have staged nothing."""
        if not self._staged.stages and (self._staged.reads or self._staged.producers):
            self._look_again()
        if self._has_moved():
            self._refuse_overlap(self._base[0])
            self._refuse_stale(self._base[0], self._staged.dependencies)

    def _look_again(self) -> None:
        """Plan again if the table has moved: what found nothing to do on an old one may find something by now.

        1. We load the table, to delete the rows with k = 7. There are none.   2. Another client appends k = 7, and is
        told that it landed.   3. We would report a success, and the row stays. The same with a column that we make the
        first one, and that was the first one when we loaded the table.
        """
        coordinator: Coordinator = self._target.catalog.coordinator  # type: ignore[attr-defined]
        head, location = coordinator.load(tuple(self._table.name()))
        if not self._is_base(head, location):
            self._refuse_other_table(head)
            self._follow(head, location)

    def _land(self, attempt: Attempt) -> None:
        coordinator: Coordinator = self._target.catalog.coordinator  # type: ignore[attr-defined]
        self._sent = True
        (committed,) = coordinator.commit([attempt], replan=self._replan, repeatable=self.repeatable, under=self.under)
        self._show(committed.metadata, committed.location)
        self.answered = committed.answered
        if committed.answered:
            self._created.delete(self._table.io)
        else:
            self._cleanup_uncommitted_manifests()  # of earlier plans

    def _show(self, metadata: TableMetadata, location: str) -> None:
        """Have the caller's table object show what is in the table now."""
        self._target.metadata = self._table.metadata = self._shown = metadata.model_copy(deep=True)
        self._target.metadata_location = self._table.metadata_location = location

    def _attempt(self) -> Attempt:
        """Return what the staged changes ask for."""
        base, staged = self._table.metadata, self._staged
        # While the append is prepared its transaction is looked at, which would make a snapshot of it.
        self._note(pending=None)
        append = staged.pending.prepare() if staged.pending is not None else None
        self._staged = staged
        reads = staged.reads or bool(staged.depended) or staged.evolves or not staged.only_appends
        return Attempt(
            request_id=self.request_id,
            table=tuple(self._table.name()),
            table_uuid=str(base.table_uuid),
            base_location=self._table.metadata_location,
            base_sequence_number=lean.sequence_number(base),
            requirements=(*staged.requirements, AssertTableUUID(uuid=base.table_uuid)),
            updates=staged.updates,
            append=append,
            reads_data=reads,
            properties_read={key: base.properties.get(key) for key in staged.property_keys},
        )

    def _replan(self, head: TableMetadata, location: str) -> Attempt:
        """Plan the staged changes again on *head*, and return what they ask for there; see :meth:`_follow`."""
        with self._files_may_be_gone():
            self._follow(head, location)
            return self._attempt()

    def _follow(self, head: TableMetadata, location: str) -> None:
        """Plan the staged changes again on *head*.

        What PyIceberg can check and rebuild without a look at the rows is rebuilt. Otherwise what was called is
        called again, on *head*: the transaction then stands behind the commits that it lost the race to.

        Raises:
            CommitConflict: Neither is possible, or both sides changed one column or partition field.
            StaleRead: The rows were computed from others than those that *head* has.
        """
        if self._staged.pending is not None:
            self._materialise()
        self._refuse_overlap(head)
        base = self._base[0]
        same_schema = head.schema() == base.schema() and head.spec() == base.spec()
        self._base = (head, location)
        if same_schema and self._staged.can_be_rebuilt and not self._overlooks(head):
            self._refuse_stale(head, self._staged.dependencies)
            try:
                self._rebuild(head, location)
                return
            except (ValidationException, ValueError) as error:
                if not self._staged.replayable:
                    raise self._conflict(str(error), StaleRead) from error
        if not self._staged.replayable:
            raise self._conflict("it was built by hand or from a stream, so it can't be planned again by itself")
        self._refuse_stale(head, [read.strictly() for read in self._staged.dependencies])
        self._repeat(head, location)
        self._refuse_overlap(head)  # what changed nothing on the old base may change something now

    def _overlooks(self, head: TableMetadata) -> bool:
        """Return whether a rebuilt removal would leave rows that were added meanwhile, and that it means too.

        PyIceberg leaves them under ``snapshot``. That is right for a removal that depends on rows that were read. A
        filter alone, and rows that depend on nothing, mean what is there when the commit lands.
        """
        levels = {head.isolation_level(operation) for operation in (Operation.DELETE, Operation.OVERWRITE)}
        staged = self._staged
        return IsolationLevel.SNAPSHOT in levels and staged.removes_at_landing and not staged.only_appends

    def _rebuild(self, head: TableMetadata, location: str) -> None:
        self._table.metadata, self._table.metadata_location = head, location
        self._rebuild_snapshot_updates()

    def _repeat(self, head: TableMetadata, location: str) -> None:
        """Call again what was called, on *head*, with the same request id."""
        self._created.delete(self._table.io)
        self._table.metadata, self._table.metadata_location = head, location
        self._staged = self._staged.as_called()
        autocommit, self._autocommit = self._autocommit, False
        self._depth += 1  # the calls are known already
        self._repeating = True
        try:
            for call in self._staged.calls:
                call(self)
        except CommitNotApplied:
            raise
        except StatementError as error:
            if reason := rows_misfit(head.schema(), self._seen[0].schema()):
                raise self._conflict(reason) from error
            raise
        except Exception as error:
            raise self._conflict(f"it does not fit the table as it is now ({error})") from error
        finally:
            self._depth -= 1
            self._repeating = False
            self._autocommit = autocommit

    def _refuse_overlap(self, head: TableMetadata) -> None:
        """Raise if this transaction and the commits between what its caller saw and *head* changed one thing."""
        seen, mine = self._seen[0], self._changed()
        self._refuse_other_columns(head)
        if reason := same_changed(self._staged.changes, seen, head):
            raise self._conflict(reason)
        branches = {producer._target_branch for producer in self._staged.producers} - {MAIN_BRANCH}
        if gone := branches & seen.refs.keys() - head.refs.keys():
            raise self._conflict(f"the branch {min(gone)!r} was removed meanwhile")
        for key in self._staged.property_keys - {TableProperties.DEFAULT_NAME_MAPPING}:
            # The name mapping follows from the schema, which was compared above.
            if head.properties.get(key) not in (seen.properties.get(key), mine.properties.get(key)):
                raise self._conflict(f"the property {key!r} was changed meanwhile")

    def _conflict(self, reason: str, kind: type[CommitConflict] = CommitConflict) -> CommitConflict:
        return kind(
            f"the commit did not land: {reason}", table=table_name(self._table.name()), request_id=self.request_id
        )

    def _abandon(self) -> None:
        """Give up for good: nothing landed, nothing will."""
        self._failed = True
        self._unlock()
        self._created.abandon(self._table.io)

    # Operation locks.

    def _lock_operation(self, operation: Operates, *, look: bool = True) -> None:
        """Hold what *operation* takes on the table until the transaction ends.

        Another transaction of this thread may hold it already. Waiting for it would never end, so this one goes
        on without: the check at the commit still finds every conflict.

        Args:
            operation: What the present call does.
            look: See the table as it is by then.
        """
        catalog: Any = self._target.catalog
        if self._depth > 1 or self._repeating or self._failed or self._holds(operation):
            return
        self._unlock()  # S, for which our own X would wait; what others commit in between is found at the commit
        try:
            lease: Lease | None = catalog.lock_call(operation, Resource.table(self._table.name()))
        except LockReentered:
            logger.debug("this thread holds locks of %s already", table_name(self._table.name()))
            return
        if lease is None:
            return
        self._lease = lease  # ours alone: whoever never ends us lets go of it with us, and the manager finds that out
        # Under `snapshot` the plan is one for what was read: what others have added since then is not replaced.
        bound = any(read.level is IsolationLevel.SNAPSHOT for read in self._staged.depended)
        if look and not bound and not self._begun():
            self._see_the_head(catalog.coordinator)

    def _holds(self, operation: Operates) -> bool:
        """Return whether an earlier call has taken what *operation* takes, or more."""
        taken = {mode for _, mode in self._lease.request.locks} if self._lease is not None else set()
        return COMMANDS[operation].mode in taken or LockMode.EXCLUSIVE in taken

    def _see_the_head(self, coordinator: Coordinator) -> None:
        """Go on from the table as it is now, unless that is what is seen already.

        The table object of the caller stays as it is until the commit has landed: were it to show the head after a
        refusal, the same rows could be written in a second try.
        """
        head, location = coordinator.load(tuple(self._table.name()))
        if not self._is_base(head, location):
            self._refuse_other_table(head)
            self._move_to(head, location)

    def _is_base(self, head: TableMetadata, location: str) -> bool:
        base, base_location = self._base
        return (location, lean.sequence_number(head)) == (base_location, lean.sequence_number(base))

    def _refuse_other_table(self, head: TableMetadata) -> None:
        if head.table_uuid != self._base[0].table_uuid:
            raise self._conflict("the table was dropped and made again since it was read")

    def _move_to(self, metadata: TableMetadata, location: str) -> None:
        self._table.metadata, self._table.metadata_location = metadata, location
        self._base = (metadata, location)

    def _unlock(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None


def _bind(schema: Schema, row_filter: BooleanExpression | str, case_sensitive: bool) -> None:
    """Raise unless *row_filter* fits the columns of *schema*: ValueError, or StatementError where PyIceberg trips."""
    try:
        bind(schema, parse(row_filter) if isinstance(row_filter, str) else row_filter, case_sensitive)
    except (TypeError, ArithmeticError, KeyError) as error:
        raise StatementError("the filter does not fit the columns", filter=row_filter, reason=error) from error
