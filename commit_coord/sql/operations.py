"""Executes statements on Iceberg tables. The caller holds their locks."""

from __future__ import annotations

from pyiceberg.exceptions import TableAlreadyExistsError

from commit_coord.catalog.metastore.serde import SERDE_LIB, SERDE_PROPERTY
from commit_coord.errors import InternalError, StatementError
from commit_coord.sql import definitions, partitions, schemas
from commit_coord.sql.changes import delete_rows, update_rows
from commit_coord.sql.inserts import insert
from commit_coord.sql.names import Names
from commit_coord.sql.queries import read
from commit_coord.sql.show import Answer, message
from commit_coord.sql.statement import (
    AddColumns,
    AddPartitions,
    ChangeColumn,
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


def execute(statement: Statement, names: Names) -> Answer:
    """Do what *statement* says and return its answer.

    Raises:
        StatementError: It can't be done as it is written. Nothing was changed.
        CommitError: The outcome of its commit.
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
                raise StatementError(
                    "the table already exists", table=".".join(new), accepted="another name"
                ) from error
            return message(f"renamed {'.'.join(old)} to {'.'.join(new)}")
        case AddColumns() | ReplaceColumns() | ChangeColumn():
            return schemas.change_columns(statement, tables(statement.table))
        case SetProperties(table=name, properties=properties):
            return schemas.set_properties(tables(name), properties)
        case SetSerde(table=name, serializer=serializer, properties=properties):
            lib = {SERDE_LIB: serializer} if serializer is not None else {}
            return schemas.set_properties(
                tables(name), lib | {SERDE_PROPERTY + key: properties[key] for key in properties}
            )
        case SetFileFormat(table=name, file_format=file_format):
            return schemas.set_properties(tables(name), {"write.format.default": definitions.check_format(file_format)})
        case AddPartitions():
            return partitions.add_partitions(statement, tables(statement.table))
        case DropPartitions():
            return partitions.drop_partitions(statement, tables(statement.table))
        case TouchPartition(table=name, partition=partition):
            return partitions.touch(tables(name), partition)
        case Concatenate(table=name, partition=partition):
            done = tables(name).compact(partition.named if partition else {}, rewrite=names.rewrite)
            return message(f"{done.before} files of {'.'.join(names.identifier(name))} are now {done.after}")
        case DropTable(table=name, purge=purge):
            table = tables(name)
            (catalog.purge_table if purge else catalog.drop_table)(table.name())
            return message(f"dropped {'.'.join(table.name())}")
        case Truncate(table=name, partition=partition):
            return partitions.truncate(tables(name), partition)
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
    raise InternalError("no operation executes this statement", statement=statement)
