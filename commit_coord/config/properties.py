"""Every catalog property, one row each: name, unit, default, what it does, what else it is called.

Pitfall: PyIceberg's ``lock-check-min-wait-time`` is in seconds, Java's ``lock-check-min-wait-ms`` in milliseconds.
Here the unit is at the end of every name, and an alias with another unit is converted.
"""

from __future__ import annotations

from pyiceberg.types import strtobool

from commit_coord.config.aliases import (
    hive_max_partitions,
    hive_session_ms,
    hive_time_ms,
    lock_impl_of_class,
    lock_impl_of_switch,
    seconds_as_ms,
)
from commit_coord.config.property import Property, row
from commit_coord.config.values import (
    CALENDAR,
    DEFAULT_LEASE_MS,
    TIMER,
    CompareAndSetSetting,
    LockPolicy,
    MetricsExporter,
    OperationLocks,
    TracesExporter,
    ZooKeeperAuth,
    at_least,
    default_heartbeat_ms,
    lock_impl,
    node_name,
)

PROPERTIES: tuple[Property, ...] = (
    row(
        "lock-impl",
        "hms, lease, memory, none, zookeeper or hms-to-zookeeper; or package.module:Class, or a name from the "
        "entry-point group commit_coord.lock_managers",
        None,
        "The lock manager. `lease` keeps locks in SQL tables, by default in the catalog's database (the default of SQL "
        "catalogs); `hms` takes the locks of the Hive Metastore (the default of its catalogs); `zookeeper` keeps locks "
        "in ZooKeeper, operation locks in Hive's own layout; `memory` serves one process (the default of in-memory "
        "catalogs); `none` takes no locks, commits still compare and set; `hms-to-zookeeper` takes the locks that the "
        "phase of each table requires, while tables [move from the metastore's locks to ZooKeeper](migration.md). For "
        "a class of another package see [write a lock manager](write-a-lock-manager.md).",
        lock_impl,
        aliases={
            "hive.support.concurrency": lock_impl_of_switch,
            "engine.hive.lock-enabled": lock_impl_of_switch,
            "iceberg.engine.hive.lock-enabled": lock_impl_of_switch,
            "iceberg.catalog.hive.lock-manager": lock_impl_of_class,
            "hive.lock.manager": lock_impl_of_class,
        },
    ),
    row(
        "lock.uri",
        "an SQLAlchemy URL, thrift://host:port, or host:port,host:port/chroot",
        None,
        "The address of the lock service. For `lease` the database of its tables and for `hms` the metastore; by "
        "default both are the catalog's own, and a catalog on a metastore takes no other metastore. For `zookeeper` "
        "and `hms-to-zookeeper` the ZooKeeper servers; the metastore of `hms-to-zookeeper` is the catalog's.",
        aliases={"iceberg.catalog.hive.lock.zk.connect-string": str, "hive.zookeeper.quorum": str},
    ),
    row(
        "lock.acquire-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "180000",
        "How long an operation or a commit waits for all its locks together.",
        at_least(1),
        aliases={"iceberg.hive.lock-timeout-ms": str},
    ),
    row(
        "lock.heartbeat-timeout-ms",
        "milliseconds, a whole number, at least 1000",
        str(DEFAULT_LEASE_MS),
        "The lease time: how long a holder that has died or stalls keeps its locks. For `zookeeper`, the session "
        "timeout that it requests from its servers; a holder without an answer from them gives up about a third "
        "earlier.",
        at_least(1000, TIMER),
        aliases={"lock.zk.session-timeout-ms": str, "hive.zookeeper.session.timeout": hive_session_ms},
    ),
    row(
        "lock.heartbeat-interval-ms",
        "milliseconds, a whole number, at most a third of lock.heartbeat-timeout-ms",
        str(default_heartbeat_ms(DEFAULT_LEASE_MS)),
        "The time between two heartbeats, which extend the leases of a holder. The default is shorter if "
        "`lock.heartbeat-timeout-ms` is: a fifth of it.",
        at_least(10, TIMER),
        aliases={"iceberg.hive.lock-heartbeat-interval-ms": str},
    ),
    row(
        "lock.check-min-wait-ms",
        "milliseconds, a whole number, at least 1",
        "50",
        "The shortest time until a waiter asks again, if the service cannot wake it (`hms`). The default is never "
        "longer than `lock.check-max-wait-ms`.",
        at_least(1, TIMER),
        aliases={"iceberg.hive.lock-check-min-wait-ms": str, "lock-check-min-wait-time": seconds_as_ms},
    ),
    row(
        "lock.check-max-wait-ms",
        "milliseconds, a whole number, at least 1",
        "5000",
        "The longest time until a waiter asks again, if many others are before it or a lock is held for long. The "
        "default is never shorter than `lock.check-min-wait-ms`.",
        at_least(1, TIMER),
        aliases={"iceberg.hive.lock-check-max-wait-ms": str, "lock-check-max-wait-time": seconds_as_ms},
    ),
    row(
        "lock.policy",
        "wait or deny",
        "wait",
        "What an operation does on a conflict: `wait` waits in a fair queue; `deny` does as Hive does: it releases all "
        "its locks, sleeps, and tries again.",
        LockPolicy,
    ),
    row(
        "lock.num-retries",
        "a whole number",
        "100",
        "How often `deny` tries again.",
        at_least(0),
        aliases={"hive.lock.numretries": str},
    ),
    row(
        "lock.sleep-between-retries-ms",
        "milliseconds, a whole number",
        "60000",
        "How long `deny` sleeps between two tries.",
        at_least(0),
        aliases={"hive.lock.sleep.between.retries": hive_time_ms},
    ),
    row(
        "lock.database-parents",
        "true or false",
        "false",
        "Whether a lock on a table or partition also holds S on its database.",
        strtobool,
    ),
    row(
        "lock.max-partitions",
        "a whole number, at least 1",
        "1000",
        "An operation with more partitions than this locks their common prefix instead, or the table if they have "
        "none.",
        at_least(1),
        aliases={"hive.locks.max.partitions": hive_max_partitions},
    ),
    row(
        "operation-locks",
        "off, iceberg or hive",
        "iceberg",
        "Which calls take operation locks, which they hold as long as they run. `iceberg`: overwrites, deletes, "
        "upserts, compaction, drop and rename; `hive`: also inserts and all other calls of [the table](locks.md). With "
        "both, statements take their locks. `off`: neither calls nor statements take locks; conflicts are found at the "
        "commit.",
        OperationLocks,
    ),
    row(
        "commit.journal-lifetime-ms",
        "milliseconds, a whole number",
        "604800000",
        "How long the lock manager remembers request ids that callers choose (streaming batches, Spark jobs).",
        at_least(0, CALENDAR),
    ),
    row(
        "commit.group.max-size",
        "a whole number",
        "64",
        "How many appends to the same table one commit may publish, each as a snapshot of its own; with 1, every "
        "append commits alone.",
        at_least(1),
    ),
    row(
        "commit.group.max-bytes",
        "bytes, a whole number, at least 1",
        "1048576",
        "The largest total size of the attempts of others that one commit publishes; most attempts have 1 to 3 KB. A "
        "larger one commits alone.",
        at_least(1),
    ),
    row(
        "commit.reserved-turn-ms",
        "milliseconds, a whole number",
        "2000",
        "How long `commit-coord serve` keeps a table free for a client whose commit was refused because the table had "
        "moved, and that will try it again; other commits wait meanwhile, each for ten times as long at most. 0 keeps "
        "it free for nobody.",
        at_least(0, TIMER),
    ),
    row(
        "lease.max-duration-ms",
        "milliseconds, a whole number, at least 1",
        "86400000",
        "The longest life of a Hive lease, including all its extensions.",
        at_least(1, CALENDAR),
    ),
    row(
        "hive.client-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "30000",
        "How long a call to the metastore may take, including the connection.",
        at_least(1, TIMER),
        aliases={"hive.metastore.client.socket.timeout": hive_time_ms},
    ),
    row(
        "hive.compare-and-set",
        "probe, honoured or ignored",
        "probe",
        "Whether the metastore's servers honour the condition of a swap. `probe` tests it on a temporary view before "
        "the first commit; with `ignored` the condition is never sent: commits then hold the metastore's lock and "
        "check the pointer before and after the swap.",
        CompareAndSetSetting,
    ),
    row(
        "hive.guard",
        "true or false",
        "true",
        "Whether each table whose writers do not lock in the metastore (`zookeeper`, `lease`, `memory`, other "
        "packages) has a guard, a permanent SHARED_READ lock. It blocks writers that take only the metastore's lock "
        "until they time out, so that they overwrite no commits; readers are not affected. This requires a metastore "
        "that grants locks and honours the condition of a swap; `none` sets no guard.",
        strtobool,
    ),
    row(
        "hive.table-property-max-size",
        "characters, a whole number",
        "32672",
        "The metastore shows schema, snapshot summary, partition spec and sort order if they are not longer than this; "
        "with 0 it shows none. Use 4000 for servers before 2.3.",
        at_least(0),
        aliases={"iceberg.hive.table-property-max-size": str},
    ),
    row(
        "lock.zk.namespace",
        "letters, digits and ._-",
        "hive_zookeeper_namespace",
        "The node below which operation locks are created, in Hive's layout. With Hive's own namespace, Hive's clients "
        "and coordinated writers exclude each other. The locks of a SQL catalog are below `<namespace>@<catalog>`.",
        node_name,
        aliases={"hive.zookeeper.namespace": str},
    ),
    row(
        "lock.zk.client-port",
        "a port number",
        "2181",
        "The port of ZooKeeper servers whose address has none.",
        at_least(1, 65_535),
        aliases={"hive.zookeeper.client.port": str},
    ),
    row(
        "lock.zk.connection-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "15000",
        "How long the first connection to ZooKeeper may take.",
        at_least(1, TIMER),
        aliases={"hive.zookeeper.connection.timeout": hive_time_ms},
    ),
    row(
        "lock.zk.auth",
        "none, digest, sasl or kerberos",
        "none",
        "How to log in to ZooKeeper: `digest` and `sasl` (DIGEST-MD5) use user and password, `kerberos` the ticket of "
        "this process. With each of them, no other user can read, create or delete the nodes of the locks.",
        ZooKeeperAuth,
    ),
    row("lock.zk.user", "text", "", "The user for `digest` and `sasl`."),
    row("lock.zk.password", "text", "", "The password for `digest` and `sasl`."),
    row("lock.zk.service", "text", "zookeeper", "The name of the servers' Kerberos service."),
    row(
        "lock.zk.acl",
        "scheme:id:permissions, separated by commas",
        "",
        "Other users that share these locks and may use their nodes, such as `sasl:etl:cdrwa`.",
    ),
    row(
        "lock.zk.tls",
        "true or false",
        "false",
        "Whether the connection to ZooKeeper is encrypted.",
        strtobool,
        aliases={"hive.zookeeper.ssl.client.enable": str},
    ),
    row("lock.zk.tls-ca", "a PEM file", "", "The trusted certificate authorities; by default those of the system."),
    row("lock.zk.tls-cert", "a PEM file", "", "The certificate of this client, if the servers require one."),
    row("lock.zk.tls-key", "a PEM file", "", "The key of this certificate, if it is in a separate file."),
    row("lock.zk.tls-key-password", "text", "", "The password of the key."),
    row(
        "lock.zk.tls-verify",
        "true or false",
        "true",
        "Whether the certificates of the servers and the host names in them are checked.",
        strtobool,
    ),
    row(
        "commit-coord.metrics",
        "off or prometheus",
        "off",
        "Metrics of locks and commits, in the registry of `prometheus_client` (extra `prometheus`).",
        MetricsExporter,
    ),
    row(
        "commit-coord.traces",
        "off or opentelemetry",
        "off",
        "OpenTelemetry spans of commits, waits, holds and swaps (extra `otel`).",
        TracesExporter,
    ),
    row(
        "commit-coord.audit-log",
        "a file",
        "",
        "The file to which each forced release, each move of a table to another lock service and each refused request "
        "of the REST server is appended as a JSON line: who, what, when and why. The logger "
        "`commit_coord.audit` gets the same in any case.",
    ),
)

COALESCE = "commit.group.coalesce"
"""Property of a table: the appends that one commit publishes share a snapshot."""

BLIND_APPENDS = "commit.append.blind"
"""Property of a table: the appends of other engines depend on nothing that they have read."""

TABLE_PROPERTIES: tuple[Property, ...] = (
    row(
        COALESCE,
        "true or false",
        "false",
        "Whether the appends that one commit publishes share one snapshot, whose summary lists all their request ids "
        "in `commit-coord.request-id`. Use it for a table that would otherwise have too many snapshots. Appends to "
        "other branches, and appends with different snapshot properties, have snapshots of their own.",
        strtobool,
    ),
    row(
        BLIND_APPENDS,
        "true or false",
        "false",
        "The appends that other engines send to `commit-coord serve` depend on nothing that they have read, so they "
        "follow any head instead of being refused. Only for tables that nobody changes with `MERGE`, or with an "
        "overwrite that may remove nothing: on the wire these look like appends. A client says it of all its appends "
        "by the catalog property `header.X-Commit-Coord-Append`, or of one by the snapshot property "
        "`commit-coord.append`; both are `blind` or `checked`, and go before this one.",
        strtobool,
    ),
)
"""Properties of Iceberg tables that we read there, in addition to Iceberg's own."""
