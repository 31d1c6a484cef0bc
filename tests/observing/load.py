"""What happens to a catalog while Prometheus watches it: writers, jobs, clients of the REST server, and an operator.

Each role is a process, ``python -m tests.observing.load``. The first line of its input says what it does, and it
answers with the port of its metrics. It begins with the second line, and answers the third one with what it has
counted. It ends when its input ends; until then Prometheus can read its metrics.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import requests
from prometheus_client import start_http_server
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import OperationalError

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.errors import CommitNotApplied, LockTimeout, StaleRead
from commit_coord.model import LeaseState, LockMode, Resource
from tests.limits import PATIENCE
from tests.processes import until

CATALOG = "shop"
SALES, PRICES, REPORT = "db.sales", "db.prices", "db.report"
ROWS = pa.table({"id": [1, 2, 3]})
_REPORT = Resource(tuple(REPORT.split(".")))
_APPENDERS = 4
"""Threads of a writer: in each wave, one more after the other begins."""


class Role:
    """One process of the load.

    Args:
        spec: ``role``; the ``properties`` of the catalog; ``wave_s``, the seconds of a wave; for clients of the REST
            server also its ``url``, the ``token`` of a client that may write, and ``known``, that of one that may not.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.counts = Counter[str]()
        self.failures: list[str] = []
        self._spec = spec
        self._properties: dict[str, str] = spec["properties"]
        self._catalog = commit_coord.load_catalog(CATALOG, **self._properties)
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._began = 0.0

    def start(self) -> None:
        """Begin what belongs to the role."""
        self._began = time.monotonic()
        parts = self._parts()[self._spec["role"]]
        self._threads = [threading.Thread(target=self._work, args=(part,)) for part in parts]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all of it, when what has begun is done."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def close(self) -> None:
        """Close the catalog."""
        self._catalog.close()

    def _parts(self) -> Mapping[str, list[Callable[[], None]]]:
        """Return what the threads of each role do."""
        appenders = [partial(self._append, SALES, number) for number in range(_APPENDERS)]
        senders = [partial(self._send, declared) for declared in ("blind", "checked")]
        return {
            "writer": [*appenders, partial(self._append, PRICES, 0), self._overwrite],
            "jobs": [self._hold, self._hold, self._hurry, self._hang],
            "clients": [*senders, self._intrude, self._ignore_latches],
        }

    def _work(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception:  # noqa: BLE001 - the parent shows it
            self.failures.append(traceback.format_exc())

    def _count(self, what: str) -> None:
        with self._mutex:
            self.counts[what] += 1

    def _goes_on(self, pause_s: float) -> bool:
        """Return whether to go on, after about *pause_s*."""
        return not self._stop.wait(pause_s * (0.5 + random.random()))

    @contextmanager
    def _opened(self, **more: str) -> Iterator[CoordinatedCatalog]:
        """Yield a client of its own."""
        with closing(commit_coord.load_catalog(CATALOG, **self._properties, **more)) as catalog:
            yield catalog

    # A writer.

    def _append(self, name: str, number: int) -> None:
        wave_s = self._spec["wave_s"]
        table = self._catalog.load_table(name)
        while self._goes_on(0.1):
            if number * wave_s / _APPENDERS <= (time.monotonic() - self._began) % wave_s:
                self._commit(lambda: table.append(ROWS))

    def _overwrite(self) -> None:
        """Replace what was read a moment ago: refused where somebody else has written since."""
        while self._goes_on(0.3):
            change = self._catalog.load_table(PRICES).transaction()
            try:
                change.overwrite(ROWS)
            except StaleRead:
                continue  # it never became a commit
            self._goes_on(0.1)
            self._commit(change.commit_transaction)

    def _commit(self, commit: Callable[[], object]) -> None:
        try:
            commit()
        except CommitNotApplied:
            self._count("refused")
        else:
            self._count("commits")

    # Jobs, and an operator.

    def _hold(self) -> None:
        while self._goes_on(0.2):
            with self._catalog.lock_operation({_REPORT: LockMode.EXCLUSIVE}, statement="REFRESH report"):
                self._goes_on(0.2)

    def _hurry(self) -> None:
        with self._opened(**{"lock.acquire-timeout-ms": "200"}) as catalog:
            while self._goes_on(0.5):
                try:
                    catalog.lock_operation({_REPORT: LockMode.SHARED}, statement="SELECT").release()
                except LockTimeout:
                    self._count("timeouts")

    def _hang(self) -> None:
        """Hold a lock until an operator takes it away, once in each wave."""
        with self._opened() as operator:
            while self._goes_on(self._spec["wave_s"] / 2):
                lease = self._catalog.lock_operation({_REPORT: LockMode.EXCLUSIVE}, statement="ANALYZE report")
                self._goes_on(1.0)
                operator.unlock(request_id=lease.request.request_id, why="the job hangs")
                self._count("forced")
                until(lambda lease=lease: lease.state is LeaseState.LOST, "the loss")  # type: ignore[misc]
                self._count("lost")
                lease.release()

    # Clients of the REST server, and what does not know the latch.

    def _send(self, declared: str) -> None:
        header = {"header.X-Commit-Coord-Append": declared}
        client = RestCatalog(CATALOG, uri=self._spec["url"], warehouse=CATALOG, token=self._spec["token"], **header)
        while self._goes_on(0.3):
            try:
                client.load_table(SALES).append(ROWS)
            except CommitFailedException:
                self._count("conflicts")
            else:
                self._count("commits")

    def _intrude(self) -> None:
        """Try a wrong token, and the token of a client that may not write."""
        path = f"{self._spec['url']}/v1/{CATALOG}/namespaces"
        while self._goes_on(0.5):
            for token in ("wrong", self._spec["known"]):
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                answer = requests.post(path, '{"namespace": ["mine"]}', headers=headers, timeout=PATIENCE)
                self._count(str(answer.status_code))

    def _ignore_latches(self) -> None:
        """Change a property with PyIceberg's own catalog, which compares and sets without a latch."""
        uri = self._properties["uri"].removeprefix("coord+")
        catalog = SqlCatalog(CATALOG, uri=f"{uri}?timeout={PATIENCE}", warehouse=self._properties["warehouse"])
        while self._goes_on(0.05):
            try:
                with catalog.load_table(PRICES).transaction() as change:
                    change.set_properties(seen=str(time.time()))
            except (CommitFailedException, OperationalError):
                self._count("uncoordinated conflicts")
            else:
                self._count("uncoordinated")


def main() -> None:
    """Do what the input says."""
    role = Role(json.loads(sys.stdin.readline()))
    server, thread = start_http_server(0, "127.0.0.1")
    with closing(role):
        print(json.dumps(server.server_port), flush=True)
        if sys.stdin.readline():
            role.start()
            sys.stdin.readline()
            role.stop()
            print(json.dumps({"counts": role.counts, "failures": role.failures}), flush=True)
            sys.stdin.readline()
    server.shutdown()
    server.server_close()
    thread.join()


if __name__ == "__main__":
    main()
