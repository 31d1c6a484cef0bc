"""Arguments that can't mean anything, or that would have no effect, are refused before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from pyiceberg.table import snapshots
from pyiceberg.table.metadata import TableMetadataUtil

from commit_coord.errors import ConfigError, InvalidArguments
from commit_coord.table.data_files import data_files
from tests.catalog.kit import Kit, ids, orphans, row_ids

SOME_FILE = "file:///nowhere/a.parquet"

CALLS: dict[str, Callable[[Any], Any]] = {
    "rows in a stream": lambda table: table.upsert(ids(1).to_reader(), ["id"]),
    "no rows": lambda table: table.upsert(None, ["id"]),
    "no files": lambda table: table.commit_files(None),
    "names as data files": lambda table: table.commit_files(["a"]),
    "a mode that does not exist": lambda table: table.commit_files([], mode="replace"),
    "no mode": lambda table: table.commit_files([], mode=None),
    "a filter that an append does not use": lambda table: table.commit_files([], overwrite_filter="id = 1"),
    "a filter that a dynamic overwrite does not use": lambda table: table.commit_files(
        [], mode="dynamic", overwrite_filter="id = 1"
    ),
    "a number as request id": lambda table: table.commit_files([], request_id=5),
    "a number as request id to be found": lambda table: table.find_commit(5),
    "numbers as paths": lambda table: table.add_files([5]),
    "one path": lambda table: table.add_files(SOME_FILE),
    "no paths": lambda table: table.add_files(None),
    "append to an empty branch": lambda table: table.append(ids(2), branch=""),
    "overwrite in an empty branch": lambda table: table.overwrite(ids(2), branch=""),
    "upsert in an empty branch": lambda table: table.upsert(ids(2), ["id"], branch=""),
    "files for an empty branch": lambda table: table.commit_files(files(table), branch=""),
    "a builder for an empty branch": lambda table: table.transaction().update_snapshot(branch=""),
    "a branch without a name": lambda table: (
        table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "").commit()
    ),
    "a tag without a name": lambda table: (
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "").commit()
    ),
}


def files(table: Any) -> list[Any]:
    return list(data_files(table.metadata, ids(2), table.io))


@pytest.fixture
def table(memory: Kit) -> Iterator[Any]:
    made = memory.table(ids(1))
    yield made
    assert row_ids(memory.again(made)) == [1]
    assert set(made.refs()) == {"main"}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_without_a_meaning_is_refused(table: Any, name: str) -> None:
    with pytest.raises(InvalidArguments):
        CALLS[name](table)


COMPUTED = [
    *(value for name, value in vars(snapshots).items() if name.startswith(("ADDED", "DELETED", "REMOVED", "TOTAL"))),
    "changed-partition-count",
    "partition-summaries-included",
    "partitions.id=1",
    "operation",
    "Operation",
    "self",
]
WRITES: dict[str, Callable[[Any, dict[Any, Any]], Any]] = {
    "append": lambda table, given: table.append(ids(2), given),
    "overwrite": lambda table, given: table.overwrite(ids(2), "id = 1", given),
    "delete": lambda table, given: table.delete("id = 1", given),
    "upsert": lambda table, given: table.upsert(ids(1, 2), ["id"], snapshot_properties=given),
    "commit_files": lambda table, given: table.commit_files(files(table), snapshot_properties=given),
}


@pytest.mark.parametrize("key", COMPUTED)
def test_no_caller_sets_what_iceberg_computes(table: Any, key: str) -> None:
    with pytest.raises(InvalidArguments, match="choose another name"):
        table.append(ids(2), {key: "7"})


@pytest.mark.parametrize("given", [{"operation": "x"}, {"total-records": "7"}, {"a": None}, {5: "a"}], ids=str)
@pytest.mark.parametrize("write", WRITES)
def test_every_write_refuses_such_properties(table: Any, write: str, given: dict[Any, Any]) -> None:
    with pytest.raises(InvalidArguments):
        WRITES[write](table, given)


@pytest.mark.parametrize("write", WRITES)
def test_properties_of_a_snapshot_land_as_texts_like_those_of_a_table(memory: Kit, write: str) -> None:
    """Another engine can't load a table whose snapshot has a property that is no text."""
    given = {"number": 5, "truth": True, "list": [1, "a"], "text": "x", "adds-nothing": 1.5}
    table = memory.table(ids(1))
    WRITES[write](table, given)
    with table.transaction() as tx:
        tx.set_properties(given)
    stored = orjson.loads(table.io.new_input(table.metadata_location).open().read())
    noted = [snapshot["summary"] for snapshot in stored["snapshots"] if "number" in snapshot["summary"]]
    assert noted
    for summary in noted:
        assert all(isinstance(value, str) for value in summary.values())
        assert {key: summary[key] for key in given} == {key: stored["properties"][key] for key in given}
    TableMetadataUtil.parse_obj(stored)


@pytest.mark.parametrize("kind", ["delete", "fast_append", "merge_append"])
def test_a_snapshot_that_would_leave_a_file_refuses_to_remove_it(table: Any, kind: str) -> None:
    there = next(iter(table.scan().plan_files())).file
    producer = getattr(table.transaction().update_snapshot(), kind)()
    with pytest.raises(InvalidArguments, match="overwrite"):
        producer.delete_data_file(there)


def test_an_overwrite_that_is_built_by_hand_removes_a_file(memory: Kit) -> None:
    table = memory.table(ids(1), ids(2))
    there = next(task.file for task in table.scan("id = 1").plan_files())
    with table.transaction() as tx, tx.update_snapshot().overwrite() as producer:
        producer.delete_data_file(there)
    assert row_ids(memory.again(table)) == [2]


@pytest.mark.parametrize("value", ["0", "-1", "9223372036854775808"])
@pytest.mark.parametrize(
    "key",
    [
        "write.parquet.page-row-limit",
        "write.parquet.page-size-bytes",
        "write.parquet.row-group-limit",
        "write.target-file-size-bytes",
    ],
)
def test_rows_are_not_written_in_parts_without_a_size(memory: Kit, key: str, value: str) -> None:
    table = memory.table(ids(1))
    with table.transaction() as tx:
        tx.set_properties({key: value})
    for rows in (ids(2), ids(2).to_reader()):
        with pytest.raises(ConfigError, match=key):
            table.append(rows)
    assert orphans(memory.again(table)) == set()
    with table.transaction() as tx:
        tx.remove_properties(key)
    table.append(ids(2))
    assert row_ids(memory.again(table)) == [1, 2]
