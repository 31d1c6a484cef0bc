"""Changes in the database of a SQL catalog, each in one transaction that is sent once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from pyiceberg.typedef import Identifier
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    IntegrityError,
    InternalError,
    ProgrammingError,
    SQLAlchemyError,
)

from commit_coord import doubt
from commit_coord.errors import CommitNotApplied, CommitStateUnknown, UpdatesDoNotFit
from commit_coord.iceberg.attempt import table_name
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

T = TypeVar("T")

KEY = "catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name"
_NAMED = text(f"SELECT 1 FROM iceberg_tables WHERE {KEY}")
_DROP = f"DELETE FROM iceberg_tables WHERE {KEY} AND COALESCE(metadata_location, '') = :base"
_RENAME = text(
    "UPDATE iceberg_tables SET table_namespace = :to_namespace, table_name = :to_name "
    f"WHERE {KEY} AND metadata_location = :base"
)
_TRIES = 10
"""Of a drop or rename of what has another pointer each time."""

REFUSALS = (DataError, IntegrityError, InternalError, ProgrammingError)
"""What a database raises that refuses a change: for a constraint, a trigger, a missing grant, or a value too long."""

_TEMPORARY = ("25006", "25P03")
"""PostgreSQL's codes of a server that is a standby, and of a transaction that was idle for too long."""


def refused(what: str, error: DatabaseError, **details: str) -> CommitNotApplied:
    """Return what it means that the database did not execute *what* because of one of ``REFUSALS``.

    That is ``UpdatesDoNotFit`` unless the same request may be executed later.
    """
    is_temporary = error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _TEMPORARY
    kind = CommitNotApplied if is_temporary else UpdatesDoNotFit
    reason = str(error.orig).partition("\n")[0]  # Without the statement and its values.
    return kind(f"{what}: the database refuses that", cause=reason, **details)


class Connected(Protocol):
    """Runs work on a connection of its own; see ``CoordinatedSqlCatalog``."""

    def __call__(self, work: Callable[[Connection], T]) -> T:
        """Return the result of *work*, which must have changed nothing if it raises."""
        ...


def send_once(connected: Connected, change: Callable[[Connection], bool], what: str) -> SwapResult:
    """Execute *change* and commit it.

    1. COMMIT succeeds.   2. The connection breaks, and to give it back fails.   3. *connected* tries again: the change
    would find itself in the database; or no connection is to be had.   So all that follows COMMIT is a lost reply.

    1. COMMIT fails, and its transaction stays open: SQLite is busy, or a signal handler raised an error.   2. The pool
    gets the connection back, which then reads what it has not committed.   So no transaction is left open.

    Args:
        connected: Runs work in the database, and tries it again if its connection breaks.
        change: Returns whether the database is as the change expects it. If it is not, the change is rolled back.
        what: What is changed, for the log.

    Raises:
        Exception: Nothing was committed, and never will be; unless the change is in doubt (:mod:`commit_coord.doubt`).
    """
    is_sent = False

    def work(connection: Connection) -> SwapResult:
        nonlocal is_sent
        if is_sent:
            return SwapResult.LOST_REPLY
        if not change(connection):
            return SwapResult.MOVED
        is_sent = True
        doubt.opens()
        try:
            connection.commit()
        except BaseException as error:
            if _rolled_back(connection, error):
                is_sent = False
                doubt.ends()
                raise
            if not isinstance(error, SQLAlchemyError):
                raise  # not the database's, so it is the caller's
            logger.warning("the reply to a change of %s was lost", what, exc_info=True)
            return SwapResult.LOST_REPLY
        return SwapResult.SWAPPED

    try:
        return connected(work)
    except SQLAlchemyError:  # also of the pool, which waits in vain for another connection
        if not is_sent:
            raise
        logger.warning("the connection of a change of %s broke after its COMMIT", what, exc_info=True)
        return SwapResult.LOST_REPLY


def _rolled_back(connection: Connection, error: BaseException) -> bool:
    """Leave no transaction open in *connection*, whose COMMIT failed; return whether it is proven that nothing landed.

    SQLite's driver says whether the transaction is still open, and a database in memory ends with its connection. Of
    other drivers the connection is closed.
    """
    driver = None if connection.invalidated else connection.connection.dbapi_connection
    if driver is None or not hasattr(driver, "in_transaction"):
        connection.invalidate(error)
        return False
    if not driver.in_transaction:
        return False
    try:
        driver.rollback()
    except Exception:
        logger.warning("a transaction could not be rolled back, its connection is closed", exc_info=True)
        connection.invalidate(error)
    return True


class NamedRows:
    """Drops and renames the tables, or the views, of one catalog; the latches of their names are held.

    1. A drop is sent, and its reply is lost: it was carried out.   2. Another client gives the name to a table of its
    own.   3. Sent again, the drop would hit that table.   So each change is sent once, for one pointer.

    Args:
        connected: Runs work in the database.
        key: Returns what a name is in the database.
        pointer: Returns where the metadata of a name is; None if there is none of that name.
        kind: What they are: "Table" or "View".
        missing: The error if there is none of that name.
        taken: The error if a name is used.
        only: What each row has to fulfil to be dropped, as SQL. A row without a pointer is dropped, too, and its key
            alone does not tell whether it is a table or a view.
    """

    def __init__(
        self,
        connected: Connected,
        key: Callable[[Identifier], dict[str, Any]],
        pointer: Callable[[Identifier], str | None],
        *,
        kind: str,
        missing: type[Exception],
        taken: type[Exception],
        only: str,
    ) -> None:
        self._connected, self._key, self._pointer = connected, key, pointer
        self._kind, self._missing, self._taken = kind, missing, taken
        self._drop = text(_DROP + only)

    def drop(self, name: Identifier, location: str | None = None) -> None:
        """Remove *name*, if its pointer is *location*, or whatever its pointer is, if that is None.

        Raises:
            Exception: The one given as *missing*: there is none of that name.
            CommitNotApplied: It has another pointer, or the database refuses (``UpdatesDoNotFit``).
            CommitStateUnknown: It is not known whether it was dropped.
        """
        try:
            result, _ = self._change(name, location, self._drop)
        except REFUSALS as error:
            raise self._refused("dropped", name, error) from error
        if result is SwapResult.MOVED:
            self._there(name)
            raise self._not_applied("dropped", name)
        if result is SwapResult.LOST_REPLY:
            raise CommitStateUnknown(
                f"it is not known whether the {self._kind.lower()} was dropped; look for it before you repeat the call",
                table=table_name(name),
            )

    def rename(self, old: Identifier, new: Identifier) -> None:
        """Give *old* the name *new*.

        Raises:
            Exception: The one given as *missing*: there is none of the old name. Or the one given as *taken*.
            CommitNotApplied: It has another pointer each time, or the database refuses (``UpdatesDoNotFit``).
            CommitStateUnknown: It is not known whether it was renamed.
        """
        key = self._key(new)
        try:
            result, base = self._change(old, None, _RENAME, to_namespace=key["namespace"], to_name=key["name"])
        except REFUSALS as error:
            if self._connected(lambda connection: connection.execute(_NAMED, key).all()):
                raise self._taken(f"{self._kind} {table_name(new)} already exists") from error
            raise self._refused("renamed", old, error) from error
        if result is SwapResult.MOVED:
            self._there(old)
            raise self._not_applied("renamed", old)
        if result is SwapResult.LOST_REPLY and not self._is_seen(new, base):
            raise CommitStateUnknown(
                f"it is not known whether the {self._kind.lower()} was renamed; look which of the two names exists "
                "before you repeat the call",
                table=table_name(old),
                to=table_name(new),
            )

    def _change(
        self, name: Identifier, location: str | None, statement: TextClause, **values: str
    ) -> tuple[SwapResult, str]:
        """Change the row of *name* if its pointer is *location* (None: whatever it is), and return the pointer.

        The pointer of a row without one is "".
        """
        for _ in range(_TRIES):
            base = self._pointer(name) or "" if location is None else location
            changed = partial(_has_changed, statement, {**self._key(name), "base": base, **values})
            result = send_once(self._connected, changed, table_name(name))
            if result is not SwapResult.MOVED or location is not None or (self._pointer(name) or "") == base:
                break
        return result, base

    def _there(self, name: Identifier) -> None:
        if self._pointer(name) is None:
            raise self._missing(f"{self._kind} does not exist: {table_name(name)}")

    def _is_seen(self, name: Identifier, location: str) -> bool:
        try:
            return self._pointer(name) == location
        except Exception:
            logger.warning("the pointer of %s could not be read", table_name(name), exc_info=True)
            return False

    def _refused(self, done: str, name: Identifier, error: DatabaseError) -> CommitNotApplied:
        return refused(f"the {self._kind.lower()} was not {done}", error, table=table_name(name))

    def _not_applied(self, done: str, name: Identifier) -> CommitNotApplied:
        return CommitNotApplied(
            f"the {self._kind.lower()} was not {done}: another writer changes it all the time, or a policy of the "
            "database forbids it",
            table=table_name(name),
        )


def _has_changed(statement: TextClause, values: dict[str, Any], connection: Connection) -> bool:
    return connection.execute(statement, values).rowcount > 0
