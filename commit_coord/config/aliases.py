"""Properties of Hive and Iceberg: how a text of theirs becomes one of ours, and those that can't be honoured here."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import MappingProxyType

from pyiceberg.types import strtobool

_HIVE_UNITS_NS = {
    "day": 86_400_000_000_000,
    "hour": 3_600_000_000_000,
    "min": 60_000_000_000,
    "sec": 1_000_000_000,
    "msec": 1_000_000,
    "usec": 1_000,
    "nsec": 1,
}
_HIVE_SHORT = {"d": "day", "h": "hour", "m": "min", "s": "sec", "ms": "msec", "us": "usec", "ns": "nsec"}


def hive_time_ms(text: str, *, bare_unit: str = "sec") -> str:
    """Turn Hive's ``60s``, ``500ms``, ``2mins``, ``1day`` into milliseconds; a bare number is mostly seconds in Hive.

    Source: ``HiveConf.unitFor``: one of the short forms, or any word that begins with one of the long ones.
    """
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    word = match[2] if match is not None else ""
    unit = bare_unit if word in ("", "l") else _HIVE_SHORT.get(word)
    unit = unit or next((long for long in _HIVE_UNITS_NS if word.startswith(long)), None)
    if match is None or unit is None:
        raise ValueError("a Hive time such as 60s, with the unit d, h, m, s, ms, us or ns")
    return str(int(match[1]) * _HIVE_UNITS_NS[unit] // 1_000_000)


def hive_session_ms(text: str) -> str:
    """Turn the time of ``hive.zookeeper.session.timeout`` into milliseconds, the unit of a bare number there."""
    return hive_time_ms(text, bare_unit="msec")


def hive_max_partitions(text: str) -> str:
    """Turn Hive 4's limit into ours: -1, its default, means none."""
    return str(sys.maxsize) if text.strip() == "-1" else text


def seconds_as_ms(text: str) -> str:
    """Turn seconds into milliseconds."""
    return str(round(float(text) * 1000))


def lock_impl_of_switch(text: str) -> str:
    """Return our lock manager for a property that turns locks on or off: on leaves the choice to other properties."""
    return "" if strtobool(text) else "none"


_LOCK_IMPL_OF_CLASS = {
    "ZooKeeperLockManager": "zookeeper",
    "ZooKeeperHiveLockManager": "zookeeper",
    "HiveLockManager": "hms",
    "DbLockManager": "hms",
    "MetastoreLock": "hms",
    "InMemoryLockManager": "memory",
    "EmbeddedLockManager": "memory",
    "NoLock": "none",
}
"""Java classes of Iceberg and Hive → our lock manager that does the same."""


def lock_impl_of_class(text: str) -> str:
    """Return our name for a lock manager that is named by its Java class, or by our name."""
    name = re.split(r"[.$]", text)[-1]
    return _LOCK_IMPL_OF_CLASS.get(name, text)


UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "hive.zookeeper.ssl.keystore.location": "PEM files in lock.zk.tls-cert and lock.zk.tls-key",
        "hive.zookeeper.ssl.keystore.password": "PEM files in lock.zk.tls-cert and lock.zk.tls-key",
        "hive.zookeeper.ssl.keystore.type": "PEM files in lock.zk.tls-cert and lock.zk.tls-key",
        "hive.zookeeper.ssl.truststore.location": "PEM files in lock.zk.tls-ca",
        "hive.zookeeper.ssl.truststore.password": "PEM files in lock.zk.tls-ca",
        "hive.zookeeper.ssl.truststore.type": "PEM files in lock.zk.tls-ca",
        "hive.zookeeper.kerberos.enabled": "lock.zk.auth=kerberos, or none",
        "hive.zookeeper.connection.max.retries": "leave it out: tries end by time, lock.zk.connection-timeout-ms",
        "hive.zookeeper.connection.basesleeptime": "leave it out: tries end by time, lock.zk.connection-timeout-ms",
        "hive.zookeeper.clean.extra.nodes": "leave it out: nodes that are empty are always removed",
        "hive.zookeeper.killquery.enable": "leave it out: it is for HiveServer2 alone",
        "hive.zookeeper.killquery.namespace": "leave it out: it is for HiveServer2 alone",
        "hive.lock.mapred.only.operation": "operation-locks, which says what takes locks",
        "hive.lock.query.string.max.length": "leave it out: the statement in a lock's owner is always shortened",
        "hive.lock.file.move.protect": "leave it out: no commit moves files",
    }
)
"""Keys of Hive 2 to 4 that can't be honoured here → what to set instead."""
