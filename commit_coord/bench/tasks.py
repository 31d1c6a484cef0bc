"""What a worker of the bench can be asked to do. Each task prepares, then returns what answers its requests."""

from __future__ import annotations

import resource
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from commit_coord.bench.fleet import wait_until
from commit_coord.bench.kazoo_lock import KazooLock
from commit_coord.bench.phases import Phases
from commit_coord.bench.tables import NAMESPACE, ROWS, Kind, catalog_of, open_catalog
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.events import CommitEnded
from commit_coord.locks.base import Lease, LockManager, LockSettings
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import LockMode, LockRequest, LockScope, Resource
from commit_coord.process import this_owner

Answer = dict[str, Any]
Perform = Callable[[dict[str, Any]], Answer]

_WARM_APPENDS = 2

_PATIENCE_S = 600.0
"""Longer than any wait for a latch here."""


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _written_bytes() -> int:
    """Return what this process handed to write calls so far, to files of every kind. Source: proc(5), ``wchar``."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def append_on_request() -> Perform:
    """Do :func:`append_for_a_while` as the ``spec`` of a request says, with the ``start`` of the next one."""
    prepared: list[Perform] = []

    def perform(request: dict[str, Any]) -> Answer:
        if "spec" in request:
            prepared.append(append_for_a_while(**request["spec"]))
            return {}
        return prepared.pop()(request)

    return perform


def append_for_a_while(
    *,
    catalog: dict[str, str],
    tables: list[str],
    scratch: str,
    seconds: float,
    threads: int = 1,
    phases: bool = False,
) -> Perform:
    """Append to *tables* as often as possible from ``start`` for *seconds*, each of *threads* to one of them.

    An append is acknowledged when it returned, failed when it raised. The table object is kept, as a user would; it is
    refreshed after a failure. *scratch* is a table to warm up on. The catalog is closed in the end.
    """
    opened = catalog_of(catalog)
    warm = opened.create_table((NAMESPACE, scratch), ROWS.schema)
    for _ in range(_WARM_APPENDS):
        warm.append(ROWS)
    targets = [opened.load_table((NAMESPACE, tables[number % len(tables)])) for number in range(threads)]
    ended: list[CommitEnded] = []
    attempts = _attempts(opened, ended)
    stopwatch = Phases() if phases else None

    def append(target: Table, start: float, outcomes: list[tuple[float, float, str | None]]) -> None:
        wait_until(start)
        while (began := time.monotonic()) < start + seconds:
            error = _append(target)
            outcomes.append((began, time.monotonic(), error))

    def perform(request: dict[str, Any]) -> Answer:
        start: float = request["start"]
        outcomes: list[list[tuple[float, float, str | None]]] = [[] for _ in targets]
        others = [
            threading.Thread(target=append, args=(target, start, found), daemon=True)
            for target, found in zip(targets[1:], outcomes[1:], strict=True)
        ]
        for thread in others:
            thread.start()
        wait_until(start)
        cpu = _cpu_s()
        append(targets[0], start, outcomes[0])
        for thread in others:
            thread.join()
        used = _cpu_s() - cpu
        if isinstance(opened, CoordinatedCatalog):
            opened.close()
        done = [(began, ended, error) for found in outcomes for began, ended, error in found]
        acknowledged = [(began, ended) for began, ended, error in done if error is None]
        return {
            "acknowledged": len(acknowledged),
            "in_time": sum(ended <= start + seconds for _, ended in acknowledged),
            "acknowledged_ms": [(ended - began) * 1000 for began, ended in acknowledged],
            "failed_ms": [(ended - began) * 1000 for began, ended, error in done if error is not None],
            "errors": dict(Counter(error for _, _, error in done if error is not None)),
            "cpu_s": used,
            "waited_ms": [event.waited_ms for event in ended],
            "held_ms": [event.held_ms for event in ended if event.tries],
            "attempts": attempts(),
            "swaps": sum(event.tries for event in ended),
            "phases": stopwatch.totals() if stopwatch else {},
        }

    return perform


def _attempts(catalog: Catalog, ended: list[CommitEnded]) -> Callable[[], int]:
    """Return what tells how often a change of a table's pointer has been attempted; ours tells *ended*, too."""
    if isinstance(catalog, CoordinatedCatalog):
        catalog.events.subscribe(lambda event: ended.append(event) if isinstance(event, CommitEnded) else None)
        return lambda: sum(event.tries for event in ended)
    commit, tally = catalog.commit_table, [0]

    def counted(*args: Any) -> Any:
        tally[0] += 1
        return commit(*args)

    catalog.commit_table = counted  # type: ignore[method-assign, assignment]
    return lambda: tally[0]


def _append(table: Table) -> str | None:
    """Append once; return the name of the error, None when it was acknowledged."""
    try:
        table.append(ROWS)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted under its name
        try:
            table.refresh()
        except Exception as second:  # noqa: BLE001 - as above; the next append tells whether it lasts
            return f"{type(error).__name__}, then {type(second).__name__}"
        return type(error).__name__
    return None


def append_once(
    *, kind: Kind, folder: str, tables: list[str], lock_impl: str = "lease", fresh: bool = False
) -> Perform:
    """Append once to the table that a request names.

    Args:
        kind: Whose catalog.
        folder: Where it is.
        tables: Loaded and appended to once before the clock, unless *fresh*.
        lock_impl: Ours.
        fresh: Nothing but imports and the opening of the catalog lies before the clock.
    """
    import pyarrow.parquet
    import pyiceberg.io.pyarrow  # noqa: F401 - loaded by the first append otherwise

    assert pyarrow.parquet
    catalog = open_catalog(kind, Path(folder), lock_impl)
    loaded: dict[str, Table] = {}
    if not fresh:
        for name in tables:
            loaded[name] = catalog.load_table((NAMESPACE, name))
            loaded[name].append(ROWS)

    def perform(request: dict[str, Any]) -> Answer:
        name = request["table"]
        wrote, cpu, began = _written_bytes(), _cpu_s(), time.perf_counter()
        table = loaded.get(name) or catalog.load_table((NAMESPACE, name))
        load_ms = (time.perf_counter() - began) * 1000
        table.append(ROWS)
        return {
            "ms": (time.perf_counter() - began) * 1000,
            "load_ms": load_ms,
            "cpu_ms": (_cpu_s() - cpu) * 1000,
            "bytes": _written_bytes() - wrote,
        }

    return perform


# Locks.


def _request() -> LockRequest:
    return LockRequest.of(
        LockScope.COMMIT,
        {Resource.table(("bench", "t")): LockMode.EXCLUSIVE},
        owner=_OWNER,
        request_id=str(uuid.uuid4()),
    )


_OWNER = this_owner("bench")


KAZOO, CURATOR, JAVA = "kazoo", "curator", "java"
"""Stand for kazoo's lock, Curator's and Iceberg Java's where a lock manager is named; the last two in Java workers."""


def _open_locks(manager: str, uri: str) -> LockManager | KazooLock:
    return KazooLock(uri) if manager == KAZOO else create_lock_manager(manager, uri, LockSettings())


def _acquire(locks: LockManager | KazooLock) -> Lease | KazooLock:
    if isinstance(locks, KazooLock):
        return locks.acquire()
    return locks.acquire(_request(), deadline=SYSTEM_CLOCK.now() + _PATIENCE_S)


def _cycle(locks: LockManager | KazooLock) -> None:
    _acquire(locks).release()


def cycle_locks(*, manager: str, uri: str, seconds: float, threads: int = 1) -> Perform:
    """Acquire and release one table's latch as often as possible from ``start`` for *seconds*."""
    clients = [_open_locks(manager, uri) for _ in range(threads)]
    for client in clients:
        _cycle(client)

    def loop(client: LockManager | KazooLock, start: float, cycles: list[int]) -> None:
        wait_until(start)
        done, end = 0, start + seconds
        while time.monotonic() < end:
            _cycle(client)
            done += 1
        cycles.append(done)

    def perform(request: dict[str, Any]) -> Answer:
        cycles: list[int] = []
        cpu = _cpu_s()
        running = [
            threading.Thread(target=loop, args=(client, request["start"], cycles), daemon=True) for client in clients
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return {"cycles": sum(cycles), "least": min(cycles), "most": max(cycles), "cpu_s": _cpu_s() - cpu}

    return perform


def hand_over(*, manager: str, uri: str) -> Perform:
    """Take part in handing a latch over: ``hold`` it, ``release`` it, or ``wait`` for it.

    Times are on the monotonic clock, which both processes share: ``release`` says when it began, ``wait`` when it was
    granted.
    """
    locks = _open_locks(manager, uri)
    _cycle(locks)
    held: list[Lease | KazooLock] = []

    def perform(request: dict[str, Any]) -> Answer:
        match request["do"]:
            case "hold":
                held.append(_acquire(locks))
                return {}
            case "release":
                began = time.monotonic()
                held.pop().release()
                return {"began": began, "ended": time.monotonic()}
            case "wait":
                lease = _acquire(locks)
                granted = time.monotonic()
                lease.release()
                return {"granted": granted}
            case other:
                raise ValueError(other)

    return perform


def lock_partitions(*, manager: str, uri: str, count: int) -> Perform:
    """Lock *count* partitions in one request, list them, and give them back."""
    locks = create_lock_manager(manager, uri, LockSettings())

    def perform(request: dict[str, Any]) -> Answer:
        began = time.perf_counter()
        lease = _acquire_partitions(locks, "large", count)
        held = time.perf_counter()
        listed = len(locks.locks())
        seen = time.perf_counter()
        lease.release()
        return {
            "acquire_ms": (held - began) * 1000,
            "list_ms": (seen - held) * 1000,
            "release_ms": (time.perf_counter() - seen) * 1000,
            "listed": listed,
        }

    return perform


def list_locks(*, manager: str, uri: str, count: int, times: int) -> Perform:
    """List all locks, *count* partitions of each of *times* tables among them; lock one more partition.

    Then the same with as many partitions of the same table.
    """
    locks, one = (create_lock_manager(manager, uri, LockSettings(), space="bench") for _ in range(2))
    empty_ms = _acquire_one(one, "small", 0)
    leases = [_acquire_partitions(locks, f"large{number}", count) for number in range(times)]

    def perform(request: dict[str, Any]) -> Answer:
        elsewhere_ms = _acquire_one(one, "small", _ONES)
        began = time.perf_counter()
        pages = locks.pages()
        next(pages)
        seen_first = time.perf_counter()
        for _ in pages:
            pass
        paged = time.perf_counter()
        listed = len(locks.locks())
        seen = time.perf_counter()
        for lease in leases:
            lease.release()
        lease = _acquire_partitions(locks, "whole", count * times)
        same_ms = _acquire_one(one, "whole", count * times)
        lease.release()
        return {
            "listed": listed,
            "first_page_ms": (seen_first - began) * 1000,
            "pages_ms": (paged - began) * 1000,
            "list_ms": (seen - paged) * 1000,
            "one_ms": {"empty": empty_ms, "elsewhere": elsewhere_ms, "same table": same_ms},
        }

    return perform


_ONES = 50
"""Partitions that are locked one by one."""


def _acquire_one(locks: LockManager, table: str, first: int) -> float:
    """Return the median milliseconds of locking one partition, of some that nobody has locked before."""
    taken_ms = []
    for number in range(first, first + _ONES):
        began = time.perf_counter()
        lease = _acquire_partitions(locks, table, 1, first=number)
        taken_ms.append((time.perf_counter() - began) * 1000)
        lease.release()
    return statistics.median(taken_ms)


def _acquire_partitions(locks: LockManager, table: str, count: int, *, first: int = 0) -> Lease:
    path = Resource.table(("bench", table)).path
    wanted = {Resource((*path, f"day={number:06d}")): LockMode.EXCLUSIVE for number in range(first, first + count)}
    request = LockRequest.of(LockScope.OPERATION, wanted, owner=_OWNER, request_id=str(uuid.uuid4()))
    return locks.acquire(request, deadline=SYSTEM_CLOCK.now() + _PATIENCE_S)


def hand_over_in_threads(*, manager: str, uri: str, times: int, pause: float) -> Perform:
    """Do the same between two threads of one process, for a manager that reaches no further."""
    holder, waiter = (create_lock_manager(manager, uri, LockSettings()) for _ in range(2))

    def perform(request: dict[str, Any]) -> Answer:
        delays_ms: list[float] = []
        for _ in range(times):
            granted: list[float] = []

            def wait(granted: list[float] = granted) -> None:
                lease = _acquire(waiter)
                granted.append(time.monotonic())
                lease.release()

            lease = _acquire(holder)
            thread = threading.Thread(target=wait, daemon=True)
            thread.start()
            time.sleep(pause)
            began = time.monotonic()
            lease.release()
            thread.join()
            delays_ms.append((granted[0] - began) * 1000)
        return {"delays_ms": delays_ms}

    return perform
