"""Row filters are true of the rows that they say: deletes and updates by them leave no row behind in silence."""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, Not
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, parse_transform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimeType,
    UUIDType,
)

import commit_coord
from commit_coord.testing.table_files.observed import Files, Observed
from tests.catalog.kit import NO_MATCH
from tests.proof.rows.model.conditions import Compare, In, IsNull, NotNull
from tests.proof.rows.read.readers import expression

E: Any = expressions  # whose classes say less than they take
ONE, TWO, THREE = (UUID(int=number) for number in (1, 2**100, 2**127 + 3))


def compared(operator: str, value: Any) -> BooleanExpression:
    return expression(Compare("x", operator, value))


def among(values: Iterable[Any]) -> BooleanExpression:
    return expression(In("x", tuple(values)))


def made(catalog: Any, kind: Any, *values: Any, transform: Any = None, **properties: str) -> Any:
    """Return a table of one column, partitioned by it where *transform* is given, with one file for each value."""
    spec = PartitionSpec(*([PartitionField(1, 1000, transform, "part")] if transform is not None else []))
    schema = Schema(NestedField(1, "x", kind))
    table = catalog.create_table("db.filtered", schema, partition_spec=spec, properties=properties)
    for value in values:
        table.append(arrow(kind, value))
    return table


def arrow(kind: Any, *values: Any) -> pa.Table:
    plain = [value.bytes if isinstance(value, UUID) else value for value in values]
    return pa.table([pa.array(plain, schema_to_pyarrow(kind))], names=["x"])


def left(table: Any) -> list[Any]:
    return sorted(table.scan().to_arrow().column("x").to_pylist(), key=repr)


@pytest.mark.parametrize("transform", [None, IdentityTransform(), BucketTransform(4)], ids=str)
@pytest.mark.parametrize(
    "condition, there",
    [
        (compared("==", TWO), {TWO}),
        (among([ONE, THREE]), {ONE, THREE}),
        (compared("<", TWO), {ONE}),
        (compared("<=", TWO), {ONE, TWO}),
        (compared(">", TWO), {THREE}),
        (compared(">=", TWO), {TWO, THREE}),
        (expression(NotNull("x")), {ONE, TWO, THREE}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_delete_by_a_uuid_deletes_what_a_scan_by_it_shows(
    catalog: Any, transform: Any, condition: BooleanExpression, there: set[UUID]
) -> None:
    table = made(catalog, UUIDType(), ONE, TWO, THREE, None, transform=transform)
    assert set(table.scan(condition).to_arrow().column("x").to_pylist()) == there
    table.delete(condition)
    assert set(left(table)) == {ONE, TWO, THREE, None} - there


@pytest.mark.parametrize("kind, condition", [(IntegerType(), "x < 3000000000"), (FloatType(), "x <= 1" + 40 * "0")])
def test_null_is_not_below_a_number_that_the_column_can_not_have(catalog: Any, kind: Any, condition: str) -> None:
    table = made(catalog, kind, 1, None, *([math.nan] if kind == FloatType() else []))
    table.delete(condition)
    assert repr(left(table)) == ("[None, nan]" if kind == FloatType() else "[None]")


@pytest.mark.parametrize("others", [[], [1], [1, 2]])
def test_a_number_that_the_column_can_not_have_is_in_no_set(catalog: Any, others: list[int]) -> None:
    greatest, least = 2**31 - 1, -(2**31)
    table = made(catalog, IntegerType(), 1, greatest, least, None)
    condition = among([3_000_000_000, -3_000_000_000, *others])
    assert sorted(table.scan(condition).to_arrow().column("x").to_pylist()) == ([1] if others else [])
    if others:
        table.delete(condition)
        assert left(table) == [least, greatest, None]


@pytest.mark.parametrize("transform", [None, IdentityTransform(), BucketTransform(4)], ids=str)
@pytest.mark.parametrize(
    "condition, there",
    [
        (E.NotEqualTo("x", 5), [1, 7]),
        (E.NotEqualTo("x", 3_000_000_000), [1, 5, 7]),
        (E.NotIn("x", {5, 6}), [1, 7]),
        (E.NotIn("x", {5, 3_000_000_000}), [1, 7]),
        (E.NotIn("x", {3_000_000_000, 3_000_000_001}), [1, 5, 7]),
        (E.Not(E.EqualTo("x", 5)), [1, 7]),
        (E.Not(E.In("x", {5, 6})), [1, 7]),
        (E.Not(E.LessThan("x", 5)), [5, 7]),
        (E.Not(E.And(E.NotEqualTo("x", 5), E.NotNull("x"))), [5, None, None, None]),
        (E.Or(E.Not(E.LessThan("x", 3_000_000_000)), E.EqualTo("x", 1)), [1]),
        (E.Or(E.Not(E.NotEqualTo("x", 3_000_000_000)), E.EqualTo("x", 1)), [1]),
    ],
    ids=str,
)
def test_null_is_neither_so_nor_otherwise(
    catalog: Any, condition: BooleanExpression, there: Any, transform: Any
) -> None:
    table = made(catalog, IntegerType(), transform=transform)
    for values in ([None], [1, None], [5, None], [7]):
        table.append(arrow(IntegerType(), *values))
    assert counted(table, condition, there) == [1, 5, 7, None, None, None]


@pytest.mark.parametrize("transform", [None, IdentityTransform()], ids=str)
def test_null_is_neither_nan_nor_a_number(catalog: Any, transform: Any) -> None:
    table = made(catalog, FloatType(), transform=transform)
    for values in ([None], [1.0, None], [math.nan, None], [math.nan]):
        table.append(arrow(FloatType(), *values))
    assert repr(counted(table, E.NotNaN("x"), [1.0])) == repr([1.0, math.nan, math.nan, None, None, None])
    # What is no number is not below 2, nor is it 2 or more; but it is another one than 2.
    counted(table, E.Not(E.LessThan("x", 2.0)), [])
    assert table.scan(E.Not(E.EqualTo("x", 2.0))).to_arrow().num_rows == 2


@pytest.mark.parametrize(
    "condition",
    [
        E.NotEqualTo("x", "a"),
        E.NotIn("x", {"a", "b"}),
        E.NotStartsWith("x", "a"),
        E.Not(E.EqualTo("x", "a")),
        E.NotEqualTo("s.y", "a"),
    ],
    ids=str,
)
def test_rows_from_before_a_column_was_added_have_null_in_it(catalog: Any, condition: BooleanExpression) -> None:
    table = catalog.create_table("db.filtered", Schema(NestedField(1, "k", LongType())))
    table.append(pa.table({"k": pa.array([1, 2], pa.int64())}))
    with table.update_schema() as update:
        update.add_column("x", StringType())
        update.add_column("s", StructType(NestedField(4, "y", StringType())))
    new = {"k": 3, "x": "c", "s": {"y": "c"}}
    table.append(pa.Table.from_pylist([new], table.schema().as_arrow()))
    assert table.scan(condition).to_arrow()["k"].to_pylist() == [3]
    table.delete(condition)
    assert sorted(table.scan().to_arrow()["k"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("condition", [E.NotEqualTo("x", 1.5), E.NotIn("x", {1.5, 2.5}), E.IsNaN("x")], ids=str)
def test_nan_is_another_number_than_its_neighbours(catalog: Any, condition: BooleanExpression) -> None:
    """The bounds of their row group are 1.5, by which Arrow would skip it."""
    table = made(catalog, DoubleType())
    table.append(arrow(DoubleType(), 1.5, math.nan))
    assert repr(counted(table, condition, [math.nan])) == "[1.5, nan]"


@pytest.mark.parametrize("column", ["null", "value"])
def test_the_partition_of_a_required_field_may_be_null_where_its_struct_is(catalog: Any, column: str) -> None:
    struct = StructType(NestedField(2, "r", LongType(), required=True))
    schema = Schema(NestedField(1, "s", struct, required=False), NestedField(3, "k", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "r"))
    table = catalog.create_table("db.filtered", schema, partition_spec=spec)
    named = [{"s": None, "k": 1}, {"s": {"r": 5}, "k": 2}]
    table.append(pa.Table.from_pylist(named, schema_to_pyarrow(table.schema())))
    condition, keys = (E.IsNull("s.r"), [1]) if column == "null" else (E.NotNull("s.r"), [2])
    assert table.scan(condition).to_arrow()["k"].to_pylist() == keys
    table.delete(condition)
    assert table.scan().to_arrow()["k"].to_pylist() == [3 - keys[0]]


@pytest.mark.parametrize("transform", [None, IdentityTransform(), parse_transform("truncate[1]")], ids=str)
def test_null_starts_with_nothing_and_does_not_start_otherwise(catalog: Any, transform: Any) -> None:
    table = made(catalog, StringType(), transform=transform)
    for values in ([None], ["ab", None], ["b", None]):
        table.append(arrow(StringType(), *values))
    assert counted(table, E.NotStartsWith("x", "a"), ["b"]) == ["ab", "b", None, None, None]


def counted(table: Any, condition: BooleanExpression, there: list[Any]) -> list[Any]:
    """Check what a scan, a count and a delete by *condition* take of *table*, and return what was in it, None last."""
    everything = table.scan().to_arrow().column("x").to_pylist()
    assert sorted(map(repr, table.scan(condition).to_arrow().column("x").to_pylist())) == sorted(map(repr, there))
    assert table.scan(condition).count() == len(there)
    if there:
        table.delete(condition)
    left_over = list(map(repr, left(table)))
    assert sorted([*left_over, *map(repr, there)]) == sorted(map(repr, everything))
    return sorted(everything, key=lambda value: (value is None, repr(value)))


@pytest.mark.parametrize("promoted", [False, True])
def test_only_infinity_is_beyond_the_greatest_float(catalog: Any, promoted: bool) -> None:
    table = made(catalog, FloatType(), math.inf, -math.inf, 1.0, math.nan, None)
    if promoted:
        with table.update_schema() as update:
            update.update_column("x", DoubleType())
    assert table.scan(compared("==", 1e300)).to_arrow().num_rows == 0
    table.delete(compared(">", 1e300))
    assert repr(left(table)) == "[-inf, 1.0, None, nan]"
    table.delete(compared("<=", -1e300))
    assert repr(left(table)) == "[1.0, None, nan]"
    table.delete(compared("<", 1e300))
    assert repr(left(table)) == "[None, nan]"


@pytest.mark.parametrize(
    "condition, there",
    [
        (compared("==", 1e-300), []),
        (compared("!=", 1e-300), [0.0, 1.0]),
        (compared("<", 1e-300), [0.0]),
        (compared("<=", 1.00000001), [0.0, 1.0]),
        (compared(">", 0.99999999), [1.0]),
        (compared(">=", 5e-324), [1.0]),
        (among([1e-300, 0.99999999]), []),
        (among([1e-300, 1.0, 0.99999999]), [1.0]),
        (~among([1e-300, 0.99999999]), [0.0, 1.0]),
    ],
    ids=str,
)
def test_a_file_of_floats_is_asked_in_doubles(catalog: Any, condition: BooleanExpression, there: list[float]) -> None:
    table = made(catalog, FloatType(), None, 0.0, 1.0)
    with table.update_schema() as change:
        change.update_column("x", DoubleType())
    assert sorted(table.scan(condition).to_arrow().column("x").to_pylist()) == there
    if there:
        table.delete(condition)
        assert len(left(table)) == 3 - len(there)


def test_infinity_is_a_float(catalog: Any) -> None:
    table = made(catalog, FloatType(), math.inf, -math.inf, 1.0, math.nan, None)
    table.delete("x < 'inf'")
    assert repr(left(table)) == repr([None, math.inf, math.nan])
    table.delete(compared("==", math.inf))
    assert repr(left(table)) == repr([None, math.nan])


@pytest.mark.parametrize("transform", [None, IdentityTransform()], ids=str)
@pytest.mark.parametrize(
    "operator, stays", [("==", [-5.0, 5.0]), ("<=", [5.0]), (">=", [-5.0]), ("!=", ["0.1", "0.1"])]
)
def test_a_number_that_is_no_float_means_the_nearest_one_for_files_as_for_rows(
    catalog: Any, operator: str, stays: list[Any], transform: Any
) -> None:
    tenth = pa.scalar(0.1, pa.float32()).as_py()
    table = made(catalog, FloatType(), 0.1, transform=transform)  # Its bounds are both the float.
    table.append(arrow(FloatType(), -5.0, 0.1, 5.0))
    stays = [tenth if value == "0.1" else value for value in stays]
    found = table.scan(compared(operator, 0.1)).to_arrow()["x"].to_pylist()
    assert sorted(found + stays) == [-5.0, tenth, tenth, 5.0]
    table.delete(compared(operator, 0.1))
    assert sorted(left(table)) == stays


def test_a_whole_number_between_two_floats_means_the_nearest_one(catalog: Any) -> None:
    table = made(catalog, FloatType(), 16777216.0, 16777220.0)
    table.delete(compared("==", 16777217))
    assert left(table) == [16777220.0]


@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_both_zeros_are_in_a_set_with_one(catalog: Any, kind: Any, zero: float) -> None:
    table = made(catalog, kind, 0.0, -0.0, 2.0, None)
    table.delete(among([zero, 1.0]))
    assert left(table) == [2.0, None]


@pytest.mark.parametrize("transform", ["year", "month", "day", "bucket[3]"])
def test_the_last_day_and_the_first_one_can_be_compared(catalog: Any, transform: str) -> None:
    first, last = dt.date.min, dt.date.max
    table = made(catalog, DateType(), first, last, None, transform=parse_transform(transform))
    with pytest.warns(UserWarning, match=NO_MATCH):
        table.delete(compared(">", last))
    with pytest.warns(UserWarning, match=NO_MATCH):
        table.delete(compared("<", first))
    table.delete(compared("<=", first))
    assert left(table) == [None, last]


def test_rows_in_the_null_partition_are_neither_less_nor_greater(catalog: Any) -> None:
    table = made(catalog, LongType(), 1, 7, None, transform=parse_transform("truncate[5]"))
    table.delete("x > 2")
    assert left(table) == [1, None]
    table.delete("x <= 2")
    assert left(table) == [None]


def test_a_delete_under_snapshot_isolation_takes_what_matches_when_it_lands(catalog: Any) -> None:
    """Nobody computed rows: those that were added meanwhile match as well."""
    table = made(catalog, LongType(), 1, **{"write.delete.isolation-level": "snapshot"})
    other = catalog.load_table("db.filtered")
    with table.transaction() as transaction:
        transaction.delete("x < 3")
        other.append(arrow(LongType(), 2, 3))
    # The second row of that file stays.
    assert left(catalog.load_table("db.filtered")) == [3]


def test_two_partition_fields_of_one_type_can_be_read_by_every_reader_of_avro(catalog: Any) -> None:
    kind = DecimalType(9, 2)
    schema = Schema(NestedField(1, "x", kind), NestedField(2, "y", kind), NestedField(3, "z", UUIDType()))
    spec = PartitionSpec(*(PartitionField(i, 1000 + i, IdentityTransform(), f"p{i}") for i in (1, 2, 3)))
    table = catalog.create_table("db.twice", schema, partition_spec=spec)
    rows = pa.table(
        [pa.array([1, 2], pa.decimal128(9, 2)), pa.array([3, 4], pa.decimal128(9, 2)), pa.nulls(2, pa.uuid())],
        names=["x", "y", "z"],
    )
    table.append(rows)
    table.delete("x = 1")
    seen = Observed(table.metadata_location, Files())  # fastavro, which is strict
    assert seen.state.of().total() == 1


@pytest.mark.parametrize("column", ["a.b", "s.x.y"])
@pytest.mark.parametrize("added", [False, True])
def test_a_dot_may_be_part_of_a_name(catalog: Any, tmp_path: Path, column: str, *, added: bool) -> None:
    """Files of other writers have the names as they are, and so have the rows that a delete looks at."""
    rows = pa.table({"a.b": pa.array([1, 2, 3], pa.int64()), "s": [{"x.y": 1}, {"x.y": 2}, {"x.y": 3}]})
    table = catalog.create_table("db.dotted", rows.schema)
    if added:
        pq.write_table(rows, tmp_path / "a.parquet")
        table.add_files([str(tmp_path / "a.parquet")])
    else:
        table.append(rows)
    assert table.scan(E.EqualTo(column, 1)).to_arrow()["a.b"].to_pylist() == [1]
    assert table.scan(E.NotIn(column, [1, 2])).to_arrow()["a.b"].to_pylist() == [3]
    table.delete(E.EqualTo(column, 1))
    table.overwrite(rows.slice(2), E.EqualTo(column, 2))
    assert table.scan().to_arrow()["a.b"].to_pylist() == [3, 3]


class TestAddedFiles:
    """Files of other writers, whose partition PyIceberg takes from their bounds."""

    def add(self, table: Any, folder: Path, kind: Any, *values: Any) -> None:
        path = str(folder / "foreign.parquet")
        pq.write_table(arrow(kind, *values), path)
        table.add_files([path])

    def test_one_of_nan_lies_in_the_partition_of_nan(self, catalog: Any, tmp_path: Path) -> None:
        table = made(catalog, DoubleType(), 1.0, transform=IdentityTransform())
        self.add(table, tmp_path, DoubleType(), math.nan, math.nan)
        with pytest.warns(UserWarning, match=NO_MATCH):
            table.delete(expression(IsNull("x")))
        assert repr(left(table)) == repr([1.0, math.nan, math.nan])
        table.delete("x is nan")
        assert left(table) == [1.0]

    @pytest.mark.parametrize(
        "kind, transform, values",
        [
            (StringType(), "truncate[2]", ["c", None]),
            (LongType(), "identity", [1, None]),
            (DoubleType(), "identity", [1.0, math.nan]),
            (DoubleType(), "identity", [None, math.nan]),
            (DateType(), "year", [dt.date(2024, 1, 1), None]),
        ],
    )
    def test_one_whose_rows_lie_in_two_partitions_is_refused(
        self, catalog: Any, tmp_path: Path, kind: Any, transform: str, values: list[Any]
    ) -> None:
        table = made(catalog, kind, transform=parse_transform(transform))
        with pytest.raises(ValueError, match="belong to 2 partitions"):
            self.add(table, tmp_path, kind, *values)
        assert left(table) == []

    @pytest.mark.parametrize(
        "kind, transform, values",
        [
            (StringType(), "truncate[2]", ["ca", "cab"]),
            (LongType(), "identity", [None, None]),
            (DoubleType(), "identity", [0.0, -0.0]),
            (DateType(), "year", [dt.date(2024, 1, 1), dt.date(2024, 12, 31)]),
        ],
    )
    def test_one_whose_rows_lie_in_one_partition_is_found_there(
        self, catalog: Any, tmp_path: Path, kind: Any, transform: str, values: list[Any]
    ) -> None:
        table = made(catalog, kind, transform=parse_transform(transform))
        self.add(table, tmp_path, kind, *values)
        found = table.scan(among(values)) if values[0] is not None else table.scan("x is null")
        assert found.to_arrow().num_rows == 2

    @pytest.mark.parametrize(
        "metrics, groups, options",
        [
            ("counts", [["day", "day"]], {}),
            ("none", [["day", "day"]], {"write_statistics": False}),
            ("full", [["x" * 5000] * 2], {}),  # Arrow keeps no bounds of a text that is so long
        ],
        ids=["counts alone", "no statistics", "a long text"],
    )
    def test_one_without_bounds_lies_where_its_rows_lie(
        self, catalog: Any, tmp_path: Path, metrics: str, groups: list[list[str]], options: Any
    ) -> None:
        properties = {"write.metadata.metrics.default": metrics}
        table = made(catalog, StringType(), transform=IdentityTransform(), **properties)
        self.add_groups(table, tmp_path, groups, **options)
        assert table.scan(compared("==", groups[0][0])).to_arrow().num_rows == 2
        with pytest.warns(UserWarning, match=NO_MATCH):
            table.delete(expression(IsNull("x")))
        table.delete(compared("==", groups[0][0]))
        assert left(table) == []

    def test_one_with_a_row_group_without_bounds_is_refused_where_it_lies_elsewhere(
        self, catalog: Any, tmp_path: Path
    ) -> None:
        table = made(catalog, StringType(), transform=IdentityTransform())
        with pytest.raises(ValueError, match="belong to 2 partitions"):
            self.add_groups(table, tmp_path, [["a"], ["x" * 5000]])
        assert left(table) == []

    def add_groups(self, table: Any, folder: Path, groups: list[list[str]], **options: Any) -> None:
        path = str(folder / "groups.parquet")
        with pq.ParquetWriter(path, arrow(StringType()).schema, **options) as writer:
            for group in groups:
                writer.write_table(arrow(StringType(), *group))
        table.add_files([path])

    def test_one_is_added_to_buckets(self, catalog: Any, tmp_path: Path) -> None:
        table = made(catalog, LongType(), transform=BucketTransform(4))
        self.add(table, tmp_path, LongType(), 7, 7)
        assert table.scan("x == 7").to_arrow().num_rows == 2

    def test_one_whose_field_ids_are_of_other_columns_is_refused(self, catalog: Any, tmp_path: Path) -> None:
        """Readers find columns by id, the metrics of an added file are found by name."""
        table = catalog.create_table(
            "db.swapped", Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()))
        )
        ids = [pa.field(name, pa.int64(), metadata={"PARQUET:field_id": key}) for name, key in (("b", "1"), ("a", "2"))]
        path = str(tmp_path / "swapped.parquet")
        pq.write_table(pa.table([[1], [2]], pa.schema(ids)), path)
        with pytest.raises(ValueError, match="column .b. .long. has the field id of a different column"):
            table.add_files([path])

    def test_one_without_rows_lies_in_no_partition_of_a_required_column(self, catalog: Any, tmp_path: Path) -> None:
        schema = Schema(NestedField(1, "x", FloatType(), required=True))
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
        table = catalog.create_table("db.required", schema, partition_spec=spec)
        path = str(tmp_path / "required.parquet")
        pq.write_table(pa.schema([pa.field("x", pa.float32(), nullable=False)]).empty_table(), path)
        with pytest.raises(ValueError, match="has no rows"):
            table.add_files([path])
        self.add(made(catalog, FloatType(), transform=IdentityTransform()), tmp_path, FloatType())

    def test_a_column_does_not_take_over_the_name_of_one_in_them(self, catalog: Any, tmp_path: Path) -> None:
        table = made(catalog, LongType())
        self.add(table, tmp_path, LongType(), 1)
        with table.update_schema() as update:
            update.rename_column("x", "y")
        with (
            pytest.raises(
                commit_coord.CommitNotApplied, match="an earlier column 'x', and the new column would show its values"
            ),
            table.update_schema() as update,
        ):
            update.add_column("x", LongType())
        assert catalog.load_table("db.filtered").scan().to_arrow().to_pylist() == [{"y": 1}]
        with table.update_schema() as update:
            update.rename_column("y", "x")
        assert left(table) == [1]

    def test_a_column_does_not_take_over_the_name_of_one_in_files_of_the_same_transaction(
        self, catalog: Any, tmp_path: Path
    ) -> None:
        table = made(catalog, LongType())
        with (
            pytest.raises(
                commit_coord.CommitNotApplied, match="an earlier column 'x', and the new column would show its values"
            ),
            table.transaction() as transaction,
        ):
            self.add(transaction, tmp_path, LongType(), 1)
            with transaction.update_schema() as update:
                update.rename_column("x", "y")
            with transaction.update_schema() as update:
                update.add_column("x", LongType())
        assert left(catalog.load_table("db.filtered")) == []


@pytest.mark.parametrize("together", [True, False], ids=["in one file", "in a file each"])
@pytest.mark.parametrize("column", ["s.x", "s.t.y"])
def test_a_required_field_of_a_struct_that_is_null_is_null(catalog: Any, column: str, together: bool) -> None:
    inner = StructType(NestedField(4, "y", LongType(), required=True))
    x, t = NestedField(2, "x", LongType(), required=True), NestedField(3, "t", inner, required=True)
    schema = Schema(NestedField(5, "k", LongType()), NestedField(1, "s", StructType(x, t), required=False))
    table = catalog.create_table("db.filtered", schema)
    named = [{"k": 1, "s": None}, {"k": 2, "s": {"x": 1, "t": {"y": 1}}}]
    for some in [named] if together else [[row] for row in named]:
        table.append(pa.Table.from_pylist(some, schema_to_pyarrow(table.schema())))

    def keys(condition: Any) -> list[int]:
        return sorted(table.scan(condition).to_arrow().column("k").to_pylist())

    null, there = expression(IsNull(column)), expression(NotNull(column))
    assert ([1], [2], [2], [1]) == (keys(null), keys(there), keys(Not(null)), keys(Not(there)))
    table.delete(there)
    assert [1] == keys(AlwaysTrue())
    table.delete(null)
    assert [] == keys(AlwaysTrue())


# Numbers that a column can't have.

_HOLDS: dict[str, Any] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CLASSES = {"==": E.EqualTo, "!=": E.NotEqualTo, "<": E.LessThan, "<=": E.LessThanOrEqual, ">": E.GreaterThan}
_CLASSES[">="] = E.GreaterThanOrEqual


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@pytest.mark.parametrize("transform", [None, "identity", "truncate[10]"])
@pytest.mark.parametrize("kind", [IntegerType(), LongType(), DecimalType(9, 2)], ids=str)
def test_numbers_between_those_of_a_column_are_compared_exactly(catalog: Any, kind: Any, transform: str | None) -> None:
    """As a float, a decimal and a text; alone and in a set; in one file and in one for each value."""
    step = Decimal("0.01") if isinstance(kind, DecimalType) else Decimal(1)
    have = [number * step for number in (-12, -5, -1, 0, 4, 5, 6, 11)]
    stored = have if isinstance(kind, DecimalType) else [int(number) for number in have]
    table = made(catalog, kind, *stored[:4], transform=transform and parse_transform(transform))
    table.append(pa.concat_tables([arrow(kind, value) for value in [*stored[4:], None]]))
    asked = sorted({value + step * part for value in have[1::2] for part in (0, Decimal("0.5"), Decimal("-0.25"))})
    forms: tuple[Any, ...] = (lambda value: value, str, lambda value: f"{float(value)!r}")
    if isinstance(kind, DecimalType):
        forms = (*forms, float)
    for number in asked:
        for form in forms:
            for name, holds in _HOLDS.items():
                found = table.scan(_CLASSES[name]("x", form(number))).to_arrow()["x"].to_pylist()
                assert sorted(found) == [value for value in stored if holds(value, number)], (name, form(number))
        among_them = E.In("x", {number, have[0], have[5]})
        members = {number, have[0], have[5]}
        assert sorted(table.scan(among_them).to_arrow()["x"].to_pylist()) == [v for v in stored if v in members]
        assert sorted(table.scan(Not(among_them)).to_arrow()["x"].to_pylist()) == [
            v for v in stored if v not in members
        ]
    half = have[5] + step / 2
    below = [value for value in stored if value < half]
    for text, left in (
        (f"x == {half}", len(stored) + 1),
        (f"x in ({half}, 1000.0)", len(stored) + 1),
        (f"x < {half}", len(stored) - len(below) + 1),
        (f"x >= {half}", 1),  # NULL stays
    ):
        table.delete(text)
        assert left == table.refresh().scan().to_arrow().num_rows, text


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@pytest.mark.parametrize("transform", [None, "identity", "month", "bucket[4]"])
def test_a_time_within_a_day_is_compared_with_days_exactly(catalog: Any, transform: str | None) -> None:
    days = [dt.date.fromordinal(n) for n in (1, 719162, 719163, 737484, 737485, 3652059)]
    table = made(catalog, DateType(), *days[:3], transform=transform and parse_transform(transform))
    table.append(pa.concat_tables([arrow(DateType(), day) for day in [*days[3:], None]]))
    times = [dt.time(), dt.time(0, 0, 0, 1), dt.time(12), dt.time(23, 59, 59, 999_999)]
    for at in (dt.datetime.combine(day, time) for day in days for time in times):
        for name, holds in _HOLDS.items():
            expected = [day for day in days if holds(dt.datetime.combine(day, dt.time()), at)]
            assert sorted(table.scan(_CLASSES[name]("x", at)).to_arrow()["x"].to_pylist()) == expected, (name, at)
        members = {days[1]} | ({at.date()} if at.time() == dt.time() else set())
        among_them = E.In("x", {at, dt.datetime.combine(days[1], dt.time())})
        assert set(table.scan(among_them).to_arrow()["x"].to_pylist()) == members
        assert set(table.scan(Not(among_them)).to_arrow()["x"].to_pylist()) == {*days} - members
    table.delete(E.EqualTo("x", dt.datetime.combine(days[2], dt.time(12))))
    assert len(days) + 1 == table.scan().count()
    table.delete(E.LessThan("x", dt.datetime.combine(days[2], dt.time(12))))
    assert set(days[3:]) | {None} == set(table.scan().to_arrow()["x"].to_pylist())


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
def test_a_text_for_a_time_of_day_is_compared_exactly_and_has_no_offset(catalog: Any) -> None:
    have = [dt.time(0), dt.time(12, 30, 0, 123_456), dt.time(12, 30, 0, 123_457), dt.time(23, 59, 59, 999_999)]
    table = made(catalog, TimeType(), *have)
    for text in ("00:00:00", "00:00:00.0000001", "12:30:00.123456", "12:30:00.1234560", "12:30:00.1234569", "12:30"):
        digits = text.partition(".")[2]
        exact = (dt.time.fromisoformat(text).replace(microsecond=int(f"{digits:0<6}"[:6])), int(digits[6:] or 0) > 0)
        for name, holds in _HOLDS.items():
            expected = [time for time in have if holds((time, False), exact)]
            assert sorted(table.scan(_CLASSES[name]("x", text)).to_arrow()["x"].to_pylist()) == expected, (name, text)
    for text in ("12:30:00+02:00", "12:30:00Z", "12:30:00.5-01:00"):
        for condition in (E.EqualTo("x", text), E.In("x", {text, "00:00:00"})):
            with pytest.raises(ValueError, match="offset"):
                table.delete(condition)
    assert len(have) == table.scan().count()
