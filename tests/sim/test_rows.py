"""Simulated runs whose writers call tables: rows are what a serial order of the calls gives."""

from __future__ import annotations

from typing import Any

import pytest

from commit_coord.table.committing import Committing
from commit_coord.table.dependencies import Dependencies
from tests.limits import some
from tests.proof.sim.plan import draw_rows
from tests.proof.sim.rows import simulate_rows

SEEDS = 20
"""Runs of one test. `make sim ARGS=--rows` runs thousands."""


@pytest.mark.parametrize("first", some(range(1, 41, SEEDS), range(41, 81, SEEDS)))
def test_rows_are_what_a_serial_order_gives(first: int) -> None:
    seeds = range(first, first + SEEDS)
    assert {seed: simulate_rows(draw_rows(seed)).broken for seed in seeds} == dict.fromkeys(seeds, ())


def test_a_seed_repeats_its_history() -> None:
    plans = [draw_rows(seed) for seed in range(1, 6)]
    digests = [simulate_rows(plan).digest for plan in plans]
    assert digests == [simulate_rows(plan).digest for plan in reversed(plans)][::-1]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "owner, check, seed, promise",
    [
        (Dependencies, "refuse_stale", 13, "Rows"),
        (Committing, "_look_again", 151, "AcknowledgedStays"),
    ],
)
def test_a_check_that_is_taken_away_is_missed(
    monkeypatch: pytest.MonkeyPatch, owner: Any, check: str, seed: int, promise: str
) -> None:
    assert () == simulate_rows(draw_rows(seed)).broken
    monkeypatch.setattr(owner, check, lambda *_: None)
    assert {promise} == {broken.partition(":")[0] for broken in simulate_rows(draw_rows(seed)).broken}
