"""Lists the locks in a metastore, and releases locks by force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from commit_coord.clock import Clock
from commit_coord.errors import LockRefused, MetastoreUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import LockOfTransaction, MetaError, MetastoreServerFailed
from commit_coord.locks.forcing import telling_what_was_freed
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.calls import LockCalls
from commit_coord.locks.hms.heartbeat_log import HeartbeatLog, is_over
from commit_coord.locks.hms.requests import FOREIGN, HmsTicket, MetastoreLock, grouped, nearest_to, translated
from commit_coord.locks.hms.turns import ThreadTurns
from commit_coord.locks.keeping import Keeper, Tickets
from commit_coord.model import Generation, LockEntry, LockScope, LockState, Resource, entries_by_request
from commit_coord.process import Host
from commit_coord.protocol.lease import LeaseEvent

_LOOK_AGAIN = 0.5
"""Seconds between two checks whether heartbeats have moved."""

_UNKNOWN = (MetastoreUnavailable, MetaError, MetastoreServerFailed)
"""Errors of an unlock that may have been carried out: a server also fails if its database does not answer."""

_INTERNAL = "__"
"""Prefix of the names of databases that Hive 4 locks for internal use."""


class HmsLockTable:
    """The locks of a metastore, as an administrator sees them.

    Args:
        metastore: Where they are.
        tickets: The requests of this client.
        calls: Those that are being sent.
        turns: What waits in this process.
        keeper: Is notified when a lease of this client is released by force.
        clock: Time.
        host: Knows which processes have ended.
    """

    def __init__(
        self,
        metastore: MetastoreClient,
        tickets: Tickets[HmsTicket],
        calls: LockCalls,
        turns: ThreadTurns,
        keeper: Keeper[HmsTicket],
        clock: Clock,
        host: Host,
    ) -> None:
        self._metastore = metastore
        self._tickets = tickets
        self._calls = calls
        self._turns = turns
        self._keeper = keeper
        self._clock = clock
        self._host = host

    def look(self, resource: Resource | None, scope: LockScope | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.look`. Locks of other programs are in the commit scope, like our latches."""
        # Read the threads first: then a request that goes from here to the metastore in between is listed, not lost.
        threads = self._turns.look(resource, scope)
        listed = self._listed(resource, scope)
        there = {entry.request_id for entry in listed}
        return [*listed, *(entry for entry in threads if entry.request_id not in there)]

    def pages(self, resource: Resource | None, scope: LockScope | None) -> Iterator[Sequence[LockEntry]] | None:
        """See :meth:`LockTable.pages`."""
        return None

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockTable.listed`."""
        return hms_names.listed(resource)

    def free(self, request_id: str | None, resource: Resource | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.free`. Locks of other programs have the ids ``hms-<lock id>``."""
        with telling_what_was_freed() as freed:
            freed.extend(self._turns.free(request_id, resource))
            listed = self._listed()
            named = (resource, self.listed(resource)) if resource is not None else ()
            chosen = {
                entry.generation
                for entry in listed
                if entry.request_id == request_id or (entry.resource in named and not entry.guard)
            }
            freed.extend(self._free(entry for entry in listed if entry.generation in chosen))
        return freed

    def free_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockTable.free_each`."""
        waiting = {entry.request_id for entry in self._turns.look(None, None)}
        listed = self._listed()
        by_lock: dict[Generation | None, list[LockEntry]] = {}
        for entry in listed:
            by_lock.setdefault(entry.generation, []).append(entry)
        by_request = entries_by_request(listed)
        for request_id in request_ids:
            with telling_what_was_freed() as freed:
                freed.extend(self._turns.free(request_id, None))
                if request_id in waiting and not freed:
                    # It has gone to the metastore since. If it has its locks by now, nobody agreed to their release.
                    moved = (entry for entry in self._listed() if entry.request_id == request_id)
                    freed.extend(self._free(entry for entry in moved if entry.state is LockState.WAITING))
                else:
                    chosen = dict.fromkeys(entry.generation for entry in by_request.get(request_id, ()))
                    freed.extend(self._free(entry for lock in chosen for entry in by_lock[lock]))
            yield freed

    def reap(self, *, dry_run: bool) -> Sequence[LockEntry]:
        """See :meth:`LockTable.reap`. This watches the present locks until each has had a heartbeat, or is over."""
        over = self._watched()
        dead = [entry for lock in over for entry in self._entries(lock, None)]
        return dead if dry_run else self._free(dead)

    def _listed(self, resource: Resource | None = None, scope: LockScope | None = None) -> list[LockEntry]:
        paths = [one.path for one in (resource, self.listed(resource))] if resource is not None else [()]
        return [
            entry
            for lock, blocked_by in self.with_blockers(resource, scope)
            for entry in self._entries(lock, blocked_by)
            if scope in (None, entry.scope) and any(entry.resource.path[: len(path)] == path for path in paths)
        ]

    def with_blockers(
        self, resource: Resource | None, scope: LockScope | None
    ) -> list[tuple[MetastoreLock, MetastoreLock | None]]:
        """Return the locks that may concern *resource*, each with the one that it waits for."""
        places: list[tuple[str | None, str | None]] = []
        if resource is None:
            places = [(hms_names.OPERATIONS if scope is LockScope.OPERATION else None, None)]
        else:
            table = resource.path[1] if len(resource.path) > 1 else None
            if scope is not LockScope.OPERATION:
                places.append((resource.path[0], table))
            if scope is not LockScope.COMMIT:
                places.append((hms_names.OPERATIONS, hms_names.operation_table(resource) if table else None))
        with translated(None):
            locks = grouped(
                one
                for place in places
                for one in self._metastore.show_locks(*place)
                if one.part.table not in (hms_names.REQUESTS, hms_names.RELEASES)
                and not one.part.db.startswith(_INTERNAL)
            )
        # A request that this client is still sending has no known place: if it were released, it would be sent again.
        locks = [one for one in locks if one.request_id not in self._calls.sending]
        by_table: dict[tuple[str, str], list[MetastoreLock]] = {}
        for one in locks:
            for key in {(listed.part.db, listed.part.table) for listed in one.listed}:
                by_table.setdefault(key, []).append(one)
        return [(one, None if one.acquired else nearest_to(one, by_table)) for one in locks]

    def _entries(self, lock: MetastoreLock, blocker: MetastoreLock | None) -> Iterator[LockEntry]:
        info = lock.agent_info
        left = None
        if info is not None and info.lease_ms is not None:
            # By the clocks of two machines: a hint for people. That a lease is over, only `reap` can tell.
            left = min(info.lease_ms, info.lease_ms - (self._clock.wall_ms() - lock.heartbeat_ms))
            left = left if left > 0 else None
        for listed in sorted(lock.listed, key=lambda one: hms_names.resource_of(one.part)[1]):
            scope, resource = hms_names.resource_of(listed.part)
            yield LockEntry(
                resource=resource,
                mode=hms_names.mode_of(listed.part),
                scope=scope,
                state=LockState.ACQUIRED if lock.acquired else LockState.WAITING,
                owner=hms_names.owner_of(listed, info),
                request_id=lock.request_id,
                generation=Generation(lock.lock_id),
                requested_at_ms=info.requested_ms if info else listed.acquired_ms or listed.heartbeat_ms,
                expires_in_ms=left,
                explicit=info is not None and info.lease_ms is None,
                guard=info is not None and info.guard,
                blocked_by=blocker.request_id if blocker else None,
            )

    def _watched(self) -> list[MetastoreLock]:
        """Return the locks of dead owners, once each other lock has had a new heartbeat."""
        over: list[MetastoreLock] = []
        heartbeats: HeartbeatLog = {}
        first: dict[int, int] | None = None
        while True:
            asked = self._clock.now()
            locks = [one for one, _ in self.with_blockers(None, None)]
            answered = self._clock.now()
            if first is None:
                own = {ticket.lock_id for ticket in list(self._tickets.values())}
                leased = [one for one in locks if (info := one.agent_info) is not None and not info.guard]
                first = {one.lock_id: one.heartbeat_ms for one in leased if one.lock_id not in own}
            doubtful: list[MetastoreLock] = []
            for one in locks:
                if first.get(one.lock_id) != one.heartbeat_ms:
                    continue  # It came later, it is not to be judged, or it lives.
                gone = is_over(
                    one.listed[0],
                    one.heartbeat_ms,
                    heartbeats=heartbeats,
                    failures=self._metastore.failures,
                    asked=asked,
                    answered=answered,
                    host=self._host,
                )
                if gone:
                    over.append(one)
                elif (info := one.agent_info) is not None and (
                    info.lease_ms is not None or (one.lock_id in heartbeats and not one.listed[0].acquired)
                ):
                    doubtful.append(one)
            if not doubtful:
                return over
            first = {one.lock_id: one.heartbeat_ms for one in doubtful}
            self._clock.sleep(_LOOK_AGAIN)

    def _free(self, chosen: Iterable[LockEntry]) -> Sequence[LockEntry]:
        by_lock: dict[int, list[LockEntry]] = {}
        for entry in chosen:
            by_lock.setdefault(int(entry.generation or 0), []).append(entry)
        refusals: list[LockRefused] = []
        with telling_what_was_freed() as freed, translated(None):
            for lock_id, entries in sorted(by_lock.items()):
                try:
                    freed.free(entries, partial(self._unlock, lock_id), unknown=_UNKNOWN)
                except LockRefused as error:
                    refusals.append(error)  # It keeps no other lock from being freed.
                    continue
                for ticket in list(self._tickets.values()):
                    if ticket.lock_id == lock_id:
                        self._keeper.observe(ticket, LeaseEvent.DENIED, "released by force")
            if refusals:
                raise refusals[0]
        return freed

    def _unlock(self, lock_id: int) -> bool:
        try:
            self._metastore.unlock(lock_id)
        except LockOfTransaction as error:
            raise LockRefused(
                "the lock belongs to a transaction of Hive, whose end releases it; see Hive's "
                "SHOW TRANSACTIONS and ABORT TRANSACTIONS",
                request_id=f"{FOREIGN}{lock_id}",
            ) from error
        return True
