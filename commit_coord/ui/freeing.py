"""Frees locks for a person who has typed what is to be freed."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from commit_coord.model import LockEntry
from commit_coord.ui.looking import Look
from commit_coord.ui.now import SHORT
from commit_coord.ui.visiting import NotAllowed, NotFound, VisitedCatalog

REAP_WORD = "reap"
"""What a person types to have the locks of dead owners released."""


def request_locks(place: VisitedCatalog, look: Look, request_id: str) -> list[LockEntry]:
    """Return the locks of a request, and its places in queues.

    Raises:
        NotFound: It has none, or the visitor may not read them.
        NotAllowed: The visitor may not free them, or they are a guard, which a table needs.
    """
    locks = [entry for entry in look.entries if entry.request_id == request_id]
    if not locks or not all(place.reads(entry.resource) for entry in locks):
        raise NotFound("This request holds no lock and waits for none: it has ended, or was freed already.")
    if not place.administers(*(entry.resource for entry in locks)):
        raise NotAllowed("Only an administrator may free locks.")
    if any(entry.guard and not place.catalog.is_left(entry) for entry in locks):
        raise NotAllowed("This lock is a guard: it protects a table, and no operation waits for its owner.")
    return locks


def confirmation_of(request_id: str) -> str:
    """Return what a person types to free a request: the letters that the page shows of its id."""
    return request_id[:SHORT]


def digest(locks: Sequence[LockEntry]) -> str:
    """Return what a form contains of the locks that its page shows: others, or in another state, have another one."""
    listed = sorted(f"{one.request_id} {one.scope} {one.mode} {one.state} {one.resource}" for one in locks)
    return sha256("\n".join(listed).encode()).hexdigest()


def free(place: VisitedCatalog, locks: Sequence[LockEntry], why: str) -> Sequence[LockEntry]:
    """Free by force the request whose *locks* were confirmed, unless it was granted since; return what was freed."""
    return place.catalog.unlock(shown=locks, why=why, by=place.visitor.name)


def dead_locks(place: VisitedCatalog, look: Look) -> list[LockEntry]:
    """Return the locks whose owners are known to be dead.

    Raises:
        NotAllowed: The visitor may not release them.
    """
    _require_reaper(place)
    return [entry for entry in look.entries if look.cause_of_death(entry)]


def left_guards(place: VisitedCatalog, look: Look) -> list[LockEntry]:
    """Return the guards of tables that are gone, which are released along with the locks of dead owners."""
    return [entry for entry in look.entries if entry.guard and place.catalog.is_left(entry)]


def reap(place: VisitedCatalog, why: str) -> Sequence[LockEntry]:
    """Release the locks of dead owners; return what was released.

    Raises:
        NotAllowed: The visitor may not.
    """
    _require_reaper(place)
    return place.catalog.reap(why=why, by=place.visitor.name)


def _require_reaper(place: VisitedCatalog) -> None:
    if not place.administers():
        raise NotAllowed("Only an administrator of the whole catalog may release the locks of dead owners.")
