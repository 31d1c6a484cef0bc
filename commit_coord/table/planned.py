"""A transaction as PyIceberg's own planning sees it: the table with the staged changes, and what may be staged."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableRequirement, TableUpdate

from commit_coord.errors import CommitNotApplied
from commit_coord.iceberg.attempt import table_name
from commit_coord.protocol.hierarchy import Operation as Operates
from commit_coord.table.append import PureAppend
from commit_coord.table.arguments import refuse_no_name
from commit_coord.table.basis import Basis, ShownHead
from commit_coord.table.call_stack import CallStack
from commit_coord.table.calls import Calls
from commit_coord.table.changes import Change, changes_table, rolls_back, sets_order
from commit_coord.table.commit_request import CommitRequest
from commit_coord.table.committing import Committing
from commit_coord.table.created_files import CreatedFiles
from commit_coord.table.dependencies import Dependencies
from commit_coord.table.exact_rows import ExactRows
from commit_coord.table.foreign_files import refuse_mapped_names
from commit_coord.table.held_lock import HeldLock
from commit_coord.table.ports import catalog_of, host_of
from commit_coord.table.replanning import TransactionReplanner
from commit_coord.table.staged import REFS, Call, StagingTransaction
from commit_coord.table.writable import refuse_unwritable


class PlannedTransaction(ExactRows, StagingTransaction):
    """The changes that PyIceberg's planning stages in a coordinated transaction.

    Its parts: ``draft`` is what is staged, ``request`` names the commit, ``calls`` runs and records what is called,
    ``dependencies`` are what its caller has read and named, ``committing`` ends it.

    Args:
        table: What it changes.
        autocommit: Commit with the first staged change.
        operation: The operation for changes from PyIceberg's builders, which do not name one.
        seen: What *table* showed its caller, who may have read that, before it was loaded again under a lock.
    """

    def __init__(
        self,
        table: Table,
        autocommit: bool = False,
        *,
        operation: Operates | None = None,
        seen: ShownHead | None = None,
    ) -> None:
        refuse_unwritable(table)
        self._target = table
        self.created = CreatedFiles()
        tracked = copy.copy(table)
        tracked.io = self.created.recording(table.io)
        super().__init__(tracked, autocommit)
        self._table: Table = tracked
        self._operation = operation
        catalog, draft = catalog_of(table), self.draft
        self.request = request = CommitRequest(table.name(), host_of(table))
        basis, stack = Basis(table, draft, catalog, request, seen), CallStack(draft)
        self.dependencies = Dependencies(draft, basis, stack, request)
        replanner = TransactionReplanner(draft, basis, stack, self.dependencies, request)
        lock = HeldLock(catalog, request.table)
        self.calls = Calls(draft, basis, stack, self.dependencies, lock, replanner, request)
        self._stack = stack
        self.committing = Committing(catalog, self.calls, replanner, request)

    # What PyIceberg's own planning sees, and what it stages.

    @property
    def table_metadata(self) -> TableMetadata:
        """Return the table with the staged changes."""
        self.materialise()
        return self.draft.changed()

    def _stage(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Transaction:
        """Stage changes. PyIceberg keeps one requirement of each type, so of two branches one would be unguarded."""
        for requirement in requirements:
            try:
                requirement.validate(self.table_metadata)
            except CommitFailedException as error:
                raise self.request.conflict(str(error)) from error
        before = self.table_metadata if changes_table(updates) else None
        known = {(type(requirement), getattr(requirement, "ref", None)) for requirement in self._requirements}
        self._requirements += tuple(r for r in requirements if (type(r), getattr(r, "ref", None)) not in known)
        self._updates += updates
        if before is not None:
            after = self.table_metadata  # PyIceberg's ValidationError: a spec or an order needs a column that goes
            refuse_mapped_names(before, after.schema(), table_name(self._table.name()))
            if not self._stack.planning:
                self.draft.update(changes=(*self.draft.staged.changes, Change(before, after, sets_order(updates))))
        elif not any(isinstance(update, AddSnapshotUpdate) for update in updates):
            self._refuse_what_does_not_fit()
        return self

    def _refuse_what_does_not_fit(self) -> None:
        """Raise PyIceberg's ValueError where the staged changes do not fit the table: no other head would help.

        Raises:
            CommitConflict: They may have fitted the table that the caller saw.
        """
        try:
            self.draft.changed()
        except ValueError as error:
            if not self.calls.basis.has_moved:
                raise
            raise self.request.conflict(str(error)) from error

    def _apply(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...] = ()) -> Transaction:
        """Stage changes. What was not called through this transaction can't be called again, but for tags and branches.

        The requirements of these say where they were, so that nothing else than what was meant is made again.
        """
        for update in updates:
            if isinstance(update, SetSnapshotRefUpdate):
                refuse_no_name(update.ref_name)
        of_refs = bool(updates) and all(isinstance(update, REFS) for update in updates)
        with self.call((lambda transaction: transaction._apply(updates, requirements)) if of_refs else None):
            if self._stack.depth == 1:
                self.draft.update(replayable=self.draft.staged.replayable and of_refs)
                if self._operation is not None:
                    back = rolls_back((*self._updates, *updates), self._table.metadata)
                    self._lock_operation(Operates.ROLL_BACK if back else self._operation)
            elif not updates:
                self.draft.update(reads=True)  # it found nothing to do, which another head may not bear out
            return super()._apply(updates, requirements)

    def _is_sent(self) -> bool:
        return self.request.sent and not self._stack.repeating

    def _emit_refused(self, error: BaseException) -> None:
        self.committing.emit_refused(error)

    def call(self, again: Call | None = None) -> AbstractContextManager[None]:
        """Make one call in the block; see :meth:`Calls.call`."""
        return self.calls.call(self, again)

    def _lock_operation(self, operation: Operates) -> None:
        self.calls.lock_operation(self, operation)

    def pend(self, producer: PureAppend) -> None:
        """Take the append of *producer* without a look at the table, if it is the only one so far.

        Raises:
            CommitNotApplied: It goes to a branch, and the table has no snapshot that the branch could start from.
        """
        branch, shown = producer._target_branch, self._table.metadata
        first = not self._updates and shown.current_snapshot_id is None
        if first and branch not in (None, MAIN_BRANCH) and branch not in shown.refs:
            raise CommitNotApplied(
                "the commit did not land: a table without a snapshot can only be written to its main branch",
                table=table_name(self._table.name()),
                branch=branch,
            )
        self._register_snapshot_producer(producer)
        if any(isinstance(update, AddSnapshotUpdate) for update in self._updates):
            self._apply(*producer._commit())
            return
        self.draft.update(pending=producer)
        if self._autocommit:
            self.commit_transaction()
