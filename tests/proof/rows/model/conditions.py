"""Conditions on rows, and what they are true of."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any
from uuid import UUID

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from commit_coord.testing.table_files.state import Unbound, path_of
from commit_coord.testing.table_files.values import Row, Value, canonical


@dataclass(frozen=True)
class Always:
    """Every row."""


@dataclass(frozen=True)
class Compare:
    """``column op value``; op is one of == != < <= > >=. NULL and NaN satisfy none."""

    column: str
    op: str
    value: Any


@dataclass(frozen=True)
class In:
    """The column has one of these values."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class IsNull:
    """The column, or what it lies in, is NULL."""

    column: str


@dataclass(frozen=True)
class NotNull:
    """The column has a value."""

    column: str


@dataclass(frozen=True)
class Not:
    """Not so; NULL is neither."""

    inner: Where


@dataclass(frozen=True)
class And:
    """Both."""

    left: Where
    right: Where


@dataclass(frozen=True)
class Or:
    """One of both."""

    left: Where
    right: Where


@dataclass(frozen=True)
class Stated:
    """As SQL means it: NaN equals itself and is above all numbers, and no constant is rounded to a float."""

    inner: Where


Where = Always | Compare | In | IsNull | NotNull | Not | And | Or | Stated

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

Test = Callable[[Row], bool]
Truth = Callable[[Row], bool | None]
"""None: it compares NULL, and so is neither true nor false."""


def bound(where: Where, fields: StructType) -> Test:
    """Return the test of rows that *where* is for a table whose columns are *fields*.

    Raises:
        Unbound: It names a column that is not there.
    """
    found = truth(where, fields)
    return lambda row: found(row) is True


def truth(where: Where, fields: StructType, *, stated: bool = False) -> Truth:
    """Return whether *where*, or what :class:`Stated` has of it, is true, false or neither of a row.

    Raises:
        Unbound: It names a column that is not there.
    """
    match where:
        case Always():
            return lambda row: True
        case Stated(inner=inner):
            return truth(inner, fields, stated=True)
        case Not(inner=inner):
            negated = truth(inner, fields, stated=stated)
            return lambda row: None if (found := negated(row)) is None else not found
        case And(left=left, right=right) | Or(left=left, right=right):
            one, other = (truth(part, fields, stated=stated) for part in (left, right))
            decides = isinstance(where, Or)

            def both(row: Row) -> bool | None:
                values = (one(row), other(row))
                if decides in values:
                    return decides
                return None if None in values else not decides

            return both
    path = path_of(where.column, fields)
    ids, kind = [f.field_id for f in path], path[-1].field_type

    def value(row: Row) -> Value:
        found: Any = row
        for key in ids:
            found = dict(found).get(key)
            if found is None:
                return None
        return found

    match where:
        case IsNull():
            return lambda row: value(row) is None
        case NotNull():
            return lambda row: value(row) is not None
        case In(values=values) if stated:
            sizes = [_size(_typed(item, kind, where.column)) for item in values]
            return lambda row: None if value(row) is None else _size(value(row)) in sizes
        case Compare(op=op, value=other) if stated:
            if isinstance(kind, BooleanType) and op not in {"==", "!="}:
                raise Unbound(f"{where.column} has no order")
            size, ordered = _size(_typed(other, kind, where.column)), _COMPARED[op]
            return lambda row: None if value(row) is None else ordered(_size(value(row)), size)
        case In(values=values):
            wanted = [_constant(item, kind, where.column) for item in values]
            return lambda row: None if value(row) is None else not _is_nan(value(row)) and value(row) in wanted
        case Compare(op=op, value=other):
            against, compared = _constant(other, kind, where.column), _COMPARED[op]
            return lambda row: (
                None
                if value(row) is None
                else not _is_nan(value(row)) and not _is_nan(against) and compared(value(row), against)
            )
    raise TypeError(where)


def _constant(value: Any, kind: IcebergType, column: str) -> Value:
    """Return the constant *value* as PyIceberg takes it for a column of type *kind*.

    Raises:
        Unbound: It does not compare the two.
    """
    match value, kind:
        case (bool(), BooleanType()) | (str(), StringType()) | (bytes(), BinaryType()) | (dt.time(), TimeType()):
            return value
        case bool(), _:
            pass
        case ((int() | float() | Decimal()), (FloatType() | DoubleType())):
            with suppress(OverflowError):  # a number that no float reaches stays as it is
                return canonical(float(value), kind)
            return float(value)
        case ((int() | Decimal()), (IntegerType() | LongType())):
            return value
        case int(), DecimalType():
            return Decimal(value)
        case float(), DecimalType(scale=scale):
            if math.isfinite(value) and _has_room(Decimal(repr(value)), kind):
                return Decimal(repr(value))
            with suppress(InvalidOperation):
                return Decimal(value).quantize(Decimal((0, (1,), -scale)), rounding=ROUND_HALF_UP)
        case Decimal(), DecimalType(scale=scale) if value.as_tuple().exponent == -scale or _has_room(value, kind):
            return value
        case int(), DateType() | TimeType() | TimestampType() | TimestamptzType():
            return _counted(value, kind)
        case dt.datetime(), DateType():
            return value.date() if value.time() == dt.time() else _WithinADay(value.date())
        case dt.datetime(), TimestampType() | TimestamptzType():
            return canonical(value, kind)
        case dt.date(), DateType() if not isinstance(value, dt.datetime):
            return value
        case UUID(), UUIDType():
            return value
    raise Unbound(f"{column} has no value {value!r}")


def _has_room(number: Decimal, kind: DecimalType) -> bool:
    """Return whether the greatest decimal of *kind* that is not above *number* is one."""
    unscaled: int = math.floor(Fraction(number) * 10**kind.scale)
    return bool(-(10**kind.precision) < unscaled < 10**kind.precision)


@dataclass(frozen=True)
class _Beyond:
    """What lies after, or before, all values of a type."""

    after: bool

    def __gt__(self, value: Value) -> bool:
        return self.after

    def __lt__(self, value: Value) -> bool:
        return not self.after

    __ge__, __le__ = __gt__, __lt__


@dataclass(frozen=True)
class _WithinADay:
    """What lies between *day* and the next one."""

    day: dt.date

    def __gt__(self, value: Value) -> bool:
        return bool(value <= self.day)

    def __lt__(self, value: Value) -> bool:
        return bool(value > self.day)

    __ge__, __le__ = __gt__, __lt__


def _counted(number: int, kind: IcebergType) -> Value:
    """Return the date, time or timestamp that is so many days or microseconds after the beginning of 1970."""
    unit = dt.timedelta(days=1) if isinstance(kind, DateType) else dt.timedelta(microseconds=1)
    beginning = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - canonical() gives it a zone
    try:
        found = beginning + number * unit
    except OverflowError:
        return _Beyond(number > 0)
    match kind:
        case DateType():
            return found.date()
        case TimeType():
            return found.time() if found.date() == beginning.date() else _Beyond(number > 0)
    return canonical(found, kind)


def _typed(value: Any, kind: IcebergType, column: str) -> Value:
    """Return the constant *value* as SQL takes it for a column of type *kind*: it is not rounded.

    Raises:
        Unbound: It does not compare the two.
    """
    zoned = getattr(value, "tzinfo", None) is not None
    if isinstance(kind, StringType | BinaryType) and (zoned or isinstance(value, dt.time)):
        value = str(value)  # it is typed in quotes
    match value, kind:
        case (bool(), _) | (_, BooleanType()):
            pass
        case ((int() | float() | Decimal()), (FloatType() | DoubleType())):
            return float(value)
        case float(), (IntegerType() | LongType() | DecimalType()) if math.isfinite(value):
            return Decimal(repr(value))
        case ((int() | Decimal()), (IntegerType() | LongType() | DecimalType())):
            return value
        case (
            (float(), DecimalType())
            | (int(), DateType() | TimeType() | TimestampType() | TimestamptzType())
            | (dt.datetime(), DateType())
        ):
            raise Unbound(f"{column} has no value {value!r}")
        case dt.datetime(), TimestampType() if zoned:
            raise Unbound(f"{column} has no value {value!r}")
        case str(), BinaryType():
            return value.encode()
        case dt.date(), TimestampType() | TimestamptzType() if not isinstance(value, dt.datetime):
            return canonical(dt.datetime.combine(value, dt.time()), kind)
    return _constant(value, kind, column)


def _size(value: Value) -> tuple[bool, Value]:
    """Return what orders *value* as SQL does."""
    nan = _is_nan(value)
    return (nan, 0.0 if nan else value)


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def columns_of(where: Where) -> set[str]:
    """Return the columns that *where* names."""
    match where:
        case Always():
            return set()
        case Not(inner=inner) | Stated(inner=inner):
            return columns_of(inner)
        case And(left=left, right=right) | Or(left=left, right=right):
            return columns_of(left) | columns_of(right)
    return {where.column}


def parts(where: Where) -> Iterator[Where]:
    """Yield the conditions that *where* is made of."""
    match where:
        case Not(inner=inner) | Stated(inner=inner):
            yield from parts(inner)
        case And(left=left, right=right) | Or(left=left, right=right):
            yield from parts(left)
            yield from parts(right)
        case _:
            yield where


def denied(where: Where, *, negated: bool = False) -> set[str]:
    """Return the columns of which *where* says that they are not a value, or not one of several."""
    match where:
        case Not(inner=inner):
            return denied(inner, negated=not negated)
        case Stated(inner=inner):
            return denied(inner, negated=negated)
        case And(left=left, right=right) | Or(left=left, right=right):
            return denied(left, negated=negated) | denied(right, negated=negated)
        case In(column=column) if negated:
            return {column}
        case Compare(column=column, op=op) if op == ("==" if negated else "!="):
            return {column}
    return set()


def constants(where: Where) -> Iterator[Any]:
    """Yield the values that *where* compares with."""
    for one in parts(where):
        match one:
            case In(values=values):
                yield from values
            case Compare(value=value):
                yield value
