"""Connections that are open already, and the servers that may be used instead of one that does not answer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from commit_coord.hms.connection import LostReply, MetastoreConnection, NotSent


class Pool:
    """Idle connections to the server that is used at present. Thread safe; a forked child starts with none.

    Args:
        addresses: The servers, in the order of preference. One is used until it fails.
        connect: Opens a connection to an address.
        idle: So many connections are kept open at most; more are opened when they are needed.
    """

    def __init__(
        self, addresses: Sequence[str], connect: Callable[[str], MetastoreConnection], *, idle: int = 8
    ) -> None:
        self._addresses = tuple(addresses)
        self._connect = connect
        self._most_idle = idle
        self.reached = False
        """Whether a connection ever succeeded. If not, wrong addresses are more likely than a restart of the server."""
        self._lock = threading.Lock()
        self._start_over(0)

    def _start_over(self, current: int) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[MetastoreConnection] = []
        self._current = current

    @property
    def address(self) -> str:
        """The server that is used at present."""
        return self._addresses[self._current]

    @contextmanager
    def connection(self) -> Iterator[MetastoreConnection]:
        """Lend a connection; it is closed when a call on it was not answered, by a Ctrl-C too.

        Raises:
            NotSent: None of the servers can be reached.
        """
        connection = self._take()
        try:
            yield connection
        except LostReply:
            self._leave(connection.address)
            raise
        finally:
            self._give_back(connection)

    def close(self) -> None:
        """Close what is idle; what is lent closes when it comes back. May be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> MetastoreConnection:
        if self._pid != os.getpid():
            # One connection must not serve two processes: an answer would go to the process that reads first.
            self._start_over(self._current)
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._open()
            if connection.address == self.address and connection.healthy:
                return connection
            connection.close()

    def _open(self) -> MetastoreConnection:
        failures: list[NotSent] = []
        for _ in self._addresses:
            address = self.address
            try:
                connection = self._connect(address)
            except NotSent as error:
                failures.append(error)
                self._leave(address)
            else:
                self.reached = True
                return connection
        if len(failures) == 1:
            raise failures[0]
        raise NotSent("none of the metastores can be reached", causes="; ".join(str(failure) for failure in failures))

    def _leave(self, address: str) -> None:
        """Use the next server, unless another thread went on already."""
        with self._lock:
            if self.address == address:
                self._current = (self._current + 1) % len(self._addresses)

    def _give_back(self, connection: MetastoreConnection) -> None:
        with self._lock:
            if connection.clean and len(self._idle) < self._most_idle and connection.address == self.address:
                self._idle.append(connection)
                return
        connection.close()
