"""Which table a write goes to: one that is there, or one that is made for the rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import pyspark.sql.types as T
from pyiceberg import types as I
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids, index_by_name
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import UnknownTransform, parse_transform
from pyiceberg.typedef import Identifier
from pyspark.sql import SparkSession

from commit_coord.errors import CommitCoordError, ConfigError
from commit_coord.iceberg.partition_names import refuse_names
from commit_coord.iceberg.usable import refuse_transforms
from commit_coord.model import WriteMode
from commit_coord.spark.catalogs import named
from commit_coord.spark.locks import check_has_partitions
from commit_coord.spark.schema import SAME, SchemaMismatch, file_schema
from commit_coord.table.writable import check_version

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable

TableOrName = Table | str | tuple[Catalog | str, str | Identifier]
"""A table; the name of one in the default catalog; or a catalog, or its name, and the name of the table."""


def load(spark: SparkSession, table: TableOrName) -> Table:
    """Return *table* as it is: as of its last refresh, or loaded now.

    Raises:
        ConfigError: No catalog of that name can be opened.
        NoSuchTableError: There is none of that name.
    """
    if isinstance(table, Table):
        return table
    catalog, identifier = place(spark, table)
    return catalog.load_table(identifier)


def place(spark: SparkSession, table: str | tuple[Catalog | str, str | Identifier]) -> tuple[Catalog, str | Identifier]:
    """Return the catalog of a table that is named, and the name in it."""
    catalog, identifier = (None, table) if isinstance(table, str) else table
    return catalog if isinstance(catalog, Catalog) else named(spark, catalog), identifier


def resolve(
    spark: SparkSession,
    table: TableOrName,
    source: T.StructType | None,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    mode: WriteMode = "append",
) -> CoordinatedTable:
    """Return the table of a coordinated catalog; made from *source* when it is given and the table is not there.

    Raises:
        ConfigError: The catalog is not one of ours: its commits would not be coordinated. Or the table would be made,
            and cannot: a column, a partition field or a property is not valid, or *mode* needs partitions.
        CommitNotApplied: The table would be made with a format version that can't be written.
    """
    if not isinstance(table, Table):
        catalog, identifier = place(spark, table)
        found: Table
        try:
            found = catalog.load_table(identifier)
        except NoSuchTableError:
            if source is None:
                raise
            found = _create(catalog, identifier, source, partition_by, properties, mode)
    else:
        found = table.refresh()
    if not hasattr(found, "commit_files"):
        raise ConfigError(
            "this table comes from a catalog without coordination: load it through commit_coord.load_catalog",
            table=".".join(found.name()),
            catalog=type(found.catalog).__name__,
        )
    return cast("CoordinatedTable", found)


def _create(
    catalog: Catalog,
    identifier: str | Identifier,
    source: T.StructType,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    mode: WriteMode,
) -> Table:
    """Make a table; what could not be written into it is refused before, while it is not there."""
    version = str(properties.get(TableProperties.FORMAT_VERSION, 2))
    if not re.fullmatch("[1-9]", version):
        raise ConfigError("not a format version", key=TableProperties.FORMAT_VERSION, value=version)
    check_version(int(version), Catalog.identifier_to_tuple(identifier))
    schema = iceberg_schema(source)
    spec = partition_spec(partition_by, schema)
    check_has_partitions(mode, spec)
    return catalog.create_table_if_not_exists(
        identifier, schema=schema, partition_spec=spec, properties=dict(properties)
    )


_CREATED: Mapping[type[T.DataType], I.IcebergType] = {
    **{type(spark): iceberg() for iceberg, spark in SAME.items()},
    T.ByteType: I.IntegerType(),
    T.ShortType: I.IntegerType(),
    T.CharType: I.StringType(),
    T.VarcharType: I.StringType(),
}


def iceberg_schema(source: T.StructType) -> Schema:
    """Return the schema for a new table: every column optional, as in Spark's own CREATE TABLE AS SELECT.

    Raises:
        SchemaMismatch: With every column that no table can have, or that could not be written. Or a column and a field
            of another one have the same full name, such as the column ``a.b`` and the field ``b`` of the column ``a``.
    """
    problems: list[str] = []
    kind = _created(source, "", problems)
    if problems:
        raise SchemaMismatch("a table can't be made for the DataFrame", columns="; ".join(problems))
    assert isinstance(kind, I.StructType)
    try:
        schema = assign_fresh_schema_ids(Schema(*kind.fields))
        index_by_name(schema)
        file_schema(schema)
    except CommitCoordError:
        raise
    except ValueError as error:  # of names that are one, also as they are spelled in a file
        raise SchemaMismatch("a table can't be made for the DataFrame", columns=str(error)) from error
    return schema


def _created(kind: T.DataType, path: str, problems: list[str]) -> I.IcebergType:
    """Return the type of a new column, without ids; what no table can have is added to *problems*."""
    match kind:
        case T.StructType():
            twice = [name for name, number in Counter(kind.fieldNames()).items() if number > 1]
            problems.extend(f"{path}{name} comes more than once" for name in twice)
            if "" in kind.fieldNames():
                problems.append(f"{path.removesuffix('.') or 'the DataFrame'} has a field without a name")
            if not kind.fields:
                problems.append(f"{path.removesuffix('.') or 'the DataFrame'} has no field")
                return I.StringType()
            return I.StructType(
                *[
                    I.NestedField(-1, field.name, _created(field.dataType, f"{path}{field.name}.", problems))
                    for field in kind.fields
                ]
            )
        case T.ArrayType():
            return I.ListType(-1, _created(kind.elementType, f"{path}element.", problems), element_required=False)
        case T.MapType():
            key, value = (
                _created(each, f"{path}{name}.", problems)
                for name, each in (("key", kind.keyType), ("value", kind.valueType))
            )
            return I.MapType(-1, key, -1, value, value_required=False)
        case T.DecimalType():
            return I.DecimalType(kind.precision, kind.scale)
    if type(kind) not in _CREATED:
        problems.append(f"{path.removesuffix('.')} is {kind.simpleString()}: cast it to another type")
    return _CREATED.get(type(kind), I.StringType())


def partition_spec(fields: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the spec that texts such as ``region``, ``day(ts)``, ``bucket(16, id)`` describe; one text is one field.

    Raises:
        ConfigError: A text can't be read, names no column, does not fit its column, or comes twice. Or the field would
            have the name of another column.
    """
    made: list[PartitionField] = []
    for text in [fields] if isinstance(fields, str) else fields:
        try:
            field = _partition_field(text, 1000 + len(made), schema)
            PartitionSpec(field).check_compatible(schema)
            refuse_transforms([field])
            refuse_names(PartitionSpec(*made, field), schema)
        except (ValueError, ValidationError) as error:
            accepted = "a column, or bucket(n, c), truncate(n, c), year(c), month(c), day(c), hour(c), void(c)"
            raise ConfigError("not a partition field", field=text, why=str(error), accepted=accepted) from error
        made.append(field)
    return PartitionSpec(*made) if made else UNPARTITIONED_PARTITION_SPEC


def _partition_field(text: str, number: int, schema: Schema) -> PartitionField:
    if not isinstance(text, str):
        raise ValueError("it is no text")
    call = re.fullmatch(
        r"\s*(bucket|truncate|year|month|day|hour|identity|void)\s*\(\s*(?:(\d+)\s*,\s*)?(.+?)\s*\)\s*", text
    )
    column = call[3] if call is not None else text
    transform = "identity" if call is None else f"{call[1]}[{call[2]}]" if call[2] else call[1]
    parsed = parse_transform(transform)
    if isinstance(parsed, UnknownTransform):
        raise ValueError(f"there is no transform {transform}")
    return PartitionField(
        source_id=schema.find_field(column).field_id,
        field_id=number,
        transform=parsed,
        name=column if transform == "identity" else f"{column}_{transform.partition('[')[0]}",
    )
