"""Rows without Arrow's views: Arrow can filter few of them, and so no rows of files that were written of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R", "pa.Table", "pa.RecordBatchReader")


def without_views(rows: R) -> R:
    """Return *rows* with texts and bytes of the large types in place of views, at any depth.

    Parquet files contain the schema of Arrow, so Arrow's reader would make views of them again.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa

    schema = pa.schema([field.with_type(_large(field.type)) for field in rows.schema], rows.schema.metadata)
    return rows if schema.equals(rows.schema) else rows.cast(schema)


def _large(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    def inside(field: pa.Field) -> pa.Field:
        return field.with_type(_large(field.type))

    match kind:
        case pa.StructType():
            return pa.struct([*map(inside, kind)])
        case pa.MapType():
            return pa.map_(inside(kind.key_field), inside(kind.item_field), kind.keys_sorted)
        case pa.ListType():
            return pa.list_(inside(kind.value_field))
        case pa.LargeListType():
            return pa.large_list(inside(kind.value_field))
        case pa.FixedSizeListType():
            return pa.list_(inside(kind.value_field), kind.list_size)
        case pa.DictionaryType():
            return pa.dictionary(kind.index_type, _large(kind.value_type), kind.ordered)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)
