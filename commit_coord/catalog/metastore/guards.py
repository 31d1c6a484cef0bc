"""When a table is guarded against writers that know nothing but the metastore's lock; see ``locks/hms/guard``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.catalog.metastore.common_lock import CommonLock
from commit_coord.catalog.metastore.declarations import declared_at
from commit_coord.catalog.metastore.hive_table import METADATA_LOCATION
from commit_coord.catalog.metastore.pointers import Pointers
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.clock import Clock
from commit_coord.errors import LockServiceUnavailable
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.forcing import telling_what_was_freed
from commit_coord.model import LockEntry, LockScope, Resource
from commit_coord.protocol.migration import LOCK_IMPL, Phase

logger = logging.getLogger(__name__)


class GuardKeeper(Protocol):
    """The guards themselves: :class:`~commit_coord.locks.hms.guard.HmsGuards`."""

    def place(self, table: Identifier, *, deadline: float, table_uuid: str = "") -> None:
        """Return when *table* is guarded, and the table of this UUID is meant."""
        ...

    def remove(self, table: Identifier) -> None:
        """Remove every guard of *table*."""
        ...

    def forget(self, table: Identifier) -> None:
        """Look for the guard of *table* again before the next swap."""
        ...

    def close(self) -> None:
        """Extend the guards no more."""
        ...


class GuardedTables:
    """Which tables have to be guarded: those that declare a lock manager whose writers do not take the common lock.

    Args:
        pointers: Of the metastore.
        metadata: Reads the tables' metadata.
        impl: That lock manager.
    """

    def __init__(self, pointers: Pointers, metadata: MetadataReader, impl: str) -> None:
        self._pointers, self._metadata, self._impl = pointers, metadata, impl

    def wants_guard(self, table: Identifier) -> bool:
        """Return whether *table* is there, and its writers use our lock manager by what the metastore shows of it."""
        try:
            found = self._pointers.find(table)
        except NoSuchIcebergTableError:
            return False
        return found is not None and found.parameters.get(LOCK_IMPL) == self._impl

    def has_left(self, table: Identifier) -> bool | None:
        """Return whether a guard of *table* is left behind, as :class:`HmsGuards` asks.

        A table that can't be read is there: whatever is wrong with it is no reason to remove what protects it.
        """
        try:
            return self._looked_at(table)
        except Exception:
            logger.warning("%s can't be read, so its guard stays", table_name(table), exc_info=True)
            return False

    def _looked_at(self, table: Identifier) -> bool | None:
        try:
            found = self._pointers.find(table)
        except NoSuchIcebergTableError:
            return True
        if found is None:
            return True
        if found.parameters.get(LOCK_IMPL) == self._impl:
            return False
        # What the metastore shows may have been reverted by a writer that knows nothing of it; the metadata was not.
        return False if declared_at(self._metadata, found.parameters[METADATA_LOCATION]) == self._impl else None


class Guards:
    """Sets and removes the guards of one metastore's tables.

    Args:
        keeper: Sets and extends the guards; None where tables are not guarded.
        impl: Tables are guarded that declare this lock manager.
        metadata: Reads the tables' metadata.
        common_lock: The lock for which a guard waits.
        servers: What the metastore's servers can do.
        clock: Time.
        acquire_timeout_ms: How long a guard waits for the common lock.
    """

    def __init__(
        self,
        keeper: GuardKeeper | None,
        *,
        impl: str,
        metadata: MetadataReader,
        common_lock: CommonLock,
        servers: Servers,
        clock: Clock,
        acquire_timeout_ms: int,
    ) -> None:
        self.keeper = keeper
        self._impl, self._metadata, self._common_lock, self._servers = impl, metadata, common_lock, servers
        self._clock, self._timeout = clock, acquire_timeout_ms / 1000

    def place(self, table: Identifier, table_uuid: str = "") -> None:
        """Guard *table*, whose writers lock elsewhere. Of a table that moves, call it under ZooKeeper's latch.

        Args:
            table: Which one.
            table_uuid: Its UUID. What is known of the guard of another table with this name is not trusted.

        Raises:
            LockError: A writer kept the metastore's lock for longer than ``lock.acquire-timeout-ms``, or there are
                no locks.
        """
        if self.keeper is not None:
            self.keeper.place(table, deadline=self._clock.now() + self._timeout, table_uuid=table_uuid)

    def place_for_swap(self, table: Identifier, location: str, base: str | None = None) -> None:
        """See to it that *table* is guarded, if what is, or is about to be, published says that it has to be.

        Args:
            table: Which one.
            location: What is about to be published.
            base: What is; None of a new table.

        Raises:
            LockError: As :meth:`place`.
        """
        if self.keeper is None or self._impl not in (
            declared_at(self._metadata, location),
            declared_at(self._metadata, base) if base is not None else None,
        ):
            return
        if self._common_lock.held(table) is not None:
            return  # We hold the lock for which the guard would wait, so nobody else does: the phase is being changed.
        self.place(table, str(self._metadata.read(location).table_uuid))

    def place_for_new(self, table: Identifier, location: str) -> None:
        """Guard a table that has this name from now on; if that fails, its next commit does it.

        It raises nothing: the table is there, and an error would say that it is not.
        """
        if self.keeper is None:
            return
        try:
            if self._servers.compare_and_set():
                self.place_for_swap(table, location)
        except Exception:
            logger.warning("%s could not be guarded; its next commit tries again", table_name(table), exc_info=True)

    def remove(self, table: Identifier) -> None:
        """Remove the guards of *table*; if that fails, they are listed with the locks."""
        if self.keeper is not None:
            try:
                self.keeper.remove(table)
            except LockServiceUnavailable:
                logger.warning("the guard of %s could not be removed; `commit-coord locks` shows it", table_name(table))

    def look_again(self, table: Resource) -> None:
        """Look for the guard of *table* again before the next swap: its phase has changed."""
        if self.keeper is not None:
            self.keeper.forget(table.path)

    def remove_unneeded(self, table: Resource) -> bool:
        """Remove the guards of *table*, unless it declares a lock manager between which and ours it does not move.

        Those of a name that has no Iceberg table were left by one that was dropped or renamed.

        Returns:
            Whether they are removed.
        """
        try:
            declared = self._metadata.load(table.path)[0].properties.get(LOCK_IMPL)
        except NoSuchTableError:
            declared = None
        if declared not in (None, *(phase.lock_impl for phase in Phase)):
            return False
        self.remove(table.path)
        return True

    def close(self) -> None:
        """Extend the guards no more. They stay."""
        if self.keeper is not None:
            self.keeper.close()


class GuardLocks:
    """The guards among the locks of the metastore, as they are listed and freed by hand.

    Args:
        common_lock: Whose manager lists the metastore's locks.
        tables: Which tables have to be guarded.
    """

    def __init__(self, common_lock: CommonLock, tables: GuardedTables) -> None:
        self._common_lock, self._tables = common_lock, tables

    def of(self, table: Identifier) -> list[LockEntry]:
        """Return the guards of *table*."""
        entries = self._common_lock.manager.locks(Resource.table(table), scope=LockScope.COMMIT)
        return [entry for entry in entries if entry.guard]

    def is_left(self, entry: LockEntry) -> bool:
        """Return whether *entry* is a guard on a name that has no Iceberg table."""
        return entry.guard and len(entry.resource.path) == 2 and self._tables.has_left(entry.resource.path) is True

    def left(self, on: Resource | None = None) -> list[LockEntry]:
        """Return the guards that are left behind, on exactly *on* or everywhere: each costs a look at its table."""
        listed = self._common_lock.manager.locks(on, scope=LockScope.COMMIT)
        return [entry for entry in listed if on in (None, entry.resource) and self.is_left(entry)]

    def free(self, guards: Sequence[LockEntry]) -> list[LockEntry]:
        """Free *guards*; return what was freed.

        Raises:
            PartlyFreed: Some were freed, or may have been, and then the metastore failed.
        """
        with telling_what_was_freed() as freed:
            for guard in guards:
                freed.extend(self._common_lock.manager.unlock(request_id=guard.request_id))
        return freed
