"""The page in a real Chromium: live, without JavaScript, by keyboard, on a phone, for a screen reader, and at size."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.locks.hive_lease import LeaseObject
from commit_coord.model import LockMode, Resource
from commit_coord.protocol.migration import MIGRATING
from commit_coord.testing.servers import untested
from tests.processes import Process, until
from tests.rest.kit import SCHEMA, ids
from tests.ui import chromium
from tests.ui.kit import served, served_page
from tests.ui.timed import PATHS, large_catalog, seconds_until_loaded, seconds_until_shown

X = LockMode.EXCLUSIVE
_HOLDS = """
with locked(X, "db", "orders", statement="killed load"):
    say("locked")
    hang()
"""
_TRIES = 3
"""How often each of these is done; `make figures` says how long they take."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium."""
    path = chromium.executable()
    if path is None:
        pytest.skip(untested("the page in a browser", "Chromium is not installed: bash .ci/setup.sh chromium"))
    with chromium.chromium(path) as browser:
        yield browser


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The properties of the catalog, which has the table ``db.orders``."""
    folder = tmp_path_factory.mktemp("page")
    found = {"uri": f"coord+sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    found["commit-coord.audit-log"] = str(folder / "audit.jsonl")
    with_table = commit_coord.load_catalog("shop", **found)
    with_table.create_namespace("db")
    with_table.create_table("db.orders", SCHEMA).append(ids(1, 2))
    with_table.close()
    return found


@pytest.fixture(scope="module")
def address(properties: dict[str, str]) -> Iterator[str]:
    """The address of the page, which `commit-coord ui --administer` serves."""
    with served_page(properties) as address:
        yield address


@pytest.fixture(scope="module")
def shop(properties: dict[str, str]) -> Iterator[CoordinatedCatalog]:
    """Another client of the catalog."""
    catalog = commit_coord.load_catalog("shop", **properties)
    yield catalog
    catalog.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page with two catalogs, which ``ann`` may administer; her token is her name."""
    folder = tmp_path_factory.mktemp("guarded")
    digest = hashlib.sha256(b"ann").hexdigest()
    grants = '{ depot = "administer", shop = "administer" }'
    (folder / "clients.toml").write_text(f'[ann]\ntoken-sha256 = "{digest}"\ngrants = {grants}\n')
    (folder / "serve.toml").write_text('[authentication]\nclients = "clients.toml"\n')
    configured = {
        f"PYICEBERG_CATALOG__{name.upper()}__{key}": value
        for name in ("depot", "shop")
        for key, value in (("URI", f"coord+sqlite:///{folder}/{name}.db"), ("WAREHOUSE", f"file://{folder}/{name}"))
    }
    chosen = ("--catalog=depot", "--catalog=shop", f"--config={folder / 'serve.toml'}")
    with served("serve", *chosen, environment=configured) as address:
        yield address


@pytest.fixture(scope="module")
def moving(hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of a table that moves from a metastore's locks to ZooKeeper."""
    properties = {
        "uri": f"coord+{hms.uri}",
        "warehouse": tmp_path_factory.mktemp("moving").as_uri(),
        "lock-impl": MIGRATING,
        "lock.uri": zookeeper.connect_string,
        "hive.compare-and-set": "honoured",  # as the probe says of this server
    }
    catalog = commit_coord.load_catalog("shop", **properties)
    database = f"page{os.urandom(8).hex()}"
    catalog.create_namespace(database)
    catalog.create_table(f"{database}.orders", SCHEMA).append(ids(1))
    try:
        with served_page(properties) as address:
            yield f"{address}table?namespace={database}&name=orders"
    finally:
        catalog.drop_table(f"{database}.orders")
        catalog.drop_namespace(database)
        catalog.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser window with nothing in it; no page may write an error to its console."""
    context = browser.new_context()
    errors: list[str] = []
    context.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield context
    context.close()
    assert [] == [error for error in errors if "400" not in error]


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """A tab."""
    return context.new_page()


def test_a_holder_that_another_process_takes_appears_by_itself(
    page: Page, address: str, properties: dict[str, str]
) -> None:
    """Nobody loads the page again; and what is given back goes. ``make figures`` prints how long that takes."""
    page.goto(address)
    expect(page.get_by_text("Nobody holds a lock.")).to_be_visible()
    seconds_until_shown(page, properties, _TRIES)
    expect(page.get_by_text("Nobody holds a lock.")).to_be_visible()


def test_freeing_is_confirmed_and_audited(
    page: Page, address: str, shop: CoordinatedCatalog, properties: dict[str, str]
) -> None:
    """An operator follows the link of the holder, types the letters that the page shows, and frees it."""
    with shop.lock_operation({Resource(("db", "orders")): X}, statement="stuck"):
        request_id = shop.show_locks()[0].request_id
        page.goto(address)
        page.get_by_role("link", name=f"Free request {request_id[:8]}").click()
        page.get_by_label("Type").fill("wrong")
        page.get_by_role("button", name="Free").click()
        expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
        page.get_by_label("Type").fill(request_id[:8])
        page.get_by_label("Reason").fill("its host is gone")
        page.get_by_role("button", name="Free").click()
        expect(page.get_by_role("status")).to_contain_text("1 lock was freed")
        assert [] == list(shop.show_locks())
    lines = [json.loads(line) for line in Path(properties["commit-coord.audit-log"]).read_text().splitlines()]
    freed = [line for line in lines if line["request_id"] == request_id]
    assert [("unlock", "its host is gone")] == [(line["how"], line["why"]) for line in freed]


def test_the_locks_of_a_killed_process_are_released(
    page: Page, address: str, shop: CoordinatedCatalog, properties: dict[str, str]
) -> None:
    """An operator sees that the owner is dead, types the word, and releases what it has left."""
    with Process(properties, _HOLDS) as other:
        other.heard("locked")
        other.popen.kill()
        other.ended()
    page.goto(address)
    expect(page.get_by_text("dead:").first).to_be_visible()
    page.get_by_role("link", name="Release the locks of dead owners").click()
    page.get_by_label("Type").fill("wrong")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
    page.get_by_label("Type").fill("reap")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("status")).to_contain_text("freed")
    assert [] == list(shop.show_locks())


def test_a_table_moves_by_its_buttons(page: Page, moving: str) -> None:
    """To the phase with both locks, and back; not without the name of the table."""
    page.goto(moving)
    page.get_by_label("Type the table's name").fill("another")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status")).to_contain_text("Nothing was changed")
    page.get_by_label("Type the table's name").fill("orders")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("in phase both")).to_be_visible()
    page.get_by_label("Type the table's name").fill("orders")
    page.get_by_role("button", name="Abort").click()
    expect(page.get_by_text("in phase hms")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("changed")


def test_everything_works_without_javascript(browser: Browser, address: str, shop: CoordinatedCatalog) -> None:
    """An operator whose browser runs no script sees, looks again, finds and frees."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    with shop.lock_operation({Resource(("db", "orders")): X}, statement="stuck again"):
        request_id = shop.show_locks()[0].request_id

        def is_there() -> bool:
            page.get_by_role("link", name="Look again").click()
            return page.get_by_text("stuck again").is_visible()

        until(is_there, "the lock is shown")  # a look that is just over may be shown once more
        page.get_by_label("Find").fill("nobody at all")
        page.get_by_role("button", name="Find").click()
        expect(page.get_by_text("No lock contains")).to_be_visible()
        page.get_by_role("link", name="Request", exact=True).click()
        page.get_by_label("Request id").fill(request_id)
        page.get_by_role("button", name="Look").click()
        expect(page.get_by_text("Its locks now")).to_be_visible()
        page.get_by_role("link", name="Now", exact=True).click()
        page.get_by_role("link", name="Free request").click()
        page.get_by_label("Type").fill(request_id[:8])
        page.get_by_role("button", name="Free").click()
        expect(page.get_by_text("1 lock was freed")).to_be_visible()
    context.close()


def test_everything_is_reached_by_keyboard(page: Page, address: str, shop: CoordinatedCatalog) -> None:
    """The first key leads to the content; from there a few more lead to the link that frees."""
    with shop.lock_operation({Resource(("db", "orders")): X}, statement="stuck"):
        page.goto(address)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        link = page.get_by_role("link", name="Free request")
        for _ in range(8):
            page.keyboard.press("Tab")
            if link.evaluate("link => link === document.activeElement"):
                break
        expect(link).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Free the locks")).to_be_visible()


def test_an_update_leaves_the_focus_where_it_is(page: Page, address: str, shop: CoordinatedCatalog) -> None:
    """A person who is about to press a link still has it after another lock has appeared."""
    with shop.lock_operation({Resource(("db", "orders")): X}, statement="first"):
        page.goto(address)
        link = page.get_by_role("link", name="Free request").first
        link.focus()
        with shop.lock_operation({Resource(("db", "people")): X}, statement="second"):
            expect(page.get_by_text("second")).to_be_visible()
            expect(page.get_by_role("link", name="Free request").first).to_be_focused()


@pytest.fixture(params=["phone-light", "phone-dark", "desk-light", "desk-dark"])
def looked_at(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A tab on a phone or on a desk, in one of both colour schemes."""
    context = browser.new_context(color_scheme="dark" if "dark" in request.param else "light")
    page = context.new_page()
    page.set_viewport_size({"width": 360 if "phone" in request.param else 1200, "height": 800})
    yield page
    context.close()


def assert_accessible(page: Page) -> None:
    """Check that axe finds no violation, and that the page is not wider than the window."""
    found = Axe().run(page)
    assert 0 == found.violations_count, f"{page.url}: {found.generate_report()}"
    assert 0 == page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"), page.url


def test_axe_finds_no_violation(looked_at: Page, address: str, shop: CoordinatedCatalog) -> None:
    """On no page of a catalog."""
    page = looked_at
    number = shop.leases.grab_lease([LeaseObject.of(Resource(("db", "people")))], 600)
    with shop.lock_operation({Resource(("db", "orders", "day=1")): X}, statement="INSERT INTO db.orders"):
        request_id = shop.show_locks(Resource(("db", "orders")))[0].request_id
        for path in (
            "",
            "?find=nothing",
            "tables",
            "table?namespace=db&name=orders",
            "request",
            f"request?id={request_id}",
            f"free?request={request_id}",
            "reap",
            "nothing",
        ):
            page.goto(address + path)
            assert_accessible(page)
        page.goto(f"{address}free?request={request_id}")
        page.get_by_label("Type").fill("wrong")
        page.get_by_role("button", name="Free").click()
        assert_accessible(page)
        page.get_by_label("Type").fill(request_id[:8])
        page.get_by_role("button", name="Free").click()
        expect(page.get_by_role("heading", name="Freed")).to_be_visible()
        assert_accessible(page)
    shop.leases.drop_lease(number)


def test_axe_finds_no_violation_at_the_login_and_in_the_list_of_catalogs(looked_at: Page, guarded: str) -> None:
    """Also after a token that nobody has."""
    page = looked_at
    page.goto(guarded)
    assert_accessible(page)
    for token in ("wrong", "ann"):
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        answer = page.get_by_role("alert") if token == "wrong" else page.get_by_role("link", name="depot")
        expect(answer).to_be_visible()
        assert_accessible(page)


def test_axe_finds_no_violation_where_a_table_moves(looked_at: Page, moving: str) -> None:
    """With its buttons, and with what they answered."""
    page = looked_at
    page.goto(moving)
    expect(page.get_by_role("button", name="Start")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("Type the table's name").fill("another")
    page.get_by_role("button", name="Start").click()
    assert_accessible(page)


def test_a_lost_server_is_reported(browser: Browser, properties: dict[str, str]) -> None:
    """The page says that what it shows is old."""
    page = browser.new_page()
    with served_page(properties) as address:
        page.goto(address)
        expect(page.get_by_text("Nobody holds a lock.")).to_be_visible()
    expect(page.get_by_text("The connection to the server is lost.")).to_be_visible()
    page.close()


# -- At size -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page with 1,000 tables and more than 10,000 locks."""
    with large_catalog(tmp_path_factory.mktemp("many")) as address:
        yield address


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_a_large_catalog_shows_a_part(page: Page, many: str, path: str) -> None:
    """With 10,000 locks and 1,000 tables. ``make figures`` prints how long it takes until the browser has drawn it."""
    seconds_until_loaded(page, many + path, 1)
    assert page.evaluate("document.getElementsByTagName('*').length") < 5000
