"""Moves tables of a metastore from its locks to ZooKeeper, and back: what ``commit-coord migrate`` does.

The only state of a migration is the phase in the properties of each table. So the process that moves a table may be
killed at any step, and the next call continues from there. Two processes at the same time do no harm: a change of phase
is a commit that is refused if the phase has changed since it was read.

1. Acquire both locks (on the way back from ``zookeeper`` only ZooKeeper's, because the guard blocks the other one).
2. Read phase and epoch; change nothing unless they are as they were seen before.
3. The swap: from here on the table is in the new phase, even if the process is killed.
4. Set or remove the guard under ZooKeeper's latch. If the process did not reach this step, the first writer does it.
"""

from commit_coord.catalog.migration.operator import Migration
from commit_coord.catalog.migration.results import Moved, Outcome, TableStatus, Verified

__all__ = ["Migration", "Moved", "Outcome", "TableStatus", "Verified"]
