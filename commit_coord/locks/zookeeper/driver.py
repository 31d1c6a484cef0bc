"""kazoo: its names, its threads and sockets, its log. ``Any`` stops in the modules that use this one.

What kazoo 2.11 does not do, and is done here
    * It keeps the negotiated session timeout to itself, and when its pings were sent and answered: see ``opening``.
    * It sends one request for each byte in a pipe. A signal handler that raises between the two leaves a request
      without its byte, and from then on each request waits for the next one: see ``Connection._nudge``.
    * ``Transaction.commit`` returns errors among its results: see ``Session.multi``.
    * It says why it can't connect to its log alone: see :class:`LastWarning`.
    * It has no multiRead, many reads in one packet (ZooKeeper 3.6), and each of them costs it a tenth of a
      millisecond: see ``bulk``.
"""

from __future__ import annotations

import logging
import select
import ssl
import threading
from collections.abc import Sequence
from math import ceil
from typing import Any

from commit_coord.errors import ConfigError, LockServiceUnavailable
from commit_coord.locks.zookeeper.access import Access

try:
    from kazoo import exceptions as kazoo_errors
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    from kazoo.handlers.utils import fileobj_to_fd
    from kazoo.protocol import serialization
    from kazoo.protocol.paths import _prefix_root as prefix_root
    from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
    from kazoo.retry import KazooRetry
    from kazoo.security import ACL, Id
except ImportError as missing:
    raise ConfigError(
        "missing optional dependency",
        key="lock-impl",
        value="zookeeper",
        accepted="pip install 'commit_coord[zookeeper]'",
    ) from missing

__all__ = [
    "ACL",
    "Handler",
    "Id",
    "KazooClient",
    "KazooRetry",
    "KazooState",
    "KazooTimeoutError",
    "KeeperState",
    "LastWarning",
    "ZnodeStat",
    "kazoo_errors",
    "prefix_root",
    "serialization",
]

logger = logging.getLogger(__name__)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's threads and sockets.

    With a gate: while it is shut nothing is sent or received, as in a process that is stopped. With a TLS context
    of ours: kazoo's own reads the certificates again for each try, and leaves the socket of one that failed open. And
    with poll(2) instead of an epoll instance that is made and closed around each wait, five times for a request: that
    was a third of the processor time of its thread.
    """

    def __init__(self, access: Access) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self._tls = _tls_context(access) if access.tls else None

    def create_connection(self, address: Any, hostname: Any = None, timeout: Any = None, **_: Any) -> Any:
        """Return a socket that is connected to *address*, within TLS where it is asked for."""
        plain = super().create_connection(address, timeout=timeout)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(self, read: Sequence[Any], write: Sequence[Any], _: Sequence[Any], timeout: float | None = None) -> Any:
        """Return those that can be read and written, as ``select.select``."""
        self.gate.wait()
        poll, waiting = select.poll(), {fileobj_to_fd(one): one for one in (*read, *write)}
        for descriptor, one in waiting.items():
            poll.register(descriptor, select.POLLIN if one in read else select.POLLOUT)
        # Rounded up, lest a wait of less than a millisecond becomes a loop that burns the processor.
        ready = [waiting[one] for one, _ in poll.poll(None if timeout is None else ceil(timeout * 1000))]
        return [one for one in ready if one in read], [one for one in ready if one not in read], []


def _tls_context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.tls_ca or None)
        if access.tls_cert:
            context.load_cert_chain(access.tls_cert, access.tls_key or None, access.tls_key_password or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise LockServiceUnavailable("the TLS settings can't be used", reason=error, key="lock.zk.tls-*") from error
    if not access.tls_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class LastWarning(logging.Logger):
    """Keeps the last warning, which is where kazoo says what went wrong."""

    def __init__(self) -> None:
        super().__init__(f"{logger.name}.kazoo")
        self.parent = logger
        self.last = ""

    def handle(self, record: logging.LogRecord) -> None:
        """Keep a warning, and log each record at INFO at most."""
        if record.levelno >= logging.WARNING:
            error = record.exc_info[1] if record.exc_info else None
            self.last = str(error or record.getMessage())
        # What matters of it is in our errors; a client that waits for a server logs a line for each try.
        record.levelno, record.levelname = min(record.levelno, logging.INFO), "INFO"
        if logger.isEnabledFor(record.levelno):
            super().handle(record)
