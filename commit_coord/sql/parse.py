"""Statements from text: sqlglot's Hive dialect for queries and types, and what it lacks of Hive's locks and tables.

Every error says where, and what was expected there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import sqlglot
from sqlglot import expressions as sql
from sqlglot.dialects.hive import Hive
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from commit_coord.errors import StatementError
from commit_coord.model import LockMode
from commit_coord.sql.statement import (
    OPEN,
    AddColumns,
    AddPartitions,
    ChangeColumn,
    Column,
    Concatenate,
    DropForceLease,
    DropPartitions,
    DropTable,
    ExplainLocks,
    Insert,
    Leased,
    Lock,
    Name,
    Partition,
    Rename,
    ReplaceColumns,
    Select,
    SetFileFormat,
    SetProperties,
    SetSerde,
    ShowLease,
    ShowLocks,
    Statement,
    TouchPartition,
    Unlock,
    Value,
)

_DIALECT = "hive"


class _Dialect(Hive):
    """Hive's words, all of them: sqlglot takes what follows SHOW or EXPLAIN for one text."""

    class Tokenizer(Hive.Tokenizer):
        """Hive's."""

        COMMANDS: ClassVar[set[TokenType]] = set()


_NO_NAMES = frozenset({TokenType.STRING, TokenType.NUMBER})


def parse(text: str) -> Statement:
    """Return the statement that *text* is.

    Raises:
        StatementError: It is none; the message says where it ends to be one, and what was expected.
    """
    try:
        tokens = _Dialect().tokenize(text)
    except SqlglotError as error:
        raise StatementError("the text can't be read: a quote or a comment has no end", statement=text) from error
    words = _Words(text, tokens)
    found = words.statement()
    words.skip(";")
    words.end()
    return found


class _Words:
    """A statement's tokens, read from left to right."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    # One word.

    @property
    def _next(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def wrong(self, expected: str) -> StatementError:
        """Return what to raise when something else was expected here."""
        token = self._next
        found = f"{token.text!r}" if token is not None else "the end"
        return StatementError(
            f"expected {expected}, found {found}",
            position=f"line {token.line}, column {token.col - len(token.text) + 1}" if token is not None else "end",
            statement=self._text,
        )

    def sees(self, *words: str) -> bool:
        """Return whether *words* come next."""
        coming = self._tokens[self._at : self._at + len(words)]
        return len(coming) == len(words) and all(
            token.token_type is not TokenType.IDENTIFIER
            and token.token_type is not TokenType.STRING
            and token.text.upper() == word
            for token, word in zip(coming, words, strict=True)
        )

    def skip(self, *words: str) -> bool:
        """Step over *words* if they come next; return whether they did."""
        if not self.sees(*words):
            return False
        self._at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Step over *words*, which must come next."""
        for word in words:
            if not self.skip(word):
                raise self.wrong(word)

    def end(self) -> None:
        """Return at the end of the statement."""
        if self._next is not None:
            raise self.wrong("the end")

    def _one(self, expected: str, accepts: Callable[[Token], bool]) -> Token:
        token = self._next
        if token is None or not accepts(token):
            raise self.wrong(expected)
        self._at += 1
        return token

    def identifier(self, what: str) -> str:
        """Return the next word as a name; any word may be one, as in Hive where it is quoted."""
        token = self._one(
            what,
            lambda token: (
                token.token_type is TokenType.IDENTIFIER
                or (token.token_type not in _NO_NAMES and (token.text[0].isalpha() or token.text[0] == "_"))
            ),
        )
        return token.text

    def string(self, what: str) -> str:
        """Return the next word, which is quoted."""
        return self._one(what, lambda token: token.token_type is TokenType.STRING).text

    # Parts of statements.

    def name(self) -> Name:
        """Return a table's name."""
        first = self.identifier("the name of a table")
        return Name(self.identifier("the name of a table"), first) if self.skip(".") else Name(first)

    def database(self) -> str:
        """Return a database's name."""
        return self.identifier("the name of a database")

    def partition(self) -> Partition | None:
        """Return a partition if one comes next."""
        if not self.skip("PARTITION"):
            return None
        self.need("(")
        values: list[tuple[str, Value]] = []
        while True:
            key = self.identifier("the name of a partition column")
            if any(key.lower() == known.lower() for known, _ in values):
                raise self.wrong(f"each partition column once, {key!r} is there already")
            values.append((key, self.value() if self.skip("=") else OPEN))
            if not self.skip(","):
                break
        self.need(")")
        return Partition(tuple(values))

    def value(self) -> Value:
        """Return a constant."""
        if self.skip("NULL"):
            return None
        if self.sees("TRUE") or self.sees("FALSE"):
            return self._one("", lambda _: True).text.upper() == "TRUE"
        negative = self.skip("-")
        expected = "a number" if negative else "a quoted text, a number, TRUE, FALSE or NULL"
        kinds = {TokenType.NUMBER} if negative else {TokenType.NUMBER, TokenType.STRING}
        token = self._one(expected, lambda token: token.token_type in kinds)
        if token.token_type is TokenType.STRING:
            return token.text
        number = float(token.text) if any(mark in token.text.lower() for mark in ".e") else int(token.text)
        return -number if negative else number

    def properties(self) -> dict[str, str]:
        """Return ``('key'='value', ...)``."""
        self.need("(")
        found: dict[str, str] = {}
        while True:
            key = self.string("a quoted property name")
            self.need("=")
            found[key] = self.string("a quoted value")
            if not self.skip(","):
                break
        self.need(")")
        return found

    def mode(self) -> LockMode:
        """Return a lock mode."""
        if self.skip("SHARED"):
            return LockMode.SHARED
        if self.skip("EXCLUSIVE"):
            return LockMode.EXCLUSIVE
        raise self.wrong("SHARED or EXCLUSIVE")

    def column(self) -> Column:
        """Return ``name type [COMMENT '...']``."""
        name = self.identifier("the name of a column")
        start = self._next
        depth, begun = 0, self._at
        # The type ends where a comma or a bracket does that is not its own, or another clause begins.
        while (token := self._next) is not None and (
            depth > 0 or not any(map(self.sees, (",", ")", ";", "COMMENT", "FIRST", "AFTER")))
        ):
            depth += token.text.count("(") + token.text.count("<") - token.text.count(")") - token.text.count(">")
            self._at += 1
        if start is None or self._at == begun:
            raise self.wrong("the type of the column")
        written = self._text[start.start : self._tokens[self._at - 1].end + 1]
        try:
            kind = sql.DataType.build(written, dialect=_DIALECT)
        except SqlglotError:
            self._at = begun
            raise self.wrong("a type of Hive") from None
        return Column(name, kind, self.string("a quoted comment") if self.skip("COMMENT") else "")

    def columns(self) -> tuple[Column, ...]:
        """Return ``(name type, ...)``."""
        self.need("(")
        found = [self.column()]
        while self.skip(","):
            found.append(self.column())
        self.need(")")
        return tuple(found)

    # Statements.

    def statement(self) -> Statement:
        """Return the statement that comes next."""
        actions: list[tuple[tuple[str, ...], Callable[[], Statement]]] = [
            (("SHOW", "LOCKS"), self._show_locks),
            (("SHOW", "LEASE"), self._show_lease),
            (("DROP", "FORCE", "LEASE"), lambda: DropForceLease(self._leased())),
            (("LOCK",), self._lock),
            (("UNLOCK",), self._unlock),
            (("EXPLAIN",), self._explain),
            (("ALTER", "TABLE"), self._alter),
            (("DROP", "TABLE"), self._drop),
            (("INSERT",), self._insert),
        ]
        for words, rest in actions:
            if self.skip(*words):
                return rest()
        if self.sees("SELECT") or self.sees("WITH"):
            return Select(self._query())
        raise self.wrong(
            "SHOW LOCKS, LOCK, UNLOCK, SHOW LEASE, DROP FORCE LEASE, EXPLAIN LOCKS, ALTER TABLE, DROP TABLE, INSERT or "
            "SELECT"
        )

    def _show_locks(self) -> Statement:
        if self.skip("DATABASE") or self.skip("SCHEMA"):
            return ShowLocks(database=self.database(), extended=self.skip("EXTENDED"))
        if self._next is None or self.sees("EXTENDED") or self.sees(";"):
            return ShowLocks(extended=self.skip("EXTENDED"))
        table = self.name()
        return ShowLocks(table, self.partition(), extended=self.skip("EXTENDED"))

    def _lock(self) -> Statement:
        if self.skip("DATABASE") or self.skip("SCHEMA"):
            database = self.database()
            return Lock(self.mode(), database=database)
        if not self.skip("TABLE"):
            raise self.wrong("TABLE or DATABASE")
        table, partition = self.name(), self.partition()
        return Lock(self.mode(), table, partition)

    def _unlock(self) -> Statement:
        if self.skip("DATABASE") or self.skip("SCHEMA"):
            return Unlock(database=self.database())
        if not self.skip("TABLE"):
            raise self.wrong("TABLE or DATABASE")
        return Unlock(self.name(), self.partition())

    def _show_lease(self) -> Statement:
        return ShowLease(() if self._next is None or self.sees(";") else self._leased())

    def _leased(self) -> Leased:
        if self.skip("*"):
            return ()
        if self._next is None or self.sees(";"):
            raise self.wrong("* or the name of a table")
        found = [(self.name(), self.partition())]
        while self.skip(","):
            found.append((self.name(), self.partition()))
        return tuple(found)

    def _explain(self) -> Statement:
        formatted = self.skip("FORMATTED")
        self.need("LOCKS")
        return ExplainLocks(self.statement(), formatted)

    def _drop(self) -> Statement:
        if_exists = self.skip("IF", "EXISTS")
        table = self.name()
        return DropTable(table, if_exists, self.skip("PURGE"))

    def _alter(self) -> Statement:
        table = self.name()
        if (partition := self.partition()) is not None:
            self.need("CONCATENATE")
            return Concatenate(table, partition)
        actions: list[tuple[tuple[str, ...], Callable[[], Statement]]] = [
            (("RENAME", "TO"), lambda: Rename(table, self.name())),
            (("ADD", "COLUMNS"), lambda: AddColumns(table, self.columns())),
            (("REPLACE", "COLUMNS"), lambda: ReplaceColumns(table, self.columns())),
            (("CHANGE",), lambda: self._change(table)),
            (("CONCATENATE",), lambda: Concatenate(table)),
            (("ADD",), lambda: self._add_partitions(table)),
            (("DROP",), lambda: self._drop_partitions(table)),
            (("TOUCH",), lambda: TouchPartition(table, self._needed_partition())),
            (("SET",), lambda: self._set(table)),
            (("UNSET", "TBLPROPERTIES"), lambda: SetProperties(table, dict.fromkeys(self._keys()))),
        ]
        for words, rest in actions:
            if self.skip(*words):
                return rest()
        raise self.wrong(
            "RENAME TO, ADD COLUMNS, REPLACE COLUMNS, CHANGE, CONCATENATE, ADD PARTITION, DROP PARTITION, "
            "TOUCH PARTITION, SET, UNSET or PARTITION"
        )

    def _needed_partition(self) -> Partition:
        if (partition := self.partition()) is None:
            raise self.wrong("PARTITION")
        return partition

    def _change(self, table: Name) -> Statement:
        self.skip("COLUMN")
        name = self.identifier("the name of a column")
        column = self.column()
        after = None
        if self.skip("FIRST"):
            after = ""
        elif self.skip("AFTER"):
            after = self.identifier("the name of a column")
        return ChangeColumn(table, name, column, after)

    def _add_partitions(self, table: Name) -> Statement:
        if_not_exists = self.skip("IF", "NOT", "EXISTS")
        found: list[tuple[Partition, str | None]] = []
        while self.sees("PARTITION") or not found:
            partition = self._needed_partition()
            found.append((partition, self.string("a quoted location") if self.skip("LOCATION") else None))
        return AddPartitions(table, tuple(found), if_not_exists)

    def _drop_partitions(self, table: Name) -> Statement:
        if_exists = self.skip("IF", "EXISTS")
        found = [self._needed_partition()]
        while self.skip(","):
            found.append(self._needed_partition())
        return DropPartitions(table, tuple(found), if_exists)

    def _set(self, table: Name) -> Statement:
        if self.skip("TBLPROPERTIES"):
            return SetProperties(table, self.properties())
        if self.skip("SERDEPROPERTIES"):
            return SetSerde(table, None, self.properties())
        if self.skip("SERDE"):
            serializer = self.string("a quoted class name")
            return SetSerde(table, serializer, self.properties() if self.skip("WITH", "SERDEPROPERTIES") else {})
        if self.skip("FILEFORMAT"):
            return SetFileFormat(table, self.identifier("a file format").lower())
        raise self.wrong("TBLPROPERTIES, SERDEPROPERTIES, SERDE or FILEFORMAT")

    def _keys(self) -> list[str]:
        self.need("(")
        found = [self.string("a quoted property name")]
        while self.skip(","):
            found.append(self.string("a quoted property name"))
        self.need(")")
        return found

    def _insert(self) -> Statement:
        overwrite = self.skip("OVERWRITE")
        if not overwrite:
            self.need("INTO")
        self.skip("TABLE")
        table, partition = self.name(), self.partition()
        columns: list[str] = []
        if self.sees("("):
            self.need("(")
            columns.append(self.identifier("the name of a column"))
            while self.skip(","):
                columns.append(self.identifier("the name of a column"))
            self.need(")")
        if not any(map(self.sees, ("SELECT", "WITH", "VALUES"))):
            raise self.wrong("SELECT, WITH or VALUES")
        return Insert(table, overwrite, partition, tuple(columns), self._query())

    def _query(self) -> sql.Query | sql.Values:
        """Return what is left as a query."""
        first = self._next
        assert first is not None
        ends = [token for token in self._tokens if token.token_type is TokenType.SEMICOLON]
        end = ends[0].start if ends else len(self._text)
        # What comes before is blanked out, so that sqlglot counts lines and columns as we do.
        before = "".join(mark if mark == "\n" else " " for mark in self._text[: first.start])
        try:
            found = sqlglot.parse_one(before + self._text[first.start : end], dialect=_DIALECT)
        except ParseError as error:
            wrong = error.errors[0]
            raise StatementError(
                f"this is no query: {wrong['description']}".split(" but got <Token")[0],
                position=f"line {wrong['line']}, column {(wrong['col'] or 1) - len(wrong['highlight'] or '') + 1}",
                statement=self._text,
            ) from error
        except SqlglotError as error:
            raise StatementError(f"this is no query: {error}", statement=self._text) from error
        if not isinstance(found, sql.Query | sql.Values):
            raise self.wrong("a query")
        self._at = next((i for i, token in enumerate(self._tokens) if token in ends), len(self._tokens))
        return found
