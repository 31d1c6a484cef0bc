"""What ``commit-coord migrate`` shows: records for JSON, and tables of them for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commit_coord.cli.fitting import Column, FittingTable, cut_in_middle
from commit_coord.cli.output import duration
from commit_coord.protocol.migration import Phase, State

if TYPE_CHECKING:
    from commit_coord.catalog.migration import Moved, TableStatus
    from commit_coord.catalog.migration.sightings import Seen, Sighting

STYLES = {Phase.HMS: "yellow", Phase.BOTH: "cyan", Phase.ZOOKEEPER: "green"}
"""How each phase is printed."""

_BAR = 24
"""Letters of the bar that shows how many tables are in which phase."""


_COLUMNS = (
    Column("table", 0, least=16, cut=cut_in_middle),
    Column("phase", 1),
    Column("epoch", 5, right=True),
    Column("writers", 3, right=True),
    Column("commits by phase", 2),
    Column("mean wait", 4),
    Column("others seen", 0, least=16),
)


def status_table(statuses: Sequence[TableStatus]) -> FittingTable:
    """Return a table of where tables are."""
    shown = FittingTable(_COLUMNS)
    for one in statuses:
        counted = _counted(one)
        shown.add_row(
            one.table,
            *state(one.state),
            str(len(one.writers)),
            ", ".join(f"{phase} {commits}" for phase, (commits, _) in counted.items()),
            ", ".join(f"{phase} {duration(waited / commits)}" for phase, (commits, waited) in counted.items()),
            one.problem or people(one.holds_up + [who for who in one.sightings if who.kind == "java"]),
        )
    return shown


def _counted(status: TableStatus) -> dict[str, tuple[int, float]]:
    """Return phase → commits of the writers that live, and milliseconds that they waited."""
    sums: dict[str, tuple[int, float]] = {}
    for phase in Phase:
        counts = [writer.counted.get(status.table, {}).get(phase) for writer in status.writers]
        commits = sum(one.latches for one in counts if one is not None)
        if commits:
            sums[phase.value] = commits, sum(one.waited_ms for one in counts if one is not None)
    return sums


def counts(statuses: Sequence[TableStatus]) -> Text:
    """Return a bar of how many tables are in which phase."""
    total, bar = len(statuses), Text()
    for phase in Phase:
        bar.append("█" * round(_BAR * _number(statuses, phase) / (total or 1)), style=STYLES[phase])
    for phase in Phase:
        number = _number(statuses, phase)
        bar.append(f"  {phase} {number} of {total}", style=STYLES[phase])
    return bar


def _number(statuses: Sequence[TableStatus], phase: Phase) -> int:
    return sum(one.state is not None and one.state.phase is phase for one in statuses)


def state(found: State | None) -> tuple[Text, str]:
    """Return phase and epoch for a table; ``?`` of what could not be read."""
    return (Text("?"), "?") if found is None else (Text(found.phase, style=STYLES[found.phase]), str(found.epoch))


def people(sightings: Sequence[Sighting]) -> str:
    """Return who was seen, in a line."""
    return "; ".join(map(str, sightings))


def rate(seen: Seen) -> float | None:
    """Return how many lock requests a second the metastore had; None where they can't be counted."""
    return None if seen.locks is None else round(seen.locks / max(seen.seconds, 0.001), 2)


def _sighting_record(sighting: Sighting) -> dict[str, Any]:
    return {
        "who": sighting.who,
        "kind": sighting.kind,
        "how": sighting.how,
        "times": sighting.times,
        "last_ms": sighting.last_ms,
        **({"spelled": sighting.spelled} if sighting.spelled else {}),
    }


def status_record(status: TableStatus) -> dict[str, Any]:
    """Return where a table is for JSON."""
    held_up_by = status.holds_up if status.next is Phase.ZOOKEEPER else []
    return {
        "table": status.table,
        "phase": status.state and status.state.phase,
        "epoch": status.state and status.state.epoch,
        "next": status.next,
        "problem": status.problem or None,
        "seen": [_sighting_record(one) for one in status.sightings],
        "held_up_by": [_sighting_record(one) for one in held_up_by],
        "writers": [
            {
                "client": writer.client,
                "version": writer.version,
                "owner": str(writer.owner),
                "phases": list(writer.phases),
                "wrote_in": writer.tables[status.table],
            }
            for writer in status.writers
        ],
        "commits": {phase: commits for phase, (commits, _) in _counted(status).items()},
        "waited_ms": {phase: round(waited) for phase, (_, waited) in _counted(status).items()},
    }


def _state_record(state: State | None) -> dict[str, Any] | None:
    return None if state is None else {"phase": state.phase, "epoch": state.epoch}


def moved_record(moved: Moved) -> dict[str, Any]:
    """Return the outcome for a table as JSON."""
    return {
        "table": moved.table,
        "before": _state_record(moved.before),
        "after": _state_record(moved.after),
        "outcome": moved.outcome,
        "reason": moved.reason,
        "waits_for": [_sighting_record(one) for one in moved.waits_for],
        "took_ms": round(moved.took_ms),
    }
