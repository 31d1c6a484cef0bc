"""Deletes by filter, and the files that they write anew without the rows that match."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, FileScanTask, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.table.data_files import data_files
from commit_coord.table.isolation import seen_from
from commit_coord.table.ports import host_of
from commit_coord.table.rewriting import files_to_rewrite

if TYPE_CHECKING:
    import pyarrow as pa


def delete_rows(
    transaction: Transaction,
    row_filter: BooleanExpression,
    snapshot_properties: dict[str, str],
    *,
    case_sensitive: bool,
    branch: str | None,
    isolation_operation: Operation | None,
) -> None:
    """Do what PyIceberg's delete does, with files that are split by partition as :func:`data_files` does it.

    Args:
        transaction: The snapshots are staged in it.
        row_filter: Which rows go.
        snapshot_properties: Go into the snapshots' summaries.
        case_sensitive: How *row_filter* names columns.
        branch: Where the rows are.
        isolation_operation: What PyIceberg takes the deletion for when it checks it; None: what it is.
    """
    properties = transaction.table_metadata.properties
    mode = properties.get(TableProperties.DELETE_MODE, TableProperties.DELETE_MODE_DEFAULT)
    if mode == TableProperties.DELETE_MODE_MERGE_ON_READ:
        warnings.warn("Merge on read is not yet supported, falling back to copy-on-write", stacklevel=4)
    with transaction.update_snapshot(snapshot_properties, branch).delete() as whole:
        if isolation_operation is not None:
            whole._isolation_operation = isolation_operation
        whole.delete_by_predicate(row_filter, case_sensitive)
    if not whole.rewrites_needed:
        if not whole.files_affected:
            warnings.warn("Delete operation did not match any records", stacklevel=4)
        return
    # What is staged on no branch may follow another snapshot than main's, so its parent is asked, not the branch.
    seen = whole.snapshot_id if whole.files_affected else whole._parent_snapshot_id
    metadata, io = transaction.table_metadata, transaction._table.io
    head = seen_from(metadata, metadata.snapshot_by_id(seen) if seen is not None else None)
    tasks = files_to_rewrite(DataScan(head, io, row_filter, case_sensitive=case_sensitive))
    found = list(
        without_matches(
            metadata,
            io,
            tasks,
            row_filter,
            case_sensitive=case_sensitive,
            host=host_of(transaction._table),
        )
    )
    if not found:
        return
    with transaction.update_snapshot(snapshot_properties, branch).overwrite() as partly:
        if isolation_operation is not None:
            partly._isolation_operation = isolation_operation
        partly._starting_snapshot_id = whole._starting_snapshot_id
        partly.delete_by_predicate(row_filter, case_sensitive)
        for old, rest in found:
            partly.delete_data_file(old)
            for data_file in rest:
                partly.append_data_file(data_file)


def without_matches(
    metadata: TableMetadata,
    io: FileIO,
    tasks: Iterable[FileScanTask],
    row_filter: BooleanExpression,
    *,
    case_sensitive: bool,
    host: Host = SYSTEM_HOST,
) -> Iterator[tuple[DataFile, list[DataFile]]]:
    """Yield each file that has rows that match, with the files that have its other rows.

    Args:
        metadata: The table's.
        io: Reads and writes.
        tasks: The files that may have such rows.
        row_filter: Which rows go.
        case_sensitive: How *row_filter* names columns.
        host: Makes the id in the names of the files.
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

    return rewritten(metadata, io, tasks, without, host)


def rewritten(
    metadata: TableMetadata,
    io: FileIO,
    tasks: Iterable[FileScanTask],
    change: Callable[[pa.Table], pa.Table | None],
    host: Host,
) -> Iterator[tuple[DataFile, list[DataFile]]]:
    """Yield each file that *change* has other rows for, with the files that have these.

    Args:
        metadata: The table's.
        io: Reads and writes.
        tasks: The files that may be changed.
        change: Returns the rows that are to be in the place of those of a file; None leaves it as it is.
        host: Makes the id in the names of the files.
    """
    from pyiceberg.io.pyarrow import ArrowScan

    write_uuid, counter = host.new_id(), itertools.count()
    for task in tasks:
        made = change(ArrowScan(metadata, io, metadata.schema(), AlwaysTrue()).to_table([task]))
        if made is not None:
            files = data_files(metadata, made, io, write_uuid, counter, carried=True) if made.num_rows else ()
            yield task.file, list(files)
