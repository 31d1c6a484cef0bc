"""The interface of the ``lease`` lock manager to a database: connections, transactions, wake-ups.

Each database implements :class:`Connection`; each thread has its own connection. This module knows nothing of locks.
The connections are plain DBAPI: every commit acquires and releases a latch, and for SQLite the overhead of SQLAlchemy
would be several times the cost of the statement. SQLAlchemy only reads the URL, so that one URL serves the catalog and
the locks.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy.engine import URL

from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.redaction import without_passwords

C = TypeVar("C", bound="Connection")

SqlStep = tuple[str, Mapping[str, Any]]
FetchedRows = list[tuple[Any, ...]]


class DuplicateRequest(Exception):
    """A request of this id has entered before: ours with a lost reply, or that of another client."""


class Connection(ABC):
    """One thread's connection. Opens when it is used, and again when it was cut."""

    wake: str
    """The address for wake-ups of this thread."""

    @abstractmethod
    def reach(self) -> None:
        """Open the connection if necessary. An open connection is only checked locally; no query is sent.

        Raises:
            LockServiceUnavailable: It can't be opened. Nothing was sent.
        """

    @abstractmethod
    def run(
        self,
        steps: Sequence[SqlStep],
        then: Sequence[SqlStep] = (),
        *,
        waking: Sequence[SqlStep] = (),
        durable: bool = True,
    ) -> list[FetchedRows]:
        """Run *steps* in one transaction, commit, then run *then*; return the rows of *steps*.

        *then* and *waking* choose the waiters to wake after the commit. *waking* is run before *steps* in the
        transaction: it finds waiters whose requests *steps* will delete.

        Without *durable*, the transaction does not wait for the disk, and a crash of the server right after it may undo
        it. (SQLite ignores *durable*.) An owner releases its request in this way, unless the request is explicit. If a
        crash undoes the release, the request is in the table again; its owner does not extend it, so it expires.

        Guarantee: after DuplicateRequest, and after a LockServiceUnavailable that is not Interrupted, nothing of
        *steps* has happened. After Interrupted, or if an interrupt such as Ctrl-C ends this call, all of *steps* may
        have happened.

        Raises:
            DuplicateRequest: A request id is there already.
            Interrupted: The database is busy, or the connection was cut.
            LockServiceUnavailable: Anything else that the database refuses.
        """

    @abstractmethod
    def ask(self, text: str, values: Mapping[str, Any]) -> FetchedRows:
        """Run one statement in a transaction of its own, and return its rows."""

    @abstractmethod
    def listen(self) -> bool:
        """Receive wake-ups from now on; return whether that is new, so that earlier ones were missed."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Block until a wake-up, at most *seconds*; return whether the waiter should look again."""

    @abstractmethod
    def close(self) -> None:
        """Close; a later use opens it again."""


class Store(ABC):
    """A database, with one connection for each thread of this process."""

    clock_name: str
    """The clock that ``expires_at`` counts by. A row of another clock has expired."""
    remote: bool
    """Whether a statement may have been executed although no reply arrived."""
    concurrent: bool
    """Whether writing transactions run side by side, so that one can miss what another one is about to commit."""

    host: Host = SYSTEM_HOST
    """Names this process, and makes ids, as of those that wait."""

    agent: Callable[[], str] = staticmethod(lambda: SYSTEM_HOST.new_id().hex)
    """Returns the name of the calling thread (:attr:`Held.agent`), 32 characters; the lock manager sets it."""

    def __init__(self) -> None:
        self._start_over()

    def address(self, prefix: str) -> str:
        """Return a new address for wake-ups of the calling thread. Its beginning (``THREAD_LENGTH``) names the thread.

        A thread that holds a lock through one client, and waits through another one, has two addresses. A deadlock
        through its locks is found because both addresses name it.

        Args:
            prefix: 13 characters.
        """
        return f"{prefix}{self.agent()}_{next(_NUMBERS)}"

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.local()
        self._connections: weakref.WeakKeyDictionary[Connection, None] = weakref.WeakKeyDictionary()

    @property
    def connection(self) -> Connection:
        """This thread's connection. A forked child never touches those of its parent."""
        if self._pid != os.getpid():
            # Never closed: closing sends a termination message on the socket that the parent process still uses.
            _INHERITED.append(self._thread)
            _INHERITED.extend(living(self._connections))
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
    def portable(self, text: str, values: Mapping[str, Any]) -> SqlStep:
        """Return a statement and its values for SQLAlchemy, which runs it in the caller's transaction."""

    def close(self) -> None:
        """Close every connection; they open again when they are used."""
        if self._pid == os.getpid():
            for connection in living(self._connections):
                connection.close()


_INHERITED: list[object] = []

_NUMBERS = itertools.count(1)
"""Distinguish the addresses of one thread."""

THREAD_LENGTH = 45
"""The length of the beginning of an address that names the thread: ``statements`` has it, too."""


def living(connections: weakref.WeakKeyDictionary[C, None]) -> list[C]:
    """Return the connections that still exist, while other threads may open more."""
    return [connection for ref in connections.keyrefs() if (connection := ref()) is not None]


def id_list(request_ids: Sequence[str]) -> str:
    """Return *request_ids* as the parameter ``:ids``."""
    return json.dumps(list(request_ids))


def shown(url: URL) -> str:
    """Return *url* without secrets."""
    return without_passwords(url.render_as_string(hide_password=True))
