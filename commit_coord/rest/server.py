"""The process of a server: checks its settings, listens, and runs the application under uvicorn."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from commit_coord.errors import ConfigError
from commit_coord.rest.application import SECRET_BYTES, Application, identities
from commit_coord.rest.processes import run_processes
from commit_coord.rest.settings import Serving, is_loopback
from commit_coord.rest.tls import Protocol, tls_context
from commit_coord.rest.warehouses import Warehouses
from commit_coord.rest.watching import SHARED_METRICS

_BACKLOG = 2048


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
        tls_context(serving.tls)
    own_secret(serving)
    warehouses = Warehouses(serving.catalogs)
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

    Args:
        serving: The settings, which :func:`check` has accepted.
        ready: Called with the URL once the port is open.

    Raises:
        OSError: The port is in use.
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
        run_processes(serving.processes, work, partial(_forget_gauges, Path(os.environ[SHARED_METRICS])))


def _forget_gauges(folder: Path, process: int) -> None:
    """Remove the gauges of a process that has ended from the sums over the processes that run."""
    for path in folder.glob(f"gauge_live*_{process}.db"):
        path.unlink(missing_ok=True)


def _work(serving: Serving, listening: socket.socket, secret: bytes) -> None:
    """Serve *listening* until SIGTERM or Ctrl-C."""
    tls = serving.tls
    config = uvicorn.Config(
        Application(serving, secret),
        http=Protocol,
        ssl_context_factory=None if tls is None else lambda _, __: tls_context(tls),
        proxy_headers=False,  # the application decides whether to trust such a header
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
    )
    # uvicorn raises SIGTERM again after its shutdown. Without this, the exit code would be that of a killed process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Tells its application that it stops, before it waits for the requests that run."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new, and finish the requests that run."""
        application = self.config.app
        assert isinstance(application, Application), "it was made with one"
        application.stop()
        await super().shutdown(sockets)


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
