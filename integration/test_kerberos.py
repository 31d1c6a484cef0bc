"""A metastore that lets in nobody without a ticket: commits as anywhere else, and clear errors for those without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog.hive import HiveCatalog

from commit_coord import load_catalog
from commit_coord.catalog import CoordinatedHiveCatalog
from commit_coord.errors import LockServiceUnavailable, MetastoreUnavailable
from commit_coord.local import PostgresServer, ZooKeeperEnsemble
from commit_coord.locks.registry import create_lock_manager
from integration.kerberos import REALM, Kdc, KerberosMetastore
from tests.catalog.kit import SCHEMA, ids, row_ids

pytestmark = [
    pytest.mark.hms,
    pytest.mark.skipif(shutil.which("krb5kdc", path="/usr/sbin") is None, reason="no Kerberos server is installed"),
]


NO_WAY_IN = "authentication failed.*kinit"


@pytest.fixture(scope="module")
def kdc() -> Iterator[Kdc]:
    with Kdc() as kdc, pytest.MonkeyPatch.context() as environment:
        for name, value in kdc.environment.items():
            environment.setenv(name, value)
        yield kdc


@pytest.fixture(scope="module")
def derby(kdc: Kdc) -> Iterator[KerberosMetastore]:
    with KerberosMetastore(kdc, "2.3.10", None) as metastore:
        yield metastore


@pytest.fixture(scope="module")
def on_postgres(kdc: Kdc) -> Iterator[KerberosMetastore]:
    with PostgresServer("fsync=off") as postgres, KerberosMetastore(kdc, "4.0.1", postgres) as metastore:
        yield metastore


@pytest.fixture(params=["derby", pytest.param("on_postgres", marks=pytest.mark.postgres)], ids=["2.3.10", "4.0.1"])
def metastore(request: pytest.FixtureRequest) -> KerberosMetastore:
    metastore = request.getfixturevalue(request.param)
    assert isinstance(metastore, KerberosMetastore)
    return metastore


def opened(metastore: KerberosMetastore, **properties: str) -> CoordinatedHiveCatalog:
    catalog = load_catalog(
        "t",
        uri=f"coord+{metastore.uri}",
        warehouse=metastore.warehouse,
        **{"lock-impl": "hms", "hive.kerberos-authentication": "true", "hive.client-timeout-ms": "5000", **properties},
    )
    assert isinstance(catalog, CoordinatedHiveCatalog)
    return catalog


def test_commits_land_once_and_leave_no_lock(metastore: KerberosMetastore) -> None:
    with opened(metastore) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.t", schema=SCHEMA)
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda i: catalog.load_table("db.t").append(ids(i)), range(12)):
                pass
        assert row_ids(catalog.load_table("db.t")) == list(range(12))
        assert not opened(metastore).show_locks()


def test_pyicebergs_own_catalog_reads_what_was_committed(derby: KerberosMetastore) -> None:
    with opened(derby) as catalog:
        catalog.create_namespace("shared")
        catalog.create_table("shared.t", schema=SCHEMA).append(ids(1, 2))
    stock = HiveCatalog("s", uri=derby.uri, **{"hive.kerberos-authentication": "true"})
    assert row_ids(stock.load_table("shared.t")) == [1, 2]


@pytest.mark.parametrize(
    "properties, says",
    [
        ({"hive.kerberos-service-name": "hiev"}, f"{NO_WAY_IN}.*Server hiev/127.0.0.1@{REALM} not found"),
        ({"hive.kerberos-authentication": "false"}, "did not answer.*hive.kerberos-authentication=true"),
    ],
)
def test_another_service_or_none_is_an_error_that_says_so(
    metastore: KerberosMetastore, properties: dict[str, str], says: str
) -> None:
    with pytest.raises(MetastoreUnavailable, match=says):
        opened(metastore, **properties).list_namespaces()


def test_a_missing_ticket_is_an_error_that_says_so(
    metastore: KerberosMetastore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "nothing"))
    with pytest.raises(MetastoreUnavailable, match=f"{NO_WAY_IN}.*No Kerberos credentials"):
        opened(metastore).list_namespaces()


@pytest.mark.zookeeper
def test_a_missing_ticket_for_zookeeper_is_an_error_that_says_so(
    kdc: Kdc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "nothing"))
    with (
        ZooKeeperEnsemble(size=1) as zookeeper,
        create_lock_manager("zookeeper", zookeeper.connect_string, options={"auth": "kerberos"}) as manager,
        pytest.raises(LockServiceUnavailable, match=r"authentication failed.*No Kerberos credentials.*klist"),
    ):
        manager.locks()
