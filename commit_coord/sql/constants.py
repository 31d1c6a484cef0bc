"""Constants of statements as Python's values: numbers exactly as they are written."""

from __future__ import annotations

from decimal import Decimal, DecimalException
from typing import Any

from sqlglot import expressions as sql

from commit_coord.iceberg.values import Misfit, fit
from commit_coord.sql.types import iceberg_type


class NotAConstant(Exception):
    """An expression has no value of its own."""


def constant(value: sql.Expr) -> Any:
    """Return the value of a constant; a whole number is an int, any other an exact ``Decimal``.

    Raises:
        NotAConstant: It is none.
        Misfit: It is a cast of a value that the type does not have. No cast rounds or cuts.
    """
    match value:
        case sql.Null():
            return None
        case sql.Paren(this=inner):
            return constant(inner)
        case sql.Neg(this=inner):
            return _negative(constant(inner), value)
        case sql.Boolean(this=truth):
            return truth
        case sql.Literal(this=text, is_string=True):
            return text
        case sql.Literal(this=text):
            return number(text)
        case sql.Concat(expressions=parts) if all(isinstance(part, sql.Literal) for part in parts):
            return "".join(part.this for part in parts)  # 'it''s' and 'a' 'b'
        case sql.HexString(this=text) | sql.Unhex(this=sql.Literal(this=text, is_string=True)):
            return _bytes(text)
        case sql.Date(this=inner) | sql.TsOrDsToDate(this=inner):
            return fit(constant(inner), iceberg_type(sql.DataType.build("date")))
        case sql.Cast(this=inner, to=kind):
            return fit(constant(inner), iceberg_type(kind))
        case sql.Array(expressions=items):
            return [constant(item) for item in items]
        case sql.VarMap():
            keys, items = value.args["keys"].expressions, value.args["values"].expressions
            return [(constant(key), constant(item)) for key, item in zip(keys, items, strict=True)]
        case sql.Struct(expressions=fields):
            return {field.name: constant(field.expression) for field in fields if isinstance(field, sql.PropertyEQ)}
    raise NotAConstant(value.sql(dialect="hive"))


def number(text: str) -> int | Decimal:
    """Return the number that *text*, a literal, is.

    Raises:
        Misfit: Its exponent is no number of this machine's.
    """
    try:
        exact = Decimal(text)
    except DecimalException:
        raise Misfit(f"{text} is out of range") from None
    written_whole = not any(mark in text.lower() for mark in ".e")
    return int(exact) if written_whole and len(text) < 1000 else exact


def _negative(value: Any, written: sql.Expr) -> Any:
    if isinstance(value, Decimal):
        return value.copy_negate()  # A minus sign would round to the context's precision.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotAConstant(written.sql(dialect="hive"))
    return -value


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text if len(text) % 2 == 0 else f"0{text}")
    except ValueError:
        raise Misfit(f"{text!r} is not hexadecimal") from None
