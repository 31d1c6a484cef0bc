"""Which snapshots a statement may take away."""

from __future__ import annotations

from collections.abc import Iterator

from commit_coord.testing.table_files.observed import Json, Observed
from tests.proof.rows.model.table_statements import SqlExpire


def fault_of_expiry(operation: SqlExpire, start: Observed, now: Observed) -> str:
    """Return what is wrong in the snapshots that are left; "" if nothing is.

    Args:
        operation: It has landed, or had nothing to do.
        start: The table when the statement began.
        now: The table after it. Others may have changed it in between.
    """
    gone = start.snapshots.keys() - now.snapshots.keys()
    doomed = _doomed(operation, start)
    left = doomed - gone - _referred(now)  # others may have named one meanwhile
    if gone and start.raw.get("properties", {}).get("gc.enabled") == "false":
        return "snapshots are gone though gc.enabled is false"
    if more := gone - doomed:
        return f"{len(more)} snapshots are gone that it does not name"
    if now.location == start.location:
        return "it has left what it names" if left else ""
    after = now.raw.get("metadata-log", [])
    alone = bool(after) and after[-1]["metadata-file"] == start.location
    return f"{len(left)} snapshots are left that it names" if alone and left else ""


def _doomed(operation: SqlExpire, table: Observed) -> set[int]:
    """Return the snapshots that are to go."""
    kept = _referred(table)
    # Those of format version 1 have no number, and are in the order in which they came.
    newest_first = sorted(table.snapshots.values(), key=_number)[::-1]
    if operation.backs:
        line = list(_line(table.raw.get("current-snapshot-id"), table))
        return {line[back] for back in operation.backs} - kept
    return {snapshot["snapshot-id"] for snapshot in newest_first[operation.last :]} - kept


def _referred(table: Observed) -> set[int | None]:
    """Return the present snapshot, and those that a branch or tag names."""
    return {table.raw.get("current-snapshot-id"), *(ref["snapshot-id"] for ref in table.raw.get("refs", {}).values())}


def _line(snapshot_id: int | None, table: Observed) -> Iterator[int]:
    """Yield a snapshot and those that it follows."""
    while snapshot_id is not None and snapshot_id in table.snapshots:
        yield snapshot_id
        snapshot_id = table.snapshots[snapshot_id].get("parent-snapshot-id")


def _number(snapshot: Json) -> int:
    return int(snapshot.get("sequence-number") or 0)
