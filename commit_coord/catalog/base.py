"""What every coordinated catalog shares: the commit path, latched creation, drop and rename."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError, ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier

from commit_coord.catalog.locking import LockingCatalog
from commit_coord.catalog.maintenance import MaintainedCatalog
from commit_coord.catalog.names import NoSuchName
from commit_coord.catalog.storing import StoringCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import Configuration
from commit_coord.coordinator import Coordinator, PointerStore, delete_quietly
from commit_coord.errors import CommitStateUnknown
from commit_coord.events import Events
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.iceberg.rebase import GC_ENABLED, shares_files
from commit_coord.locks.base import LockSettings
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.registry import create_lock_manager
from commit_coord.observing import observe
from commit_coord.observing.audit import AuditLog
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table import CoordinatedCreation, CoordinatedTable


class CoordinatedCatalog(LockingCatalog, StoringCatalog, MaintainedCatalog, MetastoreCatalog):
    """Goes in front of a PyIceberg catalog class; that class keeps the pointers and everything else.

    ``super()`` is that class in the methods below, which mypy can't know of a mixin. A subclass is a
    :class:`~commit_coord.coordinator.PointerStore`, calls :meth:`_configure` first and :meth:`_coordinate` when it is
    ready.
    """

    def _configure(self, configuration: Configuration) -> None:
        """Take the settings over, and open what listens to this catalog."""
        settings = configuration.settings
        self.configuration, self.settings, self.events = configuration, settings, Events()
        observe(self.events, settings, catalog=self.name)
        self._audit = AuditLog(settings.commit_coord_audit_log, catalog=self.name, lock_manager=settings.lock_impl)
        self._file_ios: dict[tuple[Any, ...], FileIO] = {}
        # PyIceberg's ``create_table`` chooses the file's path itself, and passes it to ``_write_metadata`` alone, whose
        # signature is PyIceberg's: only the thread connects that call with ours.
        self._writing = threading.local()
        self._lock_settings = LockSettings(
            acquire_timeout_ms=settings.lock_acquire_timeout_ms,
            lease_ms=settings.lock_heartbeat_timeout_ms,
            heartbeat_interval_ms=settings.lock_heartbeat_interval_ms,
            check_min_wait_ms=settings.lock_check_min_wait_ms,
            check_max_wait_ms=settings.lock_check_max_wait_ms,
        )

    def _open_locks(self, space: str) -> HandoverLockManager:
        """Return the lock manager that the settings name.

        Args:
            space: Tells this catalog's tables from others of the same names at the same lock service.
        """
        settings = self.settings
        return create_lock_manager(
            settings.lock_impl,
            settings.lock_uri,
            self._lock_settings,
            SYSTEM_CLOCK,
            self.events,
            space=space,
            options=settings.lock_options,
        )

    def _coordinate(
        self, store: PointerStore, locks: HandoverLockManager, metadata: MetadataReader | None = None
    ) -> None:
        """Make the coordinator."""
        settings = self.settings
        self.locks = locks
        self.coordinator = Coordinator(
            store,
            locks,
            acquire_timeout_ms=settings.lock_acquire_timeout_ms,
            clock=SYSTEM_CLOCK,
            events=self.events,
            journal_lifetime_ms=settings.commit_journal_lifetime_ms,
            group_max_size=settings.commit_group_max_size,
            group_max_bytes=settings.commit_group_max_bytes,
            metadata=metadata,
            host=self.host,
        )

    # Tables.

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return the table as it is now; its commits are coordinated.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        table = self._table_identifier(identifier)
        metadata, location = self.coordinator.load(table)
        return CoordinatedTable(
            identifier=table,
            metadata=metadata.model_copy(deep=True),  # a caller may change its properties; the cache must not
            metadata_location=location,
            io=self.file_io(metadata.properties, location),
            catalog=self,
        )

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Return whether there is a table of that name, without reading its metadata."""
        try:
            return self.coordinator.store.pointer(self._table_identifier(identifier)) is not None
        except NoSuchTableError:
            return False

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit *updates* to the table as it is now, if it meets *requirements*.

        The entry for callers that speak PyIceberg's own protocol; tables of this catalog say more (see ``Attempt``).
        """
        creates = any(isinstance(requirement, AssertCreate) for requirement in requirements)
        attempt = Attempt(
            request_id=str(self.host.new_id()),
            table=self._table_identifier(tuple(table.name())),
            table_uuid=None if creates else str(table.metadata.table_uuid),
            base_location=None if creates else table.metadata_location,
            base_sequence_number=fast_metadata.sequence_number(table.metadata),
            requirements=requirements,
            updates=updates,
        )
        (committed,) = self.coordinator.commit([attempt])
        return CommitTableResponse.model_construct(metadata=committed.metadata, metadata_location=committed.location)

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: dict[str, Any] = EMPTY_DICT,
    ) -> Table:
        """Create a table under its latch.

        Raises:
            TableAlreadyExistsError: There is one; nothing was written.
        """
        table = self._table_identifier(identifier, NoSuchNamespaceError)
        with self.operating(Operation.CREATE_TABLE, table), self._latch(table, statement="create table"):
            _refuse_existing(self.coordinator.store, table)
            self._writing.file = None
            given = self._properties(table, {}, properties, changes_phase=False)
            try:
                return super().create_table(identifier, schema, location, partition_spec, sort_order, given)  # type: ignore[safe-super]
            except CommitStateUnknown:
                raise  # The table may have the file.
            except Exception:
                self._delete_unless_created(table)
                raise

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
        self._table_identifier(identifier)  # a name that no table can have is refused before a file is written
        return CoordinatedCreation(
            self._create_staged_table(identifier, schema, location, partition_spec, sort_order, properties)
        )

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        """Register the table whose metadata file is at *metadata_location*, under its latch.

        Raises:
            TableAlreadyExistsError: There is one of that name.
            FileNotFoundError: There is no such file; nothing was registered.
        """
        table = self._table_identifier(identifier)
        registering = self.operating(Operation.CREATE_TABLE, table, "register table")
        with registering, self._latch(table, statement="register table"):
            _refuse_existing(self.coordinator.store, table)
            self.coordinator.read(metadata_location)
            return super().register_table(identifier, metadata_location, overwrite)  # type: ignore[safe-super]

    def _write_metadata(self, metadata: TableMetadata, io: FileIO, metadata_path: str) -> None:  # type: ignore[override]
        """Write the metadata of a new table, and remember where for the case that the table can't be created."""
        self._writing.file = (io, metadata_path)
        super()._write_metadata(metadata, io, metadata_path)

    def _delete_unless_created(self, table: Identifier) -> None:
        """Delete the metadata file that was written for *table*, if it is certain that no table has it."""
        if self._writing.file is None:
            return
        io, path = self._writing.file
        with suppress(Exception):  # whether it was created is not known, so the file stays
            if self.coordinator.store.pointer(table) != path:
                delete_quietly(io, path)

    def _resolve_table_location(self, location: str | None, database_name: str, table_name: str) -> str:
        """Return where the table goes.

        Raises:
            NoSuchNamespaceError: The location is asked of a namespace that is not there.
            ValueError: The default location would hold ``?`` or ``#``: file stores cut a location off there, so all
                files of the table would become one. Or a name is a way out of the warehouse: ``../../etc``.
        """
        # First, since it says whether there is such a namespace: a metastore has no other look before that.
        resolved: str = super()._resolve_table_location(location, database_name, table_name)
        if location is None and not {".", ".."}.isdisjoint((*database_name.split("/"), *table_name.split("/"))):
            raise ValueError(
                f"a location can't hold '.' or '..', choose another with location=: {database_name}.{table_name}"
            )
        if "?" in resolved or "#" in resolved:
            raise ValueError(f"a table location can't hold '?' or '#', choose another with location=: {resolved!r}")
        return resolved

    def drop_table(self, identifier: str | Identifier) -> None:
        """Drop the table when nobody works on it: X on the table, then its latch."""
        table = self._table_identifier(identifier)
        with (
            self.operating(Operation.DROP_TABLE, table),
            self._latch(table, statement="drop table") as latch,
        ):
            super().drop_table(identifier)  # type: ignore[safe-super]
            _take_note(latch)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Rename the table when nobody works on it: X on the old name, then the latches of both names."""
        old, new = self._table_identifier(from_identifier), self._table_identifier(to_identifier)
        if old == new:
            raise TableAlreadyExistsError(f"Table {'.'.join(new)} already exists")
        renaming = self.operating(Operation.RENAME, old, f"rename to {'.'.join(new)}")
        with renaming, self._latch(old, new, statement="rename"):
            return super().rename_table(from_identifier, to_identifier)  # type: ignore[safe-super]

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drop the table and delete its files, each manifest read once (PyIceberg reads it for every snapshot).

        Raises:
            NoSuchTableError: There is none of that name.
            ValidationException: ``gc.enabled`` is false: other tables may need its files. Nothing was dropped.
        """
        name = self._table_identifier(identifier)
        with (
            self.operating(Operation.DROP_TABLE, name, "purge table"),
            self._latch(name, statement="purge table") as latch,
        ):
            table = self.load_table(name)  # under the latch: files of a commit in between would stay behind
            _refuse_shared_files(table)
            super().drop_table(identifier)  # type: ignore[safe-super]
            _take_note(latch)
        for path in _files_of(table):
            delete_quietly(table.io, path)

    def create_namespace(self, namespace: str | Identifier, properties: dict[str, str] = EMPTY_DICT) -> None:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: There is one of that name.
            NoSuchNamespaceError: No namespace can have this name: a level of it is empty.
        """
        with self.operating(Operation.CREATE_DATABASE, self._namespace_identifier(namespace)):
            super().create_namespace(namespace, properties)  # type: ignore[safe-super]

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Drop a namespace.

        Raises:
            NoSuchNamespaceError: There is none of that name.
            NamespaceNotEmptyError: It has tables.
        """
        with self.operating(Operation.DROP_DATABASE, self._namespace_identifier(namespace)):
            super().drop_namespace(namespace)  # type: ignore[safe-super]

    # Other processes, and copies.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the catalog was opened with, passwords included: it is opened anew where it is loaded.

        What is loaded is another client: it holds none of this one's locks.

        Raises:
            TypeError: The catalog exists only in the memory of this process.
        """
        if self.configuration.is_in_memory:
            raise TypeError(
                f"catalog {self.name!r} exists only in the memory of this process, where no other process finds it: "
                "keep it in a file (sqlite:///…) or in a database to send it to other processes"
            )
        return _opened_anew, (type(self), self.name, self.configuration.given)

    def __copy__(self) -> Self:
        """Return the same catalog: a copy of a table commits through the client that the table has."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """As a plain copy."""
        return self

    def close(self) -> None:
        """Give back every lock of this client and close every connection, also where one fails to close."""
        try:
            self.locks.close()
        finally:
            super().close()

    @staticmethod
    def _table_identifier(
        identifier: str | Identifier, error: type[ValueError] | type[NoSuchNamespaceError] = ValueError
    ) -> Identifier:
        """Return namespace levels and name as PyIceberg's SQL catalog stores them.

        It joins the levels with dots, so ``("a.b", "t")`` is ``("a", "b", "t")``, strips the blanks around each, and
        refuses a table without a namespace, with *error*. A table without a name has no lock, so it is refused too.
        """
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier), error)
        name = Catalog.table_name_from(identifier)
        if not name:
            raise NoSuchName(f"a table needs a name behind its namespace: {identifier!r}")
        return (*_levels(namespace), name)

    @staticmethod
    def _namespace_identifier(namespace: str | Identifier) -> Identifier:
        """Return the levels of *namespace* as PyIceberg's SQL catalog stores them.

        Raises:
            NoSuchNamespaceError: There is no level, or an empty one.
        """
        return _levels(Catalog.namespace_to_string(namespace, NoSuchNamespaceError))


def _refuse_existing(store: PointerStore, table: Identifier) -> None:
    if store.pointer(table) is not None:
        raise TableAlreadyExistsError(f"Table {'.'.join(table)} already exists")


def _levels(namespace: str) -> Identifier:
    """Return the levels of a namespace that is stored as *namespace*.

    Raises:
        NoSuchName: One is empty. PyIceberg stores the level ``..``, lists it as three empty ones, and finds none.
    """
    levels = Catalog.identifier_to_tuple(namespace)
    if not all(level.strip() for level in levels):
        raise NoSuchName(f"a level of a namespace can't begin or end with a dot: {namespace!r}")
    return levels


def _files_of(table: Table) -> set[str]:
    """Return all files of *table*, each manifest read once."""
    manifests: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        listed = manifest_list.read(table.io, snapshot.manifest_list)
        manifests.update((manifest.manifest_path, manifest) for manifest in listed)
    files = {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
    files |= manifests.keys() | {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    files |= {entry.metadata_file for entry in table.metadata.metadata_log} | {table.metadata_location}
    files |= {each.statistics_path for each in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    return files


def _refuse_shared_files(table: Table) -> None:
    """Refuse to delete the files of a table that says that they are not its own alone."""
    if shares_files(table.metadata):
        raise ValidationException(
            f"{'.'.join(table.name())} was not purged, and is still there: {GC_ENABLED}=false says that other tables "
            f"may need its files. drop_table() drops it and keeps them; set {GC_ENABLED}=true to purge it"
        )


def _opened_anew(cls: type[CoordinatedCatalog], name: str, given: Mapping[str, str]) -> CoordinatedCatalog:
    return cls(name, **given)


def _take_note(latch: HandoverLease) -> None:
    """Tell the next holder nothing of what was committed before: the table is gone."""
    if latch.handover_note:
        latch.set_handover_note("")
