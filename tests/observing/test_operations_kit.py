"""The dashboard, the alerts and the runbook speak of the metrics that the code has, and of each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram
from typer.main import get_command

from commit_coord import errors
from commit_coord.cli.app import app
from commit_coord.errors import LockError
from commit_coord.events import LocksForced, SwapEnded
from commit_coord.model import CommitStatus, LockScope
from commit_coord.observing import prometheus
from commit_coord.rest import watching
from commit_coord.testing.servers import untested

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docker" / "prometheus" / "rules" / "commit-coord.yml"
SETTINGS = ROOT / "docker" / "prometheus" / "prometheus.yml"
RULE_TESTS = Path(__file__).with_name("alerts.yml")
DASHBOARD = ROOT / "docker" / "grafana" / "dashboards" / "commit-coord.json"
RUNBOOK = ROOT / "docs" / "runbook"
SECTIONS = ["What it means", "How to see it", "What to do first", "When it is harmless"]

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to each series."""


def exported() -> dict[str, frozenset[str]]:
    """Return the names of all series that the code exports, each with its labels."""
    found: dict[str, frozenset[str]] = {}
    for instruments in (prometheus._instruments(), watching._instruments()):
        for metric in vars(instruments).values():
            (family,) = metric.describe()
            labels = frozenset(metric._labelnames)
            match metric:
                case Counter():
                    found[f"{family.name}_total"] = labels
                case Histogram():
                    found[f"{family.name}_bucket"] = labels | {"le"}
                    found |= {f"{family.name}_{part}": labels for part in ("count", "sum")}
                case Gauge():
                    found[family.name] = labels
                case _:
                    raise AssertionError(f"a kind that this test does not know: {metric!r}")
    return found


def known_values() -> Mapping[str, set[str]]:
    """Return the values of the labels that have a fixed set of them, from the code."""
    kinds = {cls.kind for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, LockError)}
    return {
        "scope": {scope.value for scope in LockScope},
        "status": {status.value for status in CommitStatus},
        "outcome": {str(kind) for kind in kinds} | {"granted", "carried", "interrupted"},
        "result": set(re.findall(r"\b[A-Z_]{5,}\b", SwapEnded.__doc__ or "")),
        "how": set(re.findall(r"``([a-z ]+)``", LocksForced.__doc__ or "")),
        "known": {"true", "false"},
    }


def alerts() -> list[dict[str, Any]]:
    """Return the rules of all groups."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each query of the alerts and the dashboard, behind a name for it."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def selectors(expression: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return the names of the metrics in *expression*, each with its matchers: label, operator and value."""
    return [
        (name, re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers))
        for name, matchers in re.findall(r"\b((?:commit_coord_\w+|up)\b)(\{[^}]*\})?", expression)
    ]


def grouped(expression: str) -> set[str]:
    """Return the labels that *expression* groups or joins by."""
    lists = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expression)
    return {label.strip() for found in lists for label in found.split(",") if label.strip()}


QUERIES = dict(expressions())


@pytest.mark.parametrize("where", QUERIES)
def test_a_query_names_only_metrics_and_labels_that_the_code_exports(where: str) -> None:
    metrics = {**exported(), "up": frozenset[str]()}
    named = selectors(QUERIES[where])
    assert named
    for name, matchers in named:
        assert name in metrics
        labels = metrics[name] | OF_PROMETHEUS
        assert {label for label, *_ in matchers} | grouped(QUERIES[where]) <= labels, name
        for label, _, value in matchers:
            is_http = label == "status" and name.startswith("commit_coord_rest_")
            if label in known_values() and not is_http:
                assert set(value.split("|")) <= known_values()[label]


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for panel in panels() for target in panel["targets"] for name, _ in selectors(target["expr"])}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported()}
    assert families == {re.sub(r"_(bucket|count|sum)$", "", name) for name in shown}


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_names_in_its_legend_what_its_query_groups_by(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert legend == grouped(target["expr"]) - {"le"}


def test_the_dashboard_uses_its_own_variables_and_data_source_alone() -> None:
    board = json.loads(DASHBOARD.read_text())
    declared = {variable["name"] for variable in board["templating"]["list"]}
    used = {name for name in re.findall(r"\$\{?(\w+)", DASHBOARD.read_text()) if not name.startswith("__")}
    assert declared == used
    assert {"${datasource}"} == {target["datasource"]["uid"] for panel in panels() for target in panel["targets"]}
    assert len(board["panels"]) == len({panel["id"] for panel in board["panels"]})
    for variable in board["templating"]["list"]:
        if asked := re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.get("definition", "")):
            assert asked[2] in exported()[asked[1]] | OF_PROMETHEUS


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + right, at["y"] + down) for right in range(at["w"]) for down in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


# The runbook.


def pages() -> dict[str, str]:
    """Return the pages of the runbook, without the list of them."""
    return {page.stem: page.read_text() for page in sorted(RUNBOOK.glob("*.md")) if page.name != "README.md"}


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert sorted(names) == sorted(pages())
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", (RUNBOOK / "README.md").read_text(), re.MULTILINE)
    assert [(rule["alert"], rule["labels"]["severity"]) for rule in alerts()] == listed


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_a_summary_and_its_page(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook"] == f"docs/runbook/{rule['alert']}.md"
    told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    outer = rule["expr"].split("(")[1].split(")")[0] if re.match(r"(sum|histogram_quantile)", rule["expr"]) else ""
    if rule["expr"].startswith("sum by"):
        assert told <= {label.strip() for label in outer.split(",")}
    else:
        assert told <= grouped(rule["expr"]) | OF_PROMETHEUS


@pytest.mark.parametrize("name", pages())
def test_a_page_has_its_sections_and_names_what_exists(name: str) -> None:
    text = pages()[name]
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert set(re.findall(r"\bcommit_coord_\w+", text)) <= exported().keys()
    panel_titles = {panel["title"] for panel in panels()}
    assert {title for title in re.findall(r'"([A-Z][^"]*)"', prose(text)) if title != "Targets"} <= panel_titles


def prose(text: str) -> str:
    """Return *text* without its code."""
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL).replace("\n", " ")


def commands() -> list[str]:
    """Return every command line of ``commit-coord`` in the runbook that has arguments."""
    found = set()
    for text in pages().values():
        found |= set(re.findall(r"^ *(commit-coord .*)$", text, re.MULTILINE))
        found |= set(re.findall(r"`(commit-coord [^`]+)`", text))
    return sorted(found)


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_runbook_exists_with_its_options(line: str) -> None:
    group = cast(Any, get_command(app))
    _, name, *words = shlex.split(line)
    command = group.get_command(None, name)
    assert command is not None
    options = {spelling for parameter in command.params for spelling in parameter.opts if spelling.startswith("-")}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= options


def test_the_command_line_takes_the_arguments_of_the_commands_of_the_runbook() -> None:
    group = cast(Any, get_command(app))
    for line in commands():
        _, name, *words = shlex.split(line)
        command = group.get_command(None, name)
        needed = sum(p.required for p in command.params if p.param_type_name == "argument")
        if words and needed <= sum(not word.startswith("-") for word in words):
            command.make_context(name, list(words), resilient_parsing=False).close()


# What Prometheus itself says.


@pytest.fixture(scope="module")
def promtool() -> str:
    """The program that checks configurations and tests rules."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip(untested("the alerts in Prometheus", "promtool is not installed: bash .ci/setup.sh prometheus"))
    return found


def run(*command: str) -> None:
    """Run *command*, which must end well."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


def test_prometheus_takes_the_rules_and_the_settings(promtool: str) -> None:
    run(promtool, "check", "rules", str(RULES))
    run(promtool, "check", "config", str(SETTINGS))


def test_alerts_are_active_when_they_must_be_and_only_then(promtool: str) -> None:
    run(promtool, "test", "rules", str(RULE_TESTS))


def test_every_alert_has_a_test_in_which_it_is_active() -> None:
    tested = set(re.findall(r'alertname="(\w+)"', RULE_TESTS.read_text()))
    assert {rule["alert"] for rule in alerts()} == tested


def asked(expression: str) -> str:
    """Return *expression* as Grafana sends it, when the time range is an hour and everything is chosen."""
    for variable, value in {"$__rate_interval": "4m", "$__range": "1h", "$catalog": ".*", "$job": ".*"}.items():
        expression = expression.replace(variable, value)
    return expression


def test_prometheus_takes_the_queries_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    """As rules, because it checks no other queries."""
    rules = [
        {"record": f"panel_{panel['id']}_{number}", "expr": asked(target["expr"])}
        for panel in panels()
        for number, target in enumerate(panel["targets"])
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(promtool, "check", "rules", str(file))


@pytest.mark.parametrize(
    "title, label",
    [("Requests that were not granted", 'outcome="lock-timeout"'), ("Forced releases", 'how="unlock"')],
)
def test_a_panel_of_rare_events_shows_the_first_one(promtool: str, tmp_path: Path, title: str, label: str) -> None:
    """Its series begins with this event, so no rate contains it."""
    (panel,) = [panel for panel in panels() if panel["title"] == title]
    expression = asked(panel["targets"][0]["expr"])
    metric = selectors(expression)[0][0]
    cases = [
        {"expr": expression, "eval_time": at, "exp_samples": [{"labels": f"{{{label}}}", "value": value}]}
        for at, value in (("2m", 1), ("5m", 1), ("9m", 0))
    ]
    series = [{"series": f'{metric}{{catalog="shop", {label}}}', "values": "_ _ 1x20"}]
    file = tmp_path / "first.yml"
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": cases}]
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": tests}))
    run(promtool, "test", "rules", str(file))
