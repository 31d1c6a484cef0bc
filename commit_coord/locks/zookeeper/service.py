"""Leases in ZooKeeper: how a session keeps them, and how they are released.

Sessions
    Ephemeral nodes exist as long as the session, so the session is the lease. kazoo keeps the session alive. It reports
    SUSPENDED when the connection is broken (the lease is SUSPECT), but LOST only after it has reached a server again.
    So our own clock decides: a lease ends one session timeout after the time from which the servers certainly count
    the session (``session_age``). Only an answer that went through the leader confirms a lease, because a follower
    without connection to the leader still answers reads. Even an answer of the leader does not restart the session
    timeout; the leader counts the timeout from an earlier packet (``session_age``). One request for all leases that are
    due, up to twice in each heartbeat interval, renews the confirmation; waiters send nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import accumulate

from commit_coord.clock import Clock
from commit_coord.errors import LockRefused, LockServiceUnavailable
from commit_coord.locks.acquiring import ANSWER_LEASES
from commit_coord.locks.base import BRIEFLY, LockSettings
from commit_coord.locks.keeping import LeaseService, Retries
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.journal import SPAN_MS, ClientJournal
from commit_coord.locks.zookeeper.layout import NodeLayout
from commit_coord.locks.zookeeper.nodes import ChangeNode, CreateNode, DeleteNode, MultiRefused, NodeOperation
from commit_coord.locks.zookeeper.offers import ZooKeeperOffers
from commit_coord.locks.zookeeper.request_nodes import RequestNodes
from commit_coord.locks.zookeeper.tickets import Bygone, ReleaseStep, RequestPart, ZooKeeperTicket
from commit_coord.model import LockScope, Resource

_AT_ONCE = 1000
"""Maximum number of parents that one heartbeat removes, so that the next heartbeat is not late."""

_SOON = 0.2
"""Seconds until the next removal if there is more to remove."""

_UNUSED = 60.0
"""Seconds after which an empty parent is removed: a table with a commit each minute keeps its parents."""


class ZooKeeperLeases(LeaseService[ZooKeeperTicket]):
    """Keeps and releases the leases of one client.

    Args:
        session: The session that is the lease.
        layout: The paths of the nodes.
        nodes: Finds the nodes of requests.
        offers: The taken offers, which a release settles.
        journal: Receives the outcomes for the owners of committed offers.
        retries: Repeats interrupted calls.
        settings: Times.
        clock: The clock.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        layout: NodeLayout,
        nodes: RequestNodes,
        offers: ZooKeeperOffers,
        journal: ClientJournal,
        retries: Retries,
        settings: LockSettings,
        clock: Clock,
    ) -> None:
        self.session = session
        self.layout = layout
        self._nodes = nodes
        self._offers = offers
        self._journal = journal
        self._retries = retries
        self.settings = settings
        self._clock = clock
        self.unused_parents: dict[tuple[LockScope, Resource], float] = {}
        """Parents that this client has used, each with the time of the last use."""
        self._forgotten = clock.wall_ms() // SPAN_MS

    @property
    def lease_seconds(self) -> float:
        """See :attr:`LeaseService.lease_seconds`."""
        return self.session.timeout_ms / 1000

    @property
    def interval(self) -> float:
        """See :attr:`LeaseService.interval`; the servers may have agreed to a shorter session."""
        return min(self.settings.heartbeat_interval_ms, self.session.timeout_ms / 3) / 2000

    def needs_heartbeat(self, ticket: ZooKeeperTicket) -> bool:
        """See :meth:`LeaseService.needs_heartbeat`. Waiters live as long as the session."""
        return ticket.lease is not None and not ticket.request.explicit

    def counted_from(self, ticket: ZooKeeperTicket) -> float:
        """See :meth:`LeaseService.counted_from`."""
        return min(ticket.last_confirmed_at, self.session.heard.since)

    def denial(self, ticket: ZooKeeperTicket) -> str | None:
        """See :meth:`LeaseService.denial`."""
        lost = not ticket.request.explicit and ticket.session != self.session.number
        return "the session was lost" if lost else None

    def silence(self) -> str | None:
        """See :meth:`LeaseService.silence`."""
        return "the connection was cut" if self.session.silent_since is not None else None

    def is_closed(self) -> bool:
        """See :meth:`LeaseService.is_closed`."""
        return self.session.is_closed

    def keeps_lost(self, ticket: ZooKeeperTicket) -> bool:
        """Return True: this client must delete the nodes of a lost lease itself.

        1. On a busy machine our heartbeats are late: by our clock the lease is LOST, which is final.
        2. kazoo's heartbeats were in time. The session and the nodes would exist as long as this process.
        """
        return True

    def renewed(self, tickets: Sequence[ZooKeeperTicket], *, thorough: bool) -> Collection[ZooKeeperTicket]:
        """Ask through the leader whether each request's marker exists; if *thorough*, whether all its nodes exist."""
        paths = {
            ticket: [
                path
                for part in ticket.parts
                for path in (part.marker, *((part.nodes or {}).values() if thorough else ()))
            ]
            for ticket in tickets
        }
        asked = [path for of_one in paths.values() for path in of_one]
        # A busy server needs more time for ten thousand reads than for one.
        patience = BRIEFLY + len(asked) / 2000
        stats = self._retries.briefly(lambda: self.session.exists(asked, patience, sync=True))
        there = {path for path, stat in zip(asked, stats, strict=True) if stat is not None}
        return [ticket for ticket in tickets if there.issuperset(paths[ticket])]

    def chores(self) -> float | None:
        """Remove empty parents and expired journal entries.

        As long as parents are left, the heartbeat runs in every interval, although the next removal is due later.
        Otherwise:

        1. Nothing is held, and the heartbeat sleeps until a parent is due.   2. A lock is granted. The heartbeat is not
        woken, because waking it for every lock would slow down every commit.   3. The lease ends before the next beat.
        """
        more = False
        with suppress(LockServiceUnavailable):
            more = self._remove_unused_parents(_UNUSED)
            more |= self._forget_expired()
        if more:
            return _SOON
        return min(_UNUSED / 4, self.interval) if self.unused_parents else None

    def _forget_expired(self) -> bool:
        """Delete journal entries whose span is over; return whether more are left than one heartbeat can delete."""
        now_ms = self._clock.wall_ms()
        if now_ms // SPAN_MS <= self._forgotten:
            return False
        if self._journal.entries.forget_expired(now_ms, _AT_ONCE):
            return True
        self._forgotten = now_ms // SPAN_MS
        return False

    def remove(self, ticket: ZooKeeperTicket) -> None:
        """See :meth:`LeaseService.remove`."""
        if self.session.is_over and not ticket.request.explicit:
            return  # The client was closed, and its nodes ended with its session; those of a LOCK statement did not.
        if ticket.tells is not None:
            self.session.delete_each([self.layout.wait(ticket.request.request_id)])
            ticket.tells = None
        settling = [*self._leaving(ticket), *self._answered(ticket)]
        # Delete the last part first: as long as the first part exists, the rest may exist.
        for part in reversed(ticket.parts):
            if part.sent:
                if not ticket.request.explicit and ticket.session != self.session.number:
                    part.nodes = None  # gone, unless a multi was still on its way: see RequestNodes.find
                settling = self._remove_part(ticket, part, settling)
            part.sent, part.nodes = False, None
        # The remaining steps are not executed. Our own nodes were gone before, so the requests whose offers we took may
        # have been granted since. To delete such a request now would let a second request hold the lock together with
        # it. The owners find the committed appends in the journal or in the table.
        for step in settling:
            step.instead()

    def _leaving(self, ticket: ZooKeeperTicket) -> list[ReleaseStep]:
        """Return the step that replaces the old handover note with the note of *ticket*; nothing if it leaves none."""
        if ticket.next_note is None or ticket.request.table is None:
            return []
        path, text = self.layout.note(ticket.request.table), ticket.next_note.encode()
        if ticket.noted is None:
            return [ReleaseStep([CreateNode(path, text)])] if text else []
        return [ReleaseStep([ChangeNode(path, text, ticket.noted) if text else DeleteNode(path, ticket.noted)])]

    def _answered(self, ticket: ZooKeeperTicket) -> list[ReleaseStep]:
        """Return the steps that settle the taken offers.

        They write the outcomes of the committed offers into the journal, and delete or return each taken offer.
        """
        if not ticket.taken:
            return []
        done, returned = ticket.settled
        steps = [*self._offers.ending(ticket.taken, [entry.key for entry in done])]
        steps += self._offers.returning(ticket.taken, returned)
        answers: list[ReleaseStep] = []
        if done:
            self._journal.was_written = True
            until = self._clock.wall_ms() + ANSWER_LEASES * self.session.timeout_ms

            def one_by_one() -> None:
                for entry in done:
                    self._journal.entries.remember(entry, until)

            answers = [ReleaseStep(self._journal.entries.remembering(done, until), one_by_one)]
        return [*answers, *map(ReleaseStep, steps)]

    def _remove_part(
        self, ticket: ZooKeeperTicket, part: RequestPart, settling: list[ReleaseStep]
    ) -> list[ReleaseStep]:
        """Delete the nodes of *part* and execute the steps *settling* in one multi; return the steps not executed."""
        # If the part was interrupted while it entered, its nodes may exist or not.
        try:
            there = part.nodes is not None or self._nodes.find(ticket, part)
        except (LockRefused, Bygone):
            return settling  # Another client has the same request id; or the servers will remove the nodes soon.
        now = self._clock.now()
        for resource, _ in part.locks:
            self.unused_parents[ticket.request.scope, resource] = now
        request_id = ticket.request.request_id
        own = [DeleteNode(self.layout.offer(request_id))] if ticket.offers else []
        if ticket.shows_its_wait and part is ticket.parts[0]:
            own = [DeleteNode(self.layout.statement(request_id))]  # a LOCK statement makes no offer
        while there:
            assert part.nodes is not None
            # The locks last: see ZooKeeperOffers.ending.
            groups: list[list[NodeOperation]] = [
                [DeleteNode(part.marker)],
                *(step.operations for step in settling),
                [*own],
                [*map(DeleteNode, part.nodes.values())],
            ]
            try:
                self.session.multi([operation for group in groups for operation in group])
            except MultiRefused as refused:
                sizes = list(accumulate(map(len, groups)))
                group = next(number for number, size in enumerate(sizes) if refused.index < size)
                if group == 0:
                    # The marker is gone, so all nodes of the part are, and other requests may use their names now.
                    there = False
                elif group <= len(settling):
                    settling.pop(group - 1).instead()
                elif group == len(settling) + 1:
                    own = []  # It was retracted, and the reply was lost; or it was lost with the session.
                else:
                    # Hive's UNLOCK has deleted some of the locks: delete the rest.
                    there = self._nodes.find(ticket, part)
            else:
                return []
        # A release by force does not delete this node. We must delete it; otherwise it exists as long as our session.
        self.session.delete_each([one.path for one in own])
        return settling

    def _remove_unused_parents(self, age: float) -> bool:
        """Delete unused parents; return whether more are left than one heartbeat can delete.

        This is safe while another client locks there: ZooKeeper does not delete a node that has children, and a client
        that finds no parent creates it.
        """
        before = self._clock.now() - age
        unused = [key for key, since in dict(self.unused_parents).items() if since <= before]
        some = unused[:_AT_ONCE]
        paths = {
            self.layout.resource(scope, one) for scope, resource in some for one in (*resource.ancestors, resource)
        }
        self.session.delete_each(sorted(paths, key=lambda path: (-path.count("/"), path)))
        for key in some:
            self.unused_parents.pop(key, None)
        return len(unused) > len(some)

    def disconnect(self) -> None:
        """See :meth:`LeaseService.disconnect`."""
        until = self._clock.now() + BRIEFLY
        try:
            while self._remove_unused_parents(0.0) and self._clock.now() < until:
                pass  # `reap` removes the rest.
            # Without this, nobody might delete expired entries, if all clients end before their first span is over.
            if self._journal.was_written:
                self._journal.entries.forget_expired(self._clock.wall_ms(), _AT_ONCE)
        except LockServiceUnavailable:
            pass  # `reap` and other clients remove these, too.
        finally:
            self.session.close()
