"""What is remembered of one append decides about no other one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from commit_coord.iceberg import became_required
from commit_coord.iceberg.became_required import lacks_required, required_since, written_for


def _schema(number: int, *, required: bool) -> Schema:
    return Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "must", StringType(), required=required),
        schema_id=number,
    )


@pytest.mark.parametrize("_again", range(2))
def test_a_column_is_newly_required_if_one_schema_has_it_otherwise(_again: int) -> None:
    optional, required = _schema(0, required=False), _schema(1, required=True)
    assert (2,) == required_since(required, [optional, required])
    assert () == required_since(optional, [optional, required])
    assert () == required_since(_schema(0, required=True), [_schema(0, required=True)])
    assert (1, 2) == required_since(required, [optional, required, Schema(schema_id=2)])


def test_where_schemas_were_removed_any_column_may_be_newly_required() -> None:
    assert (1, 2) == required_since(_schema(1, required=True), [_schema(1, required=True)])


def test_a_file_that_is_not_there_lacks_nothing(tmp_path: Path) -> None:
    """It has no rows. Iceberg's compatibility kit commits such files to a table whose old schemas are removed."""
    now = _schema(1, required=True)
    file = {"file_path": str(tmp_path / "nowhere.parquet"), "file_format": "PARQUET"}
    assert lacks_required([{"data_file": file}], now, required_since(now, [now]), PyArrowFileIO()) is None


def test_headers_are_read_once_unless_they_are_long() -> None:
    became_required._parsed.cache_clear()
    short, long = _schema(0, required=True), Schema(*_many(5_000))
    for schema, kept in ((short, 1), (long, 1)):
        meta = {"schema": schema.model_dump_json().encode(), "partition-spec": b"[]"}
        for _ in range(2):
            assert written_for(meta) == (schema, ())
            assert became_required._parsed.cache_info().currsize == kept


def _many(count: int) -> list[NestedField]:
    return [NestedField(number, f"column_{number}", LongType()) for number in range(1, count + 1)]
