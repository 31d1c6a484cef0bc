"""Phases: what a table's properties say, which locks they ask for, which steps there are."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise, permutations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commit_coord.catalog.metastore.phases import PhaseChanges
from commit_coord.catalog.metastore.properties import WriterProperties
from commit_coord.catalog.migration.sightings import committed
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import ConfigError
from commit_coord.events import Events
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.locks.migration.writers import Counted, Writer
from commit_coord.model import LockEntry, Owner
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


def _locks(*one_sided: LockEntry) -> Any:
    """Return a lock manager that supports all phases, with operation locks that no writer of a new phase would see."""
    return SimpleNamespace(sides=SimpleNamespace(one_sided=lambda table, phase: one_sided))


def test_a_table_without_properties_is_no_new_table() -> None:
    """A new table gets the phase of its database; of one that is there, operation locks may be held elsewhere."""
    phases: Any = SimpleNamespace(of_new=lambda database: Phase.ZOOKEEPER)
    servers: Any = SimpleNamespace(compare_and_set=lambda: True)
    changes = PhaseChanges(phases, servers, _locks())
    writers = WriterProperties(MIGRATING, changes, servers, cast("Any", None))
    made = writers.prepare(("db", "t"), {}, {"a": "1"}, changes_phase=False)
    assert (State.of(made).phase, made[LOCK_IMPL]) == (Phase.HMS, "hms")
    assert State.of(writers.prepare(("db", "t"), None, {}, changes_phase=False)).phase is Phase.ZOOKEEPER


@pytest.mark.parametrize("key", [LOCK_PHASE, LOCK_EPOCH, LOCK_IMPL])
@pytest.mark.parametrize(
    "declared",
    [
        {},
        {LOCK_IMPL: "hms"},
        {LOCK_IMPL: "zookeeper"},
        *(State(phase=phase, epoch=4).changed_to(phase) for phase in Phase),
    ],
)
@pytest.mark.parametrize("value", ["hms", "both", "zookeeper", "lease", "-5", "6", None])
def test_nothing_but_a_move_changes_what_a_table_says_of_its_move(
    declared: dict[str, str], key: str, value: str | None
) -> None:
    """Whatever a commit sets or removes by hand: it is refused, or the table is in the state in which it was."""
    servers: Any = SimpleNamespace(compare_and_set=lambda: True)
    changes = PhaseChanges(cast("Any", None), servers, _locks())
    writers = WriterProperties(MIGRATING, changes, servers, cast("Any", SimpleNamespace(remove=lambda table: None)))
    after = {name: text for name, text in {**declared, key: value}.items() if text is not None}
    with suppress(ConfigError):
        made = writers.prepare(("db", "t"), declared, after, changes_phase=False)
        assert State.of(made) == State.of(declared)
        assert made[LOCK_IMPL] == State.of(declared).phase.lock_impl


@pytest.mark.parametrize("impl", ["hms", "zookeeper", MIGRATING])
@pytest.mark.parametrize("default", Phase)
@pytest.mark.parametrize(
    "key, value",
    [*((LOCK_PHASE, value) for value in ("hms", "both", "zookeeper", "etcd")), (LOCK_EPOCH, "-5"), (LOCK_EPOCH, "1")],
)
def test_a_new_table_is_in_the_phase_of_its_database_whatever_it_is_given(
    impl: str, default: Phase, key: str, value: str
) -> None:
    servers: Any = SimpleNamespace(compare_and_set=lambda: True)
    locks = _locks() if impl == MIGRATING else None
    changes = PhaseChanges(cast("Any", SimpleNamespace(of_new=lambda database: default)), servers, locks)
    writers = WriterProperties(impl, changes, servers, cast("Any", None))
    usual = writers.prepare(("db", "t"), None, {}, changes_phase=False)
    with suppress(ConfigError):
        assert writers.prepare(("db", "t"), None, {key: value}, changes_phase=False) == usual


@pytest.mark.parametrize("phase", [Phase.BOTH, Phase.ZOOKEEPER])
def test_on_a_server_that_does_not_compare_no_new_table_leaves_the_metastores_locks(phase: Phase) -> None:
    servers: Any = SimpleNamespace(
        compare_and_set=lambda: False, capabilities=lambda: SimpleNamespace(server="thrift://old:9083")
    )
    changes = PhaseChanges(cast("Any", SimpleNamespace(of_new=lambda database: phase)), servers, _locks())
    with pytest.raises(ConfigError, match="does not compare and set"):
        changes.checked(("db", "t"), None, {}, changes_phase=False)


def test_a_move_does_not_begin_at_a_table_whose_writers_lock_in_a_third_service() -> None:
    servers: Any = SimpleNamespace(compare_and_set=lambda: True)
    changes = PhaseChanges(cast("Any", None), servers, _locks())
    before, moving = {LOCK_IMPL: "lease"}, State(phase=Phase.HMS, epoch=0).changed_to(Phase.BOTH)
    with pytest.raises(ConfigError, match="another lock manager"):
        changes.checked(("db", "t"), before, {**before, **moving}, changes_phase=True)


def test_what_a_later_version_adds_to_the_registry_of_writers_is_passed_over() -> None:
    owner = Owner(user="u", host="h", pid=1, application="a")
    writer = Writer(client="c", version="9", owner=owner, counted={"db.t": {"both": Counted(latches=2)}})
    found = json.loads(writer.to_json())
    for fields in (found, found["owner"], found["counted"]["db.t"]["both"]):
        fields["from later"] = True
    assert Writer.from_json(json.dumps(found).encode()) == writer


def test_every_snapshot_in_the_window_counts_in_whatever_order_they_are() -> None:
    """1. A clock that is ahead gives a snapshot its time.   2. The next one has an earlier one."""

    def snapshot(at_ms: int) -> Any:
        return SimpleNamespace(timestamp_ms=at_ms, summary=None)

    for times in permutations((5, 20, 30)):
        metadata: Any = SimpleNamespace(snapshots=[snapshot(at_ms) for at_ms in times])
        (seen,) = committed(metadata, "db.t", since_ms=10)
        assert (seen.times, seen.last_ms) == (2, 30)


def test_a_day_before_the_window_the_search_of_a_history_ends() -> None:
    day_ms = 86_400_000
    snapshots = [
        SimpleNamespace(summary=None),
        *(SimpleNamespace(timestamp_ms=days * day_ms, summary=None) for days in (1, 3, 4)),
    ]
    metadata: Any = SimpleNamespace(snapshots=snapshots)
    (seen,) = committed(metadata, "db.t", since_ms=3 * day_ms)
    assert 2 == seen.times


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
