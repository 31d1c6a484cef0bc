"""Statements about rows."""

from __future__ import annotations

from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.sql.clauses import unknown
from commit_coord.sql.grammar.expressions import parsed
from commit_coord.sql.grammar.parts import PartParser
from commit_coord.sql.grammar.tokens import TokenReader
from commit_coord.sql.statement import Delete, Insert, QualifiedName, Select, Statement, Update


class RowParser:
    """Reads queries, INSERT, DELETE and UPDATE."""

    def __init__(self, reader: TokenReader, parts: PartParser) -> None:
        self._reader = reader
        self._parts = parts

    def select(self) -> Statement:
        """Return a query."""
        return Select(self._query())

    def insert(self) -> Statement:
        """Return ``INSERT``, behind that word."""
        overwrite = self._reader.skip("OVERWRITE")
        if not overwrite:
            self._reader.need("INTO")
        self._reader.skip("TABLE")
        table, partition = self._parts.name(), self._parts.partition()
        columns: list[str] = []
        if self._reader.sees("("):
            self._reader.need("(")
            columns.append(self._reader.identifier("the name of a column"))
            while self._reader.skip(","):
                columns.append(self._reader.identifier("the name of a column"))
            self._reader.need(")")
        if not any(map(self._reader.sees, ("SELECT", "WITH", "VALUES"))):
            raise self._reader.wrong("SELECT, WITH or VALUES")
        return Insert(table, overwrite, partition, tuple(columns), self._query())

    def delete(self) -> Statement:
        """Return ``DELETE``."""
        found = parsed(self._reader, (sql.Delete,), "statement")
        where = _where(found)
        table = self._one_table(found)
        return Delete(QualifiedName(table.name, table.db or None), where, table.alias)

    def update(self) -> Statement:
        """Return ``UPDATE``."""
        found = parsed(self._reader, (sql.Update,), "statement")
        sets, where = [(one.this, one.expression) for one in found.expressions], _where(found)
        if any(type(one) is not sql.EQ or type(one.this) is not sql.Column for one in found.expressions):
            raise StatementError("expected column = value after SET", statement=self._reader.text)
        table = self._one_table(found, *(column for column, _ in sets))
        return Update(QualifiedName(table.name, table.db or None), tuple(sets), where, table.alias)

    def _one_table(self, found: sql.Expr, *names: sql.Expr) -> sql.Table:
        """Return the one table that *found* is about; its conditions and values are looked at when they are bound."""
        for later in ("where", "expressions"):
            found.set(later, None)
        more = next(filter(None, map(unknown, (found, *names))), None)
        if more is not None or not isinstance(found.this, sql.Table):
            raise StatementError(
                "only statements on one table, with no clause but WHERE, are supported: run others in Spark",
                found=more,
                statement=self._reader.text,
            )
        return found.this

    def _query(self) -> sql.Query | sql.Values:
        """Return what is left as a query."""
        return parsed(self._reader, (sql.Query, sql.Values), "query")  # type: ignore[return-value]  # one of them


def _where(found: sql.Expr) -> sql.Expr | None:
    where: sql.Expr | None = found.args.get("where")
    return None if where is None else where.this
