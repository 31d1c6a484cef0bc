"""Tables whose property says so: the appends that one commit publishes share a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import parquet_files_to_data_files

from commit_coord import CommitConflict, CommitStateUnknown
from commit_coord.cli import main
from commit_coord.config import COALESCE
from commit_coord.coordinator import groups
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.attempt import Append, Attempt, together
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.locks.memory import MemoryLease
from commit_coord.model import Offer, Resource
from tests.coordinator.test_groups import (
    TABLE,
    Action,
    Counting,
    appending,
    ids,
    in_line,
    number,
    open_catalog,
    swapped_late,
)


@pytest.fixture(params=["memory", "lease"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    catalog = open_catalog(tmp_path, request.param)
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema, properties={COALESCE: "true"}).append(number(0))
    yield catalog
    assert catalog.locks.locks(Resource.table(TABLE)) == []
    catalog.close()


def request_ids(catalog: Any) -> list[list[str]]:
    """Return the request ids of each snapshot."""
    return [s.summary[REQUEST_ID].split(",") for s in catalog.load_table("db.t").metadata.snapshots]


def test_a_group_is_one_snapshot_with_the_ids_of_all(catalog: Any) -> None:
    results = in_line(catalog, *(appending(value) for value in range(1, 6)))
    table = catalog.load_table("db.t")
    last = table.current_snapshot()
    assert [1, 5] == [len(found) for found in request_ids(catalog)]
    assert [0, 1, 2, 3, 4, 5] == ids(catalog)
    assert ("5", "5", "6", "6") == tuple(
        last.summary[key] for key in ("added-data-files", "added-records", "total-data-files", "total-records")
    )
    for mine in results:
        assert last == mine.current_snapshot(), "each sees the snapshot that has its rows"
        assert [0, 1, 2, 3, 4, 5] == sorted(mine.scan().to_arrow()["id"].to_pylist())


def test_every_file_is_one_that_the_snapshot_added(catalog: Any) -> None:
    """By the manifest's entry in the list and by its own entries: that is how others read only what is new."""
    in_line(catalog, *(appending(value) for value in range(1, 4)))
    table = catalog.load_table("db.t")
    snapshot = table.current_snapshot()
    added = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
    entries = [entry for manifest in added for entry in manifest.fetch_manifest_entry(table.io)]
    assert 3 == len(entries) == len({entry.data_file.file_path for entry in entries})
    assert {(snapshot.snapshot_id, 2)} == {(entry.snapshot_id, entry.sequence_number) for entry in entries}


def test_each_append_is_found_by_its_request_id(catalog: Any, capsys: pytest.CaptureFixture[str]) -> None:
    in_line(catalog, *(appending(value) for value in range(1, 4)))
    table = catalog.load_table("db.t")
    last = table.current_snapshot().snapshot_id
    for request_id in request_ids(catalog)[-1]:
        found = table.find_commit(request_id)
        assert found is not None
        assert (last,) == found.snapshot_ids
    if catalog.locks.name == "lease":
        where = ["--uri", f"coord+{catalog.properties['uri']}", "--warehouse", catalog.properties["warehouse"]]
        with pytest.raises(SystemExit, match="0"):
            main(["commits", "db.t", "--request-id", request_ids(catalog)[-1][2][:13], "--catalog", "groups", *where])
        assert str(last) in capsys.readouterr().out


def test_what_conflicts_is_refused_alone(catalog: Any) -> None:
    stale, table = catalog.load_table("db.t"), catalog.load_table("db.t")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "x").commit()

    def conflicting(_: Any) -> object:
        return stale.append(number(7), branch="x")

    _, error, _ = in_line(catalog, appending(1), conflicting, appending(2))
    assert isinstance(error, CommitConflict)
    assert [1, 2] == [len(found) for found in request_ids(catalog)]
    assert [0, 1, 2] == ids(catalog)


def test_branches_and_other_summaries_have_their_own_snapshots(catalog: Any) -> None:
    """Nothing that a writer put into its summary gets lost."""
    table = catalog.load_table("db.t")
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "dev").commit()

    def saying(value: int, **said: str) -> Action:
        return lambda table: table.append(number(value), snapshot_properties=said)

    store = catalog.coordinator.store = Counting(catalog)
    in_line(
        catalog,
        appending(1),
        appending(2),
        saying(3, job="a"),
        saying(4, job="a"),
        saying(5, job="b"),
        appending(6, "dev"),
        appending(7, "dev"),
    )
    assert 1 == len(store.swaps)
    assert [1, 2, 2, 1, 2] == [len(found) for found in request_ids(catalog)]
    snapshots = catalog.load_table("db.t").metadata.snapshots
    assert [None, None, "a", "b", None] == [s.summary.get("job") for s in snapshots]
    assert ([0, 1, 2, 3, 4, 5], [0, 6, 7]) == (ids(catalog), ids(catalog, "dev"))


def test_an_append_from_before_the_property_has_its_own_snapshot(catalog: Any) -> None:
    """Its manifest names its snapshot."""
    table = catalog.load_table("db.t")
    table.transaction().set_properties({COALESCE: "false"}).commit_transaction()
    old = catalog.load_table("db.t")
    table.transaction().set_properties({COALESCE: "true"}).commit_transaction()

    def late(_: Any) -> object:
        return old.append(number(2))

    in_line(catalog, appending(1), late, appending(3), appending(4))
    assert [1, 1, 1, 2] == [len(found) for found in request_ids(catalog)]
    assert [0, 1, 2, 3, 4] == ids(catalog)


def test_a_list_that_cannot_be_written_for_all_is_written_for_the_holder(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = manifest_list.write_appended, list[int]()

    def write(*arguments: Any, **kwargs: Any) -> bool:
        if len(kwargs["added"]) == 3 and not failed:
            failed.append(1)
            raise OSError("one of them")
        return real(*arguments, **kwargs)

    monkeypatch.setattr(manifest_list, "write_appended", write)
    in_line(catalog, *(appending(value) for value in range(1, 4)))
    assert [1, 1, 2] == [len(found) for found in request_ids(catalog)]
    assert [0, 1, 2, 3] == ids(catalog)


def test_a_swap_that_comes_in_late_carries_its_members_once(catalog: Any) -> None:
    first, *members = swapped_late(catalog)
    assert isinstance(first, CommitStateUnknown)
    assert not any(isinstance(member, Exception) for member in members)
    assert [1, 3] == [len(found) for found in request_ids(catalog)]
    assert [0, 1, 2, 3] == ids(catalog)


@pytest.mark.parametrize("catalog", ["memory"], indirect=True)
def test_an_offer_that_is_taken_a_second_time_is_there_once(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a lock manager hands out: its rows are in a snapshot that has another id."""
    taken: list[Offer] = []
    real = MemoryLease.take

    def take(lease: MemoryLease, limit: int) -> Sequence[Offer]:
        taken.extend(found := real(lease, limit))
        return found

    monkeypatch.setattr(MemoryLease, "take", take)
    in_line(catalog, appending(1), appending(2))
    assert 1 == len(taken)
    monkeypatch.setattr(MemoryLease, "take", lambda lease, limit: taken)
    catalog.load_table("db.t").append(number(3))
    assert [0, 1, 2, 3] == ids(catalog)


def repeatable(catalog: Any, value: int, request_id: str) -> Action:
    """Return the commit of a file of its own under *request_id*; what it returns says whether it landed now."""
    table = catalog.load_table("db.t")
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    pq.write_table(number(value).cast(table.schema().as_arrow()), path.removeprefix("file://"))
    files = list(parquet_files_to_data_files(table.io, table.metadata, iter([path])))
    return lambda table: table.commit_files(files, request_id=request_id)


def test_a_request_of_the_caller_shares_a_snapshot_once(catalog: Any) -> None:
    """Of two that wait in one queue under one id, and one that landed before, each is there once."""
    before, now = str(uuid.uuid4()), str(uuid.uuid4())
    assert repeatable(catalog, 1, before)(catalog.load_table("db.t"))
    results = in_line(
        catalog,
        appending(2),
        repeatable(catalog, 3, now),
        repeatable(catalog, 4, now),
        repeatable(catalog, 5, before),
        appending(6),
    )
    assert [True, False, False] == results[1:4]
    assert [0, 1, 2, 3, 6] == ids(catalog)
    found = catalog.load_table("db.t").find_commit(now)
    assert 3 == len(request_ids(catalog)[-1]), "the holder, the first of the id, and the last in line"
    assert (catalog.load_table("db.t").current_snapshot().snapshot_id,) == found.snapshot_ids
    assert catalog.locks.recall(now) is not None


def test_a_carried_request_whose_holder_was_gone_keeps_its_files(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds itself under its id in the head, by its own manifest, and not as an earlier commit of that id."""

    def settle(*_: Any) -> None:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(groups, "journal_entry", settle)
        first, landed = in_line(catalog, appending(1), repeatable(catalog, 2, str(uuid.uuid4())))
    assert isinstance(first, CommitStateUnknown)
    assert isinstance(first.__cause__, OSError)
    assert landed is True
    assert [0, 1, 2] == ids(catalog)
    assert [1, 2] == [len(found) for found in request_ids(catalog)]


def test_what_writers_say_of_their_appends_is_not_added_up() -> None:
    """But for Iceberg's own counts. Appends of which different things are said have a snapshot each."""

    def append(summary: dict[str, str]) -> Attempt:
        brought = Append(snapshot_id=1, branch="main", manifests=(), schema_id=0, inherits=True, summary=summary)
        return Attempt(
            request_id=str(uuid.uuid4()),
            table=TABLE,
            table_uuid="",
            base_location="",
            requirements=(),
            updates=(),
            append=brought,
        )

    first, second = (append({"added-records": "1", "added-at-hour": "17"}) for _ in range(2))
    both = together(first, second)
    assert both is not None
    assert both.append is not None
    assert {"added-records": "2", "added-at-hour": "17"} == both.append.summary
    assert together(first, append({"added-records": "1", "added-at-hour": "18"})) is None


def overwritten(catalog: Any) -> list[str]:
    """Return the request ids of rows 1, 2 and 3, which share a snapshot that was overwritten."""
    in_line(catalog, *(appending(value) for value in range(1, 4)))
    shared = request_ids(catalog)[-1]
    assert len(shared) == 3
    base = catalog.load_table("db.t").metadata.metadata_log[-1].metadata_file
    with catalog.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE iceberg_tables SET metadata_location = ?", (base,))
    return shared


def test_a_shared_snapshot_that_was_overwritten_is_brought_back_once(catalog: Any) -> None:
    shared = overwritten(catalog)
    found = catalog.find_lost("db.t")
    for _ in range(2):
        catalog.repair(found)
        assert [0, 1, 2, 3] == ids(catalog)
    table = catalog.load_table("db.t")
    assert all(table.find_commit(one).snapshot_ids == found.commits[0].snapshot_ids for one in shared)
    table.delete("id = 2")
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()[:-1]]).commit()
    (again,) = catalog.find_lost("db.t", since=[found.commits[0].location]).commits
    assert again.restored


def test_a_shared_snapshot_of_which_a_request_was_repeated_is_left_to_people(catalog: Any) -> None:
    shared = overwritten(catalog)
    with catalog.transaction(shared[1]) as tx:
        tx.table("db.t").append(number(2))
    (lost,) = catalog.find_lost("db.t").commits
    assert "has landed again" in lost.advice
    assert not lost.restorable
