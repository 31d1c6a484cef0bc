"""Which rows of an upsert change a row of the table, and which are new. Keys are compared as SQL compares values.

PyIceberg finds changed rows with Arrow's join, which treats 0.0 and -0.0 as different keys, and new rows with a filter,
which treats them as equal. A row whose key is the other zero was neither changed nor new, and was lost. PyIceberg also
checks for duplicate keys of the table only within each batch, not across batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from commit_coord.iceberg.plain_rows import python_values

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]


def number_of_each(rows: pa.Table, keys: Sequence[str], message: str) -> dict[Key, int]:
    """Return key → number of its row.

    Args:
        rows: The rows; each key must occur once.
        keys: The columns that make up the key.
        message: The message of the error.

    Raises:
        ValueError: A key is there twice.
    """
    numbers = {key: number for number, key in enumerate(keys_of(rows, keys))}
    if len(numbers) < rows.num_rows:
        raise ValueError(message)
    return numbers


def keys_of(rows: pa.Table, keys: Sequence[str]) -> list[Key]:
    """Return the key of each row. Python takes 0.0 and -0.0 for one value."""
    return list(zip(*(python_values(rows[key]) for key in keys), strict=True))


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
            compared = zip(differs, python_values(before[name]), python_values(after[name]), strict=True)
            differs = [differ or old != new for differ, old, new in compared]
    return _take(rows, (number for number, differ in zip(given, differs, strict=True) if differ))


def new(rows: pa.Table, found: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return those of *rows* whose key no row of *found* has."""
    there = set(keys_of(found, keys))
    return _take(rows, (number for number, key in enumerate(_keys_as_in(found, rows, keys)) if key not in there))


def _take(rows: pa.Table, numbers: Iterable[int]) -> pa.Table:
    import pyarrow as pa

    return rows.take(pa.array(numbers, pa.int64()))
