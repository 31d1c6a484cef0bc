"""Leases in a SQLite file: transactions, wake-ups by datagrams, and what a fork must not inherit."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy.engine import URL

from commit_coord.clock import Clock
from commit_coord.errors import ConfigError, LockServiceUnavailable
from commit_coord.locks.base import Interrupted
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.store import Connection, DuplicateRequest, FetchedRows, SqlStep, Store, living, shown
from commit_coord.process import boot, boottime_ahead_ms, is_of_signal_handler

logger = logging.getLogger(__name__)

_PLACEHOLDERS = {
    "{now}": ":now",
    "{wall}": ":wall",
    "{epoch}": ":epoch",
    "{ids}": "(SELECT value FROM json_each(:ids))",
    "{notify}": "r.wake",
    "{text}": "TEXT",
    "{for update}": "",
}


_SET_MS = 100
"""If wall clock minus boot clock changes by more than this (milliseconds), the wall clock was set."""


@cache
def sqlite_text(text: str) -> str:
    """Return a statement of ``statements`` in SQLite's words."""
    for word, meaning in _PLACEHOLDERS.items():
        text = text.replace(word, meaning)
    return text


class SqliteStore(Store):
    """A SQLite file. All its clients are on one host: SQLite's own locks do not reach further.

    The time is the host's CLOCK_BOOTTIME, so that nobody gains or loses a lease when the wall clock is set. This clock
    starts again with each boot, so each row names the boot by whose clock its end time counts. All containers see the
    same time: the offset of a time namespace is subtracted.
    """

    remote = False
    concurrent = False

    def __init__(self, url: URL, clock: Clock) -> None:
        arguments, options = url.get_dialect()().create_connect_args(url)
        self.path: str = arguments[0]
        self.shown = shown(url)
        if self.path in ("", ":memory:") or "mode=memory" in self.path:
            raise ConfigError(
                "an in-memory database can't hold leases: no other client can open it",
                key="lock.uri",
                value=self.shown,
                accepted="sqlite:///path/to/file.db, or lock-impl=memory",
            )
        self.uri = bool(options.get("uri"))
        self.clock = clock
        self._epoch = 0
        # No fallback to another clock: a row of another clock counts as expired and is deleted.
        # 1. A holds. B is opened while no file descriptor is free; suppose that it uses another clock.
        # 2. B waits for A, sees that A's row is of another clock, deletes it, and is granted.
        try:
            self.clock_name, self._ahead_ms = boot(), boottime_ahead_ms()
        except OSError as error:
            raise LockServiceUnavailable(
                "the boot id or the boot clock of this machine can't be read, "
                "so the ends of leases can't be determined",
                url=self.shown,
                reason=error,
                needed="a /proc that can be read, and a free file descriptor",
            ) from error
        super().__init__()

    def _connect(self) -> Connection:
        return SqliteConnection(self)

    def bound(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return *values* with the times.

        They are read here and not by an SQL function: SQLite would swallow a Ctrl-C that arrives in a callback.
        """
        now, wall = int(self.clock.now() * 1000) - self._ahead_ms, self.clock.wall_ms()
        # Keep the offset until the wall clock is set. The clocks are read one after the other and rounded, so a new
        # offset for each call would make the end times of leases vary.
        if abs(wall - now - self._epoch) > _SET_MS:
            self._epoch = wall - now
        return {**values, "now": now, "wall": wall, "epoch": self._epoch}

    def portable(self, text: str, values: Mapping[str, Any]) -> SqlStep:
        """See :meth:`Store.portable`."""
        return sqlite_text(text), self.bound(values)


class SqliteConnection(Connection):
    """A connection to a SQLite file, and a datagram socket on which this thread is woken.

    SQLite tells nobody of a change, and to poll for it costs processor time that the holder needs. But all clients
    are on one host, so a client that removes a request sends a datagram to the waiters that are perhaps granted now.
    Names in Linux's abstract namespace leave no file behind. If a datagram does not arrive (containers that share a
    file and no network namespace), the waiter's next poll notices the change. Without abstract namespaces the waiter
    polls fast.
    """

    _FAST_POLL_S = 0.003
    """Poll interval in seconds if there are no wake-ups: short compared with a commit, and 2 % of a core."""

    def __init__(self, store: SqliteStore) -> None:
        self.wake = store.address("commit-coord.")
        self._store = store
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._socket: socket.socket | None = None
        self._listening = False
        _CONNECTIONS[self] = None

    def __del__(self) -> None:
        """Close the connection: its thread has ended."""
        self._close_now()

    def reach(self) -> None:
        """See :meth:`Connection.reach`. There is nothing to do for a file."""

    def run(
        self,
        steps: Sequence[SqlStep],
        then: Sequence[SqlStep] = (),
        *,
        waking: Sequence[SqlStep] = (),
        durable: bool = True,
    ) -> list[FetchedRows]:
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
            try:
                for step in then:
                    for (address,) in self._execute(db, *step):
                        self._send(address)
            except sqlite3.Error as error:
                # Every other error says that nothing has happened, but *steps* are committed.
                raise Interrupted("the lock database failed", url=self._store.shown, reason=error) from error
            return rows

    def ask(self, text: str, values: Mapping[str, Any]) -> FetchedRows:
        """See :meth:`Connection.ask`."""
        with self._lock, self._translated():
            return self._execute(self._open(), text, values)

    def listen(self) -> bool:
        """See :meth:`Connection.listen`."""
        if self._listening:
            return False
        # Only Linux has the abstract namespace; elsewhere the address is refused, and `wait` polls fast.
        with self._lock, _whatever_the_system_answers():
            self._channel().bind("\0" + self.wake)
            self._listening = True
        return self._listening

    def wait(self, seconds: float) -> bool:
        """See :meth:`Connection.wait`."""
        channel = self._socket
        if channel is None or not self._listening:
            self._store.clock.sleep(min(seconds, self._FAST_POLL_S))
            return True
        # Not by the socket's own timeout: it raises TimeoutError, and so does many a handler of SIGALRM.
        poll = select.poll()
        try:
            poll.register(channel, select.POLLIN)
        except ValueError:
            return True  # It is closed, see below.
        if not poll.poll(max(1, round(seconds * 1000))):
            # 1. This thread waits.   2. Another one forks, or closes the client: our socket is closed under us.
            # 3. A wake-up that was sent meanwhile is lost. So return True: the waiter looks again before it waits.
            return channel is not self._socket
        with _whatever_the_system_answers():
            channel.recv(1, socket.MSG_DONTWAIT)
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
                # One second. If the database is busy for longer, the caller retries: it knows the deadline.
                db = sqlite3.connect(
                    self._store.path, timeout=1.0, isolation_level=None, check_same_thread=False, uri=self._store.uri
                )
            try:
                db.execute("PRAGMA journal_mode = WAL").fetchall()
                # No fsync for each lock: after a power failure no holder is alive, and TAKE_PLACE skips the places
                # that may have been forgotten. The database stays whole either way. Only the effect of the last LOCK
                # and UNLOCK statements may be undone (docs/guarantees.md).
                db.execute("PRAGMA synchronous = NORMAL")
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (lease_sql.CREATED,)).fetchall():
                    db.execute("BEGIN IMMEDIATE")
                    for text in lease_sql.CREATE:
                        db.execute(sqlite_text(text))
                    db.execute("COMMIT")
            except BaseException:
                db.close()
                raise
            self._db = db
        elif self._db.in_transaction:  # A second interrupt prevented the rollback.
            self._roll_back(self._db)
        return self._db

    def _execute(self, db: sqlite3.Connection, text: str, values: Mapping[str, Any]) -> FetchedRows:
        return db.execute(sqlite_text(text), self._store.bound(values)).fetchall()

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
        # An error means: the waiter has gone, or does not listen yet (it looks again once it listens), or has many
        # wake-ups already.
        with _whatever_the_system_answers():
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
            if busy:
                raise Interrupted(
                    "the lock database is busy: another client holds its write lock",
                    url=self._store.shown,
                    reason=error,
                ) from error
            raise LockServiceUnavailable("the lock database failed", url=self._store.shown, reason=error) from error


@contextlib.contextmanager
def _whatever_the_system_answers() -> Iterator[None]:
    """Ignore errors of the operating system, and that it knows no such sockets."""
    try:
        yield
    except AttributeError:
        pass
    except OSError as error:
        if is_of_signal_handler(error):
            raise


_CONNECTIONS: weakref.WeakKeyDictionary[SqliteConnection, None] = weakref.WeakKeyDictionary()
_OPENING = threading.Lock()


class _Quiet(threading.local):
    """The mutexes that a thread has locked for a fork.

    1. The threads A and B fork. A locks all mutexes.   2. B waits for the first one.   3. A has forked, and releases
    the first one.   4. B locks it. With one list for both threads, A would now release what B has locked.
    """

    def __init__(self) -> None:
        self.locks: list[threading.Lock] = []


_QUIET = _Quiet()


def _before_fork() -> None:
    """Close all connections to SQLite, as soon as each is between two transactions, and keep them closed.

    SQLite's library records in memory which file locks its process has. A forked child inherits this record, but not
    the locks: it would read and write as if it had the locks, also through new connections. So no connection may be
    open during a fork.
    """
    for lock, connection in [(_OPENING, None), *((c._lock, c) for c in living(_CONNECTIONS))]:
        if not lock.acquire(timeout=2.0):
            logger.warning("forked while a transaction on a SQLite lock database was under way")
            continue
        _QUIET.locks.append(lock)
        if connection is not None:
            connection._close_now()


def _after_fork() -> None:
    while _QUIET.locks:
        _QUIET.locks.pop().release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
