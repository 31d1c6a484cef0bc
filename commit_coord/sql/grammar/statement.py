"""Statements from text."""

from __future__ import annotations

from collections.abc import Callable

from commit_coord.sql.grammar.alter import AlterParser
from commit_coord.sql.grammar.locks import LockParser
from commit_coord.sql.grammar.parts import PartParser
from commit_coord.sql.grammar.rows import RowParser
from commit_coord.sql.grammar.tables import TableParser
from commit_coord.sql.grammar.tokens import TokenReader, tokenize
from commit_coord.sql.statement import ExplainLocks, Help, Statement


def parse(text: str) -> Statement:
    """Return the statement that *text* is.

    Raises:
        StatementError: It is none; the message says where it ends to be one, and what was expected.
    """
    reader = TokenReader(text, tokenize(text))
    found = StatementParser(reader).statement()
    reader.skip(";")
    reader.end()
    return found


class StatementParser:
    """Reads a statement."""

    def __init__(self, reader: TokenReader) -> None:
        parts = PartParser(reader)
        self._reader = reader
        self._locks = LockParser(reader, parts)
        self._tables = TableParser(reader, parts)
        self._alter = AlterParser(reader, parts)
        self._rows = RowParser(reader, parts)

    def statement(self) -> Statement:
        """Return the statement that comes next."""
        actions: list[tuple[tuple[str, ...], Callable[[], Statement]]] = [
            (("HELP",), Help),
            (("SHOW", "DATABASES"), self._tables.show_databases),
            (("SHOW", "SCHEMAS"), self._tables.show_databases),
            (("SHOW", "TABLES"), self._tables.show_tables),
            (("DESCRIBE",), self._tables.describe),
            (("DESC",), self._tables.describe),
            (("SHOW", "LOCKS"), self._locks.show_locks),
            (("SHOW", "LEASE"), self._locks.show_lease),
            (("DROP", "FORCE", "LEASE"), self._locks.drop_force_lease),
            (("LOCK",), self._locks.lock),
            (("UNLOCK",), self._locks.unlock),
            (("EXPLAIN",), self._explain),
            (("ALTER", "TABLE"), self._alter.alter),
            (("DROP", "TABLE"), self._tables.drop),
            (("DROP", "DATABASE"), self._tables.drop_database),
            (("DROP", "SCHEMA"), self._tables.drop_database),
            (("CREATE", "TABLE"), self._tables.create_table),
            (("CREATE", "EXTERNAL", "TABLE"), self._tables.create_table),
            (("CREATE", "DATABASE"), self._tables.create_database),
            (("CREATE", "SCHEMA"), self._tables.create_database),
            (("TRUNCATE",), self._tables.truncate),
            (("INSERT",), self._rows.insert),
        ]
        for words, rest in actions:
            if self._reader.skip(*words):
                return rest()
        if self._reader.sees("SELECT") or self._reader.sees("WITH"):
            return self._rows.select()
        if self._reader.sees("DELETE"):
            return self._rows.delete()
        if self._reader.sees("UPDATE"):
            return self._rows.update()
        if self._reader.sees("MERGE"):
            raise self._reader.wrong(
                "a supported statement (for MERGE call table.upsert, or join in Spark and write the "
                "result with commit_coord.spark.write_table)"
            )
        first = next((words[0] for words, _ in actions if self._reader.sees(words[0])), None)
        if first is not None:
            self._reader.need(first)
            *others, last = sorted({" ".join(words[1:]) for words, _ in actions if words[0] == first})
            raise self._reader.wrong(f"{', '.join(others)} or {last}" if others else last)
        raise self._reader.wrong("a statement such as SELECT, INSERT, ALTER TABLE or SHOW LOCKS (HELP lists them all)")

    def _explain(self) -> Statement:
        formatted = self._reader.skip("FORMATTED")
        self._reader.need("LOCKS")
        return ExplainLocks(self.statement(), formatted)
