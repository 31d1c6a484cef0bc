"""Waits for what another process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 0.05


def holds_within(condition: Callable[[], object], timeout_s: float, *, every_s: float = _EVERY_S) -> bool:
    """Return True as soon as *condition* holds, False when it does not within *timeout_s*."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(every_s)  # what another process brings about sends no event
    return True
