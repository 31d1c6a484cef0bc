"""What is recorded of a file that is written: a filter overlooks no row by it."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DoubleType, LongType, NestedField, PrimitiveType, StringType

import commit_coord
from tests.proof.rows.draw.dice import POOLS, Dice

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

LONG = "z" * 5000
"""No Parquet writer keeps such a value as the least or greatest of a row group."""
BEYOND: dict[str, tuple[Any, ...]] = {"string": (LONG, "é" * 3000), "binary": (b"\xff" * 5000,)}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[commit_coord.CoordinatedCatalog]:
    with commit_coord.load_catalog(
        "t", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w"
    ) as found:
        found.create_namespace("db")
        yield found


def bounds(table: Any) -> list[tuple[Any, Any]]:
    """Return the bounds of each file of *table*."""
    return [(task.file.lower_bounds, task.file.upper_bounds) for task in table.scan().plan_files()]


@pytest.mark.parametrize("turned", [False, True])
def test_a_row_group_with_a_long_value_is_not_overlooked(
    catalog: commit_coord.CoordinatedCatalog, turned: bool
) -> None:
    """One of the two groups has no bounds, so the file has none."""
    rows = ["y", LONG, "a", "b"]
    rows = rows[::-1] if turned else rows
    data = pa.table({"s": rows, "n": range(4)})
    table = catalog.create_table("db.t", data.schema, properties={"write.parquet.row-group-limit": "2"})
    table.append(data)
    assert [rows.index("y")] == table.scan("s = 'y'").to_arrow()["n"].to_pylist()
    (lower, upper), *others = bounds(table)
    assert not others
    assert {2} == {*lower} == {*upper}
    table.delete("s = 'y'")
    assert sorted(["a", "b", LONG]) == sorted(table.scan().to_arrow()["s"].to_pylist())


@pytest.mark.parametrize("text", ["a" * 15 + "\ud7ffb", "a" * 14 + "\ud7ff\U0010ffffb"])
def test_an_upper_bound_passes_over_the_surrogates(catalog: commit_coord.CoordinatedCatalog, text: str) -> None:
    data = pa.table({"s": [text]})
    table = catalog.create_table("db.t", data.schema)
    table.append(data)
    assert [text] == table.scan(cast(Any, EqualTo)("s", text)).to_arrow()["s"].to_pylist()
    ((_, upper),) = bounds(table)
    assert text.encode() < upper[1]


def test_a_row_group_of_null_alone_needs_no_bounds(catalog: commit_coord.CoordinatedCatalog) -> None:
    data = pa.table({"s": [None, None, "a", "b"]}, pa.schema([("s", pa.string())]))
    table = catalog.create_table("db.t", data.schema, properties={"write.parquet.row-group-limit": "2"})
    table.append(data)
    assert [({1: b"a"}, {1: b"b"})] == bounds(table)
    assert 2 == table.scan("s is null").to_arrow().num_rows


@pytest.mark.parametrize("way", ["append", "add_files"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 2**60], pa.timestamp("us")),
        pa.array([0, 2**60], pa.timestamp("us", "UTC")),
        pa.array([0, 2**31 - 1], pa.date32()),
    ],
    ids=str,
)
def test_a_time_that_python_does_not_have_is_written_without_bounds(
    catalog: commit_coord.CoordinatedCatalog, tmp_path: Path, column: pa.Array, way: str
) -> None:
    data = pa.table({"t": column, "n": range(2)})
    table = catalog.create_table("db.t", data.schema)
    if way == "append":
        table.append(data)
    else:
        pq.write_table(data, tmp_path / "f.parquet")
        table.add_files([str(tmp_path / "f.parquet")])
    ((lower, upper),) = bounds(table)
    assert {2} == {*lower} == {*upper}
    bits = pa.int32() if pa.types.is_date(column.type) else pa.int64()
    assert column.cast(bits).to_pylist() == table.scan().to_arrow()["t"].cast(bits).to_pylist()


@pytest.mark.parametrize("seed", range(25))
def test_bounds_and_counts_hold_for_every_row_of_drawn_files(
    catalog: commit_coord.CoordinatedCatalog, tmp_path: Path, seed: int
) -> None:
    """Files of several row groups, with values that no group's statistics hold: too long, NaN, or NULL alone."""
    dice = Dice(seed)
    values: dict[str, list[Any]] = {}
    kinds: tuple[PrimitiveType, ...] = (LongType(), DoubleType(), StringType(), BinaryType())
    for kind in kinds:
        pool = [*POOLS[str(kind)], *BEYOND.get(str(kind), ())]
        nulls = dice.one((0, 30, 80))
        values[str(kind)] = [None if dice.chance(nulls) else dice.one(pool) for _ in range(8)]
    fields = [NestedField(number, str(kind), kind) for number, kind in enumerate(kinds, start=1)]
    schema = Schema(*fields)
    data = pa.table(values, schema_to_pyarrow(schema, include_field_ids=False))
    table = catalog.create_table("db.t", schema, properties={"write.parquet.row-group-limit": str(dice.number(1, 3))})
    if dice.chance(50):
        table.append(data)
    else:
        pq.write_table(data, tmp_path / "f.parquet", row_group_size=dice.number(1, 3))
        table.add_files([str(tmp_path / "f.parquet")])
    (task,) = table.scan().plan_files()
    for field, kind in zip(fields, kinds, strict=True):
        found = [
            value for value in values[field.name] if not (value is None or (kind == DoubleType() and math.isnan(value)))
        ]
        for recorded, holds in ((task.file.lower_bounds, operator.le), (task.file.upper_bounds, operator.ge)):
            if (bound := recorded.get(field.field_id)) is not None:
                limit = from_bytes(kind, bound)
                assert all(holds(limit, value) for value in found), (field, limit)
        assert task.file.null_value_counts.get(field.field_id) in {None, values[field.name].count(None)}
