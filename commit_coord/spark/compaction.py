"""Compaction as a Spark job: Spark's tasks write the new files, and the driver publishes them under its locks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyspark.sql import SparkSession

from commit_coord.iceberg.named_partitions import Named
from commit_coord.spark.files import Target, delete_folder
from commit_coord.spark.read import rows_of
from commit_coord.spark.session import require_classic
from commit_coord.spark.write import TableOrName, resolve, write_files
from commit_coord.table.compaction import Compacted, Group, Rewriter

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable


def compact_table(spark: SparkSession, table: TableOrName, partition: Named | None = None) -> Compacted:
    """Put the small files of a table together, or those of one partition, as a job of *spark*.

    Guarantee, arguments and errors as :meth:`~commit_coord.table.CoordinatedTable.compact`.
    """
    found: CoordinatedTable = resolve(table, None, (), {})
    return found.compact(partition or {}, rewrite=rewriter(spark))


def rewriter(spark: SparkSession) -> Rewriter:
    """Return what has *spark* do the work of ``table.compact(rewrite=...)`` and of CONCATENATE.

    Raises:
        ConfigError: *spark* is a Spark Connect session.
    """
    require_classic(spark)

    def rewrite(table: CoordinatedTable, groups: Sequence[Group]) -> list[DataFile]:
        tasks = [task for group in groups for task in group]
        target = Target.of(table)
        # Rows of one partition go into one file, however the table is written otherwise.
        target = replace(target, properties={**target.properties, "write.distribution-mode": "hash"})
        rows = rows_of(spark, table.metadata, table.io, table.schema(), tasks, AlwaysTrue())
        if not target.spec.fields:
            size = sum(task.file.file_size_in_bytes for task in tasks)
            rows = rows.coalesce(math.ceil(size / target.file_bytes))
        try:
            return write_files(rows, table, target, case_sensitive=True)
        except BaseException:
            delete_folder(target)
            raise

    return rewrite
