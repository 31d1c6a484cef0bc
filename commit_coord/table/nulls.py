"""NULL lists and maps stay NULL when PyIceberg reads or writes rows.

Its projection builds a list of structs, and a map to structs, anew from offsets and values, and forgets which of them
were null: they come out empty. All of its reads and writes go through these two methods of one class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any


@cache
def keep_nulls() -> None:
    """Have PyIceberg keep what is null, in this process."""
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor

    def keeping(build: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(build)
        def built(self: Any, kind: Any, source: Any, *parts: Any) -> Any:
            made = build(self, kind, source, *parts)
            if made is None or made.null_count == source.null_count:
                return made
            parts = (made.keys, made.items) if isinstance(made, pa.MapArray) else (made.values,)
            offsets = pa.array(made.offsets.to_numpy())  # a copy: a slice of them can't be given a mask
            return type(made).from_arrays(offsets, *parts, type=made.type, mask=source.is_null())

        return built

    for name in ("list", "map"):
        setattr(ArrowProjectionVisitor, name, keeping(getattr(ArrowProjectionVisitor, name)))
