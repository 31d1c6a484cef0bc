"""Statements on partitions: touched, registered, dropped, emptied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.fs
from pyiceberg import expressions as E
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH

from commit_coord.errors import StatementError
from commit_coord.iceberg.named_partitions import partition_filter, partition_levels
from commit_coord.iceberg.partitions import is_hidden, partition_level
from commit_coord.protocol.hierarchy import Operation
from commit_coord.sql.matching import delete
from commit_coord.sql.show import Answer, message
from commit_coord.sql.statement import (
    AddPartitions,
    DropPartitions,
    PartitionClause,
)
from commit_coord.table import CoordinatedTable
from commit_coord.table.foreign_files import foreign_files, grown_mapping
from commit_coord.table.live_files import canonical
from commit_coord.table.transaction import CoordinatedTransaction

TOUCHED = "commit-coord.touched"
"""The table property that ``TOUCH`` sets: which partition, and when."""


def touch(table: CoordinatedTable, partition: PartitionClause) -> Answer:
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


def add_partitions(statement: AddPartitions, table: CoordinatedTable) -> Answer:
    """Register files that lie at a location. Iceberg has no empty partitions: without files there is nothing to add."""
    count = 0

    def plan(tx: CoordinatedTransaction) -> None:
        nonlocal count
        seen = tx.view
        files = _located_files(statement, seen)
        count = len(files)
        if files:
            with _as_statement_error():
                mapping = grown_mapping(seen.metadata)
            if mapping is not None:  # How readers find the columns of files that name no field ids.
                tx.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()})
            tx.files.append(files, {}, MAIN_BRANCH)

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.APPEND)
    return message(f"{count} files registered; Iceberg has no empty partitions, they come with their rows")


def _located_files(statement: AddPartitions, table: Table) -> list[DataFile]:
    """Return the files at the locations of *statement* that the table does not have.

    Raises:
        StatementError: One does not fit the table, or has rows of another partition; or the table has one already, and
            there is no IF NOT EXISTS.
    """
    known = {canonical(task.file.file_path) for task in table.scan().plan_files()} if _locates(statement) else set()
    files: list[DataFile] = []
    for partition, location in statement.partitions:
        levels = partition_levels(table, partition.named)
        paths = _parquet_files(location) if location is not None else []
        if (there := [path for path in paths if canonical(path) in known]) and not statement.if_not_exists:
            raise StatementError("the file is already in the table", file=min(there), named=partition)
        new = [path for path in paths if canonical(path) not in known]
        known.update(map(canonical, new))
        with _as_statement_error():
            found = list(foreign_files(table.metadata, table.io, new))
        for file in found:
            lies_in = [
                partition_level(field, table.schema(), file.partition[position])
                for position, field in enumerate(table.spec().fields)
            ]
            if any(level not in (None, lies) for level, lies in zip(levels, lies_in, strict=True)):
                raise StatementError(
                    "a file belongs to another partition",
                    file=file.file_path,
                    partition="/".join(lies_in),
                    named=partition,
                )
            files.append(file)
    return files


@contextmanager
def _as_statement_error() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise StatementError("the files can't be registered", reason=error) from error


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
    files = [info.path for info in found if info.is_file]  # whatever their suffix: Hive's have none
    return [before + file for file in files if not is_hidden(file[len(path.rstrip("/")) :])]


def drop_partitions(statement: DropPartitions, table: CoordinatedTable) -> Answer:
    """Delete the rows of partitions."""

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


def truncate(table: CoordinatedTable, partition: PartitionClause | None) -> Answer:
    """Delete all rows of a table or partition."""

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
