"""kazoo: imports, threads and sockets, log. Only the modules that use this one have values of type ``Any``.

Limits of kazoo 2.11, and where we work around them
    * It exposes neither the negotiated session timeout nor the times of its pings and their answers: see ``opening``.
    * It sends one request for each byte in a pipe. If a signal handler raises before the byte is written, the request
      has no byte, and from then on each request waits for the next one: see ``Connection._nudge``.
    * ``Transaction.commit`` returns errors as elements of its result: see ``Session.multi``.
    * It reports the reason why it can't connect only to its log: see :class:`LastWarning`.
    * It does not support multiRead (many reads in one packet, ZooKeeper 3.6), and each single read costs it a tenth of
      a millisecond: see ``bulk``.
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
from commit_coord.extras import install
from commit_coord.locks.zookeeper.access import EnsembleAccess

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
        accepted=install("zookeeper"),
    ) from missing

__all__ = [
    "ACL",
    "Id",
    "KazooClient",
    "KazooHandler",
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


class KazooHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's threads and sockets.

    Differences to kazoo's own handler:

    * A gate: while it is closed, nothing is sent or received, as in a stopped process.
    * Our own TLS context: kazoo reads the certificates again for each try, and leaves the socket of a failed try open.
    * poll(2): kazoo creates and closes an epoll instance for each wait, five times for a request. That took a third of
      the processor time of its thread.
    """

    def __init__(self, access: EnsembleAccess) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self._tls = _tls_context(access) if access.tls else None

    def create_connection(self, address: Any, hostname: Any = None, timeout: Any = None, **_: Any) -> Any:
        """Return a socket that is connected to *address*, with TLS if it is configured."""
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
        # Round up: a wait of less than a millisecond would become 0, and the caller's loop would never sleep.
        ready = [waiting[one] for one, _ in poll.poll(None if timeout is None else ceil(timeout * 1000))]
        return [one for one in ready if one in read], [one for one in ready if one not in read], []


def _tls_context(access: EnsembleAccess) -> ssl.SSLContext:
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
    """Keeps kazoo's last warning, because kazoo reports the reason of a failure only in its log."""

    def __init__(self) -> None:
        super().__init__(f"{logger.name}.kazoo")
        self.parent = logger
        self.last = ""

    def handle(self, record: logging.LogRecord) -> None:
        """Keep a warning, and log each record at INFO at most."""
        if record.levelno >= logging.WARNING:
            error = record.exc_info[1] if record.exc_info else None
            self.last = str(error or record.getMessage())
        # Our errors contain the last warning. As warnings, the lines that kazoo logs for each try would be too many.
        record.levelno, record.levelname = min(record.levelno, logging.INFO), "INFO"
        if logger.isEnabledFor(record.levelno):
            super().handle(record)
