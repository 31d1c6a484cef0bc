"""Draws the dashboard as a real Prometheus answers its queries: ``python -m tests.observing.dashboard``.

Prometheus reads the metrics of two writers, of jobs and of ``commit-coord serve`` (``tests/observing/load.py``), and
has the alerts of this repository. The queries, places, titles, legends and units of the panels are those of the
dashboard's file. Grafana is not needed.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import io
import json
import math
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import yaml
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import commit_coord
from commit_coord.local.rest import RestServer
from commit_coord.local.server import LOOPBACK, LocalServer, NotInstalled
from commit_coord.testing.fleet import PipeWriter, holds_within
from tests.limits import PATIENCE
from tests.observing.load import CATALOG, PRICES, REPORT, SALES
from tests.processes import until

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "docker" / "grafana" / "dashboards" / "commit-coord.json"
RULES = ROOT / "docker" / "prometheus" / "rules" / "commit-coord.yml"

_RATE_INTERVAL = "5s"
"""Four scrapes, the least that Grafana takes, and one more."""
_SCHEMA = Schema(NestedField(1, "id", LongType()))
_ENGINEER, _PROMETHEUS = "only-on-loopback", "only-for-the-metrics"
"""The tokens of who may write, and of who may only read the metrics."""

QUIET = {("Commits overwritten", "A"), ("Lost leases and failed releases", "B")}
"""Queries that only a fault moves from 0: titles of panels, and letters of their queries."""


def program() -> str:
    """Return the path of Prometheus.

    Raises:
        NotInstalled: There is none.
    """
    found = shutil.which("prometheus")
    if found is None:
        raise NotInstalled("prometheus is not installed: bash .ci/setup.sh prometheus")
    return found


class Prometheus(LocalServer):
    """A Prometheus that reads metrics each second.

    Args:
        jobs: Its ``scrape_configs``.
        rules: The file of the alerts.
        folder: See :class:`LocalServer`.
    """

    def __init__(self, jobs: Sequence[Mapping[str, Any]], rules: Path, folder: Path | None = None) -> None:
        super().__init__(folder)
        self.name = "Prometheus"
        self._jobs, self._rules = jobs, rules

    def healthy(self) -> bool:
        """Return whether it answers queries."""
        try:
            return 200 == self._get("/-/ready")[0]
        except OSError:
            return False

    def api(self, path: str, **parameters: object) -> Any:
        """Return the ``data`` of an answer of its HTTP API, which must be a success."""
        status, body = self._get(f"/api/v1/{path}?{urlencode(parameters)}")
        answer = json.loads(body)
        assert (200, "success") == (status, answer["status"]), f"{path} {parameters}: {answer}"
        return answer["data"]

    def value(self, query: str) -> float | None:
        """Return the value of *query* now; None where it has none."""
        found = self.api("query", query=query)["result"]
        return float(found[0]["value"][1]) if found else None

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _prepare(self) -> None:
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(self._rules)],
            "scrape_configs": list(self._jobs),
        }
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def _command(self) -> Sequence[str]:
        return [
            *(program(), f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data"),
            f"--web.listen-address={LOOPBACK}:{self.port}",
        ]


# The load.


class Watched:
    """A Prometheus, and the load that it watches.

    Args:
        folder: Where everything is kept.
        wave_s: The seconds of a wave of the load.
    """

    def __init__(self, folder: Path, wave_s: float) -> None:
        self.began, self.ended = 0.0, math.inf
        self.counts: dict[str, Counter[str]] = {}
        self._ends = ExitStack()
        self._folder, self._wave_s = folder, wave_s
        self._roles: dict[str, PipeWriter] = {}

    def __enter__(self) -> Self:
        """Start all of it; return when Prometheus has read the metrics of each process once."""
        with self._ends:
            self._start()
            self._ends = self._ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def panels(self) -> list[Panel]:
        """Return all panels of the dashboard, for the time of the load."""
        return answered(self.prometheus, self.began, min(self.ended, time.time()))

    def work(self, seconds: float) -> None:
        """Return after *seconds* of the load, and not before each query shows what it is there for."""
        enough = self.began + seconds
        assert holds_within(
            lambda: time.time() > enough and not silent(self.panels()), seconds + PATIENCE, every_s=1
        ), f"these queries show nothing: {silent(self.panels())}"

    def stop(self) -> None:
        """End the load; :attr:`counts` has what each process counted. Its metrics stay."""
        self.ended = time.time()
        for role in self._roles.values():
            role.send("stop")
        for name, role in self._roles.items():
            told = role.receive(PATIENCE)
            assert not told["failures"], f"{name}: {told['failures'][0]}"
            self.counts[name] = Counter(told["counts"])

    def counted(self, what: str) -> int:
        """Return how often something happened, in all processes."""
        return sum(counts[what] for counts in self.counts.values())

    def _start(self) -> None:
        program()  # before anything else is started
        place = {
            "uri": f"coord+sqlite:///{self._folder}/catalog.db",
            "warehouse": (self._folder / "warehouse").as_uri(),
        }
        catalog = commit_coord.load_catalog(CATALOG, **place)
        catalog.create_namespace("db")
        for table in (SALES, PRICES, REPORT):
            catalog.create_table(table, _SCHEMA, properties={"commit.retry.num-retries": "0"})  # of PyIceberg's clients
        catalog.close()
        server = self._ends.enter_context(RestServer(CATALOG, place, self._folder / "serve", options=self._options()))
        properties = {**place, "commit-coord.metrics": "prometheus", "lock.heartbeat-interval-ms": "300"}
        spec = {"properties": properties, "wave_s": self._wave_s}
        asked = {"url": server.url, "token": _ENGINEER, "known": _PROMETHEUS}
        for name, more in (
            ("writer-1", {"role": "writer"}),
            ("writer-2", {"role": "writer"}),
            ("jobs", {"role": "jobs"}),
            ("clients", {"role": "clients", **asked}),
        ):
            command = [sys.executable, "-m", "tests.observing.load"]
            log = self._ends.enter_context((self._folder / f"{name}.log").open("wb"))
            self._roles[name] = self._ends.enter_context(PipeWriter(command, {**spec, **more}, cwd=ROOT, stderr=log))
        ports = {name: role.receive(PATIENCE) for name, role in self._roles.items()}
        watched = {name: port for name, port in ports.items() if name != "clients"}
        self.prometheus = self._ends.enter_context(
            Prometheus(_jobs(watched, server.port), RULES, self._folder / "watch")
        )
        until(lambda: self.prometheus.value("count(up == 1)") == len(watched) + 1, "the first metrics of each process")
        self.began = time.time()
        for role in self._roles.values():
            role.send("go")

    def _options(self) -> Sequence[str]:
        (self._folder / "serve.toml").write_text('[authentication]\nclients = "clients.toml"\n')
        clients = [
            f'[{name}]\ntoken-sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\ngrants = {{{grants}}}\n'
            for name, token, grants in (
                ("engineers", _ENGINEER, f'{CATALOG} = "administer"'),
                ("prometheus", _PROMETHEUS, ""),
            )
        ]
        (self._folder / "clients.toml").write_text("\n".join(clients))
        return ("--config", str(self._folder / "serve.toml"))


def _jobs(ports: Mapping[str, int], server: int) -> list[dict[str, Any]]:
    """Return what Prometheus watches: each process under its name, which is the instance."""

    def target(name: str, port: int) -> dict[str, Any]:
        return {"targets": [f"{LOOPBACK}:{port}"], "labels": {"instance": name}}

    return [
        {
            "job_name": "commit-coord-serve",
            "authorization": {"credentials": _PROMETHEUS},
            "static_configs": [target("serve", server)],
        },
        {"job_name": "commit-coord-writer", "static_configs": [target(*one) for one in ports.items()]},
    ]


# The dashboard, and what Prometheus answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a panel."""

    query: str
    """The letter of the query of the panel."""
    legend: str
    points: Sequence[tuple[float, float]]
    """Times and values, without those that are no numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel with its answers."""

    title: str
    kind: str
    """``row``, ``stat`` or ``timeseries``."""
    at: Mapping[str, int]
    defaults: Mapping[str, Any]
    queries: Sequence[str]
    """Their letters."""
    series: Sequence[Series]


def answered(prometheus: Prometheus, began: float, ended: float) -> list[Panel]:
    """Return all panels of the dashboard, as they are at *ended* for the time since *began*."""
    return [
        Panel(
            title=panel["title"],
            kind=panel["type"],
            at=panel["gridPos"],
            defaults=panel.get("fieldConfig", {}).get("defaults", {}),
            queries=[target["refId"] for target in panel.get("targets", ())],
            series=[
                one
                for target in panel.get("targets", ())
                for one in _series(prometheus, panel["type"], target, began, ended)
            ],
        )
        for panel in json.loads(BOARD.read_text())["panels"]
    ]


def silent(panels: Sequence[Panel]) -> list[str]:
    """Return the queries that show nothing: no value at all, or only 0 although each run has such events.

    A number of the overview may be 0.
    """
    found = []
    for panel in panels:
        for query in panel.queries:
            values = [value for one in panel.series if one.query == query for _, value in one.points]
            may_be_0 = panel.kind == "stat" or (panel.title, query) in QUIET
            if not (values if may_be_0 else any(values)):
                found.append(f"{panel.title} {query}")
    return found


def _series(
    prometheus: Prometheus, kind: str, target: Mapping[str, str], began: float, ended: float
) -> Iterator[Series]:
    values = {
        "$__rate_interval": _RATE_INTERVAL,
        "$__range": f"{math.ceil(ended - began)}s",
        "$catalog": ".*",
        "$job": ".*",
    }
    query = target["expr"]
    for variable, value in values.items():
        query = query.replace(variable, value)
    assert "$" not in query, f"a variable that this module does not know: {query}"
    if kind == "stat":
        result = prometheus.api("query", query=query, time=ended)["result"]
    else:
        result = prometheus.api("query_range", query=query, start=began, end=ended, step=1)["result"]
    for one in result:
        points = [(float(at), float(value)) for at, value in one.get("values") or [one["value"]]]
        yield Series(
            query=target["refId"],
            legend=_legend(target["legendFormat"], one["metric"]),
            points=[(at, value) for at, value in points if math.isfinite(value)],
        )


def _legend(form: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), form)


# The picture.

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
"""Of Okabe and Ito's palette, made for eyes that tell red from green badly."""
_SIGNALS = {"green": "#1a7f37", "red": "#c62828"}
_COLUMNS = 24
"""Of a dashboard of Grafana."""
_COLUMN_IN, _ROW_IN, _GAP_IN = 0.5, 0.25, 0.05
"""Inches: a column, a row, and the gap between a panel and the edge of its place."""
_HEAD_IN, _LEGEND_IN = 0.45, 0.16
"""Inches: the title of the dashboard, and a line of a legend."""
_LEGEND_CHARACTERS = 70
_PALETTE = 256
"""Colors of the picture, which keep the file small."""
_UNITS = {"ops": " ops/s", "reqps": " req/s", "short": ""}


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """Return *value* with its unit, for people."""
    if unit == "s":
        scale, name = (1, "s") if value >= 1 else (1000, "ms")
        return f"{value * scale:.3g} {name}" if value else "0 s"
    return (f"{value:.3g}" if decimals is None else f"{value:.{decimals}f}") + _UNITS[unit]


def draw(panels: Sequence[Panel], began: float, ended: float, path: Path) -> None:
    """Write a picture of the dashboard."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import Affine2D
    from PIL import Image

    rows = max(panel.at["y"] + panel.at["h"] for panel in panels)
    width, height = _COLUMNS * _COLUMN_IN, _HEAD_IN + rows * _ROW_IN
    figure = Figure(figsize=(width, height), facecolor="white")
    # Places are inches from the upper left corner.
    inches = Affine2D().translate(0, -height).scale(1, -1) + figure.dpi_scale_trans
    told = f"{ended - began:.0f} s of real writers, answered by Prometheus, drawn without Grafana"
    look: dict[str, Any] = {"transform": inches, "va": "center"}
    figure.text(_GAP_IN, _HEAD_IN / 2, json.loads(BOARD.read_text())["title"], size=12, weight="bold", **look)
    figure.text(width - _GAP_IN, _HEAD_IN / 2, told, size=8, ha="right", color="#555555", **look)
    for panel in panels:
        left, wide = panel.at["x"] * _COLUMN_IN + _GAP_IN, panel.at["w"] * _COLUMN_IN - 2 * _GAP_IN
        top, high = _HEAD_IN + panel.at["y"] * _ROW_IN + _GAP_IN, panel.at["h"] * _ROW_IN - 2 * _GAP_IN
        if panel.kind == "row":
            figure.text(left, top + high / 2, panel.title, size=10, weight="bold", **look)
            continue
        box = Rectangle((left, top), wide, high, facecolor="white", edgecolor="#d0d3d6", linewidth=0.7, zorder=-1)
        box.set_transform(inches)
        figure.add_artist(box)
        figure.text(left + 0.1, top + 0.15, panel.title, size=8, weight="bold", **look)
        if panel.kind == "stat":
            value = next((value for one in panel.series for _, value in one.points), 0.0)
            text = shown(value, panel.defaults["unit"], panel.defaults.get("decimals"))
            place = (left + wide / 2, top + high * 0.6)
            figure.text(*place, text, size=18, ha="center", color=_signal(panel, value), **look)
            continue
        lines = _legend_lines([one.legend for one in panel.series])
        bottom = top + high - len(lines) * _LEGEND_IN - 0.28
        sides = (left + 0.62) / width, 1 - bottom / height, (wide - 0.78) / width, (bottom - top - 0.35) / height
        axes = figure.add_axes(sides, facecolor="none")
        _draw_lines(axes, panel, began, ended)
        for number, line in enumerate(lines):
            x, y = left + 0.12, bottom + 0.3 + number * _LEGEND_IN
            for place_in_line, label in line:
                color = _COLORS[[one.legend for one in panel.series].index(label) % len(_COLORS)]
                at = x + place_in_line * (wide - 0.2) / _LEGEND_CHARACTERS
                figure.text(at, y, "\N{BLACK SQUARE}", size=7, color=color, **look)
                figure.text(at + 0.12, y, label, size=7, **look)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(_PALETTE, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def _signal(panel: Panel, value: float) -> str:
    """Return the color of a number: that of the last step that it has reached."""
    steps = panel.defaults["thresholds"]["steps"]
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return _SIGNALS[reached[-1]]


def _draw_lines(axes: Any, panel: Panel, began: float, ended: float) -> None:
    from matplotlib.ticker import MaxNLocator

    unit = panel.defaults["unit"]
    for number, one in enumerate(panel.series):
        color = _COLORS[number % len(_COLORS)]
        line = [(at - began, value) for at, value in _with_gaps(one.points)]
        if line:
            axes.plot(*zip(*line, strict=True), color=color, linewidth=1.2, clip_on=False)
            axes.fill_between(*zip(*line, strict=True), color=color, alpha=0.1, linewidth=0)
    highest = max((value for one in panel.series for _, value in one.points), default=0.0)
    axes.set_ylim(0, highest * 1.08 or 1.0)
    axes.set_xlim(0, ended - began)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    axes.tick_params(length=2, color="#999999", labelcolor="#333333", labelsize=7)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)


def _with_gaps(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield *points*, with a gap in the line where Prometheus had no value."""
    last = None
    for at, value in points:
        if last is not None and at - last > 1.5:
            yield at, math.nan
        yield at, value
        last = at


def _legend_lines(labels: Sequence[str]) -> list[list[tuple[int, str]]]:
    """Return the lines of a legend: each label with the number of characters before it."""
    lines: list[list[tuple[int, str]]] = [[]]
    used = 0
    for label in labels:
        needed = len(label) + 6
        if lines[-1] and used + needed > _LEGEND_CHARACTERS:
            lines.append([])
            used = 0
        lines[-1].append((used, label))
        used += needed
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], prog="python -m tests.observing.dashboard")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the load (default: %(default)s)")
    parser.add_argument(
        "--to", type=Path, default=Path("docs/dashboard.png"), help="the picture (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder, Watched(Path(folder), wave_s=given.seconds / 3) as watched:
            watched.work(given.seconds)
            watched.stop()
            draw(watched.panels(), watched.began, watched.ended, given.to)
    except NotInstalled as error:
        sys.exit(str(error))
    print(f"{given.to}: {watched.counted('commits'):,} commits in {watched.ended - watched.began:.0f} s")


if __name__ == "__main__":
    main()
