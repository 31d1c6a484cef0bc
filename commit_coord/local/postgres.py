"""PostgreSQL, from the programs of the operating system's packages."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from commit_coord.local.server import LocalServer, NotInstalled, ServerFailed

_USER = "tester"

_SERVER_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; these users exist wherever its packages are installed."""

_SETTINGS = ("listen_addresses=127.0.0.1", "max_connections=400", "shared_buffers=32MB")


def find_postgres() -> Path:
    """Return the folder of ``initdb`` and ``postgres``, the newest version first.

    Raises:
        NotInstalled: They are not there.
    """
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True
    )
    path = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for folder in (*debian, *path):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NotInstalled("the PostgreSQL server is not installed: apt-get install postgresql")


class PostgresServer(LocalServer):
    """A PostgreSQL server.

    Args:
        settings: Further settings of the server, ``name=value``.
        folder: See :class:`LocalServer`.
        port: See :class:`LocalServer`.

    Raises:
        NotInstalled: Its programs are not there.
    """

    name = "PostgreSQL"
    _stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # ends the sessions instead of waiting for them

    def __init__(self, *settings: str, folder: Path | None = None, port: int | None = None) -> None:
        super().__init__(folder, port)
        self._bin = find_postgres()
        self._settings = settings
        self._runs_as = _server_user()

    @property
    def password(self) -> str:
        """What lets the user ``tester`` in."""
        return (self.folder / "password").read_text()

    @property
    def url(self) -> str:
        """A SQLAlchemy URL of the database; stays the same over restarts."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the SQLAlchemy URL of another database of this server."""
        return f"postgresql+psycopg://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def jdbc(self, database: str) -> dict[str, str]:
        """Return URL, driver, user and password of *database*, by the names that Java's JDO has for them."""
        return {
            "ConnectionURL": f"jdbc:postgresql://127.0.0.1:{self.port}/{database}",
            "ConnectionDriverName": "org.postgresql.Driver",
            "ConnectionUserName": _USER,
            "ConnectionPassword": self.password,
        }

    def psql(self, database: str, *arguments: str) -> str:
        """Run ``psql`` with *arguments* and return what it prints.

        Raises:
            ServerFailed: It failed; the message says why.
        """
        done = subprocess.run(
            [
                *(str(self._bin / "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"),
                *("--set", "ON_ERROR_STOP=1", "--host", "127.0.0.1", "--port", str(self.port)),
                *("--username", _USER, "--dbname", database, *arguments),
            ],
            env={**os.environ, "PGPASSWORD": self.password},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"psql failed on {database}:\n{done.stderr[-2000:]}")
        return done.stdout.strip()

    def healthy(self) -> bool:
        """Whether it takes connections: it says so in the last field of the first lines of its pid file."""
        with suppress(OSError, IndexError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            return self.running and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def _prepare(self) -> None:
        if (self.folder / "data").exists():
            return
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(16))
        if self._runs_as is not None:
            for path in (self.folder, secret):
                os.chown(path, self._runs_as.pw_uid, self._runs_as.pw_gid)
        made = subprocess.run(
            [
                *(self._bin / "initdb", "--pgdata", self.folder / "data", "--username", _USER, "--pwfile", secret),
                *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ],
            cwd="/",
            user=self._user(),
            group=self._user(),
            extra_groups=None if self._runs_as is None else [],
            capture_output=True,
            check=False,
        )
        if made.returncode:
            raise ServerFailed(f"initdb failed:\n{made.stderr.decode(errors='replace')}")

    def _command(self) -> Sequence[str]:
        settings = (*_SETTINGS, f"port={self.port}", f"unix_socket_directories={self.folder}", *self._settings)
        chosen = (word for setting in settings for word in ("-c", setting))
        return [str(self._bin / "postgres"), "-D", str(self.folder / "data"), *chosen]

    def _user(self) -> str | None:
        return None if self._runs_as is None else self._runs_as.pw_name


def _server_user() -> pwd.struct_passwd | None:
    """Return the user that the server runs as, None for our own."""
    if os.geteuid() != 0:
        return None
    for name in _SERVER_USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise NotInstalled(f"PostgreSQL refuses to run as root, and there is none of the users {_SERVER_USERS}")
