"""ZooKeeper as it is started here: alone, and as an ensemble that survives the loss of a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from commit_coord.local import ZooKeeperEnsemble
from tests.local.test_server import LOOPBACK, addresses

pytestmark = pytest.mark.zookeeper


@contextmanager
def client(connect_string: str) -> Iterator[Any]:
    """A connected client."""
    connected = KazooClient(connect_string, timeout=10)
    connected.start(timeout=120)
    try:
        yield connected
    finally:
        connected.stop()
        connected.close()


def test_nodes_survive_a_restart(tmp_path: Path) -> None:
    """One server: what was written is there after ``kill -9``."""
    with ZooKeeperEnsemble(tmp_path, size=1) as zookeeper:
        assert addresses(zookeeper.servers[0].port) in [{address} for address in LOOPBACK]
        with client(zookeeper.connect_string) as before:
            before.create("/a", b"1")
        zookeeper.leader.kill()
        with pytest.raises(LookupError, match="no ZooKeeper server leads"):
            _ = zookeeper.leader
        zookeeper.start()
        with client(zookeeper.connect_string) as after:
            assert b"1" == after.get("/a")[0]
        assert ["standalone"] == [server.mode for server in zookeeper.servers]


@pytest.mark.slow
def test_ensemble_goes_on_without_its_leader(tmp_path: Path) -> None:
    """Three servers: without the leader the other two elect one, and the lost one joins them again."""
    with ZooKeeperEnsemble(tmp_path, size=3) as zookeeper:
        for server in zookeeper.servers:
            ports = re.findall(r"127\.0\.0\.1:(\d+)(?::(\d+))?", (server.folder / "zoo.cfg").read_text())
            assert 6 == len(ports)
            assert all(addresses(int(port)) <= LOOPBACK for pair in ports for port in pair if port)
        assert ["follower", "follower", "leader"] == sorted(server.mode for server in zookeeper.servers)
        with client(zookeeper.connect_string) as connected:
            connected.create("/a", b"1")
            lost = zookeeper.leader
            lost.kill()
            connected.retry(connected.set, "/a", b"2")

            assert zookeeper.leader is not lost
            zookeeper.start()
            assert "follower" == lost.mode
            assert b"2" == connected.retry(connected.get, "/a")[0]
