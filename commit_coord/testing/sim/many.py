"""Many runs, on several processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache

from commit_coord.testing.sim.plan import Moves, Plan, draw
from commit_coord.testing.sim.run import hash_of, simulate

_CHUNK = 50
_CHUNKS_PER_PROCESS = 100
"""Clients that die in a run never end, and some of what they held stays: a process ends before it has too many."""


@dataclass(slots=True)
class Shown:
    """What some of the runs showed.

    Args:
        runs: How many.
        failed: The seeds of those that broke a promise.
        tally: How the appends ended.
        digest: Of all histories, in whatever order they were made.
    """

    runs: int = 0
    failed: list[int] = field(default_factory=list)
    tally: Counter[str] = field(default_factory=Counter)
    digest: int = 0

    def __iadd__(self, other: Shown) -> Shown:
        """Add what others showed."""
        self.runs += other.runs
        self.failed += other.failed
        self.tally += other.tally
        self.digest ^= other.digest
        return self


Chunk = tuple[int, int, int]
"""The first seed, how many, and how often the runs of moves are struck; 0 for other runs."""


def plan_of(seed: int, strikes: int) -> Plan:
    """Return the plan of a run."""
    return every_move(strikes)[seed - 1] if strikes else draw(seed)


every_move = cache(Moves)


def run_all(seed: int, runs: int, processes: int, strikes: int = 0) -> Iterator[Shown]:
    """Yield what chunks of the runs showed, as they come."""
    chunks = [(first, min(_CHUNK, seed + runs - first), strikes) for first in range(seed, seed + runs, _CHUNK)]
    if len(chunks) == 1:
        yield _chunk(chunks[0])
        return
    # Not by max_tasks_per_child: with Python 3.11 nobody takes the place of the last process that ended so.
    at_once = _CHUNKS_PER_PROCESS * processes
    for start in range(0, len(chunks), at_once):
        yield from _in_new_processes(chunks[start : start + at_once], processes)


def _in_new_processes(chunks: Sequence[Chunk], processes: int) -> Iterator[Shown]:
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(_chunk, chunk) for chunk in chunks]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _chunk(chunk: Chunk) -> Shown:
    first, runs, strikes = chunk
    shown = Shown(runs)
    for seed in range(first, first + runs):
        outcome = simulate(plan_of(seed, strikes))
        shown.tally.update(acknowledged=outcome.acknowledged, refused=outcome.refused, unknown=outcome.unknown)
        if outcome.broken:
            shown.failed.append(seed)
        shown.digest ^= hash_of(f"{seed} {outcome.digest}")
    return shown
