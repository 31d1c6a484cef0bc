"""The REST server on a Hive Metastore: Iceberg Java's appends through it, and what a request costs it.

Java's writers on the server are compared with Java's writers on ``HiveCatalog`` and with the library's own, as in the
suite ``hive``. A server's processes count their processor time and the statuses of their answers.
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table, Transaction

from commit_coord.bench import hive
from commit_coord.bench.cells import LAYOUTS, Contender, measure, ratio, summary
from commit_coord.bench.machine import cpu_s
from commit_coord.bench.tables import NAMESPACE, ROWS, History, catalog_of, make_histories
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.local.rest import RestServer
from commit_coord.locks.base import LockManager
from commit_coord.locks.registry import create_lock_manager
from commit_coord.rest.commits import DECLARATION_HEADER
from commit_coord.testing.fleet import WriterFailed

DECLARED, UNDECLARED, TWO_PROCESSES = SERVED = ("rest, declared", "rest, undeclared", "rest, two processes, declared")
KINDS = (*SERVED, hive.OURS[0], *hive.JAVA)

_CATALOG = "bench"
_ANSWERS = "commit_coord_rest_requests_total"
_COMMITS = ("POST", "/tables/{table}")
"""Method and end of the route of a commit."""

_CONNECTIONS = 16
_WRITTEN = 800
"""Appends that are written before the clock, and then sent to one server."""
_LARGE = 1_500
"""Snapshots of the table that is loaded: its metadata has more than a megabyte."""


@dataclass(frozen=True, slots=True)
class _Side:
    contender: Contender
    server: RestServer | None = None


def run(
    folder: Path,
    *,
    seconds: float,
    writers: Iterable[int],
    snapshots: int,
    requests: int,
    java: Callable[[Path], Sequence[str]],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure every cell and every kind of request, and return the figures with what was proved.

    Args:
        folder: Where everything is kept meanwhile.
        seconds: Of a cell.
        writers: Numbers of writers; all of a cell append to one table.
        snapshots: Of each table before.
        requests: Of each kind.
        java: Makes the command of a Java writer in a folder.
        say: Called with each line of progress.
    """
    say("starting a Hive Metastore, ZooKeeper and the REST servers")
    with ExitStack() as running:
        metastore = running.enter_context(HiveMetastore(folder / "metastore"))
        zookeeper = running.enter_context(ZooKeeperEnsemble(folder / "zookeeper", 1))
        library, *java_alone = (
            contender
            for contender in hive.contenders(metastore, zookeeper, java(folder / "java"))
            if contender.kind in KINDS
        )
        one, two = (
            running.enter_context(
                RestServer(_CATALOG, library.catalog, folder / f"server{count}", options=("--processes", str(count)))
            )
            for count in (1, 2)
        )
        command = java_alone[0].command
        sides = [
            _Side(_through(one, DECLARED, library, command, {f"header.{DECLARATION_HEADER}": "blind"}), one),
            _Side(_through(one, UNDECLARED, library, command, {}), one),
            _Side(_through(two, TWO_PROCESSES, library, command, {f"header.{DECLARATION_HEADER}": "blind"}), two),
            *map(_Side, (library, *java_alone)),
        ]
        locks = (
            running.enter_context(create_lock_manager("hms", metastore.uri)),
            running.enter_context(create_lock_manager("zookeeper", zookeeper.connect_string)),
        )
        histories = make_histories(folder / "history", [snapshots, _LARGE])
        cells, gave_up = [], {}
        for count in writers:
            for side in sides:
                try:
                    cell = _measured(folder / "cells", histories[snapshots], side, count, seconds, locks)
                except WriterFailed as error:
                    gave_up[f"{side.contender.kind}, {count} writers"] = str(error)
                    say(f"{side.contender.kind}, {count} writers: gave up: {error}")
                    continue
                say(summary(cell))
                cells.append(cell)
        written = {}
        for kind, server in {DECLARED: one, TWO_PROCESSES: two}.items():
            written[kind] = _sent(folder / f"written{server.pid}", server, library.catalog, histories[snapshots])
            say(f"{kind}, written before: {written[kind]}")
        costs = _costs(folder / "costs", one, library.catalog, histories[_LARGE], requests)
        say(f"processor milliseconds of the server: {costs}")
    return {
        "snapshots_before": snapshots,
        "seconds": seconds,
        "cells": cells,
        "gave_up": gave_up,
        "written": written,
        "costs": costs,
        "bars": _bars(cells, written, costs),
    }


def _through(
    server: RestServer, kind: str, library: Contender, command: Sequence[str], properties: Mapping[str, str]
) -> Contender:
    """Return Java's writers through *server*; their tables are made, and proved, in the library's catalog."""
    rest = {"uri": server.url, "warehouse": _CATALOG, **properties}
    spec = {"namespace": NAMESPACE, "rows": ROWS.num_rows, "conf": {}, "rest": rest}
    return Contender(kind=kind, catalog=library.catalog, command=command, spec=spec)


def _measured(
    folder: Path, history: History, side: _Side, writers: int, seconds: float, locks: Sequence[LockManager]
) -> dict[str, Any]:
    place = f"{''.join(filter(str.isalpha, side.contender.kind))}{writers}_"
    server, before = side.server, []
    cell = measure(
        folder / place,
        history,
        side.contender,
        LAYOUTS[0],
        writers,
        seconds,
        prefix=place,
        locks=lambda _: hive.locks_left_in(locks),
        meanwhile=lambda _: before.append((_answers(server), cpu_s(server.pid))) if server else None,
    )
    if server is not None:
        (answers, cpu), each = before[0], max(1, cell["acknowledged"])
        counted = _answers(server) - answers
        cell["statuses"] = dict(counted)
        cell["attempts_each"] = round(sum(counted.values()) / each, 2)
        cell["server_cpu_ms_each"] = round((cpu_s(server.pid) - cpu) * 1000 / each, 2)
    return cell


def _answers(server: RestServer) -> Counter[str]:
    """Return how many commits the server has answered, by status."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:  # noqa: S310 # nosec B310 - our own server
        text = answer.read().decode()
    found: Counter[str] = Counter()
    method, route = _COMMITS
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    for sample in samples:
        labels = sample.labels
        if sample.name == _ANSWERS and labels["method"] == method and labels["route"].endswith(route):
            found[labels["status"]] += int(sample.value)
    return found


def _sent(folder: Path, server: RestServer, catalog: Mapping[str, str], history: History) -> dict[str, Any]:
    """Return how many declared appends *server* acknowledges a second if their files were written before.

    Sixteen writers of Iceberg Java take nearly all of this machine: this is what is left without them.
    """
    name = f"written{server.pid}"
    opened = catalog_of(catalog)
    history.place(opened, folder, name)
    table = load_catalog(_CATALOG, type="rest", uri=server.url, warehouse=_CATALOG).load_table((NAMESPACE, name))
    path = f"/v1/{_CATALOG}/namespaces/{NAMESPACE}/tables/{name}"
    headers = {"Content-Type": "application/json", DECLARATION_HEADER: "blind"}
    bodies = [_append(table) for _ in range(_WRITTEN)]

    def send(share: Sequence[bytes]) -> Counter[int]:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        found: Counter[int] = Counter()
        for body in share:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read()
            found[answer.status] += 1
        connection.close()
        return found

    began, cpu = time.perf_counter(), cpu_s(server.pid)
    with ThreadPoolExecutor(_CONNECTIONS) as clients:
        statuses = sum(clients.map(send, [bodies[n::_CONNECTIONS] for n in range(_CONNECTIONS)]), Counter[int]())
    seconds, cpu = time.perf_counter() - began, cpu_s(server.pid) - cpu
    snapshots = len(opened.load_table((NAMESPACE, name)).metadata.snapshots) - len(table.metadata.snapshots)
    opened.close()
    if statuses != {200: _WRITTEN} or snapshots != _WRITTEN:
        raise RuntimeError(f"of {_WRITTEN} appends {snapshots} landed, and the server answered {dict(statuses)}")
    return {
        "appends": _WRITTEN,
        "connections": _CONNECTIONS,
        "per_second": round(_WRITTEN / seconds, 1),
        "server_cpu_ms_each": round(cpu * 1000 / _WRITTEN, 2),
    }


def _append(table: Table) -> bytes:
    """Return the request of an append to *table* whose files are written."""
    tx = Transaction(table)
    tx.append(ROWS)
    return orjson.dumps(
        {
            "requirements": [each.model_dump(mode="json", exclude_none=True) for each in tx._requirements],
            "updates": [each.model_dump(mode="json", exclude_none=True) for each in tx._updates],
        }
    )


def _costs(
    folder: Path, server: RestServer, catalog: Mapping[str, str], history: History, requests: int
) -> dict[str, Any]:
    """Return the processor milliseconds of *server* for each kind of request, and the library's for one append."""
    opened = catalog_of(catalog)
    for name in ("large", "appended", "library"):
        history.place(opened, folder, name)
    path = f"/v1/{_CATALOG}/namespaces/{NAMESPACE}/tables/large"
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))

    def ask(**headers: str) -> http.client.HTTPResponse:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.read()
        return answer

    etag = ask().headers["etag"]
    statuses: Counter[int] = Counter()

    def cost(ask_once: Callable[[], Any], requests: int = requests, pid: int = server.pid) -> float:
        for _ in range(requests // 10 + 1):
            ask_once()
        began = cpu_s(pid)
        for _ in range(requests):
            ask_once()
        return round((cpu_s(pid) - began) * 1000 / requests, 3)

    def ask_for(status: int, **headers: str) -> Callable[[], Any]:
        return lambda: statuses.update([ask(**headers).status == status])

    through = load_catalog(_CATALOG, type="rest", uri=server.url, warehouse=_CATALOG)
    table, own, few = (
        through.load_table((NAMESPACE, "appended")),
        opened.load_table((NAMESPACE, "library")),
        requests // 10,
    )
    found = {
        "metadata_bytes": len(history.metadata),
        "requests": requests,
        "load": cost(ask_for(200, accept_encoding="gzip")),
        "load_without_gzip": cost(ask_for(200)),
        "not_modified": cost(ask_for(304, if_none_match=etag)),
        "append": cost(lambda: table.append(ROWS), few),
        "library_append": cost(lambda: own.append(ROWS), few, os.getpid()),
    }
    opened.close()
    connection.close()
    if set(statuses) != {True}:
        raise RuntimeError(f"the server refused {statuses[False]} loads")
    return found


def _bars(
    found: Sequence[dict[str, Any]], written: Mapping[str, Mapping[str, float]], costs: Mapping[str, float]
) -> dict[str, Any]:
    """Return what the figures say about the bars of 16 writers, and about the cost of a request."""
    cells = {cell["kind"]: cell for cell in found if cell["writers"] == max(each["writers"] for each in found)}

    def figure(kind: str, name: str = "per_second") -> Any:
        return cells.get(kind, {}).get(name)

    best = max(hive.JAVA, key=lambda kind: figure(kind) or 0)
    declared = (DECLARED, TWO_PROCESSES)
    return {
        "declared, times the best Java HiveCatalog (at least 5)": ratio(figure(DECLARED), figure(best)),
        "declared, p99, share of the best Java's (under 0.1)": ratio(
            figure(DECLARED, "p99_ms"), figure(best, "p99_ms")
        ),
        "declared, two processes, times one (over 1)": ratio(figure(TWO_PROCESSES), figure(DECLARED)),
        "declared, written before, acknowledged a second (at least 40)": written[DECLARED]["per_second"],
        "declared, written before, two processes, times one (over 1)": ratio(
            written[TWO_PROCESSES]["per_second"], written[DECLARED]["per_second"]
        ),
        "declared, refused with 409 (0)": sum((figure(kind, "statuses") or {}).get("409", 0) for kind in declared),
        "undeclared, tries of an append (at most 2)": figure(UNDECLARED, "attempts_each"),
        "failed appends through the server (0)": sum(cell["failed"] for cell in found if cell["kind"] in SERVED),
        "load, processor ms of the server (at most 1.5)": costs["load"],
        "not modified, processor ms of the server (at most 0.4)": costs["not_modified"],
        "append, processor ms of the server (at most 10)": costs["append"],
        "every cell through the server proved": all(cell["proved"] for cell in found if cell["kind"] in SERVED),
    }
