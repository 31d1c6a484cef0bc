"""Serves the page of ``commit_coord.ui`` to browsers: who asks, forms, and events as long as somebody watches.

A browser sends no bearer token by itself. So the page asks for one and keeps it in a cookie, which counts only below
``/ui``; it is checked in each request, as any token. A certificate and a proxy's header need no cookie.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from commit_coord.rest.access import Access, Caller, Forbidden, NotAuthenticated
from commit_coord.rest.bodies import Bodies, Receive
from commit_coord.rest.errors import Overloaded
from commit_coord.rest.gate import Gate
from commit_coord.rest.identities import Identities
from commit_coord.rest.settings import Serving
from commit_coord.rest.warehouses import Warehouses
from commit_coord.rest.wire import Answer, MalformedRequest, Request
from commit_coord.ui import Pages, Shown, Visit, Visitor
from commit_coord.ui.pages import WATCH_EVERY_S
from commit_coord.ui.rendering import ROOT

_COOKIE = "commit_coord_token"
_TOKEN = re.compile(r"[\w.~+/=-]{1,4096}", re.ASCII)
_THREADS = 4
_MOST_VISITS = 32
"""Visits that run or wait for a thread."""
_MOST_WATCHING = 64
_WATCH_S = 600
"""How long one stream of events lasts: its browser then connects again, and its sender is checked again."""
_ALIVE_EVERY_S = 15.0
"""How often something is sent on a quiet stream, so that no proxy closes it."""
_MOST_FIELDS = 20
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
        may_change, serves_writers = not serving.ui.read_only, serving.rest
        self._pages = Pages(catalogs, secret, may_change=may_change, serves_writers=serves_writers)
        self._warehouses, self._gate, self._identities = warehouses, gate, identities
        self._identify, self._bodies = identify, bodies
        self._is_secure = serving.tls is not None or serving.allow_plain_http
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="page")
        self._visits = self._watching = 0
        self._is_stopping = False

    def stop(self) -> None:
        """End the streams of events soon."""
        self._is_stopping = True

    def end(self) -> None:
        """Wait for no visit any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, head: Request, receive: Receive, tell_sender: Callable[[str], None]) -> Answer:
        """Return the answer to a request.

        Args:
            head: The request without its body.
            receive: Receives the body, and then that the browser has disconnected.
            tell_sender: Called with the name of the sender once that is known.

        Raises:
            Forbidden: A page of another origin has sent the request.
            Overloaded: Too many visits run or wait.
            IssuerUnavailable: The token of the cookie cannot be checked now.
        """
        self._gate.refuse_browsers(head, may_follow_links=True)
        parts = _parts(head.path)
        head = dataclasses.replace(head, names={"prefix": parts[0] if parts else ""})
        async with self._bodies.of(head, receive) as body:
            form = _fields(body) if head.method == "POST" else {}
            if parts == ("login",):
                return await self._login(head, form)
            if parts == ("logout",):
                return _redirect(f"{ROOT}/", self._cookie("", ends=True))
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
            answer = await self._in_thread(partial(self._pages.answer, visit))
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
        )

    def _ask_who(self, head: Request, *, is_wrong: bool = False, following: str = "") -> Answer:
        identities = self._identities
        assert identities is not None, "else everybody is known"
        takes_tokens = identities.oidc is not None or "token_sha256" in identities.clients.proofs
        if not following and head.method == "GET" and _parts(head.path) != ("login",):
            following = head.path + (f"?{urlencode(head.query)}" if head.query else "")
        return _answer(self._pages.login(following, is_wrong=is_wrong, is_possible=takes_tokens))

    async def _login(self, head: Request, form: dict[str, str]) -> Answer:
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

    async def _in_thread(self, work: Callable[[], T]) -> T:
        with self._one_of_the_visits():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    @contextmanager
    def _one_of_the_visits(self) -> Iterator[None]:
        if self._visits >= _MOST_VISITS:
            raise Overloaded(f"{_MOST_VISITS} visits run or wait; try again")
        self._visits += 1
        try:
            yield
        finally:
            self._visits -= 1

    async def _watch(self, visit: Visit, receive: Receive) -> Answer:
        if not self._pages.has(visit):
            return Answer(status=HTTPStatus.NO_CONTENT)  # the browser does not ask again
        if self._watching >= _MOST_WATCHING:
            raise Overloaded(f"{_MOST_WATCHING} browsers watch; try again")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return Answer(content_type="text/event-stream", headers=headers, stream=self._events(visit, receive))

    async def _events(self, visit: Visit, receive: Receive) -> AsyncGenerator[bytes]:
        """Yield events until the browser disconnects."""
        clock = asyncio.get_running_loop().time
        ends_at, sent_at, seen = clock() + _WATCH_S, clock(), 0
        gone = asyncio.ensure_future(receive())
        self._watching += 1
        try:
            while not (gone.done() or self._is_stopping) and clock() < ends_at:
                with suppress(Overloaded):  # it looks again soon
                    seen, events = await self._in_thread(partial(self._pages.changes, visit, seen))
                    if not events and clock() - sent_at > _ALIVE_EVERY_S:
                        events = b": nothing has changed\n\n"
                    if events:
                        sent_at = clock()
                        yield events
                await asyncio.wait({gone}, timeout=WATCH_EVERY_S)
        finally:
            self._watching -= 1
            gone.cancel()


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
    cookies: SimpleCookie = SimpleCookie()
    with suppress(CookieError):
        cookies.load(head.headers.get("cookie", ""))
    found = cookies.get(_COOKIE)
    if found is None or not _TOKEN.fullmatch(found.value):
        return head
    return dataclasses.replace(head, headers=_bearing(head, found.value))


def _bearing(head: Request, token: str) -> dict[str, str]:
    return {**head.headers, "authorization": f"Bearer {token}"}


def _answer(shown: Shown) -> Answer:
    return Answer(status=shown.status, body=shown.body, content_type=shown.content_type, headers=shown.headers)


def _redirect(address: str, cookie: str = "") -> Answer:
    headers = {"location": address, "cache-control": "no-store", **({"set-cookie": cookie} if cookie else {})}
    return Answer(status=HTTPStatus.SEE_OTHER, headers=headers, content_type="text/plain")
