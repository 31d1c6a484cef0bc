"""Writes rows as data files below a folder, through Spark's own Parquet code or through Arrow."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from commit_coord.spark.arrow import BatchWriter
from commit_coord.spark.files import Target, written_files
from commit_coord.spark.parquet_settings import SETTINGS, parquet_options
from commit_coord.spark.schema import FIELD_ID, beyond_parquet, conform
from commit_coord.spark.session import Scratch, spark_path
from commit_coord.spark.transforms import FOLDER, partition_columns

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)


def write_files(df: DataFrame, table: Table, target: Target, case_sensitive: bool) -> list[DataFile]:
    """Write the rows below the folder of *target* and return the files. Nothing is committed."""
    if unable := beyond_parquet(target.schema, writing=True):
        logger.warning(
            "table %s has a column of type %s, which Spark's Parquet writer can't carry with field ids: "
            "its rows go through Arrow, which takes two to three times as long",
            ".".join(table.name()),
            unable,
        )
        return _write_arrow(df, target, case_sensitive)
    rows, partitions = _with_partitions(df, target, case_sensitive)
    settings = dict(SETTINGS)
    if partitions and target.properties.get("write.distribution-mode", "hash") != "none":
        # What the JVM runtime asks for too: together what belongs together, in pieces of a file's size.
        rows = rows.hint("rebalance", *partitions)
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = str(target.file_bytes)
    options = parquet_options(table, target)
    Scratch(df.sparkSession, settings).write(rows, spark_path(target.folder), partition_by=partitions, options=options)
    return written_files(target)


def _with_partitions(df: DataFrame, target: Target, case_sensitive: bool) -> tuple[DataFrame, list[str]]:
    """Return the rows as they go into the files, with one more column for each partition field, and their names."""
    hidden = [f"c{position}" for position in range(len(df.columns))]
    source = df.toDF(*hidden)
    columns = conform([source[name] for name in hidden], df.schema, target.schema, case_sensitive)
    if not target.spec.fields:
        return source.select(*columns), []
    # In two steps, so that a partition value is computed from the column as it is written.
    ids = [field.field_id for field in target.schema.fields]
    typed = source.select(*[column.alias(f"f{field_id}") for field_id, column in zip(ids, columns, strict=True)])

    def top(field_id: int) -> Column:
        return F.col(f"f{field_id}")

    final = [top(field.field_id).alias(field.name, metadata={FIELD_ID: field.field_id}) for field in target.safe.fields]
    extra = partition_columns(target.spec, target.schema, top)
    names = [f"{FOLDER}{number}" for number in range(len(extra))]
    return typed.select(*final, *extra), names


def _write_arrow(df: DataFrame, target: Target, case_sensitive: bool) -> list[DataFile]:
    """Write the rows in Python workers. Only what an attempt that succeeded returned counts."""
    import pickle

    import pyarrow as pa

    writer = BatchWriter(target, df.columns, case_sensitive)

    def write(batches: Any) -> Any:
        yield pa.RecordBatch.from_pydict({"files": pa.array([pickle.dumps(writer.write(batches))], pa.binary())})

    # PySpark's mapInArrow looks columns up by name, and stumbles over dots and duplicates.
    plain = df.toDF(*[f"c{position}" for position in range(len(df.columns))])
    found: list[Row] = plain.mapInArrow(write, "files binary").collect()
    return [data_file for row in found for data_file in pickle.loads(bytes(row.files))]  # noqa: S301 # nosec B301
