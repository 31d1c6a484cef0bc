"""Rows a second through PySpark, compared with Iceberg's JVM runtime in the same JVM, session and run.

Both write the same 5 columns with the same codec, statistics and number of files, to the same file system;
the JVM runtime into its hadoop catalog, we into SQLite. Each figure is the least of some repeats, taken in turns so
that a busy neighbour hits both. Planning and commit are inside of the clock.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import commit_coord
from commit_coord.spark import read_table, write_table

_PARTITIONS = 10
BARS = {
    "write": 1.3,
    "write_partitioned": 1.4,
    "read_all": 1.2,
    "sum_one_column": 1.0,
    "count": 1.0,
    "selective_filter": 1.2,
}


def run(rows: int = 5_000_000, repeats: int = 3, jar: str | Path | None = None, cores: int = 2) -> dict[str, Any]:
    """Measure and return seconds, ratios and file counts.

    Args:
        rows: Rows of each table.
        repeats: Of each write, and four times as many of each read; the least counts.
        jar: Iceberg's Spark runtime for pyspark's version; None measures us alone.
        cores: Threads of the local session.

    Returns:
        ``{"rows", "repeats", "cores", "spark", "seconds": {what: {"ours", "jvm"}}, "ratio": {what: ours / jvm},
        "files": {table: {"ours", "jvm"}}, "bars": {what: {"bar", "met"}}}``; ready for JSON.
    """
    with tempfile.TemporaryDirectory(prefix="commit-coord-bench-") as folder:
        spark = _session(folder, jar, cores)
        try:
            return _measure(spark, folder, rows, repeats, with_jvm=jar is not None) | {
                "rows": rows,
                "repeats": repeats,
                "cores": cores,
                "spark": spark.version,
            }
        finally:
            spark.stop()


def _session(folder: str, jar: str | Path | None, cores: int) -> SparkSession:
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("commit_coord bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        .config("spark.sql.warehouse.dir", f"{folder}/spark")
    )
    if jar is not None:
        builder = (
            builder.config("spark.jars", str(jar))
            .config("spark.sql.catalog.jvm", "org.apache.iceberg.spark.SparkCatalog")
            .config("spark.sql.catalog.jvm.type", "hadoop")
            .config("spark.sql.catalog.jvm.warehouse", f"{folder}/jvm")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _rows(spark: SparkSession, rows: int) -> DataFrame:
    """Five columns: two integers, a double that compresses badly, a short text, a timestamp."""
    seed = F.xxhash64("id")
    return spark.range(rows, numPartitions=spark.sparkContext.defaultParallelism).select(
        "id",
        F.pmod(seed, F.lit(_PARTITIONS)).cast("int").alias("k"),
        (seed / 1e9).alias("x"),
        F.concat(F.lit("name-"), F.pmod(seed, F.lit(100_000))).alias("s"),
        F.timestamp_seconds(F.col("id") + 1_600_000_000).alias("ts"),
    )


def _measure(spark: SparkSession, folder: str, rows: int, repeats: int, *, with_jvm: bool) -> dict[str, Any]:
    catalog = commit_coord.load_catalog(
        "bench", uri=f"coord+sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/ours"
    )
    catalog.create_namespace("db")
    source = _rows(spark, rows)
    made: dict[str, Any] = {}
    columns = "id bigint, k int, x double, s string, ts timestamp"
    tables: dict[str, list[str]] = {"plain": [], "by_k": ["k"]}
    for name, partition_by in tables.items():
        made[name] = write_table(source.limit(0), (catalog, f"db.{name}"), create=True, partition_by=partition_by)
        if with_jvm:
            clause = f"PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
            spark.sql(f"CREATE TABLE jvm.db.{name} ({columns}) USING iceberg {clause}")

    def ours_write(name: str) -> None:
        # A fresh start each time: the last one's rows are replaced, not added to, so that reads see one copy.
        made[name] = write_table(source, made[name].refresh(), "overwrite")

    def jvm_write(name: str) -> None:
        source.writeTo(f"jvm.db.{name}").overwrite(F.lit(True))

    wanted = rows // 2

    def noop(df: DataFrame) -> None:
        df.write.format("noop").mode("overwrite").save()

    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "write": (lambda: ours_write("plain"), lambda: jvm_write("plain")),
        "write_partitioned": (lambda: ours_write("by_k"), lambda: jvm_write("by_k")),
        "read_all": (lambda: noop(read_table(spark, made["plain"])), lambda: noop(spark.table("jvm.db.plain"))),
        "sum_one_column": (
            lambda: read_table(spark, made["plain"]).agg(F.sum("x")).collect(),
            lambda: spark.table("jvm.db.plain").agg(F.sum("x")).collect(),
        ),
        "count": (lambda: read_table(spark, made["plain"]).count(), lambda: spark.table("jvm.db.plain").count()),
        "count_in_a_query": (
            lambda: read_table(spark, made["plain"]).agg(F.count("*")).collect(),
            lambda: spark.table("jvm.db.plain").agg(F.count("*")).collect(),
        ),
        "selective_filter": (
            lambda: read_table(spark, made["plain"], row_filter=f"id = {wanted}").collect(),
            lambda: spark.table("jvm.db.plain").filter(F.col("id") == wanted).collect(),
        ),
    }
    seconds: dict[str, dict[str, float]] = {}
    for what, (ours, jvm) in cases.items():
        sides: dict[str, Callable[[], Any]] = {"ours": ours} | ({"jvm": jvm} if with_jvm else {})
        for call in sides.values():
            call()  # warm: classes loaded, code compiled
        taken: dict[str, list[float]] = {side: [] for side in sides}
        # Reads last tenths of a second, in which one collection of garbage shows.
        for _ in range(repeats if what.startswith("write") else repeats * 4):
            for name, call in sides.items():
                start = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - start)
        seconds[what] = {side: round(min(values), 3) for side, values in taken.items()}
    files = {name: {"ours": len(list(made[name].scan().plan_files()))} for name in tables}
    result: dict[str, Any] = {"seconds": seconds, "files": files}
    if with_jvm:
        for name in tables:
            files[name]["jvm"] = spark.table(f"jvm.db.{name}.files").count()
        ratio = {what: round(each["ours"] / each["jvm"], 2) for what, each in seconds.items()}
        result["ratio"] = ratio
        result["bars"] = {what: {"bar": bar, "met": ratio[what] <= bar} for what, bar in BARS.items()}
    catalog.close()
    return result


if __name__ == "__main__":
    print(json.dumps(run(jar=sys.argv[1] if len(sys.argv) > 1 else None), indent=2))
