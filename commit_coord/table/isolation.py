"""Checks whether the rows that a commit depends on have changed since they were read.

Rows that a caller computed from a table are right as long as the rows they were computed from are still there, and no
other rows match. That is Iceberg's check before an overwrite lands, under the levels of
``write.delete|update|merge.isolation-level``:

* ``serializable``: a data file that may hold matching rows was added, removed, or got deletes: the read is stale.
* ``snapshot``: the same, but files that were added are no conflict, and they stay.

A compaction (a snapshot that says REPLACE) changes files and no rows, so it is never a conflict.

Source: Iceberg specification, "Snapshots"; Java's ``validateFromSnapshot`` and ``conflictDetectionFilter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, expression_evaluator, inclusive_projection
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table.snapshots import IsolationLevel, Operation, Snapshot

from commit_coord.iceberg import manifest_list

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

NOTHING = AlwaysFalse()
"""As ``reads``: the rows do not depend on what the table holds."""

NO_SNAPSHOT = -1
"""As ``read_at``: the branch had no snapshot yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Rows that a commit depends on: those of *branch* that match *row_filter*, as of *snapshot_id*.

    Args:
        row_filter: Which rows.
        branch: Where they were read; None is the main branch.
        snapshot_id: When they were read; None when the branch had no snapshot yet.
        level: What counts as a change.
        case_sensitive: How *row_filter* names columns.
    """

    row_filter: BooleanExpression
    branch: str | None
    snapshot_id: int | None
    level: IsolationLevel = IsolationLevel.SERIALIZABLE
    case_sensitive: bool = True

    def strictly(self) -> Read:
        """Return the read under ``serializable``."""
        return replace(self, level=IsolationLevel.SERIALIZABLE)


def change_since(read: Read, head: TableMetadata, io: FileIO) -> str | None:
    """Return what has changed in *head* that *read* depends on, None when nothing has.

    Raises:
        ValueError: The filter does not fit the columns of *head*.
    """
    tip = head.snapshot_by_name(read.branch)
    if (tip.snapshot_id if tip is not None else None) == read.snapshot_id:
        return None
    if read.snapshot_id is None and tip is not None:
        return _added_to_nothing(read, head, tip, io)
    may_match = None
    for snapshot in _back(head, tip, read.snapshot_id):
        if snapshot is None:
            return f"snapshot {read.snapshot_id}, which was read, is not in the history of the branch any more"
        if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE:
            continue
        may_match = may_match or _matcher(read, head)
        for entry in _changes(snapshot, io):
            added = entry.status == ManifestEntryStatus.ADDED and entry.data_file.content == DataFileContent.DATA
            if added and read.level is IsolationLevel.SNAPSHOT:
                continue
            if may_match(entry.data_file):
                what = "added" if added else "removed"
                return f"rows that match {read.row_filter} may have been {what} by snapshot {snapshot.snapshot_id}"
    return None


def has_deletes_after(snapshot: Snapshot | None, sequence_number: int, io: FileIO) -> bool:
    """Return whether *snapshot* has files of deletes that came after *sequence_number*.

    Their bounds are not looked at. They tell which rows were deleted, not which file has these rows:

    1. A file has the rows 1 and 2. A change deletes row 1, and writes row 2 into a new file.   2. Another engine
    deletes row 2 by a file of deletes whose bounds are those of row 2.   3. The change lands behind it: row 2 is back.
    """
    return snapshot is not None and any(
        manifest.content == ManifestContent.DELETES and manifest.sequence_number > sequence_number
        for manifest in manifest_list.read(io, snapshot.manifest_list)
    )


def _added_to_nothing(read: Read, head: TableMetadata, tip: Snapshot, io: FileIO) -> str | None:
    """Return what has been added to a branch that was empty when it was read.

    Its history does not tell: when a first snapshot expires, PyIceberg makes the second one look like the first.
    """
    if read.level is IsolationLevel.SNAPSHOT:
        return None
    may_match = _matcher(read, head)
    for manifest in manifest_list.read(io, tip.manifest_list):
        for entry in manifest.fetch_manifest_entry(io):
            if may_match(entry.data_file):
                return f"rows that match {read.row_filter} may have been added since the branch was empty"
    return None


def _back(head: TableMetadata, tip: Snapshot | None, until: int | None) -> Iterator[Snapshot | None]:
    """Yield the snapshots from *tip* back to *until*, without it; None at the end where it is not among them."""
    snapshot_id = tip.snapshot_id if tip is not None else None
    while snapshot_id != until:
        snapshot = head.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        yield snapshot
        if snapshot is None:
            return
        snapshot_id = snapshot.parent_snapshot_id


def _changes(snapshot: Snapshot, io: FileIO) -> Iterator[ManifestEntry]:
    """Yield the files that *snapshot* itself has added and removed."""
    for manifest in manifest_list.read(io, snapshot.manifest_list):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.snapshot_id == snapshot.snapshot_id and entry.status != ManifestEntryStatus.EXISTING:
                    yield entry


def _matcher(read: Read, head: TableMetadata) -> Callable[[DataFile], bool]:
    """Return what says whether a file may hold rows that match, by its metrics and its partition."""
    schema = head.schema()
    by_metrics = _InclusiveMetricsEvaluator(schema, read.row_filter, read.case_sensitive).eval
    by_partition: dict[int, Callable[[DataFile], bool]] = {}

    def partition_matcher(spec_id: int) -> Callable[[DataFile], bool]:
        spec = head.specs()[spec_id]
        projected = inclusive_projection(schema, spec, read.case_sensitive)(read.row_filter)
        evaluate = expression_evaluator(Schema(*spec.partition_type(schema).fields), projected, read.case_sensitive)
        return lambda file: evaluate(file.partition)

    def may_match(file: DataFile) -> bool:
        if file.content != DataFileContent.DATA:
            return True  # the metrics of deletes are not those of the rows that they delete
        if not by_metrics(file):
            return False
        if file.spec_id not in by_partition:
            by_partition[file.spec_id] = partition_matcher(file.spec_id)
        return by_partition[file.spec_id](file)

    return may_match


def renamed_over(seen: Schema, head: Schema, *, folds_case: bool) -> str | None:
    """Return a column name of *seen* that another column has in *head*, None when there is none.

    With *folds_case* a name means the column that has it, else the one that has it in another case: ``a`` and ``A``
    may have swapped their names, and a column in another case may be there by now.
    """
    if seen is head or (seen.schema_id == head.schema_id and seen == head):
        return None
    for spelled in (str, str.lower) if folds_case else (str,):
        then, now = _columns_by_name(seen, spelled), _columns_by_name(head, spelled)
        if changed := [name for name in then.keys() & now.keys() if then[name] != now[name]]:
            return min(changed)
    return None


def _columns_by_name(schema: Schema, spelled: Callable[[str], str]) -> dict[str, set[int]]:
    columns: dict[str, set[int]] = {}
    for field_id, name in index_name_by_id(schema).items():
        columns.setdefault(spelled(name), set()).add(field_id)
    return columns


def seen_from(metadata: TableMetadata, head: Snapshot | None) -> TableMetadata:
    """Return *metadata* with *head*, that of a branch, as its current snapshot.

    A scan of it has the columns that the table has now. PyIceberg's scan of a branch, or of a snapshot, has those
    that the table had when the snapshot was written.
    """
    return metadata.model_copy(update={"current_snapshot_id": head.snapshot_id if head is not None else None})
