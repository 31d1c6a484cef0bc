"""Many processes append to one table, some are killed, servers too, and the table is proved right afterwards.

Theory of operation
    Each *slot* has a log file. Its writer marks every append with an id of its own, which it writes to the log before
    the append ("try") and after it was acknowledged ("ack", and when), with fsync each time. The id travels into the
    table twice: in the snapshot's summary, and as a column of the rows. A killed writer is replaced by a new process
    that goes on where the slot's acknowledgements end; it never repeats an append whose outcome it does not know.

    Processes are forked from a server that has imported everything and opened nothing: to start one costs little
    compared with the work in which it is killed.

    So what must hold can be read off the logs, and :mod:`commit_coord.testing.history` decides whether it does: an id
    that was acknowledged is in the table exactly once, one that was only tried at most once, any other never.
    Where appends share snapshots the rows alone have the ids.

    Every row is compared, not its id alone: it follows from the mark. The table's files are read by code that no writer
    uses, and held against each other: partition values, bounds, counts, sequence numbers. The table is partitioned, and
    another process may change its columns and partitions all the time.

    In addition to ours there may be writers that know nothing of us; see :mod:`commit_coord.testing.plain`. They write
    as long as ours do.

``python -m commit_coord.testing.hammer`` runs it; ``--help`` says with what.
"""

from __future__ import annotations

from commit_coord.testing.hammer.proof import Report, wrong_rows
from commit_coord.testing.hammer.run import hammer
from commit_coord.testing.hammer.writers import TABLE

__all__ = ["TABLE", "Report", "hammer", "wrong_rows"]
