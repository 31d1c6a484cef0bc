"""The two databases of the ``lease`` lock manager: connections, transactions, wake-ups, errors.

Both offer the same few verbs (:class:`Connection`), one connection a thread, and nothing here knows what a lock is.
Plain DBAPI connections: a latch is taken and given back around every commit, and SQLAlchemy's part of a
statement would cost several times what SQLite needs for it. SQLAlchemy reads the URL, so that one URL serves
the catalog and the locks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import sqlite3
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from commit_coord.clock import Clock
from commit_coord.errors import ConfigError, LockServiceUnavailable
from commit_coord.locks.base import Interrupted
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.process import SYSTEM_HOST, Host, process_name
from commit_coord.redaction import without_passwords

if TYPE_CHECKING:
    import psycopg

logger = logging.getLogger(__name__)

C = TypeVar("C", bound="Connection")

Step = tuple[str, Mapping[str, Any]]
Rows = list[tuple[Any, ...]]

ACCEPTED = "sqlite:///path/to/file.db, postgresql://user@host/database"


class DuplicateRequest(Exception):
    """A request of this id has entered before: ours with a lost reply, or somebody else's."""


class Connection(ABC):
    """One thread's connection. Opens when it is used, and again when it was cut."""

    wake: str
    """Where a wake-up for this thread is sent to."""

    @abstractmethod
    def reach(self) -> None:
        """Return once the database is open, as far as that can be told without asking it.

        Raises:
            LockServiceUnavailable: It can't be opened. Nothing was sent.
        """

    @abstractmethod
    def run(
        self,
        steps: Sequence[Step],
        then: Sequence[Step] = (),
        *,
        waking: Sequence[Step] = (),
        durable: bool = True,
    ) -> list[Rows]:
        """Run *steps* in one transaction, commit, then run *then* behind it; return the rows of *steps*.

        *then* and *waking* choose whom to wake, who is woken after the commit. *waking* is run before *steps*, in the
        transaction: it finds those whom *steps* will delete.

        What is not *durable* may be undone by a crash of the server right after it, and does not wait for the disk.
        Removals are so: a request that comes back is extended by nobody and expires.

        Guarantee: on any exception but :class:`Interrupted` nothing of *steps* has happened.

        Raises:
            DuplicateRequest: A request id is there already.
            Interrupted: Busy or cut.
            LockServiceUnavailable: Anything else that the database refuses.
        """

    @abstractmethod
    def ask(self, text: str, values: Mapping[str, Any]) -> Rows:
        """Run one statement by itself and return its rows."""

    @abstractmethod
    def listen(self) -> bool:
        """Receive wake-ups from now on; return whether that is new, so that earlier ones were missed."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Block until a wake-up, at most *seconds*; return whether it is worth to ask again."""

    @abstractmethod
    def close(self) -> None:
        """Close; a later use opens it again."""


class Store(ABC):
    """A database, with one connection for each thread of this process."""

    clock_name: str
    """The clock that ``expires_at`` counts by. A row of another clock has expired."""
    remote: bool
    """Whether what was asked may have happened although no answer came."""
    concurrent: bool
    """Whether writing transactions run side by side, so that one may not see what the other is about to commit."""
    host: Host = SYSTEM_HOST
    """Makes the names under which waiters are woken."""

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.local()
        self._connections: weakref.WeakKeyDictionary[Connection, None] = weakref.WeakKeyDictionary()

    @property
    def connection(self) -> Connection:
        """This thread's connection. A forked child never touches those of its parent."""
        if self._pid != os.getpid():
            # Kept for ever: to close one would say goodbye to the server on the socket that the parent still uses.
            _INHERITED.append(self._thread)
            _INHERITED.extend(_living(self._connections))
            self._start_over()
        try:
            return self._thread.connection  # type: ignore[no-any-return]
        except AttributeError:
            connection = self._thread.connection = self._connect()
            self._connections[connection] = None
            return connection

    @abstractmethod
    def _connect(self) -> Connection: ...

    @abstractmethod
    def portable(self, text: str, values: Mapping[str, Any]) -> Step:
        """Return a statement as SQLAlchemy runs it in a transaction of its own on this database."""

    def close(self) -> None:
        """Close every connection; they open again when they are used."""
        if self._pid == os.getpid():
            for connection in _living(self._connections):
                connection.close()


_INHERITED: list[object] = []


def _living(connections: weakref.WeakKeyDictionary[C, None]) -> list[C]:
    """Return those that are there, while other threads may open more."""
    return [connection for ref in connections.keyrefs() if (connection := ref()) is not None]


def noticing_silence(patience_ms: int) -> dict[str, int]:
    """Return libpq's options with which a server in silence costs its client no more than *patience_ms*.

    1. A request arrives and is confirmed by the kernel; the network is cut.   2. The server answers, hears nothing,
    and ends the connection; that is lost too.   3. The network is back. Nobody has anything to send, and the client
    waits for two hours, the system's default, if it doesn't ask whether the server is there.
    """
    third_s = max(1, patience_ms // 3000)
    return {
        "connect_timeout": max(2, patience_ms // 1000),
        "tcp_user_timeout": patience_ms,
        "keepalives_idle": third_s,
        "keepalives_interval": third_s,
        "keepalives_count": 2,
    }


def open_store(url: str, clock: Clock, patience_ms: int) -> Store:
    """Return the store at *url*.

    Args:
        url: A SQLAlchemy URL, as a catalog has it.
        clock: The host's clocks, which are SQLite's.
        patience_ms: How long the network may be silent and a statement may run, on PostgreSQL.

    Raises:
        ConfigError: Not such a URL, another database, an in-memory database, or a driver that is not installed.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter: a port that is no number
        # What may be a user and a password stands before the last '@'.
        shown = url.rpartition("@")[2]
        raise ConfigError("not a database URL", key="lock.uri", value=shown, accepted=ACCEPTED) from None
    match parsed.get_backend_name():
        case "sqlite":
            return SqliteStore(parsed, clock)
        case "postgresql" | "postgres":
            return PostgresStore(parsed, patience_ms)
        case _:
            raise ConfigError(
                "leases can't be kept in this database", key="lock.uri", value=_shown(parsed), accepted=ACCEPTED
            )


def _shown(url: URL) -> str:
    return without_passwords(url.render_as_string(hide_password=True))


# --- SQLite -------------------------------------------------------------------------------------------------------


_SQLITE_WORDS = {
    "{now}": ":now",
    "{wall}": ":wall",
    "{epoch}": ":epoch",
    "{ids}": "(SELECT value FROM json_each(:ids))",
    "{notify}": "r.wake",
    "{text}": "TEXT",
    "{for update}": "",
}


_SET_MS = 100
"""Milliseconds by which two readings of the wall clock differ at most unless it was set."""


@cache
def _sqlite_text(text: str) -> str:
    for word, meaning in _SQLITE_WORDS.items():
        text = text.replace(word, meaning)
    return text


class SqliteStore(Store):
    """A SQLite file. All its clients are on one host: SQLite's own locks do not reach further.

    The time is the host's CLOCK_BOOTTIME, so that nobody gains or loses a lease when the wall clock is set; it
    starts again with each boot, therefore each row says by which boot it counts.
    """

    remote = False
    concurrent = False

    def __init__(self, url: URL, clock: Clock) -> None:
        arguments, options = url.get_dialect()().create_connect_args(url)
        self.path: str = arguments[0]
        self.shown = _shown(url)
        if self.path in ("", ":memory:") or "mode=memory" in self.path:
            raise ConfigError(
                "a database in memory has no second client to lock out",
                key="lock.uri",
                value=self.shown,
                accepted="sqlite:///path/to/file.db, or lock-impl=memory",
            )
        self.uri = bool(options.get("uri"))
        self.clock = clock
        self._epoch = 0
        self.clock_name = (process_name(os.getpid()) or socket.gethostname()).partition(":")[0]
        super().__init__()

    def _connect(self) -> Connection:
        return SqliteConnection(self)

    def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return *values* with the times.

        They are read here and not by an SQL function: SQLite would swallow a Ctrl-C that arrives in a callback.
        """
        now, wall = int(self.clock.now() * 1000), self.clock.wall_ms()
        # Kept until the wall clock is set: the two are read and rounded one by one, and what ends would seem to move.
        if abs(wall - now - self._epoch) > _SET_MS:
            self._epoch = wall - now
        return {**values, "now": now, "wall": wall, "epoch": self._epoch}

    def portable(self, text: str, values: Mapping[str, Any]) -> Step:
        """See :meth:`Store.portable`."""
        return _sqlite_text(text), self.bound(values)


class SqliteConnection(Connection):
    """A connection to a SQLite file, and a datagram socket on which this thread is woken.

    SQLite tells nobody of a change, and to poll for it costs processor time that the holder needs. But all clients
    are on one host, so whoever removes a request sends a datagram to those that it may grant. Names in Linux's
    abstract namespace leave no file behind. Where a datagram does not arrive (containers that share a file and no
    network namespace) the waiter's own tick finds out, and where there is no such namespace it ticks fast.
    """

    _DEAF_TICK = 0.003
    """Seconds between two questions where nobody can wake us: small beside a commit, and 2 % of a core."""

    def __init__(self, store: SqliteStore) -> None:
        self.wake = f"commit-coord.{store.host.new_id().hex}"
        self._store = store
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._socket: socket.socket | None = None
        self._listening = False
        _SQLITE_CONNECTIONS[self] = None

    def __del__(self) -> None:
        """A thread ended."""
        self._close_now()

    def reach(self) -> None:
        """See :meth:`Connection.reach`. A file is not away."""

    def run(
        self,
        steps: Sequence[Step],
        then: Sequence[Step] = (),
        *,
        waking: Sequence[Step] = (),
        durable: bool = True,
    ) -> list[Rows]:
        """See :meth:`Connection.run`."""
        with self._lock, self._translated():
            db = self._open()
            try:
                db.execute("BEGIN IMMEDIATE")
                awake = [address for step in waking for (address,) in self._execute(db, *step)]
                rows = [self._execute(db, *step) for step in steps]
                db.execute("COMMIT")
            except BaseException:
                self._roll_back(db)
                raise
            for address in awake:
                self._send(address)
            for step in then:
                for (address,) in self._execute(db, *step):
                    self._send(address)
            return rows

    def ask(self, text: str, values: Mapping[str, Any]) -> Rows:
        """See :meth:`Connection.ask`."""
        with self._lock, self._translated():
            return self._execute(self._open(), text, values)

    def listen(self) -> bool:
        """See :meth:`Connection.listen`."""
        if self._listening:
            return False
        # Linux alone has the abstract namespace; elsewhere the address would be refused and the tick is fast.
        with self._lock, contextlib.suppress(OSError, AttributeError):
            self._channel().bind("\0" + self.wake)
            self._listening = True
        return self._listening

    def wait(self, seconds: float) -> bool:
        """See :meth:`Connection.wait`."""
        channel = self._socket
        if channel is None or not self._listening:
            time.sleep(min(seconds, self._DEAF_TICK))
            return True
        # 1. This thread waits.   2. Another one forks, or closes the client: our socket is closed under us.
        # 3. A wake-up that was sent meanwhile is gone. So whoever asked asks again, and listens anew before it waits.
        with contextlib.suppress(OSError):
            try:
                channel.settimeout(max(seconds, 0.001))
                channel.recv(1)
            except TimeoutError:
                return False
        return True

    def close(self) -> None:
        """See :meth:`Connection.close`."""
        with self._lock:
            self._close_now()

    def _close_now(self) -> None:
        if self._db is not None:
            self._db.close()
        if self._socket is not None:
            self._socket.close()
        self._db, self._socket, self._listening = None, None, False

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            with _OPENING:
                # One second: what can wait is asked again by the manager, which knows the deadline.
                db = sqlite3.connect(
                    self._store.path, timeout=1.0, isolation_level=None, check_same_thread=False, uri=self._store.uri
                )
            try:
                db.execute("PRAGMA journal_mode = WAL").fetchall()
                # No fsync for each lock: after a power failure no holder is alive, and TAKE_PLACE skips the places
                # that may have been forgotten. The database stays whole either way.
                db.execute("PRAGMA synchronous = NORMAL")
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (lease_sql.CREATED,)).fetchall():
                    db.execute("BEGIN IMMEDIATE")
                    for text in lease_sql.CREATE:
                        db.execute(_sqlite_text(text))
                    db.execute("COMMIT")
            except BaseException:
                db.close()
                raise
            self._db = db
        elif self._db.in_transaction:  # Left behind by an interrupt that came twice.
            self._roll_back(self._db)
        return self._db

    def _execute(self, db: sqlite3.Connection, text: str, values: Mapping[str, Any]) -> Rows:
        return db.execute(_sqlite_text(text), self._store.bound(values)).fetchall()

    def _roll_back(self, db: sqlite3.Connection) -> None:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            # What could not be rolled back ends with the connection.
            self._close_now()

    def _channel(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        return self._socket

    def _send(self, address: str) -> None:
        # Nobody there any more, not there yet (it asks again once it listens), or its inbox is full of wake-ups.
        with contextlib.suppress(OSError, AttributeError):
            self._channel().sendto(b"", socket.MSG_DONTWAIT, "\0" + address)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, here and nowhere else."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise DuplicateRequest from error
        except sqlite3.Error as error:
            busy = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            kind = Interrupted if busy else LockServiceUnavailable
            raise kind("the lock database failed", url=self._store.shown, reason=error) from error


_SQLITE_CONNECTIONS: weakref.WeakKeyDictionary[SqliteConnection, None] = weakref.WeakKeyDictionary()
_OPENING = threading.Lock()
_QUIET: list[threading.Lock] = []


def _before_fork() -> None:
    """Close all connections to SQLite, as soon as each is between two transactions, and keep them closed.

    SQLite's library notes in memory which file locks its process has. A forked child inherits the notes and not the
    locks, and would read and write as if it had them, through new connections too. So none may be open.
    """
    for lock, connection in [(_OPENING, None), *((c._lock, c) for c in _living(_SQLITE_CONNECTIONS))]:
        if not lock.acquire(timeout=2.0):
            logger.warning("forked while a transaction on a SQLite lock database was under way")
            continue
        _QUIET.append(lock)
        if connection is not None:
            connection._close_now()


def _after_fork() -> None:
    while _QUIET:
        _QUIET.pop().release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


# --- PostgreSQL ---------------------------------------------------------------------------------------------------


_SERVER_CLOCK = "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)"
_POSTGRES_WORDS = {
    "{now}": _SERVER_CLOCK,
    "{wall}": _SERVER_CLOCK,
    "{epoch}": "0",
    "{ids}": "(SELECT json_array_elements_text(CAST(:ids AS json)))",
    "{notify}": "pg_notify(r.wake, '')",
    "{text}": 'TEXT COLLATE "C"',
    "{for update}": "FOR UPDATE",
}
_CREATION = 0x636F6D6D69745F63
"""The advisory lock of whoever creates the tables, ``commit_c`` in ASCII."""


_FOR_GOOD = ("28", "3D", "54")
"""Classes of errors that psycopg calls operational and that no repeat ends: no right, no such database, a limit."""


def _is_cut(db: psycopg.Connection[Any]) -> bool:
    """Return whether the other end has closed *db*, as far as the system knows without asking."""
    import psycopg

    try:
        for _ in range(2):  # the first one may read a farewell
            db.pgconn.consume_input()
    except psycopg.Error:
        return True
    return False


def _postgres_words(text: str) -> str:
    for word, meaning in _POSTGRES_WORDS.items():
        text = text.replace(word, meaning)
    return text


@cache
def _postgres_text(text: str) -> bytes:
    return re.sub(r":([a-z_]+)", r"%(\1)s", _postgres_words(text)).encode()


class PostgresStore(Store):
    """A PostgreSQL database. The time is the server's, ``clock_timestamp()``."""

    clock_name = "server"
    remote = True
    concurrent = True

    def __init__(self, url: URL, patience_ms: int) -> None:
        try:
            import psycopg  # noqa: F401 - only whether it is there
        except ImportError as error:
            raise ConfigError(
                "PostgreSQL's driver is not installed",
                key="lock.uri",
                value=_shown(url),
                accepted="pip install 'commit_coord[postgres]'",
            ) from error
        self.shown = _shown(url)
        # Whatever driver the catalog uses, ours is psycopg 3.
        url = url.set(drivername="postgresql+psycopg")
        _, options = url.get_dialect()().create_connect_args(url)
        self.options: dict[str, Any] = {
            **noticing_silence(patience_ms),
            "application_name": "commit_coord",
            **options,
        }
        self.patience_ms = patience_ms
        self.reached = False
        super().__init__()

    def _connect(self) -> Connection:
        return PostgresConnection(self)

    def portable(self, text: str, values: Mapping[str, Any]) -> Step:
        """See :meth:`Store.portable`."""
        return _postgres_words(text), values


class PostgresConnection(Connection):
    """A connection to PostgreSQL, on which this thread also listens while it waits.

    A transaction goes to the server as a whole, in one round trip (libpq's pipeline) and one packet, if it fits. That
    is quick, and it closes a hole: a client that is stopped or cut off between two statements would hold the counter
    row, and with it the queue, until it continues. A client that is stopped here has sent its COMMIT already, or
    nothing. Where the network loses the end of it, the server's look after its client ends the transaction: in the
    middle of a pipeline nothing counts as idle to it.
    """

    def __init__(self, store: PostgresStore) -> None:
        self.wake = f"commit_coord_{store.host.new_id().hex}"
        self._store = store
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._db: psycopg.Connection[tuple[Any, ...]] | None = None
        self._listening = False

    def __del__(self) -> None:
        """A thread ended."""
        if self._pid == os.getpid():
            self._close_now()

    def reach(self) -> None:
        """See :meth:`Connection.reach`. A connection that the other end has closed is opened anew."""
        with self._lock, self._translated():
            if self._db is not None and _is_cut(self._db):
                self._close_now()
            self._open()

    def run(
        self,
        steps: Sequence[Step],
        then: Sequence[Step] = (),
        *,
        waking: Sequence[Step] = (),
        durable: bool = True,
    ) -> list[Rows]:
        """See :meth:`Connection.run`."""
        with self._lock, self._translated():
            db = self._open()
            try:
                with _in_one_go(db):
                    db.execute("BEGIN")
                    if not durable:
                        db.execute("SET LOCAL synchronous_commit = off")
                    for text, values in waking:  # the server sends notifications with the commit
                        db.execute(_postgres_text(text), values)
                    cursors = [db.execute(_postgres_text(text), values) for text, values in steps]
                    db.execute("COMMIT")
                    for text, values in then:
                        db.execute(_postgres_text(text), values)
                return [cursor.fetchall() if cursor.description else [] for cursor in cursors]
            except BaseException as error:
                self._roll_back(db, error)
                raise

    def ask(self, text: str, values: Mapping[str, Any]) -> Rows:
        """See :meth:`Connection.ask`."""
        with self._lock, self._translated():
            db = self._open()
            try:
                cursor = db.execute(_postgres_text(text), values)
                return cursor.fetchall() if cursor.description else []
            except BaseException as error:
                self._roll_back(db, error)
                raise

    def listen(self) -> bool:
        """See :meth:`Connection.listen`."""
        with self._lock, self._translated():
            db = self._open()
            if self._listening:
                return False
            db.execute(f'LISTEN "{self.wake}"'.encode())
            self._listening = True
            return True

    def wait(self, seconds: float) -> bool:
        """See :meth:`Connection.wait`."""
        with self._lock, self._translated():
            db = self._open()
            # Also yields what arrived with the answer to an earlier question (psycopg 3.2.4 and later).
            return len(list(db.notifies(timeout=max(seconds, 0.001), stop_after=1))) > 0

    def close(self) -> None:
        """See :meth:`Connection.close`."""
        with self._lock:
            self._close_now()

    def _close_now(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db, self._listening = None, False

    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._db is not None and self._db.closed:
            self._close_now()
        if self._db is None:
            import psycopg

            db = psycopg.connect(**self._store.options, autocommit=True)
            try:
                for setting, value in self._settings().items():
                    db.execute(f"SET {setting} = {value}".encode())
                if not db.execute(b"SELECT to_regclass(%s)::text", (lease_sql.CREATED,)).fetchall()[0][0]:
                    self._create(db)
            except BaseException:
                db.close()
                raise
            self._db, self._store.reached = db, True
        return self._db

    def _settings(self) -> dict[str, str]:
        patience = f"{self._store.patience_ms:d}"
        server = noticing_silence(self._store.patience_ms)
        return {
            # Bounds what a client or a server that stalls can do to the others; see the class.
            "statement_timeout": patience,
            "idle_in_transaction_session_timeout": patience,
            "tcp_user_timeout": patience,
            **{f"tcp_{name}": str(value) for name, value in server.items() if name.startswith("keepalives_")},
            "client_min_messages": "warning",
            # Every statement has its index. A planner that knows the tables as they were a minute ago reads all of them
            # instead: with 100,000 locks of others an acquire took 100 ms.
            **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"),
            "jit": "off",
        }

    def _create(self, db: psycopg.Connection[tuple[Any, ...]]) -> None:
        with db.transaction():
            # IF NOT EXISTS is no protection: two that create at once both find nothing, and the second fails on
            # the catalog's unique index.
            db.execute(f"SELECT pg_advisory_xact_lock({_CREATION})".encode())
            for text in lease_sql.CREATE:
                db.execute(_postgres_text(text))

    def _roll_back(self, db: psycopg.Connection[tuple[Any, ...]], error: BaseException) -> None:
        """Leave no transaction open, whatever *error* the last statement met."""
        if not isinstance(error, Exception):
            # 1. A statement is prepared, and the driver notes that.   2. An interrupt comes; it was never sent.
            # 3. From then on the driver asks for a prepared statement that the server does not know.
            self._close_now()
            return
        try:
            if not db.closed and db.info.transaction_status.name != "IDLE":
                db.execute(b"ROLLBACK")
        except BaseException:
            # The server rolls back what a closed connection left open.
            self._close_now()
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the driver's errors into ours, here and nowhere else."""
        import psycopg

        try:
            yield
        except psycopg.errors.UniqueViolation as error:
            raise DuplicateRequest from error
        except psycopg.Error as error:
            cut = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            cut = cut and (error.sqlstate or "")[:2] not in _FOR_GOOD
            # A server that was never reached is a wrong URL more often than a short outage: say so at once.
            kind = Interrupted if cut and self._store.reached else LockServiceUnavailable
            raise kind("the lock database failed", url=self._store.shown, reason=str(error).strip()) from error


@contextlib.contextmanager
def _in_one_go(db: psycopg.Connection[Any]) -> Iterator[None]:
    """Send everything that the block executes by one call of the system: psycopg sends each statement when it comes."""
    with db.pipeline() as pipeline:
        pipeline._communicate_gen = lambda: iter(())  # type: ignore[method-assign, return-value, assignment]
        try:
            yield
        finally:
            del pipeline._communicate_gen
            commands = list(pipeline.command_queue)
            pipeline.command_queue.clear()

            def send() -> None:
                for command in commands:
                    command()

            pipeline.command_queue.append(send)


def id_list(request_ids: Sequence[str]) -> str:
    """Return *request_ids* as the parameter ``:ids``."""
    return json.dumps(list(request_ids))
