"""Simulated runs whose writers call tables: rows are what a serial order of the calls gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.types import LongType

from commit_coord.testing.rows.model import Always, State
from commit_coord.testing.rows.operations import Append, Overwrite
from commit_coord.testing.sim import rows
from commit_coord.testing.sim.plan import draw_rows
from commit_coord.testing.sim.rows import RowsRun, simulate_rows

SEEDS = 25
"""Runs of one test. `make sim ARGS=--rows` runs thousands."""


@pytest.mark.parametrize("first", range(1, 101, SEEDS))
def test_rows_are_what_a_serial_order_gives(first: int) -> None:
    seeds = range(first, first + SEEDS)
    assert {seed: simulate_rows(draw_rows(seed)).broken for seed in seeds} == dict.fromkeys(seeds, ())


def test_a_seed_repeats_its_history() -> None:
    plans = [draw_rows(seed) for seed in range(1, 6)]
    digests = [simulate_rows(plan).digest for plan in plans]
    assert digests == [simulate_rows(plan).digest for plan in reversed(plans)][::-1]
    assert len(set(digests)) == len(digests)


