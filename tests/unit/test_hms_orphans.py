"""Lock requests that may still arrive at a metastore after their client gave them up."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from commit_coord.clock import SystemClock
from commit_coord.hms.locks import ListedLock
from commit_coord.locks.base import LockSettings
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.calls import LockCalls
from commit_coord.locks.keeping import Tickets
from commit_coord.testing.contract import latch

LEASE_SECONDS = 15.0


class Clock(SystemClock):
    """Shows a time that a test sets."""

    time = 0.0

    def now(self) -> float:
        return self.time


@pytest.mark.parametrize("late_by", [0.0, LEASE_SECONDS, 10 * LEASE_SECONDS])
def test_a_list_that_arrives_late_does_not_end_the_search(late_by: float) -> None:
    """The metastore lists nothing; then the request arrives; then the list does."""
    request, there, unlocked, clock = latch(), list[ListedLock](), list[int](), Clock()
    pauses = [late_by]

    def show_locks(*_: str) -> list[ListedLock]:
        shown = list(there)
        clock.time += pauses.pop() if pauses else 0.01
        return shown

    metastore: Any = SimpleNamespace(
        show_locks=show_locks, unlock=unlocked.append, within=lambda _: nullcontext(), failures=0
    )
    settings = LockSettings(lease_ms=int(1000 * LEASE_SECONDS))
    calls = LockCalls(metastore, Tickets("ours"), Any, settings, clock, Any)  # type: ignore[arg-type]
    calls.look_for(request)
    calls.release_orphaned()
    agent = hms_names.agent(request, client="ours", requested_ms=0, lease_ms=15_000)
    (part,) = hms_names.parts(request)
    there.append(
        ListedLock(lock_id=7, part=part, acquired=True, heartbeat_ms=0, acquired_ms=0, user="u", host="h", agent=agent)
    )
    calls.release_orphaned()
    assert unlocked == [7]


def test_the_search_ends_with_a_list_that_was_asked_for_after_a_lease() -> None:
    clock = Clock()
    metastore: Any = SimpleNamespace(show_locks=lambda *_: [], within=lambda _: nullcontext())
    settings = LockSettings(lease_ms=int(1000 * LEASE_SECONDS))
    calls = LockCalls(metastore, Tickets("ours"), Any, settings, clock, Any)  # type: ignore[arg-type]
    calls.look_for(latch())
    calls.release_orphaned()
    assert calls.orphaned_lock_requests
    clock.time = LEASE_SECONDS
    calls.release_orphaned()
    assert not calls.orphaned_lock_requests
