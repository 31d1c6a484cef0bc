"""Deletes of rows, as other engines commit them to a table with one data file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from tests.proof.rows.row_deletes import RowDeletes, commit_row_deletes, of_positions


def add_position_deletes(
    table: Any, positions: Sequence[int], bounds: Mapping[int, bytes] = {}, upper: Mapping[int, bytes] | None = None
) -> None:
    """Delete the rows at *positions* of the only data file of *table*; *bounds* and *upper* are those of these rows."""
    (task,) = table.scan().plan_files()
    places = [(task.file.file_path, position) for position in positions]
    _commit(table, of_positions(task.file, places, bounds, bounds if upper is None else upper))


def add_equality_deletes(table: Any, ids: Sequence[int], bounds: Mapping[int, bytes] = {}) -> None:
    """Delete the rows with *ids* in column 1 of *table*, which has one data file. PyIceberg can't read it any more.

    *bounds* are those of the deleted rows: an engine that knows whole rows writes them.
    """
    (task,) = table.scan().plan_files()
    schema = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    rows = pa.Table.from_arrays([pa.array(ids, pa.int64())], schema=schema)
    _commit(table, RowDeletes(task.file, rows, bounds, bounds, equality_ids=[1]))


def _commit(table: Any, deletes: RowDeletes) -> None:
    uri = table.catalog.properties["uri"].removeprefix("coord+")
    commit_row_deletes(SqlCatalog(table.catalog.name, uri=uri).load_table(table.name()), [deletes])
    table.refresh()
