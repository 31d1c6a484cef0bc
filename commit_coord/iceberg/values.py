"""Values that a user wrote, as columns of Iceberg's types have them: exactly, or not at all.

What a column of each type takes:

* ``boolean``: TRUE, FALSE and the texts ``'true'`` and ``'false'``.
* ``int``, ``long``, ``decimal``: every number that the type has exactly, also as a text; a double by its shortest text.
* ``float``, ``double``: every number in range, as the nearest one of the type; ``'NaN'``, ``'Infinity'``.
* ``string``: texts; exact numbers and truth values as they are written. No floating numbers: each engine has other
  texts for them.
* ``date``, ``time``, ``timestamp``: texts such as ``'2026-01-31 12:30:00.5'``, with a space or a ``T`` between; a
  timestamp takes a date as its midnight, and no zone. Microseconds are the finest: further digits must be 0.
* ``timestamptz``: the same with a zone; without one it is UTC.
* ``binary``: bytes, and texts in UTF-8. ``fixed``: bytes of its length. ``uuid``: texts, and 16 bytes.
* ``list``, ``map``, ``struct``: of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from ctypes import c_float
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from math import isfinite, isinf, isnan
from typing import Any
from uuid import UUID

from pyiceberg import types as T
from pyiceberg.exceptions import ValidationError

from commit_coord.iceberg.column_names import id_of

_EXACT = Context(prec=2000, traps=[Inexact, InvalidOperation])
_LONGEST = 1000
"""Digits that a number may have before or behind its point. No exact type has nearly as many."""

_INTEGERS: Mapping[type[T.IcebergType], int] = {T.IntegerType: 2**31, T.LongType: 2**63}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
_TIME = re.compile(_CLOCK)
_MOMENT = re.compile(rf"{_DAY.pattern}([ T]{_CLOCK}([+-][0-9]{{2}}(:?[0-9]{{2}})?)?)?")
_TOO_FINE = re.compile(r"(\.[0-9]{6})0+(?![0-9])")
_TRUTHS = {"true": True, "false": False}


class Double(Decimal):
    """A number that was written with an exponent: exact here, a double to Hive and Spark."""


class Misfit(ValueError):
    """A value that a column can't have. The text says why."""


def fit(value: Any, kind: T.IcebergType) -> Any:
    """Return *value* as a column of *kind* has it, in Python's terms; None stays None.

    Raises:
        Misfit: The type has no such value.
    """
    if value is None:
        return None
    match kind:
        case T.ListType():
            return [_inside(item, kind.element_field) for item in _instance(value, list, "a list")]
        case T.MapType():
            pairs = value.items() if isinstance(value, dict) else _instance(value, list, "a map")
            return _distinct([(_inside(key, kind.key_field), _inside(item, kind.value_field)) for key, item in pairs])
        case T.StructType():
            return _struct(_instance(value, dict, "a struct"), kind)
    if (scalar := _SCALARS.get(type(kind))) is None:
        raise Misfit(f"values of type {kind} can't be written here")
    return scalar(value, kind)


def floor(value: int | Decimal, kind: T.IcebergType) -> tuple[Any, int]:
    """Return the greatest value of *kind*, an exact number type, that is not above *value*, and whether it is below.

    Returns:
        The value, and 0 where it is equal or 1 where it is below; None and 1 where *value* is above all that *kind*
        has, None and -1 where it is below all.
    """
    scale = kind.scale if isinstance(kind, T.DecimalType) else 0
    bound = 10**kind.precision if isinstance(kind, T.DecimalType) else _INTEGERS[type(kind)]
    number = Decimal(value)
    if number and number.adjusted() > _LONGEST:
        return None, -1 if number < 0 else 1
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # A finite number.
    whole = int(Decimal((sign, digits, 0)))  # of any length: Python reads no longer texts than 4300 digits as a number
    shift = exponent + scale
    if shift < -10 * _LONGEST:  # All but 0, and its digits are too many to be counted out.
        unscaled, rest = (-1 if whole < 0 else 0), whole
    else:
        unscaled, rest = (whole * 10**shift, 0) if shift >= 0 else divmod(whole, 10**-shift)
    lowest = -bound + 1 if isinstance(kind, T.DecimalType) else -bound
    if unscaled < lowest:
        return None, -1
    if unscaled >= bound:
        return None, 1
    return (
        Decimal(unscaled).scaleb(-scale, _EXACT) if isinstance(kind, T.DecimalType) else unscaled,
        1 if rest else 0,
    )


def nearest_value(value: Any, kind: T.IcebergType) -> tuple[Any, int]:
    """Return a value of *kind* that nothing lies between it and *value*, and on which side of it *value* lies.

    A number for a ``float`` or ``double`` is taken as a double, as in Spark: 0.1 lies below the nearest ``float``.

    Returns:
        The value, and 0 where it is equal, 1 where *value* is above it or -1 where it is below; None where *value* is
        above (1) or below (-1) all that *kind* has.

    Raises:
        Misfit: *value* is nothing that is compared with *kind*.
    """
    if isinstance(kind, T.FloatType | T.DoubleType):
        number = _double(value)
        wide = float(number)
        near = c_float(wide).value if isinstance(kind, T.FloatType) else wide
        # A double is what the number is, unless it is beyond all doubles.
        exact = number if isinf(wide) else wide
        return near, 0 if isnan(wide) else (exact > near) - (exact < near)
    if isinstance(kind, T.IntegerType | T.LongType | T.DecimalType):
        return floor(exact_number(value), kind)
    return fit(value, kind), 0


def internal(value: Any, kind: T.IcebergType) -> Any:
    """Return *value*, which fits *kind*, as Iceberg's partitions have it: dates as days, times as microseconds."""
    from pyiceberg.expressions.literals import literal

    if value is None or (isinstance(value, float) and isnan(value)):
        return value  # There is no literal of NaN.
    return literal(value).to(kind).value


def _instance(value: Any, kind: type[Any], what: str) -> Any:
    if not isinstance(value, kind):
        raise Misfit(f"{_shown(value)} is not {what}")
    return value


def _inside(value: Any, field: T.NestedField) -> Any:
    if value is None and field.required:
        raise Misfit(f"{field.name} must not be NULL")
    return fit(value, field.field_type)


def _distinct(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    keys: list[Any] = []
    for key, _ in pairs:
        if key in keys:
            raise Misfit(f"the map key {_shown(key)} occurs twice")
        keys.append(key)
    return pairs


def _struct(value: Mapping[str, Any], kind: T.StructType) -> dict[str, Any]:
    ids = {field.name: field.field_id for field in kind.fields}
    written: dict[int, Any] = {}
    for key, item in value.items():
        try:
            field_id = id_of(key, ids)
        except ValidationError as error:
            raise Misfit(str(error)) from None
        if field_id is None:
            raise Misfit(f"{kind} has no field {key}")
        if field_id in written:
            raise Misfit(f"the field {key} of {kind} gets more than one value")
        written[field_id] = item
    return {field.name: _inside(written.get(field.field_id), field) for field in kind.fields}


def _shown(value: Any) -> str:
    text = _digits(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return repr(shown) if isinstance(value, str) else shown


def _digits(value: Any) -> str:
    """Return ``str(value)``, also for numbers that are longer than Python writes."""
    return str(Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value)


# One type each.


def exact_number(value: Any) -> Decimal:
    """Return an exact number."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float | str):
        raise Misfit(f"{_shown(value)} is not a number")
    text = repr(value) if isinstance(value, float) else _digits(value).strip()
    if not _NUMBER.fullmatch(text):
        raise Misfit(f"{_shown(value)} is not a number of this type")
    try:
        return Decimal(text)
    except DecimalException:  # Its exponent is no number of this machine's.
        raise Misfit(f"{_shown(value)} is out of range") from None


def _exact(value: Any, kind: T.IcebergType) -> Any:
    found, side = floor(exact_number(value), kind)
    if side:
        raise Misfit(
            f"{_shown(value)} is out of the range of {kind}"
            if found is None
            else f"{_shown(value)} has more decimal places than {kind}; it would have to be rounded"
        )
    return found


def _double(value: Any) -> float | Decimal:
    """Return NaN and infinities as floats, all other numbers exactly."""
    if isinstance(value, float) and not isfinite(value):
        return value
    if isinstance(value, str) and _NO_NUMBER.fullmatch(value.strip()):
        return float(value)
    return exact_number(value)


def _float(value: Any, kind: T.IcebergType) -> float:
    import pyarrow as pa

    number = _double(value)
    if isinstance(number, float):
        return number
    # Arrow reads a text as the nearest number of the type; by way of double a float would be rounded twice.
    found = float(number) if isinstance(kind, T.DoubleType) else pa.scalar(str(number)).cast(pa.float32()).as_py()
    if isinf(found):
        raise Misfit(f"{_shown(value)} is out of the range of {kind}")
    return float(found)


def _boolean(value: Any, _: T.IcebergType) -> bool:
    found = _TRUTHS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise Misfit(f"{_shown(value)} is neither true nor false")
    return found


def _string(value: Any, _: T.IcebergType) -> str:
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Misfit("an unpaired surrogate is not valid text") from None
            return value
        case bool():
            return str(value).lower()
        case float() | Double():
            raise Misfit(f"the text of {value}, a floating number, differs between engines: cast it to string in Spark")
        case Decimal() if value.adjusted() < _LONGEST:
            return format(value, "f")
        case int() | UUID():
            return _digits(value)
        case date() | datetime() | time():
            return value.isoformat(*([" "] if isinstance(value, datetime) else []))
    raise Misfit(f"{_shown(value)} is not text")


def _parsed(value: Any, form: re.Pattern[str], parse: Callable[[str], Any], what: str) -> Any:
    """Return what *parse* makes of a text of that *form*, whose digits beyond the microsecond are all 0.

    Python's own readers take more: weeks, '20260101', any letter between day and time.
    """
    text = _TOO_FINE.sub(r"\1", _instance(value, str, what).strip())
    if re.search(r"\.[0-9]{7}", text):
        raise Misfit(f"{_shown(value)} is more precise than a microsecond")
    try:
        if form.fullmatch(text):
            return parse(text)
    except ValueError:  # The 30th of February.
        pass
    raise Misfit(f"{_shown(value)} is not {what}")


def _date(value: Any, _: T.IcebergType) -> date:
    if isinstance(value, datetime) or not isinstance(value, date):
        return _parsed(value, _DAY, date.fromisoformat, "a date such as '2026-01-31'")  # type: ignore[no-any-return]
    return value


def _time(value: Any, _: T.IcebergType) -> time:
    found = value
    if not isinstance(value, time):
        found = _parsed(value, _TIME, time.fromisoformat, "a time such as '12:30:00'")
    if found.tzinfo is not None:
        raise Misfit(f"{_shown(value)} has a zone, and the column has none")
    return found  # type: ignore[no-any-return]


def _moment(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001  # the column's business
    what = "a time such as '2026-01-31 12:30:00'"
    return _parsed(_with_offset(value), _MOMENT, datetime.fromisoformat, what)  # type: ignore[no-any-return]


def _with_offset(value: Any) -> Any:
    return re.sub(r"\s*(?:UTC|GMT|Z)$", "+00:00", value.strip()) if isinstance(value, str) else value


def _timestamp(value: Any, _: T.IcebergType) -> datetime:
    found = _moment(value)
    if found.tzinfo is not None:
        raise Misfit(f"{_shown(value)} has a zone, and the column has none")
    return found


def _timestamptz(value: Any, _: T.IcebergType) -> datetime:
    found = _moment(value)
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:
        raise Misfit(f"{_shown(value)} is out of the range of years") from None


def _binary(value: Any, _: T.IcebergType) -> bytes:
    if isinstance(value, str):
        return _string(value, T.StringType()).encode()
    return _instance(value, bytes, "bytes such as X'00ff'")  # type: ignore[no-any-return]


def _fixed(value: Any, kind: T.IcebergType) -> bytes:
    assert isinstance(kind, T.FixedType)
    found = _binary(value, kind)
    if len(found) != len(kind):
        raise Misfit(f"{_shown(value)} has {len(found)} bytes, and the type has {len(kind)}")
    return found


def _uuid(value: Any, _: T.IcebergType) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(bytes=value) if isinstance(value, bytes) else UUID(_instance(value, str, "a UUID"))
    except ValueError:
        raise Misfit(f"{_shown(value)} is not a UUID") from None


_SCALARS: Mapping[type[T.IcebergType], Callable[[Any, T.IcebergType], Any]] = {
    T.BooleanType: _boolean,
    T.IntegerType: _exact,
    T.LongType: _exact,
    T.DecimalType: _exact,
    T.FloatType: _float,
    T.DoubleType: _float,
    T.StringType: _string,
    T.DateType: _date,
    T.TimeType: _time,
    T.TimestampType: _timestamp,
    T.TimestamptzType: _timestamptz,
    T.BinaryType: _binary,
    T.FixedType: _fixed,
    T.UUIDType: _uuid,
}


def all_fit(values: Iterable[Any], field: T.NestedField) -> list[Any]:
    """Return *values* as the column *field* has them.

    Raises:
        Misfit: It can't have one of them.
    """
    return [_inside(value, field) for value in values]
