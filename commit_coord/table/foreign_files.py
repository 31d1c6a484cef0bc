"""Files that another writer made, without Iceberg's field ids, taken into a table.

PyIceberg takes the partition of such a file from its bounds. Bounds know neither NULL nor NaN, and a file may have
none: one of ``NULL`` and ``'c'`` would lie in the partition ``'c'``, one of NaN or of long texts in the partition NULL.
There no reader looks for these rows. So the partition is computed from the rows, always.

PyIceberg finds the columns of all such files by one name mapping, a property of the table. A column that took over
another one's name would show the other one's values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, _index_parents, index_by_id
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import NameMapping, update_mapping
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from commit_coord.errors import CommitNotApplied
from commit_coord.iceberg.bounds import sound_bounds
from commit_coord.iceberg.partitioned_rows import path_to, split
from commit_coord.iceberg.partitions import partition_key

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def foreign_files(metadata: TableMetadata, io: FileIO, paths: Iterable[str]) -> Iterator[DataFile]:
    """Yield the data files at *paths*, each of the partition of the table's current spec that its rows lie in.

    The columns that the spec is computed from are read, batch by batch, so memory stays bounded.

    Raises:
        ValueError: A file is none of Parquet, its columns or field ids do not fit the table, or its rows do not lie in
            one partition.
    """
    # Loaded when it is needed: Arrow starts threads, and takes long.
    import pyarrow.parquet as pq
    from pyarrow import ArrowInvalid

    for path in paths:
        location = io.new_input(path)
        with location.open() as stream:
            try:
                parquet = pq.ParquetFile(stream)
            except ArrowInvalid as error:
                raise ValueError(f"{path} is no Parquet file: {error}") from error
            metrics = _metrics(parquet.metadata, path, metadata)  # first: the columns must fit
            yield DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=path,
                file_format=FileFormat.PARQUET,
                partition=_partition_of(parquet, path, metadata),
                file_size_in_bytes=len(location),
                sort_order_id=None,
                spec_id=metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **metrics,
            )


def _metrics(footer: pq.FileMetaData, path: str, metadata: TableMetadata) -> dict[str, Any]:
    """Return what *footer* tells of the columns.

    Raises:
        ValueError: They do not fit the table.
    """
    from pyiceberg.io.pyarrow import (
        UnsupportedPyArrowTypeException,
        _check_pyarrow_schema_compatible,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
        pyarrow_to_schema,
    )

    schema, given = metadata.schema(), footer.schema.to_arrow_schema()
    unfit = [(field.name, kind) for field in given if (kind := _unfit(field.type)) is not None]
    stored = [footer.schema.column(number) for number in range(footer.num_columns)]
    # PyIceberg takes the bounds of texts alone for texts.
    unfit += [(column.path, "JSON") for column in stored if column.logical_type.type == "JSON"]
    for name, kind in unfit:
        raise ValueError(f"{path} can't be added, column {name!r} is stored as {kind}: {_ADVICE}")
    try:
        _check_pyarrow_schema_compatible(schema, given, format_version=metadata.format_version)
    except UnsupportedPyArrowTypeException as error:
        raise ValueError(f"{path} can't be added, {error}: {_ADVICE}") from error
    named = pyarrow_to_schema(given, schema.name_mapping, format_version=metadata.format_version)
    for field_id, field in index_by_id(named).items():
        # Metrics are taken by name, rows are read by id.
        if (name := named.find_column_name(field_id)) != schema.find_column_name(field_id):
            raise ValueError(f"in {path}, column {name!r} ({field.field_type}) has the field id of a different column")
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return sound_bounds(statistics.to_serialized_dict(), schema)


_ADVICE = "append its rows, or write the file anew with columns that have the types of the table's"


def _unfit(kind: pa.DataType) -> pa.DataType | None:
    """Return which type in *kind* the rows of a table can't be read from, None if there is none.

    A Parquet file contains numbers of 32 bits without a sign as numbers with one. PyIceberg takes the bounds of a
    column from these, so a scan would overlook rows; Iceberg Java reads them as negative. Of views and dictionaries see
    :mod:`commit_coord.iceberg.plain_rows`: the file contains the Arrow schema, so they are read as such.
    """
    import pyarrow as pa

    for found in (pa.types.is_uint32, pa.types.is_uint64, pa.types.is_float16, pa.types.is_dictionary):
        if found(kind):
            return kind
    if kind in (pa.string_view(), pa.binary_view()):
        return kind
    parts = (_unfit(kind.field(number).type) for number in range(kind.num_fields))
    return next((part for part in parts if part is not None), None)


def _partition_of(parquet: pq.ParquetFile, path: str, metadata: TableMetadata) -> Record:
    """Return the partition that the rows of *parquet* lie in; a file without rows lies in that of NULL.

    Raises:
        ValueError: They lie in several. Or there are none, and a column of the spec is required, so never NULL.
    """
    import pyarrow as pa

    spec, schema = metadata.spec(), metadata.schema()
    sources = {field.source_id for field in spec.fields if not isinstance(field.transform, VoidTransform)}
    if not parquet.metadata.num_rows and any(schema.find_field(source).required for source in sources):
        raise ValueError(f"{path} has no rows, so it belongs to no partition of the table: leave it out")
    if not parquet.metadata.num_rows or not sources:
        return Record(*(None for _ in spec.fields))
    columns = {path_to(schema.as_struct(), source)[0] for source in sources}
    found: dict[tuple[Any, ...], Record] = {}
    for batch in parquet.iter_batches(columns=[name for name in parquet.schema_arrow.names if name in columns]):
        rows = pa.Table.from_batches([batch])
        found.update(
            (partition_key(partition), partition) for partition, _ in split(rows, spec, schema, keep_rows=False)
        )
    if len(found) != 1:
        raise ValueError(
            f"the rows of {path} belong to {len(found)} partitions of the table, so the file can't be added: "
            "write a file for each partition, or append its rows"
        )
    return next(iter(found.values()))


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
        raise ValueError(f"the table's name mapping gives the name {name!r} to a different column")
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


def refuse_mapped_names(before: TableMetadata, schema: Schema, table: str) -> None:
    """Refuse a *schema* in which a column has a name by which another one is found in files without field ids.

    Args:
        before: The table as it was: what was so already is left alone.
        schema: Its new columns.
        table: Its name.

    Raises:
        CommitNotApplied: There is one.
    """
    known = before.name_mapping()
    if known is not None and (name := taken_over(known, schema, before.schema())):
        raise CommitNotApplied(
            f"the commit did not land: files that were added without field ids contain an earlier column {name!r}, "
            "and the new column would show its values: choose another name, or remove the property "
            f"{TableProperties.DEFAULT_NAME_MAPPING!r} after these files are gone",
            table=table,
        )


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
