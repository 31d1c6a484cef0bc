"""Whatever fails once the pointer is moved, no caller takes it for a commit that did not land.

Each function of ours that runs after the swap fails once: the commit returns, or says that its outcome is unknown; its
row is there once, and with it every file.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table import Table

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.coordinator import planning
from commit_coord.errors import CommitNotApplied, CommitStateUnknown
from tests.catalog.kit import SCHEMA, files_in, files_of, ids, row_ids

Call = tuple[str, int]
"""The name of a function, and how often it was called before in the same commit."""

OURS = str(Path(commit_coord.__file__).parent)


GUARDS = {
    "coordinator/driving.py:in_doubt",
    "table/committing.py:Committing._landed",
    "table/committing.py:Committing.show",
    "table/committing.py:Committing.begin_anew",
    "table/table.py:CoordinatedTable._holding",
}
"""What catches the failures of the others, and what calls it first; the last one only gives locks back."""


class Injected(Exception):
    """Comes where nobody expects it."""


@contextmanager
def watching(called: Callable[[Call], None]) -> Iterator[None]:
    """Tell *called* of each function of ours as it begins in this thread; what that raises, the function raises."""
    seen: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            name = f"{Path(code.co_filename).relative_to(OURS)}:{code.co_qualname}"
            seen[name] += 1
            called((name, seen[name]))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.fixture(params=["sqlite", pytest.param("hms", marks=pytest.mark.hms)])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Table]]:
    """Makes tables with one row in them."""
    uri = f"sqlite:///{tmp_path}/c.db" if request.param == "sqlite" else request.getfixturevalue("hms").uri
    warehouse = tmp_path.joinpath("warehouse").as_uri()
    namespace = f"swaps_{uuid4().hex}"
    with commit_coord.load_catalog(f"c{namespace}", uri=f"coord+{uri}", warehouse=warehouse) as catalog:
        catalog.create_namespace(namespace)
        numbers = itertools.count()

        def make() -> Table:
            table = catalog.create_table((namespace, f"t{next(numbers)}"), SCHEMA)
            table.append(ids(1))
            return table

        yield make


@contextmanager
def another(table: Table) -> Iterator[CoordinatedCatalog]:
    """Yield another client of the catalog of *table*."""
    with commit_coord.load_catalog(table.catalog.name, **table.catalog.properties) as catalog:
        assert isinstance(catalog, CoordinatedCatalog)
        yield catalog


def after_the_swap(table: Table) -> list[Call]:
    """Return the calls that follow the swap of an append to *table*."""
    found: list[Call] = []
    before = table.metadata_location
    with another(table) as looking:

        def called(call: Call) -> None:
            if found or looking.coordinator.store.pointer(table.name()) != before:
                found.append(call)

        with watching(called):
            table.append(ids(2))
    return found


def test_no_failure_after_the_swap_looks_like_a_commit_that_did_not_land(made: Callable[[], Table]) -> None:
    found = [call for call in after_the_swap(made()) if call[0] not in GUARDS]
    assert len(found) > 100
    calls = found[:: 1 + len(found) // 60]
    wrong, landed = [], 0
    for failing in calls:
        table = made()
        failed: list[Call] = []

        def called(call: Call, failing: Call = failing, failed: list[Call] = failed) -> None:
            if call == failing and not failed:
                failed.append(call)
                raise Injected(call)

        said: BaseException | None = None
        with watching(called):
            try:
                table.append(ids(2))
            except Exception as error:  # noqa: BLE001
                said = error
        with another(table) as seen:
            there = row_ids(seen.load_table(table.name()))
        landed += there == [1, 2] and bool(failed)
        # Where others take turns, a call may come earlier than the first time: before the swap.
        right = isinstance(said, CommitStateUnknown | None) if there == [1, 2] else there == [1] and said is not None
        if not right:
            wrong.append((failing, said, there))
    assert [] == wrong
    assert landed > 0.8 * len(calls) > 30


class TimeLimit(Exception):
    """The error of a signal handler, as job queues have one."""


INTERRUPTS = [KeyboardInterrupt, TimeLimit, TimeoutError]


@contextmanager
def interrupted(table: Table, at: int, error: type[BaseException]) -> Iterator[list[str]]:
    """Raise *error* at one line of ``table/``, the *at*-th after the swap; yield the lines so far."""
    lines: list[str] = []
    before, folder = table.metadata_location, f"{OURS}/table/"
    with another(table) as looking:

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if not frame.f_code.co_filename.startswith(folder):
                return None
            if event == "line" and (lines or looking.coordinator.store.pointer(table.name()) != before):
                lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
                if len(lines) == at:
                    raise error(lines[-1])
            return trace

        traced = sys.gettrace()
        sys.settrace(trace)
        try:
            yield lines
        finally:
            sys.settrace(traced)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeLimit])
def test_no_interrupt_after_a_compaction_landed_takes_its_files(
    made: Callable[[], Table], error: type[BaseException]
) -> None:
    wrong = []
    for at in itertools.count(1):
        table = made()
        table.append(ids(2))
        compacted: Any = table
        with interrupted(table, at, error) as seen, suppress(error, CommitStateUnknown):
            compacted.compact()
        if len(seen) < at:
            break
        with another(table) as looking:
            head = looking.load_table(table.name())
        if not files_of(head) <= files_in(head.location()):
            wrong.append(seen[-1])
    assert [] == wrong
    assert len(seen) > 20


PROTOCOL = tuple(f"{OURS}/{name}" for name in ("coordinator/", "protocol/", "catalog/", "doubt.py"))
CHANGES: dict[str, tuple[Callable[[Table], object], list[int]]] = {
    "append": (lambda table: table.append(ids(2)), [1, 2]),
    "overwrite": (lambda table: table.overwrite(ids(2)), [2]),
}


@contextmanager
def interrupted_at_line(at: int, error: type[BaseException]) -> Iterator[list[int]]:
    """Raise *error* at the *at*-th line of what commits; yield the numbers of the lines so far."""
    lines: list[int] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(PROTOCOL) or name.endswith("driving.py"):
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == at:
                raise error(f"{name}:{frame.f_lineno}")
        return trace

    traced = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(traced)


@pytest.mark.parametrize("error", INTERRUPTS)
@pytest.mark.parametrize("change", CHANGES)
def test_no_interrupt_at_any_line_of_a_commit_misjudges_it(
    made: Callable[[], Table], change: str, error: type[BaseException]
) -> None:
    """What was acknowledged is there, what was refused is not; and whatever is there can be read."""
    act, landed = CHANGES[change]
    with interrupted_at_line(0, error) as lines:
        act(made())
    assert len(lines) > 500
    wrong, ends = [], Counter[type]()
    for at in range(1, len(lines), len(lines) // 40):
        table, said = made(), None
        try:
            with interrupted_at_line(at, error):
                act(table)
        except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001
            said = raised
        with another(table) as looking:
            head = looking.load_table(table.name())
            there, is_whole = row_ids(head), files_of(head) <= files_in(head.location())
        is_right = said is None or there == [1] or not isinstance(said, CommitNotApplied)
        if there not in ([1], landed) or (said is None and there == [1]) or not (is_right and is_whole):
            wrong.append((at, said, there, is_whole))
        ends[type(said)] += 1
    assert [] == wrong
    assert len(ends) > 1


@pytest.mark.parametrize("asked", ["enabled", " true", "True", "", "1"])
def test_a_property_that_is_neither_true_nor_false_fails_no_commit_that_has_landed(
    made: Callable[[], Table], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg Java takes it for false and never complains; so another client may have set it."""
    table = made()
    with monkeypatch.context() as another_client:
        another_client.setattr(planning, "refuse_unreadable", lambda *_: None)
        table.transaction().set_properties(
            {"write.metadata.delete-after-commit.enabled": asked, "write.metadata.previous-versions-max": "1"}
        ).commit_transaction()
    for number in (2, 3, 4):
        table.append(ids(number))
    assert [1, 2, 3, 4] == row_ids(table)
