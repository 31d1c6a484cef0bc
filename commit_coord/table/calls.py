"""What was called on a transaction, remembered so that it can be called again on a newer head."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from commit_coord.protocol.hierarchy import Operation

if TYPE_CHECKING:
    from commit_coord.table.transaction import CoordinatedTransaction

F = TypeVar("F", bound=Callable[..., Any])


def recorded(method: F) -> F:
    """Remember outermost calls of *method*, to be made again on a newer head."""

    @wraps(method)
    def call(self: CoordinatedTransaction, *args: Any, **kwargs: Any) -> Any:
        with self.call(lambda transaction: method(transaction, *args, **kwargs)):
            # A plan makes a new one each time.
            if self._depth == 1 and any(hasattr(value, "read_next_batch") for value in (*args, *kwargs.values())):
                self._note(replayable=False)  # a RecordBatchReader can be read once
            return method(self, *args, **kwargs)

    return cast(F, call)


class Remembering:
    """A builder of PyIceberg's whose calls are remembered by the transaction when it commits.

    Args:
        transaction: It changes what this one changes.
        make: Makes the builder.
        operation: What it does.
        case_sensitive: How its calls name columns.
    """

    def __init__(
        self,
        transaction: CoordinatedTransaction,
        make: Callable[[CoordinatedTransaction], Any],
        operation: Operation,
        *,
        case_sensitive: bool = True,
    ) -> None:
        self._transaction = transaction
        self._make = make
        self._operation = operation
        self._case_sensitive = case_sensitive
        transaction._follow_the_caller()
        self._made_on, self._seen = transaction._base, transaction._seen[0].schema()
        self._builder = make(transaction)
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._builder, name)
        if not callable(found) or name.startswith("_"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append((name, args, kwargs))
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
        make, calls = self._make, tuple(self._calls)

        def again(transaction: CoordinatedTransaction) -> None:
            builder = make(transaction)
            for name, args, kwargs in calls:
                getattr(builder, name)(*args, **kwargs)
            builder.commit()

        transaction = self._transaction
        with transaction.call(again):
            transaction._lock_operation(self._operation, look=False)
            transaction._names_columns(seen=self._seen, case_sensitive=self._case_sensitive)
            if transaction._base is self._made_on:
                self._builder.commit()
            else:
                again(transaction)

    def __enter__(self) -> Remembering:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is None:
            self.commit()
