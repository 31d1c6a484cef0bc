"""Whatever fails once a request has changed the catalog, its answer never says that nothing was done.

1. A table is created.   2. Its metadata can't be loaded, and the answer is 503.   3. The client sends the request
again, as Iceberg Java does, and gets 409: it takes the table for another client's.

Each route that changes something is asked again and again. Each time another access fails to the database or to a file,
of those that come once the change is there; or an answer can't be made of what was read. A request with a key is also
sent again, and then all of its accesses may fail.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFile
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

import commit_coord
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.rest import namespaces, tables, transactions, views
from commit_coord.rest.answered import KeyedRequests
from commit_coord.rest.doubts import Handler
from commit_coord.rest.errors import error_answer
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from commit_coord.rest.turns import Lines
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import HttpAnswer, Request
from tests.rest.kit import SCHEMA
from tests.rest.lost_replies import new_key
from tests.rest.test_views import SELECT

_DATABASE = "database"

Making = Callable[[Any, str], tuple[Any, dict[str, str]]]
"""Prepares a request about a name of its own: returns its body, and the names in its path."""

_SETS = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
_NEW = {"schema": SCHEMA.model_dump(mode="json")}
_DB = {"namespace": "db"}


def _ends(name: str) -> dict[str, Any]:
    return {
        "source": {"namespace": ["db"], "name": name},
        "destination": {"namespace": ["db"], "name": f"{name}_new"},
    }


def _table(catalog: Any, name: str) -> str:
    location: str = catalog.create_table(("db", name), SCHEMA).metadata_location
    return location


def _view(catalog: Any, name: str) -> str:
    catalog.create_view(("db", name), SCHEMA, SELECT)
    location: str = catalog.view_location(("db", name))
    return location


def _new_namespace(catalog: Any, name: str) -> tuple[Any, dict[str, str]]:
    return {"namespace": [name], "properties": {"a": "1"}}, {}


def _namespace(catalog: Any, name: str) -> tuple[Any, dict[str, str]]:
    catalog.create_namespace(name)
    return {"updates": {"a": "1"}}, {"namespace": name}


def _several(catalog: Any, name: str) -> tuple[Any, dict[str, str]]:
    _table(catalog, name)
    return {"table-changes": [{"identifier": {"namespace": ["db"], "name": name}, **_SETS}]}, {}


MAKES: dict[Handler, Making] = {
    namespaces.create_namespace: _new_namespace,
    namespaces.update_namespace: _namespace,
    namespaces.drop_namespace: _namespace,
    tables.create_table: lambda catalog, name: ({"name": name, **_NEW}, _DB),
    tables.commit_table: lambda catalog, name: (_table(catalog, name) and _SETS, {**_DB, "table": name}),
    tables.drop_table: lambda catalog, name: (_table(catalog, name) and None, {**_DB, "table": name}),
    tables.rename_table: lambda catalog, name: (_table(catalog, name) and _ends(name), {}),
    tables.register_table: lambda catalog, name: (
        {"name": name, "metadata-location": _table(catalog, f"{name}_old")},
        _DB,
    ),
    transactions.commit_transaction: _several,
    views.create_view: lambda catalog, name: (
        {"name": name, "view-version": json.loads(SELECT.model_dump_json()), **_NEW},
        _DB,
    ),
    views.commit_view: lambda catalog, name: (_view(catalog, name) and _SETS, {**_DB, "view": name}),
    views.drop_view: lambda catalog, name: (_view(catalog, name) and None, {**_DB, "view": name}),
    views.rename_view: lambda catalog, name: (_view(catalog, name) and _ends(name), {}),
    views.register_view: lambda catalog, name: (
        {"name": name, "metadata-location": _view(catalog, f"{name}_old")},
        _DB,
    ),
}

FOUND_BY_THEIR_KEY = (tables.create_table, tables.register_table, views.create_view, views.register_view)
"""The routes whose repeats change nothing: while the database is away, the client may ask again and again."""

ERRORS = [FileNotFoundError("gone"), OSError("the disk is away"), ValueError("the file is cut off")]
"""Of accesses to files."""


@dataclass(slots=True)
class World:
    """A catalog, and what fails once a request has changed it.

    Args:
        warehouse: The catalog.
        folder: Where its database is.
        seen: The accesses since the change.
        fails_at: The number of the one that fails; None: none does.
        error: What it raises.
    """

    warehouse: Warehouse
    folder: Path
    seen: list[str] = field(default_factory=list)
    fails_at: int | None = None
    error: Exception = field(default_factory=Exception)
    _before: list[Any] | None = None
    _names: Iterator[int] = field(default_factory=itertools.count)

    def step(self, name: str) -> None:
        """Raise if the access fails that comes now."""
        if self._before is None or self.stored() == self._before:
            return
        self.seen.append(name)
        if len(self.seen) - 1 == self.fails_at:
            if name == _DATABASE:
                raise OperationalError("SELECT", None, ConnectionError("server closed the connection unexpectedly"))
            raise self.error

    def stored(self) -> list[Any]:
        """Return what is in the database."""
        with sqlite3.connect(self.folder / "catalog.db", timeout=30) as database:
            found = [
                database.execute(f"SELECT * FROM {name}").fetchall()
                for name in ("iceberg_tables", "iceberg_namespace_properties")
            ]
        database.close()
        return found

    def made(self, handler: Handler, headers: dict[str, str]) -> Request:
        """Return a request that is about to be sent for the first time."""
        body, names = MAKES[handler](self.warehouse.catalog, f"x{next(self._names)}")
        method = "DELETE" if handler.__name__.startswith("drop") else "POST"
        data = b"" if body is None else json.dumps(body).encode()
        return Request(method=method, path="/".join(("", *names.values())), names=names, headers=headers, body=data)

    def sent(self, handler: Handler, request: Request, fails_at: int | None, error: Exception) -> HttpAnswer:
        """Return the answer to a request that is sent for the first time."""
        self._before = self.stored()
        return self.sent_again(handler, request, fails_at, error)

    def sent_again(self, handler: Handler, request: Request, fails_at: int | None, error: Exception) -> HttpAnswer:
        """Return the answer to a request that has been sent before."""
        self.seen.clear()
        self.fails_at, self.error = fails_at, error
        try:
            return Idempotency().answer(handler, self.warehouse, request)
        except Exception as failed:  # noqa: BLE001 - every error is an answer
            return error_answer(failed)
        finally:
            self.fails_at = None
            assert self.stored() != self._before


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A catalog with the namespace ``db``."""
    catalog: Any = commit_coord.load_catalog(
        "shop", uri=f"coord+sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}", **{"lock-impl": "memory"}
    )
    catalog.create_namespace("db")
    lines = Lines(SYSTEM_CLOCK, reserved_ms=0, most_waiting=0)
    made = World(Warehouse(catalog, TableAnswers(catalog.file_io), lines), tmp_path)
    event.listen(catalog.engine, "before_cursor_execute", lambda *_: made.step(_DATABASE))
    for owner, name in ((PyArrowFile, "open"), (PyArrowFile, "exists"), (TableAnswers, "_answer")):
        monkeypatch.setattr(owner, name, _stepping(made, name, getattr(owner, name)))
    yield made
    assert [] == list(catalog.locks.locks())
    catalog.close()


def _stepping(world: World, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def stepping(*arguments: Any, **more: Any) -> Any:
        world.step(name)
        return real(*arguments, **more)

    return stepping


def test_each_route_that_changes_something_is_known_here() -> None:
    routes = {route.handler for route in (*SERVED, *VIEWS, *TRANSACTIONS) if route.method in ("POST", "DELETE")}
    assert routes - {tables.report_metrics} == MAKES.keys()


def says_that_nothing_was_done(answer: HttpAnswer) -> bool:
    """Return whether a client may take an answer for the failure of a change that is there."""
    if answer.status < 300:
        return False
    return (500, "CommitStateUnknownException") != (answer.status, json.loads(answer.body)["error"]["type"])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("handler", MAKES, ids=lambda handler: handler.__name__)
def test_no_failure_after_a_change_looks_like_its_failure(world: World, handler: Handler, error: Exception) -> None:
    assert world.sent(handler, world.made(handler, {}), None, error).status < 300
    wrong = []
    for number in range(len(world.seen)):
        answer = world.sent(handler, world.made(handler, {}), number, error)
        if says_that_nothing_was_done(answer):
            wrong.append((number, [*world.seen], answer.status, answer.body))
    assert not wrong


@pytest.mark.parametrize("is_kept", [True, False], ids=["answer kept", "answer lost"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("handler", MAKES, ids=lambda handler: handler.__name__)
def test_no_failure_under_a_repeat_looks_like_the_failure_of_what_was_executed(
    world: World, handler: Handler, error: Exception, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that it does not know, or asks the client to come back with the key."""
    if not is_kept:
        monkeypatch.setattr(KeyedRequests, "end", lambda *_: None)
    wrong, number, steps = [], 0, 1
    while number < steps:
        request = world.made(handler, {"idempotency-key": new_key()})
        assert world.sent(handler, request, None, error).status < 300
        if number == 0:
            assert world.sent_again(handler, request, None, error).status < 300
            steps = len(world.seen)
        answer = world.sent_again(handler, request, number, error)
        if answer.status != 503 and says_that_nothing_was_done(answer):
            wrong.append((number, [*world.seen], answer.status, answer.body))
        if answer.status == 500 and _DATABASE in world.seen[number : number + 1] and handler in FOUND_BY_THEIR_KEY:
            wrong.append((number, [*world.seen], answer.status, answer.body))
        number += 1
    assert not wrong
