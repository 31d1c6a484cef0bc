"""The coordinated catalog over a Hive Metastore.

The tables are those of PyIceberg's and Java's ``HiveCatalog``. Their pointer is the parameter ``metadata_location``,
and the swap is an ``alter_table`` on the condition that it still has the value that was read.

HMS replaces a whole table by an alter. So each swap starts from the table as it is read right before the alter, and
whatever must not get lost lives in Iceberg's metadata.

Where the server ignores the condition
    The probe (``hms/probe.py``) finds out before the first swap. Then the swap is made under the EXCLUSIVE lock that
    unmodified writers take, too, whatever the lock manager is; the lock and the pointer are checked right before the
    alter and right after. What no client can prevent on such a server:

    1. We send the alter; it is delayed on its way.   2. Our lock is taken for dead, another writer commits.
    3. The alter arrives and is carried out: the other's commit is gone from the table.

Together with writers that know nothing of us
    With the `hms` lock manager we hold the lock that they take, too. A table whose writers lock elsewhere says so
    (``metastore/declarations``), and is guarded against them (``locks/hms/guard``), unless the server ignores the
    condition. Whatever slips through is noticed at the next commit of any client, by what the lock service remembers;
    with `hms` and `none`, which remember nothing, at the next load or commit of a client that knew what was
    overwritten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from types import MappingProxyType
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import DEFAULT_PROPERTIES, HIVE2_COMPATIBLE, HiveCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from pyiceberg.utils.properties import property_as_bool

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.locking import before_a_change
from commit_coord.catalog.metastore.administration import Administration
from commit_coord.catalog.metastore.declarations import COMMON_LOCK
from commit_coord.catalog.metastore.hive_table import TableFormat
from commit_coord.catalog.metastore.locks import MetastoreLocks
from commit_coord.catalog.metastore.names import folded
from commit_coord.catalog.metastore.offers import StoredOffers
from commit_coord.catalog.metastore.phases import PhaseChanges, Phases
from commit_coord.catalog.metastore.pointers import Pointers
from commit_coord.catalog.metastore.properties import WriterProperties
from commit_coord.catalog.metastore.protection import Protection
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.catalog.metastore.swaps import Swaps
from commit_coord.catalog.metastore.tables import MetastoreTables
from commit_coord.catalog.metastore.views import MetastoreViews, ViewPointers
from commit_coord.catalog.metastore.writers import LockOnlyWriters
from commit_coord.catalog.names import NoSuchName
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import configure
from commit_coord.errors import ConfigError, LockServiceUnavailable, MetastoreUnavailable
from commit_coord.events import PhaseChange
from commit_coord.hms.client import MetastoreClient, client_of
from commit_coord.hms.probe import Probe, assumed
from commit_coord.iceberg import view_metadata
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.base import Lease, LockManager
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.model import LockEntry, LockMode, LockRequest, LockScope, Resource
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.hierarchy import Operation
from commit_coord.protocol.migration import LOCK_IMPL, State
from commit_coord.table import CoordinatedTable
from commit_coord.table.operation_locks import AlreadyHeld, needed_locks


class CoordinatedHiveCatalog(CoordinatedCatalog, MetastoreTables):
    """PyIceberg's ``HiveCatalog`` with coordinated commits.

    Args:
        name: The catalog; on one metastore every name means the same tables and locks.
        properties: See ``docs/configuration.md``; what the environment and ``.pyiceberg.yaml`` say is merged in.

    Raises:
        ConfigError: A setting is unknown or malformed.
    """

    _default_properties = MappingProxyType(DEFAULT_PROPERTIES)

    def __init__(self, name: str, **properties: Any) -> None:
        configuration = configure(name, properties)
        settings = configuration.settings
        self.metastore = client_of(configuration.properties, timeout_ms=settings.hive_client_timeout_ms)
        if settings.lock_impl == HmsLockManager.name:
            if settings.lock_uri == configuration.properties["uri"]:
                settings = dataclasses.replace(settings, lock_uri=self.metastore.service)
                configuration = dataclasses.replace(configuration, settings=settings)
            _refuse_another_metastore(settings.lock_uri, self.metastore)
        HiveCatalog.__init__(self, name, **configuration.properties)
        self._configure(configuration)
        self.servers = Servers(Probe(self.metastore, assumed(settings.hive_compare_and_set)).capabilities)
        self.pointers = Pointers(self.metastore, SYSTEM_CLOCK)
        self._metadata = MetadataReader(self.pointers.location, self.file_io)
        self.phases = Phases(self.metastore, self._metadata)
        self._opened = MetastoreLocks(
            settings,
            self.metastore,
            servers=self.servers,
            pointers=self.pointers,
            metadata=self._metadata,
            phases=self.phases,
            files=StoredOffers(self.file_io, self.servers),
            events=self.events,
            host=self.host,
        )
        self.migrating, self.common_lock = self._opened.migrating, self._opened.common_lock
        self.guards, self._guard_locks = self._opened.guards, self._opened.guard_locks
        self._coordinate(self, self._opened.manager, self._metadata)
        self.overwrites = self.coordinator.overwrites
        self._prepare_changes()

    def _prepare_changes(self) -> None:
        """Make what changes tables and their pointers."""
        changes = PhaseChanges(self.phases, self.servers, self.migrating)
        self._writer_properties = WriterProperties(self.settings.lock_impl, changes, self.servers, self.guards)
        self.administration = Administration(
            self.metastore, self.pointers, self.servers, self._writer_properties, self.common_lock, SYSTEM_CLOCK
        )
        self.table_format = TableFormat(
            longest=self.settings.hive_table_property_max_size,
            hive2_compatible=property_as_bool(self.properties, HIVE2_COMPATIBLE, False),
        )
        view_pointers = ViewPointers(self.metastore, SYSTEM_CLOCK)
        self.view_store = MetastoreViews(
            self.metastore,
            servers=self.servers,
            pointers=view_pointers,
            administration=Administration(
                self.metastore, view_pointers, self.servers, self._writer_properties, self.common_lock, SYSTEM_CLOCK
            ),
            common_lock=self.common_lock,
            table_format=self.table_format,
            read=lambda location: view_metadata.read(self.file_io(location), location),
            ensure_live=self._ensure_live,
            clock=SYSTEM_CLOCK,
        )
        self._writers = LockOnlyWriters(self.common_lock)
        self._swaps = Swaps(
            self.metastore,
            servers=self.servers,
            pointers=self.pointers,
            common_lock=self.common_lock,
            writers=self._writers,
            guards=self.guards,
            metadata=self._metadata,
            table_format=self.table_format,
            overwrites=self.overwrites,
        )

    def swaps_are_conditional(self) -> bool:
        """See :meth:`CoordinatedCatalog.swaps_are_conditional`: it depends on the metastore in use.

        Raises:
            MetastoreUnavailable: No server could be asked.
        """
        return self.servers.compare_and_set()

    @staticmethod
    def _table_identifier(
        identifier: str | Identifier, error: type[ValueError] | type[NoSuchNamespaceError] = ValueError
    ) -> Identifier:
        """Return database and table, in the metastore's spelling: it folds names to lower case."""
        database, table = Catalog.identifier_to_database_and_table(identifier, NoSuchName)
        if not table:
            raise NoSuchName(f"a table needs a name behind its namespace: {identifier!r}")
        if not database:
            raise NoSuchName(f"no level of a table name may be empty: {identifier!r}")
        return folded(database, table)

    def spelled(self, resource: Resource) -> Resource:
        """See :meth:`CoordinatedCatalog.spelled`: names are folded, values of partitions are not."""
        names, levels = resource.path[:2], [level.partition("=") for level in resource.path[2:]]
        return Resource((*folded(*names), *(key.lower() + equals + value for key, equals, value in levels)))

    # The pointer store.

    def pointer(self, table: tuple[str, ...]) -> str | None:
        """Return the metadata location of *table*, None when there is no such table.

        Raises:
            NoSuchIcebergTableError: The object with this name is not an Iceberg table.
        """
        return self.pointers.location(table)

    def swap(self, table: tuple[str, ...], base: str | None, location: str) -> SwapResult:
        """Set the pointer from *base* to *location*; with no base, create the table."""
        if base is not None:
            return self._swaps.swap(table, base, location)
        new = self._convert_iceberg_into_hive(self._made(table, location, self.coordinator.read(location)))
        result = self.pointers.create(new, location, if_taken=SwapResult.MOVED)
        if result is SwapResult.SWAPPED:
            self.guards.place_for_new(table, location)
        return result

    def _add(self, table: Identifier, location: str, metadata: TableMetadata) -> None:
        """See :meth:`CoordinatedCatalog._add`."""
        new = self._convert_iceberg_into_hive(self._made(table, location, metadata))
        self.administration.create(new, location)
        self.guards.place_for_new(table, location)

    def _drop(self, table: Identifier, location: str | None = None) -> None:
        """See :meth:`CoordinatedCatalog._drop`; a metastore has no condition for it, so the pointer is read before."""
        self.administration.drop(table, location)
        self._forget(table)

    def _rename(self, old: Identifier, new: Identifier) -> None:
        """See :meth:`CoordinatedCatalog._rename`."""
        if self.migrating is not None:
            self._writer_properties.refuse_renamed(new, self.coordinator.load(old)[0].properties)
        location = self.administration.rename(old, new)
        self._forget(old)
        self.guards.place_for_new(new, location)

    def wait_for_lock_only_writers(self, table: tuple[str, ...], location: str, lease: Lease) -> bool:
        """See :class:`~commit_coord.coordinator.PointerStore`: unmodified writers take the common lock alone."""
        return self._writers.wait(table, location, lease)

    def _properties(
        self, table: tuple[str, ...], before: Mapping[str, str] | None, after: Mapping[str, Any], *, changes_phase: bool
    ) -> dict[str, Any]:
        """See :meth:`CoordinatedCatalog._properties`: a table declares the lock manager that its writers use."""
        return self._writer_properties.prepare(table, before, after, changes_phase=changes_phase)

    def _refuse_registered(self, table: tuple[str, ...], base: str | None, registered: TableMetadata) -> None:
        """See :meth:`CoordinatedCatalog._refuse_registered`."""
        before = self.coordinator.read(base).properties if base is not None else None
        self._writer_properties.refuse_registered(table, before, registered.properties)

    def _location_of(self, table: Identifier) -> str:
        """See :meth:`CoordinatedCatalog.metadata_location`; what was overwritten is noticed here, too."""
        location = super()._location_of(table)
        self.overwrites.loaded(table, location)
        return location

    def load_table(self, identifier: str | Identifier) -> CoordinatedTable:
        """Return the table as it is now; its commits are coordinated.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        table = super().load_table(identifier)
        self.overwrites.loaded(tuple(table.name()), table.metadata_location)
        if self.migrating is not None:
            self.migrating.beliefs.seen(Resource.table(table.name()), State.of(table.properties))
        return table

    # Locks and guards.

    def acquire_operation(self, request: LockRequest) -> Lease:
        """See :meth:`CoordinatedCatalog.acquire_operation`.

        What a table declares is read once the locks are held: a move to another lock manager waits for them from then
        on, and one that was faster has declared it.

        Raises:
            ConfigError: A lock is exclusive, and the writers of its table use another lock manager than this catalog:
                they would not see it.
            LockServiceUnavailable: Also when the metastore could not be asked for what a table declares.
            LockError: As there.
        """
        lease = super().acquire_operation(request)
        try:
            exclusive = {one.path[:2] for one, mode in request.locks if mode is LockMode.EXCLUSIVE}
            for table in sorted(name for name in exclusive if len(name) == 2):
                with suppress(NoSuchTableError):  # or none of Iceberg's
                    self._writer_properties.refuse_others(table, self.pointers.found(table).parameters)
        except MetastoreUnavailable as error:
            lease.release()
            raise LockServiceUnavailable(
                "the locks were given back: the metastore could not be asked which lock manager the writers use",
                locks=request,
                cause=error,
            ) from error
        except BaseException:
            lease.release()
            raise
        return lease

    def is_left(self, entry: LockEntry) -> bool:
        """See :meth:`CoordinatedCatalog.is_left`: a guard on a name that has no Iceberg table."""
        return self._guard_locks.is_left(entry)

    def _reaped(self, *, dry_run: bool) -> Iterator[Sequence[LockEntry]]:
        """Yield what is freed, or would be; also the guards of tables that are gone."""
        yield from super()._reaped(dry_run=dry_run)
        if self.guards.keeper is not None:
            for guard in self._guard_locks.left():
                yield [guard] if dry_run else self._guard_locks.free([guard])

    def show_locks(self, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`CoordinatedCatalog.show_locks`; where tables are guarded, with what meets the guards."""
        found = super().show_locks(resource)
        if (guard_manager := self._opened.guard_manager) is None:
            return found
        return [*found, *guard_manager.locks(self._spelled(resource), scope=LockScope.COMMIT)]

    def lock_pages(self, resource: Resource | None = None) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`CoordinatedCatalog.lock_pages`; what meets the guards comes last."""
        yield from super().lock_pages(resource)
        if (guard_manager := self._opened.guard_manager) is not None:
            yield from guard_manager.pages(self._spelled(resource), scope=LockScope.COMMIT)

    def _lock_managers(self) -> Sequence[LockManager]:
        """Return also the metastore's locks where tables are guarded; a guard is freed by its request id alone."""
        guard_manager = self._opened.guard_manager
        return [self.locks] if guard_manager is None else [self.locks, guard_manager]

    def protection(self, identifier: str | Identifier) -> Protection:
        """Return what keeps the commits of a table from being overwritten by writers that know nothing of us.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        table = self._table_identifier(identifier)
        metadata, _ = self.coordinator.load(table)
        return Protection(
            table=table_name(table),
            properties=metadata.properties,
            lock_impl=self._writer_properties.lock_impl(metadata.properties),
            compare_and_set=self.capabilities().compare_and_set,
            guard=next(iter(self._guard_locks.of(table)), None),
        )

    def adopt_locks(self, identifier: str | Identifier) -> str | None:
        """Declare this catalog's lock manager as the one that a table's writers use; return what it was before.

        Call it when every process that writes to the table with the other one has been stopped. If it fails after it
        has taken the table's locks, the guard may be gone: the next commit with the other lock manager sets it again.

        Raises:
            NoSuchTableError: There is none of that name.
            CommitError: As any commit.
            PartlyFreed: It is not known whether the guard was freed. The declaration has not changed.
        """
        table = self._table_identifier(identifier)
        chosen = self._writer_properties.lock_impl(self.coordinator.load(table)[0].properties)
        loaded = self.load_table(table)
        before = loaded.properties.get(LOCK_IMPL)
        with _lock_adopted(self, table), loaded.transaction() as tx:
            tx.set_properties({LOCK_IMPL: chosen})
            if chosen in COMMON_LOCK:
                # Our own latch would wait for the guard. Whatever refuses the table or its locks has done so by now.
                with self._forcing("unlock", f"the table's writers change from {before} to {chosen}") as freed:
                    freed.extend(self._guard_locks.free(self._guard_locks.of(table)))
        return before

    def tell_phase_change(self, event: PhaseChange) -> None:
        """Record *event*, and pass it to the listeners."""
        self._audit.changed(event)
        self.events.emit(event)

    def close(self) -> None:
        """Give back every lock of this client and close every connection, also where one fails to close."""
        with closing(self.metastore), closing(self._opened):
            super().close()


def _lock_adopted(catalog: CoordinatedHiveCatalog, table: Identifier) -> AbstractContextManager[object]:
    """Take the locks of an adoption, if it takes any; its table's writers use another lock manager until it ends.

    So the catalog's own ``acquire_operation`` would refuse them. The commit finds that this thread holds them.
    """
    needed = needed_locks(catalog, Operation.SET_TABLE_PROPERTIES, Resource.table(table))
    if needed.held is not AlreadyHeld.NOTHING:
        return nullcontext()
    with before_a_change():
        return CoordinatedCatalog.acquire_operation(
            catalog, catalog.lock_request(needed.locks, statement="adopt locks")
        )


def _refuse_another_metastore(lock_uri: str, own: MetastoreClient) -> None:
    """Return if the locks are those of the tables' metastore: only these are the common lock of unmodified writers.

    Raises:
        ConfigError: No server is named for both.
    """
    if set(MetastoreClient.of(lock_uri).addresses).isdisjoint(own.addresses):
        raise ConfigError(
            "the locks are in another metastore than the tables, where writers that take only the metastore's lock do "
            "not see them; leave lock.uri out, or name the catalog's metastore",
            key="lock.uri",
            value=lock_uri,
            accepted=",".join(own.addresses),
        )
