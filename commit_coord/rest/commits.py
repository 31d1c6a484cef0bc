"""Lands the commit of a request: reads what the client declares, and lets the commit run in its turn."""

from __future__ import annotations

from pyiceberg.table.update import AddSnapshotUpdate

from commit_coord.coordinator import Committed
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import CommitTable, Request

DECLARATION_HEADER = "x-commit-coord-append"
"""The header with which a client declares all its appends ``blind`` or ``checked``.

A client sets it with the catalog property ``header.X-Commit-Coord-Append``.
"""


def land(warehouse: Warehouse, request: Request, wanted: CommitTable) -> Committed:
    """Land the commit of *request*, once.

    If the commit is refused because the head has moved, this raises only when the turn of the client has come: a retry
    then runs before all other commits.

    Args:
        warehouse: The catalog of the table.
        request: Names the table; its headers may contain a declaration.
        wanted: Its body, parsed.

    Raises:
        Exception: As :meth:`~commit_coord.catalog.base.CoordinatedCatalog.commit_request`.
    """
    catalog, table = warehouse.catalog, request.table
    added = [update.snapshot.snapshot_id for update in wanted.updates if isinstance(update, AddSnapshotUpdate)]
    declared = request.headers.get(DECLARATION_HEADER)
    return warehouse.lines.commit(
        table,
        frozenset(added),
        lambda: catalog.commit_request(
            table, wanted.requirements, wanted.updates, declared=declared, request_id=request.idempotency_key
        ),
    )
