"""Manifests that are in the history of a table, and that a reader overlooks or can't read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, write_manifest
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Identifier

from commit_coord.catalog.repair.commits import LostCommit
from commit_coord.iceberg import manifest_list, manifests
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Append, Attempt, Merge, request_uuid
from commit_coord.iceberg.storage import metadata_places
from commit_coord.iceberg.written import partition_schema
from commit_coord.process import Host


class UnreadableManifests:
    """Finds them in the branches of one table.

    Args:
        table: Namespace and name.
        head: Its metadata.
        location: Where that is.
        io: Its file store.
        host: Makes the ids in the names of manifests.
    """

    def __init__(self, table: Identifier, head: TableMetadata, location: str, io: FileIO, host: Host) -> None:
        self._table, self._head, self._location, self._io, self._host = table, head, location, io, host

    def overlooked(self) -> Iterator[LostCommit]:
        """Yield, for each branch, what PyIceberg's reader does not see of its manifest list."""
        for name, ref in self._head.refs.items():
            snapshot = self._head.snapshot_by_id(ref.snapshot_id)
            if snapshot is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
                continue
            if not (hidden := manifest_list.hidden(self._io, snapshot.manifest_list)):
                continue
            behind = manifest_list.read(self._io, snapshot.manifest_list)[-hidden:]
            yield self._written_anew(
                "unreadable manifest list", f"manifest list {snapshot.manifest_list}", name, snapshot, behind
            )

    def unnumbered(self) -> Iterator[LostCommit]:
        """Yield, for each branch, the manifests whose existing entries lack their sequence numbers."""
        if self._head.format_version < 2:
            return
        for name, ref in self._head.refs.items():
            snapshot = self._head.snapshot_by_id(ref.snapshot_id)
            if snapshot is None or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
                continue
            for manifest in manifest_list.read(self._io, snapshot.manifest_list):
                if manifests.lacks_sequence_numbers(self._io, manifest):
                    source = f"sequence numbers {name} {manifest.manifest_path}"
                    yield self._written_anew("no sequence numbers", source, name, snapshot, [manifest], self._numbered)

    def _written_anew(
        self,
        operation: str,
        source: str,
        branch: str,
        snapshot: Snapshot,
        affected: Sequence[ManifestFile],
        merge: Callable[[ManifestFile, int], Merge] | None = None,
    ) -> LostCommit:
        """Return what an append of nothing to *branch* mends: *affected*, as of its head *snapshot*.

        Args:
            operation: What is wrong.
            source: Names the repair, so that it lands once, even if two clients execute it.
            branch: Where.
            snapshot: Its head.
            affected: The manifests that are mended.
            merge: Writes the one manifest of *affected* anew, for the snapshot of that id; None: the list alone.
        """
        request_id = request_uuid(source)

        def prepare() -> Attempt:
            snapshot_id = self._head.new_snapshot_id()
            return Attempt(
                request_id=request_id,
                table=self._table,
                table_uuid=str(self._head.table_uuid),
                base_location=self._location,
                base_sequence_number=fast_metadata.sequence_number(self._head),
                append=Append(
                    snapshot_id=snapshot_id,
                    branch=branch,
                    manifests=(),
                    summary={},
                    schema_id=self._head.current_schema_id,
                    merge=merge(affected[0], snapshot_id) if merge is not None else None,
                ),
            )

        return LostCommit(
            location=self._location,
            request_id=request_id,
            snapshot_ids=(snapshot.snapshot_id,),
            operation=operation,
            at_ms=snapshot.timestamp_ms,
            files=sum((one.added_files_count or 0) + (one.existing_files_count or 0) for one in affected),
            rows=sum((one.added_rows_count or 0) + (one.existing_rows_count or 0) for one in affected),
            prepare=prepare,
        )

    def _numbered(self, manifest: ManifestFile, snapshot_id: int) -> Merge:
        """Write the live entries of *manifest*, which is of version 1, as files of sequence number 0."""
        spec = self._head.specs()[manifest.partition_spec_id]
        with write_manifest(
            self._head.format_version,
            spec,
            partition_schema(self._head, spec),
            self._io.new_output(
                metadata_places(self._head).new_metadata_location(f"{self._host.new_id()}-numbered.avro")
            ),
            snapshot_id,
            self._head.properties.get("write.avro.compression-codec", "gzip"),  # type: ignore[arg-type]
        ) as writer:
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                writer.existing(entry)
        return Merge(
            merged=writer.to_manifest_file(),
            replaced=frozenset({manifest.manifest_path}),
            format_version=self._head.format_version,
        )
