"""The queues in ZooKeeper: sequential nodes in Hive's layout, with watches instead of polling.

Theory of operation
    ``layout`` describes the nodes, ``client`` wraps the driver, ``entering`` creates the nodes. A blocked request
    watches one node: the nearest one that blocks it in the first blocked resource. When that node is deleted, the
    request looks at its queues again.

Requests that don't fit into one multi
    They are split into parts, which enter one after the other. While the first part waits, the request holds nothing.
    If a later part had to wait, the request would wait while it holds locks, which can cause a deadlock. So if a later
    part is blocked, the request deletes all its nodes, waits *apart* (outside of all queues) until the blocker is gone,
    and enters again. After some rounds it locks prefixes of its partitions instead of the partitions, until the whole
    request fits into one multi and can wait in its queues.

Locks of Hive's own clients
    A Hive client acquires its locks one by one, and keeps them while it tries to acquire more. A commit_coord request
    for several locks could block it and wait for it at the same time, which would be a deadlock. So a request that
    waits for a lock of a Hive client withdraws after some seconds and waits apart, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from commit_coord.clock import Clock
from commit_coord.errors import LockError, LockRefused, LockServiceUnavailable, OfferLost
from commit_coord.locks.acquiring import Acquire, RemovedByForce
from commit_coord.locks.base import LockSettings
from commit_coord.locks.blockers import Blocker, Holder, holder_facts
from commit_coord.locks.forcing import NotRemoved
from commit_coord.locks.handover import OFFER_IS_GONE, HandoverLease
from commit_coord.locks.keeping import CarryingLease, Keeper, Retries, Tickets
from commit_coord.locks.threads import Threads
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.connection import SessionEvent
from commit_coord.locks.zookeeper.deadlocks import PublishedWaits
from commit_coord.locks.zookeeper.entering import Entering, woken
from commit_coord.locks.zookeeper.layout import HIVE_APPLICATION, LockData, lock_nodes
from commit_coord.locks.zookeeper.offers import ZooKeeperOffers
from commit_coord.locks.zookeeper.request_nodes import RequestNodes
from commit_coord.locks.zookeeper.service import ZooKeeperLeases
from commit_coord.locks.zookeeper.session_age import RELAY
from commit_coord.locks.zookeeper.tickets import Gone, NodeBlocker, ZooKeeperTicket
from commit_coord.locks.zookeeper.view import LockView
from commit_coord.model import Generation, LockMode, LockRequest, Offer, Owner
from commit_coord.process import Host
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.hierarchy import escalate
from commit_coord.protocol.lease import OVERDUE

_APART = Backoff(initial_ms=50, maximum_ms=1000)
"""Random sleep before a withdrawn request enters again: otherwise requests that collided would collide again."""

_ROUNDS = 3
"""Number of withdrawals after which a request in parts locks prefixes instead of partitions."""

NEXT_TO_HIVE_S = 5.0
"""Seconds for which a waiter keeps its place behind a lock of Hive's own."""


class ZooKeeperQueue:
    """The queues of one namespace, from the point of view of one client.

    Args:
        session: The session.
        nodes: Finds the nodes of requests.
        entering: Creates the nodes of requests.
        offers: The offers of waiting requests.
        view: Reads the requests of other clients.
        deadlocks: Publishes the waits of this client.
        tickets: The requests of this client.
        leases: Keeps and releases leases in ZooKeeper.
        keeper: Extends the leases, and releases them.
        retries: Repeats interrupted calls.
        threads: How threads wait.
        settings: Times.
        clock: Time and random numbers.
        host: Knows which processes of this host have ended.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        nodes: RequestNodes,
        entering: Entering,
        offers: ZooKeeperOffers,
        view: LockView,
        deadlocks: PublishedWaits,
        tickets: Tickets[ZooKeeperTicket],
        leases: ZooKeeperLeases,
        keeper: Keeper[ZooKeeperTicket],
        retries: Retries,
        threads: Threads,
        settings: LockSettings,
        clock: Clock,
        host: Host,
    ) -> None:
        self._host = host
        self.tickets = tickets
        self.deadlocks = deadlocks
        self.session = session
        self._nodes = nodes
        self._entering = entering
        self._offers = offers
        self._view = view
        self.leases = leases
        self._keeper = keeper
        self._retries = retries
        self._threads = threads
        self._settings = settings
        self._clock = clock

    def knows(self, request_id: str) -> bool:
        """See :meth:`Queue.knows`."""
        return request_id in self.tickets

    def enter(self, acquire: Acquire) -> Blocker | None:
        """See :meth:`Queue.enter`."""
        request = acquire.request
        ticket = ZooKeeperTicket(
            request=request,
            parts=self._nodes.cut(request, request.locks),
            offers=bool(request.offer),
            turn=self._threads.turn(),
        )
        # Register the ticket before anything is sent. So a request without a ticket has no nodes.
        if self.tickets.setdefault(request.request_id, ticket) is not ticket:
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        try:
            return self._advance(ticket, acquire.deadline)
        except LockServiceUnavailable as error:
            # 1. The multi is executed, and its reply is lost.   2. A holder takes the offer.   3. No server answers us.
            # If nothing was sent, nobody can have taken the offer.
            sent = ticket.doubtful or any(part.sent for part in ticket.parts)
            if not request.offer or not sent or self.retract(request):
                raise
            raise OfferLost("the lock service is unreachable; the offer may have been taken", locks=request) from error

    def _advance(self, ticket: ZooKeeperTicket, deadline: float) -> NodeBlocker | None:
        """Enter the parts that have not entered yet. Return the request that blocks this one; None if it is granted."""
        if ticket.ended and ticket.offers:
            ticket.ended = False
            self._entering.take_answer(ticket)
        while True:
            try:
                for part in ticket.parts:
                    blocker = self._retries.until(deadline, partial(self._entering.enter_part, ticket, part, deadline))
                    if blocker is None:
                        continue
                    return blocker if part is ticket.parts[0] else self._withdraw_and_wait(ticket, blocker, deadline)
                return None
            except Gone:
                if ticket.offers:
                    self._entering.look_for_answer(ticket, entered=True)
                if ticket.session == self.session.number:
                    if ticket.doubtful:
                        raise OfferLost(OFFER_IS_GONE, locks=ticket.request) from None
                    raise RemovedByForce(
                        "the request was removed from the queue by force", locks=ticket.request
                    ) from None
                # The session was lost. The servers removed our nodes; or, for a LOCK statement, another client did:
                # enter again, at the end of the queues.
                self._begin_anew(ticket)

    def _begin_anew(self, ticket: ZooKeeperTicket) -> None:
        locks = tuple(lock for part in ticket.parts for lock in part.locks)
        ticket.parts, ticket.generation = self._nodes.cut(ticket.request, locks), 0

    def _withdraw_and_wait(self, ticket: ZooKeeperTicket, blocker: NodeBlocker, deadline: float) -> NodeBlocker:
        """Delete all nodes of the request, to wait for *blocker* outside of all queues.

        If the offer may have been taken, keep the nodes, because otherwise this could happen:

        1. A holder takes the offer. We delete the offer with our nodes, enter again, and make a second offer.
        2. The deadline passes. We retract the second offer: nobody has taken it, so we report the commit as a failure.
        3. The holder commits the append of the first offer.
        """
        if ticket.offers and not self.retract(ticket.request):
            # Keep the place in the queue; measure the wait behind this lock from now.
            ticket.behind = blocker.path, self._clock.now()
            return blocker
        for part in ticket.parts:
            part.withdrawn = True
        self._retries.until(deadline, lambda: self.leases.remove(ticket))
        self._begin_anew(ticket)
        if len(ticket.parts) > 1:
            ticket.rounds += 1
            if ticket.rounds >= _ROUNDS:
                self._lift(ticket)
        return replace(blocker, apart=True)

    def _lift(self, ticket: ZooKeeperTicket) -> None:
        """Lock prefixes instead of partitions, so that the request fits into one multi."""
        limit = len(ticket.request.locks) // 2
        while limit and len(ticket.parts) > 1:
            ticket.parts = self._nodes.cut(ticket.request, escalate(ticket.request.locks, limit))
            limit //= 2

    def wait(self, acquire: Acquire, blocker: Blocker, until: float) -> Blocker | None:
        """See :meth:`Queue.wait`."""
        request, deadline = acquire.request, until
        assert isinstance(blocker, NodeBlocker)
        ticket = self.tickets[request.request_id]
        ticket.was_contended = True
        tick = self._settings.poll_interval_ms / 1000
        if ticket.behind[0] != blocker.path:
            ticket.behind = blocker.path, self._clock.now()
        while not ticket.turn.is_set():
            left = deadline - self._clock.now()
            if left <= 0 or acquire.is_closed:
                return blocker
            # The first tick reads the blocker's marker. After that, a tick normally checks only processes of this host.
            if ticket.turn.wait(min(left, tick)):
                break
            if not blocker.known:
                blocker = self._identified(blocker, ticket, deadline)
            foreign = not blocker.owner.process and blocker.owner.application == HIVE_APPLICATION
            if foreign and not blocker.apart and self._clock.now() - ticket.behind[1] >= NEXT_TO_HIVE_S:
                blocker = self._withdraw_and_wait(ticket, blocker, deadline)
            if not blocker.outlives and self._host.is_dead(blocker.owner.process):
                blocker = self._retries.until(deadline, partial(self._remove_dead, blocker))
        if blocker.apart:
            ticket.turn.clear()
            self._clock.sleep(
                min(next_wait(_APART, ticket.rounds, self._clock.random()), max(0.0, deadline - self._clock.now()))
            )
        return self._advance(ticket, deadline)

    def _remove_dead(self, blocker: NodeBlocker) -> NodeBlocker:
        """Remove *blocker*, whose process has ended, unless it outlives its process; return what is known of it."""
        ending = None
        if blocker.explicit:
            ending = self._view.abandoned(blocker.request_id, is_dead=True)
            if ending is None:
                return replace(blocker, outlives=True)
        with suppress(NotRemoved):
            self._view.remove(blocker.request_id, self._view.present(), ending)
        return blocker

    def _identified(self, blocker: NodeBlocker, ticket: ZooKeeperTicket, deadline: float) -> NodeBlocker:
        """Return *blocker* with the owner that the marker of its request names; remove it if it is abandoned.

        A request of a Hive client has no marker; it keeps the owner that its lock node names.
        """
        data = self._retries.until(deadline, lambda: self._view.requests([blocker.request_id]))[blocker.request_id]
        if blocker.explicit:
            watch = partial(woken, ticket, ticket.parts[0])
            self._retries.until(deadline, partial(self._remove_abandoned, blocker.request_id, watch))
        return replace(blocker, known=True, owner=data.owner if data is not None else blocker.owner)

    def _remove_abandoned(self, request_id: str, watch: Callable[[str | None], None]) -> None:
        """Remove the request of a LOCK statement if it is abandoned; otherwise call *watch* when it may be."""
        while (ending := self._view.abandoned(request_id, watch=watch)) is not None:
            with suppress(NotRemoved):
                self._view.remove(request_id, self._view.present(), ending)
                return

    def grant(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`Queue.grant`."""
        request = acquire.request
        ticket = self.tickets[request.request_id]
        self.deadlocks.tell_no_more(ticket)
        if request.explicit:
            self._retries.briefly(partial(self._entering.keep, ticket))
        else:
            self._be_heard()
        lease = CarryingLease(self._keeper, self, ticket, Generation(ticket.generation))
        ticket.lease = lease
        if not request.explicit:
            self._keeper.heartbeat.ensure_running()
        return lease

    def _be_heard(self) -> None:
        """If the leader's last confirmed contact with this session may be old, wait for a new one.

        1. The process is stopped for almost a session timeout, and goes on.   2. It asks for a lock, which is granted.
        3. The leader hears of the session only with the next ping. Until then the session may end at any moment.
        """
        relay = self.leases.lease_seconds * RELAY
        until = self._clock.now() + 2 * relay
        with suppress(LockServiceUnavailable):  # The lease is granted anyway, and may end soon.
            while self._clock.now() - self.session.heard.since >= self.leases.lease_seconds * OVERDUE:
                if self._clock.now() >= until:
                    return
                self._clock.sleep(relay / 4)
                self.session.exists([], sync=True)

    def take(self, ticket: ZooKeeperTicket, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`."""
        request, nodes = ticket.request, ticket.parts[0].nodes
        if nodes is None:
            return ()  # The lease was lost, and the heartbeat has removed the request.
        ((resource, _),) = request.locks
        own = nodes[resource].rpartition("/")[2]
        queue = self._nodes.path(request, resource)
        taken = self._retries.briefly(partial(self._offers.take, queue, own, request.request_id, limit))
        ticket.taken = {one.offer.request_id: one for one in taken}
        return [one.offer for one in taken]

    def retract(self, request: LockRequest) -> bool:
        """See :meth:`Queue.retract`."""
        ticket = self.tickets.get(request.request_id)
        if ticket is None or not ticket.offers:
            return not (request.offer and (ticket is None or ticket.doubtful))
        try:
            if not self._retries.briefly(partial(self._offers.retract, request.request_id)):
                return False
        except LockServiceUnavailable:
            return False
        ticket.offers = False
        return True

    def leave(self, request: LockRequest, *, for_good: bool) -> None:
        """See :meth:`Queue.leave`."""
        ticket = self.tickets.get(request.request_id)
        if ticket is not None and ticket.request is request:
            self._keeper.give_back(ticket)

    def holder(self, request: LockRequest, blocker: Blocker) -> Holder:
        """Return the facts for an error about the oldest request that blocks ours on the blocked resource.

        This reads only one queue and one marker, because a listing of all locks may be long.
        """
        assert isinstance(blocker, NodeBlocker)
        mode = dict(request.locks).get(blocker.resource, LockMode.SHARED)
        facts: dict[str, object] = {
            "resource": blocker.resource,
            **holder_facts(blocker.owner, blocker.requested_at_ms, blocker.request_id),
        }
        with suppress(LockError):  # Optional: the facts name the nearest blocker already.
            (listing,) = self.session.children([self._nodes.path(request, blocker.resource)])
            queue = lock_nodes(listing.names) if listing is not None else []
            head = next((n for n in queue if LockMode.EXCLUSIVE in (mode, n.mode)), None)
            if head is not None:
                (node,) = self.session.get([f"{self._nodes.path(request, blocker.resource)}/{head.name}"])
                if node is not None:
                    data = LockData.parse(node.data)
                    known = self._view.requests([data.request_id])[data.request_id]
                    owner: Owner = known.owner if known is not None else data.owner
                    facts |= {"mode": head.mode.value, **holder_facts(owner, node.stat.created_ms, data.request_id)}
        return facts

    def session_changed(self, event: SessionEvent) -> None:
        """Wake all waiting threads unless the event is SUSPENDED, and let the heartbeat run now.

        A thread that wakes looks at its queues again. kazoo's thread calls this, so it must not block.
        """
        if event is not SessionEvent.SUSPENDED:
            # The watches were lost with the connection.
            for ticket in list(self.tickets.values()):
                ticket.turn.set()
        if self.tickets or self.tickets.unreleased:
            self._keeper.heartbeat.ensure_running(now=True)
