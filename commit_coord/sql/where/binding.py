"""Conditions from WHERE clauses: names become columns, literals become values of their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pyiceberg import types as T
from pyiceberg.schema import Schema
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.iceberg.values import Misfit, nearest_value
from commit_coord.sql.clauses import unknown
from commit_coord.sql.constants import NotAConstant, constant
from commit_coord.sql.where.columns import Called, column_of
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

_NOT_HASHED = (T.FloatType, T.DoubleType, T.UUIDType, T.FixedType)
"""Types whose values Arrow looks up by other rules than it compares them, or not at all."""

_NEAREST = {(True, 1): "<=", (True, -1): "<", (False, 1): ">", (False, -1): ">="}
"""The operator that replaces an inequality with a literal that no value of the type equals.

By whether it asks for less, and the side of the nearest value on which the literal lies.
"""

_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPERATORS: dict[type[sql.Expr], str] = {sql.EQ: "=", sql.LT: "<", sql.LTE: "<=", sql.GT: ">", sql.GTE: ">="}


class NotAFilter(Exception):
    """A condition says more than is understood here."""


def bound(where: sql.Expr | None, schema: Schema, called: Called = ()) -> Condition:
    """Return what *where* says of rows of *schema*; None is true of each.

    Args:
        where: The clause.
        schema: Of the rows.
        called: What the table is called in the statement, for names such as ``t.a``.

    Raises:
        NotAFilter: It compares something else than columns and constants, say.
        StatementError: It names a column that is not there, or compares one with what its type can't be compared with.
    """
    if where is None:
        return Known(True)
    if (more := unknown(where)) is not None:
        raise NotAFilter(more)
    return _Binder(schema, called).condition(where)


@dataclass(frozen=True, slots=True)
class _Binder:
    schema: Schema
    called: Called

    def condition(self, where: sql.Expr) -> Condition:
        match where:
            case sql.Paren(this=inner):
                return self.condition(inner)
            case sql.And():
                return Every(tuple(map(self.condition, where.flatten())))
            case sql.Or():
                return Some(tuple(map(self.condition, where.flatten())))
            case sql.Not(this=inner):
                return Negated(self.condition(inner))
            case sql.Boolean(this=truth):
                return Known(truth)
            case sql.Null():
                return Known(None)
            case sql.Column():
                return self._compared(self._field(where), "=", True)
            case sql.Is(this=sql.Column() as column, expression=sql.Null()):
                return IsNull(self._field(column))
            case sql.Is(this=sql.Column() as column, expression=sql.Boolean(this=truth)):
                return self._same(self._field(column), truth)
            case sql.In(this=sql.Column() as column, expressions=[*values]):
                return self._in(self._field(column), values)
            case sql.Between(this=sql.Column() as column):
                field, low, high = self._field(column), self._value(where.args["low"]), self._value(where.args["high"])
                return Every((self._compared(field, ">=", low), self._compared(field, "<=", high)))
            case sql.Escape(this=sql.Like() as like, expression=sql.Literal(this=escape, is_string=True)):
                return self._like(like, escape)
            case sql.Like():
                return self._like(where, "\\")
            case sql.Binary(this=sql.Column() as column, expression=other):
                return self._binary(where, column, other, mirrored=False)
            case sql.Binary(this=other, expression=sql.Column() as column):
                return self._binary(where, column, other, mirrored=True)
        raise NotAFilter(where.sql(dialect="hive"))

    def _binary(self, where: sql.Expr, column: sql.Column, other: sql.Expr, *, mirrored: bool) -> Condition:
        match where:
            case sql.NEQ():
                return Negated(self._compared(self._field(column), "=", self._value(other)))
            case sql.NullSafeEQ():
                return self._same(self._field(column), self._value(other))
            case sql.NullSafeNEQ():
                return Negated(self._same(self._field(column), self._value(other)))
        if (operator := _OPERATORS.get(type(where))) is None:
            raise NotAFilter(where.sql(dialect="hive"))
        return self._compared(self._field(column), _MIRRORED[operator] if mirrored else operator, self._value(other))

    def _field(self, column: sql.Column) -> T.NestedField:
        return column_of(column, self.schema, self.called)

    def _value(self, written: sql.Expr) -> Any:
        try:
            return constant(written)
        except NotAConstant as error:
            raise NotAFilter(error) from None

    def _same(self, field: T.NestedField, value: Any) -> Condition:
        """Return that *field* is *value*, where NULL is a value as any other."""
        if value is None:
            return IsNull(field)
        return Every((Negated(IsNull(field)), self._compared(field, "=", value)))

    def _in(self, field: T.NestedField, values: Sequence[sql.Expr]) -> Condition:
        if not values:
            raise StatementError("expected a value between the brackets of IN", column=field.name)
        found = [self._compared(field, "=", self._value(value)) for value in values]
        if isinstance(field.field_type, _NOT_HASHED):
            return Some(tuple(found))
        equal = tuple(one.value for one in found if isinstance(one, Compared))
        return Some((Among(field, equal), *(one for one in found if not isinstance(one, Compared))))

    def _like(self, like: sql.Expr, escape: str) -> Condition:
        if not isinstance(like.this, sql.Column):
            raise NotAFilter(like.sql(dialect="hive"))
        field, pattern = self._field(like.this), self._value(like.expression)
        if not isinstance(field.field_type, T.StringType) or not isinstance(pattern, str | None):
            _incomparable(field, pattern, "LIKE compares texts")
        if pattern is None:
            return Known(None)
        found = Like(field, _regular(pattern, escape))
        return Negated(found) if like.args.get("negate") else found

    def _compared(self, field: T.NestedField, operator: str, value: Any) -> Condition:
        """Return the comparison with a value of the column's type, or what it is where the type has no such value."""
        kind = field.field_type
        if not kind.is_primitive:
            _incomparable(field, value, "a list, map or struct can only be compared with NULL, by IS NULL")
        if value is None:
            return Known(None)
        if isinstance(kind, T.BooleanType) and operator != "=":
            _incomparable(field, value, "truth values have no order")
        if isinstance(kind, T.StringType) and not isinstance(value, str):
            _incomparable(field, value, "the column has texts: write the value in quotes")
        try:
            near, side = nearest_value(value, kind)
        except Misfit as error:
            _incomparable(field, value, str(error))
        # Where the literal is not `near` itself, no value of the type lies between the two: n < 2.5 is n <= 2.
        if side and operator == "=":
            return Settled(field, False)
        if near is None:
            return Settled(field, (operator in {"<", "<="}) == (side > 0))
        if side:
            operator = _NEAREST[operator in {"<", "<="}, side]
        return Compared(field, operator, near)


def _incomparable(field: T.NestedField, value: Any, reason: str) -> NoReturn:
    raise StatementError(
        "the column can't be compared with this value",
        column=field.name,
        type=field.field_type,
        value=value,
        reason=reason,
    )


def _regular(pattern: str, escape: str) -> str:
    """Return a LIKE pattern as a regular expression."""
    if len(escape) != 1:
        raise StatementError("ESCAPE takes one character", found=escape)
    made, marks = [], iter(pattern)
    for mark in marks:
        if mark == escape:
            literal = next(marks, None)
            if literal is None:
                raise StatementError("a LIKE pattern must not end in its escape character", value=pattern)
            made.append(re.escape(literal))
        else:
            made.append({"%": ".*", "_": "."}.get(mark) or re.escape(mark))
    return f"(?s)\\A(?:{''.join(made)})\\z"
