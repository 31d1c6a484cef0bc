"""This checkout against another one, in one run: what a change costs.

The two run the same small piece of a suite in the order this, other, other, this, so a machine that grows slower or
faster meanwhile does so for both. Each is measured by its own bench, with its own code and, where it has one, its own
``.venv``.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from commit_coord.errors import ConfigError

SUITES = ("commits", "hive", "cost", "groups", "spark")
"""Those whose figures are read here."""

WRITERS: Mapping[str, Sequence[int]] = {"commits": (1, 4, 16), "hive": (1, 4), "groups": (1, 4, 16)}
"""Suites that are cut into pieces by their numbers of writers: the four runs of a piece lie closer together."""

ROOT = Path(__file__).parents[2]

_ORDER = ("this", "other", "other", "this")
_KEYS = ("kind", "where", "how", "layout", "process", "writers", "snapshots")
_FIGURES = ("per_second", "p50_ms", "cpu_ms_each", "ms", "cpu_ms")

Figures = dict[str, float]
"""What was measured → its figure; of a rate its inverse, so that less is always better."""


def run(
    other: Path, suites: Sequence[str], options: Sequence[str], writers: Sequence[int], say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure *suites* here and in the checkout *other*, and return for each figure this one's cost by the other's.

    Args:
        other: The root of the other checkout.
        suites: Some of ``SUITES``.
        options: Of both benches.
        writers: Instead of ``WRITERS``.
        say: Takes a line of progress.

    Raises:
        ConfigError: *other* is no checkout of this project, or a bench failed.
    """
    roots = {"this": ROOT, "other": other.resolve()}
    for root in roots.values():
        _ensure_checkout(root)
    rows = []
    for suite in suites:
        for count in (writers or WRITERS[suite]) if suite in WRITERS else (None,):
            piece = [*options, *(["--writers", str(count)] if count else [])]
            found: dict[str, list[Figures]] = {"this": [], "other": []}
            for side in _ORDER:
                say(f"-- {side}: {suite} {' '.join(piece)}")
                found[side].append(figures(suite, _measured(roots[side], suite, piece)))
            rows += [{"suite": suite, **row} for row in compared(found["this"], found["other"])]
    return {"other": _commit(other), "rows": rows}


def figures(suite: str, result: Mapping[str, Any]) -> Figures:
    """Return the figures of a suite's *result* of which less is better."""
    if suite == "spark":
        return {
            f"{what}, {who}, s": value
            for what, each in result["seconds"].items()
            for who, value in each.items()
            if value
        }
    return {
        f"{', '.join(str(cell[key]) for key in _KEYS if cell.get(key) is not None)}, {name}": (
            1 / cell[name] if name == "per_second" else cell[name]
        )
        for cell in result["cells"]
        for name in _FIGURES
        if cell.get(name)
    }


def compared(this: Sequence[Figures], other: Sequence[Figures]) -> list[dict[str, Any]]:
    """Return for each figure that all runs have the cost here by that of the other, with the spread of the pairs."""
    names = [name for name in this[0] if all(name in each for each in (*this, *other))]
    rows = []
    for name in names:
        ratios = [mine[name] / its[name] for mine, its in zip(this, other, strict=True)]
        mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
        rows.append({"figure": name, "ratio": mean, "least": min(ratios), "most": max(ratios)})
    return rows


def render(found: Mapping[str, Any]) -> str:
    """Return what :func:`run` found as Markdown."""
    lines = [
        f"This checkout against {found['other']}: cost here by cost there, below 1 is faster here. Least and most are",
        "the ratios of the two pairs of runs. Those of PyIceberg and of the JVM show how far apart equal code is.",
        "",
        "| suite | figure | ratio | least | most |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        ratios = " | ".join(f"{row[name]:.3f}" for name in ("ratio", "least", "most"))
        lines.append(f"| {row['suite']} | {row['figure']} | {ratios} |")
    return "\n".join([*lines, ""])


def _measured(root: Path, suite: str, options: Sequence[str]) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="commit-coord-against-") as results:
        command = ["-m", "commit_coord.cli", "bench", "--only", suite, "--results", results, *options]
        done = _python(root, *command)
        path = Path(results, "results.json")
        measured = orjson.loads(path.read_bytes()) if path.exists() else {}
        if done.returncode not in (0, 1) or suite not in measured:
            raise ConfigError(
                "benchmark failed", checkout=root, suite=suite, output=(done.stderr or done.stdout)[-1000:]
            )
        found: Mapping[str, Any] = measured[suite]
        return found


def _ensure_checkout(root: Path) -> None:
    if not root.is_dir():
        raise ConfigError("folder not found", key="--against", value=root)
    output = _python(root, "-c", "import commit_coord; print(commit_coord.__file__)")
    if output.returncode or root not in Path(output.stdout.strip()).parents:
        raise ConfigError(
            "not a checkout of commit_coord that can be measured",
            key="--against",
            value=root,
            output=output.stderr[-500:],
        )


def _python(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = root / ".venv" / "bin" / "python"
    return subprocess.run(
        [own if own.exists() else sys.executable, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def _commit(root: Path) -> str:
    """Return which commit is checked out in *root*, as git names it."""
    output = subprocess.run(
        ["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return output.stdout.strip() or root.name
