"""Where a catalog's configuration comes from, and that nobody ends up with an uncoordinated catalog unawares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, assert_type

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import SQLAlchemyError

import commit_coord
from commit_coord import ConfigError, LeaseObject
from commit_coord.catalog import CoordinatedSqlCatalog
from commit_coord.config import PROPERTIES, configure, render
from commit_coord.locks.registry import LOCK_MANAGERS
from commit_coord.model import LockMode, Resource
from commit_coord.table import CoordinatedTable
from tests.catalog.kit import SCHEMA

ROOT = Path(__file__).parents[2]
ZOOKEEPER = {"lock-impl": "zookeeper", "lock.uri": "127.0.0.1:2181"}
IMPL = "commit_coord.catalog.CoordinatedSqlCatalog"


def given(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"uri": f"coord+sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w", **more}


def run(code: str, home: Path, **environment: str) -> Any:
    """Run *code* in another process with the configuration in *home*; return what it prints, as JSON."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYICEBERG")}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env={**clean, "PYTHONPATH": str(ROOT), "PYICEBERG_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def test_arguments_go_before_the_environment_before_the_file(tmp_path: Path) -> None:
    (tmp_path / ".pyiceberg.yaml").write_text(
        textwrap.dedent(f"""
        default-catalog: prod
        catalog:
          prod:
            uri: coord+sqlite:///{tmp_path}/c.db
            warehouse: file://{tmp_path}/from-file
            py-catalog-impl: {IMPL}
            lock.acquire-timeout-ms: 1001
            lock.num-retries: 1002
            lock.policy: deny
          plain:
            uri: sqlite:///{tmp_path}/p.db
            type: sql
          other:
            py-catalog-impl: pyiceberg.catalog.sql.SqlCatalog
            uri: sqlite:///{tmp_path}/p.db
          rest:
            uri: http://127.0.0.1:9
            type: rest
        """)
    )
    found = run(
        """
        import json
        import pyiceberg.catalog
        import commit_coord
        from commit_coord import ConfigError
        def outcome(call):
            try:
                return type(call()).__name__
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        catalog = commit_coord.load_catalog(**{"lock.num-retries": "4"})
        settings, origins = catalog.settings, catalog.configuration.origins
        print(json.dumps({
            "name": catalog.name, "warehouse": catalog.properties["warehouse"], "uri": catalog.properties["uri"],
            "values": [settings.lock_acquire_timeout_ms, settings.lock_num_retries, settings.lock_policy],
            "origins": [origins[k] for k in (
                "lock.acquire-timeout-ms", "lock.num-retries", "lock.policy", "lock.max-partitions")],
            "plain pyiceberg": outcome(lambda: pyiceberg.catalog.load_catalog("prod")),
            "pyiceberg with impl": outcome(lambda: pyiceberg.catalog.load_catalog(
                "prod", **{"py-catalog-impl": "commit_coord.catalog.CoordinatedSqlCatalog"})),
            "plain": outcome(lambda: commit_coord.load_catalog("plain")),
            "other": outcome(lambda: commit_coord.load_catalog("other")),
            "rest": outcome(lambda: commit_coord.load_catalog("rest")),
            "missing": outcome(lambda: commit_coord.load_catalog("missing")),
        }))
        """,
        tmp_path,
        PYICEBERG_CATALOG__PROD__LOCK__ACQUIRE_TIMEOUT_MS="2001",
        PYICEBERG_CATALOG__PROD__LOCK__NUM_RETRIES="2002",
        PYICEBERG_CATALOG__PROD__WAREHOUSE=f"file://{tmp_path}/from-environment",
    )
    assert found["name"] == "prod"
    assert found["warehouse"] == f"file://{tmp_path}/from-environment"
    assert found["uri"] == f"sqlite:///{tmp_path}/c.db"
    assert found["values"] == [2001, 4, "deny"]
    assert found["origins"] == ["environment", "argument", "file", "default"]
    assert "Error" in found["plain pyiceberg"] or "Exception" in found["plain pyiceberg"], found["plain pyiceberg"]
    assert found["pyiceberg with impl"] == "CoordinatedSqlCatalog"
    assert found["plain"] == "CoordinatedSqlCatalog"
    assert "not coordinated" in found["other"]
    assert "not coordinated" in found["rest"]
    assert "uri" in found["missing"]


def test_the_environment_alone_is_enough(tmp_path: Path) -> None:
    found = run(
        """
        import json
        import commit_coord
        catalog = commit_coord.load_catalog("env")
        settings = catalog.settings
        print(json.dumps([type(catalog).__name__, settings.lock_impl, settings.lock_heartbeat_timeout_ms]))
        """,
        tmp_path,
        PYICEBERG_CATALOG__ENV__URI=f"coord+sqlite:///{tmp_path}/c.db",
        PYICEBERG_CATALOG__ENV__WAREHOUSE=f"file://{tmp_path}/w",
        PYICEBERG_CATALOG__ENV__LOCK_IMPL="none",
        PYICEBERG_CATALOG__ENV__LOCK__HEARTBEAT_TIMEOUT_MS="20000",
    )
    assert found == ["CoordinatedSqlCatalog", "none", 20000]


def test_every_documented_property_can_be_set_in_the_environment(tmp_path: Path) -> None:
    """PyIceberg makes dots of double and dashes of single underscores."""
    values = {
        "lock-impl": "zookeeper",
        "lock.uri": "127.0.0.1:2181/c",
        "lock.acquire-timeout-ms": "7001",
        "lock.heartbeat-timeout-ms": "9000",
        "lock.heartbeat-interval-ms": "700",
        "lock.check-min-wait-ms": "70",
        "lock.check-max-wait-ms": "700",
        "lock.policy": "deny",
        "lock.num-retries": "7",
        "lock.sleep-between-retries-ms": "77",
        "lock.database-parents": "true",
        "lock.max-partitions": "77",
        "operation-locks": "hive",
        "commit.journal-lifetime-ms": "777",
        "commit.group.max-size": "7",
        "commit.group.max-bytes": "70000",
        "commit.reserved-turn-ms": "77",
        "lease.max-duration-ms": "7777",
        "hive.client-timeout-ms": "777777",
        "hive.compare-and-set": "ignored",
        "hive.guard": "false",
        "hive.table-property-max-size": "7000",
        "lock.zk.namespace": "locks",
        "lock.zk.client-port": "2182",
        "lock.zk.connection-timeout-ms": "777",
        "lock.zk.auth": "digest",
        "lock.zk.user": "u",
        "lock.zk.password": "p",
        "lock.zk.service": "zk",
        "lock.zk.acl": "sasl:etl:cdrwa",
        "lock.zk.tls": "true",
        "lock.zk.tls-ca": "ca.pem",
        "lock.zk.tls-cert": "cert.pem",
        "lock.zk.tls-key": "key.pem",
        "lock.zk.tls-key-password": "k",
        "lock.zk.tls-verify": "false",
        "commit-coord.metrics": "prometheus",
        "commit-coord.traces": "opentelemetry",
        "commit-coord.audit-log": "audit.jsonl",
    }
    assert values.keys() == {prop.key for prop in PROPERTIES}
    environment = {
        f"PYICEBERG_CATALOG__ENV__{key.replace('.', '__').replace('-', '_').upper()}": value
        for key, value in values.items()
    }
    found = run(
        """
        import dataclasses, json
        from commit_coord.config import configure
        print(json.dumps(dataclasses.asdict(configure("env", {}).settings)))
        """,
        tmp_path,
        PYICEBERG_CATALOG__ENV__URI=f"coord+sqlite:///{tmp_path}/c.db",
        **environment,
    )
    assert {key.replace("_", "-"): str(value).lower() for key, value in found.items()} == {
        key.replace(".", "-"): value for key, value in values.items()
    }


def test_pyicebergs_own_loader_makes_our_catalog_from_its_arguments(tmp_path: Path) -> None:
    catalog = pyiceberg.catalog.load_catalog("t", **given(tmp_path, **{"py-catalog-impl": IMPL}))
    assert isinstance(catalog, CoordinatedSqlCatalog)
    catalog.create_namespace("db")
    assert isinstance(catalog.create_table("db.t", SCHEMA), CoordinatedTable)
    catalog.close()


@pytest.mark.parametrize("more", [{}, {"type": "sql"}])
def test_plain_pyiceberg_refuses_a_coordinated_uri(tmp_path: Path, more: dict[str, str]) -> None:
    with pytest.raises((ValueError, SQLAlchemyError), match=r"(?i)coord[+.]|catalog type"):
        pyiceberg.catalog.load_catalog("t", **given(tmp_path, **more))
    with pytest.raises(SQLAlchemyError, match=r"coord"):
        SqlCatalog("t", **given(tmp_path))
    assert not (tmp_path / "c.db").exists()


def test_a_plain_uri_is_coordinated_too(tmp_path: Path) -> None:
    catalog = commit_coord.load_catalog("t", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")
    assert isinstance(catalog, CoordinatedSqlCatalog)
    catalog.close()


def test_every_table_that_a_catalog_hands_out_is_coordinated(tmp_path: Path) -> None:
    """Also for mypy, which reads this file."""
    catalog = commit_coord.load_catalog("t", **given(tmp_path))
    catalog.create_namespace("db")
    made = catalog.create_table("db.t", SCHEMA)
    assert_type(made, CoordinatedTable)
    assert_type(catalog.load_table("db.t"), CoordinatedTable)
    assert_type(catalog.create_table_if_not_exists("db.t", SCHEMA), CoordinatedTable)
    assert_type(made.compact().before, int)
    handed = [made, made.refresh(), catalog.load_table("db.t"), catalog.create_table_if_not_exists("db.t", SCHEMA)]
    handed.append(catalog.rename_table("db.t", "db.u"))
    catalog.drop_table("db.u")
    handed.append(catalog.register_table("db.v", made.metadata_location))
    handed.append(handed[-1].transaction().set_properties(a="1").commit_transaction())
    for table in handed:
        assert isinstance(table, CoordinatedTable)
    catalog.close()


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"hive.support.concurrency": "false"}, ("lock_impl", "none")),
        ({"hive.support.concurrency": "true"}, ("lock_impl", "lease")),
        ({"hive.lock.numretries": "5"}, ("lock_num_retries", 5)),
        ({"hive.locks.max.partitions": "50"}, ("lock_max_partitions", 50)),
        ({"hive.locks.max.partitions": "-1"}, ("lock_max_partitions", sys.maxsize)),
        ({"hive.lock.sleep.between.retries": "60s"}, ("lock_sleep_between_retries_ms", 60_000)),
        ({"hive.lock.sleep.between.retries": "60"}, ("lock_sleep_between_retries_ms", 60_000)),
        ({"hive.lock.sleep.between.retries": "500ms"}, ("lock_sleep_between_retries_ms", 500)),
        ({"hive.lock.sleep.between.retries": "2min"}, ("lock_sleep_between_retries_ms", 120_000)),
        ({"hive.lock.sleep.between.retries": "1h"}, ("lock_sleep_between_retries_ms", 3_600_000)),
        ({"hive.lock.sleep.between.retries": "1d"}, ("lock_sleep_between_retries_ms", 86_400_000)),
        ({"hive.lock.sleep.between.retries": "2mins"}, ("lock_sleep_between_retries_ms", 120_000)),
        ({"hive.lock.sleep.between.retries": "3 Minutes"}, ("lock_sleep_between_retries_ms", 180_000)),
        ({"hive.lock.sleep.between.retries": "2 days"}, ("lock_sleep_between_retries_ms", 172_800_000)),
        ({"hive.lock.sleep.between.retries": "30seconds"}, ("lock_sleep_between_retries_ms", 30_000)),
        ({"hive.lock.sleep.between.retries": "7msec"}, ("lock_sleep_between_retries_ms", 7)),
        ({"hive.lock.sleep.between.retries": "9000us"}, ("lock_sleep_between_retries_ms", 9)),
        ({"hive.lock.sleep.between.retries": "5000000ns"}, ("lock_sleep_between_retries_ms", 5)),
        ({"hive.lock.sleep.between.retries": "60L"}, ("lock_sleep_between_retries_ms", 60_000)),
        ({"iceberg.hive.lock-timeout-ms": "5000"}, ("lock_acquire_timeout_ms", 5000)),
        ({"iceberg.hive.lock-heartbeat-interval-ms": "500"}, ("lock_heartbeat_interval_ms", 500)),
        ({"lock.num-retries": "5", "hive.lock.numretries": "5"}, ("lock_num_retries", 5)),
        ({"lock.zk.session-timeout-ms": "20000"}, ("lock_heartbeat_timeout_ms", 20_000)),
        ({"hive.zookeeper.session.timeout": "120000"}, ("lock_heartbeat_timeout_ms", 120_000)),
        ({"hive.zookeeper.session.timeout": "120000ms"}, ("lock_heartbeat_timeout_ms", 120_000)),
        ({"hive.zookeeper.session.timeout": "60s"}, ("lock_heartbeat_timeout_ms", 60_000)),
        ({**ZOOKEEPER, "hive.zookeeper.connection.timeout": "15"}, ("lock_zk_connection_timeout_ms", 15_000)),
        ({**ZOOKEEPER, "hive.zookeeper.namespace": "hive_prod"}, ("lock_zk_namespace", "hive_prod")),
        ({**ZOOKEEPER, "hive.zookeeper.namespace": "/hive_prod"}, ("lock_zk_namespace", "hive_prod")),
        ({**ZOOKEEPER, "hive.zookeeper.client.port": "2999"}, ("lock_zk_client_port", 2999)),
        ({**ZOOKEEPER, "hive.zookeeper.ssl.client.enable": "true"}, ("lock_zk_tls", True)),
        (
            {"lock-impl": "zookeeper", "hive.zookeeper.quorum": "a,b,c"},
            ("lock_uri", "a,b,c"),
        ),
        (
            {
                "iceberg.catalog.hive.lock-manager": "org.apache.iceberg.util.LockManagers$ZooKeeperLockManager",
                "iceberg.catalog.hive.lock.zk.connect-string": "a:2181,b:2181/c",
            },
            ("lock_uri", "a:2181,b:2181/c"),
        ),
        (
            {
                "hive.lock.manager": "org.apache.hadoop.hive.ql.lockmgr.zookeeper.ZooKeeperHiveLockManager",
                "hive.zookeeper.quorum": "a:2181",
            },
            ("lock_impl", "zookeeper"),
        ),
        ({"engine.hive.lock-enabled": "false"}, ("lock_impl", "none")),
        ({"iceberg.engine.hive.lock-enabled": "true"}, ("lock_impl", "lease")),
        ({"iceberg.catalog.hive.lock-manager": "memory"}, ("lock_impl", "memory")),
        (
            {"iceberg.catalog.hive.lock-manager": "org.apache.iceberg.util.LockManagers$InMemoryLockManager"},
            ("lock_impl", "memory"),
        ),
        ({"iceberg.hive.lock-check-min-wait-ms": "70"}, ("lock_check_min_wait_ms", 70)),
        ({"iceberg.hive.lock-check-max-wait-ms": "700"}, ("lock_check_max_wait_ms", 700)),
        ({"lock-check-min-wait-time": "0.1"}, ("lock_check_min_wait_ms", 100)),
        ({"lock-check-max-wait-time": "60"}, ("lock_check_max_wait_ms", 60_000)),
        ({"hive.metastore.client.socket.timeout": "600s"}, ("hive_client_timeout_ms", 600_000)),
        ({"iceberg.hive.table-property-max-size": "4000"}, ("hive_table_property_max_size", 4000)),
    ],
)
def test_names_of_hive_and_iceberg_are_understood(
    tmp_path: Path, settings: dict[str, str], expected: tuple[str, Any]
) -> None:
    key, value = expected
    assert getattr(configure("t", given(tmp_path, **settings)).settings, key) == value


@pytest.mark.parametrize(
    "key, advice",
    [
        ("hive.zookeeper.ssl.keystore.location", "lock.zk.tls-cert"),
        ("hive.zookeeper.ssl.keystore.password", "lock.zk.tls-cert"),
        ("hive.zookeeper.ssl.keystore.type", "lock.zk.tls-cert"),
        ("hive.zookeeper.ssl.truststore.location", "lock.zk.tls-ca"),
        ("hive.zookeeper.ssl.truststore.password", "lock.zk.tls-ca"),
        ("hive.zookeeper.ssl.truststore.type", "lock.zk.tls-ca"),
        ("hive.zookeeper.kerberos.enabled", "lock.zk.auth=kerberos"),
        ("hive.zookeeper.connection.max.retries", "lock.zk.connection-timeout-ms"),
        ("hive.zookeeper.connection.basesleeptime", "lock.zk.connection-timeout-ms"),
        ("hive.zookeeper.clean.extra.nodes", "leave it out"),
        ("hive.zookeeper.killquery.enable", "HiveServer2"),
        ("hive.zookeeper.killquery.namespace", "HiveServer2"),
        ("hive.lock.mapred.only.operation", "operation-locks"),
        ("hive.lock.query.string.max.length", "leave it out"),
        ("hive.lock.file.move.protect", "leave it out"),
    ],
)
def test_a_setting_of_hives_that_can_not_be_honoured_says_what_to_set_instead(
    tmp_path: Path, key: str, advice: str
) -> None:
    with pytest.raises(ConfigError, match="setting of Hive") as error:
        configure("t", given(tmp_path, **ZOOKEEPER, **{key: "x"}))
    assert key in str(error.value)
    assert advice in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"lock.num-retries": "5", "hive.lock.numretries": "6"},
        {"lock-impl": "lease", "hive.support.concurrency": "false"},
        {"lock-impl": "none", "hive.support.concurrency": "true"},
        {"lock.sleep-between-retries-ms": "5", "hive.lock.sleep.between.retries": "5s"},
        {"lock.uri": "a:2181", "hive.zookeeper.quorum": "b:2181"},
        {"hive.zookeeper.quorum": "a:2181", "iceberg.catalog.hive.lock.zk.connect-string": "b:2181"},
        {"lock.heartbeat-timeout-ms": "20000", "lock.zk.session-timeout-ms": "30000"},
        {"lock-impl": "memory", "lock.zk.namespace": "hive"},
    ],
)
def test_settings_that_clash_are_an_error_that_names_both(tmp_path: Path, settings: dict[str, str]) -> None:
    for order in (settings, dict(reversed(settings.items()))):
        with pytest.raises(ConfigError, match="contradict each other") as error:
            configure("t", given(tmp_path, **order))
        for key in settings:
            assert key in str(error.value)


def test_settings_of_pyiceberg_go_through_unchanged(tmp_path: Path) -> None:
    properties = given(
        tmp_path, **{"s3.endpoint": "http://x", "echo": "false", "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    )
    found = configure("t", properties).properties
    assert found == {**properties, "uri": f"sqlite:///{tmp_path}/c.db"}


def test_a_catalog_in_memory_has_locks_in_memory(tmp_path: Path) -> None:
    assert configure("t", {"uri": "coord+sqlite:///:memory:"}).settings.lock_impl == "memory"
    assert configure("t", given(tmp_path)).settings.lock_impl == "lease"
    with pytest.raises(ConfigError, match="in-memory database"):
        configure("t", {"uri": "coord+sqlite:///:memory:", "lock-impl": "lease"})


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"lock-impl": "zookeeper"}, ["lock.uri", "host:port"]),
        ({**ZOOKEEPER, "hive.zookeeper.quorums": "a"}, ["hive.zookeeper.quorums", "hive.zookeeper.quorum"]),
        ({**ZOOKEEPER, "lock.zk.chroot": "/a"}, ["unknown setting", "lock.zk.chroot"]),
        ({"hive.locks.max.partition": "5"}, ["unknown setting", "hive.locks.max.partition"]),
        ({**ZOOKEEPER, "lock.zk.auth": "scram"}, ["lock.zk.auth", "scram", "digest"]),
        ({**ZOOKEEPER, "lock.zk.namespace": "a/b"}, ["lock.zk.namespace", "a/b", "letters"]),
        ({**ZOOKEEPER, "hive.zookeeper.session.timeout": "soon"}, ["hive.zookeeper.session.timeout", "soon"]),
    ],
)
def test_mistakes_in_zookeepers_settings_are_named(
    tmp_path: Path, settings: dict[str, str], expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        configure("t", given(tmp_path, **settings))
    assert all(word in str(error.value) for word in expected), str(error.value)


def test_a_lock_manager_gets_its_own_settings_and_no_others(tmp_path: Path) -> None:
    options = configure("t", given(tmp_path, **ZOOKEEPER, **{"lock.zk.tls-verify": "false"})).settings.lock_options
    assert (options["tls_verify"], options["namespace"]) == (False, "hive_zookeeper_namespace")
    assert configure("t", given(tmp_path)).settings.lock_options == {}


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    settings = configure("t", given(tmp_path, **ZOOKEEPER, **{"lock.zk.password": "geheim"})).settings
    assert "geheim" not in repr(settings)


def test_the_lock_managers_that_are_accepted_are_those_there_are(tmp_path: Path) -> None:
    places = {"zookeeper": {"lock.uri": "127.0.0.1:2181"}, "hms": {"lock.uri": "thrift://127.0.0.1:9083"}}
    places["hms-to-zookeeper"] = {**places["zookeeper"], "uri": "thrift://127.0.0.1:9083"}
    for name in LOCK_MANAGERS:
        assert configure("t", given(tmp_path, **{"lock-impl": name}, **places.get(name, {}))).settings.lock_impl == name


@pytest.mark.parametrize(
    "cls, expected",
    [
        ("org.apache.hadoop.hive.ql.lockmgr.DbLockManager", "hms"),
        ("org.apache.iceberg.hive.MetastoreLock", "hms"),
        ("org.apache.iceberg.hive.NoLock", "none"),
        ("org.apache.hadoop.hive.ql.lockmgr.EmbeddedLockManager", "memory"),
    ],
)
def test_lock_managers_of_java_are_known_by_their_classes(cls: str, expected: str) -> None:
    given = {"uri": "coord+thrift://127.0.0.1:9083", "iceberg.catalog.hive.lock-manager": cls}
    assert configure("t", given).settings.lock_impl == expected


def test_a_catalog_on_a_metastore_takes_its_locks() -> None:
    settings = configure("t", {"uri": "coord+thrift://a:1,thrift://b:2"}).settings
    assert (settings.lock_impl, settings.lock_uri) == ("hms", "thrift://a:1,thrift://b:2")
    for more in ({"type": "sql"}, {"py-catalog-impl": IMPL}):
        with pytest.raises(ConfigError, match="contradict each other"):
            commit_coord.load_catalog("t", uri="coord+thrift://a:1", **more)
    with pytest.raises(ConfigError, match="invalid metastore uri"):
        commit_coord.load_catalog("t", uri="coord+thrift://a:port")
    with pytest.raises(ConfigError, match="longer than lock.check-max-wait-ms"):
        configure("t", {"uri": "coord+thrift://a:1", "lock.check-min-wait-ms": "6000", "lock.check-max-wait-ms": "50"})


@pytest.mark.parametrize(
    "alone, follows, value",
    [
        ({**ZOOKEEPER, "lock.zk.session-timeout-ms": "4000"}, "lock_heartbeat_interval_ms", 800),
        ({"lock.heartbeat-timeout-ms": "1000"}, "lock_heartbeat_interval_ms", 200),
        ({"lock.heartbeat-timeout-ms": "60000"}, "lock_heartbeat_interval_ms", 3000),
        ({"lock.check-min-wait-ms": "6000"}, "lock_check_max_wait_ms", 6000),
        ({"lock.check-max-wait-ms": "20"}, "lock_check_min_wait_ms", 20),
    ],
)
def test_a_default_follows_the_setting_that_limits_it(
    tmp_path: Path, alone: dict[str, str], follows: str, value: int
) -> None:
    assert value == getattr(configure("t", given(tmp_path, **alone)).settings, follows)


def test_plain_pyiceberg_refuses_a_coordinated_metastore() -> None:
    with pytest.raises(ValueError, match=r"(?i)catalog type|coord"):
        pyiceberg.catalog.load_catalog("t", uri="coord+thrift://127.0.0.1:9083")


def test_the_configuration_page_lists_every_property_and_alias() -> None:
    page = render()
    for prop in PROPERTIES:
        assert f"`{prop.key}`" in page
        for alias in prop.aliases:
            assert f"`{alias}`" in page


NUMBERS = [prop.key for prop in PROPERTIES if "a whole number" in prop.type]


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_of_any_size_is_taken_or_refused_in_words(tmp_path: Path, key: str) -> None:
    """What is taken serves a commit, a lock and a lease."""
    for text in (*map(str, (2**31 - 1, 2**31, 2**53, 10**14, 2**63 - 1, 2**63, 10**30, 10**400)), "9" * 5_000):
        properties = {"uri": f"coord+sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w", key: text}
        if key == "lock.heartbeat-interval-ms":
            properties["lock.heartbeat-timeout-ms"] = str(2**31 - 1)
        try:
            catalog = commit_coord.load_catalog("t", **properties)
        except ConfigError:
            continue
        catalog.create_namespace_if_not_exists("db")
        table = catalog.create_table_if_not_exists("db.t", pa.schema([("a", pa.int64())]))
        table.append(pa.table({"a": [1]}))
        catalog.lock_operation({Resource(("db", "t")): LockMode.EXCLUSIVE}).release()
        catalog.leases.drop_lease(catalog.leases.grab_lease([LeaseObject("db", "t")], 10))
        catalog.close()
