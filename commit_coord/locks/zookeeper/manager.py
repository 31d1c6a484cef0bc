"""Locks in ZooKeeper: sequential nodes in Hive's layout, watches instead of questions.

Theory of operation
    ``layout`` says which nodes there are and why, ``client`` wraps the driver. Here is the
    client of the locks: it creates all nodes of a request in one multi, with the listings of its resources sent right
    behind it, so that an uncontended lock costs one round trip. Whoever is blocked watches one node, the nearest one
    that blocks it in the first resource where anyone does, and looks again when that has gone. What was found free
    once stays free, since nobody can step in before it.

    The generation is the last transaction below the locked resources when they were found free (pzxid). It is not
    smaller than that of our own nodes' creation, and larger than any that an earlier holder can have seen: the removal
    of its nodes is a transaction below the same resources.

Sessions
    Ephemeral nodes live as long as the session, so the session is the lease. kazoo keeps it alive and says SUSPENDED
    when the connection is gone (SUSPECT), but LOST only after it has reached a server again. So our own clock decides:
    a lease is over a session timeout after the moment from which the servers count the session, as far as we can
    know (``session_age``). A word is the answer to something that went through the leader, since a follower that
    was cut off from it still answers what it can alone; the leader counts from an earlier packet than the one that it
    answered. One request in each heartbeat interval, for all leases together, keeps the word young; who waits sends
    nothing.

A lost reply
    1. The multi is done; the connection is cut before the answer arrives.
    2. The same multi is sent again, in the same session, and meets the request's own node.
    3. That node names this client: the locks are those nodes that the same transaction created.
    A multi that was under way when the connection was cut can't come later than this: the leader refuses what
    arrives by a connection from which the session has moved.

Requests that don't fit into one multi
    They are cut in parts. The first part may wait; from then on waiting would be waiting while holding, which can
    deadlock. So whoever finds a later part blocked gives everything back, waits *apart*, in no queue, until the
    blocker has gone, and enters anew. After some rounds its partitions are lifted to their prefixes, until all
    fits into one multi and has its place again.

Beside Hive's own clients
    Hive takes its locks one by one, and keeps those it has while it tries for more. A waiter of several locks could
    stand in its way there: so behind a lock of Hive's it steps apart too, after a while.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import ConfigError, LockError, LockRefused, LockServiceUnavailable, OfferLost
from commit_coord.events import Events
from commit_coord.locks.base import BRIEFLY, Interrupted, Lease, LockSettings
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.keeping import THREAD, CarryingLease, KeepingLockManager, Ticket
from commit_coord.locks.queueing import ANSWER_LEASES, Blocker, Carried, holder_facts
from commit_coord.locks.zookeeper.access import Access
from commit_coord.locks.zookeeper.client import (
    Change,
    Check,
    Create,
    Delete,
    Listing,
    MultiRefused,
    Node,
    Operation,
    Session,
    SessionEvent,
)
from commit_coord.locks.zookeeper.journal import SPAN_MS, Journal
from commit_coord.locks.zookeeper.layout import (
    HIVE_APPLICATION,
    HIVE_NAMESPACE,
    Layout,
    LockData,
    LockNode,
    RequestData,
    blocks,
    chunks,
    lock_data,
    lock_nodes,
    nearest_before,
    parse_wait,
    wait_data,
)
from commit_coord.locks.zookeeper.offers import Offers, Taken
from commit_coord.locks.zookeeper.session_age import RELAY
from commit_coord.locks.zookeeper.view import Known, View
from commit_coord.model import (
    Generation,
    Guarantees,
    JournalEntry,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    Offer,
    Owner,
    Resource,
)
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.deadlock import Obstacle, Wait
from commit_coord.protocol.hierarchy import escalate
from commit_coord.protocol.lease import OVERDUE, LeaseEvent

logger = logging.getLogger(__name__)

T = TypeVar("T")

_APART = Backoff(initial_ms=50, maximum_ms=1000)
"""Before a request that was withdrawn enters anew: several that met would meet again."""

_ROUNDS = 3
"""So often is a request in parts withdrawn until its partitions are lifted to their prefixes."""

_BESIDE_HIVE = 5.0
"""Seconds for which a waiter keeps its place behind a lock of Hive's own."""

_TOGETHER = 32
"""Resources whose listings are asked for right behind the multi, before it is known whether they are needed."""

_AT_ONCE = 1000
"""Parents that one beat removes: the next one must not be late."""

_SOON = 0.2
"""Seconds until the next ones."""

_UNUSED = 60.0
"""Seconds after which an empty parent is removed: a table that is written to once a minute keeps its own."""


_INHERITED: list[Session] = []
"""Sessions of parent processes; see ``_here``."""


class _Gone(Exception):
    """The nodes of our request are not there any more."""


class _Bygone(Interrupted):
    """What is there belongs to a session that was lost, and goes with it."""


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """What a release does beside deleting its own nodes, all or nothing."""

    operations: list[Operation]
    instead: Callable[[], None] = _nothing
    """Done where that is refused: by default nothing, since whoever it is for has gone by itself."""


@dataclass(slots=True, eq=False)
class _Part:
    """What one multi enters."""

    marker: str
    locks: tuple[tuple[Resource, LockMode], ...]
    sent: bool = False
    """Whether the multi may have been done."""
    nodes: dict[Resource, str] | None = None
    """The lock nodes by resource, once they are known."""
    unclear: list[Resource] = field(default_factory=list)
    """Resources that were not found free yet."""
    marks: dict[Resource, int] = field(default_factory=dict)
    """Versions of those that were found marked, from before they were listed."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Ticket(Ticket):
    """A request in ZooKeeper. Its word is the answer of the leader."""

    parts: list[_Part]
    session: int = -1
    """The number of the session that its ephemeral nodes belong to."""
    generation: int = 0
    rounds: int = 0
    """How often it was withdrawn because a later part was blocked."""
    turn: threading.Event = field(default_factory=threading.Event)
    """Set when it is worth to look again."""
    ended: bool = False
    """Whether a watch says that its nodes are gone. It may mean others, which we removed to enter anew."""
    offers: bool = False
    """Whether its offer is published, as far as is known."""
    doubtful: bool = False
    """Whether an offer of it may have been taken that is not published any more."""
    behind: tuple[str, float] = "", 0.0
    """The node that it waits for, and since when."""
    tells: int | None = None
    """The place for which it has told whom it waits for."""
    taken: dict[str, Taken] = field(default_factory=dict)
    """The offers that it took, by request."""
    noted: int | None = None
    """The version of the note that it found; None for no note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeBlocker(Blocker):
    """The nearest blocker in one resource."""

    path: str
    resource: Resource
    explicit: bool
    known: bool = False
    """Whether the owner was looked up."""
    apart: bool = False
    """Whether we wait for it outside of all queues."""


class _SessionHeartbeat(Heartbeat):
    """The manager's beat and kazoo's own, paused and resumed together."""

    def __init__(self, beat: Callable[[], float | None], *, idle: float, session: Callable[[], Session]) -> None:
        super().__init__(beat, idle=idle, name=THREAD)
        self._session = session

    def pause(self) -> None:
        super().pause()
        self._session().hold()

    def resume(self) -> None:
        self._session().go_on()
        super().resume()

    def stop(self) -> None:
        super().stop()
        self._session().go_on()


class ZooKeeperLockManager(KeepingLockManager[_Ticket]):
    """Locks as nodes in ZooKeeper.

    Args:
        uri: ``host:port,host:port/chroot``. Connected to when it is first needed.
        space: Separates what does not concern each other in one namespace. Empty shares the namespace with Hive.
        settings: Times; ``lease_ms`` is the session timeout that the servers are asked for.
        clock: Where time comes from.
        events: Who is told.
        host: Names this process, and tells which others have ended.
        namespace: ``hive.zookeeper.namespace``.
        access: The other fields of :class:`~commit_coord.locks.zookeeper.access.Access`.

    Raises:
        ConfigError: An argument makes no sense, or something is not installed.
    """

    name = "zookeeper"
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=True,
        reach="network",
        expiry=True,
        survives_restart=True,
        explicit_locks=True,
        journal=True,
        clock="server",
        carries="network",
        deadlocks=True,
        notes=True,
    )

    def __init__(
        self,
        uri: str,
        *,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        host: Host = SYSTEM_HOST,
        namespace: str = HIVE_NAMESPACE,
        **access: Any,
    ) -> None:
        super().__init__(settings or LockSettings(), clock, events or Events(), host)
        self._access = Access(hosts=uri, **access)
        namespace = namespace.strip("/")
        if not re.fullmatch(r"[\w.-]+", namespace) or namespace in ("zookeeper", "commit-coord", ".", ".."):
            raise ConfigError(
                "no name for a node", key="lock.zk.namespace", value=namespace, accepted="letters, digits and ._-"
            )
        self._layout = Layout(namespace, space)
        self._start_over()

    def _new_heartbeat(self, *, idle: float) -> Heartbeat:
        return _SessionHeartbeat(self._beat, idle=idle, session=lambda: self._session)

    def _new_session(self) -> Session:
        return Session(self._access, self.settings.lease_ms, self._clock, self._session_changed)

    def _start_over(self) -> None:
        super()._start_over()
        self._session = self._new_session()
        self._view = View(self._session, self._layout)
        self._journal = Journal(self._session, self._layout)
        self._offers = Offers(self._session, self._layout)
        self._litter: dict[tuple[LockScope, Resource], float] = {}
        self._swept = self._clock.wall_ms() // SPAN_MS
        self._answers = False

    def _here(self) -> None:
        """A forked child neither uses nor ends the session of its parent."""
        if self._pid != os.getpid():
            # Kept for ever: whatever kazoo did when it is collected, it would do to the connection of our parent.
            _INHERITED.append(self._session)
            self._session.abandon()
            self._start_over()

    @property
    def _lease_seconds(self) -> float:
        return self._session.timeout_ms / 1000

    @property
    def _interval(self) -> float:
        # Half of what is promised, as in the lease manager; the servers may have agreed to a shorter session.
        return min(self.settings.heartbeat_interval_ms, self._session.timeout_ms / 3) / 2000

    # Acquire.

    def _knows(self, request_id: str) -> bool:
        self._here()
        return request_id in self._tickets

    def _enter(self, request: LockRequest, deadline: float) -> Blocker | None:
        ticket = _Ticket(request=request, parts=self._cut(request, request.locks), offers=bool(request.offer))
        # Noted before anything is sent, so that there is nothing to look for where nothing was noted.
        if self._tickets.setdefault(request.request_id, ticket) is not ticket:
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        try:
            return self._advance(ticket, deadline)
        except LockServiceUnavailable as error:
            # 1. The multi is done, and its answer lost.   2. A holder takes the offer.   3. No server answers us.
            # Where nothing was sent, nobody can have taken it.
            sent = ticket.doubtful or any(part.sent for part in ticket.parts)
            if not request.offer or not sent or self._retract(request):
                raise
            raise OfferLost("the lock service is gone, and the offer may have been taken", locks=request) from error

    def _cut(self, request: LockRequest, locks: tuple[tuple[Resource, LockMode], ...]) -> list[_Part]:
        data_size = len(lock_data(request, self._clock.wall_ms()))
        cut = chunks(self._layout, replace(request, locks=locks), data_size=data_size, acl_size=self._access.acl_size)
        return [_Part(self._layout.request(request.request_id, part), chunk) for part, chunk in enumerate(cut)]

    def _advance(self, ticket: _Ticket, deadline: float) -> _NodeBlocker | None:
        """Enter what has not entered, as long as nobody is in the way; return who is."""
        if ticket.ended and ticket.offers:
            ticket.ended = False
            self._take_answer(ticket)
        while True:
            try:
                for part in ticket.parts:
                    blocker = self._persist(partial(self._enter_part, ticket, part, deadline), deadline)
                    if blocker is None:
                        continue
                    return blocker if part is ticket.parts[0] else self._step_apart(ticket, blocker, deadline)
                return None
            except _Gone:
                if ticket.offers:
                    self._look_for_answer(ticket, entered=True)
                if ticket.request.explicit or ticket.session == self._session.number:
                    if ticket.doubtful:
                        raise OfferLost("what became of its offer is not known", locks=ticket.request) from None
                    raise LockRefused("the request was taken out of the queue by force", locks=ticket.request) from None
                # The session was lost, and the servers removed our nodes: queue again, at the end.
                self._begin_anew(ticket)

    def _look_for_answer(self, ticket: _Ticket, *, entered: bool) -> None:
        """Raise what became of the offer of *ticket*, whose nodes are gone; return to enter without it, in doubt.

        It is never published a second time:

        1. A holder carries it out, and ends the request; we have not heard of it, or lost our session before.
        2. We enter again, with an offer that is new to everybody, and it is carried out twice.
        """
        self._take_answer(ticket)
        if entered and ticket.session == self._session.number:
            raise OfferLost("the request is gone, and what became of its offer is not known", locks=ticket.request)
        ticket.offers, ticket.doubtful, ticket.waited = False, True, True

    def _take_answer(self, ticket: _Ticket) -> None:
        """Raise what became of the offer of *ticket*, if the journal says it."""
        request_id = ticket.request.request_id
        if entry := self.recall(request_id):
            self._tickets.pop(request_id, None)
            raise Carried(entry)

    def _begin_anew(self, ticket: _Ticket) -> None:
        locks = tuple(lock for part in ticket.parts for lock in part.locks)
        ticket.parts, ticket.generation = self._cut(ticket.request, locks), 0

    def _step_apart(self, ticket: _Ticket, blocker: _NodeBlocker, deadline: float) -> _NodeBlocker:
        """Give back all places, to wait for *blocker* in no queue; stay where somebody may have taken the offer.

        1. A holder takes the offer; we give it back with our places, and publish it anew when we enter again.
        2. The deadline passes. We withdraw it: nobody has marked the new one, so we call the commit a failure.
        3. The holder has carried out the first one.
        """
        if ticket.offers and not self._retract(ticket.request):
            ticket.behind = blocker.path, self._clock.now()  # asked again when it is time to step apart again
            return blocker
        self._persist(lambda: self._remove_ticket(ticket), deadline)
        self._begin_anew(ticket)
        if len(ticket.parts) > 1:
            ticket.rounds += 1
            if ticket.rounds >= _ROUNDS:
                self._lift(ticket)
        return replace(blocker, apart=True)

    def _lift(self, ticket: _Ticket) -> None:
        """Lock prefixes instead of partitions until one multi holds all."""
        limit = len(ticket.request.locks) // 2
        while limit and len(ticket.parts) > 1:
            ticket.parts = self._cut(ticket.request, escalate(ticket.request.locks, limit))
            limit //= 2

    def _enter_part(self, ticket: _Ticket, part: _Part, deadline: float) -> _NodeBlocker | None:
        """Enter *part* if that has not happened, look who is in its way, and watch that one."""
        request = ticket.request
        patience = max(BRIEFLY, min(deadline - self._clock.now(), self._lease_seconds))
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
            path = f"{self._path(request, resource)}/{node.name}"
            ticket.turn.clear()
            # Our own marker too: somebody may take us out by force.
            found, marker = self._session.get([path, part.marker], patience, watch=partial(_woken, ticket, part.marker))
            if marker is None:
                raise _Gone
            if found is not None:
                data = LockData.parse(found.data)
                return _NodeBlocker(
                    request_id=data.request_id,
                    owner=data.owner,
                    requested_at_ms=found.stat.created_ms,
                    path=path,
                    resource=resource,
                    explicit=data.explicit,
                )
            listings = self._look_again(ticket, part, patience)

    def _look_again(self, ticket: _Ticket, part: _Part, patience: float) -> list[Listing | None]:
        """Return the listings of what is not free yet; through the leader, whose word a lease begins with."""
        sent = self._clock.now()
        paths = [self._path(ticket.request, resource) for resource in part.unclear]
        listings: list[Listing | None]
        if ticket.request.table is not None:
            listing, note = self._session.queue(paths[0], self._layout.note(ticket.request.table), patience)
            listings = [listing]
            self._noted(ticket, note)
        else:
            listings = self._session.children(paths, patience, sync=True)
        ticket.word = max(ticket.word, sent)
        return listings

    def _look_long_after(self, ticket: _Ticket, part: _Part, patience: float) -> list[Listing | None]:
        """As :meth:`_look_again`, for nodes whose reply was lost.

        1. They are made behind a holder.   2. That one takes the offer, and ends in doubt.
        3. We look now, and nobody is in the way: that does not mean that nobody was.
        """
        ticket.waited = True
        return self._look_again(ticket, part, patience)

    @staticmethod
    def _noted(ticket: _Ticket, note: Node | None) -> None:
        ticket.note = "" if note is None else note.data.decode()
        ticket.noted = None if note is None else note.stat.version

    def _create(self, ticket: _Ticket, part: _Part, patience: float) -> list[Listing | None]:
        """Create the nodes of *part* and return the listings of its resources."""
        request, first = ticket.request, part is ticket.parts[0]
        lives = not request.explicit
        data = RequestData(
            client=self._client,
            owner=request.owner,
            scope=request.scope,
            lease_ms=self._session.timeout_ms if lives else None,
            agent=self._agent,
        )
        part.unclear = [resource for resource, _ in part.locks]
        if part.sent and ticket.offers:
            if self._find(ticket, part, patience):
                return self._look_long_after(ticket, part, patience)
            self._look_for_answer(ticket, entered=False)
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
            Change(self._path(request, one), request.request_id.encode())
            for one, mode in marked.items()
            if mode is LockMode.EXCLUSIVE
        ]
        glanced = [one for one, mode in marked.items() if mode is LockMode.SHARED]
        resources = [self._path(request, one) for one in part.unclear if one not in glanced]
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
                then_get=[*(self._path(request, one) for one in glanced), *map(self._layout.note, notes)],
            )
        except MultiRefused as refused:
            if refused.index == 1 and not first:
                raise _Gone from None
            if not self._find(ticket, part, patience):
                raise Interrupted("the request came and went while its reply was lost", locks=request) from None
            return self._look_long_after(ticket, part, patience)
        part.nodes = dict(zip(part.unclear, created[-len(locks) :], strict=True))
        ticket.word = max(ticket.word, sent)
        if notes:
            self._noted(ticket, found.pop())
        self._glance(ticket, part, glanced, found)
        if len(together) == len(part.unclear):
            return listings
        if not together:
            # Who has number 0 is the first child that its parent ever had: nobody stands before it.
            later = [one for one in part.unclear if not part.nodes[one].endswith("-0000000000")]
            # One listing is needed in any case, for the generation.
            part.unclear = later if later or len(part.unclear) < len(part.locks) else part.unclear[:1]
        return self._look_again(ticket, part, patience) if part.unclear else []

    def _glance(self, ticket: _Ticket, part: _Part, glanced: Sequence[Resource], found: Sequence[Node | None]) -> None:
        """Note which of *glanced*, wanted in S, are free because nobody has marked them."""
        for resource, node in zip(glanced, found, strict=True):
            if node is None:
                raise _Gone
            if node.data:
                part.marks[resource] = node.stat.version
            else:
                ticket.generation = max(ticket.generation, node.stat.changed_below)
                part.unclear.remove(resource)

    def _wipe(self, request: LockRequest, part: _Part, unmarked: Sequence[Resource]) -> None:
        """Wipe marks of X locks that are gone.

        1. A mark is found, of version 7.   2. The list shows no X.   3. Somebody enters an X, and marks it: version 8.
        4. Version 7 can't be wiped any more.
        """
        for resource in unmarked:
            with suppress(MultiRefused):
                self._session.multi([Change(self._path(request, resource), b"", part.marks.pop(resource))])

    def _find(self, ticket: _Ticket, part: _Part, patience: float = BRIEFLY) -> bool:
        """Find out which nodes *part* has, if it has any; return whether it has.

        Raises:
            LockRefused: The request id is somebody else's.
            _Bygone: It has some, of a session that was lost.
        """
        request, number = ticket.request, self._session.number
        # Behind a sync: another server than the one that did the multi may not know of it yet.
        (stat,) = self._session.exists([part.marker], patience, sync=True)
        (marker,) = self._session.get([part.marker], patience) if stat is not None else (None,)
        if marker is None:
            return False
        data = RequestData.parse(marker.data)
        if data is None or data.client != self._client:
            part.sent = False
            raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
        if not request.explicit and marker.stat.session != self._session.id:
            raise _Bygone("the nodes of a session that was lost are still there", locks=request)
        if part is ticket.parts[0]:
            # 1. Our session is lost while the multi is on its way.   2. It is done in the next one; the answer is lost.
            # 3. The nodes count for those of the lost session: no lease for us, and nobody gives them back.
            ticket.session = number
        resources = [self._path(request, resource) for resource, _ in part.locks]
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

    def _judge(
        self, ticket: _Ticket, part: _Part, listings: Sequence[Listing | None]
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
                raise _Gone
            if resource in part.marks and not any(node.mode is LockMode.EXCLUSIVE for node in queue):
                unmarked.append(resource)
            before = nearest_before(own, queue)
            if before is None:
                ticket.generation = max(ticket.generation, listing.stat.changed_below)
            else:
                unclear.append(resource)
                blocked = blocked or (resource, before)
        part.unclear = unclear
        self._wipe(ticket.request, part, unmarked)
        return blocked

    def _wait(self, request: LockRequest, blocker: Blocker, deadline: float) -> Blocker | None:
        assert isinstance(blocker, _NodeBlocker)
        ticket = self._tickets[request.request_id]
        ticket.waited = True
        tick = self.settings.poll_interval_ms / 1000
        if ticket.behind[0] != blocker.path:
            ticket.behind = blocker.path, self._clock.now()
        while not ticket.turn.is_set():
            left = deadline - self._clock.now()
            if left <= 0 or self._is_closed(request):
                return blocker
            # A tick looks at processes of this host; nothing is asked of ZooKeeper until the watch fires.
            if ticket.turn.wait(min(left, tick)):
                break
            if not blocker.known:
                blocker = self._identified(blocker, request, deadline)
            foreign = not blocker.owner.process and blocker.owner.application == HIVE_APPLICATION
            if foreign and not blocker.apart and self._clock.now() - ticket.behind[1] >= _BESIDE_HIVE:
                blocker = self._step_apart(ticket, blocker, deadline)
            if not blocker.explicit and self._host.is_dead(blocker.owner.process):
                self._persist(partial(self._remove_dead, blocker), deadline)
        if blocker.apart:
            ticket.turn.clear()
            self._clock.sleep(
                min(next_wait(_APART, ticket.rounds, self._clock.random()), max(0.0, deadline - self._clock.now()))
            )
        return self._advance(ticket, deadline)

    def _remove_dead(self, blocker: _NodeBlocker) -> None:
        self._view.remove(blocker.request_id, self._view.standing())

    def _identified(self, blocker: _NodeBlocker, request: LockRequest, deadline: float) -> _NodeBlocker:
        """Return *blocker* with its owner, who stands in the node of its request unless it is Hive's own."""
        data = self._persist(lambda: self._view.requests([blocker.request_id]), deadline)[blocker.request_id]
        return replace(blocker, known=True, owner=data.owner if data is not None else blocker.owner)

    def _grant(self, request: LockRequest) -> Lease:
        ticket = self._tickets[request.request_id]
        self._tell_no_more(ticket)
        if not request.explicit:
            self._be_heard()
        lease = ticket.lease = CarryingLease(self, ticket, Generation(ticket.generation))
        if not request.explicit:
            self.heartbeat.ensure_running()
        return lease

    def _be_heard(self) -> None:
        """Wait until the leader has heard of this client, if that may be so long ago that the lease is about to end.

        1. The process is stopped for almost a session timeout, and goes on.   2. It asks for a lock, which is granted.
        3. The leader is told of it with the next ping only: until then the session may end at any moment.
        """
        relay = self._lease_seconds * RELAY
        until = self._clock.now() + 2 * relay
        with suppress(LockServiceUnavailable):  # Then the lease ends when it ends.
            while self._clock.now() - self._session.heard.since >= self._lease_seconds * OVERDUE:
                if self._clock.now() >= until:
                    return
                self._clock.sleep(relay / 4)
                self._session.exists([], sync=True)

    def _take(self, ticket: _Ticket, limit: int) -> Sequence[Offer]:
        request, nodes = ticket.request, ticket.parts[0].nodes
        ((resource, _),) = request.locks
        assert nodes is not None
        own = nodes[resource].rpartition("/")[2]
        queue = self._path(request, resource)
        taken = self._ask(partial(self._offers.take, queue, own, request.request_id, limit))
        ticket.taken = {one.offer.request_id: one for one in taken}
        return [one.offer for one in taken]

    def _retract(self, request: LockRequest) -> bool:
        ticket = self._tickets.get(request.request_id)
        if ticket is None or not ticket.offers:
            return not (request.offer and (ticket is None or ticket.doubtful))
        try:
            if not self._ask(partial(self._offers.retract, request.request_id)):
                return False
        except LockServiceUnavailable:
            return False
        ticket.offers = False
        return True

    def _withdraw(self, request: LockRequest) -> None:
        ticket = self._tickets.get(request.request_id)
        if ticket is not None and ticket.request is request:
            self._tell_no_more(ticket)
            self._give_back(ticket)

    # Deadlocks. Nobody waits in a circle who holds nothing; so those alone who hold something tell whom they wait for.

    def _waits(self, request: LockRequest) -> Sequence[Wait]:
        ticket = self._tickets[request.request_id]
        first, path = ticket.parts[0], self._layout.wait(request.request_id)
        (marker,) = self._session.exists([first.marker])
        if marker is None or not first.unclear:
            return ()
        if ticket.tells != marker.created:
            wait = self._wait_of(ticket, first, marker.created)
            told = Create if ticket.tells is None else Change
            ticket.tells = marker.created
            with suppress(MultiRefused):  # Its reply was lost.
                self._session.multi([told(path, wait_data(wait))])
        # Behind our own: of two who tell at one time, the second one finds the first.
        (names,) = self._session.names([self._layout.waits])
        told_by = self._session.get([f"{self._layout.waits}/{name}" for name in names or ()])
        return [parse_wait(node.data) for node in told_by if node is not None]

    def _wait_of(self, ticket: _Ticket, part: _Part, place: int) -> Wait:
        """Return all who stand in the way of *part* where it is not free yet."""
        assert part.nodes is not None
        request, paths = ticket.request, []
        queues = [self._path(request, resource) for resource in part.unclear]
        for resource, queue, listing in zip(part.unclear, queues, self._session.children(queues), strict=True):
            nodes = lock_nodes(listing.names) if listing is not None else []
            own = next((node for node in nodes if part.nodes[resource].endswith(f"/{node.name}")), None)
            paths += [f"{queue}/{node.name}" for node in nodes if own is not None and blocks(node, own)]
        ids = {LockData.parse(node.data).request_id for node in self._session.get(paths) if node is not None}
        markers = self._session.get([self._layout.request(one) for one in sorted(ids)])
        made = [
            (one, node, RequestData.parse(node.data)) for one, node in zip(sorted(ids), markers, strict=True) if node
        ]
        return Wait(
            request_id=request.request_id,
            place=place,
            agent=self._agent,
            owner=request.owner,
            wanted=(part.unclear[0], dict(part.locks)[part.unclear[0]]),
            obstacles=[
                Obstacle(request_id=one, place=node.stat.created, agent=data.agent)
                for one, node, data in made
                if data is not None
            ],
        )

    def _all_stand(self, places: Mapping[str, int]) -> bool:
        stats = self._session.exists([self._layout.request(one) for one in places], sync=True)
        return [None if stat is None else stat.created for stat in stats] == list(places.values())

    def _tell_no_more(self, ticket: _Ticket) -> None:
        if ticket.tells is not None:
            # One that is left says nothing: of whom it waited for somebody has gone.
            with suppress(LockServiceUnavailable):
                self._session.delete_each([self._layout.wait(ticket.request.request_id)])
            ticket.tells = None

    # Hold.

    def _session_changed(self, event: SessionEvent) -> None:
        """Have everybody look again; called in kazoo's thread, which must not wait."""
        if event is not SessionEvent.SUSPENDED:
            # The watches went with the connection.
            for ticket in list(self._tickets.values()):
                ticket.turn.set()
        if self._tickets or self._unreleased:
            self.heartbeat.ensure_running(now=True)

    def _observe(self, ticket: _Ticket, event: LeaseEvent, reason: str = "") -> None:
        if not ticket.request.explicit and ticket.session != self._session.number:
            event, reason = LeaseEvent.DENIED, "the session was lost"
        super()._observe(ticket, event, reason)

    def _counted_from(self, ticket: _Ticket) -> float:
        return min(ticket.word, self._session.heard.since)

    def _lost(self, ticket: _Ticket) -> None:
        """Delete the nodes of a lease that is over, if nobody else does.

        1. Our heartbeats come too late, on a busy machine: by our clock the lease is LOST, which is final.
        2. kazoo's heartbeats came in time. The session lives on, and with it the nodes, as long as this process.
        """
        self._unreleased[ticket] = None
        self.heartbeat.ensure_running()

    def _renewed(self, tickets: Sequence[_Ticket], *, thorough: bool) -> Collection[_Ticket]:
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
        stats = self._ask(lambda: self._session.exists(asked, BRIEFLY, sync=True))
        there = {path for path, stat in zip(asked, stats, strict=True) if stat is not None}
        return [ticket for ticket in tickets if there.issuperset(paths[ticket])]

    def _beats_for(self, ticket: _Ticket) -> bool:
        return ticket.lease is not None and not ticket.request.explicit

    def _beat(self) -> float | None:
        if self._session.silent_since is not None:
            for ticket in filter(self._beats_for, list(self._tickets.values())):
                self._observe(ticket, LeaseEvent.MISSED, "the connection was cut")
        return super()._beat()

    def _chores(self) -> float | None:
        """Remove empty parents, and answers that nobody asks for any more."""
        more = False
        with suppress(LockServiceUnavailable):
            more = self._sweep(_UNUSED)
            more |= self._forget_expired()
        if more:
            return _SOON
        return _UNUSED / 4 if self._litter else None

    def _forget_expired(self) -> bool:
        """Forget what was remembered until the span before; return whether there is more than fits into one beat."""
        now_ms = self._clock.wall_ms()
        if now_ms // SPAN_MS <= self._swept:
            return False
        if self._journal.forget_expired(now_ms, _AT_ONCE):
            return True
        self._swept = now_ms // SPAN_MS
        return False

    # Give back.

    def _remove_ticket(self, ticket: _Ticket) -> None:
        settling = [*self._leaving(ticket), *self._answered(ticket)]
        # The last part first, so that the first one stands for the rest.
        for part in reversed(ticket.parts):
            if part.sent:
                if not ticket.request.explicit and ticket.session != self._session.number:
                    part.nodes = None  # gone, unless a multi was on its way: see _find
                settling = self._remove_part(ticket, part, settling)
            part.sent, part.nodes = False, None
        # What is left stays undone. Our own nodes were gone before, so those whose offers we took may have been granted
        # since: who ended their requests now would let another one in beside them. They find what was carried out in
        # the journal, or in the table.
        for step in settling:
            step.instead()

    def _leaving(self, ticket: _Ticket) -> list[_Step]:
        """Return what leaves the note of *ticket*, in the place of the one that it found."""
        if ticket.left is None or ticket.request.table is None:
            return []
        path, text = self._layout.note(ticket.request.table), ticket.left.encode()
        if ticket.noted is None:
            return [_Step([Create(path, text)])] if text else []
        return [_Step([Change(path, text, ticket.noted) if text else Delete(path, ticket.noted)])]

    def _answered(self, ticket: _Ticket) -> list[_Step]:
        """Return what answers the offers that were carried out, and ends or gives back each of those taken."""
        lease = ticket.lease
        if not isinstance(lease, CarryingLease) or not ticket.taken:
            return []
        done, returned = lease.settled
        steps = [*self._offers.ending(ticket.taken, [entry.request_id for entry in done])]
        steps += self._offers.returning(ticket.taken, returned)
        answers: list[_Step] = []
        if done:
            self._answers = True
            until = self._clock.wall_ms() + ANSWER_LEASES * self._session.timeout_ms

            def one_by_one() -> None:
                for entry in done:
                    self._journal.remember(entry, until)

            answers = [_Step(self._journal.remembering(done, until), one_by_one)]
        return [*answers, *map(_Step, steps)]

    def _remove_part(self, ticket: _Ticket, part: _Part, settling: list[_Step]) -> list[_Step]:
        """Delete the nodes of *part*, and do all of *settling* with it; return what was not done."""
        # Interrupted while it entered: it may be there, or not.
        try:
            there = part.nodes is not None or self._find(ticket, part)
        except (LockRefused, _Bygone):
            return settling  # Somebody else's request of the same id; or the servers are about to remove it.
        now = self._clock.now()
        for resource, _ in part.locks:
            self._litter[ticket.request.scope, resource] = now
        offer = [Delete(self._layout.offer(ticket.request.request_id))] if ticket.offers else []
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
                self._session.multi([operation for group in groups for operation in group])
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
                    there = self._find(ticket, part)
            else:
                return []
        # Who frees by force leaves the offer to its owner, and our session keeps it for as long as we live.
        self._session.delete_each([one.path for one in offer])
        return settling

    def _sweep(self, age: float) -> bool:
        """Delete parents that we used and nobody needs any more; return whether more are left than fit into one beat.

        1. We find a parent unused.   2. Somebody else is about to lock there.
        3. ZooKeeper deletes no node that has children; and if we were first, they find no parent, and create it.
        """
        before = self._clock.now() - age
        unused = [key for key, since in dict(self._litter).items() if since <= before]
        some = unused[:_AT_ONCE]
        paths = {
            self._layout.resource(scope, one) for scope, resource in some for one in (*resource.ancestors, resource)
        }
        self._session.delete_each(sorted(paths, key=lambda path: -path.count("/")))
        for key in some:
            self._litter.pop(key, None)
        return len(unused) > len(some)

    # Look, and free by force.

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`."""
        self._here()
        depth = len(resource.path) if resource else 0
        return [
            entry
            for entry in self._ask(lambda: self._view.entries(self._view.standing()))
            if scope in (None, entry.scope) and (resource is None or entry.resource.path[:depth] == resource.path)
        ]

    def pages(
        self, resource: Resource | None = None, *, scope: LockScope | None = None
    ) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`LockManager.pages`."""
        self._here()
        known = Known()
        for one in (scope,) if scope else LockScope:
            left = self._view.top(one, resource)
            while left:
                standing, left = self._ask(partial(self._view.page, one, left))
                if standing:
                    yield self._ask(partial(self._view.entries, standing, known))

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`."""
        self._here()
        return self._free(
            lambda entry: entry.request_id == request_id or (resource is not None and entry.resource == resource)
        )

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """See :meth:`LockManager.reap`. What expired the servers have removed; empty parents go too."""
        self._here()
        if dry_run:
            return [entry for entry in self.locks() if self._is_left(entry)]
        freed = self._free(self._is_left)
        self._ask(self._view.clear_orphans)
        for scope in LockScope:
            self._ask(partial(self._clear, scope))
        return freed

    def _is_left(self, entry: LockEntry) -> bool:
        """Return whether a dead owner left *entry*, whose session may not have expired yet."""
        return not entry.explicit and self._host.is_dead(entry.owner.process)

    def _clear(self, scope: LockScope) -> None:
        self._session.delete_each(self._view.empty(scope))

    def _free(self, chosen: Callable[[LockEntry], bool]) -> Sequence[LockEntry]:
        """Remove every request that has an entry which is *chosen*, and return all its entries."""
        standing = self._ask(self._view.standing)
        entries = self._ask(partial(self._view.entries, standing))
        wanted = list(dict.fromkeys(entry.request_id for entry in entries if chosen(entry)))
        freed: list[LockEntry] = []
        for request_id in wanted:
            if self._ask(partial(self._view.remove, request_id, standing)):
                of_one = [entry for entry in entries if entry.request_id == request_id]
                freed += of_one
                self._litter.update(((entry.scope, entry.resource), self._clock.now()) for entry in of_one)
                own = self._tickets.get(request_id)
                if own is not None:
                    own.turn.set()
                    self._observe(own, LeaseEvent.DENIED, "freed by force")
        return freed

    def _holder(self, request: LockRequest, blocker: Blocker) -> dict[str, object]:
        """Return what an error says about the oldest request in the way on the resource where we are blocked.

        Not by a listing of everything, which may be long: one queue is looked at, and one request.
        """
        assert isinstance(blocker, _NodeBlocker)
        mode = dict(request.locks).get(blocker.resource, LockMode.SHARED)
        facts: dict[str, object] = {
            "resource": blocker.resource,
            **holder_facts(blocker.owner, blocker.requested_at_ms, blocker.request_id),
        }
        with suppress(LockError):  # A courtesy: the blocker alone names somebody too.
            (listing,) = self._session.children([self._path(request, blocker.resource)])
            queue = lock_nodes(listing.names) if listing is not None else []
            head = next((n for n in queue if LockMode.EXCLUSIVE in (mode, n.mode)), None)
            if head is not None:
                (node,) = self._session.get([f"{self._path(request, blocker.resource)}/{head.name}"])
                if node is not None:
                    data = LockData.parse(node.data)
                    known = self._view.requests([data.request_id])[data.request_id]
                    owner: Owner = known.owner if known is not None else data.owner
                    facts |= {"mode": head.mode.value, **holder_facts(owner, node.stat.created_ms, data.request_id)}
        return facts

    # Journal.

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`LockManager.remember`."""
        self._here()
        now_ms = self._clock.wall_ms()
        self._ask(partial(self._journal.remember, entry, now_ms + lifetime_ms))
        self._answers = True

    def recall(self, request_id: str) -> JournalEntry | None:
        """See :meth:`LockManager.recall`."""
        self._here()
        return self._ask(partial(self._journal.recall, request_id, self._clock.wall_ms()))

    # The rest.

    def _disconnect(self) -> None:
        until = self._clock.now() + BRIEFLY
        try:
            while self._sweep(0.0) and self._clock.now() < until:
                pass  # What is left is cleared by reap.
            if self._answers:  # Those of clients that never live through a span would stay.
                self._journal.forget_expired(self._clock.wall_ms(), _AT_ONCE)
        except LockServiceUnavailable:
            pass  # That too.
        finally:
            self._session.close()

    def _path(self, request: LockRequest, resource: Resource) -> str:
        return self._layout.resource(request.scope, resource)

    def _ask(self, attempt: Callable[[], T]) -> T:
        return self._persist(attempt, self._clock.now() + BRIEFLY)


def _woken(ticket: _Ticket, marker: str, path: str | None) -> None:
    """Have *ticket* look again; called in kazoo's thread."""
    ticket.ended |= path == marker
    ticket.turn.set()
