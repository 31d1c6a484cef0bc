"""The commit of one transaction, as the coordinator is asked for it."""

from __future__ import annotations

from collections.abc import Iterable

from commit_coord.errors import CommitConflict
from commit_coord.iceberg.attempt import table_name
from commit_coord.locks.base import Lease
from commit_coord.process import Host


class CommitRequest:
    """Names the commit of a transaction, and knows how far it has come.

    Args:
        table: The name of the table.
        host: Makes the ids.
    """

    def __init__(self, table: Iterable[str], host: Host) -> None:
        self.table, self._host = tuple(table), host
        self.id = str(host.new_id())
        self.repeatable = False
        """Whether the caller chose the id, and may ask for the same commit again."""
        self.operation_lease: Lease | None = None
        """Must still be held when the commit is published; None asks for nothing."""
        self.sent = False
        """Whether the coordinator was asked to land the changes."""
        self.refused = False
        """Whether the commit was refused before the coordinator was asked, and the events say so."""
        self.landed_before = False
        """Whether the id had landed before, so that nothing was done now."""
        self._renewed = False

    @property
    def may_have_landed(self) -> bool:
        """Whether the changes may be in the table: they were sent, or have landed and another commit is named now."""
        return self.sent or self._renewed

    def renew(self) -> None:
        """Name another commit: this one has landed."""
        self._renewed = True  # before `sent` is reset: an interrupt may come between the two
        self.id, self.repeatable, self.sent, self.refused = str(self._host.new_id()), False, False, False

    def conflict(self, reason: str, kind: type[CommitConflict] = CommitConflict) -> CommitConflict:
        """Return the error that refuses the commit for *reason*."""
        return kind(f"the commit did not land: {reason}", table=table_name(self.table), request_id=self.id)
