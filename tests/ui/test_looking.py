"""Looks at the locks: whose owner is dead, what is shared, and what becomes of a look that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import LockServiceUnavailable
from commit_coord.model import LockEntry
from commit_coord.ui import looking
from commit_coord.ui.looking import Look, Looks
from tests.limits import PATIENCE
from tests.processes import until
from tests.ui.test_now import entry


def looks(show_locks: Callable[[], Sequence[LockEntry]], dead: str = "") -> Looks:
    """Return the looks at a catalog whose locks *show_locks* lists; the process *dead* has ended."""
    host = SimpleNamespace(is_dead=lambda process: process == dead)
    leases = SimpleNamespace(list_lease=list)
    return Looks(cast(CoordinatedCatalog, SimpleNamespace(show_locks=show_locks, host=host, leases=leases)))


def causes(look: Look) -> list[str]:
    """Return how it is known of each entry that its owner is dead."""
    return [look.cause_of_death(one) for one in look.entries]


def test_an_owner_is_dead_if_its_process_has_ended_or_its_lease_is_over() -> None:
    """A lock on a metastore, which does not tell what is left of a lease, has a living owner however old it is."""
    on_a_metastore = entry("db/t", "hms")
    over, live = (replace(entry("db/t", "sql"), expires_in_ms=left) for left in (0, 1))
    explicit = replace(over, explicit=True, expires_in_ms=None)
    assert ["", "its lease is over", "", ""] == causes(looks(lambda: [on_a_metastore, over, live, explicit]).latest())
    ended = looks(lambda: [on_a_metastore, over, explicit], dead=on_a_metastore.owner.process).latest()
    assert ["its process has ended", "its process has ended", ""] == causes(ended)


class Failing:
    """Locks that can't be listed as long as *fails*; each look waits until it may end."""

    def __init__(self) -> None:
        self.fails, self.count = True, 0
        self.may_end = threading.Event()

    def __call__(self) -> Sequence[LockEntry]:
        self.count += 1
        assert self.may_end.wait(PATIENCE)
        if self.fails:
            raise LockServiceUnavailable("the database does not answer")
        return [entry("db/t", f"look-{self.count}")]


def test_a_failed_look_makes_no_old_locks_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure the locks are as old as they are, and the next look is a new one."""
    now_s = 0.0
    monkeypatch.setattr(looking, "SYSTEM_CLOCK", SimpleNamespace(now=lambda: now_s, wall_ms=lambda: 0))
    service = Failing()
    service.may_end.set()
    shared = looks(service)
    service.fails = False
    shared.latest()
    service.fails = True
    now_s = 10.0
    with pytest.raises(LockServiceUnavailable):
        shared.latest(5)
    now_s = 11.0
    with pytest.raises(LockServiceUnavailable):
        shared.latest(5)
    service.fails = False
    now_s = 12.0
    assert "look-4" == shared.latest(5).entries[0].request_id


def test_who_waits_for_a_look_that_fails_shares_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service that does not answer is asked once, and not once for each who waits."""
    service = Failing()
    shared = looks(service)
    read: list[float] = []

    def now() -> float:
        now_s = SYSTEM_CLOCK.now()
        read.append(now_s)
        return now_s

    monkeypatch.setattr(looking, "SYSTEM_CLOCK", SimpleNamespace(now=now, wall_ms=SYSTEM_CLOCK.wall_ms))
    with ThreadPoolExecutor(5) as threads:
        asked = [threads.submit(shared.latest) for _ in range(5)]
        # Each has noted when it asked, and the first one when its look began.
        until(lambda: len(read) == len(asked) + 1, "all of them ask")
        service.may_end.set()
        failures = [one.exception(PATIENCE) for one in asked]
    assert [True] * 5 == [isinstance(failure, LockServiceUnavailable) for failure in failures]
    assert 1 == service.count
    service.fails = False
    assert "look-2" == shared.latest().entries[0].request_id
