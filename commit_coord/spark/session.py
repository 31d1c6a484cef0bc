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

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from commit_coord.errors import ConfigError


def require_classic(session: Any) -> None:
    """Return if *session* (or DataFrame) talks to a JVM in this process's reach.

    Raises:
        ConfigError: It is a Spark Connect session.
    """
    if not hasattr(session, "_jsparkSession") and not hasattr(session, "_jdf"):
        raise ConfigError(
            "this call needs a classic Spark session; with Spark Connect use format('commit_coord')",
            session=type(session).__name__,
        )


class Scratch:
    """A clone of *spark* with *settings* on top. See the module's text."""

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        self._spark = spark
        self._session: Any = spark._jsparkSession.cloneSession()
        self._datasets = self._jvm("org.apache.spark.sql.classic.Dataset")
        conf = self._session.conf()
        for key, value in settings.items():
            conf.set(key, value)

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
        plan = reader.parquet(self._strings(paths)).queryExecution().analyzed()
        return DataFrame(self._datasets.ofRows(self._spark._jsparkSession, plan), self._spark)

    def select(self, df: DataFrame, columns: Sequence[tuple[str, str, DataType | None]]) -> DataFrame:
        """Return *columns* of *df*, without the metadata that Spark keeps of a column.

        As ``df.select`` does, in a tenth of the time: PySpark asks the JVM for its settings and its stack with each
        step of each column, which takes longer than all else that the planning of a read does.

        Args:
            df: Of the caller's session.
            columns: Of each its name in *df* (quoted), its name in the result, and what to cast it to, if to anything.
        """
        functions = self._jvm("org.apache.spark.sql.functions")
        none = self._jvm("org.apache.spark.sql.types.Metadata").empty()
        made = []
        for name, shown, kind in columns:
            column = functions.col(name)
            if kind is not None:
                column = column.cast(self._session.parseDataType(kind.json()))
            made.append(getattr(column, "as")(shown, none))
        return DataFrame(df._jdf.select(self._array("org.apache.spark.sql.Column", made)), self._spark)

    def _strings(self, values: Sequence[str]) -> Any:
        return self._array("java.lang.String", values)

    def _jvm(self, name: str) -> Any:
        """Return a class of the JVM; asked for step by step, each package in front of it is another question."""
        return getattr(self._spark._jvm, name)

    def _array(self, kind: str, values: Sequence[Any]) -> Any:
        gateway: Any = self._spark.sparkContext._gateway
        array = gateway.new_array(self._jvm(kind), len(values))
        for position, value in enumerate(values):
            array[position] = value
        return array


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
