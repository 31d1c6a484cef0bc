"""Moves tables of one catalog from phase to phase."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from threading import Event
from typing import Protocol

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate
from pyiceberg.typedef import Identifier

from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.catalog.metastore.declarations import LOCK_ENABLED
from commit_coord.catalog.metastore.guards import Guards
from commit_coord.catalog.metastore.hive_table import TABLE_TYPE
from commit_coord.catalog.metastore.phases import OperationsHold, does_not_compare
from commit_coord.catalog.migration.results import Moved, Outcome, TableStatus, Verified
from commit_coord.catalog.migration.sightings import SeenWriters, Sighting, committed, watch
from commit_coord.coordinator import Coordinator
from commit_coord.errors import (
    CommitConflict,
    CommitCoordError,
    CommitNotApplied,
    CommitStateUnknown,
    ConfigError,
    LockError,
    MetastoreUnavailable,
)
from commit_coord.events import PhaseChange
from commit_coord.hms.probe import Capabilities, CompareAndSet
from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.interrupts import to_its_end
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.locks.migration.writers import Writer
from commit_coord.model import LockScope, Resource
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.migration import LOCK_EPOCH, LOCK_IMPL, LOCK_PHASE, MIGRATING, Phase, State

logger = logging.getLogger(__name__)

_TOGETHER = 4
"""Tables that are moved at one time."""

_TRIES = 5
"""Times that a step is begun anew, because another operator has changed the phase meanwhile."""


class MovableCatalog(Protocol):
    """The catalog of tables that move, as each move uses it."""

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the catalog."""
        ...

    @property
    def guards(self) -> Guards:
        """What sets and removes the guards of its tables."""
        ...

    def capabilities(self) -> Capabilities:
        """Return what the metastore in use can do.

        Raises:
            MetastoreUnavailable: No server could be asked.
        """
        ...

    def tell_phase_change(self, event: PhaseChange) -> None:
        """Record *event*, and pass it to the listeners."""
        ...


class TableMoves:
    """Moves tables of one catalog, one at a time.

    Args:
        catalog: Whose tables.
        locks: Its lock manager.
        why: For the audit log.
        host: Names this process, and its commits.
    """

    def __init__(
        self, catalog: MovableCatalog, locks: MigratingLockManager, *, why: str = "", host: Host = SYSTEM_HOST
    ) -> None:
        self._catalog, self._locks, self._why = catalog, locks, why
        self._clock, self._host = catalog.coordinator.clock, host

    def status(self, table: Identifier, seen: SeenWriters, *, window_s: float) -> TableStatus:
        """Return the status of *table*, with who committed to it in the last *window_s* seconds."""
        return self._status(table, seen, self._locks.writers.all(), window_s)

    def _status(self, table: Identifier, seen: SeenWriters, registry: Sequence[Writer], window_s: float) -> TableStatus:
        name = table_name(table)
        since_ms = self._clock.wall_ms() - round(window_s * 1000)
        metadata, _ = self._catalog.coordinator.load(table)
        return TableStatus(
            table=name,
            state=State.of(metadata.properties),
            sightings=seen.at(name, committed(metadata, name, since_ms=since_ms)),
            writers=[writer for writer in registry if name in writer.tables],
        )

    def move(
        self,
        table: Identifier,
        target: Phase,
        *,
        seen: SeenWriters | None = None,
        window_s: float = 0.0,
        force: bool = False,
        back: bool = True,
    ) -> Moved:
        """Bring *table* to *target* step by step; see :meth:`move_all`."""
        started, name = self._clock.now(), table_name(table)
        before: State | None = None
        after: State | None = None
        reached = ""

        def ended(outcome: Outcome, reason: str = "", waits_for: Sequence[Sighting] = ()) -> Moved:
            return Moved(
                table=name,
                before=before,
                after=after,
                outcome=outcome,
                reason=reason,
                waits_for=waits_for,
                took_ms=(self._clock.now() - started) * 1000,
            )

        try:
            after = before = self._state(table)
            if target is Phase.ZOOKEEPER and before.phase is Phase.HMS:
                return ended(Outcome.REFUSED, "it locks in the metastore alone: `migrate start` it first")
            if not back and list(Phase).index(target) < list(Phase).index(before.phase):
                target = before.phase
            tries = 0
            while (step := after.phase.toward(target)) is not None:
                if step is Phase.ZOOKEEPER and seen is not None and not force:
                    waits_for = self.status(table, seen, window_s=window_s).holds_up
                    if waits_for:
                        who = "; ".join(map(str, waits_for))
                        return ended(Outcome.WAITS, f"writers know only the metastore's lock: {who}", waits_for)
                try:
                    after = self._change(table, after, step)
                except CommitConflict as error:
                    tries += 1
                    if tries >= _TRIES:
                        return ended(Outcome.FAILED, str(error))
                    after = self._state(table)
            if after != before or after.phase is not Phase.HMS or before.epoch:
                reached = f"the table is in phase {after.phase}, but its guard is not seen to: "
                self._see_to_guard(table)
        except CommitStateUnknown:
            logger.warning("the outcome of a step of %s is not known", name, exc_info=True)
            after = None
            return ended(
                Outcome.UNKNOWN, f"it is not known whether it has come to phase {step}: repeat the command to go on"
            )
        except CommitCoordError as error:
            if isinstance(error.__cause__, OperationsHold):
                return ended(Outcome.WAITS, str(error.__cause__))
            outcome = Outcome.REFUSED if isinstance(error.__cause__, ConfigError) else Outcome.FAILED
            return ended(outcome, f"{reached}{error}")
        except Exception as error:  # one table must not end the others
            logger.warning("%s could not be moved", name, exc_info=True)
            return ended(Outcome.FAILED, f"{reached}{type(error).__name__}: {error}")
        return ended(Outcome.CHANGED if after != before else Outcome.THERE)

    def _state(self, table: Identifier) -> State:
        metadata, _ = self._catalog.coordinator.load(table)
        return self._seen(table, metadata)

    def _seen(self, table: Identifier, metadata: TableMetadata) -> State:
        state = State.of(metadata.properties)
        self._locks.beliefs.seen(Resource.table(table), state)
        return state

    def _change(self, table: Identifier, state: State, phase: Phase) -> State:
        """Bring *table* from *state* to *phase*, the next one; return its state then.

        Raises:
            CommitConflict: It is not in *state* any more.
            CommitError: As any commit; ``OperationsHold`` may be the cause.
        """
        metadata, location = self._catalog.coordinator.load(table)
        changes = state.changed_to(phase)
        attempt = Attempt(
            request_id=str(self._host.new_id()),
            table=table,
            table_uuid=str(metadata.table_uuid),
            base_location=location,
            updates=(SetPropertiesUpdate(updates=changes),),
            # Each of them is what it was, or this is refused: the epoch grows by one, even with two operators at work.
            properties_read={key: metadata.properties.get(key) for key in changes},
            changes_phase=True,
        )
        if State.of(metadata.properties) != state:
            raise CommitConflict(
                "nothing was changed: another process changed the phase of the table's move meanwhile",
                table=table_name(table),
            )
        self._catalog.capabilities()  # asked for under the locks, too; here it delays no writer
        self._tell(table, state, phase, "begun", self._why)
        stage, why = "unknown", "interrupted"
        try:
            (committed,) = self._catalog.coordinator.commit([attempt])
            stage, why = "done", self._why
        except Exception as error:
            stage, why = "refused" if isinstance(error, CommitNotApplied) else "unknown", str(error)
            raise
        finally:
            self._tell(table, state, phase, stage, why)
        return self._seen(table, committed.metadata)

    def _see_to_guard(self, table: Identifier) -> None:
        """Set the guard where the phase asks for it, and remove it elsewhere."""
        resource = Resource.table(table)
        deadline = self._clock.now() + self._locks.settings.acquire_timeout_ms / 1000
        with self._locks.sides.latched_in_zookeeper(resource, "guard", deadline=deadline):
            if self._state(table).phase is Phase.ZOOKEEPER:
                self._catalog.guards.place(table)
            elif any(entry.guard for entry in self._locks.hms.locks(resource, scope=LockScope.COMMIT)):
                self._catalog.guards.remove_unneeded(resource)

    def _tell(self, table: Identifier, state: State, phase: Phase, stage: str, why: str) -> None:
        self._catalog.tell_phase_change(
            PhaseChange(
                table=table_name(table),
                before=state.phase.value,
                after=phase.value,
                epoch=state.epoch + 1,
                stage=stage,
                by=self._host.owner(),
                at_ms=self._clock.wall_ms(),
                why=why,
            )
        )


class Migration(TableMoves):
    """Moves tables of a catalog on a metastore, and shows where each is.

    Args:
        catalog: Its lock manager is ``hms-to-zookeeper``.
        why: For the audit log.
        host: Names this process, and its commits.

    Raises:
        ConfigError: It is another one.
    """

    def __init__(self, catalog: CoordinatedHiveCatalog, *, why: str = "", host: Host = SYSTEM_HOST) -> None:
        if catalog.migrating is None:
            raise ConfigError(
                "this catalog can't move tables to another lock manager: its lock manager does not support all phases "
                "of a move",
                key="lock-impl",
                value=catalog.settings.lock_impl,
                accepted=MIGRATING,
            )
        super().__init__(catalog, catalog.migrating, why=why, host=host)
        self._hive = catalog

    # Which tables.

    def tables(self, patterns: Sequence[str]) -> list[Identifier]:
        """Return the Iceberg tables that *patterns* name: ``db.table``, ``db`` for all of it, ``*`` in either.

        Raises:
            NoSuchTableError: A pattern names none.
        """
        found: dict[Identifier, None] = {}
        databases = self._hive.metastore.get_all_databases()
        for pattern in patterns:
            database, _, name = pattern.lower().partition(".")
            chosen = [
                (one, table)
                for one in fnmatch.filter(databases, database)
                for table in fnmatch.filter(self._iceberg_tables(one), name or "*")
            ]
            if not chosen and not (_is_whole(pattern) and fnmatch.filter(databases, database)):
                raise NoSuchTableError(f"no Iceberg table is named {pattern}")
            found.update(dict.fromkeys(chosen))
        return sorted(found)

    def _iceberg_tables(self, database: str) -> list[str]:
        names = self._hive.metastore.get_all_tables(database)
        tables = self._hive.metastore.get_table_objects_by_name(database, names) if names else []
        return [
            table.tableName for table in tables if (table.parameters or {}).get(TABLE_TYPE, "").lower() == "iceberg"
        ]

    # Look.

    def watch(self, seconds: float) -> SeenWriters:
        """Watch the metastore's locks for *seconds*."""
        return watch(
            self._hive.metastore,
            self._locks.writers.all,
            self._clock,
            seconds=seconds,
            own=self._locks.writers.client,
        )

    def statuses(self, tables: Sequence[Identifier], seen: SeenWriters, *, window_s: float) -> list[TableStatus]:
        """Return the status of each of *tables*; of one that can't be read, the reason."""
        registry = self._locks.writers.all()
        found = []
        for table in tables:
            try:
                found.append(self._status(table, seen, registry, window_s))
            except (LockError, MetastoreUnavailable):
                raise  # the error does not depend on the table
            except Exception as error:  # noqa: BLE001 - one table must not hide the others
                found.append(TableStatus(table=table_name(table), state=None, problem=_unreadable(error)))
        return found

    def verify(self, table: Identifier) -> Verified:
        """Return whether *table* is as its phase asks for; that it can't be read is a problem of it."""
        try:
            return self._verified(table)
        except (LockError, MetastoreUnavailable):
            raise  # the error does not depend on the table
        except Exception as error:  # noqa: BLE001 - one table must not hide the others
            return Verified(table=table_name(table), state=None, problems=[_unreadable(error)])

    def _verified(self, table: Identifier) -> Verified:
        metadata, location = self._hive.coordinator.load(table)
        properties, state = metadata.properties, State.of(metadata.properties)
        shown = self._hive.metastore.get_table(*table).parameters
        protection = self._hive.protection(table)
        problems = []
        if LOCK_PHASE in properties and properties.get(LOCK_IMPL) != state.phase.lock_impl:
            problems.append(
                f"{LOCK_IMPL} is {properties.get(LOCK_IMPL)!r}: the phase asks for {state.phase.lock_impl!r}"
            )
        avoids_hms = properties.get(LOCK_ENABLED, "true").lower() == "false"
        if avoids_hms != (state.phase is Phase.ZOOKEEPER) and LOCK_PHASE in properties:
            wrong = (
                "configured to lock in the metastore" if not avoids_hms else "configured not to lock in the metastore"
            )
            problems.append(f"Java's writers are {wrong} ({LOCK_ENABLED}): set or remove the property")
        if shown["metadata_location"] == location:
            problems += [
                f"the metastore shows {key}={shown.get(key)!r} for {properties.get(key)!r}: the next commit mends it"
                for key in (LOCK_PHASE, LOCK_EPOCH, LOCK_IMPL)
                if shown.get(key) != properties.get(key)
            ]
        if state.phase is Phase.ZOOKEEPER and protection.guard is None and self._hive.settings.hive_guard:
            problems.append("there is no guard in the metastore: `migrate advance` sets it, as does the next commit")
        if state.phase is not Phase.ZOOKEEPER and protection.guard is not None:
            problems.append(
                "a guard was left in the metastore: `migrate abort` or `start` removes it, as does a writer"
            )
        if state.phase is not Phase.HMS and protection.compare_and_set is not CompareAndSet.HONOURED:
            problems.append("the metastore does not compare and set: go back with `migrate abort`")
        if left := self._locks.sides.one_sided(Resource.table(table), state.phase):
            held = ", ".join(f"{entry.resource} by {entry.owner}" for entry in left[:3])
            problems.append(f"operation locks are held in a lock service that the phase does not use: {held}")
        return Verified(table=table_name(table), state=state, problems=problems)

    # Move.

    def move_all(
        self,
        tables: Sequence[Identifier],
        target: Phase,
        *,
        seen: SeenWriters | None = None,
        window_s: float = 0.0,
        force: bool = False,
        back: bool = True,
        on_moved: Callable[[Moved], None] = lambda _: None,
    ) -> list[Moved]:
        """Move *tables* to phase *target*, a few at a time; return the result of each, in the order of *tables*.

        Args:
            tables: Which.
            target: Where to.
            seen: The writers that were seen in the lock service; without it, no writer stops the move of a table.
            window_s: How far back a table's history counts.
            force: Go on to ``zookeeper`` even if lock-only writers were seen.
            back: Whether tables that are further on go back; else they stay.
            on_moved: Called with each result, as soon as it is there, in the thread that has moved it.

        Raises:
            KeyboardInterrupt: The tables whose move had begun were moved first; *on_moved* knows them.
        """
        interrupted = Event()

        def moved(table: Identifier) -> list[Moved]:
            if interrupted.is_set():
                return []
            one = self.move(table, target, seen=seen, window_s=window_s, force=force, back=back)
            on_moved(one)
            return [one]

        def move() -> list[Moved]:
            with ThreadPoolExecutor(_TOGETHER) as pool:
                return list(chain.from_iterable(pool.map(moved, tables)))

        return to_its_end(move, on_interrupt=interrupted.set)

    # New tables.

    def set_defaults(
        self, patterns: Sequence[str], phase: Phase, *, on_set: Callable[[str], None] = lambda _: None
    ) -> None:
        """Have the tables to come of the databases that *patterns* name as a whole be made in *phase*.

        *on_set* is called with the name of each database that is changed. An unknown phase is replaced.

        Raises:
            ConfigError: The metastore does not compare and set, so no table may leave phase ``hms``.
        """
        databases = self._hive.metastore.get_all_databases()
        whole = [pattern.lower().partition(".")[0] for pattern in patterns if _is_whole(pattern)]
        for database in {one for pattern in whole for one in fnmatch.filter(databases, pattern)}:
            if phase is not Phase.HMS and not self._hive.swaps_are_conditional():
                raise does_not_compare(self._hive.servers, database=database)
            if self._default(database) is not phase:
                self._hive.update_namespace_properties(database, updates={LOCK_PHASE: phase.value})
                on_set(database)

    def _default(self, database: str) -> Phase | None:
        """Return the phase of the tables to come of *database*; None if it declares an unknown one."""
        try:
            return self._hive.phases.of_new(database)
        except ConfigError:
            return None


def _unreadable(error: Exception) -> str:
    return f"it can't be read: {type(error).__name__}: {error}; check whether it was dropped, and restore its metadata"


def _is_whole(pattern: str) -> bool:
    """Return whether *pattern* names whole databases."""
    return pattern.partition(".")[2] in ("", "*")
