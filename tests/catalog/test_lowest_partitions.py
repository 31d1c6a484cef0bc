"""Rows that ``truncate`` moves below all values of their type: other engines write them, and each call is right.

The files are PyIceberg's own. An integer wraps around. A decimal gets one digit more than its type has; PyIceberg and
Java refuse to write that, but read it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import expressions as E
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import DecimalType, IntegerType, LongType, NestedField, PrimitiveType

from commit_coord.sql import Session
from tests.catalog.kit import NO_MATCH, Kit, unchecked_decimals

LEAST = {IntegerType(): -(2**31), LongType(): -(2**63)}
KINDS: list[tuple[PrimitiveType, int]] = [
    (IntegerType(), 10),
    (LongType(), 1000),
    (DecimalType(3, 2), 100),
    (DecimalType(3, 2), 7),
]
OPERATORS: dict[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "x = {}": (E.EqualTo, operator.eq),
    "x <> {}": (E.NotEqualTo, operator.ne),
    "x < {}": (E.LessThan, operator.lt),
    "x <= {}": (E.LessThanOrEqual, operator.le),
    "x > {}": (E.GreaterThan, operator.gt),
    "x >= {}": (E.GreaterThanOrEqual, operator.ge),
    "x IN ({}, 0)": (lambda term, value: E.In(term=term, literals={value, _zero(value)}), lambda a, b: a in (b, 0)),
    "x NOT IN ({}, 0)": (
        lambda term, value: E.NotIn(term=term, literals={value, _zero(value)}),
        lambda a, b: a not in (b, 0),
    ),
}


def _zero(value: Any) -> Any:
    return value - value if isinstance(value, Decimal) else 0


pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{NO_MATCH}"),
    pytest.mark.parametrize("kind, width", KINDS, ids=[f"{kind} {width}" for kind, width in KINDS]),
]


def number(kind: PrimitiveType, unscaled: int) -> Any:
    """Return a number of *kind* by its digits."""
    if not isinstance(kind, DecimalType):
        return unscaled
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -kind.scale))


def numbers(kind: PrimitiveType, width: int) -> list[Any]:
    """Return the numbers of a table: the least ones, those of the next partition, and some others."""
    least = 1 - 10**kind.precision if isinstance(kind, DecimalType) else LEAST[kind]
    inside = least + (-least) % width
    assert inside > least
    return [number(kind, one) for one in (least, inside - 1, inside, inside + width, -1, 0, 1, -least - 1)]


def rows(kind: PrimitiveType, values: list[Any], first: int = 0) -> pa.Table:
    """Return rows of *values*, numbered."""
    stored = schema_to_pyarrow(kind, include_field_ids=False)
    return pa.table({"k": pa.array(range(first, first + len(values)), pa.int64()), "x": pa.array(values, stored)})


def written_elsewhere(kit: Kit, kind: PrimitiveType, width: int, **properties: str) -> Any:
    """Return a table whose rows PyIceberg's own catalog wrote."""
    table = kit.table(
        schema=Schema(NestedField(1, "k", LongType()), NestedField(2, "x", kind)),
        partition_spec=PartitionSpec(PartitionField(2, 1000, TruncateTransform(width), "p")),
        properties=properties,
    )
    with unchecked_decimals():
        kit.stock.load_table(table.name()).append(rows(kind, [*numbers(kind, width), None]))
    return kit.again(table)


def keys(table: Any, condition: Any = E.AlwaysTrue()) -> list[int]:
    """Return the numbers of the rows that a scan finds, which it counts as well."""
    scan = table.scan(condition)
    found: list[int] = sorted(scan.to_arrow()["k"].to_pylist())
    assert len(found) == scan.count(), condition
    return found


def conditions(kind: PrimitiveType, width: int) -> list[tuple[str, Any, Callable[[Any], bool]]]:
    """Return conditions, each as SQL and PyIceberg have it, and what says whether a value matches."""
    return [
        (
            text.format(value),
            made(term="x", value=value),
            partial(_says, holds, value),
        )
        for value in numbers(kind, width)
        for text, (made, holds) in OPERATORS.items()
    ]


def _says(holds: Callable[[Any, Any], bool], constant: Any, value: Any) -> bool:
    return holds(value, constant)


def test_each_condition_finds_and_counts_them_as_their_values_say(memory: Kit, kind: PrimitiveType, width: int) -> None:
    table, values = written_elsewhere(memory, kind, width), numbers(kind, width)
    session = Session(memory.catalog)
    name = ".".join(table.name())
    for text, condition, holds in conditions(kind, width):
        expected = [key for key, value in enumerate(values) if holds(value)]
        assert expected == keys(table, condition), condition
        assert [str(len(expected))] == session.run(f"SELECT count(*) FROM {name} WHERE {text}").lines, text
        assert expected == sorted(row[0] for row in session.run(f"SELECT k FROM {name} WHERE {text}").rows), text


def test_each_delete_takes_those_that_match_and_no_others(memory: Kit, kind: PrimitiveType, width: int) -> None:
    values, session = numbers(kind, width), Session(memory.catalog)
    for at, (text, condition, holds) in enumerate(conditions(kind, width)[: 2 * len(OPERATORS)]):
        table = written_elsewhere(memory, kind, width)
        with unchecked_decimals():
            if at % 2:
                table.delete(condition)
            else:
                session.run(f"DELETE FROM {'.'.join(table.name())} WHERE {text}")
        left = [key for key, value in enumerate([*values, None]) if value is None or not holds(value)]
        assert left == keys(memory.again(table)), text


def test_what_is_written_anew_stays_where_it_was_found(memory: Kit, kind: PrimitiveType, width: int) -> None:
    """By a merge of manifests, a compaction and an update of SQL's."""
    merging = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table, values = written_elsewhere(memory, kind, width, **merging), numbers(kind, width)
    before = {repr(file.partition) for file in files(table)}
    everything = [*range(len(values) + 1), 100, 101, 102]
    with unchecked_decimals():
        memory.stock.load_table(table.name()).append(rows(kind, [values[0], values[2]], 100))
        table = memory.again(table)
        table.append(rows(kind, [None], 102))  # it is merged with the manifest before it
        assert 2 == len(table.current_snapshot().manifests(table.io))
        assert everything == keys(table)
        assert [0, 100] == keys(table, E.EqualTo(term="x", value=values[0]))
        assert table.compact().before > 1
        assert before == {repr(file.partition) for file in files(table)}
        Session(memory.catalog).run(f"UPDATE {'.'.join(table.name())} SET k = 7000 WHERE x = {values[1]}")
    table = memory.again(table)
    assert [0, 100] == keys(table, E.EqualTo(term="x", value=values[0]))
    assert [7000] == keys(table, E.EqualTo(term="x", value=values[1]))
    assert len(everything) == len(keys(table))


def files(table: Any) -> list[Any]:
    return [task.file for task in table.scan().plan_files()]


def test_new_ones_are_refused_with_words(memory: Kit, kind: PrimitiveType, width: int) -> None:
    """Other engines would not find them, or could not write the manifest anew."""
    table, (least, last, inside, *_) = written_elsewhere(memory, kind, width), numbers(kind, width)
    before = files(table)
    for value in {least, last}:
        for call in (table.append, table.overwrite, partial(table.upsert, join_cols=["k"])):
            with unchecked_decimals(), pytest.raises(ValueError, match=r"of a value is below the range of"):
                call(rows(kind, [value], 100))
    assert before == files(memory.again(table))
    table.append(rows(kind, [inside], 100))
    assert [2, 100] == keys(table, E.EqualTo(term="x", value=inside))


def test_a_key_there_is_updated_and_not_added_again(memory: Kit, kind: PrimitiveType, width: int) -> None:
    """An upsert looks for the key by a filter."""
    table, values = written_elsewhere(memory, kind, width), numbers(kind, width)
    done = table.upsert(rows(kind, [values[0], values[2]]).slice(0, 1), ["x"])
    assert (0, 0) == (done.rows_updated, done.rows_inserted)
    assert [0] == keys(memory.again(table), E.EqualTo(term="x", value=values[0]))
