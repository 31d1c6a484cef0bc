"""Statements that show, make and remove databases and tables."""

from __future__ import annotations

from commit_coord.sql.grammar.parts import PartParser
from commit_coord.sql.grammar.tokens import TokenReader
from commit_coord.sql.statement import (
    CreateDatabase,
    CreateTable,
    Describe,
    DropDatabase,
    DropTable,
    PartitionedBy,
    ShowDatabases,
    ShowTables,
    Statement,
    Truncate,
)


class TableParser:
    """Reads SHOW, DESCRIBE, CREATE, DROP and TRUNCATE, behind the words that begin them."""

    def __init__(self, reader: TokenReader, parts: PartParser) -> None:
        self._reader = reader
        self._parts = parts

    def show_databases(self) -> Statement:
        """Return ``SHOW DATABASES``."""
        return ShowDatabases(self._pattern())

    def show_tables(self) -> Statement:
        """Return ``SHOW TABLES``."""
        inside = self._reader.skip("IN") or self._reader.skip("FROM")
        return ShowTables(self._parts.database() if inside else None, self._pattern())

    def _pattern(self) -> str:
        return self._reader.string("a quoted pattern such as 'sales*'") if self._reader.skip("LIKE") else "*"

    def describe(self) -> Statement:
        """Return ``DESCRIBE``."""
        self._reader.skip("TABLE")
        extended = self._reader.skip("EXTENDED") or self._reader.skip("FORMATTED")
        return Describe(self._parts.name(), extended)

    def create_database(self) -> Statement:
        """Return ``CREATE DATABASE``."""
        if_not_exists = self._reader.skip("IF", "NOT", "EXISTS")
        database, properties = self._parts.database(), {}
        if self._reader.skip("COMMENT"):
            properties["comment"] = self._reader.string("a quoted comment")
        if self._reader.skip("LOCATION"):
            properties["location"] = self._reader.string("a quoted location")
        if self._reader.skip("WITH", "DBPROPERTIES"):
            properties |= self._parts.properties()
        return CreateDatabase(database, properties, if_not_exists)

    def drop_database(self) -> Statement:
        """Return ``DROP DATABASE``."""
        if_exists = self._reader.skip("IF", "EXISTS")
        database = self._parts.database()
        cascade = not self._reader.skip("RESTRICT") and self._reader.skip("CASCADE")
        return DropDatabase(database, if_exists, cascade)

    def create_table(self) -> Statement:
        """Return ``CREATE TABLE``."""
        if_not_exists = self._reader.skip("IF", "NOT", "EXISTS")
        table, columns = self._parts.name(), self._parts.columns()
        properties: dict[str, str] = {}
        location: str | None = None
        partitioned: tuple[PartitionedBy, ...] = ()
        if self._reader.skip("COMMENT"):
            properties["comment"] = self._reader.string("a quoted comment")
        if self._reader.skip("PARTITIONED BY"):  # one word to sqlglot
            self._reader.skip("SPEC")
            partitioned = self._parts.partitioned_by(declares=True)
        self._reader.skip("STORED", "BY", "ICEBERG")
        if self._reader.skip("STORED", "AS"):
            properties["write.format.default"] = self._reader.identifier("a file format").lower()
        if self._reader.skip("LOCATION"):
            location = self._reader.string("a quoted location")
        if self._reader.skip("TBLPROPERTIES"):
            properties |= self._parts.properties()
        if self._reader.next is not None and not self._reader.sees(";"):
            raise self._reader.wrong(
                "COMMENT, PARTITIONED BY, STORED BY ICEBERG, STORED AS, LOCATION or TBLPROPERTIES, in this order, or "
                "the end; rows come with INSERT"
            )
        return CreateTable(table, columns, partitioned, properties, location, if_not_exists)

    def drop(self) -> Statement:
        """Return ``DROP TABLE``."""
        if_exists = self._reader.skip("IF", "EXISTS")
        table = self._parts.name()
        return DropTable(table, if_exists, self._reader.skip("PURGE"))

    def truncate(self) -> Statement:
        """Return ``TRUNCATE``."""
        self._reader.skip("TABLE")
        return Truncate(self._parts.name(), self._parts.partition())
