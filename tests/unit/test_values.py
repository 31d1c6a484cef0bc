"""Values that somebody wrote fit a column exactly, or are refused with words, however long they are."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.types import DecimalType, DoubleType, IcebergType, IntegerType, LongType, StringType

from commit_coord.iceberg.values import Misfit, fit, floor

LONG = "1" * 5000
"""More digits than Python turns from a text into a number, or back."""


@pytest.mark.parametrize("kind", [IntegerType(), LongType(), DecimalType(10, 2)], ids=str)
@pytest.mark.parametrize(
    "value", [LONG, Decimal(LONG), int(Decimal(LONG)), Decimal(f"-{LONG}")], ids=["text", "decimal", "int", "negative"]
)
def test_a_number_of_thousands_of_digits_is_out_of_range(kind: IcebergType, value: Any) -> None:
    with pytest.raises(Misfit, match="out of the range"):
        fit(value, kind)


@pytest.mark.parametrize("value", [f"0.{LONG}", Decimal(f"0.{LONG}")], ids=["text", "decimal"])
def test_a_number_of_thousands_of_decimal_places_is_refused(value: Any) -> None:
    with pytest.raises(Misfit, match="more decimal places"):
        fit(value, DecimalType(10, 2))


def test_a_number_of_thousands_of_digits_is_a_text() -> None:
    assert fit(int(Decimal(LONG)), StringType()) == LONG
    with pytest.raises(Misfit, match="out of the range"):
        fit(int(Decimal(LONG)), DoubleType())


def test_a_number_of_thousands_of_decimal_places_is_compared() -> None:
    assert floor(Decimal(f"0.{LONG}"), DecimalType(10, 2)) == (Decimal("0.11"), 1)
    assert floor(Decimal(f"-0.{LONG}"), DecimalType(10, 2)) == (Decimal("-0.12"), 1)
    assert floor(Decimal(f"7.{'0' * 5000}"), LongType()) == (7, 0)
