"""The table of all routes, and the right that each one needs.

``GET /v1/config`` advertises the routes that the chosen warehouse can serve.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.typedef import Identifier

from commit_coord.rest import namespaces, tables, transactions, views
from commit_coord.rest.access import ANYBODY, Access, Caller, Forbidden
from commit_coord.rest.doubts import Handler
from commit_coord.rest.errors import NoSuchWarehouse, error_answer
from commit_coord.rest.gate import Gate
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.identities import Identities
from commit_coord.rest.lanes import Work, WorkKind
from commit_coord.rest.needs import NOTHING, Needs, whole_catalog
from commit_coord.rest.oauth import TokenEndpoint
from commit_coord.rest.routing import PREFIX, Route, Router
from commit_coord.rest.turns import Lines
from commit_coord.rest.warehouses import Warehouse, Warehouses
from commit_coord.rest.watching import request_span
from commit_coord.rest.wire import (
    CommitTransaction,
    CreateNamespace,
    HttpAnswer,
    Named,
    RenameTable,
    Request,
    added_snapshots,
    changed_tables,
    json_answer,
    levels,
    refuse_nul,
)

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


def _table(request: Request) -> Sequence[Identifier]:
    """Return the table in the path."""
    return (request.table,)


def _view(request: Request) -> Sequence[Identifier]:
    """Return the view in the path."""
    return (request.view,)


def _new(request: Request) -> Sequence[Identifier]:
    """Return the table or view that is to be created or registered."""
    return ((*request.namespace, request.parsed(Named).name),)


def _both_names(request: Request) -> Sequence[Identifier]:
    """Return the old and the new name of a table or view."""
    wanted = request.parsed(RenameTable)
    return wanted.source.identifier, wanted.destination.identifier


def _namespace(request: Request) -> Sequence[Identifier]:
    """Return the namespace in the path, as one name."""
    return ((".".join(request.namespace),),)


def _new_namespace(request: Request) -> Sequence[Identifier]:
    """Return the namespace that is to be created, as one name."""
    return [(".".join(namespace),) for namespace in _created(request)]


def _tables(request: Request) -> Sequence[Identifier]:
    """Return the tables of a transaction."""
    return changed_tables(request.body)


SERVED: tuple[Route[Handler], ...] = (
    Route("GET", _NAMESPACES, namespaces.list_namespaces, Needs(Access.SEE, _parent)),
    Route(
        "POST",
        _NAMESPACES,
        namespaces.create_namespace,
        Needs(Access.ADMINISTER, _created, in_body=True),
        _new_namespace,
    ),
    Route("GET", _NAMESPACE, namespaces.load_namespace, Needs(Access.READ)),
    Route("HEAD", _NAMESPACE, namespaces.namespace_exists, Needs(Access.READ)),
    Route("DELETE", _NAMESPACE, namespaces.drop_namespace, Needs(Access.ADMINISTER), _namespace),
    Route("POST", f"{_NAMESPACE}/properties", namespaces.update_namespace, Needs(Access.ADMINISTER), _namespace),
    Route("GET", _TABLES, tables.list_tables, Needs(Access.READ)),
    Route("POST", _TABLES, tables.create_table, Needs(Access.WRITE), _new),
    Route("GET", _TABLE, tables.load_table, Needs(Access.READ)),
    Route("HEAD", _TABLE, tables.table_exists, Needs(Access.READ)),
    Route("POST", _TABLE, tables.commit_table, Needs(Access.WRITE), _table, commits=True),
    Route("DELETE", _TABLE, tables.drop_table, Needs(Access.WRITE, purging=Access.ADMINISTER), _table),
    Route("POST", f"{_TABLE}/metrics", tables.report_metrics, Needs(Access.READ)),
    # The client names the file, and the server reads it with its own rights.
    Route("POST", f"{_NAMESPACE}/register", tables.register_table, Needs(Access.ADMINISTER), _new),
    Route(
        "POST", f"{PREFIX}/tables/rename", tables.rename_table, Needs(Access.WRITE, _renamed, in_body=True), _both_names
    ),
)
"""The routes that every warehouse serves."""

VIEWS: tuple[Route[Handler], ...] = (
    Route("GET", _VIEWS, views.list_views, Needs(Access.READ)),
    Route("POST", _VIEWS, views.create_view, Needs(Access.WRITE), _new),
    Route("GET", _VIEW, views.load_view, Needs(Access.READ)),
    Route("HEAD", _VIEW, views.view_exists, Needs(Access.READ)),
    Route("POST", _VIEW, views.commit_view, Needs(Access.WRITE), _view),
    Route("DELETE", _VIEW, views.drop_view, Needs(Access.WRITE), _view),
    Route(
        "POST", f"{PREFIX}/views/rename", views.rename_view, Needs(Access.WRITE, _renamed, in_body=True), _both_names
    ),
    Route("POST", f"{_NAMESPACE}/register-view", views.register_view, Needs(Access.ADMINISTER), _new),
)
"""The routes of a warehouse that stores views."""

TRANSACTIONS: tuple[Route[Handler], ...] = (
    Route(
        "POST",
        f"{PREFIX}/transactions/commit",
        transactions.commit_transaction,
        Needs(Access.WRITE, _changed, in_body=True),
        _tables,
        commits=True,
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

    @property
    def is_checked_by_head(self) -> bool:
        """Whether the head is enough to decide if the sender may send this request.

        Not for a commit with a key: it may have landed when the sender was allowed to commit, and then it is no 403.
        """
        repeated = self.route.commits and "idempotency-key" in self.request.headers
        return not (self.route.needs.in_body or repeated)


class Api:
    """Answers requests.

    Args:
        warehouses: The catalogs that are served.
        identities: Identifies senders; None for a server without authentication.
        keys: Carries out once what is sent again; None makes it.
    """

    def __init__(
        self, warehouses: Warehouses, identities: Identities | None = None, keys: Idempotency | None = None
    ) -> None:
        self._warehouses, self._keys = warehouses, keys or Idempotency()
        self.gate = Gate(warehouses, identities)
        routes: list[Route[Handler]] = [
            *SERVED,
            *VIEWS,
            *TRANSACTIONS,
            Route("GET", "/v1/config", self._config, Needs(Access.SEE, whole_catalog)),
        ]
        if warehouses.is_one:
            routes += [route.without_prefix for route in (*SERVED, *VIEWS, *TRANSACTIONS)]
        if identities is not None and identities.own is not None:
            routes.append(Route("POST", "/v1/oauth/tokens", TokenEndpoint(identities, self.gate).give, NOTHING))
        self._router = Router(routes)

    def find(self, request: Request) -> tuple[Route[Handler], Request]:
        """Return the route of *request*, whose body has not been read, and *request* with the names in its path.

        Raises:
            NoRoute: Nothing is served under this path.
            MethodNotAllowed: The path is served with other methods only.
            MalformedRequest: No table can have a name in it.
        """
        route, names = self._router.find(request.method, request.path)
        for name in names.values():
            refuse_nul(name)
        return route, dataclasses.replace(request, names=names)

    def admit(self, route: Route[Handler], request: Request) -> Admitted:
        """Return *request* with its route and its sender; does not block.

        Raises:
            NotAuthenticated: As :meth:`Gate.caller`; also KeysWanted and IssuerUnavailable.
        """
        caller = ANYBODY if route.needs is NOTHING else self.gate.caller(request)
        return Admitted(route, request, caller)

    def check_head(self, admitted: Admitted) -> None:
        """Return if the sender may do what the request asks for, as far as its head tells; does not block.

        Raises:
            NoSuchWarehouse: No warehouse has the name in the head.
            Forbidden: The sender may not.
        """
        needs, request = admitted.route.needs, admitted.request
        if admitted.is_checked_by_head:
            self.gate.check(needs, request, admitted.caller, self._chosen(admitted))

    def work(self, admitted: Admitted) -> Work:
        """Return what a request needs before it is carried out; does not block."""
        route, request = admitted.route, admitted.request
        if route.changes is None:
            return Work()
        try:
            warehouse = self._warehouses.chosen(request.names.get("prefix"))
        except NoSuchWarehouse:
            return Work()  # the answer is 404
        catalog = warehouse.catalog
        try:
            if not admitted.is_checked_by_head:
                self.gate.check(route.needs, request, admitted.caller, warehouse)
        except Forbidden:
            return Work()  # A thread refuses it. It takes no place from those who may change these tables.
        except (ValueError, RecursionError):
            return Work()  # so does the handler
        try:
            objects = frozenset((catalog.name, *warehouse.spelled(name)) for name in route.changes(request))
        except (ValueError, RecursionError):
            objects = frozenset({(catalog.name,)})  # the handler refuses the request
        writer = frozenset[int]()
        if route.commits:
            with suppress(ValueError, RecursionError):
                writer = added_snapshots(request.body)
        purges = route.needs.purging is not None and request.purges
        kind = WorkKind.PURGE if purges else WorkKind.COMMIT if route.commits else WorkKind.CHANGE
        return Work(kind, objects, writer, catalog.settings.lock_acquire_timeout_ms / 1000)

    def lines(self, admitted: Admitted) -> Lines:
        """Return the queues of the catalog to which a request commits."""
        return self._warehouses.named(admitted.request.names.get("prefix")).lines

    def answer(self, admitted: Admitted) -> HttpAnswer:
        """Return the answer to a request, also if it ends in an error. Blocks; may be called from many threads."""
        request = admitted.request
        try:
            warehouse = self._chosen(admitted)
        except NoSuchWarehouse as error:
            return error_answer(error)
        with request_span(warehouse, request, admitted.route.path) as answered:
            answer = self._answered(warehouse, admitted)
            answered(answer.status)
            return answer

    def _chosen(self, admitted: Admitted) -> Warehouse:
        """Return the warehouse that a request names. A route that is open to everybody tells nobody which there are.

        Raises:
            NoSuchWarehouse: There is none; the message lists those that the sender may see.
        """
        name = admitted.request.names.get("prefix") or admitted.request.query.get("warehouse")
        if admitted.route.needs is NOTHING:
            return self._warehouses.named(name)
        try:
            return self._warehouses.chosen(name)
        except NoSuchWarehouse as error:
            seen = [each.catalog.name for each in self._warehouses if self.gate.sees(admitted.caller, each)(())]
            raise NoSuchWarehouse(f"{error}; served are: {', '.join(seen)}" if seen else str(error)) from None

    def _answered(self, warehouse: Warehouse, admitted: Admitted) -> HttpAnswer:
        request, caller = admitted.request, admitted.caller
        seen = dataclasses.replace(request, client=caller.name, sees=self.gate.sees(caller, warehouse))
        try:
            if not admitted.is_checked_by_head:
                self.gate.check(admitted.route.needs, request, caller, warehouse)
            if admitted.route.needs is NOTHING:
                return admitted.route.handler(warehouse, seen)  # the answer contains a token, which must not be kept
            return self._keys.answer(admitted.route.handler, warehouse, seen)
        except Forbidden as error:
            self.gate.audit(request, caller, error)
            return error_answer(self._keys.forbidden(error, admitted.route.handler, warehouse, seen))
        except Exception as error:  # noqa: BLE001 - every error is an answer
            return error_answer(error)

    def _config(self, warehouse: Warehouse, request: Request) -> HttpAnswer:
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
