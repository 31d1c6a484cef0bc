"""A stranger's locks in the metastore that tests share, so that no test takes the whole server for its own.

What a test leaves there (a guard, which outlives its writers) would fail the next one that counts all locks; which one
that is depends on the order of the files. With a neighbour such a test fails alone, and always.
"""

from __future__ import annotations

import uuid

import pytest

from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import MetastoreAccess, NoSuchLock
from commit_coord.hms.locks import LockPart, LockType
from commit_coord.local import HiveMetastore
from commit_coord.locks.hms.names import Agent
from tests.limits import PATIENCE

DATABASE = "neighbour"
"""Of the tables that are locked. There are no such tables."""

_planted: dict[str, list[int]] = {}
"""The ids of the locks at each server."""


@pytest.fixture(autouse=True)
def neighbour(request: pytest.FixtureRequest) -> None:
    """Put a guard and an ordinary lock into the shared metastore before each test that may use it.

    The contract suite needs an empty service: its :class:`~commit_coord.testing.contract.Service` removes both.
    """
    asked_for_by_its_case = hasattr(request.node, "callspec") and request.node.get_closest_marker("hms") is not None
    if "hms" in request.fixturenames or asked_for_by_its_case:
        _plant(request.getfixturevalue("hms"))


def _plant(server: HiveMetastore) -> None:
    with MetastoreClient(server.uri, MetastoreAccess(timeout_ms=int(PATIENCE * 1000))) as client:
        try:
            for lock_id in _planted[server.uri]:
                client.heartbeat(lock_id)
        except (KeyError, NoSuchLock):
            _planted[server.uri] = [_lock(client, "guarded", guard=True), _lock(client, "locked", guard=False)]


def _lock(client: MetastoreClient, table: str, *, guard: bool) -> int:
    agent = Agent(
        request_id=str(uuid.uuid4()),
        client=DATABASE,
        requested_ms=1,
        lease_ms=None,
        application=DATABASE,
        statement="of another test",
        guard=guard,
    )
    part = LockPart(type=LockType.SHARED_READ, db=DATABASE, table=table)
    lock_id, _ = client.lock([part], user=DATABASE, host=DATABASE, agent=str(agent))
    return lock_id
