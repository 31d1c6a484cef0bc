"""Each waiting client publishes the requests that block it, in a node, so that all of them can detect a deadlock.

A thread that holds no lock can't be part of a deadlock, so only threads that hold a lock publish their waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.base import Interrupted
from commit_coord.locks.held import Held
from commit_coord.locks.keeping import Tickets
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.layout import (
    LockData,
    NodeLayout,
    RequestData,
    blocks,
    lock_nodes,
    parse_wait,
    wait_data,
)
from commit_coord.locks.zookeeper.nodes import CreateNode, MultiRefused
from commit_coord.locks.zookeeper.request_nodes import RequestNodes
from commit_coord.locks.zookeeper.tickets import UNHEARD, RequestPart, ZooKeeperTicket
from commit_coord.model import LockRequest
from commit_coord.protocol.deadlock import Obstacle, Wait


class PublishedWaits:
    """The published waits of all clients.

    Args:
        session: The session.
        layout: The paths of the nodes.
        nodes: Finds the nodes of requests.
        tickets: The requests of this client.
        held: Names the waiting thread.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        layout: NodeLayout,
        nodes: RequestNodes,
        tickets: Tickets[ZooKeeperTicket],
        held: Held,
    ) -> None:
        self._session = session
        self._layout = layout
        self._nodes = nodes
        self._tickets = tickets
        self._held = held

    def waits(self, request: LockRequest) -> Sequence[Wait]:
        """See :meth:`Deadlocks.waits`."""
        ticket = self._tickets[request.request_id]
        first, path = ticket.parts[0], self._layout.wait(request.request_id)
        (marker,) = self._session.exists([first.marker])
        if marker is None or not first.unclear:
            return ()
        # The session, too: the node ends with it, and the marker of a LOCK statement does not.
        place = marker.created, self._session.number
        if ticket.tells != place:
            wait = self._wait_of(ticket, first, marker.created)
            ticket.tells = UNHEARD
            self._publish(path, wait_data(wait))
            ticket.tells = place
        # Read after our own write: if two clients publish at the same time, at least one of them reads both waits.
        (names,) = self._session.names([self._layout.waits])
        published = self._session.get([f"{self._layout.waits}/{name}" for name in names or ()])
        found = [parse_wait(node.data) for node in published if node is not None]
        return [wait for wait in found if wait is not None]

    def _publish(self, path: str, data: bytes) -> None:
        """Create the node of a wait, in place of an earlier one.

        Whether there is one is not known, because an earlier packet or its reply may have been lost. To change its data
        is not enough, because it may belong to a session that has not ended yet.
        """
        for _ in range(2):
            with suppress(MultiRefused):
                self._session.multi([CreateNode(path, data, ephemeral=True)])
                return
            self._session.delete_each([path])
        raise Interrupted("an earlier request of this client created the node of its wait", path=path)

    def _wait_of(self, ticket: ZooKeeperTicket, part: RequestPart, place: int) -> Wait:
        """Return the wait of *ticket*: all requests that block *part* on resources that are not free yet."""
        assert part.nodes is not None
        request, paths = ticket.request, []
        queues = [self._nodes.path(request, resource) for resource in part.unclear]
        for resource, queue, listing in zip(part.unclear, queues, self._session.children(queues), strict=True):
            nodes = lock_nodes(listing.names) if listing is not None else []
            own = next((node for node in nodes if part.nodes[resource].endswith(f"/{node.name}")), None)
            paths += [f"{queue}/{node.name}" for node in nodes if own is not None and blocks(node, own)]
        ids = {LockData.parse(node.data).request_id for node in self._session.get(paths) if node is not None}
        markers = self._session.get([self._layout.request(one) for one in sorted(ids)])
        made = [
            (one, node, RequestData.parse(node.data)) for one, node in zip(sorted(ids), markers, strict=True) if node
        ]
        # What this thread took, and holds no more, it does not wait for itself to release: the servers remove it, as it
        # was of a client that is closed. They do not remove a granted LOCK statement, which has no lease.
        held, agent = {lease.request.request_id for lease in self._held.by_any_client()}, self._held.agent
        return Wait(
            request_id=request.request_id,
            place=place,
            agent=agent,
            owner=request.owner,
            wanted=(part.unclear[0], dict(part.locks)[part.unclear[0]]),
            obstacles=[
                Obstacle(request_id=one, place=node.stat.created, agent=data.agent)
                for one, node, data in made
                if data is not None and (data.agent != agent or one in held or data.lease_ms is None)
            ],
        )

    def all_present(self, places: Mapping[str, int]) -> bool:
        """See :meth:`Deadlocks.all_present`."""
        stats = self._session.exists([self._layout.request(one) for one in places], sync=True)
        return [None if stat is None else stat.created for stat in stats] == list(places.values())

    def tell_no_more(self, ticket: ZooKeeperTicket) -> None:
        """Delete the published wait of *ticket*."""
        if ticket.tells is not None:
            # If this fails, the release deletes it. Until then the old wait does no harm: its request has left, or the
            # requests that blocked it are gone. So no cycle through this wait passes `all_present`.
            with suppress(LockServiceUnavailable):
                self._session.delete_each([self._layout.wait(ticket.request.request_id)])
                ticket.tells = None
