"""A small slice of the hammer: processes append to one table, some are killed, and the table is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commit_coord.testing.hammer import Report, hammer

WRITERS = 3


def test_every_append_is_there_once(tmp_path: Path) -> None:
    """Nobody is refused, and there is a snapshot for each acknowledgement and no other."""
    report = hammer(tmp_path, writers=WRITERS, appends=10, timeout_s=90)

    assert report == replace(
        report, acknowledged=30, snapshots=30, unanswered=0, failures={}, locks_left=0, kills=0, broken=()
    )


@pytest.mark.parametrize("seed", [7])
def test_killed_writers_lose_and_double_nothing(seed: int, tmp_path: Path) -> None:
    """With writers killed at any moment every acknowledged append is there once, and the locks of the dead are gone."""
    report: Report = hammer(
        tmp_path, writers=WRITERS, appends=60, kill_every_s=0.3, kills_max=2, seed=seed, timeout_s=90
    )

    assert () == report.broken
    assert 2 == report.kills
    assert report.snapshots == WRITERS * 60 + report.unanswered_landed
    assert 0 == report.locks_left
