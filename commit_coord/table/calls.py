"""The calls on a transaction: each takes its lock, stages all of itself or nothing, and is recorded to be replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from pyiceberg.table.snapshots import IsolationLevel

from commit_coord.iceberg.table_properties import in_words
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table import arguments
from commit_coord.table.basis import Basis
from commit_coord.table.call_stack import CallStack
from commit_coord.table.commit_request import CommitRequest
from commit_coord.table.dependencies import Dependencies
from commit_coord.table.held_lock import HeldLock
from commit_coord.table.replanning import TransactionReplanner
from commit_coord.table.staged import Call, Draft, StagingTransaction

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Calls:
    """Runs the calls on one transaction.

    Args:
        draft: What they stage.
        basis: What they are planned on.
        stack: Which of them run.
        dependencies: What they read.
        lock: What they hold.
        replanner: Replays them.
        request: The commit.
    """

    def __init__(
        self,
        draft: Draft,
        basis: Basis,
        stack: CallStack,
        dependencies: Dependencies,
        lock: HeldLock,
        replanner: TransactionReplanner,
        request: CommitRequest,
    ) -> None:
        self.draft = draft
        self.basis = basis
        self.stack = stack
        self.dependencies = dependencies
        self.lock = lock
        self._replanner = replanner
        self._request = request
        self.only_one = False
        """Whether the commit follows the first call at once, so that no argument can change before it."""
        self._streams: list[Any] = []  # those that plans have read

    @contextmanager
    def call(self, transaction: StagingTransaction, again: Call | None = None) -> Iterator[None]:
        """Count how deep calls are nested, and record outermost ones that succeed.

        One that fails stages nothing, and gives back the lock if the transaction had none before; in a transaction of
        one call it leaves no file. The exception refers to the transaction, and may be kept for as long as the process
        lives.

        Args:
            transaction: On which the call is made.
            again: Makes the call once more; None when it can't be made again.
        """
        outermost = self.stack.depth == 0
        held = self.lock.held
        if outermost:
            self.follow_the_caller(transaction)
            self.stack.note_before()
        with self.stack.deeper():
            try:
                with transaction.whole():
                    if outermost and again is not None:
                        self.draft.update(calls=(*self.draft.staged.calls, again))
                    with (
                        self.basis.files_may_be_gone() if outermost else nullcontext(),
                        in_words(lambda: transaction.table_metadata.properties),
                    ):
                        yield
            except BaseException as error:
                if outermost and not self._request.sent:
                    if not held:
                        self.lock.release()
                    if transaction._autocommit:
                        transaction.created.delete(self.draft.table.io)
                        transaction._emit_refused(error)
                raise

    def follow_the_caller(self, transaction: StagingTransaction) -> None:
        """Go on from what the caller's table object shows, if that was refreshed since.

        Raises:
            CommitConflict: What was called can't be planned on it.
        """
        basis = self.basis
        if (shown := basis.refreshed()) is None:
            return
        if not basis.is_planned_on(*shown):
            basis.refuse_other_table(shown[0])
            if self.draft.staged.begun:
                try:
                    self._replanner.follow(transaction, *shown)
                except BaseException:
                    self.abandon(transaction)  # what is planned again by half must not be committed
                    raise
            else:
                basis.move_to(*shown)
        basis.seen = basis.planned_on

    def lock_operation(self, transaction: StagingTransaction, operation: Operation, *, look: bool = True) -> None:
        """Hold what *operation* takes on the table until the transaction ends.

        Another transaction of this thread may hold it already. Waiting for it would never end, so this one goes
        on without: the check at the commit still finds every conflict.

        Args:
            transaction: On which the call is made.
            operation: What the present call does.
            look: See the table as it is by then.

        Raises:
            LockError: The lock was not granted. Nothing was changed.
        """
        stack = self.stack
        if stack.depth > 1 or stack.repeating or transaction._failed or self.lock.covers(operation):
            return
        if not self.lock.take(operation):
            return
        # Under `snapshot` the plan is one for what was read: what others have added since then is not replaced.
        bound = any(read.level is IsolationLevel.SNAPSHOT for read in self.draft.staged.depended)
        if look and not bound and not stack.begun:
            self.basis.see_the_head()

    def kept(self, given: T) -> T:
        """Return the arguments of a call so that it can be repeated, whatever its caller does with them."""
        return given if self.stack.depth else cast(T, arguments.kept(given, rows=not self.only_one))

    def note_streams(self, given: Iterable[Any]) -> None:
        """Note the streams among the arguments of the present call: each can be read once.

        Raises:
            CommitConflict: A plan that is repeated reads one again. Nothing landed.
        """
        streams = [value for value in given if hasattr(value, "read_next_batch")]
        if not streams:
            return
        if self.stack.depth == 1:
            self.draft.update(replayable=False)
        elif self.stack.repeating and any(stream is known for stream in streams for known in self._streams):
            raise self._request.conflict(
                "its plan reads a stream that was made outside of the plan: make it in the plan"
            )
        self._streams += streams

    def abandon(self, transaction: StagingTransaction) -> None:
        """Give up for good: nothing landed, nothing will."""
        transaction._failed = True
        self.lock.release()
        transaction.created.abandon(self.draft.table.io)


class CallingTransaction(Protocol):
    """A transaction whose calls are run by :class:`Calls`."""

    @property
    def calls(self) -> Calls:
        """Run its calls."""
        ...


def replayable(method: F) -> F:
    """Record outermost calls of *method*, to be made again on a newer head."""

    @wraps(method)
    def call(self: CallingTransaction, *args: Any, **kwargs: Any) -> Any:
        calls = self.calls
        args, kwargs = calls.kept((args, kwargs))
        with calls.call(cast(StagingTransaction, self), lambda transaction: method(transaction, *args, **kwargs)):
            calls.note_streams((*args, *kwargs.values()))
            return method(self, *args, **kwargs)

    return cast(F, call)


class RecordingBuilder:
    """A builder of PyIceberg's whose calls are recorded by the transaction when it commits.

    Args:
        transaction: It changes what this one changes.
        calls: Runs the calls on *transaction*.
        make: Makes the builder.
        operation: What it does.
        case_sensitive: How its calls name columns.
    """

    def __init__(
        self,
        transaction: StagingTransaction,
        calls: Calls,
        make: Call,
        operation: Operation,
        *,
        case_sensitive: bool = True,
    ) -> None:
        self._transaction = transaction
        self._calls = calls
        self._make = make
        self._operation = operation
        self._case_sensitive = case_sensitive
        calls.follow_the_caller(transaction)
        self._made_on, self._seen = calls.basis.planned_on, calls.basis.seen[0].schema()
        self._builder = make(transaction)
        self._recorded: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._builder, name)
        if not callable(found) or name.startswith("_"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = arguments.kept((args, kwargs))
            self._recorded.append((name, args, kwargs))
            result = found(*args, **kwargs)
            return self if result is self._builder else result

        return call

    def commit(self) -> None:
        """Stage the changes; the transaction can make them again on a newer head.

        They are staged on the table that the caller saw, also when a lock was waited for: the commit then finds out
        what was changed meanwhile, and compares.

        1. The caller makes this builder, and names the column ``a``.   2. Another client gives that name to another
        column.   3. The caller refreshes the table, so the calls are made again: ``a`` is not what the caller meant.
        So the names are compared with those of step 1.

        Raises:
            CommitConflict: A name means another column by now. Nothing landed.
        """
        make, calls = self._make, tuple(self._recorded)

        def again(transaction: StagingTransaction) -> None:
            builder = make(transaction)
            for name, args, kwargs in calls:
                getattr(builder, name)(*args, **kwargs)
            builder.commit()

        with self._calls.call(self._transaction, again):
            self._calls.lock_operation(self._transaction, self._operation, look=False)
            self._calls.dependencies.names_columns(seen=self._seen, case_sensitive=self._case_sensitive)
            if self._calls.basis.planned_on is self._made_on:
                self._builder.commit()
            else:
                again(self._transaction)

    def __enter__(self) -> RecordingBuilder:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is None:
            self.commit()
