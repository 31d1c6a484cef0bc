"""Hive's types as Iceberg's."""

from __future__ import annotations

from itertools import count
from typing import Any

from pyiceberg import types as iceberg
from sqlglot import expressions as sql

from commit_coord.errors import StatementError

_T = sql.DataType.Type

_SIMPLE: dict[Any, iceberg.PrimitiveType] = {
    _T.BOOLEAN: iceberg.BooleanType(),
    _T.TINYINT: iceberg.IntegerType(),
    _T.SMALLINT: iceberg.IntegerType(),
    _T.INT: iceberg.IntegerType(),
    _T.BIGINT: iceberg.LongType(),
    _T.FLOAT: iceberg.FloatType(),
    _T.DOUBLE: iceberg.DoubleType(),
    _T.TEXT: iceberg.StringType(),
    _T.VARCHAR: iceberg.StringType(),
    _T.CHAR: iceberg.StringType(),
    _T.BINARY: iceberg.BinaryType(),
    _T.VARBINARY: iceberg.BinaryType(),
    _T.DATE: iceberg.DateType(),
    _T.TIMESTAMP: iceberg.TimestampType(),
    _T.TIMESTAMPLTZ: iceberg.TimestamptzType(),
    _T.TIMESTAMPTZ: iceberg.TimestamptzType(),
}


def iceberg_type(written: sql.DataType, ids: count[int] | None = None) -> iceberg.IcebergType:
    """Return the type that Iceberg has for *written*; the ids inside of it, from *ids*, mean nothing yet.

    Raises:
        StatementError: It has none.
    """
    return _converted(written, ids or count(1))


def _converted(written: sql.DataType, ids: count[int]) -> iceberg.IcebergType:
    kind, inside = written.this, written.expressions
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind is _T.DECIMAL:
        precision, scale = ([int(part.name) for part in inside] + [0])[:2] if inside else (10, 0)
        return iceberg.DecimalType(precision, scale)
    if kind is _T.ARRAY and len(inside) == 1:
        return iceberg.ListType(element_id=next(ids), element=_converted(inside[0], ids), element_required=False)
    if kind is _T.MAP and len(inside) == 2:
        return iceberg.MapType(
            key_id=next(ids),
            key_type=_converted(inside[0], ids),
            value_id=next(ids),
            value_type=_converted(inside[1], ids),
            value_required=False,
        )
    if kind is _T.STRUCT and inside:
        return iceberg.StructType(
            *(
                iceberg.NestedField(next(ids), field.name, _converted(field.args["kind"], ids), required=False)
                for field in inside
            )
        )
    raise StatementError("Iceberg has no such type", type=written.sql(dialect="hive"))
