"""The soak in small: it measures what is there, and tells growth from noise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.proof.soak import MANAGERS, Run, page, plot, slope, soak


def test_growth_is_distinguished_from_noise() -> None:
    dice = random.Random(7)
    times = [2.0 * number for number in range(300)]
    noise = [100 + dice.gauss(0, 5) for _ in times]
    assert slope(times, noise).flat
    growing = [value + at / 20 for at, value in zip(times, noise, strict=True)]
    found = slope(times, growing)
    assert not found.flat
    assert abs(found.per_hour - 180) < found.error < 180
    assert slope(times, [7.0] * 300).flat
    assert slope(times[:5], noise[:5]).flat  # too few to say anything


def test_the_page_and_the_picture_show_every_run(tmp_path: Path) -> None:
    run = Run(manager="memory", writers=2, warm_up_s=10, seconds=60, commits=5, failed={"Oops": 1})
    run.samples = [
        {"at": float(at), "threads": 3.0, "memory MiB": 50.0 + at, "server MiB": 90.0 + at} for at in range(60)
    ]
    assert run.grown() == ["memory MiB"]
    text = page([run])
    assert "| threads | 3.0 | +0.0 ± 0.0 | flat |" in text
    assert "| memory MiB |" in text
    assert text.count("| grows |") == 1
    assert text.count("| not judged |") == 1
    assert "failed: 1 Oops" in text
    plot([run], tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 1000


SERVERS: dict[str, Any] = {
    "lease-postgresql": pytest.mark.postgres,
    "zookeeper": pytest.mark.zookeeper,
    "hms": pytest.mark.hms,
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("manager", [pytest.param(one, marks=SERVERS.get(one, ())) for one in MANAGERS])
def test_twenty_seconds_leave_nothing_behind(manager: str) -> None:
    """Memory takes longer than that to settle; what is counted does not."""
    run = soak(manager, seconds=20, warm_up_s=8, writers=8, every_s=0.5)
    assert run.commits > 20
    assert run.failed == {}
    settled = [one for one in run.samples if one["at"] >= run.warm_up_s]
    for name in settled[0].keys() - {"at", "memory MiB", "server MiB", "database MiB"}:
        half = len(settled) // 2
        before, after = (max(one[name] for one in part) for part in (settled[:half], settled[half:]))
        assert after <= before * 1.5 + 8, name
