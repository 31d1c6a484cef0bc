"""Which locks a Hive command takes: the manual's table of 17 rows, as one table.

Theory of operation
    A command works on a table or on partitions of it. :data:`COMMANDS` says which of the two its lock stands on
    and in which mode. Parents are not in the table: whoever locks a partition in any mode holds S on all
    its prefixes and on the table, and :meth:`~commit_coord.model.LockRequest.of` adds them. So the manual's row
    ``alter table T1 partition P1 concatenate: X on T1.P1`` holds S on T1 too, by the manual's own rule.

    A statement that reads some tables and writes another one takes the union: ``insert into T2 partition P2
    select .. T1 partition P1`` is INSERT on T2.P2 and SELECT on T1.P1.

    Partitions that are not known beforehand are covered by what is known: the longest prefix of static
    values, else the table.

Source: Hive wiki "Locking".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType

from commit_coord.model import LockMode, Resource
from commit_coord.protocol.modes import S, X, stronger

_TABLE_DEPTH = 2  # db/table


class Operation(StrEnum):
    """What a statement does to one table."""

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


class Level(StrEnum):
    """What a command's lock stands on."""

    TABLE = "table"
    PARTITION = "partition"
    TARGET = "target"
    """The partitions when the statement names some, else the table."""


@dataclass(frozen=True, slots=True)
class Command:
    """One rule: where the lock stands, and its mode."""

    level: Level
    mode: LockMode


COMMANDS: Mapping[Operation, Command] = MappingProxyType(
    {
        Operation.SELECT: Command(Level.TARGET, S),
        # Rows 2 and 3 of the manual: a full partition, and a prefix P.Q whose parent P is held in S.
        Operation.INSERT: Command(Level.TARGET, X),
        Operation.RENAME: Command(Level.TABLE, X),
        Operation.ADD_COLUMNS: Command(Level.TABLE, X),
        Operation.REPLACE_COLUMNS: Command(Level.TABLE, X),
        Operation.CHANGE_COLUMNS: Command(Level.TABLE, X),
        Operation.CONCATENATE: Command(Level.TABLE, X),
        Operation.ADD_PARTITION: Command(Level.PARTITION, X),
        Operation.DROP_PARTITION: Command(Level.PARTITION, X),
        Operation.TOUCH_PARTITION: Command(Level.PARTITION, X),
        # These three concern partitions to come only, so they share the table with its readers and writers.
        Operation.SET_SERDE_PROPERTIES: Command(Level.TABLE, S),
        Operation.SET_SERIALIZER: Command(Level.TABLE, S),
        Operation.SET_FILE_FORMAT: Command(Level.TABLE, S),
        Operation.SET_TABLE_PROPERTIES: Command(Level.TABLE, X),
        Operation.CONCATENATE_PARTITION: Command(Level.PARTITION, X),
        Operation.DROP_TABLE: Command(Level.TABLE, X),
    }
)

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
        operation: What the statement does.
        table: ``db/table``.
        partitions: Those that it names. A partition with an unknown value locks the prefix before it.
        live_specs: Partition specs that the table's data has. A table with more than one locks as a whole,
            since one file may lie in partitions of either spec.
        escalate_above: More partitions than this lock their common prefixes instead; None never does.

    Raises:
        ValueError: *operation* works on partitions and none is named, or on the table and some are.
    """
    if len(table.path) != _TABLE_DEPTH:
        raise ValueError(f"an operation works on a table, db/table, got: {table}")
    command, named = COMMANDS[operation], list(partitions)
    if command.level is Level.PARTITION and not named:
        raise ValueError(f"{operation.value!r} works on partitions and names none, table: {table}")
    if command.level is Level.TABLE and named:
        raise ValueError(f"{operation.value!r} works on a table as a whole, got partitions of: {table}")
    if live_specs > 1 or not named:
        return ((table, command.mode),)
    targets = {lock_target(table, partition): command.mode for partition in named}
    return escalate(targets.items(), escalate_above)


def lock_target(table: Resource, partition: Partition) -> Resource:
    """Return the longest prefix of *partition* that is known, else *table*."""
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
        crowded = [resource for resource in partitions if count[resource.path[:_TABLE_DEPTH]] > limit]
        if not crowded:
            break
        depth = max(len(resource.path) for resource in crowded)
        for resource in crowded:
            if len(resource.path) == depth:
                prefix, mode = resource.ancestors[-1], merged.pop(resource)
                merged[prefix] = stronger(mode, merged.get(prefix, mode))
    return tuple(sorted(merged.items()))
