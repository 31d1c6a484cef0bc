"""Hive's statements on Iceberg tables: which locks they take, who holds which, and the operations themselves."""

from __future__ import annotations

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.sql.grammar import parse
from commit_coord.sql.session import Session
from commit_coord.sql.show import Answer
from commit_coord.table import Rewriter, rewrite_here

__all__ = ["Answer", "Session", "parse", "run"]


def run(
    text: str, catalog: CoordinatedCatalog, *, database: str = "default", rewrite: Rewriter = rewrite_here
) -> Answer:
    """Return what the statement *text* answers on *catalog*; see :class:`Session`."""
    return Session(catalog, database=database, rewrite=rewrite).run(text)
