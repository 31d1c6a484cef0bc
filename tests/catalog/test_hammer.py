"""A small slice of the hammer: processes append to one table, some are killed, and the table is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from commit_coord.testing.hammer import Report, hammer, wrong_rows

WRITERS = 3


def test_every_append_is_there_once(tmp_path: Path) -> None:
    """Nobody is refused, and there is a snapshot for each acknowledgement and no other."""
    report = hammer(tmp_path, writers=WRITERS, appends=10, timeout_s=120)

    assert report == replace(
        report, acknowledged=30, snapshots=30, unanswered=0, failures={}, locks_left=0, kills=0, broken=()
    )


@pytest.mark.parametrize("seed", [7])
def test_killed_writers_lose_and_double_nothing(seed: int, tmp_path: Path) -> None:
    """With writers killed at any moment every acknowledged append is there once, and the locks of the dead are gone."""
    report: Report = hammer(
        tmp_path, writers=WRITERS, appends=60, kill_every_s=0.3, kills_max=2, seed=seed, timeout_s=120
    )

    assert () == report.broken
    assert 2 == report.kills
    assert report.snapshots == WRITERS * 60 + report.unanswered_landed
    assert 0 == report.locks_left


def test_appends_that_share_snapshots_are_there_once(tmp_path: Path) -> None:
    """Every file and every request id, though a writer is killed; there are fewer snapshots than appends."""
    meet(
        tmp_path,
        lambda folder: hammer(
            folder, writers=WRITERS, appends=20, kill_every_s=0.3, kills_max=1, coalesce=True, timeout_s=120
        ),
        lambda report: 0 < report.snapshots < WRITERS * 20,
    )


def test_rows_are_right_while_columns_and_partitions_change(tmp_path: Path) -> None:
    """A process changes the table all the time; the files lie in the partitions that their rows belong to."""
    meet(
        tmp_path,
        lambda folder: hammer(
            folder, writers=WRITERS, appends=20, kill_every_s=0.3, kills_max=1, evolve=True, seed=3, timeout_s=120
        ),
        lambda report: report.changes > 0,
    )


def meet(folder: Path, run: Callable[[Path], Report], have_met: Callable[[Report], bool]) -> None:
    """Run processes until they have met, each time with nothing broken: a busy machine may run one after the other."""
    for number in range(10):
        place = folder / str(number)
        place.mkdir()
        report = run(place)
        assert () == report.broken
        if have_met(report):
            return
    pytest.fail(f"the processes have never met: {report}")


def test_the_proof_sees_a_row_that_nobody_wrote_and_one_that_is_missing(tmp_path: Path) -> None:
    report = hammer(tmp_path, writers=1, appends=1, timeout_s=120)
    location = max((tmp_path / "warehouse").rglob("*.metadata.json")).as_uri()

    assert () == report.broken
    assert ["missing"] == sorted({what.split()[-1] for what in wrong_rows(location, {"0-1-0": [1]})} - {"it"})
    assert 10 == len([what for what in wrong_rows(location, {}) if what.endswith("and nobody wrote it")])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kill_every_s", [None, 1.0], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("coalesce", [False, True], ids=["a snapshot each", "shared snapshots"])
def test_ten_thousand_appends_by_sixteen_writers(tmp_path: Path, coalesce: bool, kill_every_s: float | None) -> None:
    report = hammer(
        tmp_path, writers=16, appends=625, kill_every_s=kill_every_s, seed=8, coalesce=coalesce, timeout_s=1700
    )

    assert () == report.broken
    assert (10_000, 0, {}) == (report.acknowledged, report.locks_left, report.failures)
    assert coalesce or report.snapshots == 10_000 + report.unanswered_landed
