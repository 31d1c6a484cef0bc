"""A catalog whose lock manager is a class of another package, which may have a long path."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import commit_coord
from commit_coord import ConfigError
from commit_coord.local import PostgresServer
from commit_coord.locks.memory import MemoryLockManager
from tests.catalog.kit import Kit, ids, kit, row_ids


class LockManagerOfAnotherPackageWhosePathIsLongerThan64Characters(MemoryLockManager):
    """Ours by another name."""


IMPL = f"{__name__}:{LockManagerOfAnotherPackageWhosePathIsLongerThan64Characters.__name__}"

_NARROW = (
    "CREATE TABLE commit_coord_catalogs "
    "(catalog_name VARCHAR(255) PRIMARY KEY, lock_impl VARCHAR(64), lock_service VARCHAR(1000), process VARCHAR(255))"
)
"""As it was made before a lock manager could be a class."""


def test_a_long_path_of_a_class_is_declared(postgres_url: str) -> None:
    """PostgreSQL refuses a text that is longer than its column."""
    assert len(IMPL) > 64
    with kit(IMPL, postgres_url) as made:
        table = made.table(ids(1))
        made.open().close()
        assert row_ids(made.again(table)) == [1]
        with pytest.raises(ConfigError, match="another lock manager") as error:
            commit_coord.load_catalog(made.name, uri=f"coord+{made.uri}", **{"lock-impl": "lease"})
        assert IMPL in str(error.value.details["declared"])


def test_a_path_too_long_for_an_older_column_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database("narrow").url
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS commit_coord_catalogs"))
        connection.execute(text(_NARROW))
    with pytest.raises(ConfigError, match="too long for its database column") as error:
        Kit(tmp_path, IMPL, url)
    with engine.begin() as connection:
        connection.execute(text(str(error.value.details["accepted"])))
    engine.dispose()
    made = Kit(tmp_path, IMPL, url)
    made.catalog.close()
    made.stock.close()
