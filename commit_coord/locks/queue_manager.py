"""A lock manager that consists of a queue, a keeper of its leases, and a lock table for administrators."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from commit_coord.errors import LockRefused
from commit_coord.locks.acquiring import Acquire, Carried, Queue, naming_who_released
from commit_coord.locks.base import HeartbeatSender, Lease, LockSettings, Policy, WaitPolicy
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.held import Held
from commit_coord.model import (
    Guarantees,
    JournalEntry,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    Resource,
)

QueueT = TypeVar("QueueT", bound=Queue)


class Acquires(Protocol):
    """Acquires locks; see :class:`~commit_coord.locks.acquiring.Acquirer`."""

    def acquire(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`LockManager.acquire`.

        Raises:
            Carried: Another holder has published the request's offer.
        """
        ...

    def give_up(self, request: LockRequest) -> None:
        """Remove everything of *request*, wherever its acquire was interrupted."""
        ...

    def end_waits(self) -> None:
        """End the requests of all other threads, and wait briefly until they have left the queues."""
        ...

    def refuse_waits(self) -> None:
        """See :meth:`LockManager.refuse_waits`."""
        ...


class Keeping(Protocol):
    """Keeps the leases of one client."""

    @property
    def heartbeat(self) -> HeartbeatSender:
        """The background task that sends the heartbeats."""
        ...

    def close(self, end_waits: Callable[[], None]) -> None:
        """See :meth:`LockManager.close`. *end_waits* ends the acquires of other threads; it is called first."""
        ...


class LockTable(Protocol):
    """Lists the locks of a service, and releases locks by force."""

    def look(self, resource: Resource | None, scope: LockScope | None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`."""
        ...

    def pages(self, resource: Resource | None, scope: LockScope | None) -> Iterator[Sequence[LockEntry]] | None:
        """See :meth:`LockManager.pages`; None where the service has none of its own."""
        return None

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockManager.listed`."""
        return resource

    def free(self, request_id: str | None, resource: Resource | None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`."""
        ...

    def free_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockManager.unlock_each`."""
        return (self.free(request_id, None) for request_id in request_ids)

    def reap(self, *, dry_run: bool) -> Sequence[LockEntry]:
        """See :meth:`LockManager.reap`."""
        ...


class Journal(Protocol):
    """The journal of executed requests."""

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`HandoverLockManager.remember`."""
        ...

    def recall(self, key: str) -> JournalEntry | None:
        """See :meth:`HandoverLockManager.recall`."""
        ...


@dataclass(slots=True, kw_only=True)
class Parts(Generic[QueueT]):
    """The parts of a manager in one process."""

    queue: QueueT
    acquirer: Acquires
    held: Held
    keeping: Keeping
    table: LockTable
    journal: Journal | None = None


class QueueLockManager(HandoverLockManager, Generic[QueueT]):
    """A lock manager whose service keeps queues.

    Args:
        guarantees: What it promises.
        settings: Times.
        make: Makes the parts. Called again in a forked child, which holds none of its parent's locks.
    """

    refuses_waits = True

    def __init__(self, guarantees: Guarantees, settings: LockSettings, make: Callable[[], Parts[QueueT]]) -> None:
        self.guarantees = guarantees
        self.settings = settings
        self._make = make
        self._pid = os.getpid()
        self._parts = make()

    @property
    def parts(self) -> Parts[QueueT]:
        """The parts of this manager in this process."""
        if self._pid != os.getpid():
            self._parts = self._make()
            self._pid = os.getpid()
        return self._parts

    @property
    def heartbeat(self) -> HeartbeatSender:
        """See :attr:`LockManager.heartbeat`."""
        return self.parts.keeping.heartbeat

    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> HandoverLease:
        """See :meth:`LockManager.acquire`."""
        return self.acquire_while(request, deadline=deadline, policy=policy, watch=None)

    def acquire_while(
        self, request: LockRequest, *, deadline: float, policy: Policy | None, watch: Callable[[], None] | None
    ) -> HandoverLease:
        """Do :meth:`acquire`, and call *watch* now and then during the wait; an error that it raises ends the wait."""
        self._refuse_undeclared(request)
        return self._acquired(Acquire(request=request, deadline=deadline, policy=policy or WaitPolicy(), watch=watch))

    def submit(self, request: LockRequest, *, deadline: float) -> HandoverLease | JournalEntry:
        """See :meth:`HandoverLockManager.submit`."""
        self._refuse_undeclared(request)
        try:
            return self._acquired(Acquire(request=request, deadline=deadline))
        except Carried as answer:
            return answer.entry

    def _acquired(self, acquire: Acquire) -> HandoverLease:
        """Acquire; after an interrupt that the acquirer could not handle, remove the request.

        1. The lock of a LOCK statement is granted.   2. Ctrl-C meets the lease on its way here. Such a lock outlives
        its lease, so nothing else ends it.

        1. Ctrl-C ends a wait.   2. Ctrl-C again, and again, while the request is taken out of the queues.
        """
        try:
            with naming_who_released(self, acquire.request):
                return self.parts.acquirer.acquire(acquire)
        except Exception:
            raise  # nothing is left
        except BaseException:
            self.give_up(acquire.request)
            raise

    def give_up(self, request: LockRequest) -> None:
        """Remove everything of *request*, however its acquire ended."""
        self.parts.acquirer.give_up(request)

    def lease_on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """See :meth:`LockManager.lease_on`."""
        return self.parts.held.on(resource, mode)

    def treat_as_held(self, lease: Lease) -> None:
        """Treat *lease* as held by this thread: its operations do not wait for what *lease* locks, while it is held."""
        self.parts.held.add(lease)

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`."""
        return self.parts.table.look(resource, scope)

    def pages(
        self, resource: Resource | None = None, *, scope: LockScope | None = None
    ) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockManager.pages`."""
        pages = self.parts.table.pages(resource, scope)
        return pages if pages is not None else super().pages(resource, scope=scope)

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockManager.listed`."""
        return self.parts.table.listed(resource)

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`."""
        return self.parts.table.free(request_id, resource)

    def unlock_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockManager.unlock_each`."""
        return self.parts.table.free_each(request_ids)

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """See :meth:`LockManager.reap`."""
        return self.parts.table.reap(dry_run=dry_run)

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`HandoverLockManager.remember`."""
        journal = self.parts.journal
        if journal is None:
            super().remember(entry, lifetime_ms=lifetime_ms)
        else:
            journal.remember(entry, lifetime_ms=lifetime_ms)

    def recall(self, key: str) -> JournalEntry | None:
        """See :meth:`HandoverLockManager.recall`."""
        journal = self.parts.journal
        return journal.recall(key) if journal is not None else None

    def refuse_waits(self) -> None:
        """See :meth:`LockManager.refuse_waits`."""
        self.parts.acquirer.refuse_waits()

    def close(self) -> None:
        """See :meth:`LockManager.close`."""
        parts = self.parts
        parts.keeping.close(parts.acquirer.end_waits)

    def _refuse_undeclared(self, request: LockRequest) -> None:
        if request.explicit and not self.guarantees.explicit_locks:
            raise LockRefused("this lock manager has no explicit locks", manager=self.name, locks=request)
        if request.scope is LockScope.OPERATION and not self.guarantees.hierarchy:
            raise LockRefused("this lock manager has no operation locks", manager=self.name, locks=request)
