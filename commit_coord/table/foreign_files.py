"""Files that another writer made, without Iceberg's field ids, taken into a table.

PyIceberg takes the partition of such a file from its bounds, which know neither NULL nor NaN: a file of ``NULL`` and
``'c'`` would lie in the partition ``'c'``, and one of NaN in the partition NULL. There no reader looks for these rows.
It finds the columns of all such files by one name mapping, a property of the table. A column that took over another
one's name would show the other one's values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.schema import Schema, _index_parents, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping, update_mapping
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType, NestedField

from commit_coord.iceberg.partitioned_rows import split

_PARTITION = [field.name for field in DATA_FILE_TYPE[2].fields].index("partition")


def foreign_files(metadata: TableMetadata, io: FileIO, paths: Iterable[str]) -> Iterator[DataFile]:
    """Yield the data files at *paths*, each of the partition of the table's current spec that its rows lie in.

    Rows are read only where the footer does not tell: the source columns of a file that has NULL beside values, or
    floating point numbers in them.

    Raises:
        ValueError: The columns of a file do not fit the table, or its rows do not lie in one partition.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    for path in paths:
        data_file = parquet_file_to_data_file(io, metadata, path)
        if not data_file.record_count and any(metadata.schema().find_field(key).required for key in _sources(metadata)):
            # Its partition would be NULL, which can't be written of a required column.
            raise ValueError(f"{path} has no rows, so it lies in no partition of the table: leave it out")
        if data_file.record_count and not all(map(partial(_is_told, metadata, data_file), _sources(metadata))):
            _place(data_file, metadata, io)
        yield data_file


def _sources(metadata: TableMetadata) -> set[int]:
    return {field.source_id for field in metadata.spec().fields if not isinstance(field.transform, VoidTransform)}


def _is_told(metadata: TableMetadata, data_file: DataFile, source: int) -> bool:
    """Return whether the footer tells the partition: by its bounds, if there is neither NULL nor NaN beside them."""
    nulls = (data_file.null_value_counts or {}).get(source)
    if nulls == data_file.record_count:
        return True
    return nulls == 0 and not isinstance(metadata.schema().find_type(source), FloatType | DoubleType)


def _place(data_file: DataFile, metadata: TableMetadata, io: FileIO) -> None:
    """Have *data_file* lie in the partition that its rows lie in."""
    import pyarrow.parquet as pq

    schema = metadata.schema()
    columns = {str(schema.find_column_name(source)).partition(".")[0] for source in _sources(metadata)}
    with io.new_input(data_file.file_path).open() as stream:
        there = pq.ParquetFile(stream)
        rows = there.read(columns=[name for name in there.schema_arrow.names if name in columns])
    found = [partition for partition, _ in split(rows, metadata.spec(), schema, keep_rows=False)]
    if len(found) != 1:
        raise ValueError(
            f"the rows of {data_file.file_path} lie in {len(found)} partitions of the table, so it can't be added: "
            "write a file for each partition, or append its rows"
        )
    data_file._data[_PARTITION] = found[0]


# The name mapping.


def grown_mapping(metadata: TableMetadata) -> NameMapping | None:
    """Return the table's name mapping with all of its present columns; None if they are in it.

    Raises:
        ValueError: It has the name of a column for another one.
    """
    known, schema = metadata.name_mapping(), metadata.schema()
    if known is None:
        return schema.name_mapping
    if name := taken_over(known, schema):
        raise ValueError(f"the table's name mapping has the name {name!r} for another column")
    missing = schema.name_mapping._field_by_name.keys() - known._field_by_name.keys()
    if not missing:
        return None
    fields, parents = index_by_id(schema), _index_parents(schema)
    there = {field.field_id for field in known._field_by_name.values()}
    new = {schema.name_mapping._field_by_name[name].field_id for name in missing}
    updates = {key: fields[key] for key in new & there if key is not None}
    adds: dict[int, list[NestedField]] = {}
    for key in sorted(key for key in new - there if key is not None):
        parent = parents.get(key, -1)
        if parent not in new - there:
            adds.setdefault(parent, []).append(fields[key])
    return update_mapping(known, updates, adds)


def taken_over(known: NameMapping, schema: Schema, before: Schema | None = None) -> str | None:
    """Return a name that *known* has for another column than *schema*, None if there is none.

    Args:
        known: By which columns of files are found.
        schema: The columns.
        before: Leave out what was so in it already.
    """
    names = {name: field.field_id for name, field in schema.name_mapping._field_by_name.items()}
    old = {name: field.field_id for name, field in before.name_mapping._field_by_name.items()} if before else {}
    mapped = {name: field.field_id for name, field in known._field_by_name.items()}
    return min((n for n in names.keys() & mapped.keys() if names[n] not in (mapped[n], old.get(n))), default=None)
