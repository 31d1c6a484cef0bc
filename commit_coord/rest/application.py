"""The ASGI application, which answers requests in threads.

A commit blocks while other writers hold the table's latch. So threads answer the requests, and the event loop only
reads and writes sockets. A request that waits for a thread or for its turn is a future of the event loop. If too many
wait, more are refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from commit_coord.rest.access import Forbidden, GrantPath, IssuerUnavailable, KeysWanted, NotAuthenticated
from commit_coord.rest.bodies import Bodies, Disconnected, Message, Receive
from commit_coord.rest.browsing import Browsing, is_page, route_of
from commit_coord.rest.doubts import Handler
from commit_coord.rest.errors import Overloaded, error_answer, stopping
from commit_coord.rest.files import Reloaded
from commit_coord.rest.gate import Gate
from commit_coord.rest.identities import Identities
from commit_coord.rest.keys import FETCH_S
from commit_coord.rest.lanes import Lanes, Work, WorkKind
from commit_coord.rest.needs import NOTHING
from commit_coord.rest.routes import Admitted, Api
from commit_coord.rest.routing import NoRoute, Route
from commit_coord.rest.settings import Serving
from commit_coord.rest.tls import SUBJECT
from commit_coord.rest.warehouses import Warehouses
from commit_coord.rest.watching import Exchange, Readiness, Watch, metrics_answer
from commit_coord.rest.wire import HttpAnswer, Request, json_answer
from commit_coord.ui.rendering import ROOT

logger = logging.getLogger(__name__)

T = TypeVar("T")

Send = Callable[[Message], Awaitable[None]]

_MAX_OPEN_BODY_BYTES = 64 * 1024
"""Largest body of a request to a route that is open to everybody."""
_MAX_OPEN_BODIES_BYTES = 64 * 1024 * 1024
"""All bodies of these requests together. As many as this allows need more connections than a process usually has."""
_MAX_OPEN_REQUESTS = 16
"""Requests to these routes that run or wait for a thread: strangers get no more of the threads."""
_MAX_LOOP_BYTES = 64 * 1024
"""Longest body that is parsed on the event loop, which serves nobody else meanwhile."""
SECRET_BYTES = 32
"""Length of the secret that signs the server's own tokens."""
_READY_TIMEOUT_S = 5
_REFRESH_EVERY_S = 1.0
"""How often the files of the authentication are looked at."""
_REFUSE_EVERY_S = 0.2
"""How often a server that stops refuses the requests that have begun to wait for a lock."""
_FLUSH_TIMEOUT_S = 2.0
"""How long the end waits for each log."""
_REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Application:
    """An ASGI application that serves catalogs.

    Args:
        serving: The settings of the server.
        secret: Signs the server's own tokens; None makes one.
    """

    def __init__(self, serving: Serving, secret: bytes | None = None, files: Sequence[Reloaded[Any]] = ()) -> None:
        self._serving, self._files = serving, files
        self._secret = secret or os.urandom(SECRET_BYTES)
        self._warehouses = Warehouses(
            serving.catalogs, most_waiting=serving.limits.max_commits_per_table, properties=serving.properties
        )
        self._watch = Watch(serving.access_log)
        self._readiness = Readiness(self._warehouses)
        self._asking: asyncio.Future[HttpAnswer] | None = None
        self._running: Counter[bool] = Counter()
        """The number of requests, to routes that are open to everybody (True) and to others (False)."""
        limits = serving.limits
        self._bodies = {
            False: Bodies(
                max_bytes=limits.max_body_bytes,
                max_bytes_together=serving.max_bodies_bytes,
                timeout_ms=limits.body_timeout_ms,
            ),
            True: Bodies(
                max_bytes=min(_MAX_OPEN_BODY_BYTES, limits.max_body_bytes),
                max_bytes_together=_MAX_OPEN_BODIES_BYTES,
                timeout_ms=limits.body_timeout_ms,
            ),
        }
        self._queued: Counter[tuple[str, ...]] = Counter()
        self._stopping = False
        self.abandoned = False
        """Whether requests run for which nobody waits any more."""
        self._ended = threading.Event()
        self._opened: Api | None = None
        self._browsing: Browsing | None = None
        self._lanes = Lanes(serving.threads)
        self._identities: Identities | None = None
        # Of its own: whatever else is slow, a server that can serve says so.
        self._probing = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        # Of its own, too: a long commit must not wait for the threads of the reads.
        self._parsing = ThreadPoolExecutor(1, thread_name_prefix="parsing")

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
        self._identities = identities(self._serving, self._warehouses, self._secret)
        self._opened = Api(self._warehouses, self._identities)
        if self._serving.ui.enabled:
            self._browsing = Browsing(
                self._serving,
                self._warehouses,
                self._opened.gate,
                self._identities,
                self._secret,
                lambda head: self._with_keys(head, self._api.gate.caller),
                self._bodies[True],
            )
        threading.Thread(target=self._refresh_often, name="files", daemon=True).start()

    def _refresh_often(self) -> None:
        while not self._ended.wait(_REFRESH_EVERY_S):
            try:
                self.refresh()
            except Exception:
                logger.exception("the files of TLS and of the authentication can't be read again")

    def refresh(self) -> None:
        """Read the files of TLS and of the authentication again if they have changed; blocks."""
        for each in self._files:
            each.get()
        if self._identities is not None:
            self._identities.refresh()

    @property
    def _api(self) -> Api:
        assert self._opened is not None, "uvicorn serves nothing before the start is complete"
        return self._opened

    def answer(self, admitted: Admitted) -> HttpAnswer:
        """Return the answer to a request; called in one of the threads."""
        return self._api.answer(admitted)

    def stop(self) -> None:
        """Refuse requests that have not begun, and those that wait for a turn or a lock; what holds a latch goes on.

        Call it on the event loop, once no new connection is accepted.
        """
        self._stopping = True
        for bodies in self._bodies.values():
            bodies.stop()
        self._lanes.stop()
        if self._browsing is not None:
            self._browsing.stop()
        for warehouse in self._warehouses:
            warehouse.lines.stop()
        threading.Thread(target=self._refuse_waits, name="refusing", daemon=True).start()

    def _refuse_waits(self) -> None:
        """Refuse what waits for a lock, until the end.

        Once is not enough: 1. A request has begun to run.   2. The server stops, and this refuses what waits.
        3. The request asks for a latch, and would wait for minutes.
        """
        while not self._ended.wait(_REFUSE_EVERY_S):
            for warehouse in self._warehouses:
                warehouse.catalog.locks.refuse_waits()

    def abandon(self) -> None:
        """Do not wait for the requests that run any more: they have no client now."""
        self.abandoned = True

    def end(self) -> None:
        """Wait for the requests that run, unless they are abandoned; then release every lock, and end the logs."""
        self._lanes.end(wait=not self.abandoned)
        for pool in (self._probing, self._parsing):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._browsing is not None:
            self._browsing.end(wait=not self.abandoned)
        self._ended.set()
        self.flush()
        self._warehouses.close()

    def flush(self) -> None:
        """Wait until the logs contain all requests that have ended; not for long, because a log may be stuck."""
        self._api.gate.flush(_FLUSH_TIMEOUT_S)
        self._watch.flush(_FLUSH_TIMEOUT_S)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        head = _head(scope)
        exchange = Exchange(head.request_id, head.peer, head.method)
        answer = None
        self._watch.began()
        try:
            answer = await self._watched(head, receive, exchange)
            await _respond(answer, head, send)
        except Disconnected:
            pass  # an incomplete request is not carried out
        except asyncio.CancelledError:
            if not self.abandoned:
                raise
        finally:
            self._watch.ended(exchange, answer)

    async def _watched(self, head: Request, receive: Receive, exchange: Exchange) -> HttpAnswer:
        """Return the answer to a request, also if it is refused before its route is called."""
        caller = None
        try:
            if (own := _OWN_ROUTES.get((head.method, head.path))) is not None:
                exchange.route = head.path
                self._api.gate.refuse_browsers(head)
                return await own(self, head)
            if self._browsing is not None and is_page(head.path):
                exchange.route, exchange.catalog = route_of(head.path)
                return await self._browsing.answer(head, receive, partial(setattr, exchange, "client"))
            try:
                # First of all, so that a refusal is recorded under its route, and in the catalog that the path names.
                route, head = self._found(head)
                _describe(exchange, route.path, head)
            finally:
                self._api.gate.refuse_browsers(head)
            admitted = await self._with_keys(head, partial(self._api.admit, route))
            caller = admitted.caller
            exchange.client = caller.name
            self._api.check_head(admitted)
            return await self._answer(admitted, receive, exchange)
        except (Forbidden, NotAuthenticated) as error:
            self._api.gate.audit(head, caller, error)
            return error_answer(error)
        except Disconnected:
            raise
        except Exception as error:  # noqa: BLE001 - every error is an answer
            return error_answer(error)

    def _found(self, head: Request) -> tuple[Route[Handler], Request]:
        if not self._serving.rest:
            raise NoRoute(f"this server serves the page alone, under {ROOT}/")
        return self._api.find(head)

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

    async def _answer(self, admitted: Admitted, receive: Receive, exchange: Exchange) -> HttpAnswer:
        is_open = admitted.route.needs is NOTHING
        async with self._bodies[is_open].of(admitted.request, receive) as body:
            with self._counted(is_open=is_open):
                whole = _with(admitted, body)
                work = await self._work(whole)
                lines = self._api.lines(whole) if work.kind is WorkKind.COMMIT else None
                with self._queueing(
                    work.objects, is_awaited=lines is not None and lines.are_reserved(work.objects, work.writer)
                ):
                    execute = partial(self._begun, whole, exchange, time.perf_counter())
                    land = partial(self._lanes.run, work, execute)
                    return await (land() if lines is None else lines.commit(work.objects, work.writer, land))

    async def _work(self, admitted: Admitted) -> Work:
        if len(admitted.request.body) <= _MAX_LOOP_BYTES:
            return self._api.work(admitted)
        return await asyncio.get_running_loop().run_in_executor(self._parsing, self._api.work, admitted)

    @contextmanager
    def _counted(self, *, is_open: bool) -> Iterator[None]:
        """Count a request until the end of the block. Its body has arrived: a slow client takes nobody's place.

        Args:
            is_open: Whether its route is open to everybody.

        Raises:
            Overloaded: The limits allow no more.
        """
        most = _MAX_OPEN_REQUESTS if is_open else self._serving.limits.max_requests
        if self._running[is_open] >= most:
            raise Overloaded(f"{most} requests run or wait; try again")
        self._running[is_open] += 1
        try:
            yield
        finally:
            self._running[is_open] -= 1

    @contextmanager
    def _queueing(self, objects: Set[tuple[str, ...]], *, is_awaited: bool) -> Iterator[None]:
        """Count a change of each of *objects* until the end of the block.

        Args:
            objects: What is changed.
            is_awaited: Whether the objects are reserved for this change: to refuse it would leave them idle.

        Raises:
            Overloaded: The limits allow no more.
        """
        if not objects:
            yield
            return
        limits = self._serving.limits
        # Else those that wait for a few objects would be all requests that the limits allow.
        most = min(limits.max_commits_per_table, limits.max_requests - self._running[False])
        for name in objects:
            if self._queued[name] >= max(most, 1) and not is_awaited:
                raise Overloaded(
                    f"{self._queued[name]} changes of {'.'.join(name[1:]) or name[0]} run or wait; try again"
                )
        self._queued.update(objects)
        try:
            yield
        finally:
            for name in objects:
                self._queued[name] -= 1
                if not self._queued[name]:
                    del self._queued[name]

    def _begun(self, admitted: Admitted, exchange: Exchange, handed_over: float) -> HttpAnswer:
        if self._stopping:
            return error_answer(stopping())
        with self._watch.in_thread(exchange, handed_over):
            return self.answer(admitted)

    async def _health(self, head: Request) -> HttpAnswer:
        """Answer that the process runs."""
        return json_answer({"alive": True})

    async def _ready(self, head: Request) -> HttpAnswer:
        """Answer whether the catalogs answer; one check serves all clients that ask at the same time."""
        if self._stopping:
            return json_answer({"ready": False}, 503)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().run_in_executor(self._probing, self._readiness.answer)
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                answer = await asyncio.shield(self._asking)
        except TimeoutError:
            return json_answer({"ready": False, "catalogs": "no answer in time"}, 503)
        if self._api.gate.sees_all(head):
            return answer
        return json_answer({"ready": answer.status == 200}, answer.status)  # probes need no names

    async def _metrics(self, head: Request) -> HttpAnswer:
        """Answer with the metrics, to any known client."""
        await self._with_keys(head, self._api.gate.caller)
        return await asyncio.to_thread(metrics_answer)


_OWN_ROUTES: dict[tuple[str, str], Callable[[Application, Request], Awaitable[HttpAnswer]]] = {
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


def _with(admitted: Admitted, body: bytes) -> Admitted:
    """Return *admitted* with its *body*; most requests have none, and copies take time."""
    if not body:
        return admitted
    return dataclasses.replace(admitted, request=dataclasses.replace(admitted.request, body=body))


async def _respond(answer: HttpAnswer, head: Request, send: Send) -> None:
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers.items()]
    headers.append((b"x-request-id", head.request_id.encode()))
    if answer.stream is not None:
        headers.append((b"content-type", answer.content_type.encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async with aclosing(answer.stream) as stream:
            async for piece in stream:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
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

    def place(catalog: str, namespace: str) -> GrantPath:
        if catalog not in serving.catalogs:
            raise ValueError(f"a grant is for a catalog that is not served; served are: {', '.join(serving.catalogs)}")
        return Gate.place(warehouses.named(catalog), tuple(namespace.split(".")) if namespace else ())

    return Identities(serving.authentication, serving.tls, secret, place)
