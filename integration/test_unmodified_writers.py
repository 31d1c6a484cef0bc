"""We and writers that know nothing of us, on one table of one metastore, at the same time.

``COMMITS=1000 make integration ARGS="-k at_once"`` has them make so many commits instead of a few.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from commit_coord.hms.client import MetastoreClient
from commit_coord.local import RestServer
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
"""Who writes, and what our locks are. Beside ``zookeeper`` Java compares and sets: the table says so. ``rest`` and
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
