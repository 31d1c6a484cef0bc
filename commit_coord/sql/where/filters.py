"""PyIceberg's row filters of conditions: which files and partitions need not be looked at."""

from __future__ import annotations

from math import isnan
from typing import Any

from pyiceberg import expressions as E
from pyiceberg import types as T
from pyiceberg.schema import Schema
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.sql.where.binding import NotAFilter, bound
from commit_coord.sql.where.conditions import (
    Among,
    Compared,
    Condition,
    Every,
    IsNull,
    Known,
    Like,
    Negated,
    Settled,
    Some,
)

_NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def row_filter(condition: Condition) -> tuple[E.BooleanExpression, bool]:
    """Return a row filter that is true wherever *condition* is, and whether it is true nowhere else."""
    return _filter(condition, negated=False)


def weakest_filter(where: sql.Expr, schema: Schema) -> E.BooleanExpression:
    """Return a row filter that is true wherever *where* is: parts of a conjunction that are none are left out."""
    known: list[E.BooleanExpression] = []
    for one in where.flatten() if isinstance(where, sql.And) else [where]:
        try:
            known.append(row_filter(bound(one, schema))[0])
        except (NotAFilter, StatementError):
            continue
    return E.And(E.AlwaysTrue(), E.AlwaysTrue(), *known)


def _filter(condition: Condition, *, negated: bool) -> tuple[E.BooleanExpression, bool]:
    """Return the filter of the rows for which *condition* is true, or false; not of those for which it is unknown."""
    match condition:
        case Known(truth=known):
            return (E.AlwaysTrue() if known is not None and known != negated else E.AlwaysFalse()), True
        case IsNull(field=field):
            return (E.NotNull(term=field.name) if negated else E.IsNull(term=field.name)), True
        case Settled(field=field, truth=settled):
            return (E.NotNull(term=field.name) if settled != negated else E.AlwaysFalse()), True
        case Compared(field=field, operator=operator, value=value):
            return _pushed(field, _NEGATED[operator] if negated else operator, value), True
        case Among(field=field, values=values) if negated:
            return E.And(E.NotIn(term=field.name, literals=values), E.NotNull(term=field.name)), True
        case Among(field=field, values=values):
            return E.In(term=field.name, literals=values), True
        case Like(field=field):
            return E.NotNull(term=field.name), False
        case Negated(inner=inner):
            return _filter(inner, negated=not negated)
        case Every(parts=parts) | Some(parts=parts):
            found = [_filter(part, negated=negated) for part in parts]
            filters, exact = [part for part, _ in found], all(exactly for _, exactly in found)
            if isinstance(condition, Every) != negated:
                return E.And(E.AlwaysTrue(), E.AlwaysTrue(), *filters), exact
            return E.Or(E.AlwaysFalse(), E.AlwaysFalse(), *filters), exact


def _pushed(field: T.NestedField, operator: str, value: Any) -> E.BooleanExpression:
    name, floating = field.name, isinstance(field.field_type, T.FloatType | T.DoubleType)
    if floating and isnan(value):
        nan: dict[str, E.BooleanExpression] = {
            "=": E.IsNaN(term=name),
            ">=": E.IsNaN(term=name),
            "<>": E.And(E.NotNaN(term=name), E.NotNull(term=name)),
            "<": E.And(E.NotNaN(term=name), E.NotNull(term=name)),
            "<=": E.NotNull(term=name),
            ">": E.AlwaysFalse(),
        }
        return nan[operator]
    match operator:
        case "=":
            return E.EqualTo(term=name, value=value)
        case "<>":
            return E.And(E.NotEqualTo(term=name, value=value), E.NotNull(term=name))
        case "<":
            return E.LessThan(term=name, value=value)
        case "<=":
            return E.LessThanOrEqual(term=name, value=value)
        case ">":
            found: E.BooleanExpression = E.GreaterThan(term=name, value=value)
        case _:
            found = E.GreaterThanOrEqual(term=name, value=value)
    return E.Or(found, E.IsNaN(term=name)) if floating else found
