"""An entry of a manifest that is written anew says what it said, whatever the type of the partition."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from commit_coord.iceberg import manifest_list
from tests.catalog.kit import NO_MATCH, Kit, unchecked_decimals

UTC = dt.UTC
VALUES: list[tuple[PrimitiveType, pa.DataType, list[Any]]] = [
    (DoubleType(), pa.float64(), [0.1, 1.79e308, -1.79e308, 5e-324, 2.0**53 + 2]),
    (FloatType(), pa.float32(), [0.10000000149011612, 3.4028234663852886e38, 1.401298464324817e-45]),
    (IntegerType(), pa.int32(), [-(2**31), 2**31 - 1]),
    (LongType(), pa.int64(), [-(2**63), 2**63 - 1, 2**53 + 1]),
    (BooleanType(), pa.bool_(), [True, False]),
    (StringType(), pa.string(), ["", "ä=/ %", "x" * 100]),
    (BinaryType(), pa.binary(), [b"", b"\0\xff" * 50]),
    (FixedType(3), pa.binary(3), [b"\0\0\0", b"abc"]),
    (DateType(), pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    (TimeType(), pa.time64("us"), [dt.time(0), dt.time(23, 59, 59, 999999)]),
    (TimestampType(), pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),  # noqa: DTZ001
    (TimestamptzType(), pa.timestamp("us", "UTC"), [dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]),
    *[
        (DecimalType(width, 2), pa.decimal128(width, 2), [Decimal(f"{sign}{'9' * (width - 2)}.99") for sign in "+-"])
        for width in (3, 4, 9, 10, 18, 19, 38)
    ],
]


def by_delete(table: Any, value: Any) -> None:
    table.delete("k == 0")


def by_overwrite(table: Any, value: Any) -> None:
    table.overwrite(table.schema().as_arrow().empty_table(), "k == 0")


def by_compaction(table: Any, value: Any) -> None:
    assert table.compact().before > 1


def by_dynamic_overwrite(table: Any, value: Any) -> None:
    table.dynamic_partition_overwrite(table.scan("k == 0").to_arrow())


def by_merge(table: Any, value: Any) -> None:
    with table.transaction() as tx:
        tx.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    with table.transaction() as tx:
        tx.append(rows(table, [value]))
        tx.append(rows(table, [value]))


HOW = [by_delete, by_overwrite, by_compaction, by_dynamic_overwrite, by_merge]


def rows(table: Any, values: list[Any], first: int = 0) -> pa.Table:
    kind = table.schema().as_arrow().field("x").type
    return pa.table({"k": pa.array(range(first, first + len(values)), pa.int64()), "x": pa.array(values, kind)})


def records(table: Any) -> dict[str, tuple[Any, ...]]:
    """Return what each live entry says of its file but for its status, read without PyIceberg."""
    found = {}
    for manifest in manifest_list.read(table.io, table.current_snapshot().manifest_list):
        with table.io.new_input(manifest.manifest_path).open() as stream:
            entries: Any = fastavro.reader(io.BytesIO(stream.read()))
            for entry in entries:
                if entry["status"] != 2:
                    number = entry.get("sequence_number")
                    number = number if number is not None else manifest.sequence_number
                    found[entry["data_file"]["file_path"]] = (entry["snapshot_id"], number, entry["data_file"])
    return found


@pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")
@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind, arrow, values", VALUES, ids=[str(kind) for kind, _, _ in VALUES])
def test_what_a_manifest_says_of_other_files_stays(
    memory: Kit, kind: PrimitiveType, arrow: pa.DataType, values: list[Any], how: Any, version: str
) -> None:
    """And its rows are found by their partition."""
    schema = Schema(NestedField(1, "k", LongType()), NestedField(2, "x", kind))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "x"))
    table = memory.table(schema=schema, partition_spec=spec, properties={"format-version": version})
    several = [*values, None]
    table.append(rows(table, several))
    table.append(rows(table, several, 100))
    before = records(table)
    assert 2 * len(several) == len(before)
    how(table, values[0])
    now = records(table)
    there = before.keys() & now.keys()
    assert there or how is by_compaction
    assert {path: before[path] for path in there} == {path: now[path] for path in there}
    for number, value in enumerate(values):
        expected = {number, 100 + number} if number else {100} | ({0} if how in (by_compaction, by_merge) else set())
        if how is by_dynamic_overwrite and not number:
            expected = {0}
        found = table.scan(EqualTo(term="x", value=value)).to_arrow()["k"].to_pylist()
        assert expected == set(found), value
    assert table.scan().to_arrow().num_rows == len(set(table.scan().to_arrow()["k"].to_pylist())) + 2 * (
        how is by_merge
    )


@pytest.mark.parametrize("kind, transform, stored", [
    (DateType(), IdentityTransform(), pa.array([3_000_000, -800_000], pa.int32()).cast(pa.date32())),
    (DateType(), MonthTransform(), pa.array([3_000_000, -800_000], pa.int32()).cast(pa.date32())),
    (TimestampType(), IdentityTransform(), pa.array([2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us"))),
    (DecimalType(3, 2), TruncateTransform(7), pa.array([Decimal("-9.99"), Decimal("9.99")], pa.decimal128(3, 2))),
], ids=str)  # fmt: skip
def test_a_merge_changes_no_partition_value_that_python_has_no_value_for(
    memory: Kit, kind: PrimitiveType, transform: Any, stored: pa.Array
) -> None:
    """Dates beyond the year 9999, and a decimal with more digits than its type has, as PyIceberg writes it."""
    schema = Schema(NestedField(1, "k", LongType()), NestedField(2, "x", kind))
    spec = PartitionSpec(PartitionField(2, 1000, transform, "p"))
    table = memory.table(schema=schema, partition_spec=spec)
    for number in range(2):
        there = pa.table({"k": pa.array([number], pa.int64()), "x": stored.slice(number, 1)})
        with unchecked_decimals():
            (memory.stock if isinstance(transform, TruncateTransform) else memory.catalog).load_table(
                table.name()
            ).append(there)
    table = memory.again(table)
    before = {task.file.file_path: task.file.partition for task in table.scan().plan_files()}
    with table.transaction() as tx:
        tx.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    table.append(pa.table({"k": pa.array([2], pa.int64()), "x": pa.nulls(1, stored.type)}))
    assert 2 == len(table.current_snapshot().manifests(table.io))  # the two old ones are one
    now = {task.file.file_path: task.file.partition for task in table.scan().plan_files()}
    assert before == {path: now[path] for path in before}
    assert 3 == table.scan().count()
    memory.catalog.drop_table(table.name())  # the check of the kit shows its rows


@pytest.mark.parametrize(
    "form",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "fixed", "name": "f", "size": 16, "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "string", "logicalType": "uuid"},
    ],
    ids=["decimal as bytes", "decimal of another size", "uuid as text"],
)
def test_values_in_a_form_that_would_be_misread_are_refused(memory: Kit, tmp_path: Path, form: Any) -> None:
    value = Decimal("1.25") if form["logicalType"] == "decimal" else uuid.UUID(int=1)
    partition = {
        "type": "record",
        "name": "r102",
        "fields": [{"name": "x", "type": ["null", form], "field-id": 1000, "default": None}],
    }
    fields = [("file_path", "string", 100), ("partition", partition, 102)]
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [{"name": name, "type": kind, "field-id": number} for name, kind, number in fields],
    }
    fields = [("status", "int", 0), ("data_file", data_file, 2)]
    entry = {
        "type": "record",
        "name": "manifest_entry",
        "fields": [{"name": name, "type": kind, "field-id": number} for name, kind, number in fields],
    }
    path = tmp_path / "m.avro"
    with path.open("wb") as stream:
        record = {"status": 1, "data_file": {"file_path": "x", "partition": {"x": value}}}
        fastavro.writer(stream, fastavro.parse_schema(entry), [record])
    table = memory.table()
    manifest = ManifestFile.from_args(manifest_path=str(path), partition_spec_id=0, sequence_number=1)
    with pytest.raises(ValueError, match=r"can't be read: Iceberg requires fixed"):
        manifest.fetch_manifest_entry(table.io)
