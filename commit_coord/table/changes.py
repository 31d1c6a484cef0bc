"""Changes of columns, partition fields and sort orders in a transaction, and conflicts with such changes of others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from commit_coord.iceberg.rebase import schema_conflict, spec_conflict

EVOLUTIONS = AddSchemaUpdate | AddPartitionSpecUpdate | AddSortOrderUpdate
"""On another head their ids may be taken."""

_ORDERS = AddSortOrderUpdate | SetDefaultSortOrderUpdate
_CHANGES = EVOLUTIONS | SetCurrentSchemaUpdate | SetDefaultSpecUpdate | SetDefaultSortOrderUpdate


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Args:
        before: The table without it.
        after: The table with it.
        orders: Whether it sets the sort order, also to what that is already.
    """

    before: TableMetadata
    after: TableMetadata
    orders: bool


def changes_table(updates: Iterable[TableUpdate]) -> bool:
    """Return whether *updates* change columns, partition fields or orders."""
    return any(isinstance(update, _CHANGES) for update in updates)


def sets_order(updates: Iterable[TableUpdate]) -> bool:
    """Return whether *updates* set the sort order."""
    return any(isinstance(update, _ORDERS) for update in updates)


def rolls_back(updates: Iterable[TableUpdate], metadata: TableMetadata) -> bool:
    """Return whether *updates* have a branch or tag of *metadata* name another snapshot."""
    return any(isinstance(update, SetSnapshotRefUpdate) and update.ref_name in metadata.refs for update in updates)


def same_changed(mine: Iterable[Change], seen: TableMetadata, head: TableMetadata) -> str | None:
    """Return what both sides have changed, others between *seen* and *head*; None when they touch different things."""
    for change in mine:
        before, after = change.before, change.after
        if name := schema_conflict((before.schema(), after.schema()), (seen.schema(), head.schema())):
            return f"the column {name!r} was changed by another commit"
        if name := spec_conflict((before.spec(), after.spec()), (seen.spec(), head.spec())):
            return f"the partition field {name!r} was changed by another commit"
        if change.orders and head.sort_order() not in (seen.sort_order(), after.sort_order()):
            return "the sort order was changed by another commit"
    return None
