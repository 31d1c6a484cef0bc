"""One Spark session for all tests of this folder, and a catalog of our own for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from commit_coord.local.maven import maven_jar

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


@pytest.fixture(scope="session")
def spark(warehouse: Path, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session whose JVM also has Iceberg's runtime, as catalog ``jvm``, unless only other tests run."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[2,3]")  # three tries a task
        .appName("commit_coord tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "America/St_Johns")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.warehouse.dir", str(warehouse / "spark"))
    )
    if _jvm_wanted(request.config):
        builder = (
            builder.config("spark.jars", str(maven_jar(RUNTIME)))
            .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
            .config("spark.sql.catalog.jvm", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.jvm.type", "hadoop")
            .config("spark.sql.catalog.jvm.warehouse", str(warehouse))
        )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


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
