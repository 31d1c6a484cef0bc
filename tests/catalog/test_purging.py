"""What a purge deletes, and what it must not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError, ValidationException
from pyiceberg.table.update.snapshot import ExpireSnapshots

from commit_coord.errors import CommitNotApplied, InvalidArguments
from commit_coord.sql import Session
from tests.catalog.kit import EVERY_LOCK_MANAGER, Kit, coordinated, files_in, ids, kit_of, local, row_ids


@pytest.fixture(scope="module", params=EVERY_LOCK_MANAGER)
def coord(request: pytest.FixtureRequest) -> Iterator[Kit]:
    with kit_of(request) as made:
        yield made


@pytest.mark.parametrize("value", ["false", "FALSE"])
def test_a_table_that_shares_its_files_is_not_purged(coord: Kit, value: str) -> None:
    """The files of *copy* are those of *source*, as in a table that Spark's `snapshot` procedure makes."""
    source = coord.table(ids(1, 2))
    copy = coord.table(properties={"gc.enabled": value})
    copy.commit_files([task.file for task in source.scan().plan_files()])
    before = files_in(coord.warehouse)

    with pytest.raises(ValidationException, match="gc.enabled=false"):
        coord.catalog.purge_table(copy.name())
    assert files_in(coord.warehouse) == before
    assert row_ids(coord.again(copy)) == row_ids(coord.again(source)) == [1, 2]

    coord.catalog.drop_table(copy.name())
    assert row_ids(coord.again(source)) == [1, 2]


def test_gc_that_is_allowed_again_lets_a_table_be_purged(coord: Kit) -> None:
    table = coord.table(ids(1), properties={"gc.enabled": "false"})
    with table.transaction() as tx:
        tx.set_properties({"gc.enabled": "true"})
    coord.catalog.purge_table(table.name())
    assert files_in(table.location()) == set()


@pytest.mark.parametrize("missing, left", [("list", [".avro", ".parquet"]), ("manifest", [".parquet"])])
def test_a_purge_passes_over_a_file_that_is_missing(
    memory: Kit, missing: str, left: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What it alone names stays: the manifest and the rows of the last append."""
    table = memory.table(ids(1), ids(2), ids(3))
    last = table.snapshots()[-1]
    gone = last.manifest_list if missing == "list" else last.manifests(table.io)[0].manifest_path
    os.unlink(local(gone))
    memory.catalog.purge_table(table.name())
    assert not memory.catalog.table_exists(table.name())
    assert left == sorted(Path(path).suffix for path in files_in(table.location()))
    assert gone in caplog.text


def test_no_orphan_of_a_table_that_shares_its_files_is_deleted(coord: Kit) -> None:
    """Not when they are looked for, nor when the property is set between the look and the deletion."""
    table = coord.table(ids(1))
    left = Path(local(table.location())) / "data" / "left.parquet"
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    catalog = coordinated(coord.catalog)
    found = catalog.find_orphans(table.name())
    assert 1 == len(found.files)
    with table.transaction() as tx:
        tx.set_properties({"gc.enabled": "FALSE"})
    with pytest.raises(InvalidArguments, match="gc.enabled=false"):
        catalog.delete_orphans(found)
    with pytest.raises(InvalidArguments, match="gc.enabled=false"):
        catalog.find_orphans(table.name())
    assert left.exists()
    with table.transaction() as tx:
        tx.remove_properties("gc.enabled")
    assert found.files == catalog.delete_orphans(catalog.find_orphans(table.name())).files


def test_no_snapshot_of_a_table_that_shares_its_files_expires(coord: Kit) -> None:
    """Not through a table object that was read before the property was set, nor from a statement."""
    table = coord.table(ids(1), ids(2))
    first = table.snapshots()[0].snapshot_id
    stale = coord.again(table)
    with table.transaction() as tx:
        tx.set_properties({"gc.enabled": "false"})
    before = coord.again(table).metadata_location
    for one in (table, stale):
        with pytest.raises(CommitNotApplied, match="gc.enabled=false"):
            one.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(CommitNotApplied, match="gc.enabled=false"):
        Session(coord.catalog).run(f"ALTER TABLE {'.'.join(table.name())} EXECUTE expire_snapshots({first})")
    assert before == coord.again(table).metadata_location
    with table.transaction() as tx:
        tx.set_properties({"gc.enabled": "true"})
        ExpireSnapshots(transaction=tx).by_id(first).commit()
    assert 1 == len(coord.again(table).snapshots())


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.upsert(ids(1), join_cols=["id"]),
        lambda table: table.delete("id = 1"),
        lambda table: table.overwrite(ids(2), "id = 1"),
        lambda table: table.dynamic_partition_overwrite(ids(2)),
        lambda table: table.compact(),
    ],
    ids=["upsert", "delete", "overwrite", "dynamic overwrite", "compact"],
)
def test_a_call_on_a_table_that_was_purged_and_made_again_says_so(coord: Kit, call: Callable[[Any], Any]) -> None:
    """It reads files that are gone."""
    made = coord.table(ids(1), ids(2))
    stale = coord.again(made)
    coord.catalog.purge_table(made.name())
    coord.catalog.create_table(made.name(), made.schema())
    with pytest.raises(CommitNotApplied, match="has changed since it was read|was dropped and created again"):
        call(stale)
    assert row_ids(coord.again(made)) == []


def test_a_call_on_a_table_that_was_purged_says_so(coord: Kit) -> None:
    made = coord.table(ids(1), ids(2))
    stale = coord.again(made)
    coord.catalog.purge_table(made.name())
    with pytest.raises(NoSuchTableError):
        stale.upsert(ids(1), join_cols=["id"])


def test_a_file_that_is_gone_from_the_table_as_it_is_is_named(coord: Kit) -> None:
    made = coord.table(ids(1), ids(2))
    for task in made.scan().plan_files():
        os.unlink(local(task.file.file_path))
    with pytest.raises(FileNotFoundError, match=r"\.parquet"):
        made.upsert(ids(1), join_cols=["id"])
    coord.catalog.drop_table(made.name())  # other tests read all tables of their metastore
