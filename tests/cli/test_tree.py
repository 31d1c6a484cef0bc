"""``commit-coord locks --watch``: the tree of holders and waiters."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.cli.tree import WaiterWatch, lock_tree
from commit_coord.model import LockEntry, LockMode, LockScope, LockState, Owner, Resource
from tests.processes import Process

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
NOW_MS = 1_700_000_000_000
ANN = Owner(user="ann", host="etl", pid=12, application="", statement="INSERT [1]")
BOB = Owner(user="bob", host="desk", pid=7, application="notebook")


def entry(
    path: str, mode: LockMode, request_id: str, *, owner: Owner = ANN, age_ms: int = 1000, behind: str | None = None
) -> LockEntry:
    """Return a lock that is held, or waits *behind* another request."""
    return LockEntry(
        resource=Resource.parse(path),
        mode=mode,
        scope=LockScope.OPERATION,
        state=LockState.WAITING if behind else LockState.ACQUIRED,
        owner=owner,
        request_id=request_id,
        generation=None,
        requested_at_ms=NOW_MS - age_ms,
        expires_in_ms=9000,
        blocked_by=behind,
    )


def rendered(
    entries: Sequence[LockEntry], *, watch: WaiterWatch | None = None, lines: int = 100, now_ms: int = NOW_MS
) -> list[str]:
    """Return the lines of the tree, without the blanks at their ends."""
    console = Console(width=108, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - as long as the test
    watch = watch or WaiterWatch()
    watch.look(entries, now_ms=now_ms)
    with console.file:
        console.print(lock_tree(entries, watch, now_ms=now_ms, title="catalog shop", lines=lines))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_tree_shows_who_holds_and_who_waits_where() -> None:
    entries = [
        entry("shop/sales", S, "11111111-a", age_ms=61_000),
        entry("shop/sales/day=1", X, "11111111-a", age_ms=61_000),
        entry("shop/sales/day=2", X, "22222222-b", owner=BOB, age_ms=350),
        entry("shop/sales", S, "22222222-b", owner=BOB, age_ms=350),
        entry("shop/sales", S, "33333333-c", age_ms=2500, behind="11111111-a"),
        entry("shop/sales/day=1", X, "33333333-c", age_ms=2500, behind="11111111-a"),
        entry("shop/items", X, "44444444-d", owner=BOB),
        entry("shop/items", S, "55555555-e", owner=ANN, behind="44444444-d"),
        entry("depot", S, "66666666-f", owner=BOB),
    ]
    assert rendered(entries) == [
        "catalog shop",
        "resource, owner                      state        for  expires in  request",
        "shop",
        "├─ sales",
        "│  ├─ S ann@etl pid 12: INSERT [1]   holds  1 min 1 s  9.0 s       11111111  1 behind it",
        "│  ├─ day=1",
        "│  │  ├─ X ann@etl pid 12: INSERT …  holds  1 min 1 s  9.0 s       11111111  1 behind it",
        "│  │  └─ X ann@etl pid 12: INSERT …  waits      2.5 s  9.0 s       33333333  behind 11111111  ann@etl pid 12",
        "│  └─ day=2 X bob@desk pid 7 noteb…  holds     350 ms  9.0 s       22222222",
        "└─ items",
        "   ├─ X bob@desk pid 7 notebook      holds      1.0 s  9.0 s       44444444  1 behind it",
        "   └─ S ann@etl pid 12: INSERT [1]   waits      1.0 s  9.0 s       55555555  behind 44444444  bob@desk pid 7",
        "depot S bob@desk pid 7 notebook      holds      1.0 s  9.0 s       66666666",
    ]


def test_a_tree_without_locks_is_one_line() -> None:
    assert ["catalog shop: no locks"] == rendered([])


def test_a_lock_that_was_waited_for_is_held_since_its_grant() -> None:
    watch = WaiterWatch()
    holder = entry("shop/sales", X, "11111111-a")
    rendered([holder, entry("shop/sales", X, "22222222-b", behind="11111111-a", age_ms=4000)], watch=watch)
    granted = entry("shop/sales", X, "22222222-b", age_ms=4000)
    assert "holds  0 ms" in rendered([granted], watch=watch, now_ms=NOW_MS + 500)[-1]
    assert "holds  1.0 s" in rendered([granted], watch=watch, now_ms=NOW_MS + 1500)[-1]


def test_a_hundred_thousand_locks_fit_on_the_screen() -> None:
    """Whatever its height: what waits longest is opened first, the rest is counted, and no lock is left out."""
    entries = [entry(f"shop/t{n % 100}/day={n:06}", X, f"{n:08}") for n in range(100_000)]
    entries.append(entry("shop/t43/day=099943", S, "shorter-", age_ms=98_000, behind="00099943"))
    entries.append(entry("shop/t42/day=099942", S, "longest-", age_ms=99_000, behind="00099942"))
    for lines in (7, 40):
        shown = rendered(entries, lines=lines)
        assert len(shown) <= lines + 2
        text = "\n".join(shown)
        held = sum(int(number.replace(",", "")) for number in re.findall(r"([\d,]+) held", text))
        assert 100_000 == held + text.count(" holds ")
        assert ("longest-" in text, "shorter-" in text) == (lines == 40, lines == 40)
        assert "more: " in text


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    """Of a catalog on SQLite."""
    return {"uri": f"coord+sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.joinpath("warehouse").as_uri()}


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[CoordinatedCatalog]:
    """That catalog."""
    made = commit_coord.load_catalog("shop", **properties)
    yield made
    made.close()


def test_a_terminal_shows_another_process_hold_and_wait_until_ctrl_c(
    catalog: CoordinatedCatalog, properties: dict[str, str]
) -> None:
    """In place, on a real terminal; Ctrl-C ends it with code 0 and leaves the cursor visible."""
    arguments = [f"--{key}={value}" for key, value in properties.items()]
    # Tests that run in the background ignore SIGINT, and so would what they start.
    code = "import signal as s, commit_coord.cli as c; s.signal(s.SIGINT, s.default_int_handler); c.main()"
    line = [sys.executable, "-c", code, "locks", "--watch", "--every", "0.05", "-c", "shop", *arguments]
    ours, theirs = pty.openpty()
    waiting = 'locked(X, "shop", "sales", "day=1", statement="the waiter")'
    with (
        catalog.lock_operation({Resource(("shop", "sales", "day=1")): X}, statement="the holder"),
        Process(properties, waiting),
    ):
        command = subprocess.Popen(
            line, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "150"}
        )
        os.close(theirs)
        seen = ""
        while not re.search(r"the holder.*holds.*1 behind it.*the waiter.*waits.*behind", seen, re.DOTALL):
            assert command.poll() is None, seen
            seen += os.read(ours, 65536).decode(errors="replace")
        command.send_signal(signal.SIGINT)
        while command.poll() is None:
            seen += _rest(ours)
    seen += _rest(ours)
    os.close(ours)
    assert 0 == command.returncode, seen
    assert "Traceback" not in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")


def _rest(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # the other end was closed
        return ""
