"""One server as the main process of a container; see ``docker/``. It listens on every address of the container.

``python -m commit_coord.local.container NAME``, where the name is:

* ``postgres``: a PostgreSQL server on port 5432; POSTGRES_PASSWORD is the password of its user ``tester``.
* ``zookeeper``: a ZooKeeper server on port 2181. In an ensemble, ZOOKEEPER_SERVERS are the hosts of all, separated by
  blanks, and ZOOKEEPER_NUMBER says which of them it is, from 1.
* ``hms``: a Hive Metastore of HMS_VERSION on port 9083, on the PostgreSQL database HMS_DATABASE_URL, else on Derby.
  Its tables are in HMS_TABLES, else /tables, which writers must have as well.
* ``fetch``: no server, but the jars of the Hive Metastore of HMS_VERSION, for the image.

``python -m commit_coord.local.container healthy NAME`` ends with code 0 if the server in this container answers, else
with 1; for health checks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from sqlalchemy.engine import make_url

from commit_coord.local import hms, zookeeper
from commit_coord.local.hms import HiveMetastore
from commit_coord.local.postgres import PostgresDatabase, PostgresServer, find_postgres
from commit_coord.local.server import LOOPBACK, LocalServer
from commit_coord.local.zookeeper import ZooKeeperServer

_DATA = Path("/data")
_EVERYWHERE = "0.0.0.0"  # noqa: S104 # nosec B104
"""Of a container: what is published of it says who runs it."""
_POLL_S = 1
_PORTS = {"postgres": 5432, "zookeeper": 2181, "hms": 9083}


def server(name: str) -> LocalServer:
    """Return the server that *name* and the environment describe."""
    match name:
        case "postgres":
            password = os.environ["POSTGRES_PASSWORD"]
            return PostgresServer(folder=_DATA / name, port=_PORTS[name], address=_EVERYWHERE, password=password)
        case "zookeeper":
            port = _PORTS[name]
            peers = [
                f"{host}:2888:3888;{_EVERYWHERE}:{port}" for host in os.environ.get("ZOOKEEPER_SERVERS", "").split()
            ]
            number = int(os.environ.get("ZOOKEEPER_NUMBER", "1"))
            return ZooKeeperServer(_DATA / name, port, number=number, peers=peers, address=_EVERYWHERE)
        case "hms":
            url = os.environ.get("HMS_DATABASE_URL")
            database = None if url is None else _database(url)
            version = os.environ["HMS_VERSION"]
            tables = Path(os.environ.get("HMS_TABLES", "/tables"))
            return HiveMetastore(
                _DATA / name, version, _PORTS[name], postgres=database, address=_EVERYWHERE, tables=tables
            )
    raise SystemExit(f"no server {name!r}: {', '.join(_PORTS)}")


def healthy(name: str) -> bool:
    """Return whether the server *name* of this container, which another process started, answers."""
    match name:
        case "postgres":
            program = find_postgres() / "pg_isready"
            command = [str(program), "--quiet", "--host", LOOPBACK, "--port", str(_PORTS[name])]
            return subprocess.run(command, check=False).returncode == 0
        case "zookeeper":
            return zookeeper.mode(_PORTS[name]) != ""
        case "hms":
            return hms.answers(_PORTS[name])
    raise SystemExit(f"no server {name!r}: {', '.join(_PORTS)}")


def _database(text: str) -> PostgresDatabase:
    url = make_url(text)
    assert url.host is not None
    return PostgresDatabase(
        host=url.host,
        port=url.port or 5432,
        name=url.database or "postgres",
        user=url.username or "",
        password=url.password or "",
    )


def main(name: str) -> None:
    """Run a server until SIGTERM, or until it ends by itself, which is an error. Its log is our output."""
    if name == "fetch":
        hms.fetch(os.environ["HMS_VERSION"])
        return
    with server(name) as running:
        ends = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)
        subprocess.Popen(["tail", "--lines=+1", "--follow", running.log])  # ends with the container
        print(f"{running.name} is up", flush=True)
        while signal.sigtimedwait(ends, _POLL_S) is None:
            if not running.running:
                raise SystemExit(f"{running.name} has ended")


if __name__ == "__main__":
    if sys.argv[1] == "healthy":
        sys.exit(not healthy(sys.argv[2]))
    main(sys.argv[1])
