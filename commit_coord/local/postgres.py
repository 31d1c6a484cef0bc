"""A private PostgreSQL server for tests, from the programs of the operating system's packages."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_SERVER_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; these users exist wherever its packages are installed."""


class PostgresUnavailable(RuntimeError):
    """The server's programs are not installed; the message says what to install."""


def find_postgres() -> Path:
    """Return the folder of ``initdb`` and ``postgres``, the newest version first.

    Raises:
        PostgresUnavailable: They are not installed.
    """
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True
    )
    path = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for folder in (*debian, *path):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresUnavailable("the PostgreSQL server is not installed: apt-get install postgresql")


class PostgresServer:
    """A PostgreSQL server on a free loopback port, with its data in a temporary folder.

    Nothing of it outlives this process: a watchdog, which holds the other end of a pipe, stops the server and removes
    the folder when the pipe closes, however this process ended.

    Args:
        settings: Further settings of the server, ``name=value``.
    """

    def __init__(self, *settings: str) -> None:
        self._bin = find_postgres()
        self._settings = settings
        self._user = _server_user()
        self._password = secrets.token_urlsafe(16)
        self._folder: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """A SQLAlchemy URL of the database; stays the same over :meth:`stop` and :meth:`start`."""
        return f"postgresql+psycopg://tester:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The server's process id while it runs."""
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        """Start the server, on the data that an earlier :meth:`stop` left, and wait until it answers.

        Raises:
            RuntimeError: It did not come up; the message carries its log.
        """
        if self._folder is None:
            self._create()
        for _ in range(3 if self.port == 0 else 1):
            if self._try_start(self.port or _free_port()):
                return
        raise RuntimeError(f"PostgreSQL did not start:\n{self._log()}")

    def stop(self, mode: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and keep its data.

        Args:
            mode: SIGINT ends the sessions, SIGQUIT ends at once and recovers at the next start.
        """
        if self._server is not None:
            self._server.send_signal(mode)
            self._server.wait(30)
            self._server = None
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.wait()
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            self._watchdog = None

    def close(self) -> None:
        """Stop the server and remove its data. May be called again."""
        self.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, and remove everything."""
        self.close()

    def _create(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="commit-coord-postgres-"))
        secret = self._folder / "password"
        secret.write_text(self._password)
        if self._user is not None:
            for path in (self._folder, secret):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)
        made = subprocess.run(
            [
                self._bin / "initdb", "--pgdata", self._folder / "data", "--username", "tester", "--pwfile", secret,
                "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync",
            ],
            cwd=self._folder,
            preexec_fn=self._drop_privileges(),  # setuid alone: nothing that takes a lock
            capture_output=True,
            check=False,
        )  # fmt: skip
        secret.unlink()
        if made.returncode:
            self.close()
            raise RuntimeError(f"initdb failed:\n{made.stderr.decode(errors='replace')}")

    def _try_start(self, port: int) -> bool:
        assert self._folder is not None
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={port}",
            f"unix_socket_directories={self._folder}",
            "max_connections=200",
            "shared_buffers=32MB",
            *self._settings,
        )
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [self._bin / "postgres", "-D", self._folder / "data", *(a for s in settings for a in ("-c", s))],
                cwd=self._folder,
                preexec_fn=self._drop_privileges(),  # noqa: PLW1509 - setuid alone: nothing that takes a lock
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests, which then stop the server
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self._server.pid), str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until = time.monotonic() + 30
        while self._server.poll() is None and time.monotonic() < until:
            if self._answers(port):
                self.port = port
                return True
            time.sleep(0.02)
        self.stop()
        return False

    def _answers(self, port: int) -> bool:
        """Whether it takes connections: it says so in the last field of the first lines of its pid file."""
        assert self._folder is not None
        with contextlib.suppress(OSError, IndexError):
            lines = (self._folder / "data" / "postmaster.pid").read_text().splitlines()
            return lines[3] == str(port) and lines[7].strip() == "ready"
        return False

    def _log(self) -> str:
        assert self._folder is not None
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def _drop_privileges(self) -> Callable[[], None] | None:
        user = self._user
        if user is None:
            return None

        def become() -> None:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)

        return become


_WATCHDOG = 'read -r _; kill -INT "$1"; while kill -0 "$1" 2>/dev/null; do sleep 0.1; done; rm -rf "$2"'


def _server_user() -> pwd.struct_passwd | None:
    """Return the user that the server runs as, None for our own."""
    if os.geteuid() != 0:
        return None
    for name in _SERVER_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable(f"PostgreSQL refuses to run as root, and there is none of the users {_SERVER_USERS}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
