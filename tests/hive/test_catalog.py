"""The coordinated catalog on a metastore: what is kept there, what a commit costs, and lost replies."""

from __future__ import annotations

import json
import logging
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType

import commit_coord
from commit_coord import CommitNotApplied, ConfigError
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.clock import SystemClock
from commit_coord.errors import CommitLockFailed, CommitStateUnknown
from commit_coord.events import CommitOverwritten
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import InvalidOperation, MetaError, MetastoreAccess, MetastoreServerFailed
from commit_coord.local import HiveMetastore
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.model import LockEntry, LockMode, Owner, Resource
from commit_coord.process import SystemHost, has_dead_owner
from commit_coord.testing.contract import until
from commit_coord.testing.fleet import holds_within
from tests import limits
from tests.catalog.kit import SCHEMA, ids, orphans, row_ids
from tests.hive.proxy import Proxy

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))


@pytest.fixture
def db() -> str:
    return f"db{uuid.uuid4().hex}"


@pytest.fixture
def proxy(hms: HiveMetastore) -> Iterator[Proxy]:
    with Proxy(hms.uri) as proxy:
        yield proxy


def opened(uri: str, **properties: str) -> CoordinatedHiveCatalog:
    catalog = commit_coord.load_catalog("t", uri=f"coord+{uri}", **{"hive.client-timeout-ms": "120000", **properties})
    assert isinstance(catalog, CoordinatedHiveCatalog)
    return catalog


@pytest.fixture
def catalog(hms: HiveMetastore, db: str) -> Iterator[CoordinatedHiveCatalog]:
    catalog = opened(hms.uri)
    catalog.create_namespace(db)
    yield catalog
    assert list(catalog.locks.locks(Resource((db,)))) == []
    catalog.close()


@pytest.fixture
def through(hms: HiveMetastore, proxy: Proxy, db: str) -> Iterator[CoordinatedHiveCatalog]:
    """A catalog whose answers can get lost; its locks can't."""
    catalog = opened(proxy.uri, **{"lock.uri": f"{hms.uri},{proxy.uri}"})
    catalog.create_namespace(db)
    yield catalog
    assert list(catalog.locks.locks(Resource((db,)))) == []
    catalog.close()


def calls(catalog: CoordinatedHiveCatalog) -> dict[str, int]:
    """Return the round trips so far, of catalog and locks together."""
    counted = Counter(catalog.metastore.calls)
    if isinstance(catalog.locks, HmsLockManager):
        counted += catalog.locks.metastore.calls
    return dict(counted)


def parameters(catalog: CoordinatedHiveCatalog, db: str, table: str = "t") -> dict[str, str]:
    return dict(catalog.metastore.get_table(db, table).parameters)


# What a commit costs.


@pytest.mark.parametrize(
    "impl, expected",
    [
        ("hms", {"lock": 1, "get_table_req": 2, "alter_table_with_environment_context": 1, "unlock": 1}),
        ("none", {"get_table_req": 2, "alter_table_with_environment_context": 1}),
    ],
)
def test_a_commit_makes_so_many_round_trips(hms: HiveMetastore, db: str, impl: str, expected: dict[str, int]) -> None:
    catalog = opened(hms.uri, **{"lock-impl": impl})
    catalog.create_namespace(db)
    table = catalog.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    before = calls(catalog)
    table.append(ids(2))
    assert {
        name: count - before.get(name, 0) for name, count in calls(catalog).items() if count > before.get(name, 0)
    } == expected
    catalog.close()


def test_a_reader_makes_one_round_trip_and_tries_nothing_out(
    hms: HiveMetastore, catalog: CoordinatedHiveCatalog, db: str
) -> None:
    catalog.create_table((db, "t"), SCHEMA)
    reader = opened(hms.uri)
    reader.load_table((db, "t"))
    assert calls(reader) == {"get_table_req": 1}
    reader.close()


# What is kept in the metastore.


def test_parameters_are_kept_as_java_keeps_them(catalog: CoordinatedHiveCatalog, db: str) -> None:
    table = catalog.create_table(
        (db, "t"),
        SCHEMA,
        partition_spec=BY_S,
        sort_order=SortOrder(SortField(1)),
        properties={"a": "1", "gone": "x", "gc.enabled": "false"},
    )
    first = table.metadata_location
    table.append(ids(1, 2))
    with table.transaction() as tx:
        tx.set_properties(a="2")
        tx.remove_properties("gone")
    found = parameters(catalog, db)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    expected = {
        "EXTERNAL": "TRUE",
        "table_type": "ICEBERG",
        "metadata_location": table.metadata_location,
        "previous_metadata_location": table.metadata.metadata_log[-1].metadata_file,
        "uuid": str(table.metadata.table_uuid),
        "a": "2",
        "external.table.purge": "false",
        "numFiles": "2",
        "numRows": "2",
        "snapshot-count": "1",
        "current-snapshot-id": str(snapshot.snapshot_id),
        "current-snapshot-timestamp-ms": str(snapshot.timestamp_ms),
    }
    assert {key: found.get(key) for key in expected} == expected
    assert "gone" not in found
    assert table.metadata.metadata_log[0].metadata_file == first
    assert json.loads(found["current-schema"]) == json.loads(table.schema().model_dump_json())
    assert json.loads(found["default-partition-spec"])["fields"][0]["name"] == "s"
    assert json.loads(found["default-sort-order"])["fields"][0]["source-id"] == 1
    assert json.loads(found["current-snapshot-summary"])["operation"] == "append"


def test_what_is_too_long_is_left_out(hms: HiveMetastore, db: str, caplog: pytest.LogCaptureFixture) -> None:
    catalog = opened(hms.uri, **{"iceberg.hive.table-property-max-size": "300"})
    catalog.create_namespace(db)
    table = catalog.create_table((db, "t"), SCHEMA)
    assert "current-schema" in parameters(catalog, db)
    with table.update_schema() as change:
        for number in range(9):
            change.add_column(f"column{number}", IntegerType())
    assert "current-schema" not in parameters(catalog, db)
    assert "current-schema is left out" in caplog.text
    hidden = opened(hms.uri, **{"hive.table-property-max-size": "0"})
    hidden.load_table((db, "t")).append(hidden.load_table((db, "t")).scan().to_arrow())
    assert "current-snapshot-id" not in parameters(catalog, db)
    hidden.close()
    catalog.close()


def test_columns_are_those_of_the_schema_and_what_others_set_stays(catalog: CoordinatedHiveCatalog, db: str) -> None:
    table = catalog.create_table((db, "t"), SCHEMA)
    other = catalog.metastore.get_table(db, "t")
    other.parameters["comment"] = "by hand"
    other.sd.inputFormat = "org.apache.iceberg.mr.hive.HiveIcebergInputFormat"
    catalog.metastore.alter_table(db, "t", other, expected=None)
    with table.update_schema() as change:
        change.delete_column("s").add_column("n", IntegerType(), doc="a number")
    found = catalog.metastore.get_table(db, "t")
    assert [(c.name, c.type, c.comment) for c in found.sd.cols] == [("id", "bigint", None), ("n", "int", "a number")]
    assert found.sd.inputFormat == "org.apache.iceberg.mr.hive.HiveIcebergInputFormat"
    assert found.parameters["comment"] == "by hand"
    assert found.sd.location == table.location()


def test_a_parameter_that_is_set_while_a_commit_is_prepared_stays(
    catalog: CoordinatedHiveCatalog, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alter replaces all parameters, so they are read again right before it."""
    table, swap = catalog.create_table((db, "t"), SCHEMA), catalog.swap

    def after_another_client(*of: Any) -> Any:
        with MetastoreClient.of(catalog.metastore.service) as another:
            found = another.get_table(db, "t")
            found.parameters["comment"] = "by hand"
            another.alter_table(db, "t", found, expected=None)
            another.close()
        return swap(*of)

    monkeypatch.setattr(catalog, "swap", after_another_client)
    table.append(ids(1))
    assert parameters(catalog, db)["comment"] == "by hand"
    assert row_ids(catalog.load_table((db, "t"))) == [1]


def test_a_table_for_hive_itself_has_hives_formats(catalog: CoordinatedHiveCatalog, db: str) -> None:
    table = catalog.create_table((db, "t"), SCHEMA, properties={"engine.hive.enabled": "true"})
    found = catalog.metastore.get_table(db, "t")
    assert found.sd.serdeInfo.serializationLib.endswith("HiveIcebergSerDe")
    assert found.parameters["storage_handler"].endswith("HiveIcebergStorageHandler")
    with table.transaction() as tx:
        tx.set_properties({"engine.hive.enabled": "false"})
    found = catalog.metastore.get_table(db, "t")
    assert found.sd.serdeInfo.serializationLib.endswith("LazySimpleSerDe")
    assert "storage_handler" not in found.parameters


def test_names_are_folded(catalog: CoordinatedHiveCatalog, db: str) -> None:
    table = catalog.create_table((db.upper(), "MixedCase"), SCHEMA)
    assert table.name() == (db, "mixedcase")
    with catalog.lock_operation({Resource((db, "mixedcase")): LockMode.SHARED}):
        assert [str(e.resource) for e in catalog.locks.locks(Resource((db,)))] == [f"{db}/mixedcase"]
    catalog.load_table(f"{db}.MIXEDCASE").append(ids(1))
    assert row_ids(catalog.load_table((db, "mixedcase"))) == [1]
    catalog.rename_table(f"{db}.MixedCase", f"{db}.Other")
    assert catalog.table_exists(f"{db}.OTHER")
    catalog.drop_table(f"{db}.OTHER")


# What is no Iceberg table, or not there.


def test_a_table_that_is_not_icebergs_is_left_alone(catalog: CoordinatedHiveCatalog, db: str) -> None:
    made = catalog.create_table((db, "t"), SCHEMA)
    plain = catalog.metastore.get_table(db, "t")
    plain.tableName, plain.parameters = "plain", {"EXTERNAL": "TRUE"}
    catalog.metastore.create_table(plain)
    for call in (
        lambda: catalog.load_table((db, "plain")),
        lambda: catalog.drop_table((db, "plain")),
        lambda: catalog.purge_table((db, "plain")),
        lambda: catalog.rename_table((db, "plain"), (db, "x")),
        lambda: catalog.create_table((db, "plain"), SCHEMA),
        lambda: catalog.rename_table((db, "t"), (db, "plain")),
        lambda: catalog.register_table((db, "plain"), made.metadata_location),
    ):
        with pytest.raises(NoSuchIcebergTableError, match="plain is not an Iceberg table"):
            call()
    assert not catalog.table_exists((db, "plain"))
    assert catalog.list_tables(db) == [(db, "t")]
    catalog.metastore.drop_table(db, "plain", False)


def test_a_namespace_that_is_not_there_is_an_error_that_says_so(
    catalog: CoordinatedHiveCatalog, db: str, hms: HiveMetastore
) -> None:
    table = catalog.create_table((db, "t"), SCHEMA)
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table(("nowhere", "t"), SCHEMA, location=f"{hms.warehouse}/x")
    with pytest.raises(NoSuchNamespaceError):
        catalog.rename_table((db, "t"), ("nowhere", "t"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.register_table(("nowhere", "t"), table.metadata_location)


def test_a_change_that_the_metastore_forbids_says_which_setting_allows_it(
    tmp_path_factory: pytest.TempPathFactory, db: str
) -> None:
    strict = {"hive.metastore.disallow.incompatible.col.type.changes": "true"}
    with HiveMetastore(tmp_path_factory.mktemp("hms") / "s", settings=strict) as own:
        catalog = opened(own.uri)
        catalog.create_namespace(db)
        table = catalog.create_table((db, "t"), SCHEMA)
        with (
            pytest.raises(CommitNotApplied, match="set hive.metastore.disallow.incompatible.col.type.changes=false"),
            table.update_schema() as change,
        ):
            change.move_first("s")
        assert [f.name for f in catalog.load_table((db, "t")).schema().fields] == ["id", "s"]
        assert orphans(catalog.load_table((db, "t"))) == set()
        catalog.close()


def test_a_property_that_is_too_long_for_the_metastore_is_a_clear_error(
    catalog: CoordinatedHiveCatalog, db: str
) -> None:
    table = catalog.create_table((db, "t"), SCHEMA)
    with pytest.raises(CommitNotApplied, match="limits property names to 256 characters"), table.transaction() as tx:
        tx.set_properties({"k" * 300: "v"})
    table.refresh().append(ids(1))
    assert orphans(table) == set()


class _WithoutLockTables(HiveMetastore):
    """Makes the tables of tables and no others; asks its database once, where it would try for 20 seconds."""

    def _make_schema(self) -> None:
        self._make_folder()

    def _all_settings(self) -> dict[str, str]:
        return {**super()._all_settings(), "hive.hmshandler.retry.attempts": "1"}


@pytest.fixture(scope="module")
def lockless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveMetastore]:
    with _WithoutLockTables(tmp_path_factory.mktemp("hms") / "s") as metastore:
        yield metastore


def test_a_metastore_without_lock_tables_is_a_clear_error(lockless: HiveMetastore, db: str) -> None:
    """For our own locks, and for the guard, which can be turned off: who needs those locks can't write there anyway."""
    hms = opened(lockless.uri)
    hms.create_namespace(db)
    with pytest.raises(CommitLockFailed, match="nothing was changed.*no lock tables.*create them with its schema tool"):
        hms.create_table((db, "t"), SCHEMA)
    guarded = opened(lockless.uri, **{"lock-impl": "memory"})
    table = guarded.create_table((db, "t"), SCHEMA)
    with pytest.raises(CommitNotApplied, match="no lock tables.*or set hive.guard=false"):
        table.append(ids(1))
    assert orphans(table) == set()
    free = opened(lockless.uri, **{"lock-impl": "memory", "hive.guard": "false"})
    free.load_table((db, "t")).append(ids(2))
    assert row_ids(free.load_table((db, "t"))) == [2]
    for catalog in (hms, guarded, free):
        catalog.close()


def test_a_value_that_is_too_long_for_the_metastore_is_a_clear_error(lockless: HiveMetastore, db: str) -> None:
    """2.3 on Derby takes 32672 characters, and says of a longer one only which statement failed."""
    catalog = opened(lockless.uri, **{"hive.table-property-max-size": "100000", "lock-impl": "none"})
    catalog.create_namespace(db)
    table = catalog.create_table((db, "t"), SCHEMA)
    fits = "could not store the property 'big' of 32673 characters: 4000 fit everywhere.*make it shorter"
    with pytest.raises(CommitNotApplied, match=fits), table.transaction() as tx:
        tx.set_properties({"big": "v" * 32673})
    with pytest.raises(InvalidOperation, match=fits):
        catalog.create_table((db, "u"), SCHEMA, properties={"big": "v" * 32673})
    assert not catalog.table_exists((db, "u"))
    wide = "could not store the property 'current-schema'.*set hive.table-property-max-size"
    with pytest.raises(CommitNotApplied, match=wide), table.update_schema() as change:
        for number in range(600):
            change.add_column(f"column_with_a_long_name_{number}", IntegerType())
    table.refresh().append(ids(1))
    with table.transaction() as tx:
        tx.set_properties({"big": "v" * 32672})
    assert orphans(table) == set()
    catalog.close()


def test_a_folder_that_the_metastore_can_not_reach_is_a_clear_error(
    catalog: CoordinatedHiveCatalog, db: str, tmp_path: Path
) -> None:
    """Its clients can: that is how a metastore in a container without the warehouse's volume looks to them."""
    (tmp_path / "file").write_text("in the way")
    properties = {"write.metadata.path": f"file://{tmp_path}/metadata"}
    with pytest.raises(InvalidOperation, match="the metastore can't reach the table's folder.*same storage"):
        catalog.create_table((db, "t"), SCHEMA, location=f"file://{tmp_path}/file/t", properties=properties)
    assert not catalog.table_exists((db, "t"))
    assert list((tmp_path / "metadata").iterdir()) == []


# Lost replies.


@pytest.mark.parametrize("lost", ["swallow", "refuse"])
def test_a_swap_whose_answer_is_lost_lands_once(
    through: CoordinatedHiveCatalog, proxy: Proxy, db: str, lost: str
) -> None:
    table = through.create_table((db, "t"), SCHEMA)
    through.capabilities()
    getattr(proxy, lost).append("alter_table_with_environment_context")
    table.append(ids(1))
    table.append(ids(2))
    assert row_ids(through.load_table((db, "t"))) == [1, 2]
    assert len(table.refresh().snapshots()) == 2
    assert orphans(table) == set()


@pytest.mark.parametrize("lost", ["swallow", "refuse"])
def test_a_creation_whose_answer_is_lost_happens_once(
    through: CoordinatedHiveCatalog, proxy: Proxy, db: str, lost: str
) -> None:
    through.capabilities()
    getattr(proxy, lost).append("create_table")
    table = through.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    getattr(proxy, lost).append("create_table")
    with through.create_table_transaction((db, "u"), SCHEMA) as tx:
        tx.append(ids(2))
    assert (row_ids(through.load_table((db, "t"))), row_ids(through.load_table((db, "u")))) == ([1], [2])
    with pytest.raises(TableAlreadyExistsError):
        through.create_table((db, "t"), SCHEMA)
    assert orphans(table) == set()


@pytest.mark.parametrize("lost", ["swallow", "refuse"])
def test_a_rename_whose_answer_is_lost_happens(
    through: CoordinatedHiveCatalog, proxy: Proxy, db: str, lost: str
) -> None:
    through.create_table((db, "t"), SCHEMA).append(ids(1))
    through.capabilities()
    getattr(proxy, lost).append("alter_table_with_environment_context")
    assert row_ids(through.rename_table((db, "t"), (db, "u"))) == [1]
    assert not through.table_exists((db, "t"))


def test_a_commit_without_any_answer_is_unknown_and_keeps_its_files(
    through: CoordinatedHiveCatalog, proxy: Proxy, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = through.create_table((db, "t"), SCHEMA)
    through.capabilities()
    monkeypatch.setattr(through.coordinator, "clock", _Hurried(through.coordinator.clock))
    proxy.swallow += ["alter_table_with_environment_context"]
    before = through.metastore.alter_table

    def alter_and_go(*arguments: Any, **more: Any) -> None:
        monkeypatch.setattr(through.metastore, "get_table", _unreachable)
        before(*arguments, **more)

    monkeypatch.setattr(through.metastore, "alter_table", alter_and_go)
    with pytest.raises(CommitStateUnknown, match="every file is kept"):
        table.append(ids(1))
    monkeypatch.undo()
    assert row_ids(through.load_table((db, "t"))) == [1]


def _unreachable(*_: object) -> Any:
    raise commit_coord.errors.MetastoreUnavailable("gone")


class _Hurried:
    """A clock that does not wait."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    def sleep(self, seconds: float) -> None:
        pass


# Together with writers that know nothing of us.


def test_ours_and_pyicebergs_own_lose_nothing(catalog: CoordinatedHiveCatalog, hms: HiveMetastore, db: str) -> None:
    """Acknowledged is present, on one table at one time."""
    catalog.create_table((db, "t"), SCHEMA)
    acknowledged: list[int] = []

    def ours(start: int) -> None:
        mine = opened(hms.uri)
        table = mine.load_table((db, "t"))
        for number in range(start, start + 10):
            table.append(ids(number))
            acknowledged.append(number)
        mine.close()

    def theirs(start: int) -> None:
        stock = HiveCatalog(
            "s",
            uri=hms.uri,
            **{"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.2", "lock-check-retries": "200"},
        )
        for number in range(start, start + 6):
            while True:
                try:
                    stock.load_table((db, "t")).append(ids(number))
                except CommitFailedException:
                    continue
                acknowledged.append(number)
                break

    writers = [
        threading.Thread(target=ours, args=(100,)),
        threading.Thread(target=ours, args=(200,)),
        threading.Thread(target=theirs, args=(300,)),
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(limits.PATIENCE)
    assert row_ids(catalog.load_table((db, "t"))) == sorted(acknowledged)
    assert len(acknowledged) == 26


def test_a_commit_waits_for_the_lock_that_pyiceberg_takes(
    catalog: CoordinatedHiveCatalog, hms: HiveMetastore, db: str
) -> None:
    """The same lock: while it is held by another program, ours waits, names it, and changes nothing."""
    table = catalog.create_table((db, "t"), SCHEMA)
    impatient = opened(hms.uri, **{"lock.acquire-timeout-ms": "300"})
    stock = HiveCatalog("s", uri=hms.uri)
    with stock._client as client:
        lock = client.lock(stock._create_lock_request(db, "t"))
        with pytest.raises(commit_coord.CommitLockFailed, match="deadline passed.*hms-"):
            impatient.load_table((db, "t")).append(ids(1))
        (entry,) = [e for e in impatient.locks.locks() if e.resource == Resource((db, "t"))]
        assert entry.request_id == f"hms-{lock.lockid}"
        assert [e.request_id for e in impatient.locks.unlock(request_id=entry.request_id)] == [entry.request_id]
    table.append(ids(2))
    impatient.close()


class AnHourAhead(SystemClock):
    """The clock of a machine on which every heartbeat of another one looks old."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 3_600_000


class FarHost(SystemHost):
    """A machine of whose processes nothing can be seen here."""

    def owner(self, statement: str = "", application: str = "") -> Owner:
        return replace(super().owner(statement, application), host="far", process="boot:1:7:1")


def test_a_live_waiter_of_another_machine_is_spared_whatever_the_clocks_say(
    catalog: CoordinatedHiveCatalog, hms: HiveMetastore, db: str
) -> None:
    far, operator = opened(hms.uri), opened(hms.uri)
    far.host = FarHost()
    cast(HmsLockManager, operator.locks).parts.table._clock = AnHourAhead()  # type: ignore[attr-defined]
    table = Resource((db, "t"))
    held, granted = catalog.lock_operation({table: LockMode.EXCLUSIVE}, statement="holds"), threading.Event()

    def wait() -> None:
        with far.lock_operation({table: LockMode.EXCLUSIVE}, statement="waits"):
            granted.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: len(operator.show_locks(table)) == 2, "a waiter")
    listed = operator.show_locks(table)
    assert [("holds", None), ("waits", None)] == sorted((e.owner.statement, e.expires_in_ms) for e in listed)
    assert not any(has_dead_owner(entry) for entry in listed)
    assert ["holds"] == [entry.owner.statement for entry in operator.unlock(resource=table)]
    waiter.join()
    assert granted.is_set()
    held.release()
    far.close()
    operator.close()


def follower(location: str) -> str:
    """Write a metadata file that changes nothing and follows the one at *location*."""
    path = Path(location.removeprefix("file:"))
    document = json.loads(path.read_text())
    document["metadata-log"].append({"metadata-file": location, "timestamp-ms": document["last-updated-ms"]})
    made = path.with_name(f"00009-{uuid.uuid4()}.metadata.json")
    made.write_text(json.dumps(document))
    return str(made)


@pytest.mark.parametrize("version", ["compares", "ignores"])
def test_a_swap_whose_lock_had_run_out_is_not_acknowledged_before_its_taker_is_done(
    catalog: CoordinatedHiveCatalog, hms: HiveMetastore, db: str, version: str
) -> None:
    """A writer that took the lock meanwhile, and does not compare, writes over it; then it is done once more.

    1. Ours is paused before its alter is sent.   2. Its lock runs out.
    3. A writer that only locks takes the lock, and reads.   4. Ours goes on: the pointer is where it was.
    5. The other one alters, without a condition.
    """
    if version == "ignores":
        catalog = opened(hms.uri, **{"lock-impl": "hms", "hive.compare-and-set": "ignored"})
    locks = catalog.locks
    assert isinstance(locks, HmsLockManager)
    table = catalog.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    stock, other = HiveCatalog("s", uri=hms.uri), MetastoreClient(hms.uri, MetastoreAccess())
    alter = catalog.metastore.alter_table
    foreign: list[threading.Thread] = []

    def paused(*arguments: Any, **more: Any) -> None:
        catalog.metastore.alter_table = alter  # type: ignore[method-assign]
        (ours,) = other.show_locks(db, "t")
        other.unlock(ours.lock_id)
        for ticket in locks.parts.queue.tickets.values():
            ticket.last_confirmed_at -= 3_600  # so long ago the metastore spoke last
        with stock._client as client:
            lock = client.lock(stock._create_lock_request(db, "t"))
        read = other.get_table(db, "t")
        alter(*arguments, **more)

        def write_over() -> None:
            holds_within(lambda: len(other.show_locks(db, "t")) >= 2, limits.PATIENCE)  # ours waits behind it
            read.parameters["metadata_location"] = follower(read.parameters["metadata_location"])
            other.alter_table(db, "t", read, expected=None)
            other.unlock(lock.lockid)

        foreign.append(threading.Thread(target=write_over))
        foreign[0].start()

    catalog.metastore.alter_table = paused  # type: ignore[method-assign]
    table.append(ids(2))
    foreign[0].join()
    assert row_ids(opened(hms.uri).load_table((db, "t"))) == [1, 2]
    assert other.show_locks(db, "t") == []
    other.close()


@pytest.mark.parametrize("answer", [None, MetaError("Unable to update"), MetastoreServerFailed("it broke")], ids=str)
@pytest.mark.parametrize("mode", ["probe", "ignored"])
def test_a_look_that_fails_after_the_alter_was_sent_proves_nothing(
    hms: HiveMetastore, db: str, mode: str, answer: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metastore carries the alter out, answers or fails, and then can't say where the pointer is."""
    catalog = opened(hms.uri, **{"lock-impl": "hms", "hive.compare-and-set": mode})
    catalog.create_namespace(db)
    table = catalog.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    alter, pointer, sent = catalog.metastore.alter_table, catalog.pointers.location, []

    def altered(*arguments: Any, **more: Any) -> None:
        alter(*arguments, **more)
        sent.append(arguments)
        if answer is not None and len(sent) == 1:
            raise answer

    def looked(name: tuple[str, ...]) -> str | None:
        if len(sent) == 1:
            sent.append(name)
            raise MetastoreServerFailed("it is busy")
        return pointer(name)

    monkeypatch.setattr(catalog.metastore, "alter_table", altered)
    monkeypatch.setattr(catalog.pointers, "location", looked)
    table.append(ids(2))
    assert row_ids(opened(hms.uri).load_table((db, "t"))) == [1, 2]
    catalog.close()


def test_a_commit_that_a_foreign_writer_overwrote_is_reported(
    catalog: CoordinatedHiveCatalog, db: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer that neither locks nor compares puts back what it had read before."""
    table = catalog.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    read = catalog.metastore.get_table(db, "t")
    table.append(ids(2))
    lost = table.metadata_location
    catalog.metastore.alter_table(db, "t", read, expected=None)
    seen: list[Any] = []
    catalog.events.subscribe(seen.append)
    catalog.load_table((db, "t")).append(ids(3))
    (found,) = [event for event in seen if isinstance(event, CommitOverwritten)]
    assert (found.table, found.location, found.found) == (f"{db}.t", lost, read.parameters["metadata_location"])
    assert found.lost == (lost,)
    assert "operation=append" in found.summary
    assert "were overwritten" in caplog.text
    catalog.load_table((db, "t")).append(ids(4))
    assert len([event for event in seen if isinstance(event, CommitOverwritten)]) == 1
    assert row_ids(catalog.load_table((db, "t"))) == [1, 3, 4]


def test_what_a_foreign_writer_overwrote_is_found_by_a_client_that_had_only_read_it(
    catalog: CoordinatedHiveCatalog, hms: HiveMetastore, db: str
) -> None:
    """Its writers are gone. Who and when come from the commit that took their place, not from those on top of it."""
    table = catalog.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    stock = HiveCatalog("s", uri=hms.uri)
    stale = stock.load_table((db, "t"))
    read = catalog.metastore.get_table(db, "t")
    lost = []
    for number in (2, 3):
        table.append(ids(number))
        lost.append(table.metadata_location)
    reader = opened(hms.uri)
    seen: list[Any] = []
    reader.events.subscribe(seen.append)
    loaded = reader.load_table((db, "t"))
    catalog.metastore.alter_table(db, "t", read, expected=None)
    stale.append(ids(4), snapshot_properties={"app-id": "application_7"})
    stale.append(ids(5))
    loaded.append(ids(6))
    (found,) = [event for event in seen if isinstance(event, CommitOverwritten)]
    assert found.lost == tuple(lost)
    assert found.found == stale.refresh().metadata.metadata_log[2].metadata_file
    assert "app-id=application_7" in found.summary
    assert row_ids(loaded) == [1, 4, 5, 6]
    reader.close()


def test_a_loss_is_found_by_loading_too_and_an_older_view_is_none(
    catalog: CoordinatedHiveCatalog, hms: HiveMetastore, db: str
) -> None:
    table = catalog.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    read = catalog.metastore.get_table(db, "t")
    table.append(ids(2))
    seen: list[Any] = []
    catalog.events.subscribe(seen.append)
    catalog.overwrites.loaded((db, "t"), read.parameters["metadata_location"])
    catalog.load_table((db, "t"))
    assert seen == []
    catalog.metastore.alter_table(db, "t", read, expected=None)
    HiveCatalog("s", uri=hms.uri).load_table((db, "t")).append(ids(3))
    catalog.load_table((db, "t"))
    catalog.load_table((db, "t"))
    assert [type(event) for event in seen] == [CommitOverwritten]


def test_where_the_log_is_short_only_what_is_certain_is_reported(catalog: CoordinatedHiveCatalog, db: str) -> None:
    table = catalog.create_table((db, "t"), SCHEMA, properties={"write.metadata.previous-versions-max": "1"})
    seen: list[Any] = []
    catalog.events.subscribe(seen.append)
    other = opened(catalog.metastore.addresses[0])
    for number in range(3):
        table.append(ids(number))
        for more in (10, 20, 30):
            other.load_table((db, "t")).append(ids(number + more))
    assert [event for event in seen if isinstance(event, CommitOverwritten)] == []
    read = catalog.metastore.get_table(db, "t")
    for number in (4, 5):
        table.append(ids(number))
    catalog.metastore.alter_table(db, "t", read, expected=None)
    table.append(ids(6))
    assert [type(event) for event in seen if isinstance(event, CommitOverwritten)] == [CommitOverwritten]
    other.close()


def test_commits_of_others_on_top_of_ours_are_no_loss(
    catalog: CoordinatedHiveCatalog, hms: HiveMetastore, db: str
) -> None:
    seen: list[Any] = []
    catalog.events.subscribe(seen.append)
    table = catalog.create_table((db, "t"), SCHEMA)
    table.append(ids(1))
    HiveCatalog("s", uri=hms.uri).load_table((db, "t")).append(ids(2))
    table.append(ids(3))
    assert [event for event in seen if isinstance(event, CommitOverwritten)] == []


# A server that ignores the condition.


@pytest.mark.parametrize("impl", ["hms", "none"])
def test_without_compare_and_set_the_common_lock_is_held(
    hms: HiveMetastore, db: str, impl: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said at the first commit, and several writers lose nothing."""
    caplog.set_level(logging.WARNING)
    catalog = opened(hms.uri, **{"hive.compare-and-set": "ignored", "lock-impl": impl})
    catalog.create_namespace(db)
    catalog.create_table((db, "t"), SCHEMA)
    sent: list[Any] = []

    def write(start: int) -> None:
        mine = opened(hms.uri, **{"hive.compare-and-set": "ignored", "lock-impl": impl})
        real = mine.metastore.alter_table

        def alter(*arguments: Any, expected: Any, server: Any) -> None:
            held = [e for e in mine.locks.locks() if impl == "hms"] or mine.common_lock.manager.locks()
            sent.append((expected, any(e.resource == Resource((db, "t")) for e in held)))
            real(*arguments, expected=expected, server=server)

        mine.metastore.alter_table = alter  # type: ignore[method-assign,assignment]
        for number in range(start, start + 4):
            mine.load_table((db, "t")).append(ids(number))
        mine.close()

    writers = [threading.Thread(target=write, args=(start,)) for start in (10, 20, 30)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(limits.PATIENCE)
    assert row_ids(catalog.load_table((db, "t"))) == [10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33]
    assert set(sent) == {(None, True)}
    assert "can't compare and set (ignored)" in caplog.text
    catalog.close()


def test_without_compare_and_set_an_interrupt_waits_for_the_answer_to_the_swap(
    hms: HiveMetastore, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the lock would be given back, and the change that is under way would land over another else's commit."""
    catalog = opened(hms.uri, **{"hive.compare-and-set": "ignored", "lock-impl": "hms"})
    catalog.create_namespace(db)
    table = catalog.create_table((db, "t"), SCHEMA)
    real, held = catalog.metastore.alter_table, list[LockEntry]()

    def alter(*arguments: Any, **how: Any) -> None:
        """Be interrupted between the sending and the server's work."""
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        until(interrupted.is_set, "the interrupt")
        held.extend(catalog.locks.locks(Resource((db, "t"))))
        real(*arguments, **how)

    interrupted = threading.Event()

    def interrupt(*_: Any) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        monkeypatch.setattr(catalog.metastore, "alter_table", alter)
        with pytest.raises(KeyboardInterrupt):
            table.append(ids(1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert [LockMode.EXCLUSIVE] == [entry.mode for entry in held]
    assert [] == list(catalog.locks.locks(Resource((db, "t"))))
    assert [1] == row_ids(catalog.load_table((db, "t")))
    catalog.close()


def test_a_lock_manager_that_does_not_fit_the_uri_is_refused(hms: HiveMetastore, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="names another service"):
        opened(hms.uri, **{"lock-impl": "lease"})
    catalog = opened(hms.uri, **{"lock-impl": "lease", "lock.uri": f"sqlite:///{tmp_path}/l.db"})
    assert catalog.locks.name == "lease"
    catalog.close()
    with pytest.raises(NoSuchTableError):
        opened(hms.uri).load_table("default.nothing")
