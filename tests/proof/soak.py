"""Many writers work for a long time, and whatever could grow is measured.

Theory of operation
    For one lock manager after the other, and for the REST server, two processes with half of the writers each
    (`memory`: one with all) append, take operation locks, read, and now and then empty a table and expire its
    snapshots, so that the tables themselves stay as they are. Every few seconds the parent reads from the
    kernel and from the services what there is: memory, threads, file handles, connections, nodes, rows.

    What grows is told from noise by a line through the samples behind the warm-up. Neighbouring samples are alike, so
    they are first put together in ten blocks, and the line goes through the means of these: its slope is given with
    an interval around it. Where that contains 0, nothing is known to grow. About thirty figures are judged at once, and
    intervals of 95 % confidence would call one of them growing in every second run where nothing grows. These are so
    wide that it happens in one run of twenty.

    The C library gives each thread a heap of its own, and the holes of 16 heaps fill up for an hour or longer while the
    number of Python's own objects stays as it is. The writers share two, so that this doesn't hide what matters.

``python -m tests.proof.soak --minutes 60 --writers 16 --managers all``
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.catalog

import commit_coord
from commit_coord.local import HiveMetastore, PostgresServer, ZooKeeperEnsemble
from commit_coord.local.rest import RestServer
from commit_coord.model import LockMode, Resource
from commit_coord.testing.contract import PATIENCE
from commit_coord.testing.fleet import PipeWriter

REST = "rest"
"""No lock manager: PyIceberg's clients of a REST server, whose process is measured in place of theirs."""
MANAGERS = ("memory", "lease-sqlite", "lease-postgresql", "zookeeper", "hms", REST)
TABLES = 4
_EMPTIED_AFTER = 40
"""Appends of one writer until it empties its table."""
_EVERY_S = 2.0
_PATIENCE_S = 120.0
"""For a writer that starts, or ends."""
_BLOCKS = 10
_T = 4.1
"""Student's t for ten blocks, eight degrees of freedom: exceeded once in 580, thus by one of 30 in one run of 20."""
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2"}
"""Of the writers."""
_NOT_JUDGED = {"server MiB": "not judged"}
"""A Java server takes of its heap what it may until its collector sees a reason: that tells nothing of what stays."""
_PROPERTIES = {
    "write.metadata.previous-versions-max": "10",
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}

Sample = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """How fast something grew.

    Args:
        mean: Of the samples behind the warm-up.
        per_hour: The slope of the line through them.
        error: Half of the interval around it.
    """

    mean: float
    per_hour: float
    error: float

    @property
    def flat(self) -> bool:
        """Whether it is not known to grow."""
        return self.per_hour - self.error <= 0


@dataclass(slots=True, kw_only=True)
class Run:
    """One lock manager's turn."""

    manager: str
    writers: int
    warm_up_s: float
    seconds: float
    at: str = ""
    """When it began, in UTC."""
    machine: str = ""
    load: float | None = None
    """Of the machine's last minute before it began; None when nobody noted it."""
    commits: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def grown(self) -> list[str]:
        """Return the names of what grew behind the warm-up."""
        return [name for name, found in self.slopes().items() if not found.flat and name not in _NOT_JUDGED]

    def slopes(self) -> dict[str, Slope]:
        """Return how fast each thing grew behind the warm-up."""
        behind = [one for one in self.samples if one["at"] >= self.warm_up_s]
        names = [name for name in (behind[0] if behind else {}) if name != "at"]
        return {name: slope([one["at"] for one in behind], [one[name] for one in behind]) for name in names}


def slope(times: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of *values* over *times* in seconds, by the means of ten blocks of neighbours."""
    size = len(values) / _BLOCKS
    if size < 1:
        return Slope(mean=statistics.fmean(values) if values else 0.0, per_hour=0.0, error=float("inf"))
    cuts = [round(number * size) for number in range(_BLOCKS + 1)]
    blocks = list(pairwise(cuts))
    xs = [statistics.fmean(times[start:end]) for start, end in blocks]
    ys = [statistics.fmean(values[start:end]) for start, end in blocks]
    grows, at_zero = statistics.linear_regression(xs, ys)
    left = sum((y - (at_zero + grows * x)) ** 2 for x, y in zip(xs, ys, strict=True))
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    error = _T * (left / (_BLOCKS - 2) / spread) ** 0.5
    return Slope(mean=statistics.fmean(values), per_hour=grows * 3600, error=error * 3600)


# The writers.


def _work() -> None:
    """Write with threads as the first line of stdin says; at the second one, or its end, print what was done."""
    spec: Mapping[str, Any] = json.loads(sys.stdin.readline())
    stop = threading.Event()
    counts = {"commits": 0}
    failed: dict[str, int] = {}
    first: dict[str, str] = {}
    mutex = threading.Lock()
    catalog = _open(spec["properties"])
    has_locks = hasattr(catalog, "lock_operation")

    def write(number: int) -> None:
        dice = random.Random(number)
        rows = pa.table({"id": pa.array([number] * 10), "value": pa.array([0.5] * 10)})
        done = 0
        rests_at = due = time.monotonic() + spec["burst_s"]
        while not stop.wait(0.0 if (now := time.monotonic()) < rests_at else max(0.0, due - now)):
            if now >= rests_at:
                # Not equally long each time: who once waited for the others would be in step with them for ever.
                due = max(due, now - 1) + spec["pace_s"] * (0.5 + dice.random())
            name = ("soak", f"t{number % TABLES}")
            try:
                table = catalog.load_table(name)
                table.append(rows)
                done += 1
                if done % 10 == 0 and has_locks:
                    with catalog.lock_operation({Resource((*name, f"day={dice.randrange(5)}")): LockMode.SHARED}):
                        catalog.show_locks()
                if done % _EMPTIED_AFTER == 0:
                    _empty(catalog.load_table(name))
                with mutex:
                    counts["commits"] += 1
            except Exception as error:  # noqa: BLE001 - counted, and shown at the end
                with mutex:
                    failed[type(error).__name__] = failed.get(type(error).__name__, 0) + 1
                    first.setdefault(type(error).__name__, traceback.format_exc())

    def tell() -> None:
        told = Path(spec["blocks"])
        while not stop.wait(1.0):
            written = told.with_suffix(".written")
            written.write_text(str(sys.getallocatedblocks()))
            written.replace(told)

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in spec["numbers"]]
    threads.append(threading.Thread(target=tell, daemon=True))
    for thread in threads:
        thread.start()
    print(json.dumps("up"), flush=True)
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    catalog.close()
    print(json.dumps({**counts, "failed": failed, "first": first}), flush=True)


def _open(properties: Mapping[str, str]) -> Any:
    opened = pyiceberg.catalog.load_catalog if properties.get("type") == "rest" else commit_coord.load_catalog
    return opened("soak", **properties)


def _empty(table: Any) -> None:
    """Leave a table as it was in the beginning: without rows, with one snapshot."""
    table.delete("id >= 0")
    current = table.metadata.current_snapshot_id
    old = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != current]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


@contextmanager
def _writers(
    properties: Mapping[str, str], writers: int, blocks: Sequence[Path], pace: Mapping[str, float]
) -> Iterator[list[PipeWriter]]:
    """Start a process for each file of *blocks*, which says how many blocks of memory its Python has in use."""
    command = [sys.executable, "-m", "tests.proof.soak", "--worker"]
    with ExitStack() as stack:
        started = []
        for part, told in enumerate(blocks):
            told.write_text("0")
            numbers = list(range(part, writers, len(blocks)))
            spec = {"properties": dict(properties), "numbers": numbers, "blocks": str(told), **pace}
            writer = PipeWriter(command, spec, stderr=subprocess.DEVNULL, env={**os.environ, **_ENVIRONMENT})
            started.append(stack.enter_context(writer))
        for one in started:
            one.receive(_PATIENCE_S)  # it is up
        yield started


# What there is.


def _process(pid: int) -> Sample:
    """Return what the kernel says of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {key: float(value) for key, value in re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE)}
    links = []
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(handle))
    sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
    tcp = {line.split()[9] for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]}
    return {
        "memory MiB": found["VmRSS"] / 1024,
        "threads": found["Threads"],
        "file handles": float(len(links)),
        "TCP connections": float(len(sockets & tcp)),
    }


def _sample(pids: Sequence[int], service: Callable[[], Sample]) -> Sample:
    of_each = [_process(pid) for pid in pids]
    return {**{name: sum(one[name] for one in of_each) for name in of_each[0]}, **service()}


_LEASE_TABLES = ("requests", "locks", "journal", "offers", "leases", "notes", "places")


@contextmanager
def _service(manager: str, folder: Path) -> Iterator[tuple[dict[str, str], Callable[[], Sample], int | None]]:
    """Start what *manager* needs.

    Yields:
        The properties of a catalog on it, what counts the service's own, and the process that is measured in place of
        the writers; None for the writers.
    """
    if manager == REST:
        os.environ |= _ENVIRONMENT
        place = {"uri": f"coord+sqlite:///{folder}/catalog.db", "warehouse": folder.joinpath("warehouse").as_uri()}
        with RestServer("soak", place, folder / "rest") as server:
            yield (
                {"type": "rest", "uri": server.url, "warehouse": "soak", "header.X-Commit-Coord-Append": "blind"},
                dict,
                server.pid,
            )
        return
    with _lock_service(manager, folder) as (properties, service):
        yield {**properties, "warehouse": folder.joinpath("warehouse").as_uri()}, service, None


@contextmanager
def _lock_service(manager: str, folder: Path) -> Iterator[tuple[dict[str, str], Callable[[], Sample]]]:
    with ExitStack() as stack:
        place = {"uri": f"coord+sqlite:///{folder}/catalog.db", "lock-impl": manager.partition("-")[0]}
        if manager == "hms":
            metastore = stack.enter_context(HiveMetastore(folder / "hms"))
            client: Any = commit_coord.load_catalog("soak", uri=f"coord+{metastore.uri}", **{"lock-impl": "hms"})
            stack.callback(client.close)
            yield (
                {"uri": f"coord+{metastore.uri}", "lock-impl": "hms"},
                lambda: {"locks in the metastore": float(len(client.locks.locks())), "server MiB": _rss(metastore.pid)},
            )
        elif manager == "zookeeper":
            ensemble = stack.enter_context(ZooKeeperEnsemble(size=1))
            (server,) = ensemble.servers

            def nodes() -> Sample:
                found = re.search(r"^Node count: (\d+)", server.ask("srvr"), re.MULTILINE)
                return {"ZooKeeper nodes": float(found[1]) if found else 0.0, "server MiB": _rss(server.pid)}

            yield {**place, "lock.uri": ensemble.connect_string}, nodes
        elif manager == "lease-postgresql":
            postgres = stack.enter_context(PostgresServer("fsync=off"))
            count = " + ".join(f"(SELECT count(*) FROM commit_coord_{name})" for name in _LEASE_TABLES)
            ask = f"SELECT {count}, pg_database_size(current_database())"

            def rows() -> Sample:
                number, size = postgres.psql(ask).split("|")
                return {"database rows": float(number), "database MiB": float(size) / 2**20}

            yield {**place, "lock.uri": postgres.url}, rows
        elif manager == "lease-sqlite":
            path = folder / "locks.db"

            def sqlite_rows() -> Sample:
                with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                    counts = [
                        db.execute(f"SELECT count(*) FROM commit_coord_{name}").fetchone()[0] for name in _LEASE_TABLES
                    ]
                return {"database rows": float(sum(counts)), "database MiB": path.stat().st_size / 2**20}

            yield {**place, "lock.uri": f"sqlite:///{path}"}, sqlite_rows
        else:
            yield place, dict


def _rss(pid: int) -> float:
    return _process(pid)["memory MiB"]


# One run, and all of them.


def soak(
    manager: str, *, seconds: float, warm_up_s: float, writers: int, every_s: float = _EVERY_S, pace_s: float = 0.4
) -> Run:
    """Have *writers* work with *manager* for *seconds*, and measure.

    Args:
        manager: One of :data:`MANAGERS`.
        seconds: How long, with the warm-up.
        warm_up_s: From when on nothing should grow.
        writers: How many.
        every_s: Between two samples.
        pace_s: From one append of a writer to its next one, on average, if none takes longer. What stays in a journal
            for a while is more when there are more appends, so their number must not follow what else the machine
            does. In the first two fifths of the warm-up they don't rest, so that every pool is as full as it ever gets.
    """
    pace = {"pace_s": pace_s, "burst_s": 0.4 * warm_up_s}
    run = Run(
        manager=manager,
        writers=writers,
        warm_up_s=warm_up_s,
        seconds=seconds,
        at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
    )
    with tempfile.TemporaryDirectory(prefix="commit-coord-soak-") as name:
        folder = Path(name)
        with _service(manager, folder) as (properties, service, measured):
            _make_tables(properties)
            blocks = [folder / f"blocks-{part}" for part in range(1 if manager == "memory" else 2)]
            with _writers(properties, writers, blocks, pace) as processes:
                started = time.monotonic()
                pids = [one.pid for one in processes] if measured is None else [measured]
                while (at := time.monotonic() - started) < seconds:
                    sample = _sample(pids, service)
                    in_use = sum(int(one.read_text()) for one in blocks)
                    run.samples.append({"at": at, "Python blocks": float(in_use), **sample})
                    left_s = started + len(run.samples) * every_s - time.monotonic()
                    time.sleep(max(0.0, left_s))  # the subject: samples are equally far apart
                for one in processes:
                    counted = one.ask("stop", _PATIENCE_S)
                    run.commits += counted["commits"]
                    for error, number in counted["failed"].items():
                        run.failed[error] = run.failed.get(error, 0) + number
                        print(f"{manager}: {number} times, first:\n{counted['first'][error]}", file=sys.stderr)
    return run


def _make_tables(properties: Mapping[str, str]) -> None:
    catalog = _open(properties)
    catalog.create_namespace("soak")
    schema = pa.schema([("id", pa.int64()), ("value", pa.float64())])
    for number in range(TABLES):
        catalog.create_table(("soak", f"t{number}"), schema, properties=_PROPERTIES)
    catalog.close()
    if properties.get("lock-impl") == "memory":
        # Declared by this process, which ends no sooner than the writer that is about to use it.
        with closing(sqlite3.connect(properties["uri"].removeprefix("coord+sqlite:///"))) as db:
            db.execute("DELETE FROM commit_coord_catalogs")
            db.commit()


def page(runs: Sequence[Run]) -> str:
    """Return ``docs/soak.md``."""
    lines = [
        "# Soak",
        "",
        "Measured by `make soak` (an hour; `ARGS=--managers=zookeeper` measures one anew).",
        "",
        "Each writer appends 2.5 times a second if it can (in the first two fifths of the warm-up without a rest, so",
        "that every pool is as full as it ever gets), takes operation locks, reads, and now and then empties its table",
        "and expires its snapshots; two processes have half of them each (`memory`: one has all). *Slope* is that of",
        "a line through what was measured after the warm-up, with an interval around it; *flat* means that the",
        "interval reaches down to 0. The intervals are so wide that in 19 of 20 runs in which nothing grows none of",
        "all the figures is said to grow. What is meant to grow at first: the answer to an append that was carried",
        "along stays for ten leases (150 s) in the journal. `rest`: the writers are PyIceberg's clients of",
        "`commit-coord serve`, without operation locks, and the server's process is measured in their place; *Python",
        "blocks* are the clients'.",
        "",
        "The writers run with `MALLOC_ARENA_MAX=2`, as a service of many threads should: else the C library gives",
        "every thread a heap of its own, whose holes fill up for an hour or longer. *Memory* is what a process ever",
        "needed at once and hardly shrinks; *Python blocks* is what its objects take at the time. The memory of the",
        "Java servers is shown and not judged: they take of their heap what they may until their collector sees a",
        "reason.",
        "",
        "![what was measured, over time](soak.png)",
        "",
    ]
    for run in runs:
        failed = ", ".join(f"{number} {name}" for name, number in sorted(run.failed.items())) or "none"
        of_it = f"{run.seconds / 60:.1f} minutes of which {run.warm_up_s / 60:.1f} were warm-up"
        load = "" if run.load is None else f", load {run.load:.1f} when it began"
        lines += [
            f"## {run.manager}",
            "",
            f"{run.at}, {run.machine}{load}:",
            f"{run.writers} writers, {of_it}, {run.commits:,} appends, failed: {failed}.",
            "",
            "| | mean | slope per hour | |",
            "|---|---:|---:|---|",
        ]
        for name, found in run.slopes().items():
            word = _NOT_JUDGED.get(name) or ("flat" if found.flat else "grows")
            lines.append(f"| {name} | {found.mean:,.1f} | {found.per_hour:+,.1f} ± {found.error:,.1f} | {word} |")
        lines.append("")
    return "\n".join(lines)


def plot(runs: Sequence[Run], path: Path) -> None:
    """Draw everything that was measured, over time."""
    from matplotlib.figure import Figure

    names = list(
        dict.fromkeys(name for run in runs for name in (run.samples[0] if run.samples else {}) if name != "at")
    )
    figure = Figure(figsize=(10, 2.2 * len(names)), layout="constrained")
    for axes, name in zip(figure.subplots(len(names), 1, squeeze=False).flat, names, strict=True):
        for run in runs:
            if run.samples and name in run.samples[0]:
                line = [(one["at"] / 60, one[name]) for one in run.samples]
                axes.plot(*zip(*line, strict=True), label=run.manager, linewidth=1)
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.legend(loc="lower right", fontsize="small")
        axes.grid(alpha=0.3)
    axes.set_xlabel("minutes")
    figure.savefig(path, dpi=90)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return 1 if something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of all of them together (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=None, help="minutes of each; default: five, at most half")
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--managers", default="all", help=f"all, or some of {', '.join(MANAGERS)}")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where soak.md and soak.png go")
    parser.add_argument(
        "--results", type=Path, default=Path("bench/results"), help="where soak.json is; what it has of others stays"
    )
    parser.add_argument("--render", action="store_true", help="run nothing, write the page")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.worker:
        _work()
        return 0
    managers = MANAGERS if given.managers == "all" else tuple(given.managers.split(","))
    if unknown := set(managers) - set(MANAGERS):
        parser.error(f"no such managers: {', '.join(sorted(unknown))}")
    if given.writers < 2:
        parser.error("--writers is 2 or more: there are two processes")
    seconds = given.minutes * 60 / len(managers)
    warm_up_s = min(seconds / 2, 300.0) if given.warm_up is None else given.warm_up * 60
    if (behind := max(0.0, seconds - warm_up_s) / _EVERY_S) < 2 * _BLOCKS:
        parser.error(f"{behind:.0f} samples behind the warm-up tell nothing: more minutes, or a shorter warm-up")
    path = given.results / "soak.json"
    runs = _read(path)
    for manager in () if given.render else managers:
        run = runs[manager] = soak(manager, seconds=seconds, warm_up_s=warm_up_s, writers=given.writers)
        print(f"{manager}: {run.commits:,} appends, grown: {', '.join(run.grown()) or 'nothing'}", flush=True)
        path.write_text(json.dumps([_record(runs[name]) for name in MANAGERS if name in runs]) + "\n")
    in_order = [runs[name] for name in MANAGERS if name in runs]
    given.docs.joinpath("soak.md").write_text(page(in_order))
    plot(in_order, given.docs / "soak.png")
    return int(any(runs[name].grown() for name in managers))


def _record(run: Run) -> dict[str, Any]:
    slopes = {
        name: {"mean": found.mean, "per_hour": found.per_hour, "error": found.error}
        for name, found in run.slopes().items()
    }
    return {**asdict(run), "slopes": slopes}


def _read(path: Path) -> dict[str, Run]:
    """Return the runs in the file at *path* by their lock managers."""
    records = json.loads(path.read_text()) if path.exists() else []
    names = {one.name for one in fields(Run)}
    return {one["manager"]: Run(**{key: one[key] for key in one if key in names}) for one in records}


if __name__ == "__main__":
    sys.exit(main())
