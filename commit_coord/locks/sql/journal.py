"""The journal in the database."""

from __future__ import annotations

from typing import Any

from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.requests import SqlRequests
from commit_coord.model import JournalEntry


class SqlJournal:
    """Stores journal entries in the database."""

    def __init__(self, requests: SqlRequests) -> None:
        self._requests = requests

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`HandoverLockManager.remember`."""
        self._requests.run([(lease_sql.REMEMBER, remembered(entry, lifetime_ms)), (lease_sql.FORGET, {})])

    def recall(self, key: str) -> JournalEntry | None:
        """See :meth:`HandoverLockManager.recall`."""
        rows = self._requests.ask(lease_sql.RECALL, {"request_id": key})
        if not rows:
            return None
        _, table, table_uuid, metadata_location, snapshots = rows[0]
        return JournalEntry(
            key=key,
            table=table,
            table_uuid=table_uuid,
            metadata_location=metadata_location,
            snapshot_ids=tuple(int(snapshot) for snapshot in snapshots.split(",") if snapshot),
        )


def remembered(entry: JournalEntry, lifetime_ms: int) -> dict[str, Any]:
    """Return the values of REMEMBER."""
    return {
        "request_id": entry.key,
        "table_name": entry.table,
        "table_uuid": entry.table_uuid,
        "metadata_location": entry.metadata_location,
        "snapshot_ids": ",".join(map(str, entry.snapshot_ids)),
        "lifetime_ms": lifetime_ms,
    }
