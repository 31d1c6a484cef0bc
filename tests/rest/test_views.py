"""Views through the server, and in the SQL catalog's tables, where Iceberg Java keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceNotEmptyError, ValidationException
from sqlalchemy import create_engine, text

from commit_coord.iceberg.view_metadata import changed, check_uuid, created
from tests.rest.kit import SCHEMA, Response, Server

_COLUMNS = {"type": "struct", "schema-id": 7, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


def version(sql: str, *dialects: str, number: int = 1, schema: int = 7, at_ms: int = 1000) -> dict[str, Any]:
    """Return a version of a view that runs *sql*, in each of the *dialects*."""
    queries = [{"type": "sql", "sql": sql, "dialect": dialect} for dialect in dialects or ("spark",)]
    return {
        "version-id": number,
        "schema-id": schema,
        "timestamp-ms": at_ms,
        "summary": {"engine-name": "test"},
        "representations": queries,
        "default-namespace": ["db"],
    }


def replaced_by(new: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the updates that make *new* the current version."""
    current = {"action": "set-current-view-version", "view-version-id": -1}
    return [{"action": "add-view-version", "view-version": new}, current]


@pytest.fixture
def view(server: Server, named: Callable[[str], str]) -> str:
    """The name of a view in ``db``."""
    name = named("v")
    assert 200 == create(server, name).status
    return name


def create(server: Server, name: str, **further: Any) -> Response:
    """Return the answer to the creation of a view."""
    document = {"name": name, "schema": _COLUMNS, "view-version": version("select 1"), "properties": {}, **further}
    return server.ask("POST", "/v1/shop/namespaces/db/views", document)


def path_of(name: str) -> str:
    """Return the path of a view in ``db``."""
    return f"/v1/shop/namespaces/db/views/{name}"


def replace(server: Server, name: str, new: dict[str, Any], uuid: str | None = None) -> Response:
    """Return the answer to a replacement."""
    requirements = [] if uuid is None else [{"type": "assert-view-uuid", "uuid": uuid}]
    return server.ask("POST", path_of(name), {"requirements": requirements, "updates": replaced_by(new)})


# -- through the server --------------------------------------------------------------------------------------


def test_a_view_is_created_replaced_read_and_dropped(server: Server, view: str) -> None:
    before = server.ask("GET", path_of(view)).json
    assert 200 == replace(server, view, version("select 2", schema=0), before["metadata"]["view-uuid"]).status
    after = server.ask("GET", path_of(view)).json
    assert 2 == after["metadata"]["current-version-id"]
    assert "select 2" == after["metadata"]["versions"][1]["representations"][0]["sql"]
    assert [1, 2] == [entry["version-id"] for entry in after["metadata"]["version-log"]]
    assert Path(after["metadata-location"].removeprefix("file://")).name.startswith("00001-")
    assert 204 == server.ask("HEAD", path_of(view)).status
    assert 204 == server.ask("DELETE", path_of(view)).status
    assert (404, "NoSuchViewException", f"View does not exist: db.{view}") == server.ask("GET", path_of(view)).error


def test_views_are_listed_without_tables_and_tables_without_views(
    server: Server, client: RestCatalog, view: str, named: Callable[[str], str]
) -> None:
    table = named("t")
    client.create_table(("db", table), SCHEMA)
    views = [each["name"] for each in server.ask("GET", "/v1/shop/namespaces/db/views").json["identifiers"]]
    assert view in views
    assert table not in views
    assert ("db", view) in client.list_views("db")
    assert ("db", view) not in client.list_tables("db")
    assert client.view_exists(("db", view))


def test_a_view_is_kept_as_iceberg_java_keeps_it(server: Server, view: str) -> None:
    engine = create_engine(f"sqlite:///{server.folder}/catalog.db")
    with engine.connect() as connection:
        row = connection.execute(
            text("SELECT iceberg_type, metadata_location FROM iceberg_tables WHERE table_name = :name"), {"name": view}
        ).one()
    engine.dispose()
    assert ("VIEW", server.ask("GET", path_of(view)).json["metadata-location"]) == tuple(row)


def test_a_table_and_a_view_do_not_share_a_name(
    server: Server, client: RestCatalog, view: str, named: Callable[[str], str]
) -> None:
    table = named("t")
    client.create_table(("db", table), SCHEMA)
    assert (409, "AlreadyExistsException", f"Table with same name already exists: db.{table}") == create(
        server, table
    ).error
    document = {"name": view, "schema": SCHEMA.model_dump(mode="json")}
    for staged in (False, True):
        answer = server.ask("POST", "/v1/shop/namespaces/db/tables", {**document, "stage-create": staged})
        assert (409, "AlreadyExistsException", f"View with same name already exists: db.{view}") == answer.error
    renaming = {
        "source": {"namespace": ["db"], "name": table},
        "destination": {"namespace": ["db"], "name": view},
    }
    words = f"Cannot rename db.{table} to db.{view}. View already exists: db.{view}"
    assert (409, "AlreadyExistsException", words) == server.ask("POST", "/v1/shop/tables/rename", renaming).error


def test_a_view_that_was_made_anew_is_not_replaced(server: Server, view: str) -> None:
    old = server.ask("GET", path_of(view)).json["metadata"]["view-uuid"]
    server.ask("DELETE", path_of(view))
    create(server, view)
    status, kind, message = replace(server, view, version("select 3", schema=0), old).error
    assert (409, "CommitFailedException") == (status, kind)
    assert message.startswith("Requirement failed: view UUID does not match")


def test_a_view_gets_another_name_and_is_registered(server: Server, view: str, named: Callable[[str], str]) -> None:
    new, again = named("renamed"), named("again")
    names = {"source": {"namespace": ["db"], "name": view}, "destination": {"namespace": ["db"], "name": new}}
    assert 204 == server.ask("POST", "/v1/shop/views/rename", names).status
    assert 404 == server.ask("HEAD", path_of(view)).status
    location = server.ask("GET", path_of(new)).json["metadata-location"]
    document = {"name": again, "metadata-location": location}
    assert location == server.ask("POST", "/v1/shop/namespaces/db/register-view", document).json["metadata-location"]
    assert 409 == server.ask("POST", "/v1/shop/namespaces/db/register-view", document).status


def test_a_namespace_with_a_view_is_not_dropped(
    server: Server, client: RestCatalog, named: Callable[[str], str]
) -> None:
    namespace = named("views")
    client.create_namespace(namespace)
    document = {"name": "v", "schema": _COLUMNS, "view-version": version("select 1"), "properties": {}}
    assert 200 == server.ask("POST", f"/v1/shop/namespaces/{namespace}/views", document).status
    with pytest.raises(NamespaceNotEmptyError):
        client.drop_namespace(namespace)
    with server.library() as catalog, pytest.raises(NamespaceNotEmptyError, match="1 views exist"):
        catalog.drop_namespace(namespace)


@pytest.mark.parametrize(
    "document",
    [
        {"updates": [{"action": "make-coffee"}]},
        {"requirements": [{"type": "assert-good-weather"}], "updates": []},
        {"updates": [{"action": "add-view-version", "view-version": {"version-id": 1}}]},
        {"updates": [{"action": "add-view-version"}]},
        {"updates": [{"action": "set-current-view-version", "view-version-id": 99}]},
        {"updates": replaced_by(version("select 1", "spark", "SPARK", schema=0))},
    ],
)
def test_a_change_that_makes_no_sense_is_refused(server: Server, view: str, document: Any) -> None:
    before = server.ask("GET", path_of(view)).json
    assert 400 == server.ask("POST", path_of(view), document).status
    assert before == server.ask("GET", path_of(view)).json


# -- the metadata --------------------------------------------------------------------------------------------


def _view(*sql: str, **properties: str) -> dict[str, Any]:
    """Return a view that had these queries one after the other."""
    made = created("u", "file:///v", _COLUMNS, version(sql[0]), properties)
    for number, query in enumerate(sql[1:], 2):
        made = changed(made, replaced_by(version(query, schema=0, at_ms=number * 1000)), now_ms=9)
    return made


def test_a_version_that_was_there_before_is_used_again() -> None:
    made = changed(_view("a", "b"), replaced_by(version("a", schema=0, at_ms=5)), now_ms=9)
    assert [1, 2] == [each["version-id"] for each in made["versions"]]
    assert 1 == made["current-version-id"]
    assert [(1, 1000), (2, 2000), (1, 9)] == [(e["version-id"], e["timestamp-ms"]) for e in made["version-log"]]


def test_old_versions_go_and_the_log_begins_behind_them() -> None:
    made = _view("a", "b", "c", "d", **{"version.history.num-entries": "2"})
    assert [3, 4] == [each["version-id"] for each in made["versions"]]
    assert [3, 4] == [entry["version-id"] for entry in made["version-log"]]


def test_an_engine_does_not_lose_its_query_unless_that_is_allowed() -> None:
    replacing = replaced_by(version("a", "trino", schema=0))
    with pytest.raises(ValidationException, match="loss of view dialects"):
        changed(_view("a"), replacing, now_ms=9)
    allowed = _view("a", **{"replace.drop-dialect.allowed": "true"})
    assert 2 == changed(allowed, replacing, now_ms=9)["current-version-id"]


def test_what_is_unknown_stays() -> None:
    made = changed({**_view("a"), "new": {"x": 1}}, [{"action": "set-location", "location": "file:///w"}], now_ms=9)
    assert {"x": 1} == made["new"]
    assert "file:///w" == made["location"]


def test_properties_are_set_and_removed() -> None:
    updates: list[dict[str, Any]] = [
        {"action": "set-properties", "updates": {"b": "2"}},
        {"action": "remove-properties", "removals": ["a", "gone"]},
    ]
    before = _view("a", a="1")
    assert {"b": "2"} == changed(before, updates, now_ms=9)["properties"]
    assert {"a": "1"} == before["properties"]


@pytest.mark.parametrize(
    "update",
    [
        {"action": "assign-uuid", "uuid": "other"},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-view-version", "view-version": version("a", schema=5)},
        {"action": "set-properties", "updates": {"version.history.num-entries": "0"}},
    ],
)
def test_an_update_that_does_not_fit_is_refused(update: dict[str, Any]) -> None:
    with pytest.raises(ValidationException):
        changed(_view("a"), [update], now_ms=9)


def test_the_uuid_is_compared() -> None:
    check_uuid(_view("a"), [{"type": "assert-view-uuid", "uuid": "u"}])
    with pytest.raises(CommitFailedException, match="view UUID does not match: expected u != w"):
        check_uuid(_view("a"), [{"type": "assert-view-uuid", "uuid": "w"}])


def test_the_file_is_plain_json(server: Server, view: str) -> None:
    answer = server.ask("GET", path_of(view)).json
    assert answer["metadata"] == json.loads(Path(answer["metadata-location"].removeprefix("file://")).read_bytes())
