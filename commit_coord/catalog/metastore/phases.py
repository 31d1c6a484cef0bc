"""In which phase each table is, and what may change it; see :mod:`commit_coord.protocol.migration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.catalog.metastore.declarations import other_lock_manager
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.errors import ConfigError, LockRefused
from commit_coord.hms.connection import NoSuchObject
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.model import Resource
from commit_coord.protocol.migration import LOCK_EPOCH, LOCK_IMPL, LOCK_PHASE, MIGRATING, Phase, State


class OperationsHold(LockRefused):
    """The phase of a name can't be changed yet: operation locks are held where no writer of the new phase looks."""


class Databases(Protocol):
    """A metastore as far as its databases go."""

    def get_database(self, name: str, /) -> Any:
        """Return what the metastore knows of a database.

        Raises:
            NoSuchObject: There is none of that name.
        """
        ...


class Phases:
    """The phases of one metastore's tables.

    Args:
        databases: Of the metastore; they say in which phase new tables are.
        metadata: Reads the tables' metadata, which says in which phase each is.
    """

    def __init__(self, databases: Databases, metadata: MetadataReader) -> None:
        self._databases, self._metadata = databases, metadata

    def of(self, table: Resource) -> State:
        """Return the state of *table* as it is now; of one that is not there, as it would be made."""
        try:
            metadata, _ = self._metadata.load(table.path)
        except NoSuchIcebergTableError:
            return State(phase=Phase.HMS, epoch=0)  # whatever asks for it meets the same error
        except NoSuchTableError:
            return State(phase=self.of_new(table.path[0]), epoch=0, is_free=True)
        return State.of(metadata.properties)

    def of_new(self, database: str) -> Phase:
        """Return the phase of tables that are made in *database*.

        Raises:
            ConfigError: The database declares a phase that this version does not know.
        """
        try:
            properties = self._databases.get_database(database).parameters or {}
        except NoSuchObject:
            return Phase.HMS
        refuse_unknown_default(properties, database=database)
        return Phase(properties.get(LOCK_PHASE) or Phase.HMS)


def refuse_unknown_default(properties: Mapping[str, str], *, database: str) -> None:
    """Return if *properties* of a database declare a known phase for its new tables, or none.

    Raises:
        ConfigError: They declare another one.
    """
    if (phase := properties.get(LOCK_PHASE)) and phase not in list(Phase):
        raise ConfigError(
            "unknown migration phase of the new tables of a database; `commit-coord migrate start`, `advance` or "
            f"`abort {database}` sets a known one",
            database=database,
            key=LOCK_PHASE,
            value=phase,
            accepted=", ".join(Phase),
        )


class PhaseChanges:
    """Which phase a commit may publish.

    Args:
        phases: Of new tables.
        servers: What the metastore's servers can do.
        locks: The lock manager that supports all phases; None if the catalog has another one and can't change phases.
    """

    def __init__(self, phases: Phases, servers: Servers, locks: MigratingLockManager | None) -> None:
        self._phases, self._servers, self._locks = phases, servers, locks

    def checked(
        self, table: Identifier, before: Mapping[str, str] | None, after: Mapping[str, Any], *, changes_phase: bool
    ) -> dict[str, Any]:
        """Return the properties *after*, of a new table in its database's phase; asked under the latch.

        Args:
            table: Whose.
            before: The head's; None for a new table.
            after: What a commit is about to publish.
            changes_phase: Whether that commit may change the phase.

        Raises:
            ConfigError: The properties change the phase outside of a migration, or it can't be changed now; or the
                table's writers use a lock manager between which and ours it does not move.
            OperationsHold: Operations hold locks that writers in the new phase would not check.
        """
        if before is None:
            return self._of_new(table, after)
        if self._locks is not None and changes_phase:
            if before.get(LOCK_IMPL) not in (None, *(phase.lock_impl for phase in Phase)):
                raise other_lock_manager(table_name(table), before[LOCK_IMPL], MIGRATING)
            self.refuse_unsafe(table, State.of(after).phase)
            return dict(after)
        for key in (LOCK_PHASE, LOCK_EPOCH, *((LOCK_IMPL,) if self._locks is not None else ())):
            # The first commit to a table declares its lock manager, and one of a table of another one may adopt it.
            accepted = (before.get(key), *((None, State.of(before).phase.lock_impl) if key == LOCK_IMPL else ()))
            if after.get(key) not in accepted:
                raise ConfigError(
                    "only `commit-coord migrate` can change the phase of a table, and the lock manager that it goes "
                    "with",
                    table=table_name(table),
                    key=key,
                    value=after.get(key),
                    accepted=before.get(key),
                )
        return dict(after)

    def _of_new(self, table: Identifier, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties of the new *table*, of which the caller has *given* some."""
        phase = self._phases.of_new(table[0]) if self._locks is not None else Phase.HMS
        made = State(phase=phase, epoch=0).changed_to(phase) if phase is not Phase.HMS else {}
        accepted = made if self._locks is None else {LOCK_IMPL: phase.lock_impl, **made}
        for key in (LOCK_PHASE, LOCK_EPOCH, *((LOCK_IMPL,) if self._locks is not None else ())):
            if given.get(key) not in (None, accepted.get(key)):
                raise ConfigError(
                    "a new table is in the phase of its database, which `commit-coord migrate` sets: leave the "
                    "property out",
                    table=table_name(table),
                    key=key,
                    value=given[key],
                    accepted=accepted.get(key),
                )
        self.refuse_unsafe(table, phase)
        return {**given, **made}

    def refuse_unsafe(self, table: Identifier, phase: Phase) -> None:
        """Return if *table* may be in *phase* from now on; asked under its latch. It may be there already, or be new.

        Raises:
            ConfigError: Only the metastore's lock prevents lost commits.
            OperationsHold: As :meth:`refuse_held`.
        """
        if self._locks is not None and phase is not Phase.HMS and not self._servers.compare_and_set():
            raise does_not_compare(self._servers, table=table_name(table))
        self.refuse_held(table, phase)

    def refuse_held(self, table: Identifier, phase: Phase) -> None:
        """Return if writers of *phase* see all operation locks on the name *table*, whatever table they were taken for.

        1. A job holds X on the name, in the metastore.   2. The table is dropped, and one in phase ``zookeeper`` gets
        the name.   3. Another job locks it in ZooKeeper. So this is asked whenever a name gets a table.

        Raises:
            OperationsHold: Some they would not see.
        """
        left = [] if self._locks is None else self._locks.sides.one_sided(Resource.table(table), phase)
        if left:
            raise OperationsHold(
                "nothing was changed: running operations hold locks that writers in the new phase would not see; wait "
                "until they end",
                table=table_name(table),
                phase=phase,
                locks=", ".join(f"{entry.mode.letter} {entry.resource} by {entry.owner}" for entry in left[:3]),
                more=len(left) - 3 if len(left) > 3 else None,
            )


def does_not_compare(servers: Servers, **names: str) -> ConfigError:
    """Return the error for what would leave phase ``hms`` on a server that does not compare and set."""
    return ConfigError(
        "nothing was changed: the metastore does not compare and set, so only its own lock prevents lost commits, and "
        "its tables stay in phase hms; `commit-coord migrate abort` brings a table or a database back",
        **names,
        server=servers.capabilities().server,
        accepted="a metastore with HIVE-26882 and HIVE-28121",
    )
