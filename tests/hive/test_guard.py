"""Tables whose writers lock elsewhere, together with writers that know nothing but the metastore's lock."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from typer.testing import CliRunner

import commit_coord
from commit_coord import CommitLockFailed, CommitNotApplied, ConfigError
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.cli import app
from commit_coord.clock import SystemClock
from commit_coord.errors import LockServiceUnavailable, LockTimeout
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.locks import LockPart, LockType
from commit_coord.hms.probe import CompareAndSet
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.guard import HmsGuards, _Guard
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.model import LockEntry, LockMode, Resource
from commit_coord.testing.contract import soon, until
from tests import limits
from tests.catalog.kit import SCHEMA, ids, local, orphans, row_ids
from tests.hive.proxy import Proxy
from tests.threads import elsewhere

LOCK_IMPL, LOCK_ENABLED = "commit-coord.lock-impl", "engine.hive.lock-enabled"
QUICK = {"lock.heartbeat-timeout-ms": "1500", "lock.heartbeat-interval-ms": "500"}
PATIENCE = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.1", "lock-check-retries": "5"}


class World:
    """One metastore, one database of it, and catalogs on it that lock in SQL tables or as they are configured."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.db = f"db{uuid.uuid4().hex}"
        self.lease = {"lock-impl": "lease", "lock.uri": f"sqlite:///{folder}/locks.db"}
        self._opened: list[CoordinatedHiveCatalog] = []
        self.plain = MetastoreClient.of(uri)
        self.catalog = self.open()
        self.catalog.create_namespace(self.db)

    def open(self, uri: str | None = None, **properties: str) -> CoordinatedHiveCatalog:
        given = properties if "lock-impl" in properties else {**self.lease, **properties}
        catalog = commit_coord.load_catalog("t", uri=f"coord+{uri or self.uri}", **given)
        assert isinstance(catalog, CoordinatedHiveCatalog)
        self._opened.append(catalog)
        return catalog

    def stock(self) -> HiveCatalog:
        return HiveCatalog("s", uri=self.uri, **PATIENCE)

    def present(self, table: str = "t") -> list[LockEntry]:
        """Return the metastore's locks on a table."""
        manager = HmsLockManager(self.plain.service)
        found = [e for e in manager.locks() if e.resource.path == (self.db, table)]
        manager.close()
        return found

    def close(self) -> None:
        for catalog in self._opened:
            catalog.close()  # before its guards go: it would set them again
        for name in self.plain.get_all_tables(self.db):
            self.plain.drop_table(self.db, name, False)
        for listed in self.plain.show_locks():
            if listed.part.db == self.db:
                self.plain.unlock(listed.lock_id)
        self.plain.close()


@pytest.fixture
def world(hms: HiveMetastore, tmp_path: Path) -> Iterator[World]:
    world = World(hms.uri, tmp_path)
    yield world
    world.close()


def exclusive(client: MetastoreClient, db: str) -> tuple[int, bool]:
    """Ask for the lock that unmodified writers take."""
    return client.lock(
        [LockPart(type=LockType.EXCLUSIVE, db=db, table="t")], user="somebody", host="else", agent="stranger"
    )


class Ahead(SystemClock):
    """A clock that runs on when a test says so."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


@pytest.fixture
def clock(world: World, monkeypatch: pytest.MonkeyPatch) -> Ahead:
    """The clock of the guards of catalogs that are opened from now on."""
    clock = Ahead()
    monkeypatch.setattr("commit_coord.catalog.metastore.locks.SYSTEM_CLOCK", clock)
    return clock


# The guard.


def test_a_writer_that_knows_only_the_metastores_lock_fails_loudly_and_changes_nothing(world: World) -> None:
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    before = world.plain.get_table(world.db, "t").parameters
    with pytest.raises(CommitFailedException, match="Failed to acquire lock"):
        world.stock().load_table((world.db, "t")).append(ids(2))
    assert world.plain.get_table(world.db, "t").parameters == before
    table.append(ids(3))
    assert row_ids(world.stock().load_table((world.db, "t"))) == [1, 3]
    (guard,) = world.present()
    assert (guard.guard, guard.explicit, guard.mode) == (True, True, LockMode.SHARED)
    assert "lock in lease" in guard.owner.statement


def test_the_table_says_that_java_compares_and_sets(world: World) -> None:
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    assert (table.properties[LOCK_IMPL], table.properties[LOCK_ENABLED]) == ("lease", "false")
    with table.transaction() as tx:
        tx.set_properties({LOCK_ENABLED: "true", "a": "b"})
    assert (table.properties[LOCK_ENABLED], table.properties["a"]) == ("false", "b")
    assert world.plain.get_table(world.db, "t").parameters[LOCK_ENABLED] == "false"


def test_on_zookeeper_a_guarded_commit_is_one_get_and_one_alter(world: World, zookeeper: ZooKeeperEnsemble) -> None:
    catalog = world.open(**{"lock-impl": "zookeeper", "lock.uri": zookeeper.connect_string})
    table = catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    before = Counter(catalog.metastore.calls)
    table.append(ids(2))
    assert Counter(catalog.metastore.calls) - before == {"get_table_req": 2, "alter_table_with_environment_context": 1}
    (guard,) = world.present()
    assert guard.guard
    catalog.drop_table((world.db, "t"))
    assert world.present() == []


def test_a_second_client_takes_the_guard_over_and_it_outlives_both(world: World) -> None:
    world.catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
    (guard,) = world.present()
    other = world.open()
    other.load_table((world.db, "t")).append(ids(2))
    world.catalog.close()
    other.close()
    assert [entry.request_id for entry in world.present()] == [guard.request_id]
    _, granted = exclusive(world.plain, world.db)
    assert not granted


@pytest.mark.parametrize("lost", ["swallow", "refuse"])
def test_a_guard_whose_reply_is_lost_is_there_once(world: World, lost: str) -> None:
    with Proxy(world.uri) as proxy:
        catalog = world.open(proxy.uri)
        catalog.capabilities()
        getattr(proxy, lost).append("lock")
        catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
        assert [entry.guard for entry in world.present()] == [True]


def test_a_new_client_asks_twice_for_the_guard_and_then_no_more(world: World) -> None:
    world.catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
    catalog = world.open(**{"hive.compare-and-set": "honoured"})
    table = catalog.load_table((world.db, "t"))
    for more in ({"show_locks": 1, "heartbeat": 1}, {}):
        before = Counter(catalog.metastore.calls)
        table.append(ids(2))
        asked = Counter(catalog.metastore.calls) - before - Counter({"getVersion": 1})
        assert asked == Counter(more) + Counter({"get_table_req": 2, "alter_table_with_environment_context": 1})


def test_a_guard_that_was_freed_is_set_again_before_the_next_swap(
    world: World, caplog: pytest.LogCaptureFixture, clock: Ahead
) -> None:
    catalog = world.open(**{"lock.heartbeat-timeout-ms": "1000", "lock.heartbeat-interval-ms": "300"})
    table = catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    guards = catalog.guards.keeper
    assert isinstance(guards, HmsGuards)
    guards.heartbeat.pause()
    (guard,) = world.present()
    world.plain.unlock(int(guard.generation or 0))
    clock.ahead_s += 60
    table.append(ids(2))
    (again,) = world.present()
    assert again.guard
    assert again.request_id != guard.request_id
    assert "guard" in caplog.text


def test_a_guard_that_was_freed_is_set_again_in_the_background(world: World, clock: Ahead) -> None:
    catalog = world.open()
    table = catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    guards = catalog.guards.keeper
    assert isinstance(guards, HmsGuards)
    guards.heartbeat.pause()
    clock.ahead_s += 60
    (guard,) = world.present()
    world.plain.unlock(int(guard.generation or 0))
    guards.beat()
    (again,) = world.present()
    assert again.guard
    # Handed back by another client meanwhile, it is not set again.
    world.plain.unlock(int(again.generation or 0))
    found = world.plain.get_table(world.db, "t")
    found.parameters[LOCK_IMPL] = "hms"
    world.plain.alter_table(world.db, "t", found, expected=None)
    clock.ahead_s += 60
    guards.beat()
    assert world.present() == []


@pytest.mark.parametrize("call", ["place", "extend", "remove", "beat"])
def test_nothing_waits_for_long_for_a_metastore_that_hangs(world: World, clock: Ahead, call: str) -> None:
    """Its client would wait for ten minutes. What nobody gave a deadline ends after two seconds, or a lease."""
    table = (world.db, "t")
    with Proxy(world.uri) as proxy, MetastoreClient.of(f"{proxy.uri}?timeout-ms=600000") as metastore:
        guards = HmsGuards(
            metastore,
            statement="",
            interval_ms=100,
            clock=clock,
            wanted=lambda _: True,
            left=lambda _: False,
        )
        guards.place(table, deadline=soon())
        guards.heartbeat.pause()
        if call == "place":
            guards.forget(table)
        else:
            clock.ahead_s += 60
        proxy.passing.clear()
        deadline = clock.now() + 1
        work = {"remove": lambda: guards.remove(table), "beat": guards.beat}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(work.get(call, lambda: guards.place(table, deadline=deadline)))
            ended = wait([asked], limits.PATIENCE).done
            proxy.passing.set()
            assert ended
            assert isinstance(asked.exception(), LockServiceUnavailable) == (call != "beat")
        guards.close()
        metastore.close()
    # What hung is carried out late: a guard may come that nobody takes back, and this metastore is other tests' too.
    until = time.monotonic() + 2
    while time.monotonic() < until:
        for entry in world.present():
            world.plain.unlock(int(entry.generation or 0))
        time.sleep(0.1)  # the subject: what comes late is removed, for as long as it may come


def test_the_first_swap_waits_for_a_writer_that_holds_the_lock_and_names_it(world: World) -> None:
    world.stock().create_table((world.db, "t"), SCHEMA)
    lock_id, granted = exclusive(world.plain, world.db)
    assert granted
    impatient = world.open(**{"lock.acquire-timeout-ms": "400"})
    table = impatient.load_table((world.db, "t"))
    with pytest.raises(CommitNotApplied, match="guard waited for a lock in the metastore.*stranger"):
        table.append(ids(1))
    assert [e for e in world.present() if e.guard] == []
    assert orphans(table) == set()
    (listed,) = impatient.show_locks(Resource((world.db, "t")))
    assert listed.request_id == f"hms-{lock_id}"
    assert [e.request_id for e in impatient.unlock(request_id=listed.request_id)] == [listed.request_id]
    table.append(ids(2))
    assert row_ids(table) == [2]


def test_a_guard_is_neither_reaped_nor_given_back_and_can_be_freed_by_hand(world: World) -> None:
    world.catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
    manager = HmsLockManager(world.plain.service)
    assert [e for e in manager.reap() if e.guard] == []
    (guard,) = world.present()
    assert [e.request_id for e in manager.unlock(request_id=guard.request_id)] == [guard.request_id]
    assert world.present() == []
    manager.close()


def test_an_adoption_writes_down_that_it_frees_the_guard_and_one_that_is_refused_leaves_it(
    world: World, tmp_path: Path
) -> None:
    world.catalog.create_table((world.db, "t"), SCHEMA)
    audit = tmp_path / "audit.jsonl"
    properties = {"lock-impl": "hms", "operation-locks": "hive", "lock.acquire-timeout-ms": "300"}
    properties |= {"commit-coord.audit-log": str(audit)}
    other, holder = (world.open(**properties) for _ in range(2))
    (guard,) = world.present()
    world.catalog.guards.close()  # its writers have been stopped
    table = Resource((world.db, "t"))
    request = holder.lock_request({table: LockMode.EXCLUSIVE})
    deadline = time.monotonic() + limits.PATIENCE
    with elsewhere(holder.locks.acquire, request, deadline=deadline), pytest.raises(LockTimeout):
        other.adopt_locks(table.path)
    assert [guard.request_id] == [entry.request_id for entry in world.present()]
    assert not audit.exists()
    assert "lease" == other.adopt_locks(table.path)
    assert "hms" == world.catalog.load_table(table.path).properties[LOCK_IMPL]
    (line,) = map(json.loads, audit.read_text().splitlines())
    assert ("unlock", guard.request_id, "freed", True) == tuple(
        line[key] for key in ("how", "request_id", "outcome", "guard")
    )


def test_a_guard_goes_with_its_table_and_follows_its_name(world: World) -> None:
    world.catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
    renamed = world.catalog.rename_table((world.db, "t"), (world.db, "u"))
    assert (world.present("t"), [e.guard for e in world.present("u")]) == ([], [True])
    renamed.append(ids(2))
    world.catalog.drop_table((world.db, "u"))
    assert world.present("u") == []


def test_a_guard_can_be_turned_off(world: World) -> None:
    catalog = world.open(**{"hive.guard": "false"})
    catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
    assert world.present() == []
    world.stock().load_table((world.db, "t")).append(ids(2))


def test_two_guards_that_were_set_at_one_time_become_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stock().create_table((world.db, "t"), SCHEMA)
    second = world.open()
    guards = world.catalog.guards.keeper
    assert isinstance(guards, HmsGuards)
    real, listings = guards._listed, []

    def listed(table: tuple[str, ...]) -> Any:
        found = real(table)
        listings.append(found)
        if len(listings) == 1:  # between our first look and our request another client is as far as we are
            second.load_table((world.db, "t")).append(ids(1))
        return found

    monkeypatch.setattr(guards, "_listed", listed)
    world.catalog.load_table((world.db, "t"))
    guards.place((world.db, "t"), deadline=world.catalog.coordinator.clock.now() + 10)
    assert [len(found) for found in listings] == [0, 2]
    (guard,) = world.present()
    assert guards._known[world.db, "t"].lock_id == guard.generation  # type: ignore[union-attr]


# Other versions.


def test_a_guard_does_its_work_on_every_version_that_compares_and_sets(
    versioned: HiveMetastore, tmp_path: Path
) -> None:
    """PyIceberg as it is can't talk to version 4, so the lock that it takes is asked for by hand."""
    world = World(versioned.uri, tmp_path)
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    honoured = world.catalog.capabilities().compare_and_set is CompareAndSet.HONOURED
    assert [e.guard for e in world.present()] == [True] * honoured
    assert table.properties.get(LOCK_ENABLED) == ("false" if honoured else None)
    lock_id, granted = exclusive(world.plain, world.db)
    assert granted != honoured
    assert world.plain.check_lock(lock_id) != honoured
    if honoured:
        table.append(ids(2))  # with the other one still in the queue
    world.plain.unlock(lock_id)
    reading = LockPart(type=LockType.SHARED_READ, db=world.db, table="t")
    _, granted = world.plain.lock([reading], user="hive", host="h", agent="a query")
    assert granted
    if honoured:
        table.append(ids(3))
        world.catalog.rename_table((world.db, "t"), (world.db, "u"))
        assert [e.guard for e in world.present("u")] == [True]
        world.catalog.drop_table((world.db, "u"))
        assert world.present("u") == []
    world.close()


# Where the condition is ignored.


def test_where_the_condition_is_ignored_there_is_no_guard_and_java_goes_on_locking(world: World) -> None:
    catalog = world.open(**{"hive.compare-and-set": "ignored"})
    table = catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    assert world.present() == []
    assert (table.properties[LOCK_IMPL], LOCK_ENABLED in table.properties) == ("lease", False)
    world.stock().load_table((world.db, "t")).append(ids(2))
    table.refresh().append(ids(3))
    assert row_ids(table) == [1, 2, 3]


# The declaration.


def test_a_writer_with_another_lock_manager_is_refused_and_leaves_nothing(world: World) -> None:
    table = world.open(**{"lock-impl": "hms"}).create_table((world.db, "t"), SCHEMA)
    assert (table.properties[LOCK_IMPL], LOCK_ENABLED in table.properties) == ("hms", False)
    before = world.plain.get_table(world.db, "t").parameters
    other = world.catalog.load_table((world.db, "t"))
    with pytest.raises(CommitNotApplied, match="another lock manager.*commit-coord.lock-impl.*lock-impl") as refused:
        other.append(ids(1))
    assert isinstance(refused.value.__cause__, ConfigError)
    assert refused.value.__cause__.details["accepted"] == "hms"
    for forbidden in (
        lambda: world.catalog.drop_table((world.db, "t")),
        lambda: world.catalog.rename_table((world.db, "t"), (world.db, "u")),
        lambda: world.catalog.purge_table((world.db, "t")),
    ):
        with pytest.raises(ConfigError, match="another lock manager"):
            forbidden()
    assert (orphans(other), world.present()) == (set(), [])
    assert world.plain.get_table(world.db, "t").parameters == before
    table.append(ids(2))
    assert row_ids(table) == [2]


def test_a_writer_with_the_metastores_locks_is_refused_by_the_guard_at_once(world: World) -> None:
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    other = world.open(**{"lock-impl": "hms"}).load_table((world.db, "t"))
    (guard,) = world.present()
    with pytest.raises(
        CommitLockFailed, match="the table is guarded.*lock in lease.*the lock-impl of its writers"
    ) as refused:
        other.append(ids(2))
    assert guard.request_id in str(refused.value)
    assert (orphans(other), world.present()) == (set(), [guard])


@pytest.mark.parametrize("impl", ["hms", "lease", "none", "memory"])
def test_a_table_that_others_made_is_declared_by_our_first_commit(world: World, impl: str) -> None:
    world.stock().create_table((world.db, "t"), SCHEMA).append(ids(1))
    catalog = world.open() if impl == "lease" else world.open(**{"lock-impl": impl})
    table = catalog.load_table((world.db, "t"))
    assert LOCK_IMPL not in table.properties
    table.append(ids(2))
    assert table.properties[LOCK_IMPL] == impl
    assert table.properties.get(LOCK_ENABLED) == (None if impl == "hms" else "false")
    assert [e.guard for e in world.present()] == ([True] if impl in ("lease", "memory") else [])


def test_a_table_is_handed_over_by_a_commit_of_its_own_writers(world: World) -> None:
    """To the metastore's lock, and back: what the other writers need to know is in the table."""
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    with table.transaction() as tx:
        tx.set_properties({LOCK_IMPL: "hms"})
    assert (LOCK_ENABLED in table.properties, world.present()) == (False, [])
    with pytest.raises(CommitNotApplied, match="another lock manager"):
        table.append(ids(2))
    assert world.present() == []
    hms = world.open(**{"lock-impl": "hms"}).load_table((world.db, "t"))
    hms.append(ids(3))
    world.stock().load_table((world.db, "t")).append(ids(4))
    with hms.refresh().transaction() as tx:
        tx.set_properties({LOCK_IMPL: "lease"})
    table.refresh().append(ids(5))
    assert (row_ids(table), table.properties[LOCK_ENABLED]) == ([1, 3, 4, 5], "false")
    assert [e.guard for e in world.present()] == [True]


def test_a_lock_manager_that_does_not_exist_can_not_be_declared(world: World) -> None:
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    with pytest.raises(CommitNotApplied, match="no such lock manager.*zebra"), table.transaction() as tx:
        tx.set_properties({LOCK_IMPL: "zebra"})
    with pytest.raises(ConfigError, match="no such lock manager"):
        world.catalog.create_table((world.db, "u"), SCHEMA, properties={LOCK_IMPL: "zebra"})
    assert not world.catalog.table_exists((world.db, "u"))


def test_a_transaction_that_creates_a_table_declares_it(world: World) -> None:
    with world.catalog.create_table_transaction((world.db, "t"), SCHEMA) as tx:
        tx.append(ids(1))
    assert world.catalog.load_table((world.db, "t")).properties[LOCK_IMPL] == "lease"
    assert [e.guard for e in world.present()] == [True]


def test_what_a_guard_says_of_itself_is_read_back() -> None:
    agent = hms_names.Agent(
        request_id=str(uuid.uuid4()), client="c", requested_ms=1, lease_ms=None, application="guard",
        statement="the writers lock in zookeeper", guard=True,
    )  # fmt: skip
    assert hms_names.Agent.parse(str(agent)) == agent
    assert len(str(agent)) <= 128


def guards(world: World) -> list[LockEntry]:
    return [entry for entry in world.present() if entry.guard]


def test_the_guard_of_a_table_that_another_client_dropped_goes_while_its_writers_live(world: World) -> None:
    """Java's CREATE takes the metastore's lock under that name, and would wait for as long as they extend the guard."""
    catalog = world.open(**{"lock-impl": "lease", "lock.uri": world.lease["lock.uri"], **QUICK})
    table = catalog.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    assert guards(world)
    world.stock().drop_table((world.db, "t"))
    until(lambda: not guards(world), "the guard is removed")


def test_the_guard_of_a_name_that_others_use_for_another_table_goes(world: World) -> None:
    catalog = world.open(**{"lock-impl": "lease", "lock.uri": world.lease["lock.uri"], **QUICK})
    catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
    world.stock().drop_table((world.db, "t"))
    theirs = world.stock().create_table((world.db, "t"), SCHEMA)
    until(lambda: not guards(world), "the guard is removed")
    theirs.append(ids(2))


def is_dropped(stock: HiveCatalog, db: str) -> None:
    stock.drop_table((db, "t"))


def is_renamed(stock: HiveCatalog, db: str) -> None:
    stock.rename_table((db, "t"), (db, "u"))


def is_renamed_and_back_and_again(stock: HiveCatalog, db: str) -> None:
    stock.rename_table((db, "t"), (db, "v"))
    stock.rename_table((db, "v"), (db, "t"))
    stock.rename_table((db, "t"), (db, "u"))


def is_created(stock: HiveCatalog, db: str) -> Table:
    return stock.create_table((db, "t"), SCHEMA)


def is_renamed_to_it(stock: HiveCatalog, db: str) -> Table:
    stock.create_table((db, "w"), SCHEMA)
    return stock.rename_table((db, "w"), (db, "t"))


@pytest.mark.parametrize("writes", [False, True], ids=["its writers are idle", "its writers try to write"])
@pytest.mark.parametrize(
    "leaves, comes",
    [
        (is_dropped, is_renamed_to_it),
        (is_renamed, is_created),
        (is_renamed, is_renamed_to_it),
        (is_renamed_and_back_and_again, is_created),
    ],
)
def test_a_name_that_another_client_took_from_a_guarded_table_is_free_for_the_next_table(
    world: World,
    leaves: Callable[[HiveCatalog, str], None],
    comes: Callable[[HiveCatalog, str], Table],
    writes: bool,
) -> None:
    """Java's CREATE takes the metastore's lock under the name, whose guard the writers of the old table extend.

    They may try to write to the table under the old name, over and over; that does not bring the guard back.
    """
    writer = world.open(**{"lock-impl": "lease", "lock.uri": world.lease["lock.uri"], **QUICK})
    table = writer.create_table((world.db, "t"), SCHEMA)
    table.append(ids(1))
    assert guards(world)

    def try_to_write() -> None:
        if writes:
            with pytest.raises((NoSuchTableError, CommitFailedException)):
                table.append(ids(7))

    def is_free() -> bool:
        try_to_write()
        lock_id, granted = exclusive(world.plain, world.db)
        world.plain.unlock(lock_id)
        return granted

    stock = world.stock()
    leaves(stock, world.db)
    until(is_free, "the lock of a CREATE")
    theirs = comes(stock, world.db)
    try_to_write()
    theirs.append(ids(2))
    try_to_write()
    assert is_free()
    assert [2] == row_ids(stock.load_table((world.db, "t")))
    if world.catalog.table_exists((world.db, "u")):
        writer.load_table((world.db, "u")).append(ids(3))
        assert [1, 3] == row_ids(stock.load_table((world.db, "u")))
        assert [True] == [entry.guard for entry in world.present("u")]


@pytest.mark.parametrize("comes", [is_created, is_renamed_to_it])
@pytest.mark.parametrize("leaves", [is_dropped, is_renamed])
def test_a_writer_guards_the_next_table_of_a_name_that_it_knows_as_guarded(
    world: World,
    leaves: Callable[[HiveCatalog, str], None],
    comes: Callable[[HiveCatalog, str], Table],
) -> None:
    """1. It confirms the guard.   2. Another client drops the table, with its guard.   3. A table gets the name."""
    writer, another = world.open(), world.open()
    writer.create_table((world.db, "t"), SCHEMA).append(ids(1))
    leaves(another, world.db)
    assert not guards(world)
    comes(world.stock(), world.db)
    writer.load_table((world.db, "t")).append(ids(2))
    assert guards(world)


def test_the_metastores_locks_are_those_of_the_tables_metastore(world: World) -> None:
    """In another metastore, no writer that takes only the metastore's lock sees them."""
    with pytest.raises(ConfigError, match="another metastore"):
        world.open(**{"lock-impl": "hms", "lock.uri": "thrift://127.0.0.1:1"})
    for same in (world.uri, f"thrift://127.0.0.1:1,{world.uri}"):
        world.open(**{"lock-impl": "hms", "lock.uri": same}).load_namespace_properties(world.db)


def test_the_guard_of_a_table_that_is_used_stays(world: World) -> None:
    catalog = world.open(**{"lock-impl": "lease", "lock.uri": world.lease["lock.uri"], **QUICK})
    catalog.create_table((world.db, "t"), SCHEMA).append(ids(1))
    (guard,) = guards(world)
    before = _heard(world)
    until(lambda: _heard(world) > before, "it is extended")
    assert [guard.request_id] == [one.request_id for one in guards(world)]


def _heard(world: World) -> int:
    return max(one.heartbeat_ms for one in world.plain.show_locks() if one.part.db == world.db)


@pytest.mark.parametrize("how", ["reap", "unlock"])
def test_a_guard_that_nobody_extends_is_freed_when_its_table_is_gone_and_not_before(world: World, how: str) -> None:
    def free() -> list[LockEntry]:
        if how == "reap":
            assert [e.guard for e in world.catalog.reap(dry_run=True) if e.resource == name] == [True] * gone
            return [entry for entry in world.catalog.reap() if entry.resource == name]
        return list(world.catalog.unlock(resource=Resource((world.db.upper(), "T"))))

    name, gone = Resource((world.db, "t")), False
    writer = world.open()
    writer.create_table((world.db, "t"), SCHEMA).append(ids(1))
    writer.close()
    assert not free()
    assert guards(world)
    world.stock().drop_table((world.db, "t"))
    gone = True
    assert [True] == [entry.guard for entry in free()]
    assert not guards(world)


@pytest.mark.parametrize("options", [[], ["--guard"]], ids=["without --guard", "--guard"])
def test_the_guard_of_a_dropped_table_is_freed_by_the_name_of_the_table(world: World, options: list[str]) -> None:
    writer = world.open()
    writer.create_table((world.db, "t"), SCHEMA).append(ids(1))
    writer.close()
    world.stock().drop_table((world.db, "t"))
    (guard,) = guards(world)
    place = ["-c", "t", "--uri", f"coord+{world.uri}"]
    for key, value in world.lease.items():
        place += ["-p", f"{key}={value}"]
    ended = CliRunner().invoke(app, ["unlock", f"{world.db.upper()}.T", *options, "--yes", "--json", *place])
    assert 0 == ended.exit_code, ended.output
    assert [guard.request_id] == [entry["request_id"] for entry in json.loads(ended.stdout)["freed"]]
    assert not guards(world)


class HandClock(SystemClock):
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class HeartbeatRecorder:
    """A metastore that notes what is extended, and when."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self.extended: list[tuple[int, float]] = []

    def within(self, _: float) -> Any:
        return nullcontext()

    def heartbeat(self, lock_id: int) -> None:
        self.extended.append((lock_id, self._clock.now()))


@pytest.mark.parametrize("outage", ["fails", "takes long"])
def test_an_outage_of_the_file_store_lets_no_guard_run_out(outage: str) -> None:
    """Whether a table wants its guard may have to be read there, after all guards have been extended."""
    clock = HandClock()
    metastore = HeartbeatRecorder(clock)
    looked: list[str] = []

    def left(table: tuple[str, ...]) -> bool:
        looked.append(table[1])
        if outage == "fails":
            raise FileNotFoundError("the metadata of the table")
        clock.seconds += 100
        return False

    guards = HmsGuards(
        cast(MetastoreClient, metastore), statement="", interval_ms=1_000, clock=clock, wanted=lambda _: True, left=left
    )
    tables = [("db", name) for name in "abc"]
    guards._known = {table: _Guard(number, -1e9) for number, table in enumerate(tables)}
    for _ in range(3):
        metastore.extended.clear()
        clock.seconds += 2
        begun = clock.now()
        assert guards.beat() == 1.0
        assert metastore.extended == [(number, begun) for number in range(3)]
    assert set(looked) == {"a", "b", "c"}, "none of them waits for ever to be looked at"


def test_a_table_that_can_not_be_read_keeps_its_guard_and_stops_no_other_from_being_freed(world: World) -> None:
    """Its metadata file is gone, and what the metastore shows of it was reverted by a writer that knows of no guard."""
    catalog = world.open(**{"lock-impl": "lease", "lock.uri": world.lease["lock.uri"], **QUICK})
    broken = catalog.create_table((world.db, "t"), SCHEMA)
    broken.append(ids(1))
    catalog.create_table((world.db, "gone"), SCHEMA).append(ids(1))
    catalog.close()
    world.stock().drop_table((world.db, "gone"))
    shown = world.plain.get_table(world.db, "t")
    del shown.parameters[LOCK_IMPL]
    world.plain.alter_table(world.db, "t", shown, expected=None)
    Path(local(broken.metadata_location)).unlink()
    assert [] == list(world.catalog.unlock(resource=Resource((world.db, "t"))))
    assert ["gone"] == [one.resource.path[1] for one in world.catalog.reap() if one.resource.path[0] == world.db]
    assert guards(world)
