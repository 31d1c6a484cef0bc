"""Parsed statements, before any table is read.

Names are as they were written; what they mean is the catalog's business. ``grammar`` makes these of text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlglot import expressions as sql

from commit_coord.iceberg.named_partitions import Value, as_text
from commit_coord.model import LockMode


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """A table.

    Args:
        table: Its name.
        database: None is the database in use.
    """

    table: str
    database: str | None = None

    def __str__(self) -> str:
        """Return ``db.table``."""
        return f"{self.database}.{self.table}" if self.database is not None else self.table


@dataclass(frozen=True, slots=True)
class PartitionClause:
    """``PARTITION (day='2026-01-01', hour)``: columns and values in the order in which they were written."""

    values: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        """Return it as it could be written."""
        return as_text(self.named)

    @property
    def named(self) -> Mapping[str, Value]:
        """Return it by column; no column comes twice."""
        return dict(self.values)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table as a statement declares it.

    Args:
        name: Its name.
        type: In sqlglot's terms.
        comment: "" is none.
    """

    name: str
    type: sql.DataType
    comment: str = ""


# Statements that look.


@dataclass(frozen=True, slots=True)
class Help:
    """``HELP``."""


@dataclass(frozen=True, slots=True)
class ShowDatabases:
    """``SHOW DATABASES [LIKE 'a*|b*']``."""

    pattern: str = "*"


@dataclass(frozen=True, slots=True)
class ShowTables:
    """``SHOW TABLES [IN d] [LIKE 'a*|b*']``."""

    database: str | None = None
    pattern: str = "*"


@dataclass(frozen=True, slots=True)
class Describe:
    """``DESCRIBE [EXTENDED] t``."""

    table: QualifiedName
    extended: bool = False


# Statements about locks.


@dataclass(frozen=True, slots=True)
class ShowLocks:
    """``SHOW LOCKS [t [PARTITION (...)] | DATABASE d] [EXTENDED]``."""

    table: QualifiedName | None = None
    partition: PartitionClause | None = None
    database: str | None = None
    extended: bool = False


@dataclass(frozen=True, slots=True)
class ExplainLocks:
    """``EXPLAIN [FORMATTED] LOCKS <statement>``."""

    statement: Statement
    formatted: bool = False


@dataclass(frozen=True, slots=True)
class Lock:
    """``LOCK TABLE t [PARTITION (...)] | DATABASE d  SHARED | EXCLUSIVE``: held until UNLOCK."""

    mode: LockMode
    table: QualifiedName | None = None
    partition: PartitionClause | None = None
    database: str | None = None


@dataclass(frozen=True, slots=True)
class Unlock:
    """``UNLOCK TABLE t [PARTITION (...)] | DATABASE d``."""

    table: QualifiedName | None = None
    partition: PartitionClause | None = None
    database: str | None = None


Leased = tuple[tuple[QualifiedName, PartitionClause | None], ...]
"""Tables and partitions; none is all."""


@dataclass(frozen=True, slots=True)
class ShowLease:
    """``SHOW LEASE [* | t [PARTITION (...)], ...]``."""

    objects: Leased = ()


@dataclass(frozen=True, slots=True)
class DropForceLease:
    """``DROP FORCE LEASE * | t [PARTITION (...)], ...``."""

    objects: Leased = ()


# Statements that work on tables.


@dataclass(frozen=True, slots=True)
class Select:
    """A query, in sqlglot's terms."""

    query: sql.Query | sql.Values


@dataclass(frozen=True, slots=True)
class Insert:
    """``INSERT INTO | OVERWRITE t [PARTITION (...)] [(columns)] <query>``."""

    table: QualifiedName
    overwrite: bool
    partition: PartitionClause | None
    columns: tuple[str, ...]
    query: sql.Query | sql.Values


@dataclass(frozen=True, slots=True)
class Rename:
    """``ALTER TABLE t RENAME TO u``."""

    table: QualifiedName
    to: QualifiedName


@dataclass(frozen=True, slots=True)
class AddColumns:
    """``ALTER TABLE t ADD COLUMNS (...)``."""

    table: QualifiedName
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class ReplaceColumns:
    """``ALTER TABLE t REPLACE COLUMNS (...)``."""

    table: QualifiedName
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """``ALTER TABLE t CHANGE [COLUMN] a b type [COMMENT '...'] [FIRST | AFTER c]``.

    Args:
        table: The table.
        name: The column as it is.
        column: As it shall be.
        after: The column that it follows from now on; "" puts it first, None leaves it where it is.
    """

    table: QualifiedName
    name: str
    column: Column
    after: str | None = None


@dataclass(frozen=True, slots=True)
class SetProperties:
    """``ALTER TABLE t SET TBLPROPERTIES (...)``; a value of None is ``UNSET``."""

    table: QualifiedName
    properties: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class SetSerde:
    """``ALTER TABLE t SET SERDE 'class' [WITH SERDEPROPERTIES (...)]`` or ``SET SERDEPROPERTIES (...)``."""

    table: QualifiedName
    serializer: str | None
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetFileFormat:
    """``ALTER TABLE t SET FILEFORMAT f``."""

    table: QualifiedName
    file_format: str


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """``ALTER TABLE t ADD [IF NOT EXISTS] PARTITION (...) [LOCATION '...'] ...``."""

    table: QualifiedName
    partitions: tuple[tuple[PartitionClause, str | None], ...]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """``ALTER TABLE t DROP [IF EXISTS] PARTITION (...), ...``."""

    table: QualifiedName
    partitions: tuple[PartitionClause, ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class TouchPartition:
    """``ALTER TABLE t TOUCH PARTITION (...)``."""

    table: QualifiedName
    partition: PartitionClause


@dataclass(frozen=True, slots=True)
class Concatenate:
    """``ALTER TABLE t [PARTITION (...)] CONCATENATE``."""

    table: QualifiedName
    partition: PartitionClause | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """``TRUNCATE [TABLE] t [PARTITION (...)]``."""

    table: QualifiedName
    partition: PartitionClause | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """``DELETE FROM t [AS x] [WHERE ...]``."""

    table: QualifiedName
    where: sql.Expr | None = None
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """``UPDATE t [AS x] SET a = ..., b = ... [WHERE ...]``."""

    table: QualifiedName
    values: tuple[tuple[sql.Column, sql.Expr], ...]
    where: sql.Expr | None = None
    alias: str = ""


@dataclass(frozen=True, slots=True)
class PartitionedBy:
    """One field of a partition spec.

    Args:
        column: What it is made of.
        transform: ``identity``, ``year``, ``month``, ``day``, ``hour``, ``bucket`` or ``truncate``.
        number: Buckets, or the length that is left.
        declared: The column itself where PARTITIONED BY declares it, as Hive's does.
    """

    column: str
    transform: str = "identity"
    number: int | None = None
    declared: Column | None = None


@dataclass(frozen=True, slots=True)
class CreateTable:
    """``CREATE TABLE [IF NOT EXISTS] t (...) [COMMENT] [PARTITIONED BY] [STORED] [LOCATION] [TBLPROPERTIES]``."""

    table: QualifiedName
    columns: tuple[Column, ...]
    partitioned: tuple[PartitionedBy, ...]
    properties: Mapping[str, str]
    location: str | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetPartitionSpec:
    """``ALTER TABLE t SET PARTITION SPEC (...)``."""

    table: QualifiedName
    partitioned: tuple[PartitionedBy, ...]


@dataclass(frozen=True, slots=True)
class CreateRef:
    """``ALTER TABLE t CREATE BRANCH | TAG [IF NOT EXISTS] r [FOR ...] [RETAIN ...]``.

    Args:
        table: The table.
        name: Of the branch or tag.
        branch: It is a branch.
        snapshot: Its number, the name of another branch or tag, or None for the present one.
        retain_ms: How long it is kept; None is as the table says.
        if_not_exists: There may be one.
    """

    table: QualifiedName
    name: str
    branch: bool
    snapshot: int | str | None = None
    retain_ms: int | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropRef:
    """``ALTER TABLE t DROP BRANCH | TAG [IF EXISTS] r``."""

    table: QualifiedName
    name: str
    branch: bool
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """``ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS [('time' | 'id, id')] | RETAIN LAST n``.

    Without ids, a branch keeps the snapshots that its own settings name. Without ids and a number, each branch that has
    no such setting keeps its ``history.expire.min-snapshots-to-keep`` newest ones.

    Args:
        table: The table.
        before: Those that are older than this; None, with nothing else, than ``history.expire.max-snapshot-age-ms``.
        snapshots: These.
        retain_last: All but this many of the newest ones.
    """

    table: QualifiedName
    before: datetime | None = None
    snapshots: tuple[int, ...] = ()
    retain_last: int | None = None


@dataclass(frozen=True, slots=True)
class RollBack:
    """``ALTER TABLE t EXECUTE ROLLBACK(id | 'time')``."""

    table: QualifiedName
    to: int | datetime


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    """``CREATE DATABASE [IF NOT EXISTS] d [COMMENT '...'] [LOCATION '...'] [WITH DBPROPERTIES (...)]``."""

    database: str
    properties: Mapping[str, str]
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """``DROP DATABASE [IF EXISTS] d [RESTRICT | CASCADE]``."""

    database: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class DropTable:
    """``DROP TABLE [IF EXISTS] t [PURGE]``."""

    table: QualifiedName
    if_exists: bool = False
    purge: bool = False


Statement = (
    Help
    | ShowDatabases
    | ShowTables
    | Describe
    | ShowLocks
    | ExplainLocks
    | Lock
    | Unlock
    | ShowLease
    | DropForceLease
    | Select
    | Insert
    | Rename
    | AddColumns
    | ReplaceColumns
    | ChangeColumn
    | SetProperties
    | SetSerde
    | SetFileFormat
    | AddPartitions
    | DropPartitions
    | TouchPartition
    | Concatenate
    | DropTable
    | Truncate
    | Delete
    | Update
    | CreateTable
    | SetPartitionSpec
    | CreateRef
    | DropRef
    | ExpireSnapshots
    | RollBack
    | CreateDatabase
    | DropDatabase
)
