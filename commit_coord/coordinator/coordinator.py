"""The entry point for commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyiceberg.typedef import Identifier

from commit_coord.coordinator.commit import Commit
from commit_coord.coordinator.multi_table import MultiTableCommit, TableAttempt
from commit_coord.coordinator.services import Services
from commit_coord.coordinator.stores import Committed, MultiTableStore, Replanner
from commit_coord.errors import CommitError, CommitNotApplied, ConfigError, InternalError
from commit_coord.events import CommitBegan, CommitEnded
from commit_coord.iceberg.attempt import Attempt, table_names
from commit_coord.locks.base import Lease
from commit_coord.model import CommitStatus


class Coordinator(Services):
    """Executes the commits of one catalog."""

    def commit(
        self,
        attempts: Sequence[Attempt],
        *,
        replan: Replanner | None = None,
        repeatable: bool = False,
        operation_lease: Lease | None = None,
        is_repair: bool = False,
    ) -> list[Committed]:
        """Commit *attempts* to one table.

        Guarantee: on return each attempt is in the table exactly once. On ``CommitNotApplied`` it is not in the table
        and never will be, and the files that this call has written are deleted. On ``StatementError``, which *replan*
        raises, it is not in the table either, and the error says which files to keep. Treat any other
        exception as an unknown outcome: every file is kept.

        Args:
            attempts: Exactly one for now.
            replan: Plans the attempt again if it does not fit a head that has moved; with None it is then refused.
            repeatable: The caller has chosen the request id and may use it again: look the id up first, and keep it in
                the journal.
            operation_lease: The locks of the operation. Directly before the swap the lock service must confirm that
                they are still held; otherwise the attempt does not land.
            is_repair: The attempt has the request id of a commit that landed and was overwritten, so files with the
                usual names for this id exist already.

        Raises:
            CommitConflict: The attempt conflicts with another commit, or does not fit the table.
            CommitLockFailed: The latch was not granted, or was lost before the swap in every try; or
                *operation_lease* was lost, or the Hive lease that fences the commit has ended.
            CommitNotApplied: The commit failed for another reason, and did not swap the pointer; the cause says why.
            CommitStateUnknown: It is not known whether the swap landed.
        """
        if len(attempts) != 1:
            raise InternalError("a commit takes one attempt", attempts=len(attempts))
        attempt = replace(attempts[0], repeatable=repeatable)
        commit = Commit(self, attempt, replan, operation_lease, is_repair=is_repair)
        return [commit.run()]

    def emit_ended(self, tables: Sequence[Identifier], request_id: str, error: CommitError) -> None:
        """Emit the events of a commit that *error* ended before :meth:`commit` or :meth:`commit_tables` was called."""
        names, not_applied = table_names(tables), isinstance(error, CommitNotApplied)
        self.events.emit(CommitBegan(table=names, request_id=request_id))
        self.events.emit(
            CommitEnded(
                table=names,
                tables=tuple(tables),
                request_id=request_id,
                status=CommitStatus.FAILURE if not_applied else CommitStatus.UNKNOWN,
                waited_ms=0,
                held_ms=0,
                tries=0,
                rebased=False,
                reason=str(error),
            )
        )

    def commit_tables(
        self, changes: Sequence[TableAttempt], *, repeatable: bool = False
    ) -> dict[Identifier, Committed]:
        """Land *changes*, each of a different table, in one swap of all pointers.

        Guarantee: as for :meth:`commit`, and either all changes land or none.

        Args:
            changes: All of them have the same request id.
            repeatable: As for :meth:`commit`.

        Returns:
            For each table, its state after the commit. If the request had landed before, tables that were dropped since
            are left out.

        Raises:
            ConfigError: The store can swap only one pointer at a time. Nothing was done.
            CommitError: As :meth:`commit`.
        """
        store = self.require_multi_table()
        if not changes:
            return {}
        named = [replace(each, attempt=replace(each.attempt, repeatable=repeatable)) for each in changes]
        return MultiTableCommit(self, store, named).run()

    def require_multi_table(self) -> MultiTableStore:
        """Return the store if it swaps the pointers of several tables at once.

        Raises:
            ConfigError: It does not.
        """
        if not isinstance(self.store, MultiTableStore):
            raise ConfigError(
                "nothing was committed: this catalog swaps one table's pointer at a time, so readers could see a part "
                "of the commit",
                key="uri",
                accepted="a SQL catalog, or one commit for each table",
            )
        return self.store
