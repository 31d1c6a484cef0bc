"""Which operation locks a call takes, and what its thread holds of them. Tables, catalogs and Spark jobs ask here."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from commit_coord.errors import LockReentered
from commit_coord.locks.base import Lease
from commit_coord.model import LockMode, Resource
from commit_coord.protocol.hierarchy import Operation, Partition, calls_take, operation_locks
from commit_coord.protocol.modes import compatible
from commit_coord.table.ports import OperationLocking

logger = logging.getLogger(__name__)


class AlreadyHeld(Enum):
    """The locks of a call that its thread already holds."""

    NOTHING = auto()
    PART = auto()
    """Some of them, or a weaker mode: if the thread asked for the rest it would wait for itself."""
    ALL = auto()


@dataclass(frozen=True, slots=True)
class NeededLocks:
    """The operation locks of one call.

    Args:
        locks: Resources and modes, without parents; empty when the call takes none.
        held: What this thread holds of them, by a lock of its own or by a lease that fences it.
    """

    locks: tuple[tuple[Resource, LockMode], ...]
    held: AlreadyHeld


def needed_locks(
    catalog: OperationLocking,
    operation: Operation,
    on: Resource,
    partitions: Iterable[Partition] = (),
    live_specs: int = 1,
) -> NeededLocks:
    """Return which locks *operation* takes when it is called from Python, and what this thread holds of them.

    Args:
        catalog: Its settings say whether the call takes any, and how many partitions are locked one by one.
        operation: What is called.
        on: The table or database.
        partitions: The partitions of the table that are named.
        live_specs: As for :func:`~commit_coord.protocol.hierarchy.operation_locks`.
    """
    if not calls_take(operation, catalog.settings.operation_locks):
        return NeededLocks((), AlreadyHeld.ALL)
    planned = operation_locks(
        operation, on, partitions, live_specs=live_specs, escalate_above=catalog.settings.lock_max_partitions
    )
    locks = tuple((catalog.spelled(resource), mode) for resource, mode in planned)
    return NeededLocks(locks, _held(catalog, locks))


def acquire(catalog: OperationLocking, needed: NeededLocks, statement: str) -> Lease | None:
    """Take the locks that are *needed*; None when this thread holds all of them, or the call takes none.

    Args:
        catalog: Takes them.
        needed: From :func:`needed_locks`.
        statement: Shown to those that wait for the locks.

    Raises:
        CommitLockFailed: The lock service could not be reached. Nothing was changed.
        LockReentered: This thread holds a part of them.
        LockError: They were not granted.
    """
    return catalog.lock_change(needed.locks, statement=statement) if needed.held is not AlreadyHeld.ALL else None


def acquire_unless_held(catalog: OperationLocking, needed: NeededLocks, statement: str) -> Lease | None:
    """Do :func:`acquire`; return None also when this thread holds a part of the locks.

    To wait for the rest would never end. The call goes on without them: the check at the commit finds every conflict.

    Raises:
        CommitLockFailed: The lock service could not be reached. Nothing was changed.
        LockError: They were not granted.
    """
    if needed.held is not AlreadyHeld.NOTHING:
        return None
    try:
        return acquire(catalog, needed, statement)
    except LockReentered:
        # This thread holds them by another catalog of the same lock service. Only the queue of the service shows that.
        logger.debug("this thread holds locks of %s by another catalog", statement)
        return None


def locks_to_ask_for(
    catalog: OperationLocking, locks: Iterable[tuple[Resource, LockMode]], *, checked_at_commit: bool
) -> list[tuple[Resource, LockMode]]:
    """Return those of *locks* that a statement of this thread asks for, spelled as the catalog locks them.

    It asks for none that the thread holds. It asks for a lock of which the thread holds a part only to be refused with
    LockReentered: where no check at a commit finds the conflicts, and where a LOCK statement holds the part.

    Args:
        catalog: Knows what this thread holds.
        locks: Resources and modes, without parents.
        checked_at_commit: Whether the statement only changes the catalog by commits.
    """
    spelled = ((catalog.spelled(resource), mode) for resource, mode in locks)
    return [(resource, mode) for resource, mode in spelled if _is_asked_for(catalog, resource, mode, checked_at_commit)]


def _is_asked_for(catalog: OperationLocking, resource: Resource, mode: LockMode, checked_at_commit: bool) -> bool:
    if catalog.locks.lease_on(resource, mode) is not None:
        return False
    partly = _lease_on_part(catalog, ((resource, mode),))
    return partly is None or partly.request.explicit or not checked_at_commit


def _held(catalog: OperationLocking, locks: tuple[tuple[Resource, LockMode], ...]) -> AlreadyHeld:
    if all(catalog.locks.lease_on(resource, mode) is not None for resource, mode in locks):
        return AlreadyHeld.ALL
    return AlreadyHeld.NOTHING if _lease_on_part(catalog, locks) is None else AlreadyHeld.PART


def _lease_on_part(catalog: OperationLocking, locks: tuple[tuple[Resource, LockMode], ...]) -> Lease | None:
    """Return a lease of this thread for which it would wait itself if it asked for *locks*, parents included."""
    lease_on = catalog.locks.lease_on
    near = {one for resource, _ in locks for one in (resource, *resource.ancestors)}
    if all(lease_on(one, LockMode.SHARED) is None for one in near):
        return None
    for resource, mode in catalog.lock_request(locks).locks:
        lease = lease_on(resource, LockMode.SHARED)
        mine = dict(lease.request.locks).get(resource) if lease is not None else None
        # Only UNLOCK ends the lock of a LOCK statement, so a compatible lock may be taken while it is held.
        if lease is not None and mine is not None and not (lease.request.explicit and compatible(mode, mine)):
            return lease
    return None
