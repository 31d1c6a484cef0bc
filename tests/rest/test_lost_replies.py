"""A short run of :mod:`tests.rest.lost_replies`; the long ones are started by hand."""

from __future__ import annotations

from pathlib import Path

from tests.rest.lost_replies import run


def test_clients_behind_a_network_that_loses_replies_lose_and_double_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, seed=1, seconds=8, kill_every_s=4)
    assert [] == report.broken
    assert {"lost", "killed", "append acknowledged"} <= report.done.keys()
