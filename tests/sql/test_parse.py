"""What is a statement, and what the errors of others say."""

from __future__ import annotations

import random

import pytest

from commit_coord.errors import StatementError
from commit_coord.iceberg.named_partitions import OPEN
from commit_coord.model import LockMode
from commit_coord.sql.grammar import parse, statements
from commit_coord.sql.manual import STATEMENTS as HELP
from commit_coord.sql.statement import DropForceLease, Lock, PartitionClause, QualifiedName, ShowLease, ShowLocks

STATEMENTS = [
    "SHOW LOCKS",
    "show locks db.t partition (a=1, b='x') extended;",
    "SHOW LOCKS DATABASE d",
    "SHOW LOCKS t EXTENDED",
    "LOCK TABLE t PARTITION (d='x') EXCLUSIVE",
    "LOCK DATABASE d SHARED",
    "UNLOCK TABLE `a b`.t",
    "UNLOCK SCHEMA d",
    "EXPLAIN LOCKS INSERT OVERWRITE t PARTITION (d) SELECT * FROM u",
    "EXPLAIN FORMATTED LOCKS SELECT * FROM t",
    "ALTER TABLE t ADD IF NOT EXISTS PARTITION (d='x') LOCATION 's3://a' PARTITION (d='y')",
    "ALTER TABLE t PARTITION (d='x') CONCATENATE",
    "ALTER TABLE t CONCATENATE",
    "ALTER TABLE t TOUCH PARTITION (d='x')",
    "ALTER TABLE t DROP IF EXISTS PARTITION (d='x'), PARTITION (d=-5)",
    "ALTER TABLE t SET TBLPROPERTIES ('a'='b', 'c'='d')",
    "ALTER TABLE t UNSET TBLPROPERTIES ('a')",
    "ALTER TABLE t SET SERDEPROPERTIES ('a'='b')",
    "ALTER TABLE t SET SERDE 'x.Y' WITH SERDEPROPERTIES ('a'='b')",
    "ALTER TABLE t SET FILEFORMAT ORC",
    "ALTER TABLE t RENAME TO d.t2",
    "ALTER TABLE t ADD COLUMNS (a int comment 'x', b decimal(10,2), c struct<a:int,b:array<string>>)",
    "ALTER TABLE t ADD COLUMNS (a struct<b: int comment 'c > d', `e<`: int>, f int)",
    "ALTER TABLE t REPLACE COLUMNS (a int)",
    "ALTER TABLE t CHANGE COLUMN a b bigint COMMENT 'c' AFTER z",
    "ALTER TABLE t CHANGE a b map<string,int> FIRST",
    "INSERT INTO TABLE t2 PARTITION (p='x', q) SELECT a, b FROM t1 WHERE p='y'",
    "INSERT OVERWRITE t (a,b) VALUES (1,'a')",
    "INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x",
    "DROP TABLE IF EXISTS db.t PURGE",
    "SELECT a FROM db.t1 a JOIN t2 b ON a.x=b.x WHERE a.p='1'",
    "TRUNCATE TABLE t PARTITION (p='x', q=1)",
    "DELETE FROM db.t WHERE a = 1 AND p IN ('x', 'y')",
    "UPDATE t SET a = 1, b = c WHERE p = 'x'",
    "CREATE TABLE IF NOT EXISTS db.t (a int, s struct<x:int>) COMMENT 'c' PARTITIONED BY (p string, day(ts), q)",
    "CREATE TABLE t (a int) STORED BY ICEBERG STORED AS ORC LOCATION 's3://a' TBLPROPERTIES ('a'='b')",
    "CREATE EXTERNAL TABLE t (a int) PARTITIONED BY SPEC (bucket(16, a), truncate(3, b), months(ts))",
    "ALTER TABLE t SET PARTITION SPEC (a, hour(ts))",
    "ALTER TABLE t CREATE BRANCH IF NOT EXISTS b FOR SYSTEM_VERSION AS OF 17 RETAIN 5 DAYS",
    "ALTER TABLE t CREATE TAG b FOR TAG AS OF c RETAIN 1 HOUR",
    "ALTER TABLE t DROP BRANCH IF EXISTS b",
    "ALTER TABLE t DROP TAG b",
    "ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS('2021-12-09 05:39:18.689000000')",
    "ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS('17, 18')",
    "ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST 5",
    "ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS",
    "ALTER TABLE t EXECUTE ROLLBACK(17)",
    "CREATE DATABASE IF NOT EXISTS d COMMENT 'c' LOCATION 's3://a' WITH DBPROPERTIES ('a'='b')",
    "DROP SCHEMA IF EXISTS d CASCADE",
    "HELP",
    "SHOW DATABASES",
    "show schemas like 's*|d*'",
    "SHOW TABLES",
    "SHOW TABLES IN d LIKE 'a*'",
    "DESCRIBE t",
    "DESC EXTENDED db.t",
    "DESCRIBE FORMATTED t",
    "SHOW LEASE",
    "SHOW LEASE *",
    "show lease t partition (d='x'), db.u",
    "DROP FORCE LEASE *",
    "DROP FORCE LEASE t PARTITION (d='x', h=1), db.u",
]


@pytest.mark.parametrize("text", STATEMENTS)
def test_a_statement_is_read(text: str) -> None:
    assert parse(text) == parse(f"  {text.rstrip(';')} ;")


def test_what_a_statement_says() -> None:
    assert parse(
        "lock table `my db`.`T-1` partition (day='2026-01-01', Hour, n=-2.5, x=NULL, y=TRUE) exclusive"
    ) == Lock(
        LockMode.EXCLUSIVE,
        QualifiedName("T-1", "my db"),
        PartitionClause((("day", "2026-01-01"), ("Hour", OPEN), ("n", -2.5), ("x", None), ("y", True))),
    )
    assert parse("SHOW LOCKS extended") == ShowLocks(extended=True)
    assert parse("SHOW LOCKS `extended`") == ShowLocks(QualifiedName("extended"))
    assert parse("SHOW LEASE") == parse("SHOW LEASE *;") == ShowLease()
    assert parse("drop force lease t partition (d='x'), db.u") == DropForceLease(
        ((QualifiedName("t"), PartitionClause((("d", "x"),))), (QualifiedName("u", "db"), None))
    )


@pytest.mark.parametrize(
    "text, position, expected",
    [
        ("", "end", "a statement such as SELECT"),
        ("SELCT 1", "line 1, column 1", "(HELP lists them all), found 'SELCT'"),
        ("SHOW TABELS", "line 1, column 6", "DATABASES, LEASE, LOCKS, SCHEMAS or TABLES, found 'TABELS'"),
        ("SHOW TABLES LIKE x", "line 1, column 18", "a quoted pattern"),
        ("DESCRIBE", "end", "the name of a table"),
        ("SELECT * FROM t WHERE", "line 1, column 17", "something is missing after 'WHERE'"),
        ("SELECT * FROM t WHERE a = 1 b c", "line 1, column 29", "unexpected 'b'"),
        ("SELECT (a FROM t", "line 1, column 11", "expected ), found"),
        ("LOCK TABLE t", "end", "SHARED or EXCLUSIVE, found the end"),
        ("LOCK TABLE t SHARD", "line 1, column 14", "SHARED or EXCLUSIVE, found 'SHARD'"),
        ("LOCK t SHARED", "line 1, column 6", "TABLE or DATABASE"),
        ("LOCK TABLE 1 SHARED", "line 1, column 12", "the name of a table"),
        ("UNLOCK", "end", "TABLE or DATABASE"),
        ("EXPLAIN SELECT 1", "line 1, column 9", "LOCKS"),
        ("ALTER TABLE t\n  FLY", "line 2, column 3", "RENAME TO, ADD COLUMNS"),
        ("ALTER TABLE t PARTITION (a=) CONCATENATE", "line 1, column 28", "a quoted text, a number"),
        ("ALTER TABLE t PARTITION () CONCATENATE", "line 1, column 26", "a partition column"),
        ("ALTER TABLE t ADD PARTITION (a=1, a=2)", "line 1, column 36", "each partition column once"),
        ("ALTER TABLE t ADD COLUMNS (a)", "line 1, column 29", "the type of the column"),
        ("ALTER TABLE t ADD COLUMNS (a foo bar)", "line 1, column 30", "a type of Hive"),
        ("ALTER TABLE t ADD COLUMNS (a int", "end", "expected )"),
        ("INSERT t VALUES (1)", "line 1, column 8", "INTO"),
        ("INSERT INTO t", "end", "SELECT, WITH or VALUES"),
        ("INSERT INTO t SELECT a FROM WHERE x", "line 1, column 29", "table name"),
        ("SHOW LOCKS t garbage", "line 1, column 14", "the end"),
        ("SELECT 1; SELECT 2", "line 1, column 11", "the end"),
        ("MERGE INTO t USING u ON a = b", "line 1, column 1", "for MERGE call table.upsert"),
        ("CREATE TABLE t", "end", "expected ("),
        ("CREATE TABLE t (a int) PARTITIONED BY (fog(a))", "line 1, column 40", "a transform (bucket, day"),
        ("CREATE TABLE t (a int) PARTITIONED BY (bucket(-4, a))", "line 1, column 47", "a whole number above 0"),
        ("CREATE TABLE t (a int) AS SELECT 1", "line 1, column 24", "rows come with INSERT"),
        ("ALTER TABLE t SET PARTITION SPEC (p string)", "line 1, column 37", ", or )"),
        ("ALTER TABLE t CREATE TAG x RETAIN -1 DAYS", "line 1, column 35", "a whole number above 0, found '-'"),
        ("ALTER TABLE t CREATE TAG x RETAIN 1 YEAR", "line 1, column 37", "DAYS, HOURS or MINUTES"),
        ("ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS RETAIN LAST 0", "line 1, column 52", "a whole number above 0"),
        ("ALTER TABLE t EXECUTE ROLLBACK('2026-W05-1')", "line 1, column 32", "a quoted time such as"),
        ("ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS('20260101 10')", "line 1, column 40", "a quoted time such as"),
        ("SELECT a, , b FROM t", "line 1, column 11", "a name or value, found ','"),
        ("CREATE TABLE t (a int NOT NULL)", "line 1, column 19", "nothing but COMMENT behind it"),
        ("ALTER TABLE t EXECUTE ROLLBACK('then')", "line 1, column 32", "a quoted time such as"),
        ("ALTER TABLE t EXECUTE FLY", "line 1, column 15", "EXECUTE EXPIRE_SNAPSHOTS or ROLLBACK"),
        ("DROP DATABASE", "end", "the name of a database"),
        ("SHOW LEASE * t", "line 1, column 14", "the end"),
        ("SHOW LEASE t,", "end", "a name or value"),
        ("DROP FORCE LEASE", "end", "* or the name of a table"),
        ("DROP LEASE *", "line 1, column 6", "FORCE LEASE"),
    ],
)
def test_the_error_of_a_malformed_statement_says_where_and_what_was_expected(
    text: str, position: str, expected: str
) -> None:
    with pytest.raises(StatementError, match="expected|query") as error:
        parse(text)
    assert error.value.details["position"] == position
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("SHOW LOCKS;", ["SHOW LOCKS;"]),
        ("SELECT 1\n  FROM t;\nSELECT 2", ["SELECT 1\n  FROM t;", "SELECT 2"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1;", "SELECT 2;"]),
        ("INSERT INTO t VALUES ('a;\nb'); SELECT 1", ["INSERT INTO t VALUES ('a;\nb');", "SELECT 1"]),
        ("-- no; statement\nSELECT 1;", ["-- no; statement\nSELECT 1;"]),
        ("/* several;\n lines; */ SELECT 1;", ["/* several;\n lines; */ SELECT 1;"]),
        (";;\n ; -- nothing\n", []),
        ("SELECT 'a; SELECT 2;", ["SELECT 'a; SELECT 2;"]),
    ],
)
def test_statements_of_several_lines_end_with_semicolons(text: str, expected: list[str]) -> None:
    assert expected == list(statements(text.splitlines(keepends=True)))
    assert expected == list(statements(text.splitlines()))


@pytest.mark.parametrize("end", ["DELETE FROM t", "DELETE FROM t -- WHERE a = 1;", "DELETE FROM t WHERE a = 'x;"])
def test_a_script_that_was_cut_off_is_refused_at_its_end(end: str) -> None:
    script = statements(["SELECT 1;\n", end], whole=True)
    assert "SELECT 1;" == next(script)
    with pytest.raises(StatementError, match="the last statement has no `;`"):
        next(script)
    assert ["SELECT 1;", "SELECT 2;"] == list(statements(["SELECT 1; SELECT 2;\n", "-- the end"], whole=True))


def test_a_statement_is_given_out_before_the_next_one_is_read() -> None:
    typed = iter(["SELECT\n", "1;\n", "SELECT 2;\n"])
    assert "SELECT\n1;" == next(statements(typed))
    assert "SELECT 2;\n" == next(typed)


def test_help_names_every_kind_of_statement() -> None:
    first_words = {form.split()[0] for form in HELP}
    assert {text.split()[0].upper() for text in STATEMENTS} - {"WITH", "DESC"} <= first_words


def test_a_quote_without_an_end_is_reported_as_one() -> None:
    with pytest.raises(StatementError, match="a quote or a comment has no end"):
        parse("SELECT 'abc")


def test_whatever_is_typed_is_answered() -> None:
    """10,000 inputs of words at random, and of statements with letters changed."""
    chance = random.Random(7)
    words = sorted({word for text in STATEMENTS for word in text.replace("(", " ( ").replace(")", " ) ").split()})
    words += ["'", "`", "--", "/*", "\n", "é", "\x00", "$", "<", ">", "::", "{", "@", ";", "1e999", "0x"]
    read = 0
    for number in range(10_000):
        if number % 2:
            text = " ".join(chance.choice(words) for _ in range(chance.randint(1, 12)))
        else:
            letters = list(chance.choice(STATEMENTS))
            for _ in range(chance.randint(1, 4)):
                letters[chance.randrange(len(letters))] = chance.choice(
                    ["", chance.choice(words), chr(chance.randrange(32, 1000))]
                )
            text = "".join(letters)
        try:
            parse(text)
            read += 1
        except StatementError:
            continue
    assert 0 < read < 5_000
