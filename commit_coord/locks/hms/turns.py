"""The queue of this process's threads for a commit latch of one metastore.

One thread at a time requests the latch from the metastore; the others wait for this thread in the process, and it also
publishes their offers. Between processes, :mod:`~commit_coord.locks.hms.offers` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from commit_coord.locks.acquiring import Acquire
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.model import LockEntry, LockRequest, LockScope, LockState, Resource


class ThreadTurns:
    """The turns of the threads of this process.

    Args:
        queues: Where they wait.
    """

    def __init__(self, queues: MemoryLockManager) -> None:
        self._queues = queues
        self._taken: dict[str, HandoverLease] = {}

    def wait_for(self, acquire: Acquire) -> None:
        """Return when it is this thread's turn at the requested latch.

        Raises:
            Carried: Another thread has published the request's offer.
            LockError: As :meth:`LockManager.acquire`.
        """
        request = acquire.request
        # A thread that lost the lock and wants it again still has this process's turn.
        if request.scope is LockScope.COMMIT and not request.explicit and not self._has(request):
            self._taken[request.request_id] = self._queues.acquire(
                request, deadline=acquire.deadline, policy=acquire.policy
            )

    def of(self, request: LockRequest) -> HandoverLease | None:
        """Return the turn at what *request* locks, while that is acquired."""
        return self._taken.get(request.request_id)

    def is_awaited(self, request: LockRequest) -> bool:
        """Return whether another thread waits for the turn at the latch of *request*."""
        return bool(self.look(request.table, LockScope.COMMIT))

    def ended(self, request: LockRequest) -> None:
        """The acquire of *request* has ended: its lease has the turn."""
        self._taken.pop(request.request_id, None)

    def retract(self, request: LockRequest) -> bool:
        """See :meth:`Queue.retract`."""
        turn = self.of(request)
        return turn is None or turn.retract()

    def give_up(self, request: LockRequest) -> None:
        """Remove everything of *request*."""
        self._queues.give_up(request)

    def end_waits(self) -> None:
        """See :meth:`Acquirer.end_waits`."""
        self._queues.parts.acquirer.end_waits()

    def refuse_waits(self) -> None:
        """See :meth:`LockManager.refuse_waits`."""
        self._queues.refuse_waits()

    def look(self, resource: Resource | None, scope: LockScope | None) -> Sequence[LockEntry]:
        """Return the waiting requests."""
        return _waiting(self._queues.locks(resource, scope=scope))

    def free(self, request_id: str | None, resource: Resource | None) -> Sequence[LockEntry]:
        """Remove waiting requests by force, and return them."""
        return _waiting(self._queues.unlock(request_id=request_id, resource=resource))

    def _has(self, request: LockRequest) -> bool:
        """Return whether it is this thread's turn at what *request* locks."""
        turns = [set(lease.request.locks) for lease in self._queues.parts.held.by_this_client()]
        return any(turn.issuperset(request.locks) for turn in turns)


def _waiting(entries: Sequence[LockEntry]) -> list[LockEntry]:
    return [entry for entry in entries if entry.state is LockState.WAITING]
