"""What happened, for those who watch: progress displays, metrics, tests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from commit_coord.model import LockEntry, Owner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequested:
    """A request is about to enter its queues. LockAcquired or LockNotAcquired follows, in the same thread."""

    request_id: str
    request: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAcquired:
    """A request was granted after *waited_ms*."""

    request_id: str
    request: str
    scope: str
    waited_ms: float
    generation: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockNotAcquired:
    """A request ended without a grant, after *waited_ms*.

    Args:
        request_id: Which one.
        request: What it asked for.
        scope: Operation or commit.
        waited_ms: How long.
        outcome: ``carried``: the holder of the lock has done what the request was for; else why not: the ``kind`` of a
            :class:`~commit_coord.errors.LockError` (``lock-timeout``, ``lock-refused``, …), or ``interrupted``.
    """

    request_id: str
    request: str
    scope: str
    waited_ms: float
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEnded:
    """A lease ended after *held_ms*: it was given back, or LOST."""

    request_id: str
    request: str
    scope: str
    held_ms: float
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockLeaseLost:
    """A lease became LOST: it expired or was released by force."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockReleaseFailed:
    """A release was not confirmed; it is retried and expires by itself."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksForced:
    """Locks were released by force: by an unlock, a reap, or a forced drop of Hive leases.

    Args:
        how: ``unlock``, ``reap`` or ``drop lease``.
        by: The owner that did it.
        at_ms: When, by this host's wall clock.
        why: The operator's reason, in words; "" for none.
        freed: The locks, with their owners.
        maybe_freed: Locks that may be free, too: the lock service did not answer.
    """

    how: str
    by: Owner
    at_ms: int
    why: str
    freed: tuple[LockEntry, ...]
    maybe_freed: tuple[LockEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """A table is about to go to another phase of a migration, or has gone there, or has not.

    Args:
        table: ``db.table``.
        before: The phase that it leaves.
        after: The phase that it goes to.
        epoch: That it has then.
        stage: ``begun``; then ``done``, ``unknown`` or ``refused``, which is proven. One without an end was
            killed: the table tells.
        by: The owner that does it.
        at_ms: When, by this host's wall clock.
        why: In words; for ``refused`` and ``unknown`` the error.
    """

    table: str
    before: str
    after: str
    epoch: int
    stage: str
    by: Owner
    at_ms: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRefused:
    """A request to the REST server was refused: nobody knows who sent it, or who sent it may not do that.

    Args:
        client: Who sent it; "" where that is not known.
        address: Where it came from.
        request: Method and path.
        request_id: Of the request, as the access log has it.
        at_ms: When, by this host's wall clock.
        why: In words.
        known: Whether it is known who sent it.
    """

    client: str
    address: str
    request: str
    request_id: str
    at_ms: int
    why: str
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBegan:
    """A commit began. Its locks, its swaps and CommitEnded follow, in the same thread.

    A call that is refused for a conflict before it asks for the latch emits this event and CommitEnded too.
    """

    table: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapEnded:
    """A compare-and-set of a pointer ended after *took_ms*: SWAPPED, MOVED, LOST_REPLY or REFUSED."""

    table: str
    request_id: str
    result: str
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEnded:
    """A commit ended.

    Args:
        table: ``db.table``; of a commit to several tables, all of them with commas between.
        tables: The identifiers of these tables. *table* does not tell them: the table ``b.c`` of ``a`` and the table
            ``c`` of ``a.b`` have one name there.
        request_id: The attempt.
        status: SUCCESS, FAILURE or UNKNOWN; UNKNOWN also when it was interrupted.
        waited_ms: Time until the latch was granted.
        held_ms: Time under the latch.
        tries: Swaps tried.
        rebased: Whether the head had moved since the attempt was made.
        carried: Attempts of others that the same swap published.
        reason: Why it did not land, in words; "" for a success.
    """

    table: str
    request_id: str
    status: str
    waited_ms: float
    held_ms: float
    tries: int
    rebased: bool
    carried: int = 0
    reason: str = ""
    tables: tuple[tuple[str, ...], ...] = ()


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
        request_id: Of the last commit that was lost; "" and nothing below where no lock service remembered it.
        snapshot_ids: What that added.
        by: The owner that had committed it.
        at_ms: When.
    """

    table: str
    location: str
    lost: tuple[str, ...]
    found: str
    found_at_ms: int
    summary: str
    request_id: str = ""
    snapshot_ids: tuple[int, ...] = ()
    by: str = ""
    at_ms: int = 0


Event = (
    LockRequested
    | LockAcquired
    | LockNotAcquired
    | LockEnded
    | LockLeaseLost
    | LockReleaseFailed
    | LocksForced
    | PhaseChange
    | AccessRefused
    | CommitBegan
    | SwapEnded
    | CommitEnded
    | CommitOverwritten
)


class Events:
    """A list of listeners. A listener that raises is logged and never changes an outcome."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Event], None]] = []

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call *listener* with every event from now on; return a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def heard(self) -> bool:
        """Whether there is a listener: without one, an event that costs something does not have to be made."""
        return bool(self._listeners)

    def emit(self, event: Event) -> None:
        """Tell every listener, in the thread in which it happened."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("an event listener failed on %s", event)
