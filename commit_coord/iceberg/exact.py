"""PyIceberg's mistakes, mended in its own classes once in every process that imports this package.

No caller has to ask for it. :func:`mend` runs when ``commit_coord.iceberg`` is imported, and ``commit_coord`` imports
that as soon as PyIceberg is loaded, by whatever import. This covers a table that is unpickled in another process, and
a task in a worker of Spark's. The mends of Arrow code are made when ``pyiceberg.io.pyarrow`` is loaded: Arrow takes
long to load, and many processes never need it.
"""

from __future__ import annotations

import importlib
import sys
from threading import Lock
from types import ModuleType
from typing import Any

from commit_coord.iceberg import decoding, fitting, nulls, planning, predicates
from commit_coord.iceberg.mends import Mends
from commit_coord.loading import WhenLoaded

_ARROW = "pyiceberg.io.pyarrow"


_lock = Lock()
_mended: list[Any] = []
"""Proves that the mends were made: ``mend``, and a class of PyIceberg's module for Arrow, which may be loaded again."""


def mend() -> None:
    """Have PyIceberg read, write and filter exactly in this process. Idempotent, and safe to call from any thread."""
    with _lock:
        if mend not in _mended:
            mends = Mends()
            decoding.mend(mends)
            planning.mend(mends)
            predicates.mend(mends)
            mends.make()
            sys.meta_path.insert(0, WhenLoaded(_ARROW, _mend_arrow))
            _mended.append(mend)
    if _ARROW in sys.modules:
        _mend_arrow(importlib.import_module(_ARROW))  # waits for another thread that is loading it


def _mend_arrow(reader: ModuleType) -> None:
    with _lock:
        if reader.ArrowScan not in _mended:
            mends = Mends()
            fitting.mend_arrow(mends, reader)
            nulls.mend(mends, reader)
            predicates.mend_arrow(mends, reader)
            mends.make()
            _mended.append(reader.ArrowScan)
