"""Sends each lock call until its request is known to have one place in the queue, even if replies are lost.

A lost reply
    1. The lock call is sent; the connection breaks. The request may be in the queue, or arrive later.
    2. The client looks for the request by its ``agentInfo``. If it is in the queue, the client keeps this place;
       otherwise it sends the call again.
    3. The first call arrives after all: the request has a second place, which nobody would release.
    4. So the heartbeat looks for such a request for one more lease time, and releases every place but the known one.
       It does the same for a request whose acquire was interrupted while the request was being sent.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from commit_coord.clock import Clock
from commit_coord.errors import LockServiceUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import LostReply, MetastoreServerFailed, NoSuchLock
from commit_coord.locks.base import BRIEFLY, LockSettings
from commit_coord.locks.held import Held
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.requests import REQUESTS, HmsTicket, MetastoreLock, grouped, is_operation, translated
from commit_coord.locks.keeping import Tickets
from commit_coord.locks.threads import Threads
from commit_coord.model import LockRequest
from commit_coord.protocol.backoff import Backoff, next_wait

logger = logging.getLogger(__name__)

_RETRY = Backoff(initial_ms=50, maximum_ms=1_000)
"""Waits between two tries of a lock call whose reply was lost."""

_PART_MS = 50
"""Additional time limit of a lock call for each lock in it: on Derby a lock takes 10 to 34 ms."""

_FAILURES = 3
"""How often a server may fail in a lock call: one without lock tables always fails."""


class LockCalls:
    """The lock calls of one client.

    Args:
        metastore: Receives the calls.
        tickets: The requests of this client.
        held: Names the requesting thread.
        settings: Times.
        clock: Time and random numbers.
        threads: How threads wait for their turn.
    """

    def __init__(
        self,
        metastore: MetastoreClient,
        tickets: Tickets[HmsTicket],
        held: Held,
        settings: LockSettings,
        clock: Clock,
        threads: Threads,
    ) -> None:
        self._metastore = metastore
        self._tickets = tickets
        self._held = held
        self._settings = settings
        self._clock = clock
        self._threads = threads
        self._first_sent: dict[str, float] = {}
        """When each request that is under way was sent for the first time, on ``Clock.now``."""
        self.sending: dict[str, LockRequest] = {}
        """Requests that are being sent, or whose place is not noted yet."""
        self.orphaned_lock_requests: dict[str, tuple[LockRequest, float]] = {}
        """Requests that may have a second place, and until when to look for it."""

    @property
    def _lease_seconds(self) -> float:
        return self._settings.lease_ms / 1000

    def ended(self, request: LockRequest) -> None:
        """The acquire of *request* has ended."""
        self._first_sent.pop(request.request_id, None)

    def look_for(self, request: LockRequest) -> None:
        """Look for *request* in the background for a lease time: it may be in the queue, or arrive later."""
        self.orphaned_lock_requests[request.request_id] = request, self._clock.now() + self._lease_seconds

    def send(self, request: LockRequest, deadline: float) -> tuple[HmsTicket, bool]:
        """Send the lock call until the request has a known place; return its ticket, and whether it is granted."""
        parts, owner = hms_names.parts(request), request.owner
        agent = hms_names.agent(
            request, client=self._tickets.client, requested_ms=self._clock.wall_ms(), lease_ms=self._settings.lease_ms
        )
        turn = self._threads.turn
        started, tries = self._clock.now(), 0
        first_sent = self._first_sent.setdefault(request.request_id, started)
        until = min(deadline, started + self._lease_seconds)
        with translated(request):
            while True:
                sent = self._clock.now()
                try:
                    left_ms = max(0, round((deadline - sent) * 1000))
                    lock_id, acquired = self._metastore.lock(
                        parts,
                        user=hms_names.user(owner),
                        host=hms_names.host(owner, self._held.agent),
                        agent=agent,
                        patience_ms=min(_PART_MS * len(parts), left_ms),
                    )
                    if (now := self._clock.now()) - sent > self._lease_seconds / 3:
                        # A lease counts from what was sent last.
                        try:
                            self._metastore.heartbeat(lock_id)
                        except NoSuchLock:
                            acquired = False  # Released since: the next check finds it gone, too.
                        else:
                            # For very many locks the server takes longer, and shows them to nobody before the end.
                            many = _PART_MS * len(parts) >= self._settings.lease_ms
                            if many or self._clock.now() - sent < self._lease_seconds:
                                sent = now
                            else:
                                acquired = False  # Silent for a lease time: the next check releases it.
                except (LostReply, MetastoreServerFailed) as error:
                    # The server also fails if a client releases the request between the two steps of its lock call,
                    # and does not say so. We then request again, and wait at the end of the queue.
                    if isinstance(error, MetastoreServerFailed) and tries >= _FAILURES:
                        raise
                    failed = self._clock.now()
                    self.orphaned_lock_requests[request.request_id] = request, failed + self._lease_seconds
                    for own in self.own(request)[:1]:
                        confirmed_at = self._clock.now()
                        with suppress(NoSuchLock):
                            self._metastore.heartbeat(own.lock_id)
                            if request.explicit or self._clock.now() - first_sent < self._lease_seconds:
                                return HmsTicket(
                                    request=request, lock_id=own.lock_id, last_confirmed_at=confirmed_at, turn=turn()
                                ), own.acquired
                            # The lock may have had no heartbeat for a lease time, so a waiter may release it soon:
                            # release it and request it again from the server that answers.
                            self._metastore.unlock(own.lock_id)
                            until = min(deadline, self._clock.now() + self._lease_seconds)
                    # A metastore that was away and answers now is asked again, however long it took to look.
                    if failed >= until:
                        raise
                else:
                    return HmsTicket(request=request, lock_id=lock_id, last_confirmed_at=sent, turn=turn()), acquired
                self._clock.sleep(next_wait(_RETRY, tries, self._clock.random()))
                tries += 1

    def own(self, request: LockRequest) -> list[MetastoreLock]:
        """Return the places that *request* of this client has, oldest first."""
        found = grouped(
            listed
            for place in ([REQUESTS] if is_operation(request) else hms_names.places(request))
            for listed in self._metastore.show_locks(*place)
        )
        return [
            lock
            for lock in found
            if (info := lock.agent_info)
            and (info.request_id, info.client) == (request.request_id, self._tickets.client)
        ]

    def release_orphaned(self) -> None:
        """Release the second places that have arrived by now."""
        for request_id, (request, until) in dict(self.orphaned_lock_requests).items():
            asked = self._clock.now()
            try:
                with translated(request), self._metastore.within(BRIEFLY):
                    for lock in self.own(request):
                        if not self._is_place(request_id, lock.lock_id):
                            self._metastore.unlock(lock.lock_id)
            except LockServiceUnavailable as error:
                logger.warning("a lock whose reply was lost could not be looked for: %s", error)
                break
            # 1. We ask; the metastore lists nothing.   2. The request arrives.   3. The list arrives, after *until*.
            if asked >= until:
                self.orphaned_lock_requests.pop(request_id, None)

    def _is_place(self, request_id: str, lock_id: int) -> bool:
        """Return whether a lock that was just listed is, or may be, the known place of its request.

        `sending` is read first: it contains the request from before its lock exists until its ticket does.
        """
        if request_id in self.sending:
            return True
        ticket = self._tickets.get(request_id)
        return ticket is not None and ticket.lock_id == lock_id
