"""A server that is stopped: what holds a latch finishes, what waits is refused, and it takes no longer than it may."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import ClientStops, CommitConflict
from commit_coord.model import Resource
from commit_coord.rest import Serving
from commit_coord.rest.turns import Lines
from tests.processes import until
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA, Response, Server, path_of, served

_SET = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}


def test_a_stop_waits_neither_for_a_foreign_latch_nor_for_a_client_that_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text("stop-timeout-ms = 10000\n")
    with served("--config", str(tmp_path / "serve.toml")) as server, server.library() as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table(("db", "t"), SCHEMA, properties={"filler": "x" * 8_000_000})
        answers: list[Response] = []
        committing = threading.Thread(target=lambda: answers.append(server.ask("POST", path_of("db", "t"), _SET)))
        with catalog.coordinator.latch(("db", "t"), statement="in the way"), deaf(server) as client:
            client.sendall(f"GET {path_of('db', 't')} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
            assert client.recv(1)
            committing.start()
            until(lambda: len(catalog.show_locks(Resource.table(("db", "t")))) == 2, "the commit waits")
            server.process.send_signal(signal.SIGTERM)
            committing.join()
            assert (429, "1") == (answers[0].status, answers[0].headers["retry-after"])
            assert 0 == server.process.wait(120)  # the latch is still in the way
            assert 1 == len(catalog.locks.locks())
        assert "a" not in table.refresh().properties
        assert [] == list(catalog.locks.locks())


def deaf(server: Server) -> socket.socket:
    """Return a connection of a client that can take in little."""
    address = urlsplit(server.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect((address.hostname, address.port))
    return client


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """A server without sockets, with the table ``t``."""
    configure(monkeypatch, tmp_path, "shop")
    with InProcess(Serving(catalogs=("shop",), threads=2)) as server:
        catalog = next(iter(server.application._warehouses)).catalog
        catalog.create_namespace("db")
        catalog.create_table(("db", "t"), SCHEMA)
        yield server


def test_a_commit_that_holds_the_latch_is_finished_and_one_behind_it_is_refused(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, swapping = threading.Event(), threading.Event()
    swap = CoordinatedSqlCatalog.swap

    def slow(*given: object) -> object:
        swapping.set()
        go_on.wait(60)
        return swap(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(CoordinatedSqlCatalog, "swap", slow)

    async def ask_all() -> tuple[int, int, int]:
        first = asyncio.ensure_future(server.asked("POST", path_of("db", "t"), _SET))
        await asyncio.to_thread(swapping.wait, 60)
        second = asyncio.ensure_future(server.asked("POST", path_of("db", "t"), _SET))
        third = asyncio.ensure_future(server.asked("POST", path_of("db", "t"), _SET))
        await asyncio.sleep(0.5)
        server.application.stop()
        refused = await second
        go_on.set()
        return (await first).status, refused.status, (await third).status

    assert (200, 429, 429) == server._runner.run(ask_all())


def test_an_incomplete_body_is_refused_at_the_stop(server: InProcess) -> None:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def ask() -> None:
        headers = [(b"host", b"127.0.0.1")]
        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": b"/v1/shop/namespaces",
            "query_string": b"",
            "headers": headers,
        }
        asking = asyncio.ensure_future(server.application(scope, receive, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        server.application.stop()
        async with asyncio.timeout(20):
            await asking

    server._runner.run(ask())
    assert 429 == sent[0]["status"]


def test_a_commit_that_waits_for_its_turn_is_refused_and_a_refusal_is_not_held_back() -> None:
    lines = Lines(SYSTEM_CLOCK, reserved_ms=600_000, most_waiting=10)
    table, ran, go_on = ("db", "t"), threading.Event(), threading.Event()
    ended: list[str] = []

    def refused() -> None:
        raise CommitConflict("the head has moved")

    def run() -> None:
        ran.set()
        go_on.wait(60)

    def commit(writer: int, land: object) -> None:
        try:
            lines.commit([table], frozenset({writer}), land)  # type: ignore[arg-type]
        except (ClientStops, CommitConflict) as error:
            ended.append(type(error).__name__)

    running = threading.Thread(target=commit, args=(1, run))
    running.start()
    ran.wait(60)
    held_back = threading.Thread(target=commit, args=(2, refused))
    held_back.start()
    until(lambda: len(lines._turns._line) == 1, "the refusal is held back")
    waiting = threading.Thread(target=commit, args=(3, refused))
    waiting.start()
    until(lambda: len(lines._turns._line) == 2, "the next commit waits")
    lines.stop()
    held_back.join(60)
    waiting.join(60)
    go_on.set()
    running.join(60)
    assert ["ClientStops", "CommitConflict"] == sorted(ended)
