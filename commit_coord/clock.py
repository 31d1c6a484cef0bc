"""Time and chance, as one object that a test or a simulator can replace."""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """The source of time and random numbers."""

    def now(self) -> float:
        """Seconds on a clock that only moves forward and runs through suspend: for deadlines and leases."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch by the host's clock, which may jump: for people and Iceberg timestamps."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        ...

    def random(self) -> float:
        """Return a number in [0, 1): for jitter."""
        ...


class SystemClock:
    """The machine's clocks.

    ``now`` is CLOCK_BOOTTIME where the system has it: CLOCK_MONOTONIC stops while a laptop or a
    virtual machine is suspended, and a lease would look alive after it expired.
    """

    _BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> float:
        """Seconds since boot, suspend included."""
        return time.clock_gettime(self._BOOTTIME)

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    def random(self) -> float:
        """A number in [0, 1) from the process's generator."""
        return random.random()  # noqa: S311 - jitter, no secret


SYSTEM_CLOCK = SystemClock()
