"""One commit that publishes what waits behind it: each writer's append as a snapshot of its own, in one swap."""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.types
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord import NOTHING, CommitConflict, CommitNotApplied, CommitStateUnknown, load_catalog
from commit_coord.coordinator import groups
from commit_coord.coordinator.groups import Group
from commit_coord.errors import LockServiceUnavailable
from commit_coord.events import CommitEnded, Event
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.attempt import Append, Attempt
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.locks.keeping import CarryingLease
from commit_coord.model import LockScope, Resource
from commit_coord.protocol.commit import SwapResult, TryLimits
from tests import limits
from tests.processes import until

TABLE = ("db", "t")
Action = Callable[[Any], object]


class Counting:
    """The real pointer store with its swaps counted; *swap*, when given, is asked instead of it."""

    def __init__(self, real: Any, swap: Callable[..., SwapResult] | None = None) -> None:
        self._real, self._swap = real, swap
        self.swaps: list[str] = []

    def pointer(self, table: tuple[str, ...]) -> str | None:
        location: str | None = self._real.pointer(table)
        return location

    def swap(self, table: tuple[str, ...], base: str | None, location: str) -> SwapResult:
        self.swaps.append(location)
        result: SwapResult = (self._swap or self._call)(self._real.swap, table, base, location)
        return result

    @staticmethod
    def _call(real: Callable[..., SwapResult], *arguments: Any) -> SwapResult:
        return real(*arguments)

    def wait_for_lock_only_writers(self, table: tuple[str, ...], location: str, lease: Any) -> bool:
        waited: bool = self._real.wait_for_lock_only_writers(table, location, lease)
        return waited

    def prepare_metadata(self, table: tuple[str, ...], head: Any, made: Any, *, changes_phase: bool) -> Any:
        return self._real.prepare_metadata(table, head, made, changes_phase=changes_phase)

    def file_io(self, location: str) -> Any:
        return self._real.file_io(location)


def number(value: int) -> pa.Table:
    return pa.table({"id": pa.array([value], pa.int64())})


def appending(value: int, branch: str = "main") -> Action:
    def action(table: Any) -> object:
        table.append(number(value), branch=branch)
        return table

    return action


@pytest.fixture(params=["memory", "lease", pytest.param("hms", marks=pytest.mark.hms)])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    service = {"lock.uri": request.getfixturevalue("hms").uri} if request.param == "hms" else {}
    catalog = open_catalog(tmp_path, request.param, **service)
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema).append(number(0))
    yield catalog
    assert catalog.locks.locks(Resource.table(TABLE)) == []
    catalog.close()


@pytest.fixture
def leased(tmp_path: Path) -> Iterator[Any]:
    """The catalog with the lock manager of SQL catalogs alone."""
    catalog = open_catalog(tmp_path, "lease")
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema).append(number(0))
    yield catalog
    assert catalog.locks.locks(Resource.table(TABLE)) == []
    catalog.close()


def open_catalog(folder: Path, locks: str, **properties: str) -> Any:
    return load_catalog(
        "groups",
        **{"uri": f"coord+sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/wh", "lock-impl": locks},
        **properties,
    )


def in_line(catalog: Any, *actions: Action) -> list[Any]:
    """Run *actions*, each on the table in a thread, so that they wait in this order; return what came of each.

    The latch is held until all of them are in the queue.
    """
    results: list[Any] = [None] * len(actions)

    def run(position: int, table: Any) -> None:
        try:
            results[position] = actions[position](table)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            results[position] = error

    tables = [catalog.load_table("db.t") for _ in actions]
    threads = [
        threading.Thread(target=run, args=(position, table), daemon=True) for position, table in enumerate(tables)
    ]
    with catalog.coordinator.latch(TABLE, statement="the test"):
        for position, thread in enumerate(threads):
            thread.start()
            await_queue(catalog, position + 2)
    for thread in threads:
        thread.join(limits.PATIENCE)
        assert not thread.is_alive()
    return results


def await_queue(catalog: Any, length: int) -> None:
    table = Resource.table(TABLE)  # the service may be a metastore that other tests use too

    def is_long() -> bool:
        return len({entry.request_id for entry in catalog.locks.locks(table, scope=LockScope.COMMIT)}) >= length

    until(is_long, f"a queue of {length} requests")


def ids(catalog: Any, branch: str = "main") -> list[int]:
    scan = catalog.load_table("db.t").scan().use_ref(branch)
    return sorted(scan.to_arrow()["id"].to_pylist())


def order(catalog: Any) -> list[int]:
    """Return the rows in the order in which their snapshots were added; each snapshot holds one."""
    table = catalog.load_table("db.t")
    chain: list[int] = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        added = [
            entry.data_file
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.snapshot_id == snapshot.snapshot_id
        ]
        chain += [int.from_bytes(file.lower_bounds[1], "little") for file in added]
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    return chain[::-1]


def test_one_swap_publishes_a_snapshot_for_each_that_waited_in_their_order(catalog: Any) -> None:
    store = catalog.coordinator.store = Counting(catalog)
    results = in_line(catalog, *(appending(value) for value in range(1, 6)))
    assert len(store.swaps) == 1
    assert order(catalog) == [0, 1, 2, 3, 4, 5]
    metadata = catalog.load_table("db.t").metadata
    assert [s.sequence_number for s in metadata.snapshots] == [1, 2, 3, 4, 5, 6]
    assert [s.parent_snapshot_id for s in metadata.snapshots[1:]] == [s.snapshot_id for s in metadata.snapshots[:-1]]
    assert [s.summary["total-records"] for s in metadata.snapshots] == ["1", "2", "3", "4", "5", "6"]
    assert len({s.summary[REQUEST_ID] for s in metadata.snapshots}) == 6
    assert len(metadata.metadata_log) == 2, "one file for each swap"
    assert [entry.snapshot_id for entry in metadata.snapshot_log] == [s.snapshot_id for s in metadata.snapshots]
    for position, table in enumerate(results):
        assert table.current_snapshot() == metadata.snapshots[position + 1], "each sees its own as the last"
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(position + 2))


def test_a_commit_says_how_many_it_carried(catalog: Any) -> None:
    told: list[Event] = []
    catalog.events.subscribe(told.append)
    in_line(catalog, *(appending(value) for value in range(1, 4)))
    ended = [event for event in told if isinstance(event, CommitEnded)]
    assert sorted((event.status, event.carried, event.tries) for event in ended) == [
        ("SUCCESS", 0, 0),
        ("SUCCESS", 0, 0),
        ("SUCCESS", 2, 1),
    ]


def test_a_group_of_one_commits_alone(tmp_path: Path) -> None:
    catalog = open_catalog(tmp_path, "memory", **{"commit.group.max-size": "1"})
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema)
    store = catalog.coordinator.store = Counting(catalog)
    in_line(catalog, appending(1), appending(2), appending(3))
    assert (len(store.swaps), order(catalog)) == (3, [1, 2, 3])
    catalog.close()


def test_what_is_no_append_ends_the_group(catalog: Any) -> None:
    """The overwrite has its turn before the last append, though it gives it away to be planned again."""
    told: list[Event] = []
    catalog.events.subscribe(told.append)

    def overwriting(table: Any) -> object:
        table.overwrite(number(9), reads=NOTHING)
        return table

    in_line(catalog, appending(1), appending(2), overwriting, appending(3))
    assert sorted(event.carried for event in told if isinstance(event, CommitEnded)) == [0, 0, 0, 1]
    assert ids(catalog) in ([9], [3, 9])


def test_what_conflicts_is_refused_alone(catalog: Any) -> None:
    stale = catalog.load_table("db.t")
    table = catalog.load_table("db.t")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "x").commit()

    def conflicting(_: Any) -> object:
        stale.append(number(7), branch="x")
        return stale

    _, error, _ = in_line(catalog, appending(1), conflicting, appending(2))
    assert isinstance(error, CommitConflict)
    assert "is a tag" in str(error)
    assert order(catalog) == [0, 1, 2]


def test_what_cannot_be_carried_harms_nobody(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder can't write a member's manifest list; the member can, in its turn."""
    real, holder = manifest_list.write_appended, []

    def write(*arguments: Any, **kwargs: Any) -> bool:
        holder.append(threading.get_ident())
        if len(holder) == 3 and holder[2] == holder[0]:
            raise OSError("a member's list")
        return real(*arguments, **kwargs)

    monkeypatch.setattr(manifest_list, "write_appended", write)
    store = catalog.coordinator.store = Counting(catalog)
    in_line(catalog, *(appending(value) for value in range(1, 5)))
    assert order(catalog) == [0, 1, 2, 3, 4]
    assert len(store.swaps) == 2


def test_branches_travel_together(catalog: Any) -> None:
    table = catalog.load_table("db.t")
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "dev").commit()
    store = catalog.coordinator.store = Counting(catalog)
    first, second, third = in_line(catalog, appending(1), appending(2, "dev"), appending(3))
    assert len(store.swaps) == 1
    assert (ids(catalog), ids(catalog, "dev")) == ([0, 1, 3], [0, 2])
    assert (len(first.metadata.snapshots), len(second.metadata.snapshots), len(third.metadata.snapshots)) == (2, 3, 4)
    head = third.metadata
    assert first.metadata.refs["dev"].snapshot_id == head.snapshots[0].snapshot_id
    assert second.metadata.refs["main"].snapshot_id == head.snapshots[1].snapshot_id
    assert second.metadata.refs["dev"].snapshot_id == head.snapshots[2].snapshot_id


def test_what_follows_a_carried_append_sees_the_whole_table(catalog: Any) -> None:
    """Its table shows its own snapshot as the last, and is planned again on what came behind it in the same swap."""
    first, _ = in_line(catalog, appending(1), appending(2))
    assert sorted(first.scan().to_arrow()["id"].to_pylist()) == [0, 1]
    first.delete("id = 2")
    assert ids(catalog) == [0, 1]
    second, _ = in_line(catalog, appending(4), appending(5))
    second.overwrite(number(6), "id > 1", reads=NOTHING)
    assert ids(catalog) == [0, 1, 6]


def test_a_stranger_s_commit_before_the_swap_moves_the_whole_group(catalog: Any) -> None:
    def swap(real: Callable[..., SwapResult], *arguments: Any) -> SwapResult:
        if len(store.swaps) == 1:
            stranger = SqlCatalog("groups", **{k: v for k, v in catalog.properties.items() if k != "lock-impl"})
            stranger.load_table("db.t").append(number(8))
            stranger.close()
        return real(*arguments)

    store = catalog.coordinator.store = Counting(catalog, swap)
    in_line(catalog, appending(1), appending(2), appending(3))
    assert len(store.swaps) == 2
    assert order(catalog) == [0, 8, 1, 2, 3]


def test_after_an_unknown_swap_each_member_goes_its_own_way(catalog: Any) -> None:
    """The holder gives up without an answer; its change is still under way and comes in when others have committed."""
    catalog.coordinator.limits = TryLimits(status_checks=1)
    lost: list[tuple[Any, ...]] = []

    def swap(real: Callable[..., SwapResult], table: Any, base: Any, location: str) -> SwapResult:
        if not lost or location == lost[0][2]:
            lost.append((table, base, location))
            return SwapResult.LOST_REPLY
        return real(table, base, location)

    catalog.coordinator.store = Counting(catalog, swap)
    first, second, third = in_line(catalog, appending(1), appending(2), appending(3))
    assert isinstance(first, CommitStateUnknown)
    assert not isinstance(second, Exception)
    assert not isinstance(third, Exception)
    assert catalog.swap(*lost[0]) is SwapResult.MOVED
    assert order(catalog) == [0, 2, 3]


def test_after_an_unknown_swap_no_member_s_failure_is_proven(catalog: Any) -> None:
    """The holder gave up and its change is under way, with the members in it, who can't write at all."""
    catalog.coordinator.limits = TryLimits(status_checks=1)
    lost: list[tuple[Any, ...]] = []

    def swap(real: Callable[..., SwapResult], table: Any, base: Any, location: str) -> SwapResult:
        if not lost or location == lost[0][2]:
            lost.append((table, base, location))
            return SwapResult.LOST_REPLY
        raise PermissionError("read-only")

    catalog.coordinator.store = Counting(catalog, swap)
    assert {type(error) for error in in_line(catalog, appending(1), appending(2), appending(3))} == {CommitStateUnknown}
    assert catalog.swap(*lost[0]) is SwapResult.SWAPPED
    assert order(catalog) == [0, 1, 2, 3]


def swapped_late(catalog: Any) -> list[Any]:
    """Have a holder give up whose change, of its own append and of two members', lands before the first member's turn.

    The members find themselves in the table. Returns the results of the three.
    """
    catalog.coordinator.limits = TryLimits(status_checks=1)
    lost: list[tuple[Any, ...]] = []

    class Late(Counting):
        def pointer(self, table: tuple[str, ...]) -> str | None:
            if len(lost) == 2:
                lost.append(())
                assert catalog.swap(*lost[0]) is SwapResult.SWAPPED
            return super().pointer(table)

    def swap(real: Callable[..., SwapResult], table: Any, base: Any, location: str) -> SwapResult:
        if not lost or location == lost[0][2]:
            lost.append((table, base, location))
            return SwapResult.LOST_REPLY
        return real(table, base, location)

    catalog.coordinator.store = Late(catalog, swap)
    return in_line(catalog, appending(1), appending(2), appending(3))


def test_a_swap_that_comes_in_late_carries_its_members_once(catalog: Any) -> None:
    first, *members = swapped_late(catalog)
    assert isinstance(first, CommitStateUnknown)
    assert not any(isinstance(member, Exception) for member in members)
    assert order(catalog) == [0, 1, 2, 3]


@pytest.mark.parametrize("swapped", [False, True], ids=["before the swap", "after the swap"])
def test_a_holder_that_dies_leaves_each_member_in_the_table_once(tmp_path: Path, swapped: bool) -> None:
    catalog = open_catalog(tmp_path, "lease")
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema).append(number(0))

    def die(real: Callable[..., SwapResult], *arguments: Any) -> SwapResult:
        if swapped:
            real(*arguments)
        os._exit(9)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which hold nothing that the child needs
        child = fork(lambda: append_as_holder(tmp_path, die))
    await_queue(catalog, 1)
    results = run_together(catalog, [1, 2, 3])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not [result for result in results if isinstance(result, Exception)]
    assert ids(catalog) == [0, 1, 2, 3, *([7] if swapped else [])]
    assert catalog.locks.locks(Resource.table(TABLE)) == []
    catalog.close()


def append_as_holder(folder: Path, swap: Callable[..., SwapResult]) -> None:
    """Append while holding the latch until three wait behind, and meet *swap*."""
    catalog = open_catalog(folder, "lease")
    catalog.coordinator.store = Counting(catalog, swap)
    locks, real = catalog.locks, catalog.locks.submit

    def submit(*arguments: Any, **kwargs: Any) -> Any:
        granted = real(*arguments, **kwargs)
        await_queue(catalog, 4)
        return granted

    locks.submit = submit
    catalog.load_table("db.t").append(number(7))


def fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


def run_together(catalog: Any, values: Sequence[int]) -> list[Any]:
    results: list[Any] = [None] * len(values)

    def run(position: int) -> None:
        try:
            results[position] = appending(values[position])(catalog.load_table("db.t"))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[position] = error

    threads = [threading.Thread(target=run, args=(position,), daemon=True) for position in range(len(values))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limits.PATIENCE)
        assert not thread.is_alive()
    return results


def test_a_waiter_whose_lock_service_fails_does_not_call_it_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its append was taken before; the holder publishes it, and no file of it may be gone."""
    catalog, unlucky = open_catalog(tmp_path, "lease"), open_catalog(tmp_path, "lease")
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema).append(number(0))
    broken, looked = threading.Event(), unlucky.locks.parts.queue._look

    def look(*arguments: Any) -> Any:
        if broken.is_set():
            raise LockServiceUnavailable("the lock database failed")
        return looked(*arguments)

    monkeypatch.setattr(unlucky.locks.parts.queue, "_look", look)
    monkeypatch.setattr(unlucky.locks.parts.queue, "retract", lambda request: False)
    acquirer = unlucky.locks.parts.acquirer
    monkeypatch.setattr(acquirer, "acquire", only_once(acquirer.acquire))
    errors: list[BaseException] = []

    def append() -> None:
        try:
            unlucky.load_table("db.t").append(number(2))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    member = threading.Thread(target=append, daemon=True)

    def swap(real: Callable[..., SwapResult], *arguments: Any) -> SwapResult:
        broken.set()
        member.join(limits.PATIENCE)
        return real(*arguments)

    catalog.coordinator.store = Counting(catalog, swap)
    locks, real = catalog.locks, catalog.locks.submit

    def submit(*arguments: Any, **kwargs: Any) -> Any:
        granted = real(*arguments, **kwargs)
        member.start()
        await_queue(catalog, 2)
        return granted

    monkeypatch.setattr(locks, "submit", submit)
    catalog.coordinator.contended_tables.add(TABLE)
    catalog.load_table("db.t").append(number(1))
    assert isinstance(errors[0], CommitStateUnknown)
    assert ids(catalog) == [0, 1, 2]
    unlucky.close()
    catalog.close()


def only_once(acquire: Callable[..., Any]) -> Callable[..., Any]:
    """Return *acquire*, which the second time finds no service."""
    calls: list[int] = []

    def once(*arguments: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise LockServiceUnavailable("the lock database failed")
        return acquire(*arguments, **kwargs)

    return once


def test_tables_of_version_1_have_no_groups(catalog: Any) -> None:
    """They have no sequence numbers, by which a table knows that it shows less than its file."""
    catalog.drop_table("db.t")
    catalog.create_table("db.t", number(0).schema, properties={"format-version": "1"}).append(number(0))
    store = catalog.coordinator.store = Counting(catalog)
    first, _ = in_line(catalog, appending(1), appending(2))
    assert len(store.swaps) == 2
    first.upsert(number(2), ["id"])
    assert ids(catalog) == [0, 1, 2]


def test_an_offer_that_cannot_be_read_is_left_to_its_owner(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer of another version is in the queue."""
    real, read = Attempt.from_json, []

    def from_json(data: bytes) -> Attempt:
        read.append(data)
        if len(read) == 1:
            raise KeyError("a field of tomorrow")
        return real(data)

    monkeypatch.setattr(Attempt, "from_json", from_json)
    store = catalog.coordinator.store = Counting(catalog)
    in_line(catalog, appending(1), appending(2), appending(3))
    assert order(catalog) == [0, 1, 3, 2]
    assert len(store.swaps) == 2


def test_a_carried_append_whose_table_cannot_be_read_has_landed(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No error may make its owner repeat it or delete its files."""
    told: list[Event] = []
    catalog.events.subscribe(told.append)
    real = catalog.coordinator.metadata.read

    def read(location: str) -> Any:
        if store.swaps and threading.get_ident() != holder[0]:
            raise OSError("the store is gone")
        return real(location)

    holder: list[int] = []

    def swap(real_swap: Callable[..., SwapResult], *arguments: Any) -> SwapResult:
        holder.append(threading.get_ident())
        return real_swap(*arguments)

    store = catalog.coordinator.store = Counting(catalog, swap)
    monkeypatch.setattr(catalog.coordinator.metadata, "read", read)
    _, error = in_line(catalog, appending(1), appending(2))
    monkeypatch.undo()
    assert isinstance(error, CommitStateUnknown)
    assert "landed" in str(error)
    assert ids(catalog) == [0, 1, 2]
    assert [event.status for event in told if isinstance(event, CommitEnded)] == ["SUCCESS", "SUCCESS"]


@pytest.mark.parametrize("owner, step", [(Group, "settle"), (groups, "journal_entry")], ids=["settle", "entry"])
def test_an_interrupt_while_settling_frees_the_latch(
    catalog: Any, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    """Each member then has its turn, and finds itself in the table."""
    real, struck = getattr(owner, step), list[int]()

    def strike(*arguments: Any) -> Any:
        if not struck:
            struck.append(1)
            raise Interrupted
        return real(*arguments)

    monkeypatch.setattr(owner, step, strike)
    first, second, third = in_line(catalog, appending(1), appending(2), appending(3))
    assert isinstance(first, Interrupted)
    assert not isinstance(second, BaseException)
    assert not isinstance(third, BaseException)
    assert order(catalog) == [0, 1, 2, 3]


class Interrupted(BaseException):
    """Comes at any moment, as Ctrl-C does."""


def test_a_lone_commit_does_not_wait_for_pyicebergs_threads(catalog: Any) -> None:
    """They may all be busy with a scan."""
    busy, pool = threading.Event(), ExecutorFactory.get_or_create()
    blockers = [pool.submit(busy.wait, 60) for _ in range(100)]
    table = catalog.load_table("db.t")
    catalog.coordinator.commit([prepared(table, busy)])
    assert not busy.is_set()
    busy.set()
    for blocker in blockers:
        blocker.result(limits.PATIENCE)
    assert len(catalog.load_table("db.t").metadata.snapshots) == 2


def prepared(table: Any, busy: threading.Event) -> Attempt:
    """Return an append whose files are written: that takes PyIceberg's threads, too."""
    parts = table.metadata.current_snapshot().manifests(table.io)
    append = Append(snapshot_id=77, branch="main", manifests=(), summary={}, schema_id=table.schema().schema_id)
    assert parts
    assert not busy.is_set()
    return Attempt(
        request_id=str(uuid.uuid4()),
        table=TABLE,
        table_uuid=str(table.metadata.table_uuid),
        base_location=table.metadata_location,
        append=append,
    )


@pytest.mark.parametrize(
    "doing",
    [
        lambda table: table.overwrite(number(9), "id = 0"),
        lambda table: table.delete("id = 0"),
        lambda table: table.update_schema().add_column("more", pyiceberg.types.StringType()).commit(),
        lambda table: table.transaction().set_properties(k="v").commit_transaction(),
        lambda table: table.upsert(number(9), ["id"]),
    ],
    ids=["overwrite", "delete", "schema", "property", "upsert"],
)
def test_what_is_no_append_goes_alone_in_its_place(tmp_path: Path, doing: Action) -> None:
    """Those before it go together, then it, then those behind it, whatever order they were planned in."""
    catalog = open_catalog(tmp_path, "memory", **{"operation-locks": "off"})
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema).append(number(0))
    told: list[Event] = []
    catalog.events.subscribe(told.append)
    results = in_line(catalog, appending(1), appending(2), doing, appending(3), appending(4))
    assert not [result for result in results if isinstance(result, BaseException)]
    by_status = [(event.tries, event.carried) for event in told if isinstance(event, CommitEnded) and event.tries]
    assert by_status in (
        [(1, 1), (1, 0), (1, 1)],
        [(1, 1), (1, 1), (1, 0)],  # given away while it was planned again, for what reads data
    )
    assert set(range(1, 5)) <= set(ids(catalog))
    catalog.close()


def test_a_group_has_a_size_and_its_order(tmp_path: Path) -> None:
    """Nobody waits for more swaps than fill the groups before it."""
    catalog = open_catalog(tmp_path, "lease", **{"commit.group.max-size": "3"})
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema).append(number(0))
    store = catalog.coordinator.store = Counting(catalog)
    in_line(catalog, *(appending(value) for value in range(1, 8)))
    assert (3, list(range(8))) == (len(store.swaps), order(catalog))
    catalog.close()


def test_a_group_has_a_bound_in_bytes(tmp_path: Path) -> None:
    """What has no room is the next to be granted, and nobody overtakes it."""
    catalog = open_catalog(tmp_path, "lease", **{"commit.group.max-bytes": "4400"})
    catalog.create_namespace("db")
    catalog.create_table("db.t", number(0).schema).append(number(0))
    store = catalog.coordinator.store = Counting(catalog)
    large = {"said": "x" * 3000}
    in_line(
        catalog,
        appending(1),
        lambda table: table.append(number(2), snapshot_properties=large),
        lambda table: table.append(number(3), snapshot_properties=large),
        appending(4),
    )
    assert (2, [0, 1, 2, 3, 4]) == (len(store.swaps), order(catalog))
    catalog.close()


def test_a_large_attempt_waits_in_a_file(leased: Any) -> None:
    """The lock service gets its name; nothing is left of it."""
    folder = Path(leased.load_table("db.t").location().removeprefix("file://"))
    store = leased.coordinator.store = Counting(leased)
    large = {"said": "x" * 100_000}
    in_line(leased, appending(1), lambda table: table.append(number(2), snapshot_properties=large), appending(3))
    assert (1, [0, 1, 2, 3]) == (len(store.swaps), order(leased))
    assert large["said"] == leased.load_table("db.t").metadata.snapshots[2].summary["said"]
    assert [] == list(folder.rglob("*.attempt.json"))


def test_a_large_attempt_whose_file_is_gone_is_left_to_its_owner(leased: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Group.offer

    def offer(group: Group) -> str:
        text = real(group)
        if group.offered_in is not None:
            Path(group.offered_in.removeprefix("file://")).unlink()
        return text

    monkeypatch.setattr(Group, "offer", offer)
    large = {"said": "x" * 100_000}
    in_line(leased, appending(1), lambda table: table.append(number(2), snapshot_properties=large), appending(3))
    assert [0, 1, 3, 2] == order(leased)


@pytest.mark.parametrize("poison", ["missing", "cut off", "something else"])
def test_an_append_whose_manifest_cannot_be_read_is_refused_alone(leased: Any, poison: str) -> None:
    """By the holder, which leaves it to its owner, and in its own turn; those behind it land with the holder."""

    def spoiled(append: Append) -> Append:
        (manifest,) = (Path(found.manifest_path.removeprefix("file://")) for found in append.manifests)
        data = manifest.read_bytes()
        manifest.unlink()
        if poison != "missing":
            manifest.write_bytes(data[:-30] if poison == "cut off" else b"?" * len(data))
        return append

    def poisoned(table: Any) -> object:
        transaction = table.transaction()
        transaction.append(number(2))
        pending = transaction.draft.staged.pending
        prepare = pending.prepare
        pending.prepare = lambda: spoiled(prepare())
        return transaction.commit_transaction()

    store = leased.coordinator.store = Counting(leased)
    _, error, _ = in_line(leased, appending(1), poisoned, appending(3))
    assert isinstance(error, CommitNotApplied)
    assert (1, [0, 1, 3]) == (len(store.swaps), order(leased))


def test_a_caller_s_request_id_travels_along(leased: Any) -> None:
    """It is looked up by the holder that carries it, and remembered by its owner."""
    request_id = str(uuid.uuid4())

    def repeatable(table: Any) -> object:
        transaction = table.transaction()
        transaction.request.id, transaction.request.repeatable = request_id, True
        transaction.append(number(2))
        transaction.commit_transaction()
        return transaction.request.landed_before

    store = leased.coordinator.store = Counting(leased)
    _, answered, again, _ = in_line(leased, appending(1), repeatable, repeatable, appending(3))
    assert (False, True) == (answered, again)
    assert (1, [0, 1, 2, 3]) == (len(store.swaps), order(leased))
    entry = leased.locks.recall(request_id)
    assert entry is not None
    assert (leased.load_table("db.t").metadata.snapshots[2].snapshot_id,) == entry.snapshot_ids


def test_a_lone_writer_does_not_look_for_offers(leased: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a question to the service. A writer that met others looks, until it finds itself alone again."""
    looks: list[int] = []
    take = CarryingLease.take

    def counted(lease: CarryingLease, limit: int) -> Any:
        found = take(lease, limit)
        looks.append(len(found))
        return found

    monkeypatch.setattr(CarryingLease, "take", counted)
    table = leased.load_table("db.t")
    table.append(number(1))
    assert looks == []
    in_line(leased, appending(2), appending(3), appending(4))
    assert looks == [2]
    for value in (5, 6, 7):
        table.append(number(value))
    assert looks == [2, 0]
    assert sorted(leased.load_table("db.t").scan().to_arrow()["id"].to_pylist()) == [*range(8)]
