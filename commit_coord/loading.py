"""Calls a function once a module has been loaded, by whatever import."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_loaded(name: str, then: Callable[[ModuleType], object]) -> None:
    """Call *then* with the module *name*: now if it is loaded, else before the first import of it returns.

    *then* may be called twice. Other threads that import the module wait for it; so it may import only modules that
    *name* imports, and modules that import nothing before those. Else two threads may wait for each other:

    1. A has imported *name*, and is in *then*, which imports X.   2. B has begun to import X, which imports *name*.
    """
    # In this order: another thread may load the module meanwhile.
    sys.meta_path.insert(0, _WhenLoaded(name, then))
    if name in sys.modules:
        then(importlib.import_module(name))  # waits for another thread that is loading it


class _WhenLoaded(MetaPathFinder):
    def __init__(self, name: str, then: Callable[[ModuleType], object]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See :meth:`importlib.abc.MetaPathFinder.find_spec`."""
        if name != self._name:
            return None
        found = (f.find_spec(name, path, target) for f in sys.meta_path if f is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
