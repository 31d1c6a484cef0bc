"""What one commit costs at 10, 1,000 and 5,000 snapshots, in a warm process and in a fresh one; and the imports."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from commit_coord.bench.fleet import Worker
from commit_coord.bench.tables import KINDS, Kind, locks_left, make_histories, open_catalog
from commit_coord.testing.fleet import WriterFailed


def run(
    folder: Path, *, lengths: Sequence[int], repeats: int, patience_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure *repeats* commits of each kind at each of *lengths*; PyIceberg as far as it gets in *patience_s* each."""
    say(f"making a history of {max(lengths)} snapshots by real appends")
    histories = make_histories(folder / "history", lengths)
    folders = {kind: folder / kind for kind in KINDS}
    for kind in KINDS:
        folders[kind].mkdir()
        catalog = open_catalog(kind, folders[kind])
        for length in lengths:
            for state in ("warm", "fresh"):
                histories[length].place(catalog, folders[kind] / "tables", f"{state}_{length}")
        catalog.close()
    samples: dict[tuple[Kind, str, int], list[dict[str, float]]] = {}
    gave_up: dict[str, str] = {}
    _warm(folders, lengths, repeats, patience_s, samples, gave_up)
    say("warm processes done")
    _fresh(folders, lengths, repeats, patience_s, samples, gave_up)
    say("fresh processes done")
    catalog = open_catalog("commit_coord", folders["commit_coord"])
    left = locks_left(catalog)
    catalog.close()
    shutil.rmtree(folder)
    cells = [
        {
            "kind": kind,
            "process": state,
            "snapshots": length,
            "samples": len(found),
            **{name: round(median(sample[name] for sample in found), 2) for name in found[0]},
        }
        for (kind, state, length), found in samples.items()
        if found
    ]
    for cell in cells:
        say(
            f"{cell['kind']}, {cell['process']}, {cell['snapshots']} snapshots: "
            f"{cell['ms']} ms, CPU {cell['cpu_ms']} ms"
        )
    imports = _imports(repeats)
    for what, cpu_ms in imports.items():
        say(f"{what}: CPU {cpu_ms} ms")
    return {
        "repeats": repeats,
        "cells": cells,
        "gave_up": gave_up,
        "locks_left": left,
        "imports": imports,
        "bars": _bars(cells, lengths, imports),
    }


_PYTHON: dict[str, Sequence[str]] = {
    "the interpreter alone": ("-c", "pass"),
    "import commit_coord": ("-c", "import commit_coord"),
    "import of a catalog": ("-c", "import commit_coord.catalog.sql"),
    "import of PyIceberg and PyArrow": ("-c", "import pyarrow, pyiceberg.catalog.sql, pyiceberg.table"),
    "commit-coord --help": ("-m", "commit_coord.cli", "--help"),
}
"""What a fresh interpreter is given."""


def _imports(repeats: int) -> dict[str, float]:
    """Return the CPU milliseconds, user and system, of a fresh interpreter for each of these; medians."""
    samples: dict[str, list[float]] = {what: [] for what in _PYTHON}
    for _ in range(repeats):
        for what, arguments in _PYTHON.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            samples[what].append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
    return {what: round(median(found), 1) for what, found in samples.items()}


Samples = dict[tuple[Kind, str, int], list[dict[str, float]]]


def _warm(
    folders: dict[Kind, Path],
    lengths: Sequence[int],
    repeats: int,
    patience_s: float,
    samples: Samples,
    gave_up: dict[str, str],
) -> None:
    workers: dict[tuple[Kind, int], Worker] = {}
    try:
        for kind in KINDS:
            for length in lengths:
                # A process for each: what one table leaves in memory must not slow down another one's commit.
                worker = _ready(kind, folders[kind], [f"warm_{length}"], patience_s, gave_up)
                if worker is not None:
                    workers[kind, length] = worker
        for _ in range(repeats):
            for (kind, length), worker in list(workers.items()):
                try:
                    answer = worker.ask({"table": f"warm_{length}"}, patience_s)
                except WriterFailed as error:
                    gave_up[f"{kind}, warm, {length}"] = str(error)
                    workers.pop((kind, length)).close()
                    continue
                samples.setdefault((kind, "warm", length), []).append(answer)
    finally:
        for worker in workers.values():
            worker.close()


def _ready(
    kind: Kind, folder: Path, tables: list[str], patience_s: float, gave_up: dict[str, str], fresh: bool = False
) -> Worker | None:
    worker = Worker("append_once", {"kind": kind, "folder": str(folder), "tables": tables, "fresh": fresh})
    try:
        worker.receive(patience_s)
    except WriterFailed as error:
        gave_up[f"{kind}, {', '.join(tables)}"] = str(error)
        worker.close()
        return None
    return worker


def _fresh(
    folders: dict[Kind, Path],
    lengths: Sequence[int],
    repeats: int,
    patience_s: float,
    samples: Samples,
    gave_up: dict[str, str],
) -> None:
    for _ in range(repeats):
        for kind in KINDS:
            for length in lengths:
                if f"{kind}, fresh, {length}" in gave_up:
                    continue
                worker = _ready(kind, folders[kind], [f"fresh_{length}"], patience_s, gave_up, fresh=True)
                if worker is None:
                    continue
                try:
                    answer = worker.ask({"table": f"fresh_{length}"}, patience_s)
                except WriterFailed as error:
                    gave_up[f"{kind}, fresh, {length}"] = str(error)
                    continue
                finally:
                    worker.close()
                answer["process_ms"] = worker.lasted_s * 1000
                samples.setdefault((kind, "fresh", length), []).append(answer)


def _bars(cells: list[dict[str, Any]], lengths: Sequence[int], imports: dict[str, float]) -> dict[str, Any]:
    cost = {(c["process"], c["snapshots"]): c["ms"] for c in cells if c["kind"] == "commit_coord"}
    first, last = min(lengths), max(lengths)
    return {
        f"fresh: the first commit at {first} snapshots, ms (at most 40)": cost.get(("fresh", first)),
        "import commit_coord, CPU ms (at most 900)": imports["import commit_coord"],
        "import of a catalog, CPU ms (at most 900)": imports["import of a catalog"],
        "commit-coord --help, CPU ms (at most 300)": imports["commit-coord --help"],
        **{
            f"{state}: cost at {last} snapshots, times that at {first} (at most 2)": round(
                cost[state, last] / cost[state, first], 2
            )
            for state in ("warm", "fresh")
        },
    }
