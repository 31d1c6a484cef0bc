"""How two states of a table differ, in words."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyiceberg.types import ListType, MapType, NestedField, StructType

from commit_coord.testing.table_files.state import State
from commit_coord.testing.table_files.values import MAIN, Row
from tests.proof.rows.model.structure import unnumbered


def bags_differ(wanted: Counter[Row], found: Counter[Row]) -> str:
    """Return how the rows that were found differ from those that were wanted."""
    missing, more = wanted - found, found - wanted
    return f"missing {_few(missing)}, not expected {_few(more)}"


def _few(rows: Counter[Row]) -> str:
    some = [repr(row)[:300] for row in rows.elements()]
    return "nothing" if not some else ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")


def difference(wanted: State, found: State, head: State) -> str | None:
    """Return how *found* differs from *wanted*; *head* is what was there before."""
    if (wanted.uuid or found.uuid) != found.uuid or (not wanted.uuid and found.uuid == head.uuid):
        return "it is another table"
    fields = wanted.fields if wanted.uuid else unnumbered(wanted.fields)
    if not _same_type(fields, found.fields, head.last_id if wanted.uuid else 0):
        return f"the columns are {found.fields}, of {wanted.fields}"
    for name in {*wanted.rows, *found.rows}:
        rows = Counter(State("", found.fields, {"": wanted.rows.get(name, ())}).of(""))
        if rows != found.of(name):
            return f"{name}: {bags_differ(rows, found.of(name))}"
        if name != MAIN and (name in wanted.rows) != (name in found.rows):
            return f"{name} is {'missing' if name in wanted.rows else 'there'}"
    for key, one, other in (
        ("spec", _spec(wanted), _spec(found)),
        ("order", _order(wanted), _order(found)),
        *((key, getattr(wanted, key), getattr(found, key)) for key in ("tags", "properties", "version")),
    ):
        if one != other:
            return f"{key} is {other}, of {one}"
    return None


def _name(state: State, field_id: int) -> str | None:
    return next((f.name for f in state.fields.fields if f.field_id == field_id), None)


def _spec(state: State) -> list[tuple[Any, ...]]:
    return [(_name(state, p.source), p.transform, p.name) for p in state.spec]


def _order(state: State) -> list[tuple[Any, ...]]:
    return [(_name(state, source), *rest) for source, *rest in state.order]


def _same_type(wanted: Any, found: Any, last_id: int) -> bool:
    """Return whether two types are the same; where *wanted* has the id -1, *found* must have a new one."""
    if type(wanted) is not type(found):
        return False
    match wanted:
        case StructType(fields=fields):
            return len(fields) == len(found.fields) and all(
                _same_type(one, other, last_id) for one, other in zip(fields, found.fields, strict=True)
            )
        case NestedField():
            return (
                (wanted.name, wanted.required) == (found.name, found.required)
                and _same_id(wanted.field_id, found.field_id, last_id)
                and _same_type(wanted.field_type, found.field_type, last_id)
            )
        case ListType():
            return _same_type(wanted.element_field, found.element_field, last_id)
        case MapType():
            return _same_type(wanted.key_field, found.key_field, last_id) and _same_type(
                wanted.value_field, found.value_field, last_id
            )
    return bool(wanted == found)


def _same_id(wanted: int, found: int, last_id: int) -> bool:
    return found > last_id if wanted == -1 else wanted == found
