"""WHERE clauses: what they say of each row, and which files and partitions need not be looked at.

A clause is bound to a schema first: names become columns, and each literal becomes a value of the column that it meets.
What is bound has SQL's three truth values. NULL compares as unknown. NaN equals itself and is greater than every other
number, as in Spark, DuckDB and PostgreSQL. A number that the column's type does not have compares by its size:
``n < 2.5`` and ``n = 3000000000`` are what they are in arithmetic; nothing is rounded to fit. With a ``float`` or
``double`` column a literal is a double, as in Spark: the ``float`` that is nearest to 0.1 is greater than 0.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import isnan
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from pyiceberg import expressions as E
from pyiceberg import types as T
from pyiceberg.schema import Schema
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.iceberg.values import Misfit, beside
from commit_coord.sql.clauses import unknown
from commit_coord.sql.constants import NotAConstant, constant

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_HASHED = (T.FloatType, T.DoubleType, T.UUIDType, T.FixedType)
"""Types whose values Arrow looks up by other rules than it compares them, or not at all."""

_BESIDE = {(True, 1): "<=", (True, -1): "<", (False, 1): ">", (False, -1): ">="}
"""What an inequality with a literal is of the value beside it: whether it is < or <=, and on which side it lies."""

_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_OPERATORS: dict[type[sql.Expr], str] = {sql.EQ: "=", sql.LT: "<", sql.LTE: "<=", sql.GT: ">", sql.GTE: ">="}


@dataclass(frozen=True, slots=True)
class Known:
    """Is the same for every row; None is unknown."""

    truth: bool | None


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column is NULL; never unknown."""

    field: T.NestedField


@dataclass(frozen=True, slots=True)
class Settled:
    """The same for every value of a column, unknown where it is NULL."""

    field: T.NestedField
    truth: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A column compared with a value of its type."""

    field: T.NestedField
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class Among:
    """A column is one of the values of its type, which equal each other where they are the same to Arrow."""

    field: T.NestedField
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Like:
    """A column has the form of a pattern, a regular expression."""

    field: T.NestedField
    pattern: str


@dataclass(frozen=True, slots=True)
class Every:
    """AND."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """OR."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """NOT."""

    inner: Condition


Condition = Known | IsNull | Settled | Compared | Among | Like | Every | Some | Negated


Called = tuple[str, ...]
"""What a table is called in a statement: its alias, or its database and its own name."""


class NotAFilter(Exception):
    """A condition says more than is understood here."""


# Binding: names and literals.


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


def is_of(column: sql.Column, called: Called) -> bool:
    """Return whether *column* names no table, or the one that is *called* so, in whatever case."""
    before = [part.name.lower() for part in column.parts[:-1]]
    return not before or before == [part.lower() for part in called][-len(before) :]


def column_of(column: sql.Column, schema: Schema, called: Called = ()) -> T.NestedField:
    """Return the column of *schema* that *column* names, in whatever case.

    Raises:
        StatementError: There is none, or there are two.
    """
    if not is_of(column, called):
        raise StatementError(
            "this name is neither of the table nor a column: fields of structs are not read here",
            column=".".join(part.name for part in column.parts),
        )
    return field_of(column.name, schema)


def field_of(name: str, schema: Schema) -> T.NestedField:
    """Return the column of *schema* called *name*, in whatever case.

    Raises:
        StatementError: There is none, or there are two.
    """
    if (found := known_field(name, schema)) is None:
        raise _misnamed("there is no such column", name, schema)
    return found


def known_field(name: str, schema: Schema) -> T.NestedField | None:
    """Return the column of *schema* called *name*, in whatever case; None where there is none.

    Raises:
        StatementError: There are two.
    """
    found = [field for field in schema.fields if field.name == name] or [
        field for field in schema.fields if field.name.lower() == name.lower()
    ]
    if len(found) > 1:
        raise _misnamed("two columns differ by case alone: write the name as it is", name, schema)
    return found[0] if found else None


def _misnamed(what: str, name: str, schema: Schema) -> StatementError:
    return StatementError(what, column=name, accepted=", ".join(field.name for field in schema.fields))


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
            near, side = beside(value, kind)
        except Misfit as error:
            _incomparable(field, value, str(error))
        # Where the literal lies beside `near`, no value of the type lies between the two: n < 2.5 is n <= 2.
        if side and operator == "=":
            return Settled(field, False)
        if near is None:
            return Settled(field, (operator in {"<", "<="}) == (side > 0))
        if side:
            operator = _BESIDE[operator in {"<", "<="}, side]
        return Compared(field, operator, near)


def _incomparable(field: T.NestedField, value: Any, reason: str) -> NoReturn:
    raise StatementError(
        "the column can't be compared with this", column=field.name, type=field.field_type, value=value, reason=reason
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


def column_ids(condition: Condition) -> set[int]:
    """Return the numbers of the columns that *condition* looks at."""
    match condition:
        case Known():
            return set()
        case Negated(inner=inner):
            return column_ids(inner)
        case Every(parts=parts) | Some(parts=parts):
            return set().union(*map(column_ids, parts))
    return {condition.field.field_id}


# Rows.


def truth(condition: Condition, rows: pa.Table) -> Any:
    """Return what *condition* is for each of *rows*: true, false or null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    match condition:
        case Known(truth=known):
            return pa.array([known] * rows.num_rows, pa.bool_())
        case IsNull(field=field):
            return _flat(rows.column(field.name).is_null())
        case Settled(field=field, truth=settled):
            return pc.if_else(_flat(rows.column(field.name).is_null()), pa.scalar(None, pa.bool_()), settled)
        case Compared(field=field, operator=operator, value=value):
            return _flat(_compare(rows.column(field.name), operator, value))
        case Among(field=field, values=values):
            column = _flat(rows.column(field.name))
            found = pc.is_in(column, pa.array(values, column.type))
            return pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), found)
        case Like(field=field, pattern=pattern):
            return _flat(pc.match_substring_regex(rows.column(field.name), pattern))
        case Every(parts=parts):
            return reduce(pc.and_kleene, (truth(part, rows) for part in parts))
        case Some(parts=parts):
            return reduce(pc.or_kleene, (truth(part, rows) for part in parts))
        case Negated(inner=inner):
            return pc.invert(truth(inner, rows))


def _flat(column: Any) -> Any:
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _compare(column: Any, operator: str, value: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if isinstance(value, UUID):
        column, value, kind = column.cast(pa.binary(16)).cast(pa.binary()), value.bytes, pa.binary()
    elif pa.types.is_fixed_size_binary(kind):
        column, kind = column.cast(pa.binary()), pa.binary()
    elif pa.types.is_floating(kind) and isnan(value):
        # NaN is one with itself and above all others: what counts is whether a number is NaN.
        column, value, kind = pc.is_nan(column).cast(pa.int8()), 1, pa.int8()
    found = getattr(pc, _ARROW[operator])(column, pa.scalar(value, kind))
    return pc.or_(found, pc.is_nan(column)) if pa.types.is_floating(kind) and operator in {">", ">="} else found


_ARROW = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


# Files and partitions.


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
