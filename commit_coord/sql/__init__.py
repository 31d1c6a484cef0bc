"""Hive's statements on Iceberg tables: which locks they take, who holds which, and the operations themselves."""

from __future__ import annotations

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.sql.parse import parse
from commit_coord.sql.session import Session
from commit_coord.sql.show import Answer

__all__ = ["Answer", "Session", "parse", "run"]


def run(text: str, catalog: CoordinatedCatalog, *, database: str = "default") -> Answer:
    """Return what the statement *text* answers on *catalog*; see :meth:`Session.run`."""
    return Session(catalog, database=database).run(text)
