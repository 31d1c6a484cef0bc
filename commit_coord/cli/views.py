"""What the commands show: plain records for JSON, and tables of the same records for people."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from commit_coord.cli.fitting import WHOLE, FittingTable, ScreenColumn, cut_at_end, cut_in_middle
from commit_coord.cli.output import duration, moment
from commit_coord.config import PROPERTIES, Configuration, Origin
from commit_coord.model import Guarantees, LockEntry, LockState, Owner
from commit_coord.process import has_dead_owner, is_dead
from commit_coord.redaction import shown

OutputRecord = dict[str, Any]


REQUEST_ID_LENGTH = 8
"""As many letters of a request id are enough to name it, if only one begins so; the tables print as many."""


# -- locks -------------------------------------------------------------------------------------------------


def lock_record(entry: LockEntry) -> OutputRecord:
    """Return *entry* for JSON."""
    return {
        "request_id": entry.request_id,
        "scope": entry.scope.value,
        "resource": str(entry.resource),
        "mode": entry.mode.value,
        "state": entry.state.value,
        "dead": has_dead_owner(entry),
        "owner": {
            "user": entry.owner.user,
            "host": entry.owner.host,
            "pid": entry.owner.pid,
            "application": entry.owner.application,
            "statement": entry.owner.statement,
        },
        "since": moment(entry.requested_at_ms),
        "since_ms": entry.requested_at_ms,
        "expires_in_ms": entry.expires_in_ms,
        "explicit": entry.explicit,
        "guard": entry.guard,
        "generation": entry.generation,
        "blocked_by": entry.blocked_by,
    }


_WHO = re.compile(r".*? pid \d+")


def cut_owner(text: Text, width: int) -> Text:
    """Shorten an owner: first what it runs, then the middle of the user and the host, so that the pid stays."""
    who = _WHO.match(text.plain)
    return cut_at_end(text, width) if who is None or who.end() < width else cut_in_middle(text[: who.end()], width)


def owner_width(owners: Iterable[str]) -> int:
    """Return how wide the widest of *owners* is without what it runs."""
    return max((cell_len(who[0] if (who := _WHO.match(owner)) else owner) for owner in owners), default=0)


_LOCK_COLUMNS = (
    ScreenColumn("resource", 0, least=WHOLE, folds=True),
    ScreenColumn("mode", 1),
    ScreenColumn("state", 0, least=WHOLE),
    ScreenColumn("owner", 0, cut=cut_owner, below=2),
    ScreenColumn("for", 2, right=True),
    ScreenColumn("expires in", 4),
    ScreenColumn("request", 0, least=WHOLE),  # it names one request to `unlock`
    ScreenColumn("waits for", 3),
    ScreenColumn("of", 6),
    ScreenColumn("scope", 5),
)


def lock_table(entries: Sequence[LockEntry], *, now_ms: int, title: str) -> FittingTable:
    """Return a table of *entries*: those who wait below those who hold, each with whom it waits for.

    However narrow it is, resource, user, host and pid are whole.
    """
    widest = owner_width(str(entry.owner) for entry in entries)
    columns = [replace(column, least=widest) if column.name == "owner" else column for column in _LOCK_COLUMNS]
    made = FittingTable(columns, title, empty="no locks")
    owners = {entry.request_id: entry.owner for entry in entries}
    states = lock_states(entries)
    for entry in entries:
        made.add_row(
            str(entry.resource),
            entry.mode.letter,
            states[entry.request_id],
            str(entry.owner),
            duration(max(0, now_ms - entry.requested_at_ms)),
            expiry(entry),
            short(entry.request_id),
            short(entry.blocked_by),
            blocking_owner(entry, owners),
            entry.scope.value,
        )
    return made


def lock_states(entries: Iterable[LockEntry]) -> dict[str, Text]:
    """Return of each request whether it ``holds`` or ``waits``, or that its owner is ``dead``."""
    ended = cache(is_dead)  # many requests have one owner
    return {
        entry.request_id: Text("dead", style="red")
        if has_dead_owner(entry, ended)
        else Text("holds", style="green")
        if entry.state is LockState.ACQUIRED
        else Text("waits", style="yellow")
        for entry in entries
    }


def blocking_owner(entry: LockEntry, owners: Mapping[str, Owner]) -> str:
    """Return the owner of the request that *entry* waits for, if it is one of *owners*; else ""."""
    blocker = owners.get(entry.blocked_by or "")
    return f"{blocker.user}@{blocker.host} pid {blocker.pid}" if blocker else ""


def lock_line(entry: LockEntry) -> str:
    """Return *entry* in a line."""
    return f"{entry.mode.letter} {entry.resource} ({entry.scope}) of {entry.owner}, request {entry.request_id}"


def cause_of_death(entry: LockEntry) -> str:
    """Return how it is known that the owner of *entry* is dead."""
    return "its process has ended" if is_dead(entry.owner.process) else "its lease is over"


def expiry(entry: LockEntry) -> str:
    """Return when a lock ends by itself."""
    if entry.is_endless:
        return "never (guard)" if entry.guard else "never (LOCK)"
    if entry.expires_in_ms is None:
        return "–"
    return duration(entry.expires_in_ms) if entry.expires_in_ms > 0 else "over"


def _request_ids(listed: str | None, wide: bool) -> str:
    """Return the first of the request ids of a snapshot, and how many more there are."""
    first, *more = (listed or "").split(",")
    return (first if wide else short(first)) + (f" and {len(more)} more" if more else "")


def short(request_id: str | None) -> str:
    """Return the beginning of a request id, as git shortens its own; ``unlock`` takes it."""
    return (request_id or "")[:REQUEST_ID_LENGTH]


_OPERATIONS = {"unknown": "unknown (its snapshot may be gone)"}
"""What the table prints in place of an operation."""


# -- commits -----------------------------------------------------------------------------------------------


_COMMIT_COLUMNS = (
    ScreenColumn("when", 0, least=19),
    ScreenColumn("snapshot", 3),
    ScreenColumn("operation", 0, least=9),
    ScreenColumn("rows", 1, right=True),
    ScreenColumn("request id", 2),
    ScreenColumn("gen.", 5, right=True),
    ScreenColumn("writer", 4),
)


def commit_table(records: Sequence[OutputRecord], *, title: str, wide: bool) -> FittingTable:
    """Return a table of commits, newest first as given; request ids are whole when it may be *wide*."""
    made = FittingTable(_COMMIT_COLUMNS, title, empty="no commits")
    for record in records:
        rows = f"+{record['added_rows']:,}" + (f" −{record['deleted_rows']:,}" if record["deleted_rows"] else "")
        snapshot = "–" if record["snapshot_id"] is None else str(record["snapshot_id"])
        made.add_row(
            record["when"].partition(".")[0],
            Text.assemble(snapshot, (" ●", "green") if record["current"] else ""),
            _OPERATIONS.get(record["operation"], record["operation"]) or "–",
            rows if record["snapshot_id"] is not None else "–",
            _request_ids(record["request_id"], wide) or Text("not coordinated", style="dim"),
            "–" if record["generation"] is None else str(record["generation"]),
            record["writer"] or "–",
        )
    return made


# -- configuration -----------------------------------------------------------------------------------------


def config_records(configuration: Configuration) -> list[OutputRecord]:
    """Return every property of ours and whatever else was given, secrets hidden."""
    values = dataclasses.asdict(configuration.settings)
    ours = [
        {
            "property": prop.key,
            "value": shown(prop.key, _text(values[prop.key.replace(".", "_").replace("-", "_")])),
            "from": configuration.origins.get(prop.key, Origin.DEFAULT),
            "meaning": prop.description,
        }
        for prop in PROPERTIES
    ]
    theirs = [
        {
            "property": key,
            "value": shown(key, value),
            "from": configuration.origins.get(key, Origin.DEFAULT),
            "meaning": "PyIceberg's own",
        }
        for key, value in sorted(configuration.properties.items())
    ]
    return ours + theirs


_CONFIG_COLUMNS = (
    ScreenColumn("property", 0, least=WHOLE),
    ScreenColumn("value", 0, least=12, folds=True),
    ScreenColumn("from", 1),
)


def config_table(records: Sequence[OutputRecord], *, title: str) -> FittingTable:
    """Return a table of properties."""
    made = FittingTable(_CONFIG_COLUMNS, title)
    for record in records:
        origin = record["from"]
        made.add_row(record["property"], record["value"], Text(origin, style="dim" if origin == "default" else ""))
    return made


def fact_table(heading: str, *, title: str) -> FittingTable:
    """Return an empty table of names and what is known of each."""
    return FittingTable([ScreenColumn(heading, 0, folds=True), ScreenColumn("", 0, folds=True)], title)


_PROMISES: tuple[tuple[str, str], ...] = (
    ("mutual_exclusion", "conflicting requests are never granted together"),
    ("hierarchy", "database, table and partition locks"),
    ("fifo", "first come, first served"),
    ("reach", "how far exclusion goes"),
    ("expiry", "the lock of a dead holder ends by itself"),
    ("survives_restart", "locks outlive a restart of the lock service"),
    ("explicit_locks", "LOCK statements, whose locks outlive their client"),
    ("journal", "remembers the outcome of request ids"),
    ("clock", "whose clock decides when a lease ends"),
    ("carries", "how far group commit goes"),
    ("deadlocks", "deadlocks are detected and reported"),
    ("notes", "the next commit detects that the last one was overwritten"),
)


def guarantee_table(guarantees: Guarantees, *, title: str) -> FittingTable:
    """Return a table of what the lock manager promises."""
    made = fact_table("guarantee", title=title)
    for name, text in _PROMISES:
        value = getattr(guarantees, name)
        made.add_row(text, Text("yes", style="green") if value is True else "no" if value is False else str(value))
    return made


def _text(value: object) -> str:
    """Return *value* as one would write it in a configuration."""
    return str(value).lower() if isinstance(value, bool) else str(value)


assert [name for name, _ in _PROMISES] == [field.name for field in dataclasses.fields(Guarantees)]
