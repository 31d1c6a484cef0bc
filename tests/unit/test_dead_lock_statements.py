"""Which locks of a metastore a client may free because their owner has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commit_coord.hms.locks import ListedLock, LockPart, LockType
from commit_coord.locks.hms.heartbeat_log import HeartbeatLog, is_over
from commit_coord.locks.hms.names import Agent

_AGENT = Agent(request_id="r", client="c", requested_ms=1, lease_ms=None, application="a", statement="LOCK TABLE t")
_WAITING = ListedLock(
    lock_id=7,
    part=LockPart(type=LockType.EXCLUSIVE, db="db", table="t"),
    acquired=False,
    heartbeat_ms=1,
    acquired_ms=None,
    user="u",
    host="h",
    agent=str(_AGENT),
)
_GRANTED = replace(_WAITING, acquired=True, acquired_ms=2)


class Processes:
    """Of which one has ended, as soon as a test says so."""

    ended = False

    def is_dead(self, process: str) -> bool:
        """Return whether it has ended."""
        return self.ended


def over(seen: list[tuple[ListedLock, bool]]) -> list[bool]:
    """Return what each look says: at a lock as it is listed, and at whether its process has ended by then."""
    heartbeats: HeartbeatLog = {}
    host: Any = Processes()
    found = []
    for now, (listed, ended) in enumerate(seen):
        host.ended = ended
        times = {"asked": float(now), "answered": float(now)}
        found.append(is_over(listed, 1, heartbeats=heartbeats, failures=0, host=host, **times))
    return found


@pytest.mark.parametrize(
    "seen, expected",
    [
        ([(_WAITING, True), (_GRANTED, True)], [False, False]),  # granted after the listing, and ended as it should
        ([(_WAITING, True), (_WAITING, True)], [False, True]),  # killed while it waited
        ([(_WAITING, False), (_WAITING, True), (_WAITING, True)], [False, False, True]),
        ([(_WAITING, False), (_GRANTED, True), (_GRANTED, True)], [False, False, False]),
    ],
)
def test_a_lock_statement_is_over_if_it_still_waits_after_its_process_has_ended(
    seen: list[tuple[ListedLock, bool]], expected: list[bool]
) -> None:
    assert expected == over(seen)
