"""What engines can't read, or read wrongly, whatever wrote the table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, StructType

from commit_coord.testing.table_files.values import complete
from tests.proof.rows.kept_tables import Kept, Look
from tests.proof.rows.model.conditions import Or, columns_of, constants, denied
from tests.proof.rows.read import limits
from tests.proof.rows.read.readers import Bag

Limit = Callable[[Kept, Look], Iterator[str]]
"""Yields why an engine can't answer a look, whatever wrote the table."""


def _any_limit(table: Kept, look: Look) -> Iterator[str]:
    fields = table.schema.as_struct()
    if not all(complete(row, fields) for row in table.looks[0].rows):
        # It wrote for columns that were optional when it looked. What is ours is refused there: the oracle judges that.
        yield "a late client of PyIceberg's left a required value out: readers show 0, or find no NULL"


def _java_limit(table: Kept, look: Look) -> Iterator[str]:
    schema = table.schema
    for spec in table.observed.specs.values():
        for p in spec:
            if any(f.name == p.name and f.field_id != p.source for f in schema.fields):
                yield "a late client of PyIceberg's gave a column the name of another one's partition: not opened"


def _jvm_limit(table: Kept, look: Look) -> Iterator[str]:
    yield from _java_limit(table, look)
    yield from limits.wrapped(table.observed, look.where)
    # IcebergGenerics counts columns instead, and finds no nested ones; Spark's reader does use the mapping.
    if any(not _has_ids(path) for path in table.files):
        yield _NO_IDS
    yield from _float_limit(table, look)


_NO_IDS = "files without field ids: IcebergGenerics does not ask the name mapping"
"""It gives other rows. It ends in one error: a required field in a nested column."""


def _has_ids(path: str) -> bool:
    return all((f.metadata or {}).get(b"PARQUET:field_id") for f in pq.read_schema(path))


def _float_limit(table: Kept, look: Look) -> Iterator[str]:
    # A double constant beyond a float's range is above or below all of its values, and so is infinity.
    floats = any(str(table.schema.find_type(column)) == "float" for column in columns_of(look.where))
    if floats and any(isinstance(value, float) and math.isinf(value) for value in constants(look.where)):
        yield "an infinite constant for a float: taken for out of range"


def _pyiceberg_limit(table: Kept, look: Look) -> Iterator[str]:
    schema = table.schema
    for column in schema.fields:
        kind = column.field_type
        inside = kind.element_type if isinstance(kind, ListType) else getattr(kind, "value_type", None)
        if isinstance(inside, StructType) and any(column.field_id not in dict(row) for row in look.rows):
            yield "a list or map of structs that is NULL: it is shown as empty"
    yield from limits.pyiceberg(table.observed, look.where)


def _spark_limit(table: Kept, look: Look) -> Iterator[str]:
    yield from _java_limit(table, look)
    yield from limits.wrapped(table.observed, look.where)
    if any(str(kind) == "time" for kind in _kinds(table.schema)):
        yield "a time of day: Spark has no such type"
    elif any(str(kind) == "time" for schema in table.observed.schemas.values() for kind in _kinds(schema)):
        yield "a time of day that was dropped: its reader stumbles over the column in old files"
    identities = {p.source for spec in table.observed.specs.values() for p in spec if p.transform == "identity"}
    partitions = {f.name for f in table.schema.fields if f.field_id in identities}
    if isinstance(look.where, Or) and columns_of(look.where) <= partitions and denied(look.where):
        yield "!= or another condition, all on columns that a spec partitions by: it is taken for true of NULL"


def _kinds(schema: Schema) -> Iterator[IcebergType]:
    return (schema.find_type(key) for key in schema.field_ids)


LIMITS: dict[str, Limit] = {
    "pyiceberg": _pyiceberg_limit,
    "duckdb": lambda table, look: limits.duckdb(table.observed, look.where),
    "jvm": _jvm_limit,
    "spark": _spark_limit,
}


def limit(name: str, table: Kept, look: Look, answer: Bag | Exception) -> str:
    """Return why the engine of that name can't answer *look* otherwise; "" if it can."""
    reasons = itertools.chain(LIMITS[name](table, look), _any_limit(table, look))
    is_another_error = isinstance(answer, Exception) and "Missing required field" not in str(answer)
    found = next((reason for reason in reasons if not (is_another_error and reason == _NO_IDS)), "")
    return found or (limits.known(name, answer) if isinstance(answer, Exception) else "")
