"""Phases: what a table's properties say, which locks they ask for, which steps there are."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commit_coord.catalog.metastore.phases import PhaseChanges
from commit_coord.catalog.metastore.properties import WriterProperties
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import ConfigError
from commit_coord.events import Events
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.protocol.migration import LOCK_EPOCH, LOCK_IMPL, LOCK_PHASE, MIGRATING, Phase, State, locks_of
from commit_coord.testing.contract import latch, soon, standing


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


def test_a_table_without_properties_is_no_new_table() -> None:
    """A new table gets the phase of its database; of one that is there, operation locks may be held elsewhere."""
    phases: Any = SimpleNamespace(of_new=lambda database: Phase.ZOOKEEPER)
    servers: Any = SimpleNamespace(compare_and_set=lambda: True)
    changes = PhaseChanges(phases, servers, cast("Any", object()))
    writers = WriterProperties(MIGRATING, changes, servers, cast("Any", None))
    made = writers.prepare(("db", "t"), {}, {"a": "1"}, changes_phase=False)
    assert (State.of(made).phase, made[LOCK_IMPL]) == (Phase.HMS, "hms")
    assert State.of(writers.prepare(("db", "t"), None, {}, changes_phase=False)).phase is Phase.ZOOKEEPER


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


@pytest.mark.parametrize("how", ["acquire", "submit"])
def test_an_error_after_the_locks_are_taken_leaves_none(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while somebody keeps the error, as a notebook does, and with it the lease."""
    hms, zookeeper = MemoryLockManager(space=f"hms of {how}"), MemoryLockManager(space=f"zookeeper of {how}")
    monkeypatch.setattr(hms, "name", "hms")
    monkeypatch.setattr(zookeeper, "name", "zookeeper")

    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    sides: Any = SimpleNamespace(
        hms=hms,
        zookeeper=zookeeper,
        in_order=(hms, zookeeper),
        emitter=LockEventEmitter(Events(), SYSTEM_CLOCK),
    )
    writers: Any = SimpleNamespace(appear=lambda: None, latched=fails)
    manager = MigratingLockManager(
        sides, state_of=lambda _: State(phase=Phase.BOTH, epoch=1), writers=writers, clock=SYSTEM_CLOCK
    )
    monkeypatch.setattr(manager._emitter, "granted", fails)
    with pytest.raises(RuntimeError, match="new thread") as kept:
        getattr(manager, how)(latch(), deadline=soon())
    assert ({}, {}) == (standing(hms), standing(zookeeper))
    assert kept.value.__traceback__ is not None
