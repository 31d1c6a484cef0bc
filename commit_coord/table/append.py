"""Appends that look at nothing but their own files."""

from __future__ import annotations

import uuid
from typing import Protocol, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import UpdateSnapshot, _MergeAppendFiles
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.config import COALESCE
from commit_coord.coordinator import delete_quietly
from commit_coord.iceberg import manifest_list, manifests
from commit_coord.iceberg.attempt import TOTALS, Append, Merge
from commit_coord.iceberg.table_properties import flag
from commit_coord.iceberg.written import digest
from commit_coord.table.arguments import refuse_no_name, summary_properties
from commit_coord.table.producers import BySpec, DeleteFiles, Overwrite, Rewrite, by_spec, head_of

P = TypeVar("P", bound=BySpec)


class TakesAppends(Protocol):
    """A transaction that can take an append without making a snapshot of it."""

    def pend(self, producer: PureAppend) -> None:
        """Take the append of *producer*."""
        ...


class CoordinatedUpdateSnapshot(UpdateSnapshot):
    """PyIceberg's builder, with appends that are pure.

    Raises:
        InvalidArguments: A snapshot can't have such properties, or the name of the branch is empty.
    """

    def __init__(
        self,
        transaction: Transaction,
        io: FileIO,
        branch: str | None = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
    ) -> None:
        refuse_no_name(branch)
        super().__init__(transaction, io, branch, summary_properties(snapshot_properties))

    def fast_append(self) -> PureAppend:
        """Return an append that adds one manifest."""
        producer = self.merge_append()
        producer._merge_enabled = False
        return producer

    def merge_append(self) -> PureAppend:
        """Return an append that may merge small manifests, as ``commit.manifest.*`` says."""
        return self._make(PureAppend, Operation.APPEND)

    def overwrite(self, commit_uuid: uuid.UUID | None = None) -> Overwrite:
        """Return a snapshot that removes files and adds files."""
        there = head_of(self._transaction, self._branch) is not None
        return self._make(Overwrite, Operation.OVERWRITE if there else Operation.APPEND, commit_uuid)

    def delete(self) -> DeleteFiles:
        """Return a snapshot that removes the files all of whose rows match a filter."""
        return self._make(DeleteFiles, Operation.DELETE)

    def rewrite(self) -> Rewrite:
        """Return a snapshot whose files have the rows of those that it removes."""
        return self._make(Rewrite, Operation.OVERWRITE)

    def _make(self, kind: type[P], operation: Operation, commit_uuid: uuid.UUID | None = None) -> P:
        return kind(
            operation=operation,
            transaction=self._transaction,
            io=self._io,
            commit_uuid=commit_uuid,
            branch=self._branch,
            snapshot_properties=self._snapshot_properties,
        )


class PureAppend(BySpec, _MergeAppendFiles):
    """An append that looks at nothing but its own files until it is asked to become a snapshot."""

    def commit(self) -> None:
        """Hand the append to the transaction."""
        transaction: TakesAppends = self._transaction  # type: ignore[assignment]  # ours is the only one that makes it
        with self.whole():
            self.note_written()
            transaction.pend(self)

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Return *manifests* merged, and delete own ones that were merged into others: nothing refers to them."""
        merged = super()._process_manifests(manifests)
        listed = {manifest.manifest_path for manifest in merged}
        for path in list(self._written_manifests):
            if path not in listed:
                self._written_manifests.remove(path)
                delete_quietly(self._io, path)
        return merged

    def prepare(self) -> Append:
        """Write the manifest of the added files and return the append."""
        metadata = self._transaction.table_metadata
        summary = self.summary_without_totals(self.snapshot_properties).additional_properties
        inherits = metadata.format_version > 1 and flag(metadata.properties, COALESCE, False, unreadable=False)
        own = self._own_manifests(metadata, inherits=inherits)
        assert self.written is not None  # noted by commit()
        written = self.written
        return Append(
            snapshot_id=self._snapshot_id,
            branch=self._target_branch,
            manifests=tuple(own),
            summary={key: value for key, value in summary.items() if key not in TOTALS},
            schema_id=written.schema.schema_id,
            schema=digest(written.schema),
            specs={spec_id: digest(spec) for spec_id, spec in written.specs.items()},
            merge=self._merge(metadata, own) if self._merge_enabled else None,
            inherits=inherits,
            makes_branch=self._target_branch in (None, MAIN_BRANCH) or self._target_branch not in metadata.refs,
        )

    def _own_manifests(self, metadata: TableMetadata, *, inherits: bool) -> list[ManifestFile]:
        return [
            manifest
            for spec_id, found in by_spec(self._added_data_files, lambda data_file: data_file).items()
            for manifest in manifests.write_added(
                self._io,
                lambda: self.new_manifest_output().location,
                found,
                metadata=metadata,
                spec=self.spec(spec_id),
                snapshot_id=self._snapshot_id,
                inherits=inherits,
                target_bytes=self._target_size_bytes,
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
        spec = self.spec(chosen[0].partition_spec_id)
        merged = manifests.merge(
            self._io, self.new_manifest_output().location, chosen, metadata, spec, self._snapshot_id
        ) or self._written_anew(chosen, spec)
        if merged is None:
            return None
        return Merge(
            merged=merged,
            replaced=frozenset(manifest.manifest_path for manifest in chosen),
            format_version=metadata.format_version,
        )

    def _written_anew(self, chosen: list[ManifestFile], spec: PartitionSpec) -> ManifestFile | None:
        """Return one manifest with the live entries of *chosen*, None when none is live; slower than a copy."""
        entries = [entry for manifest in chosen for entry in manifest.fetch_manifest_entry(self._io)]
        if not entries:
            return None
        with self.new_manifest_writer(spec) as writer:
            for entry in entries:
                writer.existing(entry)
        return writer.to_manifest_file()
