"""The thin shell: ASGI in front of threads, under uvicorn.

Commits block, for as long as a table's latch is held by others. So each request is answered in a thread of a pool; the
event loop reads and writes sockets alone. What the threads can't begin soon is refused, not queued without end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import uvicorn

from commit_coord.errors import ConfigError
from commit_coord.rest.errors import BodyTimeout, BodyTooLarge, Overloaded, error_answer
from commit_coord.rest.processes import run_processes
from commit_coord.rest.routes import Api
from commit_coord.rest.warehouses import Warehouses
from commit_coord.rest.wire import Answer, Request

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MAX_BODY_BYTES = 64 * 1024 * 1024
_BACKLOG = 2048
_WAITING_PER_THREAD = 16
"""Requests for which a thread may be waited; more are refused."""
_BODY_TIMEOUT_S = 30
"""How long the body of a request may take; also how long the end waits for one that never comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How a server is started.

    Args:
        catalogs: In PyIceberg's configuration; the first one is the default.
        host: Where it listens.
        port: Likewise; 0 takes a free one.
        processes: How many serve the port.
        threads: Of each process; so many requests are carried out at once.
    """

    catalogs: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8181
    processes: int = 1
    threads: int = 32


class Application:
    """An ASGI application that serves catalogs. It can be pickled until it is started.

    Args:
        serving: What to serve.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        # The threads that do not wait serve those for which the others wait.
        self._warehouses = Warehouses(serving.catalogs, most_waiting=serving.threads // 2)
        self._api = Api(self._warehouses)
        self._running = 0
        self._stopping = False
        self._threads: ThreadPoolExecutor | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection, or the life of the process."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                answer = await self._answer(scope, receive)
            except _Disconnected:
                return  # nobody is there to be answered, and half a request is none
            await _respond(answer, send, with_body=scope["method"] != "HEAD")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await asyncio.to_thread(self.start)
        except Exception as error:  # noqa: BLE001 - uvicorn ends the process
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await asyncio.to_thread(self.end)
        await send({"type": "lifespan.shutdown.complete"})

    def start(self) -> None:
        """Open the catalogs."""
        self._warehouses.open()
        self._threads = ThreadPoolExecutor(self._serving.threads, thread_name_prefix="request")

    def answer(self, request: Request) -> Answer:
        """Return the answer to *request*; called in one of the threads."""
        return self._api.answer(request)

    def stop(self) -> None:
        """Refuse what has not begun; call it when no connection is taken any more."""
        self._stopping = True

    def end(self) -> None:
        """Let what runs finish, then give back every lock."""
        assert self._threads is not None, "it was started"
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._warehouses.close()

    async def _answer(self, scope: Message, receive: Receive) -> Answer:
        assert self._threads is not None, "uvicorn serves nothing before the start is complete"
        limit = self._serving.threads * (1 + _WAITING_PER_THREAD)
        if self._running >= limit:
            return error_answer(Overloaded(f"{limit} requests are in work or wait; try again"))
        self._running += 1
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                request = await _request(scope, receive)
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._begun, request)
        except TimeoutError:
            return error_answer(BodyTimeout(f"The body of the request did not come within {_BODY_TIMEOUT_S} s"))
        except BodyTooLarge as error:
            return error_answer(error)
        finally:
            self._running -= 1

    def _begun(self, request: Request) -> Answer:
        if self._stopping:
            return error_answer(Overloaded("the server is stopping; ask another one, or this one when it is back"))
        return self.answer(request)


class _Disconnected(Exception):
    """The client went away before its request had come in whole."""


async def _request(scope: Message, receive: Receive) -> Request:
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > _MAX_BODY_BYTES:
            raise BodyTooLarge(f"The body of a request may have {_MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
        more = message.get("more_body", False)
    return Request(
        method=scope["method"],
        path=scope["raw_path"].decode("latin-1"),
        query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body=b"".join(chunks),
    )


async def _respond(answer: Answer, send: Send, *, with_body: bool) -> None:
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers.items()]
    if answer.status not in (204, 304):
        headers.append((b"content-type", answer.content_type.encode()))
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if with_body else b""})


def check(serving: Serving) -> None:
    """Return if a server can be started so; everything is opened for it, and closed again.

    Raises:
        ConfigError: The address is reachable from other machines, a catalog can't be opened, or one has a lock manager
            that serves one process alone.
    """
    if not _is_loopback(serving.host):
        raise ConfigError(
            "without authentication the server listens on loopback only: whoever reaches it may drop tables",
            key="--host",
            value=serving.host,
            accepted="127.0.0.1, ::1, localhost",
        )
    warehouses = Warehouses(serving.catalogs)
    warehouses.open()
    try:
        for name in serving.catalogs:
            settings = warehouses.chosen(name).catalog.settings
            if serving.processes > 1 and settings.lock_impl == "memory":
                raise ConfigError(
                    "the `memory` lock manager serves one process alone",
                    catalog=name,
                    key="--processes",
                    value=serving.processes,
                    accepted="1, or lock-impl=lease",
                )
    finally:
        warehouses.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(serving: Serving, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C: then finish what runs, take nothing new, and leave no lock.

    Args:
        serving: Where and what; :func:`check` has found no fault.
        ready: Called with the URL once the port is open.

    Raises:
        OSError: The port is taken.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    listening = _listening(serving)
    host, port = listening.getsockname()[:2]
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    if serving.processes == 1:
        _work(serving, listening)
    else:
        run_processes(serving.processes, partial(_work, serving, listening))


def _work(serving: Serving, listening: socket.socket) -> None:
    """Serve *listening* until SIGTERM or Ctrl-C."""
    config = uvicorn.Config(
        Application(serving),
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    # uvicorn raises SIGTERM again when it has ended; to end by it is what was asked for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Tells its application that it stops before it waits for what runs."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, and finish what runs."""
        application = self.config.app
        assert isinstance(application, Application), "it was made with one"
        application.stop()
        await super().shutdown(sockets)


def _listening(serving: Serving) -> socket.socket:
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((serving.host, serving.port))
        listening.listen(_BACKLOG)  # from now on clients may come; they are answered when the catalogs are open
    except OSError:
        listening.close()
        raise
    return listening
