"""Every route that is served; ``GET /v1/config`` advertises those that the warehouse can serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from commit_coord.rest import namespaces, tables, transactions, views
from commit_coord.rest.errors import error_answer
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.routing import PREFIX, Route, Router
from commit_coord.rest.warehouses import Warehouse, Warehouses
from commit_coord.rest.wire import Answer, Request, json_answer

Handler = Callable[[Warehouse, Request], Answer]

_NAMESPACES = f"{PREFIX}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLES = f"{_NAMESPACE}/tables"
_TABLE = f"{_TABLES}/{{table}}"
_VIEWS = f"{_NAMESPACE}/views"
_VIEW = f"{_VIEWS}/{{view}}"

SERVED: tuple[Route[Handler], ...] = (
    Route("GET", _NAMESPACES, namespaces.list_namespaces),
    Route("POST", _NAMESPACES, namespaces.create_namespace),
    Route("GET", _NAMESPACE, namespaces.load_namespace),
    Route("HEAD", _NAMESPACE, namespaces.namespace_exists),
    Route("DELETE", _NAMESPACE, namespaces.drop_namespace),
    Route("POST", f"{_NAMESPACE}/properties", namespaces.update_namespace),
    Route("GET", _TABLES, tables.list_tables),
    Route("POST", _TABLES, tables.create_table),
    Route("GET", _TABLE, tables.load_table),
    Route("HEAD", _TABLE, tables.table_exists),
    Route("POST", _TABLE, tables.commit_table),
    Route("DELETE", _TABLE, tables.drop_table),
    Route("POST", f"{_TABLE}/metrics", tables.report_metrics),
    Route("POST", f"{_NAMESPACE}/register", tables.register_table),
    Route("POST", f"{PREFIX}/tables/rename", tables.rename_table),
)
"""The routes of one warehouse, whatever it keeps."""

VIEWS: tuple[Route[Handler], ...] = (
    Route("GET", _VIEWS, views.list_views),
    Route("POST", _VIEWS, views.create_view),
    Route("GET", _VIEW, views.load_view),
    Route("HEAD", _VIEW, views.view_exists),
    Route("POST", _VIEW, views.commit_view),
    Route("DELETE", _VIEW, views.drop_view),
    Route("POST", f"{PREFIX}/views/rename", views.rename_view),
    Route("POST", f"{_NAMESPACE}/register-view", views.register_view),
)
"""Those of one that can keep views."""

TRANSACTIONS: tuple[Route[Handler], ...] = (
    Route("POST", f"{PREFIX}/transactions/commit", transactions.commit_transaction),
)
"""Those of one that swaps several pointers at once."""


def served(warehouse: Warehouse) -> tuple[Route[Handler], ...]:
    """Return the routes that are served for *warehouse*; what is asked of it elsewhere is refused in words."""
    return (
        *SERVED,
        *(VIEWS if views.has_views(warehouse) else ()),
        *(TRANSACTIONS if transactions.has_transactions(warehouse) else ()),
    )


class Api:
    """Answers requests. Blocks; to be called from many threads.

    Args:
        warehouses: What is served.
    """

    def __init__(self, warehouses: Warehouses) -> None:
        self._warehouses, self._keys = warehouses, Idempotency()
        config: Route[Handler] = Route("GET", "/v1/config", self._config)
        self._router = Router((*SERVED, *VIEWS, *TRANSACTIONS, config))

    def answer(self, request: Request) -> Answer:
        """Return the answer to *request*, also where it ends in an error."""
        try:
            route, names = self._router.find(request.method, request.path)
            name = names["prefix"] if "prefix" in names else request.query.get("warehouse")
            warehouse = self._warehouses.chosen(name)
            return self._keys.answer(route.handler, warehouse, dataclasses.replace(request, names=names))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            return error_answer(error)

    def _config(self, warehouse: Warehouse, request: Request) -> Answer:
        """Answer with what a client needs to know before anything else."""
        lifetime = self._keys.lifetime(warehouse)
        return json_answer(
            {
                "defaults": {},
                "overrides": {"prefix": warehouse.prefix},
                "endpoints": [route.endpoint for route in served(warehouse)],
                **({"idempotency-key-lifetime": lifetime} if lifetime is not None else {}),
            }
        )
