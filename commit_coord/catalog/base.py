"""What every coordinated catalog shares: the commit path, latched creation, drop and rename, operation locks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Self

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError, ValidationException
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier

from commit_coord.catalog import orphans, repair
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import Configuration, Settings
from commit_coord.coordinator import Coordinator, PointerStore, delete_quietly
from commit_coord.errors import CommitLockFailed, CommitStateUnknown, LockServiceUnavailable
from commit_coord.events import Events, LocksForced
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as lean
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.overwrites import Acknowledged
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.iceberg.rebase import GC_ENABLED, shares_files
from commit_coord.locks.base import DenyPolicy, Lease, LockManager, LockSettings, Policy, WaitPolicy
from commit_coord.locks.hive_lease import Leases
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import LockEntry, LockMode, LockRequest, LockScope, Resource
from commit_coord.observing import observe
from commit_coord.observing.audit import AuditLog
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.hierarchy import COMMANDS, Level, Operation, Partition, calls_take, escalate, operation_locks
from commit_coord.table import CoordinatedCreation, CoordinatedTable


class NoSuchName(NoSuchTableError, NoSuchNamespaceError, ValueError):
    """No table can have this identifier. PyIceberg raises the one or the other, as the operation goes."""


class CoordinatedCatalog(MetastoreCatalog):
    """Goes in front of a PyIceberg catalog class; that class keeps the pointers and everything else.

    ``super()`` is that class in the methods below, which mypy can't know of a mixin. A subclass is a
    :class:`~commit_coord.coordinator.PointerStore`, calls :meth:`_configure` first and :meth:`_coordinate` when it is
    ready.
    """

    settings: Settings
    configuration: Configuration
    locks: LockManager
    coordinator: Coordinator
    events: Events
    host: Host = SYSTEM_HOST

    def _configure(self, configuration: Configuration) -> None:
        """Take the settings over, and open what listens to this catalog."""
        settings = configuration.settings
        self.configuration, self.settings, self.events = configuration, settings, Events()
        observe(self.events, settings, catalog=self.name)
        self._audit = AuditLog(settings.commit_coord_audit_log, catalog=self.name, lock_manager=settings.lock_impl)
        self._file_ios: dict[tuple[Any, ...], FileIO] = {}
        self._writing = threading.local()
        self._lock_settings = LockSettings(
            acquire_timeout_ms=settings.lock_acquire_timeout_ms,
            lease_ms=settings.lock_heartbeat_timeout_ms,
            heartbeat_interval_ms=settings.lock_heartbeat_interval_ms,
            check_min_wait_ms=settings.lock_check_min_wait_ms,
            check_max_wait_ms=settings.lock_check_max_wait_ms,
        )

    def _open_locks(self, space: str) -> LockManager:
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

    def _coordinate(self, store: PointerStore, locks: LockManager, metadata: MetadataReader | None = None) -> None:
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
        )

    # Operation locks.

    def spelled(self, resource: Resource) -> Resource:
        """Return *resource* under the names that the store keeps: the only ones that lock, so one object has one lock.

        Every entry of this catalog that takes a resource spells it so. PyIceberg strips the blanks around the levels of
        a namespace.
        """
        namespace = ".".join(level.strip() for level in resource.path[0].split("."))
        return Resource((namespace, *resource.path[1:])) if namespace else resource

    def lock_operation(
        self, locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]], *, statement: str = ""
    ) -> Lease:
        """Take the locks of an operation, all or none; a context manager that gives them back.

        Read the tables again once they are held: what was read before may have changed while waiting.

        Args:
            locks: Without parents. More partitions than ``lock.max-partitions`` are locked by their prefixes.
            statement: Shown to whoever waits.

        Raises:
            LockTimeout: ``lock.acquire-timeout-ms`` passed; the message names the holder.
            LockReentered: This thread holds one of them already.
            LockRefused: The policy is ``deny`` and its retries are used up.
        """
        return self.acquire_operation(self.lock_request(locks, statement=statement))

    def lock_request(
        self,
        locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]],
        *,
        statement: str = "",
        explicit: bool = False,
    ) -> LockRequest:
        """Return what :meth:`lock_operation` asks the lock manager for, parents included; nothing is asked yet.

        Args:
            locks: As for :meth:`lock_operation`.
            statement: Likewise.
            explicit: Whether a LOCK statement asks, so that only UNLOCK ends it.
        """
        pairs = locks.items() if isinstance(locks, Mapping) else locks
        return LockRequest.of(
            LockScope.OPERATION,
            escalate([(self.spelled(resource), mode) for resource, mode in pairs], self.settings.lock_max_partitions),
            owner=self.host.owner(statement),
            request_id=str(self.host.new_id()),
            explicit=explicit,
            database_parents=self.settings.lock_database_parents,
        )

    def lock_change(
        self, locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]], *, statement: str = ""
    ) -> Lease:
        """Take the locks of an operation that changes a table or the catalog; see :meth:`lock_operation`.

        Raises:
            CommitLockFailed: The lock service could not be reached, as where a commit finds that out: nothing was
                changed.
            LockError: As :meth:`lock_operation`.
        """
        with _before_a_change():
            return self.lock_operation(locks, statement=statement)

    def _latch(self, *tables: Identifier, statement: str) -> Lease:
        """Take the commit latches of *tables* for a change of the catalog; see :meth:`Coordinator.latch`.

        Raises:
            CommitLockFailed: As :meth:`lock_change`.
            LockTimeout: Somebody held one of them for too long.
        """
        with _before_a_change():
            return self.coordinator.latch(*tables, statement=statement)

    def acquire_operation(self, request: LockRequest) -> Lease:
        """Take what *request* asks for by ``lock.policy``.

        Under ``deny`` the number of retries ends the wait, as in Hive, unless ``lock.acquire-timeout-ms`` was set, too:
        then what comes first does.

        Raises:
            LockError: As :meth:`lock_operation`.
        """
        policy, seconds = self._policy(), self.settings.lock_acquire_timeout_ms / 1000
        if isinstance(policy, DenyPolicy) and self.configuration.origins["lock.acquire-timeout-ms"] == "default":
            seconds += policy.longest_s
        return self.locks.acquire(request, deadline=self.coordinator.clock.now() + seconds, policy=policy)

    def lock_call(
        self,
        operation: Operation,
        on: Resource,
        partitions: Iterable[Partition] = (),
        live_specs: int = 1,
        *,
        statement: str = "",
    ) -> Lease | None:
        """Take what *operation* takes on a table or database when it is called from Python.

        Args:
            operation: What is called.
            on: The table or database.
            partitions: Of the table, those that are named.
            live_specs: As for :func:`~commit_coord.protocol.hierarchy.operation_locks`.
            statement: Shown to whoever waits.

        Returns:
            None when ``operation-locks`` asks for nothing, or this thread holds it already.

        Raises:
            CommitLockFailed: As :meth:`lock_change`.
            LockReentered: This thread holds a part of it, or holds it in a weaker mode.
            LockError: As :meth:`lock_operation`.
        """
        if not calls_take(operation, self.settings.operation_locks):
            return None
        planned = operation_locks(operation, on, partitions, live_specs=live_specs)
        locks = [(self.spelled(resource), mode) for resource, mode in planned]
        if all(self.locks.holds(resource, mode) for resource, mode in locks):
            return None
        return self.lock_change(locks, statement=statement or operation.value)

    def operating(self, operation: Operation, name: Identifier, statement: str = "") -> AbstractContextManager[object]:
        """Hold what :meth:`lock_call` takes on the table or database *name*."""
        whole = COMMANDS[operation].level is Level.DATABASE
        on = Resource((".".join(name),)) if whole else Resource.table(name)
        return self.lock_call(operation, on, statement=statement) or nullcontext()

    def show_locks(self, resource: Resource | None = None) -> Sequence[LockEntry]:
        """Return who holds and waits for what, on *resource* and below it, or everywhere."""
        return self.locks.locks(self._spelled(resource))

    def lock_pages(self, resource: Resource | None = None) -> Iterator[Sequence[LockEntry]]:
        """Yield the entries of :meth:`show_locks` page by page, resource by resource; the first page comes soon."""
        yield from self.locks.pages(self._spelled(resource))

    def _spelled(self, resource: Resource | None) -> Resource | None:
        return None if resource is None else self.spelled(resource)

    def unlock(
        self, *, request_id: str | None = None, resource: Resource | None = None, why: str = ""
    ) -> Sequence[LockEntry]:
        """Free locks by force: one request, or every request that locks exactly *resource*. Return what was freed.

        Args:
            request_id: Which request.
            resource: Which resource.
            why: For the audit log.
        """
        freed = [
            entry
            for manager in self._lock_managers()
            for entry in manager.unlock(request_id=request_id, resource=self._spelled(resource))
        ]
        self._forced("unlock", freed, why)
        return freed

    def reap(self, *, dry_run: bool = False, why: str = "") -> Sequence[LockEntry]:
        """Free what dead owners left; see :meth:`LockManager.reap`. Return what was freed.

        Args:
            dry_run: Free nothing, and return what would be freed.
            why: For the audit log.
        """
        found = [entry for manager in self._lock_managers() for entry in manager.reap(dry_run=dry_run)]
        if not dry_run:
            self._forced("reap", found, why)
        return found

    def is_on(self, entry: LockEntry, resource: Resource) -> bool:
        """Return whether *entry* of :meth:`show_locks` is on exactly *resource*; see :meth:`LockManager.listed`."""
        return any(manager.is_on(entry, self.spelled(resource)) for manager in self._lock_managers())

    def is_left(self, entry: LockEntry) -> bool:
        """Return whether *entry* stands for a table that is gone, and for nobody who works on anything."""
        return False

    def _lock_managers(self) -> Sequence[LockManager]:
        """Return all whose locks can stand on this catalog's tables."""
        return [self.locks]

    def _forced(self, how: str, freed: Sequence[LockEntry], why: str) -> None:
        if freed:
            at_ms = self.coordinator.clock.wall_ms()
            event = LocksForced(how=how, by=self.host.owner(), at_ms=at_ms, why=why, freed=tuple(freed))
            self._audit.record(event)
            self.events.emit(event)

    # Leases.

    @property
    def leases(self) -> Leases:
        """The leases of this catalog: locks that are held for a time instead of by a process.

        Raises:
            ConfigError: The lock manager has no database; the message says what to set.
        """
        return Leases(
            self.locks,
            max_duration_ms=self.settings.lease_max_duration_ms,
            database_parents=self.settings.lock_database_parents,
            spelled=self.spelled,
            forced=lambda freed: self._forced("drop lease", freed, ""),
        )

    @contextmanager
    def fenced(self, lease_id: int) -> Iterator[None]:
        """Refuse every commit of this thread and catalog in the block unless the lease is live at the swap.

        A commit that was refused did not land: ``CommitLockFailed``, and its files are gone. Operations of this thread
        do not wait for what the lease locks. What goes by no commit (create, drop and rename of tables) is not refused.

        Raises:
            InvalidArguments: There is no such lease, or it has ended already.
        """
        with self.leases.treat_as_held(lease_id), self.coordinator.fenced(lease_id):
            yield

    def wait_for_unconditional_writers(self, table: tuple[str, ...], location: str, lease: Lease) -> bool:
        """See :class:`~commit_coord.coordinator.PointerStore`: nobody swaps without comparing."""
        return False

    def swap_under_lease(self, lease_id: int, table: tuple[str, ...], base: str | None, location: str) -> SwapResult:
        """Swap if the lease is live; see :class:`~commit_coord.coordinator.PointerStore`.

        Asked right before the swap, in another database than that of the pointer: a lease that ends in between is not
        noticed.
        """
        self.leases.ensure_live(lease_id)
        return self.coordinator.store.swap(table, base, location)

    def _policy(self) -> Policy:
        if self.settings.lock_policy == "wait":
            return WaitPolicy()
        return DenyPolicy(
            numretries=self.settings.lock_num_retries,
            sleep_between_retries_ms=self.settings.lock_sleep_between_retries_ms,
        )

    # Tables.

    def prepare_metadata(
        self, table: tuple[str, ...], head: TableMetadata | None, made: TableMetadata
    ) -> TableMetadata:
        """Return *made* as it may follow *head*; see :class:`~commit_coord.coordinator.PointerStore`."""
        properties = self._properties(table, head.properties if head is not None else {}, made.properties)
        return made if properties == made.properties else made.model_copy(update={"properties": properties})

    def _properties(
        self, table: tuple[str, ...], before: Mapping[str, str], after: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the properties *after* with what *table* says of its writers; here, of all tables, nothing.

        Raises:
            ConfigError: By what it said *before*, this catalog must not write to it.
        """
        return dict(after)

    def file_io(self, properties: dict[str, str], location: str) -> FileIO:
        """Return the file store for *location*, one for each set of properties: making one may open connections."""
        key = (location.split(":", 1)[0], *sorted(properties.items()))
        if key not in self._file_ios:
            self._file_ios[key] = load_file_io({**self.properties, **properties}, location)
        return self._file_ios[key]

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
            base_sequence_number=lean.sequence_number(table.metadata),
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
            self._refuse_existing(table)
            self._writing.file = None
            given = self._properties(table, {}, properties)
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
            self._refuse_existing(table)
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
        manifests: dict[str, ManifestFile] = {}
        for snapshot in table.metadata.snapshots:
            listed = manifest_list.read(table.io, snapshot.manifest_list)
            manifests.update((manifest.manifest_path, manifest) for manifest in listed)
        doomed = {
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        }
        doomed |= manifests.keys() | {snapshot.manifest_list for snapshot in table.metadata.snapshots}
        doomed |= {entry.metadata_file for entry in table.metadata.metadata_log} | {table.metadata_location}
        doomed |= {each.statistics_path for each in (*table.metadata.statistics, *table.metadata.partition_statistics)}
        for path in doomed:
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

    # What was overwritten, and what nobody refers to.

    def find_lost(self, identifier: str | Identifier, since: Iterable[str] = ()) -> repair.Repair:
        """Return the commits of a table that writers without our rules overwrote; see :func:`repair.find`.

        Args:
            identifier: The table.
            since: Metadata files of commits that are known to be lost, beside what the lock service remembers.
        """
        return repair.find(self.coordinator, self._table_identifier(identifier), since)

    def repair(self, found: repair.Repair) -> list[repair.LostCommit]:
        """Bring back what can be of what was *found*; see :func:`repair.execute`."""
        return repair.execute(self.coordinator, found)

    def forget_lost(self, identifier: str | Identifier) -> tuple[Acknowledged, ...]:
        """Have the lock service forget what was lost of a table, and return what it forgot."""
        return repair.forget(self.coordinator, self._table_identifier(identifier))

    def find_orphans(
        self, identifier: str | Identifier, *, older_than_ms: int = orphans.OLDER_THAN_MS, force: bool = False
    ) -> orphans.Orphans:
        """Return the files of a table that no commit refers to and no writer can still publish; see `orphans.find`."""
        return orphans.find(self, self._table_identifier(identifier), older_than_ms=older_than_ms, force=force)

    def delete_orphans(self, found: orphans.Orphans) -> orphans.Orphans:
        """Delete what was *found*, but for what was committed since; return what was deleted."""
        return orphans.delete(self, found)

    # Other processes, and copies.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the catalog was opened with, passwords included: it is opened anew where it is loaded.

        What is loaded is another client: it holds none of this one's locks.

        Raises:
            TypeError: The catalog lies in the memory of this process.
        """
        if self.configuration.is_in_memory:
            raise TypeError(
                f"catalog {self.name!r} lies in the memory of this process, where no other one finds it: "
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

    def _refuse_existing(self, table: Identifier) -> None:
        if self.coordinator.store.pointer(table) is not None:
            raise TableAlreadyExistsError(f"Table {'.'.join(table)} already exists")

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


@contextmanager
def _before_a_change() -> Iterator[None]:
    """Have an outage of the lock service end as it ends a commit: nothing was sent that changes anything."""
    try:
        yield
    except LockServiceUnavailable as error:
        raise CommitLockFailed(f"nothing was changed: {error.message}", **error.details) from error


def _levels(namespace: str) -> Identifier:
    """Return the levels of a namespace that is stored as *namespace*.

    Raises:
        NoSuchName: One is empty. PyIceberg stores the level ``..``, lists it as three empty ones, and finds none.
    """
    levels = Catalog.identifier_to_tuple(namespace)
    if not all(level.strip() for level in levels):
        raise NoSuchName(f"a level of a namespace can't begin or end with a dot: {namespace!r}")
    return levels


def _refuse_shared_files(table: Table) -> None:
    """Refuse to delete the files of a table that says that they are not its own alone."""
    if shares_files(table.metadata):
        raise ValidationException(
            f"{'.'.join(table.name())} was not purged, and is still there: {GC_ENABLED}=false says that other tables "
            f"may need its files. drop_table() drops it and keeps them; set {GC_ENABLED}=true to purge it"
        )


def _opened_anew(cls: type[CoordinatedCatalog], name: str, given: Mapping[str, str]) -> CoordinatedCatalog:
    return cls(name, **given)


def _take_note(latch: Lease) -> None:
    """Tell the next holder nothing of what was committed before: the table is gone."""
    if latch.note:
        latch.leave("")
