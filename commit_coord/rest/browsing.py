"""Serves the page of ``commit_coord.ui`` to browsers: who asks, forms, and events as long as a browser listens.

A browser sends no bearer token by itself. So the page asks for one and keeps it in a cookie, which counts only below
``/ui``; it is checked in each request, as any token. A certificate and a proxy's header need no cookie.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from commit_coord.rest.access import Access, Caller, Forbidden, NotAuthenticated
from commit_coord.rest.bodies import Bodies, Receive
from commit_coord.rest.errors import Overloaded
from commit_coord.rest.gate import Gate
from commit_coord.rest.identities import Identities
from commit_coord.rest.settings import Serving
from commit_coord.rest.warehouses import Warehouses
from commit_coord.rest.wire import HttpAnswer, MalformedRequest, Request
from commit_coord.ui import Pages, Shown, Visit, Visitor
from commit_coord.ui.looking import Look
from commit_coord.ui.pages import NOTHING_SEEN, WATCH_EVERY_S, version_of
from commit_coord.ui.rendering import ROOT

_COOKIE = "commit_coord_token"
_TOKEN = re.compile(r"[\w.~+/=-]{1,4096}", re.ASCII)
_THREADS = 4
_MOST_VISITS = 32
"""Visits that run or wait for a thread. Forms have as many of their own, and those who watch take none."""
_MAY_TAKE_LONG = frozenset({"reap", "table"})
"""The pages whose forms may take minutes: of a catalog, one runs at a time."""
_MOST_WATCHING = 64
_MOST_OF_ONE = 16
"""Streams of events of one sender who is known by name."""
_WATCH_S = 600
"""How long one stream of events lasts: its browser then connects again, and its sender is checked again."""
_ALIVE_EVERY_S = 15.0
"""How often something is sent on a quiet stream, so that no proxy closes it."""
_MOST_FIELDS = 20
_BUSY = (
    "Nothing was changed: locks of dead owners are being released or a table is being moved. Try again when that ends."
)
_ADDRESS = re.compile(rf"{ROOT}(/[\x21-\x5b\x5d-\x7e]*)?")
"""Addresses of this page. No other origin: neither //another.host nor a header of its own fits."""

_NAMED = frozenset({"", "events", "tables", "table", "request", "free", "reap"})

T = TypeVar("T")

Identify = Callable[[Request], Awaitable[Caller]]


def is_page(path: str) -> bool:
    """Return whether *path* belongs to the page."""
    return path == ROOT or path.startswith(f"{ROOT}/")


def route_of(path: str) -> tuple[str, str]:
    """Return the route of a page for metrics and logs, and the name of its catalog."""
    match _parts(path):
        case ("assets", _):
            return f"{ROOT}/assets/{{name}}", ""
        case ("login" | "logout" as own,):
            return f"{ROOT}/{own}", ""
        case (catalog, page) if page in _NAMED:
            return f"{ROOT}/{{catalog}}/{page}", catalog
        case _:
            return ROOT, ""


class Browsing:
    """Answers the requests of browsers. For one event loop.

    Args:
        serving: The settings of the server.
        warehouses: The catalogs, which are open.
        gate: Tells what a sender may do.
        identities: Identifies senders; None for a server without authentication.
        secret: The same in all processes of the server.
        identify: Returns the sender of a request, or raises as :meth:`Gate.caller`.
        bodies: Reads the bodies of requests.
    """

    def __init__(
        self,
        serving: Serving,
        warehouses: Warehouses,
        gate: Gate,
        identities: Identities | None,
        secret: bytes,
        identify: Identify,
        bodies: Bodies,
    ) -> None:
        catalogs = {warehouse.catalog.name: warehouse.catalog for warehouse in warehouses}
        may_change, serves_writers = not serving.page_is_read_only, serving.rest
        self._pages = Pages(catalogs, secret, may_change=may_change, serves_writers=serves_writers)
        self._warehouses, self._gate, self._identities = warehouses, gate, identities
        self._identify, self._bodies = identify, bodies
        self._is_secure = serving.tls is not None or serving.allow_plain_http
        # Of their own, so that neither those who watch nor those who read keep an operator from freeing a lock.
        self._reading, self._freeing = _Threads("page", _THREADS), _Threads("freeing", _THREADS)
        self._changing = _Threads("changing", len(catalogs))
        self._changed: set[str] = set()
        """The catalogs where something runs that may take long."""
        self._looking = _Threads("looking", len(catalogs), most=len(catalogs))
        self._rendering = _Threads("rendering", 1, most=_MOST_WATCHING)
        self._looks: dict[str, asyncio.Future[Look | str]] = {}
        self._watching: Counter[str] = Counter()
        """The streams of events, by the names of their senders."""
        self._is_stopping = False

    def stop(self) -> None:
        """End the streams of events soon, and begin nothing that takes long."""
        self._is_stopping = True
        self._pages.stop()

    def end(self, *, wait: bool) -> None:
        """End the threads.

        Args:
            wait: Whether to wait for what changes something: it needs the catalogs, which are closed next.
        """
        for threads in (self._reading, self._looking, self._rendering):
            threads.end(wait=False)
        for threads in (self._freeing, self._changing):
            threads.end(wait=wait)

    async def answer(self, head: Request, receive: Receive, tell_sender: Callable[[str], None]) -> HttpAnswer:
        """Return the answer to a request.

        Args:
            head: The request without its body.
            receive: Receives the body, and then that the browser has disconnected.
            tell_sender: Called with the name of the sender once that is known.

        Raises:
            IssuerUnavailable: The token of the cookie cannot be checked now.
        """
        try:
            return await self._answered(head, receive, tell_sender)
        except Forbidden as error:
            self._gate.audit(head, None, error)
            return _answer(self._pages.refusal(HTTPStatus.FORBIDDEN, str(error)))
        except Overloaded as error:
            refused = _answer(self._pages.refusal(HTTPStatus.TOO_MANY_REQUESTS, str(error)))
            headers = {**refused.headers, "retry-after": str(error.retry_after_s)}
            return dataclasses.replace(refused, headers=headers)

    async def _answered(self, head: Request, receive: Receive, tell_sender: Callable[[str], None]) -> HttpAnswer:
        self._gate.refuse_browsers(head, may_follow_links=True)
        parts = _parts(head.path)
        head = dataclasses.replace(head, names={"prefix": parts[0] if parts else ""})
        async with self._bodies.of(head, receive) as body:
            form = _fields(body) if head.method == "POST" else {}
            if parts == ("login",):
                return await self._login(head, form)
            if parts[:1] == ("assets",):  # they tell nothing, and the page that asks for a token needs them
                return _answer(self._pages.answer(Visit(method=head.method, path=parts)))
            try:
                caller = await self._identify(_with_cookie(head))
            except NotAuthenticated as error:
                if error.given:
                    self._gate.audit(head, None, error)
                return self._ask_who(head)
            tell_sender(caller.name)
            visitor = self._visitor(caller)
            visit = Visit(method=head.method, path=parts, query=head.query, form=form, visitor=visitor)
            if parts[1:] == ("events",) and head.method == "GET":
                return await self._watch(visit, receive)
            if parts == ("logout",) and self._pages.has_proof(visit):
                return _redirect(f"{ROOT}/", self._cookie("", ends=True))
            answer = await self._visited(visit)
            if answer.status == HTTPStatus.FORBIDDEN:
                self._gate.audit(head, caller, Forbidden("the page refused it"))
            return _answer(answer)

    # Who asks.

    def _visitor(self, caller: Caller) -> Visitor:
        def allowed(catalog: str, namespace: tuple[str, ...], access: Access) -> bool:
            return self._gate.allows(caller, self._warehouses.chosen(catalog), namespace, access)

        return Visitor(
            name=caller.name,
            sees=lambda catalog: self._gate.sees(caller, self._warehouses.chosen(catalog))(()),
            reads=lambda catalog, namespace: allowed(catalog, namespace, Access.READ),
            administers=lambda catalog, namespace: allowed(catalog, namespace, Access.ADMINISTER),
            frees=lambda catalog: caller.grants.allow_somewhere((catalog,), Access.ADMINISTER),
        )

    def _ask_who(self, head: Request, *, is_wrong: bool = False, following: str = "") -> HttpAnswer:
        identities = self._identities
        assert identities is not None, "else everybody is known"
        takes_tokens = identities.oidc is not None or "token_sha256" in identities.clients.proofs
        if not following and head.method == "GET" and _parts(head.path) != ("login",):
            following = head.path + (f"?{urlencode(head.query)}" if head.query else "")
        return _answer(self._pages.login(following, is_wrong=is_wrong, is_possible=takes_tokens))

    async def _login(self, head: Request, form: dict[str, str]) -> HttpAnswer:
        token, following = form.get("token", "").strip(), form.get("following", "")
        if self._identities is None:
            return _redirect(f"{ROOT}/")
        try:
            if not _TOKEN.fullmatch(token):
                raise NotAuthenticated("no token was given", given=bool(token))
            await self._identify(dataclasses.replace(head, headers=_bearing(head, token)))
        except NotAuthenticated as error:
            if error.given:
                self._gate.audit(head, None, error)
            return self._ask_who(head, is_wrong=head.method == "POST", following=following)
        return _redirect(following if _ADDRESS.fullmatch(following) else f"{ROOT}/", self._cookie(token))

    def _cookie(self, token: str, *, ends: bool = False) -> str:
        attributes = [f"{_COOKIE}={token}", f"Path={ROOT}", "HttpOnly", "SameSite=Lax"]
        return "; ".join([*attributes, *(["Secure"] if self._is_secure else []), *(["Max-Age=0"] if ends else [])])

    # Work.

    async def _visited(self, visit: Visit) -> Shown:
        answer = partial(self._pages.answer, visit)
        if not self._pages.may_change(visit):  # else forms of readers would keep an operator from freeing a lock
            return await self._reading.run(answer)
        catalog, page = visit.path
        if page not in _MAY_TAKE_LONG:
            return await self._freeing.run(answer)
        if catalog in self._changed:
            return self._pages.refusal(HTTPStatus.CONFLICT, _BUSY)
        self._changed.add(catalog)

        def change() -> Shown:
            try:
                return answer()
            finally:
                self._changed.discard(catalog)  # here, because it goes on if its visitor goes

        return await self._changing.run(change)

    async def _watch(self, visit: Visit, receive: Receive) -> HttpAnswer:
        if not self._pages.has(visit):
            return HttpAnswer(status=HTTPStatus.NO_CONTENT)  # the browser does not ask again
        if self._watching.total() >= _MOST_WATCHING:
            raise Overloaded(f"{_MOST_WATCHING} browsers watch the pages already, the most that may; try again")
        if not self._may_watch(visit.visitor):
            raise Overloaded(f"{_MOST_OF_ONE} browsers of yours watch the pages already, the most that may; try again")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return HttpAnswer(content_type="text/event-stream", headers=headers, stream=self._events(visit, receive))

    async def _events(self, visit: Visit, receive: Receive) -> AsyncGenerator[bytes]:
        """Yield events until the browser disconnects; none if too many others have begun to watch since it asked."""
        if not self._may_watch(visit.visitor):
            return
        clock = asyncio.get_running_loop().time
        ends_at, sent_at, seen = clock() + _WATCH_S, clock(), NOTHING_SEEN
        gone = asyncio.ensure_future(receive())
        self._watching[visit.visitor.name] += 1
        try:
            while not (gone.done() or self._is_stopping) and clock() < ends_at:
                looking = asyncio.ensure_future(self._look(visit.path[0]))
                await asyncio.wait({gone, looking}, return_when=asyncio.FIRST_COMPLETED)
                if not looking.done():
                    looking.cancel()
                    break
                look, events = looking.result(), b""
                if (version := version_of(look)) != seen:
                    with suppress(Overloaded):  # it looks again soon
                        events = await self._rendering.run(partial(self._pages.events, visit, look))
                        seen = version
                elif clock() - sent_at > _ALIVE_EVERY_S:
                    events = b": nothing has changed\n\n"
                if events:
                    sent_at = clock()
                    yield events
                await asyncio.wait({gone}, timeout=WATCH_EVERY_S)
        finally:
            self._watching[visit.visitor.name] -= 1
            self._watching += Counter()  # keeps no name of a sender who watches nothing
            gone.cancel()

    def _may_watch(self, visitor: Visitor) -> bool:
        of_one = self._watching[visitor.name] if visitor.name else 0
        return of_one < _MOST_OF_ONE and self._watching.total() < _MOST_WATCHING

    async def _look(self, catalog: str) -> Look | str:
        """Return a look at the locks; however many watch the catalog, one runs, and one thread waits for it."""
        running = self._looks.get(catalog)
        if running is None or running.done():
            running = asyncio.ensure_future(self._looking.run(partial(self._pages.look, catalog)))
            self._looks[catalog] = running
        return await asyncio.shield(running)


class _Threads:
    """Threads for one kind of work; used on one event loop.

    Args:
        name: Of the threads.
        count: How many there are.
        most: How much work runs or waits for a thread.
    """

    def __init__(self, name: str, count: int, most: int = _MOST_VISITS) -> None:
        self._pool = ThreadPoolExecutor(max(1, count), thread_name_prefix=name)
        self._most, self._running = most, 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of *work*.

        Raises:
            Overloaded: Too much runs or waits.
        """
        if self._running >= self._most:
            raise Overloaded(f"{self._most} visits run or wait; try again")
        self._running += 1
        # Not when its visitor has gone, but when it ends: until then it has its thread.
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(self._ended)
        return await asyncio.shield(future)

    def _ended(self, _: object) -> None:
        self._running -= 1

    def end(self, *, wait: bool) -> None:
        """End the threads; what has not begun does not begin."""
        self._pool.shutdown(wait=wait, cancel_futures=True)


def _parts(path: str) -> tuple[str, ...]:
    """Return the decoded names of a path below the root; the path of the catalogs has none."""
    below = path.removeprefix(ROOT).removeprefix("/")
    return tuple(unquote(part) for part in below.split("/")) if below else ()


def _fields(body: bytes) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        MalformedRequest: There are too many.
    """
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as error:
        raise MalformedRequest("Malformed form") from error


def _with_cookie(head: Request) -> Request:
    """Return *head* with the token of its cookie, unless it names its sender in another way."""
    if "authorization" in head.headers:
        return head
    for cookie in head.headers.get("cookie", "").split(";"):  # of other pages of this host, too, whatever they contain
        name, _, value = cookie.strip().partition("=")
        if name == _COOKIE and _TOKEN.fullmatch(value):
            return dataclasses.replace(head, headers=_bearing(head, value))
    return head


def _bearing(head: Request, token: str) -> dict[str, str]:
    return {**head.headers, "authorization": f"Bearer {token}"}


def _answer(shown: Shown) -> HttpAnswer:
    return HttpAnswer(status=shown.status, body=shown.body, content_type=shown.content_type, headers=shown.headers)


def _redirect(address: str, cookie: str = "") -> HttpAnswer:
    headers = {"location": address, "cache-control": "no-store", **({"set-cookie": cookie} if cookie else {})}
    return HttpAnswer(status=HTTPStatus.SEE_OTHER, headers=headers, content_type="text/plain")
