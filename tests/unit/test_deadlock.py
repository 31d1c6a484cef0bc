"""Cycles of waits: found by everybody who is in one, and all find the same youngest."""

from __future__ import annotations

import random

from commit_coord.model import LockMode, Owner, Resource
from commit_coord.protocol.deadlock import Obstacle, Wait, described, find_cycle, youngest


def wait(agent: str, place: int, *others: str) -> Wait:
    """A wait of *agent* for what *others* hold."""
    return Wait(
        request_id=f"r{place}",
        place=place,
        agent=agent,
        owner=Owner(user=agent, host="h", pid=1, application="job"),
        wanted=(Resource(("db", f"t{place}")), LockMode.EXCLUSIVE),
        obstacles=[Obstacle(request_id=f"held by {other}", place=0, agent=other) for other in others],
    )


def test_two_that_wait_for_each_other_are_a_cycle() -> None:
    """Seen from either; the younger one is the same for both, and the text tells who wants what."""
    waits = [wait("ann", 7, "bob"), wait("bob", 9, "ann")]
    cycles = [find_cycle("r7", waits), find_cycle("r9", waits)]
    assert [["r7", "r9"], ["r9", "r7"]] == [[one.request_id for one, _ in cycle or ()] for cycle in cycles]
    assert ["r9", "r9"] == [youngest(cycle).request_id for cycle in cycles if cycle]
    assert cycles[0] is not None
    assert (
        "ann@h pid 1 job wants X on db/t7, waits for bob@h pid 1 job; "
        "bob@h pid 1 job wants X on db/t9, waits for ann@h pid 1 job"
    ) == described(cycles[0])


def test_a_queue_is_no_cycle() -> None:
    """Nor is one that waits for others who wait in a circle: it is not of them."""
    assert find_cycle("r1", [wait("a", 1, "b"), wait("b", 2, "c")]) is None
    circle = [wait("b", 2, "c"), wait("c", 3, "b")]
    assert find_cycle("r1", [wait("a", 1, "b"), *circle]) is None
    assert find_cycle("r2", [wait("a", 1, "b"), *circle]) is not None
    assert find_cycle("gone", circle) is None


def test_any_obstacle_may_close_the_circle() -> None:
    """Not the nearest alone: all that are before it have to go."""
    waits = [wait("a", 1, "x", "y", "b"), wait("b", 2, "z", "c"), wait("c", 3, "a", "y")]
    for own in ("r1", "r2", "r3"):
        cycle = find_cycle(own, waits)
        assert cycle is not None
        assert {"r1", "r2", "r3"} == {one.request_id for one, _ in cycle}


def test_an_agent_waits_for_what_it_asked_for_last() -> None:
    """A wait that was left behind when it was granted is none."""
    assert find_cycle("r5", [wait("a", 1, "b"), wait("a", 5, "c"), wait("b", 3, "a")]) is None


def test_giving_in_ends_all_cycles() -> None:
    """Whatever the graph: somebody in a cycle finds itself the youngest, until there is no cycle."""
    for seed in range(300):
        dice = random.Random(seed)
        agents = [f"a{number}" for number in range(dice.randint(2, 8))]
        waits = [
            wait(one, place, *dice.sample(agents, dice.randint(0, min(3, len(agents)))))
            for place, one in enumerate(agents)
        ]
        while cycles := [cycle for one in waits if (cycle := find_cycle(one.request_id, waits))]:
            give_in = {cycle[0][0].request_id for cycle in cycles if youngest(cycle) is cycle[0][0]}
            assert give_in, seed
            waits = [one for one in waits if one.request_id not in give_in]
