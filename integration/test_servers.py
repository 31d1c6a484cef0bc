"""The servers themselves, of every version: they answer, keep their data, pause and end on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
from kazoo.client import KazooClient
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from integration.conftest import Metastore

pytestmark = pytest.mark.timeout(900)  # the first one of a version may fetch and build it


@contextmanager
def client(metastore: Metastore) -> Iterator[Any]:
    """A client with a connection of its own."""
    socket = TSocket("127.0.0.1", metastore.port)
    socket.setTimeout(60_000)
    transport = TBufferedTransport(socket)
    transport.open()
    try:
        yield ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    finally:
        transport.close()


def make_database(metastore: Metastore, name: str) -> None:
    """Make a database where the server wants it."""
    with client(metastore) as connected:
        connected.create_database(ttypes.Database(name=name, description="", parameters={}))


def databases(metastore: Metastore) -> set[str]:
    """Return the names of all databases."""
    with client(metastore) as connected:
        return set(connected.get_all_databases())


def test_locks_can_be_taken(metastore: Metastore) -> None:
    """The lock service is there from the start, also for a request that names no operation, as PyIceberg's does."""
    component = ttypes.LockComponent(ttypes.LockType.EXCLUSIVE, ttypes.LockLevel.TABLE, "db", "t")
    request = ttypes.LockRequest([component], user="me", hostname="here")
    with client(metastore) as connected:
        first, second = connected.lock(request), connected.lock(request)
        assert (first.state, second.state) == (ttypes.LockState.ACQUIRED, ttypes.LockState.WAITING)
        connected.unlock(ttypes.UnlockRequest(first.lockid))
        checked = connected.check_lock(ttypes.CheckLockRequest(second.lockid))
        connected.unlock(ttypes.UnlockRequest(second.lockid))

    assert checked.state == ttypes.LockState.ACQUIRED


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_data_survives(metastore: Metastore, how: str) -> None:
    """What was made before a stop or ``kill -9`` is there afterwards, at the same address."""
    uri = metastore.uri
    make_database(metastore, f"before_{how}")
    getattr(metastore, how)()
    assert not metastore.running
    assert not metastore.healthy()
    metastore.start()

    assert uri == metastore.uri
    assert f"before_{how}" in databases(metastore)


def test_standing_still(metastore: Metastore) -> None:
    """A paused server takes connections and answers nothing; it goes on when it is resumed."""
    metastore.pause()
    try:
        assert metastore.running
        assert not metastore.healthy()
    finally:
        metastore.resume()
    assert metastore.healthy()


@pytest.mark.zookeeper
def test_ensemble_goes_on_without_its_leader(ensemble: Any) -> None:
    """Without the leader the other two elect one, and the lost one joins them again."""
    connected = KazooClient(ensemble.connect_string, timeout=10)
    connected.start(timeout=60)
    try:
        connected.create("/a", b"1")
        lost = ensemble.leader
        lost.kill()
        connected.retry(connected.set, "/a", b"2")
        assert ensemble.leader is not lost
        ensemble.start()

        assert lost.mode == "follower"
        assert connected.retry(connected.get, "/a")[0] == b"2"
    finally:
        connected.stop()
        connected.close()
