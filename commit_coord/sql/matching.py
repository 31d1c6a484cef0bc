"""The rows that match a condition: read, written anew, or deleted.

UPDATE and DELETE write the files that have matching rows anew. One evaluation of WHERE says which rows these are; row
filters of PyIceberg only choose the files that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as E
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.schema import prune_columns
from pyiceberg.table import DataScan, FileScanTask, Table

from commit_coord.iceberg.counts import rows_that_match
from commit_coord.iceberg.nulls import empty
from commit_coord.sql.columns import arrow_schema
from commit_coord.sql.where.conditions import Condition, column_ids
from commit_coord.sql.where.filters import row_filter
from commit_coord.sql.where.truth import truth
from commit_coord.table.deletion import rewritten
from commit_coord.table.ports import host_of
from commit_coord.table.rewriting import files_to_rewrite
from commit_coord.table.transaction import CoordinatedTransaction


def _candidates(table: Table, condition: Condition) -> Iterator[tuple[FileScanTask, bool]]:
    """Yield the files that may have matching rows, each with whether all its rows match for sure, known in number."""
    truth(condition, empty(arrow_schema(table.schema())))  # What can't be evaluated is refused, rows or none.
    filters, exact = row_filter(condition)
    for task in files_to_rewrite(DataScan(table.metadata, table.io, filters)):
        yield task, exact and rows_that_match(task) is not None


def matching(table: Table, condition: Condition, most: int | None, columns: set[int]) -> pa.Table:
    """Return *columns*, by their numbers, of the rows that match, *most* rows at most."""
    needed = columns | column_ids(condition) or {field.field_id for field in table.schema().fields[:1]}
    schema = prune_columns(table.schema(), needed)
    scan = ArrowScan(table.metadata, table.io, schema, E.AlwaysTrue())
    found, count = [empty(arrow_schema(schema))], 0
    for task, _ in _candidates(table, condition):
        if most is not None and count >= most:
            break
        rows = scan.to_table([task])
        found.append(rows.filter(truth(condition, rows)))
        count += found[-1].num_rows
    return pa.concat_tables(found, promote_options="permissive").slice(0, most)


def count_matching(table: Table, condition: Condition) -> int:
    """Return how many rows match; a file is read only if its metadata does not say how many of its rows do."""
    needed = column_ids(condition) or {field.field_id for field in table.schema().fields[:1]}
    scan = ArrowScan(table.metadata, table.io, prune_columns(table.schema(), needed), E.AlwaysTrue())
    count = 0
    for task, all_match in _candidates(table, condition):
        if all_match:
            count += task.file.record_count
        else:
            rows = scan.to_table([task])
            count += rows.filter(truth(condition, rows)).num_rows
    return count


def rewrite(tx: CoordinatedTransaction, condition: Condition, change: Callable[[pa.Table], pa.Table | None]) -> int:
    """Put what *change* makes of the rows that match in their place, or nothing; return how many matched."""
    table, count, whole = tx.view, 0, list[DataFile]()

    def partly() -> Iterator[FileScanTask]:
        for task, all_match in _candidates(table, condition):
            if all_match and change is nothing:
                whole.append(task.file)
            else:
                yield task

    def changed(rows: pa.Table) -> pa.Table | None:
        nonlocal count
        matches = pc.fill_null(truth(condition, rows), False)
        matching = rows.filter(matches)
        if not matching.num_rows:
            return None
        count += matching.num_rows
        kept, made = rows.filter(pc.invert(matches)), change(matching)
        return kept if made is None else pa.concat_tables([kept, made], promote_options="permissive")

    replaced = list(rewritten(table.metadata, table.io, partly(), changed, host_of(table)))
    if replaced or whole:
        with tx.update_snapshot().overwrite() as producer:
            for old in whole + [old for old, _ in replaced]:
                producer.delete_data_file(old)
            for new in (new for _, files in replaced for new in files):
                producer.append_data_file(new)
    return count + sum(file.record_count for file in whole)


def nothing(_: pa.Table) -> None:
    """Leave none of the rows."""


def delete(tx: CoordinatedTransaction, condition: E.BooleanExpression) -> bool:
    """Delete the rows that match; return whether a file may have had any."""
    table = tx.view
    found = any(True for _ in DataScan(table.metadata, table.io, condition).plan_files())
    if found:
        tx.delete(condition)
    return found
