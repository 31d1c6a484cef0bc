"""The health checks of containers ask the server itself."""

from __future__ import annotations

import pytest

from commit_coord.local import HiveMetastore, PostgresServer, container
from commit_coord.local.server import Server, free_ports
from commit_coord.local.zookeeper import ZooKeeperEnsemble


def check(monkeypatch: pytest.MonkeyPatch, name: str, server: Server) -> None:
    """Expect that *server* is healthy under *name*, and that nothing is where no server is."""
    monkeypatch.setitem(container._PORTS, name, server.port)
    assert container.healthy(name)
    monkeypatch.setitem(container._PORTS, name, free_ports(1)[0])
    assert not container.healthy(name)


def test_postgres(monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer) -> None:
    check(monkeypatch, "postgres", postgres)


def test_zookeeper(monkeypatch: pytest.MonkeyPatch, zookeeper: ZooKeeperEnsemble) -> None:
    check(monkeypatch, "zookeeper", zookeeper.servers[0])


def test_hms(monkeypatch: pytest.MonkeyPatch, hms: HiveMetastore) -> None:
    check(monkeypatch, "hms", hms)


def test_a_server_that_the_image_does_not_have() -> None:
    with pytest.raises(SystemExit, match="postgres, zookeeper, hms"):
        container.healthy("redis")
