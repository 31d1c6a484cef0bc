"""Observing the running server: metrics, the access log, spans, and readiness."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as text_of
from prometheus_client.multiprocess import MultiProcessCollector

from commit_coord.config import MetricsExporter, TracesExporter
from commit_coord.events import Event, LockAcquired, LockNotAcquired
from commit_coord.model import Resource
from commit_coord.observing.prometheus import Metrics
from commit_coord.redaction import printable
from commit_coord.rest.warehouses import Warehouse, Warehouses
from commit_coord.rest.wire import HttpAnswer, Request, json_answer
from commit_coord.rest.writing import BackgroundWriter

logger = logging.getLogger(__name__)

SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which several processes keep their metrics."""

_READY_FOR_S = 1.0
"""How long an answer about readiness is used again, so that frequent probes do not load the services."""
_MOST_UNWRITTEN = 10_000
"""Lines of the access log that may wait to be written."""
_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


@dataclass(slots=True)
class Exchange:
    """A request and its outcome, for the access log and the metrics.

    Args:
        request_id: The client's id, or one that the server made.
        address: The address of the client.
        method: In upper case.
    """

    request_id: str
    address: str
    method: str
    client: str = ""
    route: str = ""
    catalog: str = ""
    table: str = ""
    wait_ms: float = 0.0
    began: float = field(default_factory=time.perf_counter)


class _Instruments:
    def __init__(self) -> None:
        labels = ("route", "method")
        self.requests = Counter("commit_coord_rest_requests", "Requests by their answer", (*labels, "status"))
        self.seconds = Histogram(
            "commit_coord_rest_request_seconds",
            "Time from the head of a request to its answer",
            labels,
            buckets=_SECONDS,
        )
        self.in_work = Gauge(
            "commit_coord_rest_requests_in_work", "Requests in work or waiting now", multiprocess_mode="livesum"
        )


@cache
def _instruments() -> _Instruments:
    """Return the instruments of this process: a registry accepts each name only once."""
    return _Instruments()


@cache
def _of(route: str, method: str, status: int) -> tuple[Counter, Histogram]:
    """Return the instruments of such requests; as many as there are, prometheus_client keeps them, too."""
    on = _instruments()
    return on.requests.labels(route, method, str(status)), on.seconds.labels(route, method)


_waiting = threading.local()
"""Its attribute ``exchange`` is the request that this thread carries out."""


class Watch:
    """Counts and logs requests.

    Args:
        access_log: See :class:`Serving`.
    """

    def __init__(self, access_log: str) -> None:
        self._path = access_log
        self._on = _instruments()
        self._log = BackgroundWriter("access log", self._append, _MOST_UNWRITTEN, self._tell_dropped)

    def attach(self, warehouses: Warehouses) -> None:
        """Measure what happens in the catalogs, and how long requests wait for locks."""
        for warehouse in warehouses:
            catalog = warehouse.catalog
            catalog.events.subscribe(_waited)
            if catalog.settings.commit_coord_metrics is not MetricsExporter.PROMETHEUS:
                catalog.events.subscribe(Metrics(catalog.name, catalog.settings.lock_impl))

    def began(self) -> None:
        """Note that a request has begun."""
        self._on.in_work.inc()

    @contextmanager
    def in_thread(self, exchange: Exchange, handed_over: float) -> Iterator[None]:
        """Measure in the block how long *exchange* waits for locks; add its wait for a thread, since *handed_over*."""
        exchange.wait_ms = (time.perf_counter() - handed_over) * 1000
        _waiting.exchange = exchange
        try:
            yield
        finally:
            _waiting.exchange = None

    def ended(self, exchange: Exchange, answer: HttpAnswer | None) -> None:
        """Note that a request has ended, and write its line; without an answer, the client has disconnected."""
        took_s = time.perf_counter() - exchange.began
        status = answer.status if answer else 499
        self._on.in_work.dec()
        requests, seconds = _of(exchange.route, exchange.method, status)
        requests.inc()
        seconds.observe(took_s)
        if self._path:
            self._log.put(self._line(exchange, status, took_s, len(answer.body) if answer else 0))

    def flush(self, timeout_s: float) -> bool:
        """Return True once the access log contains all requests that have ended, False after *timeout_s* seconds."""
        return self._log.flush(timeout_s)

    @staticmethod
    def _line(exchange: Exchange, status: int, took_s: float, size: int) -> bytes:
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": exchange.request_id,
            "client": exchange.client,
            "address": exchange.address,
            "method": exchange.method,
            "route": exchange.route,
            "catalog": exchange.catalog,
            "table": exchange.table,
            "status": status,
            "bytes": size,
            "duration_ms": round(took_s * 1000, 3),
            "wait_ms": round(exchange.wait_ms, 3),
        }
        return (printable(json.dumps(line, ensure_ascii=False)) + "\n").encode()

    def _append(self, text: bytes) -> None:
        """Write a line; blocks as long as the file, or the reader of a pipe, is stuck."""
        try:
            if self._path == "-":
                os.write(1, text)
                return
            # One write appends the whole line, also if other processes write. The file may be moved: it is opened anew.
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            try:
                os.write(file, text)
            finally:
                os.close(file)
        except OSError:
            logger.exception("the access log can't be written: %s", self._path)

    def _tell_dropped(self, count: int) -> None:
        logger.error("the access log is too slow: %d lines were dropped: %s", count, self._path)


def _waited(event: Event) -> None:
    exchange = getattr(_waiting, "exchange", None)
    if exchange is not None and isinstance(event, LockAcquired | LockNotAcquired):
        exchange.wait_ms += event.waited_ms


def metrics_answer() -> HttpAnswer:
    """Return all metrics in Prometheus' text format; if several processes share a folder, those of all processes."""
    registry = REGISTRY
    if os.environ.get(SHARED_METRICS):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return HttpAnswer(body=text_of(registry), content_type=CONTENT_TYPE_LATEST)


@contextmanager
def request_span(warehouse: Warehouse, request: Request, route: str) -> Iterator[Callable[[int], None]]:
    """Open a span in the client's trace if the catalog's traces are on; yield a function that sets the status."""
    if warehouse.catalog.settings.commit_coord_traces is not TracesExporter.OPENTELEMETRY:
        yield lambda _: None
        return
    from commit_coord.observing.opentelemetry import serving_span

    with serving_span(request.headers, method=request.method, route=route, catalog=warehouse.catalog.name) as answered:
        yield answered


class Readiness:
    """Checks whether every catalog and every lock service answers. Blocks; for one thread at a time.

    Args:
        warehouses: The catalogs to check.
    """

    def __init__(self, warehouses: Warehouses) -> None:
        self._warehouses = warehouses
        self._answered_at = float("-inf")
        self._answer = HttpAnswer(status=503)

    def answer(self) -> HttpAnswer:
        """Return 200 if all answer, else 503; the log contains the reason."""
        if time.monotonic() - self._answered_at > _READY_FOR_S:
            found = {warehouse.catalog.name: _state(warehouse) for warehouse in self._warehouses}
            is_ready = bool(found) and all(state == "answers" for state in found.values())
            self._answer = json_answer({"ready": is_ready, "catalogs": found}, 200 if is_ready else 503)
            self._answered_at = time.monotonic()
        return self._answer


_NOWHERE = "commit_coord_readiness"


def _state(warehouse: Warehouse) -> str:
    try:
        warehouse.catalog.namespace_exists(_NOWHERE)
    except Exception:
        logger.exception("the catalog %s does not answer", warehouse.catalog.name)
        return "the catalog does not answer"
    try:
        warehouse.catalog.show_locks(Resource((_NOWHERE,)))
    except Exception:
        logger.exception("the lock service of %s does not answer", warehouse.catalog.name)
        return "the lock service does not answer"
    return "answers"
