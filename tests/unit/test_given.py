"""Sequence numbers and row ids are given once, whatever snapshots say and in whatever order they come."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate, UpgradeFormatVersionUpdate

from commit_coord.iceberg import metadata as fast_metadata
from tests.unit.test_fast_metadata import parsed


def added(
    number: int, *, parent: int | None = None, sequence: int | None, first: int | None = None, rows: int | None = None
) -> AddSnapshotUpdate:
    """Return the update that adds a snapshot."""
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=sequence,
        timestamp_ms=1_800_000_000_000,
        manifest_list="l",
        summary=Summary(Operation.APPEND),
        schema_id=0,
        first_row_id=first,
        added_rows=rows,
    )
    return AddSnapshotUpdate(snapshot=snapshot)


@pytest.fixture
def third() -> Any:
    """A table of version 3 that has given no row id."""
    return fast_metadata.apply_updates(parsed(4), (UpgradeFormatVersionUpdate(format_version=3),))


@pytest.mark.parametrize("numbers", [(2,), (4,), (None,), (0,), (9, 2), (2, 9, 3), (None, 1)])
def test_the_last_sequence_number_is_the_highest_that_was_given(numbers: tuple[int | None, ...]) -> None:
    updates = [added(10 + at, sequence=number) for at, number in enumerate(numbers)]
    made = fast_metadata.apply_updates(parsed(4), updates)
    assert max(4, *(number or 0 for number in numbers)) == fast_metadata.sequence_number(made)
    alone = fast_metadata.apply_updates(parsed(4), [updates[0], RemoveSnapshotsUpdate(snapshot_ids=[1]), *updates[1:]])
    assert fast_metadata.sequence_number(made) == fast_metadata.sequence_number(alone)


def test_a_table_of_version_1_counts_no_snapshots() -> None:
    made = fast_metadata.apply_updates(parsed(2, 1), [added(10, parent=2, sequence=None)])
    assert 0 == (fast_metadata.sequence_number(made) or 0)


@pytest.mark.parametrize("first, rows", [(None, 4), (0, None), (None, None), (0, -1)])
def test_a_snapshot_of_version_3_says_which_row_ids_it_takes(third: Any, first: int | None, rows: int | None) -> None:
    fits = added(10, sequence=5, first=0, rows=3)
    for updates in (
        [added(11, sequence=6, first=first, rows=rows)],
        [added(11, sequence=5, first=first, rows=rows), added(12, sequence=6, first=0, rows=10)],
        [fits, added(11, sequence=6, first=first if first is None else 3, rows=rows)],
    ):
        with pytest.raises(ValueError, match=r"[Cc]annot add (a )?snapshot"):
            fast_metadata.apply_updates(third, updates)
    made: Any = fast_metadata.apply_updates(third, [fits])
    assert 3 == made.next_row_id


@pytest.mark.parametrize("seed", range(20))
def test_no_row_id_is_given_twice(third: Any, seed: int) -> None:
    """Snapshots leave gaps, overlap, and come several in one commit; what is refused takes no id."""
    chance, taken, landed = random.Random(seed), list[range](), 0
    table: Any = third
    for round_number in range(30):
        updates, wanted = [], list[range]()
        for at in range(chance.randint(1, 3)):
            end = wanted[-1].stop if wanted and chance.random() < 0.6 else table.next_row_id
            first, rows = max(0, end + chance.choice([0, 0, 0, 3, -2])), chance.choice([0, 1, 5])
            wanted.append(range(first, first + rows))
            sequence = fast_metadata.sequence_number(table) + 1 + at
            updates.append(added(100 + round_number * 10 + at, sequence=sequence, first=first, rows=rows))
        before = table.next_row_id
        try:
            table = fast_metadata.apply_updates(table, updates)
        except ValueError:
            continue
        landed += 1
        taken += wanted
        assert table.next_row_id >= max(before, *(rows.stop for rows in wanted))
    ids = [row for rows in taken for row in rows]
    assert landed > 5
    assert len(ids) == len(set(ids))
