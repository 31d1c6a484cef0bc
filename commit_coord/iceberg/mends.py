"""Changes of PyIceberg's classes and modules, collected before they are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


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
