"""A database that cuts its connections, and a client of it that is paused, cost no commit."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from commit_coord.local import PostgresServer
from commit_coord.locks.base import LockSettings
from tests.catalog.kit import ids, kit, row_ids
from tests.sockets import silence_ms

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'catalogs' and pid <> pg_backend_pid()"


def test_connections_that_were_cut_while_idle_are_replaced(postgres: PostgresServer, postgres_url: str) -> None:
    """For the latch, the pointer and the swap of a commit, and for a reader."""
    with kit("lease", postgres_url) as made:
        table = made.table(ids(1))
        postgres.psql(CUT)
        table.append(ids(2))
        postgres.psql(CUT)
        assert [1, 2] == row_ids(made.again(table))


def test_a_server_that_is_gone_without_a_word_is_noticed_within_a_lease(postgres_url: str) -> None:
    """1. Its answer and its good-bye are lost.   2. The network is back, and nobody has anything to send."""
    with kit("lease", postgres_url) as made, made.catalog.engine.connect() as connection:
        assert 0 < silence_ms(connection.connection.driver_connection.fileno()) <= LockSettings().lease_ms


@pytest.mark.timeout(60)
def test_a_paused_swap_keeps_others_out_for_a_lease_at_most(postgres_url: str) -> None:
    """A process stopped between its UPDATE and its COMMIT has the row, whichever writer has the latch by then."""
    brief = {"lock.heartbeat-timeout-ms": "1000", "lock.heartbeat-interval-ms": "300"}
    with kit("lease", postgres_url, **brief) as made:
        table = made.table(ids(1))
        with made.open() as stopped, stopped.engine.connect() as connection:
            connection.execute(text("UPDATE iceberg_tables SET previous_metadata_location = metadata_location"))
            table.append(ids(2))
            with pytest.raises(DBAPIError):
                connection.commit()
        assert [1, 2] == row_ids(made.again(table))
