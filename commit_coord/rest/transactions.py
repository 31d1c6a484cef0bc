"""The route of commits to several tables."""

from __future__ import annotations

from commit_coord.coordinator.stores import MultiTableStore
from commit_coord.rest.commits import land_several
from commit_coord.rest.views import refuse_creation
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import NO_CONTENT, HttpAnswer, Request, UnsupportedRequest, read_transaction


def has_transactions(warehouse: Warehouse) -> bool:
    """Return whether the warehouse can commit to several tables at once."""
    return isinstance(warehouse.catalog.coordinator.store, MultiTableStore)


def commit_transaction(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Commit to several tables: all changes land, or none."""
    if not has_transactions(warehouse):
        raise UnsupportedRequest(
            "a Hive Metastore swaps the pointer of one table at a time, so readers could see one half of a commit to "
            "several tables; commit to each table alone, or use a SQL catalog"
        )
    wanted = read_transaction(request)
    for change in wanted.table_changes:
        if change.creates:
            refuse_creation(warehouse, change.identifier.identifier)
    land_several(warehouse, request, wanted)
    return NO_CONTENT
