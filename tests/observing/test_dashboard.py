"""A real Prometheus reads the metrics of real writers, and answers each query of the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from commit_coord.local.server import NotInstalled
from commit_coord.testing.servers import untested
from tests.observing.dashboard import RULES, Panel, Prometheus, Series, Watched, draw, program, shown, silent
from tests.processes import until

_COUNTED = {
    'commit_coord_commits_total{status="SUCCESS"}': "commits",
    'commit_coord_commits_total{status="FAILURE", job="commit-coord-writer"}': "refused",
    'commit_coord_lock_wait_seconds_count{outcome="lock-timeout"}': "timeouts",
    'commit_coord_locks_forced_total{how="unlock"}': "forced",
    "commit_coord_leases_lost_total": "lost",
    'commit_coord_rest_requests_total{status="409"}': "conflicts",
    'commit_coord_access_refused_total{known="false"}': "401",
    'commit_coord_access_refused_total{known="true"}': "403",
}
"""Series, and what the load itself has counted."""


@pytest.fixture(scope="module")
def installed() -> None:
    """Prometheus, which may be missing."""
    try:
        program()
    except NotInstalled as error:
        pytest.skip(untested("the dashboard in Prometheus", error))


def rules(prometheus: Prometheus) -> dict[str, str]:
    """Return the health of each alert that *prometheus* has loaded."""
    return {rule["name"]: rule["health"] for group in prometheus.api("rules")["groups"] for rule in group["rules"]}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("installed")
def test_each_query_of_the_dashboard_shows_what_real_writers_do(tmp_path: Path) -> None:
    names = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    with Watched(tmp_path, wave_s=4) as watched:
        watched.work(10)
        watched.stop()
        prometheus = watched.prometheus
        until(lambda: rules(prometheus) == dict.fromkeys(names, "ok"), "the evaluation of each alert")
        until(lambda: prometheus.value("min(up)") == 1, "an answer of each process")
        counted = {series: watched.counted(what) for series, what in _COUNTED.items()}
        assert all(counted.values()), counted

        def values() -> dict[str, float | None]:
            return {series: prometheus.value(f"sum({series})") for series in counted}

        until(lambda: values() == counted, "the last metrics")
        panels = watched.panels()
        assert [] == silent(panels)
        picture = tmp_path / "dashboard.png"
        draw(panels, watched.began, watched.ended, picture)
        assert 50_000 < picture.stat().st_size < 250_000


@pytest.mark.parametrize(
    "title, kind, values, is_silent",
    [
        ("Commits by outcome", "timeseries", [0.0, 2.0], False),
        ("Commits by outcome", "timeseries", [0.0, 0.0], True),
        ("Commits by outcome", "timeseries", [], True),
        ("Commits overwritten", "timeseries", [0.0], False),
        ("Unknown", "stat", [0.0], False),
        ("Unknown", "stat", [], True),
    ],
)
def test_a_query_that_shows_nothing_is_found(title: str, kind: str, values: list[float], is_silent: bool) -> None:
    series = [Series(query="A", legend="", points=list(enumerate(values)))]
    panel = Panel(title=title, kind=kind, at={}, defaults={}, queries=["A"], series=series)
    assert [f"{title} A"] * is_silent == silent([panel])


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (0.0, "s", "0 s"),
        (0.0123, "s", "12.3 ms"),
        (2.5, "s", "2.5 s"),
        (31.25, "ops", "31.2 ops/s"),
        (3.0, "short", "3"),
    ],
)
def test_a_value_has_its_unit(value: float, unit: str, text: str) -> None:
    assert text == shown(value, unit)
