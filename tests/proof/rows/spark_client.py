"""Performs what ``spark`` draws: the client ``k`` on one Spark session, for many programs.

The functions of ``commit_coord.spark`` commit in this process, so the races of programs reach them as any other
client's. A worker of Spark's commits for ``format("commit_coord")``: the source that is registered here asks first,
through a socket, so that another client can do something between the tasks of a job and its commit.

What the table holds is read through Spark as well: by ``read_table`` and by the format, with conditions that either of
us evaluates.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import time
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.exceptions
import pyspark.sql.types as T
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import commit_coord
from commit_coord import errors
from commit_coord.spark import compact_table, datasource, foreach_batch, read_table, register, write_table
from commit_coord.testing.table_files.observed import Files
from commit_coord.testing.table_files.values import canonical
from tests.proof.rows.clients import Clients
from tests.proof.rows.doing import NAMESPACE, Doing
from tests.proof.rows.draw.dice import Dice
from tests.proof.rows.draw.evolutions import View
from tests.proof.rows.draw.steps import Mix
from tests.proof.rows.draw.tables import placed, table
from tests.proof.rows.engines import column
from tests.proof.rows.findings import Finding
from tests.proof.rows.many import Rig
from tests.proof.rows.model.conditions import Always, Where, bound
from tests.proof.rows.program import Program, Step
from tests.proof.rows.read import limits, readers
from tests.proof.rows.run import Run
from tests.proof.rows.spark import CLIENT, SparkCompact, SparkLook, SparkSelect, SparkWrite, draw, text

_LOOK = "__look"


def session(stack: ExitStack) -> SparkSession:
    """Return a session that ends with *stack*."""
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/St_Johns")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    stack.callback(made.stop)
    return made


# The source that asks.


class _Asks(datasource.TableWriter):
    gate: str

    def commit(self, messages: list[Any]) -> None:
        _ask(self.gate)
        super().commit(messages)


class _AsksInStream(datasource.TableStreamWriter):
    gate: str

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        _ask(self.gate)
        super().commit(messages, batchId)


def _ask(gate: str) -> None:
    with Client(gate, "AF_UNIX") as connection:
        connection.send("commits")
        connection.recv()


class _Gate:
    """Has the main thread do something while a worker of Spark's waits to commit."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "gate")
        self._listener = Listener(self.path, "AF_UNIX")

    def during(self, work: Callable[[], None], before_a_commit: Callable[[], None]) -> None:
        """Return when *work* is done, or raise what it raised."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - it is raised there
                raised.append(error)
            finally:
                with Client(self.path, "AF_UNIX") as connection:
                    connection.send("done")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while True:
            with self._listener.accept() as connection:
                if connection.recv() == "done":
                    break
                before_a_commit()
                connection.send("go on")
        thread.join()
        for error in raised:
            raise error

    def close(self) -> None:
        self._listener.close()


# Types. By hand, and not by what is tested.

_SPARK: dict[type[IcebergType], T.DataType] = {
    BooleanType: T.BooleanType(),
    IntegerType: T.IntegerType(),
    LongType: T.LongType(),
    FloatType: T.FloatType(),
    DoubleType: T.DoubleType(),
    DateType: T.DateType(),
    TimestampType: T.TimestampNTZType(),
    TimestamptzType: T.TimestampType(),
    StringType: T.StringType(),
    BinaryType: T.BinaryType(),
    TimeType: T.StringType(),
}


def spark_type(kind: IcebergType) -> T.DataType:
    """Return the type of a column of *kind* in a DataFrame; a time of day is text there."""
    match kind:
        case StructType(fields=fields):
            return T.StructType([T.StructField(f.name, spark_type(f.field_type)) for f in fields])
        case ListType():
            return T.ArrayType(spark_type(kind.element_type))
        case MapType():
            return T.MapType(spark_type(kind.key_type), spark_type(kind.value_type))
        case DecimalType():
            return T.DecimalType(kind.precision, kind.scale)
    return _SPARK[type(kind)]


def _optional(kind: IcebergType) -> IcebergType:
    """Return *kind* with nothing required, and with text for a time of day."""
    match kind:
        case StructType(fields=fields):
            return StructType(*(NestedField(f.field_id, f.name, _optional(f.field_type)) for f in fields))
        case ListType():
            return ListType(kind.element_id, _optional(kind.element_type), element_required=False)
        case MapType():
            return MapType(
                kind.key_id, _optional(kind.key_type), kind.value_id, _optional(kind.value_type), value_required=False
            )
        case TimeType():
            return StringType()
    return kind


def _there(value: Any, kind: IcebergType) -> Any:
    """Return a value as a DataFrame has it."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {f.name: _there(value.get(f.name), f.field_type) for f in fields}
        case ListType():
            return [_there(item, kind.element_type) for item in value]
        case MapType():
            pairs = value.items() if isinstance(value, dict) else value
            return [(_there(k, kind.key_type), _there(v, kind.value_type)) for k, v in pairs]
        case TimeType():
            return value.isoformat(timespec="microseconds")
    return value


def _back(value: Any, kind: IcebergType) -> Any:
    """Return a value of a DataFrame as a user writes it."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {f.name: _back(value[f.name], f.field_type) for f in fields}
        case ListType():
            return [_back(item, kind.element_type) for item in value]
        case MapType():
            return [(_back(k, kind.key_type), _back(v, kind.value_type)) for k, v in value]
        case TimeType():
            return time.fromisoformat(value)
    return value


def frame(spark: SparkSession, operation: SparkWrite, schema: Schema) -> DataFrame:
    """Return the DataFrame that is written."""
    named = {name for row in operation.rows for name in row}
    fields = [f for f in schema.fields if f.name in named or not named]
    if operation.shouted:
        fields.reverse()
    loose = [NestedField(f.field_id, f.name, _optional(f.field_type)) for f in fields]
    kinds = {f.name: f.field_type for f in fields}
    rows = [{name: _there(row.get(name), kind) for name, kind in kinds.items()} for row in operation.rows]
    arrow = pa.Table.from_pylist(rows, schema=schema_to_pyarrow(Schema(*loose), include_field_ids=False))
    names = [f.name.upper() if operation.shouted else f.name for f in fields]
    shape = T.StructType([T.StructField(name, spark_type(f.field_type)) for name, f in zip(names, fields, strict=True)])
    made: DataFrame = spark.createDataFrame(arrow.rename_columns(names), shape)
    return made.repartition(operation.parts) if operation.parts > 1 else made


# The client.


class _Catalog:
    """The client's catalog: what it hands to the coordinator can be waited for."""

    def __init__(self, real: Any) -> None:
        self.real = real
        commit = real.coordinator.commit

        def announced(*args: Any, **kwargs: Any) -> Any:
            self.commit()
            return commit(*args, **kwargs)

        real.coordinator.commit = announced

    @property
    def coordinator(self) -> _Catalog:
        """Return what has a method ``commit``."""
        return self

    def commit(self) -> None:
        """Be called right before a commit."""

    def load_table(self, key: tuple[str, str]) -> Any:
        """Return a table."""
        return self.real.load_table(key)

    def close(self) -> None:
        """Close it."""
        self.real.close()


class SparkClients(Clients):
    """The clients of every program, and ``k``.

    Args:
        spark: The session.
        folder: Where everything lies.
        locks: ``operation-locks`` of ours.
    """

    lock_impl = "lease"  # workers of Spark's are processes

    def __init__(self, spark: SparkSession, folder: Path, locks: str) -> None:
        self.spark = spark
        super().__init__(folder, locks)
        self._connection.close()
        self._connection = sqlite3.connect(self.database, check_same_thread=False)  # one thread at a time
        self.properties = {
            "py-catalog-impl": "commit_coord.catalog.CoordinatedSqlCatalog",
            "uri": f"sqlite:///{self.database}",
            "warehouse": f"file://{folder}/warehouse",
            "lock-impl": self.lock_impl,
            "operation-locks": locks,
            "lock.acquire-timeout-ms": "150",
        }
        self.catalogs[CLIENT] = _Catalog(commit_coord.load_catalog("rows", **self.properties))
        register(spark)
        self.gate = _Gate(folder)
        gate = self.gate.path
        self.asking = asking = f"commit_coord_asking_{locks}"

        holder = datasource._holder.address if datasource._holder is not None else None

        class Asking(datasource.CommitCoordDataSource):
            def __init__(self, options: dict[str, str]) -> None:
                super().__init__(options, holder)

            @classmethod
            def name(cls) -> str:
                return asking

            def writer(self, schema: T.StructType, overwrite: bool) -> Any:
                made: Any = super().writer(schema, overwrite)
                if not isinstance(made, datasource.LandedWriter):  # which has nothing to commit
                    made.__class__, made.gate = _Asks, gate
                return made

            def streamWriter(self, schema: T.StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
                made: Any = super().streamWriter(schema, overwrite)
                made.__class__, made.gate = _AsksInStream, gate
                return made

        spark.dataSource.register(Asking)

    def doing(self, folder: Path, files: Files) -> Any:
        """Return what does operations."""
        return SparkDoing(folder, files, clients=self)

    def options(self, table: str) -> dict[str, str]:
        """Return the options of the format for a table."""
        given = {f"catalog.{key}": value for key, value in self.properties.items()}
        return {"catalog": "rows", "table": f"{NAMESPACE}.{table}", **given}

    def close(self) -> None:
        """Close them."""
        self.gate.close()
        super().close()


@dataclass
class SparkDoing(Doing):
    """Does Spark's operations as well.

    Args:
        clients: The session, and where it finds the catalog.
    """

    clients: Any = None
    _batches: int = field(default=0, init=False)

    def __call__(self, operation: Any, table: Table) -> None:
        """Do *operation* on *table*, as its client sees it."""
        try:
            match operation:
                case SparkWrite():
                    self._write(operation, table)
                case SparkSelect(where=where, mode=mode, pushed=pushed, named=named):
                    schema, whole = table.schema(), (table.catalog, table.name())
                    row_filter = readers.expression(where) if pushed else readers.expression(Always())
                    df = read_table(self.clients.spark, whole if named else table, row_filter=row_filter)
                    if not pushed and where != Always():
                        df = df.where(column(where, schema))
                    write_table(df, whole, mode)
                case SparkCompact():
                    compact_table(self.clients.spark, table)
                case _:
                    super().__call__(operation, table)
        except PySparkException as error:
            raise _ours(error) from error

    def _write(self, operation: SparkWrite, table: Table) -> None:
        df = frame(self.clients.spark, operation, table.schema())
        self._batches += 1
        number = self._batches
        whole, name = (table.catalog, table.name()), f"{table.metadata.table_uuid} {number}"
        match operation.way:
            case "function":
                for _ in range(1 + operation.again):
                    write_table(
                        df,
                        whole,
                        operation.mode,
                        overwrite_filter=readers.expression(operation.where),
                        branch=operation.branch,
                        request_id=name if operation.again else None,
                    )
            case "foreach":
                for _ in range(1 + operation.again):
                    foreach_batch(whole, writer_id="w", branch=operation.branch)(df, number)
            case "format":
                for _ in range(1 + operation.again):
                    self._by_format(operation, df, table, name)
            case "stream":
                self._stream(operation, df, table, number)

    def _asking(self, work: Callable[[], None]) -> None:
        """Do *work* in another thread, and let others commit when it asks."""
        spark = self.clients.spark

        def there() -> None:
            # Spark looks for a source of Python's in the thread's session only.
            spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
            work()

        self.clients.gate.during(there, self.clients.catalogs[CLIENT].commit)

    def _by_format(self, operation: SparkWrite, df: DataFrame, table: Table, name: str) -> None:
        options = {**self.clients.options(table.name()[-1]), "branch": operation.branch, "request-id": name}
        if operation.mode == "dynamic":
            options["overwrite-mode"] = "dynamic"
        if not isinstance(operation.where, Always):
            options["overwrite-filter"] = text(operation.where)
        if operation.given:
            options["reads"] = "nothing"
        writer = df.write.format(self.clients.asking).options(**options)
        self._asking(writer.mode("append" if operation.mode == "append" else "overwrite").save)

    def _stream(self, operation: SparkWrite, df: DataFrame, table: Table, number: int) -> None:
        there = self.folder / f"stream-{number}"
        checkpoint = there / "checkpoint"
        df.coalesce(1).write.parquet(str(there / "in"))
        options = {**self.clients.options(table.name()[-1]), "branch": operation.branch}

        def run() -> None:
            source = self.clients.spark.readStream.schema(df.schema).parquet(str(there / "in"))
            writer = source.writeStream.format(self.clients.asking).options(**options)
            query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
            query.awaitTermination()

        self._asking(run)
        if operation.again and checkpoint.exists():
            shutil.rmtree(checkpoint / "commits")
            self._asking(run)
        if operation.restored and checkpoint.exists():
            df.coalesce(1).write.mode("append").parquet(str(there / "in"))
            self._restored(checkpoint, run)

    def _restored(self, checkpoint: Path, run: Callable[[], None]) -> None:
        """Go on with the checkpoint as it was before its first batch: the next one has that number, and other rows.

        Raises:
            Finding: It was not refused.
        """
        for name in ("commits", "offsets", "sources"):
            shutil.rmtree(checkpoint / name, ignore_errors=True)
        try:
            self._asking(run)
        except PySparkException as error:
            if "checkpoint is older than the table" not in str(error):
                raise
        else:
            raise Finding("a restored checkpoint", "another batch of the same number was not refused")


_RAISED = re.compile(r"(?:commit_coord|pyiceberg)[\w.]*\.(\w+): (.*)")


def _ours(error: PySparkException) -> Exception:
    """Return what a worker raised, of its own type, or *error*."""
    message = str(error)
    found = _RAISED.findall(message)
    if found:
        name, text = found[-1]
        kind = getattr(errors, name, None) or getattr(pyiceberg.exceptions, name, None)
        kind = kind or (commit_coord.spark.SchemaMismatch if name == "SchemaMismatch" else None)
        if kind is not None:
            made: Any = kind.__new__(kind)
            made.args, made.message, made.details = (text,), text, {}
            raised: Exception = made
            return raised
    if "null in required column" in message:
        return ValueError(message)
    return error


# The run.


class SparkRun(Run):
    """A program with steps of Spark's."""

    def step(self, operation: Any) -> None:
        """Do *operation* and judge what came of it.

        Raises:
            Finding: It is wrong.
        """
        if isinstance(operation, SparkLook):
            self._look_through_spark(operation)
        else:
            super().step(operation)

    def _look_through_spark(self, look: SparkLook) -> None:
        clients: Any = self.clients
        try:
            bound(look.where, self.state.fields)
        except LookupError:
            return
        try:
            self._compare(list(_frames(clients, self.name, self.head.schema, look)))
        except (PySparkException, NotImplementedError) as error:
            if not (why := limits.known("ours", error)):
                raise Finding("Spark can't read", f"{look}: {error}") from error
            self.counts[f"not read by Spark: {why}"] += 1

    def _compare(self, frames: list[tuple[str, Where, DataFrame]]) -> None:
        state, fields = self.state, self.state.fields
        every = None
        for number, (_, _, df) in enumerate(frames):
            one = df.withColumn(_LOOK, F.lit(number))
            every = one if every is None else every.unionAll(one)
        assert every is not None
        found: list[Counter[Any]] = [Counter() for _ in frames]
        for row in every.toArrow().to_pylist():
            found[row[_LOOK]][canonical(_back(row, fields), fields)] += 1
        for (name, condition, _), seen in zip(frames, found, strict=True):
            self.counts[f"read by {name}"] += 1
            wanted = Counter(filter(bound(condition, fields), state.of().elements()))
            if seen != wanted:
                missing, more = (sorted(map(repr, bag.elements()))[:3] for bag in (wanted - seen, seen - wanted))
                scan = "scan" if isinstance(condition, Always) else "filter"
                raise Finding(f"{name} {scan}", f"{condition}: missing {missing}, not expected {more}")


def _frames(clients: Any, name: str, schema: Schema, look: SparkLook) -> Iterator[tuple[str, Where, DataFrame]]:
    """Yield what is read, as a name, a condition, and the rows of the table that satisfy it."""
    table = clients.catalogs[CLIENT].load_table((NAMESPACE, name))
    whole = read_table(clients.spark, table)
    yield "Spark's read_table", Always(), whole
    if not isinstance(look.where, Always):
        row_filter = readers.expression(look.where)
        yield "Spark's row_filter", look.where, read_table(clients.spark, table, row_filter=row_filter)
        yield "Spark's filter", look.where, whole.where(column(look.where, schema))
    if look.format:
        data = clients.spark.read.format("commit_coord").options(**clients.options(name)).load()
        yield "Spark's format", look.where, data.where(column(look.where, schema))


class SparkRig(Rig):
    """Clients for each way of locking, with one session: *spark*, or one that ends with *stack*."""

    run = SparkRun

    def __init__(self, stack: ExitStack, spark: SparkSession | None = None) -> None:
        super().__init__(stack)
        self._spark = spark or session(stack)

    def table(self, dice: Dice) -> Program:
        """Return a program without steps; Spark has no type of UUIDs."""
        return placed(dice, table(dice), neighbours=False, uuids=False)

    def of(self, locks: str) -> Clients:
        """Return clients that lock so."""
        if locks not in self._made:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rows-")))
            made = SparkClients(self._spark, folder, locks)
            self._stack.callback(made.close)
            self._made[locks] = made
        return self._made[locks]

    def step(self, dice: Dice, view: View, often: Mix, *, last: bool) -> Step:
        """Return what is done next."""
        return draw(dice, view, often, last=last)
