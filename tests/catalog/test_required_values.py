"""A row that lacks a required value is refused: Arrow writes an empty list, or 0, in the place of such a NULL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, LongType, MapType, NestedField, StringType, StructType, UUIDType

from commit_coord.errors import StatementError
from commit_coord.iceberg.required import complete
from tests.catalog.kit import Kit, files_in, rows

LONGS = ListType(30, LongType(), element_required=False)
SHAPES: dict[str, tuple[IcebergType, Any, Any, str]] = {
    "a number": (LongType(), 1, None, "x"),
    "a text": (StringType(), "", None, "x"),
    "a list": (LONGS, [], None, "x"),
    "a map": (MapType(30, StringType(), 31, LongType(), value_required=False), [], None, "x"),
    "a struct": (StructType(NestedField(30, "n", LongType())), {"n": None}, None, "x"),
    "a list's element": (ListType(30, LongType(), element_required=True), [1], [1, None], "x.element"),
    "a list of lists' element": (ListType(29, LONGS, element_required=True), [[]], [None], "x.element"),
    "a map's value": (MapType(31, StringType(), 32, LONGS, value_required=True), [("a", [])], [("a", None)], "x.value"),
    "a struct's field": (
        StructType(NestedField(29, "n", LONGS, required=True)),
        {"n": [None]},
        {"n": None},
        "x.n",
    ),
}


def table_of(made: Kit, kind: IcebergType, parted: bool) -> Any:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "k")) if parted else PartitionSpec()
    return made.table(
        schema=Schema(NestedField(1, "k", LongType()), NestedField(2, "x", kind, required=True)), partition_spec=spec
    )


def given_rows(table: Any, k: int, value: Any) -> pa.Table:
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.table([pa.array([k, k]), pa.array([value, value], schema.field("x").type)], schema=schema)


def put(table: Any, value: Any) -> None:
    def change(found: pa.Table) -> pa.Table:
        x = found.schema.field("x")
        return found.set_column(1, x, pa.array([value] * found.num_rows, x.type))

    with table.transaction() as tx:
        tx.update_rows("k == 1", change)


STREAM, DYNAMIC = ("append of a stream", True), ("dynamic overwrite", False)
HOW: dict[str, Any] = {
    "append": lambda table, value: table.append(given_rows(table, 2, value)),
    "append of a stream": lambda table, value: table.append(given_rows(table, 2, value).to_reader()),
    "overwrite": lambda table, value: table.overwrite(given_rows(table, 2, value), "k == 1"),
    "dynamic overwrite": lambda table, value: table.dynamic_partition_overwrite(given_rows(table, 1, value)),
    "upsert": lambda table, value: table.upsert(given_rows(table, 1, value).slice(0, 1), join_cols=["k"]),
    "update_rows": put,
}


# PyIceberg streams into no partitions, and overwrites none of a table that has none.
CALLS = [(how, parted) for how in HOW for parted in (False, True) if (how, parted) not in (STREAM, DYNAMIC)]


@pytest.mark.parametrize("how, parted", CALLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_that_lacks_a_required_value_is_refused_and_leaves_no_file(
    memory: Kit, shape: str, how: str, parted: bool
) -> None:
    kind, fine, wrong, path = SHAPES[shape]
    table = table_of(memory, kind, parted)
    table.append(given_rows(table, 1, fine).slice(0, 1))
    before, there = files_in(table.location()), rows(table)
    with pytest.raises(StatementError, match=f"a required column lacks a value: column='{path}'"):
        HOW[how](memory.again(table), wrong)
    assert (before, there) == (files_in(table.location()), rows(memory.again(table)))
    HOW[how](memory.again(table), fine)
    assert {repr(row[1]) for row in rows(memory.again(table))} == {repr(rows(table)[0][1])}


def kinds(depth: int = 2) -> st.SearchStrategy[IcebergType]:
    plain = st.sampled_from([LongType(), UUIDType()])
    if not depth:
        return plain
    inner = kinds(depth - 1)
    return st.one_of(
        plain,
        st.builds(lambda kind, must: ListType(90, kind, element_required=must), inner, st.booleans()),
        st.builds(lambda kind, must: MapType(90, StringType(), 91, kind, value_required=must), inner, st.booleans()),
        st.builds(
            lambda one, must, other: StructType(
                NestedField(90, "a", one, required=must), NestedField(91, "b", other, required=False)
            ),
            inner,
            st.booleans(),
            inner,
        ),
    )


def values(kind: IcebergType) -> st.SearchStrategy[Any]:
    match kind:
        case StructType(fields=fields):
            whole: Any = st.fixed_dictionaries({f.name: values(f.field_type) for f in fields})
        case ListType():
            whole = st.lists(values(kind.element_type), max_size=2)
        case MapType():
            whole = st.lists(st.tuples(st.sampled_from("xyz"), values(kind.value_type)), max_size=2)
        case UUIDType():
            whole = st.just(b"a" * 16)
        case _:
            whole = st.just(1)
    return st.one_of(st.none(), whole, whole)


def lacks(kind: IcebergType, value: Any) -> bool:
    if value is None:
        return False
    match kind:
        case StructType(fields=fields):
            return any((f.required and value[f.name] is None) or lacks(f.field_type, value[f.name]) for f in fields)
        case ListType():
            return any((kind.element_required and one is None) or lacks(kind.element_type, one) for one in value)
        case MapType():
            return any((kind.value_required and one is None) or lacks(kind.value_type, one) for _, one in value)
    return False


def nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, nullable(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, nullable(kind.item_type))
    return pa.list_(nullable(kind.value_type)) if pa.types.is_large_list(kind) else kind


def stored(kind: pa.DataType) -> pa.DataType:
    """Return *kind* with what is stored in the place of each UUID: Arrow builds no nested ones of Python's values."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, stored(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, stored(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(stored(kind.value_type))
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


@st.composite
def tables(draw: st.DrawFn) -> tuple[StructType, list[Any]]:
    columns = StructType(NestedField(1, "x", draw(kinds(3)), required=draw(st.booleans())))
    return columns, draw(st.lists(st.fixed_dictionaries({"x": values(columns.fields[0].field_type)}), max_size=4))


@settings(max_examples=400, deadline=None)
@given(tables(), st.integers(0, 2))
def test_what_is_missing_is_found_at_any_depth_and_in_a_slice(made: tuple[StructType, list[Any]], start: int) -> None:
    columns, there = made
    schema = schema_to_pyarrow(Schema(*columns.fields), include_field_ids=False)
    loose = pa.schema([pa.field("x", nullable(schema.field("x").type))])
    built = pa.Table.from_pylist(there, schema=pa.schema([pa.field("x", stored(loose.field("x").type))]))
    found = built.cast(loose).slice(start)
    if any(lacks(columns, row) for row in there[start:]):
        with pytest.raises(StatementError, match="lacks a value"):
            complete(found, columns)
        with pytest.raises(StatementError, match="lacks a value"):
            complete(found.to_reader(), columns).read_all()
    else:
        assert complete(found, columns).equals(found)
        assert complete(found.to_reader(), columns).read_all().equals(found)
