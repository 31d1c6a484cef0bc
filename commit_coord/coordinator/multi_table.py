"""One commit to several tables: it takes all latches together, and one swap publishes all changes or none.

Each table has its own planner and publisher, as in a commit to one table. The store swaps all pointers in one
transaction, so the outcome of one table is the outcome of all: if one metadata file is in the log of its table, all
changes have landed; if one of them cannot land any more, none will.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.coordinator.latched import LatchedCommit
from commit_coord.coordinator.outcome import doubt, outcome, raise_unless_landed
from commit_coord.coordinator.planning import Planner
from commit_coord.coordinator.publishing import Publisher
from commit_coord.coordinator.run import Run
from commit_coord.coordinator.services import Services
from commit_coord.coordinator.stores import Committed, MultiTableStore, PointerSwap, Replanner
from commit_coord.errors import LockLost, LockRefused
from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.locks.base import Lease
from commit_coord.protocol.commit import (
    NeedsReplan,
    NothingToSwap,
    Planned,
    PlanResult,
    Refusal,
    SwapResult,
    Verdict,
    Where,
    WrongLatch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAttempt:
    """The change of one table.

    Args:
        attempt: The attempt to commit.
        replan: Plans the attempt again if it does not fit a head that has moved; with None it is then refused.
        operation_lease: The locks of the operation; nothing lands without them. None if there are none.
    """

    attempt: Attempt
    replan: Replanner | None = None
    operation_lease: Lease | None = None


class _TableCommit:
    """The part of the commit for one table."""

    def __init__(self, services: Services, change: TableAttempt) -> None:
        self.change = change
        self.run = Run(services=services, attempt=change.attempt, fences=services.fences, is_repair=False)
        self.planner = Planner(self.run, change.replan)
        self.publisher = Publisher(self.run)
        self.planned: PlanResult = Refusal(reason="it was not planned")

    @property
    def to_swap(self) -> Planned | None:
        """The planned swap; None if the table does not change."""
        return self.planned if isinstance(self.planned, Planned) else None


class MultiTableCommit(LatchedCommit):
    """One run of the protocol for several tables.

    Args:
        services: What the commits of the catalog share.
        store: Swaps the pointers.
        changes: One for each table, all with the same request id.
    """

    def __init__(self, services: Services, store: MultiTableStore, changes: Sequence[TableAttempt]) -> None:
        ordered = sorted(changes, key=lambda change: change.attempt.table)
        tables = [change.attempt.table for change in ordered]
        assert len(set(tables)) == len(tables) > 0, "each table is changed once"
        super().__init__(services, tables, ordered[0].attempt.request_id)
        self._store = store
        self._members = [_TableCommit(services, change) for change in ordered]

    def run(self) -> dict[Identifier, Committed]:
        """Execute all changes; return the state of each table that is still there.

        Raises:
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit_tables`.
        """
        with self.in_doubt():
            return self._executed()

    def _executed(self) -> dict[Identifier, Committed]:
        verdict = self.drive()
        looked_up = any(member.planner.looked_up for member in self._members)
        facts = {"table": self._refused or self.shown, "request_id": self._request_id}
        raise_unless_landed(verdict, facts, doubt=doubt(self._members[0].run, verdict, looked_up=looked_up))
        ended = {member.run.attempt.table: self._committed(member, verdict) for member in self._members}
        return {table: committed for table, committed in ended.items() if committed is not None}

    def _committed(self, member: _TableCommit, verdict: Verdict) -> Committed | None:
        own = member.planned
        if isinstance(own, Planned):
            verdict = replace(verdict, plan=own, nothing_to_swap=None)
        else:
            assert isinstance(own, NothingToSwap), "any other result did not land"
            if own.payload is None:
                return None
            verdict = replace(verdict, plan=None, nothing_to_swap=own)
        return outcome(member.run, verdict, looked_up=member.planner.looked_up)

    @property
    def _refused(self) -> str | None:
        """The table whose change was refused; None if there is none, or more than one."""
        refusals = [member for member in self._members if isinstance(member.planned, Refusal)]
        return table_name(refusals[0].run.attempt.table) if len(refusals) == 1 else None

    def _plan(self) -> PlanResult:
        for member in self._members:
            member.run.lease = self.latch
            member.planned = member.planner.plan()
        self.head_moved = any(member.run.head_moved for member in self._members)
        results = [member.planned for member in self._members]
        wrong = [result for result in results if isinstance(result, WrongLatch)]
        if wrong:
            return wrong[0]
        unswapped: list[Committed] = [result.payload for result in results if isinstance(result, NothingToSwap)]
        landed = [found for found in unswapped if found.snapshot_ids]
        landed += [found for found in unswapped if found.landed_before]
        if landed:
            # One table contains its change, so all changes landed together. A table that no longer shows its change is
            # returned as it is:
            # 1. The whole commit landed.   2. In one table the snapshot expires, or the table is dropped.
            # 3. The same commit is sent again, and planning refuses it on this table.
            for member in self._members:
                member.planned = NothingToSwap(payload=self._as_it_is(member, landed_before=landed[0].landed_before))
            return NothingToSwap()
        for kind in (Refusal, NeedsReplan):
            if found := [result for result in results if isinstance(result, kind)]:
                return found[0]
        if not (plans := [member.to_swap for member in self._members if member.to_swap is not None]):
            return NothingToSwap()
        return plans[0]

    def _as_it_is(self, member: _TableCommit, *, landed_before: bool) -> Committed | None:
        """Return the state of a table; None if it was dropped since."""
        if isinstance(member.planned, NothingToSwap):
            found: Committed = member.planned.payload
            return replace(found, landed_before=landed_before)
        attempt = member.run.attempt
        try:
            metadata, location = self._services.load(attempt.table)
        except NoSuchTableError:
            return None
        if attempt.table_uuid not in (None, str(metadata.table_uuid)):
            return None  # another table has the name
        return Committed(metadata=metadata, location=location, snapshot_ids=(), landed_before=landed_before)

    def _plan_again(self) -> None:
        for member in self._members:
            if isinstance(member.planned, NeedsReplan):
                member.planner.plan_again()

    def _write(self, plan: Planned) -> None:
        self._each(lambda publisher, own: publisher.write(own))

    def _discard(self, plan: Planned) -> None:
        self._each(lambda publisher, own: publisher.discard(own))

    def _each(self, act: Callable[[Publisher, Planned], object]) -> None:
        for member in self._members:
            if member.to_swap is not None:
                act(member.publisher, member.to_swap)

    def _ensure_active(self) -> None:
        for member in self._members:
            if member.change.operation_lease is not None:
                try:
                    member.change.operation_lease.ensure_active(0)
                except LockLost as error:
                    raise LockRefused("the operation has lost its locks", **error.details) from error
        super()._ensure_active()

    def _swap(self, plan: Planned) -> SwapResult:
        swaps = [
            PointerSwap(table=member.run.attempt.table, base=own.base, location=own.location)
            for member in self._members
            if (own := member.to_swap) is not None
        ]
        tables = [swap.table for swap in swaps]
        return self._reported(tables, lambda: self._store.swap_all(swaps, self._services.fences))

    def _locate(self, plan: Planned) -> Where:
        found = {member.publisher.locate(member.to_swap) for member in self._members if member.to_swap is not None}
        for certain in (Where.IN_LOG, Where.NOT_IN_LOG, Where.UNDECIDED):
            if certain in found:
                return certain
        return Where.STILL_BASE
