"""A commit with a request id lands once, whoever repeats it and whenever."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from commit_coord import CommitConflict, CommitNotApplied, CommitStateUnknown, FileInTable
from tests.catalog.kit import NO_MATCH, Kit, files_in, frame, ids, kit, names, orphans, row_ids, rows

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["lease", "memory", "none"])
def shared(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog with a journal, or without one."""
    with kit(request.param) as made:
        yield made


def written(kit: Kit, table: Any, df: pa.Table) -> list[DataFile]:
    """Return data files with *df* that no table knows yet, in the folder of *table*."""
    path = f"{table.location()}/data/{uuid.uuid4()}.parquet"
    Path(path.removeprefix("file://")).parent.mkdir(parents=True, exist_ok=True)
    arrow = table.schema().as_arrow()
    pq.write_table(df.cast(arrow), path.removeprefix("file://"))
    return list(parquet_files_to_data_files(table.io, table.metadata, iter([path])))


@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic"])
def test_the_same_request_lands_once(shared: Kit, mode: Any) -> None:
    table = shared.table(frame((1, "a"), (2, "b")), partition_spec=BY_S)
    files, request_id = written(shared, table, frame((3, "a"))), str(uuid.uuid4())
    assert table.commit_files(files, mode=mode, overwrite_filter="id = 1", request_id=request_id)
    after = rows(shared.again(table))
    assert (
        after
        == {
            "append": [(1, "a"), (2, "b"), (3, "a")],
            "overwrite": [(2, "b"), (3, "a")],
            "dynamic": [(2, "b"), (3, "a")],
        }[mode]
    )
    snapshots = len(shared.again(table).snapshots())
    again = shared.again(table)
    assert not again.commit_files(files, mode="append", request_id=request_id)
    assert not table.commit_files(files, mode="append", request_id=request_id)
    again.append(ids(9))
    assert not table.commit_files(files, mode="append", request_id=request_id)
    assert rows(shared.again(table)) == sorted([*after, (9, "9")], key=repr)
    assert len(shared.again(table).snapshots()) == snapshots + 1
    assert names(orphans(shared.again(table))) == []
    assert shared.held() == []


def test_another_request_with_the_same_rows_lands_too(shared: Kit) -> None:
    table = shared.table()
    assert table.commit_files(written(shared, table, ids(1)), request_id=str(uuid.uuid4()))
    assert table.commit_files(written(shared, table, ids(1)))
    assert row_ids(shared.again(table)) == [1, 1]


def test_files_that_are_in_the_table_are_not_committed_again(shared: Kit) -> None:
    """By a handle that has not seen them either; and no error asks for their deletion."""
    table = shared.table()
    stale = shared.again(table)
    files = written(shared, table, ids(1))
    assert table.commit_files(files)
    for handle in (stale, table):
        with pytest.raises(FileInTable, match="keep the file") as refused:
            handle.commit_files(files)
        assert not isinstance(refused.value, CommitFailedException)
        # With an id an earlier commit of the same one may have brought them, for all that the journal tells.
        with pytest.raises((FileInTable, CommitStateUnknown)):
            handle.commit_files(files, request_id=str(uuid.uuid4()), check_duplicate_files=True)
    with pytest.raises(CommitNotApplied, match="twice"):
        table.commit_files([*written(shared, table, ids(2))] * 2)
    assert row_ids(shared.again(table)) == [1]
    assert table.commit_files(files, mode="overwrite")
    assert row_ids(shared.again(table)) == [1]


def test_a_commit_is_found_by_its_request(shared: Kit) -> None:
    table = shared.table()
    request_id = str(uuid.uuid4())
    assert table.find_commit(request_id) is None
    table.commit_files(written(shared, table, ids(1)), request_id=request_id)
    for reader in (table, shared.again(table)):
        found = reader.find_commit(request_id)
        assert found is not None
        assert found.request_id == request_id
        assert found.snapshot_ids == (table.current_snapshot().snapshot_id,)
        assert found.table_uuid == str(table.metadata.table_uuid)
        assert found.metadata_location == table.metadata_location
    assert table.find_commit(str(uuid.uuid4())) is None
    assert table.find_commit("load of Monday") is None


def test_a_request_is_known_after_its_snapshot_expired(shared: Kit) -> None:
    """Through the journal; and without one as long as the metadata log has its file."""
    table = shared.table(ids(0))
    files, request_id = written(shared, table, ids(1)), str(uuid.uuid4())
    table.commit_files(files, request_id=request_id)
    table.append(ids(2))
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    assert len(shared.again(table).snapshots()) == 1
    assert shared.again(table).find_commit(request_id) is not None
    assert not shared.again(table).commit_files(files, request_id=request_id)
    assert row_ids(shared.again(table)) == [0, 1, 2]


def test_only_the_journal_remembers_when_log_and_snapshots_are_gone(shared: Kit) -> None:
    table = shared.table(ids(0), properties={"write.metadata.previous-versions-max": "1"})
    request_id = str(uuid.uuid4())
    table.commit_files(written(shared, table, ids(1)), request_id=request_id)
    table.append(ids(2))
    table.append(ids(3))
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    found = shared.again(table).find_commit(request_id)
    assert (found is not None) == shared.catalog.locks.guarantees.journal


def test_a_request_of_a_table_that_was_dropped_says_nothing_about_the_next(shared: Kit) -> None:
    table = shared.table()
    files, request_id = written(shared, table, ids(1)), str(uuid.uuid4())
    table.commit_files(files, request_id=request_id)
    shared.catalog.drop_table(table.name())
    with pytest.raises(CommitConflict):
        table.commit_files(files, request_id=request_id)
    again = shared.catalog.create_table(table.name(), table.schema())
    assert again.commit_files(written(shared, again, ids(1)), request_id=request_id)
    assert row_ids(shared.again(again)) == [1]


def test_racing_repeats_of_one_request_land_once(shared: Kit) -> None:
    table = shared.table()
    files, request_id = written(shared, table, ids(1)), str(uuid.uuid4())
    landed: list[bool] = []
    writers = [shared.again(table) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda w=w: landed.append(w.commit_files(files, request_id=request_id)))
        for w in writers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if shared.impl != "none":
        assert sorted(landed) == [False, False, False, True]
    assert landed.count(True) == 1
    assert row_ids(shared.again(table)) == [1]
    assert names(orphans(shared.again(table))) == []


def test_a_request_that_failed_may_be_tried_again(shared: Kit) -> None:
    """Nobody can tell its first try from a repeat whose predecessor is still on its way: all its files are kept."""
    table = shared.table(ids(0))
    files, request_id = written(shared, table, ids(1)), str(uuid.uuid4())
    swap = shared.catalog.swap

    def refuse(*_: Any) -> Any:
        raise PermissionError("not today")

    shared.catalog.swap = refuse
    try:
        with pytest.raises(CommitStateUnknown, match="may still: not today"):
            table.commit_files(files, request_id=request_id)
    finally:
        shared.catalog.swap = swap
    assert table.find_commit(request_id) is None
    assert shared.again(table).commit_files(files, request_id=request_id)
    assert row_ids(shared.again(table)) == [0, 1]


def test_a_repeat_that_cannot_look_its_request_up_promises_nothing() -> None:
    """Its files may be in the table already: whoever deleted them now would break it."""
    with kit("lease", **{"lock.acquire-timeout-ms": "300"}) as made:
        table = made.table()
        files, request_id = written(made, table, ids(1)), str(uuid.uuid4())
        table.commit_files(files, request_id=request_id)
        other = made.open()
        before = files_in(made.warehouse)
        with other.coordinator.latch(tuple(table.name())), pytest.raises(CommitStateUnknown, match=request_id):
            made.again(table).commit_files(files, request_id=request_id)
        other.close()
        assert before <= files_in(made.warehouse)
        assert row_ids(made.again(table)) == [1]


OTHER = """
    import json, sys
    import commit_coord
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    uri, warehouse, name, impl, table, path, request_id = sys.argv[1:]
    catalog = commit_coord.load_catalog(name, uri=f"coord+{uri}", warehouse=warehouse, **{"lock-impl": impl})
    found = catalog.load_table(table)
    files = list(parquet_files_to_data_files(found.io, found.metadata, iter([path])))
    print(found.commit_files(files, request_id=request_id))
    catalog.close()
"""


@pytest.mark.parametrize("impl", ["lease", "none"])
def test_another_process_repeats_a_request_in_vain(impl: str) -> None:
    with kit(impl) as made:
        table = made.table()
        files, request_id = written(made, table, ids(1)), str(uuid.uuid4())
        table.commit_files(files, request_id=request_id)
        arguments = [made.uri, made.warehouse, made.name, impl, ".".join(table.name()), files[0].file_path, request_id]
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(OTHER), *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.stdout.strip() == "False", ended.stderr[-2000:]
        assert row_ids(made.again(table)) == [1]


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
def test_properties_and_rows_of_one_request_land_together(shared: Kit) -> None:
    table = shared.table()
    request_id = str(uuid.uuid4())
    files = written(shared, table, ids(1))
    table.commit_files(files, properties={"batch": "7"}, snapshot_properties={"who": "me"}, request_id=request_id)
    assert not shared.again(table).commit_files(files, properties={"batch": "8"}, request_id=request_id)
    again = shared.again(table)
    assert again.properties["batch"] == "7"
    assert again.current_snapshot().summary["who"] == "me"
    assert table.commit_files(files, request_id="load of Monday")
    assert not table.commit_files(files, request_id="load of Monday")
    assert table.find_commit("load of Monday") is not None
