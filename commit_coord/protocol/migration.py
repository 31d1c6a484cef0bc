"""Moves a table from the metastore's locks to ZooKeeper while writers continue: the phases, and the locks of each.

Pure: it decides and executes nothing. ``tests/proof/model/Migration.tla`` checks the protocol, ``locks/migration/``
executes it, ``docs/migration.md`` describes it for users.

::

    hms ──► both ──► zookeeper        one step at a time, forward or back; the epoch grows with each step
        ◄──      ◄──

Phase and epoch are properties of the table in Iceberg's metadata, so each change of them is a new metadata location:
a writer that planned on the old one finds its swap refused. They are read with the pointer, under the latch, and a
writer whose locks are not those that the phase asks for lets go, takes these, and starts over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from commit_coord.errors import ConfigError

LOCK_IMPL = "commit-coord.lock-impl"
"""Table property: the lock manager that this table's writers use. Each change of it is a new metadata location."""

LOCK_PHASE = "commit-coord.lock-phase"
"""Property of a table, or of a database for new tables: the phase. Only ``commit-coord migrate`` changes it."""

LOCK_EPOCH = "commit-coord.lock-epoch"
"""Table property: how often the phase has changed."""

HMS, ZOOKEEPER = "hms", "zookeeper"
"""The lock managers between which tables move, by their names."""

MIGRATING = "hms-to-zookeeper"
"""The lock manager that supports all phases."""


class Phase(StrEnum):
    """The phases of a migration, in this order."""

    HMS = "hms"
    BOTH = "both"
    ZOOKEEPER = "zookeeper"

    @property
    def lock_impl(self) -> str:
        """The lock manager that the table declares: the one whose lock every writer of this phase holds.

        So writers that take only the metastore's lock continue in phase ``both``.
        """
        return ZOOKEEPER if self is Phase.ZOOKEEPER else HMS

    def toward(self, target: Phase) -> Phase | None:
        """Return the next phase on the way to *target*, None if this phase is *target*."""
        order = list(Phase)
        here, there = order.index(self), order.index(target)
        step = None if here == there else order[here + (1 if there > here else -1)]
        # So writers of the phases before and after a step have one lock in common, and exclude each other.
        assert step is None or set(locks_of(self)) & set(locks_of(step)), "neighbours share a lock manager"
        return step


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The phase of a table, and how often it has changed."""

    phase: Phase
    epoch: int
    is_free: bool = False
    """Whether no table has the name; then *phase* is the one in which a table would be made.

    The next table may be in another phase, by a rename for example. So operation locks on the name are taken on both
    sides.
    """

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> State:
        """Return the state of a table with *properties*. Without a phase, the declared lock manager decides.

        Raises:
            ConfigError: The phase is unknown to this version.
        """
        unmoved = Phase.ZOOKEEPER if properties.get(LOCK_IMPL) == ZOOKEEPER else Phase.HMS
        phase, epoch = properties.get(LOCK_PHASE, unmoved), properties.get(LOCK_EPOCH, "0")
        try:
            return cls(phase=Phase(phase), epoch=int(epoch))
        except ValueError as error:
            raise ConfigError(
                "unknown migration phase of a table",
                key=LOCK_PHASE,
                value=phase,
                epoch=epoch,
                accepted=", ".join(Phase),
            ) from error

    def changed_to(self, phase: Phase) -> dict[str, str]:
        """Return the properties of the table once it is in *phase*."""
        return {LOCK_PHASE: phase.value, LOCK_EPOCH: str(self.epoch + 1), LOCK_IMPL: phase.lock_impl}

    def __str__(self) -> str:
        """Return ``both (epoch 1)``."""
        return f"{self.phase} (epoch {self.epoch})"


def locks_of(phase: Phase, *, changing: bool = False) -> tuple[str, ...]:
    """Return the lock managers whose locks *phase* requires, in the order in which they are acquired.

    Who changes the phase takes both: the locks of the phase before, and of the one after. On the way back from
    ``zookeeper`` the metastore's can't be had: there the guard is until the phase has changed.
    """
    if phase is Phase.ZOOKEEPER:
        return (ZOOKEEPER,)
    return (HMS, ZOOKEEPER) if phase is Phase.BOTH or changing else (HMS,)


assert all(set(locks_of(phase, changing=True)) >= set(locks_of(phase)) for phase in Phase), (
    "a change of the phase excludes every writer of the phase before"
)
