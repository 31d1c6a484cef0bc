"""The phase of a table that moves from the metastore's locks to ZooKeeper, and the steps that a person may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from commit_coord.process import on_behalf_of
from commit_coord.protocol.migration import MIGRATING, Phase, State
from commit_coord.ui.visiting import Changed, VisitedCatalog

if TYPE_CHECKING:
    from commit_coord.catalog.migration import Moved

WINDOW_S = 30.0
"""How long the metastore's locks are watched before a table leaves them, as `commit-coord migrate advance` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStep:
    """One step to another phase."""

    target: Phase
    label: str
    explanation: str


_STEPS = {
    Phase.HMS: (
        PhaseStep(
            target=Phase.BOTH, label="Start", explanation="Writers take both locks. Writers of all kinds continue."
        ),
    ),
    Phase.BOTH: (
        PhaseStep(
            target=Phase.ZOOKEEPER,
            label="Advance",
            explanation="Writers take only ZooKeeper's lock. First the metastore's locks are watched for "
            f"{WINDOW_S:.0f} seconds; the step is refused if a writer that takes only the metastore's lock is seen.",
        ),
        PhaseStep(target=Phase.HMS, label="Abort", explanation="Writers take only the metastore's lock again."),
    ),
    Phase.ZOOKEEPER: (
        PhaseStep(target=Phase.HMS, label="Abort", explanation="Back to the metastore's lock, through the phase both."),
    ),
}


def phase_of(place: VisitedCatalog, table: Table) -> tuple[State, tuple[PhaseStep, ...]] | None:
    """Return the phase of *table* and the steps from there; None if the catalog moves no tables."""
    if place.catalog.settings.lock_impl != MIGRATING:
        return None
    state = State.of(table.properties)
    return state, _STEPS[state.phase]


def move(
    place: VisitedCatalog, table: Identifier, state: State, target: Phase, why: str, *, is_stopping: Callable[[], bool]
) -> Moved:
    """Bring *table* from *state* to the phase *target*; blocks while the metastore's locks are watched.

    Raises:
        Changed: Meanwhile the server stops, or another client has moved the table.
    """
    from commit_coord.catalog.hive import CoordinatedHiveCatalog
    from commit_coord.catalog.migration import Migration

    assert isinstance(place.catalog, CoordinatedHiveCatalog), "only this catalog has such a lock manager"
    migration = Migration(place.catalog, why=why, host=on_behalf_of(place.visitor.name, place.catalog.host))
    seen = migration.watch(WINDOW_S) if target is Phase.ZOOKEEPER else None
    if is_stopping():
        raise Changed("Nothing was changed: the server stops.")
    if State.of(place.catalog.load_table(table).properties) != state:
        raise Changed("Nothing was changed: another client has moved the table meanwhile.")
    return migration.move(table, target, seen=seen, window_s=WINDOW_S)
