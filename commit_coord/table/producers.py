"""PyIceberg's snapshot producers, with manifests that are each of the spec that their files were written under."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import UpdatesAndRequirements
from pyiceberg.table.update.snapshot import _DeleteFiles, _OverwriteFiles, _SnapshotProducer
from pyiceberg.typedef import EMPTY_DICT, KeyDefaultDict

from commit_coord.errors import CommitNotApplied, InvalidArguments
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.partitions import may_hold, partition_key
from commit_coord.iceberg.table_properties import as_number
from commit_coord.iceberg.written import Written, mark, partition_schema


def head_of(transaction: Transaction, branch: str | None) -> Snapshot | None:
    """Return the parent of the next snapshot on *branch*; without a branch (None), the last one that is staged there.

    In PyIceberg every snapshot without a branch follows main: 1. An overwrite stages the removal of the old rows.
    2. It stages the new rows on the same parent.   No snapshot would have what the caller asked for.
    """
    metadata = transaction.table_metadata
    if branch is None:
        for producer in reversed(transaction._snapshot_producers):
            staged = metadata.snapshot_by_id(producer.snapshot_id) if producer._target_branch is None else None
            if staged is not None:  # else it has found nothing to do, or it is about to be made again
                return staged
    return metadata.snapshot_by_name(branch)


class BySpec(_SnapshotProducer[Any]):
    """A producer that writes each file's manifest entry under the file's own partition spec.

    PyIceberg writes what is added under the table's present spec, and writes manifests of older specs with the present
    schema, where the type of a partition is not known any more when its column was dropped.
    """

    written: Written | None = None
    """What the added files were written for. Where nobody says it, it is noted when the snapshot is staged: made again
    on another head, the same ids may mean another schema and other specs."""

    def spec(self, spec_id: int) -> PartitionSpec:
        """Return a spec of the table.

        Raises:
            ValidationException: It is gone.
        """
        spec = self._transaction.table_metadata.specs().get(spec_id)
        if spec is None:
            raise ValidationException(f"partition spec {spec_id} of the files is gone")
        return spec

    def _current_branch_head_id(self) -> int | None:
        head = head_of(self._transaction, self._target_branch)
        return head.snapshot_id if head is not None else None

    def append_data_file(self, data_file: DataFile) -> Self:
        """Add a file; PyIceberg's writers do not say its spec, which is the one that the transaction shows."""
        mark(self._transaction.table_metadata, [data_file])
        return super().append_data_file(data_file)  # type: ignore[return-value]  # it is this producer

    def delete_data_file(self, data_file: DataFile) -> Self:
        """Refuse to remove a file, which this kind of snapshot would leave in the table.

        Raises:
            InvalidArguments: Always, but for an overwrite.
        """
        raise InvalidArguments(
            "this snapshot can't remove a file that is named: make one with update_snapshot().overwrite()",
            file=data_file.file_path,
        )

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        """Return a writer of a manifest of *spec*."""
        return write_manifest(
            format_version=self._transaction.table_metadata.format_version,
            spec=spec,
            schema=self.schema_of(spec),
            output_file=self.new_manifest_output(),
            snapshot_id=self._snapshot_id,
            avro_compression=self._compression,
        )

    def schema_of(self, spec: PartitionSpec) -> Schema:
        """Return a schema that has the columns of *spec*."""
        return partition_schema(self._transaction.table_metadata, spec)

    def commit(self) -> None:
        """Stage the snapshot, or nothing where that fails."""
        with self.whole():
            self.note_written()
            super().commit()

    def note_written(self) -> None:
        """Record the schema and specs of the added files: the transaction's present ones, unless they are known."""
        self.written = self.written or Written.of(self._transaction.table_metadata, self._added_data_files)

    def whole(self) -> AbstractContextManager[None]:
        """Stage all that the block stages, or nothing, where the transaction can: the one that makes a table can't."""
        whole: Callable[[], AbstractContextManager[None]] = getattr(self._transaction, "whole", nullcontext)
        return whole()

    def _commit(self) -> UpdatesAndRequirements:
        """Make the snapshot.

        Raises:
            CommitNotApplied: Its parent has manifests that PyIceberg does not see, so they would get lost.
        """
        parent = self._parent_snapshot_id and self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
        hidden = manifest_list.hidden(self._io, parent.manifest_list) if parent else 0
        if hidden:
            name = table_name(self._transaction._table.name())
            raise CommitNotApplied(
                f"readers do not see {hidden} manifests of the table, and this commit would drop them; "
                f"nothing was committed: run `commit-coord repair {name}`, then repeat the commit",
                table=name,
            )
        return super()._commit()

    def _manifests(self) -> list[ManifestFile]:
        reason = self.written.misfit(self._transaction.table_metadata) if self.written is not None else None
        if reason is not None:
            raise ValidationException(reason)
        self._build_delete_files_partition_predicate()
        deleted = self._deleted_entries()  # first: when it raises, no manifest was written
        return self._process_manifests(
            [*self._added_manifests(), *self._manifests_of(deleted), *self._existing_manifests()]
        )

    def _added_manifests(self) -> list[ManifestFile]:
        return self._manifests_of(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=data_file,
            )
            for data_file in self._added_data_files
        )

    def _manifests_of(self, entries: Iterable[ManifestEntry]) -> list[ManifestFile]:
        made = []
        for spec_id, found in by_spec(entries, lambda entry: entry.data_file).items():
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for entry in found:
                    writer.add_entry(entry)
            made.append(writer.to_manifest_file())
        return made

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        metadata = self._transaction.table_metadata
        parent = metadata.snapshot_by_id(self._parent_snapshot_id) if self._parent_snapshot_id is not None else None
        return update_snapshot_summaries(
            summary=self.summary_without_totals(snapshot_properties),
            previous_summary=parent.summary if parent is not None else None,
        )

    def summary_without_totals(self, snapshot_properties: dict[str, str]) -> Summary:
        """Return the summary of the added and removed files, with *snapshot_properties*; totals need the parent."""
        metadata = self._transaction.table_metadata
        limit = as_number(
            metadata.properties,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT,
        )
        collector = _Collector(partition_summary_limit=limit)
        for files, count in (
            (self._added_data_files, collector.add_file),
            (self._deleted_data_files, collector.remove_file),
        ):
            for spec_id, found in by_spec(files, lambda data_file: data_file).items():
                spec = self.spec(spec_id)
                schema = self.schema_of(spec)
                for data_file in found:
                    count(data_file=data_file, partition_spec=spec, schema=schema)
        return Summary(operation=self._operation, **{**snapshot_properties, **collector.build()})


class _Collector(SnapshotSummaryCollector):
    """PyIceberg's, which spells the folders of a partition for each of its files."""

    def __init__(self, partition_summary_limit: int) -> None:
        super().__init__(partition_summary_limit)
        self._paths: dict[tuple[int, tuple[Any, ...]], str] = {}

    def update_partition_metrics(
        self, partition_spec: PartitionSpec, file: DataFile, is_add_file: bool, schema: Schema
    ) -> None:
        """Count *file* in its partition."""
        key = partition_spec.spec_id, partition_key(file.partition)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = partition_spec.partition_to_path(file.partition, schema)
        counts = self.partition_metrics[path]
        (counts.add_file if is_add_file else counts.remove_file)(file)


def by_spec(found: Iterable[Any], file_of: Callable[[Any], DataFile]) -> dict[int, list[Any]]:
    """Return what was *found* by the partition spec of its data file, in order."""
    groups: dict[int, list[Any]] = {}
    for one in found:
        groups.setdefault(file_of(one).spec_id, []).append(one)
    return groups


class DeleteFiles(BySpec, _DeleteFiles):
    """PyIceberg's deletion of whole files, chosen by a filter."""


class Overwrite(BySpec, _OverwriteFiles):
    """PyIceberg's replacement of files by files."""

    def delete_data_file(self, data_file: DataFile) -> Self:
        """Remove a file."""
        return _OverwriteFiles.delete_data_file(self, data_file)  # type: ignore[return-value]  # it is this producer

    def _build_delete_files_partition_predicate(self) -> None:
        """Do nothing: manifests are chosen by :meth:`_build_manifest_evaluator`."""

    def _build_manifest_evaluator(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        """Return whether a manifest may name a file that is removed.

        PyIceberg asks with a row filter, which has no way to say NaN, nor the value of a dropped column.
        """
        spec = self.spec(spec_id)
        removed = [data_file.partition for data_file in self._deleted_data_files if data_file.spec_id == spec_id]
        return may_hold(spec.partition_type(self.schema_of(spec)), removed)

    def _existing_manifests(self) -> list[ManifestFile]:
        """Return the manifests of what this snapshot follows, without the files that it removes."""
        head = head_of(self._transaction, self._target_branch)
        may_name = KeyDefaultDict(self._build_manifest_evaluator)
        kept = []
        for manifest in head.manifests(self._io) if head is not None else ():
            entries = manifest.fetch_manifest_entry(self._io) if may_name[manifest.partition_spec_id](manifest) else []
            rest = [entry for entry in entries if entry.data_file not in self._deleted_data_files]
            if len(rest) == len(entries):
                kept.append(manifest)
            elif rest:
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for entry in rest:
                        writer.existing(entry)
                kept.append(writer.to_manifest_file())
        return kept


class Rewrite(Overwrite):
    """A REPLACE snapshot, for which PyIceberg has no summary: a reader of changes may skip it."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)
