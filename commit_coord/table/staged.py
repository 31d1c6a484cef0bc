"""What the calls of a transaction have staged so far, as one value.

A call stages all that it does, or nothing: one that fails puts back the value that was there before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.table.update import TableRequirement, TableUpdate

from commit_coord.table.changes import Change
from commit_coord.table.isolation import Read

if TYPE_CHECKING:
    from commit_coord.table.append import PureAppend
    from commit_coord.table.transaction import CoordinatedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What is staged, and what the calls have said.

    Args:
        updates: What the commit changes.
        requirements: What the head must be like.
        producers: Those that made the snapshots in *updates*, and the one of *pending*.
        pending: An append of which no snapshot was made, since nothing has looked at it.
        changes: Of the table itself, but for those of plans.
        reads: Whether *updates* depend on what the table holds, so that they can't be taken to another head.
        calls: Make the outermost calls again.
        replayable: Whether *calls* are all that was staged.
        depended: What the staged rows were computed from.
        removed: What the staged deletes name: rows of the caller's that are staged too were computed from it.
        rows_given: Whether rows are staged of which the caller did not say what they were computed from.
        computes: Whether a call stages rows that it computes from the table as it is when the commit lands.
        replaces: Whether a call replaces rows as of when the commit lands, whatever they are.
        by_name: Whether a call has named columns.
        folds_case: Whether one has done so in any case.
    """

    updates: tuple[TableUpdate, ...] = ()
    requirements: tuple[TableRequirement, ...] = ()
    producers: tuple[Any, ...] = ()
    pending: PureAppend | None = None
    changes: tuple[Change, ...] = ()
    reads: bool = False
    calls: tuple[Callable[[CoordinatedTransaction], Any], ...] = ()
    replayable: bool = True
    depended: tuple[Read, ...] = ()
    removed: tuple[Read, ...] = ()
    rows_given: bool = False
    computes: bool = False
    replaces: bool = False
    by_name: bool = False
    folds_case: bool = False

    @property
    def stages(self) -> bool:
        """Whether there is something to commit."""
        return bool(self.updates) or self.pending is not None

    @property
    def begun(self) -> bool:
        """Whether something was called, also if it has found nothing to do."""
        return self.stages or bool(self.calls or self.producers)

    @property
    def dependencies(self) -> tuple[Read, ...]:
        """What must not have changed."""
        return (*self.depended, *(self.removed if self.rows_given else ()))

    @property
    def removes_at_landing(self) -> bool:
        """Whether a removal takes the rows that are there when the commit lands, and depends on none that were read."""
        return self.replaces or not self.dependencies or (bool(self.removed) and not self.rows_given)

    def as_called(self) -> Staged:
        """Return what the calls have said, without what they have made."""
        return replace(self, updates=(), requirements=(), producers=(), pending=None, changes=(), reads=False)
