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
    CompareAndSetSetting,
    LockPolicy,
    MetricsExporter,
    OperationLocks,
    TracesExporter,
    ZooKeeperAuth,
    at_least,
    lock_impl,
    node_name,
)

PROPERTIES: tuple[Property, ...] = (
    row(
        "lock-impl",
        "hms, lease, memory, none, zookeeper or hms-to-zookeeper; or package.module:Class, or a name from the "
        "entry-point group commit_coord.lock_managers",
        None,
        "The lock manager. `lease` keeps leases in SQL tables beside the catalog's own (the default there); `hms` "
        "takes the locks of the Hive Metastore (the default there); `zookeeper` keeps locks in ZooKeeper, those of "
        "operations in Hive's own layout; `memory` serves one process (the default for in-memory catalogs); `none` "
        "takes no locks, commits still compare and set; `hms-to-zookeeper` takes for each table what its phase asks "
        "for, while it [moves from the metastore's locks to ZooKeeper](migration.md). A class of another package is "
        "opened as ours are.",
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
        "Where `lease` keeps its tables, or the metastore of `hms`: the catalog's own by default. Or the servers of "
        "`zookeeper` and `hms-to-zookeeper`, which finds the metastore where the catalog is.",
        aliases={"iceberg.catalog.hive.lock.zk.connect-string": str, "hive.zookeeper.quorum": str},
    ),
    row(
        "lock.acquire-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "180000",
        "How long an operation or a commit waits for its locks, all of them together.",
        at_least(1),
        aliases={"iceberg.hive.lock-timeout-ms": str},
    ),
    row(
        "lock.heartbeat-timeout-ms",
        "milliseconds, a whole number, at least 1000",
        "15000",
        "Length of a lease: what a holder that died or stalls keeps its locks for. The session timeout that "
        "`zookeeper` asks its servers for; a holder that hears nothing from them gives up about a third earlier.",
        at_least(1000),
        aliases={"lock.zk.session-timeout-ms": str, "hive.zookeeper.session.timeout": hive_session_ms},
    ),
    row(
        "lock.heartbeat-interval-ms",
        "milliseconds, a whole number, at most a third of lock.heartbeat-timeout-ms",
        "3000",
        "How often a holder extends its lease.",
        at_least(10),
        aliases={"iceberg.hive.lock-heartbeat-interval-ms": str},
    ),
    row(
        "lock.check-min-wait-ms",
        "milliseconds, a whole number, at least 1",
        "50",
        "How soon a waiter asks again where nobody can wake it (`hms`).",
        at_least(1),
        aliases={"iceberg.hive.lock-check-min-wait-ms": str, "lock-check-min-wait-time": seconds_as_ms},
    ),
    row(
        "lock.check-max-wait-ms",
        "milliseconds, a whole number, at least 1",
        "5000",
        "How long a waiter waits at most until it asks again, behind many others or a lock that is held for long.",
        at_least(1),
        aliases={"iceberg.hive.lock-check-max-wait-ms": str, "lock-check-max-wait-time": seconds_as_ms},
    ),
    row(
        "lock.policy",
        "wait or deny",
        "wait",
        "What an operation does on a conflict: `wait` in a fair queue, or `deny` as Hive does: release all, "
        "sleep, retry.",
        LockPolicy,
    ),
    row(
        "lock.num-retries",
        "a whole number",
        "100",
        "Retries under `deny`.",
        at_least(0),
        aliases={"hive.lock.numretries": str},
    ),
    row(
        "lock.sleep-between-retries-ms",
        "milliseconds, a whole number",
        "60000",
        "Sleep between the retries under `deny`.",
        at_least(0),
        aliases={"hive.lock.sleep.between.retries": hive_time_ms},
    ),
    row(
        "lock.database-parents",
        "true or false",
        "false",
        "Also hold S on the database of every table and partition that is locked.",
        strtobool,
    ),
    row(
        "lock.max-partitions",
        "a whole number, at least 1",
        "1000",
        "An operation that locks more partitions than this locks their common prefix, else the table.",
        at_least(1),
        aliases={"hive.locks.max.partitions": hive_max_partitions},
    ),
    row(
        "operation-locks",
        "off, iceberg or hive",
        "iceberg",
        "Which calls take locks for as long as they run, beside statements: `iceberg`: overwrites, deletes, upserts, "
        "compaction, drop and rename; `hive`: inserts and all others of [the table](locks.md) as well; `off`: none, "
        "nor statements, and conflicts are found at the commit.",
        OperationLocks,
    ),
    row(
        "commit.journal-lifetime-ms",
        "milliseconds, a whole number",
        "604800000",
        "How long the request ids that callers choose (streaming batches, Spark jobs) are remembered.",
        at_least(0),
    ),
    row(
        "commit.group.max-size",
        "a whole number",
        "64",
        "How many appends that wait for the same table one commit may publish at once, each as a snapshot of its own; "
        "1 makes each of them commit alone.",
        at_least(1),
    ),
    row(
        "commit.group.max-bytes",
        "bytes, a whole number, at least 1",
        "1048576",
        "How large the attempts may be, all together, that one commit carries beside its own; most have 1 to 3 KB. A "
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
        at_least(0),
    ),
    row(
        "lease.max-duration-ms",
        "milliseconds, a whole number, at least 1",
        "86400000",
        "How long a lease that was grabbed may live, all its extensions together.",
        at_least(1),
    ),
    row(
        "hive.client-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "30000",
        "How long a call to the metastore may take, connecting included.",
        at_least(1),
        aliases={"hive.metastore.client.socket.timeout": hive_time_ms},
    ),
    row(
        "hive.compare-and-set",
        "probe, honoured or ignored",
        "probe",
        "Whether the metastore's servers honour the condition of a swap. `probe` tries it on a scratch view before the "
        "first commit; `ignored` never sends it: commits then hold the metastore's lock and check before and after.",
        CompareAndSetSetting,
    ),
    row(
        "hive.guard",
        "true or false",
        "true",
        "Keep a standing SHARED_READ lock on each table whose writers do not lock in the metastore (`zookeeper`, "
        "`lease`, `memory`), so that writers that know no other lock wait and fail instead of overwriting commits; "
        "readers do not notice it. Needs a metastore that grants locks and honours the condition of a swap; `none` "
        "sets no guard.",
        strtobool,
    ),
    row(
        "hive.table-property-max-size",
        "characters, a whole number",
        "32672",
        "Schema, snapshot summary, partition spec and sort order are shown in the metastore up to this length each; 0 "
        "shows none. 4000 for servers before 2.3.",
        at_least(0),
        aliases={"iceberg.hive.table-property-max-size": str},
    ),
    row(
        "lock.zk.namespace",
        "letters, digits and ._-",
        "hive_zookeeper_namespace",
        "The node that operation locks lie below, in Hive's layout; with Hive's own namespace its clients and ours "
        "exclude each other. A SQL catalog's locks lie beside it, below `<namespace>@<catalog>`.",
        node_name,
        aliases={"hive.zookeeper.namespace": str},
    ),
    row(
        "lock.zk.client-port",
        "a port number",
        "2181",
        "The port of ZooKeeper servers that are named without one.",
        at_least(1),
        aliases={"hive.zookeeper.client.port": str},
    ),
    row(
        "lock.zk.connection-timeout-ms",
        "milliseconds, a whole number, at least 1",
        "15000",
        "How long the first connection to ZooKeeper may take.",
        at_least(1),
        aliases={"hive.zookeeper.connection.timeout": hive_time_ms},
    ),
    row(
        "lock.zk.auth",
        "none, digest, sasl or kerberos",
        "none",
        "Who we are to ZooKeeper: `digest` and `sasl` (DIGEST-MD5) by user and password, `kerberos` by the ticket of "
        "this process. With any of them nobody else can read, make or delete our nodes.",
        ZooKeeperAuth,
    ),
    row("lock.zk.user", "text", "", "User for `digest` and `sasl`."),
    row("lock.zk.password", "text", "", "Password for `digest` and `sasl`."),
    row("lock.zk.service", "text", "zookeeper", "Name of the servers' Kerberos service."),
    row(
        "lock.zk.acl",
        "scheme:id:permissions, separated by commas",
        "",
        "Who else may use our nodes, such as `sasl:etl:cdrwa`: other users that share these locks.",
    ),
    row(
        "lock.zk.tls",
        "true or false",
        "false",
        "Encrypt the connection to ZooKeeper.",
        strtobool,
        aliases={"hive.zookeeper.ssl.client.enable": str},
    ),
    row("lock.zk.tls-ca", "a PEM file", "", "Authorities that are trusted; the system's where none is named."),
    row("lock.zk.tls-cert", "a PEM file", "", "Our certificate, where the servers ask for one."),
    row("lock.zk.tls-key", "a PEM file", "", "The key of our certificate, where it is in a file of its own."),
    row("lock.zk.tls-key-password", "text", "", "Password of the key."),
    row(
        "lock.zk.tls-verify",
        "true or false",
        "true",
        "Check the servers' certificates, and that they name the hosts.",
        strtobool,
    ),
    row(
        "commit-coord.metrics",
        "off or prometheus",
        "off",
        "Count and time locks and commits in `prometheus_client`'s registry (extra `prometheus`).",
        MetricsExporter,
    ),
    row(
        "commit-coord.traces",
        "off or opentelemetry",
        "off",
        "Make OpenTelemetry spans of commits, waits, holds and swaps (extra `otel`).",
        TracesExporter,
    ),
    row(
        "commit-coord.audit-log",
        "a file",
        "",
        "Where to append who freed whose locks by force or moved tables to another lock service, when and why, as JSON "
        "lines. Logged as `commit_coord.audit` in any case.",
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
        "The appends that one commit publishes share one snapshot, whose summary lists the request ids of all of them "
        "at `commit-coord.request-id`: for a table that would otherwise drown in snapshots. Those to other branches, "
        "and those whose snapshot properties differ, have snapshots of their own.",
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
"""Properties of Iceberg tables that we read there, beside Iceberg's own."""
