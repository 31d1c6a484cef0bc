"""What a call that fails has created is gone when it returns, also what other threads were writing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

import commit_coord
from commit_coord.errors import LockTimeout
from commit_coord.model import LockMode, Resource
from commit_coord.table import created_files
from commit_coord.table.created_files import CreatedFiles
from tests.catalog.kit import NO_MATCH, SCHEMA, Kit, files_in, frame, ids, names, orphans, row_ids

pytestmark = pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
LIMIT_S = 120.0


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyIceberg's pool, with two threads also where one core is all there is."""
    with ThreadPoolExecutor(2) as executor:
        monkeypatch.setattr("pyiceberg.utils.concurrent.ExecutorFactory.get_or_create", lambda: executor)
        yield executor


def create(kit: Kit, table: Any, df: Any) -> None:
    with kit.catalog.create_table_transaction(kit.identifier(), SCHEMA, partition_spec=BY_S) as tx:
        tx.append(df)


CALLS: dict[str, Callable[[Kit, Any, Any], Any]] = {
    "append": lambda kit, table, df: table.append(df),
    "overwrite": lambda kit, table, df: table.overwrite(df),
    "dynamic overwrite": lambda kit, table, df: table.dynamic_partition_overwrite(df),
    "upsert": lambda kit, table, df: table.upsert(df, ["id"]),
    "creation": create,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_another_thread_begins_after_the_failure_is_not_created(
    memory: Kit, pool: ThreadPoolExecutor, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory.table(ids(7), partition_spec=BY_S)
    begun, go_on, new_output = threading.Event(), threading.Event(), PyArrowFileIO.new_output

    def held(io: PyArrowFileIO, location: str) -> Any:
        if "s=late" in location:
            begun.set()
            assert go_on.wait(LIMIT_S)
        if "s=bad" in location:
            assert begun.wait(LIMIT_S)
            raise OSError("no space")
        return new_output(io, location)

    monkeypatch.setattr(PyArrowFileIO, "new_output", held)
    with pytest.raises(OSError, match="no space"):
        CALLS[call](memory, table, frame((1, "bad"), (2, "late")))
    go_on.set()
    pool.shutdown(wait=True)
    monkeypatch.undo()
    assert list(memory.folder.rglob("*s=late/*")) == []
    assert names(orphans(memory.again(table))) == []
    assert row_ids(memory.again(table)) == [7]


def test_what_another_thread_is_writing_is_deleted_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store shows the file when it is closed."""
    happened: list[str] = []
    next_step = threading.Event()

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            next_step.set()
            return super().wait(timeout)

    class Store(PyArrowFileIO):
        def delete(self, location: Any) -> None:
            happened.append("deleted")
            next_step.set()
            super().delete(location)

    monkeypatch.setattr(created_files, "Condition", Watched)
    created, store, opened = CreatedFiles(), Store(), threading.Event()
    io = created.recording(store)

    def write() -> None:
        with io.new_output(f"file://{tmp_path}/x").create() as stream:
            stream.write(b"x")
            opened.set()
            assert next_step.wait(LIMIT_S)
            happened.append("written")

    writer = threading.Thread(target=write)
    writer.start()
    assert opened.wait(LIMIT_S)
    created.abandon(store)
    writer.join()
    assert happened == ["written", "deleted"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InterruptedError, match="ended"):
        io.new_output(f"file://{tmp_path}/y").create()


def test_a_file_that_nobody_will_close_is_not_waited_for(tmp_path: Path) -> None:
    """As when the head of an Avro file can't be written: PyIceberg leaves its stream open."""
    created, store = CreatedFiles(), PyArrowFileIO()
    stream = created.recording(store).new_output(f"file://{tmp_path}/x").create()
    created.delete(store)
    assert list(tmp_path.iterdir()) == []
    stream.close()
    stream.close()


def test_a_file_that_another_thread_has_left_open_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(created_files, "CLOSED_WITHIN_S", 0.01)
    created, store = CreatedFiles(), PyArrowFileIO()
    io = created.recording(store)
    with ThreadPoolExecutor(1) as executor:
        stream = executor.submit(lambda: io.new_output(f"file://{tmp_path}/x").create()).result()
        created.delete(store)
        assert list(tmp_path.iterdir()) == []
        stream.close()


def test_a_commit_whose_manifests_can_not_be_begun_fails_and_leaves_nothing(
    memory: Kit, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk. Manifests are merged in other threads."""
    merge = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
    table = memory.table(ids(1), ids(2), properties=merge)
    monkeypatch.setattr(created_files, "CLOSED_WITHIN_S", threading.TIMEOUT_MAX)
    begin = AvroOutputFile._write_header

    def full(file: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("no space")
        begin(file)

    monkeypatch.setattr(AvroOutputFile, "_write_header", full)
    with pytest.raises(OSError, match="no space"), table.transaction() as tx:
        tx.append(ids(3))
        tx.append(ids(4))
    monkeypatch.undo()
    assert names(orphans(memory.again(table))) == []
    assert row_ids(memory.again(table)) == [1, 2]


def test_a_table_that_is_not_made_in_time_leaves_no_file(tmp_path: Path) -> None:
    kit = Kit(tmp_path, "lease", **{"operation-locks": "hive"})
    settings = {"lock-impl": "lease", "operation-locks": "hive", "lock.acquire-timeout-ms": "300"}
    waiter: Any = commit_coord.load_catalog(kit.name, uri=f"coord+{kit.uri}", warehouse=kit.warehouse, **settings)
    identifier = kit.identifier()
    everything = {Resource.table(identifier): LockMode.EXCLUSIVE, Resource(identifier[:1]): LockMode.EXCLUSIVE}
    creation = waiter.create_table_transaction(identifier, SCHEMA, partition_spec=BY_S)
    with (
        kit.catalog.lock_operation(everything),
        ThreadPoolExecutor(1) as executor,
        pytest.raises(LockTimeout),
    ):
        executor.submit(make, creation).result()
    assert files_in(creation.table_metadata.location) == set()
    waiter.close()
    kit.close()


def make(creation: Any) -> None:
    with creation as tx:
        tx.append(ids(1))


@pytest.mark.parametrize(
    "failing", ["commit_coord.table.producers.write_manifest", "commit_coord.table.compaction.mark"]
)
def test_a_compaction_that_fails_before_its_commit_leaves_no_file(
    memory: Kit, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    table = memory.table(ids(1), ids(2))

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(failing, full)
    with pytest.raises(OSError, match="no space"):
        table.compact()
    monkeypatch.undo()
    assert names(orphans(memory.again(table))) == []
    assert row_ids(memory.again(table)) == [1, 2]


def test_a_file_that_can_not_be_created_is_not_waited_for(tmp_path: Path) -> None:
    created, store = CreatedFiles(), PyArrowFileIO()
    io = created.recording(store)

    class Broken(OutputFile):
        def __len__(self) -> int:
            return 0

        def exists(self) -> bool:
            return False

        def to_input_file(self) -> Any:
            raise NotImplementedError

        def create(self, overwrite: bool = False) -> Any:
            raise OSError("no space")

    def attempt() -> None:
        with pytest.raises(OSError, match="no space"):
            created.create(Broken("x"), overwrite=False)

    other = threading.Thread(target=attempt)
    other.start()
    other.join()
    kept = io.new_output(f"file://{tmp_path}/kept")
    with kept.create() as stream:
        stream.write(b"kept")
    created.forget()
    created.delete(store)
    assert len(kept) == 4
    assert kept.exists()
    assert kept.to_input_file().location == kept.location
