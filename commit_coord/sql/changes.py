"""DELETE and UPDATE. Each is a plan that runs again when the commit loses a race; see ``inserts``."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg import types as T
from pyiceberg.table import Table
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.iceberg.nulls import empty
from commit_coord.protocol.hierarchy import Operation
from commit_coord.sql.columns import Constant, arrow_schema, fitted
from commit_coord.sql.constants import NotAConstant, constant
from commit_coord.sql.matching import nothing, rewrite
from commit_coord.sql.show import Answer, message
from commit_coord.sql.statement import Delete, Update
from commit_coord.sql.where.binding import NotAFilter, bound
from commit_coord.sql.where.columns import Called, column_of
from commit_coord.sql.where.conditions import Condition
from commit_coord.table import CoordinatedTable
from commit_coord.table.transaction import CoordinatedTransaction


def delete_rows(statement: Delete, table: CoordinatedTable) -> Answer:
    """Delete the rows that match."""
    count = 0

    def plan(tx: CoordinatedTransaction) -> None:
        nonlocal count
        count = rewrite(tx, _condition(statement, tx.view), nothing)

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.DELETE)
    return message(f"{count} rows deleted from {'.'.join(table.name())}")


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

        change(empty(arrow_schema(seen.schema())))  # What does not fit is refused, even if no row matches.
        count = rewrite(tx, condition, change)

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.UPDATE)
    return message(f"{count} rows of {'.'.join(table.name())} updated")


def _called(statement: Update | Delete, table: Table) -> Called:
    return (statement.alias,) if statement.alias else table.name()


def _assigned(statement: Update, table: Table) -> list[tuple[T.NestedField, T.NestedField | Constant]]:
    schema, called = table.schema(), _called(statement, table)
    found: list[tuple[T.NestedField, T.NestedField | Constant]] = []
    for column, value in statement.values:
        field = column_of(column, schema, called)
        if any(field.field_id == known.field_id for known, _ in found):
            raise StatementError("a column gets more than one value", column=field.name)
        try:
            new = column_of(value, schema, called) if isinstance(value, sql.Column) else Constant(constant(value))
        except NotAConstant as error:
            raise StatementError("expected a constant or a column: run other updates in Spark", found=error) from None
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
            "only comparisons of columns with constants are supported: run statements with others in Spark",
            condition=error,
        ) from None
