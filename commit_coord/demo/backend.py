"""What the demo runs on: one SQLite file, or a real Hive Metastore with ZooKeeper or with the REST server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.sql import SqlCatalog

from commit_coord.config import COORDINATED_URI_PREFIX

CATALOG = "demo"


class Backend(StrEnum):
    """Where pointers and locks are kept."""

    EMBEDDED = "embedded"
    HIVE = "hive"
    REST = "rest"
    """PySpark writes with SQL through ``commit-coord serve``, next to the library and to PyIceberg's own catalogs."""


SHOWN: Mapping[Backend, str] = MappingProxyType(
    {
        Backend.EMBEDDED: "SQLite catalog, lease locks",
        Backend.HIVE: "Hive Metastore 2.3.10, ZooKeeper locks",
        Backend.REST: "commit-coord serve, Hive Metastore 2.3.10 and its locks",
    }
)

IMPATIENCE_MS: Mapping[Backend, int] = MappingProxyType({Backend.EMBEDDED: 4, Backend.HIVE: 100, Backend.REST: 1_500})
"""What the writer that does not wait gives a commit: about as long as one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """How clients reach what runs.

    Args:
        properties: Of the catalog.
        url: Of the REST server; empty where there is none.
    """

    properties: Mapping[str, str]
    url: str = ""


@contextmanager
def serving(backend: Backend, folder: Path) -> Iterator[Services]:
    """Have the servers of *backend* run with their data in *folder*; yield how to reach them."""
    warehouse = f"file://{folder}/warehouse"
    if backend is Backend.EMBEDDED:
        # coord+ keeps uncoordinated writers out.
        uri = f"{COORDINATED_URI_PREFIX}sqlite:///{folder}/catalog.db"
        yield Services(properties={"uri": uri, "warehouse": warehouse})
        return
    from commit_coord.local import HiveMetastore, RestServer, ZooKeeperEnsemble

    with ExitStack() as running:
        metastore = running.enter_context(HiveMetastore(folder / "metastore"))
        properties = {"uri": f"{COORDINATED_URI_PREFIX}{metastore.uri}", "warehouse": warehouse}
        if backend is Backend.REST:
            properties["lock-impl"] = "hms"  # the locks of a writer that knows the metastore alone
            server = running.enter_context(RestServer(CATALOG, properties, folder / "rest"))
            yield Services(properties=properties, url=server.url)
        else:
            zookeeper = running.enter_context(ZooKeeperEnsemble(folder / "zookeeper"))
            yield Services(properties={**properties, "lock-impl": "zookeeper", "lock.uri": zookeeper.connect_string})


def plain(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open the catalog by PyIceberg's own class: whatever ours might hide, this one shows."""
    given = {"uri": properties["uri"].removeprefix(COORDINATED_URI_PREFIX), "warehouse": properties["warehouse"]}
    return HiveCatalog(name, **given) if given["uri"].startswith("thrift:") else SqlCatalog(name, **given)
