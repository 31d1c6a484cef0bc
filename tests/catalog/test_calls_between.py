"""Calls that change the catalog itself, each between any two statements of another client's call.

A call of PyIceberg's SQL catalog looks first and changes then. Whatever another client does in between, the call
succeeds or raises an error of PyIceberg's or of ours, in words: no error of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyiceberg.exceptions
import pytest
from sqlalchemy import event

from commit_coord.errors import CommitCoordError, InternalError
from tests.catalog.kit import SCHEMA, Kit, ids, kit

IN_WORDS: tuple[type[Exception], ...] = (
    CommitCoordError,
    *(one for one in vars(pyiceberg.exceptions).values() if isinstance(one, type) and issubclass(one, Exception)),
)

PATIENT = 25
"""More statements than any call here sends."""


@pytest.fixture(scope="module")
def found() -> Iterator[Kit]:
    with kit("none") as found:
        yield found


Call = Callable[[Any, str], object]

NAMESPACES: dict[str, Call] = {
    "create_namespace": lambda catalog, db: catalog.create_namespace(db),
    "create_namespace_if_not_exists": lambda catalog, db: catalog.create_namespace_if_not_exists(db),
    "drop_namespace": lambda catalog, db: catalog.drop_namespace(db),
    "set a property": lambda catalog, db: catalog.update_namespace_properties(db, updates={"a": "1"}),
    "remove a property": lambda catalog, db: catalog.update_namespace_properties(db, removals={"a"}),
    "list_tables": lambda catalog, db: catalog.list_tables(db),
    "load_namespace_properties": lambda catalog, db: catalog.load_namespace_properties(db),
    "create_table": lambda catalog, db: catalog.create_table((db, "t"), SCHEMA),
}

TABLES: dict[str, Call] = {
    "create_table": lambda catalog, db: catalog.create_table((db, "t"), SCHEMA),
    "create_table_if_not_exists": lambda catalog, db: catalog.create_table_if_not_exists((db, "t"), SCHEMA),
    "drop_table": lambda catalog, db: catalog.drop_table((db, "t")),
    "purge_table": lambda catalog, db: catalog.purge_table((db, "t")),
    "rename_table": lambda catalog, db: catalog.rename_table((db, "t"), (db, "u")),
    "rename_table back": lambda catalog, db: catalog.rename_table((db, "u"), (db, "t")),
    "append": lambda catalog, db: catalog.load_table((db, "t")).append(ids(1)),
    "load_table": lambda catalog, db: catalog.load_table((db, "t")),
    "drop_namespace": lambda catalog, db: catalog.drop_namespace(db),
}

PAIRS = [
    *((one, other, False) for one in NAMESPACES for other in NAMESPACES),
    *((one, other, True) for one in TABLES for other in TABLES),
]


@pytest.mark.parametrize("there", [False, True], ids=["nothing there", "there"])
@pytest.mark.parametrize("one, other, of_tables", PAIRS)
def test_a_call_between_two_statements_of_another_ends_in_words(
    found: Kit, one: str, other: str, there: bool, of_tables: bool
) -> None:
    calls = TABLES if of_tables else NAMESPACES
    second = found.open()
    for number in range(PATIENT):
        db = f"db{found.identifier()[1]}"
        if of_tables or there:
            found.catalog.create_namespace(db, {"a": "0", "b": "0"})
        if of_tables and there:
            found.catalog.create_table((db, "t"), SCHEMA)
        if not _in_words(found.catalog, calls[one], second, calls[other], db, number):
            break
    else:
        pytest.fail("a call has no end")
    second.close()


def _in_words(first: Any, call: Call, second: Any, between: Call, db: str, number: int) -> bool:
    """Make *call*, and *between* before its statement *number*; return whether there was such a statement."""
    statements = 0

    def before(connection: Any, *_: Any) -> None:
        nonlocal statements
        # A change that has begun keeps others out of SQLite.
        if connection.connection.dbapi_connection.in_transaction:
            return
        statements += 1
        if statements == number + 1:
            _try(between, second, db)

    event.listen(first.engine, "before_cursor_execute", before)
    try:
        _try(call, first, db)
    finally:
        event.remove(first.engine, "before_cursor_execute", before)
    return statements > number


def _try(call: Call, catalog: Any, db: str) -> None:
    try:
        call(catalog, db)
    except IN_WORDS as error:
        if isinstance(error, InternalError):  # a bug, in words
            raise
