"""How long a test may take, and how long it waits for what must come: so long that only what hangs is ever stopped.

Both are for hangs alone. What is to take a certain time is measured by a clock that the test turns, and by no limit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest
import pytest_timeout

from commit_coord.testing import contract

PATIENCE = contract.PATIENCE
"""Seconds of every single wait."""

LEAST = 3
"""So many times the limit that is written down, on an idle machine too: what else slows it shows in no load."""

STRIKES: list[str] = []
"""The tests whose limit has struck."""


def some(first: Sequence[int], more: Sequence[int]) -> list[object]:
    """Return the values of a test's parameter: *first* always, *more* where slow tests run, too."""
    return [*first, *(pytest.param(value, marks=pytest.mark.slow) for value in more)]


def strikes() -> int:
    """Return how often a limit has struck in this process. Whatever spoke with another process then is in doubt."""
    return len(STRIKES)


def allowed_s(limit_s: float, load: float, processors: int) -> float:
    """Return how long a test may take whose *limit_s* is meant for an idle machine.

    Args:
        limit_s: In seconds.
        load: How many processes want a processor, this one included.
        processors: How many there are.
    """
    return limit_s * max(LEAST, 2 * load / processors)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Stop a test when it has taken longer than the machine's load explains; looked at when its limit has passed."""
    if settings.method != "signal":
        return None  # pytest-timeout's own way
    began = time.monotonic()

    def strike(*_: object) -> None:
        left = allowed_s(settings.timeout, os.getloadavg()[0], os.cpu_count() or 1) - (time.monotonic() - began)
        if left > 0:
            signal.setitimer(signal.ITIMER_REAL, left)
            return
        STRIKES.append(item.nodeid)
        pytest_timeout.timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # pytest-timeout calls it
    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True
