"""Compaction: small files of a partition written anew as few large ones. No row is added, removed or changed.

Theory of operation
    Locks first, for as long as it takes: X on the partition (or on the table), so nobody overwrites what is being read.
    An append needs no lock and may land at any time; its files are not among those that were chosen, so they stay.
    What was rewritten is published as one REPLACE snapshot, under the latch.

    A compaction may take hours, and a stalled one lose its lease:

    1. We choose the files of a partition.   2. We stall; the lease ends.
    3. A writer overwrites the partition.    4. We wake up and publish.

    The swap fails at 4, because the pointer has moved; planned again on the new head, the rewriting is
    refused because the files are gone. So it is when the partition spec of the new files is gone, also if another one
    has its id by then. Nor does it publish when no other commit came in between: the lock service is asked for the
    lease once the latch is held and the new metadata is written, right before the swap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, TableProperties

from commit_coord.coordinator import delete_quietly
from commit_coord.errors import CommitNotApplied, StatementError
from commit_coord.iceberg.metadata import sequence_number
from commit_coord.iceberg.partitions import partition_key
from commit_coord.iceberg.table_properties import as_number
from commit_coord.iceberg.written import Written, mark
from commit_coord.locks.base import Lease
from commit_coord.table.created_files import CreatedFiles
from commit_coord.table.data_files import data_files
from commit_coord.table.ports import host_of
from commit_coord.table.rewriting import files_to_rewrite
from commit_coord.table.transaction import CoordinatedTransaction

_TARGET = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
_SMALL = 0.75
"""Files below this part of the target size are put together, as in Iceberg Java's rewrite."""

FileGroup = Sequence[FileScanTask]
"""Files of one partition that are put together, each with its deletes."""

T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction.

    Args:
        before: Files that were put together.
        after: Files that have their rows now.
    """

    before: int
    after: int


def compact(
    table: T,
    condition: BooleanExpression,
    rewrite: Callable[[T, Sequence[FileGroup]], list[DataFile]],
    lease: Lease | None,
) -> Compacted:
    """Put the small files of *table* together whose rows may match *condition*.

    Guarantee: on ``CommitNotApplied``, and on any error before the commit is sent, nothing was published, and no new
    file is left.

    Args:
        table: As it is now that the locks are held.
        condition: Whole partitions.
        rewrite: Does the work; see :data:`commit_coord.table.Rewriter`.
        lease: Has the locks. None where there are none.

    Raises:
        CommitNotApplied: The lease was lost, or the rows were changed meanwhile.
        ValidationException: The rows were changed meanwhile.
        CommitStateUnknown: It is not known whether it landed.
    """
    groups = _small_files(table, condition)
    old = [task.file for group in groups for task in group]
    if not old:
        return Compacted(0, 0)
    read = table.metadata  # rewriting may take hours, and refresh the table
    new = rewrite(table, groups)
    transaction = CoordinatedTransaction(table)
    try:
        mark(read, new)
        with transaction:
            transaction.request.operation_lease = lease
            files = transaction.files
            written = files.written(new, None, Written(read.schema(), read.specs()))
            files.rewrite(old, new, written, sequence_number(read))
    except BaseException as error:
        if not transaction.request.may_have_landed or isinstance(error, CommitNotApplied | StatementError):
            for data_file in new:
                delete_quietly(table.io, data_file.file_path)
        raise
    return Compacted(len(old), len(new))


def _small_files(table: Table, condition: BooleanExpression) -> list[FileGroup]:
    """Return what is worth putting together: two small files of a partition, or one that has deletes."""
    limit = small_below(table)
    by_partition: dict[Any, list[FileScanTask]] = {}
    for task in files_to_rewrite(table.scan(row_filter=condition)):
        if task.file.file_size_in_bytes < limit or task.delete_files:
            by_partition.setdefault((task.file.spec_id, partition_key(task.file.partition)), []).append(task)
    return [tasks for tasks in by_partition.values() if len(tasks) > 1 or tasks[0].delete_files]


def small_below(table: Table) -> float:
    """Return the size in bytes below which :func:`compact` puts a file together with others."""
    return as_number(table.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, _TARGET) * _SMALL


def rewrite_here(table: Table, groups: Sequence[FileGroup]) -> list[DataFile]:
    """Rewrite in this process, the rows of one group at a time in memory; see :data:`commit_coord.table.Rewriter`."""
    # Loaded with the first compaction: Arrow starts threads, and takes long.
    from pyiceberg.io.pyarrow import ArrowScan

    created = CreatedFiles()
    io = created.recording(table.io)
    new: list[DataFile] = []
    try:
        for group in groups:
            rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(group)
            new += data_files(table.metadata, rows, io, carried=True, host=host_of(table)) if rows.num_rows else []
    except BaseException:
        created.abandon(table.io)
        raise
    return new
