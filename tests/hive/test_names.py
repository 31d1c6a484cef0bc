"""Names on a Hive Metastore: which of them are one name, and which can't be locked there."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest
from hive_metastore.ttypes import LockComponent, LockRequest, MetaException, NoSuchObjectException, UnlockRequest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchViewError
from pyiceberg.table.update import SetPropertiesUpdate

import commit_coord
from commit_coord import LockRefused, LockTimeout
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.catalog.migration.sightings import watch
from commit_coord.catalog.names import NoSuchName
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.locks.hive_lease import LeaseObject
from commit_coord.model import LockMode, Resource
from commit_coord.sql import Session
from tests.catalog.kit import SCHEMA, ids
from tests.contract.test_zookeeper import connected, hive_lock

X, S = LockMode.EXCLUSIVE, LockMode.SHARED


class World:
    """A database of a metastore, and a catalog whose locks are leases and whose every call takes Hive's."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri, self.db = uri, f"db{uuid.uuid4().hex[:8]}"
        self.catalog = self.open(**{"lock-impl": "lease", "lock.uri": f"sqlite:///{folder}/locks.db"})
        self.catalog.create_namespace(self.db)

    def open(self, **properties: str) -> CoordinatedHiveCatalog:
        settings = {
            "operation-locks": "hive",
            "lock.database-parents": "true",
            "lock.acquire-timeout-ms": "200",
            "hive.guard": "false",
        }
        catalog = commit_coord.load_catalog("t", uri=f"coord+{self.uri}", **{**settings, **properties})
        assert isinstance(catalog, CoordinatedHiveCatalog)
        return catalog

    def close(self) -> None:
        for name in self.catalog.metastore.get_all_tables(self.db):
            self.catalog.metastore.drop_table(self.db, name, False)
        self.catalog.close()


@pytest.fixture
def world(hms: HiveMetastore, tmp_path: Path) -> Iterator[World]:
    world = World(hms.uri, tmp_path)
    yield world
    world.close()


def elsewhere(call: Callable[[], object]) -> None:
    """Call in another thread: this one would not wait for its own locks."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def test_a_partition_is_one_however_its_key_is_spelled_and_not_however_its_value_is(world: World) -> None:
    """Hive's clients make keys small, in ZooKeeper and in the metastore, and leave values as they are."""
    with world.catalog.lock_operation({Resource((world.db, "t", "Day=A")): X}) as lease:
        assert Resource((world.db, "t", "day=A")) in dict(lease.request.locks)
        with pytest.raises(LockTimeout):
            elsewhere(lambda: world.catalog.lock_operation({Resource((world.db, "t", "day=A")): X}))
        elsewhere(lambda: world.catalog.lock_operation({Resource((world.db, "t", "day=a")): X}).release())


AT_ONCE = {"lock.policy": "deny", "lock.num-retries": "0", "lock.acquire-timeout-ms": "60000"}
"""What is in the way refuses a request at once, however slow the machine is."""


def _respelled(text: str, dice: random.Random) -> str:
    """Return *text* with letters in another case; the same text at times."""
    return "".join(dice.choice((letter.lower(), letter.upper())) for letter in text)


@pytest.mark.parametrize("impl", ["lease", pytest.param("zookeeper", marks=pytest.mark.zookeeper), "hms"])
def test_partitions_are_one_with_every_lock_manager_if_nothing_but_the_case_of_their_keys_differs(
    world: World, impl: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dice, seen, properties = random.Random(impl), set(), {"lock-impl": impl, **AT_ONCE}
    if impl == "lease":
        properties["lock.uri"] = f"sqlite:///{tmp_path}/partitions.db"
    if impl == "zookeeper":
        properties["lock.uri"] = request.getfixturevalue("zookeeper").connect_string
    with closing(world.open(**properties)) as catalog:
        for _ in range(12):
            levels = [(key, dice.choice(("Aa", "us/De", "x=Y", "ä"))) for key in ("Day", "Hour")[dice.randrange(2) :]]
            others = [(key, dice.choice((value, _respelled(value, dice)))) for key, value in levels]
            one, other = (
                Resource((world.db, "t", *(f"{_respelled(key, dice)}={value}" for key, value in place)))
                for place in (levels, others)
            )
            same = levels == others
            seen.add(same)
            with catalog.lock_operation({one: X}):
                listed = {entry.resource for entry in catalog.show_locks(other) if entry.mode is X}
                assert listed == ({catalog.spelled(one)} if same else set()), (one, other)
                with pytest.raises(LockRefused) if same else nullcontext():
                    elsewhere(lambda other=other: catalog.lock_operation({other: X}).release())  # type: ignore[misc]
            assert not catalog.show_locks(Resource((world.db, "t")))
    assert {True, False} == seen


@pytest.mark.zookeeper
def test_a_partition_is_locked_in_zookeeper_where_hives_clients_look_for_it(
    world: World, zookeeper: ZooKeeperEnsemble
) -> None:
    """They make its keys small, leave its values as they are, and escape both; and their locks there keep us out."""
    namespace, path = f"hive-{uuid.uuid4().hex}", f"{world.db}/t/day=A%2Fb/hour=X"
    typed = Resource((world.db.upper(), "T", "Day=A/b", "HOUR=X"))
    properties = {"lock-impl": "zookeeper", "lock.uri": zookeeper.connect_string, "lock.zk.namespace": namespace}
    with (
        closing(world.open(**properties, **AT_ONCE)) as catalog,
        contextmanager(connected)(zookeeper.connect_string) as raw,
    ):
        with catalog.lock_operation({typed: X}):
            assert [world.db] == raw.get_children(f"/{namespace}")
            assert ["t"] == [name for name in raw.get_children(f"/{namespace}/{world.db}") if "LOCK" not in name]
            assert [True] == [name.startswith("LOCK-EXCLUSIVE-") for name in raw.get_children(f"/{namespace}/{path}")]
        theirs = hive_lock(raw, f"{namespace}/{path}", "SHARED")
        with pytest.raises(LockRefused):
            catalog.lock_operation({typed: X})
        catalog.lock_operation({Resource((world.db, "t", "day=A/b", "hour=x")): X}).release()
        raw.delete(theirs)
        catalog.lock_operation({typed: X}).release()


OTHER_SPELLINGS = {
    "create_namespace": lambda world, db: world.catalog.create_namespace(db),
    "drop_namespace": lambda world, db: world.catalog.drop_namespace(db),
    "lock_operation": lambda world, db: world.catalog.lock_operation({Resource((db, "T")): X}),
    "a lease": lambda world, db: world.catalog.leases.grab_lease([LeaseObject(db, "T")], 60),
    "create_table": lambda world, db: world.catalog.create_table((db, "T"), SCHEMA),
    "create_table_transaction": (
        lambda world, db: world.catalog.create_table_transaction((db, "T"), SCHEMA).commit_transaction()
    ),
    "CREATE TABLE": lambda world, db: Session(world.catalog).run(f"CREATE TABLE {db}.T (n int)"),
    "CREATE DATABASE": lambda world, db: Session(world.catalog).run(f"CREATE DATABASE {db}"),
    "DROP DATABASE": lambda world, db: Session(world.catalog).run(f"DROP DATABASE {db}"),
    "LOCK DATABASE": lambda world, db: Session(world.catalog).run(f"LOCK DATABASE {db} SHARED"),
}


@pytest.mark.parametrize("call", OTHER_SPELLINGS.values(), ids=OTHER_SPELLINGS)
def test_a_lock_on_a_name_keeps_out_every_other_spelling(call: Callable[[World, str], object], world: World) -> None:
    """The metastore folds names, so two spellings are one database or table, and have one lock."""
    with world.catalog.lock_operation({Resource((world.db,)): X}), pytest.raises(LockTimeout):
        elsewhere(lambda: call(world, world.db.upper()))
    with world.catalog.lock_operation({Resource((world.db.upper(),)): X}), pytest.raises(LockTimeout):
        elsewhere(lambda: call(world, world.db))
    assert (world.db,) in world.catalog.list_namespaces()


def test_leases_are_found_and_ended_under_any_spelling(world: World) -> None:
    upper = LeaseObject(world.db.upper(), "T")
    lease = world.catalog.leases.grab_lease([upper], 60)
    assert [(one.db_name, one.table_name) for one in world.catalog.leases.list_lease([upper])] == [(world.db, "t")]
    world.catalog.leases.extend_lease(lease, [upper])
    world.catalog.leases.drop_lease(lease, [upper])
    lease = world.catalog.leases.grab_lease([LeaseObject(world.db, "t")], 60)
    Session(world.catalog).run(f"DROP FORCE LEASE {world.db.upper()}.T")
    assert not world.catalog.leases.confirm_lease(lease)


def test_locks_are_listed_and_freed_under_any_spelling(world: World) -> None:
    upper = Resource((world.db.upper(), "T"))
    with world.catalog.lock_operation({upper: X}):
        assert [str(entry.resource) for entry in world.catalog.show_locks(upper) if entry.mode is X] == [
            f"{world.db}/t"
        ]
        assert [page for page in world.catalog.lock_pages(upper) if page]
        assert world.catalog.unlock(resource=upper)
    assert not world.catalog.show_locks(Resource((world.db,)))


def test_a_table_is_written_under_a_lock_on_another_spelling_of_it(world: World) -> None:
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    with world.catalog.lock_operation({Resource((world.db.upper(), "T")): X}):
        table.append(ids(1))
        Session(world.catalog).run(f"DELETE FROM {world.db.upper()}.T WHERE id = 1")
    assert table.refresh().scan().to_arrow().num_rows == 0


def test_a_writer_that_locks_a_name_as_typed_is_reported_with_its_spelling(world: World) -> None:
    """2.3.10 tells it from the table's own lock, so neither the latch nor the guard stops this writer."""
    table = world.catalog.create_table((world.db, "t"), SCHEMA)
    spelled = f"{world.db.upper()}.T"
    with HiveCatalog("s", uri=world.uri)._client as raw:
        component = LockComponent(type=3, level=2, dbname=world.db.upper(), tablename="T", operationType=6)
        lock = raw.lock(LockRequest(component=[component], user="u", hostname="h", agentInfo="somebody"))
        try:
            assert lock.state == 1
            seen = watch(world.catalog.metastore, lambda: (), SYSTEM_CLOCK, seconds=0, own="")
            (sighting,) = seen.at(f"{world.db}.t")
            table.append(ids(1))
        finally:
            raw.unlock(UnlockRequest(lockid=lock.lockid))
    assert sighting.spelled == spelled
    assert sighting.kind.holds_up
    assert f"1 lock on {spelled}" in str(sighting)


@pytest.mark.parametrize("database, table", [(" {}", "t"), ("{}\x01", "t"), ("{}", "t\t"), ("@hive#{}", "t")])
def test_another_name_that_the_metastore_takes_for_a_table_is_refused_before_anything_is_locked(
    world: World, database: str, table: str
) -> None:
    """It strips a name, and leaves the default catalog out: one table would have two latches."""
    catalog = world.catalog
    catalog.create_table((world.db, "t"), SCHEMA)
    other = (database.format(world.db), table)
    with catalog.coordinator.latch((world.db, "t"), statement="in the way"):
        held = [entry.request_id for entry in catalog.show_locks()]
        for call in (catalog.load_table, catalog.drop_table, catalog.purge_table, catalog.drop_view):
            with pytest.raises((NoSuchName, NoSuchViewError)):
                elsewhere(lambda call=call: call(other))  # type: ignore[misc]
        with pytest.raises(NoSuchName):
            elsewhere(lambda: catalog.rename_table((world.db, "t"), other))
        with pytest.raises(NoSuchName):
            elsewhere(lambda: catalog.create_table(other, SCHEMA))
        with pytest.raises(NoSuchName):
            elsewhere(lambda: catalog.commit_request(other, (), (SetPropertiesUpdate(updates={"a": "1"}),)))
        with pytest.raises(NoSuchName):
            elsewhere(lambda: catalog.lock_operation({Resource.table(other): X}))
        assert held == [entry.request_id for entry in catalog.show_locks()]
    if table == "t":
        for of_database in (catalog.list_tables, catalog.drop_namespace, catalog.load_namespace_properties):
            with pytest.raises(NoSuchNamespaceError):
                of_database(other[:1])


_ODD = [*map(chr, range(0x21)), *"@#.%_*|'\"\\`/", "@hive#", "hive@", "\x7f", "\x85", "\xa0", "\u2003", "\ufeff"]


def _spelled_otherwise(name: str, dice: random.Random) -> str:
    """Return *name* in another case, or with odd characters in front of it, behind it, or inside."""
    name = "".join(dice.choice((letter, letter.upper())) for letter in name)
    for _ in range(dice.randrange(3)):
        odd, place = dice.choice(_ODD), dice.choice((0, len(name), dice.randrange(len(name) + 1)))
        name = name[:place] + odd + name[place:]
    return name


@pytest.mark.parametrize("seed", range(4))
def test_what_a_metastore_takes_for_a_table_has_its_lock_or_is_refused(world: World, seed: int) -> None:
    """However a name is spelled: two spellings that find one table never have two latches."""
    catalog, dice, found = world.catalog, random.Random(seed), 0
    catalog.create_table((world.db, "t"), SCHEMA)
    with HiveCatalog("s", uri=world.uri)._client as raw:
        for _ in range(150):
            database, table = _spelled_otherwise(world.db, dice), _spelled_otherwise("t", dice)
            try:
                raw.get_table(database, table)
            except (NoSuchObjectException, MetaException):
                continue
            found += 1
            try:
                spelled = catalog.spelled(Resource.table((database, table)))
            except NoSuchName:
                continue
            assert spelled == Resource.table((world.db, "t")), (database, table)
    assert found > 20


def test_a_table_below_a_level_of_dots_has_no_namespace_rather_than_no_location(world: World) -> None:
    """As with PyIceberg, which asks the metastore for the namespace before it makes a location of the names."""
    for create in (world.catalog.create_table, world.catalog.create_table_transaction):
        with pytest.raises(NoSuchNamespaceError):
            create(("..", "t"), SCHEMA)
    with pytest.raises(ValueError, match="choose another with location="):
        world.catalog.create_table((world.db, ".."), SCHEMA)
