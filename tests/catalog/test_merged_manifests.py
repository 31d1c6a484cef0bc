"""``commit.manifest-merge.enabled``: small appends, few manifests, nothing lost."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from commit_coord.config import COALESCE
from commit_coord.iceberg import manifest_list, manifests
from tests.catalog.kit import Kit, files_in, ids, names, orphans, row_ids
from tests.coordinator.test_groups import in_line

MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "5"}
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", StringType()))
BY_DAY_AND_ID = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "day"), PartitionField(1, 1001, BucketTransform(4), "bucket")
)


def rows(number: int) -> pa.Table:
    days = pa.array([f"2026-01-{number % 7 + 1:02}", None if number % 5 == 0 else "2026-02-01"], pa.string())
    return pa.table({"id": pa.array([number, -number], pa.int64()), "day": days})


def listed(table: Any) -> list[ManifestFile]:
    return manifest_list.read(table.io, table.current_snapshot().manifest_list)


@pytest.mark.parametrize("spec", [PartitionSpec(), BY_DAY_AND_ID], ids=["one partition", "many partitions"])
def test_the_number_of_manifests_stays_below_the_bound(catalog: Any, spec: PartitionSpec) -> None:
    """Every entry keeps the snapshot and the sequence number that it came with."""
    table = catalog.create_table("db.t", SCHEMA, partition_spec=spec, properties=MERGING)
    came: dict[str, tuple[int | None, int | None]] = {}
    for number in range(30):
        table.append(rows(number))
        snapshot = table.current_snapshot()
        assert len(listed(table)) <= 5
        entries = [entry for manifest in listed(table) for entry in manifest.fetch_manifest_entry(table.io)]
        now = {entry.data_file.file_path: (entry.snapshot_id, entry.sequence_number) for entry in entries}
        assert len(entries) == len(now)
        assert came == {path: found for path, found in now.items() if path in came}
        assert {(snapshot.snapshot_id, number + 1)} == {now[path] for path in now.keys() - came.keys()}
        came = now
    assert Counter(range(-29, 30)) + Counter([0]) == Counter(table.scan().to_arrow()["id"].to_pylist())
    for condition in ("id = 7", "day = '2026-01-03'", "day is null", "day > '2026-01-31'"):
        expected = catalog.load_table("db.t").scan().to_arrow().to_pandas()
        chosen = {
            "id = 7": expected[expected.id == 7],
            "day = '2026-01-03'": expected[expected.day == "2026-01-03"],
            "day is null": expected[expected.day.isna()],
            "day > '2026-01-31'": expected[expected.day > "2026-01-31"],
        }[condition]
        assert len(chosen) == table.scan(condition).to_arrow().num_rows > 0


def test_what_a_manifest_says_of_its_partitions_is_what_pyiceberg_would_say(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same files, merged by us and by PyIceberg."""
    said: list[Any] = []
    for name, merge in (("db.ours", manifests.merge), ("db.theirs", lambda *_: None)):
        monkeypatch.setattr(manifests, "merge", merge)
        table = catalog.create_table(name, SCHEMA, partition_spec=BY_DAY_AND_ID, properties=MERGING)
        for number in range(5):
            table.append(rows(number))
        merged = max(listed(table), key=lambda manifest: manifest.existing_files_count or 0)
        said.append((merged.existing_files_count, merged.existing_rows_count, merged.min_sequence_number))
        said.append([tuple(summary._data) for summary in merged.partitions or ()])
    assert said[:2] == said[2:]


@pytest.mark.parametrize("unsaid", ["summaries", "NaN"])
def test_rows_of_manifests_that_do_not_say_what_their_partitions_are_are_found_after_a_merge(
    catalog: Any, unsaid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specification has other writers leave it out; readers skip what a summary denies."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "x", DoubleType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"))
    table = catalog.create_table("db.t", schema, partition_spec=spec, properties=MERGING)
    written = manifests.write_added

    def silent(*arguments: Any, **options: Any) -> list[ManifestFile]:
        (made,) = written(*arguments, **options)
        assert made.partitions
        assert made.partitions is made._data[13]
        if unsaid == "summaries":
            made._data[13] = None
        else:
            made.partitions[0]._data[1] = None
        return [made]

    values = [1.0, math.nan, None, 5.0, 2.0, 2.0, 2.0]
    for number, value in enumerate(values):
        with monkeypatch.context() as patched:
            if number in (1, 3):
                patched.setattr(manifests, "write_added", silent)
            table.append(pa.table({"id": [number], "x": pa.array([value], pa.float64())}))
    assert 5 > len(listed(table))
    for condition, found in (("x = 5", [3]), ("x > 4", [3]), ("x is nan", [1]), ("x is null", [2]), ("x = 1", [0])):
        assert found == table.scan(condition).to_arrow()["id"].to_pylist(), condition
    table.delete("x > 4")
    assert [0, 1, 2, 4, 5, 6] == sorted(table.scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("old", [2, 6], ids=["merged with newer ones", "merged alone"])
def test_what_is_merged_after_an_upgrade_keeps_its_sequence_numbers(catalog: Any, old: int) -> None:
    """Version 1 writes none: its files are of number 0. No other engine reads an existing entry without one."""
    table = catalog.create_table("db.t", rows(0).schema, properties={"format-version": "1"})
    for number in range(old):
        table.append(rows(number))
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
        transaction.set_properties(MERGING)
    for number in range(old, old + 6):
        table.append(rows(number))
        assert len(listed(table)) <= 5
        expected = [*[0] * old, *range(1, number - old + 2)]
        for name in ("sequence_number", "file_sequence_number"):
            assert Counter(expected) == Counter(entry[name] for entry in live_entries(table))
    assert 2 * (old + 6) == table.scan().to_arrow().num_rows


@pytest.mark.parametrize("clean", [False, True], ids=["the list is copied", "the list is written anew"])
def test_a_merge_that_was_prepared_before_an_upgrade_is_not_used(
    catalog: Any, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written in version 1, without sequence numbers."""
    merging = {**MERGING, "commit.manifest.min-count-to-merge": "3"}
    table = catalog.create_table("db.t", rows(0).schema, properties={"format-version": "1", **merging})
    for number in range(2):
        table.append(rows(number))
    if clean:
        table.delete("id = 1")
    commit = catalog.coordinator.commit

    def behind_an_upgrade(*attempts: Any, **options: Any) -> Any:
        monkeypatch.undo()
        with catalog.load_table("db.t").transaction() as transaction:
            transaction.upgrade_table_version(2)
        return commit(*attempts, **options)

    monkeypatch.setattr(catalog.coordinator, "commit", behind_an_upgrade)
    table.append(rows(2))
    assert (2, 3) == (table.format_version, len(listed(table)))
    assert None not in {entry["sequence_number"] for entry in live_entries(table)}
    assert [] == names(orphans(table))


def test_manifests_are_merged_after_their_partition_column_was_dropped(catalog: Any) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    table = catalog.create_table("db.t", SCHEMA, partition_spec=spec, properties=MERGING)
    for number in range(3):
        table.append(rows(number))
    with table.update_spec() as update:
        update.remove_field("day")
    with table.update_schema(allow_incompatible_changes=True) as update_schema:
        update_schema.delete_column("day")
    kept = {entry.data_file.file_path: entry.data_file.partition[0] for entry in entries_of(table)}
    for number in range(3, 9):
        table.append(rows(number).select(["id"]))
    table.overwrite(rows(99).select(["id"]), "id = 1")
    assert sum(manifest.partition_spec_id == 0 for manifest in listed(table)) < 3, "some were merged"
    now = {entry.data_file.file_path: entry.data_file.partition for entry in entries_of(table)}
    there = kept.keys() & now.keys()
    assert there
    assert {path: kept[path] for path in there} == {path: now[path][0] for path in there}


def entries_of(table: Any) -> list[Any]:
    return [entry for manifest in listed(table) for entry in manifest.fetch_manifest_entry(table.io)]


@pytest.mark.parametrize("target_bytes", [300_000, 8_000_000], ids=["many are full", "none is ever full"])
def test_an_entry_is_written_anew_a_logarithmic_number_of_times(target_bytes: int) -> None:
    """A large manifest is left alone until the small ones outnumber it; a full one for good."""

    def manifest(files: int) -> ManifestFile:
        return ManifestFile.from_args(manifest_length=3_000 + 100 * files, existing_files_count=files)

    standing: list[ManifestFile] = []
    rewritten = 0
    for _ in range(20_000):
        chosen = manifests.due(standing, added=1, min_count=100, target_bytes=target_bytes)
        if chosen:
            together = sum(found.existing_files_count or 0 for found in chosen)
            rewritten += together
            standing = [found for found in standing if not any(found is other for other in chosen)]
            standing.append(manifest(together))
        standing.append(manifest(1))
        assert len(standing) <= 100 + 20_000 * 100 // 200_000
    assert rewritten < 6 * 20_000


def test_writers_that_wait_together_merge_once(catalog: Any) -> None:
    """Each had prepared the same merge; those that were not needed are gone."""
    for coalesce in ("false", "true"):
        name = f"db.t{coalesce}"
        table = catalog.create_table(name, rows(0).schema, properties={**MERGING, COALESCE: coalesce})
        for number in range(4):
            table.append(rows(number))
        catalog.rename_table(name, "db.t")
        in_line(catalog, *(lambda t, n=n: t.append(rows(n)) for n in range(4, 7)))
        table = catalog.load_table("db.t")
        assert 14 == table.scan().to_arrow().num_rows
        assert 1 == sum(bool(m.existing_files_count) for m in listed(table))
        named = {m.manifest_path for s in table.metadata.snapshots for m in s.manifests(table.io)}
        folder = Path(table.location().removeprefix("file://")) / "metadata"
        assert {path.rpartition("/")[2] for path in named} == {path.name for path in folder.glob("*-m*.avro")}
        catalog.drop_table("db.t")


def test_a_merge_leaves_no_manifest_that_nothing_refers_to(memory: Kit) -> None:
    """Neither one of an overwrite, nor of a transaction of several appends, on whatever branch."""
    table = memory.table(ids(1), ids(2), properties={**MERGING, "commit.manifest.min-count-to-merge": "2"})
    table.overwrite(ids(3), "id = 1")
    table.overwrite(ids(4))
    with table.transaction() as transaction:
        for number in range(5, 8):
            transaction.append(ids(number))
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(table.current_snapshot().snapshot_id, "b")
    with table.transaction() as transaction:
        transaction.append(ids(8), branch="b")
        transaction.append(ids(9), branch="b")
        transaction.overwrite(ids(10), "id = 5")
        transaction.upsert(ids(10, 11), join_cols=["id"])
    assert [4, 6, 7, 10, 11] == row_ids(memory.again(table))
    assert [4, 5, 6, 7, 8, 9] == row_ids(memory.again(table), branch="b")
    assert set() == orphans(table)


@pytest.fixture
def unnumbered(fresh: Kit, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A table upgraded from version 1, merged by a version of ours that left the sequence numbers out."""
    table = fresh.table(ids(1), ids(2), properties={"format-version": "1"})
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)
        transaction.set_properties({**MERGING, "commit.manifest.min-count-to-merge": "2"})
    merge = manifests.merge

    def without_numbers(file_io: Any, location: str, chosen: Any, metadata: Any, *rest: Any) -> Any:
        return merge(file_io, location, chosen, metadata.model_copy(update={"format_version": 1}), *rest)

    with monkeypatch.context() as patched:
        patched.setattr(manifests, "merge", without_numbers)
        table.append(ids(3))
    assert {1: None, 2: None, 3: 1} == numbers(table), "no other engine reads these"
    return table


def test_entries_that_were_merged_without_sequence_numbers_are_repaired(fresh: Kit, unnumbered: Any) -> None:
    """On every branch, also when another client appends meanwhile."""
    table = unnumbered
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(table.current_snapshot().snapshot_id, "b")
    found = fresh.catalog.find_lost(table.name())
    assert [("no sequence numbers", 2, 2)] * 2 == [(one.operation, one.files, one.rows) for one in found.commits]
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "false"})
        transaction.append(ids(4))
    fresh.catalog.repair(found)
    assert {1: 0, 2: 0, 3: 1, 4: 2} == numbers(fresh.again(table))
    assert {1: 0, 2: 0, 3: 1} == numbers(fresh.again(table), "b")
    assert [1, 2, 3, 4] == row_ids(fresh.again(table))
    assert () == fresh.catalog.find_lost(table.name()).commits
    assert set() == orphans(fresh.again(table))


def test_looking_for_lost_commits_writes_no_file(fresh: Kit, unnumbered: Any) -> None:
    before = files_in(unnumbered.location())
    found = [fresh.catalog.find_lost(unnumbered.name()) for _ in range(3)]
    assert before == files_in(unnumbered.location())
    for one in found:
        fresh.catalog.repair(one)
    assert () == fresh.catalog.find_lost(unnumbered.name()).commits
    assert set() == orphans(fresh.again(unnumbered)), "who repairs what is repaired takes its manifest back"


@pytest.mark.parametrize("how", ["append", "delete", "overwrite"])
def test_a_commit_that_rewrites_entries_without_sequence_numbers_repairs_them(
    fresh: Kit, unnumbered: Any, how: str
) -> None:
    if how == "append":
        unnumbered.append(ids(4))
        unnumbered.append(ids(5))
    elif how == "delete":
        unnumbered.delete("id = 1")
    else:
        unnumbered.overwrite(ids(4), "id = 1")
    assert {0} == {number for of, number in numbers(unnumbered).items() if of < 3}
    assert () == fresh.catalog.find_lost(unnumbered.name()).commits


def numbers(table: Any, branch: str = "main") -> dict[int, int | None]:
    """Return the sequence number of each live file of one row, by the id of the row."""
    found = {}
    for entry in live_entries(table, branch):
        (bound,) = [one["value"] for one in entry["data_file"]["lower_bounds"] if one["key"] == 1]
        found[int.from_bytes(bound, "little")] = entry["sequence_number"]
    return found


def live_entries(table: Any, branch: str = "main") -> Iterator[dict[str, Any]]:
    """Yield the live entries of a table of version 2 with what they inherit, read without PyIceberg."""
    for manifest in manifest_list.read(table.io, table.metadata.snapshot_by_name(branch).manifest_list):
        with table.io.new_input(manifest.manifest_path).open() as stream:
            records: Any = fastavro.reader(io.BytesIO(stream.read()))
            for read in records:
                entry: Any = {"sequence_number": None, "file_sequence_number": None, **read}
                for name in ("sequence_number", "file_sequence_number"):
                    if entry[name] is None and (entry["status"] == 1 or manifest.sequence_number == 0):
                        entry[name] = manifest.sequence_number
                if entry["status"] != 2:
                    yield entry
