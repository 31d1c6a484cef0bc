"""Many who watch, a lock service that hangs, and what an operator can do meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.hive_lease import LeaseObject
from commit_coord.model import LockEntry, LockMode, Resource
from commit_coord.rest import Serving, browsing
from commit_coord.rest.settings import Ui
from commit_coord.ui import Pages, Shown, Visit, rendering
from commit_coord.ui.forms import FIELD
from tests.limits import PATIENCE
from tests.processes import until_async
from tests.rest.asgi import InProcess
from tests.rest.kit import Response
from tests.ui.kit import Html, cookie, page

X = LockMode.EXCLUSIVE
ORDERS = Resource(("db", "orders"))
_MANY = 40


class Watcher:
    """A browser that watches the locks."""

    def __init__(self) -> None:
        self.status = 0
        self.text = ""
        self.gone = asyncio.Event()
        self._notified = asyncio.Event()
        self.has_ended = False
        self.begins: asyncio.Barrier | None = None
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        """Return the request, and once the browser has gone, that it has."""
        if self._asked:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        self._asked = True
        return {"type": "http.request", "body": b""}

    async def send(self, message: dict[str, Any]) -> None:
        """Take a part of the answer; its beginning only once all have it who begin together."""
        if self.begins is not None and message["type"] == "http.response.start":
            await self.begins.wait()
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()
        self.has_ended |= message["type"] == "http.response.body" and not message.get("more_body", False)
        self._notified.set()

    async def heard(self, text: str) -> None:
        """Wait for *text*."""
        async with asyncio.timeout(PATIENCE):
            while text not in self.text:
                self._notified.clear()
                await self._notified.wait()

    async def ended_or_heard(self, text: str) -> None:
        """Wait for *text*, or for the end of the answer."""
        async with asyncio.timeout(PATIENCE):
            while text not in self.text and not self.has_ended:
                self._notified.clear()
                await self._notified.wait()


@asynccontextmanager
async def watching(server: InProcess, query: str = "", name: str = "") -> AsyncIterator[Watcher]:
    """Yield a browser that watches the locks of ``shop``, in which *name* has logged in."""
    watcher = Watcher()
    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/ui/shop/events",
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1"), *((key.encode(), value.encode()) for key, value in cookie(name).items())],
        "client": ("127.0.0.1", 1),
    }
    task = asyncio.ensure_future(server.application(scope, watcher.receive, watcher.send))  # type: ignore[arg-type]
    try:
        yield watcher
    finally:
        watcher.gone.set()
        async with asyncio.timeout(PATIENCE):
            await task


@pytest.fixture
def held(shop: CoordinatedCatalog) -> Iterator[LockEntry]:
    """A lock that a client holds on ``db.orders``."""
    with shop.lock_operation({ORDERS: X}, statement="nightly load"):
        yield shop.show_locks(ORDERS)[0]


class Gate:
    """Has calls wait until it is opened, and counts those that have begun."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.begun, self.count = threading.Event(), 0
        self.open = threading.Event()
        self._call = call

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.count += 1
        self.begun.set()
        assert self.open.wait(PATIENCE)
        return self._call(*given, **named)

    def patch(self, monkeypatch: pytest.MonkeyPatch, name: str, of: type = CoordinatedCatalog) -> None:
        """Stand in for the catalog's method *name*."""

        def method(*given: Any, **named: Any) -> Any:
            return self(*given, **named)

        monkeypatch.setattr(of, name, method)


def freeing(server: InProcess, held: LockEntry) -> dict[str, str]:
    """Return the form that frees *held*."""
    return page(server, f"/ui/shop/free?request={held.request_id}").form() | {"confirm": held.request_id[:8]}


async def send(server: InProcess, name: str, fields: dict[str, str]) -> Response:
    """Return the answer to a form."""
    return await server.asked("POST", f"/ui/shop/{name}", urlencode(fields).encode())


def test_a_lease_that_begins_and_one_that_ends_are_seen(server: InProcess, shop: CoordinatedCatalog) -> None:
    """Nobody loads the page again."""

    async def work() -> None:
        async with watching(server) as watcher:
            await watcher.heard("Nobody holds a lock.")
            number = await asyncio.to_thread(shop.leases.grab_lease, [LeaseObject.of(ORDERS)], 60)
            await watcher.heard(f"<strong>lease {number}</strong>")
            watcher.text = ""
            await asyncio.to_thread(shop.leases.drop_lease, number)
            await watcher.heard("Nobody holds a lock.")
            assert "<strong>lease" not in watcher.text.rpartition("event: now")[2]

    server._runner.run(work())


def test_many_who_watch_a_hanging_service_keep_nobody_from_working(
    server: InProcess, held: LockEntry, shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look waits for the service; pages that need none are there, and a lock is freed as soon as it answers."""
    fields = freeing(server, held)
    hanging = Gate(CoordinatedCatalog.show_locks)
    hanging.patch(monkeypatch, "show_locks")
    before = server.in_work

    async def work() -> Response:
        async with AsyncExitStack() as watchers:
            watch = [await watchers.enter_async_context(watching(server)) for _ in range(_MANY)]
            assert await asyncio.to_thread(hanging.begun.wait, PATIENCE)
            free = asyncio.ensure_future(send(server, "free", fields))
            assert 200 == (await server.asked("GET", "/ui/shop/tables")).status
            await until_async(lambda: server.in_work == before + _MANY + 1, "all of them have come")
            await until_async(lambda: all(one.status == 200 for one in watch), "an answer for each")
            assert 1 == hanging.count
            hanging.open.set()
            return await free

    assert 200 == server.run(work()).status
    assert [] == list(shop.show_locks(ORDERS))


def test_those_who_see_the_same_share_one_text(
    server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made once for all, and once more for those who look for something."""
    made: list[str] = []
    text = rendering.text

    def counted(template: str, **values: Any) -> str:
        made.append(template)
        return text(template, **values)

    monkeypatch.setattr(rendering, "text", counted)

    async def watch() -> None:
        async with AsyncExitStack() as watchers:
            for query in [""] * 10 + ["find=orders"] * 10:
                watcher = await watchers.enter_async_context(watching(server, query))
                await watcher.heard("nightly load")

    server.run(watch())
    assert 2 == made.count("_now.html")


def test_too_many_who_watch_are_refused(server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until another one goes."""
    monkeypatch.setattr(browsing, "_MOST_WATCHING", 1)

    async def watch() -> None:
        async with watching(server) as first:
            await first.heard("nightly load")
            async with watching(server) as second:
                await second.heard("browsers watch")
                assert 429 == second.status
        async with watching(server) as third:
            await third.heard("nightly load")

    server.run(watch())


def test_many_who_begin_to_watch_at_once_are_no_more_than_may(
    server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told to go on, and finds that others were faster, gets no event, and asks again."""
    monkeypatch.setattr(browsing, "_MOST_WATCHING", 3)

    async def watch() -> None:
        async with AsyncExitStack() as stack:
            watchers = [await stack.enter_async_context(watching(server)) for _ in range(_MANY)]
            begins = asyncio.Barrier(_MANY)
            for one in watchers:
                one.begins = begins
            await asyncio.gather(*(one.ended_or_heard("nightly load") for one in watchers))
            assert 3 == sum("nightly load" in one.text for one in watchers)
        async with watching(server) as another:
            await another.heard("nightly load")

    server.run(watch())


def test_one_sender_takes_not_all_streams(guarded: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are left to those who have none."""
    monkeypatch.setattr(browsing, "_MOST_OF_ONE", 1)

    async def watch() -> None:
        async with watching(guarded, name="bob") as first:
            await first.heard("nightly load")
            async with watching(guarded, name="bob") as second:
                await second.heard("browsers of yours watch")
                assert 429 == second.status
            async with watching(guarded, name="ann") as other:
                await other.heard("nightly load")

    guarded.run(watch())


def test_too_many_visits_are_a_page_and_leave_room_for_a_form(
    server: InProcess, held: LockEntry, shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading and freeing have limits of their own."""
    fields = freeing(server, held)
    hanging = Gate(CoordinatedSqlCatalog.list_namespaces)
    hanging.patch(monkeypatch, "list_namespaces", CoordinatedSqlCatalog)

    async def visit() -> Sequence[Response]:
        visits = [asyncio.ensure_future(server.asked("GET", "/ui/shop/tables")) for _ in range(_MANY)]
        assert await asyncio.to_thread(hanging.begun.wait, PATIENCE)
        assert 200 == (await send(server, "free", fields)).status
        refused, _ = await asyncio.wait(visits, return_when=asyncio.FIRST_COMPLETED)
        hanging.open.set()
        assert [200] * 32 == [answer.status for answer in await asyncio.gather(*visits) if answer.status != 429]
        return [one.result() for one in refused]

    refused = server.run(visit())
    assert _MANY - 32 == len(refused)
    assert {429} == {answer.status for answer in refused}
    assert "32 visits run or wait" in Html(refused[0].body).text
    assert "retry-after" in refused[0].headers
    assert [] == list(shop.show_locks(ORDERS))


def test_one_action_that_takes_long_runs_at_a_time(
    server: InProcess, held: LockEntry, shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one gets a message and changes nothing; a lock is freed meanwhile, and later there is a turn again."""
    reaping, fields = page(server, "/ui/shop/reap").form() | {"confirm": "reap"}, freeing(server, held)
    slow = Gate(CoordinatedCatalog.reap)
    slow.patch(monkeypatch, "reap")

    async def act() -> list[Response]:
        first = asyncio.ensure_future(send(server, "reap", reaping))
        assert await asyncio.to_thread(slow.begun.wait, PATIENCE)
        second = await send(server, "reap", reaping)
        freed = await send(server, "free", fields)
        slow.open.set()
        return [await first, second, freed, await send(server, "reap", reaping)]

    first, second, freed, third = server.run(act())
    assert [200, 409, 200, 200] == [first.status, second.status, freed.status, third.status]
    assert "Nothing was changed" in Html(second.body).text
    assert 2 == slow.count
    assert [] == list(shop.show_locks(ORDERS))


@pytest.mark.parametrize("has_proof", [True, False], ids=["with a proof", "without"])
@pytest.mark.parametrize("path", ["reap", "table?namespace=db&name=orders", "table?namespace=&name=", "free"])
def test_the_forms_of_a_reader_keep_no_operator_from_releasing_locks(
    guarded: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch, path: str, *, has_proof: bool
) -> None:
    """However many they are: they take neither the turn nor the threads of those who may change something."""
    ann, bob = cookie("ann"), cookie("bob")
    reaping = page(guarded, "/ui/shop/reap", headers=ann).form() | {"confirm": "reap"}
    freeing = page(guarded, f"/ui/shop/free?request={held.request_id}", headers=ann).form()
    freeing |= {"confirm": held.request_id[:8]}
    logging_out = page(guarded, "/ui/shop/", headers=bob).form()
    form = {FIELD: logging_out[FIELD] if has_proof else "x", "confirm": "reap", "request": held.request_id}
    answer, waiting = Pages.answer, Gate(lambda: None)

    def slow_for_the_reader(pages: Pages, visit: Visit) -> Shown:
        if visit.visitor.name == "bob":
            waiting()
        return answer(pages, visit)

    monkeypatch.setattr(Pages, "answer", slow_for_the_reader)

    async def act() -> list[int]:
        readers = [
            asyncio.ensure_future(guarded.asked("POST", f"/ui/shop/{path}", urlencode(form).encode(), headers=bob))
            for _ in range(_MANY)
        ]
        assert await asyncio.to_thread(waiting.begun.wait, PATIENCE)
        freed = await guarded.asked("POST", "/ui/shop/free", urlencode(freeing).encode(), headers=ann)
        reaped = await guarded.asked("POST", "/ui/shop/reap", urlencode(reaping).encode(), headers=ann)
        waiting.open.set()
        assert {403, 404, 429} >= {answer.status for answer in await asyncio.gather(*readers)}
        return [freed.status, reaped.status]

    assert [200, 200] == guarded.run(act())


def test_the_end_waits_for_an_action_before_it_closes_the_catalogs(
    shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has begun to release locks does not meet a closed catalog."""
    closed: list[bool] = []
    ended = threading.Event()

    def reap(*_: object, **__: object) -> list[LockEntry]:
        closed.append(ended.is_set())
        return []

    slow = Gate(reap)
    slow.patch(monkeypatch, "reap")
    server = InProcess(Serving(catalogs=("shop",), threads=2, ui=Ui(read_only=False)))
    with server:
        warehouses = server.application._warehouses
        close = warehouses.close

        def end() -> None:
            ended.set()
            close()

        monkeypatch.setattr(warehouses, "close", end)
        reaping = page(server, "/ui/shop/reap").form() | {"confirm": "reap"}

        async def act() -> None:
            running = asyncio.ensure_future(send(server, "reap", reaping))
            assert await asyncio.to_thread(slow.begun.wait, PATIENCE)
            running.cancel()

        server.run(act())
        threading.Timer(0.3, slow.open.set).start()
    assert [False] == closed


def test_who_watches_sees_that_the_service_fails_and_recovers(
    server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a new visit, and also if the locks are the same as before."""

    def fail(*_: object) -> None:
        raise LockServiceUnavailable("the database does not answer")

    async def watch() -> None:
        async with watching(server) as watcher:
            await watcher.heard("1 held")
            with monkeypatch.context() as patch:
                patch.setattr(CoordinatedCatalog, "show_locks", fail)
                await watcher.heard("the database does not answer")
                watcher.text = ""
            await watcher.heard("1 held")

    server.run(watch())
