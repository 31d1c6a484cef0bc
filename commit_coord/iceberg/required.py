"""Rows that lack a required value are refused: Arrow writes an empty list, or 0, where a required one is NULL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.types import IcebergType, ListType, MapType, StructType

from commit_coord.errors import StatementError

if TYPE_CHECKING:
    import pyarrow as pa


def complete(rows: pa.Table | pa.RecordBatchReader, columns: StructType) -> pa.Table | pa.RecordBatchReader:
    """Return *rows*, whose columns have the names of *columns*; a stream raises when the row is reached.

    Raises:
        StatementError: A row lacks a required value.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa

    if not _requires(columns):
        return rows
    if isinstance(rows, pa.Table):
        for batch in rows.to_batches():
            _refuse(batch, columns)
        return rows

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            _refuse(batch, columns)
            yield batch

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


def _refuse(batch: pa.RecordBatch, columns: StructType) -> None:
    for path in _missing_values(columns, batch.to_struct_array(), ""):
        raise StatementError("a required column lacks a value", column=path)


def _missing_values(kind: IcebergType, found: pa.Array, path: str) -> Iterator[str]:
    """Yield the required fields in *found* that have NULL where what holds them has none."""
    if not _requires(kind) or found.null_count == len(found):
        return  # nothing in it is there; Arrow can't flatten lists that are all NULL where a uuid lies in them
    match kind:
        case StructType(fields=fields):
            there = found.flatten()  # NULL where *found* is NULL, too
            for field in fields:
                at = found.type.get_field_index(field.name)
                if at < 0:
                    continue  # PyIceberg refuses it
                if field.required and there[at].null_count > found.null_count:
                    yield path + field.name
                yield from _missing_values(field.field_type, there[at], f"{path}{field.name}.")
        case ListType():
            elements = found.flatten()
            if kind.element_required and elements.null_count:
                yield f"{path}element"
            yield from _missing_values(kind.element_type, elements, f"{path}element.")
        case MapType():
            keys, values = _entries(found).flatten()
            if kind.value_required and values.null_count:
                yield f"{path}value"
            yield from _missing_values(kind.key_type, keys, f"{path}key.")
            yield from _missing_values(kind.value_type, values, f"{path}value.")


def _entries(found: pa.MapArray) -> pa.StructArray:
    """Return the keys and values of all maps that are not NULL. Arrow flattens lists alone."""
    import pyarrow as pa

    pairs = pa.StructArray.from_arrays([found.keys, found.items], ["key", "value"])
    offsets = pa.array(found.offsets.to_numpy())  # a copy: a slice of them can't be given a mask
    return pa.ListArray.from_arrays(offsets, pairs, mask=found.is_null()).flatten()


def _requires(kind: IcebergType) -> bool:
    """Return whether a value of *kind* holds something required that may be NULL."""
    match kind:
        case StructType(fields=fields):
            return any(field.required or _requires(field.field_type) for field in fields)
        case ListType():
            return kind.element_required or _requires(kind.element_type)
        case MapType():
            return kind.value_required or _requires(kind.key_type) or _requires(kind.value_type)
    return False
