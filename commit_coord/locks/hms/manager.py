"""The locks of a Hive Metastore.

``queue`` gives requests their turns, and ``calls`` sends them; ``turns`` lets the threads of one process take turns.
``service`` extends and releases leases. ``names`` encodes our locks as locks of the metastore.
"""

from __future__ import annotations

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockError, LockRefused, OfferLost
from commit_coord.events import Events
from commit_coord.hms.client import MetastoreClient
from commit_coord.locks.acquiring import Acquire, Acquirer
from commit_coord.locks.base import BRIEFLY, Lease, LockSettings
from commit_coord.locks.blockers import Blocker, Holder
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.held import Held
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.calls import LockCalls
from commit_coord.locks.hms.forced_release_notes import ForcedReleaseNotes
from commit_coord.locks.hms.offers import OfferFiles, OthersOffers, OwnOffers
from commit_coord.locks.hms.queue import HmsQueue
from commit_coord.locks.hms.requests import HmsTicket
from commit_coord.locks.hms.service import HmsLeases
from commit_coord.locks.hms.table import HmsLockTable
from commit_coord.locks.hms.turns import ThreadTurns
from commit_coord.locks.hms.waits import ListedWaits
from commit_coord.locks.keeping import Keeper, Retries, Tickets
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.locks.queue_manager import Parts, QueueLockManager
from commit_coord.locks.threads import THREADS, Threads
from commit_coord.model import ExpiryClock, Guarantees, LeaseState, LockRequest, LockScope, Owner, Reach, Resource
from commit_coord.process import SYSTEM_HOST, Host

_SHOWN = 200
"""Characters of a name that a message shows."""


class HmsAcquirer:
    """Acquires locks, and limits each call of the metastore's client to the time that the request has left.

    Args:
        inner: Acquires.
        metastore: The client.
        calls: Sends lock requests, and finds those whose reply was lost.
        turns: Where the threads of this process wait first.
        own: The offers of this client to other processes.
        clock: Time.
    """

    def __init__(
        self,
        inner: Acquirer,
        metastore: MetastoreClient,
        calls: LockCalls,
        turns: ThreadTurns,
        own: OwnOffers,
        clock: Clock,
    ) -> None:
        self._inner, self._metastore, self._calls, self._turns, self._clock = inner, metastore, calls, turns, clock
        self._own = own

    def acquire(self, acquire: Acquire) -> HandoverLease:
        """See :meth:`LockManager.acquire`."""
        request = acquire.request
        _refuse_unlockable(request)
        granted = None
        try:
            with self._metastore.within(max(0.0, acquire.deadline - self._clock.now()) + BRIEFLY):
                granted = self._inner.acquire(acquire)
                return granted
        except LockError as error:
            # 1. The holder takes the offer, sends its swap and is interrupted.   2. The offer's owner is next.
            # 3. The metastore fails, so the owner does not get the latch.   4. The holder's swap lands after all.
            if not request.offer or (self._turns.retract(request) and self._own.retract(request)):
                raise
            raise OfferLost(
                "not granted, and another lock holder may have published the offer", locks=request
            ) from error
        finally:
            self._turns.ended(request)
            self._calls.ended(request)
            if granted is None:
                self._own.ended(request)

    def give_up(self, request: LockRequest) -> None:
        """See :meth:`Acquirer.give_up`."""
        self._inner.give_up(request)

    def end_waits(self) -> None:
        """See :meth:`Acquirer.end_waits`."""
        self._turns.end_waits()
        self._inner.end_waits()

    def refuse_waits(self) -> None:
        """See :meth:`LockManager.refuse_waits`."""
        self._turns.refuse_waits()
        self._inner.refuse_waits()


class HmsLockManager(QueueLockManager[HmsQueue]):
    """Locks in a Hive Metastore. The commit latch is the lock that unmodified Iceberg writers take, too.

    Args:
        uri: ``thrift://host:port``; commas separate several servers, and options of the connection follow after a
            ``?`` (:attr:`MetastoreClient.service`).
        space: Unused: on one metastore, one name is one table, whatever a client calls its catalog.
        settings: Times.
        clock: Time and random numbers.
        events: Receives what happens to locks.
        threads: How threads wait and send heartbeats.
        host: Names this process, and tells which others have ended.
        metastore: The client; None makes one for *uri*.
        files: The store of the tables' files, for offers to other processes. None: offers stay in this process.

    Raises:
        ConfigError: The URI is not the URI of a metastore.
    """

    name = "hms"
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=False,  # up to Hive 2.3 a reader is granted before a waiting writer; the reader then queues again, last
        reach=Reach.NETWORK,
        expiry=True,
        survives_restart=True,
        explicit_locks=True,
        journal=False,
        clock=ExpiryClock.CLIENT,
        carries=Reach.NETWORK,
        deadlocks=True,
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
        metastore: MetastoreClient | None = None,
        files: OfferFiles | None = None,
    ) -> None:
        settings, events = settings or LockSettings(), events or Events()
        client = self.metastore = metastore or MetastoreClient.of(uri)
        self._notes = ForcedReleaseNotes(client, clock)

        def made() -> Parts[HmsQueue]:
            def holder(request: LockRequest, blocker: Blocker) -> Holder:
                # The thread whose turn it is may itself be waiting for a lock elsewhere.
                return queue.holder(request, blocker)

            held, emitter = Held(threads, host), LockEventEmitter(events, clock)
            tickets = Tickets[HmsTicket](host.new_id().hex[:8])  # The metastore's column for it is short.
            retries = Retries(clock, lambda: settings.lease_ms / 1000)
            queues = MemoryLockManager(
                f"hms {client.service}",
                settings=settings,
                clock=clock,
                threads=threads,
                host=host,
                holder=holder,
            )
            turns = ThreadTurns(queues)
            own, others = OwnOffers(files, clock), OthersOffers(files, client)
            calls = LockCalls(client, tickets, held, settings, clock, threads)
            leases = HmsLeases(client, tickets, calls, settings, clock)
            keeper = Keeper(leases, tickets, retries, threads.heartbeat, emitter, events, clock)
            table = HmsLockTable(client, tickets, calls, turns, keeper, clock, host)
            queue = HmsQueue(tickets, calls, turns, own, others, leases, keeper, table, retries, settings, clock, host)
            waits = ListedWaits(client, tickets, held, settings)
            acquirer = Acquirer(queue, waits, held, emitter, settings, clock)
            return Parts(
                queue=queue,
                acquirer=HmsAcquirer(acquirer, client, calls, turns, own, clock),
                held=held,
                keeping=keeper,
                table=table,
            )

        super().__init__(self.guarantees, settings, made)

    @property
    def client(self) -> str:
        """The name that distinguishes this client's requests from others'."""
        return self.parts.queue.tickets.client

    def note_forced_release(self, request_id: str, by: Owner, why: str) -> None:
        """See :meth:`HandoverLockManager.note_forced_release`."""
        self._notes.leave(request_id, by, why)

    def forced_release_note(self, request_id: str) -> dict[str, str]:
        """See :meth:`HandoverLockManager.forced_release_note`."""
        return self._notes.take(request_id)

    def latch_of(self, table: Resource) -> Lease | None:
        """Return the lease by which this client holds the commit latch of *table*."""
        for ticket in list(self.parts.queue.tickets.values()):
            if ticket.request.scope is LockScope.COMMIT and table in dict(ticket.request.locks):
                lease = ticket.lease
                return None if lease is not None and lease.state is LeaseState.LOST else lease
        return None


def _refuse_unlockable(request: LockRequest) -> None:
    for part in hms_names.parts(request):
        if (reason := part.refusal) is not None:
            raise LockRefused(
                f"the lock service can't lock this name: {reason}; nothing was locked",
                manager=HmsLockManager.name,
                name=".".join(filter(None, (part.db, part.table, part.partition)))[:_SHOWN],
                accepted="another name, or another lock manager (zookeeper, lease)",
            )
