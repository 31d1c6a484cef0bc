"""A pytest plugin for PyIceberg's own suites: its catalog classes become those that are measured.

``SUITES_KIND`` says which: ``ours`` or ``stock``. ``SUITES_HMS`` is the URI of a metastore: with it the tests run that
use one, without it the others. ``SUITES_FOLDER`` is a folder for catalogs that all tests share, and
``SUITES_OUTCOMES`` the file that takes one line of JSON for each test.

``SUITES_ONLY`` is such a file of an earlier run: what did not pass there is left out.

The suites speak with a REST server and a metastore in containers. Here a SQL catalog takes the place of the REST
server, and the given metastore that of the other. Tests that need Spark or no catalog at all are left out.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import Executor, Future
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pyiceberg.catalog.hive
import pyiceberg.catalog.memory
import pyiceberg.catalog.rest
import pyiceberg.catalog.sql
import pytest

OURS = os.environ["SUITES_KIND"] == "ours"
HMS = os.environ.get("SUITES_HMS", "")
FOLDER = Path(os.environ["SUITES_FOLDER"])
OUTCOMES = Path(os.environ["SUITES_OUTCOMES"])
ONLY = os.environ.get("SUITES_ONLY")


class _Absent(ModuleType):
    """Stands for a library of a cloud that the suites import and the tests here never use."""

    __path__: list[str] = []  # noqa: RUF012 - a package, for the import system

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


for _name in ("boto3", "botocore", "botocore.awsrequest", "botocore.exceptions", "moto", "moto.server"):
    sys.modules.setdefault(_name, _Absent(_name))

_Sql: Any
_Hive: Any
if OURS:
    from commit_coord.catalog.hive import CoordinatedHiveCatalog as _Hive
    from commit_coord.catalog.sql import CoordinatedSqlCatalog as _Sql
else:
    from pyiceberg.catalog.hive import HiveCatalog as _Hive
    from pyiceberg.catalog.sql import SqlCatalog as _Sql


class _AtOnce(Executor):
    """The suites look right after the commit whether old metadata files are gone; ours deletes them behind it."""

    def submit(self, call: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        """Call, and return when that is done."""
        done: Future[Any] = Future()
        done.set_result(call(*arguments, **options))
        return done


def _coordinated(properties: dict[str, Any]) -> dict[str, Any]:
    if OURS and properties.get("uri"):
        return {**properties, "uri": f"coord+{properties['uri']}"}
    return properties


class SqlCatalog(_Sql):  # type: ignore[misc]
    """PyIceberg's SQL catalog, or ours under its name."""

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **_coordinated(properties))
        if OURS:
            self.coordinator.executor = _AtOnce


class InMemoryCatalog(SqlCatalog):
    """The in-memory catalog: SQL on a database in memory."""

    def __init__(self, name: str, warehouse: str = "file:///tmp/iceberg/warehouse", **properties: Any) -> None:
        self._warehouse_location = warehouse
        super().__init__(name, **{"uri": "sqlite:///:memory:", "warehouse": warehouse, **properties})


class SharedCatalog(SqlCatalog):
    """In place of a REST server: a SQL catalog that all tests share."""

    def __init__(self, name: str, **properties: Any) -> None:
        place = FOLDER / "shared"
        place.mkdir(exist_ok=True)
        super().__init__(name, uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}")
        self.create_namespace_if_not_exists("default")


_opened: list[Any] = []
"""The suites do not close their catalogs, and ours keep their connections until then."""


class HiveCatalog(_Hive):  # type: ignore[misc]
    """PyIceberg's Hive catalog, or ours, on the metastore that is there."""

    def __init__(self, name: str, **properties: Any) -> None:
        place = {"uri": HMS, "warehouse": f"file://{FOLDER}/hive"}
        patience = {"lock.acquire-timeout-ms": "20000"} if OURS else {}  # about as long as PyIceberg waits
        super().__init__(name, **_coordinated({**properties, **place, **patience}))
        if OURS:
            self.coordinator.executor = _AtOnce
        _opened.append(self)


pyiceberg.catalog.rest.RestCatalog = SharedCatalog  # type: ignore[misc]
pyiceberg.catalog.hive.HiveCatalog = HiveCatalog  # type: ignore[misc]

if OURS:
    pyiceberg.catalog.sql.SqlCatalog = SqlCatalog  # type: ignore[misc]
    pyiceberg.catalog.memory.InMemoryCatalog = InMemoryCatalog  # type: ignore[misc]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs Spark, and what uses no catalog."""
    ended = [json.loads(line) for line in Path(ONLY).read_text().splitlines()] if ONLY else []
    lost = {each["test"] for each in ended if each["outcome"] != "passed"}
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        uses = any("catalog" in name for name in names) or names & {"test_table", "table_with_snapshots", "table_v2"}
        on_hms = "hive" in item.nodeid.partition("::")[2] or "session_catalog_hive" in names
        wanted = uses and "spark" not in names and on_hms == bool(HMS)
        (kept if wanted and item.nodeid not in lost else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Any:
    """Give databases and tables names without a hyphen: Hive before version 4 refuses it."""
    value = yield
    if HMS and fixturedef.argname in ("database_name", "table_name"):
        value = value.replace("-", "_")
        fixturedef.cached_result = (value, None, None)  # it has no parameters
    return value


def pytest_sessionfinish() -> None:
    """Close what the tests opened."""
    for catalog in _opened:
        catalog.close()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write down how a test ended; a phase that did not pass counts."""
    if report.when == "call" or report.outcome != "passed":
        why = "" if report.passed else str(report.longreprtext)[-2000:]
        with OUTCOMES.open("a") as out:
            out.write(json.dumps({"test": report.nodeid, "outcome": report.outcome, "why": why}) + "\n")
