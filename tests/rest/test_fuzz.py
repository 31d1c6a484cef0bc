"""Whatever is sent, the server answers in order: no request ends in an unexpected error.

And the answer is true: after a 4xx the table is as it was, after a 200 it contains every snapshot of the commit.
"""

from __future__ import annotations

import ast
import importlib
import random
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

import commit_coord
from commit_coord.iceberg import table_properties
from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from commit_coord.testing.table_files.metadata import faults_of_document
from tests.rest.kit import SCHEMA, Server, path_of
from tests.rest.landed import Landed

_NAMES = (
    *("db", "t", "%00", "%FF", "..", "%2F", "%1F", "a%1F", "%1F%1F", "+", "%20", "a.b", ".a", "a.", "%E2%98%83"),
    *("x" * 3000, "%27", "%22", "%25", "*", "%0A", "a%2E%2E%2Fb", "%ED%A0%80"),
)
_BODIES = (b"", b"{", b"null", b"[]", b"\xff", b"1", b'"x"', b"{}", b"[" * 50_000)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "\x00",
    [],
    {},
    [None],
    {"a": None},
    [[]],
    "a" * 5000,
)

_COLUMNS = {"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
_SPEC = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}]}
_ORDER_FIELD = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
_SNAPSHOT = {"snapshot-id": 5, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": "x", "summary": {}}
_FILE = {"snapshot-id": 5, "statistics-path": "p", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1}
_UPDATES: tuple[dict[str, Any], ...] = (
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "add-schema", "schema": _COLUMNS},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": _SPEC},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [_ORDER_FIELD]}},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "add-snapshot", "snapshot": {**_SNAPSHOT, "summary": {"operation": "append"}}},
    {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5},
    {"action": "remove-snapshots", "snapshot-ids": [5]},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "set-statistics", "statistics": {**_FILE, "blob-metadata": []}},
    {"action": "remove-schemas", "schema-ids": [1]},
    {"action": "remove-snapshot-ref", "ref-name": "main"},
)


_GARBAGE = ("", " ", "enabled", " true", "maybe", "null", "-1", "0", "1.5", "1e3", "x", "9" * 30, "\u2603", "\x00")
"""Values of a property that other engines accept, or that no engine has refused when it was set."""


def _keys_that_are_read() -> list[str]:
    """Return every property that the code reads as a number or a truth value."""
    package, keys = Path(commit_coord.__file__).parent, set[str]()
    for path in package.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            if isinstance(call.func, ast.Name) and call.func.id.startswith("property_as_"):
                name = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
                module = importlib.import_module(name)
                if ast.unparse(call.args[1]) == "key":  # of a loop, or one of all
                    keys.update(table_properties.NUMBERS + table_properties.FLAGS)
                else:
                    keys.add(_value(call.args[1], module))
    return sorted(keys)


def _value(expression: ast.expr, module: Any) -> str:
    """Return the value of a string, a name, or the attribute of a name."""
    if isinstance(expression, ast.Constant):
        return str(expression.value)
    return str(attrgetter(ast.unparse(expression))(module))


def test_no_name_in_a_path_ends_in_an_unexpected_error(server: Server) -> None:
    for route in (*SERVED, *VIEWS, *TRANSACTIONS):
        for name in _NAMES:
            path = route.path.replace("{prefix}", "shop").replace("{table}", name).replace("{view}", name)
            below = "{table}" in route.path or "{view}" in route.path
            path = path.replace("{namespace}", "db" if below else name)
            if (route.method, path) == ("DELETE", "/v1/shop/namespaces/db"):
                continue
            answer = server.ask(route.method, path, b"{}" if route.method == "POST" else None)
            assert answer.status < 500, (route.endpoint, name, answer.body)


def test_no_body_ends_in_an_unexpected_error(server: Server) -> None:
    for route in (*SERVED, *VIEWS, *TRANSACTIONS):
        path = (
            route.path.replace("{prefix}", "shop")
            .replace("{namespace}", "db")
            .replace("{table}", "t")
            .replace("{view}", "v")
        )
        for body in _BODIES if route.method == "POST" else ():
            answer = server.ask("POST", path, body)
            assert answer.status < 500, (path, body[:20], answer.body)


@pytest.mark.parametrize("seed", range(4))
def test_no_commit_ends_in_an_unexpected_error(
    server: Server, client: RestCatalog, name: tuple[str, str], seed: int
) -> None:
    chance = random.Random(seed)
    client.create_table(name, SCHEMA)
    landed = Landed(faults_of_document)
    for _ in range(60):
        updates = [_spoilt(chance, update) for update in chance.sample(_UPDATES, chance.randint(1, 5))]
        before = server.ask("GET", path_of(*name)).json
        answer = server.ask("POST", path_of(*name), {"requirements": [], "updates": updates})
        # A commit whose files are gone may have landed long ago: it is not refused.
        assert answer.status < 500 or b"a file that the commit names" in answer.body, (updates, answer.body)
        now = server.ask("GET", path_of(*name)).json["metadata-location"]
        if answer.status != 200:
            assert before["metadata-location"] == now
        landed.check(now)
    client.load_table(name)


@pytest.mark.parametrize("key", _keys_that_are_read())
def test_a_refused_commit_changes_nothing_whatever_a_property_is_set_to(
    server: Server, client: RestCatalog, name: tuple[str, str], key: str
) -> None:
    client.create_table(name, SCHEMA)
    for value in _GARBAGE:
        _asked(server, name, [{"action": "set-properties", "updates": {key: value}}])
        _asked(server, name, [_snapshot(random.Random(f"{key} {value}"))])


@pytest.mark.parametrize("seed", range(4))
def test_a_commit_is_answered_as_it_ended_whatever_snapshots_the_table_has(
    server: Server, client: RestCatalog, name: tuple[str, str], seed: int
) -> None:
    """A few snapshot ids are drawn again and again: of commits that landed, in whole or in part, and of new ones."""
    chance, statuses = random.Random(seed), set()
    client.create_table(name, SCHEMA)
    for _ in range(40):
        updates: list[dict[str, Any]] = [_snapshot(chance) for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.3:
            updates.append({"action": "remove-snapshots", "snapshot-ids": [chance.choice(_IDS)]})
        statuses.add(_asked(server, name, updates))
    assert {200, 500} <= statuses
    client.load_table(name)


_IDS = range(5, 13)


def _snapshot(chance: random.Random) -> dict[str, Any]:
    """Return an update that adds a snapshot, often with an id or a sequence number that the table has already."""
    drawn = {"snapshot-id": chance.choice(_IDS), "sequence-number": chance.randint(1, 40)}
    return {"action": "add-snapshot", "snapshot": {**_SNAPSHOT, **drawn, "summary": {"operation": "append"}}}


def _asked(server: Server, name: tuple[str, str], updates: list[dict[str, Any]]) -> int:
    """Send a commit, and assert that its answer is true; return its status."""
    before = server.ask("GET", path_of(*name)).json
    answer = server.ask("POST", path_of(*name), {"requirements": [], "updates": updates})
    now = server.ask("GET", path_of(*name)).json
    had, has = _ids(before), _ids(now)
    added = {update["snapshot"]["snapshot-id"] for update in updates if "snapshot" in update}
    removed = {each for update in updates for each in update.get("snapshot-ids", ())}
    if answer.status == 200:
        assert added - removed <= has, (updates, has)
        return answer.status
    assert before["metadata-location"] == now["metadata-location"], (updates, answer.body)
    if answer.status >= 500:  # only if the table has a part of the commit
        assert "CommitStateUnknownException" == answer.error[1], (updates, answer.body)
        assert added & had, (updates, answer.body)
        assert added - had, (updates, answer.body)
    return answer.status


def _ids(loaded: Any) -> set[int]:
    return {snapshot["snapshot-id"] for snapshot in loaded["metadata"].get("snapshots") or ()}


def _spoilt(chance: random.Random, update: Any) -> Any:
    """Return *update*, often with another value somewhere, or with none."""
    if isinstance(update, dict) and update and chance.random() < 0.7:
        key = chance.choice(list(update))
        if chance.random() < 0.2:
            return {other: value for other, value in update.items() if other != key}
        return {**update, key: _spoilt(chance, update[key])}
    if isinstance(update, list) and update and chance.random() < 0.7:
        return [_spoilt(chance, update[0]), *update[1:]]
    return chance.choice(_VALUES) if chance.random() < 0.4 else update
