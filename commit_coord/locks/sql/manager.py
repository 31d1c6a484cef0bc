"""The lock manager ``lease``: locks in a SQL database, SQLite for one host, PostgreSQL for several.

``statements`` contains the tables and statements, and explains why they are correct. ``store`` is the interface to a
database; ``sqlite`` and ``postgres`` implement it. ``queue`` gives requests their turns; ``service`` extends and
releases leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.events import Events
from commit_coord.locks.acquiring import Acquirer
from commit_coord.locks.base import Lease, LockSettings
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.held import Held
from commit_coord.locks.keeping import HeartbeatLease, Keeper, Retries, Tickets
from commit_coord.locks.queue_manager import Parts, QueueLockManager
from commit_coord.locks.sql.journal import SqlJournal
from commit_coord.locks.sql.opening import open_store
from commit_coord.locks.sql.queue import SqlQueue
from commit_coord.locks.sql.requests import SqlRequests, SqlTicket
from commit_coord.locks.sql.service import SqlLeases
from commit_coord.locks.sql.store import Store
from commit_coord.locks.sql.table import SqlLockTable
from commit_coord.locks.threads import THREADS, Threads
from commit_coord.model import ExpiryClock, Guarantees, LockEntry, LockScope, Reach
from commit_coord.process import SYSTEM_HOST, Host


class SqlLockManager(QueueLockManager[SqlQueue]):
    """Locks as rows in a SQL database.

    Args:
        url: A SQLAlchemy URL of SQLite or PostgreSQL. PostgreSQL is accessed with psycopg 3, whatever driver the URL
            names. The first request opens the connection.
        space: Locks of different spaces never conflict. The SQL catalogs in one database use their names.
        settings: Times.
        clock: Time and random numbers.
        events: Receives what happens to locks.
        threads: How threads wait and send heartbeats.
        host: Names this process, and tells which others have ended.
        store: The database itself; None opens the one at *url*.

    Raises:
        ConfigError: The URL is not a URL of SQLite or PostgreSQL.
    """

    name = "lease"
    keeps_hive_leases = True

    def __init__(
        self,
        url: str,
        *,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        threads: Threads = THREADS,
        host: Host = SYSTEM_HOST,
        store: Store | None = None,
    ) -> None:
        settings, events = settings or LockSettings(), events or Events()
        self.clock = clock
        database = self.store = store or open_store(url, clock, settings.lease_ms)

        def made() -> Parts[SqlQueue]:
            held, emitter, tickets = (
                Held(threads, host),
                LockEventEmitter(events, clock),
                Tickets[SqlTicket](host.new_id().hex),
            )
            database.agent = lambda: held.agent
            retries = Retries(clock, lambda: settings.lease_ms / 1000)
            requests = SqlRequests(database, space, tickets.client, settings.lease_ms, retries)
            service = SqlLeases(requests, tickets.client, settings, clock)
            keeper = Keeper(service, tickets, retries, threads.heartbeat, emitter, events, clock)
            journal, table = SqlJournal(requests), SqlLockTable(requests, keeper, tickets, host, settings.page_size)
            queue = SqlQueue(requests, tickets, keeper, journal, table, settings, clock, host)
            acquirer = Acquirer(queue, queue, held, emitter, settings, clock)
            return Parts(queue=queue, acquirer=acquirer, held=held, keeping=keeper, table=table, journal=journal)

        super().__init__(_guarantees(database), settings, made)

    @property
    def requests(self) -> SqlRequests:
        """The database transactions for requests."""
        return self.parts.queue.requests

    def end(self, scope: LockScope, request_id: str, place: int, *, forced: bool) -> bool:
        """See :meth:`SqlLockTable.end`."""
        return self.parts.queue.table.end(scope, request_id, place, forced=forced)

    def free_listed(self, chosen: Iterable[LockEntry]) -> Sequence[LockEntry]:
        """See :meth:`SqlLockTable.free_listed`."""
        return self.parts.queue.table.free_listed(chosen)

    def detach(self, lease: Lease) -> None:
        """Stop managing a granted request: from now on this client neither extends nor releases it."""
        assert isinstance(lease, HeartbeatLease)
        lease.keeper.detach(lease.ticket)


def _guarantees(store: Store) -> Guarantees:
    server = store.clock_name == "server"
    return Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=True,
        reach=Reach.NETWORK if server else Reach.HOST,
        expiry=True,
        survives_restart=True,
        explicit_locks=True,
        journal=True,
        clock=ExpiryClock.SERVER if server else ExpiryClock.HOST,
        carries=Reach.NETWORK if server else Reach.HOST,
        deadlocks=True,
        notes=True,
    )
