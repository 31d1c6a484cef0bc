"""Draws the pictures of the page in the documents: ``python -m tests.ui.screenshots docs/ui``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import expect

import commit_coord
from tests.processes import Process
from tests.rest.kit import SCHEMA, ids
from tests.ui.chromium import MISSING, chromium, executable
from tests.ui.kit import served_page

_NAMED = """
import socket
socket.gethostname = lambda: "jobs-1"
sys.argv[0] = "{program}"
"""
"""Nothing of the machine that draws the pictures is in them."""
_LOADS = """
with locked(X, "shop", "orders", "day=2026-03-01", statement="INSERT OVERWRITE orders PARTITION (day='2026-03-01')"):
    say("locked")
    hang()
"""
_READS = """
with locked(S, "shop", "customers", statement="SELECT * FROM customers"):
    say("locked")
    hang()
"""
_WAITS = """
alter = lambda: locked(X, "shop", "orders", statement="ALTER TABLE orders ADD COLUMNS")
threading.Thread(target=alter, daemon=True).start()
say("asked")
hang()
"""


def _job(properties: Mapping[str, str], program: str, code: str) -> Process:
    """Return a process that works under the name of *program*."""
    return Process(properties, _NAMED.format(program=program) + code)


def draw(folder: Path, chromium_path: str) -> None:
    """Write the pictures to *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LOGNAME"] = "etl"
    with ExitStack() as ends:
        data = ends.enter_context(tempfile.TemporaryDirectory())
        properties = {"uri": f"coord+sqlite:///{data}/catalog.db", "warehouse": f"file://{data}/warehouse"}
        catalog = commit_coord.load_catalog("shop", **properties)
        ends.callback(catalog.close)
        catalog.create_namespace("shop")
        for name in ("customers", "orders", "payments"):
            catalog.create_table(f"shop.{name}", SCHEMA)
        with ThreadPoolExecutor(6) as writers:
            for _ in range(60):
                writers.submit(lambda: catalog.load_table("shop.orders").append(ids(1, 2, 3)))
        ends.enter_context(_job(properties, "load_orders.py", _LOADS)).heard("locked")
        reads = ends.enter_context(_job(properties, "report.py", _READS)).heard("locked")
        ends.enter_context(_job(properties, "alter.py", _WAITS)).heard("asked")
        address = ends.enter_context(served_page(properties))
        browser = ends.enter_context(chromium(chromium_path))
        for name, width, scheme in (("now", 1000, "light"), ("now-phone", 390, "dark"), ("table", 1000, "light")):
            page = browser.new_page(
                viewport={"width": width, "height": 700}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page.goto(address + ("table?namespace=shop&name=orders" if name == "table" else ""))
            if name == "now-phone":
                reads.popen.kill()
                reads.ended()
                expect(page.get_by_text("dead:").first).to_be_visible()
            elif name == "now":
                expect(page.get_by_text("ALTER TABLE")).to_be_visible()
            page.screenshot(path=folder / f"{name}.png")


if __name__ == "__main__":
    draw(Path(sys.argv[1]), executable() or sys.exit(MISSING))
