"""What attackers and accidents try: names that are statements or paths, and secrets that want to be printed."""

from __future__ import annotations

import logging
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commit_coord
from commit_coord.cli import app
from commit_coord.config import configure
from commit_coord.errors import CommitCoordError
from commit_coord.local import HiveMetastore, PostgresServer
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.locks.registry import create_lock_manager
from commit_coord.locks.sql.requests import stored
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.model import JournalEntry, LockMode, LockRequest, LockScope, Owner, Resource
from commit_coord.spark.holder import DriverService, PlanAnswer
from commit_coord.testing.contract import Service, soon
from tests.catalog.kit import Kit, ids, kit, row_ids

NAMES = [
    "t'; DROP TABLE commit_coord_requests; --",
    't" OR "1"="1',
    "t\\'; SELECT 1; --",
    "..",
    ".",
    "../../etc",
    "a/../../b",
    "%2e%2e%2f",
    "t%00",
    "t\n\r\tu",
    "LOCK-EXCLUSIVE-0000000000",
    "{now}",
    ":request_id",
    "%(request_id)s",
    "${jndi:ldap://x}",
    "ünïcödé 表 🙈",
    "\u202egnp.exe",
    "x" * 2_000,
]
NUL = "a\0b"


@pytest.fixture(
    params=[
        "memory",
        "lease-sqlite",
        pytest.param("lease-postgresql", marks=pytest.mark.postgres),
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    ]
)
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """Each service that keeps names."""
    name, uri = request.param, ""
    if name == "lease-sqlite":
        name, uri = "lease", f"sqlite:///{tmp_path}/locks.db"
    if name == "lease-postgresql":
        name, uri = "lease", request.getfixturevalue("postgres").url
    if name == "zookeeper":
        uri = request.getfixturevalue("zookeeper").connect_string
    with Service(name, uri, opens_sessions=name == "zookeeper") as service:
        yield service


def asked(*path: str, scope: LockScope = LockScope.OPERATION, text: str = "s", request_id: str = "r") -> LockRequest:
    """Return a request for X on *path*, of an owner whose every word is *text*."""
    owner = Owner(user=text, host=text, pid=1, application=text, statement=text)
    return LockRequest.of(scope, {Resource(path): LockMode.EXCLUSIVE}, owner=owner, request_id=request_id)


def listed(manager: HandoverLockManager) -> list[tuple[Resource, str, str]]:
    return [(entry.resource, entry.owner.user, entry.owner.statement) for entry in manager.locks()]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_is_only_a_name(service: Service, name: str) -> None:
    """As a database, a table, a partition value, an owner's words, a request id, a journal's entry and a note."""
    manager, other = service.open(), service.open()
    witness = other.acquire(asked("db", "witness", request_id="witness"), deadline=soon())
    request_id = name.replace(":", "")  # Hive's format of a lock in ZooKeeper has none in its fields
    wanted = asked(name, name, f"k={name}", text=name, request_id=request_id)
    with manager.acquire(wanted, deadline=soon()):
        found = [(one.resource, one.owner.user) for one in other.locks() if one.request_id == request_id]
        named = Resource((name, name, f"k={name}"))
        # The lock tables keep a long name by its beginning and a digest, and list that.
        kept = Resource.parse(stored(named)) if manager.name == "lease" else named
        assert (kept, name) in found
        assert found == [(one.resource, one.owner.user) for one in other.locks(Resource((name,)))]
    entry = JournalEntry(key=name, table=name, table_uuid=name, metadata_location=name, snapshot_ids=(1,))
    manager.remember(entry, lifetime_ms=60_000)
    assert other.recall(name) == entry
    with manager.acquire(asked(name, name, scope=LockScope.COMMIT, request_id=f"{name}+"), deadline=soon()) as latch:
        latch.set_handover_note(name)
    with other.acquire(asked(name, name, scope=LockScope.COMMIT, request_id=f"{name}-"), deadline=soon()) as latch:
        assert latch.handover_note == name
    assert listed(manager) == [(Resource(("db", "witness")), "s", "s")]
    witness.ensure_active(0)
    witness.release()


def test_nul_is_refused_or_only_a_name_and_breaks_nothing(service: Service) -> None:
    manager = service.open()
    with suppress(CommitCoordError, ValueError):  # PostgreSQL knows no NUL in a text
        manager.acquire(asked("db", NUL, text=NUL, request_id=NUL), deadline=soon()).release()
    assert listed(manager) == []
    manager.acquire(asked("db", "t"), deadline=soon()).release()


@pytest.fixture(scope="module")
def made() -> Iterator[Kit]:
    with kit("lease") as made:
        yield made


@pytest.mark.parametrize("name", [name for name in NAMES if len(name) < 200], ids=str)
def test_a_table_of_any_name_is_a_table_or_refused_and_lies_in_the_warehouse(made: Kit, name: str) -> None:
    """No name makes a file outside of the warehouse, and no statement."""
    identifier = (made.namespace, name)
    with suppress(ValueError):  # refused: it would lie elsewhere, or its files would be those of another name
        made.catalog.create_table(identifier, ids(1).schema).append(ids(1))
    there = made.catalog.table_exists(identifier)
    is_cut = any(character in name for character in "#?\t\r\n")
    assert there == (".." not in name.split("/") and name != "." and not is_cut)
    if there:
        table = made.catalog.load_table(identifier)
        assert row_ids(table) == [1]
        location = Path(table.metadata_location.removeprefix("file://"))
        assert location.resolve().is_relative_to(made.folder.resolve() / "warehouse")
    assert {path.name.partition("-")[0] for path in made.folder.iterdir()} <= {"warehouse", "catalog.db"}
    with sqlite3.connect(made.folder / "catalog.db") as db:
        assert db.execute("SELECT count(*) FROM commit_coord_requests").fetchone() == (0,)
    db.close()


# Secrets.

SECRET = "s3cr3t-w0rd"
PLACE = {"uri": "coord+sqlite:///nowhere.db", "warehouse": "file:///nowhere"}
ZOOKEEPER = {**PLACE, "lock-impl": "zookeeper", "lock.uri": "h:2181"}

SPILLS: dict[str, Callable[[], Any]] = {
    "settings": lambda: configure(
        "c",
        {
            **ZOOKEEPER,
            "lock.zk.auth": "digest",
            "lock.zk.user": "u",
            "lock.zk.password": SECRET,
            "lock.zk.tls": "true",
            "lock.zk.tls-key-password": SECRET,
            "lock.zk.acl": f"digest:u:{SECRET}:cdrwa",
            "s3.secret-access-key": SECRET,
        },
    ),
    "a lock database": lambda: configure("c", {**PLACE, "lock.uri": f"postgresql://u:{SECRET}@h/db"}),
    "a setting of another manager": lambda: configure("c", {**PLACE, "lock-impl": "lease", "lock.zk.password": SECRET}),
    "a misspelled setting": lambda: configure("c", {**ZOOKEEPER, "lock.zk.pasword": SECRET}),
    "a port that is none": lambda: create_lock_manager("lease", f"postgresql://u:{SECRET}@h:port/db"),
    "a URL that is none": lambda: create_lock_manager("lease", f"postgresql//u:{SECRET}@h/db"),
    "another database": lambda: create_lock_manager("lease", f"mysql://u:{SECRET}@h/db"),
    "an unreachable one": lambda: create_lock_manager("lease", f"postgresql://u:{SECRET}@127.0.0.1:1/db").locks(),
    "a password behind": lambda: create_lock_manager(
        "lease", f"postgresql://u@127.0.0.1:1/d?password={SECRET}"
    ).locks(),
    "an ACL that is none": lambda: EnsembleAccess(hosts="h", acl=f"digest:u:{SECRET}"),
    "ZooKeeper's access": lambda: EnsembleAccess(
        hosts="h", auth="digest", user="u", password=SECRET, tls_key_password=SECRET
    ),
    "a catalog's database": lambda: commit_coord.load_catalog("c", uri=f"coord+postgresql://u:{SECRET}@127.0.0.1:1/db"),
    "a catalog's port": lambda: commit_coord.load_catalog("c", uri=f"coord+postgresql://u:{SECRET}@h:port/db"),
    "a catalog's kind": lambda: commit_coord.load_catalog("c", uri=f"coord+mysql://u:{SECRET}@h/db"),
}


@pytest.mark.parametrize("spill", SPILLS)
def test_a_secret_is_in_no_message_and_no_log(spill: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[object] = []
    try:
        made = SPILLS[spill]()
        said += [made, getattr(made, "settings", None)]
    except CommitCoordError as error:
        said += [error, error.details, error.__reduce__(), error.args]
    text = " ".join(f"{one!s} {one!r}" for one in said)
    assert said
    assert SECRET not in text
    assert SECRET not in caplog.text


def test_the_command_line_shows_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    given = {
        "lock-impl": "zookeeper",
        "lock.uri": "127.0.0.1:1",
        "lock.zk.auth": "digest",
        "lock.zk.user": "u",
        "lock.zk.password": SECRET,
        "lock.zk.acl": f"digest:ann:{SECRET}:r",
        "s3.access-key-id": SECRET,
        "s3.secret-access-key": SECRET,
        "adls.sas-token": SECRET,
        "token": SECRET,
        "credential": f"id:{SECRET}",
    }
    line = ["config", "-c", "c", "--uri", f"coord+postgresql://u:{SECRET}@127.0.0.1:1/db?sslpassword={SECRET}"]
    for key, value in given.items():
        line += ["-p", f"{key}={value}"]
    for more in ([], ["--json"], ["--debug"]):
        result = CliRunner().invoke(app, [*line, *more])
        assert "digest:ann:***" in result.output
        assert SECRET not in result.output
    for command in ("locks", "reap", "orphans db.t", "repair db.t --dry-run"):
        result = CliRunner().invoke(app, [*command.split(), *line[1:]])
        assert result.exit_code not in (0, 70)
        assert SECRET not in result.output


# Files and sockets.


def mode(path: str | Path) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_the_socket_of_a_spark_driver_is_its_users_alone() -> None:
    holder = DriverService(lambda: False, lambda *_: PlanAnswer(None))
    try:
        assert mode(Path(holder.address.path).parent) == 0o700
        assert len(holder.address.key) == 32
        assert repr(holder.address.key) not in repr(holder.address)
    finally:
        holder.close()
    assert not Path(holder.address.path).parent.exists()


@pytest.mark.postgres
def test_what_a_local_server_knows_of_passwords_is_its_users_alone(postgres: PostgresServer, tmp_path: Path) -> None:
    assert mode(postgres.folder) == 0o700
    assert mode(postgres.folder / "password") == 0o600
    metastore = HiveMetastore(tmp_path / "hms", postgres=postgres.database("secrets"))
    metastore.folder.mkdir()
    metastore._prepare()
    assert postgres.database("secrets").password in (tmp_path / "hms" / "conf" / "hive-site.xml").read_text()
    assert mode(tmp_path / "hms" / "conf") == 0o700


def test_yaml_is_read_safely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A configuration file is data: a tag that would make an object is refused."""
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  c:\n    uri: !!python/object/apply:os.system ['touch {tmp_path}/made']\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(Exception, match="disallowed tag"):
        commit_coord.load_catalog("c")
    assert not (tmp_path / "made").exists()
