"""What happened, for whoever wants to watch: progress displays, metrics, tests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAcquired:
    """A request was granted after *waited_ms*."""

    request: str
    scope: str
    waited_ms: float
    generation: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockLeaseLost:
    """A lease went to LOST: it expired or was freed by force."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockReleaseFailed:
    """A release was not confirmed; it is retried and expires by itself."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEnded:
    """A commit ended.

    Args:
        table: ``db.table``.
        request_id: The attempt.
        status: SUCCESS, FAILURE or UNKNOWN.
        waited_ms: Time until the latch was granted.
        held_ms: Time under the latch.
        tries: Swaps tried.
        rebased: Whether the head had moved since the attempt was made.
        carried: Attempts of others that the same swap published.
    """

    table: str
    request_id: str
    status: str
    waited_ms: float
    held_ms: float
    tries: int
    rebased: bool
    carried: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOverwritten:
    """Commits that had landed are not in the table's history any more: a writer without our rules replaced them.

    Args:
        table: ``db.table``.
        location: The metadata file of the last one that was known here; it and its data files are still there.
        lost: The metadata files of all of them, oldest first.
        found: The metadata file that the table got instead.
        found_at_ms: When that was written, by its writer's clock.
        summary: Of its current snapshot, which may name who wrote it.
    """

    table: str
    location: str
    lost: tuple[str, ...]
    found: str
    found_at_ms: int
    summary: str


Event = LockAcquired | LockLeaseLost | LockReleaseFailed | CommitEnded | CommitOverwritten


class Events:
    """A list of listeners. A listener that raises is logged and never changes an outcome."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call *listener* with every event from now on; return a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def emit(self, event: Event) -> None:
        """Tell every listener, in the thread in which it happened."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("an event listener failed on %s", event)
