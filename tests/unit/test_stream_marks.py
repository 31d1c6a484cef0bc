"""The mark that a stream leaves in the properties of its table: whose batch it is, and when it was planned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from commit_coord import CommitNotApplied
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.spark.streams import Batch

KEYS = {
    "a mark": "commit-coord.stream.of-branch.main/me",
    "a mark of an older version": "commit-coord.stream.me",
}


def table(mark: str, key: str) -> Any:
    """Return a table with *mark* whose commits have been forgotten."""
    metadata = SimpleNamespace(snapshot_by_name=lambda name: None)
    return SimpleNamespace(properties={key: mark}, find_commit=lambda request_id: None, metadata=metadata)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
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
def test_a_mark_says_whether_a_batch_has_landed(mark: str, expected: bool | str, key: str) -> None:
    batch = Batch("me", "q", 3, planned="t1")
    if isinstance(expected, bool):
        assert batch.done(table(mark, key)) is expected
        return
    with pytest.raises(CommitNotApplied, match=expected):
        batch.done(table(mark, key))


def snapshots(**parents: int | None) -> Any:
    """Return metadata with a branch of each name: its snapshot is the only one, and its number is given."""
    by_name = {name: SimpleNamespace(snapshot_id=number, parent_snapshot_id=None) for name, number in parents.items()}
    by_id = {each.snapshot_id: each for each in by_name.values()}
    return SimpleNamespace(snapshot_by_name=by_name.get, snapshot_by_id=by_id.get)


@pytest.mark.parametrize("branch, other", [("main", "audit"), ("audit", "main"), ("a/b", "a"), ("a", "a/b")])
def test_a_batch_that_landed_in_one_branch_has_not_landed_in_another(branch: str, other: str) -> None:
    here, there = (Batch("me", "q", 3, planned="t1", branch=each) for each in (branch, other))
    assert here.request_id != there.request_id
    assert not here.properties.keys() & there.properties.keys()
    found: Any = SimpleNamespace(
        properties=there.properties, find_commit=lambda request: request == there.request_id or None
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
