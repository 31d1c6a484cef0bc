"""A transaction that makes a table writes rows as one on a table does."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions
from pyiceberg import transforms as X
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from commit_coord.errors import CommitNotApplied
from tests.catalog.kit import Kit, files_in

E: Any = expressions  # whose classes say less than they take
SCHEMA = Schema(NestedField(1, "k", LongType()), NestedField(2, "f", DoubleType()), NestedField(3, "s", StringType()))
FLOATS, TEXTS = [0.0, -0.0, 1.5, math.nan, math.inf, None], ["a", "b", "x" * 5000, None]
SPECS = [
    PartitionSpec(),
    PartitionSpec(PartitionField(2, 1000, X.IdentityTransform(), "f")),
    PartitionSpec(PartitionField(3, 1000, X.IdentityTransform(), "s")),
    PartitionSpec(
        PartitionField(3, 1000, X.TruncateTransform(1), "t"), PartitionField(1, 1001, X.BucketTransform(2), "b")
    ),
]
FILTERS = [
    "f == 0.0",
    "f > 1",
    E.IsNaN("f"),
    E.IsNull("f"),
    "k >= 3",
    E.NotEqualTo("s", "a"),
    E.Or(E.IsNaN("f"), E.EqualTo("k", 2)),
]
ON_ROWS = ["append", "overwrite", "delete", "dynamic_partition_overwrite"]
ON_METADATA = ["partition", "rename", "add", "set"]
_numbers = itertools.count()


@dataclass(frozen=True)
class Call:
    """One call on a transaction."""

    name: str
    rows: tuple[tuple[Any, ...], ...] = ()
    argument: Any = None

    def made(self, tx: Any, folder: Path) -> None:
        """Make it."""
        names = tx.table_metadata.schema().column_names[:3]  # renamed, maybe
        kinds = (pa.int64(), pa.float64(), pa.string())
        columns = zip(*self.rows, strict=True) if self.rows else ((), (), ())
        rows = pa.table([pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)], names=names)
        match self.name:
            case "append" | "dynamic_partition_overwrite":
                getattr(tx, self.name)(rows)
            case "overwrite":
                tx.overwrite(rows, self.argument)
            case "delete":
                tx.delete(self.argument)
            case "upsert":
                tx.upsert(rows, ["k"])
            case "add_files":
                path = folder / f"added-{next(_numbers)}.parquet"
                pq.write_table(rows, path)
                tx.add_files([str(path)])
            case "partition":
                with tx.update_spec() as update:
                    update.add_field("k", X.BucketTransform(4), f"bucket_{next(_numbers)}")
            case "rename":
                with tx.update_schema() as update:
                    update.rename_column("s", "renamed")
            case "add":
                with tx.update_schema() as update:
                    update.add_column(self.argument, StringType())
            case "set":
                tx.set_properties({"x": "y"})


@st.composite
def calls(draw: Any) -> Call:
    name = draw(st.sampled_from(["append", "upsert", "add_files", *ON_ROWS, *ON_METADATA]))
    if name == "add_files" and draw(st.booleans()):  # of one partition, mostly
        row = (draw(st.integers(0, 4)), draw(st.sampled_from(FLOATS)), draw(st.sampled_from(TEXTS)))
        return Call(name, (row,) * draw(st.integers(1, 2)))
    numbers = draw(st.lists(st.integers(0, 4), unique=name == "upsert", min_size=int(name == "upsert"), max_size=5))
    rows = [(number, draw(st.sampled_from(FLOATS)), draw(st.sampled_from(TEXTS))) for number in numbers]
    argument = draw(st.sampled_from(["s", "new"])) if name == "add" else draw(st.sampled_from(FILTERS))
    return Call(name, tuple(rows), argument)


def outcome(transaction: Any, made: list[Call], folder: Path) -> str | None:
    """Make the calls in *transaction*, and return the error's type if one fails."""
    try:
        with transaction as tx:
            for call in made:
                call.made(tx, folder)
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error).__name__
    return None


def seen(table: Any) -> Any:
    """Return all that *table* is, but names and times of files and snapshots."""
    tasks = list(table.scan().plan_files())
    return (
        Counter(map(repr, table.scan().to_arrow().to_pylist())),
        Counter(
            repr((t.file.spec_id, t.file.partition, t.file.record_count, dict(t.file.null_value_counts))) for t in tasks
        ),
        repr(table.schema()),
        [repr([(f.source_id, f.transform) for f in spec.fields]) for spec in table.metadata.partition_specs],
        table.metadata.properties,
        [snapshot.summary.operation for snapshot in table.metadata.snapshots],
    )


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@given(spec=st.sampled_from(SPECS), made=st.lists(calls(), min_size=1, max_size=5))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_a_table_that_is_made_with_rows_is_as_one_that_gets_them_later(
    memory: Kit, tmp_path: Path, spec: PartitionSpec, made: list[Call]
) -> None:
    table = memory.table(schema=SCHEMA, partition_spec=spec)
    identifier = memory.identifier()
    creation = memory.catalog.create_table_transaction(identifier, SCHEMA, partition_spec=spec)
    failed = outcome(creation, made, tmp_path)
    assert failed == outcome(table.transaction(), made, tmp_path), made
    if failed:
        assert not memory.catalog.table_exists(identifier)
        assert files_in(creation.table_metadata.location) == set()
    else:
        assert seen(memory.catalog.load_table(identifier)) == seen(table.refresh())


def by_f(memory: Kit) -> tuple[Any, Any]:
    """Return the name of a table by ``f`` that is not there, and a transaction that makes it."""
    identifier = memory.identifier()
    return identifier, memory.catalog.create_table_transaction(identifier, SCHEMA, partition_spec=SPECS[1])


def test_zeros_of_both_signs_and_nan_are_written_once_into_a_table_that_is_made(memory: Kit) -> None:
    rows = tuple((number, value, None) for number, value in enumerate(FLOATS))
    identifier, creation = by_f(memory)
    with creation as tx:
        Call("append", rows).made(tx, memory.folder)
        Call("delete", argument="k == 2").made(tx, memory.folder)
        Call("dynamic_partition_overwrite", ((7, math.nan, None),)).made(tx, memory.folder)
    table = memory.catalog.load_table(identifier)
    assert sorted(table.scan().to_arrow()["k"].to_pylist()) == [0, 1, 4, 5, 7]
    assert sorted(table.scan("f == 0.0").to_arrow()["k"].to_pylist()) == [0, 1]


def test_files_that_are_added_to_a_table_that_is_made_lie_where_their_rows_lie(memory: Kit) -> None:
    identifier, creation = by_f(memory)
    with pytest.raises(ValueError, match="belong to 2 partitions"), creation as tx:
        Call("add_files", ((1, 1.5, "c"), (2, None, "c"))).made(tx, memory.folder)
    assert not memory.catalog.table_exists(identifier)
    identifier, creation = by_f(memory)
    with creation as tx:
        Call("add_files", ((1, math.nan, "c"),)).made(tx, memory.folder)
    assert memory.catalog.load_table(identifier).scan(E.IsNaN("f")).to_arrow()["k"].to_pylist() == [1]


def test_a_table_that_is_made_finds_rows_to_update_by_columns_that_it_renamed(memory: Kit) -> None:
    identifier = memory.identifier()
    with memory.catalog.create_table_transaction(identifier, SCHEMA) as tx:
        for call in (Call("append", ((1, 1.5, "a"),)), Call("rename"), Call("upsert", ((1, 2.5, "b"),))):
            call.made(tx, memory.folder)
    assert memory.catalog.load_table(identifier).scan().to_arrow().to_pylist() == [{"k": 1, "f": 2.5, "renamed": "b"}]


def test_a_column_of_a_table_that_is_made_does_not_take_over_the_name_of_one_in_added_files(memory: Kit) -> None:
    identifier = memory.identifier()
    with (
        pytest.raises(CommitNotApplied, match="an earlier column 's', and the new column would show its values"),
        memory.catalog.create_table_transaction(identifier, SCHEMA) as tx,
    ):
        for call in (Call("add_files", ((1, 1.5, "a"),)), Call("rename"), Call("add", argument="s")):
            call.made(tx, memory.folder)
    assert not memory.catalog.table_exists(identifier)


def test_null_does_not_land_in_a_column_that_the_transaction_that_makes_its_table_makes_required(memory: Kit) -> None:
    identifier = memory.identifier()
    with (
        pytest.raises(CommitNotApplied, match="requires|required"),
        memory.catalog.create_table_transaction(identifier, SCHEMA) as tx,
    ):
        Call("append", ((1, None, "a"),)).made(tx, memory.folder)
        with tx.update_schema(allow_incompatible_changes=True) as update:
            update.update_column("f", required=True)
    assert not memory.catalog.table_exists(identifier)


def test_a_call_that_fails_leaves_what_was_written_before_it_into_a_table_that_is_made(
    memory: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    identifier = memory.identifier()
    with memory.catalog.create_table_transaction(identifier, SCHEMA) as tx:
        Call("append", ((1, 1.5, "a"),)).made(tx, memory.folder)
        monkeypatch.setattr("pyiceberg.io.pyarrow.write_file", full)
        with pytest.raises(OSError, match="no space"):
            Call("overwrite", ((2, 2.5, "b"),), E.AlwaysTrue()).made(tx, memory.folder)
        monkeypatch.undo()
    assert memory.catalog.load_table(identifier).scan().to_arrow()["k"].to_pylist() == [1]
