"""We and writers that know nothing of us, on one table of one metastore, at the same time.

``COMMITS=1000 make integration ARGS="-k at_once"`` has them make so many commits instead of a few.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.manifest import ManifestEntryStatus

import commit_coord
from commit_coord.hms.client import MetastoreClient
from commit_coord.local import RestServer
from commit_coord.testing.contract import until
from integration.conftest import Java, Metastore, Servers
from integration.order import Wiretap, locks_and_swaps, overtaken, requests_in
from integration.proof import prove
from integration.writers import (
    PROPERTIES,
    SCHEMA,
    Kind,
    Running,
    await_end,
    await_enough,
    runs,
    start_python,
    watched,
    write_java,
)

pytestmark = [pytest.mark.jvm, pytest.mark.hms, pytest.mark.timeout(600)]

ROWS = pa.schema([("writer", pa.string()), ("number", pa.int64())])


@pytest.fixture(scope="module")
def baseline(servers: Servers) -> Metastore:
    """Hive Metastore 2.3.10 on Derby."""
    metastore: Metastore = servers.metastore()
    return metastore


def test_java_and_pyiceberg_read_each_others_rows(baseline: Metastore, java: Java) -> None:
    """INSERT, MERGE and DELETE of Spark SQL, and PyIceberg's append, in turn."""
    stock = load_catalog("stock", type="hive", uri=baseline.uri)
    stock.create_namespace("shop")
    table = stock.create_table("shop.sales", schema=ROWS)
    table.append(pa.table({"writer": ["python"], "number": [1]}, schema=ROWS))

    name = java.catalog(baseline)
    java.sql(f"INSERT INTO {name}.shop.sales VALUES ('java', 2), ('java', 3)")
    java.sql(
        f"MERGE INTO {name}.shop.sales t USING (SELECT 'merge' AS writer, 3 AS number) s ON t.number = s.number "
        "WHEN MATCHED THEN UPDATE SET writer = s.writer"
    )
    table.refresh()
    table.append(pa.table({"writer": ["python"], "number": [4]}, schema=ROWS))
    java.sql(f"REFRESH TABLE {name}.shop.sales")
    java.sql(f"DELETE FROM {name}.shop.sales WHERE number = 2")

    expected = [("merge", 3), ("python", 1), ("python", 4)]
    assert expected == sorted(java.sql(f"SELECT * FROM {name}.shop.sales"))
    scanned = stock.load_table("shop.sales").scan().to_arrow().to_pylist()
    assert expected == sorted((row["writer"], row["number"]) for row in scanned)


COMMITS = int(os.environ.get("COMMITS", "60"))
"""So many are acknowledged, of all writers together."""

WORLDS: list[tuple[tuple[Kind, ...], str]] = [
    (("commit_coord", "rest", "spark", "java"), "hms"),
    (("commit_coord", "pyiceberg"), "hms"),
    (("commit_coord", "java"), "hms"),
    (("pyiceberg", "java"), "hms"),
    (("commit_coord", "pyiceberg", "java"), "hms"),
    (("commit_coord", "java"), "zookeeper"),
]
"""Who writes, and what our locks are. With ``zookeeper``, Java compares and sets: the table says so. ``rest`` and
``spark`` write through a REST server, whose locks are ours."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kinds, impl", WORLDS, ids=["-".join([*kinds, impl]) for kinds, impl in WORLDS])
def test_what_is_acknowledged_at_once_is_there(
    baseline: Metastore,
    servers: Servers,
    java: Java,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kinds: tuple[Kind, ...],
    impl: str,
) -> None:
    """Appends, overwrites, MERGE, DELETE, compaction and expiry of snapshots: nobody loses a commit to another one."""
    database = f"at_once_{WORLDS.index((kinds, impl))}"
    name, full = "t", f"{database}.t"
    stock = load_catalog("stock", type="hive", uri=baseline.uri)
    stock.create_namespace(database)
    lockless = {"engine.hive.lock-enabled": "false"} if impl == "zookeeper" else {}
    stock.create_table((database, name), SCHEMA, properties={**PROPERTIES, **lockless})
    ours = {"lock-impl": impl}
    if impl == "zookeeper":
        ours["lock.uri"] = request.getfixturevalue("ensemble").connect_string
    writers: dict[str, Kind] = {
        f"{kind}-{number}": kind for kind in kinds for number in range(1 if kind in ("java", "spark") else 2)
    }
    journals = [tmp_path / f"{writer}.jsonl" for writer in writers]

    for journal in journals:
        journal.touch()
    with ExitStack() as stack:
        seen = stack.enter_context(watched(baseline.uri, full))
        tap = stack.enter_context(Wiretap(baseline.port))
        threads = stack.enter_context(ThreadPoolExecutor())
        through_server: dict[str, str] = {}
        if "rest" in kinds:
            of_server = {"uri": tap.uri("server"), **ours}
            server = stack.enter_context(RestServer("shop", of_server, tmp_path / "server"))
            through_server = {"uri": server.url, "warehouse": "shop"}
        running: list[Running] = []
        for journal, kind in zip(journals, writers.values(), strict=True):
            own = {"uri": tap.uri(journal.stem)}
            match kind:
                case "java":
                    waits = "hadoop.iceberg.hive.lock-check-max-wait-ms"
                    catalog = java.catalog(baseline, **{"cache-enabled": "false", waits: "200", **own})
                    running.append(threads.submit(write_java, java, journal, catalog, full))
                case "spark":
                    catalog = java.catalog(baseline, **{"cache-enabled": "false", "type": "rest", **through_server})
                    running.append(threads.submit(write_java, java, journal, catalog, full))
                case "rest":
                    running.append(start_python(kind, journal, full, through_server))
                case "commit_coord":
                    running.append(start_python(kind, journal, full, {**own, **ours}))
                case "pyiceberg":
                    running.append(start_python(kind, journal, full, own))
        await_enough(journals, COMMITS, alive=lambda: all(map(runs, running)))
        await_end(running)

    table = stock.load_table(full)
    rows = [(row["key"], row["value"]) for row in table.scan().to_arrow().to_pylist()]
    proof = prove(journals, seen, table.metadata_location, rows)
    print(proof)
    assert [] == proof.broken
    assert COMMITS <= proof.count("acknowledged")
    assert sorted(rows) == sorted(java.sql(f"SELECT * FROM {java.catalog(baseline)}.{full}"))
    if impl == "hms":
        queued, swaps = locks_and_swaps(tap.calls, database, name)
        assert proof.swaps == len(swaps)
        assert [] == overtaken(queued, swaps, requests_in)
        assert 0 == proof.count("refused", "commit_coord") + proof.count("unknown", "commit_coord")
        with MetastoreClient.of(baseline.uri) as client:
            assert [] == client.show_locks(database, name)
            client.close()


# Tables of ours in the hands of Java.

MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"}


def two(number: int) -> pa.Table:
    """Return two rows that are in one file."""
    return pa.table({"writer": ["ours"] * 2, "number": [number, number + 100]}, schema=ROWS)


def merge_once(table: Any) -> None:
    table.append(two(5))


def merge_often(table: Any) -> None:
    for number in range(5, 12):
        table.append(two(number))


def delete_a_row(table: Any) -> None:
    table.delete("number = 1")


def overwrite_a_row(table: Any) -> None:
    table.overwrite(two(20), "number = 101")


def compact(table: Any) -> None:
    table.append(two(5))
    table.compact()
    table.append(two(6))


@pytest.mark.parametrize(
    "change, merged_before",
    [(merge_once, False), (merge_often, True), (delete_a_row, True), (overwrite_a_row, True), (compact, False)],
)
def test_java_reads_and_rewrites_what_was_merged_after_an_upgrade(
    baseline: Metastore, java: Java, change: Callable[[Any], None], merged_before: bool
) -> None:
    """Files of version 1 have no sequence numbers of their own; Java reads no entry of version 2 without one."""
    name, label = java.catalog(baseline, **{"cache-enabled": "false"}), change.__name__
    with closing(commit_coord.load_catalog("ours", uri=f"coord+{baseline.uri}", **{"lock-impl": "hms"})) as ours:
        ours.create_namespace_if_not_exists("upgraded")
        first = {**MERGING, "commit.manifest-merge.enabled": str(merged_before).lower(), "format-version": "1"}
        table: Any = ours.create_table(("upgraded", label), ROWS, properties=first)
        for number in range(5):
            table.append(two(number))
        with table.transaction() as tx:
            tx.upgrade_table_version(2)
            tx.set_properties(MERGING)
        change(table)
        expected = {row["number"] for row in table.scan().to_arrow().to_pylist()}
        entries = [
            entry
            for manifest in table.current_snapshot().manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        ]
        assert any(entry.status is not ManifestEntryStatus.ADDED for entry in entries), "some are written anew"

        full = f"upgraded.{label}"
        stock = load_catalog("stock", type="hive", uri=baseline.uri)
        statements: list[tuple[str, set[int]]] = [
            (f"DELETE FROM {name}.{full} WHERE number = 2", {2}),
            (f"CALL {name}.system.rewrite_manifests('{full}')", set()),
            (f"ALTER TABLE {name}.{full} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')", set()),
            (f"DELETE FROM {name}.{full} WHERE number = 103", {103}),
            (f"CALL {name}.system.rewrite_data_files(table => '{full}', options => map('rewrite-all', 'true'))", set()),
        ]
        for number, (statement, gone) in enumerate(statements):
            assert sorted(expected) == sorted(row[0] for row in java.sql(f"SELECT number FROM {name}.{full}"))
            java.sql(statement)
            table.refresh().append(two(30 + number))
            expected = expected - gone | {30 + number, 130 + number}
            for reader in (table, stock.load_table(full)):
                assert sorted(expected) == sorted(reader.scan().to_arrow()["number"].to_pylist()), statement
        assert sorted(expected) == sorted(row[0] for row in java.sql(f"SELECT number FROM {name}.{full}"))


def test_java_takes_the_name_of_a_guarded_table_while_its_writers_write(
    baseline: Metastore, java: Java, tmp_path: Path
) -> None:
    """Its CREATE waits for the metastore's lock, which the guard of the old table has as long as a client extends it.

    What is acknowledged to our writer is in the table that had the name then, and in no other one. It rests during the
    RENAME, for which Java takes no lock and sets the metadata location that it has read before; and during the REPLACE,
    which Java gives up after a few conflicts. The guard is extended all the time.
    """
    locks = {"lock-impl": "lease", "lock.uri": f"sqlite:///{tmp_path}/locks.db"}
    quick = {"lock.heartbeat-timeout-ms": "1500", "lock.heartbeat-interval-ms": "500"}
    name = java.catalog(baseline, **{"cache-enabled": "false", "hadoop.iceberg.hive.lock-timeout-ms": "60000"})
    old, new = f"{name}.taken.t", f"{name}.taken.u"
    acknowledged: dict[str, set[int]] = {}
    unknown: set[int] = set()
    turn, ends = threading.Lock(), threading.Event()
    with closing(commit_coord.load_catalog("ours", uri=f"coord+{baseline.uri}", **locks, **quick)) as ours:
        ours.create_namespace("taken")
        table = ours.create_table("taken.t", ROWS)

        def write() -> None:
            """Append to the table that was loaded for as long as that is not refused, then to the next one."""
            written, number = table, 0
            while not ends.is_set():
                number += 1
                try:
                    with turn:
                        written.append(pa.table({"writer": ["ours"], "number": [number]}, schema=ROWS))
                    acknowledged.setdefault(str(written.metadata.table_uuid), set()).add(number)
                except (CommitFailedException, CommitStateUnknownException, NoSuchTableError) as error:
                    if isinstance(error, CommitStateUnknownException):
                        unknown.add(number)
                    with suppress(NoSuchTableError):
                        written = ours.load_table("taken.t")

        def goes_on() -> None:
            """Return when a row is acknowledged in the table that has the name."""
            uuid = str(ours.load_table("taken.t").metadata.table_uuid)
            before = len(acknowledged.get(uuid, ()))
            until(lambda: len(acknowledged.get(uuid, ())) > before, "a row in the table of that name")

        def rows_of(identifier: str) -> set[int]:
            numbers = [row[0] for row in java.sql(f"SELECT number FROM {identifier}")]
            assert len(set(numbers)) == len(numbers)
            return set(numbers)

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write)
            try:
                goes_on()
                with turn:
                    java.sql(f"ALTER TABLE {old} RENAME TO {new}")
                java.sql(f"CREATE TABLE {old} (writer string, number bigint) USING iceberg")
                goes_on()
                java.sql(f"DROP TABLE {old}")
                java.sql(f"CREATE TABLE {old} (writer string, number bigint) USING iceberg")
                goes_on()
                third = str(ours.load_table("taken.t").metadata.table_uuid)
                with turn:
                    java.sql(f"CREATE OR REPLACE TABLE {old} USING iceberg AS SELECT 'java' writer, -1L number")
                goes_on()
            finally:
                ends.set()
            writer.result()
        assert rows_of(new) - unknown == acknowledged[str(table.metadata.table_uuid)]
        assert rows_of(old) - unknown - {-1} < acknowledged[third], "the rows before it was replaced are gone"
        assert -1 in rows_of(old)
        ours.load_table("taken.u").append(pa.table({"writer": ["ours"], "number": [0]}, schema=ROWS))
        assert 0 in rows_of(new)
