"""A column of a DataFrame is that of the table with exactly its name, else the only one that has it in another case."""

from __future__ import annotations

import pytest
from pyiceberg import types as I
from pyiceberg.schema import Schema
from pyspark.sql import types as T

from commit_coord.spark.schema import SchemaMismatch, check_fits, pick


def of_table(*names: str) -> I.StructType:
    return I.StructType(*(I.NestedField(at, name, I.LongType()) for at, name in enumerate(names, 1)))


def of_frame(*names: str) -> T.StructType:
    return T.StructType([T.StructField(name, T.LongType()) for name in names])


@pytest.mark.parametrize(
    "given, there, expected",
    [
        (("A", "a"), ("a", "A"), {1: 1, 2: 0}),
        (("a", "A"), ("a", "b"), {1: 0}),
        (("A", "a"), ("a", "b"), {1: 1}),
        (("AB", "aB"), ("ab",), {1: 0}),
        (("A",), ("a", "A"), {2: 0}),
        (("AB",), ("ab", "c"), {1: 0}),
    ],
)
def test_columns_are_found_by_their_names(
    given: tuple[str, ...], there: tuple[str, ...], expected: dict[int, int]
) -> None:
    assert pick(given, of_table(*there), False) == expected


def test_a_column_that_two_of_the_table_match_is_refused() -> None:
    """At any depth. In a session that tells cases apart no column matches."""
    for given, there in ((("AB",), ("ab", "aB")), (("ab", "AB"), ("ab", "aB"))):
        twins, frame = of_table(*there), of_frame(*given)
        with pytest.raises(SchemaMismatch, match="ambiguous"):
            check_fits(frame, Schema(*twins.fields))
        with pytest.raises(SchemaMismatch, match="s: .*ambiguous"):
            check_fits(
                T.StructType([T.StructField("s", frame)]),
                Schema(I.NestedField(9, "s", twins)),
            )
        with pytest.raises(SchemaMismatch, match="AB is not in the table"):
            check_fits(frame, Schema(*twins.fields), case_sensitive=True)


def test_two_columns_for_one_of_the_table_are_refused() -> None:
    for given in (("a", "A"), ("A", "a"), ("AB", "aB")):
        with pytest.raises(SchemaMismatch, match="is not in the table"):
            check_fits(of_frame(*given), Schema(*of_table(given[0].lower()).fields))
