"""A field is known by its id wherever it lies: in lists of lists, in maps of lists, in structs in those.

Tables are drawn with nested columns and with changes of the fields inside them. What a table shows then is written
down once, here: of each value, the fields that the columns have by now, and NULL for those that it lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from commit_coord.iceberg.nulls import _offsets
from tests.catalog.kit import Kit
from tests.catalog.test_null_values import HOW
from tests.limits import some
from tests.proof.rows.draw.dice import Dice

VALUES: dict[str, list[Any]] = {
    "int": [1, 2, 3],
    "long": [4, 5, 6],
    "string": ["a", "b", ""],
    "uuid": [bytes(16), bytes(range(16))],
}
NAMES = ("x", "y", "z")


def kind_of(dice: Dice, number: Iterator[int], depth: int = 3) -> IcebergType:
    """Return a type, containers in containers mostly."""
    match dice.one(["list", "map", "struct", "leaf"][: 4 if depth < 3 else 3]) if depth else "leaf":
        case "list":
            return ListType(next(number), kind_of(dice, number, depth - 1), dice.chance(30))
        case "map":
            return MapType(next(number), StringType(), next(number), kind_of(dice, number, depth - 1), dice.chance(30))
        case "struct":
            names = NAMES[: dice.number(1, 3)]
            return StructType(
                *(NestedField(next(number), n, kind_of(dice, number, depth - 1), required=False) for n in names)
            )
    return dice.one([IntegerType(), LongType(), StringType(), UUIDType()])


def value_of(dice: Dice, kind: IcebergType, *, required: bool = False) -> Any:
    """Return a value of *kind*, its fields by their ids."""
    if not required and dice.chance(20):
        return None
    count = dice.number(0, 2)
    match kind:
        case StructType(fields=fields):
            return {field.field_id: value_of(dice, field.field_type, required=field.required) for field in fields}
        case ListType():
            return [value_of(dice, kind.element_type, required=kind.element_required) for _ in range(count)]
        case MapType():
            return [(key, value_of(dice, kind.value_type, required=kind.value_required)) for key in "kl"[:count]]
    return dice.one(VALUES[str(kind)])


def shown(value: Any, kind: IcebergType) -> Any:
    """Return *value* as a column of *kind* shows it: by names, without the fields that *kind* does not have."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {field.name: shown(value.get(field.field_id), field.field_type) for field in fields}
        case ListType():
            return [shown(item, kind.element_type) for item in value]
        case MapType():
            return [(key, shown(item, kind.value_type)) for key, item in value]
    return value


def structs_in(kind: IcebergType, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], StructType]]:
    """Yield each struct in *kind*, and the way to it."""
    match kind:
        case StructType(fields=fields):
            yield path, kind
            for field in fields:
                yield from structs_in(field.field_type, (*path, field.name))
        case ListType():
            yield from structs_in(kind.element_type, (*path, "element"))
        case MapType():
            yield from structs_in(kind.value_type, (*path, "value"))


def evolve(dice: Dice, table: Any) -> None:
    """Change the fields of a struct somewhere in *table*."""
    structs = list(structs_in(table.schema().find_field("m").field_type, ("m",)))
    if not structs:
        return
    path, struct = dice.one(structs)
    chosen = dice.one(struct.fields)
    one, other = chosen.name, dice.one(struct.fields).name
    free = next(name for name in (*NAMES, "w", "v", "u", "t") if name not in {field.name for field in struct.fields})
    match dice.one(["rename", "swap", "add", "replace", "again", "move", "promote"]):
        case "rename":
            change(table, "rename_column", (*path, one), free)
        case "swap" if one != other:
            for old, new in ((one, "free"), (other, one), ("free", other)):
                change(table, "rename_column", (*path, old), new)
        case "add":
            change(table, "add_column", (*path, free), ListType(1, StructType(NestedField(2, "x", LongType()))))
        case "replace":
            change(table, "add_column", (*path, free), chosen.field_type)
            change(table, "delete_column", (*path, one))
        case "again" if one != other:
            change(table, "delete_column", (*path, one))
            change(table, "add_column", (*path, one), chosen.field_type)
        case "move":
            change(table, "move_first", (*path, one))
        case "promote" if isinstance(chosen.field_type, IntegerType):
            change(table, "update_column", (*path, one), LongType())


def change(table: Any, name: str, *arguments: Any) -> None:
    with table.update_schema() as update:
        getattr(update, name)(*arguments)


def given_as(kind: pa.DataType, large: bool) -> pa.DataType:
    """Return *kind* as callers may have it: the fields of structs backwards, no ids, lists of another kind."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(given_as(field.type, large)) for field in reversed(list(kind))])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(given_as(kind.item_type, large)))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field.with_type(given_as(kind.value_type, large))
        return (pa.large_list if large else pa.list_)(element)
    return pa.binary(16) if isinstance(kind, pa.BaseExtensionType) else kind


def frame(schema: Schema, rows: list[dict[str, Any]], *, large: bool = False) -> pa.Table:
    """Return *rows* as a caller would give them."""
    columns = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.Table.from_pylist(
        rows, schema=pa.schema([field.with_type(given_as(field.type, large)) for field in columns])
    )


def found(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(map(plain, rows.to_pylist()), key=lambda row: row["k"])


def plain(value: Any) -> Any:
    """Return *value* with the bytes of UUIDs."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list() | tuple():
            return type(value)(map(plain, value))
    return getattr(value, "bytes", value)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seed", some([10], [*range(10), *range(11, 30)]))
def test_fields_in_nested_columns_are_found_by_their_ids(memory: Kit, how: Any, seed: int) -> None:
    """By scans, by those in batches, and by whatever writes rows anew."""
    dice, number = Dice(seed), itertools.count(2)
    large = dice.chance(50)
    kind = kind_of(dice, number)
    outer = next(number)
    table = memory.table(schema=Schema(NestedField(1, "k", LongType()), NestedField(outer, "m", kind)))
    rows: list[tuple[int, Any]] = []
    for begin in (1, 4):
        for _ in range(dice.number(0, 2)):
            evolve(dice, table)
        now = table.schema().find_field("m").field_type
        new = [(begin + at, value_of(dice, now)) for at in range(3)]
        rows += new
        table.append(frame(table.schema(), [{"k": k, "m": shown(value, now)} for k, value in new], large=large))
    table.append(frame(table.schema(), [{"k": 99, "m": None}]))
    for _ in range(dice.number(1, 3)):
        evolve(dice, table)
    now = table.schema().find_field("m").field_type
    expected = [{"k": k, "m": shown(value, now)} for k, value in rows]
    left = table.scan("k < 99")
    assert found(left.to_arrow()) == expected
    assert found(left.to_arrow_batch_reader().read_all()) == expected
    how(table)
    again = memory.again(table).scan("k < 99")
    assert found(again.to_arrow()) == expected
    evolve(dice, table)
    now = table.schema().find_field("m").field_type
    assert found(table.scan("k < 99").to_arrow()) == [{"k": k, "m": shown(value, now)} for k, value in rows]


def test_what_finds_no_row_does_nothing_to_a_table_with_uuids_in_structs(memory: Kit) -> None:
    """Arrow makes no empty table of such columns by itself."""
    uuids = StructType(NestedField(3, "u", UUIDType()))
    table = memory.table(schema=Schema(NestedField(1, "k", LongType()), NestedField(2, "s", uuids)))
    one, two = (frame(table.schema(), [{"k": k, "s": {"u": bytes(16)}}]) for k in (1, 2))
    table.append(pa.RecordBatchReader.from_batches(one.schema, one.to_batches()))
    assert table.scan("k = 9").to_arrow().num_rows == 0
    assert table.upsert(two, ["k"]).rows_inserted == 1
    with table.transaction() as tx:
        tx.update_rows(parse("k = 9"), lambda rows: rows)
    assert found(table.scan().to_arrow()) == [{"k": k, "s": {"u": bytes(16)}} for k in (1, 2)]


def test_rows_without_columns_are_rows_of_null(memory: Kit) -> None:
    table = memory.table(schema=Schema(NestedField(1, "k", LongType())))
    table.append(pa.table({"k": [1, 2, 3]}).select([]))
    assert table.scan().to_arrow().to_pylist() == [{"k": None}] * 3


PAIRS = pa.array([{"x": at, "y": -at} for at in range(8)], pa.struct([("x", pa.int64()), ("y", pa.int64())]))
BEGINS, MASK = [0, 2, 4, 6, 8], pa.array([False, True, False, False])


def lists(kind: Any) -> pa.Array:
    return kind.from_arrays(pa.array(BEGINS, pa.int64() if kind is pa.LargeListArray else pa.int32()), PAIRS, mask=MASK)


ARRAYS = {
    "list": lists(pa.ListArray),
    "large list": lists(pa.LargeListArray),
    "fixed-size list": pa.FixedSizeListArray.from_arrays(PAIRS, 2, mask=MASK),
    "map": pa.MapArray.from_arrays(pa.array(BEGINS, pa.int32()), pa.array([*"klklklkl"]), PAIRS, mask=MASK),
    "fixed-size list in list": pa.ListArray.from_arrays([0, 1, 2, 3, 4], pa.FixedSizeListArray.from_arrays(PAIRS, 2)),
    "list in fixed-size list": pa.FixedSizeListArray.from_arrays(pa.ListArray.from_arrays(BEGINS, PAIRS), 1),
}


@pytest.mark.parametrize("at", [slice(0, 4), slice(1, 3), slice(1, 2)], ids=["whole", "slice", "one row"])
@pytest.mark.parametrize("array", ARRAYS)
def test_lists_and_maps_are_written_as_they_are_given(memory: Kit, array: str, at: slice) -> None:
    """NULL stays NULL, although an array may have values there; the fields of structs are written by their names."""
    values = ARRAYS[array][at]
    rows = pa.table({"k": pa.array(range(len(values)), pa.int64()), "m": values})
    table = memory.table(schema=rows.schema)
    path, _ = next(structs_in(table.schema().find_field("m").field_type, ("m",)))
    change(table, "move_first", (*path, "y"))
    table.append(rows)
    assert found(table.scan().to_arrow()) == found(rows)
    table.overwrite(table.scan().to_arrow())
    assert found(memory.again(table).scan().to_arrow()) == found(rows)


@pytest.mark.parametrize("size", [0, 1, 3, 2**30])
@pytest.mark.parametrize("first, rows", [(0, 4), (1, 3), (2, 0)])
def test_lists_of_a_fixed_size_begin_one_size_after_another(size: int, first: int, rows: int) -> None:
    """In a slice, and where 32 bits don't say where."""
    lists = pa.FixedSizeListArray.from_buffers(pa.list_(pa.null(), size), 4, [None], children=[pa.nulls(4 * size)])
    offsets = _offsets(lists.slice(first, rows))
    assert offsets.to_pylist() == [at * size for at in range(first, first + rows + 1)]
    assert offsets.type == (pa.int64() if (first + rows) * size >= 2**31 else pa.int32())
