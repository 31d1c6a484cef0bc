"""Statements in addition to the manual's 17, and what the manual says outside of its table: what they do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest

from commit_coord import StatementError
from commit_coord.errors import LockReentered, LockRefused, LockTimeout, PartlyDropped
from commit_coord.events import Event, LockAcquired
from commit_coord.model import LockMode, LockScope, LockState, Resource
from commit_coord.sql import Session
from commit_coord.sql.operations import execute
from commit_coord.testing.contract import PATIENCE, Interrupt, interrupted_at, until
from tests.catalog.kit import EVERY_LOCK_MANAGER, SCHEMA, Kit, kit, kit_of
from tests.catalog.test_views import version
from tests.sql.test_statements import BEGINNING, BY_DAY, BY_P, BY_P_AND_Q, COLUMNS, Shop


def _shop(made: Kit) -> Shop:
    """Return T1 (by p), T2 (by p and q), days (by day), plain, and evolved (by p, once by nothing)."""
    catalog = made.catalog
    for name, spec in (("t1", BY_P), ("t2", BY_P_AND_Q), ("days", BY_DAY)):
        catalog.create_table((made.namespace, name), COLUMNS, partition_spec=spec)
    shop = Shop(made, catalog, Session(catalog, database=made.namespace))
    shop.run(
        "CREATE TABLE plain (a bigint, p string, q int, ts timestamp)",
        "CREATE TABLE evolved (a bigint, p string, q int, ts timestamp)",
        "INSERT INTO t1 PARTITION (p='1') (a, q) VALUES (1, 10), (2, 20)",
        "INSERT INTO t1 (a, p) SELECT 3, '2'",
        "INSERT INTO t2 (a, p, q) VALUES (1, 'x', 1), (2, 'x', 2), (3, 'y', 1)",
        "INSERT INTO plain (a) VALUES (5)",
        "INSERT INTO evolved (a, p) VALUES (1, '1')",
        "ALTER TABLE evolved SET PARTITION SPEC (p)",
    )
    return shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    """See :func:`_shop`, in memory."""
    with kit("memory") as made:
        yield _shop(made)
        assert [] == made.held()


@pytest.fixture(params=EVERY_LOCK_MANAGER)
def shop_anywhere(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """See :func:`_shop`, with each of the lock managers."""
    with kit_of(request) as made:
        yield _shop(made)


def watched(shop: Shop, command: str, locks: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run *command* and return its answer, having seen that what it explains and holds is *locks*.

    Args:
        shop: Where.
        command: What.
        locks: As the manual writes them, sorted by their resources; ``@`` is the database.
        monkeypatch: Has the other client work during the statement.
    """
    explained = shop.run(f"EXPLAIN LOCKS {command}")
    kinds = {"S": "SHARED_READ", "X": "EXCLUSIVE"}
    namespace = shop.made.namespace
    expected = set()
    for mode, where in (lock.split(" ", 1) for lock in locks.split(", ")):
        name = where.replace("@", namespace) if where.startswith("@") else f"{namespace}.{where.replace('/', '.', 1)}"
        expected.add(f"{name} -> {kinds[mode]}")
    assert ("LOCK INFORMATION:", expected) == (explained[0], set(explained[1:]))
    seen: list[str] = []

    def listed(*arguments: Any) -> Any:
        other = shop.made.open()
        for entry in other.locks.locks(scope=LockScope.OPERATION):
            database, *below = entry.resource.path
            name = "/".join(below) or database.replace(namespace, "@")
            seen.append(f"{entry.mode.letter} {name}")
        other.close()
        return execute(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("commit_coord.sql.session.execute", listed)
        try:
            answer = shop.run(command)
        finally:
            assert locks == ", ".join(sorted(seen, key=lambda lock: lock[2:]))
    return answer


T2 = ["1\tx\t1", "2\tx\t2", "3\ty\t1"]
# Command, its locks, and a table's rows afterwards.
COMMANDS: list[tuple[str, str, str, list[str] | None]] = [
    # Not partitioned.
    ("SELECT a FROM plain", "S plain", "plain", ["5\tNULL\tNULL"]),
    ("INSERT INTO plain (a) VALUES (6)", "X plain", "plain", ["5\tNULL\tNULL", "6\tNULL\tNULL"]),
    ("INSERT OVERWRITE plain (a) VALUES (6)", "X plain", "plain", ["6\tNULL\tNULL"]),
    # What is read: the partitions that WHERE leaves, else the table.
    ("SELECT a FROM t1 WHERE p IN ('1', '2') AND a > 0", "S t1, S t1/p=1, S t1/p=2", "t1", BEGINNING),
    ("SELECT a FROM t1 WHERE p = '1' OR a = 3", "S t1", "t1", BEGINNING),
    ("SELECT a FROM t2 WHERE q = 1", "S t2", "t2", T2),
    ("SELECT a FROM t2 WHERE p = 'x' AND q = 1", "S t2, S t2/p=x, S t2/p=x/q=1", "t2", T2),
    # Partitions that only the rows will tell.
    ("INSERT INTO t1 (a, p) VALUES (9, '9')", "X t1", "t1", [*BEGINNING, "9\t9\tNULL"]),
    ("INSERT INTO t1 PARTITION (p) (a) VALUES (9, '9')", "X t1", "t1", [*BEGINNING, "9\t9\tNULL"]),
    ("INSERT INTO t2 PARTITION (p='z', q) (a) VALUES (9, 9)", "S t2, X t2/p=z", "t2", [*T2, "9\tz\t9"]),
    ("INSERT INTO t2 PARTITION (q=9, p) (a) VALUES (9, 'z')", "X t2", "t2", [*T2, "9\tz\t9"]),
    ("INSERT OVERWRITE t2 PARTITION (p='x', q) (a) VALUES (9, 2)", "S t2, X t2/p=x", "t2", [T2[0], T2[2], "9\tx\t2"]),
    # Read and written in one statement.
    (
        "INSERT INTO t1 PARTITION (p='2') (a, q) SELECT a, q FROM t1 WHERE p = '1'",
        "S t1, S t1/p=1, X t1/p=2",
        "t1",
        ["1\t1\t10", "1\t2\t10", "2\t1\t20", "2\t2\t20", "3\t2\tNULL"],
    ),
    (
        "INSERT OVERWRITE t1 PARTITION (p='1') (a, q) SELECT a, q FROM t1 WHERE p = '1' AND a = 1",
        "S t1, X t1/p=1",
        "t1",
        ["1\t1\t10", "3\t2\tNULL"],
    ),
    ("INSERT OVERWRITE t1 SELECT * FROM t1 WHERE p = '1'", "X t1, S t1/p=1", "t1", BEGINNING),
    ("INSERT INTO plain (a) SELECT a FROM plain", "X plain", "plain", ["5\tNULL\tNULL", "5\tNULL\tNULL"]),
    # Levels, prefixes, transforms, specs.
    ("ALTER TABLE t2 DROP PARTITION (p='x')", "S t2, X t2/p=x", "t2", ["3\ty\t1"]),
    ("ALTER TABLE t2 DROP PARTITION (p='x', q=1)", "S t2, S t2/p=x, X t2/p=x/q=1", "t2", T2[1:]),
    (
        "ALTER TABLE t2 DROP PARTITION (p='x', q=1), PARTITION (p='y')",
        "S t2, S t2/p=x, X t2/p=x/q=1, X t2/p=y",
        "t2",
        T2[1:2],
    ),
    ("ALTER TABLE t2 PARTITION (p='x') CONCATENATE", "S t2, X t2/p=x", "t2", T2),
    ("ALTER TABLE days ADD PARTITION (ts_day='2026-02-03')", "S days, X days/ts_day=2026-02-03", "days", []),
    ("INSERT INTO evolved PARTITION (p='1') (a) VALUES (2)", "X evolved", "evolved", ["1\t1\tNULL", "2\t1\tNULL"]),
    ("SELECT a FROM evolved WHERE p = '1'", "S evolved", "evolved", ["1\t1\tNULL"]),
    ("ALTER TABLE evolved DROP PARTITION (p='1')", "X evolved", "evolved", []),
    # Iceberg's.
    ("DELETE FROM t1 WHERE P = '1' AND a = 1", "S t1, X t1/p=1", "t1", BEGINNING[1:]),
    ("DELETE FROM t1 WHERE p = '1' AND a = 1", "S t1, X t1/p=1", "t1", BEGINNING[1:]),
    ("DELETE FROM t1 WHERE q <> 10", "X t1", "t1", [BEGINNING[0], BEGINNING[2]]),
    ("DELETE FROM t1 WHERE a = 77", "X t1", "t1", BEGINNING),
    ("DELETE FROM t1", "X t1", "t1", []),
    (
        "UPDATE t1 SET q = a, a = 7 WHERE p = '1' AND a = 2",
        "S t1, X t1/p=1",
        "t1",
        ["1\t1\t10", "3\t2\tNULL", "7\t1\t2"],
    ),
    ("UPDATE t1 SET p = '3' WHERE p = '1'", "X t1", "t1", ["1\t3\t10", "2\t3\t20", "3\t2\tNULL"]),
    ("UPDATE t1 SET q = NULL", "X t1", "t1", ["1\t1\tNULL", "2\t1\tNULL", "3\t2\tNULL"]),
    ("TRUNCATE TABLE t1", "X t1", "t1", []),
    ("TRUNCATE TABLE t1 PARTITION (p='1')", "S t1, X t1/p=1", "t1", BEGINNING[2:]),
    ("ALTER TABLE t1 SET PARTITION SPEC (q, truncate(1, p))", "X t1", "t1", BEGINNING),
    ("ALTER TABLE t1 CREATE TAG first", "S t1", "t1", BEGINNING),
    ("ALTER TABLE t1 CREATE BRANCH first RETAIN 2 DAYS", "S t1", "t1", BEGINNING),
    ("ALTER TABLE t1 DROP TAG IF EXISTS first", "S t1", "t1", BEGINNING),
    ("ALTER TABLE t1 EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST 1", "S t1", "t1", BEGINNING),
    ("ALTER TABLE t1 EXECUTE ROLLBACK('2100-01-01')", "X t1", "t1", BEGINNING),
]


@pytest.mark.parametrize("command, locks, table, after", COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_command_explains_holds_and_does(
    shop: Shop, command: str, locks: str, table: str, after: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What EXPLAIN LOCKS prints is what another client sees held while the command runs; then the table is right."""
    watched(shop, command, locks, monkeypatch)
    assert after == shop.rows(table)


SEVERAL: list[tuple[str, str]] = [
    (
        "INSERT INTO plain SELECT t1.a, t1.p, t2.q, t1.ts FROM t1 JOIN t2 ON t1.a = t2.a WHERE t1.p = '1'",
        "X plain, S t1, S t2",
    ),
    (
        "INSERT INTO t2 PARTITION (p='n', q=1) SELECT a, ts FROM t1 WHERE p = '1' UNION ALL SELECT a, ts FROM plain",
        "S plain, S t1, S t1/p=1, S t2, S t2/p=n, X t2/p=n/q=1",
    ),
    (
        "INSERT INTO t2 PARTITION (p='n', q=1) WITH one AS (SELECT a, ts FROM t1 WHERE p = '1') SELECT a, ts FROM one",
        "S t1, S t1/p=1, S t2, S t2/p=n, X t2/p=n/q=1",
    ),
    ("INSERT INTO t1 SELECT * FROM t1 WHERE p IN (SELECT p FROM t2 WHERE p = 'x')", "X t1, S t2, S t2/p=x"),
    ("SELECT count(*) FROM t1, t2, plain", "S plain, S t1, S t2"),
]


@pytest.mark.parametrize("command, locks", SEVERAL, ids=[row[0] for row in SEVERAL])
def test_a_query_of_several_tables_locks_each_of_them(
    shop: Shop, command: str, locks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are for Spark to find, but its locks are known, were held, and are given back."""
    with pytest.raises(StatementError, match="run others in Spark"):
        watched(shop, command, locks, monkeypatch)


def test_databases_and_new_tables(shop_anywhere: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database stays while a table is being made in it; CASCADE locks every table in it."""
    shop = shop_anywhere
    watched(
        shop, "CREATE TABLE new (a int, ts timestamp) PARTITIONED BY (p string, day(ts))", "S @, X new", monkeypatch
    )
    table = shop.catalog.load_table((shop.made.namespace, "new"))
    assert ["p", "ts_day"] == [field.name for field in table.spec().fields]
    assert ["a", "ts", "p"] == [field.name for field in table.schema().fields]
    shop.run("INSERT INTO new VALUES (1, '2026-02-03 04:05:06', 'x')")
    assert ["1\tx"] == shop.run("SELECT a, p FROM new WHERE p = 'x'")
    watched(shop, f"DROP TABLE {shop.made.namespace}.new", "X new", monkeypatch)

    other = f"{shop.made.namespace}x"
    watched(shop, f"CREATE DATABASE {other} COMMENT 'short'", "X @x", monkeypatch)
    assert "short" == shop.catalog.load_namespace_properties(other)["comment"]
    shop.run(f"CREATE TABLE {other}.one (a int)")
    with pytest.raises(StatementError, match="write CASCADE.*one"):
        watched(shop, f"DROP DATABASE {other}", "X @x", monkeypatch)
    explained = shop.run(f"EXPLAIN LOCKS DROP DATABASE {other} CASCADE")[1:]
    assert [f"{other} -> EXCLUSIVE", f"{other}.one -> EXCLUSIVE"] == explained
    shop.run(f"DROP DATABASE {other} CASCADE")
    assert [f"there is no database {other}"] == shop.run(f"DROP DATABASE IF EXISTS {other}")


def test_a_database_with_a_view_keeps_its_tables(shop: Shop) -> None:
    other = f"{shop.made.namespace}x"
    shop.run(f"CREATE DATABASE {other}", f"CREATE TABLE {other}.one (a int)")
    shop.catalog.create_view((other, "seen"), SCHEMA, version("select 1"))
    with pytest.raises(StatementError, match="the database has views.*seen"):
        shop.run(f"DROP DATABASE {other} CASCADE")
    assert shop.catalog.table_exists((other, "one"))


def test_a_drop_of_a_database_that_fails_half_way_says_what_was_dropped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, drop = f"{shop.made.namespace}x", shop.catalog.drop_table
    shop.run(f"CREATE DATABASE {other}", f"CREATE TABLE {other}.one (a int)", f"CREATE TABLE {other}.two (a int)")

    def second_fails(table: tuple[str, ...]) -> None:
        if not shop.catalog.table_exists((other, "one")):
            raise LockTimeout("the table is locked")
        drop(table)

    monkeypatch.setattr(shop.catalog, "drop_table", second_fails)
    with pytest.raises(PartlyDropped, match="the table is locked.*dropped='one'"):
        shop.run(f"DROP DATABASE {other} CASCADE")


def test_databases_are_parents_where_the_property_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with kit("memory", **{"lock.database-parents": "true"}) as made:
        shop = _shop(made)
        watched(
            shop,
            "INSERT INTO t2 PARTITION (p='n', q=1) SELECT a, ts FROM t1 WHERE p = '1'",
            "S @, S t1, S t1/p=1, S t2, S t2/p=n, X t2/p=n/q=1",
            monkeypatch,
        )


def test_branches_tags_and_snapshots(shop: Shop) -> None:
    """They are made, used, dropped and expired; what a branch or tag names stays."""
    first = shop.catalog.load_table((shop.made.namespace, "t1")).metadata.snapshots[0].snapshot_id
    shop.run(
        f"ALTER TABLE t1 CREATE TAG first FOR SYSTEM_VERSION AS OF {first} RETAIN 3 HOURS",
        "ALTER TABLE t1 CREATE BRANCH old FOR TAG AS OF first",
        "ALTER TABLE t1 CREATE BRANCH IF NOT EXISTS old",
        "INSERT INTO t1 (a, p) VALUES (4, '4')",
        "INSERT INTO t1 (a, p) VALUES (5, '5')",
    )
    table = shop.catalog.load_table((shop.made.namespace, "t1"))
    assert (first, 10_800_000) == (table.refs()["first"].snapshot_id, table.refs()["first"].max_ref_age_ms)
    assert 2 == table.scan().use_ref("old").count()
    assert shop.run("ALTER TABLE t1 EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST 1")[0].startswith("2 snapshots")
    assert {first, table.refs()["main"].snapshot_id} == {s.snapshot_id for s in table.refresh().metadata.snapshots}
    for command, expected in (
        ("ALTER TABLE t1 CREATE TAG first", "the tag already exists"),
        ("ALTER TABLE t1 DROP BRANCH first", "there is no such branch"),
        ("ALTER TABLE t1 DROP BRANCH main", "can't be dropped"),
        (f"ALTER TABLE t1 EXECUTE EXPIRE_SNAPSHOTS('{first}')", "a branch or tag refers to the snapshot"),
        ("ALTER TABLE t1 EXECUTE EXPIRE_SNAPSHOTS(17)", "no such snapshot"),
        ("ALTER TABLE t1 CREATE TAG more FOR SYSTEM_VERSION AS OF 17", "no such snapshot"),
        ("ALTER TABLE t1 EXECUTE ROLLBACK(17)", "unknown snapshot"),
        ("ALTER TABLE days CREATE TAG more", "no such snapshot"),
    ):
        with pytest.raises(StatementError, match=expected):
            shop.run(command)
    shop.run("ALTER TABLE t1 DROP TAG first", "ALTER TABLE t1 DROP BRANCH old")
    assert ["main"] == list(table.refresh().refs())
    assert shop.run("ALTER TABLE t1 EXECUTE EXPIRE_SNAPSHOTS('2100-01-01 00:00:00+02:00')")[0].startswith("1 snapshots")
    assert shop.run("ALTER TABLE t1 EXECUTE EXPIRE_SNAPSHOTS")[0].startswith("0 snapshots")


def test_an_update_that_lost_a_race_sees_the_rows_of_the_winner(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append needs no lock. Its row comes between the update's look and its commit, and is updated too."""
    raced: list[int] = []

    commit = shop.catalog.coordinator.commit

    def racing(*arguments: Any, **named: Any) -> Any:
        if not raced:
            raced.append(1)
            other = shop.made.open().load_table((shop.made.namespace, "plain"))
            other.append(other.scan().to_arrow())
        return commit(*arguments, **named)

    monkeypatch.setattr(shop.catalog.coordinator, "commit", racing)
    assert ["2 rows of db.plain updated"] == shop.run("UPDATE plain SET a = 8 WHERE a = 5")
    assert ["8\tNULL\tNULL", "8\tNULL\tNULL"] == shop.rows("plain")


@pytest.mark.parametrize(
    "condition, found",
    [
        ("q <> 10", "2"),
        ("10 != q", "2"),
        ("NOT q = 10", "2"),
        ("NOT (q = 10 AND a = 1)", "2 3"),
        ("NOT (q = 10 OR a = 3)", "2"),
        ("q NOT IN (10, 11)", "2"),
        ("NOT q > 10", "1"),
        ("q NOT BETWEEN 15 AND 25", "1"),
        ("NOT (NOT q = 10)", "1"),
        ("q IS NOT NULL", "1 2"),
        ("NOT q <> 10", "1"),
    ],
)
def test_no_comparison_holds_for_null(shop: Shop, condition: str, found: str) -> None:
    """The row with a = 3 has no q, in a file of its own; Iceberg would take that for something else than 10."""
    assert found.split() == sorted(shop.run(f"SELECT a FROM t1 WHERE {condition}"))


@pytest.mark.parametrize(
    "command, expected",
    [
        ("CREATE TABLE t1 (a int)", "the table already exists"),
        ("CREATE TABLE nope.t (a int)", "there is no such database: database='nope'"),
        ("CREATE TABLE n (a int) PARTITIONED BY (b)", "there is no such column: column='b', accepted='a'"),
        (
            "CREATE TABLE n (a int) PARTITIONED BY (day(a))",
            "invalid partition transform for a column of this type: column='a'",
        ),
        ("CREATE TABLE n (a int) PARTITIONED BY (a, a)", "duplicate partition field: partition='a'"),
        ("CREATE TABLE n (a int, A string)", "duplicate column: column='a'"),
        ("CREATE TABLE n (a interval)", "Iceberg has no such type"),
        ("CREATE TABLE n (a int) STORED AS papyrus", "unsupported file format"),
        ("CREATE DATABASE db", "the database already exists"),
        ("DROP DATABASE nope", "there is no such database"),
        ("DROP DATABASE nope CASCADE", "there is no such database"),
        ("DELETE FROM nope", "there is no such table"),
        ("DELETE FROM t1 WHERE z = 1", "z"),
        ("DELETE FROM t1 WHERE a = 'x'", "a"),
        ("DELETE FROM t1 WHERE a = q", "run statements with others in Spark"),
        ("DELETE FROM t1 WHERE a IN (SELECT a FROM t2)", "run statements with others in Spark"),
        ("UPDATE t1 SET z = 1", "there is no such column: column='z'"),
        ("UPDATE t1 SET a = z", "there is no such column: column='z'"),
        ("UPDATE t1 SET a = a + 1", "expected a constant or a column"),
        ("UPDATE t1 SET a = 'x'", "does not fit its column: column='a'"),
        ("TRUNCATE TABLE t1 PARTITION (p='77')", "there is no such partition"),
        ("TRUNCATE TABLE t1 PARTITION (z=1)", "no such partition column: column='z'"),
        ("TRUNCATE TABLE t2 PARTITION (p='x', q='soon')", "invalid value for this partition column: column='q'"),
        ("ALTER TABLE t1 SET PARTITION SPEC (z)", "there is no such column: column='z'"),
        ("ALTER TABLE t1 SET PARTITION SPEC (a, A)", "duplicate partition field: partition='a'"),
        ("ALTER TABLE t1 SET PARTITION SPEC (p, p)", "duplicate partition field: partition='p'"),
        ("ALTER TABLE t1 SET PARTITION SPEC (bucket(2, a), bucket(2, a))", "duplicate partition field: partition='a'"),
        ("ALTER TABLE t1 SET PARTITION SPEC (day(ts), month(ts))", "ts_month conflicts with ts_day: table='db.t1'"),
    ],
)
def test_what_can_not_be_done_is_reported_and_nothing_is_done(shop: Shop, command: str, expected: str) -> None:
    before = {table: shop.catalog.load_table(table).metadata_location for table in shop.catalog.list_tables("db")}
    with pytest.raises(StatementError) as error:
        shop.run(command)
    assert expected in str(error.value)
    assert before == {
        table: shop.catalog.load_table(table).metadata_location for table in shop.catalog.list_tables("db")
    }


@pytest.mark.parametrize(
    "command, position, expected",
    [
        ("LOCK TABLE\n  plan SHARED", "line 2, column 3", "there is no such table: table='db.plan', accepted='plain'"),
        ("SELECT a FROM db.nope", "line 1, column 18", "accepted='days, evolved, plain, t1, t2'"),
        ("SHOW LOCKS DATABASE nope", "line 1, column 21", "there is no such database"),
        (
            "LOCK TABLE t2 PARTITION (p='x', Z=1) SHARED",
            "line 1, column 33",
            "no such partition column: column='Z', accepted='p, q'",
        ),
        (
            "LOCK TABLE t2 PARTITION (q='abc') SHARED",
            "line 1, column 28",
            "invalid value for this partition column: column='q', value='abc', type='int'",
        ),
        ("ALTER TABLE days DROP PARTITION (ts_day='soon')", "line 1, column 41", "value='soon', type='day'"),
        ("LOCK TABLE t1 PARTITION (p='1') SHRED", "line 1, column 33", "SHARED or EXCLUSIVE, found 'SHRED'"),
        ("ALTER TABLE t1 CREATE TAG x RETAIN -5 DAYS", "line 1, column 36", "a whole number above 0, found '-'"),
        (
            "INSERT INTO t1 (a, zz) VALUES (1, 2)",
            "line 1, column 20",
            "there is no such column: column='zz', accepted='a, p, q, ts'",
        ),
        ("UPDATE t1 SET zz = 1", "line 1, column 15", "there is no such column"),
        ("SELECT zz FROM t1", "line 1, column 8", "there is no such column"),
    ],
)
def test_what_is_not_there_is_reported_with_its_place_and_what_was_expected(
    shop: Shop, command: str, position: str, expected: str
) -> None:
    with pytest.raises(StatementError) as error:
        shop.run(command)
    assert position == error.value.details["position"]
    assert expected in str(error.value)


def test_what_a_session_locked_it_may_share(shop: Shop) -> None:
    """As in Hive: LOCK ... SHARED twice, then a query; what would wait for the lock itself is refused at once."""
    shop.run("LOCK TABLE t1 SHARED", "LOCK TABLE t1 SHARED")
    assert BEGINNING == shop.rows("t1")
    with pytest.raises(LockReentered):
        shop.run("INSERT INTO t1 (a) VALUES (1)")
    assert ["freed 2 locks on db/t1"] == shop.run("UNLOCK TABLE t1")
    shop.run("INSERT INTO t1 (a) VALUES (4)")


@pytest.mark.parametrize(
    "held, command, asked",
    [
        ({"t1/p=1": LockMode.EXCLUSIVE}, "INSERT INTO t1 (a, p) VALUES (4, '2')", []),
        ({"t1/p=1": LockMode.EXCLUSIVE}, "INSERT INTO t1 PARTITION (p='2') (a) VALUES (4)", []),
        ({"t1": LockMode.SHARED}, "DELETE FROM t1 WHERE a = 1", []),
        ({"t1/p=1": LockMode.EXCLUSIVE}, "INSERT INTO plain (a, p) SELECT a, p FROM t1", ["X db/plain"]),
    ],
)
def test_a_statement_does_not_wait_for_locks_of_which_its_thread_holds_a_part(
    shop: Shop, held: dict[str, LockMode], command: str, asked: list[str]
) -> None:
    """As a call of the table does not: the check at the commit finds every conflict. The other locks are taken."""
    taken: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, LockAcquired) and event.scope == "operation":
            taken.append(event.request)

    with shop.catalog.lock_operation({Resource.parse(f"db/{path}"): mode for path, mode in held.items()}):
        shop.catalog.events.subscribe(note)
        (answer,) = shop.run(command)
    assert asked == taken
    assert not answer.endswith(" 0 rows")


@pytest.mark.parametrize("command", ["DROP TABLE t1", "ALTER TABLE t1 RENAME TO t9", "DROP DATABASE db CASCADE"])
def test_a_table_is_not_dropped_under_a_lock_that_allows_other_readers(shop: Shop, command: str) -> None:
    """No commit follows that could find the conflict. Nothing is dropped before the locks are held."""
    before = shop.run("SHOW TABLES")
    with shop.catalog.lock_operation({Resource(("db", "t1")): LockMode.SHARED}), pytest.raises(LockReentered):
        shop.run(command)
    assert before == shop.run("SHOW TABLES")


def test_unlock_names_an_operation_that_holds_the_table(shop: Shop) -> None:
    """UNLOCK frees what LOCK took, and nothing else; it does not say that nobody has the rest."""
    with shop.made.catalog.lock_operation({Resource(("db", "t1")): LockMode.EXCLUSIVE}, statement="a nightly job"):
        (answer,) = shop.run("UNLOCK TABLE t1")
        assert answer.startswith("no LOCK statement has locked db/t1")
        assert "a nightly job" in answer
        assert shop.made.catalog.show_locks()
    assert ["nobody has locked db/t1"] == shop.run("UNLOCK TABLE t1")


def test_lock_in_memory_says_how_long_it_lasts(shop: Shop) -> None:
    """Until UNLOCK, from whatever session of the process; its process is its end."""
    another = Session(shop.made.open(), database="db")
    assert ["locked until UNLOCK, or until this process ends: X db/t1"] == list(
        another.run("LOCK TABLE t1 EXCLUSIVE").lines
    )
    another.catalog.close()
    del another
    assert ["locked until UNLOCK, or until this process ends: S db"] == shop.run("LOCK DATABASE db SHARED")
    assert ["db\tSHARED"] == shop.run("SHOW LOCKS DATABASE db")
    assert ["db\tSHARED", "db@t1\tEXCLUSIVE"] == shop.run("SHOW LOCKS")
    shop.run("UNLOCK TABLE t1", "UNLOCK DATABASE db")
    assert [] == shop.run("SHOW LOCKS")


@pytest.mark.parametrize("manager", ["memory", "lease"])
def test_unlock_frees_what_is_locked_and_no_statement_that_waits(manager: str) -> None:
    """Of two LOCK statements on one table, the one that waits is granted by UNLOCK, and stays."""
    with kit(manager) as made:
        session = Session(made.catalog, database=made.namespace)
        made.catalog.create_table((made.namespace, "t1"), COLUMNS)
        session.run("LOCK TABLE t1 EXCLUSIVE")
        other = made.open()
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(Session(other, database=made.namespace).run, "LOCK TABLE t1 EXCLUSIVE")
            until(lambda: len(other.locks.locks()) == 2, "a LOCK statement that waits")
            assert [f"freed 1 locks on {made.namespace}/t1"] == list(session.run("UNLOCK TABLE t1").lines)
            assert "locked until UNLOCK" in str(waits.result(PATIENCE).lines)
        assert [LockState.ACQUIRED] == [entry.state for entry in other.locks.locks()]
        assert [f"freed 1 locks on {made.namespace}/t1"] == list(session.run("UNLOCK TABLE t1").lines)
        other.close()


@pytest.mark.parametrize("manager", ["memory", "lease"])
def test_a_lock_that_is_interrupted_at_any_line_locks_nothing(manager: str) -> None:
    """Nobody knows that it is there, and only UNLOCK would end it."""
    with kit(manager) as made:
        locks = made.catalog.locks
        session = Session(made.catalog, database=made.namespace)
        made.catalog.create_table((made.namespace, "t1"), COLUMNS)
        # Those that every acquire goes through, and in them as many lines each time.
        files = ("locks/acquiring.py", "locks/queue_manager.py", "catalog/locking.py")
        for step in count(1):
            reached = interrupted_at(step, partial(session.run, "LOCK TABLE t1 EXCLUSIVE"), files)
            if not reached:
                break
            until(lambda: not locks.locks(), f"nothing left after an interrupt at line {step}")
        session.run("UNLOCK TABLE t1")
        assert [] == list(locks.locks())
        acquire = locks.acquire

        def interrupted(*asked: Any, **more: Any) -> None:
            acquire(*asked, **more)
            raise Interrupt

        with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupt):
            patched.setattr(locks, "acquire", interrupted)
            session.run("LOCK TABLE t1 EXCLUSIVE")
        assert [] == list(locks.locks())


@pytest.mark.parametrize("setting", ["lock-impl", "hive.support.concurrency"])
def test_with_locks_turned_off_statements_still_answer(setting: str) -> None:
    """SHOW LOCKS is empty, UNLOCK succeeds, LOCK says that there are none, and commits compare and set."""
    with kit("none") as made:
        if setting == "hive.support.concurrency":
            import commit_coord

            made.catalog.close()
            made.catalog = commit_coord.load_catalog(
                made.name, uri=f"coord+{made.uri}", warehouse=made.warehouse, **{setting: "false"}
            )
        shop = _shop(made)
        for command, locks, table, after in COMMANDS:
            if table == "t1" and command.startswith(("UPDATE t1 SET q = a", "ALTER TABLE t1 CREATE TAG")):
                explained = shop.run(f"EXPLAIN LOCKS {command}")
                assert len(locks.split(", ")) == len(explained) - 1, "what it would take where there are locks"
                shop.run(command)
                assert after == shop.rows(table) or command.startswith("ALTER")
        for statement in (
            "SHOW LOCKS",
            "SHOW LOCKS t1 EXTENDED",
            "SHOW LOCKS t1 PARTITION (p='1')",
            "SHOW LOCKS DATABASE db",
        ):
            assert [] == shop.run(statement)
        assert shop.run("UNLOCK TABLE t1")[0].startswith("nobody has locked")
        assert shop.run("UNLOCK TABLE t1 PARTITION (p='1')")[0].startswith("nobody has locked")
        assert shop.run("UNLOCK DATABASE db")[0].startswith("nobody has locked")
        for statement in ("LOCK TABLE t1 EXCLUSIVE", "LOCK DATABASE db SHARED"):
            with pytest.raises(LockRefused, match="locks are turned off .*hive.support.concurrency=false"):
                shop.run(statement)
        # Two writers that read the same head: both rows are there.
        mine, theirs = (made.open().load_table(("db", "plain")) for _ in range(2))
        rows = mine.scan().to_arrow()
        mine.append(rows)
        theirs.append(rows)
        assert 3 == len(shop.rows("plain"))
