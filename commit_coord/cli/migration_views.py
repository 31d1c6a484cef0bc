"""What ``commit-coord migrate`` shows: records for JSON, and tables of them for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from commit_coord.cli.fitting import FittingTable, ScreenColumn, cut_in_middle
from commit_coord.cli.output import duration
from commit_coord.protocol.migration import Phase, State

if TYPE_CHECKING:
    from commit_coord.catalog.migration import Moved, TableStatus, Verified
    from commit_coord.catalog.migration.sightings import SeenWriters, Sighting

STYLES = {Phase.HMS: "yellow", Phase.BOTH: "cyan", Phase.ZOOKEEPER: "green"}
"""How each phase is printed."""

_BAR = 24
"""Letters of the bar that shows how many tables are in which phase."""


_COLUMNS = (
    ScreenColumn("table", 0, least=16, cut=cut_in_middle),
    ScreenColumn("phase", 1),
    ScreenColumn("epoch", 5, right=True),
    ScreenColumn("writers", 3, right=True),
    ScreenColumn("commits by phase", 2),
    ScreenColumn("mean wait", 4),
    ScreenColumn("others seen", 0, least=24, folds=True),
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


_PLAN = (
    ScreenColumn("table", 0, least=16, cut=cut_in_middle),
    ScreenColumn("phase", 2),
    ScreenColumn("epoch", 3, right=True),
    ScreenColumn("next", 1),
    ScreenColumn("writers seen", 0, least=16, folds=True),
    ScreenColumn("held up by", 0, least=12, folds=True),
)


def plan_table(statuses: Sequence[TableStatus]) -> FittingTable:
    """Return a table of the next step of each table, and who prevents it."""
    shown = FittingTable(_PLAN)
    for one in statuses:
        shown.add_row(
            one.table,
            *state(one.state),
            one.next or "-",
            one.problem or people(one.sightings),
            people(one.holds_up) if one.next is Phase.ZOOKEEPER else "",
        )
    return shown


_MOVED = (
    ScreenColumn("table", 0, least=16, cut=cut_in_middle),
    ScreenColumn("from", 3),
    ScreenColumn("to", 1),
    ScreenColumn("epoch", 4, right=True),
    ScreenColumn("outcome", 0, least=13),
    ScreenColumn("why", 0, least=16, folds=True),
    ScreenColumn("took", 2, right=True),
)
_OUTCOMES = {"changed": "green", "there already": "green", "waits": "yellow"}
"""How each outcome is printed; others are red."""


def moved_table(moved: Sequence[Moved]) -> FittingTable:
    """Return a table of what became of each table, and why."""
    shown = FittingTable(_MOVED)
    for one in moved:
        shown.add_row(
            one.table,
            one.before.phase if one.before else "?",
            one.phase or "?",
            str(one.after.epoch) if one.after else "?",
            Text(one.outcome, style=_OUTCOMES.get(one.outcome, "red")),
            one.reason,
            duration(one.took_ms),
        )
    return shown


_VERIFIED = (
    ScreenColumn("table", 0, least=16, cut=cut_in_middle),
    ScreenColumn("phase", 1),
    ScreenColumn("epoch", 2, right=True),
    ScreenColumn("problems", 0, least=20, folds=True),
)


def verified_table(found: Sequence[Verified]) -> FittingTable:
    """Return a table of what is not as the phase of each table requires."""
    shown = FittingTable(_VERIFIED)
    for one in found:
        problems = Text("; ".join(one.problems), style="red") if one.problems else Text("none", style="green")
        shown.add_row(one.table, *state(one.state), problems)
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


def rate(seen: SeenWriters) -> float | None:
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
