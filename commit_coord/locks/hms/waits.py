"""The waits in a metastore: every client reads them from the list of locks, so nobody publishes its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.locks import ListedLock
from commit_coord.locks.base import LockSettings
from commit_coord.locks.held import Held
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.requests import (
    REQUESTS,
    HmsTicket,
    MetastoreLock,
    grouped,
    is_operation,
    translated,
    waits_among,
)
from commit_coord.locks.keeping import Tickets
from commit_coord.model import LockRequest
from commit_coord.protocol.deadlock import Wait

_LAST = sys.maxsize
"""The place of a request that has given back its place."""


class ListedWaits:
    """The waits of all clients, as the metastore lists them.

    Args:
        metastore: Lists the locks.
        tickets: The requests of this client.
        held: Names the waiting thread.
        settings: Times.
    """

    def __init__(
        self, metastore: MetastoreClient, tickets: Tickets[HmsTicket], held: Held, settings: LockSettings
    ) -> None:
        self._metastore = metastore
        self._tickets = tickets
        self._held = held
        self._settings = settings

    def waits(self, request: LockRequest) -> Sequence[Wait]:
        """See :meth:`Deadlocks.waits`."""
        if not is_operation(request):
            return ()  # A latch holder waits for nothing.
        with translated(request):
            locks = grouped(self._metastore.show_locks(hms_names.OPERATIONS))
        ticket = self._tickets[request.request_id]
        return waits_among([*locks, self._as_it_will_be_listed(ticket)] if ticket.stepped_back else locks)

    def _as_it_will_be_listed(self, ticket: HmsTicket) -> MetastoreLock:
        """Return *ticket*, which has given its place back, as it will be listed: behind everybody who is there now."""
        owner = ticket.request.owner
        host, user = hms_names.host(owner, self._held.agent), hms_names.user(owner)
        agent = hms_names.agent(
            ticket.request, client=self._tickets.client, requested_ms=0, lease_ms=self._settings.lease_ms
        )
        return MetastoreLock(
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

    def all_present(self, places: Mapping[str, int]) -> bool:
        """See :meth:`Deadlocks.all_present`."""
        with translated(None):
            places_now = {one.request_id: one.lock_id for one in grouped(self._metastore.show_locks(*REQUESTS))}
        return all(places_now.get(request_id) == place for request_id, place in places.items() if place != _LAST)
