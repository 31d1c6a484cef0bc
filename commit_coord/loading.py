"""Calls a function once a module has been loaded, by whatever import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class WhenLoaded(MetaPathFinder):
    """Calls *then* with the module *name* before the first import of it returns.

    Args:
        name: A module that is not loaded yet.
        then: Takes the module. It may import others, also those that import this one.
    """

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
