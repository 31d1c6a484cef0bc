"""The end of a transaction: what it asks the coordinator for, and what becomes of its files and its lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID

from commit_coord.coordinator import Committed, TableAttempt
from commit_coord.errors import CommitNotApplied, CommitStateUnknown, StatementError
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.table.calls import Calls
from commit_coord.table.commit_request import CommitRequest
from commit_coord.table.ports import TableCatalog
from commit_coord.table.replanning import TransactionReplanner
from commit_coord.table.staged import Staged, StagingTransaction


class Committing:
    """Commits one transaction.

    Args:
        catalog: Whose coordinator lands it.
        calls: What was called, and what that holds.
        replanner: Follows the head.
        request: The commit.
    """

    def __init__(
        self, catalog: TableCatalog, calls: Calls, replanner: TransactionReplanner, request: CommitRequest
    ) -> None:
        self._catalog = catalog
        self._calls = calls
        self._draft, self._basis = calls.draft, calls.basis
        self._replanner = replanner
        self._request = request

    def commit(self, transaction: StagingTransaction) -> None:
        """Land the staged changes, and begin a new transaction; see :meth:`CoordinatedTransaction.commit_transaction`.

        Raises:
            RuntimeError: The transaction has failed before.
        """
        change = self.prepare(transaction)
        try:
            committed = None
            if change is not None:
                (committed,) = self._catalog.coordinator.commit(
                    [change.attempt],
                    replan=change.replan,
                    repeatable=self._request.repeatable,
                    operation_lease=change.operation_lease,
                )
            self.show(transaction, committed)
        except BaseException as error:
            self.give_up(transaction, error)
            raise
        self.begin_anew(transaction)

    def prepare(self, transaction: StagingTransaction) -> TableAttempt | None:
        """Return the staged changes for a commit, None if there are none. On an error, they are abandoned.

        Raises:
            RuntimeError: The transaction has failed before.
            CommitConflict: The base shows that the changes cannot land.
        """
        draft, basis = self._draft, self._basis
        if transaction._failed:
            raise RuntimeError("This transaction failed to commit and cannot be reused; create a new transaction.")
        try:
            with basis.files_may_be_gone():
                self._refuse_what_has_changed(transaction)
                attempt = self.attempt() if draft.staged.stages else None
        except BaseException as error:
            self.abandon(transaction, error)
            raise
        if attempt is None:
            return None

        def replan(head: TableMetadata, location: str) -> Attempt:
            """Plan the staged changes again on *head*, and return what they ask for there."""
            with basis.files_may_be_gone():
                self._replanner.follow(transaction, head, location)
                return self.attempt()

        self._request.sent = True
        return TableAttempt(attempt=attempt, replan=replan, operation_lease=self._request.operation_lease)

    def abandon(self, transaction: StagingTransaction, error: BaseException | None) -> None:
        """End the transaction after *error*, before the coordinator was asked."""
        self._calls.abandon(transaction)
        if not self._request.repeatable:  # whether an earlier commit of that id has landed, is not known yet
            self.emit_refused(error)

    def emit_refused(self, error: BaseException | None) -> None:
        """Emit the events of the commit that *error* has refused before the coordinator was asked, once."""
        request = self._request
        if not isinstance(error, CommitNotApplied) or request.refused or request.sent:
            return
        if (error.details.get("table"), error.details.get("request_id")) == (table_name(request.table), request.id):
            request.refused = True
            self._catalog.coordinator.emit_ended([request.table], request.id, error)

    def show(self, transaction: StagingTransaction, committed: Committed | None) -> None:
        """Let the caller's table object show *committed*; None if there was nothing to commit."""
        if committed is None:
            if self._basis.has_moved:
                self._basis.show(*self._basis.planned_on)
            return
        with self._landed():
            self._basis.show(committed.metadata, committed.location)
            self._request.landed_before = committed.landed_before
            if committed.landed_before:
                transaction.created.delete(self._draft.table.io)
            else:
                transaction._cleanup_uncommitted_manifests()  # of earlier plans

    def give_up(self, transaction: StagingTransaction, error: BaseException) -> None:
        """End the transaction after *error*; delete its files if the error proves that nothing landed."""
        if isinstance(error, CommitNotApplied | StatementError):  # the second one while it was planned again
            self._calls.abandon(transaction)
        else:
            transaction._failed = True
            self._calls.lock.release()

    def begin_anew(self, transaction: StagingTransaction) -> None:
        """Begin a new transaction after this one has landed."""
        with self._landed():
            self._calls.lock.release()
            self._draft.staged = Staged()
            transaction.created.forget()
            self._basis.begin_anew()
            self._request.renew()

    @contextmanager
    def _landed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise CommitStateUnknown(
                "the commit landed, and an unexpected error came after it; load the table again, do not "
                "repeat the commit",
                table=table_name(self._request.table),
                request_id=self._request.id,
            ) from error

    def attempt(self) -> Attempt:
        """Return what the staged changes ask for."""
        draft, request = self._draft, self._request
        base, staged = draft.table.metadata, draft.staged
        # While the append is prepared its transaction is looked at, which would make a snapshot of it.
        draft.update(pending=None)
        append = staged.pending.prepare() if staged.pending is not None else None
        draft.staged = staged
        reads = staged.reads or bool(staged.depended) or staged.evolves or not staged.only_appends
        return Attempt(
            request_id=request.id,
            table=request.table,
            table_uuid=str(base.table_uuid),
            base_location=draft.table.metadata_location,
            base_sequence_number=fast_metadata.sequence_number(base),
            requirements=(*staged.requirements, AssertTableUUID(uuid=base.table_uuid)),
            updates=staged.updates,
            append=append,
            reads_data=reads,
            properties_read={key: base.properties.get(key) for key in staged.property_keys},
        )

    def _refuse_what_has_changed(self, transaction: StagingTransaction) -> None:
        """Raise ``CommitConflict`` when the base shows it; ask the head where the calls have staged nothing."""
        draft, basis = self._draft, self._basis
        if not draft.staged.stages and (draft.staged.reads or draft.staged.producers):
            self._look_again(transaction)
        if basis.has_moved:
            self._replanner.refuse_overlap(basis.planned_on[0])
            self._calls.dependencies.refuse_stale(basis.planned_on[0], draft.staged.dependencies)

    def _look_again(self, transaction: StagingTransaction) -> None:
        """Plan again if the table has moved: what found nothing to do on an old one may find something by now.

        1. We load the table, to delete the rows with k = 7. There are none.   2. Another client appends k = 7, and
        the commit is acknowledged.   3. We would report a success, and the row stays. The same with a column that we
        make the first one, and that was the first one when we loaded the table.
        """
        if (newer := self._basis.newer_head()) is not None:
            self._replanner.follow(transaction, *newer)
