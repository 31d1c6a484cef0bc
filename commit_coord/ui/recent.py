"""The commits that this process carried out lately, by table: their waits, and why some were refused."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.typedef import Identifier

from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.events import CommitEnded, Event
from commit_coord.model import CommitStatus
from commit_coord.redaction import without_passwords

_MOST_TABLES = 1000
_MOST_COMMITS = 500
"""Of one table."""
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A commit that has ended in this process."""

    at_ms: int
    tables: Sequence[Identifier]
    request_id: str
    status: str
    waited_ms: float
    held_ms: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """What the commits of one table waited, in milliseconds, and how they ended.

    Args:
        count: How many commits are known.
        p50_ms: Half of them waited no longer for the latch.
        p99_ms: 99 of 100 waited no longer.
        refused: The reasons of those that did not land, with the number of each, the most frequent first.
        unknown: Likewise, of those that may have landed.
    """

    count: int
    p50_ms: float
    p99_ms: float
    refused: Sequence[tuple[str, int]]
    unknown: Sequence[tuple[str, int]]


class Recent:
    """A listener of a catalog's events. Thread safe; its size is bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_table: OrderedDict[Identifier, deque[Ended]] = OrderedDict()

    def __call__(self, event: Event) -> None:
        """Remember *event* if it is the end of a commit."""
        if not isinstance(event, CommitEnded):
            return
        ended = Ended(
            at_ms=SYSTEM_CLOCK.wall_ms(),
            tables=event.tables,
            request_id=event.request_id,
            status=event.status,
            waited_ms=event.waited_ms,
            held_ms=event.held_ms,
            reason=without_passwords(event.reason)[:_LONGEST_REASON],
        )
        with self._lock:
            for table in event.tables:
                self._by_table.setdefault(table, deque(maxlen=_MOST_COMMITS)).append(ended)
                self._by_table.move_to_end(table)
            while len(self._by_table) > _MOST_TABLES:
                self._by_table.popitem(last=False)

    def waits(self, table: Identifier, reads: Callable[[Iterable[Identifier]], bool]) -> Waits | None:
        """Return what the commits to *table* waited; None if none is known.

        Args:
            table: Which one.
            reads: Tells whether the visitor may read all tables of a commit: its reason may name each of them.
        """
        with self._lock:
            ended = list(self._by_table.get(table, ()))
        ended = [one for one in ended if reads(one.tables)]
        if not ended:
            return None
        waited = sorted(one.waited_ms for one in ended)
        return Waits(
            count=len(ended),
            p50_ms=percentile(waited, 50),
            p99_ms=percentile(waited, 99),
            refused=_reasons(ended, CommitStatus.FAILURE),
            unknown=_reasons(ended, CommitStatus.UNKNOWN),
        )

    def find(self, request_id: str) -> list[Ended]:
        """Return the commits whose request id begins with *request_id*, oldest first."""
        with self._lock:
            tables = list(self._by_table.values())
        found: list[Ended] = []
        for ended in tables:
            with self._lock:  # table by table: commits that end wait for it
                listed = list(ended)
            found += [one for one in listed if one.request_id.startswith(request_id) and one not in found]
        return found


def _reasons(ended: Sequence[Ended], status: CommitStatus) -> list[tuple[str, int]]:
    return Counter(one.reason or one.status for one in ended if one.status == status).most_common(10)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest of *ordered* that is at least as large as *percent* of them."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
