"""WHERE clauses as PyIceberg's row filters, as far as they can be."""

from __future__ import annotations

from typing import Any

from pyiceberg import expressions as E
from sqlglot import expressions as sql

_COMPARED: dict[type[sql.Expr], tuple[type[Any], type[Any]]] = {
    sql.EQ: (E.EqualTo, E.EqualTo),
    sql.LT: (E.LessThan, E.GreaterThan),
    sql.LTE: (E.LessThanOrEqual, E.GreaterThanOrEqual),
    sql.GT: (E.GreaterThan, E.LessThan),
    sql.GTE: (E.GreaterThanOrEqual, E.LessThanOrEqual),
}
"""Each comparison, and what it is with its sides exchanged."""


_OPPOSITE: dict[type[sql.Expr], type[sql.Expr]] = {
    sql.EQ: sql.NEQ,
    sql.NEQ: sql.EQ,
    sql.LT: sql.GTE,
    sql.LTE: sql.GT,
    sql.GT: sql.LTE,
    sql.GTE: sql.LT,
}


class NotAFilter(Exception):
    """A condition says more than a row filter can."""


def row_filter(condition: sql.Expr) -> E.BooleanExpression:
    """Return the row filter that *condition* is.

    Raises:
        NotAFilter: It is none; *condition* compares something else than columns and constants, say.
    """
    match condition:
        case sql.Paren(this=inner):
            return row_filter(inner)
        case sql.And(this=left, expression=right):
            return E.And(row_filter(left), row_filter(right))
        case sql.Or(this=left, expression=right):
            return E.Or(row_filter(left), row_filter(right))
        case sql.Not(this=inner):
            return _negated(inner)
        # In SQL no comparison holds for NULL. Iceberg takes NULL for something that differs from every value.
        case (
            sql.NEQ(this=sql.Column() as column, expression=other)
            | sql.NEQ(this=other, expression=sql.Column() as column)
        ):
            return E.And(E.NotEqualTo(term=column.name, value=constant(other)), E.NotNull(term=column.name))
        case sql.Is(this=sql.Column() as column, expression=sql.Null()):
            return E.IsNull(term=column.name)
        case sql.In(this=sql.Column() as column, expressions=[_, *_] as values):
            return E.In(term=column.name, literals=[constant(value) for value in values])
        case sql.Between(this=sql.Column() as column):
            low, high = constant(condition.args["low"]), constant(condition.args["high"])
            return E.And(
                E.GreaterThanOrEqual(term=column.name, value=low), E.LessThanOrEqual(term=column.name, value=high)
            )
        case sql.Binary(this=sql.Column() as column, expression=other) if type(condition) in _COMPARED:
            return _COMPARED[type(condition)][0](column.name, constant(other))  # type: ignore[no-any-return]
        case sql.Binary(this=other, expression=sql.Column() as column) if type(condition) in _COMPARED:
            return _COMPARED[type(condition)][1](column.name, constant(other))  # type: ignore[no-any-return]
    raise NotAFilter(condition.sql(dialect="hive"))


def _negated(condition: sql.Expr) -> E.BooleanExpression:
    """Return the row filter of the rows for which *condition* is false, not NULL."""
    match condition:
        case sql.Paren(this=inner):
            return _negated(inner)
        case sql.Not(this=inner):
            return row_filter(inner)
        case sql.And(this=left, expression=right):
            return E.Or(_negated(left), _negated(right))
        case sql.Or(this=left, expression=right):
            return E.And(_negated(left), _negated(right))
        case sql.Is(this=sql.Column() as column, expression=sql.Null()):
            return E.NotNull(term=column.name)
        case sql.In(this=sql.Column() as column, expressions=[_, *_] as values):
            found = [constant(value) for value in values]
            return E.And(E.NotIn(term=column.name, literals=found), E.NotNull(term=column.name))
        case sql.Between(this=column):
            low, high = condition.args["low"], condition.args["high"]
            return E.Or(
                row_filter(sql.LT(this=column, expression=low)), row_filter(sql.GT(this=column, expression=high))
            )
        case sql.Binary(this=left, expression=right) if type(condition) in _OPPOSITE:
            return row_filter(_OPPOSITE[type(condition)](this=left, expression=right))
    raise NotAFilter(condition.sql(dialect="hive"))


def weakest_filter(condition: sql.Expr) -> E.BooleanExpression:
    """Return a row filter that is true wherever *condition* is: parts of a conjunction that are none are left out."""
    conjuncts = condition.flatten() if isinstance(condition, sql.And) else [condition]
    known: list[E.BooleanExpression] = []
    for one in conjuncts:
        try:
            known.append(row_filter(one))
        except NotAFilter:
            continue
    return E.And(E.AlwaysTrue(), E.AlwaysTrue(), *known)


def constant(value: sql.Expr) -> Any:
    """Return the value of a constant.

    Raises:
        NotAFilter: It is none, or NULL, with which nothing can be compared.
    """
    match value:
        case sql.Paren(this=inner):
            return constant(inner)
        case sql.Neg(this=inner):
            return -constant(inner)
        case sql.Boolean(this=truth):
            return truth
        case sql.Literal(this=text, is_string=True):
            return text
        case sql.Literal(this=text):
            return float(text) if any(mark in text.lower() for mark in ".e") else int(text)
        case (
            sql.Cast(this=sql.Literal(this=text, is_string=True))
            | sql.TsOrDsToDate(this=sql.Literal(this=text, is_string=True))
        ):
            return text  # DATE '2026-01-01': PyIceberg reads the text as the column's type has it.
    raise NotAFilter(value.sql(dialect="hive"))
