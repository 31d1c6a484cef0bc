"""The values of all properties for one catalog, and the checks that concern more than one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from commit_coord.config.properties import PROPERTIES
from commit_coord.config.values import (
    CompareAndSetSetting,
    LockImpl,
    LockPolicy,
    MetricsExporter,
    OperationLocks,
    Origin,
    TracesExporter,
    ZooKeeperAuth,
    check_heartbeat,
    default_heartbeat_ms,
)
from commit_coord.errors import ConfigError

OPTION_PREFIXES: Mapping[str, str] = {LockImpl.ZOOKEEPER: "lock_zk_", LockImpl.HMS_TO_ZOOKEEPER: "lock_zk_"}
"""Lock manager → how the names of the settings begin that only it takes, and others with the same prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of :data:`~commit_coord.config.properties.PROPERTIES` for one catalog."""

    lock_impl: str
    lock_uri: str = field(repr=False)
    lock_acquire_timeout_ms: int
    lock_heartbeat_timeout_ms: int
    lock_heartbeat_interval_ms: int
    lock_check_min_wait_ms: int
    lock_check_max_wait_ms: int
    lock_policy: LockPolicy
    lock_num_retries: int
    lock_sleep_between_retries_ms: int
    lock_database_parents: bool
    lock_max_partitions: int
    operation_locks: OperationLocks
    commit_journal_lifetime_ms: int
    commit_group_max_size: int
    commit_group_max_bytes: int
    commit_reserved_turn_ms: int
    lease_max_duration_ms: int
    hive_client_timeout_ms: int
    hive_compare_and_set: CompareAndSetSetting
    hive_guard: bool
    hive_table_property_max_size: int
    lock_zk_namespace: str
    lock_zk_client_port: int
    lock_zk_connection_timeout_ms: int
    lock_zk_auth: ZooKeeperAuth
    lock_zk_user: str
    lock_zk_password: str = field(repr=False)
    lock_zk_service: str
    lock_zk_acl: str = field(repr=False)
    lock_zk_tls: bool
    lock_zk_tls_ca: str
    lock_zk_tls_cert: str
    lock_zk_tls_key: str
    lock_zk_tls_key_password: str = field(repr=False)
    lock_zk_tls_verify: bool
    commit_coord_metrics: MetricsExporter
    commit_coord_traces: TracesExporter
    commit_coord_audit_log: str

    @property
    def lock_options(self) -> dict[str, Any]:
        """What the chosen lock manager takes beyond what all of them take."""
        prefix = OPTION_PREFIXES.get(self.lock_impl, "")
        own = [f.name for f in fields(self) if prefix and f.name.startswith(prefix)]
        return {name.removeprefix(prefix): getattr(self, name) for name in own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A catalog's settings, and where each came from.

    Args:
        name: The catalog.
        settings: Ours.
        properties: What the PyIceberg catalog underneath gets: everything else, the URI without ``coord+``.
        origins: Where the value of each key comes from.
        given: All that was given, wherever it came from: what another process needs to open the same catalog.
    """

    name: str
    settings: Settings
    properties: dict[str, str] = field(repr=False)
    origins: dict[str, Origin]
    given: dict[str, str] = field(repr=False)

    @property
    def is_in_memory(self) -> bool:
        """Whether the catalog's tables are in the memory of this process."""
        return is_in_memory(self.properties["uri"])


def is_in_memory(uri: str) -> bool:
    """Return whether *uri* is a database in the memory of one process."""
    return uri in ("sqlite://", "sqlite:///:memory:")


def follow(values: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Return *values* with defaults that fit what is *given*: one setting alone never contradicts a default.

    Args:
        values: By the names of the fields of :class:`Settings`.
        given: The keys whose values are not defaults.
    """
    fitted = dict(values)
    if "lock.heartbeat-interval-ms" not in given:
        fitted["lock_heartbeat_interval_ms"] = default_heartbeat_ms(values["lock_heartbeat_timeout_ms"])
    shortest, longest = values["lock_check_min_wait_ms"], values["lock_check_max_wait_ms"]
    if "lock.check-min-wait-ms" not in given:
        fitted["lock_check_min_wait_ms"] = min(shortest, longest)
    if "lock.check-max-wait-ms" not in given:
        fitted["lock_check_max_wait_ms"] = max(shortest, longest)
    return fitted


def check(settings: Settings, uri: str) -> None:
    """Check settings against each other and against the catalog's *uri*.

    Raises:
        ConfigError: Two of them can't work together.
    """
    check_heartbeat(interval_ms=settings.lock_heartbeat_interval_ms, lease_ms=settings.lock_heartbeat_timeout_ms)
    _check_lock_uri(settings)
    if settings.lock_check_min_wait_ms > settings.lock_check_max_wait_ms:
        raise ConfigError(
            "lock.check-min-wait-ms is longer than lock.check-max-wait-ms",
            key="lock.check-min-wait-ms",
            value=settings.lock_check_min_wait_ms,
            accepted=f"at most lock.check-max-wait-ms ({settings.lock_check_max_wait_ms})",
        )
    if is_in_memory(uri) and settings.lock_impl == LockImpl.LEASE and is_in_memory(settings.lock_uri):
        raise ConfigError(
            "an in-memory database can't hold leases: every connection has its own",
            key="lock-impl",
            value=settings.lock_impl,
            accepted="memory, or a lock.uri that names a file or a server",
        )
    if settings.lock_impl == LockImpl.HMS_TO_ZOOKEEPER and not uri.startswith("thrift:"):
        raise ConfigError(
            "this lock manager moves tables away from a metastore, and the catalog is not on one",
            key="lock-impl",
            value=settings.lock_impl,
            accepted="zookeeper, or a uri of thrift://…",
        )


def _check_lock_uri(settings: Settings) -> None:
    match settings.lock_impl:
        case LockImpl.HMS:
            fits, accepted = settings.lock_uri.startswith("thrift:"), "thrift://host:port"
        case LockImpl.LEASE:
            fits, accepted = not settings.lock_uri.startswith("thrift:"), "an SQLAlchemy URL"
        case LockImpl.ZOOKEEPER | LockImpl.HMS_TO_ZOOKEEPER:
            fits, accepted = "://" not in settings.lock_uri, "host:port,host:port/chroot"
        case _:
            return
    if not fits:
        raise ConfigError(
            "lock.uri names another service than the lock manager uses",
            key="lock.uri",
            value=settings.lock_uri.split(":", 1)[0] + ":…",
            lock_impl=settings.lock_impl,
            accepted=accepted,
        )


assert [f.name for f in fields(Settings)] == [prop.attribute for prop in PROPERTIES]
