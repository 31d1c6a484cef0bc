"""A table that moves between two lock services: the real managers, guards and operators, on simulated services.

``locks/migration``, ``catalog/migration`` and what ``catalog/metastore`` does about phases and guards are real. The two
services are those of ``lease`` with the names of the metastore and of ZooKeeper; a guard is a lock there that does not
expire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.catalog.metastore.common_lock import CommonLock
from commit_coord.catalog.metastore.guards import Guards
from commit_coord.catalog.metastore.phases import PhaseChanges, Phases
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.catalog.metastore.writers import LockOnlyWriters
from commit_coord.coordinator import Coordinator
from commit_coord.events import Events
from commit_coord.hms.probe import Capabilities, CompareAndSet
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.base import Lease
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.hms.requests import Guarded
from commit_coord.locks.migration.lease import holds_common_lock
from commit_coord.locks.migration.manager import MigratingLockManager
from commit_coord.locks.migration.sides import Sides
from commit_coord.locks.migration.writers import Writer
from commit_coord.model import LockEntry, LockMode, LockRequest, LockScope, LockState, Resource
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.migration import HMS, ZOOKEEPER, Phase, State
from commit_coord.testing.history import Body
from tests.proof.sim.locking import SimulatedLeaseManager
from tests.proof.sim.services import Client, Files, Pointers
from tests.proof.sim.world import Process, owner_of


class SimulatedZooKeeper(SimulatedLeaseManager):
    """In place of ZooKeeper."""

    name = ZOOKEEPER


class SimulatedHms(SimulatedLeaseManager):
    """In place of the metastore's locks. Who is not ours waits for a guard; ours finds out."""

    name = HMS

    def __init__(self, *arguments: Any, ours: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ours = ours
        queue: Any = self.parts.queue
        enter, wait = queue.enter, queue.wait
        queue.enter = lambda acquire: self._met(acquire.request, enter(acquire))
        queue.wait = lambda acquire, blocker, until: self._met(acquire.request, wait(acquire, blocker, until))

    def _met(self, request: LockRequest, blocker: Blocker | None) -> Blocker | None:
        if blocker is not None and self._ours and request.scope is LockScope.COMMIT and _guards(self):
            raise Guarded("the table is guarded", locks=request)
        return blocker

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`."""
        return [replace(entry, guard=_is_guard(entry)) for entry in super().locks(resource, scope=scope)]

    def latch_of(self, table: Resource) -> Lease | None:
        """As :meth:`commit_coord.locks.hms.manager.HmsLockManager.latch_of`."""
        for ticket in list(self.parts.queue.tickets.values()):
            if ticket.request.scope is LockScope.COMMIT and table in dict(ticket.request.locks):
                lease: Lease | None = ticket.lease
                return lease
        return None


def _is_guard(entry: LockEntry) -> bool:
    return entry.explicit and entry.scope is LockScope.COMMIT


def _guards(manager: SimulatedHms) -> list[LockEntry]:
    return [entry for entry in manager.locks(scope=LockScope.COMMIT) if entry.guard]


class SimulatedGuards:
    """In place of :class:`~commit_coord.locks.hms.guard.HmsGuards`."""

    def __init__(self, process: Process, make: Callable[[], SimulatedHms], *, trusted_s: float) -> None:
        self._make, self._clock, self._trusted = make, process.clock, trusted_s
        self._owner, self._host = owner_of(process, "guard"), process.world.host
        self._word: float | None = None
        self._kept: list[tuple[SimulatedHms, Lease]] = []

    def place(self, table: Identifier, *, deadline: float, table_uuid: str = "") -> None:
        """Return when there is a guard."""
        now = self._clock.now()
        if self._word is not None and now - self._word < self._trusted:
            return
        manager = self._make()
        if not any(entry.state is LockState.ACQUIRED for entry in _guards(manager)):
            # In the metastore's terms, where a latch is a lock like all others.
            request = LockRequest(
                scope=LockScope.COMMIT,
                locks=((Resource.table(table), LockMode.SHARED),),
                owner=self._owner,
                request_id=str(self._host.new_id()),
                explicit=True,
            )
            self._kept.append((manager, manager.acquire(request, deadline=deadline)))
        self._word = now

    def remove(self, table: Identifier) -> None:
        """Remove all of them."""
        self._word = None
        manager = self._make()
        for entry in _guards(manager):
            manager.unlock(request_id=entry.request_id)

    def forget(self, table: Identifier) -> None:
        """Look again before the next swap."""
        self._word = None

    def close(self) -> None:
        """Nothing is extended."""


class NoWriters:
    """In place of the registry of writers, on which no commit depends."""

    client = ""

    def all(self) -> list[Writer]:
        return []

    def appear(self) -> None:
        pass

    def latched(self, table: Resource, phase: Phase, waited_ms: float) -> None:
        pass

    def close(self) -> None:
        pass


class MovingClient(Client):
    """A process's client of a table that moves; what it does about phases and guards is that of ``catalog/metastore``.

    Args:
        process: Whose.
        pointers: Of the table.
        files: Its files.
        hms: The metastore's locks, for our writers.
        zookeeper: ZooKeeper's locks.
        guards: The guards in the metastore.
        believed: The phase that this process believes in; None where it has not seen the table.
    """

    def __init__(
        self,
        process: Process,
        pointers: Pointers,
        files: Files,
        *,
        hms: SimulatedHms,
        zookeeper: SimulatedZooKeeper,
        guards: SimulatedGuards,
        believed: Phase | None,
    ) -> None:
        super().__init__(process, pointers, files, shares_latch=True)
        self.coordinator: Coordinator
        clock = process.clock
        self.metadata = MetadataReader(self.pointer, self.file_io)
        self.servers = Servers(lambda: _HONOURS)
        self.phases = Phases(_NoDatabases(), self.metadata)
        host = process.world.host
        common: dict[str, Any] = {"clock": clock, "acquire_timeout_ms": hms.settings.acquire_timeout_ms}
        common_lock = CommonLock(
            hms,
            latch_of=hms.latch_of,
            open_another=_opens_none,
            is_common=holds_common_lock,
            host=host,
            **common,
        )
        self.guards = Guards(
            guards,
            impl=Phase.ZOOKEEPER.lock_impl,
            metadata=self.metadata,
            common_lock=common_lock,
            servers=self.servers,
            **common,
        )
        sides = Sides(hms, zookeeper, LockEventEmitter(Events(), clock), host)
        self.locks = self.migrating = MigratingLockManager(
            sides, state_of=self.phases.of, guards=self.guards, writers=NoWriters(), clock=clock
        )
        if believed is not None:
            self.locks.beliefs.states[Resource(("db", "t"))] = State(phase=believed, epoch=0)
        self._changes = PhaseChanges(self.phases, self.servers, self.locks)
        self._writers = LockOnlyWriters(common_lock)

    def swap(self, table: Identifier, base: str | None, location: str) -> SwapResult:
        """As ``catalog/hive``, on a server that compares and sets."""
        assert base is not None
        self.guards.place_for_swap(table, location, base)
        return self._send(base, location, compares=True)

    def wait_for_lock_only_writers(self, table: Identifier, location: str, lease: Lease) -> bool:
        """As ``catalog/hive``."""
        return self._writers.wait(table, location, lease)

    def prepare_metadata(
        self, table: Identifier, head: TableMetadata | None, made: TableMetadata, *, changes_phase: bool
    ) -> TableMetadata:
        """As ``catalog/hive``."""
        assert head is not None
        properties = self._changes.checked(table, head.properties, made.properties, changes_phase=changes_phase)
        return made if properties == made.properties else made.model_copy(update={"properties": properties})

    def capabilities(self) -> Capabilities:
        """Return what the server can do."""
        return _HONOURS

    def tell_phase_change(self, event: Any) -> None:
        """Write into the history."""
        self._process.note(f"phase {event.stage}: {event.before} → {event.after}, epoch {event.epoch} {event.why}")


_HONOURS = Capabilities(server="simulated", version="", compare_and_set=CompareAndSet.HONOURED, tried=False)


class _NoDatabases:
    """In place of the metastore's databases: no table is made here."""

    def get_database(self, name: str, /) -> NoReturn:
        raise AssertionError(f"the phase of new tables in {name} is asked for")


def _opens_none() -> NoReturn:
    raise AssertionError("the metastore's locks are our own")


def check_phases(bodies: Sequence[Body]) -> list[str]:
    """The phase changes by one step at a time, the epoch by one with it, and with nothing else.

    Args:
        bodies: The table's metadata, from its first version to its last.
    """
    states = [State.of(body["properties"]) for body in bodies]
    return [
        f"EpochGrows: {before} was followed by {after}"
        for before, after in pairwise(states)
        if after != before and (after.epoch != before.epoch + 1 or before.phase.toward(after.phase) is not after.phase)
    ]
