"""The routes of views."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import Field
from pyiceberg.schema import Schema
from pyiceberg.typedef import IcebergBaseModel, Identifier
from pyiceberg.view.metadata import ViewVersion

from commit_coord.catalog.views import Views
from commit_coord.rest.names import refuse_taken_by_table, refuse_taken_by_view
from commit_coord.rest.namespaces import require_namespace, shown
from commit_coord.rest.pages import page
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import (
    NO_CONTENT,
    Answer,
    MalformedRequest,
    RenameTable,
    Request,
    UnsupportedRequest,
    json_answer,
    table_names,
)

Object = dict[str, Any]


class CreateView(IcebergBaseModel):
    """``CreateViewRequest``. Schema and version are checked as PyIceberg's models, and kept as they came."""

    name: str
    location: str | None = None
    schema_: Object = Field(alias="schema")
    view_version: Object = Field(alias="view-version")
    properties: dict[str, str] = Field(default_factory=dict)


class CommitView(IcebergBaseModel):
    """``CommitViewRequest``; the path names the view."""

    requirements: list[Object] = Field(default_factory=list)
    updates: list[Object] = Field(default_factory=list)


class RegisterView(IcebergBaseModel):
    """``RegisterViewRequest``."""

    name: str
    metadata_location: str = Field(alias="metadata-location")


def list_views(warehouse: Warehouse, request: Request) -> Answer:
    """Answer with the views of a namespace."""
    require_namespace(warehouse.catalog, request.namespace)
    found, following = page(_views(warehouse).store.listed(request.namespace), request)
    return json_answer({"identifiers": table_names(found), "next-page-token": following})


def create_view(warehouse: Warehouse, request: Request) -> Answer:
    """Create a view."""
    wanted = request.parsed(CreateView)
    _check(wanted.schema_, wanted.view_version)
    view = (*request.namespace, wanted.name)
    _require_free(warehouse, view)
    place = warehouse.catalog.place_of(view, wanted.location)
    made = _views(warehouse).create(view, place, wanted.schema_, wanted.view_version, wanted.properties)
    return warehouse.answers.written(made.location, orjson.dumps(made.metadata), request)


def load_view(warehouse: Warehouse, request: Request) -> Answer:
    """Answer with the metadata of a view."""
    return warehouse.answers.load(_views(warehouse).location(_view(request)), request)


def view_exists(warehouse: Warehouse, request: Request) -> Answer:
    """Answer 204 if there is such a view."""
    _views(warehouse).location(_view(request))
    return NO_CONTENT


def commit_view(warehouse: Warehouse, request: Request) -> Answer:
    """Replace or change a view."""
    wanted = request.parsed(CommitView)
    for update in wanted.updates:
        _check(update.get("schema"), update.get("view-version"))
    try:
        made = _views(warehouse).commit(_view(request), wanted.requirements, wanted.updates)
    except (AttributeError, KeyError, TypeError) as error:
        raise MalformedRequest(f"Malformed request: {type(error).__name__}: {error}") from error
    return warehouse.answers.written(made.location, orjson.dumps(made.metadata), request)


def drop_view(warehouse: Warehouse, request: Request) -> Answer:
    """Drop a view."""
    _views(warehouse).drop(_view(request))
    return NO_CONTENT


def rename_view(warehouse: Warehouse, request: Request) -> Answer:
    """Give a view another name, in another namespace if wanted."""
    wanted = request.parsed(RenameTable)
    source, destination = wanted.source.identifier, wanted.destination.identifier
    views = _views(warehouse)
    views.location(source)
    require_namespace(warehouse.catalog, wanted.destination.namespace)
    words = f"Cannot rename {shown(source)} to {shown(destination)}. {{}} already exists"
    refuse_taken_by_table(warehouse.catalog, destination, words.format("Table"))
    refuse_taken_by_view(warehouse.catalog, destination, words.format("View"))
    views.rename(source, destination)
    return NO_CONTENT


def register_view(warehouse: Warehouse, request: Request) -> Answer:
    """Register the view of a metadata file that is there."""
    wanted = request.parsed(RegisterView)
    view = (*request.namespace, wanted.name)
    _require_free(warehouse, view)
    return warehouse.answers.load(_views(warehouse).register(view, wanted.metadata_location), request)


def _require_free(warehouse: Warehouse, view: Identifier) -> None:
    require_namespace(warehouse.catalog, view[:-1])
    refuse_taken_by_table(warehouse.catalog, view, "Table with same name already exists")
    refuse_taken_by_view(warehouse.catalog, view)


def _view(request: Request) -> Identifier:
    return (*request.namespace, request.names["view"])


def _views(warehouse: Warehouse) -> Views:
    if warehouse.catalog.views is None:
        raise UnsupportedRequest(f"catalog {warehouse.catalog.name} keeps no views")
    return warehouse.catalog.views


def _check(schema: object, version: object) -> None:
    """Refuse what is neither a schema nor a version of a view.

    Raises:
        ValidationError: Pydantic's.
    """
    if schema is not None:
        Schema.model_validate(schema)
    if version is not None:
        ViewVersion.model_validate(version)
