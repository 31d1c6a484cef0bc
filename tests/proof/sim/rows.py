"""Runs in which real tables write real rows: what each commit did to them is held against the model of rows.

Processes call tables of ours, and run statements, as ``tests/proof/rows`` draws them. Their data files, manifests and
metadata lie in the simulated file store. When all is over, each change of the pointer must be what its requests mean,
in a serial order: a request says what its client had seen, the change before says what it landed on.
"""

from __future__ import annotations

import itertools
import os
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyiceberg.table.metadata
import pyiceberg.table.snapshots
import pyiceberg.table.update
import pyiceberg.table.update.snapshot
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import parse_transform
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.catalog.committing import CommittingCatalog
from commit_coord.catalog.reading import ReadingCatalog
from commit_coord.coordinator import Coordinator
from commit_coord.coordinator.request_ids import named_in
from commit_coord.errors import CommitStateUnknown
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.locks.base import WaitPolicy
from commit_coord.testing.history import Answer, check_changes, check_files
from commit_coord.testing.table_files.metadata import faults
from commit_coord.testing.table_files.observed import Files, Observed
from commit_coord.testing.table_files.state import State
from commit_coord.testing.table_files.values import complete
from tests.proof.rows.differences import difference
from tests.proof.rows.doing import NAMESPACE, Doing
from tests.proof.rows.draw.dice import Dice, rows
from tests.proof.rows.draw.evolutions import View
from tests.proof.rows.draw.steps import Mix, mix, single
from tests.proof.rows.draw.tables import table
from tests.proof.rows.findings import in_words
from tests.proof.rows.model.meaning import meaning
from tests.proof.rows.model.operations import (
    STATEMENTS,
    AddFiles,
    Append,
    CommitFiles,
    Expire,
    ExpireOne,
    Orphans,
    Recreate,
    Refresh,
    Single,
    TableStatement,
    WriteFiles,
)
from tests.proof.rows.program import Program
from tests.proof.sim.plan import Job, Plan
from tests.proof.sim.run import Inline, Outcome, Run, hash_of
from tests.proof.sim.services import Client, short
from tests.proof.sim.services import Files as StoredFiles
from tests.proof.sim.world import NoAnswer, Process, Thread, Unreachable

TABLE = (NAMESPACE, "t")
_NOT_DRAWN = AddFiles | CommitFiles | Orphans | Recreate | TableStatement | WriteFiles
"""They need a disk or another table; or they name a snapshot by its id, and the model by its place in the history."""
_FINDS = Refresh | Expire | ExpireOne
"""They may find nothing to do."""


def simulate_rows(plan: Plan) -> Outcome:
    """Run *plan*. The same plan gives the same outcome."""
    with redirect_stdout(StringIO()), warnings.catch_warnings():  # PyIceberg prints and warns of what does not fit
        warnings.simplefilter("ignore")
        with RowsRun.of(plan) as run:
            return run.outcome()


class Stored(Files):
    """The simulated files, to be read when all is over."""

    def __init__(self, stored: StoredFiles) -> None:
        super().__init__()
        self._stored = stored

    def read(self, location: str) -> bytes:
        """Return what a file holds, or held when it was deleted."""
        return self._stored.content.get(location) or self._stored.deleted[location]

    def exists(self, location: str) -> bool:
        """Return whether there is such a file; tables may have their old metadata files deleted."""
        return location in self._stored.content or location.endswith(".metadata.json")

    def size(self, location: str) -> int:
        """Return the length of a file in bytes."""
        return len(self.read(location))


@dataclass
class Asked:
    """One call.

    Args:
        operation: What was called.
        seen: The table as its client saw it.
        begins: How many changes the pointer had seen by then.
        ends: How many when it was answered; None: it never was.
        answer: What its client was told.
        raw: The error by which it was refused, if that was not raised on purpose.
    """

    operation: Single
    seen: State
    begins: int
    ends: int | None = None
    answer: Answer = Answer.UNKNOWN
    raw: str = ""


class SimulatedCatalog(CommittingCatalog, ReadingCatalog):
    """One process's catalog: what loads, locks and commits is the product's."""

    name = "sim"

    def __init__(self, coordinator: Coordinator, operation_locks: str) -> None:
        self.coordinator, self.locks, self.host = coordinator, coordinator.locks, coordinator.host
        settings: Any = SimpleNamespace(
            operation_locks=operation_locks,
            lock_acquire_timeout_ms=60_000,
            lock_database_parents=True,
            lock_max_partitions=1000,
        )
        self.settings = settings

    def supports_server_side_planning(self) -> bool:
        """Return False: files say all."""
        return False

    def _policy(self) -> WaitPolicy:
        return WaitPolicy()

    def load_namespace_properties(self, namespace: str) -> dict[str, str]:
        """Return none: every namespace is there."""
        return {}


@dataclass
class Drawn:
    """How a run's table is, and which operations it draws."""

    table: Program
    mix: Mix

    @classmethod
    def of(cls, seed: int) -> Self:
        """Draw them."""
        dice = Dice(seed)
        return cls(table(dice), mix(dice))


class RowsRun(Run):
    """A run whose writers call tables."""

    def __init__(self, plan: Plan) -> None:
        self.drawn = Drawn.of(plan.seed)
        self.asked: dict[str, Asked] = {}
        self.requests: dict[str, str] = {}
        """By request id, the mark of the call that sent it."""
        self._marks: dict[Thread, str] = {}
        """What each thread does."""
        self._states: dict[str, State] = {}
        super().__init__(plan)
        self.stored = Stored(self.files)
        self._first = self.pointers.location

    def created(self) -> TableMetadata:
        """Return the table as it is at first."""
        made = self.drawn.table
        version = min(made.version, 2)  # later ones can only be read
        fields = [
            PartitionField(p.source, 1000 + i, parse_transform(p.transform), p.name) for i, p in enumerate(made.spec)
        ]
        metadata = new_table_metadata(
            schema=Schema(*made.columns),
            partition_spec=PartitionSpec(*fields),
            sort_order=UNSORTED_SORT_ORDER,
            location="sim://t",
            properties={"format-version": str(version), **made.properties},
            table_uuid=uuid.UUID(int=1),
        )
        return fast_metadata.as_fast(metadata).model_copy(update={"last_updated_ms": 1_600_000_000_000})

    def replaced(self) -> Iterable[tuple[Any, str, Any]]:
        """Return what is replaced: PyIceberg's new ids, its clock and its threads."""

        def wall() -> float:
            return self.world.expected()[0].process.clock.wall_ms() / 1000

        def now() -> datetime:
            return datetime.fromtimestamp(wall(), UTC)

        ids = SimpleNamespace(uuid4=self.world.host.new_id, UUID=uuid.UUID)
        for module in (pyiceberg.table, pyiceberg.table.metadata, pyiceberg.table.update.snapshot):
            yield module, "uuid", ids
        yield ExecutorFactory, "_instance", Inline()
        yield ExecutorFactory, "_instance_pid", os.getpid()
        yield pyiceberg.table.snapshots, "time", SimpleNamespace(time=wall)
        yield pyiceberg.table.update, "datetime", SimpleNamespace(now=now)

    # What writers do.

    def work(self, process: Process, coordinator: Coordinator, jobs: list[tuple[int, Job]]) -> None:
        """Call a table object for each of *jobs*, the same one until the process ends."""
        catalog: Any = SimulatedCatalog(coordinator, self.drawn.table.locks)
        doing = Doing(Path(), self.stored)
        table: Table | None = None
        while jobs:
            number, _ = jobs.pop(0)
            mark = f"{process.name}.{number}"
            try:
                table = table or catalog.load_table(TABLE)
                self._call(process, catalog, doing, table, mark)
            except (OSError, NoAnswer, Unreachable):
                process.note(f"{mark}: the table can't be read")

    def _call(self, process: Process, catalog: Any, doing: Doing, table: Table, mark: str) -> None:
        seen = self._seen(table)
        operation = self._draw(seen, f"{mark} {table.metadata_location}")
        asked = self.asked[mark] = Asked(operation, seen, len(self.pointers.changes))
        process.note(f"{mark} on {short(table.metadata_location)}: {operation}")
        self._marks[self.world.expected()[0]] = mark
        why = ""
        try:
            doing(operation, catalog.load_table(TABLE) if isinstance(operation, STATEMENTS) else table)
            asked.answer = Answer.ACKNOWLEDGED
        except KeyboardInterrupt:
            why = "interrupted"
        except CommitStateUnknown as error:
            why = str(error)
            self.look_for_bug(error)
        except Exception as error:  # noqa: BLE001 - each but the one above says that nothing landed
            asked.answer, why = Answer.REFUSED, f"{type(error).__name__}: {error}"
            if not (in_words(error) or isinstance(error, OSError | NoAnswer | Unreachable)):
                asked.raw = why
        asked.ends = len(self.pointers.changes)
        process.note(f"{mark}: {asked.answer} {why}")

    def _seen(self, table: Table) -> State:
        """Return what *table* shows: after a commit that shared a swap, the snapshot that is its own."""
        state, shown = self._state(table.metadata_location), Observed(table.metadata_location, self.stored)
        current = table.metadata.current_snapshot_id
        if current is None or current == shown.raw.get("current-snapshot-id"):
            return state
        return replace(
            state.with_rows(shown.rows(current)),
            history=tuple(itertools.islice(shown.history(current), len(state.history))),
            files=tuple(
                (f.manifest["partition_spec_id"], tuple(self.stored.data(f.path))) for f in shown.live(current)
            ),
        )

    def _draw(self, state: State, mark: str) -> Single:
        """Return an operation that makes sense on a table in *state*."""
        dice = Dice(hash_of(f"{self.plan.seed} {mark}"))
        view = View(head=state, base=lambda _: state, slots={})
        if len(state.files) < 2 and dice.chance(50):
            return Append("a", rows(dice, state, 1))
        while True:
            operation = single(dice, view, "a", self.drawn.mix)
            if not isinstance(operation, _NOT_DRAWN):
                return operation

    def _coordinator(self, process: Process, believed: Any) -> tuple[Client, Coordinator]:
        client, coordinator = super()._coordinator(process, believed)
        real = coordinator.commit

        def commit(attempts: Sequence[Attempt], **options: Any) -> Any:
            mark = self._marks[self.world.expected()[0]]
            self.requests.update({attempt.request_id: mark for attempt in attempts})
            return real(attempts, **options)

        coordinator.commit = commit  # type: ignore[method-assign]
        return client, coordinator

    # The proof.

    def _state(self, location: str) -> State:
        if location not in self._states:
            self._states[location] = Observed(location, self.stored).state
        return self._states[location]

    def look_at_table(self) -> list[str]:
        """Return what does not hold: of the files, and of each change by the model."""
        there, head, changes = self.files.content.__contains__, self.pointers.location, self.pointers.changes
        log = [entry["metadata-file"] for entry in self.stored.table(head).get("metadata-log", [])]
        broken = [*check_files([head, *log], there), *check_changes(changes, [change.location for change in changes])]
        landed: dict[str, int] = {}
        for number, change in enumerate(changes):
            marks = self._marks_in(change.before, change.location)
            broken += [f"NoneTwice: {mark} landed twice" for mark in marks if mark in landed]
            landed |= dict.fromkeys(marks, number)
            broken += [f"Rows: {why}" for why in self._judged(change.before, change.location, marks)]
        return broken + list(self._answers(landed))

    def _marks_in(self, before: str, location: str) -> list[str]:
        """Return the calls that landed with *location*, by the ids that it carries."""
        old = Observed(before, self.stored).snapshots
        new = [s for key, s in Observed(location, self.stored).snapshots.items() if key not in old]
        ids = [one for snapshot in new for one in snapshot["summary"].get(REQUEST_ID, "").split(",")]
        ids.append(named_in(location) or "")
        return list(dict.fromkeys(self.requests[one] for one in ids if one in self.requests))

    def _judged(self, before: str, location: str, marks: Sequence[str]) -> Iterator[str]:
        """Yield why no order of the calls *marks* makes of the table *before* what it is at *location*."""
        now = Observed(location, self.stored)
        yield from (f"{short(location)}: {fault}" for fault in faults(now, Observed(before, self.stored)))
        if not marks:
            yield f"{short(location)} is nobody's"
            return
        head, wrong = self._state(before), list[str]()
        if not _whole(head):
            return
        for order in itertools.permutations(marks):
            for made in self._in_order(head, order):
                if (found := difference(made, self._state(location), head)) is None:
                    return
                wrong.append(found)
        said = min(wrong, key=len, default="it must not land")
        yield f"{short(location)}, {', '.join(str(self.asked[mark].operation) for mark in marks)}: {said}"

    def _in_order(self, head: State, marks: Sequence[str]) -> list[State]:
        made = [head]
        for mark in marks:
            one = self.asked[mark]
            made = [
                state
                for before in made
                for base in self._bases(one)
                for state in meaning(one.operation, base, before, {}).states
            ]
        return made

    def _bases(self, one: Asked) -> Iterator[State]:
        """Yield what the client of *one* may have seen; a statement reads the table itself, at some moment."""
        yield one.seen
        if isinstance(one.operation, STATEMENTS):
            yield from self._while(one)

    def _while(self, one: Asked) -> Iterator[State]:
        """Yield the table as it was while *one* was asked."""
        changes = self.pointers.changes
        first = changes[one.begins - 1].location if one.begins else self._first
        for location in (first, *(change.location for change in changes[one.begins : one.ends])):
            yield self._state(location)

    def _answers(self, landed: Mapping[str, int]) -> Iterator[str]:
        for mark, one in self.asked.items():
            if one.raw and all(map(_whole, (one.seen, *self._while(one)))):
                yield f"Words: {mark} was refused without any: {one.operation}: {one.raw}"
            if mark in landed:
                if one.answer is Answer.REFUSED:
                    yield f"RefusedNever: {mark} is there: {one.operation}"
            elif one.answer is Answer.ACKNOWLEDGED and not isinstance(one.operation, _FINDS):
                nothing = (
                    not _whole(head)
                    or any(
                        difference(made, head, head) is None
                        for base in self._bases(one)
                        for made in meaning(one.operation, base, head, {}).states
                    )
                    for head in self._while(one)
                )
                if not any(nothing):
                    yield f"AcknowledgedStays: {mark} is not there: {one.operation}"

    def outcome(self) -> Outcome:
        """Prove the table."""
        answers = [one.answer for one in self.asked.values()]
        return replace(
            super().outcome(),
            acknowledged=answers.count(Answer.ACKNOWLEDGED),
            refused=answers.count(Answer.REFUSED),
            unknown=answers.count(Answer.UNKNOWN),
        )


def _whole(state: State) -> bool:
    """Return whether no row lacks what is required. No filter is sure of one that does, and nobody can write it anew.

    So it is where somebody requires a value while others write NULL.
    """
    return all(complete(row, state.fields) for rows in state.rows.values() for row in rows)
