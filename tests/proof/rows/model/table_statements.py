"""Statements on partitions, branches, tags and snapshots, as data, and what each means.

A statement reads the table when it starts. One on partitions is planned again on the head that it lands on; then its
names are those of either. One on branches, tags or snapshots names snapshots, and is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from commit_coord.testing.table_files.state import State, misled, rows_of
from commit_coord.testing.table_files.values import MAIN, Named, Row
from tests.proof.rows.model.operations import (
    REFUSED,
    DropRef,
    Expected,
    Rollback,
    TableStatement,
)
from tests.proof.rows.model.partition_clauses import Clause, fixed_columns, has_filter, lies_in
from tests.proof.rows.model.row_changes import appended, distinct, partitions_of, same_kinds
from tests.proof.rows.model.spellings import Spelling
from tests.proof.rows.model.structure import structure_changed

_NO_PARTITION = "there is no such partition"
_NO_FILTER = "no filter selects the rows of a bucket, or of a value that was cut"


def _late(base: State, head: State) -> str:
    return "" if base.is_like(head) else "the table has changed"


def _evolved(base: State, head: State) -> str:
    return "" if base.same_structure(head) else "columns or partitions have changed"


def _views(base: State, head: State) -> tuple[State, ...]:
    """Return the tables whose names a statement may mean."""
    return (base,) if base.same_structure(head) else (base, head)


# Partitions.


@dataclass(frozen=True)
class SqlDropPartition(TableStatement):
    """``ALTER TABLE t DROP [IF EXISTS] PARTITION (...), ...``.

    Args:
        client: Who types it.
        clauses: The partitions.
        lenient: IF EXISTS.
    """

    client: str
    clauses: tuple[Clause, ...]
    lenient: bool = False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        return _emptied(self.clauses, base, head, lenient=self.lenient)

    def named_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the column and the value of each that it names."""
        for clause in self.clauses:
            yield from clause


@dataclass(frozen=True)
class SqlTruncatePartition(TableStatement):
    """``TRUNCATE TABLE t PARTITION (...)``."""

    client: str
    clause: Clause

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        return _emptied((self.clause,), base, head, lenient=False)

    def named_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the column and the value of each that it names."""
        yield from self.clause


def _emptied(clauses: tuple[Clause, ...], base: State, head: State, *, lenient: bool) -> Expected:
    """Return *head* without the rows of partitions."""
    rows, views = head.rows.get(MAIN, ()), _views(base, head)
    made: list[State] = []
    why = _evolved(base, head)
    for view in views:
        tests = [lies_in(clause, view) for clause in clauses]
        if any(test is None for test in tests):
            continue
        known: list[Callable[[Row], bool]] = [test for test in tests if test is not None]
        made.append(head.with_rows([row for row in rows if not any(test(row) for test in known)]))
        if not lenient and not all(any(map(test, rows)) for test in known):
            why = why or _NO_PARTITION
        if not all(has_filter(clause, view) for clause in clauses):
            why = why or _NO_FILTER
    return Expected(distinct(made), why)


@dataclass(frozen=True)
class SqlConcatenatePartition(TableStatement):
    """``ALTER TABLE t PARTITION (...) CONCATENATE``."""

    client: str
    clause: Clause

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        if lies_in(self.clause, base) is None:
            return REFUSED
        why = "" if has_filter(self.clause, base) else _NO_FILTER
        return Expected((head,), _late(base, head) or why)

    def named_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the column and the value of each that it names."""
        yield from self.clause


@dataclass(frozen=True)
class SqlInsertPartition(TableStatement):
    """``INSERT INTO | OVERWRITE t PARTITION (...) (columns) VALUES ...``.

    Args:
        client: Who types it.
        clause: Columns that the table is partitioned by, and what each row has there.
        columns: Others.
        lines: Their values, row by row.
        overwrite: The rows that lie in the partition go.
    """

    client: str
    clause: Clause
    columns: tuple[str, ...]
    lines: tuple[tuple[Any, ...], ...]
    overwrite: bool = False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        columns = dict(fixed_columns(self.clause, base))
        why = "" if columns.keys() == dict(self.clause).keys() else "it names a partition field, and no column"
        made = distinct(self._landed(view, head) for view in _views(base, head))
        return Expected(made, _evolved(base, head) or why)

    def _landed(self, view: State, head: State) -> State | None:
        test, fixed = lies_in(self.clause, view), dict(fixed_columns(self.clause, view))
        others = {f.name for f in view.fields.fields} - fixed.keys()
        if test is None or len(fixed) < len(self.clause) or not others.issuperset(self.columns):
            return None
        rows = head.rows.get(MAIN, ())
        kept = [row for row in rows if not test(row)] if self.overwrite else rows
        named = tuple({**fixed, **dict(zip(self.columns, line, strict=True))} for line in self.lines)
        return appended(named, view, head.with_rows(kept), MAIN)

    def named_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the column and the value of each that it names."""
        yield from self.clause
        for line in self.lines:
            yield from zip(self.columns, line, strict=True)


@dataclass(frozen=True)
class SqlAddPartition(TableStatement):
    """``ALTER TABLE t ADD [IF NOT EXISTS] PARTITION (...) LOCATION '...'``.

    Args:
        client: Who types it.
        clause: The partition.
        rows: What the file at the location holds, which names no field ids.
        folder: The name of the location; a file is written there only once.
        spelling: Of the location.
        lenient: IF NOT EXISTS.
    """

    client: str
    clause: Clause
    rows: tuple[Named, ...]
    folder: str
    spelling: Spelling = ""
    lenient: bool = False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it where the table does not have the file."""
        if misled(base.fields, base.mapping) or misled(head.fields, head.mapping):
            return Expected((), "the name mapping has a name for another column")
        why = "no location of that spelling can be listed" if self.spelling == "one" else ""
        made = distinct(self._landed(view, head) for view in _views(base, head))
        return Expected(made, _evolved(base, head) or why)

    def _landed(self, view: State, head: State) -> State | None:
        test, rows = lies_in(self.clause, view), rows_of(self.rows, view.fields)
        if test is None or rows is None or not all(map(test, rows)):
            return None
        if same_kinds(view, head) and len(set(partitions_of(self.rows, head))) > 1:
            return None  # a file lies in one partition
        return appended(self.rows, view, head, MAIN)


def located_in(operation: SqlAddPartition, uuid: str) -> str:
    """Return the name of the folder that *operation* names for the table *uuid*."""
    return f"{uuid}-{operation.folder}"


# Branches, tags and snapshots.


@dataclass(frozen=True)
class SqlMakeRef(TableStatement):
    """``ALTER TABLE t CREATE BRANCH | TAG [IF NOT EXISTS] name [FOR ... AS OF ...]``.

    Args:
        client: Who types it.
        name: Of the branch or tag.
        kind: What it is.
        source: The branch or tag whose snapshot it gets.
        back: Or the snapshot that is so many behind the head of the main branch.
        lenient: IF NOT EXISTS.
    """

    client: str
    name: str
    kind: Literal["branch", "tag"]
    source: str = MAIN
    back: int = 0
    lenient: bool = False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it; where others have made one of that name meanwhile, it stays as it is."""
        if self.name in base.rows:
            return Expected((head,)) if self.lenient else Expected((), "there is one of that name")
        if self.source not in base.rows or (self.back and self.back >= len(base.history)):
            return Expected((), "there is no such snapshot")
        if self.name in head.rows:
            return Expected((head,) if self.lenient else (), "there is one of that name by now")
        rows = base.history[self.back][1] if self.back else base.rows[self.source]
        tags = head.tags | {self.name} if self.kind == "tag" else head.tags
        made = replace(head, rows={**head.rows, self.name: rows}, tags=tags)
        return Expected((made,), _late(base, head))


@dataclass(frozen=True)
class SqlDropRef(TableStatement):
    """``ALTER TABLE t DROP BRANCH | TAG [IF EXISTS] name``."""

    client: str
    name: str
    kind: Literal["branch", "tag"]
    lenient: bool = False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        if self.name not in base.rows or (self.name in base.tags) != (self.kind == "tag"):
            return Expected((head,)) if self.lenient else Expected((), "there is no such branch or tag")
        if self.name == MAIN:
            return Expected((), "it is the main branch")
        return structure_changed(DropRef(self.client, self.name, self.kind), base, head, _late(base, head))


@dataclass(frozen=True)
class SqlRollback(TableStatement):
    """``ALTER TABLE t EXECUTE ROLLBACK(...)``.

    Args:
        client: Who types it.
        back: The main branch goes back by so many snapshots.
        timed: It names the time of the snapshot behind it, and goes back to the newest one before that time.
    """

    client: str
    back: int
    timed: bool = False

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        back = self._before(base.times) if self.timed else self.back
        if back is None or back >= len(base.history):
            return Expected((), "there are not so many snapshots")
        return structure_changed(Rollback(self.client, back), base, head, _late(base, head))

    def _before(self, times: tuple[int, ...]) -> int | None:
        """Return the snapshot before the time that the statement names."""
        if self.back > len(times):
            return None
        return next((at for at, time in enumerate(times) if time < times[self.back - 1]), None)


@dataclass(frozen=True)
class SqlExpire(TableStatement):
    """``ALTER TABLE t EXECUTE EXPIRE_SNAPSHOTS ...``; no branch and no tag loses a row.

    Args:
        client: Who types it.
        last: All snapshots go but so many of the newest ones; 0: whatever their number.
        backs: These go alone, which are so many behind the head of the main branch.
    """

    client: str
    last: int = 0
    backs: tuple[int, ...] = ()

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        if head.properties.get("gc.enabled") == "false":
            return Expected((head,), "other tables may need its files")
        if max(self.backs, default=0) >= max(1, len(base.history)):
            return Expected((), "there are not so many snapshots")
        return Expected((head,), "a branch or tag may refer to one of them" if self.backs else _late(base, head))
