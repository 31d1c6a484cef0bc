"""Spark's inside, as far as the fast way needs it. ``Any`` stops here.

Spark takes several settings of its Parquet code from the session alone, and from the session *that owns the
relation*, at the time when the query runs: ``spark.sql.parquet.fieldId.read.enabled`` is no read option (the
options of a relation reach Hadoop's configuration in lower case). A session setting that is changed for a
moment would be gone when a lazy DataFrame runs, and would be seen by other threads meanwhile.

So no setting of the caller's session is ever touched. The relation is made in a *scratch session*, a clone of
the caller's with our settings on top, and its plan is then bound to the caller's session: the resulting
DataFrame joins, caches and shows up like any other, and its relation keeps our settings as long as it lives.
Writing does the same in the other direction. Clones share the catalog of temporary views at the time, the
cache, the listeners and the Spark context; they cost about a millisecond.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from commit_coord.errors import ConfigError


def require_classic(session: Any) -> None:
    """Return if *session* (or DataFrame) talks to a JVM in this process's reach.

    Raises:
        ConfigError: It is a Spark Connect session, or a stopped one.
    """
    if not hasattr(session, "_jsparkSession") and not hasattr(session, "_jdf"):
        raise ConfigError(
            "this call needs a classic Spark session; Spark Connect reaches the table through 'commit-coord serve'",
            session=type(session).__name__,
        )
    if getattr(session, "sparkSession", session).sparkContext._jsc is None:
        raise ConfigError(
            "the Spark session has been stopped: nothing was done; start one, and make the DataFrame anew"
        )


class Scratch:
    """A clone of *spark* with *settings* on top. See the module's text."""

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        self._spark = spark
        self._session: Any = spark._jsparkSession.cloneSession()
        self._datasets = self._jvm("org.apache.spark.sql.classic.Dataset")
        self._session.sessionState().conf().setConf(self._properties(settings))

    def write(self, df: DataFrame, path: str, *, partition_by: Sequence[str], options: Mapping[str, str]) -> None:
        """Write the rows of *df* as Parquet into the new folder *path*. Returns after the job was committed."""
        plan = df._jdf.queryExecution().analyzed()
        writer = self._datasets.ofRows(self._session, plan).write().format("parquet").mode("errorifexists")
        for key, value in options.items():
            writer = writer.option(key, value)
        if partition_by:
            writer = writer.partitionBy(self._strings(partition_by))
        writer.save(path)

    def read(self, paths: Sequence[str], schema: StructType, options: Mapping[str, str]) -> DataFrame:
        """Return the rows of the Parquet files *paths* as a DataFrame of the caller's session."""
        reader = self._session.read().schema(self._session.parseDataType(schema.json()))
        for key, value in options.items():
            reader = reader.option(key, value)
        return self._of_the_caller(reader.parquet(self._strings(paths)))

    def select(self, df: DataFrame, columns: Sequence[tuple[str, str, DataType]]) -> DataFrame:
        """Return *columns* of *df*, without the metadata that Spark keeps of a column.

        With as many calls to the JVM, however many there are. Each is cast: Spark takes the metadata of what is only
        renamed along, and its optimizer removes a cast that changes nothing.

        Args:
            df: Of the caller's session.
            columns: Of each its name in *df*, its name in the result (both quoted), and its type in the result.
        """
        texts = [f"CAST({name} AS {self._sql(kind)}) AS {shown}" for name, shown, kind in columns]
        plan = self._datasets.ofRows(self._session, df._jdf.queryExecution().analyzed())
        return self._of_the_caller(plan.selectExpr(self._strings(texts)))

    def _of_the_caller(self, rows: Any) -> DataFrame:
        plan = rows.queryExecution().analyzed()
        return DataFrame(self._datasets.ofRows(self._spark._jsparkSession, plan), self._spark)

    def _sql(self, kind: DataType) -> str:
        """Return *kind* in SQL; only the JVM quotes the names in it."""
        if isinstance(kind, ArrayType | MapType | StructType):
            return str(self._session.parseDataType(kind.json()).sql())
        return kind.simpleString()

    # Each call to the JVM takes a third of a millisecond: what has many parts goes there as one text.

    def _properties(self, values: Mapping[str, str]) -> Any:
        found = self._jvm("java.util.Properties")()
        text = "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in values.items())
        found.load(self._jvm("java.io.StringReader")(text))
        return found

    def _strings(self, values: Sequence[str]) -> Any:
        mark = uuid.uuid4().hex  # a name may have any character
        return self._jvm("java.util.regex.Pattern").compile(mark).split(mark.join(values))

    def _jvm(self, name: str) -> Any:
        """Return a class of the JVM; asked for step by step, each package in front of it is another question."""
        return getattr(self._spark._jvm, name)


_CUT = re.compile(r"^Truncated plan of \d+ characters|\.\.\. \d+ more characters\s*$")
"""What Spark writes in place of what is beyond ``spark.sql.maxPlanStringLength``."""


def plan_text(spark: SparkSession, plan: Any) -> str:
    """Return *plan* as text: all of it, however short its session wants the texts of plans."""
    text = str(plan.toString())
    if _CUT.search(text) is None:
        return text
    # The limit is that of the session that is active in this thread.
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    try:
        sessions.setActiveSession(Scratch(spark, {"spark.sql.maxPlanStringLength": "2147483632"})._session)
        return str(plan.toString())
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def relations(plan: Any) -> list[Any]:
    """Return what the analyzed *plan* reads through Spark's second API for data sources, also in its subqueries."""
    return [
        leaf
        for each in (plan, *_each(plan.subqueriesAll()))
        for leaf in _each(each.collectLeaves())
        if str(leaf.getClass().getSimpleName()) == "DataSourceV2Relation"
    ]


def plans_being_written(spark: SparkSession, *, overwrite: bool) -> list[Any]:
    """Return the analyzed plans of the rows that this driver writes just now, through the second API.

    Spark does not pass the plan of the rows to a data source. Usually there is one such query; if there is another one,
    its rows make the check stricter.

    Source: ``SQLExecution.withNewExecutionId`` of Spark 4.1.
    """
    jvm: Any = spark._jvm
    executions = getattr(getattr(jvm, "org.apache.spark.sql.execution.SQLExecution$"), "MODULE$")
    running = executions.executionIdToQueryExecution().elements()
    kind, found = "OverwriteByExpression" if overwrite else "AppendData", []
    while running.hasMoreElements():
        command = running.nextElement().analyzed()
        if str(command.getClass().getSimpleName()) == kind:
            found.append(command.query())
    return found


def _each(found: Any) -> Iterator[Any]:
    """Yield the elements of a Scala collection."""
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


class _Counted(ClassicDataFrame):
    """A DataFrame whose number of rows is known; one that is made of it is Spark's own, and counts."""

    known_rows: int

    def count(self) -> int:
        """Return the number of rows; run Spark's job only to fill a cache that was asked for."""
        return super().count() if self.is_cached else self.known_rows


def counted(df: DataFrame, rows: int) -> DataFrame:
    """Return *df*, which has so many *rows*, with a ``count()`` that needs no job.

    Spark's API for data sources in Python, and its Parquet reader, have no way to tell the optimizer: there a count
    is a job that opens every file.
    """
    made = _Counted(df._jdf, df.sparkSession)
    made.known_rows = rows
    return made


def planned_at(spark: SparkSession, query_id: str, batch: int) -> str:
    """Return when Spark planned a *batch* of a query that runs, in milliseconds; empty when that is not known.

    The checkpoint has it together with the offsets of the batch. A batch that is repeated has the same; a batch that is
    planned anew, because the checkpoint has lost its offsets, may have other rows, and has a later one.
    """
    query = _running(spark, query_id)
    entry = query.offsetLog().get(batch) if query is not None else None
    if entry is None or entry.isEmpty() or entry.get().metadata().isEmpty():
        return ""
    return str(entry.get().metadata().get().batchTimestampMs())


def run_of(spark: SparkSession, query_id: str) -> str:
    """Return the id of the present run of a query; empty when it does not run. A restart is another run."""
    query = _running(spark, query_id)
    return str(query.runId()) if query is not None else ""


def _running(spark: SparkSession, query_id: str) -> Any:
    jvm: Any = spark._jvm
    queries = spark._jsparkSession.sharedState().activeStreamingQueries()
    return queries.get(jvm.java.util.UUID.fromString(query_id))


def hadoop_uris(spark: SparkSession, paths: Sequence[str]) -> dict[str, str]:
    """Map each of *paths* to how ``_metadata.file_path`` shows it: qualified, percent-encoded."""
    jvm: Any = spark._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    result = {}
    for path in paths:
        plain = jvm.org.apache.hadoop.fs.Path(path)
        qualified = plain.getFileSystem(configuration).makeQualified(plain)
        result[path] = jvm.org.apache.hadoop.fs.Path(qualified.toString()).toUri().toString()
    return result


def spark_path(location: str) -> str:
    """Return *location* as Spark needs it: PyIceberg's bare paths are local, and Hadoop's S3 is ``s3a``."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location if location.startswith("file:") else f"file://{location}"
    return f"s3a://{rest}" if scheme in ("s3", "s3n") else location
