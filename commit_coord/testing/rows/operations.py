"""What clients do to a table, as data, and what each means: which states a serial order allows behind it.

``meaning(operation, base, head)`` answers for an operation by a client that had seen *base* and lands on *head*:

* Names of columns in rows and conditions stand for columns of what the client saw, or of the head. Either is a serial
  order; a mixture is none.
* What depends on nothing but its arguments (an append; a deletion by a condition) applies to the head.
* An overwrite brings rows that its caller computed. It lands only if no row that it replaces has changed since the
  caller looked: serializable, Iceberg's default.
* A change of a column must not land if its name stands for another column by now.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar, Literal
from uuid import UUID

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from commit_coord.testing.rows.model import (
    MAIN,
    Always,
    Named,
    Partition,
    Row,
    State,
    Unbound,
    Where,
    bound,
    canonical,
    complete,
    misled,
    path_of,
    rows_of,
)
from commit_coord.testing.rows.transforms import transformed

# What there is.


@dataclass(frozen=True)
class Refresh:
    """The client looks at the table again."""

    client: str


@dataclass(frozen=True)
class Append:
    """``append(rows)``."""

    client: str
    rows: tuple[Named, ...]
    branch: str = MAIN


@dataclass(frozen=True)
class Overwrite:
    """``overwrite(rows, where)``; *given*: ``reads=NOTHING``, its rows were computed from none of the table."""

    client: str
    rows: tuple[Named, ...]
    where: Where = Always()  # noqa: RUF009 - frozen
    branch: str = MAIN
    given: bool = False


@dataclass(frozen=True)
class Delete:
    """``delete(where)``."""

    client: str
    where: Where
    branch: str = MAIN


@dataclass(frozen=True)
class Upsert:
    """``upsert(rows, join_cols=keys)``."""

    client: str
    rows: tuple[Named, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class DynamicOverwrite:
    """``dynamic_partition_overwrite(rows)``."""

    client: str
    rows: tuple[Named, ...]


@dataclass(frozen=True)
class AddFiles:
    """A Parquet file without field ids is written elsewhere, and ``add_files`` takes it in."""

    client: str
    rows: tuple[Named, ...]


@dataclass(frozen=True)
class WriteFiles:
    """The client writes data files of *rows* for what it sees, and keeps them under the name *slot*."""

    client: str
    rows: tuple[Named, ...]
    slot: str


@dataclass(frozen=True)
class CommitFiles:
    """``commit_files`` of the files in *slot*.

    Args:
        client: Who commits them.
        slot: Which files.
        mode: What they replace.
        where: What they replace.
        named: With a request id that is the slot's.
        told: With the id of the schema that they were written with; else it is that of the client's table.
    """

    client: str
    slot: str
    mode: Literal["append", "overwrite", "dynamic"] = "append"
    where: Where = Always()  # noqa: RUF009 - frozen
    named: bool = False
    told: bool = True


@dataclass(frozen=True)
class UpdateRows:
    """``update_rows(where, change)``, which sets columns to constants."""

    client: str
    where: Where
    sets: tuple[tuple[str, Any], ...]
    branch: str = MAIN


@dataclass(frozen=True)
class Compact:
    """``compact()``."""

    client: str


# Statements; each sees the table as it is when it starts.


@dataclass(frozen=True)
class Insert:
    """``INSERT INTO | OVERWRITE t [(columns)] VALUES ...``."""

    client: str
    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    overwrite: bool = False


@dataclass(frozen=True)
class InsertSelect:
    """``INSERT INTO | OVERWRITE t SELECT * FROM t WHERE ...``."""

    client: str
    where: Where
    overwrite: bool = False


@dataclass(frozen=True)
class SqlUpdate:
    """``UPDATE t SET ... WHERE ...``."""

    client: str
    where: Where
    sets: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class SqlDelete:
    """``DELETE FROM t WHERE ...``."""

    client: str
    where: Where


@dataclass(frozen=True)
class Truncate:
    """``TRUNCATE TABLE t``."""

    client: str


@dataclass(frozen=True)
class Concatenate:
    """``ALTER TABLE t CONCATENATE``."""

    client: str


# Changes of the table.


@dataclass(frozen=True)
class AddColumn:
    """A new last column, or field of a struct."""

    client: str
    column: str
    kind: IcebergType


@dataclass(frozen=True)
class DropColumn:
    """A column goes, with its values."""

    client: str
    column: str


@dataclass(frozen=True)
class RenameColumn:
    """A column has another name."""

    client: str
    column: str
    to: str


@dataclass(frozen=True)
class SwapColumns:
    """Two columns exchange their names, in one transaction."""

    client: str
    one: str
    other: str


@dataclass(frozen=True)
class Promote:
    """A column gets a wider type."""

    client: str
    column: str
    kind: IcebergType


@dataclass(frozen=True)
class Require:
    """A column is required from now on, or no more."""

    client: str
    column: str
    required: bool


@dataclass(frozen=True)
class MoveFirst:
    """A column comes first."""

    client: str
    column: str


@dataclass(frozen=True)
class AddPartition:
    """The spec gets a field."""

    client: str
    column: str
    transform: str
    name: str


@dataclass(frozen=True)
class DropPartition:
    """The spec loses a field."""

    client: str
    name: str


@dataclass(frozen=True)
class SortBy:
    """The table is sorted by one column."""

    client: str
    column: str


@dataclass(frozen=True)
class Upgrade:
    """Format version 1 becomes 2."""

    client: str


@dataclass(frozen=True)
class SetProperty:
    """A property gets a value."""

    client: str
    key: str
    value: str


@dataclass(frozen=True)
class MakeRef:
    """A branch or tag at the head of the main branch."""

    client: str
    name: str
    kind: Literal["branch", "tag"]


@dataclass(frozen=True)
class DropRef:
    """A branch or tag goes."""

    client: str
    name: str
    kind: Literal["branch", "tag"]


@dataclass(frozen=True)
class Expire:
    """All snapshots go that no branch or tag stands at."""

    client: str


@dataclass(frozen=True)
class ExpireOne:
    """The snapshot that is so many behind the head of the main branch goes."""

    client: str
    back: int


@dataclass(frozen=True)
class Rollback:
    """The main branch goes back by so many snapshots."""

    client: str
    back: int


@dataclass(frozen=True)
class Recreate:
    """The table is dropped, and an empty one of the same columns made under its name; *purge*: with its files."""

    client: str
    purge: bool = False


@dataclass(frozen=True)
class Orphans:
    """The files that nothing refers to are deleted."""

    client: str


# Compositions.


@dataclass(frozen=True)
class Transact:
    """Calls in one transaction."""

    client: str
    calls: tuple[Call, ...]


class Elsewhere:
    """An operation that another module defines, and that says itself what it means.

    Args:
        client: Who does it.
        fresh: It sees the table as it is when it starts, as a statement does.
    """

    client: str
    fresh: ClassVar[bool] = False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        raise NotImplementedError


@dataclass(frozen=True)
class Race:
    """*one* is planned; then *others* are done, by other clients; then *one* commits.

    Args:
        one: What is raced.
        others: What comes between.
        early: Where *one* is a transaction: they are done behind its first call.
        again: The last of them is done when *one*, having lost the race, is planned again: it loses twice.
    """

    one: Single
    others: tuple[Single, ...]
    early: bool = False
    again: bool = False

    @property
    def client(self) -> str:
        """Return who does *one*."""
        return self.one.client


Structural = (
    AddColumn
    | DropColumn
    | RenameColumn
    | SwapColumns
    | Promote
    | Require
    | MoveFirst
    | AddPartition
    | DropPartition
    | SortBy
    | Upgrade
    | SetProperty
    | MakeRef
    | DropRef
    | Expire
    | ExpireOne
    | Rollback
    | Recreate
    | Orphans
)
Rows = Append | Overwrite | Delete | Upsert | DynamicOverwrite | AddFiles
Statement = Insert | InsertSelect | SqlUpdate | SqlDelete | Truncate | Concatenate
Call = Rows | UpdateRows | SetProperty | AddColumn | RenameColumn | DropColumn
Single = (
    Rows | WriteFiles | CommitFiles | UpdateRows | Compact | Statement | Structural | Transact | Refresh | Elsewhere
)
Operation = Single | Race

OURS_ALONE = (
    CommitFiles,
    WriteFiles,
    UpdateRows,
    Compact,
    Insert,
    InsertSelect,
    SqlUpdate,
    SqlDelete,
    Truncate,
    Concatenate,
    Elsewhere,
    Orphans,
)
"""What PyIceberg has no call for."""

STATEMENTS = (Insert, InsertSelect, SqlUpdate, SqlDelete, Truncate, Concatenate)


def is_fresh(operation: Single) -> bool:
    """Return whether *operation* sees the table as it is when it starts, whatever its client saw."""
    return isinstance(operation, STATEMENTS) or (isinstance(operation, Elsewhere) and operation.fresh)


@dataclass(frozen=True)
class Expected:
    """What may come of an operation.

    Args:
        states: One of them is the table when it has landed. None: it must not land.
        refusable: Why it may also be refused; "" where it must land, if it is valid at all.
    """

    states: tuple[State, ...]
    refusable: str = ""


REFUSED = Expected((), "it can't be carried out")

_NEWEST_VERSION = 2
"""Of the format, of tables that can be written."""

Slots = dict[str, tuple[State, tuple[Row, ...]]]
"""Files that were written: for which state of the table, and their rows."""


def meaning(operation: Single, base: State, head: State, slots: Slots) -> Expected:
    """Return what may come of *operation*; *base* is what its client had seen, *head* what it lands on."""
    found = _meaning(operation, base, head, slots)
    if found.refusable or all(_is_of(base.fields, name, value) for name, value in _values(operation)):
        return found
    return replace(found, refusable="a value is of another type: columns were swapped since it was chosen")


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
        case _:
            for row in getattr(operation, "rows", ()):
                yield from row.items()


def _is_of(fields: StructType, name: str, value: Any) -> bool:
    kinds = [str(f.field_type).partition("(")[0].partition("[")[0] for f in fields.fields if f.name == name]
    if value is None or not kinds or kinds[0] not in _PYTHON:
        return True
    zoned = getattr(value, "tzinfo", None) is not None
    return type(value) in _PYTHON[kinds[0]] and zoned == (kinds[0] == "timestamptz")


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
"""Whose values fit a column: a whole number fits every column of numbers, so it must land."""


def _meaning(operation: Single, base: State, head: State, slots: Slots) -> Expected:
    if isinstance(operation, WriteFiles | Refresh):
        return Expected((head,))
    if base.uuid != head.uuid and not isinstance(operation, Recreate):
        return Expected((), "the table was dropped")
    if isinstance(operation, Elsewhere):
        return operation.meaning(base, head)
    if head.version > _NEWEST_VERSION and not isinstance(operation, Recreate | Orphans):
        return Expected((head,), "tables of its version can only be read")
    evolved = not base.same_structure(head)
    kept = all(column in head.fields.fields for column in base.fields.fields)
    changed = "" if kept else "columns that its client saw are others by now"
    late = "" if base.is_like(head) else "the table has changed"
    # A statement is text, which is read again on the head.
    anew = isinstance(operation, InsertSelect | SqlUpdate | SqlDelete) or same_kinds(base, head)
    views = (base, head) if evolved and anew else (base,)
    match operation:
        case AddFiles(rows=rows) if same_kinds(base, head) and len(set(_partitions(rows, head))) > 1:
            # A file lies in one partition, whatever its bounds say.
            return Expected((), "the rows of the file lie in several partitions")
        case AddFiles() if misled(base.fields, base.mapping) or misled(head.fields, head.mapping):
            return Expected((), "the name mapping has a name for another column")
        case Append() | AddFiles():
            branch = operation.branch if isinstance(operation, Append) else MAIN
            return Expected(_each(_appended(operation.rows, view, head, branch) for view in views), changed)
        case Delete(branch=branch) if branch not in {MAIN, *head.rows}:
            return Expected((head,), "there is no such branch")
        case Delete(where=where, branch=branch):
            return Expected(_each(_without(where, view, head, branch) for view in views), changed)
        case Overwrite(rows=rows, where=where, branch=branch, given=given):
            if _by_snapshot(base, head) and not given:
                serial = _each(_overwritten(rows, where, view, head, branch) for view in views)
                return on_snapshot(_overwritten(rows, where, base, base, branch), serial, base, head, branch)
            if not given and _conflict(where, base, head, branch):
                return Expected((), "rows that it replaces have changed")
            return Expected(_each(_overwritten(rows, where, view, head, branch) for view in views), late)
        case Upsert(rows=rows, keys=keys):
            # PyIceberg refuses to update a key that it finds twice in one file, also on the table that its caller saw.
            other = "" if base.fields == head.fields else _ALL_COLUMNS
            why = other or _has_twice(rows, keys, base) or _has_twice(rows, keys, head)
            return Expected(_each(state for view in views for state in _upserted(rows, keys, view, head)), why)
        case DynamicOverwrite(rows=rows):
            if _by_snapshot(base, head):
                serial = _each(_partitions_replaced(rows, view, head) for view in views)
                return on_snapshot(_partitions_replaced(rows, base, base), serial, base, head, MAIN)
            if _partitions_changed(rows_of(rows, base.fields) or [], base, head):
                return Expected((), "rows that it replaces have changed")
            return Expected(_each(_partitions_replaced(rows, view, head) for view in views), late)
        case UpdateRows(where=where, sets=sets, branch=branch):
            return Expected(_each(_updated(where, dict(sets), view, head, branch) for view in views), changed)
        case SqlUpdate(sets=sets) if not _has_columns(dict(sets), head):
            return Expected((), "a column is not there, which the statement names also where there is no row")
        case SqlUpdate(sets=sets) if any(value is None and head.named(column).required for column, value in sets):
            return Expected((), "a required column is set to NULL, which the statement says also where there is no row")
        case SqlUpdate(where=where, sets=sets):
            return Expected(_each(_updated(where, dict(sets), view, head, MAIN) for view in views), changed)
        case SqlDelete(where=where):
            return Expected(_each(_without(where, view, head, MAIN) for view in views), changed)
        case Truncate():
            return Expected((head.with_rows(()),))
        case Compact() | Concatenate():
            return Expected((head,), late)
        case Insert(columns=columns, values=values, overwrite=overwrite):
            rows = tuple(dict(zip(columns, line, strict=True)) for line in values)
            return Expected(_each(_inserted(rows, view, head, overwrite) for view in views), changed)
        case InsertSelect(where=where, overwrite=overwrite):
            return Expected(_each(_selected(where, view, head, overwrite) for view in views), changed)
        case CommitFiles():
            return _files_committed(operation, base, head, slots)
        case Transact(calls=calls):
            return _transacted(calls, base, head, slots)
    return _changed(operation, base, head, late)


def _by_snapshot(base: State, head: State) -> bool:
    return base is not head and "snapshot" in {base.isolation, head.isolation}


def same_kinds(base: State, head: State) -> bool:
    """Return whether what was written for the names of *base* can be taken by those of *head*."""
    there = {f.name: _family(f.field_type) for f in head.fields.fields}
    return all(there.get(f.name, kind) == kind for f in base.fields.fields for kind in [_family(f.field_type)])


def _family(kind: IcebergType) -> str:
    """Return what the types that have the same literals have in common."""
    name = str(kind).partition("(")[0]
    return "whole number" if name in {"int", "long"} else name if kind.is_primitive else str(kind)


def _each(found: Iterable[State | None]) -> tuple[State, ...]:
    made: list[State] = []
    for state in found:
        if state is not None and state not in made:
            made.append(state)
    return tuple(made)


# Rows.


def _fit(rows: Iterable[Row], head: State) -> bool:
    return all(complete(row, head.fields) for row in rows)


def _appended(named: tuple[Named, ...], view: State, head: State, branch: str) -> State | None:
    rows = rows_of(named, view.fields)
    if rows is None or not _fit(rows, head) or branch not in {MAIN, *head.rows} or branch in head.tags:
        return None
    return head.with_rows((*head.rows.get(branch, ()), *rows), branch)


def _without(where: Where, view: State, head: State, branch: str) -> State | None:
    if branch not in {MAIN, *head.rows}:
        return None
    try:
        matches = bound(where, view.fields)
        return head.with_rows([row for row in head.rows.get(branch, ()) if not matches(row)], branch)
    except (Unbound, TypeError):  # there is no such column, or one that can't be compared with the constant
        return None


def _conflict(where: Where, base: State, head: State, branch: str) -> bool:
    if base is head:
        return False
    try:
        matches = bound(where, base.fields)
    except Unbound:
        return False
    if (branch in base.rows) != (branch in head.rows) and branch != MAIN:
        return True
    # As the present columns show them: that one was dropped changes no row.
    found = (filter(matches, state.rows.get(branch, ())) for state in (base, head))
    then, now = (State("", head.fields, {MAIN: tuple(rows)}).of() for rows in found)
    return then != now


def _overwritten(named: tuple[Named, ...], where: Where, view: State, head: State, branch: str) -> State | None:
    left = _without(where, view, head, branch)
    return left and _appended(named, view, left, branch)


def on_snapshot(after: State | None, serial: tuple[State, ...], base: State, head: State, branch: str) -> Expected:
    """Return what snapshot isolation allows: rows that were added meanwhile stay, none that is replaced may be gone.

    Args:
        after: What the overwrite makes of *base*.
        serial: What it makes of *head*.
        base: What its caller saw.
        head: What it lands on.
        branch: Where.
    """
    late = "the table has changed"
    if after is None or base.fields != head.fields:
        return Expected(serial, late)  # rows are no more told apart by their values
    old, new = base.of(branch), after.of(branch)
    if (old - new) - head.of(branch):
        return Expected((), "rows that it replaces are gone")
    rows = (head.of(branch) - (old - new)) + (new - old)
    return Expected((head.with_rows(rows.elements(), branch),), late)


def _upserted(named: tuple[Named, ...], keys: tuple[str, ...], view: State, head: State) -> Iterator[State]:
    """Yield what may come of an upsert: where a key is there n times, PyIceberg writes its row once to n times."""
    rows = rows_of(named, view.fields)
    try:
        ids = [path_of(key, view.fields)[-1].field_id for key in keys]
    except Unbound:
        return
    if rows is None or not _fit(rows, head):
        return

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(dict(row).get(i) for i in ids)

    there = head.rows.get(MAIN, ())
    wanted = {key(row): row for row in rows}
    # What is there already stays as it is, be it there twice.
    same = {k for k, row in wanted.items() if {found for found in there if key(found) == k} == {row}}
    kept = [row for row in there if key(row) not in wanted or key(row) in same]
    new = [(row, max(1, sum(key(found) == k for found in there))) for k, row in wanted.items() if k not in same]
    for times in itertools.product(*(range(1, most + 1) for _, most in new)):
        written = (row for (row, _), n in zip(new, times, strict=True) for _ in range(n))
        yield head.with_rows([*kept, *written])


def _has_twice(named: tuple[Named, ...], keys: tuple[str, ...], state: State) -> str:
    """Return why an upsert of *named* may be refused: the table has one of its keys twice."""
    try:
        ids = [path_of(key, state.fields)[-1].field_id for key in keys]
    except Unbound:
        return ""
    wanted = {tuple(row.get(key) for key in keys) for row in named}
    found = Counter(tuple(dict(row).get(i) for i in ids) for row in state.rows.get(MAIN, ()))
    return "a key is in the table twice" if any(found[key] > 1 for key in wanted) else ""


def _partitions(named: tuple[Named, ...], state: State) -> Iterator[tuple[Any, ...]]:
    """Yield the partitions of *named*, as far as they fit *state*; NaN as one that is itself."""
    for row in rows_of(named, state.fields) or ():
        yield tuple(
            "NaN" if isinstance(value, float) and math.isnan(value) else value
            for value in partition_of(row, state.spec, state.fields)
        )


def partition_of(row: Row, spec: tuple[Partition, ...], fields: StructType) -> tuple[Any, ...]:
    """Return the partition values of *row*."""
    values = dict(row)
    types = {f.field_id: f.field_type for f in fields.fields}
    return tuple(transformed(p.transform, values.get(p.source), types[p.source]) for p in spec)


def _partitions_replaced(named: tuple[Named, ...], view: State, head: State) -> State | None:
    """Return *head* with all rows gone that lie in a partition of one of these, by the spec of *view*."""
    rows = rows_of(named, view.fields)
    if rows is None or not _fit(rows, head) or not view.spec:
        return None
    doomed = {partition_of(row, view.spec, view.fields) for row in rows}
    kept = [row for row in head.rows.get(MAIN, ()) if partition_of(row, view.spec, view.fields) not in doomed]
    return head.with_rows([*kept, *rows])


def _partitions_changed(rows: Iterable[Row], base: State, head: State) -> bool:
    """Return whether rows have changed that lie in a partition of one of *rows*, by the spec of *base*."""
    if base is head:
        return False
    doomed = {partition_of(row, base.spec, base.fields) for row in rows}

    def replaced(state: State) -> Counter[Row]:
        visible = State("", base.fields, state.rows).of()
        return Counter(row for row in visible.elements() if partition_of(row, base.spec, base.fields) in doomed)

    return base.fields == head.fields and replaced(base) != replaced(head)


def files_replaced(rows: tuple[Row, ...], view: State, head: State) -> State:
    """Return *head* with *rows* in the place of all that lie in a partition of one of them, by the spec of *view*."""
    if not view.spec:
        return head.with_rows(rows)
    doomed = {partition_of(row, view.spec, view.fields) for row in rows}
    kept = (row for row in head.rows.get(MAIN, ()) if partition_of(row, view.spec, view.fields) not in doomed)
    return head.with_rows([*kept, *rows])


def _set(row: Row, sets: dict[str, Any], fields: StructType) -> Row:
    values = dict(row)
    for column, value in sets.items():
        found = path_of(column, fields)[-1]
        values[found.field_id] = canonical(value, found.field_type)
    return tuple(sorted((key, value) for key, value in values.items() if value is not None))


def _has_columns(names: Iterable[str], state: State) -> bool:
    try:
        for name in names:
            path_of(name, state.fields)
    except Unbound:
        return False
    return True


def _updated(where: Where, sets: dict[str, Any], view: State, head: State, branch: str) -> State | None:
    if branch not in {MAIN, *head.rows}:
        return None
    try:
        matches = bound(where, view.fields)
        there = head.rows.get(branch, ())
        changed = [_set(row, sets, view.fields) for row in there if matches(row)]
        kept = [row for row in there if not matches(row)]
    except (Unbound, TypeError, AttributeError):
        return None
    return head.with_rows([*kept, *changed], branch) if _fit(changed, head) else None


def _inserted(rows: tuple[Named, ...], view: State, head: State, overwrite: bool) -> State | None:
    made = rows_of(rows, view.fields)
    names = {f.name for f in view.fields.fields}
    if made is None or not _fit(made, head) or any(row.keys() - names for row in rows):
        return None
    if not overwrite:
        return head.with_rows((*head.rows.get(MAIN, ()), *made))
    return files_replaced(tuple(made), view, head)


def _selected(where: Where, view: State, head: State, overwrite: bool) -> State | None:
    try:
        found = tuple(filter(bound(where, view.fields), head.of().elements()))
    except (Unbound, TypeError):
        return None
    if not overwrite:
        return head.with_rows((*head.rows.get(MAIN, ()), *found))
    return files_replaced(found, view, head)


def _files_committed(operation: CommitFiles, base: State, head: State, slots: Slots) -> Expected:
    written, rows = slots[operation.slot]
    if written.uuid != head.uuid:
        return Expected((), "the files are of another table")
    changed = "" if written.same_structure(head) else "the files were written for other columns or partitions"
    if not _fit(rows, head):
        return Expected((), "a required column lacks values")
    match operation.mode:
        case "append":
            return Expected((head.with_rows((*head.rows.get(MAIN, ()), *rows)),), changed)
        case "dynamic":
            if _by_snapshot(base, head):
                serial = _each(files_replaced(rows, view, head) for view in (written, head))
                return on_snapshot(files_replaced(rows, written, base), serial, base, head, MAIN)
            if _partitions_changed(rows, base, head):
                return Expected((), "rows that it replaces have changed")
            changed = changed or ("" if base is head else "the table has changed")
            return Expected(_each(files_replaced(rows, view, head) for view in (written, head)), changed)
    if _by_snapshot(base, head):
        kept = _without(operation.where, base, base, MAIN)
        after = kept and kept.with_rows((*kept.rows.get(MAIN, ()), *rows))
        there = _each(_without(operation.where, view, head, MAIN) for view in (base, head))
        serial = tuple(state.with_rows((*state.rows.get(MAIN, ()), *rows)) for state in there)
        return on_snapshot(after, serial, base, head, MAIN)
    if _conflict(operation.where, base, head, MAIN):
        return Expected((), "rows that it replaces have changed")
    left = _each(_without(operation.where, view, head, MAIN) for view in (base, head))
    why = changed or ("" if base is head else "the table has changed")
    return Expected(tuple(state.with_rows((*state.rows.get(MAIN, ()), *rows)) for state in left), why)


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
        if any(_conflict(delete.where, base, head, delete.branch) for delete in deletes):
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


# Columns, partitions and the rest.


def _changed(operation: Structural, base: State, head: State, late: str) -> Expected:
    """Return what a change may bring: it must mean the same for its client as for the head."""
    try:
        if isinstance(operation, Rollback) and _conflict(Always(), base, head, MAIN):
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
            # Field ids are given out anew; what they stand for is compared by name.
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
