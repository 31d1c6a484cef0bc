"""Deletes of rows as other engines commit them: files that name rows of data files, by position or by value.

PyIceberg reads files of positions and writes none.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

_FIELD_ID = b"PARQUET:field_id"

POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={_FIELD_ID: b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={_FIELD_ID: b"2147483545"}),
    ]
)
"""The columns of a file of positions. Source: Iceberg's specification, "Position Delete Files"."""


@dataclass(frozen=True)
class RowDeletes:
    """A file of deletes that is to be written.

    Args:
        same_partition: A data file of the same partition.
        rows: What the file holds.
        lower: Its lower bounds by field id.
        upper: Its upper bounds.
        equality_ids: The columns by which it deletes; None: by position.
    """

    same_partition: DataFile
    rows: pa.Table
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)
    equality_ids: list[int] | None = None


def of_positions(
    same_partition: DataFile,
    positions: Iterable[tuple[str, int]],
    lower: Mapping[int, bytes] = {},
    upper: Mapping[int, bytes] = {},
) -> RowDeletes:
    """Return the deletion of rows by data file and position, all in the partition of *same_partition*."""
    paths, places = zip(*sorted(positions), strict=True)
    columns = [pa.array(paths, pa.string()), pa.array(places, pa.int64())]
    return RowDeletes(same_partition, pa.Table.from_arrays(columns, schema=POSITIONS), lower, upper)


def commit_row_deletes(table: Table, deletes: Sequence[RowDeletes]) -> None:
    """Commit *deletes* to *table*, which is PyIceberg's own, as one snapshot, a manifest for each spec.

    Raises:
        ValueError: A column is gone by which a spec of *deletes* partitions: PyIceberg writes no manifest of that spec.
    """
    sources = {f.source_id for one in deletes for f in table.specs()[one.same_partition.spec_id].fields}
    if not sources <= table.schema().field_ids:
        raise ValueError("a column was dropped that the spec of these files has")
    written = [(one.same_partition.spec_id, _written(table, one)) for one in deletes]
    with table.transaction() as transaction:
        update = transaction.update_snapshot(snapshot_properties=_summary([file for _, file in written]))
        commit = update.fast_append()
        commit._operation = Operation.DELETE
        manifests = commit._existing_manifests()
        for spec_id, files in groupby(sorted(written, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
            output = table.io.new_output(f"{table.location()}/metadata/{uuid.uuid4()}-deletes.avro")
            spec = table.specs()[spec_id]
            with _DeleteManifest(spec, table.schema(), output, commit._snapshot_id, "null") as writer:
                for _, file in files:
                    writer.add_entry(_added(file, commit._snapshot_id))
            manifests.append(writer.to_manifest_file())
        commit._existing_manifests = lambda: manifests  # type: ignore[method-assign]
        commit.commit()


def _written(table: Table, deletes: RowDeletes) -> DataFile:
    path, count = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet", len(deletes.rows)
    with table.io.new_output(path).create() as stream:
        pq.write_table(deletes.rows, stream)
    content = DataFileContent.POSITION_DELETES if deletes.equality_ids is None else DataFileContent.EQUALITY_DELETES
    return DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET, partition=deletes.same_partition.partition,
        record_count=count, file_size_in_bytes=len(table.io.new_input(path)), spec_id=deletes.same_partition.spec_id,
        sort_order_id=None, equality_ids=deletes.equality_ids, key_metadata=None,
        value_counts=dict.fromkeys(deletes.lower, count), null_value_counts=dict.fromkeys(deletes.lower, 0),
        lower_bounds=dict(deletes.lower), upper_bounds=dict(deletes.upper),
    )  # fmt: skip


def _with_int_ids(data_file: NestedField) -> NestedField:
    kind = data_file.field_type
    assert isinstance(kind, StructType)
    ids = ListType(element_id=136, element_type=IntegerType(), element_required=True)
    fields = [
        each.model_copy(update={"field_type": ids}) if each.name == "equality_ids" else each for each in kind.fields
    ]
    return data_file.model_copy(update={"field_type": StructType(*fields)})


def _added(file: DataFile, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, file_sequence_number=None,
        data_file=file,
    )  # fmt: skip


def _summary(files: Sequence[DataFile]) -> dict[str, str]:
    kinds: Any = {
        "position": [file for file in files if file.content is DataFileContent.POSITION_DELETES],
        "equality": [file for file in files if file.content is DataFileContent.EQUALITY_DELETES],
    }
    counts = {
        "added-delete-files": len(files),
        "added-files-size": sum(file.file_size_in_bytes for file in files),
    }
    for kind, some in kinds.items():
        counts[f"added-{kind}-delete-files"] = len(some)
        counts[f"added-{kind}-deletes"] = sum(file.record_count for file in some)
    return {key: str(count) for key, count in counts.items() if count}


class _DeleteManifest(ManifestWriterV2):
    def _with_partition(self, format_version: TableVersion) -> Schema:
        """As Iceberg's specification has it: ``equality_ids`` are ints. PyIceberg's are longs, which Spark refuses."""
        entry = super()._with_partition(format_version)
        return Schema(*(_with_int_ids(each) if each.name == "data_file" else each for each in entry.fields))

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES
