"""Deadlock detection.

Theory of operation
    A single request can't cause a deadlock, because it enters all its queues in one step. But a thread may hold the
    locks of one request and wait with another one. A *wait* is such a waiting request, together with the requests that
    block it. Each request names its *agent*, a unique name of the thread that made it. A deadlock is a cycle of waits:
    each one is blocked by a request of the agent of the next one. It ends only when one of the waits is withdrawn: the
    youngest, which has the largest place.

    All agents look for themselves, whenever they like, and so need not talk to each other: places are the same for
    everybody, so of one cycle all find the same youngest. The youngest wait of all that are in cycles is the youngest
    of whatever cycle it finds, so one of them always gives in.

    Waits may be read at different times. This is correct, because the order of two requests never changes while both
    are queued, and a place is never used again. So after an agent has found a cycle, it checks that all its requests
    are still queued. If they are, the whole cycle existed at one moment, and it still exists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commit_coord.model import LockMode, Owner, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A request that blocks another one.

    Args:
        request_id: The id of the request.
        place: Its place in the queues.
        agent: The thread that made it.
    """

    request_id: str
    place: int
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A waiting request.

    Args:
        request_id: The id of the request.
        place: Its place in the queues.
        agent: The thread that made it; this thread does nothing else until the request is granted.
        owner: The agent's name for people.
        wanted: The resource and the mode that it waits for.
        obstacles: All requests before it that conflict with it.
    """

    request_id: str
    place: int
    agent: str
    owner: Owner
    wanted: tuple[Resource, LockMode]
    obstacles: Sequence[Obstacle]


Cycle = tuple[tuple[Wait, Obstacle], ...]
"""Waits, each with the blocking request of the next wait's agent; the last one is blocked by the first one's agent."""


def find_cycle(own: str, waits: Iterable[Wait]) -> Cycle | None:
    """Return the shortest cycle that contains the request *own*, beginning with it; None if there is none."""
    # An agent waits for one request at a time: the latest one.
    by_agent = {wait.agent: wait for wait in sorted(waits, key=_age)}
    start = next((wait for wait in by_agent.values() if wait.request_id == own), None)
    if start is None:
        return None
    paths: deque[Cycle] = deque([()])
    seen = {start.agent}
    while paths:
        path = paths.popleft()
        wait = by_agent[path[-1][1].agent] if path else start
        for obstacle in wait.obstacles:
            if obstacle.agent == start.agent:
                return (*path, (wait, obstacle))
            if obstacle.agent in by_agent and obstacle.agent not in seen:
                seen.add(obstacle.agent)
                paths.append((*path, (wait, obstacle)))
    return None


def youngest(cycle: Cycle) -> Wait:
    """Return the wait that must be withdrawn."""
    assert _is_closed(cycle), "each waits for a request of the next one, and the last one for one of the first"
    return max((wait for wait, _ in cycle), key=_age)


def _is_closed(cycle: Cycle) -> bool:
    waits = [wait for wait, _ in cycle]
    return bool(cycle) and all(
        obstacle.agent == after.agent for (_, obstacle), after in zip(cycle, [*waits[1:], waits[0]], strict=True)
    )


def _age(wait: Wait) -> tuple[int, str]:
    # Requests in different queues may have the same place, but all agents must find the same youngest wait.
    return wait.place, wait.request_id


def described(cycle: Cycle) -> str:
    """Describe the cycle in words: which owner waits for which lock, and which owner blocks it."""
    waits = [wait for wait, _ in cycle]
    return "; ".join(
        f"{wait.owner} wants {wait.wanted[1].letter} on {wait.wanted[0]}, waits for {after.owner}"
        for wait, after in zip(waits, [*waits[1:], waits[0]], strict=True)
    )
