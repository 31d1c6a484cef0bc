"""A connection to a metastore that can be cut at a chosen call: before it, or before its answer."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Forwards to a metastore.

    Args:
        target: ``thrift://host:port``.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"thrift://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sockets: list[socket.socket] = []
        """Two of each connection that was ever opened: the client's and the server's."""
        self.swallow: list[str] = []
        """Calls whose next answer is lost: they are carried out, and the connection is cut. One entry for each time."""
        self.refuse: list[str] = []
        """Calls that are lost on their way: the connection is cut before the server has them."""
        self.seen: list[str] = []
        self.passing = threading.Event()
        """Cleared: connections are taken, and nothing that is sent on them arrives."""
        self.passing.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self.sockets += [client, server]
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Take one call after the other: Thrift has one at a time on a connection."""
        threading.Thread(target=self._answers, args=(client, server), daemon=True).start()
        with suppress(OSError):
            while data := client.recv(1 << 20):
                name = _call(data)
                if name is not None:
                    self.seen.append(name)
                    if name in self.refuse:
                        self.refuse.remove(name)
                        break
                self.passing.wait()
                server.sendall(data)
        _cut(client, server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 20):
                name = _call(data)
                if name in self.swallow:
                    self.swallow.remove(name)
                    break
                client.sendall(data)
        _cut(client, server)

    def cut(self) -> None:
        """Cut every connection; new ones are served."""
        _cut(*self.sockets)

    def close(self) -> None:
        """Cut everything; new connections are refused."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _cut(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def _call(data: bytes) -> str | None:
    """Return the call at the start of *data*, in Thrift's strict binary protocol."""
    if len(data) < 8 or data[:2] != b"\x80\x01":
        return None
    (length,) = struct.unpack(">i", data[4:8])
    return data[8 : 8 + length].decode() if 0 < length < 100 else None
