"""The partition specs of files: a table must have each of them, and under its id no other one.

The requirements of commits do not hold this. Iceberg Java removes specs that no retained snapshot uses, and requires
nothing of main:

1. A client finds that no snapshot uses spec 0.   2. A writer that was planned under spec 0 commits to main.
3. The client removes spec 0: its requirements hold. Or the writer comes last: main is what it was.
The table has files of a spec that is not there, or of another one that got the id, and readers skip their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count

import orjson
from pydantic import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddPartitionSpecUpdate, TableUpdate

from commit_coord.iceberg import avro, manifest_list

NO_FIELD_ID = -1
"""The id of a partition field for which the table is to choose one."""


def with_field_ids(spec: PartitionSpec, known: Iterable[PartitionSpec], last: int | None) -> PartitionSpec:
    """Return *spec* with an id for each field: that of an equal field of the *known* specs, or a new one.

    Args:
        spec: Fields without an id have :data:`NO_FIELD_ID`.
        known: All specs that the table has.
        last: The last id that the table has given, which no known spec may have any more.
    """
    given = {
        _content(field): field.field_id
        for each in (*known, spec)
        for field in each.fields
        if field.field_id != NO_FIELD_ID
    }
    free = count(1 + max(PARTITION_FIELD_ID_START - 1, last or 0, *given.values()))
    fields = [
        field.model_copy(update={"field_id": given.get(_content(field)) or next(free)})
        if field.field_id == NO_FIELD_ID
        else field
        for field in spec.fields
    ]
    return PartitionSpec(*fields, spec_id=spec.spec_id)


def _content(field: PartitionField) -> tuple[int, str, str]:
    return field.source_id, str(field.transform), field.name


def dropped_in_use(head: TableMetadata, changed: TableMetadata, io: FileIO) -> str | None:
    """Return why *changed* must not be published: it lacks a spec of *head* of which a snapshot has files.

    Reads the list of each snapshot, but only if specs are missing.

    Raises:
        OSError: A list could not be read.
    """
    left = changed.specs()
    dropped = {spec_id for spec_id, spec in head.specs().items() if left.get(spec_id) != spec}
    for snapshot in changed.snapshots if dropped else ():
        used = {manifest.partition_spec_id for manifest in manifest_list.read(io, snapshot.manifest_list)}
        if used & dropped:
            return f"snapshot {snapshot.snapshot_id} has files of the partition specs {sorted(used & dropped)}"
    return None


class FilesOfSnapshots:
    """The specs of the manifests that snapshots of one commit list. Each file is read once, whatever becomes the head.

    Args:
        snapshots: That the commit adds.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots
        self._listed: dict[int, PartitionSpec | None] | None = None

    def misfit(self, head: TableMetadata, updates: Sequence[TableUpdate], io: Callable[[], FileIO]) -> str | None:
        """Return why the files do not fit *head* after *updates*; None if they do.

        Nothing is read if the table never had a partition field: then there is, and was, one spec.

        Raises:
            OSError: A list or a manifest could not be read.
        """
        specs = head.specs() | {u.spec.spec_id: u.spec for u in updates if isinstance(u, AddPartitionSpecUpdate)}
        if not self._snapshots or _was_never_partitioned(head, specs):
            return None
        if self._listed is None:
            self._listed = self._read(io())
        for spec_id, written in self._listed.items():
            if spec_id not in specs or written not in (None, specs[spec_id]):
                return f"partition spec {spec_id} of the written files is gone"
        return None

    def _read(self, io: FileIO) -> dict[int, PartitionSpec | None]:
        """Return the specs by id, as the snapshots' own manifests say them.

        None for a spec whose manifest does not say it, or belongs to another snapshot.
        """
        found: dict[int, PartitionSpec | None] = {}
        for snapshot in self._snapshots:
            for manifest in manifest_list.read(io, snapshot.manifest_list):
                spec_id = manifest.partition_spec_id
                if manifest.added_snapshot_id != snapshot.snapshot_id or found.get(spec_id) is not None:
                    found.setdefault(spec_id, None)
                    continue
                meta, _ = avro.header(manifest_list.whole(io, manifest))
                found[spec_id] = _parsed(meta, spec_id)
        return found


def _parsed(meta: Mapping[str, bytes], spec_id: int) -> PartitionSpec | None:
    try:
        fields = [PartitionField.model_validate(field) for field in orjson.loads(meta["partition-spec"])]
    except (KeyError, TypeError, orjson.JSONDecodeError, ValidationError):
        return None
    return PartitionSpec(*fields, spec_id=spec_id)


def _was_never_partitioned(head: TableMetadata, specs: Mapping[int, PartitionSpec]) -> bool:
    """Return whether no spec of the table has, or had, a field: partition fields get ids that are never given again."""
    no_field_yet = (head.last_partition_id or 0) < PARTITION_FIELD_ID_START
    return no_field_yet and not any(spec.fields for spec in specs.values())
