"""The routes of tables."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.errors import CommitConflict
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.rest.classes import refuse_classes
from commit_coord.rest.commits import land
from commit_coord.rest.errors import executed
from commit_coord.rest.metadata import etag_of, matches
from commit_coord.rest.namespaces import require_namespace, shown
from commit_coord.rest.pages import page
from commit_coord.rest.views import refuse_creation, refuse_view
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import (
    NO_CONTENT,
    CreateTableRequest,
    HttpAnswer,
    MalformedRequest,
    RegisterTable,
    RenameTable,
    Request,
    json_answer,
    read_commit,
    read_creation,
    table_names,
)
from commit_coord.table import CoordinatedCreation

logger = logging.getLogger(__name__)


def list_tables(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer with the tables of a namespace."""
    require_namespace(warehouse.catalog, request.namespace)
    found, following = page(warehouse.catalog.list_tables(request.namespace), request)
    return json_answer({"identifiers": table_names(found), "next-page-token": following})


def create_table(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Create a table; or, for a staged creation, answer with the metadata that the client creates it with."""
    wanted = read_creation(request, CreateTableRequest)
    table = (*request.namespace, wanted.name)
    require_namespace(warehouse.catalog, request.namespace)
    refuse_existing(warehouse, table)
    refuse_classes(warehouse, wanted.properties)
    staged = warehouse.catalog.stage_table(
        table, wanted.schema_, wanted.location, wanted.spec, wanted.order, wanted.properties
    )
    if (key := request.idempotency_key) is not None:
        # If the request is sent again, the server recognizes the table that it created by this UUID.
        staged.metadata = staged.metadata.model_copy(update={"table_uuid": uuid.UUID(key)})
    if wanted.stage_create:
        return warehouse.answers.staged(fast_metadata.dump(staged.metadata, ""), request)
    try:
        made = CoordinatedCreation(staged).commit_transaction()
    except CommitConflict:
        refuse_existing(warehouse, table)
        raise
    return _answer(warehouse, table, made.metadata_location, made.metadata, request)


def load_table(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer with the metadata of a table, or with 304 if the client has it already."""
    refs_only = request.query.get("snapshots", "all")
    if refs_only not in ("all", "refs"):
        raise MalformedRequest(f"Invalid snapshots, neither all nor refs: {refs_only}")
    location = warehouse.catalog.metadata_location(request.table)
    etag = etag_of(location, refs_only=refs_only == "refs")
    if matches(request.headers.get("if-none-match"), etag):
        return HttpAnswer(status=304, headers={"etag": etag})
    return warehouse.answers.load(location, request, refs_only=refs_only == "refs")


def table_exists(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Answer 204 if the table exists."""
    warehouse.catalog.metadata_location(request.table)
    return NO_CONTENT


def commit_table(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Commit to a table, or create the table that was staged."""
    wanted = read_commit(request)
    table = request.table
    if wanted.creates:
        refuse_creation(warehouse, table)
    try:
        committed = land(warehouse, request, wanted)
    except CommitConflict as error:
        if wanted.creates and warehouse.catalog.table_exists(table):
            raise CommitFailedException("Requirement failed: table already exists") from error
        raise
    return _answer(warehouse, table, committed.location, committed.metadata, request)


def drop_table(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Drop a table, and delete its files if the client asks for that; never one that was created since it was seen."""
    seen = _seen(warehouse, request.table, request.found)
    if request.purges:
        warehouse.catalog.purge_table(request.table, expected=seen)
    else:
        warehouse.catalog.drop_table(request.table, expected=seen)
    return NO_CONTENT


def rename_table(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Give a table another name, which may be in another namespace; never one that was created since it was seen."""
    wanted = request.parsed(RenameTable)
    source, destination = wanted.source.identifier, wanted.destination.identifier
    seen = _seen(warehouse, source, request.found)
    require_namespace(warehouse.catalog, wanted.destination.namespace)
    if not warehouse.catalog.view_exists(destination):  # the catalog refuses that case itself, in Java's words
        refuse_existing(warehouse, destination)
    warehouse.catalog.rename_table(source, destination, expected=seen)
    return NO_CONTENT


def register_table(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Register the table of an existing metadata file.

    With a key, it replaces only the state that the first copy of the request has found: a later commit stays.
    """
    wanted = request.parsed(RegisterTable)
    table = (*request.namespace, wanted.name)
    expected = request.found.get("location")
    overwrite = wanted.overwrite and (expected is not None or not request.found)
    require_namespace(warehouse.catalog, request.namespace)
    if overwrite:
        refuse_view(warehouse, table)
    else:
        refuse_existing(warehouse, table)
    refuse_classes(warehouse, warehouse.catalog.coordinator.read(wanted.metadata_location).properties)
    made = warehouse.catalog.register_table(table, wanted.metadata_location, overwrite, expected=expected)
    with executed(table):  # of the file itself: it may have fields that this version does not know
        return warehouse.answers.load(made.metadata_location, request).of(table, made.metadata.table_uuid)


def report_metrics(warehouse: Warehouse, request: Request) -> HttpAnswer:
    """Accept the report of a scan or a commit, and ignore it."""
    return NO_CONTENT


def refuse_existing(warehouse: Warehouse, table: Identifier) -> None:
    """Return if neither a table nor a view has this name.

    Raises:
        TableAlreadyExistsError: A table has this name.
        ViewAlreadyExistsError: A view has this name.
    """
    try:
        warehouse.catalog.metadata_location(table)
    except NoSuchTableError:
        refuse_view(warehouse, table)
        return
    raise TableAlreadyExistsError(f"Table already exists: {shown(table)}")


def _seen(warehouse: Warehouse, table: Identifier, found: Mapping[str, Any]) -> str:
    """Return the UUID of *table*; its location if it is unreadable. *found* is what the first copy of a request found.

    Raises:
        NoSuchTableError: It has found no table.
    """
    if found:
        location = found.get("location")
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {shown(table)}")
        return str(found["there"] or location)
    location = warehouse.catalog.metadata_location(table)
    try:
        return str(warehouse.catalog.coordinator.read(location).table_uuid)
    except Exception:
        logger.info("the metadata of a table that is dropped or renamed cannot be read: %s", location, exc_info=True)
        return location


def _answer(
    warehouse: Warehouse, table: Identifier, location: str, metadata: TableMetadata, request: Request
) -> HttpAnswer:
    """Return the answer to a request that has changed *table*: the metadata file at *location*, which it published.

    The file may contain later commits, too. Usually this process has written it, and has its text in memory. If it
    can't be read, the answer is *metadata*: the change is there, so a failure here must not become an error.

    Raises:
        AnswerGone: As :func:`executed`.
    """
    with executed(table):
        answer = warehouse.answers.kept(location, request)
        if answer is None:
            try:
                written = warehouse.catalog.coordinator.json(location)
            except Exception:  # the file may already be deleted, for example
                # What the change knows may lack commits that the file contains, so nobody else gets it.
                logger.info("the metadata file of a change cannot be read: %s", location, exc_info=True)
                answer = warehouse.answers.unkept(location, fast_metadata.dump(metadata, ""), request)
            else:
                answer = warehouse.answers.written(location, written, request)
        return answer.of(table, metadata.table_uuid)
