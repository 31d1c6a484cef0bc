"""Which tables can be written."""

from __future__ import annotations

from pyiceberg.table import Table

from commit_coord.errors import InvalidArguments
from commit_coord.iceberg.attempt import table_name


def refuse_unwritable(table: Table) -> None:
    """Return if *table* can be written. Call it before a file is written, and before a lock is taken.

    Raises:
        InvalidArguments: Its format version can only be read. Nothing was done.
    """
    if table.metadata.format_version >= 3:
        raise InvalidArguments(
            "tables of this format version can only be read; nothing was written",
            table=table_name(table.name()),
            format_version=table.metadata.format_version,
            accepted="1 or 2",
        )
