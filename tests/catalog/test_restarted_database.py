"""A database that cuts its connections, as it does when it is started again, costs no commit."""

from __future__ import annotations

from commit_coord.local import PostgresServer
from tests.catalog.kit import ids, kit, row_ids

CUT = "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'catalogs' and pid <> pg_backend_pid()"


def test_connections_that_were_cut_while_idle_are_replaced(postgres: PostgresServer, postgres_url: str) -> None:
    """For the latch, the pointer and the swap of a commit, and for a reader."""
    with kit("lease", postgres_url) as made:
        table = made.table(ids(1))
        postgres.psql(CUT)
        table.append(ids(2))
        postgres.psql(CUT)
        assert [1, 2] == row_ids(made.again(table))
