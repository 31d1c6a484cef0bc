"""Rows through Arrow and Python: what Spark's own Parquet code can't carry, and the data source.

Runs in Spark's Python workers. Slower by two to five times than the fast way, and right for every type that
PyIceberg has.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg import types as I
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, translate_column_names
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory, FileFormatWriter
from pyiceberg.io.pyarrow import (
    _combine_positional_deletes,
    _get_column_projection_values,
    _get_file_format,
    _read_deletes,
    expression_to_pyarrow,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata, TableMetadataV1, TableMetadataV2, TableMetadataV3
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyspark.sql.pandas.types import to_arrow_schema

from commit_coord.iceberg.predicates import tells_more_than_bounds
from commit_coord.spark.files import Target, delete_files
from commit_coord.spark.schema import SchemaMismatch, pick, spark_schema
from commit_coord.spark.transforms import source_path, transform_distinct

_ROW_GROUP_BYTES = 64 * 1024 * 1024
_BUFFERED_BYTES = 256 * 1024 * 1024
"""All partitions of a task together; the largest is flushed when it is reached."""


# -- shapes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByName:
    """Children of structs are found by name."""

    case_sensitive: bool


ChildLookup = ByName | I.IcebergType
"""How children are found: by name, or by the ids in the type of what there is."""


def shape(array: pa.Array, wanted: pa.DataType, kind: I.IcebergType, path: str, have: ChildLookup) -> pa.Array:
    """Return *array* as Arrow type *wanted*, which represents *kind*: without loss, at every level.

    Args:
        array: What there is.
        wanted: What it becomes.
        kind: The Iceberg type that *wanted* represents.
        path: Of the column, for messages.
        have: Where children are found; with ``ByName`` nulls in required fields are refused as well.

    Raises:
        SchemaMismatch: A required value is null, or a value does not fit.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not len(array):
        # Spark sends empty lists in lists without their offsets, which PyArrow would read.
        return pa.array([], wanted)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_null(array.type):
        return _nulls(len(array), wanted)
    match kind:
        case I.StructType():
            return _shape_struct(array, wanted, kind, path, have)
        case I.ListType():
            if pa.types.is_fixed_size_list(array.type):
                array = array.cast(pa.list_(array.type.value_type))
            array = _without_offset(array)
            inner = have.element_type if isinstance(have, I.ListType) else have
            values = shape(array.values, wanted.value_type, kind.element_type, f"{path}.element", inner)
            large = pa.types.is_large_list(wanted)
            offsets = array.offsets.cast(pa.int64() if large else pa.int32())
            factory = pa.LargeListArray if large else pa.ListArray
            built = factory.from_arrays(offsets, values, type=wanted, mask=array.is_null())
            if kind.element_required and isinstance(have, ByName):
                _no_nulls(built.flatten(), f"{path}.element")
            return built
        case I.MapType():
            array = _without_offset(array)
            key_have, value_have = (have.key_type, have.value_type) if isinstance(have, I.MapType) else (have, have)
            keys = shape(array.keys, wanted.key_type, kind.key_type, f"{path}.key", key_have)
            items = shape(array.items, wanted.item_type, kind.value_type, f"{path}.value", value_have)
            if kind.value_required and isinstance(have, ByName):
                _no_nulls(items, f"{path}.value")
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=wanted, mask=array.is_null())
    return _shape_leaf(array, wanted, kind, path)


def _without_offset(array: pa.Array) -> pa.Array:
    """Copy a slice: PyArrow builds no list with a mask from sliced offsets."""
    return array if array.offset == 0 else pa.concat_arrays([array.slice(0, 0), array])


def _shape_struct(array: pa.Array, wanted: pa.DataType, kind: I.StructType, path: str, have: ChildLookup) -> pa.Array:
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    known: dict[int, I.NestedField] = {}
    if isinstance(have, I.StructType):
        known = {field.field_id: field for field in have.fields}
        at = {field_id: names.index(field.name) for field_id, field in known.items()}
    else:
        at = pick(names, kind, isinstance(have, ByName) and have.case_sensitive)
    children = []
    for position, field in enumerate(kind.fields):
        place, child = f"{path}.{field.name}", wanted.field(position).type
        if field.field_id in at:
            inner = array.field(at[field.field_id])
            inner_have = known[field.field_id].field_type if known else have
            made = shape(inner, child, field.field_type, place, inner_have)
            if field.required and isinstance(have, ByName):
                _no_nulls(inner.filter(array.is_valid()), place)
                made = _filled(made)
            children.append(made)
        else:
            children.append(_constant(field.initial_default if known else None, field.field_type, child, len(array)))
    fields = [wanted.field(i).with_nullable(True) for i in range(wanted.num_fields)]
    built = pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if built.type == wanted:
        return built
    # Only what may be null differs: a null parent has null children, which from_arrays refuses.
    parts = [built.field(i) for i in range(len(fields))]
    return pa.Array.from_buffers(wanted, len(built), built.buffers()[:1], children=parts)


def _nulls(length: int, wanted: pa.DataType) -> pa.Array:
    """Return as many nulls; what is required below them has some value."""
    if not pa.types.is_struct(wanted):
        return pa.nulls(length, wanted)
    fields = [wanted.field(i) for i in range(wanted.num_fields)]
    inside = [_nulls(length, field.type) for field in fields]
    children = [child if field.nullable else _filled(child) for field, child in zip(fields, inside, strict=True)]
    return pa.Array.from_buffers(wanted, length, pa.nulls(length, pa.struct([])).buffers()[:1], children=children)


def _filled(array: pa.Array) -> pa.Array:
    """Return *array* with some value for each null: Arrow writes no null of a required field, also below a null."""
    if not array.null_count:
        return array
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _filled(array.storage))
    if isinstance(array, pa.StructArray):
        parts = [array.field(i) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [None], null_count=0, children=parts)
    if isinstance(array, pa.MapArray):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=kind)
    if isinstance(array, pa.ListArray | pa.LargeListArray):
        return type(array).from_arrays(array.offsets, array.values, type=kind)
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], null_count=0, offset=array.offset)


def _time(text: str) -> dt.time:
    """Return the time of day that *text* says; Python itself would drop digits, and Arrow an offset.

    Raises:
        ValueError: It says something else, or more.
    """
    value = dt.time.fromisoformat(text)
    digits = re.split("[.,]", text)[1:]
    if value.tzinfo is not None or (digits and digits[0][6:].strip("0")):
        raise ValueError(text)
    return value


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
                times = [None if v is None else _time(v) for v in array.to_pylist()]
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
        carried: Whether the rows are in the table already. Then no truncated value is refused for being out of range.
    """

    target: Target
    names: Sequence[str]
    case_sensitive: bool = False
    carried: bool = False

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
                columns.append(_nulls(batch.num_rows, wanted.type))
                continue
            column = batch.column(at[field.field_id])
            if field.required:
                _no_nulls(column, field.name)
            columns.append(shape(column, wanted.type, field.field_type, field.name, ByName(self.case_sensitive)))
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
            if isinstance(field.transform, VoidTransform):  # its column may have been dropped
                codes[f"p{number}"] = pa.nulls(rows.num_rows, pa.int32())
                results.append([])
                continue
            path = source_path(field, self.target.safe)
            column = rows.column(path[0].name).combine_chunks()
            for part in path[1:]:
                column = pc.struct_field(column, part.name)
            if isinstance(column.type, pa.BaseExtensionType):
                column = column.storage
            kind = self.target.schema.find_type(field.source_id)
            places, values = transform_distinct(field.transform, kind, column, carried=self.carried)
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
            with contextlib.suppress(Exception):  # the file is deleted next, whatever state it is in
                writer.close()
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
        for task in tasks:
            for names, values, batch in self._file(task):
                columns = []
                for field, wanted in zip(self.projection.fields, arrow, strict=True):
                    if (have := names.get(field.field_id)) is not None:
                        column = batch.column(have.name)
                        columns.append(shape(column, wanted.type, field.field_type, field.name, have.field_type))
                    else:
                        value = values.get(field.field_id, field.initial_default)
                        columns.append(_constant(value, field.field_type, wanted.type, batch.num_rows))
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)

    def _file(self, task: FileScanTask) -> Iterator[tuple[dict[int, I.NestedField], dict[int, Any], pa.RecordBatch]]:
        """Yield the rows of one file, filter and deletes applied, with its columns by id and its constants.

        PyIceberg's ``ArrowScan`` does the same and then projects; its projection turns a null list of structs and a
        null map of structs into an empty one (0.12).
        """
        deletes = [
            places
            for delete in task.delete_files
            for path, places in _read_deletes(self.io, delete).items()
            if path == task.file.file_path
        ]
        kind = _get_file_format(task.file.file_format)
        with self.io.new_input(task.file.file_path).open() as stream:
            fragment = kind.make_fragment(stream)
            physical = fragment.physical_schema
            mapping = self.metadata.name_mapping()
            schema = pyarrow_to_schema(physical, mapping, downcast_ns_timestamp_to_us=True)
            values = _get_column_projection_values(
                task.file,
                self.projection,
                self.metadata.schema(),
                self.metadata.specs().get(task.file.spec_id),
                schema.field_ids,
            )
            condition = self._condition(schema, values)
            later = bool(deletes) or tells_more_than_bounds(self._bound())
            wanted = {field.field_id for field in self.projection.fields}
            names = {field.field_id: field for field in schema.fields if field.field_id in wanted}
            scanner = ds.Scanner.from_fragment(
                fragment,
                schema=physical,
                columns=[field.name for field in names.values()],
                filter=None if later else condition,
            )
            # Rows are numbered before any is left out, so deletes come first, and the filter may need other columns.
            if later:
                scanner = ds.Scanner.from_fragment(fragment, schema=physical)
            start = 0
            for found in scanner.to_batches():
                batch, start = found, start + found.num_rows
                if deletes:
                    batch = batch.take(_combine_positional_deletes(deletes, start - batch.num_rows, start))
                if later and condition is not None:
                    batch = batch.filter(condition)
                if batch.num_rows:
                    yield names, values, batch

    def _bound(self) -> BooleanExpression:
        return bind(self.metadata.schema(), self.row_filter, case_sensitive=True)

    def _condition(self, schema: Schema, values: dict[int, Any]) -> pc.Expression | None:
        bound = self._bound()
        if isinstance(bound, AlwaysTrue):
            return None
        renamed = translate_column_names(bound, schema, case_sensitive=True, projected_field_values=values)
        return expression_to_pyarrow(bind(schema, renamed, case_sensitive=True), schema)


def _constant(value: Any, kind: I.IcebergType, wanted: pa.DataType, length: int) -> pa.Array:
    if value is None:
        return _nulls(length, wanted)
    stored = pa.array([value], schema_to_pyarrow(kind))
    return pa.repeat(shape(stored, wanted, kind, "", ByName(True))[0], length)


_METADATA: dict[int, Callable[..., TableMetadata]] = {
    1: TableMetadataV1.model_construct,
    2: TableMetadataV2.model_construct,
    3: TableMetadataV3.model_construct,
}
_HISTORY: dict[str, Any] = {
    "snapshots": [],
    "snapshot_log": [],
    "metadata_log": [],
    "refs": {},
    "current_snapshot_id": None,
}


def without_history(metadata: TableMetadata) -> TableMetadata:
    """Return a copy of *metadata* that has schemas, specs and properties, and is small."""
    names = set(type(metadata).model_fields) - set(_HISTORY)
    kept = {name: getattr(metadata, name) for name in names}
    return _METADATA[metadata.format_version](**kept, **_HISTORY)
