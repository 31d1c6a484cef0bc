"""PyIceberg's mistakes, mended in its own classes: in every process that imports this package, before it is used.

Nobody has to ask for it. :func:`mend` runs when ``commit_coord.iceberg`` is imported, on which everything of this package
stands that reads or writes a table: also a table that is unpickled in another process, or a task of Spark's. The part that
is about Arrow runs when ``pyiceberg.io.pyarrow`` is loaded, by whomever: Arrow takes long to load, and many processes never
need it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType
from typing import Any

from commit_coord.iceberg import decoding, nulls, predicates

_ARROW = "pyiceberg.io.pyarrow"


class Mends:
    """Changes of PyIceberg's classes and modules: collected first, then made. A name that is gone changes nothing."""

    def __init__(self) -> None:
        self._attributes: dict[tuple[Any, str], Any] = {}
        self._cases: dict[tuple[Any, type], Any] = {}

    def wrap(self, owner: Any, name: str, by: Callable[[Any], Any]) -> None:
        """Have *by* make a function of the present one, and put it in its place.

        Raises:
            AttributeError: *owner* has no such attribute.
        """
        real = self._attributes.get((owner, name)) or getattr(owner, name)
        self._attributes[owner, name] = wraps(real)(by(real))

    def wrap_case(self, generic: Any, kind: type, by: Callable[[Any], Any]) -> None:
        """Do as :meth:`wrap` does, with what a ``functools.singledispatch`` function does for arguments of *kind*."""
        self._cases[generic, kind] = by(generic.dispatch(kind))

    def make(self) -> None:
        """Make the changes."""
        for (owner, name), mended in self._attributes.items():
            setattr(owner, name, mended)
        for (generic, kind), mended in self._cases.items():
            generic.register(kind, mended)


_lock = Lock()
_mended = False
_mended_scan: Any = None
"""A class of PyIceberg's module for Arrow that was mended: another one when the module was loaded again."""


def mend() -> None:
    """Have PyIceberg read, write and filter exactly in this process. Idempotent, and safe to call from any thread."""
    global _mended
    with _lock:
        if not _mended:
            mends = Mends()
            decoding.mend(mends)
            predicates.mend(mends)
            mends.make()
            sys.meta_path.insert(0, _WhenArrowIsLoaded())
            _mended = True
    if _ARROW in sys.modules:
        _mend_arrow(importlib.import_module(_ARROW))  # waits for another thread that is loading it


def _mend_arrow(reader: ModuleType) -> None:
    global _mended_scan
    with _lock:
        if reader.ArrowScan is not _mended_scan:
            mends = Mends()
            nulls.mend(mends, reader)
            predicates.mend_arrow(mends, reader)
            mends.make()
            _mended_scan = reader.ArrowScan


class _WhenArrowIsLoaded(MetaPathFinder):
    """Mends PyIceberg's module for Arrow before the first import of it returns."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _ARROW:
            return None
        found = (f.find_spec(name, path, target) for f in sys.meta_path if f is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                _mend_arrow(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
