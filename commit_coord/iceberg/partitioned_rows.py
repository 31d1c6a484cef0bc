"""Which partition each row lies in, computed by :func:`values_of_rows` alone for all that this package writes.

PyIceberg's own split groups rows by distinct values and then selects each group by ``==``. The two disagree on floats:
0.0 and -0.0 are two groups and equal, so their rows are written twice; NaN equals nothing, so its rows are lost. Here a
value is made canonical once, and is represented by a number from then on.

The spec orders -0.0 before 0.0, and Iceberg Java compares so: two partitions. Its readers then skip a partition -0.0
under ``f = 0.0``, which is true for these rows in SQL. Here one partition, 0.0, holds both, and every reader finds them
there; the files keep the sign. All NaNs are one partition, as in Java.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE, TableProperties
from pyiceberg.transforms import TruncateTransform, VoidTransform
from pyiceberg.typedef import Record, TableVersion
from pyiceberg.types import BinaryType, FloatType, IcebergType, StructType
from pyiceberg.utils.config import Config

from commit_coord.iceberg.plain_rows import plain
from commit_coord.iceberg.truncation import below_the_type
from commit_coord.iceberg.written import ByContent

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class FieldValues:
    """The value of one partition field for each row.

    Args:
        codes: For each row the place of its value in *values*.
        values: As Iceberg stores them, all different; None is the last.
    """

    codes: pa.ChunkedArray
    values: list[Any]


def canonical(value: Any, kind: IcebergType | None = None) -> Any:
    """Return *value* as partitions of the type *kind* have it: 0.0 for -0.0, one NaN, and a float with 32 bits."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return math.nan
    if isinstance(kind, FloatType) and math.isfinite(value):
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return value + 0.0  # -0.0 + 0.0 is 0.0


def values_of_rows(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> list[FieldValues]:
    """Return for each field of *spec* its values in *rows*, computed from the columns as a data file would have them.

    A column that *rows* lack is null, as it is in the file. A void field is null also when its source was dropped.

    Raises:
        ValueError, NotImplementedError: *rows* do not fit *schema*, or a source column is not there.
    """
    import pyarrow as pa

    sources = _sources(rows, spec, schema)
    found = []
    for field in spec.fields:
        if isinstance(field.transform, VoidTransform):
            found.append(FieldValues(pa.chunked_array([pa.repeat(pa.scalar(0), rows.num_rows)]), [None]))
        else:
            found.append(_coded(_transformed(_column(sources, field, schema), field, schema)))
    return found


def split(
    rows: pa.Table, spec: PartitionSpec, schema: Schema, *, keep_rows: bool = True, carried: bool = False
) -> Iterator[tuple[Record, pa.Table]]:
    """Yield each partition that *rows* lie in, once, with its rows in their order.

    Args:
        rows: Of the table.
        spec: With a field at least.
        schema: The table's.
        keep_rows: Whether the rows are wanted; else only the partitions are, each with no row.
        carried: Whether the rows are in the table: other engines may have written some that this package refuses.

    Raises:
        ValueError, NotImplementedError: As :func:`values_of_rows`. Or a row that is new would lie in a partition that
            its type does not have; see :mod:`commit_coord.iceberg.truncation`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    found = values_of_rows(rows, spec, schema)
    if not carried:
        for field, made in zip(spec.fields, found, strict=True):
            _refuse_below_its_type(made.values, field, schema)
    names = [str(position) for position in range(len(found))]
    codes = pa.table([field.codes for field in found], names)
    groups = codes.group_by(names, use_threads=False).aggregate([]).to_pylist()
    for group in groups:
        partition = Record(*(field.values[group[name]] for field, name in zip(found, names, strict=True)))
        if not keep_rows:
            yield partition, rows.slice(0, 0)
        elif len(groups) == 1:
            yield partition, rows
        else:
            same = (pc.equal(codes.column(name), group[name]) for name in names)
            # A copy of its own: files are written by several threads.
            yield partition, rows.filter(reduce(pc.and_, same)).combine_chunks()


def _refuse_below_its_type(values: Iterable[Any], field: PartitionField, schema: Schema) -> None:
    """Refuse *values* of *field* if one of them is a number below all values of its column's type."""
    if not isinstance(field.transform, TruncateTransform):
        return
    kind = schema.find_type(field.source_id)
    if not below_the_type(field.transform, kind).isdisjoint(values):
        raise ValueError(
            f"{field.transform} of a value is below the range of {kind}, so there is no partition in which every "
            "engine finds its row: leave out rows with the smallest numbers, or give the field "
            f"{field.name!r} another width"
        )


def _sources(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> pa.Table:
    """Return the source columns of *spec* as PyIceberg would write them.

    It finds columns by field id where Arrow's schema has ids, and casts other Arrow types to the table's.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _to_requested_schema, schema_to_pyarrow

    ids = {field.source_id for field in spec.fields if not isinstance(field.transform, VoidTransform)}
    for field in spec.fields:
        if field.source_id in ids and schema.find_column_name(field.source_id) is None:
            raise ValueError(f"the column of the partition field {field.name!r} was dropped")
    if not ids:
        return rows.select([])
    wanted = prune_columns(schema, ids, select_full_types=False)
    rows = plain(rows, schema.as_struct())
    given = columns_given(rows.schema, schema)
    batches = [_to_requested_schema(wanted, given, batch, _downcast()) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, None if batches else schema_to_pyarrow(wanted, include_field_ids=False))


def columns_given(
    rows: pa.Schema,
    schema: Schema,
    format_version: TableVersion = TableProperties.DEFAULT_FORMAT_VERSION,
    *,
    downcast: bool | None = None,
) -> Schema:
    """Return which columns of *schema* rows of the Arrow schema *rows* have. Appends repeat themselves.

    Args:
        rows: Of Arrow.
        schema: The table's.
        format_version: The table's.
        downcast: Take nanoseconds for microseconds; None: as PyIceberg's configuration says.

    Raises:
        ValueError: *rows* have a column that is not there.
    """
    # With the fields' ids, which equal schemas of Arrow need not share.
    arrow = rows.serialize().to_pybytes()
    return _columns_given(arrow, ByContent(schema), _downcast() if downcast is None else downcast, format_version)


@lru_cache(maxsize=64)
def _columns_given(rows: bytes, schema: ByContent[Schema], downcast: bool, format_version: TableVersion) -> Schema:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    return pyarrow_to_schema(
        pa.ipc.read_schema(pa.py_buffer(rows)), schema.value.name_mapping, downcast, format_version
    )


def _downcast() -> bool:
    return Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE) or False


def _column(sources: pa.Table, field: PartitionField, schema: Schema) -> pa.ChunkedArray:
    """Return the source column of *field*, null where a struct around it is null."""
    import pyarrow.compute as pc

    names = path_to(schema.as_struct(), field.source_id)
    column = sources.column(names[0])
    return pc.struct_field(column, names[1:]) if names[1:] else column


def path_to(around: StructType, field_id: int) -> list[str]:
    """Return the names that lead to a field in structs; none when it is not there."""
    for child in around.fields:
        if child.field_id == field_id:
            return [child.name]
        if isinstance(child.field_type, StructType) and (below := path_to(child.field_type, field_id)):
            return [child.name, *below]
    return []


def _transformed(column: pa.ChunkedArray, field: PartitionField, schema: Schema) -> pa.ChunkedArray:
    """Return what *field* makes of its source."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    kind = schema.find_type(field.source_id)
    if not column.num_chunks:
        column = pa.chunked_array([pa.array([], column.type)])  # PyIceberg's transforms make nothing of no chunk
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        column = column.cast(schema_to_pyarrow(kind))  # raises when an unsigned number is too large
    if isinstance(kind, BinaryType) and isinstance(field.transform, TruncateTransform):
        return pc.binary_slice(column, 0, field.transform.width)  # PyIceberg's library has no such transform
    return field.transform.pyarrow_transform(kind)(column)


def _coded(column: pa.ChunkedArray) -> FieldValues:
    """Return what is different in *column*, and for each row which of it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column.type, pa.BaseExtensionType):  # uuid
        storage = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], storage)
    if pa.types.is_floating(column.type):
        column = pc.if_else(
            pc.is_nan(column), pa.scalar(math.nan, column.type), pc.add(column, pa.scalar(0.0, column.type))
        )
    elif pa.types.is_temporal(column.type):  # days or microseconds: Python's dates end before Iceberg's
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    coded = column.dictionary_encode().unify_dictionaries()
    values = coded.chunk(0).dictionary.to_pylist() if coded.num_chunks else []
    codes = pa.chunked_array([chunk.indices for chunk in coded.chunks], pa.int32())
    return FieldValues(codes.fill_null(len(values)), [*values, None])
