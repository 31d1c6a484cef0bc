"""Carries statements out on Iceberg tables. The caller holds their locks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.fs
from pyiceberg import expressions as E
from pyiceberg.exceptions import TableAlreadyExistsError, ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties, _parquet_files_to_data_files
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType, NestedField

from commit_coord.catalog.metastore.hive_table import SERDE_LIB, SERDE_PROPERTY
from commit_coord.errors import InternalError, StatementError
from commit_coord.iceberg.named_partitions import partition_filter, partition_levels
from commit_coord.iceberg.partitions import partition_level
from commit_coord.protocol.hierarchy import Operation
from commit_coord.sql import definitions
from commit_coord.sql.changes import delete_rows, update_rows
from commit_coord.sql.inserts import insert
from commit_coord.sql.matching import delete
from commit_coord.sql.names import Names
from commit_coord.sql.queries import read
from commit_coord.sql.show import Answer, message
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
from commit_coord.sql.where.columns import field_of, known_field
from commit_coord.table import CoordinatedTable
from commit_coord.table.transaction import CoordinatedTransaction

Tables = Callable[[Name], CoordinatedTable]

TOUCHED = "commit-coord.touched"
"""The table property that ``TOUCH`` sets: which partition, and when."""

_MAPPING = TableProperties.DEFAULT_NAME_MAPPING


def execute(statement: Statement, names: Names) -> Answer:
    """Do what *statement* says and return its answer.

    Raises:
        StatementError: It can't be done as it is written. Nothing was changed.
        CommitError: What became of its commit.
    """
    catalog, tables = names.catalog, names.table
    match statement:
        case Select(query=query):
            found = read(query, tables)
            rows = list(found.listed())
            lines = ["\t".join("NULL" if value is None else str(value) for value in row) for row in rows]
            return Answer(found.names, rows, lines)
        case Insert():
            return insert(statement, tables)
        case Rename(table=name, to=to):
            old = tables(name).name()
            new = (to.database or old[0], to.table)
            try:
                catalog.rename_table(old, new)
            except TableAlreadyExistsError as error:
                raise StatementError("the table already exists", table=".".join(new)) from error
            return message(f"renamed {'.'.join(old)} to {'.'.join(new)}")
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
            return _touch(tables(name), partition)
        case Concatenate(table=name, partition=partition):
            done = tables(name).compact(partition.named if partition else {}, rewrite=names.rewrite)
            return message(f"{done.before} files of {'.'.join(names.identifier(name))} are now {done.after}")
        case DropTable(table=name, purge=purge):
            table = tables(name)
            (catalog.purge_table if purge else catalog.drop_table)(table.name())
            return message(f"dropped {'.'.join(table.name())}")
        case Truncate(table=name, partition=partition):
            return _truncate(tables(name), partition)
        case Delete(table=name):
            return delete_rows(statement, tables(name))
        case Update():
            return update_rows(statement, tables(statement.table))
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
    return message(f"set {', '.join(properties)} of {'.'.join(table.name())}")


def _change_columns(statement: AddColumns | ReplaceColumns | ChangeColumn, table: CoordinatedTable) -> Answer:
    def plan(tx: CoordinatedTransaction) -> None:
        with tx.update_schema() as update:
            match statement:
                case AddColumns(columns=columns):
                    _add(update, tx.view.schema(), columns)
                case ReplaceColumns(columns=columns):
                    _replace(update, tx.view.schema(), columns)
                case ChangeColumn():
                    _change(update, tx.view.schema(), statement)

    transaction = table.transaction()
    try:
        with transaction:
            transaction.perform(plan, Operation.EVOLVE_SCHEMA)
    except (ValueError, ValidationError) as error:
        raise StatementError(str(error), table=".".join(table.name())) from error
    return message(f"the columns of {'.'.join(table.name())} are changed")


def _add(update: UpdateSchema, schema: Schema, columns: Sequence[Column]) -> None:
    _refuse_twice([column.name for column in columns], schema.fields)
    for column in columns:
        update.add_column(column.name, iceberg_type(column.type), column.comment or None)


def _replace(update: UpdateSchema, schema: Schema, columns: Sequence[Column]) -> None:
    """Make *columns* the table's: one that is there, in whatever case, keeps its name, and its values."""
    kept = {column.name: found for column in columns if (found := known_field(column.name, schema)) is not None}
    for field in schema.fields:
        if field not in kept.values():
            update.delete_column(field.name)
    for column in columns:
        if (known := kept.get(column.name)) is None:
            update.add_column(column.name, iceberg_type(column.type), column.comment or None)
        else:
            _retype(update, known, column)
    names = [kept[column.name].name if column.name in kept else column.name for column in columns]
    _refuse_twice(names, ())
    for before, name in pairwise(names):
        update.move_after(name, before)


def _change(update: UpdateSchema, schema: Schema, statement: ChangeColumn) -> None:
    field, column = field_of(statement.name, schema), statement.column
    _retype(update, field, column)
    if statement.after == "":
        update.move_first(field.name)
    elif statement.after is not None:
        update.move_after(field.name, field_of(statement.after, schema).name)
    if column.name not in {field.name, statement.name}:
        _refuse_twice([column.name], [other for other in schema.fields if other is not field])
        update.rename_column(field.name, column.name)


def _retype(update: UpdateSchema, field: NestedField, column: Column) -> None:
    """Give a column its new type and comment; without a comment it keeps the one it has."""
    kind = iceberg_type(column.type)
    same = _arrow_type(kind) == _arrow_type(field.field_type)  # Which ignores the ids of nested fields.
    update.update_column(field.name, None if same else kind, doc=column.comment or None)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    return schema_to_pyarrow(kind, include_field_ids=False)


def _refuse_twice(names: Sequence[str], there: Sequence[NestedField]) -> None:
    """Refuse names that differ from each other, or from those of *there*, by case at most."""
    known = {field.name.lower() for field in there}
    for name in names:
        if name.lower() in known:
            raise StatementError("a column of that name already exists", column=name)
        known.add(name.lower())


# Partitions.


def _touch(table: CoordinatedTable, partition: Partition) -> Answer:
    """Write into the table's properties that a partition, which must be there, was touched."""

    def plan(tx: CoordinatedTransaction) -> None:
        seen = tx.view
        touched = "/".join(level for level in partition_levels(seen, partition.named) if level is not None)
        _refuse_missing(seen, partition_filter(seen, partition.named), touched)
        tx.set_properties({TOUCHED: f"{touched} {time.time_ns() // 1_000_000}"})

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.SET_TABLE_PROPERTIES)
    return message(f"the properties of {'.'.join(table.name())} are set")


def _add_partitions(statement: AddPartitions, table: CoordinatedTable) -> Answer:
    """Register files that lie at a location. Iceberg has no empty partitions: without files there is nothing to add."""
    count = 0

    def plan(tx: CoordinatedTransaction) -> None:
        nonlocal count
        seen = tx.view
        files = _located_files(statement, seen)
        count = len(files)
        if files:
            if _MAPPING not in seen.properties:  # How readers find the columns of files that name no field ids.
                tx.set_properties({_MAPPING: seen.schema().name_mapping.model_dump_json()})
            tx.files.append(files, {}, MAIN_BRANCH)

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.APPEND)
    return message(f"{count} files registered; Iceberg has no empty partitions, they come with their rows")


def _located_files(statement: AddPartitions, table: Table) -> list[DataFile]:
    """Return the files at the locations of *statement* that the table does not have.

    Raises:
        StatementError: One lies in another partition; or the table has one already, and no IF NOT EXISTS was said.
    """
    known = {task.file.file_path for task in table.scan().plan_files()} if _locates(statement) else set()
    files: list[DataFile] = []
    for partition, location in statement.partitions:
        levels = partition_levels(table, partition.named)
        paths = _parquet_files(location) if location is not None else []
        if (there := known.intersection(paths)) and not statement.if_not_exists:
            raise StatementError("the table has this file already", file=min(there), named=partition)
        new = [path for path in paths if path not in known]
        known.update(new)
        for file in _parquet_files_to_data_files(table.metadata, new, table.io):
            lies_in = [
                partition_level(field, table.schema(), file.partition[position])
                for position, field in enumerate(table.spec().fields)
            ]
            if any(level not in (None, found) for level, found in zip(levels, lies_in, strict=True)):
                raise StatementError(
                    "a file belongs to another partition",
                    file=file.file_path,
                    partition="/".join(lies_in),
                    named=partition,
                )
            files.append(file)
    return files


def _locates(statement: AddPartitions) -> bool:
    return any(location is not None for _, location in statement.partitions)


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
    files = [info.path for info in found if info.is_file and info.path.endswith(".parquet")]
    return [before + file for file in files if not _hidden(file[len(path.rstrip("/")) :])]


def _hidden(below: str) -> bool:
    """Return whether Hive and Spark pass over a file: their writers have what is not committed in such folders."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in below.split("/"))


def _drop_partitions(statement: DropPartitions, table: CoordinatedTable) -> Answer:
    def plan(tx: CoordinatedTransaction) -> None:
        seen = tx.view
        filters = [partition_filter(seen, partition.named) for partition in statement.partitions]
        if not statement.if_exists:
            for condition, partition in zip(filters, statement.partitions, strict=True):
                _refuse_missing(seen, condition, str(partition))
        delete(tx, E.Or(E.AlwaysFalse(), E.AlwaysFalse(), *filters))

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.DELETE)
    return message(f"dropped {len(statement.partitions)} partitions of {'.'.join(table.name())}")


def _truncate(table: CoordinatedTable, partition: Partition | None) -> Answer:
    def plan(tx: CoordinatedTransaction) -> None:
        condition: E.BooleanExpression = E.AlwaysTrue()
        if partition is not None:
            seen = tx.view
            condition = partition_filter(seen, partition.named)
            _refuse_missing(seen, condition, str(partition))
        delete(tx, condition)

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.DELETE)
    name = ".".join(table.name())
    return message(f"{name} is empty" if partition is None else f"the partition {partition} of {name} is empty")


def _has_rows(table: Table, condition: E.BooleanExpression) -> bool:
    """Return whether a file may have rows that match *condition*."""
    return any(True for _ in table.scan(row_filter=condition).plan_files())


def _refuse_missing(table: Table, condition: E.BooleanExpression, partition: str) -> None:
    if not _has_rows(table, condition):
        raise StatementError("there is no such partition", partition=partition, table=".".join(table.name()))
