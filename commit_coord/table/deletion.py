"""The files that a delete by filter writes anew, without the rows that match."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from commit_coord.table.data_files import data_files


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
    from pyiceberg.io.pyarrow import ArrowScan, expression_to_pyarrow

    schema = metadata.schema()
    matches = expression_to_pyarrow(bind(schema, row_filter, case_sensitive), schema)
    # A row goes only if the filter is true of it, as in a scan: of a null it is neither true nor false.
    stays = ~pc.coalesce(matches, pa.scalar(False))
    write_uuid, counter = uuid.uuid4(), itertools.count()
    for task in tasks:
        rows = ArrowScan(metadata, io, schema, AlwaysTrue()).to_table([task])
        kept = rows.filter(stays)
        if not kept.num_rows:
            yield task.file, []
        elif kept.num_rows < rows.num_rows:
            yield task.file, list(data_files(metadata, kept, io, write_uuid, counter))
