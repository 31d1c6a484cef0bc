"""A table with a million data files, and one with a thousand columns: what each operation costs, in time and memory.

Each is measured at two sizes, so that the result shows what grows with the table. Every operation runs in a fresh
process, after the same operation on a small table.

The manifests, the manifest list and the table metadata are written by the code that writes those of every commit. Of
the data files only those of one partition exist, which the compaction reads; no other operation opens a data file of
the table. Ours, PyIceberg and Iceberg Java work on the same manifests, each with a metadata file of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField

from commit_coord.bench.cells import ratio
from commit_coord.bench.fleet import PYTHON, Worker
from commit_coord.bench.jvm import LARGE, with_options
from commit_coord.bench.large_tasks import FILE_ROWS, ID, PART, entry, rows_of
from commit_coord.bench.tables import KINDS, NAMESPACE, History, open_catalog
from commit_coord.iceberg import manifest_list, manifests
from commit_coord.table.data_files import data_files
from commit_coord.testing.fleet import WriterFailed

JAVA = "Iceberg Java"

OPERATIONS = ("append", "overwrite", "plan_partition", "plan", "compact", "append_files")

_REAL = 0
"""The partition whose data files exist."""

_PARTITIONS_EACH = 2
"""Partitions whose files are in one manifest."""

_ROWS = 10
"""That are appended, or put in the place of a partition."""

_PATIENCE_S = 900.0
_SLOW_MS = 10_000.0
"""An operation that takes longer is measured once."""

_PROPERTIES = {
    # Java's default is to merge them, with every commit; PyIceberg's is not to.
    "commit.manifest-merge.enabled": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How large a table is.

    Args:
        manifests: How many.
        files_each: Data files of a partition.
        columns: How many; all have statistics.
    """

    manifests: int
    files_each: int
    columns: int

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self.manifests * _PARTITIONS_EACH

    @property
    def files(self) -> int:
        """How many data files there are."""
        return self.partitions * self.files_each

    def __str__(self) -> str:
        """Return all that a reader wants to know."""
        return (
            f"{self.files:,} files in {self.manifests:,} manifests, "
            f"{self.partitions:,} partitions, {self.columns:,} columns"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One table at two sizes, and what is done with it.

    Args:
        name: Of the case.
        small: The smaller size.
        large: The larger one.
        operations: Some of :data:`OPERATIONS`.
        many: Files of ``append_files``.
    """

    name: str
    small: Shape
    large: Shape
    operations: Sequence[str] = OPERATIONS
    many: int = 0


FULL = (
    Case(
        name="files",
        small=Shape(manifests=500, files_each=100, columns=3),
        large=Shape(manifests=5_000, files_each=100, columns=3),
        many=100_000,
    ),
    Case(
        name="columns",
        small=Shape(manifests=10, files_each=10, columns=100),
        large=Shape(manifests=10, files_each=10, columns=1_000),
        operations=OPERATIONS[:-1],
    ),
)
QUICK = (
    Case(
        name="files",
        small=Shape(manifests=2, files_each=50, columns=3),
        large=Shape(manifests=20, files_each=50, columns=3),
        many=1_000,
    ),
    Case(
        name="columns",
        small=Shape(manifests=2, files_each=5, columns=5),
        large=Shape(manifests=2, files_each=5, columns=50),
        operations=OPERATIONS[:-1],
    ),
)


def run(
    folder: Path,
    *,
    cases: Sequence[Case],
    repeats: int,
    java: Callable[[Path], Sequence[str]] | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure the operations of *cases*.

    Args:
        folder: Where the tables are made.
        cases: What is measured.
        repeats: Processes for each figure; the median counts.
        java: Returns the command of a worker in Java; None: Iceberg Java is not measured.
        say: Takes a line of progress.
    """
    folder.mkdir(parents=True)
    commands: dict[str, Sequence[str]] = dict.fromkeys(KINDS, PYTHON)
    if java is not None:
        commands[JAVA] = with_options(java(folder / "java"), LARGE)
    warm = make_history(folder / "warm", QUICK[0].small)
    found: dict[str, Any] = {"repeats": repeats, "rows": _ROWS, "cases": []}
    for case in cases:
        cells: list[dict[str, Any]] = []
        for size, shape in (("small", case.small), ("large", case.large)):
            say(f"making {shape}")
            place = folder / case.name / size
            history = make_history(place, shape)
            for operation in case.operations:
                for kind, command in commands.items():
                    if operation == "compact" and kind == "pyiceberg":
                        continue  # it can't
                    measured = _measured(place, shape, case.many, kind, command, operation, (history, warm), repeats)
                    cells.append({"kind": kind, "operation": operation, "size": size, **measured})
                    say(f"{operation}, {kind}: " + ", ".join(f"{name} {value}" for name, value in measured.items()))
        found["cases"].append(
            {
                "name": case.name,
                "small": str(case.small),
                "large": str(case.large),
                "many": case.many,
                "rows": list(_rows(cells)),
            }
        )
    return found | {"bars": _bars(found["cases"])}


def disagreements(found: dict[str, Any]) -> list[str]:
    """Return after which operations not all libraries saw as many files, of what :func:`run` returned."""
    files: dict[str, dict[str, Any]] = {}
    for case in found["cases"]:
        for row in case["rows"]:
            if None in row["files"]:
                continue  # it gave up
            files.setdefault(f"large: {case['name']}, {row['operation']}", {})[row["kind"]] = row["files"]
    return [f"{what}: {counts}" for what, counts in files.items() if len(set(map(tuple, counts.values()))) > 1]


def _bars(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    bars: dict[str, Any] = {}
    for case in cases:
        rows = {(row["operation"], row["kind"]): row for row in case["rows"]}
        for (operation, kind), row in rows.items():
            if kind == "commit_coord":
                bars[f"4: {case['name']}, {operation}: CPU at the larger size, times the smaller"] = row["grows"].get(
                    "cpu_ms"
                )
            if kind == "commit_coord" and (java := rows.get((operation, JAVA))) is not None:
                bars[f"4: {case['name']}, {operation}: ms, times Iceberg Java's"] = ratio(row["ms"][1], java["ms"][1])
    return bars


def make_history(folder: Path, shape: Shape) -> History:
    """Return the metadata of a table of *shape* with one snapshot; its manifests and data files are in *folder*."""
    catalog = open_catalog("commit_coord", folder / "made", lock_impl="none")
    doubles = [
        NestedField(column, f"c{column}", DoubleType(), required=False) for column in range(3, shape.columns + 1)
    ]
    schema = Schema(
        NestedField(PART, "part", LongType(), required=False),
        NestedField(ID, "id", LongType(), required=False),
        *doubles,
    )
    spec = PartitionSpec(PartitionField(PART, 1000, IdentityTransform(), "part"))
    table = catalog.create_table((NAMESPACE, "made"), schema, partition_spec=spec, properties=_PROPERTIES)
    metadata, snapshot_id = table.metadata, table.metadata.new_snapshot_id()
    written = [
        manifest
        for files in _files(table, shape)
        for manifest in manifests.write_added(
            table.io,
            lambda: f"{table.location()}/metadata/{uuid.uuid4()}-m0.avro",
            files,
            metadata=metadata,
            spec=metadata.spec(),
            snapshot_id=snapshot_id,
            inherits=False,
        )
    ]
    listed = f"{table.location()}/metadata/snap-{snapshot_id}-0-{uuid.uuid4()}.avro"
    manifest_list.write_appended(
        table.io,
        listed,
        head=None,
        added=written,
        metadata=metadata,
        snapshot_id=snapshot_id,
        parent_snapshot_id=None,
        sequence_number=1,
    )
    body: dict[str, Any] = orjson.loads(metadata.model_dump_json())
    at_ms = body["last-updated-ms"]
    counts = {"data-files": shape.files, "records": shape.files * FILE_ROWS}
    summary = {f"{word}-{what}": str(count) for what, count in counts.items() for word in ("added", "total")}
    summary |= {"operation": "append", "total-delete-files": "0"}
    snapshot = {
        "snapshot-id": snapshot_id,
        "sequence-number": 1,
        "timestamp-ms": at_ms,
        "manifest-list": listed,
        "schema-id": metadata.current_schema_id,
        "summary": summary,
    }
    body |= {
        "last-sequence-number": 1,
        "current-snapshot-id": snapshot_id,
        "snapshots": [snapshot],
        "snapshot-log": [{"snapshot-id": snapshot_id, "timestamp-ms": at_ms}],
        "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
        "metadata-log": [],
    }
    catalog.close()
    return History(snapshots=1, metadata=orjson.dumps(body))


def _files(table: Table, shape: Shape) -> Iterator[list[DataFile]]:
    """Yield the data files of each manifest."""
    number = 0
    for manifest in range(shape.manifests):
        files: list[DataFile] = []
        for part in range(manifest * _PARTITIONS_EACH, (manifest + 1) * _PARTITIONS_EACH):
            for _ in range(shape.files_each):
                if part == _REAL:
                    rows = rows_of(shape.columns, part, FILE_ROWS)
                    files += data_files(table.metadata, rows, table.io)
                    files[-1].spec_id = 0
                else:
                    files.append(entry(table.location(), number, part, shape.columns))
                number += 1
        yield files


def _measured(
    folder: Path,
    shape: Shape,
    many: int,
    kind: str,
    command: Sequence[str],
    operation: str,
    histories: tuple[History, History],
    repeats: int,
) -> dict[str, Any]:
    """Return the medians of the figures of *operation*, each time by another process on another table."""
    answers: list[dict[str, float]] = []
    for repeat in range(repeats):
        names = [f"{operation}_{repeat}_{size}" for size in ("large", "warm")]
        places = [_placed(history, kind, folder, name) for history, name in zip(histories, names, strict=True)]
        spec = {
            "kind": kind,
            "folder": str(folder / kind),
            "operation": operation,
            "table": places[0],
            "warm": places[1],
            "partition": _REAL if operation == "compact" else 1,
            "partitions": shape.partitions,
            "rows": _ROWS,
            "many": many,
        }
        if kind == JAVA:
            del spec["kind"], spec["folder"]
        try:
            with Worker("large_tasks.operate", spec, command) as worker:
                worker.receive(_PATIENCE_S)
                answers.append(worker.ask({}, _PATIENCE_S))
        except WriterFailed as error:
            return {"gave_up": str(error)}
        if answers[-1]["ms"] > _SLOW_MS:
            break
    return {name: round(median(answer[name] for answer in answers), 1) for name in answers[0]}


def _placed(history: History, kind: str, folder: Path, name: str) -> str:
    """Make a table with *history* for *kind*; return how its worker finds it."""
    if kind != JAVA:
        catalog = open_catalog(kind, folder / kind)  # type: ignore[arg-type]  # one of KINDS
        history.place(catalog, folder / kind / "tables", name)
        catalog.close()
        return name
    # Iceberg Java finds the tables of its HadoopTables by their folders.
    location = folder / "java" / name
    (location / "metadata").mkdir(parents=True)
    body = orjson.loads(history.metadata) | {"location": f"file://{location}", "table-uuid": str(uuid.uuid4())}
    (location / "metadata" / "v1.metadata.json").write_bytes(orjson.dumps(body))
    (location / "metadata" / "version-hint.text").write_text("1")
    return f"file://{location}"


_FIGURES = ("ms", "cpu_ms", "peak_mib", "read_kib", "written_kib")


def _rows(cells: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the figures of an operation by one library at both sizes, and by how much the larger ones are greater."""
    by_size = {(cell["operation"], cell["kind"], cell["size"]): cell for cell in cells}
    for operation, kind in dict.fromkeys((cell["operation"], cell["kind"]) for cell in cells):
        small, large = (by_size[operation, kind, size] for size in ("small", "large"))
        yield {
            "operation": operation,
            "kind": kind,
            **{name: [small.get(name), large.get(name)] for name in (*_FIGURES, "files", "gave_up")},
            "grows": {
                name: ratio(large[name], small[name]) for name in _FIGURES if small.get(name) and large.get(name)
            },
        }
