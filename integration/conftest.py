"""Servers for the tests here: containers where a Docker daemon answers, native processes otherwise; the same tests.

``SERVERS=native`` or ``SERVERS=containers`` chooses. The very last line of the run says which it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from commit_coord.local import HiveMetastore, PostgresServer, ZooKeeperEnsemble
from commit_coord.testing.containers import (
    ContainerEnsemble,
    ContainerMetastore,
    ContainerPostgres,
    docker_version,
    labels,
    remove_stale,
)

pytest_plugins = ["commit_coord.testing.servers", "tests.limits"]

METASTORES = [
    pytest.param(f"{version}-{database}", marks=pytest.mark.hms)
    for version, database in (
        ("2.3.10", "derby"),
        ("2.3.10", "postgresql"),
        ("3.1.3", "postgresql"),
        ("4.0.1", "postgresql"),
        ("4.1.0", "postgresql"),
        ("4.2.0", "postgresql"),
    )
]
"""The Hive Metastores that everything here is tried on."""


class Server(Protocol):
    """What a test does with any server, wherever it runs."""

    @property
    def running(self) -> bool: ...
    def healthy(self) -> bool: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None: ...


class Metastore(Server, Protocol):
    """A Hive Metastore."""

    version: str

    @property
    def uri(self) -> str: ...
    @property
    def port(self) -> int: ...


class Servers:
    """Starts servers natively; whatever it started ends with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._ends = ExitStack()
        self._postgres: Any = None

    def metastore(self, version: str = "2.3.10", database: str = "derby") -> Any:
        """Return a new Hive Metastore that runs."""
        return self._started(self._metastore(version, self.postgres if database == "postgresql" else None))

    def zookeeper(self, size: int = 3) -> Any:
        """Return a new ZooKeeper ensemble that runs."""
        return self._started(self._zookeeper(size))

    @property
    def postgres(self) -> Any:
        """The PostgreSQL server of all metastores."""
        if self._postgres is None:
            self._postgres = self._started(self._new_postgres())
        return self._postgres

    def close(self) -> None:
        """End them all."""
        self._ends.close()

    def _started(self, server: Any) -> Any:
        self._ends.callback(server.close)
        server.start()
        return server

    def _place(self) -> Path:
        self._count += 1
        place = self._folder / str(self._count)
        place.mkdir()
        return place

    def _new_postgres(self) -> Any:
        return PostgresServer("fsync=off")

    def _metastore(self, version: str, postgres: Any) -> Any:
        return HiveMetastore(self._place(), version, postgres=postgres)

    def _zookeeper(self, size: int) -> Any:
        return ZooKeeperEnsemble(self._place(), size)


class ContainerServers(Servers):
    """Starts servers in containers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from testcontainers.core.network import Network

        remove_stale()
        self._network = Network(docker_network_kw={"labels": labels()}).create()
        self._ends.callback(self._network.remove)

    def _new_postgres(self) -> Any:
        return ContainerPostgres(network=self._network)

    def _metastore(self, version: str, postgres: Any) -> Any:
        return ContainerMetastore(self._place(), version, postgres=postgres, network=self._network)

    def _zookeeper(self, size: int) -> Any:
        return ContainerEnsemble(size, network=self._network)


_docker = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    """Decide where the servers run."""
    chosen = os.environ.get("SERVERS", "")
    if chosen not in ("", "native", "containers"):
        raise pytest.UsageError(f"SERVERS={chosen}: native or containers")
    found = None if chosen == "native" else docker_version()
    if chosen == "containers" and found is None:
        raise pytest.UsageError("SERVERS=containers, and no Docker daemon answers (DOCKER_HOST?)")
    config.stash[_docker] = found


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the very last line what this run was on."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        found = config.stash[_docker]
        where = "native processes" if found is None else f"containers (testcontainers, Docker {found})"
        reporter.write_line(f"servers ran as: {where}", bold=True)


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Where to get servers."""
    kind = Servers if pytestconfig.stash[_docker] is None else ContainerServers
    made = kind(tmp_path_factory.mktemp("servers"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module", params=METASTORES)
def metastore(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Metastore]:
    """One Hive Metastore after the other, for all tests of a module."""
    version, _, database = request.param.partition("-")
    made = servers.metastore(version, database)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def ensemble(servers: Servers) -> Iterator[Any]:
    """Three ZooKeeper servers, for all tests of a module."""
    made = servers.zookeeper(3)
    try:
        yield made
    finally:
        made.close()


# -- unmodified Java writers -------------------------------------------------------------------------------

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


class Java:
    """Java's own HiveCatalog, through Spark SQL.

    Args:
        spark: A session with Iceberg's runtime.
    """

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self._catalogs: dict[str, str] = {}

    def catalog(self, metastore: Metastore, **properties: str) -> str:
        """Return the name, for SQL, of a catalog on *metastore* with *properties*, its dots written as ``__``."""
        name = f"java_{len(self._catalogs)}"
        self._catalogs[name] = metastore.uri
        place = f"spark.sql.catalog.{name}"
        self.spark.conf.set(place, "org.apache.iceberg.spark.SparkCatalog")
        for key, value in {"type": "hive", "uri": metastore.uri, **properties}.items():
            self.spark.conf.set(f"{place}.{key.replace('__', '.')}", value)
        return name

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run *statement* and return its rows."""
        return [tuple(row) for row in self.spark.sql(statement).collect()]


@pytest.fixture(scope="session")
def java() -> Iterator[Java]:
    """Spark SQL with Iceberg's JVM runtime."""
    from pyspark.sql import SparkSession

    from commit_coord.local.maven import maven_jar

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("commit_coord integration")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars", str(maven_jar(ICEBERG_RUNTIME)))
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    yield Java(spark)
    spark.stop()
