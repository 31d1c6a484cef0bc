"""``commit-coord locks`` and ``locks --watch`` on terminals of several sizes.

The expected screens are the files in ``golden``. ``GOLDEN=write pytest tests/cli`` writes them again.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.model import LockMode, LockRequest, LockScope, Owner, Resource
from commit_coord.process import process_name
from tests.cli.terminal import GOLDEN, Terminal, assert_golden, needs_terminal

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
DAY_MS, HALF_AN_HOUR_MS = 86_400_000, 1_800_000

pytestmark = needs_terminal


def ended_process() -> str:
    """Return the name of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = process_name(process.pid)
    process.communicate(b"\n")
    assert name is not None
    return name


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[CoordinatedCatalog]:
    """A catalog in which a pipeline holds, a notebook waits, and another owner has died; all of it since days."""
    made = commit_coord.load_catalog(
        "shop",
        uri=f"coord+sqlite:///{tmp_path}/catalog.db",
        warehouse=tmp_path.joinpath("warehouse").as_uri(),
    )
    pipeline = Owner(user="airflow", host="etl-07.example.org", pid=31337, application="nightly_load.py")
    notebook = Owner(user="ann", host="desk", pid=12, application="ipykernel", statement="INSERT INTO sales [all]")
    dead = Owner(user="bob", host="desk", pid=7, application="spark", process=ended_process())
    day = "shop/sales/region=north-east/day=2026-01-"
    for request_id, owner, locks in (
        ("11111111-0000-0000-0000-000000000000", pipeline, [(f"{day}01", X), (f"{day}02", X)]),
        ("22222222-0000-0000-0000-000000000000", notebook, [(f"{day}02", X)]),
        ("33333333-0000-0000-0000-000000000000", dead, [("shop/items", X)]),
    ):
        request = LockRequest.of(
            LockScope.OPERATION,
            [(Resource.parse(path), mode) for path, mode in locks],
            owner=owner,
            request_id=request_id,
        )
        requests = made.locks.parts.queue.requests  # type: ignore[attr-defined]
        requests.run(requests.steps_to_enter(request, "nobody"))
    with sqlite3.connect(tmp_path / "catalog.db") as db:
        since, lease_ms = SYSTEM_CLOCK.wall_ms() - 3 * DAY_MS - HALF_AN_HOUR_MS, 9 * DAY_MS + HALF_AN_HOUR_MS
        kept = (since, lease_ms, lease_ms)
        db.execute(
            "UPDATE commit_coord_requests SET requested_at_ms = ?, lease_ms = ?, expires_at = expires_at + ?", kept
        )
    db.close()
    yield made
    made.close()


def terminal(catalog: CoordinatedCatalog, *arguments: str, columns: int, lines: int = 24) -> Terminal:
    """Return a terminal in which ``commit-coord`` runs with *arguments* for *catalog*."""
    properties = catalog.configuration.properties
    place = ["-c", "shop", "--uri", f"coord+{properties['uri']}", "--warehouse", properties["warehouse"]]
    command = [sys.executable, "-m", "commit_coord.cli", *arguments, *place]
    return Terminal(command, columns=columns, lines=lines)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_locks_fit_the_screen_and_keep_the_resource_and_the_owner(catalog: CoordinatedCatalog, columns: int) -> None:
    with terminal(catalog, "locks", columns=columns) as screen:
        shown = screen.shows(lambda text: "ended: 0" in text)
    assert_golden(f"locks-{columns}", shown[:-1])


def test_a_question_on_a_narrow_screen_names_the_requests(catalog: CoordinatedCatalog) -> None:
    place = "shop/sales/region=north-east/day=2026-01-02"
    with terminal(catalog, "unlock", place, "--waiters", columns=60) as screen:
        shown = screen.shows(lambda text: "Free?" in text)
        screen.press("n", "Enter")
        screen.shows(lambda text: "ended: 1" in text)
    assert_golden("unlock-60", shown)


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_watched_tree_fits_the_screen(catalog: CoordinatedCatalog, columns: int) -> None:
    with terminal(catalog, "locks", "--watch", columns=columns) as screen:
        shown = screen.shows(lambda text: "Ctrl-C ends" in text)
    assert_golden(f"watch-{columns}", shown)


def test_a_watched_tree_on_a_resized_terminal_is_that_of_a_terminal_of_this_size(catalog: CoordinatedCatalog) -> None:
    with terminal(catalog, "locks", "--watch", "--every", "0.05", columns=120) as screen:
        wide = screen.shows(lambda text: "Ctrl-C ends" in text)
        for columns, lines in ((60, 24), (80, 12), (60, 24)):
            screen.resize(columns, lines)
        narrow = (GOLDEN / "watch-60.txt").read_text()
        screen.shows(lambda text: text + "\n" == narrow)
        screen.resize(120, 24)
        screen.shows(lambda text: text.split("\n") == wide)


def test_the_end_of_a_watch_leaves_the_last_tree_below_what_was_there_before(catalog: CoordinatedCatalog) -> None:
    with terminal(catalog, "locks", "--watch", columns=80) as screen:
        screen.shows(lambda text: "Ctrl-C ends" in text)
        screen.press("C-c")
        shown = screen.shows(lambda text: "ended: 0" in text)
    assert "\n".join(shown[:-1]) in (GOLDEN / "watch-80.txt").read_text()


def test_the_shell_takes_statements_of_several_lines_and_points_at_errors(catalog: CoordinatedCatalog) -> None:
    catalog.create_namespace("shop")
    with terminal(catalog, "sql", "-d", "shop", columns=100) as screen:
        screen.shows(lambda text: "commit-coord>" in text)
        screen.press("SHOW", "Enter")
        screen.press("DATABASES;", "Enter")
        screen.shows(lambda text: "database_name" not in text and "\nshop\n" in text)
        screen.press("help", "Enter")
        screen.shows(lambda text: "EXPLAIN [FORMATTED] LOCKS" in text)
        screen.press("SELECT *", "Enter")
        screen.press("FROM nope;", "Enter")
        screen.shows(lambda text: "  FROM nope;\n       ^\nerror: there is no such table" in text)
        screen.press("exit", "Enter")
        screen.shows(lambda text: "ended: 0" in text)
