"""The Hive manual's 17 commands, carried out on Iceberg tables under the locks that EXPLAIN LOCKS names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestampType

from commit_coord import ConfigError, LeaseObject, StatementError
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.errors import LockTimeout
from commit_coord.model import LockMode, LockScope, Resource
from commit_coord.sql import Session
from commit_coord.sql.operations import execute
from tests.catalog.kit import EVERY_LOCK_MANAGER, Kit, kit, kit_of

COLUMNS = Schema(
    NestedField(1, "a", LongType()),
    NestedField(2, "p", StringType()),
    NestedField(3, "q", IntegerType()),
    NestedField(4, "ts", TimestampType()),
)
BY_P = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
BY_P_AND_Q = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "p"), PartitionField(3, 1001, IdentityTransform(), "q")
)
BY_DAY = PartitionSpec(PartitionField(4, 1000, DayTransform(), "ts_day"))


@dataclass
class Shop:
    """A catalog with T1 (by p), T2 (by p and q), days (by day) and plain, and a session on it."""

    made: Kit
    catalog: CoordinatedCatalog
    session: Session

    def run(self, *statements: str) -> list[str]:
        """Run them; return what the last one answers, as Hive prints it."""
        for statement in statements:
            answer = self.session.run(statement)
        return list(answer.lines)

    def rows(self, table: str) -> list[str]:
        """Return the rows of a table, sorted."""
        return sorted(self.run(f"SELECT a, p, q FROM {table}"))


@pytest.fixture(params=EVERY_LOCK_MANAGER)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """See :class:`Shop`, with each of the lock managers."""
    with kit_of(request) as made:
        catalog = made.catalog
        for name, spec in (("t1", BY_P), ("t2", BY_P_AND_Q), ("days", BY_DAY), ("plain", PartitionSpec())):
            catalog.create_table((made.namespace, name), COLUMNS, partition_spec=spec)
        shop = Shop(made, catalog, Session(catalog, database=made.namespace))
        shop.run(
            "INSERT INTO t1 PARTITION (p='1') (a, q) VALUES (1, 10), (2, 20)", "INSERT INTO t1 (a, p) SELECT 3, '2'"
        )
        yield shop


# Command, its locks as the manual writes them (parents included), and T1 or T2 afterwards.
BEGINNING = ["1\t1\t10", "2\t1\t20", "3\t2\tNULL"]
ROWS: list[tuple[str, str, str, list[str] | None]] = [
    ("SELECT * FROM t1 WHERE p = '1'", "S t1, S t1/p=1", "t1", BEGINNING),
    (
        "INSERT INTO t2 PARTITION (p='2') SELECT a, q, ts FROM t1 WHERE p = '1'",
        "S t1, S t1/p=1, S t2, X t2/p=2",
        "t2",
        ["1\t2\t10", "2\t2\t20"],
    ),
    (
        "INSERT INTO t2 PARTITION (p='2', q=3) SELECT a, ts FROM t1 WHERE p = '1'",
        "S t1, S t1/p=1, S t2, S t2/p=2, X t2/p=2/q=3",
        "t2",
        ["1\t2\t3", "2\t2\t3"],
    ),
    ("ALTER TABLE t1 RENAME TO t3", "X t1", "t3", BEGINNING),
    ("ALTER TABLE t1 ADD COLUMNS (more decimal(5,2) COMMENT 'new')", "X t1", "t1", BEGINNING),
    ("ALTER TABLE t1 REPLACE COLUMNS (q int, p string, a bigint)", "X t1", "t1", BEGINNING),
    ("ALTER TABLE t1 CHANGE COLUMN q q bigint AFTER a", "X t1", "t1", BEGINNING),
    ("ALTER TABLE t1 CONCATENATE", "X t1", "t1", BEGINNING),
    ("ALTER TABLE t1 ADD PARTITION (p='9')", "S t1, X t1/p=9", "t1", BEGINNING),
    ("ALTER TABLE t1 DROP PARTITION (p='1')", "S t1, X t1/p=1", "t1", ["3\t2\tNULL"]),
    ("ALTER TABLE t1 TOUCH PARTITION (p='1')", "S t1, X t1/p=1", "t1", BEGINNING),
    ("ALTER TABLE t1 SET SERDEPROPERTIES ('a'='b')", "S t1", "t1", BEGINNING),
    ("ALTER TABLE t1 SET SERDE 'org.example.Serde'", "S t1", "t1", BEGINNING),
    ("ALTER TABLE t1 SET FILEFORMAT PARQUET", "S t1", "t1", BEGINNING),
    ("ALTER TABLE t1 SET TBLPROPERTIES ('a'='b')", "X t1", "t1", BEGINNING),
    ("ALTER TABLE t1 PARTITION (p='1') CONCATENATE", "S t1, X t1/p=1", "t1", BEGINNING),
    ("DROP TABLE t1", "X t1", "t1", None),
]


@pytest.mark.parametrize("command, locks, table, after", ROWS, ids=[row[0] for row in ROWS])
def test_a_command_explains_holds_and_does(
    shop: Shop, command: str, locks: str, table: str, after: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What EXPLAIN LOCKS prints is what another client sees held while the command runs; then the table is right."""
    explained = shop.run(f"EXPLAIN LOCKS {command}")
    kinds = {"S": "SHARED_READ", "X": "EXCLUSIVE"}
    expected = {
        f"{shop.made.namespace}.{where.replace('/', '.', 1)} -> {kinds[mode]}"
        for mode, where in (lock.split(" ") for lock in locks.split(", "))
    }
    assert ("LOCK INFORMATION:", expected) == (explained[0], set(explained[1:]))

    seen: list[str] = []

    def watched(*arguments: Any) -> Any:
        other = shop.made.open()
        seen.extend(
            f"{entry.mode.letter} {'/'.join(entry.resource.path[1:])}"
            for entry in other.locks.locks(scope=LockScope.OPERATION)
        )
        other.close()
        return execute(*arguments)

    monkeypatch.setattr("commit_coord.sql.session.execute", watched)
    shop.run(command)
    assert locks == ", ".join(sorted(seen, key=lambda lock: lock[2:]))
    if after is None:
        with pytest.raises(StatementError, match="no such table"):
            shop.rows(table)
    else:
        assert after == shop.rows(table)


def test_what_hive_says_and_iceberg_keeps(shop: Shop) -> None:
    shop.run(
        "ALTER TABLE t1 SET SERDE 'org.example.Serde' WITH SERDEPROPERTIES ('field.delim'=',')",
        "ALTER TABLE t1 SET FILEFORMAT ORC",
        "ALTER TABLE t1 SET TBLPROPERTIES ('kept'='1', 'gone'='2')",
        "ALTER TABLE t1 UNSET TBLPROPERTIES ('gone')",
    )
    properties = shop.catalog.load_table((shop.made.namespace, "t1")).properties
    kept = {
        "hive.serde.lib": "org.example.Serde",
        "hive.serde.property.field.delim": ",",
        "write.format.default": "orc",
        "kept": "1",
    }
    assert kept == {key: value for key, value in properties.items() if key in {*kept, "gone"}}


def test_concatenate_makes_one_file_of_many_and_changes_no_row(shop: Shop) -> None:
    """The snapshot says REPLACE, so who reads changes can leave it out."""
    for number in range(5):
        shop.run(f"INSERT INTO t1 PARTITION (p='1') (a) VALUES ({100 + number})")
    before = shop.rows("t1")
    assert [f"6 files of {shop.made.namespace}.t1 are now 1"] == shop.run(
        "ALTER TABLE t1 PARTITION (p='1') CONCATENATE"
    )
    table = shop.catalog.load_table((shop.made.namespace, "t1"))
    assert before == shop.rows("t1")
    assert 2 == len(list(table.scan().plan_files()))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert "replace" == snapshot.summary.operation.value
    assert ("6", "1") == (snapshot.summary["deleted-data-files"], snapshot.summary["added-data-files"])


def test_a_partition_in_time_is_dropped_by_its_name(shop: Shop) -> None:
    shop.run("INSERT INTO days (a, ts) VALUES (1, '2026-02-03 23:59:59'), (2, '2026-02-04 00:00:00')")
    assert ["1"] == [line.split("\t")[0] for line in shop.run("SELECT a FROM days WHERE a < 2")]
    shop.run("ALTER TABLE days DROP PARTITION (ts_day='2026-02-03')")
    assert ["2\tNULL\tNULL"] == shop.rows("days")
    shop.run("INSERT OVERWRITE days (a, ts) VALUES (9, '2026-02-04 12:00:00')")
    assert ["9\tNULL\tNULL"] == shop.rows("days")


def test_insert_overwrite_replaces_the_partitions_that_it_names_or_meets(shop: Shop) -> None:
    shop.run("INSERT INTO t2 (a, p, q) VALUES (1, 'x', 1), (2, 'x', 2), (3, 'y', 1)")
    shop.run("INSERT OVERWRITE t2 PARTITION (p='x', q=1) (a) VALUES (10)")
    assert ["10\tx\t1", "2\tx\t2", "3\ty\t1"] == shop.rows("t2")
    shop.run("INSERT OVERWRITE t2 PARTITION (p='x', q) (a) VALUES (20, 2)")
    assert ["10\tx\t1", "20\tx\t2", "3\ty\t1"] == shop.rows("t2")
    shop.run("INSERT OVERWRITE plain (a) VALUES (1)", "INSERT OVERWRITE plain (a) VALUES (2)")
    assert ["2\tNULL\tNULL"] == shop.rows("plain")


def test_lock_outlives_its_client_until_unlock(shop: Shop) -> None:
    """And keeps others out meanwhile; UNLOCK of the table leaves the lock of a partition alone."""
    if not shop.catalog.locks.guarantees.explicit_locks:
        pytest.skip("this lock manager declares no explicit locks; the contract asserts that it refuses them")
    another = shop.made.open()
    Session(another, database=shop.made.namespace).run("LOCK TABLE t2 PARTITION (p='x', q=1) EXCLUSIVE")
    another.close()
    at = f"{shop.made.namespace}@t2"
    assert [f"{at}\tSHARED", f"{at}@p=x\tSHARED", f"{at}@p=x/q=1\tEXCLUSIVE"] == shop.run("SHOW LOCKS t2")
    assert [f"{at}@p=x/q=1\tEXCLUSIVE"] == shop.run("SHOW LOCKS t2 PARTITION (p='x', q=1)")
    extended = shop.run("SHOW LOCKS t2 PARTITION (p='x', q=1) EXTENDED")
    assert ["LOCK_QUERYID", "LOCK_TIME", "LOCK_MODE:EXPLICIT"] == [
        line.split(":")[0] if "MODE" not in line else line for line in extended[1:4]
    ]
    # A metastore has 128 characters for all that an owner says, and takes no quotes.
    assert extended[4].startswith("LOCK_QUERYSTRING:LOCK TABLE t2 PARTITION (p=")
    assert ["no LOCK statement"] == [" ".join(shop.run("UNLOCK TABLE t2")[0].split()[:3])]
    assert 3 == len(shop.run("SHOW LOCKS t2"))
    shop.run("UNLOCK TABLE t2 PARTITION (p='x', q=1)")
    assert [] == shop.run("SHOW LOCKS t2")


@pytest.mark.parametrize("length", [10, 700])
def test_a_partition_is_unlocked_by_its_name_however_long_that_is(shop: Shop, length: int) -> None:
    partition = f"t1 PARTITION (p='{'x' * length}')"
    shop.run(f"LOCK TABLE {partition} EXCLUSIVE")
    assert 1 == len(shop.run(f"SHOW LOCKS {partition}"))
    assert ["no LOCK statement"] == [" ".join(shop.run("UNLOCK TABLE t1")[0].split()[:3])]
    assert shop.run(f"UNLOCK TABLE {partition}")[0].startswith("freed ")
    assert [] == shop.run("SHOW LOCKS t1")


def test_locks_are_explained_as_they_are_taken_where_there_are_too_many(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop.catalog, "settings", replace(shop.catalog.settings, lock_max_partitions=1))
    command = "ALTER TABLE t1 DROP PARTITION (p='1'), PARTITION (p='2')"
    explained = shop.run(f"EXPLAIN LOCKS {command}")
    taken: list[str] = []

    def watched(*arguments: Any) -> Any:
        taken.extend(f"{entry.mode.letter} {entry.resource}" for entry in shop.catalog.show_locks())
        return execute(*arguments)

    monkeypatch.setattr("commit_coord.sql.session.execute", watched)
    shop.run(command)
    where = f"{shop.made.namespace}.t1"
    assert [f"{where} -> EXCLUSIVE"] == explained[1:]
    assert f"X {shop.made.namespace}/t1" in taken


def test_leases_are_shown_and_ended(shop: Shop) -> None:
    """Of tables and partitions, of some that do not exist too; SHOW LOCKS has them among the locks."""
    if shop.made.impl != "lease":
        for statement in ("SHOW LEASE *", "DROP FORCE LEASE t1"):
            with pytest.raises(ConfigError, match="lease, with lock.uri naming"):
                shop.run(statement)
        return
    leases, database = shop.catalog.leases, shop.made.namespace
    part = LeaseObject(database, "t2", "p=x/q=1")
    first = leases.grab_lease([part, LeaseObject(database, "later", "day=1", "s")], 600)
    second = leases.grab_lease([LeaseObject(database, "t1")], 600)
    shown = shop.session.run("SHOW LEASE")
    assert ("user", "lease_id", "db_name", "table_name", "partition_name") == shown.columns[:5]
    assert [tuple(getattr(lease, column) for column in shown.columns) for lease in leases.list_lease()] == shown.rows
    assert ["\t".join(shown.columns), "\t".join(map(str, shown.rows[0]))] == list(shown.lines[:2])
    assert 4 == len(shop.run("SHOW LEASE *"))
    for named, count in (
        ("t2", 1),
        ("t2 PARTITION (q=1, p='x')", 1),
        ("t2 PARTITION (p='x')", 1),
        ("t2 PARTITION (p='y')", 0),
        ("later PARTITION (day='1'), t1", 2),
        ("nothing.at_all", 0),
    ):
        assert count == len(shop.run(f"SHOW LEASE {named}")) - 1
    at = f"{database}@t2"
    assert [f"{at}\tSHARED", f"{at}@p=x\tSHARED", f"{at}@p=x/q=1\tEXCLUSIVE"] == shop.run("SHOW LOCKS t2")
    assert ["ended 0 leases"] == shop.run("DROP FORCE LEASE t2, later")
    assert ["ended 1 leases"] == shop.run("DROP FORCE LEASE later PARTITION (day=1)")
    assert [False, True] == [leases.confirm_lease(first), leases.confirm_lease(second)]
    assert ["ended 1 leases"] == shop.run("DROP FORCE LEASE *")
    with pytest.raises(StatementError, match="no such partition column"):
        shop.run("SHOW LEASE t1 PARTITION (z=1)")


def test_where_locks_are_turned_off_there_are_no_leases() -> None:
    with kit("none") as made:
        session = Session(made.catalog, database=made.namespace)
        assert [] == session.run("SHOW LEASE *").rows
        assert ["ended 0 leases"] == session.run("DROP FORCE LEASE *").lines


def test_show_locks_in_thirteen_columns_says_who_waits_for_whom(shop: Shop) -> None:
    table = Resource((shop.made.namespace, "t1"))
    waiting = shop.made.open()
    with shop.catalog.lock_operation({table: LockMode.SHARED}, statement="a long read"):
        wants = threading.Thread(target=lambda: waiting.lock_operation({table: LockMode.EXCLUSIVE}).release())
        wants.start()
        session = Session(shop.catalog, database=shop.made.namespace, all_columns=True)
        while len(rows := session.run("SHOW LOCKS t1").rows) < 2:
            pass
    wants.join()
    waiting.close()
    held, waits = sorted(rows, key=lambda row: row[4])
    assert ("ACQUIRED", "SHARED_READ", None) == (held[4], held[6], held[5])
    assert ("WAITING", "EXCLUSIVE", held[0].split(".")[0]) == (waits[4], waits[6], waits[5])
    assert "a long read" in held[12]


def test_a_command_that_waits_too_long_names_the_holder_and_does_nothing(shop: Shop) -> None:
    impatient = shop.made.open()
    impatient.settings = replace(impatient.settings, lock_acquire_timeout_ms=1500)
    t1 = Resource((shop.made.namespace, "t1"))
    with (
        ThreadPoolExecutor(1) as report,
        report.submit(shop.catalog.lock_operation, {t1: LockMode.SHARED}, statement="a report").result(),
        pytest.raises(LockTimeout, match="a report"),
    ):
        Session(impatient, database=shop.made.namespace).run("DROP TABLE t1")
    impatient.close()
    assert BEGINNING == shop.rows("t1")


@pytest.mark.parametrize(
    "command, expected",
    [
        ("SHOW LOCKS nope", "there is no such table"),
        ("SHOW LOCKS DATABASE nope", "there is no such database"),
        ("LOCK TABLE t1 PARTITION (z=1) SHARED", "no such partition column: column='z', accepted='p'"),
        (
            "LOCK TABLE t2 PARTITION (q='abc') SHARED",
            "invalid value for this partition column: column='q', value='abc'",
        ),
        ("LOCK TABLE days PARTITION (ts_day='soon') SHARED", "invalid value for this partition column"),
        ("LOCK TABLE plain PARTITION (q=1) SHARED", "the table has no partitions"),
        ("ALTER TABLE t1 DROP PARTITION (p='77')", "there is no such partition"),
        ("ALTER TABLE t1 TOUCH PARTITION (p='77')", "there is no such partition"),
        ("ALTER TABLE t1 ADD PARTITION (p='77') LOCATION '/nowhere/at/all'", "the location can't be listed"),
        ("ALTER TABLE t1 RENAME TO t2", "the table already exists"),
        ("ALTER TABLE t1 CHANGE q q string", "Cannot change column type"),
        ("ALTER TABLE t1 ADD COLUMNS (q int)", "already exists"),
        ("ALTER TABLE t1 SET FILEFORMAT papyrus", "unsupported file format"),
        ("INSERT INTO t1 VALUES (1)", "wrong number of columns"),
        ("INSERT INTO t1 (a) VALUES ('x')", "does not fit its column: column='a'"),
        ("SELECT max(a) FROM t1", "run others in Spark"),
        ("SELECT nope FROM t1", "there is no such column"),
        ("DROP TABLE nope", "there is no such table"),
    ],
)
def test_what_can_not_be_done_is_reported_and_nothing_is_done(shop: Shop, command: str, expected: str) -> None:
    before = {name: shop.catalog.load_table((shop.made.namespace, name)).metadata_location for name in ("t1", "t2")}
    with pytest.raises(StatementError) as error:
        shop.run(command)
    assert expected in str(error.value)
    for name, location in before.items():
        assert location == shop.catalog.load_table((shop.made.namespace, name)).metadata_location


def test_a_table_that_need_not_be_there_need_not(shop: Shop) -> None:
    assert ["there is no table nope"] == shop.run("DROP TABLE IF EXISTS nope")
    shop.run("ALTER TABLE t1 DROP IF EXISTS PARTITION (p='77')")


def test_without_locks_statements_still_answer() -> None:
    """SHOW LOCKS is empty, UNLOCK succeeds, and commits compare and set."""
    with kit("none") as made:
        made.catalog.create_table((made.namespace, "t1"), COLUMNS, partition_spec=BY_P)
        shop = Shop(made, made.catalog, Session(made.catalog, database=made.namespace))
        shop.run("INSERT INTO t1 PARTITION (p='1') (a) VALUES (1)", "ALTER TABLE t1 CONCATENATE")
        assert [] == shop.run("SHOW LOCKS")
        assert shop.run("UNLOCK TABLE t1")[0].startswith("nobody has locked")
        assert ["1\t1\tNULL"] == shop.rows("t1")
