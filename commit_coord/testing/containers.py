"""The servers of :mod:`commit_coord.local`, each in a container of the image that ``docker/`` makes.

They have the verbs of the native ones (start, stop, kill, restart, pause, resume, healthy), so the same tests run on
both. Ports are published on loopback alone, and stay the same when a container is started again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

# testcontainers' own reaper would have to come from an image registry, which need not be in reach. So containers carry
# the name of the process that started them, and the next one removes those whose process has ended.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from commit_coord.local import ServerFailed, hms
from commit_coord.local.server import LOOPBACK, Server, free_ports
from commit_coord.local.zookeeper import Ensemble, ZooKeeper
from commit_coord.process import is_dead, this_owner
from commit_coord.testing.fleet import holds_within

# In a checkout mypy takes the folder docker/ for the package.
docker: Any = import_module("docker")
errors: Any = import_module("docker.errors")

_STARTED_BY = "commit-coord.started-by"
_ROOT = Path(__file__).parents[2]
_POLL_S = 0.1
_START_TIMEOUT_S = 120
_PASSWORD = "only-on-loopback"  # noqa: S105 - of a server that lives as long as a test # nosec B105


def docker_version() -> str | None:
    """Return the version of the Docker daemon that answers, None when none does."""
    try:
        version: str = docker.from_env().version()["Version"]
    except (errors.DockerException, OSError):
        return None
    return version


def labels() -> dict[str, str]:
    """Return what containers and networks of this process are marked with."""
    return {_STARTED_BY: this_owner().process}


def remove_stale() -> None:
    """Remove the containers and networks of processes that ended without doing so, on this host."""
    client = docker.from_env()
    for container in client.containers.list(all=True, filters={"label": _STARTED_BY}):
        if is_dead(container.labels[_STARTED_BY]):
            with suppress(errors.NotFound):
                container.remove(force=True, v=True)
    for network in client.networks.list(filters={"label": _STARTED_BY}):
        if is_dead(network.attrs["Labels"][_STARTED_BY]):
            with suppress(errors.NotFound):
                network.remove()


@cache
def image(version: str) -> str:
    """Return the name of the image with the Hive Metastore *version*, which is built if anything has changed.

    Raises:
        ServerFailed: It can't be built; the log says why.
    """
    name = f"commit-coord:hms-{version}"
    arguments = {"HMS_VERSION": version, "BASE": os.environ.get("BASE", "debian:bookworm-slim")}
    try:
        docker.from_env(timeout=1800).images.build(
            path=str(_ROOT), dockerfile="docker/Dockerfile", tag=name, buildargs=arguments, rm=True, forcerm=True
        )
    except errors.DockerException as error:
        log = "".join(line.get("stream", "") for line in getattr(error, "build_log", ()))
        raise ServerFailed(f"the image {name} can't be built: {error}", log[-3000:]) from error
    return name


class ContainerServer(Server):
    """One server in a container.

    Args:
        version: Of the Hive Metastore that the image has.
        kind: ``postgres``, ``zookeeper`` or ``hms``.
        port: Where it listens inside.
        environment: See :mod:`commit_coord.local.container`.
        network: Where others find it, by *alias*.
        alias: Its name there.
        shared: A folder that is the same inside and outside.
    """

    kind: ClassVar[str]
    inside: ClassVar[int]

    def __init__(
        self,
        version: str = "2.3.10",
        *,
        network: Network,
        alias: str,
        environment: Mapping[str, str] | None = None,
        shared: Path | None = None,
    ) -> None:
        self.name = f"{alias} in a container"
        self.port = free_ports(1)[0]
        made = DockerContainer(image(version)).with_command([self.kind])
        made = made.with_network(network).with_network_aliases(alias).with_kwargs(user="0", labels=labels())
        for key, value in (environment or {}).items():
            made = made.with_env(key, value)
        if shared is not None:
            made = made.with_volume_mapping(str(shared), str(shared), "rw")
        made.ports[f"{self.inside}/tcp"] = (LOOPBACK, self.port)  # type: ignore[assignment]
        self._made = made
        self._container: Any = None

    @property
    def running(self) -> bool:
        """See :attr:`Server.running`."""
        if self._container is None:
            return False
        self._container.reload()
        return self._container.status in ("running", "paused")

    def launch(self) -> None:
        """Start it without waiting until it answers."""
        if self._container is None:
            self._made.start()
            self._container = self._made.get_wrapped_container()
        else:
            self._container.start()

    def await_ready(self) -> None:
        """Return when it answers.

        Raises:
            ServerFailed: It ended, or did not answer in time.
        """
        holds_within(lambda: self.healthy() or not self.running, _START_TIMEOUT_S, every_s=_POLL_S)
        if not self.healthy():
            log = self._container.logs(tail=25).decode(errors="replace")
            raise ServerFailed(f"{self.name} did not come up", log)

    def stop(self) -> None:
        """Stop it as its operator would and keep its data."""
        if self.running:
            self._container.stop(timeout=15)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self.running:
            self._container.kill()

    def pause(self) -> None:
        """Pause it: connections stay open, nothing is answered."""
        self._container.pause()

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        self._container.unpause()

    def close(self) -> None:
        """End it and remove its data. May be called again."""
        if self._container is not None:
            with suppress(errors.NotFound):
                self._container.remove(force=True, v=True)
            self._container = None


class ContainerPostgres(ContainerServer):
    """A PostgreSQL server in a container."""

    kind, inside = "postgres", 5432

    def __init__(self, *, network: Network) -> None:
        super().__init__(network=network, alias="postgres", environment={"POSTGRES_PASSWORD": _PASSWORD})

    def url(self, database: str) -> str:
        """Return the URL of a new database, for other containers."""
        made = self._container.exec_run(
            ["psql", "-h", LOOPBACK, "-U", "tester", "-d", "postgres", "-c", f'create database "{database}"'],
            environment={"PGPASSWORD": _PASSWORD},
        )
        assert made.exit_code == 0, made.output
        return f"postgresql://tester:{_PASSWORD}@postgres:5432/{database}"

    def healthy(self) -> bool:
        """Whether it takes connections."""
        return self.running and self._container.exec_run(["pg_isready", "-h", LOOPBACK, "-q"]).exit_code == 0


class ContainerMetastore(ContainerServer):
    """A Hive Metastore in a container. See :class:`commit_coord.local.HiveMetastore`.

    Args:
        folder: Its tables, inside and outside.
        version: The Hive Metastore's.
        postgres: The running server that gets a database for it; without one, Derby in the container.
        network: Where both are.
    """

    kind, inside = "hms", 9083

    def __init__(
        self, folder: Path, version: str = "2.3.10", *, postgres: ContainerPostgres | None = None, network: Network
    ) -> None:
        self.version = version
        alias = f"hms-{version.replace('.', '-')}-{folder.name}"
        environment = {"HMS_TABLES": str(folder)}
        if postgres is not None:
            environment["HMS_DATABASE_URL"] = postgres.url(alias)
        super().__init__(version, network=network, alias=alias, environment=environment, shared=folder)
        self.warehouse = (folder / "warehouse").as_uri()

    @property
    def uri(self) -> str:
        """Where clients connect."""
        return f"thrift://{LOOPBACK}:{self.port}"

    def healthy(self) -> bool:
        """Whether it answers a call that reads its database."""
        return hms.answers(self.port)


class ContainerZooKeeper(ZooKeeper, ContainerServer):
    """A ZooKeeper server in a container."""

    kind, inside = "zookeeper", 2181


class ContainerEnsemble(Ensemble[ContainerZooKeeper]):
    """ZooKeeper servers in containers that are one service. See :class:`commit_coord.local.ZooKeeperEnsemble`.

    Args:
        size: How many.
        network: Where they find each other.
    """

    def __init__(self, size: int, *, network: Network) -> None:
        place = f"{free_ports(1)[0]}"  # keeps the names of two ensembles apart
        hosts = [f"zookeeper-{place}-{number}" for number in range(1, size + 1)]
        ensemble = {"ZOOKEEPER_SERVERS": " ".join(hosts)} if size > 1 else {}
        self.servers = [
            ContainerZooKeeper(network=network, alias=host, environment={**ensemble, "ZOOKEEPER_NUMBER": str(number)})
            for number, host in enumerate(hosts, 1)
        ]
