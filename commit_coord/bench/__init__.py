"""What commits and locks cost here, compared with PyIceberg and the Iceberg JVM runtime: ``commit-coord bench``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from commit_coord.bench import (
    against,
    commits,
    cost,
    groups,
    hive,
    jvm,
    kill,
    large,
    locking,
    machine,
    migration,
    plots,
    profiling,
    report,
    steady,
)
from commit_coord.errors import ConfigError
from commit_coord.extras import install
from commit_coord.local import NotInstalled
from commit_coord.local.maven import maven_jar
from commit_coord.protocol.migration import Phase

SUITES = ("commits", "hive", "rest", "groups", "migration", "steady", "cost", "locks", "kill", "spark", "large")
_SERVERS = ("spark", "hive", "postgres")
"""The extras without which no suite has a metastore, ZooKeeper and PostgreSQL."""
ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write the results; return 1 when something that must hold was found broken."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    given = _parser().parse_args(arguments)
    if given.what == "profile":
        profiling.main(None, _say, seconds=given.seconds or 10.0)
        return 0
    if given.against is not None:
        return _compare(given)
    chosen = given.only.split(",") if given.only else list(SUITES)
    if unknown := set(chosen) - set(SUITES):
        _parser().error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    unknown = {name for name in _managers(given) if not any(label.startswith(name) for label in locking.KINDS)}
    if unknown:
        _parser().error(f"no such lock manager: {', '.join(sorted(unknown))}; there are {', '.join(locking.KINDS)}")
    results = report.load(given.results)
    broken: list[str] = []
    for name in chosen:
        _say(f"== {name}")
        described, began = machine.describe(), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="commit-coord-bench-", dir=given.folder) as folder:
            found = _RUN[name](Path(folder) / name, given)
        if found is None:
            continue
        results[name] = {
            **found,
            "command": _command(given),
            "quick": given.quick,
            "took_s": round(time.monotonic() - began),
            "machine": described,
        }
        report.save(given.results, results)
        broken += _broken(name, found)
    if find_spec("matplotlib") is None:
        _say(f"no pictures: {install('plot')}")
    else:
        plots.draw(given.results, results)
    for line in broken:
        _say(f"BROKEN: {line}")
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="commit-coord bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("run", "profile"), default="run")
    parser.add_argument("--only", help=f"some of {','.join(SUITES)}")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help=f"measure another checkout in turns with this one: {','.join(against.SUITES)} or those of --only",
    )
    parser.add_argument("--beside", dest="against", type=Path, help=argparse.SUPPRESS)  # its former name
    parser.add_argument("--quick", action="store_true", help="small and short: to see that it works")
    parser.add_argument(
        "--seconds", type=_seconds, help="of a cell: commits, hive, migration 20, rest 120, groups, locks 5, profile 10"
    )
    parser.add_argument(
        "--writers",
        type=_counts,
        metavar="N,N",
        help="numbers of writers (1,2,4,8,16; of rest 16; of groups 1,4,16,32; of migration 1,4,16)",
    )
    parser.add_argument("--more", action="store_true", help="groups also on PostgreSQL and HMS 4.0.1")
    parser.add_argument("--results", type=Path, default=Path("bench/results"), help="default: %(default)s")
    parser.add_argument("--folder", type=Path, help="where tables are made; default: the system's folder for such")
    parser.add_argument("--postgres-url", help="a server to measure instead of a private one")
    parser.add_argument("--jar", type=Path, help="the Iceberg JVM runtime; default: fetched with Maven")
    parser.add_argument("--rows", type=int, help="of spark (5,000,000)")
    parser.add_argument("--managers", help="some of those of locks, by their beginnings: lease,zookeeper")
    parser.add_argument("--seed", type=int, default=0, help="of kill")
    return parser


def _compare(given: argparse.Namespace) -> int:
    """Measure this checkout and another one; write and print how they compare."""
    suites = given.only.split(",") if given.only else list(against.SUITES)
    if unknown := set(suites) - set(against.SUITES):
        _parser().error(f"not compared with another checkout: {', '.join(sorted(unknown))}")
    options = ["--quick"] if given.quick else []
    for name in ("seconds", "rows", "jar", "folder"):
        if (value := getattr(given, name)) is not None:
            options += [f"--{name}", str(value)]
    try:
        found = against.run(given.against, suites, options, given.writers or (), _say)
    except ConfigError as error:
        _parser().error(str(error))
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "against.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    (given.results / "against.md").write_text(against.render(found))
    _say(against.render(found))
    return 0


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: a number of seconds without a unit, as in 20 or 0.5") from None


def _counts(text: str) -> list[int]:
    counts = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if not all(counts):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from 1 on, as in 1,4,16")
    return counts


def _command(given: argparse.Namespace) -> str:
    """Return the command without what names places of this machine, or a server and its password."""
    shown = ("only", "quick", "seconds", "writers", "more", "managers", "rows", "seed")
    given_words = {name: value for name in shown if (value := getattr(given, name))}
    if given.writers:
        given_words["writers"] = ",".join(map(str, given.writers))
    words = [f"--{name}" if value is True else f"--{name} {value}" for name, value in given_words.items()]
    return " ".join(["commit-coord bench", *words])


def _say(text: str) -> None:
    print(text, flush=True)


def _commits(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    writers = given.writers or ([1, 4] if given.quick else [1, 2, 4, 8, 16])
    return commits.run(
        folder,
        seconds=given.seconds or (3.0 if given.quick else 20.0),
        writers=writers,
        snapshots=20 if given.quick else 200,
        say=_say,
    )


def _hive(folder: Path, given: argparse.Namespace) -> dict[str, Any] | None:
    writers = given.writers or ([1, 4] if given.quick else [1, 2, 4, 8, 16])
    try:
        return hive.run(
            folder,
            seconds=given.seconds or (3.0 if given.quick else 20.0),
            writers=writers,
            snapshots=20,
            java=_java(given),
            say=_say,
        )
    except (ModuleNotFoundError, NotInstalled) as error:
        _say(f"NOT measured: {error}; {install(*_SERVERS)}, and Java 17 or later")
        return None


def _rest(folder: Path, given: argparse.Namespace) -> dict[str, Any] | None:
    java = _java(given)
    if java is None or find_spec("uvicorn") is None:
        _say(f"NOT measured: Iceberg's JVM runtime and the server are needed; {install('spark', 'serve')}")
        return None
    from commit_coord.bench import rest

    try:
        return rest.run(
            folder,
            seconds=given.seconds or (3.0 if given.quick else 120.0),
            writers=given.writers or ([4] if given.quick else [16]),
            snapshots=20,
            requests=50 if given.quick else 500,
            java=java,
            say=_say,
        )
    except (ModuleNotFoundError, NotInstalled) as error:
        _say(f"NOT measured: {error}; {install('spark', 'hive', 'serve')}, and Java 17 or later")
        return None


def _groups(folder: Path, given: argparse.Namespace) -> dict[str, Any] | None:
    writers = given.writers or ([1, 4] if given.quick else [1, 4, 16, 32])
    try:
        return groups.run(
            folder,
            seconds=given.seconds or (0.5 if given.quick else 5.0),
            writers=writers,
            snapshots=20 if given.quick else 200,
            more=given.more,
            java=_java(given),
            say=_say,
        )
    except (ModuleNotFoundError, NotInstalled) as error:
        _say(f"NOT measured: {error}; {install(*_SERVERS)}, and Java 17 or later")
        return None


def _migration(folder: Path, given: argparse.Namespace) -> dict[str, Any] | None:
    writers = given.writers or ([1, 4] if given.quick else [1, 4, 16])
    try:
        return migration.run(
            folder,
            seconds=given.seconds or (2.0 if given.quick else 20.0),
            writers=writers,
            snapshots=20,
            say=_say,
        )
    except (ModuleNotFoundError, NotInstalled) as error:
        _say(f"NOT measured: {error}; {install(*_SERVERS)}, Java 17 or later, and PostgreSQL")
        return None


def _steady(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    appends, block = (200, 50) if given.quick else (20_000, 1_000)
    return steady.run(folder, appends=appends, block=block, say=_say)


def _java(given: argparse.Namespace) -> Callable[[Path], Sequence[str]] | None:
    """Return what makes the command of a worker in Java in a folder, None where the JVM runtime can't be had."""
    try:
        jar = given.jar or maven_jar(ICEBERG_RUNTIME)
    except ConfigError as error:
        _say(f"what Iceberg's Java does is NOT measured: {error}")
        return None
    return lambda folder: jvm.java_worker(folder, jar)


def _cost(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    return cost.run(
        folder,
        lengths=(10, 100, 300) if given.quick else (10, 1_000, 5_000),
        repeats=3 if given.quick else 9,
        patience_s=60.0,
        say=_say,
    )


def _managers(given: argparse.Namespace) -> tuple[str, ...]:
    return tuple((given.managers or "").split(","))


def _locks(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    return locking.run(
        folder,
        seconds=given.seconds or (1.0 if given.quick else 5.0),
        contenders=8,
        hand_overs=20 if given.quick else 300,
        partitions=100 if given.quick else 10_000,
        listed=1_000 if given.quick else 100_000,
        postgres_url=given.postgres_url,
        java=_java(given),
        only=_managers(given),
        say=_say,
    )


def _kill(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    return kill.run(folder, writers=8, appends=10 if given.quick else 200, seed=given.seed, say=_say)


def _spark(folder: Path, given: argparse.Namespace) -> dict[str, Any] | None:
    if find_spec("commit_coord.bench.spark") is None or find_spec("pyspark") is None:
        _say(f"NOT measured: Spark is not installed, {install('spark')}")
        return None
    from commit_coord.bench import spark

    jar = given.jar or maven_jar(ICEBERG_RUNTIME)
    rows = given.rows or (200_000 if given.quick else 5_000_000)
    found: dict[str, Any] = spark.run(rows, 1 if given.quick else 3, jar)
    return found


def _large(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    return large.run(
        folder,
        cases=large.QUICK if given.quick else large.FULL,
        repeats=1 if given.quick else 3,
        java=_java(given),
        say=_say,
    )


_RUN: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any] | None]] = {
    "commits": _commits,
    "hive": _hive,
    "rest": _rest,
    "groups": _groups,
    "migration": _migration,
    "steady": _steady,
    "cost": _cost,
    "locks": _locks,
    "kill": _kill,
    "spark": _spark,
    "large": _large,
}


def _broken(name: str, found: dict[str, Any]) -> list[str]:
    """Return what does not hold that must, whatever the speed."""
    if name in ("commits", "hive", "rest", "groups", "migration"):
        unproved = [
            f"{cell['layout']}, {cell['writers']} writers, {cell['kind']}: {cell['acknowledged']} acknowledged, "
            f"{cell['snapshots_added']} added, unbroken {cell['unbroken']}, {cell['missing_files']} files missing, "
            f"{cell['locks_left']} locks left"
            for cell in found["cells"]
            if cell["kind"].startswith(("commit_coord", "rest", *groups.OURS, *Phase)) and not cell["proved"]
        ]
        return unproved + [what for what in found.get("gave_up", {}) if what.startswith(("commit_coord", "rest"))]
    if name == "cost" and found["locks_left"]:
        return [f"cost: {found['locks_left']} locks left"]
    if name == "large":
        return large.disagreements(found)
    if name == "kill":
        return [f"{label}: {what}" for label, run in found["runs"].items() for what in run["broken"]]
    return []
