"""PostgreSQL, from the programs of the operating system's packages."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from commit_coord.local.server import LOOPBACK, LocalServer, NotInstalled, ServerFailed

_USER = "tester"

_SERVER_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; these users exist wherever its packages are installed."""

_SETTINGS = ("max_connections=400", "shared_buffers=32MB")  # each Hive Metastore takes dozens of connections


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresDatabase:
    """A database on some PostgreSQL server."""

    host: str
    port: int
    name: str
    user: str
    password: str

    @property
    def url(self) -> str:
        """As SQLAlchemy wants it."""
        return f"postgresql+psycopg://{self.user}:{self.password}@{self.host}:{self.port}/{self.name}"

    @property
    def jdo(self) -> dict[str, str]:
        """As Java's JDO wants it."""
        return {
            "ConnectionURL": f"jdbc:postgresql://{self.host}:{self.port}/{self.name}",
            "ConnectionDriverName": "org.postgresql.Driver",
            "ConnectionUserName": self.user,
            "ConnectionPassword": self.password,
        }

    def psql(self, *arguments: str) -> str:
        """Run ``psql`` with *arguments* and return what it prints.

        Raises:
            ServerFailed: It failed; the log says why.
        """
        done = subprocess.run(
            [
                *(str(find_postgres() / "psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"),
                *("--set", "ON_ERROR_STOP=1", "--host", self.host, "--port", str(self.port)),
                *("--username", self.user, "--dbname", self.name, *arguments),
            ],
            env={**os.environ, "PGPASSWORD": self.password},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"psql failed on {self.name}", done.stderr[-2000:])
        return done.stdout.strip()


class PostgresServer(LocalServer):
    """A PostgreSQL server.

    Args:
        settings: Further settings of the server, ``name=value``.
        folder: See :class:`LocalServer`.
        port: See :class:`LocalServer`.
        address: Where it listens.
        password: What lets the user ``tester`` in. Without one, it is made up.

    Raises:
        NotInstalled: Its programs are not there.
    """

    name = "PostgreSQL"
    _stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # ends the sessions instead of waiting for them

    def __init__(
        self,
        *settings: str,
        folder: Path | None = None,
        port: int | None = None,
        address: str = LOOPBACK,
        password: str | None = None,
    ) -> None:
        super().__init__(folder, port)
        self._bin = find_postgres()
        self._settings = settings
        self._address = address
        self._password = password or secrets.token_urlsafe(16)
        self._runs_as = _server_user()

    def database(self, name: str = "postgres") -> PostgresDatabase:
        """Return a database of this server, which is made if it is not there. It stays the same over restarts."""
        password = (self.folder / "password").read_text()
        made = PostgresDatabase(host=LOOPBACK, port=self.port, name=name, user=_USER, password=password)
        if name != "postgres" and not self.psql(f"select 1 from pg_database where datname = '{name}'"):
            self.psql(f'create database "{name}"')
        return made

    @property
    def url(self) -> str:
        """A SQLAlchemy URL of the database ``postgres``."""
        return self.database().url

    def psql(self, statement: str) -> str:
        """Run *statement* in the database ``postgres`` and return what ``psql`` prints.

        Raises:
            ServerFailed: It failed; the log says why.
        """
        return self.database().psql("--command", statement)

    def healthy(self) -> bool:
        """Whether it takes connections."""
        return self.running and takes_connections(self.folder, self.pid)

    def _prepare(self) -> None:
        if (self.folder / "data").exists():
            return
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self._password)
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
            raise ServerFailed("initdb failed", made.stderr.decode(errors="replace"))
        if self._address != LOOPBACK:
            with (self.folder / "data" / "pg_hba.conf").open("a") as access:
                access.write("host all all all scram-sha-256\n")

    def _command(self) -> Sequence[str]:
        here = (f"listen_addresses={self._address}", f"port={self.port}", f"unix_socket_directories={self.folder}")
        settings = (*_SETTINGS, *here, *self._settings)
        chosen = (word for setting in settings for word in ("-c", setting))
        return [str(self._bin / "postgres"), "-D", str(self.folder / "data"), *chosen]

    def _user(self) -> str | None:
        return None if self._runs_as is None else self._runs_as.pw_name


def takes_connections(folder: Path, pid: int) -> bool:
    """Whether the server in *folder* does: it says so in the last field of the first lines of its pid file."""
    with suppress(OSError, IndexError):
        lines = (folder / "data" / "postmaster.pid").read_text().splitlines()
        return lines[0] == str(pid) and lines[7].strip() == "ready"
    return False


def _server_user() -> pwd.struct_passwd | None:
    """Return the user that the server runs as, None for our own."""
    if os.geteuid() != 0:
        return None
    for name in _SERVER_USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise NotInstalled(f"PostgreSQL refuses to run as root, and there is none of the users {_SERVER_USERS}")
