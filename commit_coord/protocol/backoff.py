"""The waits between tries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that grow from *initial_ms* by *factor* up to *maximum_ms*, each shortened by chance.

    Args:
        initial_ms: The wait after the first try.
        maximum_ms: No wait is longer.
        factor: How much longer each wait is than the one before; 1 keeps them equal.
        jitter: The part of a wait that chance decides: 0 none, 1 all of it. Clients that failed together
            would otherwise come back together.
    """

    initial_ms: float
    maximum_ms: float
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        """State that waits grow, by a part of each."""
        assert min(self.initial_ms, self.maximum_ms) >= 0, "a wait is no less than 0"
        assert self.factor >= 1, "no wait is shorter than the one before, but for chance"
        assert 0 <= self.jitter <= 1, "chance decides a part of a wait"


def next_wait(policy: Backoff, attempt: int, draw: float) -> float:
    """Return the seconds to wait after try number *attempt* (from 0), given a number *draw* in [0, 1)."""
    assert attempt >= 0, "tries are counted from 0"
    assert 0 <= draw <= 1, "chance decides a part of a wait"
    # The exponent is bounded because 2.0 ** 1024 overflows and a service may be away for days.
    wait_ms = min(policy.maximum_ms, policy.initial_ms * policy.factor ** min(attempt, 64))
    return wait_ms * (1 - policy.jitter * draw) / 1000
