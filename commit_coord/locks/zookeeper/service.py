"""Leases in ZooKeeper: how a session keeps them, and how they are given back.

Sessions
    Ephemeral nodes live as long as the session, so the session is the lease. kazoo keeps it alive and says SUSPENDED
    when the connection is gone (SUSPECT), but LOST only after it has reached a server again. So our own clock decides:
    a lease is over a session timeout after the moment from which the servers count the session, as far as we can
    know (``session_age``). A lease is confirmed by the answer to something that went through the leader, since a
    follower that was cut off from it still answers what it can alone; the leader counts from an earlier packet than the
    one that it answered. One request in each heartbeat interval, for all leases together, keeps the confirmation young;
    waiters send nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import accumulate

from commit_coord.clock import Clock
from commit_coord.errors import LockRefused, LockServiceUnavailable
from commit_coord.locks.acquiring import ANSWER_LEASES
from commit_coord.locks.base import BRIEFLY, LockSettings
from commit_coord.locks.keeping import CarryingLease, LeaseService, Retries
from commit_coord.locks.zookeeper.client import Session
from commit_coord.locks.zookeeper.journal import SPAN_MS, ClientJournal
from commit_coord.locks.zookeeper.layout import Layout
from commit_coord.locks.zookeeper.nodes import Change, Create, Delete, MultiRefused, Operation
from commit_coord.locks.zookeeper.offers import Offers
from commit_coord.locks.zookeeper.request_nodes import RequestNodes
from commit_coord.locks.zookeeper.tickets import Bygone, Part, Step, ZooKeeperTicket
from commit_coord.model import LockScope, Resource

_AT_ONCE = 1000
"""Parents that one beat removes: the next one must not be late."""

_SOON = 0.2
"""Seconds until the next ones."""

_UNUSED = 60.0
"""Seconds after which an empty parent is removed: a table that is written to once a minute keeps its own."""


class ZooKeeperLeases(LeaseService[ZooKeeperTicket]):
    """Keeps requests in ZooKeeper.

    Args:
        session: Which they live as long as.
        layout: Where their nodes lie.
        nodes: The nodes of requests.
        offers: Settled with a release.
        journal: Where answers are left.
        retries: For what is interrupted.
        settings: Times.
        clock: Where time comes from.
    """

    def __init__(
        self,
        session: Session,
        layout: Layout,
        nodes: RequestNodes,
        offers: Offers,
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
        """Parents that this client has used, and since when it does not."""
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

    def keeps_lost(self, ticket: ZooKeeperTicket) -> bool:
        """Delete the nodes of a lease that is over, if nobody else does.

        1. Our heartbeats come too late, on a busy machine: by our clock the lease is LOST, which is final.
        2. kazoo's heartbeats came in time. The session lives on, and with it the nodes, as long as this process.
        """
        return True

    def renewed(self, tickets: Sequence[ZooKeeperTicket], *, thorough: bool) -> Collection[ZooKeeperTicket]:
        """Ask through the leader: about the marker of each request, and about all of its nodes where it matters."""
        paths = {
            ticket: [
                path
                for part in ticket.parts
                for path in (part.marker, *((part.nodes or {}).values() if thorough else ()))
            ]
            for ticket in tickets
        }
        asked = [path for of_one in paths.values() for path in of_one]
        stats = self._retries.briefly(lambda: self.session.exists(asked, BRIEFLY, sync=True))
        there = {path for path, stat in zip(asked, stats, strict=True) if stat is not None}
        return [ticket for ticket in tickets if there.issuperset(paths[ticket])]

    def chores(self) -> float | None:
        """Remove empty parents, and answers that nobody asks for any more."""
        more = False
        with suppress(LockServiceUnavailable):
            more = self._remove_unused_parents(_UNUSED)
            more |= self._forget_expired()
        if more:
            return _SOON
        return _UNUSED / 4 if self.unused_parents else None

    def _forget_expired(self) -> bool:
        """Forget what was remembered until the span before; return whether there is more than fits into one beat."""
        now_ms = self._clock.wall_ms()
        if now_ms // SPAN_MS <= self._forgotten:
            return False
        if self._journal.entries.forget_expired(now_ms, _AT_ONCE):
            return True
        self._forgotten = now_ms // SPAN_MS
        return False

    def remove(self, ticket: ZooKeeperTicket) -> None:
        """See :meth:`LeaseService.remove`."""
        settling = [*self._leaving(ticket), *self._answered(ticket)]
        # The last part first, so that the first one stands for the rest.
        for part in reversed(ticket.parts):
            if part.sent:
                if not ticket.request.explicit and ticket.session != self.session.number:
                    part.nodes = None  # gone, unless a multi was on its way: see _find
                settling = self._remove_part(ticket, part, settling)
            part.sent, part.nodes = False, None
        # What is left stays undone. Our own nodes were gone before, so those whose offers we took may have been granted
        # since: who ended their requests now would let another one in beside them. They find what was carried out in
        # the journal, or in the table.
        for step in settling:
            step.instead()

    def _leaving(self, ticket: ZooKeeperTicket) -> list[Step]:
        """Return what leaves the note of *ticket*, in the place of the one that it found."""
        if ticket.next_note is None or ticket.request.table is None:
            return []
        path, text = self.layout.note(ticket.request.table), ticket.next_note.encode()
        if ticket.noted is None:
            return [Step([Create(path, text)])] if text else []
        return [Step([Change(path, text, ticket.noted) if text else Delete(path, ticket.noted)])]

    def _answered(self, ticket: ZooKeeperTicket) -> list[Step]:
        """Return what answers the offers that were carried out, and ends or gives back each of those taken."""
        lease = ticket.lease
        if not isinstance(lease, CarryingLease) or not ticket.taken:
            return []
        done, returned = lease.settled
        steps = [*self._offers.ending(ticket.taken, [entry.request_id for entry in done])]
        steps += self._offers.returning(ticket.taken, returned)
        answers: list[Step] = []
        if done:
            self._journal.was_written = True
            until = self._clock.wall_ms() + ANSWER_LEASES * self.session.timeout_ms

            def one_by_one() -> None:
                for entry in done:
                    self._journal.entries.remember(entry, until)

            answers = [Step(self._journal.entries.remembering(done, until), one_by_one)]
        return [*answers, *map(Step, steps)]

    def _remove_part(self, ticket: ZooKeeperTicket, part: Part, settling: list[Step]) -> list[Step]:
        """Delete the nodes of *part*, and do all of *settling* with it; return what was not done."""
        # Interrupted while it entered: it may be there, or not.
        try:
            there = part.nodes is not None or self._nodes.find(ticket, part)
        except (LockRefused, Bygone):
            return settling  # Somebody else's request of the same id; or the servers are about to remove it.
        now = self._clock.now()
        for resource, _ in part.locks:
            self.unused_parents[ticket.request.scope, resource] = now
        offer = [Delete(self.layout.offer(ticket.request.request_id))] if ticket.offers else []
        while there:
            assert part.nodes is not None
            # The locks at the end: see Offers.ending.
            groups: list[list[Operation]] = [
                [Delete(part.marker)],
                *(step.operations for step in settling),
                [*offer],
                [*map(Delete, part.nodes.values())],
            ]
            try:
                self.session.multi([operation for group in groups for operation in group])
            except MultiRefused as refused:
                sizes = list(accumulate(map(len, groups)))
                group = next(number for number, size in enumerate(sizes) if refused.index < size)
                if group == 0:
                    # Without the marker all of it has gone, as one, and the names of its nodes may be somebody else's.
                    there = False
                elif group <= len(settling):
                    settling.pop(group - 1).instead()
                elif group == len(settling) + 1:
                    offer = []  # It was withdrawn, and we did not hear of it.
                else:
                    # Hive's UNLOCK was here: delete what is left.
                    there = self._nodes.find(ticket, part)
            else:
                return []
        # Who frees by force leaves the offer to its owner, and our session keeps it for as long as we live.
        self.session.delete_each([one.path for one in offer])
        return settling

    def _remove_unused_parents(self, age: float) -> bool:
        """Delete parents that we used and nobody needs any more; return whether more are left than fit into one beat.

        1. We find a parent unused.   2. Somebody else is about to lock there.
        3. ZooKeeper deletes no node that has children; and if we were first, they find no parent, and create it.
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
                pass  # What is left is cleared by reap.
            if self._journal.was_written:  # Those of clients that never live through a span would stay.
                self._journal.entries.forget_expired(self._clock.wall_ms(), _AT_ONCE)
        except LockServiceUnavailable:
            pass  # That too.
        finally:
            self.session.close()
