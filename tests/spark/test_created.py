"""``create=True``: a table is made that takes the rows, or none is made and the error says why."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from commit_coord.errors import CommitCoordError, ConfigError
from commit_coord.spark import read_table, write_table
from commit_coord.spark.schema import SchemaMismatch, check_fits
from commit_coord.spark.tables import iceberg_schema, partition_spec


class Point(T.UserDefinedType):
    """A type of a user's."""

    @classmethod
    def sqlType(cls) -> T.DataType:  # noqa: N802 - Spark's name
        """Return how Spark keeps it."""
        return T.LongType()


VALUES: list[tuple[T.DataType, Any]] = [
    (T.BooleanType(), True),
    (T.ByteType(), 1),
    (T.ShortType(), 2),
    (T.IntegerType(), 3),
    (T.LongType(), 4),
    (T.FloatType(), 0.5),
    (T.DoubleType(), 0.1),
    (T.DecimalType(9, 2), Decimal("1.25")),
    (T.DecimalType(38, 38), Decimal("0.1")),
    (T.DateType(), dt.date(2024, 2, 29)),
    (T.TimestampType(), dt.datetime(2024, 2, 29, 12)),  # noqa: DTZ001 - as Spark has it
    (T.TimestampNTZType(), dt.datetime(2024, 2, 29, 12)),  # noqa: DTZ001 - has no time zone
    (T.StringType(), "a"),
    (T.StringType("UTF8_LCASE"), "B"),
    (T.BinaryType(), bytearray(b"\x00")),
]
"""Types of new columns, and a value of each."""

REFUSED: list[T.DataType] = [
    T.NullType(),
    T.CalendarIntervalType(),
    T.YearMonthIntervalType(),
    T.DayTimeIntervalType(),
    T.TimeType(),
    T.VariantType(),
    T.GeometryType(4326),
    T.GeographyType(4326),
    T.StructType([]),
    Point(),
]

DECLARED: list[T.DataType] = [T.CharType(5), T.VarcharType(5)]
"""Types that a DataFrame has as strings."""

PLACES: dict[str, Callable[[T.DataType], T.DataType]] = {
    "a column": lambda kind: kind,
    "a field": lambda kind: T.StructType([T.StructField("x", kind)]),
    "an element": T.ArrayType,
    "a value": lambda kind: T.MapType(T.StringType(), kind),
}


def kinds(base: type[T.DataType] = T.DataType) -> Iterator[type[T.DataType]]:
    """Yield all types of Spark that have values."""
    for kind in base.__subclasses__():
        if kind.__module__ == T.__name__:
            below = list(kinds(kind))
            yield from below or [kind]


def test_each_type_of_spark_is_tried() -> None:
    tried = {type(kind) for kind in [*(kind for kind, _ in VALUES), *REFUSED, *DECLARED]}
    others = {T.ArrayType, T.MapType, T.StructField, T.UserDefinedType}  # PLACES; no type of a column; see Point
    assert set(kinds()) <= tried | others


def frame_of(kind: T.DataType) -> T.StructType:
    return T.StructType([T.StructField("id", T.LongType()), T.StructField("c", kind)])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [*(kind for kind, _ in VALUES), *DECLARED], ids=str)
def test_a_table_takes_the_rows_that_it_is_made_for(kind: T.DataType, place: str) -> None:
    source = frame_of(PLACES[place](kind))
    schema = iceberg_schema(source)
    check_fits(source, schema)
    assert not any(field.required for field in schema.fields)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_what_no_table_can_have_is_refused_with_its_column(kind: T.DataType, place: str) -> None:
    with pytest.raises(SchemaMismatch, match="columns='c"):
        iceberg_schema(frame_of(PLACES[place](kind)))


def struct(*fields: tuple[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


NAMES_THAT_CLASH = {
    "a.b": struct(("a.b", T.LongType()), ("a", struct(("b", T.LongType())))),
    "a.element": struct(("a.element", T.LongType()), ("a", T.ArrayType(T.LongType()))),
    "a.key": struct(("a.key", T.LongType()), ("a", T.MapType(T.LongType(), T.LongType()))),
    "without a name": struct(("", T.LongType())),
    "a has a field without a name": struct(("a", struct(("", T.LongType())))),
}


@pytest.mark.parametrize("named", NAMES_THAT_CLASH)
def test_names_that_no_table_can_have_are_refused(named: str) -> None:
    with pytest.raises(SchemaMismatch, match=named):
        iceberg_schema(NAMES_THAT_CLASH[named])


def test_rows_of_every_type_come_back(spark: SparkSession, catalog: Any) -> None:
    fields, row = [], []
    for number, ((kind, value), place) in enumerate(itertools.product(VALUES, PLACES)):
        fields.append(T.StructField(f"c{number}", PLACES[place](kind)))
        row.append({"a column": value, "a field": (value,), "an element": [value], "a value": {"k": value}}[place])
    df = spark.createDataFrame([tuple(row)], T.StructType(fields)).coalesce(1)
    table = write_table(df, (catalog, "db.t"), create=True)
    assert df.collect() == read_table(spark, table).collect()


LEFT: dict[str, tuple[str, dict[str, Any]]] = {
    "a variant": ("SELECT parse_json('1') v", {}),
    "an interval": ("SELECT INTERVAL 1 DAY v", {}),
    "a time of day": ("SELECT TIME'10:00:00' v", {}),
    "a struct without fields": ("SELECT named_struct('s', struct()) v", {}),
    "one name twice": ("SELECT 1L id, 2L id", {}),
    "names that are one in Parquet": ("SELECT 1L `a.b`, 2L `a_x2Eb`", {}),
    "a partition that does not fit": ("SELECT 1L id", {"partition_by": ["day(id)"]}),
    "partitions to replace": ("SELECT 1L id", {"mode": "dynamic"}),
    "void partitions to replace": ("SELECT 1L id", {"mode": "dynamic", "partition_by": ["void(id)"]}),
    "no format version": ("SELECT 1L id", {"properties": {"format-version": "two"}}),
}


def test_what_can_not_be_written_leaves_no_table(spark: SparkSession, catalog: Any) -> None:
    for what, (query, arguments) in LEFT.items():
        with pytest.raises(CommitCoordError):
            write_table(spark.sql(query), (catalog, "db.t"), create=True, **arguments)
        assert not catalog.table_exists("db.t"), what


SCHEMA = iceberg_schema(
    T.StructType(
        [
            T.StructField("id", T.LongType()),
            T.StructField("d", T.DoubleType()),
            T.StructField("b", T.BooleanType()),
            T.StructField("da", T.DateType()),
            T.StructField("ts", T.TimestampType()),
            T.StructField("s", T.StringType()),
            T.StructField("st", T.StructType([T.StructField("y", T.IntegerType())])),
            T.StructField("l", T.ArrayType(T.IntegerType())),
        ]
    )
)
TERMS = [
    f"{transform}({number}{column})"
    for transform in ("bucket", "truncate", "year", "month", "day", "hour", "identity", "void", "nope")
    for number in ("", "0, ", "4, ", "9999999999, ")
    for column in ("id", "d", "b", "da", "ts", "s", "st", "st.y", "l", "l.element", "nope", "")
]


def test_a_partition_field_is_one_of_a_table_or_refused(catalog: Any) -> None:
    """Every transform with every number and column."""
    made = 0
    odd: list[Any] = ["id", "nope", "", 5, None]
    for term in [*TERMS, *odd]:
        with suppress(ConfigError):
            spec = partition_spec([term], SCHEMA)
            catalog.create_table(f"db.t{made}", SCHEMA, partition_spec=spec)
            made += 1
    assert made > 30


@pytest.mark.parametrize("terms", [["id", "id"], ["bucket(3, id)", "bucket(4, id)"], ["identity(id)", "id"]])
def test_two_partition_fields_of_one_name_are_refused(terms: list[str]) -> None:
    with pytest.raises(ConfigError, match="not a partition field"):
        partition_spec(terms, SCHEMA)


@pytest.mark.parametrize(
    "term, column", [("bucket(4, id)", "id_bucket"), ("day(ts)", "ts_day"), ("void(id)", "id_void")]
)
def test_a_partition_field_with_the_name_of_another_column_is_refused(term: str, column: str) -> None:
    taken = struct(("id", T.LongType()), ("ts", T.TimestampType()), (column, T.LongType()))
    with pytest.raises(ConfigError, match=f"not a partition field.*{column}"):
        partition_spec([term], iceberg_schema(taken))


def test_one_text_is_one_partition_field() -> None:
    assert partition_spec(["day(ts)"], SCHEMA) == partition_spec("day(ts)", SCHEMA)
