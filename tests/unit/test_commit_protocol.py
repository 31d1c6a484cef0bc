"""The commit protocol against scripted answers: what is asked for in which order, and what each answer means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commit_coord.errors import LockLost, LockServiceUnavailable, LockTimeout, OfferLost
from commit_coord.model import CommitStatus
from commit_coord.protocol.commit import (
    AcquireLatch,
    Cause,
    Confirm,
    Discard,
    Effect,
    EnsureActive,
    Gather,
    Locate,
    NeedsReplan,
    NothingToSwap,
    Pause,
    Plan,
    Planned,
    Refusal,
    Release,
    Replan,
    Retract,
    Swap,
    SwapRefused,
    SwapResult,
    TryLimits,
    Verdict,
    Where,
    Write,
    WrongLatch,
    commit,
)

PLAN = Planned(base="v1", location="v2")
LIMITS = TryLimits()
AGAIN = Planned(base="v3", location="v4")
_LONGEST = 1_000
"""Effects of one commit; the longest one here takes a few dozen."""


def run(answers: dict[type, list[Any]], limits: TryLimits = LIMITS) -> tuple[Verdict, list[str]]:
    """Drive the protocol: each effect takes the next answer of its kind; exceptions are thrown, the last repeats."""
    asked: list[Effect] = []

    def answer(effect: Effect) -> Any:
        asked.append(effect)
        prepared = answers.get(type(effect), [isinstance(effect, Retract) or None])
        return prepared.pop(0) if len(prepared) > 1 else prepared[0]

    verdict = drive(commit(limits), answer)
    assert [type(e) for e in asked].count(AcquireLatch) >= 1
    return verdict, [type(effect).__name__ for effect in asked]


def drive(steps: Any, answer: Callable[[Effect], Any]) -> Verdict:
    try:
        effect = next(steps)
        for _ in range(_LONGEST):
            result = answer(effect)
            if result is None and isinstance(effect, Confirm):
                result = Where.IN_LOG  # as nearly always: the latch was held all the time
            effect = steps.throw(result) if isinstance(result, BaseException) else steps.send(result)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict
    raise AssertionError(f"a commit does not end: after {_LONGEST} effects comes {effect}")


def test_an_undisturbed_commit_takes_each_step_once() -> None:
    verdict, asked = run({Plan: [PLAN], Swap: [SwapResult.SWAPPED]})
    assert verdict.status is CommitStatus.SUCCESS
    assert asked == ["AcquireLatch", "Retract", "Plan", "Gather", "Write", "EnsureActive", "Swap", "Confirm", "Release"]


def test_an_attempt_that_the_holder_carried_along_is_a_success_and_holds_nothing() -> None:
    verdict, asked = run({AcquireLatch: [NothingToSwap(payload="theirs")]})
    assert (verdict.status, verdict.nothing_to_swap) == (CommitStatus.SUCCESS, NothingToSwap(payload="theirs"))
    assert asked == ["AcquireLatch"]


def test_an_offer_that_was_lost_is_not_offered_again_and_the_table_is_looked_at() -> None:
    effects: list[Effect] = []

    def answer(effect: Effect) -> Any:
        effects.append(effect)
        if isinstance(effect, AcquireLatch):
            return OfferLost("gone") if effect.offering else None
        return NothingToSwap(payload="there") if isinstance(effect, Plan) else None

    verdict = drive(commit(LIMITS), answer)
    assert verdict.status is CommitStatus.SUCCESS
    assert [type(effect).__name__ for effect in effects] == [
        "AcquireLatch",
        "AcquireLatch",
        "Retract",
        "Plan",
        "Release",
    ]


@pytest.mark.parametrize(
    "then",
    [
        {AcquireLatch: [OfferLost("gone"), LockTimeout("held")]},
        {AcquireLatch: [OfferLost("gone"), None], Plan: [OSError("full")]},
    ],
)
def test_after_an_offer_was_lost_no_failure_is_proven(then: dict[type, list[Any]]) -> None:
    verdict, _ = run(then)
    assert verdict.status is CommitStatus.UNKNOWN


def test_a_failure_is_proven_only_if_the_offer_could_be_taken_back() -> None:
    refused: dict[type, list[Any]] = {Plan: [Refusal(reason="a column is gone")]}
    assert run({**refused, Retract: [True]})[0].status is CommitStatus.FAILURE
    verdict, asked = run({**refused, Retract: [False]})
    assert verdict.status is CommitStatus.UNKNOWN
    assert "a column is gone" in verdict.reason
    assert asked == ["AcquireLatch", "Retract", "Plan", "Release"]


def test_the_release_gets_the_verdict_on_what_was_swapped() -> None:
    told: list[Release] = []

    def answer(effect: Effect) -> Any:
        if isinstance(effect, Release):
            told.append(effect)
        return {Plan: PLAN, Swap: SwapResult.SWAPPED}.get(type(effect))

    verdict = drive(commit(LIMITS), answer)
    assert told == [Release(verdict)]


def test_without_the_latch_nothing_is_planned() -> None:
    verdict, asked = run({AcquireLatch: [LockTimeout("held")]})
    assert (verdict.status, verdict.cause) == (CommitStatus.FAILURE, Cause.LOCK)
    assert asked == ["AcquireLatch"]


def test_a_pointer_that_a_stranger_moved_is_planned_on_again() -> None:
    verdict, asked = run({Plan: [PLAN, AGAIN], Swap: [SwapResult.MOVED, SwapResult.SWAPPED]})
    assert (verdict.status, verdict.plan, verdict.tries) == (CommitStatus.SUCCESS, AGAIN, 2)
    assert asked.count("Discard") == 1
    assert asked[-1] == "Release"


def test_strangers_that_never_stop_end_in_a_conflict() -> None:
    verdict, asked = run(
        {Plan: [PLAN, AGAIN, Planned(base="v5", location="v6")], Swap: [SwapResult.MOVED]}, TryLimits(swaps=3)
    )
    assert (verdict.status, verdict.cause, verdict.tries) == (CommitStatus.FAILURE, Cause.CONFLICT, 3)
    assert asked.count("Discard") == 3


@pytest.mark.parametrize("lost", [1, 3])
def test_a_latch_that_is_lost_before_the_swap_is_taken_again(lost: int) -> None:
    expired = LockLost("expired")
    verdict, asked = run({Plan: [PLAN], EnsureActive: [*[expired] * lost, None], Swap: [SwapResult.SWAPPED]})
    assert (verdict.status, verdict.tries) == (CommitStatus.SUCCESS, 1)
    assert asked.count("Discard") == lost
    assert asked.count("AcquireLatch") == asked.count("Retract") == asked.count("Release") == lost + 1


def test_a_latch_that_is_lost_each_time_ends_in_a_failure_that_says_so() -> None:
    verdict, asked = run({Plan: [PLAN], EnsureActive: [LockLost("expired")]}, TryLimits(latches=3))
    assert (verdict.status, verdict.cause) == (CommitStatus.FAILURE, Cause.LOCK)
    assert asked.count("AcquireLatch") == asked.count("Release") == 3
    assert "Swap" not in asked


@pytest.mark.parametrize("error", [OSError("disk full"), LockServiceUnavailable("no answer")])
@pytest.mark.parametrize("step", [Write, EnsureActive])
def test_what_fails_before_the_swap_lands_nothing_and_leaves_nothing(step: type, error: Exception) -> None:
    verdict, asked = run({Plan: [PLAN], step: [error]})
    assert verdict.status is CommitStatus.FAILURE
    assert verdict.error is error
    assert "Swap" not in asked
    assert asked[-2:] == ["Discard", "Release"]


def test_a_swap_that_was_written_over_before_the_latch_was_taken_again_is_tried_on_the_new_head() -> None:
    verdict, asked = run(
        {Plan: [PLAN, AGAIN], Swap: [SwapResult.SWAPPED], Confirm: [Where.NOT_IN_LOG, Where.IN_LOG]},
    )
    assert (verdict.status, verdict.plan, verdict.tries) == (CommitStatus.SUCCESS, AGAIN, 2)
    assert asked.count("Discard") == 1


@pytest.mark.parametrize("error", [LockServiceUnavailable("away"), RuntimeError("a bug")])
def test_a_swap_that_nobody_can_confirm_is_unknown_and_keeps_its_files(error: Exception) -> None:
    verdict, asked = run({Plan: [PLAN], Swap: [SwapResult.SWAPPED], Confirm: [error]})
    assert verdict.status is CommitStatus.UNKNOWN
    assert asked.count("Confirm") == asked.count("Pause") == LIMITS.status_checks
    assert "Discard" not in asked


def test_a_latch_that_another_writer_keeps_is_waited_for_once_to_confirm_a_swap() -> None:
    verdict, asked = run({Plan: [PLAN], Swap: [SwapResult.SWAPPED], Confirm: [LockTimeout("held")]})
    assert verdict.status is CommitStatus.UNKNOWN
    assert asked.count("Confirm") == 1


def test_a_swap_that_the_store_refuses_lands_nothing() -> None:
    error = PermissionError("read-only")
    verdict, asked = run({Plan: [PLAN], Swap: [SwapRefused(error)]})
    assert (verdict.status, verdict.cause, verdict.error) == (CommitStatus.FAILURE, Cause.ERROR, error)
    assert asked[-2:] == ["Discard", "Release"]


def test_a_swap_that_is_in_the_log_although_the_store_refuses_it_is_a_success() -> None:
    verdict, asked = run({Plan: [PLAN], Swap: [SwapRefused(OSError("closed"))], Locate: [Where.IN_LOG]})
    assert verdict.status is CommitStatus.SUCCESS
    assert "Discard" not in asked


def test_an_interrupt_while_writing_releases_and_discards() -> None:
    asked: list[str] = []

    def answer(effect: Effect) -> Any:
        asked.append(type(effect).__name__)
        return {Plan: PLAN, Write: KeyboardInterrupt()}.get(type(effect))

    with pytest.raises(KeyboardInterrupt):
        drive(commit(TryLimits()), answer)
    assert asked[-2:] == ["Discard", "Release"]


@pytest.mark.parametrize("lost", [0, 1], ids=["the swap", "its repeat"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, TimeoutError])
def test_an_interrupt_during_the_swap_releases_and_keeps_every_file(error: type[BaseException], lost: int) -> None:
    """A signal handler raises it, or Ctrl-C does: the swap may be under way."""
    asked: list[str] = []
    swaps = [*[SwapResult.LOST_REPLY] * lost, error()]

    def answer(effect: Effect) -> Any:
        asked.append(type(effect).__name__)
        if isinstance(effect, Swap):
            return swaps.pop(0)
        return {Plan: PLAN, Locate: Where.STILL_BASE}.get(type(effect))

    with pytest.raises(error):
        drive(commit(TryLimits()), answer)
    assert asked[-1] == "Release"
    assert "Discard" not in asked


def test_a_lost_reply_that_had_landed_is_a_success() -> None:
    verdict, asked = run({Plan: [PLAN], Swap: [SwapResult.LOST_REPLY], Locate: [Where.IN_LOG]})
    assert verdict.status is CommitStatus.SUCCESS
    assert asked.count("Swap") == 1


def test_a_lost_reply_with_the_pointer_on_our_base_repeats_the_identical_swap() -> None:
    """The pointer on the base proves nothing: the change may land later."""
    seen: list[Planned] = []

    def answer(effect: Effect) -> Any:
        match effect:
            case Plan():
                return PLAN
            case Swap(plan=plan):
                seen.append(plan)
                return SwapResult.LOST_REPLY if len(seen) == 1 else SwapResult.SWAPPED
            case Locate():
                return Where.STILL_BASE
        return None

    assert drive(commit(TryLimits()), answer).status is CommitStatus.SUCCESS
    assert seen == [PLAN, PLAN]


def test_a_repeated_swap_that_finds_the_pointer_moved_asks_the_log_whose_work_it_was() -> None:
    landed, _ = run(
        {
            Plan: [PLAN],
            Swap: [SwapResult.LOST_REPLY, SwapResult.MOVED],
            Locate: [Where.STILL_BASE, Where.IN_LOG],
        }
    )
    assert landed.status is CommitStatus.SUCCESS


def test_a_lost_reply_that_the_log_disproves_is_tried_again_on_the_new_head() -> None:
    verdict, asked = run(
        {
            Plan: [PLAN, AGAIN],
            Swap: [SwapResult.LOST_REPLY, SwapResult.SWAPPED],
            Locate: [Where.NOT_IN_LOG],
        }
    )
    assert (verdict.status, verdict.plan) == (CommitStatus.SUCCESS, AGAIN)
    assert asked.count("Discard") == 1


@pytest.mark.parametrize("where", [Where.UNDECIDED, Where.STILL_BASE])
def test_what_cannot_be_found_out_is_unknown_and_keeps_every_file(where: Where) -> None:
    verdict, asked = run({Plan: [PLAN], Swap: [SwapResult.LOST_REPLY], Locate: [where]}, TryLimits(status_checks=4))
    assert verdict.status is CommitStatus.UNKNOWN
    assert "Discard" not in asked
    assert asked.count("Pause") == 4
    assert asked[-1] == "Release"


def test_a_repeated_swap_that_is_refused_does_not_disprove_the_first_one() -> None:
    verdict, asked = run(
        {
            Plan: [PLAN],
            Swap: [SwapResult.LOST_REPLY, SwapRefused(PermissionError("read-only"))],
            Locate: [Where.STILL_BASE],
        },
        TryLimits(status_checks=2),
    )
    assert verdict.status is CommitStatus.UNKNOWN
    assert "Discard" not in asked


def test_a_stale_attempt_is_planned_again_without_the_latch_and_at_last_under_it() -> None:
    verdict, asked = run(
        {Plan: [NeedsReplan(reason="moved")] * 3 + [PLAN], Swap: [SwapResult.SWAPPED]}, TryLimits(replans_outside=2)
    )
    assert verdict.status is CommitStatus.SUCCESS
    round_outside = ["AcquireLatch", "Retract", "Plan", "Release", "Replan"]
    assert asked == [
        *round_outside,
        *round_outside,
        "AcquireLatch",
        "Retract",
        "Plan",
        "Replan",
        "Plan",
        "Gather",
        "Write",
        "EnsureActive",
        "Swap",
        "Confirm",
        "Release",
    ]


def test_a_refusal_publishes_nothing() -> None:
    verdict, asked = run({Plan: [Refusal(reason="the table was dropped")]})
    assert (verdict.status, verdict.cause) == (CommitStatus.FAILURE, Cause.CONFLICT)
    assert asked == ["AcquireLatch", "Retract", "Plan", "Release"]


def test_a_request_that_had_landed_is_answered_and_not_repeated() -> None:
    verdict, asked = run({Plan: [NothingToSwap(payload="v2")]})
    assert verdict.status is CommitStatus.SUCCESS
    assert verdict.nothing_to_swap == NothingToSwap(payload="v2")
    assert asked == ["AcquireLatch", "Retract", "Plan", "Release"]


def test_every_effect_is_known_to_this_file() -> None:
    known = {
        AcquireLatch,
        Plan,
        Replan,
        Write,
        EnsureActive,
        Swap,
        Locate,
        Pause,
        Discard,
        Release,
        Gather,
        Retract,
        Confirm,
    }
    assert known == set(Effect.__args__)


# A table that moves from one lock service to another.


def test_a_latch_that_the_table_does_not_ask_for_is_given_back_and_the_right_one_taken() -> None:
    """Before anything is written; those who wait for the commit do not notice."""
    wrong = WrongLatch(reason="the table is in phase both")
    verdict, asked = run({Plan: [wrong, PLAN], Swap: [SwapResult.SWAPPED]})
    assert verdict.status is CommitStatus.SUCCESS
    turn = ["AcquireLatch", "Retract", "Plan", "Release"]
    assert asked == [
        *turn,
        "AcquireLatch",
        "Retract",
        "Plan",
        "Gather",
        "Write",
        "EnsureActive",
        "Swap",
        "Confirm",
        "Release",
    ]


def test_offers_that_were_taken_with_the_wrong_latch_go_back_to_their_owners() -> None:
    released: list[Release] = []
    plans: list[Any] = [WrongLatch(reason="both"), PLAN]

    def answer(effect: Effect) -> Any:
        match effect:
            case Plan():
                return plans.pop(0)
            case Swap():
                return SwapResult.SWAPPED
            case Retract():
                return True
            case Release():
                released.append(effect)
        return None

    drive(commit(LIMITS), answer)
    statuses = [release.verdict.status if release.verdict else None for release in released]
    assert statuses == [CommitStatus.FAILURE, CommitStatus.SUCCESS]


def test_a_table_that_asks_for_another_latch_each_time_is_given_up_and_nothing_was_swapped() -> None:
    verdict, asked = run({Plan: [WrongLatch(reason="both")]}, TryLimits(phases=3))
    assert (verdict.status, verdict.cause, verdict.tries) == (CommitStatus.FAILURE, Cause.PHASE, 0)
    assert asked.count("AcquireLatch") == asked.count("Release") == 4
    assert "Swap" not in asked


def test_an_offer_that_could_not_be_taken_back_from_the_wrong_latch_leaves_the_end_in_doubt() -> None:
    verdict, _ = run({Plan: [WrongLatch(reason="both"), Refusal(reason="a column is gone")], Retract: [False]})
    assert verdict.status is CommitStatus.UNKNOWN
