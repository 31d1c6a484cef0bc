"""Clients that nobody knows, or that may do nothing, take neither the places nor the memory of those who may."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import REGISTRY

from commit_coord.rest import Serving
from commit_coord.rest.application import Application
from commit_coord.rest.settings import Authentication, Limits, OAuth
from commit_coord.rest.writing import BackgroundWriter
from tests.limits import PATIENCE
from tests.processes import until
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import Server, served

_KNOWN = {"authorization": "Bearer known"}
_HEAD = b"%s HTTP/1.1\r\nhost: 127.0.0.1\r\n"
_CLIENTS = f"""
[known]
token-sha256 = "{hashlib.sha256(b"known").hexdigest()}"
grants = {{ shop = "administer" }}

[powerless]
token-sha256 = "{hashlib.sha256(b"powerless").hexdigest()}"
grants = {{ shop = "read" }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few places and short time limits."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "clients.toml").write_text(_CLIENTS)
    (folder / "serve.toml").write_text(
        """
[limits]
max-requests = 4
head-timeout-ms = 2000

[authentication]
clients = "clients.toml"

[authentication.oauth]
"""
    )
    with served("--config", str(folder / "serve.toml")) as server:
        yield server


def connected(server: Server) -> socket.socket:
    """Return a connection to *server*."""
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname or "", address.port or 0), timeout=120)


def is_served(server: Server) -> bool:
    """Return whether a known client and a probe get their answers."""
    known = server.ask("GET", "/v1/shop/namespaces", headers=_KNOWN).status
    return [200, 200] == [known, server.ask("GET", "/ready").status]


def test_bodies_that_do_not_come_take_nobodys_place(server: Server) -> None:
    with ExitStack() as open_connections:
        for _ in range(40):
            slow = open_connections.enter_context(connected(server))
            slow.sendall(_HEAD % b"POST /v1/oauth/tokens" + b"content-length: 9\r\n\r\ngrant")
        assert is_served(server)
        form = b"grant_type=client_credentials&client_id=known&client_secret=known"
        assert 200 == server.ask("POST", "/v1/oauth/tokens", form).status


@pytest.mark.parametrize(
    "answered, begun",
    [
        (b"", b""),
        (b"", _HEAD % b"GET /health"),
        (_HEAD % b"GET /health" + b"\r\n" + _HEAD % b"GET /health", b""),
        (_HEAD % b"GET /health" + b"\r\n", b"\r\n"),
    ],
    ids=["nothing", "half a head", "half a head behind a request", "a line behind a request"],
)
def test_a_connection_whose_head_does_not_end_is_closed(server: Server, answered: bytes, begun: bytes) -> None:
    with ExitStack() as open_connections:
        slow = [open_connections.enter_context(connected(server)) for _ in range(20)]
        for each in slow:
            if answered:
                each.sendall(answered)
                assert each.recv(65536).startswith(b"HTTP/1.1 200")
            each.sendall(begun)
        assert is_served(server)
        for each in slow:
            assert is_closed(each)


def is_closed(connection: socket.socket) -> bool:
    """Read until the other side closes *connection*."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def test_a_body_that_goes_on_after_the_answer_has_a_time_limit(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text("[limits]\nbody-timeout-ms = 1500\n")
    with served("--config", str(tmp_path / "serve.toml")) as server, connected(server) as connection:
        connection.sendall(_HEAD % b"POST /nowhere" + b"content-length: 1000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(600):
                connection.sendall(b"x")
                time.sleep(0.1)  # the subject: a client that is slow


# -- without sockets -----------------------------------------------------------------------------------------


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """A server without sockets, for few bytes."""
    configure(monkeypatch, tmp_path, "shop")
    (tmp_path / "clients.toml").write_text(_CLIENTS)
    limits = Limits(max_body_bytes=1000, max_bodies_bytes=2000, body_timeout_ms=60_000)
    authentication = Authentication(clients=tmp_path / "clients.toml", oauth=OAuth())
    with InProcess(Serving(catalogs=("shop",), threads=2, limits=limits, authentication=authentication)) as server:
        yield server


async def half_sent(application: Application, path: str, token: str, size: int) -> list[dict[str, Any]]:
    """Send a part of a body and never the rest; return the answer when there is one."""
    sent: list[dict[str, Any]] = []
    parts = iter([{"type": "http.request", "body": b"x" * size, "more_body": True}])

    async def receive() -> Any:
        return next(parts, None) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode())]
    scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "query_string": b"", "headers": headers}
    await application(scope, receive, send)
    return sent


def test_all_bodies_together_have_a_limit_until_their_requests_end(few: InProcess) -> None:
    async def ask_all() -> None:
        path = "/v1/shop/namespaces/db/tables"
        slow = [asyncio.ensure_future(half_sent(few.application, path, "known", 900)) for _ in range(2)]
        await asyncio.sleep(0)
        beyond = await few.asked("POST", path, b" " * 900, token="known")
        assert (429, "1") == (beyond.status, beyond.headers["retry-after"])
        assert "bodies" in beyond.error[2]
        assert 400 == (await few.asked("POST", path, b" " * 100, token="known")).status
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert 400 == (await few.asked("POST", path, b" " * 900, token="known")).status

    few.run(ask_all())


def test_a_client_that_may_not_is_refused_before_its_body_is_read(few: InProcess) -> None:
    async def ask() -> int:
        async with asyncio.timeout(60):
            sent = await half_sent(few.application, "/v1/shop/namespaces/db/tables", "powerless", 10)
        status: int = sent[0]["status"]
        return status

    assert 403 == few.run(ask())


def test_tokens_that_are_asked_for_take_few_threads(few: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commit_coord.rest.application._MAX_OPEN_REQUESTS", 2)
    go_on = threading.Event()
    answer = few.application.answer
    monkeypatch.setattr(few.application, "answer", lambda admitted: (go_on.wait(PATIENCE), answer(admitted))[1])

    async def ask_all() -> list[int]:
        asked = [asyncio.ensure_future(few.asked("POST", "/v1/oauth/tokens", b"")) for _ in range(3)]
        known = asyncio.ensure_future(few.asked("GET", "/v1/config", token="known"))
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        go_on.set()
        assert 200 == (await known).status
        return sorted([(await each).status for each in asked])

    assert [400, 400, 429] == few.run(ask_all())


def test_an_audit_log_that_is_stuck_stops_neither_refusals_nor_probes(
    few: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = few.catalog
    record, go_on = catalog._audit._append, threading.Event()
    recorded: list[dict[str, Any]] = []

    def stuck(lines: Sequence[dict[str, Any]]) -> None:
        go_on.wait(600)
        recorded.extend(lines)
        record(lines)

    monkeypatch.setattr(catalog._audit, "_append", stuck)

    def counted(known: str) -> float:
        return REGISTRY.get_sample_value("commit_coord_access_refused_total", {**labels, "known": known}) or 0.0

    labels = {"catalog": "shop", "lock_manager": catalog.settings.lock_impl}
    before = {known: counted(known) for known in ("true", "false")}

    async def ask_all() -> None:
        async with asyncio.timeout(300):
            for _ in range(800):
                assert 401 == (await few.asked("GET", "/v1/shop/namespaces", token="wrong")).status
            for _ in range(300):
                assert 403 == (await few.asked("DELETE", "/v1/shop/namespaces/none", token="powerless")).status
            assert 200 == (await few.asked("GET", "/ready")).status
            assert 200 == (await few.asked("GET", "/v1/shop/namespaces", token="known")).status

    few.run(ask_all())
    assert not go_on.is_set()
    assert {"true": 300, "false": 800} == {known: counted(known) - before[known] for known in before}
    go_on.set()
    until(lambda: few.application._api.gate.flush(1), "the audit log contains everything")
    others = [line["count"] for line in recorded if line["how"] == "refusals left out"]
    each = [line["how"] for line in recorded if "count" not in line]
    assert {"not authenticated", "access refused"} == set(each)
    assert 1000 <= len(each) < 1100
    assert 1100 == len(each) + sum(others)


def test_an_access_log_that_nobody_reads_stops_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configure(monkeypatch, tmp_path, "shop")
    monkeypatch.setattr("commit_coord.rest.watching._MOST_UNWRITTEN", 10)
    monkeypatch.setattr("commit_coord.rest.application._FLUSH_TIMEOUT_S", 0.1)
    monkeypatch.setattr(BackgroundWriter, "_TELL_EVERY_S", 0.0)
    pipe = tmp_path / "access"
    os.mkfifo(pipe)
    done = threading.Event()
    with InProcess(Serving(catalogs=("shop",), threads=2, access_log=str(pipe))) as server:

        async def ask_all() -> None:
            for _ in range(20):
                assert 200 == (await server.asked("GET", "/health")).status
            done.set()

        asking = threading.Thread(target=lambda: server.run(ask_all()), daemon=True)
        asking.start()
        assert done.wait(PATIENCE)
        asking.join(PATIENCE)
        with pipe.open() as reader:
            assert "/health" == json.loads(reader.readline())["route"]
            until(lambda: "lines were dropped" in caplog.text, "the log says so")
