"""Servers that belong together, a Hive Metastore and further servers, and the configuration that uses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from commit_coord.config import COORDINATED_URI_PREFIX
from commit_coord.errors import ConfigError
from commit_coord.local.hms import HiveMetastore
from commit_coord.local.postgres import PostgresServer
from commit_coord.local.server import LocalServer, free_port
from commit_coord.local.zookeeper import ZooKeeperEnsemble

CATALOG = "local"
"""The catalog's name in the configuration."""

_HMS_PORT, _ZOOKEEPER_PORT, _POSTGRES_PORT = 9083, 2181, 5432
"""The ports that everybody knows; another one is chosen where one of them is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which servers.

    Args:
        hms: The Hive Metastore's version.
        zookeeper: How many ZooKeeper servers; 0 for none: then the Hive Metastore's own locks are used.
        postgres: Keep the Hive Metastore's database in PostgreSQL instead of Derby.
    """

    hms: str = "2.3.10"
    zookeeper: int = 1
    postgres: bool = False

    def __post_init__(self) -> None:
        """Refuse what does not work.

        Raises:
            ConfigError: It does not.
        """
        if self.zookeeper not in (0, 1, 3, 5):
            raise ConfigError("invalid number of ZooKeeper servers", zookeeper=self.zookeeper, accepted="0, 1, 3 or 5")
        if self.hms == "4.0.1" and not self.postgres:
            raise ConfigError(
                "on Derby this Hive Metastore fails every conditional change of a table, so nothing could be committed",
                hms=self.hms,
                accepted="--postgres, or another version",
            )


class Stack:
    """The servers of *wanted*, below *folder*. What an earlier stack left there is used again.

    Args:
        folder: Everything that they write.
        wanted: Which ones.

    Raises:
        ConfigError: There is no such Hive Metastore.
        NotInstalled: A server's programs are missing.
    """

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        self.folder = folder
        self.postgres = None
        if wanted.postgres:
            self.postgres = PostgresServer(folder=folder / "postgres", port=free_port(_POSTGRES_PORT))
        self.zookeeper = None
        if wanted.zookeeper:
            self.zookeeper = ZooKeeperEnsemble(
                folder / f"zookeeper-of-{wanted.zookeeper}",
                wanted.zookeeper,
                ports=[free_port(_ZOOKEEPER_PORT + number) for number in range(wanted.zookeeper)],
            )
        database = "postgres" if wanted.postgres else "derby"
        self.hms = HiveMetastore(
            folder / f"hms-{wanted.hms}-{database}", wanted.hms, free_port(_HMS_PORT), postgres=self.postgres
        )

    @property
    def servers(self) -> list[LocalServer]:
        """All of them, in the order in which they are started."""
        database = [] if self.postgres is None else [self.postgres]
        return [*database, *([] if self.zookeeper is None else self.zookeeper.servers), self.hms]

    def start(self, say: Callable[[str], None]) -> None:
        """Start them all, and write the configuration.

        Args:
            say: Called with the name of what is being started.

        Raises:
            ConfigError: Jars could not be fetched.
            NotInstalled: Something that a server needs is missing.
            ServerFailed: One did not come up; those before it still run.
        """
        if self.postgres is not None:
            say(f"starting {self.postgres.name}")
            self.postgres.start()
        if self.zookeeper is not None:
            say(f"starting ZooKeeper, {len(self.zookeeper.servers)} of them")
            self.zookeeper.start()
        say(f"starting {self.hms.name}")
        self.hms.start()
        self.configuration.write_text(_yaml(CATALOG, self.properties))

    def close(self) -> None:
        """Stop them all and keep their data."""
        for server in reversed(self.servers):
            server.close()

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self.close()

    @property
    def configuration(self) -> Path:
        """PyIceberg's configuration file; PyIceberg finds it through PYICEBERG_HOME."""
        return self.folder / ".pyiceberg.yaml"

    @property
    def properties(self) -> dict[str, str]:
        """The properties of a coordinated catalog on these servers."""
        locks = {"lock-impl": "hms"}
        if self.zookeeper is not None:
            locks = {"lock-impl": "zookeeper", "lock.uri": self.zookeeper.connect_string}
        return {
            "py-catalog-impl": "commit_coord.catalog.hive.CoordinatedHiveCatalog",
            "uri": f"{COORDINATED_URI_PREFIX}{self.hms.uri}",
            "warehouse": self.hms.warehouse,
            **locks,
        }


def _yaml(catalog: str, properties: Mapping[str, str]) -> str:
    lines = (f"    {key}: {value}" for key, value in properties.items())
    return "\n".join([f"default-catalog: {catalog}", "catalog:", f"  {catalog}:", *lines, ""])
