"""Evaluates a condition for each row: true, false or unknown."""

from __future__ import annotations

from functools import reduce
from math import isnan
from typing import TYPE_CHECKING, Any
from uuid import UUID

from commit_coord.sql.where.conditions import (
    Among,
    Compared,
    Condition,
    Every,
    IsNull,
    Known,
    Like,
    Negated,
    Settled,
    Some,
)

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


def truth(condition: Condition, rows: pa.Table) -> Any:
    """Return what *condition* is for each of *rows*: true, false or null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    match condition:
        case Known(truth=known):
            return pa.array([known] * rows.num_rows, pa.bool_())
        case IsNull(field=field):
            return _flat(rows.column(field.name).is_null())
        case Settled(field=field, truth=settled):
            return pc.if_else(_flat(rows.column(field.name).is_null()), pa.scalar(None, pa.bool_()), settled)
        case Compared(field=field, operator=operator, value=value):
            return _flat(_compare(rows.column(field.name), operator, value))
        case Among(field=field, values=values):
            column = _flat(rows.column(field.name))
            found = pc.is_in(column, pa.array(values, column.type))
            return pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), found)
        case Like(field=field, pattern=pattern):
            return _flat(pc.match_substring_regex(rows.column(field.name), pattern))
        case Every(parts=parts):
            return reduce(pc.and_kleene, (truth(part, rows) for part in parts))
        case Some(parts=parts):
            return reduce(pc.or_kleene, (truth(part, rows) for part in parts))
        case Negated(inner=inner):
            return pc.invert(truth(inner, rows))


def _flat(column: Any) -> Any:
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _compare(column: Any, operator: str, value: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if isinstance(value, UUID):
        column, value, kind = column.cast(pa.binary(16)).cast(pa.binary()), value.bytes, pa.binary()
    elif pa.types.is_fixed_size_binary(kind):
        column, kind = column.cast(pa.binary()), pa.binary()
    elif pa.types.is_floating(kind) and isnan(value):
        # NaN is one with itself and above all others: what counts is whether a number is NaN.
        column, value, kind = pc.is_nan(column).cast(pa.int8()), 1, pa.int8()
    found = getattr(pc, _ARROW[operator])(column, pa.scalar(value, kind))
    return pc.or_(found, pc.is_nan(column)) if pa.types.is_floating(kind) and operator in {">", ">="} else found
