"""A Kerberos realm of one host, and a metastore that lets in nobody without a ticket of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from commit_coord.errors import MetastoreUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import MetastoreAccess
from commit_coord.local import HiveMetastore, PostgresServer
from commit_coord.local.hms import hadoop_site
from commit_coord.local.server import LOOPBACK, LocalServer

REALM = "COMMIT-COORD.TEST"
SERVICE = "hive"
USER = "ann"

_CLIENT = """
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = {address}
  }}
"""

_SERVER = """
[kdcdefaults]
  kdc_listen = {address}
  kdc_tcp_listen = {address}
[realms]
  {realm} = {{
    database_name = {folder}/principals
    key_stash_file = {folder}/stash
  }}
"""


class Kdc(LocalServer):
    """MIT Kerberos' key distribution centre, with the principals ``hive/127.0.0.1`` and ``ann``."""

    name = "krb5kdc"

    @property
    def keytab(self) -> Path:
        """The keys of all principals."""
        return self.folder / "keytab"

    @property
    def client(self) -> Path:
        """The ``krb5.conf`` of its clients."""
        return self.folder / "krb5.conf"

    @property
    def environment(self) -> Mapping[str, str]:
        """What its clients and its own programs find it by; the tickets are those of :meth:`ticket`."""
        return {
            "KRB5_CONFIG": str(self.client),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5CCNAME": str(self.folder / "tickets"),
        }

    def ticket(self) -> None:
        """Get a ticket for ``ann``."""
        self._run("kinit", "-k", "-t", str(self.keytab), USER)

    def healthy(self) -> bool:
        """Whether it gives a ticket."""
        try:
            self.ticket()
        except subprocess.CalledProcessError:
            return False
        return True

    def _prepare(self) -> None:
        if self.keytab.exists():
            return
        words = {"realm": REALM, "address": f"{LOOPBACK}:{self.port}", "folder": self.folder}
        self.client.write_text(_CLIENT.format(**words))
        (self.folder / "kdc.conf").write_text(_SERVER.format(**words))
        self._run("/usr/sbin/kdb5_util", "create", "-s", "-r", REALM, "-P", os.urandom(16).hex())
        for principal in (f"{SERVICE}/{LOOPBACK}", USER):
            self._run("/usr/sbin/kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
            self._run("/usr/sbin/kadmin.local", "-r", REALM, "ktadd", "-k", str(self.keytab), principal)

    def _command(self) -> Sequence[str]:
        return [
            "/usr/bin/env",
            *(f"{name}={value}" for name, value in self.environment.items()),
            "/usr/sbin/krb5kdc",
            "-n",
        ]

    def _run(self, *command: str) -> None:
        subprocess.run(command, env={**os.environ, **self.environment}, check=True, capture_output=True)


class KerberosMetastore(HiveMetastore):
    """A metastore whose clients need a ticket. The first start, which only makes its tables, is without."""

    def __init__(self, kdc: Kdc, version: str, postgres: PostgresServer | None) -> None:
        super().__init__(version=version, postgres=postgres)
        self._kdc = kdc

    def healthy(self) -> bool:
        """Whether it answers who has a ticket."""
        if self._making_lock_tables:
            return super().healthy()
        try:
            with MetastoreClient(self.uri, MetastoreAccess(timeout_ms=2_000, kerberos_service=SERVICE)) as client:
                return "default" in client.get_all_databases()
        except MetastoreUnavailable:
            return False

    def _all_settings(self) -> dict[str, str]:
        if self._making_lock_tables:
            return super()._all_settings()
        return super()._all_settings() | {
            "hive.metastore.sasl.enabled": "true",
            "hive.metastore.kerberos.principal": f"{SERVICE}/{LOOPBACK}@{REALM}",
            "hive.metastore.kerberos.keytab.file": str(self._kdc.keytab),
        }

    def _prepare(self) -> None:
        super()._prepare()
        how = "simple" if self._making_lock_tables else "kerberos"
        (self.folder / "conf" / "core-site.xml").write_text(hadoop_site({"hadoop.security.authentication": how}))

    def _java_command(self, *arguments: str) -> Sequence[str]:
        java, *rest = super()._java_command(*arguments)
        return [java, f"-Djava.security.krb5.conf={self._kdc.client}", *rest]
