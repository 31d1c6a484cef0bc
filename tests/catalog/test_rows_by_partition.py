"""Each row is written once, into a file of its own partition, whatever its values are and whichever client writes."""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pyiceberg import transforms as X
from pyiceberg import types as T
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, IsNaN, IsNull
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec, _to_partition_representation
from pyiceberg.schema import Schema

from commit_coord.iceberg.bounds import sound_bounds
from commit_coord.iceberg.partitions import fixed_partitions, partitions_of_rows
from commit_coord.table.data_files import data_files
from tests.catalog.kit import Kit
from tests.proof.rows.read import readers

NAN = math.nan
OTHER_NAN = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0]
EPOCH, EARLY, LEAP = map(dt.datetime.fromisoformat, ("1970-01-01", "0001-01-01", "2020-02-29"))

VALUES: dict[T.PrimitiveType, list[Any]] = {
    T.DoubleType(): [0.0, -0.0, NAN, OTHER_NAN, math.inf, -math.inf, 1.5, 2.0**-60],
    T.FloatType(): [0.0, -0.0, NAN, math.inf, -math.inf, 1.5, -2.25],
    T.LongType(): [0, -1, 7, 2**63 - 1, -(2**62)],
    T.IntegerType(): [0, -1, 7, 2**31 - 1],
    T.BooleanType(): [True, False],
    T.StringType(): ["", "a", "é𝄞xyz", "𝄞𝄞𝄞𝄞", "a/b=c", "null", "z" * 40],
    T.BinaryType(): [b"", b"\x00\xff\x01\x02", b"abcd"],
    T.FixedType(4): [b"\x00\xff\x01\x02", b"abcd"],
    T.DecimalType(9, 2): [Decimal("0.00"), Decimal("-0.01"), Decimal("1234567.89"), Decimal("-10.65")],
    T.DecimalType(38, 10): [Decimal("0.0000000001"), Decimal("-9999999999999999999999999999.9999999999")],
    T.DateType(): [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    T.TimeType(): [dt.time(0), dt.time(23, 59, 59, 999999)],
    T.TimestampType(): [EPOCH, EPOCH - dt.timedelta(microseconds=1), EARLY, LEAP],
    T.TimestamptzType(): [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
        dt.datetime(2020, 2, 29, tzinfo=dt.UTC),
    ],
    T.UUIDType(): [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)],
}
TRANSFORMS: list[Any] = [
    X.IdentityTransform(),
    X.BucketTransform(4),
    X.TruncateTransform(3),
    X.YearTransform(),
    X.MonthTransform(),
    X.DayTransform(),
    X.HourTransform(),
    X.VoidTransform(),
]


def fitting(kind: T.PrimitiveType) -> list[Any]:
    return [transform for transform in TRANSFORMS if transform.can_transform(kind)]


def arrow(values: list[Any], kind: T.PrimitiveType) -> pa.Array:
    stored = schema_to_pyarrow(kind, include_field_ids=False)
    if isinstance(kind, T.UUIDType):
        raw = pa.array([value.bytes if value is not None else None for value in values], stored.storage_type)
        return pa.ExtensionArray.from_storage(stored, raw)
    return pa.array(values, stored)


def known(value: Any) -> Any:
    """Return what tells *value* from every other: the sign of zero counts, and NaN equals NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (math.copysign(1, value), value)
    return _known_struct(value) if isinstance(value, dict) else value


def _known_struct(value: dict[str, Any]) -> Any:
    return tuple(known(item) for item in value.values())


def bag(rows: pa.Table) -> Counter[Any]:
    return Counter(_known_struct(row) for row in rows.to_pylist())


def own_partition(row: dict[str, Any], spec: PartitionSpec, schema: Schema) -> tuple[Any, ...]:
    """Return the partition of *row* as the Iceberg spec has it, by PyIceberg's transform of single values."""
    found: list[Any] = []
    for field in spec.fields:
        if isinstance(field.transform, X.VoidTransform):
            found.append(None)
            continue
        kind, value = schema.find_type(field.source_id), cast(Any, row)
        for name in str(schema.find_column_name(field.source_id)).split("."):
            value = value[name] if value is not None else None
        result = field.transform.transform(kind)(_to_partition_representation(kind, value))
        found.append("NaN" if isinstance(result, float) and math.isnan(result) else result)
    return tuple(found)


def check(kit: Kit, table: Any, expected: Counter[Any]) -> None:
    """Assert that stock PyIceberg reads *expected*, that each value finds its rows, that files are of one partition."""
    theirs = kit.stock.load_table(table.name())
    schema, metadata = theirs.schema(), theirs.metadata
    everything = theirs.scan().to_arrow()
    assert expected == bag(everything)
    for task in theirs.scan().plan_files():
        spec = metadata.specs()[task.file.spec_id]
        values = [v.bytes if isinstance(v, uuid.UUID) else v for v in task.file.partition._data]
        partition = tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in values)
        rows = ArrowScan(metadata, theirs.io, schema, AlwaysTrue()).to_table([task]).to_pylist()
        assert len(rows) == task.file.record_count > 0
        assert {partition} == {own_partition(row, spec, schema) for row in rows}, spec
        assert not any(isinstance(v, float) and v == 0 and math.copysign(1, v) < 0 for v in values)
    parted = {f.source_id for f in theirs.spec().fields if isinstance(f.transform, X.IdentityTransform)}
    for field in schema.fields:
        # To PyIceberg no value of a UUID column equals a literal.
        if isinstance(field.field_type, T.PrimitiveType) and not isinstance(field.field_type, T.UUIDType):
            for value in {known(v): v for v in everything[field.name].to_pylist()}.values():
                # In a file with other numbers Arrow overlooks NaN, partitions or none: Parquet's bounds leave it out.
                # And no literal of PyIceberg's is an infinity of 32 bits.
                infinite = isinstance(field.field_type, T.FloatType) and value in (math.inf, -math.inf)
                if not infinite and (known(value) != "NaN" or field.field_id in parted):
                    _check_found(theirs, everything, field, value)


def _check_found(theirs: Any, everything: pa.Table, field: T.NestedField, value: Any) -> None:
    condition: BooleanExpression
    same: Callable[[Any], bool]
    if value is None:
        condition, same = IsNull(term=field.name), lambda other: other is None
    elif isinstance(value, float) and math.isnan(value):
        condition, same = IsNaN(term=field.name), lambda other: other is not None and math.isnan(other)
    else:
        literal = value.bytes if isinstance(value, uuid.UUID) else value
        condition, same = EqualTo(term=field.name, value=literal), lambda other: other == value
    wanted = Counter(_known_struct(row) for row in everything.to_pylist() if same(row[field.name]))
    assert wanted == bag(theirs.scan(condition).to_arrow()), (condition, value)


# The writers: each leaves the rows in the table, once.


def by_append(table: Any, rows: pa.Table) -> None:
    table.append(rows)


def by_appends_in_a_transaction(table: Any, rows: pa.Table) -> None:
    with table.transaction() as tx:
        tx.append(rows.slice(0, 1))
        tx.append(rows.slice(1))


def by_overwrite(table: Any, rows: pa.Table) -> None:
    table.append(rows)
    table.overwrite(rows)


def by_update_rows(table: Any, rows: pa.Table) -> None:
    table.append(rows.slice(0, 1))
    with table.transaction() as tx:
        tx.update_rows(AlwaysTrue(), lambda _: rows)


def by_delete_of_one_row(table: Any, rows: pa.Table) -> None:
    """The rows that are kept are written anew, and their partitions are others than before."""
    spec = table.spec()
    with table.update_spec() as update:
        for field in spec.fields:
            update.remove_field(field.name)
    other = rows.slice(0, 1).set_column(0, rows.schema.field(0), pa.array([-1], pa.int64()))
    table.append(pa.concat_tables([rows, other]))
    times: set[int] = set()
    with table.update_spec() as update:
        for field in spec.fields:
            if isinstance(field.transform, X.VoidTransform):
                continue
            if isinstance(field.transform, X.TimeTransform):
                if field.source_id in times:
                    continue  # PyIceberg adds one of a column
                times.add(field.source_id)
            update.add_field(table.schema().find_column_name(field.source_id), field.transform, f"{field.name}_new")
    table.delete("k == -1")


def by_compaction(table: Any, rows: pa.Table) -> None:
    table.append(rows)
    table.append(rows.slice(0, 1))
    table.compact()
    table.delete(EqualTo(term="k", value=0))
    table.append(rows.filter(pc.equal(rows["k"], 0)))
    table.compact()


def by_upsert(table: Any, rows: pa.Table) -> None:
    half = rows.num_rows // 2
    table.append(rows.slice(half))
    try:
        table.upsert(rows, join_cols=["k"])
    except pa.ArrowNotImplementedError:
        # PyIceberg's upsert asks for a table of no rows, which Arrow can't make of a uuid in a struct.
        with pytest.raises(pa.ArrowNotImplementedError):
            rows.schema.empty_table()
        reject()


def by_dynamic_overwrite(table: Any, rows: pa.Table) -> None:
    if all(isinstance(field.transform, X.IdentityTransform) for field in table.spec().fields):
        table.append(rows)
        table.dynamic_partition_overwrite(rows)
    else:
        table.append(rows)


def by_files_of_partitions(table: Any, rows: pa.Table) -> None:
    table.append(rows)
    assert table.commit_files(list(data_files(table.metadata, rows, table.io)), mode="dynamic")


WRITERS: list[Callable[[Any, pa.Table], None]] = [
    by_append,
    by_appends_in_a_transaction,
    by_overwrite,
    by_update_rows,
    by_delete_of_one_row,
    by_compaction,
    by_upsert,
    by_dynamic_overwrite,
    by_files_of_partitions,
]


@st.composite
def tables(draw: Any) -> tuple[Schema, PartitionSpec, pa.Table]:
    """Draw a schema, a spec over some of its columns, one of them in a struct, and rows of nasty values."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    if draw(st.booleans()):
        kinds[0] = draw(st.sampled_from([T.DoubleType(), T.FloatType()]))
    count = draw(st.integers(1, 12))
    fields = [T.NestedField(1, "k", T.LongType())]
    columns: list[pa.Array] = [pa.array(range(count), pa.int64())]
    parts: list[PartitionField] = []
    for number, kind in enumerate(kinds):
        values = draw(st.lists(st.sampled_from([*VALUES[kind], None]), min_size=count, max_size=count))
        column, place = arrow(values, kind), 10 * number + 10
        name = draw(st.sampled_from(["c", "a b", "_partition_p", "x-y"])) + str(number)
        if draw(st.integers(0, 3)) == 0:
            inner = T.NestedField(place + 1, "in", kind)
            fields.append(T.NestedField(place, name, T.StructType(inner)))
            absent = pa.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
            columns.append(pa.StructArray.from_arrays([column], ["in"], mask=absent))
            source = place + 1
        else:
            fields.append(T.NestedField(place, name, kind))
            columns.append(column)
            source = place
        for transform in draw(st.lists(st.sampled_from(fitting(kind)), min_size=1, max_size=2, unique=True)):
            parts.append(PartitionField(source, 1000 + len(parts), transform, f"p{len(parts)}"))
    rows = pa.table(columns, names=[field.name for field in fields])
    cut = draw(st.integers(0, count))
    return Schema(*fields), PartitionSpec(*parts), pa.concat_tables([rows.slice(0, cut), rows.slice(cut)])


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@given(made=tables(), writer=st.sampled_from(WRITERS))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_each_row_is_written_once_into_its_partition(memory: Kit, made: Any, writer: Any) -> None:
    """Random specs and nasty values through every writer, read by stock PyIceberg."""
    schema, spec, rows = made
    table = memory.table(schema=schema, partition_spec=spec)
    writer(table, rows)
    check(memory, memory.again(table), bag(rows))


# What the property draws seldom, or not at all.


def _by(source: int, transform: Any = X.IdentityTransform(), name: str = "p") -> PartitionSpec:  # noqa: B008
    return PartitionSpec(PartitionField(source, 1000, transform, name))


def _number(kind: T.PrimitiveType) -> Schema:
    return Schema(T.NestedField(1, "k", T.LongType()), T.NestedField(2, "x", kind))


@pytest.mark.parametrize("kind", [T.FloatType(), T.DoubleType()], ids=str)
def test_zeros_of_both_signs_and_nan_are_written_once_and_found_by_every_reader(memory: Kit, kind: Any) -> None:
    table = memory.table(schema=_number(kind), partition_spec=_by(2))
    rows = pa.table({"k": [1, 2, 3, 4, 5], "x": arrow([0.0, -0.0, NAN, None, 1.5], kind)})
    table.append(rows)
    check(memory, table, bag(rows))
    assert 4 == len(list(table.scan().plan_files()))
    location = table.metadata_location.removeprefix("file://")
    for condition, keys in {
        "x = 0": [1, 2],
        "x <= 0": [1, 2],
        "x >= 0 AND NOT isnan(x)": [1, 2, 5],
        "isnan(x)": [3],
        "x IS NULL": [4],
    }.items():
        found = readers.query_duckdb(f"SELECT k FROM iceberg_scan('{location}') WHERE {condition} ORDER BY k")
        assert keys == found["k"].to_pylist(), condition


def test_a_partition_of_infinity_is_replaced(memory: Kit) -> None:
    for kind in (T.FloatType(), T.DoubleType()):
        table = memory.table(schema=_number(kind), partition_spec=_by(2))
        values = [math.inf, -math.inf, 3e38, -3e38]
        table.append(pa.table({"k": [1, 2, 3, 4], "x": arrow(values, kind)}))
        table.dynamic_partition_overwrite(pa.table({"k": [5, 6], "x": arrow(values[:2], kind)}))
        assert [3, 4, 5, 6] == sorted(table.scan().to_arrow()["k"].to_pylist())


def test_zeros_of_both_signs_share_a_lock(memory: Kit) -> None:
    schema, spec = _number(T.FloatType()), _by(2)
    rows = pa.table({"k": [1, 2, 3], "x": pa.array([0.0, -0.0, 0.1], pa.float32())})
    locked = {tuple(levels) for levels in partitions_of_rows(rows, spec, schema)}
    assert {("p=0.0",), ("p=0.10000000149011612",)} == locked
    for value in (0.0, -0.0, 0.1):
        assert set(map(tuple, fixed_partitions(EqualTo(term="x", value=value), spec, schema))) <= locked


@pytest.mark.parametrize("kind, bits", [(T.IntegerType(), 32), (T.LongType(), 64)], ids=str)
def test_a_number_whose_partition_is_out_of_range_is_refused(memory: Kit, kind: T.PrimitiveType, bits: int) -> None:
    """Its truncated number would run over, and be far above it: other engines' filters would not find the row."""
    table = memory.table(schema=_number(kind), partition_spec=_by(2, X.TruncateTransform(10)))
    least = -(2 ** (bits - 1))
    with pytest.raises(ValueError, match="below the range of"):
        table.append(pa.table({"k": [1], "x": arrow([least], kind)}))
    fits = next(number for number in range(least, least + 10) if number % 10 == 0)
    table.append(pa.table({"k": [2], "x": arrow([fits], kind)}))
    assert [2] == table.scan(EqualTo(term="x", value=fits)).to_arrow()["k"].to_pylist()


def test_a_partition_that_wrapped_around_as_an_int_is_found_after_the_column_became_a_long(memory: Kit) -> None:
    table = memory.table(schema=_number(T.IntegerType()), partition_spec=_by(2, X.TruncateTransform(10)))
    rows = pa.table({"k": [1, 2], "x": pa.array([-(2**31), 5], pa.int32())})
    table.commit_files(list(data_files(table.metadata, rows, table.io, carried=True)))
    with table.update_schema() as change:
        change.update_column("x", T.LongType())
    assert [1] == table.scan("x < 0").to_arrow()["k"].to_pylist()
    table.delete("x >= 0")
    assert [1] == memory.again(table).scan().to_arrow()["k"].to_pylist()


def test_a_partition_is_of_the_column_that_is_written(memory: Kit) -> None:
    """PyIceberg writes columns by field id where Arrow's schema has ids; names may then be those of others."""
    schema = Schema(T.NestedField(1, "a", T.LongType()), T.NestedField(2, "b", T.LongType()))
    table = memory.table(schema=schema, partition_spec=_by(1))
    fields = [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(field_id)})
        for name, field_id in (("b", 1), ("a", 2))
    ]
    table.append(pa.table([pa.array([1, 2]), pa.array([3, 3])], schema=pa.schema(fields)))
    check(memory, table, bag(pa.table({"a": [1, 2], "b": [3, 3]})))


def test_a_column_that_the_rows_lack_is_a_null_partition(memory: Kit) -> None:
    table = memory.table(schema=_number(T.LongType()), partition_spec=_by(2))
    table.append(pa.table({"k": [1, 2]}))
    check(memory, table, bag(pa.table({"k": [1, 2], "x": pa.array([None, None], pa.int64())})))


def test_a_void_field_of_a_dropped_column_is_null(memory: Kit) -> None:
    table = memory.table(schema=_number(T.DoubleType()), partition_spec=_by(2), properties={"format-version": "1"})
    table.append(pa.table({"k": [1], "x": [NAN]}))
    with table.update_spec() as update:
        update.remove_field("p")
    with table.update_schema() as change:
        change.delete_column("x")
    table.append(pa.table({"k": [2, 3]}))
    table.delete("k = 2")
    assert [1, 3] == sorted(table.scan().to_arrow()["k"].to_pylist())
    assert [1, 3] == sorted(memory.stock.load_table(table.name()).scan().to_arrow()["k"].to_pylist())


@pytest.mark.parametrize(
    "kind, given_as",
    [
        (T.StringType(), pa.dictionary(pa.int32(), pa.string())),
        (T.StringType(), pa.string()),
        (T.BinaryType(), pa.binary()),
        (T.LongType(), pa.uint32()),
        (T.LongType(), pa.int8()),
        (T.IntegerType(), pa.uint16()),
        (T.DoubleType(), pa.float16()),
        (T.DoubleType(), pa.float32()),
        (T.TimestampType(), pa.timestamp("s")),
        (T.DateType(), pa.date32()),
    ],
    ids=str,
)
def test_rows_of_another_arrow_type_are_split_as_they_are_stored(memory: Kit, kind: Any, given_as: Any) -> None:
    plain = [0, 1, None, 1, 0]
    values: pa.Array = pa.array(plain, pa.int64())
    if isinstance(kind, T.StringType | T.BinaryType):
        values = pa.array(["a", "b", None, "b", "a"])
    elif pa.types.is_floating(given_as):
        values = pa.array([0.0, -0.0, None, NAN, 1.5])
    values = (
        pc.cast(values, pa.int32()).cast(given_as)
        if isinstance(kind, T.DateType)
        else (values.dictionary_encode() if pa.types.is_dictionary(given_as) else values.cast(given_as))
    )
    table = memory.table(schema=_number(kind), partition_spec=_by(2))
    rows = pa.table({"k": range(5), "x": values})
    table.append(rows)
    assert bag(rows) == bag(table.scan().to_arrow())
    check(memory, table, bag(rows))


def test_an_unsigned_number_beyond_its_column_is_refused(memory: Kit) -> None:
    table = memory.table(schema=_number(T.IntegerType()), partition_spec=_by(2))
    with pytest.raises(ValueError):  # noqa: PT011 - Arrow's words
        table.append(pa.table({"k": [1], "x": pa.array([2**32 - 1], pa.uint32())}))
    assert table.scan().to_arrow().num_rows == 0


def test_a_double_keeps_its_digits_in_manifests_that_are_written_anew(memory: Kit) -> None:
    table = memory.table(schema=_number(T.DoubleType()), partition_spec=_by(2))
    table.append(pa.table({"k": [1, 2, 3], "x": [0.1, 5e-324, 1e300]}))
    table.delete(EqualTo(term="k", value=2))
    (manifest,) = [m for m in table.current_snapshot().manifests(table.io) if m.has_existing_files()]
    with table.io.new_input(manifest.manifest_path).open() as stream:
        entries = cast(list[dict[str, Any]], list(fastavro.reader(stream)))
    stored = [entry["data_file"]["partition"]["p"] for entry in entries if entry["status"] != 2]
    assert [0.1, 1e300] == sorted(stored)
    assert [1] == table.scan(EqualTo(term="x", value=0.1)).to_arrow()["k"].to_pylist()


@pytest.mark.parametrize("kind", [T.FloatType(), T.DoubleType()], ids=str)
def test_bounds_of_zero_hold_both_zeros_and_nan_is_no_bound(kind: T.PrimitiveType) -> None:
    schema = _number(kind)
    for zero in (0.0, -0.0):
        bounds = {2: to_bytes(kind, zero)}
        found = sound_bounds({"lower_bounds": bounds, "upper_bounds": bounds}, schema)
        assert {"lower_bounds": {2: to_bytes(kind, -0.0)}, "upper_bounds": {2: to_bytes(kind, 0.0)}} == found
    nan = {2: to_bytes(kind, NAN)}
    assert {"lower_bounds": {}, "upper_bounds": {}} == sound_bounds({"lower_bounds": nan, "upper_bounds": nan}, schema)
