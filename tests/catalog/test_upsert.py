"""An upsert is SQL's MERGE: each row replaces the one that has its key, or is added. A NULL equals no key, NaN does."""

from __future__ import annotations

import itertools
import math
import random
import uuid
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DoubleType,
    FloatType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from commit_coord.errors import StatementError
from tests.catalog.kit import Kit, names, orphans, rows

ZEROS = [0.0, -0.0, 1.5, -1.5, 5e-324, float("inf"), math.nan, None]
KEYS: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "double": (DoubleType(), pa.float64(), ZEROS),
    "float": (FloatType(), pa.float32(), [0.0, -0.0, 1.5, 2.0**-149, math.nan, None]),
    "text": (StringType(), pa.string(), ["", "a", "A", "a ", "\u00e9", "e\u0301", None]),
}


def merged(table: dict[Any, Any], given: dict[Any, Any], update: bool, insert: bool) -> dict[Any, Any]:
    """Return key → value after the upsert, by the meaning of MERGE."""
    return {
        **table,
        **{key: value for key, value in given.items() if (update if key in table else insert)},
    }


def one_nan(value: Any) -> Any:
    """Return *value*; NaN as the object that the pools have, which a tuple takes for equal."""
    return math.nan if value != value else value  # noqa: PLR0124


@pytest.mark.parametrize("seed", range(40))
def test_each_row_replaces_the_one_with_its_key_or_is_added(memory: Kit, seed: int) -> None:
    """Drawn: the types of one or two keys, values that are equal or nearly so, the rows of the files, the choices."""
    draw = random.Random(seed)
    kinds = [KEYS[draw.choice(list(KEYS))] for _ in range(draw.choice([1, 1, 2]))]
    keys = [f"k{number}" for number in range(len(kinds))]
    arrow = pa.schema([*((key, kind[1]) for key, kind in zip(keys, kinds, strict=True)), ("v", pa.int64())])
    fields = [NestedField(1 + at, key, kind[0]) for at, (key, kind) in enumerate(zip(keys, kinds, strict=True))]
    pool = list(itertools.product(*(kind[2] for kind in kinds)))
    numbers = itertools.count()

    def some() -> dict[Any, int]:
        """Return keys, all different as SQL sees it, each with a value of its own."""
        return {key: next(numbers) for key in draw.sample(pool, draw.randint(0, min(len(pool), 5)))}

    def frame(rows: Iterable[tuple[Any, Any]]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(arrow.names, (*key, v), strict=True)) for key, v in rows], arrow)

    table = memory.table(schema=Schema(*fields, NestedField(9, "v", LongType())))
    expected: dict[Any, int] = {}
    unequal: list[tuple[Any, int]] = []
    for _ in range(4):
        given, (update, insert) = some(), draw.choice([(True, True), (True, True), (True, False), (False, True)])
        if draw.random() < 0.3:  # some rows stay as they are
            given = {key: expected.get(key, value) for key, value in given.items()}
        with_null = [(key, value) for key, value in given.items() if None in key]
        with_null *= draw.choice([1, 2])
        given = {key: value for key, value in given.items() if None not in key}
        listed = [*given.items(), *with_null]
        draw.shuffle(listed)
        table.upsert(frame(listed), keys, when_matched_update_all=update, when_not_matched_insert_all=insert)
        expected = merged(expected, given, update, insert)
        unequal += with_null if insert else []
        found = Counter(
            (tuple(map(one_nan, row.values()))[:-1], row["v"]) for row in table.scan().to_arrow().to_pylist()
        )
        assert found == Counter([*expected.items(), *unequal])
    assert names(orphans(table)) == []


def test_a_key_that_is_given_or_found_twice_is_refused(memory: Kit) -> None:
    """Also where the rows of the table lie in two files, where the two are zeros of different signs, or both NaN."""
    schema, arrow = Schema(NestedField(1, "k", DoubleType()), NestedField(2, "v", LongType())), pa.float64()
    for two in ([0.0, -0.0], [1.5, 1.5], [math.nan, math.nan]):
        table = memory.table(schema=schema)
        with pytest.raises(ValueError, match="Duplicate rows found in source"):
            table.upsert(pa.table({"k": two, "v": [1, 2]}), ["k"])
        for number, key in enumerate(two):
            table.append(pa.table({"k": pa.array([key], arrow), "v": [number]}))
        with pytest.raises(ValueError, match="Target table has duplicate rows"):
            table.upsert(pa.table({"k": [two[0]], "v": [1]}), ["k"])
        assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [0, 1]


def test_a_key_may_be_given_in_another_type_that_its_column_takes(memory: Kit) -> None:
    """A UUID as such or as its bytes, a text as a large one or from a dictionary, a small number for a great one."""
    given = uuid.UUID(int=7)
    for kind, first, arrow in (
        (UUIDType(), given.bytes, pa.binary(16)),
        (UUIDType(), given.bytes, pa.uuid()),
        (StringType(), "a", pa.large_string()),
        (StringType(), "a", pa.dictionary(pa.int32(), pa.string())),
        (LongType(), 5, pa.int32()),
        (LongType(), 5, pa.uint32()),
    ):
        table = memory.table(schema=Schema(NestedField(1, "k", kind), NestedField(2, "v", LongType())))
        for value in (1, 2):
            table.upsert(pa.table({"k": pa.array([first], arrow), "v": [value]}), ["k"])
        assert [2] == table.scan().to_arrow()["v"].to_pylist()


def test_rows_without_a_column_are_added_but_replace_no_row_that_has_it(memory: Kit) -> None:
    """What the column holds would be lost."""
    table = memory.table(schema=Schema(NestedField(1, "k", LongType()), NestedField(2, "v", LongType())))
    table.append(pa.table({"k": [1], "v": [1]}))
    table.upsert(pa.table({"k": [2]}), ["k"])
    with pytest.raises(ValueError, match="need all of its columns; missing: v"):
        table.upsert(pa.table({"k": [1]}), ["k"])
    assert sorted(table.scan().to_arrow().to_pylist(), key=str) == [{"k": 1, "v": 1}, {"k": 2, "v": None}]


def test_a_row_that_is_as_it_was_is_not_updated_whatever_number_it_has(memory: Kit) -> None:
    """NaN as a value is no change, either."""
    table = memory.table(schema=Schema(NestedField(1, "k", LongType()), NestedField(2, "x", DoubleType())))
    given = pa.table({"k": [1, 2, 3], "x": pa.array([math.nan, None, 1.5], pa.float64())})
    assert table.upsert(given, ["k"]).rows_inserted == 3
    again = table.upsert(given, ["k"])
    assert (again.rows_updated, again.rows_inserted) == (0, 0)


NOT_KEYS = {
    "a list": ("l", "can't be a key"),
    "a struct": ("s", "can't be a key"),
    "a field of a struct": ("s.x", 'Field "s.x" does not exist in schema of the rows'),
    "a column that the rows lack": ("w", 'Field "w" does not exist in schema of the rows'),
    "a column that the table lacks": ("nothing", "Could not find field with name nothing"),
    "a name in another case": ("K", "Could not find field with name K"),
}


@pytest.mark.parametrize("case", NOT_KEYS)
def test_what_is_no_key_is_refused_by_its_name(memory: Kit, case: str) -> None:
    inner = StructType(NestedField(5, "x", LongType()))
    table = memory.table(
        schema=Schema(
            NestedField(1, "k", LongType()),
            NestedField(2, "l", ListType(6, LongType())),
            NestedField(3, "s", inner),
            NestedField(4, "w", LongType()),
        )
    )
    column, reason = NOT_KEYS[case]
    given = pa.table(
        {
            "k": [1],
            "l": pa.array([[1]], pa.list_(pa.int64())),
            "s": pa.array([{"x": 1}], pa.struct([("x", pa.int64())])),
        }
    )
    with pytest.raises(StatementError, match=reason):
        table.upsert(given, [column])
    assert rows(memory.again(table)) == []


DAYS = [0, -1, 1, 2_932_896, 2_932_897, -719_163]
"""The last two are beyond Python's calendar."""

MOMENTS = [*(day * 86_400_000_000 for day in DAYS), 1, -1]


@pytest.mark.parametrize("with_another", [False, True])
@pytest.mark.parametrize(
    "kind, numbers",
    [
        pytest.param(pa.date32(), DAYS, id="days"),
        pytest.param(pa.timestamp("us"), MOMENTS, id="moments"),
        pytest.param(pa.timestamp("us", "UTC"), MOMENTS, id="moments of a zone"),
        pytest.param(pa.time64("us"), [0, 1, 86_399_999_999], id="times of a day"),
    ],
)
def test_a_day_or_a_moment_is_a_key_also_beyond_pythons_calendar(
    memory: Kit, kind: pa.DataType, numbers: list[int], with_another: bool
) -> None:
    def frame(values: dict[int, int]) -> pa.Table:
        keys = pa.array(list(values), pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
        return pa.table(
            {"k": keys, "other": pa.array(["x"] * len(values), pa.string()), "v": pa.array(values.values(), pa.int64())}
        )

    half = len(numbers) // 2
    table = memory.table(schema=frame({}).schema)
    table.append(frame(dict.fromkeys(numbers[:half], 1)))
    table.append(frame(dict.fromkeys(numbers[half:-1], 1)))
    given = {numbers[0]: 1, **dict.fromkeys(numbers[1:], 2)}
    result = table.upsert(frame(given), ["k", "other"] if with_another else ["k"])
    assert (len(numbers) - 2, 1) == (result.rows_updated, result.rows_inserted)
    found = memory.stock.load_table(table.name()).scan().to_arrow()
    keys = found["k"].cast(pa.int32() if kind == pa.date32() else pa.int64()).to_pylist()
    assert given == dict(zip(keys, found["v"].to_pylist(), strict=True))
    assert len(numbers) == found.num_rows
