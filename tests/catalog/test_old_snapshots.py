"""The filter of a scan names the columns that the scan shows, whatever names and columns the table has by now."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan
from pyiceberg.types import IntegerType, LongType, NestedField

from tests.catalog.kit import Kit
from tests.limits import some
from tests.proof.rows.draw.dice import Dice

NAMES = "abcdefghijklmnopqrstuvw"
READS: dict[str, Callable[[DataScan], Any]] = {
    "to_arrow": lambda scan: bag(scan.to_arrow()),
    "batches": lambda scan: bag(scan.to_arrow_batch_reader().read_all()),
    "count": lambda scan: scan.count(),
    "to_duckdb": lambda scan: bag(scan.to_duckdb("t").execute("select * from t").to_arrow_table()),
    "to_pandas": lambda scan: len(scan.to_pandas()),
    "plan_files": lambda scan: bool(list(scan.plan_files())),
    "manifest entries": lambda scan: any(scan._plan_manifest_entries()),
    "partition_filters": lambda scan: [scan.partition_filters[number] for number in scan.table_metadata.specs()] != [],
}


def bag(rows: pa.Table) -> Counter[Any]:
    return Counter(tuple(row.items()) for row in rows.to_pylist())


def as_given(rows: Counter[Any], read: str) -> Any:
    """Return what *read* tells of a scan of *rows*."""
    return {"count": rows.total(), "to_pandas": rows.total()}.get(read, rows)


def evolve(dice: Dice, table: Any) -> None:
    """Give a name to another column, or take it away."""
    names = [field.name for field in table.schema().fields]
    one, free = dice.one(names), next(name for name in NAMES if name not in names)
    match dice.one(["rename", "swap", "add", "again", "drop", "promote", "partition"]):
        case "rename":
            change(table, "rename_column", one, free)
        case "swap" if (other := dice.one(names)) != one:
            for old, new in ((one, "free"), (other, one), ("free", other)):
                change(table, "rename_column", old, new)
        case "add":
            change(table, "add_column", free, LongType())
        case "again" if len(names) > 1 and can_go(table, one):
            change(table, "delete_column", one)
            change(table, "add_column", one, LongType())
        case "drop" if len(names) > 1 and can_go(table, one):
            change(table, "delete_column", one)
        case "promote" if isinstance(table.schema().find_type(one), IntegerType):
            change(table, "update_column", one, LongType())
        case "partition" if can_go(table, one):
            with table.update_spec() as update:
                update.add_field(one, dice.one(["identity", "bucket[2]"]), f"p{field_id(table, one)}")


def can_go(table: Any, column: str) -> bool:
    return field_id(table, column) not in {field.source_id for field in table.spec().fields}


def field_id(table: Any, column: str) -> int:
    return table.schema().find_field(column).field_id  # type: ignore[no-any-return]


def change(table: Any, name: str, *arguments: Any) -> None:
    with table.update_schema() as update:
        getattr(update, name)(*arguments)


def filters(name: str, value: int) -> dict[str, Callable[[Any], bool]]:
    """Return filters on a column, and of which of its values each is true."""
    return {
        f"{name} = {value}": lambda found: found == value,
        f"{name} != {value}": lambda found: found not in (None, value),
        f"{name} > {value}": lambda found: found is not None and found > value,
        f"{name} is null": lambda found: found is None,
        f"{name} is not null": lambda found: found is not None,
        f"{name} is null or {name} > 2": lambda found: found is None or found > 2,
    }


@pytest.mark.parametrize("seed", some(range(3), range(3, 20)))
def test_the_filter_of_a_scan_names_the_columns_that_it_shows(memory: Kit, seed: int) -> None:
    """Of a snapshot, a tag, a branch, and of the table; by whatever way its rows are read."""
    dice = Dice(seed)
    table = memory.table(schema=Schema(*(NestedField(at, n, IntegerType()) for at, n in enumerate("abc", 1))))
    for number in range(dice.number(2, 4)):
        for _ in range(dice.number(0, 3)):
            evolve(dice, table)
        rows = [{n: dice.one([None, 0, 1, 2, 3]) for n in table.schema().column_names} for _ in range(4)]
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
        snapshot = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_tag(snapshot, f"tag{number}").commit()
        table.manage_snapshots().create_branch(snapshot, f"branch{number}").commit()
    for _ in range(dice.number(1, 4)):
        evolve(dice, table)
    refs = sorted(table.metadata.refs)
    scans: list[Callable[..., DataScan]] = [
        table.scan,
        *(partial(table.scan, snapshot_id=snapshot.snapshot_id) for snapshot in table.snapshots()),
        *(lambda ref=ref, **how: table.scan(**how).use_ref(ref) for ref in refs),
    ]
    for scan in scans:
        whole = bag(scan().to_arrow())
        for name in dice.some(scan().projection().column_names, 3, 3):
            row_filter, holds = dice.one(list(filters(name, dice.number(0, 3)).items()))
            expected = Counter({row: count for row, count in whole.items() if holds(dict(row)[name])})
            read = dice.one(list(READS))
            found = READS[read](scan(row_filter=row_filter))
            if read in ("plan_files", "manifest entries", "partition_filters"):
                assert found or not expected
            else:
                assert found == as_given(expected, read), f"{row_filter}, {read}"


@pytest.mark.parametrize("plain", [False, True], ids=["ours", "plain"])
@pytest.mark.parametrize("branch", ["main", "side"])
def test_a_delete_names_the_columns_that_the_table_has_now(memory: Kit, branch: str, plain: bool) -> None:
    """Also on a branch whose last snapshot has others, and by a catalog of PyIceberg's in the same process."""
    table = memory.table(schema=Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType())))
    table.append(pa.table({"a": [1, 2], "b": [2, 3]}))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        change(table, "rename_column", old, new)
    written = memory.stock.load_table(table.name()) if plain else table
    written.delete("a = 3", branch=branch)
    assert written.scan().use_ref(branch).to_arrow().to_pylist() == [{"b": 1, "a": 2}]


def test_the_partitions_of_a_snapshot_are_filtered_by_its_columns(memory: Kit) -> None:
    """Also by a column that the table has dropped since."""
    table = memory.table(schema=Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType())))
    with table.update_spec() as update:
        update.add_identity("b")
    table.append(pa.table({"a": [1, 2], "b": [2, 3]}))
    snapshot = table.current_snapshot().snapshot_id
    change(table, "delete_column", "a")
    for row_filter, count in (("a = 1", 1), ("b = 3", 1), ("a = 5", 0)):
        assert count == table.inspect.partitions(snapshot_id=snapshot, row_filter=row_filter).num_rows


def test_an_old_snapshot_is_planned_by_its_columns_without_arrow(tmp_path: Path) -> None:
    """By a catalog of PyIceberg's whose FileIO needs no Arrow."""
    kit = Kit(tmp_path, "lease")
    table = kit.table(schema=Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType())))
    table.append(pa.table({"a": [1], "b": [2]}))
    snapshot = table.current_snapshot().snapshot_id
    change(table, "delete_column", "a")
    program = f"""
import sys, commit_coord
from pyiceberg.table import StaticTable
table = StaticTable.from_metadata({table.metadata_location!r}, {{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}})
print(len(list(table.scan("a = 1", snapshot_id={snapshot}).plan_files())), "pyiceberg.io.pyarrow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("1 False", "")
