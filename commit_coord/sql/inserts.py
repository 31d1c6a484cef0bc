"""INSERT, and how a statement that changes rows is carried out.

A statement that changes rows is a plan, a function of the table as its transaction sees it. When the commit loses a
race, the plan runs again on the newer head, with its query, its conditions and its literals:

1. ``INSERT OVERWRITE t SELECT ... FROM t`` reads t.   2. Another client's append is acknowledged.
3. We commit. Rows computed at 1 would replace those of 2 without having seen them; so the query runs again.

Nothing is decided before the transaction: that no row matches may have changed until the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyiceberg import expressions as E
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.iceberg.named_partitions import OPEN, partition_filter, partition_levels
from commit_coord.iceberg.written import has_partitions
from commit_coord.protocol.hierarchy import Operation
from commit_coord.sql.columns import Constant, Rows, arrow_schema, fitted
from commit_coord.sql.matching import delete
from commit_coord.sql.queries import read
from commit_coord.sql.show import Answer, message
from commit_coord.sql.statement import Insert, QualifiedName
from commit_coord.sql.where.columns import field_of
from commit_coord.table import CoordinatedTable
from commit_coord.table.data_files import data_files
from commit_coord.table.ports import host_of
from commit_coord.table.transaction import CoordinatedTransaction


def insert(statement: Insert, tables: Callable[[QualifiedName], CoordinatedTable]) -> Answer:
    """Insert the rows of a query, or put them in the place of others."""
    table, count = tables(statement.table), 0

    def plan(tx: CoordinatedTransaction) -> None:
        nonlocal count
        target = tx.view

        def source(name: QualifiedName) -> Table:
            found = tables(name)
            return target if found.metadata.table_uuid == target.metadata.table_uuid else found

        rows = _put(statement, target, read(statement.query, source))
        count = rows.num_rows
        if statement.overwrite:
            _replace(statement, tx, target, rows)
        elif count:
            tx.append(rows)

    if not statement.overwrite and (
        isinstance(statement.query, sql.Values) or statement.query.find(sql.Table) is None
    ):  # No row was read, so the append needs no second plan: it lands on any head.
        rows = _put(statement, table, read(statement.query, tables))
        table.append(rows)
        return message(f"{rows.num_rows} rows inserted into {'.'.join(table.name())}")
    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.OVERWRITE if statement.overwrite else Operation.APPEND)
    name = ".".join(table.name())
    if statement.overwrite:
        return message(f"{count} rows replaced the rows of {name}")
    return message(f"{count} rows inserted into {name}")


def _replace(statement: Insert, tx: CoordinatedTransaction, target: Table, rows: pa.Table) -> None:
    """Put *rows* in the place of a partition, of the table, or of the partitions that they fall in."""
    clause = statement.partition
    if not has_partitions(target.spec()) or (
        clause is not None and all(value is not OPEN for _, value in clause.values)
    ):
        delete(tx, E.AlwaysTrue() if clause is None else partition_filter(target, clause.named))
        if rows.num_rows:
            tx.append(rows)
    elif rows.num_rows:
        files = list(data_files(target.metadata, rows, target.io, host=host_of(target)))
        written = tx.files.written(files, None)
        tx.files.delete_partitions(files, {}, MAIN_BRANCH)
        tx.files.append_written(files, written, {}, MAIN_BRANCH)


def _put(statement: Insert, table: Table, rows: Rows) -> pa.Table:
    """Return *rows* with the table's columns: by position, those that PARTITION leaves open last, as in Hive."""
    clause, schema = statement.partition, table.schema()
    if clause is not None:
        partition_levels(table, clause.named)
    fixed, open_last = _partition_columns(statement, schema)
    given = [field_of(name, schema).name for name in statement.columns] or [
        field.name for field in schema.fields if field.name not in {**fixed, **dict.fromkeys(open_last)}
    ]
    given += [name for name in open_last if name not in given]
    if twice := [name for name in given if given.count(name) > 1 or name in fixed]:
        raise StatementError("a column gets more than one value", column=twice[0])
    if len(rows.columns) != len(given):
        raise StatementError(
            "wrong number of columns in the query",
            expected=f"{len(given)} ({', '.join(given)})",
            found=len(rows.columns),
        )
    written = {**fixed, **dict(zip(given, rows.columns, strict=True))}
    arrow = arrow_schema(schema)
    made = [fitted(written.get(field.name, Constant(None)), field, rows.count) for field in schema.fields]
    return pa.table(made, schema=arrow)


def _partition_columns(statement: Insert, schema: Schema) -> tuple[Mapping[str, Constant], list[str]]:
    """Return the columns that PARTITION fixes, and those that it leaves open."""
    values = statement.partition.values if statement.partition else ()
    named = [(field_of(key, schema).name, value) for key, value in values]
    fixed = {name: Constant(value) for name, value in named if value is not OPEN}
    return fixed, [name for name, value in named if value is OPEN]
