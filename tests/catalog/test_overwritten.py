"""Commits that a writer without our rules overwrote: found at the next commit of anybody, and brought back."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table.update import RemovePartitionSpecsUpdate, UpgradeFormatVersionUpdate
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, StringType

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.repair import Repair
from commit_coord.catalog.repair.content import changes_between
from commit_coord.errors import CommitConflict, CommitNotApplied, InvalidArguments, PartlyRepaired
from commit_coord.events import CommitOverwritten
from commit_coord.iceberg.overwrites import HandoverNote
from tests.catalog.kit import (
    EVERY_LOCK_MANAGER,
    SCHEMA,
    Kit,
    coordinated,
    files_in,
    ids,
    kit,
    kit_of,
    local,
    refs,
    row_ids,
)

SQL_MANAGERS = [param for param in EVERY_LOCK_MANAGER if "hms" not in str(param)]


@pytest.fixture(scope="module", params=SQL_MANAGERS)
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Our catalog on SQLite with each lock manager that carries notes."""
    with kit_of(request) as made:
        yield made


def put(made: Kit, table: Any, location: str) -> None:
    """Do what a writer that only locks does: set the pointer, whatever it is."""
    *namespace, name = table.name()
    with sqlite3.connect(f"{made.folder}/catalog.db") as db:
        (count,) = db.execute(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_namespace = ? AND table_name = ? RETURNING 1",
            (location, ".".join(namespace), name),
        ).fetchone()
    db.close()
    assert count == 1


def listened(catalog: CoordinatedCatalog) -> list[CommitOverwritten]:
    """Return what is reported from now on."""
    seen: list[CommitOverwritten] = []
    catalog.events.subscribe(lambda event: seen.append(event) if isinstance(event, CommitOverwritten) else None)
    return seen


def note_of(catalog: CoordinatedCatalog, table: Any) -> HandoverNote:
    with catalog.coordinator.latch(tuple(table.name())) as latch:
        return HandoverNote.parse(latch.handover_note or "")


def overwritten(made: Kit, *, commits: int = 1) -> tuple[Any, list[Any]]:
    """Return a table whose last *commits* rows (of 1, 2, 3, …) were overwritten by row 100, and those commits."""
    table = made.table(ids(1))
    base = table.metadata_location
    lost = []
    for number in range(2, 2 + commits):
        table.append(ids(number))
        lost.append((table.metadata_location, table.current_snapshot()))
    put(made, table, base)
    made.stock.load_table(table.name()).append(ids(100))
    assert row_ids(made.again(table)) == [1, 100]
    return table, lost


def test_the_next_commit_of_anybody_names_what_was_overwritten(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    table, lost = overwritten(made, commits=2)
    other = coordinated(made.open())
    seen = listened(other)
    with caplog.at_level(logging.ERROR):
        other.load_table(table.name()).append(ids(5))
    (found,) = seen
    location, snapshot = lost[-1]
    assert found.lost == tuple(path for path, _ in lost)
    assert (found.location, found.snapshot_ids) == (location, (snapshot.snapshot_id,))
    assert found.request_id == snapshot.summary["commit-coord.request-id"]
    assert f"commit {found.request_id}" in found.by
    assert found.at_ms == snapshot.timestamp_ms
    name = ".".join(table.name())
    assert f"`commit-coord repair {name} --from {location}`" in caplog.text
    other.load_table(table.name()).append(ids(6))
    made.again(table).append(ids(7))
    assert len(seen) == 1
    assert [one.location for one in note_of(other, table).lost] == [location]
    assert row_ids(made.again(table)) == [1, 5, 6, 7, 100]
    other.close()


def test_a_commit_is_not_brought_back_under_another_spec_that_got_its_id(made: Kit) -> None:
    """Its files are as it wrote them, but the operator took a while to look at what was found."""
    table = made.table()

    def partitioned_by(count: int, name: str) -> None:
        now = made.again(table)
        with now.update_spec() as update:
            update.add_field("id", BucketTransform(count), name)

    partitioned_by(4, "four")
    table = made.again(table)
    base = table.metadata_location
    table.append(ids(*range(20)))
    put(made, table, base)
    with made.stock.load_table(table.name()).transaction() as other:
        other.set_properties({"of": "another writer"})
    found = made.catalog.find_lost(table.name())
    assert 1 == len(found.restorable)
    with made.again(table).update_spec() as update:
        update.remove_field("four")
    made.catalog.commit_request(table.name(), (), (RemovePartitionSpecsUpdate(spec_ids=[table.spec().spec_id]),))
    partitioned_by(8, "eight")
    assert table.spec().spec_id == made.again(table).spec().spec_id

    with pytest.raises(CommitConflict, match="partition spec 1 of its files is lost"):
        made.catalog.repair(found)
    assert [] == row_ids(made.again(table))


def test_a_note_that_is_too_old_raises_no_alarm(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """A writer that was killed between its swap and its release left none; other writers leave none at all."""
    table = made.table(ids(1))
    catalog = coordinated(made.catalog)
    with catalog.coordinator.latch(tuple(table.name())) as latch:
        old = latch.handover_note
    assert old
    for number in range(2, 5):
        table.append(ids(number))
    with catalog.coordinator.latch(tuple(table.name())) as latch:
        latch.set_handover_note(old)
    made.stock.load_table(table.name()).append(ids(5))
    made.again(table).append(ids(6))
    assert "were overwritten" not in caplog.text
    assert note_of(catalog, table).lost == ()


def test_what_ends_or_cuts_a_history_raises_no_alarm(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    catalog = coordinated(made.catalog)
    table = made.table(ids(1), properties={"write.metadata.previous-versions-max": "1"})
    first = table.current_snapshot().snapshot_id
    for number in range(2, 5):
        table.append(ids(number))
        for more in range(3):
            made.stock.load_table(table.name()).append(ids(10 * number + more))  # the note is not in the log any more
        table.refresh()
    with table.transaction() as tx:
        tx.set_properties({"write.metadata.delete-after-commit.enabled": "true"})
    for number in range(3):
        made.stock.load_table(table.name()).append(ids(200 + number))
    made.again(table).append(ids(300))
    table = made.again(table)
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    table.append(ids(301))
    table.maintenance.expire_snapshots().by_id(first).commit()
    table.append(ids(302))
    assert row_ids(made.again(table)) == [1, 301, 302]
    name = table.name()
    catalog.drop_table(name)
    with catalog.coordinator.latch(tuple(name)) as latch:
        assert latch.handover_note == ""
    again = catalog.create_table(name, SCHEMA)
    again.append(ids(1))
    made.stock.drop_table(name)  # the note stays, of a table that is gone
    catalog.create_table(name, SCHEMA).append(ids(1))
    renamed = (made.namespace, f"r{uuid.uuid4().hex[:8]}")
    catalog.rename_table(name, renamed)
    catalog.load_table(renamed).append(ids(2))
    catalog.rename_table(renamed, name)
    catalog.load_table(name).append(ids(3))
    assert "were overwritten" not in caplog.text
    assert row_ids(catalog.load_table(name)) == [1, 2, 3]


def test_a_note_of_another_version_is_as_none(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    table = made.table(ids(1))
    for text in ("nonsense", json.dumps({"head": {"later": 1}, "lost": []})):
        with coordinated(made.catalog).coordinator.latch(tuple(table.name())) as latch:
            latch.set_handover_note(text)
        table.append(ids(2))
    assert caplog.text.count("another version") == 2
    assert note_of(coordinated(made.catalog), table).head is not None


# Repair.


def test_repair_brings_back_every_row_once(made: Kit) -> None:
    table, lost = overwritten(made, commits=3)
    catalog = coordinated(made.open())
    catalog.load_table(table.name()).append(ids(5))
    found = catalog.find_lost(table.name())
    assert [(one.operation, one.files, one.rows, one.advice) for one in found.commits] == [("append", 1, 1, "")] * 3
    assert [one.location for one in found.restorable] == [path for path, _ in lost]
    before = files_in(table.location())
    assert len(catalog.repair(found)) == 3
    assert row_ids(made.again(table)) == [1, 2, 3, 4, 5, 100]
    mended = made.again(table)
    for path, snapshot in lost:
        restored = mended.metadata.snapshot_by_id(snapshot.snapshot_id)
        request_id = snapshot.summary["commit-coord.request-id"]
        assert restored.summary["commit-coord.request-id"] == request_id
        assert restored.summary["commit-coord.restored-from"] == path
        assert mended.find_commit(request_id).snapshot_ids == (snapshot.snapshot_id,)
    assert mended.current_snapshot().summary["total-records"] == "6"
    assert before < files_in(table.location())
    assert not [one for one in files_in(table.location()) - before if one.endswith(".parquet")]
    assert catalog.find_lost(table.name()).commits == ()
    repeated = made.catalog.find_lost(table.name(), since=[lost[-1][0]])
    assert [one.restored for one in repeated.commits] == [True] * 3
    made.catalog.repair(repeated)
    made.catalog.repair(found)  # planned before the first one landed
    assert row_ids(made.again(table)) == [1, 2, 3, 4, 5, 100]
    seen = listened(catalog)
    made.again(table).append(ids(6))
    catalog.load_table(table.name()).append(ids(7))
    assert seen == []
    assert row_ids(made.stock.load_table(table.name())) == [1, 2, 3, 4, 5, 6, 7, 100]
    catalog.close()


@pytest.mark.parametrize("error", [CommitNotApplied, OSError])
def test_a_repair_that_fails_midway_tells_what_it_brought_back(
    made: Kit, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Whichever commit fails, and if the lock service does not forget."""
    catalog = coordinated(made.catalog)
    commit = catalog.coordinator.commit
    for landed in range(4):
        table, lost = overwritten(made, commits=3)
        ids_of = [snapshot.summary["commit-coord.request-id"] for _, snapshot in lost]
        found = catalog.find_lost(table.name())
        sent = iter(range(4))

        def commits(*arguments: Any, landed: int = landed, sent: Iterator[int] = sent, **more: Any) -> Any:
            if next(sent) == landed:
                raise error("no answer")
            return commit(*arguments, **more)

        def fails(*_: Any, **__: Any) -> Any:
            raise error("no answer")

        with monkeypatch.context() as failing:
            failing.setattr(catalog.coordinator, "commit", commits)
            failing.setattr("commit_coord.catalog.repair.forget", fails)
            with pytest.raises(PartlyRepaired if landed else error) as told:
                catalog.repair(found)
        assert row_ids(made.again(table)) == [1, *range(2, 2 + landed), 100]
        assert [one for one in ids_of if one in str(told.value)] == ids_of[:landed]
        catalog.repair(catalog.find_lost(table.name()))
        assert row_ids(made.again(table)) == [1, 2, 3, 4, 100]


def test_repair_at_once_needs_no_commit_in_between(made: Kit) -> None:
    """Also where the pointer was put back to the very base, so that the next file has the number of the lost one."""
    table = made.table(ids(1))
    base = table.metadata_location
    table.append(ids(2))
    put(made, table, base)
    found = made.catalog.find_lost(table.name())
    made.catalog.repair(found)
    assert row_ids(made.again(table)) == [1, 2]
    assert note_of(coordinated(made.catalog), table).lost == ()


def test_what_is_lost_while_a_user_is_asked_is_not_forgotten(made: Kit) -> None:
    table, lost = overwritten(made)
    catalog = coordinated(made.catalog)
    found = catalog.find_lost(table.name())
    shown = [one.location for one in catalog.forget_lost(table.name(), dry_run=True)]
    assert shown == [lost[0][0]]
    later = made.again(table)
    base = later.metadata_location
    later.append(ids(3))
    put(made, table, base)
    made.stock.load_table(table.name()).append(ids(101))
    for forgetting in (catalog.repair, lambda found: catalog.forget_lost(table.name(), found.looked_at)):
        forgetting(found)
        assert [one.location for one in note_of(catalog, table).lost] == [later.metadata_location]
    catalog.repair(catalog.find_lost(table.name()))
    assert row_ids(made.again(table)) == [1, 2, 3, 100, 101]
    assert note_of(catalog, table).lost == ()


def test_what_was_restored_and_expired_is_not_added_again(made: Kit) -> None:
    table, lost = overwritten(made)
    catalog = made.catalog
    catalog.repair(catalog.find_lost(table.name()))
    mended = made.again(table)
    mended.append(ids(9))
    mended.maintenance.expire_snapshots().by_id(lost[0][1].snapshot_id).commit()
    again = catalog.find_lost(table.name(), since=[lost[0][0]])
    assert [one.restored for one in again.commits] == [True]


@pytest.mark.parametrize("then", ["delete", "compaction"])
@pytest.mark.parametrize("writer", ["ours", "stock"])
def test_what_was_restored_and_is_in_no_file_any_more_is_not_added_again(made: Kit, then: str, writer: str) -> None:
    table = made.table(ids(1))
    base = table.metadata_location
    catalog = made.catalog if writer == "ours" else made.stock
    catalog.load_table(table.name()).append(ids(2))
    lost = made.again(table).metadata_location
    put(made, table, base)
    made.again(table).append(ids(100))
    made.catalog.repair(made.catalog.find_lost(table.name(), since=[lost]))
    mended = made.again(table)
    assert row_ids(mended) == [1, 2, 100]
    if then == "delete":
        mended.delete("id = 2")
    else:
        mended.overwrite(mended.scan().to_arrow())
    left = row_ids(made.again(table))
    mended = made.again(table)
    past = [one.snapshot_id for one in mended.snapshots() if one != mended.current_snapshot()]
    mended.maintenance.expire_snapshots().by_ids(past).commit()
    again = made.catalog.find_lost(table.name(), since=[lost])
    assert [one.restored for one in again.commits] == [True]
    made.catalog.repair(again)
    assert row_ids(made.again(table)) == left


def restored_deleted_and_expired(made: Kit) -> tuple[Any, CoordinatedCatalog, Repair]:
    """Return a table from whose rows 2 was lost, restored, deleted and expired, and a plan from before of a client."""
    table, lost = overwritten(made)
    client = coordinated(made.open())
    plan = client.find_lost(table.name())
    made.catalog.repair(made.catalog.find_lost(table.name()))
    mended = made.again(table)
    mended.delete("id = 2")
    mended.maintenance.expire_snapshots().by_id(lost[0][1].snapshot_id).commit()
    return mended, client, plan


def test_an_old_plan_does_not_bring_rows_back_that_were_deleted_since(made: Kit) -> None:
    table, client, plan = restored_deleted_and_expired(made)
    assert client.repair(plan)
    assert row_ids(made.again(table)) == [1, 100]
    client.close()


def test_a_plan_that_is_older_than_the_history_is_refused(made: Kit) -> None:
    table, client, plan = restored_deleted_and_expired(made)
    with table.transaction() as tx:
        tx.set_properties({"write.metadata.previous-versions-max": "1"})
    for number in range(3):
        table.append(ids(200 + number))
    kept = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for path in files_in(table.location()) - {local(one) for one in kept}:
        if path.endswith(".metadata.json"):
            Path(path).unlink()
    with pytest.raises(CommitConflict, match="search again"):
        client.repair(plan)
    assert row_ids(made.again(table)) == [1, 100, 200, 201, 202]
    client.close()


def test_a_history_that_may_have_brought_it_back_and_does_not_reach_back_is_refused(made: Kit) -> None:
    table, lost = overwritten(made)
    made.catalog.repair(made.catalog.find_lost(table.name()))
    with made.again(table).transaction() as tx:
        tx.set_properties(
            {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
        )
    for number in range(3):
        made.again(table).append(ids(200 + number))
    other = coordinated(made.open())  # made.catalog has what is deleted in its cache
    with pytest.raises(InvalidArguments, match="no common version"):
        other.find_lost(table.name(), since=[lost[0][0]])
    other.close()


def test_what_read_the_table_or_is_no_data_is_left_to_people(made: Kit) -> None:
    table = made.table(ids(1, 2))
    base = table.metadata_location
    table.append(ids(3))
    table.append(ids(4))
    table.overwrite(ids(40), "id = 4")
    table.delete("id = 1")
    with table.update_schema() as update:
        update.add_column("more", StringType())
    table.append(ids(5))
    with table.transaction() as tx:
        tx.set_properties({"owner": "ann"})
    put(made, table, base)
    made.again(table).append(ids(100))
    found = made.catalog.find_lost(table.name())
    told = [(one.operation.split(",")[0], one.restorable, one.advice.partition(":")[0]) for one in found.commits]
    assert told == [
        ("append", True, ""),
        ("append", False, "a later commit that was lost too took rows of it away"),
        ("delete", False, "it depends on the rows that it found"),
        ("overwrite", False, "it depends on the rows that it found"),
        ("metadata", False, "schema 1 (columns more)"),
        ("append", False, "schema 1 of its files is lost too"),
        ("metadata", False, "properties owner"),
    ]
    made.catalog.repair(found)
    assert row_ids(made.again(table)) == [1, 2, 3, 100]
    assert len(note_of(coordinated(made.catalog), table).lost) == 1
    assert len(made.catalog.forget_lost(table.name())) == 1
    assert made.catalog.find_lost(table.name()).commits == ()


def test_rows_of_another_schema_of_the_same_number_are_not_mixed_up(made: Kit) -> None:
    table = made.table(ids(1))
    base = table.metadata_location
    with table.update_schema() as update:
        update.add_column("mine", StringType())
    table.append(ids(2))
    lost = table.metadata_location
    put(made, table, base)
    again = made.again(table)
    with again.update_schema() as update:
        update.add_column("theirs", LongType())
    found = made.catalog.find_lost(table.name(), since=[lost])
    assert not found.restorable


def test_a_manifest_that_holds_more_than_was_lost_is_written_anew(made: Kit) -> None:
    """PyIceberg's own appends add their files to those that were there."""
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = made.table(ids(1), ids(2), properties=merging)
    base = table.metadata_location
    made.stock.load_table(table.name()).append(ids(3))
    made.again(table).append(ids(4))
    put(made, table, base)
    found = made.catalog.find_lost(table.name())
    assert [(one.request_id == "", one.rows, one.advice) for one in found.commits] == [(True, 1, ""), (False, 1, "")]
    for _ in range(2):
        made.catalog.repair(found)
        assert row_ids(made.again(table)) == row_ids(made.stock.load_table(table.name())) == [1, 2, 3, 4]


def test_a_commit_whose_files_are_gone_is_left_to_people(made: Kit) -> None:
    table = made.table(ids(1))
    base, before = table.metadata_location, files_in(table.location())
    table.append(ids(2))
    (path,) = [one for one in files_in(table.location()) - before if one.endswith(".parquet")]
    put(made, table, base)
    Path(path).unlink()
    (lost,) = made.catalog.find_lost(table.name()).commits
    assert lost.advice == "1 of its 1 files are gone: write the rows again"
    assert not lost.restorable


def lost(made: Kit, base: str, table: Any) -> Repair:
    """Put *table* back to *base*, append row 100 to that, and return what is lost."""
    last = made.again(table).metadata_location
    put(made, table, base)
    made.again(table).append(ids(100))
    found: Repair = made.catalog.find_lost(table.name(), since=[last])
    return found


def listed(found: Repair) -> list[tuple[str, str]]:
    """Return the operation of each lost commit, and the first words of its advice."""
    return [(one.operation, one.advice.partition(":")[0]) for one in found.commits]


def plain_file(made: Kit, table: Any, number: int) -> str:
    """Write a file of one row without field ids, below *table*; return its path."""
    path = Path(local(table.location())) / "data" / f"{uuid.uuid4()}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ids(number), path)
    return f"file://{path}"


ANOTHER_MAPPING = "its files have no field ids, and the table's name mapping is another one now"


@pytest.mark.parametrize("mapping", ["lost", "changed", "the same"])
def test_files_without_field_ids_come_back_only_under_their_name_mapping(made: Kit, mapping: str) -> None:
    """Under another one their values would show in other columns, or nowhere; files with field ids say their own."""
    table = made.table(ids(1))
    if mapping != "lost":
        table.add_files([plain_file(made, table, 7)])
    base = made.again(table).metadata_location
    made.again(table).add_files([plain_file(made, table, 2)])
    made.again(table).append(ids(3))
    last = made.again(table).metadata_location
    put(made, table, base)
    if mapping == "changed":
        with made.again(table).update_schema() as update:
            update.rename_column("s", "old_s")
    found = made.catalog.find_lost(table.name(), since=[last])
    assert listed(found)[-2 if mapping != "lost" else 0][1] == (ANOTHER_MAPPING if mapping != "the same" else "")
    assert len(made.catalog.repair(found)) == (2 if mapping == "the same" else 1)
    assert {"lost": [1, 3], "changed": [1, 3, 7], "the same": [1, 2, 3, 7]}[mapping] == row_ids(made.again(table))


def test_a_mapping_that_changes_while_a_user_is_asked_counts(made: Kit) -> None:
    table = made.table(ids(1))
    table.add_files([plain_file(made, table, 7)])
    base = made.again(table).metadata_location
    made.again(table).add_files([plain_file(made, table, 2)])
    found = lost(made, base, table)
    assert [one.advice for one in found.commits] == [""]
    with made.again(table).update_schema() as update:
        update.rename_column("s", "old_s")
    with pytest.raises(CommitConflict, match=ANOTHER_MAPPING):
        made.catalog.repair(found)
    assert row_ids(made.again(table)) == [1, 7, 100]


@pytest.mark.parametrize("then", ["rolled back", "branch removed", "branch moved"])
def test_what_a_lost_move_of_a_branch_took_away_stays_away(made: Kit, then: str) -> None:
    table = made.table(ids(1))
    first = table.current_snapshot().snapshot_id
    branch = "main" if then == "rolled back" else "b"
    table.manage_snapshots().create_branch(first, "b").commit()
    table = made.again(table)
    base = table.metadata_location
    table.append(ids(2), branch=branch)
    table = made.again(table)
    if then == "rolled back":
        table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    else:
        table.manage_snapshots().remove_branch("b").commit()
    if then == "branch moved":
        made.again(table).manage_snapshots().create_branch(first, "b").commit()
    found = lost(made, base, table)
    assert listed(found)[:2] == [
        ("append", "a later commit that was lost too took rows of it away"),
        ("metadata", f"branches or tags {branch}"),
    ]
    assert made.catalog.repair(found) == []
    assert (row_ids(made.again(table)), row_ids(made.again(table), "b")) == ([1, 100], [1])


def changed(name: str) -> Any:
    """Return a function that makes the change of this *name* to a table, and what the listing says of it."""

    def rolled_back(tx: Any, first: int) -> None:
        ManageSnapshots(tx).set_current_snapshot(snapshot_id=first).commit()
        tx.append(ids(3))

    def appended(tx: Any, first: int) -> None:
        tx.append(ids(3))
        snapshot_id = tx.table_metadata.current_snapshot_id
        ManageSnapshots(tx).create_tag(snapshot_id, "v").create_branch(snapshot_id, "b").commit()

    def upgraded(tx: Any, first: int) -> None:
        tx.upgrade_table_version(2)

    return {
        "rolled back": (rolled_back, [("append", ""), ("metadata", "branches or tags main")]),
        "tag and branch": (appended, [("append", ""), ("metadata", "branches or tags b, v")]),
        "upgrade": (upgraded, [("metadata", "format version 2")]),
    }[name]


@pytest.mark.parametrize("name", ["rolled back", "tag and branch", "upgrade"])
def test_what_came_along_with_rows_is_listed_too(made: Kit, name: str) -> None:
    table = made.table(ids(1), ids(2), properties={"format-version": "1"})
    change, expected = changed(name)
    base = table.metadata_location
    with table.transaction() as tx:
        change(tx, table.snapshots()[0].snapshot_id)
    found = lost(made, base, table)
    assert listed(found) == expected
    assert len(made.catalog.repair(found)) == len(expected) - 1
    assert row_ids(made.again(table)) == [1, 2, *([3] if name != "upgrade" else []), 100]
    assert {*refs(made.again(table))} == {"main"}


def test_every_difference_between_two_versions_is_listed(made: Kit) -> None:
    before = made.table(ids(1)).metadata
    main = before.refs["main"]
    for field, value, words in (
        ("location", "file:///elsewhere", "location file:///elsewhere"),
        ("sort_orders", [], "sort order 0"),
        ("schemas", [*before.schemas, SCHEMA], "schema 0 (columns as before)"),
        ("partition_specs", [], "partition spec 0"),
        ("refs", {"main": main.model_copy(update={"max_ref_age_ms": 5})}, "branches or tags main"),
        ("refs", {"main": main, "v": main.model_copy(update={"snapshot_ref_type": "tag"})}, "branches or tags v"),
        ("refs", {}, "branches or tags main"),
    ):
        assert changes_between(before, before.model_copy(update={field: value})) == [words]


@pytest.mark.parametrize("now", ["never made", "removed", "a tag"])
def test_rows_of_a_branch_that_the_table_does_not_have_are_left_to_people(made: Kit, now: str) -> None:
    """It would have no rows but these."""
    table = made.table(ids(1))
    first = table.current_snapshot().snapshot_id
    base = table.metadata_location
    table.manage_snapshots().create_branch(first, "b").commit()
    if now != "never made":
        base = made.again(table).metadata_location
    made.again(table).append(ids(2), branch="b")
    last = made.again(table).metadata_location
    put(made, table, base)
    if now != "never made":
        made.again(table).manage_snapshots().remove_branch("b").commit()
    if now == "a tag":
        made.again(table).manage_snapshots().create_tag(first, "b").commit()
    found = made.catalog.find_lost(table.name(), since=[last])
    why = "the table would refuse it ('b' is a tag)" if now == "a tag" else "its branch 'b' is not in the table"
    assert found.commits[-1].advice.startswith(why)
    assert made.catalog.repair(found) == []
    assert {name: kind for name, (kind, _) in refs(made.again(table)).items()} == {
        "main": "branch",
        **({"b": "tag"} if now == "a tag" else {}),
    }


@pytest.mark.parametrize("again", ["one", "all", "all, and deleted"])
@pytest.mark.parametrize("when", ["before the listing", "after it"])
def test_rows_that_were_added_again_do_not_come_back_twice(made: Kit, again: str, when: str) -> None:
    table = made.table(ids(1))
    table.add_files([plain_file(made, table, 7)])  # has set the name mapping
    table = made.again(table)
    paths = [plain_file(made, table, number) for number in (2, 3)]
    base = table.metadata_location
    table.add_files(paths)
    found = lost(made, base, table)
    made.again(table).add_files(paths if again != "one" else [f"file:{local(paths[0])}"])
    if again == "all, and deleted":
        made.again(table).delete("id in (2, 3)")
    left = row_ids(made.again(table))
    if when == "after it":
        with pytest.raises(CommitConflict, match="1 of its 2 files were added again" if again == "one" else "changed"):
            made.catalog.repair(found)
    found = made.catalog.find_lost(table.name(), since=[one.location for one in found.commits])
    assert [one.restored for one in found.commits] == [again != "one"]
    assert made.catalog.repair(found) == []
    assert row_ids(made.again(table)) == left


def test_clocks_do_not_order_the_commits_of_one_history(made: Kit) -> None:
    table = made.table(ids(1))
    base = table.metadata_location
    real = time.time
    with patch("time.time", lambda: real() + 20):
        made.stock.load_table(table.name()).append(ids(2))
    made.stock.load_table(table.name()).delete("id = 2")
    made.again(table).append(ids(4))
    found = lost(made, base, table)
    assert [one.operation for one in found.commits] == ["append", "delete", "append"]
    made.catalog.repair(found)
    assert row_ids(made.again(table)) == [1, 4, 100]


def test_what_a_commit_with_lost_manifests_took_away_is_not_known(made: Kit) -> None:
    table = made.table(ids(1))
    base = table.metadata_location
    table.append(ids(2))
    made.again(table).delete("id = 2")
    Path(local(made.again(table).current_snapshot().manifest_list)).unlink()
    found = lost(made, base, table)
    assert [advice.partition(" (")[0] for _, advice in listed(found)] == [
        "a later commit that was lost too took rows of it away",
        "its manifests can't be read",
    ]


def test_a_request_is_repeated_under_a_new_id(made: Kit) -> None:
    """With the old one it counts as landed: who repeats it before the repair must not have its rows twice."""
    table = made.table(ids(1))
    base = table.metadata_location

    def ask(number: int, request_id: str, **kwargs: Any) -> bool:
        now = made.again(table)
        path = plain_file(made, now, number)
        files = list(parquet_files_to_data_files(now.io, now.metadata, iter([path])))
        return bool(now.commit_files(files, request_id=request_id, **kwargs))

    assert ask(2, "an append")
    assert ask(3, "an overwrite", mode="overwrite", overwrite_filter="id = 1")
    found = lost(made, base, table)
    assert not ask(2, "an append")
    assert not ask(3, "an overwrite", mode="overwrite", overwrite_filter="id = 1")
    new = "use a new request id, because a repeated request with the old one counts as landed"
    assert [one.advice.partition("; ")[2] for one in found.commits] == ["", new]
    made.catalog.repair(found)
    assert not ask(2, "an append")
    assert ask(3, "another overwrite", mode="overwrite", overwrite_filter="id = 1")


def test_rows_are_not_promised_to_a_table_that_would_refuse_them(made: Kit) -> None:
    table = made.table(ids(1))
    base = table.metadata_location
    table.append(ids(2))
    last = made.again(table).metadata_location
    put(made, table, base)
    update = UpgradeFormatVersionUpdate(format_version=3)
    made.catalog.commit_request(table.name(), (), (update,))
    found = made.catalog.find_lost(table.name(), since=[last])
    assert found.commits[0].advice.startswith("the table would refuse it (appends to version 3")
    assert made.catalog.repair(found) == []


def test_what_is_no_lost_file_is_refused(made: Kit) -> None:
    table, other = made.table(ids(1)), made.table(ids(1))
    with pytest.raises(InvalidArguments, match="another table"):
        made.catalog.find_lost(table.name(), since=[other.metadata_location])
    with pytest.raises(InvalidArguments, match="can't be read"):
        made.catalog.find_lost(table.name(), since=[table.metadata_location + ".none"])
    assert made.catalog.find_lost(table.name(), since=[table.metadata_location]).commits == ()
    with kit("none") as bare:
        table = bare.table(ids(1))
        with pytest.raises(InvalidArguments, match="keeps no notes of commits"):
            bare.catalog.find_lost(table.name())
