"""Emits events: the outcomes of a lock manager's requests."""

from __future__ import annotations

from commit_coord.clock import Clock
from commit_coord.events import Events, LockAcquired, LockEnded, LockNotAcquired, LockRequested
from commit_coord.locks.base import Lease
from commit_coord.model import Generation, LeaseState, LockRequest


class LockEventEmitter:
    """The events of one manager's requests: each was asked for, then granted or not, and what was granted ends once."""

    def __init__(self, events: Events, clock: Clock) -> None:
        self._events, self._clock = events, clock
        self._granted: dict[str, tuple[LockRequest, float]] = {}
        """Requests whose end will be an event, by their names, and when they were granted.

        Not in the leases: some end by being dropped.
        """

    def asked(self, request: LockRequest) -> float:
        """Tell that *request* begins; return the time."""
        if self._events.heard:
            self._events.emit(
                LockRequested(request_id=request.request_id, request=str(request), scope=request.scope.value)
            )
        return self._clock.now()

    def granted(self, name: str, request: LockRequest, generation: Generation | None, asked: float) -> None:
        """Tell that *request*, which began at *asked*, is granted, and of its end by its *name* when that comes."""
        if not self._events.heard:
            return
        granted = self._clock.now()
        self._granted[name] = request, granted
        self._events.emit(
            LockAcquired(
                request_id=request.request_id,
                request=str(request),
                scope=request.scope.value,
                waited_ms=(granted - asked) * 1000,
                generation=generation,
            )
        )

    def follow(self, lease: Lease, asked: float) -> None:
        """Emit the grant of *lease*, whose request began at *asked*, and its end when it ends."""
        request = lease.request
        if not self._events.heard:
            return

        def ended(_: Lease, state: LeaseState) -> None:
            if state in (LeaseState.RELEASED, LeaseState.LOST):
                self.ended(request.request_id, lost=state is LeaseState.LOST)

        self.granted(request.request_id, request, lease.generation, asked)
        lease.add_listener(ended)

    def ended(self, name: str, *, lost: bool = False) -> None:
        """Emit the end of the request of that *name*, once, if its grant was emitted."""
        request, granted = self._granted.pop(name, (None, 0.0))
        if request is not None:
            self._events.emit(
                LockEnded(
                    request_id=request.request_id,
                    request=str(request),
                    scope=request.scope.value,
                    held_ms=(self._clock.now() - granted) * 1000,
                    lost=lost,
                )
            )

    def not_granted(self, request: LockRequest, asked: float, outcome: str) -> None:
        """Tell that *request*, which began at *asked*, ended in another way."""
        if self._events.heard:
            self._events.emit(
                LockNotAcquired(
                    request_id=request.request_id,
                    request=str(request),
                    scope=request.scope.value,
                    waited_ms=(self._clock.now() - asked) * 1000,
                    outcome=outcome,
                )
            )
