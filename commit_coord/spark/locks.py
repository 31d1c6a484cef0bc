"""The operation locks of a write, and how a job holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from pyiceberg import expressions as E
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform

from commit_coord.errors import ConfigError
from commit_coord.iceberg.partitions import fixed_partitions, lockable, partition_level
from commit_coord.model import Resource, WriteMode
from commit_coord.protocol.hierarchy import Operation, calls_take
from commit_coord.table.operation_locks import NeededLocks, acquire_unless_held, needed_locks
from commit_coord.table.ports import catalog_of

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable


def write_locks(table: Table, mode: WriteMode, overwrite_filter: E.BooleanExpression) -> NeededLocks:
    """Return the locks that a write takes before its first file, and what this thread holds of them.

    Args:
        table: As read last.
        mode: Appends take locks with ``operation-locks=hive`` only.
        overwrite_filter: What is replaced. When it fixes values of leading identity partition fields, only those
            partitions are locked, else the table.
    """
    operation = Operation.APPEND if mode == "append" else Operation.OVERWRITE
    catalog, name = catalog_of(table), Resource.table(table.name())
    found = []
    if mode != "append" and calls_take(operation, catalog.settings.operation_locks):
        found = fixed_partitions(overwrite_filter, table.spec(), table.schema())
    return needed_locks(catalog, operation, name, lockable(found), len(table.metadata.partition_specs))


def check_has_partitions(mode: WriteMode, spec: PartitionSpec) -> None:
    """Return if a table of *spec* has partitions that a write of this *mode* can replace.

    Raises:
        ConfigError: It has none, so that a dynamic overwrite would replace all rows. Nothing was written.
    """
    if mode == "dynamic" and all(isinstance(field.transform, VoidTransform) for field in spec.fields):
        raise ConfigError("a table without partitions has none to replace: use mode 'overwrite'", spec=spec)


def check_inside(files: Sequence[DataFile], spec: PartitionSpec, schema: Schema, bounds: E.BooleanExpression) -> None:
    """Return if every file, written for *spec* and *schema*, lies in a partition that *bounds* names.

    Raises:
        ConfigError: One does not: it would replace a partition that nobody locked. Nothing was committed.
    """
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
    table: CoordinatedTable, mode: WriteMode, overwrite_filter: E.BooleanExpression, statement: str
) -> Iterator[None]:
    """Hold the operation locks of a write; *table* was read again after they were granted.

    What this thread holds already, by a lease that fences it or by a lock of its own, it does not wait for: the check
    at the commit finds every conflict.

    Raises:
        LockTimeout: Another owner holds a conflicting lock. Nothing was written.
        CommitLockFailed: The lock service could not be reached. Nothing was written.
    """
    needed = write_locks(table, mode, overwrite_filter)
    with acquire_unless_held(catalog_of(table), needed, statement) or nullcontext():
        table.refresh()
        yield
