"""Prometheus metrics, in ``prometheus_client``'s own registry: a program that serves that registry serves these too.

No label names a table or an owner: there may be thousands, and each would be a time series of its own.
"""

from __future__ import annotations

from functools import cache

from prometheus_client import Counter, Gauge, Histogram

from commit_coord.events import (
    AccessRefused,
    CommitEnded,
    CommitOverwritten,
    Event,
    LockAcquired,
    LockEnded,
    LockLeaseLost,
    LockNotAcquired,
    LockReleaseFailed,
    LockRequested,
    LocksForced,
    SwapEnded,
)
from commit_coord.model import CommitStatus

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600)
"""From a latch that nobody holds to a job of an hour."""

_CATALOG = ("catalog", "lock_manager")


class _Instruments:
    """All metrics of a process."""

    def __init__(self) -> None:
        self.wait = Histogram(
            "commit_coord_lock_wait_seconds",
            "Time from asking for locks to the answer",
            (*_CATALOG, "scope", "outcome"),
            buckets=_SECONDS,
        )
        self.hold = Histogram(
            "commit_coord_lock_hold_seconds",
            "Time for which locks were held",
            (*_CATALOG, "scope"),
            buckets=_SECONDS,
        )
        # If several processes share their metrics, these two are summed over the processes that run.
        self.waiting = Gauge(
            "commit_coord_lock_requests_waiting",
            "Requests of this process that wait now",
            (*_CATALOG, "scope"),
            multiprocess_mode="livesum",
        )
        self.held = Gauge(
            "commit_coord_leases_held",
            "Leases that this process holds now",
            (*_CATALOG, "scope"),
            multiprocess_mode="livesum",
        )
        self.lost = Counter("commit_coord_leases_lost", "Leases that expired or were released by force", _CATALOG)
        self.unreleased = Counter(
            "commit_coord_release_failures", "Releases that were not confirmed at once and are tried again", _CATALOG
        )
        self.forced = Counter(
            "commit_coord_locks_forced", "Lock requests that were, or may have been, freed by force", (*_CATALOG, "how")
        )
        self.commits = Counter("commit_coord_commits", "Commits by outcome", (*_CATALOG, "status"))
        self.rebases = Counter("commit_coord_rebases", "Commits whose table had moved on since it was read", _CATALOG)
        self.carried = Counter(
            "commit_coord_commits_carried", "Commits of others that one swap published along with its own", _CATALOG
        )
        self.overwritten = Counter(
            "commit_coord_commits_overwritten",
            "Commits that had landed and that a writer without our rules replaced",
            _CATALOG,
        )
        self.refused = Counter(
            "commit_coord_access_refused",
            "Requests to the REST server that were refused, by whether it is known who sent them",
            (*_CATALOG, "known"),
        )
        self.swap = Histogram(
            "commit_coord_swap_seconds",
            "Time of one compare-and-set of a table's pointer",
            (*_CATALOG, "result"),
            buckets=_SECONDS,
        )


@cache
def _instruments() -> _Instruments:
    """Return one set for all catalogs: a registry takes each name once."""
    return _Instruments()


class Metrics:
    """A listener that counts what it hears of one catalog."""

    def __init__(self, catalog: str, lock_manager: str) -> None:
        self._labels = catalog, lock_manager
        self._on = _instruments()
        # An interrupt may tell of one end twice, and must not be counted twice.
        self._waiting: dict[str, None] = {}
        self._held: dict[str, None] = {}
        # A series that appears with its first event has no increase by it: these begin at 0.
        for counter in (self._on.lost, self._on.unreleased, self._on.rebases, self._on.carried, self._on.overwritten):
            counter.labels(*self._labels)
        for status in CommitStatus:
            self._on.commits.labels(*self._labels, status.value)

    def __call__(self, event: Event) -> None:
        """Count *event*."""
        on, labels = self._on, self._labels
        match event:
            case LockRequested(request_id=request_id, scope=scope):
                self._waiting[request_id] = None
                on.waiting.labels(*labels, scope).inc()
            case LockAcquired(request_id=request_id, scope=scope, waited_ms=waited_ms):
                self._answered(request_id, scope, "granted", waited_ms)
                self._held[request_id] = None
                on.held.labels(*labels, scope).inc()
            case LockNotAcquired(request_id=request_id, scope=scope, waited_ms=waited_ms, outcome=outcome):
                self._answered(request_id, scope, outcome, waited_ms)
            case LockEnded(request_id=request_id, scope=scope, held_ms=held_ms):
                on.hold.labels(*labels, scope).observe(held_ms / 1000)
                if request_id in self._held:
                    del self._held[request_id]
                    on.held.labels(*labels, scope).dec()
            case LockLeaseLost():
                on.lost.labels(*labels).inc()
            case LockReleaseFailed():
                on.unreleased.labels(*labels).inc()
            case LocksForced(how=how, freed=freed, maybe_freed=maybe):
                on.forced.labels(*labels, how).inc(len({entry.request_id for entry in (*freed, *maybe)}))
            case AccessRefused(known=known):
                on.refused.labels(*labels, str(known).lower()).inc()
            case SwapEnded(result=result, took_ms=took_ms):
                on.swap.labels(*labels, result).observe(took_ms / 1000)
            case CommitEnded(status=status, rebased=rebased, carried=carried):
                on.commits.labels(*labels, status).inc()
                on.rebases.labels(*labels).inc(rebased)
                on.carried.labels(*labels).inc(carried)
            case CommitOverwritten(lost=lost):
                on.overwritten.labels(*labels).inc(len(lost))

    def _answered(self, request_id: str, scope: str, outcome: str, waited_ms: float) -> None:
        self._on.wait.labels(*self._labels, scope, outcome).observe(waited_ms / 1000)
        if request_id in self._waiting:
            del self._waiting[request_id]
            self._on.waiting.labels(*self._labels, scope).dec()
