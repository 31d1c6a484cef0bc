"""Partition values computed by Spark are those that PyIceberg computes, row by row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from pyiceberg import transforms as X
from pyiceberg import types as I
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec, _to_partition_representation
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from commit_coord.iceberg.partitioned_rows import canonical, split
from commit_coord.spark.arrow import BatchWriter, ByName, shape
from commit_coord.spark.files import Target
from commit_coord.spark.schema import SchemaMismatch, spark_schema
from commit_coord.spark.transforms import FOLDER, decode_folders, partition_columns
from tests.catalog.test_rows_by_partition import known, tables

UTC = dt.UTC
LONG = "long value with / and % and = " * 20


def ntz(*args: int) -> dt.datetime:
    """Return a time without a zone."""
    return dt.datetime(*args)  # type: ignore[arg-type]  # noqa: DTZ001 - on purpose


VALUES: list[tuple[I.PrimitiveType, list[Any]]] = [
    (I.BooleanType(), [True, False]),
    (I.IntegerType(), [0, 1, -1, 34, 2**31 - 1, -(2**31) + 100]),
    (I.LongType(), [0, 1, -1, 34, 2**63 - 1, -(2**63) + 100]),
    (I.FloatType(), [0.0, -0.0, 1.5, -2.25, 0.1, float("nan")]),
    (I.DoubleType(), [0.0, -0.0, 1.1, -1e300, float("inf"), float("nan")]),
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
        results = [field.transform.transform(kind)(stored) for field in fields]
        expected = [canonical(v, f.transform.result_type(kind)) for v, f in zip(results, fields, strict=True)]
        folders = [f"{FOLDER}{n}={_escaped(text)}" for n, text in enumerate(row)]
        found_values = decode_folders(folders, spec, schema, partial(_again, kind=kind, stored=stored))
        assert list(map(known, expected)) == list(map(known, found_values._data)), value


def _escaped(text: str | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if text is None else text.replace("%", "%25").replace("/", "%2F")


def _again(field: PartitionField, kind: I.PrimitiveType, stored: Any) -> Any:
    return field.transform.transform(kind)(stored)


@drawn(made=tables(), data=st.data())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_task_files_rows_in_the_partitions_of_every_other_writer(tmp_path: Path, made: Any, data: Any) -> None:
    """Random specs and nasty values, in any order, in several batches: zeros of both signs are one partition."""
    schema, spec, rows = made
    rows = rows.take(data.draw(st.permutations(range(rows.num_rows))))
    target = Target(schema=schema, spec=spec, properties={}, io=PyArrowFileIO(), folder=f"file://{tmp_path}")
    files = BatchWriter(target, rows.column_names, case_sensitive=True).write(_in_spark(rows, schema))
    written = ((f.partition, pq.read_table(f.file_path.removeprefix("file://"), columns=["k"])) for f in files)
    assert _filed(split(rows, spec, schema)) == _filed(written)


@pytest.mark.parametrize(
    "kind, least, fits",
    [
        (I.IntegerType(), -(2**31), 8 - 2**31),
        (I.LongType(), -(2**63), 8 - 2**63),
        (I.DecimalType(3, 2), Decimal("-9.99"), Decimal("-9.90")),
        (I.DecimalType(38, 0), Decimal("-" + 38 * "9"), Decimal("-" + 37 * "9" + "0")),
    ],
    ids=str,
)
def test_a_task_refuses_a_number_that_is_out_of_range_once_it_is_truncated(
    tmp_path: Path, kind: I.PrimitiveType, least: Any, fits: Any
) -> None:
    """Other engines would not find it. A row that is in the table is written back to where it lay."""
    schema = Schema(I.NestedField(1, "k", kind, required=False))
    spec = PartitionSpec(PartitionField(1, 1000, X.TruncateTransform(10), "p"))
    target = Target(schema=schema, spec=spec, properties={}, io=PyArrowFileIO(), folder=f"file://{tmp_path}")
    arrow = to_arrow_schema(spark_schema(schema))
    with pytest.raises(SchemaMismatch, match="out of range once it is truncated"):
        BatchWriter(target, ["k"]).write([pa.record_batch([pa.array([None, least], arrow[0].type)], schema=arrow)])
    batch = pa.record_batch([pa.array([fits], arrow[0].type)], schema=arrow)
    (file,) = BatchWriter(target, ["k"]).write([batch])
    assert Record(fits) == file.partition
    (file,) = BatchWriter(target, ["k"], carried=True).write(
        [pa.record_batch([pa.array([least], arrow[0].type)], schema=arrow)]
    )
    elsewhere = split(pa.table([pa.array([least], arrow[0].type)], schema=arrow), spec, schema, carried=True)
    assert [file.partition] == [partition for partition, _ in elsewhere]


@pytest.mark.parametrize("kind, stored", [
    (I.DateType(), pa.array([3_000_000, -800_000, None], pa.int32()).cast(pa.date32())),
    (I.TimestampType(), pa.array([2**62, -(2**62), None], pa.int64()).cast(pa.timestamp("us"))),
    (I.TimestamptzType(), pa.array([2**62, -(2**62), None], pa.int64()).cast(pa.timestamp("us", "UTC"))),
], ids=str)  # fmt: skip
def test_a_task_files_dates_that_python_has_not_in_the_partitions_of_every_other_writer(
    tmp_path: Path, kind: I.PrimitiveType, stored: pa.Array
) -> None:
    schema = Schema(I.NestedField(1, "k", kind, required=False))
    rows = pa.table({"k": stored})
    for transform in TRANSFORMS:
        if transform.can_transform(kind):
            spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
            target = Target(schema=schema, spec=spec, properties={}, io=PyArrowFileIO(), folder=f"file://{tmp_path}")
            files = BatchWriter(target, ["k"]).write(rows.to_batches())
            expected = {repr(partition): part.num_rows for partition, part in split(rows, spec, schema)}
            assert expected == {repr(file.partition): file.record_count for file in files}, transform


def _in_spark(rows: pa.Table, schema: Schema) -> Iterator[pa.RecordBatch]:
    """Yield *rows* in Spark's types, one batch for every three."""
    arrow = to_arrow_schema(spark_schema(schema))
    for batch in rows.combine_chunks().to_batches(max_chunksize=3):
        columns = [
            shape(column, wanted.type, field.field_type, field.name, ByName(True))
            for column, wanted, field in zip(batch.columns, arrow, schema.fields, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def _filed(partitions: Iterable[tuple[Record, pa.Table]]) -> list[Any]:
    """Return the keys of the rows of each partition; the sign of zero counts, and NaN equals NaN."""
    found = [(tuple(map(known, partition._data)), sorted(rows["k"].to_pylist())) for partition, rows in partitions]
    return sorted(found, key=lambda each: each[1])
