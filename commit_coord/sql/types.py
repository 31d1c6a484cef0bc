"""Hive's types as Iceberg's, and Iceberg's as Hive's."""

from __future__ import annotations

from itertools import count
from typing import Any

from pyiceberg import types as iceberg
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.sql.clauses import unknown

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

    VARCHAR and CHAR are strings of any length, TINYINT and SMALLINT are INT.

    Raises:
        StatementError: It has none.
    """
    if (more := unknown(written)) is not None:
        raise StatementError("Iceberg has no such type", type=written.sql(dialect="hive"), found=more)
    return _converted(written, ids or count(1))


def _converted(written: sql.DataType, ids: count[int]) -> iceberg.IcebergType:
    kind, inside = written.this, written.expressions
    if kind in _SIMPLE and (not inside or (kind in {_T.VARCHAR, _T.CHAR} and len(_numbers(inside)) == 1)):
        return _SIMPLE[kind]
    if kind is _T.DECIMAL:
        precision, scale, *more = [*_numbers(inside), 0] if inside else (10, 0)
        if not more[1:] and 1 <= precision <= 38 and scale <= precision:
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
    if kind is _T.STRUCT and inside and all(isinstance(field, sql.ColumnDef) for field in inside):
        return iceberg.StructType(
            *(
                iceberg.NestedField(
                    next(ids), field.name, _converted(field.args["kind"], ids), required=False, doc=_comment(field)
                )
                for field in inside
            )
        )
    raise StatementError("Iceberg has no such type", type=written.sql(dialect="hive"))


def _numbers(written: list[sql.Expr]) -> list[int]:
    """Return the numbers between a type's brackets; none where anything else is there."""
    found = [part.name for part in written]
    return [int(number) for number in found] if all(number.isdecimal() for number in found) else []


def _comment(field: sql.Expr) -> str | None:
    return next((constraint.args["kind"].name or None for constraint in field.args.get("constraints") or ()), None)


_SPELLED: dict[type[iceberg.IcebergType], str] = {
    iceberg.IntegerType: "int",
    iceberg.LongType: "bigint",
    iceberg.TimestamptzType: "timestamp with local time zone",
    iceberg.UUIDType: "string",
    iceberg.FixedType: "binary",
}
"""Those that Hive spells in another way."""


def hive_type(kind: iceberg.IcebergType) -> str:
    """Return how Hive spells *kind*."""
    match kind:
        case iceberg.DecimalType(precision=precision, scale=scale):
            return f"decimal({precision},{scale})"
        case iceberg.ListType(element_type=element):
            return f"array<{hive_type(element)}>"
        case iceberg.MapType(key_type=key, value_type=value):
            return f"map<{hive_type(key)},{hive_type(value)}>"
        case iceberg.StructType(fields=fields):
            return f"struct<{','.join(f'{field.name}:{hive_type(field.field_type)}' for field in fields)}>"
    return _SPELLED.get(type(kind), str(kind))
