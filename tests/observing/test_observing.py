"""Metrics, spans and the audit log, of locks and commits that really happen."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import REGISTRY
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.types import LongType

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.cli.logs import _OneLine, _Whole
from commit_coord.errors import (
    CommitConflict,
    CommitNotApplied,
    ConfigError,
    LockError,
    LockServiceUnavailable,
    LockTimeout,
    PartlyFreed,
    StaleRead,
)
from commit_coord.events import AccessRefused, CommitOverwritten, Event, LocksForced, PhaseChange
from commit_coord.locks.hive_lease import LeaseObject
from commit_coord.locks.none import NoneLockManager
from commit_coord.locks.sql.table import SqlLockTable
from commit_coord.model import LockEntry, LockMode, Resource
from commit_coord.observing.audit import AuditLog
from commit_coord.process import process_name, this_owner
from commit_coord.table.isolation import NO_SNAPSHOT
from tests.contract.test_partly_freed import FAULTS, Calls, Fault
from tests.processes import until
from tests.threads import elsewhere

DOCS = Path(__file__).parents[2] / "docs" / "observability.md"
SALES = Resource(("shop", "sales"))
ROWS = pa.table({"id": [1, 2, 3]})
S, X = LockMode.SHARED, LockMode.EXCLUSIVE

Open = Callable[..., CoordinatedCatalog]


@pytest.fixture
def name() -> str:
    """A catalog's name that no other test has: metrics are counted by it, in one registry for all."""
    return f"shop{uuid.uuid4().hex[:8]}"


@pytest.fixture
def opened(tmp_path: Path, name: str) -> Iterator[Open]:
    """Opens clients of one catalog, with ``shop.sales`` in it."""
    made: list[CoordinatedCatalog] = []

    def open_one(**more: str) -> CoordinatedCatalog:
        given = {key.replace("__", "-").replace("_", "."): value for key, value in more.items()}
        place = {"uri": f"coord+sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.joinpath("w").as_uri()}
        made.append(commit_coord.load_catalog(name, **place, **given))
        return made[-1]

    first = open_one()
    first.create_namespace("shop")
    first.create_table("shop.sales", schema=ROWS.schema)
    yield open_one
    for catalog in made:
        catalog.close()


@pytest.fixture
def value(name: str) -> Callable[..., float]:
    """Reads a metric of the test's catalog from the registry."""

    def read(metric: str, **labels: str) -> float:
        found = REGISTRY.get_sample_value(
            f"commit_coord_{metric}", {"catalog": name, "lock_manager": "lease", **labels}
        )
        return 0.0 if found is None else found

    return read


# Metrics.


def test_waits_and_holds_are_timed(opened: Open, value: Callable[..., float]) -> None:
    catalog, other = opened(commit__coord_metrics="prometheus"), opened()
    with catalog.lock_operation({SALES: X}):
        assert 1 == value("leases_held", scope="operation")
    holder = other.lock_operation({SALES: X})
    thread = threading.Thread(target=lambda: catalog.lock_operation({SALES: X}).release())
    thread.start()
    until(lambda: value("lock_requests_waiting", scope="operation") == 1, "a request that waits")
    until(lambda: len(other.show_locks()) == 2, "its place in the queue")
    holder.release()
    thread.join()
    assert 2 == value("lock_wait_seconds_count", scope="operation", outcome="granted")
    assert 0 < value("lock_wait_seconds_sum", scope="operation", outcome="granted") < 60
    assert 2 == value("lock_hold_seconds_count", scope="operation")
    assert (0, 0) == (
        value("lock_requests_waiting", scope="operation"),
        value("leases_held", scope="operation"),
    )


def test_a_timeout_is_an_outcome_of_a_wait(opened: Open, value: Callable[..., float]) -> None:
    catalog = opened(commit__coord_metrics="prometheus", lock_acquire__timeout__ms="30")
    with elsewhere(opened().lock_operation, {SALES: X}), pytest.raises(LockTimeout):
        catalog.lock_operation({SALES: S})
    assert 1 == value("lock_wait_seconds_count", scope="operation", outcome="lock-timeout")
    assert 0 == value("lock_requests_waiting", scope="operation")


@pytest.mark.parametrize("several", [False, True], ids=["one table", "several tables"])
def test_a_call_that_is_stale_before_its_commit_begins_counts_as_one_failure(
    opened: Open, value: Callable[..., float], *, several: bool
) -> None:
    catalog = opened(commit__coord_metrics="prometheus")
    table, other = catalog.load_table("shop.sales"), catalog.create_table("shop.other", schema=ROWS.schema)
    table.append(ROWS)
    with pytest.raises(StaleRead):  # the rows were computed when the table had none
        if several:
            with catalog.transaction() as transaction:
                transaction.table(other).append(ROWS)
                transaction.table(table).overwrite(ROWS, read_at=NO_SNAPSHOT)
        else:
            table.overwrite(ROWS, read_at=NO_SNAPSHOT)
    assert 1 == value("commits_total", status="FAILURE")


@pytest.mark.parametrize("of", ["a tag", "a column"])
def test_a_builder_that_is_refused_after_a_refresh_counts_as_one_failure(
    opened: Open, value: Callable[..., float], of: str
) -> None:
    """It finds the conflict on the table that its caller has seen by then, and asks the coordinator for nothing."""
    catalog = opened(commit__coord_metrics="prometheus")
    table = catalog.load_table("shop.sales")
    table.append(ROWS)
    snapshot = table.metadata.snapshots[0].snapshot_id
    other, column = catalog.load_table("shop.sales"), ROWS.column_names[0]
    builder: Any
    if of == "a tag":
        builder = table.manage_snapshots().create_tag(snapshot, "best")
        other.manage_snapshots().create_tag(snapshot, "best").commit()
    else:
        builder = table.update_schema().rename_column(column, "renamed")
        with other.update_schema() as update:
            update.rename_column(column, "other")
        with other.update_schema() as update:
            update.add_column(column, LongType())
    table.refresh()
    with pytest.raises(CommitConflict):
        builder.commit()
    assert 1 == value("commits_total", status="FAILURE")


def test_a_repeat_of_a_request_that_has_landed_counts_as_no_failure(opened: Open, value: Callable[..., float]) -> None:
    """To the repeat, what its first try has written makes its rows stale."""
    catalog = opened(commit__coord_metrics="prometheus")
    table = catalog.load_table("shop.sales")
    table.append(ROWS)
    read_at = table.metadata.current_snapshot_id
    for _ in range(2):
        with catalog.transaction(request_id="a job") as transaction:
            transaction.table(table).overwrite(ROWS, read_at=read_at)
    assert 0 == value("commits_total", status="FAILURE")


def test_a_repeat_that_is_refused_when_it_looks_again_counts_as_no_failure(
    opened: Open, value: Callable[..., float]
) -> None:
    """What one part reads has changed since the first try has landed in the other part's table."""
    catalog = opened(commit__coord_metrics="prometheus")
    catalog.create_table("shop.stock", ROWS.schema)
    stocks = [catalog.load_table("shop.stock") for _ in range(2)]
    for stock in stocks:
        with catalog.transaction(request_id="a job") as transaction:
            transaction.table("shop.sales").append(ROWS)
            part = transaction.table(stock)
            part.depends_on(AlwaysTrue())
            with pytest.warns(UserWarning, match="did not match any"):
                part.delete("id = 99")
        opened().load_table("shop.stock").append(ROWS)
    assert len(catalog.load_table("shop.sales").scan().to_arrow()) == len(ROWS)
    assert 0 == value("commits_total", status="FAILURE")


def test_lost_leases_and_forced_unlocks_are_counted(opened: Open, value: Callable[..., float]) -> None:
    catalog, operator = (opened(commit__coord_metrics="prometheus") for _ in range(2))
    lease = catalog.lock_operation({SALES: X})
    operator.unlock(resource=SALES)
    until(lambda: value("leases_lost_total") == 1, "a lost lease")
    lease.release()
    assert 1 == value("locks_forced_total", how="unlock")
    assert (1, 0) == (value("lock_hold_seconds_count", scope="operation"), value("leases_held", scope="operation"))


def test_commits_are_counted_by_outcome_and_rebase(opened: Open, value: Callable[..., float]) -> None:
    catalog, other = opened(commit__coord_metrics="prometheus"), opened()
    table = catalog.load_table("shop.sales")
    table.append(ROWS)
    other.load_table("shop.sales").append(ROWS)
    table.append(ROWS)
    assert (2, 1) == (value("commits_total", status="SUCCESS"), value("rebases_total"))
    dropped = catalog.load_table("shop.sales")
    other.drop_table("shop.sales")
    with pytest.raises(CommitNotApplied):
        dropped.append(ROWS)
    assert 1 == value("commits_total", status="FAILURE")
    assert 2 == value("swap_seconds_count", result="SWAPPED")
    assert 3 == value("lock_hold_seconds_count", scope="commit")


def test_counters_on_which_alerts_depend_begin_at_zero(opened: Open, name: str) -> None:
    opened(commit__coord_metrics="prometheus")
    labels = {"catalog": name, "lock_manager": "lease"}
    counters = ("leases_lost", "release_failures", "rebases", "commits_carried", "commits_overwritten")
    assert [0.0] * 5 == [REGISTRY.get_sample_value(f"commit_coord_{counter}_total", labels) for counter in counters]
    for status in ("SUCCESS", "FAILURE", "UNKNOWN"):
        assert 0.0 == REGISTRY.get_sample_value("commit_coord_commits_total", {**labels, "status": status})


# Spans.


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Keeps every span that ended. A process has one tracer provider for good."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    return kept


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Callable[[], Mapping[str, ReadableSpan]]:
    """Returns the spans that ended in this test, by name; the last one of each."""
    exporter.clear()
    return lambda: {span.name.removeprefix("commit_coord."): span for span in exporter.get_finished_spans()}


def facts(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of *span* without their common beginning."""
    return {key.removeprefix("commit_coord."): value for key, value in (span.attributes or {}).items()}


def test_a_commit_is_a_span_with_its_wait_hold_and_swap(
    opened: Open, name: str, spans: Callable[[], Mapping[str, ReadableSpan]]
) -> None:
    catalog = opened(commit__coord_traces="opentelemetry")
    with trace.get_tracer("test").start_as_current_span("job") as job:
        catalog.load_table("shop.sales").append(ROWS)
        after = trace.get_current_span()
    assert after is job
    found = spans()
    assert {"job", "commit", "acquire", "hold", "swap"} == found.keys()
    commit = found["commit"]
    assert commit.parent is not None
    assert job.get_span_context().span_id == commit.parent.span_id
    for child in (found["acquire"], found["hold"], found["swap"]):
        assert child.parent is not None
        assert commit.context.span_id == child.parent.span_id
        assert commit.start_time <= child.start_time <= child.end_time <= commit.end_time  # type: ignore[operator]
    told = facts(commit)
    assert (name, "lease", "shop.sales") == (told["catalog"], told["lock_manager"], told["table"])
    assert ("SUCCESS", 1, False, 0) == (told["status"], told["tries"], told["rebased"], told["carried"])
    assert told["request_id"] == facts(found["swap"])["request_id"]
    assert ("commit", "X shop/sales", "granted") == tuple(
        facts(found["acquire"])[key] for key in ("scope", "locks", "outcome")
    )
    assert facts(found["hold"])["generation"] >= 1
    assert "SWAPPED" == facts(found["swap"])["result"]


def test_what_fails_is_a_span_with_an_error(opened: Open, spans: Callable[[], Mapping[str, ReadableSpan]]) -> None:
    catalog = opened(commit__coord_traces="opentelemetry", lock_acquire__timeout__ms="30")
    with elsewhere(opened().lock_operation, {SALES: X}), pytest.raises(LockTimeout):
        catalog.lock_operation({SALES: S})
    assert (StatusCode.ERROR, "lock-timeout") == (
        spans()["acquire"].status.status_code,
        facts(spans()["acquire"])["outcome"],
    )
    lease = catalog.lock_operation({SALES: S})
    opened().unlock(resource=SALES)
    until(lambda: "hold" in spans(), "the end of the hold")
    lease.release()
    assert (StatusCode.ERROR, "lost") == (spans()["hold"].status.status_code, facts(spans()["hold"])["outcome"])


# What is off costs nothing.


def test_what_is_off_is_not_imported_and_nobody_listens(tmp_path: Path) -> None:
    code = f"""
import sys, pyarrow, commit_coord
catalog = commit_coord.load_catalog("shop", uri="coord+sqlite:///{tmp_path}/c.db", warehouse="file://{tmp_path}/w")
before = {{name for name in sys.modules if name.startswith(("prometheus_client", "opentelemetry"))}}
catalog.create_namespace("shop")
table = catalog.create_table("shop.sales", schema=pyarrow.schema([("id", pyarrow.int64())]))
table.append(pyarrow.table({{"id": [1]}}))
print(before, catalog.events.heard)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "set() False" == done.stdout.strip()


@pytest.mark.parametrize(
    "key, value, module",
    [("metrics", "prometheus", "prometheus_client"), ("traces", "opentelemetry", "opentelemetry")],
)
def test_a_missing_extra_is_named(
    opened: Open, monkeypatch: pytest.MonkeyPatch, key: str, value: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"commit_coord.observing.{value}", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'commit-coord\[(prometheus|otel)\]'"):
        opened(**{f"commit__coord_{key}": value})


# The audit log.


def test_who_frees_locks_by_force_is_written_down(
    opened: Open, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    audit = tmp_path / "audit.jsonl"
    operator = opened(commit__coord_audit__log=str(audit))
    first = opened().lock_operation({Resource(("shop", "sales", "day=1")): X}, statement="a job that hangs")
    second = opened().lock_operation({SALES: S})
    with caplog.at_level(logging.WARNING, "commit_coord.audit"):
        operator.unlock(request_id=first.request.request_id, why="hangs since Monday")
        operator.unlock(resource=SALES)
        operator.unlock(resource=SALES)
    mine = operator.locks.locks()
    assert [] == list(mine)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [first.request.request_id, second.request.request_id] == [line["request_id"] for line in lines]
    line = lines[0]
    assert ("unlock", name, "lease", "hangs since Monday") == tuple(
        line[key] for key in ("how", "catalog", "lock_manager", "why")
    )
    assert (["S shop/sales", "X shop/sales/day=1"], "operation", "ACQUIRED") == tuple(
        line[key] for key in ("locks", "scope", "state")
    )
    assert "a job that hangs" == line["owner"]["statement"]
    assert line["by"]["user"]
    assert line["by"]["host"]
    assert line["at"] >= line["since"]
    logged = [record for record in caplog.records if record.name == "commit_coord.audit"]
    assert lines == [record.__dict__["audit"] for record in logged]
    assert "hangs since Monday" in logged[0].getMessage()
    assert "no reason given" in logged[1].getMessage()


class OutOfReach(NoneLockManager):
    """A second lock manager of a catalog, whose service does not answer."""

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        raise LockServiceUnavailable("no answer")

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        raise LockServiceUnavailable("no answer")


@pytest.mark.parametrize("how", ["unlock", "reap"])
def test_what_was_freed_before_the_lock_service_failed_is_recorded_and_emitted(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    audit = tmp_path / "audit.jsonl"
    operator = opened(commit__coord_audit__log=str(audit))
    monkeypatch.setattr(operator, "_lock_managers", lambda: [operator.locks, OutOfReach()])
    heard: list[object] = []
    operator.events.subscribe(heard.append)
    if how == "reap":
        ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        process = process_name(ended.pid) or ""
        ended.communicate(b"\n")
        monkeypatch.setattr(operator.host, "owner", lambda said="": replace(this_owner(said), process=process))
    lease = opened().lock_operation({SALES: X})
    with pytest.raises(LockServiceUnavailable):
        operator.reap(dry_run=True)
    assert not audit.exists()
    with pytest.raises(PartlyFreed) as told:
        operator.unlock(resource=SALES, why="it hangs") if how == "unlock" else operator.reap(why="it hangs")
    assert [lease.request.request_id] == [entry.request_id for entry in told.value.freed]
    assert lease.request.request_id in str(told.value)
    (line,) = map(json.loads, audit.read_text().splitlines())
    assert (how, lease.request.request_id, "it hangs") == (line["how"], line["request_id"], line["why"])
    assert [how] == [event.how for event in heard if isinstance(event, LocksForced)]
    lease.release()


@pytest.mark.parametrize("how", ["unlock", "reap", "drop lease"])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_whatever_may_have_been_freed_is_recorded_emitted_and_counted(
    opened: Open,
    tmp_path: Path,
    value: Callable[..., float],
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    how: str,
) -> None:
    audit = tmp_path / "audit.jsonl"
    operator = opened(commit__coord_audit__log=str(audit), commit__coord_metrics="prometheus")
    holder, calls, counted = opened(), Calls(fault), 0
    calls.of(operator.locks, monkeypatch)
    if fault.lasts:
        monkeypatch.setattr("commit_coord.locks.keeping.BRIEFLY", 0.0)  # no answer will come
    gone_process = replace(this_owner(), process="a process of this host that has ended")
    monkeypatch.setattr(operator.host, "is_dead", lambda process: process == gone_process.process)
    for number in itertools.count():
        with ExitStack() as held:
            with monkeypatch.context() as meanwhile:
                if how == "reap":
                    meanwhile.setattr(holder.host, "owner", lambda said="": gone_process)
                for table in ("sales", "costs"):
                    if how == "drop lease":
                        holder.leases.grab_lease([LeaseObject("shop", table)], 600)
                    else:
                        held.enter_context(holder.lock_operation({Resource(("shop", table, "day=1")): X}))
            ids = {entry.request_id for entry in holder.show_locks()}
            calls.fails, calls.made = number, 0
            with suppress(LockError, KeyboardInterrupt):
                if how == "unlock":
                    operator.unlock(shown=holder.show_locks())
                elif how == "reap":
                    operator.reap()
                else:
                    operator.leases.force_drop_lease()
            ended, calls.fails = calls.made <= number, None
            standing = {entry.request_id for entry in operator.show_locks()}
            lines = [json.loads(line) for line in (audit.read_text() if audit.exists() else "").splitlines()]
            audit.unlink(missing_ok=True)
            assert ids - standing <= {line["request_id"] for line in lines if line["how"] == how}
            assert not standing & {line["request_id"] for line in lines if line["outcome"] == "freed"}
            counted += len({line["request_id"] for line in lines})
            assert counted == value("locks_forced_total", how=how)
            for entry in holder.show_locks():
                holder.unlock(request_id=entry.request_id)
        if ended:
            assert ["freed"] * 2 == [line["outcome"] for line in lines]
            return


def test_many_requests_are_freed_after_one_listing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, holder = opened(), opened()
    leases = [holder.lock_operation({Resource(("shop", f"t{n}", "day=1")): X}) for n in range(5)]
    shown = [entry for lease in leases for entry in operator.unlock(request_id=lease.request.request_id, dry_run=True)]
    listings: list[object] = []
    look = SqlLockTable.look

    def counted(*given: Any) -> Sequence[LockEntry]:
        listings.append(given)
        return look(*given)

    monkeypatch.setattr(SqlLockTable, "look", counted)
    assert 10 == len(operator.unlock(shown=shown))
    assert 2 == len(listings), "what is there, and what is freed"
    for lease in leases:
        lease.release()


def test_a_lease_that_is_dropped_by_force_is_written_down(opened: Open, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    operator = opened(commit__coord_audit__log=str(audit))
    opened().leases.grab_lease([LeaseObject("shop", "sales", lease_type="x")], 600)
    assert [] == list(operator.reap()), "a lease is nobody's process"
    assert 1 == len(operator.leases.force_drop_lease())
    (line,) = map(json.loads, audit.read_text().splitlines())
    assert ("drop lease", ["X shop/sales"]) == (line["how"], line["locks"])


def test_an_audit_log_that_can_not_be_written_stops_nobody(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operator = opened(commit__coord_audit__log=str(tmp_path / "no" / "such" / "folder"))
    lease = opened().lock_operation({SALES: X})
    assert operator.unlock(resource=SALES)
    assert "the audit log can't be written" in caplog.text
    lease.release()


def test_a_reason_in_bytes_that_are_no_text_is_written_down(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks are free by then: an error would look as if they were not."""
    # The processes of pytest-xdist can't send each other a report with such a line.
    monkeypatch.setattr(logging.getLogger("commit_coord.audit"), "disabled", True)
    audit = tmp_path / "audit.jsonl"
    operator = opened(commit__coord_audit__log=str(audit))
    lease = opened().lock_operation({SALES: X})
    why = os.fsdecode(b"it \xff hung")
    assert operator.unlock(resource=SALES, why=why)
    (line,) = map(json.loads, audit.read_text().splitlines())
    assert why == line["why"]
    lease.release()


_NASTY = (
    "\nunlock by root@vm",
    "\r\n",
    "\x1b[2J\x1b]0;x\x07",
    "\x00\x7f\x85\x9b31m",
    "\u2028\u2029",
    "\u202egnp\u2066\u200b",
    "\U000e0001",
    "\udcff",
    "{'a': \"b\"}\\u001b",
)
"""Parts of a text that would begin a line, command a terminal, or change the order of letters."""


def filled(kind: Any, text: str) -> Any:
    """Return a value of *kind* each text of which contains *text*."""
    if kind is str:
        return f"a{text}z"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{field.name: filled(hints[field.name], text) for field in fields(kind)})
    if get_origin(kind) is tuple:
        return (filled(get_args(kind)[0], text),)
    return {int: 1, float: 1.0, bool: True}.get(kind)


_RECORDED: dict[type[Any], Callable[[AuditLog, Any], None]] = {
    LocksForced: AuditLog.record,
    PhaseChange: AuditLog.changed,
    AccessRefused: AuditLog.refused,
}
"""The events that the audit log writes down."""


@pytest.mark.parametrize(
    "formatter",
    [
        *(logging.Formatter(style) for style in ("%(message)s", "%(message)s %(audit)s", "%(name)s:%(message)s")),
        _OneLine(),
    ],
    ids=["the message", "with its facts", "with its logger", "of the command line"],
)
@pytest.mark.parametrize("nasty", _NASTY, ids=ascii)
@pytest.mark.parametrize("kind", _RECORDED, ids=lambda kind: kind.__name__)
def test_an_event_is_one_line_of_printable_letters_in_every_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Any], nasty: str, formatter: logging.Formatter
) -> None:
    """Whatever its texts are: names, reasons and addresses come from those who were refused."""
    if nasty == "\udcff" and kind is LocksForced:
        nasty = ""  # no name that can be locked contains it
    file, log = tmp_path / "audit.jsonl", logging.getLogger("commit_coord.audit")
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    handler.setFormatter(formatter)
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "propagate", False)
    event = filled(kind, nasty)
    _RECORDED[kind](AuditLog(str(file), catalog=f"c{nasty}", lock_manager="lease"), event)
    count = 2 if kind is LocksForced else 1  # a lock that was freed, and one that may have been
    for text in (heard.getvalue(), file.read_bytes().decode()):
        *lines, end = text.split("\n")
        assert (count, "") == (len(lines), end)
        assert all(map(str.isprintable, lines)), ascii(lines)
    for record in map(json.loads, file.read_text().splitlines()):
        assert (event.why, f"c{nasty}") == (record["why"], record["catalog"])


@pytest.mark.parametrize("nasty", _NASTY, ids=ascii)
def test_a_warning_of_a_command_is_one_line_of_printable_letters(nasty: str) -> None:
    """Also what names a table, or repeats the message of an error. A server's traceback begins no line of the log."""
    error = ValueError(f"no {nasty} here")
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "%s is odd", (nasty,), (ValueError, error, None))
    assert _OneLine().format(record).isprintable()
    message, *traceback = _Whole().format(record).split("\n")
    assert all(map(str.isprintable, [message, *traceback]))
    assert all(line.startswith("  ") for line in traceback)
    assert traceback


def test_the_audit_log_writes_down_every_event_that_names_a_person() -> None:
    """What is not in it, no test above judges."""
    named = {kind for kind in get_args(Event) if {"by", "client"} & {field.name for field in fields(kind)}}
    assert {*_RECORDED, CommitOverwritten} == named


# The document.


def test_the_document_lists_every_metric_and_span(opened: Open) -> None:
    opened(commit__coord_metrics="prometheus")
    listed = set(re.findall(r"^\| `(commit_coord[\w.]+)", DOCS.read_text(), re.MULTILINE))
    metrics = {metric.name for metric in REGISTRY.collect() if metric.name.startswith("commit_coord_")}
    metrics = {name for name in metrics if not name.startswith("commit_coord_rest_")}  # in docs/rest.md
    totals = {name.removesuffix("_total") for name in listed if "." not in name}
    assert metrics == totals
    assert {f"commit_coord.{span}" for span in ("commit", "acquire", "hold", "swap")} == {n for n in listed if "." in n}
