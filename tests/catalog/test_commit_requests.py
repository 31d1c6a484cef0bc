"""Commits of other protocols: their requirements decide on the head under the latch, whatever it was before."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    AssignUUIDUpdate,
    RemovePartitionSpecsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StructType

from commit_coord import CommitLockFailed, CommitNotApplied, CommitStateUnknown, LockError, UpdatesDoNotFit
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.rest.errors import error_answer
from tests.catalog.kit import SCHEMA, Kit, ids, local, row_ids
from tests.sent import sent_by


@pytest.fixture
def behind(memory: Kit, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Has the next commit request find the table as it is now, though it is elsewhere by then."""

    def hold_back(table: Any) -> None:
        seen = [memory.catalog.coordinator.load(table.name())]
        load = memory.catalog.coordinator.load
        monkeypatch.setattr(memory.catalog.coordinator, "load", lambda name: seen.pop() if seen else load(name))

    return hold_back


def test_what_others_do_meanwhile_is_kept(memory: Kit, behind: Callable[[Any], None]) -> None:
    table = memory.table(properties={"a": "1"})
    behind(table)
    other = memory.open()
    other.load_table(table.name()).append(ids(1))
    committed = memory.catalog.commit_request(table.name(), (), (SetPropertiesUpdate(updates={"b": "2"}),))
    assert {"a": "1", "b": "2"}.items() <= committed.metadata.properties.items()
    assert [1] == row_ids(other.load_table(table.name()))
    other.close()


def test_a_schema_gets_the_next_id_of_the_head_that_it_lands_on(memory: Kit, behind: Callable[[Any], None]) -> None:
    table = memory.table()
    behind(table)
    other = memory.open()
    with other.load_table(table.name()).update_schema() as update:
        update.add_column("theirs", LongType())
    other.close()
    wider = Schema(*SCHEMA.fields, NestedField(9, "mine", LongType()), schema_id=1)
    updates = (AddSchemaUpdate(schema_=wider), SetCurrentSchemaUpdate(schema_id=-1))
    committed = memory.catalog.commit_request(table.name(), (), updates)
    assert [0, 1, 2] == [schema.schema_id for schema in committed.metadata.schemas]
    assert ["id", "s", "mine"] == committed.metadata.schema().column_names


def test_a_new_column_gets_no_id_that_another_one_had(memory: Kit) -> None:
    """A handle that is an hour old suffices: the schema is what it read."""
    table = memory.table()
    stale, requirement = table.metadata, AssertCurrentSchemaId(current_schema_id=table.schema().schema_id)
    with table.update_schema() as update:
        update.add_column("dropped", LongType())
    with table.update_schema() as update:
        update.delete_column("dropped")
    assert stale.schema().schema_id == memory.again(table).schema().schema_id
    nested = StructType(NestedField(stale.last_column_id + 1, "b", LongType()))
    for mine in (LongType(), nested):
        column = NestedField(stale.last_column_id + 1 + (mine is nested) * 9, "mine", mine)
        wider = Schema(*SCHEMA.fields, column, schema_id=1)
        updates = (AddSchemaUpdate(schema_=wider), SetCurrentSchemaUpdate(schema_id=-1))
        with pytest.raises(CommitFailedException, match="column ids .* were given to other columns"):
            memory.catalog.commit_request(table.name(), (requirement,), updates)
    assert ["id", "s"] == memory.again(table).schema().column_names


def test_a_schema_that_the_table_has_brings_its_columns_back(memory: Kit) -> None:
    """If its client requires the last column id: so it knows of the columns that were dropped."""
    table = memory.table()
    with table.update_schema() as update:
        update.add_column("dropped", LongType())
    wider = table.schema()
    with table.update_schema() as update:
        update.delete_column("dropped")
    updates = (AddSchemaUpdate(schema_=wider), SetCurrentSchemaUpdate(schema_id=-1))
    with pytest.raises(CommitFailedException, match="column ids .* were given to other columns"):
        memory.catalog.commit_request(table.name(), (), updates)
    knows = AssertLastAssignedFieldId(last_assigned_field_id=table.metadata.last_column_id)
    committed = memory.catalog.commit_request(table.name(), (knows,), updates)
    assert ["id", "s", "dropped"] == committed.metadata.schema().column_names


def test_a_requirement_that_fails_on_the_head_refuses(memory: Kit, behind: Callable[[Any], None]) -> None:
    table = memory.table()
    behind(table)
    other = memory.open()
    other.load_table(table.name()).append(ids(1))
    with other.load_table(table.name()).update_schema() as update:
        update.add_column("theirs", LongType())
    other.close()
    snapshot = Snapshot(
        snapshot_id=7, sequence_number=1, manifest_list="nowhere", summary=Summary(Operation.APPEND), schema_id=0
    )
    for requirement in (AssertRefSnapshotId(ref="main"), AssertCurrentSchemaId(current_schema_id=0)):
        with pytest.raises(CommitFailedException, match="Requirement failed"):
            memory.catalog.commit_request(table.name(), (requirement,), (AddSnapshotUpdate(snapshot=snapshot),))
    assert [1] == row_ids(memory.again(table))


def test_a_table_that_is_not_there_is_not_made(memory: Kit) -> None:
    with pytest.raises(NoSuchTableError):
        memory.catalog.commit_request(memory.identifier(), (), (SetPropertiesUpdate(updates={"a": "1"}),))


def test_a_table_below_two_namespaces_is_made_with_its_first_rows(memory: Kit) -> None:
    memory.catalog.create_namespace(("upper", "lower"))
    with memory.catalog.create_table_transaction(("upper", "lower", "t"), SCHEMA) as tx:
        tx.append(ids(1))
    assert [1] == row_ids(memory.catalog.load_table(("upper", "lower", "t")))


# -- what was sent before ------------------------------------------------------------------------------------


def appended(table: Any, *numbers: int) -> tuple[Any, Any]:
    """Return requirements and updates of an append whose files are written."""
    plain = Transaction(table)
    plain.append(ids(*numbers))
    return sent_by(plain)


def test_a_commit_whose_twin_landed_meanwhile_is_not_refused(memory: Kit, behind: Callable[[Any], None]) -> None:
    table = memory.table()
    requirements, updates = appended(table, 1)
    behind(table)
    other = memory.open()
    other.commit_request(table.name(), requirements, updates)
    other.load_table(table.name()).append(ids(2))
    other.close()
    committed = memory.catalog.commit_request(table.name(), requirements, updates)
    assert committed.landed_before
    assert memory.again(table).metadata_location == committed.location
    assert [1, 2] == row_ids(memory.again(table))


def test_whether_it_was_sent_before_is_unknown_where_the_table_can_not_be_read(
    memory: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, coordinator = memory.table(), memory.catalog.coordinator
    requirements, updates = appended(table, 1)
    memory.again(table).append(ids(2))
    looks, load = iter([True]), coordinator.load

    def fails_the_second_time(name: Any) -> Any:
        if next(looks, False):
            return load(name)
        raise OSError("the store is away")

    monkeypatch.setattr(coordinator, "load", fails_the_second_time)
    with pytest.raises(CommitStateUnknown, match="the store is away"):
        memory.catalog.commit_request(table.name(), requirements, updates)


def test_whether_offsets_have_moved_is_unknown_where_the_table_can_not_be_read(
    memory: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is refused tries again on the new head, and does not compare the offsets again."""
    table, coordinator = memory.table(), memory.catalog.coordinator
    properties = {"kafka.connect.offsets.control.group": '{"0":1}'}
    tx = Transaction(table)
    tx.append(ids(1), snapshot_properties=properties)
    memory.again(table).append(ids(1), snapshot_properties=properties)
    looks, load = iter([True, True]), coordinator.load

    def fails_the_third_time(name: Any) -> Any:
        if next(looks, False):
            return load(name)
        raise OSError("the store is away")

    monkeypatch.setattr(coordinator, "load", fails_the_third_time)
    with pytest.raises(CommitStateUnknown, match="the store is away"):
        memory.catalog.commit_request(table.name(), *sent_by(tx))


def test_a_commit_of_kafka_connect_without_a_latch_is_unknown(memory: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with its offsets yet. They may move before its client comes back, which does not look again."""
    table, coordinator = memory.table(), memory.catalog.coordinator
    tx = Transaction(table)
    tx.append(ids(1), snapshot_properties={"kafka.connect.offsets.control.group": '{"0":1}'})
    monkeypatch.setattr(coordinator, "_acquire_timeout_ms", 50)
    with (
        memory.open().coordinator.latch(table.name(), statement="in the way"),
        pytest.raises(CommitStateUnknown, match="Kafka.s offsets"),
    ):
        memory.catalog.commit_request(table.name(), *sent_by(tx))


def test_a_commit_under_a_name_of_its_clients_lands_once(memory: Kit) -> None:
    table, request_id = memory.table(), str(uuid.uuid4())
    for value in ("1", "2"):
        committed = memory.catalog.commit_request(
            table.name(), (), (SetPropertiesUpdate(updates={"a": value}),), request_id=request_id
        )
        assert ("2" == value) is committed.landed_before
    assert "1" == memory.again(table).properties["a"]
    assert memory.catalog.locks.recall(request_id) is not None  # so the history of the tables may forget it


@pytest.mark.parametrize("again", [False, True], ids=["", "and another made"])
def test_a_commit_that_landed_before_its_table_was_renamed_is_not_refused(memory: Kit, again: bool) -> None:
    """After a refusal the client would delete files that the table uses."""
    table, request_id, new = memory.table(), str(uuid.uuid4()), memory.identifier()
    tx = table.transaction()
    tx.append(ids(1))
    tx.materialise()
    said = (AssertTableUUID(uuid=table.metadata.table_uuid),), sent_by(tx)[1]
    memory.catalog.commit_request(table.name(), *said, request_id=request_id)
    memory.catalog.rename_table(table.name(), new)
    if again:
        memory.catalog.create_table(table.name(), table.schema())
    with pytest.raises(CommitStateUnknown, match="renamed"):
        memory.catalog.commit_request(table.name(), *said, request_id=request_id)
    with pytest.raises((CommitFailedException, NoSuchTableError)):
        memory.catalog.commit_request(table.name(), *said, request_id=str(uuid.uuid4()))
    assert [1] == row_ids(memory.catalog.load_table(new))


def test_a_named_commit_without_a_latch_is_unknown_and_another_one_has_failed(
    memory: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, coordinator = memory.table(), memory.catalog.coordinator
    monkeypatch.setattr(coordinator, "_acquire_timeout_ms", 50)
    with memory.open().coordinator.latch(table.name(), statement="in the way"):
        for request_id, expected in ((str(uuid.uuid4()), CommitStateUnknown), (None, CommitLockFailed)):
            with pytest.raises(expected) as raised:
                updates = (SetPropertiesUpdate(updates={"a": "1"}),)
                memory.catalog.commit_request(table.name(), (), updates, request_id=request_id)
            assert isinstance(raised.value.__cause__, LockError)
            assert request_id is None or request_id in str(raised.value)


def test_several_commits_under_a_name_of_their_clients_land_once(memory: Kit) -> None:
    tables, request_id = [memory.table(), memory.table()], str(uuid.uuid4())
    for value in ("1", "2"):
        committed = memory.catalog.commit_requests(
            [(table.name(), (), (SetPropertiesUpdate(updates={"a": value}),)) for table in tables],
            request_id=request_id,
        )
        assert [each.landed_before for each in committed.values()] == ["2" == value] * 2
    assert ["1", "1"] == [memory.again(table).properties["a"] for table in tables]
    assert memory.catalog.locks.recall(request_id) is not None  # so the history of the tables may forget it


def test_several_commits_are_known_by_their_snapshots(memory: Kit) -> None:
    tables = [memory.table(), memory.table()]
    requests = [(table.name(), *appended(table, 1)) for table in tables]
    memory.catalog.commit_requests(requests)
    memory.again(tables[0]).append(ids(2))
    committed = memory.catalog.commit_requests(requests)
    assert {(table.name(), True) for table in tables} == {
        (name, each.landed_before) for name, each in committed.items()
    }
    assert ([1, 2], [1]) == (row_ids(memory.again(tables[0])), row_ids(memory.again(tables[1])))


def test_several_commits_of_which_a_part_is_there_are_unknown(memory: Kit) -> None:
    one, two = memory.table(), memory.table()
    requests = [(table.name(), *appended(table, 1)) for table in (one, two)]
    memory.catalog.commit_request(*requests[0])
    with pytest.raises(CommitStateUnknown, match="some tables contain their part of the commit"):
        memory.catalog.commit_requests(requests)
    assert [] == row_ids(memory.again(two))


def test_several_commits_of_which_one_is_refused_under_the_latches_land_nothing(
    memory: Kit, behind: Callable[[Any], None]
) -> None:
    one, moved = memory.table(), memory.table()
    sets = (SetPropertiesUpdate(updates={"a": "1"}),)
    behind(moved)
    other = memory.open()
    other.load_table(moved.name()).append(ids(1))
    other.close()
    empty = (AssertRefSnapshotId(ref="main", snapshot_id=None),)
    with pytest.raises(CommitFailedException):
        memory.catalog.commit_requests([(moved.name(), empty, sets), (one.name(), (), sets)])
    assert [None, None] == [memory.again(table).properties.get("a") for table in (one, moved)]


def test_several_commits_with_an_id_are_unknown_where_only_another_commit_had_a_part(memory: Kit) -> None:
    """The snapshot of one table was committed alone before, so no table tells that the whole commit has landed."""
    one, two = memory.table(), memory.table()
    requests = [(table.name(), *appended(table, 1)) for table in (one, two)]
    memory.catalog.commit_request(*requests[0])
    for request_id in (None, str(uuid.uuid4())):
        with pytest.raises(CommitStateUnknown, match="some tables contain their part of the commit"):
            memory.catalog.commit_requests(requests, request_id=request_id)
    assert [] == row_ids(memory.again(two))


@pytest.mark.parametrize("named", [True, False], ids=["with an id", "without"])
def test_several_commits_of_which_one_leaves_no_snapshot(memory: Kit, named: bool) -> None:
    """By its id the commit is found in one table, so it is in all. By a snapshot alone that is not certain."""
    one, two = memory.table(), memory.table()
    requests = [(one.name(), *appended(one, 1)), (two.name(), (), (SetPropertiesUpdate(updates={"a": "1"}),))]
    request_id = str(uuid.uuid4()) if named else None
    memory.catalog.commit_requests(requests, request_id=request_id)
    with memory.again(two).transaction() as tx:
        tx.set_properties({"a": "2"})
    if named:
        again = memory.catalog.commit_requests(requests, request_id=request_id)
        assert [True, True] == [committed.landed_before for committed in again.values()]
    else:
        with pytest.raises(CommitStateUnknown, match="some tables contain their part of the commit"):
            memory.catalog.commit_requests(requests)
    assert ([1], "2") == (row_ids(memory.again(one)), memory.again(two).properties["a"])


@pytest.mark.parametrize("late", [False, True], ids=["before", "under it"])
def test_several_commits_that_have_landed_are_not_refused_because_a_table_is_gone(
    memory: Kit, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """After NoSuchTableError, the client would delete the files that the other table uses."""
    one, two = memory.table(), memory.table()
    sets = (SetPropertiesUpdate(updates={"a": "1"}),)
    requests, request_id = [(one.name(), *appended(one, 1)), (two.name(), (), sets)], str(uuid.uuid4())

    def lands_and_loses_a_table() -> None:
        memory.catalog.commit_requests(requests, request_id=request_id)
        memory.catalog.drop_table(two.name())

    if late:
        commit_tables = memory.catalog.coordinator.commit_tables

        def behind_its_twin(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(memory.catalog.coordinator, "commit_tables", commit_tables)
            lands_and_loses_a_table()
            return commit_tables(*arguments, **options)

        monkeypatch.setattr(memory.catalog.coordinator, "commit_tables", behind_its_twin)
    else:
        lands_and_loses_a_table()
    if late:  # the coordinator finds it in the table that is left, and leaves the other one out of its answer
        assert {one.name()} == memory.catalog.commit_requests(requests, request_id=request_id).keys()
    else:
        with pytest.raises(CommitStateUnknown, match="the commit has landed, and one of its tables was renamed"):
            memory.catalog.commit_requests(requests, request_id=request_id)
    assert [1] == row_ids(memory.again(one))


@pytest.mark.parametrize("declared", ["blind", "checked"])
@pytest.mark.parametrize("length", [None, 0, 3, 40, -20], ids=lambda length: f"cut at {length}")
@pytest.mark.parametrize("which", ["list", "manifest"])
@pytest.mark.parametrize("rows", [0, 1])
def test_a_commit_whose_files_can_not_be_read_is_unknown_and_refused_only_if_it_can_not_have_landed(
    memory: Kit, declared: str, length: int | None, which: str, rows: int
) -> None:
    """A short read may be over in a moment. Files that are gone may be so because the commit has landed and expired."""
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    table = memory.catalog.create_table(memory.identifier(), SCHEMA, partition_spec=spec)
    if rows:
        table.append(ids(100))
    requirements, updates = appended(table, 1)
    (snapshot,) = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
    (manifest, *_) = manifest_list.read(table.io, snapshot.manifest_list)
    path = Path(local(snapshot.manifest_list if which == "list" else manifest.manifest_path))
    if length is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:length])
    refused = length is None and not rows
    with pytest.raises(UpdatesDoNotFit if refused else CommitStateUnknown) as raised:
        memory.catalog.commit_request(table.name(), requirements, updates, declared=declared)
    assert 1 >= str(raised.value).count("did not land")
    assert (400 if refused else 500) == error_answer(raised.value).status
    assert not error_answer(raised.value).head_moved
    assert [100] * rows == row_ids(memory.again(table))


def appended_in_pieces(table: Any, *numbers: int) -> tuple[Any, Any]:
    """Return a commit request that appends each row in a snapshot of its own."""
    tx = Transaction(table)
    for number in numbers:
        tx.append(ids(number))
    return sent_by(tx)


@pytest.mark.parametrize("named", [True, False], ids=["with an id", "without"])
@pytest.mark.parametrize("there", [0, 1, 2, 3])
def test_a_commit_has_landed_only_if_all_its_snapshots_are_there(memory: Kit, there: int, named: bool) -> None:
    table = memory.table()
    _, updates = appended_in_pieces(table, 1, 2, 3)
    at = [number for number, update in enumerate(updates) if isinstance(update, AddSnapshotUpdate)]
    assert 3 == len(at)
    if there:  # another commit brings some of the same snapshots
        memory.catalog.commit_request(table.name(), (), updates[: [*at, len(updates)][there]])
    request_id = str(uuid.uuid4()) if named else None
    if there in (1, 2):
        with pytest.raises(CommitStateUnknown, match="contains only some of the commit.s snapshots"):
            memory.catalog.commit_request(table.name(), (), updates, request_id=request_id)
    else:
        assert (there > 0) == memory.catalog.commit_request(
            table.name(), (), updates, request_id=request_id
        ).landed_before
        assert [1, 2, 3] == row_ids(memory.again(table))


@pytest.mark.parametrize("named", [True, False], ids=["with an id", "without"])
def test_a_commit_whose_snapshots_have_expired_in_part_is_known_by_its_id_only(memory: Kit, named: bool) -> None:
    table = memory.table()
    _, updates = appended_in_pieces(table, 1, 2)
    request_id = str(uuid.uuid4()) if named else None
    landed = memory.catalog.commit_request(table.name(), (), updates, request_id=request_id)
    memory.again(table).maintenance.expire_snapshots().by_id(landed.snapshot_ids[0]).commit()
    if named:
        assert memory.catalog.commit_request(table.name(), (), updates, request_id=request_id).landed_before
    else:
        with pytest.raises(CommitStateUnknown, match="may have expired"):
            memory.catalog.commit_request(table.name(), (), updates)
    assert [1, 2] == row_ids(memory.again(table))


@pytest.mark.parametrize("declared", ["blind", "checked"])
def test_a_summary_that_was_copied_from_another_commit_gets_an_id_of_its_own(memory: Kit, declared: str) -> None:
    other, table = memory.table(), memory.table()
    other.append(ids(1))
    copied = other.current_snapshot().summary
    tx = Transaction(table)
    tx.append(ids(2))
    requirements, updates = sent_by(tx)
    for update in updates:
        if isinstance(update, AddSnapshotUpdate) and update.snapshot.summary is not None:
            update.snapshot.summary[REQUEST_ID] = copied[REQUEST_ID]
    memory.catalog.commit_request(table.name(), requirements, updates, declared=declared)
    found = memory.again(table)
    assert [2] == row_ids(found)
    assert found.current_snapshot().summary[REQUEST_ID] != copied[REQUEST_ID]


@pytest.mark.parametrize("moves", [True, False], ids=["the pointer has moved", "the table is damaged"])
def test_a_commit_whose_head_is_deleted_under_it_reads_the_pointer_again(
    memory: Kit, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    table = memory.table()
    deleted = table.metadata_location
    table.append(ids(1))
    now = memory.again(table).metadata_location
    reader, stale = memory.catalog.coordinator.metadata, [deleted] if moves else []
    pointer = reader._pointer
    monkeypatch.setattr(reader, "_pointer", lambda name: stale.pop() if stale else pointer(name))
    Path(local(deleted if moves else now)).unlink()
    memory.catalog.coordinator.cache.drop(deleted if moves else now)
    sets = (SetPropertiesUpdate(updates={"a": "1"}),)
    if moves:
        assert not memory.catalog.commit_request(table.name(), (), sets).landed_before
        assert ([1], "1") == (row_ids(memory.again(table)), memory.again(table).properties["a"])
        return
    for _ in ("gone", "cut"):
        with pytest.raises(CommitStateUnknown, match="the metadata file of the table does not exist"):
            memory.catalog.commit_request(table.name(), (), sets)
        with pytest.raises(CommitStateUnknown, match="the metadata file of the table does not exist"):
            memory.catalog.commit_requests([(table.name(), (), sets)])
        Path(local(now)).write_text('{"format-version"')


def test_updates_that_never_fit_say_so(memory: Kit) -> None:
    table = memory.table()
    with pytest.raises(UpdatesDoNotFit, match="Schema with id 7 does not exist"):
        memory.catalog.commit_request(table.name(), (), (SetCurrentSchemaUpdate(schema_id=7),))


def test_a_table_gets_no_other_uuid(memory: Kit) -> None:
    table = memory.table()
    with pytest.raises(UpdatesDoNotFit, match="Cannot reassign uuid"):
        memory.catalog.commit_request(table.name(), (), (AssignUUIDUpdate(uuid=uuid.uuid4()),))
    memory.catalog.commit_request(table.name(), (), (AssignUUIDUpdate(uuid=table.metadata.table_uuid),))
    assert table.metadata_location == memory.again(table).metadata_location


def test_a_file_that_is_missing_denies_no_other_copy_of_a_commit(memory: Kit) -> None:
    """1. A copy of the commit reads the list on the same head, and its swap is delayed.   2. The list is gone."""
    table = memory.table(ids(1))
    with table.update_spec() as update:
        update.add_identity("id")
    removal = (RemovePartitionSpecsUpdate(spec_ids=[0]),)
    manifests = Path(local(memory.again(table).current_snapshot().manifest_list))
    hidden = manifests.rename(manifests.with_suffix(".hidden"))
    before = memory.again(table).metadata_location
    with pytest.raises(CommitStateUnknown, match="whether files of the removed partition specs are left"):
        memory.catalog.commit_request(table.name(), (), removal, request_id=str(uuid.uuid4()))
    with pytest.raises(CommitNotApplied, match="whether files of the removed partition specs are left"):
        memory.catalog.commit_request(table.name(), (), removal)
    hidden.rename(manifests)
    assert before == memory.again(table).metadata_location
