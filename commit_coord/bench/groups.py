"""One swap for all that wait, compared with one swap for each: ``commit.group.max-size`` at its default, and 1.

The same writers, tables and servers, in one run. Writers are processes that are started once and serve every cell, or
the threads of one process. For comparison what a metastore could do at most: how often it alters a table when it does
nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

from commit_coord.bench.cells import Contender, measure, ratio, summary
from commit_coord.bench.fleet import WarmWorkers
from commit_coord.bench.hive import JAVA, PYICEBERG, contenders, locks_left_in
from commit_coord.bench.machine import cpu_s
from commit_coord.bench.tables import NAMESPACE, History, catalog_of, locks_left, make_histories, sql_properties
from commit_coord.config import COORDINATED_URI_PREFIX
from commit_coord.hms.client import MetastoreClient
from commit_coord.local import HiveMetastore, PostgresServer, ZooKeeperEnsemble
from commit_coord.locks.base import LockManager
from commit_coord.locks.registry import create_lock_manager
from commit_coord.testing.fleet import WriterFailed

QUEUE, SINGLE = "all that wait", "one a swap"
OURS = (QUEUE, SINGLE)
HIVE, SQLITE = "HMS 2.3.10 on Derby, ZooKeeper", "SQLite"
HIVE_4, POSTGRES = "HMS 4.0.1 on PostgreSQL, ZooKeeper", "PostgreSQL"

PROCESSES, THREADS = "processes", "threads"

_MANY_TABLES = 8
_LONG = 4
"""So many times longer lasts a cell that a bar is computed from; half of it that of one writer, for its median."""

_BARS = {HIVE: {1: _LONG // 2, 4: _LONG, 16: _LONG}, SQLITE: {1: _LONG // 2, 16: _LONG}}
"""Of each number of writers there."""

_PATIENT = 3
"""And so many times longer still PyIceberg's defaults on a metastore, which acknowledge next to nothing."""

_SINGLE = {"commit.group.max-size": "1"}


def run(
    folder: Path,
    *,
    seconds: float,
    writers: Sequence[int],
    snapshots: int,
    more: bool,
    java: Callable[[Path], Sequence[str]] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every cell, and return the figures with what was proved.

    Args:
        folder: Where everything is kept meanwhile.
        seconds: Of an ordinary cell; those of the bars last four times as long.
        writers: Numbers of writers.
        snapshots: Of the tables of SQL catalogs before; those of metastores have a tenth.
        more: Also on PostgreSQL, and on a metastore of version 4.0.1 there.
        java: Makes the command of a Java writer in a folder; None where it can't be had.
        say: Called with each line of progress.
    """
    say(f"making a history of {snapshots} snapshots, and starting {max(writers)} processes")
    histories = make_histories(folder / "history", [max(1, snapshots // 10), snapshots])
    bench = _Bench(folder, seconds, writers, say)
    with WarmWorkers("append_on_request", max(writers)) as bench.fleet:
        bench.sqlite(histories[snapshots])
        with ZooKeeperEnsemble(folder / "zookeeper", 1) as zookeeper, ExitStack() as stack:
            with HiveMetastore(folder / "metastore") as metastore:
                few = histories[max(1, snapshots // 10)]
                bench.hive(HIVE, metastore, zookeeper, few, java(folder / "java") if java else None)
            if more:
                postgres = stack.enter_context(PostgresServer())
                bench.on_postgres(postgres, histories[snapshots])
                with HiveMetastore(folder / "metastore4", "4.0.1", postgres=postgres) as metastore:
                    bench.hive(HIVE_4, metastore, zookeeper, few, None)
    return {
        "snapshots_before": snapshots,
        "seconds": seconds,
        "cells": bench.cells,
        "gave_up": bench.gave_up,
        "alters": bench.alters,
        "profile": bench.profile,
        "bars": _bars(bench.cells, bench.alters),
    }


class _Bench:
    """What has been measured so far, and how to measure more."""

    fleet: WarmWorkers

    def __init__(self, folder: Path, seconds: float, writers: Sequence[int], say: Callable[[str], None]) -> None:
        self._folder = folder
        self._seconds = seconds
        self._writers = writers
        self._say = say
        self._number = 0
        self._locks: tuple[LockManager, ...] = ()
        """Those of which no lock may be left; none are those of the catalog itself."""
        self.cells: list[dict[str, Any]] = []
        self.gave_up: dict[str, str] = {}
        self.alters: dict[str, dict[str, float]] = {}
        self.profile: dict[str, Any] = {}

    def sqlite(self, history: History) -> None:
        """Measure ours on SQLite, and PyIceberg's with many writers."""
        place = self._folder / "sql"
        place.mkdir()
        self._ours(SQLITE, sql_properties("commit_coord", place), history, {}, _BARS[SQLITE])
        peer = Contender(kind=PYICEBERG[0], catalog=sql_properties("pyiceberg", place))
        self._measure(SQLITE, peer, history, PROCESSES, min(16, max(self._writers)), 1, self._seconds * _LONG, {})

    def on_postgres(self, server: PostgresServer, history: History) -> None:
        """Measure ours on PostgreSQL, catalog and locks."""
        uri = f"{COORDINATED_URI_PREFIX}{server.database('bench').url}"
        catalog = {"uri": uri, "warehouse": f"file://{self._folder}/pg", "lock-impl": "lease"}
        self._ours(POSTGRES, catalog, history, {}, {})

    def hive(
        self,
        where: str,
        metastore: HiveMetastore,
        zookeeper: ZooKeeperEnsemble,
        history: History,
        java: Sequence[str] | None,
    ) -> None:
        """Measure ours and all others on a metastore, and the metastore."""
        servers = {"HMS": metastore.pid, "ZooKeeper": zookeeper.servers[0].pid}
        everybody = {contender.kind: contender for contender in contenders(metastore, zookeeper, java)}
        by_zookeeper = dict(everybody["commit_coord, zookeeper"].catalog)
        with (
            create_lock_manager("hms", metastore.uri) as hms_locks,
            create_lock_manager("zookeeper", zookeeper.connect_string) as zookeeper_locks,
        ):
            self._locks = (hms_locks, zookeeper_locks)
            warm = Contender(kind="warming up", catalog=by_zookeeper)
            # A metastore gets faster for thousands of calls, so the first one measured would be at a disadvantage.
            some = min(4, max(self._writers))
            self._measure(where, warm, history, PROCESSES, some, 1, self._seconds * _LONG, {}, kept=False)
            self._ours(where, by_zookeeper, history, servers, _BARS.get(where, {}))
            self.alters[where] = self._alter_rates(metastore, history, by_zookeeper)
            if where == HIVE:
                many = min(4, max(self._writers))
                for kind in (PYICEBERG[0], *(kind for kind in JAVA if "tuned" in kind)):
                    if kind in everybody:
                        lasting = self._seconds * _LONG * (_PATIENT if kind == PYICEBERG[0] else 1)
                        self._measure(where, everybody[kind], history, PROCESSES, many, 1, lasting, servers)
                phased = Contender(kind=QUEUE, catalog=by_zookeeper, spec={"phases": True})
                many = min(16, max(self._writers))
                cell = self._measure(where, phased, history, PROCESSES, many, 1, self._seconds, servers, kept=False)
                self.profile = {"writers": many, **{k: cell[k] for k in ("acknowledged", "swaps", "phases")}}
        self._locks = ()

    def _ours(
        self,
        where: str,
        catalog: Mapping[str, str],
        history: History,
        servers: Mapping[str, int],
        of_bars: Mapping[int, int],
    ) -> None:
        both = (
            Contender(kind=QUEUE, catalog=catalog),
            Contender(kind=SINGLE, catalog={**catalog, **_SINGLE}),
        )
        plan = [(PROCESSES, count, 1) for count in self._writers]
        if where in (HIVE, SQLITE):
            plan += [(THREADS, count, 1) for count in self._writers if count > 1]
            top = max(self._writers)
            plan += [(how, top, _MANY_TABLES) for how in (PROCESSES, THREADS) if top >= _MANY_TABLES]
        for number, (how, count, tables) in enumerate(plan):
            lasting = self._seconds * (of_bars.get(count, 1) if how == PROCESSES and tables == 1 else 1)
            order: tuple[Contender, ...] = both if number % 2 == 0 else both[::-1]
            if count == 1:
                # What gets faster all the time, a metastore above all, is in both alike.
                order, lasting = (*order, *order[::-1]), lasting / 2
            for contender in order:
                self._measure(where, contender, history, how, count, tables, lasting, servers)

    def _measure(
        self,
        where: str,
        contender: Contender,
        history: History,
        how: str,
        count: int,
        tables: int,
        seconds: float,
        servers: Mapping[str, int],
        *,
        kept: bool = True,
    ) -> dict[str, Any]:
        self._number += 1
        place = f"g{self._number}_"
        locks = self._locks
        before = {name: cpu_s(pid) for name, pid in servers.items()}
        try:
            cell = measure(
                self._folder / place,
                history,
                contender,
                "one table" if tables == 1 else f"{tables} tables",
                count,
                seconds,
                prefix=place,
                tables=tables,
                threads=count if how == THREADS else 1,
                fleet=self.fleet,
                locks=(lambda _: locks_left_in(locks)) if locks else locks_left,
            )
        except WriterFailed as error:
            self.gave_up[f"{where}, {contender.kind}, {count} {how}"] = str(error)
            self._say(f"{where}, {contender.kind}, {count} {how}: gave up: {error}")
            if contender.kind in (QUEUE, SINGLE):
                raise
            return {}
        # With the writers' warming up and the look at the tables, which is little compared with their appends.
        for name, pid in servers.items():
            cell[f"{name}_cpu_ms_each"] = round((cpu_s(pid) - before[name]) * 1000 / max(1, cell["acknowledged"]), 2)
        cell |= {"where": where, "how": how}
        self._say(f"{where}, {how}: {summary(cell)}")
        if kept:
            self.cells.append(cell)
        return cell

    def _alter_rates(self, metastore: HiveMetastore, history: History, catalog: Mapping[str, str]) -> dict[str, float]:
        """Return how often a second the metastore alters one table, and eight at a time, on a condition that holds."""
        opened, names = catalog_of(catalog), [f"alter_{number}" for number in range(_MANY_TABLES)]
        for name in names:
            history.place(opened, self._folder / "alters" / metastore.uri.rpartition(":")[2], name)
        opened.close()
        rates = {f"{count} tables": _alters(metastore.uri, names[:count], self._seconds) for count in (1, _MANY_TABLES)}
        self._say(f"the metastore alone alters {rates} times a second")
        return rates


def _alters(uri: str, names: Sequence[str], seconds: float) -> float:
    done: list[int] = []
    start = time.monotonic() + 0.1

    def alter(name: str) -> None:
        with MetastoreClient.of(uri) as client:
            found = client.get_table(NAMESPACE, name)
            found.parameters["bench"] = "0"
            client.alter_table(NAMESPACE, name, found, expected=None)
            number = 0
            while time.monotonic() < start + seconds:
                found.parameters["bench"] = str(number + 1)
                client.alter_table(NAMESPACE, name, found, expected=("bench", str(number)))
                number += 1
            done.append(number)

    threads = [threading.Thread(target=alter, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return round(sum(done) / seconds, 2)


def _bars(found: Sequence[dict[str, Any]], alters: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return what the figures say about the bars."""
    cells: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for cell in found:
        if cell["how"] == PROCESSES and cell["layout"] == "one table":
            cells.setdefault((cell["where"], cell["kind"], cell["writers"]), []).append(cell)

    def figure(where: str, kind: str, writers: int, name: str = "per_second") -> float | None:
        """Return the mean of all cells of this kind."""
        of_kind = cells.get((where, kind, writers))
        return fmean(cell[name] for cell in of_kind) if of_kind else None

    four, sixteen = (figure(HIVE, QUEUE, count) for count in (4, 16))
    tuned = [rate for kind in JAVA if "tuned" in kind and (rate := figure(HIVE, kind, 4)) is not None]
    sql = figure(SQLITE, QUEUE, 16)
    swaps = figure(HIVE, QUEUE, 16, "swaps_per_second")
    return {
        "1: HMS, 4 writers, times one commit a swap (at least 2)": ratio(four, figure(HIVE, SINGLE, 4)),
        "1: HMS, 4 writers, times PyIceberg's defaults (at least 250)": ratio(four, figure(HIVE, PYICEBERG[0], 4)),
        "1: HMS, 4 writers, times the best tuned Java (at least 6)": ratio(four, max(tuned, default=None)),
        "1: HMS, 16 writers, share of 4 writers' rate (at least 0.9)": ratio(sixteen, four),
        "1: HMS, 16 writers, p99 in ms (under 2,000)": figure(HIVE, QUEUE, 16, "p99_ms"),
        "2: SQLite, 16 writers, acknowledged a second (at least 40)": sql,
        "2: SQLite, 16 writers, times PyIceberg's SqlCatalog (at least 25)": ratio(
            sql, figure(SQLITE, PYICEBERG[0], 16)
        ),
        **{
            f"3: {where}, one writer, p50 times that without a queue (at most 1.1)": ratio(
                figure(where, QUEUE, 1, "p50_ms"), figure(where, SINGLE, 1, "p50_ms")
            )
            for where in (HIVE, SQLITE)
        },
        "HMS, 16 writers, share of the metastore's own alters of one table": ratio(
            swaps, alters.get(HIVE, {}).get("1 tables")
        ),
        **{
            f"{where}, 16 writers, CPU ms of a writer by append (at most 8)": figure(where, QUEUE, 16, "cpu_ms_each")
            for where in (HIVE, SQLITE)
        },
        "every cell of ours proved": all(c["proved"] for c in found if c["kind"] in (QUEUE, SINGLE)),
    }
