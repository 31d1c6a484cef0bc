"""Which locks a statement takes: what it does to which tables, then ``protocol/hierarchy``'s table of commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyiceberg.table import Table
from sqlglot import expressions as sql

from commit_coord.iceberg.named_partitions import partition_levels
from commit_coord.iceberg.partitions import fixed_partitions, lockable
from commit_coord.model import LockMode, Resource
from commit_coord.protocol import hierarchy
from commit_coord.protocol.hierarchy import Operation, operation_locks
from commit_coord.sql.names import Names, Tables
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
    PartitionClause,
    QualifiedName,
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
from commit_coord.sql.where.filters import weakest_filter
from commit_coord.table.writable import refuse_unwritable

_WHOLE_TABLE: Mapping[type, Operation] = {
    Rename: Operation.RENAME,
    AddColumns: Operation.ADD_COLUMNS,
    ReplaceColumns: Operation.REPLACE_COLUMNS,
    ChangeColumn: Operation.CHANGE_COLUMNS,
    SetProperties: Operation.SET_TABLE_PROPERTIES,
    SetFileFormat: Operation.SET_FILE_FORMAT,
    DropTable: Operation.DROP_TABLE,
    SetPartitionSpec: Operation.EVOLVE_PARTITIONS,
    CreateRef: Operation.MANAGE_REFS,
    DropRef: Operation.MANAGE_REFS,
    ExpireSnapshots: Operation.EXPIRE_SNAPSHOTS,
    RollBack: Operation.ROLL_BACK,
}


_WRITE_NO_FILE = {Operation.SELECT, Operation.RENAME, Operation.DROP_TABLE}
"""All others are refused for a table that can only be read."""


def locks_of(statement: Statement, names: Names, *, explained: bool = False) -> list[tuple[Resource, LockMode]]:
    """Return the locks of *statement* without parents, reads first; none for what takes no locks by itself.

    Args:
        statement: It is about to be carried out.
        names: What its names mean.
        explained: It is not: it may be what can't be carried out.

    Raises:
        StatementError: It names a table, a partition column or a value that can't be.
        CommitNotApplied: It writes to a table that can only be read.
    """
    match statement:
        case CreateTable(table=name):
            database, table_name = names.identifier(name)
            return [*operation_locks(Operation.CREATE_TABLE, Resource((names.database(database), table_name)))]
        case CreateDatabase(database=database):
            return [*operation_locks(Operation.CREATE_DATABASE, Resource((names.of_database(database),)))]
        case DropDatabase(database=database, cascade=cascade):
            inside = names.tables_of(database) if cascade else []
            tables = [lock for table in inside for lock in operation_locks(Operation.DROP_TABLE, Resource.table(table))]
            return [*operation_locks(Operation.DROP_DATABASE, Resource((names.database(database),))), *tables]
    taken: list[tuple[Resource, LockMode]] = []
    for operation, table, partitions in _uses(statement, names.table):
        if not explained and operation not in _WRITE_NO_FILE:
            refuse_unwritable(table)
        live = len(table.metadata.partition_specs)
        taken += operation_locks(operation, Resource.table(table.name()), partitions, live_specs=live)
    return taken


def _uses(statement: Statement, tables: Tables) -> Iterator[tuple[Operation, Table, list[hierarchy.Partition]]]:
    """Yield what *statement* does to which partitions of which tables; no partition means the whole table."""
    if (operation := _WHOLE_TABLE.get(type(statement))) is not None:
        yield operation, tables(statement.table), []  # type: ignore[union-attr, arg-type]  # each of these has one
        return
    match statement:
        case Select(query=query):
            yield from _reads(query, tables)
        case Insert(table=name, overwrite=overwrite, partition=partition, query=query):
            yield from _reads(query, tables)
            table, operation = tables(name), Operation.OVERWRITE if overwrite else Operation.INSERT
            yield operation, table, lockable([partition_levels(table, partition.named)] if partition else [])
        case SetSerde(table=name, serializer=serializer):
            yield Operation.SET_SERIALIZER if serializer else Operation.SET_SERDE_PROPERTIES, tables(name), []
        case AddPartitions(table=name, partitions=located):
            table = tables(name)
            yield Operation.ADD_PARTITION, table, [partition_levels(table, partition.named) for partition, _ in located]
        case DropPartitions(table=name, partitions=partitions):
            table = tables(name)
            yield (
                Operation.DROP_PARTITION,
                table,
                [partition_levels(table, partition.named) for partition in partitions],
            )
        case TouchPartition(table=name, partition=partition):
            table = tables(name)
            yield Operation.TOUCH_PARTITION, table, [partition_levels(table, partition.named)]
        case Truncate(table=name, partition=partition):
            table = tables(name)
            yield Operation.TRUNCATE, table, lockable([partition_levels(table, partition.named)] if partition else [])
        case Delete(table=name, where=where):
            table = tables(name)
            yield Operation.DELETE, table, _filtered(where, table)
        case Update(table=name, values=values, where=where):
            table = tables(name)
            yield Operation.UPDATE, table, [] if _moves(values, table) else _filtered(where, table)
        case Concatenate(table=name, partition=None):
            yield Operation.CONCATENATE, tables(name), []
        case Concatenate(table=name, partition=PartitionClause() as partition):
            table = tables(name)
            yield Operation.CONCATENATE_PARTITION, table, [partition_levels(table, partition.named)]


def _reads(query: sql.Expr, tables: Tables) -> Iterator[tuple[Operation, Table, list[hierarchy.Partition]]]:
    """Yield the tables that *query* reads, each with the partitions that its own WHERE leaves."""
    for select in query.find_all(sql.Select):
        named = {cte.alias_or_name for scope in _scopes(select) for cte in scope.ctes}
        sources = [source for source in _sources(select) if source.db or source.name not in named]
        where = select.args.get("where")
        for source in sources:
            table = tables(QualifiedName(source.name, source.db or None))
            # With several tables a column would have to be looked for in each.
            alone = where.this if where is not None and len(_sources(select)) == 1 else None
            yield Operation.SELECT, table, _filtered(alone, table)


def _filtered(where: sql.Expr | None, table: Table) -> list[hierarchy.Partition]:
    """Return the partitions that rows matching *where* lie in, none when they may be anywhere."""
    if where is None:
        return []
    try:
        return lockable(fixed_partitions(weakest_filter(where, table.schema()), table.spec(), table.schema()))
    except Exception:  # noqa: BLE001 - the filter does not fit: carrying it out finds the error
        return []


def _moves(values: Iterable[tuple[sql.Column, sql.Expr]], table: Table) -> bool:
    """Return whether rows that get *values* may go to other partitions."""
    sources = {(table.schema().find_column_name(field.source_id) or "").lower() for field in table.spec().fields}
    return any(column.name.lower() in sources for column, _ in values)


def _scopes(select: sql.Select) -> Iterator[sql.Query]:
    """Yield *select* and the queries around it, whose WITH it sees."""
    yield select
    parent = select.parent
    while parent is not None:
        if isinstance(parent, sql.Query):
            yield parent
        parent = parent.parent


def _sources(select: sql.Select) -> list[sql.Table]:
    """Return the tables in FROM and JOIN of *select* itself."""
    clauses = [select.args.get("from_"), *(select.args.get("joins") or [])]
    return [clause.this for clause in clauses if clause is not None and isinstance(clause.this, sql.Table)]
