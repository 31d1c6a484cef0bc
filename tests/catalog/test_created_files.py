"""What a call that fails has created is gone when it returns, also what other threads were writing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from commit_coord.table import created_files
from commit_coord.table.created_files import CreatedFiles
from tests.catalog.kit import NO_MATCH, SCHEMA, Kit, frame, ids, names, orphans, row_ids

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
