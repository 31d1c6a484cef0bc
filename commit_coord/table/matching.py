"""Which rows of an upsert change a row of the table, and which are new. Keys are compared as SQL compares values.

So NaN equals itself, and a NULL in a key equals nothing: a row with such a key is new, as in SQL's MERGE, and many rows
may have it.

PyIceberg finds changed rows with Arrow's join, which treats 0.0 and -0.0 as different keys, and new rows with a filter,
which treats them as equal. A row whose key is the other zero was neither changed nor new, and was lost. NaN and NULL
are no literals of its filters, so it refuses such keys. PyIceberg also checks for duplicate keys of the table only
within each batch, not across batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import BooleanExpression, In, IsNaN, Or
from pyiceberg.schema import Schema

from commit_coord.errors import StatementError
from commit_coord.iceberg.plain_rows import python_values
from commit_coord.table.partition_filters import of_values

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]


def key_columns(names: Iterable[str], rows: pa.Table, schema: Schema, *, case_sensitive: bool) -> list[str]:
    """Return the columns that make up the key, as the table and *rows* call them.

    Args:
        names: As the caller writes them.
        rows: The rows of the caller.
        schema: Of the table.
        case_sensitive: How *names* name columns of the table.

    Raises:
        StatementError: The table or *rows* lack such a column, its name is ambiguous, or its values are no keys.
    """
    keys: dict[str, None] = {}
    for name in names:
        try:
            field = schema.find_field(name, case_sensitive)
        except (ValueError, ValidationError) as error:
            raise StatementError(str(error), column=name, accepted=", ".join(schema.column_names)) from error
        if not field.field_type.is_primitive:
            raise StatementError("a list, map or struct can't be a key", column=name, type=field.field_type)
        key = schema.find_column_name(field.field_id) or field.name
        if rows.schema.get_field_index(key) < 0:  # in the words of Arrow, which PyIceberg passes on
            raise StatementError(f'Field "{key}" does not exist in schema of the rows', columns=rows.column_names)
        keys[key] = None
    return list(keys)


def matches(rows: pa.Table, keys: Sequence[str]) -> BooleanExpression:
    """Return the filter of the rows of a table that have the key of one of *rows*."""
    found = {key: None for key in keys_of(rows, keys) if None not in key}
    if len(keys) > 1:
        return of_values(keys, found)
    numbers = [key for (key,) in found if key == key]  # noqa: PLR0124 - all but NaN
    among = In(term=keys[0], literals=numbers)
    return among if len(numbers) == len(found) else Or(among, IsNaN(term=keys[0]))


def number_of_each(rows: pa.Table, keys: Sequence[str], message: str) -> dict[Key, int]:
    """Return key → number of its row, without the keys with a NULL.

    Args:
        rows: The rows; each key must occur once.
        keys: The columns that make up the key.
        message: The message of the error.

    Raises:
        ValueError: A key is there twice.
    """
    found = [(key, number) for number, key in enumerate(keys_of(rows, keys)) if None not in key]
    numbers = dict(found)
    if len(numbers) < len(found):
        raise ValueError(message)
    return numbers


def keys_of(rows: pa.Table, keys: Sequence[str]) -> list[Key]:
    """Return the key of each row. Python takes 0.0 and -0.0 for one value, and here NaN is one, too."""
    return list(zip(*(_values(rows, key) for key in keys), strict=True))


def _values(rows: pa.Table, name: str) -> list[Any]:
    """Return a column with each NaN as one object: inside of tuples Python takes what is one object for equal."""
    return [math.nan if value != value else value for value in python_values(rows[name])]  # noqa: PLR0124 - NaN alone


def _keys_as_in(found: pa.Table, rows: pa.Table, keys: Sequence[str]) -> list[Key]:
    """Return the key of each of *rows* with the types that *found* has: a UUID may be given as its bytes."""
    import pyarrow as pa

    return keys_of(rows.select(keys).cast(pa.schema([found.schema.field(key) for key in keys])), keys)


def changed(rows: pa.Table, found: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return those of *rows* that differ from the row of the table that has their key.

    Args:
        rows: The rows; each key must occur once.
        found: Rows of the table that have one of these keys, with all columns.
        keys: The columns that make up the key.

    Raises:
        ValueError: The table holds a key twice, or *rows* lack one of its columns.
    """
    in_table = number_of_each(found, keys, "Target table has duplicate rows, aborting upsert")
    pairs = [(given, in_table[key]) for given, key in enumerate(_keys_as_in(found, rows, keys)) if key in in_table]
    if not pairs:
        return rows.slice(0, 0)
    if lacking := [name for name in found.column_names if name not in rows.column_names]:
        raise ValueError(f"rows that replace rows of the table need all of its columns; missing: {', '.join(lacking)}")
    given, there = (list(numbers) for numbers in zip(*pairs, strict=True))
    before = found.take(there)
    after = rows.select(found.column_names).take(given).cast(before.schema)
    differs = [False] * len(pairs)
    for name in found.column_names:
        if name not in keys:
            compared = zip(differs, _values(before, name), _values(after, name), strict=True)
            differs = [differ or (old,) != (new,) for differ, old, new in compared]
    return _take(rows, (number for number, differ in zip(given, differs, strict=True) if differ))


def new(rows: pa.Table, found: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return those of *rows* whose key no row of *found* has."""
    there = set(keys_of(found, keys))
    return _take(rows, (number for number, key in enumerate(_keys_as_in(found, rows, keys)) if key not in there))


def _take(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    import pyarrow as pa

    return rows.take(pa.array(numbers, pa.int64()))
