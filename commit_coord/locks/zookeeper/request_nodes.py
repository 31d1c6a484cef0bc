"""The nodes of a request: its parts, their paths, and which of them exist.

A lost reply
    1. The multi is executed; the connection breaks before the answer arrives.
    2. The same multi is sent again in the same session, and is refused because the marker exists.
    3. The marker names this client; so the locks of the request are the nodes that the same transaction created.
    A multi that was on its way when the connection broke can't be executed after step 2: the leader refuses requests
    from an old connection of a session that has moved to another one.
"""

from __future__ import annotations

from dataclasses import replace

from commit_coord.clock import Clock
from commit_coord.errors import LockRefused
from commit_coord.locks.base import BRIEFLY
from commit_coord.locks.keeping import Tickets
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.layout import NodeLayout, RequestData, chunks, lock_data, lock_nodes
from commit_coord.locks.zookeeper.tickets import Bygone, RequestPart, ZooKeeperTicket
from commit_coord.model import LockMode, LockRequest, Resource


class RequestNodes:
    """The nodes of one client's requests.

    Args:
        session: The session.
        layout: The paths of the nodes.
        tickets: The requests of this client.
        acl_size: Bytes of the ACL of each node.
        clock: The clock.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        layout: NodeLayout,
        tickets: Tickets[ZooKeeperTicket],
        acl_size: int,
        clock: Clock,
    ) -> None:
        self._session = session
        self._layout = layout
        self._tickets = tickets
        self._acl_size = acl_size
        self._clock = clock

    def path(self, request: LockRequest, resource: Resource) -> str:
        """Return the parent of the lock nodes on *resource*."""
        return self._layout.resource(request.scope, resource)

    def cut(self, request: LockRequest, locks: tuple[tuple[Resource, LockMode], ...]) -> list[RequestPart]:
        """Return the parts of *request*, each of which fits into one multi."""
        data_size = len(lock_data(request, self._clock.wall_ms()))
        cut = chunks(self._layout, replace(request, locks=locks), data_size=data_size, acl_size=self._acl_size)
        return [RequestPart(self._layout.request(request.request_id, part), chunk) for part, chunk in enumerate(cut)]

    def find(self, ticket: ZooKeeperTicket, part: RequestPart, patience: float = BRIEFLY) -> bool:
        """Find the nodes of *part*; return whether there are any.

        Raises:
            LockRefused: Another client uses the request id.
            Bygone: The nodes belong to a session that was lost.
        """
        request, number = ticket.request, self._session.number
        # Sync first: another server than the one that executed the multi may not have received it yet.
        (stat,) = self._session.exists([part.marker], patience, sync=True)
        (marker,) = self._session.get([part.marker], patience) if stat is not None else (None,)
        if marker is None:
            return False
        data = RequestData.parse(marker.data)
        if data is None or data.client != self._tickets.client:
            part.sent = False
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        if not request.explicit and marker.stat.session != self._session.id:
            raise Bygone("the nodes of a lost session still exist", locks=request)
        if part is ticket.parts[0]:
            # Otherwise: 1. Our session is lost while the multi is on its way.   2. The multi is executed in the next
            # session; the reply is lost.   3. We would take the nodes for those of the lost session: the request would
            # get no lease, and nobody would delete the nodes.
            ticket.session = number
        resources = [self.path(request, resource) for resource, _ in part.locks]
        candidates = [
            (resource, f"{path}/{node.name}")
            for (resource, mode), path, listing in zip(
                part.locks, resources, self._session.children(resources, patience), strict=True
            )
            if listing is not None
            for node in lock_nodes(listing.names)
            if node.mode is mode
        ]
        stats = self._session.exists([path for _, path in candidates], patience)
        part.nodes = {
            resource: path
            for (resource, path), stat in zip(candidates, stats, strict=True)
            if stat is not None and stat.created == marker.stat.created
        }
        return True
