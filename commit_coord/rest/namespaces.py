"""The routes of namespaces."""

from __future__ import annotations

from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from pyiceberg.typedef import Identifier

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.names import LEVEL_SEPARATOR
from commit_coord.rest.pages import page
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import (
    NO_CONTENT,
    CreateNamespace,
    HttpAnswer,
    MalformedRequest,
    Request,
    UnprocessableRequest,
    UpdateNamespace,
    json_answer,
    levels,
)


def list_namespaces(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer with the namespaces directly below ``parent``; without ``parent``, with those of the first level."""
    parent = levels(request.query["parent"]) if request.query.get("parent") else ()
    if parent:
        require_namespace(warehouse.catalog, parent)
    seen = filter(request.sees, warehouse.catalog.list_namespaces(parent))
    found, following = page(seen, request)
    return json_answer({"namespaces": found, "next-page-token": following})


def create_namespace(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Create a namespace."""
    wanted = request.parsed(CreateNamespace)
    if any("." in level for level in wanted.namespace):
        # The catalogs join levels with dots, so this namespace would be listed as one with more levels.
        raise MalformedRequest(f"A level of a namespace can't contain a dot: {shown(wanted.namespace)}")
    if any(LEVEL_SEPARATOR in level for level in wanted.namespace):
        raise MalformedRequest("A level of a namespace can't contain U+001F, which separates the levels in a path")
    try:
        warehouse.catalog.create_namespace(wanted.namespace, wanted.properties)
    except NamespaceAlreadyExistsError as error:
        raise NamespaceAlreadyExistsError(f"Namespace already exists: {shown(wanted.namespace)}") from error
    return json_answer({"namespace": wanted.namespace, "properties": wanted.properties})


def load_namespace(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer with the properties of a namespace."""
    require_namespace(warehouse.catalog, request.namespace)
    properties = warehouse.catalog.load_namespace_properties(request.namespace)
    return json_answer({"namespace": request.namespace, "properties": properties})


def namespace_exists(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer 204 if there is such a namespace."""
    require_namespace(warehouse.catalog, request.namespace)
    return NO_CONTENT


def drop_namespace(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Drop an empty namespace."""
    require_namespace(warehouse.catalog, request.namespace)
    if below := warehouse.catalog.list_namespaces(request.namespace):
        raise NamespaceNotEmptyError(
            f"Namespace {shown(request.namespace)} is not empty. Contains {len(below)} namespace(s)."
        )
    warehouse.catalog.drop_namespace(request.namespace)
    return NO_CONTENT


def update_namespace(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Set and remove properties of a namespace."""
    wanted = request.parsed(UpdateNamespace)
    if both := sorted(set(wanted.removals) & wanted.updates.keys()):
        raise UnprocessableRequest(f"Invalid namespace update, cannot simultaneously set and remove keys: {both}")
    require_namespace(warehouse.catalog, request.namespace)
    done = warehouse.catalog.update_namespace_properties(request.namespace, set(wanted.removals), wanted.updates)
    return json_answer({"updated": done.updated, "removed": done.removed, "missing": done.missing})


def require_namespace(catalog: CoordinatedCatalog, namespace: Identifier) -> None:
    """Return if there is such a namespace.

    Raises:
        NoSuchNamespaceError: There is none.
    """
    if not catalog.namespace_exists(namespace):
        raise NoSuchNamespaceError(f"Namespace does not exist: {shown(namespace)}")


def shown(name: Identifier) -> str:
    """Return *name* as it is written in messages."""
    return ".".join(name)
