"""The files of one job: where they go, what was written there, and what Iceberg has to know of each.

Every job writes into a folder of its own below the table's data location. Whatever is in there and was not
committed may be deleted as long as the commit is known not to have landed.
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    PyArrowFileIO,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record

from commit_coord.errors import InternalError
from commit_coord.iceberg.bounds import sound_bounds
from commit_coord.iceberg.partitions import is_hidden
from commit_coord.iceberg.written import Written
from commit_coord.spark.schema import file_schema
from commit_coord.spark.transforms import decode_folders, source_path, transform_distinct

logger = logging.getLogger(__name__)

_READERS = 16
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The data of a table that a writer of data files needs. Pickles without the history of the table.

    Args:
        schema: The schema that is written.
        spec: The partition spec that is written.
        properties: Of the table.
        io: Of the table.
        folder: Where the files of this job go.
    """

    schema: Schema
    spec: PartitionSpec
    properties: Mapping[str, str]
    io: FileIO
    folder: str
    safe: Schema = field(init=False)

    def __post_init__(self) -> None:
        """Derive the schema under file names."""
        object.__setattr__(self, "safe", file_schema(self.schema))

    @classmethod
    def of(cls, table: Table) -> Target:
        """Return where a new job writes the present schema and spec of *table*.

        Raises:
            CommitNotApplied: The table has a format version that can't be written.
        """
        from commit_coord.table.writable import refuse_unwritable  # Spark's tasks have no table, and import none

        refuse_unwritable(table)
        data = table.properties.get(TableProperties.WRITE_DATA_PATH, f"{table.location().rstrip('/')}/data")
        return cls(
            schema=table.schema(),
            spec=table.spec(),
            properties=dict(table.properties),
            io=table.io,
            folder=f"{data.rstrip('/')}/{uuid.uuid4().hex}",
        )

    @property
    def written(self) -> Written:
        """What the files of this job are written for."""
        return Written(self.schema, {self.spec.spec_id: self.spec})

    @property
    def file_bytes(self) -> int:
        """The size that a data file should have."""
        return int(
            self.properties.get(
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
            )
        )

    def data_file(self, path: str, size: int, partition: Record, statistics: Mapping[str, Any]) -> DataFile:
        """Return the entry of one file."""
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=size,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **statistics,
        )
        data_file.spec_id = self.spec.spec_id  # no field of the struct, so from_args leaves it out
        return data_file


def written_files(target: Target) -> list[DataFile]:
    """Return the files that a committed Spark job left in the folder of *target*, without the empty ones.

    Raises:
        InternalError: A file has other field ids than the table. Nothing was committed.
    """
    filesystem, root = _filesystem(target.io, target.folder)
    listed = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
    expected = parquet_path_to_id_mapping(target.safe)
    plan = compute_statistics_plan(target.schema, dict(target.properties))

    def read(info: pafs.FileInfo) -> DataFile | None:
        relative = info.path[len(root) :].strip("/")
        with filesystem.open_input_file(info.path) as stream:
            parquet = pq.ParquetFile(stream)
            footer = parquet.metadata
            if not footer.num_rows:
                return None
            found = _field_ids(footer.schema.to_arrow_schema())
            if found != expected:
                raise InternalError("a Parquet file was written without its field ids", path=info.path, found=found)
            statistics = data_file_statistics_from_parquet_metadata(footer, plan, expected)
            partition = decode_folders(
                relative.split("/")[:-1], target.spec, target.schema, lambda f: _first_value(parquet, f, target)
            )
        found_metrics = sound_bounds(statistics.to_serialized_dict(), target.schema)
        return target.data_file(f"{target.folder}/{relative}", info.size, partition, found_metrics)

    rows = [info for info in listed if info.is_file and not is_hidden(_below(info, root))]
    with ThreadPoolExecutor(_READERS, "commit-coord-footers") as pool:
        result = list(pool.map(read, rows))
    for info, data_file in zip(rows, result, strict=True):
        if data_file is None:
            filesystem.delete_file(info.path)
    return [data_file for data_file in result if data_file is not None]


def _below(info: pafs.FileInfo, root: str) -> str:
    return str(info.path)[len(root) :].strip("/")


def _field_ids(schema: pa.Schema) -> dict[str, int]:
    """Map the path of each leaf of a file without lists and maps to its id, -1 where it or a parent has none."""
    found: dict[str, int] = {}

    def visit(fields: Sequence[pa.Field], path: str, lost: bool) -> None:
        for column in fields:
            number = int((column.metadata or {}).get(_FIELD_ID, -1))
            name = f"{path}{column.name}"
            if pa.types.is_struct(column.type):
                visit([column.type.field(i) for i in range(column.type.num_fields)], f"{name}.", lost or number < 0)
            else:
                found[name] = -1 if lost else number

    visit(list(schema), "", False)
    return found


def _first_value(parquet: pq.ParquetFile, field: PartitionField, target: Target) -> Any:
    """Return the value of a partition field for the first row, and so for all rows, of a file."""
    path = source_path(field, target.safe)
    rows = next(parquet.iter_batches(batch_size=1, columns=[".".join(part.name for part in path)]))
    column = rows.column(0)
    for part in path[1:]:
        column = column.field(part.name)
    return transform_distinct(field.transform, target.schema.find_type(field.source_id), column)[1][0]


def delete_files(io: FileIO, paths: Sequence[str]) -> None:
    """Delete *paths* as far as possible: what stays is an orphan that no table refers to."""
    for path in paths:
        try:
            io.delete(path)
        except Exception:
            logger.warning("an unused data file could not be deleted: %s", path, exc_info=True)


def delete_folder(target: Target) -> None:
    """Delete the folder of a job that is known not to have been committed, as far as possible."""
    try:
        filesystem, root = _filesystem(target.io, target.folder)
        if filesystem.get_file_info(root).type is not pafs.FileType.NotFound:
            filesystem.delete_dir(root)
    except Exception:
        logger.warning("the folder of a failed job could not be deleted: %s", target.folder, exc_info=True)


def tidy_folder(target: Target, kept: Sequence[DataFile]) -> None:
    """Delete what is in the folder of a committed job and is not one of its files."""
    try:
        filesystem, root = _filesystem(target.io, target.folder)
        wanted = {data_file.file_path[len(target.folder) :].strip("/") for data_file in kept}
        for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True)):
            if info.is_file and _below(info, root) not in wanted:
                filesystem.delete_file(info.path)
    except Exception:
        logger.warning("leftovers of a job could not be deleted: %s", target.folder, exc_info=True)


@dataclass(frozen=True, slots=True)
class ParquetLayout:
    """The columns of a Parquet file.

    Args:
        schema: The columns with their names and ids; None where an id is missing, or a type is none of Iceberg's.
        has_ids: Whether any column has an id.
    """

    schema: Schema | None
    has_ids: bool


_REMEMBERED = 10_000
_Key = tuple[int, str, int]
_layouts: OrderedDict[_Key, ParquetLayout] = OrderedDict()
"""By store, path and size, the one that was asked for last is last: a data file never changes."""
_lock = Lock()


def file_layouts(io: FileIO, files: Sequence[DataFile]) -> dict[str, ParquetLayout]:
    """Return the layouts of Parquet files by path, from their footers, each of which is read once in a process.

    Files of one schema share one layout.
    """

    def read(file: DataFile) -> ParquetLayout:
        with io.new_input(file.file_path).open() as stream:
            return _layout(pq.read_schema(stream).serialize().to_pybytes())

    store = hash(frozenset((key, str(value)) for key, value in io.properties.items()))

    def key_of(file: DataFile) -> _Key:
        return store, file.file_path, file.file_size_in_bytes

    keys = [key_of(file) for file in files]
    with _lock:
        found = {key: _layouts[key] for key in keys if key in _layouts}
    if unknown := [file for file, key in zip(files, keys, strict=True) if key not in found]:
        with ThreadPoolExecutor(_READERS, "commit-coord-footers") as pool:
            found |= {key_of(file): layout for file, layout in zip(unknown, pool.map(read, unknown), strict=True)}
    with _lock:
        for key, layout in found.items():
            _layouts[key] = layout
            _layouts.move_to_end(key)
        while len(_layouts) > _REMEMBERED:
            _layouts.popitem(last=False)
    return {path: layout for (_, path, _), layout in found.items()}


@lru_cache(maxsize=64)
def _layout(schema: bytes) -> ParquetLayout:
    """Return the layout of files with a schema of Arrow."""
    arrow = pa.ipc.read_schema(pa.py_buffer(schema))
    has_ids = any(number >= 0 for number in _field_ids(arrow).values())
    try:
        return ParquetLayout(pyarrow_to_schema(arrow, downcast_ns_timestamp_to_us=True), has_ids)
    except (ValueError, TypeError):
        return ParquetLayout(None, has_ids)


def _filesystem(io: FileIO, location: str) -> tuple[pafs.FileSystem, str]:
    scheme, netloc, path = PyArrowFileIO.parse_location(location, io.properties)
    return PyArrowFileIO(io.properties).fs_by_scheme(scheme, netloc), path
