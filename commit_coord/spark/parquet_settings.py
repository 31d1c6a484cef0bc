"""The settings of Spark's Parquet writer that the properties of a table ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg import types as I
from pyiceberg.table import Table, TableProperties

from commit_coord.spark.files import Target

if TYPE_CHECKING:
    pass

SETTINGS = {
    "spark.sql.sources.useV1SourceList": "parquet",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.legacy.allowEmptySchemaWrite": "false",
    # With these, a failed attempt leaves no file after the job has been committed.
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    # A few open files spare the sort by partition; a task with more partitions sorts.
    "spark.sql.maxConcurrentOutputFileWriters": "10",
}
_CODECS = {"uncompressed": "none", "lz4": "lz4_raw"}
_P = TableProperties
_PARQUET_PROPERTIES = {
    # Iceberg's defaults are not all Parquet's: its dictionaries may be twice as large.
    _P.PARQUET_ROW_GROUP_SIZE_BYTES: ("parquet.block.size", _P.PARQUET_ROW_GROUP_SIZE_BYTES_DEFAULT),
    _P.PARQUET_PAGE_SIZE_BYTES: ("parquet.page.size", _P.PARQUET_PAGE_SIZE_BYTES_DEFAULT),
    _P.PARQUET_PAGE_ROW_LIMIT: ("parquet.page.row.count.limit", _P.PARQUET_PAGE_ROW_LIMIT_DEFAULT),
    _P.PARQUET_DICT_SIZE_BYTES: ("parquet.dictionary.page.size", _P.PARQUET_DICT_SIZE_BYTES_DEFAULT),
}


def parquet_options(table: Table, target: Target) -> dict[str, str]:
    """Return the options of Spark's Parquet writer for files of *target*."""
    properties = target.properties
    codec = properties.get(TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT).lower()
    options = {
        "compression": _CODECS.get(codec, codec),
        # Algorithm 1 renames whole tasks when the job commits: an attempt that failed in its own commit leaves nothing.
        "mapreduce.fileoutputcommitter.algorithm.version": "1",
    }
    level = properties.get(TableProperties.PARQUET_COMPRESSION_LEVEL)
    if level and codec in ("zstd", "gzip"):
        options["parquet.compression.codec.zstd.level" if codec == "zstd" else "zlib.compress.level"] = level
    options |= {option: properties.get(key, str(default)) for key, (option, default) in _PARQUET_PROPERTIES.items()}
    if rows := _rows_per_file(table, target):
        options["maxRecordsPerFile"] = str(rows)
    return options


def _rows_per_file(table: Table, target: Target) -> int:
    """Return how many rows make a file of the target size: by what the table has, else by the width of its types."""
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    size, rows = (int((summary[key] if summary else None) or 0) for key in ("total-files-size", "total-records"))
    width = size / rows if size and rows else sum(_width(field.field_type) for field in target.schema.fields)
    return max(1, round(target.file_bytes / max(width, 0.01)))


def _width(kind: I.IcebergType) -> float:
    match kind:
        case I.StructType():
            return sum(_width(field.field_type) for field in kind.fields)
        case I.BooleanType():
            return 0.125
        case I.IntegerType() | I.FloatType() | I.DateType():
            return 4
        case I.DecimalType():
            return kind.precision / 2.4
        case I.StringType() | I.BinaryType():
            return 16
    return 8
