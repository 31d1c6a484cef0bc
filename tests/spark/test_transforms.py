"""Partition values computed by Spark are those that PyIceberg computes, row by row."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from pyiceberg import transforms as X
from pyiceberg import types as I
from pyiceberg.partitioning import PartitionField, PartitionSpec, _to_partition_representation
from pyiceberg.schema import Schema
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from commit_coord.spark.schema import spark_schema
from commit_coord.spark.transforms import FOLDER, decode_folders, partition_columns

UTC = dt.UTC
LONG = "long value with / and % and = " * 20


def ntz(*args: int) -> dt.datetime:
    """Return a time without a zone."""
    return dt.datetime(*args)  # type: ignore[arg-type]  # noqa: DTZ001 - on purpose


VALUES: list[tuple[I.PrimitiveType, list[Any]]] = [
    (I.BooleanType(), [True, False]),
    (I.IntegerType(), [0, 1, -1, 34, 2**31 - 1, -(2**31) + 100]),
    (I.LongType(), [0, 1, -1, 34, 2**63 - 1, -(2**63) + 100]),
    (I.FloatType(), [0.0, 1.5, -2.25]),
    (I.DoubleType(), [0.0, 1.1, -1e300, float("inf")]),
    (I.DecimalType(9, 2), [Decimal("14.20"), Decimal("-14.27"), Decimal("0.00"), Decimal("9999999.99")]),
    (
        I.DecimalType(38, 10),
        [
            Decimal("1.0000000001"),
            Decimal("-9999999999999999999999999999.9999999990"),
            Decimal("1234567890123456789012345678.1234567891"),
        ],
    ),
    (
        I.DateType(),
        [
            dt.date(1970, 1, 1),
            dt.date(2017, 11, 16),
            dt.date(1969, 12, 31),
            dt.date(1600, 2, 29),
            dt.date(9999, 12, 31),
        ],
    ),
    (
        I.TimestampType(),
        [
            ntz(2017, 11, 16, 22, 31, 8, 1),
            ntz(1969, 12, 31, 23, 59, 59, 999999),
            ntz(1, 1, 1),
            ntz(9999, 12, 31, 23, 59, 59, 999999),
        ],
    ),
    (
        I.TimestamptzType(),
        [
            dt.datetime(2017, 11, 16, 22, 31, 8, 1, UTC),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            dt.datetime(1600, 3, 1, tzinfo=UTC),
            dt.datetime(2300, 1, 1, 1, 30, tzinfo=UTC),
        ],
    ),
    (
        I.StringType(),
        ["", "a", "iceberg", "abc", "Zürich 東京 🧊🧊🧊", "a/b=c%20 '\"`", "__HIVE_DEFAULT_PARTITION__", "vx", LONG],
    ),
    (I.BinaryType(), [b"", b"\x00\x01\x02\x03", b"\xff", b"abcdefg"]),
]
TRANSFORMS: list[X.Transform[Any, Any]] = [
    X.IdentityTransform(),
    X.VoidTransform(),
    X.BucketTransform(16),
    X.BucketTransform(7),
    X.TruncateTransform(3),
    X.TruncateTransform(10),
    X.YearTransform(),
    X.MonthTransform(),
    X.DayTransform(),
    X.HourTransform(),
]


@pytest.mark.parametrize("kind, values", VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_spark_computes_what_pyiceberg_computes(spark: SparkSession, kind: I.PrimitiveType, values: list[Any]) -> None:
    """Every transform that a type has, for edge values and null, carried through a folder name and back."""
    schema = Schema(I.NestedField(1, "v", kind, required=False))
    fields = [
        PartitionField(source_id=1, field_id=1000 + n, transform=t, name=f"p{n}")
        for n, t in enumerate(t for t in TRANSFORMS if t.can_transform(kind))
    ]
    spec = PartitionSpec(*fields)
    df = spark.createDataFrame([(value,) for value in [*values, None]], spark_schema(schema)).coalesce(1)
    found = df.select(*partition_columns(spec, schema, lambda _: F.col("v"))).collect()
    for value, row in zip([*values, None], found, strict=True):
        stored = _to_partition_representation(kind, value)
        expected = [field.transform.transform(kind)(stored) for field in fields]
        folders = [f"{FOLDER}{n}={_escaped(text)}" for n, text in enumerate(row)]
        found_values = decode_folders(folders, spec, schema, partial(_again, kind=kind, stored=stored))
        assert expected == found_values._data, value


def _escaped(text: str | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if text is None else text.replace("%", "%25").replace("/", "%2F")


def _again(field: PartitionField, kind: I.PrimitiveType, stored: Any) -> Any:
    return field.transform.transform(kind)(stored)
