"""A network between a client and one server, which a test can cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

MULTI = 14
"""ZooKeeper's number for a multi."""


class Proxy:
    """Forwards connections to *port*."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_cut = False
        self._losing: int | None = None
        self._deaf: socket.socket | None = None
        self.lost = threading.Event()
        """Set when a reply was lost."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def connect_string(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End all connections, and refuse new ones until :meth:`mend`."""
        self._is_cut = True
        self._end()

    def mend(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    def lose_reply(self, request: int) -> None:
        """Let the next *request* through, and cut its connection in place of the answer."""
        self.lost.clear()
        self._losing = request

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self._end()

    def __enter__(self) -> Self:
        """Return the proxy itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, target, source is client), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if asking and self._losing is not None and data[8:12] == self._losing.to_bytes(4, "big"):
                    self._losing, self._deaf = None, target
                elif source is self._deaf:
                    self._deaf = None
                    self.lost.set()
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _end(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
