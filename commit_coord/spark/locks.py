"""Operation locks of a write: which ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg import expressions as E
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from commit_coord.errors import ConfigError, LockReentered
from commit_coord.iceberg.partitions import fixed_partitions, lockable, partition_level
from commit_coord.model import LockMode, Resource
from commit_coord.protocol.hierarchy import Operation, calls_take, operation_locks

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable

Mode = Literal["append", "overwrite", "dynamic"]


def write_locks(
    table: Table, mode: Mode, overwrite_filter: E.BooleanExpression, *, setting: str, at_most: int
) -> dict[Resource, LockMode]:
    """Return the locks that a write takes before its first file, without parents; empty when it takes none.

    Args:
        table: As read last.
        mode: Appends take locks with ``operation-locks=hive`` only.
        overwrite_filter: What is replaced. When it fixes values of leading identity partition fields, only those
            partitions are locked, else the table.
        setting: The catalog's ``operation-locks``.
        at_most: More partitions than this are locked by their prefix (``lock.max-partitions``).
    """
    operation = Operation.APPEND if mode == "append" else Operation.OVERWRITE
    if not calls_take(operation, setting):
        return {}
    name = Resource.table(table.name())
    found = [] if mode == "append" else fixed_partitions(overwrite_filter, table.spec(), table.schema())
    live = len(table.metadata.partition_specs)
    return dict(operation_locks(operation, name, lockable(found), live_specs=live, escalate_above=at_most))


def check_inside(files: Sequence[DataFile], table: Table, bounds: E.BooleanExpression) -> None:
    """Return if the partition of every file lies in those that *bounds* names.

    Raises:
        ConfigError: One does not: it would replace a partition that nobody locked. Nothing was committed.
    """
    spec, schema = table.spec(), table.schema()
    allowed = [
        tuple(level for level in levels if level is not None) for levels in fixed_partitions(bounds, spec, schema)
    ]
    for file in files:
        levels = tuple(
            partition_level(field, schema, file.partition[position]) for position, field in enumerate(spec.fields)
        )
        if not any(levels[: len(prefix)] == prefix for prefix in allowed):
            raise ConfigError(
                "a row lies outside of the partitions that overwrite_filter names", partition="/".join(levels)
            )


@contextmanager
def holding(
    table: CoordinatedTable, mode: Mode, overwrite_filter: E.BooleanExpression, statement: str
) -> Iterator[None]:
    """Hold the operation locks of a write; *table* was read again after they were granted.

    What this thread holds already, by a lease that fences it or by a lock of its own, it does not wait for: the check
    at the commit finds every conflict.

    Raises:
        LockTimeout: Somebody holds a conflicting lock. Nothing was written.
        CommitLockFailed: The lock service could not be reached. Nothing was written.
    """
    catalog: Any = table.catalog
    settings = catalog.settings
    locks = write_locks(
        table, mode, overwrite_filter, setting=settings.operation_locks, at_most=settings.lock_max_partitions
    )
    held: AbstractContextManager[Any] = nullcontext()
    if locks:
        with suppress(LockReentered):
            held = catalog.lock_change(locks, statement=statement)
    with held:
        table.refresh()
        yield
