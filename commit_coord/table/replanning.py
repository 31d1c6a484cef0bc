"""Plans the changes of a transaction again, on a head that has moved."""

from __future__ import annotations

from pyiceberg.exceptions import ValidationException
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import IsolationLevel, Operation

from commit_coord.errors import CommitNotApplied, InvalidArguments, StaleRead, StatementError
from commit_coord.iceberg.metadata import sequence_number
from commit_coord.iceberg.written import rows_misfit
from commit_coord.table.basis import Basis
from commit_coord.table.call_stack import CallStack
from commit_coord.table.changes import same_changed
from commit_coord.table.commit_request import CommitRequest
from commit_coord.table.dependencies import Dependencies
from commit_coord.table.isolation import has_deletes_after
from commit_coord.table.staged import Draft, StagingTransaction


class TransactionReplanner:
    """Has one transaction follow the head.

    Args:
        draft: The changes.
        basis: What they are planned on.
        stack: The calls that made them.
        dependencies: What must not have changed.
        request: The commit, which conflicts name.
    """

    def __init__(
        self, draft: Draft, basis: Basis, stack: CallStack, dependencies: Dependencies, request: CommitRequest
    ) -> None:
        self._draft = draft
        self._basis = basis
        self._stack = stack
        self._dependencies = dependencies
        self._request = request

    def follow(self, transaction: StagingTransaction, head: TableMetadata, location: str) -> None:
        """Plan the staged changes again on *head*.

        What PyIceberg can check and rebuild without a look at the rows is rebuilt. Otherwise what was called is
        called again, on *head*: the transaction then follows the commits that it lost the race to.

        Raises:
            CommitConflict: Neither is possible, or both sides changed one column or partition field.
            StaleRead: The rows were computed from others than those that *head* has.
        """
        draft, basis, dependencies = self._draft, self._basis, self._dependencies
        transaction.materialise()
        self.refuse_overlap(head)
        base = basis.planned_on[0]
        same_schema = head.schema() == base.schema() and head.spec() == base.spec()
        checkable = same_schema and draft.staged.can_be_rebuilt
        basis.planned_on = (head, location)
        if checkable and not self._overlooks(head) and not self._meets_deletes(base, head):
            dependencies.refuse_stale(head, draft.staged.dependencies)
            try:
                basis.move_to(head, location)
                transaction._rebuild_snapshot_updates()
                return
            except (ValidationException, ValueError) as error:
                if not draft.staged.replayable:
                    raise self._request.conflict(str(error), StaleRead) from error
        if not draft.staged.replayable:
            reason = "it was built by hand or from a stream, so it can't be planned again automatically"
            raise self._request.conflict(reason)
        dependencies.refuse_stale(head, [read.strictly() for read in draft.staged.dependencies])
        self._repeat(transaction, head, location)
        self.refuse_overlap(head)  # what changed nothing on the old base may change something now

    def refuse_overlap(self, head: TableMetadata) -> None:
        """Raise if this transaction and the commits between what its caller saw and *head* changed one thing."""
        seen, mine = self._basis.seen[0], self._draft.changed()
        staged = self._draft.staged
        self._dependencies.refuse_other_columns(head)
        if reason := same_changed(staged.changes, seen, head):
            raise self._request.conflict(reason)
        branches = {producer._target_branch for producer in staged.producers} - {MAIN_BRANCH}
        if gone := branches & seen.refs.keys() - head.refs.keys():
            raise self._request.conflict(f"the branch {min(gone)!r} was removed by another commit")
        for key in staged.property_keys - {TableProperties.DEFAULT_NAME_MAPPING}:
            # The name mapping follows from the schema, which was compared above.
            if head.properties.get(key) not in (seen.properties.get(key), mine.properties.get(key)):
                raise self._request.conflict(f"the property {key!r} was changed by another commit")

    def _overlooks(self, head: TableMetadata) -> bool:
        """Return whether a rebuilt removal would leave rows that were added meanwhile, and that it means too.

        PyIceberg leaves them under ``snapshot``. That is right for a removal that depends on rows that were read. A
        filter alone, and rows that depend on nothing, mean what is there when the commit lands.
        """
        levels = {head.isolation_level(operation) for operation in (Operation.DELETE, Operation.OVERWRITE)}
        staged = self._draft.staged
        return IsolationLevel.SNAPSHOT in levels and staged.removes_at_landing and not staged.only_appends

    def _meets_deletes(self, base: TableMetadata, head: TableMetadata) -> bool:
        """Return whether rows that a removal has written anew may have been deleted since *base*.

        PyIceberg checks only the files of deletes whose bounds match the filter of the removal.
        """
        staged, io = self._draft.staged, self._draft.table.io
        branches = {producer._target_branch for producer in staged.producers}
        seen = sequence_number(base)
        return not staged.only_appends and any(
            has_deletes_after(head.snapshot_by_name(branch), seen, io) for branch in branches
        )

    def _repeat(self, transaction: StagingTransaction, head: TableMetadata, location: str) -> None:
        """Call again what was called, on *head*, with the same request id."""
        transaction.created.delete(self._draft.table.io)
        self._basis.move_to(head, location)
        self._draft.staged = self._draft.staged.as_called()
        autocommit, transaction._autocommit = transaction._autocommit, False
        try:
            with self._stack.again():
                for call in self._draft.staged.calls:
                    call(transaction)
        except (CommitNotApplied, InvalidArguments):
            raise
        except StatementError as error:
            if reason := rows_misfit(head.schema(), self._basis.seen[0].schema()):
                raise self._request.conflict(reason) from error
            raise
        except Exception as error:
            raise self._request.conflict(f"it does not fit the table as it is now ({error})") from error
        finally:
            transaction._autocommit = autocommit
