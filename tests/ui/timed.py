"""How long the page takes in a browser: until it shows what another process does, and at size."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page

import commit_coord
from commit_coord.model import LockMode, Resource
from tests.processes import Process
from tests.rest.kit import SCHEMA
from tests.ui.kit import served_page

X = LockMode.EXCLUSIVE

PATHS = (
    "",
    "?page=50",
    "?find=day%3D7",
    "tables",
    "tables?find=9",
    "table?namespace=db&name=table_0007",
    "request?id=01234567",
)
"""Of the pages that are timed at size."""

_TAKES_IN_TURNS = """
turns = threading.Semaphore(0)
signal.signal(signal.SIGUSR1, lambda *_: turns.release())
say("ready")
while turns.acquire():
    with locked(X, "db", "orders", statement="nightly load"):
        say("locked")
        turns.acquire()
    say("free")
"""
"""Takes a lock at every other signal, and gives it back at the next one."""


def seconds_until_shown(
    page: Page, properties: Mapping[str, str], tries: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Return how long *page* took to show a lock that another process took, and to drop it after its release.

    Args:
        page: Shows the locks of the catalog; nobody loads it again.
        properties: Of the catalog, which has the table ``db.orders``.
        tries: How often the lock is taken.
    """
    appeared, gone = [], []
    with Process(properties, _TAKES_IN_TURNS) as other:
        other.heard("ready")
        for _ in range(tries):
            began = time.monotonic()
            other.signal(signal.SIGUSR1).heard("locked")
            page.get_by_text("nightly load").wait_for()
            appeared.append(time.monotonic() - began)
            began = time.monotonic()
            other.signal(signal.SIGUSR1).heard("free")
            page.get_by_text("nightly load").wait_for(state="detached")
            gone.append(time.monotonic() - began)
    return appeared, gone


def seconds_until_loaded(page: Page, address: str, tries: int) -> Sequence[float]:
    """Return how long each load of *address* took, until the browser had drawn it."""
    took = []
    for _ in range(tries):
        began = time.monotonic()
        page.goto(address, wait_until="load")
        took.append(time.monotonic() - began)
    return took


@contextmanager
def large_catalog(folder: Path) -> Iterator[str]:
    """Yield the address of the page of a new catalog in *folder* with 10,000 locks and 1,000 tables."""
    properties = {
        "uri": f"coord+sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "lock.max-partitions": "1000",
    }
    catalog = commit_coord.load_catalog("shop", **properties)
    catalog.create_namespace("db")
    for number in range(1000):
        catalog.create_table(f"db.table_{number:04}", SCHEMA)
    leases = [
        catalog.lock_operation(
            {Resource(("db", f"table_{number:04}", f"day={day}")): X for day in range(100)}, statement=f"load {number}"
        )
        for number in range(100)
    ]
    assert len(catalog.show_locks()) > 10_000
    with served_page(properties) as address:
        yield address
    for lease in leases:
        lease.release()
    catalog.close()
