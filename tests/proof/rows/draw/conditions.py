"""Conditions, drawn for a table."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

from pyiceberg.types import BooleanType, DoubleType, FloatType, ListType, MapType, StructType, UUIDType

from commit_coord.testing.table_files.state import State
from tests.proof.rows.draw.dice import POOLS, Dice
from tests.proof.rows.draw.tables import PRIMITIVES
from tests.proof.rows.model.conditions import Always, And, Compare, In, IsNull, Not, NotNull, Or, Stated, Where


def where(dice: Dice, state: State, depth: int = 1, *, between: bool = False) -> Where:
    """Return a condition on the columns of *state*; with *between* also with what lies between two of their values."""
    if depth and dice.chance(20):
        left, right = (where(dice, state, depth - 1, between=between) for _ in range(2))
        if isinstance(left, Always) or isinstance(right, Always):
            return left
        return And(left, right) if dice.chance(50) else Or(left, right)
    if dice.chance(5) or not state.fields.fields:
        return Always()
    column = dice.column(state.fields.fields)
    name, kind = column.name, column.field_type
    if isinstance(kind, StructType) and dice.chance(70):
        inner = dice.one(kind.fields)
        name, kind = f"{name}.{inner.name}", inner.field_type
    if isinstance(kind, ListType | MapType):
        return Always()  # PyIceberg has no conditions on these
    if not kind.is_primitive or isinstance(kind, UUIDType) or dice.chance(15):
        return IsNull(name) if dice.chance(50) else NotNull(name)
    if dice.chance(15):
        pool = [v for v in POOLS[str(kind)] if not isinstance(v, float) or not math.isnan(v)]
        return In(name, tuple(dice.some(pool, 2, 3)))
    others = (*_BEYOND.get(str(kind), ()), *(_BETWEEN.get(str(kind), ()) if between else ()))
    compared = dice.one(others) if others and dice.chance(25) else dice.value(str(kind))
    if isinstance(compared, float) and math.isnan(compared):
        return NotNull(name)
    ops = ("==",) if isinstance(kind, BooleanType) else ("==", "==", "<", "<=", ">", ">=")
    if not isinstance(kind, FloatType | DoubleType) and dice.chance(10):
        return Compare(name, "!=", compared)
    return Compare(name, dice.one(ops), compared)


_BEYOND: dict[str, tuple[Any, ...]] = {
    "int": (2**40, -(2**40)),
    "long": (2**40, -(2**40)),
    "double": (1e-300, -1e-300, 1.5000000001, -2.2500000001, 1e300, -1e300),
    "decimal(9, 2)": (Decimal("12345678.00"), Decimal("-12345678.00")),
    "decimal(18, 2)": (Decimal("12345678.00"), Decimal("-12345678.00")),
}
"""Constants that a column, or its files from before it was promoted, can't have."""

_BETWEEN: dict[str, tuple[Any, ...]] = {
    "int": (Decimal("0.5"), Decimal("-1.5")),
    "long": (Decimal("0.5"), Decimal("3.25"), Decimal("-0.0001")),
    "decimal(9, 2)": (Decimal("1.255"), Decimal("-0.001")),
    "decimal(18, 2)": (Decimal("456.775"), Decimal("0.0000001")),
    "date": tuple(
        dt.datetime.combine(day, time)
        for day in (dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(2024, 2, 29))
        for time in (dt.time(), dt.time(12), dt.time(23, 59, 59, 999_999))
    ),
    "timestamptz": tuple(
        dt.datetime(2024, 2, 29, 12, 0, 0, 1, dt.UTC).astimezone(dt.timezone(dt.timedelta(hours=hours)))
        for hours in (2, -11)
    ),
}
"""Constants between two that a column can have. PyIceberg's own client and other engines round some of them."""


def simple_where(dice: Dice, state: State) -> Where:
    """Return a condition that our SQL takes."""
    columns = [f for f in state.fields.fields if str(f.field_type) in TYPED]
    if not columns or dice.chance(10):
        return Always()
    found = where(dice, replace(state, fields=StructType(*columns)))
    if isinstance(found, Always):
        return found
    if isinstance(found, Compare) and dice.chance(15):
        found = replace(found, op="!=")
    if isinstance(found, Compare) and isinstance(found.value, float) and dice.chance(40):
        found = replace(found, value=dice.one(_OUT_OF_RANGE))
    return Stated(Not(found) if dice.chance(25) else found)


TYPED = {"uuid", *(str(kind) for kind in PRIMITIVES)}
"""Types that have a literal in SQL."""

_OUT_OF_RANGE = (math.nan, 0.1, -0.1, 16777217.0, 3.4028235e38, 1e39, -1e39)
"""Numbers that no float is."""
