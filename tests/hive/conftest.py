"""Metastores of every version, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commit_coord.local import HiveMetastore, NotInstalled, PostgresServer
from commit_coord.testing.servers import untested

VERSIONS = [
    pytest.param(f"{version}-{database}", marks=[pytest.mark.hms, pytest.mark.slow])
    for version, database in (
        ("3.1.3", "postgresql"),
        ("4.0.1", "postgresql"),
        ("4.1.0", "postgresql"),
        ("4.2.0", "postgresql"),
    )
]
"""What is tried in addition to 2.3.10 on Derby. 3.1.3 ignores conditions."""


@pytest.fixture(scope="module", params=VERSIONS)
def versioned(request: pytest.FixtureRequest) -> Iterator[HiveMetastore]:
    """One version after the other."""
    version, _, database = request.param.partition("-")
    yield from _started(version, request.getfixturevalue("postgres") if database == "postgresql" else None)


@pytest.fixture(scope="module")
def on_derby() -> Iterator[HiveMetastore]:
    """4.0.1 on Derby. It fails on conditions, and its lock calls stop each other.

    A lock call keeps its rows in Derby while it waits for its second turn in the server; whose turn it is (a heartbeat,
    a listing) waits for these rows, ten times for Derby's timeout. As the threads of a server that stood showed.
    """
    yield from _started("4.0.1", None)


def _started(version: str, database: PostgresServer | None) -> Iterator[HiveMetastore]:
    try:
        metastore = HiveMetastore(None, version, postgres=database)
        metastore.start()
    except NotInstalled as missing:
        pytest.skip(untested(f"everything on Hive Metastore {version}", missing))
    try:
        yield metastore
    finally:
        metastore.close()
