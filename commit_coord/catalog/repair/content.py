"""Reads the content of snapshots and table versions, as far as a repair needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.rebase import REQUEST_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The files that snapshots added and removed."""

    manifests: list[ManifestFile]
    """Data manifests in which they added something."""
    added_in: dict[str, list[DataFile]]
    """The added files, by manifest."""
    removed: set[str]
    """Data files that they removed."""
    deletes: bool
    """Whether they added deletes of rows."""

    @property
    def added(self) -> list[DataFile]:
        """Data files that they added."""
        return [data_file for files in self.added_in.values() for data_file in files]

    @classmethod
    def of(cls, io: FileIO, snapshots: Sequence[Snapshot]) -> Content:
        """Read what *snapshots* added and removed from their manifests."""
        found: dict[str, ManifestFile] = {}
        added_in: dict[str, list[DataFile]] = {}
        removed: set[str] = set()
        deletes = False
        for snapshot in snapshots:
            for manifest in manifest_list.read(io, snapshot.manifest_list):
                if manifest.added_snapshot_id != snapshot.snapshot_id:
                    continue
                if manifest.content == ManifestContent.DELETES:
                    deletes = True
                    continue
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                    if entry.status == ManifestEntryStatus.DELETED:
                        removed.add(entry.data_file.file_path)
                    elif entry.status == ManifestEntryStatus.ADDED:
                        added_in.setdefault(manifest.manifest_path, []).append(entry.data_file)
                        found[manifest.manifest_path] = manifest
        return cls(manifests=list(found.values()), added_in=added_in, removed=removed, deletes=deletes)


def request_id_of(snapshot: Snapshot) -> str:
    """Return the request id of the commit that made *snapshot*; "" of a writer that is not ours."""
    found = snapshot.summary.get(REQUEST_ID) if snapshot.summary is not None else None
    return found or ""


def operation_of(snapshot: Snapshot) -> str:
    """Return what *snapshot* says that it does."""
    return snapshot.summary.operation.value if snapshot.summary is not None else "unknown"


def count_in(snapshot: Snapshot, key: str) -> int:
    """Return the number under *key* in the summary of *snapshot*; 0 where it says none."""
    return int((snapshot.summary.get(key) if snapshot.summary is not None else None) or 0)


def schema_id_of(metadata: TableMetadata, snapshot: Snapshot) -> int:
    """Return the schema with which *snapshot* was written."""
    return snapshot.schema_id if snapshot.schema_id is not None else metadata.current_schema_id


def branches_of(metadata: TableMetadata, snapshot: Snapshot) -> list[str]:
    """Return the branches that have *snapshot*, main first."""

    def has(found: int | None) -> bool:
        while found is not None and found != snapshot.snapshot_id:
            one = metadata.snapshot_by_id(found)
            found = one.parent_snapshot_id if one is not None else None
        return found is not None

    branches = [
        n for n, ref in metadata.refs.items() if ref.snapshot_ref_type.value == "branch" and has(ref.snapshot_id)
    ]
    return sorted(branches, key=lambda name: (name != MAIN_BRANCH, name))


def has_ids(io: FileIO, data_file: DataFile) -> bool:
    """Return whether a data file says the field ids of its columns; without them readers use the name mapping.

    Of files other than Parquet this is not known: False.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow.parquet as pq

    if data_file.file_format != FileFormat.PARQUET:
        return False
    with io.new_input(data_file.file_path).open() as stream:
        return any(b"PARQUET:field_id" in (column.metadata or {}) for column in pq.read_schema(stream))


def changes_between(before: TableMetadata, after: TableMetadata) -> list[str]:
    """Describe the differences between two versions of a table, except what its new snapshots add, in words."""
    found = []
    if before.format_version != after.format_version:
        found.append(f"format version {after.format_version}")
    if before.location != after.location:
        found.append(f"location {after.location}")
    if before.current_schema_id != after.current_schema_id or before.schemas != after.schemas:
        old = {column.field_id: column for column in before.schema().fields}
        new = {column.field_id: column for column in after.schema().fields}
        names = [new[i].name for i in new if old.get(i) != new[i]] + [old[i].name for i in old if i not in new]
        found.append(f"schema {after.current_schema_id} (columns {', '.join(names) or 'as before'})")
    if before.default_spec_id != after.default_spec_id or before.partition_specs != after.partition_specs:
        found.append(f"partition spec {after.default_spec_id}")
    if before.default_sort_order_id != after.default_sort_order_id or before.sort_orders != after.sort_orders:
        found.append(f"sort order {after.default_sort_order_id}")
    keys = {k for k in {*before.properties, *after.properties} if before.properties.get(k) != after.properties.get(k)}
    if keys:
        found.append(f"properties {', '.join(sorted(keys))}")
    if moved := moved_refs(before, after):
        found.append(f"branches or tags {', '.join(sorted(moved))}")
    gone = sum(after.snapshot_by_id(snapshot.snapshot_id) is None for snapshot in before.snapshots)
    if gone:
        found.append(f"{gone} snapshots that were expired")
    if before.statistics != after.statistics or before.partition_statistics != after.partition_statistics:
        found.append("statistics")
    return found


def moved_refs(before: TableMetadata, after: TableMetadata) -> list[str]:
    """Return the branches and tags that differ by more than new snapshots behind the old tip of one branch."""
    behind: set[int | None] = set()
    """New snapshots that are behind the old tip of a branch."""
    moved = []
    for name in sorted({*before.refs, *after.refs}, key=lambda name: (name != MAIN_BRANCH, name)):
        old, new = before.refs.get(name), after.refs.get(name)
        if old == new:
            continue
        added: list[int | None] = []
        tip = new.snapshot_id if new is not None else None
        while tip is not None and before.snapshot_by_id(tip) is None and (one := after.snapshot_by_id(tip)) is not None:
            added.append(tip)
            tip = one.parent_snapshot_id
        if old is None or new is None:
            follows = name == MAIN_BRANCH and new is not None and tip is None
        else:
            same = new == old.model_copy(update={"snapshot_id": new.snapshot_id})
            follows = same and tip == old.snapshot_id and old.snapshot_ref_type == SnapshotRefType.BRANCH
        if follows and behind.isdisjoint(added):
            behind.update(added)
        else:
            moved.append(name)
    return moved
