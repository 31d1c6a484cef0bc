"""What each operation means: which states a serial order allows after it.

``meaning(operation, base, head)`` answers for an operation by a client that had seen *base* and lands on *head*:

* Names of columns in rows and conditions mean columns of what the client saw, or of the head. Either is a serial
  order; a mixture is none.
* What depends on nothing but its arguments (an append; a deletion by a condition) applies to the head.
* An overwrite brings rows that its caller computed. It lands only if no row that it replaces has changed since the
  caller looked: serializable, Iceberg's default.
* A change of a column must not land if its name is the name of another column by now.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.types import DecimalType, IcebergType, IntegerType, StructType

from commit_coord.testing.table_files.state import State, misled, rows_of
from commit_coord.testing.table_files.transforms import runs_over
from commit_coord.testing.table_files.values import MAIN
from tests.proof.rows.model.operations import (
    DROPPED,
    AddColumn,
    AddFiles,
    Append,
    AppendToNeighbour,
    Call,
    CommitFiles,
    Compact,
    Concatenate,
    Delete,
    DeletePositions,
    DeleteValues,
    DropColumn,
    DynamicOverwrite,
    Elsewhere,
    Expected,
    Insert,
    InsertSelect,
    MakeRef,
    Orphans,
    Overwrite,
    Recreate,
    Refresh,
    RenameColumn,
    SetProperty,
    Single,
    Slots,
    SqlDelete,
    SqlUpdate,
    TableStatement,
    Transact,
    Truncate,
    UpdateRows,
    Upsert,
    WriteFiles,
)
from tests.proof.rows.model.row_changes import (
    appended,
    by_snapshot,
    distinct,
    files_committed,
    has_columns,
    has_null,
    has_twice,
    inserted,
    on_snapshot,
    overwritten,
    partitions_changed,
    partitions_of,
    partitions_replaced,
    rows_conflict,
    same_kinds,
    selected,
    updated,
    upserted,
    without_rows,
    without_values,
)
from tests.proof.rows.model.structure import structure_changed

_NEWEST_VERSION = 2
"""Of the format, of tables that can be written."""


def meaning(operation: Single, base: State, head: State, slots: Slots) -> Expected:
    """Return what may come of *operation*; *base* is what its client had seen, *head* what it lands on."""
    found = _meaning(operation, base, head, slots)
    if not found.refusable and (_runs_over(operation, base) or _runs_over(operation, head)):
        return replace(found, refusable="a new number is below all of its type once it is truncated")
    if (base.by_value or head.by_value) and not found.refusable and not isinstance(operation, _READ_NO_ROWS):
        return replace(found, refusable="rows are deleted by value, which PyIceberg does not read")
    if found.refusable or all(_is_of(base.fields, name, value) for name, value in _values(operation)):
        return found
    return replace(found, refusable="a value is of another type: columns were swapped since it was chosen")


_READ_NO_ROWS = (Append, AppendToNeighbour, AddColumn, DropColumn, RenameColumn, SetProperty, MakeRef)
"""What lands whatever rows there are."""


def _runs_over(operation: Single, state: State) -> bool:
    """Return whether a number that *operation* adds lies in a partition below all of its type."""
    cut = {part.source: part.transform for part in state.spec}
    kinds = {column.field_id: column.field_type for column in state.fields.fields}
    ids = {column.name: column.field_id for column in state.fields.fields}
    given = [(ids[name], value) for name, value in _values(operation) if name in ids]
    if isinstance(operation, InsertSelect):
        given += itertools.chain.from_iterable(state.of())
    return any(key in cut and key in kinds and runs_over(cut[key], value, kinds[key]) for key, value in given)


def _values(operation: Any) -> Iterator[tuple[str, Any]]:
    """Yield the column and the value of each that *operation* writes."""
    match operation:
        case Transact(calls=calls):
            for call in calls:
                yield from _values(call)
        case Insert(columns=columns, values=lines):
            for line in lines:
                yield from zip(columns, line, strict=True)
        case SqlUpdate(sets=sets) | UpdateRows(sets=sets):
            yield from sets
        case TableStatement():
            yield from operation.named_values()
        case _:
            for row in getattr(operation, "rows", ()):
                yield from row.items()


def _is_of(fields: StructType, name: str, value: Any) -> bool:
    found = next((f.field_type for f in fields.fields if f.name == name), None)
    kind = str(found).partition("(")[0].partition("[")[0]
    if value is None or kind not in _PYTHON:
        return True
    zoned = getattr(value, "tzinfo", None) is not None
    return type(value) in _PYTHON[kind] and zoned == (kind == "timestamptz") and _has_room(found, value)


def _has_room(kind: IcebergType | None, value: Any) -> bool:
    match kind:
        case IntegerType():
            return bool(-(2**31) <= value < 2**31)
        case DecimalType(precision=precision, scale=scale):
            return bool(abs(value) < Decimal(10) ** (precision - scale))
    return True


_PYTHON: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float, int),
    "double": (float, int),
    "decimal": (Decimal, int),
    "string": (str,),
    "binary": (bytes,),
    "date": (dt.date,),
    "time": (dt.time,),
    "timestamp": (dt.datetime,),
    "timestamptz": (dt.datetime,),
    "uuid": (UUID,),
}
"""Values of these types fit a column; a whole number fits every column of numbers that has room for it."""


def _meaning(operation: Single, base: State, head: State, slots: Slots) -> Expected:
    if isinstance(operation, WriteFiles | Refresh):
        return Expected((head,))
    if base.uuid != head.uuid and not isinstance(operation, Recreate):
        return operation.after_drop(base, head) if isinstance(operation, Elsewhere) else DROPPED
    if head.version > _NEWEST_VERSION and not isinstance(operation, Recreate | Orphans | AppendToNeighbour):
        return Expected((head,), "tables of its version can only be read")
    if isinstance(operation, Elsewhere):
        return operation.meaning(base, head)
    evolved = not base.same_structure(head)
    kept = all(column in head.fields.fields for column in base.fields.fields)
    changed = "" if kept else "columns that its client saw are others by now"
    late = "" if base.is_like(head) else "the table has changed"
    # A statement is text, which is read again on the head.
    anew = isinstance(operation, InsertSelect | SqlUpdate | SqlDelete) or same_kinds(base, head)
    views = (base, head) if evolved and anew else (base,)
    match operation:
        case AddFiles(rows=rows) if same_kinds(base, head) and len(set(partitions_of(rows, head))) > 1:
            # A file lies in one partition, whatever its bounds say.
            return Expected((), "the rows of the file lie in several partitions")
        case AddFiles() if misled(base.fields, base.mapping) or misled(head.fields, head.mapping):
            return Expected((), "the name mapping has a name for another column")
        case Append() | AddFiles():
            branch = operation.branch if isinstance(operation, Append) else MAIN
            return Expected(distinct(appended(operation.rows, view, head, branch) for view in views), changed)
        case Delete(branch=branch) if branch not in {MAIN, *head.rows}:
            return Expected((head,), "there is no such branch")
        case Delete(where=where, branch=branch):
            return Expected(distinct(without_rows(where, view, head, branch) for view in views), changed)
        case Overwrite(rows=rows, where=where, branch=branch, given=given):
            if by_snapshot(base, head) and not given:
                serial = distinct(overwritten(rows, where, view, head, branch) for view in views)
                return on_snapshot(overwritten(rows, where, base, base, branch), serial, base, head, branch)
            if not given and rows_conflict(where, base, head, branch):
                return Expected((), "rows that it replaces have changed")
            return Expected(distinct(overwritten(rows, where, view, head, branch) for view in views), late)
        case Upsert(rows=rows, keys=keys):
            # PyIceberg refuses to update a key that it finds twice in one file, also on the table that its caller saw.
            other = "" if base.fields == head.fields else _ALL_COLUMNS
            why = other or has_null(rows, keys) or has_twice(rows, keys, base) or has_twice(rows, keys, head)
            return Expected(distinct(state for view in views for state in upserted(rows, keys, view, head)), why)
        case DynamicOverwrite(rows=rows):
            if by_snapshot(base, head):
                serial = distinct(partitions_replaced(rows, view, head) for view in views)
                return on_snapshot(partitions_replaced(rows, base, base), serial, base, head, MAIN)
            if partitions_changed(rows_of(rows, base.fields) or [], base, head):
                return Expected((), "rows that it replaces have changed")
            return Expected(distinct(partitions_replaced(rows, view, head) for view in views), late)
        case UpdateRows(where=where, sets=sets, branch=branch):
            return Expected(distinct(updated(where, dict(sets), view, head, branch) for view in views), changed)
        case SqlUpdate(sets=sets) if not has_columns(dict(sets), head):
            return Expected((), "a column is not there, which the statement names also where there is no row")
        case SqlUpdate(sets=sets) if any(value is None and head.named(column).required for column, value in sets):
            return Expected((), "a required column is set to NULL, which the statement says also where there is no row")
        case SqlUpdate(where=where, sets=sets):
            return Expected(distinct(updated(where, dict(sets), view, head, MAIN) for view in views), changed)
        case SqlDelete(where=where):
            return Expected(distinct(without_rows(where, view, head, MAIN) for view in views), changed)
        case DeletePositions(where=where):
            return Expected(distinct([without_rows(where, head, head, MAIN)]))
        case DeleteValues(columns=columns, rows=rows):
            return Expected(distinct([without_values(columns, rows, head)]))
        case Truncate():
            return Expected((head.with_rows(()),))
        case Compact() | Concatenate():
            return Expected((head,), late)
        case Insert(columns=columns, values=values, overwrite=overwrite):
            rows = tuple(dict(zip(columns, line, strict=True)) for line in values)
            return Expected(distinct(inserted(rows, view, head, overwrite) for view in views), changed)
        case InsertSelect(where=where, overwrite=overwrite):
            return Expected(distinct(selected(where, view, head, overwrite) for view in views), changed)
        case CommitFiles():
            return files_committed(operation, base, head, slots)
        case Transact(calls=calls):
            return _transacted(calls, base, head, slots)
    return structure_changed(operation, base, head, late)


_ALL_COLUMNS = "an upsert takes rows of all columns alone"


def _transacted(calls: tuple[Call, ...], base: State, head: State, slots: Slots) -> Expected:
    pairs = [(base, head)]
    # Rows that are put in the place of others were computed, by whatever calls.
    replaces = any(isinstance(call, Delete) for call in calls) and any(isinstance(call, Append) for call in calls)
    refusable = "it replaces rows, and the table has changed" if replaces and base is not head else ""
    if any(isinstance(call, Upsert) for call in calls) and any(
        isinstance(call, AddColumn | DropColumn | RenameColumn) for call in calls
    ):
        refusable = _ALL_COLUMNS
    if any(isinstance(call, Append) and call.rows for call in calls) and base.same_structure(head):
        deletes = (call for call in calls if isinstance(call, Delete))
        if any(rows_conflict(delete.where, base, head, delete.branch) for delete in deletes):
            return Expected((), "rows that it replaces have changed")
    for call in calls:
        found = []
        for before, now in pairs:
            expected = meaning(call, before, now, slots)
            refusable = refusable or expected.refusable
            alone = expected if before is now else meaning(call, before, before, slots)
            found += [(after if before is now else (alone.states or (before,))[0], after) for after in expected.states]
        pairs = found
    return Expected(tuple(after for _, after in pairs), refusable)
