"""The operations of programs, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyiceberg.types import IcebergType

from commit_coord.model import WriteMode
from commit_coord.testing.table_files.state import State
from commit_coord.testing.table_files.values import MAIN, Named, Row
from tests.proof.rows.model.conditions import Always, Where
from tests.proof.rows.model.spellings import Spelling

# What there is.


@dataclass(frozen=True)
class Refresh:
    """The client looks at the table again."""

    client: str


@dataclass(frozen=True)
class Append:
    """``append(rows)``."""

    client: str
    rows: tuple[Named, ...]
    branch: str = MAIN


@dataclass(frozen=True)
class Overwrite:
    """``overwrite(rows, where)``; *given*: ``reads=NOTHING``, its rows were computed from none of the table."""

    client: str
    rows: tuple[Named, ...]
    where: Where = Always()  # noqa: RUF009 - frozen
    branch: str = MAIN
    given: bool = False


@dataclass(frozen=True)
class Delete:
    """``delete(where)``."""

    client: str
    where: Where
    branch: str = MAIN


@dataclass(frozen=True)
class Upsert:
    """``upsert(rows, join_cols=keys)``."""

    client: str
    rows: tuple[Named, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class DynamicOverwrite:
    """``dynamic_partition_overwrite(rows)``."""

    client: str
    rows: tuple[Named, ...]


@dataclass(frozen=True)
class AddFiles:
    """A Parquet file without field ids is written elsewhere, and ``add_files`` takes it in.

    Args:
        client: Who calls it.
        rows: What the file holds.
        spelling: Of its location.
    """

    client: str
    rows: tuple[Named, ...]
    spelling: Spelling = ""


@dataclass(frozen=True)
class WriteFiles:
    """The client writes data files of *rows* for what it sees, and keeps them under the name *slot*."""

    client: str
    rows: tuple[Named, ...]
    slot: str


@dataclass(frozen=True)
class CommitFiles:
    """``commit_files`` of the files in *slot*.

    Args:
        client: Who commits them.
        slot: Which files.
        mode: What they replace.
        where: What they replace.
        named: With a request id that is the slot's.
        with_schema_id: With the id of the schema that they were written with; else it is that of the client's table.
    """

    client: str
    slot: str
    mode: WriteMode = "append"
    where: Where = Always()  # noqa: RUF009 - frozen
    named: bool = False
    with_schema_id: bool = True


@dataclass(frozen=True)
class UpdateRows:
    """``update_rows(where, change)``, which sets columns to constants."""

    client: str
    where: Where
    sets: tuple[tuple[str, Any], ...]
    branch: str = MAIN


@dataclass(frozen=True)
class Compact:
    """``compact()``."""

    client: str


# Statements; each sees the table as it is when it starts.


@dataclass(frozen=True)
class Insert:
    """``INSERT INTO | OVERWRITE t [(columns)] VALUES ...``."""

    client: str
    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    overwrite: bool = False


@dataclass(frozen=True)
class InsertSelect:
    """``INSERT INTO | OVERWRITE t SELECT * FROM t WHERE ...``."""

    client: str
    where: Where
    overwrite: bool = False


@dataclass(frozen=True)
class SqlUpdate:
    """``UPDATE t SET ... WHERE ...``."""

    client: str
    where: Where
    sets: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class SqlDelete:
    """``DELETE FROM t WHERE ...``."""

    client: str
    where: Where


@dataclass(frozen=True)
class Truncate:
    """``TRUNCATE TABLE t``."""

    client: str


@dataclass(frozen=True)
class Concatenate:
    """``ALTER TABLE t CONCATENATE``."""

    client: str


# What only other engines do.


@dataclass(frozen=True)
class DeletePositions:
    """An engine that merges on read deletes the rows of the main branch that satisfy *where*: by files of positions.

    Args:
        client: Whose catalog it commits through.
        where: Which rows.
        apart: It writes a file of deletes for each data file, else one for each partition.
    """

    client: str
    where: Where
    apart: bool = False


@dataclass(frozen=True)
class DeleteValues:
    """An engine that merges on read deletes the rows of the main branch that have the values of one of *rows*.

    Args:
        client: Whose catalog it commits through.
        columns: Which values count; NULL equals NULL.
        rows: The values.
    """

    client: str
    columns: tuple[str, ...]
    rows: tuple[Named, ...]


# Changes of the table.


@dataclass(frozen=True)
class AddColumn:
    """A new last column, or field of a struct."""

    client: str
    column: str
    kind: IcebergType


@dataclass(frozen=True)
class DropColumn:
    """A column goes, with its values."""

    client: str
    column: str


@dataclass(frozen=True)
class RenameColumn:
    """A column has another name."""

    client: str
    column: str
    to: str


@dataclass(frozen=True)
class SwapColumns:
    """Two columns exchange their names, in one transaction."""

    client: str
    one: str
    other: str


@dataclass(frozen=True)
class Promote:
    """A column gets a wider type."""

    client: str
    column: str
    kind: IcebergType


@dataclass(frozen=True)
class Require:
    """A column is required from now on, or no more."""

    client: str
    column: str
    required: bool


@dataclass(frozen=True)
class MoveFirst:
    """A column comes first."""

    client: str
    column: str


@dataclass(frozen=True)
class AddPartition:
    """The spec gets a field."""

    client: str
    column: str
    transform: str
    name: str


@dataclass(frozen=True)
class DropPartition:
    """The spec loses a field."""

    client: str
    name: str


@dataclass(frozen=True)
class SortBy:
    """The table is sorted by one column."""

    client: str
    column: str


@dataclass(frozen=True)
class Upgrade:
    """Format version 1 becomes 2."""

    client: str


@dataclass(frozen=True)
class SetProperty:
    """A property gets a value."""

    client: str
    key: str
    value: str


@dataclass(frozen=True)
class MakeRef:
    """A branch or tag at the head of the main branch."""

    client: str
    name: str
    kind: Literal["branch", "tag"]


@dataclass(frozen=True)
class DropRef:
    """A branch or tag goes."""

    client: str
    name: str
    kind: Literal["branch", "tag"]


@dataclass(frozen=True)
class Expire:
    """All snapshots are removed that no branch or tag refers to."""

    client: str


@dataclass(frozen=True)
class ExpireOne:
    """The snapshot that is so many behind the head of the main branch goes."""

    client: str
    back: int


@dataclass(frozen=True)
class Rollback:
    """The main branch goes back by so many snapshots."""

    client: str
    back: int


@dataclass(frozen=True)
class Recreate:
    """The table is dropped, and an empty one of the same columns made under its name; *purge*: with its files."""

    client: str
    purge: bool = False


@dataclass(frozen=True)
class Orphans:
    """The files that nothing refers to are deleted."""

    client: str


# Compositions.


@dataclass(frozen=True)
class Transact:
    """Calls in one transaction."""

    client: str
    calls: tuple[Call, ...]


class Elsewhere:
    """An operation that another module defines, and that says itself what it means.

    Args:
        client: Who does it.
    """

    client: str

    @property
    def fresh(self) -> bool:
        """It sees the table as it is when it starts, as a statement does."""
        return False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        raise NotImplementedError

    def after_drop(self, base: State, head: State) -> Expected:
        """Return what may come of it where its client saw *base*, and *head* is another table of that name."""
        return DROPPED


class TableStatement(Elsewhere):
    """A statement on partitions, branches, tags or snapshots; :mod:`table_statements` has them."""

    @property
    def fresh(self) -> bool:
        """It sees the table as it is when it starts."""
        return True

    def named_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the column and the value of each that it names."""
        return iter(())


@dataclass(frozen=True)
class AppendToNeighbour(Elsewhere):
    """The table that lies in the same folder gets a row; this one stays as it is."""

    client: str

    @property
    def fresh(self) -> bool:
        """It depends on nothing."""
        return True

    def meaning(self, base: State, head: State) -> Expected:
        """Return the table as it is."""
        return Expected((head,))


@dataclass(frozen=True)
class Race:
    """*one* is planned; then *others* are done, by other clients; then *one* commits.

    Args:
        one: What is raced.
        others: What comes between.
        early: Where *one* is a transaction: they are done behind its first call.
        again: The last of them is done when *one*, having lost the race, is planned again: it loses twice.
    """

    one: Single
    others: tuple[Single, ...]
    early: bool = False
    again: bool = False

    @property
    def client(self) -> str:
        """Return who does *one*."""
        return self.one.client


Structural = (
    AddColumn
    | DropColumn
    | RenameColumn
    | SwapColumns
    | Promote
    | Require
    | MoveFirst
    | AddPartition
    | DropPartition
    | SortBy
    | Upgrade
    | SetProperty
    | MakeRef
    | DropRef
    | Expire
    | ExpireOne
    | Rollback
    | Recreate
    | Orphans
)
Rows = Append | Overwrite | Delete | Upsert | DynamicOverwrite | AddFiles
Statement = Insert | InsertSelect | SqlUpdate | SqlDelete | Truncate | Concatenate
Call = Rows | UpdateRows | SetProperty | AddColumn | RenameColumn | DropColumn
Single = (
    Rows
    | WriteFiles
    | CommitFiles
    | UpdateRows
    | Compact
    | Statement
    | DeletePositions
    | DeleteValues
    | Structural
    | Transact
    | Refresh
    | Elsewhere
)
Operation = Single | Race

OURS_ALONE = (
    CommitFiles,
    WriteFiles,
    UpdateRows,
    Compact,
    Insert,
    InsertSelect,
    SqlUpdate,
    SqlDelete,
    Truncate,
    Concatenate,
    Elsewhere,
    Orphans,
)
"""What PyIceberg has no call for."""

STATEMENTS = (Insert, InsertSelect, SqlUpdate, SqlDelete, Truncate, Concatenate, TableStatement)


def is_fresh(operation: Single) -> bool:
    """Return whether *operation* sees the table as it is when it starts, whatever its client saw."""
    fresh = (*STATEMENTS, DeletePositions, DeleteValues)
    return isinstance(operation, fresh) or (isinstance(operation, Elsewhere) and operation.fresh)


@dataclass(frozen=True)
class Expected:
    """What may come of an operation.

    Args:
        states: One of them is the table when it has landed. None: it must not land.
        refusable: Why it may also be refused; "" where it must land, if it is valid at all.
    """

    states: tuple[State, ...]
    refusable: str = ""


REFUSED = Expected((), "it can't be carried out")
DROPPED = Expected((), "the table was dropped")

Slots = dict[str, tuple[State, tuple[Row, ...]]]
"""Files that were written: for which state of the table, and their rows."""
