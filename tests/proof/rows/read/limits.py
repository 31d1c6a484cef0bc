"""What readers can't answer, or answer wrongly, for tables of any writer: each limit was found by reading."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from ctypes import c_float
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.types import DecimalType, FloatType, IcebergType, IntegerType

from commit_coord.testing.table_files.observed import BY_VALUE, Observed
from tests.proof.rows.model.conditions import In, IsNull, NotNull, Where, columns_of, constants, denied, parts


def no_columns(table: Observed, where: Where) -> Iterator[str]:
    """Yield why a scan of PyIceberg's shows no row of *table*, in whatever process."""
    if not table.schema.fields:
        yield "a table without columns: there is nothing that rows could be shown by"


def ours(table: Observed, where: Where) -> Iterator[str]:
    """Yield why PyIceberg's scan can't answer *where*, in a process that has our catalogs."""
    yield from no_columns(table, where)
    if any(isinstance(value, UUID) for value in constants(where)):
        yield "a uuid: Arrow compares none"


def pyiceberg(table: Observed, where: Where) -> Iterator[str]:
    """Yield why PyIceberg's own scan answers *where* wrongly."""
    yield from no_columns(table, where)
    columns = {table.schema.find_field(column).field_id: column for column in columns_of(where)}
    kinds = {key: str(table.schema.find_type(key)) for key in columns}
    floats, ints = ({key for key in columns if _has_been(table, key, kind)} for kind in (FloatType, IntegerType))
    if floats and any(math.isinf(v) or c_float(v).value != v for v in constants(where) if isinstance(v, float)):
        yield "a constant that no float is: files of floats are compared with the nearest one, and hold no infinity"
    digits = [_digits(table, key) for key, kind in kinds.items() if kind.startswith("decimal")]
    if any(v.copy_abs() >= Decimal(10) ** most for most in digits for v in constants(where) if isinstance(v, Decimal)):
        yield "a decimal with more digits than a file has room for: it fails in Arrow"
    if any(isinstance(v, float) and v == 0 for one in parts(where) if isinstance(one, In) for v in one.values):
        yield "IN with a zero: it tells 0.0 from -0.0"
    partitioned = {p.source for spec in table.specs.values() for p in spec if p.transform == "identity"}
    if any(kind == "double" for key, kind in kinds.items() if key in partitioned):
        yield "a double that a spec partitions by: read with the precision of a float"
    if ints and any(abs(v) >= _INTS for v in constants(where) if type(v) is int):
        yield "a constant beyond the range of ints: in files of ints it is taken for true of NULL"
    yield from wrapped(table, where)
    if "uuid" in kinds.values():
        yield "a uuid: Arrow compares none"
    lacking = {key for key in columns if any(key not in schema.field_ids for schema in table.schemas.values())}
    if any(columns[key] in denied(where) for key in lacking | partitioned & columns.keys()):
        yield "!= on a column that a file lacks, or that a spec partitions by: it is taken for true of NULL"
    head = table.raw.get("current-snapshot-id")
    deletes = table.deletes(head) if head in table.snapshots else ()
    if any(isinstance(v, float) and math.isnan(v) for one in deletes for v in one.file["partition"].values()):
        yield "rows deleted by position in a partition NaN: to it, each NaN is another partition, so they are there"
    for part in parts(where):
        if isinstance(part, IsNull | NotNull) and table.schema.find_field(part.column).required and "." in part.column:
            yield "a required field of a struct that may be NULL: it is taken for never NULL"


def wrapped(table: Observed, where: Where) -> Iterator[str]:
    """Yield why a reader other than ours skips rows of *where*."""
    named = {table.schema.find_field(column).field_id for column in columns_of(where)}
    head = table.raw.get("current-snapshot-id")
    for live in table.live(head) if head in table.snapshots else ():
        spec = table.specs[live.manifest["partition_spec_id"]]
        for part, value in zip(spec, live.file["partition"].values(), strict=True):
            if part.source in named and isinstance(value, int) and value % _width(part.transform):
                yield "the partition of the least integers, which has wrapped around: its rows are left out"
                return


def _width(transform: str) -> int:
    """Return what the values of a partition are multiples of, unless they have wrapped around."""
    return int(transform.removeprefix("truncate[").removesuffix("]")) if transform.startswith("truncate") else 1


def _has_been(table: Observed, key: int, kind: type[IcebergType]) -> bool:
    """Return whether the column was of *kind* in some schema of *table*."""
    return any(isinstance(schema.find_type(key), kind) for schema in table.schemas.values() if key in schema.field_ids)


def _digits(table: Observed, key: int) -> int:
    """Return how many digits before its point the column had room for when it had the least."""
    kinds = (schema.find_type(key) for schema in table.schemas.values() if key in schema.field_ids)
    return min(kind.precision - kind.scale for kind in kinds if isinstance(kind, DecimalType))


_INTS = 2**31


def duckdb(table: Observed, where: Where) -> Iterator[str]:
    """Yield why DuckDB's extension can't read *table*, or answers *where* wrongly."""
    yield from no_columns(table, where)
    columns = table.schema.field_ids
    if any(p.source not in columns for spec in table.specs.values() for p in spec):
        yield "a column was dropped that an old spec has: the process ends"
    if _retyped(table):
        yield "a partition field became void, of another type: the process ends"
    current = table.raw.get("current-snapshot-id")
    if current in table.snapshots and _compares_null(table, current):
        yield "rows are deleted by value, and one of the values is NULL, there or in the data: these rows are left out"
    if table.raw["format-version"] > 1 and current in table.snapshots:
        lists = table.files.manifest_list(table.snapshots[current]["manifest-list"])
        about = [table.files.manifest(manifest["manifest_path"]).about for manifest in lists]
        if any(manifest.get("sequence_number") is None for manifest in lists) or any(
            properties.get("format-version", "1") == "1" for properties in about
        ):
            yield "files of format version 1 in a table of version 2"
    named = {table.schema.find_field(column) for column in columns_of(where)}
    parted = {(p.source, p.transform.partition("[")[0]) for spec in table.specs.values() for p in spec}
    for found in named:
        wide = isinstance(found.field_type, DecimalType) and found.field_type.precision > _LONG_DECIMAL
        if wide and (found.field_id, "truncate") in parted:
            # The value is computed wrongly; the same row of a table that PyIceberg wrote is not found either.
            yield "a condition on a wide decimal that a spec truncates: rows are left out"
        by_time = parted & {(found.field_id, unit) for unit in ("year", "month", "day", "hour")}
        if by_time and str(found.field_type) != "date" and any(map(_before_1970, constants(where))):
            yield "a condition with a time before 1970 on a column that a spec cuts: it rounds up"


def _compares_null(table: Observed, snapshot_id: int) -> bool:
    deletes = [one for one in table.deletes(snapshot_id) if one.file["content"] == BY_VALUE]
    ids = {key for one in deletes for key in one.file["equality_ids"]}
    files = (*deletes, *table.live(snapshot_id)) if deletes else ()
    return any(not ids <= dict(row).keys() for file in files for row in table.files.data(file.path))


_LONG_DECIMAL = 18


def _retyped(table: Observed) -> bool:
    """Return whether a partition field is void in one spec, and in another one a number that it made of its column."""
    fields = [field for spec in table.raw["partition-specs"] for field in spec["fields"]]
    void = {f["field-id"] for f in fields if f["transform"] == "void"}
    kept = ("void", "identity", "truncate")
    return any(f["field-id"] in void and not f["transform"].startswith(kept) for f in fields)


def _before_1970(value: Any) -> bool:
    return isinstance(value, datetime) and value.replace(tzinfo=UTC) < datetime(1970, 1, 1, tzinfo=UTC)


_ERRORS: dict[str, Mapping[str, str]] = {
    "pyiceberg": {
        "'NoneType' and": "it compares a partition value that is NULL",
        "date value out of range": "it looks for the day after the last one",
        "does not fit into precision inferred": "a decimal that was widened",
        "equality deletes": "rows that are deleted by value",
    },
    "ours": {"equality deletes": "rows that are deleted by value"},
    "duckdb": {
        "Information loss on integer cast": "a partition value that is out of range once it is truncated",
        "Comparison on NULL values": "a NULL where rows are deleted by value",
    },
}
"""Errors by which a reader refuses a condition, by a part of their text, and why."""


def known(name: str, error: Exception) -> str:
    """Return why the reader of that name fails so; "" if that is a finding."""
    return next((why for part, why in _ERRORS.get(name, {}).items() if part in str(error)), "")
