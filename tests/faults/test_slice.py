"""A slice of the faults on real processes; all of it is ``make faults``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.proof.faults.cell import Result, run
from tests.proof.faults.injuries import INJURIES
from tests.proof.faults.rigs import CONFIGURATIONS, Rig
from tests.proof.faults.world import World

SEED = 20

SLOW = [
    ("lease-sqlite", "kill-writer"),
    ("lease-sqlite", "stop-holder"),
    ("memory", "kill-at-step"),
    ("lease-postgres", "lose-answers"),
    ("hms", "kill-at-step"),
    ("hms", "answer-late"),
    ("zookeeper", "lose-leader"),
]
"""Some three minutes on a quiet machine."""


class ThisWorld(World):
    """The test's own namespaces are those of everybody: no cell here cuts a network or fills a disk."""

    def __init__(self) -> None:
        self.why_not = "this is a test"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's own user can go through."""
    with tempfile.TemporaryDirectory(prefix="commit-coord-faults-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def rig(request: pytest.FixtureRequest, folder: Path) -> Iterator[Rig]:
    """The servers of the configuration that the test is parametrised with."""
    rig = Rig(CONFIGURATIONS[request.param], folder, ThisWorld())
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def prove(
    rig: Rig, fault: str, folder: Path, kinds: Sequence[str] | None = None, seconds: float | None = None
) -> Result:
    named = {} if kinds is None else {"kinds": tuple(kinds)}
    result = run(rig, INJURIES[fault], folder / "cell", seed=SEED, seconds=seconds, **named)
    print(result)
    assert [] == result.findings.broken  # how long it took is not a test's business
    assert result.findings.acknowledged > 0
    return result


@pytest.mark.parametrize("rig", ["lease-sqlite"], indirect=True)
def test_writers_of_mixed_kinds_are_killed_at_steps_of_the_protocol(rig: Rig, folder: Path) -> None:
    """Four of them, at as many steps as some seconds allow."""
    result = prove(rig, "kill-at-step", folder, kinds=("append", "append", "replace", "delete"), seconds=3)
    assert result.ended >= len(result.done) > 0


@pytest.mark.slow
@pytest.mark.hms
@pytest.mark.zookeeper
@pytest.mark.postgres
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rig, fault", SLOW, indirect=["rig"])
def test_the_slice_of_three_minutes(rig: Rig, fault: str, folder: Path) -> None:
    prove(rig, fault, folder)
