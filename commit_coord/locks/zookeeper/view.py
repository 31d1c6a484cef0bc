"""Lists all locks in ZooKeeper and deletes locks of any owner, for administrators.

It reads every request. So an acquire uses it only to remove the request of a dead owner and to read an
owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.base import PAGE, Interrupted
from commit_coord.locks.forcing import NotRemoved
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.layout import LockData, LockNode, NodeLayout, RequestData, lock_nodes, unescape
from commit_coord.locks.zookeeper.nodes import CreateNode, DeleteNode, MultiRefused, NodeOperation, Reason, Stat
from commit_coord.model import Generation, LockEntry, LockMode, LockScope, LockState, Resource
from commit_coord.protocol.contention import nearest_blocker

_TABLE_DEPTH = 2

_TABLES = 16
"""Number of tables or databases that a page reads together."""


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A lock node in a listing."""

    path: str
    scope: LockScope
    resource: Resource
    node: LockNode
    data: LockData
    stat: Stat


@dataclass(slots=True)
class EarlierPages:
    """What the earlier pages of a listing have read."""

    requests: dict[str, RequestData | None] = field(default_factory=dict)
    blocked_by: dict[str, str] = field(default_factory=dict)


class LockView:
    """All locks of one namespace, ours and Hive's. Every method may be repeated after ``Interrupted``."""

    def __init__(self, session: ZooKeeperSession, layout: NodeLayout, page_size: int = PAGE) -> None:
        self._session = session
        self._layout = layout
        self._page_size = page_size

    def present(self) -> list[ListedNode]:
        """Return every lock node, oldest first."""
        found = [lock for scope in LockScope for lock in self._read(scope, self._walk(scope))]
        return sorted(found, key=lambda lock: (lock.stat.created, lock.resource))

    def top(self, scope: LockScope, resource: Resource | None) -> list[str]:
        """Return the paths at which :meth:`page` starts for the locks on *resource* and below it."""
        return [self._layout.root(scope) if resource is None else self._layout.resource(scope, resource)]

    def page(self, scope: LockScope, left: Sequence[str]) -> tuple[list[ListedNode], list[str]]:
        """Return all lock nodes of some resources, and the paths that are left for the next page.

        Args:
            scope: The scope of the locks.
            left: The paths that the page before has left, or :meth:`top`.
        """
        found: list[tuple[str, list[str]]] = []
        stack, size = list(reversed(left)), self._page_size
        depth = self._layout.root(scope).count("/") + _TABLE_DEPTH
        while stack and sum(len(lock_nodes(names)) for _, names in found) < size:
            # Tables may have 100,000 children each, and partitions hardly any.
            some = [stack.pop() for _ in range(min(len(stack), _TABLES if stack[-1].count("/") <= depth else size))]
            below = []
            for path, names in zip(some, self._session.names(some), strict=True):
                if path != self._layout.root(scope):  # a node of another program there locks no resource
                    found.append((path, names or []))
                below += [f"{path}/{name}" for name in sorted(names or ()) if LockNode.parse(name) is None]
            stack += reversed(below)
        return self._read(scope, found), stack[::-1]

    def _read(self, scope: LockScope, listed: Iterable[tuple[str, list[str]]]) -> list[ListedNode]:
        """Return the lock nodes among the listed children."""
        root, found = self._layout.root(scope), []
        nodes = [(path, node) for path, names in listed for node in lock_nodes(names)]
        held = self._session.get([f"{path}/{node.name}" for path, node in nodes])
        for (path, node), content in zip(nodes, held, strict=True):
            if content is not None:
                resource = Resource(tuple(map(unescape, path.removeprefix(root + "/").split("/"))))
                data = LockData.parse(content.data)
                found.append(ListedNode(f"{path}/{node.name}", scope, resource, node, data, content.stat))
        return found

    def entries(self, listed: Sequence[ListedNode], known: EarlierPages | None = None) -> list[LockEntry]:
        """Return the entries of *listed*; *known* has the results of earlier pages of the same listing."""
        known = known or EarlierPages()
        asked = dict.fromkeys(lock.data.request_id for lock in listed)
        known.requests |= self.requests(one for one in asked if one not in known.requests)
        known.blocked_by |= _blocked(listed)
        requests, blocked_by = known.requests, known.blocked_by
        entries = []
        for lock in listed:
            request_id = lock.data.request_id
            data = requests[request_id]
            entries.append(
                LockEntry(
                    resource=lock.resource,
                    mode=lock.node.mode,
                    scope=lock.scope,
                    state=LockState.WAITING if request_id in blocked_by else LockState.ACQUIRED,
                    owner=data.owner if data is not None else lock.data.owner,
                    request_id=request_id,
                    generation=Generation(lock.stat.created),
                    requested_at_ms=lock.stat.created_ms,
                    # The servers do not tell when they last heard of a session, so this is the maximum.
                    expires_in_ms=data.lease_ms if data is not None else None,
                    explicit=lock.data.explicit,
                    blocked_by=blocked_by.get(request_id),
                )
            )
        return entries

    def requests(self, request_ids: Iterable[str]) -> dict[str, RequestData | None]:
        """Return the data of the requests' markers; None for requests of Hive clients, which have none."""
        asked = list(request_ids)
        nodes = self._session.get([self._layout.request(one or "-") for one in asked])
        return {
            one: RequestData.parse(node.data) if node is not None else None
            for one, node in zip(asked, nodes, strict=True)
        }

    def abandoned(
        self, request_id: str, *, is_dead: bool = False, watch: Callable[[str | None], None] | None = None
    ) -> Sequence[NodeOperation] | None:
        """Return how to delete the marker of a LOCK statement's request that is abandoned; None if it is not.

        It was not granted, and no process waits for the grant. The servers refuse the returned operations if that is
        not true any more.

        Args:
            request_id: The request.
            is_dead: Whether its process is known to have ended.
            watch: Called once when the node that shows the wait is deleted: by the grant, or because the process ended.
        """
        statement, path = self._layout.statement(request_id), self._layout.request(request_id)
        # Another server than the one that recorded the grant may not have received it yet.
        self._session.exists([], sync=True)
        # The marker is read last: 1. A process waits.   2. It is granted: its node is deleted, and the marker changed.
        # In the other order, the marker could be read before step 2, and the node after it.
        (waits,) = self._session.get([statement], watch=watch)
        (marker,) = self._session.get([path])
        data = None if marker is None else RequestData.parse(marker.data)
        if marker is None or data is None or data.lease_ms is None:
            return None
        delete = DeleteNode(path, marker.stat.version)
        if is_dead:
            return [delete]
        if data.shows_its_wait and waits is None:
            # To create the node proves that nobody waits. The version is not enough: 1. The owner withdraws, which
            # deletes the marker.   2. It enters again: a new marker, of the same version.
            return [CreateNode(statement, ephemeral=True), DeleteNode(statement), delete]
        return None

    def remove(
        self, request_id: str, listed: Sequence[ListedNode], ending: Sequence[NodeOperation] | None = None
    ) -> bool:
        """Delete all nodes of a request that are among *listed*; return whether this call deleted any.

        Args:
            request_id: The request.
            listed: The nodes.
            ending: The operations that delete the marker, see :meth:`abandoned`; None deletes it as it is.

        Raises:
            NotRemoved: The marker is there, and the servers refuse *ending*; nothing was deleted.
            Interrupted: Some, or all, may be deleted.
            LockServiceUnavailable: None is.
        """
        locks = [lock for lock in listed if lock.data.request_id == request_id]
        created = {lock.stat.created for lock in locks}
        markers = [self._layout.request(request_id, part) for part in range(len(created))]
        removed = False
        try:
            for marker, stat in zip(markers, self._session.exists(markers), strict=True):
                if stat is not None:
                    created.discard(stat.created)
                    paths = [lock.path for lock in locks if lock.stat.created == stat.created]
                    first = ending if marker == markers[0] else None
                    removed |= self._remove_part(first or [DeleteNode(marker)], paths)
            # Locks without a marker are from Hive clients. A new node may have the same name, so compare czxid before.
            foreign = [lock for lock in locks if lock.stat.created in created]
            now = self._session.exists([lock.path for lock in foreign])
            same = [
                lock.path
                for lock, stat in zip(foreign, now, strict=True)
                if stat is not None and stat.created == lock.stat.created
            ]
            removed |= bool(same)
            self._session.delete_each(same)
        except LockServiceUnavailable as error:
            if not removed:
                raise
            # Whatever the servers refuse of the rest, a part may be gone.
            raise Interrupted(error.message, **error.details) from error
        return removed

    def empty(self, scope: LockScope) -> list[str]:
        """Return the nodes of resources without locks, children before their parents."""
        return [path for path, names in reversed(self._walk(scope)) if not lock_nodes(names)]

    def clear_orphans(self) -> None:
        """Delete nodes that would stay forever.

        These are the markers of LOCK statements whose locks Hive's UNLOCK has deleted, and the published waits of dead
        clients: of an earlier release, whose nodes were not ephemeral.
        """
        # Read before the markers: a request publishes its wait after it has created its marker.
        waiting, names = self._session.names([self._layout.waits, self._layout.requests])
        left = set(waiting or ()).difference(names or ())
        self._session.delete_each([f"{self._layout.waits}/{name}" for name in sorted(left)])
        markers = [f"{self._layout.requests}/{name}" for name in names or ()]
        persistent = [
            marker
            for marker, stat in zip(markers, self._session.exists(markers), strict=True)
            if stat is not None and stat.session == 0
        ]
        if persistent:
            # Read after the markers: one multi creates a marker and its locks, so the locks of each listed marker
            # existed already. If they are missing now, they were deleted.
            present = self.present()
            created = {lock.stat.created for lock in present}
            stats = zip(persistent, self._session.exists(persistent), strict=True)
            self._session.delete_each([marker for marker, stat in stats if stat and stat.created not in created])

    def _remove_part(self, ending: Sequence[NodeOperation], paths: list[str]) -> bool:
        while True:
            try:
                self._session.multi([*ending, *map(DeleteNode, paths)])
                return True
            except MultiRefused as refused:
                if refused.index >= len(ending):
                    del paths[refused.index - len(ending)]  # Hive's UNLOCK has deleted this lock.
                elif refused.index == len(ending) - 1 and refused.reason is Reason.MISSING:
                    return False  # Its owner has released it already.
                else:
                    raise NotRemoved from refused  # Its owner waits, or it is granted.

    def _walk(self, scope: LockScope) -> list[tuple[str, list[str]]]:
        """Return every node of a resource in *scope* with the names of its children, parents first."""
        root = self._layout.root(scope)
        level, found = [root], []
        while level:
            below = []
            for path, names in zip(level, self._session.names(level), strict=True):
                if names is not None:
                    if path != root:
                        found.append((path, names))
                    below += [f"{path}/{name}" for name in names if LockNode.parse(name) is None]
            level = below
        return found


def _blocked(listed: Sequence[ListedNode]) -> dict[str, str]:
    """Return for each blocked request id the request id that blocks it."""
    # The czxid of a node is its place: it grows along every queue.
    queues: dict[LockScope, dict[Resource, dict[LockMode, list[int]]]] = {scope: {} for scope in LockScope}
    at_place: dict[int, str] = {}
    for lock in listed:
        queues[lock.scope].setdefault(lock.resource, {}).setdefault(lock.node.mode, []).append(lock.stat.created)
        at_place[lock.stat.created] = lock.data.request_id
    nearest: dict[str, int] = {}
    for lock in listed:
        before = nearest_blocker(lock.stat.created, [(lock.resource, lock.node.mode)], queues[lock.scope])
        if before is not None:
            nearest[lock.data.request_id] = max(before, nearest.get(lock.data.request_id, 0))
    return {request_id: at_place[place] for request_id, place in nearest.items()}
