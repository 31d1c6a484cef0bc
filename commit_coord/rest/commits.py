"""Lands the commits of a request: reads what the client declares."""

from __future__ import annotations

import uuid
from functools import partial

from pyiceberg.table.update import TableRequirement
from pyiceberg.typedef import Identifier

from commit_coord.coordinator import Committed
from commit_coord.iceberg.attempt import Beginning, table_name
from commit_coord.rest.answered import StateBefore
from commit_coord.rest.classes import refuse_classes_in
from commit_coord.rest.requirements import MadeBefore
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
        ConfigError: As :func:`refuse_classes`.
        Exception: As :meth:`~commit_coord.catalog.base.CoordinatedCatalog.commit_request`.
    """
    return warehouse.catalog.commit_request(
        request.table,
        _required(request, wanted),
        wanted.updates,
        declared=request.headers.get(DECLARATION_HEADER),
        request_id=request.idempotency_key,
        since=beginnings(request.found).get(key_of(request.table)),
        check=partial(refuse_classes_in, warehouse, wanted.updates),
    )


def land_several(warehouse: Warehouse, request: Request, wanted: CommitTransaction) -> None:
    """Land the commits of *request* to several tables, once: all of them, or none.

    Args:
        warehouse: The catalog of the tables.
        request: Its headers may contain an ``Idempotency-Key``.
        wanted: Its body, parsed.

    Raises:
        ConfigError: As :func:`refuse_classes`.
        Exception: As :meth:`~commit_coord.catalog.base.CoordinatedCatalog.commit_requests`.
    """
    changes = [(each.identifier.identifier, _required(request, each), each.updates) for each in wanted.table_changes]
    begun = beginnings(request.found)
    updates = [update for each in wanted.table_changes for update in each.updates]
    warehouse.catalog.commit_requests(
        changes,
        request_id=request.idempotency_key,
        since={table: begun[key_of(table)] for table, *_ in changes if key_of(table) in begun},
        check=partial(refuse_classes_in, warehouse, updates),
    )


def key_of(table: Identifier) -> str:
    """Return what stands for *table* in the states that are kept for a request with a key.

    That is its levels and its name, joined with dots. A name may contain dots, which a level can't: such a name is set
    apart by U+001F, so that the table ``b.c`` of ``a`` is not the table ``c`` of ``a.b``.
    """
    *levels, name = table
    return "\x1f".join((table_name(levels), name)) if "." in name else table_name(table)


def beginnings(found: StateBefore) -> dict[str, Beginning]:
    """Return the tables as the first copy of a commit found them, by their keys, without those that did not exist.

    Args:
        found: What :func:`~commit_coord.rest.doubts.commit_tables` returned for the first copy.
    """
    return {
        name: Beginning(seen["location"], seen["sequence-number"]) for name, seen in found.items() if seen["location"]
    }


def _required(request: Request, wanted: CommitTable) -> tuple[TableRequirement, ...]:
    """Return the requirements of a commit. A repeat creates no table: it requires one if the commit creates one.

    1. A commit creates a table, and its reply is lost.   2. The table is renamed.   3. The repeat finds no table. If it
    created the table again, two tables would have the same files, and a purge of one would delete those of the other.

    The coordinator looks for the request id before it checks requirements. So the repeat gets the table of the first
    copy, or its outcome is unknown.
    """
    if not (wanted.creates and request.found):
        return wanted.requirements
    return (*wanted.requirements, MadeBefore(uuid=uuid.UUID(request.idempotency_key)))
