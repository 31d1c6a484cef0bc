"""Rows without types of Arrow that are written and can't be read: views, and numbers without a sign.

Arrow can filter few views, and so no rows of files that were written of them. PyIceberg takes an unsigned number for
one with a sign, and writes it as it is: a file then holds an ``int`` of 3,000,000,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyiceberg.types import IcebergType, IntegerType, ListType, LongType, MapType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R", "pa.Table", "pa.RecordBatchReader")


def plain(rows: R, columns: StructType) -> R:
    """Return *rows* with large texts and bytes in place of views, and with signed numbers, at any depth.

    Parquet files contain the schema of Arrow, so Arrow's reader would make views of them again.

    Raises:
        ValueError: A number is out of the range of its column; of a stream when its row is reached.
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
