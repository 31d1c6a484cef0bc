"""A Hive Metastore."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from commit_coord.local.java import LOG4J, find_java, pyspark_jars
from commit_coord.local.server import LocalServer

_JAVA = range(17, 23)
"""Hadoop asks the JVM's security manager who it is; since Java 23 there is none."""

_OPENS = ("java.lang", "java.net", "java.util", "java.util.concurrent", "sun.nio.ch", "java.nio")

_CALL = b"\x80\x01\x00\x01" + b"\x00\x00\x00\x11get_all_databases" + b"\x00\x00\x00\x01" + b"\x00"
"""A Thrift call in the binary protocol: version 1 and CALL, the method, a number, no arguments."""

_REPLY = b"\x80\x01\x00\x02"


class HiveMetastore(LocalServer):
    """A Hive Metastore on a Derby database in its folder."""

    def __init__(
        self,
        folder: Path,
        version: str = "2.3.10",
        port: int | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        temporary: bool = False,
    ) -> None:
        super().__init__(folder, port, temporary=temporary)
        self.name = f"Hive Metastore {version}"
        self.version = version
        self.warehouse = (folder / "warehouse").absolute().as_uri()
        self._settings = settings or {}
        self._in_test = False

    @property
    def uri(self) -> str:
        """Where clients connect."""
        return f"thrift://127.0.0.1:{self.port}"

    def healthy(self) -> bool:
        """Whether it answers a call that reads its database."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
                connection.sendall(_CALL)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                while more := connection.recv(65536):
                    answer += more
                return answer.startswith(_REPLY)
        except OSError:
            return False

    def start(self) -> None:
        """Start it; the first time also make its tables, those of the locks included."""
        if not (self.folder / "metastore_db").exists():
            self._in_test = True
            super().start()
            self._make_lock_tables()
            self.stop()
            self._in_test = False
        super().start()

    def _make_lock_tables(self) -> None:
        from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport

        transport = TBufferedTransport(TSocket("127.0.0.1", self.port))
        transport.open()
        client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))
        component = ttypes.LockComponent(
            ttypes.LockType.EXCLUSIVE, ttypes.LockLevel.TABLE, "none", "none", operationType=6
        )
        lock = client.lock(ttypes.LockRequest([component], user="local", hostname="local"))
        client.unlock(ttypes.UnlockRequest(lock.lockid))
        transport.close()

    def _prepare(self) -> None:
        database = self.folder / "metastore_db"
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={database};create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "javax.jdo.option.ConnectionUserName": "APP",
            "javax.jdo.option.ConnectionPassword": "mine",
            "hive.metastore.warehouse.dir": str(self.folder / "managed"),
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "datanucleus.connectionPoolingType": "HikariCP",
            "hive.async.log.enabled": "false",
            "hive.in.test": str(self._in_test).lower(),
            **self._settings,
        }
        conf = self.folder / "conf"
        conf.mkdir(exist_ok=True)
        (self.folder / "warehouse").mkdir(exist_ok=True)
        properties = "\n".join(
            f"<property><name>{name}</name><value>{escape(value)}</value></property>"
            for name, value in settings.items()
        )
        (conf / "hive-site.xml").write_text(f'<?xml version="1.0"?>\n<configuration>\n{properties}\n</configuration>\n')
        (conf / "log4j2.properties").write_text(LOG4J)

    def _command(self) -> Sequence[str]:
        jars = pyspark_jars("hive-metastore-*.jar")[0].parent
        return [
            str(find_java(_JAVA)),
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS),
            f"-Dlog4j.configurationFile={self.folder / 'conf' / 'log4j2.properties'}",
            f"-Dderby.stream.error.file={self.folder / 'derby.log'}",
            "-Dhive.async.log.enabled=false",
            "-cp",
            os.pathsep.join([str(self.folder / "conf"), f"{jars}/*"]),
            "org.apache.hadoop.hive.metastore.HiveMetaStore",
            "-p",
            str(self.port),
        ]
