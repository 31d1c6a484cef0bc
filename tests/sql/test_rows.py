"""What statements do to rows: values are stored as they were written, and queries see what was committed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isnan
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
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
    UUIDType,
)

from commit_coord import StatementError
from commit_coord.errors import CommitNotApplied
from commit_coord.sql import Session
from commit_coord.table.data_files import data_files
from commit_coord.table.transaction import CoordinatedTransaction
from tests.catalog.kit import Kit, kit

WIDE = "1234567890123456.78"


class Shelf:
    """One catalog and a session on it."""

    def __init__(self, made: Kit) -> None:
        self.made = made
        self.session = Session(made.catalog, database=made.namespace)

    def run(self, text: str) -> str:
        """Return what a statement answers."""
        return "\n".join(self.session.run(text).lines)

    def load(self, name: str) -> Any:
        """Return a table."""
        return self.made.catalog.load_table((self.made.namespace, name))

    def folder(self, name: str) -> Path:
        """Return where a table is."""
        return Path(urlparse(self.load(name).location()).path)

    def table(self, *fields: NestedField, by: str | None = None) -> Any:
        """Return a new table called t."""
        schema = Schema(*fields)
        spec = PartitionSpec()
        if by is not None:
            spec = PartitionSpec(PartitionField(schema.find_field(by).field_id, 1000, IdentityTransform(), by))
        return self.made.catalog.create_table((self.made.namespace, "t"), schema, partition_spec=spec)

    def column(self, kind: IcebergType, *, required: bool = False) -> Any:
        """Return a new table with k and x, which is of *kind*."""
        return self.table(NestedField(1, "k", LongType()), NestedField(2, "x", kind, required=required))

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of t as PyIceberg's own catalog reads them, sorted."""
        found = self.made.stock.load_table((self.made.namespace, "t")).scan().to_arrow().to_pylist()
        return sorted((tuple(row[name] for name in columns or row) for row in found), key=repr)


@pytest.fixture(scope="module")
def catalog() -> Iterator[Kit]:
    """One catalog for all tests; each makes its tables anew."""
    with kit("memory") as made:
        yield made


@pytest.fixture
def shelf(catalog: Kit) -> Iterator[Shelf]:
    """See :class:`Shelf`."""
    try:
        yield Shelf(catalog)
        catalog.check()
    finally:
        for identifier in catalog.catalog.list_tables(catalog.namespace):
            catalog.catalog.drop_table(identifier)


# Literals.


def test_a_decimal_is_stored_and_found_as_it_was_written(shelf: Shelf) -> None:
    shelf.column(DecimalType(18, 2))
    shelf.run(f"INSERT INTO t VALUES (1, {WIDE}), (2, 1234567890123456.75)")
    assert shelf.rows() == [(1, Decimal(WIDE)), (2, Decimal("1234567890123456.75"))]
    assert shelf.run(f"SELECT k FROM t WHERE x = {WIDE}") == "1"
    assert shelf.run(f"DELETE FROM t WHERE x = {WIDE}").startswith("1 rows")
    shelf.run("UPDATE t SET x = -9999999999999999.99 WHERE x < 1234567890123456.76")
    assert shelf.rows() == [(2, Decimal("-9999999999999999.99"))]


def test_a_decimal_of_38_digits_is_compared_digit_by_digit(shelf: Shelf) -> None:
    shelf.column(DecimalType(38, 10))
    digits = "4028093312416675137268760953.8991191790"
    shelf.run(f"INSERT INTO t VALUES (1, {digits}), (2, -{digits})")
    assert shelf.rows() == [(1, Decimal(digits)), (2, Decimal(f"-{digits}"))]
    assert shelf.run(f"SELECT k FROM t WHERE x > {digits[:-1]}") == ""
    assert shelf.run(f"SELECT k FROM t WHERE x >= {digits}") == "1"
    assert shelf.run(f"SELECT k FROM t WHERE x = -{digits}") == "2"
    assert shelf.run("DELETE FROM t WHERE x < 6195038059513026081170181196.4685560692").startswith("2 rows")


STORED: list[tuple[IcebergType, str, Any]] = [
    (DecimalType(9, 0), "7", Decimal(7)),
    (DecimalType(9, 2), "'7.10'", Decimal("7.10")),
    (DecimalType(38, 38), "-0." + "9" * 38, Decimal("-0." + "9" * 38)),
    (DecimalType(38, 0), "9" * 38, Decimal("9" * 38)),
    (DecimalType(9, 2), "1.5BD", Decimal("1.50")),
    (DecimalType(5, 2), "1.23000", Decimal("1.23")),
    (LongType(), "9223372036854775807", 2**63 - 1),
    (LongType(), "-9223372036854775808", -(2**63)),
    (LongType(), "1e3", 1000),
    (IntegerType(), "'-2147483648'", -(2**31)),
    (IntegerType(), "3.000", 3),
    (DoubleType(), "0.1", 0.1),
    (DoubleType(), "CAST('-Infinity' AS DOUBLE)", float("-inf")),
    (FloatType(), "0.10000000149011612", 0.10000000149011612),
    (BooleanType(), "'TRUE'", True),
    (StringType(), "5", "5"),
    (StringType(), "1.50", "1.50"),
    (StringType(), r"'it\'s a \\ and \n;--'", "it's a \\ and \n;--"),
    (StringType(), "'it''s'", "its"),
    (DateType(), "DATE '0001-01-01'", date(1, 1, 1)),
    (DateType(), "'9999-12-31'", date(9999, 12, 31)),
    (TimestampType(), "'2026-01-31 12:00:00.1234560'", datetime.fromisoformat("2026-01-31 12:00:00.123456")),
    (TimestampType(), "DATE '2026-01-31'", datetime.fromisoformat("2026-01-31")),
    (TimestamptzType(), "'2026-01-31 12:00:00+02:00'", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    (TimestamptzType(), "'2026-01-31T12:00:00Z'", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    (TimestamptzType(), "'2026-01-31 12:00:00'", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    (BinaryType(), "X'00ff'", b"\x00\xff"),
    (BinaryType(), "'é'", "é".encode()),
    (FixedType(3), "X'00ff01'", b"\x00\xff\x01"),
    (ListType(5, IntegerType(), element_required=True), "ARRAY(1, 2)", [1, 2]),
    (MapType(5, StringType(), 6, DecimalType(9, 2)), "MAP('a', 1.5)", [("a", Decimal("1.50"))]),
    (
        StructType(NestedField(5, "y", DecimalType(9, 2), required=True), NestedField(6, "z", DateType())),
        "NAMED_STRUCT('y', 2)",
        {"y": Decimal("2.00"), "z": None},
    ),
]


@pytest.mark.parametrize("kind, written, stored", STORED, ids=[f"{kind} {text}"[:60] for kind, text, _ in STORED])
def test_a_literal_gets_the_type_of_its_column(shelf: Shelf, kind: IcebergType, written: str, stored: Any) -> None:
    shelf.column(kind, required=True)
    shelf.run(f"INSERT INTO t VALUES (1, {written})")
    shelf.run(f"INSERT INTO t SELECT 1, {written}")
    shelf.run(f"INSERT INTO t SELECT k, {written} FROM t LIMIT 1")
    assert shelf.rows() == [(1, stored)] * 3
    shelf.run(f"UPDATE t SET x = {written}")
    assert shelf.rows() == [(1, stored)] * 3
    if kind.is_primitive and not (isinstance(kind, StringType) and written[0] != "'"):
        assert shelf.run(f"SELECT k FROM t WHERE x = {written}") == "1\n1\n1"
        assert shelf.run(f"DELETE FROM t WHERE x <> {written}").startswith("0 rows")
        assert shelf.run(f"DELETE FROM t WHERE x = {written}").startswith("3 rows")
        assert shelf.rows() == []


REFUSED: list[tuple[IcebergType, str]] = [
    (DecimalType(9, 2), "1.234"),
    (DecimalType(9, 2), "12345678.00"),
    (DecimalType(9, 2), "'NaN'"),
    (IntegerType(), "2147483648"),
    (IntegerType(), "2.5"),
    (IntegerType(), "'1_000'"),
    (IntegerType(), "TRUE"),
    (IntegerType(), "1e999999999"),
    (LongType(), "9223372036854775808"),
    (LongType(), "1e-999999999"),
    (FloatType(), "1e39"),
    (DoubleType(), "1e400"),
    (BooleanType(), "1"),
    (DateType(), "'2026-02-30'"),
    (DateType(), "TIMESTAMP '2026-01-31 12:00:00'"),
    (TimestampType(), "'2026-01-31 12:00:00.1234567'"),
    (TimestampType(), "'2026-01-31 12:00:00+02:00'"),
    (TimestamptzType(), "'0001-01-01 00:00:00+02:00'"),
    (TimeType(), "'25:00:00'"),
    (BinaryType(), "5"),
    (FixedType(3), "X'00'"),
    (UUIDType(), "'no uuid'"),
    (ListType(5, IntegerType(), element_required=True), "ARRAY(1, NULL)"),
    (StructType(NestedField(5, "y", IntegerType(), required=True)), "NAMED_STRUCT('z', 1)"),
    (StructType(NestedField(5, "y", IntegerType(), required=True)), "NULL"),
    (MapType(5, StringType(), 6, IntegerType()), "MAP('a', 1, 'a', 2)"),
    (IntegerType(), "CAST(1.5 AS INT)"),
    (IntegerType(), "unknown_function(1)"),
]


@pytest.mark.parametrize("kind, written", REFUSED, ids=[f"{kind} {text}"[:60] for kind, text in REFUSED])
def test_a_literal_that_its_column_can_t_hold_is_refused_with_words(
    shelf: Shelf, kind: IcebergType, written: str
) -> None:
    shelf.column(kind, required=True)
    for text in (f"INSERT INTO t VALUES (1, {written})", f"UPDATE t SET x = {written}"):
        with pytest.raises(StatementError):
            shelf.run(text)
    assert shelf.rows() == []


@pytest.mark.parametrize(
    "cast, found",
    [
        ("CAST('abc' AS VARCHAR(3))", "abc"),
        ("CAST('a' AS VARCHAR(3))", "a"),
        ("CAST('日本' AS CHAR(2))", "日本"),
        ("CAST(NULL AS CHAR(2))", "NULL"),
        ("CAST(-128 AS TINYINT)", "-128"),
        ("CAST(32767 AS SMALLINT)", "32767"),
        ("CAST(5 AS TINYINT)", "5"),
        ("127Y", "127"),
        ("CAST(0.5 AS FLOAT)", "0.5"),
        ("CAST('NaN' AS FLOAT)", "nan"),
        ("CAST(0.1 AS DOUBLE)", "0.1"),
        ("0.1D", "0.1"),
        ("CAST(1.50 AS STRING)", "1.50"),
        ("CAST(1.50 AS DECIMAL(3, 1))", "1.5"),
        ("CONCAT('a', 1.50, 'b')", "a1.50b"),
        ("CONCAT('a', NULL)", "NULL"),
        ("to_date('2026-01-02')", "2026-01-02"),
    ],
)
def test_a_cast_keeps_all_of_its_value(shelf: Shelf, cast: str, found: str) -> None:
    assert shelf.run(f"SELECT {cast}") == found


@pytest.mark.parametrize(
    "cast",
    [
        "CAST('abcd' AS VARCHAR(3))",
        "CAST('a' AS CHAR(3))",
        "CAST('abcd' AS CHAR(3))",
        "CAST(1234 AS VARCHAR(3))",
        "CAST(128 AS TINYINT)",
        "CAST(-129 AS TINYINT)",
        "128Y",
        "CAST(32768 AS SMALLINT)",
        "CAST('300' AS TINYINT)",
        "CAST(2147483648 AS INT)",
        "CAST(1.5 AS INT)",
        "CAST(0.1 AS FLOAT)",
        "0.1F",
        "CAST(16777217 AS FLOAT)",
        "CAST('0.1' AS FLOAT)",
        "CAST(1e39 AS FLOAT)",
        "CAST(0.12345678901234567890 AS DOUBLE)",
        "CAST(9007199254740993 AS DOUBLE)",
        "CAST(1.25 AS DECIMAL(3, 1))",
        "CAST(1e20 AS STRING)",
        "CAST(CAST(0.5 AS FLOAT) AS STRING)",
        "CAST(TIMESTAMP '2026-01-02 10:00:00' AS DATE)",
        "CAST(ARRAY(300) AS ARRAY<TINYINT>)",
        "CAST(ARRAY('abcd') AS ARRAY<VARCHAR(3)>)",
        "CONCAT('a', 1e20)",
    ],
)
def test_a_cast_that_would_cut_round_or_pad_is_refused(shelf: Shelf, cast: str) -> None:
    with pytest.raises(StatementError):
        shelf.run(f"SELECT {cast}")


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_a_floating_number_has_no_text_here(shelf: Shelf, kind: IcebergType) -> None:
    shelf.table(NestedField(1, "x", kind), NestedField(2, "s", StringType()))
    shelf.run("INSERT INTO t (x) VALUES (1e20)")
    for text in (
        "UPDATE t SET s = x",
        "INSERT INTO t SELECT x, x FROM t",
        "INSERT INTO t SELECT x, CAST('NaN' AS DOUBLE) FROM t",
        "INSERT INTO t VALUES (1, 1e3)",
        "INSERT INTO t VALUES (1, -1.5e1)",
        "INSERT INTO t VALUES (1, 1.5D)",
        "UPDATE t SET s = 1e-7",
    ):
        with pytest.raises(StatementError, match="cast it to string in Spark"):
            shelf.run(text)
    shelf.run("UPDATE t SET s = 15")
    assert [text for _, text in shelf.rows()] == ["15"]


@pytest.mark.parametrize("kind", [TimestampType(), TimestamptzType(), TimeType()], ids=str)
@pytest.mark.parametrize(
    "written",
    [
        "20260101",
        "2026-W05-1",
        "2026-01-01x10:00:00",
        "2026-01-01 10",
        "2026-01-01 10:00:00,5",
        "2026-01-01 24:00:00",
        "1200",
        "T12:00:00",
        "12",
    ],
)
def test_a_time_is_written_in_one_way(shelf: Shelf, kind: IcebergType, written: str) -> None:
    shelf.column(kind)
    for text in (f"INSERT INTO t VALUES (1, '{written}')", f"DELETE FROM t WHERE x = '{written}'"):
        with pytest.raises(StatementError):
            shelf.run(text)


def test_a_uuid_and_a_time_are_stored_and_found(shelf: Shelf) -> None:
    shelf.table(NestedField(1, "u", UUIDType()), NestedField(2, "at", TimeType()))
    shelf.run("INSERT INTO t VALUES ('00000000-0000-0000-0000-0000000000ff', '23:59:59.999999'), (NULL, NULL)")
    assert shelf.run("SELECT at FROM t WHERE u = '00000000-0000-0000-0000-0000000000FF'") == "23:59:59.999999"
    assert shelf.run("DELETE FROM t WHERE at > '23:59:59'").startswith("1 rows")
    assert shelf.rows() == [(None, None)]


def test_a_required_column_is_never_null(shelf: Shelf) -> None:
    shelf.column(StructType(NestedField(5, "y", LongType(), required=True)), required=True)
    for text in ("INSERT INTO t (k) VALUES (1)", "INSERT INTO t VALUES (1, NULL)", "UPDATE t SET x = NULL"):
        with pytest.raises(StatementError, match="NULL"):
            shelf.run(text)


def test_an_optional_struct_with_a_required_field_may_be_left_out(shelf: Shelf) -> None:
    shelf.column(StructType(NestedField(5, "y", LongType(), required=True)))
    shelf.run("INSERT INTO t (k) VALUES (1)")
    assert shelf.rows() == [(1, None)]


def test_a_partition_s_literal_is_exact(shelf: Shelf) -> None:
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "x", DecimalType(18, 2)), by="x")
    shelf.run(f"INSERT INTO t PARTITION (x={WIDE}) (k) VALUES (1)")
    shelf.run("INSERT INTO t PARTITION (x=1234567890123456.75) (k) VALUES (2)")
    shelf.run(f"INSERT OVERWRITE t PARTITION (x={WIDE}) (k) VALUES (3)")
    assert shelf.rows() == [(2, Decimal("1234567890123456.75")), (3, Decimal(WIDE))]
    shelf.run(f"ALTER TABLE t DROP PARTITION (x={WIDE})")
    assert shelf.rows("k") == [(2,)]
    with pytest.raises(StatementError, match="invalid value for this partition column"):
        shelf.run("INSERT INTO t PARTITION (x=1.234) (k) VALUES (4)")


def test_values_of_another_column_are_copied_exactly_or_not_at_all(shelf: Shelf) -> None:
    shelf.table(NestedField(1, "d", DecimalType(9, 2)), NestedField(2, "n", IntegerType()))
    shelf.run("INSERT INTO t VALUES (2.00, NULL)")
    shelf.run("UPDATE t SET n = d")
    assert shelf.rows() == [(Decimal("2.00"), 2)]
    shelf.run("UPDATE t SET d = 2.5")
    with pytest.raises(StatementError, match="rounded"):
        shelf.run("UPDATE t SET n = d")
    assert shelf.rows() == [(Decimal("2.50"), 2)]


# WHERE.


@pytest.mark.parametrize(
    "where, found",
    [
        ("NOT (x = 1)", "2 3"),
        ("x <> 1", "2 3"),
        ("x NOT IN (1, NULL)", ""),
        ("x IN (1, NULL)", "1"),
        ("NOT (x = 1 AND y = 1)", "2 3"),
        ("NOT (x = 2 AND y = 1)", "1 3"),
        ("x = 1 OR NULL", "1"),
        ("x NOT BETWEEN 1 AND 2", "3"),
        ("x IS NOT DISTINCT FROM NULL", "4"),
        ("x IS DISTINCT FROM 1", "2 3 4"),
        ("x <=> 1", "1"),
        ("x = NULL", ""),
        ("NOT (x = NULL)", ""),
        ("x < 2.5", "1 2"),
        ("2.5 > x", "1 2"),
        ("x = 2.5", ""),
        ("x <> 2.5", "1 2 3"),
        ("x < 1e30", "1 2 3"),
        ("NOT x < -1e30", "1 2 3"),
        ("x = '2'", "2"),
        ("t.x = 2", "2"),
        ("X = 2 AND K = 2 -- said twice", "2"),
        ("s LIKE 'a\\_%'", "1"),
        ("s LIKE 'a!_%' ESCAPE '!'", "1"),
        ("s NOT LIKE '%b'", "1"),
        ("NOT (s LIKE '%b')", "1"),
        ("s LIKE 'A%'", ""),
        ("TRUE", "1 2 3 4"),
        ("FALSE OR x = 3", "3"),
    ],
)
def test_where_has_three_truth_values(shelf: Shelf, where: str, found: str) -> None:
    shelf.table(
        *(NestedField(i, name, LongType()) for i, name in enumerate("kxy", 1)), NestedField(4, "s", StringType())
    )
    shelf.run("INSERT INTO t VALUES (1, 1, NULL, 'a_\\nb c'), (2, 2, 1, 'axb'), (3, 3, 3, NULL), (4, NULL, 1, 'b')")
    assert sorted(shelf.run(f"SELECT k FROM t WHERE {where}").split()) == found.split()
    assert shelf.run(f"DELETE FROM t WHERE {where}").startswith(f"{len(found.split())} rows")
    assert {str(row[0]) for row in shelf.rows("k")} == set("1234") - set(found.split())


@pytest.mark.parametrize(
    "where",
    [
        "s = 5",
        "s < 5",
        "x IN ()",
        "x = 'five'",
        "gone = 1",
        "u.x = 1",
        "b < TRUE",
        "b = 1",
        "x LIKE '5'",
        "s LIKE 'a\\\\'",
        "l = 1",
        "x = 1 AND s = 5",
        "x = y + 1",
        "x IN (SELECT 1)",
        "s RLIKE 'a'",
    ],
)
def test_what_can_t_be_compared_is_refused_with_words_rows_or_none(shelf: Shelf, where: str) -> None:
    shelf.table(
        NestedField(1, "x", LongType()),
        NestedField(2, "s", StringType()),
        NestedField(3, "b", BooleanType()),
        NestedField(4, "l", ListType(5, LongType())),
    )
    for text in (f"SELECT x FROM t WHERE {where}", f"DELETE FROM t WHERE {where}", f"UPDATE t SET x = 1 WHERE {where}"):
        with pytest.raises(StatementError):
            shelf.run(text)


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_nan_equals_itself_and_is_above_all_numbers(shelf: Shelf, kind: IcebergType) -> None:
    shelf.column(kind)
    everything = "(1, 'NaN'), (2, 5), (3, NULL), (4, 'Infinity'), (5, -0.0)"
    for where, found in (
        ("x > 5", "1 4"),
        ("NOT (x < 5)", "1 2 4"),
        ("x <> 5", "1 4 5"),
        ("x = 'NaN'", "1"),
        ("x <> 'NaN'", "2 4 5"),
        ("x < 'NaN'", "2 4 5"),
        ("x >= 'NaN'", "1"),
        ("x <= 'NaN'", "1 2 4 5"),
        ("x > 'NaN'", ""),
        ("x = 0", "5"),
        ("x BETWEEN 5 AND 'Infinity'", "2 4"),
    ):
        shelf.run("TRUNCATE TABLE t")
        shelf.run(f"INSERT INTO t VALUES {everything}")
        assert sorted(shelf.run(f"SELECT k FROM t WHERE {where}").split()) == found.split(), where
        shelf.run(f"DELETE FROM t WHERE {where}")
        assert {str(row[0]) for row in shelf.rows("k")} == set("12345") - set(found.split()), where
    shelf.run("INSERT INTO t VALUES (6, 'NaN')")
    assert [k for k, x in shelf.rows() if x is not None and isnan(x)] == [1, 6]
    shelf.run("UPDATE t SET x = 6 WHERE x = 'NaN'")  # What is compared afterwards has to equal itself.
    assert (6, 6.0) in shelf.rows()


TENTHS = [
    ("x = 0.1", ""),
    ("x <> 0.1", "1 2 3 5 6"),
    ("x > 0.1", "1 5 6"),
    ("x >= 0.1", "1 5 6"),
    ("x < 0.1", "2 3"),
    ("x <= 0.1", "2 3"),
    ("NOT x > 0.1", "2 3"),
    ("0.1 < x", "1 5 6"),
    ("x > '0.1'", "1 5 6"),
    ("x > 0.1D", "1 5 6"),
    ("x IN (0.1, 0.5)", ""),
    ("x NOT IN (0.1, 0.5)", "1 2 3 5 6"),
    ("x <=> 0.1", ""),
    ("x BETWEEN 0.1 AND 0.2", "1"),
    ("x BETWEEN -0.1 AND 0.1", ""),
    ("x = 0.10000000149011612", "1"),
    ("x > -0.1", "1 5 6"),
    ("x <= -0.1", "2 3"),
    ("x < 1e39", "1 2 3"),
    ("x <= 1e39", "1 2 3"),
    ("x > 1e39", "5 6"),
    ("x = 1e39", ""),
    ("x < -1e39", "3"),
    ("x >= -1e39", "1 2 5 6"),
    ("x < 1e400", "1 2 3"),
    ("x > 1e400", "5 6"),
    ("x <= -1e400", "3"),
    ("NOT x > -1e400", "3"),
    ("x > 3.5e38", "5 6"),
]


@pytest.mark.parametrize("apart", [True, False], ids=["a file each", "one file"])
@pytest.mark.parametrize("by", [None, "x"])
def test_a_float_is_compared_with_the_number_that_is_written(shelf: Shelf, by: str | None, *, apart: bool) -> None:
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "x", FloatType()), by=by)
    rows = ["(1, 0.1)", "(2, -0.1)", "(3, '-Infinity')", "(4, NULL)", "(5, 'NaN')", "(6, 'Infinity')"]
    for values in rows if apart else [", ".join(rows)]:
        shelf.run(f"INSERT INTO t VALUES {values}")
    for where, found in TENTHS:
        assert sorted(shelf.run(f"SELECT k FROM t WHERE {where}").split()) == found.split(), where
    shelf.run("DELETE FROM t WHERE x > 0.1 AND x < 1e39 OR x = 'NaN'")
    assert [row[0] for row in shelf.rows()] == [2, 3, 4, 6]


def test_numbers_beyond_all_doubles_are_compared_by_their_size(shelf: Shelf) -> None:
    shelf.column(DoubleType())
    shelf.run("INSERT INTO t VALUES (1, 5), (2, 'Infinity'), (3, '-Infinity'), (4, 'NaN'), (5, NULL)")
    for where, found in (
        ("x < 1e400", "1 3"),
        ("x >= 1e400", "2 4"),
        ("x > -1e400", "1 2 4"),
        ("x <= -1e400", "3"),
        ("x = 1e400", ""),
        ("x <> 1e400", "1 2 3 4"),
    ):
        assert sorted(shelf.run(f"SELECT k FROM t WHERE {where}").split()) == found.split(), where
    shelf.run("DELETE FROM t WHERE x > 1e400")
    assert [row[0] for row in shelf.rows()] == [1, 3, 5]


def test_nan_is_found_in_a_file_whose_bounds_are_below(shelf: Shelf) -> None:
    shelf.column(DoubleType())
    shelf.run("INSERT INTO t VALUES (1, 'NaN'), (2, 1)")
    assert shelf.run("SELECT k FROM t WHERE x > 5") == "1"
    assert shelf.run("DELETE FROM t WHERE x > 5").startswith("1 rows")
    assert shelf.rows() == [(2, 1.0)]


def test_nan_and_negative_zero_are_written_and_found_where_they_are_partitions(shelf: Shelf) -> None:
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "x", DoubleType()), by="x")
    shelf.run("INSERT INTO t VALUES (1, 0.0), (2, 5), (3, -0.0), (4, 'NaN'), (5, 'NaN')")
    assert sorted(shelf.run("SELECT k FROM t WHERE x = 0").split()) == ["1", "3"]
    assert sorted(shelf.run("SELECT k FROM t WHERE x = 'NaN'").split()) == ["4", "5"]
    shelf.run("UPDATE t SET x = -0.0 WHERE k IN (2, 4)")
    assert sorted(shelf.run("SELECT k FROM t WHERE x = 0").split()) == ["1", "2", "3", "4"]
    shelf.run("INSERT OVERWRITE t PARTITION (x) VALUES (6, -0.0), (7, 'NaN')")
    assert sorted(k for k, _ in shelf.rows()) == [6, 7]
    shelf.run("UPDATE t SET x = 1")  # What is compared afterwards has to equal itself.
    assert shelf.rows() == [(6, 1.0), (7, 1.0)]


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_a_partition_of_nan_is_named(shelf: Shelf, kind: IcebergType) -> None:
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "x", kind), by="x")
    shelf.run("INSERT INTO t VALUES (1, 'NaN'), (2, 5), (3, NULL), (4, 'NaN')")
    shelf.run("INSERT OVERWRITE t PARTITION (x='NaN') VALUES (5), (6)")
    assert [k for k, _ in shelf.rows()] == [2, 3, 5, 6]
    shelf.run("INSERT INTO t PARTITION (x='nan') VALUES (7)")
    shelf.run("ALTER TABLE t PARTITION (x='NaN') CONCATENATE")
    shelf.run("ALTER TABLE t TOUCH PARTITION (x='NaN')")
    assert [k for k, _ in shelf.rows()] == [2, 3, 5, 6, 7]
    shelf.run("ALTER TABLE t DROP PARTITION (x='NaN')")
    assert [k for k, _ in shelf.rows()] == [2, 3]
    with pytest.raises(StatementError, match="no such partition"):
        shelf.run("TRUNCATE TABLE t PARTITION (x='NaN')")


@pytest.mark.parametrize(
    "transform, value",
    [
        ("years", "'2026-02-01'"),
        ("years", "'2026 and more'"),
        ("years", "56"),
        ("months", "'2026'"),
        ("months", "'2026-02-01'"),
        ("months", "'2026-2'"),
        ("days", "'2026-02'"),
        ("days", "'2026-W05-7'"),
        ("days", "'2026-02-01 10:00'"),
        ("hours", "'2026-02-01'"),
        ("hours", "'2026-01-31-24'"),
        ("hours", "'2026-01-31-025'"),
    ],
)
def test_a_partition_in_time_is_named_in_full(shelf: Shelf, transform: str, value: str) -> None:
    shelf.run(f"CREATE TABLE t (ts timestamp) PARTITIONED BY ({transform}(ts))")
    shelf.run("INSERT INTO t VALUES ('2026-02-01 00:00:00'), ('2026-01-01 00:00:00'), ('2026-12-31 23:00:00')")
    with pytest.raises(StatementError, match="invalid value for this partition|no such partition"):
        shelf.run(f"ALTER TABLE t DROP PARTITION (ts_{transform[:-1]}={value})")
    assert len(shelf.rows()) == 3


@pytest.mark.parametrize(
    "transform, value, left", [("years", "2026", 1), ("months", "'2026-02'", 2), ("hours", "'2026-02-01-00'", 2)]
)
def test_a_partition_in_time_is_found_by_the_name_in_its_path(
    shelf: Shelf, transform: str, value: str, left: int
) -> None:
    shelf.run(f"CREATE TABLE t (ts timestamp) PARTITIONED BY ({transform}(ts))")
    shelf.run("INSERT INTO t VALUES ('2026-02-01 00:00:00'), ('2026-01-01 00:00:00'), ('2025-12-31 23:00:00')")
    shelf.run(f"ALTER TABLE t DROP PARTITION (ts_{transform[:-1]}={value})")
    assert len(shelf.rows()) == left


# Schemas that changed.


def described(shelf: Shelf) -> list[tuple[int, str, str, str | None]]:
    """Return number, name, type and comment of each column of t."""
    fields = shelf.made.catalog.load_table((shelf.made.namespace, "t")).schema().fields
    return [(field.field_id, field.name, str(field.field_type), field.doc) for field in fields]


def test_columns_are_changed_by_their_names_in_any_case(shelf: Shelf) -> None:
    shelf.run("CREATE TABLE t (id int COMMENT 'the key', S string, n int)")
    shelf.run("INSERT INTO t VALUES (1, 'a', 2)")
    shelf.run("ALTER TABLE t REPLACE COLUMNS (s string COMMENT 'a text', ID bigint, m int)")
    assert described(shelf) == [(2, "S", "string", "a text"), (1, "id", "long", "the key"), (4, "m", "int", None)]
    shelf.run("ALTER TABLE t CHANGE COLUMN Id key bigint COMMENT 'renamed' AFTER M")
    assert described(shelf) == [(2, "S", "string", "a text"), (4, "m", "int", None), (1, "key", "long", "renamed")]
    shelf.run("ALTER TABLE t CHANGE KEY KEY bigint FIRST")
    assert described(shelf)[0] == (1, "key", "long", "renamed")
    assert shelf.rows() == [(1, "a", None)]


def test_a_dot_is_part_of_the_name_of_a_new_column(shelf: Shelf) -> None:
    shelf.run("CREATE TABLE t (k int, s struct<x: int>)")
    shelf.run("ALTER TABLE t ADD COLUMNS (`a.b` int COMMENT 'dotted', `s.y` struct<`p.q`: int>)")
    shelf.run("ALTER TABLE t CHANGE `a.b` `a.c` bigint AFTER k")
    shelf.run("ALTER TABLE t REPLACE COLUMNS (`n.w` string, `a.c` bigint, k int)")
    assert described(shelf) == [(7, "n.w", "string", None), (4, "a.c", "long", "dotted"), (1, "k", "int", None)]
    shelf.run("INSERT INTO t (`a.c`, `n.w`) VALUES (1, 'x'), (2, 'y'), (3, 'z')")
    shelf.run("ALTER TABLE t SET PARTITION SPEC (`n.w`, bucket(2, `a.c`))")
    shelf.run("UPDATE t SET `n.w` = 'w', `a.c` = 4 WHERE `a.c` = 1 OR t.`n.w` IN ('z')")
    shelf.run("DELETE FROM t WHERE `n.w` = 'y'")
    assert shelf.rows() == [("w", 4, None)] * 2


@pytest.mark.parametrize("change", ["ADD COLUMNS (`s.x` int)", "CHANGE k `s.x` int"])
def test_no_column_comes_to_have_the_name_of_a_field(shelf: Shelf, change: str) -> None:
    shelf.run("CREATE TABLE t (k int, s struct<x: int>)")
    before = described(shelf)
    with pytest.raises(StatementError, match=r"s\.x"):
        shelf.run(f"ALTER TABLE t {change}")
    assert described(shelf) == before


def test_a_column_with_fields_is_kept_as_it_is(shelf: Shelf) -> None:
    shelf.run("CREATE TABLE t (k int, l array<int>, s struct<a: int, b: map<string, int>>)")
    before = described(shelf)
    shelf.run("ALTER TABLE t REPLACE COLUMNS (K int, l array<int>, s struct<a: int, b: map<string, int>>)")
    assert described(shelf) == before
    with pytest.raises(StatementError):
        shelf.run("ALTER TABLE t REPLACE COLUMNS (k int, l array<int>, s struct<a: int>)")


@pytest.mark.parametrize(
    "change",
    [
        "ADD COLUMNS (ID int)",
        "ADD COLUMNS (b int, B int)",
        "REPLACE COLUMNS (id int, ID int)",
        "REPLACE COLUMNS (id int, b int, B int)",
        "CHANGE s ID string",
        "CHANGE nothing s string",
        "CHANGE id id int AFTER nothing",
    ],
)
def test_no_two_columns_come_to_differ_by_case_alone(shelf: Shelf, change: str) -> None:
    shelf.run("CREATE TABLE t (id int, s string)")
    before = described(shelf)
    with pytest.raises(StatementError):
        shelf.run(f"ALTER TABLE t {change}")
    assert described(shelf) == before


def test_of_two_columns_that_differ_by_case_alone_the_one_that_is_written_is_changed(shelf: Shelf) -> None:
    shelf.table(NestedField(1, "a", IntegerType()), NestedField(2, "A", IntegerType()))
    shelf.run("ALTER TABLE t CHANGE A b int")
    assert [name for _, name, _, _ in described(shelf)] == ["a", "b"]


def test_update_after_a_column_was_added_or_two_swapped_their_names_keeps_every_value(shelf: Shelf) -> None:
    table = shelf.table(
        NestedField(1, "k", LongType()), *(NestedField(i, n, StringType()) for i, n in ((2, "a"), (3, "b")))
    )
    shelf.run("INSERT INTO t VALUES (1, 'from a', 'from b'), (2, 'a', 'b')")
    table.refresh()
    with table.transaction() as tx:
        for old, new in (("a", "tmp"), ("b", "a"), ("tmp", "b")):
            with tx.update_schema() as update:
                update.rename_column(old, new)
    with table.update_schema() as update:
        update.add_column("d", LongType())
    shelf.run("UPDATE t SET k = 3, d = 9 WHERE k = 1")
    assert shelf.rows("k", "a", "b", "d") == [(2, "b", "a", None), (3, "from b", "from a", 9)]
    shelf.run("UPDATE t SET a = b, b = a WHERE k = 3")
    assert shelf.rows("k", "a", "b", "d") == [(2, "b", "a", None), (3, "from a", "from b", 9)]


def test_columns_that_differ_by_case_alone_are_written_as_they_are(shelf: Shelf) -> None:
    shelf.table(NestedField(1, "a", LongType()), NestedField(2, "A", LongType()))
    shelf.run("INSERT INTO t (A, a) VALUES (2, 1)")
    assert shelf.run("SELECT a, A FROM t WHERE A = 2") == "1\t2"


@pytest.mark.parametrize("name", ["a b", "a`b", "select", "ä", 'quo"te', "back\\slash", "a.b"])
def test_a_column_of_any_name_is_written_and_found(shelf: Shelf, name: str) -> None:
    shelf.table(NestedField(1, name, LongType()), NestedField(2, "p", StringType()), by="p")
    quoted = "`" + name.replace("`", "``") + "`"
    shelf.run(f"INSERT INTO t ({quoted}, p) VALUES (1, 'it\\'s \\\\ \\t'), (2, NULL)")
    assert shelf.run(f"SELECT {quoted} FROM t WHERE {quoted} = 1 AND p = 'it\\'s \\\\ \\t'") == "1"
    shelf.run(f"UPDATE t SET {quoted} = 3 WHERE {quoted} IN (2)")
    shelf.run(f"DELETE FROM t WHERE {quoted} <= 1")
    assert shelf.rows() == [(3, None)]


def test_a_query_reads_the_columns_that_it_needs(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []

    class Watched(ArrowScan):
        def __init__(self, metadata: Any, io: Any, schema: Schema, *more: Any, **others: Any) -> None:
            read.append([field.name for field in schema.fields])
            super().__init__(metadata, io, schema, *more, **others)

    inside = StructType(NestedField(6, "a", LongType()), NestedField(7, "k", LongType()))
    table = shelf.table(
        NestedField(1, "k", LongType()),
        NestedField(2, "a.b", LongType()),
        NestedField(3, "s", inside),
        NestedField(4, "l", ListType(8, LongType())),
    )
    shelf.run("INSERT INTO t VALUES (1, 2, NAMED_STRUCT('a', 3, 'k', 4), ARRAY(5)), (2, NULL, NULL, NULL)")
    with table.refresh().update_schema() as update:
        update.add_column("new", LongType())
    monkeypatch.setattr("commit_coord.sql.matching.ArrowScan", Watched)
    for text, found, columns in (
        ("SELECT `a.b` FROM t WHERE k = 1", [(2,)], ["k", "a.b"]),
        ("SELECT s FROM t WHERE k < 2 OR `a.b` IN (7)", [({"a": 3, "k": 4},)], ["k", "a.b", "s"]),
        ("SELECT new, l FROM t", [(None, [5]), (None, None)], ["l", "new"]),
        ("SELECT new FROM t", [(None,), (None,)], ["new"]),
        ("SELECT new FROM t WHERE new IS NULL LIMIT 1", [(None,)], ["new"]),
        ("SELECT l, K, l FROM t WHERE l IS NOT NULL", [([5], 1, [5])], ["k", "l"]),
        ("SELECT 7 FROM t", [(7,), (7,)], ["k"]),
        ("SELECT 7 FROM t WHERE FALSE", [], ["k"]),
        ("SELECT * FROM t WHERE k = 2", [(2, None, None, None, None)], ["k", "a.b", "s", "l", "new"]),
    ):
        read.clear()
        assert (shelf.session.run(text).rows, read) == (found, [columns]), text


@pytest.mark.parametrize(
    "kind, values",
    [
        (IntegerType(), ["1", "2", "-3"]),
        (DecimalType(38, 10), ["4028093312416675137268760953.8991191790", "1", "-0.5"]),
        (StringType(), ["'a'", "''", "'it\\'s'"]),
        (DateType(), ["'2026-01-01'", "'0001-01-01'", "'9999-12-31'"]),
        (TimestamptzType(), ["'2026-01-01 12:00:00+02:00'", "'1969-12-31 23:59:59.999999'", "'2000-01-01'"]),
        (TimeType(), ["'00:00:00'", "'23:59:59.999999'", "'12:30'"]),
        (BinaryType(), ["X''", "X'00'", "X'ff00'"]),
        (FixedType(2), ["X'0000'", "X'0001'", "X'ff00'"]),
        (UUIDType(), [f"'{UUID(int=number)}'" for number in (1, 2**100, 2**127)]),
        (DoubleType(), ["0.1", "-0.0", "'NaN'"]),
        (BooleanType(), ["TRUE", "FALSE", "TRUE"]),
    ],
    ids=lambda one: str(one) if isinstance(one, IcebergType) else "",
)
def test_a_set_has_its_values_and_neither_null_nor_others(shelf: Shelf, kind: IcebergType, values: list[str]) -> None:
    shelf.column(kind)
    first, second, third = values
    shelf.run(f"INSERT INTO t VALUES (1, {first}), (2, {second}), (3, {third}), (4, NULL)")
    alike = ["1", "3"] if first == third else ["1"]
    found = sorted([*alike, "2"])
    for where, rows in (
        (f"x IN ({first}, {second}, {first})", found),
        (f"x IN ({first}, NULL)", alike),
        (f"x NOT IN ({first}, {second})", [k for k in "123" if k not in found]),
        (f"x NOT IN ({first}, NULL)", []),
        (f"NOT (x IN ({first}, {second}) OR k = 4)", [k for k in "123" if k not in found]),
        ("x IN (NULL)", []),
    ):
        assert sorted(shelf.run(f"SELECT k FROM t WHERE {where}").split()) == rows, where
    shelf.run(f"DELETE FROM t WHERE x IN ({first}, {second})")
    assert [str(k) for k, _ in shelf.rows("k", "k")] == [k for k in "1234" if k not in found]
    shelf.run("DELETE FROM t WHERE x IS NOT NULL")  # What is compared afterwards has to equal itself.


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_both_zeros_and_nan_are_in_a_set(shelf: Shelf, kind: IcebergType) -> None:
    shelf.column(kind)
    shelf.run("INSERT INTO t VALUES (1, 0.0), (2, -0.0), (3, 'NaN'), (4, 5)")
    assert shelf.run("SELECT k FROM t WHERE x IN (0, 7)").split() == ["1", "2"]
    assert shelf.run("SELECT k FROM t WHERE x IN (-0.0, 7)").split() == ["1", "2"]
    assert shelf.run("SELECT k FROM t WHERE x NOT IN (0, 'NaN')").split() == ["4"]
    assert shelf.run("DELETE FROM t WHERE x IN (-0.0, 'NaN', 1e400)").startswith("3 rows")


def test_numbers_that_a_column_can_t_hold_are_in_no_set_of_it(shelf: Shelf) -> None:
    shelf.column(IntegerType())
    shelf.run("INSERT INTO t VALUES (1, 2147483647), (2, NULL), (3, 2)")
    assert shelf.run("SELECT k FROM t WHERE x IN (2147483648, 2.5, 1e400, 2)") == "3"
    assert shelf.run("SELECT k FROM t WHERE x NOT IN (2147483648, 2.5)").split() == ["1", "3"]
    assert shelf.run("DELETE FROM t WHERE x IN (2147483648, 2.5)").startswith("0 rows")
    many = ", ".join(map(str, range(5000)))
    assert shelf.run(f"DELETE FROM t WHERE x IN ({many})").startswith("1 rows")


# What others commit meanwhile.


@pytest.fixture
def unlocked() -> Iterator[Shelf]:
    """See :class:`Shelf`, without locks that keep others away from a statement: its commit alone decides."""
    with kit("memory", **{"operation-locks": "off"}) as made:
        yield Shelf(made)
        made.check()


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Return what has another client act once, between what the next statement reads and its commit."""
    real, waiting = CoordinatedTransaction.commit_transaction, list[Callable[[], Any]]()

    def commit(self: CoordinatedTransaction) -> Any:
        while waiting:
            waiting.pop()()
        return real(self)

    monkeypatch.setattr(CoordinatedTransaction, "commit_transaction", commit)
    return waiting.append


def pairs(shelf: Shelf, *values: tuple[int, str]) -> Callable[[], None]:
    """Return an append by another client."""
    data = pa.table(
        {"k": [k for k, _ in values], "p": [p for _, p in values]}, pa.schema([("k", pa.int64()), ("p", pa.string())])
    )
    return lambda: shelf.made.open().load_table((shelf.made.namespace, "t")).append(data)


OUTSIDE = [
    ("INSERT OVERWRITE t SELECT k, p FROM t WHERE k > 0", [(1, "a"), (2, "b"), (9, "a")]),
    ("INSERT INTO t SELECT k, 'z' FROM t WHERE p = 'a'", [(1, "a"), (1, "z"), (2, "b"), (9, "a"), (9, "z")]),
    ("INSERT OVERWRITE t PARTITION (p='a') SELECT k FROM t WHERE p = 'a'", [(1, "a"), (2, "b"), (9, "a")]),
    ("INSERT OVERWRITE t PARTITION (p) SELECT k, p FROM t WHERE p = 'a'", [(1, "a"), (2, "b"), (9, "a")]),
    ("INSERT OVERWRITE t PARTITION (p='a') SELECT 5", [(2, "b"), (5, "a")]),
    ("INSERT OVERWRITE t PARTITION (p='z') SELECT k FROM t WHERE k = 9", [(1, "a"), (2, "b"), (9, "a"), (9, "z")]),
    ("UPDATE t SET k = 7 WHERE p = 'a'", [(2, "b"), (7, "a"), (7, "a")]),
    ("UPDATE t SET k = 7 WHERE k = 9", [(1, "a"), (2, "b"), (7, "a")]),
    ("DELETE FROM t WHERE p = 'a'", [(2, "b")]),
    ("DELETE FROM t WHERE k = 9", [(1, "a"), (2, "b")]),
    ("DELETE FROM t", []),
    ("TRUNCATE TABLE t", []),
    ("TRUNCATE TABLE t PARTITION (p='a')", [(2, "b")]),
    ("ALTER TABLE t DROP PARTITION (p='a')", [(2, "b")]),
]


@pytest.mark.parametrize("statement, after", OUTSIDE, ids=[text for text, _ in OUTSIDE])
@pytest.mark.parametrize("partitioned", [True, False])
def test_rows_that_were_appended_meanwhile_are_seen(
    shelf: Shelf,
    meanwhile: Callable[[Callable[[], Any]], None],
    statement: str,
    after: list[tuple[int, str]],
    *,
    partitioned: bool,
) -> None:
    if not partitioned and "PARTITION" in statement:
        statement = statement.replace("PARTITION (p) ", "")
        if "PARTITION" in statement or "OVERWRITE" in statement:
            return
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), by="p" if partitioned else None)
    shelf.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    meanwhile(pairs(shelf, (9, "a")))
    answer = shelf.run(statement)
    assert shelf.rows() == after
    if statement.startswith(("UPDATE", "DELETE")):
        touched = {"UPDATE": len([row for row in after if row[0] == 7]), "DELETE": 3 - len(after)}
        assert answer.startswith(f"{touched[statement[:6]]} rows")


@pytest.mark.parametrize(
    "statement", ["DELETE FROM t WHERE k = 9", "UPDATE t SET k = 7 WHERE k = 9", "TRUNCATE TABLE t"]
)
def test_a_statement_that_had_nothing_to_do_looks_again(
    shelf: Shelf, meanwhile: Callable[[Callable[[], Any]], None], statement: str
) -> None:
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()))
    meanwhile(pairs(shelf, (9, "a")))
    shelf.run(statement)
    assert shelf.rows() == ([(7, "a")] if statement.startswith("UPDATE") else [])


def test_a_partition_that_went_meanwhile_is_neither_dropped_nor_touched(
    unlocked: Shelf, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    unlocked.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), by="p")
    unlocked.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    for command in ("DROP", "TOUCH"):
        unlocked.run("INSERT OVERWRITE t PARTITION (p='a') SELECT 1")
        other = unlocked.made.open().load_table((unlocked.made.namespace, "t"))
        meanwhile(lambda other=other: other.delete("p = 'a'"))  # type: ignore[misc]
        with pytest.raises((CommitNotApplied, StatementError), match="no such partition"):
            unlocked.run(f"ALTER TABLE t {command} PARTITION (p='a')")
    assert unlocked.rows() == [(2, "b")]


def test_a_query_of_another_table_runs_again_too(
    unlocked: Shelf, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    unlocked.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()))
    unlocked.run("CREATE TABLE u (k bigint)")
    unlocked.run("INSERT INTO u VALUES (1)")
    other = Session(unlocked.made.open(), database=unlocked.made.namespace)
    meanwhile(lambda: (other.run("INSERT INTO u VALUES (2)"), other.run("INSERT INTO t VALUES (9, 'a')")))
    unlocked.run("INSERT INTO t SELECT k, 'u' FROM u")
    assert unlocked.rows() == [(1, "u"), (2, "u"), (9, "a")]


def test_a_table_has_the_columns_and_partitions_that_the_last_statement_says(
    unlocked: Shelf, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    unlocked.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), by="p")
    other = Session(unlocked.made.open(), database=unlocked.made.namespace)
    meanwhile(lambda: other.run("ALTER TABLE t SET PARTITION SPEC (p, truncate(3, p))"))
    assert unlocked.run("ALTER TABLE t SET PARTITION SPEC (bucket(2, k))").endswith("is partitioned by k_bucket_2")
    meanwhile(lambda: other.run("ALTER TABLE t ADD COLUMNS (z bigint)"))
    unlocked.run("ALTER TABLE t REPLACE COLUMNS (p string, k bigint)")
    unlocked.run("INSERT INTO t VALUES ('a', 1)")
    assert unlocked.rows() == [("a", 1)]


def test_an_expiry_says_how_many_snapshots_are_gone(
    unlocked: Shelf, meanwhile: Callable[[Callable[[], Any]], None]
) -> None:
    table = unlocked.table(NestedField(1, "k", LongType()))
    for number in range(3):
        unlocked.run(f"INSERT INTO t VALUES ({number})")
    other = Session(unlocked.made.open(), database=unlocked.made.namespace)
    first = table.refresh().metadata.snapshots[0].snapshot_id
    meanwhile(lambda: other.run(f"ALTER TABLE t CREATE TAG kept FOR SYSTEM_VERSION AS OF {first}"))
    assert unlocked.run("ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST 1").startswith("1 snapshots")
    assert len(table.refresh().metadata.snapshots) == 2


def test_a_location_is_registered_once(shelf: Shelf) -> None:
    table = shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), by="p")
    folder = shelf.made.folder / "elsewhere"
    folder.mkdir()
    pq.write_table(pa.table({"k": [1], "p": ["a"]}), folder / "one.parquet")
    shelf.run(f"ALTER TABLE t ADD PARTITION (p='a') LOCATION '{folder}'")
    with pytest.raises(StatementError, match="the file is already in the table"):
        shelf.run(f"ALTER TABLE t ADD PARTITION (p='a') LOCATION '{folder}'")
    shelf.run(f"ALTER TABLE t ADD IF NOT EXISTS PARTITION (p='a') LOCATION '{folder}'")
    assert shelf.rows() == [(1, "a")]
    assert len(table.refresh().metadata.snapshots) == 1


def test_files_of_a_location_are_registered_whatever_their_suffix(shelf: Shelf) -> None:
    """Hive's have none. Hidden ones are not committed, or no rows."""
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), by="p")
    folder = shelf.made.folder / "of hive"
    folder.mkdir()
    for number, name in enumerate(["000000_0", "a.parq", "A.PARQUET", "_SUCCESS", ".a.parq.crc"]):
        pq.write_table(pa.table({"k": [number], "p": ["a"]}), folder / name)
    shelf.run(f"ALTER TABLE t ADD PARTITION (p='a') LOCATION '{folder}'")
    assert shelf.rows() == [(0, "a"), (1, "a"), (2, "a")]
    (folder / "notes.txt").write_text("no rows")
    with pytest.raises(StatementError, match="notes.txt"):
        shelf.run(f"ALTER TABLE t ADD IF NOT EXISTS PARTITION (p='a') LOCATION '{folder}'")


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_newest_snapshots_are_kept(shelf: Shelf, version: str) -> None:
    """Those of format version 1 have no sequence numbers; an upgrade leaves them so."""
    shelf.run(f"CREATE TABLE old (k bigint) TBLPROPERTIES ('format-version'='{version}')")
    for number in range(3):
        shelf.run(f"INSERT INTO old VALUES ({number})")
    table: Any = shelf.load("old")
    with table.transaction() as tx:
        tx.upgrade_table_version(2)
    shelf.run("INSERT INTO old VALUES (3)")
    newest = [snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots][-3:]
    shelf.run("ALTER TABLE old EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST 3")
    assert newest == [snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots]


@pytest.mark.parametrize(
    "statement", ["RETAIN LAST 1", "('2100-01-01 00:00:00')", ""], ids=["last", "before", "default"]
)
@pytest.mark.parametrize(
    "properties, of_branch, kept",
    [
        ({}, {}, 1),
        ({"history.expire.min-snapshots-to-keep": "3"}, {}, 3),
        ({"history.expire.min-snapshots-to-keep": "2"}, {"min_snapshots_to_keep": 4}, 4),
        ({}, {"max_snapshot_age_ms": 3_600_000}, 5),
    ],
    ids=["nothing", "table", "branch", "age"],
)
def test_the_snapshots_that_a_table_or_branch_keeps_stay(
    shelf: Shelf, statement: str, properties: dict[str, str], of_branch: dict[str, int], kept: int
) -> None:
    shelf.run("CREATE TABLE many (k bigint)")
    for number in range(5):
        shelf.run(f"INSERT INTO many VALUES ({number})")
    table: Any = shelf.load("many")
    with table.transaction() as tx:
        tx.set_properties({"history.expire.max-snapshot-age-ms": "1", **properties})
    head = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(head, "dev", **of_branch).commit()
    shelf.run(f"ALTER TABLE many EXECUTE EXPIRE_SNAPSHOTS {statement}")
    if statement == "RETAIN LAST 1" and not of_branch:
        kept = 1  # the statement says how many
    assert kept == len(table.refresh().metadata.snapshots)


@pytest.mark.parametrize("age", [2**63 - 1, 10**15, 1])
def test_snapshots_expire_by_any_age(shelf: Shelf, age: int) -> None:
    shelf.run(f"CREATE TABLE aged (k bigint) TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '{age}')")
    for number in range(3):
        shelf.run(f"INSERT INTO aged VALUES ({number})")
    shelf.run("ALTER TABLE aged EXECUTE EXPIRE_SNAPSHOTS")
    assert (1 if age == 1 else 3) == len(shelf.load("aged").metadata.snapshots)


def test_snapshots_of_a_writer_whose_clock_is_ahead_expire(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.run("CREATE TABLE many (k bigint)")
    for number in range(3):
        shelf.run(f"INSERT INTO many VALUES ({number})")

    class Behind(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - timedelta(hours=1)

    monkeypatch.setattr("commit_coord.sql.definitions.datetime", Behind)
    shelf.run("ALTER TABLE many EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST 1")
    assert 1 == len(shelf.load("many").metadata.snapshots)


def test_a_file_of_the_table_is_not_registered_again_by_another_name(shelf: Shelf) -> None:
    shelf.run("CREATE TABLE own (k bigint, p string) PARTITIONED BY (p)")
    shelf.run("INSERT INTO own VALUES (1, 'a'), (2, 'b')")
    folder = shelf.folder("own") / "data" / "p=a"
    for name in (f"{folder}", f"file://{folder}", f"file://{folder}/", f"{folder.parent}//p=a"):
        with pytest.raises(StatementError, match="the file is already in the table"):
            shelf.run(f"ALTER TABLE own ADD PARTITION (p='a') LOCATION '{name}'")
        shelf.run(f"ALTER TABLE own ADD IF NOT EXISTS PARTITION (p='a') LOCATION '{name}'")
    assert 2 == shelf.load("own").scan().to_arrow().num_rows


@pytest.mark.parametrize("value, other", [(None, "a"), ("b", "a")])
def test_files_that_have_rows_of_several_partitions_are_refused(
    tmp_path: Path, shelf: Shelf, value: str | None, other: str
) -> None:
    """Bounds know no NULL: by them, the file lies in one partition."""
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), by="p")
    pq.write_table(pa.table({"k": [1, 2], "p": pa.array([other, value], pa.string())}), tmp_path / "one.parquet")
    with pytest.raises(StatementError, match="the files can't be registered"):
        shelf.run(f"ALTER TABLE t ADD PARTITION (p='{other}') LOCATION '{tmp_path}'")
    assert [] == shelf.rows()


def test_a_file_of_nan_is_registered_in_the_partition_of_nan(tmp_path: Path, shelf: Shelf) -> None:
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", DoubleType()), by="p")
    pq.write_table(pa.table({"k": [1], "p": [float("nan")]}), tmp_path / "one.parquet")
    shelf.run(f"ALTER TABLE t ADD PARTITION (p) LOCATION '{tmp_path}'")
    assert 1 == shelf.load("t").scan("p is nan").to_arrow().num_rows
    shelf.run("DROP TABLE t")  # no comparison holds of NaN, nor that of the rows which others see


def test_files_whose_field_ids_are_those_of_other_columns_are_refused(shelf: Shelf) -> None:
    """Rows are read by id, while metrics and partition would be taken by name."""
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", LongType()), by="p")
    shelf.run("CREATE TABLE turned (p bigint, k bigint)")
    shelf.run("INSERT INTO turned VALUES (1, 100)")
    folder = shelf.folder("turned") / "data"
    with pytest.raises(StatementError, match="field id of a different column"):
        shelf.run(f"ALTER TABLE t ADD PARTITION (p=1) LOCATION '{folder}'")


@pytest.mark.parametrize(
    "by, value, condition, kind",
    [
        *(
            (by, value, condition, kind)
            for kind in ("date", "timestamp")
            for by, value, condition in (
                ("year(d)", "9999", "d_year"),
                ("month(d)", "9999-12", "d_month"),
                ("day(d)", "9999-12-31", "d_day"),
                ("year(d)", "1969", "d_year"),
                ("month(d)", "1900-02", "d_month"),
            )
        ),
        ("hour(d)", "9999-12-31-23", "d_hour", "timestamp"),
    ],
)
def test_the_last_partition_that_python_has_can_be_dropped(
    shelf: Shelf, by: str, value: str, condition: str, kind: str
) -> None:
    year = int(value[:4])
    inside = {9999: "9999-12-31 23:30:00", 1969: "1969-12-31 23:59:59", 1900: "1900-02-28 23:59:59"}[year]
    outside = {9999: "9998-12-31 23:59:59", 1969: "1970-01-01 00:00:00", 1900: "1900-03-01 00:00:00"}[year]
    shelf.run(f"CREATE TABLE u (d {kind}, v int) PARTITIONED BY ({by})")
    for number, moment in enumerate((inside, outside)):
        shelf.run(f"INSERT INTO u VALUES ({kind} '{moment if kind == 'timestamp' else moment[:10]}', {number})")
    shelf.run(f"ALTER TABLE u DROP PARTITION ({condition}='{value}')")
    left = shelf.load("u").scan().to_arrow()
    assert [1] == left["v"].to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM t {# WHERE k = 99 #}",
        "INSERT INTO t VALUES (1),",
        "INSERT INTO t VALUES (1), ;",
        "UPDATE t SET k = 5, WHERE k = 1",
        "SELECT k, FROM t",
        "SELECT k FROM t ORDER BY k, LIMIT 1",
        "SELECT k FROM t GROUP BY k, HAVING k > 1",
    ],
)
def test_a_statement_of_which_something_is_missing_does_nothing(shelf: Shelf, text: str) -> None:
    shelf.table(NestedField(1, "k", LongType()))
    shelf.run("INSERT INTO t VALUES (7)")
    with pytest.raises(StatementError):
        shelf.run(text)
    assert [(7,)] == shelf.rows()


def test_files_that_writers_hide_are_not_registered(shelf: Shelf) -> None:
    shelf.table(NestedField(1, "k", LongType()), NestedField(2, "_p", StringType()), by="_p")
    folder = shelf.made.folder / "_staged"
    names = ["_p=a/1", "_p=a/.2", "_p=a/_3", "_temporary/0/4", ".tmp/5", "6", "_p=a/_temporary/7", "_8=9"]
    for number, name in enumerate(names, 1):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"k": [number], "_p": ["a"]}), path)
    shelf.run(f"ALTER TABLE t ADD PARTITION (_p='a') LOCATION '{folder}/'")
    assert [k for k, _ in shelf.rows()] == [1, 6, 8]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM ``",
        "SELECT * FROM db.``",
        "SELECT * FROM ``.t",
        "SELECT `` FROM t",
        "SELECT * FROM t WHERE `` = 1",
        "DROP TABLE db.``",
        "DROP TABLE IF EXISTS ``",
        "CREATE DATABASE ``",
        "DROP DATABASE IF EXISTS ``",
        "CREATE TABLE u (`` int)",
        "ALTER TABLE t ADD COLUMNS (`` int)",
        "ALTER TABLE t RENAME TO ``",
        "LOCK TABLE `` SHARED",
        "SHOW LOCKS db.``",
        "UPDATE t SET `` = 1",
        "INSERT INTO t (``) VALUES (1)",
    ],
)
def test_a_name_is_not_empty(shelf: Shelf, text: str) -> None:
    shelf.column(LongType())
    with pytest.raises(StatementError, match="a name must not be empty"):
        shelf.run(text)


def test_a_statement_that_changes_no_row_makes_no_snapshot(shelf: Shelf) -> None:
    table = shelf.table(NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), by="p")
    shelf.run("INSERT INTO t VALUES (1, 'a')")
    for text in (
        "INSERT INTO t SELECT k, p FROM t WHERE k = 5",
        "INSERT OVERWRITE t SELECT k, p FROM t WHERE k = 5",
        "DELETE FROM t WHERE k = 5",
        "UPDATE t SET k = 5 WHERE k = 6",
        "SELECT k FROM t LIMIT 0",
    ):
        shelf.run(text)
    assert len(table.refresh().metadata.snapshots) == 1
    assert shelf.rows() == [(1, "a")]


def test_rows_that_a_file_does_not_count_are_counted(shelf: Shelf) -> None:
    """Some writers say -1 where they do not know."""
    table = shelf.column(LongType())
    (file,) = data_files(table.metadata, pa.table({"k": [1, 2, 3], "x": [1, 2, 3]}), table.io)
    file._data[_RECORD_COUNT] = -1
    assert -1 == file.record_count
    table.commit_files([file])
    table.append(pa.table({"k": [4], "x": [4]}))
    assert 4 == table.scan().count()
    assert 2 == table.scan("x > 2").count()
    assert "4" == shelf.run("SELECT count(*) FROM t")
    assert shelf.run("DELETE FROM t WHERE x > 0").startswith("4 rows")
    assert "0" == shelf.run("SELECT count(*) FROM t")


_RECORD_COUNT = 4
"""Position in a ``DataFile``."""


@pytest.mark.parametrize("dropped", [False, True])
def test_a_partition_field_without_values_rules_out_no_row(shelf: Shelf, dropped: bool) -> None:
    """Of format version 1, where a field that is removed stays as void: every row lies in its partition NULL."""
    schema = Schema(
        NestedField(1, "k", LongType()), NestedField(2, "p", StringType()), NestedField(3, "v", StringType())
    )
    spec = PartitionSpec(
        *(
            PartitionField(number, 998 + number, IdentityTransform(), schema.fields[number - 1].name)
            for number in (2, 3)
        )
    )
    made = {"partition_spec": spec, "properties": {"format-version": "1"}}
    table = shelf.made.catalog.create_table((shelf.made.namespace, "t"), schema, **made)
    with table.update_spec() as update:
        update.remove_field("v")
    table.append(pa.table({"k": [1, 2, 3], "p": ["a", "a", "b"], "v": ["x", None, None]}))
    if dropped:
        with table.update_schema() as change:
            change.delete_column("v")
    for text in ("ALTER TABLE t DROP PARTITION (v=NULL)", "TRUNCATE TABLE t PARTITION (v=NULL)"):
        with pytest.raises(StatementError, match="every row is in this partition"):
            shelf.run(text)
    assert 3 == len(shelf.rows())
    shelf.run("ALTER TABLE t DROP PARTITION (p='a', v=NULL)")
    assert [(3,)] == shelf.rows("k")


@pytest.mark.parametrize(
    "kind, beyond",
    [
        (DateType(), pa.array([3_000_000], pa.int32()).cast(pa.date32())),
        (TimestampType(), pa.array([2**62], pa.int64()).cast(pa.timestamp("us"))),
        (TimestamptzType(), pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))),
    ],
    ids=str,
)
def test_a_time_beyond_pythons_is_kept_and_refused_with_words_where_it_would_be_shown(
    shelf: Shelf, kind: IcebergType, beyond: pa.Array
) -> None:
    table = shelf.column(kind)
    table.append(pa.table({"k": pa.array([1], pa.int64()), "x": beyond}))
    for text in ("SELECT x FROM t", "INSERT INTO t (k, x) SELECT x, x FROM t"):
        with pytest.raises(StatementError, match="beyond the year 9999"):
            shelf.run(text)
    assert "1" == shelf.run("SELECT k FROM t WHERE x > '9999-12-31'")
    shelf.run("INSERT INTO t SELECT k, x FROM t")
    shelf.run("UPDATE t SET k = 2 WHERE k = 1")
    found = shelf.load("t").scan().to_arrow()
    assert [2, 2] == found["k"].to_pylist()
    assert found["x"].combine_chunks().equals(pa.concat_arrays([beyond, beyond]))
    shelf.run("DROP TABLE t")  # the check of the kit shows its rows
