"""Rows of tables: queries, INSERT, UPDATE and DELETE.

A statement that changes rows is a plan, a function of the table as its transaction sees it. When the commit loses a
race, the plan runs again on the newer head, with its query, its conditions and its literals:

1. ``INSERT OVERWRITE t SELECT ... FROM t`` reads t.   2. Another client appends, and is told that its rows are in.
3. We commit. Rows computed at 1 would replace those of 2 without having seen them; so the query runs again.

Nothing is decided before the transaction: that no row matches may have changed until the commit.

UPDATE and DELETE write the files that have matching rows anew. One evaluation of WHERE says which rows these are; row
filters of PyIceberg only choose the files that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as E
from pyiceberg import types as T
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.refs import MAIN_BRANCH
from sqlglot import ErrorLevel
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.iceberg.named_partitions import OPEN, partition_filter, partition_levels
from commit_coord.iceberg.values import Misfit, all_fit
from commit_coord.iceberg.written import has_partitions
from commit_coord.protocol.hierarchy import Operation
from commit_coord.sql.clauses import unknown
from commit_coord.sql.constants import NotAConstant, constant
from commit_coord.sql.filters import (
    Called,
    Condition,
    NotAFilter,
    bound,
    column_ids,
    column_of,
    field_of,
    is_of,
    row_filter,
    truth,
)
from commit_coord.sql.show import Answer, said
from commit_coord.sql.statement import Delete, Insert, Name, Update
from commit_coord.table import CoordinatedTable
from commit_coord.table.data_files import data_files
from commit_coord.table.deletion import rewritten
from commit_coord.table.transaction import CoordinatedTransaction

Tables = Callable[[Name], Table]


@dataclass(frozen=True, slots=True)
class Constant:
    """A column of a query that has the same, not yet typed value in each row."""

    value: Any


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query brings: columns by position. Those of lists and constants get their types where they are put."""

    names: tuple[str, ...]
    columns: tuple[pa.ChunkedArray | list[Any] | Constant, ...]
    count: int

    def listed(self) -> Iterator[tuple[Any, ...]]:
        """Yield row by row."""
        return zip(*(_listed(column, self.count) for column in self.columns), strict=True)


def _listed(column: pa.ChunkedArray | list[Any] | Constant, count: int) -> list[Any]:
    match column:
        case Constant(value=value):
            return [value] * count
        case list():
            return column
    found: list[Any] = column.to_pylist()
    return found


# Queries.


def read(query: sql.Expr, tables: Tables) -> Rows:
    """Return the rows of a query of columns and constants, from one table or none.

    Raises:
        StatementError: It asks for more. Spark answers that: ``commit_coord.spark.read_table`` brings the table.
    """
    if (more := unknown(query)) is not None:
        raise _needs_spark(query, more)
    if isinstance(query, sql.Values):
        return _values([row.expressions if isinstance(row, sql.Tuple) else [row] for row in query.expressions])
    source = query.args.get("from_")
    if not isinstance(query, sql.Select) or (source is not None and not isinstance(source.this, sql.Table)):
        raise _needs_spark(query)
    if source is None:
        if query.args.get("where") or query.args.get("limit"):
            raise _needs_spark(query)
        return _values([[item.unalias() for item in query.expressions]])
    return _select(query, source.this, tables)


def _select(query: sql.Select, source: sql.Table, tables: Tables) -> Rows:
    table = tables(Name(source.name, source.db or None))
    called = (source.alias,) if source.alias else table.name()
    where, limit = query.args.get("where"), query.args.get("limit")
    schema = table.schema()
    try:
        chosen = [one for item in query.expressions for one in _chosen(item, schema, called)]
        condition = bound(where.this if where is not None else None, schema, called)
        most = None if limit is None else _limit(limit.expression)
    except (NotAFilter, NotAConstant) as error:
        raise _needs_spark(query, error) from None
    found = _matching(table, condition, most, {one.field_id for _, one in chosen if isinstance(one, T.NestedField)})
    columns = [found.column(one.name) if isinstance(one, T.NestedField) else one for _, one in chosen]
    return Rows(tuple(name for name, _ in chosen), tuple(columns), found.num_rows)


def _limit(written: sql.Expr) -> int:
    found = constant(written)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise StatementError("LIMIT takes a whole number of rows", found=found)
    return found


def _chosen(item: sql.Expr, schema: Schema, called: Called) -> list[tuple[str, T.NestedField | Constant]]:
    """Return what an item of a SELECT list brings: names, each with its column or constant."""
    match item.unalias():
        case sql.Star():
            return [(field.name, field) for field in schema.fields]
        case sql.Column(this=sql.Star()) as column if is_of(column, called):
            return [(field.name, field) for field in schema.fields]
        case sql.Column() as column:
            return [(item.alias_or_name, column_of(column, schema, called))]
        case value:
            return [(item.alias_or_name or item.sql(), Constant(constant(value)))]


def _values(rows: Sequence[Sequence[sql.Expr]]) -> Rows:
    if len({len(row) for row in rows}) != 1:
        raise StatementError("all rows must have the same number of values")
    try:
        values = [[constant(item) for item in row] for row in rows]
    except NotAConstant as error:
        raise StatementError("expected a constant", found=error) from None
    columns = tuple(map(list, zip(*values, strict=True)))
    return Rows(tuple(f"col{i}" for i in range(1, len(columns) + 1)), columns, len(values))


def _needs_spark(query: sql.Expr, found: object = None) -> StatementError:
    return StatementError(
        "only columns and constants of one table are read here, with a simple WHERE and LIMIT; give other queries to "
        "Spark, and write what they return with commit_coord.spark.write_table",
        query=query.sql(dialect="hive", unsupported_level=ErrorLevel.IGNORE),
        found=found,
    )


# Files.


def _candidates(table: Table, condition: Condition) -> Iterator[tuple[FileScanTask, bool]]:
    """Yield the files that may have matching rows, each with whether all of its rows match for sure."""
    truth(condition, _arrow_schema(table.schema()).empty_table())  # What can't be evaluated is refused, rows or none.
    filters, exact = row_filter(condition)
    for task in DataScan(table.metadata, table.io, filters).plan_files():
        yield task, exact and isinstance(task.residual, E.AlwaysTrue) and not task.delete_files


def _matching(table: Table, condition: Condition, most: int | None, columns: set[int]) -> pa.Table:
    """Return *columns*, by their numbers, of the rows that match, *most* rows at most."""
    needed = columns | column_ids(condition) or {field.field_id for field in table.schema().fields[:1]}
    schema = prune_columns(table.schema(), needed)
    scan = ArrowScan(table.metadata, table.io, schema, E.AlwaysTrue())
    found, count = [_arrow_schema(schema).empty_table()], 0
    for task, _ in _candidates(table, condition):
        if most is not None and count >= most:
            break
        rows = scan.to_table([task])
        found.append(rows.filter(truth(condition, rows)))
        count += found[-1].num_rows
    return pa.concat_tables(found, promote_options="permissive").slice(0, most)


def _rewrite(tx: CoordinatedTransaction, condition: Condition, change: Callable[[pa.Table], pa.Table | None]) -> int:
    """Put what *change* makes of the rows that match in their place, or nothing; return how many matched."""
    table, count, whole = tx.view, 0, list[DataFile]()

    def partly() -> Iterator[FileScanTask]:
        for task, all_match in _candidates(table, condition):
            if all_match and change is _nothing:
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

    replaced = list(rewritten(table.metadata, table.io, partly(), changed))
    if replaced or whole:
        with tx.update_snapshot().overwrite() as producer:
            for old in whole + [old for old, _ in replaced]:
                producer.delete_data_file(old)
            for new in (new for _, files in replaced for new in files):
                producer.append_data_file(new)
    return count + sum(file.record_count for file in whole)


def _nothing(_: pa.Table) -> None:
    """Leave none of the rows."""


# Columns.


def fitted(values: pa.ChunkedArray | list[Any] | Constant, field: T.NestedField, count: int) -> pa.Array:
    """Return *values* as the column *field* has them.

    Raises:
        StatementError: It can't have one of them.
    """
    kind = schema_to_pyarrow(field.field_type, include_field_ids=False)
    if isinstance(values, pa.ChunkedArray) and values.type == kind and (field.optional or not values.null_count):
        return values
    try:
        if isinstance(values, Constant):
            (fitting,) = all_fit([values.value], field)
            return pa.array([fitting] * count, kind)
        return pa.array(all_fit(_listed(values, count), field), kind)
    except (Misfit, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StatementError(
            "a value does not fit its column", column=field.name, type=field.field_type, reason=error
        ) from error


def _arrow_schema(schema: Schema) -> pa.Schema:
    return schema_to_pyarrow(schema, include_field_ids=False)


# INSERT.


def insert(statement: Insert, tables: Callable[[Name], CoordinatedTable]) -> Answer:
    """Insert the rows of a query, or put them in the place of others."""
    table, count = tables(statement.table), 0

    def plan(tx: CoordinatedTransaction) -> None:
        nonlocal count
        target = tx.view

        def source(name: Name) -> Table:
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
        return said(f"{rows.num_rows} rows inserted into {'.'.join(table.name())}")
    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.OVERWRITE if statement.overwrite else Operation.APPEND)
    name = ".".join(table.name())
    if statement.overwrite:
        return said(f"{count} rows put in the place of what was in {name}")
    return said(f"{count} rows inserted into {name}")


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
        files = list(data_files(target.metadata, rows, target.io))
        written = tx.files.written(files, None)
        tx.files.delete_partitions(files, {}, MAIN_BRANCH)
        tx.files.append_written(files, written, {}, MAIN_BRANCH)


def delete(tx: CoordinatedTransaction, condition: E.BooleanExpression) -> bool:
    """Delete the rows that match; return whether a file may have had any."""
    table = tx.view
    found = any(True for _ in DataScan(table.metadata, table.io, condition).plan_files())
    if found:
        tx.delete(condition)
    return found


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
        raise StatementError("each column takes one value", column=twice[0])
    if len(rows.columns) != len(given):
        raise StatementError(
            "the query has another number of columns than the table takes",
            expected=f"{len(given)} ({', '.join(given)})",
            found=len(rows.columns),
        )
    written = {**fixed, **dict(zip(given, rows.columns, strict=True))}
    arrow = _arrow_schema(schema)
    made = [fitted(written.get(field.name, Constant(None)), field, rows.count) for field in schema.fields]
    return pa.table(made, schema=arrow)


def _partition_columns(statement: Insert, schema: Schema) -> tuple[Mapping[str, Constant], list[str]]:
    """Return the columns that PARTITION fixes, and those that it leaves open."""
    values = statement.partition.values if statement.partition else ()
    named = [(field_of(key, schema).name, value) for key, value in values]
    fixed = {name: Constant(value) for name, value in named if value is not OPEN}
    return fixed, [name for name, value in named if value is OPEN]


# DELETE and UPDATE.


def delete_rows(statement: Delete, table: CoordinatedTable) -> Answer:
    """Delete the rows that match."""
    count = 0

    def plan(tx: CoordinatedTransaction) -> None:
        nonlocal count
        count = _rewrite(tx, _condition(statement, tx.view), _nothing)

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.DELETE)
    return said(f"{count} rows deleted from {'.'.join(table.name())}")


def update_rows(statement: Update, table: CoordinatedTable) -> Answer:
    """Set columns to constants, or to what other columns of the row have."""
    count = 0

    def plan(tx: CoordinatedTransaction) -> None:
        nonlocal count
        seen = tx.view
        condition = _condition(statement, seen)
        assigned = _assigned(statement, seen)

        def change(rows: pa.Table) -> pa.Table:
            made = rows
            for field, value in assigned:
                new = rows.column(value.name) if isinstance(value, T.NestedField) else value
                at = rows.schema.get_field_index(field.name)
                column = fitted(new, field, rows.num_rows)
                made = made.set_column(at, rows.schema.field(at).with_type(column.type), column)
            return made

        change(_arrow_schema(seen.schema()).empty_table())  # What does not fit is refused, whoever matches.
        count = _rewrite(tx, condition, change)

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.UPDATE)
    return said(f"{count} rows of {'.'.join(table.name())} updated")


def _called(statement: Update | Delete, table: Table) -> Called:
    return (statement.alias,) if statement.alias else table.name()


def _assigned(statement: Update, table: Table) -> list[tuple[T.NestedField, T.NestedField | Constant]]:
    schema, called = table.schema(), _called(statement, table)
    found: list[tuple[T.NestedField, T.NestedField | Constant]] = []
    for column, value in statement.values:
        field = column_of(column, schema, called)
        if any(field.field_id == known.field_id for known, _ in found):
            raise StatementError("each column takes one value", column=field.name)
        try:
            new = column_of(value, schema, called) if isinstance(value, sql.Column) else Constant(constant(value))
        except NotAConstant as error:
            raise StatementError("expected a constant or a column; give other updates to Spark", found=error) from None
        found.append((field, new))
    return found


def _condition(statement: Update | Delete, table: Table) -> Condition:
    """Return WHERE for the rows of *table*.

    Raises:
        StatementError: It can't be evaluated here, or names a column that is not there.
    """
    try:
        return bound(statement.where, table.schema(), _called(statement, table))
    except NotAFilter as error:
        raise StatementError(
            "only columns and constants can be compared here; give other conditions to Spark", condition=error
        ) from None
