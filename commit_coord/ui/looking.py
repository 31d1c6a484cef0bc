"""Looks at the locks of a catalog, shared by all who watch: the lock service does the work of one viewer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import ConfigError
from commit_coord.locks.hive_lease import HiveLease
from commit_coord.model import LockEntry
from commit_coord.process import has_dead_owner

_STEP_MS = 5000


def time_left_ms(expires_in_ms: int) -> int:
    """Return the time that is left of a lease in whole steps, rounded up: it stays the same while the owner lives."""
    return 0 if expires_in_ms <= 0 else (expires_in_ms // _STEP_MS + 1) * _STEP_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The locks of a catalog at one moment.

    Args:
        at_ms: When, by this host's wall clock.
        entries: The locks.
        version: Grows when the entries change, the time that is left of a lease by more than one step of it.
        dead: The processes, among their owners, that have certainly ended.
        leases: The live leases of Hive's kind.
    """

    at_ms: int
    entries: Sequence[LockEntry]
    version: int
    dead: frozenset[str]
    leases: Sequence[HiveLease] = ()

    def cause_of_death(self, entry: LockEntry) -> str:
        """Return how it is known that the owner of *entry* is dead, "" if that is not known."""
        if not has_dead_owner(entry, self.dead.__contains__):
            return ""
        return "its process has ended" if entry.owner.process in self.dead else "its lease is over"


class Looks:
    """The latest look at the locks of one catalog. Thread safe.

    Args:
        catalog: Whose locks.
    """

    def __init__(self, catalog: CoordinatedCatalog) -> None:
        self._catalog = catalog
        self._one_at_a_time = threading.Lock()
        self._latest: Look | None = None
        self._known: frozenset[object] = frozenset()
        self._looked_at = float("-inf")
        self._took_s = 0.0
        self._failed_at = float("-inf")
        self._failure: Exception | None = None

    def latest(self, max_age_s: float = 0.0) -> Look:
        """Return a look that was made at most *max_age_s* seconds ago, or since this call; asks the lock service.

        If a look takes long, it may be twice as old as it took, unless *max_age_s* is 0. If it fails, it fails for all
        who have waited for it.

        Raises:
            LockServiceUnavailable: It does not answer.
        """
        asked_at = SYSTEM_CLOCK.now()
        with self._one_at_a_time:
            # After a look at very many locks, the lock service does something else for at least as long.
            age_s = max(max_age_s, 2 * self._took_s) if max_age_s else 0.0
            if self._failure is not None and asked_at <= self._failed_at:
                raise self._failure  # Else those who waited for that look would wait as long again, one after another.
            if self._latest is None or self._looked_at < asked_at - age_s:
                began = SYSTEM_CLOCK.now()
                try:
                    self._latest = self._look(self._latest)
                except Exception as error:
                    self._failure, self._failed_at = error, SYSTEM_CLOCK.now()
                    raise
                self._looked_at, self._took_s = began, SYSTEM_CLOCK.now() - began
                self._failure = None
            return self._latest

    def _look(self, before: Look | None) -> Look:
        entries = self._catalog.show_locks()
        processes = {entry.owner.process for entry in entries}
        dead = frozenset(process for process in processes if self._catalog.host.is_dead(process))
        leases = _leases(self._catalog)
        known = frozenset([*leases, *(_identity(entry, dead) for entry in entries)])
        changed = before is None or known != self._known
        self._known = known
        version = before.version if before else 0
        return Look(at_ms=SYSTEM_CLOCK.wall_ms(), entries=entries, version=version + changed, dead=dead, leases=leases)


def _leases(catalog: CoordinatedCatalog) -> Sequence[HiveLease]:
    try:
        leases = catalog.leases
    except ConfigError:
        return ()  # this lock manager has none
    return leases.list_lease()


def _identity(entry: LockEntry, dead: frozenset[str]) -> object:
    left_ms = None if entry.expires_in_ms is None else time_left_ms(entry.expires_in_ms)
    has_ended = entry.owner.process in dead
    return entry.request_id, entry.resource, entry.mode, entry.state, entry.blocked_by, left_ms, has_ended
