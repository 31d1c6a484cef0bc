"""The coordinated catalog over a Hive Metastore.

The tables are those of PyIceberg's and Java's ``HiveCatalog``. Their pointer is the parameter ``metadata_location``,
and the swap is an ``alter_table`` on the condition that it still has the value that was read.

HMS replaces a whole table by an alter. So each swap starts from the table as it is read right before the alter, and
whatever must not get lost lives in Iceberg's metadata.

Where the server ignores the condition
    The probe (``hms/probe.py``) finds out before the first swap. Then the swap is made under the EXCLUSIVE lock that
    unmodified writers take, too, whatever the lock manager is; the lock and the pointer are checked right before the
    alter and right after. What no client can prevent on such a server:

    1. We send the alter; it is delayed on its way.   2. Our lock is taken for dead, somebody else commits.
    3. The alter arrives and is carried out: the other's commit is gone from the table.

Beside writers that know nothing of us
    With the `hms` lock manager we hold the lock that they take, too. A table whose writers lock elsewhere says so
    (``declaration``), and is guarded against them (``locks/hms/guard``), unless the server ignores the condition.
    Whatever slips through is noticed at the next commit of any client, by what the lock service remembers; with `hms`
    and `none`, which remember nothing, at the next load or commit of a client that knew what was overwritten.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import HIVE2_COMPATIBLE, HiveCatalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from pyiceberg.utils.properties import property_as_bool

from commit_coord.catalog import declaration, hive_table
from commit_coord.catalog.base import CoordinatedCatalog, NoSuchName
from commit_coord.catalog.declaration import COMMON_LOCK
from commit_coord.catalog.hive_table import METADATA_LOCATION, TABLE_TYPE
from commit_coord.catalog.protection import Protection
from commit_coord.config import configure
from commit_coord.errors import (
    CommitStateUnknown,
    ConfigError,
    LockError,
    LockLost,
    LockRefused,
    LockServiceUnavailable,
    MetastoreUnavailable,
)
from commit_coord.events import PhaseChange
from commit_coord.hms.calls import FailedOver
from commit_coord.hms.client import MetastoreClient, client_of
from commit_coord.hms.connection import (
    AlreadyExists,
    InvalidObject,
    InvalidOperation,
    LostReply,
    MetaError,
    NoSuchObject,
    ServerFailed,
)
from commit_coord.hms.probe import Capabilities, CompareAndSet, Probe, assumed
from commit_coord.iceberg.attempt import table_name
from commit_coord.interrupts import to_its_end
from commit_coord.locks.base import Lease, LockManager
from commit_coord.locks.hms.guard import HmsGuards
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.migration.manager import MigratingLease, MigratingLockManager
from commit_coord.locks.none import NoneLockManager
from commit_coord.model import LockEntry, LockMode, LockRequest, LockScope, Resource
from commit_coord.process import this_owner
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.migration import LOCK_EPOCH, LOCK_IMPL, LOCK_PHASE, MIGRATING, Phase, State

logger = logging.getLogger(__name__)

_MODIFIED = "The table has been modified"
"""How a server refuses a swap whose condition does not hold. Source: ``HiveAlterHandler``, ``ObjectStore``."""

_INCOMPATIBLE = "types incompatible with the existing columns"

_TRIES = 10
"""Of a creation whose answer got lost, and of a swap that meets one server after the other."""

_AGAIN = Backoff(initial_ms=50, maximum_ms=2_000)


def folded(*names: str) -> tuple[str, ...]:
    """Return the names of a database, and of what is in it, as the metastore keeps them: in lower case.

    The only place of the catalog that folds. ``MetastoreClient`` folds what it sends, for callers that know of none.
    """
    return tuple(name.lower() for name in names)


class OperationsHold(LockRefused):
    """The phase of a table can't be changed yet: operation locks stand where nobody would see them any more."""


class _Tables(HiveCatalog):
    """PyIceberg's ``HiveCatalog`` on our client, and what it would do to tables beside commits, made safe."""

    metastore: MetastoreClient

    def _create_hive_client(self, properties: dict[str, str]) -> Any:  # type: ignore[override]
        return self.metastore

    @staticmethod
    def identifier_to_database(identifier: str | Identifier, err: Any = ValueError) -> str:
        """Return the database, in the metastore's spelling."""
        return folded(Catalog.identifier_to_database(identifier, err))[0]

    @staticmethod
    def identifier_to_database_and_table(identifier: str | Identifier, err: Any = ValueError) -> tuple[str, str]:
        """Return database and table, in the metastore's spelling."""
        database, table = folded(*Catalog.identifier_to_database_and_table(identifier, err))
        return database, table

    def _convert_hive_into_iceberg(self, table: Any) -> Table:
        return self.load_table((table.dbName, table.tableName))

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Rename the table as it is at this moment: with a commit that nobody latched, too."""
        old = self.identifier_to_database_and_table(from_identifier, NoSuchTableError)
        new = self.identifier_to_database_and_table(to_identifier)
        self._rename(old, new)
        self._forget(old)
        table = self.load_table(new)
        self._guard_new(new, table.metadata_location)
        return table

    def drop_table(self, identifier: str | Identifier) -> None:
        """Drop the table, if it is one of Iceberg's."""
        table = self.identifier_to_database_and_table(identifier, NoSuchTableError)
        found = self._find(table)
        if found is None:
            raise NoSuchTableError(f"Table does not exist: {table_name(table)}")
        self._refuse_other_locks(table, found)
        super().drop_table(identifier)
        self._forget(table)

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """Return the Iceberg tables of a namespace.

        Raises:
            NoSuchNamespaceError: There is none of that name.
        """
        found = super().list_tables(namespace)
        if not found:
            self.load_namespace_properties(namespace)
        return found

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """Return all namespaces; none below another: the metastore has one level.

        Raises:
            NoSuchNamespaceError: *namespace* does not exist.
        """
        if namespace:
            self.load_namespace_properties(namespace)
        return super().list_namespaces(namespace)

    @abstractmethod
    def _find(self, table: tuple[str, ...]) -> Any: ...

    @abstractmethod
    def _refuse_other_locks(self, table: tuple[str, ...], found: Any) -> None: ...

    @abstractmethod
    def _forget(self, table: tuple[str, ...]) -> None: ...

    @abstractmethod
    def _guard_new(self, table: tuple[str, ...], location: str) -> None: ...

    @abstractmethod
    def _rename(self, old: tuple[str, str], new: tuple[str, str]) -> None: ...


class CoordinatedHiveCatalog(CoordinatedCatalog, _Tables):
    """PyIceberg's ``HiveCatalog`` with coordinated commits.

    Args:
        name: The catalog; on one metastore every name means the same tables and locks.
        properties: See ``docs/configuration.md``; what the environment and ``.pyiceberg.yaml`` say is merged in.

    Raises:
        ConfigError: A setting is unknown or malformed.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        configuration = configure(name, properties)
        settings = configuration.settings
        self.metastore = client_of(configuration.properties, timeout_ms=settings.hive_client_timeout_ms)
        if settings.lock_impl == HmsLockManager.name and settings.lock_uri == configuration.properties["uri"]:
            settings = dataclasses.replace(settings, lock_uri=self.metastore.service)
            configuration = dataclasses.replace(configuration, settings=settings)
        self._probe = Probe(self.metastore, assumed(settings.hive_compare_and_set))
        self._warned: set[str] = set()
        self._hms_locks: HmsLockManager | None = None
        self._in_doubt: set[str] = set()
        """What was, or may have been, swapped in while the common lock was lost."""
        HiveCatalog.__init__(self, name, **configuration.properties)
        self._hive2 = property_as_bool(self.properties, HIVE2_COMPATIBLE, False)
        self._coordinate(configuration, self)
        self._overwrites = self.coordinator.overwrites
        self._guards: HmsGuards | None = None
        self._guarded_impl = settings.lock_impl
        """Tables are guarded that declare this lock manager."""
        if isinstance(self.locks, MigratingLockManager):
            self._guarded_impl = Phase.ZOOKEEPER.lock_impl
            self.locks.look = self._state
            self.locks.unguard = self._sweep_guard
            self.locks.moved = lambda table, _: self._look_for_guard(table.path)
        if settings.hive_guard and settings.lock_impl not in (*COMMON_LOCK, NoneLockManager.name):
            self._guards = HmsGuards(
                self.metastore,
                statement=f"the writers lock in {self._guarded_impl}",
                interval_ms=settings.lock_heartbeat_timeout_ms,
                clock=self.coordinator.clock,
                wanted=self._is_ours,
                left=self._is_left,
            )

    def _lock_space(self) -> str:
        # Clients may call this catalog what they like: on one metastore, one name is one table.
        return ""

    def _lock_options(self) -> dict[str, Any]:
        return {"metastore": self.metastore.service} if self.settings.lock_impl == MIGRATING else {}

    def capabilities(self) -> Capabilities:
        """Return what the metastore in use can do; warn once for each server that can't compare and set.

        Raises:
            MetastoreUnavailable: No server could be asked.
        """
        found = self._probe.capabilities()
        if found.compare_and_set is not CompareAndSet.HONOURED and found.server not in self._warned:
            self._warned.add(found.server)
            logger.warning(
                "the metastore %s (version %s) can't compare and set (%s): commits hold its lock and check the "
                "table before and after; a writer that stalls past its lock can still overwrite one. "
                "HIVE-26882 and HIVE-28121 mend it",
                found.server,
                found.version,
                found.compare_and_set,
            )
        return found

    @staticmethod
    def _table_identifier(
        identifier: str | Identifier, error: type[ValueError] | type[NoSuchNamespaceError] = ValueError
    ) -> Identifier:
        """Return database and table, in the metastore's spelling: it folds names to lower case."""
        database, table = Catalog.identifier_to_database_and_table(identifier, NoSuchName)
        if not database or not table:
            raise NoSuchName(f"a table needs a name on every level: {identifier!r}")
        return folded(database, table)

    def spelled(self, resource: Resource) -> Resource:
        """See :meth:`CoordinatedCatalog.spelled`: names are folded, values of partitions are not."""
        names, levels = resource.path[:2], [level.partition("=") for level in resource.path[2:]]
        return Resource((*folded(*names), *(folded(key)[0] + equals + value for key, equals, value in levels)))

    # The pointer store.

    def pointer(self, table: tuple[str, ...]) -> str | None:
        """Return the metadata location of *table*, None when there is no such table.

        Raises:
            NoSuchIcebergTableError: There is something of that name that is no Iceberg table.
        """
        found = self._find(table)
        return None if found is None else found.parameters[METADATA_LOCATION]

    def swap(self, table: tuple[str, ...], base: str | None, location: str) -> SwapResult:
        """Set the pointer from *base* to *location*; with no base, create the table.

        A refusal because the table "has been modified" is LOST_REPLY too: servers repeat what their database did not
        answer, and then meet their own change.
        """
        if base is None:
            result = self._create(self._new_table(table, location), location)
            if result is SwapResult.SWAPPED:
                self._guard_new(table, location)
            return result
        self._overwrites.check(table, base)
        for _ in range(_TRIES):
            able = self.capabilities()
            try:
                if able.compare_and_set is CompareAndSet.HONOURED:
                    self._guard(table, location, base)
                    result = self._compare_and_set(table, base, location, able.server)
                else:
                    result = self._check_and_set(table, base, location, able.server)
            except FailedOver:
                continue  # Nothing was sent; what the other server can do is another question.
            if result is SwapResult.SWAPPED:
                self._overwrites.landed(table, location)
            if result is not SwapResult.MOVED and self._is_handed_back(base, location):
                self._unguard(table)
            return result
        raise FailedOver("the metastores keep failing over", uris=self.metastore.addresses)

    # Beside writers that know nothing of us.

    def _properties(
        self, table: tuple[str, ...], before: Mapping[str, str], after: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the properties *after* with the lock manager that *table*'s writers use; see ``declaration``.

        Raises:
            ConfigError: They use another one than this catalog.
        """
        after = self._moved(table, before, after)
        try:
            return declaration.successor(
                before,
                after,
                table=table_name(table),
                impl=self._impl(before or after),
                compares=lambda: self.capabilities().compare_and_set is CompareAndSet.HONOURED,
            )
        except ConfigError:
            if before.get(LOCK_IMPL) in COMMON_LOCK:
                self._unguard(table)  # whoever handed the table back may have been killed before it could do so
            raise

    def _declared(self, location: str) -> str | None:
        return self.coordinator.read(location).properties.get(LOCK_IMPL)

    def _is_handed_back(self, base: str, location: str) -> bool:
        return self._declared(location) in COMMON_LOCK and self._declared(base) not in COMMON_LOCK

    def _impl(self, properties: Mapping[str, str]) -> str:
        """Return as which lock manager we write to a table with *properties*."""
        return State.of(properties).phase.lock_impl if self.settings.lock_impl == MIGRATING else self._guarded_impl

    def _moved(self, table: tuple[str, ...], before: Mapping[str, str], after: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties *after*, of a new table in its database's phase; asked under the latch.

        Raises:
            ConfigError: They change the phase by other means than a migration's, or it can't be changed now.
        """
        locks = self.locks if isinstance(self.locks, MigratingLockManager) else None
        if not before:
            phase = self.phase_of_new(table[0]) if locks is not None else Phase.HMS
            return {**after, **(State(phase=phase, epoch=0).changed_to(phase) if phase is not Phase.HMS else {})}
        if all(before.get(key) == after.get(key) for key in (LOCK_PHASE, LOCK_EPOCH)):
            return dict(after)
        if locks is None or not locks.is_changing:
            raise ConfigError(
                "the phase of a table is changed by `commit-coord migrate` alone",
                table=table_name(table),
                key=LOCK_PHASE,
                value=after.get(LOCK_PHASE),
                accepted=before.get(LOCK_PHASE),
            )
        phase = State.of(after).phase
        if phase is not Phase.HMS and self.capabilities().compare_and_set is not CompareAndSet.HONOURED:
            raise ConfigError(
                "the metastore does not compare and set, so nothing but its lock keeps commits from being overwritten",
                table=table_name(table),
                server=self.capabilities().server,
                accepted="a metastore with HIVE-26882 and HIVE-28121",
            )
        left = locks.one_sided(Resource.table(table), phase)
        if left:
            raise OperationsHold(
                "operations hold locks where they would not be seen any more",
                table=table_name(table),
                phase=phase,
                locks=", ".join(f"{entry.mode.letter} {entry.resource} by {entry.owner}" for entry in left[:3]),
                more=len(left) - 3 if len(left) > 3 else None,
            )
        return dict(after)

    def phase_of_new(self, database: str) -> Phase:
        """Return the phase of tables that are made in *database*."""
        try:
            said = (self.metastore.get_database(database).parameters or {}).get(LOCK_PHASE, "")
        except NoSuchObject:
            return Phase.HMS
        return Phase(said) if said else Phase.HMS

    def tell_phase_change(self, event: PhaseChange) -> None:
        """Write *event* down, and tell who listens."""
        self._audit.changed(event)
        self.events.emit(event)

    def _state(self, table: Resource) -> State:
        """Return the state of *table* as it is now; of one that is not there, as it would be made."""
        try:
            metadata, _ = self.coordinator.load(table.path)
        except NoSuchIcebergTableError:
            return State(phase=Phase.HMS, epoch=0)  # whatever asks for it meets the same error
        except NoSuchTableError:
            return State(phase=self.phase_of_new(table.path[0]), epoch=0)
        return State.of(metadata.properties)

    def _look_for_guard(self, table: tuple[str, ...]) -> None:
        if self._guards is not None:
            self._guards.forget(table)

    def _sweep_guard(self, table: Resource) -> bool:
        """Remove the guards of *table*, unless it declares a lock manager between which and ours it does not move."""
        declared = self.coordinator.load(table.path)[0].properties.get(LOCK_IMPL)
        if declared not in (None, *(phase.lock_impl for phase in Phase)):
            return False
        self._unguard(table.path)
        return True

    def stand_guard(self, table: tuple[str, ...]) -> None:
        """Guard *table*, whose writers lock in ZooKeeper. Call it under ZooKeeper's latch.

        Raises:
            LockError: A writer kept the metastore's lock for longer than ``lock.acquire-timeout-ms``, or there are
                no locks.
        """
        if self._guards is not None:
            deadline = self.coordinator.clock.now() + self.settings.lock_acquire_timeout_ms / 1000
            self._guards.stand(table, deadline=deadline)

    def _guard(self, table: tuple[str, ...], location: str, base: str | None = None) -> None:
        """See to it that *table* is guarded, if what is, or is about to be, published says that it has to be."""
        if self._guards is None or self._guarded_impl not in (
            self._declared(location),
            self._declared(base) if base is not None else None,
        ):
            return
        own = self._own_hms()
        if own is not None and own.latch_of(Resource.table(table)) is not None:
            return  # We hold the lock for which the guard would wait, so nobody else does: the phase is being changed.
        self.stand_guard(table)

    def _guard_new(self, table: tuple[str, ...], location: str) -> None:
        """Guard a table that has this name from now on; if that fails, its next commit does it."""
        if self._guards is None:
            return
        try:
            if self.capabilities().compare_and_set is CompareAndSet.HONOURED:
                self._guard(table, location)
        except (LockError, MetastoreUnavailable):
            logger.warning("%s could not be guarded; its next commit tries again", table_name(table), exc_info=True)

    def _unguard(self, table: tuple[str, ...]) -> None:
        if self._guards is not None:
            try:
                self._guards.remove(table)
            except LockServiceUnavailable:
                logger.warning("the guard of %s could not be removed; `commit-coord locks` shows it", table_name(table))

    def _is_ours(self, table: tuple[str, ...]) -> bool:
        """Return whether *table* is there, and its writers use our lock manager by what the metastore shows of it."""
        try:
            found = self._find(table)
        except NoSuchIcebergTableError:
            return False
        return found is not None and found.parameters.get(LOCK_IMPL) == self._guarded_impl

    def _is_left(self, table: tuple[str, ...]) -> bool | None:
        """Return whether a guard of *table* is left behind, as :class:`HmsGuards` asks.

        A table that can't be read is there: whatever is wrong with it is no reason to remove what protects it.
        """
        try:
            return self._looked_at(table)
        except Exception:
            logger.warning("%s can't be read, so its guard stays", table_name(table), exc_info=True)
            return False

    def _looked_at(self, table: tuple[str, ...]) -> bool | None:
        try:
            found = self._find(table)
        except NoSuchIcebergTableError:
            return True
        if found is None:
            return True
        if found.parameters.get(LOCK_IMPL) == self._guarded_impl:
            return False
        # What the metastore shows may have been reverted by a writer that knows nothing of it; the metadata was not.
        return False if self._declared(found.parameters[METADATA_LOCATION]) == self._guarded_impl else None

    def is_left(self, entry: LockEntry) -> bool:
        """See :meth:`CoordinatedCatalog.is_left`: a guard on a name that has no Iceberg table."""
        return entry.guard and len(entry.resource.path) == 2 and self._is_left(entry.resource.path) is True

    def unlock(
        self, *, request_id: str | None = None, resource: Resource | None = None, why: str = ""
    ) -> Sequence[LockEntry]:
        """See :meth:`CoordinatedCatalog.unlock`; a guard is freed under the name of a table that is gone, too."""
        freed = list(super().unlock(request_id=request_id, resource=resource, why=why))
        if self._guards is not None and resource is not None:
            freed += self._free_guards(self._left_guards(self.spelled(resource)), "unlock", why)
        return freed

    def reap(self, *, dry_run: bool = False, why: str = "") -> Sequence[LockEntry]:
        """See :meth:`CoordinatedCatalog.reap`; also the guards of tables that are gone."""
        found = list(super().reap(dry_run=dry_run, why=why))
        if self._guards is None:
            return found
        left = self._left_guards()
        return [*found, *(left if dry_run else self._free_guards(left, "reap", why))]

    def _left_guards(self, on: Resource | None = None) -> list[LockEntry]:
        """Return the guards that are left behind, on exactly *on* or everywhere: each costs a look at its table."""
        listed = self._metastore_locks().locks(on, scope=LockScope.COMMIT)
        return [entry for entry in listed if on in (None, entry.resource) and self.is_left(entry)]

    def _free_guards(self, guards: Sequence[LockEntry], how: str, why: str) -> list[LockEntry]:
        freed = [one for guard in guards for one in self._metastore_locks().unlock(request_id=guard.request_id)]
        self._forced(how, freed, why)
        return freed

    def _refuse_other_locks(self, table: tuple[str, ...], found: Any) -> None:
        declared, own = found.parameters.get(LOCK_IMPL), self._impl(found.parameters)
        if declared not in (None, own):
            raise declaration.other_lock_manager(table_name(table), declared, own)

    def show_locks(self, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`CoordinatedCatalog.show_locks`; where tables are guarded, with what meets the guards."""
        found = super().show_locks(resource)
        if self._guards is None or self._own_hms() is not None:
            return found
        return [*found, *self._metastore_locks().locks(self._spelled(resource), scope=LockScope.COMMIT)]

    def lock_pages(self, resource: Resource | None = None) -> Iterator[Sequence[LockEntry]]:
        """See :meth:`CoordinatedCatalog.lock_pages`; what meets the guards comes last."""
        yield from super().lock_pages(resource)
        if self._guards is not None and self._own_hms() is None:
            yield from self._metastore_locks().pages(self._spelled(resource), scope=LockScope.COMMIT)

    def _lock_managers(self) -> Sequence[LockManager]:
        """Return also the metastore's locks where tables are guarded; a guard is freed by its request id alone."""
        if self._guards is None or self._own_hms() is not None:
            return [self.locks]
        return [self.locks, self._metastore_locks()]

    def protection(self, identifier: str | Identifier) -> Protection:
        """Return what keeps the commits of a table from being overwritten by writers that know nothing of us.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        table = self._table_identifier(identifier)
        metadata, _ = self.coordinator.load(table)
        entries = self._metastore_locks().locks(Resource.table(table), scope=LockScope.COMMIT)
        return Protection(
            table=table_name(table),
            properties=metadata.properties,
            lock_impl=self._impl(metadata.properties),
            compare_and_set=self.capabilities().compare_and_set,
            guard=next((entry for entry in entries if entry.guard), None),
        )

    def adopt_locks(self, identifier: str | Identifier) -> str | None:
        """Declare this catalog's lock manager as the one that a table's writers use; return what it was before.

        Call it when every process that writes to the table with the other one has been stopped.

        Raises:
            NoSuchTableError: There is none of that name.
            CommitError: As any commit.
        """
        table = self._table_identifier(identifier)
        chosen = self._impl(self.coordinator.load(table)[0].properties)
        if chosen in COMMON_LOCK:
            # Our own latch would wait for it.
            for entry in self._metastore_locks().locks(Resource.table(table), scope=LockScope.COMMIT):
                if entry.guard:
                    self._metastore_locks().unlock(request_id=entry.request_id)
        loaded = self.load_table(table)
        before = loaded.properties.get(LOCK_IMPL)
        with loaded.transaction() as tx:
            tx.set_properties({LOCK_IMPL: chosen})
        return before

    def _forget(self, table: tuple[str, ...]) -> None:
        """Leave nothing behind of a table that is gone."""
        self._overwrites.forget(table)
        self._unguard(table)

    def _compare_and_set(self, table: tuple[str, ...], base: str, location: str, server: str) -> SwapResult:
        # Read again, whatever was read under the latch: the alter replaces all parameters, and sets back what others
        # have changed since. The condition is on the pointer alone, so between this call and the next that remains.
        found = self._find(table)
        if found is None:
            raise NoSuchTableError(f"Table does not exist: {table_name(table)}")
        if found.parameters[METADATA_LOCATION] != base:
            return SwapResult.MOVED
        altered = self._altered(found, base, location)
        return self._alter(table, altered, (METADATA_LOCATION, base), base, server)

    def _check_and_set(self, table: tuple[str, ...], base: str, location: str, server: str) -> SwapResult:
        """Swap on a server that ignores the condition; see the module."""
        with self._common_lock(table) as lease:
            lease.ensure_active(0)
            found = self._find(table)
            if found is None:
                raise NoSuchTableError(f"Table does not exist: {table_name(table)}")
            if found.parameters[METADATA_LOCATION] != base:
                return SwapResult.MOVED
            result = self._alter(table, self._altered(found, base, location), None, base, server)
            if result is SwapResult.SWAPPED:
                try:
                    lease.ensure_active(0)
                    result = SwapResult.SWAPPED if self.pointer(table) == location else SwapResult.LOST_REPLY
                except Exception:
                    # It was sent: whatever fails now proves nothing.
                    logger.warning("a swap of %s could not be looked after", table_name(table), exc_info=True)
                    result = SwapResult.LOST_REPLY
            if result is SwapResult.LOST_REPLY:
                self._in_doubt.add(location)
            return result

    def drain(self, table: tuple[str, ...], location: str, lease: Lease) -> bool:
        """See :class:`~commit_coord.coordinator.PointerStore`: unmodified writers take the common lock alone."""
        if isinstance(self.locks, HmsLockManager) or (
            isinstance(lease, MigratingLease) and Phase.ZOOKEEPER not in lease.phases.values()
        ):
            try:
                lease.ensure_active()
            except LockLost:
                self._in_doubt.add(location)
        if location not in self._in_doubt:
            return False
        with self._common_lock(table):
            self._in_doubt.discard(location)
        return True

    def _common_lock(self, table: tuple[str, ...]) -> AbstractContextManager[Lease]:
        """Return the EXCLUSIVE lock that unmodified writers take: the latch itself, or one more for the swap."""
        own = self._own_hms()
        if own is not None:
            held = own.latch_of(Resource.table(table))
            if held is not None:
                return nullcontext(held)
        request = LockRequest.of(
            LockScope.COMMIT,
            {Resource.table(table): LockMode.EXCLUSIVE},
            owner=this_owner("swap"),
            request_id=str(uuid.uuid4()),
        )
        deadline = self.coordinator.clock.now() + self.settings.lock_acquire_timeout_ms / 1000
        return self._metastore_locks().acquire(request, deadline=deadline)

    def _metastore_locks(self) -> HmsLockManager:
        """Return a lock manager of this metastore: our own, or one more beside it."""
        if (own := self._own_hms()) is not None:
            return own
        if self._hms_locks is None:
            self._hms_locks = HmsLockManager(self.metastore.service, settings=self._lock_settings, events=self.events)
        return self._hms_locks

    def _own_hms(self) -> HmsLockManager | None:
        """Return the lock manager of this metastore that our latches come from, None where they do not."""
        if isinstance(self.locks, MigratingLockManager):
            return self.locks.hms
        return self.locks if isinstance(self.locks, HmsLockManager) else None

    def _alter(
        self,
        table: tuple[str, ...],
        altered: Any,
        expected: tuple[str, str] | None,
        base: str,
        server: str,
    ) -> SwapResult:
        """Send an alter and say what its answer proves.

        One without a condition is seen to its end:

        1. We hold the lock and send the change.   2. Ctrl-C: we give the lock back.   3. Somebody else commits.
        4. The change, which was still under way, is carried out over theirs.
        """
        *_, name = table
        send = partial(self.metastore.alter_table, table[0], name, altered, expected=expected, server=server)
        refusals: list[str] = []
        while True:
            try:
                send() if expected is not None else to_its_end(send)
            except LostReply:
                logger.warning("the reply to a swap of %s was lost", table_name(table), exc_info=True)
                return SwapResult.LOST_REPLY
            except NoSuchObject as error:
                raise NoSuchTableError(f"Table does not exist: {table_name(table)}") from error
            except (MetaError, InvalidOperation, ServerFailed) as error:
                if _MODIFIED in str(error) or not self._still(table, base):
                    return SwapResult.LOST_REPLY
                if _INCOMPATIBLE in str(error):
                    raise _column_change_refused(error) from error
                # Answered with a failure, and nothing changed. Yet the server's database may have carried out what it
                # did not answer to the server, a moment later: only the same answer to the same call is proof.
                refusals.append(str(error))
                if len(refusals) > 1:
                    if (reason := hive_table.value_refused(altered.parameters, str(error))) is not None:
                        raise InvalidOperation(reason) from error
                    raise
                self.coordinator.clock.sleep(next_wait(_AGAIN, 0, self.coordinator.clock.random()))
            else:
                return SwapResult.SWAPPED

    def _still(self, table: tuple[str, ...], base: str) -> bool:
        """Return whether the pointer is seen to be *base*."""
        try:
            return self.pointer(table) == base
        except Exception:
            logger.warning("the pointer of %s could not be read", table_name(table), exc_info=True)
            return False

    def _create(self, new: Any, location: str) -> SwapResult:
        table = (new.dbName, new.tableName)
        try:
            self.metastore.create_table(new)
        except LostReply:
            logger.warning("the reply to the creation of %s was lost", table_name(table), exc_info=True)
            return SwapResult.LOST_REPLY
        except AlreadyExists:
            return SwapResult.SWAPPED if self.pointer(table) == location else SwapResult.LOST_REPLY
        except InvalidObject as error:
            if table[0] not in self.metastore.get_all_databases():
                raise NoSuchNamespaceError(f"Namespace does not exist: {table[0]}") from error
            raise
        except (MetaError, ServerFailed) as error:
            if self.pointer(table) == location:
                return SwapResult.SWAPPED
            reason = hive_table.folder_refused(new.sd.location, str(error))
            reason = reason or hive_table.value_refused(new.parameters, str(error))
            if reason is not None:
                raise InvalidOperation(reason) from error
            raise
        return SwapResult.SWAPPED

    def _find(self, table: tuple[str, ...]) -> Any:
        """Return the metastore's table, None when there is none."""
        database, name = table
        try:
            found = self.metastore.get_table(database, name)
        except NoSuchObject:
            return None
        kind = (found.parameters or {}).get(TABLE_TYPE, "")
        if kind.lower() != "iceberg" or not found.parameters.get(METADATA_LOCATION):
            raise NoSuchIcebergTableError(
                f"{database}.{name} is no Iceberg table: {TABLE_TYPE}={kind!r}, tableType={found.tableType!r}, "
                f"{METADATA_LOCATION}={found.parameters.get(METADATA_LOCATION)!r}"
            )
        return found

    def _altered(self, found: Any, base: str, location: str) -> Any:
        metadata = self.coordinator.read(location)
        found.parameters = hive_table.parameters(
            found.parameters,
            location,
            metadata,
            base_location=base,
            base=self.coordinator.read(base),
            longest=self.settings.hive_table_property_max_size,
        )
        found.sd = hive_table.storage_descriptor(found.sd, metadata, hive2_compatible=self._hive2)
        return found

    def _new_table(self, table: tuple[str, ...], location: str) -> Any:
        metadata = self.coordinator.read(location)
        io = self.file_io(metadata.properties, location)
        return self._convert_iceberg_into_hive(Table(table, metadata, location, io, self))

    def _convert_iceberg_into_hive(self, table: Table) -> Any:
        made = super()._convert_iceberg_into_hive(table)
        longest = self.settings.hive_table_property_max_size
        made.parameters = hive_table.parameters(None, table.metadata_location, table.metadata, longest=longest)
        made.sd = hive_table.storage_descriptor(None, table.metadata, hive2_compatible=self._hive2)
        return made

    # Tables.

    def _create_hive_table(self, open_client: Any, hive_table: Any) -> None:
        """Create a table that PyIceberg's code made up: again, until it is known to exist or not.

        Raises:
            TableAlreadyExistsError: There is one, and it is not this.
            CommitStateUnknown: It could not be found out; its metadata file is kept.
        """
        table, location = (hive_table.dbName, hive_table.tableName), hive_table.parameters[METADATA_LOCATION]
        self._create_surely(hive_table, table, location)
        self._guard_new(table, location)

    def _create_surely(self, hive_table: Any, table: tuple[str, str], location: str) -> None:
        clock = self.coordinator.clock
        for check in range(_TRIES):
            try:
                if self._create(hive_table, location) is SwapResult.SWAPPED:
                    return
                if (pointer := self.pointer(table)) is not None:
                    if pointer == location:
                        return
                    raise TableAlreadyExistsError(f"Table {table_name(table)} already exists")
            except LostReply:
                logger.warning("the creation of %s could not be looked up yet", table_name(table), exc_info=True)
            clock.sleep(next_wait(_AGAIN, check, clock.random()))
        self._writing.file = None
        raise CommitStateUnknown(
            "whether the table was created could not be found out; its metadata file is kept",
            table=table_name(table),
            location=location,
        )

    def _rename(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        """Move a table to another name, on the condition that its pointer is the one that goes along."""
        clock = self.coordinator.clock
        for check in range(_TRIES):
            able = self.capabilities()
            found = self._find(old)
            if found is None:
                raise NoSuchTableError(f"Table does not exist: {table_name(old)}")
            self._refuse_other_locks(old, found)
            self._refuse_existing(new)
            location = found.parameters[METADATA_LOCATION]
            found.dbName, found.tableName = new
            expected = (METADATA_LOCATION, location) if able.compare_and_set is CompareAndSet.HONOURED else None
            try:
                self.metastore.alter_table(*old, found, expected=expected, server=able.server)
            except (FailedOver, MetaError, InvalidOperation, ServerFailed, LostReply) as error:
                if new[0] not in self.metastore.get_all_databases():
                    raise NoSuchNamespaceError(f"Namespace does not exist: {new[0]}") from error
                if self.pointer(new) == location:
                    return
                if not isinstance(error, FailedOver | LostReply) and _MODIFIED not in str(error):
                    raise
                logger.warning("the rename of %s is tried again", table_name(old), exc_info=True)
            else:
                return
            clock.sleep(next_wait(_AGAIN, check, clock.random()))
        raise CommitStateUnknown(
            "whether the table was renamed could not be found out", table=table_name(old), to=table_name(new)
        )

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return the table as it is now; its commits are coordinated.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        table = super().load_table(identifier)
        self._overwrites.loaded(tuple(table.name()), table.metadata_location)
        if isinstance(self.locks, MigratingLockManager):
            self.locks.seen(Resource.table(table.name()), State.of(table.properties))
        return table

    def close(self) -> None:
        """Give back every lock of this client and close every connection, also where one fails to close."""
        with closing(self.metastore), ExitStack() as ending:
            for locks in (self._hms_locks, self._guards):
                if locks is not None:
                    ending.callback(locks.close)
            super().close()


def _column_change_refused(error: Exception) -> InvalidOperation:
    return InvalidOperation(
        "the metastore refuses the change of columns; set hive.metastore.disallow.incompatible.col.type.changes=false "
        f"on it, as Iceberg needs: {error}"
    )
