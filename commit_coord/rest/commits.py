"""Lands the commits of a request: reads what the client declares."""

from __future__ import annotations

from commit_coord.coordinator import Committed
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import CommitTable, CommitTransaction, Request

DECLARATION_HEADER = "x-commit-coord-append"
"""The header with which a client declares all its appends ``blind`` or ``checked``.

A client sets it with the catalog property ``header.X-Commit-Coord-Append``.
"""


def land(warehouse: Warehouse, request: Request, wanted: CommitTable) -> Committed:
    """Land the commit of *request*, once.

    Args:
        warehouse: The catalog of the table.
        request: Names the table; its headers may contain a declaration.
        wanted: Its body, parsed.

    Raises:
        Exception: As :meth:`~commit_coord.catalog.base.CoordinatedCatalog.commit_request`.
    """
    declared = request.headers.get(DECLARATION_HEADER)
    return warehouse.catalog.commit_request(
        request.table, wanted.requirements, wanted.updates, declared=declared, request_id=request.idempotency_key
    )


def land_several(warehouse: Warehouse, request: Request, wanted: CommitTransaction) -> None:
    """Land the commits of *request* to several tables, once: all of them, or none.

    Args:
        warehouse: The catalog of the tables.
        request: Its headers may contain an ``Idempotency-Key``.
        wanted: Its body, parsed.

    Raises:
        Exception: As :meth:`~commit_coord.catalog.base.CoordinatedCatalog.commit_requests`.
    """
    changes = [(each.identifier.identifier, each.requirements, each.updates) for each in wanted.table_changes]
    warehouse.catalog.commit_requests(changes, request_id=request.idempotency_key)
