"""Statements about locks and leases."""

from __future__ import annotations

from commit_coord.sql.grammar.parts import PartParser
from commit_coord.sql.grammar.tokens import TokenReader
from commit_coord.sql.statement import DropForceLease, Lock, ShowLease, ShowLocks, Statement, Unlock


class LockParser:
    """Reads LOCK, UNLOCK and SHOW, behind the words that begin them."""

    def __init__(self, reader: TokenReader, parts: PartParser) -> None:
        self._reader = reader
        self._parts = parts

    def show_locks(self) -> Statement:
        """Return ``SHOW LOCKS``."""
        if self._reader.skip("DATABASE") or self._reader.skip("SCHEMA"):
            return ShowLocks(database=self._parts.database(), extended=self._reader.skip("EXTENDED"))
        if self._reader.next is None or self._reader.sees("EXTENDED") or self._reader.sees(";"):
            return ShowLocks(extended=self._reader.skip("EXTENDED"))
        table = self._parts.name()
        return ShowLocks(table, self._parts.partition(), extended=self._reader.skip("EXTENDED"))

    def lock(self) -> Statement:
        """Return ``LOCK``."""
        if self._reader.skip("DATABASE") or self._reader.skip("SCHEMA"):
            database = self._parts.database()
            return Lock(self._parts.mode(), database=database)
        if not self._reader.skip("TABLE"):
            raise self._reader.wrong("TABLE or DATABASE")
        table, partition = self._parts.name(), self._parts.partition()
        return Lock(self._parts.mode(), table, partition)

    def unlock(self) -> Statement:
        """Return ``UNLOCK``."""
        if self._reader.skip("DATABASE") or self._reader.skip("SCHEMA"):
            return Unlock(database=self._parts.database())
        if not self._reader.skip("TABLE"):
            raise self._reader.wrong("TABLE or DATABASE")
        return Unlock(self._parts.name(), self._parts.partition())

    def show_lease(self) -> Statement:
        """Return ``SHOW LEASE``."""
        return ShowLease(() if self._reader.next is None or self._reader.sees(";") else self._parts.leased())

    def drop_force_lease(self) -> Statement:
        """Return ``DROP FORCE LEASE``."""
        return DropForceLease(self._parts.leased())
