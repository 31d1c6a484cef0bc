"""Re-bases appends of other engines that are declared blind, so that they land on a head that has moved.

Such a client sends a snapshot whose manifest list contains the manifests of the head that it saw, and its own ones.
The list fits no other head. The client's own manifests fit any head: they contain only files, and the id of the
snapshot that adds them, which does not change.

``operation=append`` is not a declaration. Iceberg Java also uses it for a ``MERGE`` without a match and for an
overwrite that removed nothing. The rows of these commits depend on what their client read, and were checked against
the head that it saw, not against another one. So an append must be declared: one append by a property of its snapshot,
all appends of a client by a header, or all appends to a table by a property of the table. The narrower declaration has
precedence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import ADDED_DATA_FILES, Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.utils.properties import property_as_bool

from commit_coord.config import BLIND_APPENDS
from commit_coord.iceberg import manifest_list, manifests
from commit_coord.iceberg.attempt import NO_SNAPSHOT, TOTALS, Append, Merge
from commit_coord.iceberg.became_required import lacks_required, required_since, written_for
from commit_coord.iceberg.rebase import Conflict
from commit_coord.iceberg.written import digest

DECLARATION = "commit-coord.append"
"""The summary property that declares one append ``blind`` or ``checked``."""

BLIND, CHECKED = "blind", "checked"
"""The values of a declaration. ``blind``: the rows do not depend on the table. ``checked``: they may; the requirements
of the commit decide."""

_HARMLESS = AssignUUIDUpdate | SetPropertiesUpdate | RemovePropertiesUpdate
"""Updates that a re-based append may contain: they have the same effect on every head."""


def is_declared(summary: Mapping[str, str], client: str | None, properties: Mapping[str, str]) -> bool:
    """Return whether an append is declared to be blind.

    Args:
        summary: The summary of its snapshot.
        client: The declaration of its client for all appends; None if there is none.
        properties: The properties of the table.

    Raises:
        ValueError: A declaration is neither ``blind`` nor ``checked``, or the table property is neither true nor false.
    """
    declaration = summary.get(DECLARATION) or client
    if declaration is None:
        return property_as_bool(dict(properties), BLIND_APPENDS, False)
    if declaration not in (BLIND, CHECKED):
        raise ValueError(f"an append is declared to be {BLIND} or {CHECKED}, not {declaration!r}")
    return declaration == BLIND


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A commit that may be the append of one snapshot and nothing else.

    Args:
        snapshot: The snapshot.
        branch: The branch of the snapshot.
        requirements: The requirements of the commit, without the one for the branch.
        updates: The other updates, which are applied before the snapshot is added.
    """

    snapshot: Snapshot
    branch: str
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]


def candidate(requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> Candidate | None:
    """Return the commit as a candidate for an append to a branch that its client has read; None if it is none.

    Main may be missing: then the table was empty. A commit that creates another branch is no candidate: on another
    head, it is not known at which snapshot the branch should begin.
    """
    added = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
    refs = [update for update in updates if isinstance(update, SetSnapshotRefUpdate)]
    others = tuple(update for update in updates if isinstance(update, _HARMLESS))
    if len(added) != 1 or len(refs) != 1 or len(others) + 2 != len(updates):
        return None
    (snapshot,), (ref,) = added, refs
    if ref.type != SnapshotRefType.BRANCH or ref.snapshot_id != snapshot.snapshot_id or not _appends(snapshot):
        return None
    if snapshot.parent_snapshot_id is None and ref.ref_name != MAIN_BRANCH:
        return None
    kept = []
    for requirement in requirements:
        if not isinstance(requirement, AssertRefSnapshotId) or requirement.ref != ref.ref_name:
            kept.append(requirement)
        elif requirement.snapshot_id != snapshot.parent_snapshot_id:
            return None
    return Candidate(snapshot=snapshot, branch=ref.ref_name, requirements=tuple(kept), updates=others)


def _appends(snapshot: Snapshot) -> bool:
    summary = snapshot.summary
    if summary is None or summary.operation is not Operation.APPEND:
        return False
    if any(summary.get(key) is not None for key in _CHECKED_BY_CLIENT):
        return False
    removed = [key for key in summary.additional_properties if key.startswith(("deleted-", "removed-"))]
    return all(summary.get(key) == "0" for key in (*removed, *_ADDED_DELETES) if summary.get(key) is not None)


_CHECKED_BY_CLIENT = ("source-snapshot-id", "published-wap-id", "replace-partitions")
"""Properties of a snapshot that publishes a staged one, or replaces partitions: its client has checked the history.

Without that check: 1. Two clients publish the same staged snapshot. Neither finds it in the history of the branch.
2. Both add its files.
"""

_ADDED_DELETES = (
    "added-delete-files",
    "added-position-delete-files",
    "added-equality-delete-files",
    "added-position-deletes",
    "added-equality-deletes",
    "added-dvs",
)


class NoAppend(Exception):
    """The commit does more than add files, or it is not certain that it does not. The message says why."""


def take(
    found: Candidate,
    head: TableMetadata,
    io: FileIO,
    new_location: Callable[[], str],
    lists: manifest_list.RecentLists | None = None,
) -> Append | Conflict:
    """Return the append in *found*, or the reason why its files do not fit *head*.

    A manifest that the client merged contains the client's own files and older ones. This writes one manifest with the
    own files and one with the older files. The second one is used if no other writer has merged these files, so that
    the client's merge is not lost.

    Args:
        found: The client's commit.
        head: The table now.
        io: Reads the client's manifests, and writes new ones.
        new_location: Returns a location for a new manifest.
        lists: May know the list that the client has read.

    Raises:
        NoAppend: The commit is not an append. Nothing was written.
        FileNotFoundError: The manifest list or a manifest of the client does not exist. Nothing was written.
        OSError: A manifest could not be read or written.
    """
    snapshot = found.snapshot
    if head.format_version >= 3:
        raise NoAppend("appends to tables of version 3 assign row ids")
    if found.branch not in head.refs and found.branch != MAIN_BRANCH:
        raise NoAppend(f"there is no branch {found.branch!r}")
    own, missing = _own_and_missing(snapshot, head, io, lists or manifest_list.RecentLists())
    parts = [_Part(manifest, _entries(io, manifest, snapshot.snapshot_id)) for manifest in own]
    _refuse_removed(parts, missing)
    _refuse_uncounted(parts, snapshot)
    added = [part for part in parts if part.entries.added]
    schemas: list[Schema] = []
    for part in added:
        fits = _fit(part, head, io)
        if isinstance(fits, Conflict):
            return fits
        schemas.append(fits)
    schema = schemas[0] if schemas else head.schema()
    if any(each.schema_id != schema.schema_id for each in schemas):
        raise NoAppend("its files were written with several schemas")
    specs = head.specs()
    own_manifests = [_added_only(part, snapshot.snapshot_id, io, new_location) for part in added]
    summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    return Append(
        snapshot_id=snapshot.snapshot_id,
        branch=found.branch,
        manifests=tuple(own_manifests),
        summary={key: value for key, value in summary.items() if key not in TOTALS},
        schema_id=schema.schema_id,
        schema=digest(schema),
        specs={manifest.partition_spec_id: digest(specs[manifest.partition_spec_id]) for manifest in own_manifests},
        merge=_merge(parts, missing, head, snapshot.snapshot_id, io, new_location),
        makes_branch=found.branch == MAIN_BRANCH,
        follows=NO_SNAPSHOT if snapshot.parent_snapshot_id is None else snapshot.parent_snapshot_id,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A manifest that the client wrote, and its entries."""

    manifest: ManifestFile
    entries: manifests.Entries


def _own_and_missing(
    snapshot: Snapshot, head: TableMetadata, io: FileIO, lists: manifest_list.RecentLists
) -> tuple[list[ManifestFile], list[ManifestFile]]:
    """Return the manifests of data files that *snapshot* adds to its parent's list, and those that it leaves out."""
    known: dict[str, ManifestFile] = {}
    if snapshot.parent_snapshot_id is not None:
        parent = head.snapshot_by_id(snapshot.parent_snapshot_id)
        if parent is None:
            raise NoAppend("the snapshot that it follows has expired")
        known = dict(lists.manifests(io, parent.manifest_list))
    own: list[ManifestFile] = []
    for manifest in manifest_list.read_others(io, snapshot.manifest_list, known):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            raise NoAppend(f"the manifest {manifest.manifest_path} is of another snapshot")
        if manifest.content == ManifestContent.DATA:
            own.append(manifest)
        elif manifest.added_files_count != 0:
            raise NoAppend("it adds deletes")
    return own, [manifest for manifest in known.values() if manifest.content == ManifestContent.DATA]


def _entries(io: FileIO, manifest: ManifestFile, snapshot_id: int) -> manifests.Entries:
    try:
        found = manifests.entries_of(io, manifest)
    except ValueError as error:
        raise NoAppend(str(error)) from error
    if found.deleted:
        raise NoAppend(f"the manifest {manifest.manifest_path} removes files")
    for entry in found.added:
        if entry["snapshot_id"] not in (None, snapshot_id) or entry.get("sequence_number") is not None:
            raise NoAppend(f"the manifest {manifest.manifest_path} adds files that were added before")
    return found


def _refuse_removed(parts: Sequence[_Part], missing: Sequence[ManifestFile]) -> None:
    """Raise NoAppend if the client's manifests contain fewer of the parent's files than the manifests they replace."""
    live: Counter[int] = Counter()
    for manifest in missing:
        if manifest.added_files_count is None or manifest.existing_files_count is None:
            raise NoAppend(f"the manifest {manifest.manifest_path} does not say how many files it has")
        live[manifest.partition_spec_id] += manifest.added_files_count + manifest.existing_files_count
    for part in parts:
        live[part.manifest.partition_spec_id] -= len(part.entries.existing)
    if any(live.values()):
        raise NoAppend("it removes files of the snapshot that it follows")


def _refuse_uncounted(parts: Sequence[_Part], snapshot: Snapshot) -> None:
    stated = snapshot.summary.get(ADDED_DATA_FILES) if snapshot.summary is not None else None
    count = sum(len(part.entries.added) for part in parts)
    if stated is not None and stated != str(count):
        raise NoAppend(f"it says that it adds {stated} files, and adds {count}")


def _fit(part: _Part, head: TableMetadata, io: FileIO) -> Schema | Conflict:
    """Return the schema with which the files of *part* were written, or the reason why they do not fit *head*.

    The schema id of the snapshot does not help: it is the schema that the client knew when it committed.
    """
    meta, spec_id = part.entries.meta, part.manifest.partition_spec_id
    if int(meta.get("format-version", b"1")) != head.format_version:
        raise NoAppend(f"the manifest {part.manifest.manifest_path} is of another format version than the table")
    try:
        schema, fields = written_for(meta)
    except (KeyError, ValueError) as error:
        raise NoAppend(f"the manifest {part.manifest.manifest_path} does not say its schema or spec") from error
    spec = head.specs().get(spec_id)
    if spec is None or spec != PartitionSpec(*fields, spec_id=spec_id):
        return Conflict(reason=f"partition spec {spec_id} of the written files is gone")
    known = [head.schema_by_id(schema.schema_id), *head.schemas]
    same = next((each for each in known if each is not None and each == schema), None)
    if same is None:
        return Conflict(reason=f"schema {schema.schema_id} of the written files is gone")
    required = required_since(head.schema(), head.schemas)
    reason = lacks_required(part.entries.added, head.schema(), required, io)
    return same if reason is None else Conflict(reason=reason)


def _added_only(part: _Part, snapshot_id: int, io: FileIO, new_location: Callable[[], str]) -> ManifestFile:
    """Return a manifest with the added files of *part*, without sequence numbers."""
    manifest, entries = part.manifest, part.entries
    if entries.existing:
        return entries.write(io, new_location(), entries.added, manifest, snapshot_id)
    return manifest_list.unnumbered(manifest)


def _merge(
    parts: Sequence[_Part],
    missing: Sequence[ManifestFile],
    head: TableMetadata,
    snapshot_id: int,
    io: FileIO,
    new_location: Callable[[], str],
) -> Merge | None:
    """Return the largest merge of the client, without its own files; None if there is none.

    If there are several merges of one partition spec, it is not known which manifests each of them replaces.
    """
    merges = [part for part in parts if part.entries.existing]
    specs = Counter(part.manifest.partition_spec_id for part in merges)
    alone = [part for part in merges if specs[part.manifest.partition_spec_id] == 1]
    largest = max(alone, key=lambda part: len(part.entries.existing), default=None)
    if largest is None or (
        head.format_version > 1 and any(entry.get("sequence_number") is None for entry in largest.entries.existing)
    ):
        return None
    spec_id = largest.manifest.partition_spec_id
    return Merge(
        merged=largest.entries.write(io, new_location(), largest.entries.existing, largest.manifest, snapshot_id),
        replaced=frozenset(each.manifest_path for each in missing if each.partition_spec_id == spec_id),
        format_version=head.format_version,
    )
