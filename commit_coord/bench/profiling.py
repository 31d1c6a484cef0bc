"""Where the time of a commit goes: a stopwatch around its steps, and cProfile's view of the functions.

Three cases: a warm single append at 200 snapshots, one among 7 and 15 other writers, and one in a fresh process.
The stopwatch and the profiler run apart, since the profiler makes small functions look dearer than they are.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from commit_coord.bench.cells import LAYOUTS, percentile
from commit_coord.bench.commits import measure
from commit_coord.bench.phases import Phases
from commit_coord.bench.tables import NAMESPACE, ROWS, History, make_histories, open_catalog

_FRESH = """
import sys, time
began = time.perf_counter()
import commit_coord, pyarrow.parquet, pyiceberg.io.pyarrow
from commit_coord.bench.tables import NAMESPACE, ROWS, open_catalog
from pathlib import Path
imported = time.perf_counter()
catalog = open_catalog("commit_coord", Path(sys.argv[1]))
opened = time.perf_counter()
table = catalog.load_table((NAMESPACE, "fresh"))
loaded = time.perf_counter()
if len(sys.argv) > 2:
    import cProfile, pstats
    profile = cProfile.Profile()
    profile.runcall(table.append, ROWS)
    pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
else:
    table.append(ROWS)
    first = time.perf_counter()
    table.append(ROWS)
    second = time.perf_counter()
    spent = (imported - began, opened - imported, loaded - opened, first - loaded, second - first)
    print(*(round(s * 1000, 2) for s in spent))
"""


def run(
    folder: Path, *, snapshots: int, repeats: int, seconds: float, top: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Print the three profiles with *say* and return the stopwatch's figures."""
    history = make_histories(folder / "history", [snapshots])[snapshots]
    found: dict[str, Any] = {"snapshots": snapshots}
    found["fresh"] = _fresh(folder / "fresh", history, say)
    found["contended"] = {}
    for writers in (8, 16):
        cell = measure(
            folder / f"contended-{writers}", history, "commit_coord", LAYOUTS[0], writers, seconds, phases=True
        )
        say(f"\n{writers} writers on one table: {cell['per_second']}/s, CPU {cell['cpu_ms_each']} ms an append")
        say(f"waited p50 {cell['latch_waited_ms_p50']} ms, latch held p50 {cell['latch_held_ms_p50']} ms")
        _table(cell["phases"], cell["acknowledged"], say)
        found["contended"][str(writers)] = cell
    found["warm"] = _warm(folder / "warm", history, repeats, top, say)
    return found


def _warm(folder: Path, history: History, repeats: int, top: int, say: Callable[[str], None]) -> dict[str, Any]:
    import time

    catalog = open_catalog("commit_coord", folder)
    history.place(catalog, folder / "tables", "warm")
    table = catalog.load_table((NAMESPACE, "warm"))
    for _ in range(5):
        table.append(ROWS)
    plain = []
    for _ in range(repeats):
        began = time.perf_counter()
        table.append(ROWS)
        plain.append((time.perf_counter() - began) * 1000)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(repeats):
        table.append(ROWS)
    profile.disable()
    stopwatch = Phases()
    for _ in range(repeats):
        table.append(ROWS)
    totals = stopwatch.totals()
    catalog.close()
    say(
        f"\na warm append at {history.snapshots} snapshots: "
        f"median {median(plain):.2f} ms, p99 {percentile(plain, 0.99):.2f} ms"
    )
    _table(totals, repeats, say)
    for order in ("cumulative", "tottime"):
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats(order).print_stats(top)
        say(f"\n{repeats} appends by {order}\n" + text.getvalue())
    return {"median_ms": median(plain), "p99_ms": percentile(plain, 0.99), "phases": totals, "appends": repeats}


def _fresh(folder: Path, history: History, say: Callable[[str], None]) -> dict[str, float]:
    catalog = open_catalog("commit_coord", folder)
    history.place(catalog, folder / "tables", "fresh")
    catalog.close()
    rows = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", _FRESH, folder], capture_output=True, text=True, check=True)
        rows.append([float(word) for word in done.stdout.split()])
    names = ("imports", "open the catalog", "load the table", "first append", "second append")
    medians = {name: round(median(row[i] for row in rows), 1) for i, name in enumerate(names)}
    say(f"a fresh process, medians of {len(rows)}, ms: {medians}")
    done = subprocess.run([sys.executable, "-c", _FRESH, folder, "profile"], capture_output=True, text=True, check=True)
    say("\nthe first append of a process\n" + done.stdout)
    return medians


def _table(phases: dict[str, Any], appends: int, say: Callable[[str], None]) -> None:
    say(f"{'step':<46}{'ms an append':>14}{'CPU ms':>10}{'times':>8}")
    for label, (times, ms, cpu_ms) in sorted(phases.items()):
        say(f"{label:<46}{ms / appends:>14.3f}{cpu_ms / appends:>10.3f}{times / appends:>8.2f}")


def main(folder: Path | None, say: Callable[[str], None], *, seconds: float = 10.0) -> None:
    """Run in a temporary folder unless *folder* is given."""
    with tempfile.TemporaryDirectory(prefix="commit-coord-profile-") as made:
        run(folder or Path(made), snapshots=200, repeats=100, seconds=seconds, top=35, say=say)
