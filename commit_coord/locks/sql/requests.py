"""Database transactions for requests, made of ``statements``, and the conversion of their rows."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.base import Interrupted
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.keeping import Retries, Ticket
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.store import FetchedRows, SqlStep, Store, id_list
from commit_coord.model import Generation, LockEntry, LockMode, LockRequest, LockScope, LockState, Owner, Resource

logger = logging.getLogger(__name__)

_LONGEST = 1_500
"""Maximum length of a stored path. The index key also contains the name of the catalog."""
_LONGEST_NAME = 600
"""Maximum length of one level of it."""
_CUT = 400
"""If a text is too long, so many characters of it are stored, followed by its digest."""

NOBODY = "-"
"""The name of no process."""

MODES = {"S": LockMode.SHARED, "X": LockMode.EXCLUSIVE}


@dataclass(slots=True, eq=False, kw_only=True)
class SqlTicket(Ticket):
    """A request in the database."""

    place: int | None
    """Its place in the queue; None if it was interrupted while it entered."""
    looked_again: bool = False
    """Whether its owner has looked again since it entered; see the comment on WAKE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlBlocker(Blocker):
    """The nearest blocker, with what decides whether it may be removed."""

    place: int
    expires_at: float | None
    """When its lease ends, on ``Clock.now``, by the remaining time that the service reported.

    None: it is a granted LOCK statement's, and never ends.
    """


class SqlRequests:
    """The requests of one catalog in the database, as one client asks for them.

    Args:
        store: The database.
        space: The name of the SQL catalog, "" for a catalog on a metastore. Locks of different spaces never conflict.
        client: The name of the client.
        lease_ms: How long a request is kept without a heartbeat.
        retries: Repeats interrupted calls.
    """

    def __init__(self, store: Store, space: str, client: str, lease_ms: int, retries: Retries) -> None:
        self.store = store
        self.retries = retries
        self._space = quote(space, safe="")
        self._client = client
        self._lease_ms = lease_ms

    def scope(self, scope: LockScope) -> str:
        """Return the value of the column ``scope``: the space and *scope*."""
        return f"{self._space}:{scope.value}"

    def queue(self, request: LockRequest) -> str:
        """Return the queue of the latch that *request* asks for; "" if it asks for anything but one table's latch."""
        return "" if request.table is None else f"{self.scope(request.scope)}:{stored(request.table)}"

    def look_values(self, request: LockRequest) -> dict[str, Any]:
        """Return the values of LOOK."""
        return {"request_id": request.request_id, "clock": self.store.clock_name, "queue": self.queue(request)}

    def run(self, steps: Sequence[SqlStep], then: Sequence[SqlStep] = ()) -> list[FetchedRows]:
        """Execute *steps* in one transaction, and *then* after it."""
        return self.retries.briefly(lambda: self.store.connection.run(steps, then))

    def ask(self, text: str, values: dict[str, Any]) -> FetchedRows:
        """Return the rows of one statement."""
        return self.retries.briefly(lambda: self.store.connection.ask(text, values))

    def steps_to_enter(self, request: LockRequest, wake: str) -> list[SqlStep]:
        """Return the steps of one transaction: enter *request* for the thread that listens at *wake*, then LOOK."""
        owner, clock, scope = request.owner, self.store.clock_name, self.scope(request.scope)
        if request.scope is LockScope.OPERATION:
            queues = [scope]
        else:
            queues = [f"{scope}:{stored(resource)}" for resource, _ in request.locks]
        steps: list[SqlStep] = [(lease_sql.TAKE_PLACE, {"queue": queue, "clock": clock}) for queue in sorted(queues)]
        if len(queues) > 1:
            steps.append((lease_sql.LEVEL_PLACES, {"ids": id_list(queues)}))
        common = {"queue": queues[0], "scope": scope, "request_id": request.request_id}
        steps.append(
            (
                lease_sql.ENTER_REQUEST,
                {
                    **common,
                    "client": self._client,
                    "wake": wake,
                    "owner_user": owner.user,
                    "owner_host": owner.host,
                    "owner_pid": owner.pid,
                    "owner_application": owner.application,
                    "owner_statement": owner.statement,
                    "owner_process": owner.process,
                    "explicit": int(request.explicit),
                    "lease_ms": self._lease_ms,
                    "clock": clock,
                },
            )
        )
        for resource, mode in request.locks:
            steps.append((lease_sql.ENTER_LOCK, {**common, "resource": stored(resource), "mode": mode.letter}))
        if request.offer:
            steps.append((lease_sql.ENTER_OFFER, {**common, "offer": request.offer}))
        steps.append((lease_sql.LOOK, self.look_values(request)))
        return steps

    def remove(
        self,
        scope: LockScope,
        request_id: str,
        place: int,
        *,
        forced: bool,
        ended: str = NOBODY,
        durable: bool = True,
        named: Sequence[tuple[str, str]] | None = None,
        waking: Sequence[SqlStep] = (),
        note_steps: Sequence[SqlStep] = (),
        settle_steps: Sequence[SqlStep] = (),
        lock_first: Sequence[str] = (),
    ) -> bool:
        """Delete a request and wake those that it kept waiting; return whether this call deleted it.

        Args:
            scope: The scope of the request.
            request_id: Which one.
            place: At which place.
            forced: Delete the request in any state; if False, only if it has expired by the service's clock, or
                belongs to the process *ended*.
            ended: A process that has certainly ended.
            durable: Whether the deletion must survive a crash of the server. It must, unless the owner itself releases
                a request that expires:
                1. A holds. Another client removes A's request. B reads that nothing blocks it, and is granted; this
                writes nothing.   2. The server crashes and loses the removal.   3. The heartbeats of A and of B both
                find their requests: both believe that they hold the lock.
            named: Its resources and modes; None looks them up.
            waking: Statements that select more waiters to wake.
            note_steps: Statements that store the handover note, executed before the request is deleted.
            settle_steps: Statements that settle offers, executed before the request is deleted.
            lock_first: Ids of all requests that are changed, if more than one.
        """
        connection, request = self.store.connection, {"request_id": request_id, "place": place}
        if named is None:
            named = [(resource, mode) for resource, mode in connection.ask(lease_sql.LOCKS_OF, request)]
        lock = {"scope": self.scope(scope), "place": place}
        first: list[SqlStep] = [(lease_sql.LOCK_REQUESTS, {"ids": id_list(lock_first)})] if lock_first else []
        try:
            results = connection.run(
                [
                    *first,
                    *note_steps,
                    *settle_steps,
                    (
                        lease_sql.REMOVE,
                        {**request, "forced": int(forced), "ended": ended, "clock": self.store.clock_name},
                    ),
                    (lease_sql.REMOVE_LOCKS, request),
                    (lease_sql.REMOVE_OFFER, request),
                ],
                then=[(lease_sql.WAKE, {**lock, "resource": resource, "mode": mode}) for resource, mode in named],
                waking=waking,
                durable=durable,
            )
        except Interrupted as error:
            if not named or self._may_be_there(request):
                raise
            # The server may have no room for notifications for hours. Waiters look again without one.
            logger.warning(
                "request %s was removed, but its waiters may not have been woken; they look again: %s",
                request_id,
                error,
            )
            return True
        return bool(results[len(first) + len(note_steps) + len(settle_steps)])

    def _may_be_there(self, request: dict[str, object]) -> bool:
        try:
            return bool(self.store.connection.ask(lease_sql.LOCKS_OF, request))
        except LockServiceUnavailable:
            return True


def stored(resource: Resource) -> str:
    """Return *resource* as the tables keep it.

    An index entry of PostgreSQL has at most 2,704 bytes. So a level of more than 600 characters, or a path of more than
    1,500, is stored cut, with a digest that keeps it unique; listings show it cut. Each level is cut separately, so the
    path of the parent remains a prefix (unless the path as a whole is too long).
    """
    text = str(resource)
    if len(text) <= _LONGEST_NAME:
        return text
    return _cut("/".join(_cut(name, _LONGEST_NAME) for name in text.split("/")), _LONGEST)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:_CUT]}~{hashlib.sha256(text.encode()).hexdigest()}"


def entries_of(rows: FetchedRows) -> list[LockEntry]:
    """Return the locks in the answer to LIST."""
    # All locks of a request share one owner object: a large request has thousands of locks.
    owners: dict[str, Owner] = {}
    found = []
    for resource, mode, place, request_id, scope, user, host, pid, application, statement, process, *rest in rows:
        explicit, requested_at_ms, expires_in_ms, blocked_by = rest
        owner = owners.get(request_id)
        if owner is None:
            owner = owners[request_id] = Owner(
                user=user, host=host, pid=pid, application=application, statement=statement, process=process
            )
        found.append(
            LockEntry(
                resource=Resource.parse(resource),
                mode=MODES[mode],
                scope=LockScope(scope.rpartition(":")[2]),
                state=LockState.WAITING if blocked_by else LockState.ACQUIRED,
                owner=owner,
                request_id=request_id,
                generation=Generation(place),
                requested_at_ms=requested_at_ms,
                expires_in_ms=expires_in_ms,
                explicit=bool(explicit),
                blocked_by=blocked_by,
            )
        )
    return found
