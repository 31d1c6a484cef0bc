"""Finds the request that blocks another request.

Theory of operation
    A request gets one *place*, a number, when it enters, and has this place in the queue of every resource that it
    locks. It is granted when no conflicting request is before it in any of these queues. Places only grow, so no
    request can enter before a waiting one: the set of requests that block it can only become smaller, by removals.
    That is why a waiter may watch only the nearest blocker:

    1. Every blocker has a smaller place than the nearest one, or is the nearest one.
    2. While the nearest blocker is in the queue, the request is blocked, even if other blockers leave.
    3. When the nearest blocker leaves, the request asks again and finds the next nearest blocker, or none.

Not here
    Scopes: requests of different scopes are never in the same queue. Expiry: callers remove expired requests first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from commit_coord.model import LockMode, Resource
from commit_coord.protocol.modes import compatible

Queue = Mapping[LockMode, Sequence[int]]
"""The places in the queue of one resource, ascending, by the requested mode."""


def nearest_blocker(
    place: int, locks: Iterable[tuple[Resource, LockMode]], queues: Mapping[Resource, Queue]
) -> int | None:
    """Return the nearest place before *place* that conflicts with one of *locks*, None if *locks* are granted.

    Args:
        place: The place of the request; *queues* may contain it.
        locks: The requested locks.
        queues: One queue for each resource; a resource without a queue is free.
    """
    nearest: int | None = None
    for resource, mode in locks:
        for other, places in queues.get(resource, {}).items():
            before = bisect_left(places, place)
            if before and not compatible(mode, other) and (nearest is None or places[before - 1] > nearest):
                nearest = places[before - 1]
    assert nearest is None or nearest < place, "no request waits for a later one, so waits form no cycle"
    return nearest
