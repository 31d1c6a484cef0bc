"""Constants of statements as Python's values: numbers exactly as they are written."""

from __future__ import annotations

from decimal import Decimal, DecimalException
from math import isfinite
from typing import Any

from pyiceberg.types import DateType, StringType
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.iceberg.values import Double, Misfit, exact_number, fit
from commit_coord.sql.clauses import unknown
from commit_coord.sql.types import iceberg_type


class NotAConstant(Exception):
    """An expression has no value of its own."""


def constant(value: sql.Expr) -> Any:
    """Return the value of a constant; a whole number is an int, any other an exact ``Decimal``.

    Raises:
        NotAConstant: It is none.
        StatementError: It is a cast of a value that the type does not have. No cast rounds, cuts or pads.
    """
    if (more := unknown(value)) is not None:
        raise NotAConstant(more)
    try:
        return _constant(value)
    except Misfit as error:
        raise StatementError("invalid value for this type", found=value.sql(dialect="hive"), reason=error) from error


def _constant(value: sql.Expr) -> Any:
    match value:
        case sql.Null():
            return None
        case sql.Paren(this=inner):
            return _constant(inner)
        case sql.Neg(this=inner):
            return _negative(_constant(inner), value)
        case sql.Boolean(this=truth):
            return truth
        case sql.Literal(this=text, is_string=True):
            return text
        case sql.Literal(this=text):
            return number(text)
        case sql.Concat(expressions=parts):
            texts = [fit(_constant(part), StringType()) for part in parts]
            return None if None in texts else "".join(texts)  # 'it''s' and 'a' 'b'
        case sql.HexString(this=text) | sql.Unhex(this=sql.Literal(this=text, is_string=True)):
            return _bytes(text)
        case sql.Date(this=inner) | sql.TsOrDsToDate(this=inner):
            return fit(_constant(inner), DateType())
        case sql.Cast(this=inner, to=kind):
            return _cast(_constant(inner), kind)
        case sql.Array(expressions=items):
            return [_constant(item) for item in items]
        case sql.VarMap():
            keys, items = value.args["keys"].expressions, value.args["values"].expressions
            return [(_constant(key), _constant(item)) for key, item in zip(keys, items, strict=True)]
        case sql.Struct(expressions=fields) if all(isinstance(field, sql.PropertyEQ) for field in fields):
            return {field.name: _constant(field.expression) for field in fields}
    raise NotAConstant(value.sql(dialect="hive"))


_BYTES = {sql.DType.TINYINT: 1, sql.DType.SMALLINT: 2}


def _cast(value: Any, written: sql.DataType) -> Any:
    """Return *value* as the type has it, if that has all of it."""
    found, kind = fit(value, iceberg_type(written)), written.this
    if found is None:
        return None
    if written.args.get("nested"):
        raise NotAConstant(written.sql(dialect="hive"))
    if kind in _BYTES and not -(limit := 2 ** (8 * _BYTES[kind] - 1)) <= found < limit:
        raise Misfit(f"{found} is out of the range of {written.sql(dialect='hive')}")
    if kind in {sql.DType.VARCHAR, sql.DType.CHAR} and written.expressions:
        length = int(written.expressions[0].name)
        if len(found) > length or (kind is sql.DType.CHAR and len(found) < length):
            raise Misfit(f"{found!r} would be cut or padded: it has {len(found)} characters")
    if isinstance(found, float) and isfinite(found) and exact_number(found) != exact_number(value):
        raise Misfit(f"{value} would be rounded to {found}: write that number")
    return found


def number(text: str) -> int | Decimal:
    """Return the number that *text*, a literal, is.

    Raises:
        Misfit: Its exponent is no number of this machine's.
    """
    try:
        exact = (Double if "e" in text.lower() else Decimal)(text)
    except DecimalException:
        raise Misfit(f"{text} is out of range") from None
    written_whole = not any(mark in text.lower() for mark in ".e")
    return int(exact) if written_whole and len(text) < 1000 else exact


def _negative(value: Any, written: sql.Expr) -> Any:
    if isinstance(value, Decimal):
        return type(value)(value.copy_negate())  # A minus sign would round to the context's precision.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotAConstant(written.sql(dialect="hive"))
    return -value


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text if len(text) % 2 == 0 else f"0{text}")
    except ValueError:
        raise Misfit(f"{text!r} is not hexadecimal") from None
