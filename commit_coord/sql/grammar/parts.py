"""Common parts of statements: names, partitions, constants, columns, properties."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import sqlglot
from pyiceberg.types import TimestamptzType
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from commit_coord.iceberg.named_partitions import OPEN, Value
from commit_coord.iceberg.values import Misfit, fit
from commit_coord.model import LockMode
from commit_coord.sql.constants import number
from commit_coord.sql.grammar.tokens import QUOTED, Dialect, TokenReader
from commit_coord.sql.statement import Column, Leased, PartitionClause, PartitionedBy, QualifiedName

_TRANSFORMS = {
    **{name + ending: name for name in ("year", "month", "day", "hour") for ending in ("", "s")},
    "bucket": "bucket",
    "truncate": "truncate",
}
"""The names of transforms in statements, with Iceberg's names."""


class PartParser:
    """Reads the parts of statements."""

    def __init__(self, reader: TokenReader) -> None:
        self._reader = reader

    def name(self) -> QualifiedName:
        """Return a table's name."""
        first = self._reader.identifier("the name of a table")
        return (
            QualifiedName(self._reader.identifier("the name of a table"), first)
            if self._reader.skip(".")
            else QualifiedName(first)
        )

    def database(self) -> str:
        """Return a database's name."""
        return self._reader.identifier("the name of a database")

    def partition(self) -> PartitionClause | None:
        """Return a partition if one comes next."""
        if not self._reader.skip("PARTITION"):
            return None
        self._reader.need("(")
        values: list[tuple[str, Value]] = []
        while True:
            key = self._reader.identifier("the name of a partition column")
            if any(key == known for known, _ in values):  # of other cases the table tells whether they are one
                raise self._reader.wrong(f"each partition column once, {key!r} is there already")
            values.append((key, self.value() if self._reader.skip("=") else OPEN))
            if not self._reader.skip(","):
                break
        self._reader.need(")")
        return PartitionClause(tuple(values))

    def needed_partition(self) -> PartitionClause:
        """Return a partition, which must come next."""
        if (partition := self.partition()) is None:
            raise self._reader.wrong("PARTITION")
        return partition

    def value(self) -> Value:
        """Return a constant."""
        if self._reader.skip("NULL"):
            return None
        if self._reader.sees("TRUE") or self._reader.sees("FALSE"):
            return self._reader.one("", lambda _: True).text.upper() == "TRUE"
        negative = self._reader.skip("-")
        expected = "a number" if negative else "a quoted text, a number, TRUE, FALSE or NULL"
        kinds = {TokenType.NUMBER} if negative else {TokenType.NUMBER, TokenType.STRING}
        token = self._reader.one(expected, lambda token: token.token_type in kinds)
        if token.token_type is TokenType.STRING:
            return token.text
        found = number(token.text)
        if not negative:
            return found
        return found.copy_negate() if isinstance(found, Decimal) else -found

    def properties(self) -> dict[str, str]:
        """Return ``('key'='value', ...)``."""
        self._reader.need("(")
        found: dict[str, str] = {}
        while True:
            key = self._reader.string("a quoted property name")
            self._reader.need("=")
            found[key] = self._reader.string("a quoted value")
            if not self._reader.skip(","):
                break
        self._reader.need(")")
        return found

    def keys(self) -> list[str]:
        """Return ``('key', ...)``."""
        self._reader.need("(")
        found = [self._reader.string("a quoted property name")]
        while self._reader.skip(","):
            found.append(self._reader.string("a quoted property name"))
        self._reader.need(")")
        return found

    def mode(self) -> LockMode:
        """Return a lock mode."""
        if self._reader.skip("SHARED"):
            return LockMode.SHARED
        if self._reader.skip("EXCLUSIVE"):
            return LockMode.EXCLUSIVE
        raise self._reader.wrong("SHARED or EXCLUSIVE")

    def column(self) -> Column:
        """Return ``name type [COMMENT '...']``."""
        name = self._reader.identifier("the name of a column")
        start = self._reader.next
        depth, begun = 0, self._reader.at
        # The type ends where a comma or a bracket does that is not its own, or another clause begins.
        while (token := self._reader.next) is not None and (
            depth > 0 or not any(map(self._reader.sees, (",", ")", ";", "COMMENT", "FIRST", "AFTER")))
        ):
            if token.token_type not in QUOTED:
                depth += token.text.count("(") + token.text.count("<") - token.text.count(")") - token.text.count(">")
            self._reader.at += 1
        if start is None or self._reader.at == begun:
            raise self._reader.wrong("the type of the column")
        written = self._reader.text[start.start : self._reader.tokens[self._reader.at - 1].end + 1]
        try:
            # DataType.build() would leave out what follows the type, such as NOT NULL.
            kind = sqlglot.parse_one(written, dialect=Dialect, into=sql.DataType)
        except SqlglotError:
            kind = None
        if not isinstance(kind, sql.DataType):
            self._reader.at = begun
            raise self._reader.wrong("a type of Hive, with nothing but COMMENT behind it")
        return Column(name, kind, self._reader.string("a quoted comment") if self._reader.skip("COMMENT") else "")

    def columns(self) -> tuple[Column, ...]:
        """Return ``(name type, ...)``."""
        self._reader.need("(")
        found = [self.column()]
        while self._reader.skip(","):
            found.append(self.column())
        self._reader.need(")")
        return tuple(found)

    def leased(self) -> Leased:
        """Return what a statement about leases names: tables with or without partitions, or all of them."""
        if self._reader.skip("*"):
            return ()
        if self._reader.next is None or self._reader.sees(";"):
            raise self._reader.wrong("* or the name of a table")
        found = [(self.name(), self.partition())]
        while self._reader.skip(","):
            found.append((self.name(), self.partition()))
        return tuple(found)

    def partitioned_by(self, *, declares: bool = False) -> tuple[PartitionedBy, ...]:
        """Return ``(a, day(b), bucket(16, c), d string)``; the last only where columns may be declared."""
        self._reader.need("(")
        found = [self._partition_field(declares=declares)]
        while self._reader.skip(","):
            found.append(self._partition_field(declares=declares))
        self._reader.need(")")
        return tuple(found)

    def _partition_field(self, *, declares: bool) -> PartitionedBy:
        begun = self._reader.at
        name = self._reader.identifier("a partition column or transform")
        if self._reader.sees(",") or self._reader.sees(")"):
            return PartitionedBy(name)
        if not self._reader.sees("("):
            if not declares:
                raise self._reader.wrong(", or )")
            self._reader.at = begun
            column = self.column()
            return PartitionedBy(column.name, declared=column)
        transform = _TRANSFORMS.get(name.lower())
        if transform is None:
            self._reader.at = begun
            raise self._reader.wrong(f"a transform ({', '.join(sorted(set(_TRANSFORMS.values())))})")
        self._reader.need("(")
        number: int | None = None
        if transform in ("bucket", "truncate"):
            number = self._reader.whole_number("a whole number above 0", least=1)
            self._reader.need(",")
        column_name = self._reader.identifier("the name of a column")
        self._reader.need(")")
        return PartitionedBy(column_name, transform, number)

    def moment_or_id(self) -> int | datetime:
        """Return ``(number)`` or ``('time')``, which is UTC unless it says otherwise."""
        self._reader.need("(")
        expected = "the number of a snapshot, or a quoted time such as '2026-01-31 12:00:00'"
        token = self._reader.next
        if token is not None and token.token_type is TokenType.STRING:
            try:
                moment: datetime = fit(token.text, TimestamptzType())
            except Misfit:
                raise self._reader.wrong(expected) from None
            self._reader.at += 1
            self._reader.need(")")
            return moment
        number = self._reader.whole_number(expected, least=0)
        self._reader.need(")")
        return number
