"""Random programs of changes of columns by stale clients and the library: no cell shows what was not written into it.

The model shares no code with the product. It names a column by when it was added, not by an id: a row has values for
such columns, and the table shows those of its present ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError, CommitFailedException
from pyiceberg.types import LongType

from commit_coord.catalog.base import CoordinatedCatalog
from tests.rest.held import BLIND, Held
from tests.rest.kit import SCHEMA, Server, path_of
from tests.rest.races import racetrack
from tests.sent import body_of

Name = tuple[str, str]

_NAMES = ("a", "b")
_FEW, _MANY = range(8), range(8, 200)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that reserves no turns: these clients do not come back."""
    with racetrack() as server:
        yield server


@pytest.fixture(scope="module")
def catalog(server: Server) -> Iterator[CoordinatedCatalog]:
    """The library, on the catalog of the server."""
    with server.library() as catalog:
        yield catalog


class _Columns:
    """One program, on a table of its own."""

    def __init__(self, seed: int, server: Server, catalog: CoordinatedCatalog, name: Name) -> None:
        self._chance = random.Random(seed)
        self._server, self._catalog, self._name = server, catalog, name
        self._client = server.client()
        self._client.create_table(name, SCHEMA, properties={"commit.retry.num-retries": "0"})
        self._next = 0
        self._columns = {"id": "id", "s": "s"}
        """By name: which one it is, of those that had the name."""
        self._schemas = {0: dict(self._columns)}
        self._rows: list[dict[str, Any]] = []
        self._handles: list[tuple[Any, dict[str, str], int]] = []
        self._forgotten: set[int] = set()
        """Ids of schemas that were removed."""
        self._changes = 0
        self._log: list[str] = []
        self.refused = self.stale = 0

    def run(self, steps: int) -> None:
        self._handles = [self._loaded() for _ in range(3)]
        for _ in range(steps):
            self._chance.choice(
                [self._refresh, self._change, self._change, self._change, self._as_java, self._in_library,
                 self._append, self._append_late, self._replace, self._undo, self._undo, self._forget]
            )()  # fmt: skip
            self._check()

    def _loaded(self) -> tuple[Any, dict[str, str], int]:
        return self._client.load_table(self._name), dict(self._columns), self._changes

    def _refresh(self) -> None:
        self._handles[self._chance.randrange(3)] = self._loaded()

    def _drawn(
        self, columns: dict[str, str]
    ) -> tuple[Callable[[Any], object], Callable[[dict[str, str]], object], str]:
        """Return a change that a client of *columns* makes, what it does in the model, and its name."""
        name, new, free = self._chance.choice(_NAMES), self._number(), [each for each in _NAMES if each not in columns]
        if name not in columns:
            return lambda u: u.add_column(name, LongType()), lambda c: c.update({name: f"{name}{new}"}), f"adds {name}"
        if free and self._chance.random() < 0.4:
            other = free[0]
            return lambda u: u.rename_column(name, other), lambda c: c.update({other: c.pop(name)}), f"renames {name}"
        return lambda u: u.delete_column(name), lambda c: c.pop(name), f"drops {name}"

    def _change(self) -> None:
        at = self._chance.randrange(3)
        (table, columns, since) = self._handles[at]
        change, done, said = self._drawn(columns)
        try:
            with table.update_schema() as update:
                change(update)
        except (CommitFailedException, BadRequestError):  # the latter if the schema that it sets was removed
            self._refuse(since, at, said)
        else:
            self._land(since, done, at, said)

    def _as_java(self) -> None:
        """Change columns as Java does, which requires also the last column id."""
        at = self._chance.randrange(3)
        (table, columns, since) = self._handles[at]
        change, done, said = self._drawn(columns)
        transaction = table.transaction()
        with transaction.update_schema() as update:
            change(update)
        body = body_of(transaction)
        if any(each["action"] == "add-schema" for each in body["updates"]):
            last = table.metadata.last_column_id
            body["requirements"].append({"type": "assert-last-assigned-field-id", "last-assigned-field-id": last})
        if self._server.ask("POST", path_of(*self._name), body).status == 200:
            self._land(since, done, at, "as Java", said)
        else:
            self._refuse(since, at, "as Java", said)

    def _in_library(self) -> None:
        change, done, said = self._drawn(self._columns)
        with self._catalog.load_table(self._name).update_schema() as update:
            change(update)
        self._land(self._changes, done, "library", said)

    def _undo(self) -> None:
        """Set an earlier schema, as who knows that its columns come back."""
        now = self._client.load_table(self._name).metadata
        number = self._chance.choice([schema.schema_id for schema in now.schemas])
        asked = {
            "requirements": [{"type": "assert-current-schema-id", "current-schema-id": now.current_schema_id}],
            "updates": [{"action": "set-current-schema", "schema-id": number}],
        }
        assert 200 == self._server.ask("POST", path_of(*self._name), asked).status
        self._columns = dict(self._schemas[number])
        self._land(self._changes, lambda _: None, "sets schema", number)

    def _forget(self) -> None:
        """Remove all schemas but the current one, as Java does when it removes snapshots."""
        now = self._client.load_table(self._name).metadata
        ids = [schema.schema_id for schema in now.schemas if schema.schema_id != now.current_schema_id]
        asked = {"requirements": [], "updates": [{"action": "remove-schemas", "schema-ids": ids}]}
        assert 200 == self._server.ask("POST", path_of(*self._name), asked).status
        left = {schema.schema_id for schema in self._client.load_table(self._name).metadata.schemas}
        assert max(ids, default=-1) <= max(left), self._story("the last id is free to be given again")
        self._forgotten.update(set(ids) - left)
        self._changes += not left.issuperset(ids)
        self._note("removes schemas", *ids)

    def _append(self) -> None:
        table = self._catalog.load_table(self._name)
        rows, row = self._new_row(table, self._columns)
        table.append(rows)
        self._rows.append(row)
        self._note("library appends", row)

    def _append_late(self) -> None:
        """Append under the columns that a client has seen last."""
        table, columns, _ = self._chance.choice(self._handles)
        rows, row = self._new_row(table, columns)
        status = Held.append(table, rows).send(self._server, BLIND).status
        if status != 200 and table.metadata.current_schema_id in self._forgotten:
            self._note("appends late under a schema that is gone: refused")
            return
        assert 200 == status, self._story(f"an append is answered {status}")
        self._rows.append(row)
        self._note("appends late", row)

    def _replace(self) -> None:
        """Replace all rows, as Java does: nothing is required of main, nor of the columns but that none was added."""
        table, columns, since = self._chance.choice(self._handles)
        rows, row = self._new_row(table, columns)
        if Held.replacement(table, rows).send(self._server).status == 200:
            self._rows = [row]
            self._note("replaces", row)
        else:
            assert since < self._changes, self._story("a replacement is refused")

    def _new_row(self, table: Any, columns: dict[str, str]) -> tuple[pa.Table, dict[str, Any]]:
        values = {name: f"s{self._number()}" if name == "s" else self._number() for name in columns}
        assert set(values) == set(table.schema().column_names), self._story("the client sees other columns")
        rows = pa.Table.from_pylist([values], schema=table.schema().as_arrow())
        return rows, {column: values[name] for name, column in columns.items()}

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _land(self, since: int, done: Callable[[dict[str, str]], object], at: object, *said: object) -> None:
        self._note(at, *said)
        self.stale += since < self._changes
        done(self._columns)
        self._changes += 1
        self._schemas[self._client.load_table(self._name).metadata.current_schema_id] = dict(self._columns)
        if isinstance(at, int):
            self._handles[at] = self._loaded()

    def _refuse(self, since: int, *said: object) -> None:
        self._note(*said, "is refused")
        self.refused += 1
        assert since < self._changes, self._story("nothing has changed since the client read the table")

    def _check(self) -> None:
        table = self._client.load_table(self._name)
        assert set(self._columns) == set(table.schema().column_names), self._story("other columns")
        found = sorted(map(str, (sorted(row.items()) for row in table.scan().to_arrow().to_pylist())))
        expected = [sorted((name, row.get(column)) for name, column in self._columns.items()) for row in self._rows]
        assert sorted(map(str, expected)) == found, self._story(f"rows {found}, not {expected}")

    def _note(self, *said: object) -> None:
        self._log.append(" ".join(map(str, said)))

    def _story(self, fault: object) -> str:
        return "\n".join((*self._log, f"fault: {fault}"))


@pytest.mark.parametrize("seed", [*_FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in _MANY)])
def test_no_cell_shows_what_was_not_written_into_its_column(
    seed: int, server: Server, catalog: CoordinatedCatalog
) -> None:
    _Columns(seed, server, catalog, ("db", f"k{seed}")).run(steps=25)
