"""Catalogs, one for each module: they are what takes time to make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commit_coord.local import PostgresServer
from tests.catalog.kit import Kit, kit
from tests.coordinator.test_groups import open_catalog


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    """A database of our own on the tests' PostgreSQL server."""
    return postgres.database("catalogs").url


@pytest.fixture(scope="module")
def memory() -> Iterator[Kit]:
    """Our catalog with locks in memory."""
    with kit("memory") as made:
        yield made


@pytest.fixture(scope="module")
def lease() -> Iterator[Kit]:
    """Our catalog with leases in SQLite."""
    with kit("lease") as made:
        yield made


@pytest.fixture
def fresh() -> Iterator[Kit]:
    """Our catalog with leases in SQLite, for a test that needs one of its own."""
    with kit("lease") as made:
        yield made


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """A catalog on SQLite whose locks are in memory."""
    catalog = open_catalog(tmp_path, "memory")
    catalog.create_namespace("db")
    yield catalog
    catalog.close()
