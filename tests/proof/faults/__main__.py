"""Runs the cells that are asked for, prints a line for each, keeps the results and writes the page."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from commit_coord.local import HiveMetastore, ServerFailed, ZooKeeperEnsemble
from commit_coord.testing.hammer import hammer
from tests.proof.faults.cell import Result, run
from tests.proof.faults.injuries import INJURIES, Injury, why_not_here
from tests.proof.faults.page import page
from tests.proof.faults.rigs import CONFIGURATIONS, Configuration, Rig
from tests.proof.faults.world import World

_TRIMMED = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "100"}
"""10,000 metadata files of up to 5 MB each would fill a disk."""
_WRITERS = 8
"""Of 10,000 commits."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a promise of ours does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.faults", description=__doc__)
    parser.add_argument("--only", action="append", choices=INJURIES, metavar="FAULT", help="; ".join(INJURIES))
    parser.add_argument("--on", action="append", choices=CONFIGURATIONS, help="only there")
    parser.add_argument("--seed", type=int, default=1, help="of every choice")
    parser.add_argument("--seconds", type=float, help="how long a fault lasts, where that is free")
    parser.add_argument("--minutes", type=float, help="begin no cell after so long")
    parser.add_argument("--kills", action="store_true", help="10,000 commits, a SIGKILL every two seconds, no cells")
    parser.add_argument("--commits", type=int, default=10_000, help="of --kills")
    parser.add_argument("--logs", type=Path, help="a folder that keeps the logs of every cell")
    parser.add_argument("--results", type=Path, help="JSON; what it has of other cells stays")
    parser.add_argument("--page", type=Path, help="where to write the page of all results")
    parser.add_argument("--render", action="store_true", help="run nothing, write the page")
    given = parser.parse_args(arguments)
    if given.commits < _WRITERS:
        parser.error(f"--commits is {_WRITERS} or more, one of each writer")
    configurations = [one for one in CONFIGURATIONS.values() if given.on is None or one.name in given.on]
    injuries = [one for one in INJURIES.values() if given.only is None or one.name in given.only]
    if all(injury.why_not(one) for one in configurations for injury in injuries):
        parser.error(
            f"{injuries[0].name} makes no sense on {configurations[0].name}: {injuries[0].why_not(configurations[0])}"
        )
    results = _read(given.results)
    broken: list[str] = []
    if given.kills:
        broken = _kills(given.commits, given.seed, results)
        _keep(given.results, given.page, results)
    elif not given.render:
        world = World()
        until = time.monotonic() + given.minutes * 60 if given.minutes else float("inf")
        for configuration in configurations:
            try:
                broken += _column(configuration, injuries, world, given, results, until)
            except ServerFailed as error:  # the other columns are run all the same
                print(error, flush=True)
                broken.append(f"{configuration.name}: {error}\n    make faults ARGS='--on {configuration.name}'")
    _keep(given.results, given.page, results)
    for words in broken:
        print(words)
    return 1 if broken else 0


def _column(
    configuration: Configuration,
    injuries: Sequence[Injury],
    world: World,
    given: argparse.Namespace,
    results: dict[str, Any],
    until: float,
) -> list[str]:
    """Run the cells of *configuration*; return what does not hold, with the command that shows it."""
    broken: list[str] = []
    todo = [injury for injury in injuries if not injury.why_not(configuration)]
    cells = results["cells"]
    for injury in list(todo):
        if why := why_not_here(injury, world.why_not):
            key = f"{configuration.name}/{injury.name}"
            print(f"{key:42} not run: {why}", flush=True)
            cells.setdefault(key, {"not_run": why})
            todo.remove(injury)
    if not todo or time.monotonic() > until:
        return broken
    with tempfile.TemporaryDirectory(prefix="commit-coord-faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL's own user goes through it
        rig = Rig(configuration, folder, world)
        try:
            rig.start()
            for injury in todo:
                if time.monotonic() > until:
                    break
                broken += _one(rig, injury, folder / f"cell-{injury.name}", given, cells)
                _keep(given.results, given.page, results)
                rig.heal()
        finally:
            rig.close()
    return broken


def _one(rig: Rig, injury: Injury, folder: Path, given: argparse.Namespace, cells: dict[str, Any]) -> list[str]:
    name, key = rig.configuration.name, f"{rig.configuration.name}/{injury.name}"
    again = f'make faults ARGS="--only {injury.name} --on {name} --seed {given.seed}"'
    print(f"{key:42} ", end="", flush=True)
    try:
        result = run(rig, injury, folder, seed=given.seed, seconds=given.seconds)
    except Exception as error:  # noqa: BLE001 - the other cells are run all the same
        traceback.print_exc()
        cells[key] = {"not_run": f"the cell itself failed: {type(error).__name__}"}
        return [f"{key}: {error}\n    {again}"] if rig.configuration.ours else []
    cells[key] = result.as_json()
    print(_line(result), flush=True)
    if given.logs is not None:
        shutil.copytree(folder, given.logs / f"{name}-{injury.name}-{given.seed}", dirs_exist_ok=True)
    if not result.broken or not rig.configuration.ours:
        return []
    for words in result.broken[:10]:
        print(f"    {words}")
    print(f"    {again}", flush=True)
    return [f"{key}: {'; '.join(result.broken[:3])}\n    {again}"]


def _line(result: Result) -> str:
    found = result.findings
    back = "never" if result.recovered_s is None else f"{result.recovered_s:.1f} s"
    return (
        f"{found.acknowledged:5} acknowledged, {found.lost} lost, {found.doubled} doubled, {found.leaked} locks left, "
        f"{found.missing} missing, {found.orphans} orphans, pause {result.stalled_s} s, back after {back}, "
        f"{result.seconds} s {'HOLDS' if not result.broken else 'DOES NOT HOLD'}"
    )


def _kills(commits: int, seed: int, results: dict[str, Any]) -> list[str]:
    """Have eight writers make so many commits under kills."""
    load, at = round(os.getloadavg()[0], 1), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with (
        tempfile.TemporaryDirectory(prefix="commit-coord-faults-") as folder,
        HiveMetastore() as metastore,
        ZooKeeperEnsemble(size=3) as zookeeper,
    ):
        report = hammer(
            Path(folder),
            writers=_WRITERS,
            appends=commits // _WRITERS,
            kill_every_s=2.0,
            seed=seed,
            properties={"uri": metastore.uri, "lock-impl": "zookeeper", "lock.uri": zookeeper.connect_string},
            table_properties=_TRIMMED,
            timeout_s=3600,
            say=lambda text: print(text, flush=True),
        )
    results["kills"] = {"report": asdict(report), "seed": seed, "load": load, "at": at}
    print(json.dumps(asdict(report), indent=2))
    return list(report.broken)


def _read(path: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    found.setdefault("cells", {})
    return found


def _keep(path: Path | None, where: Path | None, results: dict[str, Any]) -> None:
    results["machine"] = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    if where is not None:
        where.write_text(page(results))


if __name__ == "__main__":
    sys.exit(main())
