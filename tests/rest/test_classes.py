"""What a client of the server may not do with a table's properties: run code in the server, or send it to a host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import commit_coord
from commit_coord.iceberg.storage import CLASSES
from commit_coord.rest import Serving
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA, Response, ids
from tests.rest.lost_replies import new_key
from tests.rest.test_idempotency import commit_of
from tests.rest.test_views import SELECT
from tests.tripwires import HOSTS, Tripwire, tripwire

_NAMESPACE = "/v1/shop/namespaces/db"
_SCHEMA = SCHEMA.model_dump(mode="json")
_CREATES = {"type": "assert-create"}


@dataclass(frozen=True, slots=True)
class Shop:
    """A server in this process, and its catalog as those see it that use the library."""

    server: InProcess
    library: Any
    trap: Tripwire

    def ask(self, method: str, path: str, document: Any = None) -> Response:
        """Return the answer to a request below the namespace."""
        return self.server.ask(method, f"{_NAMESPACE}{path}", document)

    def create(self, name: str, properties: Any, **more: Any) -> Response:
        """Return the answer to the creation of a table."""
        return self.ask("POST", "/tables", {"name": name, "schema": _SCHEMA, "properties": properties, **more})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A server, and what nobody may touch."""
    configure(monkeypatch, tmp_path, "shop")
    with tripwire(tmp_path, monkeypatch) as trap, InProcess(Serving(catalogs=("shop",), threads=2)) as server:
        assert 200 == server.ask("POST", "/v1/shop/namespaces", {"namespace": ["db"]}).status
        catalog = commit_coord.load_catalog("shop")
        yield Shop(server, catalog, trap)
        catalog.close()


def setting(properties: Any) -> list[dict[str, Any]]:
    """Return the updates that set *properties*."""
    return [{"action": "set-properties", "updates": properties}]


def creating(staged: Any) -> list[dict[str, Any]]:
    """Return the updates that create the table of which *staged* is the metadata."""
    return [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": _SCHEMA},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
    ]


@pytest.mark.parametrize("key", CLASSES)
def test_no_request_gives_a_table_a_class_to_import(shop: Shop, key: str) -> None:
    named = {key: f"{shop.trap.module}.Trap"}
    assert 200 == shop.create("there", {}).status
    staged = shop.create("staged", {}, **{"stage-create": True}).json["metadata"]
    foreign = shop.library.create_table(("db", "foreign"), SCHEMA, properties=named)
    shop.library.drop_table(foreign.name())
    first = creating(staged)
    changes = {"identifier": {"namespace": ["db"], "name": "there"}, "updates": setting(named)}
    answers = [
        shop.create("new", named),
        shop.create("new", named, **{"stage-create": True}),
        shop.ask("POST", "/tables/there", {"requirements": [], "updates": setting(named)}),
        shop.ask("POST", "/tables/staged", {"requirements": [_CREATES], "updates": [*first, *setting(named)]}),
        shop.server.ask("POST", "/v1/shop/transactions/commit", {"table-changes": [{**changes, "requirements": []}]}),
        shop.ask("POST", "/register", {"name": "new", "metadata-location": foreign.metadata_location}),
        shop.ask(
            "POST", "/register", {"name": "there", "metadata-location": foreign.metadata_location, "overwrite": True}
        ),
    ]
    for answer in answers:
        status, kind, message = answer.error
        assert (400, "ValidationException") == (status, kind)
        assert message.startswith("nothing was done: PyIceberg imports the class")
        assert f"key='{key}'" in message
    assert [("db", "there")] == shop.library.list_tables("db")
    assert key not in shop.library.load_table(("db", "there")).properties


def test_the_value_of_the_catalog_itself_may_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, tmp_path, "second")
    same = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    monkeypatch.setenv("PYICEBERG_CATALOG__SECOND__PY_IO_IMPL", same["py-io-impl"])
    with InProcess(Serving(catalogs=("second",), threads=2)) as server:
        assert 200 == server.ask("POST", "/v1/second/namespaces", {"namespace": ["db"]}).status
        body = {"name": "t", "schema": _SCHEMA, "properties": same}
        assert 200 == server.ask("POST", "/v1/second/namespaces/db/tables", body).status


def test_a_commit_that_has_landed_is_known_where_its_class_is_not_allowed_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a 400 the client would delete its files. Only the repeat of the last one has a key."""
    configure(monkeypatch, tmp_path, "second")
    same = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    monkeypatch.setenv("PYICEBERG_CATALOG__SECOND__PY_IO_IMPL", same["py-io-impl"])
    tables, key = "/v1/second/namespaces/db/tables", {"idempotency-key": new_key()}
    with InProcess(Serving(catalogs=("second",), threads=2)) as server:
        server.ask("POST", "/v1/second/namespaces", {"namespace": ["db"]})
        for name in ("there", "other"):
            server.ask("POST", tables, {"name": name, "schema": _SCHEMA})
        staged = server.ask("POST", tables, {"name": "new", "schema": _SCHEMA, "stage-create": True}).json["metadata"]
        with closing(commit_coord.load_catalog("second")) as library:
            commits = [commit_of(library.load_table(("db", name)), 1) for name in ("there", "other")]
        for commit in commits:
            commit["updates"] += setting(same)
        several = {"table-changes": [{"identifier": {"namespace": ["db"], "name": "other"}, **commits[1]}]}
        requests: list[tuple[str, Any, dict[str, str]]] = [
            (f"{tables}/there", commits[0], {}),
            (f"{tables}/new", {"requirements": [_CREATES], "updates": [*creating(staged), *setting(same)]}, {}),
            ("/v1/second/transactions/commit", several, {}),
            (f"{tables}/there", {"requirements": [], "updates": setting(same)}, key),
        ]
        for path, document, headers in requests:
            assert server.ask("POST", path, document, headers=headers).status in (200, 204)
    monkeypatch.delenv("PYICEBERG_CATALOG__SECOND__PY_IO_IMPL")
    with InProcess(Serving(catalogs=("second",), threads=2)) as server:
        for path, document, headers in requests:
            assert server.ask("POST", path, document, headers=headers).status in (200, 204), path
        assert 400 == server.ask("POST", *requests[-1][:2]).status


def test_no_request_runs_what_a_table_names_already(shop: Shop) -> None:
    """Other engines, and earlier versions of this package, have stored such properties."""
    table = shop.library.create_table(("db", "old"), SCHEMA, properties=shop.trap.properties)
    table.append(ids(1))
    assert 200 == shop.ask("GET", "/tables/old").status
    assert 200 == shop.ask("POST", "/tables/old", {"requirements": [], "updates": setting({"a": "1"})}).status
    renaming = {key: {"namespace": ["db"], "name": name} for key, name in (("source", "old"), ("destination", "new"))}
    assert 204 == shop.server.ask("POST", "/v1/shop/tables/rename", renaming).status
    assert 204 == shop.ask("DELETE", "/tables/new?purgeRequested=true").status


def test_a_client_sends_the_server_to_no_host(shop: Shop) -> None:
    hosts = {key: value for key, value in shop.trap.properties.items() if key in HOSTS}
    assert 200 == shop.create("there", hosts).status
    assert 200 == shop.ask("POST", "/tables/there", {"requirements": [], "updates": setting({"a": "1"})}).status
    assert hosts.items() <= shop.ask("GET", "/tables/there").json["metadata"]["properties"].items()
    assert shop.library.load_table(("db", "there")).io.properties == shop.library.properties
    assert 204 == shop.ask("DELETE", "/tables/there?purgeRequested=true").status


def test_a_view_may_have_any_property_and_nobody_imports_it(shop: Shop) -> None:
    version = SELECT.model_dump(mode="json")
    document = {"name": "v", "schema": _SCHEMA, "view-version": version, "properties": shop.trap.properties}
    assert 200 == shop.ask("POST", "/views", document).status
    assert 200 == shop.ask("GET", "/views/v").status
    assert 204 == shop.ask("DELETE", "/views/v").status
