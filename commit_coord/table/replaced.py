"""Which files the rows of some partitions lie in, also where they are stored under other partition specs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata

from commit_coord.iceberg.partitions import partition_key, partition_keys_of_rows
from commit_coord.process import Host
from commit_coord.table.data_files import data_files

if TYPE_CHECKING:
    import pyarrow as pa

_PARTITION = [field.name for field in DATA_FILE_TYPE[2].fields].index("partition")


@dataclass(slots=True)
class Replaced:
    """The changes after which no row is left in the partitions.

    Args:
        gone: Files that are removed.
        rest: Files with the rows of *gone* that lie elsewhere.
    """

    gone: list[DataFile] = field(default_factory=list)
    rest: list[DataFile] = field(default_factory=list)


def replaced(
    metadata: TableMetadata, io: FileIO, tasks: Iterable[FileScanTask], by: Sequence[DataFile], host: Host
) -> Replaced:
    """Return what to change so that no row of *tasks* is left in a partition of the files *by*.

    A file of the same spec lies in one partition, which tells. The rows of any other are read, and those that lie
    elsewhere are written anew.

    Args:
        metadata: The table's.
        io: Reads rows and writes them anew.
        tasks: Every live file that may have rows in a partition of *by*.
        by: Each of a spec that has partitions.
        host: Makes the ids in the names of the files.

    Raises:
        ValueError: A column that partitions of *by* are made of was dropped: rows of other specs can't be assigned.
    """
    specs = metadata.specs()
    doomed: dict[int, set[tuple[Any, ...]]] = {}
    for data_file in by:
        doomed.setdefault(data_file.spec_id, set()).add(partition_key(data_file.partition))
    found = Replaced()
    for task in tasks:
        own = task.file.spec_id
        if partition_key(task.file.partition) in doomed.get(own, ()):
            found.gone.append(task.file)
        elif others := [(specs[spec_id], keys) for spec_id, keys in doomed.items() if spec_id != own]:
            _rows_replaced(metadata, io, task, others, found, host)
    return found


def _rows_replaced(
    metadata: TableMetadata,
    io: FileIO,
    task: FileScanTask,
    doomed: Sequence[tuple[PartitionSpec, set[tuple[Any, ...]]]],
    found: Replaced,
    host: Host,
) -> None:
    # Loaded when it is needed: Arrow starts threads, and takes long.
    from pyiceberg.io.pyarrow import ArrowScan

    rows = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue()).to_table([task])
    kept = rows
    for spec, keys in doomed:
        kept = _outside(kept, spec, keys, metadata)
    if kept.num_rows < rows.num_rows:
        found.gone.append(task.file)
        # What is left of a file lies where the file lay. So it can be written although its partitions can't be computed
        # any more, as those of dropped columns.
        spec = PartitionSpec(spec_id=task.file.spec_id)
        there = metadata.model_copy(update={"partition_specs": [spec], "default_spec_id": spec.spec_id})
        for data_file in data_files(there, kept, io, host=host) if kept.num_rows else ():
            data_file._data[_PARTITION] = task.file.partition
            data_file.spec_id = spec.spec_id
            found.rest.append(data_file)


def _outside(rows: pa.Table, spec: PartitionSpec, keys: set[tuple[Any, ...]], metadata: TableMetadata) -> pa.Table:
    """Return those of *rows* whose partition under *spec* is none of *keys*."""
    import pyarrow as pa

    lie_in = partition_keys_of_rows(rows, spec, metadata.schema())
    return rows.filter(pa.array([key not in keys for key in lie_in], pa.bool_()))
