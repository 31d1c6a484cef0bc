"""Appends that look at nothing but their own files."""

from __future__ import annotations

from typing import Protocol

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    TOTAL_DATA_FILES,
    TOTAL_DELETE_FILES,
    TOTAL_EQUALITY_DELETES,
    TOTAL_FILE_SIZE,
    TOTAL_POSITION_DELETES,
    TOTAL_RECORDS,
    Operation,
    Summary,
)
from pyiceberg.table.update.snapshot import UpdateSnapshot, _ManifestMergeManager, _MergeAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.properties import property_as_bool

from commit_coord.config import COALESCE
from commit_coord.iceberg import manifest_list, manifests
from commit_coord.iceberg.attempt import Append, Merge

_TOTALS = {
    TOTAL_DATA_FILES,
    TOTAL_DELETE_FILES,
    TOTAL_EQUALITY_DELETES,
    TOTAL_FILE_SIZE,
    TOTAL_POSITION_DELETES,
    TOTAL_RECORDS,
}


class TakesAppends(Protocol):
    """A transaction that can take an append without making a snapshot of it."""

    def pend(self, producer: PureAppend) -> None:
        """Take the append of *producer*."""
        ...


class CoordinatedUpdateSnapshot(UpdateSnapshot):
    """PyIceberg's builder, with appends that are pure."""

    def fast_append(self) -> PureAppend:
        """Return an append that adds one manifest."""
        producer = self.merge_append()
        producer._merge_enabled = False
        return producer

    def merge_append(self) -> PureAppend:
        """Return an append that may merge small manifests, as ``commit.manifest.*`` says."""
        return PureAppend(
            operation=Operation.APPEND,
            transaction=self._transaction,
            io=self._io,
            branch=self._branch,
            snapshot_properties=self._snapshot_properties,
        )

    def rewrite(self) -> Rewrite:
        """Return a snapshot whose files have the rows of those that it removes."""
        return Rewrite(
            operation=Operation.OVERWRITE,
            transaction=self._transaction,
            io=self._io,
            branch=self._branch,
            snapshot_properties=self._snapshot_properties,
        )


class Rewrite(_OverwriteFiles):
    """A snapshot that says REPLACE, which PyIceberg can't sum up: who reads changes may leave it out."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


class PureAppend(_MergeAppendFiles):
    """An append that looks at nothing but its own files until it is asked to become a snapshot."""

    def commit(self) -> None:
        """Hand the append to the transaction."""
        transaction: TakesAppends = self._transaction  # type: ignore[assignment]  # ours is the only one that makes it
        transaction.pend(self)

    def prepare(self) -> Append:
        """Write the manifest of the added files and return the append."""
        metadata = self._transaction.table_metadata
        parent, self._parent_snapshot_id = self._parent_snapshot_id, None
        with_totals = self._summary(self.snapshot_properties)
        self._parent_snapshot_id = parent
        inherits = metadata.format_version > 1 and property_as_bool(metadata.properties, COALESCE, False)
        own = self._own_manifest(metadata, inherits=inherits)
        return Append(
            snapshot_id=self._snapshot_id,
            branch=self._target_branch,
            manifests=tuple(own),
            summary={key: value for key, value in with_totals.additional_properties.items() if key not in _TOTALS},
            schema_id=metadata.current_schema_id,
            merge=self._merge(metadata, own) if self._merge_enabled else None,
            inherits=inherits,
        )

    def _own_manifest(self, metadata: TableMetadata, *, inherits: bool) -> list[ManifestFile]:
        if not self._added_data_files:
            return []
        return [
            manifests.write_added(
                self._io,
                self.new_manifest_output().location,
                self._added_data_files,
                metadata=metadata,
                snapshot_id=self._snapshot_id,
                inherits=inherits,
            )
        ]

    def _merge(self, metadata: TableMetadata, own: list[ManifestFile]) -> Merge | None:
        """Return the merge that ``commit.manifest.*`` asks for, prepared before the latch.

        Under the latch it is used only if all that it replaces is still in the head's list. Of several writers
        that prepare the same merge one succeeds and the others just append.
        """
        parent = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        if parent is None:
            return None
        if manifest_list.count(self._io, parent.manifest_list) + len(own) < self._min_count_to_merge:
            return None
        by_spec: dict[int, list[ManifestFile]] = {}
        for manifest in manifest_list.read(self._io, parent.manifest_list):
            if manifest.content == ManifestContent.DATA:
                by_spec.setdefault(manifest.partition_spec_id, []).append(manifest)
        small = [
            manifests.due(
                found,
                added=len(own),
                min_count=self._min_count_to_merge,
                target_bytes=self._target_size_bytes,
            )
            for found in by_spec.values()
        ]
        chosen = max(small, key=len, default=[])
        if not chosen:
            return None
        spec = metadata.specs()[chosen[0].partition_spec_id]
        location = self.new_manifest_output().location
        merged = manifests.merge(
            self._io, location, chosen, spec.partition_type(metadata.schema()), self._snapshot_id
        ) or self._merged_by_pyiceberg(chosen)
        return Merge(merged=merged, replaced=frozenset(manifest.manifest_path for manifest in chosen))

    def _merged_by_pyiceberg(self, chosen: list[ManifestFile]) -> ManifestFile:
        manager = _ManifestMergeManager(self._target_size_bytes, self._min_count_to_merge, True, self)
        return manager._create_manifest(chosen[0].partition_spec_id, chosen)
