"""Whether rows fit a table: PyIceberg's answer, for less."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import pyarrow as reader
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import commit_coord  # noqa: F401 - it corrects PyIceberg

TABLE = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "s", StringType(), required=False))
FITS = pa.schema([("id", pa.int64()), ("s", pa.string())])


def with_ids(first: int, second: int) -> pa.Schema:
    """Return the same columns, with these field ids."""
    names = {b"PARQUET:field_id": str(first).encode()}, {b"PARQUET:field_id": str(second).encode()}
    return pa.schema([pa.field("id", pa.int64(), metadata=names[0]), pa.field("s", pa.string(), metadata=names[1])])


def check(table: Schema, rows: pa.Schema) -> None:
    """Ask PyIceberg, as a write does."""
    reader._check_pyarrow_schema_compatible(table, provided_schema=rows, format_version=2)


def test_what_fits_fits_again_and_what_does_not_is_refused_again() -> None:
    for _ in range(3):
        check(TABLE, FITS)
        with pytest.raises(ValueError, match="more columns"):
            check(TABLE, FITS.append(pa.field("x", pa.int64())))
        with pytest.raises(ValueError, match="Mismatch"):
            check(TABLE, pa.schema([("id", pa.string()), ("s", pa.string())]))


def test_columns_of_equal_names_and_types_are_other_columns_by_their_ids() -> None:
    check(TABLE, with_ids(1, 2))
    with pytest.raises(ValueError, match="Mismatch"):
        check(TABLE, with_ids(2, 1))


def test_a_column_that_became_required_does_not_fit_what_fitted() -> None:
    check(TABLE, FITS)
    required = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "s", StringType()))
    with pytest.raises(ValueError, match="Mismatch"):
        check(required, FITS)


def test_the_first_append_of_a_process_imports_no_library_for_a_message(tmp_path: Path) -> None:
    """It would take ten times as long as the append."""
    code = f"""
import sys, pyarrow as pa
from commit_coord import load_catalog
catalog = load_catalog("c", uri="coord+sqlite:///{tmp_path}/c.db", warehouse="file://{tmp_path}/w")
catalog.create_namespace("db")
rows = pa.table({{"id": [1]}})
catalog.create_table("db.t", rows.schema).append(rows)
assert "rich.console" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
