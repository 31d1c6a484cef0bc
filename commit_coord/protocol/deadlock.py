"""Who waits in a circle.

Theory of operation
    Within one request nobody can: it enters all its queues in one step. But a thread may hold what one request got and
    wait with the next one. A *wait* is such a request, with the requests that stand in its way; who made them is known
    by an *agent*, the name of a thread that no other one ever has. A cycle of waits, each for a request of the agent of
    the next one, ends only when one of them is withdrawn: the youngest, the one with the largest place.

    All agents look for themselves, whenever they like, and so need not talk to each other: places are the same for
    everybody, so of one cycle all find the same youngest. The youngest wait of all that are in cycles is the youngest
    of whatever cycle it finds, so somebody always gives in.

    A wait may be read at one time and the next one at another. That is no matter, since who stands before whom
    never changes while both stand, and nobody comes back to a place: when all requests of a cycle are found standing
    once more after it was found, all of it was true at one moment, and stays so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from commit_coord.model import LockMode, Owner, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """A request in the way of another one.

    Args:
        request_id: Which one.
        place: Where it stands.
        agent: Who made it.
    """

    request_id: str
    place: int
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A request that waits.

    Args:
        request_id: Which one.
        place: Where it stands.
        agent: Who made it, and does nothing else until it is granted.
        owner: What people know the agent by.
        wanted: What it waits for, in which mode.
        obstacles: All requests before it that conflict with it.
    """

    request_id: str
    place: int
    agent: str
    owner: Owner
    wanted: tuple[Resource, LockMode]
    obstacles: Sequence[Obstacle]


Cycle = tuple[tuple[Wait, Obstacle], ...]
"""Waits, each with the request of the next one's agent that is in its way; the last one waits for the first."""


def find_cycle(own: str, waits: Iterable[Wait]) -> Cycle | None:
    """Return the shortest cycle that the request *own* is part of, beginning with it; None when it is in none."""
    # An agent waits for one thing at a time: what it asked for last.
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
    """Return the wait that has to give in."""
    assert _is_closed(cycle), "each waits for a request of the next one, and the last one for one of the first"
    return max((wait for wait, _ in cycle), key=_age)


def _is_closed(cycle: Cycle) -> bool:
    waits = [wait for wait, _ in cycle]
    return bool(cycle) and all(
        obstacle.agent == after.agent for (_, obstacle), after in zip(cycle, [*waits[1:], waits[0]], strict=True)
    )


def _age(wait: Wait) -> tuple[int, str]:
    # Places of different queues may be the same, and everybody has to find the same youngest.
    return wait.place, wait.request_id


def described(cycle: Cycle) -> str:
    """Return the cycle for people: who waits for what, held or wanted before by whom."""
    waits = [wait for wait, _ in cycle]
    return "; ".join(
        f"{wait.owner} wants {wait.wanted[1].letter} on {wait.wanted[0]}, waits for {after.owner}"
        for wait, after in zip(waits, [*waits[1:], waits[0]], strict=True)
    )
