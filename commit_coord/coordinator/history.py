"""The commits of a table, as its metadata shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from commit_coord.coordinator import request_ids
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.rebase import GENERATION, REQUEST_ID
from commit_coord.units import moment

Record = dict[str, Any]

_BEGINNING = re.compile(r"(?![0-9a-f]{32}$)[0-9a-f]{8}[0-9a-f-]{0,27}", re.IGNORECASE)
"""A whole UUID has 36 letters, or 32 without dashes."""

_WRITER_KEYS = ("writer", "commit-coord.writer-id", "spark.app.id", "engine-name")
"""Summary properties that name the writer, the most informative first. All are optional."""


def history(metadata: TableMetadata, location: str) -> list[Record]:
    """Return the commits of a table for JSON, newest first: its snapshots, and the commits that have no snapshot now.

    Commits without a snapshot are found in the metadata log, which lists only the newest files. Their operation is
    ``create`` for metadata version 0; ``metadata`` (schema, properties, rollback) if no snapshot is missing at that
    point of the history; else ``unknown``, because the commit's snapshot may have been expired.
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


def is_beginning(text: str) -> bool:
    """Return whether *text* may be the beginning of a request id, with the letters that are printed of one or more."""
    return _BEGINNING.fullmatch(text) is not None


def request_ids_that_begin(text: str, metadata: TableMetadata, location: str) -> set[str]:
    """Return the request ids of a table's history that begin with *text*: ids that are times share many letters."""
    listed = (record["request_id"] or "" for record in history(metadata, location))
    return {one for each in listed for one in each.split(",") if one.startswith(text.lower())}


def newest(metadata: TableMetadata, location: str, most: int) -> list[Record]:
    """Return about the *most* newest commits as :func:`history` does.

    If the table has more than *most* snapshots, commits without a snapshot are left out.
    """
    if len(metadata.snapshots) <= most:
        return history(metadata, location)
    return [commit_record(one, metadata.current_snapshot_id) for one in reversed(metadata.snapshots[-most:])]


def group_sizes(metadata: TableMetadata, location: str, records: Sequence[Record]) -> list[int]:
    """Return how many commits each of the newest swaps published, oldest first, as far as the metadata log reaches.

    A metadata file's name contains the request id of the latch holder, whose snapshot is the first one of its group.

    Args:
        metadata: The metadata of the table.
        location: The location of the metadata.
        records: Its commits, newest first.
    """
    files = [*(entry.metadata_file for entry in metadata.metadata_log), location]
    leaders = {request_ids.named_in(path) for path in files} - {None}
    sizes: list[int] = []
    for record in reversed(records):
        if record["snapshot_id"] is None:
            continue
        ids = (record["request_id"] or "").split(",")  # one snapshot may contain several appends
        if record["request_id"] is None or not leaders.isdisjoint(ids):
            sizes.append(len(ids))
        elif sizes:
            sizes[-1] += len(ids)
    return sizes


def _numbers(metadata: TableMetadata) -> tuple[dict[int, int], int]:
    """Return the sequence number of each snapshot, and the last one that was given.

    Format version 1 has none, so they are made up: without gaps if the parent of every snapshot is present; otherwise
    with room for one missing snapshot before, between and after the present ones.
    """
    if last := fast_metadata.sequence_number(metadata):
        return {one.snapshot_id: one.sequence_number or 0 for one in metadata.snapshots}, last
    ids = [one.snapshot_id for one in metadata.snapshots]
    known = set(ids)
    step = 1 if all(one.parent_snapshot_id in known or _is_first(one) for one in metadata.snapshots) else 2
    return {number: place * step for place, number in enumerate(ids, 1)}, step * (len(ids) + 1) - 1


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether *snapshot* never had a parent.

    If a parent was expired, the table at *snapshot* has more files than *snapshot* added.
    """
    summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    total, added = (_number(summary.get(f"{key}-data-files"), 0) for key in ("total", "added"))
    return snapshot.parent_snapshot_id is None and total == added


def _added_by(log: Sequence[tuple[int, str]], snapshots: Sequence[Record]) -> dict[int, list[int]]:
    """Return the ids of the snapshots that the files of *log* added, by the file's position.

    The names of our files contain a request id. File names of other writers do not, so their snapshots are matched by
    time, one file for each timestamp.
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
    """Return the JSON record of a commit without a snapshot, made from its metadata file."""
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


def _number(text: str | None, missing: int | None = None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else missing
