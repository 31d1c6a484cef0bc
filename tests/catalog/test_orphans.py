"""Files that nobody refers to: found whatever left them, and never one that a commit has or will have."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from pyiceberg.avro.reader import StringReader

import commit_coord
from commit_coord.catalog import orphans
from commit_coord.catalog.orphans import AT_LEAST_MS, _keys
from commit_coord.errors import InternalError, InvalidArguments, LockTimeout
from commit_coord.model import LockEntry, LockMode, Resource
from tests.catalog.kit import Kit, coordinated, files_in, files_of, ids, kit, local, names, row_ids, rows
from tests.processes import until

DAYS_AGO = time.time() - 5 * 86_400
LOAD_S = 6


@pytest.fixture(scope="module")
def made() -> Iterator[Kit]:
    with kit("lease") as made:
        yield made


def age(*paths: str | Path) -> None:
    """Have *paths* been written days ago."""
    for path in paths:
        os.utime(path, (DAYS_AGO, DAYS_AGO))


def aged(table: Any) -> Any:
    """Have all files of *table* been written days ago."""
    age(*files_in(table.location()))
    return table


def left(table: Any, name: str, content: bytes = b"x") -> str:
    """Return a file in the folder of *table* that nobody refers to, written days ago."""
    path = Path(local(table.location())) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    age(path)
    return str(path)


def found(made: Kit, table: Any, **options: Any) -> set[str]:
    return {local(one.path) for one in coordinated(made.catalog).find_orphans(table.name(), **options).files}


def test_what_crashes_left_is_found_and_all_that_is_needed_stays(made: Kit) -> None:
    table = made.table(ids(1), ids(2), properties={"write.metadata.previous-versions-max": "2"})
    table.delete("id = 1")
    for number in range(3, 6):
        table.append(ids(number))
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(table.current_snapshot().snapshot_id, "b")
    table.append(ids(6), branch="b")
    aged(table)
    needed = files_in(table.location())
    lost = {left(table, "data/00000-0-x.parquet"), left(table, "metadata/00009-x.metadata.json")}
    lost.add(left(table, "data/day=1/_x=2/more.parquet"))
    hidden = {
        left(table, "data/_temporary/0/x.parquet"),
        left(table, "metadata/.x.crc"),
        left(table, "data/a#b.parquet"),
    }
    hidden.add(left(table, "metadata/version-hint.text"))
    young = Path(local(table.location())) / "data" / "young.parquet"
    young.write_bytes(b"x")
    seen = coordinated(made.catalog).find_orphans(table.name())
    assert ({local(one.path) for one in seen.files}, seen.young, seen.at_work) == (lost, 1, 0)
    assert seen.size == 3
    deleted = coordinated(made.catalog).delete_orphans(seen)
    assert deleted == seen
    assert files_in(table.location()) == needed | hidden | {str(young)}
    assert row_ids(made.again(table)) == [2, 3, 4, 5]
    assert row_ids(made.again(table), branch="b") == [2, 3, 4, 5, 6]
    assert found(made, table) == set()


def test_what_expired_snapshots_had_is_found(made: Kit) -> None:
    table = made.table(ids(1))
    table.overwrite(ids(2))
    expired = [
        one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != table.metadata.current_snapshot_id
    ]
    before = row_ids(table)
    table.append(ids(3))
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    aged(table)
    assert any(path.endswith(".avro") for path in found(made, table))
    coordinated(made.catalog).delete_orphans(coordinated(made.catalog).find_orphans(table.name()))
    assert row_ids(made.again(table)) == [*before, 3]


def test_what_was_overwritten_stays_until_it_is_repaired_or_forgotten(made: Kit) -> None:
    from tests.catalog.test_overwritten import put

    table = made.table(ids(1))
    base = table.metadata_location
    table.append(ids(2))
    table.append(ids(3))
    put(made, table, base)
    made.stock.load_table(table.name()).append(ids(4))
    aged(table)
    assert found(made, table) == set()
    made.again(table).append(ids(5))
    aged(table)
    assert found(made, table) == set()
    made.catalog.forget_lost(table.name())
    with pytest.raises(InvalidArguments, match="a metadata file of this table that is not in its history"):
        found(made, table)
    gone = found(made, table, dropped=[str(table.metadata.table_uuid)])
    assert sorted(Path(path).suffix for path in gone) == [".avro"] * 4 + [".json"] * 2 + [".parquet"] * 2


def test_a_writer_that_waits_for_the_latch_is_waited_for(made: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are as old as the queue is long."""
    looked_again = threading.Event()
    table = made.table(ids(1))
    catalog = coordinated(made.catalog)
    before = files_in(table.location())
    latch = catalog.coordinator.latch(tuple(table.name()))
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(made.again(table).append, ids(2))
        until(lambda: len(made.held()) == 2, "a writer in the queue")
        age(*(files_in(table.location()) - before))
        listing = catalog.locks.locks

        def locks(*resources: Resource, **options: Any) -> Sequence[LockEntry]:
            if "scope" in options:
                looked_again.set()
            return listing(*resources, **options)

        monkeypatch.setattr(catalog.locks, "locks", locks)
        looking = pool.submit(found, made, table)
        until(lambda: looked_again.is_set() or looking.done(), "a search that waits for the writer")
        assert not looking.done()
        latch.release()
        writing.result()
        assert looking.result() == set()
    assert row_ids(made.again(table)) == [1, 2]


def test_a_writer_that_does_not_end_is_named() -> None:
    with kit("lease", **{"lock.acquire-timeout-ms": "300"}) as made:
        table = made.table(ids(1))
        stuck = coordinated(made.open()).coordinator.latch(tuple(table.name()), statement="stuck")
        with stuck, pytest.raises(LockTimeout, match="is at work on the table.*statement='stuck'"):
            found(made, table)


def test_what_an_operation_may_have_written_since_it_has_its_locks_is_spared(made: Kit) -> None:
    table = aged(made.table(ids(1)))
    old, new = left(table, "data/old.parquet"), left(table, "data/new.parquet")
    os.utime(new)
    catalog = coordinated(made.catalog)
    with coordinated(made.open()).lock_operation({Resource.table(table.name(), "day=1"): LockMode.SHARED}):
        seen = catalog.find_orphans(table.name(), older_than_ms=0, force=True)
        assert [local(one.path) for one in seen.files] == [old]
        assert seen.at_work == 1
    assert found(made, table, older_than_ms=0, force=True) == {old, new}


def test_what_was_committed_after_the_look_is_not_deleted(made: Kit) -> None:
    table = made.table(ids(1))
    path = left(table, "data/mine.parquet")
    Path(path).write_bytes(
        Path(next(p for p in files_in(table.location()) if p.endswith(".parquet") and p != path)).read_bytes()
    )
    age(path)
    catalog = coordinated(made.catalog)
    seen = catalog.find_orphans(table.name())
    assert [local(one.path) for one in seen.files] == [path]
    table.add_files([f"file://{path}"])
    assert catalog.delete_orphans(seen).files == ()
    assert row_ids(made.again(table)) == [1, 1]


def test_a_short_age_and_a_shared_location_are_refused(made: Kit) -> None:
    table = made.table(ids(1))
    with pytest.raises(InvalidArguments, match="at least 3600000"):
        found(made, table, older_than_ms=AT_LEAST_MS - 1)
    inside = made.catalog.create_table(made.identifier(), table.schema(), location=f"{table.location()}/data/inside")
    with pytest.raises(InvalidArguments, match="another table lies in the location") as refused:
        found(made, table)
    assert refused.value.details["other"] == ".".join(inside.name())
    assert found(made, inside) == set()
    made.catalog.drop_table(inside.name())
    assert found(made, table, dropped=[str(inside.metadata.table_uuid)]) == set()


def test_files_that_another_table_of_the_catalog_refers_to_are_no_orphans(made: Kit) -> None:
    """Not if it refers to them in an old snapshot alone, nor if it takes one between the look and the deletion."""
    table, other, late = made.table(ids(1), ids(2)), made.table(), made.table()
    taken = sorted(path for path in files_in(table.location()) if path.endswith(".parquet"))
    other.add_files([f"file://{path}" for path in taken])
    other.overwrite(ids(3))
    table.overwrite(ids(4))
    table.append(ids(5))
    expired = [one.snapshot_id for one in table.snapshots()[:-1]]
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    lost = [left(table, "data/lost.parquet"), left(table, "data/late.parquet")]
    for path in lost:
        Path(path).write_bytes(Path(taken[0]).read_bytes())
    aged(table)
    catalog = coordinated(made.catalog)
    seen = catalog.find_orphans(table.name())
    assert {local(one.path) for one in seen.files} & {*taken, *lost} == set(lost)
    late.add_files([f"file://{lost[1]}"])
    deleted = catalog.delete_orphans(seen)
    assert len(seen.files) - 1 == len(deleted.files)
    assert len(row_ids(made.again(late))) == 1
    first = other.snapshots()[0].snapshot_id
    assert sorted(row[0] for row in rows(made.again(other), snapshot_id=first)) == [1, 2]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_the_files_of_a_table_of_another_catalog_are_no_orphans(made: Kit, codec: str) -> None:
    """Two catalogs in one database have a table of one name in one folder."""
    table = aged(made.table(ids(1)))
    options = {"warehouse": made.warehouse, "lock-impl": made.impl}
    neighbour: Any = commit_coord.load_catalog(f"{made.name}-2", uri=f"coord+{made.uri}", **options)
    neighbour.create_namespace_if_not_exists(made.namespace)
    codecs = {"write.metadata.compression-codec": codec}
    theirs = neighbour.create_table(table.name(), table.schema(), properties=codecs, location=table.location())
    theirs.append(ids(2))
    aged(table)
    uuid = str(theirs.metadata.table_uuid)
    with pytest.raises(InvalidArguments, match="metadata file of another table.*--dropped") as refused:
        found(made, table)
    assert refused.value.details["uuid"] == uuid
    neighbour.drop_table(theirs.name())
    neighbour.close()
    assert len(found(made, table, dropped=[uuid])) == 5
    torn = left(table, "metadata/1.gz.metadata.json"), left(table, "metadata/2.metadata.json", b"{")
    assert set(torn) < found(made, table, dropped=[uuid])
    coordinated(made.catalog).delete_orphans(coordinated(made.catalog).find_orphans(table.name(), dropped=[uuid]))
    assert found(made, table) == set()
    assert row_ids(made.again(table)) == [1]


def test_a_long_property_before_the_id_hides_no_table(made: Kit) -> None:
    table = made.table()
    left(table, "metadata/x.metadata.json", b'{"a": "%s", "table-uuid": "another"}' % (b"x" * 9_000))
    with pytest.raises(InvalidArguments, match="metadata file of another table"):
        found(made, table)


@pytest.mark.parametrize("library", ["fastavro", "PyIceberg"])
@pytest.mark.parametrize("of", ["manifest", "data file"])
def test_nothing_is_an_orphan_while_a_library_misreads_a_name(
    made: Kit, library: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever name it is, and whichever of the libraries: the other one reads it, too."""
    table = aged(made.table(ids(1), ids(2)))
    manifests = table.current_snapshot().manifests(table.io)
    paths = [one.manifest_path for one in manifests]
    if of == "data file":
        paths = [task.file.file_path for task in table.scan().plan_files()]
    misread = {paths[1]: paths[0]}
    if library == "PyIceberg":
        reading = StringReader.read
        monkeypatch.setattr(StringReader, "read", lambda *args: misread.get(text := reading(*args), text))
    else:
        _misread_by_fastavro(misread, monkeypatch)
    with pytest.raises(InternalError, match="two Avro readers find different file names"):
        found(made, table)
    monkeypatch.undo()
    assert found(made, table) == set()


def _misread_by_fastavro(misread: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have fastavro take texts for others, wherever they are."""

    def taken(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: taken(one) for key, one in value.items()}
        return misread.get(value, value) if isinstance(value, str) else value

    record, file = fastavro.schemaless_reader, fastavro.reader
    monkeypatch.setattr(fastavro, "schemaless_reader", lambda *args: taken(record(*args)))
    monkeypatch.setattr(fastavro, "reader", lambda stream: map(taken, file(stream)))


@pytest.mark.parametrize("missing", ["manifest", "metadata"])
def test_nothing_is_an_orphan_while_the_files_of_another_table_are_not_known(made: Kit, missing: str) -> None:
    table, other = aged(made.table(ids(1))), made.table(ids(2))
    assert found(made, table) == set()
    left(table, "data/x.parquet")
    manifest = next(iter(other.current_snapshot().manifests(other.io)))
    path = Path(local(manifest.manifest_path if missing == "manifest" else other.metadata_location))
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(InvalidArguments, match="files of another table can't be read.*repair or drop") as refused:
        coordinated(made.open()).find_orphans(table.name())
    assert refused.value.details["other"] == ".".join(other.name())
    path.write_bytes(content)
    assert len(found(made, table)) == 1


def test_what_lies_elsewhere_by_a_link_is_left_alone(made: Kit, tmp_path: Path) -> None:
    table = made.table(ids(1))
    far = tmp_path / "far.parquet"
    far.write_bytes(b"x")
    age(far)
    folder = Path(local(table.location())) / "data"
    (folder / "link").symlink_to(tmp_path)
    (folder / "link.parquet").symlink_to(far)
    assert found(made, table) == set()


@pytest.mark.parametrize(
    "one, other",
    [
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("hdfs://name:8020/a", "hdfs:///a"),
        ("hdfs:/a", "hdfs://other/a"),
        ("file:///a//b", "file:/a/b"),
        ("file:///a/x/../b", "/a/./b"),
        ("s3://bucket/a/x/../b", "s3://bucket/a/./b"),
        ("file://localhost/a/b", "/a/b"),
        ("FILE:///a/b", "/a/b"),
        ("a/b", f"{os.getcwd()}/a/b"),
        ("file:a/b", f"file://{os.getcwd()}/a/b"),
        ("file://localhost/a", f"{os.getcwd()}/localhost/a"),
    ],
)
def test_two_spellings_are_one_file(one: str, other: str) -> None:
    assert _keys([one]) & _keys([other])


@pytest.mark.parametrize(
    "other, inside",
    [
        ("s3://us/wh/orders/new", False),
        ("gs://us/wh/orders", False),
        ("s3a://eu/wh/orders/new", True),
        ("s3:///wh/orders", True),
        ("hdfs://us/wh/orders", True),
        ("/wh/orders", True),
    ],
)
def test_one_path_in_two_buckets_is_two_places(monkeypatch: pytest.MonkeyPatch, other: str, inside: bool) -> None:
    there = orphans._Other(kind="table", name=("db", "o"), uuid="u", location=other, places=(other,))
    monkeypatch.setattr(orphans, "_others", lambda *_: [there])
    with pytest.raises(InvalidArguments, match="lies in the location") if inside else nullcontext():
        orphans._refuse_shared(cast("Any", None), ("db", "t"), "s3://eu/wh/orders", ())
    with pytest.raises(InvalidArguments, match="lies in the location") if inside else nullcontext():
        orphans._refuse_shared(cast("Any", None), ("db", "t"), "s3://eu", ())


def test_a_file_that_a_table_refers_to_by_dots_or_a_link_stays(made: Kit, tmp_path: Path) -> None:
    """Its data goes to a folder below its location, which its property spells in another way."""
    for by_link in (False, True):
        table = made.table()
        (tmp_path / f"{by_link}").symlink_to(at := local(table.location()))
        path = f"file://{tmp_path}/True/data2" if by_link else f"{at}/../{Path(at).name}/data2"
        with table.transaction() as tx:
            tx.set_properties({"write.data.path": path})
        table.append(ids(1))
        assert found(made, aged(table)) == set()


def test_a_table_that_lies_in_the_location_of_another_by_dots_or_a_link_is_seen(made: Kit, tmp_path: Path) -> None:
    outer = made.table(ids(1))
    (tmp_path / "link").symlink_to(local(outer.location()))
    for location in (f"{outer.location()}/x/../inner", f"file://{tmp_path}/link/inner"):
        inner = made.identifier()
        made.catalog.create_table(inner, outer.schema(), location=location)
        with pytest.raises(InvalidArguments, match="another table lies in the location"):
            found(made, outer)
        made.catalog.drop_table(inner)


def test_a_table_without_a_location_of_its_own_is_refused(made: Kit) -> None:
    with pytest.raises(InvalidArguments, match="a root"):
        orphans._refuse_shared(coordinated(made.catalog), ("db", "t"), "file:///", ())


def test_orphans_are_deleted_during_a_load() -> None:
    """Writers append while files of the dead are deleted that are seconds old: nothing that was acknowledged goes."""
    with kit("lease") as made:
        table = made.table(ids(0))
        catalog, dice = coordinated(made.catalog), random.Random(1)
        landed: set[int] = {0}
        left_by_the_dead = 0
        deleted: list[str] = []
        stop = threading.Event()
        failures: list[BaseException] = []

        def append(number: int) -> None:
            writer = made.open()
            mine = writer.load_table(table.name())
            try:
                while not stop.is_set():
                    mine.append(ids(number))
                    landed.add(number)
                    number += 1
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                failures.append(error)
            finally:
                writer.close()

        writers = [threading.Thread(target=append, args=(1_000_000 * one,)) for one in (1, 2, 3)]
        for writer in writers:
            writer.start()
        began = time.monotonic()
        while time.monotonic() - began < LOAD_S:
            left(table, f"data/dead-{left_by_the_dead}.parquet")
            left_by_the_dead += 1
            seen = catalog.find_orphans(table.name(), older_than_ms=3_000, force=True)
            deleted += names(one.path for one in catalog.delete_orphans(seen).files)
            stop.wait(dice.random() * 0.2)  # the subject: files that are older in each search
        stop.set()
        for writer in writers:
            writer.join()
        assert failures == []
        assert {f"dead-{one}.parquet" for one in range(left_by_the_dead)} <= set(deleted)
        table = made.again(table)
        assert set(row_ids(table)) == landed
        assert files_of(table) <= files_in(table.location())
        assert len(landed) > 30
