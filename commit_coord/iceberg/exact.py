"""PyIceberg's mistakes, mended in its own classes once in every process that imports ``commit_coord``.

No caller has to ask for it. ``commit_coord`` calls :func:`mend` when ``pyiceberg.expressions.visitors`` has been
loaded, without which nothing is read, written or filtered, by whatever import; for scans when ``pyiceberg.table`` has
been loaded; and for Arrow code when ``pyiceberg.io.pyarrow`` has been loaded: Arrow takes long to load, and many
processes never need it. This covers plain catalogs of the process, a table that is unpickled in another process, and a
task in a worker of Spark's.

Threads may import PyIceberg at the same time (see :mod:`commit_coord.loading`). So the modules that are imported here
import only what ``pyiceberg.expressions.visitors`` imports, and who else imports one of them imports that one first.
The modules for scans and for Arrow code, and those that they import, import ``pyiceberg.table`` and what
``pyiceberg.io.pyarrow`` imports, and not that.
"""

from __future__ import annotations

from threading import Lock
from types import ModuleType

from commit_coord.iceberg import column_names, decoding, partition_names, predicates, truncation
from commit_coord.iceberg.mends import Mends

_lock = Lock()
_mended: list[type] = []
"""Proves that the mends were made: ``Mends``, and a class of each other module, which may be loaded again."""


def mend(loaded: ModuleType) -> None:
    """Have PyIceberg read, write and filter exactly in this process. Idempotent, and safe to call from any thread.

    Args:
        loaded: A module that was loaded. If it is ``pyiceberg.table`` or ``pyiceberg.io.pyarrow``, its code is mended.
    """
    with _lock:
        if Mends not in _mended:
            mends = Mends()
            column_names.mend(mends)
            decoding.mend(mends)
            partition_names.mend(mends)
            predicates.mend(mends)
            truncation.mend(mends)
            mends.make()
            _mended.append(Mends)
        if loaded.__name__ == "pyiceberg.table" and loaded.DataScan not in _mended:
            from commit_coord.iceberg import snapshot_columns

            mends = Mends()
            snapshot_columns.mend(mends, loaded)
            mends.make()
            _mended.append(loaded.DataScan)
        if loaded.__name__ == "pyiceberg.io.pyarrow" and loaded.ArrowScan not in _mended:
            from commit_coord.iceberg import counts, file_statistics, fitting, nulls, planning

            mends = Mends()
            counts.mend(mends)
            planning.mend(mends)
            fitting.mend_arrow(mends, loaded)
            nulls.mend(mends, loaded)
            file_statistics.mend(mends, loaded)
            predicates.mend_arrow(mends, loaded)
            mends.make()
            _mended.append(loaded.ArrowScan)
