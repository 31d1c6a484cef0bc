"""Metastores of every version, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commit_coord.local import HiveMetastore, NotInstalled, PostgresServer

VERSIONS = [
    pytest.param(f"{version}-{database}", marks=[pytest.mark.hms, pytest.mark.slow])
    for version, database in (
        ("3.1.3", "postgresql"),
        ("4.0.1", "postgresql"),
        ("4.0.1", "derby"),
        ("4.1.0", "postgresql"),
        ("4.2.0", "postgresql"),
    )
]
"""What is tried beside 2.3.10 on Derby. 3.1.3 ignores conditions; 4.0.1 on Derby fails on each."""


@pytest.fixture(scope="module", params=VERSIONS)
def versioned(request: pytest.FixtureRequest) -> Iterator[HiveMetastore]:
    """One version after the other."""
    version, _, database = request.param.partition("-")
    server: PostgresServer | None = None
    if database == "postgresql":
        server = request.getfixturevalue("postgres")
    try:
        metastore = HiveMetastore(None, version, postgres=server)
        metastore.start()
    except NotInstalled as missing:
        pytest.skip(str(missing))
    try:
        yield metastore
    finally:
        metastore.close()
