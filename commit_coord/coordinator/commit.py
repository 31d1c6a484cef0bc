"""Executes one commit: performs the effects that the commit protocol asks for, one after the other.

This module decides nothing about a commit; :mod:`commit_coord.protocol.commit` does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

from commit_coord.coordinator.driving import drive, in_doubt, pause, refusing
from commit_coord.coordinator.groups import Group
from commit_coord.coordinator.outcome import facts_of, outcome
from commit_coord.coordinator.payload import Payload, carried
from commit_coord.coordinator.planning import Planner
from commit_coord.coordinator.publishing import Publisher
from commit_coord.coordinator.run import Run
from commit_coord.coordinator.services import Services
from commit_coord.coordinator.stores import Committed, Replanner
from commit_coord.errors import CommitNotApplied, LockLost, LockRefused
from commit_coord.events import CommitBegan, CommitEnded
from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.iceberg.overwrites import Acknowledged
from commit_coord.locks.base import Lease
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
    NothingToSwap,
    Pause,
    Plan,
    Planned,
    Release,
    Replan,
    Retract,
    Swap,
    Verdict,
    Write,
    commit,
)


class Commit:
    """One run of the protocol.

    Args:
        services: What the commits of the catalog share.
        attempt: What is to land.
        replan: Plans the attempt again if it does not fit a head that has moved; with None it is then refused.
        operation_lease: The locks of the operation, or None. The attempt lands only if they are still held.
        is_repair: The attempt has the request id of a commit that landed and was overwritten.
    """

    def __init__(
        self,
        services: Services,
        attempt: Attempt,
        replan: Replanner | None,
        operation_lease: Lease | None,
        *,
        is_repair: bool,
    ) -> None:
        self._services = services
        self._run = Run(services=services, attempt=attempt, fences=services.fences, is_repair=is_repair)
        self._operation_lease = operation_lease
        self._planner = Planner(self._run, replan)
        self._group = Group(self._run, self._planner, operation_locked=operation_lease is not None)
        self._publisher = Publisher(self._run)
        self._waited_s = self._held_s = self._acquired_at = 0.0
        self._is_swapping = False

    def run(self) -> Committed:
        """Execute the attempt; see :meth:`Coordinator.commit`."""
        with (
            self._services.locks.one_call(),
            in_doubt(lambda: facts_of(self._run), lambda: self._is_swapping or self._run.may_be_carried),
        ):
            return self._executed()

    def _executed(self) -> Committed:
        run, events = self._run, self._services.events
        if events.heard:
            events.emit(CommitBegan(table=table_name(run.attempt.table), request_id=run.attempt.request_id))
        try:
            verdict = drive(commit(self._services.limits), self._perform)
        except BaseException as error:
            not_applied = isinstance(error, CommitNotApplied)
            self._ended(CommitStatus.FAILURE if not_applied else CommitStatus.UNKNOWN, reason=str(error))
            raise
        finally:
            if run.lease is not None:
                run.lease.release()  # it is still held only if an interrupt came during an effect
            self._group.delete_offer()
        self._ended(verdict.status, tries=verdict.tries, carried_along=len(carried(verdict)), reason=verdict.reason)
        return outcome(run, verdict, looked_up=self._planner.looked_up)

    def _ended(self, status: CommitStatus, *, tries: int = 0, carried_along: int = 0, reason: str = "") -> None:
        attempt = self._run.attempt
        self._services.events.emit(
            CommitEnded(
                table=table_name(attempt.table),
                tables=(attempt.table,),
                request_id=attempt.request_id,
                status=status,
                waited_ms=self._waited_s * 1000,
                held_ms=self._held_s * 1000,
                tries=tries,
                rebased=self._run.head_moved,
                carried=carried_along,
                reason=reason,
            )
        )

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case AcquireLatch(offering=offering):
                return self._acquire(offering=offering)
            case Retract():
                return self._retract()
            case Plan():
                return self._planner.plan()
            case Replan():
                return self._planner.plan_again()
            case Gather(plan=plan):
                return self._group.gather(plan)
            case Write(plan=plan):
                return self._publisher.write(plan)
            case EnsureActive():
                self._ensure_operation()
                return self._run.latch.ensure_active()
            case Swap(plan=plan):
                self._is_swapping = True
                return refusing(lambda: self._publisher.swap(plan))
            case Locate(plan=plan):
                return self._publisher.locate(plan)
            case Confirm(plan=plan):
                return self._publisher.confirm(plan)
            case Pause(check=check):
                return pause(self._services.clock, check)
            case Discard(plan=plan):
                return self._publisher.discard(plan)
            case Release(verdict=verdict):
                return self._release(verdict)
            case _:
                assert_never(effect)

    def _acquire(self, *, offering: bool) -> NothingToSwap | None:
        run, clock = self._run, self._services.clock
        asked_at = clock.now()
        try:
            run.may_be_carried |= not offering
            offer = self._group.offer() if offering and self._group.enabled else ""
            granted = self._services.latch_or_entry(run.attempt, offer)
        finally:
            self._acquired_at = clock.now()
            self._waited_s += self._acquired_at - asked_at
        if isinstance(granted, HandoverLease):
            run.lease = granted
            return None
        self._services.contended_tables.add(run.attempt.table)
        return NothingToSwap(payload=granted)

    def _retract(self) -> bool:
        certain = self._run.latch.retract()
        self._run.may_be_carried |= not certain
        return certain

    def _ensure_operation(self) -> None:
        """Check that the operation still holds its locks.

        Raises:
            LockRefused: The operation has lost its locks. (After LockLost the protocol would acquire a new latch, which
                does not restore these locks.)
        """
        if self._operation_lease is None:
            return
        try:
            self._operation_lease.ensure_active(0)
        except LockLost as error:
            raise LockRefused("the operation has lost its locks", **error.details) from error

    def _release(self, verdict: Verdict | None) -> None:
        run = self._run
        if run.lease is not None:
            try:
                self._group.settle(verdict)
                if verdict is not None and verdict.status is CommitStatus.SUCCESS and verdict.plan is not None:
                    self._leave_note(run.lease, verdict.plan)
            finally:
                run.lease.release()
            run.lease = None
            self._group.forget()
            self._held_s += self._services.clock.now() - self._acquired_at

    def _leave_note(self, lease: HandoverLease, plan: Planned) -> None:
        """Let the release leave a note for the next commit: this commit was acknowledged."""
        if lease.handover_note is None:
            return
        payload: Payload = plan.payload
        head = Acknowledged(
            location=plan.location,
            table_uuid=str(payload.metadata.table_uuid),
            request_id=self._run.attempt.request_id,
            snapshot_ids=tuple(one for part in payload.parts for one in part.rebased.snapshot_ids),
            by=str(lease.request.owner),
            at_ms=payload.metadata.last_updated_ms,
        )
        lease.set_handover_note(replace(self._planner.note, head=head).to_text())
