"""Compaction: its locks last as long as it does, no other commit is lost, and without them nothing is published."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from commit_coord.errors import CommitLockFailed, CommitNotApplied, StatementError
from commit_coord.model import LockScope, Resource
from commit_coord.sql import Session
from commit_coord.table import CoordinatedTable, rewrite_here
from commit_coord.table.compaction import FileGroup
from tests.catalog.kit import EVERY_LOCK_MANAGER, Kit, frame, ids, kit, kit_of, orphans, row_ids, rows

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))


@pytest.fixture(params=EVERY_LOCK_MANAGER)
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog with each of the lock managers."""
    with kit_of(request) as made:
        yield made


def with_small_files(made: Kit) -> Any:
    """Return a table with three small files in s=a and two in s=b."""
    table = made.table(partition_spec=BY_S)
    for number in range(3):
        table.append(frame((number, "a"), *([(10 + number, "b")] if number else [])))
    return table


def held(made: Kit) -> list[str]:
    """Return the operation locks that another client sees, without the database."""
    other = made.open()
    found = other.locks.locks(scope=LockScope.OPERATION)
    other.close()
    return sorted(f"{entry.mode.letter} {'/'.join(entry.resource.path[2:])}" for entry in found)


@pytest.mark.parametrize("partition, locks, files", [({"S": "a"}, ["S ", "X s=a"], "3 to 1"), ({}, ["X "], "5 to 2")])
def test_files_are_put_together_under_locks_that_last(
    made: Kit, partition: dict[str, Any], locks: list[str], files: str
) -> None:
    table, seen = with_small_files(made), []
    before = rows(table)

    def rewrite(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
        seen.append(held(made))
        new = rewrite_here(table, groups)
        seen.append(held(made))
        return new

    done = table.compact(partition, rewrite=rewrite)
    assert (files, [locks, locks]) == (f"{done.before} to {done.after}", seen)
    assert before == rows(made.again(table))
    snapshot = table.current_snapshot()
    assert "replace" == snapshot.summary.operation.value
    assert set() == orphans(table)
    assert (0, 0) == ((again := table.compact(partition)).before, again.after), "there is nothing left to do"
    assert snapshot == made.again(table).current_snapshot()


@pytest.mark.parametrize("how", ["call", "statement"])
def test_a_compaction_that_lost_its_lease_never_publishes(made: Kit, how: str) -> None:
    """Its locks are freed by force while it writes. Nobody else commits, so the swap alone would let it through."""
    table = with_small_files(made)
    before = made.again(table).metadata_location
    new: list[DataFile] = []

    def broken(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
        new.extend(rewrite_here(table, groups))
        other = made.open()
        assert other.unlock(resource=Resource.table(table.name(), "s=a"))
        other.close()
        return new

    with pytest.raises(CommitLockFailed):
        if how == "call":
            table.compact({"s": "a"}, rewrite=broken)
        else:
            name = ".".join(table.name())
            Session(made.catalog, rewrite=broken).run(f"ALTER TABLE {name} PARTITION (s='a') CONCATENATE")
    assert 1 == len(new)
    assert before == made.again(table).metadata_location
    assert set() == orphans(table)
    assert 3 == table.refresh().compact({"s": "a"}).before, "the next one finds everything as it was"


def test_a_compaction_whose_rows_are_gone_is_refused() -> None:
    """Its lease is broken and another client overwrites its partition: its files are not the table's any more."""
    with kit("lease") as made:
        table = with_small_files(made)

        def overtaken(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
            new = rewrite_here(table, groups)
            other = made.open()
            other.unlock(resource=Resource.table(table.name(), "s=a"))
            other.load_table(table.name()).overwrite(frame((99, "a")), "s = 'a'")
            other.close()
            return new

        with pytest.raises(CommitNotApplied):
            table.compact({"s": "a"}, rewrite=overtaken)
        assert [11, 12, 99] == row_ids(made.again(table))
        assert set() == orphans(made.again(table))


def test_a_compaction_that_fails_leaves_nothing() -> None:
    with kit("memory") as made:
        table = with_small_files(made)

        def failing(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
            return rewrite_here(table, [*groups, None])  # type: ignore[list-item]  # the last group can't be read

        with pytest.raises(TypeError):
            table.compact(rewrite=failing)
        assert set() == orphans(table)
        assert [] == made.held()
        with pytest.raises(StatementError, match="no such partition column: column='z'"):
            table.compact({"z": 1})


def test_a_table_of_two_specs_is_compacted_as_a_whole_and_into_the_present_one() -> None:
    with kit("memory") as made:
        table, seen = made.table(ids(1), ids(2)), []
        with table.update_spec() as update:
            update.add_identity("s")
        table.append(frame((3, "1")))

        def rewrite(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
            seen.extend(held(made))
            return rewrite_here(table, groups)

        table.compact(rewrite=rewrite)
        assert ["X "] == seen
        assert [1, 2, 3] == row_ids(table)
        assert {table.spec().spec_id} == {task.file.spec_id for task in table.scan().plan_files()}


APPENDER = """
import json, sys
import commit_coord, pyarrow as pa

name, properties, identifier, partition = json.loads(sys.argv[1])
table = commit_coord.load_catalog(name, **properties).load_table(tuple(identifier))
schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
for number in range(15):
    table.append(pa.table([[partition * 100 + number], [str(partition)]], schema=schema))
    print(number, flush=True)
"""


def test_appends_of_other_processes_go_on_and_none_is_lost() -> None:
    """One partition is compacted again and again, while two processes append to two others."""
    with kit("lease") as made:
        table = made.table(partition_spec=BY_S)
        properties = {"uri": f"coord+{made.uri}", "warehouse": made.warehouse, "lock-impl": "lease"}
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", APPENDER, json.dumps([made.name, properties, list(table.name()), partition])],
                stdout=subprocess.PIPE,
            )
            for partition in (1, 2)
        ]
        try:
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline(), "it has begun"
            mine = 0
            while any(writer.poll() is None for writer in writers):
                for _ in range(2):
                    table.append(frame((mine, "mine")))
                    mine += 1
                assert table.compact({"s": "mine"}).after == 1
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
                assert writer.stdout is not None
                writer.stdout.close()
        assert [0, 0] == [writer.returncode for writer in writers]
        found = row_ids(made.again(table))
        expected = [*range(mine), *range(100, 115), *range(200, 215)]
        assert expected == found
        assert mine > 0
        assert 1 == len(list(made.again(table).scan("s = 'mine'").plan_files()))
