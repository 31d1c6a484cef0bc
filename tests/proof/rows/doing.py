"""What clients do: the operations of programs, performed through tables, transactions and statements."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.utils.concurrent import ExecutorFactory

import commit_coord
from commit_coord import sql
from commit_coord.table.data_files import data_files
from commit_coord.testing.table_files.observed import Files, Observed, local
from commit_coord.testing.table_files.values import Named, Row, canonical, complete
from tests.proof.rows.model.conditions import Where, bound
from tests.proof.rows.model.operations import (
    STATEMENTS,
    AddColumn,
    AddFiles,
    AddPartition,
    Append,
    CommitFiles,
    Compact,
    Delete,
    DeletePositions,
    DeleteValues,
    DropColumn,
    DropPartition,
    DropRef,
    DynamicOverwrite,
    Expire,
    ExpireOne,
    MakeRef,
    MoveFirst,
    Orphans,
    Overwrite,
    Promote,
    Refresh,
    RenameColumn,
    Require,
    Rollback,
    SetProperty,
    Single,
    SortBy,
    SwapColumns,
    Transact,
    UpdateRows,
    Upgrade,
    Upsert,
    WriteFiles,
)
from tests.proof.rows.model.spellings import spelled
from tests.proof.rows.model.table_statements import SqlAddPartition, located_in
from tests.proof.rows.read import readers
from tests.proof.rows.row_deletes import RowDeletes, commit_row_deletes, of_positions
from tests.proof.rows.statements import ancestor, text_of

NAMESPACE = "db"
_numbers = itertools.count(1)


def arrow(rows: Iterable[Named], schema: Schema) -> pa.Table:
    """Return rows as a user would pass them: with the columns of *schema*, nullable where a value is missing."""
    made = schema_to_pyarrow(schema, include_field_ids=False)
    fields = schema.as_struct()
    # Arrow makes a UUID of its bytes.
    named = [{name: value.bytes if isinstance(value, UUID) else value for name, value in row.items()} for row in rows]
    if not all(complete(canonical(row, fields), fields) for row in named):
        made = pa.schema([f.with_nullable(True) for f in made])
    return pa.Table.from_pylist(named, schema=made)


class NoSuchRows(ValueError):
    """A file can't be written: others have changed the columns since its rows were drawn."""


Written = tuple[list[Any], int]
"""Data files, and the id of the schema that they were written with."""


@dataclass
class Doing:
    """What operations need in addition to the table.

    Args:
        folder: For files that lie outside of the table.
        files: Learns what files hold that name no field ids.
        slots: What was written for a later commit, by name.
    """

    folder: Path
    files: Files
    slots: dict[str, Written] = field(default_factory=dict)
    between: Callable[[], None] = lambda: None
    """Called behind the first call of a transaction."""
    dropped: set[str] = field(default_factory=set)
    """The UUIDs of the tables that lay in the same place."""

    def __call__(self, operation: Single, table: Table) -> None:
        """Do *operation* on *table*, as its client sees it."""
        match operation:
            case Refresh():
                table.refresh()
            case Transact(calls=calls):
                with table.transaction() as transaction:
                    for at, call in enumerate(calls):
                        if at == 1:
                            self.between()
                        self.call(call, transaction, table.schema())
            case WriteFiles(rows=rows, slot=slot):
                made = list(data_files(table.metadata, arrow(rows, table.schema()), table.io))
                for file in made:
                    file.spec_id = table.metadata.default_spec_id  # a writer that commits files of others must say so
                self.slots[slot] = made, table.schema().schema_id
            case CommitFiles(slot=slot, mode=mode, where=where):
                ours: Any = table
                files, written = self.slots[slot]
                request: dict[str, Any] = {}
                if operation.named:
                    request["request_id"] = f"{table.metadata.table_uuid} {slot}"
                if mode == "overwrite":
                    request["overwrite_filter"] = readers.expression(where)
                schema_id = written if operation.with_schema_id else None
                ours.commit_files(files, mode=mode, schema_id=schema_id, **request)
            case Compact():
                ours = table
                ours.compact()
            case Orphans():
                keeper: Any = table.catalog
                keeper.delete_orphans(
                    keeper.find_orphans(table.name(), older_than_ms=0, force=True, dropped=self.dropped)
                )
            case DeletePositions(where=where, apart=apart):
                self._delete_positions(table, where, apart=apart)
            case DeleteValues(columns=columns, rows=rows):
                self._delete_values(table, columns, rows)
            case UpdateRows() | SetProperty() | Upgrade():
                with table.transaction() as transaction:
                    self.call(operation, transaction, table.schema())
            case _ if isinstance(operation, STATEMENTS):
                catalog: Any = table.catalog
                location = self._located(operation, table) if isinstance(operation, SqlAddPartition) else ""
                sql.run(text_of(operation, table, location), catalog, database=NAMESPACE)
            case _:
                self.call(operation, table, table.schema())

    def call(self, operation: Any, target: Any, schema: Schema) -> None:
        """Do *operation* through *target*, a table or a transaction."""
        match operation:
            case Append(rows=rows, branch=branch):
                target.append(arrow(rows, schema), branch=branch)
            case Overwrite(rows=rows, where=where, branch=branch, given=given):
                reads = {"reads": commit_coord.NOTHING} if given else {}
                target.overwrite(arrow(rows, schema), readers.expression(where), branch=branch, **reads)
            case Delete(where=where, branch=branch):
                target.delete(readers.expression(where), branch=branch)
            case Upsert(rows=rows, keys=keys):
                target.upsert(arrow(rows, schema), join_cols=list(keys))
            case DynamicOverwrite(rows=rows):
                target.dynamic_partition_overwrite(arrow(rows, schema))
            case AddFiles(rows=rows, spelling=spelling):
                # Clients may share the folder, each in a process of its own.
                path = self.folder / f"foreign-{os.getpid()}-{next(_numbers)}.parquet"
                self._write_foreign(path, rows, schema)
                target.add_files([spelled(str(path), spelling)])
            case UpdateRows(where=where, sets=sets, branch=branch):
                target.update_rows(readers.expression(where), lambda found: _set(found, dict(sets)), branch=branch)
            case SetProperty(key=key, value=value):
                target.set_properties({key: value})
            case Upgrade():
                target.upgrade_table_version(2)
            case _:
                _change(operation, target)

    def _delete_positions(self, table: Table, where: Where, *, apart: bool) -> None:
        seen, head = Observed(table.metadata_location, self.files), table.current_snapshot()
        matches = bound(where, table.schema().as_struct())
        files = {task.file.file_path: task.file for task in table.scan().plan_files()}
        places = [
            (path, position)
            for path, rows in (seen.placed(head.snapshot_id) if head is not None else ())
            for position, row in rows
            if matches(row)
        ]

        def group(place: tuple[str, int]) -> tuple[Any, ...]:
            file = files[place[0]]
            return file.spec_id, repr(file.partition), place[0] if apart else ""

        deletes = [
            of_positions(files[some[0][0]], some)
            for some in (list(found) for _, found in itertools.groupby(sorted(places, key=group), key=group))
        ]
        if deletes:
            commit_row_deletes(table, deletes)

    def _delete_values(self, table: Table, columns: Sequence[str], rows: Iterable[Named]) -> None:
        """Write a file of values for each partition that has a data file."""
        schema = table.schema().select(*columns)
        values = pa.Table.from_pylist(
            [{name: row.get(name) for name in columns} for row in rows],
            schema=pa.schema([f.with_nullable(True) for f in schema_to_pyarrow(schema)]),
        )
        seen, head = Observed(table.metadata_location, self.files), table.current_snapshot()
        live = {file.path for file in seen.live(head.snapshot_id)} if head is not None else set()
        partitions = {
            (entry.data_file.spec_id, repr(entry.data_file.partition)): entry.data_file
            for manifest in (head.manifests(table.io) if head is not None else ())
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.data_file.file_path in live
        }
        ids = [schema.find_field(name).field_id for name in columns]
        deletes = [RowDeletes(file, values, equality_ids=ids) for file in partitions.values()]
        if deletes:
            commit_row_deletes(table, deletes)

    def _write_foreign(self, path: Path, rows: Iterable[Named], schema: Schema) -> None:
        pq.write_table(arrow(rows, schema), path)
        made: list[Row] = [canonical(row, schema.as_struct()) for row in rows]
        self.files.rows[local(str(path))] = made

    def _located(self, operation: SqlAddPartition, table: Table) -> str:
        """Return the location of a folder with a file of *operation*, and one that Hive passes over."""
        folder = self.folder / located_in(operation, str(table.metadata.table_uuid))
        if not folder.exists():
            try:
                arrow(operation.rows, table.schema())
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise NoSuchRows("the columns have no such values") from error
            (folder / "_temporary").mkdir(parents=True)
            for path in (folder / "_temporary" / "part-0", folder / "part-0"):
                self._write_foreign(path, operation.rows, table.schema())
        return spelled(str(folder), operation.spelling)


def settle() -> None:
    """Wait until PyIceberg's threads have nothing to do: when one of them fails, it does not wait for the others."""
    pool: Any = ExecutorFactory.get_or_create()
    together = threading.Barrier(pool._max_workers)
    for done in [pool.submit(together.wait) for _ in range(pool._max_workers)]:
        done.result()


def _set(rows: pa.Table, sets: dict[str, Any]) -> pa.Table:
    for column, given in sets.items():
        value = given.bytes if isinstance(given, UUID) else given
        index = rows.schema.get_field_index(column)
        try:
            made = pa.array([value] * rows.num_rows, rows.schema.field(index).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            # Under a lock the function is given the table as it is, where the name may be another column's.
            raise ValueError(f"the column {column} can't have {given!r}") from error
        rows = rows.set_column(index, rows.schema.field(index), made)
    return rows


def _change(operation: Any, target: Any) -> None:
    match operation:
        case AddColumn(column=column, kind=kind):
            with target.update_schema() as update:
                update.add_column(tuple(column.split(".")), kind)
        case DropColumn(column=column):
            with target.update_schema(allow_incompatible_changes=True) as update:
                update.delete_column(tuple(column.split(".")))
        case RenameColumn(column=column, to=to):
            with target.update_schema() as update:
                update.rename_column(tuple(column.split(".")), to)
        case SwapColumns(one=one, other=other):
            with target.transaction() as transaction:
                for old, new in ((one, "__swap"), (other, one), ("__swap", other)):
                    with transaction.update_schema() as update:
                        update.rename_column(old, new)
        case Promote(column=column, kind=kind):
            with target.update_schema() as update:
                update.update_column(column, kind)
        case Require(column=column, required=required):
            with target.update_schema(allow_incompatible_changes=True) as update:
                update.update_column(column, required=required)
        case MoveFirst(column=column):
            with target.update_schema() as update:
                update.move_first(column)
        case AddPartition(column=column, transform=transform, name=name):
            with target.update_spec() as update:
                update.add_field(column, parse_transform(transform), name)
        case DropPartition(name=name):
            with target.update_spec() as update:
                update.remove_field(name)
        case SortBy(column=column):
            with target.update_sort_order() as update:
                update.asc(column, parse_transform("identity"))
        case MakeRef(name=name, kind=kind):
            at = target.current_snapshot().snapshot_id
            make = target.manage_snapshots()
            (make.create_tag if kind == "tag" else make.create_branch)(at, name).commit()
        case DropRef(name=name, kind=kind):
            make = target.manage_snapshots()
            (make.remove_tag if kind == "tag" else make.remove_branch)(name).commit()
        case Expire():
            soon = dt.datetime.now() + dt.timedelta(days=1)  # noqa: DTZ005 - PyIceberg takes local time
            target.maintenance.expire_snapshots().older_than(soon).commit()
        case ExpireOne(back=back):
            target.maintenance.expire_snapshots().by_id(ancestor(target, back).snapshot_id).commit()
        case Rollback(back=back):
            target.manage_snapshots().rollback_to_snapshot(ancestor(target, back).snapshot_id).commit()
        case _:
            raise TypeError(operation)
