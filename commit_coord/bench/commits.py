"""Acknowledged appends a second beside PyIceberg's ``SqlCatalog``: many writers on one table, and on one each."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from commit_coord.bench.fleet import run_together
from commit_coord.bench.tables import (
    KINDS,
    NAMESPACE,
    ROWS,
    History,
    Kind,
    inspect,
    locks_left,
    make_histories,
    open_catalog,
)

LAYOUTS = ("one table", "one table each")

_PATIENCE_S = 180.0
"""For a worker's last append, which began in time: PyIceberg waits and retries, 16 of them share the cores."""


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which *share* of *values* lie (nearest rank), None when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def run(
    folder: Path, *, seconds: float, writers: Iterable[int], snapshots: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure every cell, ours and the peer's one after the other, and return the figures with what was proved."""
    say(f"making a history of {snapshots} snapshots")
    history = make_histories(folder / "history", [snapshots])[snapshots]
    cells = []
    for number, (layout, count) in enumerate(_plan(writers)):
        # Who goes first alternates: what a disk cache or a neighbour does to the first is done to both in turn.
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            cell = measure(folder / f"cell-{number}-{kind}", history, kind, layout, count, seconds)
            say(
                f"{layout}, {count} writers, {kind}: {cell['per_second']}/s, p50 {cell['p50_ms']} ms, "
                f"p99 {cell['p99_ms']} ms, failed {cell['failed']}, proved {cell['proved']}"
            )
            cells.append(cell)
    return {"snapshots_before": snapshots, "seconds": seconds, "cells": cells, "bars": _bars(cells)}


def _plan(writers: Iterable[int]) -> Iterator[tuple[str, int]]:
    counts = list(writers)
    for count in counts:
        for layout in LAYOUTS:
            if layout == LAYOUTS[0] or count > 1:
                yield layout, count


def measure(
    folder: Path, history: History, kind: Kind, layout: str, writers: int, seconds: float, phases: bool = False
) -> dict[str, Any]:
    """Measure one cell on new tables and look at them afterwards."""
    folder.mkdir(parents=True)
    names = ["t"] if layout == LAYOUTS[0] else [f"t{worker}" for worker in range(writers)]
    catalog = open_catalog(kind, folder)
    for name in names:
        history.place(catalog, folder / "tables", name)
    specs = [
        {
            "kind": kind,
            "folder": str(folder),
            "table": names[worker % len(names)],
            "worker": worker,
            "seconds": seconds,
            "phases": phases,
        }
        for worker in range(writers)
    ]
    answers = run_together("append_for_a_while", specs, timeout=seconds + _PATIENCE_S)
    found = [inspect(catalog, name) for name in names]
    acknowledged = sum(answer["acknowledged"] for answer in answers)
    added = sum(finding.snapshots - history.snapshots for finding in found)
    rows = sum(finding.rows for finding in found)
    left = locks_left(catalog)
    unbroken = all(finding.unbroken for finding in found)
    proved = (
        acknowledged == added
        and unbroken
        and rows == (added + len(names) * history.snapshots) * ROWS.num_rows
        and left == 0
    )
    catalog.close()
    shutil.rmtree(folder)
    latencies = [ms for answer in answers for ms in answer["acknowledged_ms"]]
    failed = sum(len(answer["failed_ms"]) for answer in answers)
    swaps = sum(answer["swaps"] for answer in answers)
    cell = {
        "kind": kind,
        "layout": layout,
        "writers": writers,
        "per_second": _rounded(sum(answer["in_time"] for answer in answers) / seconds),
        "p50_ms": _rounded(percentile(latencies, 0.5)),
        "p99_ms": _rounded(percentile(latencies, 0.99)),
        "acknowledged": acknowledged,
        "failed": failed,
        "errors": _counted(answers),
        "least_by_one_writer": min(answer["acknowledged"] for answer in answers),
        "most_by_one_writer": max(answer["acknowledged"] for answer in answers),
        "cpu_ms_each": _rounded(sum(answer["cpu_s"] for answer in answers) * 1000 / max(1, acknowledged)),
        "attempts_per_swap": _rounded(acknowledged / swaps) if swaps else None,
        "snapshots_added": added,
        "unbroken": unbroken,
        "locks_left": left,
        "proved": proved,
    }
    for name in ("waited_ms", "held_ms"):
        values = [ms for answer in answers for ms in answer[name]]
        cell[f"latch_{name}_p50"] = _rounded(percentile(values, 0.5))
        cell[f"latch_{name}_p99"] = _rounded(percentile(values, 0.99))
    if phases:
        cell["phases"] = _added_up(answers)
    return cell


def _added_up(answers: list[dict[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Return the sums of times, milliseconds and CPU milliseconds by step."""
    total: dict[str, tuple[float, ...]] = {}
    for answer in answers:
        for label, sums in answer["phases"].items():
            total[label] = tuple(a + b for a, b in zip(total.get(label, (0, 0.0, 0.0)), sums, strict=True))
    return total


def _counted(answers: list[dict[str, Any]]) -> dict[str, int]:
    errors: Counter[str] = Counter()
    for answer in answers:
        errors.update(answer["errors"])
    return dict(errors)


def _bars(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the figures say about the bar: 5 times with one writer, 15 times and 0.9 of one with sixteen."""
    rate = {(c["kind"], c["writers"]): c["per_second"] for c in cells if c["layout"] == LAYOUTS[0]}
    one, many = rate.get(("commit_coord", 1)), rate.get(("commit_coord", 16))
    share = None if not one or many is None else round(many / one, 2)

    def times(mine: float | None, theirs: float | None) -> float | None:
        # A peer that landed nothing at all can't be divided by; the table shows its zero.
        return None if mine is None or not theirs else round(mine / theirs, 1)

    return {
        "one writer, acknowledged a second (at least 25)": one,
        "one writer, times PyIceberg (at least 5)": times(one, rate.get(("pyiceberg", 1))),
        "16 writers, times PyIceberg (at least 15)": times(many, rate.get(("pyiceberg", 16))),
        "16 writers, share of one writer's rate (at least 0.9)": share,
        "every cell of ours proved": all(c["proved"] for c in cells if c["kind"] == "commit_coord"),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


__all__ = ["LAYOUTS", "NAMESPACE", "measure", "percentile", "run"]
