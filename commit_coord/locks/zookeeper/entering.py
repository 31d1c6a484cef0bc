"""How the parts of a request enter their queues, and what is found in their way.

All nodes of a part are created in one multi, with the listings of its resources sent right behind it, so that an
uncontended lock costs one round trip. What was found free once stays free, since nobody can step in before it.

The generation is the last transaction below the locked resources when they were found free (pzxid). It is not
smaller than that of our own nodes' creation, and larger than any that an earlier holder can have seen: the removal
of its nodes is a transaction below the same resources.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from commit_coord.clock import Clock
from commit_coord.errors import OfferLost
from commit_coord.locks.acquiring import Carried
from commit_coord.locks.base import BRIEFLY, Interrupted
from commit_coord.locks.held import Held
from commit_coord.locks.keeping import Tickets
from commit_coord.locks.zookeeper.client import Session
from commit_coord.locks.zookeeper.journal import ClientJournal
from commit_coord.locks.zookeeper.layout import (
    Layout,
    LockData,
    LockNode,
    RequestData,
    lock_data,
    lock_nodes,
    nearest_before,
)
from commit_coord.locks.zookeeper.nodes import Change, Check, Create, Listing, MultiRefused, Node, Operation
from commit_coord.locks.zookeeper.offers import Offers
from commit_coord.locks.zookeeper.request_nodes import RequestNodes
from commit_coord.locks.zookeeper.tickets import Gone, NodeBlocker, Part, ZooKeeperTicket
from commit_coord.model import LockMode, LockRequest, Resource

_TOGETHER = 32
"""Resources whose listings are asked for right behind the multi, before it is known whether they are needed."""


class Entering:
    """Enters the parts of one client's requests.

    Args:
        session: By which they enter.
        layout: Where their nodes lie.
        nodes: The nodes of requests.
        offers: Published with a request.
        journal: Says what became of an offer.
        tickets: The client's.
        held: Names the thread that asks.
        clock: Where time comes from.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        nodes: RequestNodes,
        offers: Offers,
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
        """Raise what became of the offer of *ticket*, whose nodes are gone; return to enter without it, in doubt.

        It is never published a second time:

        1. A holder carries it out, and ends the request; we have not heard of it, or lost our session before.
        2. We enter again, with an offer that is new to everybody, and it is carried out twice.
        """
        self.take_answer(ticket)
        if entered and ticket.session == self._session.number:
            raise OfferLost("the request is gone, and what became of its offer is not known", locks=ticket.request)
        ticket.offers, ticket.doubtful, ticket.was_contended = False, True, True

    def take_answer(self, ticket: ZooKeeperTicket) -> None:
        """Raise what became of the offer of *ticket*, if the journal says it."""
        request_id = ticket.request.request_id
        if entry := self._journal.recall(request_id):
            self._tickets.pop(request_id, None)
            raise Carried(entry)

    def enter_part(self, ticket: ZooKeeperTicket, part: Part, deadline: float) -> NodeBlocker | None:
        """Enter *part* if that has not happened, look who is in its way, and watch that one."""
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
            # Our own marker too: somebody may take us out by force.
            found, marker = self._session.get([path, part.marker], patience, watch=partial(woken, ticket, part.marker))
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

    def _look_again(self, ticket: ZooKeeperTicket, part: Part, patience: float) -> list[Listing | None]:
        """Return the listings of what is not free yet; the leader answers, and with its answer a lease begins."""
        sent = self._clock.now()
        paths = [self._nodes.path(ticket.request, resource) for resource in part.unclear]
        listings: list[Listing | None]
        if ticket.request.table is not None:
            listing, note = self._session.queue(paths[0], self._layout.note(ticket.request.table), patience)
            listings = [listing]
            self._noted(ticket, note)
        else:
            listings = self._session.children(paths, patience, sync=True)
        ticket.last_confirmed_at = max(ticket.last_confirmed_at, sent)
        return listings

    def _look_long_after(self, ticket: ZooKeeperTicket, part: Part, patience: float) -> list[Listing | None]:
        """As :meth:`_look_again`, for nodes whose reply was lost.

        1. They are made behind a holder.   2. That one takes the offer, and ends in doubt.
        3. We look now, and nobody is in the way: that does not mean that nobody was.
        """
        ticket.was_contended = True
        return self._look_again(ticket, part, patience)

    @staticmethod
    def _noted(ticket: ZooKeeperTicket, note: Node | None) -> None:
        ticket.handover_note = "" if note is None else note.data.decode()
        ticket.noted = None if note is None else note.stat.version

    def _create(self, ticket: ZooKeeperTicket, part: Part, patience: float) -> list[Listing | None]:
        """Create the nodes of *part* and return the listings of its resources."""
        request, first = ticket.request, part is ticket.parts[0]
        lives = not request.explicit
        data = RequestData(
            client=self._tickets.client,
            owner=request.owner,
            scope=request.scope,
            lease_ms=self._session.timeout_ms if lives else None,
            agent=self._held.agent,
        )
        part.unclear = [resource for resource, _ in part.locks]
        if part.sent and ticket.offers:
            if self._nodes.find(ticket, part, patience):
                return self._look_long_after(ticket, part, patience)
            self.look_for_answer(ticket, entered=False)
        operations: list[Operation] = [Create(part.marker, data.text(), ephemeral=lives)]
        if ticket.offers:
            operations += self._offers.entering(request)
        if not first:
            operations.append(Check(ticket.parts[0].marker))
        locks = [self._layout.lock(request.scope, resource, mode) for resource, mode in part.locks]
        text = lock_data(request, self._clock.wall_ms())
        operations += [Create(path, text, ephemeral=lives, sequential=True) for path in locks]
        marked = {one: mode for one, mode in part.locks if self._layout.is_marked(request.scope, one)}
        operations += [
            Change(self._nodes.path(request, one), request.request_id.encode())
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
                raise Interrupted("the request came and went while its reply was lost", locks=request) from None
            return self._look_long_after(ticket, part, patience)
        part.nodes = dict(zip(part.unclear, created[-len(locks) :], strict=True))
        ticket.last_confirmed_at = max(ticket.last_confirmed_at, sent)
        if notes:
            self._noted(ticket, found.pop())
        self._check_marks(ticket, part, shared_marked, found)
        if len(together) == len(part.unclear):
            return listings
        if not together:
            # Who has number 0 is the first child that its parent ever had: nobody stands before it.
            later = [one for one in part.unclear if not part.nodes[one].endswith("-0000000000")]
            # One listing is needed in any case, for the generation.
            part.unclear = later if later or len(part.unclear) < len(part.locks) else part.unclear[:1]
        return self._look_again(ticket, part, patience) if part.unclear else []

    def _check_marks(
        self, ticket: ZooKeeperTicket, part: Part, shared_marked: Sequence[Resource], found: Sequence[Node | None]
    ) -> None:
        """Note which of *shared_marked*, wanted in S, are free because nobody has marked them."""
        for resource, node in zip(shared_marked, found, strict=True):
            if node is None:
                raise Gone
            if node.data:
                part.marks[resource] = node.stat.version
            else:
                ticket.generation = max(ticket.generation, node.stat.changed_below)
                part.unclear.remove(resource)

    def clear_marks(self, request: LockRequest, part: Part, unmarked: Sequence[Resource]) -> None:
        """Wipe marks of X locks that are gone.

        1. A mark is found, of version 7.   2. The list shows no X.   3. Somebody enters an X, and marks it: version 8.
        4. Version 7 can't be wiped any more.
        """
        for resource in unmarked:
            with suppress(MultiRefused):
                self._session.multi([Change(self._nodes.path(request, resource), b"", part.marks.pop(resource))])

    def _judge(
        self, ticket: ZooKeeperTicket, part: Part, listings: Sequence[Listing | None]
    ) -> tuple[Resource, LockNode] | None:
        """Return the first resource that is blocked, and by whom; note what is free."""
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


def woken(ticket: ZooKeeperTicket, marker: str, path: str | None) -> None:
    """Have *ticket* look again; called in kazoo's thread."""
    ticket.ended |= path == marker
    ticket.turn.set()
