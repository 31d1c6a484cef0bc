"""The process of a server: checks its settings, listens, and runs the application under uvicorn."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.errors import ConfigError
from commit_coord.rest.application import SECRET_BYTES, Application, identities
from commit_coord.rest.processes import run_processes
from commit_coord.rest.settings import Serving, is_loopback
from commit_coord.rest.tls import Protocol, certificates, tls_context
from commit_coord.rest.warehouses import Warehouses
from commit_coord.rest.watching import SHARED_METRICS

logger = logging.getLogger(__name__)

_BACKLOG = 2048
_END_TIMEOUT_S = 10
_END_POLL_S = 0.1
"""How long the end of a process may take after its stop timeout: it releases its locks and closes its connections."""


def check(serving: Serving) -> None:
    """Return if a server can start with these settings. This opens all catalogs, and closes them again.

    Raises:
        ConfigError: Other machines can reach the address, and authentication or TLS is missing; a catalog cannot be
            opened, or has a lock manager that serves only one process; or a file is not valid.
    """
    if not is_loopback(serving.host):
        if serving.authentication is None:
            raise ConfigError(
                "without authentication the server listens on loopback only: every client may drop tables",
                key="--host",
                value=serving.host,
                accepted="127.0.0.1, ::1, localhost; or [authentication] in the file of --config",
            )
        if serving.tls is None and not serving.allow_plain_http:
            raise ConfigError(
                "tokens would cross the network without encryption",
                key="--host",
                value=serving.host,
                accepted="[tls] in the file of --config, or allow-plain-http = true behind a proxy that has TLS",
            )
    if serving.tls is not None:
        certificates(serving.tls)
    own_secret(serving)
    warehouses = Warehouses(serving.catalogs, properties=serving.properties)
    warehouses.open()
    try:
        identities(serving, warehouses, os.urandom(SECRET_BYTES))
        for name in serving.catalogs:
            settings = warehouses.chosen(name).catalog.settings
            if serving.processes > 1 and settings.lock_impl == "memory":
                raise ConfigError(
                    "the `memory` lock manager serves one process alone",
                    catalog=name,
                    key="--processes",
                    value=serving.processes,
                    accepted="1, or lock-impl=lease",
                )
    finally:
        warehouses.close()


def own_secret(serving: Serving) -> bytes:
    """Return the secret that signs the server's own tokens: the configured key, or a new one.

    Raises:
        ConfigError: The key cannot be read, or is too short.
    """
    oauth = serving.authentication.oauth if serving.authentication else None
    if oauth is None or oauth.key is None:
        return os.urandom(SECRET_BYTES)
    where: dict[str, Any] = {"key": "authentication.oauth.key", "file": oauth.key}
    try:
        secret = oauth.key.read_bytes()
    except OSError as error:
        raise ConfigError(f"the key of the tokens can't be read: {error.strerror}", **where) from error
    if len(secret) < SECRET_BYTES:
        raise ConfigError(
            "the key of the tokens is too short: it could be guessed",
            **where,
            accepted=f"{SECRET_BYTES} random bytes: openssl rand -out FILE {SECRET_BYTES}",
        )
    return secret


def serve(serving: Serving, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish the requests that run, refuse others, and release every lock.

    The requests that run have the stop timeout to finish; then their connections are closed.

    Args:
        serving: The settings, which :func:`check` has accepted.
        ready: Called with the URL once the port is open.

    Raises:
        OSError: The port is in use.
        ProcessesFailed: One of several processes could not start.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    listening = _listening(serving)
    host, port = listening.getsockname()[:2]
    scheme = "https" if serving.tls else "http"
    ready(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")
    work = partial(_work, serving, listening, own_secret(serving))
    if serving.processes == 1:
        work()
        return
    with tempfile.TemporaryDirectory(prefix="commit-coord-metrics-") as folder:
        os.environ.setdefault(SHARED_METRICS, folder)  # prometheus_client reads it when it is imported
        run_processes(
            serving.processes,
            work,
            patience_s=serving.stop_timeout_ms / 1000 + 2 * _END_TIMEOUT_S,
            ended=partial(_forget_gauges, Path(os.environ[SHARED_METRICS])),
        )


def _forget_gauges(folder: Path, process: int) -> None:
    """Remove the gauges of a process that has ended from the sums over the processes that run."""
    for path in folder.glob(f"gauge_live*_{process}.db"):
        path.unlink(missing_ok=True)


def _work(serving: Serving, listening: socket.socket, secret: bytes) -> None:
    """Serve *listening* until SIGTERM or Ctrl-C."""
    import pyiceberg.io.pyarrow  # noqa: F401 - else the first client that asks for a table waits a second for it

    tls = serving.tls
    current = [certificates(tls)] if tls is not None else []
    application = Application(serving, secret, current)
    config = uvicorn.Config(
        application,
        http=partial(Protocol, limits=serving.limits),  # type: ignore[arg-type] # uvicorn only calls it
        ssl_context_factory=None if tls is None else lambda _, __: tls_context(tls, *current),
        proxy_headers=False,  # the application decides whether to trust such a header
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=math.ceil(serving.keep_alive_ms / 1000),
        # A connection that is in its TLS handshake is not among those that are closed after the stop timeout.
        timeout_graceful_shutdown=math.ceil(serving.stop_timeout_ms / 1000) + 1,
    )
    server = _Server(config, application, serving.stop_timeout_ms / 1000)
    # Also before uvicorn handles the signal: no SIGTERM is lost. And after, because uvicorn then raises it again:
    # the exit code would be that of a killed process.
    signal.signal(signal.SIGTERM, server.handle_exit)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        _leave_hanging_threads(128 + signal.SIGINT, abandoned=application.abandoned)
        raise
    _leave_hanging_threads(0, abandoned=application.abandoned)


def _leave_hanging_threads(code: int, *, abandoned: bool) -> None:
    """End the process now if a thread hangs in a call to a service: Python would wait for it at the end.

    Args:
        code: The exit code.
        abandoned: Whether requests still run. They get no time: every lock is released, and one that goes on would
            acquire its latch again.
    """
    others = [each for each in threading.enumerate() if not each.daemon and each is not threading.current_thread()]
    until = time.monotonic() + (0 if abandoned else _END_TIMEOUT_S)
    ExecutorFactory.get_or_create().shutdown(wait=False)  # else its idle threads live on; what is queued is done
    for each in others:
        each.join(max(0.0, until - time.monotonic()))
    if hanging := [each.name for each in others if each.is_alive()]:
        logger.error("the process ends although threads have not: %s", ", ".join(hanging))
        logging.shutdown()
        os._exit(code)


class _Server(uvicorn.Server):
    """Tells its application that it stops, and waits for a limited time only for the requests that run.

    Args:
        config: Of uvicorn.
        application: What it serves.
        stop_timeout_s: The limit.
    """

    def __init__(self, config: uvicorn.Config, application: Application, stop_timeout_s: float) -> None:
        super().__init__(config)
        self._application = application
        self._stop_timeout_s = stop_timeout_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new, and finish the requests that run; those that take too long lose their connections."""
        try:
            self._application.stop()
        except Exception:
            logger.exception("a stop of the server goes on, although not everything that waits is refused")
        deadline = asyncio.get_running_loop().call_later(self._stop_timeout_s, self._abandon)
        closing = asyncio.create_task(self._end_closing())
        await super().shutdown(sockets)
        deadline.cancel()
        closing.cancel()

    async def _end_closing(self) -> None:
        """End the connections that only wait for the client's part of TLS' end: one that is idle reads nothing."""
        while True:
            await asyncio.sleep(_END_POLL_S)
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Protocol), "the configuration names no other one"
                if connection.transport.is_closing() and connection.delivery.is_complete:
                    connection.transport.abort()

    def _abandon(self) -> None:
        """Close all connections, and wait for no request any more."""
        self._application.abandon()
        logger.error("%d connections are closed: their requests took too long", len(self.server_state.connections))
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # Later, because the connections do not know yet that they are closed, and would get an answer.
        asyncio.get_running_loop().call_soon(self._end_tasks)

    def _end_tasks(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()


def _listening(serving: Serving) -> socket.socket:
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((serving.host, serving.port))
        listening.listen(_BACKLOG)  # clients may connect from now on; they get answers once the catalogs are open
    except OSError:
        listening.close()
        raise
    return listening
