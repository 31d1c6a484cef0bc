"""One Spark session for all tests of this folder as long as none hangs, and a catalog of our own for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from commit_coord.local.maven import maven_jar
from tests import limits

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test here: ``-m 'not spark'`` leaves them out, ``-m 'not jvm'`` those that need the JVM runtime."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)


def _jvm_wanted(config: pytest.Config) -> bool:
    return "not jvm" not in (config.getoption("-m") or "")


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the JVM runtime's own catalog lives."""
    return tmp_path_factory.mktemp("jvm")


class Sessions:
    """One session after the other: who was stopped in the middle of a call to the JVM leaves it half read.

    Args:
        make: Opens one.
    """

    def __init__(self, make: Callable[[], SparkSession]) -> None:
        self._make = make
        self._session: SparkSession | None = None
        self._strikes = 0

    def current(self) -> SparkSession:
        """Return the session; another one, of another JVM, when a time limit has struck meanwhile."""
        if self._strikes != limits.strikes():
            self.abandon()
            self._strikes = limits.strikes()
        if self._session is None:
            self._session = self._make()
        return self._session

    def abandon(self) -> None:
        """Kill the JVM, ask it nothing, and have PySpark forget it."""
        gateway: Any = SparkContext._gateway
        self._session = None
        if gateway is None:
            return
        gateway.proc.kill()
        gateway.proc.wait(limits.PATIENCE)
        for pipe in filter(None, (gateway.proc.stdin, gateway.proc.stdout, gateway.proc.stderr)):
            pipe.close()
        with suppress(Exception):  # What is left of it answers nothing.
            gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None

    def close(self) -> None:
        """Stop the session."""
        if self._session is not None and self._strikes == limits.strikes():
            self._session.stop()


@pytest.fixture(scope="session")
def sessions(warehouse: Path, request: pytest.FixtureRequest) -> Iterator[Sessions]:
    """Of the folder."""
    made = Sessions(lambda: _opened(warehouse, request.config))
    yield made
    made.close()


@pytest.fixture
def spark(sessions: Sessions) -> SparkSession:
    """A session whose JVM also has Iceberg's runtime, as catalog ``jvm``, unless only other tests run."""
    return sessions.current()


def _opened(warehouse: Path, config: pytest.Config) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2,3]")  # three tries a task
        .appName("commit_coord tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "America/St_Johns")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", str(warehouse / "spark"))
    )
    if _jvm_wanted(config):
        builder = (
            builder.config("spark.jars", str(maven_jar(RUNTIME)))
            .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
            .config("spark.sql.catalog.jvm", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.jvm.type", "hadoop")
            .config("spark.sql.catalog.jvm.warehouse", str(warehouse))
        )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    """The properties of a coordinated catalog, also for the data source's workers."""
    return {
        "py-catalog-impl": "commit_coord.catalog.CoordinatedSqlCatalog",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
        "lock.acquire-timeout-ms": "60000",
    }


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[Any]:
    """A coordinated catalog with the namespace ``db``."""
    import commit_coord

    made = commit_coord.load_catalog("test", **properties)
    made.create_namespace("db")
    yield made
    close = getattr(made, "close", None)
    if close is not None:
        close()


def rows(df: Any, *order: str) -> list[tuple[Any, ...]]:
    """Return the rows of a DataFrame as tuples, sorted by *order* or by what they print."""
    found = [tuple(row) for row in df.collect()]
    return sorted(found, key=repr)
