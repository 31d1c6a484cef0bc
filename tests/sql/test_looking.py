"""Statements that look: HELP, SHOW DATABASES, SHOW TABLES, DESCRIBE, SELECT count(*)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
import sqlglot
from pyiceberg import types as T
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform

from commit_coord import StatementError
from commit_coord.sql import Session
from commit_coord.sql.grammar.tokens import Dialect
from commit_coord.sql.types import hive_type, iceberg_type
from tests.catalog.kit import Kit, kit

EVENTS = Schema(
    T.NestedField(1, "id", T.LongType(), required=False, doc="who"),
    T.NestedField(2, "at", T.TimestampType(), required=False),
)
BY_DAY = PartitionSpec(
    PartitionField(2, 1000, DayTransform(), "at_day"), PartitionField(1, 1001, BucketTransform(4), "id_bucket")
)


@pytest.fixture
def made() -> Iterator[Kit]:
    """A catalog with the tables ``events`` and ``ids`` in its namespace."""
    with kit("lease") as found:
        properties = {"owner": "ann", "s3.secret-access-key": "hush"}
        found.catalog.create_table((found.namespace, "events"), EVENTS, partition_spec=BY_DAY, properties=properties)
        found.catalog.create_table((found.namespace, "ids"), pa.schema([("id", pa.int64())]))
        yield found


@pytest.fixture
def session(made: Kit) -> Session:
    """A session on it."""
    return Session(made.catalog, database=made.namespace)


def lines(session: Session, text: str) -> list[str]:
    return list(session.run(text).lines)


def test_databases_and_tables_are_listed_by_pattern(session: Session, made: Kit) -> None:
    made.catalog.create_namespace("depot")
    assert ["db", "depot"] == lines(session, "SHOW DATABASES")
    assert ["depot"] == lines(session, "SHOW SCHEMAS LIKE 'DE*'")
    assert ["events", "ids"] == lines(session, "SHOW TABLES")
    assert ["ids"] == lines(session, "SHOW TABLES IN db LIKE 'i*|x'")
    assert [] == lines(session, "SHOW TABLES FROM depot")
    assert [("events",), ("ids",)] == list(session.run("SHOW TABLES").rows)
    with pytest.raises(StatementError, match="there is no such database: database='nope'"):
        session.run("SHOW TABLES IN nope")


def test_a_table_is_described_by_its_columns_and_partitions(session: Session) -> None:
    assert ["id\tbigint\t"] == lines(session, "DESCRIBE ids")
    assert [
        "id\tbigint\twho",
        "at\ttimestamp\t",
        "\t\t",
        "# Partition Transform Information\t\t",
        "# col_name\ttransform_type\t",
        "at\tday\t",
        "id\tbucket[4]\t",
    ] == lines(session, "DESC events")


def test_an_extended_description_has_the_state_and_the_properties_and_no_secret(session: Session) -> None:
    session.run("INSERT INTO ids VALUES (1)")
    described = dict(line.split("\t")[:2] for line in lines(session, "DESCRIBE EXTENDED ids"))
    table = session.catalog.load_table("db.ids")
    assert table.location() == described["Location:"]
    assert str(table.metadata.current_snapshot_id) == described["Current Snapshot:"]
    events = lines(session, "DESCRIBE EXTENDED events")
    assert "\towner\tann" in events
    assert "\ts3.secret-access-key\t***" in events


@pytest.mark.parametrize(
    "kind",
    [
        *(T.BooleanType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType(), T.DecimalType(12, 3)),
        *(T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(), T.TimestamptzType()),
        T.ListType(1, T.LongType(), element_required=False),
        T.MapType(1, T.StringType(), 2, T.LongType(), value_required=False),
        T.StructType(T.NestedField(1, "a", T.LongType(), required=False)),
    ],
    ids=str,
)
def test_a_described_type_can_be_declared(kind: T.IcebergType) -> None:
    declared = sqlglot.parse_one(hive_type(kind), into=sqlglot.exp.DataType, dialect=Dialect)
    assert kind == iceberg_type(declared)


def test_rows_are_counted(session: Session) -> None:
    session.run("INSERT INTO ids VALUES (1), (2), (3), (NULL)")
    assert ["4"] == lines(session, "SELECT count(*) FROM ids")
    assert ["2"] == lines(session, "SELECT COUNT(*) AS n FROM ids WHERE id > 1")
    assert ("n",) == session.run("SELECT COUNT(*) AS n FROM ids").columns
    session.run("DELETE FROM ids WHERE id = 1")
    assert ["3"] == lines(session, "SELECT count(*) FROM ids i")
    session.run("INSERT INTO ids SELECT count(*) FROM ids")
    assert ["2"] == lines(session, "SELECT count(*) FROM ids WHERE id = 3")


def test_a_count_of_all_rows_reads_no_file(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    session.run("INSERT INTO ids VALUES (1), (2)")
    monkeypatch.delattr("commit_coord.sql.matching.ArrowScan.to_table")
    assert ["2"] == lines(session, "SELECT count(*) FROM ids")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*), id FROM ids",
        "SELECT count(id) FROM ids",
        "SELECT count(DISTINCT id) FROM ids",
        "SELECT count(*) FROM ids GROUP BY id",
        "SELECT count(*) FROM ids VERSION AS OF 1",
        "SELECT count(*) FROM ids LIMIT 1",
        "SELECT count(*) + 1 FROM ids",
        "SELECT id FROM ids WHERE count(*) > 1",
    ],
)
def test_other_counts_are_for_spark(session: Session, text: str) -> None:
    with pytest.raises(StatementError, match="run others in Spark"):
        session.run(text)


def test_help_lists_the_statements(session: Session) -> None:
    answer = session.run("help;")
    assert ("statement", "what it does") == answer.columns
    assert any(line.startswith("SHOW TABLES") for line in answer.lines)
