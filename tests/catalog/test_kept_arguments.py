"""A call means what its arguments were when it was made, also if they are changed later and the call is repeated."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from commit_coord.errors import CommitConflict
from commit_coord.table import arguments
from commit_coord.table.data_files import data_files
from commit_coord.table.transaction import CoordinatedTransaction
from tests.catalog.kit import Kit, ids, orphans, row_ids, rows

COLUMNS = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", LongType()))
BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
OF_ANOTHER = (1000, 1000)


class Rows:
    """One row in an Arrow table whose memory is NumPy's."""

    def __init__(self, number: int) -> None:
        self.memory = np.array([number], "int64")
        self.table = pa.table({"id": self.memory, "v": self.memory})


@dataclass(frozen=True)
class Case:
    """A call, and the arguments of its first and second time."""

    call: Callable[..., Any]
    arguments: Callable[[Any, int], dict[str, Any]]


def a_file(table: Any, number: int) -> str:
    path = f"{table.location()}/data/given-{number}.parquet"
    with table.io.new_output(path).create(overwrite=True) as stream:
        pq.write_table(Rows(number).table, stream)
    return path


def a_plain_file(table: Any) -> str:
    path = f"{table.location()}/data/given.parquet"
    with table.io.new_output(path).create(overwrite=True) as stream:
        pq.write_table(ids(7), stream)
    return path


def a_data_file(table: Any, number: int) -> Any:
    return next(iter(data_files(table.metadata, Rows(number).table, table.io)))


def noted(number: int) -> dict[str, Any]:
    return {"n": str(number)}


def no_more(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "v", pa.array([-1] * rows.num_rows))


CALLS: dict[str, Case] = {
    "append": Case(CoordinatedTransaction.append, lambda _, n: {"df": Rows(10 + n), "snapshot_properties": noted(n)}),
    "overwrite": Case(
        CoordinatedTransaction.overwrite,
        lambda _, n: {"df": Rows(10 + n), "overwrite_filter": f"id = {n}", "snapshot_properties": noted(n)},
    ),
    "dynamic_partition_overwrite": Case(
        CoordinatedTransaction.dynamic_partition_overwrite,
        lambda _, n: {"df": Rows(n), "snapshot_properties": noted(n)},
    ),
    "delete": Case(
        CoordinatedTransaction.delete, lambda _, n: {"delete_filter": f"id = {n}", "snapshot_properties": noted(n)}
    ),
    "upsert": Case(
        CoordinatedTransaction.upsert,
        lambda _, n: {"df": Rows(10 + n), "join_cols": [["v"], ["id"]][n], "snapshot_properties": noted(n)},
    ),
    "update_rows": Case(
        lambda tx, row_filter, snapshot_properties: tx.update_rows(row_filter, no_more, snapshot_properties),
        lambda _, n: {"row_filter": f"id = {n}", "snapshot_properties": noted(n)},
    ),
    "add_files": Case(
        CoordinatedTransaction.add_files,
        lambda table, n: {"file_paths": [a_file(table, 10 + n)], "snapshot_properties": noted(n)},
    ),
    "set_properties": Case(
        CoordinatedTransaction.set_properties, lambda _, n: {"properties": {f"p{n}": str(n), "deep": [n]}}
    ),
    "files": Case(
        lambda tx, data_files, snapshot_properties: tx.files.append(data_files, snapshot_properties, "main"),
        lambda table, n: {"data_files": [a_data_file(table, 10 + n)], "snapshot_properties": noted(n)},
    ),
    "update_schema": Case(
        lambda tx, path: tx.update_schema().add_column(path, LongType()).commit(), lambda _, n: {"path": [f"c{n}"]}
    ),
}
NOT_REPEATED = {"update_snapshot", "partitions_of"}
"""What is built by hand, and what stages nothing."""


def used_again(old: Any, new: Any) -> None:
    """Give *old*, an argument, the content of *new*."""
    if isinstance(old, Rows):
        old.memory[:] = new.memory
    elif isinstance(old, dict):
        old.clear()
        old.update(new)
    elif isinstance(old, list):
        old[:] = new


def call(case: Case, tx: Any, given: dict[str, Any]) -> None:
    case.call(tx, **{name: value.table if isinstance(value, Rows) else value for name, value in given.items()})


def shown(table: Any) -> Any:
    properties = {name: value for name, value in table.properties.items() if name[0] in "pd"}
    notes = sorted(snapshot.summary["n"] or "" for snapshot in table.metadata.snapshots)
    return [row for row in rows(table) if row[:2] != OF_ANOTHER], properties, notes, table.schema().column_names


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_arguments_that_are_used_again_change_no_call(memory: Kit, name: str, race: bool) -> None:
    case = CALLS[name]
    old = pa.concat_tables([Rows(0).table, Rows(1).table])
    mine, expected = (memory.table(old, schema=COLUMNS, partition_spec=BY_ID) for _ in range(2))
    other = memory.again(mine)
    with expected.transaction() as tx:
        for number in (0, 1):
            call(case, tx, case.arguments(expected, number))
    with mine.transaction() as tx:
        tx.draft.update(reads=True)  # so all calls are made again
        given = case.arguments(mine, 0)
        call(case, tx, given)
        for argument, value in case.arguments(mine, 1).items():
            used_again(given[argument], value)
            given[argument] = value if isinstance(value, str) else given[argument]
        call(case, tx, given)
        for value in given.values():
            used_again(value, Rows(7) if isinstance(value, Rows) else type(value)())
        if race:
            other.append(Rows(OF_ANOTHER[0]).table)
    found, wanted = shown(memory.again(mine)), shown(memory.again(expected))
    assert (found[0], found[1], found[3]) == (wanted[0], wanted[1], wanted[3])
    assert [note for note in found[2] if note] == [note for note in wanted[2] if note]


def test_each_call_that_takes_what_can_change_is_among_them() -> None:
    takes = {
        name
        for name, method in inspect.getmembers(CoordinatedTransaction, inspect.isfunction)
        if not name.startswith("_")
        and any(part in str(method.__annotations__) for part in ("dict[", "list[", "pa.Table", "Sequence["))
    }
    assert takes - CALLS.keys() == NOT_REPEATED


def test_a_builder_of_snapshots_keeps_its_properties(memory: Kit) -> None:
    table = memory.table(schema=COLUMNS)
    with table.transaction() as tx:
        given = noted(1)
        builder = tx.update_snapshot(given)
        given["n"] = "2"
        with builder.fast_append() as producer:
            producer.append_data_file(a_data_file(table, 1))
    assert table.current_snapshot().summary["n"] == "1"


READ_ONCE: dict[str, Callable[[dict[str, int]], Any]] = {
    "generator": lambda paths: (path for path in list(paths)),
    "iterator": lambda paths: iter(list(paths)),
    "view": dict.keys,
    "deque": deque,
    "list of a class of its own": type("Paths", (list,), {}),
}


@pytest.mark.parametrize("inside", [False, True], ids=["one call", "a transaction"])
@pytest.mark.parametrize("kind", READ_ONCE)
def test_what_can_be_read_once_is_read_once_for_all_tries(memory: Kit, kind: str, inside: bool) -> None:
    """The first try reads it, and loses a race."""
    table = memory.table(ids(1))
    other = memory.again(table)
    paths = {a_plain_file(table): 1}
    given = READ_ONCE[kind](paths)
    with table.transaction() as tx:
        tx.calls.only_one = not inside
        tx.add_files(given)
        other.append(ids(2))
        if inside:
            paths.clear()
            tx.set_properties({"p": "1"})
    assert [1, 2, 7] == row_ids(memory.again(table))


def test_a_call_of_the_table_copies_no_row(memory: Kit) -> None:
    """The commit follows at once, so nobody can change the rows before."""
    table, given = memory.table(), ids(*range(1000))
    with patch.object(arguments, "_copied", Mock(wraps=arguments._copied)) as copied:
        table.append(given)
        table.overwrite(given, "id < 5")
        assert copied.call_count == 0
        with table.transaction() as tx:
            tx.append(given)
        assert copied.call_count == 1


@pytest.mark.parametrize("race", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_plan_reads_a_stream_again_only_if_it_made_the_stream(memory: Kit, inside: bool, race: bool) -> None:
    table = memory.table(ids(1))
    other, made = memory.again(table), ids(5).to_reader()

    def plan(tx: Any) -> None:
        tx.append(ids(5).to_reader() if inside else made)

    def run() -> None:
        with table.transaction() as tx:
            tx.perform(plan)
            if race:
                other.append(ids(2))

    if race and not inside:
        with pytest.raises(CommitConflict, match="make it in the plan"):
            run()
        assert row_ids(memory.again(table)) == [1, 2]
    else:
        run()
        assert row_ids(memory.again(table)) == ([1, 2, 5] if race else [1, 5])
    assert orphans(memory.again(table)) == set()
