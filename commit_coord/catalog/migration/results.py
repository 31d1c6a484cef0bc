"""The results of moving tables, and their present state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from commit_coord.catalog.migration.sightings import Sighting
from commit_coord.locks.migration.writers import Writer
from commit_coord.protocol.migration import Phase, State


class Outcome(StrEnum):
    """The outcome for one table."""

    CHANGED = "changed"
    THERE = "there already"
    WAITS = "waits"
    """For writers, or for operations; nothing was changed by the step that waits."""
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Whether the table has come into the next phase is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result for one table.

    Args:
        table: ``db.table``.
        before: Its state before; None where the table could not be read.
        after: Its state when it was read last.
        outcome: The result of the step.
        reason: In words, where it did not get there.
        waits_for: Writers that hold it up.
        took_ms: How long it took.
    """

    table: str
    before: State | None
    after: State | None
    outcome: Outcome
    reason: str = ""
    waits_for: Sequence[Sighting] = ()
    took_ms: float = 0.0

    @property
    def phase(self) -> Phase | None:
        """In which it is, as far as is known."""
        return None if self.after is None else self.after.phase


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The phase of one table, and its writers.

    Args:
        table: ``db.table``.
        state: Phase and epoch; None where the table could not be read.
        sightings: The writers that were seen.
        writers: The registered writers that have written to it.
        problem: Why it could not be read, and what to do.
    """

    table: str
    state: State | None
    sightings: Sequence[Sighting] = ()
    writers: Sequence[Writer] = ()
    problem: str = ""

    @property
    def next(self) -> Phase | None:
        """The next phase on the way to ``zookeeper``; None if there is none, or it is not known."""
        return None if self.state is None else self.state.phase.toward(Phase.ZOOKEEPER)

    @property
    def holds_up(self) -> list[Sighting]:
        """The writers that must be stopped or moved before the table can leave the metastore's locks."""
        return [one for one in self.sightings if one.kind.holds_up]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Whether a table is as its phase asks for.

    Args:
        table: ``db.table``.
        state: Phase and epoch; None where the table could not be read.
        problems: What is not, in words, each with what to do.
    """

    table: str
    state: State | None
    problems: Sequence[str]
