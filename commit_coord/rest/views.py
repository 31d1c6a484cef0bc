"""The routes of views."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.exceptions import NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.typedef import Identifier

from commit_coord.iceberg import view_metadata
from commit_coord.rest.errors import AWAY, executed
from commit_coord.rest.namespaces import require_namespace, shown
from commit_coord.rest.pages import page
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import (
    NO_CONTENT,
    CreateView,
    HttpAnswer,
    RegisterView,
    RenameTable,
    Request,
    UnsupportedRequest,
    json_answer,
    read_creation,
    read_view_commit,
    table_names,
)


def has_views(warehouse: Warehouse) -> bool:
    """Return whether the warehouse can store views."""
    return warehouse.catalog.view_store is not None


def list_views(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer with the views of a namespace."""
    require_namespace(warehouse.catalog, request.namespace)
    found, following = page(warehouse.catalog.list_views(request.namespace), request)
    return json_answer({"identifiers": table_names(found), "next-page-token": following})


def create_view(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Create a view."""
    _require_views(warehouse)
    wanted = read_creation(request, CreateView)
    view = (*request.namespace, wanted.name)
    require_namespace(warehouse.catalog, request.namespace)
    made = warehouse.catalog.create_view(
        view,
        wanted.schema_,
        wanted.view_version,
        wanted.location,
        wanted.properties,
        view_uuid=request.idempotency_key,  # by which the server recognizes the view if the request is sent again
    )
    with executed(view):
        return _loaded(warehouse, view, request).of(view, made.metadata.view_uuid, is_view=True)


def load_view(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer with the metadata of a view."""
    return _loaded(warehouse, request.view, request)


def view_exists(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer 204 if the view exists."""
    warehouse.catalog.view_location(request.view)
    return NO_CONTENT


def commit_view(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Commit to a view."""
    wanted = read_view_commit(request)
    committed = warehouse.catalog.commit_view(request.view, wanted.requirements, wanted.updates)
    with executed(request.view):
        written = warehouse.answers.written(committed.location, [view_metadata.dump(committed.metadata, "")], request)
        return written.of(request.view, committed.metadata.view_uuid, is_view=True)


def drop_view(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Drop a view; never one that was created since it was seen."""
    warehouse.catalog.drop_view(request.view, expected=_seen(warehouse, request.view, request))
    return NO_CONTENT


def rename_view(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Give a view another name, which may be in another namespace; never one that was created since it was seen."""
    wanted = request.parsed(RenameTable)
    source = wanted.source.identifier
    expected = _seen(warehouse, source, request)
    warehouse.catalog.rename_view(source, wanted.destination.identifier, expected=expected)
    return NO_CONTENT


def register_view(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Register the view of an existing metadata file."""
    _require_views(warehouse)
    wanted = request.parsed(RegisterView)
    view = (*request.namespace, wanted.name)
    require_namespace(warehouse.catalog, request.namespace)
    made = warehouse.catalog.register_view(view, wanted.metadata_location)
    with executed(view):
        return _loaded(warehouse, view, request).of(view, made.metadata.view_uuid, is_view=True)


def state(warehouse: Warehouse, view: Identifier) -> Mapping[str, str | None]:
    """Return the UUID and the location of *view*, None if it does not exist; the UUID is "" if it is unreadable.

    Raises:
        Exception: One of ``AWAY``: the catalog could not be asked.
    """
    try:
        location = warehouse.catalog.view_location(view)
    except NoSuchViewError:
        return {"there": None, "location": None}
    try:
        return {"there": str(warehouse.catalog.load_view(view).metadata.view_uuid), "location": location}
    except AWAY:
        raise
    except Exception:  # noqa: BLE001 - its metadata file is missing or damaged; such a view can still be renamed
        return {"there": "", "location": location}


def refuse_creation(warehouse: Warehouse, table: Identifier) -> None:
    """Return if a commit may create the table, as far as namespaces and views decide that.

    Raises:
        NoSuchNamespaceError: Its namespace does not exist.
        ViewAlreadyExistsError: A view has this name.
    """
    require_namespace(warehouse.catalog, table[:-1])
    refuse_view(warehouse, table)


def refuse_view(warehouse: Warehouse, name: Identifier) -> None:
    """Return if no view has this name.

    Raises:
        ViewAlreadyExistsError: A view has this name.
    """
    if warehouse.catalog.view_exists(name):
        raise ViewAlreadyExistsError(f"View with same name already exists: {shown(name)}")


def _seen(warehouse: Warehouse, view: Identifier, request: Request) -> str:
    """Return the UUID of *view*, or its location if it is unreadable, as the first copy of the request found it.

    Raises:
        NoSuchViewError: It has found no view.
    """
    found = request.found or state(warehouse, view)
    if found["location"] is None:
        raise NoSuchViewError(f"View does not exist: {shown(view)}")
    return str(found["there"] or found["location"])


def _loaded(warehouse: Warehouse, view: Identifier, request: Request) -> HttpAnswer:
    return warehouse.answers.load(warehouse.catalog.view_location(view), request)


def _require_views(warehouse: Warehouse) -> None:
    if not has_views(warehouse):
        raise UnsupportedRequest(
            "the tables of this catalog have no column for views; its owner may add it with schema_version=v1"
        )
