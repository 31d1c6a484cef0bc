"""A request that is sent again is answered again, and not carried out twice."""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

import commit_coord
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import CommitStateUnknown, LockTimeout
from commit_coord.model import Resource
from commit_coord.rest import tables
from commit_coord.rest.errors import Overloaded, StillRunning, error_answer
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from commit_coord.rest.turns import Lines
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import Answer, Request
from commit_coord.testing.fleet import holds_within
from tests.rest.kit import SCHEMA, Response, Server, ids, path_of, row_ids, served
from tests.rest.lost_replies import appended, new_key

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
def test_a_repeat_is_never_told_that_nothing_was_done_because_a_file_is_gone(
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
        assert "was carried out" in message


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
        **{"lock-impl": request.param, "lock.acquire-timeout-ms": "500", **keeper},
    )
    catalog.create_namespace("db")
    yield Warehouse(
        catalog,
        TableAnswers(lambda location: catalog.file_io({}, location)),
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


def test_a_repeat_that_waits_for_too_long_is_sent_away_and_not_refused(warehouse: Warehouse) -> None:
    keys, begun, ends = Idempotency(wait_s=0.1), threading.Event(), threading.Event()
    request = asks("POST", {"namespace": ["a"]})

    def waits(_: Warehouse, __: Request) -> Answer:
        begun.set()
        ends.wait(30)
        return Answer(status=204)

    first = threading.Thread(target=keys.answer, args=(waits, warehouse, request))
    first.start()
    begun.wait(30)
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


def test_what_ends_in_an_error_of_the_server_is_tried_again(warehouse: Warehouse) -> None:
    keys, request = Idempotency(), asks("POST", {"namespace": ["a"]})
    ends = iter([CommitStateUnknown("nobody knows"), RuntimeError("a bug"), Overloaded("busy")])

    def fails_at_first(_: Warehouse, __: Request) -> Answer:
        if (error := next(ends, None)) is not None:
            raise error
        return Answer(body=b"done")

    for expected in (CommitStateUnknown, RuntimeError, Overloaded):
        with pytest.raises(expected):
            keys.answer(fails_at_first, warehouse, request)
    assert b"done" == keys.answer(fails_at_first, warehouse, request).body
    assert b"done" == keys.answer(fails_at_first, warehouse, request).body
