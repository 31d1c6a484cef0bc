"""The mark that a stream leaves in the properties of its table: whose batch it is, and when it was planned."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.table.refs import SnapshotRefType

from commit_coord import CommitNotApplied
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.spark.streams import Batch, _once

KEYS = {
    "a mark": ("audit", "commit-coord.stream.of-branch.audit/me"),
    "a mark of an older version": ("main", "commit-coord.stream.me"),
    "a mark of an older version for any branch": ("audit", "commit-coord.stream.me"),
}


def table(mark: str, key: str) -> Any:
    """Return a table with *mark* whose commits have been forgotten."""
    metadata = SimpleNamespace(snapshot_by_name=lambda name: None, refs={})
    return SimpleNamespace(properties={key: mark}, find_commit=lambda request_id: None, metadata=metadata)


@pytest.mark.parametrize("branch, key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize(
    "mark, expected",
    [
        ("3 q t1", True),
        ("3 q", True),  # of a version that did not note the time
        ("2 q t0", False),
        ("2 q", False),
        ("2", False),
        ("3 q t0", "older than the table"),
        ("4 q t2", "older than the table"),
        ("3 other t1", "another checkpoint"),
        ("3 other", "another checkpoint"),
        ("2 other", "another checkpoint"),
        ("4 other t1", "another checkpoint"),
    ],
)
def test_a_mark_says_whether_a_batch_has_landed(mark: str, expected: bool | str, branch: str, key: str) -> None:
    batch = Batch("me", "q", 3, planned="t1", branch=branch)
    if isinstance(expected, bool):
        assert batch.done(table(mark, key)) is expected
        return
    with pytest.raises(CommitNotApplied, match=expected):
        batch.done(table(mark, key))


def snapshots(**parents: int | None) -> Any:
    """Return metadata with a branch of each name: its snapshot is the only one, and its number is given.

    A name that begins with ``tag`` is that of a tag.
    """
    by_name = {
        name: SimpleNamespace(snapshot_id=number, parent_snapshot_id=None, summary=None)
        for name, number in parents.items()
    }
    by_id = {each.snapshot_id: each for each in by_name.values()}
    kinds = {name: SnapshotRefType.TAG if name.startswith("tag") else SnapshotRefType.BRANCH for name in parents}
    refs = {name: SimpleNamespace(snapshot_ref_type=kind) for name, kind in kinds.items()}
    return SimpleNamespace(snapshot_by_name=by_name.get, snapshot_by_id=by_id.get, refs=refs)


@pytest.mark.parametrize("branch, other", [("main", "audit"), ("audit", "main"), ("a/b", "a"), ("a", "a/b")])
def test_a_batch_that_landed_in_one_branch_has_not_landed_in_another(branch: str, other: str) -> None:
    here, there = (Batch("me", "q", 3, planned="t1", branch=each) for each in (branch, other))
    assert here.request_id != there.request_id
    assert not here.properties.keys() & there.properties.keys()
    found: Any = SimpleNamespace(
        properties=there.properties,
        find_commit=lambda request: SimpleNamespace(snapshot_ids=(7,)) if request == there.request_id else None,
        metadata=snapshots(**{other: 7, branch: 8}),
    )
    assert there.done(found)
    assert not here.done(found)


@pytest.mark.parametrize("branch, done", [("main", True), ("audit", False), ("new", False)])
def test_a_batch_of_an_older_version_is_in_the_branch_that_has_its_snapshot(branch: str, done: bool) -> None:
    """Its mark and its request id said nothing of the branch."""
    table: Any = SimpleNamespace(
        properties={"commit-coord.stream.me": "3 q t1"},
        find_commit=lambda request: SimpleNamespace(snapshot_ids=(7,)) if request == request_uuid("me/q/3") else None,
        metadata=snapshots(main=7, audit=8),
    )
    assert done is Batch("me", "q", 3, planned="t1", branch=branch).done(table)
    assert not Batch("me", "q", 4, planned="t2", branch=branch).done(table)


def test_a_batch_of_an_older_version_whose_snapshot_is_gone_has_landed() -> None:
    """It must not land twice."""
    table: Any = SimpleNamespace(
        properties={"commit-coord.stream.me": "3 q t1"},
        find_commit=lambda request: SimpleNamespace(snapshot_ids=(1,)) if request == request_uuid("me/q/3") else None,
        metadata=snapshots(main=7, audit=8),
    )
    assert Batch("me", "q", 3, planned="t1", branch="audit").done(table)


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_a_batch_of_an_older_version_that_was_rolled_back_does_not_come_back(branch: str) -> None:
    """Its snapshot is in no branch any more, but the table still has it, and a tag may."""
    table: Any = SimpleNamespace(
        properties={"commit-coord.stream.me": "3 q t1"},
        find_commit=lambda request: SimpleNamespace(snapshot_ids=(1,)) if request == request_uuid("me/q/3") else None,
        metadata=snapshots(main=7, audit=8, tagged=1),
    )
    assert Batch("me", "q", 3, planned="t1", branch=branch).done(table)


class Versions:
    """A table that versions of this package write to in turn, each with one batch in one snapshot of *branch*."""

    def __init__(self, branch: str) -> None:
        self.branch = branch
        self.properties: dict[str, str] = {}
        self.commits: dict[str, Any] = {}
        self.metadata: Any = None
        self.written: list[int] = []
        self._snapshots: dict[int, Any] = {}

    def find_commit(self, request: str) -> Any:
        return self.commits.get(request)

    def older(self, number: int) -> None:
        """Write a batch as the older versions do: they have one key and one request id for all branches."""
        mark, request = self.properties.get("commit-coord.stream.me"), request_uuid(f"me/q/{number}")
        if request not in self.commits and (mark is None or int(mark.split()[0]) < number):
            self._write(number, request, {"commit-coord.stream.me": f"{number} q t{number}"})

    def newer(self, number: int) -> None:
        batch = Batch("me", "q", number, planned=f"t{number}", branch=self.branch)
        if not batch.done(self):  # type: ignore[arg-type]
            self._write(number, batch.request_id, batch.properties)

    def _write(self, number: int, request: str, properties: dict[str, str]) -> None:
        number_before = len(self.written) - 1
        snapshot = SimpleNamespace(snapshot_id=number_before + 1, parent_snapshot_id=number_before, summary=None)
        self._snapshots[snapshot.snapshot_id] = snapshot
        self.written.append(number)
        self.commits[request] = SimpleNamespace(snapshot_ids=(snapshot.snapshot_id,))
        self.properties |= properties
        self.metadata = SimpleNamespace(
            snapshot_by_name=lambda name: snapshot if name == self.branch else None,
            snapshot_by_id=self._snapshots.get,
            refs={self.branch: SimpleNamespace(snapshot_ref_type=SnapshotRefType.BRANCH)},
        )


TURNS = ["".join(turns) for turns in product("on", repeat=4)]


@pytest.mark.parametrize("turns", TURNS)
def test_versions_that_alternate_write_each_batch_of_main_once(turns: str) -> None:
    """Each version goes on with the next batch, after a repeat of the last one of the version before."""
    table = Versions("main")
    for number, turn in enumerate(turns):
        write = table.older if turn == "o" else table.newer
        for batch in (number - 1, number, number) if number else (number,):
            write(batch)
    assert table.written == [*range(len(turns))]


def test_versions_that_write_a_batch_of_main_at_once_send_one_request() -> None:
    """An older instance may still be running."""
    assert Batch("me", "q", 3, planned="t1").request_id == request_uuid("me/q/3")


@pytest.mark.parametrize("turns", TURNS)
def test_a_newer_version_repeats_no_batch_that_an_older_one_wrote_to_a_branch(turns: str) -> None:
    table = Versions("audit")
    for number, turn in enumerate(turns):
        (table.older if turn == "o" else table.newer)(number)
        table.newer(number)
    assert table.written == [*range(len(turns))]


class Rows:
    """A DataFrame: each object has rows of its own."""


def written(where: str, df: Any, **arguments: Any) -> None:
    with _once(where, ("run", 3), df, arguments, table="db.t", branch="main", batch=3):
        pass


def test_a_second_call_with_the_same_rows_is_a_repeat_and_one_with_others_is_refused() -> None:
    """The function of a user may repeat all that it does for a batch."""
    where, df = uuid4().hex, Rows()
    written(where, df)
    written(where, df)
    with pytest.raises(CommitNotApplied, match="distinguished from a repeat.*table='db.t', branch='main', batch='3'"):
        written(where, Rows())
    with pytest.raises(CommitNotApplied, match="distinguished"):
        written(where, df, mode="overwrite")
    with pytest.raises(OSError, match="no space"), _once(where, ("run", 3), df, {}):  # type: ignore[arg-type]
        raise OSError("no space left on device")
    with pytest.raises(CommitNotApplied):
        written(where, Rows())  # the first call has landed, whatever became of its repeat
