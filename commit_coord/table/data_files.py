"""Rows written as data files, each of one partition."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionKey, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from commit_coord.errors import ConfigError
from commit_coord.iceberg.partitioned_rows import columns_given, split
from commit_coord.iceberg.plain_rows import plain
from commit_coord.iceberg.required import complete
from commit_coord.iceberg.storage import heeded
from commit_coord.iceberg.written import partition_schema
from commit_coord.process import SYSTEM_HOST, Host

if TYPE_CHECKING:
    import pyarrow as pa


_AT_LEAST_ONE = (
    TableProperties.PARQUET_PAGE_ROW_LIMIT,
    TableProperties.PARQUET_PAGE_SIZE_BYTES,
    TableProperties.PARQUET_ROW_GROUP_LIMIT,
    TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
)
"""Properties of which Arrow does not check the value: with other values it never ends, or ends the process."""


def data_files(
    metadata: TableMetadata,
    rows: pa.Table | pa.RecordBatchReader,
    io: FileIO,
    write_uuid: uuid.UUID | None = None,
    counter: itertools.count[int] | None = None,
    *,
    carried: bool = False,
    host: Host = SYSTEM_HOST,
) -> Iterable[DataFile]:
    """Write *rows* as files of the table's current spec and return them; each row is in the file of its partition.

    Args:
        metadata: The table's.
        rows: A stream only where the table has no partitions.
        io: Writes the files.
        write_uuid: Part of the files' names; None makes one up.
        counter: Numbers the files of one *write_uuid*.
        carried: Whether some of the rows are in the table already. Then no truncated value is refused for being out of
            range.
        host: Makes the id where *write_uuid* is None.

    Raises:
        StatementError: A row lacks a required value. Of a table that is found before a file is written.
        ConfigError: A property of the table says that a page, a row group or a file has no size. No file was written.
        ValueError, NotImplementedError: *rows* do not fit the table, or their partition can't be computed.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _dataframe_to_data_files, write_file

    metadata = heeded(metadata, io.properties)
    _refuse_no_size(metadata.properties)
    columns = metadata.schema().as_struct()
    rows = complete(plain(rows, columns), columns)
    write_uuid = write_uuid or host.new_id()
    if not isinstance(rows, pa.Table):
        return _dataframe_to_data_files(metadata, rows, io, write_uuid, counter)
    tasks = _tasks(metadata, rows, write_uuid, counter or itertools.count(), carried=carried)
    return write_file(io, metadata, tasks)


def _refuse_no_size(properties: dict[str, str]) -> None:
    for key in _AT_LEAST_ONE:
        size = property_as_int(properties, key)
        if size is not None and not 1 <= size < 2**63:
            raise ConfigError("invalid property of the table: set another value", key=key, value=size, accepted=">= 1")


def _tasks(
    metadata: TableMetadata, rows: pa.Table, write_uuid: uuid.UUID, counter: itertools.count[int], *, carried: bool
) -> Iterator[WriteTask]:
    """Yield what to write, file by file."""
    from pyiceberg.io.pyarrow import bin_pack_arrow_table

    target_bytes = property_as_int(
        metadata.properties,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
    )
    schema, spec = metadata.schema(), metadata.spec()
    given = columns_given(rows.schema, schema, metadata.format_version)
    parts: Iterable[tuple[Record | None, pa.Table]]
    parts = [(None, rows)] if spec.is_unpartitioned() else split(rows, spec, schema, carried=carried)
    for partition, part in parts:
        key = None if partition is None else cast(PartitionKey, _Key(partition, spec, partition_schema(metadata, spec)))
        # PyIceberg divides by the bytes of a row: of rows without columns, whose values are all NULL, there are none.
        packs = bin_pack_arrow_table(part, cast(int, target_bytes)) if part.nbytes else [part.to_batches()]
        for batches in packs:
            yield WriteTask(write_uuid, next(counter), given, batches, partition_key=key)


@dataclass(frozen=True, slots=True)
class _Key:
    """PyIceberg's ``PartitionKey``, which computes its values anew, and can't where two fields have one source."""

    partition: Record
    spec: PartitionSpec
    schema: Schema

    def to_path(self) -> str:
        """Return the folders of the partition."""
        return self.spec.partition_to_path(self.partition, self.schema)
