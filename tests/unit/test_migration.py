"""Phases: what a table's properties say, which locks they ask for, which steps there are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from commit_coord.errors import ConfigError
from commit_coord.protocol.migration import LOCK_EPOCH, LOCK_IMPL, LOCK_PHASE, Phase, State, locks_of


@pytest.mark.parametrize(
    "properties, state",
    [
        ({}, State(phase=Phase.HMS, epoch=0)),
        ({LOCK_IMPL: "hms"}, State(phase=Phase.HMS, epoch=0)),
        ({LOCK_IMPL: "zookeeper"}, State(phase=Phase.ZOOKEEPER, epoch=0)),
        ({LOCK_IMPL: "hms", LOCK_PHASE: "both", LOCK_EPOCH: "3"}, State(phase=Phase.BOTH, epoch=3)),
    ],
)
def test_a_table_says_where_it_is(properties: dict[str, str], state: State) -> None:
    assert State.of(properties) == state


def test_a_phase_of_a_later_version_is_refused_and_not_guessed() -> None:
    with pytest.raises(ConfigError, match="unknown migration phase"):
        State.of({LOCK_PHASE: "etcd", LOCK_EPOCH: "1"})


@pytest.mark.parametrize("phase", Phase)
def test_a_change_names_the_lock_manager_that_all_writers_of_the_phase_hold(phase: Phase) -> None:
    state = State(phase=Phase.BOTH, epoch=4)
    assert State.of(state.changed_to(phase)) == State(phase=phase, epoch=5)
    assert state.changed_to(phase)[LOCK_IMPL] in locks_of(phase)


def test_two_phases_that_follow_each_other_share_a_lock() -> None:
    """Else writers of the one and of the other would not exclude each other while the phase changes."""
    for one, next_ in pairwise(Phase):
        assert set(locks_of(one)) & set(locks_of(next_))


def test_who_changes_the_phase_holds_all_that_writers_of_both_phases_hold_but_for_a_guarded_one() -> None:
    for one, next_ in pairwise(Phase):
        assert set(locks_of(one, changing=True)) >= set(locks_of(one)) | set(locks_of(next_))
    assert set(locks_of(Phase.ZOOKEEPER, changing=True)) == {"zookeeper"}


@pytest.mark.parametrize("target", Phase)
@pytest.mark.parametrize("start", Phase)
def test_the_way_goes_through_every_phase_between(start: Phase, target: Phase) -> None:
    way, here = [start], start
    while (step := here.toward(target)) is not None:
        way, here = [*way, step], step
    between = list(Phase)
    low, high = sorted((between.index(start), between.index(target)))
    assert sorted(way, key=between.index) == between[low : high + 1]
