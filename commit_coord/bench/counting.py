"""A way to a server that counts the requests that go through it."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

Requests = Callable[[bytes], Iterator[str]]
"""Names the requests in what a client sent at once. Clients send a request in one piece, or several of them."""

PING = "ping"
"""What keeps a session alive, whether anybody waits or not."""

_PING_TYPE = 11


def zookeeper_requests(sent: bytes) -> Iterator[str]:
    """Yield the types of ZooKeeper's requests: each begins with its length, its number and its type."""
    while len(sent) >= 12:
        length, _, kind = struct.unpack(">iii", sent[:12])
        yield PING if kind == _PING_TYPE else str(kind)
        sent = sent[4 + length :]


def metastore_requests(sent: bytes) -> Iterator[str]:
    """Yield the name of a Thrift call: version 1 and CALL, the name's length, the name."""
    if sent[:4] == b"\x80\x01\x00\x01":
        (length,) = struct.unpack(">i", sent[4:8])
        yield sent[8 : 8 + length].decode()


class CountingProxy:
    """Forwards connections to a server on this machine.

    Args:
        port: The server's.
        requests: Names what is counted.
    """

    def __init__(self, port: int, requests: Requests) -> None:
        self._to = port
        self._names = requests
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen: Counter[str] = Counter()
        """Requests so far, by name."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, target, source is client), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if asking:
                    self.seen.update(self._names(data))
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take no further connections; those that are open end with their ends."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
