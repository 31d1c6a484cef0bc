"""What crosses the wire, asked without a client's help."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import LongType

from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from tests.rest.kit import SCHEMA, Response, Server, ids, path_of

Name = tuple[str, str]


@pytest.fixture
def table(client: RestCatalog, name: Name) -> Any:
    """A table with two snapshots on main and one behind a tag."""
    made = client.create_table(name, SCHEMA)
    for number in range(3):
        made.append(ids(number))
    first = made.metadata.snapshots[0].snapshot_id
    made.manage_snapshots().create_tag(first, "first").commit()
    return made


# -- configuration -------------------------------------------------------------------------------------------


def test_the_configuration_advertises_exactly_the_routes_that_are_served(server: Server) -> None:
    config = server.ask("GET", "/v1/config").json
    assert {"prefix": "shop"} == config["overrides"]
    routes = (*SERVED, *VIEWS, *TRANSACTIONS)
    assert [f"{route.method} {route.path}" for route in routes] == config["endpoints"]
    assert not [path for path in config["endpoints"] if "plan" in path or "sign" in path or "credentials" in path]


def test_every_advertised_endpoint_is_answered_by_its_handler(server: Server) -> None:
    for endpoint in server.ask("GET", "/v1/config").json["endpoints"]:
        method, path = endpoint.split(" ")
        path = path.replace("{prefix}", "shop").replace("{namespace}", "nowhere")
        path = path.replace("{table}", "t").replace("{view}", "v")
        answer = server.ask(method, path, b"{}")
        assert 405 != answer.status
        assert b"NoSuchEndpoint" not in answer.body


def test_an_unknown_warehouse_is_not_found(server: Server) -> None:
    status, kind, message = server.ask("GET", "/v1/config?warehouse=nope").error
    assert (404, "NoSuchWarehouseException") == (status, kind)
    assert "served are: shop, second" in message
    assert 404 == server.ask("GET", "/v1/nope/namespaces").status


# -- loads ---------------------------------------------------------------------------------------------------


def test_a_load_answers_with_the_bytes_of_the_metadata_file(server: Server, table: Any) -> None:
    answer = server.ask("GET", path_of(*table.name()))
    written = Path(table.metadata_location.removeprefix("file://")).read_bytes()
    assert written in answer.body
    assert table.metadata_location == answer.json["metadata-location"]
    assert json.loads(written) == answer.json["metadata"]


def test_the_answer_to_a_commit_is_that_of_a_load(server: Server, table: Any) -> None:
    update = {"action": "set-properties", "updates": {"a": "1"}}
    committed = server.ask("POST", path_of(*table.name()), {"requirements": [], "updates": [update]})
    loaded = server.ask("GET", path_of(*table.name()))
    assert Path(committed.json["metadata-location"].removeprefix("file://")).read_bytes() in committed.body
    assert loaded.body == committed.body
    assert loaded.headers["etag"] == committed.headers["etag"]


def test_a_client_that_has_the_newest_version_gets_304(server: Server, table: Any) -> None:
    path = path_of(*table.name())
    etag = server.ask("GET", path).headers["etag"]
    again = server.ask("GET", path, headers={"If-None-Match": etag})
    assert (304, b"", etag) == (again.status, again.body, again.headers["etag"])
    assert 304 == server.ask("GET", path, headers={"If-None-Match": f'"other", {etag}'}).status
    table.append(ids(9))
    changed = server.ask("GET", path, headers={"If-None-Match": etag})
    assert 200 == changed.status
    assert etag != changed.headers["etag"]


def test_with_the_snapshots_of_refs_alone_it_is_another_representation(server: Server, table: Any) -> None:
    path = path_of(*table.name())
    whole, refs = server.ask("GET", path), server.ask("GET", f"{path}?snapshots=refs")
    assert whole.headers["etag"] != refs.headers["etag"]
    assert 200 == server.ask("GET", f"{path}?snapshots=refs", headers={"If-None-Match": whole.headers["etag"]}).status
    snapshots = [snapshot["snapshot-id"] for snapshot in whole.json["metadata"]["snapshots"]]
    assert [snapshots[0], snapshots[2]] == [s["snapshot-id"] for s in refs.json["metadata"]["snapshots"]]
    assert {**whole.json["metadata"], "snapshots": None} == {**refs.json["metadata"], "snapshots": None}
    assert 400 == server.ask("GET", f"{path}?snapshots=some").status


def test_a_client_that_reads_gzip_gets_it(server: Server, table: Any) -> None:
    path = path_of(*table.name())
    plain, zipped = server.ask("GET", path), server.ask("GET", path, headers={"Accept-Encoding": "br, gzip"})
    assert "gzip" == zipped.headers["content-encoding"]
    assert "content-encoding" not in plain.headers
    assert plain.body == gzip.decompress(zipped.body)
    assert len(zipped.body) < len(plain.body) / 2
    assert plain.headers["etag"] == zipped.headers["etag"]
    refused = server.ask("GET", path, headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_a_gzipped_metadata_file_is_answered_as_json(server: Server, client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA, properties={"write.metadata.compression-codec": "gzip"})
    table.append(ids(1))
    assert table.metadata_location.endswith(".gz.metadata.json")
    assert 1 == len(server.ask("GET", path_of(*name)).json["metadata"]["snapshots"])


def test_a_table_whose_file_is_gone_is_not_answered_from_memory(server: Server, table: Any) -> None:
    assert 200 == server.ask("GET", path_of(*table.name())).status
    Path(table.metadata_location.removeprefix("file://")).unlink()
    status, kind, message = server.ask("GET", path_of(*table.name())).error
    assert (404, "NotFoundException") == (status, kind)
    assert f"Failed to open input stream for file: {table.metadata_location}" == message


def test_heads_have_no_body(server: Server, table: Any) -> None:
    there, missing = server.ask("HEAD", path_of(*table.name())), server.ask("HEAD", path_of("db", "nope"))
    assert [(204, b""), (404, b"")] == [(answer.status, answer.body) for answer in (there, missing)]
    assert 204 == server.ask("HEAD", "/v1/shop/namespaces/db").status


# -- format version 3 ----------------------------------------------------------------------------------------


def test_a_table_of_version_3_is_created_changed_and_loaded(server: Server, client: RestCatalog, name: Name) -> None:
    column = {"id": 7, "name": "id", "required": True, "type": "int", "initial-default": 5, "write-default": 6}
    created = server.ask(
        "POST",
        "/v1/shop/namespaces/db/tables",
        {
            "name": name[1],
            "schema": {"type": "struct", "schema-id": 0, "fields": [column]},
            "properties": {"format-version": "3"},
        },
    )
    metadata = created.json["metadata"]
    assert (3, 0) == (metadata["format-version"], metadata["next-row-id"])
    assert [{**column, "id": 1}] == metadata["schemas"][0]["fields"]
    snapshot = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": metadata["last-updated-ms"],
        "manifest-list": f"{metadata['location']}/metadata/list.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
        "first-row-id": 0,
        "added-rows": 4,
    }
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, ref]
    committed = server.ask("POST", path_of(*name), {"requirements": [], "updates": updates}).json["metadata"]
    assert 4 == committed["next-row-id"]
    kept = committed["snapshots"][0]
    assert {"first-row-id": 0, "added-rows": 4}.items() <= kept.items()
    assert client.load_table(name).metadata.format_version == 3
    late = {**snapshot, "snapshot-id": 2, "sequence-number": 2}
    updates = [{"action": "add-snapshot", "snapshot": late}]
    refused = server.ask("POST", path_of(*name), {"requirements": [], "updates": updates})
    assert 409 == refused.status  # the rows from 0 on were given to others: with others it fits
    nowhere = server.ask("POST", path_of(*name), {"requirements": [], "updates": [{**ref, "snapshot-id": 9}]})
    assert 400 == nowhere.status


def test_a_table_is_upgraded_to_version_3(server: Server, table: Any) -> None:
    update = {"action": "upgrade-format-version", "format-version": 3}
    committed = server.ask("POST", path_of(*table.name()), {"requirements": [], "updates": [update]})
    assert (3, 0) == (committed.json["metadata"]["format-version"], committed.json["metadata"]["next-row-id"])
    assert 3 == len(committed.json["metadata"]["snapshots"])


# -- lists ---------------------------------------------------------------------------------------------------


def test_lists_come_in_pages(server: Server, client: RestCatalog, named: Callable[[str], str]) -> None:
    namespace = named("pages")
    client.create_namespace(namespace)
    for number in range(5):
        client.create_table((namespace, f"t{number}"), SCHEMA)
    path, pages = f"/v1/shop/namespaces/{namespace}/tables", []
    token: str | None = ""
    while token is not None:
        answer = server.ask("GET", f"{path}?pageToken={token}&pageSize=2").json
        pages.append([entry["name"] for entry in answer["identifiers"]])
        token = answer["next-page-token"]
    assert [["t0", "t1"], ["t2", "t3"], ["t4"]] == pages
    assert 5 == len(server.ask("GET", path).json["identifiers"])
    assert 5 == len(server.ask("GET", f"{path}?pageToken=").json["identifiers"])


def test_what_is_dropped_between_two_pages_moves_nothing(
    server: Server, client: RestCatalog, named: Callable[[str], str]
) -> None:
    parent = named("parent")
    for number in range(4):
        client.create_namespace((parent, f"n{number}"))
    path = f"/v1/shop/namespaces?parent={parent}&pageSize=2"
    first = server.ask("GET", f"{path}&pageToken=").json
    client.drop_namespace((parent, "n1"))
    second = server.ask("GET", f"{path}&pageToken={first['next-page-token']}").json
    assert [[parent, "n2"], [parent, "n3"]] == second["namespaces"]


@pytest.mark.parametrize("query", ["pageToken=%21%21", "pageToken=&pageSize=0", "pageToken=&pageSize=many"])
def test_a_page_that_makes_no_sense_is_refused(server: Server, query: str) -> None:
    assert (400, "BadRequestException") == server.ask("GET", f"/v1/shop/namespaces?{query}").error[:2]


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method, path, document, expected",
    [
        ("GET", "/", None, (404, "NoSuchEndpointException")),
        ("GET", "/v1/shop/namespaces/db/functions", None, (404, "NoSuchEndpointException")),
        ("GET", "/v1/shop/namespaces/nope/views", None, (404, "NoSuchNamespaceException")),
        ("GET", "/v1/shop/namespaces/db/views/nope", None, (404, "NoSuchViewException")),
        ("DELETE", "/v1/shop/namespaces/db/views/nope", None, (404, "NoSuchViewException")),
        ("POST", "/v1/shop/namespaces/db/views/nope", {"updates": []}, (404, "NoSuchViewException")),
        ("PUT", "/v1/shop/namespaces", None, (405, "MethodNotAllowedException")),
        ("POST", "/v1/shop/namespaces", b"{", (400, "BadRequestException")),
        ("POST", "/v1/shop/namespaces", {"namespace": "db"}, (400, "BadRequestException")),
        ("POST", "/v1/shop/namespaces", {"namespace": ["a.b"]}, (400, "BadRequestException")),
        ("POST", "/v1/shop/namespaces", {"namespace": []}, (404, "NoSuchNamespaceException")),
        ("POST", "/v1/shop/namespaces", {"namespace": ["db"]}, (409, "AlreadyExistsException")),
        ("GET", "/v1/shop/namespaces/nope", None, (404, "NoSuchNamespaceException")),
        ("GET", "/v1/shop/namespaces?parent=nope", None, (404, "NoSuchNamespaceException")),
        ("GET", "/v1/shop/namespaces/nope/tables", None, (404, "NoSuchNamespaceException")),
        ("GET", "/v1/shop/namespaces/db/tables/nope", None, (404, "NoSuchTableException")),
        ("POST", "/v1/shop/namespaces/db/tables/nope", {"updates": []}, (404, "NoSuchTableException")),
        (
            "POST",
            "/v1/shop/namespaces/db/properties",
            {"removals": ["a"], "updates": {"a": "1"}},
            (422, "UnprocessableEntityException"),
        ),
        (
            "POST",
            "/v1/shop/namespaces/db/register",
            {"name": "r", "metadata-location": "file:///nowhere.metadata.json"},
            (404, "NotFoundException"),
        ),
    ],
)
def test_each_fault_has_its_status_and_its_type(
    server: Server, method: str, path: str, document: Any, expected: tuple[int, str]
) -> None:
    assert expected == server.ask(method, path, document).error[:2]


def test_unknown_updates_and_requirements_are_refused_and_nothing_lands(server: Server, table: Any) -> None:
    path, known = path_of(*table.name()), {"action": "set-properties", "updates": {"a": "1"}}
    for document in (
        {"requirements": [], "updates": [known, {"action": "make-coffee"}]},
        {"requirements": [{"type": "assert-good-weather"}], "updates": [known]},
    ):
        assert (406, "UnsupportedOperationException") == server.ask("POST", path, document).error[:2]
    assert "a" not in server.ask("GET", path).json["metadata"]["properties"]


@pytest.mark.parametrize(
    "removal",
    [
        {"action": "remove-schemas", "schema-ids": [7]},
        {"action": "remove-partition-specs", "spec-ids": [7]},
        {"action": "remove-statistics", "snapshot-id": 7},
        {"action": "remove-partition-statistics", "snapshot-id": 7},
        {"action": "remove-snapshots", "snapshot-ids": [7]},
        {"action": "remove-properties", "removals": ["gone"]},
    ],
    ids=lambda removal: str(removal["action"]),
)
def test_to_remove_what_is_not_there_changes_nothing(server: Server, table: Any, removal: dict[str, Any]) -> None:
    answer = server.ask("POST", path_of(*table.name()), {"requirements": [], "updates": [removal]})
    assert (200, table.metadata_location) == (answer.status, answer.json["metadata-location"])


@pytest.mark.parametrize(
    "removal",
    [{"action": "remove-schemas", "schema-ids": [0]}, {"action": "remove-partition-specs", "spec-ids": [0]}],
    ids=lambda removal: str(removal["action"]),
)
def test_what_is_current_is_not_removed(server: Server, table: Any, removal: dict[str, Any]) -> None:
    answer = server.ask("POST", path_of(*table.name()), {"requirements": [], "updates": [removal]})
    assert (400, "ValidationException") == answer.error[:2]


# -- what PyIceberg's models do not know ---------------------------------------------------------------------


def _changed(server: Server, table: Name, *updates: dict[str, Any]) -> Any:
    """Commit *updates* to *table*; return its metadata."""
    answer = server.ask("POST", path_of(*table), {"requirements": [], "updates": updates})
    assert 200 == answer.status, answer.json
    return answer.json["metadata"]


def test_statistics_with_blobs_of_any_type_are_kept(server: Server, name: Name, client: RestCatalog) -> None:
    """Presto has types of its own. PyIceberg's client can't load such a table."""
    client.create_table(name, SCHEMA)
    blob = {"type": "presto-sum-data-size-bytes-v1", "snapshot-id": 1, "sequence-number": 1, "fields": [1]}
    sizes = {"file-size-in-bytes": 9, "file-footer-size-in-bytes": 1}
    file = {"snapshot-id": 1, "statistics-path": "file:///s", **sizes, "blob-metadata": [blob]}
    assert [file] == _changed(server, name, {"action": "set-statistics", "statistics": file})["statistics"]
    with server.library() as catalog:
        catalog.load_table(name).append(ids(1))
    assert [file] == server.ask("GET", path_of(*name)).json["metadata"]["statistics"]
    assert [] == _changed(server, name, {"action": "remove-statistics", "snapshot-id": 1})["statistics"]
    change = {"action": "set-statistics", "statistics": {**file, "blob-metadata": [{**blob, "fields": "x"}]}}
    answer = server.ask("POST", path_of(*name), {"requirements": [], "updates": [change]})
    assert (400, "BadRequestException") == answer.error[:2]


def test_a_table_with_a_variant_is_created_changed_and_loaded(server: Server, name: Name) -> None:
    """At any depth. A client that reads its values through PyIceberg gets an error that says so."""
    deep = {"type": "list", "element-id": 4, "element": "variant", "element-required": False}
    schema = {"type": "struct", "schema-id": 0, "identifier-field-ids": []}
    columns = [
        {"id": number, "name": column, "type": kind, "required": False}
        for number, column, kind in ((1, "id", "long"), (2, "v", "variant"), (3, "deep", deep))
    ]
    body = {"name": name[1], "schema": {**schema, "fields": columns}}
    refused = server.ask("POST", "/v1/shop/namespaces/db/tables", body).error
    assert (400, True) == (refused[0], "variant" in refused[2])
    made = server.ask("POST", "/v1/shop/namespaces/db/tables", {**body, "properties": {"format-version": "3"}})
    assert columns == made.json["metadata"]["schemas"][0]["fields"]
    more = {"id": 5, "name": "more", "type": "variant", "required": False}
    wider = {"action": "add-schema", "schema": {**schema, "fields": [*columns, more]}}
    found = _changed(server, name, {"action": "set-properties", "updates": {"a": "1"}}, wider)
    assert [columns, [*columns, more]] == [each["fields"] for each in found["schemas"]]
    with server.library() as catalog:
        scan = catalog.load_table(name).scan()
        assert 0 == scan.select("id").to_arrow().num_rows
        with pytest.raises(ValueError, match="Type not recognized: variant"):
            scan.to_arrow()


@pytest.mark.parametrize(
    "given, kept",
    [
        ("geometry(OGC:CRS84)", "geometry(OGC:CRS84)"),
        ("geometry('EPSG:3857')", "geometry('EPSG:3857')"),
        ("geography(EPSG:4326, karney)", "geography(EPSG:4326, karney)"),
        ("geography(OGC:CRS84)", "geography(OGC:CRS84, spherical)"),
        ("geography('EPSG:4326', 'karney')", "geography('EPSG:4326', 'karney')"),
    ],
)
def test_a_type_of_shapes_is_spelled_as_its_client_spells_it(server: Server, name: Name, given: str, kept: str) -> None:
    """Java and DuckDB write no quotes. To Java quotes would belong to the name, to PyIceberg it is no name without."""

    def columns(kind: str) -> list[dict[str, Any]]:
        deep = {"type": "list", "element-id": 4, "element": kind, "element-required": False}
        kinds = ((1, "id", "long"), (2, "g", kind), (3, "deep", deep), (5, "more", kind))
        return [{"id": number, "name": column, "type": each, "required": False} for number, column, each in kinds]

    schema = {"type": "struct", "schema-id": 0, "identifier-field-ids": []}
    body = {"name": name[1], "schema": {**schema, "fields": columns(given)[:3]}, "properties": {"format-version": "3"}}
    made = server.ask("POST", "/v1/shop/namespaces/db/tables", body)
    assert 200 == made.status, made.body
    _changed(server, name, {"action": "add-schema", "schema": {**schema, "fields": columns(given)}})
    found = _changed(server, name, {"action": "set-properties", "updates": {"a": "1"}})
    with server.library() as catalog:
        assert 0 == catalog.load_table(name).scan().select("id").to_arrow().num_rows
    assert [columns(kept)[:3], columns(kept)] == [each["fields"] for each in found["schemas"]]


def test_an_algorithm_that_java_does_not_know_is_refused(server: Server, name: Name) -> None:
    body = {"name": name[1], "schema": _columns("geography(EPSG:4326, flat)"), "properties": {"format-version": "3"}}
    status, _, message = server.ask("POST", "/v1/shop/namespaces/db/tables", body).error
    assert (400, True) == (status, "flat" in message)


def test_default_values_of_fields_are_kept_at_any_depth(server: Server, name: Name) -> None:
    """But a struct, list or map has none, as in Java."""
    field = {"id": 3, "name": "x", "type": "date", "required": False}
    field |= {"initial-default": "2020-01-01", "write-default": "2020-01-02"}
    struct = {"type": "struct", "fields": [field]}
    deep = {"type": "list", "element-id": 2, "element": struct, "element-required": False}
    column = {"id": 1, "name": "deep", "type": deep, "required": False}
    schema = {"type": "struct", "schema-id": 0, "fields": [column]}
    wanted = {"name": name[1], "properties": {"format-version": "3"}}
    made = server.ask("POST", "/v1/shop/namespaces/db/tables", {**wanted, "schema": schema}).json["metadata"]
    assert [column] == made["schemas"][0]["fields"]
    more = {"id": 4, "name": "s", "type": {"type": "struct", "fields": [{**field, "id": 5}]}, "required": False}
    wide = {"action": "add-schema", "schema": {**schema, "fields": [column, more]}}
    assert [column, more] == _changed(server, name, wide)["schemas"][1]["fields"]
    wrong = {"action": "add-schema", "schema": {**schema, "fields": [column, {**more, "initial-default": {}}]}}
    assert 400 == server.ask("POST", path_of(*name), {"updates": [wrong]}).status


# -- what can't be created or changed ----------------------------------------------------------------------


def _columns(*kinds: str) -> dict[str, Any]:
    columns = [{"id": n, "name": f"c{n}", "type": kind, "required": False} for n, kind in enumerate(kinds, start=1)]
    return {"type": "struct", "schema-id": 0, "fields": columns}


def _creating(place: str, spec: dict[str, Any], order: dict[str, Any], *kinds: str) -> dict[str, Any]:
    """Return the commit that creates a table as clients make it of a staged one, with columns of *kinds*."""
    updates = [
        {"action": "assign-uuid", "uuid": str(uuid.uuid4())},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": _columns(*kinds)},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": place},
    ]
    return {"requirements": [{"type": "assert-create"}], "updates": updates}


@pytest.mark.parametrize("part", ["partition-spec", "write-order"])
@pytest.mark.parametrize("transform", ["day", "frobnicate"])
def test_a_transform_that_does_not_fit_its_column_is_no_conflict(
    server: Server, name: Name, transform: str, part: str
) -> None:
    """A client takes 409 for "the table exists already", or tries again."""
    field = {"source-id": 1, "transform": transform}
    spec = {"spec-id": 0, "fields": [{**field, "name": "p", "field-id": 1000}] if part == "partition-spec" else []}
    order_fields = [{**field, "direction": "asc", "null-order": "nulls-first"}] if part == "write-order" else []
    order = {"order-id": len(order_fields), "fields": order_fields}
    tables, wanted = "/v1/shop/namespaces/db/tables", {"name": name[1], "schema": _columns("string")}
    given = {"partition-spec": spec, "write-order": order}
    refused = [
        server.ask("POST", tables, {**wanted, **given, "stage-create": staged}).error for staged in (False, True)
    ]
    refused.append(
        server.ask("POST", path_of(*name), _creating(f"file://{server.folder}/x", spec, order, "string")).error
    )
    assert 404 == server.ask("GET", path_of(*name)).status
    before = server.ask("POST", tables, wanted).json
    add = {"action": "add-spec", "spec": spec} if part == "partition-spec" else {}
    add = add or {"action": "add-sort-order", "sort-order": order}
    refused.append(server.ask("POST", path_of(*name), {"updates": [add]}).error)
    assert before["metadata-location"] == server.ask("GET", path_of(*name)).json["metadata-location"]
    for status, kind, message in refused:
        assert (400, "ValidationException", True) == (status, kind, "for transform" in message)


def _by(column: int, transform: str, name: str) -> dict[str, Any]:
    return {"source-id": column, "transform": transform, "name": name}


def _partitioned(server: Server, name: Name, *fields: dict[str, Any]) -> list[Response]:
    """Return the answers to all requests by which a table with two columns gets a spec."""
    tables, columns, spec = "/v1/shop/namespaces/db/tables", ("string", "long"), {"spec-id": 0, "fields": fields}
    wanted = {"schema": _columns(*columns), "partition-spec": spec}
    place, order = f"file://{server.folder}/{name[1]}", {"order-id": 0, "fields": []}
    server.ask("POST", tables, {"schema": _columns(*columns), "name": f"{name[1]}-c"})
    return [
        server.ask("POST", tables, {**wanted, "name": f"{name[1]}-a", "stage-create": True}),
        server.ask("POST", tables, {**wanted, "name": name[1]}),
        server.ask("POST", path_of("db", f"{name[1]}-b"), _creating(place, spec, order, *columns)),
        server.ask("POST", path_of("db", f"{name[1]}-c"), {"updates": [{"action": "add-spec", "spec": spec}]}),
    ]


def test_a_partition_field_may_have_the_name_of_its_column(server: Server, name: Name) -> None:
    """ClickHouse names each field so. Other columns can still be added, through PyIceberg's own checks."""
    answers = _partitioned(server, name, _by(1, "truncate[3]", "c1"), _by(2, "bucket[4]", "c2"))
    assert [200] * 4 == [answer.status for answer in answers], [answer.body for answer in answers]
    with server.library() as catalog, catalog.load_table(name).update_schema() as update:
        update.add_column("more", LongType())


@pytest.mark.parametrize(
    "fields, words",
    [
        ([_by(1, "bucket[4]", "c2")], "a name that exists in schema: c2"),
        ([_by(1, "identity", "c2")], "different field in schema: c2"),
        ([_by(1, "identity", "p"), _by(2, "identity", "p")], "more than once: p"),
        ([_by(1, "identity", "")], "empty partition name"),
    ],
)
def test_a_partition_field_by_whose_name_java_loads_no_table_is_refused(
    server: Server, name: Name, fields: list[dict[str, Any]], words: str
) -> None:
    for answer in _partitioned(server, name, *fields):
        status, _, message = answer.error
        assert (400, True) == (status, words in message), message


def test_a_column_gets_no_name_of_a_partition_field_of_another_one(server: Server, name: Name) -> None:
    """As long as that one is there: Java looks at the fields of all specs."""
    schema = _columns("string", "long")
    wanted = {"name": name[1], "schema": schema, "partition-spec": {"fields": [_by(1, "identity", "p")]}}
    assert 200 == server.ask("POST", "/v1/shop/namespaces/db/tables", wanted).status

    def become(*columns: dict[str, Any]) -> Response:
        add = {"action": "add-schema", "schema": {**schema, "fields": columns}}
        updates = [add, {"action": "set-current-schema", "schema-id": -1}]
        return server.ask("POST", path_of(*name), {"updates": updates})

    first, second = schema["fields"]
    third = {"id": 3, "name": "p", "type": "long", "required": False}
    assert (400, "ValidationException") == become(first, second, third).error[:2]
    assert 200 == become(first, second, {**third, "name": "q"}).status
    _changed(
        server, name, {"action": "add-spec", "spec": {"fields": []}}, {"action": "set-default-spec", "spec-id": -1}
    )
    assert 400 == become(first, second, third).status
    assert 200 == become(second, third).status


def test_a_spec_may_come_before_its_schema_is_the_current_one(server: Server, name: Name) -> None:
    """As DuckDB orders its updates."""
    columns = _columns("string")
    server.ask("POST", "/v1/shop/namespaces/db/tables", {"name": name[1], "schema": columns})
    more = [*columns["fields"], {"id": 9, "name": "more", "type": "date", "required": False}]
    updates = [
        {"action": "add-schema", "schema": {**columns, "fields": more}},
        {"action": "add-spec", "spec": {"fields": [{"source-id": 9, "transform": "day", "name": "p"}]}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    made = server.ask("POST", path_of(*name), {"requirements": [], "updates": updates})
    assert (200, 1) == (made.status, len(made.json["metadata"]["partition-specs"][-1]["fields"]))


@pytest.mark.parametrize("action", ["add-encryption-key", "remove-encryption-key", "enable-row-lineage"])
def test_an_update_that_is_not_known_is_not_served(server: Server, table: Any, action: str) -> None:
    location, path = table.metadata_location, path_of(*table.name())
    updates = [{"action": "set-properties", "updates": {"a": "1"}}, {"action": action, "key-id": "k"}]
    status, kind, message = server.ask("POST", path, {"requirements": [], "updates": updates}).error
    assert (406, "UnsupportedOperationException") == (status, kind)
    assert f"this server does not know '{action}' in updates.1" == message
    assert location == server.ask("GET", path).json["metadata-location"]
    requirement = server.ask("POST", path, {"requirements": [{"type": action}], "updates": []})
    assert (406, "UnsupportedOperationException") == requirement.error[:2]
    for malformed in ({}, {"action": "add-spec"}):
        assert 400 == server.ask("POST", path, {"requirements": [], "updates": [malformed]}).status


@pytest.mark.parametrize("default", ["initial-default", "write-default"])
@pytest.mark.parametrize("kind", ["timestamp_ns", "timestamptz_ns"])
def test_a_default_value_in_nanoseconds_is_not_served(server: Server, name: Name, kind: str, default: str) -> None:
    """PyIceberg has no value for it."""
    column = {"id": 2, "name": "at", "type": kind, "required": False}
    given = {**column, default: "2024-01-01T10:11:12.123456789" + ("+00:00" if "z" in kind else "")}
    struct = {"id": 1, "name": "s", "type": {"type": "struct", "fields": [given]}, "required": False}
    wanted = {"name": name[1], "properties": {"format-version": "3"}}
    schemas = [{"type": "struct", "schema-id": 0, "fields": [each]} for each in (given, struct)]
    tables, made = "/v1/shop/namespaces/db/tables", {"type": "struct", "schema-id": 0, "fields": [column]}
    refused = [server.ask("POST", tables, {**wanted, "schema": schema}).error for schema in schemas]
    assert 200 == server.ask("POST", tables, {**wanted, "schema": made}).status
    update = {"action": "add-schema", "schema": schemas[0]}
    refused.append(server.ask("POST", path_of(*name), {"updates": [update]}).error)
    for status, error, message in refused:
        assert (406, "UnsupportedOperationException") == (status, error)
        assert f"{kind}, as the column at has" in message


def test_a_length_of_the_metadata_log_that_is_no_number_is_no_conflict(server: Server, table: Any) -> None:
    update = {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": "many"}}
    answer = server.ask("POST", path_of(*table.name()), {"requirements": [], "updates": [update]})
    assert (400, "ValidationException") == answer.error[:2]


def test_a_spec_fits_the_column_that_the_same_commit_adds(server: Server, name: Name) -> None:
    server.ask("POST", "/v1/shop/namespaces/db/tables", {"name": name[1], "schema": _columns("string")})
    spec = {"fields": [{"source-id": 2, "transform": "day", "name": "p"}]}
    updates = [
        {"action": "add-schema", "schema": _columns("string", "date")},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec},
    ]
    changed = server.ask("POST", path_of(*name), {"updates": updates})
    assert 200 == changed.status, changed.body


@pytest.mark.parametrize(
    "place, status", [("frobnicate://x/y", 400), ("file:///x/y#z", 400), ("file:///proc/none/x", 503)]
)
def test_a_place_that_cannot_be_written_is_no_conflict(server: Server, name: Name, place: str, status: int) -> None:
    """After a 503 a client tries again. This is vain where nothing serves the scheme."""
    tables, plain = "/v1/shop/namespaces/db/tables", {"name": name[1], "schema": _columns("string")}
    version = {"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": ["db"]}
    version["representations"] = [{"type": "sql", "sql": "select 1", "dialect": "spark"}]
    view = {**plain, "view-version": version, "properties": {}, "location": place}
    empty = ({"spec-id": 0, "fields": []}, {"order-id": 0, "fields": []})
    failed = [
        server.ask("POST", tables, {**plain, "location": place}),
        server.ask("POST", path_of(*name), _creating(place, *empty, "string")),
        server.ask("POST", "/v1/shop/namespaces/db/views", view),
    ]
    assert 404 == server.ask("GET", path_of(*name)).status
    before = server.ask("POST", tables, plain).json
    changes = (
        {"action": "set-properties", "updates": {"write.metadata.path": place}},
        {"action": "set-location", "location": place},
    )
    failed += [server.ask("POST", path_of(*name), {"updates": [update]}) for update in changes]
    assert before["metadata-location"] == server.ask("GET", path_of(*name)).json["metadata-location"]
    assert [status] * 5 == [answer.error[0] for answer in failed]
    assert all(place in answer.error[2] for answer in failed if status == 400)


# -- partition fields without ids ----------------------------------------------------------------------------


def _spec(*columns: tuple[int, str], **more: int) -> dict[str, Any]:
    """Return a spec as iceberg-rust sends it."""
    return {"fields": [{"source-id": i, "transform": "identity", "name": name, **more} for i, name in columns]}


def _partitioning(server: Server, table: Name, *specs: dict[str, Any]) -> list[list[tuple[str, int]]]:
    """Give *table* these specs; return the names and ids of the fields of all specs that it has then."""
    changes = [{"action": "add-spec", "spec": spec} for spec in specs]
    updates = [*changes, {"action": "set-default-spec", "spec-id": -1}]
    metadata = server.ask("POST", path_of(*table), {"requirements": [], "updates": updates}).json["metadata"]
    return [[(each["name"], each["field-id"]) for each in spec["fields"]] for spec in metadata["partition-specs"]]


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_partition_field_without_an_id_gets_the_next_one(server: Server, name: Name, version: str) -> None:
    """An equal field has one id, in whatever spec."""
    body = {"name": name[1], "schema": SCHEMA.model_dump(mode="json"), "partition-spec": _spec((1, "id"), (2, "s"))}
    made = server.ask("POST", "/v1/shop/namespaces/db/tables", {**body, "properties": {"format-version": version}})
    first = [("id", 1000), ("s", 1001)]
    assert [1000, 1001] == [each["field-id"] for each in made.json["metadata"]["partition-specs"][0]["fields"]]
    second, third = [("t", 1002), ("s", 1001)], [("u", 1003), ("id", 1000)]
    specs = (_spec((2, "t"), (2, "s")), _spec((2, "u"), (1, "id")), _spec((1, "id"), (2, "s")))
    assert [first, second, third] == _partitioning(server, name, *specs)
    assert [first, second, third, [("v", 1007)], [("w", 1008)]] == _partitioning(
        server, name, _spec((1, "v"), **{"field-id": 1007}), _spec((1, "w"))
    )


def test_a_table_that_is_created_in_steps_numbers_its_partition_fields(server: Server, name: Name) -> None:
    body = {"name": name[1], "schema": SCHEMA.model_dump(mode="json"), "stage-create": True}
    staged = server.ask("POST", "/v1/shop/namespaces/db/tables", body).json["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": _spec((1, "id"), (2, "s"))},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
    ]
    creation = {"requirements": [{"type": "assert-create"}], "updates": updates}
    made = server.ask("POST", path_of(*name), creation).json["metadata"]
    assert [1000, 1001] == [each["field-id"] for each in made["partition-specs"][0]["fields"]]
    assert 1001 == made["last-partition-id"]


@pytest.mark.parametrize("spec", [None, [], {"fields": {}}, {"fields": [1]}, {"fields": [{}]}], ids=repr)
def test_what_is_no_spec_is_malformed(server: Server, table: Any, spec: Any) -> None:
    change = {"requirements": [], "updates": [{"action": "add-spec", "spec": spec}]}
    assert (400, "BadRequestException") == server.ask("POST", path_of(*table.name()), change).error[:2]


def test_a_failed_requirement_is_a_conflict_that_begins_with_javas_words(server: Server, table: Any) -> None:
    requirement = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}
    answer = server.ask("POST", path_of(*table.name()), {"requirements": [requirement], "updates": []})
    status, kind, message = answer.error
    assert (409, "CommitFailedException") == (status, kind)
    assert message.startswith("Requirement failed: branch main has changed: expected id 1 != ")
    assert "request_id=" in message


def test_a_namespace_that_holds_something_is_not_dropped(server: Server, client: RestCatalog, table: Any) -> None:
    assert (409, "NamespaceNotEmptyException") == server.ask("DELETE", "/v1/shop/namespaces/db").error[:2]
    client.create_namespace(("above", "below"))
    assert (409, "NamespaceNotEmptyException") == server.ask("DELETE", "/v1/shop/namespaces/above").error[:2]


def test_a_method_that_is_not_served_names_those_that_are(server: Server) -> None:
    answer = server.ask("PATCH", path_of("db", "t"))
    assert (405, "DELETE, GET, HEAD, POST") == (answer.status, answer.headers["allow"])


def test_metrics_are_taken(server: Server, table: Any) -> None:
    assert 204 == server.ask("POST", f"{path_of(*table.name())}/metrics", {"report-type": "scan-report"}).status


def test_a_body_that_is_too_long_is_refused_before_it_is_read_whole(server: Server) -> None:
    assert 413 == server.ask("POST", "/v1/shop/namespaces", b" " * (65 * 1024 * 1024)).status
