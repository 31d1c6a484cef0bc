"""NULL lists, maps and structs stay NULL when PyIceberg reads or writes rows.

Its projection builds a list of structs, and a map to structs, anew from offsets and values, and forgets which of them
were null: they come out empty. For a struct that was added after the file it puts NULL into the struct's fields too;
where one of these is required, such rows can't be written again. All reads and writes go through these methods of one
class.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commit_coord.iceberg.exact import Mends


def mend(mends: Mends, reader: ModuleType) -> None:
    """Have *reader*, PyIceberg's module for Arrow, keep what is null."""
    import pyarrow as pa

    def keeping(build: Callable[..., Any]) -> Callable[..., Any]:
        def built(self: Any, kind: Any, source: Any, *parts: Any) -> Any:
            made = build(self, kind, source, *parts)
            if made is None or made.null_count == source.null_count:
                return made
            parts = (made.keys, made.items) if isinstance(made, pa.MapArray) else (made.values,)
            offsets = pa.array(made.offsets.to_numpy())  # a copy: a slice of them can't be given a mask
            return type(made).from_arrays(offsets, *parts, type=made.type, mask=source.is_null())

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

    for name in ("list", "map"):
        mends.wrap(reader.ArrowProjectionVisitor, name, keeping)
    mends.wrap(reader.ArrowProjectionVisitor, "struct", whole)


def _null_as_a_whole(column: Any) -> Any:
    """Return *column*; structs that are all NULL without NULL in the fields that are required."""
    import pyarrow as pa

    if not pa.types.is_struct(column.type) or not len(column) or column.null_count < len(column):
        return column
    return pa.array([None], column.type).take(pa.array([0] * len(column), pa.int64()))
