"""pytest fixtures: real servers that start when the first test asks for them and serve until the last one.

A plugin: ``pytest_plugins = ["commit_coord.testing.servers"]``. A test that shares a server keeps to itself by a name
of its own; one that stops, kills or pauses a server starts its own. Where a server can't be had, its tests are
skipped, and the very last line of the run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from commit_coord.local import HiveMetastore, LocalServer, NotInstalled, PostgresServer, ZooKeeperEnsemble
from commit_coord.local.zookeeper import USUAL_TICKS

MARKS = {
    "postgres": "postgres",
    "zookeeper": "zookeeper",
    "zookeeper_ensemble": "zookeeper",
    "zookeeper_usual_ticks": "zookeeper",
    "hms": "hms",
}
"""Fixture → the mark that every test gets that names it."""

_missing = pytest.StashKey[dict[str, str]]()

_Server = TypeVar("_Server", bound=LocalServer | ZooKeeperEnsemble)


def running(config: pytest.Config, what: str, make: Callable[[], _Server]) -> Iterator[_Server]:
    """Serve what *make* makes as the body of a fixture; a test is skipped, and the last line says so, without it."""
    try:
        server = make()
        server.start()
    except NotInstalled as error:
        config.stash[_missing][what] = str(error)
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests. Its data is thrown away, so it does not wait for the disk."""
    yield from running(pytestconfig, "PostgreSQL", lambda: PostgresServer("fsync=off"))


@pytest.fixture(scope="session")
def zookeeper(pytestconfig: pytest.Config) -> Iterator[ZooKeeperEnsemble]:
    """One ZooKeeper server for all tests."""
    yield from running(pytestconfig, "ZooKeeper", lambda: ZooKeeperEnsemble(size=1))


@pytest.fixture(scope="session")
def zookeeper_ensemble(pytestconfig: pytest.Config) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeeper servers for all tests."""
    yield from running(pytestconfig, "a ZooKeeper ensemble", lambda: ZooKeeperEnsemble(size=3))


@pytest.fixture(scope="session")
def zookeeper_usual_ticks(pytestconfig: pytest.Config) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeeper servers with the ticks of ZooKeeper's own example, and no session below two of them."""
    yield from running(pytestconfig, "a ZooKeeper ensemble", lambda: ZooKeeperEnsemble(size=3, settings=USUAL_TICKS))


@pytest.fixture(scope="session")
def hms(pytestconfig: pytest.Config) -> Iterator[HiveMetastore]:
    """A Hive Metastore 2.3.10 on Derby for all tests."""
    yield from running(pytestconfig, "the Hive Metastore", HiveMetastore)


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what is missing."""
    config.stash[_missing] = {}


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the servers that it starts: ``-m 'not hms'`` leaves those out."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKS:
                item.add_marker(MARKS[fixture])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the very last line, behind pytest's own, what a green run did not test."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        for what, reason in config.stash[_missing].items():
            reporter.write_line(f"NOT TESTED: everything on {what}, because {reason}", red=True, bold=True)
