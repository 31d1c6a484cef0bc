"""Conditions on rows: clauses that are bound to the columns and types of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg import types as T


@dataclass(frozen=True, slots=True)
class Known:
    """Is the same for every row; None is unknown."""

    truth: bool | None


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column is NULL; never unknown."""

    field: T.NestedField


@dataclass(frozen=True, slots=True)
class Settled:
    """The same for every value of a column, unknown where it is NULL."""

    field: T.NestedField
    truth: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A column compared with a value of its type."""

    field: T.NestedField
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Among:
    """A column is one of the values of its type, which equal each other where they are the same to Arrow."""

    field: T.NestedField
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A column has the form of a pattern, a regular expression."""

    field: T.NestedField
    pattern: str


@dataclass(frozen=True, slots=True)
class Every:
    """AND."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """OR."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """NOT."""

    inner: Condition


Condition = Known | IsNull | Settled | Compared | Among | Like | Every | Some | Negated


def column_ids(condition: Condition) -> set[int]:
    """Return the numbers of the columns that *condition* looks at."""
    match condition:
        case Known():
            return set()
        case Negated(inner=inner):
            return column_ids(inner)
        case Every(parts=parts) | Some(parts=parts):
            return set().union(*map(column_ids, parts))
    return {condition.field.field_id}
