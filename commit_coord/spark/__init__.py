"""PySpark on a coordinated table: ``write_table``, ``read_table``, ``foreach_batch``, ``format("commit_coord")``.

The *fast* way keeps rows in Spark's own Parquet code and does metadata in Python. The *convenient* way is a Python
data source: ``register(spark)``, then ``df.write.format("commit_coord")``; it also carries what the fast way can't.
``help(register)`` lists its options.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commit_coord.spark.compaction import compact_table, rewriter
    from commit_coord.spark.datasource import register
    from commit_coord.spark.read import read_table
    from commit_coord.spark.schema import SchemaMismatch
    from commit_coord.spark.streams import foreach_batch
    from commit_coord.spark.write import write_table

__all__ = ["SchemaMismatch", "compact_table", "foreach_batch", "read_table", "register", "rewriter", "write_table"]

_MODULE_OF = {
    "SchemaMismatch": "schema",
    "compact_table": "compaction",
    "foreach_batch": "streams",
    "read_table": "read",
    "register": "datasource",
    "rewriter": "compaction",
    "write_table": "write",
}


def __getattr__(name: str) -> Any:
    """Import what is used, when it is used: Spark's Python workers import this package too, and need little of it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        from commit_coord.extras import missing

        raise missing(error) from None
    found = globals()[name] = getattr(module, name)
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
