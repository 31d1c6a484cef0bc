"""Names that no table has."""

from __future__ import annotations

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError


class NoSuchName(NoSuchTableError, NoSuchNamespaceError, ValueError):
    """No table can have this identifier. PyIceberg raises the one or the other, as the operation goes."""
