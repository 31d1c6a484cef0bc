"""The request that blocks another one, and the facts about a lock holder in an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from commit_coord.errors import LockError
from commit_coord.model import Generation, LockEntry, LockRequest, LockScope, LockState, Owner
from commit_coord.protocol.modes import compatible

Holder = Mapping[str, object]
"""The facts about a lock holder in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """The nearest conflicting request before ours."""

    request_id: str
    owner: Owner
    requested_at_ms: int


def entries_of(
    request: LockRequest, place: int, requested_at_ms: int, blocked_by: str | None, expires_in_ms: int | None = None
) -> list[LockEntry]:
    """Return the locks of *request* as a listing shows them; it waits for *blocked_by*, and is granted without one."""
    return [
        LockEntry(
            resource=resource,
            mode=mode,
            scope=request.scope,
            state=LockState.WAITING if blocked_by else LockState.ACQUIRED,
            owner=request.owner,
            request_id=request.request_id,
            generation=Generation(place),
            requested_at_ms=requested_at_ms,
            expires_in_ms=expires_in_ms,
            explicit=request.explicit,
            blocked_by=blocked_by,
        )
        for resource, mode in request.locks
    ]


def holder_of(look: Callable[[None, LockScope], Iterable[LockEntry]], request: LockRequest, blocker: Blocker) -> Holder:
    """Return what an error says about the lock holder, by the listing that *look* returns of a scope."""
    present: Iterable[LockEntry] = ()
    with suppress(LockError):  # The listing is a courtesy: the blocker alone names an owner, too.
        present = look(None, request.scope)
    return holder_in(present, request, blocker)


def holder_in(present: Iterable[LockEntry], request: LockRequest, blocker: Blocker) -> dict[str, object]:
    """Return the facts for an error about the lock holder: the end of the chain that *blocker* starts in *present*.

    The nearest blocker may itself be waiting; the owner to contact is the one at the head of the queue.
    """
    by_request: dict[str, list[LockEntry]] = {}
    for entry in present:
        by_request.setdefault(entry.request_id, []).append(entry)
    holder = blocker.request_id
    while holder in by_request and by_request[holder][0].blocked_by in by_request:
        holder = str(by_request[holder][0].blocked_by)
    entries = by_request.get(holder, [])
    wanted = dict(request.locks)
    clash = [e for e in entries if e.resource in wanted and not compatible(wanted[e.resource], e.mode)] or entries
    owner = clash[0].owner if clash else blocker.owner
    since = clash[0].requested_at_ms if clash else blocker.requested_at_ms
    return {
        "resource": clash[0].resource if clash else None,
        "mode": clash[0].mode.value if clash else None,
        **holder_facts(owner, since, clash[0].request_id if clash else blocker.request_id),
    }


def holder_facts(owner: Owner, requested_at_ms: int, request_id: str) -> dict[str, object]:
    """Return what an error says of the request that is in the way."""
    return {
        "holder": owner.user,
        "host": owner.host,
        "pid": owner.pid,
        "application": owner.application,
        "statement": owner.statement or None,
        "since": datetime.fromtimestamp(requested_at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "request_id": request_id,
    }
