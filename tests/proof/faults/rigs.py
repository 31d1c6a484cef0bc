"""The configurations: which servers, which properties a writer's catalog has, and who writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from commit_coord.config import COORDINATED_URI_PREFIX
from commit_coord.local import HiveMetastore, LocalServer, PostgresServer, ZooKeeperEnsemble
from commit_coord.local.java import LOG4J, compile_java, find_java, pyspark_jars
from commit_coord.local.maven import maven_jar
from commit_coord.local.rest import RestServer
from commit_coord.local.zookeeper import ZooKeeperServer
from tests.proof.faults.proxy import Proxy
from tests.proof.faults.world import World

LEASE_S = 5.0
CLIENT_TIMEOUT_S = 4.0
CONNECTIONS_MAX = 60
"""Of PostgreSQL, and of one ZooKeeper server from one address."""

_LOCKS = {
    "lock.heartbeat-timeout-ms": str(int(LEASE_S * 1000)),
    "lock.heartbeat-interval-ms": "1000",
    "lock.acquire-timeout-ms": "30000",
}
_HIVE = {"hive.client-timeout-ms": str(int(CLIENT_TIMEOUT_S * 1000))}

_TUNED = {"lock-check-max-wait-time": "0.1", "lock-check-retries": "1000"}
"""PyIceberg's own with short waits and many tries: with its defaults eight writers get one commit in seconds."""

REST_CATALOG = "faults"
"""Served by the REST servers."""

_JAVA_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_JAVA_SOURCE = Path(__file__).parent / "java" / "RestAppender.java"

_WAREHOUSE_MB, _SERVERS_MB = 3000, 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One column of the page.

    Args:
        name: As in ``--on``.
        title: On the page.
        ours: Coordinated, or PyIceberg's own.
        locks: The lock manager, ours.
        store: ``sqlite``, ``postgres`` or ``hms``.
        rest: Whether the writers are clients of two REST servers, which are behind one port.
    """

    name: str
    title: str
    ours: bool
    locks: str
    store: str
    rest: bool = False

    @property
    def threads(self) -> bool:
        """Whether all writers are threads of one process."""
        return self.locks == "memory"


CONFIGURATIONS = {
    one.name: one
    for one in (
        Configuration(name="lease-sqlite", title="lease, SQLite", ours=True, locks="lease", store="sqlite"),
        Configuration(name="lease-postgres", title="lease, PostgreSQL", ours=True, locks="lease", store="postgres"),
        Configuration(name="zookeeper", title="zookeeper, HMS", ours=True, locks="zookeeper", store="hms"),
        Configuration(name="hms", title="hms, HMS", ours=True, locks="hms", store="hms"),
        Configuration(name="rest", title="REST, zookeeper, HMS", ours=True, locks="zookeeper", store="hms", rest=True),
        Configuration(name="memory", title="memory, one process", ours=True, locks="memory", store="sqlite"),
        Configuration(name="pyiceberg-hive", title="PyIceberg's HiveCatalog", ours=False, locks="", store="hms"),
        Configuration(name="pyiceberg-sql", title="PyIceberg's SqlCatalog", ours=False, locks="", store="postgres"),
    )
}


class Rig:
    """The servers of a configuration, started; they serve all its cells.

    Args:
        configuration: Which.
        folder: Where everything is kept.
        world: Of this process.
    """

    def __init__(self, configuration: Configuration, folder: Path, world: World) -> None:
        self.configuration = configuration
        self.world = world
        self.warehouse, self.disk = folder / "warehouse", folder / "servers"
        self.metastore: HiveMetastore | None = None
        self.zookeeper: ZooKeeperEnsemble | None = None
        self.postgres: PostgresServer | None = None
        self.rest: Sequence[RestServer] = ()
        self.java: Sequence[str] = ()
        """The command of a writer of the kind ``java``."""
        self._ends = ExitStack()
        world.disk(self.warehouse, _WAREHOUSE_MB)
        world.disk(self.disk, _SERVERS_MB)
        if configuration.store == "hms":
            self.metastore = HiveMetastore(self.disk / "hms")
        if configuration.store == "postgres":
            self.postgres = PostgresServer(f"max_connections={CONNECTIONS_MAX}", folder=self.disk / "postgres")
        if configuration.locks == "zookeeper":
            limits = {"maxClientCnxns": str(CONNECTIONS_MAX)}
            self.zookeeper = ZooKeeperEnsemble(self.disk / "zookeeper", 3, settings=limits)
        if configuration.rest:
            self.java = _java(folder / "java")
            catalog = self.properties({})
            self.rest = [RestServer(REST_CATALOG, catalog, self.disk / f"rest{number}") for number in range(2)]

    def start(self) -> None:
        """Start them."""
        for server in (self.zookeeper, self.postgres, self.metastore, *self.rest):
            if server is not None:
                self._ends.callback(server.close)
                server.start()
        if self.rest:
            self._front = self._in_front(0)
            self._ends.callback(self._front.close)

    def _in_front(self, seed: int) -> Proxy:
        return Proxy(*(server.port for server in self.rest), seed=seed)

    def close(self) -> None:
        """Stop them."""
        self._ends.close()

    @property
    def servers(self) -> list[LocalServer]:
        """All of them."""
        others: list[LocalServer | None] = [self.postgres, self.metastore]
        ensemble: Sequence[LocalServer] = () if self.zookeeper is None else self.zookeeper.servers
        return [*ensemble, *(one for one in others if one is not None), *self.rest]

    def heal(self) -> None:
        """Start again whatever does not run or does not answer."""
        for server in self.servers:
            if not server.running:
                server.launch()
        for server in self.servers:
            if not server.healthy():
                try:
                    server.await_ready()
                except Exception:  # noqa: BLE001 - it hangs, and a stop and a start may help
                    server.restart()

    def proxies(self, seed: int) -> dict[int, Proxy]:
        """Return a proxy for each server that the writers use, by its port; for REST servers one, by the first's."""
        if self.rest:
            return {self.rest[0].port: self._in_front(seed)}
        return {server.port: Proxy(server.port, seed=seed) for server in self.servers}

    def client(self, through: Mapping[int, Proxy]) -> dict[str, str]:
        """Return the properties of a REST client; the servers are reached *through* what is given for the first one."""
        front = through.get(self.rest[0].port, self._front)
        return {"type": "rest", "uri": f"http://127.0.0.1:{front.port}", "warehouse": REST_CATALOG}

    def properties(self, through: Mapping[int, Proxy]) -> dict[str, str]:
        """Return a catalog's properties; servers are reached *through* what is given for their ports."""

        def port(server: LocalServer) -> int:
            return through[server.port].port if server.port in through else server.port

        ours, store = self.configuration.ours, self.configuration.store
        found = {"warehouse": self.warehouse.as_uri()}
        if self.metastore is not None:
            found["uri"] = f"thrift://127.0.0.1:{port(self.metastore)}"
            found |= _HIVE if ours else _TUNED
        elif self.postgres is not None:
            found["uri"] = self.postgres.url.replace(f":{self.postgres.port}/", f":{port(self.postgres)}/")
        else:
            found["uri"] = f"sqlite:///{self.disk}/catalog.db"
        if not ours:
            return {**found, "type": "hive" if store == "hms" else "sql"}
        found["uri"] = f"{COORDINATED_URI_PREFIX}{found['uri']}"
        found |= {**_LOCKS, "lock-impl": self.configuration.locks}
        if self.zookeeper is not None:
            found["lock.uri"] = ",".join(f"127.0.0.1:{port(server)}" for server in self.zookeeper.servers)
        return found

    def leader(self) -> ZooKeeperServer:
        """The ensemble's leader."""
        assert self.zookeeper is not None
        return self.zookeeper.leader

    def follower(self) -> ZooKeeperServer:
        """One that does not lead."""
        assert self.zookeeper is not None
        leader = self.zookeeper.leader
        return next(server for server in self.zookeeper.servers if server is not leader)


def _java(folder: Path) -> tuple[str, ...]:
    """Return the command of a writer in Java, whose classes go into *folder*."""
    folder.mkdir()
    java = find_java(range(17, 23))
    class_path = os.pathsep.join(map(str, [maven_jar(_JAVA_RUNTIME), *pyspark_jars("*.jar")]))
    compile_java(java, [_JAVA_SOURCE], class_path, folder)
    (folder / "log4j2.properties").write_text(LOG4J.replace("=warn", "=error"))
    return (
        *(str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        *("-cp", f"{folder}{os.pathsep}{class_path}", "RestAppender"),
    )
