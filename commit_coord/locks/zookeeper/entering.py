"""Creates the nodes of a request and finds the request that blocks it.

One multi creates all nodes of a part, and the client sends the listings of the resources directly after the multi. So
an uncontended lock costs one round trip. A resource that was free once stays free for this request, because no other
request can enter the queue before it.

The generation of a lease is the largest pzxid of its resources when they were free: the last transaction that created
or deleted a child. It is not smaller than the transaction that created our own nodes. It is larger than the generation
of any earlier holder, because the deletion of that holder's nodes is a later transaction below the same resources.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from commit_coord.clock import Clock
from commit_coord.errors import OfferLost
from commit_coord.locks.acquiring import REMOVED, Carried, RemovedByForce
from commit_coord.locks.base import BRIEFLY, Interrupted
from commit_coord.locks.handover import OFFER_IS_GONE
from commit_coord.locks.held import Held
from commit_coord.locks.keeping import Tickets
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.journal import ClientJournal
from commit_coord.locks.zookeeper.layout import (
    LockData,
    LockNode,
    NodeLayout,
    RequestData,
    lock_data,
    lock_nodes,
    nearest_before,
)
from commit_coord.locks.zookeeper.nodes import (
    ChangeNode,
    CheckNode,
    ChildListing,
    CreateNode,
    DeleteNode,
    MultiRefused,
    Node,
    NodeOperation,
)
from commit_coord.locks.zookeeper.offers import ZooKeeperOffers
from commit_coord.locks.zookeeper.request_nodes import RequestNodes
from commit_coord.locks.zookeeper.tickets import Gone, NodeBlocker, RequestPart, ZooKeeperTicket
from commit_coord.model import LockMode, LockRequest, Resource

_TOGETHER = 32
"""For up to this many resources, the listings are sent directly after the multi, even if they may not be needed."""

_NO_SESSION = -1


class Entering:
    """Enters the parts of one client's requests into their queues.

    Args:
        session: The session.
        layout: The paths of the nodes.
        nodes: Finds the nodes of requests.
        offers: Makes the offer of a request.
        journal: Stores the outcomes of offers.
        tickets: The requests of this client.
        held: Gives the name of the calling thread.
        clock: The clock.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        layout: NodeLayout,
        nodes: RequestNodes,
        offers: ZooKeeperOffers,
        journal: ClientJournal,
        tickets: Tickets[ZooKeeperTicket],
        held: Held,
        clock: Clock,
    ) -> None:
        self._session = session
        self._layout = layout
        self._nodes = nodes
        self._offers = offers
        self._journal = journal
        self._tickets = tickets
        self._held = held
        self._clock = clock

    def look_for_answer(self, ticket: ZooKeeperTicket, *, entered: bool) -> None:
        """Look for the outcome of *ticket*'s offer after its nodes are gone.

        If the outcome is not known, return; the request then enters again without its offer, and the ticket is marked
        as doubtful. The offer is never made a second time, because otherwise this could happen:

        1. A latch holder commits the offered append and deletes the request. We do not learn this, or our session was
        lost before it.
        2. We enter again with the same offer. The next holder can't know that its append was committed, and commits it
        a second time.

        Raises:
            Carried: A latch holder has committed the offered append.
            OfferLost: The request was deleted within our session, and the outcome is not in the journal.
        """
        self.take_answer(ticket)
        if entered and ticket.session == self._session.number:
            raise OfferLost(OFFER_IS_GONE, locks=ticket.request)
        ticket.offers, ticket.doubtful, ticket.was_contended = False, True, True

    def take_answer(self, ticket: ZooKeeperTicket) -> None:
        """Raise :class:`Carried` if the journal says that the append of *ticket*'s offer was committed."""
        request_id = ticket.request.request_id
        if entry := self._journal.recall(request_id):
            self._tickets.pop(request_id, None)
            raise Carried(entry)

    def enter_part(self, ticket: ZooKeeperTicket, part: RequestPart, deadline: float) -> NodeBlocker | None:
        """Enter *part* if it has not entered yet. If a request blocks it, watch and return the blocking request."""
        request = ticket.request
        patience = max(BRIEFLY, min(deadline - self._clock.now(), self._session.timeout_ms / 1000))
        if part.nodes is None:
            listings = self._create(ticket, part, patience)
        elif part.unclear:
            listings = self._look_again(ticket, part, patience)
        else:
            return None
        while True:
            blocked = self._judge(ticket, part, listings)
            if blocked is None:
                return None
            resource, node = blocked
            path = f"{self._nodes.path(request, resource)}/{node.name}"
            ticket.turn.clear()
            # After the clear, so that a session that is lost later sets the turn.
            if ticket.shows_its_wait and ticket.session != self._session.number:
                self._show_the_wait_again(ticket, patience)
            # Watch our own marker too: the request may be removed by force.
            found, marker = self._session.get([path, part.marker], patience, watch=partial(woken, ticket, part))
            if marker is None:
                raise Gone
            if found is not None:
                data = LockData.parse(found.data)
                return NodeBlocker(
                    request_id=data.request_id,
                    owner=data.owner,
                    requested_at_ms=found.stat.created_ms,
                    path=path,
                    resource=resource,
                    explicit=data.explicit,
                )
            listings = self._look_again(ticket, part, patience)

    def _look_again(self, ticket: ZooKeeperTicket, part: RequestPart, patience: float) -> list[ChildListing | None]:
        """Return the listings of the resources that are not known to be free.

        The answer goes through the leader, so it confirms the ticket as of the time when the request was sent.
        """
        sent = self._clock.now()
        paths = [self._nodes.path(ticket.request, resource) for resource in part.unclear]
        listings: list[ChildListing | None]
        if ticket.request.table is not None:
            listing, note = self._session.queue(paths[0], self._layout.note(ticket.request.table), patience)
            listings = [listing]
            self._noted(ticket, note)
        else:
            listings = self._session.children(paths, patience, sync=True)
        ticket.last_confirmed_at = max(ticket.last_confirmed_at, sent)
        return listings

    def _look_long_after(
        self, ticket: ZooKeeperTicket, part: RequestPart, patience: float
    ) -> list[ChildListing | None]:
        """Do :meth:`_look_again` after a lost reply, and treat the request as contended.

        1. Our nodes are created behind those of a holder; the reply is lost.
        2. The holder takes our offer, and ends without a known outcome.
        3. Now no request blocks ours. This does not prove that none has blocked it before.
        """
        ticket.was_contended = True
        return self._look_again(ticket, part, patience)

    @staticmethod
    def _noted(ticket: ZooKeeperTicket, note: Node | None) -> None:
        ticket.handover_note = "" if note is None else note.data.decode()
        ticket.noted = None if note is None else note.stat.version

    def keep(self, ticket: ZooKeeperTicket) -> None:
        """Record in its marker that the request of a LOCK statement is granted: from now on it outlives its process.

        Raises:
            RemovedByForce: It is gone.
        """
        change = ChangeNode(ticket.parts[0].marker, self._marker_data(ticket.request, None).text())
        wait = [DeleteNode(self._layout.statement(ticket.request.request_id))]
        while True:
            try:
                self._session.multi([change, *wait])
                break
            except MultiRefused as refused:
                if refused.index == 0:
                    raise RemovedByForce(REMOVED, locks=ticket.request) from refused
                wait = []  # The session was lost, and the node with it; or the reply to an earlier try.
        ticket.shows_its_wait = False

    def _show_the_wait_again(self, ticket: ZooKeeperTicket, patience: float) -> None:
        """Create the node of a LOCK statement that waits, in the present session: it was lost with an earlier one.

        Meanwhile another client may find the request abandoned. The change of the marker's version closes this race:

        1. It reads the marker's version, and that the node does not exist.   2. We create the node.
        3. It deletes the marker of that version: refused.

        Raises:
            Gone: The request was removed.
        """
        marker, path = ticket.parts[0].marker, self._layout.statement(ticket.request.request_id)
        again = self._marker_data(ticket.request, self._session.timeout_ms).text()
        number = self._session.number
        for _ in range(2):
            try:
                self._session.multi([ChangeNode(marker, again), CreateNode(path, ephemeral=True)], patience)
                ticket.session = number
                return
            except MultiRefused as refused:
                if refused.index == 0:
                    raise Gone from None
            # It may be of a session that has not ended yet, or of this one: the reply was lost.
            self._session.delete_each([path])
        raise Interrupted("an earlier session created the node of its wait", locks=ticket.request)

    def _marker_data(self, request: LockRequest, lease_ms: int | None) -> RequestData:
        return RequestData(
            client=self._tickets.client,
            owner=request.owner,
            scope=request.scope,
            lease_ms=lease_ms,
            agent=self._held.agent,
            shows_its_wait=request.explicit and lease_ms is not None,
        )

    def _create(self, ticket: ZooKeeperTicket, part: RequestPart, patience: float) -> list[ChildListing | None]:
        """Create the nodes of *part* and return the listings of its resources."""
        request, first = ticket.request, part is ticket.parts[0]
        lives, data = not request.explicit, self._marker_data(request, self._session.timeout_ms)
        part.unclear = [resource for resource, _ in part.locks]
        if part.sent and ticket.offers:
            if self._nodes.find(ticket, part, patience):
                return self._look_long_after(ticket, part, patience)
            self.look_for_answer(ticket, entered=False)
        operations: list[NodeOperation] = [CreateNode(part.marker, data.text(), ephemeral=lives)]
        if ticket.offers:
            operations += self._offers.entering(request)
        if not first:
            operations.append(CheckNode(ticket.parts[0].marker))
        elif request.explicit:
            ticket.shows_its_wait = True
            operations.append(CreateNode(self._layout.statement(request.request_id), ephemeral=True))
        locks = [self._layout.lock(request.scope, resource, mode) for resource, mode in part.locks]
        text = lock_data(request, self._clock.wall_ms())
        operations += [CreateNode(path, text, ephemeral=lives, sequential=True) for path in locks]
        marked = {one: mode for one, mode in part.locks if self._layout.is_marked(request.scope, one)}
        operations += [
            ChangeNode(self._nodes.path(request, one), request.request_id.encode())
            for one, mode in marked.items()
            if mode is LockMode.EXCLUSIVE
        ]
        shared_marked = [one for one, mode in marked.items() if mode is LockMode.SHARED]
        resources = [self._nodes.path(request, one) for one in part.unclear if one not in shared_marked]
        notes = [] if request.table is None else [request.table]
        self._session.reach(patience)
        part.sent, sent = True, self._clock.now()
        if first:
            ticket.session = self._session.number
        try:
            together = resources if len(resources) <= _TOGETHER else []
            created, listings, found = self._session.multi(
                operations,
                patience,
                then_list=together,
                then_get=[*(self._nodes.path(request, one) for one in shared_marked), *map(self._layout.note, notes)],
            )
        except MultiRefused as refused:
            if refused.index == 1 and not first:
                raise Gone from None
            if not self._nodes.find(ticket, part, patience):
                raise Interrupted("the request was added and removed while its reply was lost", locks=request) from None
            if request.explicit:
                # 1. The multi is executed; its reply and the session are lost.   2. Here it is refused. The nodes are
                # there, but for the one that shows the wait: the present session has to create it.
                ticket.session = _NO_SESSION
            return self._look_long_after(ticket, part, patience)
        part.nodes = dict(zip(part.unclear, created[-len(locks) :], strict=True))
        ticket.last_confirmed_at = max(ticket.last_confirmed_at, sent)
        if notes:
            self._noted(ticket, found.pop())
        self._check_marks(ticket, part, shared_marked, found)
        if len(together) == len(part.unclear):
            return listings
        if not together:
            # The node with number 0 is the first child that its parent ever had, so no lock is before it.
            later = [one for one in part.unclear if not part.nodes[one].endswith("-0000000000")]
            # At least one listing is needed for the generation.
            part.unclear = later if later or len(part.unclear) < len(part.locks) else part.unclear[:1]
        return self._look_again(ticket, part, patience) if part.unclear else []

    def _check_marks(
        self,
        ticket: ZooKeeperTicket,
        part: RequestPart,
        shared_marked: Sequence[Resource],
        found: Sequence[Node | None],
    ) -> None:
        """Record which of the resources *shared_marked*, requested in S, are free because they have no mark."""
        for resource, node in zip(shared_marked, found, strict=True):
            if node is None:
                raise Gone
            if node.data:
                part.marks[resource] = node.stat.version
            else:
                ticket.generation = max(ticket.generation, node.stat.changed_below)
                part.unclear.remove(resource)

    def clear_marks(self, request: LockRequest, part: RequestPart, unmarked: Sequence[Resource]) -> None:
        """Clear marks of X locks that are gone.

        1. We find a mark with version 7.   2. The listing shows no X lock.
        3. Another request enters an X lock and writes its mark: version 8.
        4. Our change, which clears the data of version 7, is refused.

        As long as our nodes exist, the resource's node can't have been deleted and created again, so the versions are
        comparable. If our nodes are gone:

        1. We find a mark with version 1.   2. The listing shows no X lock.
        3. Our nodes are deleted, and then the empty parent.
        4. Another request enters an X lock: a new parent, version 1.   5. Our change is refused, as our marker is gone.
        """
        for resource in unmarked:
            change = ChangeNode(self._nodes.path(request, resource), b"", part.marks.pop(resource))
            with suppress(MultiRefused):
                self._session.multi([CheckNode(part.marker), change])

    def _judge(
        self, ticket: ZooKeeperTicket, part: RequestPart, listings: Sequence[ChildListing | None]
    ) -> tuple[Resource, LockNode] | None:
        """Return the first blocked resource and the node that blocks it; record which resources are free."""
        assert part.nodes is not None
        blocked: tuple[Resource, LockNode] | None = None
        unclear, unmarked = [], []
        for resource, listing in zip(list(part.unclear), listings, strict=True):
            queue = lock_nodes(listing.names) if listing is not None else []
            path = part.nodes.get(resource, "")
            own = next((node for node in queue if path.endswith(f"/{node.name}")), None)
            if listing is None or own is None:
                raise Gone
            if resource in part.marks and not any(node.mode is LockMode.EXCLUSIVE for node in queue):
                unmarked.append(resource)
            before = nearest_before(own, queue)
            if before is None:
                ticket.generation = max(ticket.generation, listing.stat.changed_below)
            else:
                unclear.append(resource)
                blocked = blocked or (resource, before)
        part.unclear = unclear
        self.clear_marks(ticket.request, part, unmarked)
        return blocked


def woken(ticket: ZooKeeperTicket, part: RequestPart, path: str | None) -> None:
    """Wake the thread of *ticket*, which then looks at its queues again; called in kazoo's thread.

    But do not wake it for a deletion of its own:

    1. The thread withdraws, to wait apart until the blocking lock is gone.
    2. The withdrawal deletes the marker that the thread watches.
    3. If this woke the thread, it would enter behind the same lock and withdraw again, as long as the lock is held.
    """
    if path == part.marker:
        if part.withdrawn:
            return
        ticket.ended = True
    ticket.turn.set()
