"""The nodes of a request: how it is cut into parts, where they lie, and which of them there are.

A lost reply
    1. The multi is done; the connection is cut before the answer arrives.
    2. The same multi is sent again, in the same session, and meets the request's own node.
    3. That node names this client: the locks are those nodes that the same transaction created.
    A multi that was under way when the connection was cut can't come later than this: the leader refuses what
    arrives by a connection from which the session has moved.
"""

from __future__ import annotations

from dataclasses import replace

from commit_coord.clock import Clock
from commit_coord.errors import LockRefused
from commit_coord.locks.base import BRIEFLY
from commit_coord.locks.keeping import Tickets
from commit_coord.locks.zookeeper.client import Session
from commit_coord.locks.zookeeper.layout import Layout, RequestData, chunks, lock_data, lock_nodes
from commit_coord.locks.zookeeper.tickets import Bygone, Part, ZooKeeperTicket
from commit_coord.model import LockMode, LockRequest, Resource


class RequestNodes:
    """The nodes of one client's requests.

    Args:
        session: By which they are asked for.
        layout: Where they lie.
        tickets: The client's.
        acl_size: Bytes of the access control list of each.
        clock: Where time comes from.
    """

    def __init__(
        self, session: Session, layout: Layout, tickets: Tickets[ZooKeeperTicket], acl_size: int, clock: Clock
    ) -> None:
        self._session = session
        self._layout = layout
        self._tickets = tickets
        self._acl_size = acl_size
        self._clock = clock

    def path(self, request: LockRequest, resource: Resource) -> str:
        """Return the node that the locks on *resource* lie below."""
        return self._layout.resource(request.scope, resource)

    def cut(self, request: LockRequest, locks: tuple[tuple[Resource, LockMode], ...]) -> list[Part]:
        """Return the parts of *request*, each of which fits into one multi."""
        data_size = len(lock_data(request, self._clock.wall_ms()))
        cut = chunks(self._layout, replace(request, locks=locks), data_size=data_size, acl_size=self._acl_size)
        return [Part(self._layout.request(request.request_id, part), chunk) for part, chunk in enumerate(cut)]

    def find(self, ticket: ZooKeeperTicket, part: Part, patience: float = BRIEFLY) -> bool:
        """Find out which nodes *part* has, if it has any; return whether it has.

        Raises:
            LockRefused: The request id is somebody else's.
            Bygone: It has some, of a session that was lost.
        """
        request, number = ticket.request, self._session.number
        # Behind a sync: another server than the one that did the multi may not know of it yet.
        (stat,) = self._session.exists([part.marker], patience, sync=True)
        (marker,) = self._session.get([part.marker], patience) if stat is not None else (None,)
        if marker is None:
            return False
        data = RequestData.parse(marker.data)
        if data is None or data.client != self._tickets.client:
            part.sent = False
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        if not request.explicit and marker.stat.session != self._session.id:
            raise Bygone("the nodes of a session that was lost are still there", locks=request)
        if part is ticket.parts[0]:
            # 1. Our session is lost while the multi is on its way.   2. It is done in the next one; the answer is lost.
            # 3. The nodes count for those of the lost session: no lease for us, and nobody gives them back.
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
