"""Queries of columns and constants, from one table or none, and counts of rows."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg import types as T
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from sqlglot import ErrorLevel
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.sql.clauses import unknown
from commit_coord.sql.columns import Constant, Rows
from commit_coord.sql.constants import NotAConstant, constant
from commit_coord.sql.matching import count_matching, matching
from commit_coord.sql.names import Tables
from commit_coord.sql.statement import QualifiedName
from commit_coord.sql.where.binding import NotAFilter, bound
from commit_coord.sql.where.columns import Called, column_of, is_of
from commit_coord.sql.where.conditions import Condition


def read(query: sql.Expr, tables: Tables) -> Rows:
    """Return the rows of a query of columns and constants, from one table or none, or their number.

    Raises:
        StatementError: It asks for more. Spark answers that: ``commit_coord.spark.read_table`` brings the table.
    """
    if (counted := _counted(query)) is not None:
        return _count(*counted, query, tables)
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


def _counted(query: sql.Expr) -> tuple[str, sql.Select] | None:
    """Return the name of the count and the query of what is counted, if *query* is ``SELECT count(*) FROM table``."""
    if not isinstance(query, sql.Select) or len(query.expressions) != 1 or query.args.get("limit"):
        return None
    item = query.expressions[0]
    count = item.unalias()
    if not isinstance(count, sql.Count) or not isinstance(count.this, sql.Star) or count.expressions:
        return None
    rows = query.copy()
    rows.set("expressions", [sql.Star()])
    return item.alias or "count(*)", rows


def _count(name: str, rows: sql.Select, query: sql.Expr, tables: Tables) -> Rows:
    source = rows.args.get("from_")
    more = unknown(rows)
    if more is not None or source is None or not isinstance(source.this, sql.Table):
        raise _needs_spark(query, more)
    table, called = _table_and_alias(source.this, tables)
    try:
        condition = _condition(rows, table.schema(), called)
    except (NotAFilter, NotAConstant) as error:
        raise _needs_spark(query, error) from None
    return Rows((name,), ([count_matching(table, condition)],), 1)


def _select(query: sql.Select, source: sql.Table, tables: Tables) -> Rows:
    table, called = _table_and_alias(source, tables)
    limit, schema = query.args.get("limit"), table.schema()
    try:
        chosen = [one for item in query.expressions for one in _chosen(item, schema, called)]
        condition = _condition(query, schema, called)
        most = None if limit is None else _limit(limit.expression)
    except (NotAFilter, NotAConstant) as error:
        raise _needs_spark(query, error) from None
    found = matching(table, condition, most, {one.field_id for _, one in chosen if isinstance(one, T.NestedField)})
    columns = [found.column(one.name) if isinstance(one, T.NestedField) else one for _, one in chosen]
    return Rows(tuple(name for name, _ in chosen), tuple(columns), found.num_rows)


def _table_and_alias(source: sql.Table, tables: Tables) -> tuple[Table, Called]:
    """Return the table *source*, and how the query calls it."""
    table = tables(QualifiedName(source.name, source.db or None))
    return table, (source.alias,) if source.alias else table.name()


def _condition(query: sql.Select, schema: Schema, called: Called) -> Condition:
    where = query.args.get("where")
    return bound(where.this if where is not None else None, schema, called)


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
        "only queries of columns and constants, or of count(*), from one table with a simple WHERE and LIMIT are "
        "supported: run others in Spark, and write their result with commit_coord.spark.write_table",
        query=query.sql(dialect="hive", unsupported_level=ErrorLevel.IGNORE),
        found=found,
    )
