"""Converts Arrow types that can be written but not read back correctly: views and unsigned integers.

Arrow supports hardly any filters on views, so rows of files that were written from views can't be filtered. PyIceberg
treats an unsigned integer as signed and writes its value unchecked: an ``int`` column of a file may then hold
3,000,000,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyiceberg.types import IcebergType, IntegerType, ListType, LongType, MapType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R", "pa.Table", "pa.RecordBatchReader")


def plain(rows: R, columns: StructType) -> R:
    """Return *rows* with other types, at any depth.

    They have ``large_string`` and ``large_binary`` instead of views, and signed instead of unsigned integers. Parquet
    files contain the Arrow schema, so otherwise Arrow's reader would return views again.

    Raises:
        ValueError: A number is out of the range of its column. For a stream, this is raised when the row is read.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa

    kinds = _by_name(columns)
    schema = pa.schema([_field(field, kinds.get(field.name)) for field in rows.schema], rows.schema.metadata)
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def _by_name(column: IcebergType | None) -> dict[str, IcebergType]:
    return {field.name: field.field_type for field in column.fields} if isinstance(column, StructType) else {}


def _field(field: pa.Field, column: IcebergType | None) -> pa.Field:
    return field.with_type(_plain(field.type, column))


def _plain(kind: pa.DataType, column: IcebergType | None) -> pa.DataType:
    import pyarrow as pa

    element = column.element_type if isinstance(column, ListType) else None
    match kind:
        case pa.StructType():
            kinds = _by_name(column)
            return pa.struct([_field(field, kinds.get(field.name)) for field in kind])
        case pa.MapType():
            key, value = (column.key_type, column.value_type) if isinstance(column, MapType) else (None, None)
            return pa.map_(_field(kind.key_field, key), _field(kind.item_field, value), kind.keys_sorted)
        case pa.ListType():
            return pa.list_(_field(kind.value_field, element))
        case pa.LargeListType():
            return pa.large_list(_field(kind.value_field, element))
        case pa.FixedSizeListType():
            return pa.list_(_field(kind.value_field, element), kind.list_size)
        case pa.DictionaryType():
            return pa.dictionary(kind.index_type, _plain(kind.value_type, column), kind.ordered)
    if pa.types.is_unsigned_integer(kind) and isinstance(column, IntegerType | LongType):
        return pa.int64() if isinstance(column, LongType) or kind == pa.uint64() else pa.int32()
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)
