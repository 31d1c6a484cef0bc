"""Answers that their clients do not read, or read slowly."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from commit_coord.rest import delivery
from commit_coord.rest.delivery import Delivery
from commit_coord.rest.settings import Limits, Tls
from commit_coord.rest.tls import Protocol, certificates, tls_context
from tests.limits import PATIENCE
from tests.processes import until, until_async
from tests.rest.certificates import Authority

_LONG = 8_000_000
_HEAD = b"GET /%d HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files of TLS are."""
    made = tmp_path_factory.mktemp("delivery")
    Authority("first").sign(made, "server")
    return made


class _Served:
    """A server of its own thread, whose answers are as long as the path says.

    Args:
        tls: Its files; None for plain HTTP.
        limits: Of its connections.
    """

    def __init__(self, tls: Tls | None, limits: Limits) -> None:
        self.working = 0
        """The requests that wait for the end of their answers."""
        current = certificates(tls) if tls is not None else None
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            http=partial(Protocol, limits=limits),  # type: ignore[arg-type] # uvicorn only calls it
            ssl_context_factory=None if tls is None or current is None else lambda _, __: tls_context(tls, current),
            loop="uvloop",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=600,
        )
        self._server = uvicorn.Server(config)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve until the end of the block."""
        self._thread.start()
        try:
            until(lambda: self._server.started, "it serves")
            yield
        finally:
            self._server.force_exit = self._server.should_exit = True
            self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    @property
    def connections(self) -> int:
        """The number of the connections that are open."""
        return len(self._server.server_state.connections)

    def deaf(self) -> socket.socket:
        """Return a connection of a client that can take in little."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE)
        client.connect(self._listening.getsockname())
        return client

    async def _answer(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        self.working += 1
        size = int(scope["path"][1:])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": b"x" * size})
        self.working -= 1


_ASKED = {
    "long": _HEAD % _LONG,
    "short over and over": _HEAD % 300_000 * 100,
    "long over and over": _HEAD % _LONG * 3,
    "a closed one": (_HEAD % _LONG).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
    "an old one": (_HEAD % _LONG).replace(b"1.1", b"1.0"),
    "half a request behind it": _HEAD % _LONG + b"GET / HT",
    "a body behind it": (_HEAD % _LONG).replace(b"\r\n\r\n", b"\r\ncontent-length: 9\r\n\r\n"),
}


@pytest.mark.parametrize("asked", _ASKED.values(), ids=_ASKED)
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_a_client_that_takes_nothing_of_its_answer_is_cut_off(
    folder: Path, caplog: pytest.LogCaptureFixture, is_tls: bool, asked: bytes
) -> None:
    tls = Tls(certificate=folder / "server.pem", key=folder / "server.key") if is_tls else None
    server = _Served(tls, Limits(body_timeout_ms=1000))
    with server.running(), ExitStack() as stack:
        client = stack.enter_context(server.deaf())
        if is_tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            client = stack.enter_context(context.wrap_socket(client))
        client.sendall(asked)
        client.recv(1)
        until(lambda: not server.connections and not server.working, "the connection is closed")
    assert "Exception" not in caplog.text


@asynccontextmanager
async def _connected() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """Yield a transport and the other end of its connection, which can take in little."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        there.connect(listening.getsockname())
        there.setblocking(False)
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, listening.accept()[0])
        async with asyncio.timeout(PATIENCE):
            yield transport, there
        transport.abort()


def test_a_client_that_takes_a_little_now_and_then_is_served_until_it_stops() -> None:
    """The test looks itself, so the machine's speed does not count."""

    async def served() -> None:
        async with _connected() as (transport, client):
            looked, receive = Delivery(transport, 1_000_000), asyncio.get_running_loop().sock_recv
            transport.write(b"x" * _LONG)
            for _ in range(5 * delivery._LOOKS):
                taken = looked._measured()[1]
                while looked._measured()[1] == taken:
                    await receive(client, 4096)
                looked._look()
                assert not transport.is_closing()
            assert looked._measured()[0]
            for _ in range(delivery._LOOKS):
                looked._look()
                assert not transport.is_closing()

            def is_cut_off() -> bool:
                if not transport.is_closing():
                    looked._look()
                return transport.is_closing()

            await until_async(is_cut_off, "its end: its kernel may still have taken something")
            looked.end()
            with pytest.raises(ConnectionError):
                while await receive(client, 4096):
                    pass

    asyncio.run(served())


def test_a_connection_on_which_everything_was_taken_is_not_looked_at_any_more() -> None:
    async def taken() -> None:
        async with _connected() as (transport, _):
            looked = Delivery(transport, 40)
            for _ in range(3):
                transport.write(b"x")
                looked.sent()
                await until_async(lambda: looked._timer is None, "the last look")
                assert not looked._measured()[0]
                assert not transport.is_closing()

    asyncio.run(taken())
