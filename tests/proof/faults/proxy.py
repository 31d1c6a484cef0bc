"""A TCP proxy in front of one server: connections are cut, answers are late or never come."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress


class Proxy:
    """Forwards connections to *port* of loopback.

    Args:
        port: The server's.
        seed: Of the choice which answers are lost.
    """

    def __init__(self, port: int, seed: int = 0) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._dice = random.Random(seed)
        self.there_s = 0.0
        """What each packet to the server takes longer."""
        self.back_s = 0.0
        """What each packet from the server takes longer."""
        self.loses = 0.0
        """The share of answers in whose place the connection is cut: what was asked for has been done."""
        self.lost = 0
        """Answers that were lost."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection; new ones are served."""
        for one in list(self._open):
            self._end(one)

    def heal(self) -> None:
        """Delay and lose nothing any more."""
        self.there_s = self.back_s = self.loses = 0.0

    def close(self) -> None:
        """End everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(one)
            threading.Thread(target=self._there, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(client, server), daemon=True).start()

    def _there(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.there_s:
                    time.sleep(self.there_s)  # a network that is slow
                server.sendall(data)
        self._end(client, server)

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self.loses and self._dice.random() < self.loses:
                    self.lost += 1
                    break
                if self.back_s:
                    time.sleep(self.back_s)  # likewise
                client.sendall(data)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._open.discard(one)
