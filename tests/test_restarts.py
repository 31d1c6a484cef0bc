"""Servers are killed and started again under eight writers: nothing is lost or doubled, and the writers go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from commit_coord.local import HiveMetastore, LocalServer, PostgresServer, ZooKeeperEnsemble
from commit_coord.testing.hammer import hammer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WRITERS = 8
APPENDS = 20
"""Of each writer."""

PATIENCE = {"hive.client-timeout-ms": "120000"}
"""A writer gives up on a metastore that is away for longer: on a busy machine a restart may take a minute."""

Fault = Callable[[], None]
Start = Callable[[LocalServer | ZooKeeperEnsemble], None]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers that are the test's own, and stops them in the end."""
    with ExitStack() as ends:

        def started(server: LocalServer | ZooKeeperEnsemble) -> None:
            ends.callback(server.close)
            server.start()

        yield started


@pytest.fixture(params=["hms", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def locks(request: pytest.FixtureRequest) -> dict[str, str]:
    """The properties of one lock manager after the other."""
    if request.param == "hms":
        return {"lock-impl": "hms"}
    return {"lock-impl": "zookeeper", "lock.uri": request.getfixturevalue("zookeeper").connect_string}


def killing(server: LocalServer) -> Fault:
    """Return what kills *server* and starts it again, on the same data and port."""

    def fault() -> None:
        server.kill()
        server.start()

    return fault


def prove(folder: Path, faults: Sequence[Fault], properties: Mapping[str, str], *, appends: int = APPENDS) -> None:
    """Have eight writers append to one table while the *faults* are done; assert that no writer noticed."""
    report = hammer(
        folder,
        writers=WRITERS,
        appends=appends,
        faults=faults,
        timeout_s=500,
        properties=properties,
        say=print,  # shown where the test fails
    )
    print(report)
    assert () == report.broken
    assert {} == report.failures
    assert (WRITERS * appends, len(faults), 0) == (report.acknowledged, report.faults, report.locks_left)


@pytest.mark.hms
def test_a_metastore(start: Start, tmp_path: Path, locks: dict[str, str]) -> None:
    """Killed once, stopped once."""
    metastore = HiveMetastore()
    start(metastore)

    prove(tmp_path, [killing(metastore), metastore.restart], {"uri": metastore.uri, **PATIENCE, **locks})


@pytest.mark.hms
@pytest.mark.zookeeper
def test_each_server_of_an_ensemble(start: Start, tmp_path: Path) -> None:
    """One after the other is killed; the leader is among them."""
    metastore, ensemble = HiveMetastore(), ZooKeeperEnsemble(size=3)
    start(metastore)
    start(ensemble)
    modes: list[str] = []

    def fault(number: int) -> Fault:
        server = ensemble.servers[number]

        def kill() -> None:
            modes.append(server.mode)
            killing(server)()

        return kill

    properties = {"uri": metastore.uri, **PATIENCE, "lock-impl": "zookeeper", "lock.uri": ensemble.connect_string}
    # While a server is away the other two go on: enough appends for each to meet some.
    prove(tmp_path, [fault(number) for number in range(3)], properties, appends=5 * APPENDS)
    assert "leader" in modes


@pytest.mark.postgres
def test_the_database_of_a_sql_catalog(start: Start, tmp_path: Path) -> None:
    """Pointers and leases are in one PostgreSQL, which is stopped once and killed once."""
    postgres = PostgresServer()
    start(postgres)

    properties = {"uri": f"coord+{postgres.url}", "lock-impl": "lease"}
    prove(tmp_path, [postgres.restart, killing(postgres)], properties)


@pytest.mark.hms
@pytest.mark.postgres
def test_the_database_of_a_metastore(start: Start, tmp_path: Path, locks: dict[str, str]) -> None:
    """The metastore stays up, and its PostgreSQL is stopped once and killed once."""
    postgres = PostgresServer()
    start(postgres)
    metastore = HiveMetastore(postgres=postgres)
    start(metastore)

    prove(tmp_path, [postgres.restart, killing(postgres)], {"uri": metastore.uri, **PATIENCE, **locks})
