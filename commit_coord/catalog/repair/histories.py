"""Compares lost histories of a table with the present one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
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
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Identifier
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.catalog.repair.commits import RESTORED_FROM, LostCommit
from commit_coord.catalog.repair.content import (
    Content,
    branches_of,
    changes_between,
    count_in,
    has_ids,
    operation_of,
    request_id_of,
    schema_id_of,
)
from commit_coord.coordinator.request_ids import named_in
from commit_coord.errors import CommitConflict, InvalidArguments
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Append, Attempt, request_uuid, table_name
from commit_coord.iceberg.overwrites import Acknowledged, versions
from commit_coord.iceberg.rebase import GENERATION, REQUEST_ID, append_conflict
from commit_coord.iceberg.storage import metadata_places
from commit_coord.iceberg.written import partition_schema
from commit_coord.table.live_files import canonical

if TYPE_CHECKING:
    from commit_coord.coordinator import Coordinator


_CommitKey = tuple[str, tuple[int, ...]]
"""Tells lost commits apart: the metadata file and the snapshots."""


@dataclass(slots=True, kw_only=True)
class _LostHistory:
    """The commits of one lost history.

    Args:
        commits: Oldest first.
        last: The table after them.
        parents: The parents of the snapshots that they added.
    """

    commits: list[LostCommit]
    last: TableMetadata
    parents: dict[int, int | None]

    def keeps(self, commit: LostCommit, branch: str) -> bool:
        """Return whether *branch* has the snapshots of *commit* after all of them."""
        ref = self.last.refs.get(branch)
        tip = ref.snapshot_id if ref is not None else None
        found = set()
        while tip in self.parents:
            found.add(tip)
            tip = self.parents[tip]
        return found.issuperset(commit.snapshot_ids)


class LostHistories:
    """Compares lost histories with the present one."""

    def __init__(self, coordinator: Coordinator, table: Identifier, head: TableMetadata, location: str) -> None:
        self._coordinator = coordinator
        self._read = coordinator.read
        self._table = table
        self._io: FileIO = coordinator.store.file_io(location)
        self._lost: list[_LostHistory] = []
        self._old: set[int] | None = None
        """Snapshots that the table had before the histories parted."""
        self._contents: dict[_CommitKey, Content | Exception] = {}
        self._listed: dict[str, set[str]] = {}
        """Manifest → its live files."""
        self._added: dict[int, set[str]] = {}
        """Snapshot → the files that it added."""
        self._go_to(head, location)

    def _go_to(self, head: TableMetadata, location: str) -> None:
        self._head = head
        self._location = location
        self._history = set(self._readable(location))
        self._published = set(map(named_in, self._history))
        self._shown: dict[str, set[str]] = {}
        """Branch → the files that it has had since the histories parted."""

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

    def look_behind(self, path: str, *, asked: bool) -> list[str]:
        """Find the lost metadata files up to *path*, and their commits; return the files, oldest first."""
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
        old = {snapshot.snapshot_id for snapshot in self._read(before).snapshots}
        self._old = old if self._old is None else self._old & old
        history = _LostHistory(commits=[], last=last, parents={})
        for version in reversed(behind):
            metadata = self._read(version)
            history.commits += self._commits(version, self._read(before), metadata)
            new = (one for one in metadata.snapshots if one.snapshot_id not in old)
            history.parents.update({one.snapshot_id: one.parent_snapshot_id for one in new})
            before = version
        self._lost.append(history)
        return behind[::-1]

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

    def judged(self) -> Iterator[LostCommit]:
        """Yield the lost commits, each with what becomes of it."""
        taken = self._taken_away()
        # The clocks of their writers may differ, so times tell nothing within a history.
        merged = heapq.merge(*(history.commits for history in self._lost), key=lambda one: one.at_ms)
        for key, commit in {_key(commit): commit for commit in merged}.items():
            yield self._with_advice(commit, is_taken=key in taken)

    def _taken_away(self) -> set[_CommitKey]:
        """Return the commits whose rows, or some of them, a later commit of their history took away.

        Where that is not known it counts as taken away.
        """
        found: set[_CommitKey] = set()
        for history in self._lost:
            removed: set[str] = set()
            deletes = False
            for commit in reversed(history.commits):
                if not commit.snapshot_ids:
                    continue
                content = self._content(commit)
                if isinstance(content, Exception):
                    deletes |= commit.operation != Operation.APPEND.value
                    continue
                branch = self._branch(commit)
                left = branch is not None and not history.keeps(commit, branch)
                if deletes or left or removed & {one.file_path for one in content.added}:
                    found.add(_key(commit))
                removed |= content.removed
                deletes |= content.deletes
        return found

    def _content(self, commit: LostCommit) -> Content | Exception:
        """Return what *commit* added and removed; the error if its manifests can't be read."""
        if (key := _key(commit)) not in self._contents:
            try:
                self._contents[key] = Content.of(self._io, self._snapshots(commit))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with its files, the others may be whole
                self._contents[key] = error
        return self._contents[key]

    def _snapshots(self, commit: LostCommit) -> list[Snapshot]:
        after = self._read(commit.location)
        return [one for one in map(after.snapshot_by_id, commit.snapshot_ids) if one is not None]

    def _branch(self, commit: LostCommit) -> str | None:
        """Return the branch that *commit* appended to, None if it is on none."""
        branches = branches_of(self._read(commit.location), self._snapshots(commit)[-1])
        return next(iter(branches), None)

    def _with_advice(self, commit: LostCommit, *, is_taken: bool) -> LostCommit:
        """Return *commit* with what becomes of it."""
        if not commit.snapshot_ids:
            done = commit.location in self._history
            return replace(commit, restored=True) if done else self._by_hand(commit, commit.advice)
        if self._is_there(commit):
            return replace(commit, restored=True)
        content = self._content(commit)
        if isinstance(content, Exception):
            return self._by_hand(commit, f"its manifests can't be read ({content}): write the rows again")
        branch = self._branch(commit)
        added = {canonical(one.file_path) for one in content.added}
        again = added & self._files(branch) if added and branch is not None else set()
        if again and again == added:
            return replace(commit, restored=True)
        advice = self._advice(commit, content)
        if not advice and is_taken:
            advice = "a later commit that was lost too took rows of it away: write again what should be there"
        if not advice and again:
            advice = f"{len(again)} of its {len(added)} files were added again: write the rows of the others again"
        if advice:
            return self._by_hand(commit, advice)
        prepare = partial(self._attempt, commit, content)
        return replace(commit, prepare=prepare, replan=partial(self._again, commit, self._location))

    def _by_hand(self, commit: LostCommit, advice: str) -> LostCommit:
        """Return *commit* with *advice*, and what else to mind if its request is repeated.

        The journal keeps its request ids: a client that repeats a request before the repair must not add rows twice.
        """
        named = named_in(commit.location)
        asked = _request_ids(commit) if commit.snapshot_ids else [named] if named else []
        if any(self._coordinator.remembers(one, self._head.table_uuid) for one in asked):
            advice += "; use a new request id, because a repeated request with the old one counts as landed"
        return replace(commit, advice=advice)

    def _again(self, commit: LostCommit, known: str, head: TableMetadata, location: str) -> Attempt:
        """Return the attempt that brings *commit* back on another head.

        Raises:
            CommitConflict: It can't be brought back there; or the history does not reach back to *known*, the metadata
                file for which it was judged last.
        """
        now = copy(self)
        now._go_to(head, location)
        judged = now._with_advice(commit, is_taken=_key(commit) in now._taken_away())
        if judged.prepare is None or known not in now._history:
            reason = judged.advice or "the table has changed since the lost commits were listed"
            raise CommitConflict(
                f"a lost commit can't be brought back: {reason}; list the lost commits again",
                table=table_name(self._table),
                lost=commit.location,
            )
        return judged.prepare()

    def _is_there(self, commit: LostCommit) -> bool:
        """Return whether the present history has *commit*, also under the name of a metadata file alone.

        1. A repair brings back *m2*.   2. Its rows are deleted, or compacted.
        3. Its snapshot expires: no snapshot and no live file shows that it was brought back.

        The metadata file of 1 has the request id in its name, and it is in the history: that reaches back to where the
        lost one parts from it, or :meth:`look_behind` has refused.
        """
        there = any(self._head.snapshot_by_id(snapshot_id) is not None for snapshot_id in commit.snapshot_ids)
        return there or self._has_landed(_restoring_id(commit))

    def _has_landed(self, request_id: str) -> bool:
        snapshots: fast_metadata.LazyModels[Snapshot] = self._head.__dict__["snapshots"]
        return request_id in self._published or any(snapshots.ids_with_summary(REQUEST_ID, request_id))

    def _files(self, branch: str) -> set[str]:
        """Return the data files that *branch* has, and those that were added to it since the histories parted."""
        if branch in self._shown:
            return self._shown[branch]
        snapshot = self._head.snapshot_by_name(branch)
        listed = manifest_list.read(self._io, snapshot.manifest_list) if snapshot is not None else []
        unread = [manifest for manifest in listed if manifest.manifest_path not in self._listed]
        entries = ExecutorFactory.get_or_create().map(
            lambda manifest: manifest.fetch_manifest_entry(self._io, discard_deleted=True), unread
        )
        for manifest, of_one in zip(unread, entries, strict=True):
            self._listed[manifest.manifest_path] = {canonical(entry.data_file.file_path) for entry in of_one}
        found = set[str]().union(*(self._listed[manifest.manifest_path] for manifest in listed))
        while snapshot is not None and snapshot.snapshot_id not in (self._old or ()):
            if snapshot.snapshot_id not in self._added:
                added = Content.of(self._io, [snapshot]).added
                self._added[snapshot.snapshot_id] = {canonical(one.file_path) for one in added}
            found |= self._added[snapshot.snapshot_id]
            snapshot = self._head.snapshot_by_id(snapshot.parent_snapshot_id or 0)
        self._shown[branch] = found
        return found

    def _advice(self, commit: LostCommit, content: Content) -> str:
        """Return why *commit* can't be brought back and what to do, "" when it can."""
        after, snapshots = self._read(commit.location), self._snapshots(commit)
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
        branch = self._branch(commit)
        if branch is None:
            return "it is on no branch: stage it again"
        if branch != MAIN_BRANCH and branch not in self._head.refs:
            return f"its branch {branch!r} is not in the table: create the branch, and write the rows again"
        if reason := append_conflict(self._append(commit, content, content.manifests), self._head):
            return f"the table would refuse it ({reason}): write the rows again"
        there = ExecutorFactory.get_or_create().map(
            lambda path: self._io.new_input(path).exists(), [one.file_path for one in content.added]
        )
        missing = sum(not found for found in there)
        if missing:
            return f"{missing} of its {len(content.added)} files are gone: write the rows again"
        mapping = TableProperties.DEFAULT_NAME_MAPPING
        if self._head.properties.get(mapping) != after.properties.get(mapping) and not all(
            ExecutorFactory.get_or_create().map(partial(has_ids, self._io), content.added)
        ):
            return "its files have no field ids, and the table's name mapping is another one now: add the files again"
        return ""

    def _append(self, commit: LostCommit, content: Content, manifests: Sequence[ManifestFile]) -> Append:
        (snapshot,) = self._snapshots(commit)
        assert snapshot.summary is not None
        stated = snapshot.summary.additional_properties
        dropped = (REQUEST_ID, GENERATION)
        summary = {key: value for key, value in stated.items() if key not in dropped and not key.startswith("total-")}
        return Append(
            snapshot_id=snapshot.snapshot_id,
            branch=self._branch(commit),
            manifests=tuple(manifests),
            summary={**summary, RESTORED_FROM: commit.location},
            schema_id=schema_id_of(self._read(commit.location), snapshot),
        )

    def _attempt(self, commit: LostCommit, content: Content) -> Attempt:
        (snapshot,) = self._snapshots(commit)
        manifests = list(self._manifests(self._read(commit.location), snapshot, content))
        return Attempt(
            request_id=_restoring_id(commit),
            joined=tuple(one for one in _request_ids(commit) if one != _restoring_id(commit)),
            table=self._table,
            table_uuid=str(self._head.table_uuid),
            base_location=self._location,
            base_sequence_number=fast_metadata.sequence_number(self._head),
            append=self._append(commit, content, manifests),
            # An operator may look at the findings for hours: on another head it is judged again.
            reads_data=True,
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


def _key(commit: LostCommit) -> _CommitKey:
    return commit.location, commit.snapshot_ids


def _restoring_id(commit: LostCommit) -> str:
    """Return the request id under which *commit* is brought back: its own, if it has one and no others share it."""
    return request_uuid(commit.request_id or f"snapshot {commit.snapshot_ids[0]}")


def _request_ids(commit: LostCommit) -> list[str]:
    """Return the request ids of *commit*: several if they share its snapshot, none of a writer that is not ours."""
    return [one for one in commit.request_id.split(",") if one]
