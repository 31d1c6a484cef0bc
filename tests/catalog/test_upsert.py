"""An upsert is SQL's MERGE: each row replaces the one that has its key, or is added."""

from __future__ import annotations

import itertools
import random
import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, LongType, NestedField, StringType, UUIDType

from tests.catalog.kit import Kit, names, orphans

ZEROS = [0.0, -0.0, 1.5, -1.5, 5e-324, float("inf")]
KEYS: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "double": (DoubleType(), pa.float64(), ZEROS),
    "float": (FloatType(), pa.float32(), [0.0, -0.0, 1.5, 2.0**-149]),
    "text": (StringType(), pa.string(), ["", "a", "A", "a ", "\u00e9", "e\u0301"]),
}


def merged(table: dict[Any, Any], given: dict[Any, Any], update: bool, insert: bool) -> dict[Any, Any]:
    """Return key → value after the upsert, by the meaning of MERGE."""
    return {
        **table,
        **{key: value for key, value in given.items() if (update if key in table else insert)},
    }


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

    def frame(rows: dict[Any, Any]) -> pa.Table:
        return pa.Table.from_pylist([dict(zip(arrow.names, (*key, v), strict=True)) for key, v in rows.items()], arrow)

    table = memory.table(schema=Schema(*fields, NestedField(9, "v", LongType())))
    expected: dict[Any, int] = {}
    for _ in range(4):
        given, (update, insert) = some(), draw.choice([(True, True), (True, True), (True, False), (False, True)])
        if draw.random() < 0.3:  # some rows stay as they are
            given = {key: expected.get(key, value) for key, value in given.items()}
        table.upsert(frame(given), keys, when_matched_update_all=update, when_not_matched_insert_all=insert)
        expected = merged(expected, given, update, insert)
        found = {tuple(row.values())[:-1]: row["v"] for row in table.scan().to_arrow().to_pylist()}
        assert (found, table.scan().count()) == (expected, len(expected))
    assert names(orphans(table)) == []


def test_a_key_that_is_given_or_found_twice_is_refused(memory: Kit) -> None:
    """Also where the rows of the table lie in two files, and where the two are zeros of different signs."""
    schema, arrow = Schema(NestedField(1, "k", DoubleType()), NestedField(2, "v", LongType())), pa.float64()
    for two in ([0.0, -0.0], [1.5, 1.5]):
        table = memory.table(schema=schema)
        with pytest.raises(ValueError, match="Duplicate rows found in source"):
            table.upsert(pa.table({"k": two, "v": [1, 2]}), ["k"])
        for number, key in enumerate(two):
            table.append(pa.table({"k": pa.array([key], arrow), "v": [number]}))
        with pytest.raises(ValueError, match="Target table has duplicate rows"):
            table.upsert(pa.table({"k": [two[0]], "v": [1]}), ["k"])
        assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [0, 1]


def test_a_key_may_be_given_in_another_type_that_its_column_takes(memory: Kit) -> None:
    """A UUID as its bytes, a text as a large one, a small number for a great one."""
    given = uuid.UUID(int=7)
    for kind, first, arrow in (
        (UUIDType(), given.bytes, pa.binary(16)),
        (StringType(), "a", pa.large_string()),
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
