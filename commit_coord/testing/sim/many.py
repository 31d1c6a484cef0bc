"""Many runs, on several processes."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache

from commit_coord.testing.sim.plan import Moves, Plan, draw
from commit_coord.testing.sim.run import simulate

_CHUNK = 50
_CHUNKS_PER_PROCESS = 100
"""Clients that die in a run never end, and some of what they held stays: a process ends before it has too many."""

Tally = Counter[str]

Chunk = tuple[int, int, int]
"""The first seed, how many, and how often the runs of moves are struck; 0 for other runs."""


def plan_of(seed: int, strikes: int) -> Plan:
    """Return the plan of a run."""
    return every_move(strikes)[seed - 1] if strikes else draw(seed)


every_move = cache(Moves)


def run_all(seed: int, runs: int, processes: int, strikes: int = 0) -> Iterator[tuple[int, list[int], Tally]]:
    """Yield what chunks of the runs showed, as they come."""
    chunks = [(first, min(_CHUNK, seed + runs - first), strikes) for first in range(seed, seed + runs, _CHUNK)]
    if len(chunks) == 1:
        yield _chunk(chunks[0])
        return
    # Not by max_tasks_per_child: with Python 3.11 nobody takes the place of the last process that ended so.
    at_once = _CHUNKS_PER_PROCESS * processes
    for start in range(0, len(chunks), at_once):
        yield from _in_new_processes(chunks[start : start + at_once], processes)


def _in_new_processes(chunks: Sequence[Chunk], processes: int) -> Iterator[tuple[int, list[int], Tally]]:
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(_chunk, chunk) for chunk in chunks]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _chunk(chunk: Chunk) -> tuple[int, list[int], Tally]:
    first, runs, strikes = chunk
    failed, tally = [], Tally()
    for seed in range(first, first + runs):
        outcome = simulate(plan_of(seed, strikes))
        tally.update(acknowledged=outcome.acknowledged, refused=outcome.refused, unknown=outcome.unknown)
        if outcome.broken:
            failed.append(seed)
    return runs, failed, tally
