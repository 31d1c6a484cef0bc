"""Compares lost histories of a table with the present one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Identifier
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.catalog.repair.commits import RESTORED_FROM, LostCommit
from commit_coord.catalog.repair.content import (
    Content,
    branches_of,
    changes_between,
    count_in,
    operation_of,
    request_id_of,
    schema_id_of,
)
from commit_coord.coordinator.request_ids import named_in
from commit_coord.errors import InvalidArguments
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Append, Attempt, request_uuid, table_name
from commit_coord.iceberg.overwrites import Acknowledged, versions
from commit_coord.iceberg.rebase import GENERATION, REQUEST_ID
from commit_coord.iceberg.storage import metadata_places
from commit_coord.iceberg.written import digest, partition_schema

if TYPE_CHECKING:
    from commit_coord.coordinator import Coordinator


class LostHistories:
    """Compares lost histories with the present one."""

    def __init__(self, coordinator: Coordinator, table: Identifier, head: TableMetadata, location: str) -> None:
        self._read = coordinator.read
        self._table = table
        self._head = head
        self._location = location
        self._io: FileIO = coordinator.store.file_io(location)
        self._history = set(self._readable(location))
        self._published = set(map(named_in, self._history))

    def _readable(self, location: str) -> Iterator[str]:
        try:
            yield from versions(self._read, location)
        except Exception:  # noqa: BLE001 - older metadata files may have been deleted
            return

    def has(self, head: Acknowledged) -> bool:
        """Return whether the metadata file of an acknowledged commit is there.

        Later commits of writers that leave no notes may have trimmed it from the metadata log, and deleted it.
        """
        return head.location in self._history or self._io.new_input(head.location).exists()

    def lost_behind(self, path: str, *, asked: bool) -> list[tuple[str, list[LostCommit]]]:
        """Return the lost metadata files up to *path*, oldest first, each with its commits."""
        if path in self._history:
            return []
        try:
            last = self._read(path)
        except Exception as error:
            raise InvalidArguments(
                "a lost metadata file can't be read",
                location=path,
                cause=error,
                accepted="the location of the lost file, as the error in the log names it",
            ) from error
        if last.table_uuid != self._head.table_uuid:
            if not asked:
                return []
            raise InvalidArguments(
                "the metadata file belongs to another table", location=path, table=table_name(self._table)
            )
        behind: list[str] = []
        before: str | None = None
        for version in self._readable(path):
            if version in self._history:
                before = version
                break
            behind.append(version)
        if before is None:
            raise InvalidArguments(
                "no common version of the two histories can be found: metadata files in between are gone. To "
                "get the rows, register the lost metadata file as a table with another name, and read that table",
                location=path,
            )
        found = []
        for version in reversed(behind):
            found.append((version, list(self._commits(version, self._read(before), self._read(version)))))
            before = version
        return found

    def _commits(self, location: str, before: TableMetadata, after: TableMetadata) -> Iterator[LostCommit]:
        """Yield what the metadata file at *location* published."""
        added = [snapshot for snapshot in after.snapshots if before.snapshot_by_id(snapshot.snapshot_id) is None]
        for request_id, group in groupby(added, key=request_id_of):
            snapshots = list(group)
            yield LostCommit(
                location=location,
                request_id=request_id,
                snapshot_ids=tuple(snapshot.snapshot_id for snapshot in snapshots),
                operation=", ".join(dict.fromkeys(map(operation_of, snapshots))),
                at_ms=snapshots[-1].timestamp_ms,
                files=sum(count_in(snapshot, "added-data-files") for snapshot in snapshots),
                rows=sum(count_in(snapshot, "added-records") for snapshot in snapshots),
            )
        if changes := changes_between(before, after):
            yield LostCommit(
                location=location,
                request_id="",
                snapshot_ids=(),
                operation="metadata",
                at_ms=after.last_updated_ms,
                advice=f"{'; '.join(changes)}: make the change again",
            )

    def judged(self, commits: Sequence[LostCommit]) -> Iterator[LostCommit]:
        """Yield *commits*, each with what becomes of it."""
        taken_away: set[str] = set()
        any_deletes = False
        judged: list[LostCommit] = []
        live: set[str] | None = None
        for commit in reversed(commits):
            if not commit.snapshot_ids:
                done = commit.location in self._history
                judged.append(commit if not done else replace(commit, restored=True))
                continue
            if self._is_there(commit):
                judged.append(replace(commit, restored=True))
                continue
            after = self._read(commit.location)
            snapshots = [one for one in map(after.snapshot_by_id, commit.snapshot_ids) if one is not None]
            try:
                content = Content.of(self._io, snapshots)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with its files, the others may be whole
                judged.append(replace(commit, advice=f"its manifests can't be read ({error}): write the rows again"))
                continue
            live = live if live is not None else self._live()
            if content.added and {one.file_path for one in content.added} <= live:
                judged.append(replace(commit, restored=True))
                continue
            advice = self._advice(commit, after, snapshots, content)
            if not advice and (any_deletes or taken_away & {one.file_path for one in content.added}):
                advice = "a later commit that was lost too took rows of it away: write again what should be there"
            taken_away |= content.removed
            any_deletes |= content.deletes
            if advice:
                judged.append(replace(commit, advice=advice))
            else:
                prepare = partial(self._attempt, commit, after, snapshots[0], content)
                judged.append(replace(commit, prepare=prepare))
        yield from reversed(judged)

    def _is_there(self, commit: LostCommit) -> bool:
        """Return whether the present history has *commit*, also under the name of a metadata file alone.

        1. A repair brings back *m2*.   2. Its rows are deleted, or compacted.
        3. Its snapshot expires: no snapshot and no live file shows that it was brought back.

        The metadata file of 1 has the request id in its name, and it is in the history: that reaches back to where the
        lost one parts from it, or :meth:`lost_behind` has refused.
        """
        there = any(self._head.snapshot_by_id(snapshot_id) is not None for snapshot_id in commit.snapshot_ids)
        return there or self._has_landed(_restoring_id(commit))

    def _has_landed(self, request_id: str) -> bool:
        snapshots: fast_metadata.LazyModels[Snapshot] = self._head.__dict__["snapshots"]
        return request_id in self._published or any(snapshots.ids_with_summary(REQUEST_ID, request_id))

    def _live(self) -> set[str]:
        """Return the data files of the present branches."""
        found: dict[str, ManifestFile] = {}
        for ref in self._head.refs.values():
            snapshot = self._head.snapshot_by_id(ref.snapshot_id)
            if snapshot is not None:
                listed = manifest_list.read(self._io, snapshot.manifest_list)
                found.update((manifest.manifest_path, manifest) for manifest in listed)
        entries = ExecutorFactory.get_or_create().map(
            lambda manifest: manifest.fetch_manifest_entry(self._io, discard_deleted=True), found.values()
        )
        return {entry.data_file.file_path for of_one in entries for entry in of_one}

    def _advice(self, commit: LostCommit, after: TableMetadata, snapshots: Sequence[Snapshot], content: Content) -> str:
        """Return why *commit* can't be brought back and what to do, "" when it can."""
        if len(snapshots) != 1 or operation_of(snapshots[0]) != Operation.APPEND.value or content.removed:
            return "it depends on the rows that it found: run the operation again"
        if content.deletes:
            return "it deletes rows: run the operation again"
        schema_id = schema_id_of(after, snapshots[0])
        if self._head.schema_by_id(schema_id) != after.schema_by_id(schema_id):
            return (
                f"schema {schema_id} of its files is lost too: make the schema change again, and write the rows again"
            )
        specs, own = self._head.specs(), after.specs()
        for spec_id in {manifest.partition_spec_id for manifest in content.manifests}:
            if specs.get(spec_id) != own[spec_id]:
                return f"partition spec {spec_id} of its files is lost too: change it again, and write the rows again"
        if any(map(self._has_landed, _request_ids(commit))):
            return "one of the requests that share it has landed again: write the rows of the others again"
        if not branches_of(after, snapshots[0]):
            return "it is on no branch: stage it again"
        there = ExecutorFactory.get_or_create().map(
            lambda path: self._io.new_input(path).exists(), [one.file_path for one in content.added]
        )
        missing = sum(not found for found in there)
        if missing:
            return f"{missing} of its {len(content.added)} files are gone: write the rows again"
        return ""

    def _attempt(self, commit: LostCommit, after: TableMetadata, snapshot: Snapshot, content: Content) -> Attempt:
        assert snapshot.summary is not None
        stated = snapshot.summary.additional_properties
        dropped = (REQUEST_ID, GENERATION)
        summary = {key: value for key, value in stated.items() if key not in dropped and not key.startswith("total-")}
        schema_id = schema_id_of(after, snapshot)
        schema, specs = after.schema_by_id(schema_id), after.specs()
        return Attempt(
            request_id=_restoring_id(commit),
            joined=tuple(one for one in _request_ids(commit) if one != _restoring_id(commit)),
            table=self._table,
            table_uuid=str(self._head.table_uuid),
            base_location=self._location,
            base_sequence_number=fast_metadata.sequence_number(self._head),
            append=Append(
                snapshot_id=snapshot.snapshot_id,
                branch=branches_of(after, snapshot)[0],
                manifests=tuple(self._manifests(after, snapshot, content)),
                summary={**summary, RESTORED_FROM: commit.location},
                schema_id=schema_id,
                # An operator may look at the findings for hours: by then the ids may mean others.
                schema=digest(schema) if schema is not None else "",
                specs={one.partition_spec_id: digest(specs[one.partition_spec_id]) for one in content.manifests},
            ),
        )

    def _manifests(self, after: TableMetadata, snapshot: Snapshot, content: Content) -> Iterator[ManifestFile]:
        """Yield the manifests of what *snapshot* added and nothing else: its own, or one that is written now."""
        for manifest in content.manifests:
            if not manifest.existing_files_count:
                again = ManifestFile(*manifest._data)
                again.sequence_number = again.min_sequence_number = UNASSIGNED_SEQ
                yield again
                continue
            name = f"{request_uuid(f'{manifest.manifest_path} {snapshot.snapshot_id}')}-restored.avro"
            output = self._io.new_output(metadata_places(self._head).new_metadata_location(name))
            with write_manifest(
                self._head.format_version,
                after.specs()[manifest.partition_spec_id],
                partition_schema(self._head, after.specs()[manifest.partition_spec_id]),
                output,
                snapshot.snapshot_id,
                self._head.properties.get("write.avro.compression-codec", "gzip"),  # type: ignore[arg-type]
            ) as writer:
                for data_file in content.added_in[manifest.manifest_path]:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=snapshot.snapshot_id,
                            sequence_number=None,
                            file_sequence_number=None,
                            data_file=data_file,
                        )
                    )
            yield writer.to_manifest_file()


def _restoring_id(commit: LostCommit) -> str:
    """Return the request id under which *commit* is brought back: its own, if it has one and no others share it."""
    return request_uuid(commit.request_id or f"snapshot {commit.snapshot_ids[0]}")


def _request_ids(commit: LostCommit) -> list[str]:
    """Return the request ids of *commit*: several if they share its snapshot, none of a writer that is not ours."""
    return [one for one in commit.request_id.split(",") if one]
