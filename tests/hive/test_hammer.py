"""Processes append to one table on a metastore, are killed; the table is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from commit_coord.local import HiveMetastore
from commit_coord.testing.hammer import hammer

pytestmark = [pytest.mark.hms, pytest.mark.slow]


@pytest.fixture
def own() -> Iterator[HiveMetastore]:
    """A metastore for one test: it is killed, and its one table has a fixed name."""
    with HiveMetastore() as metastore:
        yield metastore


@pytest.mark.parametrize("impl", ["hms", "none"])
def test_every_append_is_there_once(own: HiveMetastore, tmp_path: Path, impl: str) -> None:
    report = hammer(tmp_path, writers=4, appends=10, timeout_s=120, properties={"uri": own.uri, "lock-impl": impl})
    # Without a latch a commit may find the pointer moved ten times in a row, and is refused.
    failures = {} if impl == "hms" else report.failures
    assert report == replace(
        report, acknowledged=40, snapshots=40, unanswered=0, failures=failures, locks_left=0, broken=()
    )
    assert report.failures.keys() <= {"CommitConflict"}


def test_killed_writers_lose_and_double_nothing(own: HiveMetastore, tmp_path: Path) -> None:
    """Who waits for a writer that was killed frees its lock."""
    report = hammer(
        tmp_path,
        writers=4,
        appends=10,
        kill_every_s=0.5,
        kills_max=3,
        seed=7,
        timeout_s=120,
        properties={"uri": own.uri},
    )
    assert () == report.broken
    assert (3, 0) == (report.kills, report.locks_left)
