"""A server that is stopped: what holds a latch finishes, what waits is refused, and it takes no longer than it may."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.model import Resource
from commit_coord.rest import Serving
from commit_coord.rest.bodies import Bodies
from commit_coord.rest.errors import BodyTimeout, Overloaded
from commit_coord.rest.lanes import Lanes, Work, WorkKind
from commit_coord.rest.turns import Lines
from commit_coord.rest.wire import HttpAnswer, Request
from tests.limits import PATIENCE
from tests.processes import until, until_async
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA, Response, Server, ids, path_of, served

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
        server.catalog.create_namespace("db")
        server.catalog.create_table(("db", "t"), SCHEMA)
        yield server


def test_a_commit_that_holds_the_latch_is_finished_and_one_behind_it_is_refused(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, swapping = threading.Event(), threading.Event()
    swap = CoordinatedSqlCatalog.swap

    def slow(*given: object) -> object:
        swapping.set()
        go_on.wait(PATIENCE)
        return swap(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(CoordinatedSqlCatalog, "swap", slow)

    before = server.in_work

    async def ask_all() -> tuple[int, int, int]:
        first = asyncio.ensure_future(server.asked("POST", path_of("db", "t"), _SET))
        await asyncio.to_thread(swapping.wait, 60)
        second = asyncio.ensure_future(server.asked("POST", path_of("db", "t"), _SET))
        third = asyncio.ensure_future(server.asked("POST", path_of("db", "t"), _SET))
        await until_async(lambda: server.in_work == before + 3, "all of them have come")
        server.application.stop()
        refused = await second
        go_on.set()
        return (await first).status, refused.status, (await third).status

    assert (200, 429, 429) == server.run(ask_all())


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

    server.run(ask())
    assert 429 == sent[0]["status"]


def test_a_commit_that_waits_for_its_turn_is_refused_and_a_refusal_is_not_held_back() -> None:
    async def stopped_meanwhile() -> list[HttpAnswer | BaseException]:
        lines, lanes, go_on = Lines(SYSTEM_CLOCK, reserved_ms=600_000, most_waiting=10), Lanes(4), asyncio.Event()

        async def runs() -> HttpAnswer:
            await go_on.wait()
            return HttpAnswer(status=200)

        async def refused() -> HttpAnswer:
            return HttpAnswer(status=409, head_moved=True)

        def commit(writer: int, land: Callable[[], Awaitable[HttpAnswer]]) -> asyncio.Future[HttpAnswer]:
            return asyncio.ensure_future(lines.commit([("db", "t")], frozenset({writer}), land))

        running = commit(1, runs)
        held_back = commit(2, refused)
        while len(lines._turns._line) < 1:  # noqa: ASYNC110 - the queue tells nobody
            await asyncio.sleep(0)
        waiting = commit(3, partial(lanes.run, Work(WorkKind.COMMIT), lambda: HttpAnswer(status=200)))
        while len(lines._turns._line) < 2:  # noqa: ASYNC110 - the queue tells nobody
            await asyncio.sleep(0)
        lanes.stop()
        lines.stop()
        async with asyncio.timeout(60):
            ended = await asyncio.gather(held_back, waiting, return_exceptions=True)
        go_on.set()
        lanes.end()
        return [await running, *ended]

    running, held_back, waiting = asyncio.run(stopped_meanwhile())
    assert isinstance(running, HttpAnswer)
    assert isinstance(held_back, HttpAnswer)
    assert [200, 409] == [running.status, held_back.status]
    assert isinstance(waiting, Overloaded)


def test_a_stop_at_the_moment_at_which_a_body_takes_too_long_stops_the_server() -> None:
    """1. The time limit of a body ends.   2. The server stops.   3. The task of the body notices."""

    async def stopped_at_the_limit() -> Exception | None:
        loop, bodies = asyncio.get_running_loop(), Bodies(max_bytes=9, max_bytes_together=9, timeout_ms=10)
        failed: list[Exception] = []

        def stop() -> None:
            try:
                bodies.stop()
            except RuntimeError as error:
                failed.append(error)

        async def receive() -> dict[str, object]:
            (limit,) = bodies._arriving
            loop.call_at(limit.when() or 0, stop)  # behind the end of the limit, which is in the loop already
            await asyncio.Event().wait()
            raise AssertionError

        with pytest.raises((Overloaded, BodyTimeout)):
            async with bodies.of(Request(method="POST", path="/"), receive):
                pass
        return failed[0] if failed else None

    assert asyncio.run(stopped_at_the_limit()) is None


def test_a_server_that_has_committed_ends_without_hanging_threads() -> None:
    with served() as server:
        client = server.client()
        client.create_namespace("db")
        client.create_table(("db", "t"), SCHEMA).append(ids(1))
        server.end()
        assert "the process ends although threads have not" not in server.said
