"""A table moves between two lock services while two of ours and one that only locks write to it, in simulated time.

``make sim ARGS="--moves 1"`` runs all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from commit_coord.catalog.migration import operator as operating
from commit_coord.iceberg.attempt import Attempt
from commit_coord.locks.migration import beliefs
from commit_coord.locks.migration.beliefs import Beliefs, PhaseByTable
from commit_coord.locks.migration.lease import MigratingLease
from commit_coord.locks.migration.taking import Taking
from commit_coord.model import LockRequest
from commit_coord.protocol.migration import ZOOKEEPER, Phase, locks_of
from tests.proof.sim.moving import SimulatedGuards
from tests.proof.sim.plan import Moves, Plan
from tests.proof.sim.run import simulate
from tests.proof.sim.world import Blow

EVERY = 58
"""One of so many runs; `make mutants` knows that they notice."""

BRIEF = 3.0
"""Seconds for which a process is stopped that keeps its leases."""


def _broken(plan: Plan) -> tuple[str, ...]:
    """Return what does not hold; also when a commit of ours was refused, though nobody was away for long."""
    outcome = simulate(plan)
    brief = all(fault.blow is Blow.PAUSE and fault.seconds == BRIEF for fault in plan.faults)
    return (*outcome.broken, *(("refused",) if brief and outcome.refused else ()))


def test_a_table_moves_whichever_client_is_stopped_or_dies_when() -> None:
    """Some of the runs; nothing is lost, and who is there is never refused."""
    assert {plan.seed: broken for plan in Moves()[EVERY // 2 :: EVERY] if (broken := _broken(plan))} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_table_moves_whichever_client_is_stopped_or_dies_at_any_step() -> None:
    assert {plan.seed: broken for plan in Moves() if (broken := _broken(plan))} == {}


def _phase_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MigratingLease, "lock_mismatch", lambda self, state: None)


def _no_metastore_lock_in_both(patch: pytest.MonkeyPatch) -> None:
    def without(phase: Phase, *, changing: bool = False) -> tuple[str, ...]:
        return (ZOOKEEPER,) if phase is Phase.BOTH and not changing else locks_of(phase, changing=changing)

    patch.setattr(beliefs, "locks_of", without)


def _second_lock_is_not_taken(patch: pytest.MonkeyPatch) -> None:
    real = Taking._parts

    def parts(self: Taking, request: LockRequest, phases: PhaseByTable) -> Any:
        return islice(real(self, request, phases), None if request.changes_phase else 1)

    patch.setattr(Taking, "_parts", parts)


def _epoch_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    def attempt(**given: Any) -> Attempt:
        return Attempt(**{**given, "properties_read": {}})

    patch.setattr(operating, "Attempt", attempt)


def _no_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedGuards, "place", lambda self, table, deadline, table_uuid: None)


def _waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Beliefs, "have_changed", lambda self, phases: False)


@pytest.mark.parametrize(
    "remove, who, begins",
    [
        (_phase_is_not_checked, "foreign", Phase.HMS),
        (_no_metastore_lock_in_both, "w1", Phase.BOTH),
        (_second_lock_is_not_taken, "w2", Phase.ZOOKEEPER),
        (_epoch_is_not_compared, "op", Phase.BOTH),
        (_no_guard, "foreign", Phase.ZOOKEEPER),
        pytest.param(_waits_for_ever, "w1", Phase.BOTH, marks=pytest.mark.slow),
    ],
)
def test_a_part_of_the_protocol_that_is_gone_is_missed(
    remove: Callable[[pytest.MonkeyPatch], None], who: str, begins: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promise is broken when *who* is stopped for a moment somewhere; with that part it is kept."""
    plans = [
        plan
        for plan in Moves()
        if plan.faults[0].process == who
        and plan.faults[0].seconds == BRIEF
        and plan.move is not None
        and plan.move.begins is begins
        and (len(plan.move.ends) > 1 or remove is not _epoch_is_not_compared)
    ]
    remove(monkeypatch)
    broken = next((plan for plan in plans if _broken(plan)), None)
    assert broken is not None
    monkeypatch.undo()
    assert _broken(broken) == ()
