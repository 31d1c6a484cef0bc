"""Carries statements out on Iceberg tables. The caller holds their locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.fs
from pyiceberg import expressions as E
from pyiceberg.exceptions import TableAlreadyExistsError, ValidationError
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, _parquet_files_to_data_files
from pyiceberg.table.update.schema import UpdateSchema
from sqlglot import expressions as sql

from commit_coord.catalog.hive_table import SERDE_LIB, SERDE_PROPERTY
from commit_coord.errors import InternalError, StatementError
from commit_coord.iceberg.named_partitions import OPEN, partition_filter, partition_levels
from commit_coord.iceberg.partitions import partition_level
from commit_coord.sql import definitions
from commit_coord.sql.filters import NotAFilter, constant, row_filter
from commit_coord.sql.names import Names
from commit_coord.sql.show import Answer, said
from commit_coord.sql.statement import (
    AddColumns,
    AddPartitions,
    ChangeColumn,
    Column,
    Concatenate,
    CreateDatabase,
    CreateRef,
    CreateTable,
    Delete,
    DropDatabase,
    DropPartitions,
    DropRef,
    DropTable,
    ExpireSnapshots,
    Insert,
    Name,
    Partition,
    Rename,
    ReplaceColumns,
    RollBack,
    Select,
    SetFileFormat,
    SetPartitionSpec,
    SetProperties,
    SetSerde,
    Statement,
    TouchPartition,
    Truncate,
    Update,
)
from commit_coord.sql.types import iceberg_type
from commit_coord.table import CoordinatedTable

Tables = Callable[[Name], CoordinatedTable]

TOUCHED = "commit-coord.touched"
"""The table property that ``TOUCH`` sets: which partition, and when."""

_MAPPING = TableProperties.DEFAULT_NAME_MAPPING


def carry_out(statement: Statement, names: Names) -> Answer:
    """Do what *statement* says and return its answer.

    Raises:
        StatementError: It can't be done as it is written. Nothing was changed.
        CommitError: What became of its commit.
    """
    catalog, tables = names.catalog, names.table
    match statement:
        case Select(query=query):
            found = read(query, tables)
            rows = [tuple(row.values()) for row in found.to_pylist()]
            lines = ["\t".join("NULL" if value is None else str(value) for value in row) for row in rows]
            return Answer(tuple(found.column_names), rows, lines)
        case Insert():
            return _insert(statement, tables)
        case Rename(table=name, to=to):
            old = tables(name).name()
            new = (to.database or old[0], to.table)
            try:
                catalog.rename_table(old, new)
            except TableAlreadyExistsError as error:
                raise StatementError("there is a table of that name", table=".".join(new)) from error
            return said(f"renamed {'.'.join(old)} to {'.'.join(new)}")
        case AddColumns() | ReplaceColumns() | ChangeColumn():
            return _change_columns(statement, tables(statement.table))
        case SetProperties(table=name, properties=properties):
            return _set_properties(tables(name), properties)
        case SetSerde(table=name, serializer=serializer, properties=properties):
            lib = {SERDE_LIB: serializer} if serializer is not None else {}
            return _set_properties(tables(name), lib | {SERDE_PROPERTY + key: properties[key] for key in properties})
        case SetFileFormat(table=name, file_format=file_format):
            return _set_properties(tables(name), {"write.format.default": definitions.check_format(file_format)})
        case AddPartitions():
            return _add_partitions(statement, tables(statement.table))
        case DropPartitions():
            return _drop_partitions(statement, tables(statement.table))
        case TouchPartition(table=name, partition=partition):
            table = tables(name)
            touched = "/".join(level for level in partition_levels(table, partition.named) if level is not None)
            _refuse_missing(table, partition_filter(table, partition.named), touched)
            return _set_properties(table, {TOUCHED: f"{touched} {time.time_ns() // 1_000_000}"})
        case Concatenate(table=name, partition=partition):
            done = tables(name).compact(partition.named if partition else {}, rewrite=names.rewrite)
            return said(f"{done.before} files of {'.'.join(names.identifier(name))} are now {done.after}")
        case DropTable(table=name, purge=purge):
            table = tables(name)
            (catalog.purge_table if purge else catalog.drop_table)(table.name())
            return said(f"dropped {'.'.join(table.name())}")
        case Truncate(table=name, partition=partition):
            return _truncate(tables(name), partition)
        case Delete(table=name, where=where):
            return _delete(tables(name), where)
        case Update():
            return _update(statement, tables(statement.table))
        case CreateTable():
            return definitions.create_table(statement, names)
        case SetPartitionSpec(table=name, partitioned=partitioned):
            return definitions.set_partition_spec(tables(name), partitioned)
        case CreateRef():
            return definitions.create_ref(statement, tables(statement.table))
        case DropRef():
            return definitions.drop_ref(statement, tables(statement.table))
        case ExpireSnapshots():
            return definitions.expire_snapshots(statement, tables(statement.table))
        case RollBack():
            return definitions.roll_back(statement, tables(statement.table))
        case CreateDatabase():
            return definitions.create_database(statement, names)
        case DropDatabase():
            return definitions.drop_database(statement, names)
    raise InternalError("a statement that nobody carries out", statement=statement)


# Tables and columns.


def _set_properties(table: Table, properties: Mapping[str, str | None]) -> Answer:
    with table.transaction() as transaction:
        transaction.set_properties({key: value for key, value in properties.items() if value is not None})
        removed = [key for key, value in properties.items() if value is None and key in table.properties]
        if removed:
            transaction.remove_properties(*removed)
    return said(f"set {', '.join(properties)} of {'.'.join(table.name())}")


def _change_columns(statement: AddColumns | ReplaceColumns | ChangeColumn, table: Table) -> Answer:
    try:
        with table.update_schema() as update:
            match statement:
                case AddColumns(columns=columns):
                    for column in columns:
                        update.add_column(column.name, iceberg_type(column.type), column.comment or None)
                case ReplaceColumns(columns=columns):
                    _replace(update, table, columns)
                case ChangeColumn(name=name, column=column, after=after):
                    _change(update, name, column, after)
    except (ValueError, ValidationError) as error:
        raise StatementError(str(error), table=".".join(table.name())) from error
    return said(f"the columns of {'.'.join(table.name())} are changed")


def _replace(update: UpdateSchema, table: Table, columns: Sequence[Column]) -> None:
    """Make *columns* the table's: who keeps its name keeps its values."""
    there = {field.name.lower(): field for field in table.schema().fields}
    wanted = {column.name.lower() for column in columns}
    for name, field in there.items():
        if name not in wanted:
            update.delete_column(field.name)
    for column in columns:
        known = there.get(column.name.lower())
        if known is None:
            update.add_column(column.name, iceberg_type(column.type), column.comment or None)
        elif known.field_type != (kind := iceberg_type(column.type)):
            update.update_column(known.name, kind)
    for before, column in pairwise(columns):
        update.move_after(column.name, before.name)


def _change(update: UpdateSchema, name: str, column: Column, after: str | None) -> None:
    update.update_column(name, iceberg_type(column.type), doc=column.comment or None)
    if after == "":
        update.move_first(name)
    elif after is not None:
        update.move_after(name, after)
    if column.name != name:
        update.rename_column(name, column.name)


# Partitions.


def _add_partitions(statement: AddPartitions, table: CoordinatedTable) -> Answer:
    """Register files that lie at a location. Iceberg has no empty partitions: without files there is nothing to add."""
    files: list[DataFile] = []
    for partition, location in statement.partitions:
        levels = partition_levels(table, partition.named)
        paths = _parquet_files(location) if location is not None else []
        for file in _parquet_files_to_data_files(table.metadata, paths, table.io):
            lies_in = [
                partition_level(field, table.schema(), file.partition[position])
                for position, field in enumerate(table.spec().fields)
            ]
            if any(level not in (None, found) for level, found in zip(levels, lies_in, strict=True)):
                raise StatementError(
                    "a file lies in another partition",
                    file=file.file_path,
                    partition="/".join(lies_in),
                    named=partition,
                )
            files.append(file)
    if files:
        # How readers find the columns of files that name no field ids.
        mapping = {} if _MAPPING in table.properties else {_MAPPING: table.schema().name_mapping.model_dump_json()}
        table.commit_files(files, properties=mapping)
    return said(f"{len(files)} files registered; Iceberg has no empty partitions, they come with their rows")


def _parquet_files(location: str) -> list[str]:
    scheme, separator, _ = location.partition("://")
    if separator:
        filesystem, path = pa.fs.FileSystem.from_uri(location)
    else:
        filesystem, path = pa.fs.LocalFileSystem(), location
    before = f"{scheme}://" if separator and scheme != "file" else ""
    try:
        found = filesystem.get_file_info(pa.fs.FileSelector(path, recursive=True))
    except OSError as error:
        raise StatementError("the location can't be listed", location=location, reason=error) from error
    return [before + info.path for info in found if info.is_file and info.path.endswith(".parquet")]


def _drop_partitions(statement: DropPartitions, table: CoordinatedTable) -> Answer:
    filters = []
    for partition in statement.partitions:
        condition = partition_filter(table, partition.named)
        if not statement.if_exists:
            _refuse_missing(table, condition, str(partition))
        filters.append(condition)
    dropped = E.Or(E.AlwaysFalse(), E.AlwaysFalse(), *filters)
    if _has_rows(table, dropped):
        table.delete(dropped)
    return said(f"dropped {len(filters)} partitions of {'.'.join(table.name())}")


def _has_rows(table: Table, condition: E.BooleanExpression) -> bool:
    """Return whether a file may have rows that match *condition*."""
    return any(True for _ in table.scan(row_filter=condition).plan_files())


def _refuse_missing(table: Table, condition: E.BooleanExpression, partition: str) -> None:
    if not _has_rows(table, condition):
        raise StatementError("there is no such partition", partition=partition, table=".".join(table.name()))


# Rows.


def read(query: sql.Expr, tables: Tables) -> pa.Table:
    """Return the rows of a query of columns and constants, from one table or none.

    Raises:
        StatementError: It asks for more. Spark answers that: ``commit_coord.spark.read_table`` brings the table.
    """
    if isinstance(query, sql.Values):
        return _constants([list(row.expressions) for row in query.expressions])
    source = query.args.get("from_")
    known = {"expressions", "from_", "where", "limit", "kind"}
    more = [key for key, value in query.args.items() if value and key not in known]
    if not isinstance(query, sql.Select) or more or (source is not None and not isinstance(source.this, sql.Table)):
        raise _needs_spark(query)
    if source is None:
        return _constants([[item.unalias() for item in query.expressions]])
    table = tables(Name(source.this.name, source.this.db or None))
    where, limit = query.args.get("where"), query.args.get("limit")
    try:
        chosen = [_chosen(item, table) for item in query.expressions]
        condition = row_filter(where.this) if where is not None else E.AlwaysTrue()
        rows = int(constant(limit.expression)) if limit is not None else None
    except NotAFilter:
        raise _needs_spark(query) from None
    try:
        found = table.scan(row_filter=condition, limit=rows, case_sensitive=False).to_arrow()
    except ValueError as error:
        raise StatementError(str(error), table=".".join(table.name())) from error
    made = [
        (name, found.column(column) if column else pa.chunked_array([pa.array([value] * found.num_rows)]))
        for columns in chosen
        for name, column, value in columns
    ]
    return pa.table([column for _, column in made], names=[name for name, _ in made])


def _chosen(item: sql.Expr, table: Table) -> list[tuple[str, str, Any]]:
    """Return what an item of a SELECT list brings: names, each with its column, or "" and a constant."""
    names = {field.name.lower(): field.name for field in table.schema().fields}
    match item.unalias():
        case sql.Star():
            return [(name, name, None) for name in names.values()]
        case sql.Column() as column if column.name.lower() in names:
            return [(item.alias_or_name, names[column.name.lower()], None)]
        case sql.Column() as column:
            raise StatementError("there is no such column", column=column.name, accepted=", ".join(names.values()))
        case value:
            return [(item.alias_or_name or item.sql(), "", constant(value))]


def _constants(rows: Sequence[Sequence[sql.Expr]]) -> pa.Table:
    if len({len(row) for row in rows}) != 1:
        raise StatementError("all rows must have the same number of values")
    try:
        values = [[None if isinstance(item, sql.Null) else constant(item) for item in row] for row in rows]
    except NotAFilter as error:
        raise StatementError("expected a constant", found=error) from None
    return pa.table(
        [pa.array(column) for column in zip(*values, strict=True)],
        names=[f"col{i}" for i in range(1, len(values[0]) + 1)],
    )


def _needs_spark(query: sql.Expr) -> StatementError:
    return StatementError(
        "only columns and constants of one table are read here, with a simple WHERE and LIMIT; give other queries to "
        "Spark, and write what they return with commit_coord.spark.write_table",
        query=query.sql(dialect="hive"),
    )


def _insert(statement: Insert, tables: Tables) -> Answer:
    table = tables(statement.table)
    rows = _fitted(statement, table, read(statement.query, tables))
    name = ".".join(table.name())
    if not statement.overwrite:
        table.append(rows)
        return said(f"{rows.num_rows} rows inserted into {name}")
    spec, clause = table.spec(), statement.partition
    if spec.is_unpartitioned() or (clause is not None and all(value is not OPEN for _, value in clause.values)):
        replaced = E.AlwaysTrue() if clause is None else partition_filter(table, clause.named)
        if _has_rows(table, replaced):
            table.overwrite(rows, replaced)
        else:
            table.append(rows)
    else:
        files = list(_dataframe_to_data_files(table.metadata, rows, table.io))
        table.commit_files(files, mode="dynamic")
    return said(f"{rows.num_rows} rows put in the place of what was in {name}")


def _truncate(table: Table, partition: Partition | None) -> Answer:
    name = ".".join(table.name())
    if partition is None:
        if _has_rows(table, E.AlwaysTrue()):
            table.delete(E.AlwaysTrue())
        return said(f"{name} is empty")
    condition = partition_filter(table, partition.named)
    _refuse_missing(table, condition, str(partition))
    table.delete(condition)
    return said(f"the partition {partition} of {name} is empty")


def _delete(table: Table, where: sql.Expr | None) -> Answer:
    condition = _condition(where, table)
    rows = _count(table, condition)
    if rows:
        table.delete(condition, case_sensitive=False)
    return said(f"{rows} rows deleted from {'.'.join(table.name())}")


def _update(statement: Update, table: CoordinatedTable) -> Answer:
    """Set columns to constants, or to what other columns of the row have."""
    condition, name = _condition(statement.where, table), ".".join(table.name())
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    columns = {column.lower(): column for column in schema.names}
    for key in [key for key, _ in statement.values] + [
        value.name for _, value in statement.values if isinstance(value, sql.Column)
    ]:
        if key.lower() not in columns:
            raise StatementError("there is no such column", column=key, accepted=", ".join(schema.names))
    constants: dict[str, Any] = {}
    try:
        for key, value in statement.values:
            if not isinstance(value, sql.Column):
                constants[key] = None if isinstance(value, sql.Null) else constant(value)
    except NotAFilter as error:
        raise StatementError("expected a constant or a column; give other updates to Spark", found=error) from None
    changed = 0

    def change(rows: pa.Table) -> pa.Table:
        nonlocal changed
        changed, made = rows.num_rows, {field.name: rows.column(field.name) for field in schema}
        for key, value in statement.values:
            field = schema.field(columns[key.lower()])
            if isinstance(value, sql.Column):
                made[field.name] = _cast(rows.column(columns[value.name.lower()]), field)
            else:
                made[field.name] = _cast(pa.chunked_array([pa.array([constants[key]] * rows.num_rows)]), field)
        return pa.table([made[field.name].cast(field.type) for field in schema], schema=schema)

    if _count(table, condition):
        transaction = table.transaction()
        with transaction:
            transaction.update_rows(condition, change)
    return said(f"{changed} rows of {name} updated")


def _condition(where: sql.Expr | None, table: Table) -> E.BooleanExpression:
    """Return *where* as a row filter with the columns as *table* spells them.

    Raises:
        StatementError: It is none, or names a column that is not there.
    """
    if where is None:
        return E.AlwaysTrue()
    try:
        written = row_filter(where)
    except NotAFilter as error:
        raise StatementError(
            "only columns and constants can be compared here; give other conditions to Spark", condition=error
        ) from None
    try:
        bind(table.schema(), written, case_sensitive=False)
    except (ValueError, TypeError) as error:
        raise StatementError(str(error), table=".".join(table.name())) from error
    return written


def _count(table: Table, condition: E.BooleanExpression) -> int:
    return table.scan(row_filter=condition, case_sensitive=False).count()


def _fitted(statement: Insert, table: Table, rows: pa.Table) -> pa.Table:
    """Return *rows* with the table's columns: by position, those that PARTITION leaves open last, as in Hive."""
    clause = dict(statement.partition.values) if statement.partition else {}
    if statement.partition is not None:
        partition_levels(table, statement.partition.named)
    fixed = {key.lower(): value for key, value in clause.items() if value is not OPEN}
    open_last = [key.lower() for key, value in clause.items() if value is OPEN]
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    columns = {field.name.lower(): field for field in schema}
    if unknown := [key for key in (*fixed, *open_last, *map(str.lower, statement.columns)) if key not in columns]:
        raise StatementError("there is no such column", column=unknown[0], accepted=", ".join(schema.names))
    given = [name.lower() for name in statement.columns] or [
        key for key in columns if key not in fixed | dict.fromkeys(open_last)
    ]
    given += [key for key in open_last if key not in given]
    if rows.num_columns != len(given):
        raise StatementError(
            "the query has another number of columns than the table takes",
            expected=f"{len(given)} ({', '.join(given)})",
            found=rows.num_columns,
        )
    by_name: dict[str, Any] = dict(zip(given, rows.columns, strict=True))
    made = []
    for key, field in columns.items():
        values = by_name.get(key, pa.array([fixed.get(key)] * rows.num_rows) if rows.num_rows else pa.nulls(0))
        made.append(_cast(values, field))
    return pa.table(made, schema=schema)


def _cast(values: Any, field: pa.Field) -> Any:
    """Return *values* as the column *field* has them."""
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StatementError(
            "a value does not fit its column", column=field.name, type=field.type, reason=error
        ) from error
