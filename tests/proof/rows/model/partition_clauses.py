"""What ``PARTITION (field=value, ...)`` means: the rows that lie in a partition which a statement names. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from pyiceberg.types import StructType

from commit_coord.testing.table_files.state import Partition, State
from commit_coord.testing.table_files.transforms import EPOCH, transformed
from commit_coord.testing.table_files.values import Row

Clause = tuple[tuple[str, Any], ...]
"""Partition fields by name, each with its value as a statement writes it; a time as text, ``'2024-02'``."""


def field_called(name: str, state: State) -> Partition | None:
    """Return the partition field that a statement calls *name*; an identity has the name of its column, too."""
    columns = {f.field_id: f.name for f in state.fields.fields}
    for one in state.spec:
        names = {one.name, columns.get(one.source)} if one.transform == "identity" else {one.name}
        if name in names and one.source in columns:
            return one
    return None


def written(one: Partition, row: Row, fields: StructType) -> Any:
    """Return the value of a partition field for *row*, as a statement writes it."""
    kind = next(f.field_type for f in fields.fields if f.field_id == one.source)
    value = transformed(one.transform, dict(row).get(one.source), kind)
    if value is None:
        return None
    match one.transform:
        case "year":
            return f"{value + 1970:04}"
        case "month":
            return f"{value // 12 + 1970:04}-{value % 12 + 1:02}"
        case "day":
            return (EPOCH + dt.timedelta(days=value)).isoformat()
        case "hour":
            return f"{(EPOCH + dt.timedelta(days=value // 24)).isoformat()}-{value % 24:02}"
    return value


def lies_in(clause: Clause, state: State) -> Callable[[Row], bool] | None:
    """Return the test of rows that *clause* is for a table; None where the table has no such partition field."""
    found = [(field_called(name, state), value) for name, value in clause]
    if any(one is None for one, _ in found) or not state.fields.fields:
        return None
    fields = [(one, value) for one, value in found if one is not None]
    return lambda row: all(_same(written(one, row, state.fields), value) for one, value in fields)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    numbers = all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in (one, other))
    return (numbers or type(one) is type(other)) and bool(one == other)


def has_filter(clause: Clause, state: State) -> bool:
    """Return whether a condition on columns selects the rows of *clause*: none does for a bucket or a cut value."""
    found = ((field_called(name, state), value) for name, value in clause)
    return not any(
        one is not None and value is not None and one.transform.startswith(("bucket", "truncate"))
        for one, value in found
    )


def fixed_columns(clause: Clause, state: State) -> Iterator[tuple[str, Any]]:
    """Yield the columns whose values *clause* says, and the values."""
    names = {f.field_id: f.name for f in state.fields.fields}
    for name, value in clause:
        one = field_called(name, state)
        if one is not None and one.transform == "identity" and one.source in names:
            yield names[one.source], value
