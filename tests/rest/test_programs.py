"""Random programs of late, doubled and declared commits find no wrong row."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.exceptions import CommitFailedException

from commit_coord.catalog.base import CoordinatedCatalog
from tests.rest.held import BLIND, Held
from tests.rest.kit import SCHEMA, Server, ids, row_ids
from tests.rest.programs import Program
from tests.rest.races import RACES, Race, racetrack

_FEW, _MANY = range(12), range(12, 300)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that reserves no turns: these clients do not come back."""
    with racetrack() as server:
        yield server


@pytest.fixture(scope="module")
def catalog(server: Server) -> Iterator[CoordinatedCatalog]:
    """The library, on the catalog of the server."""
    with server.library() as catalog:
        yield catalog


@pytest.mark.parametrize("seed", [*_FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in _MANY)])
def test_random_programs_find_no_wrong_row(seed: int, server: Server, catalog: CoordinatedCatalog) -> None:
    Program(seed, server, catalog, ("db", f"p{seed}")).run(steps=30)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_acknowledged_is_there_once_whatever_commits_at_the_same_time(
    seed: int, server: Server, catalog: CoordinatedCatalog
) -> None:
    name = ("db", f"c{seed}")
    server.client().create_table(name, SCHEMA, properties={"commit.retry.min-wait-ms": "5"})
    numbers = iter(range(10**6))

    def work(worker: int) -> list[int]:
        chance, own, done = random.Random(seed * 100 + worker), server.client(), []
        for _ in range(8):
            row = next(numbers)
            match chance.choice(["declared", "declared twice", "undeclared", "library"]):
                case "declared":
                    assert 200 == Held.append(own.load_table(name), ids(row)).send(server, BLIND).status
                case "declared twice":
                    held = Held.append(own.load_table(name), ids(row), kind="merge_append")
                    with ThreadPoolExecutor(2) as pool:
                        answers = list(pool.map(lambda _: held.send(server, BLIND).status, range(2)))  # noqa: B023
                    assert [200, 200] == answers
                case "undeclared":
                    try:
                        own.load_table(name).append(ids(row))
                    except CommitFailedException:
                        continue
                case "library":
                    catalog.load_table(name).append(ids(row))
            done.append(row)
        return done

    with ThreadPoolExecutor(6) as pool:
        done = [row for rows in pool.map(work, range(6)) for row in rows]
    assert sorted(done) == row_ids(server.client().load_table(name))


@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize("kind", RACES)
def test_of_two_that_race_the_right_ones_land(server: Server, kind: type[Race], rounds: int) -> None:
    race = kind(server, ("db", f"{kind.__name__}{rounds}"))
    for number in range(rounds):
        race.round(number)
    race.check()
