"""Namespaces of a SQL catalog, stored as their properties alone: what is refused, and what others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError, InternalError

from commit_coord.catalog.sql_changes import refused
from commit_coord.errors import CommitNotApplied, UpdatesDoNotFit
from tests.catalog.kit import Kit, kit


@pytest.fixture
def store() -> Iterator[Kit]:
    with kit("memory") as made:
        yield made


def before(store: Kit, start: str, meanwhile: Callable[[], object]) -> list[str]:
    """Do *meanwhile* before the first statement that begins with *start*; return what gets all those statements."""
    seen: list[str] = []

    def executing(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(start):
            seen.append(statement)
            if len(seen) == 1:
                meanwhile()

    event.listen(store.catalog.engine, "before_cursor_execute", executing)
    return seen


def refuse(store: Kit, change: str) -> None:
    """Have the database refuse a *change*, such as "DELETE ON iceberg_tables"."""
    with store.catalog.engine.begin() as connection:
        connection.execute(text(f"CREATE TRIGGER no BEFORE {change} BEGIN SELECT RAISE(ABORT, 'forbidden'); END"))


CHANGES: list[tuple[str, str, Callable[[Any, Any], object]]] = [
    ("created", "INSERT ON iceberg_namespace_properties", lambda catalog, table: catalog.create_namespace("new")),
    (
        "changed",
        "INSERT ON iceberg_namespace_properties",
        lambda catalog, table: catalog.update_namespace_properties("db", updates={"a": "1"}),
    ),
    ("dropped", "DELETE ON iceberg_namespace_properties", lambda catalog, table: catalog.drop_namespace("empty")),
    ("dropped", "DELETE ON iceberg_tables", lambda catalog, table: catalog.drop_table(table)),
    ("renamed", "UPDATE ON iceberg_tables", lambda catalog, table: catalog.rename_table(table, ("db", "other"))),
]


@pytest.mark.parametrize("done, of, change", CHANGES)
def test_a_change_that_the_database_refuses_is_sent_once(
    store: Kit, done: str, of: str, change: Callable[[Any, Any], object]
) -> None:
    """The database's error is the cause."""
    store.catalog.create_namespace("empty")
    name = store.table().name()
    refuse(store, of)
    sent = before(store, of.partition(" ")[0], lambda: None)
    with pytest.raises(UpdatesDoNotFit, match=f"was not {done}: the database refuses that") as error:
        change(store.catalog, name)
    assert isinstance(error.value.__cause__, IntegrityError)
    assert error.value.details["cause"] == "forbidden"
    assert len([statement for statement in sent if of.rpartition(" ")[2] in statement]) == 1


def test_a_property_without_a_value_is_refused_at_once(store: Kit) -> None:
    sent = before(store, "INSERT", lambda: None)
    with pytest.raises(UpdatesDoNotFit) as error:
        store.catalog.update_namespace_properties("db", updates={"a": None})
    assert isinstance(error.value.__cause__, IntegrityError)
    assert len(sent) == 1


class _Standby(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__("cannot execute INSERT in a read-only transaction\nCONTEXT: …")
        self.sqlstate = sqlstate


@pytest.mark.parametrize("sqlstate", ["25006", "25P03"])
def test_what_a_standby_refuses_may_be_asked_again(sqlstate: str) -> None:
    """A final refusal would be kept for the key of a REST request."""
    error = refused("the namespace was not created", InternalError("INSERT …", {}, _Standby(sqlstate)))
    assert type(error) is CommitNotApplied
    assert error.details["cause"] == "cannot execute INSERT in a read-only transaction"


def test_of_two_that_create_a_namespace_one_made_it(store: Kit) -> None:
    other = store.open()
    before(store, "INSERT INTO iceberg_namespace", lambda: other.create_namespace("new", {"theirs": "1"}))
    with pytest.raises(NamespaceAlreadyExistsError):
        store.catalog.create_namespace("new", {"mine": "1"})
    assert store.catalog.load_namespace_properties("new") == {"theirs": "1"}
    other.close()


@pytest.mark.parametrize("made_by", ["ours", "PyIceberg"])
def test_a_change_does_not_bring_a_dropped_namespace_back(store: Kit, made_by: str) -> None:
    other = store.open()
    (store.catalog if made_by == "ours" else store.stock).create_namespace("new", {"a": "1"})
    before(store, "UPDATE iceberg_namespace", lambda: other.drop_namespace("new"))
    with pytest.raises(NoSuchNamespaceError):
        store.catalog.update_namespace_properties("new", {"a"}, {"b": "2"})
    assert not store.catalog.namespace_exists("new")
    other.close()


def test_a_namespace_that_pyiceberg_made_stays_without_its_last_property(store: Kit) -> None:
    store.stock.create_namespace("new", {"a": "1"})
    store.catalog.update_namespace_properties("new", {"a"}, {"b": "2"})
    assert store.catalog.load_namespace_properties("new") == {"b": "2"}
    store.stock.update_namespace_properties("new", {"b"})
    assert store.catalog.load_namespace_properties("new") == {}
    store.catalog.drop_namespace("new")
    assert not store.stock.namespace_exists("new")


def test_a_property_with_the_name_of_the_mark_keeps_its_value(store: Kit) -> None:
    store.catalog.create_namespace("new", {"exists": "perhaps", "a": "1"})
    store.catalog.update_namespace_properties("new", {"a"}, {"b": "2"})
    assert store.catalog.load_namespace_properties("new") == {"exists": "perhaps", "b": "2"}
    summary = store.catalog.update_namespace_properties("new", {"exists", "b"})
    assert (sorted(summary.removed), summary.missing) == (["b", "exists"], [])
    assert store.catalog.load_namespace_properties("new") == {}
    assert store.catalog.namespace_exists("new")
