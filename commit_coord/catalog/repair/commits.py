"""The lost commits of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.typedef import Identifier

from commit_coord.coordinator.stores import Replanner
from commit_coord.iceberg.attempt import Attempt

RESTORED_FROM = "commit-coord.restored-from"
"""Summary property of a snapshot that was brought back: the metadata file that had published it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCommit:
    """A commit that is not in the history of the table any more.

    Args:
        location: The metadata file that published it.
        request_id: The attempt; several, with commas between them, if they share a snapshot; "" of a writer that is not
            ours.
        snapshot_ids: What it added.
        operation: What its snapshots say, or ``metadata``.
        at_ms: When, by its writer's clock.
        files: Data files that it added.
        rows: Rows in them.
        restored: It is in the table again.
        advice: Why it can't be brought back, and what to do; "" when it can.
    """

    location: str
    request_id: str
    snapshot_ids: tuple[int, ...]
    operation: str
    at_ms: int
    files: int = 0
    rows: int = 0
    restored: bool = False
    advice: str = ""
    prepare: Callable[[], Attempt] | None = field(default=None, repr=False, compare=False)
    """Writes the files that bring it back: looking for lost commits leaves none."""
    replan: Replanner | None = field(default=None, repr=False, compare=False)
    """Does :attr:`prepare` for another head; refuses if the commit can't be brought back there."""

    @property
    def restorable(self) -> bool:
        """Whether :func:`~commit_coord.catalog.repair.execute` brings it back."""
        return self.prepare is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The lost commits of a table.

    Args:
        table: Namespace and name.
        commits: Those of each lost history in their order; several histories by time.
        remembered: How many commits the lock service says were lost.
        looked_at: The metadata files that were lost when it was made.
    """

    table: Identifier
    commits: tuple[LostCommit, ...]
    remembered: int = 0
    looked_at: frozenset[str] = frozenset()

    @property
    def restorable(self) -> list[LostCommit]:
        """The lost commits that :func:`~commit_coord.catalog.repair.execute` restores."""
        return [commit for commit in self.commits if commit.restorable]

    @property
    def by_hand(self) -> list[LostCommit]:
        """What its users have to do again."""
        return [commit for commit in self.commits if not commit.restorable and not commit.restored]
