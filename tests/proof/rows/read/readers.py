"""Readers of tables: PyIceberg's scan of a metadata file, DuckDB's extension, and what our users see.

The first two share no code with us, and run in processes of their own. The third is PyIceberg's scan in a process that
has our catalogs, where its known faults are mended.
"""

from __future__ import annotations

import atexit
import datetime as dt
import importlib.resources
import multiprocessing
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg import expressions as E
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import DecimalType, IcebergType, IntegerType, ListType, LongType, MapType, StructType

from commit_coord.testing.table_files.values import Row, canonical
from tests.proof.rows.model.conditions import Always, And, Compare, In, IsNull, Not, NotNull, Or, Stated, Where

Bag = Counter[Row]
Reader = Callable[[str, Schema, Where], Bag]
"""Reads the table of a metadata file, whose columns are those of the schema, with a condition."""


def bag(rows: pa.Table, fields: StructType) -> Bag:
    """Return the rows of an Arrow table, by field ids."""
    return Counter(canonical(row, fields) for row in rows.to_pylist())


# PyIceberg.


def expression(where: Where) -> E.BooleanExpression:
    """Return *where* as PyIceberg writes it."""
    match where:
        case Always():
            return E.AlwaysTrue()
        case Not(inner=inner):
            return E.Not(expression(inner))
        case And(left=left, right=right):
            return E.And(expression(left), expression(right))
        case Or(left=left, right=right):
            return E.Or(expression(left), expression(right))
        case IsNull(column=column):
            return E.IsNull(term=column)
        case NotNull(column=column):
            return E.NotNull(term=column)
        case In(column=column, values=values):
            return E.In(term=column, literals=set(values))
        case Compare(column=column, op=op, value=value):
            made: E.BooleanExpression = _COMPARISONS[op](column, value)
            return made
    raise TypeError(where)


_COMPARISONS: dict[str, Any] = {
    "==": E.EqualTo,
    "!=": E.NotEqualTo,
    "<": E.LessThan,
    "<=": E.LessThanOrEqual,
    ">": E.GreaterThan,
    ">=": E.GreaterThanOrEqual,
}


class ReadError(Exception):
    """A reader in another process failed, and reported why."""


class _Stock:
    """PyIceberg in a process that never loads this package, started with the first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._close)

    def ask(self, location: str, row_filter: E.BooleanExpression) -> pa.Table | None:
        """Return the rows that match; None where there is no snapshot."""
        if self._process is None or self._process.poll() is not None:
            self._close()
            program = Path(__file__).with_name("stock_scan.py")
            # -P: the folder of that file is no place to import from.
            self._process = subprocess.Popen(
                [sys.executable, "-P", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((location, row_filter), self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, tuple):
            raise ReadError(": ".join(answer))
        return pa.ipc.open_file(answer).read_all() if answer else None

    def _close(self) -> None:
        """End the process, if there is one; it only reads."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            with suppress(BrokenPipeError):  # a question is in the pipe
                process.communicate()


_stock = _Stock()


def pyiceberg(location: str, schema: Schema, where: Where) -> Bag:
    """Read with PyIceberg's own scan."""
    found = _stock.ask(location, expression(where))
    return Counter() if found is None else bag(found, schema.as_struct())


def as_pyiceberg_shows(rows: Bag, fields: StructType) -> Bag:
    """Return *rows* without empty lists of structs and maps to structs: it shows NULL as such, and not otherwise."""
    blurred = {
        f.field_id
        for f in fields.fields
        if (isinstance(f.field_type, ListType) and isinstance(f.field_type.element_type, StructType))
        or (isinstance(f.field_type, MapType) and isinstance(f.field_type.value_type, StructType))
    }
    if not blurred:
        return rows
    shown: Bag = Counter()
    for row, times in rows.items():
        shown[tuple((key, value) for key, value in row if key not in blurred or value != ())] += times
    return shown


def ours(location: str, schema: Schema, where: Where) -> Bag:
    """Read with PyIceberg's scan in this process, which has our catalogs."""
    table = StaticTable.from_metadata(location)
    if table.metadata.current_snapshot_id is None:
        return Counter()
    return bag(table.scan(row_filter=expression(where)).to_arrow(), schema.as_struct())


def connect_duckdb(*extensions: str) -> Any:
    """Return a connection to DuckDB in this process, with *extensions* from their packages.

    Args:
        extensions: For example ``"iceberg"``; each after those that it needs.
    """
    import duckdb

    connection = duckdb.connect(
        config={
            "allow_unsigned_extensions": "true",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "threads": 1,
        }
    )
    for name in extensions:
        (version,) = (importlib.resources.files(f"duckdb_extension_{name}") / "extensions").iterdir()
        connection.load_extension(str(version / f"{name}.duckdb_extension"))
    return connection


# DuckDB. In a process of its own: what it can't read may end the process.


def _serve(pipe: Connection) -> None:
    import duckdb

    connection = connect_duckdb("avro", "iceberg")
    connection.execute("SET TimeZone = 'UTC'")
    while query := pipe.recv():
        try:
            pipe.send(connection.execute(query).to_arrow_table())
        except duckdb.Error as error:
            pipe.send(f"{type(error).__name__}: {error}")


_INTERNAL = "INTERNAL Error"


class _DuckDB:
    """DuckDB with its Iceberg extension, started with the first question and after each crash."""

    def __init__(self) -> None:
        self._pipe: Connection | None = None

    def ask(self, query: str) -> pa.Table:
        """Return what *query* answers."""
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, other = context.Pipe()
            context.Process(target=_serve, args=(other,), daemon=True).start()
            other.close()
        try:
            self._pipe.send(query)
            found = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._pipe = None
            raise RuntimeError("DuckDB ended") from error
        if isinstance(found, str):
            if _INTERNAL in found:  # after which it refuses everything
                self._pipe.send("")
                self._pipe = None
            raise RuntimeError(found)
        return found


_duckdb = _DuckDB()


def query_duckdb(query: str) -> pa.Table:
    """Return what DuckDB with its Iceberg extension answers.

    Raises:
        RuntimeError: It refuses, or has ended.
    """
    return _duckdb.ask(query)


def duckdb(location: str, schema: Schema, where: Where) -> Bag:
    """Read with DuckDB's Iceberg extension."""
    condition = _sql(where, schema)
    query = f"SELECT * FROM iceberg_scan('{location.removeprefix('file://').removeprefix('file:')}') WHERE {condition}"
    return bag(query_duckdb(query), schema.as_struct())


def _sql(where: Where, schema: Schema) -> str:
    match where:
        case Always():
            return "true"
        case Not(inner=inner):
            return f"(NOT {_sql(inner, schema)})"
        case And(left=left, right=right):
            return f"({_sql(left, schema)} AND {_sql(right, schema)})"
        case Or(left=left, right=right):
            return f"({_sql(left, schema)} OR {_sql(right, schema)})"
        case Stated():
            raise TypeError(where)  # statements alone have it
    column = ".".join(f'"{part}"' for part in where.column.split("."))
    match where:
        case IsNull():
            return f"{column} IS NULL"
        case NotNull():
            return f"{column} IS NOT NULL"
    kind = schema.find_type(where.column)
    # DuckDB takes NaN for the greatest number, and for equal to itself.
    number = f"NOT isnan({column}) AND " if str(kind) in {"float", "double"} else ""
    if isinstance(where, In):
        return f"({number}{column} IN ({', '.join(_literal(value, kind) for value in where.values)}))"
    return f"({number}{column} {where.op} {_literal(where.value, kind)})"


def with_room(kind: IcebergType, value: Any) -> IcebergType:
    """Return *kind*, or a wider type where *value* does not fit: a constant may be greater than any row."""
    match kind, value:
        case IntegerType(), int() if abs(value) >= 2**31:
            return LongType()
        case DecimalType(precision=precision, scale=scale), Decimal():
            return DecimalType(max(precision, len(value.as_tuple().digits)), scale)
    return kind


def _literal(value: Any, kind: IcebergType) -> str:
    kind = with_room(kind, value)
    name = {"long": "BIGINT", "timestamptz": "TIMESTAMPTZ", "string": "VARCHAR", "binary": "BLOB"}.get(
        str(kind), str(kind).upper()
    )
    match value:
        case bytes():
            text = "".join(f"\\x{byte:02X}" for byte in value)
        case str() | UUID() | Decimal() | dt.date() | dt.time():
            text = str(value)
        case float():
            text = repr(value)
        case _:
            text = str(value)
    escaped = text.replace("'", "''")
    return f"CAST('{escaped}' AS {name})"


READERS: dict[str, Reader] = {"pyiceberg": pyiceberg, "duckdb": duckdb, "ours": ours}
