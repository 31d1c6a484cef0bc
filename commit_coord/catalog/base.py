"""What every coordinated catalog shares: the commit path, latched creation, drop and rename."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import CommitTableResponse, StagedTable, Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier

from commit_coord.catalog.maintenance import MaintainedCatalog
from commit_coord.catalog.requested import RequestedCommit, RequestedCommits
from commit_coord.catalog.storing import StoringCatalog
from commit_coord.catalog.views import ViewedCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import Configuration
from commit_coord.coordinator import Committed, Coordinator, PointerStore, delete_quietly
from commit_coord.errors import CommitStateUnknown
from commit_coord.events import Events
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.iceberg.new_table import new_metadata
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.iceberg.rebase import GC_ENABLED, shares_files
from commit_coord.locks.base import LockSettings
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.registry import create_lock_manager
from commit_coord.observing import observe
from commit_coord.observing.audit import AuditLog
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table import CatalogTransaction, CoordinatedCreation, CoordinatedTable
from commit_coord.table.writable import refuse_unwritable

CommitRequest = tuple[str | Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
"""A table, what its client relies on, and what is to be applied to it."""


class NoSuchName(NoSuchTableError, NoSuchNamespaceError, ValueError):
    """No table can have this identifier. PyIceberg raises the one or the other, as the operation goes."""


class CoordinatedCatalog(ViewedCatalog, StoringCatalog, MaintainedCatalog, MetastoreCatalog):
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

    def metadata_location(self, identifier: str | Identifier) -> str:
        """Return where the metadata of the table is now, without reading it.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        table = self._table_identifier(identifier)
        location = self.coordinator.store.pointer(table)
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {table_name(table)}")
        return location

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

    def commit_request(
        self,
        identifier: str | Identifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        *,
        declared: str | None = None,
        request_id: str | None = None,
    ) -> Committed:
        """Commit what a client of another protocol asks for: on the head, whichever it is, its requirements decide.

        An append that is declared to be blind follows any head. What has landed before is answered, and not done again;
        see :mod:`commit_coord.catalog.sent_before`.

        Args:
            identifier: The table. It is created where a requirement says that there is none.
            requirements: Everything that the client relies on; there is no other trace of what it has read.
            updates: Applied to the head in their order.
            declared: What the client says of all its appends: ``blind`` or ``checked``. None where it says nothing:
                the table's ``commit.append.blind`` counts. A snapshot may say otherwise by ``commit-coord.append``.
            request_id: A UUID that the client has chosen, by which it may ask for the same again; None makes one. The
                table's history carries it. The journal does not: who calls this remembers what was answered.

        Raises:
            NoSuchTableError: There is none of that name, and it is not to be created.
            CheckpointInTable: Its stream has committed the same before.
            StaleRead: The offsets that a coordinator of Kafka Connect has read have moved since.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
            ValueError: It declares something that nobody knows.
        """
        table = self._table_identifier(identifier)
        return RequestedCommit(self.coordinator, table, requirements, updates, declared, request_id).commit()

    def commit_requests(
        self, requests: Sequence[CommitRequest], *, request_id: str | None = None
    ) -> dict[Identifier, Committed]:
        """Commit *requests*, each to another table, as :meth:`commit_request` does one: all of them, or none.

        Their requirements decide, also of appends that are declared to be blind.

        Args:
            requests: What is asked for.
            request_id: As for :meth:`commit_request`.

        Returns:
            What became of each table.

        Raises:
            ConfigError: The catalog swaps the pointer of one table at a time. Nothing was done.
            ValueError: A table is named twice. Nothing was done.
            NoSuchTableError: One of the tables is not there, and is not to be created. Nothing was done.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit_several`.
        """
        named = [(self._table_identifier(table), requires, changes) for table, requires, changes in requests]
        names = [table_name(table) for table, *_ in named]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"nothing was done: the table {twice[0]} is named twice")
        return RequestedCommits(self.coordinator, named, request_id).commit()

    def transaction(self, request_id: str | None = None) -> CatalogTransaction:
        """Return a transaction over several tables: what it stages of each lands together, or not at all.

        ::

            with catalog.transaction() as tx:
                tx.table("shop.orders").append(orders)
                tx.table("shop.stock").delete("item = 7")

        Args:
            request_id: Chosen by the caller: a UUID, or any text that means this commit and no other. A transaction
                that is made again with it lands once.

        Raises:
            ConfigError: The catalog swaps the pointer of one table at a time.
        """
        self.coordinator.require_several()
        return CatalogTransaction(self, request_id)

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
            self._refuse_existing_table(table)
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
        """Return a transaction that makes a table, and whatever else it is told to, in one commit."""
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
    ) -> StagedTable:
        """Return a table as it will be made. Nothing is written.

        PyIceberg's own method does so for namespaces of one level.

        Raises:
            NoSuchNamespaceError: The location is asked of a namespace that is not there.
            ValueError: No table can have this name, location, or schema.
        """
        table = self._table_identifier(identifier)
        version = int(properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION))
        columns = self._convert_schema_if_needed(schema, version)  # type: ignore[arg-type]  # another one is refused
        place = self._resolve_table_location(location, table_name(table[:-1]), table[-1])
        metadata = new_metadata(place, columns, partition_spec, sort_order, properties)
        metadata_location = load_location_provider(place, metadata.properties).new_table_metadata_file_location()
        return StagedTable(
            identifier=table,
            metadata=metadata,
            metadata_location=metadata_location,
            io=self.file_io(metadata.properties, metadata_location),
            catalog=self,
        )

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        """Register the table whose metadata file is at *metadata_location*, under its latch.

        Args:
            identifier: The table.
            metadata_location: Where its metadata is.
            overwrite: A table of that name becomes this one. Its files stay.

        Raises:
            TableAlreadyExistsError: There is one of that name, and it is not to be overwritten.
            FileNotFoundError: There is no such file; nothing was registered.
            CommitFailedException: It was not overwritten: somebody who takes no latch changed it meanwhile.
            CommitStateUnknown: Whether it was overwritten is not known.
        """
        table = self._table_identifier(identifier)
        operation = Operation.DROP_TABLE if overwrite else Operation.CREATE_TABLE
        registering = self.operating(operation, table, "register table")
        with registering, self._latch(table, statement="register table") as latch:
            if not overwrite:
                self._refuse_existing_table(table)
            store = self.coordinator.store
            pointer = store.pointer(table)
            self.coordinator.read(metadata_location)
            if pointer is None:
                return super().register_table(identifier, metadata_location)  # type: ignore[safe-super]
            _take_note(latch)
            self.coordinator.overwrites.forget(table)
            match store.swap(table, pointer, metadata_location):
                case SwapResult.MOVED:
                    raise CommitFailedException(f"Table {table_name(table)} was changed meanwhile")
                case SwapResult.LOST_REPLY if store.pointer(table) != metadata_location:
                    raise CommitStateUnknown(
                        "whether the table was registered is not known",
                        table=table_name(table),
                        location=metadata_location,
                    )
            return self.load_table(table)

    def _refuse_existing_table(self, table: Identifier) -> None:
        if self.view_exists(table):
            raise TableAlreadyExistsError(f"View with same name already exists: {table_name(table)}")
        if self.coordinator.store.pointer(table) is not None:
            raise TableAlreadyExistsError(f"Table {table_name(table)} already exists")

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
            if self.view_exists(new):
                raise TableAlreadyExistsError(
                    f"Cannot rename {table_name(old)} to {table_name(new)}. View already exists"
                )
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
            NamespaceNotEmptyError: It has tables or views.
        """
        with self.operating(Operation.DROP_DATABASE, self._namespace_identifier(namespace)):
            if views := self.list_views(namespace):
                raise NamespaceNotEmptyError(
                    f"Namespace {table_name(views[0][:-1])} is not empty. {len(views)} views exist."
                )
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
