"""Whatever is sent, the server answers in order: no request ends in an error that nobody expected."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from commit_coord.testing.rows.read.metadata import faults_of_document
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
        answer = server.ask("POST", path_of(*name), {"requirements": [], "updates": updates})
        # A commit whose files are gone may have landed long ago: it is not refused.
        assert answer.status < 500 or b"a file that the commit names" in answer.body, (updates, answer.body)
        landed.check(server.ask("GET", path_of(*name)).json["metadata-location"])
    client.load_table(name)


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
