"""Tables that move from the metastore's locks to ZooKeeper, and back, while they are written to."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import CommitFailedException
from typer.testing import CliRunner

import commit_coord
from commit_coord import CommitLockFailed, CommitNotApplied, ConfigError
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.catalog.migration import Migration, Outcome
from commit_coord.catalog.migration.sightings import WriterKind
from commit_coord.cli.app import app
from commit_coord.errors import MetastoreUnavailable, OfferLost
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import LostReply
from commit_coord.hms.locks import LockPart, LockType
from commit_coord.hms.probe import CompareAndSet
from commit_coord.iceberg.overwrites import HandoverNote
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.locks.base import Lease
from commit_coord.locks.hms.guard import HmsGuards
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.migration import taking
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.model import LockMode, LockRequest, LockScope, LockState, Resource
from commit_coord.process import this_owner
from commit_coord.protocol.migration import LOCK_EPOCH, LOCK_IMPL, LOCK_PHASE, MIGRATING, Phase, State
from commit_coord.testing.carrying import Submitter, offering
from commit_coord.testing.contract import TABLE as LOCKED
from commit_coord.testing.contract import Service, latch, soon, until
from commit_coord.testing.hammer import TABLE, hammer
from commit_coord.ui import Pages, Visit, Visitor, moving
from tests import limits
from tests.catalog.kit import SCHEMA, ids, row_ids
from tests.proof.operators import End, bring, killed_at, move_dying
from tests.threads import elsewhere

LOCK_ENABLED = "engine.hive.lock-enabled"
PATIENCE = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.1", "lock-check-retries": "5"}


class World:
    """A database on a metastore, ZooKeeper, and catalogs on it that migrate or do as they are configured."""

    def __init__(self, hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, folder: Path) -> None:
        self.uri, self.servers, self.folder = hms.uri, zookeeper.connect_string, folder
        self._opened: list[CoordinatedHiveCatalog] = []
        self.plain = MetastoreClient.of(hms.uri)
        self.catalog = self.open()
        self.db = f"m{os.urandom(8).hex()}"
        self.name = (self.db, "t")
        self.catalog.create_namespace(self.db)
        self._mover = self.operator()

    @property
    def properties(self) -> dict[str, str]:
        return {
            "uri": f"coord+{self.uri}",
            "warehouse": f"file://{self.folder}",
            "lock-impl": MIGRATING,
            "lock.uri": self.servers,
            "hive.compare-and-set": "honoured",  # as the probe says of this server, and costs each catalog
            "commit-coord.audit-log": f"{self.folder}/audit",
        }

    def open(self, **properties: str) -> CoordinatedHiveCatalog:
        catalog = commit_coord.load_catalog("t", **{**self.properties, **properties})
        assert isinstance(catalog, CoordinatedHiveCatalog)
        self._opened.append(catalog)
        return catalog

    def pinned(self) -> CoordinatedHiveCatalog:
        return self.open(**{"lock-impl": "hms", "lock.uri": self.uri})

    def stock(self) -> HiveCatalog:
        return HiveCatalog("s", uri=self.uri, **PATIENCE)

    def locks(self) -> MigratingLockManager:
        locks = self.catalog.locks
        assert isinstance(locks, MigratingLockManager)
        return locks

    def operator(self) -> Migration:
        return Migration(self.open(), why="test")

    def move(self, phase: Phase, outcome: Outcome = Outcome.CHANGED) -> State:
        moved = self._mover.move(self.name, phase)
        assert moved.outcome is outcome, moved
        assert moved.after is not None
        return moved.after

    def guarded(self) -> bool:
        manager = HmsLockManager(self.plain.service)
        found = any(e.guard for e in manager.locks(Resource(self.name)))
        manager.close()
        return found

    def properties_of(self) -> dict[str, str]:
        return dict(self.catalog.coordinator.load(self.name)[0].properties)

    def close(self) -> None:
        for name in self.plain.get_all_tables(self.db):
            self.plain.drop_table(self.db, name, False)
        for listed in self.plain.show_locks():
            self.plain.unlock(listed.lock_id)
        self.plain.close()
        for catalog in self._opened:
            catalog.close()


@pytest.fixture
def world(hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> Iterator[World]:
    world = World(hms, zookeeper, tmp_path)
    yield world
    world.close()


# Phases.


def test_a_writer_that_never_loads_the_table_again_writes_through_all_phases(world: World) -> None:
    """So does one that knows only the metastore's locks: it goes on until the phase is zookeeper, and after it."""
    table = world.catalog.create_table(world.name, SCHEMA)
    pinned = world.pinned().load_table(world.name)
    table.append(ids(1))
    pinned.append(ids(2))

    assert world.move(Phase.BOTH) == State(phase=Phase.BOTH, epoch=1)
    table.append(ids(3))
    pinned.append(ids(4))

    assert world.move(Phase.ZOOKEEPER) == State(phase=Phase.ZOOKEEPER, epoch=2)
    assert (world.guarded(), world.properties_of()[LOCK_ENABLED]) == (True, "false")
    with pytest.raises(CommitNotApplied):
        pinned.append(ids(5))
    with pytest.raises(CommitFailedException, match="Failed to acquire lock"):
        world.stock().load_table(world.name).append(ids(6))
    table.append(ids(7))

    assert world.move(Phase.HMS) == State(phase=Phase.HMS, epoch=4)
    assert (world.guarded(), LOCK_ENABLED in world.properties_of()) == (False, False)
    table.append(ids(8))
    pinned.refresh()
    pinned.append(ids(9))
    world.stock().load_table(world.name).append(ids(10))
    assert row_ids(table.refresh()) == [1, 2, 3, 4, 7, 8, 9, 10]


@pytest.mark.parametrize("phase", Phase)
def test_what_a_commit_asks_of_the_metastore(world: World, phase: Phase) -> None:
    """In phase zookeeper it takes no lock there, and the number of the next one says that nobody else did."""
    table = world.catalog.create_table(world.name, SCHEMA)
    if phase is not Phase.HMS:
        world.move(Phase.BOTH)
    if phase is Phase.ZOOKEEPER:
        world.move(Phase.ZOOKEEPER)
    table.append(ids(0))
    hms = world.locks().hms
    assert isinstance(hms, HmsLockManager)
    clients = world.catalog.metastore, hms.metastore
    before = sum((client.calls for client in clients), Counter[str]())
    first = _next_lock(world)
    for number in range(3):
        table.append(ids(number))
    asked = sum((client.calls for client in clients), Counter[str]()) - before
    swapped = {"get_table_req": 6, "alter_table_with_environment_context": 3}
    locks = 0 if phase is Phase.ZOOKEEPER else 3
    # A slow server may be asked once more to unlock.
    assert (asked.pop("unlock", 0) >= locks, asked) == (True, {**swapped, **({"lock": locks} if locks else {})})
    assert _next_lock(world) - first == 1 + locks


def _next_lock(world: World) -> int:
    """Return the number that the metastore gives to a lock now."""
    part = LockPart(type=LockType.SHARED_READ, db=world.db, table="elsewhere")
    lock_id, _ = world.plain.lock([part], user="u", host="h", agent="counts")
    world.plain.unlock(lock_id)
    return lock_id


def test_a_process_that_knows_another_phase_finds_out_under_the_latch(world: World) -> None:
    """It was stopped while the table moved; what it believes costs a turn, and nobody notices."""
    table = world.catalog.create_table(world.name, SCHEMA)
    resource = Resource(world.name)
    for number, phase in enumerate((Phase.BOTH, Phase.ZOOKEEPER, Phase.BOTH, Phase.HMS)):
        world.move(phase)
        for belief in Phase:
            world.locks().beliefs.states[resource] = State(phase=belief, epoch=0)
            table.append(ids(10 * number))
            assert world.locks().beliefs.states[resource].phase is phase
    assert world.catalog.show_locks(resource) == []


def test_a_change_of_the_phase_by_hand_is_refused(world: World) -> None:
    table = world.catalog.create_table(world.name, SCHEMA)
    for key, value in ((LOCK_PHASE, "zookeeper"), (LOCK_EPOCH, "7"), (LOCK_IMPL, "zookeeper"), (LOCK_IMPL, "lease")):
        with pytest.raises(CommitNotApplied, match="migrate"), table.transaction() as tx:
            tx.set_properties({key: value})
    assert State.of(world.properties_of()) == State(phase=Phase.HMS, epoch=0)


def test_a_metadata_file_of_another_phase_is_not_registered_in_the_place_of_the_table(world: World) -> None:
    """Nobody would hold the locks of both phases, and the epoch would go back."""
    table = world.catalog.create_table(world.name, SCHEMA)
    table.append(ids(1))
    of_hms = table.metadata_location
    world.move(Phase.BOTH)
    of_both = world.catalog.load_table(world.name).metadata_location
    table.append(ids(2))
    for phase in (Phase.BOTH, Phase.ZOOKEEPER, Phase.HMS):
        if phase is not Phase.BOTH:
            world.move(phase)
        with pytest.raises(ConfigError, match="drop the table first"):
            world.catalog.register_table(world.name, of_hms, overwrite=True)
        assert State.of(world.properties_of()).phase is phase
    assert row_ids(world.catalog.load_table(world.name)) == [1, 2]
    assert world.catalog.show_locks(Resource(world.name)) == []
    world.catalog.drop_table(world.name)
    assert row_ids(world.catalog.register_table(world.name, of_both)) == [1]
    table = world.catalog.load_table(world.name)
    table.append(ids(3))
    assert row_ids(world.catalog.register_table(world.name, of_both, overwrite=True)) == [1]


def test_the_epoch_keeps_two_operators_from_changing_the_phase_twice(world: World) -> None:
    world.catalog.create_table(world.name, SCHEMA)
    operators = [world.operator() for _ in range(3)]
    threads = [threading.Thread(target=o.move, args=(world.name, Phase.BOTH)) for o in operators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert State.of(world.properties_of()) == State(phase=Phase.BOTH, epoch=1)
    # One that planned its step on an older epoch.
    with pytest.raises(commit_coord.CommitConflict):
        operators[0]._change(world.name, State(phase=Phase.HMS, epoch=0), Phase.BOTH)


def test_a_database_says_in_which_phase_its_new_tables_are(world: World) -> None:
    operator = world.operator()
    for phase in (Phase.BOTH, Phase.ZOOKEEPER, Phase.HMS):
        operator.set_defaults([world.db], phase)
        world.catalog.create_table((world.db, phase.value), SCHEMA).append(ids(1))
        metadata, _ = world.catalog.coordinator.load((world.db, phase.value))
        assert State.of(metadata.properties).phase is phase
        assert metadata.properties[LOCK_IMPL] == phase.lock_impl
        assert operator.verify((world.db, phase.value)).problems == []


def test_a_database_declares_a_known_phase_or_none(world: World) -> None:
    """What another program has set is refused in words, and a move sets a known one."""
    with pytest.raises(ConfigError, match="unknown migration phase"):
        world.catalog.create_namespace(f"{world.db}x", {LOCK_PHASE: "Both"})
    with pytest.raises(ConfigError, match="unknown migration phase"):
        world.catalog.update_namespace_properties(world.db, updates={LOCK_PHASE: "zoo"})
    world.catalog.create_table((world.db, "there"), SCHEMA)
    world.stock().update_namespace_properties(world.db, updates={LOCK_PHASE: "zoo"})
    with pytest.raises(ConfigError, match="unknown migration phase"):
        world.catalog.create_table(world.name, SCHEMA)
    world.catalog.load_table((world.db, "there")).append(ids(1))
    world.operator().set_defaults([world.db], Phase.BOTH)
    assert State.of(world.catalog.create_table(world.name, SCHEMA).properties).phase is Phase.BOTH


def test_a_server_that_does_not_compare_is_not_left_alone(world: World) -> None:
    world.catalog.create_table(world.name, SCHEMA)
    catalog = world.open(**{"hive.compare-and-set": "ignored"})
    assert catalog.capabilities().compare_and_set is not CompareAndSet.HONOURED
    moved = Migration(catalog).move(world.name, Phase.BOTH)
    assert (moved.outcome, moved.after) == (Outcome.REFUSED, State(phase=Phase.HMS, epoch=0))
    assert "does not compare" in moved.reason
    for phase in (Phase.BOTH, Phase.ZOOKEEPER):
        with pytest.raises(ConfigError, match="does not compare"):
            Migration(catalog).set_defaults([world.db], phase)
        world.operator().set_defaults([world.db], phase)  # as on a server that does
        with pytest.raises(ConfigError, match="does not compare"):
            catalog.create_table((world.db, "new"), SCHEMA)
    Migration(catalog).set_defaults([world.db], Phase.HMS)
    assert State.of(catalog.create_table((world.db, "new"), SCHEMA).properties).phase is Phase.HMS


def test_the_phase_of_a_table_that_cannot_be_read_is_not_guessed(world: World) -> None:
    """Neither in the answer nor in what the command shows."""
    location = world.catalog.create_table(world.name, SCHEMA).metadata_location
    Path(urlsplit(location).path).unlink()
    moved = Migration(world.open()).move(world.name, Phase.BOTH)
    assert (moved.outcome, moved.before, moved.after, moved.phase) == (Outcome.FAILED, None, None, None)
    given = {**world.properties}
    options = ["--uri", given.pop("uri"), *(word for key, value in given.items() for word in ("-p", f"{key}={value}"))]
    told = CliRunner().invoke(app, ["migrate", "start", ".".join(world.name), *options, "--json"])
    (answer,) = json.loads(told.stdout.splitlines()[-1])["tables"]
    assert (told.exit_code, answer["before"], answer["after"]) == (3, None, None)


def test_a_table_that_cannot_be_read_hides_no_other(world: World) -> None:
    for name in ("a", "b"):
        world.catalog.create_table((world.db, name), SCHEMA)
    Path(urlsplit(world.catalog.load_table((world.db, "a")).metadata_location).path).unlink()
    given = {**world.properties}
    options = ["--uri", given.pop("uri"), *(word for key, value in given.items() for word in ("-p", f"{key}={value}"))]

    def run(*words: str, code: int) -> Any:
        told = CliRunner().invoke(app, ["migrate", *words, world.db, *options])
        assert told.exit_code == code, told.output
        assert "it can't be read: FileNotFoundError" in told.stdout
        told = CliRunner().invoke(app, ["migrate", *words, world.db, *options, "--json"])
        assert told.exit_code == code, told.output
        return json.loads(told.stdout.splitlines()[-1])["tables"]

    for words in (("plan", "--window", "0"), ("status", "--watch", "--times", "2")):
        bad, good = run(*words, code=0)
        assert (bad["phase"], bad["next"], good["phase"], good["problem"]) == (None, None, "hms", None)
        assert "check whether it was dropped" in bad["problem"]
    bad, good = run("verify", code=1)
    assert (bad["phase"], len(bad["problems"]), good["phase"], good["problems"]) == (None, 1, "hms", [])
    with pytest.raises(FileNotFoundError):  # else it would seem that nobody holds its move up
        operator = world.operator()
        operator.status((world.db, "a"), operator.watch(0), window_s=1)


def test_it_needs_a_metastore_and_both_services(world: World) -> None:
    with pytest.raises(ConfigError, match="the catalog is not on one"):
        commit_coord.load_catalog("t", **{"uri": "sqlite:///x.db", "lock-impl": MIGRATING, "lock.uri": "127.0.0.1:1"})
    with pytest.raises(ConfigError, match="names another service"):
        commit_coord.load_catalog("t", **{"uri": world.uri, "lock-impl": MIGRATING})
    with pytest.raises(ConfigError, match="all phases"):
        Migration(world.pinned())


# Guards.


def test_a_guard_that_was_left_is_removed_by_the_next_client_that_finds_it(world: World) -> None:
    """An operator died between the change of the phase and the removal; or another client set it too late."""
    table = world.catalog.create_table(world.name, SCHEMA)
    table.append(ids(1))
    for phase in (Phase.HMS, Phase.BOTH):
        world.catalog.guards.place(world.name)
        world.catalog.guards.look_again(Resource(world.name))
        assert world.guarded()
        table.append(ids(2))
        assert not world.guarded()
        if phase is Phase.HMS:
            world.move(Phase.BOTH)


def _creates(catalog: CoordinatedHiveCatalog, name: tuple[str, str]) -> None:
    catalog.create_table(name, SCHEMA)


def _creates_in_a_transaction(catalog: CoordinatedHiveCatalog, name: tuple[str, str]) -> None:
    catalog.create_table_transaction(name, SCHEMA).commit_transaction()


def _renames(catalog: CoordinatedHiveCatalog, name: tuple[str, str]) -> None:
    catalog.create_table((name[0], "before"), SCHEMA)
    catalog.rename_table((name[0], "before"), name)


@pytest.mark.parametrize("use", [_creates, _creates_in_a_transaction, _renames])
def test_a_guard_that_was_left_on_a_free_name_is_removed_by_the_next_client_that_uses_the_name(
    world: World, use: Callable[[CoordinatedHiveCatalog, tuple[str, str]], None]
) -> None:
    world.catalog.guards.place(world.name)
    world.catalog.guards.look_again(Resource(world.name))
    assert world.guarded()
    use(world.open(), world.name)
    assert not world.guarded()
    world.stock().load_table(world.name).append(ids(1))


def _is_lost_before(alter: Callable[..., Any]) -> Callable[..., Any]:
    """Return an *alter* that never arrives."""

    def lost(*arguments: Any, **options: Any) -> None:
        raise LostReply("the server did not answer")

    return lost


def _is_lost_after(alter: Callable[..., Any]) -> Callable[..., Any]:
    """Return an *alter* whose reply never arrives."""

    def lost(*arguments: Any, **options: Any) -> None:
        alter(*arguments, **options)
        raise LostReply("the server did not answer")

    return lost


@pytest.mark.parametrize("loses", [_is_lost_before, _is_lost_after])
def test_whatever_becomes_of_a_step_a_table_in_phase_zookeeper_has_its_guard(
    world: World, loses: Callable[[Callable[..., Any]], Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never lacks it: a guard that is removed too early is set again, but a lock-only writer comes in between."""
    world.catalog.create_table(world.name, SCHEMA)
    world.move(Phase.BOTH)
    world.move(Phase.ZOOKEEPER)
    catalog = world.open(**{"lock.acquire-timeout-ms": "3000"})
    removed_in, remove = [], HmsGuards.remove

    def noted(keeper: HmsGuards, table: tuple[str, str]) -> None:
        removed_in.append(State.of(world.properties_of()).phase)
        remove(keeper, table)

    monkeypatch.setattr(HmsGuards, "remove", noted)
    catalog.metastore.alter_table = loses(catalog.metastore.alter_table)  # type: ignore[method-assign]
    Migration(catalog).move(world.name, Phase.BOTH)
    phase = State.of(world.properties_of()).phase
    assert (phase is Phase.ZOOKEEPER) == (loses is _is_lost_before)
    assert world.guarded() == (phase is Phase.ZOOKEEPER)
    assert Phase.ZOOKEEPER not in removed_in


def test_the_guard_of_another_lock_manager_is_not_swept(world: World, tmp_path: Path) -> None:
    lease = world.open(**{"lock-impl": "lease", "lock.uri": f"sqlite:///{tmp_path}/locks.db"})
    lease.create_table(world.name, SCHEMA).append(ids(1))
    with pytest.raises(CommitNotApplied, match="guarded"):
        world.catalog.load_table(world.name).append(ids(2))
    assert world.guarded()


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--guard"]], ids=["without --guard", "--guard"])
def test_the_guard_of_a_dropped_table_is_freed_by_the_name_of_the_table(world: World, options: list[str]) -> None:
    world.catalog.create_table(world.name, SCHEMA).append(ids(1))
    world.move(Phase.BOTH)
    world.move(Phase.ZOOKEEPER)
    world.stock().drop_table(world.name)
    assert world.guarded()
    given = {**world.properties}
    place = ["-c", "t", "--uri", given.pop("uri"), "--warehouse", given.pop("warehouse")]
    place += [word for key, value in given.items() for word in ("-p", f"{key}={value}")]
    told = CliRunner().invoke(app, ["unlock", ".".join(world.name).upper(), *options, "--yes", "--json", *place])
    assert 0 == told.exit_code, told.output
    assert [True] == [entry["guard"] for entry in json.loads(told.stdout)["freed"]]
    assert not world.guarded()


def test_a_guard_that_was_removed_and_is_due_again_is_set_again(world: World) -> None:
    """Also by a process whose own word of it is young."""
    table = world.catalog.create_table(world.name, SCHEMA)
    for _ in range(2):
        world.move(Phase.BOTH)
        world.move(Phase.ZOOKEEPER)
        table.append(ids(1))
        assert world.guarded()
        world.move(Phase.HMS)
        table.append(ids(2))
        assert not world.guarded()


def test_who_waits_for_its_second_lock_lets_go_when_the_phase_changes(world: World) -> None:
    """It holds the metastore's lock, for which the guard waits, for which the holder of ZooKeeper's waits."""
    table = world.catalog.create_table(world.name, SCHEMA)
    resource, locks = Resource(world.name), world.locks()
    world.move(Phase.BOTH)
    world.move(Phase.ZOOKEEPER)
    world.catalog.guards.remove(world.name)
    locks.beliefs.states[resource] = State(phase=Phase.BOTH, epoch=1)
    other = world.open()
    assert isinstance(other.locks, MigratingLockManager)
    deadline = time.monotonic() + limits.PATIENCE
    with other.locks.sides.latched_in_zookeeper(resource, "a writer", deadline=other.coordinator.clock.now() + 20):
        waiting = threading.Thread(target=table.append, args=(ids(1),))
        waiting.start()
        while not any(e.scope is LockScope.COMMIT for e in locks.hms.locks(resource)) and time.monotonic() < deadline:
            pass
        other.guards.place(world.name)  # would wait for ever
    waiting.join(limits.PATIENCE)
    assert not waiting.is_alive()
    assert row_ids(table.refresh()) == [1]


@pytest.mark.parametrize("ends", ["its time is over", "the phase has changed"])
def test_an_offer_that_was_taken_stays_in_doubt_when_the_second_lock_cannot_be_had(
    hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Its holder has ended without a word; then another client has ZooKeeper's latch."""
    both: dict[str, Any] = {"metastore": hms.uri, "state_of": lambda _: State(phase=Phase.BOTH, epoch=1)}
    with Service(MIGRATING, zookeeper.connect_string, has_spaces=False, **both) as service:
        manager, other = service.open(), service.open()
        assert isinstance(manager, MigratingLockManager)
        assert isinstance(other, MigratingLockManager)
        holder = manager.acquire(latch(), deadline=soon())
        waiter = Submitter(manager, offering("a"), seconds=6)
        until(lambda: [offer.text for offer in holder.take(10)] == ["a"], "the offer of the one that waits")

        def step_back(*_: Any) -> Any:
            raise taking._StepBack

        if ends == "the phase has changed":
            monkeypatch.setattr(manager._taking, "_second", step_back)
        ended, has_it = threading.Event(), threading.Event()

        def keep() -> None:
            with other.sides.latched_in_zookeeper(LOCKED, "a writer", deadline=soon()):
                has_it.set()
                ended.wait(limits.PATIENCE)

        keeping = threading.Thread(target=keep)
        keeping.start()
        until(lambda: len(other.zookeeper.locks(LOCKED)) > 1, "a place behind the holder")
        holder.release()
        assert isinstance(waiter.failed(), OfferLost)
        assert has_it.wait(limits.PATIENCE)
        ended.set()
        keeping.join(limits.PATIENCE)


def test_an_operator_that_died_with_the_metastores_lock_does_not_hold_up_the_guard(world: World) -> None:
    """In phase zookeeper nobody else waits for that lock, so nobody else would free it."""
    table = world.catalog.create_table(world.name, SCHEMA)
    world.move(Phase.BOTH)
    world.move(Phase.ZOOKEEPER)
    world.catalog.guards.remove(world.name)
    child = os.fork()
    if not child:
        HmsLockManager(world.plain.service).acquire(_latch(world.name), deadline=time.monotonic() + 1e6)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    table.append(ids(1))
    assert world.guarded()


def _latch(table: tuple[str, str]) -> LockRequest:
    locks = {Resource(table): LockMode.EXCLUSIVE}
    return LockRequest.of(LockScope.COMMIT, locks, owner=this_owner(), request_id=os.urandom(8).hex())


# Operation locks.


def is_locked(other: CoordinatedHiveCatalog, resource: Resource) -> bool:
    """Return whether a job of *other* waits in vain for X on *resource*."""
    try:
        elsewhere(other.lock_operation, {resource: LockMode.EXCLUSIVE}).release()
    except commit_coord.LockTimeout:
        return True
    return False


def test_operation_locks_are_honoured_until_they_end(world: World) -> None:
    """A job that took its locks in the metastore excludes those of every phase that comes while it runs."""
    world.catalog.create_table(world.name, SCHEMA)
    resource = Resource(world.name)
    other = world.open(**{"lock.acquire-timeout-ms": "1500"})

    running = world.catalog.lock_operation({resource: LockMode.SHARED}, statement="a long job")
    assert is_locked(other, resource)
    world.move(Phase.BOTH)
    assert is_locked(other, resource)
    moved = world.operator().move(world.name, Phase.ZOOKEEPER)
    assert (moved.outcome, moved.phase) == (Outcome.WAITS, Phase.BOTH)
    assert "a long job" in moved.reason
    both = world.open().lock_operation({Resource((*world.name, "k=1")): LockMode.SHARED})
    running.release()
    world.move(Phase.ZOOKEEPER)
    assert is_locked(other, resource)
    both.release()
    assert not is_locked(other, resource)

    running = world.catalog.lock_operation({resource: LockMode.SHARED}, statement="in zookeeper")
    moved = world.operator().move(world.name, Phase.HMS)
    assert (moved.outcome, moved.phase) == (Outcome.WAITS, Phase.BOTH)
    assert is_locked(other, resource)
    running.release()
    world.move(Phase.HMS)
    assert not is_locked(other, resource)


def _another_is_renamed_to_it(world: World, job: CoordinatedHiveCatalog) -> None:
    job.rename_table((world.db, "zookeeper"), world.name)


def _a_file_of_another_phase_is_registered(world: World, job: CoordinatedHiveCatalog) -> None:
    job.register_table(world.name, job.load_table((world.db, "zookeeper")).metadata_location)


def _one_is_created_in_a_new_phase(world: World, job: CoordinatedHiveCatalog) -> None:
    for phase in (Phase.BOTH, Phase.ZOOKEEPER):
        world.operator().set_defaults([world.db], phase)
    job.create_table(world.name, SCHEMA)


def _one_is_created_in_a_transaction(world: World, job: CoordinatedHiveCatalog) -> None:
    for phase in (Phase.BOTH, Phase.ZOOKEEPER):
        world.operator().set_defaults([world.db], phase)
    job.create_table_transaction(world.name, SCHEMA).commit_transaction()


@pytest.mark.parametrize("begins", ["with a table", "with a free name"])
@pytest.mark.parametrize(
    "comes",
    [
        _another_is_renamed_to_it,
        _a_file_of_another_phase_is_registered,
        _one_is_created_in_a_new_phase,
        _one_is_created_in_a_transaction,
    ],
)
def test_an_operation_lock_on_a_name_excludes_all_others_whatever_table_gets_the_name(
    world: World, comes: Callable[[World, CoordinatedHiveCatalog], None], begins: str
) -> None:
    """A name has a table, or none, in phase hms; the next table is in phase zookeeper."""
    resource = Resource(world.name)
    other = world.open(**{"lock.acquire-timeout-ms": "1500"})
    world.catalog.create_table((world.db, "zookeeper"), SCHEMA)
    for phase in (Phase.BOTH, Phase.ZOOKEEPER):
        world.operator().move((world.db, "zookeeper"), phase)
    job = world.open()
    if begins == "with a table":
        job.create_table(world.name, SCHEMA)
    lease = job.lock_operation({resource: LockMode.EXCLUSIVE}, statement="rebuild")

    assert is_locked(other, resource)
    if begins == "with a table":
        job.drop_table(world.name)
        assert is_locked(other, resource)
        with pytest.raises(commit_coord.CommitCoordError, match="running operations hold locks"):
            comes(world, job)
    else:
        comes(world, job)
    assert is_locked(other, resource)
    lease.ensure_active(0)
    lease.release()
    if begins == "with a table":
        comes(world, job)
    assert State.of(world.properties_of()).phase is Phase.ZOOKEEPER
    assert not is_locked(other, resource)


@pytest.mark.parametrize("begins", Phase)
def test_a_name_that_was_locked_in_one_phase_stays_locked_when_its_table_is_dropped(
    world: World, begins: Phase
) -> None:
    """The free name is in the phase of new tables, which is hms; a job may hold it from before."""
    world.catalog.create_table(world.name, SCHEMA)
    for phase in list(Phase)[1 : list(Phase).index(begins) + 1]:
        world.move(phase)
    job, other = world.open(), world.open(**{"lock.acquire-timeout-ms": "1500"})
    lease = job.lock_operation({Resource(world.name): LockMode.EXCLUSIVE})
    job.drop_table(world.name)
    with pytest.raises(commit_coord.LockTimeout):
        elsewhere(other.lock_operation, {Resource(world.name): LockMode.EXCLUSIVE})
    lease.release()


@pytest.mark.parametrize("partition", ["k=short", "k=" + "ü" * 150])
def test_a_lock_that_is_held_in_both_services_holds_up_no_move_however_long_its_name_is(
    world: World, partition: str
) -> None:
    world.catalog.create_table(world.name, SCHEMA)
    world.move(Phase.BOTH)
    with world.open().lock_operation({Resource((*world.name, partition)): LockMode.EXCLUSIVE}):
        for phase in (Phase.ZOOKEEPER, Phase.BOTH):
            world.move(phase)
            assert world.operator().verify(world.name).problems == []


@pytest.mark.parametrize("phase", Phase)
def test_an_operation_lock_that_no_writer_of_the_phase_would_see_is_refused(world: World, phase: Phase) -> None:
    """A process keeps its setting while the table moves."""
    world.catalog.create_table(world.name, SCHEMA)
    for step in list(Phase)[1 : list(Phase).index(phase) + 1]:
        world.move(step)
    catalogs = {"hms": world.pinned(), "zookeeper": world.open(**{"lock-impl": "zookeeper"}), MIGRATING: world.open()}
    for impl, catalog in catalogs.items():
        is_seen = impl in (phase.lock_impl, MIGRATING)
        with nullcontext() if is_seen else pytest.raises(ConfigError, match="another lock manager"):
            catalog.lock_operation({Resource((*world.name, "k=1")): LockMode.EXCLUSIVE}).release()
        catalog.lock_operation({Resource((world.db, "free")): LockMode.EXCLUSIVE}).release()
        assert catalog.show_locks(Resource((*world.name, "k=1"))) == []


def test_a_metastore_that_fails_while_a_change_takes_its_locks_leaves_none_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.catalog.create_table(world.name, SCHEMA)
    job = world.open(**{"lock-impl": "zookeeper"})

    def away(_: Any) -> Any:
        raise MetastoreUnavailable("the metastore did not answer")

    monkeypatch.setattr(job.pointers, "found", away)
    with pytest.raises(CommitLockFailed, match="nothing was changed: the locks were given back"):
        job.lock_change({Resource(world.name): LockMode.EXCLUSIVE})
    assert [] == list(job.show_locks(Resource(world.name)))


@pytest.mark.parametrize("phase", Phase)
def test_a_rename_moves_what_is_noted_of_a_table_whatever_the_phase_of_free_names(world: World, phase: Phase) -> None:
    world.catalog.create_table(world.name, SCHEMA).append(ids(1))
    for step in list(Phase)[1:]:
        world.move(step)
    world.catalog.load_table(world.name).append(ids(2))
    for step in reversed(list(Phase)[list(Phase).index(phase) : -1]):
        world.move(step)
    new = (world.db, "renamed")
    renamed = world.catalog.rename_table(world.name, new)

    def head(name: tuple[str, str]) -> str:
        latch = world.catalog.coordinator.note_latch(name, statement="look")
        assert latch is not None
        with latch:
            known = HandoverNote.parse(latch.handover_note or "").head
        return known.table_uuid if known is not None else ""

    assert (str(renamed.metadata.table_uuid), "") == (head(new), head(world.name))
    if phase is Phase.ZOOKEEPER:
        assert () == world.catalog.find_lost(new).commits


def test_operations_that_wait_for_their_locks_do_not_hold_up_a_change_of_the_phase(world: World) -> None:
    """Meanwhile they are only in the first side's queue; once they are granted they look which phase it is."""
    world.catalog.create_table(world.name, SCHEMA)
    resource = {Resource(world.name): LockMode.EXCLUSIVE}
    world.move(Phase.BOTH)
    running, other = world.catalog.lock_operation(resource), world.open()
    granted: list[Lease] = []
    waiting = threading.Thread(target=lambda: granted.append(other.lock_operation(resource)))
    waiting.start()
    deadline = time.monotonic() + limits.PATIENCE
    while not any(e.state is LockState.WAITING for e in world.locks().hms.locks()) and time.monotonic() < deadline:
        pass
    world.move(Phase.ZOOKEEPER)
    running.release()
    waiting.join(limits.PATIENCE)
    (entry,) = world.catalog.locks.locks(Resource(world.name), scope=LockScope.OPERATION)
    assert (entry.owner.pid, world.locks().hms.locks(Resource(world.name), scope=LockScope.OPERATION)) == (
        os.getpid(),
        [],
    )
    granted[0].release()


# Writers that are seen.


def test_going_on_is_refused_while_a_writer_knows_only_the_metastores_lock(world: World) -> None:
    table = world.catalog.create_table(world.name, SCHEMA)
    table.append(ids(0))
    world.move(Phase.BOTH)
    operator, over = world.operator(), threading.Event()
    pinned = world.pinned().load_table(world.name)

    def write() -> None:
        while not over.is_set():
            pinned.append(ids(1))
            table.append(ids(2))

    writing = threading.Thread(target=write)
    writing.start()
    try:
        seen = operator.watch(1.5)
    finally:
        over.set()
        writing.join()
    moved = operator.move(world.name, Phase.ZOOKEEPER, seen=seen, window_s=0)
    assert (moved.outcome, moved.phase) == (Outcome.WAITS, Phase.BOTH)
    assert [one.kind for one in moved.waits_for] == [WriterKind.PINNED]
    assert str(os.getpid()) in moved.reason
    assert {one.kind for one in seen.at(".".join(world.name))} == {WriterKind.PINNED, WriterKind.MIGRATING}

    world.stock().load_table(world.name).append(ids(3))  # in its history, though it holds no lock now
    moved = operator.move(world.name, Phase.ZOOKEEPER, seen=operator.watch(0), window_s=60)
    assert [(one.kind, one.how) for one in moved.waits_for] == [(WriterKind.LOCK_ONLY, "commit")]
    moved = operator.move(world.name, Phase.ZOOKEEPER, seen=operator.watch(0), window_s=60, force=True)
    assert moved.phase is Phase.ZOOKEEPER


# The command.


def test_the_command_moves_tables_tells_and_repeats_itself(world: World) -> None:
    for name in ("t", "u"):
        world.catalog.create_table((world.db, name), SCHEMA).append(ids(1))

    def run(*words: str, code: int = 0) -> Any:
        given = {**world.properties}
        options = ["--uri", given.pop("uri"), "--warehouse", given.pop("warehouse")]
        options += [word for key, value in given.items() for word in ("-p", f"{key}={value}")]
        result = CliRunner().invoke(app, ["migrate", *words, *options, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout.splitlines()[-1])

    def outcomes(answer: Any) -> list[tuple[str, str]]:
        return [(one["outcome"], one["after"]["phase"]) for one in answer["tables"]]

    assert [one["next"] for one in run("plan", world.db, "--window", "0")["tables"]] == ["both", "both"]
    assert outcomes(run("advance", world.db, "--window", "0", code=1)) == [("refused", "hms")] * 2
    assert outcomes(run("start", f"{world.db}.t")) == [("changed", "both")]
    assert outcomes(run("start", world.db)) == [("there already", "both"), ("changed", "both")]
    assert outcomes(run("advance", world.db, "--window", "0", "--why", "moved")) == [("changed", "zookeeper")] * 2
    assert outcomes(run("advance", world.db, "--window", "0")) == [("there already", "zookeeper")] * 2
    (status, _) = run("status", world.db)["tables"]
    assert (status["phase"], status["epoch"], status["held_up_by"]) == ("zookeeper", 2, [])
    assert [one["problems"] for one in run("verify", world.db)["tables"]] == [[], []]
    world.catalog.guards.remove(world.name)
    assert "no guard" in run("verify", f"{world.db}.t", code=1)["tables"][0]["problems"][0]
    assert outcomes(run("abort", world.db)) == [("changed", "hms")] * 2
    assert run("start", f"{world.db}.nothing", code=1)["error"]["kind"] == "not-found"
    trail = [json.loads(line) for line in (world.folder / "audit").read_text().splitlines()]
    steps = [(line["before"], line["after"], line["epoch"]) for line in trail if line["how"] == "phase done"]
    assert sorted(steps) == sorted(
        2 * [("hms", "both", 1), ("both", "zookeeper", 2), ("zookeeper", "both", 3), ("both", "hms", 4)]
    )
    assert {line["why"] for line in trail if line["after"] == "zookeeper"} == {"moved"}


# Killed, and under load.


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_operator_that_is_killed_at_any_step_is_gone_on_from(world: World) -> None:
    """After each death everybody writes, and the next operator brings the table to its phase."""
    short = {
        "lock.heartbeat-timeout-ms": "1500",
        "lock.heartbeat-interval-ms": "300",
    }
    properties = {**world.properties, **short}
    table = world.open(**short).create_table(world.name, SCHEMA)
    written, died = 0, Counter[str]()
    for target in (Phase.BOTH, Phase.ZOOKEEPER, Phase.BOTH, Phase.HMS):
        start = State.of(world.properties_of())
        for step in range(1, 100):
            end = killed_at(step, properties, world.name, target)
            table.append(ids(written))
            written += 1
            state = State.of(world.properties_of())
            assert state in (start, State(phase=target, epoch=start.epoch + 1))
            if end is End.DONE:
                break
            assert end is End.KILLED
            died[target] += 1
            with closing(world.open(**short)) as catalog:
                resumed = Migration(catalog)
                assert resumed.move(world.name, target).phase is target
                assert resumed.verify(world.name).problems == []
                table.append(ids(written))
                written += 1
                # Back, so that the next one dies one step later.
                assert resumed.move(world.name, start.phase).phase is start.phase
                start = State.of(world.properties_of())
    assert row_ids(table.refresh()) == list(range(written))
    print(f"killed {dict(died)}, {written} commits")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_or_refused_while_a_table_moves(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """All locks of the metastore are counted, so it is one of the test's own."""
    with HiveMetastore() as hms:
        _moves_under_writers(hms, zookeeper, tmp_path)


def _moves_under_writers(hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    properties = {"uri": hms.uri, "lock-impl": MIGRATING, "lock.uri": zookeeper.connect_string}
    moves = (Phase.BOTH, Phase.ZOOKEEPER, Phase.BOTH, Phase.ZOOKEEPER, Phase.HMS)
    seen: list[State | None] = []

    def to(phase: Phase) -> Callable[[], None]:
        def move() -> None:
            with closing(commit_coord.load_catalog("o", **properties)) as catalog:
                assert isinstance(catalog, CoordinatedHiveCatalog)
                seen.append(Migration(catalog).move(("hammer", "t"), phase).after)

        return move

    report = hammer(
        tmp_path,
        writers=5,
        appends=24,
        kill_every_s=2,
        kills_max=6,
        seed=3,
        faults=[to(phase) for phase in moves],
        properties=properties,
        timeout_s=400,
    )
    print(report, seen)
    assert (report.broken, report.failures, report.locks_left) == ((), {}, 0)
    assert seen[-1] == State(phase=Phase.HMS, epoch=6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_is_lost_while_operators_writers_and_servers_die(tmp_path: Path) -> None:
    """Operators are killed at every step, a writer every second; the metastore and a ZooKeeper server are restarted.

    One of the writers is PyIceberg's own catalog: it writes in hms and both, and is kept out in zookeeper.
    """
    died, ways = Counter[str](), [Phase.BOTH, Phase.ZOOKEEPER, Phase.BOTH, Phase.HMS]
    with HiveMetastore() as hms, ZooKeeperEnsemble(size=3) as zookeeper:
        properties = {"uri": hms.uri, "lock-impl": MIGRATING, "lock.uri": zookeeper.connect_string}

        def move() -> Phase | None:
            move_dying(properties, TABLE, Phase.HMS, ways, died)
            return bring(properties, TABLE, Phase.HMS)

        with ThreadPoolExecutor(1) as operators:
            moving: list[Future[Phase | None]] = []
            try:
                report = hammer(
                    tmp_path,
                    writers=4,
                    plain=1,
                    rest_s=0.4,
                    appends=int(os.environ.get("APPENDS", "60")),
                    kill_every_s=1,
                    seed=5,
                    faults=[
                        lambda: moving.append(operators.submit(move)),
                        hms.restart,
                        zookeeper.servers[0].restart,
                    ],
                    properties=properties,
                    timeout_s=1200,
                )
            finally:
                under_load = dict(died)
            end = moving[0].result()
        with closing(commit_coord.load_catalog("o", **properties)) as catalog:
            left = catalog.show_locks()
    print(report, f"operators killed under load {under_load}, in all {dict(died)}", end)
    # Operators went on after the last writer, and their locks are in the report. The times of the metadata log are ours
    # and PyIceberg's:
    # 1. PyIceberg's catalog makes a snapshot, which has the time of this moment.   2. An operator commits a phase, with
    # a later time.   3. PyIceberg commits: the head of main is the one that it knows. Its time steps back.
    expected = ("locks left", "the metadata: the metadata log steps back in time")
    assert [what for what in report.broken if not what.startswith(expected)] == []
    assert (report.failures, left) == ({}, [])
    assert len(died) == len(ways)
    assert report.plain["acknowledged"] > 0
    assert end is Phase.HMS


# The page.


def test_an_operator_moves_a_table_on_the_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the phase and its steps; a step that is confirmed is made, and the audit log has who made it."""
    monkeypatch.setattr(moving, "WINDOW_S", 0.2)
    world.catalog.create_table(world.name, SCHEMA)
    pages = Pages({"t": world.catalog}, b"secret")
    ann = Visitor(
        name="ann", sees=lambda _: True, reads=lambda *_: True, administers=lambda *_: True, frees=lambda _: True
    )
    query = {"namespace": world.db, "name": "t"}

    def shown(**form: str) -> str:
        method = "POST" if form else "GET"
        return pages.answer(
            Visit(method=method, path=("t", "table"), query=query, form=form, visitor=ann)
        ).body.decode()

    def hidden() -> dict[str, str]:
        return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', shown()))

    def send(target: str, confirm: str, **form: str) -> str:
        return shown(**hidden(), **form, target=target, confirm=confirm)

    def fails(*_: object) -> None:
        raise MetastoreUnavailable("the metastore can't be reached")

    assert "in phase <strong>hms</strong>" in shown()
    assert "Nothing was changed" in send("both", "yes")
    old = hidden()
    assert "changed: both (epoch 1)" in send("both", "t", why="ready")
    assert "not as this page showed it" in shown(**old, target="hms", confirm="t")
    assert "can&#39;t go to this phase" in send("both", "t")
    with monkeypatch.context() as away:
        form = hidden()
        away.setattr("commit_coord.ui.tables.commits", fails)
        told = shown(**form, target="hms", confirm="t")
        assert "changed: hms (epoch 2). The table can&#39;t be shown now" in told
    send("both", "t")
    assert "changed: zookeeper (epoch 4)" in send("zookeeper", "t")
    assert "changed: hms (epoch 6)" in send("hms", "t")
    pages.stop()
    assert "the server stops" in send("both", "t")
    assert "in phase <strong>hms</strong>" in shown()

    lines = [json.loads(line) for line in Path(f"{world.folder}/audit").read_text().splitlines()]
    assert [("phase begun", "ann", "ready"), ("phase done", "ann", "ready")] == [
        (line["how"], line["by"]["user"], line["why"]) for line in lines[:2]
    ]
