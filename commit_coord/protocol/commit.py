"""The commit protocol: what is done in which order, and what each answer means. It decides and does nothing else.

Theory of operation
    :func:`commit` is a generator. It yields *effects*; whoever drives it (the coordinator against real services,
    a simulator against fakes) performs each one and sends back its result, or throws what it raised. What it
    returns is a :class:`Verdict`, classified once, here.

    ::

        Acquire ─► Retract ─► Plan ─► Gather ─► Write ─► EnsureActive ─► Swap ─► Confirm ─► Release
           │                   ▲ │                                        │
           │ answered: a       │ └─ Replan (the owner plans               │ MOVED: somebody else swapped; plan on
           │ holder carried    │    the attempt again)                    │ the new head. LOST_REPLY: Locate, repeat
           ▼ it along          └──────────────────────────────────────────┘ the identical swap
        Verdict

    A latch that is lost before the swap is taken again, and everything begins anew. So is one that is not what the
    table asks for: it may be moving from one lock service to another, and only ``Plan``, under the latch, sees where
    it is (``protocol/migration``).

Many attempts, one swap
    A writer that waits for the latch offers its attempt, and the holder may carry it along: ``Gather`` takes what those
    behind us offer and puts it behind our own attempt, ``Release`` tells each what became of it. It comes as late as it
    can, since whoever arrives meanwhile travels along. An offer that somebody has taken is out of its owner's hands:

    1. L holds the latch and takes M's offer.   2. L stalls, and loses its lease.
    3. M is granted the latch and fails: nothing of M was swapped.
    4. L wakes up and swaps, M's attempt with it: the pointer is still where L read it.

    So M's failure is proven only if its offer could be taken back (``Retract``). In any other case it is UNKNOWN. That
    is tried before M looks at the table: only so can M tell what it finds there under its request id, this attempt or
    an earlier one of the same id.

The lock is not the safety; the swap is
    It is a compare-and-set on the location that ``Plan`` read under the latch. A holder that was paused past its
    lease can only swap a pointer that nobody has moved.

Classification
    SUCCESS: our location is the pointer, or stands in the unbroken metadata log back from it.
    FAILURE: the pointer has left our base, and the unbroken log from the base lacks ours; or no swap was ever sent.
    UNKNOWN: anything else. Every file is kept.

    A lost reply with the pointer still on our base is neither: the change may land later (seen 20 of 20 times on
    a Hive Metastore after a client timeout). So the identical swap is repeated until the service answers it.

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
class Limits:
    """How often things are tried.

    Args:
        swaps: Swaps that may find the pointer moved by writers that hold no latch.
        replans_outside: Times that an attempt is planned again without the latch, so that a rewrite of data files
            stops nobody; the next time it is planned under the latch, where nothing moves.
        latches: Times that the latch is taken for one commit when it is lost before the swap.
        phases: Times that the table may ask for another latch than the one that was taken.
        status_checks: Looks after a lost reply before the outcome is given up as UNKNOWN.
    """

    swaps: int = 10
    replans_outside: int = 2
    latches: int = 4
    phases: int = 10
    status_checks: int = 10

    def __post_init__(self) -> None:
        """State that everything is tried once at least."""
        assert min(self.swaps, self.latches, self.status_checks) > 0, "a commit needs a latch, a swap and a look"
        assert min(self.replans_outside, self.phases) >= 0, "a number of times is no less than 0"


# Effects. Each says what its result is and what it may raise.


@dataclass(frozen=True, slots=True)
class Acquire:
    """Take the latch. Result: None; or :class:`Answered` by a holder that carried the attempt along, nothing is held.

    Raises LockError. ``OfferLost`` among them: the attempt may have been carried out.
    """

    offering: bool
    """Whether somebody else may carry the attempt out."""


@dataclass(frozen=True, slots=True)
class Retract:
    """Take the own offer back. Result: whether it is certain that nobody has taken it or will. Raises nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Read the pointer and decide what becomes of the attempt there. Result: a planning result. Raises anything."""


@dataclass(frozen=True, slots=True)
class Replan:
    """Have the attempt planned again by its owner, on the newest head. Raises what its owner refuses with."""

    under_latch: bool


@dataclass(frozen=True, slots=True)
class Gather:
    """Have the plan carry the attempts that those behind us offer. They are taken once; a later plan carries the same.

    What can't be taken or carried is left to its owner. Raises anything.
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

    Raises what kept the swap from being carried out: then nothing landed by it.
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
    Acquire
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
        """State that the swap is one: a pointer set to what it is would say nothing of whose swap came through."""
        assert self.location != self.base, "each try publishes a metadata file of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """There is nothing to swap: the request id has landed before, or the attempt changes nothing."""

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
        misfit: Why it never can be: what it asks for does not fit the table.
    """

    reason: str
    misfit: ValueError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongLatch:
    """The table moves from one lock service to another, and asks for other locks than those that were taken."""

    reason: str


PlanResult = Planned | Answered | NeedsReplan | Refusal | WrongLatch


class SwapResult(Enum):
    """What the store said to a compare-and-set."""

    SWAPPED = auto()
    MOVED = auto()
    """The pointer was not our base. After a lost reply this may be the work of our own first try."""
    LOST_REPLY = auto()


class Where(Enum):
    """Where our metadata file was found."""

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
    """What became of a commit.

    Args:
        status: The classification.
        plan: What was swapped, or tried.
        answered: Set when there was nothing to swap.
        cause: Why not, on FAILURE.
        reason: In words.
        error: What was raised, if anything.
        tries: Swaps sent.
    """

    status: CommitStatus
    plan: Planned | None = None
    answered: Answered | None = None
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
        assert success or self.answered is None, "what was answered has landed"
        assert not success or (self.plan is None) != (self.answered is None), "it was swapped, or answered"
        assert self.tries >= 0, "a number of swaps is no less than 0"


Steps = Generator[Effect, Any, Verdict]


def commit(limits: Limits) -> Steps:
    """Yield the steps of one commit; return its verdict.

    Guarantee: every path on which ``Acquire`` granted the latch ends in ``Release``; a verdict of FAILURE is returned
    only where it is proven, and only then ``Discard`` is asked for.
    """
    replans, latches, phases, in_doubt = 0, 0, 0, False
    while True:
        try:
            answered: Answered | None = yield Acquire(offering=not in_doubt)
        except OfferLost:
            # The table itself says what became of it, and Plan looks there. So do it ourselves, if it is not there.
            in_doubt = True
            continue
        except LockError as error:
            failure = Verdict(status=CommitStatus.FAILURE, cause=Cause.LOCK, reason=str(error), error=error)
            return _doubted(failure) if in_doubt else failure
        if answered is not None:
            return Verdict(status=CommitStatus.SUCCESS, answered=answered)
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
            continue  # By now it is known which locks to take. Whoever waits for the commit does not notice.
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
    """Return the verdict on an attempt that failed here and that somebody else may have carried out."""
    return Verdict(
        status=CommitStatus.UNKNOWN,
        reason=f"another writer had taken it to be committed along and did not answer, and here {failure.reason}",
        error=failure.error,
        tries=failure.tries,
    )


def _under_latch(limits: Limits, replans: int) -> Generator[Effect, Any, Verdict | None]:
    """Plan, write and swap until something is decided. None asks for planning again without the latch."""
    tries = 0
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
            case Answered():
                return Verdict(status=CommitStatus.SUCCESS, answered=planned, tries=tries)
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
        except Exception as error:  # noqa: BLE001
            # The store says that this swap was not carried out.
            yield Discard(planned)
            return _not_swapped(error, tries)
        if status is CommitStatus.SUCCESS:
            status = yield from _confirmed(limits, planned)
        if status is not CommitStatus.FAILURE:
            return Verdict(status=status, plan=planned, tries=tries)
        assert status is CommitStatus.FAILURE, "files are deleted on proof alone"
        yield Discard(planned)
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


def _swap(limits: Limits, plan: Planned) -> Generator[Effect, Any, CommitStatus]:
    """Send one swap and classify it.

    The race that ``LOST_REPLY`` stands for:

    1. We send the swap; the connection breaks before the answer.
    2. The service may have done it, may do it in a minute, or never got it.
    3. A look at the pointer finds our base: this proves nothing, step 2 may still come.
    4. So the identical swap is sent again. Once it is answered SWAPPED, it landed (whichever of the two);
       answered MOVED, the pointer has left the base for good and the log says whether through us.
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
                except Exception:  # noqa: BLE001
                    # This one was not carried out. The first one may still be.
                    result = SwapResult.LOST_REPLY
                if result is SwapResult.SWAPPED:
                    return CommitStatus.SUCCESS
                if result is SwapResult.MOVED:
                    continue
        yield Pause(check)
    return CommitStatus.UNKNOWN


def _confirmed(limits: Limits, plan: Planned) -> Generator[Effect, Any, CommitStatus]:
    """Return what became of a swap that was carried out, beside writers that take the same latch and do not compare.

    1. We pass ``EnsureActive`` and stall; our latch runs out.   2. Such a writer takes it and reads our base.
    3. We swap: the pointer is where we read it.   4. The writer puts its own file over ours.

    So who lost the latch meanwhile takes it once more: then whoever had it at 3 is done, and the log tells.
    """
    for check in range(limits.status_checks):
        try:
            where: Where = yield Confirm(plan)
        except LockTimeout:
            break  # whoever has the latch keeps it for longer than anybody should wait
        except Exception:  # noqa: BLE001 - it was swapped, so nothing is a proof that it was not
            where = Where.UNDECIDED
        match where:
            case Where.IN_LOG:
                return CommitStatus.SUCCESS
            case Where.NOT_IN_LOG:
                return CommitStatus.FAILURE
        # Back on our base is no proof either: a swap whose reply was lost may still come, and would find it there.
        yield Pause(check)
    return CommitStatus.UNKNOWN
