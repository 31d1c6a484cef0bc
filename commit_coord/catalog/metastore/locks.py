"""The lock manager of a metastore's catalog, and what keeps unmodified writers out of its tables."""

from __future__ import annotations

from collections.abc import Callable

from commit_coord.catalog.metastore.common_lock import CommonLock
from commit_coord.catalog.metastore.declarations import COMMON_LOCK
from commit_coord.catalog.metastore.guards import GuardedTables, GuardLocks, Guards
from commit_coord.catalog.metastore.phases import Phases
from commit_coord.catalog.metastore.pointers import Pointers
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.catalog.opening import lock_settings, open_locks
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import Settings
from commit_coord.events import Events
from commit_coord.hms.client import MetastoreClient
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.base import Lease, LockManager
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.locks.hms.guard import HmsGuards
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.hms.offers import OfferFiles
from commit_coord.locks.migration.lease import holds_common_lock
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.locks.migration.sides import Sides, open_sides
from commit_coord.locks.migration.writers import Writers
from commit_coord.locks.none import NoneLockManager
from commit_coord.process import Host
from commit_coord.protocol.migration import MIGRATING, Phase


class MetastoreLocks:
    """Opens the lock manager, once there is what keeps unmodified writers out.

    Args:
        settings: Of the catalog.
        metastore: Its client.
        servers: What the metastore's servers can do.
        pointers: Of the metastore.
        metadata: Reads the tables' metadata.
        phases: Of the tables that move to another lock manager.
        files: Where the metastore's locks keep offers.
        events: Receives what happens to locks.
        host: Names this process, and its requests.
    """

    common_lock: CommonLock
    guards: Guards
    guard_locks: GuardLocks

    def __init__(
        self,
        settings: Settings,
        metastore: MetastoreClient,
        *,
        servers: Servers,
        pointers: Pointers,
        metadata: MetadataReader,
        phases: Phases,
        files: OfferFiles,
        events: Events,
        host: Host,
    ) -> None:
        self._settings, self._metastore, self._servers = settings, metastore, servers
        self._pointers, self._metadata, self._phases = pointers, metadata, phases
        self._events, self._host, self._files = events, host, files
        self.migrating: MigratingLockManager | None = None
        """The lock manager, if it is the one that supports all phases."""
        self.manager = self._open()

    @property
    def guard_manager(self) -> LockManager | None:
        """The metastore's locks where tables are guarded there, and locked elsewhere alone; else None."""
        is_guarded = self.guards.keeper is not None and self.common_lock.own is None
        return self.common_lock.manager if is_guarded else None

    def _open(self) -> HandoverLockManager:
        impl = self._settings.lock_impl
        # No space of this catalog's own: on one metastore, one name is one table, whatever clients call the catalog.
        if impl == MIGRATING:
            hms, zookeeper, emitter = open_sides(
                self._settings.lock_uri,
                metastore=self._metastore.service,
                space="",
                settings=lock_settings(self._settings),
                clock=SYSTEM_CLOCK,
                events=self._events,
                **self._settings.lock_options,
            )
            self._set_guards(hms, holds_common_lock, impl=Phase.ZOOKEEPER.lock_impl)
            self.migrating = MigratingLockManager(
                Sides(hms, zookeeper, emitter),
                state_of=self._phases.of,
                guards=self.guards,
                writers=Writers.of(hms, zookeeper, SYSTEM_CLOCK),
                clock=SYSTEM_CLOCK,
            )
            return self.migrating
        if impl == HmsLockManager.name:
            hms = self._open_hms(self._settings.lock_uri)
            self._set_guards(hms, lambda _: True, impl=impl)
            return hms
        self._set_guards(None, lambda _: False, impl=impl)
        return open_locks(self._settings, self._events, space="")

    def _set_guards(self, own: HmsLockManager | None, is_common: Callable[[Lease], bool], *, impl: str) -> None:
        """Make what keeps writers out that know the metastore's lock alone.

        Args:
            own: As for :class:`CommonLock`.
            is_common: Likewise.
            impl: Tables are guarded that declare this lock manager.
        """
        timeout_ms = self._settings.lock_acquire_timeout_ms
        self.common_lock = CommonLock(
            own,
            latch_of=own.latch_of if own is not None else lambda _: None,
            open_another=lambda: self._open_hms(self._metastore.service),
            is_common=is_common,
            clock=SYSTEM_CLOCK,
            acquire_timeout_ms=timeout_ms,
            host=self._host,
        )
        guarded = GuardedTables(self._pointers, self._metadata, impl)
        self.guards = Guards(
            self._guard_keeper(guarded, impl),
            impl=impl,
            metadata=self._metadata,
            common_lock=self.common_lock,
            servers=self._servers,
            clock=SYSTEM_CLOCK,
            acquire_timeout_ms=timeout_ms,
        )
        self.guard_locks = GuardLocks(self.common_lock, guarded)

    def _guard_keeper(self, tables: GuardedTables, impl: str) -> HmsGuards | None:
        """Return the guards of tables that declare *impl*; None where none are needed, or wanted."""
        settings = self._settings
        if not settings.hive_guard or settings.lock_impl in (*COMMON_LOCK, NoneLockManager.name):
            return None
        return HmsGuards(
            self._metastore,
            statement=f"the writers lock in {impl}",
            interval_ms=settings.lock_heartbeat_timeout_ms,
            clock=SYSTEM_CLOCK,
            host=self._host,
            wanted=tables.wants_guard,
            left=tables.has_left,
        )

    def _open_hms(self, uri: str) -> HmsLockManager:
        return HmsLockManager(
            uri, settings=lock_settings(self._settings), clock=SYSTEM_CLOCK, events=self._events, files=self._files
        )

    def close(self) -> None:
        """Extend the guards no more, and close the second lock manager, if one was opened."""
        try:
            self.guards.close()
        finally:
            self.common_lock.close()
