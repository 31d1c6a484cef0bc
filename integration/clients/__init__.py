"""Clients of the REST server: each creates a table, appends to it, adds a column to it, and reads it, in its own way.

A table has the columns ``key`` (long) and ``value`` (string), and ``note`` (string) once it has evolved.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.types import StringType

from commit_coord.local import NotInstalled
from commit_coord.local.java import LOG4J, compile_java, find_java, pyspark_jars
from commit_coord.local.maven import maven_class_path
from tests.proof.rows.read.readers import connect_duckdb

SHOP = "shop"
"""What the catalog is called by its clients."""

NAMESPACE = "clients"
WAREHOUSE = "shop"

Row = tuple[Any, ...]

_HERE = Path(__file__).parent


class Client(ABC):
    """One client."""

    @abstractmethod
    def create(self, table: str) -> None:
        """Create *table*."""

    @abstractmethod
    def append(self, table: str, *row: int | str) -> None:
        """Append one row: its key, its value and, where the table has it, its note."""

    @abstractmethod
    def evolve(self, table: str) -> None:
        """Add the column ``note``."""

    @abstractmethod
    def rows(self, table: str) -> list[Row]:
        """Return all rows, sorted by their keys."""

    @abstractmethod
    def close(self) -> None:
        """Stop what runs."""


class Sql(Client):
    """A client that speaks SQL."""

    integer, text, using = "BIGINT", "STRING", ""

    @abstractmethod
    def ask(self, statement: str) -> list[Row]:
        """Carry out *statement* and return its rows."""

    def create(self, table: str) -> None:
        self.ask(f"CREATE TABLE {self._name(table)} (`key` {self.integer}, `value` {self.text}){self.using}")

    def append(self, table: str, *row: int | str) -> None:
        self.ask(f"INSERT INTO {self._name(table)} VALUES {row}")

    def evolve(self, table: str) -> None:
        self.ask(f"ALTER TABLE {self._name(table)} ADD COLUMN note {self.text}")

    def rows(self, table: str) -> list[Row]:
        return sorted(self.ask(f"SELECT * FROM {self._name(table)}"))

    def _name(self, table: str) -> str:
        return f"{SHOP}.{NAMESPACE}.{table}"


class Spark(Sql):
    """Spark SQL, from catalog properties alone.

    Args:
        spark: A session with Iceberg's runtime.
        url: The server.
    """

    using = " USING iceberg"

    def __init__(self, spark: Any, url: str) -> None:
        self.spark = spark
        place = f"spark.sql.catalog.{SHOP}"
        spark.conf.set(place, "org.apache.iceberg.spark.SparkCatalog")
        for key, value in {"type": "rest", "uri": url, "warehouse": WAREHOUSE, "cache-enabled": "false"}.items():
            spark.conf.set(f"{place}.{key}", value)

    def ask(self, statement: str) -> list[Row]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def close(self) -> None:
        pass  # the session is not ours


class DuckDB(Sql):
    """DuckDB with its Iceberg extension, which writes through the server."""

    text = "VARCHAR"

    def __init__(self, url: str) -> None:
        self._connection = connect_duckdb("httpfs", "avro", "iceberg")
        self.ask(f"ATTACH '{WAREHOUSE}' AS {SHOP} (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")

    def ask(self, statement: str) -> list[Row]:
        rows: list[Row] = self._connection.execute(statement.replace("`", '"')).fetchall()
        return rows

    def close(self) -> None:
        self._connection.close()


class PyIceberg(Client):
    """PyIceberg: with its own REST client, or the library with its own catalog.

    Args:
        catalog: The catalog.
    """

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def create(self, table: str) -> None:
        self.catalog.create_table((NAMESPACE, table), pa.schema([("key", pa.int64()), ("value", pa.string())]))

    def append(self, table: str, *row: int | str) -> None:
        loaded = self.catalog.load_table((NAMESPACE, table))
        names = [field.name for field in loaded.schema().fields]
        loaded.append(pa.Table.from_pylist([dict(zip(names, row, strict=False))], loaded.schema().as_arrow()))

    def evolve(self, table: str) -> None:
        with self.catalog.load_table((NAMESPACE, table)).update_schema() as update:
            update.add_column("note", StringType())

    def rows(self, table: str) -> list[Row]:
        return _sorted(self.catalog.load_table((NAMESPACE, table)).scan().to_arrow().to_pylist())

    def close(self) -> None:
        self.catalog.close()


class Flink(Sql):
    """Flink SQL on a cluster in one process.

    Args:
        url: The server.
        folder: For the classes of the program, and its log.

    Raises:
        NotInstalled: Java is missing.
        ConfigError: Maven is missing, or did not get Flink.
    """

    def __init__(self, url: str, folder: Path) -> None:
        java = find_java(range(17, 22))
        # Iceberg's Flink runtime wants Hadoop's configuration on the class path, also for the REST catalog.
        jars = [*maven_class_path(_HERE / "flink" / "pom.xml"), *pyspark_jars("hadoop-client-*.jar", "log4j-*.jar")]
        class_path = os.pathsep.join(map(str, jars))
        compile_java(java, [_HERE / "flink" / "Sql.java"], class_path, folder)
        (folder / "log4j2.properties").write_text(LOG4J.replace("=warn", "=error"))
        opens = [
            f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in ("java.lang", "java.util", "java.net", "java.time")
        ]
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(str(java), "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *opens),
                    f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
                    *("-cp", f"{folder}{os.pathsep}{class_path}", "Sql"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
            )
        self.ask(
            f"CREATE CATALOG {SHOP} WITH ('type'='iceberg', 'catalog-type'='rest', 'uri'='{url}', "
            f"'warehouse'='{WAREHOUSE}', 'cache-enabled'='false')"
        )

    def ask(self, statement: str) -> list[Row]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{statement}\n")
        self._process.stdin.flush()
        found = []
        for line in self._process.stdout:
            kind, *values = line.rstrip("\n").split("\t")
            match kind:
                case "row":
                    found.append(tuple(None if value == "null" else value for value in values))
                case "done":
                    return found
                case _:
                    raise RuntimeError(line)
        raise RuntimeError(f"Flink ended: {self._log.read_text()[-2000:]}")

    def evolve(self, table: str) -> None:
        self.ask(f"ALTER TABLE {self._name(table)} ADD (note STRING)")

    def rows(self, table: str) -> list[Row]:
        found = super().rows(table)
        return sorted((int(key), *values) for key, *values in found)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class IcebergGo(Client):
    """iceberg-go, in a process of its own for each call.

    Args:
        url: The server.
        folder: For the program.

    Raises:
        NotInstalled: Go is missing, or did not build the program.
    """

    def __init__(self, url: str, folder: Path) -> None:
        go = shutil.which("go")
        if go is None:
            raise NotInstalled("iceberg-go needs Go 1.25 or later on the PATH")
        self._program, self._url = folder / "client", url
        command = [go, "build", "-o", str(self._program), "."]
        built = subprocess.run(command, cwd=_HERE / "go", capture_output=True, text=True, check=False)
        if built.returncode:
            raise NotInstalled(f"iceberg-go could not be built: {built.stderr.strip()[-500:]}")

    def _ask(self, what: str, table: str, *arguments: int | str) -> str:
        command = [str(self._program), self._url, WAREHOUSE, what, NAMESPACE, table, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise RuntimeError(f"iceberg-go: {done.stderr.strip()[-2000:]}")
        found: str = done.stdout
        return found

    def create(self, table: str) -> None:
        self._ask("create", table)

    def append(self, table: str, *row: int | str) -> None:
        self._ask("append", table, *row)

    def evolve(self, table: str) -> None:
        self._ask("evolve", table)

    def rows(self, table: str) -> list[Row]:
        return _sorted([json.loads(line) for line in self._ask("rows", table).splitlines() if line])

    def close(self) -> None:
        pass  # nothing runs


def _sorted(rows: list[dict[str, Any]]) -> list[Row]:
    names = [name for name in ("key", "value", "note") if name in rows[0]] if rows else []
    return sorted(tuple(row[name] for name in names) for row in rows)
