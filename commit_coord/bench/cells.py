"""One cell of a comparison: writer processes append for a while, then the tables that they appended to are proved."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

from commit_coord.bench.fleet import PYTHON, WarmWorkers, run_together
from commit_coord.bench.tables import ROWS, History, catalog_of, inspect, locks_left, missing_files

LAYOUTS = ("one table", "one table each")

_PATIENCE_S = 180.0
"""For a worker's last append, which began in time: PyIceberg waits and retries, 16 of them share the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One side of a comparison.

    Args:
        kind: What the results call it.
        catalog: The properties of the catalog that its tables are in.
        table: Properties of these tables.
        command: What a writer's process runs.
        spec: Further arguments of a writer.
    """

    kind: str
    catalog: Mapping[str, str]
    table: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = PYTHON
    spec: Mapping[str, Any] = field(default_factory=dict)


def plan(writers: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Yield each layout with each number of writers; one writer has one table in both."""
    for count in writers:
        for layout in LAYOUTS:
            if layout == LAYOUTS[0] or count > 1:
                yield layout, count


def measure(
    folder: Path,
    history: History,
    contender: Contender,
    layout: str,
    writers: int,
    seconds: float,
    *,
    prefix: str = "",
    tables: int | None = None,
    threads: int = 1,
    fleet: WarmWorkers | None = None,
    locks: Callable[[Catalog], int] = locks_left,
    placed: Callable[[str], None] = lambda _: None,
    meanwhile: Callable[[float], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure one cell on new tables and look at them afterwards.

    Args:
        folder: Where the tables' new files go; removed afterwards.
        history: What the tables begin with.
        contender: Whose writers.
        layout: One of :data:`LAYOUTS`, or what *tables* amounts to.
        writers: How many.
        seconds: For how long they begin appends.
        prefix: Of the tables' names, where cells share a catalog.
        tables: How many tables there are; None as *layout* says.
        threads: How many of the writers are threads of one process.
        fleet: Whose processes write; None starts new ones, as the contender's writers have to be in another language.
        locks: Says how many locks are left.
        placed: Called with each table when it is there.
        meanwhile: Called while they write, with the moment of their start.

    Raises:
        WriterFailed: A writer ended, or its last append did not.
    """
    folder.mkdir(parents=True)
    count = tables or (1 if layout == LAYOUTS[0] else writers)
    names = [f"{prefix}t{number}" for number in range(count)]
    catalog = catalog_of(contender.catalog)
    for name in names:
        history.place(catalog, folder / "tables", name, contender.table)
        placed(name)
    specs = [
        {
            "catalog": dict(contender.catalog),
            "tables": names if threads > 1 else [names[worker % len(names)]],
            "threads": threads,
            "scratch": f"{prefix}warm_{worker}",
            "seconds": seconds,
            **contender.spec,
        }
        for worker in range(writers // threads)
    ]
    timeout_s = seconds + _PATIENCE_S
    if fleet is not None and contender.command == PYTHON:
        answers = fleet.run(specs, timeout_s=timeout_s, meanwhile=meanwhile)
    else:
        command = contender.command
        answers = run_together("append_for_a_while", specs, timeout_s=timeout_s, command=command, meanwhile=meanwhile)
    found = [inspect(catalog, name) for name in names]
    acknowledged = sum(answer["acknowledged"] for answer in answers)
    added = sum(finding.snapshots - history.snapshots for finding in found)
    rows = sum(finding.rows for finding in found)
    missing = sum(missing_files(catalog, name) for name in names)
    left = locks(catalog)
    unbroken = all(finding.unbroken for finding in found)
    proved = (
        acknowledged == added
        and unbroken
        and rows == (added + len(names) * history.snapshots) * ROWS.num_rows
        and missing == 0
        and left == 0
    )
    catalog.close()
    shutil.rmtree(folder)
    latencies = [ms for answer in answers for ms in answer["acknowledged_ms"]]
    attempts = sum(answer["attempts"] for answer in answers)
    swaps = sum(answer.get("swaps", 0) for answer in answers)
    cell = {
        "kind": contender.kind,
        "layout": layout,
        "writers": writers,
        "seconds": seconds,
        "per_second": _rounded(sum(answer["in_time"] for answer in answers) / seconds),
        "p50_ms": _rounded(percentile(latencies, 0.5)),
        "p99_ms": _rounded(percentile(latencies, 0.99)),
        "max_ms": _rounded(max(latencies, default=None)),
        "acknowledged": acknowledged,
        "failed": sum(len(answer["failed_ms"]) for answer in answers),
        "errors": _counted(answers),
        "least_by_one_writer": min(answer["acknowledged"] for answer in answers),
        "most_by_one_writer": max(answer["acknowledged"] for answer in answers),
        "cpu_ms_each": _rounded(sum(answer["cpu_s"] for answer in answers) * 1000 / max(1, acknowledged)),
        "attempts_each": _rounded(attempts / acknowledged) if acknowledged else None,
        "attempts_per_swap": _rounded(acknowledged / swaps) if swaps else None,
        "swaps": swaps,
        "swaps_per_second": _rounded(swaps / seconds),
        "snapshots_added": added,
        "unbroken": unbroken,
        "missing_files": missing,
        "locks_left": left,
        "proved": proved,
    }
    for name in ("waited_ms", "held_ms"):
        values = [ms for answer in answers for ms in answer.get(name, ())]
        cell[f"latch_{name}_p50"] = _rounded(percentile(values, 0.5))
        cell[f"latch_{name}_p99"] = _rounded(percentile(values, 0.99))
    if contender.spec.get("phases"):
        cell["phases"] = _added_up(answers)
    return cell


def summary(cell: Mapping[str, Any]) -> str:
    """Return a cell on one line."""
    return (
        f"{cell['layout']}, {cell['writers']} writers, {cell['kind']}: {cell['per_second']}/s, "
        f"p50 {cell['p50_ms']} ms, p99 {cell['p99_ms']} ms, failed {cell['failed']}, proved {cell['proved']}"
    )


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which *share* of *values* lie (nearest rank), None when there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def ratio(mine: float | None, theirs: float | None) -> float | None:
    """Return how many times *theirs* is in *mine*; None when one was not measured, or can't be divided by."""
    return None if mine is None or not theirs else round(mine / theirs, 2)


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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
