"""The mark that a stream leaves in the properties of its table: whose batch it is, and when it was planned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from commit_coord import CommitNotApplied
from commit_coord.spark.streams import Batch


def table(mark: str) -> Any:
    """Return a table with *mark* whose commits have been forgotten."""
    return SimpleNamespace(properties={"commit-coord.stream.me": mark}, find_commit=lambda request_id: None)


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
def test_a_mark_says_whether_a_batch_has_landed(mark: str, expected: bool | str) -> None:
    batch = Batch("me", "q", 3, planned="t1")
    if isinstance(expected, bool):
        assert batch.done(table(mark)) is expected
        return
    with pytest.raises(CommitNotApplied, match=expected):
        batch.done(table(mark))
