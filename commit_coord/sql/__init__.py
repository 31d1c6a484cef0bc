"""Hive's statements on Iceberg tables: which locks they take, who holds which, and the operations themselves."""

from __future__ import annotations

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.extras import missing
from commit_coord.table import Rewriter, rewrite_here

try:
    from commit_coord.sql.grammar import parse
    from commit_coord.sql.session import Session
    from commit_coord.sql.show import Answer
except ModuleNotFoundError as error:
    raise missing(error) from None

__all__ = ["Answer", "Session", "parse", "run"]


def run(
    text: str, catalog: CoordinatedCatalog, *, database: str = "default", rewrite: Rewriter = rewrite_here
) -> Answer:
    """Return what the statement *text* answers on *catalog*; see :class:`Session`."""
    return Session(catalog, database=database, rewrite=rewrite).run(text)
