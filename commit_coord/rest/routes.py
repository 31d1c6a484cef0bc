"""The table of all routes, and the right that each one needs.

``GET /v1/config`` advertises the routes that the chosen warehouse can serve.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.typedef import Identifier

from commit_coord.rest import namespaces, tables, transactions, views
from commit_coord.rest.access import ANYBODY, Access, Caller, Forbidden
from commit_coord.rest.errors import NoSuchWarehouse, error_answer
from commit_coord.rest.gate import Gate
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.identities import Identities
from commit_coord.rest.needs import NOTHING, Needs, whole_catalog
from commit_coord.rest.oauth import TokenEndpoint
from commit_coord.rest.routing import PREFIX, Route, Router
from commit_coord.rest.warehouses import Warehouse, Warehouses
from commit_coord.rest.watching import request_span
from commit_coord.rest.wire import (
    Answer,
    CommitTransaction,
    CreateNamespace,
    RenameTable,
    Request,
    changed_tables,
    json_answer,
    levels,
)

Handler = Callable[[Warehouse, Request], Answer]

_NAMESPACES = f"{PREFIX}/namespaces"
_NAMESPACE = f"{_NAMESPACES}/{{namespace}}"
_TABLES = f"{_NAMESPACE}/tables"
_TABLE = f"{_TABLES}/{{table}}"
_VIEWS = f"{_NAMESPACE}/views"
_VIEW = f"{_VIEWS}/{{view}}"


def _parent(request: Request) -> Sequence[Identifier]:
    """Return the namespace whose children are listed."""
    return (levels(request.query["parent"]) if request.query.get("parent") else (),)


def _created(request: Request) -> Sequence[Identifier]:
    """Return the namespace that is to be created."""
    return (request.parsed(CreateNamespace).namespace,)


def _renamed(request: Request) -> Sequence[Identifier]:
    """Return the namespaces of the old and of the new name."""
    wanted = request.parsed(RenameTable)
    return wanted.source.namespace, wanted.destination.namespace


def _changed(request: Request) -> Sequence[Identifier]:
    """Return the namespaces of the tables of a transaction; for a transaction without a table, the root."""
    changes = request.parsed(CommitTransaction).table_changes
    return [change.identifier.namespace for change in changes] or whole_catalog(request)


def _tables(request: Request) -> Sequence[Identifier]:
    """Return the tables of a transaction."""
    return changed_tables(request.body)


SERVED: tuple[Route[Handler], ...] = (
    Route("GET", _NAMESPACES, namespaces.list_namespaces, Needs(Access.SEE, _parent)),
    Route("POST", _NAMESPACES, namespaces.create_namespace, Needs(Access.ADMINISTER, _created)),
    Route("GET", _NAMESPACE, namespaces.load_namespace, Needs(Access.READ)),
    Route("HEAD", _NAMESPACE, namespaces.namespace_exists, Needs(Access.READ)),
    Route("DELETE", _NAMESPACE, namespaces.drop_namespace, Needs(Access.ADMINISTER)),
    Route("POST", f"{_NAMESPACE}/properties", namespaces.update_namespace, Needs(Access.ADMINISTER)),
    Route("GET", _TABLES, tables.list_tables, Needs(Access.READ)),
    Route("POST", _TABLES, tables.create_table, Needs(Access.WRITE)),
    Route("GET", _TABLE, tables.load_table, Needs(Access.READ)),
    Route("HEAD", _TABLE, tables.table_exists, Needs(Access.READ)),
    Route("POST", _TABLE, tables.commit_table, Needs(Access.WRITE), lambda request: (request.table,)),
    Route("DELETE", _TABLE, tables.drop_table, Needs(Access.WRITE, purging=Access.ADMINISTER)),
    Route("POST", f"{_TABLE}/metrics", tables.report_metrics, Needs(Access.READ)),
    # The client names the file, and the server reads it with its own rights.
    Route("POST", f"{_NAMESPACE}/register", tables.register_table, Needs(Access.ADMINISTER)),
    Route("POST", f"{PREFIX}/tables/rename", tables.rename_table, Needs(Access.WRITE, _renamed)),
)
"""The routes that every warehouse serves."""

VIEWS: tuple[Route[Handler], ...] = (
    Route("GET", _VIEWS, views.list_views, Needs(Access.READ)),
    Route("POST", _VIEWS, views.create_view, Needs(Access.WRITE)),
    Route("GET", _VIEW, views.load_view, Needs(Access.READ)),
    Route("HEAD", _VIEW, views.view_exists, Needs(Access.READ)),
    Route("POST", _VIEW, views.commit_view, Needs(Access.WRITE), lambda request: (request.view,)),
    Route("DELETE", _VIEW, views.drop_view, Needs(Access.WRITE)),
    Route("POST", f"{PREFIX}/views/rename", views.rename_view, Needs(Access.WRITE, _renamed)),
    Route("POST", f"{_NAMESPACE}/register-view", views.register_view, Needs(Access.ADMINISTER)),
)
"""The routes of a warehouse that stores views."""

TRANSACTIONS: tuple[Route[Handler], ...] = (
    Route(
        "POST", f"{PREFIX}/transactions/commit", transactions.commit_transaction, Needs(Access.WRITE, _changed), _tables
    ),
)
"""The routes of a warehouse that can swap several pointers at once."""


def served(warehouse: Warehouse) -> tuple[Route[Handler], ...]:
    """Return the routes that *warehouse* serves. On the others it answers with the reason why it does not."""
    return (
        *SERVED,
        *(VIEWS if views.has_views(warehouse) else ()),
        *(TRANSACTIONS if transactions.has_transactions(warehouse) else ()),
    )


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose route and sender are known. Only its head has been read and checked."""

    route: Route[Handler]
    request: Request
    caller: Caller


class Api:
    """Answers requests.

    Args:
        warehouses: The catalogs that are served.
        identities: Identifies senders; None for a server without authentication.
    """

    def __init__(self, warehouses: Warehouses, identities: Identities | None = None) -> None:
        self._warehouses, self._keys = warehouses, Idempotency()
        self.gate = Gate(warehouses, identities)
        routes: list[Route[Handler]] = [
            *SERVED,
            *VIEWS,
            *TRANSACTIONS,
            Route("GET", "/v1/config", self._config, Needs(Access.SEE, whole_catalog)),
        ]
        if identities is not None and identities.own is not None:
            routes.append(Route("POST", "/v1/oauth/tokens", TokenEndpoint(identities, self.gate).give, NOTHING))
        self._router = Router(routes)

    def admit(self, request: Request) -> Admitted:
        """Return *request*, whose body has not been read, with its route and its sender; does not block.

        Raises:
            NoRoute: Nothing is served under this path.
            MethodNotAllowed: The path is served with other methods only.
            NotAuthenticated: As :meth:`Gate.caller`; also KeysWanted and IssuerUnavailable.
        """
        route, names = self._router.find(request.method, request.path)
        caller = ANYBODY if route.needs is NOTHING else self.gate.caller(request)
        return Admitted(route, dataclasses.replace(request, names=names), caller)

    def queues(self, admitted: Admitted) -> frozenset[tuple[str, ...]]:
        """Return the tables or views for whose latches a request waits, each with its catalog; does not block."""
        try:
            if not (named := admitted.route.queues(admitted.request)):
                return frozenset()
            warehouse = self._warehouses.named(admitted.request.names["prefix"])
            return frozenset((warehouse.catalog.name, *warehouse.spelled(name)) for name in named)
        except ValueError:
            return frozenset()  # the handler refuses the request

    def answer(self, admitted: Admitted) -> Answer:
        """Return the answer to a request, also if it ends in an error. Blocks; may be called from many threads."""
        request = admitted.request
        name = request.names["prefix"] if "prefix" in request.names else request.query.get("warehouse")
        try:
            warehouse = self._warehouses.chosen(name)
        except NoSuchWarehouse as error:
            return error_answer(error)
        with request_span(warehouse, request, admitted.route.path) as answered:
            answer = self._answered(warehouse, admitted)
            answered(answer.status)
            return answer

    def _answered(self, warehouse: Warehouse, admitted: Admitted) -> Answer:
        request, caller = admitted.request, admitted.caller
        seen = dataclasses.replace(request, client=caller.name, sees=self.gate.sees(caller, warehouse))
        try:
            self.gate.check(admitted.route.needs, request, caller, warehouse)
            if admitted.route.needs is NOTHING:
                return admitted.route.handler(warehouse, seen)  # the answer contains a token, which must not be kept
            return self._keys.answer(admitted.route.handler, warehouse, seen)
        except Forbidden as error:
            self.gate.audit(request, caller, error)
            return error_answer(self._keys.forbidden(error, admitted.route.handler, warehouse, seen))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            return error_answer(error)

    def _config(self, warehouse: Warehouse, request: Request) -> Answer:
        """Answer with the prefix, the routes and the lifetime of keys: clients ask for them first."""
        lifetime = self._keys.lifetime(warehouse)
        return json_answer(
            {
                "defaults": {},
                "overrides": {"prefix": warehouse.prefix},
                "endpoints": [route.endpoint for route in served(warehouse)],
                **({"idempotency-key-lifetime": lifetime} if lifetime is not None else {}),
            }
        )
