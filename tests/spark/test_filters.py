"""A row filter takes the same rows in Spark as in PyIceberg's scan."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from pyiceberg import expressions as E
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commit_coord.spark import read_table, write_table
from commit_coord.spark.filters import parse, spark_filter

VALUES: dict[str, Sequence[Any]] = {
    "i": [0, 1, -1, 2**31 - 1, -(2**31)],
    "l": [0, 5, 2**63 - 1, -(2**63)],
    "f": [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan],
    "d": [0.0, -0.0, 0.1, math.inf, 1e300, math.nan],
    "s": ["", "a", "A", "ab", "é", "\U0001f600"],
    "b": [b"", b"\x00", b"abc", b"\xff"],
    "dc": [Decimal("0.000"), Decimal("1.500"), Decimal("-1.500")],
    "da": [dt.date(1970, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)],
    "bo": [True, False],
    "st.x": [1.5, math.nan],
    "st.y": ["a", "b"],
}
COLUMNS = (
    "id long, i int, l long, f float, d double, s string, b binary, dc decimal(12,3), da date, bo boolean, "
    "st struct<x: double, y: string>"
)
ROWS, FILTERS, READ = 60, 150, 8


class Filters:
    """Random filters, and random rows.

    Args:
        seed: The same one makes the same.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, column: str) -> Any:
        return None if self._random.random() < 0.3 else self._random.choice(VALUES[column])

    def row(self, number: int) -> tuple[Any, ...]:
        top = [self.value(column) for column in VALUES if "." not in column]
        struct = None if self._random.random() < 0.3 else (self.value("st.x"), self.value("st.y"))
        return (number, *top, struct)

    def condition(self, depth: int = 3) -> E.BooleanExpression:
        made: Any
        match self._random.choice(["one", "one", "not", "and", "or"]) if depth else "one":
            case "not":
                return E.Not(self.condition(depth - 1))
            case "and" | "or" as kind:
                made = E.And if kind == "and" else E.Or
                result: E.BooleanExpression = made(self.condition(depth - 1), self.condition(depth - 1))
                return result
        return self.comparison()

    def comparison(self) -> E.BooleanExpression:
        column = self._random.choice(list(VALUES))
        numbers = [value for value in VALUES[column] if not (isinstance(value, float) and math.isnan(value))]
        literals = [value.isoformat() if isinstance(value, dt.date) else value for value in numbers]
        unary: list[Any] = [E.IsNull, E.NotNull]
        if any(isinstance(value, float) for value in literals):
            unary += [E.IsNaN, E.NotNaN]
        kinds: list[Any] = [E.EqualTo, E.NotEqualTo]
        kinds += [E.LessThan, E.LessThanOrEqual, E.GreaterThan, E.GreaterThanOrEqual]
        if isinstance(literals[0], str) and column != "da":
            kinds += [E.StartsWith, E.NotStartsWith]
        kind = self._random.choice([*unary, *kinds, E.In, E.NotIn])
        if kind in unary:
            made = kind(column)
        elif kind in (E.In, E.NotIn):
            made = kind(column, self._random.sample(literals, self._random.randint(1, len(literals))))
        else:
            made = kind(column, self._random.choice(literals))
        result: E.BooleanExpression = made
        return result


@pytest.mark.parametrize("partition_by", [[], ["d"], ["bo", "truncate(1, s)"]], ids=str)
def test_a_row_filter_takes_the_rows_that_a_scan_takes(
    spark: SparkSession, catalog: Any, partition_by: list[str]
) -> None:
    filters = Filters(len(partition_by))
    df = spark.createDataFrame([filters.row(number) for number in range(ROWS)], COLUMNS).coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True, partition_by=partition_by)
    tried = [parse("d is not nan"), E.Not(parse("d is nan")), *(filters.condition() for _ in range(FILTERS))]
    expected = [sorted(table.scan(row_filter=each).to_arrow()["id"].to_pylist()) for each in tried]

    def column(field_id: int) -> Any:
        return F.col(table.schema().find_column_name(field_id) or "")

    chosen = [spark_filter(each, table.schema(), column) for each in tried]
    numbers = F.array_compact(F.array(*[F.when(each, F.lit(n)) for n, each in enumerate(chosen) if each is not None]))
    found: list[list[int]] = [[] for _ in tried]
    for row in read_table(spark, table).select("id", numbers.alias("passed")).collect():
        for number in row.passed:
            found[number].append(row.id)
    wrong = [str(each) for each, ours, theirs in zip(tried, found, expected, strict=True) if sorted(ours) != theirs]
    assert not wrong

    reads = [read_table(spark, table, row_filter=each).select(F.lit(n), "id") for n, each in enumerate(tried[:READ])]
    both = sorted(tuple(row) for row in reduce(DataFrame.unionAll, reads).collect())
    assert [(n, number) for n in range(READ) for number in expected[n]] == both
