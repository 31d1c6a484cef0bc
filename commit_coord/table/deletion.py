"""Files that are written anew because some of their rows go or change."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from commit_coord.table.data_files import data_files

if TYPE_CHECKING:
    import pyarrow as pa


def without_matches(
    metadata: TableMetadata,
    io: FileIO,
    tasks: Iterable[FileScanTask],
    row_filter: BooleanExpression,
    *,
    case_sensitive: bool,
) -> Iterator[tuple[DataFile, list[DataFile]]]:
    """Yield each file that has rows that match, with the files that have its other rows.

    Args:
        metadata: The table's.
        io: Reads and writes.
        tasks: The files that may have such rows.
        row_filter: Which rows go.
        case_sensitive: How *row_filter* names columns.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io.pyarrow import expression_to_pyarrow

    schema = metadata.schema()
    matches = expression_to_pyarrow(bind(schema, row_filter, case_sensitive), schema)
    # A row goes only if the filter is true of it, as in a scan: of a null it is neither true nor false.
    stays = ~pc.coalesce(matches, pa.scalar(False))

    def without(rows: pa.Table) -> pa.Table | None:
        kept = rows.filter(stays)
        return kept if kept.num_rows < rows.num_rows else None

    return rewritten(metadata, io, tasks, without)


def rewritten(
    metadata: TableMetadata,
    io: FileIO,
    tasks: Iterable[FileScanTask],
    change: Callable[[pa.Table], pa.Table | None],
) -> Iterator[tuple[DataFile, list[DataFile]]]:
    """Yield each file that *change* has other rows for, with the files that have these.

    Args:
        metadata: The table's.
        io: Reads and writes.
        tasks: The files that may be changed.
        change: Returns the rows that are to be in the place of those of a file; None leaves it as it is.
    """
    from pyiceberg.io.pyarrow import ArrowScan

    write_uuid, counter = uuid.uuid4(), itertools.count()
    for task in tasks:
        made = change(ArrowScan(metadata, io, metadata.schema(), AlwaysTrue()).to_table([task]))
        if made is not None:
            yield task.file, list(data_files(metadata, made, io, write_uuid, counter)) if made.num_rows else []
