"""A stopwatch around the steps of a commit. It replaces functions of the running process, so only a worker uses it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any

import pyiceberg.io.pyarrow
from pyiceberg.table import Transaction

from commit_coord import coordinator
from commit_coord.coordinator import planning
from commit_coord.coordinator.commit import Commit
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.table import CoordinatedTransaction
from commit_coord.table.append import PureAppend
from commit_coord.table.committing import Committing


class Phases:
    """Measures inclusive times of the steps of every commit from now on.

    Both wall time and this thread's own CPU time: what lies between them was spent on waiting for the disk, for
    another thread, or for a core that another process had.

    Steps contain one another as their names say: ``under latch: plan: read head`` is part of
    ``under latch: plan``.
    """

    def __init__(self) -> None:
        self._totals: defaultdict[str, tuple[int, float, float]] = defaultdict(lambda: (0, 0.0, 0.0))
        self._effects()
        latched = "under latch: "
        for owner, name, label in (
            (CoordinatedTransaction, "append", "prepare: append()"),
            (Transaction, "append", "prepare: append(): PyIceberg"),
            (pyiceberg.io.pyarrow, "write_file", "prepare: append(): write data file"),
            (Committing, "attempt", "prepare: attempt"),
            (PureAppend, "_own_manifests", "prepare: attempt: write manifest"),
            (PureAppend, "_merge", "prepare: attempt: merge"),
            (coordinator.Coordinator, "commit", "coordinator.commit"),
            (planning, "rebase", f"{latched}plan: rebase"),
            (fast_metadata, "apply_updates", f"{latched}plan: rebase: apply updates"),
            (coordinator.Coordinator, "read", f"{latched}plan: read head"),
            (manifest_list, "write_appended", f"{latched}write: manifest list"),
            (fast_metadata, "dump_parts", f"{latched}write: dump metadata"),
        ):
            self._wrap(owner, name, label)

    def totals(self) -> dict[str, tuple[int, float, float]]:
        """Return for each step how often it was done, its milliseconds in all, and its milliseconds of CPU."""
        return dict(self._totals)

    def clear(self) -> None:
        """Start again from zero."""
        self._totals.clear()

    def _add(self, label: str, began: float, cpu: float) -> None:
        times, ms, cpu_ms = self._totals[label]
        ms += (time.perf_counter() - began) * 1000
        self._totals[label] = (times + 1, ms, cpu_ms + (time.thread_time() - cpu) * 1000)

    def _effects(self) -> None:
        perform = Commit._perform

        def timed(commit: Any, effect: Any) -> Any:
            name = type(effect).__name__
            label = {"AcquireLatch": "acquire latch", "Release": "release latch"}.get(
                name, f"under latch: {name.lower()}"
            )
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return perform(commit, effect)
            finally:
                self._add(label, began, cpu)

        Commit._perform = timed  # type: ignore[method-assign, assignment]

    def _wrap(self, owner: Any, name: str, label: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                self._add(label, began, cpu)

        setattr(owner, name, timed)
