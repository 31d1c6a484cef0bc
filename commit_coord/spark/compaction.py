"""Compaction as a Spark job: each task writes the rows of some small files as a large one, and the driver publishes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyspark.sql import SparkSession

from commit_coord.iceberg.named_partitions import NamedValues
from commit_coord.spark.arrow import BatchReader, BatchWriter
from commit_coord.spark.files import Target, tidy_folder
from commit_coord.spark.jobs import run_jobs
from commit_coord.spark.session import require_classic
from commit_coord.spark.tables import TableOrName, resolve
from commit_coord.table.compaction import Compacted, FileGroup
from commit_coord.table.table import Rewriter

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable


def compact_table(spark: SparkSession, table: TableOrName, partition: NamedValues | None = None) -> Compacted:
    """Put the small files of a table together, or those of one partition, as a job of *spark*.

    Guarantee, arguments and errors as :meth:`~commit_coord.table.CoordinatedTable.compact`.
    """
    rewrite = rewriter(spark)
    found: CoordinatedTable = resolve(spark, table, None, (), {})
    return found.compact(partition or {}, rewrite=rewrite)


def rewriter(spark: SparkSession) -> Rewriter:
    """Return what has *spark* do the work of ``table.compact(rewrite=...)`` and of CONCATENATE.

    A task reads the files of one new file of ``write.target-file-size-bytes`` and writes it; nothing is shuffled.

    Raises:
        ConfigError: *spark* is a Spark Connect session, or a stopped one.
    """
    require_classic(spark)

    def rewrite(table: CoordinatedTable, groups: Sequence[FileGroup]) -> list[DataFile]:
        target = Target.of(table)
        reader = BatchReader.of(table.metadata, table.io, table.schema(), AlwaysTrue())
        names = [field.name for field in table.schema().fields]
        writer = BatchWriter(target, names, case_sensitive=True, carried=True)
        packs = [pickle.dumps(pack) for group in groups for pack in _packs(group, target.file_bytes)]

        def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    files = writer.write(reader.read(pickle.loads(packs[number])))  # noqa: S301 - pickled above # nosec B301
                    yield pa.RecordBatch.from_pydict({"files": pa.array([pickle.dumps(files)], pa.binary())})

        # Only what an attempt that succeeded returned counts.
        rows = spark.range(len(packs), numPartitions=len(packs)).mapInArrow(work, "files binary")
        found = run_jobs(spark, target, rows.collect)
        new = [data_file for row in found for data_file in pickle.loads(bytes(row.files))]  # noqa: S301 # nosec B301
        tidy_folder(target, new)
        return new

    return rewrite


def _packs(group: FileGroup, size: int) -> list[list[FileScanTask]]:
    """Divide the files of a partition into what makes one file of about *size* bytes each."""
    packs: list[list[FileScanTask]] = []
    left = 0
    for task in group:
        if task.file.file_size_in_bytes > left:
            packs.append([])
            left = size
        packs[-1].append(task)
        left -= task.file.file_size_in_bytes
    return packs
