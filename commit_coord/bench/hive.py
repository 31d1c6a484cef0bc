"""Acknowledged appends a second on one Hive Metastore: ours, PyIceberg's and Iceberg Java's ``HiveCatalog``.

All share one metastore, 2.3.10 on Derby; cells run one after the other. A peer runs with its defaults, and *tuned*:
with short waits and many tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commit_coord.bench.cells import LAYOUTS, Contender, measure, plan, ratio, summary
from commit_coord.bench.tables import NAMESPACE, ROWS, make_histories
from commit_coord.config import COORDINATED_URI_PREFIX
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.locks.base import LockManager
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import LockMode, Resource
from commit_coord.testing.fleet import WriterFailed

OURS = ("commit_coord, zookeeper", "commit_coord, hms")
PYICEBERG = ("pyiceberg", "pyiceberg, tuned")
JAVA = ("java, lock", "java, lock, tuned", "java, compare-and-set", "java, compare-and-set, tuned")
KINDS = (*OURS, *PYICEBERG, *JAVA)

_TUNED_PYICEBERG = {"lock-check-max-wait-time": "0.1", "lock-check-retries": "1000"}

_LOCKLESS = {"engine.hive.lock-enabled": "false"}
"""Of a table: Java then compares and sets."""

_RETRIES = {"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "10", "commit.retry.max-wait-ms": "100"}
_FILES = {"fs.file.impl": "PlainFiles"}
_CHECKS = {"iceberg.hive.lock-check-min-wait-ms": "10", "iceberg.hive.lock-check-max-wait-ms": "50"}
"""Tuned Java: properties of a table, and of a client. Hadoop's own way with local files costs it a process each."""

_PATIENT = 3
"""So many times longer lasts a cell of PyIceberg's defaults under contention: in 20 s hardly anything is acknowledged,
and a ratio to one or two acknowledgements would be luck."""

_WARMING = (OURS[1], PYICEBERG[0])
"""Whose writers warm the servers up: between them they make all calls that are made."""


def run(
    folder: Path,
    *,
    seconds: float,
    writers: Iterable[int],
    snapshots: int,
    java: Callable[[Path], Sequence[str]] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every cell, and return the figures with what was proved.

    Args:
        folder: Where everything is kept meanwhile.
        seconds: Of a cell.
        writers: Numbers of writers.
        snapshots: Of each table before.
        java: Makes the command of a Java writer in a folder; None where it can't be had.
        say: Called with each line of progress.
    """
    say("starting a Hive Metastore and ZooKeeper")
    with HiveMetastore(folder / "metastore") as metastore, ZooKeeperEnsemble(folder / "zookeeper", 1) as zookeeper:
        everybody = contenders(metastore, zookeeper, java(folder / "java") if java else None)
        with (
            create_lock_manager("hms", metastore.uri) as hms_locks,
            create_lock_manager("zookeeper", zookeeper.connect_string) as zookeeper_locks,
        ):
            found = compare(
                folder / "cells",
                everybody,
                seconds=seconds,
                writers=writers,
                snapshots=snapshots,
                locks=(hms_locks, zookeeper_locks),
                say=say,
            )
    return {**found, "missing": [kind for kind in KINDS if kind not in {contender.kind for contender in everybody}]}


def compare(
    folder: Path,
    everybody: Sequence[Contender],
    *,
    seconds: float,
    writers: Iterable[int],
    snapshots: int,
    locks: Sequence[LockManager],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure *everybody* in every cell; see :func:`run`. *locks* are those of which none may be left."""
    history = make_histories(folder / "history", [snapshots])[snapshots]
    measured: list[dict[str, Any]] = []
    gave_up: dict[str, str] = {}
    for contender in everybody:
        if contender.kind in _WARMING:
            place = f"w{everybody.index(contender)}_"
            measure(folder / place, history, contender, LAYOUTS[0], 1, seconds, prefix=place)
    for number, (layout, count) in enumerate(plan(writers)):
        # Who goes first alternates, as in the suite of commits.
        for contender in everybody if number % 2 == 0 else reversed(everybody):
            place = f"c{number}_{everybody.index(contender)}_"
            patient = contender.kind == PYICEBERG[0] and layout == LAYOUTS[0] and count > 1
            lasting = seconds * _PATIENT if patient else seconds
            try:
                cell = measure(
                    folder / place,
                    history,
                    contender,
                    layout,
                    count,
                    lasting,
                    prefix=place,
                    locks=lambda _: locks_left_in(locks),
                )
            except WriterFailed as error:
                gave_up[f"{contender.kind}, {layout}, {count} writers"] = str(error)
                say(f"{contender.kind}, {layout}, {count} writers: gave up: {error}")
                continue
            say(summary(cell))
            measured.append(cell)
    return {
        "snapshots_before": snapshots,
        "seconds": seconds,
        "cells": measured,
        "gave_up": gave_up,
        "bars": _bars(measured),
    }


def contenders(metastore: HiveMetastore, zookeeper: ZooKeeperEnsemble, java: Sequence[str] | None) -> list[Contender]:
    """Return who is compared, Java only with a command for its writers."""
    plain = {"uri": metastore.uri, "warehouse": metastore.warehouse}
    coordinated = {**plain, "uri": f"{COORDINATED_URI_PREFIX}{metastore.uri}"}
    by_zookeeper = {"lock-impl": "zookeeper", "lock.uri": zookeeper.connect_string}
    found = [
        Contender(kind=OURS[0], catalog={**coordinated, **by_zookeeper}),
        Contender(kind=OURS[1], catalog={**coordinated, "lock-impl": "hms"}),
        Contender(kind=PYICEBERG[0], catalog=plain),
        Contender(kind=PYICEBERG[1], catalog={**plain, **_TUNED_PYICEBERG}),
    ]
    if java is None:
        return found

    def with_java(kind: str, table: Mapping[str, str], conf: Mapping[str, str]) -> Contender:
        spec = {"namespace": NAMESPACE, "rows": ROWS.num_rows, "conf": dict(conf)}
        return Contender(kind=kind, catalog=plain, table=table, command=java, spec=spec)

    return [
        *found,
        with_java(JAVA[0], {}, {}),
        with_java(JAVA[1], _RETRIES, {**_FILES, **_CHECKS}),
        with_java(JAVA[2], _LOCKLESS, {}),
        with_java(JAVA[3], {**_LOCKLESS, **_RETRIES}, _FILES),
    ]


def locks_left_in(services: Iterable[LockManager]) -> int:
    """Return how many locks of the bench were left, and free them: the next cell counts its own.

    Appends take EXCLUSIVE ones. Other locks are guards, which stay: they keep writers that only lock from a table.
    """
    left = [
        (locks, entry)
        for locks in services
        for entry in locks.locks(Resource((NAMESPACE,)))
        if entry.mode is LockMode.EXCLUSIVE
    ]
    for locks, entry in left:
        locks.unlock(request_id=entry.request_id)
    return len(left)


def _bars(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the figures say about the bars of one table."""
    cells = {(c["kind"], c["writers"]): c for c in found if c["layout"] == LAYOUTS[0]}

    def rate(kind: str, writers: int) -> float | None:
        cell = cells.get((kind, writers))
        return None if cell is None else cell["per_second"]

    zookeeper, hms = OURS
    four, default = rate(zookeeper, 4), rate("pyiceberg", 4)

    def java(writers: int) -> float | None:
        """Return the rate of the best Java, tuned or not: tuning for short waits may do harm where many collide."""
        return max((value for kind in JAVA if (value := rate(kind, writers)) is not None), default=None)

    crowd = cells.get((hms, 16), {})
    p50, p99 = (cells.get((zookeeper, writers), {}).get(name) for writers, name in ((1, "p50_ms"), (4, "p99_ms")))
    ours = [c for c in found if c["kind"] in OURS]
    return {
        "zookeeper, 4 writers, times PyIceberg's defaults (at least 100)": ratio(four, default),
        "zookeeper, 4 writers, times the best Java, tuned or not (at least 3)": ratio(four, java(4)),
        "zookeeper, p99 of 4 writers, times p50 of one (under 10)": ratio(p99, p50),
        "zookeeper, 16 writers, share of 4 writers' rate (at least 0.7)": ratio(rate(zookeeper, 16), four),
        "hms, 4 writers, times PyIceberg's defaults (at least 40)": ratio(rate(hms, 4), default),
        "hms, 4 writers, acknowledged a second (at least 50)": rate(hms, 4),
        "hms, 16 writers, acknowledged a second (at least 60)": rate(hms, 16),
        "hms, 16 writers, p99 in ms (under 2,000)": crowd.get("p99_ms"),
        "hms, 16 writers, times the best Java, tuned or not (at least 10)": ratio(rate(hms, 16), java(16)),
        "zookeeper, 4 writers, acknowledged a second (at least 100)": four,
        "zookeeper, 16 writers, acknowledged a second (at least 150)": rate(zookeeper, 16),
        "failed commits of ours (0)": sum(c["failed"] for c in ours),
        "every cell of ours proved": all(c["proved"] for c in ours),
    }
