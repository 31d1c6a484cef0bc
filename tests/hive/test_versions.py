"""What 2.3.10 is tried with elsewhere, on the other versions: the contract of locks, Hive's table, a table's life."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyiceberg.types import IntegerType

import commit_coord
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.probe import CompareAndSet, Probe, lock_service
from commit_coord.local import HiveMetastore
from commit_coord.testing.contract import LockContract, Service
from tests.catalog.kit import SCHEMA, ids, row_ids
from tests.contract.test_hive_lock_table import test_a_command_holds_what_the_manual_says

__all__ = ["test_a_command_holds_what_the_manual_says"]

IGNORES = {"3.1.3-postgresql": CompareAndSet.IGNORED}


@pytest.fixture
def service(versioned: HiveMetastore) -> Iterator[Service]:
    """The lock service of one version."""
    with Service("hms", versioned.uri, has_spaces=False) as service:
        yield service


class TestEveryVersion(LockContract):
    """See ``commit_coord.testing.contract``."""


def test_the_probe_says_what_is_known_of_the_version(versioned: HiveMetastore, request: pytest.FixtureRequest) -> None:
    client = MetastoreClient.of(versioned.uri)
    name = request.node.callspec.params["versioned"]
    assert Probe(client).capabilities().compare_and_set is IGNORES.get(name, CompareAndSet.HONOURED)
    assert lock_service(client).there
    assert lock_service(client).exclusive_write == name.startswith("4")
    assert [name for name in client.get_all_tables("default") if "probe" in name] == []
    assert client.show_locks("commit-coord") == []
    client.close()


@pytest.mark.parametrize("impl", ["hms", "none"])
def test_a_table_lives_its_life(versioned: HiveMetastore, impl: str) -> None:
    _live(versioned.uri, impl)


@pytest.mark.slow
@pytest.mark.hms
def test_hive_4_on_derby_serves_one_writer_whatever_it_is_asked_to_compare(on_derby: HiveMetastore) -> None:
    client = MetastoreClient.of(on_derby.uri)
    assert Probe(client).capabilities().compare_and_set is CompareAndSet.BROKEN
    client.close()
    for impl in ("hms", "none"):
        _live(on_derby.uri, impl)


def _live(uri: str, impl: str) -> None:
    """Have a table created, appended to, changed, renamed, dropped, registered, purged."""
    catalog = commit_coord.load_catalog("t", uri=f"coord+{uri}", **{"lock-impl": impl})
    db = f"life_{impl}"
    catalog.create_namespace(db)
    table = catalog.create_table(f"{db}.T", SCHEMA, properties={"a": "b"})
    stale = catalog.load_table(f"{db}.t")
    table.append(ids(1, 2))
    stale.append(ids(3))
    with table.update_schema() as change:
        change.delete_column("s").add_column("n", IntegerType())
    assert catalog.list_tables(db) == [(db, "t")]
    renamed = catalog.rename_table(f"{db}.t", f"{db}.u")
    assert row_ids(renamed) == [1, 2, 3]
    catalog.drop_table(f"{db}.u")
    assert row_ids(catalog.register_table(f"{db}.v", renamed.metadata_location)) == [1, 2, 3]
    catalog.purge_table(f"{db}.v")
    catalog.drop_namespace(db)
    assert list(catalog.locks.locks()) == []
    catalog.close()
