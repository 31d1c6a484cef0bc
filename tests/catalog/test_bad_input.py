"""Bad input and bad luck: each a clear error, and nothing left behind.

Nothing means: no lock, no file beyond those of landed commits, no change of the table.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, ListType, LongType, MapType, NestedField, StringType, StructType

import commit_coord
from commit_coord import (
    CommitConflict,
    CommitLockFailed,
    CommitNotApplied,
    ConfigError,
    FileInTable,
    LockReentered,
    LockRefused,
    LockTimeout,
)
from commit_coord.clock import SystemClock
from commit_coord.model import LockMode, Resource
from commit_coord.table.live_files import canonical
from tests import limits
from tests.catalog.kit import NO_MATCH, SCHEMA, Kit, files_in, frame, ids, kit, names, orphans, row_ids, rows
from tests.proof.rows.read import readers

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))


def _spec(spec: PartitionSpec | None) -> dict[str, Any]:
    return {"partition_spec": spec} if spec else {}


ROOT = Path(__file__).parents[2]


class Still:
    """What must not change: pointer, files, locks."""

    def __init__(self, kit: Kit, table: Any) -> None:
        self._kit, self._table = kit, table
        self._pointer = kit.again(table).metadata_location
        self._files = files_in(kit.warehouse)

    def check(self) -> None:
        assert self._kit.again(self._table).metadata_location == self._pointer
        assert names(files_in(self._kit.warehouse) - self._files) == []
        assert names(self._files - files_in(self._kit.warehouse)) == []
        assert self._kit.held() == []


def run(code: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run *code* in another process; return what it prints as JSON in its last line."""
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


# Settings.


@pytest.mark.parametrize(
    "setting, value, said",
    [
        ("lock-impll", "memory", ["unknown setting", "lock-impll", "lock-impl"]),
        ("lock.aquire-timeout-ms", "5", ["unknown setting", "lock.acquire-timeout-ms"]),
        ("commit.journal-lifetime", "5", ["unknown setting", "commit.journal-lifetime-ms"]),
        ("operation-lock", "off", ["unknown setting", "operation-locks"]),
        ("hive.lock.numretry", "5", ["unknown setting", "hive.lock.numretries"]),
        ("lock.acquire-timeout-ms", "15s", ["lock.acquire-timeout-ms", "15s", "milliseconds"]),
        ("lock.acquire-timeout-ms", "1.5", ["lock.acquire-timeout-ms", "1.5", "milliseconds"]),
        ("lock.acquire-timeout-ms", "-1", ["lock.acquire-timeout-ms", "-1", "milliseconds"]),
        ("lock.acquire-timeout-ms", "0", ["lock.acquire-timeout-ms", "0"]),
        ("lock.heartbeat-timeout-ms", "15", ["lock.heartbeat-timeout-ms", "at least 1000"]),
        ("lock.heartbeat-interval-ms", "9000", ["lock.heartbeat-interval-ms", "third"]),
        ("lock.policy", "hope", ["lock.policy", "hope", "wait or deny"]),
        ("operation-locks", "on", ["operation-locks", "on", "off, iceberg or hive"]),
        ("lock.database-parents", "perhaps", ["lock.database-parents", "perhaps", "true or false"]),
        ("lock-impl", "zoo", ["lock-impl", "zoo", "lease"]),
        ("hive.lock.sleep.between.retries", "soon", ["hive.lock.sleep.between.retries", "60s"]),
        ("hive.support.concurrency", "perhaps", ["hive.support.concurrency", "perhaps"]),
        ("uri", "coord+mysql://h/d", ["uri", "mysql", "coord+postgresql"]),
        ("uri", "coord+nonsense", ["uri", "coord+"]),
        ("uri", "coord+sqlite:nonsense", ["uri"]),
        ("uri", None, ["uri", "coord+sqlite"]),
    ],
)
def test_a_wrong_setting_is_an_error_at_start(tmp_path: Path, setting: str, value: str | None, said: list[str]) -> None:
    given = {"uri": f"coord+sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w", setting: value}
    with pytest.raises(ConfigError) as error:
        commit_coord.load_catalog("t", **given)
    for word in said:
        assert word in str(error.value)
    assert files_in(tmp_path) == set()


# Stores.


def test_a_file_of_the_table_is_not_added_again_by_another_spelling(tmp_path: Path) -> None:
    with commit_coord.load_catalog(
        "t", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w"
    ) as catalog:
        catalog.create_namespace("db")
        table: Any = catalog.create_table("db.t", SCHEMA)
        table.append(ids(1))
        (file,) = [task.file for task in table.scan().plan_files()]
        path = file.file_path.removeprefix("file://")
        for spelled in (
            path,
            f"file:{path}",
            f"file://{path}",
            path.replace("/data/", "//data/"),
            path.replace("/data/", "/./x/../data/"),
        ):
            with pytest.raises(FileInTable):
                table.add_files([spelled])
            again = copy.deepcopy(file)
            again[1] = spelled
            assert spelled == again.file_path
            with pytest.raises(FileInTable):
                table.commit_files([again])
        shutil.copy(path, tmp_path / "f.parquet")
        twice = [f"{tmp_path}/f.parquet", f"file://{tmp_path}/f.parquet"]
        with pytest.raises(ValueError, match="unique"):
            table.add_files(twice)
        files = [copy.deepcopy(file), copy.deepcopy(file)]
        files[0][1], files[1][1] = twice
        with pytest.raises(CommitNotApplied, match="given twice"):
            table.commit_files(files)
        with catalog.create_table_transaction("db.made", SCHEMA) as tx:
            with pytest.raises(ValueError, match="unique"):
                tx.add_files(twice)
            tx.add_files(twice[:1])
            with pytest.raises(ValueError, match="already referenced"):
                tx.add_files(twice[1:])
        assert [1] == row_ids(catalog.load_table("db.made"))
        assert [1] == row_ids(table.refresh())


def test_two_objects_of_a_store_differ_by_two_slashes() -> None:
    """A file system takes two slashes for one; other buckets and stores have other files."""
    same = ["s3://b/a/f", "s3a://b/a/f", "s3n://b/a/f"]
    others = ["s3://b/a//f", "s3://c/a/f", "gs://b/a/f", "/b/a/f"]
    assert 1 == len({canonical(one) for one in same})
    assert 5 == len({canonical(one) for one in [*same, *others]})


def test_a_store_that_refuses_a_new_table_is_one_error_and_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file that was not written can't be deleted either, for the same reason."""
    with commit_coord.load_catalog(
        "t", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w"
    ) as catalog:
        catalog.create_namespace("db")
        (tmp_path / "w").write_text("a file in place of the folder")
        with pytest.raises(NotADirectoryError):
            catalog.create_table("db.t", SCHEMA)
        assert not catalog.table_exists("db.t")
    assert ["an unused file could not be deleted"] == [one.getMessage()[:35] for one in caplog.records]
    assert not any(one.exc_info for one in caplog.records)


# Databases.


def test_an_unreachable_database_is_an_error_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be opened") as error:
        commit_coord.load_catalog("t", uri=f"coord+sqlite:///{tmp_path}/no/such/folder/c.db", warehouse=str(tmp_path))
    assert "key='uri'" in str(error.value)


def test_an_unreachable_postgres_is_an_error_at_start_without_the_password(tmp_path: Path) -> None:
    uri = "coord+postgresql+psycopg://me:s3cret@127.0.0.1:9/db?connect_timeout=2"
    with pytest.raises(ConfigError, match="can't be opened") as error:
        commit_coord.load_catalog("t", uri=uri, warehouse=str(tmp_path))
    assert "s3cret" not in str(error.value)


def test_an_unreachable_lock_database_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(commit_coord.CommitCoordError, match=r"(?i)lock|open|reach") as error:
        catalog = commit_coord.load_catalog(
            "t",
            uri=f"coord+sqlite:///{tmp_path}/c.db",
            warehouse=f"file://{tmp_path}/w",
            **{"lock-impl": "lease", "lock.uri": f"sqlite:///{tmp_path}/no/such/folder/l.db"},
        )
        catalog.create_namespace("db")
        catalog.create_table("db.t", SCHEMA)
    assert "l.db" in str(error.value)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("impl", ["lease", "memory", "none"])
def test_a_read_only_database_can_be_read_and_refuses_writes(impl: str) -> None:
    with kit(impl) as writable:
        table = writable.table(ids(1))
        writable.catalog.engine.dispose()
        still = Still(writable, table)
        writable.catalog.close()
        read_only = commit_coord.load_catalog(
            writable.name,
            uri=f"coord+sqlite:///file:{writable.folder}/catalog.db?mode=ro&uri=true",
            warehouse=writable.warehouse,
            **{"lock-impl": impl, "lock.acquire-timeout-ms": "600000"},
        )
        found = read_only.load_table(table.name())
        assert row_ids(found) == [1]
        began = time.monotonic()
        for write in (
            lambda: found.append(ids(2)),
            lambda: found.delete("id = 1"),
            lambda: found.overwrite(ids(3), "id = 1"),
            lambda: found.transaction().set_properties(a="1").commit_transaction(),
            lambda: read_only.create_table((writable.namespace, "new"), SCHEMA),
            lambda: read_only.drop_table(table.name()),
            lambda: read_only.rename_table(table.name(), (writable.namespace, "new")),
        ):
            with pytest.raises(Exception, match=r"(?i)read-?only") as error:
                write()
            assert not isinstance(error.value, commit_coord.CommitStateUnknown)
        assert time.monotonic() - began < limits.PATIENCE
        read_only.close()
        still.check()


DATABASE_GONE = """
    import json, os, sys
    import commit_coord
    from tests.catalog.kit import ids, files_in
    folder, name, table, impl = sys.argv[1:]
    catalog = commit_coord.load_catalog(
        name, uri=f"coord+sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse",
        **{"lock-impl": impl, "lock.acquire-timeout-ms": "2000"})
    found = catalog.load_table(table)
    before = files_in(f"{folder}/warehouse")
    for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
        if os.path.exists(f"{folder}/{name}"):
            os.rename(f"{folder}/{name}", f"{folder}/{name}.away")
    os.mkdir(f"{folder}/catalog.db")
    catalog.engine.dispose()
    try:
        found.append(ids(2))
        error = None
    except Exception as raised:
        error = raised
    print(json.dumps({"type": type(error).__name__, "mro": [c.__name__ for c in type(error).__mro__],
                      "text": str(error), "left": sorted(files_in(f"{folder}/warehouse") - before)}))
"""


@pytest.mark.parametrize("impl", ["lease", "none"])
def test_a_database_that_goes_away_fails_the_commit_and_leaves_nothing(impl: str) -> None:
    with kit(impl) as made:
        table = made.table(ids(1))
        made.catalog.close()
        made.stock.close()
        found = run(DATABASE_GONE, str(made.folder), made.name, ".".join(table.name()), impl)
    assert "CommitNotApplied" in found["mro"], found
    assert found["left"] == []


# Warehouses.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system can't be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("impl", ["lease", "none"])
def test_a_full_disk_fails_the_commit_and_leaves_nothing(tmp_path: Path, small_disk: Path, impl: str) -> None:
    """The metadata file grows with a property until it does not fit; then there is room again."""
    catalog = commit_coord.load_catalog(
        "t", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{small_disk}", **{"lock-impl": impl}
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    table.append(ids(1))
    before = files_in(small_disk)
    free = shutil.disk_usage(small_disk).free
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * (free - 16 * 1024))
    stale = catalog.load_table("db.t")
    location = stale.metadata_location
    with pytest.raises((CommitNotApplied, OSError), match=r"(?i)no space|space left") as error:
        table.append(pa.table({"id": list(range(20_000)), "s": [uuid.uuid4().hex for _ in range(20_000)]}))
    assert not isinstance(error.value, commit_coord.CommitStateUnknown)
    with pytest.raises(CommitNotApplied, match=r"(?i)no space|space left"):
        stale.transaction().set_properties(big=uuid.uuid4().hex * 2000).commit_transaction()
    assert names(files_in(small_disk) - before) == ["filler"]
    assert catalog.load_table("db.t").metadata_location == location
    assert list(catalog.locks.locks()) == []
    filler.unlink()
    catalog.load_table("db.t").append(ids(2))
    assert row_ids(catalog.load_table("db.t")) == [1, 2]
    assert names(orphans(catalog.load_table("db.t"))) == []
    catalog.close()


@pytest.mark.parametrize("impl", ["lease", "none"])
def test_a_warehouse_that_cannot_be_written_fails_the_commit_and_leaves_nothing(
    tmp_path: Path, small_disk: Path, impl: str
) -> None:
    catalog = commit_coord.load_catalog(
        "t", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{small_disk}", **{"lock-impl": impl}
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", SCHEMA)
    table.append(ids(1, 2))
    before = files_in(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for write in (
        lambda: catalog.load_table("db.t").append(ids(2)),
        lambda: catalog.load_table("db.t").delete("id = 1"),
        lambda: catalog.load_table("db.t").transaction().set_properties(a="1").commit_transaction(),
        lambda: catalog.create_table("db.new", SCHEMA),
    ):
        with pytest.raises((CommitNotApplied, OSError), match="Read-only file system"):
            write()
    assert catalog.load_table("db.t").metadata_location == table.metadata_location
    assert list(catalog.locks.locks()) == []
    assert catalog.list_tables("db") == [("db", "t")]
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert files_in(small_disk) == before
    catalog.load_table("db.t").append(ids(3))
    assert row_ids(catalog.load_table("db.t")) == [1, 2, 3]
    catalog.close()


# Lock managers.


@pytest.mark.parametrize("first, second", [("lease", "none"), ("memory", "lease"), ("none", "memory")])
def test_two_lock_managers_on_one_catalog_are_refused(first: str, second: str) -> None:
    with kit(first) as made:
        found = run(
            """
            import json, sys
            import commit_coord
            name, uri, warehouse, impl = sys.argv[1:]
            try:
                commit_coord.load_catalog(name, uri=f"coord+{uri}", warehouse=warehouse, **{"lock-impl": impl})
                print(json.dumps({"text": ""}))
            except commit_coord.ConfigError as error:
                print(json.dumps({"text": str(error)}))
            """,
            *(made.name, made.uri, made.warehouse, second),
        )
        assert "another lock manager" in found["text"]
        assert first in found["text"]
        assert "lock-impl" in found["text"]


def test_two_lock_databases_on_one_catalog_are_refused(tmp_path: Path) -> None:
    with kit("lease") as made, pytest.raises(ConfigError, match="another lock manager") as error:
        commit_coord.load_catalog(
            made.name,
            uri=f"coord+{made.uri}",
            warehouse=made.warehouse,
            **{"lock-impl": "lease", "lock.uri": f"sqlite:///{tmp_path}/other.db"},
        )
    assert "catalog.db" in str(error.value)


def test_two_processes_with_memory_locks_are_refused() -> None:
    with kit("memory") as made:
        found = run(
            """
            import json, sys
            import commit_coord
            name, uri, warehouse = sys.argv[1:]
            try:
                commit_coord.load_catalog(name, uri=f"coord+{uri}", warehouse=warehouse, **{"lock-impl": "memory"})
                print(json.dumps({"text": ""}))
            except commit_coord.ConfigError as error:
                print(json.dumps({"text": str(error)}))
            """,
            *(made.name, made.uri, made.warehouse),
        )
        assert "one process" in found["text"]


def test_memory_locks_of_a_dead_process_stop_nobody() -> None:
    with kit("stock") as made:
        code = """
            import json, sys
            import commit_coord
            name, uri, warehouse = sys.argv[1:]
            commit_coord.load_catalog(name, uri=f"coord+{uri}", warehouse=warehouse, **{"lock-impl": "memory"})
            print(json.dumps({}))
        """
        run(code, made.name, made.uri, made.warehouse)
        run(code, made.name, made.uri, made.warehouse)


def test_adopting_lets_another_lock_manager_in() -> None:
    with kit("lease") as made:
        arguments = {"uri": f"coord+{made.uri}", "warehouse": made.warehouse, "lock-impl": "none"}
        with pytest.raises(ConfigError):
            commit_coord.load_catalog(made.name, **arguments)
        made.catalog.adopt_locks(made.name, **arguments)
        commit_coord.load_catalog(made.name, **arguments).close()


def test_a_lock_that_is_held_too_long_names_its_holder_and_leaves_nothing() -> None:
    with kit("lease", **{"lock.acquire-timeout-ms": "400"}) as made:
        table = made.table(ids(1))
        still = Still(made, table)
        other = made.open()
        shared, job = {Resource.table(table.name()): LockMode.SHARED}, ThreadPoolExecutor(1)
        with job.submit(other.coordinator.latch, tuple(table.name()), statement="a long commit").result():
            with pytest.raises(CommitLockFailed) as error:
                table.append(ids(2))
            assert isinstance(error.value.__cause__, LockTimeout)
            assert "a long commit" in str(error.value)
            with pytest.raises(LockTimeout, match="a long commit"):
                made.catalog.drop_table(table.name())
        with job.submit(other.lock_operation, shared, statement="a long job").result():
            with pytest.raises(LockTimeout, match="a long job"):
                made.again(table).overwrite(ids(3), "id = 1")
            made.again(table).append(ids(4), snapshot_properties={"appends": "wait for no operation lock"})
            made.again(table).manage_snapshots().rollback_to_snapshot(
                made.again(table).snapshots()[0].snapshot_id
            ).commit()
        job.shutdown()
        other.close()
        assert row_ids(made.again(table)) == [1]
        assert names(orphans(made.again(table))) == []
        assert made.held() == []
        del still


def test_an_operation_that_is_denied_its_lock_does_nothing() -> None:
    """Under ``deny`` the refusal ends it; it does not go on without the lock."""
    with kit("lease", **{"lock.policy": "deny", "lock.num-retries": "0"}) as made:
        table = made.table(ids(1))
        other = made.open()
        shared = {Resource.table(table.name()): LockMode.SHARED}
        with ThreadPoolExecutor(1) as job, job.submit(other.lock_operation, shared, statement="a long job").result():
            with pytest.raises(LockRefused, match="a long job"):
                made.again(table).overwrite(ids(2))
            with pytest.raises(LockRefused, match="a long job"):
                made.catalog.drop_table(table.name())
        other.close()
        assert row_ids(made.again(table)) == [1]


def test_many_partitions_are_locked_by_what_they_have_in_common() -> None:
    """More than ``lock.max-partitions`` of them: their prefixes, else the table; what was excluded stays excluded."""
    with kit("lease", **{"lock.max-partitions": "2"}) as made:
        name = made.table(ids(1)).name()
        hours = {Resource.table(name, "day=1", f"hour={hour}"): LockMode.EXCLUSIVE for hour in range(3)}
        days = {Resource.table(name, f"day={day}"): LockMode.EXCLUSIVE for day in range(3)}
        for wanted, locked in (
            (dict(list(days.items())[:2]), ["", "/day=0", "/day=1"]),
            (hours, ["", "/day=1"]),
            (days, [""]),
        ):
            with made.catalog.lock_operation(wanted):
                held = made.catalog.show_locks()
                assert locked == sorted(str(e.resource).removeprefix(str(Resource.table(name))) for e in held)
                assert LockMode.EXCLUSIVE is max(held, key=lambda entry: len(entry.resource.path)).mode


def test_an_operation_goes_on_under_a_lock_that_its_own_thread_holds() -> None:
    """Waiting for it would never end; a lock that is not strong enough is no leave to go on."""
    with kit("lease") as made:
        table = made.table(ids(1))
        name = Resource.table(table.name())
        with made.catalog.lock_operation({name: LockMode.SHARED}), pytest.raises(LockReentered):
            made.catalog.drop_table(table.name())
        with made.catalog.lock_operation({name: LockMode.EXCLUSIVE}):
            table.overwrite(ids(2))
            assert row_ids(made.again(table)) == [2]
            made.catalog.drop_table(table.name())
        assert made.held() == []


# Tables and rows.


def test_a_table_dropped_while_a_writer_works_refuses_the_writer(memory: Kit) -> None:
    table = memory.table(ids(1))
    with pytest.raises(CommitConflict, match="dropped"), table.transaction() as tx:
        tx.append(ids(2))
        memory.catalog.drop_table(table.name())
    assert names(orphans(table)) == []
    assert memory.held() == []
    with pytest.raises(NoSuchTableError):
        memory.again(table)


def test_a_table_made_again_while_a_writer_works_refuses_the_writer(memory: Kit) -> None:
    table = memory.table(ids(1))
    with pytest.raises(CommitConflict, match="created again"), table.transaction() as tx:
        tx.append(ids(2))
        memory.catalog.purge_table(table.name())
        again = memory.catalog.create_table(table.name(), SCHEMA)
    assert rows(memory.again(again)) == []
    assert names(orphans(memory.again(again))) == []


@pytest.mark.parametrize(
    "df",
    [
        pa.table({"id": pa.array(["text"]), "s": ["x"]}),
        pa.table({"id": pa.array([1], pa.int64()), "s": ["x"], "extra": [1]}),
        pa.table({"wrong": pa.array([1], pa.int64())}),
    ],
    ids=["type", "extra column", "unknown column"],
)
@pytest.mark.parametrize("spec", [None, BY_S], ids=["flat", "partitioned"])
def test_rows_that_do_not_fit_are_refused(memory: Kit, df: pa.Table, spec: PartitionSpec | None) -> None:
    table = memory.table(ids(1), **_spec(spec))
    still = Still(memory, table)
    for write in (table.append, table.overwrite, lambda df: table.overwrite(df, "id = 1")):
        with pytest.raises(ValueError, match=r"(?i)mismatch|not found|more columns|extra|wrong"):
            write(df)
        still.check()
    if spec:
        with pytest.raises(ValueError, match=r"(?i)mismatch|more columns|extra|wrong"):
            table.dynamic_partition_overwrite(df)
    still.check()


def test_a_call_that_failed_is_not_made_again_by_itself(memory: Kit) -> None:
    """Its caller went on without it. On the newer head, which has the column, it would succeed."""
    table, other = memory.table(ids(1)), None
    wide = pa.table({"id": pa.array([2], pa.int64()), "s": ["2"], "extra": pa.array([2], pa.int64())})
    memory.catalog.settings = replace(memory.catalog.settings, operation_locks="off")
    try:
        other = memory.again(table)
        with table.transaction() as tx:
            with pytest.raises(ValueError, match=r"(?i)mismatch|extra"):
                tx.append(wide)
            tx.delete("id = 1")
            with other.update_schema() as changes:
                changes.add_column("extra", LongType())
    finally:
        memory.catalog.settings = memory.catalog.configuration.settings
    assert row_ids(memory.again(table)) == [], "what the caller went on with is planned again, and nothing else"
    assert names(orphans(memory.again(table))) == []


def test_a_branch_made_together_with_a_delete_keeps_its_retention(memory: Kit) -> None:
    table = memory.table(ids(1))
    with table.transaction() as tx:
        snapshot_id = table.current_snapshot().snapshot_id
        ManageSnapshots(tx).create_branch(snapshot_id, "kept", max_ref_age_ms=10**12, min_snapshots_to_keep=3).commit()
        tx.delete("id = 1")
    kept = memory.again(table).refs()["kept"]
    assert (kept.max_ref_age_ms, kept.min_snapshots_to_keep, kept.snapshot_id) == (10**12, 3, snapshot_id)


def test_a_creation_with_rows_that_loses_or_fails_leaves_no_file(memory: Kit) -> None:
    identifier = memory.identifier()
    lost = memory.catalog.create_table_transaction(identifier, SCHEMA)
    lost.append(ids(1))
    table = memory.catalog.create_table(identifier, SCHEMA)
    with pytest.raises(CommitConflict, match="exists"):
        lost.commit_transaction()
    assert names(orphans(table)) == []
    other = memory.identifier()
    with pytest.raises(ZeroDivisionError), memory.catalog.create_table_transaction(other, SCHEMA) as tx:
        tx.append(ids(1))
        raise ZeroDivisionError
    assert files_in(f"{memory.warehouse}/{other[0]}/{other[1]}") == set()
    assert not memory.catalog.table_exists(other)


def test_null_in_a_required_column_is_refused(memory: Kit) -> None:
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])
    table = memory.table(schema=required)
    still = Still(memory, table)
    with pytest.raises(ValueError, match=r"(?i)mismatch"):
        table.append(frame((None, "x")))
    still.check()


def test_what_is_no_data_is_refused(memory: Kit) -> None:
    table = memory.table(ids(1))
    still = Still(memory, table)
    for write in (table.append, table.overwrite):
        with pytest.raises(ValueError, match=r"Expected pa\.Table"):
            write([{"id": 1}])
    with pytest.raises(ValueError, match=r"(?i)could not find|unable|expected"):
        table.delete("no_such_column = 1")
    still.check()


def test_an_empty_frame_loses_nothing(memory: Kit) -> None:
    table = memory.table(ids(1), partition_spec=BY_S)
    table.append(ids())
    table.dynamic_partition_overwrite(ids())
    with pytest.warns(UserWarning, match=NO_MATCH):
        table.overwrite(ids(), "id = 9")
    assert row_ids(memory.again(table)) == [1]
    table.overwrite(ids(), "id = 1")
    assert row_ids(memory.again(table)) == []
    assert names(orphans(memory.again(table))) == []


def test_null_partition_values_are_a_partition(memory: Kit) -> None:
    table = memory.table(frame((1, None), (2, "a"), (3, None)), partition_spec=BY_S)
    table.dynamic_partition_overwrite(frame((4, None)))
    assert rows(memory.again(table)) == [(2, "a"), (4, None)]
    table.delete("s is null")
    assert rows(memory.again(table)) == [(2, "a")]
    again, stale = memory.again(table), memory.again(table)
    again.append(frame((5, None)))
    stale.append(frame((6, None)))
    assert rows(memory.again(table)) == [(2, "a"), (5, None), (6, None)]
    files = [task.file for task in memory.again(table).scan("s is null").plan_files()]
    table.refresh().commit_files(files, mode="dynamic")
    assert rows(memory.again(table)) == [(2, "a"), (5, None), (6, None)]


NAMES = ["a.b", "a/b", "a b", " a", "a'b", 'a"b', "ä€日本", "a%2Fb", "100%", "a\\b", "a;b--", "*", "&=+~"]


@pytest.mark.parametrize("impl", ["memory", "lease"])
def test_odd_names_of_tables_and_namespaces_are_only_names(impl: str) -> None:
    with kit(impl) as made:
        for number, name in enumerate(NAMES):
            namespace = f"n{number}{name.strip().replace('.', '')}"
            made.catalog.create_namespace((namespace,))
            table = made.catalog.create_table((namespace, name), SCHEMA, partition_spec=BY_S)
            stale = made.catalog.load_table((namespace, name))
            table.append(frame((1, name)))
            stale.append(frame((2, name)))
            table.refresh().overwrite(frame((3, name)), "id = 1")
            assert rows(made.catalog.load_table((namespace, name))) == [(2, name), (3, name)]
            assert rows(made.stock.load_table((namespace, name))) == [(2, name), (3, name)]
            assert made.catalog.table_exists((namespace, name))
            with made.catalog.lock_operation({Resource.table((namespace, name), f"s={name}"): LockMode.EXCLUSIVE}):
                assert str(Resource.parse(str(Resource.table((namespace, name))))) == str(
                    Resource.table((namespace, name))
                )
            renamed = made.catalog.rename_table((namespace, name), (namespace, f"{name}2"))
            assert renamed.name() == (namespace, f"{name}2")
            assert names(orphans(renamed)) == []
            made.catalog.purge_table((namespace, f"{name}2"))
        assert made.held() == []
        assert files_in(made.warehouse) == set()


def test_names_that_would_cut_the_location_off_are_refused(memory: Kit) -> None:
    for name in ("what?", "no#1"):
        with pytest.raises(ValueError, match="location"):
            memory.catalog.create_table((memory.namespace, name), SCHEMA)
        with pytest.raises(ValueError, match="location"):
            memory.catalog.create_table_transaction((memory.namespace, name), SCHEMA)
        location = f"{memory.warehouse}/{memory.identifier()[1]}"
        table = memory.catalog.create_table((memory.namespace, name), SCHEMA, location=location)
        table.append(ids(1))
        assert row_ids(memory.again(table)) == [1]
        memory.catalog.drop_table((memory.namespace, name))


# Clocks.


class Jumping(SystemClock):
    """A host whose wall clock is set by hand."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms


def test_timestamps_never_step_back_when_the_clock_does(memory: Kit) -> None:
    hour = 3_600_000
    clock, before = Jumping(), memory.catalog.coordinator.clock
    memory.catalog.coordinator.clock = clock
    try:
        table = memory.table(ids(0))
        for number, offset in enumerate((hour, -hour, 0, 2 * hour, -2 * hour, 0), start=1):
            clock.offset_ms = offset
            stale = memory.again(table)
            table.refresh().append(ids(number))
            stale.append(ids(10 * number))
            table.refresh().transaction().set_properties(turn=str(number)).commit_transaction()
            table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, f"t{number}").commit()
            first = table.snapshots()[0].snapshot_id
            last = table.current_snapshot().snapshot_id
            table.manage_snapshots().rollback_to_snapshot(first).commit()
            table.manage_snapshots().set_current_snapshot(snapshot_id=last).commit()
            table.delete(f"id = {number}")
        metadata = memory.stock.load_table(table.name()).metadata
    finally:
        memory.catalog.coordinator.clock = before
    for times in (
        [snapshot.timestamp_ms for snapshot in metadata.snapshots],
        [entry.timestamp_ms for entry in metadata.snapshot_log],
        [entry.timestamp_ms for entry in metadata.metadata_log] + [metadata.last_updated_ms],
    ):
        assert times == sorted(times)
    assert metadata.last_updated_ms >= metadata.snapshot_log[-1].timestamp_ms


def test_the_clock_of_the_host_decides_no_lease() -> None:
    """A wall clock that jumps an hour ahead while a lock is held takes it from nobody."""
    with kit("memory") as made:
        table = made.table(ids(1))
        clock = Jumping()
        made.catalog.coordinator.clock = clock
        with made.catalog.lock_operation({Resource.table(table.name()): LockMode.EXCLUSIVE}) as lease:
            clock.offset_ms = 3_600_000
            lease.ensure_active(0)
            table.append(ids(2))
            clock.offset_ms = -3_600_000
            lease.ensure_active(0)
            table.append(ids(3))
        assert row_ids(made.again(table)) == [1, 2, 3]


def test_commits_through_plain_pyiceberg_that_fail_are_failures(memory: Kit) -> None:
    """A plain writer between planning and swapping makes our swap fail, not disappear."""
    table = memory.table(ids(1))
    with table.transaction() as tx:
        tx.append(ids(2))
        memory.stock.load_table(table.name()).append(ids(3))
    assert row_ids(memory.again(table)) == [1, 2, 3]
    theirs = memory.stock.load_table(table.name())
    table.refresh().append(ids(4))
    with pytest.raises(CommitFailedException), theirs.transaction() as stale:
        stale.set_properties({"commit.retry.num-retries": "0"})
        stale._requirements += theirs.transaction()._set_ref_snapshot(
            theirs.metadata.snapshots[-1].snapshot_id, "main", "branch"
        )[1]
    assert row_ids(memory.again(table)) == [1, 2, 3, 4]


def test_the_error_names_why_files_can_not_be_committed(memory: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is what a log shows; its cause may not be."""
    table = memory.table(ids(1))
    files = [task.file for task in table.scan().plan_files()]

    def full(*args: object, **kwargs: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("commit_coord.iceberg.manifests.write_added", full)
    with pytest.raises(CommitNotApplied, match="nothing was committed.*OSError: no space left on device") as refused:
        table.commit_files(files, check_duplicate_files=False)
    assert isinstance(refused.value.__cause__, OSError)
    monkeypatch.undo()
    assert row_ids(memory.again(table)) == [1]


# Numbers without a sign.

SHAPES: dict[str, tuple[Any, Any, Any]] = {
    "a column": (lambda kind: kind, lambda kind: kind, lambda value: value),
    "a struct": (
        lambda kind: StructType(NestedField(2, "y", kind)),
        lambda kind: pa.struct([("y", kind)]),
        lambda value: {"y": value},
    ),
    "a list": (lambda kind: ListType(2, kind, False), pa.list_, lambda value: [value]),
    "a map": (
        lambda kind: MapType(2, StringType(), 3, kind, False),
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: [("y", value)],
    ),
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["", "stream"])
@pytest.mark.parametrize("kind", [LongType(), IntegerType()], ids=str)
@pytest.mark.parametrize("arrow", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_number_without_a_sign_is_written_if_its_column_has_it(
    memory: Kit, shape: str, arrow: Any, kind: Any, is_stream: bool
) -> None:
    """No file comes to hold a number that its column can't have."""
    in_table, in_arrow, made = SHAPES[shape]
    most = min(2**arrow.bit_width - 1, kind.max)
    beyond = kind.max + 1
    if arrow == pa.uint64() and kind == IntegerType():
        return  # PyIceberg refuses it by its type
    table = memory.table(schema=Schema(NestedField(1, "x", in_table(kind))))

    def rows_of(value: int) -> Any:
        rows = pa.table({"x": pa.array([made(value), None], in_arrow(arrow))})
        return rows.to_reader() if is_stream else rows

    table.append(rows_of(most))
    if beyond < 2**arrow.bit_width:
        with pytest.raises(ValueError, match="not in range"):
            table.append(rows_of(beyond))
    assert [made(most), None] == table.scan().to_arrow()["x"].to_pylist()


def test_bounds_of_files_that_others_wrote_leave_out_no_zero(memory: Kit) -> None:
    """DuckDB writes -0.0 as the upper bound of -0.0, and Iceberg Java orders it before 0.0."""
    table = memory.table(schema=Schema(NestedField(1, "f", DoubleType())))
    path = f"{memory.folder}/zeros.parquet"
    readers.query_duckdb(f"COPY (SELECT -0.0::DOUBLE AS f) TO '{path}'")
    table.add_files([path])
    (file,) = [task.file for task in table.scan().plan_files()]
    bounds = [str(from_bytes(DoubleType(), bound[1])) for bound in (file.lower_bounds, file.upper_bounds)]
    assert ["-0.0", "0.0"] == bounds
