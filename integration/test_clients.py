"""Clients of every engine through the REST server, on a Hive Metastore: they read and continue what others write."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.rest import RestCatalog

import commit_coord
from commit_coord.errors import ConfigError
from commit_coord.local import NotInstalled, RestServer
from integration.clients import NAMESPACE, SHOP, WAREHOUSE, Client, DuckDB, Flink, IcebergGo, PyIceberg, Row, Spark
from integration.conftest import Java, Servers

pytestmark = [pytest.mark.jvm, pytest.mark.hms, pytest.mark.timeout(600)]

NAMES = ("spark", "pyiceberg", "flink", "iceberg-go", "library", "duckdb")

Clients = Callable[[str], Client]
Properties = Mapping[str, str]


@pytest.fixture(scope="module")
def properties(servers: Servers) -> Properties:
    """The catalog."""
    return {"uri": servers.metastore().uri, "lock-impl": "hms"}


@pytest.fixture(scope="module")
def server(properties: Properties) -> Iterator[RestServer]:
    """The server of the catalog."""
    with RestServer(WAREHOUSE, properties) as made:
        yield made


@pytest.fixture(scope="module")
def clients(
    server: RestServer, properties: Properties, java: Java, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clients]:
    """Return the client of a name; it is started when it is asked for the first time."""
    folder = tmp_path_factory.mktemp("clients")
    started: dict[str, Client | Exception] = {}

    def start(name: str) -> Client:
        place = folder / name
        place.mkdir()
        match name:
            case "spark":
                return Spark(java.spark, server.url)
            case "pyiceberg":
                return PyIceberg(RestCatalog(SHOP, uri=server.url, warehouse=WAREHOUSE))
            case "duckdb":
                return DuckDB(server.url)
            case "flink":
                return Flink(server.url, place)
            case "iceberg-go":
                return IcebergGo(server.url, place)
            case _:
                return PyIceberg(commit_coord.load_catalog(SHOP, **properties))

    def get(name: str) -> Client:
        if name not in started:
            try:
                started[name] = start(name)
            except (ConfigError, NotInstalled) as error:
                started[name] = error  # the next test is skipped at once
        if isinstance(found := started[name], Exception):
            pytest.skip(f"{name}: {found}")
        return found

    library = get("library")
    assert isinstance(library, PyIceberg)
    library.catalog.create_namespace(NAMESPACE)
    try:
        yield get
    finally:
        for client in started.values():
            if isinstance(client, Client):
                client.close()


def _can_read(reader: str, writers: Collection[str]) -> bool:
    """Return whether *reader* reads what all *writers* write.

    DuckDB 1.5 writes the name of the file format in small letters, which iceberg-go 0.7 does not know.
    """
    return reader != "iceberg-go" or "duckdb" not in writers


@pytest.mark.parametrize("owner", NAMES)
def test_what_one_writes_the_others_read_and_continue(clients: Clients, owner: str) -> None:
    table = f"of_{owner}".replace("-", "_")
    first = clients(owner)
    first.create(table)
    first.append(table, 1, "one")
    first.evolve(table)
    first.append(table, 2, "two", "new")
    expected: list[Row] = [(1, "one", None), (2, "two", "new")]
    assert expected == first.rows(table)
    writers = [owner]
    for key, other in enumerate((name for name in NAMES if name != owner), 3):
        if _can_read(other, writers):
            assert expected == clients(other).rows(table), other
        clients(other).append(table, key, "more", other)
        expected.append((key, "more", other))
        writers.append(other)
    if _can_read(owner, writers):
        assert expected == first.rows(table)


@pytest.fixture
def spark(clients: Clients) -> Spark:
    """Spark SQL through the server."""
    found = clients("spark")
    assert isinstance(found, Spark)
    return found


def _everybody_reads(clients: Clients, table: str, expected: list[Row], writer: str = "spark") -> None:
    for name in (name for name in NAMES if _can_read(name, [writer])):
        assert expected == clients(name).rows(table), name


def test_statements_of_spark_are_read_by_everybody(clients: Clients, spark: Spark) -> None:
    """INSERT, MERGE, UPDATE, DELETE, INSERT OVERWRITE."""
    spark.create("statements")
    name = f"{SHOP}.{NAMESPACE}.statements"
    spark.ask(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    spark.ask(
        f"MERGE INTO {name} t USING (SELECT 3 AS key, 'C' AS value UNION ALL SELECT 4, 'd') s ON t.key = s.key "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    spark.ask(f"UPDATE {name} SET value = 'B' WHERE key = 2")
    spark.ask(f"DELETE FROM {name} WHERE key = 1")
    _everybody_reads(clients, "statements", [(2, "B"), (3, "C"), (4, "d")])

    spark.ask(f"INSERT OVERWRITE {name} SELECT key, upper(value) FROM {name} WHERE key > 2")
    _everybody_reads(clients, "statements", [(3, "C"), (4, "D")])


def test_a_stream_of_spark_is_read_by_everybody(clients: Clients, spark: Spark, tmp_path: Path) -> None:
    spark.create("streamed")
    rows = spark.spark.range(5).selectExpr("id AS key", "CAST(id AS STRING) AS value")
    rows.repartition(3).write.parquet(f"file://{tmp_path}/in")
    source = spark.spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(f"file://{tmp_path}/in")
    query = (
        source.writeStream.option("checkpointLocation", f"file://{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .toTable(f"{SHOP}.{NAMESPACE}.streamed")
    )
    assert query.awaitTermination(300)
    _everybody_reads(clients, "streamed", [(number, str(number)) for number in range(5)])


def test_procedures_of_spark_change_no_row(clients: Clients, spark: Spark) -> None:
    """Compaction, expiry of snapshots, rewritten manifests, a rollback."""
    spark.create("maintained")
    for key in range(4):
        spark.append("maintained", key, str(key))
    name, table = f"{SHOP}.{NAMESPACE}.maintained", f"table => '{NAMESPACE}.maintained'"
    (kept,) = spark.ask(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at DESC LIMIT 1")
    spark.append("maintained", 9, "nine")
    spark.ask(f"CALL {SHOP}.system.rollback_to_snapshot({table}, snapshot_id => {kept[0]})")
    (rewritten,) = spark.ask(f"CALL {SHOP}.system.rewrite_data_files({table}, options => map('min-input-files', '2'))")
    assert 4 == rewritten[0]
    spark.ask(f"CALL {SHOP}.system.rewrite_manifests({table})")
    spark.ask(f"CALL {SHOP}.system.expire_snapshots({table}, older_than => CAST(now() AS TIMESTAMP), retain_last => 1)")
    assert 1 == len(spark.ask(f"SELECT * FROM {name}.snapshots"))
    _everybody_reads(clients, "maintained", [(key, str(key)) for key in range(4)])


def test_definitions_of_spark_are_read_by_everybody(clients: Clients, spark: Spark) -> None:
    """CREATE TABLE AS, a partition field, REPLACE TABLE AS, RENAME, a branch that is published."""
    name = f"{SHOP}.{NAMESPACE}.defined"
    spark.ask(f"CREATE TABLE {name} USING iceberg AS SELECT CAST(id AS BIGINT) AS key, 'a' AS value FROM range(3)")
    spark.ask(f"ALTER TABLE {name} ADD PARTITION FIELD bucket(4, key)")
    spark.append("defined", 3, "b")
    _everybody_reads(clients, "defined", [(0, "a"), (1, "a"), (2, "a"), (3, "b")])

    spark.ask(f"REPLACE TABLE {name} USING iceberg AS SELECT CAST(7 AS BIGINT) AS key, 'new' AS value")
    spark.ask(f"ALTER TABLE {name} CREATE BRANCH checked")
    spark.ask(f"INSERT INTO {name}.branch_checked VALUES (8, 'checked')")
    _everybody_reads(clients, "defined", [(7, "new")])
    spark.ask(f"CALL {SHOP}.system.fast_forward('{NAMESPACE}.defined', 'main', 'checked')")
    spark.ask(f"ALTER TABLE {name} RENAME TO {NAMESPACE}.renamed")
    _everybody_reads(clients, "renamed", [(7, "new"), (8, "checked")])


def test_changes_of_duckdb_are_read_by_everybody(clients: Clients) -> None:
    duckdb: Any = clients("duckdb")
    duckdb.create("changed")
    name = f"{SHOP}.{NAMESPACE}.changed"
    duckdb.ask(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    duckdb.ask(f"UPDATE {name} SET value = 'B' WHERE key = 2")
    duckdb.ask(f"DELETE FROM {name} WHERE key = 1")
    _everybody_reads(clients, "changed", [(2, "B"), (3, "c")], "duckdb")


def test_the_example_does_nothing_twice(clients: Clients, server: RestServer) -> None:
    """``examples/spark_through_rest.py``, as a user starts it, two drivers, one of them twice."""
    example = Path(__file__).parents[1] / "examples" / "spark_through_rest.py"
    outputs = [_driver(example, server.url, name) for name in ("first", "second", "first")]
    assert [4, 4, 0] == [text.count(" done\n") for text in outputs]
    assert 4 == outputs[2].count(" was done before\n")
    # 100 rows and 10 more, without 10; 20 of them have 2 instead of 1, 5 have 10 more.
    library = clients("library")
    assert isinstance(library, PyIceberg)
    rows = library.catalog.load_table("sales.orders").scan().to_arrow()
    for name in ("first", "second"):
        amounts = rows.filter(pc.equal(rows["driver"], name))["amount"]
        assert (100, 75 * 1 + 20 * 2 + 5 * 11) == (len(amounts), pc.sum(amounts).as_py())


def _driver(example: Path, url: str, name: str) -> str:
    command = [sys.executable, str(example), url, WAREHOUSE, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert 0 == done.returncode, done.stderr[-3000:]
    found: str = done.stdout
    return found
