"""Values of properties: the closed sets, the functions that read a text, and the rules for heartbeats."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import entry_points

from commit_coord.errors import ConfigError


class Origin(StrEnum):
    """Where a setting comes from; a later one goes before an earlier one."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"


class LockImpl(StrEnum):
    """Values of ``lock-impl``."""

    HMS = "hms"
    LEASE = "lease"
    MEMORY = "memory"
    NONE = "none"
    ZOOKEEPER = "zookeeper"
    HMS_TO_ZOOKEEPER = "hms-to-zookeeper"


LOCK_MANAGER_GROUP = "commit_coord.lock_managers"
"""The entry-point group in which a package names its lock managers."""

_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def installed_lock_managers() -> dict[str, str]:
    """Return the lock managers of other packages: name → ``package.module:Class``.

    This reads a file of each installed package: a quarter of all calls of a fresh process up to its first commit.
    """
    return {found.name: found.value for found in entry_points(group=LOCK_MANAGER_GROUP)}


def lock_impl(text: str) -> str:
    """Return *text*, if it may name a lock manager: one of ours, one of another package, or a class.

    Raises:
        ValueError: It names none.
    """
    if _CLASS.fullmatch(text):
        return text
    try:
        return LockImpl(text)
    except ValueError:
        if text in installed_lock_managers():
            return text
        raise


class LockPolicy(StrEnum):
    """Values of ``lock.policy``."""

    WAIT = "wait"
    DENY = "deny"


class OperationLocks(StrEnum):
    """Values of ``operation-locks``."""

    OFF = "off"
    ICEBERG = "iceberg"
    HIVE = "hive"


class CompareAndSetSetting(StrEnum):
    """Values of ``hive.compare-and-set``."""

    PROBE = "probe"
    HONOURED = "honoured"
    IGNORED = "ignored"


class ZooKeeperAuth(StrEnum):
    """Values of ``lock.zk.auth``."""

    NONE = "none"
    DIGEST = "digest"
    SASL = "sasl"
    KERBEROS = "kerberos"


class MetricsExporter(StrEnum):
    """Values of ``commit-coord.metrics``."""

    OFF = "off"
    PROMETHEUS = "prometheus"


class TracesExporter(StrEnum):
    """Values of ``commit-coord.traces``."""

    OFF = "off"
    OPENTELEMETRY = "opentelemetry"


TIMER = 2**31 - 1
"""The longest time, in milliseconds, that servers and the operating system take for a timer: 24 days."""

CALENDAR = 10**14
"""The longest time, in milliseconds, that may be added to the present one: 3,000 years. The calendar ends in 9999."""


def at_least(minimum: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """Return what reads a whole number from *minimum* to *most*.

    It raises OverflowError, with the limit, for a larger number, and ValueError for any other text.
    """

    def parse(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise ValueError(f"at least {minimum}")
        if number > most:
            raise OverflowError(f"at most {most:,}")
        return number

    return parse


def node_name(text: str) -> str:
    """Return the name of a ZooKeeper node without the slashes around it.

    Raises:
        ValueError: It has other characters than letters, digits and ``._-``.
    """
    if not re.fullmatch(r"/?[\w.-]+/?", text):
        raise ValueError("letters, digits and ._-")
    return text.strip("/")


HEARTBEATS_PER_LEASE = 3
"""A lease is at least this many heartbeat intervals long: one missed heartbeat does not lose it."""

DEFAULT_LEASE_MS = 15_000

_DEFAULT_HEARTBEATS_PER_LEASE = 5
_LONGEST_DEFAULT_HEARTBEAT_MS = 3_000


def default_heartbeat_ms(lease_ms: int) -> int:
    """Return the heartbeat interval for a lease of *lease_ms* where none is set: a fifth of it, at most 3 seconds."""
    return min(_LONGEST_DEFAULT_HEARTBEAT_MS, lease_ms // _DEFAULT_HEARTBEATS_PER_LEASE)


def check_heartbeat(*, interval_ms: int, lease_ms: int) -> None:
    """Check that a lease of *lease_ms* outlives a missed heartbeat.

    Raises:
        ConfigError: The heartbeat interval is more than a third of the lease.
    """
    if interval_ms * HEARTBEATS_PER_LEASE > lease_ms:
        raise ConfigError(
            "the heartbeat interval is too long: the lease would not outlive a missed heartbeat",
            key="lock.heartbeat-interval-ms",
            value=interval_ms,
            accepted=f"at most a third of lock.heartbeat-timeout-ms ({lease_ms})",
        )
