"""Nothing that is written is left out: a clause is carried out, or the statement is refused."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlglot import expressions as sql

from commit_coord import StatementError
from commit_coord.sql import Session
from tests.catalog.kit import Kit, kit

parsing: Any = importlib.import_module("commit_coord.sql.grammar.expressions")


class Desk:
    """One catalog with t (k, s, d), three rows, and u (k)."""

    def __init__(self, made: Kit) -> None:
        self.made = made
        self.session = Session(made.catalog, database=made.namespace)
        for text in (
            "CREATE TABLE t (k bigint, s string, d date)",
            "CREATE TABLE u (k bigint)",
            "INSERT INTO t VALUES (1, 'a', '2026-01-02'), (2, 'b', NULL), (3, 'c', '2026-01-01')",
        ):
            self.session.run(text)

    def answer(self, text: str) -> str:
        """Return what a statement answers, with how the rows are called."""
        found = self.session.run(text)
        return f"{found.columns} {found.rows}"

    def tables(self) -> list[str]:
        """Return where each table's metadata are: they change with every commit."""
        catalog = self.made.open()
        found = [catalog.load_table(name).metadata_location for name in sorted(catalog.list_tables("db"))]
        catalog.close()
        return found


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """See :class:`Desk`."""
    with kit("memory") as made:
        yield Desk(made)


@pytest.fixture
def untouched(desk: Desk) -> Iterator[Desk]:
    """See :class:`Desk`; no statement may change a table."""
    before = desk.tables()
    yield desk
    assert desk.tables() == before


CLAUSES = [
    "SELECT * FROM t VERSION AS OF 5",
    "SELECT * FROM t TIMESTAMP AS OF '2020-01-01'",
    "SELECT * FROM t FOR SYSTEM_TIME AS OF '2020-01-01'",
    "SELECT * FROM t FOR SYSTEM_VERSION AS OF 5",
    "SELECT * FROM t@5",
    "SELECT * FROM t TABLESAMPLE (1 ROWS)",
    "SELECT * FROM t TABLESAMPLE (10 PERCENT)",
    "SELECT * FROM t TABLESAMPLE (BUCKET 1 OUT OF 2 ON k)",
    "SELECT * FROM t PIVOT (sum(k) FOR s IN ('a', 'b'))",
    "SELECT k FROM t AS y(a, b, c)",
    "SELECT k FROM other.db.t",
    "SELECT k FROM range(5)",
    "SELECT zz.t.k FROM t",
    "SELECT k FROM t WHERE zz.t.k = 1",
    "SELECT db.t.k FROM t AS y",
    "SELECT t.k FROM t AS y",
    "SELECT AS STRUCT k FROM t",
    "SELECT t.* EXCEPT (s) FROM t",
    "SELECT * EXCEPT (s) FROM t",
    "SELECT * REPLACE (1 AS k) FROM t",
    "SELECT k FROM t LIMIT 1 PERCENT",
    "SELECT k FROM t LIMIT 1 OFFSET 1",
    "SELECT k FROM t LIMIT 2, 1",
    "SELECT DISTINCT s FROM t",
    "SELECT k FROM t ORDER BY k DESC",
    "SELECT k FROM t SORT BY k",
    "SELECT k FROM t HAVING k = 1",
    "SELECT k FROM t LATERAL VIEW explode(array(1)) x AS y",
    "SELECT k FROM t, u",
    "SELECT k FROM t WHERE k BETWEEN SYMMETRIC 3 AND 1",
    "SELECT k FROM t WHERE s ILIKE 'A'",
    "SELECT k FROM t WHERE s LIKE ANY ('a', 'b')",
    "SELECT k FROM t WHERE k IN (1, , 2)",
    "SELECT k FROM t WHERE k IN (SELECT k FROM u)",
    "SELECT k FROM t WHERE d = to_date('2026-01-02', 'yyyy-dd-MM')",
    "SELECT to_date('2026-01-02', 'yyyy-dd-MM')",
    "SELECT date('2026-01-02', 'yyyy-dd-MM')",
    "SELECT CAST('2026-01-02' AS DATE FORMAT 'YYYY-DD-MM')",
    "SELECT CAST(1 AS INT(11))",
    "SELECT CAST(1 AS DECIMAL(9, 2, 1))",
    "SELECT CAST('2026-01-02' AS TIMESTAMP(0))",
    "SELECT CAST(NAMED_STRUCT('a', NULL) AS STRUCT<a: int NOT NULL>)",
    "SELECT map('a')",
    "SELECT map('a', 1, 'b')",
    "SELECT named_struct('a', 1, 'b')",
    "SELECT named_struct('a', 1, 'a')",
    "SELECT to_date('2026-01-02', 'yyyy-MM-dd', 'x')",
    "SELECT unhex('00', '01')",
    "SELECT date('2026-01-02', 'x', 'y')",
    "SELECT CAST('a' AS STRING, 5)",
    "INSERT OVERWRITE t SELECT * FROM t VERSION AS OF 5",
    "INSERT INTO u VALUES (7) LIMIT 1",
    "INSERT INTO u VALUES (7), (8) ORDER BY 1 LIMIT 1",
    "INSERT INTO u VALUES (7) AS x(y)",
    "INSERT INTO u VALUES (7, )",
    "INSERT INTO u SELECT k FROM t TABLESAMPLE (1 ROWS)",
    "DELETE FROM t VERSION AS OF 5",
    "DELETE FROM t LIMIT 1",
    "DELETE FROM other.db.t",
    "DELETE FROM t AS y(a) WHERE k = 1",
    "DELETE FROM t AS y WHERE t.k = 1",
    "DELETE FROM t USING u",
    "DELETE FROM t WHERE d = to_date('2026-01-02', 'yyyy-dd-MM')",
    "DELETE FROM t WHERE k BETWEEN SYMMETRIC 3 AND 1",
    "UPDATE t TABLESAMPLE (1 ROWS) SET k = 5",
    "UPDATE t SET d = to_date('2026-01-02', 'yyyy-dd-MM')",
    "UPDATE t SET u.k = 5",
    "UPDATE t SET zz.t.k = 5",
    "UPDATE t SET k = 5 LIMIT 1",
    "DELETE FROM t WHERE s = named_struct('a', 1, 'b')",
    "UPDATE t SET k = u.k",
    "UPDATE t AS y SET t.k = 5",
    "CREATE TABLE w (k int NOT NULL)",
    "CREATE TABLE w (k int DEFAULT 5)",
    "CREATE TABLE w (k int PRIMARY KEY)",
    "CREATE TABLE w (k int(11))",
    "CREATE TABLE w (k int[3])",
    "CREATE TABLE w (k struct<a: int NOT NULL>)",
    "CREATE TABLE w (k struct<int>)",
    "CREATE TABLE w (k varchar(max))",
    "CREATE TABLE w (k decimal(39, 2))",
    "CREATE TABLE w (k decimal(3, 9))",
    "ALTER TABLE u ADD COLUMNS (c int NOT NULL)",
    "ALTER TABLE u CHANGE k k bigint NOT NULL",
]


@pytest.mark.parametrize("text", CLAUSES)
def test_a_clause_that_is_not_carried_out_is_refused(untouched: Desk, text: str) -> None:
    with pytest.raises(StatementError):
        untouched.session.run(text)


def test_names_of_the_table_and_of_its_alias_are_understood(desk: Desk) -> None:
    for text in (
        "SELECT k FROM t WHERE t.k = 1",
        "SELECT T.k FROM t WHERE DB.t.K = 1",
        "SELECT y.k FROM db.t AS y WHERE Y.k = 1",
        "SELECT ALL k FROM t WHERE k = 1",
    ):
        assert desk.session.run(text).rows == [(1,)]
    assert desk.session.run("DELETE FROM t AS y WHERE y.k = 99").rows == [("0 rows deleted from db.t",)]
    assert desk.session.run("UPDATE t y SET y.s = y.s WHERE y.k = 99").rows == [("0 rows of db.t updated",)]


def docs(desk: Desk) -> dict[str, str]:
    """Return the comments of columns and fields of db.commented."""
    schema = desk.made.catalog.load_table("db.commented").schema()
    names = schema._lazy_id_to_name
    return {names[field_id]: field.doc for field_id, field in schema._lazy_id_to_field.items() if field.doc}


def test_a_comment_inside_a_struct_is_kept(desk: Desk) -> None:
    """Whatever marks are in it."""
    desk.session.run(
        "CREATE TABLE commented (k struct<a: int COMMENT 'x > y', b: int COMMENT ''> COMMENT '<k', "
        "m map<string, struct<c: array<int> COMMENT '(<, ', `p>q<`: decimal(3, 2) COMMENT 'it\\'s )'>>)"
    )
    known = {"k": "<k", "k.a": "x > y", "m.value.c": "(<, ", "m.value.p>q<": "it's )"}
    assert docs(desk) == known
    desk.session.run("ALTER TABLE commented ADD COLUMNS (n array<struct<d: int COMMENT 'a < b'>>, o int)")
    assert docs(desk) == (known := {**known, "n.element.d": "a < b"})
    desk.session.run("ALTER TABLE commented CHANGE k k struct<a: int, b: int COMMENT '>'> AFTER m")
    assert docs(desk) == (known := {**known, "k.b": ">"})
    desk.session.run("ALTER TABLE commented REPLACE COLUMNS (n array<struct<d: int COMMENT 'new'>> COMMENT 'n')")
    assert docs(desk) == {"n": "n", "n.element.d": "new"}
    desk.made.catalog.drop_table("db.commented")


# Every argument that sqlglot has for each expression of these either changes the answer or is refused.

READ = [
    "SELECT *, k, t.s AS q, 5 FROM db.t AS t WHERE (k > 0 AND NOT s <> 'b') OR k IN (1, 3) LIMIT 2",
    "SELECT k FROM t WHERE k BETWEEN 1 AND 2 OR s LIKE 'b%' OR s LIKE '!%' ESCAPE '!' OR d IS NULL OR k <=> 7",
    "SELECT to_date('2026-01-02'), date('2026-01-02'), X'00', unhex('00'), -1, TRUE, concat('a', 'b'), 1L FROM t",
    "SELECT CAST('a' AS VARCHAR(3)), CAST(1 AS DECIMAL(5, 2)), DATE '2026-01-02', NULL FROM t",
    "SELECT NAMED_STRUCT('a', 1), ARRAY(1), MAP('a', 1), CAST(NULL AS STRUCT<a: int COMMENT 'x'>) FROM t",
    "SELECT 1",
]
WRITTEN = [
    "DELETE FROM t AS y WHERE y.k = 99",
    "UPDATE t AS y SET y.k = 5, s = 'x' WHERE k = 99",
    "INSERT INTO u SELECT k FROM t WHERE k = 99",
]
HARMLESS = {
    "Identifier.quoted",  # Names are compared without regard to case, quoted or not.
    "TryCast.safe",  # What would be NULL is refused.
    "TsOrDsToDate.safe",
    "Concat.safe",
    "Literal.is_string",  # A number in quotes is one.
    "DataType.nested",
    "Table.db",  # The tree names the table's own database here.
    "Table.alias",
    "Column.table",
    "Column.db",
}


def variants(text: str) -> Iterator[tuple[str, sql.Expr]]:
    """Yield what *text* is with one further argument of one of its expressions."""
    tree = parsing.sqlglot.parse_one(text, dialect=parsing.Dialect)
    for number, node in enumerate(tree.walk()):
        for key in node.arg_types:
            if not node.args.get(key):
                for value in (True, sql.Literal.number(1), [sql.Literal.number(1)], sql.to_identifier("t")):
                    copy = tree.copy()
                    list(copy.walk())[number].set(key, value)
                    yield f"{type(node).__name__}.{key}", copy


@pytest.mark.parametrize("text", READ + WRITTEN)
def test_no_argument_of_an_expression_is_left_out(untouched: Desk, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    plain, left_out = untouched.answer(text), set()
    parsed_by_sqlglot = text[text.index("SELECT") :] if text.startswith("INSERT") else text
    for name, tree in variants(parsed_by_sqlglot):
        with monkeypatch.context() as patch, contextlib.suppress(Exception):  # Some are trees that no text has.
            patch.setattr(parsing.sqlglot, "parse_one", lambda *_, tree=tree, **__: tree)
            if untouched.answer(text) == plain:
                left_out.add(name)
    assert left_out - HARMLESS == set()
