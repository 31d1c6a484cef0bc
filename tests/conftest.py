"""What all tests share: a private PostgreSQL server, and a loud word where there can be none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commit_coord.local import NotInstalled, PostgresServer

MISSING = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests; each keeps to itself by a space of its own."""
    try:
        # Its data is thrown away: no need to wait for the disk, which would take most of the tests' time.
        server = PostgresServer("fsync=off")
    except NotInstalled as error:
        pytestconfig.stash[MISSING] = str(error)
        pytest.skip(str(error))
    with server:
        yield server


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the very last line, behind pytest's own, what a green run did not test."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (reason := config.stash.get(MISSING, None)):
        reporter.write_line(f"NOT TESTED: everything on PostgreSQL, because {reason}", red=True, bold=True)
