"""The fast way in: rows through Spark's own Parquet writer, one commit from Python."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyspark.sql.types as T
from pyiceberg import types as I
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Identifier
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from commit_coord.errors import CommitNotApplied, ConfigError, LockError, StatementError
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.spark.arrow import BatchWriter
from commit_coord.spark.files import Target, delete_folder, tidy_folder, written_files
from commit_coord.spark.filters import parse
from commit_coord.spark.locks import Mode, check_inside, holding
from commit_coord.spark.read import head_of, oldest, reads_of
from commit_coord.spark.schema import FIELD_ID, beyond_parquet, check_fits, conform, spark_type
from commit_coord.spark.session import Scratch, require_classic, spark_path
from commit_coord.spark.transforms import FOLDER, partition_columns
from commit_coord.table.isolation import NOTHING
from commit_coord.table.writable import check_version

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable

logger = logging.getLogger(__name__)

MODES: tuple[Mode, ...] = ("append", "overwrite", "dynamic")
TableOrName = Table | tuple[Catalog, str | Identifier]

WRITER_PROPERTY = "commit-coord.stream."
"""Table property of a streaming writer: its last batch id. Behind it stands the writer's id."""

QUERY_ID = "sql.streaming.queryId"
"""Property that Spark gives to the jobs of a streaming query."""

_SETTINGS = {
    "spark.sql.sources.useV1SourceList": "parquet",
    "spark.sql.caseSensitive": "true",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.legacy.allowEmptySchemaWrite": "false",
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


def write_table(
    df: DataFrame,
    table: TableOrName,
    mode: Mode = "append",
    *,
    overwrite_filter: BooleanExpression | str = AlwaysTrue(),
    branch: str = "main",
    create: bool = False,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    snapshot_properties: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    request_id: str | None = None,
    reads: BooleanExpression | str | None = None,
    read_at: int | None = None,
) -> CoordinatedTable:
    """Write the rows of *df* to *table* in one commit.

    Guarantee: when this returns, the rows are in the table exactly once, whatever became of task attempts, and
    every lock was given back. When it raises ``CommitStateUnknown``, they may be, and every file is kept: write
    again with the same *request_id*. When it raises anything else before the commit, or ``CommitNotApplied``,
    nothing is in the table and the files were deleted.

    Args:
        df: Columns are matched by name, like Spark's own ``spark.sql.caseSensitive`` says. Missing optional columns
            become null. Only lossless conversions are made.
        table: A table of our catalog, or ``(catalog, identifier)``.
        mode: ``append``; ``overwrite`` replaces the rows that match *overwrite_filter*; ``dynamic`` replaces the
            partitions that the rows fall in.
        overwrite_filter: PyIceberg's expression or its text; default is every row. With ``dynamic`` it promises in
            which partitions the rows lie, so that only those are locked; a row outside of it is refused.
        branch: Where to.
        create: Make the table when it is not there; needs ``(catalog, identifier)``.
        partition_by: For *create*: column names or ``bucket(16, id)``, ``truncate(4, s)``, ``day(ts)`` and so on.
        properties: For *create*: the table's properties.
        snapshot_properties: Go into the snapshot's summary.
        table_properties: Set by the same commit.
        request_id: Names this write, a UUID or any text. A write that landed before under the same name is not
            repeated.
        reads: Which rows of *table* were read to compute *df*; these must not have changed since *read_at*. None: for
            an overwrite what the plan of *df* reads of it with :func:`read_table`; no row when it reads none.
            Name them when *df* was collected or checkpointed in between.
        read_at: For *reads*: the snapshot that was read, ``NO_SNAPSHOT`` for an empty branch. None: the one that
            *table* showed before this call (an empty branch counts too), or the older one that the plan of *df* reads.
            A ``(catalog, identifier)`` shows what the table has when this is called.

    Returns:
        The table as of this commit.

    Raises:
        SchemaMismatch: *df* does not fit. No row was written.
        StaleRead: Rows that *df* was computed from have changed. Nothing landed; read them again.
        LockTimeout: A conflicting operation lock was not given back in time. No row was written.
        CommitNotApplied: Refused for good, nothing landed.
        CommitStateUnknown: See above.
    """
    if mode not in MODES:
        raise ConfigError("unknown write mode", mode=mode, accepted=", ".join(MODES))
    require_classic(df)
    bounds = parse(overwrite_filter)
    if mode == "append" and not isinstance(bounds, AlwaysTrue):
        raise ConfigError("overwrite_filter has no meaning for an append", overwrite_filter=bounds)
    # What the caller saw counts, not what is loaded below, nor what is there once the locks are held.
    shown = None if isinstance(table, tuple) else table.metadata
    found = resolve(table, df.schema if create else None, partition_by, properties or {})
    seen = head_of(found.metadata if shown is None else shown, branch)
    if mode == "dynamic" and not found.spec().fields:
        raise ConfigError("a table without partitions has none to replace: use mode 'overwrite'", table=found.name())
    request = None if request_id is None else request_uuid(request_id)
    if request is not None and found.find_commit(request) is not None:
        logger.info("request %s was committed before, nothing is written", request_id)
        found.refresh()
        return found
    sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    check_fits(df.schema, found.schema(), case_sensitive=sensitive)
    name = ".".join(found.name())
    with holding(found, mode, bounds, f"write_table {mode} {name}"):
        # Once more: the schema may have changed while we waited for the locks.
        check_fits(df.schema, found.schema(), case_sensitive=sensitive)
        target = Target.of(found)
        depends: dict[str, Any] = {}
        if mode != "append" or reads is not None:
            depends = _depends(df, found, branch, reads, read_at, seen)
        try:
            files = _write_files(df, found, target, sensitive)
            if mode == "dynamic" and not isinstance(bounds, AlwaysTrue):
                check_inside(files, found, bounds)
        except BaseException:
            delete_folder(target)
            raise
        if files or mode == "overwrite":
            publish(
                found,
                files,
                target,
                mode=mode,
                overwrite_filter=bounds if mode == "overwrite" else AlwaysTrue(),
                branch=branch,
                snapshot_properties=dict(snapshot_properties or {}),
                properties=dict(table_properties or {}),
                request_id=request,
                **depends,
            )
        else:
            delete_folder(target)  # nothing to add and nothing to replace is no commit
    return found


def _depends(
    df: DataFrame,
    table: Table,
    branch: str,
    reads: BooleanExpression | str | None,
    read_at: int | None,
    seen: int,
) -> dict[str, Any]:
    """Return what a write of *df* depends on, as arguments of ``commit_files``; *seen* is what the caller saw."""
    if reads is not None and read_at is not None:
        return {"reads": reads, "read_at": read_at}
    planned = reads_of(df, table, branch)
    if reads is not None:
        # The rows that are named may have been collected, so that the plan shows nothing of them.
        known = {seen} if planned is None else {seen, planned.snapshot_id}
        return {"reads": reads, "read_at": oldest(table.metadata, branch, known)}
    return {"reads": planned.condition, "read_at": planned.snapshot_id} if planned is not None else {"reads": NOTHING}


def resolve(
    table: TableOrName, source: T.StructType | None, partition_by: Sequence[str], properties: Mapping[str, str]
) -> CoordinatedTable:
    """Return the table of a coordinated catalog; made from *source* when it is given and the table is not there.

    Raises:
        ConfigError: The catalog is not one of ours: its commits would not be coordinated.
        CommitNotApplied: The table has a format version that can't be written.
    """
    if isinstance(table, tuple):
        catalog, identifier = table
        found: Table
        try:
            found = catalog.load_table(identifier)
        except NoSuchTableError:
            if source is None:
                raise
            check_version(
                int(properties.get(TableProperties.FORMAT_VERSION, 2)), Catalog.identifier_to_tuple(identifier)
            )
            schema = iceberg_schema(source)
            spec = partition_spec(partition_by, schema)
            found = catalog.create_table_if_not_exists(
                identifier, schema=schema, partition_spec=spec, properties=dict(properties)
            )
    else:
        found = table.refresh()
    if not hasattr(found, "commit_files"):
        raise ConfigError(
            "this table comes from a catalog without coordination: load it through commit_coord.load_catalog",
            table=".".join(found.name()),
            catalog=type(found.catalog).__name__,
        )
    check_version(found.metadata.format_version, found.name())
    return cast("CoordinatedTable", found)


def iceberg_schema(source: T.StructType) -> Schema:
    """Return the schema for a new table: every column optional, as in Spark's own CREATE TABLE AS SELECT."""
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(to_arrow_schema(_nullable(source))))


def _nullable(kind: T.DataType) -> Any:
    match kind:
        case T.StructType():
            return T.StructType([T.StructField(f.name, _nullable(f.dataType), True) for f in kind.fields])
        case T.ArrayType():
            return T.ArrayType(_nullable(kind.elementType), True)
        case T.MapType():
            return T.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
        case T.NullType():
            raise ConfigError("a column that is always null has no type to make a table with: cast it")
    return kind


def partition_spec(fields: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the spec that texts such as ``region``, ``day(ts)``, ``bucket(16, id)`` describe.

    Raises:
        ConfigError: A text can't be read, or names no column.
    """
    made = []
    for number, text in enumerate(fields):
        call = re.fullmatch(r"\s*(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?(.+?)\s*\)\s*", text)
        known = call is not None and call[1] in (
            "bucket",
            "truncate",
            "year",
            "month",
            "day",
            "hour",
            "identity",
            "void",
        )
        column = call[3] if call is not None and known else text
        transform = "identity" if call is None or not known else f"{call[1]}[{call[2]}]" if call[2] else call[1]
        try:
            source = schema.find_field(column)
            made.append(
                PartitionField(
                    source_id=source.field_id,
                    field_id=1000 + number,
                    transform=parse_transform(transform),
                    name=column if transform == "identity" else f"{column}_{transform.partition('[')[0]}",
                )
            )
        except ValueError as error:
            accepted = "a column, or bucket(n, c), truncate(n, c), year(c), month(c), day(c), hour(c), void(c)"
            raise ConfigError("not a partition field", field=text, accepted=accepted) from error
    return PartitionSpec(*made) if made else UNPARTITIONED_PARTITION_SPEC


# -- rows --------------------------------------------------------------------------------------------------


def _write_files(df: DataFrame, table: Table, target: Target, case_sensitive: bool) -> list[DataFile]:
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
    settings = dict(_SETTINGS)
    if partitions and target.properties.get("write.distribution-mode", "hash") != "none":
        # What the JVM runtime asks for too: together what belongs together, in pieces of a file's size.
        rows = rows.hint("rebalance", *partitions)
        settings["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = str(target.file_bytes)
    options = _parquet_options(table, target)
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

    final = [
        top(field.field_id).cast(spark_type(field.field_type)).alias(field.name, metadata={FIELD_ID: field.field_id})
        for field in target.safe.fields
    ]
    extra = partition_columns(target.spec, target.schema, top)
    names = [f"{FOLDER}{number}" for number in range(len(extra))]
    return typed.select(*final, *extra), names


def _parquet_options(table: Table, target: Target) -> dict[str, str]:
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


def publish(
    table: CoordinatedTable, files: Sequence[DataFile], target: Target, *, request_id: str | None, **arguments: Any
) -> None:
    """Commit *files*, which were written for *target*, and delete what is in its folder and in no table.

    When it is not known whether the commit landed, every file is kept.
    """
    try:
        landed = table.commit_files(
            files,
            schema_id=target.schema.schema_id,
            request_id=request_id,
            check_duplicate_files=False,  # they were written for this call alone
            **arguments,
        )
    except (CommitNotApplied, CommitFailedException, ValidationException, ConfigError, StatementError, LockError):
        delete_folder(target)
        raise
    if landed:
        tidy_folder(target, files)
    else:
        assert request_id is not None
        drop_repeated(table, target, request_id)


def drop_repeated(table: CoordinatedTable, target: Target, request_id: str) -> None:
    """Delete the folder of a request that landed before, unless its files are those that landed.

    1. ``commit()`` of a writer lands its files.   2. Its answer is lost, and the same writer commits again.   3. The
    request is found to have landed. Were its folder deleted now, the table would have lost its rows.
    """
    entry = table.find_commit(request_id)
    table.refresh()
    snapshots = [table.metadata.snapshot_by_id(number) for number in entry.snapshot_ids] if entry is not None else []
    for snapshot in snapshots or [None]:
        if snapshot is None:
            logger.warning("what request %s landed is not known any more, its files are kept", request_id)
            return
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                for written in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                    if written.data_file.file_path.startswith(f"{target.folder}/"):
                        return
    delete_folder(target)


# -- streams -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a stream.

    Args:
        writer_id: Names the stream.
        query_id: Of the streaming query. Spark keeps it in the checkpoint, so a checkpoint that was deleted has
            another one; empty when no query runs.
        number: Counts from 0 in each checkpoint.
        former_id: How older versions named the stream, where that was not *writer_id*.
    """

    writer_id: str
    query_id: str
    number: int
    former_id: str = ""

    @property
    def request_id(self) -> str:
        """The same for every replay of this batch."""
        return request_uuid(f"{self.writer_id}/{self.query_id}/{self.number}")

    @property
    def summary(self) -> dict[str, str]:
        """What the snapshot says of it."""
        return {"commit-coord.writer-id": self.writer_id, "commit-coord.batch-id": str(self.number)}

    @property
    def properties(self) -> dict[str, str]:
        """The mark: a table property that outlives the snapshot."""
        return {f"{WRITER_PROPERTY}{self.writer_id}": f"{self.number} {self.query_id}".strip()}

    def done(self, table: CoordinatedTable) -> bool:
        """Say whether *table* has this batch. Spark repeats a batch when it does not know that it was committed.

        Raises:
            CommitNotApplied: The mark says so, and it is not certain. The rows may be others than those that were
                written under this number, so they are neither dropped nor written twice.
        """
        mark = table.properties.get(f"{WRITER_PROPERTY}{self.writer_id}")
        former = table.properties.get(f"{WRITER_PROPERTY}{self.former_id}") if self.former_id else None
        if mark is None and former == str(self.number):
            mark = former  # of another number it is no replay: Spark repeats the last batch alone
        if mark is None:
            return table.find_commit(self.request_id) is not None
        last, _, query = mark.partition(" ")
        # A mark without a query is of an older version, or no query ran. A checkpoint that starts anew starts with 0.
        if query in ("", self.query_id) and int(last) < self.number:
            return False
        if int(last) == self.number and self._is_last(table, query):
            return True
        if table.find_commit(self.request_id) is not None:
            return True
        raise CommitNotApplied(
            "nothing was written: the table has later batches of this stream, or batches from another checkpoint, "
            "and none that is known to be this one. Give the stream another writer id if it starts anew",
            writer_id=self.writer_id,
            batch=self.number,
            query=self.query_id or None,
            mark=mark,
        )

    def _is_last(self, table: CoordinatedTable, query: str) -> bool:
        """Return whether the mark that *query* left with this number is known to be of this batch."""
        if known := query or (self.query_id if self.writer_id == self.query_id else ""):
            return known == self.query_id
        # 0 is also the first batch after the checkpoint was deleted, and an older version named both alike.
        former = request_uuid(f"{self.former_id or self.writer_id}/{self.number}")
        return self.number > 0 and table.find_commit(former) is not None


def foreach_batch(
    table: TableOrName, *, writer_id: str | None = None, **arguments: Any
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``writeStream.foreachBatch`` that writes every batch exactly once, replays included.

    Args:
        table: As for :func:`write_table`.
        writer_id: Names the stream. None takes the id of the streaming query, which its checkpoint keeps. One name
            must not be used by two streams, nor again after the checkpoint was deleted: such batches are refused.
        arguments: Of :func:`write_table`, without ``request_id``.

    The function raises what :func:`write_table` raises; Spark then fails the query, and a restart repeats the batch.
    """

    def write(df: DataFrame, batch_id: int) -> None:
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        name = writer_id or query
        if not name:
            raise ConfigError("no streaming query runs this function: give it a writer_id")
        given = dict(arguments)
        source = df.schema if given.pop("create", False) else None
        found = resolve(table, source, given.pop("partition_by", ()), given.pop("properties", None) or {})
        batch = Batch(name, query or "", batch_id)
        if batch.done(found):
            logger.info("batch %d of %s was written before", batch_id, name)
            return
        given["snapshot_properties"] = (given.get("snapshot_properties") or {}) | batch.summary
        given["table_properties"] = (given.get("table_properties") or {}) | batch.properties
        write_table(df, found, **given, request_id=batch.request_id)

    return write
