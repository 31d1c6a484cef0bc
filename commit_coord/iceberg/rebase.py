"""Whether an attempt may follow a head that moved, and what it becomes there. Pure: decides, writes nothing.

The rules, in the order in which they are asked:

1. Another table of the same name (its UUID differs) is another table: refused.
2. The head is what the attempt was made on: it follows.
3. What it writes depends on data that it read: planned again by its owner.
4. A requirement fails: planned again where snapshots, schemas or specs are added (their ids and parents must be
   chosen anew), refused otherwise.
5. The head has moved, and a new column, schema or partition spec has an id that was given to another one: planned
   again.
6. A property that it changes was changed to something else meanwhile: refused.
7. It is of a stream that has already committed the same checkpoint: refused.
8. Everything else follows: pure appends, changes that touch other things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id, index_name_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertLastAssignedFieldId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Append, Attempt, Merge
from commit_coord.iceberg.storage import metadata_places
from commit_coord.iceberg.streams import checkpoint_in_table, offsets_moved
from commit_coord.iceberg.table_properties import GC_ENABLED, flag
from commit_coord.iceberg.written import digest, rows_misfit
from commit_coord.protocol.commit import NeedsReplan

REQUEST_ID = "commit-coord.request-id"
"""Summary property of every snapshot that a coordinated commit adds; those of several appends, separated by commas."""

GENERATION = "commit-coord.generation"
"""Summary property: the generation of the latch that covered the commit."""


def shares_files(metadata: TableMetadata) -> bool:
    """Return whether other tables may need files of the table: ``gc.enabled`` is false, or can't be read."""
    return not flag(metadata.properties, GC_ENABLED, True, unreadable=False)


def says_shared(metadata: TableMetadata) -> str:
    """Return what a table that shares files says, for errors."""
    return f"{GC_ENABLED}={metadata.properties[GC_ENABLED].lower()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestListPlan:
    """A manifest list that has to be written before the swap (arguments of ``manifest_list.write_appended``)."""

    location: str
    head: str | None
    added: tuple[ManifestFile, ...]
    merge: Merge | None
    clean: bool
    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """The attempt may follow the head: *metadata* is the table with it."""

    metadata: TableMetadata
    manifest_list: ManifestListPlan | None
    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """The attempt can't be carried out; nothing of it may be published.

    Args:
        reason: Why.
        misfit: Set if the updates do not fit even the head for which they were made: a retry is refused, too.
    """

    reason: str
    misfit: Exception | None = None


def rebase(
    attempt: Attempt,
    head: TableMetadata,
    head_location: str | None,
    *,
    generation: int | None,
    now_ms: int,
    file_id: str,
) -> Rebased | NeedsReplan | Conflict:
    """Return what becomes of *attempt* on *head*.

    Args:
        attempt: What is asked for; not one that creates a table.
        head: The table now.
        head_location: Where the pointer points; None when *head* ends in another attempt of the same swap.
        generation: Of the latch; written into the summaries.
        now_ms: Wall clock.
        file_id: A new UUID, for the names of files: no two tries may write files of one name.
    """
    if attempt.table_uuid != str(head.table_uuid):
        return Conflict(reason="the table was dropped and created again since it was read")
    moved = attempt.base_location != head_location or attempt.base_sequence_number < fast_metadata.sequence_number(head)
    if moved and attempt.reads_data:
        return NeedsReplan(reason="another commit changed the table after its data was read")
    adds = [u for u in attempt.updates if isinstance(u, AddSnapshotUpdate)]
    if moved and adds:
        return NeedsReplan(reason="another commit changed the table after the snapshot was written")
    for requirement in attempt.requirements:
        try:
            requirement.validate(head)
        except CommitFailedException as error:
            replannable = isinstance_any(attempt.updates, AddSchemaUpdate, AddPartitionSpecUpdate, AddSnapshotUpdate)
            return NeedsReplan(reason=str(error)) if moved and replannable else Conflict(reason=str(error))
    if moved and (reason := taken_column_ids(attempt, head) or _taken_id(attempt, head)):
        return NeedsReplan(reason=reason)
    if moved:
        if isinstance_any(attempt.updates, AddSortOrderUpdate) and not attempt.requirements:
            return Conflict(reason="another commit changed the table after its sort order was read")
        if reason := _property_conflict(attempt, head):
            return Conflict(reason=reason)
    if reason := _late_checkpoint(attempt, head):
        return Conflict(reason=reason)
    now_ms = fast_metadata.not_before(head, now_ms)
    updates = [_fitted(update, attempt, head, generation, now_ms) for update in attempt.updates]
    try:
        changed: TableMetadata = fast_metadata.apply_updates(head, updates)
    except KeyError as error:
        return Conflict(reason=f"the property {error} is not set")
    except (ValueError, ValidationError) as error:
        fits_another_head = moved or any(_given_by_now(update.snapshot, head) for update in adds)
        return Conflict(reason=str(error), misfit=None if fits_another_head else error)
    expires = any(isinstance(update, RemoveSnapshotsUpdate) and update.snapshot_ids for update in updates)
    if expires and shares_files(changed):
        # Iceberg Java refuses it too: files that only the removed snapshots name would be taken for orphans.
        reason = (
            f"{says_shared(changed)} says that other tables may need the files of its snapshots, so none expires; "
            f"set {GC_ENABLED}=true to let them expire"
        )
        return Conflict(reason=reason, misfit=ValueError(reason))
    plan = None
    snapshot_ids = tuple(update.snapshot.snapshot_id for update in adds)
    if attempt.append is not None:
        if reason := append_conflict(attempt.append, changed):
            return Conflict(reason=reason)
        plan, snapshot = _appended(attempt, attempt.append, changed, generation, now_ms, file_id)
        updates = [AddSnapshotUpdate(snapshot=snapshot)]
        if attempt.append.branch is not None:
            ref = changed.refs.get(attempt.append.branch)
            updates.append(_ref_update(attempt.append.branch, snapshot.snapshot_id, ref))
        changed = fast_metadata.apply_updates(changed, updates)
        snapshot_ids += (snapshot.snapshot_id,)
    if changed == head:
        return Rebased(metadata=head, manifest_list=None, snapshot_ids=())
    if head_location is not None:
        try:
            changed = fast_metadata.logged(changed, head, head_location)
        except ValueError as error:
            return Conflict(reason=str(error), misfit=error)
    changed = fast_metadata.stamped(changed, head, now_ms)
    return Rebased(metadata=changed, manifest_list=plan, snapshot_ids=snapshot_ids)


def _given_by_now(snapshot: Snapshot, head: TableMetadata) -> bool:
    """Return whether *head* has given the row ids or the sequence number of *snapshot* to others."""
    next_row_id = getattr(head, "next_row_id", None) or 0
    rows_given = snapshot.first_row_id is not None and snapshot.first_row_id < next_row_id
    return rows_given or (snapshot.sequence_number or 0) <= fast_metadata.sequence_number(head)


def isinstance_any(updates: Sequence[TableUpdate], *kinds: type) -> bool:
    """Return whether any update is of one of *kinds*."""
    return any(isinstance(update, kinds) for update in updates)


def _late_checkpoint(attempt: Attempt, head: TableMetadata) -> str | None:
    """Return why a snapshot of *attempt* comes too late: its stream has already committed the same checkpoint."""
    for snapshot, branch in snapshots_and_branches(attempt.updates):
        if snapshot.summary is not None and (
            reason := checkpoint_in_table(snapshot.summary.additional_properties, branch, head)
        ):
            return reason
    return None


def snapshots_and_branches(updates: Sequence[TableUpdate]) -> list[tuple[Snapshot, str | None]]:
    """Return the snapshots that *updates* add, each with the branch that it goes to, None where it is staged.

    Of several that go to one branch the last is named as its head, and the others are its ancestors.
    """
    heads = {
        update.snapshot_id: update.ref_name
        for update in updates
        if isinstance(update, SetSnapshotRefUpdate) and update.type == SnapshotRefType.BRANCH
    }
    found: list[tuple[Snapshot, str | None]] = []
    for update in reversed(updates):
        if isinstance(update, AddSnapshotUpdate):
            snapshot = update.snapshot
            branch = heads.get(snapshot.snapshot_id)
            if branch is not None and snapshot.parent_snapshot_id is not None:
                heads.setdefault(snapshot.parent_snapshot_id, branch)
            found.append((snapshot, branch))
    return found[::-1]


def _taken_id(attempt: Attempt, head: TableMetadata) -> str | None:
    """Return which id of a schema or spec that *attempt* adds *head* gave to something else; None if none.

    PyIceberg takes two schemas or specs of one id, and then the first one for what was added.
    """
    schemas = {schema.schema_id: schema for schema in head.schemas}
    specs = {spec.spec_id for spec in head.partition_specs}
    for update in attempt.updates:
        match update:
            case AddSchemaUpdate(schema_=schema) if schemas.get(schema.schema_id, schema) != schema:
                return f"the id {schema.schema_id} was given to another schema since the schema was read"
            case AddPartitionSpecUpdate(spec=spec) if spec.spec_id in specs:
                return f"the id {spec.spec_id} was given to a partition spec since the specs were read"
    return None


def taken_column_ids(attempt: Attempt, head: TableMetadata) -> str | None:
    """Return why *attempt* adds no columns: *head* gave their ids to other ones, which may be dropped by now.

    1. We read schema 0 and give our new column the id 2.   2. Others add a column with the id 2, write it, and drop it.
    3. The schema is 0 again, as our requirement says. Under the id 2 our column would show what the other one held.

    The other column may also have the same name and type, so that *head* has the schema that we add. Who knew that sets
    it current, and adds none. Only who requires the last column id has seen all that were given, and brings such
    columns back on purpose.
    """
    there = head.schema().field_ids
    on_purpose = any(isinstance(each, AssertLastAssignedFieldId) for each in attempt.requirements)
    taken = {
        field_id
        for update in attempt.updates
        if isinstance(update, AddSchemaUpdate) and not (on_purpose and update.schema_ in head.schemas)
        for field_id in update.schema_.field_ids - there
        if field_id <= head.last_column_id
    }
    return f"the column ids {sorted(taken)} were given to other columns since the schema was read" if taken else None


def _property_conflict(attempt: Attempt, head: TableMetadata) -> str | None:
    wanted: dict[str, str | None] = {}
    for update in attempt.updates:
        wanted.update(getattr(update, "updates", None) or {})
        wanted.update(dict.fromkeys(getattr(update, "removals", None) or ()))
    for key, read in attempt.properties_read.items():
        now = head.properties.get(key)
        if now not in (read, wanted.get(key)):
            return f"the property {key!r} was changed to {now!r} by another commit"
    return None


def _fitted(
    update: TableUpdate, attempt: Attempt, head: TableMetadata, generation: int | None, now_ms: int
) -> TableUpdate:
    """Return *update* as it must be on *head*: marked, timed, retention kept, protected snapshots spared."""
    if isinstance(update, AddSnapshotUpdate):
        marked = _marked(update.snapshot, attempt, generation)
        return AddSnapshotUpdate(snapshot=marked.model_copy(update={"timestamp_ms": now_ms}))
    adds_snapshot = isinstance_any(attempt.updates, AddSnapshotUpdate)
    if (
        isinstance(update, SetSnapshotRefUpdate)
        and update.type == SnapshotRefType.BRANCH
        and adds_snapshot
        and (update.max_ref_age_ms, update.max_snapshot_age_ms, update.min_snapshots_to_keep) == (None, None, None)
    ):
        return _ref_update(update.ref_name, update.snapshot_id, head.refs.get(update.ref_name))
    if isinstance(update, RemoveSnapshotsUpdate):
        # Without this a branch or tag that was set meanwhile would be removed along with its snapshot.
        protected = set(_refs_after(attempt.updates, head).values())
        kept = [i for i in update.snapshot_ids if i not in protected]
        return RemoveSnapshotsUpdate(snapshot_ids=kept)
    return update


def _refs_after(updates: Sequence[TableUpdate], head: TableMetadata) -> dict[str, int]:
    """Return the snapshots that the branches and tags of *head* name after *updates*."""
    refs = {name: ref.snapshot_id for name, ref in head.refs.items()}
    for update in updates:
        if isinstance(update, SetSnapshotRefUpdate):
            refs[update.ref_name] = update.snapshot_id
        elif isinstance(update, RemoveSnapshotRefUpdate):
            refs.pop(update.ref_name, None)
    return refs


def created(attempt: Attempt, *, generation: int | None) -> TableMetadata:
    """Return the first metadata of the table that *attempt* creates; its snapshots carry the request id."""
    return fast_metadata.create(
        [
            AddSnapshotUpdate(snapshot=_marked(update.snapshot, attempt, generation))
            if isinstance(update, AddSnapshotUpdate)
            else update
            for update in attempt.updates
        ]
    )


def _marked(snapshot: Snapshot, attempt: Attempt, generation: int | None) -> Snapshot:
    summary = snapshot.summary
    if summary is not None:
        summary = Summary(summary.operation, **{**summary.additional_properties, **_marks(attempt, generation)})
    return snapshot.model_copy(update={"summary": summary})


def _marks(attempt: Attempt, generation: int | None) -> dict[str, str]:
    marks = {REQUEST_ID: ",".join((attempt.request_id, *attempt.joined))}
    if generation is not None:
        marks[GENERATION] = str(generation)
    return marks


def _ref_update(branch: str, snapshot_id: int, ref: SnapshotRef | None) -> SetSnapshotRefUpdate:
    """Return the update that moves *branch*, with the retention that *ref* has (PyIceberg's producers drop it)."""
    return SetSnapshotRefUpdate(
        ref_name=branch,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=ref.max_ref_age_ms if ref else None,
        max_snapshot_age_ms=ref.max_snapshot_age_ms if ref else None,
        min_snapshots_to_keep=ref.min_snapshots_to_keep if ref else None,
    )


def append_conflict(append: Append, head: TableMetadata) -> str | None:
    """Return why *append* can't follow *head*, None when it can."""
    if head.format_version >= 3:
        return "appends to version 3 tables need row ids, which are not supported yet"
    if "encryption-keys" in fast_metadata.extras(head):
        return "the table is encrypted, which is not supported"
    if head.snapshot_by_id(append.snapshot_id) is not None:
        return "it has landed already"  # with a twin that was sent at the same time; its owner finds it there
    if append.branch in head.refs and head.refs[append.branch].snapshot_ref_type != SnapshotRefType.BRANCH:
        return f"{append.branch!r} is a tag"
    if append.branch not in head.refs and not append.makes_branch:
        return f"the branch {append.branch!r} was removed by another commit"
    if reason := checkpoint_in_table(append.summary, append.branch, head) or offsets_moved(
        append.summary, append.branch, head, append.follows
    ):
        return reason
    if not append.manifests:
        return None  # no row can fail to fit
    specs = head.specs()
    for manifest in append.manifests:
        spec = specs.get(manifest.partition_spec_id)
        spec_digest = append.specs.get(manifest.partition_spec_id)
        if spec is None or (spec_digest is not None and spec_digest != digest(spec)):
            return f"partition spec {manifest.partition_spec_id} of the written files is gone"
    written = head.schema_by_id(append.schema_id)
    if written is None or (append.schema and append.schema != digest(written)):
        return f"schema {append.schema_id} of the written files is gone"
    return rows_misfit(head.schema(), written)


def _appended(
    attempt: Attempt, append: Append, head: TableMetadata, generation: int | None, now_ms: int, file_id: str
) -> tuple[ManifestListPlan, Snapshot]:
    """Return the manifest list and the snapshot of *append* behind *head*: own + (head − (base − mine)).

    Source: Iceberg specification, "Snapshots", "Manifest Lists"; Java ``FastAppend.apply``.
    """
    parent = head.snapshot_by_name(append.branch)
    plan = ManifestListPlan(
        location=metadata_places(head).new_metadata_location(f"snap-{append.snapshot_id}-0-{file_id}.avro"),
        head=parent.manifest_list if parent is not None else None,
        added=append.manifests,
        merge=append.merge,
        clean=parent is not None and (parent.summary is None or parent.summary.operation is not Operation.APPEND),
        snapshot_id=append.snapshot_id,
        parent_snapshot_id=parent.snapshot_id if parent is not None else None,
        sequence_number=head.next_sequence_number(),
    )
    snapshot = Snapshot(
        snapshot_id=append.snapshot_id,
        parent_snapshot_id=plan.parent_snapshot_id,
        sequence_number=plan.sequence_number,
        timestamp_ms=now_ms,
        manifest_list=plan.location,
        summary=update_snapshot_summaries(
            Summary(Operation.APPEND, **{**append.summary, **_marks(attempt, generation)}),
            parent.summary if parent is not None else None,
        ),
        schema_id=head.current_schema_id,
    )
    return plan, snapshot


def schema_conflict(mine: tuple[Schema, Schema], theirs: tuple[Schema, Schema]) -> str | None:
    """Return a column that both changed, *mine* and *theirs* (each from, to); None when they touch different ones."""
    both = _touched_columns(*mine) & _touched_columns(*theirs)
    return min(both) if both else None


def _touched_columns(base: Schema, changed: Schema) -> set[str]:
    """Return the names, as of *base* where they have one, of columns that differ."""
    names, new_names = index_name_by_id(base), index_name_by_id(changed)
    fields, new_fields = index_by_id(base), index_by_id(changed)
    touched = {new_names[i] for i in new_fields.keys() - fields.keys()}
    touched |= {names[i] for i in fields.keys() - new_fields.keys()}
    for field_id in fields.keys() & new_fields.keys():
        old, new = fields[field_id], new_fields[field_id]
        same_type = old.field_type == new.field_type or not old.field_type.is_primitive
        if (old.name, old.required, old.doc) != (new.name, new.required, new.doc) or not same_type:
            touched |= {names[field_id], new_names[field_id]}
    if base.identifier_field_ids != changed.identifier_field_ids:
        touched.add("(identifier fields)")
    return touched


def spec_conflict(mine: tuple[PartitionSpec, PartitionSpec], theirs: tuple[PartitionSpec, PartitionSpec]) -> str | None:
    """Return a partition field that both changed, *mine* and *theirs* (each from, to); None when they differ."""

    def touched(base: PartitionSpec, changed: PartitionSpec) -> set[str]:
        old = {field.name: (field.source_id, str(field.transform)) for field in base.fields}
        new = {field.name: (field.source_id, str(field.transform)) for field in changed.fields}
        return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}

    both = touched(*mine) & touched(*theirs)
    return min(both) if both else None
