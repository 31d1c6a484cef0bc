"""What a worker of the suite ``large`` does: one operation, once, on one table."""

from __future__ import annotations

import resource
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from commit_coord.bench.tables import NAMESPACE, Kind, open_catalog
from commit_coord.bench.tasks import Answer, Perform
from commit_coord.table import CoordinatedTable

if TYPE_CHECKING:
    import pyarrow as pa

PART, ID = 1, 2
"""Field ids of the partition column and of the row number; all other columns are doubles."""

FILE_ROWS, FILE_BYTES = 10, 2000
"""Of a data file of which only the metadata exists."""


def entry(location: str, number: int, part: int, columns: int) -> DataFile:
    """Return the metadata of a data file that does not exist: its number, its partition, statistics of all columns."""
    first = number * FILE_ROWS
    last = first + FILE_ROWS - 1
    ids = range(1, columns + 1)
    doubles = ids[2:]
    lower = {PART: _long(part), ID: _long(first)} | {column: struct.pack("<d", first + column) for column in doubles}
    upper = {PART: _long(part), ID: _long(last)} | {column: struct.pack("<d", last + column) for column in doubles}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/data/part={part}/{number:010d}-{number * 2_654_435_761 % 2**32:08x}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(part),
        record_count=FILE_ROWS,
        file_size_in_bytes=FILE_BYTES + number * 40_503 % 997,
        column_sizes={column: 80 + (number + column) * 40_503 % 31 for column in ids},
        value_counts=dict.fromkeys(ids, FILE_ROWS),
        null_value_counts=dict.fromkeys(ids, 0),
        nan_value_counts={},
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=[4],
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = 0
    return file


def _long(value: int) -> bytes:
    return struct.pack("<q", value)


def rows_of(columns: int, part: int, count: int) -> pa.Table:
    """Return *count* rows of the partition *part*."""
    import pyarrow as pa

    numbers = pa.array(range(count), pa.int64())
    values = pa.array([number * 1.5 for number in range(count)], pa.float64())
    names = [f"c{column}" for column in range(3, columns + 1)]
    return pa.table({"part": pa.array([part] * count, pa.int64()), "id": numbers, **dict.fromkeys(names, values)})


def operate(
    *,
    kind: Kind,
    folder: str,
    operation: str,
    table: str,
    warm: str,
    partition: int,
    partitions: int,
    rows: int,
    many: int,
) -> Perform:
    """Carry out *operation* on *table*, after the same on a small table.

    Args:
        kind: Whose catalog.
        folder: Where the catalog is.
        operation: One of ``large.OPERATIONS``.
        table: The large table.
        warm: The small one: what is loaded and derived once in a process lies before the clock.
        partition: Which partition is written to, planned or compacted.
        partitions: How many there are.
        rows: That are appended, or put in the place of others.
        many: Files of ``append_files``.
    """
    catalog = open_catalog(kind, Path(folder))

    def execute(name: str, files: list[DataFile]) -> int:
        return _execute(catalog.load_table((NAMESPACE, name)), operation, partition, rows, files)

    def written(name: str, count: int) -> list[DataFile]:
        location = catalog.load_table((NAMESPACE, name)).location()
        wanted = range(count if operation == "append_files" else 0)
        return [entry(location, number, number % partitions, 3) for number in wanted]

    execute(warm, written(warm, 1))
    files = written(table, many)

    def perform(request: dict[str, Any]) -> Answer:
        read, wrote, cpu, began = _figure("io", "rchar"), _figure("io", "wchar"), _cpu_s(), time.perf_counter()
        found = execute(table, files)
        return {
            "ms": (time.perf_counter() - began) * 1000,
            "cpu_ms": (_cpu_s() - cpu) * 1000,
            "read_kib": (_figure("io", "rchar") - read) / 1024,
            "written_kib": (_figure("io", "wchar") - wrote) / 1024,
            # Not ru_maxrss: that of a child begins with what its parent had.
            "peak_mib": _figure("status", "VmHWM") / 1024,
            "files": found,
        }

    return perform


def _execute(table: Table, operation: str, partition: int, rows: int, files: list[DataFile]) -> int:
    """Return the files that were planned, or those of the table after the commit."""
    columns = len(table.schema().fields)
    chosen = EqualTo(term="part", value=partition)
    match operation:
        case "plan":
            return len(list(table.scan().plan_files()))
        case "plan_partition":
            return len(list(table.scan(row_filter=chosen).plan_files()))
        case "append":
            table.append(rows_of(columns, partition, rows))
        case "append_files" if isinstance(table, CoordinatedTable):
            table.commit_files(files, check_duplicate_files=False)
        case "append_files":
            with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
                for file in files:
                    append.append_data_file(file)
        case "overwrite":
            table.overwrite(rows_of(columns, partition, rows), chosen)
        case "compact" if isinstance(table, CoordinatedTable):
            table.compact({"part": partition})
        case other:
            raise ValueError(other)
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["total-data-files"] or 0)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _figure(file: str, name: str) -> int:
    """Return a number that the kernel keeps of this process. Source: proc(5)."""
    lines = Path("/proc/self", file).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
