"""The commit protocol: the order of the steps, and what each answer means. Pure: it decides and executes nothing.

Theory of operation
    :func:`commit` is a generator. It yields *effects*; its driver (the coordinator against real services,
    a simulator against fakes) performs each one and sends back its result, or throws what it raised. What it
    returns is a :class:`Verdict`, classified once, here.

    ::

        AcquireLatch ─► Retract ─► Plan ─► Gather ─► Write ─► EnsureActive ─► Swap ─► Confirm ─► Release
           │                        ▲ │                                        │
           │ NothingToSwap: a       │ └─ Replan (the caller plans              │ MOVED: another writer swapped; plan
           │ holder published       │    the attempt again)                    │ on the new head. LOST_REPLY: Locate,
           ▼ the attempt            └──────────────────────────────────────────┘ repeat the identical swap
        Verdict

    If the latch is lost before the swap, the commit acquires it again and starts over. The same happens if the latch is
    not the one that the table declares: the table may be moving from one lock service to another, and only ``Plan``,
    under the latch, reads the table's present phase (``protocol/migration``).

Many attempts, one swap
    A writer that waits for the latch offers its attempt, and the holder may carry it along: ``Gather`` takes what those
    behind us offer and puts it behind our own attempt, ``Release`` tells each the outcome. It comes as late as it
    can, since a waiter that arrives meanwhile is carried too. An offer that a holder has taken is out of its owner's
    hands:

    1. L holds the latch and takes M's offer.   2. L stalls, and loses its lease.
    3. M is granted the latch and fails: M has swapped nothing.
    4. L wakes up and swaps, with M's attempt: the pointer is still at the base that L has read.

    So M's failure is proven only if M could retract its offer (``Retract``). In any other case it is UNKNOWN. M
    retracts the offer before it reads the table. Otherwise M could not tell whether a commit with its request id in the
    table is this attempt or an earlier commit with the same id.

Safety comes from the swap, not from the lock
    The swap is a compare-and-set on the location that ``Plan`` read under the latch. A holder that was paused for
    longer than its lease can swap only a pointer that nobody has moved.

Classification
    SUCCESS: our location is the pointer, or is in the unbroken metadata log back from it.
    FAILURE: the pointer has left our base, and the unbroken log from the base lacks ours; or no swap was ever sent.
    UNKNOWN: anything else. Every file is kept.

    A lost reply with the pointer still on our base is neither SUCCESS nor FAILURE: the swap may land later (seen 20 of
    20 times on a Hive Metastore after a client timeout). So the identical swap is repeated until the service answers.

Not here
    No time, random numbers, I/O or threads. How long to wait between status checks is an effect, too.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from commit_coord.errors import CommitError, LockError, LockLost, LockRefused, LockTimeout, OfferLost
from commit_coord.model import CommitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TryLimits:
    """Maximum numbers of tries.

    Args:
        swaps: Swaps that fail because a writer without the latch has moved the pointer.
        replans_outside: Times that an attempt is planned again without the latch, so that a rewrite of data files
            does not block other writers; the next time it is planned under the latch, where the head can't move.
        latches: Times that one commit acquires the latch, if the latch is lost before the swap.
        phases: Times that the table may declare another latch than the acquired one.
        status_checks: Checks after a lost reply before the outcome is UNKNOWN.
    """

    swaps: int = 10
    replans_outside: int = 2
    latches: int = 4
    phases: int = 10
    status_checks: int = 10

    def __post_init__(self) -> None:
        """Check the limits."""
        assert min(self.swaps, self.latches, self.status_checks) > 0, "a commit needs a latch, a swap and a check"
        assert min(self.replans_outside, self.phases) >= 0, "a number of times is not negative"


# Effects. The docstring of each one has its result and what it may raise.


@dataclass(frozen=True, slots=True)
class AcquireLatch:
    """Acquire the latch. Result: None, or :class:`NothingToSwap` if a latch holder published the attempt.

    With the latter, the latch is not held.

    Raises LockError; if it is ``OfferLost``, another holder may have published the attempt.
    """

    offering: bool
    """Whether a latch holder may publish the attempt."""


@dataclass(frozen=True, slots=True)
class Retract:
    """Retract this writer's offer. Result: whether it is certain that no holder has or will take it. Raises nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Read the pointer and apply the attempt to the head. Result: a planning result. Raises anything."""


@dataclass(frozen=True, slots=True)
class Replan:
    """Have the attempt planned again by its owner, on the newest head. Raises what its owner refuses with."""

    under_latch: bool


@dataclass(frozen=True, slots=True)
class Gather:
    """Add the offers of the waiters directly behind this writer to the plan.

    They are taken once; a later plan gets the same ones. An offer that can't be taken or published is left to its
    owner. Raises anything.
    """

    plan: Planned


@dataclass(frozen=True, slots=True)
class Write:
    """Write the files that the swap will refer to. Raises anything; nothing is published by it."""

    plan: Planned


@dataclass(frozen=True, slots=True)
class EnsureActive:
    """Make sure that the lease is still ours. Raises LockLost, LockServiceUnavailable."""


@dataclass(frozen=True, slots=True)
class Swap:
    """Compare and set the pointer from ``plan.base`` to ``plan.location``. Result: a :class:`SwapResult`.

    Raises SwapRefused, or another error, which proves nothing.
    """

    plan: Planned


@dataclass(frozen=True, slots=True)
class Locate:
    """Find out where ``plan.location`` is. Result: a :class:`Where`."""

    plan: Planned


@dataclass(frozen=True, slots=True)
class Confirm:
    """Find out whether a swap that was carried out stays. Result: a :class:`Where`. Raises anything."""

    plan: Planned


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the status check number *check*."""

    check: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete the files that ``Write`` wrote for *plan*: it is proven that nothing refers to them."""

    plan: Planned


@dataclass(frozen=True, slots=True)
class Release:
    """Give the latch back and tell those whose attempts were taken. Never raises and never changes a verdict."""

    verdict: Verdict | None
    """None when there is none: nothing is known of what was taken."""


Effect = (
    AcquireLatch
    | Gather
    | Plan
    | Replan
    | Write
    | EnsureActive
    | Swap
    | Locate
    | Confirm
    | Pause
    | Discard
    | Retract
    | Release
)


# Results.


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A swap that may be tried.

    Args:
        base: The pointer that was read under the latch; None when the table is to be created.
        location: The metadata file to publish.
        payload: What the performer needs to write and report it; opaque here.
    """

    base: str | None
    location: str
    payload: Any = None

    def __post_init__(self) -> None:
        """Check that the swap changes the pointer; otherwise the pointer would not show whose swap landed."""
        assert self.location != self.base, "each try publishes a metadata file of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToSwap:
    """There is nothing to swap.

    A latch holder has published the attempt, its request id has landed before, or the attempt changes nothing.
    """

    payload: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsReplan:
    """The head moved in a way that the attempt can't follow as it is."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The attempt can't be carried out.

    Args:
        reason: Why.
        misfit: Set if a retry is refused, too: what the attempt asks for does not fit the table.
    """

    reason: str
    misfit: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongLatch:
    """The table moves from one lock service to another, and asks for other locks than those that were taken."""

    reason: str


PlanResult = Planned | NothingToSwap | NeedsReplan | Refusal | WrongLatch


class SwapResult(Enum):
    """The answer of the store to a compare-and-set."""

    SWAPPED = auto()
    MOVED = auto()
    """The pointer was not our base. After a lost reply this may be the work of our own first try."""
    LOST_REPLY = auto()


class SwapRefused(Exception):
    """The swap was not executed and never will be.

    Args:
        error: What says so.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Where(Enum):
    """The result of a search for our metadata file."""

    IN_LOG = auto()
    """It is the pointer, or in the unbroken log back from it."""
    NOT_IN_LOG = auto()
    """The pointer left our base, and the unbroken log from the base lacks it: it never landed and never will."""
    STILL_BASE = auto()
    """The pointer is our base: not landed yet."""
    UNDECIDED = auto()
    """The store or the log could not be read."""


class Cause(Enum):
    """Why a commit was not applied."""

    CONFLICT = auto()
    LOCK = auto()
    PHASE = auto()
    """The latch was not the one that the table asks for; it may be taken anew."""
    ERROR = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a commit.

    Args:
        status: The classification.
        plan: What was swapped, or tried.
        nothing_to_swap: Set on a SUCCESS without a swap of our own.
        cause: Why not, on FAILURE.
        reason: In words.
        error: What was raised, if anything.
        tries: Swaps sent.
    """

    status: CommitStatus
    plan: Planned | None = None
    nothing_to_swap: NothingToSwap | None = None
    cause: Cause | None = None
    reason: str = ""
    error: BaseException | None = None
    tries: int = 0

    def __post_init__(self) -> None:
        """State what each classification knows."""
        success = self.status is CommitStatus.SUCCESS
        assert (self.cause is not None) == (self.status is CommitStatus.FAILURE), (
            "a failure, and nothing else, is proven"
        )
        assert success or self.nothing_to_swap is None, "a commit without a swap of its own is a success"
        assert not success or (self.plan is None) != (self.nothing_to_swap is None), (
            "either we swapped, or there was nothing to swap"
        )
        assert self.tries >= 0, "a number of swaps is no less than 0"


Steps = Generator[Effect, Any, Verdict]


def commit(limits: TryLimits) -> Steps:
    """Yield the steps of one commit; return its verdict.

    Guarantee: every path on which ``AcquireLatch`` granted the latch ends in ``Release``; a verdict of FAILURE is
    returned only where it is proven, and only then ``Discard`` is asked for.
    """
    replans, latches, phases, in_doubt = 0, 0, 0, False
    while True:
        try:
            published: NothingToSwap | None = yield AcquireLatch(offering=not in_doubt)
        except OfferLost:
            assert not in_doubt, "an attempt that is in doubt is not offered again"
            # Acquire the latch without an offer: Plan finds the append in the table if a holder has published it.
            in_doubt = True
            continue
        except LockError as error:
            failure = Verdict(status=CommitStatus.FAILURE, cause=Cause.LOCK, reason=str(error), error=error)
            return _doubted(failure) if in_doubt else failure
        if published is not None:
            return Verdict(status=CommitStatus.SUCCESS, nothing_to_swap=published)
        latches += 1
        assert latches <= limits.latches + limits.phases + limits.replans_outside + 1, "no latch is taken for ever"
        verdict: Verdict | None = None
        try:
            retracted: bool = yield Retract()
            in_doubt = in_doubt or not retracted
            verdict = yield from _under_latch(limits, replans)
        finally:
            yield Release(verdict)
        if verdict is not None and verdict.cause is Cause.PHASE and phases < limits.phases:
            phases += 1
            continue  # By now it is known which locks to take. The caller of the commit does not notice.
        if verdict is not None and isinstance(verdict.error, LockLost) and latches < limits.latches:
            continue  # We stalled, or the lock service was away. Nothing was swapped: queue again.
        if verdict is not None:
            return _doubted(verdict) if in_doubt and verdict.status is CommitStatus.FAILURE else verdict
        replans += 1
        assert replans <= limits.replans_outside, "the next time it is planned again where nothing moves"
        try:
            yield Replan(under_latch=False)
        except CommitError:
            raise
        except Exception as error:  # noqa: BLE001
            return _not_swapped(error)


def _doubted(failure: Verdict) -> Verdict:
    """Return the verdict on an attempt that failed here and that a latch holder may have carried out."""
    return Verdict(
        status=CommitStatus.UNKNOWN,
        reason=f"another writer may have published it in its group commit, and here it failed: {failure.reason}",
        error=failure.error,
        tries=failure.tries,
    )


def _under_latch(limits: TryLimits, replans: int) -> Generator[Effect, Any, Verdict | None]:
    """Plan, write and swap until something is decided. None asks for planning again without the latch."""
    tries = 0
    deleted: set[str] = set()
    while True:
        try:
            planned: PlanResult = yield Plan()
        except Exception as error:  # noqa: BLE001
            return _not_swapped(error, tries)
        match planned:
            case Refusal(reason=reason, misfit=misfit):
                return Verdict(
                    status=CommitStatus.FAILURE, cause=Cause.CONFLICT, reason=reason, error=misfit, tries=tries
                )
            case NothingToSwap():
                return Verdict(status=CommitStatus.SUCCESS, nothing_to_swap=planned, tries=tries)
            case WrongLatch(reason=reason):
                return Verdict(status=CommitStatus.FAILURE, cause=Cause.PHASE, reason=reason, tries=tries)
            case NeedsReplan():
                if replans < limits.replans_outside:
                    return None
                try:
                    yield Replan(under_latch=True)
                except CommitError:
                    raise
                except Exception as error:  # noqa: BLE001
                    return _not_swapped(error, tries)
                continue
        assert planned.location not in deleted, "what a failed try deleted is never published"
        try:
            yield Gather(planned)
            yield Write(planned)
            yield EnsureActive()
        except Exception as error:  # noqa: BLE001
            # Nothing was swapped, so whatever failed (a full disk, a read-only warehouse), nothing landed.
            yield Discard(planned)
            return _not_swapped(error, tries)
        except BaseException:
            yield Discard(planned)
            raise
        tries += 1
        assert tries <= limits.swaps, "swaps that find the pointer moved are counted"
        try:
            status = yield from _swap(limits, planned)
        except SwapRefused as refused:
            # The store says that this swap was not executed. It may be wrong, so search the log before files go.
            if (yield Locate(planned)) is not Where.IN_LOG:
                yield Discard(planned)
                return _not_swapped(refused.error, tries)
            status = CommitStatus.SUCCESS
        if status is CommitStatus.SUCCESS:
            status = yield from _confirmed(limits, planned)
        if status is not CommitStatus.FAILURE:
            return Verdict(status=status, plan=planned, tries=tries)
        yield Discard(planned)
        deleted.add(planned.location)
        if tries >= limits.swaps:
            return Verdict(
                status=CommitStatus.FAILURE,
                plan=planned,
                cause=Cause.CONFLICT,
                reason="writers that do not hold the latch moved the pointer before every swap",
                tries=tries,
            )


def _not_swapped(error: Exception, tries: int = 0) -> Verdict:
    """Return the verdict on *error*, which came without a swap; every swap before it is proven to have failed."""
    cause = Cause.LOCK if isinstance(error, LockLost | LockRefused) else Cause.ERROR
    return Verdict(status=CommitStatus.FAILURE, cause=cause, reason=str(error), error=error, tries=tries)


def _swap(limits: TryLimits, plan: Planned) -> Generator[Effect, Any, CommitStatus]:
    """Send one swap and classify it.

    The race behind ``LOST_REPLY``:

    1. We send the swap; the connection breaks before the answer.
    2. The service may have executed the swap, may execute it in a minute, or has never received it.
    3. We read the pointer and find our base. This proves nothing, because the service may still execute the swap.
    4. So we send the identical swap again. If the answer is SWAPPED, one of the two landed. If it is MOVED, the pointer
       has left the base for good, and the log shows whether our swap moved it.
    """
    result: SwapResult = yield Swap(plan)
    if result is SwapResult.SWAPPED:
        return CommitStatus.SUCCESS
    if result is SwapResult.MOVED:
        return CommitStatus.FAILURE
    assert result is SwapResult.LOST_REPLY, "everything else was decided"
    for check in range(limits.status_checks):
        where: Where = yield Locate(plan)
        match where:
            case Where.IN_LOG:
                return CommitStatus.SUCCESS
            case Where.NOT_IN_LOG:
                return CommitStatus.FAILURE
            case Where.STILL_BASE:
                try:
                    result = yield Swap(plan)
                except SwapRefused:
                    # This swap was not executed. The first one may still be.
                    result = SwapResult.LOST_REPLY
                if result is SwapResult.SWAPPED:
                    return CommitStatus.SUCCESS
                if result is SwapResult.MOVED:
                    continue
        yield Pause(check)
    return CommitStatus.UNKNOWN


def _confirmed(limits: TryLimits, plan: Planned) -> Generator[Effect, Any, CommitStatus]:
    """Return the outcome of an executed swap if there are lock-only writers, which take the latch and do not compare.

    1. We pass ``EnsureActive`` and stall; our latch expires.   2. A lock-only writer takes it and reads our base.
    3. We swap: the pointer is still at our base.   4. The lock-only writer overwrites the pointer.

    So a writer that lost the latch acquires it again: then the lock-only writer has finished, and the log shows whether
    it has overwritten our swap.
    """
    for check in range(limits.status_checks):
        try:
            where: Where = yield Confirm(plan)
        except LockTimeout:
            break  # the holder keeps the latch for longer than anybody should wait
        except Exception:  # noqa: BLE001 - it was swapped, so nothing is a proof that it was not
            where = Where.UNDECIDED
        match where:
            case Where.IN_LOG:
                return CommitStatus.SUCCESS
            case Where.NOT_IN_LOG:
                return CommitStatus.FAILURE
        # The pointer at our base is no proof either: a swap with a lost reply may still come, and would succeed.
        yield Pause(check)
    return CommitStatus.UNKNOWN
