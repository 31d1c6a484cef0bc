"""What it buys to move: the same writers, tables and metastore in the phases ``hms``, ``both`` and ``zookeeper``.

It counts the commits per second, what the metastore is asked (by a proxy before it) and what it asks its
database (by that one's log of statements), while writers commit, and while they only have their catalogs open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from commit_coord.bench.cells import LAYOUTS, Contender, measure, ratio, summary
from commit_coord.bench.counting import CountingProxy, metastore_requests
from commit_coord.bench.fleet import WarmWorkers, wait_until
from commit_coord.bench.hive import locks_left_in
from commit_coord.bench.tables import NAMESPACE, ROWS, History, catalog_of, make_histories
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.catalog.migration import Migration, Outcome
from commit_coord.config import COORDINATED_URI_PREFIX
from commit_coord.local import HiveMetastore, PostgresServer, ZooKeeperEnsemble
from commit_coord.locks.registry import create_lock_manager
from commit_coord.protocol.migration import MIGRATING, Phase

SERVER = "HMS 4.0.1 on PostgreSQL, one ZooKeeper server"

IDLE = 4
"""So many catalogs are open and have written, and do nothing."""

_LOCK_REQUESTS = frozenset({"lock", "check_lock", "unlock", "heartbeat", "show_locks"})

_LOCK_TABLES = (b"HIVE_LOCKS", b"NEXT_LOCK_ID")
"""Of the metastore's database. Source: its schema, ``hive-txn-schema``."""

_STATEMENT = (b"LOG:  execute", b"LOG:  statement")


@dataclass(frozen=True, slots=True)
class _Counts:
    """Requests to the metastore by name, and statements to its database."""

    requests: Counter[str]
    statements: int
    of_locks: int


class _Counters:
    """Counts what happens between two moments.

    Args:
        proxy: Before the metastore.
        log: Of its database.
    """

    def __init__(self, proxy: CountingProxy, log: Path) -> None:
        self._proxy, self._log = proxy, log

    def count(self, start: float, seconds: float) -> _Counts:
        """Wait from the moment *start* for *seconds*, and return what happened."""
        wait_until(start)
        before, begin = self._proxy.seen.copy(), self._log.stat().st_size
        wait_until(start + seconds)
        requests, end = self._proxy.seen - before, self._log.stat().st_size
        with self._log.open("rb") as log:
            log.seek(begin)
            lines = [line for line in log.read(end - begin).splitlines() if any(word in line for word in _STATEMENT)]
        of_locks = sum(any(name in line for name in _LOCK_TABLES) for line in lines)
        return _Counts(requests, len(lines), of_locks)


def run(
    folder: Path, *, seconds: float, writers: Sequence[int], snapshots: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure every cell, and return the figures with what was proved.

    Args:
        folder: Where everything is kept meanwhile.
        seconds: Of a cell.
        writers: Numbers of writers.
        snapshots: Of each table before.
        say: Called with each line of progress.
    """
    say(f"starting {SERVER}, and {max(writers)} processes")
    history = make_histories(folder / "history", [snapshots])[snapshots]
    with (
        PostgresServer("log_statement=all") as postgres,
        HiveMetastore(folder / "metastore", "4.0.1", postgres=postgres) as metastore,
        ZooKeeperEnsemble(folder / "zookeeper", 1) as zookeeper,
        CountingProxy(metastore.port, metastore_requests) as proxy,
        WarmWorkers("append_on_request", max(writers)) as fleet,
        create_lock_manager("hms", metastore.uri) as hms_locks,
        create_lock_manager("zookeeper", zookeeper.connect_string) as zookeeper_locks,
    ):
        counters = _Counters(proxy, postgres.log)
        catalog = {
            "uri": f"{COORDINATED_URI_PREFIX}thrift://127.0.0.1:{proxy.port}",
            "warehouse": metastore.warehouse,
            "lock-impl": MIGRATING,
            "lock.uri": zookeeper.connect_string,
        }
        operator = catalog_of(catalog)
        assert isinstance(operator, CoordinatedHiveCatalog)

        numbers = count()

        def cell(phase: Phase, writers: int) -> dict[str, Any]:
            place = f"m{next(numbers)}_"
            counted: list[_Counts] = []
            found = measure(
                folder / place,
                history,
                Contender(kind=phase.value, catalog=catalog),
                LAYOUTS[0],
                writers,
                seconds,
                prefix=place,
                fleet=fleet,
                locks=lambda _: locks_left_in((hms_locks, zookeeper_locks)),
                placed=lambda name: bring(operator, name, phase),
                meanwhile=lambda start: counted.append(counters.count(start, seconds)),
            )
            found |= _shares(counted[0], seconds)
            say(f"{summary(found)}; {_shown(found)}")
            return found

        # A metastore gets faster for thousands of calls, so the first one measured would be at a disadvantage.
        for phase in Phase:
            cell(phase, min(4, max(writers)))
        cells: list[dict[str, Any]] = []
        for number, several in enumerate(writers):
            order = list(Phase) if number % 2 == 0 else list(Phase)[::-1]
            cells += [cell(phase, several) for phase in order]
        idle = [_idle(catalog, operator, history, folder / "idle", phase, counters, seconds) for phase in Phase]
        for found in idle:
            say(f"idle, {IDLE} catalogs, {found['kind']}: {_shown(found)}")
        operator.close()
    return {
        "server": SERVER,
        "snapshots_before": snapshots,
        "seconds": seconds,
        "cells": cells,
        "idle": idle,
        "bars": _bars(cells, idle),
    }


def bring(operator: CoordinatedHiveCatalog, name: str, phase: Phase) -> None:
    """Move the table *name* from phase ``hms`` to *phase*, as ``commit-coord migrate`` does."""
    migration = Migration(operator, why="to be measured")
    for step in list(Phase)[1 : list(Phase).index(phase) + 1]:
        moved = migration.move((NAMESPACE, name), step)
        assert moved.outcome is Outcome.CHANGED, moved


def _idle(
    catalog: dict[str, str],
    operator: CoordinatedHiveCatalog,
    history: History,
    folder: Path,
    phase: Phase,
    counters: _Counters,
    seconds: float,
) -> dict[str, Any]:
    """Count while catalogs are open that have written to one table."""
    name = f"idle_{phase}"
    history.place(operator, folder, name)
    bring(operator, name, phase)
    with ExitStack() as stack:
        for _ in range(IDLE):
            opened = catalog_of(catalog)
            assert isinstance(opened, CoordinatedHiveCatalog)
            stack.callback(opened.close)
            opened.load_table((NAMESPACE, name)).append(ROWS)
        counts = counters.count(time.monotonic() + 1.0, seconds)
    return {"kind": phase.value, "seconds": seconds, **_shares(counts, seconds)}


def _shares(counts: _Counts, seconds: float) -> dict[str, Any]:
    """Return *counts* by the second."""
    locking = sum(number for name, number in counts.requests.items() if name in _LOCK_REQUESTS)
    return {
        "requests_per_second": round(counts.requests.total() / seconds, 2),
        "lock_requests_per_second": round(locking / seconds, 2),
        "requests": dict(counts.requests.most_common()),
        "statements_per_second": round(counts.statements / seconds, 1),
        "lock_statements_per_second": round(counts.of_locks / seconds, 1),
    }


def _shown(found: dict[str, Any]) -> str:
    return (
        f"{found['requests_per_second']} requests/s to the metastore, {found['lock_requests_per_second']} of them for "
        f"locks; {found['statements_per_second']} statements/s, {found['lock_statements_per_second']} to locks' tables"
    )


def _bars(cells: Sequence[dict[str, Any]], idle: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the figures say: before and after."""
    found = {(cell["kind"], cell["writers"]): cell for cell in cells}
    bars: dict[str, Any] = {}
    for writers in sorted({cell["writers"] for cell in cells}):
        before, after = found[Phase.HMS, writers], found[Phase.ZOOKEEPER, writers]
        bars[f"{writers} writers, commits a second, zookeeper times hms"] = ratio(
            after["per_second"], before["per_second"]
        )
        bars[f"{writers} writers, p99, hms times zookeeper"] = ratio(before["p99_ms"], after["p99_ms"])
    moved = [cell for cell in (*cells, *idle) if cell["kind"] == Phase.ZOOKEEPER]
    asked = Counter[str]()
    for cell in moved:
        asked.update({name: number for name, number in cell["requests"].items() if name in _LOCK_REQUESTS})
    bars["5: calls of lock, check_lock and unlock in phase zookeeper (0)"] = sum(
        asked[name] for name in ("lock", "check_lock", "unlock")
    )
    bars["every cell proved"] = all(cell["proved"] for cell in cells)
    return bars
