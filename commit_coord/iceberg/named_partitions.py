"""A partition that a caller names by its values, held against a table: what it locks, and which rows lie in it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import isnan
from typing import Any

from pyiceberg import expressions as E
from pyiceberg import transforms
from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions.literals import DateLiteral, TimestampLiteral
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table
from pyiceberg.types import DateType, TimestamptzType

from commit_coord.errors import StatementError
from commit_coord.iceberg.column_names import id_of
from commit_coord.iceberg.partitions import partition_level
from commit_coord.iceberg.values import fit, internal
from commit_coord.protocol import hierarchy


class Open(Enum):
    """Stands for the value of a partition column that depends on the rows: ``PARTITION (day)``."""

    OPEN = "open"


OPEN = Open.OPEN

Value = str | int | float | Decimal | bool | None | Open

NamedValues = Mapping[str, Value]
"""Partition columns and their values. Names are those of fields or columns; see ``column_names`` for their case."""

_EPOCH = date(1970, 1, 1).toordinal()
_HOUR = 3_600_000_000
"""Microseconds."""


def as_text(partition: NamedValues) -> str:
    """Return *partition* as it could be written."""
    return ", ".join(key if value is OPEN else f"{key}={value!r}" for key, value in partition.items())


def partition_levels(table: Table, partition: NamedValues) -> hierarchy.Partition:
    """Return *partition* by level, outermost first; None where it names no value, or leaves the value open.

    Raises:
        StatementError: The table has no such partition column, or that one can't have such a value.
    """
    values = _values(table, partition)
    return [
        partition_level(field, table.schema(), values[field.field_id]) if field.field_id in values else None
        for field in table.spec().fields
    ]


def partition_filter(table: Table, partition: NamedValues) -> E.BooleanExpression:
    """Return the filter of the rows in *partition*. A void field is null for every row, so it excludes none.

    Raises:
        StatementError: As :func:`partition_levels`; or no row filter says which rows these are; or it names void fields
            alone, so that every row lies in it.
    """
    values = _values(table, partition)
    named = [field for field in table.spec().fields if field.field_id in values]
    if named and all(isinstance(field.transform, transforms.VoidTransform) for field in named):
        raise StatementError(
            "the named fields have no values, so every row is in this partition: name another field, or the table",
            partition=as_text(partition),
            table=".".join(table.name()),
        )
    parts = [_rows(table, field, values[field.field_id]) for field in named]
    return E.And(E.AlwaysTrue(), E.AlwaysTrue(), *parts)


def _values(table: Table, partition: NamedValues) -> dict[int, Any]:
    """Return the values that *partition* fixes, by partition field."""
    spec, schema = table.spec(), table.schema()
    name = ".".join(table.name())
    if spec.is_unpartitioned():
        raise StatementError("the table has no partitions", table=name, partition=as_text(partition))
    columns = {
        column: field.field_id
        for field in spec.fields
        if isinstance(field.transform, transforms.IdentityTransform)
        and (column := schema.find_column_name(field.source_id)) is not None
    }
    ids = {**columns, **{field.name: field.field_id for field in spec.fields}}
    accepted = ", ".join(field.name for field in spec.fields)
    given: dict[int, Value] = {}
    for key, value in partition.items():
        try:
            field_id = id_of(key, ids)
        except ValidationError as error:
            raise StatementError(str(error), table=name) from error
        if field_id is None:
            raise StatementError("the table has no such partition column", column=key, accepted=accepted, table=name)
        if field_id in given:
            raise StatementError("a partition column gets more than one value", column=key, table=name)
        given[field_id] = value
    return {
        field.field_id: _typed(field, table, value)
        for field in spec.fields
        if (value := given.get(field.field_id, OPEN)) is not OPEN
    }


def _typed(field: PartitionField, table: Table, value: Value) -> Any:
    """Return *value* as the partition has it; years, months and hours are written as Iceberg's paths show them."""
    if value is None:
        return None
    kind = table.schema().find_type(field.source_id)
    try:
        match field.transform, value:
            case transforms.TimeTransform(), _:
                return _moment(field.transform, str(value))
        result = field.transform.result_type(kind)
        return internal(fit(value, result), result)
    except (ValueError, TypeError, OverflowError) as error:
        raise StatementError(
            "invalid value for this partition column",
            column=field.name,
            value=value,
            type=kind if isinstance(field.transform, transforms.IdentityTransform) else field.transform,
            table=".".join(table.name()),
        ) from error


_FORMS: Mapping[type[transforms.Transform[Any, Any]], str] = {
    transforms.YearTransform: "%Y",
    transforms.MonthTransform: "%Y-%m",
    transforms.DayTransform: "%Y-%m-%d",
    transforms.HourTransform: "%Y-%m-%d-%H",
}


def _moment(transform: transforms.TimeTransform[Any], text: str) -> int:
    """Return the year, month, day or hour since 1970 that *text* is, written as in Iceberg's paths and no shorter."""
    form = _FORMS[type(transform)]
    moment = datetime.strptime(text, form).replace(tzinfo=UTC)
    if moment.strftime(form).zfill(len(text)) != text:  # strptime() takes '2026-1', too.
        raise ValueError(text)
    return transform.transform(TimestamptzType())(internal(moment, TimestamptzType()))  # type: ignore[return-value]


def _rows(table: Table, field: PartitionField, value: Any) -> E.BooleanExpression:
    """Return the rows whose *field* is *value*."""
    if isinstance(field.transform, transforms.VoidTransform):
        return E.AlwaysTrue() if value is None else E.AlwaysFalse()
    column = table.schema().find_column_name(field.source_id) or ""
    if value is None:
        return E.IsNull(term=column)
    if isinstance(value, float) and isnan(value):
        return E.IsNaN(term=column)
    if isinstance(field.transform, transforms.IdentityTransform):
        return E.EqualTo(term=column, value=value)
    bounds = _bounds(field, value)
    if bounds is None:
        raise StatementError("no filter selects the rows that lie in it", column=field.name, transform=field.transform)
    kind = table.schema().find_type(field.source_id)
    dates = isinstance(kind, DateType)
    first, end = (DateLiteral(hour // 24) if dates else TimestampLiteral(hour * _HOUR) for hour in bounds)
    return E.And(E.GreaterThanOrEqual(term=column, value=first), E.LessThan(term=column, value=end))


def _bounds(field: PartitionField, value: int) -> tuple[int, int] | None:
    """Return the first hour of a partition in time and the first one after it; None where it is not one in time.

    Hours since 1970, not moments: a year after 9999 is none of Python's, and nor is the first one after 9999.
    """
    match field.transform:
        case transforms.YearTransform():
            return _month(value * 12), _month(value * 12 + 12)
        case transforms.MonthTransform():
            return _month(value), _month(value + 1)
        case transforms.DayTransform():
            return value * 24, value * 24 + 24
        case transforms.HourTransform():
            return value, value + 1
    return None


def _month(number: int) -> int:
    """Return the first hour of a month since January 1970; the calendar repeats itself after 400 years."""
    cycles, month = divmod(number, 4800)
    return 24 * (date(1970 + month // 12, month % 12 + 1, 1).toordinal() - _EPOCH + cycles * 146_097)
