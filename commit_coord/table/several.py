"""A transaction over several tables of a catalog."""

from __future__ import annotations

from traceback import walk_tb
from types import TracebackType
from typing import Protocol, Self

from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from commit_coord.iceberg.attempt import request_uuid, table_name
from commit_coord.table.earlier_commit import REFUSALS, EarlierCommit
from commit_coord.table.ports import TableCatalog
from commit_coord.table.transaction import CoordinatedTransaction


class LoadingCatalog(TableCatalog, Protocol):
    """A catalog that finds tables by their names."""

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return a table as it is now."""
        ...


class PartOfTransaction(CoordinatedTransaction):
    """The changes of one table in a transaction over several tables. Only the whole transaction can be committed."""

    def commit_transaction(self) -> Table:
        """Refuse.

        Raises:
            ValueError: Always.
        """
        raise ValueError("this is a part of a transaction over several tables; commit the whole transaction")

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        """Do nothing: the whole transaction continues."""


class CatalogTransaction:
    """Stages changes of several tables, and lands all of them in one commit, or none.

    A ``with`` block that ends without an error commits. A reader that sees the commit in one table sees it from then on
    in all of them.

    Args:
        catalog: The catalog of the tables.
        request_id: Chosen by the caller; None for a commit that is not repeated.
    """

    def __init__(self, catalog: LoadingCatalog, request_id: str | None = None) -> None:
        self._catalog = catalog
        self._request_id = str(catalog.coordinator.host.new_id()) if request_id is None else request_uuid(request_id)
        self._repeatable = request_id is not None
        self._parts: dict[Identifier, PartOfTransaction] = {}
        self._over = False

    def table(self, table: str | Identifier | Table) -> PartOfTransaction:
        """Return the transaction's part for *table*; the same object at every call.

        Args:
            table: The table's name, or the table object from which rows were read. The object shows the commit once it
                has landed.

        Raises:
            NoSuchTableError: The table does not exist.
            ValueError: The transaction is over; or the table is already in it with another table object.
        """
        self._refuse_if_over()
        given = table if isinstance(table, Table) else self._catalog.load_table(table)
        name = tuple(given.name())
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = PartOfTransaction(given)
            part.request.id, part.request.repeatable = self._request_id, self._repeatable
        elif isinstance(table, Table) and part._target is not table:
            raise ValueError(f"the transaction already changes {table_name(name)} with another table object")
        return part

    def __enter__(self) -> Self:
        """Return the transaction itself."""
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> bool:
        """Commit; or, if the block failed, abandon the changes. Do nothing if the transaction is already over.

        A call of the transaction that is refused ends the block without an error if an earlier commit with the same
        request id has landed.
        """
        if self._over:
            return False
        if exctype is None:
            self.commit_transaction()
            return False
        self._over = True
        self._abandon()
        has_landed = isinstance(excinst, REFUSALS) and _is_of_a_call(exctb) and self._has_landed(excinst)
        if not has_landed:
            self._emit_refused(excinst)
        return has_landed

    def commit_transaction(self) -> None:
        """Land the staged changes of all tables.

        Guarantee: on return each change is in its table exactly once, and the table objects show it. On
        ``CommitNotApplied`` nothing landed in any table, and every file that the transaction created is deleted.

        Raises:
            CommitConflict: Another commit conflicts with one of the changes; the message names the table.
            CommitNotApplied: Nothing landed for another reason, which is the error's cause.
            CommitStateUnknown: It is not known whether the changes landed. Every file is kept.
            ValueError: The transaction is over.
        """
        self._refuse_if_over()
        self._over = True
        parts = self._parts
        try:
            changes = {name: part.committing.prepare(part) for name, part in parts.items()}
        except BaseException as error:
            self._abandon()
            if isinstance(error, REFUSALS) and self._has_landed(error):
                return
            self._emit_refused(error)
            raise
        try:
            committed = self._catalog.coordinator.commit_tables(
                [change for change in changes.values() if change is not None], repeatable=self._repeatable
            )
            for name, part in parts.items():
                change = changes[name]
                state = committed.get(change.attempt.table) if change is not None else None
                part.committing.show(part, state)
                # an earlier commit has landed, and the table was dropped since
                if change is not None and state is None:
                    part.created.delete(part._target.io)
        except BaseException as error:
            for part in parts.values():
                part.committing.give_up(part, error)
            if isinstance(error, REFUSALS) and self._has_landed(error):
                return
            raise
        for part in parts.values():
            part.committing.begin_anew(part)

    def _has_landed(self, refused: Exception) -> bool:
        """Return whether an earlier commit with this id has landed; if so, refresh the table objects."""
        tables = [part._target for part in self._parts.values()]
        return EarlierCommit(tables, self._request_id if self._repeatable else None).has_landed(refused)

    def _emit_refused(self, error: BaseException | None) -> None:
        for part in self._parts.values():
            part.committing.emit_refused(error)

    def _abandon(self) -> None:
        for part in self._parts.values():
            part.calls.abandon(part)

    def _refuse_if_over(self) -> None:
        if self._over:
            raise ValueError("the transaction is over; begin another one")


def _is_of_a_call(traceback: TracebackType | None) -> bool:
    """Return whether the error of a ``with`` block was raised by a call of this package, not by the caller's code."""
    return any(frame.f_globals.get("__name__", "").startswith("commit_coord.") for frame, _ in walk_tb(traceback))
