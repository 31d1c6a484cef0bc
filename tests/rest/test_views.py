"""The routes of views: PyIceberg's own client, and what crosses the wire."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from tests.rest.kit import SCHEMA, Server, path_of

Name = tuple[str, str]


def version(*queries: tuple[str, str], number: int = 1, schema_id: int = 0) -> ViewVersion:
    """Return a version with *queries*: (dialect, SQL)."""
    return ViewVersion(
        version_id=number,
        schema_id=schema_id,
        timestamp_ms=1_700_000_000_000,
        summary={"engine-name": "test"},
        representations=[
            ViewRepresentation(SQLViewRepresentation(type="sql", sql=sql, dialect=dialect)) for dialect, sql in queries
        ],
        default_namespace=("db",),
    )


SELECT = version(("spark", "select id from db.t"))


def view_path(name: Name) -> str:
    """Return the path of a view."""
    return path_of(*name).replace("/tables/", "/views/")


def replacing(*queries: tuple[str, str]) -> list[dict[str, Any]]:
    """Return the updates that replace the version of a view."""
    return [
        {"action": "add-view-version", "view-version": version(*queries, number=2).model_dump(mode="json")},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def test_a_view_is_created_loaded_listed_and_dropped(client: RestCatalog, name: Name) -> None:
    made = client.create_view(name, SCHEMA, SELECT, properties={"owner": "anna"})
    found = client.load_view(name)
    assert found.metadata == made.metadata
    assert "select id from db.t" == found.sql_for("spark").sql
    assert (SCHEMA.columns, {"owner": "anna"}) == (found.schema().columns, found.properties)
    assert name in client.list_views("db")
    assert name not in client.list_tables("db")
    assert client.view_exists(name)
    client.drop_view(name)
    assert not client.view_exists(name)
    with pytest.raises(NoSuchViewError, match=f"View does not exist: db.{name[1]}"):
        client.load_view(name)


def test_the_metadata_is_in_a_gzipped_file_as_java_writes_it(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_view(name, SCHEMA, SELECT)
    loaded = server.ask("GET", view_path(name)).json
    location = Path(loaded["metadata-location"].removeprefix("file://"))
    assert location.parent == Path(loaded["metadata"]["location"].removeprefix("file://")) / "metadata"
    assert location.name.startswith("00000-")
    assert location.name.endswith(".gz.metadata.json")
    assert loaded["metadata"] == json.loads(gzip.decompress(location.read_bytes()))


def test_a_view_is_replaced_and_remembers_its_versions(server: Server, client: RestCatalog, name: Name) -> None:
    made = client.create_view(name, SCHEMA, SELECT)
    requirement = {"type": "assert-view-uuid", "uuid": str(made.uuid())}
    document = {"requirements": [requirement], "updates": replacing(("spark", "select 2"))}
    answer = server.ask("POST", view_path(name), document)
    assert answer.json == server.ask("GET", view_path(name)).json
    metadata = answer.json["metadata"]
    assert (2, [1, 2]) == (metadata["current-version-id"], [each["version-id"] for each in metadata["versions"]])
    assert [1, 2] == [entry["version-id"] for entry in metadata["version-log"]]
    assert "00001-" in answer.json["metadata-location"]


def test_clients_that_replace_a_view_at_the_same_time_both_land(
    server: Server, client: RestCatalog, name: Name
) -> None:
    client.create_view(name, SCHEMA, SELECT)
    for sql in ("select 2", "select 3"):  # both planned on version 1, and both call theirs 2
        assert 200 == server.ask("POST", view_path(name), {"updates": replacing(("spark", sql))}).status
    found = client.load_view(name)
    assert [1, 2, 3] == [each.version_id for each in found.versions]
    assert "select 3" == found.sql_for("spark").sql


def test_another_view_of_the_same_name_is_a_conflict(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_view(name, SCHEMA, SELECT)
    requirement = {"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    document = {"requirements": [requirement], "updates": replacing(("spark", "select 2"))}
    status, kind, message = server.ask("POST", view_path(name), document).error
    assert (409, "CommitFailedException") == (status, kind)
    assert message.startswith("Requirement failed: view UUID does not match: expected ")


def test_a_name_is_used_once_by_tables_and_views(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_view(name, SCHEMA, SELECT)
    tables, register = "/v1/shop/namespaces/db/tables", "/v1/shop/namespaces/db/register"
    body = {"name": name[1], "schema": SCHEMA.model_dump(mode="json")}
    taken = (409, "AlreadyExistsException", f"View with same name already exists: db.{name[1]}")
    assert taken == server.ask("POST", tables, body).error
    assert taken == server.ask("POST", tables, {**body, "stage-create": True}).error
    for overwrite in (False, True):
        document = {"name": name[1], "metadata-location": "file:///nowhere.metadata.json", "overwrite": overwrite}
        assert taken == server.ask("POST", register, document).error
    assert (404, "NoSuchTableException") == server.ask("GET", path_of(*name)).error[:2]
    client.drop_view(name)
    client.create_table(name, SCHEMA)
    with pytest.raises(ViewAlreadyExistsError, match=f"Table with same name already exists: db.{name[1]}"):
        client.create_view(name, SCHEMA, SELECT)
    assert (404, "NoSuchViewException") == server.ask("GET", view_path(name)).error[:2]


def test_a_view_gets_another_name(server: Server, client: RestCatalog, named: Callable[[str], str]) -> None:
    first, second, table = (("db", named(stem)) for stem in ("first", "second", "table"))
    client.create_view(first, SCHEMA, SELECT)
    client.create_view(second, SCHEMA, SELECT)
    client.create_table(table, SCHEMA)

    def rename(old: Name, new: Name) -> Any:
        names = [{"namespace": [each[0]], "name": each[1]} for each in (old, new)]
        return server.ask("POST", "/v1/shop/views/rename", dict(zip(("source", "destination"), names, strict=True)))

    words = f"Cannot rename {'.'.join(first)} to {'.'.join(second)}. View already exists"
    assert (409, "AlreadyExistsException", words) == rename(first, second).error
    assert rename(first, table).error[2].endswith("Table already exists")
    assert (404, "NoSuchNamespaceException") == rename(first, ("nowhere", "v")).error[:2]
    assert (404, "NoSuchViewException") == rename(table, ("db", "other")).error[:2]
    free = ("db", named("free"))
    assert 204 == rename(first, free).status
    assert [False, True] == [client.view_exists(each) for each in (first, free)]


def test_a_view_is_registered_from_its_file(server: Server, client: RestCatalog, name: Name) -> None:
    made = client.create_view(name, SCHEMA, SELECT)
    location = server.ask("GET", view_path(name)).json["metadata-location"]
    with pytest.raises(ViewAlreadyExistsError):
        client.register_view(name, location)
    client.drop_view(name)
    assert made.metadata == client.register_view(name, location).metadata
    assert location == server.ask("GET", view_path(name)).json["metadata-location"]
    document = {"name": "other", "metadata-location": "file:///nowhere.metadata.json"}
    answer = server.ask("POST", "/v1/shop/namespaces/db/register-view", document)
    assert (404, "NotFoundException") == answer.error[:2]


@pytest.mark.parametrize("where", ["", "versions.0", "versions.0.representations.0", "schemas.0", "schemas.0.fields.0"])
def test_a_commit_drops_no_field_of_a_view_that_the_server_does_not_know(
    server: Server, client: RestCatalog, name: Name, tmp_path: Path, where: str
) -> None:
    client.create_view(name, SCHEMA, SELECT)
    metadata = server.ask("GET", view_path(name)).json["metadata"]
    client.drop_view(name)
    place = metadata
    for key in filter(None, where.split(".")):
        place = place[int(key) if key.isdigit() else key]
    place["storage-table"] = {"name": "s"}
    file = tmp_path / "view.metadata.json"
    file.write_text(json.dumps(metadata))
    client.register_view(name, f"file://{file}")
    update = {"action": "set-properties", "updates": {"a": "1"}}
    status, _, message = server.ask("POST", view_path(name), {"requirements": [], "updates": [update]}).error
    assert 400 == status
    assert f"{where}.storage-table".lstrip(".") in message
    assert metadata == server.ask("GET", view_path(name)).json["metadata"]


def test_a_namespace_with_a_view_is_not_dropped(
    client: RestCatalog, server: Server, named: Callable[[str], str]
) -> None:
    namespace = named("held")
    client.create_namespace(namespace)
    client.create_view((namespace, "v"), SCHEMA, SELECT)
    status, kind, message = server.ask("DELETE", f"/v1/shop/namespaces/{namespace}").error
    assert (409, "NamespaceNotEmptyException") == (status, kind)
    assert "is not empty" in message
    client.drop_view((namespace, "v"))
    client.drop_namespace(namespace)


@pytest.mark.parametrize(
    "updates, expected",
    [
        ([{"action": "make-coffee"}], (406, "UnsupportedOperationException")),
        ([{"action": "set-location"}], (400, "BadRequestException")),
        (replacing(("spark", "select 2"), ("SPARK", "select 3")), (400, "IllegalArgumentException")),
        (replacing(("trino", "select 2")), (400, "IllegalArgumentException")),
        ([{"action": "set-current-view-version", "view-version-id": 9}], (400, "IllegalArgumentException")),
        ([{"action": "upgrade-format-version", "format-version": 2}], (400, "IllegalArgumentException")),
        ([{"action": "set-location", "location": "file:///x", "more": 1}], (406, "UnsupportedOperationException")),
    ],
)
def test_updates_that_make_no_sense_change_nothing(
    server: Server, client: RestCatalog, name: Name, updates: Any, expected: tuple[int, str]
) -> None:
    client.create_view(name, SCHEMA, SELECT)
    before = server.ask("GET", view_path(name)).json
    assert expected == server.ask("POST", view_path(name), {"updates": updates}).error[:2]
    assert before == server.ask("GET", view_path(name)).json


def test_a_view_with_types_that_pyiceberg_lacks_is_created_changed_and_loaded(server: Server, name: Name) -> None:
    deep = {"type": "list", "element-id": 3, "element": "variant", "element-required": False}
    kinds: tuple[Any, ...] = ("variant", deep, "geometry(OGC:CRS84)")
    columns = [
        {"id": number, "name": f"c{number}", "type": kind, "required": False}
        for number, kind in zip((1, 2, 4), kinds, strict=True)
    ]
    narrow, wide = ({"type": "struct", "schema-id": 0, "fields": fields} for fields in (columns[:2], columns))
    selected = SELECT.model_dump(mode="json")
    view = {"name": name[1], "schema": narrow, "view-version": selected, "properties": {"type": "variant"}}
    made = server.ask("POST", "/v1/shop/namespaces/db/views", view)
    assert 200 == made.status, made.body
    updates = [
        {"action": "add-schema", "schema": wide},
        {"action": "add-view-version", "view-version": {**selected, "version-id": 2, "schema-id": -1}},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    changed = server.ask("POST", view_path(name), {"updates": updates})
    assert 200 == changed.status, changed.body
    found = server.ask("GET", view_path(name)).json["metadata"]
    assert [columns[:2], columns] == [each["fields"] for each in found["schemas"]]
    assert {"type": "variant"} == found["properties"]


def test_a_requirement_that_is_not_known_is_not_served(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_view(name, SCHEMA, SELECT)
    answer = server.ask("POST", view_path(name), {"requirements": [{"type": "assert-tea"}], "updates": []})
    assert (406, "UnsupportedOperationException") == answer.error[:2]
    assert "'assert-tea' in requirements.0" in answer.error[2]


def test_views_and_tables_are_listed_in_pages_of_their_own(
    server: Server, client: RestCatalog, named: Callable[[str], str]
) -> None:
    namespace = named("paged")
    client.create_namespace(namespace)
    client.create_table((namespace, "a"), SCHEMA)
    for number in range(3):
        client.create_view((namespace, f"v{number}"), SCHEMA, SELECT)
    path = f"/v1/shop/namespaces/{namespace}/views?pageSize=2&pageToken="
    first = server.ask("GET", path).json
    rest = server.ask("GET", path + first["next-page-token"]).json
    assert [["v0", "v1"], ["v2"]] == [[each["name"] for each in page["identifiers"]] for page in (first, rest)]
