"""Java's JDBC catalog, through Spark SQL, and ours on one SQLite file: each reads and writes the other's tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from commit_coord.iceberg.view_metadata import AddViewVersion, SetCurrentViewVersion
from commit_coord.local.maven import maven_jar
from tests import limits
from tests.catalog.kit import Kit, frame, ids, kit, row_ids, rows

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
DRIVER = "org.xerial:sqlite-jdbc:3.46.0.0"
BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))

JAVA = """
    import json, sys
    from pyspark.sql import SparkSession
    jars, name, database, warehouse = sys.argv[1:]
    prefix = f"spark.sql.catalog.{name}"
    spark = (
        SparkSession.builder.master("local[2]").appName("java")
        .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "1g")
        .config("spark.jars", jars).config("spark.driver.extraClassPath", jars.replace(",", ":"))
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config(prefix, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{prefix}.catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
        .config(f"{prefix}.uri", f"jdbc:sqlite:{database}?busy_timeout=30000")
        .config(f"{prefix}.jdbc.schema-version", "V1")
        .config(f"{prefix}.warehouse", warehouse)
        .config(f"{prefix}.cache-enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = {"rows": [list(row) for row in spark.sql(json.loads(line)).collect()]}
        except Exception as error:
            answer = {"error": str(error)[:2000]}
        print("answer " + json.dumps(answer, default=str), flush=True)
    spark.stop()
"""


def jar(coordinates: str) -> Path:
    """Return a jar from the folder COMMIT_COORD_JARS, else through Maven."""
    _, artifact, version = coordinates.split(":")
    folder = os.environ.get("COMMIT_COORD_JARS")
    found = Path(folder) / f"{artifact}-{version}.jar" if folder else None
    return found if found is not None and found.is_file() else maven_jar(coordinates)


class Java:
    """Spark SQL in a process of its own."""

    def __init__(self, kit: Kit) -> None:
        jars = ",".join(str(jar(coordinates)) for coordinates in (RUNTIME, DRIVER))
        self._log = open(kit.folder / "java.log", "w")  # noqa: SIM115 - closed below
        self._process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(JAVA), jars, kit.name, f"{kit.folder}/catalog.db", kit.warehouse],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._read("ready", kit)
        self._kit = kit

    def _read(self, word: str, kit: Kit) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise AssertionError((kit.folder / "java.log").read_text()[-3000:])

    def sql(self, statement: str) -> list[list[Any]]:
        """Return the rows that *statement* answers with."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read("answer", self._kit))
        assert "error" not in answer, answer["error"]
        found: list[list[Any]] = answer["rows"]
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(limits.PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Kit]:
    """Our catalog with leases."""
    with kit("lease") as made:
        yield made


@pytest.fixture(scope="module")
def java(shared: Kit) -> Iterator[Java]:
    """Java on the same database."""
    started = Java(shared)
    yield started
    started.close()


def sql_name(kit: Kit, table: Any) -> str:
    """Return the name of *table* in Spark SQL."""
    return ".".join([kit.name, *table.name()])


def test_java_reads_what_we_write(shared: Kit, java: Java) -> None:
    table = shared.table(ids(1, 2), ids(3), partition_spec=BY_S)
    first = table.current_snapshot().snapshot_id
    table.append(ids())
    table.delete("id = 2")
    table.overwrite(frame((1, "1"), (4, "4")), "id = 1")
    table.manage_snapshots().create_branch(first, "dev", min_snapshots_to_keep=2).create_tag(first, "v1").commit()
    table.append(ids(9), branch="dev")
    with table.update_schema() as changes:
        changes.add_column("more", LongType())
        changes.rename_column("s", "text")
    with table.update_spec() as spec:
        spec.remove_field("s")
    table.append(pa.table({"id": [5], "text": ["5"], "more": [50]}))
    with table.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    name = sql_name(shared, table)
    assert java.sql(f"SELECT id, text, more FROM {name} ORDER BY id") == [
        [1, "1", None],
        [3, "3", None],
        [4, "4", None],
        [5, "5", 50],
    ]
    assert [row[0] for row in java.sql(f"SELECT id FROM {name} VERSION AS OF 'dev' ORDER BY id")] == [1, 2, 3, 9]
    assert [row[0] for row in java.sql(f"SELECT id FROM {name} VERSION AS OF 'v1' ORDER BY id")] == [1, 2, 3]
    assert [row[0] for row in java.sql(f"SELECT snapshot_id FROM {name}.history")] == [
        entry.snapshot_id for entry in table.history()
    ]
    assert sorted(row[0] for row in java.sql(f"SELECT snapshot_id FROM {name}.snapshots")) == sorted(
        snapshot.snapshot_id for snapshot in table.snapshots()
    )
    assert java.sql(f"SELECT count(*) FROM {name}.entries")[0][0] == len(table.inspect.entries())


def test_java_and_we_create_replace_and_read_each_others_views(shared: Kit, java: Java) -> None:
    table = shared.table(ids(1, 2, 3))
    ours, theirs = (table.name()[0], "ours"), (table.name()[0], "theirs")
    query = f"SELECT id FROM {sql_name(shared, table)} WHERE id >"
    schema = Schema(NestedField(1, "id", LongType()))

    def version(sql: str) -> ViewVersion:
        representation = ViewRepresentation(SQLViewRepresentation(type="sql", sql=sql, dialect="spark"))
        return ViewVersion(
            schema_id=0, representations=[representation], default_catalog=shared.name, default_namespace=ours[:1]
        )

    shared.catalog.create_view(ours, schema, version(f"{query} 1"))
    name = f"{shared.name}.{'.'.join(ours)}"
    assert [[2], [3]] == java.sql(f"SELECT * FROM {name} ORDER BY id")
    java.sql(f"CREATE OR REPLACE VIEW {name} AS {query} 2")
    assert [f"{query} 1", f"{query} 2"] == [
        v.representations[0].root.sql for v in shared.catalog.load_view(ours).versions
    ]
    java.sql(f"CREATE VIEW {shared.name}.{'.'.join(theirs)} COMMENT 'of Java' AS {query} 0")
    assert [ours, theirs] == sorted(shared.catalog.list_views(ours[0]))
    assert "of Java" == shared.catalog.load_view(theirs).properties["comment"]
    updates = [AddViewVersion(view_version=version(f"{query} 2")), SetCurrentViewVersion(view_version_id=-1)]
    shared.catalog.commit_view(theirs, [], updates)
    assert [[3]] == java.sql(f"SELECT id FROM {shared.name}.{'.'.join(theirs)}")
    shared.catalog.drop_view(theirs)
    java.sql(f"DROP VIEW {name}")
    assert [] == shared.catalog.list_views(ours[0])
    assert [] == java.sql(f"SHOW VIEWS IN {shared.name}.{ours[0]}")


@pytest.mark.parametrize(
    "properties",
    [
        {"format-version": "1"},
        {"format-version": "2"},
        {"write.metadata.compression-codec": "gzip", "write.metadata.delete-after-commit.enabled": "true"},
        {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"},
    ],
    ids=["version 1", "version 2", "gzip", "merged manifests"],
)
def test_java_and_we_take_turns(shared: Kit, java: Java, properties: dict[str, str]) -> None:
    table = shared.table(ids(1), properties=properties)
    name = sql_name(shared, table)
    for turn in range(3):
        java.sql(f"INSERT INTO {name} VALUES ({10 + turn}, 'java')")
        stale = shared.again(table)
        table.append(ids(20 + turn))
        stale.append(ids(30 + turn))
    expected = sorted([1, *(base + turn for base in (10, 20, 30) for turn in range(3))])
    assert row_ids(shared.again(table)) == expected
    assert [row[0] for row in java.sql(f"SELECT id FROM {name} ORDER BY id")] == expected
    metadata = shared.again(table).metadata
    if properties.get("format-version") != "1":
        assert [s.sequence_number for s in metadata.snapshots] == list(range(1, len(metadata.snapshots) + 1))
    assert [s.parent_snapshot_id for s in metadata.snapshots[1:]] == [s.snapshot_id for s in metadata.snapshots[:-1]]


def test_java_changes_and_compacts_between_our_commits(shared: Kit, java: Java) -> None:
    table = shared.table(*(ids(number) for number in range(1, 7)))
    name = sql_name(shared, table)
    java.sql(f"UPDATE {name} SET s = 'updated' WHERE id = 1")
    table.append(ids(7))
    java.sql(f"DELETE FROM {name} WHERE id = 2")
    table.refresh().overwrite(frame((3, "ours")), "id = 3")
    source = "SELECT 4L AS id, 'merged' AS s UNION ALL SELECT 8L, 'inserted'"
    java.sql(
        f"MERGE INTO {name} t USING ({source}) u ON t.id = u.id "
        "WHEN MATCHED THEN UPDATE SET s = u.s WHEN NOT MATCHED THEN INSERT *"
    )
    stale = shared.again(table)
    java.sql(f"CALL {shared.name}.system.rewrite_data_files(table => '{'.'.join(table.name())}', "
             "options => map('min-input-files', '2'))")  # fmt: skip
    stale.append(ids(9))
    java.sql(f"CALL {shared.name}.system.rewrite_manifests('{'.'.join(table.name())}')")
    stale.append(ids(10))
    java.sql(
        f"CALL {shared.name}.system.expire_snapshots(table => '{'.'.join(table.name())}', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    assert len(shared.again(table).snapshots()) == 1
    stale.append(ids(11))
    expected = [
        (1, "updated"),
        *((3, "ours"), (4, "merged"), (5, "5"), (6, "6"), (7, "7"), (8, "inserted"), (9, "9")),
        *((10, "10"), (11, "11")),
    ]
    assert sorted(rows(shared.again(table))) == expected
    assert [tuple(row) for row in java.sql(f"SELECT id, s FROM {name} ORDER BY id")] == expected
    table.refresh().delete("id >= 5")
    assert [row[0] for row in java.sql(f"SELECT id FROM {name} ORDER BY id")] == [1, 3, 4]


def test_merge_on_read_deletes_of_java_are_kept(shared: Kit, java: Java) -> None:
    table = shared.table(ids(1, 2, 3), properties={"write.delete.mode": "merge-on-read", "format-version": "2"})
    name = sql_name(shared, table)
    stale = shared.again(table)
    java.sql(f"DELETE FROM {name} WHERE id = 2")
    stale.append(ids(4))
    assert java.sql(f"SELECT count(*) FROM {name}.delete_files")[0][0] == 1
    assert row_ids(shared.again(table)) == [1, 3, 4]
    assert [row[0] for row in java.sql(f"SELECT id FROM {name} ORDER BY id")] == [1, 3, 4]


def test_tables_of_java_are_ours_too(shared: Kit, java: Java) -> None:
    name = f"{shared.name}.{shared.namespace}.made_by_java"
    java.sql(f"CREATE TABLE {name} (id BIGINT, s STRING) USING iceberg PARTITIONED BY (s)")
    java.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    table = shared.catalog.load_table((shared.namespace, "made_by_java"))
    table.append(frame((3, "a")))
    table.dynamic_partition_overwrite(frame((4, "a")))
    java.sql(f"ALTER TABLE {name} ADD COLUMN more INT")
    java.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('who' = 'java')")
    table.append(frame((5, "c")))
    assert [row[0] for row in java.sql(f"SELECT id FROM {name} ORDER BY id")] == [2, 4, 5]
    assert table.properties["who"] == "java"
    renamed = shared.catalog.rename_table(table.name(), (shared.namespace, "renamed_by_us"))
    assert java.sql(f"SELECT count(*) FROM {shared.name}.{shared.namespace}.renamed_by_us") == [[3]]
    listed = {row[1] for row in java.sql(f"SHOW TABLES IN {shared.name}.{shared.namespace}")}
    assert "renamed_by_us" in listed
    shared.catalog.drop_table(renamed.name())
    assert "renamed_by_us" not in {row[1] for row in java.sql(f"SHOW TABLES IN {shared.name}.{shared.namespace}")}


def test_java_lists_and_makes_namespaces_as_we_do(shared: Kit, java: Java) -> None:
    java.sql(f"CREATE NAMESPACE {shared.name}.from_java")
    assert shared.catalog.namespace_exists("from_java")
    shared.catalog.create_namespace("from_us")
    assert {"from_java", "from_us"} <= {row[0] for row in java.sql(f"SHOW NAMESPACES IN {shared.name}")}


OURS = """
    import sys
    import commit_coord
    from tests.catalog.kit import ids
    uri, warehouse, name, table, count = sys.argv[1:]
    catalog = commit_coord.load_catalog(name, uri=f"coord+{uri}", warehouse=warehouse, **{"lock-impl": "lease"})
    found = catalog.load_table(table)
    for number in range(int(count)):
        found.append(ids(1000 + number))
        print(1000 + number, flush=True)
    catalog.close()
"""


def test_java_and_we_write_at_one_time_and_nothing_acknowledged_is_lost(shared: Kit, java: Java) -> None:
    """Java retries on its own; what it gives up on it reports."""
    table = shared.table(properties={"commit.retry.num-retries": "50", "commit.retry.max-wait-ms": "500"})
    name = sql_name(shared, table)
    ours: list[int] = []
    arguments = [shared.uri, shared.warehouse, shared.name, ".".join(table.name()), "15"]

    def write() -> None:
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(OURS), *arguments],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        ours.extend(int(line) for line in ended.stdout.split())

    thread = threading.Thread(target=write)
    thread.start()
    theirs: list[int] = []
    while thread.is_alive() and len(theirs) < 30:
        java.sql(f"INSERT INTO {name} VALUES ({len(theirs)}, 'java')")
        theirs.append(len(theirs))
    thread.join()
    assert len(ours) == 15
    assert len(theirs) >= 3
    assert row_ids(shared.again(table)) == sorted(ours + theirs)
    assert [row[0] for row in java.sql(f"SELECT id FROM {name} ORDER BY id")] == sorted(ours + theirs)
    assert shared.held() == []
