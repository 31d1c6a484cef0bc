"""What a commit has read must not have changed when it lands; what it did not read may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationError, ValidationException
from pyiceberg.expressions import EqualTo
from pyiceberg.expressions.parser import parse
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimeType

from commit_coord import NOTHING, CommitConflict, ConfigError, StaleRead
from commit_coord.table.data_files import data_files
from commit_coord.table.isolation import NO_SNAPSHOT
from tests.catalog.kit import NO_MATCH, SCHEMA, Kit, frame, ids, kit, names, orphans, row_ids, rows

pytestmark = pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))

Call = Callable[[Any, pa.Table], None]


@pytest.fixture(scope="module", params=["off", "iceberg", "hive"])
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog for each way to take operation locks: what is refused does not depend on them."""
    with kit("memory", None, **{"operation-locks": request.param}) as found:
        yield found


def marked(df: pa.Table) -> pa.Table:
    """Return rows computed from *df*."""
    return df.set_column(1, "s", pc.binary_join_element_wise(df["s"], pa.scalar("!"), ""))


def in_transaction(stage: Callable[[Any, pa.Table], Any]) -> Call:
    def call(table: Any, df: pa.Table) -> None:
        with table.transaction() as tx:
            stage(tx, df)

    return call


def delete_and_append(tx: Any, df: pa.Table) -> None:
    tx.delete("id > 0")
    tx.append(marked(df))


def append_and_delete(tx: Any, df: pa.Table) -> None:
    tx.append(marked(df))
    tx.delete("s in ('1', '2', '3')")


COMPUTED: dict[str, Call] = {
    "overwrite": lambda table, df: table.overwrite(marked(df)),
    "overwrite by filter": lambda table, df: table.overwrite(marked(df), "id > 0"),
    "overwrite in a transaction": in_transaction(lambda tx, df: tx.overwrite(marked(df))),
    "overwrite behind a property": in_transaction(
        lambda tx, df: (tx.set_properties(a="1"), tx.overwrite(marked(df), "id > 0"))
    ),
    "delete and append in a transaction": in_transaction(delete_and_append),
    "declared": in_transaction(lambda tx, df: (tx.depends_on("id > 0"), tx.append(ids(df.num_rows)))),
    "append that says so": in_transaction(lambda tx, df: tx.append(marked(df), reads="id > 0")),
}

CHANGES: dict[str, Callable[[Any], None]] = {
    "append": lambda table: table.append(ids(9)),
    "delete of a row": lambda table: table.delete("id = 1"),
    "delete of all": lambda table: table.delete("id > 0"),
    "overwrite": lambda table: table.overwrite(frame((1, "theirs"), (2, "theirs"), (3, "theirs"))),
    "update": lambda table: table.upsert(frame((2, "theirs")), ["id"]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("call", COMPUTED)
def test_rows_that_were_computed_from_old_ones_are_refused(made: Kit, call: str, change: str) -> None:
    """Otherwise what another client committed would be undone."""
    table = made.table(ids(1, 2, 3))
    stale = made.again(table)
    read = stale.scan().to_arrow()
    CHANGES[change](made.again(table))
    theirs = rows(made.again(table))
    with pytest.raises(StaleRead) as refused:
        COMPUTED[call](stale, read)
    assert isinstance(refused.value, CommitConflict)
    assert isinstance(refused.value, ValidationException), "what PyIceberg's callers handle"
    assert rows(made.again(table)) == theirs
    assert names(orphans(made.again(table))) == []
    assert made.held() == []


@pytest.mark.parametrize("call", ["overwrite", "overwrite by filter"])
def test_the_same_rows_are_refused_again(made: Kit, call: str) -> None:
    """A program that repeats whatever failed must not succeed with what it read long ago."""
    table = made.table(ids(1, 2, 3))
    stale = made.again(table)
    read = stale.scan().to_arrow()
    made.again(table).append(ids(9))
    for _ in range(2):
        with pytest.raises(StaleRead):
            COMPUTED[call](stale, read)
    stale.refresh()
    COMPUTED[call](stale, stale.scan().to_arrow())
    assert rows(made.again(table)) == [(1, "1!"), (2, "2!"), (3, "3!"), (9, "9!")]


def test_rows_that_do_not_depend_on_the_table_replace_what_is_there_by_then(made: Kit) -> None:
    table = made.table(ids(1, 2, 3))
    stale = made.again(table)
    made.again(table).append(ids(9))
    stale.overwrite(ids(5), reads=NOTHING)
    assert row_ids(made.again(table)) == [5]


def test_what_the_rows_depend_on_can_be_more_than_what_they_replace(made: Kit) -> None:
    table = made.table(ids(1, 2, 3))
    stale = made.again(table)
    made.again(table).append(ids(9))
    with pytest.raises(StaleRead):
        stale.overwrite(ids(1), "id = 1", reads="id >= 1")
    stale.overwrite(ids(1), "id = 1")
    assert row_ids(made.again(table)) == [1, 2, 3, 9]


def test_what_was_read_may_be_older_than_the_table_object(made: Kit) -> None:
    table = made.table(ids(1, 2, 3))
    read_at = table.current_snapshot().snapshot_id
    table.append(ids(9))
    with pytest.raises(StaleRead):
        table.overwrite(ids(5), read_at=read_at)
    with pytest.raises(StaleRead):
        table.overwrite(ids(5), read_at=NO_SNAPSHOT)
    table.overwrite(ids(5), read_at=table.current_snapshot().snapshot_id)
    assert row_ids(made.again(table)) == [5]


def test_a_snapshot_that_is_gone_is_no_proof(made: Kit) -> None:
    """What came behind it can't be known any more."""
    table = made.table(ids(1), ids(2))
    first, second = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.append(ids(3))
    table.maintenance.expire_snapshots().by_ids([second]).commit()
    with pytest.raises(StaleRead, match="history"):
        table.overwrite(ids(5), "id = 7", read_at=first)


def test_rows_that_came_to_an_empty_table_are_not_replaced_once_their_snapshot_is_gone(made: Kit) -> None:
    """PyIceberg makes the oldest snapshot that is left look like the first one ever."""
    table = made.table()
    stale = made.again(table)
    table.append(ids(3))
    table.append(ids(4))
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    with pytest.raises(StaleRead, match="since the branch was empty"):
        stale.overwrite(ids(5), "id = 3")
    assert row_ids(made.again(table)) == [3, 4]
    stale.overwrite(ids(6), "id = 7")
    assert row_ids(made.again(table)) == [3, 4, 6]


def test_a_compaction_is_no_change(made: Kit) -> None:
    table = made.table(ids(1), ids(2), ids(3))
    stale = made.again(table)
    read = stale.scan().to_arrow()
    made.again(table).compact()
    stale.overwrite(marked(read))
    assert rows(made.again(table)) == [(1, "1!"), (2, "2!"), (3, "3!")]


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_change_in_another_partition_is_no_change(made: Kit, dynamic: bool) -> None:
    table = made.table(frame((1, "a"), (2, "b")), partition_spec=BY_S)
    stale = made.again(table)
    made.again(table).append(frame((9, "b")))
    if dynamic:
        stale.dynamic_partition_overwrite(frame((5, "a")))
    else:
        stale.overwrite(frame((5, "a")), parse("s = 'a'"))
    assert row_ids(made.again(table)) == [2, 5, 9]


def test_a_dynamic_overwrite_depends_on_its_partitions(made: Kit) -> None:
    table = made.table(frame((1, "a"), (2, "b"), (3, None)), partition_spec=BY_S)
    for value in ("a", None):
        stale = made.again(table)
        made.again(table).append(frame((9, value)))
        with pytest.raises(StaleRead):
            stale.dynamic_partition_overwrite(frame((5, value)))
        stale.dynamic_partition_overwrite(frame((5, value)), reads=NOTHING)
    assert row_ids(made.again(table)) == [2, 5, 5]


def test_snapshot_isolation_keeps_what_was_added_and_refuses_what_was_removed(made: Kit) -> None:
    """Iceberg's meaning of ``write.update.isolation-level``."""
    table = made.table(ids(1, 2, 3), properties={"write.update.isolation-level": "snapshot"})
    stale = made.again(table)
    made.again(table).append(ids(9))
    stale.overwrite(ids(5), "id > 0")
    assert row_ids(made.again(table)) == [5, 9]
    stale = made.again(table)
    made.again(table).delete("id = 9")
    with pytest.raises(StaleRead):
        stale.overwrite(ids(6), "id > 0")
    assert row_ids(made.again(table)) == [5]


REPLACES: dict[str, Callable[[Any, pa.Table, int], Any]] = {
    "overwrite": lambda table, df, read_at: table.overwrite(df, read_at=read_at),
    "dynamic": lambda table, df, read_at: table.dynamic_partition_overwrite(df, read_at=read_at),
    "files": lambda table, df, read_at: table.commit_files(
        file_of(table, df), mode="overwrite", read_at=read_at, request_id="monday"
    ),
    "dynamic files": lambda table, df, read_at: table.commit_files(file_of(table, df), mode="dynamic", read_at=read_at),
}


def file_of(table: Any, df: pa.Table) -> list[DataFile]:
    return list(data_files(table.metadata, df, table.io))


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@pytest.mark.parametrize("is_stale", [False, True], ids=["an object that shows the addition", "a stale object"])
@pytest.mark.parametrize("first", [[], [(1, "a")]], ids=["empty", "a row"])
@pytest.mark.parametrize("given", [[], [(7, "a")]], ids=["by nothing", "by a row"])
@pytest.mark.parametrize("call", REPLACES)
def test_under_snapshot_no_row_is_replaced_that_was_added_since_the_read(
    made: Kit, call: str, given: list[Any], first: list[Any], is_stale: bool
) -> None:
    """Whatever the table object shows: the caller says when it has read."""
    levels = {"write.update.isolation-level": "snapshot"}
    table = made.table(*([frame(*first)] if first else []), properties=levels, partition_spec=BY_S)
    read_at = table.current_snapshot().snapshot_id if first else NO_SNAPSHOT
    stale = made.again(table)
    made.again(table).append(frame((2, "a")))
    before = rows(made.again(table))
    try:
        REPLACES[call](stale if is_stale else made.again(table), frame(*given), read_at)
    except StaleRead:
        assert before == rows(made.again(table))
        assert not (is_stale and first and call in ("overwrite", "files")), "what is planned on the read lands"
        return
    replaced = call in ("overwrite", "files") or given
    assert sorted([*([] if replaced else first), (2, "a"), *given]) == rows(made.again(table))


BY_PREDICATE: dict[str, Callable[[Any], None]] = {
    "delete": lambda table: table.delete("id >= 1"),
    "overwrite": lambda table: table.overwrite(ids(1), reads=NOTHING),
    "dynamic overwrite": lambda table: table.dynamic_partition_overwrite(frame((1, "a")), reads=NOTHING),
}


@pytest.mark.parametrize("level", ["serializable", "snapshot"])
@pytest.mark.parametrize("call", BY_PREDICATE.values(), ids=BY_PREDICATE)
def test_what_names_rows_by_a_predicate_takes_those_that_were_added_meanwhile(
    made: Kit, call: Callable[[Any], None], level: str
) -> None:
    """Under each level: rows are stale only if they were computed from older ones."""
    levels = {f"write.{operation}.isolation-level": level for operation in ("delete", "update")}
    table = made.table(frame((1, "a")), properties=levels, partition_spec=BY_S)
    stale = made.again(table)
    made.again(table).append(frame((2, "a")))
    call(stale)
    assert 2 not in row_ids(made.again(table))


def test_an_update_reads_again_and_an_upsert_matches_again(made: Kit) -> None:
    """They name rows by a predicate, so they are planned again on whatever is there."""
    table = made.table(ids(1, 2, 3))
    updates, upserts = made.again(table), made.again(table)
    made.again(table).append(ids(9))
    with updates.transaction() as tx:
        tx.update_rows(parse("id > 2"), marked)
    upserts.upsert(frame((9, "new"), (10, "new")), ["id"])
    assert rows(made.again(table)) == [(1, "1"), (10, "new"), (2, "2"), (3, "3!"), (9, "new")]


def test_a_plan_is_carried_out_on_the_table_as_it_is_when_it_lands(made: Kit) -> None:
    table = made.table(ids(1, 2))
    tx = made.again(table).transaction()
    tx.perform(lambda tx: tx.overwrite(marked(tx.scan().to_arrow())))
    made.again(table).append(ids(3))
    tx.commit_transaction()
    assert rows(made.again(table)) == [(1, "1!"), (2, "2!"), (3, "3!")]
    assert names(orphans(made.again(table))) == []


NOTHING_YET: dict[str, Callable[[Any], Any]] = {
    "delete": lambda tx: tx.delete("id = 7"),
    "update": lambda tx: tx.update_rows(parse("id = 7"), lambda df: frame((7, "updated"))),
    "upsert": lambda tx: tx.upsert(frame((7, "updated")), ["id"], when_not_matched_insert_all=False),
    "plan": lambda tx: tx.perform(lambda tx: tx.delete("id = 7") if tx.scan("id = 7").count() else None),
}


@pytest.mark.parametrize("call", NOTHING_YET)
def test_a_stale_call_that_finds_nothing_looks_at_the_table_as_it_is(made: Kit, call: str) -> None:
    table = made.table(ids(1))
    stale = made.again(table)
    tx = stale.transaction()
    NOTHING_YET[call](tx)
    made.again(table).append(ids(7))
    tx.commit_transaction()
    expected = [(1, "1"), (7, "updated")] if call in ("update", "upsert") else [(1, "1")]
    assert rows(made.again(table)) == expected
    assert rows(stale) == expected, "the table object shows what the commit left"


def test_a_stale_call_that_finds_nothing_in_a_new_table_of_the_same_name_is_refused() -> None:
    with kit("memory", None, **{"operation-locks": "off"}) as made:
        table = made.table(ids(1))
        stale = made.again(table).transaction()
        stale.delete("id = 7")
        made.catalog.drop_table(table.name())
        made.catalog.create_table(table.name(), SCHEMA).append(ids(7))
        with pytest.raises(CommitConflict, match="created again"):
            stale.commit_transaction()
        assert row_ids(made.again(table)) == [7]


# Columns, specs and orders.


def test_a_column_that_a_stale_handle_adds_is_the_one_that_it_meant(made: Kit) -> None:
    """The schema's id is what it was, and the schema is not: its next id is taken by what was dropped."""
    table = made.table(ids(1))
    stale = made.again(table)
    with table.update_schema() as changes:
        changes.add_column("dropped", StringType())
    with table.update_schema() as changes:
        changes.delete_column("dropped")
    with stale.update_schema() as changes:
        changes.add_column("wanted", LongType())
    assert [field.name for field in made.again(table).schema().fields] == ["id", "s", "wanted"]


def test_a_name_that_a_stale_handle_gives_is_the_one_that_it_meant(made: Kit) -> None:
    table = made.table(ids(1))
    stale = made.again(table)
    for old, new in (("s", "t"), ("t", "s")):
        with table.update_schema() as changes:
            changes.rename_column(old, new)
    with stale.update_schema() as changes:
        changes.rename_column("s", "mine")
    assert [field.name for field in made.again(table).schema().fields] == ["id", "mine"]


def test_a_partition_field_that_a_stale_handle_adds_is_the_one_that_it_meant(made: Kit) -> None:
    table = made.table(ids(1))
    stale = made.again(table)
    with table.update_spec() as changes:
        changes.add_identity("s")
    with table.update_spec() as changes:
        changes.remove_field("s")
    with stale.update_spec() as changes:
        changes.add_identity("id")
    assert [field.name for field in made.again(table).spec().fields if field.transform == IdentityTransform()] == ["id"]


def test_a_sort_order_that_a_stale_handle_sets_is_the_one_that_it_meant(made: Kit) -> None:
    table = made.table(ids(1))
    stale = made.again(table)
    with table.update_sort_order() as order:
        order.desc("s", IdentityTransform())
    table.update_sort_order().commit()
    with stale.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    assert [field.source_id for field in made.again(table).sort_order().fields] == [1]


@pytest.mark.parametrize("call", ["update", "upsert", "overwrite"])
@pytest.mark.parametrize("branch", ["main", "dev"])
def test_rows_are_read_with_the_columns_that_the_table_has_now(made: Kit, call: str, branch: str) -> None:
    """Two columns have swapped their names since the last snapshot was written."""
    table = made.catalog.create_table(
        made.identifier(),
        Schema(*SCHEMA.fields, NestedField(3, "t", StringType())),
    )
    table.append(pa.table({"id": [1, 2], "s": ["s", "s"], "t": ["t", "t"]}))
    if branch != "main":
        table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, branch).commit()
    with table.transaction() as tx:
        for old, new in (("s", "tmp"), ("t", "s"), ("tmp", "t")):
            with tx.update_schema() as changes:
                changes.rename_column(old, new)
        with tx.update_schema() as changes:
            changes.add_column("added", LongType())
    with table.transaction() as tx:
        if call == "update":
            tx.update_rows(parse("id = 1"), lambda df: df.set_column(0, "id", pa.array([7])), branch=branch)
        elif call == "overwrite":
            tx.overwrite(pa.table({"id": [7], "t": ["s"], "s": ["t"]}), parse("id = 1"), branch=branch)
        else:
            same = pa.table({"id": [2], "t": ["s"], "s": ["t"], "added": pa.array([None], pa.int64())})
            assert tx.upsert(same, ["id"], branch=branch).rows_updated == 0, "nothing differs"
            tx.upsert(pa.table({"id": [1], "t": ["s"], "s": ["x"], "added": [5]}), ["id"], branch=branch)
    found = made.again(table).transaction().scan(branch=branch).to_arrow().to_pylist()
    one = {"id": 7, "t": "s", "s": "t", "added": None}
    if call == "upsert":
        one = {"id": 1, "t": "s", "s": "x", "added": 5}
    assert sorted(found, key=str) == sorted([one, {"id": 2, "t": "s", "s": "t", "added": None}], key=str)


def test_a_name_that_means_another_column_now_is_refused(made: Kit) -> None:
    """The caller named what the table object showed it."""
    table = made.catalog.create_table(made.identifier(), Schema(*SCHEMA.fields, NestedField(3, "t", StringType())))
    table.append(pa.table({"id": [1], "s": ["s"], "t": ["t"]}))
    stale = [made.again(table) for _ in range(4)]
    with table.transaction() as tx:
        for old, new in (("s", "tmp"), ("t", "s"), ("tmp", "t")):
            with tx.update_schema() as changes:
                changes.rename_column(old, new)
    before = rows(made.again(table))
    with pytest.raises(CommitConflict):
        stale[0].delete(parse("s = 't'"))
    with pytest.raises(CommitConflict):
        stale[1].overwrite(pa.table({"id": [1], "s": ["x"], "t": ["t"]}))
    with pytest.raises(CommitConflict):
        stale[2].upsert(pa.table({"id": [1], "s": ["x"], "t": ["t"]}), ["id"])
    with pytest.raises(CommitConflict), stale[3].transaction() as tx:
        tx.update_rows(parse("s = 't'"), lambda df: df)
    assert rows(made.again(table)) == before
    assert made.held() == []


Change = Callable[[Any], Any]
"""Makes a change by a table, or by a transaction."""


def schema(change: Change) -> Change:
    def make(target: Any) -> None:
        with target.update_schema(allow_incompatible_changes=True) as changes:
            change(changes)

    return make


def spec(change: Change) -> Change:
    def make(target: Any) -> None:
        with target.update_spec() as changes:
            change(changes)

    return make


def order(change: Change) -> Change:
    def make(target: Any) -> None:
        with target.update_sort_order() as changes:
            change(changes)

    return make


def properties(change: Change) -> Change:
    def make(target: Any) -> None:
        with target.transaction() if hasattr(target, "transaction") else nullcontext(target) as tx:
            change(tx)

    return make


def column_names(table: Any) -> list[str]:
    return [field.name for field in table.schema().fields]


def swap(table: Any, one: str, other: str) -> None:
    with table.transaction() as tx:
        for old, new in ((one, "tmp"), (other, one), ("tmp", other)):
            with tx.update_schema() as changes:
                changes.rename_column(old, new)


def state(table: Any) -> Any:
    """Return what the table is, but for the ids of what it was."""
    metadata = table.metadata
    return metadata.schema().fields, metadata.spec().fields, metadata.sort_order().fields, metadata.properties


SAME: dict[str, tuple[Change, Change, Callable[[Any], bool]]] = {
    "move": (
        schema(lambda changes: changes.move_first("id")),
        schema(lambda changes: changes.move_first("s")),
        lambda table: column_names(table)[0] == "id",
    ),
    "rename": (
        schema(lambda changes: changes.rename_column("s", "s")),
        schema(lambda changes: changes.rename_column("s", "t")),
        lambda table: "s" in column_names(table),
    ),
    "optional": (
        schema(lambda changes: changes.update_column("s", required=False)),
        schema(lambda changes: changes.update_column("s", required=True)),
        lambda table: not table.schema().find_field("s").required,
    ),
    "documentation": (
        schema(lambda changes: changes.update_column("s", doc="mine")),
        schema(lambda changes: changes.update_column("s", doc="theirs")),
        lambda table: table.schema().find_field("s").doc == "mine",
    ),
    "identifier": (
        schema(lambda changes: changes.set_identifier_fields()),
        schema(lambda changes: (changes.update_column("id", required=True), changes.set_identifier_fields("id"))),
        lambda table: not table.schema().identifier_field_ids,
    ),
    "union": (
        schema(lambda changes: changes.union_by_name(SCHEMA)),
        schema(lambda changes: changes.rename_column("s", "t")),
        lambda table: "s" in column_names(table),
    ),
    "partition field": (
        spec(lambda changes: changes.remove_field("s").add_identity("s")),
        spec(lambda changes: changes.remove_field("s")),
        lambda table: table.spec().fields[:1] == BY_S.fields,
    ),
    "sort order": (
        order(lambda changes: changes.asc("id", IdentityTransform())),
        order(lambda changes: changes.desc("id", IdentityTransform())),
        lambda table: str(table.sort_order().fields[0].direction) == "ASC",
    ),
    "property": (
        properties(lambda tx: tx.set_properties(p="mine")),
        properties(lambda tx: tx.set_properties(p="theirs")),
        lambda table: table.properties["p"] == "mine",
    ),
}
"""What changes nothing, what another client changes meanwhile, and whether the first one holds."""


def unchanged_by_same(made: Kit) -> Any:
    table = made.table(
        ids(1),
        partition_spec=BY_S,
        sort_order=SortOrder(SortField(1, IdentityTransform())),
        properties={"p": "mine"},
        schema=Schema(SCHEMA.fields[0], NestedField(2, "s", StringType(), doc="mine")),
    )
    for change, _, holds in SAME.values():
        change(made.again(table))
        assert holds(made.again(table))
    return table


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("change", SAME)
def test_a_change_of_nothing_holds_on_the_table_as_it_is_or_is_refused(made: Kit, change: str, staged: bool) -> None:
    same, theirs, holds = SAME[change]
    table = unchanged_by_same(made)
    stale = made.again(table)
    if staged:
        tx = stale.transaction()
        same(tx)
    # Not by our clients: they wait for the lock that the transaction has.
    theirs(made.stock.load_table(table.name()))
    before = state(made.again(table))
    try:
        if staged:
            tx.commit_transaction()
        else:
            same(stale)
    except CommitConflict:
        assert state(made.again(table)) == before
    else:
        assert holds(made.again(table)), "it was acknowledged"
        assert state(stale) == state(made.again(table))
    assert made.held() == []


def test_a_column_is_the_first_one_when_a_stale_handle_moved_it_there(made: Kit) -> None:
    table = made.table(ids(1))
    stale = made.again(table)
    with table.update_schema() as changes:
        changes.move_first("s")
    with stale.update_schema() as changes:
        changes.move_first("id")
    assert column_names(made.again(table)) == column_names(stale) == ["id", "s"]


def test_a_reference_of_a_stale_handle_is_where_it_was_put_or_is_refused(made: Kit) -> None:
    table = made.table(ids(1))
    first = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(first, "x").commit()
    stale = [made.again(table) for _ in range(2)]
    table.append(ids(2))
    table.manage_snapshots().remove_tag("x").commit()
    with pytest.raises(CommitConflict):
        stale[0].manage_snapshots().create_tag(first, "x").commit()
    with pytest.raises(CommitConflict):
        stale[1].manage_snapshots().set_current_snapshot(first).commit()
    assert row_ids(made.again(table)) == [1, 2]


NAMING: dict[str, Change] = {
    "require": schema(lambda changes: changes.update_column("s", required=True)),
    "drop": schema(lambda changes: changes.delete_column("s")),
    "rename": schema(lambda changes: changes.rename_column("s", "mine")),
    "move": schema(lambda changes: changes.move_first("s")),
    "document": schema(lambda changes: changes.update_column("s", doc="mine")),
    "identify": schema(lambda changes: (changes.update_column("s", required=True), changes.set_identifier_fields("s"))),
    "same": schema(lambda changes: changes.update_column("s", required=False)),
    "partition by": spec(lambda changes: changes.add_identity("s")),
    "sort by": order(lambda changes: changes.asc("s", IdentityTransform())),
}


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("change", NAMING)
def test_a_change_of_a_column_that_has_another_name_now_is_refused(made: Kit, change: str, staged: bool) -> None:
    table = made.catalog.create_table(made.identifier(), Schema(*SCHEMA.fields, NestedField(3, "t", StringType())))
    stale = made.again(table)
    swap(table, "s", "t")
    before = state(made.again(table))
    with pytest.raises(CommitConflict, match="'s' was replaced by another column"):
        if staged:
            with stale.transaction() as tx:
                tx.set_properties(a="1")
                NAMING[change](tx)
        else:
            NAMING[change](stale)
    assert state(made.again(table)) == before
    assert made.held() == []


def test_a_builder_keeps_to_the_columns_that_its_caller_saw_when_the_table_is_refreshed(made: Kit) -> None:
    table = made.catalog.create_table(made.identifier(), Schema(*SCHEMA.fields, NestedField(3, "t", StringType())))
    stale, moves = made.again(table), made.again(table)
    dropping = stale.update_schema().delete_column("s")
    moving = moves.update_schema().move_first("id")
    with table.update_schema() as changes:
        changes.move_first("t")
    moves.refresh()
    moving.commit()
    assert column_names(made.again(table)) == ["id", "t", "s"]
    table.refresh()
    swap(table, "s", "t")
    stale.refresh()
    with pytest.raises(CommitConflict):
        dropping.commit()
    assert len(made.again(table).schema().fields) == 3


BOTH: dict[str, tuple[Change, Change]] = {
    "column": (
        schema(lambda changes: changes.update_column("s", doc="mine")),
        schema(lambda changes: changes.update_column("s", required=True)),
    ),
    "dropped column": (
        schema(lambda changes: changes.delete_column("s")),
        schema(lambda changes: changes.update_column("s", doc="theirs")),
    ),
    "partition field": (
        spec(lambda changes: changes.add_field("id", BucketTransform(4), "p")),
        spec(lambda changes: changes.add_field("id", BucketTransform(8), "p")),
    ),
    "sort order": (
        order(lambda changes: changes.asc("s", IdentityTransform())),
        order(lambda changes: changes.desc("s", IdentityTransform())),
    ),
    "property": (
        properties(lambda tx: tx.set_properties(p="mine")),
        properties(lambda tx: tx.set_properties(p="theirs")),
    ),
    "removed property": (
        properties(lambda tx: tx.remove_properties("p")),
        properties(lambda tx: tx.set_properties(p="theirs")),
    ),
}


@pytest.mark.parametrize("behind_rows", [False, True])
@pytest.mark.parametrize("change", BOTH)
def test_what_another_client_has_changed_is_not_changed_by_a_stale_handle(
    made: Kit, change: str, behind_rows: bool
) -> None:
    """A lock that is granted meanwhile makes no difference: the caller saw the table before."""
    mine, theirs = BOTH[change]
    table = made.table(ids(1), properties={"p": "old"})
    stale = made.again(table)
    theirs(table)
    before = state(made.again(table))
    # Behind rows, where a lock has shown it the head, PyIceberg may refuse a name that is taken by then.
    with pytest.raises((CommitConflict, ValueError) if behind_rows else CommitConflict), stale.transaction() as tx:
        if behind_rows:
            tx.delete("id = 7")
        mine(tx)
    assert state(made.again(table)) == before
    assert made.held() == []


# Errors, and what they leave.


def test_a_column_that_partitions_or_orders_need_is_kept_with_pyicebergs_error(made: Kit) -> None:
    """Nothing else is in the way, so the error does not say to try it once more."""
    partitioned = made.table(frame((1, "a")), partition_spec=BY_S)
    ordered = made.table(ids(1), sort_order=SortOrder(SortField(2, IdentityTransform())))
    for table in (partitioned, ordered):
        with pytest.raises(ValidationError, match="source column"), table.update_schema() as changes:
            changes.delete_column("s")
        with (
            pytest.raises(ValidationError, match="source column"),
            table.transaction() as tx,
            tx.update_schema() as changes,
        ):
            changes.delete_column("s")
        assert names(orphans(made.again(table))) == []
    assert made.held() == []


def test_a_branch_needs_a_snapshot(made: Kit) -> None:
    """As with PyIceberg."""
    table = made.table()
    with pytest.raises(CommitFailedException, match="main"):
        table.append(ids(1), branch="dev")
    assert made.again(table).refs() == {}
    assert names(orphans(made.again(table))) == []


def test_no_lock_stays_while_a_caller_keeps_the_error(made: Kit) -> None:
    table = made.table(ids(1))
    tagged, changed, set_up = (made.again(table) for _ in range(3))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "x").commit()
    kept = []
    refused: list[Callable[[], None]] = [
        lambda: tagged.manage_snapshots().create_tag(tagged.current_snapshot().snapshot_id, "x").commit(),
        lambda: changed.update_schema().add_column("s", LongType()).commit(),
        lambda: set_up.update_spec().add_identity("nothing").commit(),
    ]
    for call in refused:
        with pytest.raises((CommitConflict, ValueError)) as error:
            call()
        kept.append(error)
        assert made.held() == []
    made.catalog.drop_table(table.name())
    made.catalog.create_table(table.name(), SCHEMA)
    with pytest.raises(CommitConflict) as error:
        changed.update_schema().add_column("new", LongType()).commit()
    assert made.held() == []
    tx = changed.transaction()
    with pytest.raises(CommitConflict) as error:
        tx.delete("id = 1")
        tx.commit_transaction()
    assert made.held() == []
    made.again(table).append(ids(1))


def test_a_tag_on_a_snapshot_that_has_expired_meanwhile_is_a_conflict(made: Kit) -> None:
    table = made.table(ids(1), ids(2))
    stale, first = made.again(table), table.snapshots()[0].snapshot_id
    table.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(CommitConflict, match=str(first)):
        stale.manage_snapshots().create_tag(first, "kept").commit()


def test_a_transaction_follows_a_refresh_of_its_table(made: Kit) -> None:
    """As PyIceberg's do: they share the table object."""
    table = made.table(ids(1))
    stale = made.again(table)
    with table.update_schema() as changes:
        changes.add_column("x", LongType())
    with stale.transaction() as tx:
        tx.set_properties(a="1")
        stale.refresh()
        tx.append(pa.table({"id": [2], "s": ["2"], "x": [2]}))
    assert made.again(table).properties["a"] == "1"
    assert row_ids(made.again(table)) == [1, 2]


def test_files_of_a_call_that_fails_before_its_attempt_are_deleted(made: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made.table(ids(1))
    monkeypatch.setattr("commit_coord.iceberg.manifests.write_added", _no_space)
    with pytest.raises(OSError, match="no space"):
        table.append(ids(2))
    assert names(orphans(made.again(table))) == []
    monkeypatch.undo()
    table.append(ids(2))
    assert row_ids(made.again(table)) == [1, 2]


def _no_space(*args: Any, **kwargs: Any) -> Any:
    raise OSError("no space")


@pytest.mark.parametrize("value", [b"x", True, date(2020, 1, 1)])
def test_a_filter_that_a_column_can_not_meet_is_refused_with_words(made: Kit, value: Any) -> None:
    table = made.table(ids(1, 2), partition_spec=BY_S)
    calls: list[Callable[[Any, Any], None]] = [
        lambda table, where: table.delete(where),
        lambda table, where: table.overwrite(ids(1), where),
        in_transaction(lambda tx, where: tx.update_rows(where, lambda df: df)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="fit|convert"):
            call(made.again(table), EqualTo(term="id", value=value))
    assert row_ids(made.again(table)) == [1, 2]
    assert names(orphans(made.again(table))) == []
    assert made.held() == []


def test_reads_of_a_column_that_never_was_are_refused(made: Kit) -> None:
    """That they have changed could never be found. Of a column that was renamed it can, so that is looked at."""
    table = made.table(ids(1))
    for reads in ("nosuch = 1", parse("nosuch = 1")):
        with pytest.raises(ValueError, match="nosuch"):
            table.overwrite(ids(9), "id = 1", reads=reads)
        with pytest.raises(CommitFailedException, match="nosuch"):
            table.commit_files([], mode="overwrite", reads=reads)
        with table.transaction() as tx, pytest.raises(ValueError, match="nosuch"):
            tx.depends_on(reads)
    assert [1] == row_ids(made.again(table))
    old = made.again(table)
    with table.update_schema() as changes:
        changes.rename_column("s", "text")
    again = made.again(table)
    again.overwrite(frame((2, "2")).rename_columns(["id", "text"]), "id = 1", reads="s = '1'")
    again.append(frame((3, "3")).rename_columns(["id", "text"]))
    with pytest.raises(CommitConflict):
        old.overwrite(frame((4, "4")), "id = 1", reads="s = '1'")
    assert [2, 3] == row_ids(made.again(table))


def test_a_time_that_no_clock_shows_matches_nothing() -> None:
    """PyIceberg compares it; the name of its partition, which is locked, is not known."""
    schema = Schema(NestedField(1, "t", TimeType()))
    with kit("memory") as made:
        table = made.table(
            schema=schema, partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "t"))
        )
        table.append(pa.table({"t": pa.array([1], pa.time64("us"))}))
        table.delete(EqualTo(term="t", value=2**62))
        assert made.again(table).scan().to_arrow().num_rows == 1


def test_an_isolation_level_is_read_as_java_reads_it() -> None:
    with kit("memory") as made:
        table = made.table(ids(1), properties={"write.update.isolation-level": "SNAPSHOT"})
        stale = made.again(table)
        made.again(table).append(ids(9))
        stale.overwrite(ids(5))
        assert row_ids(made.again(table)) == [5, 9]
        with table.transaction() as tx:
            tx.set_properties({"write.update.isolation-level": "none"})
        with pytest.raises(ConfigError, match="serializable"):
            table.overwrite(ids(5))


def test_nulls_do_not_land_in_a_column_that_became_required(made: Kit) -> None:
    table = made.table(ids(1))
    stages: list[Callable[[Any], Any]] = [
        lambda tx: tx.append(frame((2, None))),
        lambda tx: tx.overwrite(frame((2, None)), "id = 2", reads=NOTHING),
        lambda tx: tx.upsert(frame((2, None)), ["id"]),
    ]
    for stage in stages:
        tx = made.again(table).transaction()
        stage(tx)
        with made.again(table).update_schema(allow_incompatible_changes=True) as changes:
            changes.update_column("s", required=True)
        with pytest.raises(CommitConflict, match="required|does not fit"):
            tx.commit_transaction()
        assert rows(made.again(table)) == [(1, "1")]
        with made.again(table).update_schema() as changes:
            changes.update_column("s", required=False)


@pytest.mark.parametrize("call", ["update_rows", "upsert", "delete", "overwrite"])
def test_rows_without_null_land_in_a_column_that_became_required(made: Kit, call: str) -> None:
    table = made.table(ids(1, 2))
    new = pa.table([[1], ["new"]], pa.schema([("id", pa.int64()), pa.field("s", pa.string(), nullable=False)]))
    calls: dict[str, Callable[[Any], Any]] = {
        "update_rows": lambda tx: tx.update_rows(parse("id = 1"), lambda df: df),
        "upsert": lambda tx: tx.upsert(new, ["id"]),
        "delete": lambda tx: tx.delete("id = 1"),
        "overwrite": lambda tx: tx.overwrite(new, "id = 1", reads=NOTHING),
    }
    tx = made.again(table).transaction()
    calls[call](tx)
    with made.again(table).update_schema(allow_incompatible_changes=True) as changes:
        changes.update_column("s", required=True)
    tx.commit_transaction()
    ones = {"update_rows": [(1, "1")], "delete": []}.get(call, [(1, "new")])
    assert rows(made.again(table)) == [*ones, (2, "2")]


def test_a_delete_brings_no_null_into_a_column_that_became_required(made: Kit) -> None:
    table = made.table(ids(1), ids(2))
    tx = made.again(table).transaction()
    tx.delete("id = 1")
    with made.again(table).update_schema(allow_incompatible_changes=True) as changes:
        changes.update_column("s", required=True)
    tx.commit_transaction()
    assert rows(made.again(table)) == [(2, "2")]
