"""A value that is null stays null, whatever writes its row or writes it anew."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, ListType, LongType, MapType, NestedField, StringType, StructType, UUIDType

from tests.catalog.kit import Kit, rows

DATE = StructType(NestedField(12, "d", DateType(), required=False))
SHAPES: list[tuple[Any, pa.DataType, Any, Any]] = [
    (MapType(10, StringType(), 11, LongType(), False), pa.map_(pa.string(), pa.int64()), [("a", None)], []),
    (
        MapType(10, StringType(), 11, DATE, False),
        pa.map_(pa.string(), pa.struct([("d", pa.date32())])),
        [("a", None)],
        [],
    ),
    (ListType(10, LongType(), False), pa.list_(pa.int64()), [None, 1], []),
    (ListType(10, DATE, False), pa.list_(pa.struct([("d", pa.date32())])), [None, {"d": None}], []),
    (DATE, pa.struct([("d", pa.date32())]), {"d": None}, {"d": None}),
]


def by_compaction(table: Any) -> None:
    assert table.compact().after == 1


def by_delete(table: Any) -> None:
    table.delete("k == 99")


def by_overwrite(table: Any) -> None:
    table.overwrite(pa.table({"k": pa.array([], pa.int64())}), "k == 99")


def by_upsert(table: Any) -> None:
    table.upsert(table.scan("k == 3").to_arrow(), join_cols=["k"])


def by_reading_and_writing(table: Any) -> None:
    table.overwrite(table.scan("k < 99").to_arrow())


HOW = [by_compaction, by_delete, by_overwrite, by_upsert, by_reading_and_writing]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("shape", SHAPES, ids=["map", "map to structs", "list", "list of structs", "struct"])
def test_a_null_list_map_or_struct_stays_null_when_its_row_is_written_anew(memory: Kit, shape: Any, how: Any) -> None:
    """In one file with others, and of rows that were written before the column was there."""
    kind, arrow, value, empty = shape
    table = memory.table(schema=Schema(NestedField(1, "k", LongType())))
    table.append(pa.table({"k": [1, 2]}))
    with table.update_schema() as update:
        update.add_column("x", kind)
    values = [value, None, empty, None]
    table.append(pa.table({"k": [3, 4, 5, 99], "x": pa.array(values, arrow)}))
    expected = [(1, None), (2, None), (3, value), (4, None), (5, empty)]
    assert [*expected, (99, None)] == rows(table)
    how(table)
    assert expected == [row for row in rows(memory.again(table)) if row[0] != 99]


@pytest.mark.parametrize("required", [False, True])
def test_a_null_struct_of_a_uuid_that_was_added_later_is_read_and_written_anew(memory: Kit, required: bool) -> None:
    """Arrow builds no array of such a type out of Python's values."""
    table = memory.table(schema=Schema(NestedField(1, "k", LongType())))
    table.append(pa.table({"k": [1, 2]}))
    kind = StructType(
        NestedField(12, "u", UUIDType(), required=required), NestedField(13, "us", ListType(14, UUIDType()))
    )
    with table.update_schema() as update:
        update.add_column("x", kind)
    assert rows(table) == [(1, None), (2, None)]
    table.delete("k == 1")
    assert rows(memory.again(table)) == [(2, None)]
