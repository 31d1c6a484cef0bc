"""A Hive Metastore: 2.3.10 from the jars that PySpark brings along, later versions through Maven."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar
from xml.sax.saxutils import escape  # it writes, and parses nothing # nosec B406

from commit_coord.errors import ConfigError
from commit_coord.local.java import LOG4J, compile_java, find_java, pyspark_jars
from commit_coord.local.maven import maven_archive, maven_jars
from commit_coord.local.postgres import PostgresDatabase, PostgresServer
from commit_coord.local.server import LOOPBACK, LocalServer, ServerFailed

_ARCHIVE_3 = "org.apache.hive:hive-standalone-metastore:3.1.3:tar.gz:bin"
_ARCHIVE_4 = "org.apache.hive:hive-standalone-metastore-server:4.0.1:tar.gz:bin"
_DRIVER = "org.postgresql:postgresql:42.7.4"
_DERBY = "org.apache.derby:derby:10.14.2.0"  # the archives' older one does not run on Java 17


def _hadoop(version: str) -> tuple[str, ...]:
    return tuple(f"org.apache.hadoop:hadoop-client-{part}:{version}" for part in ("api", "runtime"))


_WITH_3 = (
    *_hadoop("3.3.6"), "org.slf4j:slf4j-api:1.7.36", "commons-logging:commons-logging:1.2",
    "commons-cli:commons-cli:1.5.0", "commons-collections:commons-collections:3.2.2", "commons-io:commons-io:2.16.1",
)  # fmt: skip

_WITH_4 = (
    *_hadoop("3.3.6"), "org.apache.hadoop:hadoop-hdfs:3.3.6", "org.slf4j:slf4j-api:1.7.36",
    "commons-collections:commons-collections:3.2.2", "commons-io:commons-io:2.16.1", "com.google.code.gson:gson:2.9.0",
    "javax.servlet:javax.servlet-api:3.1.0", "org.apache.httpcomponents:httpclient:4.5.13",
)  # fmt: skip


def _with_exec(version: str) -> tuple[str, ...]:
    # There is no archive after 4.0.1, but hive-exec carries the server's classes.
    return (f"org.apache.hive:hive-exec:{version}", *_hadoop("3.4.1"), *_WITH_4[2:])


@dataclass(frozen=True, slots=True)
class _Version:
    """What a version is run from.

    Args:
        archive: Holds the server's jars, or others that it needs, and the schema scripts; None for PySpark's jars.
        left_out: Jars of the archive that must not be on the class path.
        extra_jars: Jars that the archive does not hold; they are first on the class path.
        schema: What makes the schema: Hive's schema tool with its options. None: the server itself at its start.
        binds_everywhere: It has no setting for the address that it listens on.
        java: On which versions of Java it runs. Hadoop asks the JVM's security manager who it is, and there is none
            since Java 23.
    """

    archive: str | None = None
    left_out: tuple[str, ...] = ()
    extra_jars: tuple[str, ...] = ()
    schema: tuple[str, ...] = ()
    binds_everywhere: bool = False
    java: range = range(17, 23)


_METASTORE = "org.apache.hadoop.hive.metastore"
_TOOL_3, _TOOL_4 = (f"{_METASTORE}.tools.{path}MetastoreSchemaTool" for path in ("", "schematool."))
_OWN_DATABASE = ("derby-*", "postgresql-*")
_HYBRID = ("hive-standalone-*", "hive-storage-api-*", *_OWN_DATABASE)

VERSIONS: Mapping[str, _Version] = MappingProxyType(
    {
        "2.3.10": _Version(binds_everywhere=True),
        "3.1.3": _Version(_ARCHIVE_3, _OWN_DATABASE, _WITH_3, (_TOOL_3, "-initSchema"), binds_everywhere=True),
        "4.0.1": _Version(_ARCHIVE_4, _OWN_DATABASE, _WITH_4, (_TOOL_4, "-initSchema")),
        "4.1.0": _Version(_ARCHIVE_4, _HYBRID, _with_exec("4.1.0"), (_TOOL_4, "-initSchemaTo", "4.0.0")),
        "4.2.0": _Version(
            _ARCHIVE_4, _HYBRID, _with_exec("4.2.0"), (_TOOL_4, "-initSchemaTo", "4.0.0"), java=range(21, 23)
        ),
    }
)
"""The versions that can be run."""

_OPENS = ("java.lang", "java.net", "java.util", "java.util.concurrent", "sun.nio.ch", "java.nio")

_SCRIPTS_2 = (
    "hive-schema-1.2.0", "upgrade-1.2.0-to-2.0.0", "upgrade-2.0.0-to-2.1.0", "upgrade-2.1.0-to-2.2.0",
    "upgrade-2.2.0-to-2.3.0",
)  # fmt: skip
"""Of the archive of 3.1.3, which still has them: together the schema of 2.3 on PostgreSQL."""

_SOCKET = """\
package org.apache.hadoop.hive.metastore;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import org.apache.thrift.transport.TServerSocket;
import org.apache.thrift.transport.TTransportException;

public class TServerSocketKeepAlive extends TServerSocket {
    public TServerSocketKeepAlive(TServerSocket open) throws TTransportException {
        super(at(System.getProperty("metastore.address"), open));
    }

    private static ServerSocket at(String address, TServerSocket open) throws TTransportException {
        int port = open.getServerSocket().getLocalPort();
        open.close();
        try {
            return new ServerSocket(port, 50, InetAddress.getByName(address));
        } catch (IOException error) {
            throw new TTransportException(error);
        }
    }
}
"""
"""HMS listens on every address until version 4, and has no setting for it. The class that it wraps its socket with is
put before its own on the class path: it opens the port again, on one address. PySpark's jars hold a Java compiler."""

_CALL = b"\x80\x01\x00\x01" + b"\x00\x00\x00\x11get_all_databases" + b"\x00\x00\x00\x01" + b"\x00"
"""A Thrift call in the binary protocol: version 1 and CALL, the method, a number, no arguments."""

_ANSWER_TIMEOUT_S = 10

_REPLY = b"\x80\x01\x00\x02"


class HiveMetastore(LocalServer):
    """A Hive Metastore.

    Args:
        folder: See :class:`LocalServer`.
        version: One of :data:`VERSIONS`.
        port: See :class:`LocalServer`.
        postgres: The running server that gets a database for it, or the database; without one, Derby in its folder.
        address: Where it listens: this, or everywhere.
        tables: Where tables go; without it, its folder. Their readers and writers must find them there too.
        settings: Further settings of ``hive-site.xml``.

    Raises:
        ConfigError: It is not known how to run this version.
    """

    _start_timeout_s: ClassVar[float] = 120

    def __init__(
        self,
        folder: Path | None = None,
        version: str = "2.3.10",
        port: int | None = None,
        *,
        postgres: PostgresServer | PostgresDatabase | None = None,
        address: str = LOOPBACK,
        tables: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, port)
        if version not in VERSIONS:
            raise ConfigError("no such Hive Metastore", version=version, accepted=", ".join(VERSIONS))
        self.version = version
        self.name = f"Hive Metastore {version} on {'Derby' if postgres is None else 'PostgreSQL'}"
        self._version = VERSIONS[version]
        self._postgres = postgres
        self._address = address
        self._tables = tables or self.folder
        self._settings = settings or {}
        self._making_lock_tables = False

    @property
    def uri(self) -> str:
        """Where clients connect."""
        return f"thrift://127.0.0.1:{self.port}"

    @property
    def warehouse(self) -> str:
        """A place for tables. Not where HMS keeps managed ones: HMS 4 refuses external tables there."""
        return (self._tables / "warehouse").as_uri()

    @property
    def _database(self) -> PostgresDatabase | None:
        if isinstance(self._postgres, PostgresServer):
            digest = hashlib.sha256(str(self.folder).encode()).hexdigest()
            return self._postgres.database(f"hms_{self.version.replace('.', '_')}_{digest[:8]}")
        return self._postgres

    def healthy(self) -> bool:
        """Whether it answers a call that reads its database."""
        return answers(self.port)

    def start(self) -> None:
        """Start it, the first time on new tables, and wait until it answers.

        Raises:
            ConfigError: Its jars could not be fetched.
            NotInstalled: Something that it needs is missing.
            ServerFailed: The port is taken, its tables could not be made, or it did not come up.
        """
        made = self.folder / "schema"
        if not made.exists():
            self._make_schema()
            made.write_text(f"{self.name}\n")
        super().start()

    def _make_schema(self) -> None:
        self._make_folder()
        if self._version.schema:
            self._prepare()
            self._run_schema_tool()
        elif (database := self._database) is not None:
            scripts = maven_archive(_ARCHIVE_3) / "scripts" / "metastore" / "upgrade" / "postgres"
            files = (word for script in _SCRIPTS_2 for word in ("--file", str(scripts / f"{script}.postgres.sql")))
            database.psql("--single-transaction", *files)
        else:
            # 2.3.10 makes the tables of its locks on Derby only as a server under test, and such a server refuses
            # lock requests that do not name an operation, which PyIceberg's do not. So it is started twice.
            self._making_lock_tables = True
            super().start()
            _take_a_lock(self.port)
            self.stop()
            self._making_lock_tables = False

    def _run_schema_tool(self) -> None:
        assert self._version.archive is not None
        tool, *how = self._version.schema
        done = subprocess.run(
            self._java_command(tool, "-dbType", "derby" if self._postgres is None else "postgres", *how),
            cwd=self.folder,
            env={**os.environ, "METASTORE_HOME": str(maven_archive(self._version.archive))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerFailed(f"the schema of {self.name} was not created", (done.stdout + done.stderr)[-4000:])

    def _prepare(self) -> None:
        conf = self.folder / "conf"
        for folder in (conf, self._tables / "managed", self._tables / "warehouse"):
            folder.mkdir(exist_ok=True)
        conf.chmod(0o700)  # it contains the password of the database
        site = hadoop_site(self._all_settings())
        for name in ("hive-site.xml", "metastore-site.xml"):
            (conf / name).write_text(site)
        for name in ("log4j2.properties", "hive-log4j2.properties", "metastore-log4j2.properties"):
            (conf / name).write_text(LOG4J)
        if self._version.binds_everywhere:
            self._compile_socket()

    def _all_settings(self) -> dict[str, str]:
        if self._database is None:
            jdo = {
                "ConnectionURL": f"jdbc:derby:;databaseName={self.folder / 'metastore_db'};create=true",
                "ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
                "ConnectionUserName": "APP",
                "ConnectionPassword": "mine",
            }
        else:
            jdo = self._database.jdo
        # The server alters the schema where a script for it does not exist.
        makes_schema = "-initSchema" not in self._version.schema
        settings = {
            **{f"javax.jdo.option.{name}": value for name, value in jdo.items()},
            "hive.metastore.warehouse.dir": str(self._tables / "managed"),
            "datanucleus.schema.autoCreateAll": str(makes_schema).lower(),
            "datanucleus.connectionPoolingType": "HikariCP",
            # On Derby each lock call holds a connection while it waits for its turn, in which it needs another one: as
            # many calls at a time as there are connections (10 by default) stop the server for half a minute.
            "datanucleus.connectionPool.maxPoolSize": "40",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.event.db.notification.api.auth": "false",
            # Iceberg drops, moves and renames columns freely; by default the metastore refuses that, column by column.
            "hive.metastore.disallow.incompatible.col.type.changes": "false",
            "metastore.disallow.incompatible.col.type.changes": "false",
            "hive.async.log.enabled": "false",
            "hive.in.test": str(self._making_lock_tables).lower(),
        }
        if self._version.archive is not None:
            settings |= {
                "metastore.warehouse.dir": str(self._tables / "managed"),
                "metastore.warehouse.external.dir": str(self._tables / "warehouse"),
                "metastore.schema.verification": "false",
                "metastore.thrift.bind.host": self._address,
                "metastore.expression.proxy": f"{_METASTORE}.DefaultPartitionExpressionProxy",
                # 3.1.3's default list has a task of Hive's that the archive lacks.
                "metastore.task.threads.always": f"{_METASTORE}.events.EventCleanerTask",
            }
        return {**settings, **self._settings}

    def _command(self) -> Sequence[str]:
        return self._java_command(f"{_METASTORE}.HiveMetaStore", "-p", str(self.port))

    def _java_command(self, *arguments: str) -> Sequence[str]:
        return [
            str(find_java(self._version.java)),
            *("-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS),
            f"-Dlog4j.configurationFile={self.folder / 'conf' / 'log4j2.properties'}",
            f"-Dderby.stream.error.file={self.folder / 'derby.log'}",
            "-Dhive.async.log.enabled=false",
            # Nobody else shall find the server that only makes its tables.
            f"-Dmetastore.address={LOOPBACK if self._making_lock_tables else self._address}",
            *("-cp", f"{self.folder / 'conf'}{os.pathsep}{self._class_path()}"),
            *arguments,
        ]

    def _class_path(self) -> str:
        return os.pathsep.join(map(str, self._jars()))

    def _jars(self) -> Sequence[Path]:
        database = (_DRIVER,) if self._postgres is not None else () if self._version.archive is None else (_DERBY,)
        extra_jars = maven_jars(*self._version.extra_jars, *database) if self._version.extra_jars or database else ()
        if self._version.archive is None:
            return [*extra_jars, *pyspark_jars("*.jar")]
        lib = sorted((maven_archive(self._version.archive) / "lib").glob("*.jar"))
        return [
            *extra_jars,
            *(jar for jar in lib if not any(fnmatch(jar.name, name) for name in self._version.left_out)),
        ]

    def _compile_socket(self) -> None:
        source = self.folder / "conf" / "TServerSocketKeepAlive.java"
        if source.exists():
            return
        source.write_text(_SOCKET)
        try:
            compile_java(find_java(self._version.java), [source], self._class_path(), source.parent)
        except ServerFailed:
            source.unlink()
            raise


def hadoop_site(settings: Mapping[str, str]) -> str:
    """Return Hadoop's configuration file for *settings*."""
    properties = "\n".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    return f'<?xml version="1.0"?>\n<configuration>\n{properties}\n</configuration>\n'


def fetch(version: str) -> None:
    """Fetch whatever a Hive Metastore of *version* on PostgreSQL takes from Maven, so that it starts without a network.

    Raises:
        ConfigError: There is no such version, or something could not be fetched.
    """
    database = PostgresDatabase(host="", port=0, name="", user="", password="")  # nosec B106
    HiveMetastore(version=version, postgres=database)._jars()
    if not VERSIONS[version].schema:
        maven_archive(_ARCHIVE_3)


def answers(port: int) -> bool:
    """Whether a Hive Metastore at *port* answers a call that reads its database."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_TIMEOUT_S) as connection:
            connection.sendall(_CALL)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while more := connection.recv(65536):
                answer += more
            return answer.startswith(_REPLY)
    except OSError:
        return False


def _take_a_lock(port: int) -> None:
    """Take and give back a lock."""
    from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
    from thrift.protocol.TBinaryProtocol import TBinaryProtocol
    from thrift.transport.TSocket import TSocket
    from thrift.transport.TTransport import TBufferedTransport

    transport = TBufferedTransport(TSocket("127.0.0.1", port))
    transport.open()
    client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    exclusive, table = ttypes.LockType.EXCLUSIVE, ttypes.LockLevel.TABLE
    component = ttypes.LockComponent(exclusive, table, "none", "none", operationType=ttypes.DataOperationType.NO_TXN)
    lock = client.lock(ttypes.LockRequest([component], user="local", hostname="local"))
    client.unlock(ttypes.UnlockRequest(lock.lockid))
    transport.close()
