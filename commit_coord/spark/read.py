"""The fast way out: files planned in Python, rows through Spark's own Parquet reader by field ids.

What could give wrong rows, and what is done:

* Spark pushes filters into Parquet by *name*, and drops the field ids of a struct's fields when it prunes them. So a
  column keeps its name only if the footer of every file shows that the name and the id lead to the same field, of the
  same type. Any other column, with all that is in it, is read under hidden names, which no file has, and renamed
  afterwards: Spark reads a field in a struct with the type of the field that has its name in the file. Schemas of
  the table are no proof of what its files hold: old schemas may have been removed.
* Spark prunes row groups by statistics that leave NaN out, although NaN is its largest number, and moves dates of
  October 1582 on their way to Parquet. So floating point columns are never pushed down, dates and timestamps only
  where the file's bounds are modern.
* A file whose folder or name Spark takes for hidden, one without field ids, one that keeps an identity partition
  value in the metadata only, ORC and Avro files go through Arrow.
* Position deletes and deletion vectors are an anti-join on file and row number. Equality deletes are refused.
* Every setting that the rows depend on is set for each read, whatever the session says: see ``_SETTINGS``.
"""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyspark.sql.types as T
from pyiceberg import types as I
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _read_deletes
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from commit_coord.errors import ConfigError
from commit_coord.iceberg.counts import rows_that_match
from commit_coord.spark.arrow import BatchReader
from commit_coord.spark.files import ParquetLayout, file_layouts
from commit_coord.spark.filters import parse, spark_filter
from commit_coord.spark.frame_reads import tag_of
from commit_coord.spark.schema import (
    FIELD_ID,
    bare_schema,
    beyond_parquet,
    child,
    nested,
    nullable,
    same_by_name,
    spark_type,
    table_name,
)
from commit_coord.spark.session import Scratch, counted, hadoop_uris, require_classic, spark_path
from commit_coord.spark.tables import TableOrName, load
from commit_coord.table.isolation import seen_from

logger = logging.getLogger(__name__)

_SETTINGS = {
    # The kind of relation that is tested.
    "spark.sql.sources.useV1SourceList": "parquet",
    "spark.sql.caseSensitive": "true",
    # What the names and types in the text of a cast mean.
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # The reader of single rows finds columns as the session that runs the query says: by name.
    "spark.sql.parquet.enableVectorizedReader": "true",
    "spark.sql.parquet.enableNestedColumnVectorizedReader": "true",
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    # List files here instead of starting a Spark job for it: they are known by name.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
_OPTIONS = {
    "__globPaths__": "false",
    "recursiveFileLookup": "true",  # no guessing of partition columns from folder names
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
}
_HIDDEN_FILE = re.compile(r"(^|/)([_.][^/]*|[^/]*\._COPYING_)$")
"""Names of files that Spark silently ignores. Source: ``HadoopFSUtils.shouldFilterOutPathName``."""

_FILES_A_TASK = 8
_FOOTERS = 256
"""The footers of more files are not read: their rows are right, but row groups are not skipped."""

_MODERN_DAY = (dt.date(1901, 1, 1) - dt.date(1970, 1, 1)).days
"""Calendars and time zones of Java's old classes agree with Spark's from here on."""

_DAY_MICROS = 86_400_000_000


def read_table(
    spark: SparkSession,
    table: TableOrName,
    *,
    columns: Sequence[str] | None = None,
    row_filter: BooleanExpression | str = AlwaysTrue(),
    snapshot_id: int | None = None,
    as_of_timestamp_ms: int | None = None,
    branch: str | None = None,
) -> DataFrame:
    """Return the rows of *table* as a DataFrame of *spark*.

    Guarantee: the DataFrame reads one snapshot, whatever is committed later, as long as its files exist. No
    setting of *spark* is changed. Filters and column choices made on the DataFrame reach Parquet; *row_filter*
    also leaves out whole files by their partition and statistics. Its ``count()`` is answered by the manifests, where
    these tell how many rows there are: there are no deletes, and *row_filter* takes whole partitions.

    Args:
        spark: A classic session.
        table: A table of any PyIceberg catalog, as of its last refresh; a name in the default catalog, such as
            ``"shop.sales"``; or ``(catalog, identifier)``, where the catalog may be a name, too.
        columns: Top-level names, in this order; None is all.
        row_filter: PyIceberg's expression or its text, with PyIceberg's meaning of NaN: no comparison holds.
        snapshot_id: Read this snapshot, with the schema that it was written with.
        as_of_timestamp_ms: Read the last snapshot of that time, milliseconds since the epoch.
        branch: Read the head of a branch with the present schema, or a tag with the schema of its snapshot.

    Raises:
        ConfigError: More than one of *snapshot_id*, *as_of_timestamp_ms* and *branch*, or none there.
        ValueError: A name is not in the schema.
        NotImplementedError: The snapshot has equality deletes, which PyIceberg can't apply.
    """
    require_classic(spark)
    found = load(spark, table)
    metadata, snapshot = travel(found.metadata, snapshot_id, as_of_timestamp_ms, branch)
    schema = metadata.schema()
    condition = parse(row_filter)
    tasks = plan(metadata, found.io, snapshot, condition)
    read_as = schema
    if columns is not None:
        wanted = {schema.find_field(name).field_id for name in columns}
        needed = _names(condition, schema)
        read_as = Schema(*[f for f in schema.fields if f.field_id in wanted | needed], schema_id=schema.schema_id)
    pinned = snapshot_id is not None or as_of_timestamp_ms is not None
    tag = tag_of(found, branch or MAIN_BRANCH, snapshot, condition, pinned=pinned)
    df = _rows(spark, metadata, found.io, read_as, tasks, condition, tag)
    chosen = df if columns is None else _chosen(df, columns)
    number = _number_of_rows(tasks)
    return chosen if number is None else counted(chosen, number)


def _chosen(df: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return *columns* of *df*; also where two names differ by case alone, and the session folds case."""
    names = df.columns
    if len({name.lower() for name in names}) == len(names):
        return df.select(*[_quoted(name) for name in columns])
    plain = df.toDF(*[f"c{place}" for place in range(len(names))])
    return plain.select(*[F.col(f"c{names.index(name)}").alias(name) for name in columns])


def _number_of_rows(tasks: Iterable[FileScanTask]) -> int | None:
    """Return how many rows *tasks* read by what the manifests say; None where they do not show it.

    Deletes or a filter remove some, or a manifest does not know: some writers then say -1.
    """
    number = 0
    for task in tasks:
        if (found := rows_that_match(task)) is None:
            return None
        number += found
    return number


def travel(
    metadata: TableMetadata, snapshot_id: int | None, as_of_timestamp_ms: int | None, branch: str | None
) -> tuple[TableMetadata, Snapshot | None]:
    """Return the snapshot that is asked for, and *metadata* with the schema that it is read with as its own."""
    given = [value for value in (snapshot_id, as_of_timestamp_ms, branch) if value is not None]
    if len(given) > 1:
        raise ConfigError("give one of snapshot id, timestamp and branch", given=given)
    if not given:
        return metadata, metadata.current_snapshot()
    keep_schema = False
    if branch is not None:
        ref = metadata.refs.get(branch)
        if ref is None and branch == "main":
            return metadata, None
        snapshot = metadata.snapshot_by_id(ref.snapshot_id) if ref is not None else None
        keep_schema = ref is not None and ref.snapshot_ref_type == "branch"
    elif snapshot_id is not None:
        snapshot = metadata.snapshot_by_id(snapshot_id)
    else:
        assert as_of_timestamp_ms is not None
        entries = [entry for entry in metadata.snapshot_log if entry.timestamp_ms <= as_of_timestamp_ms]
        snapshot = metadata.snapshot_by_id(entries[-1].snapshot_id) if entries else None
    if snapshot is None:
        raise ConfigError(
            "the table has no such snapshot", snapshot_id=snapshot_id, as_of=as_of_timestamp_ms, branch=branch
        )
    if keep_schema or snapshot.schema_id is None or snapshot.schema_id == metadata.current_schema_id:
        return metadata, snapshot
    return metadata.model_copy(update={"current_schema_id": snapshot.schema_id}), snapshot


def plan(
    metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None, condition: BooleanExpression
) -> list[FileScanTask]:
    """Return the files of *snapshot* that may hold rows that match *condition*, each with its deletes.

    Raises:
        ValueError: *condition* names a column that is not there.
        NotImplementedError: There are equality deletes.
    """
    bind(metadata.schema(), condition, case_sensitive=True)  # also where there is nothing to read
    if snapshot is None:
        return []
    scan = DataScan(seen_from(metadata, snapshot), io, row_filter=condition)
    try:
        return list(scan.plan_files())
    except ValueError as error:
        if "equality deletes" in str(error):
            raise NotImplementedError(
                "the table has equality deletes, which PyIceberg does not apply yet; read it with Iceberg's JVM "
                "runtime, or let an engine apply the deletes (in Spark, the procedure rewrite_data_files)"
            ) from error
        raise


def _names(condition: BooleanExpression, schema: Schema) -> set[int]:
    """Return the ids of the top-level fields that *condition* speaks of."""
    ids = extract_field_ids(bind(schema, condition, case_sensitive=True))
    return {
        field.field_id
        for field in schema.fields
        if field.field_id in ids or any(inner in ids for inner, _ in nested(Schema(field)))
    }


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# -- rows --------------------------------------------------------------------------------------------------


def _rows(
    spark: SparkSession,
    metadata: TableMetadata,
    io: FileIO,
    schema: Schema,
    tasks: Sequence[FileScanTask],
    condition: BooleanExpression,
    tag: str,
) -> DataFrame:
    """Return the rows of *tasks* that match *condition*, under the names of *schema*; its plan contains *tag*."""
    layouts = _layouts(metadata, io, tasks)
    parquet, arrow = _divide(metadata, schema, tasks, layouts)
    parts = []
    if arrow:
        parts.append(_through_arrow(spark, BatchReader.of(metadata, io, schema, condition), arrow, tag))
    if parquet:
        df = _through_parquet(spark, io, schema, parquet, layouts, tag)
        parts.append(_matching(df, schema, condition))
    if not parts:
        return spark.createDataFrame([], bare_schema(schema)).alias(tag).toDF(*[f.name for f in schema.fields])
    result = parts[0]
    for part in parts[1:]:
        result = result.unionAll(part)
    return result


def _matching(df: DataFrame, schema: Schema, condition: BooleanExpression) -> DataFrame:
    """Return the rows of *df* that match *condition*."""
    names = [field.name for field in schema.fields]
    # Names that differ by case alone are one to a session that folds case.
    shown = names if len({name.lower() for name in names}) == len(names) else [f"f{n}" for n in range(len(names))]
    kept = spark_filter(condition, schema, _column_of(schema, shown))
    if kept is None:
        return df
    return df.filter(kept) if shown is names else df.toDF(*shown).filter(kept).toDF(*names)


def _column_of(schema: Schema, names: Sequence[str]) -> Callable[[int], Column]:
    """Return a function from a field id, at any depth of structs, to its column; the top ones are shown as *names*."""
    found: dict[int, tuple[int, ...]] = {}

    def visit(struct: I.StructType, above: tuple[int, ...]) -> None:
        for position, field in enumerate(struct.fields):
            found[field.field_id] = (*above, position)
            if isinstance(field.field_type, I.StructType):
                visit(field.field_type, found[field.field_id])

    def column(field_id: int) -> Column:
        top, *below = found[field_id]
        result, kind = F.col(_quoted(names[top])), nullable(spark_type(schema.fields[top].field_type))
        for position in below:
            assert isinstance(kind, T.StructType)
            result, kind = child(result, kind, position), kind.fields[position].dataType
        return result

    visit(schema.as_struct(), ())
    return column


def _divide(
    metadata: TableMetadata,
    schema: Schema,
    tasks: Sequence[FileScanTask],
    layouts: Mapping[str, ParquetLayout],
) -> tuple[list[FileScanTask], list[FileScanTask]]:
    """Divide *tasks* into those for Spark's Parquet reader and those for Arrow; log why there are any of the latter."""
    if unable := beyond_parquet(schema, writing=False):
        logger.warning("the table is read through Arrow, since Spark's Parquet reader can't carry %s", unable)
        return [], list(tasks)
    if any(schema.find_field(number).initial_default is not None for number in schema.field_ids):
        logger.warning("the table is read through Arrow, since columns have defaults")
        return [], list(tasks)
    reasons: dict[str, str] = {}
    for task in tasks:
        path = task.file.file_path
        if task.file.file_format != FileFormat.PARQUET:
            reasons[path] = f"{task.file.file_format} files"
        elif _HIDDEN_FILE.search(path):
            reasons[path] = "file names that start with '_' or '.'"
        elif path in layouts and not layouts[path].has_ids and metadata.name_mapping() is not None:
            reasons[path] = "imported files without field ids"
        elif _value_in_metadata_only(metadata, task, layouts.get(path)):
            reasons[path] = "partition values that are not in the file"
    if reasons:
        logger.warning("%d files are read through Arrow: %s", len(reasons), ", ".join(sorted(set(reasons.values()))))
    return (
        [task for task in tasks if task.file.file_path not in reasons],
        [task for task in tasks if task.file.file_path in reasons],
    )


def _layouts(metadata: TableMetadata, io: FileIO, tasks: Sequence[FileScanTask]) -> dict[str, ParquetLayout]:
    """Return what the footers of the Parquet files say, as far as they are worth reading."""
    parquet = [task.file for task in tasks if task.file.file_format == FileFormat.PARQUET]
    if len(parquet) > _FOOTERS and metadata.name_mapping() is None:
        parquet = [file for file in parquet if not file.column_sizes]
    return file_layouts(io, parquet)


def _value_in_metadata_only(metadata: TableMetadata, task: FileScanTask, layout: ParquetLayout | None) -> bool:
    """Say whether the file lacks a column whose value its partition gives."""
    sizes: Collection[int] = (task.file.column_sizes or {}).keys()
    found = layout.schema.field_ids if layout is not None and layout.schema is not None else sizes
    spec = metadata.specs()[task.file.spec_id]
    return any(
        isinstance(field.transform, IdentityTransform)
        and task.file.partition[position] is not None
        and field.source_id not in found
        for position, field in enumerate(spec.fields)
    )


def _through_parquet(
    spark: SparkSession,
    io: FileIO,
    schema: Schema,
    tasks: Sequence[FileScanTask],
    layouts: Mapping[str, ParquetLayout],
    tag: str,
) -> DataFrame:
    by_name, prefix = _by_name(schema, tasks, layouts)

    def hidden(field: I.NestedField) -> str:
        return f"{prefix}{field.field_id}"

    def name(field: I.NestedField) -> str:
        return field.name if field.field_id in by_name else hidden(field)

    read_as = T.StructType(
        [
            T.StructField(
                name(field),
                nullable(spark_type(field.field_type, table_name if field.field_id in by_name else hidden)),
                True,
                {FIELD_ID: field.field_id},
            )
            for field in schema.fields
        ]
    )
    scratch = Scratch(spark, _SETTINGS | {"spark.sql.parquet.filterPushdown": str(bool(by_name)).lower()})

    def rows(paths: Sequence[str]) -> DataFrame:
        return scratch.read([spark_path(path) for path in paths], read_as, _OPTIONS)

    whole = [task.file.file_path for task in tasks if not task.delete_files]
    with_deletes = [task for task in tasks if task.delete_files]
    df = rows(whole) if whole else None
    if with_deletes:
        rest = _without_deleted(spark, io, with_deletes, rows)
        df = rest if df is None else df.unionAll(rest)
    assert df is not None
    # The cast also keeps Spark from pruning a struct, which would drop the ids in it: the optimizer takes no cast away
    # from a type that has ids to one that has none.
    return scratch.select(
        df.alias(tag),
        [
            (
                _quoted(name(field)),
                _quoted(field.name),
                nullable(spark_type(field.field_type)),
            )
            for field in schema.fields
        ],
    )


def _by_name(
    schema: Schema, tasks: Sequence[FileScanTask], layouts: Mapping[str, ParquetLayout]
) -> tuple[set[int], str]:
    """Return the ids of the top-level columns that may be found by name in all files, and a prefix for hidden names.

    The prefix starts no name in any file, as far as their layouts are known; where one is not, no column is found by
    name, and nothing is pushed down.
    """
    found = [layouts[task.file.file_path].schema for task in tasks if task.file.file_path in layouts]
    known = [layout for layout in found if layout is not None]
    different = list({id(layout): layout for layout in known}.values())
    prefix = "_hidden"
    names = {part for each in (schema, *different) for name in each.column_names for part in name.split(".")}
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    if len(known) < len(tasks):
        return set(), prefix
    folded = [field.name.lower() for field in schema.fields]
    return {
        field.field_id
        for field in schema.fields
        if folded.count(field.name.lower()) == 1
        and not field.name.lower().startswith(("_metadata", "_tmp_metadata"))  # Spark's own
        and all(same_by_name(I.StructType(field), layout.as_struct()) for layout in different)
        and all(_prunable(field, task.file) for task in tasks)
    }, prefix


def _prunable(field: I.NestedField, file: DataFile) -> bool:
    """Say whether Spark may skip rows of *file* by what it compares with *field*, or with a field in it."""
    match field.field_type:
        case I.StructType():
            return all(_prunable(child, file) for child in field.field_type.fields)
        case I.FloatType() | I.DoubleType():
            return False
        case I.DateType() | I.TimestampType() | I.TimestamptzType():
            bound = (file.lower_bounds or {}).get(field.field_id)
            if bound is None:
                return False
            days = 1 if isinstance(field.field_type, I.DateType) else _DAY_MICROS
            return int.from_bytes(bound, "little", signed=True) >= _MODERN_DAY * days
    return True


def _without_deleted(
    spark: SparkSession, io: FileIO, tasks: Sequence[FileScanTask], rows: Callable[[Sequence[str]], DataFrame]
) -> DataFrame:
    """Return the rows of *tasks* that no position delete and no deletion vector names."""
    uris = hadoop_uris(spark, [spark_path(task.file.file_path) for task in tasks])
    positions: dict[str, list[pa.ChunkedArray]] = {}
    unread = {delete.file_path: delete for task in tasks for delete in task.delete_files}
    deletes = {path: _read_deletes(io, delete) for path, delete in unread.items()}
    for task in tasks:
        for delete in task.delete_files:
            for path, places in deletes[delete.file_path].items():
                if path == task.file.file_path:
                    positions.setdefault(uris[spark_path(path)], []).append(places)
    data = rows([task.file.file_path for task in tasks])
    if not positions:
        return data
    gone = pa.concat_tables(
        pa.table({"gone_file": pa.array([uri] * len(places), pa.string()), "gone_row": places.cast(pa.int64())})
        for uri, chunks in positions.items()
        for places in chunks
    )
    deleted = F.broadcast(spark.createDataFrame(gone))
    metadata = data.metadataColumn("_metadata")
    same = (metadata["file_path"] == deleted["gone_file"]) & (metadata["row_index"] == deleted["gone_row"])
    return data.join(deleted, same, "left_anti")


def _through_arrow(
    spark: SparkSession, reader: BatchReader, tasks: Sequence[FileScanTask], tag: str = "t"
) -> DataFrame:
    """Return the rows of *tasks* read in Python workers; the reader applies filter and deletes."""
    packs = [pickle.dumps(tasks[start : start + _FILES_A_TASK]) for start in range(0, len(tasks), _FILES_A_TASK)]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from reader.read(pickle.loads(packs[number]))  # noqa: S301 - pickled above # nosec B301

    return spark.range(len(packs), numPartitions=len(packs)).alias(tag).mapInArrow(read, bare_schema(reader.projection))
