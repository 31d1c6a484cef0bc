"""What a table gives once: the sequence numbers of its snapshots, and the ids of its rows.

PyIceberg takes the last sequence number from the snapshot that was added last, and counts row ids on from those that
the table has given, whatever a snapshot says. Neither is a number that was never given before:

1. A job begins to replace a table. Its snapshot follows none, and has the number 5.   2. Appends land: the last number
is 6.   3. The job commits. The last number would be 5, though the table has a snapshot 6: Iceberg Java loads no such
table, and the next commit would have the number 6 for the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate


def counted(changed: TableMetadata, base: TableMetadata | None, updates: Sequence[TableUpdate]) -> TableMetadata:
    """Return *changed*, which is *base* with *updates*, with counters that have not stepped back.

    Raises:
        ValueError: A snapshot of a table of version 3 does not say which row ids it takes, or takes some that were
            given. Source: Iceberg specification, "Row Lineage"; Java ``TableMetadata.Builder.addSnapshot``.
    """
    version = changed.format_version
    if version < 2:
        return changed
    snapshots = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
    numbers = [snapshot.sequence_number or 0 for snapshot in snapshots]
    last_number: int = max([getattr(base, "last_sequence_number", 0) or 0, *numbers])
    wanted: dict[str, Any] = {"last_sequence_number": last_number}
    if version >= 3:
        wanted["next_row_id"] = _next_row_id(getattr(base, "next_row_id", None) or 0, snapshots)
    if all(getattr(changed, name) == value for name, value in wanted.items()):
        return changed
    return changed.model_copy(update=wanted)


def numbered(update: TableUpdate) -> TableUpdate:
    """Return *update* with a sequence number: none at all is read as 0, and PyIceberg compares it with others."""
    if isinstance(update, AddSnapshotUpdate) and update.snapshot.sequence_number is None:
        return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"sequence_number": 0}))
    return update


def _next_row_id(next_row_id: int, snapshots: Sequence[Snapshot]) -> int:
    for snapshot in snapshots:
        first, added = snapshot.first_row_id, snapshot.added_rows
        if first is None or added is None:
            missing = "first-row-id" if first is None else "added-rows"
            raise ValueError(f"Cannot add a snapshot: {missing} is null, and tables of version 3 need its row ids")
        if added < 0:
            raise ValueError(f"Cannot add a snapshot: added-rows is {added}")
        if first < next_row_id:
            raise ValueError(
                f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {next_row_id}"
            )
        next_row_id = first + added
    return next_row_id
