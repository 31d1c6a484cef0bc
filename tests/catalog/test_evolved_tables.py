"""Manifests of tables that change while they are written: each file under its own spec, each entry whole.

PyIceberg's own catalog reads what was committed, and partitions, counts and sequence numbers are computed again from
the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import RemovePartitionSpecsUpdate, RemoveSchemasUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, ListType, LongType, MapType, NestedField, StringType, StructType

from commit_coord.errors import CommitConflict, CommitNotApplied
from commit_coord.iceberg.partitions import partition_keys_of_rows
from commit_coord.iceberg.rebase import append_conflict, rebase
from commit_coord.iceberg.written import Written, digest, mark
from commit_coord.protocol.commit import NeedsReplan
from commit_coord.sql import Session
from commit_coord.table import rewrite_here
from commit_coord.table.data_files import data_files
from tests.catalog.kit import (
    NO_MATCH,
    SCHEMA,
    Kit,
    coordinated,
    files_in,
    frame,
    ids,
    local,
    of_version_three,
    orphans,
    row_ids,
    rows,
)

BY_BUCKET = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
MANY = range(20)


def written(table: Table, *numbers: int) -> list[DataFile]:
    """Return files of *table*, as it is shown, with these ids."""
    return list(_dataframe_to_data_files(table.metadata, ids(*numbers), table.io))


def evolve(table: Any) -> None:
    with table.update_spec() as update:
        update.remove_field("bucket")
        update.add_field("id", BucketTransform(8), "bucket8")


def found_by_id(table: Table, numbers: range = MANY) -> list[int]:
    return [table.scan(f"id == {number}").to_arrow().num_rows for number in numbers]


@pytest.mark.parametrize("mode, before", [("append", 1), ("overwrite", 0), ("dynamic", 0)])
def test_files_land_under_the_spec_that_they_were_written_with(memory: Kit, mode: Any, before: int) -> None:
    table = memory.table(ids(*MANY), partition_spec=BY_BUCKET)
    files = written(table, *MANY)
    evolve(memory.again(table))
    table.commit_files(files, mode=mode)
    for catalog in (memory.catalog, memory.stock):
        assert [1 + before] * len(MANY) == found_by_id(catalog.load_table(table.name()))
    check(memory.stock.load_table(table.name()))


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@pytest.mark.parametrize("mode", ["append", "overwrite", "dynamic"])
def test_files_land_under_their_spec_by_a_table_object_that_knows_a_later_one(memory: Kit, mode: Any) -> None:
    """As when one process writes the files and another one commits them."""
    table = memory.table(partition_spec=BY_BUCKET)
    files = written(table, *MANY)
    Written.of(table.metadata, files)
    evolve(table)
    memory.again(table).commit_files(files, mode=mode)
    assert [1] * len(MANY) == found_by_id(memory.stock.load_table(table.name()))
    check(memory.stock.load_table(table.name()))


def test_a_compaction_lands_under_the_spec_that_it_wrote_with(memory: Kit) -> None:
    table = memory.table(ids(*MANY), ids(*MANY), partition_spec=BY_BUCKET)

    def overtaken(table: Any, groups: Any) -> list[DataFile]:
        new = rewrite_here(table, groups)
        other = memory.stock.load_table(table.name())
        evolve(other)
        return new

    assert 8 == table.compact(rewrite=overtaken).before
    assert [2] * len(MANY) == found_by_id(memory.stock.load_table(table.name()))
    check(memory.stock.load_table(table.name()))


def forget_old_ids(memory: Kit, table: Any) -> None:
    """Remove the schemas and specs that *table* does not need any more: the next ones get their ids.

    By PyIceberg, as ours would keep the last of them.
    """
    now = memory.again(table).metadata
    schemas = [schema.schema_id for schema in now.schemas if schema.schema_id != now.current_schema_id]
    used = {manifest.partition_spec_id for snapshot in now.snapshots for manifest in snapshot.manifests(table.io)}
    specs = sorted(now.specs().keys() - used - {now.default_spec_id})
    removals = (RemoveSchemasUpdate(schema_ids=schemas), RemovePartitionSpecsUpdate(spec_ids=specs))
    memory.stock.commit_table(memory.stock.load_table(table.name()), (), removals)


PARTITIONS: dict[str, tuple[Any, ...]] = {
    "flat": (),
    "by 4 buckets": ("id", BucketTransform(4)),
    "by 8 buckets": ("id", BucketTransform(8)),
    "by text": ("s", IdentityTransform()),
}
COLUMNS: dict[str, Callable[[Any], None]] = {
    "with a column": lambda change: change.add_column("more", LongType()),
    "without it": lambda change: change.delete_column("more"),
    "text required": lambda change: change.update_column("s", required=True),
    "text optional": lambda change: change.update_column("s", required=False),
}
STATES = st.lists(st.sampled_from([*PARTITIONS, *COLUMNS]), max_size=3)


def become(memory: Kit, table: Any, state: str) -> None:
    """Change *table*, by another client, and forget what it was before."""
    table = memory.again(table)
    if state in PARTITIONS:
        with table.update_spec() as spec:
            for one in table.spec().fields:
                spec.remove_field(one.name)
            if PARTITIONS[state]:
                spec.add_field(*PARTITIONS[state], state.replace(" ", "_"))
    elif (state == "with a column") != ("more" in table.schema().column_names) or "text" in state:
        with table.update_schema(allow_incompatible_changes=True) as schema:
            COLUMNS[state](schema)
    forget_old_ids(memory, table)


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(before=STATES, meanwhile=STATES, how=st.sampled_from(["append", "overwrite", "dynamic", "compact"]))
@example(before=["by 4 buckets"], meanwhile=["flat", "by 8 buckets"], how="append")
@example(before=["by 4 buckets"], meanwhile=["flat", "by 8 buckets"], how="compact")
@example(before=["by text"], meanwhile=["flat", "by 8 buckets"], how="append")
@example(before=["by text"], meanwhile=["flat", "by 8 buckets"], how="dynamic")
@example(before=["with a column"], meanwhile=["without it", "text required"], how="append")
@example(before=["with a column"], meanwhile=["without it", "text required"], how="overwrite")
def test_rows_land_under_what_they_were_written_for_or_not_at_all_even_if_its_ids_are_reused(
    memory: Kit, before: list[str], meanwhile: list[str], how: Any
) -> None:
    """Old schemas and specs are removed all the time, so others get their ids."""
    table = memory.table(ids(*range(5)), ids(*range(5, 10)))
    for state in before:
        become(memory, table, state)
    old, new, table = set(range(10)), {*range(10, 20)}, memory.again(table)

    def overtaken(table: Any, groups: Any) -> list[DataFile]:
        made = rewrite_here(table, groups)
        for state in meanwhile:
            become(memory, table, state)
        return made

    allowed = {"append": [old | new], "overwrite": [new], "compact": [old]}
    try:
        if how == "compact":
            table.compact(rewrite=overtaken)
        else:
            null = None if table.schema().find_field("s").optional else "x"
            more = [*((number, str(number)) for number in range(10, 19)), (19, null)]
            files = list(data_files(table.metadata, frame(*more), table.io))
            kept = Written(table.schema(), {table.spec().spec_id: table.spec()})
            for state in meanwhile:
                become(memory, table, state)
            memory.again(table).commit_files(files, mode=how, written=kept)
    except CommitConflict:
        allowed = {how: [old]}
    seen = memory.stock.load_table(table.name())
    found = row_ids(seen)
    if how in allowed:
        assert set(found) in allowed[how]
    else:
        assert new <= set(found) <= old | new
    assert len(found) == len(set(found))
    assert all(found_by_id(seen, range(number, number + 1)) == [1] for number in found)
    if seen.schema().find_field("s").required:
        assert None not in seen.scan().to_arrow()["s"].to_pylist()
    check(seen)


def test_a_file_that_does_not_say_its_spec_is_of_the_only_one_that_its_writer_kept(memory: Kit) -> None:
    table = memory.table(ids(100))
    become(memory, table, "by 4 buckets")
    table = memory.again(table)
    kept = Written(table.schema(), table.specs())
    with pytest.raises(CommitNotApplied, match="does not say its partition spec, and 2 are given; set its spec_id"):
        memory.again(table).commit_files(list(data_files(table.metadata, ids(1), table.io)), written=kept)
    files = list(data_files(table.metadata, ids(*MANY), table.io))
    evolved = memory.again(table)
    with evolved.update_spec() as update:
        update.remove_field("by_4_buckets")
    memory.again(table).commit_files(files, written=replace(kept, specs={1: kept.specs[1]}))
    assert [1] * len(MANY) == found_by_id(memory.stock.load_table(table.name()))
    check(memory.stock.load_table(table.name()))


def test_a_snapshot_that_is_built_by_hand_is_made_again_for_the_spec_that_its_files_were_written_for(
    memory: Kit,
) -> None:
    table = memory.table(ids(100))
    become(memory, table, "by 4 buckets")
    table = memory.again(table)
    files = list(data_files(table.metadata, ids(*MANY), table.io))
    mark(table.metadata, files)
    with table.update_spec() as update:
        update.remove_field("by_4_buckets")
    transaction = table.transaction()
    with transaction.update_snapshot().overwrite() as producer:
        for data_file in files:
            producer.append_data_file(data_file)
    forget_old_ids(memory, table)
    become(memory, table, "by 8 buckets")
    with memory.again(table).update_spec() as update:
        update.remove_field("by_8_buckets")
    now = memory.again(table)
    assert [BucketTransform(8)] == [field.transform for field in now.specs()[1].fields]
    assert now.spec() == table.spec()
    with pytest.raises(CommitConflict, match="partition spec 1 of the written files is gone"):
        transaction.commit_transaction()
    assert [100] == row_ids(memory.again(table))


def test_a_dynamic_overwrite_replaces_rows_of_every_spec(memory: Kit) -> None:
    """Rows of a replaced partition that lie under an older spec, in one file with others."""
    table = memory.table(ids(1, 2, 3))
    with table.update_spec() as update:
        update.add_field("id", TruncateTransform(2), "pair")
    table.append(ids(4, 5))
    table.commit_files(written(table, 2), mode="dynamic")
    assert [1, 2, 4, 5] == row_ids(memory.again(table)), "2 and 3 are one partition"
    check(memory.stock.load_table(table.name()))


def test_files_of_a_spec_that_is_gone_are_refused(memory: Kit) -> None:
    table = memory.table(partition_spec=BY_BUCKET)
    files = written(table, 1)
    for data_file in files:
        data_file.spec_id = 7
    with pytest.raises(CommitConflict, match="partition spec 7 of the written files is gone"):
        table.commit_files(files)
    with pytest.raises(CommitConflict, match="schema 9 of the written files is gone"):
        table.commit_files(written(table, 1), schema_id=9)


def test_a_spec_or_schema_of_another_content_is_another_one(memory: Kit) -> None:
    """Their ids are given again when old ones were removed from the table."""
    table = memory.table(partition_spec=BY_BUCKET)
    files = written(table, 1)
    was = Written.of(table.metadata, files)
    other = PartitionSpec(PartitionField(1, 1000, BucketTransform(8), "bucket"))
    head = table.metadata.model_copy(update={"partition_specs": [other]})
    assert was.misfit(table.metadata) is None
    assert was.misfit(head) == "partition spec 0 of the written files is gone"
    assert digest(other) != digest(BY_BUCKET)
    before = table.metadata
    with table.transaction() as transaction:
        transaction.append(ids(1))
        append = transaction.committing.attempt().append
    assert append is not None
    assert append.specs == {0: digest(BY_BUCKET)}
    assert append_conflict(append, head) == "partition spec 0 of the written files is gone"
    assert append_conflict(replace(append, schema="another"), before) == "schema 0 of the written files is gone"


def test_a_dynamic_overwrite_replaces_a_partition_of_nan(memory: Kit) -> None:
    schema = Schema(NestedField(1, "f", DoubleType()), NestedField(2, "v", LongType()))
    table = memory.table(schema=schema, partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "f")))
    for value in (1, 2):
        flat = table.metadata.model_copy(update={"partition_specs": [PartitionSpec()]})
        df = pa.table({"f": [float("nan")], "v": [value]})
        (data_file,) = _dataframe_to_data_files(flat, df, table.io)
        data_file[3] = Record(float("nan"))
        table.commit_files([data_file], mode="dynamic")
    assert [2] == memory.stock.load_table(table.name()).scan().to_arrow()["v"].to_pylist()


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
def test_nulls_do_not_land_in_a_column_that_became_required(memory: Kit) -> None:
    """Neither as files whose schema the caller names, nor as files of this table object's schema."""
    table = memory.table()
    files = written(table, 1)
    schema_id = table.schema().schema_id
    with memory.again(table).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("s", required=True)
    for handle, said in ((table, None), (memory.again(table), schema_id)):
        for mode in ("append", "overwrite"):
            with pytest.raises(CommitConflict, match="the column 's' is required now"):
                handle.commit_files(files, mode=mode, schema_id=said)
    assert [] == row_ids(memory.again(table))


def test_nulls_do_not_land_in_a_column_that_the_same_transaction_made_required(memory: Kit) -> None:
    table = memory.table()
    files = written(table, 1)
    schema_id = table.schema().schema_id

    def commit() -> None:
        with table.transaction() as transaction:
            with transaction.update_schema(allow_incompatible_changes=True) as update:
                update.update_column("s", required=True)
            transaction.files.append(files, {}, "main", schema_id)

    with pytest.raises(CommitConflict, match="the column 's' is required now"):
        commit()
    assert [] == row_ids(memory.again(table))


@pytest.mark.parametrize(
    "kind",
    [
        StructType(NestedField(10, "a", LongType(), required=True)),
        MapType(10, StringType(), 11, LongType(), value_required=True),
        ListType(10, LongType(), element_required=True),
        StructType(NestedField(10, "a", StructType(NestedField(11, "b", LongType(), required=True)))),
    ],
    ids=["struct with a required child", "map", "list of required elements", "struct in a struct"],
)
def test_appends_go_on_after_an_optional_nested_column_was_added(memory: Kit, kind: Any) -> None:
    table = memory.table()
    one, other = memory.again(table), memory.again(table)
    with table.update_schema() as update:
        update.add_column("x", kind)
    one.append(ids(1))
    other.append(ids(2))
    assert [1, 2] == row_ids(memory.again(table))


def test_an_append_that_lacks_a_required_child_of_a_column_that_it_has_is_refused(memory: Kit) -> None:
    """The column is there and may hold a value; what it holds lacks the child."""
    schema = SCHEMA.model_copy(deep=True)
    table = memory.table(schema=schema)
    with table.update_schema() as update:
        update.add_column("x", StructType(NestedField(10, "a", LongType())))
    stale = memory.again(table)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column(("x", "b"), LongType(), required=True)
    row = pa.table({"id": [1], "s": ["1"], "x": pa.array([{"a": 1}], pa.struct([("a", pa.int64())]))})
    with pytest.raises(CommitConflict, match="'x.b' is required now"):
        stale.append(row)


@pytest.mark.parametrize("first", ["column", "partition"])
def test_a_column_and_a_partition_of_another_column_get_no_common_name_in_a_race(memory: Kit, first: str) -> None:
    """Each is right for the table that its client sees; Iceberg's JVM runtime opens no table that has both."""
    table: Any = memory.table(ids(1, 2))
    other: Any = memory.again(table)
    column = (table if first == "column" else other).update_schema().add_column("bucket", LongType())
    partition = (other if first == "column" else table).update_spec().add_field("id", BucketTransform(4), "bucket")
    late, early = (column, partition) if first == "column" else (partition, column)
    early.commit()

    with pytest.raises(CommitNotApplied, match="bucket"):
        late.commit()

    now = memory.again(table)
    assert [1, 2] == row_ids(now)
    assert (first != "column", first == "column") == ("bucket" in now.schema().column_names, bool(now.spec().fields))


def test_a_new_column_does_not_show_what_a_dropped_one_held(memory: Kit) -> None:
    """The schema is what the stale handle read, but its next column id was used meanwhile."""
    table = memory.table()
    stale = memory.again(table)
    with table.update_schema() as update:
        update.add_column("dropped", StringType())
    table.append(ids(1).append_column("dropped", pa.array(["secret"])))
    with table.update_schema() as update:
        update.delete_column("dropped")
    with stale.transaction() as transaction:
        with transaction.update_schema() as update:
            update.add_column("wanted", StringType())
        head = memory.again(table)
        asked = replace(
            transaction.committing.attempt(), reads_data=False
        )  # as a client asks that says no more than PyIceberg's
        found = rebase(asked, head.metadata, head.metadata_location, generation=None, now_ms=0, file_id="x")
        assert isinstance(found, NeedsReplan)
        assert "column ids" in found.reason
    assert ["id", "s", "wanted"] == memory.again(table).schema().column_names
    assert [(1, "1", None)] == rows(memory.again(table))


def test_the_time_of_an_expired_snapshot_has_no_other_one(memory: Kit) -> None:
    table = memory.table(ids(1), ids(2), ids(3))
    first, second, third = table.metadata.snapshots
    table.manage_snapshots().create_tag(first.snapshot_id, "kept").commit()
    table.maintenance.expire_snapshots().by_id(second.snapshot_id).commit()
    seen = memory.stock.load_table(table.name())
    assert [third.snapshot_id] == [entry.snapshot_id for entry in seen.history()]
    assert seen.snapshot_as_of_timestamp(third.timestamp_ms - 1) is None


# -- what can't be written ---------------------------------------------------------------------------------------


WRITERS: list[Callable[[Any], object]] = [
    lambda table: table.append(ids(2)),
    lambda table: table.overwrite(ids(2)),
    lambda table: table.delete("id == 1"),
    lambda table: table.upsert(ids(2), join_cols=["id"]),
    lambda table: table.compact(),
    lambda table: table.update_schema(),
    lambda table: table.transaction(),
]


@pytest.mark.parametrize("write", WRITERS, ids=["append", "overwrite", "delete", "upsert", "compact", "schema", "any"])
def test_a_table_that_can_only_be_read_is_refused_before_anything_is_done(
    memory: Kit, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = of_version_three(memory, memory.table(ids(1)))
    assert [1] == row_ids(table)
    before = files_in(table.location())
    monkeypatch.setattr(type(memory.catalog), "lock_change", lambda *_, **__: pytest.fail("a lock was taken"))
    with pytest.raises(CommitNotApplied, match="nothing was written: .* can be read, .*format_version='3'"):
        write(table)
    assert before == files_in(table.location())


@pytest.mark.parametrize(
    "statement", ["INSERT INTO {} VALUES (2, 'b')", "DELETE FROM {}", "ALTER TABLE {} CONCATENATE"]
)
def test_a_statement_on_a_table_that_can_only_be_read_takes_no_lock(
    memory: Kit, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = of_version_three(memory, memory.table(ids(1)))
    name = ".".join(table.name())
    monkeypatch.setattr(type(memory.catalog), "lock_change", lambda *_, **__: pytest.fail("a lock was taken"))
    session = Session(coordinated(memory.catalog))
    assert session.run(f"EXPLAIN LOCKS {statement.format(name)}").lines
    with pytest.raises(CommitNotApplied, match="nothing was written: .* can be read, .*format_version='3'"):
        session.run(statement.format(name))


@pytest.mark.parametrize("error", [ValueError("disk"), KeyboardInterrupt()])
def test_a_commit_that_fails_before_it_is_sent_leaves_no_file(
    memory: Kit, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory.table(ids(1))

    def failing(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("commit_coord.table.append.digest", failing)
    with pytest.raises(type(error)):
        table.append(ids(2))
    assert set() == orphans(memory.again(table))
    assert [1] == row_ids(memory.again(table))


# -- every way to change a table, in any order -------------------------------------------------------------------


def by_bucket(table: Any) -> None:
    with table.update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)
        update.add_field("id", BucketTransform(4), f"bucket{len(table.metadata.partition_specs)}")


def by_text(table: Any) -> None:
    if "s" not in table.schema().column_names:
        return
    with table.update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)
        update.add_field("s", IdentityTransform(), f"text{len(table.metadata.partition_specs)}")


def unpartitioned(table: Any) -> None:
    with table.update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)


def upgraded(table: Any) -> None:
    with table.transaction() as transaction:
        transaction.upgrade_table_version(2)


def without_text(table: Any) -> None:
    """Drop the column, unless the current partitions are made of it."""
    names = [field.name for field in table.schema().fields]
    if "s" in names and not any(
        field.source_id == 2 and str(field.transform) != "void" for field in table.spec().fields
    ):
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("s")


CHANGES: dict[str, Callable[[Any], None]] = {
    "by bucket": by_bucket,
    "by text": by_text,
    "unpartitioned": unpartitioned,
    "upgraded": upgraded,
    "without text": without_text,
}
WRITES = ["append", "append late", "overwrite late", "dynamic late", "nothing", "delete", "overwrite", "compact"]
STEPS = st.lists(
    st.tuples(st.sampled_from(["ours", "stock"]), st.sampled_from([*WRITES, *WRITES, *CHANGES])), min_size=2, max_size=7
)


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(steps=STEPS, version=st.sampled_from(["1", "2"]), merging=st.booleans())
def test_every_row_is_found_and_every_manifest_is_true_however_a_table_changes(
    memory: Kit, steps: list[tuple[str, str]], version: str, merging: bool
) -> None:
    table = memory.table(properties={"format-version": version, **(MERGING if merging else {})})
    expected: set[int] = set()
    for number, (whose, step) in enumerate(steps, 1):
        writer = (memory.catalog if whose == "ours" else memory.stock).load_table(table.name())
        expected = changed(memory, writer, step, expected, number)
        assert sorted(expected) == row_ids(memory.stock.load_table(table.name()))
    seen = memory.stock.load_table(table.name())
    assert all(found_by_id(seen, range(n, n + 1)) == [1] for n in expected)
    check(seen)


def changed(memory: Kit, writer: Any, step: str, expected: set[int], number: int) -> set[int]:
    """Carry out *step* and return the ids that are there by then."""
    df = ids(number, number + 100).select([field.name for field in writer.schema().fields])
    new = {number, number + 100}
    if step in CHANGES:
        CHANGES[step](writer)
        return expected
    sources = [field.source_id for field in writer.spec().fields]
    if len(sources) > len(set(sources)) or not set(sources) <= writer.schema().field_ids:
        return (
            expected  # in version 1 a removed field is void; PyIceberg can't write rows to a table with some of these
        )
    ours = memory.again(writer)
    if step == "append":
        writer.append(df)
        return expected | new
    if step == "nothing":
        writer.append(df.slice(0, 0))
    elif step == "delete" and expected:
        gone = min(expected)
        writer.delete(f"id == {gone}")
        return expected - {gone}
    elif step == "overwrite" and expected:
        writer.overwrite(df, f"id == {max(expected)}")
        return (expected - {max(expected)}) | new
    elif step == "compact":
        ours.compact()
    elif step.endswith(" late"):
        files = list(_dataframe_to_data_files(ours.metadata, df, ours.io))
        keys = partition_keys_of_rows(df, ours.spec(), ours.schema())
        lies_in = set(keys) if ours.spec().fields else None
        (by_text if "s" in df.column_names and number % 2 else by_bucket)(writer)
        mode: Any = step.removesuffix(" late")
        ours.commit_files(files, mode=mode)
        if mode == "append":
            return expected | new
        if mode == "overwrite" or lies_in is None:
            return new
        rest = pa.table({"id": pa.array(sorted(expected), pa.int64())})
        rest = rest.append_column("s", pa.array([str(one) for one in sorted(expected)], pa.string()))
        spared = partition_keys_of_rows(rest.select(df.column_names), files_spec(ours, files), ours.schema())
        return {one for one, key in zip(sorted(expected), spared, strict=True) if key not in lies_in} | new
    return expected


def files_spec(table: Any, files: list[DataFile]) -> PartitionSpec:
    spec: PartitionSpec = table.metadata.specs()[files[0].spec_id]
    return spec


def check(table: Table) -> None:
    """Assert of each manifest entry of *table* what its rows say."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    live = 0
    for manifest in snapshot.manifests(table.io):
        spec = table.metadata.specs()[manifest.partition_spec_id]
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        of_status = {status: [e for e in entries if e.status == status] for status in ManifestEntryStatus}
        assert (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count) == (
            len(of_status[ManifestEntryStatus.ADDED]),
            len(of_status[ManifestEntryStatus.EXISTING]),
            len(of_status[ManifestEntryStatus.DELETED]),
        )
        for entry in entries:
            assert entry.sequence_number is not None
            assert entry.file_sequence_number is not None
            assert entry.snapshot_id is not None
            assert entry.sequence_number <= (snapshot.sequence_number or 0)
            if entry.status != ManifestEntryStatus.DELETED:
                live += entry.data_file.record_count
                check_partition(table, spec, entry.data_file, manifest.partitions)
    assert snapshot.summary is not None
    assert str(live) == snapshot.summary["total-records"]


def check_partition(table: Table, spec: PartitionSpec, data_file: DataFile, summaries: Any) -> None:
    stored = pq.read_table(local(data_file.file_path), partitioning=None)
    assert data_file.record_count == stored.num_rows
    for position, field in enumerate(spec.fields):
        name = {1: "id", 2: "s"}[field.source_id]
        kind = SCHEMA.find_type(field.source_id)
        transform = field.transform.transform(kind)
        values = {transform(value) for value in stored[name].to_pylist()} if name in stored.column_names else {None}
        assert {data_file.partition[position]} == values
        summary = summaries[position]
        (value,) = values
        if value is None:
            assert summary.contains_null
        else:
            result = field.transform.result_type(kind)
            lower, upper = (from_bytes(result, bound) for bound in (summary.lower_bound, summary.upper_bound))  # type: ignore[arg-type]
            assert lower <= value <= upper
