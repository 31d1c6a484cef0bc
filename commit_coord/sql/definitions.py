"""Carries out what defines databases, tables, their partitions, branches and snapshots. The caller holds the locks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import IcebergType, NestedField

from commit_coord.errors import PartlyDropped, StatementError
from commit_coord.iceberg.table_properties import as_number
from commit_coord.protocol.hierarchy import Operation
from commit_coord.sql.names import Names
from commit_coord.sql.show import Answer, message
from commit_coord.sql.statement import (
    CreateDatabase,
    CreateRef,
    CreateTable,
    DropDatabase,
    DropRef,
    ExpireSnapshots,
    PartitionedBy,
    RollBack,
)
from commit_coord.sql.types import iceberg_type
from commit_coord.sql.where.columns import source_of
from commit_coord.table import CoordinatedTable
from commit_coord.table.transaction import CoordinatedTransaction

FORMATS = ("parquet", "orc", "avro")

_FIELD_SUFFIXES = {"truncate": "trunc"}
"""Iceberg's suffix for the field of a transform, if it differs from the transform's own name."""


def check_format(file_format: str) -> str:
    """Return *file_format*, which is one of Iceberg's.

    Raises:
        StatementError: It is not.
    """
    if file_format not in FORMATS:
        raise StatementError("unsupported file format", file_format=file_format, accepted=", ".join(FORMATS))
    return file_format


# Databases.


def create_database(statement: CreateDatabase, names: Names) -> Answer:
    """Create a database."""
    try:
        names.catalog.create_namespace(statement.database, dict(statement.properties))
    except NamespaceAlreadyExistsError as error:
        if statement.if_not_exists:
            return message(f"there is a database {statement.database}")
        raise StatementError(
            "the database already exists", database=statement.database, accepted="another name, or IF NOT EXISTS"
        ) from error
    return message(f"created {statement.database}")


def drop_database(statement: DropDatabase, names: Names) -> Answer:
    """Drop a database, with CASCADE its tables first; their files stay, as with DROP TABLE."""
    catalog, database, dropped = names.catalog, statement.database, list[str]()
    if statement.cascade and (views := catalog.list_views(database)):
        raise StatementError(
            "the database has views: drop them first", database=database, views=", ".join(view[-1] for view in views)
        )
    try:
        for table in names.tables_of(database) if statement.cascade else ():
            catalog.drop_table(table)
            dropped.append(table[-1])
        catalog.drop_namespace(database)
    except Exception as error:
        if dropped:
            raise PartlyDropped(
                f"the database was dropped in part ({error})", database=database, dropped=", ".join(dropped)
            ) from error
        if not isinstance(error, NamespaceNotEmptyError):
            raise
        inside = ", ".join(table[-1] for table in names.tables_of(database))
        raise StatementError(
            "the database has tables: drop them first, or write CASCADE", database=database, tables=inside
        ) from error
    return message(f"dropped {database}" + (f" and its {len(dropped)} tables" if dropped else ""))


# Tables.


def create_table(statement: CreateTable, names: Names) -> Answer:
    """Create an empty table."""
    identifier, ids = names.identifier(statement.table), count(1)
    declared = [part.declared for part in statement.partitioned if part.declared is not None]
    columns = (*statement.columns, *declared)
    written = [column.name.lower() for column in columns]
    if doubled := [name for name in written if written.count(name) > 1]:
        raise StatementError("duplicate column", column=doubled[0], table=".".join(identifier))
    schema = Schema(
        *(
            NestedField(next(ids), column.name, iceberg_type(column.type, ids), doc=column.comment or None)
            for column in columns
        )
    )
    properties = dict(statement.properties)
    if "write.format.default" in properties:
        check_format(properties["write.format.default"])
    try:
        names.catalog.create_table(
            identifier,
            schema,
            location=statement.location,
            partition_spec=_spec(statement.partitioned, schema),
            properties=properties,
        )
    except TableAlreadyExistsError as error:
        if statement.if_not_exists:
            return message(f"there is a table {'.'.join(identifier)}")
        raise StatementError(
            "the table already exists", table=".".join(identifier), accepted="another name, or IF NOT EXISTS"
        ) from error
    except ValueError as error:
        raise StatementError(str(error), table=".".join(identifier)) from error
    return message(f"created {'.'.join(identifier)}")


def _spec(partitioned: Sequence[PartitionedBy], schema: Schema) -> PartitionSpec:
    fields = []
    for number, part in enumerate(partitioned):
        source, transform = _resolved(part, schema)
        name = source.name
        if part.transform != "identity":
            name += f"_{_FIELD_SUFFIXES.get(part.transform, part.transform)}"
        fields.append(PartitionField(source.field_id, 1000 + number, transform, name))
    if doubled := {field.name for field in fields if [other.name for other in fields].count(field.name) > 1}:
        raise StatementError("duplicate partition field", partition=", ".join(sorted(doubled)))
    return PartitionSpec(*fields)


def _resolved(part: PartitionedBy, schema: Schema) -> tuple[NestedField, Transform[Any, Any]]:
    """Return the column and the transform of a partition field."""
    source = source_of(part.column, schema)
    transform = parse_transform(f"{part.transform}[{part.number}]" if part.number is not None else part.transform)
    kind: IcebergType = source.field_type
    if not kind.is_primitive or not transform.can_transform(kind):
        raise StatementError(
            "invalid partition transform for a column of this type", column=source.name, type=kind, transform=transform
        )
    return source, transform


def set_partition_spec(table: CoordinatedTable, partitioned: Sequence[PartitionedBy]) -> Answer:
    """Partition what is written from now on by *partitioned*; what is there stays where it lies."""

    def plan(tx: CoordinatedTransaction) -> None:
        schema, spec = tx.view.schema(), tx.view.spec()
        wanted = [_resolved(part, schema) for part in partitioned]
        keys = [(source.field_id, str(transform)) for source, transform in wanted]
        if doubled := [source.name for key, (source, _) in zip(keys, wanted, strict=True) if keys.count(key) > 1]:
            raise StatementError("duplicate partition field", partition=doubled[0])
        there = {(field.source_id, str(field.transform)): field for field in spec.fields}
        try:
            with tx.update_spec() as update:
                for key, field in there.items():
                    if key not in keys:
                        update.remove_field(field.name)
                for source, transform in wanted:
                    if (source.field_id, str(transform)) not in there:
                        update.add_field(schema.find_column_name(source.field_id) or source.name, transform)
        except ValueError as error:
            raise StatementError(str(error), table=".".join(table.name())) from error

    transaction = table.transaction()
    with transaction:
        transaction.perform(plan, Operation.EVOLVE_PARTITIONS)
    by = ", ".join(field.name for field in table.spec().fields)
    return message(
        f"{'.'.join(table.name())} is partitioned by {by}" if by else f"{'.'.join(table.name())} has no partitions"
    )


# Branches and tags.


def create_ref(statement: CreateRef, table: Table) -> Answer:
    """Give a snapshot a name."""
    kind, name = "branch" if statement.branch else "tag", ".".join(table.name())
    if (ref := table.metadata.refs.get(statement.name)) is not None:
        if statement.if_not_exists:
            return message(f"there is a {ref.snapshot_ref_type.value} {statement.name} of {name}")
        raise StatementError(f"the {ref.snapshot_ref_type.value} already exists", name=statement.name, table=name)
    snapshot = _snapshot(table, statement.snapshot)
    with table.manage_snapshots() as manage:
        if statement.branch:
            manage.create_branch(snapshot.snapshot_id, statement.name, max_ref_age_ms=statement.retain_ms)
        else:
            manage.create_tag(snapshot.snapshot_id, statement.name, max_ref_age_ms=statement.retain_ms)
    return message(f"created the {kind} {statement.name} of {name} at {snapshot.snapshot_id}")


def _snapshot(table: Table, wanted: int | str | None) -> Snapshot:
    if wanted is None:
        found = table.current_snapshot()
    elif isinstance(wanted, int):
        found = table.snapshot_by_id(wanted)
    else:
        found = table.snapshot_by_name(wanted)
    if found is None:
        raise StatementError(
            "the table has no such snapshot",
            snapshot=wanted if wanted is not None else "the present one",
            table=".".join(table.name()),
        )
    return found


def drop_ref(statement: DropRef, table: Table) -> Answer:
    """Take the name of a snapshot away."""
    kind, name = SnapshotRefType.BRANCH if statement.branch else SnapshotRefType.TAG, ".".join(table.name())
    ref = table.metadata.refs.get(statement.name)
    if ref is None or ref.snapshot_ref_type != kind:
        if statement.if_exists:
            return message(f"there is no {kind.value} {statement.name} of {name}")
        raise StatementError(f"there is no such {kind.value}", name=statement.name, table=name)
    if statement.name == MAIN_BRANCH:
        raise StatementError("the main branch can't be dropped", table=name)
    with table.manage_snapshots() as manage:
        if statement.branch:
            manage.remove_branch(statement.name)
        else:
            manage.remove_tag(statement.name)
    return message(f"dropped the {kind.value} {statement.name} of {name}")


# Snapshots.


def expire_snapshots(statement: ExpireSnapshots, table: Table) -> Answer:
    """Forget snapshots, except those that a branch or tag keeps. Files stay too: PyIceberg deletes none."""
    protected = {ref.snapshot_id for ref in table.metadata.refs.values()}
    # Those of format version 1 have no sequence numbers, and are in the order in which they were added.
    added = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    newest_first = added[::-1]
    known = {snapshot.snapshot_id for snapshot in newest_first}
    if unknown := [number for number in statement.snapshots if number not in known]:
        raise StatementError("the table has no such snapshot", snapshot=unknown[0], table=".".join(table.name()))
    if statement.snapshots:
        doomed = set(statement.snapshots)
        if kept := doomed & protected:
            raise StatementError(
                "a branch or tag refers to the snapshot", snapshot=min(kept), table=".".join(table.name())
            )
    elif statement.retain_last is not None:
        doomed = {snapshot.snapshot_id for snapshot in newest_first[statement.retain_last :]}
        doomed -= _kept_by_branches(table.metadata, least=1)
    else:
        before = int(statement.before.timestamp() * 1000) if statement.before else _default_bound_ms(table)
        doomed = {snapshot.snapshot_id for snapshot in newest_first if snapshot.timestamp_ms < before}
        least = as_number(
            table.properties, TableProperties.MIN_SNAPSHOTS_TO_KEEP, TableProperties.MIN_SNAPSHOTS_TO_KEEP_DEFAULT
        )
        doomed -= _kept_by_branches(table.metadata, least=least)
    doomed -= protected
    if doomed:
        table.maintenance.expire_snapshots().by_ids(sorted(doomed)).commit()
        doomed -= {snapshot.snapshot_id for snapshot in table.metadata.snapshots}  # Tagged meanwhile.
    return message(f"{len(doomed)} snapshots of {'.'.join(table.name())} expired")


def _kept_by_branches(metadata: TableMetadata, *, least: int) -> set[int]:
    """Return the snapshots that the branches keep, as Iceberg Java does: the newest ones, and those of a certain age.

    Args:
        metadata: Of the table.
        least: How many a branch keeps that does not say so itself.
    """
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    kept: set[int] = set()
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
            continue
        newest = ref.min_snapshots_to_keep or least
        # Without an age of its own it keeps no snapshot for its time, also none of a writer whose clock is ahead.
        since_ms = math.inf if ref.max_snapshot_age_ms is None else now_ms - ref.max_snapshot_age_ms
        for number, snapshot in enumerate(ancestors_of(metadata.snapshot_by_id(ref.snapshot_id), metadata)):
            if number >= newest and snapshot.timestamp_ms < since_ms:
                break
            kept.add(snapshot.snapshot_id)
    return kept


def _default_bound_ms(table: Table) -> int:
    age = as_number(table.properties, TableProperties.MAX_SNAPSHOT_AGE_MS, TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT)
    return int(datetime.now(UTC).timestamp() * 1000) - age  # no datetime: the age may be the greatest number


def roll_back(statement: RollBack, table: Table) -> Answer:
    """Go back to an earlier snapshot."""
    manage = table.manage_snapshots()
    try:
        if isinstance(statement.to, int):
            manage.rollback_to_snapshot(statement.to).commit()
        else:
            manage.rollback_to_timestamp(int(statement.to.timestamp() * 1000)).commit()
    except ValueError as error:
        raise StatementError(str(error), table=".".join(table.name())) from error
    snapshot = table.current_snapshot()
    return message(f"{'.'.join(table.name())} is back at {snapshot.snapshot_id if snapshot else None}")
