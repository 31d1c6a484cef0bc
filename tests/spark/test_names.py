"""Python, Spark and the command line find the same catalog by its name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import commit_coord
from commit_coord.cli import app
from commit_coord.spark import compact_table, foreach_batch, read_table, register, write_table
from commit_coord.spark.options import spark_properties

PREFIX = "spark.sql.catalog.other"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the configuration of the catalog ``shop``, which is the default and has the namespace ``db``."""
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"default-catalog: shop\ncatalog:\n  shop:\n    uri: coord+sqlite:///{tmp_path}/c.db\n"
        f"    warehouse: file://{tmp_path}/w\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    catalog = commit_coord.load_catalog()
    catalog.create_namespace("db")
    catalog.close()
    return tmp_path


@pytest.fixture
def other(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Spark's settings for the catalog ``other``, which has the namespace ``db``."""
    given = {f"{PREFIX}.uri": f"coord+sqlite:///{tmp_path}/other.db", f"{PREFIX}.warehouse": f"file://{tmp_path}/other"}
    for key, value in given.items():
        spark.conf.set(key, value)
    made = commit_coord.load_catalog("other", **spark_properties(spark.conf.getAll, "other"))
    made.create_namespace("db")
    made.close()
    yield
    for key in given:
        spark.conf.unset(key)


def ids(spark: SparkSession, table: str | tuple[str, str]) -> list[int]:
    return sorted(row.id for row in read_table(spark, table).collect())


def test_a_table_is_named_everywhere_alike(spark: SparkSession, home: Path) -> None:
    write_table(spark.range(3), "db.t", create=True)
    foreach_batch("db.t", writer_id="stream")(spark.range(3, 5), 0)
    assert [0, 1, 2, 3, 4] == ids(spark, "db.t") == ids(spark, ("shop", "db.t"))
    assert 1 == compact_table(spark, "db.t").after
    register(spark)
    # The tasks open no catalog, and the driver has the variable: the workers that it started earlier need none.
    assert 5 == spark.read.format("commit_coord").load("db.t").count()
    listed = CliRunner().invoke(app, ["commits", "db.t", "--json"], prog_name="commit-coord")
    assert 0 == listed.exit_code, listed.output
    assert 5 == commit_coord.load_catalog().load_table("db.t").scan().to_arrow().num_rows


@pytest.mark.usefixtures("other")
def test_settings_of_spark_configure_a_catalog(spark: SparkSession) -> None:
    write_table(spark.range(3), ("other", "db.t"), create=True)
    register(spark)
    spark.range(3, 5).write.format("commit_coord").option("catalog", "other").mode("append").save("db.t")
    assert [0, 1, 2, 3, 4] == ids(spark, ("other", "db.t"))
    assert 5 == spark.read.format("commit_coord").option("catalog", "other").load("db.t").count()


@pytest.fixture
def named(spark: SparkSession, other: None) -> Iterator[None]:
    """Tables of Spark's SQL with the same columns: ``a`` and ``b``, which name ``db.a`` and ``db.b``; a view, ``v``."""
    register(spark)
    for name, rows in (("a", spark.range(3)), ("b", spark.range(5, 6))):
        write_table(rows, ("other", f"db.{name}"), create=True)
        spark.sql(f"CREATE TABLE {name} USING commit_coord OPTIONS (catalog 'other', table 'db.{name}')")
    spark.range(8, 9).createOrReplaceTempView("v")
    yield
    spark.catalog.dropTempView("v")
    for name in ("a", "b", "c"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.usefixtures("named")
def test_a_table_of_sparks_sql_names_one_of_ours(spark: SparkSession) -> None:
    assert [0, 1, 2] == sorted(row.id for row in spark.sql("SELECT * FROM a").collect())
    assert 1 == spark.sql("SELECT id FROM a WHERE id > 1").count()
    assert [(2, 5)] == [tuple(row) for row in spark.sql("SELECT a.id, b.id FROM a, b WHERE a.id > 1").collect()]


WRITES: Mapping[str, Callable[[SparkSession], object]] = {
    "equal columns of another table": lambda spark: spark.sql("INSERT INTO b SELECT * FROM a"),
    "in place of all rows": lambda spark: spark.sql("INSERT OVERWRITE b SELECT * FROM a"),
    "equal columns of a view": lambda spark: spark.sql("INSERT INTO b SELECT id FROM v"),
    "other columns": lambda spark: spark.sql("INSERT INTO b SELECT id + 1 FROM a"),
    "values": lambda spark: spark.sql("INSERT INTO b VALUES (7)"),
    "the table itself": lambda spark: spark.sql("INSERT INTO b SELECT * FROM b"),
    "an option without a table": lambda spark: spark.sql("INSERT INTO b WITH ('catalog' = 'other') SELECT * FROM a"),
    "a new table": lambda spark: spark.sql(
        "CREATE TABLE c USING commit_coord OPTIONS (catalog 'other', table 'db.b') AS SELECT * FROM a"
    ),
    "writeTo": lambda spark: spark.table("a").writeTo("b").append(),
    "insertInto": lambda spark: spark.table("a").write.insertInto("b"),
    "save": lambda spark: spark.table("a").write.format("commit_coord").mode("append").save(),
}


@pytest.mark.usefixtures("named")
def test_a_write_that_names_no_table_is_refused(spark: SparkSession) -> None:
    """The columns of its rows may be those of another table: they name no target."""
    for what, write in WRITES.items():
        with pytest.raises(Exception, match="which table this write is for") as error:
            write(spark)
        assert all(part in str(error.value).splitlines()[0] for part in ("INSERT INTO", "writeTo", "'table'")), what
        assert [0, 1, 2] == ids(spark, ("other", "db.a")), what
        assert [5] == ids(spark, ("other", "db.b")), what
    assert not spark.catalog.tableExists("c")


@pytest.mark.usefixtures("named")
def test_a_write_that_names_its_table_is_made_there(spark: SparkSession) -> None:
    target = {"catalog": "other", "table": "db.b"}
    insert = "INSERT INTO b WITH ('catalog' = 'other', 'table' = 'db.b')"
    spark.sql(f"{insert} SELECT * FROM a")
    spark.sql(f"{insert} SELECT id FROM v")
    spark.sql(f"{insert} SELECT id + 15 FROM b WHERE id = 5")
    spark.sql(f"{insert} VALUES (30)")
    assert [0, 1, 2, 5, 8, 20, 30] == ids(spark, ("other", "db.b"))
    spark.sql(f"{insert.replace('INTO', 'OVERWRITE')} SELECT * FROM a")
    assert [0, 1, 2] == ids(spark, ("other", "db.b"))
    spark.table("v").writeTo("b").options(**target).append()
    spark.table("a").filter("id = 2").write.format("commit_coord").options(**target).mode("append").save()
    assert [0, 1, 2, 2, 8] == ids(spark, ("other", "db.b"))
    assert [0, 1, 2] == ids(spark, ("other", "db.a"))


@pytest.mark.usefixtures("named")
def test_the_columns_of_a_table_of_sparks_sql_keep_no_secret(spark: SparkSession) -> None:
    """Spark shows their metadata to who reads the table, and writes it into Parquet files."""
    kept = {"catalog": "other", "table": "db.a"}
    assert [{"commit_coord.options": kept}] == [field.metadata for field in spark.table("a").schema.fields]
    for place in ("OPTIONS (table 'db.b', {})", "OPTIONS (table 'db.b') TBLPROPERTIES ({})"):
        given = place.format("'catalog' = 'other', 'catalog.s3.secret-access-key' = 's3cr3t'")
        with pytest.raises(Exception, match=r"catalog\.s3\.secret-access-key") as error:
            spark.sql(f"CREATE TABLE c USING commit_coord {given}")
        assert "spark.sql.catalog." in str(error.value).splitlines()[0]
        assert "s3cr3t" not in str(error.value)
        assert not spark.catalog.tableExists("c")
    with pytest.raises(Exception, match="writer-id"):
        spark.sql("CREATE TABLE c USING commit_coord OPTIONS (catalog 'other', table 'db.b', 'writer-id' 'x')")


@pytest.mark.usefixtures("home")
def test_a_wrong_schema_is_the_first_line_of_the_error(spark: SparkSession) -> None:
    write_table(spark.range(3), "db.t", create=True)
    register(spark)
    wrong = spark.range(1).withColumn("extra", F.lit(1)).write.format("commit_coord").mode("append")
    with pytest.raises(Exception, match="extra is not in the table") as error:
        wrong.save("db.t")
    assert "extra is not in the table" in str(error.value).splitlines()[0]
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({PREFIX: "org.apache.iceberg.spark.SparkCatalog", f"{PREFIX}.uri": "http://a:8181"}, {}),
        ({PREFIX: "org.apache.iceberg.spark.SparkCatalog", f"{PREFIX}.type": "hadoop"}, {}),
        ({f"{PREFIX}.type": "jdbc", f"{PREFIX}.uri": "jdbc:postgresql://a/b"}, {}),
        ({"spark.sql.catalog.others.uri": "coord+sqlite:///c.db"}, {}),
        ({f"{PREFIX}.lock-impl": "memory"}, {"lock-impl": "memory"}),
        (
            {
                PREFIX: "org.apache.iceberg.spark.SparkCatalog",
                f"{PREFIX}.type": "hive",
                f"{PREFIX}.uri": "thrift://a:1",
            },
            {"type": "hive", "uri": "thrift://a:1"},
        ),
    ],
)
def test_settings_of_a_catalog_that_only_the_jvm_opens_are_left_alone(
    settings: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    assert expected == spark_properties(settings, "other")


def test_a_fresh_worker_that_plans_imports_nothing_large() -> None:
    large = ("pyiceberg.table", "pyarrow", "sqlalchemy", "pandas", "commit_coord.table", "commit_coord.locks")
    code = f"import sys, commit_coord.spark.registered; print([name for name in {large} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]\n" == done.stdout
