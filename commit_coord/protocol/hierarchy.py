"""Which locks an operation takes: the 17 rows of Hive's manual and the operations of Iceberg, in one table.

Theory of operation
    An operation works on a table, on partitions of it, or on a database. :data:`COMMANDS` says on what its lock
    is and in which mode. Parents are not in the table: who locks a partition in any mode holds S on all
    its prefixes and on the table, and :meth:`~commit_coord.model.LockRequest.of` adds them. So the manual's row
    ``alter table T1 partition P1 concatenate: X on T1.P1`` holds S on T1 too, by the manual's own rule.

    A statement that reads some tables and writes another one takes the union: ``insert into T2 partition P2
    select .. T1 partition P1`` is INSERT on T2.P2 and SELECT on T1.P1.

    Partitions that are not known beforehand are covered by what is known: the longest prefix of static
    values, else the table.

    Who asks the table: statements and EXPLAIN LOCKS (``sql/plan.py``), calls of tables and catalogs from Python, jobs
    of Spark, and ``docs/locks.md``, which is written from it.

Source: Hive wiki "Locking"; where Hive 4 has an operation of Iceberg's as a statement, its analyzers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

from commit_coord.model import LockMode, Resource
from commit_coord.protocol.modes import S, X, stronger

if TYPE_CHECKING:
    from commit_coord.config.values import OperationLocks

_TABLE_DEPTH = 2  # db/table


class Operation(StrEnum):
    """The operation of a statement, a call or a job on one table or database."""

    # The manual's.
    SELECT = "select"
    INSERT = "insert"
    RENAME = "rename"
    ADD_COLUMNS = "add cols"
    REPLACE_COLUMNS = "replace cols"
    CHANGE_COLUMNS = "change cols"
    CONCATENATE = "concatenate"
    ADD_PARTITION = "add partition"
    DROP_PARTITION = "drop partition"
    TOUCH_PARTITION = "touch partition"
    SET_SERDE_PROPERTIES = "set serdeproperties"
    SET_SERIALIZER = "set serializer"
    SET_FILE_FORMAT = "set file format"
    SET_TABLE_PROPERTIES = "set tblproperties"
    CONCATENATE_PARTITION = "partition concatenate"
    DROP_TABLE = "drop table"
    # Iceberg's.
    APPEND = "append"
    OVERWRITE = "overwrite"
    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"
    TRUNCATE = "truncate"
    EXPIRE_SNAPSHOTS = "expire snapshots"
    MANAGE_REFS = "branch and tag"
    ROLL_BACK = "roll back"
    EVOLVE_SCHEMA = "schema evolution"
    EVOLVE_PARTITIONS = "partition evolution"
    SET_WRITE_ORDER = "set write order"
    SET_STATISTICS = "set statistics"
    CREATE_TABLE = "create table"
    CREATE_DATABASE = "create database"
    DROP_DATABASE = "drop database"


class Level(StrEnum):
    """What an operation locks."""

    DATABASE = "database"
    NAME = "table, S on its database"
    """A table that is not there yet: its database is held too, so that it stays until the table is in it."""
    TABLE = "table"
    PARTITION = "partition"
    TARGET = "partition, else table"
    """The partitions when some are named, else the table."""


class CallLocking(StrEnum):
    """With which ``operation-locks`` a call from Python or a job of Spark takes the locks; statements do with both."""

    ICEBERG = "iceberg, hive"
    HIVE = "hive"
    NONE = ""
    """There is no such call, or, as for reads, no point at which it would be over."""


@dataclass(frozen=True, slots=True)
class Command:
    """One rule.

    Args:
        level: What is locked.
        mode: Its mode.
        calls: Which calls from Python take it.
        statement: How it is written, for the documentation; "" where it is none.
        call: How it is called from Python.
    """

    level: Level
    mode: LockMode
    calls: CallLocking
    statement: str = ""
    call: str = ""


COMMANDS: Mapping[Operation, Command] = MappingProxyType(
    {
        Operation.SELECT: Command(Level.TARGET, S, CallLocking.NONE, "SELECT … FROM t [WHERE p = …]"),
        # Rows 2 and 3 of the manual: a full partition, and a prefix P.Q whose parent P is held in S.
        Operation.INSERT: Command(Level.TARGET, X, CallLocking.NONE, "INSERT INTO t [PARTITION (…)] …"),
        Operation.RENAME: Command(
            Level.TABLE, X, CallLocking.ICEBERG, "ALTER TABLE t RENAME TO u", "catalog.rename_table, rename_view"
        ),
        Operation.ADD_COLUMNS: Command(Level.TABLE, X, CallLocking.NONE, "ALTER TABLE t ADD COLUMNS (…)"),
        Operation.REPLACE_COLUMNS: Command(Level.TABLE, X, CallLocking.NONE, "ALTER TABLE t REPLACE COLUMNS (…)"),
        Operation.CHANGE_COLUMNS: Command(Level.TABLE, X, CallLocking.NONE, "ALTER TABLE t CHANGE [COLUMN] …"),
        Operation.CONCATENATE: Command(
            Level.TABLE, X, CallLocking.ICEBERG, "ALTER TABLE t CONCATENATE", "table.compact(), spark.compact_table"
        ),
        Operation.ADD_PARTITION: Command(
            Level.PARTITION, X, CallLocking.NONE, "ALTER TABLE t ADD PARTITION (…) [LOCATION …]"
        ),
        Operation.DROP_PARTITION: Command(Level.PARTITION, X, CallLocking.NONE, "ALTER TABLE t DROP PARTITION (…)"),
        Operation.TOUCH_PARTITION: Command(Level.PARTITION, X, CallLocking.NONE, "ALTER TABLE t TOUCH PARTITION (…)"),
        # These three concern partitions to come only, so they share the table with its readers and writers.
        Operation.SET_SERDE_PROPERTIES: Command(
            Level.TABLE, S, CallLocking.NONE, "ALTER TABLE t SET SERDEPROPERTIES (…)"
        ),
        Operation.SET_SERIALIZER: Command(Level.TABLE, S, CallLocking.NONE, "ALTER TABLE t SET SERDE '…'"),
        Operation.SET_FILE_FORMAT: Command(Level.TABLE, S, CallLocking.NONE, "ALTER TABLE t SET FILEFORMAT …"),
        Operation.SET_TABLE_PROPERTIES: Command(
            Level.TABLE, X, CallLocking.HIVE, "ALTER TABLE t SET TBLPROPERTIES (…)", "transaction.set_properties"
        ),
        Operation.CONCATENATE_PARTITION: Command(
            Level.PARTITION, X, CallLocking.ICEBERG, "ALTER TABLE t PARTITION (…) CONCATENATE", "table.compact({…})"
        ),
        Operation.DROP_TABLE: Command(
            Level.TABLE, X, CallLocking.ICEBERG, "DROP TABLE t", "catalog.drop_table, purge_table, drop_view"
        ),
        # An append looks at nothing but its own rows and lands on any head: Iceberg needs no lock for it.
        Operation.APPEND: Command(Level.TARGET, X, CallLocking.HIVE, "", "table.append, add_files, spark.write_table"),
        Operation.OVERWRITE: Command(
            Level.TARGET,
            X,
            CallLocking.ICEBERG,
            "INSERT OVERWRITE t [PARTITION (…)] …",
            "table.overwrite, spark.write_table",
        ),
        Operation.DELETE: Command(Level.TARGET, X, CallLocking.ICEBERG, "DELETE FROM t [WHERE p = …]", "table.delete"),
        Operation.UPDATE: Command(
            Level.TARGET, X, CallLocking.ICEBERG, "UPDATE t SET … [WHERE p = …]", "transaction.update_rows"
        ),
        Operation.MERGE: Command(Level.TARGET, X, CallLocking.ICEBERG, "", "table.upsert"),
        Operation.TRUNCATE: Command(Level.TARGET, X, CallLocking.NONE, "TRUNCATE TABLE t [PARTITION (…)]"),
        # As in Hive 4: no row of the table's present changes, so it shares the table with writers of its rows.
        Operation.EXPIRE_SNAPSHOTS: Command(
            Level.TABLE,
            S,
            CallLocking.HIVE,
            "ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS(…)",
            "table.maintenance.expire_snapshots",
        ),
        Operation.MANAGE_REFS: Command(
            Level.TABLE, S, CallLocking.HIVE, "ALTER TABLE t CREATE | DROP BRANCH | TAG …", "table.manage_snapshots"
        ),
        # Every partition may be another one afterwards.
        Operation.ROLL_BACK: Command(
            Level.TABLE,
            X,
            CallLocking.HIVE,
            "ALTER TABLE t EXECUTE ROLLBACK(…)",
            "table.manage_snapshots().rollback_to_snapshot",
        ),
        Operation.EVOLVE_SCHEMA: Command(Level.TABLE, X, CallLocking.HIVE, "", "table.update_schema"),
        # All partitions get other names.
        Operation.EVOLVE_PARTITIONS: Command(
            Level.TABLE, X, CallLocking.HIVE, "ALTER TABLE t SET PARTITION SPEC (…)", "table.update_spec"
        ),
        # Like the file format: for files to come.
        Operation.SET_WRITE_ORDER: Command(Level.TABLE, S, CallLocking.HIVE, "", "table.update_sort_order"),
        Operation.SET_STATISTICS: Command(Level.TABLE, S, CallLocking.HIVE, "", "table.update_statistics"),
        Operation.CREATE_TABLE: Command(
            Level.NAME,
            X,
            CallLocking.HIVE,
            "CREATE TABLE t (…)",
            "catalog.create_table, register_table, create_view, register_view",
        ),
        Operation.CREATE_DATABASE: Command(
            Level.DATABASE, X, CallLocking.HIVE, "CREATE DATABASE d", "catalog.create_namespace"
        ),
        # With CASCADE also DROP TABLE of every table in it.
        Operation.DROP_DATABASE: Command(
            Level.DATABASE, X, CallLocking.HIVE, "DROP DATABASE d", "catalog.drop_namespace"
        ),
    }
)

assert set(COMMANDS) == set(Operation), "each operation has its rule"

Partition = Sequence[str | None]
"""``key=value`` by level, outermost first; None where the value is not known before the statement runs."""


def operation_locks(
    operation: Operation,
    table: Resource,
    partitions: Iterable[Partition] = (),
    *,
    live_specs: int = 1,
    escalate_above: int | None = None,
) -> tuple[tuple[Resource, LockMode], ...]:
    """Return the locks that *operation* takes on *table*, without parents, sorted by resource.

    Args:
        operation: What is done.
        table: ``db/table``; for an operation on a database ``db``.
        partitions: Those that it names. A partition with an unknown value locks the prefix before it.
        live_specs: Partition specs that the table's data has. A table with more than one locks as a whole,
            since one file may lie in partitions of either spec.
        escalate_above: More partitions than this lock their common prefixes instead; None never does.

    Raises:
        ValueError: *operation* works on partitions and none is named, or on the table and some are; or *table* is no
            table, or no database.
    """
    command, named = COMMANDS[operation], list(partitions)
    if len(table.path) != (1 if command.level is Level.DATABASE else _TABLE_DEPTH):
        kind = "database, db" if command.level is Level.DATABASE else "table, db/table"
        raise ValueError(f"{operation.value!r} works on a {kind}, got: {table}")
    if command.level is Level.PARTITION and not named:
        raise ValueError(f"{operation.value!r} works on partitions and names none, table: {table}")
    if command.level not in (Level.PARTITION, Level.TARGET) and named:
        raise ValueError(f"{operation.value!r} works on a table as a whole, got partitions of: {table}")
    if command.level is Level.NAME:
        return ((table.ancestors[0], S), (table, command.mode))
    if live_specs > 1 or not named:
        return ((table, command.mode),)
    targets = {lock_target(table, partition): command.mode for partition in named}
    return escalate(targets.items(), escalate_above)


def calls_take(operation: Operation, setting: OperationLocks) -> bool:
    """Return whether a call from Python takes the locks of *operation* with ``operation-locks=`` *setting*."""
    return setting in COMMANDS[operation].calls.split(", ")


def lock_target(table: Resource, partition: Partition) -> Resource:
    """Return the longest prefix of *partition* that is known, else *table*."""
    assert len(table.path) == _TABLE_DEPTH, "partitions are of tables"
    return Resource((*table.path, *takewhile(lambda level: level is not None, partition)))  # type: ignore[arg-type]


def escalate(locks: Iterable[tuple[Resource, LockMode]], limit: int | None) -> tuple[tuple[Resource, LockMode], ...]:
    """Return *locks*, sorted, with the deepest partitions of a table lifted until at most *limit* are left.

    A prefix is locked in the strongest mode among what it replaces, so what was excluded stays excluded.
    Two partitions of different prefixes still run side by side. None lifts nothing.
    """
    merged: dict[Resource, LockMode] = {}
    for resource, mode in locks:
        merged[resource] = stronger(mode, merged.get(resource, mode))
    while limit is not None:
        partitions = [resource for resource in merged if len(resource.path) > _TABLE_DEPTH]
        count = Counter(resource.path[:_TABLE_DEPTH] for resource in partitions)
        too_many = [resource for resource in partitions if count[resource.path[:_TABLE_DEPTH]] > limit]
        if not too_many:
            break
        depth = max(len(resource.path) for resource in too_many)
        assert depth > _TABLE_DEPTH, "a table is not lifted to its database"
        for resource in too_many:
            if len(resource.path) == depth:
                prefix, mode = resource.ancestors[-1], merged.pop(resource)
                merged[prefix] = stronger(mode, merged.get(prefix, mode))
    return tuple(sorted(merged.items()))
