"""What the demo runs on: one SQLite file, or a real Hive Metastore and a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.sql import SqlCatalog

from commit_coord.config import COORDINATED_URI_PREFIX


class Backend(StrEnum):
    """Where pointers and locks are kept."""

    EMBEDDED = "embedded"
    HIVE = "hive"


SHOWN: Mapping[Backend, str] = MappingProxyType(
    {
        Backend.EMBEDDED: "SQLite catalog, lease locks",
        Backend.HIVE: "Hive Metastore 2.3.10, ZooKeeper locks",
    }
)

IMPATIENCE_MS: Mapping[Backend, int] = MappingProxyType({Backend.EMBEDDED: 4, Backend.HIVE: 100})
"""What the writer that does not wait gives a commit: about as long as one takes."""


@contextmanager
def serving(backend: Backend, folder: Path) -> Iterator[dict[str, str]]:
    """Have the servers of *backend* run with their data in *folder*; yield the properties of the catalog on them."""
    warehouse = f"file://{folder}/warehouse"
    if backend is Backend.EMBEDDED:
        # coord+ keeps uncoordinated writers out.
        yield {"uri": f"{COORDINATED_URI_PREFIX}sqlite:///{folder}/catalog.db", "warehouse": warehouse}
        return
    from commit_coord.local import HiveMetastore, ZooKeeperEnsemble

    with ZooKeeperEnsemble(folder / "zookeeper") as zookeeper, HiveMetastore(folder / "metastore") as metastore:
        yield {
            "uri": f"{COORDINATED_URI_PREFIX}{metastore.uri}",
            "warehouse": warehouse,
            "lock-impl": "zookeeper",
            "lock.uri": zookeeper.connect_string,
        }


def plain(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open the catalog by PyIceberg's own class: whatever ours might hide, this one shows."""
    given = {"uri": properties["uri"].removeprefix(COORDINATED_URI_PREFIX), "warehouse": properties["warehouse"]}
    return HiveCatalog(name, **given) if given["uri"].startswith("thrift:") else SqlCatalog(name, **given)
