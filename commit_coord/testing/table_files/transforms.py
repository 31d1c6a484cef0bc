"""Iceberg's partition transforms, as the specification defines them, on the values of the model. Pure."""

from __future__ import annotations

import datetime as dt
import re
import struct
import uuid
from decimal import Decimal
from typing import Any

from pyiceberg.types import DateType, DecimalType, DoubleType, IcebergType, IntegerType, StringType, UUIDType

EPOCH = dt.date(1970, 1, 1)
_EPOCH_TIME = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - without a zone, as the column
_MICROSECOND = dt.timedelta(microseconds=1)


def transformed(transform: str, value: Any, kind: IcebergType) -> Any:
    """Return the partition value of *value*, of a column of type *kind*; days and hours are numbers since 1970."""
    name, _, argument = transform.partition("[")
    number = int(argument.rstrip("]") or 0)
    if value is None or name == "void":
        return None
    match name:
        case "identity":
            return value
        case "bucket":
            return (_murmur3(_hashed(value, kind)) & 0x7FFFFFFF) % number
        case "truncate":
            return _truncated(value, number, kind)
        case "year":
            return _date(value).year - 1970
        case "month":
            return (_date(value).year - 1970) * 12 + _date(value).month - 1
        case "day":
            return (_date(value) - EPOCH).days
        case "hour":
            return micros(value) // 3_600_000_000
    raise ValueError(transform)


def runs_over(transform: str, value: Any, kind: IcebergType) -> bool:
    """Return whether *transform* moves a number below all that *kind* has: an integer wraps around then."""
    if not transform.startswith("truncate") or isinstance(value, bool) or not isinstance(value, int | Decimal):
        return False
    found = transformed(transform, value, kind)
    return bool(found > value) or (
        isinstance(kind, DecimalType) and found.copy_abs() >= Decimal(10) ** (kind.precision - kind.scale)
    )


def micros(value: dt.datetime) -> int:
    """Return microseconds since 1970."""
    return (value.replace(tzinfo=None) - _EPOCH_TIME) // _MICROSECOND


def _date(value: Any) -> dt.date:
    return value.date() if isinstance(value, dt.datetime) else value


def _truncated(value: Any, width: int, kind: IcebergType) -> Any:
    if isinstance(value, str | bytes):
        return value[:width]
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        found = _unscaled(value)
        found -= found % width
        return Decimal((int(found < 0), tuple(map(int, str(abs(found)))), exponent))  # exact, unlike scaleb()
    # A long's arithmetic, as Java and Rust do it: it wraps.
    least = -(2 ** (31 if isinstance(kind, IntegerType) else 63))
    return (value - value % width - least) % (-2 * least) + least


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _hashed(value: Any, kind: IcebergType) -> bytes:
    match value:
        case bool():
            return struct.pack("<q", int(value))
        case int():
            return struct.pack("<q", value)
        case str() if not isinstance(kind, UUIDType):
            return value.encode()
        case bytes():
            return value
        case Decimal():
            number = _unscaled(value)
            return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
        case dt.datetime():
            return struct.pack("<q", micros(value))
        case dt.date():
            return struct.pack("<q", (value - EPOCH).days)
        case dt.time():
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return struct.pack("<q", seconds * 1_000_000 + value.microsecond)
        case uuid.UUID():
            return value.bytes
    raise TypeError(value)


def _rotated(word: int, by: int) -> int:
    return ((word << by) | (word >> (32 - by))) & 0xFFFFFFFF


def _murmur3(data: bytes) -> int:
    """Return the 32-bit hash Murmur3, x86 variant, seed 0."""
    found, mask = 0, 0xFFFFFFFF
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & mask
        found ^= _rotated(word, 15) * 0x1B873593 & mask
        found = _rotated(found, 13) * 5 + 0xE6546B64 & mask
    if rest := data[whole:]:
        word = int.from_bytes(rest, "little") * 0xCC9E2D51 & mask
        found ^= _rotated(word, 15) * 0x1B873593 & mask
    found ^= len(data)
    found = (found ^ (found >> 16)) * 0x85EBCA6B & mask
    found = (found ^ (found >> 13)) * 0xC2B2AE35 & mask
    return found ^ (found >> 16)


_PARTITIONABLE = re.compile(r"boolean|int|long|decimal.*|date|time|timestamp|timestamptz|string|binary|uuid|fixed.*")


def fitting(kind: IcebergType) -> list[str]:
    """Return transforms that a column of type *kind* can be partitioned by."""
    name = str(kind)
    # PyIceberg 0.12 reads a partition value of a double with the precision of a float, and then finds no row of it.
    found = ["identity"] if kind.is_primitive and not isinstance(kind, DoubleType) else []
    if re.fullmatch(_PARTITIONABLE, name) and name != "boolean":
        found += ["bucket[3]", "bucket[8]"]
    if isinstance(kind, StringType | DecimalType) or name in {"int", "long", "binary"}:
        found += ["truncate[2]", "truncate[10]"]
    if isinstance(kind, DateType) or name.startswith("timestamp"):
        found += ["year", "month", "day"]
    if name.startswith("timestamp"):
        found.append("hour")
    return found
