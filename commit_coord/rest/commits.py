"""Lands the commits of a request: reads what the client declares, and lets the commits run in their turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.typedef import Identifier

from commit_coord.coordinator import Committed
from commit_coord.rest.classes import refuse_classes_in
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import CommitTable, CommitTransaction, Request

T = TypeVar("T")

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
        ConfigError: As :func:`refuse_classes`.
        Exception: As :meth:`~commit_coord.catalog.base.CoordinatedCatalog.commit_request`.
    """
    refuse_classes_in(warehouse, wanted.updates)
    declared = request.headers.get(DECLARATION_HEADER)
    return _in_turn(
        warehouse,
        {request.table: wanted},
        lambda: warehouse.catalog.commit_request(
            request.table, wanted.requirements, wanted.updates, declared=declared, request_id=request.idempotency_key
        ),
    )


def land_several(warehouse: Warehouse, request: Request, wanted: CommitTransaction) -> None:
    """Land the commits of *request* to several tables, once: all of them, or none.

    A refusal is held back as in :func:`land`, until the turn of the client has come in all its tables.

    Args:
        warehouse: The catalog of the tables.
        request: Its headers may contain an ``Idempotency-Key``.
        wanted: Its body, parsed.

    Raises:
        ConfigError: As :func:`refuse_classes`.
        Exception: As :meth:`~commit_coord.catalog.base.CoordinatedCatalog.commit_requests`.
    """
    for change in wanted.table_changes:
        refuse_classes_in(warehouse, change.updates)
    changes = [(each.identifier.identifier, each.requirements, each.updates) for each in wanted.table_changes]
    _in_turn(
        warehouse,
        {change.identifier.identifier: change for change in wanted.table_changes},
        lambda: warehouse.catalog.commit_requests(changes, request_id=request.idempotency_key),
    )


def _in_turn(warehouse: Warehouse, commits: Mapping[Identifier, CommitTable], land: Callable[[], T]) -> T:
    updates = [update for commit in commits.values() for update in commit.updates]
    added = [update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)]
    return warehouse.lines.commit(map(warehouse.spelled, commits), frozenset(added), land)
