"""PyIceberg reads and writes nested columns by field ids at any depth, and NULL lists, maps and structs stay NULL.

Known mistakes of its projection, through which all its reads and writes of rows go:

* It builds a list of structs, and a map to structs, anew from what it has projected. Any other list or map it casts as
  the file has it: by names. A list of lists shows the values of another field after fields in it have swapped their
  names, and NULL after one was renamed; whatever writes these rows anew stores that.
* Where it builds them anew, it forgets which of them were NULL: they come out empty.
* For a struct that was added after the file it puts NULL into the struct's fields too; where one of these is required,
  such rows can't be written again.
* A scan that finds no row asks Arrow for an empty table. Arrow can't make an empty table with a uuid in a struct.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from commit_coord.iceberg.mends import Mends

if TYPE_CHECKING:
    import pyarrow as pa


def mend(mends: Mends, reader: ModuleType) -> None:
    """Have *reader*, PyIceberg's module for Arrow, build lists and maps of what it has projected, and keep NULL."""
    import pyarrow as pa

    lists = pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray

    def list_of(_: Callable[..., Any]) -> Callable[..., Any]:
        def built(self: Any, kind: Any, source: Any, elements: Any) -> Any:
            if not isinstance(source, lists) or elements is None:
                return None
            elements, field = _cast(self, kind.element_field, elements)
            offsets = _offsets(source)
            made, named = (
                (pa.LargeListArray, pa.large_list(field))
                if offsets.type == pa.int64()
                else (pa.ListArray, pa.list_(field))
            )
            return made.from_arrays(offsets, elements, type=named, mask=_nulls(source))

        return built

    def map_of(_: Callable[..., Any]) -> Callable[..., Any]:
        def built(self: Any, kind: Any, source: Any, keys: Any, values: Any) -> Any:
            if not isinstance(source, pa.MapArray) or keys is None or values is None:
                return None
            keys, key = _cast(self, kind.key_field, keys)
            values, value = _cast(self, kind.value_field, values)
            return pa.MapArray.from_arrays(
                _offsets(source), keys, values, type=pa.map_(key, value), mask=_nulls(source)
            )

        return built

    def whole(build: Callable[..., Any]) -> Callable[..., Any]:
        def built(self: Any, *parts: Any) -> Any:
            made = build(self, *parts)
            if made is None or not any(pa.types.is_struct(field.type) for field in made.type):
                return made
            children = [_null_as_a_whole(made.field(i)) for i in range(made.type.num_fields)]
            mask = made.is_null() if made.null_count else None
            return pa.StructArray.from_arrays(children, fields=list(made.type), mask=mask)

        return built

    def to_table(self: Any, tasks: Any) -> pa.Table:
        batches = list(self.to_record_batches(tasks))
        if not batches:
            return empty(reader.schema_to_pyarrow(self._projected_schema, include_field_ids=False))
        return pa.concat_tables((pa.Table.from_batches([batch]) for batch in batches), promote_options="permissive")

    mends.wrap(reader.ArrowProjectionVisitor, "list", list_of)
    mends.wrap(reader.ArrowProjectionVisitor, "map", map_of)
    mends.wrap(reader.ArrowProjectionVisitor, "struct", whole)
    mends.wrap(reader.ArrowScan, "to_table", lambda _: to_table)


def empty(schema: pa.Schema) -> pa.Table:
    """Return a table without rows, also where a uuid lies in a struct."""
    import pyarrow as pa

    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def _cast(visitor: Any, field: Any, values: Any) -> tuple[Any, Any]:
    """Return *values* as those of *field*, and the Arrow field for them."""
    made = visitor._cast_if_needed(field, values)
    return made, visitor._construct_field(field, made.type)


def _offsets(source: Any) -> Any:
    """Return where each entry of *source*, a slice maybe, begins among all its values, and where the last one ends."""
    import numpy as np
    import pyarrow as pa

    if isinstance(source, pa.FixedSizeListArray):
        size = source.type.list_size
        begins = np.arange(source.offset, source.offset + len(source) + 1, dtype=np.int64) * size
        return pa.array(begins if begins[-1] >= 2**31 else begins.astype(np.int32))
    return pa.array(source.offsets.to_numpy())  # a copy: a slice of them can't be given a mask


def _nulls(source: Any) -> Any:
    return source.is_null() if source.null_count else None


def _null_as_a_whole(column: Any) -> Any:
    """Return *column*; structs that are all NULL without NULL in the fields that are required."""
    import pyarrow as pa

    if not pa.types.is_struct(column.type) or not len(column) or column.null_count < len(column):
        return column
    if not column.type.num_fields:
        return column
    kept = [_empty(field.type) for field in column.type]
    none = pa.StructArray.from_arrays(kept, fields=list(column.type), mask=pa.array([True]))
    return none.take(pa.array([0] * len(column), pa.int64()))


def _empty(kind: Any) -> Any:
    """Return one value of *kind* that is not NULL. Arrow builds none of its own where a uuid lies in it."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _empty(kind.storage_type))
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.StructArray.from_arrays([_empty(f.type) for f in kind], fields=list(kind))
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays([0, 0], pa.nulls(0, kind.key_type), pa.nulls(0, kind.item_type), type=kind)
    if pa.types.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array([0, 0], pa.int64()), pa.nulls(0, kind.value_type), type=kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), pa.nulls(0, kind.value_type), type=kind)
    return pa.array([None], pa.struct([pa.field("", kind)])).field(0)
