"""pytest fixtures: real servers that start when the first test asks for them and serve until the last one.

A plugin: ``pytest_plugins = ["commit_coord.testing.servers"]``. A test that shares a server keeps to itself by a name
of its own; one that stops, kills or pauses a server starts its own. Where a server can't be had, its tests are
skipped, and the lines above pytest's last one say so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
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

_UNTESTED = "NOT TESTED: "

_Server = TypeVar("_Server", bound=LocalServer | ZooKeeperEnsemble)


def untested(what: str, reason: object) -> str:
    """Return a reason for a skip that the end of the run repeats: here *what* is not tested, because of *reason*."""
    return f"{_UNTESTED}{what}, because {reason}"


def running(what: str, make: Callable[[], _Server]) -> Iterator[_Server]:
    """Serve what *make* makes as the body of a fixture; a test is skipped, and the end says so, without it."""
    try:
        server = make()
        server.start()
    except NotInstalled as error:
        pytest.skip(untested(f"everything on {what}", error))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests. Its data is thrown away, so it does not wait for the disk."""
    yield from running("PostgreSQL", lambda: PostgresServer("fsync=off"))


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    """One ZooKeeper server for all tests."""
    yield from running("ZooKeeper", lambda: ZooKeeperEnsemble(size=1))


@pytest.fixture(scope="session")
def zookeeper_ensemble() -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeeper servers for all tests."""
    yield from running("a ZooKeeper ensemble", lambda: ZooKeeperEnsemble(size=3))


@pytest.fixture(scope="session")
def zookeeper_usual_ticks() -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeeper servers with the ticks of ZooKeeper's own example, and no session below two of them."""
    yield from running("a ZooKeeper ensemble", lambda: ZooKeeperEnsemble(size=3, settings=USUAL_TICKS))


@pytest.fixture(scope="session")
def hms() -> Iterator[HiveMetastore]:
    """A Hive Metastore 2.3.10 on Derby for all tests."""
    yield from running("the Hive Metastore", HiveMetastore)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the servers that it starts: ``-m 'not hms'`` leaves those out."""
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in MARKS:
                item.add_marker(MARKS[fixture])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say just above pytest's last line what a green run did not test, in any of its processes."""
    yield
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    reasons = {each[2].removeprefix("Skipped: ") for each in skipped if isinstance(each, tuple)}
    for reason in sorted(reasons):
        if reason.startswith(_UNTESTED):
            terminalreporter.write_line(reason, red=True, bold=True)
