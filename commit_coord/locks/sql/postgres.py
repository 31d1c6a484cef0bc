"""Leases in a PostgreSQL database: transactions of one round trip, wake-ups by LISTEN and NOTIFY."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import URL

from commit_coord.errors import ConfigError, LockServiceUnavailable
from commit_coord.extras import install
from commit_coord.locks.base import Interrupted
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.store import Connection, DuplicateRequest, FetchedRows, SqlStep, Store, shown
from commit_coord.process import raise_of_signal_handler

if TYPE_CHECKING:
    import psycopg

_SERVER_CLOCK = "CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT)"
_PLACEHOLDERS = {
    "{now}": _SERVER_CLOCK,
    "{wall}": _SERVER_CLOCK,
    "{epoch}": "0",
    "{ids}": "(SELECT json_array_elements_text(CAST(:ids AS json)))",
    "{notify}": "pg_notify(r.wake, '')",
    "{text}": 'TEXT COLLATE "C"',
    "{for update}": "FOR UPDATE",
}
_CREATION = 0x636F6D6D69745F63
"""The number of the advisory lock of the client that creates the tables: ``commit_c`` in ASCII."""


_PERMANENT = ("28", "3D", "54")
"""SQLSTATE classes of operational errors for which a retry is useless: authorization, no such database, a limit."""


def _is_cut(db: psycopg.Connection[Any]) -> bool:
    """Return whether the other end has closed *db*, as far as the system knows without asking."""
    import psycopg

    try:
        for _ in range(2):  # the first call may read the server's last message
            db.pgconn.consume_input()
    except psycopg.Error:
        return True
    return False


def _is_idle(db: psycopg.Connection[Any]) -> bool:
    return db.info.transaction_status.name == "IDLE"


def _postgres_words(text: str) -> str:
    for word, meaning in _PLACEHOLDERS.items():
        text = text.replace(word, meaning)
    return text


@cache
def postgres_text(text: str) -> bytes:
    """Return a statement of ``statements`` in the words of PostgreSQL and its driver."""
    return re.sub(r":([a-z_]+)", r"%(\1)s", _postgres_words(text)).encode()


@cache
def _numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement of ``statements`` as PREPARE takes it, and the names of its parameters by their numbers."""
    words = _postgres_words(text)
    names = tuple(dict.fromkeys(re.findall(r":([a-z_]+)", words)))
    return re.sub(r":([a-z_]+)", lambda match: f"${names.index(match[1]) + 1}", words), names


def _listed(items: Sequence[str]) -> str:
    return f"({', '.join(items)})" if items else ""


def _rows(cursor: psycopg.ClientCursor[tuple[Any, ...]]) -> FetchedRows:
    """Return the rows of the present statement, and go on to the next one."""
    rows = cursor.fetchall() if cursor.description else []
    cursor.nextset()
    return rows


def _type_of(value: int | str | None) -> str:
    """Return the type of a parameter."""
    if value is None:
        return "unknown"  # PREPARE infers it
    return "text" if isinstance(value, str) else "bigint"


def keepalive_options(patience_ms: int) -> dict[str, int]:
    """Return libpq's options that detect an unreachable server within about *patience_ms*.

    Without keepalives: 1. A query arrives, and the server's kernel confirms it; the network is cut.   2. The server
    answers, hears nothing, and ends the connection; the message of this end is lost, too.   3. The network is back.
    Neither side has anything to send, and the client waits for two hours, the system's default.
    """
    third_s = max(1, patience_ms // 3000)
    return {
        "connect_timeout": max(2, patience_ms // 1000),
        "tcp_user_timeout": patience_ms,
        "keepalives_idle": third_s,
        "keepalives_interval": third_s,
        "keepalives_count": 2,
    }


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
                "missing optional dependency",
                key="lock.uri",
                value=shown(url),
                accepted=install("postgres"),
            ) from error
        self.shown = shown(url)
        # Whatever driver the catalog uses, ours is psycopg 3.
        url = url.set(drivername="postgresql+psycopg")
        _, options = url.get_dialect()().create_connect_args(url)
        self.options: dict[str, Any] = {
            **keepalive_options(patience_ms),
            "application_name": "commit_coord",
            **options,
        }
        self.patience_ms = patience_ms
        self.reached = False
        super().__init__()

    def _connect(self) -> Connection:
        return PostgresConnection(self)

    def portable(self, text: str, values: Mapping[str, Any]) -> SqlStep:
        """See :meth:`Store.portable`."""
        return _postgres_words(text), values


class PostgresConnection(Connection):
    """A connection to PostgreSQL, on which this thread also listens while it waits.

    A transaction goes to the server as a whole: as one query of several statements, in one round trip, and one packet
    if it fits. That is quick, and it closes a hole: a client that is stopped or cut off between two statements would
    hold the counter row, and with it the queue, until it continues. The server begins only when it has all of the
    query, COMMIT included. Such a query can't have parameters. So each connection prepares each statement once, and the
    query contains EXECUTE commands with the values.
    """

    def __init__(self, store: PostgresStore) -> None:
        self.wake = store.address("commit_coord_")
        self._store = store
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._db: psycopg.Connection[tuple[Any, ...]] | None = None
        self._listening = False
        self._prepared: dict[tuple[str, tuple[str, ...]], str] = {}
        """The names of prepared statements, by text and types of the parameters."""

    def __del__(self) -> None:
        """Close the connection: its thread has ended."""
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
        steps: Sequence[SqlStep],
        then: Sequence[SqlStep] = (),
        *,
        waking: Sequence[SqlStep] = (),
        durable: bool = True,
    ) -> list[FetchedRows]:
        """See :meth:`Connection.run`."""
        import psycopg

        with self._lock, self._translated():
            db, sent = self._open(), False
            try:
                cursor = psycopg.ClientCursor(db)
                # The server sends the notifications of *waking* with the commit.
                before, calls, after = ([self._call(cursor, *step) for step in some] for some in (waking, steps, then))
                before = ["BEGIN", *([] if durable else ["SET LOCAL synchronous_commit = off"]), *before]
                sent = True
                cursor.execute("; ".join([*before, *calls, "COMMIT", *after]).encode())
                for _ in before:
                    cursor.nextset()
                return [_rows(cursor) for _ in calls]
            except BaseException as error:
                # 1. COMMIT is done.   2. *then* fails, for instance because the queue of notifications is full.
                # The server reports only the failure, and not whether it came before COMMIT.
                unknown = sent and isinstance(error, psycopg.DatabaseError) and bool(then) and _is_idle(db)
                self._roll_back(db, error)
                if unknown:
                    raise Interrupted("the lock database failed", url=self._store.shown, reason=error) from error
                raise

    def _call(self, cursor: psycopg.ClientCursor[Any], text: str, values: Mapping[str, Any]) -> str:
        """Return the EXECUTE command for a statement; prepare the statement first if this connection has not."""
        statement, names = _numbered(text)
        types = tuple(_type_of(values[name]) for name in names)
        prepared = self._prepared.get((text, types))
        if prepared is None:
            prepared = f"commit_coord_{len(self._prepared)}"
            cursor.execute(f"PREPARE {prepared} {_listed(types)} AS {statement}".encode())
            self._prepared[text, types] = prepared
        return cursor.mogrify(f"EXECUTE {prepared} {_listed(['%s'] * len(names))}".encode(), [values[n] for n in names])

    def ask(self, text: str, values: Mapping[str, Any]) -> FetchedRows:
        """See :meth:`Connection.ask`."""
        with self._lock, self._translated():
            db = self._open()
            try:
                cursor = db.execute(postgres_text(text), values)
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
            # Also yields what arrived with the answer to an earlier query (psycopg 3.2.4 and later).
            return len(list(db.notifies(timeout=max(seconds, 0.001), stop_after=1))) > 0

    def close(self) -> None:
        """See :meth:`Connection.close`."""
        with self._lock:
            self._close_now()

    def _close_now(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db, self._listening, self._prepared = None, False, {}

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
        server = keepalive_options(self._store.patience_ms)
        return {
            # Bounds what a client or a server that stalls can do to the others; see the class.
            "statement_timeout": patience,
            "idle_in_transaction_session_timeout": patience,
            "tcp_user_timeout": patience,
            **{f"tcp_{name}": str(value) for name, value in server.items() if name.startswith("keepalives_")},
            "client_min_messages": "warning",
            # Every statement can use an index. With outdated statistics the planner would scan whole tables instead:
            # with 100,000 locks of others an acquire took 100 ms.
            **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"),
            "jit": "off",
        }

    def _create(self, db: psycopg.Connection[tuple[Any, ...]]) -> None:
        with db.transaction():
            # IF NOT EXISTS is no protection: two clients that create at once both find no table, and the second one
            # fails on a unique index of PostgreSQL's own system tables.
            db.execute(f"SELECT pg_advisory_xact_lock({_CREATION})".encode())
            for text in lease_sql.CREATE:
                db.execute(postgres_text(text))

    def _roll_back(self, db: psycopg.Connection[tuple[Any, ...]], error: BaseException) -> None:
        """Leave no transaction open, whatever *error* the last statement met."""
        if not isinstance(error, Exception):
            # After an interrupt, client and server may disagree on the prepared statements, so close the connection.
            # Either the driver has recorded a statement that was never sent; or the server has prepared one that
            # `_prepared` does not record, and its name can't be prepared again.
            self._close_now()
            return
        try:
            if not db.closed and not _is_idle(db):
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
            raise_of_signal_handler(error)
            cut = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            cut = cut and (error.sqlstate or "")[:2] not in _PERMANENT
            # If the server was never reached, the URL is wrong more often than the server is away: do not try again.
            kind = Interrupted if cut and self._store.reached else LockServiceUnavailable
            raise kind("the lock database failed", url=self._store.shown, reason=str(error).strip()) from error
