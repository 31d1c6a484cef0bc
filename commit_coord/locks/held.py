"""The locks that the threads of this process hold: through one client, and through any client.

A thread that requests a lock that it already holds is refused, also in S, because it could wait forever:

1. The thread holds S on a table.
2. Another owner asks for X and waits for it.
3. The thread asks for S again and is queued behind the X: each waits for the other until the deadline.
"""

from __future__ import annotations

import weakref
from typing import Any

from commit_coord.errors import LockReentered
from commit_coord.locks.base import Lease
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.threads import Threads
from commit_coord.model import LeaseState, LockMode, LockRequest, LockScope, Resource
from commit_coord.process import Host
from commit_coord.protocol.modes import compatible


class Held:
    """The leases of the threads of this process by one client."""

    def __init__(self, threads: Threads, host: Host) -> None:
        self._host = host
        self._by_client: Any = threads.noted()
        self._by_any: Any = threads.noted_anywhere()

    @property
    def agent(self) -> str:
        """The name of this thread, which no other one of any process ever has."""
        try:
            return self._by_any.agent  # type: ignore[no-any-return]
        except AttributeError:
            self._by_any.agent = self._host.new_id().hex
            return self._by_any.agent  # type: ignore[no-any-return]

    def add(self, lease: Lease) -> None:
        """Note that this thread holds *lease*, as long as anybody refers to it."""
        for noted in (self._by_client, self._by_any):
            noted.leases = [*map(weakref.ref, _live(noted)), weakref.ref(lease)]

    def by_this_client(self) -> list[Lease]:
        """Return the leases of this thread by this client that have not ended: another thread may have released one."""
        leases = _live(self._by_client)
        self._by_client.leases = [weakref.ref(lease) for lease in leases]
        return leases

    def by_any_client(self) -> list[Lease]:
        """Return the leases of this thread that have not ended."""
        return _live(self._by_any)

    def on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """Return the lease by which this thread holds *resource* for an operation, or what it lies in, in *mode*."""
        above = {resource, *resource.ancestors}
        for lease in self.by_this_client():
            held = lease.request.locks if lease.request.scope is LockScope.OPERATION else ()
            if (resource, mode) in held or any(mine in above and how is LockMode.EXCLUSIVE for mine, how in held):
                return lease
        return None

    def refuse_reentry(self, request: LockRequest) -> None:
        """Raise LockReentered when this thread holds something of *request* by this client already."""
        wanted = dict(request.locks)
        for lease in self.by_this_client():
            # What a LOCK statement took waits for no end of this thread's, so what is compatible with it is granted.
            shared = [
                str(r)
                for r, mode in lease.request.locks
                if r in wanted and not (lease.request.explicit and compatible(wanted[r], mode))
            ]
            if shared and lease.request.scope is request.scope:
                raise LockReentered(
                    "this thread already holds a lock on the resource and would wait for itself",
                    resource=", ".join(shared),
                    held=lease.request,
                    wanted=request,
                    scope=request.scope.value,
                )

    def refuse_own(self, request: LockRequest, blocker: Blocker | None) -> None:
        """Raise LockReentered when *blocker* is this thread's own, held by another client: another catalog's."""
        for lease in self.by_any_client() if blocker is not None else ():
            if blocker is not None and lease.request.request_id == blocker.request_id:
                raise LockReentered(
                    "this thread holds a lock on the resource through another catalog object and would wait for itself",
                    held=lease.request,
                    wanted=request,
                    scope=request.scope.value,
                )


def _live(noted: Any) -> list[Lease]:
    leases: list[weakref.ref[Lease]] = getattr(noted, "leases", [])
    return [lease for ref in leases if (lease := ref()) and lease.state in (LeaseState.HELD, LeaseState.SUSPECT)]
