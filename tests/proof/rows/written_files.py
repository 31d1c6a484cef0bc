"""Files that a program writes for later commits, and what may come of their commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from commit_coord.testing.table_files.observed import Observed
from commit_coord.testing.table_files.state import State, rows_of
from commit_coord.testing.table_files.values import MAIN, complete
from tests.proof.rows.doing import NoSuchRows
from tests.proof.rows.model.operations import CommitFiles, Expected, Single, Slots, WriteFiles
from tests.proof.rows.model.partition_clauses import lies_in
from tests.proof.rows.model.table_statements import SqlAddPartition, located_in

_LANDED = "it has landed before"


@dataclass
class WrittenFiles:
    """The files of one program.

    Args:
        doing: Has the data files that clients wrote.
        slots: What was written for ``commit_files``.
    """

    doing: Any
    slots: Slots = field(default_factory=dict)
    _named: set[tuple[str, str]] = field(default_factory=set)
    """The table and the slot of what was committed by a request id."""
    _plain: set[tuple[str, str]] = field(default_factory=set)
    """And without one."""
    _located: dict[tuple[str, str], tuple[SqlAddPartition, State]] = field(default_factory=dict)
    """By table and folder: the statement that had the file written, and the table that it was written for."""

    def keep(self, operation: WriteFiles, base: State) -> Sequence[Any]:
        """Note what was written by a client that saw *base*; return the files."""
        written, _ = self.doing.slots[operation.slot]
        files = self.doing.files
        self.slots[operation.slot] = (base, tuple(row for file in written for row in files.data(file.file_path)))
        found: Sequence[Any] = written
        return found

    def begin(self, operation: Single, seen: State) -> None:
        """Note that *operation* begins, which sees the table as *seen*."""
        if isinstance(operation, SqlAddPartition):
            self._located.setdefault((seen.uuid, operation.folder), (operation, seen))

    def located(self, uuid: str) -> list[SqlAddPartition]:
        """Return the statements that had a file written for the table *uuid*."""
        return [operation for (table, _), (operation, _) in self._located.items() if table == uuid]

    def can_be_committed(self, operation: CommitFiles, base: State) -> bool:
        """Return whether there are such files, and nothing is asked for that no call can find out to be wrong.

        A file does not say which table it was written for. And a request id does not say that the same files have been
        committed under none.
        """
        if operation.slot not in self.slots:
            return False
        uuid = self.slots[operation.slot][0].uuid
        return uuid == base.uuid and not (operation.named and (uuid, operation.slot) in self._plain)

    def expected(
        self, operation: Single, made: Expected, base: State, head: State, table: Observed, error: Exception | None
    ) -> Expected:
        """Return what may come of *operation*.

        Args:
            operation: What was done.
            made: What may come of it, whatever was written and committed before.
            base: What its client saw.
            head: What it landed on, or was refused on.
            table: The same.
            error: Why it was refused; None if it was not.
        """
        if isinstance(operation, SqlAddPartition) and base.uuid == head.uuid:
            if isinstance(error, NoSuchRows):
                self._located.pop((base.uuid, operation.folder), None)
                return Expected(())
            return self._of_location(operation, made, base, head, table)
        if not isinstance(operation, CommitFiles):
            return made
        key = (head.uuid, operation.slot)
        if operation.named and key in self._named:
            return Expected((head,), _LANDED)
        if error is None:
            (self._named if operation.named else self._plain).add(key)
        written, _ = self.doing.slots[operation.slot]
        if _live(table).isdisjoint(file.file_path for file in written):
            return made
        # What replaces rows may have replaced these files before it adds them.
        states = () if operation.mode == "append" else made.states
        return Expected(states, "the files are in the table already")

    def _of_location(
        self, operation: SqlAddPartition, made: Expected, base: State, head: State, table: Observed
    ) -> Expected:
        first, seen = self._located[base.uuid, operation.folder]
        folder = located_in(operation, base.uuid)
        if any(f"/{folder}/" in path for path in _live(table)):
            why = "the table has the file"
            return Expected((head,), why) if operation.lenient else Expected((), why)
        if (first.rows, seen.fields) == (operation.rows, head.fields):
            return made
        rows, lies = rows_of(first.rows, seen.fields) or [], lies_in(operation.clause, head)
        if not rows or lies is None or not all(lies(row) and complete(row, head.fields) for row in rows):
            return Expected((), "the file has no such rows")
        after = head.with_rows((*head.rows.get(MAIN, ()), *rows))
        return replace(made, states=(after,), refusable="the file was written for other columns")


def _live(table: Observed) -> set[str]:
    """Return the data files of the main branch."""
    head = table.raw.get("current-snapshot-id")
    return {file.path for file in table.live(head)} if head in table.snapshots else set()
