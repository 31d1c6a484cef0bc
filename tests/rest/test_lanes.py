"""One table that is stuck, or several that are busy, take no thread from reads, tokens and other tables."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.model import LockMode, Resource
from commit_coord.rest import Serving
from commit_coord.rest.lanes import Lanes, Work, WorkKind
from commit_coord.rest.settings import Authentication, Limits, OAuth
from commit_coord.rest.wire import MOST_TABLES, Request
from commit_coord.testing.contract import until
from tests.limits import PATIENCE
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA, Response, path_of
from tests.rest.lost_replies import new_key

_SECRET = "secret-of-spark"
_SET = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
_TABLES = "/v1/shop/namespaces/db/tables"

Ask = tuple[str, str, Any]
InTheWay = Callable[[CoordinatedCatalog], AbstractContextManager[object]]


def _latch(catalog: CoordinatedCatalog) -> AbstractContextManager[object]:
    """Hold what commits to ``a`` wait for."""
    return catalog.coordinator.latch(("db", "a"), statement="in the way")


def _lock(catalog: CoordinatedCatalog, *tables: str) -> AbstractContextManager[object]:
    """Hold what a drop of *tables* waits for."""
    locks = {Resource.table(("db", table)): LockMode.SHARED for table in tables or ("a",)}
    return catalog.lock_operation(locks, statement="in the way")


_NAMES = [{"namespace": ["db"], "name": name} for name in "ac"]
_STUCK: dict[str, tuple[InTheWay, Ask]] = {
    "commits": (_latch, ("POST", path_of("db", "a"), _SET)),
    "transactions": (
        _latch,
        ("POST", "/v1/shop/transactions/commit", {"table-changes": [{"identifier": _NAMES[0], **_SET}]}),
    ),
    "drops": (_lock, ("DELETE", path_of("db", "a"), None)),
    "purges": (_lock, ("DELETE", path_of("db", "a") + "?purgeRequested=true", None)),
    "renames": (
        _lock,
        ("POST", "/v1/shop/tables/rename", {"source": _NAMES[0], "destination": _NAMES[1]}),
    ),
}


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., InProcess]]:
    """Starts a server with the tables ``a`` and ``b`` in the namespace ``db``."""
    configure(monkeypatch, tmp_path, "shop")
    # Nobody gives up while the test looks, and a turn is kept for as long as a client on a busy machine needs.
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__LOCK__ACQUIRE_TIMEOUT_MS", "600000")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__COMMIT__RESERVED_TURN_MS", "120000")
    digest = hashlib.sha256(_SECRET.encode()).hexdigest()
    clients = tmp_path / "clients.toml"
    clients.write_text(f'[spark]\ntoken-sha256 = "{digest}"\ngrants = {{ shop = "administer" }}\n')
    started = []

    def start(**settings: Any) -> InProcess:
        who = Authentication(clients=clients, oauth=OAuth())
        server = InProcess(Serving(catalogs=("shop",), authentication=who, **settings))
        started.append(server.__enter__())
        schema = json.loads(SCHEMA.model_dump_json())
        assert 200 == server.ask("POST", "/v1/shop/namespaces", {"namespace": ["db"]}, token=_SECRET).status
        for name in "ab":
            assert 200 == server.ask("POST", _TABLES, {"name": name, "schema": schema}, token=_SECRET).status
        return server

    yield start
    for server in started:
        server.__exit__()


def _catalog(server: InProcess) -> CoordinatedCatalog:
    return server.catalog


async def _waits(catalog: CoordinatedCatalog, *tables: str) -> None:
    """Return when a request waits for each of *tables*, in addition to the one that blocks it."""
    for table in tables:
        resource = Resource.table(("db", table))
        await asyncio.to_thread(until, lambda: len(catalog.show_locks(resource)) > 1, "a client waits")  # noqa: B023


@pytest.mark.parametrize("threads", [2, 32])
@pytest.mark.parametrize("what", _STUCK)
def test_while_one_table_is_stuck_all_else_is_answered(
    serve: Callable[..., InProcess], what: str, threads: int
) -> None:
    server = serve(threads=threads)
    in_the_way, (method, path, document) = _STUCK[what]
    credentials = f"grant_type=client_credentials&client_id=spark&client_secret={_SECRET}".encode()
    others: list[Ask] = [
        ("GET", path_of("db", "b"), None),
        ("GET", path_of("db", "a"), None),
        ("POST", path_of("db", "b"), _SET),
        ("GET", "/v1/config", None),
        ("GET", _TABLES, None),
    ]

    async def ask_all() -> list[Response]:
        stuck = [asyncio.ensure_future(server.asked(method, path, document, token=_SECRET)) for _ in range(64)]
        try:
            await _waits(_catalog(server), "a")
            async with asyncio.timeout(PATIENCE):
                assert 200 == (await server.asked("POST", "/v1/oauth/tokens", credentials)).status
                for other in others:
                    assert 200 == (await server.asked(*other, token=_SECRET)).status, other
            assert not any(each.done() for each in stuck)
        finally:
            held.__exit__(None, None, None)
        return list(await asyncio.gather(*stuck))

    held = in_the_way(_catalog(server))
    held.__enter__()
    statuses = {answer.status for answer in server.run(ask_all())}
    assert statuses & {200, 204}
    assert statuses <= {200, 204, 404, 409}


@pytest.mark.parametrize("company", ["alone", "with drops that wait"])
def test_of_two_tables_with_many_undeclared_clients_each_one_needs_two_tries(
    serve: Callable[..., InProcess], company: str
) -> None:
    server, numbers = serve(), itertools.count(1)
    locations = {
        name: server.ask("GET", path_of("db", name), token=_SECRET).json["metadata"]["location"] for name in "ab"
    }

    async def append(table: str) -> int:
        """Append as a client of another engine does it, and return how many tries that took."""
        snapshot_id = next(numbers)
        for tries in itertools.count(1):
            metadata = (await server.asked("GET", path_of("db", table), token=_SECRET)).json["metadata"]
            parent = metadata["refs"]["main"]["snapshot-id"] if "main" in metadata.get("refs", {}) else None
            snapshot = {
                "snapshot-id": snapshot_id,
                **({} if parent is None else {"parent-snapshot-id": parent}),
                "sequence-number": metadata["last-sequence-number"] + 1,
                "timestamp-ms": metadata["last-updated-ms"],
                "manifest-list": f"{locations[table]}/metadata/snap-{snapshot_id}.avro",
                "summary": {"operation": "append"},
                "schema-id": 0,
            }
            ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
            document = {
                "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
                "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref],
            }
            answer = await server.asked("POST", path_of("db", table), document, token=_SECRET)
            assert answer.status in (200, 409), answer.body
            if answer.status == 200:
                return tries
        raise AssertionError

    async def all_of_them() -> list[int]:
        drops = []
        if company != "alone":
            ask = [("DELETE", path_of("db", table)) for table in "ab" for _ in range(20)]
            drops = [asyncio.ensure_future(server.asked(*each, token=_SECRET)) for each in ask]
        try:
            if drops:
                await _waits(_catalog(server), "a", "b")
            async with asyncio.timeout(PATIENCE):
                tries = await asyncio.gather(*(append(table) for _ in range(20) for table in "ab"))
            assert not any(drop.done() for drop in drops)
        finally:
            held.__exit__(None, None, None)
        assert {each.status for each in await asyncio.gather(*drops)} <= {204, 404}
        return tries

    held = _lock(_catalog(server), "a", "b")
    held.__enter__()
    tries = server.run(all_of_them())
    assert 40 == len(tries)
    assert max(tries) <= 2, tries


def test_who_waits_for_a_thread_is_refused_when_the_server_stops(serve: Callable[..., InProcess]) -> None:
    server = serve(threads=1)

    async def ask_all() -> list[int]:
        asked = [asyncio.ensure_future(server.asked("POST", path_of("db", "a"), _SET, token=_SECRET)) for _ in range(3)]
        try:
            await _waits(_catalog(server), "a")
            server.application.stop()
            async with asyncio.timeout(PATIENCE):
                refused = [(await each).status for each in asked[1:]]
            assert not asked[0].done()
        finally:
            held.__exit__(None, None, None)
        return [(await asked[0]).status, *refused]

    held = _latch(_catalog(server))
    held.__enter__()
    assert [200, 429, 429] == server.run(ask_all())


def test_the_changes_of_a_few_tables_leave_room_for_reads(serve: Callable[..., InProcess]) -> None:
    server = serve(threads=2, limits=Limits(max_requests=16))

    async def ask_all() -> list[int]:
        asked = [
            asyncio.ensure_future(server.asked("POST", path_of("db", "a"), _SET, token=_SECRET)) for _ in range(20)
        ]
        try:
            await _waits(_catalog(server), "a")
            async with asyncio.timeout(PATIENCE):
                assert 200 == (await server.asked("GET", path_of("db", "a"), token=_SECRET)).status
                assert 200 == (await server.asked("POST", path_of("db", "b"), _SET, token=_SECRET)).status
        finally:
            held.__exit__(None, None, None)
        return [(await each).status for each in asked]

    held = _latch(_catalog(server))
    held.__enter__()
    statuses = server.run(ask_all())
    assert {200, 429} == set(statuses)
    assert 8 == statuses.count(200)


def test_a_request_that_will_be_refused_takes_no_place_from_those_who_may(
    tmp_path: Path, serve: Callable[..., InProcess]
) -> None:
    """Whether its sender may do it shows only in the body, or in a thread: the head alone does not refuse it."""
    server = serve()
    clients = tmp_path / "clients.toml"
    digest = hashlib.sha256(b"few").hexdigest()
    clients.write_text(f'{clients.read_text()}[few]\ntoken-sha256 = "{digest}"\n')
    assert 403 == server.ask("GET", path_of("db", "a"), token="few").status
    for method, path, document, headers in (
        ("POST", path_of("db", "a"), _SET, {"idempotency-key": new_key()}),
        *((*ask, {}) for what, (_, ask) in _STUCK.items() if what in ("transactions", "renames")),
    ):
        for token, places in ((_SECRET, True), ("few", False)):
            given = {**headers, "authorization": f"Bearer {token}"}
            api = server.application._api
            head = Request(method=method, path=path, headers=given, body=json.dumps(document).encode())
            assert places == bool(api.work(api.admit(*api.find(head))).objects)
        assert 403 == server.ask(method, path, document, headers=headers, token="few").status


def test_a_transaction_of_too_many_tables_is_refused(serve: Callable[..., InProcess]) -> None:
    """All of them would wait in their lines on the event loop."""
    changes = [{"identifier": {"namespace": ["db"], "name": f"t{number}"}, **_SET} for number in range(MOST_TABLES + 1)]
    answer = serve().ask("POST", "/v1/shop/transactions/commit", {"table-changes": changes}, token=_SECRET)
    assert (400, True) == (answer.status, str(MOST_TABLES).encode() in answer.body)


def test_a_long_commit_waits_for_no_thread_of_the_reads(
    serve: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, run = serve(), Lanes.run

    async def without_reads(self: Lanes, work: Work, execute: Callable[[], Any]) -> Any:
        assert work.kind is not WorkKind.READ
        return await run(self, work, execute)

    monkeypatch.setattr(Lanes, "run", without_reads)
    updates = [{"action": "set-properties", "updates": {"a": "x" * 100_000}}]
    assert 200 == server.ask("POST", path_of("db", "a"), {"requirements": [], "updates": updates}, token=_SECRET).status
