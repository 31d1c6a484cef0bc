"""Chance: every choice of a program, and the values that its rows and conditions have."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType, UUIDType

from commit_coord.testing.table_files.state import State
from commit_coord.testing.table_files.values import Named

T = TypeVar("T")

NAMES = ("a", "b", "c", "d", "e", "f")
ALL_NAMES = ("k", *NAMES[:3])


class Dice:
    """Every choice of a program.

    Args:
        seed: Of the same seed come the same choices.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"rows {seed}")
        self._favourites: dict[str, list[Any]] = {}
        self._last = "a"

    def number(self, low: int, high: int) -> int:
        """Return a number between both, inclusive."""
        return self._random.randint(low, high)

    def chance(self, percent: int) -> bool:
        """Return True in so many of 100 cases."""
        return self.number(1, 100) <= percent

    def one(self, things: Sequence[T]) -> T:
        """Return one of *things*."""
        return things[self.number(0, len(things) - 1)]

    def some(self, things: Sequence[T], least: int, most: int) -> list[T]:
        """Return so many of *things*, in their order."""
        count = min(self.number(least, most), len(things))
        left = list(range(len(things)))
        while len(left) > count:
            left.pop(self.number(0, len(left) - 1))
        return [things[i] for i in left]

    def favourite(self, what: str, things: Sequence[T], count: int, percent: int = 70) -> T:
        """Return one of *things*, mostly one of the few that this program prefers: so that its steps meet."""
        if what not in self._favourites:
            self._favourites[what] = self.some(things, count, count)
        preferred: Sequence[T] = self._favourites[what]
        return self.one(preferred if self.chance(percent) else things)

    def value(self, pool: str) -> Any:
        """Return a value of a pool."""
        return self.favourite(pool, POOLS[pool], 3)

    def column(self, fields: Sequence[NestedField]) -> NestedField:
        """Return one of *fields*, mostly one whose name this program prefers."""
        name = self.favourite("names", ALL_NAMES, 2)
        return next((f for f in fields if f.name == name), None) or self.one(fields)

    def client(self) -> str:
        """Return who does the next step: often who did the last one, while the others' tables grow old."""
        if not self.chance(40):
            self._last = self.weighed(((5, "a"), (4, "b"), (2, "s")))
        return self._last

    def weighed(self, things: Sequence[tuple[int, T]]) -> T:
        """Return one of *things*, by their weights."""
        at = self.number(1, sum(weight for weight, _ in things))
        for weight, thing in things:
            at -= weight
            if at <= 0:
                return thing
        raise AssertionError


# Values that have broken something before, or might.

POOLS: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "int": (0, 1, 2, -1, 7, 2**31 - 1, 8 - 2**31, -(2**31)),
    "long": (0, 1, 2, 3, 4, 5, -1, 2**31, 2**63 - 1, 8 - 2**63, -(2**63)),
    "float": (0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 3.4028234663852886e38),
    "double": (0.0, -0.0, 1.5, 0.1, math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324),
    "decimal(9, 2)": tuple(map(Decimal, ("0.00", "1.25", "-1.25", "9999999.99", "-9999999.90", "-9999999.99"))),
    "decimal(18, 2)": tuple(
        map(Decimal, ("0.00", "1234567890123456.78", "-9999999999999999.90", "-9999999999999999.99"))
    ),
    "decimal(38, 10)": tuple(
        map(
            Decimal,
            (
                "0.0000000000",
                "4028093312416675137268760953.8991191790",
                "-9999999999999999999999999999.9999999990",
                "-9999999999999999999999999999.9999999999",
                "1.0000000001",
            ),
        )
    ),
    "string": (
        "",
        "a",
        "b",
        "c",
        "A",
        "%",
        "a/b",
        "k=v",
        "é",
        "日本",
        "\U0001f600",
        "a'b",
        "x" * 40,
        " ",
        "null",
        "\\",
    ),
    "binary": (b"", b"\0", b"a", b"\xff\xfe", b"a" * 20),
    "date": tuple(
        dt.date(*ymd)
        for ymd in (
            (1970, 1, 1),
            (1969, 12, 31),
            (2024, 2, 29),
            (1582, 10, 10),
            (1, 1, 1),
            (9999, 12, 31),
            (2024, 3, 1),
        )
    ),
    "time": (dt.time(0, 0), dt.time(23, 59, 59, 999999), dt.time(12, 30)),
    "timestamp": tuple(
        dt.datetime(*parts)  # noqa: DTZ001 - without a zone, as the column
        for parts in (
            (1970, 1, 1),
            (1969, 12, 31, 23, 59, 59, 999999),
            (2024, 2, 29, 12, 0, 0, 1),
            (1700, 1, 1, 1, 1, 1),
            (2200, 12, 31, 23, 59, 59, 999999),
        )
    ),
    "timestamptz": tuple(
        dt.datetime(*parts).replace(tzinfo=dt.UTC)  # noqa: DTZ001 - it gets one
        for parts in (
            (1970, 1, 1),
            (1969, 12, 31, 23, 59, 59, 999999),
            (2024, 2, 29, 12, 0, 0, 1),
            (2200, 12, 31, 23, 59, 59, 999999),
        )
    ),
}

_UUIDS = (UUID(int=0), UUID(int=1), UUID(int=2**127), UUID(int=2**128 - 1))
"""Not among the others: PyIceberg writes them, and compares none."""


def value(dice: Dice, kind: IcebergType) -> Any:
    """Return a value of type *kind*, as a user writes it."""
    match kind:
        case StructType(fields=fields):
            return {f.name: value_of(dice, f) for f in fields}
        case ListType():
            return [
                None if not kind.element_required and dice.chance(20) else value(dice, kind.element_type)
                for _ in range(dice.number(0, 2))
            ]
        case MapType():
            keys = dice.some(POOLS[str(kind.key_type)], 0, 2)
            return [
                (key, None if not kind.value_required and dice.chance(20) else value(dice, kind.value_type))
                for key in keys
            ]
        case UUIDType():
            return dice.favourite("uuid", _UUIDS, 3)
    return dice.value(str(kind))


def value_of(dice: Dice, column: NestedField, nulls: int = 20) -> Any:
    """Return a value for a column; NULL in so many of 100 cases, where it may be."""
    return None if not column.required and dice.chance(nulls) else value(dice, column.field_type)


def rows(dice: Dice, state: State, least: int = 0, most: int = 4) -> tuple[Named, ...]:
    """Return rows for a table: of many calls without a NULL, or a column could hardly ever become required."""
    nulls = dice.weighed(((4, 0), (4, 20), (2, 60)))
    count = dice.number(least, most)
    return tuple({f.name: value_of(dice, f, nulls) for f in state.fields.fields} for _ in range(count))
