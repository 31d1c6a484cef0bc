"""Applies updates by the rules of Iceberg Java to a head that the client has not seen.

PyIceberg's rules differ in three points. Ids: two clients that each add a schema to a table use the same next id. In
Java, the table decides: a schema that exists under another id is used, and a new one gets the next free id. PyIceberg
accepts two schemas with one id, and refuses such specs and sort orders. Clients may also leave it to the table to
number partition fields. Removals: in Java it is no error to remove what is not there. It removes a snapshot, for
example, and then the snapshot's statistics, which are gone with it. Sequence numbers: PyIceberg checks them only in
tables of version 2.

Source: Iceberg Java ``TableMetadata.Builder``, ``reuseOrCreateNewSchemaId`` and its like.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePartitionSpecsUpdate,
    RemovePartitionStatisticsUpdate,
    RemovePropertiesUpdate,
    RemoveSchemasUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableUpdate,
)

from commit_coord.iceberg.metadata import sequence_number
from commit_coord.iceberg.partition_names import refuse_names
from commit_coord.iceberg.specs import with_field_ids
from commit_coord.iceberg.usable import FAR

T = TypeVar("T")

_LAST = -1
"""The id that means "the one that was added last" in the updates that set a schema, spec or sort order."""


def as_java_applies(updates: Sequence[TableUpdate], head: TableMetadata) -> tuple[TableUpdate, ...]:
    """Return *updates* with the ids that they have on *head*.

    Raises:
        CommitFailedException: Another partition spec has the id under which the data files were written, or the table
            has already given the sequence number of a snapshot to another one. Or as :func:`_refuse_to_leave_rows`.
        ValidationError: PyIceberg's: a new spec or sort order does not fit the schema that is current in the end.
        ValueError: As :func:`~commit_coord.iceberg.partition_names.refuse_names`, for that schema and all specs.
    """
    _refuse_to_leave_rows(updates, head)
    current = head.schema()
    schemas: dict[int, Schema] = {schema.schema_id: schema for schema in head.schemas}
    specs: dict[int, PartitionSpec] = {spec.spec_id: spec for spec in head.partition_specs}
    orders: dict[int, SortOrder] = {order.order_id: order for order in head.sort_orders}
    schema_ids: dict[int | None, int] = {}
    last_schema, last_spec, last_order = _LAST, _LAST, _LAST
    last_number = sequence_number(head)
    done: list[TableUpdate] = []
    added: list[PartitionSpec | SortOrder] = []
    for update in updates:
        match update:
            case AddSchemaUpdate(schema_=schema):
                last_schema = _id_of(schema, schemas, schema.schema_id)
                schema_ids[schema.schema_id] = last_schema
                if last_schema not in schemas:
                    schemas[last_schema] = schema.model_copy(update={"schema_id": last_schema})
                    done.append(AddSchemaUpdate(schema_=schemas[last_schema]))
            case AddPartitionSpecUpdate(spec=given):
                spec = with_field_ids(given, specs.values(), head.last_partition_id)
                last_spec = next((i for i, other in specs.items() if other.fields == spec.fields), _LAST)
                if last_spec == _LAST:
                    last_spec = _free(specs, spec.spec_id)
                if last_spec != spec.spec_id and any(isinstance(each, AddSnapshotUpdate) for each in updates):
                    raise CommitFailedException(
                        f"Requirement failed: default partition spec changed: the id {spec.spec_id} was given to "
                        "another spec after the files were written"
                    )
                if last_spec not in specs:
                    added.append(spec)
                    specs[last_spec] = PartitionSpec(*spec.fields, spec_id=last_spec)
                    done.append(AddPartitionSpecUpdate(spec=specs[last_spec]))
            case AddSortOrderUpdate(sort_order=order):
                last_order = next((i for i, other in orders.items() if other.fields == order.fields), _LAST)
                if last_order == _LAST:
                    last_order = _free(orders, order.order_id)
                if last_order not in orders:
                    added.append(order)
                    orders[last_order] = SortOrder(*order.fields, order_id=last_order)
                    done.append(AddSortOrderUpdate(sort_order=orders[last_order]))
            case SetCurrentSchemaUpdate(schema_id=wanted):
                now = last_schema if wanted == _LAST else wanted
                current = schemas.get(now, current)
                done.append(SetCurrentSchemaUpdate(schema_id=now))
            case SetDefaultSpecUpdate(spec_id=-1) if last_spec != _LAST:
                done.append(SetDefaultSpecUpdate(spec_id=last_spec))
            case SetDefaultSortOrderUpdate(sort_order_id=-1) if last_order != _LAST:
                done.append(SetDefaultSortOrderUpdate(sort_order_id=last_order))
            case AddSnapshotUpdate(snapshot=snapshot):
                number = snapshot.sequence_number or 0
                if head.format_version > 1 and number <= last_number and snapshot.parent_snapshot_id is not None:
                    raise CommitFailedException(
                        f"Cannot add snapshot with sequence number {number} "
                        f"older than last sequence number {last_number}"
                    )
                last_number = number
                schema_id = schema_ids.get(snapshot.schema_id, snapshot.schema_id)
                done.append(AddSnapshotUpdate(snapshot=snapshot.model_copy(update={"schema_id": schema_id})))
            case _:
                done.append(update)
    for one in added:  # DuckDB makes a schema the current one last
        one.check_compatible(current)
    checked = head.specs() if current.schema_id == head.current_schema_id else {}
    for spec_id in specs.keys() - checked.keys():
        refuse_names(specs[spec_id], current)
    return tuple(_removing_what_is_there(done, head))


def _refuse_to_leave_rows(updates: Sequence[TableUpdate], head: TableMetadata) -> None:
    """Return if each snapshot that *updates* add and give to a branch follows what is the branch's head by then.

    Java leaves this to requirements. A client that sends none, or another one, would take the rows of the commits
    that it has not seen out of the branch. Who removes the branch first means that: Java replaces a table so. If the
    table was empty when Java read it, Java removes nothing, but gives the table its columns with a first snapshot.

    Raises:
        CommitFailedException: A snapshot follows another one, or none.
    """
    gives_columns = any(isinstance(update, AddSchemaUpdate) for update in updates)
    heads = {name: ref.snapshot_id for name, ref in head.refs.items()}
    parents: dict[int | None, int | None] = {}
    for update in updates:
        match update:
            case AddSnapshotUpdate(snapshot=snapshot):
                parents[snapshot.snapshot_id] = snapshot.parent_snapshot_id
            case RemoveSnapshotRefUpdate(ref_name=name):
                heads.pop(name, None)
            case SetSnapshotRefUpdate(ref_name=name, snapshot_id=new):
                line = _line(new, parents)
                replaces = gives_columns and line[-1] is None
                if new in parents and heads.get(name, new) not in line and not replaces:
                    raise CommitFailedException(
                        f"Requirement failed: branch {name} has changed: expected id {line[-1]} != {heads[name]}"
                    )
                heads[name] = new


def _line(snapshot_id: int, parents: Mapping[int | None, int | None]) -> list[int | None]:
    """Return *snapshot_id* and what it follows, up to the first that is not in *parents*."""
    line: list[int | None] = [snapshot_id]
    at: int | None = snapshot_id
    while at in parents and (at := parents[at]) not in line:
        line.append(at)
    return line


def as_java_creates(updates: Sequence[TableUpdate]) -> tuple[TableUpdate, ...]:
    """Return *updates*, which create a table, with the ids that partition fields have in it."""
    return tuple(
        AddPartitionSpecUpdate(spec=with_field_ids(update.spec, (), None))
        if isinstance(update, AddPartitionSpecUpdate)
        else update
        for update in updates
    )


def _removing_what_is_there(updates: Iterable[TableUpdate], head: TableMetadata) -> Iterator[TableUpdate]:
    """Yield *updates* without the removals of what neither *head* has nor an update before them has added.

    The last schema stays, see :func:`_but_the_last`.
    """
    current = head.current_schema_id
    schemas, specs, properties = {schema.schema_id for schema in head.schemas}, set(head.specs()), set(head.properties)
    statistics = {file.snapshot_id for file in head.statistics}
    partition_statistics = {file.snapshot_id for file in head.partition_statistics}
    for update in updates:
        match update:
            case AddSchemaUpdate(schema_=schema):
                schemas.add(schema.schema_id)
            case AddPartitionSpecUpdate(spec=spec):
                specs.add(spec.spec_id)
            case SetCurrentSchemaUpdate(schema_id=now):
                current = now
            case SetPropertiesUpdate(updates=values):
                properties |= values.keys()
            case SetStatisticsUpdate(statistics=file):
                statistics.add(file.snapshot_id)
            case SetPartitionStatisticsUpdate(partition_statistics=file):
                partition_statistics.add(file.snapshot_id)
            case RemoveSnapshotsUpdate(snapshot_ids=ids):
                statistics.difference_update(ids)
                partition_statistics.difference_update(ids)
        match update:
            case RemoveSchemasUpdate(schema_ids=ids):
                if found := _taken(_but_the_last(ids, schemas, current), schemas):
                    yield RemoveSchemasUpdate(schema_ids=found)
            case RemovePartitionSpecsUpdate(spec_ids=ids):
                if found := _taken(ids, specs):
                    yield RemovePartitionSpecsUpdate(spec_ids=found)
            case RemovePropertiesUpdate(removals=keys):
                if names := _taken(keys, properties):
                    yield RemovePropertiesUpdate(removals=names)
            case RemoveStatisticsUpdate(snapshot_id=number):
                if _taken([number], statistics):
                    yield update
            case RemovePartitionStatisticsUpdate(snapshot_id=number):
                if _taken([number], partition_statistics):
                    yield update
            case _:
                yield update


def _but_the_last(wanted: Iterable[int], there: set[int], current: int) -> list[int]:
    """Return the ids *wanted* without the highest id *there*, unless it is *current*: to remove that is refused.

    1. A client reads a table whose current schema has the id 5.   2. Others set schema 4 again and remove schema 5.
    3. Others add a column: without this, the new schema would be number 5.   4. The client drops a column and requires
    that the current schema is number 5.
    """
    last = max(there, default=None)
    return [each for each in wanted if each != last or each == current]


def _taken(wanted: Iterable[T], there: set[T]) -> list[T]:
    """Take *wanted* out of *there*, and return what of it was there."""
    found = [each for each in dict.fromkeys(wanted) if each in there]
    there.difference_update(found)
    return found


def _id_of(schema: Schema, known: dict[int, Schema], wanted: int) -> int:
    same = next((schema_id for schema_id, other in known.items() if other == schema), None)
    return _free(known, wanted) if same is None else same


def _free(known: dict[int, Schema] | dict[int, PartitionSpec] | dict[int, SortOrder], wanted: int) -> int:
    """Return an id for what is added: the *wanted* one if it is higher than all *known* ones, which exist or existed.

    A wanted id of :data:`~commit_coord.iceberg.usable.FAR` or more is ignored.
    """
    following = max(known, default=-1) + 1
    return wanted if following < wanted < FAR else following
