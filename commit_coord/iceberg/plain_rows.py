"""Converts Arrow types that can be written but not read back correctly: views, dictionaries and unsigned integers.

Arrow supports hardly any filters on views, so rows of files that were written from views can't be filtered. PyIceberg
treats an unsigned integer as signed and writes its value unchecked: an ``int`` column of a file may then hold
3,000,000,000. A scan of a file that was written from a dictionary, and of one that was not, finds two types in one
column, and fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.types import IcebergType, IntegerType, ListType, LongType, MapType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R", "pa.Table", "pa.RecordBatchReader")


def plain(rows: R, columns: StructType) -> R:
    """Return *rows* with other types, at any depth.

    They have ``large_string`` and ``large_binary`` instead of views, values instead of dictionaries, and signed instead
    of unsigned integers. Parquet files contain the Arrow schema, so otherwise Arrow's reader would return the same
    types again.

    Raises:
        ValueError: A number is out of the range of its column. For a stream, this is raised when the row is read.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa

    kinds = _by_name(columns)
    while True:
        given = rows.schema
        schema = pa.schema([_field(field, kinds.get(field.name), _plain) for field in given], given.metadata)
        if schema.equals(given):
            return rows
        rows = rows.cast(schema)


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return *rows* with the timestamps that will be written: nanoseconds are cut off, where PyIceberg is set to do so.

    Keys are compared with those of the table, so they must be the values that it would get.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa
    from pyiceberg.table import DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE
    from pyiceberg.utils.config import Config

    if not Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE):
        return rows
    schema = pa.schema([_field(field, None, _in_microseconds) for field in rows.schema], rows.schema.metadata)
    return rows if schema.equals(rows.schema) else rows.cast(schema, safe=False)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of *column* as Python has them, dates and timestamps at any depth as Iceberg stores them.

    These are days and microseconds since 1970: Python's dates end with the year 9999.
    """
    for leaf in (_in_microseconds, _as_number):
        kind = _mapped(column.type, None, leaf)
        if not kind.equals(column.type):
            column = column.cast(kind)
    return column.to_pylist()  # type: ignore[no-any-return]


def _by_name(column: IcebergType | None) -> dict[str, IcebergType]:
    return {field.name: field.field_type for field in column.fields} if isinstance(column, StructType) else {}


Leaf = Callable[["pa.DataType", IcebergType | None], "pa.DataType"]
"""Returns the type that values of a type are converted to, for a column or field of Iceberg's if that is known."""


def _field(field: pa.Field, column: IcebergType | None, leaf: Leaf) -> pa.Field:
    return field.with_type(_mapped(field.type, column, leaf))


def _mapped(kind: pa.DataType, column: IcebergType | None, leaf: Leaf) -> pa.DataType:
    """Return *kind* with what *leaf* makes of each type that is in it."""
    import pyarrow as pa

    element = column.element_type if isinstance(column, ListType) else None
    match kind:
        case pa.StructType():
            kinds = _by_name(column)
            return pa.struct([_field(field, kinds.get(field.name), leaf) for field in kind])
        case pa.MapType():
            key, value = (column.key_type, column.value_type) if isinstance(column, MapType) else (None, None)
            return pa.map_(_field(kind.key_field, key, leaf), _field(kind.item_field, value, leaf), kind.keys_sorted)
        case pa.ListType():
            return pa.list_(_field(kind.value_field, element, leaf))
        case pa.LargeListType():
            return pa.large_list(_field(kind.value_field, element, leaf))
        case pa.FixedSizeListType():
            return pa.list_(_field(kind.value_field, element, leaf), kind.list_size)
        case pa.DictionaryType():
            # Arrow does not decode a dictionary of views, so its values are converted first.
            values = _mapped(kind.value_type, column, leaf)
            return values if values == kind.value_type else pa.dictionary(kind.index_type, values, kind.ordered)
    return leaf(kind, column)


def _in_microseconds(kind: pa.DataType, _: IcebergType | None) -> pa.DataType:
    import pyarrow as pa

    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _as_number(kind: pa.DataType, _: IcebergType | None) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _plain(kind: pa.DataType, column: IcebergType | None) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_unsigned_integer(kind) and isinstance(column, IntegerType | LongType):
        return pa.int64() if isinstance(column, LongType) or kind == pa.uint64() else pa.int32()
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)
