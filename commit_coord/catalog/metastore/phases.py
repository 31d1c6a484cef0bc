"""In which phase each table is, and what may change it; see :mod:`commit_coord.protocol.migration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.catalog.metastore.servers import Servers
from commit_coord.errors import ConfigError, LockRefused
from commit_coord.hms.connection import NoSuchObject
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.model import Resource
from commit_coord.protocol.migration import LOCK_EPOCH, LOCK_PHASE, Phase, State


class OperationsHold(LockRefused):
    """The phase of a table can't be changed yet: operation locks are held where no writer of the new phase looks."""


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
            return State(phase=self.of_new(table.path[0]), epoch=0)
        return State.of(metadata.properties)

    def of_new(self, database: str) -> Phase:
        """Return the phase of tables that are made in *database*."""
        try:
            phase = (self._databases.get_database(database).parameters or {}).get(LOCK_PHASE, "")
        except NoSuchObject:
            return Phase.HMS
        return Phase(phase) if phase else Phase.HMS


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
            ConfigError: The properties change the phase outside of a migration, or it can't be changed now.
            OperationsHold: Operations hold locks that writers in the new phase would not check.
        """
        if before is None:
            phase = self._phases.of_new(table[0]) if self._locks is not None else Phase.HMS
            return {**after, **(State(phase=phase, epoch=0).changed_to(phase) if phase is not Phase.HMS else {})}
        if all(before.get(key) == after.get(key) for key in (LOCK_PHASE, LOCK_EPOCH)):
            return dict(after)
        if self._locks is None or not changes_phase:
            raise ConfigError(
                "only `commit-coord migrate` can change the phase of a table",
                table=table_name(table),
                key=LOCK_PHASE,
                value=after.get(LOCK_PHASE),
                accepted=before.get(LOCK_PHASE),
            )
        phase = State.of(after).phase
        if phase is not Phase.HMS and not self._servers.compare_and_set():
            raise ConfigError(
                "the phase was not changed: the metastore does not compare and set, so only its own lock prevents lost "
                "commits",
                table=table_name(table),
                server=self._servers.capabilities().server,
                accepted="a metastore with HIVE-26882 and HIVE-28121",
            )
        left = self._locks.sides.one_sided(Resource.table(table), phase)
        if left:
            raise OperationsHold(
                "the phase was not changed: running operations hold locks that writers in the new phase would not see",
                table=table_name(table),
                phase=phase,
                locks=", ".join(f"{entry.mode.letter} {entry.resource} by {entry.owner}" for entry in left[:3]),
                more=len(left) - 3 if len(left) > 3 else None,
            )
        return dict(after)
