"""Moves tables of a metastore from its locks to ZooKeeper, and back: what ``commit-coord migrate`` does.

Nothing is stored outside the tables: each says itself in which phase it is. So an operator may be killed at any
step, and the next one goes on from there. Two at a time do no harm: a change of phase is a commit that is
refused when the phase is not what it was.

1. Both locks are taken (on the way back from ``zookeeper`` that one alone: the guard is there).
2. Phase and epoch are read; nothing is changed unless they are what was seen before.
3. The swap: from here on the table is in the new phase, even if the operator dies.
4. The guard is set, or removed, under ZooKeeper's latch. Where this was not reached, the first writer does it.
"""

from commit_coord.catalog.migration.operator import Migration, TableMoves
from commit_coord.catalog.migration.results import Moved, Outcome, TableStatus, Verified

__all__ = ["Migration", "Moved", "Outcome", "TableMoves", "TableStatus", "Verified"]
