"""The convenient way: ``format("commit_coord")``, a Python data source for batch and stream.

Spark runs every method in another worker process, which has the driver plan
(:mod:`commit_coord.spark.registered`): what one step knows, the next one learns from the pickled writer and from the
messages of the tasks alone. After a ``commit()`` that raised or whose process died, Spark calls
``abort()``. It may follow a commit that has landed, or that will land, so ``commit()`` leaves a mark next to
the files before it begins, and ``abort()`` deletes them only without the mark or when the commit was refused for good.
"""

from __future__ import annotations

import json
import logging
import pickle
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as T
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, Or
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)

from commit_coord.config import default_catalog_name
from commit_coord.errors import ConfigError, InternalError
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.model import WriteMode
from commit_coord.spark.arrow import BatchReader, BatchWriter
from commit_coord.spark.catalogs import opened
from commit_coord.spark.files import Target, delete_folder
from commit_coord.spark.filters import parse
from commit_coord.spark.frame_reads import BranchRead, depends_on, head_of
from commit_coord.spark.holder import Address, DriverService, PlanAnswer
from commit_coord.spark.listings import register_listings
from commit_coord.spark.locks import check_has_partitions, check_inside, write_locks
from commit_coord.spark.options import (
    OPTIONS,
    PREFIX,
    TABLE_KEYS,
    TABLE_OPTIONS,
    catalog_settings,
    check_applies,
    help_text,
    listing_help,
    spark_properties,
)
from commit_coord.spark.publish import drop_repeated, publish
from commit_coord.spark.read import plan, travel
from commit_coord.spark.registered import RegisteredDataSource
from commit_coord.spark.schema import SchemaMismatch, bare_schema, check_fits
from commit_coord.spark.session import planned_at, plans_being_written
from commit_coord.spark.streams import QUERY_ID, Batch
from commit_coord.table.isolation import NO_SNAPSHOT, NOTHING
from commit_coord.table.operation_locks import AlreadyHeld
from commit_coord.table.writable import check_version

if TYPE_CHECKING:
    import pyarrow as pa

    from commit_coord.catalog.base import CoordinatedCatalog
    from commit_coord.table import CoordinatedTable

logger = logging.getLogger(__name__)

_MARK = "_commit_began"
_FILES_A_TASK = 8
_holder: DriverService | None = None


def register(spark: SparkSession) -> None:
    """Make ``format("commit_coord")`` known to *spark*. This process plans for it, and holds its locks.

    Also the formats of :mod:`commit_coord.spark.listings`: ``commit_coord.locks`` shows who holds and waits for what,
    ``commit_coord.leases`` the leases.

    Reads ``spark.sql.catalog.<name>.*``: call it again after a change of these. May be called at any time.

    Options of ``format("commit_coord")``::

        {options}

    Options of ``format("commit_coord.locks")`` and ``format("commit_coord.leases")``::

        {listing options}
    """
    global _holder  # noqa: PLW0603 - one holder a driver
    context = spark.sparkContext
    if _holder is not None and not _holder.alive:
        _holder.close()
    if _holder is None or not _holder.alive:
        _holder = DriverService(lambda: context._jsc is None, partial(_plan, spark))
    address, found = _holder.address, catalog_settings(spark.conf.getAll)

    class Registered(RegisteredDataSource):
        # Local, so that it is pickled by value, with the address.
        driver = address
        settings = found

    spark.dataSource.register(Registered)
    register_listings(spark, found)


if register.__doc__ is not None:  # python -OO
    register.__doc__ = register.__doc__.replace("        {options}", help_text())
    register.__doc__ = register.__doc__.replace("        {listing options}", listing_help())


def _plan(
    spark: SparkSession,
    address: Address,
    step: str,
    options: Mapping[str, str],
    settings: Mapping[str, str],
    arguments: tuple[Any, ...],
) -> PlanAnswer:
    """Do one step for a worker; see :data:`commit_coord.spark.holder.PlanFunction`."""
    if step == "planned":
        return PlanAnswer(planned_at(spark, *arguments))
    given = dict(options)
    if step == "partitions":
        given = given or _options_in(arguments[0])
    elif step != "schema":
        _check_target(given)
    source = CommitCoordDataSource(given, address, settings, spark)
    match step:
        case "schema":
            return PlanAnswer(_with_options(source.schema(), options))
        case "partitions":
            return PlanAnswer([pickle.dumps(pack) for pack in source.reader(*arguments).partitions()])
        case "writer":
            writer = source.writer(*arguments)
            return PlanAnswer(pickle.dumps(writer), lambda: writer.abort([]))
        case "streamWriter":
            stream = source.streamWriter(*arguments)
            return PlanAnswer(pickle.dumps(stream), lambda: stream.abort([], 0))
    raise InternalError("unknown step of a plan", step=step)


_OPTIONS_IN_COLUMN = "commit_coord.options"
"""Key in the metadata of a column."""


def _check_target(options: Mapping[str, str]) -> None:
    """Refuse a write whose *options* name no table.

    Spark's SQL passes the name of the target to no data source, nor the options that the target was made with. And the
    columns of the rows say nothing of the target: where they fit as they are, Spark leaves them those of the query.
    """
    if not {"table", "path"} & _plain(options).keys():
        raise ConfigError(
            "Spark does not say which table this write is for: name it in the options of the write",
            key="table",
            accepted="INSERT INTO … WITH ('table' = 'db.t') SELECT …, "
            "df.writeTo(…).option('table', 'db.t').append(), "
            "df.write.format('commit_coord').mode('append').save('db.t')",
        )


def _with_options(schema: T.StructType, options: Mapping[str, str]) -> T.StructType:
    """Return *schema* with the options of the table of Spark's SQL that is made with it.

    Spark keeps such a table in its own catalog, and passes its columns to a read, and not its options.
    """
    if not any(key.startswith(TABLE_KEYS) for key in options):
        return schema
    kept = {_OPTIONS_IN_COLUMN: _harmless(_plain(options))}
    return T.StructType([T.StructField(each.name, each.dataType, each.nullable, kept) for each in schema.fields])


def _options_in(schema: T.StructType) -> dict[str, str]:
    """Return the options of the table of Spark's SQL that the columns of *schema* belong to; none where they differ.

    Only for a read: its columns are those of the table that Spark keeps.
    """
    first, *others = [each.metadata.get(_OPTIONS_IN_COLUMN) or {} for each in schema.fields] or [{}]
    return _harmless(first) if all(first == other for other in others) else {}


def _harmless(options: Mapping[str, str]) -> dict[str, str]:
    """Return *options* if all of them may be in the metadata of columns.

    Spark shows these to everybody who reads the table, and writes them into files. So they must contain no password.
    """
    if refused := sorted(options.keys() - TABLE_OPTIONS):
        raise ConfigError(
            "this option can't be stored in a Spark SQL table, because everybody who reads the table can see its "
            "options: describe the catalog under its name, in spark.sql.catalog.<name>.* or .pyiceberg.yaml",
            key=", ".join(refused),
            accepted=", ".join(sorted(TABLE_OPTIONS)),
        )
    return dict(options)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one read or write, all strings.

    Args:
        values: As Spark gives them, keys in lower case.
        settings: Of Spark, about catalogs.
    """

    values: Mapping[str, str]
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse unknown keys, and a missing table."""
        for key in self.values:
            if key not in OPTIONS and not key.startswith(PREFIX):
                raise ConfigError("unknown option", key=key, accepted=", ".join(OPTIONS))
        if not (self.get("table") or self.get("path")):
            raise ConfigError("no table is named", key="table", accepted="option('table', 'db.t')")
        if self.get("path") and self.get("table") not in (None, "", self.get("path")):
            raise ConfigError("two tables are named: leave one out", table=self.get("table"), path=self.get("path"))

    def get(self, key: str) -> str | None:
        """Return the option or None."""
        return self.values.get(key)

    def number(self, key: str) -> int | None:
        """Return the option as a whole number or None."""
        text = self.get(key)
        try:
            return int(text) if text is not None else None
        except ValueError as error:
            raise ConfigError("not a whole number", key=key, value=text) from error

    @property
    def identifier(self) -> str:
        """The table's name."""
        return self.get("table") or self.get("path") or ""

    @property
    def properties(self) -> dict[str, str]:
        """The catalog's properties: the options go before Spark's settings."""
        given = {key.removeprefix(PREFIX): value for key, value in self.values.items() if key.startswith(PREFIX)}
        return spark_properties(self.settings, self.values["catalog"]) | given

    def open(self, **properties: str) -> tuple[CoordinatedCatalog, CoordinatedTable]:
        """Return catalog and table."""
        catalog = opened(self.get("catalog"), self.properties | properties)
        return catalog, catalog.load_table(self.identifier)

    def open_to_write(self, schema: T.StructType) -> CoordinatedTable:
        """Return the table.

        Raises:
            CommitNotApplied: Its format version can't be written.
            SchemaMismatch: Rows of *schema* do not fit.
        """
        _, table = self.open()
        check_version(table.metadata.format_version, table.name())
        check_fits(schema, table.schema())
        return table


class CommitCoordDataSource(DataSource):
    """See the module's text. This is the data source without Spark's workers: the driver plans with it.

    Args:
        options: See :data:`commit_coord.spark.options.OPTIONS`.
        holder: Where the driver holds the operation locks of writes; without it no write may need any.
        settings: Of Spark, about catalogs.
        spark: Of the driver: shows what rows are computed from; without it that is not looked for.
    """

    def __init__(
        self,
        options: dict[str, str],
        holder: Address | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        spark: SparkSession | None = None,
    ) -> None:
        super().__init__(options)
        self.holder = holder
        self._spark = spark
        # The name is found here: the process that commits may see another default.
        self._given = Options({"catalog": default_catalog_name()} | _plain(options), dict(settings))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "commit_coord"

    def schema(self) -> T.StructType:
        """Return the table's columns as of the snapshot that is asked for."""
        given = self._given
        check_applies(given.values, "a read")  # Spark asks for them to read, and to make a table of its SQL
        _, table = given.open()
        metadata, _ = travel(
            table.metadata, given.number("snapshot-id"), given.number("as-of-timestamp"), given.get("branch")
        )
        return bare_schema(metadata.schema())

    def reader(self, schema: T.StructType, key: str | None = None) -> TableReader:
        """Return a reader of the columns in *schema*; all readers of one *key* read one snapshot."""
        check_applies(self._given.values, "a read")
        return TableReader(self._given, schema, key)

    def writer(self, schema: T.StructType, overwrite: bool) -> TableWriter | LandedWriter:
        """Take the operation locks, read the table, check *schema*, and return a writer.

        For a request that landed before, when the rows do not fit any more, a writer of nothing.

        Raises:
            SchemaMismatch: The rows do not fit. Nothing was written.
            LockTimeout: A conflicting lock was not given back in time. Nothing was written.
            StaleRead: The rows were read from the table, but from which snapshot is not known. Nothing was written.
            ConfigError: An option has no meaning for this write. Nothing was written.
        """
        given = self._given
        check_applies(given.values, "an overwrite" if overwrite else "an append")
        text = given.get("overwrite-mode") or "static"
        if text not in ("static", "dynamic"):
            raise ConfigError("unknown overwrite mode", key="overwrite-mode", value=text, accepted="static, dynamic")
        mode: WriteMode = "append" if not overwrite else "overwrite" if text == "static" else "dynamic"
        bounds = parse(given.get("overwrite-filter") or "")
        request = request_uuid(given.get("request-id") or str(uuid.uuid4()))
        # Before any check: if the request has landed, its repeat succeeds, whatever has become of the table.
        if given.get("request-id") is not None and given.open()[1].find_commit(request) is not None:
            return LandedWriter()
        table = given.open_to_write(schema)
        locked = _lock(self.holder, request, given, table, mode, bounds)
        try:
            if locked:
                table = given.open_to_write(schema)
            check_has_partitions(mode, table.spec())
            depends = _depends(given, table, mode, bounds, self._spark)
            names = schema.fieldNames()
            return TableWriter(given, self.holder, request, mode, bounds, Target.of(table), names, depends)
        except BaseException:
            _unlock(locked, request)
            raise

    def streamWriter(self, schema: T.StructType, overwrite: bool) -> TableStreamWriter:  # noqa: N802 - Spark's name
        """Return a writer for the next batch. Called once to write and once more to commit."""
        if overwrite:
            raise ConfigError("a stream appends: output mode 'complete' would need the whole table in each batch")
        given = self._given
        check_applies(given.values, "a stream")
        try:
            table = given.open_to_write(schema)
            named = any(given.get(key) for key in ("writer-id", "checkpointlocation", "queryname"))
            if not named and write_locks(table, "append", AlwaysTrue()).held is not AlreadyHeld.ALL:
                # Another stream with the same options would take the locks of this one for its own.
                raise ConfigError(
                    "a stream that takes operation locks needs a writer-id",
                    key="writer-id",
                    accepted="any text that no other stream uses",
                )
            locked = _lock(self.holder, _stream_claim(given), given, table, "append", AlwaysTrue())
            if locked:
                table = given.open_to_write(schema)
            return TableStreamWriter(given, self.holder, Target.of(table), schema.fieldNames())
        except BaseException:
            # Also what this job took when it began: without a writer Spark calls neither commit() nor abort().
            _unlock(self.holder, _stream_claim(given))
            raise


def _plain(options: Mapping[str, str]) -> dict[str, str]:
    """Return *options* under their own names.

    A table of Spark's SQL brings its options with a prefix, and with them properties of its own that say nothing here.
    """
    lower = {key.lower(): value for key, value in options.items()}
    of_table = {key.removeprefix(TABLE_KEYS): value for key, value in lower.items() if key.startswith(TABLE_KEYS)}
    if not of_table:
        return lower
    given = {key: value for key, value in lower.items() if key in OPTIONS or key.startswith(PREFIX)}
    if "table" in of_table:
        given.pop("path", None)  # the LOCATION of the table of Spark's SQL
    return of_table | given


def _stream_claim(given: Options) -> str:
    """Name the locks of a stream: the same in all its calls, and another name for another stream, table or branch."""
    return f"stream/{given.identifier}/{request_uuid(json.dumps(sorted(given.values.items())))}"


def _lock(
    holder: Address | None,
    claim: str,
    given: Options,
    table: CoordinatedTable,
    mode: WriteMode,
    bounds: BooleanExpression,
) -> Address | None:
    """Have the driver take the operation locks of a write. Return the holder when there are any."""
    needed = write_locks(table, mode, bounds)
    if needed.held is AlreadyHeld.ALL:
        return None
    if holder is None:
        raise ConfigError("no process holds the locks of this write: call commit_coord.spark.register(spark) first")
    holder.acquire(
        claim, given.get("catalog"), given.properties, dict(needed.locks), f"{mode} {'.'.join(table.name())}"
    )
    return holder


def _unlock(holder: Address | None, claim: str) -> None:
    """Have the driver give the locks of *claim* back, if there are any."""
    if holder is not None:
        holder.release(claim)


# -- reading -----------------------------------------------------------------------------------------------


@dataclass
class TaskPack(InputPartition):
    """Some files for one task, with all that is needed to read them: Spark pickles the reader before it plans.

    Args:
        tasks: The files.
        reader: Reads them.
        read: What all packs of the plan read together; None if the caller chose a snapshot.
    """

    tasks: Sequence[FileScanTask]
    reader: BatchReader
    read: BranchRead | None = None


_REMEMBERED = 10_000
_first_read: OrderedDict[str, int] = OrderedDict()
"""Key of a reader → the snapshot that its first plan has chosen."""


class TableReader(DataSourceReader):
    """Reads one snapshot, chosen when Spark plans the first query on what ``load()`` returned.

    It takes no filters of Spark's: Spark 4.1 asks for a plan once for a DataFrame, and uses it for all queries on that.
    Planned with the filter of the first query, a second one, or the other side of a self-join, would miss rows.

    Args:
        given: The options.
        schema: Of the rows.
        key: Names what ``load()`` returned. Spark plans it again for each query with
            ``spark.sql.python.filterPushdown.enabled``, and so may two threads.
    """

    def __init__(self, given: Options, schema: T.StructType, key: str | None = None) -> None:
        self._given = given
        self._schema = schema
        self._key = key

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the files.

        Raises:
            ConfigError: The snapshot that was read before has expired.
        """
        given = self._given
        _, table = given.open()
        at, time, branch = given.number("snapshot-id"), given.number("as-of-timestamp"), given.get("branch")
        metadata, snapshot = travel(table.metadata, at, time, branch)
        snapshot = self._first(metadata, snapshot)
        projection = _projection(metadata.schema(), self._schema)
        condition = parse(given.get("row-filter") or "")
        reader = BatchReader.of(metadata, table.io, projection, condition)
        tasks = plan(metadata, table.io, snapshot, condition)
        packs = [tasks[start : start + _FILES_A_TASK] for start in range(0, len(tasks), _FILES_A_TASK)]
        chosen = at is not None or time is not None
        read = None if chosen else BranchRead.of(table, branch or MAIN_BRANCH, snapshot, condition)
        return [TaskPack(pack, reader, read) for pack in packs or [[]]]

    def _first(self, metadata: TableMetadata, snapshot: Snapshot | None) -> Snapshot | None:
        """Return what the first plan of this key has chosen: *snapshot* if this one is it."""
        now = snapshot.snapshot_id if snapshot is not None else NO_SNAPSHOT
        then = _first_read.setdefault(self._key, now) if self._key is not None else now
        while len(_first_read) > _REMEMBERED:
            _first_read.popitem(last=False)
        if then == now:
            return snapshot
        found = metadata.snapshot_by_id(then) if then != NO_SNAPSHOT else None
        if found is None and then != NO_SNAPSHOT:
            raise ConfigError("the snapshot that this DataFrame reads has expired: load it again", snapshot_id=then)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one pack."""
        assert isinstance(partition, TaskPack)
        return partition.reader.read(partition.tasks)


def _projection(schema: Schema, wanted: T.StructType) -> Schema:
    """Return the fields of *schema* that *wanted* names, in its order.

    Raises:
        SchemaMismatch: One is not there, or of another type.
    """
    fields = []
    present = bare_schema(schema)
    for column in wanted.fields:
        if column.name not in present.fieldNames() or present[column.name].dataType != column.dataType:
            raise SchemaMismatch(
                "the table has no such column", column=column.name, type=column.dataType.simpleString()
            )
        fields.append(schema.find_field(column.name))
    return Schema(*fields, schema_id=schema.schema_id)


# -- writing -----------------------------------------------------------------------------------------------


def _depends(
    given: Options, table: CoordinatedTable, mode: WriteMode, bounds: BooleanExpression, spark: SparkSession | None
) -> dict[str, Any]:
    """Return what a write depends on, as arguments of ``commit_files``.

    An overwrite depends on the rows that it replaces, and on those that its query reads; with the option ``reads`` on
    those that it names.

    Raises:
        StaleRead: The rows were read from the table, but from which snapshot is not known.
    """
    text, read_at = given.get("reads"), given.number("read-at")
    if mode == "append" and text is None and read_at is None:
        return {}
    branch = given.get("branch") or MAIN_BRANCH
    reads = NOTHING if text == "nothing" else text
    plans: Sequence[Any] = ()
    if spark is not None:
        plans = plans_being_written(spark, overwrite=mode != "append") or [None]
    seen = head_of(table.metadata, branch)
    found = depends_on(spark, plans, table, branch, reads=reads, read_at=read_at, seen=seen)
    if reads is not None:
        return found
    if mode == "append" or found["reads"] != NOTHING:
        # The partitions of a dynamic overwrite are not known yet.
        found["reads"] = Or(found["reads"], bounds) if mode == "overwrite" else AlwaysTrue()
    else:
        found["reads"] = None
    return found


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files that one task wrote, and the job that the task belongs to."""

    files: list[DataFile]
    target: Target
    query_id: str = ""


class TableWriter(DataSourceArrowWriter):
    """Writes one batch in one commit."""

    def __init__(
        self,
        given: Options,
        holder: Address | None,
        request: str,
        mode: WriteMode,
        bounds: BooleanExpression,
        target: Target,
        names: Sequence[str],
        depends: Mapping[str, Any],
    ) -> None:
        self._given = given
        self._depends = depends
        self._holder = holder
        self._request = request
        self._mode = mode
        self._bounds = bounds
        self._target = target
        self._names = names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of one task attempt. Only what an attempt that succeeded returned counts."""
        return TaskFiles(BatchWriter(self._target, self._names).write(iterator), self._target)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish everything in one commit and give the locks back.

        A request that landed before is not repeated, and the files of this repetition are deleted.
        """
        try:
            # The driver holds the locks of this operation: asking for them here would wait for ourselves.
            _, table = self._given.open(**{"operation-locks": "off"})
            if table.find_commit(self._request) is not None:
                drop_repeated(table, self._target, self._request)
                return
            files = _files(messages)
            if self._mode == "dynamic" and not isinstance(self._bounds, AlwaysTrue):
                check_inside(files, self._target.spec, self._target.schema, self._bounds)
            if files or self._mode == "overwrite":
                _publish(
                    table,
                    files,
                    self._target,
                    mode=self._mode,
                    overwrite_filter=self._bounds if self._mode == "overwrite" else AlwaysTrue(),
                    branch=self._given.get("branch") or MAIN_BRANCH,
                    request_id=self._request,
                    **self._depends,
                )
        finally:
            _unlock(self._holder, self._request)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was written, unless it has landed or may still land, and give the locks back."""
        del messages  # the folder holds also what attempts wrote that did not come to their end
        try:
            _abandon(self._given, self._target, self._request)
        finally:
            _unlock(self._holder, self._request)


class LandedWriter(DataSourceArrowWriter):
    """Writes nothing, and commits nothing."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take the rows of one task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class TableStreamWriter(DataSourceStreamArrowWriter):
    """Writes batches of a stream, each exactly once."""

    def __init__(self, given: Options, holder: Address | None, target: Target, names: Sequence[str]) -> None:
        self._given = given
        self._holder = holder
        self._target = target
        self._names = names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of one task attempt, and say which query it works for."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        return TaskFiles(BatchWriter(self._target, self._names).write(iterator), self._target, query_id or "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish one batch, or delete its files when it was published before."""
        files = _files(messages)
        try:
            _, table = self._given.open(**{"operation-locks": "off"})
            for target, job in self._jobs(messages, batchId):
                batch = replace(job, planned=self._planned(job))
                if batch.done(table):
                    drop_repeated(table, target, batch.request_id)
                elif files:
                    _publish(
                        table,
                        files,
                        target,
                        branch=self._given.get("branch") or MAIN_BRANCH,
                        snapshot_properties=batch.summary,
                        properties=batch.properties,
                        request_id=batch.request_id,
                    )
        finally:
            _unlock(self._holder, _stream_claim(self._given))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Delete what was written for one batch, unless it has landed or may still land."""
        try:
            for target, batch in self._jobs(messages, batchId):
                _abandon(self._given, target, batch.request_id)
        finally:
            _unlock(self._holder, _stream_claim(self._given))

    def _planned(self, batch: Batch) -> str:
        """Ask the driver when Spark planned *batch*; without a driver nobody knows."""
        if self._holder is None or not batch.query_id:
            return ""
        return str(self._holder.plan("planned", {}, {}, batch.query_id, batch.number))

    def _jobs(self, messages: Sequence[WriterCommitMessage | None], number: int) -> list[tuple[Target, Batch]]:
        """Return the one job that *messages* come from; none when no task had an answer."""
        name = self._given.get("writer-id")
        former = self._given.get("checkpointlocation") if name is None else ""
        branch = self._given.get("branch") or MAIN_BRANCH
        found = {
            message.target.folder: (
                message.target,
                Batch(name or message.query_id, message.query_id, number, former or "", branch=branch),
            )
            for message in messages
            if isinstance(message, TaskFiles)
        }
        if any(not batch.writer_id for _, batch in found.values()):
            raise ConfigError("a stream needs a writer-id: no streaming query with an id runs it", key="writer-id")
        return list(found.values())


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[DataFile]:
    return [data_file for message in messages if isinstance(message, TaskFiles) for data_file in message.files]


def _publish(table: CoordinatedTable, files: Sequence[DataFile], target: Target, **arguments: Any) -> None:
    with target.io.new_output(f"{target.folder}/{_MARK}").create(overwrite=True) as mark:
        mark.write(b"A commit of the files in this folder has begun. To find its outcome, look up its request id.\n")
    publish(table, files, target, **arguments)


def _abandon(given: Options, target: Target, request: str) -> None:
    """Delete the folder of a job of which it is certain that it has not landed and never will.

    A commit that was refused has deleted its folder already. One that has begun and is not known to have landed may
    still land, also after its request id was looked for in vain: its files are kept.
    """
    try:
        _, table = given.open()
        if landed := table.find_commit(request) is not None:
            drop_repeated(table, target, request)
        begun = target.io.new_input(f"{target.folder}/{_MARK}").exists()
    except Exception:
        logger.exception("the outcome of request %s is not known; its files are kept", request)
        return
    if landed:
        logger.warning("request %s has landed although Spark gave it up", request)
    elif begun:
        logger.warning("the commit of request %s has begun, its files are kept: %s", request, target.folder)
    else:
        delete_folder(target)
