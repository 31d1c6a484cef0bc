"""Finds the request that blocks another request.

Theory of operation
    A request has one *place*, a number that it got when it entered, and is with it in the queue of every
    resource that it locks. It is granted when no conflicting request is before it in any of these
    queues. Places only grow, so nobody can step in before a request that waits: whom it waits for can only
    become less, and only by removals. That is why a waiter may watch one predecessor, the nearest:

    1. Everyone that blocks it has a smaller place than the nearest one, or is the nearest one.
    2. While the nearest one is there, the request is blocked, even if others go.
    3. When the nearest one goes, the request asks again and finds the next nearest, or none.

Not here
    Scopes: requests of different scopes are never in the same queue. Expiry: callers remove expired requests first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from commit_coord.model import LockMode, Resource
from commit_coord.protocol.modes import compatible

QueueByMode = Mapping[LockMode, Sequence[int]]
"""The places in the queue of one resource, ascending, by the mode that they ask for."""


def nearest_blocker(
    place: int, locks: Iterable[tuple[Resource, LockMode]], queues: Mapping[Resource, QueueByMode]
) -> int | None:
    """Return the nearest place before *place* that conflicts with one of *locks*, None if *locks* are granted.

    Args:
        place: Of the request; it may be in *queues* itself.
        locks: What it asks for.
        queues: One queue a resource; a resource without one is free.
    """
    nearest: int | None = None
    for resource, mode in locks:
        for other, places in queues.get(resource, {}).items():
            before = bisect_left(places, place)
            if before and not compatible(mode, other) and (nearest is None or places[before - 1] > nearest):
                nearest = places[before - 1]
    assert nearest is None or nearest < place, "no request waits for a later one, so waits form no cycle"
    return nearest
