"""The two lock managers between which tables move, and what is looked at and freed in both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from commit_coord.clock import Clock
from commit_coord.events import Event, Events, LockAcquired, LockEnded, LockNotAcquired, LockRequested
from commit_coord.locks.base import HeartbeatSender, Lease, LockSettings
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.forcing import telling_what_was_freed
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.queue_manager import QueueLockManager
from commit_coord.locks.zookeeper.layout import HIVE_APPLICATION
from commit_coord.locks.zookeeper.manager import ZooKeeperLockManager
from commit_coord.model import LockEntry, LockMode, LockRequest, LockScope, LockState, Resource
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.migration import Phase, locks_of

Side = QueueLockManager[Any]
"""The lock manager of one of the two services."""


class _SideEvents(Events):
    """The events of the two managers. A request is one, so the events of its parts are not passed on.

    Except for its end: only they learn that no code refers to a lease any more.
    """

    def __init__(self, outer: Events, emitter: LockEventEmitter) -> None:
        super().__init__()
        self._outer, self._emitter = outer, emitter

    @property
    def heard(self) -> bool:
        return self._outer.heard

    def emit(self, event: Event) -> None:
        match event:
            case LockRequested() | LockAcquired() | LockNotAcquired():
                pass
            case LockEnded():
                # With the first of its parts.
                self._emitter.ended(event.request_id, lost=event.lost)
            case _:
                self._outer.emit(event)


class Heartbeats(HeartbeatSender):
    """The heartbeats of both managers, paused and resumed together."""

    def __init__(self, *managers: Side) -> None:
        self._managers = managers

    def pause(self) -> None:
        """Send none until they are resumed."""
        for manager in self._managers:
            manager.heartbeat.pause()

    def resume(self) -> None:
        """Send them again."""
        for manager in self._managers:
            manager.heartbeat.resume()

    def stop(self) -> None:
        """End those that are under way."""
        for manager in self._managers:
            manager.heartbeat.stop()


def open_sides(
    uri: str,
    *,
    metastore: str,
    space: str,
    settings: LockSettings | None,
    clock: Clock,
    events: Events,
    **options: Any,
) -> tuple[HmsLockManager, ZooKeeperLockManager, LockEventEmitter]:
    """Open a lock manager of each kind; return both, and what tells of requests that either of them takes.

    Args:
        uri: ZooKeeper's servers.
        metastore: The metastore, as :class:`~commit_coord.locks.hms.manager.HmsLockManager` takes it.
        space: As for ZooKeeper.
        settings: Times.
        clock: Where time and chance come from.
        events: Receives what happens to locks.
        options: Of :class:`~commit_coord.locks.zookeeper.manager.ZooKeeperLockManager`.

    Raises:
        ConfigError: An argument makes no sense, or something is not installed.
    """
    emitter = LockEventEmitter(events, clock)
    common: dict[str, Any] = {"settings": settings, "clock": clock, "events": _SideEvents(events, emitter)}
    hms = HmsLockManager(metastore, **common)
    return hms, ZooKeeperLockManager(uri, space=space, **common, **options), emitter


class Sides:
    """The locks in a metastore and those in ZooKeeper.

    Args:
        hms: The lock manager of the metastore.
        zookeeper: The lock manager of ZooKeeper.
        emitter: Tells of requests that are taken on the one side, on the other, or on both.
        host: Names this process, and its requests.
    """

    def __init__(self, hms: Side, zookeeper: Side, emitter: LockEventEmitter, host: Host = SYSTEM_HOST) -> None:
        self.hms, self.zookeeper, self.emitter, self._host = hms, zookeeper, emitter, host
        self.in_order: tuple[Side, Side] = (hms, zookeeper)
        """As locks on both sides are taken."""

    def latched_in_zookeeper(self, table: Resource, statement: str, *, deadline: float) -> Lease:
        """Take ZooKeeper's latch of *table* whatever its phase: so long nobody can bring it to another one."""
        request = LockRequest.of(
            LockScope.COMMIT,
            {table: LockMode.EXCLUSIVE},
            owner=self._host.owner(statement),
            request_id=str(self._host.new_id()),
        )
        return self.zookeeper.acquire(request, deadline=deadline)

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """Return the held and awaited locks. A lock that is held in both services is listed once."""
        return _merged(self.hms.locks(resource, scope=scope), self.zookeeper.locks(resource, scope=scope))

    def one_sided(self, table: Resource, phase: Phase) -> Sequence[LockEntry]:
        """Return the operation locks on *table*, and on its database, that are held where *phase* would not see them.

        A request that waits for its first lock is on one side alone, too, and is left out: once granted it looks at the
        phase.
        """
        near = {table, *table.ancestors}
        found = {
            manager: [
                entry
                for page in manager.pages(Resource(table.path[:1]), scope=LockScope.OPERATION)
                for entry in page
                if entry.resource in near or entry.resource.path[:2] == table.path
            ]
            for manager in self.in_order
        }
        left = [manager for manager in found if manager.name not in locks_of(phase)]
        kept = {_key(entry) for manager in found if manager not in left for entry in found[manager]}
        return [
            entry
            for manager in left
            for entry in found[manager]
            if entry.state is LockState.ACQUIRED
            and _key(entry) not in kept
            and entry.owner.application != HIVE_APPLICATION
        ]

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """Free locks by force on both sides; return what was freed.

        Raises:
            PartlyFreed: One side freed some, and the other one failed.
        """
        return _from_both(
            lambda: self.hms.unlock(request_id=request_id, resource=resource),
            lambda: self.zookeeper.unlock(request_id=request_id, resource=resource),
        )

    def unlock_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        """Free requests by force on both sides; yield what was freed of each.

        Raises:
            PartlyFreed: As :meth:`unlock`.
        """
        in_hms, in_zookeeper = self.hms.unlock_each(request_ids), self.zookeeper.unlock_each(request_ids)
        for _ in request_ids:
            yield _from_both(lambda: next(in_hms), lambda: next(in_zookeeper))

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """Free what dead owners left on both sides; return what was freed.

        Raises:
            PartlyFreed: As :meth:`unlock`.
        """
        if dry_run:
            return _merged(self.hms.reap(dry_run=True), self.zookeeper.reap(dry_run=True))
        return _from_both(self.hms.reap, self.zookeeper.reap)


def _key(entry: LockEntry) -> tuple[str, Resource]:
    """Return what *entry* is known by on both sides: the metastore lists a long name by its digest."""
    return entry.request_id, hms_names.listed(entry.resource)


def _from_both(
    free_in_hms: Callable[[], Sequence[LockEntry]], free_in_zookeeper: Callable[[], Sequence[LockEntry]]
) -> Sequence[LockEntry]:
    """Free on both sides; return what was freed, and say what was freed even if the second one fails."""
    with telling_what_was_freed() as freed:
        freed.extend(free_in_hms())
        return _merged(freed, free_in_zookeeper())


def _merged(in_hms: Sequence[LockEntry], in_zookeeper: Sequence[LockEntry]) -> list[LockEntry]:
    """Return the entries of both, once each: waiting, where one of the two waits."""
    by_key: dict[tuple[str, Resource, LockScope], LockEntry] = {}
    for entry in (*in_hms, *in_zookeeper):
        key = *_key(entry), entry.scope
        if key not in by_key or by_key[key].state is not LockState.WAITING:
            by_key[key] = entry
    return sorted(by_key.values(), key=lambda entry: entry.requested_at_ms)
