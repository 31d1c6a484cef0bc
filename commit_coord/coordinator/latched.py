"""A commit without group commit: it offers nothing to other writers, and publishes nothing for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, assert_never

from pyiceberg.typedef import Identifier

from commit_coord import doubt
from commit_coord.coordinator.driving import drive, in_doubt, pause, refusing
from commit_coord.coordinator.services import Services
from commit_coord.errors import CommitNotApplied
from commit_coord.events import CommitBegan, CommitEnded, SwapEnded
from commit_coord.iceberg.attempt import table_name, table_names
from commit_coord.locks.handover import HandoverLease
from commit_coord.model import CommitStatus
from commit_coord.protocol.commit import (
    AcquireLatch,
    Confirm,
    Discard,
    Effect,
    EnsureActive,
    Gather,
    Locate,
    Pause,
    Plan,
    Planned,
    PlanResult,
    Release,
    Replan,
    Retract,
    Swap,
    SwapResult,
    Verdict,
    Where,
    Write,
    commit,
)


class LatchedCommit(ABC):
    """One run of the protocol. A subclass plans, writes and swaps.

    Args:
        services: What the commits of the catalog share.
        names: The names whose latches it takes.
        request_id: The request id of the commit.
    """

    def __init__(self, services: Services, names: Sequence[Identifier], request_id: str) -> None:
        self._services = services
        self._names = tuple(sorted(set(names)))
        self._request_id = request_id
        self._lease: HandoverLease | None = None
        self._waited_s = self._held_s = self._acquired_at = 0.0
        self._is_swapping = False
        self.head_moved = False
        """Whether the head of a table was not the base of its attempt."""

    @property
    def shown(self) -> str:
        """The names, for messages and events."""
        return table_names(self._names)

    @property
    def latch(self) -> HandoverLease:
        """The latches; the protocol uses them only while it holds them."""
        assert self._lease is not None, "the protocol uses the latch only while it holds it"
        return self._lease

    def in_doubt(self) -> AbstractContextManager[None]:
        """Return a context that turns an unexpected error into ``CommitStateUnknown`` once the swap is sent."""
        facts = {"table": self.shown, "request_id": self._request_id}
        return in_doubt(lambda: facts, lambda: self._is_swapping)

    def drive(self) -> Verdict:
        """Run the protocol and return the verdict. No latch is held afterwards, also after an error."""
        events = self._services.events
        if events.heard:
            events.emit(CommitBegan(table=self.shown, request_id=self._request_id))
        try:
            with self._services.locks.one_call():
                verdict = drive(commit(self._services.limits), self._perform)
        except BaseException as error:
            not_applied = isinstance(error, CommitNotApplied)
            self._ended(CommitStatus.FAILURE if not_applied else CommitStatus.UNKNOWN, 0, str(error))
            raise
        finally:
            self._release()  # it is still held only if an interrupt came during an effect
        self._ended(verdict.status, verdict.tries, verdict.reason)
        return verdict

    def _ended(self, status: CommitStatus, tries: int, reason: str) -> None:
        self._services.events.emit(
            CommitEnded(
                table=self.shown,
                tables=self._names,
                request_id=self._request_id,
                status=status,
                waited_ms=self._waited_s * 1000,
                held_ms=self._held_s * 1000,
                tries=tries,
                rebased=self.head_moved,
                reason=reason,
            )
        )

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case AcquireLatch():
                return self._acquire()
            case Retract():
                return True  # nothing was offered
            case Gather():
                return None
            case Plan():
                return self._plan()
            case Replan():
                return self._plan_again()
            case Write(plan=plan):
                return self._write(plan)
            case EnsureActive():
                return self._ensure_active()
            case Swap(plan=plan):
                self._is_swapping = True
                return refusing(lambda: self._swap(plan))
            case Locate(plan=plan):
                return self._locate(plan)
            case Confirm(plan=plan):
                return self._confirm(plan)
            case Pause(check=check):
                return pause(self._services.clock, check)
            case Discard(plan=plan):
                return self._discard(plan)
            case Release():
                return self._release()
            case _:
                assert_never(effect)

    def _acquire(self) -> None:
        clock = self._services.clock
        asked_at = clock.now()
        try:
            self._lease = self._services.latch(*self._names, statement=f"commit {self._request_id}")
        finally:
            self._acquired_at = clock.now()
            self._waited_s += self._acquired_at - asked_at

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None
            self._held_s += self._services.clock.now() - self._acquired_at

    def _ensure_active(self) -> None:
        self.latch.ensure_active()

    def _reported(self, tables: Sequence[Identifier], swap: Callable[[], SwapResult]) -> SwapResult:
        """Return the result of *swap*, and emit an event for each table with its duration."""
        services = self._services
        started, result = services.clock.now(), "REFUSED"
        try:
            swapped = swap()
            result = swapped.name
            return swapped
        except Exception:
            result = SwapResult.LOST_REPLY.name if doubt.is_open() else result
            raise
        finally:
            if services.events.heard:
                took_ms = (services.clock.now() - started) * 1000
                for table in tables:
                    services.events.emit(
                        SwapEnded(table=table_name(table), request_id=self._request_id, result=result, took_ms=took_ms)
                    )

    def _confirm(self, plan: Planned) -> Where:
        """Return IN_LOG: the swap is final. Other writers compare, or the store kept them out during the swap."""
        return Where.IN_LOG

    @abstractmethod
    def _plan(self) -> PlanResult:
        """See :class:`Plan`."""

    @abstractmethod
    def _plan_again(self) -> None:
        """See :class:`Replan`."""

    @abstractmethod
    def _write(self, plan: Planned) -> None:
        """See :class:`Write`."""

    @abstractmethod
    def _swap(self, plan: Planned) -> SwapResult:
        """See :class:`Swap`."""

    @abstractmethod
    def _locate(self, plan: Planned) -> Where:
        """See :class:`Locate`."""

    @abstractmethod
    def _discard(self, plan: Planned) -> None:
        """See :class:`Discard`."""
