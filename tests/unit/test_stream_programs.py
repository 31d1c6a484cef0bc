"""Random lives of a stream that writes to several branches of one table; each branch gets each batch once.

Only Spark is replaced: the rows of a batch are a list of numbers. The table is a real one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files

import commit_coord
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.spark import streams

TABLE = ("db", "t")
SCHEMA = pa.schema([("id", pa.int64())])


class Rows:
    """What a batch gives to ``foreachBatch``."""

    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(getLocalProperty=lambda _: "query"))  # noqa: N815
    schema = None

    def __init__(self, *ids: int) -> None:
        self.ids = ids


class Life:
    """One stream, its table, and what must be in each branch.

    Args:
        catalog: Has the table.
        seed: Of all that is drawn.
        patch: Replaces Spark.
    """

    def __init__(self, catalog: Any, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.catalog, self.chance = catalog, random.Random(seed)
        self.run, self.number, self.story = 0, 0, [f"seed {seed}"]
        self.expected: dict[str, list[int]] = {"main": [0]}
        self.done: set[tuple[int, str]] = set()
        patch.setattr(streams, "write_table", self._write)
        patch.setattr(streams, "resolve", lambda *_: self.table)
        patch.setattr(streams, "planned_at", lambda _spark, _query, batch: f"t{batch}")
        patch.setattr(streams, "run_of", lambda *_: f"run {self.run}")

    @property
    def table(self) -> Any:
        return self.catalog.load_table(TABLE)

    def _write(self, rows: Rows, found: Any, *, table_properties: Any, **given: Any) -> None:
        files = [*_dataframe_to_data_files(found.metadata, pa.table({"id": [*rows.ids]}, schema=SCHEMA), found.io)]
        found.commit_files(files, properties=table_properties, **given)

    def batch(self) -> None:
        """Write a batch to some branches, in any order; the query may die after each, and begin the batch again."""
        branches = self.chance.sample([*self.expected], self.chance.randint(1, len(self.expected)))
        if is_older := self.chance.random() < 0.2:
            branches = ["main"]  # nor is a branch made: an older version's snapshot does not say for which one it is
        while True:
            dies = self.chance.random() < 0.3
            for branch in branches[: self.chance.randint(1, len(branches)) if dies else None]:
                self._one(branch, is_older and self.chance.random() < 0.7)
                if branch == "main" and not is_older and self.chance.random() < 0.3:
                    self._fork()
                if self.chance.random() < 0.2:
                    self._other_commit()
                    self._expire()
            self.check()
            if not dies:
                break
            self.story.append("dies")
            self.run += 1
        self.number += 1

    def _one(self, branch: str, by_older: bool) -> None:
        row = 100 * self.number + 10 + [*self.expected].index(branch)
        self.story.append(f"batch {self.number} to {branch}")
        if by_older:
            self._older(row)
        else:
            streams.foreach_batch(TABLE, branch=branch)(Rows(row), self.number)  # type: ignore[arg-type]
        if (self.number, branch) not in self.done:
            self.done.add((self.number, branch))
            self.expected[branch].append(row)

    def _older(self, row: int) -> None:
        """Write a batch as older versions do: they have one mark and one request id for all branches."""
        self.story.append("by an older version")
        table, key = self.table, "commit-coord.stream.query"
        request, mark = request_uuid(f"query/query/{self.number}"), table.properties.get(key)
        if table.find_commit(request) is None and (mark is None or int(mark.split()[0]) < self.number):
            marks = {key: f"{self.number} query t{self.number}"}
            self._write(Rows(row), table, table_properties=marks, request_id=request)

    def _fork(self) -> None:
        """Make a branch from the head of main; one that is there already is made anew."""
        branch = self.chance.choice(["audit", "quarantine"])
        if any(each == (self.number, branch) for each in self.done):
            return  # the rows of this batch would be gone with the branch that was there
        self.story.append(f"forks {branch}")
        if branch in self.expected:
            self.table.manage_snapshots().remove_branch(branch).commit()
        table = self.table
        table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, branch).commit()
        self.expected[branch] = [*self.expected["main"]]

    def _other_commit(self) -> None:
        row = 1_000_000 + len(self.story)
        self.story.append("another client appends")
        self.table.append(pa.table({"id": [row]}, schema=SCHEMA))
        self.expected["main"].append(row)

    def _expire(self) -> None:
        self.story.append("old snapshots expire")
        table = self.table
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        if old := [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in heads]:
            expiry: Any = table.maintenance.expire_snapshots()
            expiry.by_ids(old).commit()

    def between(self) -> None:
        """Do what people do to a table between two batches."""
        acts: list[Callable[[], None]] = [self._fork, self._other_commit, self._expire, lambda: None]
        self.chance.choice(acts)()

    def check(self) -> None:
        table = self.table
        for branch, expected in self.expected.items():
            head = table.metadata.snapshot_by_name(branch).snapshot_id
            found = table.scan(snapshot_id=head).to_arrow()["id"].to_pylist()
            assert sorted(expected) == sorted(found), (branch, self.story)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    found = commit_coord.load_catalog(
        "shop", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}", **{"lock-impl": "memory"}
    )
    with found:
        found.create_namespace("db")
        found.create_table(TABLE, SCHEMA).append(pa.table({"id": [0]}, schema=SCHEMA))
        yield found


@pytest.mark.parametrize(
    "seed", [*range(6, 16), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(16, 200))]
)
def test_each_branch_gets_each_batch_once(catalog: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(catalog, seed, monkeypatch)
    for _ in range(8):
        life.batch()
        life.between()
    life.check()
