"""A file of another program is read rightly, or refused, whatever types Parquet and Arrow store its columns as."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.catalog.kit import Kit

MOMENTS = [dt.datetime.fromisoformat(text) for text in ("1969-12-31T23:59:59", "2024-01-02T03:04:05")]
TEXTS = pa.dictionary(pa.int8(), pa.string())
WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
UNITS = ("s", "ms", "us", "ns")

COLUMNS: dict[str, tuple[IcebergType, list[pa.DataType], list[Any]]] = {
    "int": (IntegerType(), WHOLE, [1, 100]),
    "long": (LongType(), WHOLE, [1, 100]),
    "long of 32 bits": (LongType(), [pa.int64(), pa.uint32(), pa.uint64()], [1, 3_000_000_000]),
    "float": (FloatType(), [pa.float16(), pa.float32()], [-1.5, 2.5]),
    "double": (DoubleType(), [pa.float16(), pa.float32(), pa.float64()], [-1.5, 2.5]),
    "text": (StringType(), [pa.string(), pa.large_string(), pa.string_view(), TEXTS, pa.json_()], ["1", "2"]),
    "bytes": (BinaryType(), [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)], [b"aa", b"bb"]),
    "fixed": (FixedType(2), [pa.binary(2), pa.binary()], [b"aa", b"bb"]),
    "uuid": (UUIDType(), [pa.uuid(), pa.binary(16)], [uuid.UUID(int=1), uuid.UUID(int=2**127)]),
    "date": (DateType(), [pa.date32(), pa.date64()], [dt.date(1969, 1, 2), dt.date(2024, 1, 2)]),
    "time": (
        TimeType(),
        [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
        [dt.time(1, 2, 3), dt.time(23, 2, 3)],
    ),
    "moment": (TimestampType(), [pa.timestamp(unit) for unit in UNITS], MOMENTS),
    "moment in a zone": (
        TimestamptzType(),
        [*(pa.timestamp(unit, "UTC") for unit in UNITS), pa.timestamp("us", "Europe/Berlin")],
        [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS],
    ),
    "decimal": (
        DecimalType(9, 2),
        [pa.decimal32(9, 2), pa.decimal64(9, 2), pa.decimal128(9, 2), pa.decimal128(7, 2), pa.decimal256(9, 2)],
        [Decimal("-3.50"), Decimal("1.25")],
    ),
    "long decimal": (DecimalType(38, 2), [pa.decimal128(38, 2), pa.decimal256(38, 2)], [Decimal("-3.5"), Decimal(1)]),
    "boolean": (BooleanType(), [pa.bool_()], [False, True]),
}
STORED: dict[str, dict[str, Any]] = {
    "as Arrow does": {},
    "without Arrow's schema": {"store_schema": False},
    "as version 1": {"version": "1.0"},
    "decimals as integers": {"store_decimal_as_integer": True},
    "moments in 96 bits": {"use_deprecated_int96_timestamps": True},
    "moments in milliseconds": {"coerce_timestamps": "ms"},
}


def array(kind: pa.DataType, values: list[Any], *, nested: bool) -> pa.Array:
    """Return *values*; each in a list of its own if *nested*."""
    extends = isinstance(kind, pa.BaseExtensionType)
    made = pa.array(list(map(plain, values)), kind.storage_type if extends else kind)
    if extends:
        made = pa.ExtensionArray.from_storage(kind, made)
    return pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), made) if nested else made


def plain(value: Any) -> Any:
    """Return *value* as this file spells it: PyIceberg's readers return the bytes of a UUID."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.bytes if isinstance(value, uuid.UUID) else value


def fits(kind: pa.DataType, how: dict[str, Any]) -> bool:
    """Return whether it makes a difference to *kind* to store it in this way."""
    of_decimals, of_moments = "store_decimal_as_integer" in how, len(how.keys() & {"coerce_timestamps", *INT96}) > 0
    return (not of_decimals or pa.types.is_decimal(kind)) and (not of_moments or pa.types.is_timestamp(kind))


INT96 = ("use_deprecated_int96_timestamps",)
CASES = [
    pytest.param(column, kind, how, nested, id=f"{column}-{kind}-{how}-{'list' if nested else 'column'}")
    for column, (_, kinds, _) in COLUMNS.items()
    for kind in kinds
    for how in STORED
    if fits(kind, STORED[how])
    for nested in (False, True)
    if not nested or how in ("as Arrow does", "without Arrow's schema")
]


@pytest.mark.parametrize("column, kind, how, nested", CASES)
def test_a_file_with_this_type_is_read_rightly_or_refused(
    memory: Kit, column: str, kind: pa.DataType, how: str, nested: bool
) -> None:
    """Scans, filters, an upsert and a compaction agree on its rows, next to rows that the table wrote itself."""
    iceberg, _, values = COLUMNS[column]
    given = array(kind, values, nested=nested)
    if nested:
        iceberg = ListType(3, iceberg, element_required=False)
    table = memory.table(schema=Schema(NestedField(1, "k", iceberg), NestedField(2, "n", LongType())))
    path = f"{table.location()}/data/given.parquet"
    with table.io.new_output(path).create() as stream:
        pq.write_table(pa.table({"k": given, "n": [0, 1]}), stream, **STORED[how])
    try:
        table.add_files([path])
    except ValueError:
        assert table.current_snapshot() is None
        return

    expected = [[value] if nested else value for value in map(plain, values)]
    own = table.schema().as_arrow().field("k").type
    table.append(pa.table({"k": array(own.value_type if nested else own, values, nested=nested), "n": [2, 3]}))
    seen = sorted((n, plain(k)) for k, n in (row.values() for row in table.scan().to_arrow().to_pylist()))
    assert seen == list(enumerate(expected * 2))
    if not nested:
        for at, value in enumerate(values):
            found = table.scan(EqualTo(term="k", value=value)).to_arrow()["n"].to_pylist()
            assert sorted(found) == [at, at + 2], f"the rows that equal {value}"
            if column not in ("boolean", "uuid"):
                found = table.scan(GreaterThanOrEqual(term="k", value=value)).to_arrow()["n"].to_pylist()
                assert sorted(found) == [n for n in range(4) if n % 2 >= at], f"the rows from {value} on"
        table.delete("n >= 2")
        rows = table.scan().to_arrow()
        done = table.upsert(rows.set_column(1, "n", pa.array([7, 7])), ["k"])
        assert (done.rows_updated, done.rows_inserted) == (2, 0)
    table.compact()
    assert sorted(map(plain, table.scan().to_arrow()["k"].to_pylist())) == sorted(expected * (2 if nested else 1))


def dictionaries() -> dict[str, tuple[IcebergType, pa.Array]]:
    """Return columns that have a dictionary somewhere in them."""
    texts = pa.array(["a", "b"]).dictionary_encode()
    ends = pa.array([0, 1, 2], pa.int32())
    of_map: dict[str, Any] = {"key_id": 11, "key_type": StringType(), "value_id": 12, "value_type": StringType()}
    of_map["value_required"] = False
    return {
        "column": (StringType(), texts),
        "of numbers": (LongType(), pa.array([1, 2]).dictionary_encode()),
        "list": (ListType(11, StringType(), element_required=False), pa.ListArray.from_arrays(ends, texts)),
        "struct": (StructType(NestedField(11, "x", StringType())), pa.StructArray.from_arrays([texts], ["x"])),
        "value of a map": (MapType(**of_map), pa.MapArray.from_arrays(ends, pa.array(["k", "l"]), texts)),
        "key of a map": (MapType(**of_map), pa.MapArray.from_arrays(ends, texts, pa.array(["k", "l"]))),
    }


@pytest.mark.parametrize("call", ["append", "stream", "overwrite", "upsert"])
@pytest.mark.parametrize("place", dictionaries())
def test_rows_in_a_dictionary_are_read_next_to_others(memory: Kit, place: str, call: str) -> None:
    kind, column = dictionaries()[place]
    table = memory.table(schema=Schema(NestedField(1, "n", LongType()), NestedField(2, "k", kind)))
    given = pa.table({"n": [1, 2], "k": column})
    match call:
        case "append":
            table.append(given)
        case "stream":
            table.append(given.to_reader())
        case "overwrite":
            table.append(given)
            table.overwrite(given)
        case "upsert":
            table.upsert(given, ["n"])
    table.append(pa.table({"n": [3, 4], "k": given["k"].to_pylist()}, table.schema().as_arrow()))
    found = memory.again(table).scan().to_arrow().sort_by("n")
    assert found["k"].to_pylist() == given["k"].to_pylist() * 2


def test_keys_in_nanoseconds_are_those_that_an_append_writes(memory: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE", "true")
    table = memory.table(schema=Schema(NestedField(1, "k", TimestampType()), NestedField(2, "n", LongType())))
    moments = pa.array([1_704_067_200_000_000_123, 1_704_067_200_000_001_876, -1], pa.timestamp("ns"))
    table.append(pa.table({"k": moments, "n": [1, 2, 3]}))
    done = table.upsert(pa.table({"k": moments, "n": [4, 5, 6]}), ["k"])
    assert (done.rows_updated, done.rows_inserted) == (3, 0)
    assert sorted(memory.again(table).scan().to_arrow()["n"].to_pylist()) == [4, 5, 6]
