"""Real servers on this machine's loopback: a Hive Metastore, ZooKeeper, PostgreSQL, the REST server.

To try things out, and for tests.

Nothing of them outlives the process that started them, however it ended.
"""

from commit_coord.local.hms import HiveMetastore
from commit_coord.local.postgres import PostgresServer
from commit_coord.local.rest import RestServer
from commit_coord.local.server import LocalServer, NotInstalled, ServerFailed
from commit_coord.local.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "HiveMetastore",
    "LocalServer",
    "NotInstalled",
    "PostgresServer",
    "RestServer",
    "ServerFailed",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
