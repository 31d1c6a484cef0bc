"""Operations and conditions as they are typed."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

from pyiceberg.schema import Schema

from commit_coord.testing.rows.model.conditions import Always, And, Compare, In, IsNull, Not, NotNull, Or, Stated, Where
from commit_coord.testing.rows.model.operations import (
    Concatenate,
    Insert,
    InsertSelect,
    SqlDelete,
    SqlUpdate,
    Statement,
    Truncate,
)


def text_of(operation: Statement, table: str, schema: Schema) -> str:
    """Return *operation* as it is typed."""
    match operation:
        case Insert(columns=columns, values=values, overwrite=overwrite):
            lines = ", ".join(f"({', '.join(map(literal, line))})" for line in values)
            return f"INSERT {'OVERWRITE' if overwrite else 'INTO'} {table} ({', '.join(columns)}) VALUES {lines}"
        case InsertSelect(where=where, overwrite=overwrite):
            kind = "OVERWRITE" if overwrite else "INTO"
            return f"INSERT {kind} {table} SELECT * FROM {table}{where_text(where)}"
        case SqlUpdate(where=where, sets=sets):
            changes = ", ".join(f"{column} = {literal(value)}" for column, value in sets)
            return f"UPDATE {table} SET {changes}{where_text(where)}"
        case SqlDelete(where=where):
            return f"DELETE FROM {table}{where_text(where)}"
        case Truncate():
            return f"TRUNCATE TABLE {table}"
        case Concatenate():
            return f"ALTER TABLE {table} CONCATENATE"


def where_text(where: Where) -> str:
    """Return the clause of a statement that means *where*; "" for every row."""
    return "" if isinstance(where, Always) else f" WHERE {_condition(where)}"


def _condition(where: Where) -> str:
    match where:
        case Stated(inner=inner):
            return _condition(inner)
        case Not(inner=inner):
            return f"NOT ({_condition(inner)})"
        case And(left=left, right=right):
            return f"({_condition(left)} AND {_condition(right)})"
        case Or(left=left, right=right):
            return f"({_condition(left)} OR {_condition(right)})"
        case IsNull(column=column):
            return f"{column} IS NULL"
        case NotNull(column=column):
            return f"{column} IS NOT NULL"
        case In(column=column, values=values):
            return f"{column} IN ({', '.join(map(literal, values))})"
        case Compare(column=column, op=op, value=value):
            return f"{column} {'=' if op == '==' else op} {literal(value)}"
    raise TypeError(where)


def literal(value: Any) -> str:
    """Return a constant as it is typed."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime() if value.tzinfo is None:
            return f"TIMESTAMP '{value}'"
        case dt.datetime() | dt.time():
            return f"'{value}'"
        case dt.date():
            return f"DATE '{value}'"
        case Decimal():
            return f"{value:f}"
        case float() if not math.isfinite(value):
            return f"CAST('{value}' AS DOUBLE)"
    return repr(value)
