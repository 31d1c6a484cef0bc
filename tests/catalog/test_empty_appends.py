"""Appends of no rows, in any order with others: every row stays visible, to us and to PyIceberg's own catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import LongType

from commit_coord.errors import CommitNotApplied, InternalError, InvalidArguments
from commit_coord.iceberg import avro, manifest_list
from tests.catalog.kit import ARROW, NO_MATCH, Kit, files_of, ids, local, orphans, row_ids

NOTHING = ids()
MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}

WHOSE = st.sampled_from(["ours", "stock"])
STEP = st.sampled_from(["rows", "nothing", "overwrite", "delete", "compact"])


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.tuples(WHOSE, STEP), min_size=1, max_size=6),
    version=st.sampled_from(["1", "2"]),
    merging=st.booleans(),
)
def test_rows_stay_visible_whatever_empty_appends_are_between(
    memory: Kit, steps: list[tuple[str, str]], version: str, merging: bool
) -> None:
    table = memory.table(properties={"format-version": version, **(MERGING if merging else {})})
    expected: list[int] = []
    for number, (whose, step) in enumerate(steps):
        writer = (memory.catalog if whose == "ours" else memory.stock).load_table(table.name())
        if step == "rows":
            writer.append(ids(number))
            expected.append(number)
        elif step == "nothing":
            writer.append(NOTHING)
        elif step == "overwrite":
            writer.overwrite(NOTHING)
            expected = []
        elif step == "delete" and expected:
            writer.delete(f"id = {expected.pop()}")
        elif step == "compact" and whose == "ours":
            writer.compact()
        for catalog in (memory.catalog, memory.stock):
            assert sorted(expected) == row_ids(catalog.load_table(table.name()))
        snapshot = memory.again(table).current_snapshot()
        assert snapshot is None or str(len(expected)) == snapshot.summary["total-records"]


def test_rows_after_an_append_of_nothing_stay_visible(memory: Kit) -> None:
    identifier = memory.identifier()
    with memory.catalog.create_table_transaction(identifier, ARROW) as creation:
        creation.append(NOTHING)
    table = memory.catalog.load_table(identifier)
    table.append(ids(1, 2))
    assert [1, 2] == row_ids(memory.again(table)) == row_ids(memory.stock.load_table(table.name()))


def damaged(kit: Kit) -> Any:
    """Return a table whose manifest list has a block of no records before the one of its last rows."""
    table = kit.table(NOTHING, ids(1), ids(2))
    path = Path(local(table.current_snapshot().manifest_list))
    data = path.read_bytes()
    _, start = avro.header(data)
    path.write_bytes(
        data[:start] + avro.block(0, avro.CODECS[b"deflate"][0](b""), data[start - 16 : start]) + data[start:]
    )
    return kit.again(table)


def test_a_list_that_readers_stop_in_is_read_whole_by_us_and_repaired(fresh: Kit) -> None:
    table = damaged(fresh)
    assert 2 == manifest_list.hidden(table.io, table.current_snapshot().manifest_list)
    with pytest.raises(CommitNotApplied, match="commit-coord repair"):
        table.overwrite(ids(3), "id = 3")
    with pytest.raises(CommitNotApplied, match="commit-coord repair"):
        table.delete("id = 1")
    found = fresh.catalog.find_lost(table.name())
    assert [(2, 2, "unreadable manifest list")] == [(one.files, one.rows, one.operation) for one in found.commits]
    fresh.catalog.repair(found)
    assert [1, 2] == row_ids(fresh.again(table)) == row_ids(fresh.stock.load_table(table.name()))
    assert () == fresh.catalog.find_lost(table.name()).commits, "there is nothing left to repair"


def test_the_next_append_repairs_a_list_that_readers_stop_in(fresh: Kit) -> None:
    table = damaged(fresh)
    table.append(ids(3))
    assert [1, 2, 3] == row_ids(fresh.again(table))


def test_orphans_spares_files_that_a_reader_does_not_see(fresh: Kit) -> None:
    table = damaged(fresh)
    live = files_of(fresh.again(table)) | {local(str(path)) for path in data_files(table)}
    found = fresh.catalog.find_orphans(table.name(), older_than_ms=0, force=True)
    assert [] == [one.path for one in found.files if local(one.path) in live]
    assert not [one for one in found.files if one.path.endswith(".parquet")]


def data_files(table: Any) -> list[Path]:
    return list(Path(local(table.location())).rglob("*.parquet"))


def test_orphans_deletes_nothing_when_its_reader_overlooks_an_entry(
    fresh: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = fresh.table(ids(1), ids(2))
    read = manifest_list.read
    monkeypatch.setattr(manifest_list, "read", lambda io, path: read(io, path)[:1])
    with pytest.raises(InternalError, match="two Avro readers find different file names"):
        fresh.catalog.find_orphans(table.name(), older_than_ms=0, force=True)
    monkeypatch.undo()
    assert set() == orphans(table)


def test_orphans_refuses_a_table_that_holds_the_data_of_another(memory: Kit) -> None:
    one: Any = memory.table(ids(1))
    for key in ("write.data.path", "write.metadata.path"):
        other = memory.table(ids(2), properties={key: f"{one.location()}/of-another"})
        with pytest.raises(InvalidArguments, match="another table lies in the location"):
            memory.catalog.find_orphans(one.name(), older_than_ms=0, force=True)
        memory.catalog.drop_table(other.name())


def test_no_rows_fit_whatever_has_become_required(memory: Kit) -> None:
    table = memory.table()
    stale = memory.again(table)
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.add_column("late", LongType(), required=True)
    stale.append(NOTHING)
    assert memory.again(table).current_snapshot() is not None
