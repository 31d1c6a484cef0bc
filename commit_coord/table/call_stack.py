"""Which call of a transaction runs, how deep calls are nested, and whether they are made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commit_coord.table.staged import Draft


class CallStack:
    """The calls of one transaction that are under way.

    Args:
        draft: What they stage.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.depth = 0
        self.before = draft.staged
        """The staged changes before the present call."""
        self.repeating = False
        """Whether the calls are being made again, on a newer head."""
        self.planning = False
        """Whether a plan is under way, which computes its changes anew on each head."""

    @property
    def is_called(self) -> bool:
        """Whether the present call is the caller's: neither a part of another one nor its repetition."""
        return self.depth <= 1 and not self.repeating

    @property
    def begun(self) -> bool:
        """Whether something was called before the present call, or is staged."""
        return self._draft.staged.stages or (self.before if self.depth else self._draft.staged).begun

    def note_before(self) -> None:
        """Remember what is staged: an outermost call begins."""
        self.before = self._draft.staged

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count the block as one call."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextmanager
    def again(self) -> Iterator[None]:
        """Make calls in the block that are known already."""
        self.repeating = True
        try:
            with self.deeper():
                yield
        finally:
            self.repeating = False

    @contextmanager
    def plan(self) -> Iterator[None]:
        """Count the block as a plan."""
        outer, self.planning = self.planning, True
        try:
            yield
        finally:
            self.planning = outer
