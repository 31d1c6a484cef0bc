"""The properties by which a table says who may write to it, from one commit to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.typedef import Identifier

from commit_coord.catalog.metastore import declarations
from commit_coord.catalog.metastore.declarations import COMMON_LOCK
from commit_coord.catalog.metastore.guards import Guards
from commit_coord.catalog.metastore.phases import PhaseChanges
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.errors import ConfigError
from commit_coord.iceberg.attempt import table_name
from commit_coord.protocol.migration import LOCK_IMPL, LOCK_PHASE, MIGRATING, State


class WriterProperties:
    """Adds the declarations of one catalog to its commits, and refuses commits that contradict a table's declarations.

    Args:
        lock_impl: The catalog's lock manager.
        changes: Which phase a commit may publish.
        servers: What the metastore's servers can do.
        guards: Removed where a table was handed back to the common lock.
    """

    def __init__(self, lock_impl: str, changes: PhaseChanges, servers: Servers, guards: Guards) -> None:
        self._lock_impl, self._changes, self._servers, self._guards = lock_impl, changes, servers, guards

    def lock_impl(self, properties: Mapping[str, str]) -> str:
        """Return as which lock manager this catalog writes to a table with *properties*."""
        return State.of(properties).phase.lock_impl if self._lock_impl == MIGRATING else self._lock_impl

    def prepare(
        self, table: Identifier, before: Mapping[str, str] | None, after: Mapping[str, Any], *, changes_phase: bool
    ) -> dict[str, Any]:
        """Return the properties *after* with the lock manager that *table*'s writers use; see ``declarations``.

        Args:
            table: Whose.
            before: The head's; None for a new table.
            after: What a commit is about to publish.
            changes_phase: Whether that commit may change the phase.

        Raises:
            ConfigError: They use another one than this catalog, or the phase can't be changed so.
        """
        after = self._changes.checked(table, before, after, changes_phase=changes_phase)
        try:
            return declarations.prepare_properties(
                before or {},
                after,
                table=table_name(table),
                impl=self.lock_impl(after if before is None else before),
                compares=self._servers.compare_and_set,
            )
        except ConfigError:
            if before is not None and before.get(LOCK_IMPL) in COMMON_LOCK:
                self._guards.remove(
                    table
                )  # the process that handed the table back may have been killed before it did so
            raise

    def refuse_registered(self, table: Identifier, before: Mapping[str, str] | None, after: Mapping[str, str]) -> None:
        """Return if a metadata file, with the properties *after*, may be published in the place of *before*.

        If *before* is None, the name is free: then the file may declare any phase whose writers see all locks on it.

        1. A metadata file is written in phase ``hms``.   2. The table moves to ``zookeeper``.   3. The file is
        registered in its place.   4. A writer from before that still holds ZooKeeper's lock; the next one takes the
        metastore's.   The file is published unchanged, so its properties can't be corrected first.

        Raises:
            ConfigError: Its phase or its epoch is another, or its writers use another lock manager.
            OperationsHold: Operations hold locks on the name that its writers would not see.
        """
        registered = State.of(after)
        if before is None:
            self._changes.refuse_unsafe(table, registered.phase)
            return
        there = State.of(before)
        if registered != there:
            raise ConfigError(
                "the metadata file declares another phase or epoch than the table, and only `commit-coord migrate` "
                "changes them: to register this file unchanged, drop the table first",
                table=table_name(table),
                key=LOCK_PHASE,
                value=registered,
                accepted=there,
            )
        self.prepare(table, before, after, changes_phase=False)

    def refuse_renamed(self, new: Identifier, properties: Mapping[str, str]) -> None:
        """Return if the table with *properties* may get the name *new*.

        Raises:
            OperationsHold: Operations hold locks on that name that the table's writers would not see.
        """
        self._changes.refuse_held(new, State.of(properties).phase)

    def refuse_others(self, table: Identifier, parameters: Mapping[str, str]) -> None:
        """Return when *table*, of which the metastore shows *parameters*, is one of this catalog's lock manager.

        Raises:
            ConfigError: Its writers use another one.
        """
        declared, own = parameters.get(LOCK_IMPL), self.lock_impl(parameters)
        if declared not in (None, own):
            raise declarations.other_lock_manager(table_name(table), declared, own)
