"""The manifest of an append says what PyIceberg's own writer would say, in the same schema."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile, write_manifest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record

from commit_coord.iceberg import avro, manifests
from tests.catalog.kit import SCHEMA, frame

BY_S_AND_ID = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "s"), PartitionField(1, 1001, BucketTransform(4), "bucket")
)
CODEC = "write.avro.compression-codec"


def with_files(catalog: Any, spec: PartitionSpec, properties: dict[str, str]) -> tuple[Table, list[DataFile]]:
    table = catalog.create_table("db.t", SCHEMA, partition_spec=spec, properties=properties)
    table.append(frame((1, "a"), (2, "a"), (3, "b"), (4, None), (None, "")))
    return table, [task.file for task in table.scan().plan_files()]


def by_pyiceberg(table: Table, files: list[DataFile], path: str, snapshot_id: int, *, inherits: bool) -> ManifestFile:
    metadata = table.metadata
    with write_manifest(
        metadata.format_version,
        metadata.spec(),
        metadata.schema(),
        table.io.new_output(path),
        snapshot_id,
        metadata.properties.get(CODEC, "gzip"),  # type: ignore[arg-type]
    ) as writer:
        for file in files:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=None if inherits else snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            writer.add_entry(entry)
    return writer.to_manifest_file()


def content(table: Table, manifest: ManifestFile) -> tuple[dict[str, bytes], list[Any]]:
    """Return the header and the entries of a manifest."""
    with table.io.new_input(manifest.manifest_path).open() as stream:
        header, _ = avro.header(stream.read())
    return header, [plain(entry) for entry in manifest.fetch_manifest_entry(table.io)]


def plain(value: Any) -> Any:
    if isinstance(value, Record):
        return [plain(field) for field in value._data]
    return dict(value) if isinstance(value, Mapping) else value


@pytest.mark.parametrize("codec", [None, "gzip", "zstd", "bzip2", "null"])
@pytest.mark.parametrize(
    "version, inherits",
    [("1", False), ("2", False), ("2", True)],  # the entries of version 1 must name their snapshot
)
@pytest.mark.parametrize("spec", [PartitionSpec(), BY_S_AND_ID], ids=["one partition", "many partitions"])
def test_a_manifest_of_added_files_is_pyicebergs(
    catalog: Any, spec: PartitionSpec, version: str, inherits: bool, codec: str | None
) -> None:
    """Header, Avro schema, entries, and what a manifest list says about it; again, when the form is known already."""
    table, files = with_files(catalog, spec, {"format-version": version} | ({CODEC: codec} if codec else {}))
    for number in range(2):
        ours, theirs = (f"{table.location()}/metadata/{name}-{number}.avro" for name in ("ours", "theirs"))
        expected = by_pyiceberg(table, files, theirs, 7, inherits=inherits)
        (found,) = manifests.write_added(
            table.io, [ours].pop, files, metadata=table.metadata, spec=table.spec(), snapshot_id=7, inherits=inherits
        )
        assert content(table, found) == content(table, expected)
        assert found.manifest_length == len(table.io.new_input(ours))
        assert found._data[2:] == expected._data[2:]
        assert len(found.partitions or []) == len(spec.fields)


def test_a_table_that_changes_its_schema_gets_manifests_of_the_new_one(catalog: Any) -> None:
    """What is kept from one manifest to the next is kept for that schema and spec alone."""
    table, _ = with_files(catalog, PartitionSpec(), {})
    with table.update_schema() as update:
        update.rename_column("s", "name")
    with table.update_spec() as update_spec:
        update_spec.add_identity("name")
    table.append(pa.table({"id": pa.array([9], pa.int64()), "name": pa.array(["z"])}))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifest = next(m for m in snapshot.manifests(table.io) if m.partition_spec_id == 1)
    header, _ = content(table, manifest)
    (entry,) = manifest.fetch_manifest_entry(table.io)
    assert b'"name":"name"' in header["schema"]
    assert header["partition-spec-id"] == b"1"
    assert entry.data_file.partition[0] == "z"


def test_a_format_version_that_can_not_be_written_is_refused_as_by_pyiceberg(catalog: Any) -> None:
    """Nothing is written."""
    table, files = with_files(catalog, PartitionSpec(), {})

    path = f"{table.location()}/metadata/later.avro"
    later = table.metadata.model_copy(update={"format_version": 9})
    with pytest.raises(ValueError, match="Cannot write manifest for table version: 9"):
        manifests.write_added(
            table.io, [path].pop, files, metadata=later, spec=table.spec(), snapshot_id=7, inherits=False
        )
    assert not table.io.new_input(path).exists()


def test_an_append_of_many_files_ends_a_manifest_at_the_target_size(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the plan of any read decodes the entries of all of them; the table has every file, once, in its order."""
    monkeypatch.setattr(manifests, "_BLOCK_BYTES", 500)
    table: Any
    table, files = with_files(catalog, BY_S_AND_ID, {CODEC: "null"})
    target = table.current_snapshot().manifests(table.io)[0].manifest_length + 1_000
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest.target-size-bytes": str(target)})
    added = []
    for number in range(60):
        added.append(copy.deepcopy(files[number % len(files)]))
        added[-1]._data[1] += f".{number}"

    table.commit_files(added, request_id="many files")

    snapshot = table.current_snapshot()
    listed = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
    entries = [[entry.data_file.file_path for entry in m.fetch_manifest_entry(table.io)] for m in listed]
    assert len(listed) > 2
    assert all(manifest.manifest_length <= target for manifest in listed)
    assert [len(found) for found in entries] == [manifest.added_files_count for manifest in listed]
    assert [file.file_path for file in added] == [path for found in entries for path in found]
