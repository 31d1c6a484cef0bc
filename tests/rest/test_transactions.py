"""``POST /transactions/commit``: several tables, all or nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.rest.kit import SCHEMA, Server, ids, path_of, row_ids

Name = tuple[str, str]
_PATH = "/v1/shop/transactions/commit"


@pytest.fixture
def pair(client: RestCatalog, named: Callable[[str], str]) -> list[Name]:
    """The names of two tables with a row each."""
    names = [("db", named("pair")), ("db", named("pair"))]
    for name in names:
        client.create_table(name, SCHEMA).append(ids(1))
    return names


def setting(name: Name, value: str, **requirement: Any) -> dict[str, Any]:
    """Return the change of a table that sets the property ``mark``."""
    return {
        "identifier": {"namespace": [name[0]], "name": name[1]},
        "requirements": [requirement] if requirement else [],
        "updates": [{"action": "set-properties", "updates": {"mark": value}}],
    }


def marks(server: Server, names: list[Name]) -> list[str | None]:
    """Return the property ``mark`` of each table."""
    return [server.ask("GET", path_of(*name)).json["metadata"]["properties"].get("mark") for name in names]


def test_the_endpoint_is_advertised(server: Server) -> None:
    assert "POST /v1/{prefix}/transactions/commit" in server.ask("GET", "/v1/config").json["endpoints"]


def test_changes_of_two_tables_land_together(server: Server, pair: list[Name]) -> None:
    answer = server.ask("POST", _PATH, {"table-changes": [setting(name, "yes") for name in pair]})
    assert (204, b"") == (answer.status, answer.body)
    assert ["yes", "yes"] == marks(server, pair)


def test_a_requirement_that_fails_in_one_table_lands_nothing(server: Server, pair: list[Name]) -> None:
    stale = setting(pair[1], "yes", **{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7})
    status, kind, message = server.ask("POST", _PATH, {"table-changes": [setting(pair[0], "yes"), stale]}).error
    assert (409, "CommitFailedException") == (status, kind)
    assert message.startswith("Requirement failed: branch main has changed: expected id 7 != ")
    assert f"table='{'.'.join(pair[1])}'" in message
    assert [None, None] == marks(server, pair)


def test_a_table_that_is_not_there_lands_nothing(server: Server, pair: list[Name]) -> None:
    changes = [setting(pair[0], "yes"), setting(("db", "nope"), "yes")]
    status, kind, message = server.ask("POST", _PATH, {"table-changes": changes}).error
    assert (404, "NoSuchTableException", "Table does not exist: db.nope") == (status, kind, message)
    assert [None] == marks(server, pair[:1])


def test_a_table_is_created_together_with_a_change_of_another_one(
    server: Server, client: RestCatalog, pair: list[Name], named: Callable[[str], str]
) -> None:
    new = named("new")
    body = {"name": new, "schema": SCHEMA.model_dump(mode="json"), "stage-create": True}
    staged = server.ask("POST", "/v1/shop/namespaces/db/tables", body).json["metadata"]
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": staged["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
    ]
    creation = {
        "identifier": {"namespace": ["db"], "name": new},
        "requirements": [{"type": "assert-create"}],
        "updates": updates,
    }
    stale = setting(pair[0], "no", type="assert-table-uuid", uuid=staged["table-uuid"])
    assert 409 == server.ask("POST", _PATH, {"table-changes": [creation, stale]}).status
    assert not client.table_exists(("db", new))
    assert 204 == server.ask("POST", _PATH, {"table-changes": [creation, setting(pair[0], "yes")]}).status
    assert [] == row_ids(client.load_table(("db", new)))
    assert ["yes"] == marks(server, pair[:1])
    updates[0]["uuid"] = str(uuid.uuid4())  # another table of that name
    assert 409 == server.ask("POST", _PATH, {"table-changes": [creation, setting(pair[1], "no")]}).status
    assert ["yes", None] == marks(server, pair)


@pytest.mark.parametrize(
    "change, status",
    [
        ({"requirements": [], "updates": []}, 400),
        ({"identifier": {"namespace": ["db"], "name": "t"}, "updates": [{"action": "make-coffee"}]}, 406),
        ({"identifier": {"namespace": ["db"], "name": "t"}, "requirements": [{"type": "assert-good-weather"}]}, 406),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_lands(
    server: Server, pair: list[Name], change: dict[str, Any], status: int
) -> None:
    answer = server.ask("POST", _PATH, {"table-changes": [setting(pair[0], "yes"), change]})
    assert status == answer.error[0]
    assert [None] == marks(server, pair[:1])


def test_a_table_that_is_named_twice_is_refused(server: Server, pair: list[Name]) -> None:
    answer = server.ask("POST", _PATH, {"table-changes": [setting(pair[0], "a"), setting(pair[0], "b")]})
    assert (400, "IllegalArgumentException") == answer.error[:2]
    assert "is named twice" in answer.error[2]
    assert [None] == marks(server, pair[:1])


def test_a_field_that_would_be_lost_is_refused(server: Server, pair: list[Name]) -> None:
    change = setting(pair[0], "yes")
    change["updates"][0]["more"] = 1
    answer = server.ask("POST", _PATH, {"table-changes": [setting(pair[1], "yes"), change]})
    assert (406, "UnsupportedOperationException") == answer.error[:2]
    assert "table-changes.1.updates.0.more" in answer.error[2]
    assert [None, None] == marks(server, pair)


def test_no_change_at_all_is_a_success(server: Server) -> None:
    assert 204 == server.ask("POST", _PATH, {"table-changes": []}).status
