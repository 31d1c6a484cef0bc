"""PyIceberg's mistakes, mended in its own classes once in every process that imports this package.

No caller has to ask for it. :func:`mend` runs when ``commit_coord.iceberg`` is imported; all code of this package that
reads or writes a table imports it. This covers a table that is unpickled in another process, and a task in a worker of
Spark's. The mends of Arrow code are made when ``pyiceberg.io.pyarrow`` is loaded, whoever loads it: Arrow takes long to
load, and many processes never need it.
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
_mended: list[Any] = []
"""What shows that it was done: ``mend``, and a class of PyIceberg's module for Arrow, which may be loaded again."""


def mend() -> None:
    """Have PyIceberg read, write and filter exactly in this process. Idempotent, and safe to call from any thread."""
    with _lock:
        if mend not in _mended:
            mends = Mends()
            decoding.mend(mends)
            predicates.mend(mends)
            mends.make()
            sys.meta_path.insert(0, _WhenArrowIsLoaded())
            _mended.append(mend)
    if _ARROW in sys.modules:
        _mend_arrow(importlib.import_module(_ARROW))  # waits for another thread that is loading it


def _mend_arrow(reader: ModuleType) -> None:
    with _lock:
        if reader.ArrowScan not in _mended:
            mends = Mends()
            nulls.mend(mends, reader)
            predicates.mend_arrow(mends, reader)
            mends.make()
            _mended.append(reader.ArrowScan)


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
