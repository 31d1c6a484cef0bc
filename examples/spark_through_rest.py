"""A PySpark driver that is coordinated by catalog properties alone: it knows only Spark SQL and the server's URL.

Start the server for a catalog of ``.pyiceberg.yaml``, then the driver::

    commit-coord serve --catalog shop
    pip install 'pyspark>=4.1,<4.2'
    python examples/spark_through_rest.py http://127.0.0.1:8181 shop

Spark fetches Iceberg's runtime from Maven Central by its coordinates, once. Run several drivers at the same time, kill
one, and start it again with the same name as third argument: what it had done is not done twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
MARK = "orders.step"
"""Snapshot property that says which step of which driver made a snapshot."""


def session(url: str, warehouse: str) -> SparkSession:
    """Return a session whose catalog ``shop`` is the server's *warehouse*."""
    spark: SparkSession = (
        SparkSession.builder.master("local[1]")
        .appName("orders")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.jars.packages", RUNTIME)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.catalog.shop", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.shop.type", "rest")
        .config("spark.sql.catalog.shop.uri", url)
        .config("spark.sql.catalog.shop.warehouse", warehouse)
        .config("spark.sql.catalog.shop.cache-enabled", "false")
        .getOrCreate()
    )
    return spark


def once(spark: SparkSession, step: str, statement: str) -> bool:
    """Carry out *statement*, which changes ``shop.sales.orders``, unless *step* is in the table; return whether it was.

    The step is in the summary of the snapshot, so it is in the table exactly when the rows are. The look and the commit
    are two: a commit of a driver that was killed may still wait in the server, for ``lock.acquire-timeout-ms`` at most.
    Start the driver again after that, or use MERGE for rows that have keys.
    """
    seen = f"SELECT 1 FROM shop.sales.orders.snapshots WHERE summary['{MARK}'] = '{step}'"
    if spark.sql(seen).take(1):
        return True
    spark.conf.set(f"spark.sql.iceberg.snapshot-property.{MARK}", step)
    spark.sql(statement).collect()
    return False


def write(spark: SparkSession, name: str) -> None:
    """Write the orders of the driver *name*, each step once."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS shop.sales")
    spark.sql(
        "CREATE TABLE IF NOT EXISTS shop.sales.orders (driver STRING, id BIGINT, amount INT) USING iceberg "
        "PARTITIONED BY (driver) TBLPROPERTIES ('commit.retry.num-retries' = '20')"
    )
    steps = {
        "insert": f"INSERT INTO shop.sales.orders SELECT '{name}', id, 1 FROM range(100)",
        "merge": (
            f"MERGE INTO shop.sales.orders t USING (SELECT '{name}' AS driver, id, 2 AS amount FROM range(90, 110)) s "
            f"ON t.driver = '{name}' AND t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET amount = s.amount WHEN NOT MATCHED THEN INSERT *"
        ),
        "update": f"UPDATE shop.sales.orders SET amount = amount + 10 WHERE driver = '{name}' AND id < 5",
        "delete": f"DELETE FROM shop.sales.orders WHERE driver = '{name}' AND id BETWEEN 50 AND 59",
    }
    for step, statement in steps.items():
        before = once(spark, f"{name}/{step}", statement)
        print(f"{name}: {step} {'was done before' if before else 'done'}", flush=True)


def stream(spark: SparkSession, source: Path, checkpoint: Path) -> None:
    """Append the Parquet files of *source* to ``shop.sales.orders``, each once: the checkpoint says which are done.

    A stream only appends, and its rows depend on no others. Declare that, and it follows a table that has moved
    instead of being refused: ``spark.sql.catalog.shop.header.X-Commit-Coord-Append=blind``, for a client that writes
    nothing else.
    """
    files = spark.readStream.schema("driver STRING, id BIGINT, amount INT").parquet(f"file://{source}")
    writes = files.writeStream.option("checkpointLocation", f"file://{checkpoint}").trigger(availableNow=True)
    writes.toTable("shop.sales.orders").awaitTermination()


def main() -> None:
    """Write as the driver of the command line, and show what is in the table."""
    url, warehouse, *name = sys.argv[1:]
    spark = session(url, warehouse)
    spark.sparkContext.setLogLevel("ERROR")
    write(spark, *(name or ["first"]))
    spark.sql("SELECT driver, count(*), sum(amount) FROM shop.sales.orders GROUP BY driver ORDER BY driver").show()
    spark.stop()


if __name__ == "__main__":
    main()
