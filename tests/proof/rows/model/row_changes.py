"""What operations on rows mean: the rows that are in the table after them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pyiceberg.types import IcebergType, StructType

from commit_coord.testing.table_files.state import Partition, State, Unbound, path_of, rows_of
from commit_coord.testing.table_files.transforms import transformed
from commit_coord.testing.table_files.values import MAIN, Named, Row, canonical, complete
from tests.proof.rows.model.conditions import Where, bound
from tests.proof.rows.model.operations import CommitFiles, Expected, Slots


def by_snapshot(base: State, head: State) -> bool:
    """Return whether the table asks for snapshot isolation, and has changed since its client looked."""
    return base is not head and "snapshot" in {base.isolation, head.isolation}


def same_kinds(base: State, head: State) -> bool:
    """Return whether what was written for the names of *base* can be taken by those of *head*."""
    there = {f.name: _family(f.field_type) for f in head.fields.fields}
    return all(there.get(f.name, kind) == kind for f in base.fields.fields for kind in [_family(f.field_type)])


def _family(kind: IcebergType) -> str:
    """Return what the types that have the same literals have in common."""
    name = str(kind).partition("(")[0]
    return "whole number" if name in {"int", "long"} else name if kind.is_primitive else str(kind)


def distinct(found: Iterable[State | None]) -> tuple[State, ...]:
    """Return the states that there are, each once."""
    made: list[State] = []
    for state in found:
        if state is not None and state not in made:
            made.append(state)
    return tuple(made)


def _fit(rows: Iterable[Row], head: State) -> bool:
    return all(complete(row, head.fields) for row in rows)


def appended(named: tuple[Named, ...], view: State, head: State, branch: str) -> State | None:
    """Return *head* with rows that were named for *view*; None where they do not fit."""
    rows = rows_of(named, view.fields)
    if rows is None or not _fit(rows, head) or branch not in {MAIN, *head.rows} or branch in head.tags:
        return None
    return head.with_rows((*head.rows.get(branch, ()), *rows), branch)


def without_rows(where: Where, view: State, head: State, branch: str) -> State | None:
    """Return *head* without the rows that satisfy a condition; None where it has no meaning there."""
    if branch not in {MAIN, *head.rows}:
        return None
    try:
        matches = bound(where, view.fields)
        return head.with_rows([row for row in head.rows.get(branch, ()) if not matches(row)], branch)
    except (Unbound, TypeError):  # there is no such column, or one that can't be compared with the constant
        return None


def without_values(columns: tuple[str, ...], named: tuple[Named, ...], head: State) -> State | None:
    """Return *head* without the rows that have the values of one of *named* in *columns*."""
    try:
        fields = [path_of(column, head.fields)[-1] for column in columns]
        doomed = {tuple(canonical(row.get(f.name), f.field_type) for f in fields) for row in named}
    except (Unbound, TypeError, AttributeError, ValueError):
        return None  # columns have changed since they were drawn
    rows = head.rows.get(MAIN, ())
    return head.with_rows([row for row in rows if tuple(dict(row).get(f.field_id) for f in fields) not in doomed])


def rows_conflict(where: Where, base: State, head: State, branch: str) -> bool:
    """Return whether rows that satisfy a condition have changed since its client looked."""
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


def overwritten(named: tuple[Named, ...], where: Where, view: State, head: State, branch: str) -> State | None:
    """Return *head* with rows in the place of those that satisfy a condition."""
    left = without_rows(where, view, head, branch)
    return left and appended(named, view, left, branch)


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
        return Expected(serial, late)  # rows are no longer distinguished by their values
    old, new = base.of(branch), after.of(branch)
    if (old - new) - head.of(branch):
        return Expected((), "rows that it replaces are gone")
    rows = (head.of(branch) - (old - new)) + (new - old)
    return Expected((head.with_rows(rows.elements(), branch),), late)


def upserted(named: tuple[Named, ...], keys: tuple[str, ...], view: State, head: State) -> Iterator[State]:
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
    nulls = [row for row in rows if None in key(row)]  # NULL equals nothing
    wanted = {key(row): row for row in rows if None not in key(row)}
    # What is there already stays as it is, be it there twice.
    same = {k for k, row in wanted.items() if {found for found in there if key(found) == k} == {row}}
    kept = [row for row in there if key(row) not in wanted or key(row) in same]
    new = [(row, max(1, sum(key(found) == k for found in there))) for k, row in wanted.items() if k not in same]
    for times in itertools.product(*(range(1, most + 1) for _, most in new)):
        written = (row for (row, _), n in zip(new, times, strict=True) for _ in range(n))
        yield head.with_rows([*kept, *nulls, *written])


def has_null(named: tuple[Named, ...], keys: tuple[str, ...]) -> str:
    """Return why an upsert of *named* may be refused: a key is NULL."""
    return "a key is NULL" if any(row.get(key) is None for row in named for key in keys) else ""


def has_twice(named: tuple[Named, ...], keys: tuple[str, ...], state: State) -> str:
    """Return why an upsert of *named* may be refused: the table has one of its keys twice."""
    try:
        ids = [path_of(key, state.fields)[-1].field_id for key in keys]
    except Unbound:
        return ""
    wanted = {tuple(row.get(key) for key in keys) for row in named}
    found = Counter(tuple(dict(row).get(i) for i in ids) for row in state.rows.get(MAIN, ()))
    return "a key is in the table twice" if any(found[key] > 1 for key in wanted) else ""


def partitions_of(named: tuple[Named, ...], state: State) -> Iterator[tuple[Any, ...]]:
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


def partitions_replaced(named: tuple[Named, ...], view: State, head: State) -> State | None:
    """Return *head* with all rows gone that lie in a partition of one of these, by the spec of *view*."""
    rows = rows_of(named, view.fields)
    if rows is None or not _fit(rows, head) or not view.spec:
        return None
    doomed = {partition_of(row, view.spec, view.fields) for row in rows}
    kept = [row for row in head.rows.get(MAIN, ()) if partition_of(row, view.spec, view.fields) not in doomed]
    return head.with_rows([*kept, *rows])


def partitions_changed(rows: Iterable[Row], base: State, head: State) -> bool:
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


def has_columns(names: Iterable[str], state: State) -> bool:
    """Return whether the table has columns of all these names."""
    try:
        for name in names:
            path_of(name, state.fields)
    except Unbound:
        return False
    return True


def updated(where: Where, sets: dict[str, Any], view: State, head: State, branch: str) -> State | None:
    """Return *head* with columns of some rows set to values."""
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


def inserted(rows: tuple[Named, ...], view: State, head: State, overwrite: bool) -> State | None:
    """Return *head* with the rows of an INSERT."""
    made = rows_of(rows, view.fields)
    names = {f.name for f in view.fields.fields}
    if made is None or not _fit(made, head) or any(row.keys() - names for row in rows):
        return None
    if not overwrite:
        return head.with_rows((*head.rows.get(MAIN, ()), *made))
    return files_replaced(tuple(made), view, head)


def selected(where: Where, view: State, head: State, overwrite: bool) -> State | None:
    """Return *head* with the rows of an INSERT that selects from the table itself."""
    try:
        found = tuple(filter(bound(where, view.fields), head.of().elements()))
    except (Unbound, TypeError):
        return None
    if not overwrite:
        return head.with_rows((*head.rows.get(MAIN, ()), *found))
    return files_replaced(found, view, head)


def files_committed(operation: CommitFiles, base: State, head: State, slots: Slots) -> Expected:
    """Return what the commit of files that were written before may bring."""
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
            if by_snapshot(base, head):
                serial = distinct(files_replaced(rows, view, head) for view in (written, head))
                return on_snapshot(files_replaced(rows, written, base), serial, base, head, MAIN)
            if partitions_changed(rows, base, head):
                return Expected((), "rows that it replaces have changed")
            changed = changed or ("" if base is head else "the table has changed")
            return Expected(distinct(files_replaced(rows, view, head) for view in (written, head)), changed)
    if by_snapshot(base, head):
        kept = without_rows(operation.where, base, base, MAIN)
        after = kept and kept.with_rows((*kept.rows.get(MAIN, ()), *rows))
        there = distinct(without_rows(operation.where, view, head, MAIN) for view in (base, head))
        serial = tuple(state.with_rows((*state.rows.get(MAIN, ()), *rows)) for state in there)
        return on_snapshot(after, serial, base, head, MAIN)
    if rows_conflict(operation.where, base, head, MAIN):
        return Expected((), "rows that it replaces have changed")
    left = distinct(without_rows(operation.where, view, head, MAIN) for view in (base, head))
    why = changed or ("" if base is head else "the table has changed")
    return Expected(tuple(state.with_rows((*state.rows.get(MAIN, ()), *rows)) for state in left), why)
