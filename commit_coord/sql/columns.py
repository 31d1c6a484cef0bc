"""Columns by position, and how they get the types of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg import types as T
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from commit_coord.errors import StatementError
from commit_coord.iceberg.values import Misfit, all_fit


@dataclass(frozen=True, slots=True)
class Constant:
    """A column of a query that has the same, not yet typed value in each row."""

    value: Any


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of a query: columns by position. Lists and constants get the types of their target columns."""

    names: tuple[str, ...]
    columns: tuple[pa.ChunkedArray | list[Any] | Constant, ...]
    count: int

    def listed(self) -> Iterator[tuple[Any, ...]]:
        """Yield row by row."""
        return zip(*(_listed(column, self.count) for column in self.columns), strict=True)


def _listed(column: pa.ChunkedArray | list[Any] | Constant, count: int) -> list[Any]:
    match column:
        case Constant(value=value):
            return [value] * count
        case list():
            return column
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise StatementError(
            "a date or time beyond the year 9999 can't be shown or converted here: read the table with Spark",
            reason=error,
        ) from error
    return found


def fitted(values: pa.ChunkedArray | list[Any] | Constant, field: T.NestedField, count: int) -> pa.Array:
    """Return *values* as the column *field* has them.

    Raises:
        StatementError: It can't have one of them.
    """
    kind = schema_to_pyarrow(field.field_type, include_field_ids=False)
    if isinstance(values, pa.ChunkedArray) and values.type == kind and (field.optional or not values.null_count):
        return values
    try:
        if isinstance(values, Constant):
            (fitting,) = all_fit([values.value], field)
            return pa.array([fitting] * count, kind)
        return pa.array(all_fit(_listed(values, count), field), kind)
    except (Misfit, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StatementError(
            "a value does not fit its column", column=field.name, type=field.field_type, reason=error
        ) from error


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return *schema* as Arrow has it, without field ids."""
    return schema_to_pyarrow(schema, include_field_ids=False)
