"""Commits through a pointer store that loses replies, acts late, refuses, or is moved by strangers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from commit_coord import CommitConflict, CommitNotApplied, CommitStateUnknown, load_catalog
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.locks.memory import MemoryLease
from commit_coord.model import LeaseState
from commit_coord.protocol.commit import SwapResult, TryLimits
from commit_coord.table import CoordinatedTable

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
Swap = Callable[[tuple[str, ...], str | None, str], SwapResult]


class Faulty:
    """A pointer store in front of the real one; *swap* replaces its swap, and may call the real one."""

    def __init__(self, real: Any, swap: Callable[[Swap, tuple[str, ...], str | None, str], SwapResult]) -> None:
        self._real, self._swap = real, swap

    def pointer(self, table: tuple[str, ...]) -> str | None:
        location: str | None = self._real.pointer(table)
        return location

    def swap(self, table: tuple[str, ...], base: str | None, location: str) -> SwapResult:
        return self._swap(self._real.swap, table, base, location)

    def wait_for_lock_only_writers(self, table: tuple[str, ...], location: str, lease: Any) -> bool:
        waited: bool = self._real.wait_for_lock_only_writers(table, location, lease)
        return waited

    def prepare_metadata(self, table: tuple[str, ...], head: Any, made: Any, *, changes_phase: bool) -> Any:
        return self._real.prepare_metadata(table, head, made, changes_phase=changes_phase)

    def file_io(self, location: str) -> Any:
        return self._real.file_io(location)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    catalog = load_catalog(
        "faults",
        **{"uri": f"coord+sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/wh", "lock-impl": "memory"},
    )
    catalog.create_namespace("db")
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    catalog.coordinator.limits = TryLimits(status_checks=3)
    catalog.coordinator.clock = NoWaiting()
    yield catalog
    assert catalog.locks.locks() == []
    catalog.close()


class NoWaiting:
    """The machine's clocks, without the pauses."""

    def __init__(self) -> None:
        from commit_coord.clock import SYSTEM_CLOCK

        self.now, self.wall_ms, self.random = SYSTEM_CLOCK.now, SYSTEM_CLOCK.wall_ms, SYSTEM_CLOCK.random

    def sleep(self, seconds: float) -> None:
        pass


def break_swaps(catalog: Any, swap: Callable[..., SwapResult]) -> None:
    catalog.coordinator.store = Faulty(catalog, swap)


def rows(catalog: Any) -> int:
    table = catalog.load_table("db.t")
    ids = [s.summary[REQUEST_ID] for s in table.metadata.snapshots]
    assert len(ids) == len(set(ids)), "a request landed twice"
    return len(table.scan().to_arrow())


def files(catalog: Any) -> int:
    folder = Path(catalog.load_table("db.t").location().removeprefix("file://"))
    return sum(1 for path in folder.rglob("*") if path.is_file())


def test_a_reply_lost_after_the_change_is_a_success(catalog: Any) -> None:
    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        real(table, base, location)
        return SwapResult.LOST_REPLY

    break_swaps(catalog, swap)
    catalog.load_table("db.t").append(ROWS)
    assert rows(catalog) == 6


def test_a_reply_lost_before_the_change_is_repeated(catalog: Any) -> None:
    calls: list[str] = []

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        calls.append(location)
        return SwapResult.LOST_REPLY if len(calls) == 1 else real(table, base, location)

    break_swaps(catalog, swap)
    catalog.load_table("db.t").append(ROWS)
    assert rows(catalog) == 6
    assert calls[0] == calls[1], "the repeated swap must be the identical one"


def test_a_change_that_lands_late_is_not_done_twice(catalog: Any) -> None:
    """The store answers nothing, and does the change when the repeated swap comes in."""
    calls: list[str] = []

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        calls.append(location)
        if len(calls) == 1:
            return SwapResult.LOST_REPLY
        real(table, base, location)  # the first one, arriving now
        return real(table, base, location)

    break_swaps(catalog, swap)
    catalog.load_table("db.t").append(ROWS)
    assert rows(catalog) == 6


def test_a_lost_reply_to_a_change_that_a_stranger_built_on_is_a_success(catalog: Any) -> None:
    """Ours is not the pointer any more, and is in its log, as its base is."""
    calls: list[str] = []

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        calls.append(location)
        assert real(table, base, location) is SwapResult.SWAPPED
        stranger = SqlCatalog("faults", **{k: v for k, v in catalog.properties.items() if k != "lock-impl"})
        stranger.load_table("db.t").append(ROWS)
        stranger.close()
        return SwapResult.LOST_REPLY

    break_swaps(catalog, swap)
    catalog.load_table("db.t").append(ROWS)
    table = catalog.load_table("db.t")
    assert len(table.scan().to_arrow()) == 9
    assert len(calls) == 1
    assert all(Path(entry.metadata_file.removeprefix("file://")).exists() for entry in table.metadata.metadata_log)


def test_a_stranger_s_commit_after_a_lost_reply_leaves_no_doubt(catalog: Any) -> None:
    """Ours did not land, a stranger moved the pointer: ours follows on the stranger's head."""
    calls: list[str] = []

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        calls.append(location)
        if len(calls) == 1:
            stranger = SqlCatalog("faults", **{k: v for k, v in catalog.properties.items() if k != "lock-impl"})
            stranger.load_table("db.t").append(ROWS)
            stranger.close()
            return SwapResult.LOST_REPLY
        return real(table, base, location)

    break_swaps(catalog, swap)
    catalog.load_table("db.t").append(ROWS)
    assert len(catalog.load_table("db.t").scan().to_arrow()) == 9
    assert len(calls) == 2
    assert calls[0] != calls[1]


def test_a_creation_is_not_denied_when_another_table_has_its_name(catalog: Any) -> None:
    """Its own table has been renamed meanwhile, and needs the file."""

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        assert real(table, base, location) is SwapResult.SWAPPED
        stranger = SqlCatalog("faults", **{k: v for k, v in catalog.properties.items() if k != "lock-impl"})
        stranger.rename_table("db.new", "db.renamed")
        stranger.create_table("db.new", ROWS.schema)
        stranger.close()
        return SwapResult.LOST_REPLY

    break_swaps(catalog, swap)
    with pytest.raises(CommitStateUnknown), catalog.create_table_transaction("db.new", ROWS.schema) as tx:
        tx.append(ROWS)
    assert [len(catalog.load_table(f"db.{name}").scan().to_arrow()) for name in ("renamed", "new")] == [3, 0]


def test_a_creation_that_another_client_overtakes_is_a_conflict(catalog: Any) -> None:
    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        catalog.coordinator.store = catalog
        stranger = SqlCatalog("faults", **{k: v for k, v in catalog.properties.items() if k != "lock-impl"})
        stranger.create_table("db.new", ROWS.schema)
        stranger.close()
        return real(table, base, location)

    break_swaps(catalog, swap)
    with pytest.raises(CommitConflict), catalog.create_table_transaction("db.new", ROWS.schema) as tx:
        tx.append(ROWS)
    assert len(catalog.load_table("db.new").scan().to_arrow()) == 0


def test_what_cannot_be_decided_is_unknown_and_keeps_every_file(catalog: Any) -> None:
    before = files(catalog)
    break_swaps(catalog, lambda real, table, base, location: SwapResult.LOST_REPLY)
    with pytest.raises(CommitStateUnknown, match="every file is kept") as raised:
        catalog.load_table("db.t").append(ROWS)
    assert not isinstance(raised.value, CommitFailedException)
    assert files(catalog) == before + 4  # data, manifest, manifest list, metadata
    # The change may still come in; then the table must be whole.
    catalog.swap(("db", "t"), catalog.pointer(("db", "t")), raised.value.details["location"])
    catalog.coordinator.store = catalog
    assert rows(catalog) == 6


def test_a_refused_swap_fails_and_leaves_no_file(catalog: Any) -> None:
    before = files(catalog)

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        raise PermissionError("attempt to write a readonly database")

    break_swaps(catalog, swap)
    with pytest.raises(CommitNotApplied, match="readonly"):
        catalog.load_table("db.t").append(ROWS)
    assert files(catalog) == before
    assert rows(catalog) == 3


def test_strangers_that_move_the_pointer_before_every_swap_end_in_a_conflict(catalog: Any) -> None:
    before = files(catalog)
    break_swaps(catalog, lambda real, table, base, location: SwapResult.MOVED)
    with pytest.raises(CommitNotApplied, match="do not hold the latch"):
        catalog.load_table("db.t").append(ROWS)
    assert files(catalog) == before


def test_an_interrupt_during_the_swap_keeps_every_file_and_frees_the_latch(catalog: Any) -> None:
    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        real(table, base, location)
        raise KeyboardInterrupt

    break_swaps(catalog, swap)
    with pytest.raises(KeyboardInterrupt):
        catalog.load_table("db.t").append(ROWS)
    assert rows(catalog) == 6


def test_an_attempt_can_be_written_down_and_carried_out_by_another_client(catalog: Any, tmp_path: Path) -> None:
    table = catalog.load_table("db.t")
    assert isinstance(table, CoordinatedTable)
    transaction = table.transaction()
    transaction.set_properties({"written": "down"})
    transaction.append(ROWS)
    text = transaction.committing.attempt().to_json()
    catalog.load_table("db.t").append(ROWS)  # the head moves on

    attempt = Attempt.from_json(text)
    assert attempt.to_json() == text
    (committed,) = catalog.coordinator.commit([attempt])
    assert committed.metadata.properties["written"] == "down"
    assert rows(catalog) == 9


def test_the_same_request_id_is_answered_and_not_repeated(catalog: Any) -> None:
    table = catalog.load_table("db.t")
    transaction = table.transaction()
    transaction.append(ROWS)
    attempt = transaction.committing.attempt()
    first = catalog.coordinator.commit([attempt], repeatable=True)[0]
    catalog.load_table("db.t").append(ROWS)
    again = catalog.coordinator.commit([attempt], repeatable=True)[0]
    assert (first.landed_before, again.landed_before) == (False, True)
    assert again.snapshot_ids == first.snapshot_ids
    assert rows(catalog) == 9


@pytest.fixture
def late(catalog: Any) -> tuple[Attempt, Callable[[], SwapResult]]:
    """A request whose caller was interrupted, and its swap, which comes in when it is called."""
    transaction = catalog.load_table("db.t").transaction()
    transaction.append(ROWS)
    attempt = transaction.committing.attempt()
    sent: list[Callable[[], SwapResult]] = []

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        sent.append(lambda: real(table, base, location))
        raise KeyboardInterrupt

    break_swaps(catalog, swap)
    with pytest.raises(KeyboardInterrupt):
        catalog.coordinator.commit([attempt], repeatable=True)
    return attempt, sent[0]


def test_a_repeat_that_fails_does_not_deny_what_is_on_its_way(
    catalog: Any, late: tuple[Attempt, Callable[[], SwapResult]]
) -> None:
    """It has looked for its earlier try, which was not there yet."""
    attempt, come_in = late

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        raise PermissionError("no space left on device")

    break_swaps(catalog, swap)
    with pytest.raises(CommitStateUnknown, match="may still land: no space left"):
        catalog.coordinator.commit([attempt], repeatable=True)
    assert come_in() is SwapResult.SWAPPED
    assert catalog.coordinator.commit([attempt], repeatable=True)[0].landed_before
    assert rows(catalog) == 6


def test_a_repeat_that_its_earlier_try_overtakes_does_not_deny_it(
    catalog: Any, late: tuple[Attempt, Callable[[], SwapResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer has moved by it, and then can't be read."""
    attempt, come_in = late

    def away(table: Any) -> str:
        raise ConnectionError("the metastore is away")

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        come_in()
        monkeypatch.setattr(catalog.coordinator.store, "pointer", away)
        return real(table, base, location)

    break_swaps(catalog, swap)
    with pytest.raises(CommitStateUnknown, match="may still land: the metastore is away"):
        catalog.coordinator.commit([attempt], repeatable=True)
    monkeypatch.undo()
    assert rows(catalog) == 6


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_a_repeat_that_fails_does_not_deny_a_copy_that_was_planned_on_the_same_head(tmp_path: Path, heads: int) -> None:
    """Strangers move the pointer before its swaps but the last. That one fails, and the copy's comes in late."""
    properties = {"uri": f"coord+sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/wh", "lock-impl": "none"}
    catalog: Any = load_catalog("faults", **properties)
    catalog.create_namespace("db")
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    transaction = catalog.load_table("db.t").transaction()
    transaction.append(ROWS)
    attempt = transaction.committing.attempt()
    sent: list[Callable[[], SwapResult]] = []
    swaps: list[str] = []

    def send(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        sent.append(lambda: real(table, base, location))
        raise KeyboardInterrupt

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        swaps.append(location)
        if len(swaps) < heads:
            stranger = SqlCatalog("faults", uri=f"sqlite:///{tmp_path}/c.db")
            stranger.load_table("db.t").append(ROWS)
            stranger.close()
            return real(table, base, location)
        break_swaps(catalog, send)
        with pytest.raises(KeyboardInterrupt):
            catalog.coordinator.commit([attempt], repeatable=True)
        raise PermissionError("no space left on device")

    break_swaps(catalog, swap)
    with pytest.raises(CommitStateUnknown, match="may still land: no space left"):
        catalog.coordinator.commit([attempt], repeatable=True)
    assert sent[0]() is SwapResult.SWAPPED
    catalog.coordinator.store = catalog
    assert catalog.coordinator.commit([attempt], repeatable=True)[0].landed_before
    assert len(catalog.load_table("db.t").scan().to_arrow()) == 3 * (1 + heads)
    catalog.close()


def test_two_tries_of_one_request_never_share_a_file(tmp_path: Path) -> None:
    """Without a latch both write before either swaps; the loser deletes its own file, not the winner's."""
    properties = {"uri": f"coord+sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/wh", "lock-impl": "none"}
    catalog: Any = load_catalog("faults", **properties)
    catalog.create_namespace("db")
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    transaction = catalog.load_table("db.t").transaction()
    transaction.append(ROWS)
    attempt = transaction.committing.attempt()
    answered: list[bool] = []

    def swap(real: Swap, table: Any, base: Any, location: str) -> SwapResult:
        catalog.coordinator.store = catalog
        answered.append(catalog.coordinator.commit([attempt], repeatable=True)[0].landed_before)
        return real(table, base, location)

    break_swaps(catalog, swap)
    answered.append(catalog.coordinator.commit([attempt], repeatable=True)[0].landed_before)
    assert answered == [False, True]
    assert rows(catalog) == 6
    catalog.close()


def test_a_latch_that_is_taken_again_writes_no_file_twice(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first try wrote could not be deleted: the network is away, as is the lease."""
    monkeypatch.setattr("commit_coord.coordinator.publishing.delete_quietly", lambda io, path: None)
    active, asked = MemoryLease.ensure_active, []

    def lost_once(lease: MemoryLease, max_age_ms: int | None = None) -> None:
        asked.append(lease)
        if len(asked) == 1:
            lease._transition(LeaseState.LOST, "as if it had run out")
        active(lease, max_age_ms)

    monkeypatch.setattr(MemoryLease, "ensure_active", lost_once)
    before = len(catalog.load_table("db.t").metadata.snapshots)
    catalog.load_table("db.t").append(ROWS)
    assert len(asked) >= 2
    assert len(catalog.load_table("db.t").metadata.snapshots) == before + 1
