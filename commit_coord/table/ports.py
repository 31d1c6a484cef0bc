"""The interface between a table and its catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

from pyiceberg.table import Table

from commit_coord.config import OperationLocks
from commit_coord.coordinator import Coordinator
from commit_coord.locks.base import Lease
from commit_coord.model import LockMode, LockRequest, Resource
from commit_coord.process import Host

Locks = Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]]
"""Resources and the mode of each, without parents."""


class OperationLockSettings(Protocol):
    """The settings that say which calls take operation locks."""

    @property
    def operation_locks(self) -> OperationLocks:
        """``operation-locks``: which calls take operation locks."""
        ...

    @property
    def lock_max_partitions(self) -> int:
        """``lock.max-partitions``: more partitions than this are locked by their common prefixes."""
        ...


class HeldLocks(Protocol):
    """Answers what the current thread holds."""

    def lease_on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """Return the lease by which this thread holds *resource*, or what contains it, at least in *mode*."""
        ...


class OperationLocking(Protocol):
    """A catalog as far as operation locks go."""

    @property
    def settings(self) -> OperationLockSettings:
        """The settings of the catalog."""
        ...

    @property
    def locks(self) -> HeldLocks:
        """The lock manager of the catalog."""
        ...

    def spelled(self, resource: Resource) -> Resource:
        """Return *resource* under the names by which the catalog locks it."""
        ...

    def lock_request(self, locks: Locks, *, statement: str = "") -> LockRequest:
        """Return what :meth:`lock_change` asks the lock manager for, parents included; nothing is asked yet."""
        ...

    def lock_change(self, locks: Locks, *, statement: str = "") -> Lease:
        """Take the locks of an operation that changes a table or the catalog, all or none.

        Raises:
            CommitLockFailed: The lock service could not be reached. Nothing was changed.
            LockError: They were not granted.
        """
        ...


class TableCatalog(OperationLocking, Protocol):
    """The catalog as a table uses it: operation locks, and the coordinator that executes commits."""

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the catalog."""
        ...


def catalog_of(table: Table) -> TableCatalog:
    """Return the catalog of a coordinated *table*; PyIceberg's class declares it as any catalog.

    Raises:
        TypeError: It has another catalog, as of PyIceberg.
    """
    catalog = table.catalog
    if not isinstance(getattr(catalog, "coordinator", None), Coordinator):
        raise TypeError(f"the catalog of {'.'.join(table.name())} coordinates no commits: {type(catalog).__name__}")
    return cast(TableCatalog, catalog)


def host_of(table: Table) -> Host:
    """Return the host of the catalog of a coordinated *table*, which makes the ids of what is written.

    Raises:
        TypeError: As :func:`catalog_of`.
    """
    return catalog_of(table).coordinator.host
