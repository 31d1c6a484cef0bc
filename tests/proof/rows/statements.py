"""Operations and conditions as a user types them."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from commit_coord.testing.table_files.values import MAIN
from tests.proof.rows.model.conditions import Always, And, Compare, In, IsNull, Not, NotNull, Or, Stated, Where
from tests.proof.rows.model.operations import (
    Concatenate,
    Insert,
    InsertSelect,
    SqlDelete,
    SqlUpdate,
    Statement,
    TableStatement,
    Truncate,
)
from tests.proof.rows.model.partition_clauses import Clause
from tests.proof.rows.model.table_statements import (
    SqlAddPartition,
    SqlConcatenatePartition,
    SqlDropPartition,
    SqlDropRef,
    SqlExpire,
    SqlInsertPartition,
    SqlMakeRef,
    SqlRollback,
    SqlTruncatePartition,
)


def text_of(operation: Statement | TableStatement, on: Table, location: str = "") -> str:
    """Return *operation* as it is typed.

    Args:
        operation: The statement.
        on: The table as it is.
        location: Of the files that it names.
    """
    table = on.name()[-1]
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
        case SqlTruncatePartition(clause=clause):
            return f"TRUNCATE TABLE {table} {_partition(clause)}"
        case SqlInsertPartition(clause=clause, columns=columns, lines=lines, overwrite=overwrite):
            rows = ", ".join(f"({', '.join(map(literal, line))})" for line in lines)
            into = f"INSERT {'OVERWRITE' if overwrite else 'INTO'} {table} {_partition(clause)}"
            return f"{into} ({', '.join(columns)}) VALUES {rows}"
    return f"ALTER TABLE {table} {_altered(operation, on, location)}"


def _altered(operation: Statement | TableStatement, on: Table, location: str) -> str:
    match operation:
        case SqlDropPartition(clauses=clauses, lenient=lenient):
            return f"DROP {'IF EXISTS ' if lenient else ''}{', '.join(map(_partition, clauses))}"
        case SqlConcatenatePartition(clause=clause):
            return f"{_partition(clause)} CONCATENATE"
        case SqlAddPartition(clause=clause, lenient=lenient):
            exists = "IF NOT EXISTS " if lenient else ""
            return f"ADD {exists}{_partition(clause)} LOCATION {literal(location)}"
        case SqlMakeRef(name=name, kind=kind, lenient=lenient):
            exists = "IF NOT EXISTS " if lenient else ""
            return f"CREATE {kind.upper()} {exists}{name}{_source(operation, on)}"
        case SqlDropRef(name=name, kind=kind, lenient=lenient):
            return f"DROP {kind.upper()} {'IF EXISTS ' if lenient else ''}{name}"
        case SqlRollback(back=back, timed=True):
            return f"EXECUTE ROLLBACK('{_time_of(ancestor(on, back - 1))}')"
        case SqlRollback(back=back):
            return f"EXECUTE ROLLBACK({ancestor(on, back).snapshot_id})"
        case SqlExpire(last=last) if last:
            return f"EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST {last}"
        case SqlExpire(backs=backs) if backs:
            return f"EXECUTE EXPIRE_SNAPSHOTS('{', '.join(str(ancestor(on, back).snapshot_id) for back in backs)}')"
        case SqlExpire():
            return "EXECUTE EXPIRE_SNAPSHOTS('9999-12-31 00:00:00')"
    raise TypeError(operation)


def _source(operation: SqlMakeRef, on: Table) -> str:
    if operation.back:
        return f" FOR SYSTEM_VERSION AS OF {ancestor(on, operation.back).snapshot_id}"
    if operation.source == MAIN:
        return ""
    ref = on.metadata.refs.get(operation.source)
    kind = ref.snapshot_ref_type.value.upper() if ref is not None else "BRANCH"
    return f" FOR {kind} AS OF {operation.source}"


def ancestor(table: Table, back: int) -> Snapshot:
    """Return the snapshot that is so many behind the head of the main branch.

    Raises:
        ValueError: There is none.
    """
    found = table.current_snapshot()
    for _ in range(back):
        found = table.snapshot_by_id(found.parent_snapshot_id) if found and found.parent_snapshot_id else None
    if found is None:
        raise ValueError("there are not so many snapshots")
    return found


def _time_of(snapshot: Snapshot) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=snapshot.timestamp_ms)


def _partition(clause: Clause) -> str:
    return f"PARTITION ({', '.join(f'{name}={_value(value)}' for name, value in clause)})"


def _value(value: Any) -> str:
    """Return a value of a partition as it is typed: a text, a number, TRUE, FALSE or NULL."""
    match value:
        case dt.date() | dt.time() | float() | UUID():
            return literal(str(value))
        case bytes():
            return literal(value.decode())
    return literal(value)


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
        case UUID():
            return f"'{value}'"
        case float() if not math.isfinite(value):
            return f"CAST('{value}' AS DOUBLE)"
    return repr(value)
