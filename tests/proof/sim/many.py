"""Many runs, on several processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache

from tests.proof.sim.plan import Moves, Plan, draw, draw_rest, draw_rows
from tests.proof.sim.rows import simulate_rows
from tests.proof.sim.run import Outcome, hash_of, simulate
from tests.proof.sim.serving import simulate_rest

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which runs.

    Args:
        strikes: How often processes are struck while a table moves; 0: it does not move.
        rows: Whether tables with rows are written.
        rest: Whether clients write through servers.
    """

    strikes: int = 0
    rows: bool = False
    rest: bool = False

    def plan(self, seed: int) -> Plan:
        """Return the plan of a run."""
        if self.strikes:
            return every_move(self.strikes)[seed - 1]
        if self.rest:
            return draw_rest(seed)
        return draw_rows(seed) if self.rows else draw(seed)

    def simulate(self, plan: Plan) -> Outcome:
        """Run *plan*."""
        if self.rest:
            return simulate_rest(plan)
        return simulate_rows(plan) if self.rows else simulate(plan)


Chunk = tuple[int, int, Which]
"""The first seed, how many, and which runs."""


every_move = cache(Moves)


def run_all(seed: int, runs: int, processes: int, which: Which = Which()) -> Iterator[Shown]:
    """Yield what chunks of the runs showed, as they come."""
    chunks = [(first, min(_CHUNK, seed + runs - first), which) for first in range(seed, seed + runs, _CHUNK)]
    if len(chunks) == 1:
        yield _chunk(chunks[0])
        return
    # Not by max_tasks_per_child: with Python 3.11 nobody takes the place of the last process that ended so.
    at_once = _CHUNKS_PER_PROCESS * processes
    for start in range(0, len(chunks), at_once):
        yield from _in_new_processes(chunks[start : start + at_once], processes)


def _in_new_processes(chunks: Sequence[Chunk], processes: int) -> Iterator[Shown]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting = [pool.submit(_chunk, chunk) for chunk in chunks]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _chunk(chunk: Chunk) -> Shown:
    first, runs, which = chunk
    shown = Shown(runs)
    for seed in range(first, first + runs):
        outcome = which.simulate(which.plan(seed))
        shown.tally.update(acknowledged=outcome.acknowledged, refused=outcome.refused, unknown=outcome.unknown)
        if outcome.broken:
            shown.failed.append(seed)
        shown.digest ^= hash_of(f"{seed} {outcome.digest}")
    return shown
