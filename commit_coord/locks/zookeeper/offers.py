"""Offers of waiting requests in ZooKeeper: made with the request, taken and settled by the holder.

An offer is a separate node, created and deleted by the same multis as its request. The first line of its data is the id
of the request that took it. To take an offer is a change of a certain version of the node, and to retract it is a
deletion of a certain version. So if a holder takes an offer while its owner retracts it, exactly one of them succeeds.
One multi takes many offers; it also checks that the holder's marker exists.

A holder's release deletes, in one multi with its own nodes, the requests whose appends it committed, and writes their
outcomes into the journal: a waiter that finds its request gone finds the outcome, at whatever server it looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.layout import LockData, NodeLayout, lock_nodes, packets
from commit_coord.locks.zookeeper.nodes import (
    ChangeNode,
    CheckNode,
    CreateNode,
    DeleteNode,
    MultiRefused,
    NodeOperation,
)
from commit_coord.model import LockRequest, Offer

_CHANGE = 1000
"""Bytes in a packet for the change of an offer, without its text: the path of its node, and the id of the taker."""


@dataclass(frozen=True, slots=True)
class TakenNodes:
    """A taken offer, and the nodes of its request.

    Args:
        offer: The offer.
        nodes: The paths of the request's marker, of its lock and of its offer.
        version: The version of the offer's node after it was taken.
    """

    offer: Offer
    nodes: tuple[str, str, str]
    version: int


class ZooKeeperOffers:
    """The offers of one namespace. Every method may be repeated after ``Interrupted``."""

    def __init__(self, session: ZooKeeperSession, layout: NodeLayout) -> None:
        self._session = session
        self._layout = layout

    def entering(self, request: LockRequest) -> list[NodeOperation]:
        """Return the operation that makes the offer of *request*."""
        return [CreateNode(self._layout.offer(request.request_id), _data("", request.offer), ephemeral=True)]

    def take(self, queue: str, own_lock: str, taker: str, limit: int) -> list[TakenNodes]:
        """Take the offers of the requests directly behind *own_lock* in *queue*, oldest first.

        Args:
            queue: The parent of the lock nodes.
            own_lock: The name of the holder's lock node.
            taker: The holder's request id.
            limit: The maximum number of offers.
        """
        (listing,) = self._session.children([queue])
        nodes = lock_nodes(listing.names) if listing is not None else []
        own = next((node for node in nodes if node.name == own_lock), None)
        if own is None:
            return []
        locks = [f"{queue}/{node.name}" for node in nodes if own.before(node)][:limit]
        held = takewhile(lambda lock: lock is not None, self._session.get(locks))
        waiting = [LockData.parse(lock.data).request_id for lock in held if lock is not None]
        offers = self._session.get([self._layout.offer(one) for one in waiting])
        found: list[TakenNodes] = []
        marks: list[NodeOperation] = []
        # One packet marks all of them, and one packet gives them back.
        sizes = (_CHANGE + len(node.data) for node in offers if node is not None)
        fitting = next(packets(sizes), slice(0))
        for lock, request_id, node in zip(locks, waiting, offers[fitting], strict=False):
            if node is None:
                break
            by, _, text = node.data.decode().partition("\n")
            if by not in ("", taker):
                break  # An earlier holder has taken it, and may still commit it.
            path = self._layout.offer(request_id)
            if not by:
                marks.append(ChangeNode(path, _data(taker, text), node.stat.version))
            taken = Offer(request_id=request_id, text=text)
            nodes_of_it = self._layout.request(request_id), lock, path
            found.append(TakenNodes(taken, nodes_of_it, node.stat.version + (0 if by else 1)))
        return self._marked(found, marks, taker)

    def _marked(self, found: list[TakenNodes], marks: list[NodeOperation], taker: str) -> list[TakenNodes]:
        """Mark the offers as taken; return them, up to the first one that its owner has retracted meanwhile."""
        while marks:
            try:
                self._session.multi([CheckNode(self._layout.request(taker)), *marks])
                break
            except MultiRefused as refused:
                if refused.index == 0:
                    return []  # The holder's lock was released by force.
                lost = marks[refused.index - 1].path
                found = found[: next(place for place, one in enumerate(found) if one.nodes[2] == lost)]
                marks = marks[: refused.index - 1]
        return found

    def retract(self, request_id: str) -> bool:
        """Retract an offer; return whether it is certain that no holder has taken it or will take it."""
        path = self._layout.offer(request_id)
        if self._is_deleted(path, 0):  # No holder has ever taken it.
            return True
        (node,) = self._session.get([path])
        return node is not None and node.data.startswith(b"\n") and self._is_deleted(path, node.stat.version)

    def _is_deleted(self, path: str, version: int) -> bool:
        try:
            self._session.multi([DeleteNode(path, version)])
        except MultiRefused:
            return False
        return True

    @staticmethod
    def ending(taken: Mapping[str, TakenNodes], done: Sequence[str]) -> list[list[NodeOperation]]:
        """Return the operations that delete the requests *done*, one list for each request, the last request first.

        So when an owner is notified that the request before its own is gone, its own request is gone already. In the
        other order the owner would read the queue again without need.
        """
        return [[*map(DeleteNode, taken[one].nodes)] for one in reversed(done) if one in taken]

    @staticmethod
    def returning(taken: Mapping[str, TakenNodes], returned: Iterable[str]) -> list[list[NodeOperation]]:
        """Return the operations that return the offers *returned* to their owners, one list for each offer."""
        return [
            # Only this version: a repeated release must not return an offer that the next holder has taken since.
            [ChangeNode(taken[one].nodes[2], _data("", taken[one].offer.text), taken[one].version)]
            for one in returned
            if one in taken
        ]


def _data(taker: str, text: str) -> bytes:
    return f"{taker}\n{text}".encode()
