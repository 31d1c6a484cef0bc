"""Rows that another engine has deleted by a delete file stay deleted, whatever lands at the same time or later."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.types import LongType, StringType

from commit_coord import NOTHING
from commit_coord.errors import CommitConflict, StaleRead
from commit_coord.sql import Session
from commit_coord.table import CoordinatedTable, rewrite_here
from commit_coord.table.compaction import FileGroup
from commit_coord.table.data_files import data_files
from tests.catalog.kit import Kit, frame, ids, orphans, rows
from tests.catalog.row_deletes import add_equality_deletes, add_position_deletes
from tests.proof.rows.row_deletes import commit_row_deletes, of_positions

MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
DELETES: dict[str, Callable[[Any], None]] = {
    "by position": lambda table: add_position_deletes(table, [1]),
    "by value": lambda table: add_equality_deletes(table, [2]),
}


@pytest.mark.parametrize("how", DELETES)
def test_a_compaction_is_refused_when_rows_were_deleted_meanwhile(memory: Kit, how: str) -> None:
    """Its new files have them: what was written later is not reached by the delete."""
    table = memory.table(ids(1, 2, 3))
    add_position_deletes(table, [0])

    def overtaken(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
        new = rewrite_here(table, groups)
        DELETES[how](memory.again(table))
        return new

    with pytest.raises(CommitConflict, match="rows were deleted"):
        table.compact(rewrite=overtaken)

    seen = memory.again(table)
    assert ["append", "delete", "delete"] == [snapshot.summary.operation.value for snapshot in seen.snapshots()]
    assert set() == orphans(seen)
    assert [] == memory.held()


@pytest.mark.parametrize("partition", [float("nan"), -0.0, 0.5, None])
def test_rows_of_any_partition_stay_deleted(memory: Kit, partition: float | None) -> None:
    """The partition NaN is one partition, although NaN is not equal to NaN."""
    data = pa.table({"x": pa.array([partition] * 3, pa.float64()), "id": pa.array([1, 2, 3])})
    table = memory.table(schema=data.schema)
    with table.update_spec() as spec:
        spec.add_identity("x")
    table.append(data)
    add_position_deletes(table, [1])
    assert [1, 3] == memory.again(table).scan().to_arrow()["id"].to_pylist()
    table.compact()
    assert [1, 3] == memory.again(table).scan().to_arrow()["id"].to_pylist()


@pytest.mark.parametrize("level", ["serializable", "snapshot"])
@pytest.mark.parametrize("how", DELETES)
def test_rows_that_were_computed_before_others_deleted_some_are_refused(memory: Kit, how: str, level: str) -> None:
    table = memory.table(ids(1, 2, 3), properties={"write.update.isolation-level": level})
    DELETES[how](memory.again(table))
    with pytest.raises(StaleRead, match="may have been removed"):
        table.overwrite(frame((2, "computed")), "id = 2")
    assert 2 == len(memory.again(table).snapshots())


def by_update(table: Any) -> None:
    with table.transaction() as tx:
        tx.update_rows("id > 0", lambda found: found.set_column(1, "s", pa.array(["new"] * len(found))))


def by_merging_appends(table: Any) -> None:
    for number in range(4, 8):
        table.append(ids(number))


CALLS: dict[str, tuple[Callable[[Any], Any], list[tuple[int, str]]]] = {
    "append": (lambda table: table.append(ids(4)), [(1, "1"), (3, "3"), (4, "4")]),
    "merging appends": (by_merging_appends, [(n, str(n)) for n in (1, 3, 4, 5, 6, 7)]),
    "delete": (lambda table: table.delete("id = 1"), [(3, "3")]),
    "overwrite": (lambda table: table.overwrite(ids(4), "id = 1", reads=NOTHING), [(3, "3"), (4, "4")]),
    "upsert": (lambda table: table.upsert(frame((3, "new")), ["id"]), [(1, "1"), (3, "new")]),
    "upsert of the deleted row": (
        lambda table: table.upsert(frame((2, "new")), ["id"]),
        [(1, "1"), (2, "new"), (3, "3")],
    ),
    "update": (by_update, [(1, "new"), (3, "new")]),
    "compact": (lambda table: table.compact(), [(1, "1"), (3, "3")]),
}


@pytest.mark.parametrize("call", CALLS)
def test_deleted_rows_stay_deleted_whatever_a_stale_handle_commits(memory: Kit, call: str) -> None:
    """It is carried out on the table as it is, with the deletes, also where it writes rows of their file anew."""
    change, expected = CALLS[call]
    table = memory.table(ids(1, 2, 3), properties=MERGING)
    add_position_deletes(memory.again(table), [1])
    change(table)
    seen = memory.stock.load_table(table.name())
    assert expected == rows(seen)
    for manifest in seen.current_snapshot().manifests(seen.io):
        of_data = manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(seen.io):
            assert of_data == (entry.data_file.content == DataFileContent.DATA), "other engines read them by their kind"


@pytest.mark.parametrize(
    "text, said, left",
    [
        ("UPDATE {} SET s = 'new'", "2 rows of {} updated", [(1, "new"), (3, "new")]),
        ("DELETE FROM {}", "2 rows deleted from {}", []),
        ("INSERT OVERWRITE TABLE {0} SELECT id, s FROM {0}", "2 rows replaced the rows of {0}", [(1, "1"), (3, "3")]),
    ],
)
def test_statements_neither_see_nor_count_deleted_rows(memory: Kit, text: str, said: str, left: list[Any]) -> None:
    table = memory.table(ids(1, 2, 3))
    add_position_deletes(table, [1])
    name = ".".join(table.name())
    (line,) = Session(memory.catalog).run(text.format(name)).lines
    assert line.startswith(said.format(name))
    assert left == rows(memory.stock.load_table(table.name()))


def bounds(number: int) -> dict[int, bytes]:
    """Return bounds, by column, of the row of :func:`ids` with *number*."""
    return {1: to_bytes(LongType(), number), 2: to_bytes(StringType(), str(number))}


BOUNDS = bounds(2)
OF_WHOLE_ROWS: dict[str, Callable[[Any], None]] = {
    "by position": lambda table: add_position_deletes(table, [1], BOUNDS),
    "by value": lambda table: add_equality_deletes(table, [2], BOUNDS),
}


def by_dynamic_overwrite(table: Any) -> None:
    with table.update_spec() as update:
        update.add_identity("s")
    written = list(data_files(table.metadata, ids(1), table.io))
    table.commit_files(written, mode="dynamic", reads=NOTHING)


REWRITES: dict[str, tuple[Callable[[Any], Any], list[tuple[int, str]]]] = {
    "delete": (lambda table: table.delete("id = 1"), [(3, "3")]),
    "overwrite": (lambda table: table.overwrite(ids(4), "id = 1", reads=NOTHING), [(3, "3"), (4, "4")]),
    "upsert": (lambda table: table.upsert(frame((3, "new")), ["id"]), [(1, "1"), (3, "new")]),
    "update": (
        lambda table: Session(table.catalog).run(_of("UPDATE {} SET s = 'n' WHERE id = 1", table)),
        [(1, "n"), (3, "3")],
    ),
    "SQL's delete": (lambda table: Session(table.catalog).run(_of("DELETE FROM {} WHERE id = 1", table)), [(3, "3")]),
    "compact": (lambda table: table.compact(), [(1, "1"), (3, "3")]),
    "dynamic overwrite": (by_dynamic_overwrite, [(1, "1"), (3, "3")]),
}


def _of(text: str, table: Any) -> str:
    return text.format(".".join(table.name()))


@pytest.mark.parametrize("how", OF_WHOLE_ROWS)
@pytest.mark.parametrize("call", REWRITES)
def test_a_delete_of_rows_that_the_filter_rules_out_applies_to_the_rest_of_their_file(
    memory: Kit, call: str, how: str
) -> None:
    """Else the rest is written anew without it, and its row is back."""
    change, expected = REWRITES[call]
    table = memory.table(ids(1, 2, 3))
    OF_WHOLE_ROWS[how](memory.again(table))
    table.refresh()
    before = len(table.snapshots())
    if how == "by value":
        with pytest.raises(Exception, match="equality deletes"):
            change(table)
        assert before == len(memory.again(table).snapshots())
        return
    change(table)
    assert expected == rows(memory.stock.load_table(table.name()))


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("seed", range(20))
def test_random_changes_of_a_file_with_random_deletes_leave_the_other_rows(memory: Kit, seed: int) -> None:
    """Deletes of some rows, of none, of all, once or twice, with bounds; then a change by a filter of either column."""
    dice, numbers = random.Random(seed), list(range(1, 7))
    table = memory.table(ids(*numbers))
    stays = set(numbers)
    for _ in range(dice.randint(1, 2)):
        gone = dice.sample(numbers, dice.randint(1, 6))
        lower, upper = bounds(min(gone)), bounds(max(gone))
        other = memory.again(table)
        add_position_deletes(other, [n - 1 for n in gone], lower, upper)
        stays -= set(gone)
        if not list(other.scan().plan_files()):
            break
    pivot = dice.choice(numbers)
    sign, column = dice.choice(["=", "<", ">="]), dice.choice(["id", "s"])
    matches = {n for n in numbers if {"=": n == pivot, "<": n < pivot, ">=": n >= pivot}[sign]}
    text = f"{column} {sign} {pivot if column == 'id' else repr(str(pivot))}"
    table.refresh()
    if dice.random() < 0.5:
        table.delete(text)
        expected = sorted((n, str(n)) for n in stays - matches)
    else:
        table.overwrite(ids(9), text, reads=NOTHING)
        expected = sorted([(n, str(n)) for n in stays - matches] + [(9, "9")])
    assert expected == sorted(rows(memory.stock.load_table(table.name())))


REMOVALS: dict[str, Callable[[Any, str], Any]] = {
    "delete": lambda tx, text: tx.delete(text),
    "overwrite": lambda tx, text: tx.overwrite(ids(99), text, reads=NOTHING),
    "two deletes": lambda tx, text: (tx.delete(text), tx.delete("id = 5")),
}


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("removal", REMOVALS)
def test_rows_that_are_deleted_while_a_removal_is_staged_stay_deleted(memory: Kit, removal: str, seed: int) -> None:
    """It removes some files as a whole, and writes the rest of another one anew, without the rows deleted meanwhile."""
    dice, files = random.Random(f"{removal} {seed}"), [range(1, 2), range(2, 5), range(5, 9)]
    table = memory.table(*(ids(*numbers) for numbers in files))
    pivot, sign = dice.randint(1, 9), dice.choice(["<", "<=", ">="])
    with memory.again(table).transaction() as tx:
        REMOVALS[removal](tx, f"id {sign} {pivot}")
        gone = dice.sample(range(2, 9), dice.randint(1, 4))
        delete_by_position(memory, table, gone)
    removed = {n for n in range(1, 9) if {"<": n < pivot, "<=": n <= pivot, ">=": n >= pivot}[sign]}
    removed |= {5} if removal == "two deletes" else set()
    stays = set(range(1, 9)) - removed - set(gone) | ({99} if removal == "overwrite" else set())
    assert sorted((n, str(n)) for n in stays) == sorted(rows(memory.stock.load_table(table.name())))


def delete_by_position(memory: Kit, table: Any, numbers: Sequence[int]) -> None:
    """Delete the rows with *numbers* as ids, as another engine does that writes the bounds of the deleted rows."""
    other = memory.stock.load_table(table.name())
    deletes = []
    for task in other.scan().plan_files():
        there = pq.read_table(task.file.file_path.removeprefix("file://"))["id"].to_pylist()
        if gone := sorted(set(there) & set(numbers)):
            lower, upper = (
                {1: to_bytes(LongType(), n), 2: to_bytes(StringType(), str(n))} for n in (gone[0], gone[-1])
            )
            places = [(task.file.file_path, there.index(n)) for n in gone]
            deletes.append(of_positions(task.file, places, lower, upper))
    commit_row_deletes(other, deletes)


def test_a_removal_that_meets_deletes_by_value_is_refused(memory: Kit) -> None:
    """PyIceberg can't apply them to the file whose rest is written anew."""
    table = memory.table(ids(1, 2, 3))
    with pytest.raises(CommitConflict), memory.again(table).transaction() as tx:
        tx.delete("id = 1")
        add_equality_deletes(memory.again(table), [2], BOUNDS)
    assert 2 == len(memory.again(table).snapshots())
