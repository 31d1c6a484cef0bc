"""A commit with a request id lands once, whichever client repeats it and whenever."""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Transaction
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import OperationalError

from commit_coord import CommitConflict, CommitNotApplied, CommitStateUnknown, FileInTable
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.coordinator.request_ids import shows_all_since
from commit_coord.errors import MetastoreUnavailable
from commit_coord.iceberg.attempt import Beginning
from commit_coord.iceberg.metadata import sequence_number
from commit_coord.table import CoordinatedTable
from tests.catalog.kit import NO_MATCH, Kit, files_in, frame, ids, kit, names, of_version_three, orphans, row_ids, rows
from tests.sent import sent_by

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["lease", "memory", "none"])
def shared(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog with a journal, or without one."""
    with kit(request.param) as made:
        yield made


def of_rows(mode: str, row_filter: str) -> dict[str, Any]:
    """Return the argument that only an overwrite has."""
    return {"overwrite_filter": row_filter} if mode == "overwrite" else {}


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
    assert table.commit_files(files, mode=mode, request_id=request_id, **of_rows(mode, "id = 1"))
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


Send = Callable[[str], bool | None]
"""Commits under a request id; returns whether the call says that it has landed something, None if it does not say."""


def by_files(**arguments: Any) -> Callable[[Kit, Any, int], Send]:
    def prepared(kit: Kit, table: Any, number: int) -> Send:
        files = written(kit, table, frame((number, "a")))
        return lambda request_id: bool(table.commit_files(files, request_id=request_id, **arguments))

    return prepared


def by_no_file(kit: Kit, table: Any, number: int) -> Send:
    return lambda request_id: bool(table.commit_files([], request_id=request_id))


def by_transaction(stage: Callable[[Any, pa.Table], object]) -> Callable[[Kit, Any, int], Send]:
    def prepared(kit: Kit, table: Any, number: int) -> Send:
        def send(request_id: str) -> None:
            with kit.catalog.transaction(request_id) as tx:
                stage(tx.table(table), frame((number, "a")))

        return send

    return prepared


def asked(table: Any, number: int) -> tuple[Any, Any, Any]:
    """Return an append as a client of another protocol sends it, its files written."""
    plain = Transaction(table)
    plain.append(frame((number, "a")))
    return (table.name(), *sent_by(plain))


def by_request(kit: Kit, table: Any, number: int) -> Send:
    commit = asked(table, number)
    return lambda request_id: not kit.catalog.commit_request(*commit, request_id=request_id).landed_before


def by_requests(kit: Kit, table: Any, number: int) -> Send:
    commit = asked(table, number)

    def send(request_id: str) -> bool:
        (landed,) = kit.catalog.commit_requests([commit], request_id=request_id).values()
        return not landed.landed_before

    return send


CALLS: dict[str, Callable[[Kit, Any, int], Send]] = {
    "commit_files": by_files(),
    "commit_files that looks for its files": by_files(check_duplicate_files=True),
    "commit_files of what was read": by_files(reads="s = 'a'"),
    "commit_files that overwrites": by_files(mode="overwrite", overwrite_filter="id = 0"),
    "commit_files that replaces partitions": by_files(mode="dynamic"),
    "transaction": by_transaction(lambda part, df: part.append(df)),
    "transaction that overwrites": by_transaction(lambda part, df: part.overwrite(df, "id = 0")),
    "commit_request": by_request,
    "commit_requests": by_requests,
}
"""Every call that lands rows under a request id."""

PAIRS = [
    *((name, name) for name in CALLS),
    *zip(CALLS, [*list(CALLS)[4:], *list(CALLS)[:4]], strict=True),
]
"""Each call after itself, and each after another one."""


def test_each_call_that_takes_a_request_id_is_known_here() -> None:
    taking = {
        name
        for owner in (CoordinatedTable, CoordinatedCatalog)
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if not name.startswith("_") and "request_id" in inspect.signature(method).parameters
    }
    assert {name.split()[0] for name in CALLS} == taking - {"find_commit", "unlock"}


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@pytest.mark.parametrize("first, second", PAIRS)
def test_other_rows_under_a_request_id_that_has_landed_are_not_committed(shared: Kit, first: str, second: str) -> None:
    """By a table object that has not seen the first commit, and by one that has. The call ends without an error.

    No file is made that the caller does not know, and none of the files is deleted that the caller has written.
    """
    table = shared.table(frame((0, "a"), (9, "b")), partition_spec=BY_S)
    stale, request_id = shared.again(table), str(uuid.uuid4())
    assert CALLS[first](shared, table, 1)(request_id) is not False
    landed = shared.again(table)
    after = rows(landed)
    assert (1, "a") in after
    for handle in (stale, shared.again(table)):
        send = CALLS[second](shared, handle, 2)
        there = files_in(table.location())
        assert not send(request_id), "it does not say that the rows have landed"
        assert names(files_in(table.location()) ^ there) == []
        assert shared.again(table).metadata_location == landed.metadata_location
        if not second.startswith("commit_request"):  # that is given a name, no table object
            assert rows(handle) == after, "the table object shows what has landed"
    assert shared.held() == []
    assert CALLS[second](shared, shared.again(table), 3)(str(uuid.uuid4())) is not False
    assert (3, "a") in rows(shared.again(table))


@pytest.mark.parametrize("first", CALLS)
def test_no_file_under_a_request_id_that_has_landed_is_no_commit_either(memory: Kit, first: str) -> None:
    table = memory.table(frame((0, "a")), partition_spec=BY_S)
    stale, request_id = memory.again(table), str(uuid.uuid4())
    CALLS[first](memory, table, 1)(request_id)
    landed = memory.again(table)
    for handle in (stale, landed):
        assert not by_no_file(memory, handle, 2)(request_id)
        assert memory.again(table).metadata_location == landed.metadata_location


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


@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic"])
def test_a_request_that_landed_is_not_refused_when_the_table_can_not_be_written_any_more(
    memory: Kit, mode: Any
) -> None:
    table = memory.table(frame((1, "a")), partition_spec=BY_S)
    files = written(memory, table, frame((2, "b")))
    assert table.commit_files(files, mode=mode, request_id="R")
    table = of_version_three(memory, table)
    assert not table.commit_files(files, mode=mode, request_id="R")
    with pytest.raises(CommitNotApplied, match="format version"):
        table.commit_files(files, mode=mode, request_id="another")


LOCKS = pytest.mark.parametrize("locks", ["off", "iceberg", "hive"])


@LOCKS
@pytest.mark.parametrize("branch", ["main", "dev"])
@pytest.mark.parametrize("mode", ["overwrite", "dynamic", "append"])
def test_a_repeat_of_a_request_that_changed_what_it_had_read_finds_that_it_has_landed(
    locks: str, mode: Any, branch: str
) -> None:
    """By any handle, and as often as it is repeated. Called stale, it would lose the files that the table needs."""
    with kit("memory", None, **{"operation-locks": locks}) as made:
        table = made.table(frame((1, "a"), (2, "b")), partition_spec=BY_S)
        read_at = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(read_at, "dev").commit()
        stale = [made.again(table) for _ in range(2)]
        files = written(made, table, frame((3, "a")))
        asked: dict[str, Any] = {"mode": mode, **of_rows(mode, "id = 1"), "branch": branch, "request_id": "R"}
        asked["reads"] = "s = 'a'" if mode == "append" else None
        assert made.again(table).commit_files(files, read_at=read_at, **asked)
        after = rows(made.again(table), branch)
        for handle, at in ((stale[0], None), (stale[1], read_at), (made.again(table), read_at)):
            assert not handle.commit_files(files, read_at=at, **asked)
            assert rows(handle, branch) == after, "the table object shows it"
        assert not made.again(table).commit_files(files, schema_id=77, **asked), "whatever else is wrong"
        assert not made.again(table).commit_files(files, check_duplicate_files=True, **asked)
        assert rows(made.again(table), branch) == after
        assert names(orphans(made.again(table))) == []
        assert made.held() == []


def test_a_repeat_finds_what_its_own_late_commit_lands_while_it_is_planned_again(shared: Kit) -> None:
    """It is planned again on what it has itself brought about, and that looks stale."""
    table = shared.table(frame((1, "a"), (2, "b")), partition_spec=BY_S)
    stale, late = shared.again(table), shared.again(table)
    files = written(shared, table, frame((3, "a")))
    asked: dict[str, Any] = {"mode": "overwrite", "overwrite_filter": "id = 1", "request_id": str(uuid.uuid4())}
    loads = shared.catalog.coordinator.load
    asked_for = []

    def load(name: Any) -> Any:
        asked_for.append(name)
        if len(asked_for) == 2:  # the first is the look before anything is checked
            shared.catalog.coordinator.load = loads
            assert late.commit_files(files, **asked)
        return loads(name)

    shared.again(table).append(frame((9, "b")))
    shared.catalog.coordinator.load = load
    try:
        assert not stale.commit_files(files, **asked)
    finally:
        shared.catalog.coordinator.load = loads
    assert row_ids(shared.again(table)) == [2, 3, 9]


@LOCKS
@pytest.mark.parametrize("branch", ["main", "dev"])
@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic"])
def test_files_that_an_earlier_commit_brought_are_kept_whatever_refuses_them(
    locks: str, mode: Any, branch: str
) -> None:
    """The answer to the first commit was lost, and it had no request id. The files may be in another branch, too."""
    with kit("memory", None, **{"operation-locks": locks}) as made:
        table = made.table(frame((1, "a"), (2, "b")), partition_spec=BY_S)
        read_at = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_branch(read_at, "dev").commit()
        stale = made.again(table)
        files = written(made, table, frame((3, "a")))
        assert made.again(table).commit_files(files, branch=branch)
        wrong: list[dict[str, Any]] = [
            {"schema_id": 77},
            {"reads": "s = 'a'", "read_at": read_at},
            {"reads": "s = 'a'", "read_at": 77},
            {"reads": "id = 'x'"},
        ]
        for handle in (stale, made.again(table)):
            for arguments in wrong:
                with pytest.raises(FileInTable, match="keep the file"):
                    handle.commit_files(files, mode=mode, branch=branch, **arguments)
                with pytest.raises(FileInTable, match="keep the file"):
                    handle.commit_files(files, mode=mode, branch="main", request_id=str(uuid.uuid4()), schema_id=77)
        assert row_ids(made.again(table), branch) == [1, 2, 3]
        assert names(orphans(made.again(table))) == []


@pytest.mark.parametrize("again", [False, True], ids=["", "and another made"])
@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic"])
def test_a_repeat_after_the_table_was_renamed_keeps_the_files(shared: Kit, mode: Any, again: bool) -> None:
    """They are in the table, whose name is another one now. Without a journal nobody can tell."""
    table, new = shared.table(ids(0)), shared.identifier()
    files, stale = written(shared, table, ids(1)), shared.again(table)
    assert table.commit_files(files, mode=mode, request_id="monday", **of_rows(mode, "id = 0"))
    left = row_ids(table)
    shared.catalog.rename_table(table.name(), new)
    if again:
        shared.catalog.create_table(table.name(), table.schema())
    journal = shared.catalog.locks.guarantees.journal
    with pytest.raises(CommitStateUnknown if journal else CommitNotApplied, match="renamed|could not be|dropped"):
        stale.commit_files(files, mode=mode, request_id="monday", **of_rows(mode, "id = 0"))
    assert left == row_ids(shared.catalog.load_table(new))


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OperationalError("SELECT", {}, Exception("No space left on device")),
        MetastoreUnavailable("No space left on device"),
        RuntimeError("No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_repeat_that_fails_before_it_is_sent_promises_nothing(
    shared: Kit, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An earlier one may still be on its way, and land with these files."""
    table = shared.table(ids(0))
    files, request_id = written(shared, table, ids(1)), str(uuid.uuid4())

    def no_space(*args: Any, **kwargs: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("commit_coord.iceberg.manifests.write_added", no_space)
        with pytest.raises(CommitStateUnknown, match="may still land"):
            table.commit_files(files, request_id=request_id)
        with pytest.raises((CommitNotApplied, MetastoreUnavailable), match="No space"):
            table.commit_files(files)
    assert table.commit_files(files, request_id=request_id)
    assert row_ids(shared.again(table)) == [0, 1]


def test_one_request_of_two_tables_lands_once_in_each(shared: Kit) -> None:
    """The journal has one entry of it."""
    tables = [shared.table() for _ in range(2)]
    for landed in (True, False, False):
        for table in tables:
            handle = shared.again(table)
            assert handle.commit_files(written(shared, table, ids(1)), request_id="batch 7") == landed
    for table in tables:
        found = shared.again(table).find_commit("batch 7")
        assert found is not None
        assert found.table_uuid == str(table.metadata.table_uuid)
        assert row_ids(shared.again(table)) == [1]


def test_a_commit_to_a_table_that_was_dropped_is_not_found_in_the_next_of_its_name(shared: Kit) -> None:
    table = shared.table()
    table.commit_files(written(shared, table, ids(1)), request_id="batch 8")
    shared.catalog.drop_table(table.name())
    with pytest.raises(NoSuchTableError):
        table.find_commit("batch 8")
    again = shared.catalog.create_table(table.name(), table.schema())
    assert again.find_commit("batch 8") is None
    assert table.find_commit("batch 8") is None


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
    # A table that was renamed looks the same, and uses the files.
    with pytest.raises(CommitStateUnknown if shared.catalog.locks.guarantees.journal else CommitConflict):
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
        with pytest.raises(CommitStateUnknown, match="may still land: not today"):
            table.commit_files(files, request_id=request_id)
    finally:
        shared.catalog.swap = swap
    assert table.find_commit(request_id) is None
    assert shared.again(table).commit_files(files, request_id=request_id)
    assert row_ids(shared.again(table)) == [0, 1]


def test_a_repeat_that_cannot_look_its_request_up_promises_nothing() -> None:
    """Its files may be in the table already: to delete them now would break it."""
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


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("seed", range(12))
def test_a_table_shows_all_since_a_commit_if_nothing_has_gone(memory: Kit, seed: int, version: str) -> None:
    """Snapshots expire, and the metadata log is short: then a request id that is nowhere may have landed."""
    chance, length = random.Random(seed), 4
    table = memory.table(properties={"format-version": version, "write.metadata.previous-versions-max": str(length)})
    table.append(ids(0))
    begun = Beginning(table.metadata_location, sequence_number(table.metadata))
    added: set[int] = set()
    verdicts = set()
    for moved in range(length + 3):
        head = memory.again(table)
        there = {each.snapshot_id for each in head.snapshots()}
        whole = moved == 0 or (moved <= length and version != "1" and added <= there)
        assert whole is shows_all_since(head.metadata, head.metadata_location, begun)
        verdicts.add(whole)
        old = sorted(there - {head.current_snapshot().snapshot_id})
        step = chance.choice(("append", "append", "expire", "property"))
        if step == "expire" and old:
            head.maintenance.expire_snapshots().by_id(chance.choice(old)).commit()
        elif step == "property":
            with head.transaction() as tx:
                tx.set_properties({"moved": str(moved)})
        else:
            head.append(ids(moved))
            added.add(memory.again(table).current_snapshot().snapshot_id)
    assert {True, False} == verdicts
