"""The phases of tables, as this client last saw them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from commit_coord.model import LockRequest, LockScope, Resource
from commit_coord.protocol.migration import Phase, State, locks_of

logger = logging.getLogger(__name__)

PhaseByTable = dict[Resource, Phase]


class Beliefs:
    """The state in which each table was seen last. It may be wrong: only what is read under the latch is certain.

    Args:
        state_of: Returns the state of a table as it is now; of one that is not there, as it would be made.
        on_change: Called when a table was seen in another state than before.
    """

    def __init__(self, state_of: Callable[[Resource], State], on_change: Callable[[Resource], None]) -> None:
        self._state_of, self._on_change = state_of, on_change
        self.states: dict[Resource, State] = {}

    def seen(self, table: Resource, state: State) -> None:
        """Note the state in which *table* was just seen."""
        before = self.states.get(table)
        if before != state:
            self.states[table] = state
            if before is not None:
                logger.info("%s went from %s to %s", table, before, state)
                self._on_change(table)

    def now(self, table: Resource) -> Phase:
        """Return the phase of *table* as it is now, and note it."""
        return self._look(table).phase

    def _look(self, table: Resource) -> State:
        state = self._state_of(table)
        self.seen(table, state)
        return state

    def of(self, request: LockRequest) -> PhaseByTable:
        """Return the phases of the tables of *request*, as they were seen last."""
        tables = {Resource(resource.path[:2]) for resource, _ in request.locks if len(resource.path) > 1}
        return {table: _phase_for(request, self.states.get(table) or self._look(table)) for table in sorted(tables)}

    def have_changed(self, phases: PhaseByTable, request: LockRequest) -> bool:
        """Return whether a table asks for other locks of *request* by now than those of *phases*."""
        now = {table: _phase_for(request, self._look(table)) for table in phases}
        return any(managers_of(now[table], request) != managers_of(phase, request) for table, phase in phases.items())


def _phase_for(request: LockRequest, state: State) -> Phase:
    """Return the phase whose locks *request* takes: operations on a free name take the locks of both services.

    1. A job locks a free name, by the phase of new tables.   2. A table of another phase gets the name.   3. Another
    job locks it in that phase.
    """
    return Phase.BOTH if state.is_free and request.scope is LockScope.OPERATION else state.phase


def managers_of(phase: Phase, request: LockRequest) -> tuple[str, ...]:
    """Return the lock managers whose locks *phase* asks for where *request* takes locks, by their names, in order."""
    return locks_of(phase, changing=request.changes_phase)
