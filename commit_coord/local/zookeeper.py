"""ZooKeeper, from the jars that PySpark brings along: one server, or an ensemble of them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from commit_coord.local.java import LOG4J, find_java, pyspark_jars
from commit_coord.local.server import LOOPBACK, LocalServer, Server, Startable, free_ports, write_properties

_JAVA = range(17, 26)

_JARS = (
    "zookeeper-[0-9]*.jar", "zookeeper-jute-*.jar", "slf4j-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar", "metrics-core-*.jar", "snappy-java-*.jar", "commons-io-*.jar", "netty-*.jar",
)  # fmt: skip

_SETTINGS = {
    "tickTime": "200",  # what sessions and elections are counted in: a lost server is noticed in a second or two
    "initLimit": "50",
    "syncLimit": "25",
    "minSessionTimeout": "400",
    "maxSessionTimeout": "120000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
}

USUAL_TICKS = {"tickTime": "2000", "initLimit": "10", "syncLimit": "5", "minSessionTimeout": "4000"}
"""What most servers run with: ZooKeeper's own example. Ours are quicker, for tests that wait for a session's end."""


class ZooKeeper(Server):
    """What ZooKeeper servers have in common, wherever they run."""

    @property
    def connect_string(self) -> str:
        """Where clients connect."""
        return f"{LOOPBACK}:{self.port}"

    def healthy(self) -> bool:
        """Whether it serves: alone, as leader or as follower."""
        return self.mode != ""

    @property
    def mode(self) -> str:
        """``standalone``, ``leader``, ``follower``, or nothing while it does not serve."""
        return mode(self.port)

    def ask(self, word: str) -> str:
        """Return the answer to one of ZooKeeper's four letter words, nothing when there is none."""
        return _ask(self.port, word)


class ZooKeeperServer(ZooKeeper, LocalServer):
    """One ZooKeeper server.

    Args:
        folder: Its data, configuration and log.
        port: Where clients connect.
        settings: Further lines of ``zoo.cfg``.
        jvm: Further options of the JVM.
        number: Its place among *peers*, from 1.
        peers: All servers of the ensemble, each as ``host:port:port;address:port``: for followers, for elections, and
            where it listens for clients. Empty: it is alone.
        address: Where it listens for clients when it is alone.
    """

    def __init__(
        self,
        folder: Path | None = None,
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
        number: int = 1,
        peers: Sequence[str] = (),
        address: str = LOOPBACK,
    ) -> None:
        super().__init__(folder, port)
        self.name = f"ZooKeeper {number}" if peers else "ZooKeeper"
        self._settings = {**_SETTINGS, **(settings or {})}
        self._jvm = jvm
        self._number = number
        self._peers = peers
        self._address = address

    def _prepare(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / "myid").write_text(str(self._number))
        (self.folder / "log4j2.properties").write_text(LOG4J)
        peers = {f"server.{number}": peer for number, peer in enumerate(self._peers, 1)}
        alone = {"clientPort": str(self.port), "clientPortAddress": self._address}
        settings = {**self._settings, "dataDir": str(self.folder / "data"), **(peers or alone)}
        write_properties(self.folder / "zoo.cfg", settings)

    def _command(self) -> Sequence[str]:
        return [
            str(find_java(_JAVA)),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            "-Dzookeeper.jmx.log4j.disable=true",
            *self._jvm,
            "-cp",
            os.pathsep.join(map(str, pyspark_jars(*_JARS))),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / "zoo.cfg"),
        ]


def mode(port: int) -> str:
    """Return the mode of the ZooKeeper server at *port*, nothing when none serves there."""
    found = re.search(r"^Mode: (\w+)", _ask(port, "srvr"), re.MULTILINE)
    return found[1] if found else ""


def _ask(port: int, word: str) -> str:
    answer = b""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=2) as connection:
        connection.sendall(word.encode())
        while more := connection.recv(65536):
            answer += more
    return answer.decode(errors="replace")


S = TypeVar("S", bound=ZooKeeper)


class Ensemble(Startable, Generic[S]):
    """ZooKeeper servers that are one service."""

    servers: Sequence[S]

    @property
    def connect_string(self) -> str:
        """Where clients connect: every server."""
        return ",".join(server.connect_string for server in self.servers)

    @property
    def leader(self) -> S:
        """The server that leads now, or is alone.

        Raises:
            LookupError: There is none at the moment.
        """
        for server in self.servers:
            if server.running and server.mode in ("leader", "standalone"):
                return server
        raise LookupError("no ZooKeeper server leads")

    def start(self) -> None:
        """Start every server that does not run, and wait until each of them serves.

        Raises:
            NotInstalled: Something that it needs is missing.
            ServerFailed: A server did not come up; those that did still run.
        """
        for server in self.servers:
            if not server.running:
                server.launch()
        for server in self.servers:
            server.await_ready()

    def stop(self) -> None:
        """Stop every server and keep the data."""
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        """Stop every server, and remove the folders if they are temporary."""
        for server in self.servers:
            server.close()


class ZooKeeperEnsemble(Ensemble[ZooKeeperServer]):
    """Several ZooKeeper servers that are one service.

    Args:
        folder: Each server's folder is in it. Without one, temporary folders.
        size: How many; 1, 3 or 5.
        settings: Further lines of ``zoo.cfg``.
        jvm: Further options of the JVM.
        ports: Where clients connect, one for each server. Without them, free ones.
    """

    def __init__(
        self,
        folder: Path | None = None,
        size: int = 3,
        *,
        ports: Sequence[int] = (),
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = (),
    ) -> None:
        free = free_ports(3 * size)
        serve = ports or free[2 * size :]
        peers = [
            f"{LOOPBACK}:{follow}:{elect};{LOOPBACK}:{port}"
            for follow, elect, port in zip(free[:size], free[size : 2 * size], serve, strict=True)
        ]
        self.servers = [
            ZooKeeperServer(
                folder and folder / f"zookeeper-{number}",
                port,
                settings=settings,
                jvm=jvm,
                number=number,
                peers=peers if size > 1 else (),
            )
            for number, port in enumerate(serve, 1)
        ]
