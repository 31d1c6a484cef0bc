"""Lock cycles a second for each kind of lock, how long after a release a waiter is granted, and what waiting costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from commit_coord.bench.cells import percentile
from commit_coord.bench.counting import PING, CountingProxy, Requests, metastore_requests, zookeeper_requests
from commit_coord.bench.fleet import PYTHON, Worker, run_together
from commit_coord.bench.tasks import CURATOR, JAVA, KAZOO
from commit_coord.local import HiveMetastore, NotInstalled, PostgresServer, ZooKeeperEnsemble
from commit_coord.testing.fleet import WriterFailed

_PAUSE_S = 0.03
"""Until a waiter is in the queue and sleeps: several times what entering takes."""

_SETTLED_S = 2.0
"""A waiter that sends nothing for so long has found out all that it needs."""

_SETTLES_WITHIN = 3
"""So many times `_SETTLED_S` a waiter has to settle; one that polls never does."""

_PATIENCE_S = 900
"""For thousands of locks in a metastore, where each takes milliseconds."""

_HEAP = "-Xmx1000m"
"""The heap that ZooKeeper's own start script gives its servers."""

KINDS = {
    "none": ("none", "takes no locks: 'contended' is eight processes that do not see each other"),
    "memory": ("memory", "threads of one process"),
    "lease, SQLite": ("lease", "processes, one SQLite file"),
    "lease, PostgreSQL": ("lease", "processes, one server on a loopback port"),
    "zookeeper": ("zookeeper", "processes, one server on a loopback port"),
    "kazoo's Lock": (KAZOO, "processes, the same server; exclusive, without lease or owner"),
    "Curator's mutex": (CURATOR, "as kazoo's, in Java"),
    "hms": ("hms", "processes, one Hive Metastore 2.3.10 on Derby"),
    "Iceberg Java's HMS lock": (JAVA, "processes, the same server; its default waits"),
}
"""Label → what a worker calls it, and what must be known about its figures."""

_Server = TypeVar("_Server", ZooKeeperEnsemble, HiveMetastore)


@dataclass(frozen=True, slots=True)
class Locks:
    """Locks that can be had here.

    Args:
        label: A key of :data:`KINDS`.
        uri: Where their service is.
        port: Its port, where requests to it are counted.
        requests: Tells them apart.
        command: What a worker runs.
    """

    label: str
    uri: str
    port: int = 0
    requests: Requests | None = None
    command: Sequence[str] = PYTHON

    @property
    def manager(self) -> str:
        """What a worker calls them."""
        return KINDS[self.label][0]

    @property
    def managed(self) -> bool:
        """Whether these are a manager's: with hierarchy, owners and lists."""
        return self.manager not in ("none", KAZOO, CURATOR, JAVA)

    def worker(self, task: str, **spec: Any) -> Worker:
        """Start a worker on them."""
        return Worker(task, {"manager": self.manager, "uri": self.uri, **spec}, self.command)


def run(
    folder: Path,
    *,
    seconds: float,
    contenders: int,
    hand_overs: int,
    partitions: int,
    listed: int,
    postgres_url: str | None,
    java: Callable[[Path], Sequence[str]] | None,
    only: tuple[str, ...] = ("",),
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure all kinds of locks that can be had here; say which could not.

    Args:
        folder: Where everything is kept meanwhile.
        seconds: For how long cycles are counted; four times as long the requests of a client that waits.
        contenders: How many want one lock.
        hand_overs: How often one waits for another's release.
        partitions: In one request.
        listed: How many locks there are when they are listed; a multiple of *partitions*.
        postgres_url: A server to measure instead of a private one.
        java: Makes the command of a worker in Java in a folder; None where it can't be had.
        only: How the labels begin of those that are measured.
        say: Called with each line of progress.
    """
    folder.mkdir(parents=True)
    cells, large, gave_up = [], [], dict[str, str]()
    with ExitStack() as stack:
        every = list(_every(folder, postgres_url, java, stack, only, say))
        for locks in every:
            try:
                cell = measure(locks, seconds=seconds, contenders=contenders, hand_overs=hand_overs)
                cell |= idle(locks, seconds * 4)
            except WriterFailed as error:
                gave_up[locks.label] = str(error)
                say(f"{locks.label}: gave up: {error}")
                continue
            cells.append({"manager": locks.label, "remark": KINDS[locks.label][1], **cell})
            say(
                f"{locks.label}: {cell['alone_per_second']} cycles/s alone, "
                f"{cell['contended_per_second']} with {contenders}, "
                f"wake-up p50 {cell['wake_p50_ms']} ms, p99 {cell['wake_p99_ms']} ms, "
                f"waiting: {cell.get('idle_per_second')} requests/s"
            )
        for locks in every:
            if not locks.managed:
                continue
            found: dict[str, Any] = {"manager": locks.label}
            try:
                found |= lock_partitions(locks, partitions)
                found |= list_locks(locks, partitions, listed // partitions)
            except WriterFailed as error:
                gave_up[f"{locks.label}, {partitions:,} partitions or {listed:,} locks"] = str(error)
            large.append(found)
            say(f"{locks.label}, {partitions:,} partitions in one request, {listed:,} locks in all: {found}")
    return {
        "seconds": seconds,
        "contenders": contenders,
        "hand_overs": hand_overs,
        "partitions": partitions,
        "listed": listed,
        "cells": cells,
        "bars": _bars(cells, large),
        "large": large,
        "gave_up": gave_up,
        "missing": [label for label in KINDS if label not in {cell["manager"] for cell in cells}],
    }


_SERVICES = ("lease, SQLite", "lease, PostgreSQL", "zookeeper")


def _bars(cells: Sequence[dict[str, Any]], large: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the locks are to reach, and what was measured."""
    bars = {
        f"{cell['manager']}: requests a second of one that waits (0)": cell["idle_per_second"]
        for cell in cells
        if cell["manager"] == "zookeeper"
    }
    for cell in cells:
        if cell["manager"] in ("zookeeper", "lease, PostgreSQL"):
            # Source: hive.lock.sleep.between.retries; PyIceberg's lock-check-max-wait-time.
            wake = "ms from a release to the grant, p50 (20; Hive sleeps 60,000, PyIceberg up to 2,000)"
            bars[f"{cell['manager']}: {wake}"] = cell["wake_p50_ms"]
    wanted = {
        "acquire_ms": "ms for all partitions in one request (3,000)",
        "list_all_ms": "ms to list all (10,000)",
        "first_page_ms": "ms to the first page of the list (1,000)",
        "one_elsewhere": "one partition while all others are locked on other tables, times an empty service (1.5)",
        "one_same_table": "the same, all on its own table (5)",
    }
    for found in large:
        if found["manager"] in _SERVICES:
            bars |= {f"{found['manager']}: {text}": found[name] for name, text in wanted.items() if name in found}
    return bars


def _every(
    folder: Path,
    postgres_url: str | None,
    java: Callable[[Path], Sequence[str]] | None,
    stack: ExitStack,
    only: tuple[str, ...],
    say: Callable[[str], None],
) -> Iterator[Locks]:
    """Yield what can be had here and begins as *only* says; its servers run until *stack* ends."""
    wanted = {label for label in KINDS if label.startswith(only)}
    here = [Locks("none", ""), Locks("memory", "bench"), Locks("lease, SQLite", f"sqlite:///{folder}/locks.db")]
    if "lease, PostgreSQL" in wanted:
        postgres = stack.enter_context(_postgres(postgres_url, say))
        if postgres is not None:
            here.append(Locks("lease, PostgreSQL", postgres))
    command = java(folder / "java") if java and wanted & {"Curator's mutex", "Iceberg Java's HMS lock"} else None
    if wanted & {"zookeeper", "kazoo's Lock", "Curator's mutex"}:
        zookeeper = stack.enter_context(_running("ZooKeeper", lambda: ZooKeeperEnsemble(size=1, jvm=[_HEAP]), say))
        if zookeeper is not None:
            reached = zookeeper.connect_string, zookeeper.servers[0].port, zookeeper_requests
            here += [Locks("zookeeper", *reached), Locks("kazoo's Lock", *reached)]
            if command is not None:
                here.append(Locks("Curator's mutex", *reached, command))
    if wanted & {"hms", "Iceberg Java's HMS lock"}:
        metastore = stack.enter_context(_running("the Hive Metastore", HiveMetastore, say))
        if metastore is not None:
            patient = f"{metastore.uri}?timeout-ms={_PATIENCE_S * 1000}"
            here.append(Locks("hms", patient, metastore.port, metastore_requests))
            if command is not None:
                java_lock = metastore.uri, metastore.port, metastore_requests, command
                here.append(Locks("Iceberg Java's HMS lock", *java_lock))
    yield from (locks for locks in here if locks.label in wanted)


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
def _running(name: str, make: Callable[[], _Server], say: Callable[[str], None]) -> Iterator[_Server | None]:
    """Give a private server, else None."""
    try:
        server = make()
        server.start()
    except NotInstalled as error:
        say(f"{name} is NOT measured: {error}")
        yield None
        return
    try:
        yield server
    finally:
        server.close()


def lock_partitions(locks: Locks, count: int) -> dict[str, Any]:
    """Lock *count* partitions in one request, twice: nothing of them known before, and again."""
    with locks.worker("lock_partitions", count=count) as worker:
        worker.receive(60)
        first, again = worker.ask({}, timeout_s=_PATIENCE_S), worker.ask({}, timeout_s=_PATIENCE_S)
    return {
        "acquire_ms": round(first["acquire_ms"]),
        "again_ms": round(again["acquire_ms"]),
        "list_ms": round(again["list_ms"]),
        "release_ms": round(again["release_ms"]),
    }


def list_locks(locks: Locks, count: int, times: int) -> dict[str, Any]:
    """List the locks when there are *times* requests for *count* partitions each; lock one more partition."""
    with locks.worker("list_locks", count=count, times=times) as worker:
        worker.receive(_PATIENCE_S)
        answer = worker.ask({}, timeout_s=_PATIENCE_S)
    one_ms: dict[str, float] = answer["one_ms"]
    return {
        "all": answer["listed"],
        "list_all_ms": round(answer["list_ms"]),
        "first_page_ms": round(answer["first_page_ms"]),
        "pages_ms": round(answer["pages_ms"]),
        "one_ms": round(one_ms["empty"], 2),
        "one_elsewhere": round(one_ms["elsewhere"] / one_ms["empty"], 2),
        "one_same_table": round(one_ms["same table"] / one_ms["empty"], 2),
    }


def measure(locks: Locks, *, seconds: float, contenders: int, hand_overs: int) -> dict[str, Any]:
    """Measure cycles and hand-overs."""
    manager, command = locks.manager, locks.command
    spec = {"manager": manager, "uri": locks.uri, "seconds": seconds}
    (alone,) = run_together("cycle_locks", [spec], timeout_s=seconds + 60, command=command)
    if manager == "memory":
        contended = run_together("cycle_locks", [{**spec, "threads": contenders}], timeout_s=seconds + 60)
    else:
        contended = run_together("cycle_locks", [spec] * contenders, timeout_s=seconds + 60, command=command)
    delays = _hand_over(locks, hand_overs) if manager != "none" else []
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


def idle(locks: Locks, seconds: float) -> dict[str, Any]:
    """Return the requests a second that one client causes by waiting, and what keeps its session alive apart."""
    if locks.requests is None:
        return {}
    with (
        CountingProxy(locks.port, locks.requests) as proxy,
        locks.worker("hand_over") as holder,
        replace(locks, uri=locks.uri.replace(f":{locks.port}", f":{proxy.port}")).worker("hand_over") as waiter,
    ):
        holder.receive(60)
        waiter.receive(60)
        holder.ask({"do": "hold"})
        waiter.send({"do": "wait"})
        before = _when_settled(proxy)
        time.sleep(seconds)
        seen = proxy.seen - before
        holder.ask({"do": "release"})
        waiter.receive(60)
    pings = seen.pop(PING, 0)
    return {
        "idle_per_second": round(seen.total() / seconds, 3),
        "idle_pings_per_second": round(pings / seconds, 3),
        "idle_requests": dict(seen),
    }


def _when_settled(proxy: CountingProxy) -> Counter[str]:
    """Return what was counted when nothing but pings had come for a while, or when that took too long."""
    for _ in range(_SETTLES_WITHIN):
        before = proxy.seen.copy()
        time.sleep(_SETTLED_S)
        if not (proxy.seen - before).keys() - {PING}:
            break
    return proxy.seen.copy()


def _hand_over(locks: Locks, times: int) -> list[float]:
    """Return the milliseconds from the beginning of a release until the waiter has its lease."""
    if locks.manager == "memory":
        spec = {"manager": locks.manager, "uri": locks.uri, "times": times, "pause": _PAUSE_S}
        (answer,) = run_together("hand_over_in_threads", [spec], timeout_s=60 + times)
        delays: list[float] = answer["delays_ms"]
        return delays
    with locks.worker("hand_over") as holder, locks.worker("hand_over") as waiter:
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
