"""How a catalog creates tables, each under the latch of its name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.typedef import EMPTY_DICT, Identifier

from commit_coord import doubt
from commit_coord.catalog.committing import CommittingCatalog
from commit_coord.catalog.storing import StoringCatalog
from commit_coord.catalog.views import ViewedCatalog
from commit_coord.coordinator import delete_quietly, new_file
from commit_coord.errors import CommitStateUnknown, ConfigError
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.new_table import new_metadata, refuse_location
from commit_coord.iceberg.storage import metadata_places
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table import CoordinatedCreation, CoordinatedStagedTable, CoordinatedTable
from commit_coord.table.writable import refuse_unwritable


class CreatingCatalog(CommittingCatalog, ViewedCatalog, StoringCatalog, MetastoreCatalog):
    """The catalog's methods that create tables. ``super()`` is PyIceberg's catalog class in them."""

    _default_properties: Mapping[str, str] = MappingProxyType({})
    """What PyIceberg's class gives each table that :meth:`create_table` makes."""

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, Any] = EMPTY_DICT,
    ) -> CoordinatedTable:
        """Create a table under its latch.

        Raises:
            TableAlreadyExistsError: There is one; nothing was written.
            CommitStateUnknown: It is not known whether the table was created; its metadata file is kept.
        """
        table = self._table_identifier(identifier, NoSuchNamespaceError)
        with self.operating(Operation.CREATE_TABLE, table), self._latch(table, statement="create table"):
            self._refuse_existing_table(table)
            self._refuse_missing_namespace(table)
            given = self._properties(table, None, {**self._default_properties, **properties}, changes_phase=False)
            staged = self.stage_table(identifier, schema, location, partition_spec, sort_order, given)
            place = staged.metadata_location
            created: list[str] = []
            try:
                with new_file(place, created):
                    self._write_metadata(staged.metadata, staged.io, place)
                metadata = self.coordinator.read(place)
                self._add(table, place, metadata)
            except CommitStateUnknown:
                raise  # The table may have the file.
            except Exception:
                if not doubt.is_open():
                    for path in created:
                        delete_quietly(staged.io, path)
                raise
            return self._made(table, place, metadata)

    def _add(self, table: Identifier, location: str, metadata: TableMetadata) -> None:
        """Add *table*, whose name is free, with its pointer at *location*.

        On any other error than ``CommitStateUnknown`` the table was not added, and never will be, unless that is in
        doubt (:mod:`commit_coord.doubt`).

        Raises:
            TableAlreadyExistsError: Another client was faster.
            CommitStateUnknown: It is not known whether the table was added.
        """
        raise NotImplementedError

    def _made(self, table: Identifier, location: str, metadata: TableMetadata) -> CoordinatedTable:
        """Return the table that got *metadata*, which is at *location*. Nothing is read: an error would be misleading.

        The table may have another name, or more commits, by now.
        """
        return CoordinatedTable(table, metadata.model_copy(deep=True), location, self.file_io(location), self)

    def create_table_if_not_exists(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, Any] = EMPTY_DICT,
    ) -> CoordinatedTable:
        """Return the table, which is created if there is none of that name."""
        found = super().create_table_if_not_exists(identifier, schema, location, partition_spec, sort_order, properties)
        return cast(CoordinatedTable, found)

    def create_table_transaction(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, Any] = EMPTY_DICT,
    ) -> CoordinatedCreation:
        """Return a transaction that creates a table, and makes its further changes, in one commit."""
        staged = self.stage_table(identifier, schema, location, partition_spec, sort_order, properties)
        refuse_unwritable(staged)
        return CoordinatedCreation(staged)

    def stage_table(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, Any] = EMPTY_DICT,
    ) -> CoordinatedStagedTable:
        """Return a table that does not exist yet, with its metadata. Nothing is written.

        PyIceberg's own method supports only namespaces of one level.

        Raises:
            NoSuchNamespaceError: The default location depends on a namespace that does not exist.
            ConfigError: The format version is no number.
            ValueError: No table can have this name, location, or schema.
            ValidationError: PyIceberg's: a transform of the spec or order does not fit its column.
        """
        table = self._table_identifier(identifier)
        given = properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION)
        try:
            version = int(str(given))
        except ValueError as error:
            raise ConfigError(
                "not a format version", key=TableProperties.FORMAT_VERSION, value=str(given), accepted="a whole number"
            ) from error
        columns = self._convert_schema_if_needed(schema, version)  # type: ignore[arg-type]  # another one is refused
        place = self._resolve_table_location(location, table_name(table[:-1]), table[-1])
        metadata = new_metadata(place, columns, partition_spec, sort_order, properties)
        metadata_location = metadata_places(metadata).new_table_metadata_file_location()
        return CoordinatedStagedTable(
            identifier=table,
            metadata=metadata,
            metadata_location=metadata_location,
            io=self.file_io(metadata_location),
            catalog=self,
        )

    def _refuse_existing_table(self, table: Identifier) -> None:
        if self.view_exists(table):
            raise TableAlreadyExistsError(f"View with same name already exists: {table_name(table)}")
        if self.coordinator.store.pointer(table) is not None:
            raise TableAlreadyExistsError(f"Table {table_name(table)} already exists")

    def _refuse_missing_namespace(self, table: Identifier) -> None:
        if not self.namespace_exists(table[:-1]):
            raise NoSuchNamespaceError(f"Namespace does not exist: {table_name(table[:-1])}")

    def _resolve_table_location(self, location: str | None, database_name: str, table_name: str) -> str:
        """Return where the table goes.

        Raises:
            NoSuchNamespaceError: The location is asked of a namespace that is not there.
            ValueError: As :func:`refuse_location`.
        """
        # First, since it says whether there is such a namespace: a metastore has no other look before that.
        resolved: str = super()._resolve_table_location(location, database_name, table_name)
        refuse_location(resolved, () if location is not None else (database_name, table_name))
        return resolved
