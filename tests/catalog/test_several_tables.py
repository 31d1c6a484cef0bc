"""Transactions over several tables of a SQL catalog: all of it lands, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

import commit_coord
from commit_coord import CommitConflict, CommitNotApplied, CommitStateUnknown, StaleRead
from commit_coord.coordinator import PointerSwap
from commit_coord.coordinator.multi_table import MultiTableCommit
from commit_coord.protocol.commit import SwapResult, TryLimits
from tests.catalog.kit import NO_MATCH, SCHEMA, Kit, files_in, files_of, ids, kit, names, row_ids, rows
from tests.coordinator.test_lost_replies import NoWaiting

SwapAll = Callable[[Sequence[PointerSwap], Sequence[int]], SwapResult]


@pytest.fixture(params=["memory", "lease", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog of its own for each test, which must leave no lock and no file that nothing refers to."""
    on_postgres = request.param == "postgres"
    uri = request.getfixturevalue("postgres_url") if on_postgres else None
    with kit("lease" if on_postgres else request.param, uri) as made:
        yield made
        assert [] == made.held()


@pytest.fixture
def pair(store: Kit) -> tuple[Any, Any]:
    """Two tables with a row each."""
    return store.table(ids(1)), store.table(ids(1))


class Faulty:
    """A pointer store whose swap of several pointers is replaced; all else is the real one's."""

    def __init__(self, real: Any, swap: Callable[..., SwapResult]) -> None:
        self._real, self._swap = real, swap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def swap_all(self, swaps: Sequence[PointerSwap], lease_ids: Sequence[int] = ()) -> SwapResult:
        return self._swap(self._real.swap_all, swaps, lease_ids)


def break_swaps(store: Kit, swap: Callable[..., SwapResult]) -> None:
    """Have *swap* called instead, with the real one."""
    coordinator = store.catalog.coordinator
    coordinator.store, coordinator.clock = Faulty(store.catalog, swap), NoWaiting()
    coordinator.limits = TryLimits(status_checks=3)


def shown(store: Kit, *tables: Any) -> list[list[Any]]:
    """Return the ids in each of *tables* as they are now; no file is left over."""
    again = [store.again(table) for table in tables]
    for table in again:
        assert [] == names(files_in(table.location()) - files_of(table))
    return [row_ids(table) for table in again]


def append_to_both(store: Kit, pair: tuple[Any, Any], number: int, request_id: str | None = None) -> None:
    """Append one row to each of two tables in one transaction."""
    with store.catalog.transaction(request_id) as tx:
        for table in pair:
            tx.table(table.name()).append(ids(number))


def test_what_is_staged_of_several_tables_lands_together(store: Kit, pair: tuple[Any, Any]) -> None:
    first, second = pair
    with store.catalog.transaction() as tx:
        tx.table(first).append(ids(2))
        tx.table(second.name()).delete("id = 1")
        tx.table(second.name()).append(ids(3))
        assert [[1], [1]] == [row_ids(store.again(table)) for table in pair]
    assert [[1, 2], [3]] == shown(store, *pair)
    assert [1, 2] == row_ids(first), "the table object that was given shows the commit"


def test_every_table_carries_the_request_id_of_the_transaction(store: Kit, pair: tuple[Any, Any]) -> None:
    append_to_both(store, pair, 2)
    found = {store.again(table).current_snapshot().summary["commit-coord.request-id"] for table in pair}
    assert 1 == len(found)


def test_appends_follow_heads_that_moved_and_deletes_are_planned_again(store: Kit, pair: tuple[Any, Any]) -> None:
    first, second = pair
    with store.catalog.transaction() as tx:
        tx.table(first).append(ids(2))
        tx.table(second).delete("id >= 1")
        store.again(first).append(ids(3))
        store.again(second).append(ids(4))
    assert [[1, 2, 3], []] == shown(store, *pair)


def test_a_conflict_in_one_table_keeps_the_change_of_the_other_from_landing(store: Kit, pair: tuple[Any, Any]) -> None:
    first, second = pair
    with pytest.raises(StaleRead), store.catalog.transaction() as tx:
        tx.table(first).append(ids(2))
        tx.table(second).overwrite(ids(5), "id = 1")
        store.again(second).overwrite(ids(1), "id = 1")
    assert [[1], [1]] == shown(store, *pair)


def test_a_refusal_names_the_table_that_it_comes_from(store: Kit, pair: tuple[Any, Any]) -> None:
    first, second = pair
    with pytest.raises(CommitConflict) as refused, store.catalog.transaction() as tx:
        tx.table(first).append(ids(2))
        tx.table(second).append(ids(2))
        store.catalog.drop_table(second.name())
    assert "was dropped" in str(refused.value)
    assert refused.value.details["table"] == ".".join(second.name())
    assert [[1]] == shown(store, first)


def test_a_block_that_fails_leaves_nothing(store: Kit, pair: tuple[Any, Any]) -> None:
    with pytest.raises(RuntimeError, match="enough"), store.catalog.transaction() as tx:
        for table in pair:
            tx.table(table).append(ids(2))
        raise RuntimeError("enough")
    assert [[1], [1]] == shown(store, *pair)


def test_a_part_is_not_committed_alone(store: Kit, pair: tuple[Any, Any]) -> None:
    with store.catalog.transaction() as tx:
        with tx.table(pair[0]) as part:
            part.append(ids(2))
        with pytest.raises(ValueError, match="commit the whole transaction"):
            part.commit_transaction()
        assert [1] == row_ids(store.again(pair[0]))
    assert [[1, 2], [1]] == shown(store, *pair)
    with pytest.raises(ValueError, match="over"):
        tx.table(pair[0])


def test_a_table_is_changed_through_one_table_object(store: Kit, pair: tuple[Any, Any]) -> None:
    tx = store.catalog.transaction()
    assert tx.table(pair[0]) is tx.table(pair[0].name())
    with pytest.raises(ValueError, match="another table object"):
        tx.table(store.again(pair[0]))


def test_a_transaction_that_changes_nothing_is_a_success(store: Kit, pair: tuple[Any, Any]) -> None:
    with store.catalog.transaction():
        pass
    before = store.again(pair[0]).metadata_location
    with pytest.warns(UserWarning, match=NO_MATCH), store.catalog.transaction() as tx:
        tx.table(pair[0]).delete("id = 99")
    assert before == store.again(pair[0]).metadata_location


def test_a_transaction_of_a_table_that_is_not_there_does_nothing(store: Kit, pair: tuple[Any, Any]) -> None:
    with pytest.raises(NoSuchTableError), store.catalog.transaction() as tx:
        tx.table(pair[0]).append(ids(2))
        tx.table((store.namespace, "nope"))
    assert [[1]] == shown(store, pair[0])


# -- what the store answers ----------------------------------------------------------------------------------


def test_an_unmodified_writer_that_moves_one_table_moves_nothing_half(store: Kit, pair: tuple[Any, Any]) -> None:
    second = pair[1]
    tries: list[Sequence[PointerSwap]] = []

    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        tries.append(swaps)
        if len(tries) == 1:
            store.stock.load_table(second.name()).append(ids(7))
        return real(swaps, lease_ids)

    break_swaps(store, swap)
    append_to_both(store, pair, 2)
    assert 2 == len(tries)
    assert [[1, 2], [1, 2, 7]] == shown(store, *pair)


def test_the_rows_of_a_database_are_swapped_in_the_order_of_their_names(store: Kit, pair: tuple[Any, Any]) -> None:
    seen: list[list[Any]] = []

    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        seen.append([swap.table for swap in swaps])
        return real(swaps, lease_ids)

    break_swaps(store, swap)
    append_to_both(store, (pair[1], pair[0]), 2)
    assert [sorted(table.name() for table in pair)] == seen


def test_a_reply_that_is_lost_after_the_swap_is_a_success(store: Kit, pair: tuple[Any, Any]) -> None:
    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        real(swaps, lease_ids)
        return SwapResult.LOST_REPLY

    break_swaps(store, swap)
    append_to_both(store, pair, 2)
    assert [[1, 2], [1, 2]] == shown(store, *pair)


def test_a_swap_that_is_lost_on_its_way_is_sent_again(store: Kit, pair: tuple[Any, Any]) -> None:
    tries: list[Sequence[PointerSwap]] = []

    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        tries.append(swaps)
        return SwapResult.LOST_REPLY if len(tries) == 1 else real(swaps, lease_ids)

    break_swaps(store, swap)
    append_to_both(store, pair, 2)
    assert tries[0] == tries[1], "the repeated swap must be the identical one"
    assert [[1, 2], [1, 2]] == shown(store, *pair)


def test_a_lost_swap_that_another_commit_has_overtaken_in_one_table_lands_anew(
    store: Kit, pair: tuple[Any, Any]
) -> None:
    tries: list[Sequence[PointerSwap]] = []

    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        tries.append(swaps)
        if len(tries) == 1:
            store.stock.load_table(pair[0].name()).append(ids(7))
            return SwapResult.LOST_REPLY
        return real(swaps, lease_ids)

    break_swaps(store, swap)
    append_to_both(store, pair, 2)
    assert [[1, 2, 7], [1, 2]] == shown(store, *pair)


def test_an_outcome_that_nobody_can_find_out_keeps_every_file(store: Kit, pair: tuple[Any, Any]) -> None:
    late: list[Callable[[], SwapResult]] = []

    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        late[:] = [lambda: real(swaps, lease_ids)]
        return SwapResult.LOST_REPLY

    break_swaps(store, swap)
    with pytest.raises(CommitStateUnknown) as unknown:
        append_to_both(store, pair, 2)
    assert unknown.value.details["table"] == ", ".join(sorted(".".join(table.name()) for table in pair))
    assert [[1], [1]] == [row_ids(store.again(table)) for table in pair]
    assert SwapResult.SWAPPED is late[0]()
    assert [[1, 2], [1, 2]] == shown(store, *pair)


def test_a_refused_swap_leaves_nothing(store: Kit, pair: tuple[Any, Any]) -> None:
    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        raise OSError("the disk is full")

    break_swaps(store, swap)
    with pytest.raises(CommitNotApplied, match="the disk is full"):
        append_to_both(store, pair, 2)
    assert [[1], [1]] == shown(store, *pair)


# -- repeated requests ---------------------------------------------------------------------------------------


def test_a_transaction_that_is_made_again_with_its_request_id_lands_once(store: Kit, pair: tuple[Any, Any]) -> None:
    append_to_both(store, pair, 2, "the load of monday")
    append_to_both(store, pair, 2, "the load of monday")
    assert [[1, 2], [1, 2]] == shown(store, *pair)
    append_to_both(store, pair, 3, "the load of tuesday")
    assert [[1, 2, 3], [1, 2, 3]] == shown(store, *pair)


def overwrites_what_was_read(tx: Any, first: Any, file: str) -> None:
    read_at = 0 if first.current_snapshot() is None else first.metadata.snapshots[0].snapshot_id
    tx.table(first).overwrite(ids(2), "id = 1", read_at=read_at)


def replaces_what_its_table_object_shows(tx: Any, first: Any, file: str) -> None:
    tx.table(first).overwrite(ids(2), "id = 1")


def adds_a_file(tx: Any, first: Any, file: str) -> None:
    tx.table(first).delete("id = 1")
    tx.table(first).add_files([file])


def appends_rows_that_no_longer_fit(tx: Any, first: Any, file: str) -> None:
    tx.table(first).delete("id = 1")
    tx.table(first).append(ids(2))


REPEATED = [
    overwrites_what_was_read,
    replaces_what_its_table_object_shows,
    adds_a_file,
    appends_rows_that_no_longer_fit,
]


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@pytest.mark.parametrize("evolves", [False, True], ids=["", "columns change since"])
@pytest.mark.parametrize("call", REPEATED)
def test_a_repeat_that_its_own_first_landing_would_refuse_is_a_success(
    store: Kit, pair: tuple[Any, Any], call: Callable[[Any, Any, str], None], evolves: bool, tmp_path: Path
) -> None:
    """What the job had read has changed since: through the job itself."""
    pq.write_table(ids(2), tmp_path / "f.parquet")
    as_it_was = [store.again(pair[0]), store.again(pair[0])]

    def job(first: Any) -> None:
        with store.catalog.transaction("monday") as tx:
            tx.table(pair[1].name()).append(ids(9))
            call(tx, first, f"file://{tmp_path}/f.parquet")

    job(as_it_was[0])
    if evolves:
        with store.again(pair[0]).update_schema() as update:
            update.delete_column("s")
    job(as_it_was[1])
    assert [[2], [1, 9]] == shown(store, *pair)
    assert [2] == row_ids(as_it_was[1]), "the table object shows the commit"


def test_a_repeat_is_a_success_when_the_first_lands_while_it_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were staged on one head. The second has the latches, and sees another head; then the first lands."""
    with kit("memory", None, **{"operation-locks": "off"}) as made:
        pair = made.table(ids(1)), made.table(ids(1))

        def staged() -> Any:
            tx = made.catalog.transaction("monday")
            tx.table(pair[0].name()).overwrite(ids(2), "id = 1")
            tx.table(pair[1].name()).append(ids(9))
            return tx

        first, second = staged(), staged()
        made.again(pair[0]).append(ids(5))
        plan_again = MultiTableCommit._plan_again

        def overtaken(self: MultiTableCommit) -> None:
            monkeypatch.setattr(MultiTableCommit, "_plan_again", plan_again)
            first.commit_transaction()
            plan_again(self)

        monkeypatch.setattr(MultiTableCommit, "_plan_again", overtaken)
        second.commit_transaction()
        assert [[2, 5], [1, 9]] == shown(made, *pair)


@pytest.mark.parametrize("error", [KeyError("mine"), ValueError("mine"), NoSuchTableError("mine")], ids=repr)
def test_an_error_of_the_callers_own_goes_out_of_the_block_and_a_first_refusal_too(
    store: Kit, pair: tuple[Any, Any], error: Exception
) -> None:
    append_to_both(store, pair, 2, "monday")
    with pytest.raises(type(error), match="mine"), store.catalog.transaction("monday") as tx:
        tx.table(pair[0].name()).append(ids(2))
        raise error
    with pytest.raises(StaleRead), store.catalog.transaction("tuesday") as tx:
        tx.table(pair[0]).overwrite(ids(3), "id = 1", read_at=0)
    assert [[1, 2], [1, 2]] == shown(store, *pair)


def test_a_repeat_leaves_no_file_for_a_table_that_is_gone(store: Kit, pair: tuple[Any, Any]) -> None:
    def staged() -> Any:
        tx = store.catalog.transaction("monday")
        for table in pair:
            tx.table(table.name()).append(ids(2))
        return tx

    first, again = staged(), staged()
    first.commit_transaction()
    store.catalog.drop_table(pair[1].name())
    before = files_in(pair[1].location())
    again.commit_transaction()
    assert len(before) == len(files_in(pair[1].location())) + 1, "its own data file is gone"


def test_a_repeat_that_one_table_alone_remembers_lands_nothing(
    store: Kit, pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has forgotten the request, and so has the journal: it was put back to what it was."""
    before = store.again(pair[1]).metadata_location
    append_to_both(store, pair, 2, "once")
    store.catalog.register_table(pair[1].name(), before, overwrite=True)
    monkeypatch.setattr(store.catalog.locks, "recall", lambda request_id: None)
    append_to_both(store, pair, 2, "once")
    assert [[1, 2], [1]] == [row_ids(store.again(table)) for table in pair]


def forget(store: Kit, table: Any, before: str) -> None:
    store.catalog.register_table(table.name(), before, overwrite=True)


def lose_a_column(store: Kit, table: Any, before: str) -> None:
    forget(store, table, before)
    with store.again(table).update_schema() as update:
        update.delete_column("s")


def move_on(store: Kit, table: Any, before: str) -> None:
    forget(store, table, before)
    store.again(table).overwrite(ids(1, 4))


def drop(store: Kit, table: Any, before: str) -> None:
    store.catalog.drop_table(table.name())


def drop_and_create(store: Kit, table: Any, before: str) -> None:
    store.catalog.drop_table(table.name())
    store.catalog.create_table(table.name(), SCHEMA)


@pytest.mark.parametrize("since", [forget, lose_a_column, move_on, drop, drop_and_create])
@pytest.mark.parametrize("deletes", [False, True], ids=["appends", "deletes"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_repeat_is_answered_whatever_became_of_another_table_since(
    store: Kit,
    pair: tuple[Any, Any],
    since: Callable[[Kit, Any, str], None],
    deletes: bool,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it landed; now one table alone contains it, and the other one would refuse it, or is gone.

    It lands before its repeat, or when its repeat has looked for it and waits for the latches.
    """

    def staged() -> Any:
        tx = store.catalog.transaction("once")
        tx.table(pair[0].name()).append(ids(2))
        second = tx.table(pair[1].name())
        if deletes:
            second.delete("id = 1")
        second.append(ids(2))
        return tx

    def land() -> None:
        before = store.again(pair[1]).metadata_location
        first.commit_transaction()
        since(store, pair[1], before)
        left.extend([rows(store.again(pair[1]))] if store.catalog.table_exists(pair[1].name()) else [None])

    def acquire(*arguments: Any, **more: Any) -> Any:
        monkeypatch.setattr(store.catalog.locks, "acquire", real)
        land()
        return real(*arguments, **more)

    first, again, left, real = staged(), staged(), list[Any](), store.catalog.locks.acquire
    if when == "before":
        land()
    else:
        monkeypatch.setattr(store.catalog.locks, "acquire", acquire)
    monkeypatch.setattr(store.catalog.locks, "recall", lambda request_id: None)
    again.commit_transaction()
    assert [1, 2] == row_ids(store.again(pair[0]))
    assert left == [rows(store.again(pair[1])) if left[0] is not None else None]


def test_a_repeat_after_an_unknown_outcome_lands_once(store: Kit, pair: tuple[Any, Any]) -> None:
    answers = iter([SwapResult.LOST_REPLY] * 4)

    def swap(real: SwapAll, swaps: Sequence[PointerSwap], lease_ids: Sequence[int]) -> SwapResult:
        found = real(swaps, lease_ids)
        store.catalog.coordinator.store.pointer = away  # nobody can see what became of it
        return next(answers, found)

    def away(table: Any) -> str:
        raise OSError("the database is away")

    break_swaps(store, swap)
    with pytest.raises(CommitStateUnknown):
        append_to_both(store, pair, 2, "once")
    store.catalog.coordinator.store = store.catalog
    append_to_both(store, pair, 2, "once")
    assert [[1, 2], [1, 2]] == [row_ids(store.again(table)) for table in pair]


# -- many at once --------------------------------------------------------------------------------------------


def test_transactions_that_name_the_same_tables_in_other_orders_do_not_wait_for_each_other_for_ever(
    store: Kit, pair: tuple[Any, Any]
) -> None:
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        order = pair if number % 2 else (pair[1], pair[0])
        barrier.wait()
        for step in range(3):
            append_to_both(store, order, 100 + 10 * number + step)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    expected = [1, *sorted(100 + 10 * number + step for number in range(4) for step in range(3))]
    assert [expected, expected] == shown(store, *pair)


def test_lone_appends_and_transactions_share_a_table(store: Kit, pair: tuple[Any, Any]) -> None:
    def alone(number: int) -> None:
        store.again(pair[0]).append(ids(number))

    with ThreadPoolExecutor(4) as pool:
        lone = [pool.submit(alone, 100 + number) for number in range(6)]
        both = [pool.submit(append_to_both, store, pair, 200 + number) for number in range(4)]
        for each in (*lone, *both):
            each.result()
    together = [200, 201, 202, 203]
    assert [[1, *range(100, 106), *together], [1, *together]] == shown(store, *pair)


def test_another_engine_on_the_same_database_reads_what_a_transaction_wrote(tmp_path: Path) -> None:
    arguments = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = commit_coord.load_catalog("c", **{**arguments, "uri": f"coord+{arguments['uri']}"})
    catalog.create_namespace("db")
    for name in ("db.a", "db.b"):
        catalog.create_table(name, SCHEMA)
    with catalog.transaction() as tx:
        tx.table("db.a").append(ids(1))
        tx.table("db.b").append(ids(2))
    stock = SqlCatalog("c", **arguments)
    assert [[1], [2]] == [row_ids(stock.load_table(name)) for name in ("db.a", "db.b")]
    stock.close()
    catalog.close()
