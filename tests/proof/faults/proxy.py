"""A TCP proxy in front of one server, or of several that serve the same: connections are cut, answers late or lost."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress


class Proxy:
    """Forwards each connection to one of *ports* of loopback, which takes it.

    Args:
        ports: Of a server, or of servers that serve the same.
        seed: Of the choice of a port, and of the answers that are lost.
    """

    def __init__(self, *ports: int, seed: int = 0) -> None:
        self._ports = ports
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
            server = self._connected()
            if server is None:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(one)
            threading.Thread(target=self._there, args=(client, server), daemon=True).start()
            threading.Thread(target=self._back, args=(client, server), daemon=True).start()

    def _connected(self) -> socket.socket | None:
        for port in self._dice.sample(self._ports, len(self._ports)):
            with suppress(OSError):
                return socket.create_connection(("127.0.0.1", port))
        return None

    def _there(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.there_s:
                    time.sleep(self.there_s)  # the subject: a network that is slow
                server.sendall(data)
        self._end(client, server)

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self.loses and self._dice.random() < self.loses:
                    self.lost += 1
                    break
                if self.back_s:
                    time.sleep(self.back_s)  # the subject: a network that is slow
                client.sendall(data)
        self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._open.discard(one)
