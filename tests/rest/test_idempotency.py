"""A request that is sent again is answered again, and not carried out twice."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.table import Transaction
from pyiceberg.table.update import SetPropertiesUpdate
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

import commit_coord
from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.clock import SYSTEM_CLOCK, SystemClock
from commit_coord.errors import (
    CommitConflict,
    CommitLockFailed,
    CommitStateUnknown,
    LockServiceUnavailable,
    LockTimeout,
)
from commit_coord.locks.none import NoneLockManager
from commit_coord.model import Resource
from commit_coord.rest import Serving, commits, namespaces, tables, transactions, views
from commit_coord.rest.access import Forbidden
from commit_coord.rest.answered import KeyedRequests
from commit_coord.rest.doubts import COMMITS, Handler
from commit_coord.rest.errors import Overloaded, StillRunning, error_answer
from commit_coord.rest.gate import Gate
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from commit_coord.rest.turns import Lines
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import HttpAnswer, MalformedRequest, Request
from commit_coord.testing.fleet import holds_within
from tests.limits import PATIENCE
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA, Response, Server, ids, path_of, row_ids, served
from tests.rest.lost_replies import appended, new_key
from tests.rest.test_views import SELECT
from tests.sent import body_of

Name = tuple[str, str]

NAMESPACES = "/v1/shop/namespaces"
SCHEMA_JSON = SCHEMA.model_dump(mode="json")


def sent(server: Server, method: str, path: str, document: Any = None, *, key: str) -> Response:
    """Return what *server* answers to a request with *key*."""
    return server.ask(method, path, document, {"Idempotency-Key": key})


def forget_the_end(server: Server, key: str) -> None:
    """Have what was answered to *key* be unknown, as if the server had been killed before it could keep that."""
    with sqlite3.connect(server.folder / "catalog.db", timeout=30) as database:
        gone = database.execute("DELETE FROM commit_coord_journal WHERE request_id = ?", (f"{key}:answer",))
        assert 1 == gone.rowcount
    database.close()


def sets(**properties: str) -> dict[str, Any]:
    """Return a commit that sets *properties*."""
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


# -- keys ----------------------------------------------------------------------------------------------------


def test_the_lifetime_of_keys_is_advertised(server: Server) -> None:
    assert "PT1800S" == server.ask("GET", "/v1/config").json["idempotency-key-lifetime"]


@pytest.mark.parametrize(
    "key",
    ["1", str(uuid.UUID(int=7)), str(uuid.UUID(int=7, version=4)), "019b0000000070008000000000000007"],
)
def test_a_key_of_another_form_is_refused(server: Server, key: str) -> None:
    assert 400 == sent(server, "POST", NAMESPACES, {"namespace": ["form"]}, key=key).status
    assert 404 == server.ask("GET", f"{NAMESPACES}/form").status


def test_a_request_that_changes_nothing_takes_no_key(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    key = new_key()
    assert [204, 200, 204] == [
        sent(server, method, path, document, key=key).status
        for method, path, document in (
            ("POST", f"{path_of(*name)}/metrics", {}),
            ("GET", path_of(*name), None),
            ("HEAD", path_of(*name), None),
        )
    ]


def test_a_key_of_another_request_is_refused(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    key = new_key()
    assert 200 == sent(server, "POST", path_of(*name), sets(a="1"), key=key).status
    for method, path, document in (
        ("POST", path_of(*name), sets(a="2")),
        ("POST", path_of("db", "other"), sets(a="1")),
        ("DELETE", path_of(*name), None),
    ):
        assert 422 == sent(server, method, path, document, key=key).status
    assert "1" == client.load_table(name).properties["a"]


# -- commits -------------------------------------------------------------------------------------------------


def test_a_commit_that_is_sent_again_is_answered_again(server: Server, client: RestCatalog, name: Name) -> None:
    table, key = client.create_table(name, SCHEMA), new_key()
    commit = appended(table, "1")
    first = sent(server, "POST", path_of(*name), commit, key=key)
    client.load_table(name).append(ids(2))
    again = sent(server, "POST", path_of(*name), commit, key=key)
    assert (200, first.body, first.headers["etag"]) == (again.status, again.body, again.headers["etag"])
    assert [1, 2] == row_ids(client.load_table(name))


def test_a_commit_is_answered_from_the_tables_history_where_its_answer_was_not_kept(
    server: Server, client: RestCatalog, name: Name
) -> None:
    table, keys = client.create_table(name, SCHEMA), (new_key(), new_key())
    commits = (sets(a="1"), appended(table, "1"))
    for key, commit in zip(keys, commits, strict=True):
        assert 200 == sent(server, "POST", path_of(*name), commit, key=key).status
        forget_the_end(server, key)
    client.load_table(name).append(ids(2))
    server.ask("POST", path_of(*name), sets(a="2"))
    for key, commit in zip(keys, commits, strict=True):
        assert 200 == sent(server, "POST", path_of(*name), commit, key=key).status
    found = client.load_table(name)
    assert [1, 2] == row_ids(found)
    assert "2" == found.properties["a"]
    assert found.metadata.snapshots[0].summary is not None
    assert keys[1] == found.metadata.snapshots[0].summary["commit-coord.request-id"]


def test_a_refused_commit_is_refused_again(server: Server, client: RestCatalog, name: Name) -> None:
    table, key = client.create_table(name, SCHEMA), new_key()
    late = {**sets(a="1"), "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}]}
    assert table.current_snapshot() is None
    first = sent(server, "POST", path_of(*name), late, key=key)
    assert 409 == first.status
    assert first.body == sent(server, "POST", path_of(*name), late, key=key).body


def test_a_repeat_waits_for_the_first_request(server: Server, client: RestCatalog, name: Name) -> None:
    table, key = client.create_table(name, SCHEMA), new_key()
    commit, statuses = appended(table, "1"), []

    def send() -> None:
        statuses.append(sent(server, "POST", path_of(*name), commit, key=key).status)

    senders = [threading.Thread(target=send) for _ in range(3)]
    with server.library() as catalog, catalog.coordinator.latch(name, statement="in the way"):
        for sender in senders:
            sender.start()
        assert holds_within(lambda: len(catalog.show_locks(Resource.table(name))) == 2, 30, every_s=0.05)
    for sender in senders:
        sender.join()
    assert [200, 200, 200] == statuses
    assert [1] == row_ids(client.load_table(name))


def test_a_commit_that_comes_again_without_a_key_is_known_by_its_snapshot(
    server: Server, client: RestCatalog, name: Name
) -> None:
    table = client.create_table(name, SCHEMA)
    commit = appended(table, "1")
    assert 200 == server.ask("POST", path_of(*name), commit).status
    client.load_table(name).append(ids(2))
    (listed,) = [update["snapshot"]["manifest-list"] for update in commit["updates"] if "snapshot" in update]
    kept = Path(listed.removeprefix("file://")).rename(f"{listed.removeprefix('file://')}.away")
    again = server.ask("POST", path_of(*name), commit)
    kept.rename(listed.removeprefix("file://"))
    assert 200 == again.status
    assert again.json == server.ask("GET", path_of(*name)).json
    assert [1, 2] == row_ids(client.load_table(name))


def test_a_table_that_was_made_by_a_commit_is_not_refused_to_its_maker(
    server: Server, client: RestCatalog, name: Name
) -> None:
    staged = server.ask(
        "POST", f"{NAMESPACES}/db/tables", {"name": name[1], "schema": SCHEMA_JSON, "stage-create": True}
    ).json["metadata"]
    updates = [
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
    create = {"requirements": [{"type": "assert-create"}], "updates": updates}
    assert [200, 200] == [server.ask("POST", path_of(*name), create).status for _ in range(2)]
    updates[0]["uuid"] = str(uuid.uuid4())
    assert 409 == server.ask("POST", path_of(*name), create).status


def test_updates_that_never_fit_are_malformed_and_no_conflict(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    update = {"action": "set-current-schema", "schema-id": 77}
    status, kind, message = server.ask("POST", path_of(*name), {"requirements": [], "updates": [update]}).error
    assert (400, "ValidationException") == (status, kind)
    assert message.startswith("Schema with id 77 does not exist")


# -- everything else -----------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["kept", "not kept"])
def twice(request: pytest.FixtureRequest, server: Server) -> Callable[..., list[int]]:
    """Sends a request twice, and does something in between; also where the server was killed before it kept the end."""

    def send(
        method: str, path: str, document: Any = None, *, between: Callable[[], object] = lambda: None
    ) -> list[int]:
        key = new_key()
        first = sent(server, method, path, document, key=key)
        if request.param:
            forget_the_end(server, key)
        between()
        again = sent(server, method, path, document, key=key)
        if not request.param:
            assert first.body == again.body
        return [first.status, again.status]

    return send


def test_a_table_is_made_once(twice: Callable[..., list[int]], client: RestCatalog, name: Name) -> None:
    document = {"name": name[1], "schema": SCHEMA_JSON}
    assert [200, 200] == twice("POST", f"{NAMESPACES}/db/tables", document)
    assert [409, 409] == twice("POST", f"{NAMESPACES}/db/tables", document)
    assert client.table_exists(name)


def test_a_table_is_dropped_once(twice: Callable[..., list[int]], client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    anew = twice("DELETE", path_of(*name), between=lambda: client.create_table(name, SCHEMA).append(ids(1)))
    assert [204, 204] == anew
    assert [1] == row_ids(client.load_table(name))
    assert [204, 204] == twice("DELETE", f"{path_of(*name)}?purgeRequested=true")
    assert [404, 404] == twice("DELETE", path_of(*name))


def test_a_table_is_renamed_once(twice: Callable[..., list[int]], client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    new = (name[0], f"{name[1]}_new")
    ends = [{"namespace": [each[0]], "name": each[1]} for each in (name, new)]
    document = {"source": ends[0], "destination": ends[1]}
    statuses = twice("POST", "/v1/shop/tables/rename", document, between=lambda: client.create_table(name, SCHEMA))
    assert [204, 204] == statuses
    assert client.table_exists(name)
    assert client.table_exists(new)


def test_a_table_is_registered_once(twice: Callable[..., list[int]], client: RestCatalog, name: Name) -> None:
    location = client.create_table(name, SCHEMA).metadata_location
    client.drop_table(name)
    document = {"name": name[1], "metadata-location": location}
    path = f"{NAMESPACES}/db/register"
    assert [200, 200] == twice("POST", path, document)
    back = {**document, "overwrite": True}
    client.load_table(name).append(ids(1))
    assert [200, 200] == twice("POST", path, back, between=lambda: client.load_table(name).append(ids(2)))
    assert [2] == row_ids(client.load_table(name))


def test_a_namespace_is_made_and_dropped_once(
    twice: Callable[..., list[int]], named: Callable[[str], str], client: RestCatalog
) -> None:
    space = named("space")
    document = {"namespace": [space], "properties": {"a": "1"}}
    assert [200, 200] == twice("POST", NAMESPACES, document)
    assert [409, 409] == twice("POST", NAMESPACES, document)
    change = {"removals": ["a"], "updates": {"b": "2"}}
    assert [200, 200] == twice("POST", f"{NAMESPACES}/{space}/properties", change)
    assert [204, 204] == twice("DELETE", f"{NAMESPACES}/{space}")
    assert not client.namespace_exists(space)


def test_a_view_is_made_and_dropped_once(twice: Callable[..., list[int]], named: Callable[[str], str]) -> None:
    view = named("v")
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
        "default-namespace": ["db"],
    }
    document = {"name": view, "schema": SCHEMA_JSON, "view-version": version, "properties": {}}
    assert [200, 200] == twice("POST", f"{NAMESPACES}/db/views", document)
    ends = [{"namespace": ["db"], "name": each} for each in (view, f"{view}_new")]
    assert [204, 204] == twice("POST", "/v1/shop/views/rename", {"source": ends[0], "destination": ends[1]})
    assert [204, 204] == twice("DELETE", f"{NAMESPACES}/db/views/{view}_new")


# -- the file in the answer is gone --------------------------------------------------------------------------

_TABLE, _VIEW = "/v1/{prefix}/namespaces/{namespace}/tables", "/v1/{prefix}/namespaces/{namespace}/views"
_WITH_A_FILE = {
    f"POST {_TABLE}",
    f"POST {_TABLE}/{{table}}",
    "POST /v1/{prefix}/namespaces/{namespace}/register",
    f"POST {_VIEW}",
    f"POST {_VIEW}/{{view}}",
    "POST /v1/{prefix}/namespaces/{namespace}/register-view",
}
"""Routes that answer with a metadata file. What was answered to a key contains only its location."""
_WITHOUT_A_FILE = {
    "POST /v1/{prefix}/namespaces",
    "POST /v1/{prefix}/namespaces/{namespace}/properties",
    "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/views/rename",
    "POST /v1/{prefix}/transactions/commit",
}
_VERSION = {
    "version-id": 1,
    "timestamp-ms": 1,
    "schema-id": 0,
    "summary": {},
    "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
    "default-namespace": ["db"],
}


def test_each_route_that_takes_a_key_is_known_here() -> None:
    routes = {route.endpoint for route in (*SERVED, *VIEWS, *TRANSACTIONS) if route.method == "POST"}
    assert routes - {f"POST {_TABLE}/{{table}}/metrics"} == _WITH_A_FILE | _WITHOUT_A_FILE


class Made:
    """A table or view that a request with a key has made or changed.

    Args:
        server: The server.
        endpoint: The route of the request.
        name: The name of the table or view.
    """

    def __init__(self, server: Server, endpoint: str, name: Name) -> None:
        self.server, self.is_view = server, endpoint.endswith(("view", "views", "{view}"))
        self.below = f"{NAMESPACES}/{name[0]}"
        self.path = f"{self.below}/{'views' if self.is_view else 'tables'}/{name[1]}"
        self.document = {"name": name[1], "schema": SCHEMA_JSON}
        if self.is_view:
            self.document["view-version"] = _VERSION
        self.path_of_request, self.request = self.path.rpartition("/")[0], self.document
        if endpoint.endswith("}"):
            self.create()
            self.path_of_request, self.request = self.path, sets(a="1")
        elif "register" in endpoint:
            location = self.create()
            self.drop()
            self.path_of_request = f"{self.below}/{endpoint.rpartition('/')[2]}"
            self.request = {"name": name[1], "metadata-location": location}

    def create(self) -> str:
        """Create it; return the location of its metadata."""
        location: str = self._done("POST", self.path.rpartition("/")[0], self.document)["metadata-location"]
        return location

    def drop(self) -> None:
        """Drop it; its files stay."""
        assert 204 == self.server.ask("DELETE", self.path).status

    def change(self) -> str:
        """Commit to it; return the location of its metadata."""
        location: str = self._done("POST", self.path, sets(b="2"))["metadata-location"]
        return location

    def _done(self, method: str, path: str, document: Any) -> Any:
        answer = self.server.ask(method, path, document)
        assert 200 == answer.status, answer.body
        return answer.json


@pytest.mark.parametrize("endpoint", sorted(_WITH_A_FILE))
@pytest.mark.parametrize("since", ["changed", "dropped", "another has the name", "only the file is gone"])
def test_a_repeat_never_hears_that_nothing_was_done_because_a_file_is_gone(
    server: Server, name: Name, endpoint: str, since: str
) -> None:
    made, key = Made(server, endpoint, name), new_key()
    first = sent(server, "POST", made.path_of_request, made.request, key=key)
    assert 200 == first.status, first.body
    now = made.change() if since == "changed" else None
    if since in ("dropped", "another has the name"):
        made.drop()
    if since == "another has the name":
        made.create()
    Path(first.json["metadata-location"].removeprefix("file://")).unlink()
    again = sent(server, "POST", made.path_of_request, made.request, key=key)
    if now is not None:  # the protocol allows a newer state
        assert (200, now) == (again.status, again.json["metadata-location"]), again.body
    else:
        status, kind, message = again.error
        assert (500, "CommitStateUnknownException") == (status, kind)
        assert "was executed" in message


def test_another_server_knows_what_the_first_one_answered() -> None:
    with served() as first:
        key = new_key()
        assert 200 == sent(first, "POST", NAMESPACES, {"namespace": ["a"]}, key=key).status
        with Server(first.folder) as second:
            assert 200 == sent(second, "POST", NAMESPACES, {"namespace": ["a"]}, key=key).status
            assert 409 == sent(second, "POST", NAMESPACES, {"namespace": ["a"]}, key=new_key()).status
            assert 422 == sent(second, "POST", NAMESPACES, {"namespace": ["b"]}, key=key).status


def test_a_transaction_is_carried_out_once(server: Server, client: RestCatalog, named: Callable[[str], str]) -> None:
    names, key = [("db", named("one")), ("db", named("two"))], new_key()
    for name in names:
        client.create_table(name, SCHEMA)

    def changes(value: str) -> Any:
        update = {"action": "set-properties", "updates": {"a": value}}
        return {
            "table-changes": [
                {"identifier": {"namespace": [of], "name": name}, "requirements": [], "updates": [update]}
                for of, name in names
            ]
        }

    path = "/v1/shop/transactions/commit"
    assert 204 == sent(server, "POST", path, changes("1"), key=key).status
    assert 204 == sent(server, "POST", path, changes("2"), key=new_key()).status
    forget_the_end(server, key)
    assert 204 == sent(server, "POST", path, changes("1"), key=key).status
    assert ["2", "2"] == [client.load_table(name).properties["a"] for name in names]
    assert 422 == sent(server, "POST", path, changes("3"), key=key).status


# -- in one process ------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "lease", "none", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Warehouse]:
    """A catalog whose lock manager keeps a journal in memory, in its service, or none."""
    keeper = {"lock.uri": request.getfixturevalue("zookeeper").connect_string} if request.param == "zookeeper" else {}
    catalog = commit_coord.load_catalog(
        "shop",
        uri=f"coord+sqlite:///{tmp_path}/catalog.db",
        warehouse=f"file://{tmp_path}",
        **{"lock-impl": request.param, "lock.acquire-timeout-ms": "1000", **keeper},
    )
    assert [] == list(catalog.locks.locks())  # a first session takes longer where the servers have much to do
    catalog.create_namespace("db")
    yield Warehouse(
        catalog,
        TableAnswers(catalog.file_io),
        Lines(SYSTEM_CLOCK, reserved_ms=0, most_waiting=0),
    )
    assert [] == list(catalog.locks.locks())
    catalog.close()


def asks(method: str, document: Any, **names: str) -> Request:
    """Return a request with a key."""
    return Request(
        method=method,
        path=f"/{'/'.join(names.values())}",
        names=names,
        headers={"idempotency-key": new_key()},
        body=json.dumps(document).encode(),
    )


def test_a_process_answers_again_what_it_has_answered(warehouse: Warehouse) -> None:
    keys = Idempotency()
    make = asks("POST", {"name": "t", "schema": SCHEMA_JSON}, namespace="db")
    assert keys.answer(tables.create_table, warehouse, make) == keys.answer(tables.create_table, warehouse, make)
    again = Idempotency()  # of a process that was started anew: the table has the key as its UUID
    assert 200 == again.answer(tables.create_table, warehouse, make).status
    commit, drop = asks("POST", sets(a="1"), namespace="db", table="t"), asks("DELETE", None, namespace="db", table="t")
    assert [200, 200] == [keys.answer(tables.commit_table, warehouse, commit).status for _ in range(2)]
    assert 200 == again.answer(tables.commit_table, warehouse, commit).status
    assert [204, 204] == [keys.answer(tables.drop_table, warehouse, drop).status for _ in range(2)]


def test_keys_are_advertised_where_all_servers_know_them_and_a_restart_forgets_none(warehouse: Warehouse) -> None:
    expected = "PT1800S" if warehouse.catalog.locks.name in ("lease", "zookeeper") else None
    assert expected == Idempotency().lifetime(warehouse)


def test_an_answer_in_the_memory_of_a_process_is_given_again_until_its_time_is_over() -> None:
    class Turned(SystemClock):
        ahead_s = 0.0

        def now(self) -> float:
            return super().now() + self.ahead_s

    clock = Turned()
    answered = KeyedRequests(NoneLockManager(), 60_000, clock)
    request = asks("POST", {"namespace": ["a"]})
    answered.end("key", request, HttpAnswer(status=204))
    assert HttpAnswer(status=204) == answered.answer("key", request)
    clock.ahead_s = 61
    assert answered.answer("key", request) is None


def test_a_repeat_that_waits_for_too_long_is_sent_away_and_not_refused(warehouse: Warehouse) -> None:
    keys, begun, ends = Idempotency(wait_s=0.1), threading.Event(), threading.Event()
    request = asks("POST", {"namespace": ["a"]})

    def waits(_: Warehouse, __: Request) -> HttpAnswer:
        begun.set()
        ends.wait(PATIENCE)
        return HttpAnswer(status=204)

    first = threading.Thread(target=keys.answer, args=(waits, warehouse, request))
    first.start()
    begun.wait(PATIENCE)
    with pytest.raises(StillRunning):
        keys.answer(waits, warehouse, request)
    if warehouse.catalog.locks.guarantees.survives_restart:
        with pytest.raises(LockTimeout):  # another server
            Idempotency(wait_s=0.1).answer(waits, warehouse, request)
    ends.set()
    first.join()
    assert 204 == keys.answer(waits, warehouse, request).status


def test_a_commit_that_got_no_latch_is_sent_again_with_its_key(warehouse: Warehouse) -> None:
    if warehouse.catalog.locks.name == "none":
        pytest.skip("nobody waits for a latch")
    keys = Idempotency()
    warehouse.catalog.create_table(("db", "t"), SCHEMA)
    commit = asks("POST", sets(a="1"), namespace="db", table="t")
    with warehouse.catalog.coordinator.latch(("db", "t"), statement="in the way"):
        thread = ThreadPoolExecutor(1)
        refused = thread.submit(keys.answer, tables.commit_table, warehouse, commit).exception()
        thread.shutdown()
    assert isinstance(refused, StillRunning)
    assert (503, "1") == (error_answer(refused).status, error_answer(refused).headers["retry-after"])
    assert 200 == keys.answer(tables.commit_table, warehouse, commit).status


# -- what happened to the table between two copies of a request ----------------------------------------------


def commit_of(table: Any, number: int) -> dict[str, Any]:
    """Return a commit that appends a row to *table*; its files are written, it is not sent."""
    tx = Transaction(table)
    tx.append(ids(number))
    return body_of(tx)


def both(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls both; it returns what the second one returns."""

    def called(*arguments: Any) -> Any:
        first(*arguments)
        return second(*arguments)

    return called


def _then(first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls both; it returns what the first one returns."""

    def called(*arguments: Any) -> Any:
        result = first(*arguments)
        second(*arguments)
        return result

    return called


def raises(error: Exception) -> Callable[..., Any]:
    """Return a function that raises *error*."""

    def called(*_: Any, **__: Any) -> Any:
        raise error

    return called


def _execute(handler: Handler, warehouse: Warehouse, request: Request, *_: Any) -> None:
    handler(warehouse, request)


def in_a_transaction(commit: dict[str, Any]) -> dict[str, Any]:
    """Return *commit* to the table db.t as a transaction."""
    return {"table-changes": [{"identifier": {"namespace": ["db"], "name": "t"}, **commit}]}


def _replaced(catalog: Any) -> None:
    catalog.rename_table(("db", "t"), ("db", "u"))
    catalog.create_table(("db", "t"), SCHEMA).append(ids(100))


def _damaged(catalog: Any) -> None:
    location = catalog.metadata_location(("db", "t"))
    Path(location.removeprefix("file://")).unlink()
    catalog.coordinator.cache.drop(location)


_HAPPENED: dict[str, Callable[[Any], object]] = {
    "renamed": lambda catalog: catalog.rename_table(("db", "t"), ("db", "u")),
    "dropped": lambda catalog: catalog.drop_table(("db", "t")),
    "replaced": _replaced,
    "damaged": _damaged,
}


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every server be killed before it can keep an answer."""
    monkeypatch.setattr(KeyedRequests, "end", lambda *_: None)


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize("happened", _HAPPENED)
def test_a_repeat_that_does_not_find_its_table_is_unknown_and_not_refused(
    warehouse: Warehouse, happened: str, several: bool
) -> None:
    """After a 4xx the client would delete the files of its commit, which the renamed table uses."""
    keys, commit = Idempotency(), commit_of(warehouse.catalog.create_table(("db", "t"), SCHEMA), 1)
    handler = transactions.commit_transaction if several else tables.commit_table
    request = asks("POST", in_a_transaction(commit) if several else commit, namespace="db", table="t")
    assert keys.answer(handler, warehouse, request).status in (200, 204)
    _HAPPENED[happened](warehouse.catalog)
    with pytest.raises(CommitStateUnknown) as unknown:
        keys.answer(handler, warehouse, request)
    answer = error_answer(unknown.value)
    assert 500 == answer.status
    assert str(request.idempotency_key).encode() in answer.body
    if happened == "replaced":
        assert [100] == row_ids(warehouse.catalog.load_table(("db", "t")))


@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("happened", ["renamed", "replaced"])
def test_a_commit_whose_table_is_taken_away_under_it_is_unknown(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, happened: str
) -> None:
    """The first copy, too, may have a twin at another server."""
    commit = commit_of(warehouse.catalog.create_table(("db", "t"), SCHEMA), 1)
    request = asks("POST", commit, namespace="db", table="t")

    def twin(*_: Any) -> None:
        tables.commit_table(warehouse, request)
        _HAPPENED[happened](warehouse.catalog)

    monkeypatch.setattr(KeyedRequests, "begin", both(KeyedRequests.begin, twin))
    with pytest.raises(CommitStateUnknown):
        Idempotency().answer(tables.commit_table, warehouse, request)


@pytest.mark.parametrize("seed", range(24))
def test_no_live_file_is_deleted_by_a_client_that_sends_its_commit_again(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The oracle is a client as Iceberg Java: after a 4xx it deletes the files of its commit, and only then."""
    chance, catalog, keys = random.Random(seed), warehouse.catalog, Idempotency()
    table = catalog.create_table(("db", "t"), SCHEMA)
    commit = commit_of(table, 1)
    if chance.random() < 0.3:  # a commit that is refused: the table has moved
        table.append(ids(2))
    request = asks("POST", commit, namespace="db", table="t")
    if chance.random() < 0.7:
        monkeypatch.setattr(KeyedRequests, "end", lambda *_: None)
    statuses, may = [], True
    for copy in range(3):
        if copy and (happened := chance.choice((None, "renamed", "dropped", "replaced", "revoked"))) == "revoked":
            may = False
        elif copy and happened is not None and catalog.table_exists(("db", "t")):
            with suppress(TableAlreadyExistsError):
                _HAPPENED[happened](catalog)
        try:
            if not may:
                raise keys.forbidden(Forbidden("no"), tables.commit_table, warehouse, request)
            statuses.append(keys.answer(tables.commit_table, warehouse, request).status)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            statuses.append(error_answer(error).status)
        if 400 <= statuses[-1] < 500:
            for update in commit["updates"]:
                if "snapshot" in update:
                    Path(update["snapshot"]["manifest-list"].removeprefix("file://")).unlink(missing_ok=True)
    found = {name[-1]: row_ids(catalog.load_table(name)) for name in catalog.list_tables("db")}
    assert 1 >= sum(rows.count(1) for rows in found.values()), (statuses, found)


def creation(warehouse: Warehouse, kind: str) -> tuple[Handler, Request]:
    """Return a request with a key that creates the table db.t: the route for it, or a commit."""
    if kind == "plain":
        return tables.create_table, asks("POST", {"name": "t", "schema": SCHEMA_JSON}, namespace="db")
    tx = warehouse.catalog.create_table_transaction(("db", "t"), SCHEMA)
    tx.append(ids(1))
    commit = {**body_of(tx), "requirements": [{"type": "assert-create"}]}
    if kind == "commit":
        return tables.commit_table, asks("POST", commit, namespace="db", table="t")
    return transactions.commit_transaction, asks("POST", in_a_transaction(commit))


SHARING = pytest.mark.parametrize(
    "warehouse", ["memory", "lease", pytest.param("zookeeper", marks=pytest.mark.zookeeper)], indirect=True
)
"""The lock managers that lock and keep a journal; only such serve several servers."""

CREATIONS = pytest.mark.parametrize("kind", ["plain", "commit", "several"])


@CREATIONS
@pytest.mark.parametrize("seed", range(6))
def test_a_creation_with_a_key_makes_one_table(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> None:
    """Of copies that come to two servers at any time, while the table gets another name. A purge must spare the other.

    Lock managers without a journal do not serve several servers.
    """
    chance, catalog = random.Random(seed), warehouse.catalog
    servers = [Idempotency(0.2) for _ in range(2 if catalog.locks.guarantees.journal else 1)]
    handler, request = creation(warehouse, kind)
    begun_on = KeyedRequests.begun_on
    if chance.random() < 0.7:
        monkeypatch.setattr(KeyedRequests, "end", lambda *_: None)

    def send(server: Idempotency) -> None:
        with suppress(Exception):
            server.answer(handler, warehouse, request)

    def twin(*_: Any) -> None:
        monkeypatch.setattr(KeyedRequests, "begun_on", begun_on)
        send(servers[-1])
        happen()

    def happen() -> None:
        happened = chance.choice(("nothing", "renamed", "renamed", "dropped"))
        with suppress(NoSuchTableError, TableAlreadyExistsError, LockTimeout):
            _HAPPENED.get(happened, id)(catalog)

    for _ in range(3):
        if len(servers) > 1 and chance.random() < 0.5:  # both servers look, one lands, and its table gets another name
            monkeypatch.setattr(KeyedRequests, "begun_on", chance.choice((_then(begun_on, twin), both(twin, begun_on))))
        blocked = catalog.coordinator.latch(("db", "t"), statement="in the way") if chance.random() < 0.25 else None
        with ThreadPoolExecutor(1) as client, blocked or nullcontext():
            client.submit(send, servers[0]).result()
        happen()
    made = [catalog.load_table(name) for name in catalog.list_tables("db")]
    assert len({table.metadata.table_uuid for table in made}) == len(made)
    assert 1 >= sum(row_ids(table).count(1) for table in made)


def one_table(warehouse: Warehouse) -> None:
    """Assert that there is one table, under its new name."""
    assert [("db", "u")] == warehouse.catalog.list_tables("db")


@SHARING
@CREATIONS
def test_two_servers_that_see_no_table_make_one(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    handler, request = creation(warehouse, kind)
    begun_on = KeyedRequests.begun_on

    def twin(*_: Any) -> None:
        monkeypatch.setattr(KeyedRequests, "begun_on", begun_on)
        with suppress(Exception):  # it waits for this one, if it may not go on
            Idempotency(0.2).answer(handler, warehouse, request)
        if warehouse.catalog.table_exists(("db", "t")):
            _HAPPENED["renamed"](warehouse.catalog)

    monkeypatch.setattr(KeyedRequests, "begun_on", _then(begun_on, twin))
    with suppress(Exception):
        Idempotency().answer(handler, warehouse, request)
    if warehouse.catalog.table_exists(("db", "t")):
        _HAPPENED["renamed"](warehouse.catalog)
    one_table(warehouse)


@SHARING
@CREATIONS
@pytest.mark.usefixtures("killed")
def test_a_repeat_that_gets_no_latch_does_not_forget_that_a_table_was_made(warehouse: Warehouse, kind: str) -> None:
    (handler, request), keys = creation(warehouse, kind), Idempotency()
    assert keys.answer(handler, warehouse, request).status in (200, 204)
    _HAPPENED["renamed"](warehouse.catalog)
    with (
        warehouse.catalog.coordinator.latch(("db", "t"), statement="in the way"),
        ThreadPoolExecutor(1) as client,
        pytest.raises((CommitStateUnknown, StillRunning)),
    ):
        client.submit(keys.answer, handler, warehouse, request).result()
    with pytest.raises(CommitStateUnknown):
        keys.answer(handler, warehouse, request)
    one_table(warehouse)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    "misfit, status",
    [
        ({"updates": [{"action": "set-current-schema", "schema-id": 77}]}, 400),
        ({"updates": [{"action": "set-default-spec", "spec-id": 77}]}, 400),
        ({"requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}]}, 409),
        ({"requirements": [{"type": "assert-table-uuid", "uuid": str(uuid.UUID(int=7))}]}, 409),
    ],
)
def test_what_does_not_fit_a_creation_refuses_it(
    warehouse: Warehouse, misfit: dict[str, Any], status: int, keyed: bool
) -> None:
    _, request = creation(warehouse, "commit")
    commit = json.loads(request.body)
    request = replace(
        request,
        headers=request.headers if keyed else {},
        body=json.dumps({part: commit[part] + misfit.get(part, []) for part in commit}).encode(),
    )
    keys = Idempotency()
    with pytest.raises((CommitConflict, ValueError)) as refused:
        keys.answer(tables.commit_table, warehouse, request)
    assert status == error_answer(refused.value).status
    if keyed:
        assert status == keys.answer(tables.commit_table, warehouse, request).status
    assert not warehouse.catalog.table_exists(("db", "t"))


@pytest.mark.usefixtures("killed")
def test_a_view_that_was_renamed_and_changed_since_is_not_missing(warehouse: Warehouse) -> None:
    catalog, keys = warehouse.catalog, Idempotency()
    catalog.create_view(("db", "v"), SCHEMA, SELECT)
    ends = [{"namespace": ["db"], "name": name} for name in ("v", "w")]
    request = asks("POST", {"source": ends[0], "destination": ends[1]})
    assert 204 == keys.answer(views.rename_view, warehouse, request).status
    catalog.commit_view(("db", "w"), (), (SetPropertiesUpdate(updates={"a": "1"}),))
    assert 204 == keys.answer(views.rename_view, warehouse, request).status


def _make(catalog: Any, kind: str, name: str) -> str:
    """Create a table or view in db; return its UUID."""
    if kind == "view":
        return str(catalog.create_view(("db", name), SCHEMA, SELECT).metadata.view_uuid)
    return str(catalog.create_table(("db", name), SCHEMA).metadata.table_uuid)


def _uuids(catalog: Any, kind: str) -> dict[str, str]:
    """Return the tables or views in db: the UUID of each name."""
    if kind == "view":
        return {name[1]: str(catalog.load_view(name).metadata.view_uuid) for name in catalog.list_views("db")}
    return {name[1]: str(catalog.load_table(name).metadata.table_uuid) for name in catalog.list_tables("db")}


_RENAMES: dict[str, Handler] = {"table": tables.rename_table, "view": views.rename_view}
RENAMED = pytest.mark.parametrize("kind", _RENAMES)


def _rename(old: str = "t", new: str = "u") -> Request:
    ends = [{"namespace": ["db"], "name": name} for name in (old, new)]
    return asks("POST", {"source": ends[0], "destination": ends[1]})


@pytest.mark.usefixtures("killed")
@RENAMED
def test_a_repeated_rename_spares_what_has_the_old_name_since(warehouse: Warehouse, kind: str) -> None:
    """1. t is renamed to u, and the reply is lost.  2. u is renamed to w.  3. A new t is made.  4. The repeat comes."""
    catalog, keys, request = warehouse.catalog, Idempotency(), _rename()
    moved = _make(catalog, kind, "t")
    assert 204 == keys.answer(_RENAMES[kind], warehouse, request).status
    getattr(catalog, f"rename_{kind}")(("db", "u"), ("db", "w"))
    made = _make(catalog, kind, "t")
    with pytest.raises(CommitStateUnknown):
        keys.answer(_RENAMES[kind], warehouse, request)
    assert {"t": made, "w": moved} == _uuids(catalog, kind)


@RENAMED
def test_a_rename_that_was_paused_spares_what_was_created_since(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    catalog, operating = warehouse.catalog, warehouse.catalog.operating
    _make(catalog, kind, "t")
    made = []

    def pause(*_: Any) -> None:
        monkeypatch.setattr(catalog, "operating", operating)
        getattr(catalog, f"drop_{kind}")(("db", "t"))
        made.append(_make(catalog, kind, "t"))

    monkeypatch.setattr(catalog, "operating", both(pause, operating))
    with pytest.raises((NoSuchTableError, NoSuchViewError)):
        _RENAMES[kind](warehouse, replace(_rename(), headers={}))
    assert {"t": made[0]} == _uuids(catalog, kind)


def test_a_view_whose_metadata_cannot_be_read_can_be_renamed(warehouse: Warehouse) -> None:
    catalog = warehouse.catalog
    for number, headers in enumerate(({}, {"idempotency-key": new_key()})):
        _make(catalog, "view", "t")
        Path(catalog.view_location(("db", "t")).removeprefix("file://")).unlink()
        request = replace(_rename(new=f"u{number}"), headers=headers)
        assert 204 == Idempotency().answer(views.rename_view, warehouse, request).status


def _new_view(warehouse: Warehouse, endpoint: str) -> tuple[Handler, Request]:
    """Return a request that makes the view db.v."""
    if endpoint == "create_view":
        return views.create_view, asks(
            "POST", {"name": "v", "schema": SCHEMA_JSON, "view-version": _VERSION}, namespace="db"
        )
    warehouse.catalog.create_view(("db", "v"), SCHEMA, SELECT)
    location = warehouse.catalog.view_location(("db", "v"))
    warehouse.catalog.drop_view(("db", "v"))
    return views.register_view, asks("POST", {"name": "v", "metadata-location": location}, namespace="db")


NEW_VIEWS = pytest.mark.parametrize("endpoint", ["create_view", "register_view"])


@NEW_VIEWS
def test_a_repeat_is_not_answered_with_the_view_of_another_client(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    catalog, keys = warehouse.catalog, Idempotency()
    handler, request = _new_view(warehouse, endpoint)
    with monkeypatch.context() as patched, pytest.raises(LockTimeout):
        patched.setattr(catalog, endpoint, raises(LockTimeout("busy")))
        keys.answer(handler, warehouse, request)
    made = catalog.create_view(("db", "v"), SCHEMA, SELECT)
    with pytest.raises(ViewAlreadyExistsError):  # the first copy did nothing
        keys.answer(handler, warehouse, request)
    assert made.metadata == catalog.load_view(("db", "v")).metadata


@NEW_VIEWS
@pytest.mark.parametrize("happened", ["nothing", "changed", "got no lock"])
def test_a_repeat_is_answered_with_its_own_view(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, endpoint: str, happened: str
) -> None:
    catalog, keys = warehouse.catalog, Idempotency()
    handler, request = _new_view(warehouse, endpoint)
    with monkeypatch.context() as patched:
        patched.setattr(KeyedRequests, "end", lambda *_: None)
        if happened == "got no lock":
            patched.setattr(catalog, endpoint, raises(LockTimeout("busy")))
            with pytest.raises(LockTimeout):
                keys.answer(handler, warehouse, request)
        else:
            assert 200 == keys.answer(handler, warehouse, request).status
    if happened == "changed":
        catalog.commit_view(("db", "v"), (), (SetPropertiesUpdate(updates={"a": "1"}),))
    if (endpoint, happened) == ("register_view", "changed"):
        with pytest.raises(CommitStateUnknown):
            keys.answer(handler, warehouse, request)
        return
    again = keys.answer(handler, warehouse, request)
    assert (200, catalog.view_location(("db", "v"))) == (again.status, json.loads(again.body)["metadata-location"])


def _commits(catalog: Any, *keys: str) -> list[str]:
    """Set properties of db.t, each in a commit of its own; return where its metadata has been."""
    places = []
    for key in keys:
        with catalog.load_table(("db", "t")).transaction() as transaction:
            transaction.set_properties({key: "1"})
        places.append(catalog.metadata_location(("db", "t")))
    return places


@pytest.mark.parametrize("seed", range(32))
def test_a_repeated_overwrite_of_a_table_loses_no_later_commit(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The first copy registers an older, newer or foreign file, or fails before that; then others commit, or none."""
    chance, catalog, keys = random.Random(seed), warehouse.catalog, Idempotency()
    first = catalog.create_table(("db", "t"), SCHEMA).metadata_location
    limit = {"write.metadata.previous-versions-max": chance.choice(["1", "2", "100"])}
    with catalog.load_table(("db", "t")).transaction() as transaction:
        transaction.set_properties(limit)
    places = [catalog.metadata_location(("db", "t")), *_commits(catalog, "a", "b", "c")]
    foreign = catalog.create_table(("db", "other"), SCHEMA, properties=limit).metadata_location
    base = chance.choice([places[-1], places[1]])
    catalog.register_table(("db", "t"), base, overwrite=True)
    wanted = chance.choice([each for each in (first, *places, foreign) if each != base])
    document = {"name": "t", "metadata-location": wanted, "overwrite": True}
    request, landed, register = asks("POST", document, namespace="db"), chance.random() < 0.5, catalog.register_table

    def killed(*arguments: Any, **options: Any) -> Any:
        if landed:
            register(*arguments, **options)
        raise LockTimeout("killed")

    with monkeypatch.context() as patched, pytest.raises(LockTimeout):
        patched.setattr(catalog, "register_table", killed)
        keys.answer(tables.register_table, warehouse, request)
    later = [f"later{number}" for number in range(chance.choice([0, 0, 1, 2, 4]))]
    _commits(catalog, *later)
    before = catalog.metadata_location(("db", "t"))
    listed = [entry.metadata_file for entry in catalog.load_table(("db", "t")).metadata.metadata_log]
    try:
        keys.answer(tables.register_table, warehouse, request)
    except CommitStateUnknown:
        assert before == catalog.metadata_location(("db", "t"))
        assert later
        assert not landed or wanted not in listed, "it can be told"
    else:
        assert landed or not later, "nothing was done"
        assert catalog.metadata_location(("db", "t")) == (before if landed else wanted)
        assert later == sorted(catalog.load_table(("db", "t")).properties.keys() & set(later))


@pytest.mark.parametrize("is_repeat", [False, True], ids=["first copy", "repeat"])
def test_an_overwrite_of_a_table_loses_no_commit_that_comes_after_its_look(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, is_repeat: bool
) -> None:
    catalog, keys, operating = warehouse.catalog, Idempotency(), warehouse.catalog.operating
    first = catalog.create_table(("db", "t"), SCHEMA).metadata_location
    _commits(catalog, "a")
    document = {"name": "t", "metadata-location": first, "overwrite": True}
    request = asks("POST", document, namespace="db")

    def busy(*_: Any, **__: Any) -> Any:
        raise LockTimeout("busy")

    def after_a_commit(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(catalog, "operating", operating)
        _commits(catalog, "late")
        return operating(*arguments, **options)

    if is_repeat:
        monkeypatch.setattr(catalog, "operating", busy)
        with pytest.raises(LockTimeout):
            keys.answer(tables.register_table, warehouse, request)
    monkeypatch.setattr(catalog, "operating", after_a_commit)
    with pytest.raises((CommitFailedException, CommitStateUnknown)):
        keys.answer(tables.register_table, warehouse, request)
    assert {"a", "late"} <= catalog.load_table(("db", "t")).properties.keys()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_repeated_registration_replaces_no_table_that_was_created_since(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    catalog, keys = warehouse.catalog, Idempotency()
    location = catalog.create_table(("db", "u"), SCHEMA).metadata_location
    document = {"name": "t", "metadata-location": location, "overwrite": overwrite}
    request = asks("POST", document, namespace="db")
    with monkeypatch.context() as patched, pytest.raises(LockTimeout):
        patched.setattr(catalog, "register_table", raises(LockTimeout("busy")))
        keys.answer(tables.register_table, warehouse, request)
    made = catalog.create_table(("db", "t"), SCHEMA).metadata_location
    with pytest.raises(CommitStateUnknown if overwrite else TableAlreadyExistsError):
        keys.answer(tables.register_table, warehouse, request)
    assert made == catalog.metadata_location(("db", "t"))


def test_a_registration_with_a_key_replaces_only_what_it_has_seen(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server is paused after the look, and another one carries the repeat out."""
    catalog = warehouse.catalog
    first = catalog.create_table(("db", "t"), SCHEMA).metadata_location
    _commits(catalog, "a")
    request = asks("POST", {"name": "t", "metadata-location": first, "overwrite": True}, namespace="db")
    monkeypatch.setattr(KeyedRequests, "begin", both(KeyedRequests.begin, lambda *_: _commits(catalog, "later")))
    with pytest.raises(CommitFailedException):
        Idempotency().answer(tables.register_table, warehouse, request)
    assert "later" in catalog.load_table(("db", "t")).properties


def test_every_route_that_commits_is_known_as_one() -> None:
    assert {route.handler for route in (*SERVED, *TRANSACTIONS, *VIEWS) if route.commits} == set(COMMITS)


@SHARING
@CREATIONS
def test_a_creation_that_got_no_latch_is_carried_out_by_its_repeat(warehouse: Warehouse, kind: str) -> None:
    (handler, request), keys = creation(warehouse, kind), Idempotency()
    with warehouse.catalog.coordinator.latch(("db", "t"), statement="in the way"), ThreadPoolExecutor(1) as client:
        for _ in range(2):
            with pytest.raises((CommitLockFailed, StillRunning)) as refused:
                client.submit(keys.answer, handler, warehouse, request).result()
            assert error_answer(refused.value).status == (409 if kind == "plain" else 503)
    assert keys.answer(handler, warehouse, request).status in (200, 204)
    assert warehouse.catalog.table_exists(("db", "t"))


@CREATIONS
def test_a_creation_whose_start_was_kept_without_a_reply_is_carried_out_by_its_repeat(
    warehouse: Warehouse, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (handler, request), keys, begin = creation(warehouse, kind), Idempotency(), KeyedRequests.begin

    def unconfirmed(*arguments: Any) -> None:
        begin(*arguments)
        raise LockServiceUnavailable("the reply was lost")

    with monkeypatch.context() as patch, pytest.raises(LockServiceUnavailable):
        patch.setattr(KeyedRequests, "begin", unconfirmed)
        keys.answer(handler, warehouse, request)
    assert keys.answer(handler, warehouse, request).status in (200, 204)
    assert warehouse.catalog.table_exists(("db", "t"))


@pytest.mark.usefixtures("killed")
def test_only_a_conflict_is_refused_to_a_repeat_too(warehouse: Warehouse) -> None:
    """Any other refusal comes before the look for the first copy, and may not have been there when that was sent."""
    keys = Idempotency()
    missing = asks("POST", sets(a="1"), namespace="db", table="t")
    for expected in (NoSuchTableError, CommitStateUnknown):
        with pytest.raises(expected):
            keys.answer(tables.commit_table, warehouse, missing)
    warehouse.catalog.create_table(("db", "t"), SCHEMA)
    late = {**sets(a="1"), "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}]}
    for handler, document, statuses in (
        (tables.commit_table, late, (409, 409)),
        (tables.commit_table, {"updates": 1}, (400, 500)),
        (transactions.commit_transaction, in_a_transaction(late), (409, 409)),
        (transactions.commit_transaction, {"table-changes": 1}, (400, 400)),  # no server has found its tables
    ):
        request = asks("POST", document, namespace="db", table="t")
        for status in statuses:
            with pytest.raises((CommitConflict, MalformedRequest, CommitStateUnknown)) as refused:
                keys.answer(handler, warehouse, request)
            assert status == error_answer(refused.value).status


@pytest.mark.parametrize("answer_is_kept", [True, False])
def test_a_repeat_whose_sender_may_not_commit_any_more_is_unknown(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, answer_is_kept: bool
) -> None:
    if not answer_is_kept:
        monkeypatch.setattr(KeyedRequests, "end", lambda *_: None)
    keys, commit = Idempotency(), commit_of(warehouse.catalog.create_table(("db", "t"), SCHEMA), 1)
    request, forbidden = asks("POST", commit, namespace="db", table="t"), Forbidden("no")
    assert forbidden is keys.forbidden(forbidden, tables.commit_table, warehouse, request)
    keys.answer(tables.commit_table, warehouse, request)
    assert isinstance(keys.forbidden(forbidden, tables.commit_table, warehouse, request), CommitStateUnknown)
    assert forbidden is keys.forbidden(forbidden, tables.drop_table, warehouse, request)
    other = replace(request, body=b"{}")
    assert forbidden is keys.forbidden(forbidden, tables.commit_table, warehouse, other)


def test_a_repeat_of_a_refused_commit_whose_sender_may_not_commit_any_more_is_forbidden(warehouse: Warehouse) -> None:
    keys, forbidden = Idempotency(), Forbidden("no")
    missing = asks("POST", sets(a="1"), namespace="db", table="t")
    with pytest.raises(NoSuchTableError):
        keys.answer(tables.commit_table, warehouse, missing)
    assert forbidden is keys.forbidden(forbidden, tables.commit_table, warehouse, missing)


def test_a_client_that_lost_its_grants_after_its_commit_gets_no_4xx(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, tmp_path, "shop")
    with InProcess(Serving(catalogs=("shop",))) as server:
        server.ask("POST", NAMESPACES, {"namespace": ["db"]})
        server.ask("POST", f"{NAMESPACES}/db/tables", {"name": "t", "schema": SCHEMA_JSON})
        headers = {"idempotency-key": new_key()}
        assert 200 == server.ask("POST", path_of("db", "t"), sets(a="1"), headers=headers).status

        def refuse(*_: object) -> None:
            raise Forbidden("not any more")

        monkeypatch.setattr(Gate, "check", refuse)
        assert 500 == server.ask("POST", path_of("db", "t"), sets(a="1"), headers=headers).status
        fresh = {"idempotency-key": new_key()}
        assert 403 == server.ask("POST", path_of("db", "t"), sets(a="1"), headers=fresh).status


@pytest.mark.parametrize("purges", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_drop_that_was_paused_spares_a_table_that_was_created_since(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, purges: bool, keyed: bool
) -> None:
    catalog = warehouse.catalog
    catalog.create_table(("db", "t"), SCHEMA)
    drop = replace(asks("DELETE", None, namespace="db", table="t"), query={"purgeRequested": str(purges)})
    operating = catalog.operating

    def pause(*_: Any) -> None:
        monkeypatch.setattr(catalog, "operating", operating)
        catalog.drop_table(("db", "t"))
        catalog.create_table(("db", "t"), SCHEMA).append(ids(1))

    if keyed:
        monkeypatch.setattr(KeyedRequests, "begin", both(KeyedRequests.begin, pause))
        assert 204 == Idempotency().answer(tables.drop_table, warehouse, drop).status  # its own table is gone
    else:
        monkeypatch.setattr(catalog, "operating", both(pause, operating))
        with pytest.raises(NoSuchTableError):
            tables.drop_table(warehouse, replace(drop, headers={}))
    assert [1] == row_ids(catalog.load_table(("db", "t")))


def test_a_table_whose_metadata_cannot_be_read_can_be_dropped(warehouse: Warehouse) -> None:
    for headers in ({}, {"idempotency-key": new_key()}):
        warehouse.catalog.create_table(("db", "t"), SCHEMA)
        _damaged(warehouse.catalog)
        drop = replace(asks("DELETE", None, namespace="db", table="t"), headers=headers)
        assert 204 == Idempotency().answer(tables.drop_table, warehouse, drop).status


def test_a_repeat_is_not_refused_for_what_its_first_copy_did_late(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The server looks.  2. The change of the first copy is carried out.  3. The handler meets it."""
    begin = KeyedRequests.begin
    ends = [{"namespace": ["db"], "name": name} for name in ("t", "u")]
    for handler, request in (
        (tables.create_table, asks("POST", {"name": "t", "schema": SCHEMA_JSON}, namespace="db")),
        (tables.rename_table, asks("POST", {"source": ends[0], "destination": ends[1]})),
        (tables.drop_table, asks("DELETE", None, namespace="db", table="u")),
    ):
        monkeypatch.setattr(KeyedRequests, "begin", both(begin, partial(_execute, handler, warehouse, request)))
        assert Idempotency().answer(handler, warehouse, request).status in (200, 204)


def test_a_namespace_that_another_client_created_meanwhile_is_refused(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asks("POST", {"namespace": ["space"]})
    take = both(KeyedRequests.begin, lambda *_: warehouse.catalog.create_namespace("space"))
    monkeypatch.setattr(KeyedRequests, "begin", take)
    with pytest.raises(NamespaceAlreadyExistsError):
        Idempotency().answer(namespaces.create_namespace, warehouse, request)


@pytest.mark.parametrize(
    "handler, request_",
    [
        (namespaces.create_namespace, lambda: asks("POST", {"namespace": ["new"]})),
        (namespaces.update_namespace, lambda: asks("POST", {"updates": {"a": "1"}}, namespace="db")),
        (namespaces.drop_namespace, lambda: asks("DELETE", None, namespace="db")),
    ],
)
def test_a_change_of_a_namespace_whose_reply_was_lost_is_no_failure(
    warehouse: Warehouse, handler: Handler, request_: Callable[[], Request]
) -> None:
    """Its outcome is unknown; a repeat with the key finds it."""

    def lose(connection: Connection) -> None:
        connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
        raise OperationalError("COMMIT", None, ConnectionError("server closed the connection unexpectedly"))

    request, keys = request_(), Idempotency()
    event.listen(cast("CoordinatedSqlCatalog", warehouse.catalog).engine, "commit", lose, once=True)
    with pytest.raises(CommitStateUnknown) as unknown:
        keys.answer(handler, warehouse, request)
    assert error_answer(unknown.value).status == 500
    assert keys.answer(handler, warehouse, request).status in (200, 204)


def test_metadata_that_is_not_that_of_the_file_is_given_to_nobody_else(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A commit lands in a group, and knows the table as of its own snapshot.  2. The file cannot be read, once."""
    catalog = warehouse.catalog
    table = catalog.create_table(("db", "t"), SCHEMA)
    request = asks("POST", commit_of(table, 1), namespace="db", table="t")
    read = catalog.coordinator.read

    def cut(*arguments: Any) -> Any:
        landed = commits.land(*arguments)
        catalog.coordinator.cache.drop(landed.location)  # where the text of the file is
        monkeypatch.setattr(catalog.coordinator, "read", unreadable)
        return replace(landed, metadata=table.metadata)

    def unreadable(location: str) -> Any:
        monkeypatch.setattr(catalog.coordinator, "read", read)
        raise OSError("busy")

    monkeypatch.setattr(tables, "land", cut)
    answer = tables.commit_table(warehouse, request)
    assert (200, None) == (answer.status, answer.headers.get("etag"))
    assert [] == json.loads(answer.body)["metadata"]["snapshots"]
    loaded = tables.load_table(warehouse, asks("GET", None, namespace="db", table="t"))
    assert 1 == len(json.loads(loaded.body)["metadata"]["snapshots"])
    assert "etag" in loaded.headers


def test_what_ends_in_an_error_of_the_server_is_tried_again(warehouse: Warehouse) -> None:
    keys, request = Idempotency(), asks("POST", {"namespace": ["a"]})
    ends = iter([CommitStateUnknown("nobody knows"), RuntimeError("a bug"), Overloaded("busy")])

    def fails_at_first(_: Warehouse, __: Request) -> HttpAnswer:
        if (error := next(ends, None)) is not None:
            raise error
        return HttpAnswer(body=b"done")

    for expected in (CommitStateUnknown, RuntimeError, Overloaded):
        with pytest.raises(expected):
            keys.answer(fails_at_first, warehouse, request)
    assert b"done" == keys.answer(fails_at_first, warehouse, request).body
    assert b"done" == keys.answer(fails_at_first, warehouse, request).body
