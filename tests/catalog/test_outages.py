"""What calls say while the lock service is away: nothing was sent to it, so nothing has landed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import commit_coord
from commit_coord import CommitLockFailed, LockServiceUnavailable
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.sql import Session
from tests.catalog.kit import SCHEMA, ids, row_ids
from tests.contract.proxy import Proxy

SERVICES = [
    pytest.param("lease", marks=pytest.mark.postgres),
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    pytest.param("hms", marks=pytest.mark.hms),
]


class World:
    """A SQL catalog, and its lock service behind a network that can be cut."""

    def __init__(self, impl: str, uri: str, folder: Path) -> None:
        self._folder, self._impl = folder, impl
        address = urlsplit(uri if "//" in uri else f"//{uri}")
        assert address.port is not None
        self.proxy = Proxy(address.port)
        user = f"{address.netloc.rpartition('@')[0]}@" if "@" in address.netloc else ""
        self.behind = urlunsplit(address._replace(netloc=f"{user}127.0.0.1:{self.proxy.port}")).removeprefix("//")
        self.opened: list[CoordinatedCatalog] = []

    def open(self, uri: str | None = None, **more: str) -> CoordinatedCatalog:
        catalog = commit_coord.load_catalog(
            "c",
            **{
                "uri": f"coord+sqlite:///{self._folder}/c.db",
                "warehouse": f"file://{self._folder}/warehouse",
                "lock-impl": self._impl,
                "lock.uri": uri or self.behind,
                "lock.acquire-timeout-ms": "1500",
                **more,
            },
        )
        assert isinstance(catalog, CoordinatedCatalog)
        self.opened.append(catalog)
        return catalog

    def cut(self) -> None:
        """Cut the network; return when the first client knows, if that is one which offers its appends to others.

        Until it knows, it may have sent its offer when the network ended, and is then right to be in doubt.
        """
        self.proxy.cut()
        if self._impl == "zookeeper":
            with pytest.raises(LockServiceUnavailable):
                self.opened[0].locks.locks()

    def plain(self) -> SqlCatalog:
        """Return PyIceberg's own catalog, which needs no lock service."""
        return SqlCatalog("c", uri=f"sqlite:///{self._folder}/c.db", warehouse=f"file://{self._folder}/warehouse")

    def files(self) -> set[Path]:
        return {path for path in (self._folder / "warehouse").rglob("*") if path.is_file()}


@pytest.fixture(params=SERVICES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    match request.param:
        case "lease":
            uri = request.getfixturevalue("postgres").url
        case "zookeeper":
            uri = request.getfixturevalue("zookeeper").connect_string
        case _:
            uri = request.getfixturevalue("hms").uri
    world = World(request.param, uri, tmp_path)
    yield world
    world.proxy.mend()
    for catalog in world.opened:
        catalog.close()
    world.proxy.close()


COMMITS: dict[str, Callable[[Any], object]] = {
    "append": lambda table: table.append(ids(2)),
    "delete": lambda table: table.delete("id = 1"),
    "properties": lambda table: table.transaction().set_properties(a="b").commit_transaction(),
}


@pytest.mark.parametrize("reached", [True, False], ids=["reached before", "never reached"])
def test_a_commit_whose_lock_service_is_away_has_not_landed_and_leaves_no_file(world: World, reached: bool) -> None:
    """Also an append, which is offered to the latch holder: what was not sent, no holder can have taken."""
    catalog = world.open()
    catalog.create_namespace("db")
    table = catalog.create_table(("db", "t"), SCHEMA)
    table.append(ids(1))
    if not reached:
        table = world.open().load_table(("db", "t"))
    there = world.files()
    world.cut()
    for name, call in [*COMMITS.items(), ("append again", COMMITS["append"])]:
        with pytest.raises(CommitLockFailed):
            call(table)
            pytest.fail(f"{name} landed")
    assert world.files() == there
    world.proxy.mend()
    table.append(ids(3))
    assert row_ids(catalog.load_table(("db", "t"))) == [1, 3]


CALLS: dict[str, Callable[[CoordinatedCatalog], object]] = {
    "create namespace": lambda catalog: catalog.create_namespace("more"),
    "drop namespace": lambda catalog: catalog.drop_namespace("empty"),
    "create": lambda catalog: catalog.create_table(("db", "u"), SCHEMA),
    "drop": lambda catalog: catalog.drop_table(("db", "t")),
    "rename": lambda catalog: catalog.rename_table(("db", "t"), ("db", "u")),
}


def test_a_call_that_changes_the_catalog_ends_in_an_outage_as_a_commit_does(world: World) -> None:
    """One answer for one outage: nothing was changed. ``except CommitFailedException`` is enough for all of them."""
    catalog = world.open(**{"operation-locks": "hive"})
    latching = world.open(**{"operation-locks": "off"})
    for namespace in ("db", "empty"):
        catalog.create_namespace(namespace)
    catalog.create_table(("db", "t"), SCHEMA)
    there = world.files()
    world.proxy.cut()
    for name, call in CALLS.items():
        with pytest.raises(CommitLockFailed, match="nothing was changed|did not land"):
            call(catalog)
            pytest.fail(f"{name} was carried out")
        if "namespace" in name:
            continue  # without operation locks nothing is asked of the lock service
        with pytest.raises(CommitLockFailed, match="nothing was changed"):
            call(latching)
            pytest.fail(f"{name} was carried out under the latch alone")
    world.proxy.mend()
    assert world.files() == there
    assert sorted(catalog.list_namespaces()) == [("db",), ("empty",)]
    assert catalog.list_tables("db") == [("db", "t")]


STATEMENTS = (
    "DELETE FROM t WHERE id = 1",
    "ALTER TABLE t ADD COLUMNS (more int)",
    "CREATE TABLE u (id bigint)",
    "DROP TABLE t",
    "INSERT INTO t VALUES (2, 'two')",
)


def test_a_statement_ends_in_an_outage_as_a_commit_does(world: World) -> None:
    catalog = world.open()
    catalog.create_namespace("db")
    catalog.create_table(("db", "t"), SCHEMA).append(ids(1))
    there = world.files()
    world.proxy.cut()
    for statement in STATEMENTS:
        with pytest.raises(CommitLockFailed, match="nothing was changed|did not land"):
            Session(catalog, database="db").run(statement)
            pytest.fail(f"{statement} was carried out")
    world.proxy.mend()
    assert world.files() == there
    assert row_ids(catalog.load_table(("db", "t"))) == [1]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:1"], ids=["refused", "no such name"])
def test_a_lock_service_that_is_not_there_is_no_doubt(world: World, address: str) -> None:
    world.plain().create_namespace("db")
    world.plain().create_table(("db", "t"), SCHEMA)
    there = world.files()
    table = world.open(world.behind.replace(f"127.0.0.1:{world.proxy.port}", address)).load_table(("db", "t"))
    with pytest.raises(CommitLockFailed):
        table.append(ids(1))
    assert world.files() == there
