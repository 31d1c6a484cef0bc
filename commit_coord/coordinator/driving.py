"""Performs what the commit protocol asks for, one effect after the other, until it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from commit_coord import doubt
from commit_coord.clock import Clock
from commit_coord.errors import CommitError, CommitStateUnknown, StatementError
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.commit import Effect, Steps, SwapRefused, SwapResult, Verdict

logger = logging.getLogger(__name__)

_STATUS_CHECK = Backoff(initial_ms=50, maximum_ms=5_000)
"""The pauses between the checks after a lost reply: 11 to 21 seconds in all, for 10 checks."""


def drive(steps: Steps, perform: Callable[[Effect], Any]) -> Verdict:
    """Return the verdict of *steps*; *perform* executes their effects."""
    try:
        effect = next(steps)
        while True:
            try:
                result = perform(effect)
            except BaseException as error:  # noqa: BLE001 - the protocol decides what it means
                effect = steps.throw(error)
            else:
                effect = steps.send(result)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict


def refusing(swap: Callable[[], SwapResult]) -> SwapResult:
    """Return what *swap* returns.

    Raises:
        SwapRefused: It was not executed and never will be.
        Exception: It may have been, and may be later.
    """
    with doubt.watching():
        try:
            return swap()
        except Exception as error:
            if doubt.is_open():
                raise
            raise SwapRefused(error) from error


@contextmanager
def in_doubt(facts: Callable[[], Mapping[str, str]], is_sent: Callable[[], bool]) -> Iterator[None]:
    """If the swap may have been sent, turn an unexpected error into ``CommitStateUnknown``.

    Such an error does not prove that the commit failed.

    Args:
        facts: Table and request id, for the error.
        is_sent: Whether a swap of this commit may have been sent, by this process or by another latch holder.
    """
    try:
        yield
    except (CommitError, StatementError):
        raise
    except Exception as error:
        if not is_sent():
            raise
        logger.exception("an unexpected error occurred, and a swap may have been sent before")
        raise CommitStateUnknown(
            "an unexpected error occurred, and the swap may have been sent before, so it is not known whether the "
            "commit landed; every file is kept; search for the request id before you repeat the operation",
            **facts(),
        ) from error


def pause(clock: Clock, check: int) -> None:
    """Wait before the status check number *check*."""
    clock.sleep(next_wait(_STATUS_CHECK, check, clock.random()))
