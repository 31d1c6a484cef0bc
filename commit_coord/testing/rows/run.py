"""Performs programs against real clients on one table, and holds each step against the model.

Clients ``a`` and ``b`` have catalogs of their own on one SQLite database, ``s`` is PyIceberg's. Each keeps the table as
it saw it last until it looks again. After each step:

* It was refused: the table is as before, the error says so in words, and the refusal was justified: the model says why,
  or PyIceberg refuses the same on the same table.
* It landed: the table is one of the states that the model allows, for our own look at the files and for each reader.
* The metadata fits the files, and every new file is reachable.
"""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
import logging
import math
import os
import shutil
import sqlite3
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.exceptions
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import ListType, MapType, NestedField, StructType
from pyiceberg.utils.concurrent import ExecutorFactory

import commit_coord
from commit_coord import sql
from commit_coord.errors import CommitConflict, CommitCoordError, CommitStateUnknown, LockError
from commit_coord.table.data_files import data_files
from commit_coord.testing.rows import limits, metadata, readers
from commit_coord.testing.rows.metadata import Files, Observed
from commit_coord.testing.rows.model import (
    MAIN,
    Always,
    And,
    Compare,
    In,
    IsNull,
    Named,
    Not,
    NotNull,
    Or,
    Row,
    State,
    Stated,
    Where,
    bound,
    canonical,
    complete,
    leaves,
    paths,
    value_at,
)
from commit_coord.testing.rows.operations import (
    OURS_ALONE,
    STATEMENTS,
    AddColumn,
    AddFiles,
    AddPartition,
    Append,
    CommitFiles,
    Compact,
    Concatenate,
    Delete,
    DropColumn,
    DropPartition,
    DropRef,
    DynamicOverwrite,
    Expected,
    Expire,
    ExpireOne,
    Insert,
    InsertSelect,
    MakeRef,
    MoveFirst,
    Operation,
    Orphans,
    Overwrite,
    Promote,
    Race,
    Recreate,
    Refresh,
    RenameColumn,
    Require,
    Rollback,
    SetProperty,
    Single,
    SortBy,
    SqlDelete,
    SqlUpdate,
    Statement,
    SwapColumns,
    Transact,
    Truncate,
    UpdateRows,
    Upgrade,
    Upsert,
    WriteFiles,
    is_fresh,
    meaning,
    unnumbered,
)
from commit_coord.testing.rows.program import Look, Program, stock_call

NAMESPACE = "db"
_numbers = itertools.count(1)


class Finding(Exception):
    """What should not be.

    Args:
        kind: Stable: findings of one kind probably have one cause.
        text: What was expected and what came.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(f"{kind}: {text}")


class Spoilt(Exception):
    """Nothing more can be said of the table: above all, a late client of PyIceberg's broke it by itself."""


# Clients.


@dataclass
class Clients:
    """Catalogs on one database, for many programs.

    Args:
        folder: Where everything lies.
        locks: ``operation-locks`` of ours.
    """

    folder: Path
    locks: str
    catalogs: dict[str, Any] = field(default_factory=dict)
    lock_impl: ClassVar[str] = "memory"

    def __post_init__(self) -> None:
        """Open them."""
        self.database = self.folder / "catalog.db"
        uri, warehouse = f"sqlite:///{self.database}", f"file://{self.folder}/warehouse"
        for name in ("a", "b"):
            self.catalogs[name] = commit_coord.load_catalog(
                "rows",
                uri=f"coord+{uri}",
                warehouse=warehouse,
                **{
                    "lock-impl": self.lock_impl,
                    "operation-locks": self.locks,
                    "lock.acquire-timeout-ms": "150",
                },
            )
        self.catalogs["s"] = SqlCatalog("rows", uri=uri, warehouse=warehouse)
        self.catalogs["s"].create_namespace(NAMESPACE)
        self._connection = sqlite3.connect(self.database)

    def pointer(self, table: str) -> str | None:
        """Return where the metadata of *table* is."""
        found = self._connection.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", (table,)
        ).fetchone()
        return found and str(found[0])

    def doing(self, folder: Path, files: Files) -> Any:
        """Return what does operations."""
        return Doing(folder, files)

    def close(self) -> None:
        """Close them."""
        self._connection.close()
        for catalog in self.catalogs.values():
            catalog.close()


@contextmanager
def clients(locks: str, folder: Path | None = None) -> Iterator[Clients]:
    """Yield clients in *folder*, which stays, or in one of their own, in memory where there is such a place."""
    if folder is not None:
        folder.mkdir(parents=True)
        kept = Clients(folder, locks)
        try:
            yield kept
        finally:
            kept.close()
        return
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rows-", dir=memory) as own:
        made = Clients(Path(own), locks)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what PyIceberg prints, logs and warns of when it refuses something."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


# What clients do.


def arrow(rows: Iterable[Named], schema: Schema) -> pa.Table:
    """Return rows as a user would pass them: with the columns of *schema*, nullable where a value is missing."""
    made = schema_to_pyarrow(schema, include_field_ids=False)
    fields = schema.as_struct()
    named = [dict(row) for row in rows]
    if not all(complete(canonical(row, fields), fields) for row in named):
        made = pa.schema([f.with_nullable(True) for f in made])
    return pa.Table.from_pylist(named, schema=made)


_READ_EACH = 3
"""So many steps; the files are judged after each, and what is wrong for readers alone mostly stays so."""

_MEMORY = "/dev/shm"  # noqa: S108 - a folder in it gets a name of its own # nosec B108

_METADATA = "metadata: "

_LANDED = "it has landed before"

ALONE = "PyIceberg alone: "
"""What a finding's kind begins with where none of our code had a part in it."""

Written = tuple[list[Any], int]
"""Data files, and the id of the schema that they were written with."""


@dataclass
class Doing:
    """What operations need beside the table.

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
                    file.spec_id = table.metadata.default_spec_id  # as whoever commits files of others must say
                self.slots[slot] = made, table.schema().schema_id
            case CommitFiles(slot=slot, mode=mode, where=where):
                ours: Any = table
                files, written = self.slots[slot]
                request = {"request_id": f"{table.metadata.table_uuid} {slot}"} if operation.named else {}
                condition, said = readers.expression(where), written if operation.told else None
                ours.commit_files(files, mode=mode, overwrite_filter=condition, schema_id=said, **request)
            case Compact():
                ours = table
                ours.compact()
            case Orphans():
                keeper: Any = table.catalog
                keeper.delete_orphans(keeper.find_orphans(table.name(), older_than_ms=0, force=True))
            case UpdateRows() | SetProperty() | Upgrade():
                with table.transaction() as transaction:
                    self.call(operation, transaction, table.schema())
            case _ if isinstance(operation, STATEMENTS):
                catalog: Any = table.catalog
                sql.run(text_of(operation, table.name()[-1], table.schema()), catalog, database=NAMESPACE)
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
            case AddFiles(rows=rows):
                target.add_files([self._foreign(rows, schema)])
            case UpdateRows(where=where, sets=sets, branch=branch):
                target.update_rows(readers.expression(where), lambda found: _set(found, dict(sets)), branch=branch)
            case SetProperty(key=key, value=value):
                target.set_properties({key: value})
            case Upgrade():
                target.upgrade_table_version(2)
            case _:
                _change(operation, target)

    def _foreign(self, rows: Iterable[Named], schema: Schema) -> str:
        path = self.folder / f"foreign-{next(_numbers)}.parquet"
        pq.write_table(arrow(rows, schema), path)
        made: list[Row] = [canonical(row, schema.as_struct()) for row in rows]
        self.files.rows[str(path)] = made
        return str(path)


def _lands_under_no_name(one: Single, other: Single) -> bool:
    """Return whether *other* commits the files of *one* under no request id, which no request id can find out."""
    return (
        isinstance(one, CommitFiles)
        and isinstance(other, CommitFiles)
        and (one.slot, one.named, other.named) == (other.slot, True, False)
    )


def _settle() -> None:
    """Wait until PyIceberg's threads have nothing to do: when one of them fails, it does not wait for the others."""
    pool: Any = ExecutorFactory.get_or_create()
    together = threading.Barrier(pool._max_workers)
    for done in [pool.submit(together.wait) for _ in range(pool._max_workers)]:
        done.result()


def _set(rows: pa.Table, sets: dict[str, Any]) -> pa.Table:
    for column, value in sets.items():
        index = rows.schema.get_field_index(column)
        try:
            made = pa.array([value] * rows.num_rows, rows.schema.field(index).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            # Under a lock the function is given the table as it is, where the name may be another column's.
            raise ValueError(f"the column {column} can't have {value!r}") from error
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
            target.maintenance.expire_snapshots().by_id(_ancestor(target, back)).commit()
        case Rollback(back=back):
            target.manage_snapshots().rollback_to_snapshot(_ancestor(target, back)).commit()
        case _:
            raise TypeError(operation)


def _ancestor(table: Table, back: int) -> int:
    """Return the snapshot that is so many behind the head of the main branch.

    Raises:
        ValueError: There is none.
    """
    found = table.current_snapshot()
    for _ in range(back):
        found = table.snapshot_by_id(found.parent_snapshot_id) if found and found.parent_snapshot_id else None
    if found is None:
        raise ValueError("there are not so many snapshots")
    return found.snapshot_id


# Statements.


def text_of(operation: Statement, table: str, schema: Schema) -> str:
    """Return *operation* as it is typed."""
    match operation:
        case Insert(columns=columns, values=values, overwrite=overwrite):
            lines = ", ".join(f"({', '.join(map(literal, line))})" for line in values)
            return f"INSERT {'OVERWRITE' if overwrite else 'INTO'} {table} ({', '.join(columns)}) VALUES {lines}"
        case InsertSelect(where=where, overwrite=overwrite):
            kind = "OVERWRITE" if overwrite else "INTO"
            return f"INSERT {kind} {table} SELECT * FROM {table}{where_text(where)}"
        case SqlUpdate(where=where, sets=sets):
            changes = ", ".join(f"{column} = {literal(value)}" for column, value in sets)
            return f"UPDATE {table} SET {changes}{where_text(where)}"
        case SqlDelete(where=where):
            return f"DELETE FROM {table}{where_text(where)}"
        case Truncate():
            return f"TRUNCATE TABLE {table}"
        case Concatenate():
            return f"ALTER TABLE {table} CONCATENATE"


def where_text(where: Where) -> str:
    """Return the clause of a statement that means *where*; "" for every row."""
    return "" if isinstance(where, Always) else f" WHERE {_condition(where)}"


def _condition(where: Where) -> str:
    match where:
        case Stated(inner=inner):
            return _condition(inner)
        case Not(inner=inner):
            return f"NOT ({_condition(inner)})"
        case And(left=left, right=right):
            return f"({_condition(left)} AND {_condition(right)})"
        case Or(left=left, right=right):
            return f"({_condition(left)} OR {_condition(right)})"
        case IsNull(column=column):
            return f"{column} IS NULL"
        case NotNull(column=column):
            return f"{column} IS NOT NULL"
        case In(column=column, values=values):
            return f"{column} IN ({', '.join(map(literal, values))})"
        case Compare(column=column, op=op, value=value):
            return f"{column} {'=' if op == '==' else op} {literal(value)}"
    raise TypeError(where)


def literal(value: Any) -> str:
    """Return a constant as it is typed."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case str():
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime() if value.tzinfo is None:
            return f"TIMESTAMP '{value}'"
        case dt.datetime() | dt.time():
            return f"'{value}'"
        case dt.date():
            return f"DATE '{value}'"
        case Decimal():
            return f"{value:f}"
        case float() if not math.isfinite(value):
            return f"CAST('{value}' AS DOUBLE)"
    return repr(value)


# The run.


@dataclass
class Run:
    """One program on one table of its own.

    Args:
        clients: Who does it.
        program: What is done.
        look: Reads everything with every reader after each step, not in the end alone.
    """

    clients: Clients
    program: Program
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Make the table."""
        self.name = f"t{next(_numbers)}"
        self.files = Files()
        self.folder = self.clients.folder / self.name
        self.folder.mkdir()
        self.doing = self.clients.doing(self.folder, self.files)
        self.slots: dict[str, tuple[State, tuple[Row, ...]]] = {}
        self.states: dict[str, State] = {}
        self.landed: set[tuple[str, str]] = set()
        self.plain: set[tuple[str, str]] = set()
        self.reached: set[str] = set()
        self.left: set[str] = set()
        self.depth = 0
        self.merges = False
        self.nested: Exception | None = None
        self.steps = 0
        self.unread = False
        self.handles: dict[str, Table] = {}
        # What is edited, our catalogs must not have seen: they know that metadata files don't change.
        self._create(self.clients.catalogs["a" if self.program.version <= 2 else "s"])
        for name, catalog in self.clients.catalogs.items():
            self.handles[name] = catalog.load_table((NAMESPACE, self.name))
        self.head = self._seen()
        self.states[self.head.location] = self.head.state
        self._judge_files(None)

    def _create(self, catalog: Any) -> None:
        program = self.program
        schema = Schema(*program.columns)
        spec = PartitionSpec(
            *(
                PartitionField(p.source, 1000 + i, parse_transform(p.transform), p.name)
                for i, p in enumerate(program.spec)
            )
        )
        version = str(min(program.version, 2))  # of a newer one PyIceberg makes none
        properties = {"format-version": version, "commit.retry.min-wait-ms": "1", **program.properties}
        made = catalog.create_table((NAMESPACE, self.name), schema, partition_spec=spec, properties=properties)
        if program.version > 2:
            path = Path(metadata.local(made.metadata_location))
            path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 0}))

    @property
    def state(self) -> State:
        """Return the table as it is."""
        return self.states[self.head.location]

    def base(self, client: str) -> State:
        """Return the table as *client* sees it."""
        location: str = self.handles[client].metadata_location
        return self.states[location]

    def _seen(self) -> Observed:
        location = self.clients.pointer(self.name)
        if location is None:
            raise Finding("gone", "the table is not in the catalog")
        return Observed(location, self.files)

    def close(self) -> None:
        """Leave nothing behind."""
        with suppress(Exception):
            self.clients.catalogs["s"].drop_table((NAMESPACE, self.name))
        for path in (self.folder, self.clients.folder / "warehouse" / NAMESPACE / self.name):
            shutil.rmtree(path, ignore_errors=True)

    # One step.

    def step(self, operation: Operation | Look) -> None:
        """Do *operation* and judge what came of it.

        Raises:
            Finding: It is wrong.
        """
        if isinstance(operation, Look):
            self._look(operation.where)
            return
        race = operation if isinstance(operation, Race) else None
        one: Single = race.one if race is not None else operation  # type: ignore[assignment]
        if isinstance(one, CommitFiles) and not self._can_be_committed(one):
            return
        self.steps += 1
        if self.is_stock(one) and self.head.location != self.handles[one.client].metadata_location:
            self.finish()  # what its late commit breaks is told from what was broken before
        before = self.state
        base = before if is_fresh(one) or isinstance(one, Orphans) else self.base(one.client)
        with self._racing(race):
            error = self._do(one)
        if self.nested is not None:
            found, self.nested = self.nested, None
            raise found
        self._judge(one, base, before, error)

    def is_stock(self, operation: Operation) -> bool:
        """Return whether PyIceberg alone does *operation*."""
        return operation.client == "s"

    def _do(self, operation: Single) -> Exception | None:
        table = self.handles[operation.client]
        if is_fresh(operation):
            table = self.clients.catalogs[operation.client].load_table((NAMESPACE, self.name))
        try:
            with quiet():
                if isinstance(operation, Recreate):
                    self._recreate(operation.client, purge=operation.purge)
                else:
                    self.doing(operation, table)
        except Exception as error:  # noqa: BLE001 - each is judged
            return error
        return None

    def _recreate(self, client: str, *, purge: bool) -> None:
        catalog, name = self.clients.catalogs[client], (NAMESPACE, self.name)
        old = catalog.load_table(name)
        (catalog.purge_table if purge else catalog.drop_table)(name)
        self.handles[client] = catalog.create_table(
            name,
            old.schema(),
            partition_spec=old.spec(),
            properties={**old.properties, "format-version": str(old.format_version)},
        )

    @contextmanager
    def _racing(self, race: Race | None) -> Iterator[None]:
        """Do what others do right before the commit of what is done inside."""
        if race is None:
            yield
            return
        others = [other for other in race.others if not _lands_under_no_name(race.one, other)]
        catalog = self.clients.catalogs[race.client]
        owner, name = (catalog, "commit_table") if self.is_stock(race) else (catalog.coordinator, "commit")
        real: Callable[..., Any] = getattr(owner, name)
        busy = [race.client]

        def meanwhile(left: int = 0) -> None:
            self.depth += 1
            try:
                # Not between the calls of a transaction of the same client: what it commits, the transaction has seen.
                while len(others) > left and others[0].client not in busy:
                    busy.append(others[0].client)
                    self.step(others.pop(0))
                    busy.pop()
            except Exception as found:  # noqa: BLE001 - none of the product's: it must not seem to come from there
                self.nested = self.nested or found
                others.clear()
            finally:
                self.depth -= 1

        def commit(*args: Any, **kwargs: Any) -> Any:
            if race.again and len(others) > 1 and (replan := kwargs.get("replan")):
                meanwhile(1)

                def planned(*about: Any) -> Any:
                    made = replan(*about)
                    meanwhile()
                    return made

                return real(*args, **{**kwargs, "replan": planned})
            meanwhile()
            return real(*args, **kwargs)

        setattr(owner, name, commit)
        self.doing.between, before = meanwhile if race.early else self.doing.between, self.doing.between
        try:
            yield
        finally:
            delattr(owner, name)
            self.doing.between = before

    # Judgement.

    def _judge(self, operation: Single, base: State, before: State, error: Exception | None) -> None:
        head, kind = self.state, type(operation).__name__
        old = self.head
        if isinstance(operation, Recreate) and error and in_words(error) and self.clients.pointer(self.name) is None:
            raise Spoilt(f"the table was dropped, and one like it is refused: {error}")
        try:
            self.head = self._seen()
            now = self.head.state
        except Finding:
            raise
        except Exception as reason:
            raise Finding(f"{kind} unreadable", f"{operation}: {type(reason).__name__}: {reason}") from reason
        self._count(operation, base is not head, error, changed=self.head.location != old.location)
        expected = meaning(operation, base, head, self.slots)
        asks = not self.is_stock(operation) and self.head.location != old.location
        if isinstance(operation, Expire | ExpireOne) and not expected.states and not asks:
            expected = Expected((head,), expected.refusable)  # PyIceberg does not ask; nor do we, for no snapshot
        if isinstance(operation, CommitFiles) and operation.named:
            if (head.uuid, operation.slot) in self.landed:
                expected = Expected((head,), _LANDED)
            elif error is None:
                self.landed.add((head.uuid, operation.slot))
        if isinstance(operation, CommitFiles) and not operation.named and error is None:
            self.plain.add((head.uuid, operation.slot))
        if isinstance(operation, CommitFiles) and expected.refusable != _LANDED and self._are_there(operation, old):
            # What replaces rows may have replaced these files before it adds them.
            states = () if operation.mode == "append" else expected.states
            expected = Expected(states, "the files are in the table already")
        if error is None:
            # PyIceberg's retries check less than ours; what its late clients may do is its own affair.
            if not self.is_stock(operation) or base is head:
                self._judge_landed(operation, expected, now, head)
        else:
            self._judge_refused(operation, base, head, now, expected, error)
        late = self.is_stock(operation) and base is not head
        if late and not _complete(now):
            raise Spoilt("a late client left a required value out, or gave a column the id of another one")
        if isinstance(operation, Require) and not all(complete(row, now.fields) for row in now.of()):
            raise Spoilt("a column became required that holds NULL")
        added = self.is_stock(operation) and isinstance(operation, AddFiles) and operation.rows and error is None
        if added and any(now.mapping.get(path) != key for path, key in paths(now.fields)):
            raise Spoilt("files were added whose columns are not in the name mapping, which a late client had made")
        self.states[self.head.location] = now
        if isinstance(operation, WriteFiles) and error is None:
            self._keep(operation)
        if isinstance(operation, Orphans) and error is None:
            self.slots.clear()  # nothing refers to these files
            if missing := [path for path in metadata.reachable(self.head) if not os.path.exists(path)]:
                raise Finding("Orphans took live files", ", ".join(map(os.path.basename, missing)))
        if self.is_stock(operation) or isinstance(operation, WriteFiles):
            if error is not None:
                _settle()
            self.left |= self._unreached()  # PyIceberg's own leftovers
        if self.head.location != old.location:
            try:
                self._judge_files(old)
                self.unread = True
                late = self.is_stock(operation) and base is not head
                if late or self.steps % _READ_EACH == 0:
                    self.finish()
            except Finding as found:
                if self.is_stock(operation) and base is not head:
                    raise Spoilt(str(found)) from found
                if self.is_stock(operation) and found.kind.startswith(_METADATA):
                    raise Finding(ALONE + found.kind, found.text) from found
                raise
        elif self.depth == 0:
            self._judge_leaks(kind)

    def _can_be_committed(self, operation: CommitFiles) -> bool:
        """Return whether there are such files, and nothing is asked for that no call can find out to be wrong.

        A file does not say which table it was written for. And a request id does not say that the same files have been
        committed under none.
        """
        if operation.slot not in self.slots:
            return False
        uuid = self.slots[operation.slot][0].uuid
        return uuid == self.base(operation.client).uuid and not (
            operation.named and (uuid, operation.slot) in self.plain
        )

    def _are_there(self, operation: CommitFiles, table: Observed) -> bool:
        """Return whether a file of *operation* was in the main branch of *table*."""
        written, _ = self.doing.slots[operation.slot]
        head = table.raw.get("current-snapshot-id")
        there = {file.path for file in table.live(head)} if head in table.snapshots else set()
        return not there.isdisjoint(file.file_path for file in written)

    def _count(self, operation: Single, late: bool, error: Exception | None, *, changed: bool) -> None:
        """Count what was done: how it ended, and whether its client saw the table as it was."""
        end = "refused" if error is not None else "landed" if changed else "had nothing to do"
        self.counts[f"{type(operation).__name__} {end}"] += 1
        self.counts[f"{'on an old table' if late else 'on the table as it is'}: {end}"] += 1

    def _keep(self, operation: WriteFiles) -> None:
        written, _ = self.doing.slots[operation.slot]
        self.left |= {metadata.local(file.file_path) for file in written}
        rows = tuple(row for file in written for row in self.files.data(file.file_path))
        self.slots[operation.slot] = (self.base(operation.client), rows)

    def _judge_landed(self, operation: Single, expected: Expected, now: State, head: State) -> None:
        kind, by = type(operation).__name__, ALONE if self.is_stock(operation) else ""
        if not expected.states:
            raise Finding(f"{by}{kind} landed", f"{operation} must not land: {expected.refusable}")
        found = [difference(state, now, head) for state in expected.states]
        if all(found):
            raise Finding(f"{by}{kind} wrong", f"{operation}: {min(map(str, found), key=len)}")

    def _judge_refused(
        self, operation: Single, base: State, head: State, now: State, expected: Expected, error: Exception
    ) -> None:
        kind = type(operation).__name__
        said = f"{type(error).__name__}: {error}"
        if found := difference(head, now, head):
            raise Finding(f"{kind} refused but landed", f"{operation} raised {said}; {found}")
        if self.is_stock(operation) or isinstance(operation, WriteFiles | Refresh):
            return
        if isinstance(error, CommitStateUnknown):
            raise Finding(f"{kind} unknown", f"{operation}: {said}") from error
        if self.depth and isinstance(error, LockError | CommitCoordError) and "lock" in str(error):
            return  # who is raced holds locks
        if not in_words(error) and self._stock_says(operation) != type(error).__name__:
            raise Finding(f"{kind} raw {type(error).__name__}", f"{operation} raised {said}") from error
        if not all(complete(row, head.fields) for row in head.rows.get(MAIN, ())):
            return  # a late PyIceberg client left a required value out: nobody can write that row anew
        if base is not head and isinstance(error, CommitConflict) and "a file is gone" in said:
            return  # its snapshot was expired, and the files with it
        if (
            expected.states
            and not expected.refusable
            # PyIceberg's upsert trips over columns that have changed since the last snapshot, and ours must not.
            and not (
                not isinstance(operation, OURS_ALONE)
                and self._stock_says(operation, anew=isinstance(operation, Upsert))
            )
        ):
            raise Finding(f"{kind} refused", f"{operation} must land, and was refused: {said}") from error

    def _stock_says(self, operation: Single, *, anew: bool = False) -> str:
        """Return the name of the error by which PyIceberg refuses *operation* on the table as it is; "" if none.

        Args:
            operation: What is asked for.
            anew: On a table of the same columns and rows that was just made: nothing has ever been changed in it.
        """
        asked = stock_call(operation)
        if asked is None or isinstance(asked, Recreate):
            return ""
        before = self._on_disk()
        catalog = SqlCatalog("shadow", uri="sqlite:///:memory:", warehouse=f"file://{self.folder}/shadow")
        try:
            catalog.create_namespace(NAMESPACE)
            table = catalog.register_table((NAMESPACE, self.name), self.head.location)
            with quiet():
                if anew:
                    rows = table.scan().to_arrow()
                    table = catalog.create_table((NAMESPACE, "anew"), rows.schema)
                    table.append(rows)
                Doing(self.folder, Files())(asked, table)
        except Exception as error:  # noqa: BLE001 - that is what is asked for
            return type(error).__name__
        finally:
            catalog.close()
            for path in self._on_disk() - before:
                os.unlink(path)
        return ""

    # Files.

    def _judge_files(self, old: Observed | None) -> None:
        self.reached |= set(metadata.reachable(self.head))
        for fault in metadata.faults(self.head, old):
            raise Finding(_METADATA + fault.split(":")[0], fault)
        if self.depth == 0:
            self._judge_leaks("")

    def _judge_leaks(self, kind: str) -> None:
        if leaked := self._unreached() - self.left:
            self.left |= leaked
            raise Finding(f"{kind} leak".strip(), ", ".join(sorted(os.path.basename(path) for path in leaked)))

    def _on_disk(self) -> set[str]:
        location = metadata.local(self.head.raw["location"])
        return {os.path.join(folder, name) for folder, _, names in os.walk(location) for name in names}

    def _unreached(self) -> set[str]:
        found = self._on_disk() - self.reached
        self.merges |= self.head.raw.get("properties", {}).get("commit.manifest-merge.enabled") == "true"
        if self.merges:
            # PyIceberg leaves a manifest that it wrote and merged into another one before the commit.
            found = {path for path in found if not path.endswith(".avro")}
        return found

    # Readers.

    def end(self) -> None:
        """Read the table for the last time, also with a condition on each column that tells some rows from others.

        Raises:
            Finding: A reader does not find the rows.
        """
        self.finish()
        for where in telling(self.state):
            self._look(where)

    def finish(self) -> None:
        """Read the whole table with every reader, if it has changed since that was done.

        Raises:
            Finding: One does not find the rows.
        """
        if self.unread:
            self.unread = False
            self._look(Always())

    def _look(self, where: Where) -> None:
        """Read the table with every reader, and compare."""
        state, schema = self.state, self.head.schema
        if not state.fields.fields:
            return  # no reader counts the rows of a table without columns
        try:
            matches = bound(where, state.fields)
        except LookupError:
            return
        except Exception:  # noqa: BLE001 - of a column that went
            return
        expected = Counter(filter(matches, state.of().elements()))
        for name, read in readers.READERS.items():
            if limit := next(_LIMITS[name](self.head, where), "") if name in _LIMITS else "":
                self.counts[f"not read by {name}: {limit}"] += 1
                continue
            self.counts[f"read by {name}"] += 1
            try:
                found = read(self.head.location, schema, where)
            except Exception as error:
                if why := limits.known(name, error):
                    self.counts[f"not read by {name}: {why}"] += 1
                    continue
                raise Finding(
                    f"{name} can't read {type(error).__name__}", f"{where}: {type(error).__name__}: {error}"
                ) from error
            wanted = expected
            if name == "pyiceberg":
                wanted, found = (readers.as_pyiceberg_shows(one, state.fields) for one in (expected, found))
            if found != wanted:
                scan = "scan" if isinstance(where, Always) else "filter"
                raise Finding(f"{name} {scan}", f"{where}: {_bags(wanted, found)}")


def telling(state: State) -> Iterator[Where]:
    """Yield a condition on each column of single values, that some row of the table satisfies if one has a value."""
    rows = sorted(state.of(), key=repr)
    for at, (path, field_ids) in enumerate(leaves(state.fields)):
        values = [
            value
            for row in rows
            if (value := value_at(row, field_ids)) is not None and not (isinstance(value, float) and math.isnan(value))
        ]
        turn = (at + len(rows)) % 3
        if not values or turn == 0:
            yield IsNull(path)
        else:
            yield Compare(path, "==" if turn == 1 else "<=", values[at % len(values)])


_LIMITS: dict[str, Callable[[Observed, Where], Iterator[str]]] = {
    "duckdb": limits.duckdb,
    "pyiceberg": limits.pyiceberg,
    "ours": limits.no_columns,
}

_WORDS = (
    CommitCoordError,
    ValueError,
    NotImplementedError,
    *(
        thing
        for thing in vars(pyiceberg.exceptions).values()
        if isinstance(thing, type) and issubclass(thing, Exception)
    ),
)


def _complete(state: State) -> bool:
    """Return whether each row has what the columns require, and values of their types at all."""
    try:
        return all(complete(row, state.fields) for rows in state.rows.values() for row in rows)
    except (TypeError, ValueError):  # a map where a number is
        return False


def in_words(error: Exception) -> bool:
    """Return whether *error* was raised on purpose, and says something."""
    return isinstance(error, _WORDS) and bool(str(error))


def _bags(wanted: Counter[Row], found: Counter[Row]) -> str:
    missing, more = wanted - found, found - wanted
    return f"missing {_few(missing)}, not expected {_few(more)}"


def _few(rows: Counter[Row]) -> str:
    some = [repr(row)[:300] for row in rows.elements()]
    return "nothing" if not some else ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")


def difference(wanted: State, found: State, head: State) -> str | None:
    """Return how *found* differs from *wanted*; *head* is what was there before."""
    if (wanted.uuid or found.uuid) != found.uuid or (not wanted.uuid and found.uuid == head.uuid):
        return "it is another table"
    fields = wanted.fields if wanted.uuid else unnumbered(wanted.fields)
    if not _same_type(fields, found.fields, head.last_id if wanted.uuid else 0):
        return f"the columns are {found.fields}, of {wanted.fields}"
    for name in {*wanted.rows, *found.rows}:
        rows = Counter(State("", found.fields, {"": wanted.rows.get(name, ())}).of(""))
        if rows != found.of(name):
            return f"{name}: {_bags(rows, found.of(name))}"
        if name != MAIN and (name in wanted.rows) != (name in found.rows):
            return f"{name} is {'missing' if name in wanted.rows else 'there'}"
    for key, one, other in (
        ("spec", _spec(wanted), _spec(found)),
        ("order", _order(wanted), _order(found)),
        *((key, getattr(wanted, key), getattr(found, key)) for key in ("tags", "properties", "version")),
    ):
        if one != other:
            return f"{key} is {other}, of {one}"
    return None


def _name(state: State, field_id: int) -> str | None:
    return next((f.name for f in state.fields.fields if f.field_id == field_id), None)


def _spec(state: State) -> list[tuple[Any, ...]]:
    return [(_name(state, p.source), p.transform, p.name) for p in state.spec]


def _order(state: State) -> list[tuple[Any, ...]]:
    return [(_name(state, source), *rest) for source, *rest in state.order]


def _same_type(wanted: Any, found: Any, last_id: int) -> bool:
    """Return whether two types are the same; where *wanted* has the id -1, *found* must have a new one."""
    if type(wanted) is not type(found):
        return False
    match wanted:
        case StructType(fields=fields):
            return len(fields) == len(found.fields) and all(
                _same_type(one, other, last_id) for one, other in zip(fields, found.fields, strict=True)
            )
        case NestedField():
            return (
                (wanted.name, wanted.required) == (found.name, found.required)
                and _same_id(wanted.field_id, found.field_id, last_id)
                and _same_type(wanted.field_type, found.field_type, last_id)
            )
        case ListType():
            return _same_type(wanted.element_field, found.element_field, last_id)
        case MapType():
            return _same_type(wanted.key_field, found.key_field, last_id) and _same_type(
                wanted.value_field, found.value_field, last_id
            )
    return bool(wanted == found)


def _same_id(wanted: int, found: int, last_id: int) -> bool:
    return found > last_id if wanted == -1 else wanted == found
