"""PySpark on a coordinated table: ``write_table``, ``read_table``, ``foreach_batch``, ``format("commit_coord")``.

The *fast* way keeps rows in Spark's own Parquet code and does metadata in Python. The *convenient* way is a Python
data source: ``register(spark)``, then ``df.write.format("commit_coord")``; it also carries what the fast way can't.
"""

from commit_coord.spark.compaction import compact_table, rewriter
from commit_coord.spark.datasource import register
from commit_coord.spark.read import read_table
from commit_coord.spark.schema import SchemaMismatch
from commit_coord.spark.streams import foreach_batch
from commit_coord.spark.write import write_table

__all__ = ["SchemaMismatch", "compact_table", "foreach_batch", "read_table", "register", "rewriter", "write_table"]
