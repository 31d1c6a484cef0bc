"""Names as a metastore keeps them."""

from __future__ import annotations


def folded(*names: str) -> tuple[str, ...]:
    """Return the names of a database, and of what is in it, as the metastore keeps them: in lower case.

    The only place of the catalog that folds. ``MetastoreClient`` folds what it sends, for callers that know of none.
    """
    return tuple(name.lower() for name in names)
