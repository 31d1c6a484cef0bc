"""No file that anything needs is deleted as an orphan: however locations are spelled, whatever needs the file."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

import commit_coord
from commit_coord.catalog import moved_notes, orphans
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.coordinator import delete_quietly
from commit_coord.errors import CommitLockFailed, InvalidArguments, LockRefused, LockServiceUnavailable, LockTimeout
from commit_coord.iceberg.overwrites import Acknowledged, HandoverNote
from commit_coord.protocol.commit import SwapResult
from tests.catalog.kit import SCHEMA, Kit, coordinated, files_in, files_of, ids, kit, row_ids
from tests.catalog.test_overwritten import put
from tests.limits import PATIENCE


@pytest.fixture(scope="module")
def made() -> Iterator[Kit]:
    with kit("lease") as made:
        yield made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, from which relative locations count."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    (tmp_path / "linked").mkdir()
    return tmp_path


SPELLINGS = {
    "url": "file://{folder}/a",
    "Hadoop's": "file:{folder}/a",
    "path": "{folder}/a",
    "dots": "file://{folder}/x/../a",
    "link": "file://{folder}/link/a",
    "relative": "a",
    "relative url": "file:a",
    "with a host": "file://localhost{folder}/a",
}


def place(location: str) -> str:
    """Return the file that PyIceberg opens for *location*."""
    return os.path.realpath(PyArrowFileIO.parse_location(location)[2])


@dataclass
class Needs:
    """What needs files in the location of a table.

    Args:
        table: The table whose orphans are looked for.
        files: What has to stay.
        dropped: What the caller takes for dropped although it is not.
        elsewhere: Whether another catalog has the table, too. If none has, the caller says so.
        reads: Assert that all rows are still there.
    """

    table: Any
    files: set[str]
    dropped: Sequence[str] = ()
    elsewhere: bool = False
    reads: Callable[[], Any] = lambda: None


def _imported(table: Any, number: int) -> str:
    """Return the path of a file of rows in the folder of *table*, which no table refers to."""
    path = Path(place(table.location())) / "data" / f"imported-{number}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ids(number), path)
    return str(path)


def _own_rows(made: Kit, table: Any) -> Needs:
    """By its absolute path, on a branch."""
    table.append(ids(2))
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(table.current_snapshot().snapshot_id, "b")
    table.add_files([path := _imported(table, 3)], branch="b")
    return Needs(table, files_of(table) | {path})


def _statistics(made: Kit, table: Any) -> Needs:
    path = Path(place(table.location())) / "metadata" / "1.stats"
    path.write_bytes(b"x")
    snapshot_id = table.current_snapshot().snapshot_id
    blob = BlobMetadata(
        type="apache-datasketches-theta-v1", snapshot_id=snapshot_id, sequence_number=1, fields=[1], properties={}
    )
    file = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=str(path),
        file_size_in_bytes=1,
        file_footer_size_in_bytes=1,
        blob_metadata=[blob],
    )
    with table.update_statistics() as update:
        update.set_statistics(file)
    return Needs(table, files_of(table) | {str(path)})


def _other_table_inside(made: Kit, table: Any) -> Needs:
    other = made.table(ids(5), location=f"{place(table.location())}/inside")
    return _other(made, table, other)


def _other_table_that_writes_here(made: Kit, table: Any) -> Needs:
    other = made.table(ids(5), properties={"write.data.path": f"{place(table.location())}/data/other"})
    return _other(made, table, other)


def _other_table_that_took_a_file(made: Kit, table: Any) -> Needs:
    other = made.table(ids(5))
    other.add_files([_imported(table, 6)])
    return _other(made, table, other)


def _other(made: Kit, table: Any, other: Any) -> Needs:
    expected = row_ids(other)

    def reads() -> None:
        assert expected == row_ids(coordinated(made.open()).load_table(other.name()))

    return Needs(table, files_of(other), [str(other.metadata.table_uuid)], reads=reads)


def _lost_commit_of_another_table(made: Kit, table: Any) -> Needs:
    other = made.table(ids(5))
    base = other.metadata_location
    other.add_files([path := _imported(table, 6)])
    lost = files_of(other)
    put(made, other, base)
    made.stock.load_table(other.name()).append(ids(7))
    made.again(other).append(ids(8))
    return Needs(table, {path, *lost})


def _overwritten(made: Kit, table: Any) -> set[str]:
    """Have the last commit of *table* overwritten; return its files."""
    base = table.metadata_location
    table.append(ids(2))
    lost = files_of(table)
    put(made, table, base)
    made.stock.load_table(table.name()).append(ids(100))
    made.again(table).append(ids(101))
    return lost


def _lost_commit(made: Kit, table: Any) -> Needs:
    return Needs(table, _overwritten(made, table))


def _lost_commit_of_a_renamed_table(made: Kit, table: Any) -> Needs:
    lost = _overwritten(made, table)
    return Needs(made.catalog.rename_table(table.name(), made.identifier()), lost)


def _lost_commit_before_a_registration_that_fails(made: Kit, table: Any) -> Needs:
    base, lost = table.metadata_location, _overwritten(made, table)
    catalog = coordinated(made.catalog)
    catalog.__dict__["swap"] = lambda *_: SwapResult.MOVED
    try:
        with pytest.raises(CommitFailedException, match="changed by another writer"):
            catalog.register_table(table.name(), base, overwrite=True)
    finally:
        del catalog.__dict__["swap"]
    return Needs(table, lost)


def _view_in_the_folder_of_a_renamed_table(made: Kit, table: Any) -> Needs:
    query = ViewRepresentation(SQLViewRepresentation(type="sql", sql="select 1", dialect="spark"))
    version = ViewVersion(
        version_id=1, schema_id=0, timestamp_ms=1, summary={}, representations=[query], default_namespace=("db",)
    )
    view = made.catalog.create_view(made.identifier(), SCHEMA, version, location=place(table.location()))
    name = view.name()

    def reads() -> None:
        assert view.metadata == coordinated(made.open()).load_view(name).metadata

    files = {place(coordinated(made.catalog).view_location(name))}
    return Needs(table, files, [str(view.metadata.view_uuid)], reads=reads)


def _same_table_of_another_catalog(made: Kit, table: Any) -> Needs:
    options = {"warehouse": made.warehouse, "lock-impl": made.impl}
    with commit_coord.load_catalog(f"{made.name}-2", uri=f"coord+{made.uri}", **options) as neighbour:
        neighbour.create_namespace_if_not_exists(made.namespace)
        theirs: Any = neighbour.register_table(made.identifier(), table.metadata_location)
        theirs.append(ids(50))
        table.append(ids(2))
        return Needs(table, files_of(theirs), elsewhere=True)


NEEDS: dict[str, Callable[[Kit, Any], Needs]] = {
    made.__name__.strip("_").replace("_", " "): made
    for made in (
        _own_rows,
        _statistics,
        _other_table_inside,
        _other_table_that_writes_here,
        _other_table_that_took_a_file,
        _lost_commit,
        _lost_commit_of_another_table,
        _lost_commit_of_a_renamed_table,
        _lost_commit_before_a_registration_that_fails,
        _view_in_the_folder_of_a_renamed_table,
        _same_table_of_another_catalog,
    )
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("who", NEEDS)
def test_no_file_that_anything_needs_is_deleted(made: Kit, folder: Path, who: str, spelling: str) -> None:
    """Not even if the caller takes what is there for dropped."""
    table = made.table(ids(1), location=SPELLINGS[spelling].format(folder=folder))
    try:
        needs = NEEDS[who](made, table)
        needed = {place(path) for path in needs.files}
        for path in files_in(folder):
            os.utime(path, (0, 0))
        catalog = coordinated(made.open())
        own = [] if needs.elsewhere else [str(table.metadata.table_uuid)]
        for dropped in ([], own, [*own, *needs.dropped]):
            with suppress(InvalidArguments):
                catalog.delete_orphans(catalog.find_orphans(needs.table.name(), dropped=dropped))
            assert set() == {path for path in needed if not os.path.exists(path)}
        needs.reads()
        assert 1 in row_ids(catalog.load_table(needs.table.name()))
    finally:
        for name in made.catalog.list_tables(made.namespace):
            made.catalog.drop_table(name)
        for name in made.catalog.list_views(made.namespace):
            made.catalog.drop_view(name)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_orphan_is_found_however_the_location_is_spelled(made: Kit, folder: Path, spelling: str) -> None:
    table = made.table(ids(1), location=SPELLINGS[spelling].format(folder=folder))
    left = _imported(table, 9)
    for path in files_in(folder):
        os.utime(path, (0, 0))
    catalog = coordinated(made.catalog)
    found = catalog.find_orphans(table.name())
    assert [left] == [place(one.path) for one in found.files]
    catalog.delete_orphans(found)
    assert not Path(left).exists()
    assert [1] == row_ids(made.again(table))
    made.catalog.drop_table(table.name())


def test_a_head_that_later_writers_have_deleted_is_no_loss(made: Kit) -> None:
    """They trim the metadata log, delete old metadata files, and leave no note."""
    cleaning = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    table = made.table(ids(1), properties=cleaning)
    for number in range(2, 6):
        made.stock.load_table(table.name()).append(ids(number))
    catalog = coordinated(made.open())
    assert () == catalog.find_orphans(table.name()).files
    assert () == catalog.find_lost(table.name()).commits


def _busy(catalog: CoordinatedCatalog, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit holds its latch for longer than the search waits at first."""
    latch = catalog.coordinator.note_latch

    def at_work(table: Any, *, statement: str, within_ms: int | None = None) -> Any:
        if table == other.name() and within_ms is not None:
            raise LockTimeout("busy", resource=table)
        return latch(table, statement=statement, within_ms=within_ms)

    monkeypatch.setattr(catalog.coordinator, "note_latch", at_work)


def _without_notes(catalog: CoordinatedCatalog, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock manager keeps no notes, and the table is one of another lock manager."""
    latch = catalog.coordinator.latch

    def guarded(*tables: Any, statement: str) -> Any:
        if other.name() in tables:
            raise LockRefused("guarded", resource=tables)
        return latch(*tables, statement=statement)

    guarantees = replace(catalog.locks.guarantees, notes=False)
    monkeypatch.setattr(catalog.locks, "guarantees", guarantees)
    monkeypatch.setattr(catalog.coordinator, "latch", guarded)


def _lost_and_deleted(catalog: CoordinatedCatalog, other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tool has deleted the metadata file of a lost commit."""
    metadata = other.metadata
    gone = Acknowledged(location=f"{metadata.location}/gone.metadata.json", table_uuid=str(metadata.table_uuid))
    with catalog.coordinator.latch(other.name(), statement="lose") as latch:
        latch.set_handover_note(HandoverNote(lost=(gone,)).to_text())


@pytest.mark.parametrize("neighbour", [_busy, _without_notes, _lost_and_deleted])
@pytest.mark.parametrize("takes", [False, True])
def test_another_table_keeps_what_it_needs_and_keeps_no_job_from_its_work(
    made: Kit, monkeypatch: pytest.MonkeyPatch, neighbour: Callable[..., None], takes: bool
) -> None:
    table, other = made.table(ids(1)), made.table(ids(2))
    path = _imported(table, 3)
    if takes:
        other.add_files([path])
    for each in files_in(table.location()):
        os.utime(each, (0, 0))
    catalog = coordinated(made.open())
    neighbour(catalog, other, monkeypatch)
    found = catalog.find_orphans(table.name())
    assert ([] if takes else [path]) == [place(one.path) for one in found.files]
    catalog.delete_orphans(found)
    assert takes == Path(path).exists()


def test_a_live_table_or_view_is_not_taken_for_dropped(made: Kit) -> None:
    table, other = made.table(ids(1)), made.table()
    with pytest.raises(InvalidArguments, match="the table with this UUID is in the catalog, so it was not dropped"):
        coordinated(made.catalog).find_orphans(table.name(), dropped=[str(other.metadata.table_uuid)])


@pytest.mark.parametrize("landed", [False, True])
def test_a_rename_that_ends_midway_leaves_the_note_where_the_table_is(
    made: Kit, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    table, new = made.table(ids(1)), made.identifier()
    _overwritten(made, table)
    catalog = coordinated(made.catalog)
    renaming = catalog._rename

    def dies(old: Any, to: Any) -> None:
        if landed:
            renaming(old, to)
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "_rename", dies)
    with pytest.raises(KeyboardInterrupt):
        catalog.rename_table(table.name(), new)
    monkeypatch.undo()
    name = new if landed else table.name()
    assert 1 == len(coordinated(made.open()).find_lost(name).restorable)


def test_what_a_commit_notes_before_the_rename_gets_its_latch_moves_along(
    made: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the old name has no note, and a rename back brings back nothing that was forgotten meanwhile."""
    table, new = made.table(ids(1)), made.identifier()
    base = table.metadata_location
    catalog = coordinated(made.catalog)
    latch = catalog._latch

    def late(*tables: Any, statement: str) -> Any:
        if len(tables) == 2:
            monkeypatch.undo()
            table.append(ids(2))
            put(made, table, base)
            made.stock.load_table(table.name()).append(ids(100))
            made.again(table).append(ids(101))
        return latch(*tables, statement=statement)

    monkeypatch.setattr(catalog, "_latch", late)
    catalog.rename_table(table.name(), new)
    assert 1 == len(catalog.find_lost(new).restorable)
    catalog.forget_lost(new)
    catalog.rename_table(new, table.name())
    assert () == catalog.find_lost(table.name()).commits


def test_a_renamed_table_gets_no_note_of_the_table_that_has_its_old_name_now(
    made: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, new = made.table(ids(1)), made.identifier()
    catalog = coordinated(made.catalog)
    moving = moved_notes._move

    def late(*args: Any) -> None:
        made.catalog.create_table(table.name(), SCHEMA).append(ids(9))
        moving(*args)

    monkeypatch.setattr(moved_notes, "_move", late)
    renamed: Any = catalog.rename_table(table.name(), new)
    for name, uuid in ((new, renamed.metadata.table_uuid), (table.name(), made.again(table).metadata.table_uuid)):
        latch = catalog.coordinator.note_latch(name, statement="look")
        assert latch is not None
        with latch:
            head = HandoverNote.parse(latch.handover_note or "").head
        assert head is not None
        assert str(uuid) == head.table_uuid


def test_a_name_that_becomes_free_during_a_rename_gets_the_note(made: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = made.table(ids(1)), made.table(ids(5))
    _overwritten(made, table)
    catalog = coordinated(made.catalog)
    latch = catalog._latch

    def late(*tables: Any, statement: str) -> Any:
        if len(tables) == 2:
            monkeypatch.undo()
            made.stock.drop_table(other.name())
        return latch(*tables, statement=statement)

    monkeypatch.setattr(catalog, "_latch", late)
    catalog.rename_table(table.name(), other.name())
    assert 1 == len(catalog.find_lost(other.name()).restorable)


@pytest.mark.parametrize("error", [LockTimeout("busy"), OSError("away")])
def test_a_rename_that_landed_is_done_even_if_its_notes_can_not_follow(
    made: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    table, new = made.table(ids(1)), made.identifier()
    catalog = coordinated(made.catalog)

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(moved_notes, "_move", fails)
    assert [1] == row_ids(catalog.rename_table(table.name(), new))
    assert "what its last commits noted could not follow" in caplog.text


def _keep_notes_elsewhere(catalog: Any, monkeypatch: pytest.MonkeyPatch, service: Any) -> None:
    """Have *service* show the notes, and the latches of commits show none: as in a migration that has not begun."""
    locks = catalog.locks
    monkeypatch.setattr(locks, "guarantees", replace(locks.guarantees, notes=False))
    monkeypatch.setattr(locks, "acquire_note", service)


def test_a_rename_without_the_service_of_the_notes_leaves_the_note_behind(
    made: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise LockServiceUnavailable("no reply")

    table, new = made.table(ids(1)), made.identifier()
    catalog = coordinated(made.catalog)
    _keep_notes_elsewhere(catalog, monkeypatch, away)
    assert [1] == row_ids(catalog.rename_table(table.name(), new))
    assert "what its last commits noted could not follow" in caplog.text


def test_a_rename_without_the_service_of_its_locks_is_refused(made: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise LockServiceUnavailable("no reply")

    table, new = made.table(ids(1)), made.identifier()
    catalog = coordinated(made.catalog)
    monkeypatch.setattr(catalog.locks, "acquire", away)
    with pytest.raises(CommitLockFailed, match="nothing was changed"):
        catalog.rename_table(table.name(), new)


def test_no_file_is_deleted_while_a_writer_has_the_latch_and_the_notes_are_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer may add the file: it is about to commit."""
    with kit("memory") as elsewhere, kit("memory", **{"lock.acquire-timeout-ms": "300"}) as made:
        table, catalog = made.table(ids(1)), coordinated(made.catalog)
        Path(table.location().removeprefix("file://"), "data", "old.parquet").write_bytes(b"four")
        seen = catalog.find_orphans(table.name(), older_than_ms=0, force=True)
        assert 1 == len(seen.files)
        _keep_notes_elsewhere(catalog, monkeypatch, coordinated(elsewhere.catalog).locks.acquire)
        held, done = threading.Event(), threading.Event()

        def write() -> None:
            with catalog.coordinator.latch(tuple(table.name()), statement="add_files"):
                held.set()
                done.wait(PATIENCE)

        with ThreadPoolExecutor(1) as writer:
            writing = writer.submit(write)
            assert held.wait(PATIENCE)
            try:
                with pytest.raises(LockTimeout):
                    catalog.delete_orphans(seen)
            finally:
                done.set()
            writing.result()
        assert seen.files == catalog.delete_orphans(seen).files


def test_the_error_of_a_signal_handler_ends_a_rename(made: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise TimeoutError("the job has to end")

    def signalled(*_: Any) -> None:
        signal.raise_signal(signal.SIGALRM)

    table, new = made.table(ids(1)), made.identifier()
    catalog = coordinated(made.catalog)
    monkeypatch.setattr(moved_notes, "_move", signalled)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - it is looked at below
            catalog.rename_table(table.name(), new)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "the job has to end" in str(raised.value) + str(raised.value.__cause__)


def test_an_interrupt_ends_the_deletion_and_all_that_is_gone_is_known(
    made: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made.table(ids(1))
    for number in range(200):
        _imported(table, number)
    for path in files_in(table.location()):
        os.utime(path, (0, 0))
    catalog, gone = coordinated(made.catalog), list[str]()
    found = catalog.find_orphans(table.name())
    assert 200 == len(found.files)

    begun, goes_on = threading.Event(), threading.Event()

    def delete(io: FileIO, path: str) -> bool:
        begun.set()
        return goes_on.wait(PATIENCE) and delete_quietly(io, path)

    def interrupted(deletions: Sequence[Future[bool]]) -> Any:
        monkeypatch.setattr(orphans, "wait", wait_for_the_rest)
        assert begun.wait(PATIENCE)
        raise KeyboardInterrupt

    def wait_for_the_rest(deletions: Sequence[Future[bool]]) -> Any:
        goes_on.set()
        return wait(deletions)

    monkeypatch.setattr(orphans, "delete_quietly", delete)
    monkeypatch.setattr(orphans, "wait", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            catalog.delete_orphans(found, on_deleted=lambda one: gone.append(place(one.path)))
    finally:
        goes_on.set()
    left = files_in(table.location())
    assert gone
    assert {place(one.path) for one in found.files} - left == set(gone)
    assert 0 == len(left & set(gone))
