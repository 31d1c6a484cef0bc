"""What the plan of a read and the rows of an append cost, counted."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.io.pyarrow as reader
import pytest
from pyiceberg import manifest
from pyiceberg.expressions import visitors
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestFile,
    ManifestListWriter,
    PartitionFieldSummary,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from commit_coord.iceberg import avro, manifest_list
from tests.catalog.kit import SCHEMA, frame

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))


def test_a_plan_asks_once_for_each_partition_what_the_filter_leaves(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each file; and each file gets the answer of its own partition."""
    table = catalog.create_table("db.t", SCHEMA, partition_spec=BY_S)
    for number in range(3):
        table.append(frame((number, "a"), (number, "b"), (number, None)))
    condition = parse("s = 'a' or id >= 0")
    evaluator_of = visitors.residual_evaluator_of
    asked: list[Any] = []

    def counting(**arguments: Any) -> Any:
        asked.append(arguments)
        return evaluator_of(**arguments)

    monkeypatch.setattr(visitors, "residual_evaluator_of", counting)
    tasks = list(table.scan(condition).plan_files())

    assert 9 == len(tasks)
    assert 3 == len(asked)
    one = evaluator_of(spec=table.spec(), expr=condition, case_sensitive=True, schema=table.schema())
    assert [one.residual_for(task.file.partition) for task in tasks] == [task.residual for task in tasks]
    assert 2 == len({str(task.residual) for task in tasks})


def listed(*numbers: int, content: ManifestContent = ManifestContent.DATA) -> list[ManifestFile]:
    """Return manifests that say all that one can say."""
    summaries = (
        PartitionFieldSummary(False, None, b"\x01", b"\xff"),
        PartitionFieldSummary(True, True, None, None),
    )
    return [
        ManifestFile(
            f"file:///t/{number}.avro", 4000 + number, number % 3, content, number, number - 1, 7,
            number, 0, 3, 9, 0, 1, [None, [], list(summaries)][number % 3], b"key" if number % 2 else None,
        )
        for number in numbers
    ]  # fmt: skip


def written(folder: Path, version: Any, codec: Any, manifests: list[ManifestFile]) -> str:
    folder.mkdir(exist_ok=True)
    location = f"{folder}/list.avro"
    output = PyArrowFileIO().new_output(location)
    with write_manifest_list(version, output, 7, 6, 8, codec) as writer:
        writer.add_manifests(manifests)
    return location


@pytest.mark.parametrize("codec", ["gzip", "zstd", "null"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_manifest_list_is_read_and_written_as_by_pyiceberg(
    tmp_path: Path, version: int, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says, and of either version."""
    manifests = listed(*range(1, 20)) + (listed(99, content=ManifestContent.DELETES) if version == 2 else [])
    ours = written(tmp_path / "ours", version, codec, manifests)
    monkeypatch.setattr(ManifestListWriter, "add_manifests", ManifestListWriter.add_manifests.__wrapped__)  # type: ignore[attr-defined]
    theirs = written(tmp_path / "theirs", version, codec, manifests)
    by_pyiceberg = manifest.read_manifest_list.__wrapped__  # type: ignore[attr-defined]
    inputs = PyArrowFileIO().new_input(theirs)
    expected = [each._data for each in by_pyiceberg(inputs)]

    assert expected == [each._data for each in by_pyiceberg(PyArrowFileIO().new_input(ours))]
    assert avro.header(Path(ours).read_bytes())[0] == avro.header(Path(theirs).read_bytes())[0]
    for found in (list(manifest.read_manifest_list(inputs)), manifest_list.read(PyArrowFileIO(), theirs)):
        assert expected == [each._data for each in found]


def test_a_manifest_list_costs_few_calls_for_each_manifest(tmp_path: Path) -> None:
    """PyIceberg makes fifty to read one, and a hundred to write one."""

    def calls(count: int) -> list[int]:
        made = listed(*range(count))
        location = ""
        found = []

        def write() -> None:
            nonlocal location
            location = written(tmp_path, 2, "gzip", made)

        for work in (write, lambda: list(manifest.read_manifest_list(PyArrowFileIO().new_input(location)))):
            number = 0

            def count_calls(frame: Any, event: str, argument: Any) -> None:
                nonlocal number
                number += event == "call"

            sys.setprofile(count_calls)
            try:
                work()
            finally:
                sys.setprofile(None)
            found.append(number)
        return found

    calls(10)  # what is derived once
    for few, many in zip(calls(100), calls(200), strict=True):
        assert many - few <= 100 * 15


def test_rows_of_one_arrow_schema_are_matched_with_the_columns_once(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the check that they fit, for their partitions and for their files, and for the next append."""
    schema = Schema(NestedField(1, "only", LongType()), NestedField(2, "in this test", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "text"))
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    matched: list[Any] = []
    match: Any = reader.apply_name_mapping  # type: ignore[attr-defined]

    def counting(*arguments: Any) -> Any:
        matched.append(arguments)
        return match(*arguments)

    monkeypatch.setattr(reader, "apply_name_mapping", counting)
    for number in range(2):
        table.append(pa.table({"only": [number, number], "in this test": ["a", "b"]}))
    assert 1 == len(matched)
    assert 4 == table.scan().to_arrow().num_rows


@pytest.mark.parametrize(
    "call",
    [
        lambda table, files: table.commit_files(files, mode="dynamic", request_id="one partition"),
        lambda table, files: table.overwrite(frame((8, "s3")), "s = 's3'"),
        lambda table, files: table.dynamic_partition_overwrite(frame((8, "s3"))),
        lambda table, files: table.delete("s = 's3'"),
        lambda table, files: table.compact({"s": "s3"}),
        lambda table, files: list(table.scan("s = 's3'").plan_files()),
        lambda table, files: table.append(frame((8, "s3"))),
        lambda table, files: table.commit_files(files, request_id="one partition"),
    ],
    ids=[
        *("dynamic overwrite of files", "overwrite", "dynamic overwrite", "delete", "compaction", "plan"),
        *("append", "append of files"),
    ],
)
def test_what_is_done_to_one_partition_opens_no_manifest_of_another(
    catalog: Any, call: Callable[[Any, list[DataFile]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("db.t", SCHEMA, partition_spec=BY_S)
    for number in range(6):
        for _ in range(2):
            table.append(frame((number, f"s{number}")))
    (task, _) = table.scan("s = 's3'").plan_files()
    file = copy.deepcopy(task.file)
    file._data[1] += ".new"
    file.spec_id = 0
    opened: list[str] = []
    entries = ManifestFile.fetch_manifest_entry

    def fetch(self: ManifestFile, *arguments: Any, **options: Any) -> Any:
        opened.append(self.manifest_path)
        return entries(self, *arguments, **options)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", fetch)
    before = {m.manifest_path: m.partitions[0].lower_bound for m in table.current_snapshot().manifests(table.io)}
    call(table, [file])

    assert {before[path] for path in opened if path in before} <= {b"s3"}


def test_a_commit_spells_the_folders_of_a_partition_once(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each of its files; the summary counts them as before."""
    limit = {"write.summary.partition-limit": "10"}
    table = catalog.create_table("db.t", SCHEMA, partition_spec=BY_S, properties=limit)
    table.append(frame((1, "a"), (2, "b")))
    files = [task.file for task in table.scan().plan_files()]
    many = [copy.deepcopy(file) for file in files for _ in range(5)]
    for number, file in enumerate(many):
        file._data[1] += f".{number}"
    spelled: list[Any] = []
    spell = PartitionSpec.partition_to_path

    def counting(*arguments: Any) -> str:
        spelled.append(arguments)
        return spell(*arguments)

    monkeypatch.setattr(PartitionSpec, "partition_to_path", counting)
    table.commit_files(many, request_id="many files")

    assert 2 == len(spelled)
    summary = table.current_snapshot().summary
    assert ("10", "2") == (summary["added-data-files"], summary["changed-partition-count"])
    assert "added-data-files=5" in summary["partitions.s=a"]


@pytest.mark.parametrize(
    "damaged", [b"", b"junk", avro.MAGIC, avro.MAGIC + b"\x02\x06a", avro.MAGIC + b"\x00" + b"s" * 16]
)
def test_a_list_that_is_none_says_so(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"Avro|schema"):
        manifest_list.decoded(damaged)
