"""Lock cycles a second for each manager, and how long after a release a waiter is granted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commit_coord.bench.cells import percentile
from commit_coord.bench.fleet import Worker, run_together
from commit_coord.bench.tasks import KAZOO
from commit_coord.local import NotInstalled, PostgresServer, ZooKeeperEnsemble

_PAUSE_S = 0.03
"""Until a waiter stands in the queue and sleeps: several times what entering takes."""

_REMARKS = {
    "none": "takes no locks: 'contended' is eight processes that do not see each other",
    "memory": "threads of one process",
    "lease, SQLite": "processes, one SQLite file",
    "lease, PostgreSQL": "processes, one server on a loopback port",
    "zookeeper": "processes, one server on a loopback port",
    "kazoo's own Lock": "processes, the same server; exclusive, without lease or owner",
}


def run(
    folder: Path,
    *,
    seconds: float,
    contenders: int,
    hand_overs: int,
    partitions: int,
    postgres_url: str | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every manager that can be had here; say which could not."""
    folder.mkdir(parents=True)
    with _postgres(postgres_url, say) as server, _zookeeper(say) as zookeeper:
        managers = [("none", "none", ""), ("memory", "memory", "bench")]
        managers.append(("lease, SQLite", "lease", f"sqlite:///{folder}/locks.db"))
        if server is not None:
            managers.append(("lease, PostgreSQL", "lease", server))
        if zookeeper is not None:
            managers += [("zookeeper", "zookeeper", zookeeper), ("kazoo's own Lock", KAZOO, zookeeper)]
        cells, large = [], []
        for label, manager, uri in managers:
            cell = measure(manager, uri, seconds=seconds, contenders=contenders, hand_overs=hand_overs)
            cells.append({"manager": label, "remark": _REMARKS[label], **cell})
            say(
                f"{label}: {cell['alone_per_second']} cycles/s alone, "
                f"{cell['contended_per_second']} with {contenders}, "
                f"wake-up p50 {cell['wake_p50_ms']} ms, p99 {cell['wake_p99_ms']} ms"
            )
            if manager not in ("none", KAZOO):
                large.append({"manager": label, **lock_partitions(manager, uri, partitions)})
                say(f"{label}, {partitions:,} partitions in one request: {large[-1]}")
    return {
        "seconds": seconds,
        "contenders": contenders,
        "hand_overs": hand_overs,
        "partitions": partitions,
        "cells": cells,
        "large": large,
        "missing": [label for label in _REMARKS if label not in {cell["manager"] for cell in cells}],
    }


@contextmanager
def _postgres(url: str | None, say: Callable[[str], None]) -> Iterator[str | None]:
    """Give the URL of a PostgreSQL server: the given one, else a private one, else None."""
    if url is not None:
        yield url
        return
    try:
        server = PostgresServer()
    except NotInstalled as error:
        say(f"PostgreSQL is NOT measured: {error}")
        yield None
        return
    with server:
        yield server.url


@contextmanager
def _zookeeper(say: Callable[[str], None]) -> Iterator[str | None]:
    """Give the address of a private ZooKeeper server, else None."""
    try:
        server = ZooKeeperEnsemble(size=1)
        server.start()
    except NotInstalled as error:
        say(f"ZooKeeper is NOT measured: {error}")
        yield None
        return
    try:
        yield server.connect_string
    finally:
        server.close()


def lock_partitions(manager: str, uri: str, count: int) -> dict[str, Any]:
    """Lock *count* partitions in one request, twice: nothing of them known before, and again."""
    with Worker("lock_partitions", {"manager": manager, "uri": uri, "count": count}) as worker:
        worker.receive(60)
        first, again = worker.ask({}, timeout=600), worker.ask({}, timeout=600)
    return {
        "acquire_ms": round(first["acquire_ms"]),
        "again_ms": round(again["acquire_ms"]),
        "list_ms": round(again["list_ms"]),
        "release_ms": round(again["release_ms"]),
    }


def measure(manager: str, uri: str, *, seconds: float, contenders: int, hand_overs: int) -> dict[str, Any]:
    """Measure one manager."""
    spec = {"manager": manager, "uri": uri, "seconds": seconds}
    (alone,) = run_together("cycle_locks", [spec], timeout=seconds + 60)
    if manager == "memory":
        contended = run_together("cycle_locks", [{**spec, "threads": contenders}], timeout=seconds + 60)
    else:
        contended = run_together("cycle_locks", [spec] * contenders, timeout=seconds + 60)
    delays = _hand_over(manager, uri, hand_overs) if manager != "none" else []
    cycles = sum(answer["cycles"] for answer in contended)
    return {
        "alone_per_second": round(alone["cycles"] / seconds, 1),
        "contended_per_second": round(cycles / seconds, 1),
        "contended_least": min(answer["least"] for answer in contended),
        "contended_most": max(answer["most"] for answer in contended),
        "alone_cpu_ms_each": round(alone["cpu_s"] * 1000 / max(1, alone["cycles"]), 3),
        "contended_cpu_ms_each": round(sum(answer["cpu_s"] for answer in contended) * 1000 / max(1, cycles), 3),
        "wake_p50_ms": _rounded(percentile(delays, 0.5)),
        "wake_p99_ms": _rounded(percentile(delays, 0.99)),
    }


def _hand_over(manager: str, uri: str, times: int) -> list[float]:
    """Return the milliseconds from the beginning of a release until the waiter has its lease."""
    if manager == "memory":
        spec = {"manager": manager, "uri": uri, "times": times, "pause": _PAUSE_S}
        (answer,) = run_together("hand_over_in_threads", [spec], timeout=60 + times)
        delays: list[float] = answer["delays_ms"]
        return delays
    spec = {"manager": manager, "uri": uri}
    with Worker("hand_over", spec) as holder, Worker("hand_over", spec) as waiter:
        holder.receive(60)
        waiter.receive(60)
        delays = []
        for _ in range(times):
            holder.ask({"do": "hold"})
            waiter.send({"do": "wait"})
            time.sleep(_PAUSE_S)
            released = holder.ask({"do": "release"})
            granted = waiter.receive(60)
            delays.append((granted["granted"] - released["began"]) * 1000)
    return delays


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
