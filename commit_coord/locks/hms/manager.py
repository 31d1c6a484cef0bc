"""The locks of a Hive Metastore.

Theory of operation
    A request is one ``lock`` call with many components; the server gives it a place and says whether it is granted.
    Who waits asks with ``check_lock``; nobody is woken. ``hms_names`` says what is locked for what.

    Servers grant in the order of arrival (up to 2.3 a reader passes a writer that waits, and steps back when it finds
    out), so a request that sleeps at the head of the queue stops everybody behind it. Therefore a waiter sleeps as long
    as the requests before it should take, going by its own, or a quarter of the time for which the queue has not moved:
    the head of the queue asks soon, those behind it seldom, and a lock that is held for hours costs little.

Liveness
    Servers do not free the locks of dead clients unless they are told to. So each of our requests says for how long
    it may be kept without a heartbeat, and waiters free those whose heartbeat has not moved for so long by their own
    clock, or whose process has ended on this host:

    1. The holder stalls; its last heartbeat was sent at 0 and received at 1.
    2. Its own clock says LOST at 0 + lease.
    3. A waiter saw that heartbeat first at 2 or later, and frees the lock at 2 + lease.

    While the metastore is away nobody is heard: a waiter whom it did not answer counts from its next look.

    Locks of LOCK statements and of other programs are left to people.

Threads of one process
    One of them at a time asks the metastore for a commit latch; the others wait for it in this process, and it carries
    along what they offer. A metastore keeps no offers, so between processes nobody carries anybody.

A lost reply
    1. The lock call is sent; the connection breaks. The request may be in the queue, or come later.
    2. It is looked for by its ``agentInfo``. Found, it goes on from there; else it is sent again.
    3. The first one comes after all: a second place for one request, which nobody would release.
    4. So such a request is looked for in the background for one more lease, and what is not its place is released.
       The same is done for a request whose acquire was interrupted while it was being sent.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockError, LockRefused, LockServiceUnavailable, MetastoreUnavailable, OfferLost
from commit_coord.events import Events
from commit_coord.hms.client import ListedLock, LockPart, MetastoreClient
from commit_coord.hms.connection import LostReply, MetaError, NoSuchLock, ServerFailed, UnknownMethod
from commit_coord.locks.base import BRIEFLY, Interrupted, Lease, LockSettings, Policy
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.heartbeat_log import Beats, is_over
from commit_coord.locks.keeping import KeepingLockManager, KeptLease, Ticket
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.locks.queueing import Blocker
from commit_coord.model import (
    Generation,
    Guarantees,
    JournalEntry,
    LeaseState,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    LockState,
    Offer,
    Owner,
    Resource,
)
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.deadlock import Obstacle, Wait
from commit_coord.protocol.lease import LeaseEvent

logger = logging.getLogger(__name__)

_RETRY = Backoff(initial_ms=50, maximum_ms=1_000)
"""Between two tries of a lock call whose reply was lost."""

_PART_MS = 50
"""How much longer the answer to a lock call may take for each lock in it: on Derby a lock costs 10 to 34 ms."""

_FAILURES = 3
"""Times that a server may fail in a lock call; where it has no lock tables it always does."""

_PATIENCE = 0.25
"""The part of the time for which the queue has not moved that a waiter sleeps until it asks again."""

_LOOK_AGAIN = 0.5
"""Seconds for which the head of the queue takes a listing for good; the question whether it is granted is cheaper."""

_ANSWERED = 2 / 3
"""The part of a lease within which the metastore's servers have to answer a heartbeat, all of them together."""

_LOOK_FOR_STRAYS = 0.2
"""Seconds between two looks for second places."""

_REQUESTS = (hms_names.OPERATIONS, hms_names.REQUESTS)
"""Where every operation request is listed once."""

_INTERNAL = "__"
"""How the names of databases begin that Hive 4 locks for itself."""


_LAST = sys.maxsize
"""The place of a request that has given back its place."""


class Guarded(LockRefused):
    """The latch was refused: the table's guard stands in the metastore."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Ticket(Ticket):
    """A request in the metastore."""

    lock_id: int
    granted: float = 0.0
    """When the lease began, on ``Clock.now``."""
    blocked_by: int | None = None
    stepped_back: bool = False
    """Whether it was granted past somebody, and gave its place back."""
    turn: threading.Event = field(default_factory=threading.Event)
    """Set when this client releases what is in the way."""


@dataclass(slots=True, eq=False)
class _Standing:
    """One lock as it was listed, all its components together."""

    lock_id: int
    listed: list[ListedLock]

    @property
    def acquired(self) -> bool:
        return self.listed[0].acquired

    @property
    def heartbeat_ms(self) -> int:
        return max(one.heartbeat_ms for one in self.listed)

    @property
    def said(self) -> hms_names.Agent | None:
        return hms_names.Agent.parse(self.listed[0].agent)

    @property
    def agent(self) -> str:
        """The thread that asked for it; what is not ours is nobody's who waits for anything else."""
        return hms_names.thread_of(self.listed[0]) or self.request_id

    @property
    def request_id(self) -> str:
        said = self.said
        return said.request_id if said else f"hms-{self.lock_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _HmsBlocker(Blocker):
    """The nearest blocker, with what decides when to ask again."""

    ahead: int
    """How many requests stand in the way."""
    first: int
    """Lock id of the first request in the way: the queue has moved when it is another one."""
    since: float
    """When this client saw that one first in the way of this request."""
    looked: float
    """When the listing was asked for that it comes from."""
    expires: float | None
    """When its heartbeat will not have moved for a lease; None where it may be kept for ever."""


class _HmsLease(KeptLease):
    """A lock in the metastore and, of a commit latch, this process's turn at it."""

    def __init__(self, manager: HmsLockManager, ticket: _Ticket, turn: Lease | None) -> None:
        super().__init__(manager, ticket, Generation(ticket.lock_id))
        self._turn = turn

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`Lease.take`."""
        return self._turn.take(limit) if self._turn is not None else ()

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`Lease.settle`."""
        assert self._turn is not None, "only a latch takes offers"
        self._turn.settle(done, returned)

    def retract(self) -> bool:
        """See :meth:`Lease.retract`."""
        return self._turn is None or self._turn.retract()

    def release(self) -> None:
        """See :meth:`Lease.release`."""
        try:
            super().release()
        finally:
            if self._turn is not None:
                self._turn.release()


class _Threads(MemoryLockManager):
    """Where the threads of this process wait for their turn at a commit latch of one metastore."""

    def __init__(self, manager: HmsLockManager, clock: Clock) -> None:
        super().__init__(f"hms {manager.metastore.service}", settings=manager.settings, clock=clock, host=manager._host)
        self._manager = manager

    def has_turn(self, request: LockRequest) -> bool:
        """Return whether it is this thread's turn at what *request* locks."""
        self._here()
        turns = [set(lease.request.locks) for lease in self._leases_of_this_thread()]
        return any(turn.issuperset(request.locks) for turn in turns)

    def _holder(self, request: LockRequest, blocker: Blocker) -> dict[str, object]:
        # The thread whose turn it is may itself be waiting for somebody elsewhere.
        return self._manager._holder(request, blocker)


class HmsLockManager(KeepingLockManager[_Ticket]):
    """Locks in a Hive Metastore, of which the commit latch is the one that unmodified writers take too.

    Args:
        uri: ``thrift://host:port``, several separated by commas; how to talk to them behind a ``?``
            (:attr:`MetastoreClient.service`).
        space: Unused: on one metastore, one name is one table, whatever a client calls its catalog.
        settings: Times.
        clock: Where time and chance come from.
        events: Who is told.
        host: Names this process, and tells which others have ended.

    Raises:
        ConfigError: The URI is not one of a metastore.
    """

    name = "hms"
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=False,  # up to 2.3 a reader passes a writer that waits; it steps back, to the end of the queue
        reach="network",
        expiry=True,
        survives_restart=True,
        explicit_locks=True,
        journal=False,
        clock="client",
        carries="process",
        deadlocks=True,
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
    ) -> None:
        super().__init__(settings or LockSettings(), clock, events or Events(), host)
        self.metastore = MetastoreClient.of(uri)
        self._queue = _Threads(self, clock)
        self._start_over()

    def _start_over(self) -> None:
        super()._start_over()
        self._client = self._client[:8]  # The column is short.
        self._sending: dict[str, LockRequest] = {}
        self._first_sent: dict[str, float] = {}
        """When each request that is under way was sent for the first time, on ``Clock.now``."""
        self._strays: dict[str, tuple[LockRequest, float]] = {}
        self._turns: dict[str, Lease] = {}
        self._beats: Beats = {}
        self._hold = 0.0

    @property
    def client(self) -> str:
        """The name by which this client's requests are told from others'."""
        self._here()
        return self._client

    def latch_of(self, table: Resource) -> Lease | None:
        """Return the lease by which this client holds the commit latch of *table*."""
        for ticket in list(self._tickets.values()):
            if ticket.request.scope is LockScope.COMMIT and table in dict(ticket.request.locks):
                lease = ticket.lease
                return None if lease is not None and lease.state is LeaseState.LOST else lease
        return None

    # Acquire.

    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> Lease:
        """See :meth:`LockManager.acquire`."""
        try:
            with self.metastore.within(max(0.0, deadline - self._clock.now()) + BRIEFLY):
                return super().acquire(request, deadline=deadline, policy=policy)
        except LockError as error:
            # 1. The holder takes the offer, sends its swap and is interrupted.   2. The offer's owner has its turn.
            # 3. The metastore fails, and refuses it the latch.   4. The swap lands.
            if not request.offer or self._retract(request):
                raise
            raise OfferLost("the holder that took the offer did not answer", locks=request) from error
        finally:
            self._turns.pop(request.request_id, None)  # the lease has it
            self._first_sent.pop(request.request_id, None)

    def _unlockable(self, request: LockRequest) -> tuple[str, str] | None:
        for part in hms_names.parts(request):
            if (reason := part.refusal) is not None:
                return ".".join(filter(None, (part.db, part.table, part.partition))), reason
        return None

    def _await_turn(self, request: LockRequest, deadline: float, policy: Policy | None) -> None:
        # Who lost the lock and wants it again has this process's turn still.
        if request.scope is LockScope.COMMIT and not request.explicit and not self._queue.has_turn(request):
            self._turns[request.request_id] = self._queue.acquire(request, deadline=deadline, policy=policy)

    def _give_up(self, request: LockRequest) -> None:
        super()._give_up(request)
        self._queue._give_up(request)

    def _end_waits(self) -> None:
        self._queue._end_waits()
        super()._end_waits()

    def _retract(self, request: LockRequest) -> bool:
        turn = self._turns.get(request.request_id)
        return turn is None or turn.retract()

    def _knows(self, request_id: str) -> bool:
        self._here()
        return request_id in self._tickets

    def _enter(self, request: LockRequest, deadline: float) -> Blocker | None:
        self._sending[request.request_id] = request
        ticket, acquired = self._sent(request, deadline)
        self._tickets[request.request_id] = ticket
        self._sending.pop(request.request_id, None)
        if not request.explicit or self._strays:
            self.heartbeat.ensure_running()
        if acquired:
            return self._step_back(ticket)
        return self._look(ticket, None) or self._ask(ticket, None, deadline)

    def _step_back(self, ticket: _Ticket) -> _HmsBlocker | None:
        """Give back what was granted past somebody who waits, and return who that is; None if there is nobody.

        Up to 2.3 a reader passes a writer that waits. That starves writers, and it is not safe: seen on 2.3.10,
        1. W waits for a reader, which leaves.   2. W asks; R enters, and does not wait for who waits.
        3. The server answers both side by side, and has granted both.
        The older one of the two stands in the list when R looks, so R alone has to do something about it.
        """
        if LockMode.SHARED not in dict(ticket.request.locks).values():
            return None
        older = [one for one in self._in_the_way(ticket) if one.lock_id < ticket.lock_id]
        if not older:
            return None
        with _translated(ticket.request):
            self.metastore.unlock(ticket.lock_id)
        ticket.stepped_back = True
        now = self._clock.now()
        return self._blocker(older[-1], older, None, now=now)

    def _sent(self, request: LockRequest, deadline: float) -> tuple[_Ticket, bool]:
        """Send the lock call until it is known to have a place; return that, and whether it is granted."""
        parts, owner = hms_names.parts(request), request.owner
        agent = hms_names.agent(
            request, client=self._client, requested_ms=self._clock.wall_ms(), lease_ms=self.settings.lease_ms
        )
        started, tries = self._clock.now(), 0
        first_sent = self._first_sent.setdefault(request.request_id, started)
        until = min(deadline, started + self._lease_seconds)
        with _translated(request):
            while True:
                sent = self._clock.now()
                try:
                    left_ms = max(0, round((deadline - sent) * 1000))
                    lock_id, acquired = self.metastore.lock(
                        parts,
                        user=hms_names.user(owner),
                        host=hms_names.host(owner, self._agent),
                        agent=agent,
                        patience_ms=min(_PART_MS * len(parts), left_ms),
                    )
                    if (now := self._clock.now()) - sent > self._lease_seconds / 3:
                        # A lease counts from what was sent last.
                        try:
                            self.metastore.heartbeat(lock_id)
                        except NoSuchLock:
                            acquired = False  # Freed since: the next question finds it gone, too.
                        else:
                            # For very many locks the server takes longer, and shows them to nobody before the end.
                            many = _PART_MS * len(parts) >= self.settings.lease_ms
                            if many or self._clock.now() - sent < self._lease_seconds:
                                sent = now
                            else:
                                acquired = False  # It was silent for a lease: the next question gives it back.
                except (LostReply, ServerFailed) as error:
                    if isinstance(error, ServerFailed) and tries >= _FAILURES:
                        raise
                    failed = self._clock.now()
                    self._strays[request.request_id] = request, failed + self._lease_seconds
                    for own in self._own(request)[:1]:
                        word = self._clock.now()
                        with suppress(NoSuchLock):
                            self.metastore.heartbeat(own.lock_id)
                            if request.explicit or self._clock.now() - first_sent < self._lease_seconds:
                                return _Ticket(request=request, lock_id=own.lock_id, word=word), own.acquired
                            # It may have been silent for a lease, and a waiter about to free it. Who answered is
                            # asked again.
                            self.metastore.unlock(own.lock_id)
                            until = min(deadline, self._clock.now() + self._lease_seconds)
                    # Whoever was away and answers now is asked again, however long it took to look.
                    if failed >= until:
                        raise
                else:
                    return _Ticket(request=request, lock_id=lock_id, word=sent), acquired
                self._clock.sleep(next_wait(_RETRY, tries, self._clock.random()))
                tries += 1

    def _own(self, request: LockRequest) -> list[_Standing]:
        """Return the places that *request* of this client has, first the first."""
        found = _grouped(
            listed
            for place in ([_REQUESTS] if _is_operation(request) else hms_names.places(request))
            for listed in self.metastore.show_locks(*place)
        )
        return [
            standing
            for standing in found
            if (said := standing.said) and (said.request_id, said.client) == (request.request_id, self._client)
        ]

    def _wait(self, request: LockRequest, blocker: Blocker, deadline: float) -> Blocker | None:
        assert isinstance(blocker, _HmsBlocker)
        ticket = self._tickets[request.request_id]
        now = self._clock.now()
        until = min(deadline, now + self._until_next(blocker, now))
        if blocker.expires is not None:
            until = min(until, max(blocker.expires, now + self.settings.check_min_wait_ms / 1000))
        tick = self.settings.poll_interval_ms / 1000
        ended = False
        while not ended and not ticket.turn.is_set() and (left := until - self._clock.now()) > 0:
            ticket.turn.wait(min(left, tick))
            ended = self._host.is_dead(blocker.owner.process)
            if self._is_closed(request):
                return blocker
        ticket.turn.clear()
        # Who is far behind looks at the list, which locks nothing in the metastore; who may be next asks.
        if blocker.ahead > 1 or ended:
            found = self._look(ticket, blocker)
            if found is not None and found.ahead > 1:
                return found
            blocker = found or blocker
        return self._ask(ticket, blocker, deadline)

    def _until_next(self, blocker: _HmsBlocker, now: float) -> float:
        """Return the seconds until it makes sense to ask again; see the module."""
        shortest, longest = self.settings.check_min_wait_ms, self.settings.check_max_wait_ms
        # Those before us will take as long as we do. Half of that, since who comes too late keeps everybody waiting.
        expected_ms = max(shortest, self._hold * 1000) * blocker.ahead / 2
        wait_ms = max(shortest, expected_ms, (now - blocker.since) * 1000 * _PATIENCE)
        return next_wait(Backoff(initial_ms=wait_ms, maximum_ms=longest), 0, self._clock.random())

    def _queue_again(self, request: LockRequest, deadline: float) -> Blocker | None:
        """Enter at the end: the place that *request* had is gone."""
        del self._tickets[request.request_id]
        return self._enter(request, deadline)

    def _ask(self, ticket: _Ticket, before: _HmsBlocker | None, deadline: float) -> Blocker | None:
        """Ask whether *ticket* is granted; return who is in the way."""
        request, asked = ticket.request, self._clock.now()
        if ticket.stepped_back:
            found = self._look(ticket, before)
            if found is not None:
                return found
            return self._queue_again(request, deadline)
        # Twice: a look that freed somebody who had died may have made way.
        for _ in range(2):
            asked = self._clock.now()
            try:
                granted = self._persist(partial(self._checked, ticket), deadline)
            except NoSuchLock:
                # The answer may have come long after the question: the server was started again meanwhile.
                if request.explicit or self._clock.now() - ticket.word < self._lease_seconds:
                    raise LockRefused("the request was taken out of the queue by force", locks=request) from None
                # We were stalled for longer than a lease and somebody removed us: queue again, at the end.
                return self._queue_again(request, deadline)
            if self._was_silent(ticket):
                with _translated(request):
                    self.metastore.unlock(ticket.lock_id)
                return self._queue_again(request, deadline)
            ticket.word = max(ticket.word, asked)
            if granted:
                return self._step_back(ticket)
            if before is not None and asked - before.looked < _LOOK_AGAIN and asked < (before.expires or asked + 1):
                return before
            found = self._look(ticket, before)
            if found is not None:
                return found
        return before or _SOMEBODY

    def _checked(self, ticket: _Ticket) -> bool:
        """Return whether *ticket* is granted. That the service fails may pass: it had a place for the ticket."""
        try:
            with _translated(ticket.request):
                return self.metastore.check_lock(ticket.lock_id)
        except LockServiceUnavailable as error:
            raise Interrupted(error.message, **error.details) from error

    def _look(self, ticket: _Ticket, before: _HmsBlocker | None) -> _HmsBlocker | None:
        """Return who is in the way of *ticket*, None if nobody is listed; free the dead among them."""
        request, now = ticket.request, self._clock.now()
        # Whoever asks for an id that is in use waits for that, too; once is enough.
        in_the_way = self._in_the_way(ticket, ids=before is None and _is_operation(request))
        with _translated(request):
            answered = self._clock.now()
            for one in list(in_the_way):
                said = one.said
                if said is not None and said.request_id == request.request_id and said.client != self._client:
                    raise LockRefused("the request id is in use", request_id=request.request_id, locks=request)
                if said is not None and said.guard:
                    raise Guarded(
                        "the table is guarded: its writers use another lock manager than the metastore's",
                        locks=request,
                        guard=said.request_id,
                        statement=said.statement,
                        accepted="their lock-impl; or `commit-coord unlock` of the guard, if they have handed it back",
                    )
                if self._is_over(one, now, answered) or one.request_id == request.request_id:
                    logger.info("freed a lock whose owner has ended: %s", one.listed[0])
                    self.metastore.unlock(one.lock_id)
                    in_the_way.remove(one)
        if not in_the_way:
            ticket.blocked_by = None
            return None
        nearest = max(in_the_way, key=lambda one: (one.lock_id < ticket.lock_id, one.lock_id))
        ticket.blocked_by = nearest.lock_id
        return self._blocker(nearest, in_the_way, before, now=now)

    def _in_the_way(self, ticket: _Ticket, *, ids: bool = False) -> list[_Standing]:
        """Return who conflicts with *ticket* and is before it, or granted; first the first.

        Args:
            ticket: Ours.
            ids: Also whoever has its request id.
        """
        wanted, places = hms_names.parts(ticket.request), hms_names.places(ticket.request)
        if ids:
            places = [*places, (hms_names.OPERATIONS, hms_names.REQUESTS)]
        with _translated(ticket.request):
            return [
                one
                for one in _grouped(listed for place in places for listed in self.metastore.show_locks(*place))
                if one.lock_id != ticket.lock_id
                and (one.acquired or one.lock_id < ticket.lock_id)
                and any(hms_names.conflict(part, other.part) for part in wanted for other in one.listed)
            ]

    def _waits(self, request: LockRequest) -> Sequence[Wait]:
        if not _is_operation(request):
            return ()  # Whoever holds a latch waits for nothing.
        with _translated(request):
            standing = _grouped(self.metastore.show_locks(hms_names.OPERATIONS))
        ticket = self._tickets[request.request_id]
        return _waits_among([*standing, self._apart(ticket)] if ticket.stepped_back else standing)

    def _apart(self, ticket: _Ticket) -> _Standing:
        """Return *ticket*, which has given its place back, as it will be listed: behind everybody who is there now."""
        owner = ticket.request.owner
        host, user = hms_names.host(owner, self._agent), hms_names.user(owner)
        agent = hms_names.agent(ticket.request, client=self._client, requested_ms=0, lease_ms=self.settings.lease_ms)
        return _Standing(
            _LAST,
            [
                ListedLock(
                    lock_id=_LAST,
                    part=part,
                    acquired=False,
                    heartbeat_ms=0,
                    acquired_ms=None,
                    user=user,
                    host=host,
                    agent=agent,
                )
                for part in hms_names.parts(ticket.request)
            ],
        )

    def _all_stand(self, places: Mapping[str, int]) -> bool:
        with _translated(None):
            standing = {one.request_id: one.lock_id for one in _grouped(self.metastore.show_locks(*_REQUESTS))}
        return all(standing.get(request_id) == place for request_id, place in places.items() if place != _LAST)

    def _is_over(self, standing: _Standing, asked: float, answered: float, beats: Beats | None = None) -> bool:
        """Return whether a lock of ours may be freed: its heartbeat has stopped for a lease, or its process ended.

        Between *asked* and *answered* it was listed; that may have taken as long as the metastore was away. What was
        seen before is in *beats*, by default what waiters have seen.
        """
        return is_over(
            standing.listed[0],
            standing.heartbeat_ms,
            beats=self._beats if beats is None else beats,
            failures=self.metastore.failures,
            asked=asked,
            answered=answered,
        )

    def _blocker(
        self, standing: _Standing, in_the_way: Sequence[_Standing], before: _HmsBlocker | None, *, now: float
    ) -> _HmsBlocker:
        said, listed = standing.said, standing.listed[0]
        first = in_the_way[0].lock_id
        expires = None
        if said is not None and said.lease_ms is not None:
            expires = self._beats.get(standing.lock_id, (0, now))[1] + said.lease_ms / 1000
        return _HmsBlocker(
            request_id=standing.request_id,
            owner=hms_names.owner_of(listed, said),
            requested_at_ms=said.requested_ms if said else listed.acquired_ms or listed.heartbeat_ms,
            ahead=len(in_the_way),
            first=first,
            since=before.since if before is not None and before.first == first else now,
            looked=now,
            expires=expires,
        )

    def _grant(self, request: LockRequest) -> Lease:
        ticket = self._tickets[request.request_id]
        ticket.granted = self._clock.now()
        lease = ticket.lease = _HmsLease(self, ticket, self._turns.get(request.request_id))
        return lease

    def _withdraw(self, request: LockRequest) -> None:
        ticket = self._tickets.get(request.request_id)
        if ticket is not None and ticket.request is not request:
            return  # Somebody else's request of the same id, for which ours was refused.
        if ticket is not None:
            self._give_back(ticket)
        if request.request_id in self._sending:
            # Interrupted while it was sent: it may be there, or come.
            self._strays[request.request_id] = request, self._clock.now() + self._lease_seconds
            self.heartbeat.ensure_running(now=True)
            self._sending.pop(request.request_id, None)
            # Once here: a process that is being ended does not wait for its heartbeat.
            self._release_strays()

    # Hold.

    def _renewed(self, tickets: Sequence[_Ticket], *, thorough: bool) -> Collection[_Ticket]:
        return [ticket for ticket in tickets if self._is_renewed(ticket)]

    def _is_renewed(self, ticket: _Ticket) -> bool:
        try:
            # One server that hangs must not cost the lease: there is time left to ask the next.
            with _translated(ticket.request), self.metastore.within(self._lease_seconds * _ANSWERED):
                self.metastore.heartbeat(ticket.lock_id)
        except NoSuchLock:
            return False
        return not self._was_silent(ticket)

    def _was_silent(self, ticket: _Ticket) -> bool:
        """Return whether the service may not have heard of *ticket* for a lease, before the word that it just had.

        Then whatever it answered, the place is not to be relied on any more:

        1. We are stalled.   2. A waiter looks, and finds our heartbeat a lease old.   3. We ask, and are answered.
        4. The waiter frees us.
        """
        return not ticket.request.explicit and self._clock.now() - ticket.word >= self._lease_seconds

    def _lost(self, ticket: _Ticket) -> None:
        # Nobody frees it before a waiter comes, and it is no use to anybody: see to it ourselves.
        self._unreleased[ticket] = None

    def _chores(self) -> float | None:
        """Release second places; see the module."""
        if all(ticket.lease is not None for ticket in list(self._tickets.values())):
            self._beats.clear()
        self._release_strays()
        return _LOOK_FOR_STRAYS if self._strays else None

    def _release_strays(self) -> None:
        for request_id, (request, until) in dict(self._strays).items():
            try:
                with _translated(request), self.metastore.within(BRIEFLY):
                    for standing in self._own(request):
                        if not self._is_place(request_id, standing.lock_id):
                            self.metastore.unlock(standing.lock_id)
            except LockServiceUnavailable as error:
                logger.warning("a lock whose reply was lost could not be looked for: %s", error)
                break
            if self._clock.now() >= until:
                self._strays.pop(request_id, None)

    def _is_place(self, request_id: str, lock_id: int) -> bool:
        """Return whether a lock that was just listed is, or may be, the one that this client knows of.

        Asked in this order: a request is noted as being sent before its lock is there, and until its ticket is.
        """
        if request_id in self._sending:
            return True
        ticket = self._tickets.get(request_id)
        return ticket is not None and ticket.lock_id == lock_id

    # Give back.

    def _remove_ticket(self, ticket: _Ticket) -> None:
        with _translated(ticket.request), self.metastore.within(BRIEFLY):
            self.metastore.unlock(ticket.lock_id)
        if ticket.lease is not None and ticket.request.scope is LockScope.COMMIT:
            self._hold += (self._clock.now() - ticket.granted - self._hold) / 4
        for other in list(self._tickets.values()):
            if other.blocked_by == ticket.lock_id:
                other.turn.set()

    # Look, and free by force.

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`. Locks of other programs are in the commit scope: there they meet ours."""
        self._here()
        # Asked for first: who gets his turn in between shall be listed once, not never.
        threads = self._queue.locks(resource, scope=scope)
        listed = self._listed(resource, scope)
        there = {entry.request_id for entry in listed}
        waiting = [entry for entry in threads if entry.state is LockState.WAITING and entry.request_id not in there]
        return [*listed, *waiting]

    def _listed(self, resource: Resource | None = None, scope: LockScope | None = None) -> list[LockEntry]:
        paths = [one.path for one in (resource, self.listed(resource))] if resource is not None else [()]
        return [
            entry
            for standing, blocked_by in self._standing(resource, scope)
            for entry in self._entries(standing, blocked_by)
            if scope in (None, entry.scope) and any(entry.resource.path[: len(path)] == path for path in paths)
        ]

    def _standing(self, resource: Resource | None, scope: LockScope | None) -> list[tuple[_Standing, _Standing | None]]:
        """Return the locks that may concern *resource*, each with the one that it waits for."""
        places: list[tuple[str | None, str | None]] = []
        if resource is None:
            places = [(hms_names.OPERATIONS if scope is LockScope.OPERATION else None, None)]
        else:
            table = resource.path[1] if len(resource.path) > 1 else None
            if scope is not LockScope.OPERATION:
                places.append((resource.path[0], table))
            if scope is not LockScope.COMMIT:
                places.append((hms_names.OPERATIONS, hms_names.operation_table(resource) if table else None))
        with _translated(None):
            standing = _grouped(
                one
                for place in places
                for one in self.metastore.show_locks(*place)
                if one.part.table != hms_names.REQUESTS and not one.part.db.startswith(_INTERNAL)
            )
        # What this client is still sending has no place yet, as far as it knows: freed now, it would be sent again.
        standing = [one for one in standing if one.request_id not in self._sending]
        by_table: dict[tuple[str, str], list[_Standing]] = {}
        for one in standing:
            for key in {(listed.part.db, listed.part.table) for listed in one.listed}:
                by_table.setdefault(key, []).append(one)
        return [(one, None if one.acquired else _nearest(one, by_table)) for one in standing]

    def _entries(self, standing: _Standing, blocker: _Standing | None) -> Iterator[LockEntry]:
        said = standing.said
        left = None
        if said is not None and said.lease_ms is not None:
            # By the clocks of two machines: a hint for people, no more.
            left = max(0, min(said.lease_ms, said.lease_ms - (self._clock.wall_ms() - standing.heartbeat_ms)))
        for listed in sorted(standing.listed, key=lambda one: hms_names.resource_of(one.part)[1]):
            scope, resource = hms_names.resource_of(listed.part)
            yield LockEntry(
                resource=resource,
                mode=hms_names.mode_of(listed.part),
                scope=scope,
                state=LockState.ACQUIRED if standing.acquired else LockState.WAITING,
                owner=hms_names.owner_of(listed, said),
                request_id=standing.request_id,
                generation=Generation(standing.lock_id),
                requested_at_ms=said.requested_ms if said else listed.acquired_ms or listed.heartbeat_ms,
                expires_in_ms=left,
                explicit=said is not None and said.lease_ms is None,
                guard=said is not None and said.guard,
                blocked_by=blocker.request_id if blocker else None,
            )

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockManager.listed`."""
        return hms_names.listed(resource)

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`. Locks of other programs have the ids ``hms-<lock id>``."""
        threads = self._queue.unlock(request_id=request_id, resource=resource)
        standing = self._listed()
        chosen = {
            entry.generation
            for entry in standing
            if entry.request_id == request_id
            or (resource is not None and self.is_on(entry, resource) and not entry.guard)
        }
        freed = self._free([entry for entry in standing if entry.generation in chosen])
        return [*freed, *(entry for entry in threads if entry.state is LockState.WAITING)]

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """See :meth:`LockManager.reap`. Watches the heartbeats of those that stand now, until each has moved."""
        over = self._watched()
        dead = [entry for standing in over for entry in self._entries(standing, None)]
        return dead if dry_run else self._free(dead)

    def _watched(self) -> list[_Standing]:
        """Return who is dead; see the module."""
        over: list[_Standing] = []
        beats: Beats = {}
        first: dict[int, int] | None = None
        while True:
            asked = self._clock.now()
            standing = [one for one, _ in self._standing(None, None)]
            answered = self._clock.now()
            if first is None:
                own = {ticket.lock_id for ticket in list(self._tickets.values())}
                leased = [one for one in standing if (said := one.said) is not None and said.lease_ms is not None]
                first = {one.lock_id: one.heartbeat_ms for one in leased if one.lock_id not in own}
            doubtful: list[_Standing] = []
            for one in standing:
                if first.get(one.lock_id) != one.heartbeat_ms:
                    continue  # It came later, it is not to be judged, or it lives.
                (over if self._is_over(one, asked, answered, beats) else doubtful).append(one)
            if not doubtful:
                return over
            first = {one.lock_id: one.heartbeat_ms for one in doubtful}
            self._clock.sleep(_LOOK_AGAIN)

    def _free(self, chosen: Iterable[LockEntry]) -> Sequence[LockEntry]:
        freed = list(chosen)
        with _translated(None):
            for lock_id in sorted({int(entry.generation or 0) for entry in freed}):
                self.metastore.unlock(lock_id)
                for ticket in list(self._tickets.values()):
                    if ticket.lock_id == lock_id:
                        self._observe(ticket, LeaseEvent.DENIED, "freed by force")
        return freed

    def _disconnect(self) -> None:
        self.metastore.close()


_SOMEBODY = _HmsBlocker(
    request_id="",
    owner=Owner(user="somebody whom the metastore does not list", host="", pid=0, application=""),
    requested_at_ms=0,
    ahead=1,
    first=0,
    since=0.0,
    looked=0.0,
    expires=None,
)
"""Stands in the way when the metastore lets us wait and lists nobody."""


def _is_operation(request: LockRequest) -> bool:
    return request.scope is LockScope.OPERATION


def _grouped(listed: Iterable[ListedLock]) -> list[_Standing]:
    """Return the locks that the components belong to, in the order of their arrival."""
    found: dict[int, _Standing] = {}
    for one in listed:
        found.setdefault(one.lock_id, _Standing(one.lock_id, [])).listed.append(one)
    return [found[lock_id] for lock_id in sorted(found)]


def _waits_among(standing: Sequence[_Standing]) -> list[Wait]:
    """Return the operation requests among *standing* that wait, each with what is in its way."""
    index: dict[tuple[str, str | None], list[tuple[_Standing, LockPart]]] = {}
    for one in standing:
        for listed in one.listed:
            index.setdefault((listed.part.table, listed.part.partition), []).append((one, listed.part))
    found: list[Wait] = []
    for one in standing:
        in_the_way = {
            other.lock_id: (other, listed.part)
            for listed in one.listed
            for other, part in index[listed.part.table, listed.part.partition]
            if other is not one
            and (other.acquired or other.lock_id < one.lock_id)
            and hms_names.conflict(listed.part, part)
        }
        said = one.said
        if one.acquired or said is None or not in_the_way:
            continue
        _, wanted = in_the_way[max(in_the_way)]
        found.append(
            Wait(
                request_id=one.request_id,
                place=one.lock_id,
                agent=one.agent,
                owner=hms_names.owner_of(one.listed[0], said),
                wanted=(hms_names.resource_of(wanted)[1], hms_names.mode_of(wanted)),
                obstacles=[
                    Obstacle(
                        request_id=other.request_id,
                        place=other.lock_id,
                        agent=other.agent,
                    )
                    for other, _ in in_the_way.values()
                ],
            )
        )
    return found


def _nearest(waiting: _Standing, by_table: dict[tuple[str, str], list[_Standing]]) -> _Standing | None:
    """Return whom *waiting* waits for: of those before it the last one, else one that was let past it."""
    nearest: tuple[bool, int] | None = None
    found = None
    for listed in waiting.listed:
        part = listed.part
        for other in by_table.get((part.db, part.table), []) + (by_table.get((part.db, ""), []) if part.table else []):
            rank = (other.lock_id < waiting.lock_id, other.lock_id)
            if (
                other is not waiting
                and (rank[0] or other.acquired)
                and (nearest is None or rank > nearest)
                and any(hms_names.conflict(part, one.part) for one in other.listed)
            ):
                nearest, found = rank, other
    return found


@contextmanager
def _translated(request: LockRequest | None) -> Iterator[None]:
    """Raise what the metastore raises as errors of a lock service; that a lock is gone is for the caller."""
    try:
        yield
    except MetastoreUnavailable as error:
        message = "the metastore did not answer" if isinstance(error, LostReply) else "the metastore can't be reached"
        raise LockServiceUnavailable(message, locks=request, cause=error) from error
    except UnknownMethod as error:
        raise LockServiceUnavailable("the metastore has no locks", locks=request, cause=error) from error
    except (MetaError, ServerFailed) as error:
        raise LockServiceUnavailable(
            "the metastore's lock service failed; if its database has no lock tables (HIVE_LOCKS, TXNS), create them "
            "with its schema tool",
            locks=request,
            cause=error,
        ) from error
