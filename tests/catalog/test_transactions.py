"""What the calls of one transaction stage, when one of them fails and when the table moves before they land."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions.parser import parse
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from commit_coord import NOTHING, CommitConflict, CommitNotApplied, FileInTable, StaleRead
from commit_coord.table.data_files import data_files
from tests.catalog.kit import ARROW, NO_MATCH, Kit, frame, ids, kit, names, orphans, refs, row_ids, rows

pytestmark = pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))


@pytest.fixture(scope="module", params=["off", "iceberg", "hive"])
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog for each way to take operation locks: what lands does not depend on them."""
    with kit("memory", None, **{"operation-locks": request.param}) as found:
        yield found


def theirs(made: Kit, table: Any) -> Any:
    """Return *table* as a client sees it that waits for no lock of ours."""
    return made.stock.load_table(table.name())


def left(made: Kit, table: Any, branch: str | None = None) -> list[Any]:
    """Return the rows of *table*, of which nothing else is left."""
    found = made.again(table)
    assert names(orphans(found)) == []
    assert made.held() == []
    return rows(found, branch)


# A call that fails.


def with_dynamic(tx: Any) -> None:
    tx.dynamic_partition_overwrite(frame((1, "new")))


def in_a_plan(tx: Any) -> None:
    tx.perform(lambda tx: tx.overwrite(frame((1, "new"))))


FAILING: dict[str, Callable[[Any], Any]] = {
    "overwrite": lambda tx: tx.overwrite(frame((1, "new"))),
    "overwrite by filter": lambda tx: tx.overwrite(frame((1, "new")), "id = 1"),
    "upsert": lambda tx: tx.upsert(frame((1, "new")), ["id"]),
    "update": lambda tx: tx.update_rows(parse("id = 1"), lambda df: frame((1, "new"))),
    "dynamic overwrite": with_dynamic,
    "plan": in_a_plan,
    "append": lambda tx: tx.append(frame((1, "new"))),
}


def full_disk(patched: pytest.MonkeyPatch) -> None:
    """Let no data file with new rows be written."""

    def no_space(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    patched.setattr("pyiceberg.io.pyarrow.write_file", no_space)


@pytest.mark.parametrize("raced", [False, True])
@pytest.mark.parametrize("call", FAILING)
def test_a_call_that_fails_stages_nothing(made: Kit, monkeypatch: pytest.MonkeyPatch, call: str, raced: bool) -> None:
    """Half of it would be staged otherwise: the rows are deleted, and what replaces them is missing."""
    table = made.table(ids(1, 2), partition_spec=BY_ID)
    tx = made.again(table).transaction()
    tx.append(ids(5))
    with monkeypatch.context() as patched:
        full_disk(patched)
        with pytest.raises(OSError, match="No space"):
            FAILING[call](tx)
    tx.set_properties(x="y")
    if raced:
        theirs(made, table).append(ids(9))
    tx.commit_transaction()
    assert left(made, table) == [(1, "1"), (2, "2"), (5, "5"), *([(9, "9")] if raced else [])]
    assert made.again(table).properties["x"] == "y"


def test_a_call_that_fails_may_be_made_again_in_the_same_transaction(
    made: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made.table(ids(1, 2))
    tx = made.again(table).transaction()
    with monkeypatch.context() as patched:
        full_disk(patched)
        with pytest.raises(OSError, match="No space"):
            tx.overwrite(frame((1, "new")))
    theirs(made, table).append(ids(9))
    with pytest.raises(StaleRead):
        tx.overwrite(frame((1, "new")))
        tx.commit_transaction()
    assert left(made, table) == [(1, "1"), (2, "2"), (9, "9")]


@pytest.mark.parametrize("raced", [False, True])
def test_a_call_that_a_plan_goes_on_without_stages_nothing(
    made: Kit, monkeypatch: pytest.MonkeyPatch, raced: bool
) -> None:
    """Also when the plan is made anew, while the commit is under way."""

    def plan(tx: Any) -> None:
        with monkeypatch.context() as patched:
            full_disk(patched)
            with pytest.raises(OSError, match="No space"):
                tx.overwrite(frame((1, "new")))
        tx.append(ids(3))

    table = made.table(ids(1))
    tx = made.again(table).transaction()
    tx.perform(plan)
    if raced:
        theirs(made, table).append(ids(9))
    tx.commit_transaction()
    assert left(made, table) == [(1, "1"), (3, "3"), *([(9, "9")] if raced else [])]


def test_a_snapshot_built_by_hand_that_fails_stages_nothing(made: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made.table(ids(1, 2), partition_spec=BY_ID)
    tx = made.again(table).transaction()

    def delete_by_hand() -> None:
        with tx.update_snapshot().delete() as producer:
            producer.delete_by_predicate(parse("id = 1"))

    def no_space(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("commit_coord.table.producers.write_manifest", no_space)
        with pytest.raises(OSError, match="No space"):
            delete_by_hand()
    tx.set_properties(x="y")
    tx.commit_transaction()
    assert left(made, table) == [(1, "1"), (2, "2")]


def test_what_a_refresh_leaves_half_planned_is_not_committed(made: Kit) -> None:
    """The calls are made again on the newer table, and the second of them no longer fits."""
    table = made.table(ids(1, 2))
    mine = made.again(table)
    tx = mine.transaction()
    tx.upsert(frame((1, "mine")), ["id"])
    with tx.update_schema() as changes:
        changes.add_column("x", LongType())
    with theirs(made, table).update_schema() as changes:
        changes.add_column("x", LongType())
    mine.refresh()
    with pytest.raises(CommitConflict):
        tx.set_properties(x="y")
    with pytest.raises(RuntimeError):
        tx.commit_transaction()
    assert left(made, table)[0][:2] == (1, "1")


def test_a_transaction_that_landed_begins_anew(made: Kit) -> None:
    """It is used on: what was built by hand before says nothing of the next calls."""
    table = made.table(ids(1))
    tx = made.again(table).transaction()
    with tx.update_snapshot().fast_append() as producer:
        for data_file in data_files(table.metadata, ids(9), table.io):
            producer.append_data_file(data_file)
    tx.commit_transaction()
    tx.upsert(frame((1, "mine")), ["id"])
    theirs(made, table).append(ids(3))
    tx.commit_transaction()
    assert left(made, table) == [(1, "mine"), (3, "3"), (9, "9")]


# A call that found nothing to do.

NOTHING_TO_DO: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], list[Any]]] = {
    "delete": (lambda tx: tx.delete("id = 7"), lambda table: table.append(ids(7)), [(1, "1")]),
    "upsert": (lambda tx: tx.upsert(ids(1), ["id"]), lambda table: table.delete("id = 1"), [(1, "1")]),
    "update": (
        lambda tx: tx.update_rows(parse("id = 7"), lambda df: frame((7, "mine"))),
        lambda table: table.append(ids(7)),
        [(1, "1"), (7, "mine")],
    ),
}

NEXT: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "property": (lambda tx: tx.set_properties(x="y"), []),
    "append": (lambda tx: tx.append(ids(9), reads=NOTHING), [(9, "9")]),
    "nothing": (lambda tx: None, []),
}


@pytest.mark.parametrize("following", NEXT)
@pytest.mark.parametrize("refreshed", [False, True])
@pytest.mark.parametrize("call", NOTHING_TO_DO)
def test_a_call_that_found_nothing_to_do_is_made_again_on_a_newer_table(
    made: Kit, call: str, refreshed: bool, following: str
) -> None:
    found_nothing, change, expected = NOTHING_TO_DO[call]
    table = made.table(ids(1))
    mine = made.again(table)
    tx = mine.transaction()
    found_nothing(tx)
    change(theirs(made, table))
    if refreshed:
        mine.refresh()
    then, more = NEXT[following]
    then(tx)
    tx.commit_transaction()
    assert left(made, table) == [*expected, *more]


# Tags and branches.


@pytest.mark.parametrize("refreshed", [False, True])
def test_a_tag_that_is_staged_with_rows_stays_when_they_are_planned_again(made: Kit, refreshed: bool) -> None:
    table = made.table(ids(1, 2), partition_spec=BY_ID)
    first = table.current_snapshot().snapshot_id
    mine = made.again(table)
    tx = mine.transaction()
    ManageSnapshots(transaction=tx).create_tag(first, "v1").commit()
    tx.delete("id = 1")
    theirs(made, table).append(ids(5))
    if refreshed:
        mine.refresh()
    tx.commit_transaction()
    assert left(made, table) == [(2, "2"), (5, "5")]
    assert refs(made.again(table))["v1"] == ("tag", first)


def test_a_branch_that_is_staged_with_a_delete_from_it_stays_when_they_are_planned_again(made: Kit) -> None:
    table = made.table(ids(1, 2), partition_spec=BY_ID)
    tx = made.again(table).transaction()
    ManageSnapshots(transaction=tx).create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    tx.delete("id = 1", branch="audit")
    theirs(made, table).append(ids(5))
    tx.commit_transaction()
    assert left(made, table) == [(1, "1"), (2, "2"), (5, "5")]
    assert left(made, table, "audit") == [(2, "2")]


def test_a_tag_that_another_client_has_set_meanwhile_is_not_moved(made: Kit) -> None:
    table = made.table(ids(1), ids(2), partition_spec=BY_ID)
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots())
    tx = made.again(table).transaction()
    ManageSnapshots(transaction=tx).create_tag(first, "v1").commit()
    tx.delete("id = 1")
    theirs(made, table).manage_snapshots().create_tag(second, "v1").commit()
    with pytest.raises(CommitFailedException):
        tx.commit_transaction()
    assert refs(made.again(table))["v1"] == ("tag", second)
    assert left(made, table) == [(1, "1"), (2, "2")]


def test_a_tag_that_is_removed_with_rows_is_removed_when_they_are_planned_again(made: Kit) -> None:
    table = made.table(ids(1, 2), partition_spec=BY_ID)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "v1").commit()
    tx = made.again(table).transaction()
    ManageSnapshots(transaction=tx).remove_tag("v1").commit()
    tx.delete("id = 1")
    theirs(made, table).append(ids(5))
    tx.commit_transaction()
    assert left(made, table) == [(2, "2"), (5, "5")]
    assert "v1" not in refs(made.again(table))


# Branches.

ON_A_BRANCH: dict[str, Callable[[Any], Any]] = {
    "append": lambda tx: tx.append(ids(9), branch="b"),
    "overwrite": lambda tx: tx.overwrite(ids(9), branch="b", reads=NOTHING),
    "upsert": lambda tx: tx.upsert(ids(9), ["id"], branch="b"),
    "dynamic": lambda tx: tx.dynamic_partition_overwrite(ids(9), branch="b", reads=NOTHING),
    "plan": lambda tx: tx.perform(lambda tx: tx.append(ids(9), branch="b")),
    "two calls": lambda tx: (tx.append(ids(8), branch="b"), tx.append(ids(9), branch="b")),
}


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("call", ON_A_BRANCH)
def test_a_branch_that_was_removed_is_not_made_again_without_its_rows(made: Kit, call: str, staged: bool) -> None:
    table = made.table(ids(1), partition_spec=BY_ID)
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "b").commit()
    tx = made.again(table).transaction()
    if staged:
        ON_A_BRANCH[call](tx)
    theirs(made, table).manage_snapshots().remove_branch("b").commit()
    with pytest.raises(CommitConflict, match="the branch 'b' was removed by another commit"):
        if not staged:
            ON_A_BRANCH[call](tx)
        tx.commit_transaction()
    tx.__exit__(RuntimeError, None, None)
    assert list(refs(made.again(table))) == ["main"]
    assert left(made, table) == [(1, "1")]


# Names.

TWO = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()))


def pairs(*given: tuple[int, int], named: tuple[str, str] = ("a", "b")) -> pa.Table:
    columns = zip(named, zip(*given, strict=True), strict=True)
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns})


IN_ANY_CASE: dict[str, Callable[[Any], Any]] = {
    "delete": lambda tx: tx.delete("a = 1", case_sensitive=False),
    "update": lambda tx: tx.update_rows(parse("a = 1"), lambda df: df),
    "overwrite": lambda tx: tx.overwrite(pairs((1, 1)), "A = 1", case_sensitive=False),
    "declared": lambda tx: (tx.depends_on("A = 1", case_sensitive=False), tx.set_properties(x="y")),
    "column": lambda tx: tx.update_schema(case_sensitive=False).update_column("a", doc="mine").commit(),
}


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("call", IN_ANY_CASE)
def test_a_name_in_any_case_that_means_another_column_by_now_is_refused(made: Kit, call: str, staged: bool) -> None:
    table = made.table(pairs((1, 100), (2, 200)), schema=TWO)
    tx = made.again(table).transaction()
    if staged:
        IN_ANY_CASE[call](tx)
    for old, new in (("a", "old"), ("b", "A")):
        with theirs(made, table).update_schema() as changes:
            changes.rename_column(old, new)
    theirs(made, table).append(pairs((3, 1), named=("old", "A")))
    with pytest.raises(CommitConflict):
        if not staged:
            IN_ANY_CASE[call](tx)
        tx.commit_transaction()
    tx.__exit__(RuntimeError, None, None)
    assert left(made, table) == [(1, 100), (2, 200), (3, 1)]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("call", ["delete", "update", "declared", "column"])
def test_two_columns_that_differ_by_case_alone_and_swap_their_names_are_other_columns(
    made: Kit, call: str, staged: bool
) -> None:
    twins = Schema(NestedField(1, "a", LongType()), NestedField(2, "A", LongType()))
    table = made.table(pairs((1, 2), (2, 1), named=("a", "A")), schema=twins)
    tx = made.again(table).transaction()
    if staged:
        IN_ANY_CASE[call](tx)
    for old, new in (("a", "x"), ("A", "a"), ("x", "A")):
        with theirs(made, table).update_schema() as changes:
            changes.rename_column(old, new)
    with pytest.raises(CommitConflict, match="was replaced by another column"):
        if not staged:
            IN_ANY_CASE[call](tx)
        tx.commit_transaction()
    tx.__exit__(RuntimeError, None, None)
    assert left(made, table) == [(1, 2), (2, 1)]


@pytest.mark.parametrize("mapped", [False, True], ids=["no name mapping", "a name mapping"])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_columns_of_foreign_files_are_those_that_had_their_names(
    made: Kit, tmp_path: Path, staged: bool, check: bool, mapped: bool
) -> None:
    table = made.table(pairs((1, 100)), schema=TWO)
    if mapped:
        with table.transaction() as changes:
            changes.set_properties({TableProperties.DEFAULT_NAME_MAPPING: TWO.name_mapping.model_dump_json()})
    path = str(tmp_path / "foreign.parquet")
    pq.write_table(pairs((2, 200)), path)
    tx = made.again(table).transaction()
    if staged:
        tx.add_files([path], check_duplicate_files=check)
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        with theirs(made, table).update_schema() as changes:
            changes.rename_column(old, new)
    with pytest.raises(CommitConflict, match="was replaced by another column"):
        if not staged:
            tx.add_files([path], check_duplicate_files=check)
        tx.commit_transaction()
    tx.__exit__(RuntimeError, None, None)
    assert left(made, table) == [(1, 100)]


@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic"])
def test_what_files_were_computed_from_is_the_column_that_had_the_name(made: Kit, mode: Any) -> None:
    table = made.table(
        pairs((1, 100)), schema=TWO, partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    )
    mine = made.again(table)
    files = list(data_files(mine.metadata, pairs((50, 50)), mine.io))
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        with theirs(made, table).update_schema() as changes:
            changes.rename_column(old, new)
    theirs(made, table).append(pairs((1, 999), named=("b", "a")))
    replaced = {"overwrite_filter": "a = 50"} if mode == "overwrite" else {}
    with pytest.raises(CommitConflict):
        mine.commit_files(files, mode=mode, reads="a = 1", request_id="r", **replaced)
    assert rows(made.again(table)) == [(1, 100), (1, 999)]


# What rows were computed from.


@pytest.mark.parametrize("call", ["overwrite", "delete and append", "declared"])
@pytest.mark.parametrize("first", ["update", "upsert", "plan"])
def test_rows_computed_behind_a_call_that_computes_rows_depend_on_all_rows(made: Kit, first: str, call: str) -> None:
    """It may move rows into the filter: those with the id 2 are among those with the text 'x' then."""
    table = made.table(frame((1, "x"), (2, "y")), partition_spec=BY_ID)
    tx = made.again(table).transaction()
    if first == "update":
        tx.update_rows(parse("id = 2"), lambda df: df.set_column(1, "s", pa.array(["x"] * df.num_rows)))
    elif first == "upsert":
        tx.upsert(frame((2, "x")), ["id"])
    else:
        tx.perform(lambda tx: tx.overwrite(frame((2, "x")), "id = 2"))
    computed = frame((tx.scan("s = 'x'").count(), "z"))
    theirs(made, table).delete("id = 2")
    with pytest.raises(StaleRead):
        if call == "overwrite":
            tx.overwrite(computed, "s = 'x'")
        elif call == "declared":
            tx.append(computed, reads="s = 'x'")
        else:
            tx.delete("s = 'x'")
            tx.append(computed)
        tx.commit_transaction()
    tx.__exit__(RuntimeError, None, None)
    assert left(made, table) == [(1, "x")]


@pytest.mark.parametrize("deletes_first", [True, False])
def test_under_snapshot_a_delete_takes_rows_that_were_added_although_an_overwrite_leaves_its_own(
    made: Kit, deletes_first: bool
) -> None:
    levels = {f"write.{operation}.isolation-level": "snapshot" for operation in ("delete", "update")}
    table = made.table(ids(1, 2), partition_spec=BY_ID, properties=levels)
    tx = made.again(table).transaction()
    calls: list[Callable[[], Any]] = [lambda: tx.delete("id = 1"), lambda: tx.overwrite(frame((2, "new")), "id = 2")]
    for call in calls if deletes_first else reversed(calls):
        call()
    theirs(made, table).append(frame((1, "late")))
    tx.commit_transaction()
    assert left(made, table) == [(2, "new")]


def test_under_snapshot_rows_that_depend_on_nothing_replace_what_was_added_although_others_depend(made: Kit) -> None:
    table = made.table(ids(1, 2), partition_spec=BY_ID, properties={"write.update.isolation-level": "snapshot"})
    tx = made.again(table).transaction()
    tx.overwrite(frame((1, "new")), "id = 1", reads=NOTHING)
    tx.overwrite(frame((2, "new")), "id = 2")
    theirs(made, table).append(frame((1, "late")))
    tx.commit_transaction()
    assert left(made, table) == [(1, "new"), (2, "new")]


@pytest.mark.parametrize("mode", ["overwrite", "dynamic"])
def test_under_snapshot_files_leave_rows_that_were_added_meanwhile(made: Kit, mode: Any) -> None:
    """They depend on what they replace, and what was added is no conflict."""
    table = made.table(ids(1, 2), properties={"write.update.isolation-level": "snapshot"})
    mine = made.again(table)
    files = list(data_files(mine.metadata, frame((5, "new")), mine.io))
    theirs(made, table).append(frame((1, "late")))
    if mode == "dynamic":
        with pytest.raises(StaleRead):  # planned again on what was added, so it is checked more strictly
            mine.commit_files(files, mode=mode)
        return
    mine.commit_files(files, mode=mode, check_duplicate_files=False)
    assert left(made, table) == [(1, "late"), (5, "new")]


# Plans.


def test_a_plan_does_not_hide_that_both_sides_have_changed_a_column(made: Kit) -> None:
    table = made.table(ids(1))
    tx = made.again(table).transaction()
    tx.perform(lambda tx: tx.append(ids(2)))
    with tx.update_schema() as changes:
        changes.update_column("s", doc="mine")
    with theirs(made, table).update_schema() as changes:
        changes.update_column("s", doc="theirs")
    with pytest.raises(CommitConflict, match="'s' was changed"):
        tx.commit_transaction()
    assert made.again(table).schema().find_field("s").doc == "theirs"
    assert left(made, table) == [(1, "1")]


def test_a_plan_that_evolves_the_table_is_made_anew_on_what_others_have_changed(made: Kit) -> None:
    def plan(tx: Any) -> None:
        if "x" not in tx.view.schema().column_names:
            with tx.update_schema() as changes:
                changes.add_column("x", LongType())

    table = made.table(ids(1))
    tx = made.again(table).transaction()
    tx.perform(plan)
    with theirs(made, table).update_schema() as changes:
        changes.add_column("x", LongType())
    tx.commit_transaction()
    assert made.again(table).schema().column_names == ["id", "s", "x"]


def test_a_plan_makes_its_stream_of_rows_anew(made: Kit) -> None:
    table = made.table(ids(1))
    tx = made.again(table).transaction()
    tx.perform(lambda tx: tx.overwrite(tx.scan().to_arrow().to_reader()))
    theirs(made, table).append(ids(2))
    tx.commit_transaction()
    assert left(made, table) == [(1, "1"), (2, "2")]


def test_a_stream_of_the_caller_s_is_read_once(made: Kit) -> None:
    table = made.table(ids(1))
    tx = made.again(table).transaction()
    tx.overwrite(ids(5).to_reader(), reads=NOTHING)
    theirs(made, table).append(ids(2))
    with pytest.raises(CommitConflict):
        tx.commit_transaction()
    assert left(made, table) == [(1, "1"), (2, "2")]


# On no branch.


def two_appends(tx: Any) -> None:
    tx.append(ids(4), branch=None)
    tx.append(ids(5), branch=None)


def an_update(tx: Any) -> None:
    tx.delete("id >= 2", branch=None)
    tx.append(frame((2, "new")), branch=None)


ON_NO_BRANCH: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "overwrite": (lambda tx: tx.overwrite(frame((1, "new")), "id >= 1", branch=None), [(1, "new")]),
    # One file has only such rows, the other has other rows, too.
    "in part": (lambda tx: tx.overwrite(frame((2, "new")), "id >= 2", branch=None), [(1, "1"), (2, "new")]),
    "dynamic": (
        lambda tx: tx.dynamic_partition_overwrite(frame((7, "1")), branch=None),
        [(2, "2"), (3, "3"), (7, "1")],
    ),
    "upsert": (
        lambda tx: tx.upsert(frame((1, "new"), (4, "4")), ["id"], branch=None),
        [(1, "new"), (2, "2"), (3, "3"), (4, "4")],
    ),
    "delete": (lambda tx: tx.delete("id >= 2", branch=None), [(1, "1")]),
    "delete, append": (an_update, [(1, "1"), (2, "new")]),
    "appends": (two_appends, [(1, "1"), (2, "2"), (3, "3"), (4, "4"), (5, "5")]),
}


@pytest.mark.parametrize("raced", [False, True])
@pytest.mark.parametrize("call", ON_NO_BRANCH)
def test_what_is_staged_on_no_branch_is_all_in_the_last_snapshot(made: Kit, call: str, raced: bool) -> None:
    """Its publisher publishes all calls: PyIceberg stages the parts of one call side by side."""
    change, expected = ON_NO_BRANCH[call]
    table = made.table(ids(1, 2), ids(3), partition_spec=BY_S if call == "dynamic" else UNPARTITIONED_PARTITION_SPEC)
    tx = made.again(table).transaction()
    change(tx)
    before = [(1, "1"), (2, "2"), (3, "3")]
    if raced:
        theirs(made, table).append(ids(0))
        expected, before = [(0, "0"), *expected], [(0, "0"), *before]
    tx.commit_transaction()
    assert left(made, table) == before
    found = made.again(table)
    last = max(found.snapshots(), key=lambda snapshot: snapshot.sequence_number)
    assert rows(found, snapshot_id=last.snapshot_id) == expected
    assert last.summary["total-records"] == str(len(expected))


def test_a_transaction_that_stages_on_no_branch_reads_what_it_has_staged(made: Kit) -> None:
    with made.table(ids(1)).transaction() as tx:
        tx.append(ids(2), branch=None)
        assert [tx.scan(branch=branch).count() for branch in (None, "main")] == [2, 1]
        tx.append(ids(3))
        assert [tx.scan(branch=branch).count() for branch in (None, "main")] == [2, 2]


# Files.


@pytest.mark.parametrize("branch", ["main", "dev"])
def test_a_file_is_added_to_a_branch_once(made: Kit, branch: str, tmp_path: Path) -> None:
    table = made.table(ids(1))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "dev").commit()
    path = str(tmp_path / "given.parquet")
    pq.write_table(ids(7), path)
    stale = made.again(table)
    made.again(table).add_files([path], branch=branch)
    for handle in (stale, made.again(table)):
        with pytest.raises(FileInTable, match="already referenced"):
            handle.add_files([path], branch=branch)
    assert row_ids(made.again(table), branch) == [1, 7]
    other = {"main": "dev", "dev": "main"}[branch]
    made.again(table).add_files([path], branch=other)
    assert row_ids(made.again(table), other) == [1, 7]


def test_a_file_that_was_deleted_is_added_again_also_by_who_saw_it_there(made: Kit, tmp_path: Path) -> None:
    table, path = made.table(ids(1)), str(tmp_path / "given.parquet")
    pq.write_table(ids(7), path)
    made.again(table).add_files([path])
    stale = made.again(table)
    made.again(table).delete("id = 7")
    stale.add_files([path])
    assert row_ids(made.again(table)) == [1, 7]


def test_who_adds_a_file_looks_at_no_other_head_than_the_commit_does(
    made: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator looks, and swaps what it saw. A second look might show another head, and plan for that one."""
    table, path = made.table(ids(1)), str(tmp_path / "given.parquet")
    pq.write_table(ids(7), path)
    late = made.again(table)
    tx = late.transaction()
    tx.add_files([path])
    made.again(table).add_files([path])
    looks: list[object] = []
    load = late.catalog.coordinator.load

    def noted(name: object) -> object:
        looks.append(name)
        return load(name)

    monkeypatch.setattr(late.catalog.coordinator, "load", noted)
    with pytest.raises(FileInTable, match="already referenced"):
        tx.commit_transaction()
    assert looks == [late.name()]


def test_files_without_field_ids_land_while_others_grow_the_name_mapping(made: Kit, tmp_path: Path) -> None:
    table = made.table()
    paths = [str(tmp_path / f"{number}.parquet") for number in (1, 2)]
    pq.write_table(ids(1), paths[0])
    pq.write_table(pa.table({"id": [2], "s": ["2"], "z": [2]}), paths[1])
    tx = made.again(table).transaction()
    tx.add_files(paths[:1], check_duplicate_files=False)
    with theirs(made, table).update_schema() as changes:
        changes.add_column("z", LongType())
    theirs(made, table).add_files(paths[1:], check_duplicate_files=False)
    tx.commit_transaction()
    assert rows(made.again(table)) == [(1, "1", None), (2, "2", 2)]


def written(metadata: Any, df: pa.Table, io: Any) -> list[Any]:
    """Return files as PyIceberg's writers do: they do not say their spec."""
    found = list(data_files(metadata, df, io))
    for data_file in found:
        if hasattr(data_file, "_spec_id"):
            del data_file._spec_id
    return found


def change_spec(table: Any, *, then: str) -> None:
    with table.update_spec() as changes:
        changes.remove_field("s")
        changes.add_identity(then)


def test_a_file_that_says_no_spec_is_of_the_one_that_its_table_object_shows(made: Kit) -> None:
    """Also together with another one, which is of a spec that the object does not know yet."""
    table = made.table(partition_spec=BY_S)
    mine = made.again(table)
    unsaid = written(mine.metadata, frame((1, "a")), mine.io)
    change_spec(theirs(made, table), then="id")
    newer = theirs(made, table)
    said = list(data_files(newer.metadata, frame((2, "b")), newer.io))
    for data_file in said:
        data_file.spec_id = newer.metadata.default_spec_id
    mine.commit_files([*unsaid, *said])
    assert left(made, table) == [(1, "a"), (2, "b")]
    for condition in ("s = 'a'", "id = 1"):
        assert made.again(table).scan(condition).to_arrow()["id"].to_pylist() == [1]


def test_a_file_that_says_no_schema_is_of_the_one_that_its_table_object_shows(made: Kit) -> None:
    """Its rows may have NULL where a value is required by now."""
    table = made.table(partition_spec=BY_S)
    mine = made.again(table)
    files = written(mine.metadata, frame((None, "a")), mine.io)
    change_spec(theirs(made, table), then="id")
    with theirs(made, table).update_schema(allow_incompatible_changes=True) as changes:
        changes.update_column("id", required=True)
    newer = theirs(made, table)
    required = frame((2, "b"), schema=ARROW.set(0, pa.field("id", pa.int64(), nullable=False)))
    said = list(data_files(newer.metadata, required, newer.io))
    for data_file in said:
        data_file.spec_id = newer.metadata.default_spec_id
    with pytest.raises(CommitConflict, match="required"):
        mine.commit_files([*files, *said])
    assert rows(made.again(table)) == []


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_dynamic_overwrite_depends_on_the_partitions_of_its_files_under_their_own_spec(
    made: Kit, fresh: bool, dropped: bool
) -> None:
    by_a = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "a"))
    table = made.table(pairs((1, 10), (2, 20)), schema=TWO, partition_spec=by_a)
    read_at = table.current_snapshot().snapshot_id
    mine = made.again(table)
    files = list(data_files(mine.metadata, pairs((1, 11)), mine.io))
    for data_file in files:
        data_file.spec_id = mine.metadata.default_spec_id
    with theirs(made, table).update_spec() as changes:
        changes.remove_field("a")
        changes.add_identity("b")
    theirs(made, table).append(pairs((1, 12)))
    if dropped:
        with theirs(made, table).update_schema() as changes:
            changes.delete_column("a")
    before = rows(made.again(table))
    with pytest.raises(CommitNotApplied):
        (made.again(table) if fresh else mine).commit_files(files, mode="dynamic", read_at=read_at)
    assert rows(made.again(table)) == before


def test_a_dynamic_overwrite_of_an_older_spec_with_fewer_fields_lands(made: Kit) -> None:
    table = made.table(frame((1, "a"), (2, "b")), partition_spec=BY_S)
    files = list(data_files(table.metadata, frame((5, "a")), table.io))
    for data_file in files:
        data_file.spec_id = table.metadata.default_spec_id
    with theirs(made, table).update_spec() as changes:
        changes.add_identity("id")
    made.again(table).commit_files(files, mode="dynamic")
    assert left(made, table) == [(2, "b"), (5, "a")]


# Tables that are gone.


def test_an_append_that_merges_manifests_of_a_table_that_was_made_again_is_refused() -> None:
    with kit("memory", None, **{"operation-locks": "off"}) as made:
        properties = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
        table = made.table(ids(1), ids(2), properties=properties)
        tx = made.again(table).transaction()
        tx.append(ids(3))
        made.catalog.purge_table(table.name())
        made.catalog.create_table(table.name(), table.schema())
        with pytest.raises(CommitConflict, match="changed since it was read"):
            tx.commit_transaction()
        assert rows(made.again(table)) == []


@pytest.mark.parametrize("call", ["delete", "overwrite", "update_rows"])
def test_a_filter_names_columns_as_the_transaction_itself_has_changed_them(made: Kit, call: str) -> None:
    """Behind an append that is not planned yet."""
    table = made.table()
    table.append(ids(1))
    with table.transaction() as tx:
        with tx.update_schema() as change:
            change.add_column("c", LongType())
            change.rename_column("s", "text")
        new = pa.table({"id": [5, 6], "text": ["5", "6"], "c": [5, 6]})
        tx.append(new)
        if call == "delete":
            tx.delete("c = 5 and text = '5'")
        elif call == "overwrite":
            tx.overwrite(new.slice(1), "c = 5 and text = '5'")
        else:
            tx.update_rows(parse("c = 5 and text = '5'"), lambda found: found.slice(0, 0))
    assert row_ids(made.again(table)) == [1, *([6] if call == "overwrite" else []), 6]
