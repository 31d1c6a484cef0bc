"""Row filters in Spark: PyIceberg's expressions as Spark's columns.

The two disagree on NaN: for Spark it is the largest number and equal to itself, for PyIceberg (and Arrow) no
comparison with it holds, and Iceberg's file bounds leave it out. A row filter keeps PyIceberg's meaning in Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyiceberg import expressions as E
from pyiceberg import types as I
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, rewrite_not, visit
from pyiceberg.schema import Schema
from pyspark.sql import Column
from pyspark.sql import functions as F

from commit_coord.spark.schema import SchemaMismatch, spark_type


def parse(expression: E.BooleanExpression | str) -> E.BooleanExpression:
    """Return *expression*, which may be PyIceberg's filter text."""
    if isinstance(expression, str):
        from pyiceberg.expressions import parser

        return parser.parse(expression) if expression else E.AlwaysTrue()
    return expression


def spark_filter(expression: E.BooleanExpression, schema: Schema, column: Callable[[int], Column]) -> Column | None:
    """Return *expression* as a Spark condition with PyIceberg's meaning, None when it is always true.

    Args:
        expression: Unbound.
        schema: What its names refer to.
        column: Gives the column of a field id.

    Raises:
        ValueError: A name is not in *schema*.
    """
    bound = bind(schema, rewrite_not(expression), case_sensitive=True)
    if isinstance(bound, E.AlwaysTrue):
        return None
    return visit(bound, _ToSpark(column))


class _ToSpark(BoundBooleanExpressionVisitor[Column]):
    def __init__(self, column: Callable[[int], Column]) -> None:
        self._column = column

    def _of(self, term: Any) -> Column:
        return self._column(term.ref().field.field_id)

    def _literal(self, term: Any, literal: Any) -> Column:
        return spark_literal(term.ref().field.field_type, literal)

    def _number(self, term: Any, condition: Column) -> Column:
        """A comparison that NaN never passes."""
        if isinstance(term.ref().field.field_type, I.FloatType | I.DoubleType):
            return condition & ~F.isnan(self._of(term))
        return condition

    def visit_in(self, term: Any, literals: set[Any]) -> Column:
        return self._number(term, self._of(term).isin(*[self._literal(term, literal) for literal in literals]))

    def visit_not_in(self, term: Any, literals: set[Any]) -> Column:
        return ~self._of(term).isin(*[self._literal(term, literal) for literal in literals])

    def visit_is_nan(self, term: Any) -> Column:
        return F.isnan(self._of(term))

    def visit_not_nan(self, term: Any) -> Column:
        # To Spark, isnan of NULL is false, and not NULL.
        return self._of(term).isNotNull() & ~F.isnan(self._of(term))

    def visit_is_null(self, term: Any) -> Column:
        return self._of(term).isNull()

    def visit_not_null(self, term: Any) -> Column:
        return self._of(term).isNotNull()

    def visit_equal(self, term: Any, literal: Any) -> Column:
        return self._number(term, self._of(term) == self._literal(term, literal))

    def visit_not_equal(self, term: Any, literal: Any) -> Column:
        return self._of(term) != self._literal(term, literal)

    def visit_greater_than_or_equal(self, term: Any, literal: Any) -> Column:
        return self._number(term, self._of(term) >= self._literal(term, literal))

    def visit_greater_than(self, term: Any, literal: Any) -> Column:
        return self._number(term, self._of(term) > self._literal(term, literal))

    def visit_less_than(self, term: Any, literal: Any) -> Column:
        return self._of(term) < self._literal(term, literal)

    def visit_less_than_or_equal(self, term: Any, literal: Any) -> Column:
        return self._of(term) <= self._literal(term, literal)

    def visit_starts_with(self, term: Any, literal: Any) -> Column:
        return F.startswith(self._of(term), self._literal(term, literal))

    def visit_not_starts_with(self, term: Any, literal: Any) -> Column:
        return ~F.startswith(self._of(term), self._literal(term, literal))

    def visit_true(self) -> Column:
        return F.lit(True)

    def visit_false(self) -> Column:
        return F.lit(False)

    def visit_not(self, child_result: Column) -> Column:
        return ~child_result

    def visit_and(self, left_result: Column, right_result: Column) -> Column:
        return left_result & right_result

    def visit_or(self, left_result: Column, right_result: Column) -> Column:
        return left_result | right_result


def spark_literal(kind: I.IcebergType, literal: Any) -> Column:
    """Return a value as Iceberg stores it (dates as days, timestamps as microseconds) as a typed Spark literal."""
    value = getattr(literal, "value", literal)
    match kind:
        case I.DateType():
            # A date that Python hands over would go through a class of Java's that skips ten days of October 1582.
            return F.date_from_unix_date(F.lit(value))
        case I.TimestamptzType():
            return F.timestamp_micros(F.lit(value).cast("bigint"))
        case I.TimestampType():
            seconds = F.lit(format(Decimal(value).scaleb(-6), "f")).cast("decimal(18,6)")
            return F.lit("1970-01-01").cast("date").cast("timestamp_ntz") + F.make_dt_interval(secs=seconds)
        case I.UUIDType() | I.TimeType():
            raise SchemaMismatch("a filter on this type can't be evaluated in Spark", type=kind)
        case I.DecimalType():
            # With more digits than the column has: a comparison with what it can't hold is right, too.
            return F.lit(format(value, "f")).cast(f"decimal(38,{kind.scale})")
    return F.lit(value).cast(spark_type(kind))
