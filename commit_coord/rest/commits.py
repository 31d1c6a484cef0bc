"""From a commit on the wire to one of the product: what it declares, and in whose turn it runs."""

from __future__ import annotations

from pyiceberg.table.update import AddSnapshotUpdate

from commit_coord.coordinator import Committed
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import CommitTable, Request

DECLARATION_HEADER = "x-commit-coord-append"
"""``blind`` or ``checked``: what a client says of all its appends, by ``header.X-Commit-Coord-Append``."""


def land(warehouse: Warehouse, request: Request, wanted: CommitTable) -> Committed:
    """Land what *request* asks for, once.

    A client that is refused because the head has moved is told so when its turn has come: it may come back, and goes
    first.

    Args:
        warehouse: Where the table is.
        request: Names the table, and may declare something.
        wanted: Its body.

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
