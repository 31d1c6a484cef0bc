"""Lists the locks in ZooKeeper, and releases locks by force."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from commit_coord.clock import Clock
from commit_coord.locks.forcing import FreedLocks, telling_what_was_freed
from commit_coord.locks.keeping import Keeper, Retries, Tickets
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.nodes import NodeOperation
from commit_coord.locks.zookeeper.service import ZooKeeperLeases
from commit_coord.locks.zookeeper.tickets import ZooKeeperTicket
from commit_coord.locks.zookeeper.view import EarlierPages, ListedNode, LockView
from commit_coord.model import LockEntry, LockScope, Resource, entries_by_request
from commit_coord.process import Host
from commit_coord.protocol.lease import LeaseEvent

_Endings = Mapping[str, Sequence[NodeOperation] | None]
"""Requests to remove, each with the operations that delete its marker, see :meth:`LockView.remove`."""


class ZooKeeperLockTable:
    """The locks of one namespace, for administrators.

    Args:
        session: The session.
        view: Reads and deletes the locks.
        tickets: The requests of this client.
        leases: Removes unused parents later.
        keeper: Is notified when a lease of this client is released by force.
        retries: Repeats interrupted calls.
        clock: The clock.
        host: Knows which processes of this host have ended.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        view: LockView,
        tickets: Tickets[ZooKeeperTicket],
        leases: ZooKeeperLeases,
        keeper: Keeper[ZooKeeperTicket],
        retries: Retries,
        clock: Clock,
        host: Host,
    ) -> None:
        self._host = host
        self._session = session
        self._view = view
        self._tickets = tickets
        self._leases = leases
        self._keeper = keeper
        self._retries = retries
        self._clock = clock

    def look(self, resource: Resource | None, scope: LockScope | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.look`."""
        depth = len(resource.path) if resource else 0
        with self._session.call():
            self._session.begin()
            entries = self._retries.briefly(lambda: self._view.entries(self._view.present()))
        return [
            entry
            for entry in entries
            if scope in (None, entry.scope) and (resource is None or entry.resource.path[:depth] == resource.path)
        ]

    def pages(self, resource: Resource | None, scope: LockScope | None) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockTable.pages`."""
        self._session.begin()
        known = EarlierPages()
        for one in (scope,) if scope else LockScope:
            left = self._view.top(one, resource)
            while left:
                present, left = self._retries.briefly(partial(self._view.page, one, left))
                if present:
                    yield self._retries.briefly(partial(self._view.entries, present, known))

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockTable.listed`."""
        return resource

    def free(self, request_id: str | None, resource: Resource | None) -> Sequence[LockEntry]:
        """See :meth:`LockTable.free`."""

        def chosen(entries: Sequence[LockEntry]) -> _Endings:
            named = {request_id} | {entry.request_id for entry in entries if resource and entry.resource == resource}
            return {entry.request_id: None for entry in entries if entry.request_id in named}

        with self._session.call():
            return self._free(chosen)

    def free_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockTable.free_each`."""
        present, entries = self._present()
        by_request = entries_by_request(entries)
        nodes: dict[str, list[ListedNode]] = {}
        for node in present:
            nodes.setdefault(node.data.request_id, []).append(node)
        for request_id in request_ids:
            with telling_what_was_freed() as freed:
                self._remove(request_id, nodes.get(request_id, []), by_request.get(request_id, []), freed)
            yield freed

    def reap(self, *, dry_run: bool) -> Sequence[LockEntry]:
        """See :meth:`LockTable.reap`. The servers remove expired locks themselves. This also removes empty parents."""
        if dry_run:
            present = self.look(None, None)
            left = self._left(present)
            return [entry for entry in present if entry.request_id in left]
        with self._session.call(), telling_what_was_freed() as freed:
            freed.extend(self._free(self._left))
            self._retries.briefly(self._view.clear_orphans)
            for scope in LockScope:
                self._retries.briefly(partial(self._clear, scope))
        return freed

    def _clear(self, scope: LockScope) -> None:
        self._session.delete_each(self._view.empty(scope))

    def _free(self, chosen: Callable[[Sequence[LockEntry]], _Endings]) -> Sequence[LockEntry]:
        """Remove every request that *chosen* returns; return all entries of the removed requests."""
        present, entries = self._present()
        by_request = entries_by_request(entries)
        with telling_what_was_freed() as freed:
            for one, ending in chosen(entries).items():
                self._remove(one, present, by_request[one], freed, ending)
        return freed

    def _present(self) -> tuple[list[ListedNode], list[LockEntry]]:
        """Return all lock nodes, and their entries."""
        self._session.begin()
        present = self._retries.briefly(self._view.present)
        return present, self._retries.briefly(partial(self._view.entries, present))

    def _remove(
        self,
        request_id: str,
        present: Sequence[ListedNode],
        entries: Sequence[LockEntry],
        freed: FreedLocks,
        ending: Sequence[NodeOperation] | None = None,
    ) -> None:
        """Remove the nodes of a request that are among *present*; add its *entries* to *freed* if it is gone."""
        remove = partial(self._view.remove, request_id, present, ending)
        if not freed.free(entries, remove, repeat=self._retries.briefly):
            return
        self._leases.unused_parents.update(((entry.scope, entry.resource), self._clock.now()) for entry in entries)
        own = self._tickets.get(request_id)
        if own is not None:
            own.turn.set()
            self._keeper.observe(own, LeaseEvent.DENIED, "released by force")

    def _left(self, entries: Sequence[LockEntry]) -> _Endings:
        """Return the requests among *entries* whose owner is dead, and the LOCK statements that were abandoned.

        The session of a dead owner may not have expired yet.
        """
        left: dict[str, Sequence[NodeOperation] | None] = {}
        for request_id, (entry, *_) in entries_by_request(entries).items():
            is_dead = self._host.is_dead(entry.owner.process)
            if not entry.explicit:
                if is_dead:
                    left[request_id] = None
            elif entry.expires_in_ms is not None:  # Otherwise it was granted, or is of Hive's.
                ending = self._retries.briefly(partial(self._view.abandoned, request_id, is_dead=is_dead))
                if ending is not None:
                    left[request_id] = ending
        return left
