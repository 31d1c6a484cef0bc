"""Random histories that another writer overwrites in part, and what a repair makes of them.

On the lost part and on the head, clients append, add files, overwrite, delete, roll back, make and remove branches and
tags, upgrade, and rename columns. Their clocks differ. Afterwards every branch must hold the rows that it held before
the repair and those of the appends that it reports, each in the columns that it was written to. Everything else that
was lost must be listed.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.types import StringType

from commit_coord.catalog.repair import LostCommit, Repair
from commit_coord.errors import CommitCoordError, CommitNotApplied, PartlyRepaired
from tests.catalog.kit import NO_MATCH, Kit, kit, local
from tests.catalog.test_overwritten import put
from tests.limits import some

pytestmark = pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")

CHANGES = (
    *("append", "append", "append of an unmodified writer", "append of an unmodified writer", "append on a branch"),
    *(
        "add_files",
        "add_files",
        "add_files",
        "add_files",
        "overwrite",
        "delete",
        "delete of an unmodified writer",
        "compact",
        "rollback",
        "rollback and append",
    ),
    *("create branch", "create tag", "remove branch", "append with a tag and a branch", "branch and append"),
    *("upgrade", "property", "rename", "rename and add"),
)
ON_THE_HEAD = (*CHANGES, *["add again"] * 8, "version 3")
WHILE_A_USER_IS_ASKED = ("add again", "add again", "rename", "property", "remove branch", "append", "version 3")

Row = tuple[Any, ...]


@dataclass
class Step:
    """A commit, as its writer knows it."""

    change: str
    location: str
    branch: str | None = None
    rows: set[int] = field(default_factory=set)
    """What it appended, if it appended."""

    @property
    def adds_only(self) -> bool:
        return self.change.split()[0] in ("append", "add_files") and "with" not in self.change


class Program:
    """One table and its writers, all drawn from *seed*."""

    def __init__(self, made: Kit, seed: int) -> None:
        self.made, self.draw = made, random.Random(seed)
        version = self.draw.choice(["1", "2", "2", "2"])
        self.table = made.table(properties={"format-version": version})
        self.numbers = itertools.count(1)
        self.added: dict[str, set[int]] = {}
        """The files that were added as they were, and their rows."""
        self.ever: dict[str, set[int]] = {}
        """What each branch has shown since the loss."""
        self.told: list[str] = []

    # What clients see.

    def seen(self, *, catalog: Any = None) -> dict[str, list[Row]]:
        """Return the rows of each branch, their columns by their ids."""
        table = (catalog or self.made.catalog).load_table(self.table.name())
        found = {}
        for name, ref in table.metadata.refs.items():
            if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
                scan = table.scan() if name == "main" else table.scan().use_ref(name)
                columns = {column.name: column.field_id for column in scan.projection().fields}
                shown = [{columns[k]: v for k, v in row.items()} for row in scan.to_arrow().to_pylist()]
                found[name] = sorted((tuple(sorted(row.items())) for row in shown), key=repr)
                assert [] == [row for row in shown if row[2] != str(row[1]) or any(list(row.values())[2:])]
        return found

    @staticmethod
    def numbers_in(rows: list[Row]) -> list[int]:
        return sorted(dict(row)[1] for row in rows)

    # What clients do.

    def step(self, change: str) -> Step | None:
        """Do *change*; return it if the table was changed."""
        table = self.made.again(self.table)
        before = table.metadata_location
        step = Step(change, before)
        ahead = self.draw.choice([-20, 0, 0, 20])
        real = time.time
        with patch("time.time", lambda: real() + ahead):
            try:
                self._do(change, table, step)
            except (CommitCoordError, CommitFailedException, ValueError):
                step.rows = set()  # refused, as it may be: what landed is seen in the table
        step.location = self.made.again(self.table).metadata_location
        if step.location == before:
            return None
        self.told.append(change)
        return step

    def _rows(self, table: Any, step: Step, branch: str = "main") -> pa.Table:
        number = next(self.numbers)
        step.branch, step.rows = branch, {*step.rows, number}
        named = {1: number, 2: str(number)}
        return pa.Table.from_pylist(
            [{column.name: named.get(column.field_id) for column in table.schema().fields}],
            schema=table.schema().as_arrow(),
        )

    def _branches(self, table: Any) -> list[str]:
        kept = [n for n, ref in table.metadata.refs.items() if ref.snapshot_ref_type is SnapshotRefType.BRANCH]
        return sorted({*kept} - {"main"})

    def _do(self, change: str, table: Any, step: Step) -> None:
        stock = self.made.stock.load_table(table.name())
        head = table.current_snapshot()
        past = [one.snapshot_id for one in table.snapshots() if one != head]
        branches = self._branches(table)
        name = self.draw.choice(["b", "c"])
        present = self.numbers_in(self.seen().get("main", []))
        victim = self.draw.choice(present or [0])
        match change:
            case "append":
                table.append(self._rows(table, step))
            case "append of an unmodified writer":
                stock.append(self._rows(table, step))
            case "append on a branch":
                if branches:
                    branch = self.draw.choice(branches)
                    table.append(self._rows(table, step, branch), branch=branch)
            case "add_files":
                self._add_files(table, step)
            case "add again":
                named = table.schema().find_column_name(2)
                fit = [path for path in self.added if named in pq.read_schema(local(path)).names]
                lost = sorted(fit, key=lambda path: max(self.added[path]))[-3:]
                known = self.draw.sample(lost, k=min(len(lost), self.draw.choice([1, 1, 2])))
                step.branch, step.rows = "main", {number for path in known for number in self.added[path]}
                table.add_files(known)
            case "overwrite" if present:
                table.overwrite(self._rows(table, step), f"id = {victim}")
            case "delete":
                table.delete(f"id = {victim}")
            case "delete of an unmodified writer":
                stock.delete(f"id = {victim}")
            case "compact":
                table.compact()
            case "rollback" if past:
                table.manage_snapshots().set_current_snapshot(snapshot_id=self.draw.choice(past)).commit()
            case "rollback and append" if past:
                with table.transaction() as tx:
                    ManageSnapshots(tx).set_current_snapshot(snapshot_id=self.draw.choice(past)).commit()
                    tx.append(self._rows(table, step))
            case "create branch" if past:
                table.manage_snapshots().create_branch(self.draw.choice(past), name).commit()
            case "create tag" if past:
                table.manage_snapshots().create_tag(self.draw.choice(past), self.draw.choice(["v", "b"])).commit()
            case "remove branch" if branches:
                table.manage_snapshots().remove_branch(self.draw.choice(branches)).commit()
            case "append with a tag and a branch":
                with table.transaction() as tx:
                    tx.append(self._rows(table, step))
                    snapshot_id = tx.table_metadata.current_snapshot_id
                    ManageSnapshots(tx).create_tag(snapshot_id, "w").create_branch(snapshot_id, name).commit()
            case "branch and append" if head is not None:
                with table.transaction() as tx:
                    ManageSnapshots(tx).create_branch(head.snapshot_id, name).commit()
                    tx.append(self._rows(table, step, name), branch=name)
            case "upgrade":
                with table.transaction() as tx:
                    tx.upgrade_table_version(2)
            case "version 3":
                update = UpgradeFormatVersionUpdate(format_version=3)
                self.made.catalog.commit_request(table.name(), (), (update,))
            case "property":
                with table.transaction() as tx:
                    tx.set_properties({"owner": str(next(self.numbers))})
            case "rename" | "rename and add":
                with table.update_schema() as update:
                    update.rename_column(table.schema().find_column_name(2), f"s{next(self.numbers)}")
                if change == "rename and add":
                    # What was the name of another column once.
                    with self.made.again(table).update_schema() as update:
                        update.add_column("s", StringType())

    def _add_files(self, table: Any, step: Step) -> None:
        paths = []
        for _ in range(self.draw.choice([1, 2])):
            one = Step("", "")
            found = self._rows(table, one)
            path = Path(local(table.location())) / "data" / f"{uuid.uuid4()}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            plain = pa.schema([pa.field(column.name, column.type) for column in found.schema])
            pq.write_table(found.cast(plain), path)
            self.added[f"file://{path}"] = one.rows
            step.branch, step.rows = "main", step.rows | one.rows
            paths.append(f"file://{path}")
        table.add_files(paths)

    # What is lost, and what comes back.

    def head_steps(self, changes: Sequence[str], at_most: int) -> None:
        for _ in range(self.draw.randint(0, at_most)):
            self.step(self.draw.choice(changes))
            self.note()

    def note(self) -> dict[str, list[Row]]:
        """Return what each branch shows, and note it."""
        seen = self.seen()
        for name, found in seen.items():
            self.ever.setdefault(name, set()).update(self.numbers_in(found))
        return seen

    def run(self) -> tuple[int, int]:
        """Lose the end of a history, repair it, and return how many commits were lost and how many came back."""
        begun = self.draw.choice([["append"], ["append", "add_files"]])
        for change in (*begun, *self.draw.choices(CHANGES, k=self.draw.randint(0, 2))):
            self.step(change)
        history = [self.made.again(self.table).metadata_location]
        steps = []
        for change in self.draw.choices(CHANGES, k=self.draw.randint(1, 6)):
            if (step := self.step(change)) is not None:
                steps.append(step)
                history.append(step.location)
        if not steps:
            return 0, 0
        shown = self.seen()
        kept = self.draw.randrange(len(steps))
        lost = steps[kept:]
        put(self.made, self.table, history[kept])
        self.told.append("LOST")
        self.step(self.draw.choice(["append", "append of an unmodified writer", "property"]))
        self.note()
        self.head_steps(ON_THE_HEAD, 3)
        since = [lost[-1].location]
        found = self.made.catalog.find_lost(self.table.name(), since=since)
        self.check_listed(found, lost)
        asked = self.draw.random() < 0.4
        if asked:
            self.head_steps(WHILE_A_USER_IS_ASKED, 2)
        restored = self.repaired(found, lost, shown, may_be_refused=asked)
        found = self.made.catalog.find_lost(self.table.name(), since=since)
        self.check_listed(found, lost)
        restored += self.repaired(found, lost, shown, may_be_refused=False)
        assert [] == self.made.catalog.find_lost(self.table.name(), since=since).restorable
        if not found.by_hand:
            left = self.made.catalog.forget_lost(self.table.name(), dry_run=True)
            assert () == left
        return len(lost), restored

    def repaired(self, found: Repair, lost: list[Step], shown: dict[str, list[Row]], *, may_be_refused: bool) -> int:
        """Repair; check the rows of each branch; return how many commits were brought back."""
        before, ever = self.note(), {name: set(rows) for name, rows in self.ever.items()}
        refs = {*self.made.again(self.table).metadata.refs}
        restored: list[LostCommit] = []
        try:
            self.made.catalog.repair(found, on_restored=restored.append)
        except (CommitNotApplied, PartlyRepaired):
            assert may_be_refused
        expected = {name: self.numbers_in(found) for name, found in before.items()}
        for commit in restored:
            (step,) = (step for step in lost if step.location == commit.location)
            assert step.branch is not None
            assert step.rows <= set(self.numbers_in(shown[step.branch])), "what was taken away later stays away"
            assert not step.rows & ever[step.branch], "what was done again is not done twice"
            expected[step.branch] = sorted([*expected[step.branch], *step.rows])
        after = self.note()
        assert expected == {name: self.numbers_in(rows) for name, rows in after.items()}
        assert refs == {*self.made.again(self.table).metadata.refs}
        assert after == self.seen(catalog=self.made.stock)
        return len(restored)

    def check_listed(self, found: Repair, lost: list[Step]) -> None:
        """Check that nothing that was lost is passed over."""
        for step in lost:
            entries = [one for one in found.commits if one.location == step.location]
            told = (step.change, [(one.operation, one.restorable, one.restored, one.advice) for one in entries])
            assert entries, told
            if not step.adds_only:
                assert [one for one in entries if one.advice or one.restored], told
            for one in entries:
                if one.restored and step.rows:
                    assert step.rows <= self.ever[step.branch or "main"], told


@pytest.fixture(scope="module")
def made() -> Iterator[Kit]:
    with kit("memory") as made:
        yield made


@pytest.mark.parametrize("seed", some(range(8), range(8, 40)))
def test_a_repair_brings_back_what_it_reports_and_lists_the_rest(made: Kit, seed: int) -> None:
    for number in range(6):
        program = Program(made, 6 * seed + number)
        try:
            program.run()
        except Exception as error:
            error.add_note(f"seed {6 * seed + number}: {', '.join(program.told)}")
            raise
