"""The rows and columns that the caller of a transaction has used, which must be unchanged when it lands."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import IsolationLevel, Operation

from commit_coord.errors import StaleRead, StatementError
from commit_coord.table.basis import Basis
from commit_coord.table.call_stack import CallStack
from commit_coord.table.commit_request import CommitRequest
from commit_coord.table.isolation import NO_SNAPSHOT, NOTHING, Read, change_since, renamed_over
from commit_coord.table.staged import Draft


class Dependencies:
    """The reads and the names of one transaction.

    Args:
        draft: Notes them.
        basis: What the caller saw.
        stack: Whose call it is.
        request: The commit, which conflicts name.
    """

    def __init__(self, draft: Draft, basis: Basis, stack: CallStack, request: CommitRequest) -> None:
        self._draft = draft
        self._basis = basis
        self._stack = stack
        self._request = request

    # Reads.

    def replaces(
        self,
        row_filter: BooleanExpression | str,
        reads: BooleanExpression | str | None,
        branch: str | None,
        read_at: int | None,
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
        if self._stack.is_called and reads == NOTHING:
            self._draft.update(replaces=True)
        self.depends_on(row_filter if reads is None else reads, branch, read_at, case_sensitive=case_sensitive)

    def depends_on(
        self,
        row_filter: BooleanExpression | str,
        branch: str | None,
        read_at: int | None = None,
        *,
        case_sensitive: bool = True,
    ) -> None:
        """Declare that staged rows were computed from those that match *row_filter*; see the transaction's method."""
        draft, basis = self._draft, self._basis
        if not self._stack.is_called or row_filter == NOTHING:
            return
        if not isinstance(row_filter, AlwaysTrue):
            self._note_names(case_sensitive)
        self._refuse_unknown_columns(row_filter, case_sensitive)
        read = self._read(row_filter, branch, read_at, case_sensitive, Operation.OVERWRITE)
        if read.level is IsolationLevel.SNAPSHOT and not self._stack.begun:
            # Go back to what the caller saw: what others have added since then is not replaced.
            basis.move_to(*basis.seen)
        # What is replaced is planned on what the table shows: also what was added between the read and then.
        if basis.has_moved or _head_of(draft.table.metadata, branch) != read.snapshot_id:
            read = read.strictly()
        draft.update(depended=(*draft.staged.depended, read))
        self.refuse_stale(draft.table.metadata, draft.staged.depended[-1:])

    def brings_rows(self, reads: BooleanExpression | str | None, branch: str | None) -> None:
        """Note that the present call stages rows of the caller's, computed from *reads*."""
        if reads is not None:
            self.depends_on(reads, branch)
        elif self._stack.is_called:
            self._draft.update(rows_given=True)

    def removes(self, row_filter: BooleanExpression | str, branch: str | None, *, case_sensitive: bool) -> None:
        """Note that the present call deletes the rows that match *row_filter*."""
        if self._stack.is_called:
            read = self._read(row_filter, branch, None, case_sensitive, Operation.DELETE)
            removed = read.strictly() if self._basis.has_moved else read
            self._draft.update(removed=(*self._draft.staged.removed, removed))

    def refuse_stale(self, head: TableMetadata, reads: Iterable[Read]) -> None:
        """Raise ``StaleRead`` when *head* shows a change of what one of *reads* depends on."""
        for read in reads:
            try:
                change = change_since(read, head, self._draft.table.io)
            except (ValueError, ValidationError) as error:
                reason = f"what it depends on does not fit the table as it is now ({error})"
                raise self._request.conflict(reason) from error
            if change is not None:
                stale = self._request.conflict(change, StaleRead)
                stale.add_note("Refresh the table, read it again, and write what you compute from that.")
                raise stale

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
        if self._draft.staged.computes and read_at is None:
            row_filter = AlwaysTrue()
        seen = self._basis.seen[0]
        snapshot_id = _head_of(seen, branch) if read_at is None else read_at if read_at != NO_SNAPSHOT else None
        return Read(
            row_filter=parse(row_filter) if isinstance(row_filter, str) else row_filter,
            branch=branch,
            snapshot_id=snapshot_id,
            level=seen.isolation_level(operation),
            case_sensitive=case_sensitive,
        )

    def _refuse_unknown_columns(self, row_filter: BooleanExpression | str, case_sensitive: bool) -> None:
        """Raise unless *row_filter* fits the columns: else nobody would ever find that what it means has changed.

        Columns that the table had when the rows were read count too.
        """
        changed = self._draft.changed()
        try:
            _bind(changed.schema(), row_filter, case_sensitive)
        except ValueError:
            for schema in (*changed.schemas, *self._basis.seen[0].schemas):
                with suppress(ValueError):
                    _bind(schema, row_filter, case_sensitive)
                    return
            raise

    # Names.

    def names_columns(
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
            StatementError: *row_filter* compares a column with what it can't hold, in a way that PyIceberg trips over;
                or a name in it is ambiguous.
        """
        self._note_names(case_sensitive, seen)
        if not isinstance(row_filter, AlwaysTrue):
            _bind(self._draft.changed().schema(), row_filter, case_sensitive)  # with columns that it adds itself

    def refuse_other_columns(self, head: TableMetadata, seen: Schema | None = None) -> None:
        """Raise CommitConflict when a name that was used means another column in *head*."""
        staged = self._draft.staged
        if not staged.by_name:
            return
        shown = seen or self._basis.seen[0].schema()
        if name := renamed_over(shown, head.schema(), folds_case=staged.folds_case):
            raise self._request.conflict(f"the column {name!r} was replaced by another column since the table was read")

    def _note_names(self, case_sensitive: bool, seen: Schema | None = None) -> None:
        self._draft.update(by_name=True, folds_case=self._draft.staged.folds_case or not case_sensitive)
        self.refuse_other_columns(self._basis.planned_on[0], seen)


def _head_of(metadata: TableMetadata, branch: str | None) -> int | None:
    head = metadata.snapshot_by_name(branch)
    return head.snapshot_id if head is not None else None


def _bind(schema: Schema, row_filter: BooleanExpression | str, case_sensitive: bool) -> None:
    """Raise unless *row_filter* fits the columns of *schema*: ValueError, or StatementError for other errors."""
    try:
        bind(schema, parse(row_filter) if isinstance(row_filter, str) else row_filter, case_sensitive)
    except (TypeError, ArithmeticError, KeyError, ValidationError) as error:
        raise StatementError("the filter does not fit the columns", filter=row_filter, reason=error) from error
