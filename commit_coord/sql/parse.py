"""Statements from text: sqlglot's Hive dialect for queries and types, and what it lacks of Hive's locks and tables.

Every error says where, and what was expected there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import ClassVar

import sqlglot
from pyiceberg.types import TimestamptzType
from sqlglot import expressions as sql
from sqlglot.dialects.hive import Hive
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.hive import HiveParser
from sqlglot.tokenizer_core import Token, TokenType

from commit_coord.errors import StatementError
from commit_coord.iceberg.named_partitions import OPEN, Value
from commit_coord.iceberg.values import Misfit, fit
from commit_coord.model import LockMode
from commit_coord.sql.clauses import unknown
from commit_coord.sql.constants import number
from commit_coord.sql.statement import (
    AddColumns,
    AddPartitions,
    ChangeColumn,
    Column,
    Concatenate,
    CreateDatabase,
    CreateRef,
    CreateTable,
    Delete,
    DropDatabase,
    DropForceLease,
    DropPartitions,
    DropRef,
    DropTable,
    ExpireSnapshots,
    ExplainLocks,
    Insert,
    Leased,
    Lock,
    Name,
    Partition,
    PartitionedBy,
    Rename,
    ReplaceColumns,
    RollBack,
    Select,
    SetFileFormat,
    SetPartitionSpec,
    SetProperties,
    SetSerde,
    ShowLease,
    ShowLocks,
    Statement,
    TouchPartition,
    Truncate,
    Unlock,
    Update,
)


class _Dialect(Hive):
    """Hive's words, all of them: sqlglot takes what follows SHOW or EXPLAIN for one text."""

    class Tokenizer(Hive.Tokenizer):
        """Hive's, with ``X'00ff'`` for bytes, as in Spark."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        HEX_STRINGS: ClassVar[list[str | tuple[str, str]]] = [("x'", "'"), ("X'", "'")]

    class Parser(HiveParser):
        """Hive's, whose casts keep the length of VARCHAR and CHAR."""

        def _parse_types(
            self,
            check_func: bool = False,
            schema: bool = True,
            allow_identifiers: bool = True,
            with_collation: bool = False,
        ) -> sql.Expr | None:
            return super()._parse_types(check_func, True, allow_identifiers, with_collation)


_TRANSFORMS = {
    **{name + ending: name for name in ("year", "month", "day", "hour") for ending in ("", "s")},
    "bucket": "bucket",
    "truncate": "truncate",
}
"""How people write a transform, and Iceberg's name of it."""

_UNITS_MS = {"DAY": 86_400_000, "HOUR": 3_600_000, "MINUTE": 60_000}

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
    _refuse_gaps(text, tokens)
    words = _Words(text, tokens)
    found = words.statement()
    words.skip(";")
    words.end()
    return found


def _refuse_gaps(text: str, tokens: list[Token]) -> None:
    """Refuse names without a letter, and commas with nothing between them: sqlglot reads ``(1, , 2)`` as ``(1, 2)``."""
    before = TokenType.SEMICOLON
    for token in tokens:
        kind = token.token_type
        if kind is TokenType.IDENTIFIER and not token.text:
            raise StatementError("a name must not be empty", position=_position(text, token), statement=text)
        if (kind is TokenType.COMMA and before in {TokenType.COMMA, TokenType.L_PAREN}) or (
            kind is TokenType.R_PAREN and before is TokenType.COMMA
        ):
            raise StatementError(
                f"expected a name or value, found {token.text!r}", position=_position(text, token), statement=text
            )
        before = kind


def located(error: StatementError, text: str) -> StatementError:
    """Return *error* with where in the statement *text* that stands which it is about, as far as it can be told."""
    if "position" in error.details:
        return error
    tokens = _Dialect().tokenize(text)
    for key in ("value", "column", "partition", "name", "table", "database"):
        named = str(error.details.get(key, "")).rpartition(".")[2] if key == "table" else error.details.get(key, "")
        for token in tokens:
            if token.text.lower() == str(named).lower():
                error.details |= {"position": _position(text, token), "statement": text}
                return error
    return error


def _position(text: str, token: Token) -> str:
    before = text[: token.start]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


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
        found, position = "the end", "end"
        if token is not None:
            found, position = f"{token.text!r}", _position(self._text, token)
        return StatementError(f"expected {expected}, found {found}", position=position, statement=self._text)

    def sees(self, *words: str) -> bool:
        """Return whether *words* come next."""
        coming = self._tokens[self._at : self._at + len(words)]
        return len(coming) == len(words) and all(
            token.token_type is not TokenType.IDENTIFIER
            and token.token_type is not TokenType.STRING
            and " ".join(token.text.upper().split()) == word
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
        found = number(token.text)
        if not negative:
            return found
        return found.copy_negate() if isinstance(found, Decimal) else -found

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
            # DataType.build() would leave out what follows the type, such as NOT NULL.
            kind = sqlglot.parse_one(written, dialect=_Dialect, into=sql.DataType)
        except SqlglotError:
            kind = None
        if not isinstance(kind, sql.DataType):
            self._at = begun
            raise self.wrong("a type of Hive, with nothing but COMMENT behind it")
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
            (("DROP", "DATABASE"), self._drop_database),
            (("DROP", "SCHEMA"), self._drop_database),
            (("CREATE", "TABLE"), self._create_table),
            (("CREATE", "EXTERNAL", "TABLE"), self._create_table),
            (("CREATE", "DATABASE"), self._create_database),
            (("CREATE", "SCHEMA"), self._create_database),
            (("TRUNCATE",), self._truncate),
            (("INSERT",), self._insert),
        ]
        for words, rest in actions:
            if self.skip(*words):
                return rest()
        if self.sees("SELECT") or self.sees("WITH"):
            return Select(self._query())
        if self.sees("DELETE"):
            return self._delete()
        if self.sees("UPDATE"):
            return self._update()
        if self.sees("MERGE"):
            raise self.wrong(
                "a statement that is carried out here (for MERGE call table.upsert, or join in Spark and write the "
                "result with commit_coord.spark.write_table)"
            )
        raise self.wrong(
            "SHOW LOCKS, LOCK, UNLOCK, SHOW LEASE, DROP FORCE LEASE, EXPLAIN LOCKS, ALTER TABLE, CREATE or DROP TABLE "
            "or DATABASE, TRUNCATE, INSERT, DELETE, UPDATE or SELECT"
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

    def _truncate(self) -> Statement:
        self.skip("TABLE")
        return Truncate(self.name(), self.partition())

    def _delete(self) -> Statement:
        found = self._parsed((sql.Delete,), "statement")
        where = _where(found)
        table = self._one_table(found)
        return Delete(Name(table.name, table.db or None), where, table.alias)

    def _update(self) -> Statement:
        found = self._parsed((sql.Update,), "statement")
        sets, where = [(one.this, one.expression) for one in found.expressions], _where(found)
        if any(type(one) is not sql.EQ or type(one.this) is not sql.Column for one in found.expressions):
            raise StatementError("expected column = value after SET", statement=self._text)
        table = self._one_table(found, *(column for column, _ in sets))
        return Update(Name(table.name, table.db or None), tuple(sets), where, table.alias)

    def _one_table(self, found: sql.Expr, *names: sql.Expr) -> sql.Table:
        """Return the one table that *found* is about; its conditions and values are looked at when they are bound."""
        for later in ("where", "expressions"):
            found.set(later, None)
        more = next(filter(None, map(unknown, (found, *names))), None)
        if more is not None or not isinstance(found.this, sql.Table):
            raise StatementError(
                "this is more than one table and WHERE: give it to Spark", found=more, statement=self._text
            )
        return found.this

    def _create_database(self) -> Statement:
        if_not_exists = self.skip("IF", "NOT", "EXISTS")
        database, properties = self.database(), {}
        if self.skip("COMMENT"):
            properties["comment"] = self.string("a quoted comment")
        if self.skip("LOCATION"):
            properties["location"] = self.string("a quoted location")
        if self.skip("WITH", "DBPROPERTIES"):
            properties |= self.properties()
        return CreateDatabase(database, properties, if_not_exists)

    def _drop_database(self) -> Statement:
        if_exists = self.skip("IF", "EXISTS")
        database = self.database()
        cascade = not self.skip("RESTRICT") and self.skip("CASCADE")
        return DropDatabase(database, if_exists, cascade)

    def _create_table(self) -> Statement:
        if_not_exists = self.skip("IF", "NOT", "EXISTS")
        table, columns = self.name(), self.columns()
        properties: dict[str, str] = {}
        location: str | None = None
        partitioned: tuple[PartitionedBy, ...] = ()
        if self.skip("COMMENT"):
            properties["comment"] = self.string("a quoted comment")
        if self.skip("PARTITIONED BY"):  # one word to sqlglot
            self.skip("SPEC")
            partitioned = self._partitioned_by(declares=True)
        self.skip("STORED", "BY", "ICEBERG")
        if self.skip("STORED", "AS"):
            properties["write.format.default"] = self.identifier("a file format").lower()
        if self.skip("LOCATION"):
            location = self.string("a quoted location")
        if self.skip("TBLPROPERTIES"):
            properties |= self.properties()
        if self._next is not None and not self.sees(";"):
            raise self.wrong(
                "COMMENT, PARTITIONED BY, STORED BY ICEBERG, STORED AS, LOCATION or TBLPROPERTIES, in this order, or "
                "the end; rows come with INSERT"
            )
        return CreateTable(table, columns, partitioned, properties, location, if_not_exists)

    def _partitioned_by(self, *, declares: bool = False) -> tuple[PartitionedBy, ...]:
        """Return ``(a, day(b), bucket(16, c), d string)``; the last only where columns may be declared."""
        self.need("(")
        found = [self._partition_field(declares=declares)]
        while self.skip(","):
            found.append(self._partition_field(declares=declares))
        self.need(")")
        return tuple(found)

    def _partition_field(self, *, declares: bool) -> PartitionedBy:
        begun = self._at
        name = self.identifier("a partition column or transform")
        if self.sees(",") or self.sees(")"):
            return PartitionedBy(name)
        if not self.sees("("):
            if not declares:
                raise self.wrong(", or )")
            self._at = begun
            column = self.column()
            return PartitionedBy(column.name, declared=column)
        transform = _TRANSFORMS.get(name.lower())
        if transform is None:
            self._at = begun
            raise self.wrong(f"a transform ({', '.join(sorted(set(_TRANSFORMS.values())))})")
        self.need("(")
        number: int | None = None
        if transform in ("bucket", "truncate"):
            number = self._whole_number("a whole number above 0", least=1)
            self.need(",")
        column_name = self.identifier("the name of a column")
        self.need(")")
        return PartitionedBy(column_name, transform, number)

    def _whole_number(self, expected: str, *, least: int) -> int:
        token = self._one(
            expected,
            lambda token: (
                token.token_type is TokenType.NUMBER and token.text.isdecimal() and least <= int(token.text) < 2**63
            ),
        )
        return int(token.text)

    def _create_ref(self, table: Name, *, branch: bool) -> Statement:
        if_not_exists = self.skip("IF", "NOT", "EXISTS")
        name = self.identifier("the name of a branch or tag")
        snapshot: int | str | None = None
        if self.skip("FOR", "SYSTEM_VERSION", "AS", "OF"):
            snapshot = self._whole_number("the number of a snapshot", least=0)
        elif self.skip("FOR", "TAG", "AS", "OF") or self.skip("FOR", "BRANCH", "AS", "OF"):
            snapshot = self.identifier("the name of a branch or tag")
        retain_ms = None
        if self.skip("RETAIN"):
            number = self._whole_number("a whole number above 0", least=1)
            for unit, unit_ms in _UNITS_MS.items():
                if self.skip(unit) or self.skip(unit + "S"):
                    retain_ms = number * unit_ms
                    break
            else:
                raise self.wrong("DAYS, HOURS or MINUTES")
        return CreateRef(table, name, branch, snapshot, retain_ms, if_not_exists)

    def _drop_ref(self, table: Name, *, branch: bool) -> Statement:
        if_exists = self.skip("IF", "EXISTS")
        return DropRef(table, self.identifier("the name of a branch or tag"), branch, if_exists)

    def _expire(self, table: Name) -> Statement:
        if self.skip("RETAIN", "LAST"):
            return ExpireSnapshots(table, retain_last=self._whole_number("a whole number above 0", least=1))
        if not self.sees("("):
            return ExpireSnapshots(table)
        begun = self._at
        self.need("(")
        if (token := self._next) is not None and token.token_type is TokenType.STRING:
            # Hive writes several numbers as one text.
            parts = [part.strip() for part in token.text.split(",")]
            if all(part.isdecimal() and len(part) < 20 for part in parts):
                self._at += 1
                self.need(")")
                return ExpireSnapshots(table, snapshots=tuple(map(int, parts)))
        self._at = begun
        to = self._moment_or_id()
        return ExpireSnapshots(table, snapshots=(to,)) if isinstance(to, int) else ExpireSnapshots(table, before=to)

    def _moment_or_id(self) -> int | datetime:
        """Return ``(number)`` or ``('time')``, which is UTC unless it says otherwise."""
        self.need("(")
        expected = "the number of a snapshot, or a quoted time such as '2026-01-31 12:00:00'"
        token = self._next
        if token is not None and token.token_type is TokenType.STRING:
            try:
                moment: datetime = fit(token.text, TimestamptzType())
            except Misfit:
                raise self.wrong(expected) from None
            self._at += 1
            self.need(")")
            return moment
        number = self._whole_number(expected, least=0)
        self.need(")")
        return number

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
            (("CREATE", "BRANCH"), lambda: self._create_ref(table, branch=True)),
            (("CREATE", "TAG"), lambda: self._create_ref(table, branch=False)),
            (("DROP", "BRANCH"), lambda: self._drop_ref(table, branch=True)),
            (("DROP", "TAG"), lambda: self._drop_ref(table, branch=False)),
            (("EXECUTE", "EXPIRE_SNAPSHOTS"), lambda: self._expire(table)),
            (("EXECUTE", "ROLLBACK"), lambda: RollBack(table, self._moment_or_id())),
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
            "TOUCH PARTITION, SET, UNSET, CREATE or DROP BRANCH or TAG, EXECUTE EXPIRE_SNAPSHOTS or ROLLBACK, or "
            "PARTITION"
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
        if self.skip("PARTITION", "SPEC"):
            return SetPartitionSpec(table, self._partitioned_by())
        if self.skip("TBLPROPERTIES"):
            return SetProperties(table, self.properties())
        if self.skip("SERDEPROPERTIES"):
            return SetSerde(table, None, self.properties())
        if self.skip("SERDE"):
            serializer = self.string("a quoted class name")
            return SetSerde(table, serializer, self.properties() if self.skip("WITH", "SERDEPROPERTIES") else {})
        if self.skip("FILEFORMAT"):
            return SetFileFormat(table, self.identifier("a file format").lower())
        raise self.wrong("TBLPROPERTIES, SERDEPROPERTIES, SERDE, FILEFORMAT or PARTITION SPEC")

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
        return self._parsed((sql.Query, sql.Values), "query")  # type: ignore[return-value]  # one of them

    def _parsed(self, kinds: tuple[type[sql.Expr], ...], what: str) -> sql.Expr:
        """Return what is left as sqlglot reads it, one of *kinds*."""
        first = self._next
        assert first is not None
        ends = [token for token in self._tokens if token.token_type is TokenType.SEMICOLON]
        end = ends[0].start if ends else len(self._text)
        # What comes before is blanked out, so that sqlglot counts lines and columns as we do.
        before = "".join(mark if mark == "\n" else " " for mark in self._text[: first.start])
        try:
            found = sqlglot.parse_one(before + self._text[first.start : end], dialect=_Dialect)
        except ParseError as error:
            wrong = error.errors[0]
            raise StatementError(
                f"this is no {what}: {wrong['description']}".split(" but got <Token")[0],
                position=f"line {wrong['line']}, column {(wrong['col'] or 1) - len(wrong['highlight'] or '') + 1}",
                statement=self._text,
            ) from error
        except IndexError as error:
            raise StatementError(f"this is no {what}: MAP takes pairs", statement=self._text) from error
        except SqlglotError as error:
            raise StatementError(f"this is no {what}: {error}", statement=self._text) from error
        if not isinstance(found, kinds):
            raise self.wrong(f"a {what}")
        begun, self._at = (
            self._at,
            next((i for i, token in enumerate(self._tokens) if token in ends), len(self._tokens)),
        )
        self._refuse_what_is_lost(self._tokens[begun : self._at], found)
        return found

    def _refuse_what_is_lost(self, tokens: list[Token], found: sql.Expr) -> None:
        """Refuse a constant that sqlglot read over, such as the last one of ``NAMED_STRUCT('a', 1, 'b')``."""
        kept = Counter(str(node.this) for node in found.find_all(sql.Literal, sql.Identifier))
        for before, token in pairwise([tokens[0], *tokens]):
            if token.token_type not in _NO_NAMES or before.token_type is TokenType.DOT:  # .5 is two words.
                continue
            kept[token.text] -= 1
            if kept[token.text] >= 0:
                continue
            if unknown(found) is not None:
                return  # It is not carried out anyhow.
            raise StatementError(
                f"{token.text!r} means nothing here",
                position=_position(self._text, token),
                statement=self._text,
            )


def _where(found: sql.Expr) -> sql.Expr | None:
    where: sql.Expr | None = found.args.get("where")
    return None if where is None else where.this
