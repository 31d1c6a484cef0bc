"""The check whether rows fit a table, without what PyIceberg does for its error message.

PyIceberg builds a table for the message with the library rich before it compares anything. The first append of a
process then imports rich, which takes ten times as long as the append. What was found to fit is remembered, so that the
next append of the same kind of rows compares two schemas and converts none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pyiceberg.table import TableProperties
from pyiceberg.typedef import TableVersion

from commit_coord.iceberg.mends import Mends
from commit_coord.iceberg.partitioned_rows import columns_given

_REMEMBERED = 8
"""Pairs of schemas."""


def mend_arrow(mends: Mends, reader: ModuleType) -> None:
    """Add the change of *reader*, PyIceberg's module for Arrow."""

    def without_a_message(real: Callable[..., None]) -> Callable[..., None]:
        fitted: deque[tuple[Any, ...]] = deque(maxlen=_REMEMBERED)

        def check(requested_schema: Any, provided_schema: Any, *options: Any, **named: Any) -> None:
            for requested, provided, *how in tuple(fitted):
                # Fields of equal schemas may have other ids, which are in their metadata.
                is_same = provided.equals(provided_schema, check_metadata=True) and how == [options, named]
                if is_same and requested == requested_schema:
                    return
            if not _is_equal(requested_schema, provided_schema, *options, **named):
                try:
                    real(requested_schema, provided_schema, *options, **named)
                except ValueError as error:
                    error.add_note("Cast the rows to the columns of the table: rows.cast(table.schema().as_arrow())")
                    raise
            fitted.append((requested_schema, provided_schema, options, named))

        return check

    mends.wrap(reader, "_check_pyarrow_schema_compatible", without_a_message)


def _is_equal(
    requested: Any,
    provided: Any,
    downcast_ns_timestamp_to_us: bool = False,
    format_version: TableVersion = TableProperties.DEFAULT_FORMAT_VERSION,
) -> bool:
    """Return whether *provided*, an Arrow schema, is converted to *requested* exactly."""
    try:
        found = columns_given(provided, requested, format_version, downcast=downcast_ns_timestamp_to_us)
    except ValueError:
        return False
    return bool(found.as_struct() == requested.as_struct())
