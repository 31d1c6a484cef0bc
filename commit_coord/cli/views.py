"""What the commands show: plain records for JSON, and tables of the same records for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from rich.table import Table
from rich.text import Text

from commit_coord.cli.fitting import Column, FittingTable
from commit_coord.cli.output import duration, moment, table
from commit_coord.config import PROPERTIES, Configuration, Origin
from commit_coord.coordinator import request_ids
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.rebase import GENERATION, REQUEST_ID
from commit_coord.model import Guarantees, LockEntry, LockState, Owner
from commit_coord.process import has_dead_owner, is_dead
from commit_coord.redaction import shown

Record = dict[str, Any]

_WRITER_KEYS = ("writer", "commit-coord.writer-id", "spark.app.id", "engine-name")
"""Summary properties that say who wrote, the most telling first. Nobody has to set one."""


REQUEST_ID_LENGTH = 8
"""As many letters of a request id are enough to name it, if only one begins so; the tables print as many."""


# -- locks -------------------------------------------------------------------------------------------------


def lock_record(entry: LockEntry) -> Record:
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


_LOCK_COLUMNS = (
    Column("resource", 0, least=16, cut_in_middle=True),
    Column("mode", 2),
    Column("state", 1),
    Column("owner", 0, least=18),
    Column("for", 3, right=True),
    Column("expires in", 6),
    Column("request", 4),
    Column("waits for", 5),
    Column("of", 8),
    Column("scope", 7),
)


def lock_table(entries: Sequence[LockEntry], *, now_ms: int, title: str) -> FittingTable:
    """Return a table of *entries*: those who wait below those who hold, each with whom it waits for."""
    made = FittingTable(_LOCK_COLUMNS, title, empty="no locks")
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
    if entry.explicit:
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


def history(metadata: TableMetadata, location: str) -> list[Record]:
    """Return the commits of a table for JSON, newest first: its snapshots, and the commits of which there is none.

    The latter are found in the metadata log, which keeps the newest files. They are ``metadata`` (schema, properties,
    rollback) or ``create`` where no snapshot is missing, and ``unknown`` where theirs may have been expired.
    """
    snapshots = [commit_record(snapshot, metadata.current_snapshot_id) for snapshot in reversed(metadata.snapshots)]
    log = [(entry.timestamp_ms, entry.metadata_file) for entry in metadata.metadata_log]
    log.append((metadata.last_updated_ms, location))
    numbers, last = _numbers(metadata)
    there = set(numbers.values())
    added = _added_by(log, snapshots)
    others = []
    for position, (at_ms, path) in enumerate(log):
        if position not in added:
            before = max((numbers[one] for other in added if other < position for one in added[other]), default=0)
            after = min((numbers[one] for other in added if other > position for one in added[other]), default=last + 1)
            none_is_missing = all(number in there for number in range(before + 1, after))
            others.append(_file_record(at_ms, path, "metadata" if none_is_missing else "unknown"))
    return sorted(
        snapshots + others, key=lambda made: (made["timestamp_ms"], made["sequence_number"] or 0), reverse=True
    )


def _numbers(metadata: TableMetadata) -> tuple[dict[int, int], int]:
    """Return the place of each snapshot among all that were ever added, and the last place.

    Format version 1 does not number them. There none is taken to be missing as long as all parents are there, and else
    one behind each.
    """
    if last := fast_metadata.sequence_number(metadata):
        return {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}, last
    ids = [one.snapshot_id for one in metadata.snapshots]
    known = set(ids)
    step = 1 if all(one.parent_snapshot_id in known or _is_first(one) for one in metadata.snapshots) else 2
    return {number: place * step for place, number in enumerate(ids, 1)}, step * (len(ids) + 1) - 1


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether *snapshot* never had a parent: one whose parent was expired has other files than it added."""
    summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    total, added = (_number(summary.get(f"{key}-data-files"), 0) for key in ("total", "added"))
    return snapshot.parent_snapshot_id is None and total == added


def _added_by(log: Sequence[tuple[int, str]], snapshots: Sequence[Record]) -> dict[int, list[int]]:
    """Return the ids of the snapshots that the files of *log* added, by the file's position.

    Our files carry the request id of a snapshot. Other writers' files do not, so the time tells: one file for each of
    their snapshots.
    """
    by_request: dict[str, list[int]] = {}
    by_time: dict[int, list[int]] = {}
    for record in snapshots:
        for request_id in (record["request_id"] or "").split(","):
            by_request.setdefault(request_id, []).append(record["snapshot_id"])
        if not record["request_id"]:
            by_time.setdefault(record["timestamp_ms"], []).append(record["snapshot_id"])
    added = {}
    for position, (at_ms, path) in enumerate(log):
        if found := by_request.get(request_ids.named_in(path) or "-") or by_time.pop(at_ms, None):
            added[position] = found
    return added


def _file_record(at_ms: int, path: str, operation: str) -> Record:
    """Return for JSON the commit of a metadata file of which there is no snapshot."""
    nothing = dict.fromkeys(("snapshot_id", "parent_id", "sequence_number", "total_rows", "generation", "writer"))
    return nothing | {
        "when": moment(at_ms),
        "timestamp_ms": at_ms,
        "operation": "create" if request_ids.version_of(path) == 0 else operation,
        "added_rows": 0,
        "deleted_rows": 0,
        "request_id": request_ids.named_in(path),
        "current": False,
    }


def commit_record(snapshot: Snapshot, current: int | None) -> Record:
    """Return *snapshot* for JSON."""
    summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    operation = snapshot.summary.operation.value if snapshot.summary is not None else None
    return {
        "when": moment(snapshot.timestamp_ms),
        "timestamp_ms": snapshot.timestamp_ms,
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_snapshot_id,
        "sequence_number": snapshot.sequence_number,
        "operation": operation,
        "added_rows": _number(summary.get("added-records"), 0),
        "deleted_rows": _number(summary.get("deleted-records"), 0),
        "total_rows": _number(summary.get("total-records")),
        "request_id": summary.get(REQUEST_ID),
        "generation": _number(summary.get(GENERATION)),
        "writer": next((summary[key] for key in _WRITER_KEYS if key in summary), None),
        "current": snapshot.snapshot_id == current,
    }


_COMMIT_COLUMNS = (
    Column("when", 0, least=19),
    Column("snapshot", 3),
    Column("operation", 0, least=9),
    Column("rows", 1, right=True),
    Column("request id", 2),
    Column("gen.", 5, right=True),
    Column("writer", 4),
)


def commit_table(records: Sequence[Record], *, title: str, wide: bool) -> FittingTable:
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


def config_records(configuration: Configuration) -> list[Record]:
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


def config_table(records: Sequence[Record], *, title: str) -> Table:
    """Return a table of properties."""
    made = table("property", "value", "from", title=title)
    for record in records:
        origin = record["from"]
        made.add_row(
            record["property"], _escaped(record["value"]), f"[dim]{origin}[/]" if origin == "default" else origin
        )
    return made


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


def guarantee_table(guarantees: Guarantees, *, title: str) -> Table:
    """Return a table of what the lock manager promises."""
    made = table("guarantee", "", title=title)
    for name, text in _PROMISES:
        value = getattr(guarantees, name)
        made.add_row(text, ("[green]yes[/]" if value else "no") if isinstance(value, bool) else str(value))
    return made


def _number(text: str | None, missing: int | None = None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else missing


def _text(value: object) -> str:
    """Return *value* as one would write it in a configuration."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    """Return *text* so that rich prints its brackets."""
    return text.replace("[", r"\[")


assert [name for name, _ in _PROMISES] == [field.name for field in dataclasses.fields(Guarantees)]
