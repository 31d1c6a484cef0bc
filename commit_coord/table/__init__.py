"""Tables whose ordinary calls (``append``, ``overwrite``, ``upsert``, ``transaction()``, …) are coordinated and fast.

Theory of operation
    The subclasses here use PyIceberg's own planning and change what surrounds it:

    * The view that a transaction has of its table is computed once for each staged change. PyIceberg computes and
      deep-copies it at every look, 19 times for one append.
    * A sole append writes its own manifest and nothing more. Manifest list, parent, sequence number and totals are
      set under the latch, on whatever head is found there. The moment that anything in the transaction looks at
      the result of the append, it becomes an ordinary PyIceberg snapshot (``StagingTransaction.materialise``).
    * What was called is remembered, so that it can be called again on a newer head. That is how overwrites,
      deletes, upserts and schema changes that lost a race come to their end instead of failing.
    * Files are recorded as they are created, so that a transaction that ends without a commit leaves none behind.

    Private names of PyIceberg are used; ``tests/catalog/test_pyiceberg_seam.py`` notices when they drift.
"""

from commit_coord.table.compaction import Compacted, rewrite_here
from commit_coord.table.creation import CoordinatedCreation
from commit_coord.table.placed import CoordinatedStagedTable
from commit_coord.table.several import CatalogTransaction
from commit_coord.table.table import CoordinatedTable, Rewriter
from commit_coord.table.transaction import CoordinatedTransaction

__all__ = [
    "CatalogTransaction",
    "Compacted",
    "CoordinatedCreation",
    "CoordinatedStagedTable",
    "CoordinatedTable",
    "CoordinatedTransaction",
    "Rewriter",
    "rewrite_here",
]
