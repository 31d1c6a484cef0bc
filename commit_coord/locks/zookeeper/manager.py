"""The lock manager with locks in ZooKeeper; this module puts its parts together.

``layout`` describes all nodes. ``entering`` creates the nodes of a request, ``queue`` waits until the request is
granted, ``service`` keeps and releases its lease. ``client`` and ``connection`` wrap the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import ConfigError
from commit_coord.events import Events
from commit_coord.locks.acquiring import Acquire, Acquirer
from commit_coord.locks.base import HeartbeatSender, LockSettings
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.held import Held
from commit_coord.locks.keeping import Keeper, Retries, Tickets
from commit_coord.locks.queue_manager import Parts, QueueLockManager
from commit_coord.locks.threads import THREADS, Threads
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.connection import EnsembleConnection, SessionEvent
from commit_coord.locks.zookeeper.deadlocks import PublishedWaits
from commit_coord.locks.zookeeper.entering import Entering
from commit_coord.locks.zookeeper.journal import ClientJournal, ZooKeeperJournal
from commit_coord.locks.zookeeper.layout import HIVE_NAMESPACE, NodeLayout
from commit_coord.locks.zookeeper.offers import ZooKeeperOffers
from commit_coord.locks.zookeeper.queue import ZooKeeperQueue
from commit_coord.locks.zookeeper.request_nodes import RequestNodes
from commit_coord.locks.zookeeper.service import ZooKeeperLeases
from commit_coord.locks.zookeeper.table import ZooKeeperLockTable
from commit_coord.locks.zookeeper.tickets import ZooKeeperTicket
from commit_coord.locks.zookeeper.view import LockView
from commit_coord.model import ExpiryClock, Guarantees, Reach
from commit_coord.process import SYSTEM_HOST, Host

_INHERITED: list[ZooKeeperSession] = []
"""Sessions that a forked child inherited. They are never garbage-collected, because kazoo's cleanup would act on the
connection of the parent process."""

T = TypeVar("T")

Connect = Callable[[EnsembleAccess, int, Clock, Callable[[SessionEvent], None]], EnsembleConnection]


class _Calls(Retries):
    """Repeats interrupted calls, but not after the client was closed."""

    def __init__(self, session: ZooKeeperSession, clock: Clock) -> None:
        super().__init__(clock, lambda: session.timeout_ms / 1000)
        self._session = session

    def until(self, deadline: float, attempt: Callable[[], T]) -> T:
        """See :meth:`Retries.until`."""
        with self._session.call():
            return super().until(deadline, attempt)


class _Keeper(Keeper[ZooKeeperTicket]):
    """Keeps the leases of one client; its heartbeat opens no session after the client was closed."""

    service: ZooKeeperLeases

    def beat(self) -> float | None:
        """See :meth:`Keeper.beat`."""
        with self.service.session.call(opens=False):
            return super().beat()


class _Pings(HeartbeatSender):
    """Pauses all traffic of the session, and with it kazoo's pings."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session

    def pause(self) -> None:
        self._session.hold()

    def resume(self) -> None:
        self._session.go_on()


class ZooKeeperLockManager(QueueLockManager[ZooKeeperQueue]):
    """Locks as nodes in ZooKeeper.

    Args:
        uri: ``host:port,host:port/chroot``. The first request opens the connection.
        space: Separates independent catalogs in one namespace. Empty: share the namespace with Hive's clients.
        settings: Times; ``lease_ms`` is the session timeout that the servers are asked for.
        clock: Time and random numbers.
        events: Receives what happens to locks.
        threads: How threads wait.
        host: Names this process, and tells which other processes have ended.
        connect: Makes the connection of a session.
        namespace: ``hive.zookeeper.namespace``.
        access: The other fields of :class:`~commit_coord.locks.zookeeper.access.EnsembleAccess`.

    Raises:
        ConfigError: An argument is invalid, or a package is not installed.
    """

    name = "zookeeper"
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=True,
        reach=Reach.NETWORK,
        expiry=True,
        survives_restart=True,
        explicit_locks=True,
        journal=True,
        clock=ExpiryClock.SERVER,
        carries=Reach.NETWORK,
        deadlocks=True,
        notes=True,
    )

    def __init__(
        self,
        uri: str,
        *,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        threads: Threads = THREADS,
        host: Host = SYSTEM_HOST,
        connect: Connect = EnsembleConnection,
        namespace: str = HIVE_NAMESPACE,
        **access: Any,
    ) -> None:
        settings, events = settings or LockSettings(), events or Events()
        way = self.access = EnsembleAccess(hosts=uri, **access)
        namespace = namespace.strip("/")
        if not re.fullmatch(r"[\w.-]+", namespace) or namespace in ("zookeeper", "commit-coord", ".", ".."):
            raise ConfigError(
                "invalid ZooKeeper node name",
                key="lock.zk.namespace",
                value=namespace,
                accepted="letters, digits and ._-",
            )
        layout = self.layout = NodeLayout(namespace, space)
        made_before: list[ZooKeeperSession] = []

        def made() -> Parts[ZooKeeperQueue]:
            def changed(event: SessionEvent) -> None:
                queue.session_changed(event)

            # A forked child must neither use nor end the session of its parent.
            for inherited in made_before:
                _INHERITED.append(inherited)
                inherited.abandon()
            session = ZooKeeperSession(way, settings.lease_ms, clock, changed, connect=connect)
            made_before[:] = [session]
            held, emitter, tickets = (
                Held(threads, host),
                LockEventEmitter(events, clock),
                Tickets[ZooKeeperTicket](host.new_id().hex),
            )
            retries = _Calls(session, clock)
            view, offers = LockView(session, layout, settings.page_size), ZooKeeperOffers(session, layout)
            journal = ClientJournal(ZooKeeperJournal(session, layout), retries, clock)
            nodes = RequestNodes(session, layout, tickets, way.acl_size, clock)
            leases = ZooKeeperLeases(session, layout, nodes, offers, journal, retries, settings, clock)
            heartbeat = partial(threads.heartbeat, also=_Pings(session))
            keeper = _Keeper(leases, tickets, retries, heartbeat, emitter, events, clock)
            table = ZooKeeperLockTable(session, view, tickets, leases, keeper, retries, clock, host)
            entering = Entering(session, layout, nodes, offers, journal, tickets, held, clock)
            waits = PublishedWaits(session, layout, nodes, tickets, held)
            queue = ZooKeeperQueue(
                session,
                nodes,
                entering,
                offers,
                view,
                waits,
                tickets,
                leases,
                keeper,
                retries,
                threads,
                settings,
                clock,
                host,
            )
            acquirer = Acquirer(queue, waits, held, emitter, settings, clock)
            return Parts(queue=queue, acquirer=acquirer, held=held, keeping=keeper, table=table, journal=journal)

        super().__init__(self.guarantees, settings, made)

    def one_call(self) -> AbstractContextManager[None]:
        """See :meth:`HandoverLockManager.one_call`."""
        return self.session.call()

    def _acquired(self, acquire: Acquire) -> HandoverLease:
        with self.one_call():
            return super()._acquired(acquire)

    @property
    def session(self) -> ZooKeeperSession:
        """The session of this process."""
        return self.parts.queue.session
