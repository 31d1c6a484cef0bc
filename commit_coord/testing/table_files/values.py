"""Rows and their values. Pure: it reads no file and knows no library but Iceberg's types.

A row maps field ids to values, so that a renamed or swapped column is right by construction. A value that is NULL is
left out, so that a row is the same before and after a column was added. What is compared is always a *bag* of rows:
their order says nothing, and two equal rows are two rows.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

Value = Any
"""In Python's terms. A struct is a tuple of (field id, value) without its NULLs, a list a tuple, a map a sorted one."""

Row = tuple[tuple[int, Value], ...]
"""(field id, value) in the order of the ids, without NULLs."""

Named = Mapping[str, Any]
"""A row as a user writes it: by names, structs as dictionaries, maps as lists of pairs."""

MAIN = "main"

_UUID_BYTES = 16


def canonical(value: Any, kind: IcebergType) -> Value:
    """Return *value*, written by names, by field ids."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            found = {f.field_id: canonical(value.get(f.name), f.field_type) for f in fields}
            return tuple(sorted((key, item) for key, item in found.items() if item is not None))
        case ListType():
            return tuple(canonical(item, kind.element_type) for item in value)
        case MapType():
            pairs = value.items() if isinstance(value, Mapping) else value
            made = [(canonical(k, kind.key_type), canonical(v, kind.value_type)) for k, v in pairs]
            return tuple(sorted(made, key=repr))
        case FloatType():
            return _float(struct.unpack("<f", struct.pack("<f", value))[0])
        case DoubleType():
            return _float(value)
        case TimestampType() | TimestamptzType():  # as Arrow casts one to the other
            moment = value if value.tzinfo is None else value.astimezone(dt.UTC)
            return moment.replace(tzinfo=dt.UTC if isinstance(kind, TimestamptzType) else None)
        case UUIDType():
            return _uuid(value)
    return value


def _uuid(value: Value) -> Value:
    """Return a UUID, which readers show as one, as its bytes or as its text; what is none as it is."""
    match value:
        case bytes() if len(value) == _UUID_BYTES:
            return UUID(bytes=value)
        case str():
            with suppress(ValueError):
                return UUID(value)
    return value


def _float(value: float) -> float:
    return math.nan if math.isnan(value) else value  # one object: equal to itself in a tuple


def projected(value: Value, kind: IcebergType) -> Value:
    """Return what of *value* is visible with the type *kind*: what it has no field for is not."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            types = {f.field_id: f.field_type for f in fields}
            return tuple((key, projected(item, types[key])) for key, item in value if key in types)
        case ListType():
            return tuple(projected(item, kind.element_type) for item in value)
        case MapType():
            made = [(projected(k, kind.key_type), projected(v, kind.value_type)) for k, v in value]
            return tuple(sorted(made, key=repr))
        case FloatType() | DoubleType():
            return _float(float(value))
        case UUIDType():
            return _uuid(value)
    return value


def complete(value: Value, kind: IcebergType) -> bool:
    """Return whether *value* has all that *kind* requires."""
    if value is None:
        return True
    match kind:
        case StructType(fields=fields):
            there = dict(value)
            return all(
                complete(there[f.field_id], f.field_type) if f.field_id in there else not f.required for f in fields
            )
        case ListType():
            return all(item is not None or not kind.element_required for item in value) and all(
                complete(item, kind.element_type) for item in value
            )
        case MapType():
            return all((v is not None or not kind.value_required) and complete(v, kind.value_type) for _, v in value)
    return True
