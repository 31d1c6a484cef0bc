"""Rows through Arrow and Python: what Spark's own Parquet code can't carry, and the data source.

Runs in Spark's Python workers. Slower by two to five times than the fast way, and right for every type that
PyIceberg has.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as I
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory, FileFormatWriter
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV2, TableMetadataV3
from pyiceberg.typedef import Record
from pyspark.sql.pandas.types import to_arrow_schema

from commit_coord.spark.files import Target, delete_files
from commit_coord.spark.schema import SchemaMismatch, pick, spark_schema
from commit_coord.spark.transforms import source_path, transform_distinct

_ROW_GROUP_BYTES = 64 * 1024 * 1024
_BUFFERED_BYTES = 256 * 1024 * 1024
"""All partitions of a task together; the largest is flushed when it is reached."""


# -- shapes ------------------------------------------------------------------------------------------------


def shape(array: pa.Array, wanted: pa.DataType, kind: I.IcebergType, path: str, case_sensitive: bool) -> pa.Array:
    """Return *array* as Arrow type *wanted*, which stands for *kind*: by name, without loss, at every level.

    Raises:
        SchemaMismatch: A required value is null, or a value does not fit.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    match kind:
        case I.StructType():
            return _shape_struct(array, wanted, kind, path, case_sensitive)
        case I.ListType():
            # Without an offset: PyArrow takes no mask for a sliced array.
            array = array if array.offset == 0 else pa.concat_arrays([array.slice(0, 0), array])
            if pa.types.is_fixed_size_list(array.type):
                array = array.cast(pa.list_(array.type.value_type))
            values = shape(array.values, wanted.value_type, kind.element_type, f"{path}.element", case_sensitive)
            if kind.element_required:
                _no_nulls(array.flatten(), f"{path}.element")
            factory = pa.LargeListArray if pa.types.is_large_list(wanted) else pa.ListArray
            offsets = array.offsets.cast(pa.int64() if pa.types.is_large_list(wanted) else pa.int32())
            return factory.from_arrays(offsets, values, type=wanted, mask=array.is_null())
        case I.MapType():
            array = array if array.offset == 0 else pa.concat_arrays([array.slice(0, 0), array])
            keys = shape(array.keys, wanted.key_type, kind.key_type, f"{path}.key", case_sensitive)
            items = shape(array.items, wanted.item_type, kind.value_type, f"{path}.value", case_sensitive)
            if kind.value_required:
                _no_nulls(items, f"{path}.value")
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=wanted, mask=array.is_null())
    return _shape_leaf(array, wanted, kind, path)


def _shape_struct(
    array: pa.Array, wanted: pa.DataType, kind: I.StructType, path: str, case_sensitive: bool
) -> pa.Array:
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    at = pick(names, kind, case_sensitive)
    children = []
    for position, field in enumerate(kind.fields):
        place, child = f"{path}.{field.name}", wanted.field(position).type
        if field.field_id in at:
            inner = array.field(at[field.field_id])
            children.append(shape(inner, child, field.field_type, place, case_sensitive))
            if field.required:
                _no_nulls(inner.filter(array.is_valid()), place)
        else:
            children.append(pa.nulls(len(array), child))
    fields = [wanted.field(i).with_nullable(True) for i in range(wanted.num_fields)]
    built = pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    return built if built.type == wanted else _relabel(built, wanted)


def _relabel(array: pa.StructArray, wanted: pa.DataType) -> pa.Array:
    """Return *array* as *wanted*, which differs in what may be null: a null parent may have null children."""
    buffers: list[pa.Buffer | None] = [array.buffers()[0]]
    children = [array.field(i) for i in range(array.type.num_fields)]
    return pa.Array.from_buffers(wanted, len(array), buffers, children=children)


def _shape_leaf(array: pa.Array, wanted: pa.DataType, kind: I.IcebergType, path: str) -> pa.Array:
    text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    try:
        if isinstance(wanted, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(wanted, _shape_leaf(array, wanted.storage_type, kind, path))
        if isinstance(kind, I.UUIDType):
            if text:
                return pa.array([None if v is None else uuid.UUID(v).bytes for v in array.to_pylist()], wanted)
            return pa.array([None if v is None else str(uuid.UUID(bytes=v)) for v in array.to_pylist()], wanted)
        if isinstance(kind, I.TimeType):
            if text:
                times = [None if v is None else dt.time.fromisoformat(v) for v in array.to_pylist()]
                return pa.array(times, wanted)
            return pa.array([None if v is None else v.isoformat("microseconds") for v in array.to_pylist()], wanted)
        return array if array.type == wanted else array.cast(wanted)
    except (pa.ArrowInvalid, ValueError) as error:
        raise SchemaMismatch("a value does not fit in its column", column=path, type=kind) from error


def _no_nulls(array: pa.Array, path: str) -> None:
    if array.null_count:
        raise SchemaMismatch("null in a required column", column=path)


# -- writing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes record batches of any layout that passed ``check_fits`` as data files of *target*.

    Args:
        target: Where to.
        names: Of the columns that come, in order.
        case_sensitive: As given to ``check_fits``.
    """

    target: Target
    names: Sequence[str]
    case_sensitive: bool = False

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write everything and return the files.

        Guarantee: when this raises, what it wrote is deleted as far as possible.
        """
        files: dict[tuple[Any, ...], _RollingFile] = {}
        done: list[DataFile] = []
        try:
            for batch in batches:
                for key, rows in self._split(self._conform(batch)):
                    file = files.setdefault(key, _RollingFile(self.target, Record(*key), done))
                    file.add(rows)
                while sum(file.buffered for file in files.values()) > _BUFFERED_BYTES:
                    max(files.values(), key=lambda file: file.buffered).flush()
            for file in files.values():
                file.close()
        except BaseException:
            for file in files.values():
                file.discard()
            delete_files(self.target.io, [data_file.file_path for data_file in done])
            raise
        return done

    def _conform(self, batch: pa.RecordBatch) -> pa.Table:
        schema = self.target.schema
        arrow = schema_to_pyarrow(self.target.safe)
        at = pick(self.names, schema.as_struct(), self.case_sensitive)
        columns = []
        for field, wanted in zip(schema.fields, arrow, strict=True):
            if field.field_id not in at:
                columns.append(pa.nulls(batch.num_rows, wanted.type))
                continue
            column = batch.column(at[field.field_id])
            if field.required:
                _no_nulls(column, field.name)
            columns.append(shape(column, wanted.type, field.field_type, field.name, self.case_sensitive))
        return pa.Table.from_arrays(columns, schema=arrow)

    def _split(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """Yield the rows of each partition with the partition's values."""
        fields = self.target.spec.fields
        if not fields or not rows.num_rows:
            yield (None,) * len(fields), rows
            return
        results: list[list[Any]] = []
        codes: dict[str, pa.Array] = {"row": pa.array(range(rows.num_rows), pa.int64())}
        for number, field in enumerate(fields):
            path = source_path(field, self.target.safe)
            column = rows.column(path[0].name).combine_chunks()
            for part in path[1:]:
                column = pc.struct_field(column, part.name)
            if isinstance(column.type, pa.BaseExtensionType):
                column = column.storage
            kind = self.target.schema.find_type(field.source_id)
            places, values = transform_distinct(field.transform, kind, column)
            # Different values may share a result: give equal results one code.
            first = {repr(value): place for place, value in reversed(list(enumerate(values)))}
            shared = pa.array([first[repr(value)] for value in values], pa.int32())
            codes[f"p{number}"] = shared.take(places)
            results.append(values)
        names = [name for name in codes if name != "row"]
        for group in pa.table(codes).group_by(names).aggregate([("row", "list")]).to_pylist():
            key = tuple(
                values[group[name]] if group[name] is not None else None
                for name, values in zip(names, results, strict=True)
            )
            yield key, rows.take(group["row_list"])


class _RollingFile:
    """The open file of one partition: buffers large row groups, starts a new file at the target size."""

    def __init__(self, target: Target, partition: Record, done: list[DataFile]) -> None:
        self._target = target
        self._partition = partition
        self._done = done
        self._rows: list[pa.Table] = []
        self._writer: FileFormatWriter | None = None
        self._path = ""
        self.buffered = 0

    def add(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._rows.append(rows)
        self.buffered += rows.nbytes
        if self.buffered >= min(_ROW_GROUP_BYTES, self._target.file_bytes):
            self.flush()

    def flush(self) -> None:
        """Write what is buffered; close the file when it is large enough."""
        if not self._rows:
            return
        target = self._target
        if self._writer is None:
            self._path = f"{target.folder}/{uuid.uuid4().hex}.parquet"
            model = FileFormatFactory.get(FileFormat.PARQUET)
            self._writer = model.create_writer(target.io.new_output(self._path), target.safe, dict(target.properties))
        self._writer.write(pa.concat_tables(self._rows))
        self._rows, self.buffered = [], 0
        stream = getattr(self._writer, "_fos", None)
        if stream is None or stream.tell() >= target.file_bytes:
            self._finish()

    def close(self) -> None:
        self.flush()
        if self._writer is not None:
            self._finish()

    def discard(self) -> None:
        """Drop everything that is not finished."""
        self._rows = []
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                writer.close()
            except Exception:  # noqa: S110 - the file is deleted next, whatever state it is in
                pass
            delete_files(self._target.io, [self._path])

    def _finish(self) -> None:
        assert self._writer is not None
        statistics = self._writer.close()
        self._writer = None
        size = len(self._target.io.new_input(self._path))
        data_file = self._target.data_file(self._path, size, self._partition, statistics.to_serialized_dict())
        self._done.append(data_file)


# -- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReader:
    """Reads scan tasks as record batches in Spark's types. Pickles without the history of the table."""

    metadata: TableMetadata
    io: FileIO
    projection: Schema
    row_filter: BooleanExpression = AlwaysTrue()

    @classmethod
    def of(cls, metadata: TableMetadata, io: FileIO, projection: Schema, row_filter: BooleanExpression) -> BatchReader:
        """Return a reader for tasks of the table with *metadata*."""
        return cls(metadata=without_history(metadata), io=io, projection=projection, row_filter=row_filter)

    def read(self, tasks: Sequence[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *tasks*, deletes applied, one task in memory at a time."""
        arrow = to_arrow_schema(spark_schema(self.projection))
        scan = ArrowScan(self.metadata, self.io, self.projection, self.row_filter)
        for task in tasks:
            for batch in scan.to_record_batches([task]):
                columns = [
                    shape(batch.column(i), wanted.type, field.field_type, field.name, True)
                    for i, (field, wanted) in enumerate(zip(self.projection.fields, arrow, strict=True))
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)


_METADATA: dict[int, Callable[..., TableMetadata]] = {
    1: TableMetadataV1.model_construct,
    2: TableMetadataV2.model_construct,
    3: TableMetadataV3.model_construct,
}
_HISTORY = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}, "current_snapshot_id": None}


def without_history(metadata: TableMetadata) -> TableMetadata:
    """Return a copy of *metadata* that has schemas, specs and properties, and is small."""
    names = set(type(metadata).model_fields) - set(_HISTORY)
    kept = {name: getattr(metadata, name) for name in names}
    return _METADATA[metadata.format_version](**kept, **_HISTORY)
