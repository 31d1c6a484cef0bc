"""Engines that read tables again, each in one session."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, date
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from commit_coord.local.maven import maven_jar
from commit_coord.testing.table_files.values import canonical
from tests.proof.rows.kept_tables import Kept
from tests.proof.rows.model.conditions import Always, And, Compare, In, IsNull, Not, NotNull, Or, Stated, Where
from tests.proof.rows.read import readers
from tests.proof.rows.read.readers import Bag, with_room

_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


Engine = Callable[[Kept], Sequence[Bag]]
"""Answers each look at a table."""


def _by_reader(read: readers.Reader, table: Kept) -> Sequence[Bag]:
    return [read(table.location, table.schema, look.where) for look in table.looks]


def pyiceberg(stack: ExitStack) -> Engine:
    """Return PyIceberg's own scan, in a process that loads nothing of ours."""
    return partial(_by_reader, readers.pyiceberg)


def duckdb(stack: ExitStack) -> Engine:
    """Return DuckDB's extension."""
    return partial(_by_reader, readers.duckdb)


def _session(stack: ExitStack) -> Any:
    from pyspark.sql import SparkSession

    made = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", str(maven_jar(_RUNTIME)))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    stack.callback(made.stop)
    return made


class _Jvm:
    """Iceberg's own reader in the JVM, ``IcebergGenerics``, without a Spark job."""

    def __init__(self, stack: ExitStack) -> None:
        session = _session(stack)
        self._iceberg = session._jvm.org.apache.iceberg
        self._files = self._iceberg.hadoop.HadoopFileIO(session._jsc.hadoopConfiguration())
        self._expressions = self._iceberg.expressions.Expressions

    def __call__(self, table: Kept) -> Sequence[Bag]:
        iceberg = self._iceberg
        opened = iceberg.BaseTable(iceberg.StaticTableOperations(table.location, self._files), "kept")
        # Rows leave the JVM in Avro: one call per row, and no type is lost.
        shown = iceberg.SchemaParser.fromJson(_optional(iceberg.SchemaParser.toJson(opened.schema())))
        encoder = iceberg.data.avro.IcebergEncoder(shown)
        avro: Any = json.loads(iceberg.avro.AvroSchemaUtil.convert(shown, "row").toString())
        shape, fields = fastavro.parse_schema(avro), table.schema.as_struct()

        def read(where: Where) -> Bag:
            found: Bag = Counter()
            rows = iceberg.data.IcebergGenerics.read(opened).where(self._expression(where, table.schema)).build()
            try:
                each = rows.iterator()
                while each.hasNext():
                    coded = encoder.encode(each.next())
                    start = coded.arrayOffset() + coded.position() + _AVRO_HEADER
                    data = io.BytesIO(bytes(coded.array())[start : coded.arrayOffset() + coded.limit()])
                    named: Any = fastavro.schemaless_reader(data, shape, None)
                    found[canonical(_from_avro(named, fields), fields)] += 1
            finally:
                rows.close()
            return found

        return [read(look.where) for look in table.looks]

    def _expression(self, where: Where, schema: Schema) -> Any:
        make = self._expressions
        match where:
            case Always():
                return make.alwaysTrue()
            case And(left=left, right=right):
                return getattr(make, "and")(self._expression(left, schema), self._expression(right, schema))
            case Or(left=left, right=right):
                return getattr(make, "or")(self._expression(left, schema), self._expression(right, schema))
            case Not(inner=inner):
                return self._negated(inner, schema)
            case IsNull(column=column):
                return make.isNull(column)
            case NotNull(column=column):
                return make.notNull(column)
            case In(column=column, values=values):
                found = [self._expression(Compare(column, "==", value), schema) for value in values]
                made = found[0]
                for one in found[1:]:
                    made = getattr(make, "or")(made, one)
                return made
            case Compare(column=column, op=op, value=value):
                return self._comparison(column, op, value)
        raise TypeError(where)

    def _negated(self, where: Where, schema: Schema) -> Any:
        """Return what is true where *where* is false: to Java, NOT is also true of NULL."""
        make = self._expressions
        match where:
            case Not(inner=inner):
                return self._expression(inner, schema)
            case And(left=left, right=right):
                return getattr(make, "or")(self._negated(left, schema), self._negated(right, schema))
            case Or(left=left, right=right):
                return getattr(make, "and")(self._negated(left, schema), self._negated(right, schema))
            case Compare(column=column) | In(column=column):
                there = make.notNull(column)
                return getattr(make, "and")(there, getattr(make, "not")(self._expression(where, schema)))
        return getattr(make, "not")(self._expression(where, schema))

    def _comparison(self, column: str, op: str, value: Any) -> Any:
        make = self._expressions
        found = getattr(make, _JAVA[op])(column, _java_literal(_signed(op, value)))
        if isinstance(value, float) and value == 0 and op == "==":
            found = getattr(make, "or")(make.equal(column, -0.0), found)
        if isinstance(value, float) and value == 0 and op == "!=":
            found = getattr(make, "and")(make.notEqual(column, 0.0), found)
        # To Java, NULL is less than any value, and NaN the greatest number.
        found = getattr(make, "and")(make.notNull(column), found)
        return getattr(make, "and")(make.notNaN(column), found) if isinstance(value, float) else found


def _optional(schema: str) -> str:
    """Return a schema in which nothing is required: what was required too late may be NULL in old rows."""
    for key in ("required", "element-required", "value-required"):
        schema = schema.replace(f'"{key}":true', f'"{key}":false')
    return schema


_AVRO_HEADER = 10
"""Bytes before a single Avro object: a mark and the fingerprint of its schema."""

_JAVA = {
    "==": "equal",
    "!=": "notEqual",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
}


def _signed(op: str, value: Any) -> Any:
    """Return *value*, a zero with the sign that takes both zeros for equal: to Iceberg, -0.0 precedes 0.0."""
    return (0.0 if op in {"==", "<=", ">"} else -0.0) if isinstance(value, float) and value == 0 else value


def _java_literal(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> Any:
    """Return a constant as both Iceberg and Spark read it from text; binary stays binary."""
    match value:
        case bytes():
            return bytearray(value)
        case date() | time_of_day():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
    return str(value)


def _from_avro(value: Any, kind: IcebergType) -> Any:
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {f.name: _from_avro(value[f.name], f.field_type) for f in fields}
        case ListType():
            return [_from_avro(item, kind.element_type) for item in value]
        case MapType():
            pairs = value.items() if isinstance(value, Mapping) else ((one["key"], one["value"]) for one in value)
            return [(k, _from_avro(v, kind.value_type)) for k, v in pairs]
    # Avro has one timestamp; Iceberg's property of it says whether it has a zone.
    return value.replace(tzinfo=None) if str(kind) == "timestamp" else value


class _Spark:
    """Spark's reader, vectorized, with conditions pushed down; one job per table."""

    def __init__(self, stack: ExitStack) -> None:
        self._session = _session(stack)

    def __call__(self, table: Kept) -> Sequence[Bag]:
        from pyspark.sql import functions

        data = self._session.read.format("iceberg").load(table.location)
        every = None
        for number, look in enumerate(table.looks):
            one = data.where(column(look.where, table.schema)).withColumn(_LOOK, functions.lit(number))
            every = one if every is None else every.unionAll(one)
        assert every is not None
        # Not toArrow(): it can't show a struct that is NULL and has a required field.
        fields = table.schema.as_struct()
        bags: list[Bag] = [Counter() for _ in table.looks]
        for row in every.collect():
            bags[row[_LOOK]][canonical(_from_spark(row.asDict(recursive=True), fields), fields)] += 1
        return bags


def _from_spark(value: Any, kind: IcebergType) -> Any:
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {f.name: _from_spark(value[f.name], f.field_type) for f in fields}
        case ListType():
            return [_from_spark(item, kind.element_type) for item in value]
        case MapType():
            return [(k, _from_spark(v, kind.value_type)) for k, v in value.items()]
    match str(kind):
        case "timestamptz":
            return value.astimezone(UTC)  # PySpark gives local time
        case "binary":
            return bytes(value)
    return value


_LOOK = "__look"


def column(where: Where, schema: Schema) -> Any:
    """Return *where* as Spark writes it."""
    from pyspark.sql import functions

    match where:
        case Always():
            return functions.lit(True)
        case And(left=left, right=right):
            return column(left, schema) & column(right, schema)
        case Or(left=left, right=right):
            return column(left, schema) | column(right, schema)
        case Not(inner=inner):
            return ~column(inner, schema)
        case Stated():
            raise TypeError(where)  # statements alone have it
    found, kind = functions.col(where.column), str(schema.find_type(where.column))
    match where:
        case IsNull():
            return found.isNull()
        case NotNull():
            return found.isNotNull()

    def constant(value: Any) -> Any:
        cast = str(with_room(schema.find_type(where.column), value))
        cast = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}.get(cast, cast)
        return functions.lit(value if isinstance(value, bool | int) else _text(value)).cast(cast)

    if isinstance(where, In):
        made = found.isin(*map(constant, where.values))
        op, zero = "==", any(isinstance(value, float) and value == 0 for value in where.values)
    else:
        op, zero = where.op, isinstance(where.value, float) and where.value == 0
        made = _SPARK[op](found, constant(_signed(op, where.value)))
    if zero and op == "==":
        made = made | (found == constant(-0.0)) | (found == constant(0.0))
    # To Spark, NaN is the greatest number, and equal to itself.
    return ~functions.isnan(found) & made if kind in {"float", "double"} else made


_SPARK: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

ENGINES: dict[str, Callable[[ExitStack], Engine]] = {
    "pyiceberg": pyiceberg,
    "duckdb": duckdb,
    "jvm": _Jvm,
    "spark": _Spark,
}
