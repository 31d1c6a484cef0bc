"""What the bench borrows from the shipped test kit: a PostgreSQL server, a jar, the hammer.

The kit stands above this package, since it tests all of it, so it is looked up by name when a suite needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def borrow(name: str) -> Any:
    """Return ``commit_coord.testing.<name>``, where *name* is ``module.attribute``."""
    module, _, attribute = name.partition(".")
    return getattr(import_module(f"commit_coord.testing.{module}"), attribute)
