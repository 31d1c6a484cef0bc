"""The lease of a request for locks of tables that may move."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from commit_coord.locks.base import Lease
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.migration.beliefs import Beliefs, PhaseByTable, managers_of
from commit_coord.model import JournalEntry, LeaseState, LockRequest, Offer
from commit_coord.protocol.migration import Phase, State


class MigratingLease(HandoverLease):
    """The leases of a request in one lock manager, in the other, or in both."""

    def __init__(
        self, request: LockRequest, held: Sequence[HandoverLease], phases: PhaseByTable, beliefs: Beliefs
    ) -> None:
        super().__init__(request, held[-1].generation)
        self._held, self.phases, self._beliefs = tuple(held), phases, beliefs
        for lease in held:
            lease.add_listener(_Forward(self))

    @property
    def name(self) -> str:
        """The request id under which the services know it."""
        return self._held[0].request.request_id

    @property
    def state(self) -> LeaseState:
        """See :attr:`Lease.state`: the worse of the two."""
        for lease in self._held:
            self._follow(lease.state)
        return self._state

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """See :meth:`Lease.ensure_active`."""
        for lease in self._held:
            lease.ensure_active(max_age_ms)
        self._raise_if_over()

    def lock_mismatch(self, state: State) -> str | None:
        """See :class:`~commit_coord.coordinator.stores.TableBoundLease`."""
        ((table, phase),) = self.phases.items()
        self._beliefs.seen(table, state)
        if managers_of(state.phase, self.request) == managers_of(phase, self.request):
            return None
        return f"the table is in phase {state}, and the locks of phase {phase} were taken"

    @property
    def was_contended(self) -> bool | None:
        """See :attr:`HandoverLease.was_contended`."""
        return self._held[0].was_contended

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`: of those who wait for the lock that is taken first."""
        return self._held[0].take(limit)

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`HandoverLease.settle`."""
        self._held[0].settle(done, returned)

    def retract(self) -> bool:
        """See :meth:`HandoverLease.retract`."""
        return self._held[0].retract()

    @property
    def handover_note(self) -> str | None:
        """See :attr:`HandoverLease.handover_note`: ZooKeeper keeps notes, the metastore none."""
        return self._held[-1].handover_note

    def set_handover_note(self, note: str) -> None:
        """See :meth:`HandoverLease.set_handover_note`."""
        self._held[-1].set_handover_note(note)

    def release(self) -> None:
        """See :meth:`Lease.release`. The second lock first: the next owner of the first one finds it free."""
        self._transition(LeaseState.RELEASED)
        for lease in reversed(self._held):
            lease.release()

    def _follow(self, state: LeaseState) -> None:
        """Note that one of the two is in *state*."""
        if state in (LeaseState.LOST, LeaseState.SUSPECT):
            self._transition(state, next((lease._reason for lease in self._held if lease._reason), ""))
        elif state is LeaseState.HELD and all(lease._state is LeaseState.HELD for lease in self._held):
            self._transition(LeaseState.HELD)


class _Forward:
    """Reports changes of the parts to a lease, without keeping it: a lease that no code refers to is given back."""

    def __init__(self, lease: MigratingLease) -> None:
        self._lease = weakref.ref(lease)

    def __call__(self, _: Lease, state: LeaseState) -> None:
        lease = self._lease()
        if lease is not None and state is not LeaseState.RELEASED:
            lease._follow(state)


def holds_common_lock(lease: Lease) -> bool:
    """Return whether *lease*, the latch of a table that moves, is held in the metastore, too."""
    return isinstance(lease, MigratingLease) and Phase.ZOOKEEPER not in lease.phases.values()
