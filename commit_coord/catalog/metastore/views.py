"""The views of a metastore, stored as Iceberg Java stores them: as Hive's views, with a pointer.

Commits to views are rare. So each swap takes the lock of unmodified writers, and also compares the pointer if the
server honours the condition. No other protection against unmodified writers is needed.

Source: Iceberg Java ``HiveViewOperations``, ``HMSTablePropertyHelper``.
"""

from __future__ import annotations

import getpass
import logging
from collections.abc import Callable, Sequence
from typing import Any

from hive_metastore.ttypes import Table as HiveTable
from pyiceberg.catalog.hive import _construct_hive_storage_descriptor
from pyiceberg.exceptions import NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.view.metadata import ViewMetadata

from commit_coord.catalog.metastore.administration import Administration
from commit_coord.catalog.metastore.common_lock import CommonLock
from commit_coord.catalog.metastore.hive_table import (
    ICEBERG_VIEW,
    METADATA_LOCATION,
    OWNER,
    PREVIOUS_METADATA_LOCATION,
    TABLE_TYPE,
    VIRTUAL_VIEW,
    TableFormat,
)
from commit_coord.catalog.metastore.pointers import Pointers
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.clock import Clock
from commit_coord.hms.calls import FailedOver
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import NoSuchObject
from commit_coord.hms.probe import CompareAndSet
from commit_coord.iceberg import view_metadata
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.view_metadata import ViewPointer
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

ViewName = tuple[str, ...]

_TRIES = 10
"""How often a swap is tried if the client fails over to another server."""


class ViewPointers(Pointers):
    """The pointers of views. Only Iceberg's views have one."""

    kind, missing, taken = "View", NoSuchViewError, ViewAlreadyExistsError

    def find(self, table: ViewName) -> Any:
        """Return the metastore's view, None if it does not exist."""
        database, name = table
        try:
            found = self._client.get_table(database, name)
        except NoSuchObject:
            return None
        return found if is_view(found) else None


def is_view(found: Any) -> bool:
    """Return whether the metastore's table *found* is one of Iceberg's views."""
    parameters = found.parameters or {}
    kind = (found.tableType or "").upper(), parameters.get(TABLE_TYPE, "").upper()
    return kind == (VIRTUAL_VIEW, ICEBERG_VIEW) and bool(parameters.get(METADATA_LOCATION))


class MetastoreViews:
    """The views of one metastore.

    Args:
        client: The metastore's client.
        servers: Tells what the metastore's servers can do.
        pointers: Reads and writes the pointers of views.
        administration: Renames and drops views.
        common_lock: The lock of lock-only writers.
        table_format: Describes columns for the metastore.
        read: Returns the metadata in a file.
        ensure_live: Raises an error unless Hive leases are live.
        clock: Time.
    """

    def __init__(
        self,
        client: MetastoreClient,
        *,
        servers: Servers,
        pointers: ViewPointers,
        administration: Administration,
        common_lock: CommonLock,
        table_format: TableFormat,
        read: Callable[[str], ViewMetadata],
        ensure_live: Callable[[Sequence[int]], None],
        clock: Clock,
    ) -> None:
        self._client, self._servers, self._pointers = client, servers, pointers
        self._administration, self._common_lock = administration, common_lock
        self._format, self._read, self._clock = table_format, read, clock
        self._ensure_live = ensure_live

    def find(self, view: ViewName) -> ViewPointer | None:
        """Return the pointer of *view* now, None if the view does not exist."""
        found = self._pointers.find(view)
        if found is None:
            return None
        return ViewPointer(found.parameters[METADATA_LOCATION], found.parameters.get(PREVIOUS_METADATA_LOCATION))

    def names(self, namespace: ViewName) -> list[ViewName]:
        """Return the views of a database."""
        (database,) = namespace
        tables = self._client.get_table_objects_by_name(database, self._client.get_all_tables(database))
        return [(database, table.tableName) for table in tables if is_view(table)]

    def swap(
        self, view: ViewName, base: str | None, location: str, made: ViewMetadata, lease_ids: Sequence[int] = ()
    ) -> SwapResult:
        """Set the pointer of *view* from *base* to *location*, whose metadata is *made*; create a view without *base*.

        Raises:
            FailedOver: The client failed over at every try; nothing was sent.
            LockError: The lock of unmodified writers was not granted; nothing was sent.
            NoSuchNamespaceError: The database does not exist.
            LeaseEnded: One of the leases has ended; one that ends between this look and the swap is not noticed.
        """
        self._ensure_live(lease_ids)
        if base is None:
            return self._pointers.create(self._new(view, location, made), location)
        for _ in range(_TRIES):
            able = self._servers.capabilities()
            try:
                return self._swap(view, base, location, made, able.server, able.compare_and_set)
            except FailedOver:
                continue  # Nothing was sent. The other server may have other capabilities.
        raise FailedOver(
            "the change was not sent: at each try, the client was connected to another metastore than the tested one",
            uris=self._client.addresses,
        )

    def _swap(
        self, view: ViewName, base: str, location: str, made: ViewMetadata, server: str, able: CompareAndSet
    ) -> SwapResult:
        with self._common_lock.of(view) as lease:
            lease.ensure_active(0)
            found = self._pointers.find(view)
            if found is None or found.parameters[METADATA_LOCATION] != base:
                return SwapResult.MOVED
            removed = self._read(base).properties.keys() - made.properties.keys()
            found.parameters = {key: value for key, value in found.parameters.items() if key not in removed}
            self._fill(found, location, made)
            found.parameters[PREVIOUS_METADATA_LOCATION] = base
            expected = (METADATA_LOCATION, base) if able is CompareAndSet.HONOURED else None
            result = self._pointers.alter(view, found, expected=expected, base=base, server=server)
            if result is not SwapResult.SWAPPED:
                return result
            try:
                lease.ensure_active(0)
                if self._pointers.location(view) == location:
                    return SwapResult.SWAPPED
            except Exception:
                # The swap was sent, so a failure here does not prove that it did not happen.
                logger.warning("the outcome of a swap of %s could not be checked", table_name(view), exc_info=True)
            return SwapResult.LOST_REPLY

    def _new(self, view: ViewName, location: str, made: ViewMetadata) -> HiveTable:
        database, name = view
        now_s = self._clock.wall_ms() // 1000
        new = HiveTable(
            dbName=database,
            tableName=name,
            owner=made.properties.get(OWNER) or self._client.access.ugi or getpass.getuser(),
            createTime=now_s,
            lastAccessTime=now_s,
            retention=2**31 - 1,
            partitionKeys=[],
            parameters={},
            tableType=VIRTUAL_VIEW,
        )
        self._fill(new, location, made)
        return new

    def _fill(self, table: Any, location: str, made: ViewMetadata) -> None:
        """Copy the metadata *made* of the view into the metastore's *table*."""
        schema = view_metadata.schema_of(made)
        table.sd = _construct_hive_storage_descriptor(schema, made.location, self._format.hive2_compatible)
        parameters = table.parameters | {key: value for key, value in made.properties.items() if key.lower() != OWNER}
        parameters |= {"uuid": made.view_uuid, TABLE_TYPE: ICEBERG_VIEW, METADATA_LOCATION: location}
        parameters.pop("current-schema", None)
        described = schema.model_dump_json()
        if len(described) <= self._format.longest:
            parameters["current-schema"] = described
        table.parameters = parameters
        table.viewOriginalText = table.viewExpandedText = _query_for_hive(made)

    def drop(self, view: ViewName) -> None:
        """Remove *view* from the metastore.

        Raises:
            NoSuchViewError: The view does not exist.
            CommitNotApplied: The metastore refuses the drop.
            CommitStateUnknown: It is not known whether the view was dropped.
        """
        self._administration.drop(view)

    def rename(self, view: ViewName, to: ViewName) -> None:
        """Give *view* the name *to*.

        Raises:
            NoSuchViewError: The view does not exist.
            ViewAlreadyExistsError: A table or a view has the name *to*.
            NoSuchNamespaceError: The database of the new name does not exist.
            CommitNotApplied: The metastore refuses the rename.
            CommitStateUnknown: It is not known whether the view was renamed.
        """
        self._administration.rename(view, to)


def _query_for_hive(made: ViewMetadata) -> str:
    """Return the query for Hive: the one in Hive's dialect if there is one, else the first one."""
    queries = [representation.root for representation in view_metadata.current_version(made).representations]
    return next((query.sql for query in queries if query.dialect.lower() == "hive"), queries[0].sql)
