"""The state of a lease, from the point of view of its holder.

Theory of operation
    Four states. HELD: the service confirmed the lease not long ago. SUSPECT: a confirmation of the service is
    overdue, but the lease can't have run out yet. LOST and RELEASED are final.

    ``last_confirmed_at`` is the moment at which the last confirmed renewal was **sent**, by the holder's own clock,
    which runs through suspend. The service counts the lease from when the renewal arrived, which is later, so
    the holder always finds itself LOST before anybody else may take over:

    1. The holder sends a renewal at 0.
    2. The service receives it at 2 and will end the lease at 2 + lease.
    3. The reply is lost. The holder counts from 0 and stops at 0 + lease.

    Events: CONFIRMED, the service answered that the lease is ours (``last_confirmed_at`` is when that was asked);
    MISSED, it did not answer; DENIED, it answered that the lease is not ours; TICK, time passed;
    GIVEN_BACK, the holder released it.

Not here
    Reviving: a lease that the service still knows, but which the holder has found LOST, stays LOST.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from commit_coord.model import LeaseState


class LeaseEvent(StrEnum):
    """An event that changes the state of a lease."""

    CONFIRMED = "confirmed"
    MISSED = "missed"
    DENIED = "denied"
    TICK = "tick"
    GIVEN_BACK = "given-back"


_HELD, _SUSPECT, _LOST, _RELEASED = LeaseState.HELD, LeaseState.SUSPECT, LeaseState.LOST, LeaseState.RELEASED

TRANSITIONS: Mapping[LeaseState, Mapping[LeaseEvent, LeaseState]] = MappingProxyType(
    {
        _HELD: {
            LeaseEvent.CONFIRMED: _HELD,
            LeaseEvent.MISSED: _SUSPECT,
            LeaseEvent.DENIED: _LOST,
            LeaseEvent.TICK: _HELD,
            LeaseEvent.GIVEN_BACK: _RELEASED,
        },
        _SUSPECT: {
            LeaseEvent.CONFIRMED: _HELD,
            LeaseEvent.MISSED: _SUSPECT,
            LeaseEvent.DENIED: _LOST,
            LeaseEvent.TICK: _SUSPECT,
            LeaseEvent.GIVEN_BACK: _RELEASED,
        },
        _LOST: dict.fromkeys(LeaseEvent, _LOST),
        _RELEASED: dict.fromkeys(LeaseEvent, _RELEASED),
    }
)

assert all(set(TRANSITIONS[state]) == set(LeaseEvent) for state in LeaseState), "each state knows every event"

OVERDUE = 2 / 3
"""The part of a lease after which a confirmation is overdue: two heartbeats of the usual third have been missed."""


def next_state(
    state: LeaseState, event: LeaseEvent, *, now: float, last_confirmed_at: float, lease: float | None
) -> LeaseState:
    """Return the state after *event*.

    Args:
        state: The present one.
        event: What was noticed.
        now: The holder's clock, seconds.
        last_confirmed_at: When the last confirmed renewal was sent, same clock.
        lease: How long the service keeps the lease after a renewal, seconds; None for ever.
    """
    assert lease is None or lease > 0, "a lease has a length"
    after = TRANSITIONS[state][event]
    assert state not in (_LOST, _RELEASED) or after is state, "LOST and RELEASED are final"
    if lease is None or after in (_LOST, _RELEASED):
        return after
    if now - last_confirmed_at >= lease:
        return _LOST
    if now - last_confirmed_at >= lease * OVERDUE:
        return _SUSPECT
    return after
