"""Every catalog property of commit_coord, in one table: name, unit, default, what it does, what else it is called.

``python -m commit_coord.config`` prints the table that ``docs/configuration.md`` holds.

Pitfall: PyIceberg's ``lock-check-min-wait-time`` is in seconds, Java's ``lock-check-min-wait-ms`` in milliseconds.
Here the unit stands at the end of every name, and a value with another one is refused.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, cast

from pyiceberg.typedef import RecursiveDict
from pyiceberg.types import strtobool
from pyiceberg.utils.config import Config

from commit_coord.errors import ConfigError

COORDINATED_URI_PREFIX = "coord+"
"""In front of a catalog's URI it makes plain PyIceberg refuse the catalog instead of opening it uncoordinated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One property.

    Args:
        key: Its name.
        type: What a value must be, in words for the reader of an error message.
        default: As text; None where it depends on other settings.
        description: What it does, one or two sentences.
        parse: Makes the value of its text; raises ValueError.
        aliases: Other names, of Hive and of Iceberg, with what makes our text of theirs.
    """

    key: str
    type: str
    default: str | None
    description: str
    parse: Callable[[str], Any]
    aliases: Mapping[str, Callable[[str], str]]


def _number(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise ValueError(f"at least {minimum}")
        return number

    return parse


def _one_of(*accepted: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in accepted:
            raise ValueError(f"one of {', '.join(accepted)}")
        return text

    return parse


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


def _hive_time_ms(text: str, *, bare_unit: str = "sec") -> str:
    """Turn Hive's ``60s``, ``500ms``, ``2mins``, ``1day`` into milliseconds; a bare number is seconds there, mostly.

    Source: ``HiveConf.unitFor``: one of the short forms, or any word that begins with one of the long ones.
    """
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    word = match[2] if match is not None else ""
    unit = bare_unit if word in ("", "l") else _HIVE_SHORT.get(word)
    unit = unit or next((long for long in _HIVE_UNITS_NS if word.startswith(long)), None)
    if match is None or unit is None:
        raise ValueError("a Hive time such as 60s, with the unit d, h, m, s, ms, us or ns")
    return str(int(match[1]) * _HIVE_UNITS_NS[unit] // 1_000_000)


def _hive_max_partitions(text: str) -> str:
    """Turn Hive 4's limit into ours: -1, its default, means none."""
    return str(sys.maxsize) if text.strip() == "-1" else text


def _hive_session_ms(text: str) -> str:
    """Turn the time of ``hive.zookeeper.session.timeout`` into milliseconds, which a bare number is there."""
    return _hive_time_ms(text, bare_unit="msec")


def _no_slashes(text: str) -> str:
    if not re.fullmatch(r"/?[\w.-]+/?", text):
        raise ValueError("letters, digits and ._-")
    return text.strip("/")


def _concurrency(text: str) -> str:
    return "" if strtobool(text) else "none"


_LOCK_MANAGER_CLASSES = {
    "ZooKeeperLockManager": "zookeeper",
    "ZooKeeperHiveLockManager": "zookeeper",
    "HiveLockManager": "hms",
    "DbLockManager": "hms",
    "MetastoreLock": "hms",
    "InMemoryLockManager": "memory",
    "EmbeddedLockManager": "memory",
    "NoLock": "none",
}
"""Java's classes, of Iceberg and of Hive, that do what one of ours does."""


def _lock_manager(text: str) -> str:
    """Return our name for a lock manager that is named by Java's class, or by ours."""
    name = re.split(r"[.$]", text)[-1]
    return _LOCK_MANAGER_CLASSES.get(name, text)


def _seconds_ms(text: str) -> str:
    return str(round(float(text) * 1000))


def _property(
    key: str,
    type_: str,
    default: str | None,
    description: str,
    parse: Callable[[str], Any] = str,
    **aliases: Callable[[str], str],
) -> Property:
    names = {alias.replace("__", "-").replace("_", "."): convert for alias, convert in aliases.items()}
    return Property(key=key, type=type_, default=default, description=description, parse=parse, aliases=names)


PROPERTIES: tuple[Property, ...] = (
    _property(
        "lock-impl",
        "hms, lease, memory, none, zookeeper or hms-to-zookeeper",
        None,
        "The lock manager. `lease` keeps leases in SQL tables beside the catalog's own (the default there); `hms` "
        "takes the locks of the Hive Metastore (the default there); `zookeeper` keeps locks in ZooKeeper, those of "
        "operations in Hive's own layout; `memory` serves one process (the default for in-memory catalogs); `none` "
        "takes no locks, commits still compare and set; `hms-to-zookeeper` takes for each table what its phase asks "
        "for, while it [moves from the metastore's locks to ZooKeeper](migration.md).",
        _one_of("hms", "lease", "memory", "none", "zookeeper", "hms-to-zookeeper"),
        hive_support_concurrency=_concurrency,
        engine_hive_lock__enabled=_concurrency,
        iceberg_engine_hive_lock__enabled=_concurrency,
        iceberg_catalog_hive_lock__manager=_lock_manager,
        hive_lock_manager=_lock_manager,
    ),
    _property(
        "lock.uri",
        "an SQLAlchemy URL, thrift://host:port, or host:port,host:port/chroot",
        None,
        "Where `lease` keeps its tables, or the metastore of `hms`: the catalog's own by default. Or the servers of "
        "`zookeeper` and `hms-to-zookeeper`, which finds the metastore where the catalog is.",
        iceberg_catalog_hive_lock_zk_connect__string=str,
        hive_zookeeper_quorum=str,
    ),
    _property(
        "lock.acquire-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "180000",
        "How long an operation or a commit waits for its locks, all of them together.",
        _number(1),
        iceberg_hive_lock__timeout__ms=str,
    ),
    _property(
        "lock.heartbeat-timeout-ms",
        "milliseconds, a whole number, at least 1000",
        "15000",
        "Length of a lease: what a holder that died or stalls keeps its locks for. The session timeout that "
        "`zookeeper` asks its servers for; a holder that hears nothing from them gives up about a third earlier.",
        _number(1000),
        lock_zk_session__timeout__ms=str,
        hive_zookeeper_session_timeout=_hive_session_ms,
    ),
    _property(
        "lock.heartbeat-interval-ms",
        "milliseconds, a whole number, at most a third of lock.heartbeat-timeout-ms",
        "3000",
        "How often a holder extends its lease.",
        _number(10),
        iceberg_hive_lock__heartbeat__interval__ms=str,
    ),
    _property(
        "lock.check-min-wait-ms",
        "milliseconds, a whole number, at least 1",
        "50",
        "How soon a waiter asks again where nobody can wake it (`hms`).",
        _number(1),
        iceberg_hive_lock__check__min__wait__ms=str,
        lock__check__min__wait__time=_seconds_ms,
    ),
    _property(
        "lock.check-max-wait-ms",
        "milliseconds, a whole number, at least 1",
        "5000",
        "How long a waiter waits at most until it asks again, behind many others or a lock that is held for long.",
        _number(1),
        iceberg_hive_lock__check__max__wait__ms=str,
        lock__check__max__wait__time=_seconds_ms,
    ),
    _property(
        "lock.policy",
        "wait or deny",
        "wait",
        "What an operation does on a conflict: `wait` in a fair queue, or `deny` as Hive does: release all, "
        "sleep, retry.",
        _one_of("wait", "deny"),
    ),
    _property(
        "lock.num-retries",
        "a whole number",
        "100",
        "Retries under `deny`.",
        _number(0),
        hive_lock_numretries=str,
    ),
    _property(
        "lock.sleep-between-retries-ms",
        "milliseconds, a whole number",
        "60000",
        "Sleep between the retries under `deny`.",
        _number(0),
        hive_lock_sleep_between_retries=_hive_time_ms,
    ),
    _property(
        "lock.database-parents",
        "true or false",
        "false",
        "Also hold S on the database of every table and partition that is locked.",
        strtobool,
    ),
    _property(
        "lock.max-partitions",
        "a whole number, at least 1",
        "1000",
        "An operation that locks more partitions than this locks their common prefix, else the table.",
        _number(1),
        hive_locks_max_partitions=_hive_max_partitions,
    ),
    _property(
        "operation-locks",
        "off, iceberg or hive",
        "iceberg",
        "Which calls take locks for as long as they run, beside statements: `iceberg`: overwrites, deletes, upserts, "
        "compaction, drop and rename; `hive`: inserts and all others of [the table](locks.md) as well; `off`: none, "
        "nor statements, and conflicts are found at the commit.",
        _one_of("off", "iceberg", "hive"),
    ),
    _property(
        "commit.journal-lifetime-ms",
        "milliseconds, a whole number",
        "604800000",
        "How long the request ids that callers choose (streaming batches, Spark jobs) are remembered.",
        _number(0),
    ),
    _property(
        "commit.group.max-size",
        "a whole number",
        "64",
        "How many appends that wait for the same table one commit may publish at once, each as a snapshot of its own; "
        "1 makes each of them commit alone.",
        _number(1),
    ),
    _property(
        "commit.group.max-bytes",
        "bytes, a whole number, at least 1",
        "1048576",
        "How large the attempts may be, all together, that one commit carries beside its own; most have 1 to 3 KB. A "
        "larger one commits alone.",
        _number(1),
    ),
    _property(
        "lease.max-duration-ms",
        "milliseconds, a whole number, at least 1",
        "86400000",
        "How long a lease that was grabbed may live, all its extensions together.",
        _number(1),
    ),
    _property(
        "hive.client-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "30000",
        "How long a call to the metastore may take, connecting included.",
        _number(1),
        hive_metastore_client_socket_timeout=_hive_time_ms,
    ),
    _property(
        "hive.compare-and-set",
        "probe, honoured or ignored",
        "probe",
        "Whether the metastore's servers honour the condition of a swap. `probe` tries it on a scratch view before the "
        "first commit; `ignored` never sends it: commits then hold the metastore's lock and check before and after.",
        _one_of("probe", "honoured", "ignored"),
    ),
    _property(
        "hive.guard",
        "true or false",
        "true",
        "Keep a standing SHARED_READ lock on each table whose writers do not lock in the metastore (`zookeeper`, "
        "`lease`, `memory`), so that writers that know no other lock wait and fail instead of overwriting commits; "
        "readers do not notice it. Needs a metastore that grants locks and honours the condition of a swap; `none` "
        "sets no guard.",
        strtobool,
    ),
    _property(
        "hive.table-property-max-size",
        "characters, a whole number",
        "32672",
        "Schema, snapshot summary, partition spec and sort order are shown in the metastore up to this length each; 0 "
        "shows none. 4000 for servers before 2.3.",
        _number(0),
        iceberg_hive_table__property__max__size=str,
    ),
    _property(
        "lock.zk.namespace",
        "letters, digits and ._-",
        "hive_zookeeper_namespace",
        "The node that operation locks lie below, in Hive's layout; with Hive's own namespace its clients and ours "
        "exclude each other. A SQL catalog's locks lie beside it, below `<namespace>@<catalog>`.",
        _no_slashes,
        hive_zookeeper_namespace=str,
    ),
    _property(
        "lock.zk.client-port",
        "a port number",
        "2181",
        "The port of ZooKeeper servers that are named without one.",
        _number(1),
        hive_zookeeper_client_port=str,
    ),
    _property(
        "lock.zk.connection-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "15000",
        "How long the first connection to ZooKeeper may take.",
        _number(1),
        hive_zookeeper_connection_timeout=_hive_time_ms,
    ),
    _property(
        "lock.zk.auth",
        "none, digest, sasl or kerberos",
        "none",
        "Who we are to ZooKeeper: `digest` and `sasl` (DIGEST-MD5) by user and password, `kerberos` by the ticket of "
        "this process. With any of them nobody else can read, make or delete our nodes.",
        _one_of("none", "digest", "sasl", "kerberos"),
    ),
    _property("lock.zk.user", "text", "", "User for `digest` and `sasl`."),
    _property("lock.zk.password", "text", "", "Password for `digest` and `sasl`."),
    _property("lock.zk.service", "text", "zookeeper", "Name of the servers' Kerberos service."),
    _property(
        "lock.zk.acl",
        "scheme:id:permissions, separated by commas",
        "",
        "Who else may use our nodes, such as `sasl:etl:cdrwa`: other users that share these locks.",
    ),
    _property(
        "lock.zk.tls",
        "true or false",
        "false",
        "Encrypt the connection to ZooKeeper.",
        strtobool,
        hive_zookeeper_ssl_client_enable=str,
    ),
    _property("lock.zk.tls-ca", "a PEM file", "", "Authorities that are trusted; the system's where none is named."),
    _property("lock.zk.tls-cert", "a PEM file", "", "Our certificate, where the servers ask for one."),
    _property("lock.zk.tls-key", "a PEM file", "", "The key of our certificate, where it is in a file of its own."),
    _property("lock.zk.tls-key-password", "text", "", "Password of the key."),
    _property(
        "lock.zk.tls-verify",
        "true or false",
        "true",
        "Check the servers' certificates, and that they name the hosts.",
        strtobool,
    ),
    _property(
        "commit-coord.metrics",
        "off or prometheus",
        "off",
        "Count and time locks and commits in `prometheus_client`'s registry (extra `prometheus`).",
        _one_of("off", "prometheus"),
    ),
    _property(
        "commit-coord.traces",
        "off or opentelemetry",
        "off",
        "Make OpenTelemetry spans of commits, waits, holds and swaps (extra `otel`).",
        _one_of("off", "opentelemetry"),
    ),
    _property(
        "commit-coord.audit-log",
        "a file",
        "",
        "Where to append who freed whose locks by force or moved tables to another lock service, when and why, as JSON "
        "lines. Logged as `commit_coord.audit` "
        "in any case.",
    ),
)

COALESCE = "commit.group.coalesce"
"""Property of a table: the appends that one commit publishes share a snapshot."""

TABLE_PROPERTIES: tuple[Property, ...] = (
    _property(
        COALESCE,
        "true or false",
        "false",
        "The appends that one commit publishes share one snapshot, whose summary lists the request ids of all of them "
        "at `commit-coord.request-id`: for a table that would otherwise drown in snapshots. Those to other branches, "
        "and those whose snapshot properties differ, have snapshots of their own.",
        strtobool,
    ),
)
"""Properties of Iceberg tables that we read there, beside Iceberg's own."""

_BY_KEY = {prop.key: prop for prop in PROPERTIES}
_BY_ALIAS = {alias: (prop, convert) for prop in PROPERTIES for alias, convert in prop.aliases.items()}
_OURS = re.compile(
    r"(lock|operation|commit-coord|hive\.locks?|hive\.support\.concurrency|hive\.zookeeper|iceberg\.hive\.lock|"
    r"iceberg\.catalog\.hive\.lock|commit|lease)([-._]|$)"
)
"""Keys that can only be meant for us: an unknown one among them is a mistake."""


_HIVES_OWN: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"hive.zookeeper.ssl.{store}.{part}": f"PEM files in {key}: Java's key stores can't be read here"
            for store, key in (("keystore", "lock.zk.tls-cert and lock.zk.tls-key"), ("truststore", "lock.zk.tls-ca"))
            for part in ("location", "password", "type")
        },
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


_OPTIONS = {"zookeeper": "lock_zk_", "hms-to-zookeeper": "lock_zk_"}
"""Lock manager → how the names of the settings begin that are for it, and those that share them, alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of :data:`PROPERTIES` for one catalog."""

    lock_impl: str
    lock_uri: str = field(repr=False)
    lock_acquire_timeout_ms: int
    lock_heartbeat_timeout_ms: int
    lock_heartbeat_interval_ms: int
    lock_check_min_wait_ms: int
    lock_check_max_wait_ms: int
    lock_policy: str
    lock_num_retries: int
    lock_sleep_between_retries_ms: int
    lock_database_parents: bool
    lock_max_partitions: int
    operation_locks: str
    commit_journal_lifetime_ms: int
    commit_group_max_size: int
    commit_group_max_bytes: int
    lease_max_duration_ms: int
    hive_client_timeout_ms: int
    hive_compare_and_set: str
    hive_guard: bool
    hive_table_property_max_size: int
    lock_zk_namespace: str
    lock_zk_client_port: int
    lock_zk_connection_timeout_ms: int
    lock_zk_auth: str
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
    commit_coord_metrics: str
    commit_coord_traces: str
    commit_coord_audit_log: str

    @property
    def lock_options(self) -> dict[str, Any]:
        """What the chosen lock manager takes beyond what all of them take."""
        prefix = _OPTIONS.get(self.lock_impl, "")
        own = [f.name for f in fields(self) if prefix and f.name.startswith(prefix)]
        return {name.removeprefix(prefix): getattr(self, name) for name in own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A catalog's settings, and where each came from.

    Args:
        name: The catalog.
        settings: Ours.
        properties: What the PyIceberg catalog underneath gets: everything else, the URI without ``coord+``.
        origins: key → ``argument``, ``environment``, ``file`` or ``default``.
        given: All that was given, wherever it came from: what another process needs to open the same catalog.
    """

    name: str
    settings: Settings
    properties: dict[str, str] = field(repr=False)
    origins: dict[str, str]
    given: dict[str, str] = field(repr=False)

    @property
    def is_in_memory(self) -> bool:
        """Whether the catalog's tables are in the memory of this process."""
        return _is_in_memory(self.properties["uri"])


def configure(name: str, arguments: Mapping[str, Any]) -> Configuration:
    """Return the configuration of catalog *name*: arguments before environment before ``.pyiceberg.yaml``.

    PyIceberg hands a catalog class the arguments alone; what the file and the environment say would be ignored.

    Raises:
        ConfigError: A key is unknown, a value is malformed, or two settings clash.
    """
    given, origins = _merged(name, arguments)
    uri = given.get("uri")
    if not uri:
        raise ConfigError(
            "a catalog needs a uri",
            catalog=name,
            key="uri",
            accepted="coord+sqlite:///…, coord+postgresql://… or coord+thrift://…",
        )
    uri = uri.removeprefix(COORDINATED_URI_PREFIX)
    texts = _texts(given, origins)
    in_memory = _is_in_memory(uri)
    if not texts.get("lock-impl"):
        texts["lock-impl"] = "memory" if in_memory else "hms" if uri.startswith("thrift:") else "lease"
    texts.setdefault("lock.uri", uri)
    values: dict[str, Any] = {}
    for prop in PROPERTIES:
        text = texts.get(prop.key, prop.default)
        origins.setdefault(prop.key, "default")
        try:
            values[prop.key.replace(".", "_").replace("-", "_")] = prop.parse(cast(str, text))
        except ValueError as error:
            raise ConfigError(
                "a setting has a value that it can't have", key=prop.key, value=text, accepted=prop.type
            ) from error
    settings = Settings(**values)
    _check(settings, in_memory)
    if settings.lock_impl == "hms-to-zookeeper" and not uri.startswith("thrift:"):
        raise ConfigError(
            "there is nothing to move away from: the catalog is on no metastore",
            key="lock-impl",
            value=settings.lock_impl,
            accepted="zookeeper, or a uri of thrift://…",
        )
    for manager, prefix in _OPTIONS.items():
        misplaced = [key for key in texts if key.startswith(prefix.replace("_", "."))]
        if misplaced and prefix != _OPTIONS.get(settings.lock_impl):
            raise ConfigError(
                "two settings clash",
                key=misplaced[0],
                value=texts[misplaced[0]],
                other="lock-impl",
                other_value=settings.lock_impl,
                accepted=f"lock-impl={manager}",
            )
    others = {
        k: v
        for k, v in given.items()
        if k not in _BY_KEY and k not in _BY_ALIAS and k not in ("py-catalog-impl", "type")
    }
    return Configuration(name=name, settings=settings, properties={**others, "uri": uri}, origins=origins, given=given)


def _is_in_memory(uri: str) -> bool:
    return uri in ("sqlite://", "sqlite:///:memory:")


def given_properties(name: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return what is set for catalog *name*, whoever set it."""
    return _merged(name, arguments)[0]


def default_catalog_name() -> str:
    """Return ``default-catalog`` of the configuration, else ``default``."""
    return Config().get_default_catalog_name()


def _merged(name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    merged: dict[str, str] = {}
    origins: dict[str, str] = {}
    for origin, source in (
        ("file", _catalog(name, Config._from_configuration_files() or {})),
        ("environment", _catalog(name, Config._from_environment_variables({}))),
        ("argument", arguments),
    ):
        for key, value in source.items():
            if value is not None:
                merged[key], origins[key] = str(value), origin
    return merged, origins


def _catalog(name: str, config: RecursiveDict) -> Mapping[str, Any]:
    catalogs = config.get("catalog", {})
    found = catalogs.get(name.lower(), {}) if isinstance(catalogs, dict) else {}
    return found if isinstance(found, dict) else {}


def _texts(given: Mapping[str, str], origins: dict[str, str]) -> dict[str, str]:
    """Return key → text of our properties, aliases resolved."""
    texts: dict[str, str] = {}
    sources: dict[str, str] = {}
    for key, value in given.items():
        if key in _BY_KEY:
            prop, text = _BY_KEY[key], value
        elif key in _BY_ALIAS:
            prop, convert = _BY_ALIAS[key]
            try:
                text = convert(value)
            except ValueError as error:
                raise ConfigError(
                    "a setting has a value that it can't have", key=key, value=value, accepted=str(error)
                ) from error
            if not text:
                if given.get("lock-impl") == "none":
                    raise ConfigError("two settings clash", key=key, value=value, other="lock-impl", other_value="none")
                continue
        elif key in _HIVES_OWN:
            raise ConfigError("a setting of Hive's that has no meaning here", key=key, accepted=_HIVES_OWN[key])
        elif _OURS.match(key):
            close = difflib.get_close_matches(key, [*_BY_KEY, *_BY_ALIAS], n=1)
            raise ConfigError(
                "unknown setting", key=key, nearest=close[0] if close else None, accepted=", ".join(_BY_KEY)
            )
        else:
            continue
        if texts.get(prop.key, text) != text:
            raise ConfigError(
                "two settings clash", key=key, value=value, other=sources[prop.key], other_value=texts[prop.key]
            )
        texts[prop.key], sources[prop.key] = text, key
        origins[prop.key] = origins[key]
    return texts


def _check(settings: Settings, in_memory: bool) -> None:
    if settings.lock_heartbeat_interval_ms * 3 > settings.lock_heartbeat_timeout_ms:
        raise ConfigError(
            "the heartbeat is too slow for its lease: one missed beat would lose it",
            key="lock.heartbeat-interval-ms",
            value=settings.lock_heartbeat_interval_ms,
            accepted=f"at most a third of lock.heartbeat-timeout-ms ({settings.lock_heartbeat_timeout_ms})",
        )
    if settings.lock_impl in ("hms", "lease") and settings.lock_uri.startswith("thrift:") != (
        settings.lock_impl == "hms"
    ):
        raise ConfigError(
            "the lock manager can't keep its locks there",
            key="lock.uri",
            value=settings.lock_uri.split(":", 1)[0] + ":…",
            lock_impl=settings.lock_impl,
            accepted="thrift://host:port" if settings.lock_impl == "hms" else "an SQLAlchemy URL",
        )
    if settings.lock_impl in ("zookeeper", "hms-to-zookeeper") and "://" in settings.lock_uri:
        raise ConfigError(
            "the lock manager can't keep its locks there",
            key="lock.uri",
            value=settings.lock_uri.split(":", 1)[0] + ":…",
            lock_impl=settings.lock_impl,
            accepted="host:port,host:port/chroot",
        )
    if settings.lock_check_min_wait_ms > settings.lock_check_max_wait_ms:
        raise ConfigError(
            "the shortest wait is longer than the longest",
            key="lock.check-min-wait-ms",
            value=settings.lock_check_min_wait_ms,
            accepted=f"at most lock.check-max-wait-ms ({settings.lock_check_max_wait_ms})",
        )
    if in_memory and settings.lock_impl == "lease" and _is_in_memory(settings.lock_uri):
        raise ConfigError(
            "an in-memory database can't hold leases: every connection has its own",
            key="lock-impl",
            value="lease",
            accepted="memory, or a lock.uri that names a file or a server",
        )


def render() -> str:
    """Return ``docs/configuration.md``."""
    lines = [
        "# Configuration",
        "",
        "Catalog properties, given as arguments of `commit_coord.load_catalog`, in the environment",
        "(`PYICEBERG_CATALOG__<NAME>__LOCK__ACQUIRE_TIMEOUT_MS`) or in `.pyiceberg.yaml`, in this order of precedence.",
        "Everything else (`uri`, `warehouse`, `s3.*`, …) is PyIceberg's and goes through unchanged. Put `coord+` in",
        "front of the URI: plain PyIceberg then refuses the catalog instead of opening it without coordination.",
        "An unknown or malformed setting is an error at start.",
        "",
        "`Could not infer the catalog type from the uri: coord+…` and",
        "`Can't load plugin: sqlalchemy.dialects:coord.…` are such refusals: a program opened the catalog through",
        "PyIceberg's own `load_catalog`. In a program of your own call `commit_coord.load_catalog`. Where a library",
        "makes the call (dlt, for example), call `commit_coord.catalog.open_coord_uris()` before, or hand the library",
        "`py-catalog-impl` as an argument; PyIceberg ignores that key in `.pyiceberg.yaml` and in the environment.",
        "`commit-coord pyiceberg …` is PyIceberg's command line for such catalogs.",
        "",
        "| property | value | default | meaning | also called |",
        "| --- | --- | --- | --- | --- |",
    ]
    for prop in PROPERTIES:
        default = f"`{prop.default}`" if prop.default is not None else ""
        aliases = ", ".join(f"`{alias}`" for alias in prop.aliases)
        lines.append(f"| `{prop.key}` | {prop.type} | {default} | {prop.description} | {aliases} |")
    lines += [
        "",
        "## Of a table",
        "",
        "Set by `table.transaction().set_properties(...)` or when the table is created; every writer reads them there.",
        "",
        "| property | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{p.key}` | {p.type} | `{p.default}` | {p.description} |" for p in TABLE_PROPERTIES]
    return "\n".join(lines) + "\n"


assert [f.name for f in fields(Settings)] == [p.key.replace(".", "_").replace("-", "_") for p in PROPERTIES]

if __name__ == "__main__":
    print(render(), end="")
