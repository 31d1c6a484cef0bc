"""Partition values: computed by Spark, carried in folder names, read back from them.

Every Iceberg transform is computed as PyIceberg does it, row by row (a test compares them), in Spark SQL where
Spark can; independent of the session's time zone. A value becomes a string that starts with ``v``, since Spark
turns an empty string in a folder name into null. A string that a folder name can't show as it is becomes ``x`` and
its bytes in hexadecimal, so that nothing is escaped; one too long for that becomes ``h`` and its hash, and the value
is then read from the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyiceberg import transforms as X
from pyiceberg import types as I
from pyiceberg.partitioning import PartitionField, PartitionSpec, _to_partition_representation
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from commit_coord.iceberg.partitioned_rows import canonical
from commit_coord.iceberg.plain_rows import python_values
from commit_coord.iceberg.truncation import as_stored, below_the_type
from commit_coord.spark.schema import SchemaMismatch, child, file_schema, spark_type

FOLDER = "__commit_coord_p"
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

_SEED_ZERO = -1693959553
"""Spark's ``hash`` starts with seed 42 and goes on from argument to argument: the hash of this integer is 0."""

_EXACT = 34
"""Digits of a decimal that Spark subtracts without dropping some of the scale: its results end at 38."""

_PLAIN = r"\A[A-Za-z0-9_-]{0,80}\z"
"""Strings that can be in a folder name unchanged, on every file system."""

_LONGEST = 80
"""Bytes whose hexadecimal digits fit into a folder name with the name of the column: the limit is 255."""

_BEYOND = "a partition value is out of range once it is truncated: other engines would not find the row"


def partition_column(field: PartitionField, kind: I.IcebergType, column: Column) -> Column:
    """Return *column*, of type *kind*, transformed as *field* says and encoded as a string, null for null.

    Raises:
        SchemaMismatch: The transform is unknown.
    """
    value = _transformed(field.transform, kind, column)
    result = field.transform.result_type(kind)
    if isinstance(result, I.StringType | I.BinaryType | I.FixedType):
        raw = value.cast("binary")
        digits = F.concat(F.lit("x"), F.hex(raw))
        coded = F.when(F.octet_length(raw) <= _LONGEST, digits).otherwise(F.concat(F.lit("h"), F.sha2(raw, 256)))
        if isinstance(result, I.StringType):
            coded = F.when(value.rlike(_PLAIN), F.concat(F.lit("v"), value)).otherwise(coded)
        return F.when(value.isNotNull(), coded)
    return F.concat(F.lit("v"), value.cast("string"))


def _transformed(transform: X.Transform[Any, Any], kind: I.IcebergType, column: Column) -> Column:
    match transform:
        case X.IdentityTransform():
            return _internal(kind, column)
        case X.VoidTransform():
            return F.lit(None).cast("string")
        case X.BucketTransform():
            if isinstance(kind, I.StringType | I.BinaryType | I.DecimalType):
                # Spark's hash of bytes is not Murmur3's when 4 does not divide the length.
                return _in_python(transform, kind, column)
            seeded = F.hash(F.lit(_SEED_ZERO), _internal(kind, column).cast("bigint"))
            bucket = F.pmod(seeded.bitwiseAND(F.lit(2**31 - 1)), F.lit(transform.num_buckets))
            return F.when(column.isNotNull(), bucket)
        case X.TruncateTransform():
            if isinstance(kind, I.DecimalType) and kind.precision > _EXACT:
                return _in_python(transform, kind, column)
            return _truncated(transform.width, kind, column)
        case X.YearTransform() | X.MonthTransform() | X.DayTransform() | X.HourTransform():
            return _time(transform, kind, column)
    raise SchemaMismatch("unknown transform of a partition field", transform=transform)


def _internal(kind: I.IcebergType, column: Column) -> Column:
    """Return *column* as Iceberg stores it: dates as days, timestamps as microseconds."""
    match kind:
        case I.DateType():
            return F.unix_date(column)
        case I.TimestamptzType():
            return F.unix_micros(column)
        case I.TimestampType():
            second = (F.date_part(F.lit("SECOND"), column) * 1_000_000).cast("bigint")
            minutes = (F.unix_date(column.cast("date")).cast("bigint") * 24 + F.hour(column)) * 60 + F.minute(column)
            return minutes * 60_000_000 + second
    return column


def _truncated(width: int, kind: I.IcebergType, column: Column) -> Column:
    match kind:
        case I.StringType() | I.BinaryType():
            return F.substring(column, 1, width)
        case I.DecimalType():
            step = F.lit(Decimal(width).scaleb(-kind.scale))
            low = (column - F.pmod(column, step)).cast(f"decimal({kind.precision},{kind.scale})")
            return _in_range(column, low)
    integer = "bigint" if isinstance(kind, I.LongType) else "int"
    return _in_range(column, column - F.pmod(column, F.lit(width).cast(integer)))


def _in_range(column: Column, result: Column) -> Column:
    """Return *result*, which is no more than *column*. A session that is not ANSI's lets it run over, or be NULL."""
    beyond = column.isNotNull() & (result.isNull() | (result > column))
    return F.when(beyond, F.raise_error(F.lit(_BEYOND))).otherwise(result)


def _time(transform: X.Transform[Any, Any], kind: I.IcebergType, column: Column) -> Column:
    micros = None if isinstance(kind, I.DateType) else _internal(kind, column)
    if isinstance(transform, X.HourTransform):
        assert micros is not None
        return _floor(micros, 3_600_000_000)
    days = F.unix_date(column) if micros is None else _floor(micros, 86_400_000_000).cast("int")
    if isinstance(transform, X.DayTransform):
        return days
    date = F.date_from_unix_date(days)
    years = F.year(date) - 1970
    return years if isinstance(transform, X.YearTransform) else years * 12 + F.month(date) - 1


def _floor(value: Column, step: int) -> Column:
    """Divide without leaving the integers: a double holds microseconds only until 2255."""
    return F.call_function("div", value - F.pmod(value, F.lit(step).cast("bigint")), F.lit(step).cast("bigint"))


def _in_python(transform: X.Transform[Any, Any], kind: I.IcebergType, column: Column) -> Column:
    """Transform in Python workers, each distinct value of a batch once, and return the result as text."""

    def apply(values: pa.Array) -> pa.Array:
        places, results = transform_distinct(transform, kind, values)
        return pa.array([str(result) for result in results], pa.string()).take(places)

    apply.__annotations__ = {"values": pa.Array, "return": pa.Array}
    udf: Callable[[Column], Column] = arrow_udf(apply, "string")  # type: ignore[call-overload]  # its kind is in the annotations
    return udf(column)


def transform_distinct(
    transform: X.Transform[Any, Any], kind: I.IcebergType, values: pa.Array, *, carried: bool = False
) -> tuple[pa.Array, list[Any]]:
    """Apply *transform* once to each distinct value.

    Args:
        transform: Of a partition field.
        kind: Of its column.
        values: Of the column.
        carried: Whether the rows are in the table: other engines may have written some that this package refuses.

    Returns:
        For each of *values* a place in the list of results, null for null; and the results as partitions have them.

    Raises:
        SchemaMismatch: A number of a new row is out of range once it is truncated.
    """
    encoded = values.dictionary_encode()
    function, result = transform.transform(kind), transform.result_type(kind)
    stored = (_to_partition_representation(kind, item) for item in python_values(encoded.dictionary))
    results = [as_stored(canonical(function(value), result), kind) for value in stored]
    if not carried and not below_the_type(transform, kind).isdisjoint(results):
        raise SchemaMismatch(_BEYOND, transform=transform, type=kind)
    return encoded.indices, results


def partition_columns(spec: PartitionSpec, schema: Schema, top: Callable[[int], Column]) -> list[Column]:
    """Return one encoded column for each field of *spec*.

    Args:
        spec: The spec that is written.
        schema: The table's schema.
        top: Gives the column of a top-level field id; struct fields have their file names.
    """
    safe = file_schema(schema)
    result = []
    for number, field in enumerate(spec.fields):
        if isinstance(field.transform, X.VoidTransform):  # its column may have been dropped
            coded = F.lit(None).cast("string")
        else:
            path = source_path(field, safe)
            column = top(path[0].field_id)
            for parent, part in itertools.pairwise(path):
                column = child(column, *_place(parent, part))
            coded = partition_column(field, schema.find_type(field.source_id), column)
        result.append(coded.alias(f"{FOLDER}{number}"))
    return result


def _place(parent: I.NestedField, part: I.NestedField) -> tuple[T.StructType, int]:
    """Return the type of the struct *parent*, and at which position *part* is in it."""
    kind = spark_type(parent.field_type)
    assert isinstance(kind, T.StructType), "only a struct holds what a path leads through"
    return kind, kind.fieldNames().index(part.name)


def source_path(field: PartitionField, schema: Schema) -> list[I.NestedField]:
    """Return the fields from the top level down to the source of a partition field."""

    def search(struct: I.StructType) -> list[I.NestedField]:
        for part in struct.fields:
            if part.field_id == field.source_id:
                return [part]
            if isinstance(part.field_type, I.StructType) and (below := search(part.field_type)):
                return [part, *below]
        return []

    path = search(schema.as_struct())
    if not path:
        raise SchemaMismatch("a partition field has no source column", field=field.name)
    return path


def decode_folders(
    folders: Sequence[str], spec: PartitionSpec, schema: Schema, value_in_file: Callable[[PartitionField], Any]
) -> Record:
    """Return the partition that a file below *folders* belongs to.

    Args:
        folders: Names such as ``__commit_coord_p0=v17``, one for each field of *spec*, in order.
        spec: The spec that was written.
        schema: The table's schema.
        value_in_file: Reads the transformed value of a field from the file: asked when its name holds a hash only.
    """
    values: list[Any] = []
    for field, folder in zip(spec.fields, folders, strict=True):
        text = unquote(folder.partition("=")[2])
        if text == NULL_FOLDER:
            values.append(None)
        elif text.startswith("h"):
            values.append(value_in_file(field))
        else:
            kind = field.transform.result_type(schema.find_type(field.source_id))
            values.append(_parse(kind, text[1:]) if text[0] == "v" else _parse_bytes(kind, bytes.fromhex(text[1:])))
    return Record(*values)


def _parse(kind: I.IcebergType, text: str) -> Any:
    match kind:
        case I.BooleanType():
            return text == "true"
        case I.FloatType() | I.DoubleType():
            return canonical(float(text), kind)
        case I.DecimalType():
            return Decimal(text)
        case I.StringType():
            return text
    return int(text)


def _parse_bytes(kind: I.IcebergType, raw: bytes) -> Any:
    return raw.decode() if isinstance(kind, I.StringType) else raw
