"""Deletes of rows, as other engines commit them: files that name rows of data files, by position or by value."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)

_FIELD_ID = b"PARQUET:field_id"


def add_position_deletes(
    table: Any, positions: Sequence[int], bounds: Mapping[int, bytes] = {}, upper: Mapping[int, bytes] | None = None
) -> None:
    """Delete the rows at *positions* of the only data file of *table*; *bounds* and *upper* are those of these rows."""
    (task,) = table.scan().plan_files()
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: b"2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: b"2147483545"}),
        ]
    )
    columns = [pa.array([task.file.file_path] * len(positions)), pa.array(positions, pa.int64())]
    rows = pa.Table.from_arrays(columns, schema=schema)
    _commit(table, task.file, DataFileContent.POSITION_DELETES, rows, bounds, upper=upper)


def add_equality_deletes(table: Any, ids: Sequence[int], bounds: Mapping[int, bytes] = {}) -> None:
    """Delete the rows with *ids* in column 1 of *table*, which has one data file. PyIceberg can't read it any more.

    *bounds* are those of the deleted rows: an engine that knows whole rows writes them.
    """
    (task,) = table.scan().plan_files()
    schema = pa.schema([pa.field("id", pa.int64(), metadata={_FIELD_ID: b"1"})])
    _commit(
        table,
        task.file,
        DataFileContent.EQUALITY_DELETES,
        pa.Table.from_arrays([pa.array(ids, pa.int64())], schema=schema),
        bounds,
        equality_ids=[1],
    )


def _commit(
    table: Any,
    data_file: DataFile,
    content: DataFileContent,
    rows: pa.Table,
    bounds: Mapping[int, bytes],
    equality_ids: list[int] | None = None,
    upper: Mapping[int, bytes] | None = None,
) -> None:
    path = f"{table.location()}/{uuid.uuid4()}-deletes.parquet"
    with table.io.new_output(path).create() as stream:
        pq.write_table(rows, stream)
    deletes = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET,
        partition=data_file.partition, record_count=len(rows), file_size_in_bytes=len(table.io.new_input(path)),
        spec_id=data_file.spec_id, sort_order_id=None, equality_ids=equality_ids, key_metadata=None,
        value_counts=dict.fromkeys(bounds, len(rows)), null_value_counts=dict.fromkeys(bounds, 0),
        lower_bounds=dict(bounds), upper_bounds=dict(bounds if upper is None else upper),
    )  # fmt: skip
    uri = table.catalog.properties["uri"].removeprefix("coord+")
    stock = SqlCatalog(table.catalog.name, uri=uri).load_table(table.name())
    with stock.transaction() as tx:
        append = tx.update_snapshot().fast_append()
        data = append._existing_manifests()
        output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-deletes.avro")
        with _DeleteManifest(table.spec(), table.schema(), output, append._snapshot_id, "null") as writer:
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=append._snapshot_id, sequence_number=None,
                    file_sequence_number=None, data_file=deletes,
                )
            )  # fmt: skip
        append._existing_manifests = lambda: [*data, writer.to_manifest_file()]  # type: ignore[method-assign]
        append.commit()
    table.refresh()


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES
