"""Which table a write goes to: one that is there, or one that is made for the rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyspark.sql.types as T
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Identifier
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from commit_coord.errors import ConfigError
from commit_coord.spark.catalogs import named
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
) -> CoordinatedTable:
    """Return the table of a coordinated catalog; made from *source* when it is given and the table is not there.

    Raises:
        ConfigError: The catalog is not one of ours: its commits would not be coordinated.
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
            check_version(
                int(properties.get(TableProperties.FORMAT_VERSION, 2)), Catalog.identifier_to_tuple(identifier)
            )
            schema = iceberg_schema(source)
            spec = partition_spec(partition_by, schema)
            found = catalog.create_table_if_not_exists(
                identifier, schema=schema, partition_spec=spec, properties=dict(properties)
            )
    else:
        found = table.refresh()
    if not hasattr(found, "commit_files"):
        raise ConfigError(
            "this table comes from a catalog without coordination: load it through commit_coord.load_catalog",
            table=".".join(found.name()),
            catalog=type(found.catalog).__name__,
        )
    return cast("CoordinatedTable", found)


def iceberg_schema(source: T.StructType) -> Schema:
    """Return the schema for a new table: every column optional, as in Spark's own CREATE TABLE AS SELECT."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(to_arrow_schema(_nullable(source))))


def _nullable(kind: T.DataType) -> Any:
    match kind:
        case T.StructType():
            return T.StructType([T.StructField(f.name, _nullable(f.dataType), True) for f in kind.fields])
        case T.ArrayType():
            return T.ArrayType(_nullable(kind.elementType), True)
        case T.MapType():
            return T.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
        case T.NullType():
            raise ConfigError("a column of type void can't be created in a table: cast it to another type")
    return kind


def partition_spec(fields: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the spec that texts such as ``region``, ``day(ts)``, ``bucket(16, id)`` describe.

    Raises:
        ConfigError: A text can't be read, or names no column.
    """
    made = []
    for number, text in enumerate(fields):
        call = re.fullmatch(r"\s*(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?(.+?)\s*\)\s*", text)
        known = call is not None and call[1] in (
            "bucket",
            "truncate",
            "year",
            "month",
            "day",
            "hour",
            "identity",
            "void",
        )
        column = call[3] if call is not None and known else text
        transform = "identity" if call is None or not known else f"{call[1]}[{call[2]}]" if call[2] else call[1]
        try:
            source = schema.find_field(column)
            made.append(
                PartitionField(
                    source_id=source.field_id,
                    field_id=1000 + number,
                    transform=parse_transform(transform),
                    name=column if transform == "identity" else f"{column}_{transform.partition('[')[0]}",
                )
            )
        except ValueError as error:
            accepted = "a column, or bucket(n, c), truncate(n, c), year(c), month(c), day(c), hour(c), void(c)"
            raise ConfigError("not a partition field", field=text, accepted=accepted) from error
    return PartitionSpec(*made) if made else UNPARTITIONED_PARTITION_SPEC
