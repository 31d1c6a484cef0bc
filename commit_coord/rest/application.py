"""The ASGI application, which answers requests in threads.

A commit blocks while other writers hold the table's latch. So a pool of threads answers the requests, and the event
loop only reads and writes sockets. If too many requests wait for a thread, more are refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from commit_coord.rest.access import Forbidden, IssuerUnavailable, KeysWanted, NotAuthenticated, Place
from commit_coord.rest.errors import BodyTimeout, BodyTooLarge, Overloaded, error_answer
from commit_coord.rest.gate import Gate
from commit_coord.rest.identities import Identities
from commit_coord.rest.keys import FETCH_S
from commit_coord.rest.needs import NOTHING
from commit_coord.rest.routes import Admitted, Api
from commit_coord.rest.settings import Serving
from commit_coord.rest.tls import SUBJECT
from commit_coord.rest.warehouses import Warehouses
from commit_coord.rest.watching import Exchange, Readiness, Watch, metrics_answer
from commit_coord.rest.wire import Answer, Request, json_answer

logger = logging.getLogger(__name__)

T = TypeVar("T")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_MAX_OPEN_BODY_BYTES = 64 * 1024
"""Largest body of a request to a route that is open to everybody."""
SECRET_BYTES = 32
"""Length of the secret that signs the server's own tokens."""
_READY_TIMEOUT_S = 5
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Application:
    """An ASGI application that serves catalogs.

    Args:
        serving: The settings of the server.
        secret: Signs the server's own tokens; None makes one.
    """

    def __init__(self, serving: Serving, secret: bytes | None = None) -> None:
        self._serving = serving
        self._secret = secret or os.urandom(SECRET_BYTES)
        # Only half of the threads may wait for turns: the others must be free for the commits that have a turn.
        self._warehouses = Warehouses(serving.catalogs, most_waiting=serving.threads // 2)
        self._watch = Watch(serving.access_log)
        self._readiness = Readiness(self._warehouses)
        self._asking: asyncio.Future[Answer] | None = None
        self._running = 0
        self._queued: Counter[tuple[str, ...]] = Counter()
        self._stopping = False
        self._opened: Api | None = None
        self._threads: ThreadPoolExecutor | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request; or handle the start and the end of the process."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

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
        """Open the catalogs.

        Raises:
            ConfigError: A catalog cannot be opened, or a file of the authentication is not valid.
        """
        self._warehouses.open()
        self._watch.attach(self._warehouses)
        self._opened = Api(self._warehouses, identities(self._serving, self._warehouses, self._secret))
        self._threads = ThreadPoolExecutor(self._serving.threads, thread_name_prefix="request")

    @property
    def _api(self) -> Api:
        assert self._opened is not None, "uvicorn serves nothing before the start is complete"
        return self._opened

    def answer(self, admitted: Admitted) -> Answer:
        """Return the answer to a request; called in one of the threads."""
        return self._api.answer(admitted)

    def stop(self) -> None:
        """Refuse requests that have not begun; call it once no new connection is accepted."""
        self._stopping = True

    def end(self) -> None:
        """Wait for the requests that run, then release every lock."""
        assert self._threads is not None, "it was started"
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._warehouses.close()

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        head = _head(scope)
        exchange = Exchange(head.request_id, head.peer, head.method)
        answer = None
        self._watch.began()
        try:
            answer = await self._watched(head, receive, exchange)
            await _respond(answer, head, send)
        except _Disconnected:
            pass  # an incomplete request is not carried out
        finally:
            self._watch.ended(exchange, answer)

    async def _watched(self, head: Request, receive: Receive, exchange: Exchange) -> Answer:
        """Return the answer to a request, also if it is refused before its route is called."""
        caller = None
        try:
            if (own := _OWN_ROUTES.get((head.method, head.path))) is not None:
                exchange.route = head.path
                self._api.gate.refuse_browsers(head)
                return await own(self, head)
            try:
                # First of all, so that a refusal is recorded under its route, and in the catalog that the path names.
                route, head = self._api.find(head)
                _describe(exchange, route.path, head)
            finally:
                self._api.gate.refuse_browsers(head)
            admitted = await self._with_keys(head, partial(self._api.admit, route))
            caller = admitted.caller
            exchange.client = caller.name
            return await self._answer(admitted, receive, exchange)
        except (Forbidden, NotAuthenticated) as error:
            await asyncio.to_thread(self._api.gate.audit, head, caller, error)
            return error_answer(error)
        except _Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - every error is an answer
            return error_answer(error)

    async def _with_keys(self, head: Request, ask: Callable[[Request], T]) -> T:
        """Return the result of *ask*, which identifies the sender; wait for the keys of the issuer if it needs them."""
        try:
            return ask(head)
        except KeysWanted as wanted:
            await asyncio.wait([asyncio.wrap_future(wanted.fetch)], timeout=FETCH_S)
        try:
            return ask(head)
        except KeysWanted:
            raise IssuerUnavailable("the keys of the issuer have not arrived yet; try again") from None

    async def _answer(self, admitted: Admitted, receive: Receive, exchange: Exchange) -> Answer:
        assert self._threads is not None, "uvicorn serves nothing before the start is complete"
        limits = self._serving.limits
        with self._counted():
            most = limits.max_body_bytes if admitted.route.needs is not NOTHING else _MAX_OPEN_BODY_BYTES
            body = await _body(admitted.request, receive, min(most, limits.max_body_bytes), limits.body_timeout_ms)
            whole = dataclasses.replace(admitted, request=dataclasses.replace(admitted.request, body=body))
            with self._queueing(self._api.queues(whole)):
                work = partial(self._begun, whole, exchange, time.perf_counter())
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request until the end of the block.

        Raises:
            Overloaded: The limits allow no more.
        """
        if self._running >= self._serving.max_requests:
            raise Overloaded(f"{self._serving.max_requests} requests run or wait; try again")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    @contextmanager
    def _queueing(self, tables: Set[tuple[str, ...]]) -> Iterator[None]:
        """Count a commit to each of *tables* until the end of the block.

        Raises:
            Overloaded: The limits allow no more.
        """
        most = self._serving.limits.max_commits_per_table
        for table in tables:
            if self._queued[table] >= most:
                raise Overloaded(f"{most} commits to {'.'.join(table[1:])} run or wait; try again")
        self._queued.update(tables)
        try:
            yield
        finally:
            self._queued -= Counter(tables)

    def _begun(self, admitted: Admitted, exchange: Exchange, handed_over: float) -> Answer:
        if self._stopping:
            return error_answer(Overloaded("the server is stopping; ask another one, or this one when it is back"))
        with self._watch.in_thread(exchange, handed_over):
            return self.answer(admitted)

    async def _health(self, head: Request) -> Answer:
        """Answer that the process runs."""
        return json_answer({"alive": True})

    async def _ready(self, head: Request) -> Answer:
        """Answer whether the catalogs answer; one check serves all clients that ask at the same time."""
        if self._stopping:
            return json_answer({"ready": False}, 503)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(asyncio.to_thread(self._readiness.answer))
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                answer = await asyncio.shield(self._asking)
        except TimeoutError:
            return json_answer({"ready": False, "catalogs": "no answer in time"}, 503)
        if self._api.gate.sees_all(head):
            return answer
        return json_answer({"ready": answer.status == 200}, answer.status)  # probes need no names

    async def _metrics(self, head: Request) -> Answer:
        """Answer with the metrics, to any known client."""
        await self._with_keys(head, self._api.gate.caller)
        return await asyncio.to_thread(metrics_answer)


_OWN_ROUTES: dict[tuple[str, str], Callable[[Application, Request], Awaitable[Answer]]] = {
    ("GET", "/health"): Application._health,
    ("GET", "/ready"): Application._ready,
    ("GET", "/metrics"): Application._metrics,
}
"""Routes outside of Iceberg's protocol. They are answered without a thread of the pool."""


def _describe(exchange: Exchange, route: str, request: Request) -> None:
    names = request.names
    exchange.route = route
    exchange.catalog = names.get("prefix", "")
    named = (names.get("namespace"), names.get("table", names.get("view")))
    exchange.table = ".".join(name.replace("\x1f", ".") for name in named if name)


class _Disconnected(Exception):
    """The client disconnected before its request was complete."""


def _head(scope: Message) -> Request:
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    request_id = headers.get("x-request-id", "")
    return Request(
        method=scope["method"],
        path=scope["raw_path"].decode("latin-1"),
        query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
        headers=headers,
        peer=(scope.get("client") or ("",))[0],
        subject=scope.get("state", {}).get(SUBJECT, ""),
        request_id=request_id if _REQUEST_ID.fullmatch(request_id) else str(uuid.uuid4()),
    )


async def _body(head: Request, receive: Receive, max_bytes: int, timeout_ms: int) -> bytes:
    length = head.headers.get("content-length", "")
    too_large = BodyTooLarge(f"The body of this request may have {max_bytes} bytes at most")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    chunks, size, more = [], 0, True
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Disconnected
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > max_bytes:
                    raise too_large
                chunks.append(chunk)
                more = message.get("more_body", False)
    except TimeoutError:
        raise BodyTimeout(f"The body of the request did not arrive within {timeout_ms} ms") from None
    return b"".join(chunks)


async def _respond(answer: Answer, head: Request, send: Send) -> None:
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers.items()]
    headers.append((b"x-request-id", head.request_id.encode()))
    if answer.status not in (204, 304):
        headers.append((b"content-type", answer.content_type.encode()))
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body if head.method != "HEAD" else b""})


def identities(serving: Serving, warehouses: Warehouses, secret: bytes) -> Identities | None:
    """Return what identifies the senders of requests; None if the server has no authentication.

    Raises:
        ConfigError: A file is not valid.
    """
    if serving.authentication is None:
        return None

    def place(catalog: str, namespace: str) -> Place:
        if catalog not in serving.catalogs:
            raise ValueError(f"a grant is for a catalog that is not served; served are: {', '.join(serving.catalogs)}")
        return Gate.place(warehouses.named(catalog), tuple(namespace.split(".")) if namespace else ())

    return Identities(serving.authentication, serving.tls, secret, place)
