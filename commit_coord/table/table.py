"""The table that a coordinated catalog hands out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, get_args

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.manifest import DataFile
from pyiceberg.table.maintenance import MaintenanceTable
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots
from pyiceberg.table.update.sorting import UpdateSortOrder
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.table.update.statistics import UpdateStatistics
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.coordinator import Coordinator
from commit_coord.errors import CommitConflict, CommitCoordError, CommitNotApplied, InvalidArguments
from commit_coord.iceberg.attempt import request_uuid, table_name
from commit_coord.iceberg.named_partitions import NamedValues, partition_filter, partition_levels
from commit_coord.iceberg.partitions import fixed_partitions, lockable, partitions_of_rows
from commit_coord.iceberg.table_properties import in_words
from commit_coord.iceberg.written import Written
from commit_coord.locks.base import Lease
from commit_coord.model import JournalEntry, LockMode, Resource, WriteMode
from commit_coord.protocol.hierarchy import Operation as Operates
from commit_coord.protocol.hierarchy import Partition, calls_take
from commit_coord.table.arguments import listed
from commit_coord.table.compaction import Compacted, FileGroup, compact, rewrite_here
from commit_coord.table.earlier_commit import EarlierCommit
from commit_coord.table.isolation import NOTHING
from commit_coord.table.operation_locks import acquire, acquire_unless_held, needed_locks
from commit_coord.table.placed import PlacedTable
from commit_coord.table.ports import catalog_of
from commit_coord.table.transaction import CoordinatedTransaction
from commit_coord.table.writable import refuse_unwritable

if TYPE_CHECKING:
    import pyarrow as pa


Rewriter = Callable[["CoordinatedTable", Sequence[FileGroup]], list[DataFile]]
"""Writes the rows of groups of files as new files of the table, and returns these. When it raises, it leaves none."""


class CoordinatedTable(PlacedTable):
    """A PyIceberg table whose commits go through the coordinator of its catalog."""

    @property
    def _coordinator(self) -> Coordinator:
        return catalog_of(self).coordinator

    def transaction(self) -> CoordinatedTransaction:
        """Return a new transaction."""
        return CoordinatedTransaction(self)

    def _autocommit(self, operation: Operates | None = None) -> CoordinatedTransaction:
        return CoordinatedTransaction(self, autocommit=True, operation=operation)

    def update_schema(self, allow_incompatible_changes: bool = False, case_sensitive: bool = True) -> UpdateSchema:
        """Return a builder of schema changes; its commit does not conflict with changes of other columns."""
        return self._autocommit().update_schema(allow_incompatible_changes, case_sensitive)

    def update_spec(self, case_sensitive: bool = True) -> UpdateSpec:
        """Return a builder of partition changes; its commit does not conflict with changes of other fields."""
        return self._autocommit().update_spec(case_sensitive)

    def update_sort_order(self, case_sensitive: bool = True) -> UpdateSortOrder:
        """Return a builder of sort order changes."""
        return self._autocommit().update_sort_order(case_sensitive)

    def update_statistics(self) -> UpdateStatistics:
        """Return a builder of statistics changes."""
        return UpdateStatistics(transaction=self._autocommit(Operates.SET_STATISTICS))

    def manage_snapshots(self) -> ManageSnapshots:
        """Return a builder of branches, tags and rollbacks."""
        return ManageSnapshots(transaction=self._autocommit(Operates.MANAGE_REFS))

    @property
    def maintenance(self) -> MaintenanceTable:
        """Return the maintenance operations."""
        return _Maintenance(self)

    # Calls that say which rows they touch lock only the partitions of these; a transaction locks the whole table.

    def append(
        self,
        df: pa.Table | pa.RecordBatchReader,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Append rows. Re-based on any head: an append never fails by conflict."""
        with self._calling(Operates.APPEND, lambda: self._of_rows(df)) as tx:
            tx.append(df, snapshot_properties, branch)

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
        """Replace the rows that match *overwrite_filter* with *df*; see :meth:`CoordinatedTransaction.overwrite`.

        Raises:
            StaleRead: What *df* was computed from has changed since this table object read it. Nothing landed.
        """
        with self._calling(Operates.OVERWRITE, lambda: [*self._of_filter(overwrite_filter), *self._of_rows(df)]) as tx:
            tx.overwrite(
                df, overwrite_filter, snapshot_properties, case_sensitive, branch, reads=reads, read_at=read_at
            )

    def dynamic_partition_overwrite(
        self,
        df: pa.Table,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
        *,
        reads: BooleanExpression | str | None = None,
        read_at: int | None = None,
    ) -> None:
        """Replace the partitions that *df* falls in; see :meth:`CoordinatedTransaction.overwrite`.

        Raises:
            StaleRead: What *df* was computed from has changed since this table object read it. Nothing landed.
        """
        with self._calling(Operates.OVERWRITE, lambda: self._of_rows(df)) as tx:
            tx.dynamic_partition_overwrite(df, snapshot_properties, branch, reads=reads, read_at=read_at)

    def delete(
        self,
        delete_filter: BooleanExpression | str = AlwaysTrue(),
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Delete the rows that match *delete_filter*, as of the moment at which the commit lands."""
        with self._calling(Operates.DELETE, lambda: self._of_filter(delete_filter)) as tx:
            tx.delete(delete_filter, snapshot_properties, case_sensitive, branch)

    @contextmanager
    def _calling(
        self, operation: Operates, partitions: Callable[[], list[Partition]]
    ) -> Iterator[CoordinatedTransaction]:
        """Hold what a call of *operation* takes, and commit what it stages.

        A call that fails leaves this object as it was. Were it to show the head, the rows that were refused because
        they are stale could be written in a second try.
        """
        seen = self.metadata, self.metadata_location
        try:
            with self._holding(operation, partitions), CoordinatedTransaction(self, seen=seen) as tx:
                tx.calls.only_one = True
                yield tx
        except BaseException:
            self.metadata, self.metadata_location = seen
            raise

    @contextmanager
    def _holding(self, operation: Operates, partitions: Callable[[], list[Partition]]) -> Iterator[Lease | None]:
        """Hold what a call of *operation* takes on *partitions*, and see the table as it is by then.

        What the thread holds of it already it need not wait for; the check at the commit finds every conflict.
        """
        refuse_unwritable(self)
        catalog = catalog_of(self)
        if not calls_take(operation, catalog.settings.operation_locks):
            yield None
            return
        while True:
            planned = self._planned(partitions)
            taken = acquire_unless_held(catalog, needed_locks(catalog, operation, *planned), operation.value)
            with taken or nullcontext():
                self._see_the_head()
                # Another commit may have changed the partitions while we waited.
                if taken is None or planned == self._planned(partitions):
                    yield taken
                    return

    def _see_the_head(self) -> None:
        """Go on from the table as it is now.

        Raises:
            CommitConflict: It is another table by now.
            NoSuchTableError: There is none.
        """
        try:
            self.refresh()
        except ValueError as error:
            raise CommitConflict(
                "the commit did not land: the table was dropped and created again since it was read",
                table=table_name(self.name()),
            ) from error

    def _planned(self, partitions: Callable[[], list[Partition]]) -> tuple[Resource, list[Partition], int]:
        return Resource.table(self.name()), lockable(partitions()), len(self.metadata.partition_specs)

    def _of_filter(self, row_filter: BooleanExpression | str) -> list[Partition]:
        """Return the partitions that matching rows lie in; an open one where that is not known."""
        try:
            parsed = parse(row_filter) if isinstance(row_filter, str) else row_filter
            return fixed_partitions(parsed, self.spec(), self.schema())
        except Exception:  # noqa: BLE001 - a filter that does not fit: carrying it out finds the error
            return [[]]

    def _of_rows(self, rows: pa.Table | pa.RecordBatchReader) -> list[Partition]:
        """Return the partitions that *rows* lie in; an open one where that is not known before they are written."""
        try:
            return [[]] if hasattr(rows, "read_next_batch") else partitions_of_rows(rows, self.spec(), self.schema())
        except Exception:  # noqa: BLE001 - they are only locked: the write itself finds the error
            return [[]]

    def commit_files(
        self,
        data_files: Sequence[DataFile],
        *,
        mode: WriteMode = "append",
        overwrite_filter: BooleanExpression | str = AlwaysTrue(),
        branch: str = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        properties: dict[str, str] = EMPTY_DICT,
        request_id: str | None = None,
        schema_id: int | None = None,
        written: Written | None = None,
        reads: BooleanExpression | str | None = None,
        read_at: int | None = None,
        check_duplicate_files: bool | None = None,
    ) -> bool:
        """Commit data files that are written already, in one commit.

        Returns:
            True when this call landed them; False when an earlier commit with the same *request_id* had landed, so
            that nothing was done now. Files that were written for this call alone are then in no table.

        Guarantee: on return this request has landed exactly once, also when the same *request_id* was committed
        before, by whatever process. On ``CommitNotApplied`` none of the files is in the table and none will be, so they
        may be deleted; likewise on ``StatementError`` and ``InvalidArguments``. On ``FileInTable`` and
        ``CommitStateUnknown`` they must be kept.
        Without a *request_id* this says nothing of an earlier call with these files that ended in
        ``CommitStateUnknown``: it may still land.

        Args:
            data_files: Each of the partition spec that it says (``DataFile.spec_id``); one that says none is of the
                current spec of this table object. They land under these specs, whatever the table's is by then.
            mode: ``append`` lands on any head and is never refused for what others committed. ``overwrite`` replaces
                the rows that match *overwrite_filter*. ``dynamic`` replaces the partitions that the files fall in.
            overwrite_filter: For ``overwrite``.
            branch: Where the snapshot goes.
            snapshot_properties: Go into the snapshot's summary.
            properties: Table properties set by the same commit.
            request_id: Chosen by the caller: a UUID, or any text that means this commit and no other of this table.
            schema_id: The schema that the files were written with; None means the current one of this table object.
            written: That schema, and the partition specs of the files, as their writer kept them. Give it where this
                table object was loaded later than the files were written: their ids may mean others by then, if old
                schemas or specs were removed from the table. A file that says no spec is of the only one in it.
            reads: What the rows in the files were computed from, which must not have changed since *read_at*. None:
                what they replace. ``NOTHING``: no row, which is the default of ``append``.
            read_at: The snapshot that was read, ``NO_SNAPSHOT`` when there was none; None: the one that this object
                shows.
            check_duplicate_files: Look into all manifests of the branch, and refuse a file that is in it already, as
                ``add_files`` does. None: where there is no *request_id*. Without the look an append depends on nothing
                that the table holds, and costs the same however large the table is; but the same files, committed
                again under another *request_id*, are in the table twice. False also promises that no other commit has
                brought one of the files, so that they are not looked for when the commit is refused.

        Raises:
            StaleRead: What the rows were computed from has changed. Nothing landed.
            CommitConflict: The table does not have that schema, or a spec of the files, any more; or it requires a
                value that the files may lack. Nothing landed: read the table again, and write the files again.
            FileInTable: A file is in the table already. Nothing landed.
            StatementError: A filter does not fit the columns. Nothing landed.
            InvalidArguments: One has another type, is unknown, or would have no effect. Nothing landed.
        """
        data_files = listed(data_files, DataFile, "data_files")
        if mode not in get_args(WriteMode):
            raise InvalidArguments("unknown mode", value=mode, accepted=", ".join(get_args(WriteMode)))
        if mode != "overwrite" and not isinstance(overwrite_filter, AlwaysTrue):
            raise InvalidArguments("only mode='overwrite' has an overwrite_filter", mode=mode, filter=overwrite_filter)
        earlier = EarlierCommit([self], request_id)
        checked = request_id is None if check_duplicate_files is None else check_duplicate_files
        # A plain append depends on nothing, so the coordinator may look it up later, under the latch.
        if (mode != "append" or reads is not None or checked) and earlier.has_landed():
            return False
        try:
            tx = self.transaction()
        except CommitNotApplied as error:  # the table can't be written any more
            if earlier.has_landed(refused=error):
                return False
            raise
        try:
            fits = tx.files.written(data_files, schema_id, written)
            if request_id is not None:
                tx.request.id = request_uuid(request_id)
                tx.request.repeatable = True
            with tx:
                if properties:
                    tx.set_properties(properties)
                if mode == "overwrite":
                    tx.dependencies.replaces(overwrite_filter, reads, branch, read_at)
                    tx.delete(
                        overwrite_filter, snapshot_properties, branch=branch, _isolation_operation=Operation.OVERWRITE
                    )
                elif mode == "dynamic":
                    tx.dependencies.replaces(tx.partitions_of(data_files), reads, branch, read_at)
                    tx.files.delete_partitions(data_files, snapshot_properties, branch)
                elif reads is not None:
                    tx.depends_on(reads, branch, read_at)
                tx.files.append_written(
                    data_files,
                    fits,
                    snapshot_properties,
                    branch,
                    reads=NOTHING,
                    check_duplicate_files=checked,
                )
        except Exception as error:
            if tx.request.may_have_landed and not isinstance(error, CommitNotApplied):
                raise
            # What was refused may be what this request, or an earlier commit of the files, has itself brought about.
            if earlier.has_landed(refused=error):
                return False
            if check_duplicate_files is not False:
                earlier.refuse_live([data_file.file_path for data_file in data_files], error)
            tx.committing.emit_refused(error)
            if isinstance(error, CommitCoordError | CommitFailedException | ValidationException):
                raise
            raise CommitNotApplied(
                f"nothing was committed, the commit could not be prepared: {type(error).__name__}: {error}",
                table=".".join(self.name()),
            ) from error
        return not tx.request.landed_before

    def compact(self, partition: NamedValues = EMPTY_DICT, *, rewrite: Rewriter = rewrite_here) -> Compacted:
        """Put small files together, under X on *partition*, or on the table where none is given.

        Files below three quarters of ``write.target-file-size-bytes`` are small. Appends go on meanwhile, and stay.

        Guarantee: on any error but ``CommitStateUnknown`` the table is as it was, and no new file is left. The table
        shows the result.

        Args:
            partition: Columns and their values, ``{"day": "2026-01-01"}``; a prefix of them is enough.
            rewrite: Who does it; ``commit_coord.spark.rewriter`` has a Spark session do it, for what is too much for
                the memory of one process.

        Raises:
            StatementError: The table has no such partition column, or that one can't have such a value.
            LockTimeout: A conflicting lock was not given back in time. Nothing was written.
            CommitNotApplied: The locks were lost meanwhile, or rows were deleted. Nothing was published.
            CommitStateUnknown: It is not known whether it landed.
        """
        refuse_unwritable(self)
        operation = Operates.CONCATENATE_PARTITION if partition else Operates.CONCATENATE
        catalog = catalog_of(self)
        while True:
            planned = self._compacted(partition)
            taken = acquire(catalog, needed_locks(catalog, operation, *planned), operation.value)
            with taken or nullcontext():
                self._see_the_head()
                # Another commit may have changed the partitions while we waited.
                if taken is None or planned == self._compacted(partition):
                    condition = partition_filter(self, partition) if partition else AlwaysTrue()
                    lease = taken or catalog.locks.lease_on(planned[0], LockMode.SHARED)
                    with in_words(lambda: self.metadata.properties):
                        return compact(self, condition, rewrite, lease)

    def _compacted(self, partition: NamedValues) -> tuple[Resource, list[Partition], int]:
        levels = [partition_levels(self, partition)] if partition else []
        return Resource.table(self.name()), levels, len(self.metadata.partition_specs)

    def find_commit(self, request_id: str) -> JournalEntry | None:
        """Return what is known of the commit with *request_id*; None when it is not known to have landed.

        Raises:
            NoSuchTableError: The table was dropped.
        """
        return self._coordinator.find(tuple(self.name()), request_uuid(request_id))


class _Maintenance(MaintenanceTable):
    def expire_snapshots(self) -> ExpireSnapshots:
        """Return a builder that expires snapshots."""
        transaction = CoordinatedTransaction(self.tbl, autocommit=True, operation=Operates.EXPIRE_SNAPSHOTS)
        return ExpireSnapshots(transaction=transaction)
