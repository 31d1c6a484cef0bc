"""Acknowledged appends a second, against PyIceberg's ``SqlCatalog``: many writers on one table, or on one each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from commit_coord.bench import cells
from commit_coord.bench.cells import LAYOUTS, Contender, plan, ratio, summary
from commit_coord.bench.tables import KINDS, History, Kind, make_histories, sql_properties


def run(
    folder: Path, *, seconds: float, writers: Iterable[int], snapshots: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure every cell, ours and the peer's one after the other, and return the figures with what was proved."""
    say(f"making a history of {snapshots} snapshots")
    history = make_histories(folder / "history", [snapshots])[snapshots]
    measured = []
    for number, (layout, count) in enumerate(plan(writers)):
        # Who goes first alternates: what a disk cache or a neighbour does to the first is done to both in turn.
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            cell = measure(folder / f"cell-{number}-{kind}", history, kind, layout, count, seconds)
            say(summary(cell))
            measured.append(cell)
    return {"snapshots_before": snapshots, "seconds": seconds, "cells": measured, "bars": _bars(measured)}


def measure(
    folder: Path, history: History, kind: Kind, layout: str, writers: int, seconds: float, phases: bool = False
) -> dict[str, Any]:
    """Measure one cell in a catalog of its own."""
    contender = Contender(kind=kind, catalog=sql_properties(kind, folder), spec={"phases": phases})
    return cells.measure(folder, history, contender, layout, writers, seconds)


def _bars(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the figures say about the bar: 5 times with one writer, 15 times and 0.9 of one with sixteen."""
    rate = {(c["kind"], c["writers"]): c["per_second"] for c in found if c["layout"] == LAYOUTS[0]}
    cpu = {c["writers"]: c["cpu_ms_each"] for c in found if c["kind"] == "commit_coord" and c["layout"] == LAYOUTS[0]}
    one, many = rate.get(("commit_coord", 1)), rate.get(("commit_coord", 16))
    return {
        "one writer, acknowledged a second (at least 25)": one,
        "one writer, times PyIceberg (at least 5)": ratio(one, rate.get(("pyiceberg", 1))),
        "16 writers, times PyIceberg (at least 15)": ratio(many, rate.get(("pyiceberg", 16))),
        "16 writers, share of one writer's rate (at least 0.9)": ratio(many, one),
        "16 writers, CPU ms of a writer by append (at most 8)": cpu.get(16),
        "every cell of ours proved": all(c["proved"] for c in found if c["kind"] == "commit_coord"),
    }
