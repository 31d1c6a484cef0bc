"""What changes of columns, partitions, references and snapshots mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from commit_coord.testing.table_files.state import Partition, State, Unbound, misled, path_of
from commit_coord.testing.table_files.values import MAIN
from tests.proof.rows.model.conditions import Always
from tests.proof.rows.model.operations import (
    AddColumn,
    AddPartition,
    DropColumn,
    DropPartition,
    DropRef,
    Expected,
    Expire,
    ExpireOne,
    MakeRef,
    MoveFirst,
    Orphans,
    Promote,
    Recreate,
    RenameColumn,
    Require,
    Rollback,
    SetProperty,
    SortBy,
    Structural,
    SwapColumns,
    Upgrade,
)
from tests.proof.rows.model.row_changes import rows_conflict


def structure_changed(operation: Structural, base: State, head: State, late: str) -> Expected:
    """Return what a change may bring: it must mean the same for its client as for the head."""
    try:
        if isinstance(operation, Rollback) and rows_conflict(Always(), base, head, MAIN):
            return Expected((), "what it takes back has changed")
        if _takes_files(operation) and head.properties.get("gc.enabled") == "false":
            return Expected((), "other tables may need its files")
        if isinstance(operation, Require) and base.named(operation.column).required == operation.required:
            return Expected((head,), late)  # it asks for what is
        if isinstance(operation, DropPartition) and head.version == 1 and operation.name in head.void:
            return Expected((head,), late)  # in this version the field stays, and makes nothing of its column
        if isinstance(operation, SortBy) and base.order == _applied(operation, base, base).order:
            return Expected((head,), late)
        if any(_known(base, name) != _known(head, name) for name in names_in(operation)):
            return Expected((), "it names something else by now")
        states: tuple[State, ...] = (_applied(operation, base, head),)
        if misled(states[0].fields, head.mapping, head.fields) and not isinstance(operation, Recreate):
            return Expected((), "files without field ids have another column under that name")
        if isinstance(operation, MoveFirst | SortBy | AddPartition) and late and _known(base, operation.column):
            # Its client may have meant a column that has another name by now.
            meant = next(f for f in head.fields.fields if f.field_id == _known(base, operation.column))
            states += (_applied(replace(operation, column=meant.name), base, head),)
    except (Unbound, LookupError, StopIteration) as error:
        return Expected((), f"there is no {error}")
    return Expected(states, late)


def _takes_files(operation: Structural) -> bool:
    return isinstance(operation, Expire | ExpireOne | Orphans) or (isinstance(operation, Recreate) and operation.purge)


def names_in(operation: Structural) -> Iterator[str]:
    """Yield the columns that *operation* changes; what it only moves, sorts or partitions by is not among them."""
    match operation:
        case AddColumn(column=column):
            yield column.rpartition(".")[0] or column
        case DropColumn() | RenameColumn() | Promote() | Require():
            yield operation.column
        case SwapColumns(one=one, other=other):
            yield from (one, other)


def _known(state: State, column: str) -> int | None:
    try:
        return path_of(column, state.fields)[-1].field_id
    except Unbound:
        return None


def _applied(operation: Structural, base: State, head: State) -> State:
    match operation:
        case AddColumn(column=column, kind=kind):
            inside, _, name = column.rpartition(".")
            new = NestedField(-1, name, unnumbered(kind), required=False)
            return replace(head, fields=_grown(head.fields, inside.split(".") if inside else [], new))
        case DropColumn(column=column):
            return replace(head, fields=edited(head.fields, _id(head, column), None))
        case RenameColumn(column=column, to=to):
            field = head.named(column)
            return replace(head, fields=edited(head.fields, field.field_id, field.model_copy(update={"name": to})))
        case SwapColumns(one=one, other=other):
            first, second = head.named(one), head.named(other)
            half = edited(head.fields, first.field_id, first.model_copy(update={"name": other}))
            return replace(head, fields=edited(half, second.field_id, second.model_copy(update={"name": one})))
        case Promote(column=column, kind=kind):
            field = head.named(column)
            made = field.model_copy(update={"field_type": kind})
            return replace(head, fields=edited(head.fields, field.field_id, made))
        case Require(column=column, required=required):
            field = head.named(column)
            made = field.model_copy(update={"required": required})
            return replace(head, fields=edited(head.fields, field.field_id, made))
        case MoveFirst(column=column):
            field = head.named(column)
            return replace(head, fields=StructType(field, *(f for f in head.fields.fields if f is not field)))
        case AddPartition(column=column, transform=transform, name=name):
            return replace(head, spec=(*head.spec, Partition(_id(head, column), transform, name)))
        case DropPartition(name=name):
            if name not in {p.name for p in head.spec}:
                raise LookupError(name)
            return replace(head, spec=tuple(p for p in head.spec if p.name != name))
        case SortBy(column=column):
            return replace(head, order=((_id(head, column), "identity", "asc", "nulls-last"),))
        case Upgrade():
            return replace(head, version=2)
        case SetProperty(key=key, value=value):
            return replace(head, properties={**head.properties, key: value})
        case MakeRef(name=name, kind=kind):
            tags = head.tags | {name} if kind == "tag" else head.tags
            return replace(head, rows={**head.rows, name: base.rows[MAIN]}, tags=tags)
        case DropRef(name=name):
            rows = {key: rows for key, rows in head.rows.items() if key != name}
            return replace(head, rows=rows, tags=head.tags - {name})
        case Expire() | ExpireOne() | Orphans():
            return head
        case Rollback(back=back):
            return head.with_rows(base.history[back][1])
        case Recreate():
            # Field ids are given out anew; the fields are compared by name.
            return replace(head, uuid="", rows={}, tags=frozenset(), order=())


def _id(state: State, column: str) -> int:
    return state.named(column).field_id


def edited(struct: StructType, field_id: int, field: NestedField | None) -> StructType:
    """Return *struct* with *field* in the place of the one with *field_id*, wherever that lies; None: without it."""
    fields: list[NestedField] = []
    for one in struct.fields:
        if one.field_id == field_id:
            fields += [field] if field is not None else []
        elif isinstance(one.field_type, StructType):
            fields.append(one.model_copy(update={"field_type": edited(one.field_type, field_id, field)}))
        else:
            fields.append(one)
    return StructType(*fields)


def _grown(struct: StructType, path: list[str], field: NestedField) -> StructType:
    if not path:
        return StructType(*struct.fields, field)
    made = []
    for one in struct.fields:
        if one.name == path[0]:
            if not isinstance(one.field_type, StructType):
                raise Unbound(path[0])
            made.append(one.model_copy(update={"field_type": _grown(one.field_type, path[1:], field)}))
        else:
            made.append(one)
    return StructType(*made)


def unnumbered(kind: IcebergType) -> IcebergType:
    """Return *kind* with -1 for every field id: they will be given out."""
    match kind:
        case StructType(fields=fields):
            return StructType(
                *(f.model_copy(update={"field_id": -1, "field_type": unnumbered(f.field_type)}) for f in fields)
            )
        case ListType():
            return ListType(-1, unnumbered(kind.element_type), element_required=kind.element_required)
        case MapType():
            return MapType(
                -1, unnumbered(kind.key_type), -1, unnumbered(kind.value_type), value_required=kind.value_required
            )
    return kind
