"""Addresses, authentication, ACL and TLS of the ``zookeeper`` lock manager, checked before it connects."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from importlib.util import find_spec

from commit_coord.config import ZooKeeperAuth
from commit_coord.errors import ConfigError

PERMISSIONS = {"r": 1, "w": 2, "c": 4, "d": 8, "a": 16}
"""Source: ZooKeeper ``ZooDefs.Perms``."""

ALL = 31


@dataclass(frozen=True, slots=True)
class Right:
    """One entry of a node's ACL: an identity and its permissions."""

    scheme: str
    id: str
    permissions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleAccess:
    """How to connect and authenticate to the ensemble.

    Args:
        hosts: ``host:port,host:port/chroot``.
        client_port: The port for a host without one.
        connection_timeout_ms: How long the first connection may take.
        auth: A value of :class:`~commit_coord.config.ZooKeeperAuth`.
        user: For ``digest`` and ``sasl``.
        password: For ``digest`` and ``sasl``.
        service: The servers' Kerberos service name.
        acl: ``scheme:id:permissions``, separated by commas: other identities that may use our nodes.
        tls: Encrypt the connection.
        tls_ca: PEM file of the trusted certificate authorities; empty means the system's.
        tls_cert: PEM file of our certificate.
        tls_key: PEM file of its key.
        tls_key_password: Password of the key.
        tls_verify: Check the server's certificate, and that it names the host.

    Raises:
        ConfigError: Something is missing, malformed, or not installed.
    """

    hosts: str
    client_port: int = 2181
    connection_timeout_ms: int = 15_000
    auth: str = ZooKeeperAuth.NONE
    user: str = ""
    password: str = field(default="", repr=False)
    service: str = "zookeeper"
    acl: str = field(default="", repr=False)
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_key_password: str = field(default="", repr=False)
    tls_verify: bool = True

    def __post_init__(self) -> None:
        """Raise for an invalid combination."""
        _ = self.addresses, self.rights
        if self.auth in (ZooKeeperAuth.DIGEST, ZooKeeperAuth.SASL) and not (self.user and self.password):
            raise ConfigError(
                "authentication needs a user and a password",
                key="lock.zk.auth",
                value=self.auth,
                accepted="lock.zk.user and lock.zk.password with it",
            )
        if self.auth in (ZooKeeperAuth.SASL, ZooKeeperAuth.KERBEROS):
            self._check_sasl()
        for key, path in (("tls-ca", self.tls_ca), ("tls-cert", self.tls_cert), ("tls-key", self.tls_key)):
            if path and not os.access(path, os.R_OK):
                raise ConfigError("a file can't be read", key=f"lock.zk.{key}", value=path, accepted="a PEM file")
            if path and not self.tls:
                raise ConfigError(
                    "a setting has no effect without TLS", key=f"lock.zk.{key}", value=path, other="lock.zk.tls"
                )

    def _check_sasl(self) -> None:
        needed = {"puresasl": "'commit-coord[zookeeper]'"}
        if self.auth == ZooKeeperAuth.KERBEROS:
            needed["kerberos"] = "kerberos"
        missing = [package for module, package in needed.items() if find_spec(module) is None]
        if missing:
            raise ConfigError(
                "missing optional dependency of SASL",
                key="lock.zk.auth",
                value=self.auth,
                accepted=f"pip install {' '.join(missing)}",
            )

    @property
    def accepted_login(self) -> str:
        """What the servers accept as authentication, for the error after they refused it."""
        if self.auth == ZooKeeperAuth.KERBEROS:
            return (
                "a valid ticket (see klist); "
                "lock.zk.service and the hosts of lock.uri as in the principals of the servers"
            )
        return "lock.zk.user and lock.zk.password as the servers know them"

    @property
    def addresses(self) -> str:
        """The hosts with their ports, and the chroot."""
        hosts, slash, chroot = self.hosts.partition("/")
        named = [host.strip() for host in hosts.split(",")]
        if not all(named) or "://" in self.hosts or any(c.isspace() for c in hosts.replace(", ", ",").strip()):
            raise ConfigError(
                "invalid ZooKeeper servers", key="lock.uri", value=self.hosts, accepted="host:port,host:port/chroot"
            )
        return ",".join(self._with_port(host) for host in named) + slash + chroot.rstrip("/")

    def _with_port(self, host: str) -> str:
        _, colon, port = host.rpartition("]")[2].partition(":")
        if colon and not port.isdigit():
            raise ConfigError(
                "invalid ZooKeeper server", key="lock.uri", value=host, accepted="host:port,host:port/chroot"
            )
        return host if colon else f"{host}:{self.client_port}"

    @property
    def rights(self) -> list[Right]:
        """The ACL of every node.

        With authentication, only the creator's own identity and the identities in ``acl`` may read, list, create and
        delete. Without authentication everybody may, unless ``acl`` is set, because the creator has no identity.
        """
        rights = []
        if self.auth != ZooKeeperAuth.NONE:
            rights.append(Right("auth", "", ALL))
        elif not self.acl:
            rights.append(Right("world", "anyone", ALL))
        for text in filter(None, (text.strip() for text in self.acl.split(","))):
            scheme, _, rest = text.partition(":")
            identity, _, letters = rest.rpartition(":")
            if not scheme or not letters or not set(letters) <= set(PERMISSIONS):
                raise ConfigError(
                    "invalid ACL",
                    key="lock.zk.acl",
                    value=f"{scheme}:…",  # the rest may be a digest, with which passwords can be guessed
                    accepted="scheme:id:permissions, such as sasl:etl:cdrwa",
                )
            rights.append(Right(scheme, identity, sum(PERMISSIONS[letter] for letter in set(letters))))
        return rights

    @property
    def shared_rights(self) -> list[Right]:
        """The ACL of the node that all namespaces share: everybody may make the node of a namespace of its own."""
        return [*self.rights, Right("world", "anyone", PERMISSIONS["r"] | PERMISSIONS["c"])]

    @property
    def acl_size(self) -> int:
        """Bytes of the ACL in a request; the server replaces ``auth`` by our identity."""
        return sum(
            12 + len(right.scheme) + len(right.id) + (80 if right.scheme == "auth" else 0) for right in self.rights
        )
