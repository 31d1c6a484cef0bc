"""What calls from Python lock, by the table of operations."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, UnknownTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestampType

import commit_coord
from commit_coord.errors import CommitConflict, InvalidArguments, LockRefused, LockTimeout
from commit_coord.events import Event, LockAcquired
from commit_coord.iceberg.partitions import partitions_of_rows
from commit_coord.model import LockMode, Resource
from commit_coord.sql import Session
from commit_coord.table.ports import TableCatalog, catalog_of
from tests import limits
from tests.catalog.kit import SCHEMA, Kit, coordinated, ids, kit, row_ids

Call = Callable[[Kit, Any], object]


@pytest.fixture(params=["off", "iceberg", "hive"])
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog with the one or other ``operation-locks``."""
    with kit("memory", **{"operation-locks": request.param, "lock.acquire-timeout-ms": "300"}) as made:
        yield made
        assert [] == made.held()


def _add_column(made: Kit, table: Any) -> None:
    with table.update_schema() as update:
        update.add_column("more", LongType())


def _add_field(made: Kit, table: Any) -> None:
    with table.update_spec() as update:
        update.add_field("s", IdentityTransform(), "s")


def _in_one_transaction(made: Kit, table: Any) -> None:
    with table.transaction() as transaction:
        transaction.append(ids(7))
        transaction.delete("id = 7")


def _tag(made: Kit, table: Any) -> None:
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()


def _roll_back(made: Kit, table: Any) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()


def _expire(made: Kit, table: Any) -> None:
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


def _create(made: Kit, table: Any) -> None:
    made.catalog.create_table((made.namespace, "new"), SCHEMA)


def _create_with_rows(made: Kit, table: Any) -> None:
    with made.catalog.create_table_transaction((made.namespace, "new"), SCHEMA) as transaction:
        transaction.append(ids(1))


# What is called, the first setting with which it takes locks, and which.
CALLS: dict[str, tuple[Call, str, str]] = {
    "append": (lambda made, table: table.append(ids(9)), "hive", "X db/t"),
    "overwrite": (lambda made, table: table.overwrite(ids(9), "id = 1"), "iceberg", "X db/t"),
    "delete": (lambda made, table: table.delete("id = 1"), "iceberg", "X db/t"),
    "upsert": (lambda made, table: table.upsert(ids(1, 9), join_cols=["id"]), "iceberg", "X db/t"),
    "append, then delete": (_in_one_transaction, "iceberg", "X db/t"),
    "properties": (
        lambda made, table: table.transaction().set_properties(a="b").commit_transaction(),
        "hive",
        "X db/t",
    ),
    "schema": (_add_column, "hive", "X db/t"),
    "partitions": (_add_field, "hive", "X db/t"),
    "tag": (_tag, "hive", "S db/t"),
    "roll back": (_roll_back, "hive", "X db/t"),
    "expire": (_expire, "hive", "S db/t"),
    "create table": (_create, "hive", "S db, X db/new"),
    "create table with rows": (_create_with_rows, "hive", "S db, X db/new"),
    "rename": (lambda made, table: made.catalog.rename_table(table.name(), ("db", "u")), "iceberg", "X db/t"),
    "drop": (lambda made, table: made.catalog.drop_table(table.name()), "iceberg", "X db/t"),
    "purge": (lambda made, table: made.catalog.purge_table(table.name()), "iceberg", "X db/t"),
    "create database": (lambda made, table: made.catalog.create_namespace("other"), "hive", "X other"),
    "drop database": (lambda made, table: made.catalog.drop_namespace("empty"), "hive", "X empty"),
}


@pytest.mark.parametrize("call, first, locks", CALLS.values(), ids=CALLS)
def test_a_call_takes_what_the_table_says(made: Kit, call: Call, first: str, locks: str) -> None:
    """Once, with the settings that the table names, and gives it back; with others it takes none."""
    made.catalog.create_namespace("empty")
    table = made.catalog.create_table((made.namespace, "t"), SCHEMA)
    for number in range(2):
        table.append(ids(number))
    taken: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, LockAcquired) and event.scope == "operation":
            taken.append(event.request)

    made.catalog.events.subscribe(note)
    call(made, table)
    settings = ["off", "iceberg", "hive"]
    takes = settings.index(made.properties["operation-locks"]) >= settings.index(first)
    assert ([locks] if takes else []) == taken


BY_DAY = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()), NestedField(3, "day", DateType()))
"""Partitioned by s, then by day."""

SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "s"), PartitionField(3, 1001, IdentityTransform(), "day")
)


def _at(*rows: tuple[int, str | None, int]) -> pa.Table:
    """Return rows of these ids, s and days of January."""
    written = [{"id": number, "s": s, "day": date(2026, 1, day)} for number, s, day in rows]
    return pa.Table.from_pylist(written, schema=BY_DAY.as_arrow())


# What is called on a table with partitions, the first setting with which it takes locks, and which.
PARTITIONED: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "append": (
        lambda table: table.append(_at((8, "a", 1), (9, "b", 2), (10, "b", 2))),
        "hive",
        "S db/t, S db/t/s=a, X db/t/s=a/day=2026-01-01, S db/t/s=b, X db/t/s=b/day=2026-01-02",
    ),
    "append without a partition value": (
        lambda table: table.append(_at((8, None, 1))),
        "hive",
        "S db/t, S db/t/s=null, X db/t/s=null/day=2026-01-01",
    ),
    "delete of a prefix": (lambda table: table.delete("s = 'a'"), "iceberg", "S db/t, X db/t/s=a"),
    "delete of two prefixes": (
        lambda table: table.delete("s = 'a' or s = 'b'"),
        "iceberg",
        "S db/t, X db/t/s=a, X db/t/s=b",
    ),
    "delete anywhere": (lambda table: table.delete("id = 1"), "iceberg", "X db/t"),
    "delete anywhere or in a prefix": (lambda table: table.delete("id = 1 or s = 'a'"), "iceberg", "X db/t"),
    "overwrite": (lambda table: table.overwrite(_at((9, "a", 3)), "s = 'a'"), "iceberg", "S db/t, X db/t/s=a"),
    "overwrite with rows outside of what they replace": (
        lambda table: table.overwrite(_at((9, "b", 3)), "s = 'a'"),
        "iceberg",
        "S db/t, X db/t/s=a, S db/t/s=b, X db/t/s=b/day=2026-01-03",
    ),
    "overwrite of all": (lambda table: table.overwrite(_at((9, "a", 3))), "iceberg", "X db/t"),
    "dynamic overwrite": (
        lambda table: table.dynamic_partition_overwrite(_at((9, "a", 1))),
        "iceberg",
        "S db/t, S db/t/s=a, X db/t/s=a/day=2026-01-01",
    ),
    "upsert": (lambda table: table.upsert(_at((1, "a", 1)), join_cols=["id"]), "iceberg", "X db/t"),
}


@pytest.mark.parametrize("call, first, locks", PARTITIONED.values(), ids=PARTITIONED)
def test_a_call_locks_the_partitions_that_it_touches(
    made: Kit, call: Callable[[Any], object], first: str, locks: str
) -> None:
    table = made.catalog.create_table((made.namespace, "t"), BY_DAY, partition_spec=SPEC)
    table.append(_at((1, "a", 1), (2, "b", 2)))
    taken: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, LockAcquired) and event.scope == "operation":
            taken.append(event.request)

    made.catalog.events.subscribe(note)
    call(table)
    settings = ["off", "iceberg", "hive"]
    takes = settings.index(made.properties["operation-locks"]) >= settings.index(first)
    assert ([locks] if takes else []) == taken


def test_a_catalog_is_what_its_tables_need_of_it(made: Kit) -> None:
    """Type checkers see it here; all other code that makes tables has to fit the same ports."""
    port: TableCatalog = coordinated(made.catalog)
    assert port is catalog_of(made.table(ids(1)))


def test_a_table_of_a_catalog_that_coordinates_nothing_is_refused(memory: Kit) -> None:
    table = memory.table(ids(1))
    table.catalog = NoopCatalog("plain")
    with pytest.raises(TypeError, match=r"the catalog of .* coordinates no commits: NoopCatalog"):
        catalog_of(table)


def test_transforms_name_partitions_as_iceberg_does() -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestampType()))
    fields = (
        PartitionField(2, 1000, DayTransform(), "at_day"),
        PartitionField(1, 1001, BucketTransform(4), "id_bucket"),
    )
    moment = datetime(2026, 1, 1, 13, tzinfo=UTC).replace(tzinfo=None)
    rows = pa.Table.from_pylist([{"id": 1, "at": moment}, {"id": 1, "at": None}], schema=schema.as_arrow())
    found = partitions_of_rows(rows, PartitionSpec(*fields), schema)
    assert [["at_day=2026-01-01", "id_bucket=0"], ["at_day=null", "id_bucket=0"]] == found
    with pytest.raises(NotImplementedError):
        partitions_of_rows(rows, PartitionSpec(PartitionField(1, 1000, UnknownTransform("newer"), "n")), schema)
    # A column that the rows do not have is null in them.
    found = partitions_of_rows(rows.drop_columns("at"), PartitionSpec(*fields), schema)
    assert [["at_day=null", "id_bucket=0"]] == found


def test_deletes_of_two_partitions_run_side_by_side(made: Kit) -> None:
    """And one of the same partition waits."""
    table = made.catalog.create_table((made.namespace, "t"), BY_DAY, partition_spec=SPEC)
    table.append(_at((1, "a", 1), (2, "b", 2)))
    busy = {Resource((*table.name(), "s=a")): LockMode.EXCLUSIVE}
    other = made.open()
    # By another thread: what one thread holds, it need not wait for, whatever catalog it has it by.
    with ThreadPoolExecutor(1) as job, job.submit(other.lock_operation, busy, statement="a long job").result():
        table.delete("s = 'b'")
        if made.properties["operation-locks"] != "off":
            with pytest.raises(LockTimeout, match="a long job"):
                table.delete("s = 'a'")
    other.close()
    assert [1] == row_ids(made.again(table))


def test_what_a_thread_holds_by_another_catalog_it_does_not_wait_for(made: Kit) -> None:
    """The check at the commit finds every conflict."""
    table, other = made.table(ids(1, 2, 3)), made.open()
    with other.lock_operation({Resource.table(table.name()): LockMode.SHARED}):
        table.delete("id = 1")
        with table.transaction() as transaction:
            transaction.delete("id = 2")
    other.close()
    assert [3] == row_ids(made.again(table))


def test_a_call_takes_its_lock_although_a_statement_took_a_shared_one(made: Kit) -> None:
    """Only UNLOCK ends that one, so the call would not wait for itself; an exclusive one is all that it needs."""
    table = made.catalog.create_table((made.namespace, "t"), BY_DAY, partition_spec=SPEC)
    table.append(_at((1, "a", 1), (2, "b", 2)))
    taken: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, LockAcquired) and event.scope == "operation":
            taken.append(event.request)

    session = Session(coordinated(made.catalog), database=made.namespace)
    expected = [] if made.properties["operation-locks"] == "off" else ["S db/t, X db/t/s=a"]
    for mode, name in (("SHARED", "a"), ("EXCLUSIVE", "b")):
        session.run(f"LOCK TABLE t {mode}")
        unsubscribe = made.catalog.events.subscribe(note)
        table.delete(f"s = '{name}'")
        unsubscribe()
        session.run("UNLOCK TABLE t")
    assert expected == taken
    assert [] == row_ids(made.again(table))


def test_a_call_whose_partitions_changed_while_it_waited_locks_those_that_are_there_now(made: Kit) -> None:
    table = made.catalog.create_table((made.namespace, "t"), BY_DAY, partition_spec=SPEC)
    table.append(_at((1, "a", 1), (2, "b", 2)))
    stale = made.catalog.load_table(table.name())
    with table.update_spec() as change:
        change.remove_field("day")
    taken: list[str] = []
    made.catalog.events.subscribe(lambda event: taken.append(getattr(event, "request", "")))
    stale.delete("s = 'a'")
    if made.properties["operation-locks"] != "off":
        assert [lock for lock in taken if "db/t" in lock][-1] == "X db/t"
    assert [2] == row_ids(made.again(table))


def test_a_builder_waits_for_its_lock_and_builds_on_what_is_there_then(made: Kit) -> None:
    """It was begun before another client's change, and committed after it."""
    table = made.table(ids(1))
    name = Resource.table(table.name())
    update = table.update_schema().add_column("mine", LongType())
    other = made.open()
    if made.properties["operation-locks"] == "hive":
        with (
            ThreadPoolExecutor(1) as job,
            job.submit(other.lock_operation, {name: LockMode.SHARED}, statement="a report").result(),
            pytest.raises(LockTimeout, match="a report"),
        ):
            update.commit()
    with other.load_table(table.name()).update_schema() as theirs:
        theirs.add_column("theirs", LongType())
    update.commit()
    other.close()
    assert ["id", "s", "theirs", "mine"] == [field.name for field in made.again(table).schema().fields]
    assert [1] == row_ids(made.again(table))


def test_a_call_that_fails_gives_back_what_it_took(made: Kit) -> None:
    """Its exception refers to the transaction, and its user may keep it: a notebook's ``sys.last_value``."""
    transaction = made.table(ids(1)).transaction()
    with pytest.raises(ValueError, match="nothing"):
        transaction.delete("nothing = 1")
    assert [] == made.held()
    transaction.delete("id = 1")
    held = made.held()
    with pytest.raises(ValueError, match="nothing"):
        transaction.delete("nothing = 1")
    assert held == made.held(), "of the call that has staged its changes"
    transaction.commit_transaction()


def test_a_transaction_that_has_failed_takes_no_lock(made: Kit) -> None:
    """It can't be committed any more, so nobody would give the lock back."""
    table = made.table(ids(1))
    transaction = table.transaction()
    transaction.set_properties(a="mine")
    table.catalog.locks.unlock(resource=Resource.table(table.name()))
    with made.again(table).transaction() as other:
        other.set_properties(a="theirs")
    with pytest.raises(CommitConflict):
        transaction.commit_transaction()
    transaction.set_properties(b="mine")
    assert [] == made.held()


def test_a_call_that_needs_more_than_the_transaction_holds_takes_it(made: Kit) -> None:
    """S of a write order does not replace X of a delete."""
    table = made.table(ids(1, 2))
    with table.transaction() as transaction:
        with transaction.update_sort_order() as order:
            order.asc("id", IdentityTransform())
        transaction.delete("id = 1")
        setting = coordinated(made.catalog).settings.operation_locks
        modes = {entry.mode for entry in coordinated(made.catalog).show_locks()}
        assert (set() if setting == "off" else {LockMode.EXCLUSIVE}) == modes
    assert ([2], 1) == (row_ids(made.again(table)), made.again(table).sort_order().order_id)


def test_a_transaction_that_nobody_ends_gives_its_lock_back_wherever_the_collector_finds_it() -> None:
    """Also in a thread that is changing the queue of locks, which can't be entered twice."""
    with kit("memory", **{"operation-locks": "hive", "lock.acquire-timeout-ms": "5000"}) as made:
        table = made.table(ids(1))
        begun = [table.transaction()]
        begun[0].delete("id = 1")
        assert made.held()

        def collect() -> None:
            with made.catalog.locks.parts.queue.space._mutex:
                begun.clear()
                gc.collect()

        collecting = threading.Thread(target=collect, daemon=True)
        collecting.start()
        collecting.join(limits.PATIENCE)
        assert not collecting.is_alive()
        table.delete("id = 1")
        assert [] == row_ids(made.again(table))


def test_blanks_around_a_namespace_make_no_other_one_of_it() -> None:
    """PyIceberg strips them: one namespace has one lock."""
    with kit("memory", **{"operation-locks": "hive", "lock.acquire-timeout-ms": "100"}) as made:
        made.catalog.create_namespace("ops")
        with made.catalog.lock_operation({Resource((" ops ",)): LockMode.EXCLUSIVE}):
            assert [str(entry.resource) for entry in made.catalog.show_locks()] == ["ops"]
            with ThreadPoolExecutor(1) as other, pytest.raises(LockTimeout):
                other.submit(made.catalog.drop_namespace, " ops").result()
        assert ("ops",) in made.catalog.list_namespaces()


DENY = {"operation-locks": "iceberg", "lock.policy": "deny", "lock.num-retries": "3"}


def test_under_deny_the_retries_end_the_wait_and_not_a_timeout_that_nobody_set(tmp_path: Path) -> None:
    """Hive's are 100 of 60 s: hours, which the default of three minutes must not cut off unsaid."""
    opened: Any = commit_coord.load_catalog(
        "t", uri=f"coord+sqlite:///{tmp_path}/c.db", **DENY, **{"lock.sleep-between-retries-ms": "120000"}
    )
    with opened as catalog:
        seen = []
        asked = catalog.locks.acquire

        def acquire(*request: Any, deadline: float, policy: Any) -> Any:
            seen.append(deadline - catalog.coordinator.clock.now())
            return asked(*request, deadline=deadline, policy=policy)

        catalog.locks.acquire = acquire
        catalog.lock_operation({Resource(("db", "t")): LockMode.EXCLUSIVE}).release()
        assert seen[0] > 3 * 120


@pytest.mark.parametrize("statement", [False, True], ids=["lock_operation", "LOCK TABLE"])
def test_a_denied_request_fails_after_its_tries(statement: bool) -> None:
    with kit("memory", **DENY, **{"lock.sleep-between-retries-ms": "1"}) as made:
        name = made.table(ids(1)).name()

        def take() -> object:
            if statement:
                return Session(made.catalog).run(f"LOCK TABLE {'.'.join(name)} EXCLUSIVE")
            return made.catalog.lock_operation({Resource(name): LockMode.EXCLUSIVE})

        with made.catalog.lock_operation({Resource(name): LockMode.SHARED}), ThreadPoolExecutor(1) as other:
            with pytest.raises(LockRefused) as denied:
                other.submit(take).result()
            assert denied.value.details["tries"] == 4


def test_a_write_whose_partitions_are_not_known_locks_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong when they are computed: they are only locked."""
    with kit("memory", **{"operation-locks": "hive", "lock.acquire-timeout-ms": "5000"}) as made:
        table = made.table(ids(1), partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p")))
        heard: list[Event] = []
        coordinated(made.catalog).events.subscribe(heard.append)

        def fails(*_: Any) -> Any:
            raise AttributeError("'int' object has no attribute 'hour'")

        for module in ("commit_coord.table.table", "commit_coord.sql.plan"):
            monkeypatch.setattr(f"{module}.fixed_partitions", fails)
        monkeypatch.setattr("commit_coord.table.table.partitions_of_rows", fails)
        name = ".".join(table.name())
        session = Session(made.catalog)
        for write in (
            lambda: table.append(ids(2)),
            lambda: table.overwrite(ids(3), "id = 2"),
            lambda: table.dynamic_partition_overwrite(ids(3, 4)),
            lambda: table.delete("id = 1"),
            lambda: session.run(f"UPDATE {name} SET s = 'x' WHERE id = 4"),
            lambda: session.run(f"DELETE FROM {name} WHERE id = 3"),
        ):
            heard.clear()
            write()
            taken = [one.request for one in heard if isinstance(one, LockAcquired) and one.scope == "operation"]
            assert taken
            assert not [request for request in taken if "p=" in request]
        assert [4] == row_ids(made.again(table))


def test_what_is_no_lock_is_refused_in_words() -> None:
    with kit("lease") as made:
        catalog, resource = made.catalog, Resource(("db", "t"))
        wrong: Any
        for wrong in ({"db.t": LockMode.EXCLUSIVE}, {resource: "X"}, None, [resource], 5, "db.t", {resource: None}):
            with pytest.raises(InvalidArguments):
                catalog.lock_operation(wrong)
        for wrong in ("db.t", ("db", "t"), 5):
            with pytest.raises(InvalidArguments):
                catalog.show_locks(wrong)
            with pytest.raises(InvalidArguments):
                list(catalog.lock_pages(wrong))
            with pytest.raises(InvalidArguments):
                catalog.unlock(resource=wrong)
        assert [] == list(catalog.show_locks())
