"""WHERE clauses as PyIceberg's row filters, as far as they can be."""

from __future__ import annotations

from typing import Any

from pyiceberg import expressions as E
from sqlglot import expressions as sql

_COMPARED: dict[type[sql.Expr], tuple[type[Any], type[Any]]] = {
    sql.EQ: (E.EqualTo, E.EqualTo),
    sql.NEQ: (E.NotEqualTo, E.NotEqualTo),
    sql.LT: (E.LessThan, E.GreaterThan),
    sql.LTE: (E.LessThanOrEqual, E.GreaterThanOrEqual),
    sql.GT: (E.GreaterThan, E.LessThan),
    sql.GTE: (E.GreaterThanOrEqual, E.LessThanOrEqual),
}
"""Each comparison, and what it is with its sides exchanged."""


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
            return E.Not(row_filter(inner))
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
