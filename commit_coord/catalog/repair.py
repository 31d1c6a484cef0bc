"""Brings back what writers without our rules overwrote.

Theory of operation
    The metadata files of commits that were overwritten are still there, and their data files too: nobody refers to
    them any more, and nobody deletes them but ``orphans``, which spares what the lock service remembers. From the last
    one of them its log leads back to where the two histories part. What was committed on the way is *lost*.

    An append is brought back by a commit on the present head like any other: the same data files, in the same
    manifests, under the same snapshot id and request id. A snapshot id can be in a table once, so however often and by
    however many it is repaired, nothing is added twice.

    Whatever read the table that it changed (an overwrite, a delete) or is no data (a schema change) can't be carried
    over: it might say something else on the present head. It is listed with what to do. So is an append whose rows a
    later lost commit took away.

    A commit can also be in the history and yet be in no scan: an older version of this package added manifests behind a
    block of no records, where PyIceberg's reader stops. An append of nothing to the branch writes the list anew,
    without that block.

    An older version also merged manifests of format version 1 in a table of version 2, and left the sequence numbers
    out, as version 1 has none. Other engines can't read an existing entry without one. Such files are all of number 0
    (specification, "Sequence Numbers"), so an append of nothing to the branch replaces the manifest by one that says
    so. Older snapshots and tags stay as they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.errors import InvalidArguments
from commit_coord.iceberg import manifest_list, manifests
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Append, Attempt, Merge, request_uuid, table_name
from commit_coord.iceberg.overwrites import Acknowledged, Note, versions
from commit_coord.iceberg.rebase import GENERATION, REQUEST_ID
from commit_coord.iceberg.written import partition_schema

if TYPE_CHECKING:
    from commit_coord.coordinator import Coordinator

RESTORED_FROM = "commit-coord.restored-from"
"""Summary property of a snapshot that was brought back: the metadata file that had published it before."""

Table = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommit:
    """A commit that is not in the history of the table any more.

    Args:
        location: The metadata file that published it.
        request_id: The attempt; "" of a writer that is not ours.
        snapshot_ids: What it added.
        operation: What its snapshots say, or ``metadata``.
        at_ms: When, by its writer's clock.
        files: Data files that it added.
        rows: Rows in them.
        restored: It is in the table again.
        advice: Why it can't be brought back, and what to do; "" when it can.
    """

    location: str
    request_id: str
    snapshot_ids: tuple[int, ...]
    operation: str
    at_ms: int
    files: int = 0
    rows: int = 0
    restored: bool = False
    advice: str = ""
    _prepare: Callable[[], Attempt] | None = field(default=None, repr=False, compare=False)
    """Writes the files that bring it back: looking for lost commits leaves none."""

    @property
    def restorable(self) -> bool:
        """Whether :func:`carry_out` brings it back."""
        return self._prepare is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was lost of a table.

    Args:
        table: Namespace and name.
        commits: Oldest first.
        remembered: How many commits the lock service says were lost.
    """

    table: Table
    commits: tuple[LostCommit, ...]
    remembered: int = 0

    @property
    def restorable(self) -> list[LostCommit]:
        """What :func:`carry_out` brings back."""
        return [commit for commit in self.commits if commit.restorable]

    @property
    def by_hand(self) -> list[LostCommit]:
        """What has to be done again by whoever wanted it."""
        return [commit for commit in self.commits if not commit.restorable and not commit.restored]


def find(coordinator: Coordinator, table: Table, since: Iterable[str] = ()) -> Repair:
    """Return what was lost of *table*.

    Args:
        coordinator: Of its catalog.
        table: Which one.
        since: Metadata files of commits that are known to be lost, beside what the lock service remembers.

    Raises:
        NoSuchTableError: There is none of that name.
        InvalidArguments: A file of *since* is none of this table, or can't be read; or the lock service remembers
            nothing, *since* is empty, and no reader overlooks anything.
        LockError: The latch, which is held to read the note, was not granted.
    """
    given = list(since)
    with coordinator.latch(table, statement="look for lost commits") as latch:
        text = latch.handover_note
        head, location = coordinator.load(table)
    finder = _Finder(coordinator, table, head, location)
    overlooked = [*finder.overlooked(), *finder.unnumbered()]
    if text is None and not given and not overlooked:
        raise InvalidArguments(
            "the lock manager of this catalog remembers no commits: name the last metadata file that was lost, as the "
            "log and the event said it",
            table=table_name(table),
            lock_manager=coordinator.locks.name,
        )
    note = Note.parse(text or "")
    known = [lost.location for lost in (*note.lost, *([note.head] if note.head else []))]
    found: dict[str, list[LostCommit]] = {}
    for path in dict.fromkeys([*given, *known]):
        for lost, commits in finder.lost_behind(path, asked=path in given):
            found.setdefault(lost, commits)
    ordered = sorted((commit for commits in found.values() for commit in commits), key=lambda one: one.at_ms)
    return Repair(table=table, commits=(*finder.judged(ordered), *overlooked), remembered=len(note.lost))


def carry_out(coordinator: Coordinator, repair: Repair) -> list[LostCommit]:
    """Bring back what can be; if nothing else was lost, have the lock service forget it. Return what was brought back.

    Guarantee: on return each of ``repair.restorable`` is in the table, once, whoever else repairs it; on any error some
    of them are. It may be called again.

    Raises:
        CommitError: As any commit; those before it have landed.
    """
    for commit in repair.restorable:
        assert commit._prepare is not None
        coordinator.commit([commit._prepare()], is_repair=True)
    if not repair.by_hand:
        forget(coordinator, repair.table)
    return repair.restorable


def forget(coordinator: Coordinator, table: Table) -> tuple[Acknowledged, ...]:
    """Have the lock service forget what was lost of *table*; return what it forgot."""
    with coordinator.latch(table, statement="forget lost commits") as latch:
        if not latch.handover_note:
            return ()
        _, location = coordinator.load(table)
        head = Note.parse(latch.handover_note).head
        lost = coordinator.overwrites.look_back(table, location, latch.handover_note).lost
        if lost:
            latch.set_handover_note(Note(head=None if head in lost else head).to_text())
        return lost


class _Finder:
    """Compares lost histories with the present one."""

    def __init__(self, coordinator: Coordinator, table: Table, head: TableMetadata, location: str) -> None:
        self._coordinator = coordinator
        self._read = coordinator.read
        self._table = table
        self._head = head
        self._location = location
        self._io: FileIO = coordinator.store.file_io(head.properties, location)
        self._history = set(self._readable(location))

    def _readable(self, location: str) -> Iterator[str]:
        try:
            yield from versions(self._read, location)
        except Exception:  # noqa: BLE001 - older metadata files may have been deleted
            return

    def lost_behind(self, path: str, *, asked: bool) -> list[tuple[str, list[LostCommit]]]:
        """Return the lost metadata files up to *path*, oldest first, each with its commits."""
        if path in self._history:
            return []
        try:
            last = self._read(path)
        except Exception as error:
            raise InvalidArguments("a lost metadata file can't be read", location=path, cause=error) from error
        if last.table_uuid != self._head.table_uuid:
            if not asked:
                return []
            raise InvalidArguments(
                "the metadata file is one of another table", location=path, table=table_name(self._table)
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
                "where the two histories part can't be found: the metadata files between are gone. What the file holds "
                "can be read with a table that is registered from it under another name",
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
        for request_id, group in groupby(added, key=_request_id):
            snapshots = list(group)
            yield LostCommit(
                location=location,
                request_id=request_id,
                snapshot_ids=tuple(snapshot.snapshot_id for snapshot in snapshots),
                operation=", ".join(dict.fromkeys(map(_operation, snapshots))),
                at_ms=snapshots[-1].timestamp_ms,
                files=sum(_count(snapshot, "added-data-files") for snapshot in snapshots),
                rows=sum(_count(snapshot, "added-records") for snapshot in snapshots),
            )
        if changes := _changes(before, after):
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
                content = _Content.of(self._io, snapshots)
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
                judged.append(replace(commit, _prepare=prepare))
        yield from reversed(judged)

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
            source: Names the repair, so that it lands once, whoever carries it out.
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
            _prepare=prepare,
        )

    def _numbered(self, manifest: ManifestFile, snapshot_id: int) -> Merge:
        """Write the live entries of *manifest*, which is of version 1, as files of sequence number 0."""
        spec = self._head.specs()[manifest.partition_spec_id]
        provider = load_location_provider(self._head.location, self._head.properties)
        with write_manifest(
            self._head.format_version,
            spec,
            partition_schema(self._head, spec),
            self._io.new_output(provider.new_metadata_location(f"{uuid.uuid4()}-numbered.avro")),
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

    def _is_there(self, commit: LostCommit) -> bool:
        if any(self._head.snapshot_by_id(snapshot_id) is not None for snapshot_id in commit.snapshot_ids):
            return True
        snapshots: fast_metadata.LazyModels[Snapshot] = self._head.__dict__["snapshots"]
        return bool(commit.request_id) and any(snapshots.ids_with_summary(REQUEST_ID, commit.request_id))

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

    def _advice(
        self, commit: LostCommit, after: TableMetadata, snapshots: Sequence[Snapshot], content: _Content
    ) -> str:
        """Return why *commit* can't be brought back and what to do, "" when it can."""
        if len(snapshots) != 1 or _operation(snapshots[0]) != Operation.APPEND.value or content.removed:
            return "it depends on the rows that it found: run the operation again"
        if content.deletes:
            return "it deletes rows: run the operation again"
        schema_id = _schema_id(after, snapshots[0])
        if self._head.schema_by_id(schema_id) != after.schema_by_id(schema_id):
            return (
                f"schema {schema_id} of its files is lost too: make the schema change again, and write the rows again"
            )
        specs, own = self._head.specs(), after.specs()
        for spec_id in {manifest.partition_spec_id for manifest in content.manifests}:
            if specs.get(spec_id) != own[spec_id]:
                return f"partition spec {spec_id} of its files is lost too: change it again, and write the rows again"
        if not _branches(after, snapshots[0]):
            return "it is on no branch: stage it again"
        there = ExecutorFactory.get_or_create().map(
            lambda path: self._io.new_input(path).exists(), [one.file_path for one in content.added]
        )
        missing = sum(not found for found in there)
        if missing:
            return f"{missing} of its {len(content.added)} files are gone: write the rows again"
        return ""

    def _attempt(self, commit: LostCommit, after: TableMetadata, snapshot: Snapshot, content: _Content) -> Attempt:
        assert snapshot.summary is not None
        said = snapshot.summary.additional_properties
        dropped = (REQUEST_ID, GENERATION)
        summary = {key: value for key, value in said.items() if key not in dropped and not key.startswith("total-")}
        return Attempt(
            request_id=commit.request_id or request_uuid(f"snapshot {snapshot.snapshot_id}"),
            table=self._table,
            table_uuid=str(self._head.table_uuid),
            base_location=self._location,
            base_sequence_number=fast_metadata.sequence_number(self._head),
            append=Append(
                snapshot_id=snapshot.snapshot_id,
                branch=_branches(after, snapshot)[0],
                manifests=tuple(self._manifests(after, snapshot, content)),
                summary={**summary, RESTORED_FROM: commit.location},
                schema_id=_schema_id(after, snapshot),
            ),
        )

    def _manifests(self, after: TableMetadata, snapshot: Snapshot, content: _Content) -> Iterator[ManifestFile]:
        """Yield the manifests of what *snapshot* added and nothing else: its own, or one that is written now."""
        for manifest in content.manifests:
            if not manifest.existing_files_count:
                again = ManifestFile(*manifest._data)
                again.sequence_number = again.min_sequence_number = UNASSIGNED_SEQ
                yield again
                continue
            provider = load_location_provider(self._head.location, self._head.properties)
            name = f"{request_uuid(f'{manifest.manifest_path} {snapshot.snapshot_id}')}-restored.avro"
            output = self._io.new_output(provider.new_metadata_location(name))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """What snapshots added and removed."""

    manifests: list[ManifestFile]
    """Data manifests in which they added something."""
    added_in: dict[str, list[DataFile]]
    """What they added, by manifest."""
    removed: set[str]
    """Data files that they removed."""
    deletes: bool
    """Whether they added deletes of rows."""

    @property
    def added(self) -> list[DataFile]:
        return [data_file for files in self.added_in.values() for data_file in files]

    @classmethod
    def of(cls, io: FileIO, snapshots: Sequence[Snapshot]) -> _Content:
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


def _request_id(snapshot: Snapshot) -> str:
    found = snapshot.summary.get(REQUEST_ID) if snapshot.summary is not None else None
    return found or ""


def _operation(snapshot: Snapshot) -> str:
    return snapshot.summary.operation.value if snapshot.summary is not None else "unknown"


def _count(snapshot: Snapshot, key: str) -> int:
    return int((snapshot.summary.get(key) if snapshot.summary is not None else None) or 0)


def _schema_id(metadata: TableMetadata, snapshot: Snapshot) -> int:
    return snapshot.schema_id if snapshot.schema_id is not None else metadata.current_schema_id


def _branches(metadata: TableMetadata, snapshot: Snapshot) -> list[str]:
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


def _changes(before: TableMetadata, after: TableMetadata) -> list[str]:
    """Return what differs between two versions of a table beside its snapshots, in words."""
    found = []
    if before.current_schema_id != after.current_schema_id or len(before.schemas) != len(after.schemas):
        old = {column.field_id: column for column in before.schema().fields}
        new = {column.field_id: column for column in after.schema().fields}
        names = [new[i].name for i in new if old.get(i) != new[i]] + [old[i].name for i in old if i not in new]
        found.append(f"schema {after.current_schema_id} (columns {', '.join(names) or 'as before'})")
    if before.default_spec_id != after.default_spec_id or len(before.partition_specs) != len(after.partition_specs):
        found.append(f"partition spec {after.default_spec_id}")
    if before.default_sort_order_id != after.default_sort_order_id:
        found.append(f"sort order {after.default_sort_order_id}")
    keys = {k for k in {*before.properties, *after.properties} if before.properties.get(k) != after.properties.get(k)}
    if keys:
        found.append(f"properties {', '.join(sorted(keys))}")
    moved = [
        name
        for name in {*before.refs, *after.refs}
        if before.refs.get(name) != after.refs.get(name)
        and not (name in after.refs and before.snapshot_by_id(after.refs[name].snapshot_id) is None)
    ]
    if moved:
        found.append(f"branches or tags {', '.join(sorted(moved))}")
    gone = sum(after.snapshot_by_id(snapshot.snapshot_id) is None for snapshot in before.snapshots)
    if gone:
        found.append(f"{gone} snapshots that were expired")
    if before.statistics != after.statistics or before.partition_statistics != after.partition_statistics:
        found.append("statistics")
    return found
